//! One limit of one key: the way of a decision, quick where it can be.

use std::sync::atomic::Ordering;

use tollgate_core::algorithm::Packed;
use tollgate_core::bucket::{Bucket, Weighed};
use tollgate_core::key::{Key, KeyRef};
use tollgate_core::limit::{self, Ask, Op};
use tollgate_core::store::{Charge, Rule, StoreError};
use tollgate_core::{Limit, Outcome, Timestamp};

use super::evicted::Cause;
use super::family::Moves;
use super::group::Locked;
use super::rules::{Record, on_word, worth_of};
use super::shards::{Call, Shard, Target};
use super::table::{Line, Place, Presence, Tag, Worth};
use super::{KnownRule, MemoryStore};

impl MemoryStore {
    /// Charges a key that is in the table to a bucket that counts whole nanoseconds: the way that nearly every
    /// decision takes, on one screen and in registers. `None` for everything else and for a key's first call: see
    /// [`charge_one`](Self::charge_one).
    #[inline(always)]
    pub(crate) fn charge_bucket(
        &self,
        rule: &KnownRule,
        key: KeyRef<'_>,
        cost: u64,
        at: Option<Timestamp>,
    ) -> Option<Result<Outcome, Outcome>> {
        let (number, record) = match rule.moved.load(Ordering::Acquire) {
            0 => (rule.rule.0, &*rule.record),
            moved => (moved, self.redefined(moved)?),
        };
        if record.fast_until.load(Ordering::Acquire) == 0 {
            return None;
        }
        let hash = self.hash(key, record);
        // The clock is read while the line is on its way.
        let line = self.table.fetch(self.table.place(hash))?;
        let now = self.time_soon(at);
        self.charge_line(line, number, record, hash, now, cost, at)
    }

    /// The record that has taken another's place: a call, so that limits which never change do not carry it along.
    #[inline(never)]
    fn redefined(&self, number: u32) -> Option<&Record> {
        self.rules.get(number)
    }

    #[inline(always)]
    #[allow(clippy::too_many_arguments, reason = "one call in three places, all to be inlined")]
    pub(super) fn charge_line(
        &self,
        line: Line<'_>,
        rule: u32,
        record: &Record,
        hash: u64,
        now: Timestamp,
        cost: u64,
        at: Option<Timestamp>,
    ) -> Option<Result<Outcome, Outcome>> {
        if now.as_nanos() >= record.fast_until.load(Ordering::Acquire) {
            return None;
        }
        let Limit::Bucket(bucket) = &record.limit else { return None };
        let charged =
            self.table.update_from(line, Tag::new(hash, rule), |word| charged(bucket, word, now, cost))?;
        match charged {
            Ok(weighed) => Some(Ok(bucket.allow(weighed))),
            Err(weighed) => (self.latest_seen(at) <= now).then(|| Err(bucket.refuse(weighed))),
        }
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
        if record.in_table {
            let hash = self.hash(key, record);
            let charged = on_word!(record, algorithm => {
                match self.charge_word(algorithm, record, number, hash, now, cost) {
                    Some(outcome) => outcome,
                    None => {
                        let ask = Ask::from(cost);
                        let call = Call::new(Op::Charge, &ask, now);
                        self.decide_missing(algorithm, &self.target(number, record, hash, key), &call, None)
                    }
                }
            }, else Outcome::allow(0, 0));
            if charged.allowed || self.latest_seen(at) <= now {
                return Ok(charged);
            }
        }
        self.decide(Op::Charge, Charge { rule: rule.rule, key, ask: Ask::from(cost) }, at)
    }

    /// Charges a key that is in the table.
    #[inline]
    fn charge_word<A: Packed>(
        &self,
        algorithm: &A,
        record: &Record,
        rule: u32,
        hash: u64,
        now: Timestamp,
        cost: u64,
    ) -> Option<Outcome> {
        let base = record.base();
        self.table.update(self.table.place(hash), Tag::new(hash, rule), |word| {
            let mut state = algorithm.unpack(base, word);
            let outcome = algorithm.decide(&mut state, now, cost);
            // A refused or a free call changes nothing.
            ((outcome.allowed && cost > 0).then(|| algorithm.pack(base, state)), outcome)
        })
    }

