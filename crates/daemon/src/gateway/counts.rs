//! What the gateway counts. Names for these are in `metrics.rs`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets in which times of answers are counted, in microseconds.
pub(crate) const BOUNDS: [u64; 14] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 75_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    5_000_000, 10_000_000,
];

/// How long something took, counted in buckets.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// Each time is in the first bucket that holds it.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    micros: AtomicU64,
}

impl Durations {
    pub(super) fn record(&self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        if let Some(count) = self.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// The sum in seconds, and how many there are in each bucket.
    pub(crate) fn read(&self) -> (f64, Vec<u64>) {
        let sum = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        (sum, self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect())
    }
}

/// Numbers that only grow, but for those in flight and open.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Connections that were accepted.
    pub(crate) accepted: AtomicU64,
    /// Connections that are open.
    pub(crate) open: AtomicU64,
    /// How often no connection could be accepted.
    pub(crate) not_accepted: AtomicU64,
    /// Connections that ended because of what their client did.
    pub(crate) misbehaved: AtomicU64,
    /// Requests in progress.
    pub(crate) in_flight: AtomicU64,
    /// Requests that servers did not answer, or not to the end.
    pub(crate) upstream_failures: AtomicU64,
    /// Answers by the first digit of their status; those of clients that went away before there was one are the first.
    by_status: [AtomicU64; 6],
    /// Answers by the time that they took.
    took: Durations,
}

impl Counts {
    /// Counts an answer. The status is 0 if there was none.
    pub(super) fn answered(&self, status: u16, took: Duration) {
        // Whatever is above is no success either.
        let class = usize::from(status / 100).min(self.by_status.len() - 1);
        if let Some(count) = self.by_status.get(class) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.took.record(took);
    }

    /// Answers by kind of status.
    pub(crate) fn by_status(&self) -> impl Iterator<Item = (&'static str, u64)> {
        const NAMES: [&str; 6] = ["gone", "1xx", "2xx", "3xx", "4xx", "5xx"];
        NAMES.into_iter().zip(self.by_status.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The sum of all times in seconds, and how many there are in each bucket.
    pub(crate) fn times(&self) -> (f64, Vec<u64>) {
        self.took.read()
    }
}
