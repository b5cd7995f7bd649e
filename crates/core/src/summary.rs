//! What a store keeps of a state that it has no room for: two numbers that are at least as strict as the state.

use crate::algorithm::Algorithm;
use crate::limit::{Limit, State};
use crate::time::{Nanos, Timestamp};

/// A state in short. A store may round both numbers up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// When nothing is in use any more.
    pub until: Timestamp,
    /// Units in use until then. `None` where they follow from `until`, as the debt of a bucket does.
    pub used: Option<u64>,
}

/// Algorithms whose states can be summarized.
pub trait Summarized: Algorithm {
    /// The longest time for which a state matters.
    fn horizon(&self) -> Nanos;

    /// The summary of a state at `now`.
    fn summarize(&self, state: &Self::State, now: Timestamp) -> Summary;

    /// A state that is at least as strict as the one that was summarized, at `now` and later.
    fn restore(&self, summary: Summary, now: Timestamp) -> Self::State;
}

impl Limit {
    /// The longest time for which a state matters; none for requests in progress, which last as long as they like.
    ///
    /// ```
    /// # use tollgate_core::{Limit, Nanos};
    /// let limit = Limit::token_bucket(5, 5, Nanos::from_secs(3600))?;
    /// assert_eq!(limit.horizon(), Some(Nanos::from_secs(3600)));
    /// assert_eq!(Limit::concurrency(20)?.horizon(), None);
    /// # Ok::<_, tollgate_core::LimitError>(())
    /// ```
    pub fn horizon(&self) -> Option<Nanos> {
        match self {
            Self::Bucket(a) => Some(a.horizon()),
            Self::FixedWindow(a) => Some(a.horizon()),
            Self::SlidingWindow(a) => Some(a.horizon()),
            Self::IntervalBucket(a) => Some(a.horizon()),
            Self::Log(a) => Some(a.horizon()),
            Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_) => None,
        }
    }

    /// The summary of a rate limit's state; none of requests in progress, or of another algorithm's state.
    pub fn summarize(&self, state: &State, now: Timestamp) -> Option<Summary> {
        match (self, state) {
            (Self::Bucket(a), State::Debt(s)) => Some(a.summarize(s, now)),
            (Self::FixedWindow(a), State::Window(s)) => Some(a.summarize(s, now)),
            (Self::SlidingWindow(a), State::TwoWindows(s)) => Some(a.summarize(s, now)),
            (Self::IntervalBucket(a), State::Batch(s)) => Some(a.summarize(s, now)),
            (Self::Log(a), State::Entries(s)) => Some(a.summarize(s, now)),
            _ => None,
        }
    }

    /// The state of a key of which only a summary is left.
    pub fn restore(&self, summary: Summary, now: Timestamp) -> State {
        match self {
            Self::Bucket(a) => State::Debt(a.restore(summary, now)),
            Self::FixedWindow(a) => State::Window(a.restore(summary, now)),
            Self::SlidingWindow(a) => State::TwoWindows(a.restore(summary, now)),
            Self::IntervalBucket(a) => State::Batch(a.restore(summary, now)),
            Self::Log(a) => State::Entries(a.restore(summary, now)),
            Self::Concurrency(_) | Self::Leases(_) | Self::Fleet(_) => self.fresh(),
        }
    }
}
