//! Requests in progress: at most so many at once.
//!
//! Inside one process a counter is enough, because a permit always comes back when it is dropped. Between
//! processes a holder can die, so each one holds a lease that expires unless it is renewed.

use std::collections::VecDeque;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

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

    /// Takes what there is room for.
    #[inline]
    pub(crate) fn take(&self, used: &mut InProgress, cost: u64) -> Outcome {
        used.other = used.other.saturating_add(cost);
        Outcome::allow(self.capacity.saturating_sub(used.other), 0)
    }

    /// Whether so much more may be in progress.
    #[inline]
    pub(crate) fn has_room(&self, used: &InProgress, cost: u64) -> bool {
        self.fits(used.other, cost)
    }

    fn fits(&self, used: u64, cost: u64) -> bool {
        cost == 0 || cost <= self.capacity && used.saturating_add(cost) <= self.capacity
    }
}

impl Algorithm for Concurrency {
    type State = InProgress;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn decide(&self, state: &mut InProgress, _now: Timestamp, cost: u64) -> Outcome {
        if self.fits(state.other, cost) {
            return self.take(state, cost);
        }
        self.outcome(state.other, cost, false)
    }

    fn estimate(&self, state: &InProgress, _now: Timestamp, cost: u64) -> Outcome {
        self.outcome(state.other, cost, self.fits(state.other, cost))
    }

    fn refund(&self, state: &mut InProgress, _now: Timestamp, cost: u64, _taken: Timestamp) -> Outcome {
        state.other = state.other.saturating_sub(cost);
        self.outcome(state.other, 0, true)
    }

    fn level(&self, state: &InProgress, _now: Timestamp) -> u64 {
        share(state.other, self.capacity)
    }

    fn join(&self, a: &InProgress, b: &InProgress, _now: Timestamp) -> InProgress {
        InProgress { other: a.other.max(b.other), ..*a }
    }

    fn convert(&self, _old: &Self, state: &InProgress, _changed: Timestamp) -> InProgress {
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
    /// All that are held, the one that expires first in front. Nearly always a new one is the last. Those that were given back
    /// since are passed over: neither the first nor the last is one of them, nor are most.
    by_expiry: VecDeque<Expiry>,
    /// How many leases there were.
    count: u64,
    /// Wide, because a critical request may weigh anything.
    critical: u128,
    other: u128,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    expiry: u64,
    cost: u64,
    critical: bool,
    /// Tells it from others of the same name at other times.
    number: u64,
}

/// When a lease expires, unless it is given back.
#[derive(Clone, Copy, Debug)]
struct Expiry {
    at: u64,
    id: LeaseId,
    number: u64,
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
        set.take(id, now, self.ttl, cost, false);
        Outcome::allow(self.capacity.saturating_sub(set.used().total()), set.reset_after(now))
    }

    /// What [`acquire`](Self::acquire) would answer.
    pub fn estimate(&self, set: &LeaseSet, now: Timestamp, id: LeaseId, cost: u64) -> Outcome {
        let used = set.used_at(now);
        let remaining = self.capacity.saturating_sub(used.total());
        let reset = set.reset_after(now);
        if cost > self.capacity {
            return Outcome::refuse(remaining, None, reset);
        }
        if cost <= remaining || set.is_live(id, now) {
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
            Outcome::allow(self.capacity.saturating_sub(set.used().total()), set.reset_after(now));
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
        match self.by_expiry.front() {
            Some(first) if first.at <= now.as_nanos() => self.used_after(now),
            _ => self.used(),
        }
    }

    #[cold]
    fn used_after(&self, now: Timestamp) -> InProgress {
        let (mut critical, mut other) = (self.critical, self.other);
        let expired = self.by_expiry.iter().take_while(|expiry| expiry.at <= now.as_nanos());
        for lease in expired.filter_map(|expiry| self.lease(expiry)) {
            *(if lease.critical { &mut critical } else { &mut other }) -= u128::from(lease.cost);
        }
        InProgress { critical: narrow(critical), other: narrow(other) }
    }

    /// What is held, where nothing has expired.
    pub(crate) fn used(&self) -> InProgress {
        InProgress { critical: narrow(self.critical), other: narrow(self.other) }
    }

    /// Whether no lease is held at `now`.
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.reset_after(now) == 0
    }

    /// Gives back memory that is no longer needed.
    pub fn shrink(&mut self) {
        self.held.shrink_to_fit();
        self.forget_past();
        self.by_expiry.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.held.allocation_size() + self.by_expiry.capacity() * size_of::<Expiry>()
    }

