//! How long things took, counted in fixed buckets.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::Nanos;

const fn micros(micros: u64) -> Nanos {
    Nanos::new(1000 * micros)
}

const BOUNDS: [Nanos; 14] = [
    micros(10),
    micros(25),
    micros(50),
    micros(100),
    micros(250),
    micros(500),
    micros(1000),
    micros(2500),
    micros(5000),
    micros(10_000),
    micros(25_000),
    micros(50_000),
    micros(100_000),
    micros(1_000_000),
];

/// How long something took, over many times. Numbers only grow.
///
/// ```
/// use tollgate::{Facts, Limiter};
///
/// let limiter = Limiter::from_policy("limiters: { all: { rate: 10/s, per: global } }")?;
/// let _permit = limiter.admit_now(&Facts::default());
/// let took = limiter.report().admit_took;
/// assert_eq!(took.count(), 1);
/// for (bound, count) in took.cumulative() {
///     println!("{bound:?} or less: {count}");
/// }
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// How many took so long that they are within a bound of [`Timings::bounds`] and beyond the one before it; the last
    /// number is of those beyond all bounds.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// How long all of them took together.
    pub sum: Duration,
}

impl Timings {
    /// The upper bounds of the buckets, but for the last, which has none: from 10 us to 1 s.
    pub fn bounds() -> impl Iterator<Item = Duration> {
        BOUNDS.into_iter().map(Duration::from)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// How many took no longer than each bound, as histograms are told to Prometheus. Beside these,
    /// [`count`](Self::count) is the bucket without a bound.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut count = 0;
        Self::bounds().zip(&self.buckets).map(move |(bound, more)| {
            count += more;
            (bound, count)
        })
    }
}

/// The same, while it is being counted.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct TimingCounts {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
}

impl TimingCounts {
    pub(super) fn add(&self, took: Nanos) {
        let place = BOUNDS.partition_point(|bound| *bound < took);
        if let Some(bucket) = self.buckets.get(place) {
            bucket.fetch_add(1, Ordering::Relaxed);
            self.nanos.fetch_add(took.as_u64(), Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Timings {
        Timings {
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
        }
    }
}
