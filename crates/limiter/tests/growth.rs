//! The store grows with use: few keys take little memory, growth loses no count, and keys that come and go do not
//! make it larger.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::common::*;
use tollgate::core::concurrency::LeaseId;
use tollgate::core::limit::{Ask, Op};
use tollgate::core::store::Charge;
use tollgate::{Key, Limit, ManualClock, MemoryStore, Nanos, Quota, RateLimiter};

/// What governor takes for each key, measured the same way: resident memory after so many keys, less that before.
const GOVERNOR: [(u64, u64); 3] = [(1000, 315), (10_000, 97), (100_000, 79)];

#[test]
fn few_keys_take_no_more_memory_than_in_governor() {
    for (keys, bytes) in GOVERNOR {
        let resident = resident_in_child(1, keys);
        assert!(resident <= keys * bytes, "{keys} keys take {} bytes each", resident / keys);
        let limiter = limiter_with(keys);
        let stats = limiter.store().stats();
        assert!(stats.bytes as u64 <= keys * bytes, "{keys} keys: {stats:?}");
        assert!(stats.evictions <= keys / 2000, "{keys} keys: {stats:?}");
    }
}

#[test]
fn twenty_small_limiters_take_little_memory() {
    let resident = resident_in_child(20, 1000);
    assert!(resident <= 20 * 1000 * 200, "{} KiB", resident >> 10);
}

/// In the first outage of the shared store many callers are decided by a memory store that was never used before. They wait
/// while it reserves memory: reserving all of it at once took up to 50 ms, for a deadline of 20 ms.
#[test]
fn the_first_outage_of_a_process_reserves_little_memory() {
    let resident = measured_in_child("growth::child_that_decides_its_first_requests", &[]);
    assert!(resident <= 512 << 10, "{} KiB", resident >> 10);
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn child_that_decides_its_first_requests() {
    let second = Nanos::new(SECOND);
    let limits =
        [Limit::token_bucket(50, 50, second), Limit::sliding_log(10, second), Limit::leases(20, second)];
    let decide = |callers: u64| {
        let store = MemoryStore::new();
        let rules = limits.clone().map(|limit| store.define("per caller", limit.unwrap()));
        for caller in 0..callers {
            let ask = Ask { lease: LeaseId(caller.into()), ..Ask::from(1) };
            for rule in rules {
                let outcome = caller.with(|key| store.decide(Op::Charge, Charge { rule, key, ask }, None));
                assert!(outcome.unwrap().allowed);
            }
        }
        store
    };
    print_resident_bytes(|| decide(1), || decide(64));
}

fn limiter_with(keys: u64) -> RateLimiter {
    let limiter = RateLimiter::per_hour(5).build();
    for key in 0..keys {
        assert!(limiter.check(key).is_ok());
    }
    limiter
}

/// Bytes that become resident in a fresh process when it makes so many limiters and uses so many keys of each.
fn resident_in_child(limiters: u64, keys: u64) -> u64 {
    let counts = [("GROWTH_LIMITERS", limiters.to_string()), ("GROWTH_KEYS", keys.to_string())];
    measured_in_child("growth::child_that_measures_its_memory", &counts)
}

/// What a test prints that runs in a process of its own.
fn measured_in_child(test: &str, variables: &[(&str, String)]) -> u64 {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--ignored", "--nocapture"])
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .output()
        .unwrap();
    let output = String::from_utf8(child.stdout).unwrap();
    let bytes = output.split_once("resident bytes: ").unwrap_or_else(|| panic!("{output}")).1;
    bytes.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
#[ignore = "runs in a process of its own, started by the tests above"]
fn child_that_measures_its_memory() {
    let of = |name: &str| std::env::var(name).map_or(1, |value| value.parse::<u64>().unwrap());
    let limiters = || -> Vec<RateLimiter> {
        (0..of("GROWTH_LIMITERS")).map(|_| limiter_with(of("GROWTH_KEYS"))).collect()
    };
    print_resident_bytes(|| limiter_with(1), limiters);
}

/// Prints how many bytes become resident by what is made. Whatever is set up once for a process does not count: `first` does
/// that.
#[allow(clippy::print_stdout, reason = "the parent process reads it")]
fn print_resident_bytes<F, M>(first: impl FnOnce() -> F, made: impl FnOnce() -> M) {
    drop(first());
    let before = anonymous_bytes();
    let made = made();
    println!("resident bytes: {}", anonymous_bytes() - before);
    drop(made);
}

/// Resident memory without files: code that runs for the first time does not count.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.strip_suffix("kB"));
    kib.unwrap().trim().parse::<u64>().unwrap() << 10
}

/// Each key has a count of its own, and keeps it while the table becomes hundreds of times as large.
#[test]
fn growth_keeps_every_count() {
    for bytes in [64 << 10, 1 << 20, 64 << 20] {
        let clock = ManualClock::at(at(TODAY));
        let store = Arc::new(MemoryStore::builder().max_bytes(bytes).clock(clock).fixed_seed(7).build());
        let limiter = RateLimiter::per_hour(100).store(&store).build();
        let keys = (bytes as u64 / 128).min(30_000);
        let start = store.stats().bytes;
        for key in 0..keys {
            assert!(limiter.check_n(key, 1 + key % 90).is_ok(), "{key} of {bytes}");
        }
        for key in 0..keys {
            let left = limiter.peek(key, 1).unwrap().remaining;
            assert_eq!(left, 100 - (1 + key % 90), "{key} of {keys} in {bytes} bytes");
        }
        let stats = store.stats();
        assert_eq!(stats.evictions, 0, "{stats:?}");
        assert_eq!(store.count_keys(None), keys as usize);
        assert!(stats.bytes > start && stats.bytes <= bytes, "from {start}: {stats:?}");
    }
}

/// Threads put and charge the same keys while the table grows under them: every charge is counted once.
#[test]
fn stress_growth_loses_no_charge() {
    const THREADS: u64 = 4;
    const KEYS: u64 = 60_000;
    for round in 0..3 {
        let clock = ManualClock::at(at(TODAY));
        let store = Arc::new(MemoryStore::builder().clock(clock).build());
        let limiter = RateLimiter::per_hour(1000).store(&store).build();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let limiter = &limiter;
                scope.spawn(move || {
                    for step in 0..KEYS {
                        // All of them are near each other, and the last keys are charged again.
                        let key = (step + 7 * thread) % KEYS;
                        assert!(limiter.check(key).is_ok());
                        assert!(limiter.check(key / 2).is_ok());
                    }
                });
            }
        });
        // What had to be evicted counts as more, not as less.
        let mut exact = 0;
        for key in 0..KEYS {
            let twice = if key < KEYS / 2 { 2 } else { 0 };
            let expected = 1000 - THREADS * (1 + twice);
            let left = limiter.peek(key, 1).unwrap().remaining;
            assert!(left <= expected, "{key} in round {round}: {left} instead of {expected}");
            exact += u64::from(left == expected);
        }
        // A thread that finds no slot while another one makes the table grow has to evict.
        let evictions = store.stats().evictions;
        assert!(evictions <= KEYS / 1000, "{evictions} in round {round}");
        assert!(exact == KEYS || evictions > 0, "{exact} of {KEYS} in round {round}");
    }
}

