//! What was decided, and what the caller may know about it.

use smallvec::SmallVec;

use crate::store::OnFailure;
use crate::time::Nanos;

/// The answer of one limit to one call.
///
/// ```
/// use tollgate_core::Outcome;
///
/// let outcome = Outcome::refuse(0, Some(1_500_000_000), 3_000_000_000);
/// assert!(!outcome.allowed);
/// assert_eq!(outcome.retry_after.unwrap().as_secs_ceil(), 2); // Retry-After: 2
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "an outcome that nobody reads limits nobody"]
pub struct Outcome {
    /// The call may proceed.
    pub allowed: bool,
    /// Units that a further call could take right now; rounded down.
    pub remaining: u64,
    /// Zero if allowed; else the smallest wait after which the same call succeeds if nobody else calls,
    /// rounded up. `None`: never, because the cost exceeds the capacity.
    pub retry_after: Option<Nanos>,
    /// The smallest wait after which the state equals a fresh one; rounded up. An entry may be dropped then.
    pub reset_after: Nanos,
    /// How long an allowed call should wait before it proceeds. Zero but for a leaky bucket used as a queue.
    pub delay: Nanos,
}

impl Outcome {
    /// An allowed call.
    #[inline]
    pub const fn allow(remaining: u64, reset_after: u64) -> Self {
        Self {
            allowed: true,
            remaining,
            retry_after: Some(Nanos::ZERO),
            reset_after: Nanos::new(reset_after),
            delay: Nanos::ZERO,
        }
    }

    /// A refused call that may come back after `retry_after`, or never.
    #[inline]
    pub const fn refuse(remaining: u64, retry_after: Option<u64>, reset_after: u64) -> Self {
        Self {
            allowed: false,
            remaining,
            retry_after: match retry_after {
                Some(wait) => Some(Nanos::new(wait)),
                None => None,
            },
            reset_after: Nanos::new(reset_after),
            delay: Nanos::ZERO,
        }
    }
}

/// The answers of the limits of one call, in the order of the charges.
pub type Outcomes = SmallVec<[Outcome; 4]>;

/// The answer of several limits to one call: all or nothing.
///
/// ```
/// use tollgate_core::{Outcome, Verdict};
///
/// let verdict = Verdict::of(vec![Outcome::allow(5, 0), Outcome::refuse(0, Some(7), 9)]);
/// assert!(!verdict.allowed);
/// assert_eq!(verdict.retry_after.unwrap().as_u64(), 7);
/// assert_eq!(verdict.refused_by().collect::<Vec<_>>(), [1]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a verdict that nobody reads limits nobody"]
pub struct Verdict {
    /// Every limit allowed the call, and every one was charged.
    pub allowed: bool,
    /// The smallest of the limits' `remaining`.
    pub remaining: u64,
    /// The longest wait of the limits that refused; `None` if one of them never will.
    pub retry_after: Option<Nanos>,
    /// The longest of the limits' `reset_after`.
    pub reset_after: Nanos,
    /// The longest of the limits' `delay`.
    pub delay: Nanos,
    /// Each limit's own answer, in the order of the charges. In a refused group nothing was taken, so these
    /// are the unchanged states; `allowed` tells which limits would have let the call pass.
    pub outcomes: Vec<Outcome>,
    /// The limits that were decided without their store, because it did not answer. Empty when all is well.
    pub degraded: Vec<Degraded>,
}

/// A limit that was decided without its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// Which, in the order of the charges.
    pub index: usize,
    /// How it was decided instead.
    pub by: OnFailure,
}

impl Verdict {
    /// Combines the answers of the limits of one call.
    pub fn of(outcomes: Vec<Outcome>) -> Self {
        let mut verdict = Self {
            allowed: true,
            remaining: u64::MAX,
            retry_after: Some(Nanos::ZERO),
            reset_after: Nanos::ZERO,
            delay: Nanos::ZERO,
            outcomes,
            degraded: Vec::new(),
        };
        for outcome in &verdict.outcomes {
            verdict.allowed &= outcome.allowed;
            verdict.remaining = verdict.remaining.min(outcome.remaining);
            verdict.reset_after = verdict.reset_after.max(outcome.reset_after);
            verdict.delay = verdict.delay.max(outcome.delay);
            verdict.retry_after = match (verdict.retry_after, outcome.retry_after) {
                (Some(a), Some(b)) => Some(a.max(b)),
                _ => None,
            };
        }
        if !verdict.allowed {
            verdict.delay = Nanos::ZERO;
        }
        verdict
    }

    /// Positions of the limits that refused, in the order of the charges.
    pub fn refused_by(&self) -> impl Iterator<Item = usize> + '_ {
        self.outcomes.iter().enumerate().filter(|(_, outcome)| !outcome.allowed).map(|(i, _)| i)
    }

    /// Whether the call is refused only because a store does not answer: the caller has done nothing wrong, and is told
    /// 503, not 429.
    pub fn is_closed(&self) -> bool {
        let closed = |index| self.degraded.contains(&Degraded { index, by: OnFailure::Closed });
        !self.allowed && self.refused_by().all(closed)
    }
}
