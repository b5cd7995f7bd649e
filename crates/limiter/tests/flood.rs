//! Floods of keys: memory stays under the ceiling, whoever is refused stays refused, whoever is known keeps its
//! count, and newcomers are still decided.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::*;
use tollgate::core::limit::{Op, State};
use tollgate::{Limit, ManualClock, MemoryStore, MemoryStoreBuilder, Quota, RateLimiter};

const MIB: usize = 1 << 20;

/// What a flood may cost beyond the ceiling: the test's own strings, and pages of the allocator.
const SLACK: usize = 4 * MIB;

/// A store, its clock, and the memory that the process had before.
struct Flooded {
    store: Arc<MemoryStore>,
    clock: ManualClock,
    before: usize,
    now: u64,
}

impl Flooded {
    fn new(builder: MemoryStoreBuilder) -> Self {
        let clock = ManualClock::at(at(TODAY));
        let before = resident_bytes();
        let store = Arc::new(builder.clock(clock.clone()).build());
        Self { store, clock, before, now: TODAY }
    }

    fn advance(&mut self, nanos: u64) {
        self.now += nanos;
        self.clock.advance(Duration::from_nanos(nanos));
    }

    /// So many steps: memory stays under the ceiling, and a key that is used up under `hourly` stays so.
    fn flood(&mut self, steps: u64, hourly: &RateLimiter, mut step: impl FnMut(u64)) {
        for n in 0..steps {
            self.advance(10_000);
            step(n);
            if n % 10_000 == 0 {
                assert!(hourly.check("exhausted").is_err());
            }
            if n % 200_000 == 0 {
                self.check_memory();
            }
        }
        self.check_memory();
        let stats = self.store.stats();
        assert!(stats.evictions > 0 && stats.failed_open == 0, "{stats:?}");
    }

    fn check_memory(&self) {
        let stats = self.store.stats();
        assert!(stats.bytes <= stats.max_bytes, "{stats:?}");
        let grown = resident_bytes().saturating_sub(self.before);
        assert!(grown <= stats.max_bytes + SLACK, "grown by {} KiB, {stats:?}", grown / 1024);
    }
}

/// A key that is used all the time during a flood, and what it would have left if it were alone in the world.
struct Hot {
    name: String,
    limit: Limit,
    alone: State,
}

impl Hot {
    fn new(id: u64, spec: Spec) -> Self {
        Self { name: format!("hot {id}"), limit: spec.limit(), alone: spec.limit().fresh() }
    }

    /// Takes one. The flood changes nothing about the answer.
    fn use_one(&mut self, limiter: &RateLimiter, now: u64) {
        let expected = self.limit.apply(Op::Charge, &mut self.alone, at(now), 1.into(), at(now));
        let answer = limiter.check(&*self.name);
        assert_eq!(answer.map_err(|refused| refused.outcome), Ok(expected), "{}", self.name);
    }
}

/// Fifty seconds of a flood of a million new keys per second, through a store of the usual size. With thirty calls
/// a minute each key matters for two seconds, so two millions of them matter at any moment: more than
/// there is exact room for, so that many are evicted.
#[test]
fn flood_of_fifty_million_keys_stays_under_the_ceiling_and_frees_nobody() {
    const KEYS: u64 = 50_000_000;
    const HOT: u64 = 100;
    /// Each hot key takes one every two seconds, just as much as it gets back.
    const PAUSE: u64 = 1_000_000 / HOT;
    let mut flooded = Flooded::new(MemoryStore::builder().max_bytes(64 * MIB));
    let spec = Spec::new(Bucket, 30, 30, 60 * SECOND);
    let limiter = RateLimiter::builder(spec.quota()).store(&flooded.store).build();
    let hourly = RateLimiter::per_hour(1).store(&flooded.store).build();
    let mut hot: Vec<Hot> = (0..HOT).map(|id| Hot::new(id, spec)).collect();
    for hot in &mut hot {
        (0..10).for_each(|_| hot.use_one(&limiter, TODAY));
    }
    for id in 0..HOT {
        assert!(hourly.check(("exhausted", id)).is_ok());
    }
    let flood = |n: u64| match n % 16 {
        0 => limiter.check(format!("user-{n}@example.com")).is_ok(),
        _ => limiter.check(n).is_ok(),
    };
    // Two threads flood, one of them moves the clock and looks after the others.
    let admitted = thread::scope(|scope| {
        let other = scope.spawn(|| (0..KEYS / 2).filter(|n| flood(2 * n + 1)).count());
        let mut admitted = 0;
        for n in 0..KEYS / 2 {
            flooded.advance(2000);
            admitted += usize::from(flood(2 * n));
            if n % PAUSE == 0 {
                let id = n / PAUSE % HOT;
                hot[id as usize].use_one(&limiter, flooded.now);
                assert!(hourly.check(("exhausted", id)).is_err(), "let in by the flood at {n}");
            }
            if n % 2_500_000 == 0 {
                flooded.check_memory();
            }
        }
        admitted + other.join().unwrap()
    });
    flooded.check_memory();
    for id in 0..HOT {
        assert!(hourly.check(("exhausted", id)).is_err(), "{id} was let in by the flood");
    }
    assert!(admitted as u64 > KEYS / 100 * 99, "newcomers are let in: {admitted} of {KEYS} passed");
    assert!(flooded.store.stats().evictions > 0, "it was a flood");
    // An hour later nothing of it is left.
    flooded.advance(HOUR);
    assert!((0..HOT).all(|id| hourly.check(("exhausted", id)).is_ok()));
    assert_eq!(limiter.peek("newcomer", 1).unwrap().remaining, 30);
}

