//! Instants and durations as integers.
//!
//! Stores and tests may count in another unit (a shared store counts microseconds): the algorithms only add,
//! subtract and compare, so they are exact in whatever unit they are fed, as long as it is one unit throughout.

use std::fmt;
use std::time::Duration;

/// An instant: nanoseconds since an origin that the clock chooses (the Unix epoch for the system clock).
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::Timestamp;
///
/// let begun = Timestamp::from_secs(10);
/// let ended = begun + Duration::from_millis(1500);
/// assert_eq!(Duration::from(ended.since(begun)), Duration::from_millis(1500));
/// assert_eq!(begun.since(ended).as_u64(), 0); // time never goes back
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A duration in whole nanoseconds.
///
/// ```
/// use std::time::Duration;
/// use tollgate_core::Nanos;
///
/// let wait = Nanos::new(1_200_000_000);
/// assert_eq!(wait.as_secs_ceil(), 2);
/// assert_eq!(Duration::from(wait), Duration::from_millis(1200));
/// assert_eq!(wait.to_string(), "1.2s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Timestamp {
    /// The origin of time.
    pub const ZERO: Self = Self(0);

    /// The instant `nanos` after the origin.
    #[inline]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `millis` after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The instant `secs` after the origin.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the origin.
    #[inline]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if `earlier` is later.
    #[inline]
    pub const fn since(self, earlier: Self) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Nanos> for Timestamp {
    type Output = Self;

    #[inline]
    fn add(self, wait: Nanos) -> Self {
        Self(self.0.saturating_add(wait.0))
    }
}

impl std::ops::Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, wait: Duration) -> Self {
        self + Nanos::from(wait)
    }
}

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A duration of `nanos` nanoseconds.
    #[inline]
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A duration of `secs` seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The number of nanoseconds.
    #[inline]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Whole seconds, rounded up: what `Retry-After` wants.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000_000)
    }
}

impl From<Nanos> for Duration {
    fn from(nanos: Nanos) -> Self {
        Self::from_nanos(nanos.0)
    }
}

/// Durations beyond 584 years saturate.
impl From<Duration> for Nanos {
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from(*self), f)
    }
}
