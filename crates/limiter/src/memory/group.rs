//! Several limits at once: all are charged, or none.

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::key::KeyRef;
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::store::{Charge, StoreError};
use tollgate_core::{Limit, Outcome, Outcomes, Timestamp, Verdict};

use super::MemoryStore;
use super::shards::{Call, Shard, Target};

/// The shards that one call has locked, in ascending order.
#[derive(Default)]
pub(super) struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    pub(super) fn get(&mut self, index: usize) -> Option<&mut Shard> {
        self.0.iter_mut().find(|(locked, _)| *locked == index).map(|(_, shard)| &mut **shard)
    }
}

impl MemoryStore {
    /// Decides all charges of one call at one instant: all are taken, or none. Charges of the same key under
    /// the same rule count together.
    ///
    /// All states are looked at first, and a refusal touches none of them. Where two calls race for the last
    /// units, one of them may take a unit and give it back at once when another of its limits refuses: for
    /// that moment the limit is stricter, never looser.
    ///
    /// ```
    /// use tollgate::core::limit::Ask;
    /// use tollgate::core::store::Charge;
    /// use tollgate::{Key, MemoryStore, Quota};
    ///
    /// let store = MemoryStore::new();
    /// let second = store.define("per second", Quota::per_second(10).limit()?);
    /// let hour = store.define("per hour", Quota::per_hour(100).limit()?);
    /// let verdict = "alice".with(|key| {
    ///     let charges = [second, hour].map(|rule| Charge { rule, key, ask: Ask::from(1) });
    ///     store.decide_all(&charges, None)
    /// })?;
    /// assert!(verdict.allowed && verdict.remaining == 9);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn decide_all(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        let mut told = Outcomes::new();
        Ok(Verdict::of(match self.charge_usual(charges, at, &mut told) {
            Some(_) => told.into_vec(),
            None => self.decide_each_at(charges, at)?.0,
        }))
    }

    /// As [`decide_all`](Self::decide_all), for those whose calls are not the usual ones; tells when it was decided.
    pub(crate) fn decide_all_at(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<(Verdict, Timestamp), StoreError> {
        let (outcomes, now) = self.decide_each_at(charges, at)?;
        Ok((Verdict::of(outcomes), now))
    }

    /// What each charge is told, and when it was decided.
    fn decide_each_at(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<(Vec<Outcome>, Timestamp), StoreError> {
        /// How often a refusal is tried again at a later time. Others move time all the time.
        const TRIES: u32 = 3;
        let mut now = self.time(at);
        for tries in 1.. {
            let mut targets = Targets::new();
            self.add_targets(&mut targets, charges, now)?;
            let latest = if tries < TRIES { self.latest_seen(at) } else { now };
            let decide = |targets: &[Wanted<'_>]| self.decide_targets(targets, now, latest);
            match on_merged(&targets, decide)? {
                Some(outcomes) => return Ok((spread(&targets, outcomes), now)),
                None => now = latest,
            }
        }
        Ok((Vec::new(), now))
    }

    /// What [`decide_all`](Self::decide_all) would answer; nothing is taken, and no refusal is counted.
    pub(crate) fn estimate_together(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        let now = self.time(at);
        let mut targets = Targets::new();
        self.add_targets(&mut targets, charges, now)?;
        let outcomes = on_merged(&targets, |targets| {
            let mut locked = self.lock(targets.iter().map(|(target, _)| target));
            self.estimate_all(targets, now, &mut locked)
        })?;
        Ok(Verdict::of(spread(&targets, outcomes)))
    }

    #[inline]
    fn add_targets<'a>(
        &'a self,
        targets: &mut Targets<'a>,
        charges: &'a [Charge<'a>],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        // Most limits of a call are of the same key: it is hashed once.
        let (mut last, mut hash, mut check): (Option<KeyRef<'_>>, u64, Option<u64>) = (None, 0, None);
        for Charge { rule, key, ask } in charges {
            let (rule, record) = self.current(*rule, now)?;
            if !last.is_some_and(|last| last.kind == key.kind && std::ptr::eq(last.bytes, key.bytes)) {
                (last, hash, check) = (Some(*key), self.hash_key(*key), None);
            }
            let check =
                if record.may_be_in_maps() { *check.get_or_insert_with(|| self.check(*key)) } else { 0 };
            targets.push((Target { rule, record, hash: hash ^ record.salt, check, key: *key }, ask));
        }
        Ok(())
    }

    /// Nothing, if a refusal must be tried again at `latest` before it is true.
    pub(super) fn decide_targets(
        &self,
        targets: &[Wanted<'_>],
        now: Timestamp,
        latest: Timestamp,
    ) -> Result<Option<Vec<Outcome>>, StoreError> {
        let mut locked = self.lock(targets.iter().map(|(target, _)| target));
        // What lives in the maps is locked; words others may take at any moment. So one that is alone need not be looked at before
        // it is charged: if all else would pass, it decides, and if it refuses, nothing was touched.
        let words = targets.iter().filter(|(target, _)| target.record.in_table).count();
        let is_lone = |target: &Target<'_>| words == 1 && target.record.in_table;
        let mut outcomes = Vec::with_capacity(targets.len());
        let (mut allowed, mut lone) = (true, None);
        for (index, (target, ask)) in targets.iter().enumerate() {
            if is_lone(target) {
                lone = Some((index, target, *ask));
                outcomes.push(Outcome::allow(0, 0));
                continue;
            }
            let outcome = self.decide_locked(target, &Call::new(Op::Estimate, ask, now), &mut locked)?;
            allowed &= outcome.allowed;
            outcomes.push(outcome);
        }
        if let Some((index, target, ask)) = lone {
            let op = if allowed { Op::Charge } else { Op::Estimate };
            let outcome = self.decide_locked(target, &Call::new(op, ask, now), &mut locked)?;
            allowed &= outcome.allowed;
            if let Some(place) = outcomes.get_mut(index) {
                *place = outcome;
            }
        }
        if !allowed {
            if latest > now {
                return Ok(None);
            }
            // Limits that count refused calls count those that they themselves refused. Only logs do, and
            // theirs is locked, so that this refuses again.
            for ((target, ask), outcome) in targets.iter().zip(&mut outcomes) {
                if !outcome.allowed && matches!(target.record.limit, Limit::Log(_)) {
                    let call = Call::new(Op::Charge, ask, now);
                    *outcome = self.decide_locked(target, &call, &mut locked)?;
                }
            }
            return Ok(Some(outcomes));
        }
        // Words first. Whether a lease was held before: it must not be given back with what this call takes.
        let mut taken: SmallVec<[(&Wanted<'_>, bool); 10]> = SmallVec::new();
        for in_table in [true, false] {
            for (wanted, place) in targets.iter().zip(&mut outcomes) {
                let (target, ask) = wanted;
                if target.record.in_table != in_table {
                    continue;
                }
                // What is taken last is never given back.
                let was_held = taken.len() + 1 < targets.len() && self.is_held(target, ask, now, &mut locked);
                if !is_lone(target) {
                    match self.decide_locked(target, &Call::new(Op::Charge, ask, now), &mut locked) {
                        Ok(outcome) if outcome.allowed => *place = outcome,
                        // No room to count it: this limit lets the call pass, and the others still count.
                        Err(StoreError::Full { .. }) => {
                            *place = self.fail_open();
                            continue;
                        }
                        other => {
                            return self.undo(targets, &taken, wanted, other, (now, latest), &mut locked);
                        }
                    }
                }
                taken.push((wanted, was_held));
            }
        }
        Ok(Some(outcomes))
    }

    /// Another call took what was there a moment ago: what this one has taken goes back.
    #[cold]
    fn undo(
        &self,
        targets: &[Wanted<'_>],
        taken: &[(&Wanted<'_>, bool)],
        wanted: &Wanted<'_>,
        refused: Result<Outcome, StoreError>,
        (now, latest): (Timestamp, Timestamp),
        locked: &mut Locked<'_>,
    ) -> Result<Option<Vec<Outcome>>, StoreError> {
        for ((target, ask), _) in taken.iter().filter(|(_, was_held)| !was_held) {
            let undo = Call { op: Op::Undo, ask, now: latest.max(now), taken: now };
            let _ = self.decide_locked(target, &undo, locked)?;
        }
        let refused = refused?;
        let mut outcomes = self.estimate_all(targets, now, locked)?;
        let place = targets.iter().zip(&mut outcomes).find(|(other, _)| std::ptr::eq(*other, wanted));
        if let Some((_, place)) = place {
            *place = refused;
        }
        Ok(Some(outcomes))
    }

    fn is_held(&self, target: &Target<'_>, ask: &Ask, now: Timestamp, locked: &mut Locked<'_>) -> bool {
        let limit = &target.record.limit;
        let holds = |state: &State| limit.holds(state, ask.lease, now);
        limit.is_leased()
            && locked
                .get(self.shards.index(target.hash))
                .is_some_and(|shard| self.shards.with_state(shard, target, holds) == Some(true))
    }

    pub(super) fn estimate_all(
        &self,
        targets: &[Wanted<'_>],
        now: Timestamp,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut outcomes = Vec::with_capacity(targets.len());
        for (target, ask) in targets {
            outcomes.push(self.decide_locked(target, &Call::new(Op::Estimate, ask, now), locked)?);
        }
        Ok(outcomes)
    }

    #[inline]
    pub(super) fn decide_locked(
        &self,
        target: &Target<'_>,
        call: &Call<'_>,
        locked: &mut Locked<'_>,
    ) -> Result<Outcome, StoreError> {
        if target.record.in_table {
            let Target { rule, record, hash, key, .. } = *target;
            return Ok(self.decide_in_table(rule, record, hash, key, call, Some(locked)));
        }
        if target.record.holds(target.key) {
            return Ok(target.record.count_places(call.op, call.ask));
        }
        match locked.get(self.shards.index(target.hash)) {
            Some(shard) => self.decide_in_shard(shard, target, call),
            None => Err(StoreError::Full { bytes: self.max_bytes }),
        }
    }

    /// Locks the shards that these targets may need, in ascending order.
    #[inline]
    pub(super) fn lock<'s, 't>(
        &'s self,
        targets: impl Iterator<Item = &'t Target<'t>> + Clone,
    ) -> Locked<'s> {
        let needed =
            targets.filter(|target| target.record.may_be_in_maps() && !target.record.holds(target.key));
        let indexes = needed.map(|target| self.shards.index(target.hash));
        let mut locked = Locked::default();
        // Few are needed: the next one is sooner looked for than all are sorted.
        let mut next = indexes.clone().min();
        while let Some(index) = next {
            if let Some(shard) = self.shards.lock(index) {
                locked.0.push((index, shard));
            }
            next = indexes.clone().filter(|other| *other > index).min();
        }
        locked
    }
}

/// One of the charges of a call.
type Wanted<'a> = (Target<'a>, &'a Ask);
/// All of them.
type Targets<'a> = SmallVec<[Wanted<'a>; 10]>;

/// Charges of the same key under the same rule count together. Most calls have none.
#[inline]
fn on_merged<R>(targets: &[Wanted<'_>], on: impl FnOnce(&[Wanted<'_>]) -> R) -> R {
    let twice = |(index, (target, _)): (usize, &Wanted<'_>)| {
        targets.iter().take(index).any(|(other, _)| other.rule == target.rule)
    };
    if !targets.iter().enumerate().any(twice) {
        return on(targets);
    }
    let summed = summed(targets);
    let merged: Targets<'_> = summed.iter().map(|(target, sum)| (*target, sum)).collect();
    on(&merged)
}

fn summed<'a>(targets: &[Wanted<'a>]) -> Vec<(Target<'a>, Ask)> {
    let mut merged: Vec<(Target<'a>, Ask)> = Vec::new();
    for (target, ask) in targets {
        match merged.iter_mut().find(|(other, sum)| is_same((other, sum), (target, ask))) {
            Some((_, sum)) => sum.cost = sum.cost.saturating_add(ask.cost),
            None => merged.push((*target, **ask)),
        }
    }
    merged
}

/// Gives every charge the outcome of the target that it was merged into.
fn spread(targets: &[Wanted<'_>], outcomes: Vec<Outcome>) -> Vec<Outcome> {
    if outcomes.len() == targets.len() {
        return outcomes;
    }
    let merged = summed(targets);
    let spread = targets.iter().filter_map(|(target, ask)| {
        let index = merged.iter().position(|(other, sum)| is_same((other, sum), (target, ask)))?;
        outcomes.get(index).copied()
    });
    spread.collect()
}

/// Whether two charges are of the same key under the same rule, and of the same lease where there are leases.
fn is_same(a: (&Target<'_>, &Ask), b: (&Target<'_>, &Ask)) -> bool {
    let is_alike = match &a.0.record.limit {
        Limit::Fleet(fleet) if fleet.is_counted() => a.1.critical == b.1.critical,
        limit => !limit.is_leased() || a.1.lease == b.1.lease,
    };
    a.0.rule == b.0.rule && a.0.key == b.0.key && is_alike
}
