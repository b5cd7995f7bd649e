//! A quota as people say it: so many per second, with a burst, by this algorithm.

use std::time::Duration;

use tollgate_core::fixed_window::WindowStart;
use tollgate_core::log::{Log, SubWindows};
use tollgate_core::{Limit, LimitError, Nanos};

/// So many calls per period. Becomes a [`Limit`] when it is checked to make sense.
///
/// ```
/// use tollgate::Quota;
///
/// let steady = Quota::per_second(100).burst(500);
/// let strict = Quota::per_minute(5).sliding_log();
/// assert!(steady.limit().is_ok() && strict.limit().is_ok());
///
/// let wrong = Quota::per_second(0).limit().unwrap_err();
/// assert_eq!(wrong.to_string(), "rate is 0: it must be from 1 to 4611686018427387904");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a quota limits nothing until a limiter is built from it"]
pub struct Quota {
    count: u64,
    period: Nanos,
    burst: Option<u64>,
    /// The smallest distance between two calls, for logs.
    spacing: Nanos,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TokenBucket,
    LeakyQueue { undelayed: u64 },
    FixedWindow(WindowStart),
    SlidingLog { count_rejected: bool },
    SlidingWindow,
    SubWindows { buckets: u64, kind: SubWindows },
    Intervals,
}

impl Quota {
    /// `count` per second: a token bucket with a burst of one second's worth, unless said otherwise.
    pub const fn per_second(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(1))
    }

    /// `count` per minute.
    pub const fn per_minute(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(60))
    }

    /// `count` per hour.
    pub const fn per_hour(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(3600))
    }

    /// `count` per day of 24 hours.
    pub const fn per_day(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(86_400))
    }

    /// `count` per any period.
    pub fn per(count: u64, period: Duration) -> Self {
        Self::per_nanos(count, Nanos::from(period))
    }

    const fn per_nanos(count: u64, period: Nanos) -> Self {
        Self { count, period, burst: None, spacing: Nanos::ZERO, kind: Kind::TokenBucket }
    }

    /// How much may be taken at once by someone who has waited: the size of the bucket. For a queue, how
    /// many may wait. Windows and logs have no burst: they take the whole count at once, and refuse one when built.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// A queue: calls leave one by one, evenly spaced, and [`Outcome::delay`](crate::Outcome::delay) tells
    /// each how long to wait. [`burst`](Self::burst) may wait, of which the first `undelayed` need not.
    ///
    /// ```
    /// use tollgate::{Quota, RateLimiter};
    ///
    /// let queue = RateLimiter::builder(Quota::per_second(10).burst(5).leaky_queue(0)).build();
    /// assert_eq!(u64::from(queue.check("job").unwrap().delay.as_secs_ceil()), 0);
    /// ```
    pub const fn leaky_queue(mut self, undelayed: u64) -> Self {
        self.kind = Kind::LeakyQueue { undelayed };
        self
    }

    /// Fixed windows on whole multiples of the period: simple, and all nodes agree, but twice the count can
    /// pass across a boundary.
    pub const fn fixed_window(mut self) -> Self {
        self.kind = Kind::FixedWindow(WindowStart::Aligned { offset: Nanos::ZERO });
        self
    }

    /// Fixed windows that begin with a caller's first call.
    pub const fn anchored_window(mut self) -> Self {
        self.kind = Kind::FixedWindow(WindowStart::FirstCall);
        self
    }

    /// A log of every call: never more than the count in any period, exactly, at 16 bytes per call.
    pub const fn sliding_log(mut self) -> Self {
        self.kind = Kind::SlidingLog { count_rejected: false };
        self
    }

    /// A log in which refused calls count too: who keeps hammering stays out until it pauses.
    pub const fn sliding_log_counting_refused(mut self) -> Self {
        self.kind = Kind::SlidingLog { count_rejected: true };
        self
    }

    /// For a [`sliding_log`](Self::sliding_log): calls must also be this far apart.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{ManualClock, Quota, RateLimiter};
    ///
    /// let quota = Quota::per_minute(10).sliding_log().min_difference(Duration::from_secs(1));
    /// let limiter = RateLimiter::builder(quota).clock(ManualClock::default()).build();
    /// assert!(limiter.check("alice").is_ok());
    /// assert_eq!(limiter.check("alice").unwrap_err().retry_after(), Some(Duration::from_secs(1)));
    /// ```
    pub fn min_difference(mut self, spacing: Duration) -> Self {
        self.spacing = Nanos::from(spacing);
        self
    }

    /// A sliding window estimated from two counters: nearly a log, at the price of one word.
    pub const fn sliding_window(mut self) -> Self {
        self.kind = Kind::SlidingWindow;
        self
    }

    /// A sliding window counted in `buckets` parts: never more than the count in any period, and a call is
    /// forgotten up to one part late.
    pub const fn sub_windows(mut self, buckets: u64) -> Self {
        self.kind = Kind::SubWindows { buckets, kind: SubWindows::NPlusOne };
        self
    }

    /// A bucket that gets its whole count back at the end of each period, and nothing before.
    pub const fn in_batches(mut self) -> Self {
        self.kind = Kind::Intervals;
        self
    }

    /// The limit, or what is wrong with it.
    pub fn limit(&self) -> Result<Limit, LimitError> {
        let Self { count, period, .. } = *self;
        let burst = self.burst.unwrap_or(count);
        let is_log = matches!(self.kind, Kind::SlidingLog { .. });
        let wrong = |field, value: String, allowed: &str| {
            Err(LimitError { field, value, allowed: allowed.to_owned() })
        };
        match self.kind {
            _ if self.spacing > Nanos::ZERO && !is_log => {
                return wrong(
                    "min_difference",
                    self.spacing.to_string(),
                    "left out, or used with a sliding log",
                );
            }
            Kind::FixedWindow(_)
            | Kind::SlidingLog { .. }
            | Kind::SlidingWindow
            | Kind::SubWindows { .. }
                if self.burst.is_some() =>
            {
                return wrong("burst", burst.to_string(), "left out: a window takes its whole count at once");
            }
            _ => {}
        }
        match self.kind {
            Kind::TokenBucket if count == 0 => Limit::token_bucket(1, 0, period),
            Kind::TokenBucket => Limit::token_bucket(burst, count, period),
            Kind::LeakyQueue { undelayed } => Limit::leaky_queue(burst, count, period, undelayed),
            Kind::FixedWindow(start) => Limit::fixed_window(count, period, start),
            Kind::SlidingLog { count_rejected } => Ok(Limit::Log(
                Log::new(count, period)?.min_difference(self.spacing)?.count_rejected(count_rejected),
            )),
            Kind::SlidingWindow => Limit::sliding_window(count, period),
            Kind::SubWindows { buckets, kind } => Limit::sub_windows(count, period, buckets, kind),
            Kind::Intervals => Limit::interval_bucket(burst, count, period),
        }
    }
}