    /// The lease that expires then, if it is still held until then.
    fn lease(&self, expiry: &Expiry) -> Option<&Lease> {
        self.held.get(&expiry.id).filter(|lease| lease.number == expiry.number)
    }

    pub(crate) fn is_live(&self, id: LeaseId, now: Timestamp) -> bool {
        self.held.get(&id).is_some_and(|lease| now.as_nanos() < lease.expiry)
    }

    pub(crate) fn reset_after(&self, now: Timestamp) -> u64 {
        self.by_expiry.back().map_or(0, |expiry| expiry.at.saturating_sub(now.as_nanos()))
    }

    /// Time until expiries alone have freed `excess` units of the counted kind.
    pub(crate) fn wait_for(&self, mut excess: u64, now: Timestamp, counts: impl Fn(bool) -> bool) -> u64 {
        if excess == 0 {
            return 0;
        }
        for expiry in self.by_expiry.iter().filter(|expiry| expiry.at > now.as_nanos()) {
            let Some(lease) = self.lease(expiry).filter(|lease| counts(lease.critical)) else { continue };
            if lease.cost >= excess {
                return expiry.at - now.as_nanos();
            }
            excess -= lease.cost;
        }
        0
    }

    /// Drops what has expired.
    pub(crate) fn prune(&mut self, now: Timestamp) {
        while let Some(expiry) = self.by_expiry.front().filter(|first| first.at <= now.as_nanos()).copied() {
            match self.lease(&expiry).is_some() {
                true => self.remove(expiry.id),
                false => self.by_expiry.pop_front().is_some(),
            };
        }
    }

    /// Extends a lease that is held. It needs no more room than it has.
    pub(crate) fn extend(&mut self, id: LeaseId, now: Timestamp, ttl: u64) -> bool {
        let Some(lease) = self.held.get_mut(&id) else {
            return false;
        };
        let (before, at) = (*lease, now.as_nanos().saturating_add(ttl));
        if at > before.expiry {
            self.count += 1;
            (lease.expiry, lease.number) = (at, self.count);
            let first = self.by_expiry.partition_point(|other| other.at < before.expiry);
            let place = self.by_expiry.range(first..).position(|other| other.number == before.number);
            if let Some(place) = place {
                self.by_expiry.remove(first + place);
            }
            self.expect(Expiry { at, id, number: self.count });
            self.tidy();
        }
        true
    }

    /// Takes a lease, or extends it if it is held. What has expired is gone afterwards.
    pub(crate) fn take(&mut self, id: LeaseId, now: Timestamp, ttl: u64, cost: u64, critical: bool) {
        self.prune(now);
        let at = now.as_nanos().saturating_add(ttl);
        match self.held.entry(id) {
            Entry::Vacant(place) => {
                self.count += 1;
                place.insert(Lease { expiry: at, cost, critical, number: self.count });
                self.expect(Expiry { at, id, number: self.count });
                *(if critical { &mut self.critical } else { &mut self.other }) += u128::from(cost);
            }
            Entry::Occupied(_) => {
                self.extend(id, now, ttl);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: LeaseId) -> bool {
        let Some(lease) = self.held.remove(&id) else {
            return false;
        };
        *(if lease.critical { &mut self.critical } else { &mut self.other }) -= u128::from(lease.cost);
        self.tidy();
        true
    }

    /// Takes note of when a lease expires.
    fn expect(&mut self, expiry: Expiry) {
        if self.by_expiry.back().is_none_or(|last| last.at <= expiry.at) {
            return self.by_expiry.push_back(expiry);
        }
        // Leases have become shorter.
        let place = self.by_expiry.partition_point(|other| other.at <= expiry.at);
        self.by_expiry.insert(place, expiry);
    }

    /// Drops what is past from both ends, and all of it once that is most.
    fn tidy(&mut self) {
        if self.held.is_empty() {
            return self.by_expiry.clear();
        }
        while self.by_expiry.front().is_some_and(|first| self.lease(first).is_none()) {
            self.by_expiry.pop_front();
        }
        while self.by_expiry.back().is_some_and(|last| self.lease(last).is_none()) {
            self.by_expiry.pop_back();
        }
        if self.by_expiry.len() / 2 > self.held.len() + 8 {
            self.forget_past();
        }
    }

    fn forget_past(&mut self) {
        let held = &self.held;
        self.by_expiry.retain(|it| held.get(&it.id).is_some_and(|lease| lease.number == it.number));
    }
}

fn narrow(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        (self.expiry, self.cost, self.critical) == (other.expiry, other.cost, other.critical)
    }
}

impl PartialEq for LeaseSet {
    fn eq(&self, other: &Self) -> bool {
        self.held == other.held
    }
}
