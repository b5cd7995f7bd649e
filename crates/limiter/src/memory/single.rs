//! One limit of one key: the way of a decision, quick where it can be.

use std::sync::atomic::Ordering;

use tollgate_core::algorithm::{Algorithm, Packed};
use tollgate_core::bucket::{Bucket, Weighed};
use tollgate_core::key::{Key, KeyRef};
use tollgate_core::limit::{self, Ask, Op};
use tollgate_core::store::{Charge, Rule, StoreError};
use tollgate_core::{Limit, Outcome, Timestamp};

use super::group::Locked;
use super::rules::{Record, on_word};
use super::shards::{Call, Elsewhere, Shard, Target};
use super::table::{Judge, Place, Tag};
use super::{KnownRule, MemoryStore};

impl MemoryStore {
    /// Charges a key that is in the table to a bucket: the way that nearly every decision takes, on one screen
    /// and in registers. `None` for everything else and for a key's first call: see
    /// [`charge_one`](Self::charge_one).
    #[inline(always)]
    pub(crate) fn charge_bucket<'r>(
        &'r self,
        rule: &'r KnownRule,
        key: KeyRef<'_>,
        cost: u64,
        at: Option<Timestamp>,
    ) -> Option<(&'r Bucket, Weighed)> {
        let now = self.time_soon(at);
        let (number, record) = match rule.moved.load(Ordering::Acquire) {
            0 => (rule.rule.0, &*rule.record),
            moved => (moved, self.rules.get(moved)?),
        };
        if now.as_nanos() >= record.fast_until.load(Ordering::Acquire) {
            return None;
        }
        let Limit::Bucket(bucket) = &record.limit else { return None };
        let hash = self.hash(key, record);
        let weighed = self.table.update(self.table.place(hash), Tag::new(hash, number), |word| {
            let weighed = bucket.weigh_word(word, now, cost);
            let takes = cost > 0 && bucket.fits(weighed);
            (takes.then(|| bucket.word_after(now, weighed)), weighed)
        })?;
        (bucket.fits(weighed) || self.latest_seen(at) <= now).then_some((bucket, weighed))
    }

    /// Charges a key, whatever its limit.
    #[inline(never)]
    pub(crate) fn charge_one(
        &self,
        rule: &KnownRule,
        key: KeyRef<'_>,
        cost: u64,
        at: Option<Timestamp>,
    ) -> Result<Outcome, StoreError> {
        let now = self.time(at);
        let (number, record) = self.current(rule.rule, now)?;
        if number != rule.rule.0 {
            rule.moved.store(number, Ordering::Release);
        }
        if record.in_table
            && let Some(outcome) = self.charge_word(record, number, self.hash(key, record), now, cost)
            && (outcome.allowed || self.latest_seen(at) <= now)
        {
            return Ok(outcome);
        }
        self.decide(Op::Charge, Charge { rule: rule.rule, key, ask: Ask::from(cost) }, at)
    }

    /// Weighs a charge and takes it if it fits and the key is there.
    #[inline(always)]
    pub(super) fn charge_bucket_word(
        &self,
        bucket: &Bucket,
        record: &Record,
        rule: u32,
        hash: u64,
        now: Timestamp,
        cost: u64,
    ) -> Option<Weighed> {
        let base = record.base();
        self.table.update(self.table.place(hash), Tag::new(hash, rule), |word| {
            let state = bucket.unpack(base, word);
            let weighed = bucket.weigh(&state, now, cost);
            let takes = cost > 0 && bucket.fits(weighed);
            (takes.then(|| bucket.pack(base, bucket.taken(&state, now, weighed))), weighed)
        })
    }

    pub(super) fn charge_word(
        &self,
        record: &Record,
        rule: u32,
        hash: u64,
        now: Timestamp,
        cost: u64,
    ) -> Option<Outcome> {
        let base = record.base();
        on_word!(record, a => self.table.update(self.table.place(hash), Tag::new(hash, rule), |word| {
            let mut state = a.unpack(base, word);
            let outcome = a.decide(&mut state, now, cost);
            // A refused or a free call changes nothing.
            ((outcome.allowed && cost > 0).then(|| a.pack(base, state)), outcome)
        }), else None)
    }

    /// Does one thing to one limit of one key. `at` is the time for those who bring their own.
    pub fn decide(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        let now = self.time(at);
        let (rule, record) = self.current(charge.rule, now)?;
        let hash = self.hash(charge.key, record);
        let call = Call { op, ask: charge.ask, now, taken: now };
        if !record.in_table {
            return self.decide_in_maps(self.target(rule, record, hash, charge.key), call);
        }
        let outcome = self.decide_in_table(rule, record, hash, charge.key, call, None);
        let latest = self.latest_seen(at);
        if outcome.allowed || latest <= now {
            return Ok(outcome);
        }
        let now = latest;
        let (rule, record) = self.current(charge.rule, now)?;
        let call = Call { now, taken: now, ..call };
        Ok(self.decide_in_table(rule, record, hash, charge.key, call, None))
    }

    /// Decides the same charge for many keys of one rule and tells `each` the outcome. Keys are fetched ahead of
    /// being decided, so that with many millions of them the waits for memory overlap.
    pub fn decide_many<'k, K: Key>(
        &self,
        rule: Rule,
        keys: &'k [K],
        cost: u64,
        at: Option<Timestamp>,
        mut each: impl FnMut(&'k K, Result<Outcome, StoreError>),
    ) -> Result<(), StoreError> {
        const AHEAD: usize = 16;
        for batch in keys.chunks(AHEAD) {
            let now = self.time(at);
            let (number, record) = self.current(rule, now)?;
            let call = Call { op: Op::Charge, ask: Ask::from(cost), now, taken: now };
            let mut hashes = [0; AHEAD];
            let mut fetched = 0;
            for (key, hash) in batch.iter().zip(&mut hashes) {
                *hash = key.with(|key| self.hash(key, record));
                fetched ^= self.table.fetch(self.table.place(*hash));
            }
            // The loads above are their own purpose.
            std::hint::black_box(fetched);
            for (key, &hash) in batch.iter().zip(&hashes) {
                if record.in_table
                    && let Limit::Bucket(bucket) = &record.limit
                    && let Some(weighed) = self.charge_bucket_word(bucket, record, number, hash, now, cost)
                {
                    each(key, Ok(bucket.answer(weighed).unwrap_or_else(|refused| refused)));
                    continue;
                }
                let outcome = key.with(|key| match record.in_table {
                    true => Ok(self.decide_in_table(number, record, hash, key, call, None)),
                    false => self.decide_in_maps(self.target(number, record, hash, key), call),
                });
                each(key, outcome);
            }
        }
        Ok(())
    }

    pub(super) fn decide_in_maps(&self, target: Target<'_>, call: Call) -> Result<Outcome, StoreError> {
        match self.shards.lock(self.shards.index(target.hash)) {
            Some(mut shard) => self.decide_in_shard(&mut shard, target, call),
            None => Err(StoreError::Full { bytes: self.max_bytes }),
        }
    }

    pub(super) fn decide_in_shard(
        &self,
        shard: &mut Shard,
        target: Target<'_>,
        call: Call,
    ) -> Result<Outcome, StoreError> {
        let elsewhere = || match target.record.has_siblings() {
            true => Elsewhere {
                state: self.adopt_from_table(target, call.now),
                floor: self.floor_in_table(target, call.now),
            },
            false => Elsewhere::default(),
        };
        self.shards.apply(shard, &self.rules, target, call, elsewhere)
    }

    /// Decides for a key of the table. `locked` are the shards that the call has locked already, if any.
    pub(super) fn decide_in_table(
        &self,
        rule: u32,
        record: &Record,
        hash: u64,
        key: KeyRef<'_>,
        call: Call,
        locked: Option<&mut Locked<'_>>,
    ) -> Outcome {
        on_word!(record, algorithm => {
            let place = self.table.place(hash);
            match self.apply_to_word(algorithm, record, place, Tag::new(hash, rule), call) {
                Some(outcome) => outcome,
                None => self.decide_missing(algorithm, self.target(rule, record, hash, key), call, locked),
            }
        }, else Outcome::allow(0, 0))
    }

    pub(super) fn apply_to_word<A: Packed>(
        &self,
        algorithm: &A,
        record: &Record,
        place: Place,
        tag: Tag,
        call: Call,
    ) -> Option<Outcome> {
        let base = record.base();
        self.table.update(place, tag, |word| {
            let mut state = algorithm.unpack(base, word);
            let before = state;
            let outcome = limit::apply(algorithm, call.op, &mut state, call.now, call.ask.cost, call.taken);
            ((state != before).then(|| algorithm.pack(base, state)), outcome)
        })
    }

    /// Decides for a key that is not in the table, and puts it there if that changes anything.
    #[cold]
    pub(super) fn decide_missing<A: Packed>(
        &self,
        algorithm: &A,
        target: Target<'_>,
        call: Call,
        locked: Option<&mut Locked<'_>>,
    ) -> Outcome {
        let Target { rule, record, hash, .. } = target;
        let now = call.now;
        let place = self.table.place(hash);
        let tag = Tag::new(hash, rule);
        // Shards are always locked before sets.
        let mut own = match &locked {
            None => self.lock(std::iter::once(&target)),
            Some(_) => Locked::default(),
        };
        let shard = self.shards.index(hash);
        let mut shard = locked.and_then(|locked| locked.get(shard)).or_else(|| own.get(shard));
        let _guard = self.table.lock(place);
        while !self.table.is_absent(place, tag) {
            if let Some(outcome) = self.apply_to_word(algorithm, record, place, tag, call) {
                return outcome;
            }
        }
        let adopted = match record.has_siblings() {
            true => self.adopt(algorithm, target, now, shard.as_deref_mut()),
            false => None,
        };
        let must_put = adopted.is_some();
        let mut state = adopted.unwrap_or_else(|| self.floor(algorithm, target, now, shard));
        let before = state;
        let outcome = limit::apply(algorithm, call.op, &mut state, now, call.ask.cost, call.taken);
        if state == before && !must_put {
            return outcome;
        }
        let word = algorithm.pack(record.base(), state);
        if !self.table.put(place, tag, word, algorithm.level(&state, now), &self.judge(now)) {
            // Everything there carries more than this key does: it counts on the floor, as if it had been put
            // and evicted at once.
            self.judge(now).evict(tag, word, self.table.sets_of(place)[0]);
        }
        outcome
    }
}
