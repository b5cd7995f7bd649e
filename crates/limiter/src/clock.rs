//! The one file that reads a clock. Everything else is handed `now`.
//!
//! ```
//! use tollgate::{Clock, ManualClock};
//! use std::time::Duration;
//!
//! let clock = ManualClock::default();
//! clock.advance(Duration::from_secs(1));
//! assert_eq!(clock.now().as_nanos(), 1_000_000_000);
//! ```
#![allow(clippy::disallowed_methods, reason = "this is the file that reads the clock")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tollgate_core::{Nanos, Timestamp};

/// Where `now` comes from.
///
/// A clock should never go back, on whichever thread it is read: who sees something that another thread did after
/// reading the clock reads a time that is no earlier. The clocks here keep that; with one that does not, time stands
/// still until it has caught up.
///
/// ```
/// use tollgate::{Clock, RateLimiter, Timestamp};
///
/// struct Frozen;
///
/// impl Clock for Frozen {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_secs(1)
///     }
/// }
///
/// let limiter = RateLimiter::per_second(1).clock(Frozen).build();
/// assert!(limiter.check("alice").is_ok());
/// assert!(limiter.check("alice").is_err());
/// ```
pub trait Clock: Send + Sync + 'static {
    /// The time.
    fn now(&self) -> Timestamp;
}

/// Wall time as it was when the process started, and monotonic time since: it does not jump when the wall
/// clock is set.
///
/// Reading the monotonic clock costs more than a whole decision. So the last reading is kept and serves for
/// a few microseconds, which the processor's cycle counter measures. The counter only says when a reading
/// is stale: time itself always comes from [`Instant`], so it cannot drift, and cores whose counters disagree
/// merely read it more often. Where there is no such counter every call reads `Instant`.
///
/// ```
/// use tollgate::{Clock, SystemClock};
///
/// let now = SystemClock.now();
/// assert!(now <= SystemClock.now());
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

/// Readings are shared by all clocks of the process.
#[repr(align(64))]
struct Reading {
    /// Nanoseconds since the Unix epoch; only ever grows.
    now: AtomicU64,
    /// The cycle counter when `now` was read.
    cycle: AtomicU64,
}

static READING: Reading = Reading { now: AtomicU64::new(0), cycle: AtomicU64::new(0) };

static ORIGIN: LazyLock<(Instant, Nanos)> = LazyLock::new(|| {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    (Instant::now(), Nanos::from(since_epoch))
});

/// Cycles for which a reading serves: between 2 and 8 microseconds on processors of 1 to 5 GHz.
#[cfg(target_arch = "x86_64")]
const FRESH_CYCLES: u64 = 8192;

impl SystemClock {
    /// The latest time that was handed out.
    #[inline]
    pub(crate) fn latest() -> Timestamp {
        Timestamp::from_nanos(READING.now.load(Ordering::Acquire))
    }

    #[cold]
    #[inline(never)]
    fn read(cycle: u64) -> Timestamp {
        let (start, epoch) = *ORIGIN;
        let now = epoch.as_u64().saturating_add(Nanos::from(start.elapsed()).as_u64());
        let latest = READING.now.fetch_max(now, Ordering::AcqRel).max(now);
        READING.cycle.store(cycle, Ordering::Release);
        Timestamp::from_nanos(latest)
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        #[cfg(target_arch = "x86_64")]
        {
            // SAFETY: every x86-64 processor has the instruction; it reads a register and touches no memory.
            #[allow(unsafe_code)]
            let cycle = unsafe { core::arch::x86_64::_rdtsc() };
            // A counter that is behind (another core, a moved machine) wraps to a huge age: stale.
            if cycle.wrapping_sub(READING.cycle.load(Ordering::Acquire)) < FRESH_CYCLES {
                return Timestamp::from_nanos(READING.now.load(Ordering::Acquire));
            }
            Self::read(cycle)
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self::read(0)
    }
}

/// A clock that moves only when told to: for tests and simulations. Clones share the time.
///
/// ```
/// use tollgate::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::at(Timestamp::from_secs(5));
/// clock.advance(std::time::Duration::from_secs(1));
/// assert_eq!(clock.now(), Timestamp::from_secs(6));
/// clock.set(Timestamp::from_secs(60));
/// assert_eq!(clock.now(), Timestamp::from_secs(60));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    ///
    /// ```
    /// # use tollgate::{Clock, ManualClock, Timestamp};
    /// assert_eq!(ManualClock::at(Timestamp::from_secs(5)).now(), Timestamp::from_secs(5));
    /// ```
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_nanos())))
    }

    /// Moves the clock forward.
    ///
    /// ```
    /// # use tollgate::{Clock, ManualClock, Timestamp}; use std::time::Duration;
    /// let clock = ManualClock::default();
    /// clock.advance(Duration::from_secs(5));
    /// assert_eq!(clock.now(), Timestamp::from_secs(5));
    /// ```
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(Nanos::from(by).as_u64(), Ordering::AcqRel);
    }

    /// Sets the clock; limiters ignore a step back.
    ///
    /// ```
    /// # use tollgate::{Clock, ManualClock, Timestamp};
    /// let clock = ManualClock::default();
    /// clock.set(Timestamp::from_secs(5));
    /// assert_eq!(clock.now(), Timestamp::from_secs(5));
    /// ```
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_nanos(), Ordering::Release);
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::Acquire))
    }
}

/// A clock that a thread of its own ticks: the cheapest to read, as coarse as its tick.
///
/// Refills come late by up to one tick, never early. The thread ends when the last clone is dropped.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{RateLimiter, TickedClock};
///
/// let clock = TickedClock::every(Duration::from_millis(1))?;
/// let limiter = RateLimiter::per_second(10).clock(clock).build();
/// # assert!(limiter.check("alice").is_ok());
/// # Ok::<_, std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TickedClock(Arc<AtomicU64>);

impl TickedClock {
    /// A clock that is set every `tick`.
    ///
    /// ```
    /// # use tollgate::{Clock, TickedClock}; use std::time::Duration;
    /// let clock = TickedClock::every(Duration::from_millis(5))?;
    /// assert!(clock.now().as_nanos() > 0);
    /// # Ok::<_, std::io::Error>(())
    /// ```
    pub fn every(tick: Duration) -> std::io::Result<Self> {
        let now = Arc::new(AtomicU64::new(SystemClock.now().as_nanos()));
        let ticked: Weak<AtomicU64> = Arc::downgrade(&now);
        std::thread::Builder::new().name("tollgate-clock".to_owned()).spawn(move || {
            while let Some(now) = ticked.upgrade() {
                now.store(SystemClock.now().as_nanos(), Ordering::Release);
                drop(now);
                std::thread::sleep(tick);
            }
        })?;
        Ok(Self(now))
    }
}

impl Clock for TickedClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(self.0.load(Ordering::Acquire))
    }
}

/// The clock of a limiter. The system's own is called directly, others through a pointer.
#[derive(Clone, Default)]
pub(crate) enum AnyClock {
    #[default]
    System,
    Other(Arc<dyn Clock>),
}

impl AnyClock {
    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::System => SystemClock.now(),
            Self::Other(clock) => clock.now(),
        }
    }

    /// Whether it is known never to go back.
    #[inline]
    pub(crate) fn is_trusted(&self) -> bool {
        matches!(self, Self::System)
    }
}

impl std::fmt::Debug for AnyClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::System => "SystemClock",
            Self::Other(_) => "Clock",
        })
    }
}
