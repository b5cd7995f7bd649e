//! A limit: an algorithm and its quota, validated when built.
//!
//! The algorithms are a closed set, because each of them also exists in the language of the shared store.

use crate::algorithm::Algorithm;
use crate::bucket::{Bucket, Debt};
use crate::concurrency::{Concurrency, InProgress, LeaseId, LeaseSet, Leases};
use crate::error::LimitError;
use crate::fixed_window::{FixedWindow, Window, WindowStart};
use crate::fleet::{Fleet, FleetMode};
use crate::interval_bucket::{Batch, IntervalBucket};
use crate::log::{Entries, Log, SubWindows};
use crate::outcome::Outcome;
use crate::sliding_window::{SlidingWindow, TwoWindows};
use crate::time::{Nanos, Timestamp};

/// What is allowed. What cannot work cannot be built.
///
/// ```
/// use tollgate_core::{Limit, Nanos};
///
/// let limit = Limit::token_bucket(500, 100, Nanos::from_secs(1))?;
/// assert_eq!(limit.capacity(), 500);
/// # Ok::<_, tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Limit {
    /// Token bucket, or leaky bucket as a meter or as a queue.
    Bucket(Bucket),
    /// Fixed window.
    FixedWindow(FixedWindow),
    /// Sliding window counter by two windows.
    SlidingWindow(SlidingWindow),
    /// Bucket refilled in whole batches.
    IntervalBucket(IntervalBucket),
    /// Sliding log, or sub-windows.
    Log(Log),
    /// Requests in progress, counted in this process.
    Concurrency(Concurrency),
    /// Requests in progress, leased.
    Leases(Leases),
    /// Fleet usage.
    Fleet(Fleet),
}

/// What a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// How much it takes; 0 only looks.
    pub cost: u64,
    /// The lease it takes, renews or gives back. Rate limits do not look at it.
    pub lease: LeaseId,
    /// Whether it may use what a fleet reserves. Other limits do not look at it.
    pub critical: bool,
    /// For giving back: when it was taken, if not at this moment. What was taken in a window that is over is not
    /// given back to the present one.
    pub taken: Option<Timestamp>,
}

impl From<u64> for Ask {
    #[inline]
    fn from(cost: u64) -> Self {
        Self { cost, lease: LeaseId::default(), critical: false, taken: None }
    }
}

/// What can be done with one limit of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Decide, and take if allowed.
    Charge,
    /// Decide, and take nothing.
    Estimate,
    /// Give back what was taken at an instant; a lease is given back by its id.
    Refund,
    /// Give back what was taken at an instant for a call that was refused elsewhere.
    Undo,
    /// Extend a lease; `allowed` says whether it was still held.
    Renew,
}

/// The state of one limit for one key, of whichever kind.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum State {
    /// Of a bucket.
    Debt(Debt),
    /// Of a fixed window.
    Window(Window),
    /// Of a sliding window counter.
    TwoWindows(TwoWindows),
    /// Of an interval bucket.
    Batch(Batch),
    /// Of a log.
    Entries(Entries),
    /// Of a concurrency limit, and of a fleet whose places are counted.
    InProgress(InProgress),
    /// Of leases, and of a fleet whose places are leased.
    LeaseSet(LeaseSet),
}

