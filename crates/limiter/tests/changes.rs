//! A quota that changes all the time. In a file of its own, because it measures the process.

mod common;

use std::time::Duration;

use common::*;
use tollgate::{ManualClock, MemoryStore, Quota, RateLimiter};

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
