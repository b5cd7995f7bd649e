//! The latencies of requests, against a target.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::{Nanos, Timestamp};

/// Utilization at exactly the target.
const AT_TARGET_PPM: u64 = 800_000;

const MOST_PPM: u64 = 2_000_000;

/// A longer latency counts as a day, so that a broken one cannot turn the sum over.
const LONGEST: u64 = 24 * 3600 * 1_000_000_000;

/// All latencies ever recorded. They only grow (and wrap): a sample takes differences, so that no request is lost
/// between a reading and a reset.
#[derive(Debug, Default)]
#[repr(align(64))] // written by every request, away from what every request reads
pub(super) struct Latencies {
    sum: AtomicU64,
    count: AtomicU64,
    waiting: Mutex<Waiting>,
}

/// Requests that have no answer yet, and the sum of when they began.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    count: u64,
    begun: u128,
}

/// Where a sample left off.
#[derive(Debug, Default)]
pub(super) struct Seen {
    sum: u64,
    count: u64,
}

impl Latencies {
    #[inline]
    pub(super) fn record(&self, latency: Nanos) {
        // The sum first: whoever sees the count has the latency in the sum.
        self.sum.fetch_add(latency.as_u64().min(LONGEST), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// A request begins, and waits for its answer.
    pub(super) fn begin(&self, now: Timestamp) {
        let mut waiting = self.waiting.lock();
        waiting.count += 1;
        waiting.begun += u128::from(now.as_nanos());
    }

    /// One that has begun has its answer, or will never have one.
    pub(super) fn end(&self, begun: Timestamp, now: Timestamp) {
        let mut waiting = self.waiting.lock();
        waiting.count = waiting.count.saturating_sub(1);
        waiting.begun = waiting.begun.saturating_sub(begun.as_nanos().into());
        drop(waiting);
        self.record(now.since(begun));
    }

    /// For how long requests without an answer have waited, in the mean. Nothing, if there are none.
    fn waited(&self, now: Timestamp) -> u64 {
        let Waiting { count, begun } = *self.waiting.lock();
        let mean = begun.checked_div(count.into()).and_then(|mean| u64::try_from(mean).ok());
        mean.map_or(0, |begun| now.as_nanos().saturating_sub(begun))
    }

    /// Utilization by the average since `seen`. Where nothing was answered since then, those count that wait for an answer: a service
    /// that has stopped is not idle. A request that is being recorded meanwhile may be in the sum before
    /// it is counted, one sample early; it is never in two sums or in none.
    pub(super) fn sample(&self, seen: &mut Seen, target: Nanos, now: Timestamp) -> Option<u64> {
        let count = self.count.load(Ordering::Acquire);
        let sum = self.sum.load(Ordering::Relaxed);
        let requests = count.wrapping_sub(seen.count);
        if requests == 0 {
            // `seen.sum` stays: a latency that is not counted yet waits for its count.
            return share_of(target, self.waited(now).into(), 1);
        }
        let latencies = u128::from(sum.wrapping_sub(seen.sum));
        *seen = Seen { sum, count };
        share_of(target, latencies, requests)
    }
}

/// Utilization by so many latencies, and their sum.
fn share_of(target: Nanos, latencies: u128, requests: u64) -> Option<u64> {
    let of_target = latencies * u128::from(AT_TARGET_PPM);
    let on_target = u128::from(requests) * u128::from(target.as_u64());
    Some(of_target.checked_div(on_target)?.min(MOST_PPM.into()) as u64)
}