impl Limit {
    /// `capacity` tokens, refilled by `count` per `period`.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::token_bucket(500, 100, Nanos::from_secs(1))?;
    /// assert_eq!(limit.capacity(), 500);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn token_bucket(capacity: u64, count: u64, period: Nanos) -> Result<Self, LimitError> {
        Bucket::new(capacity, count, period).map(Self::Bucket)
    }

    /// `count` calls per `period` leave one by one; `queue` may wait, of which `undelayed` do not have to.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::leaky_queue(5, 10, Nanos::from_secs(1), 0)?;
    /// assert_eq!(limit.capacity(), 6); // one at once and five that wait
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn leaky_queue(queue: u64, count: u64, period: Nanos, undelayed: u64) -> Result<Self, LimitError> {
        Bucket::queue(queue, count, period, undelayed).map(Self::Bucket)
    }

    /// `limit` units per `window`, in windows that begin as `start` says.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// use tollgate_core::fixed_window::WindowStart;
    ///
    /// let limit = Limit::fixed_window(100, Nanos::from_secs(60), WindowStart::FirstCall)?;
    /// assert_eq!(limit.capacity(), 100);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn fixed_window(limit: u64, window: Nanos, start: WindowStart) -> Result<Self, LimitError> {
        FixedWindow::new(limit, window, start).map(Self::FixedWindow)
    }

    /// `limit` units in any `window`, exactly.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::sliding_log(5, Nanos::from_secs(60))?;
    /// assert_eq!(limit.capacity(), 5);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn sliding_log(limit: u64, window: Nanos) -> Result<Self, LimitError> {
        Log::new(limit, window).map(Self::Log)
    }

    /// `limit` units per `window`, estimated from two counters.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::sliding_window(1000, Nanos::from_secs(60))?;
    /// assert_eq!(limit.capacity(), 1000);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn sliding_window(limit: u64, window: Nanos) -> Result<Self, LimitError> {
        SlidingWindow::new(limit, window).map(Self::SlidingWindow)
    }

    /// `limit` units per `window`, counted in `buckets` sub-windows.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// use tollgate_core::log::SubWindows;
    ///
    /// let limit = Limit::sub_windows(1000, Nanos::from_secs(60), 6, SubWindows::NPlusOne)?;
    /// assert_eq!(limit.capacity(), 1000);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn sub_windows(
        limit: u64,
        window: Nanos,
        buckets: u64,
        kind: SubWindows,
    ) -> Result<Self, LimitError> {
        Log::sub_windows(limit, window, buckets, kind).map(Self::Log)
    }

    /// `capacity` tokens, `refill` of which come back at the end of every `period`.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::interval_bucket(100, 10, Nanos::from_secs(1))?;
    /// assert_eq!(limit.capacity(), 100);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn interval_bucket(capacity: u64, refill: u64, period: Nanos) -> Result<Self, LimitError> {
        IntervalBucket::new(capacity, refill, period).map(Self::IntervalBucket)
    }

    /// `capacity` units in progress, counted in this process.
    ///
    /// ```
    /// # use tollgate_core::Limit;
    /// assert!(Limit::concurrency(20).is_ok());
    /// assert!(Limit::concurrency(0).is_err());
    /// ```
    pub fn concurrency(capacity: u64) -> Result<Self, LimitError> {
        Concurrency::new(capacity).map(Self::Concurrency)
    }

    /// `capacity` units in progress, leased for `ttl` each.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::leases(20, Nanos::from_secs(30))?;
    /// assert_eq!(limit.capacity(), 20);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn leases(capacity: u64, ttl: Nanos) -> Result<Self, LimitError> {
        Leases::new(capacity, ttl).map(Self::Leases)
    }

    /// `capacity` places in a fleet, the share `reserve.0 / reserve.1` of which is kept for critical calls.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// use tollgate_core::fleet::FleetMode;
    ///
    /// let limit = Limit::fleet(100, (20, 100), FleetMode::Allocation, Nanos::from_secs(30))?;
    /// assert_eq!(limit.capacity(), 100);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn fleet(
        capacity: u64,
        reserve: (u64, u64),
        mode: FleetMode,
        ttl: Nanos,
    ) -> Result<Self, LimitError> {
        Fleet::new(capacity, reserve, mode, ttl).map(Self::Fleet)
    }

    /// The most that one call can ever take.
    pub fn capacity(&self) -> u64 {
        match self {
            Self::Bucket(a) => a.capacity(),
            Self::FixedWindow(a) => a.capacity(),
            Self::SlidingWindow(a) => a.capacity(),
            Self::IntervalBucket(a) => a.capacity(),
            Self::Log(a) => a.capacity(),
            Self::Concurrency(a) => a.capacity(),
            Self::Leases(a) => a.capacity(),
            Self::Fleet(a) => a.capacity(),
        }
    }

    /// How long it takes until everything that may be had at once may be had again: the window, or the time in which a
    /// bucket fills. None for requests in progress.
    ///
    /// ```
    /// use tollgate_core::{Limit, Nanos};
    ///
    /// let bucket = Limit::token_bucket(2500, 500, Nanos::from_secs(1))?;
    /// assert_eq!(bucket.window(), Some(Nanos::from_secs(5)));
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn window(&self) -> Option<Nanos> {
        match self {
            Self::Bucket(a) => Some(a.time_to_fill()),
            Self::FixedWindow(a) => Some(a.window()),
            Self::SlidingWindow(a) => Some(a.window()),
            Self::IntervalBucket(a) => {
                let periods = a.capacity().div_ceil(a.refill().max(1));
                Some(Nanos::new(a.period().as_u64().saturating_mul(periods)))
            }
            Self::Log(a) => Some(a.lifetime()),
            Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_) => None,
        }
    }

    /// How much sooner one unit is available again than all of them, once none is left: with
    /// [`Outcome::reset_after`](crate::Outcome::reset_after) this says when the next request fits. Zero where all units
    /// come back at once, and where it depends on when they were used (sliding windows and logs).
    ///
    /// ```
    /// use tollgate_core::{Limit, Nanos};
    ///
    /// let bucket = Limit::token_bucket(5, 5, Nanos::from_secs(60))?;
    /// assert_eq!(bucket.first_unit_lead(), Nanos::from_secs(48)); // one after 12 s, all after 60 s
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn first_unit_lead(&self) -> Nanos {
        match self {
            Self::Bucket(a) => a.first_token_lead(),
            Self::IntervalBucket(a) => {
                let batches = a.capacity().div_ceil(a.refill().max(1)).saturating_sub(1);
                Nanos::new(a.period().as_u64().saturating_mul(batches))
            }
            _ => Nanos::ZERO,
        }
    }

    /// Whether `other` never refuses what this lets pass, where both are charged the same, together or not at all. False if
    /// that is not certain.
    #[cfg(feature = "policy")]
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let is_smaller = self.capacity() <= other.capacity();
        self == other
            || is_smaller
                && match (self, other) {
                    (Self::Bucket(a), Self::Bucket(b)) => a.is_no_faster_than(b),
                    (Self::FixedWindow(a), Self::FixedWindow(b)) => a.covers(b),
                    (Self::SlidingWindow(a), Self::SlidingWindow(b)) => a.window() == b.window(),
                    (Self::Log(a), Self::Log(b)) => a.covers(b),
                    (Self::Leases(a), Self::Leases(b)) => a.ttl() == b.ttl(),
                    (Self::Fleet(a), Self::Fleet(b)) => {
                        a.allocation() <= b.allocation() && a.mode() == b.mode() && a.ttl() == b.ttl()
                    }
                    _ => false,
                }
    }

    /// The share of this limit that each of `nodes` keeps when they cannot keep it together: a part of the capacity, at
    /// least 1, and exactly a part of the rate. Where the limit is smaller than the number of nodes, periods grow instead.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::token_bucket(500, 100, Nanos::from_secs(1))?;
    /// assert_eq!(limit.divided_among(4), Limit::token_bucket(125, 25, Nanos::from_secs(1))?);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    #[must_use]
    pub fn divided_among(&self, nodes: u64) -> Self {
        let nodes = nodes.max(1);
        match self {
            Self::Bucket(a) => Self::Bucket(a.divided_among(nodes)),
            Self::FixedWindow(a) => Self::FixedWindow(a.divided_among(nodes)),
            Self::SlidingWindow(a) => Self::SlidingWindow(a.divided_among(nodes)),
            Self::IntervalBucket(a) => Self::IntervalBucket(a.divided_among(nodes)),
            Self::Log(a) => Self::Log(a.divided_among(nodes)),
            Self::Concurrency(a) => Self::Concurrency(a.divided_among(nodes)),
            Self::Leases(a) => Self::Leases(a.divided_among(nodes)),
            Self::Fleet(a) => Self::Fleet(a.divided_among(nodes)),
        }
    }

    /// The state of a key that was never seen.
    pub fn fresh(&self) -> State {
        match self {
            Self::Bucket(_) => State::Debt(Debt::default()),
            Self::FixedWindow(_) => State::Window(Window::default()),
            Self::SlidingWindow(_) => State::TwoWindows(TwoWindows::default()),
            Self::IntervalBucket(_) => State::Batch(Batch::default()),
            Self::Log(_) => State::Entries(Entries::default()),
            Self::Concurrency(_) => State::InProgress(InProgress::default()),
            Self::Fleet(fleet) if fleet.is_counted() => State::InProgress(InProgress::default()),
            Self::Leases(_) | Self::Fleet(_) => State::LeaseSet(LeaseSet::default()),
        }
    }

    /// Does `op` to a state. `taken` is when that which is given back was taken; other operations do not
    /// look at it. A state of another algorithm counts as fresh.
    pub fn apply(&self, op: Op, state: &mut State, now: Timestamp, ask: Ask, taken: Timestamp) -> Outcome {
        match (self, &mut *state) {
            (Self::Bucket(a), State::Debt(s)) => apply(a, op, s, now, ask.cost, taken),
            (Self::FixedWindow(a), State::Window(s)) => apply(a, op, s, now, ask.cost, taken),
            (Self::SlidingWindow(a), State::TwoWindows(s)) => apply(a, op, s, now, ask.cost, taken),
            (Self::IntervalBucket(a), State::Batch(s)) => apply(a, op, s, now, ask.cost, taken),
            (Self::Log(a), State::Entries(s)) => apply(a, op, s, now, ask.cost, taken),
            (Self::Concurrency(a), State::InProgress(s)) => apply(a, op, s, now, ask.cost, taken),
            (Self::Fleet(a), State::InProgress(s)) if a.is_counted() => {
                a.count(op, s, ask.cost, ask.critical)
            }
            (Self::Leases(a), State::LeaseSet(s)) => match op {
                Op::Charge => a.acquire(s, now, ask.lease, ask.cost),
                Op::Estimate => a.estimate(s, now, ask.lease, ask.cost),
                Op::Refund | Op::Undo => a.release(s, now, ask.lease),
                Op::Renew => a.renew(s, now, ask.lease),
            },
            (Self::Fleet(a), State::LeaseSet(s)) if !a.is_counted() => match op {
                Op::Charge => a.acquire(s, now, ask.lease, ask.cost, ask.critical),
                Op::Estimate => a.estimate(s, now, ask.lease, ask.cost, ask.critical),
                Op::Refund | Op::Undo => a.release(s, now, ask.lease),
                Op::Renew => a.renew(s, now, ask.lease),
            },
            _ => {
                *state = self.fresh();
                self.apply(op, state, now, ask, taken)
            }
        }
    }

    /// What a charge would be answered, without touching the state; nothing for a state of another algorithm.
    pub fn estimate(&self, state: &State, now: Timestamp, ask: Ask) -> Option<Outcome> {
        Some(match (self, state) {
            (Self::Bucket(a), State::Debt(s)) => a.estimate(s, now, ask.cost),
            (Self::FixedWindow(a), State::Window(s)) => a.estimate(s, now, ask.cost),
            (Self::SlidingWindow(a), State::TwoWindows(s)) => a.estimate(s, now, ask.cost),
            (Self::IntervalBucket(a), State::Batch(s)) => a.estimate(s, now, ask.cost),
            (Self::Log(a), State::Entries(s)) => a.estimate(s, now, ask.cost),
            (Self::Concurrency(a), State::InProgress(s)) => a.estimate(s, now, ask.cost),
            (Self::Leases(a), State::LeaseSet(s)) => a.estimate(s, now, ask.lease, ask.cost),
            (Self::Fleet(a), State::InProgress(s)) if a.is_counted() => {
                a.count(Op::Estimate, &mut s.clone(), ask.cost, ask.critical)
            }
            (Self::Fleet(a), State::LeaseSet(s)) if !a.is_counted() => {
                a.estimate(s, now, ask.lease, ask.cost, ask.critical)
            }
            _ => return None,
        })
    }

    /// Whether a lease is held.
    pub fn holds(&self, state: &State, lease: LeaseId, now: Timestamp) -> bool {
        matches!(state, State::LeaseSet(set) if set.is_live(lease, now))
    }

    /// Whether there is room among what is counted in this process.
    #[inline]
    pub fn has_room(&self, used: &InProgress, ask: &Ask) -> bool {
        match self {
            Self::Concurrency(a) => a.has_room(used, ask.cost),
            Self::Fleet(a) => a.has_room(*used, ask.critical, ask.cost),
            _ => false,
        }
    }

    /// Does `op` to what is counted in this process; nothing under a limit that counts nothing.
    #[inline]
    pub fn count(&self, op: Op, used: &mut InProgress, ask: &Ask) -> Option<Outcome> {
        match self {
            Self::Concurrency(a) => Some(apply(a, op, used, Timestamp::ZERO, ask.cost, Timestamp::ZERO)),
            Self::Fleet(a) if a.is_counted() => Some(a.count(op, used, ask.cost, ask.critical)),
            _ => None,
        }
    }

    /// As [`count`](Self::count) with [`Op::Charge`], for those who have just seen that it [has room](Self::has_room): nobody looks again.
    #[inline]
    pub fn take(&self, used: &mut InProgress, ask: &Ask) -> Option<Outcome> {
        debug_assert!(self.has_room(used, ask), "nobody has looked");
        match self {
            Self::Concurrency(a) => Some(a.take(used, ask.cost)),
            Self::Fleet(a) if a.is_counted() => Some(a.take(used, ask.cost, ask.critical)),
            _ => None,
        }
    }

    /// Gives back what is counted in this process: as [`count`](Self::count), where nobody asks how it stands.
    #[inline]
    pub fn uncount(&self, used: &mut InProgress, ask: &Ask) {
        let is_critical = ask.critical && matches!(self, Self::Fleet(_));
        let of_kind = if is_critical { &mut used.critical } else { &mut used.other };
        *of_kind = of_kind.saturating_sub(ask.cost);
    }

    /// Whether what is in progress is counted in this process, without leases.
    pub fn is_counted(&self) -> bool {
        match self {
            Self::Concurrency(_) => true,
            Self::Fleet(fleet) => fleet.is_counted(),
            _ => false,
        }
    }

    /// Whether what is taken has a name, and is given back by it.
    pub fn is_leased(&self) -> bool {
        match self {
            Self::Leases(_) => true,
            Self::Fleet(fleet) => !fleet.is_counted(),
            _ => false,
        }
    }

    /// Whether refused calls count too.
    pub fn counts_refused(&self) -> bool {
        matches!(self, Self::Log(log) if log.counts_rejected())
    }

    /// Whether the state is worth no more than a fresh one.
    pub fn is_idle(&self, state: &State, now: Timestamp) -> bool {
        match (self, state) {
            (Self::Bucket(a), State::Debt(s)) => is_idle(a, s, now),
            (Self::FixedWindow(a), State::Window(s)) => is_idle(a, s, now),
            (Self::SlidingWindow(a), State::TwoWindows(s)) => is_idle(a, s, now),
            (Self::IntervalBucket(a), State::Batch(s)) => is_idle(a, s, now),
            (Self::Log(a), State::Entries(s)) => is_idle(a, s, now),
            (Self::Concurrency(_) | Self::Fleet(_), State::InProgress(s)) => s.total() == 0,
            (Self::Leases(_) | Self::Fleet(_), State::LeaseSet(s)) => s.is_idle(now),
            _ => true,
        }
    }

    /// How much of the quota is in use, as a share of 2^32.
    pub fn level(&self, state: &State, now: Timestamp) -> u64 {
        match (self, state) {
            (Self::Bucket(a), State::Debt(s)) => a.level(s, now),
            (Self::FixedWindow(a), State::Window(s)) => a.level(s, now),
            (Self::SlidingWindow(a), State::TwoWindows(s)) => a.level(s, now),
            (Self::IntervalBucket(a), State::Batch(s)) => a.level(s, now),
            (Self::Log(a), State::Entries(s)) => a.level(s, now),
            (Self::Concurrency(a), State::InProgress(s)) => a.level(s, now),
            (Self::Leases(a), State::LeaseSet(s)) => a.level(s, now),
            (Self::Fleet(a), State::InProgress(s)) => a.level(*s),
            (Self::Fleet(a), State::LeaseSet(s)) => a.level(s.used_at(now)),
            _ => 0,
        }
    }

    /// Whether forgetting a state would forget requests that are still in progress.
    pub fn is_pinned(&self, state: &State, now: Timestamp) -> bool {
        matches!(self, Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_)) && !self.is_idle(state, now)
    }

    /// A state at least as strict as both, now and later. States of requests in progress are not joined.
    pub fn join(&self, a: &State, b: &State, now: Timestamp) -> State {
        match (self, a, b) {
            (Self::Bucket(l), State::Debt(a), State::Debt(b)) => State::Debt(l.join(a, b, now)),
            (Self::FixedWindow(l), State::Window(a), State::Window(b)) => State::Window(l.join(a, b, now)),
            (Self::SlidingWindow(l), State::TwoWindows(a), State::TwoWindows(b)) => {
                State::TwoWindows(l.join(a, b, now))
            }
            (Self::IntervalBucket(l), State::Batch(a), State::Batch(b)) => State::Batch(l.join(a, b, now)),
            (Self::Log(l), State::Entries(a), State::Entries(b)) => State::Entries(l.join(a, b, now)),
            _ => a.clone(),
        }
    }

    /// The state under this limit of a key that was charged under `old` until `changed`. What was used stays
    /// used: the same units where the algorithm stays, the same share of the quota where it changes.
    pub fn convert(&self, old: &Self, state: &State, changed: Timestamp) -> State {
        match (self, old, state) {
            (Self::Bucket(new), Self::Bucket(old), State::Debt(s)) => {
                State::Debt(new.convert(old, s, changed))
            }
            (Self::FixedWindow(new), Self::FixedWindow(old), State::Window(s)) => {
                State::Window(new.convert(old, s, changed))
            }
            (Self::SlidingWindow(new), Self::SlidingWindow(old), State::TwoWindows(s)) => {
                State::TwoWindows(new.convert(old, s, changed))
            }
            (Self::IntervalBucket(new), Self::IntervalBucket(old), State::Batch(s)) => {
                State::Batch(new.convert(old, s, changed))
            }
            (Self::Log(new), Self::Log(old), State::Entries(s)) => {
                State::Entries(new.convert(old, s, changed))
            }
            (Self::Concurrency(_), Self::Concurrency(_), state) => state.clone(),
            (Self::Fleet(new), Self::Fleet(old), state) if new.is_counted() && old.is_counted() => {
                state.clone()
            }
            (
                Self::Leases(_) | Self::Fleet(_),
                Self::Leases(_) | Self::Fleet(_),
                state @ State::LeaseSet(_),
            ) if !self.is_counted() => state.clone(),
            // Requests in progress are no usage of a rate, nor the reverse.
            (Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_), ..)
            | (_, Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_), _) => self.fresh(),
            _ => {
                let used = old.level(state, changed) as u128 * self.capacity() as u128;
                // At most the capacity, because a level is at most 2^32.
                let cost = used.div_ceil(1 << 32) as u64;
                let mut converted = self.fresh();
                let _ = self.apply(Op::Charge, &mut converted, changed, Ask::from(cost), changed);
                converted
            }
        }
    }

    /// What a key is told that this limit refuses, while what it has used ages under `old` and only moves here when it passes:
    /// the wait is that limit's, until it has made enough room for this one.
    pub fn refused_beside(
        &self,
        refused: Outcome,
        old: &Self,
        state: &State,
        now: Timestamp,
        cost: u64,
    ) -> Outcome {
        let Some(wait) = self.wait_beside(old, state, now, cost) else { return refused };
        let wait = |own: Nanos| match (self, old) {
            // It may want a distance between calls besides.
            (Self::Log(log), Self::Log(_)) if log.spacing() > Nanos::ZERO => wait.max(own),
            // A call counts until it is over for one of them. It moves within its grain as long as that lasts.
            (Self::Log(_), Self::Log(old)) if old.grain() > Nanos::new(1) => {
                wait.min(Nanos::new(own.as_u64().saturating_add(old.grain().as_u64())))
            }
            (Self::Log(_), Self::Log(_)) => wait.min(own),
            _ => wait,
        };
        let retry_after = refused.retry_after.map(wait);
        Outcome {
            retry_after,
            reset_after: refused.reset_after.max(retry_after.unwrap_or_default()),
            ..refused
        }
    }

    fn wait_beside(&self, old: &Self, state: &State, now: Timestamp, cost: u64) -> Option<Nanos> {
        let is_rate =
            |limit: &Self| !matches!(limit, Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_));
        if !is_rate(self) || !is_rate(old) {
            return None;
        }
        let (capacity, old_capacity) = (u128::from(self.capacity()), u128::from(old.capacity()));
        let room = capacity.checked_sub(u128::from(cost))?;
        // How much may be used of the old limit when the call fits the new one.
        let fits = match self {
            _ if std::mem::discriminant(self) == std::mem::discriminant(old) => room,
            // Whatever is used of another algorithm counts as a call of this moment.
            Self::Log(log) if log.spacing() > Nanos::ZERO => 0,
            // The same share, and levels are rounded up.
            _ => (old_capacity * room).checked_div(capacity)?.saturating_sub(1),
        };
        let (old, cost) = match old {
            // It can hold more than its limit, since it was larger. How far apart calls are is for the new one to say.
            Self::Log(log) => (Self::Log(log.unspaced(u64::try_from(fits).ok()?.saturating_add(1))), 1),
            old => (*old, u64::try_from(old_capacity.checked_sub(fits)?).ok()?),
        };
        old.estimate(state, now, Ask::from(cost))?.retry_after.filter(|wait| *wait > Nanos::ZERO)
    }

    /// Units in progress under a concurrency limit or a fleet; none for rate limits.
    pub fn in_progress(&self, state: &State, now: Timestamp) -> InProgress {
        match state {
            State::InProgress(s) => *s,
            State::LeaseSet(s) => s.used_at(now),
            _ => InProgress::default(),
        }
    }
}