/// A thousand keys are in use at any moment, and each for a short time: others take their slots.
#[test]
fn keys_that_come_and_go_do_not_make_the_store_grow() {
    let clock = ManualClock::at(at(TODAY));
    let store = Arc::new(MemoryStore::builder().clock(clock.clone()).build());
    // Idle a second later.
    let limiter = RateLimiter::builder(Quota::per_second(1)).store(&store).build();
    for key in 0..1_000_000_u64 {
        clock.advance(Duration::from_millis(1));
        assert!(limiter.check(key).is_ok());
    }
    let stats = store.stats();
    assert!(stats.bytes < 200 << 10, "{stats:?}");
    assert_eq!(stats.evictions, 0);
}

/// Logs and buckets draw from one pool: whichever is in use can have most of it, and leaves some to the other.
/// With a limit that high a state is idle at once. If other keys took its slot each time, every call would be a key's first,
/// which takes many times as long.
#[test]
fn idle_keys_that_come_back_soon_keep_their_slots() {
    let clock = ManualClock::at(at(TODAY));
    let store = Arc::new(MemoryStore::builder().clock(clock.clone()).build());
    let limiter = RateLimiter::builder(Quota::per_second(1_000_000_000)).store(&store).build();
    for _ in 0..5 {
        for key in 0..100_000_u64 {
            clock.advance(Duration::from_micros(1));
            assert!(limiter.check(key).is_ok());
        }
    }
    let stats = store.stats();
    assert!(stats.bytes > 100_000 * 16, "{stats:?}");
}

#[test]
fn memory_goes_where_it_is_used() {
    const BYTES: usize = 1 << 20;
    let quotas = [Quota::per_hour(3), Quota::per_hour(3).sliding_log()];
    for first in [0, 1] {
        let clock = ManualClock::at(at(TODAY));
        let store = Arc::new(MemoryStore::builder().max_bytes(BYTES).clock(clock).build());
        let limiter = |index: usize| RateLimiter::builder(quotas[index]).store(&store).build();
        let fill = |index: usize| {
            let limiter = limiter(index);
            for key in 0..100_000_u64 {
                let _ = limiter.check(key);
            }
        };
        fill(first);
        let taken = store.stats().bytes;
        // A quarter of what logs may take is left to the allocator.
        assert!(taken >= [BYTES * 3 / 4, BYTES * 9 / 16][first], "{first}: {taken}");
        let keys = store.count_keys(None);
        fill(1 - first);
        let more = store.count_keys(None) - keys;
        assert!(more >= 100, "{more} keys fit beside them");
        let stats = store.stats();
        assert!(stats.bytes <= stats.max_bytes && stats.failed_open == 0, "{stats:?}");
    }
}
