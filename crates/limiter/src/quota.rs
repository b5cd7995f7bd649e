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
    /// Whether refused calls count too, for logs and sub-windows.
    counts_refused: bool,
    /// Where windows begin, for fixed ones.
    offset: Nanos,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    TokenBucket,
    LeakyQueue { undelayed: u64 },
    FixedWindow,
    AnchoredWindow,
    SlidingLog,
    SlidingWindow,
    SubWindows { buckets: u64, kind: SubWindows },
    Intervals,
}

impl From<Quota> for Result<Limit, LimitError> {
    fn from(quota: Quota) -> Self {
        quota.limit()
    }
}

impl Quota {
    /// `count` per second: a token bucket with a burst of one second's worth, unless said otherwise.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_second(100).limit()?.capacity(), 100);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub const fn per_second(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(1))
    }

    /// `count` per minute.
    ///
    /// ```
    /// # use tollgate::Quota; use std::time::Duration;
    /// assert_eq!(Quota::per_minute(60), Quota::per(60, Duration::from_secs(60)));
    /// ```
    pub const fn per_minute(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(60))
    }

    /// `count` per hour.
    ///
    /// ```
    /// # use tollgate::Quota; use std::time::Duration;
    /// assert_eq!(Quota::per_hour(60), Quota::per(60, Duration::from_secs(3600)));
    /// ```
    pub const fn per_hour(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(3600))
    }

    /// `count` per day of 24 hours.
    ///
    /// ```
    /// # use tollgate::Quota; use std::time::Duration;
    /// assert_eq!(Quota::per_day(60), Quota::per(60, Duration::from_secs(24 * 3600)));
    /// ```
    pub const fn per_day(count: u64) -> Self {
        Self::per_nanos(count, Nanos::from_secs(86_400))
    }

    /// `count` per any period.
    ///
    /// ```
    /// # use tollgate::Quota; use std::time::Duration;
    /// let quota = Quota::per(7, Duration::from_millis(250));
    /// assert_eq!(quota.limit()?.capacity(), 7);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn per(count: u64, period: Duration) -> Self {
        Self::per_nanos(count, Nanos::from(period))
    }

    const fn per_nanos(count: u64, period: Nanos) -> Self {
        Self {
            count,
            period,
            burst: None,
            spacing: Nanos::ZERO,
            counts_refused: false,
            offset: Nanos::ZERO,
            kind: Kind::TokenBucket,
        }
    }

    /// How much may be taken at once by someone who has waited: the size of the bucket. For a queue, how
    /// many may wait. Windows and logs have no burst: they take the whole count at once, and refuse one when built.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// assert_eq!(Quota::per_second(100).burst(500).limit()?.capacity(), 500);
    /// assert!(Quota::per_second(100).burst(500).sliding_log().limit().is_err());
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// A queue: calls leave one by one, evenly spaced, and [`Outcome::delay`](crate::Outcome::delay) tells
    /// each how long to wait. [`burst`](Self::burst) may wait, of which the first `undelayed` need not.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{ManualClock, Quota, RateLimiter};
    ///
    /// let quota = Quota::per_second(10).burst(5).leaky_queue(0);
    /// let queue = RateLimiter::builder(quota).clock(ManualClock::default()).build();
    /// assert_eq!(Duration::from(queue.check("job").unwrap().delay), Duration::ZERO);
    /// assert_eq!(Duration::from(queue.check("job").unwrap().delay), Duration::from_millis(100));
    /// assert_eq!(Duration::from(queue.check("job").unwrap().delay), Duration::from_millis(200));
    /// ```
    pub const fn leaky_queue(mut self, undelayed: u64) -> Self {
        self.kind = Kind::LeakyQueue { undelayed };
        self
    }

    /// Fixed windows on whole multiples of the period: simple, and all nodes agree, but twice the count can
    /// pass across a boundary.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(1).fixed_window()).build();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(59)).is_ok());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(60)).is_ok()); // another minute
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(61)).is_err());
    /// ```
    pub const fn fixed_window(mut self) -> Self {
        self.kind = Kind::FixedWindow;
        self
    }

    /// For a [`fixed_window`](Self::fixed_window): windows begin this much later, such as days that begin at six
    /// in the morning.
    ///
    /// ```
    /// # use std::time::Duration; use tollgate::{Quota, RateLimiter, Timestamp};
    /// let six = Duration::from_secs(6 * 3600);
    /// let limiter = RateLimiter::builder(Quota::per_day(1).fixed_window().offset(six)).build();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(6 * 3600 - 1)).is_ok());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(6 * 3600)).is_ok());
    /// ```
    pub fn offset(mut self, offset: Duration) -> Self {
        self.offset = Nanos::from(offset);
        self
    }

    /// Fixed windows that begin with a caller's first call.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(1).anchored_window()).build();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(59)).is_ok());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(60)).is_err());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(119)).is_ok());
    /// ```
    pub const fn anchored_window(mut self) -> Self {
        self.kind = Kind::AnchoredWindow;
        self
    }

    /// A log of every call: never more than the count in any period, exactly, at 16 bytes per call.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(2).sliding_log()).build();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(50)).is_ok());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(70)).is_ok());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(109)).is_err());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(110)).is_ok()); // the first is a minute old
    /// ```
    pub const fn sliding_log(mut self) -> Self {
        self.kind = Kind::SlidingLog;
        self
    }

    /// For a [`sliding_log`](Self::sliding_log) or [`sub_windows`](Self::sub_windows): refused calls count too, so
    /// who keeps hammering stays out until it pauses.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(1).sliding_log().counting_refused()).build();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(0)).is_ok());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(59)).is_err());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(60)).is_err()); // for the one before
    /// ```
    pub const fn counting_refused(mut self) -> Self {
        self.counts_refused = true;
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
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(10).sliding_window()).build();
    /// limiter.check_n_at("alice", 10, Timestamp::from_secs(30)).unwrap();
    /// // Half of the last minute is still within one minute, so half of its calls are taken to be, too.
    /// assert_eq!(limiter.peek_at("alice", 1, Timestamp::from_secs(90)).unwrap().remaining, 5);
    /// ```
    pub const fn sliding_window(mut self) -> Self {
        self.kind = Kind::SlidingWindow;
        self
    }

    /// A sliding window counted in `buckets` parts: never more than the count in any period, and a call is
    /// forgotten up to one part late.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(2).sub_windows(6)).build();
    /// limiter.check_n_at("alice", 2, Timestamp::from_secs(9)).unwrap();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(69)).is_err());
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(70)).is_ok());
    /// ```
    pub const fn sub_windows(self, buckets: u64) -> Self {
        self.sub_windows_as(buckets, SubWindows::NPlusOne)
    }

    /// As [`sub_windows`](Self::sub_windows), with a choice: [`SubWindows::N`] forgets a call up to one part early,
    /// as many other limiters do, and can let more than the count pass in a period.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, SubWindows, Timestamp};
    /// let quota = Quota::per_minute(2).sub_windows_as(6, SubWindows::N);
    /// let limiter = RateLimiter::builder(quota).build();
    /// limiter.check_n_at("alice", 2, Timestamp::from_secs(9)).unwrap();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(60)).is_ok()); // 51 seconds later
    /// ```
    pub const fn sub_windows_as(mut self, buckets: u64, kind: SubWindows) -> Self {
        self.kind = Kind::SubWindows { buckets, kind };
        self
    }

    /// A bucket that gets its whole count back at the end of each period, and nothing before.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::builder(Quota::per_minute(2).in_batches()).build();
    /// limiter.check_n_at("alice", 2, Timestamp::from_secs(0)).unwrap();
    /// assert!(limiter.check_at("alice", Timestamp::from_secs(59)).is_err());
    /// assert_eq!(limiter.check_at("alice", Timestamp::from_secs(60)).unwrap().remaining, 1);
    /// ```
    pub const fn in_batches(mut self) -> Self {
        self.kind = Kind::Intervals;
        self
    }

    /// The limit, or what is wrong with it.
    ///
    /// ```
    /// # use tollgate::Quota;
    /// let wrong = Quota::per_second(10).burst(0).limit().unwrap_err();
    /// assert_eq!(wrong.field, "burst");
    /// ```
    pub fn limit(&self) -> Result<Limit, LimitError> {
        let Self { count, period, kind, counts_refused, .. } = *self;
        let burst = self.burst.unwrap_or(count);
        let is_window = !matches!(kind, Kind::TokenBucket | Kind::LeakyQueue { .. } | Kind::Intervals);
        let is_log = matches!(kind, Kind::SlidingLog | Kind::SubWindows { .. });
        let misplaced = [
            (
                self.burst.is_some() && is_window,
                "burst",
                burst.to_string(),
                "left out: a window takes its whole count at once",
            ),
            (
                self.spacing > Nanos::ZERO && kind != Kind::SlidingLog,
                "min_difference",
                self.spacing.to_string(),
                "left out, or used with a sliding log",
            ),
            (
                self.offset > Nanos::ZERO && kind != Kind::FixedWindow,
                "offset",
                self.offset.to_string(),
                "left out, or used with a fixed window",
            ),
            (
                counts_refused && !is_log,
                "counting_refused",
                "set".to_owned(),
                "left out, or used with a sliding log or sub-windows",
            ),
        ];
        if let Some((_, field, value, allowed)) = misplaced.into_iter().find(|(wrong, ..)| *wrong) {
            return Err(LimitError { field, value, allowed: allowed.to_owned() });
        }
        let limit = match kind {
            Kind::TokenBucket if count == 0 => Limit::token_bucket(1, 0, period),
            Kind::TokenBucket => Limit::token_bucket(burst, count, period),
            Kind::LeakyQueue { undelayed } => Limit::leaky_queue(burst, count, period, undelayed),
            Kind::FixedWindow => {
                Limit::fixed_window(count, period, WindowStart::Aligned { offset: self.offset })
            }
            Kind::AnchoredWindow => Limit::fixed_window(count, period, WindowStart::FirstCall),
            Kind::SlidingLog => Log::new(count, period)
                .and_then(|log| log.min_difference(self.spacing))
                .map(|log| Limit::Log(log.count_rejected(counts_refused))),
            Kind::SlidingWindow => Limit::sliding_window(count, period),
            Kind::SubWindows { buckets, kind } => Log::sub_windows(count, period, buckets, kind)
                .map(|log| Limit::Log(log.count_rejected(counts_refused))),
            Kind::Intervals => Limit::interval_bucket(burst, count, period),
        };
        // In the words of who wrote it: a queue's length is its burst, and a burst that nobody set is the rate.
        limit.map_err(|error| match (error.field, self.burst) {
            ("burst" | "queue", Some(_)) => LimitError { field: "burst", ..error },
            ("burst" | "queue", None) => {
                let allowed = format!("given a burst {}, or be a rounder number", error.allowed);
                LimitError { field: "rate", allowed, ..error }
            }
            _ => error,
        })
    }
}
