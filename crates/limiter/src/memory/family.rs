//! Rules of one family share what a key has used: a state moves with its key from one rule to the next.

use tollgate_core::Timestamp;
use tollgate_core::algorithm::Packed;
use tollgate_core::limit::State;

use super::MemoryStore;
use super::rules::Record;
use super::shards::{Shard, Target};
use super::table::{Place, Tag};

impl MemoryStore {
    /// What a key used under other rules of its family, wherever that is kept, moved under this one.
    pub(super) fn adopt<A: Packed>(
        &self,
        algorithm: &A,
        target: Target<'_>,
        now: Timestamp,
        shard: Option<&mut Shard>,
    ) -> Option<A::State> {
        let Target { rule, record, hash, .. } = target;
        let place = self.table.place(hash);
        let mut adopted: Option<A::State> = None;
        let mut add = |old: &Record, state: &State| {
            let converted = record.limit.convert(&old.limit, state, old.changed(now));
            let state = algorithm.unpack(record.base(), record.pack(&converted));
            adopted = Some(match &adopted {
                Some(other) => algorithm.join(other, &state, now),
                None => state,
            });
        };
        for tag in self.family_in_table(place, Tag::new(hash, rule), record) {
            if let Some(old) = self.rules.get(tag.rule())
                && let Some(word) = self.table.extract(place, tag)
            {
                add(old, &old.unpack(word));
            }
        }
        if let Some((number, state)) = shard.and_then(|shard| self.shards.take(shard, target))
            && let Some(old) = self.rules.get(number)
        {
            add(old, &state);
        }
        adopted
    }

    /// A key whose rule now lives in the maps brings along what it used while it lived in the table.
    pub(super) fn adopt_from_table(&self, target: Target<'_>, now: Timestamp) -> Option<State> {
        if !target.record.has_siblings() {
            return None;
        }
        let place = self.table.place(target.hash);
        let tag = Tag::new(target.hash, 0);
        let _guard = self.table.lock(place);
        let mut adopted = None;
        for tag in self.family_in_table(place, tag, target.record) {
            let Some(old) = self.rules.get(tag.rule()) else {
                continue;
            };
            let Some(word) = self.table.extract(place, tag) else {
                continue;
            };
            let state = target.record.limit.convert(&old.limit, &old.unpack(word), old.changed(now));
            adopted = Some(match adopted {
                Some(other) => target.record.limit.join(&other, &state, now),
                None => state,
            });
        }
        adopted
    }

    /// The tags that a key has under rules of its family, other than `tag`.
    pub(super) fn family_in_table(&self, place: Place, tag: Tag, record: &Record) -> Vec<Tag> {
        let in_family = |tag: &Tag| {
            self.rules.get(tag.rule()).is_some_and(|other| other.family.salt == record.family.salt)
        };
        self.table.siblings(place, tag).map(|seen| seen.tag()).filter(in_family).collect()
    }
}
