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
    at: Timestamp,
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

    /// One that has begun waits no more.
    pub(super) fn end(&self, begun: Timestamp) {
        let mut waiting = self.waiting.lock();
        waiting.count = waiting.count.saturating_sub(1);
        waiting.begun = waiting.begun.saturating_sub(begun.as_nanos().into());
    }

    /// How many requests have no answer yet, and for how long they have waited, in the mean.
    fn waited(&self, now: Timestamp) -> (u64, u64) {
        let Waiting { count, begun } = *self.waiting.lock();
        let mean = begun.checked_div(count.into()).and_then(|mean| u64::try_from(mean).ok());
        (count, mean.map_or(0, |begun| now.as_nanos().saturating_sub(begun)))
    }

    /// Utilization by the average since `seen`. Those that have waited for longer than answers take count as well: a service that has
    /// stopped is not idle. A few that wait for minutes, because that is what they ask for, do not outweigh all others: each counts for
    /// no more than it has waited since the last sample, or than would be far too long. A request that is being recorded meanwhile may be in the sum before
    /// it is counted, one sample early; it is never in two sums or in none.
    pub(super) fn sample(&self, seen: &mut Seen, target: Nanos, now: Timestamp) -> Option<u64> {
        let count = self.count.load(Ordering::Acquire);
        let sum = self.sum.load(Ordering::Relaxed);
        let requests = count.wrapping_sub(seen.count);
        let since_last = now.since(std::mem::replace(&mut seen.at, now)).as_u64();
        let latencies = match requests {
            // `seen.sum` stays: a latency that is not counted yet waits for its count.
            0 => 0,
            _ => u128::from(sum.wrapping_sub(std::mem::replace(&mut seen.sum, sum))),
        };
        seen.count = count;
        let (waiting, waited) = self.waited(now);
        let is_longer = u128::from(waited) * u128::from(requests) > latencies || requests == 0;
        if waiting == 0 || !is_longer {
            return share_of(target, latencies, requests.max(1));
        }
        let each = waited.min(since_last.max(target.as_u64().saturating_mul(2)));
        share_of(target, latencies + u128::from(each) * u128::from(waiting), requests.saturating_add(waiting))
    }
}

/// Utilization by so many latencies, and their sum.
fn share_of(target: Nanos, latencies: u128, requests: u64) -> Option<u64> {
    let of_target = latencies * u128::from(AT_TARGET_PPM);
    let on_target = u128::from(requests) * u128::from(target.as_u64());
    Some(of_target.checked_div(on_target)?.min(MOST_PPM.into()) as u64)
}
