//! A quota that changes all the time. In a file of its own, because it measures the process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::time::Duration;

use crate::common::*;
use tollgate::core::limit::{Ask, Op};
use tollgate::core::store::Charge;
use tollgate::{Key, ManualClock, MemoryStore, Quota, RateLimiter};

/// A quota that is adjusted all the time, as by an automatic controller, costs neither time nor limits, and little
/// memory: every change leaves a record behind.
#[test]
fn a_quota_may_be_changed_every_second_for_a_day() {
    let clock = ManualClock::at(at(TODAY));
    let limiter = RateLimiter::per_minute(10).clock(clock.clone()).build();
    let before = resident_bytes();
    for change in 0..86_400_u64 {
        clock.advance(Duration::from_secs(1));
        limiter.set_quota(Quota::per_minute(10 + change % 2)).unwrap();
        if change % 1000 == 0 {
            // Deciding does not walk through all that ever was.
            let passed = (0..100).filter(|_| limiter.check(change).is_ok()).count();
            assert_eq!(passed, 10, "after {change} changes");
        }
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 256 * 86_400, "grown by {grown} bytes");
    assert_eq!(limiter.store().stats().failed_open, 0);
}

/// Found by a reader: a new key walked through every change that its neighbours had not seen, 22 ms after 30,000 of them.
#[test]
fn new_keys_do_not_pay_for_changes_that_others_have_not_seen() {
    let clock = ManualClock::at(at(TODAY));
    let store = MemoryStore::builder().max_bytes(1 << 20);
    let limiter = RateLimiter::per_day(10).own_store(store).clock(clock.clone()).build();
    for key in 0..60_000_u64 {
        let _ = limiter.check(key);
    }
    for change in 0..30_000_u64 {
        limiter.set_quota(Quota::per_day(10 + change % 2)).unwrap();
    }
    // At what it cost before, this would take a quarter of an hour.
    for key in 60_000..100_000_u64 {
        let _ = limiter.check(key);
    }
    assert_eq!(limiter.store().stats().failed_open, 0);
}

/// Found by a reader: the first call of a key grew with the number of limits of its family, and making them known with its square.
#[test]
fn neither_new_keys_nor_new_limits_pay_for_other_limits_of_their_family() {
    let store = MemoryStore::builder().max_bytes(1 << 20).build();
    let limit = |count: u64| Quota::per_day(count).limit().unwrap();
    // At what it cost before, this would take minutes, and what follows longer.
    let rules: Vec<_> = (1..=50_000).map(|count| store.define("it", limit(count))).collect();
    for key in 0..100_000_u64 {
        // Some are evicted, under ever other limits.
        let rule = rules[key as usize % rules.len()];
        let outcome = key.with(|key| store.decide(Op::Charge, Charge { rule, key, ask: Ask::from(1) }, None));
        assert!(outcome.unwrap().allowed || key > 40_000);
    }
    assert_eq!(store.define("it", limit(50_000)), rules[49_999]);
}
