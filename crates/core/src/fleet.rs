//! The fleet usage load shedder: a share of the fleet is always kept for critical requests.

use crate::algorithm::{divide, share};
use crate::concurrency::{InProgress, LeaseId, LeaseSet};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::limit::Op;
use crate::outcome::Outcome;
use crate::time::{Nanos, Timestamp};

/// A fleet of `capacity` places, a share of which only critical requests may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fleet {
    capacity: u64,
    allocation: u64,
    mode: FleetMode,
    /// How long a place is leased; 0 where places are only counted.
    ttl: u64,
}

/// What the capacity of the fleet means for critical requests.
///
/// ```
/// use tollgate_core::fleet::FleetMode;
///
/// assert_eq!(FleetMode::default(), FleetMode::Allocation);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum FleetMode {
    /// Critical requests are counted and never refused, however many there are (where places are counted: up to 2^32 - 1 at once);
    /// all others share what is not reserved.
    #[default]
    Allocation,
    /// As `Allocation`, and in addition nobody gets in beyond the whole capacity.
    Total,
}

/// A fleet has no more places.
const MAX_PLACES: u64 = u32::MAX as u64;

impl Fleet {
    /// A fleet of `capacity` places of which `reserve.0 / reserve.1` are kept for critical requests. A
    /// request that is not renewed gives its place back after `ttl`.
    pub fn new(capacity: u64, reserve: (u64, u64), mode: FleetMode, ttl: Nanos) -> Result<Self, LimitError> {
        let capacity = within("fleet", capacity, 1, MAX_PLACES)?;
        let (kept, of) = reserve;
        let of = within("reserve", of, 1, u64::from(u32::MAX))?;
        if kept > of {
            return Err(LimitError {
                field: "reserve",
                value: format!("{kept}/{of}"),
                allowed: "from 0 to 1".to_owned(),
            });
        }
        let ttl = time_within("lease", ttl, 1, MAX_PRODUCT)?;
        Ok(Self { capacity, allocation: capacity * (of - kept) / of, mode, ttl })
    }

    /// Places of the whole fleet.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Places that requests which are not critical may use.
    pub fn allocation(&self) -> u64 {
        self.allocation
    }

    /// What the capacity means for critical requests.
    pub fn mode(&self) -> FleetMode {
        self.mode
    }

    /// How long a place is held unless it is renewed; zero where it is held until it is given back.
    pub fn ttl(&self) -> Nanos {
        Nanos::new(self.ttl)
    }

    /// The same for one process, in which a place always comes back: nothing expires, and nobody needs a name.
    #[must_use]
    pub fn counted(self) -> Self {
        Self { ttl: 0, ..self }
    }

    /// Whether places are counted, and not leased.
    pub fn is_counted(&self) -> bool {
        self.ttl == 0
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        let allocation = divide(self.allocation, nodes).0.min(self.allocation);
        Self { capacity: divide(self.capacity, nodes).0, allocation, ..*self }
    }

    /// Whether a request of this kind gets a place while `used` are taken.
    pub fn fits(&self, used: InProgress, critical: bool, cost: u64) -> bool {
        let within_total =
            self.mode == FleetMode::Allocation || used.total().saturating_add(cost) <= self.capacity;
        let within_share = critical || used.other.saturating_add(cost) <= self.allocation;
        cost == 0 || within_total && within_share
    }

    /// Places that a request which is not critical could take.
    pub fn remaining(&self, used: InProgress) -> u64 {
        let share = self.allocation.saturating_sub(used.other);
        match self.mode {
            FleetMode::Allocation => share,
            FleetMode::Total => share.min(self.capacity.saturating_sub(used.total())),
        }
    }

    /// Whether `cost` places can never be had.
    fn never(&self, critical: bool, cost: u64) -> bool {
        (!critical && cost > self.allocation) || (self.mode == FleetMode::Total && cost > self.capacity)
    }

    /// Takes places for a request. Taking them again under the same id extends the lease.
    pub fn acquire(
        &self,
        set: &mut LeaseSet,
        now: Timestamp,
        id: LeaseId,
        cost: u64,
        critical: bool,
    ) -> Outcome {
        let outcome = self.estimate(set, now, id, cost, critical);
        if !outcome.allowed || cost == 0 {
            return outcome;
        }
        set.take(id, now, self.ttl, cost, critical);
        Outcome::allow(self.remaining(set.used()), set.reset_after(now))
    }

    /// What [`acquire`](Self::acquire) would answer.
    pub fn estimate(
        &self,
        set: &LeaseSet,
        now: Timestamp,
        id: LeaseId,
        cost: u64,
        critical: bool,
    ) -> Outcome {
        let used = set.used_at(now);
        let remaining = self.remaining(used);
        let reset = set.reset_after(now);
        if self.never(critical, cost) {
            return Outcome::refuse(remaining, None, reset);
        }
        if self.fits(used, critical, cost) || set.is_live(id, now) {
            return Outcome::allow(remaining, reset);
        }
        let by_share = match critical {
            true => 0,
            false => set.wait_for(excess(used.other, cost, self.allocation), now, |critical| !critical),
        };
        let by_total = match self.mode {
            FleetMode::Allocation => 0,
            FleetMode::Total => set.wait_for(excess(used.total(), cost, self.capacity), now, |_| true),
        };
        Outcome::refuse(remaining, Some(by_share.max(by_total)), reset)
    }

    /// Extends a lease that is still held; `allowed` tells whether it was.
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
        let mut outcome = Outcome::allow(self.remaining(set.used()), set.reset_after(now));
        outcome.allowed = held;
        outcome
    }

    /// Does `op` to places that are counted. As with [`Concurrency`](crate::concurrency::Concurrency), a refusal says "any
    /// moment now".
    #[inline]
    pub fn count(&self, op: Op, used: &mut InProgress, cost: u64, critical: bool) -> Outcome {
        if matches!(op, Op::Charge | Op::Estimate) && !self.has_room(*used, critical, cost) {
            let wait = (cost <= MAX_PLACES && !self.never(critical, cost)).then_some(0);
            return Outcome::refuse(self.remaining(*used), wait, 0);
        }
        let of_kind = if critical { &mut used.critical } else { &mut used.other };
        match op {
            Op::Charge => return self.take(used, cost, critical),
            Op::Refund | Op::Undo => *of_kind = of_kind.saturating_sub(cost),
            Op::Estimate | Op::Renew => {}
        }
        // There is no lease to extend.
        Outcome { allowed: op != Op::Renew, ..Outcome::allow(self.remaining(*used), 0) }
    }

    /// Takes places that a request gets.
    #[inline]
    pub(crate) fn take(&self, used: &mut InProgress, cost: u64, critical: bool) -> Outcome {
        let of_kind = if critical { &mut used.critical } else { &mut used.other };
        *of_kind = of_kind.saturating_add(cost);
        Outcome::allow(self.remaining(*used), 0)
    }

    /// Whether a request gets places that are counted: those that it may have, and of each kind no more than a fleet can have.
    pub(crate) fn has_room(&self, used: InProgress, critical: bool, cost: u64) -> bool {
        let of_kind = if critical { used.critical } else { used.other };
        self.fits(used, critical, cost) && of_kind.saturating_add(cost) <= MAX_PLACES
    }

    /// The share of the fleet in use, of 2^32.
    pub fn level(&self, used: InProgress) -> u64 {
        share(used.total(), self.capacity)
    }
}

fn excess(used: u64, cost: u64, of: u64) -> u64 {
    used.saturating_add(cost).saturating_sub(of)
}