/// The same where keys matter for long and nothing comes back during the flood: the worst case.
#[test]
fn flood_of_keys_that_all_matter_frees_nobody() {
    const KEYS: u64 = 4_000_000;
    let mut flooded = Flooded::new(MemoryStore::builder().max_bytes(8 * MIB));
    let hourly = RateLimiter::per_hour(1).store(&flooded.store).build();
    for id in 0..1000_u64 {
        assert!(hourly.check(("exhausted", id)).is_ok());
    }
    for n in 0..KEYS {
        flooded.advance(1000);
        let _ = hourly.check(n);
        if n % 1000 == 0 {
            assert!(hourly.check(("exhausted", n / 1000 % 1000)).is_err(), "let in by the flood at {n}");
            // Nor does anybody get two: one who is let in now is refused now.
            let newcomer = ("newcomer", n);
            let _ = hourly.check(newcomer);
            assert!(hourly.check(newcomer).is_err());
        }
    }
    flooded.check_memory();
    flooded.advance(HOUR);
    assert!((0..1000_u64).all(|id| hourly.check(("exhausted", id)).is_ok()));
}

/// Whole keys count by their length, and so does what the allocator adds.
#[test]
fn flood_of_exact_keys_stays_under_the_ceiling() {
    const KEYS: u64 = 2_000_000;
    let mut flooded = Flooded::new(MemoryStore::builder().max_bytes(32 * MIB).exact_keys());
    let limiter = RateLimiter::per_minute(10).store(&flooded.store).build();
    let hourly = RateLimiter::per_hour(1).store(&flooded.store).build();
    assert!(hourly.check("exhausted").is_ok());
    flooded.flood(KEYS, &hourly, |n| {
        let _ = match n % 4 {
            0 => limiter.check(format!("{n}-{}", "x".repeat((n % 200) as usize))),
            _ => limiter.check(n),
        };
    });
}

/// Logs live in maps and are large.
#[test]
fn flood_of_logs_stays_under_the_ceiling() {
    const KEYS: u64 = 2_000_000;
    let mut flooded = Flooded::new(MemoryStore::builder().max_bytes(32 * MIB));
    let limiter = RateLimiter::builder(Quota::per_minute(10).sliding_log()).store(&flooded.store).build();
    let hourly = RateLimiter::builder(Quota::per_hour(1).sliding_log()).store(&flooded.store).build();
    assert!(hourly.check("exhausted").is_ok());
    flooded.flood(KEYS, &hourly, |n| {
        let _ = limiter.check(n);
        // Some call again and again: their logs grow.
        let _ = limiter.check(n % 1000);
    });
}

/// First many small states, then few large ones: what the first left behind counts too.
#[test]
fn flood_of_small_logs_then_of_large_ones_stays_under_the_ceiling() {
    let mut flooded = Flooded::new(MemoryStore::builder().max_bytes(32 * MIB));
    let small = RateLimiter::builder(Quota::per_second(10).sliding_log()).store(&flooded.store).build();
    let large = RateLimiter::builder(Quota::per_hour(10_000).sliding_log()).store(&flooded.store).build();
    for n in 0..500_000_u64 {
        flooded.advance(1000);
        let _ = small.check(n);
    }
    flooded.check_memory();
    flooded.advance(60 * SECOND);
    for n in 0..200_000_u64 {
        flooded.advance(1000);
        let _ = large.check(n % 200);
    }
    flooded.check_memory();
    assert_eq!(flooded.store.stats().failed_open, 0);
}

/// Keys of a megabyte are no larger in the table than others, and as exact keys they stay under the ceiling too.
#[test]
fn flood_of_keys_of_a_megabyte_stays_under_the_ceiling() {
    for exact in [false, true] {
        let builder = MemoryStore::builder().max_bytes(16 * MIB);
        let mut flooded = Flooded::new(if exact { builder.exact_keys() } else { builder });
        let limiter = RateLimiter::per_minute(10).store(&flooded.store).build();
        for left in (0..10).rev() {
            assert_eq!(limiter.check("").unwrap().remaining, left, "the empty key is a key");
        }
        let mut key = vec![b'x'; MIB];
        for n in 0..300_u64 {
            flooded.advance(1000);
            key[..8].copy_from_slice(&n.to_le_bytes());
            // Where whole keys do not fit, newcomers share what is left and may be refused.
            assert!(limiter.check(&*key).is_ok() || exact, "{n}");
        }
        flooded.check_memory();
        assert_eq!(flooded.store.stats().failed_open, 0, "exact: {exact}: somebody could be forgotten");
    }
}