    /// Does one thing to one limit of one key. `at` is the time for those who bring their own.
    ///
    /// ```
    /// use tollgate::core::limit::{Ask, Op};
    /// use tollgate::core::store::Charge;
    /// use tollgate::{Key, MemoryStore, Quota};
    ///
    /// let store = MemoryStore::new();
    /// let rule = store.define("per user", Quota::per_second(10).limit()?);
    /// let outcome = "alice".with(|key| store.decide(Op::Charge, Charge { rule, key, ask: Ask::from(3) }, None))?;
    /// assert_eq!(outcome.remaining, 7);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn decide(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        let now = self.time(at);
        let outcome = self.decide_once(op, &charge, now)?;
        let latest = self.latest_seen(at);
        let is_word = |rule: Rule| self.current(rule, now).is_ok_and(|(_, record)| record.in_table);
        if outcome.allowed || latest <= now || !is_word(charge.rule) {
            return Ok(outcome);
        }
        self.decide_once(op, &charge, latest)
    }

    /// The same, at this time.
    #[inline]
    pub(super) fn decide_once(
        &self,
        op: Op,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let (rule, record) = self.current(charge.rule, now)?;
        let before = || self.rules.get(charge.rule.0);
        let of_places = match op {
            _ if record.holds(charge.key) => Some(record),
            // What was taken of a fleet comes back to it, also where the rule means something else by now.
            Op::Refund => before().filter(|old| old.holds(charge.key) && old.has_taken(&charge.ask)),
            _ => None,
        };
        if let Some(record) = of_places {
            return Ok(record.count_places(op, &charge.ask));
        }
        let hash = self.hash(charge.key, record);
        let call = Call::new(op, &charge.ask, now);
        match record.in_table {
            true => Ok(self.decide_in_table(rule, record, hash, charge.key, &call, None)),
            false => self.decide_in_maps(&self.target(rule, record, hash, charge.key), &call),
        }
    }

    /// Decides the same charge for many keys of one rule and tells `each` the outcome. Keys are fetched ahead of
    /// being decided, so that with many millions of them the waits for memory overlap.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, Quota};
    /// let store = MemoryStore::new();
    /// let rule = store.define("per user", Quota::per_hour(1).limit()?);
    /// let mut allowed = 0;
    /// store.decide_many(rule, &["a", "b", "a"], 1, None, |_, outcome| {
    ///     allowed += u32::from(outcome.is_ok_and(|outcome| outcome.allowed));
    /// })?;
    /// assert_eq!(allowed, 2);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
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
            let mut fetched = [(0, None); AHEAD];
            for (key, (hash, line)) in batch.iter().zip(&mut fetched) {
                *hash = key.with(
                    #[inline(always)]
                    |key| self.hash(key, record),
                );
                *line = self.table.fetch(self.table.place(*hash));
            }
            for (key, &(hash, line)) in batch.iter().zip(&fetched) {
                // A refusal is tried once more if others have seen a later time since the batch began.
                let charge = |line, now| self.charge_line(line, number, record, hash, now, cost, at);
                let later = || Some(self.latest_seen(at)).filter(|latest| *latest > now);
                if let Some(line) = line
                    && let Some(charged) = charge(line, now).or_else(|| charge(line, later()?))
                {
                    each(key, Ok(charged.unwrap_or_else(|refused| refused)));
                    continue;
                }
                let ask = Ask::from(cost);
                each(key, key.with(|key| self.decide(Op::Charge, Charge { rule, key, ask }, at)));
            }
        }
        Ok(())
    }

    pub(super) fn decide_in_maps(&self, target: &Target<'_>, call: &Call<'_>) -> Result<Outcome, StoreError> {
        match self.shards.lock(self.shards.index(target.hash)) {
            Some(mut shard) => self.decide_in_shard(&mut shard, target, call),
            None => Err(StoreError::Full { bytes: self.max_bytes }),
        }
    }

    pub(super) fn decide_in_shard(
        &self,
        shard: &mut Shard,
        target: &Target<'_>,
        call: &Call<'_>,
    ) -> Result<Outcome, StoreError> {
        if target.record.is_counted
            && let Some(seat) = self.shards.seat(shard, target)
            && let Some(used) = shard.counted(seat)
            && let Some(outcome) = target.record.limit.count(call.op, used, call.ask)
        {
            return Ok(outcome);
        }
        let elsewhere = |moves| match target.record.has_siblings_in_table() {
            true => self.adopt_from_table(target, call.now, moves),
            false => None,
        };
        let outcome = self.shards.apply(shard, &self.rules, target, call, elsewhere)?;
        match outcome.allowed || !target.record.has_siblings() {
            true => Ok(outcome),
            false => Ok(self.refused_beside(outcome, target, call, Some(shard))),
        }
    }

    /// Decides for a key of the table. `locked` are the shards that the call has locked already, if any.
    pub(super) fn decide_in_table(
        &self,
        rule: u32,
        record: &Record,
        hash: u64,
        key: KeyRef<'_>,
        call: &Call<'_>,
        locked: Option<&mut Locked<'_>>,
    ) -> Outcome {
        on_word!(record, algorithm => {
            let place = self.table.place(hash);
            match self.apply_to_word(algorithm, record, place, Tag::new(hash, rule), call) {
                Some(outcome) => outcome,
                None => self.decide_missing(algorithm, &self.target(rule, record, hash, key), call, locked),
            }
        }, else Outcome::allow(0, 0))
    }

    pub(super) fn apply_to_word<A: Packed>(
        &self,
        algorithm: &A,
        record: &Record,
        place: Place,
        tag: Tag,
        call: &Call<'_>,
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
        target: &Target<'_>,
        call: &Call<'_>,
        locked: Option<&mut Locked<'_>>,
    ) -> Outcome {
        let Target { rule, record, hash, .. } = *target;
        let now = call.now;
        let place = self.table.place(hash);
        let tag = Tag::new(hash, rule);
        // Shards are always locked before sets.
        let mut own = match &locked {
            None if record.may_be_in_maps() => self.lock(std::iter::once(target)),
            _ => Locked::default(),
        };
        let shard = self.shards.index(hash);
        let mut shard = locked.and_then(|locked| locked.get(shard)).or_else(|| own.get(shard));
        let _guard = self.table.lock(place);
        let free = loop {
            match self.table.presence(place, tag) {
                Presence::Absent { free } => break free,
                Presence::Present => {
                    if let Some(outcome) = self.apply_to_word(algorithm, record, place, tag, call) {
                        return outcome;
                    }
                }
            }
        };
        let apply =
            |state: &mut A::State| limit::apply(algorithm, call.op, state, now, call.ask.cost, call.taken);
        let adopted = match record.has_siblings() {
            true => {
                // Looking, and being refused, must not take from one plan what another would clip.
                if self.has_rival(target, shard.as_deref())
                    && let Some(before) = self.adopt(algorithm, target, now, shard.as_deref_mut(), Moves::No)
                {
                    let mut state = before;
                    let outcome = apply(&mut state);
                    if state == before {
                        return self.refused_beside(outcome, target, call, shard.as_deref());
                    }
                }
                self.adopt(algorithm, target, now, shard, Moves::Yes)
            }
            false => None,
        };
        let must_put = adopted.is_some();
        let mut state = adopted.unwrap_or_else(|| self.recall(target, algorithm, now));
        let before = state;
        let outcome = apply(&mut state);
        if state == before && !must_put {
            return outcome;
        }
        let word = algorithm.pack(record.base(), state);
        let own = || match worth_of(algorithm, &state, now) {
            Worth::Idle => 0,
            Worth::Live(worth) => worth,
        };
        if !self.table.put(place, free, (tag, word), own, &self.judge(now)) {
            // Everything there is worth as much: it is remembered as if it had been put and evicted at once.
            self.judge(now).remember(tag, word, Cause::Unplaced);
        }
        outcome
    }
}

/// The word of a bucket after a charge, if it changes, and what was weighed: `Ok` if it fits.
#[inline(always)]
fn charged(bucket: &Bucket, word: u64, now: Timestamp, cost: u64) -> (Option<u64>, Result<Weighed, Weighed>) {
    let weighed = bucket.weigh_word(word, now, cost);
    match bucket.word_after(word, now, cost) {
        Some(after) => ((cost > 0).then_some(after), Ok(weighed)),
        None => (None, Err(weighed)),
    }
}
