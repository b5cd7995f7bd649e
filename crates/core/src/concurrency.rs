//! Requests in progress: at most so many at once.
//!
//! Inside one process a counter is enough, because a permit always comes back when it is dropped. Between
//! processes a holder can die, so each one holds a lease that expires unless it is renewed.

use std::collections::BTreeSet;

use hashbrown::HashMap;

use crate::algorithm::{Algorithm, divide, share};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::outcome::Outcome;
use crate::time::{Nanos, Timestamp};

/// At most `capacity` units in progress in this process. Nothing expires; what is taken is given back.
///
/// No promise is made about waiting: a refusal says "any moment now" (a `retry_after` of zero), because only
/// the holders know when they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    capacity: u64,
}

/// Units in progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight(u64);

impl Concurrency {
    /// At most `capacity` units in progress.
    pub fn new(capacity: u64) -> Result<Self, LimitError> {
        Ok(Self { capacity: within("concurrency", capacity, 1, MAX_PRODUCT)? })
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        Self { capacity: divide(self.capacity, nodes).0 }
    }

    fn outcome(&self, used: u64, cost: u64, fits: bool) -> Outcome {
        let remaining = self.capacity.saturating_sub(used);
        if fits {
            Outcome::allow(remaining, 0)
        } else {
            Outcome::refuse(remaining, (cost <= self.capacity).then_some(0), 0)
        }
    }

    fn fits(&self, used: u64, cost: u64) -> bool {
        cost == 0 || cost <= self.capacity && used.saturating_add(cost) <= self.capacity
    }
}

impl InFlight {
    /// Units in progress.
    pub fn count(self) -> u64 {
        self.0
    }
}

impl Algorithm for Concurrency {
    type State = InFlight;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn decide(&self, state: &mut InFlight, _now: Timestamp, cost: u64) -> Outcome {
        let fits = self.fits(state.0, cost);
        if fits {
            state.0 += cost;
        }
        self.outcome(state.0, cost, fits)
    }

    fn estimate(&self, state: &InFlight, _now: Timestamp, cost: u64) -> Outcome {
        self.outcome(state.0, cost, self.fits(state.0, cost))
    }

    fn refund(&self, state: &mut InFlight, _now: Timestamp, cost: u64, _taken: Timestamp) -> Outcome {
        state.0 = state.0.saturating_sub(cost);
        self.outcome(state.0, 0, true)
    }

    fn level(&self, state: &InFlight, _now: Timestamp) -> u64 {
        share(state.0, self.capacity)
    }

    fn join(&self, a: &InFlight, b: &InFlight, _now: Timestamp) -> InFlight {
        InFlight(a.0.max(b.0))
    }

    fn convert(&self, _old: &Self, state: &InFlight, _changed: Timestamp) -> InFlight {
        // Holders keep what they hold: a lower capacity only keeps newcomers out until they leave.
        *state
    }
}

/// At most `capacity` units leased at once; a lease ends `ttl` after it was taken or renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leases {
    capacity: u64,
    ttl: u64,
}

/// Names a lease. At least 96 random bits where several processes share a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u128);

/// The leases that are held, and what they weigh.
#[derive(Clone, Debug, Default)]
pub struct LeaseSet {
    held: HashMap<LeaseId, Lease>,
    by_expiry: BTreeSet<(u64, LeaseId)>,
    /// Wide, because a critical request may weigh anything.
    critical: u128,
    other: u128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    expiry: u64,
    cost: u64,
    critical: bool,
}

impl Leases {
    /// At most `capacity` units at once, each held for `ttl` unless renewed.
    pub fn new(capacity: u64, ttl: Nanos) -> Result<Self, LimitError> {
        Ok(Self {
            capacity: within("concurrency", capacity, 1, MAX_PRODUCT)?,
            ttl: time_within("lease", ttl, 1, MAX_PRODUCT)?,
        })
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        Self { capacity: divide(self.capacity, nodes).0, ttl: self.ttl }
    }

    /// The most that can be held at once.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How long a lease lasts.
    pub fn ttl(&self) -> Nanos {
        Nanos::new(self.ttl)
    }

    /// Takes a lease. Taking one that is held already extends it: a retry is not a second request.
    /// A cost of 0 only looks.
    pub fn acquire(&self, set: &mut LeaseSet, now: Timestamp, id: LeaseId, cost: u64) -> Outcome {
        let outcome = self.estimate(set, now, id, cost);
        if !outcome.allowed || cost == 0 {
            return outcome;
        }
        set.prune(now);
        if !set.extend(id, now, self.ttl) {
            set.insert(id, now, self.ttl, cost, false);
        }
        Outcome::allow(self.capacity.saturating_sub(set.used_at(now).total()), set.reset_after(now))
    }

    /// What [`acquire`](Self::acquire) would answer.
    pub fn estimate(&self, set: &LeaseSet, now: Timestamp, id: LeaseId, cost: u64) -> Outcome {
        let used = set.used_at(now);
        let remaining = self.capacity.saturating_sub(used.total());
        let reset = set.reset_after(now);
        if cost > self.capacity {
            return Outcome::refuse(remaining, None, reset);
        }
        if cost == 0 || set.is_live(id, now) || cost <= remaining {
            return Outcome::allow(remaining, reset);
        }
        let excess = used.total().saturating_add(cost).saturating_sub(self.capacity);
        Outcome::refuse(remaining, Some(set.wait_for(excess, now, |_| true)), reset)
    }