impl State {
    /// Gives back memory that is no longer needed.
    pub fn shrink(&mut self) {
        match self {
            Self::Entries(s) => s.shrink(),
            Self::LeaseSet(s) => s.shrink(),
            _ => {}
        }
    }

    /// Makes a large state smaller at the price of being stricter; see [`Entries::compact`]. Whether it could.
    pub fn compact(&mut self) -> bool {
        match self {
            Self::Entries(s) => s.compact(),
            _ => false,
        }
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Entries(s) => s.heap_bytes(),
            Self::LeaseSet(s) => s.heap_bytes(),
            _ => 0,
        }
    }
}

/// Does `op` to a state of any algorithm that takes a cost.
#[inline]
pub fn apply<A: Algorithm>(
    algorithm: &A,
    op: Op,
    state: &mut A::State,
    now: Timestamp,
    cost: u64,
    taken: Timestamp,
) -> Outcome {
    match op {
        Op::Charge => algorithm.decide(state, now, cost),
        Op::Estimate => algorithm.estimate(state, now, cost),
        Op::Refund => algorithm.refund(state, now, cost, taken),
        Op::Undo => {
            algorithm.undo(state, now, cost, taken);
            algorithm.estimate(state, now, 0)
        }
        // No rate limit holds a lease.
        Op::Renew => Outcome { allowed: false, ..algorithm.estimate(state, now, 0) },
    }
}

/// Whether the state is worth no more than a fresh one.
#[inline]
pub fn is_idle<A: Algorithm>(algorithm: &A, state: &A::State, now: Timestamp) -> bool {
    algorithm.estimate(state, now, 0).reset_after == Nanos::ZERO
}
