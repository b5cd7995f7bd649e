//! Rules of one family share what a key has used: a state moves with its key from one rule to the next.

use smallvec::SmallVec;
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
        let mut add = |from: u32, state: State| {
            let carried = self.rules.carry(from, state, rule, now);
            let state = algorithm.unpack(record.base(), record.pack(&carried));
            adopted = Some(match &adopted {
                Some(other) => algorithm.join(other, &state, now),
                None => state,
            });
        };
        for tag in self.family_in_table(place, record).into_iter().filter(|tag| tag.rule() != rule) {
            if let Some(old) = self.rules.get(tag.rule())
                && let Some(word) = self.table.extract(place, tag)
            {
                add(tag.rule(), old.unpack(word));
            }
        }
        if let Some((from, state)) = shard.and_then(|shard| self.shards.take(shard, target)) {
            add(from, state);
        }
        adopted
    }

    /// A key whose rule now lives in the maps brings along what it used while it lived in the table.
    pub(super) fn adopt_from_table(&self, target: Target<'_>, now: Timestamp) -> Option<State> {
        let place = self.table.place(target.hash);
        let _guard = self.table.lock(place);
        let mut adopted = None;
        for tag in self.family_in_table(place, target.record) {
            let Some(old) = self.rules.get(tag.rule()) else {
                continue;
            };
            let Some(word) = self.table.extract(place, tag) else {
                continue;
            };
            let state = self.rules.carry(tag.rule(), old.unpack(word), target.rule, now);
            adopted = Some(match adopted {
                Some(other) => target.record.limit.join(&other, &state, now),
                None => state,
            });
        }
        adopted
    }

    /// The state from which a newcomer to the table starts: what was evicted from its sets under its own rule,
    /// and under the others of its family.
    pub(super) fn floor<A: Packed>(
        &self,
        algorithm: &A,
        target: Target<'_>,
        now: Timestamp,
        shard: Option<&mut Shard>,
    ) -> A::State {
        let Target { rule, record, hash, .. } = target;
        let (sets, of) = (self.table.sets_of(self.table.place(hash)), self.table.sets());
        let floor = record.floor_state(algorithm, sets, of, now);
        if !record.has_siblings() {
            return algorithm.inherit(&floor, now);
        }
        let in_table = self.rules.family_floor(rule, record, sets, of, now);
        let in_maps = shard.map(|shard| shard.floor(&self.rules, &target, now));
        let floor = in_table.into_iter().chain(in_maps).fold(floor, |floor, state| {
            algorithm.join(&floor, &algorithm.unpack(record.base(), record.pack(&state)), now)
        });
        algorithm.inherit(&floor, now)
    }

    /// What was evicted from the table under rules of the family of a rule that lives in the maps.
    pub(super) fn floor_in_table(&self, target: Target<'_>, now: Timestamp) -> Option<State> {
        let sets = self.table.sets_of(self.table.place(target.hash));
        self.rules.family_floor(target.rule, target.record, sets, self.table.sets(), now)
    }

    /// The tags that a key has under rules of its family.
    pub(super) fn family_in_table(&self, place: Place, record: &Record) -> SmallVec<[Tag; 2]> {
        let mut tags = self.table.tags_of(place);
        tags.retain(|tag| self.rules.get(tag.rule()).is_some_and(|other| other.salt == record.salt));
        tags
    }
}
