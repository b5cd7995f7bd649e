//! The utilization that the protected service reports.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::{Nanos, Timestamp};

/// No report yet.
const NONE: u64 = u64::MAX;

/// The last report, and when it came.
#[derive(Debug)]
pub(super) struct Report {
    ppm: AtomicU64,
    at: AtomicU64,
}

impl Default for Report {
    fn default() -> Self {
        Self { ppm: AtomicU64::new(NONE), at: AtomicU64::new(0) }
    }
}

impl Report {
    // Two words without a lock: of reports at the same moment one may lend its time to the other's number, and both
    // are of that moment. The number goes first, so that it is never older than its time.
    pub(super) fn set(&self, ppm: u64, now: Timestamp) {
        self.ppm.store(ppm.min(NONE - 1), Ordering::Relaxed);
        self.at.fetch_max(now.as_nanos(), Ordering::Release);
    }

    pub(super) fn get(&self, stale_after: Nanos, now: Timestamp) -> Option<u64> {
        let at = Timestamp::from_nanos(self.at.load(Ordering::Acquire));
        let ppm = self.ppm.load(Ordering::Relaxed);
        (ppm != NONE && now.since(at) < stale_after).then_some(ppm)
    }
}