    /// Extends a lease that is still held; `allowed` tells whether it was. One that has expired is not
    /// brought back: its place may be taken.
    pub fn renew(&self, set: &mut LeaseSet, now: Timestamp, id: LeaseId) -> Outcome {
        set.prune(now);
        let held = set.extend(id, now, self.ttl);
        self.held_or_not(set, now, held)
    }

    /// Gives a lease back; `allowed` tells whether it was held.
    pub fn release(&self, set: &mut LeaseSet, now: Timestamp, id: LeaseId) -> Outcome {
        set.prune(now);
        let held = set.remove(id);
        self.held_or_not(set, now, held)
    }

    fn held_or_not(&self, set: &LeaseSet, now: Timestamp, held: bool) -> Outcome {
        let mut outcome =
            Outcome::allow(self.capacity.saturating_sub(set.used_at(now).total()), set.reset_after(now));
        outcome.allowed = held;
        outcome
    }

    /// The share of the capacity that is held, of 2^32.
    pub fn level(&self, set: &LeaseSet, now: Timestamp) -> u64 {
        share(set.used_at(now).total(), self.capacity)
    }
}

/// Units in progress, by kind.
///
/// ```
/// use tollgate_core::concurrency::InProgress;
///
/// assert_eq!(InProgress { critical: 2, other: 5 }.total(), 7);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InProgress {
    /// Held by critical requests.
    pub critical: u64,
    /// Held by all others.
    pub other: u64,
}

impl InProgress {
    /// All that is in progress.
    pub fn total(self) -> u64 {
        self.critical.saturating_add(self.other)
    }
}

impl LeaseSet {
    /// What is held at `now`.
    pub fn used_at(&self, now: Timestamp) -> InProgress {
        let (mut critical, mut other) = (self.critical, self.other);
        for (_, id) in self.by_expiry.range(..=(now.as_nanos(), LeaseId(u128::MAX))) {
            if let Some(lease) = self.held.get(id) {
                *(if lease.critical { &mut critical } else { &mut other }) -= u128::from(lease.cost);
            }
        }
        let narrow = |sum: u128| u64::try_from(sum).unwrap_or(u64::MAX);
        InProgress { critical: narrow(critical), other: narrow(other) }
    }

    /// Whether no lease is held at `now`.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.reset_after(now) == 0
    }

    /// Gives back memory that is no longer needed.
    pub fn shrink(&mut self) {
        self.held.shrink_to_fit();
    }

    /// Bytes on the heap, roughly: two indexes with their overhead.
    pub fn heap_bytes(&self) -> usize {
        self.held.allocation_size() + self.by_expiry.len() * 48
    }

    pub(crate) fn is_live(&self, id: LeaseId, now: Timestamp) -> bool {
        self.held.get(&id).is_some_and(|lease| now.as_nanos() < lease.expiry)
    }

    pub(crate) fn reset_after(&self, now: Timestamp) -> u64 {
        self.by_expiry.last().map_or(0, |(expiry, _)| expiry.saturating_sub(now.as_nanos()))
    }

    /// Time until expiries alone have freed `excess` units of the counted kind.
    pub(crate) fn wait_for(&self, mut excess: u64, now: Timestamp, counts: impl Fn(bool) -> bool) -> u64 {
        if excess == 0 {
            return 0;
        }
        for (expiry, id) in &self.by_expiry {
            let Some(lease) = self.held.get(id) else { continue };
            if *expiry <= now.as_nanos() || !counts(lease.critical) {
                continue;
            }
            if lease.cost >= excess {
                return expiry - now.as_nanos();
            }
            excess -= lease.cost;
        }
        0
    }

    pub(crate) fn prune(&mut self, now: Timestamp) {
        while let Some((expiry, id)) = self.by_expiry.first().copied()
            && expiry <= now.as_nanos()
        {
            self.remove(id);
        }
    }

    pub(crate) fn extend(&mut self, id: LeaseId, now: Timestamp, ttl: u64) -> bool {
        let Some(lease) = self.held.get_mut(&id) else {
            return false;
        };
        let expiry = now.as_nanos().saturating_add(ttl);
        if expiry > lease.expiry {
            self.by_expiry.remove(&(lease.expiry, id));
            self.by_expiry.insert((expiry, id));
            lease.expiry = expiry;
        }
        true
    }

    pub(crate) fn insert(&mut self, id: LeaseId, now: Timestamp, ttl: u64, cost: u64, critical: bool) {
        let expiry = now.as_nanos().saturating_add(ttl);
        self.held.insert(id, Lease { expiry, cost, critical });
        self.by_expiry.insert((expiry, id));
        *(if critical { &mut self.critical } else { &mut self.other }) += u128::from(cost);
    }

    pub(crate) fn remove(&mut self, id: LeaseId) -> bool {
        let Some(lease) = self.held.remove(&id) else {
            return false;
        };
        self.by_expiry.remove(&(lease.expiry, id));
        *(if lease.critical { &mut self.critical } else { &mut self.other }) -= u128::from(lease.cost);
        true
    }
}

impl PartialEq for LeaseSet {
    fn eq(&self, other: &Self) -> bool {
        self.held == other.held
    }
}
