//! The limits, the same for everyone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A bucket of `burst` tokens that gets `count` back per `period`.
#[derive(Clone, Copy)]
pub struct Quota {
    pub burst: u64,
    pub count: u64,
    pub period: Duration,
}

/// No subject is asked for often enough to be refused.
pub const ADMITS: Quota = Quota { burst: 1_000, count: 100, period: Duration::from_secs(1) };
/// Each subject is admitted once, and not again while the benchmark runs.
pub const REFUSES: Quota = Quota { burst: 1, count: 1, period: Duration::from_secs(86_400) };
/// The second rate of a request with three limits; `ADMITS` is the first.
pub const ADMITS_PER_HOUR: Quota = Quota { burst: 5_000, count: 5_000, period: Duration::from_secs(3_600) };

/// Leases end by themselves, so nobody has to give them back: at most a few of a subject are held at once.
pub const LEASES: u64 = 1_000;
pub const LEASE_TIME: Duration = Duration::from_secs(60);

/// A lease that nobody has had.
pub fn fresh_lease() -> u128 {
    static TAKEN: AtomicU64 = AtomicU64::new(0);
    u128::from(TAKEN.fetch_add(1, Ordering::Relaxed))
}
