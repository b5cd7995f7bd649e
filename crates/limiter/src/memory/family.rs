//! Rules of one family share what a key has used: a state moves with its key from one rule to the next.

use smallvec::SmallVec;
use tollgate_core::algorithm::Packed;
use tollgate_core::limit::{Op, State};
use tollgate_core::{Outcome, Timestamp};

use super::MemoryStore;
use super::rules::Record;
use super::shards::{Call, Shard, Target};
use super::table::{Place, Tag};

/// Whether a state that is asked for moves to the rule that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moves {
    Yes,
    No,
}

impl MemoryStore {
    /// What a key used under other rules of its family, wherever that is kept, in terms of this one: moved under it, or
    /// left where it is.
    pub(super) fn adopt<A: Packed>(
        &self,
        algorithm: &A,
        target: &Target<'_>,
        now: Timestamp,
        shard: Option<&mut Shard>,
        moves: Moves,
    ) -> Option<A::State> {
        let Target { rule, record, hash, .. } = *target;
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
                && let Some(word) = self.word_of(place, tag, moves)
            {
                add(tag.rule(), old.unpack(word));
            }
        }
        let in_maps = shard.and_then(|shard| match moves {
            Moves::Yes => self.shards.take(shard, target),
            Moves::No => self.shards.look(shard, target),
        });
        if let Some((from, state)) = in_maps {
            add(from, state);
        }
        adopted
    }

    fn word_of(&self, place: Place, tag: Tag, moves: Moves) -> Option<u64> {
        match moves {
            Moves::Yes => self.table.extract(place, tag),
            Moves::No => self.table.update(place, tag, |word| (None, word)),
        }
    }

    /// Whether a key has used something under a rule of its family that is in force beside this one: another plan's.
    /// Under a limit that was changed nobody asks any more.
    pub(super) fn has_rival(&self, target: &Target<'_>, shard: Option<&Shard>) -> bool {
        let rival = |rule: u32| self.rules.in_force(rule).is_some_and(|(newest, _)| newest != target.rule);
        let place = self.table.place(target.hash);
        self.family_in_table(place, target.record).into_iter().any(|tag| rival(tag.rule()))
            || shard.and_then(|shard| self.shards.rule_of(shard, target)).is_some_and(rival)
    }

    /// The answer to a key that was refused under this rule, and whose state has stayed under another that is in force: it
    /// ages by that one, and so does the wait.
    pub(super) fn refused_beside(
        &self,
        outcome: Outcome,
        target: &Target<'_>,
        call: &Call<'_>,
        shard: Option<&Shard>,
    ) -> Outcome {
        if outcome.allowed || outcome.retry_after.is_none() || !matches!(call.op, Op::Charge | Op::Estimate) {
            return outcome;
        }
        let limit = &target.record.limit;
        let mut told: SmallVec<[Outcome; 2]> = SmallVec::new();
        let mut add = |from: u32, state: State| {
            if let Some((rule, record)) = self.rules.in_force(from).filter(|(rule, _)| *rule != target.rule) {
                let state = self.rules.carry(from, state, rule, call.now);
                told.push(limit.refused_beside(outcome, &record.limit, &state, call.now, call.ask.cost));
            }
        };
        let place = self.table.place(target.hash);
        for tag in self.family_in_table(place, target.record) {
            if let Some(record) = self.rules.get(tag.rule())
                && let Some(word) = self.word_of(place, tag, Moves::No)
            {
                add(tag.rule(), record.unpack(word));
            }
        }
        if let Some((from, state)) = shard.and_then(|shard| self.shards.look(shard, target)) {
            add(from, state);
        }
        match told.as_slice() {
            [told] => *told,
            // Together they are more than each of them.
            several => several.iter().fold(outcome, |longest, told| Outcome {
                retry_after: longest.retry_after.max(told.retry_after),
                reset_after: longest.reset_after.max(told.reset_after),
                ..longest
            }),
        }
    }

    /// A key whose rule now lives in the maps brings along what it used while it lived in the table.
    pub(super) fn adopt_from_table(
        &self,
        target: &Target<'_>,
        now: Timestamp,
        moves: Moves,
    ) -> Option<State> {
        let place = self.table.place(target.hash);
        let _guard = self.table.lock(place);
        let mut adopted = None;
        for tag in self.family_in_table(place, target.record) {
            let Some(old) = self.rules.get(tag.rule()) else {
                continue;
            };
            let Some(word) = self.word_of(place, tag, moves) else {
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

    /// The state of a key that is not in the table: what is remembered of it if it was evicted, else a fresh one.
    pub(super) fn recall<A: Packed>(&self, target: &Target<'_>, algorithm: &A, now: Timestamp) -> A::State {
        let Target { rule, record, hash, .. } = *target;
        if !self.rules.has_evicted() {
            return A::State::default();
        }
        let state = self.rules.recall(rule, record, hash, now);
        state.map_or_else(A::State::default, |state| algorithm.unpack(record.base(), record.pack(&state)))
    }

    /// The tags that a key has under rules of its family.
    pub(super) fn family_in_table(&self, place: Place, record: &Record) -> SmallVec<[Tag; 2]> {
        let mut tags = self.table.tags_of(place);
        tags.retain(|tag| self.rules.get(tag.rule()).is_some_and(|other| other.salt == record.salt));
        tags
    }
}
