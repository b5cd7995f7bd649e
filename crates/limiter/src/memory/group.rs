//! Several limits at once: all are charged, or none.

use std::borrow::Cow;

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::store::{Charge, StoreError};
use tollgate_core::{Limit, Outcome, Timestamp, Verdict};

use super::MemoryStore;
use super::shards::{Call, Shard, Target};

/// The shards that one call has locked, in ascending order.
#[derive(Default)]
pub(super) struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 2]>);

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
        self.decide_all_at(charges, at).map(|(verdict, _)| verdict)
    }

    /// As [`decide_all`](Self::decide_all), and tells when it was decided.
    pub(crate) fn decide_all_at(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<(Verdict, Timestamp), StoreError> {
        /// How often a refusal is tried again at a later time. Others move time all the time.
        const TRIES: u32 = 3;
        let mut now = self.time(at);
        for tries in 1.. {
            let mut targets = Targets::new();
            for charge in charges {
                let (rule, record) = self.current(charge.rule, now)?;
                let hash = self.hash(charge.key, record);
                targets.push((self.target(rule, record, hash, charge.key), charge.ask));
            }
            let latest = if tries < TRIES { self.latest_seen(at) } else { now };
            match self.decide_targets(&merged(&targets), now, latest)? {
                Some(verdict) => return Ok((spread(&targets, verdict), now)),
                None => now = latest,
            }
        }
        Ok((Verdict::of(Vec::new()), now))
    }

    /// What [`decide_all`](Self::decide_all) would answer; nothing is taken, and no refusal is counted.
    pub(crate) fn estimate_together(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        let now = self.time(at);
        let mut targets = Targets::new();
        for charge in charges {
            let (rule, record) = self.current(charge.rule, now)?;
            targets.push((self.target(rule, record, self.hash(charge.key, record), charge.key), charge.ask));
        }
        let merged = merged(&targets);
        let mut locked = self.lock(merged.iter().map(|(target, _)| target));
        let outcomes = self.estimate_all(&merged, now, &mut locked)?;
        Ok(spread(&targets, Verdict::of(outcomes)))
    }

    /// Nothing, if a refusal must be tried again at `latest` before it is true.
    pub(super) fn decide_targets(
        &self,
        targets: &[(Target<'_>, Ask)],
        now: Timestamp,
        latest: Timestamp,
    ) -> Result<Option<Verdict>, StoreError> {
        let mut locked = self.lock(targets.iter().map(|(target, _)| target));
        let mut outcomes = self.estimate_all(targets, now, &mut locked)?;
        if !outcomes.iter().all(|outcome| outcome.allowed) {
            if latest > now {
                return Ok(None);
            }
            // Limits that count refused calls count those that they themselves refused. Only logs do, and
            // theirs is locked, so that this refuses again.
            for ((target, ask), outcome) in targets.iter().zip(&mut outcomes) {
                if !outcome.allowed && matches!(target.record.limit, Limit::Log(_)) {
                    let call = Call::new(Op::Charge, *ask, now);
                    *outcome = self.decide_locked(*target, call, &mut locked)?;
                }
            }
            return Ok(Some(Verdict::of(outcomes)));
        }
        // A lease that was held before must not be given back with what this call takes.
        let held: SmallVec<[bool; 16]> =
            targets.iter().map(|(target, ask)| self.is_held(*target, *ask, now, &mut locked)).collect();
        // Words first: another call may take them at any moment. What lives in the maps is locked.
        let mut order: SmallVec<[usize; 10]> = (0..targets.len()).collect();
        order.sort_by_key(|&index| targets.get(index).is_none_or(|(target, _)| !target.record.in_table));
        for (done, &index) in order.iter().enumerate() {
            let Some((target, ask)) = targets.get(index) else { continue };
            let call = Call::new(Op::Charge, *ask, now);
            let outcome = self.decide_locked(*target, call, &mut locked);
            if let (Ok(outcome), Some(place)) = (&outcome, outcomes.get_mut(index)) {
                *place = *outcome;
                if outcome.allowed {
                    continue;
                }
            }
            // Another call took what was there a moment ago: what this one has taken goes back.
            let later = latest.max(now);
            let taken = order.iter().take(done).filter(|&&taken| held.get(taken) != Some(&true));
            for (target, ask) in taken.filter_map(|&taken| targets.get(taken)) {
                let undo = Call { op: Op::Undo, ask: *ask, now: later, taken: now };
                let _ = self.decide_locked(*target, undo, &mut locked)?;
            }
            let refused = outcome?;
            outcomes = self.estimate_all(targets, now, &mut locked)?;
            if let Some(place) = outcomes.get_mut(index) {
                *place = refused;
            }
            break;
        }
        Ok(Some(Verdict::of(outcomes)))
    }

    fn is_held(&self, target: Target<'_>, ask: Ask, now: Timestamp, locked: &mut Locked<'_>) -> bool {
        let limit = &target.record.limit;
        let holds = |state: &State| limit.holds(state, ask.lease, now);
        matches!(limit, Limit::Leases(_) | Limit::Fleet(_))
            && locked
                .get(self.shards.index(target.hash))
                .is_some_and(|shard| self.shards.with_state(shard, target, holds) == Some(true))
    }

    pub(super) fn estimate_all(
        &self,
        targets: &[(Target<'_>, Ask)],
        now: Timestamp,
        locked: &mut Locked<'_>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut estimate = |(target, ask): &(Target<'_>, Ask)| {
            self.decide_locked(*target, Call::new(Op::Estimate, *ask, now), locked)
        };
        let mut outcomes = Vec::with_capacity(targets.len());
        for target in targets {
            outcomes.push(estimate(target)?);
        }
        Ok(outcomes)
    }

    pub(super) fn decide_locked(
        &self,
        target: Target<'_>,
        call: Call,
        locked: &mut Locked<'_>,
    ) -> Result<Outcome, StoreError> {
        if target.record.in_table {
            let Target { rule, record, hash, key, .. } = target;
            return Ok(self.decide_in_table(rule, record, hash, key, call, Some(locked)));
        }
        match locked.get(self.shards.index(target.hash)) {
            Some(shard) => self.decide_in_shard(shard, target, call),
            None => Err(StoreError::Full { bytes: self.max_bytes }),
        }
    }

    /// Locks the shards that these targets may need, in ascending order.
    pub(super) fn lock<'s, 't>(&'s self, targets: impl Iterator<Item = &'t Target<'t>>) -> Locked<'s> {
        let needed = targets.filter(|target| !target.record.in_table || target.record.has_siblings());
        let mut indexes: SmallVec<[usize; 4]> = needed.map(|target| self.shards.index(target.hash)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        Locked(indexes.into_iter().filter_map(|index| Some((index, self.shards.lock(index)?))).collect())
    }
}

/// The charges of one call.
type Targets<'a> = SmallVec<[(Target<'a>, Ask); 10]>;

/// Charges of the same key under the same rule count together. Most calls have none.
fn merged<'t, 'a>(targets: &'t Targets<'a>) -> Cow<'t, [(Target<'a>, Ask)]> {
    let twice = |(index, (target, _)): (usize, &(Target<'_>, Ask))| {
        targets.iter().take(index).any(|(other, _)| other.rule == target.rule)
    };
    match targets.iter().enumerate().any(twice) {
        true => Cow::Owned(summed(targets)),
        false => Cow::Borrowed(targets),
    }
}

fn summed<'a>(targets: &[(Target<'a>, Ask)]) -> Vec<(Target<'a>, Ask)> {
    let mut merged: Vec<(Target<'a>, Ask)> = Vec::new();
    for (target, ask) in targets {
        match merged.iter_mut().find(|(other, sum)| is_same((other, sum), (target, ask))) {
            Some((_, sum)) => sum.cost = sum.cost.saturating_add(ask.cost),
            None => merged.push((*target, *ask)),
        }
    }
    merged
}

/// Gives every charge the outcome of the target that it was merged into.
fn spread(targets: &[(Target<'_>, Ask)], verdict: Verdict) -> Verdict {
    if verdict.outcomes.len() == targets.len() {
        return verdict;
    }
    let merged = summed(targets);
    let outcomes = targets.iter().filter_map(|(target, ask)| {
        let index = merged.iter().position(|(other, sum)| is_same((other, sum), (target, ask)))?;
        verdict.outcomes.get(index).copied()
    });
    let outcomes = outcomes.collect();
    Verdict { outcomes, ..verdict }
}

/// Whether two charges are of the same key under the same rule, and of the same lease where there are leases.
fn is_same(a: (&Target<'_>, &Ask), b: (&Target<'_>, &Ask)) -> bool {
    let leased = matches!(a.0.record.limit, Limit::Leases(_) | Limit::Fleet(_));
    a.0.rule == b.0.rule && a.0.key == b.0.key && (!leased || a.1.lease == b.1.lease)
}
