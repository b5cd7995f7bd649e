//! Plans and changed quotas: what a key has used stays used, whichever way it moves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::time::Duration;

use crate::common::*;
use tollgate::{ManualClock, MemoryStore, Quota, RateLimiter, Timestamp};

/// A limiter of two plans, and its clock.
fn free_and_pro(free: Quota, pro: Quota) -> (RateLimiter, ManualClock) {
    let clock = ManualClock::at(at(TODAY));
    let limiter = RateLimiter::builder(free).plan("pro", pro).clock(clock.clone()).build();
    (limiter, clock)
}

#[test]
fn moving_up_and_down_keeps_what_was_used() {
    let (free, _) = free_and_pro(Quota::per_hour(50), Quota::per_hour(1000));
    let pro = free.plan("pro").unwrap();
    let _ = free.check_n("alice", 30).unwrap();
    assert_eq!(pro.peek("alice", 1).unwrap().remaining, 970, "up: 30 of 1000 are used");
    let _ = pro.check_n("alice", 10).unwrap();
    assert_eq!(free.peek("alice", 1).unwrap().remaining, 10, "down: 40 of 50 are used");
    let _ = pro.check_n("alice", 500).unwrap();
    assert!(free.check("alice").is_err(), "down: all of 50 is used");
    assert_eq!(free.peek("bob", 1).unwrap().remaining, 50, "nobody else's");
    assert_eq!(free.plan_or_default("gold").peek("bob", 1).unwrap().remaining, 50);
}

/// For every pair of algorithms: a key that flips between two plans gets no more than it would get under the more
/// generous one.
#[test]
fn a_hundred_flips_of_the_plan_give_no_fresh_burst() {
    for free in RATES {
        for pro in RATES {
            let (free_spec, pro_spec) = (Spec::new(free, 10, 10, HOUR), Spec::new(pro, 10, 10, 2 * HOUR));
            let (limiter, clock) = free_and_pro(free_spec.quota(), pro_spec.quota());
            let plans = [&limiter, limiter.plan("pro").unwrap()];
            let mut admitted = 0;
            for flip in 0..100 {
                // Spaced logs want a pause; it is far too short for anything to come back.
                clock.advance(Duration::from_secs(1));
                while plans[flip % 2].check("alice").is_ok() {
                    admitted += 1;
                }
            }
            assert!(admitted <= 10, "{free:?} and {pro:?}: {admitted} of 10 in 100 seconds");
            assert_eq!(limiter.store().stats().failed_open, 0, "{free:?} and {pro:?}");
        }
    }
}

#[test]
fn a_hundred_changes_of_the_quota_give_no_fresh_burst() {
    for one in RATES {
        for other in RATES {
            let quotas = [Spec::new(one, 10, 10, HOUR).quota(), Spec::new(other, 10, 10, 2 * HOUR).quota()];
            let clock = ManualClock::at(at(TODAY));
            let limiter = RateLimiter::builder(quotas[0]).clock(clock.clone()).build();
            let mut admitted = 0;
            for flip in 1..=100 {
                clock.advance(Duration::from_secs(1));
                while limiter.check("alice").is_ok() {
                    admitted += 1;
                    assert!(admitted <= 10, "{one:?} and {other:?}: {admitted} of 10 after {flip} changes");
                }
                limiter.set_quota(quotas[flip % 2]).unwrap();
            }
            assert_eq!(limiter.store().stats().failed_open, 0, "{one:?} and {other:?}");
        }
    }
}

#[test]
fn a_changed_quota_keeps_what_was_used() {
    for kind in RATES {
        let clock = ManualClock::at(at(TODAY));
        let limiter = RateLimiter::builder(Spec::new(kind, 10, 1, HOUR).quota()).clock(clock.clone()).build();
        let _ = limiter.check_n("alice", 6).unwrap();
        limiter.set_quota(Spec::new(kind, 20, 1, HOUR).quota()).unwrap();
        let left = |name| limiter.peek(name, 1).unwrap_or_else(|refused| refused.outcome).remaining;
        assert_eq!(left("alice"), 14, "{kind:?}: raised");
        limiter.set_quota(Spec::new(kind, 5, 1, HOUR).quota()).unwrap();
        assert_eq!(left("alice"), 0, "{kind:?}: lowered");
        assert_eq!(left("bob"), 5, "{kind:?}: nobody else's");
    }
}

#[test]
fn a_quota_keeps_what_was_used_from_bucket_to_log_and_back() {
    let clock = ManualClock::at(at(TODAY));
    let limiter = RateLimiter::per_hour(10).clock(clock.clone()).build();
    let _ = limiter.check_n("alice", 6).unwrap();
    limiter.set_quota(Quota::per_hour(10).sliding_log()).unwrap();
    assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 4);
    let _ = limiter.check_n("alice", 3).unwrap();
    assert_eq!(limiter.check_n("alice", 2).unwrap_err().outcome.remaining, 1);
    limiter.set_quota(Quota::per_hour(10)).unwrap();
    assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 1);
    assert_eq!(limiter.store().stats().failed_open, 0);
    clock.advance(Duration::from_secs(3600));
    assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 10);
}

/// A limiter that is changed to a log must have room for the logs of more than a key or two.
#[test]
fn a_bucket_limiter_that_becomes_a_log_limits_everybody() {
    let clock = ManualClock::at(at(TODAY));
    let limiter = RateLimiter::per_hour(10).clock(clock.clone()).build();
    limiter.set_quota(Quota::per_hour(2).sliding_log()).unwrap();
    for id in 0..10_000_u32 {
        assert!(limiter.check(id).is_ok() && limiter.check(id).is_ok());
        assert!(limiter.check(id).is_err(), "key {id} is not limited");
    }
    assert_eq!(limiter.store().stats().failed_open, 0);
}

/// States are converted when they are next seen. That must not depend on when that is: between the change and
/// then they live under the new quota, and under each quota for as long as it was in force.
#[test]
fn a_key_that_is_not_seen_lives_under_the_quotas_in_force() {
    let clock = ManualClock::at(at(TODAY));
    // 7 per second: a rate that is no whole number of nanoseconds per call.
    let limiter = RateLimiter::per_hour(100).clock(clock.clone()).build();
    let _ = limiter.check_n("alice", 100).unwrap();
    limiter.set_quota(Quota::per_second(7).burst(100)).unwrap();
    clock.advance(Duration::from_secs(10));
    assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 70, "10 seconds of 7 each");

    // A slow quota for an hour, then a fast one: what is back is what the slow one gave.
    let _ = limiter.check_n("bob", 100).unwrap();
    limiter.set_quota(Quota::per_day(24).burst(100)).unwrap();
    clock.advance(Duration::from_secs(3600));
    limiter.set_quota(Quota::per_second(100)).unwrap();
    assert_eq!(limiter.peek("bob", 1).unwrap().remaining, 1);
}

/// What is idle under a quota that is no longer in force may be far from idle under the one that is.
#[test]
fn a_key_is_not_forgotten_because_the_old_quota_would_have_refilled_it() {
    for exact in [false, true] {
        let clock = ManualClock::at(at(TODAY));
        let builder = MemoryStore::builder().max_bytes(16 << 10);
        let builder = if exact { builder.exact_keys() } else { builder };
        let limiter = RateLimiter::per_second(10).own_store(builder.clock(clock.clone())).build();
        let _ = limiter.check_n("alice", 10).unwrap();
        limiter.set_quota(Quota::per_hour(10)).unwrap();
        // By the old quota she would be idle by now, and others come.
        clock.advance(Duration::from_secs(2));
        for id in 0..40_u32 {
            let _ = limiter.check(id).unwrap();
        }
        assert!(limiter.check("alice").is_err(), "exact: {exact}");
    }
}

#[test]
fn reset_starts_afresh_under_every_plan() {
    let clock = ManualClock::at(at(TODAY));
    let limiter = RateLimiter::per_hour(1)
        .plan("pro", Quota::per_hour(5))
        .plan_of("gold", [Quota::per_hour(10), Quota::per_day(20), Quota::per_day(30).sliding_log()])
        .clock(clock)
        .build();
    let gold = limiter.plan("gold").unwrap();
    let _ = gold.check_n("alice", 10).unwrap();
    limiter.reset("alice");
    assert!(limiter.check("alice").is_ok());
    limiter.reset("alice");
    assert_eq!(limiter.plan("pro").unwrap().peek("alice", 1).unwrap().remaining, 5);
    for _ in 0..5 {
        assert!(gold.check_n("alice", 10).is_ok(), "afresh in all of the plan's limits");
        limiter.reset("alice");
    }
}

/// A log that was counted in parts may become one that is not, and the reverse, with entries of both in it.
#[test]
fn logs_of_different_grains_mix() {
    let clock = ManualClock::at(at(TODAY + 1));
    let exact = Quota::per(10, Duration::from_nanos(60)).sliding_log();
    let coarse = Quota::per(10, Duration::from_nanos(60)).sub_windows(3);
    let limiter = RateLimiter::builder(exact).clock(clock.clone()).build();
    for step in 0..10_000_u64 {
        if step % 7 == 0 {
            limiter.set_quota(if step % 2 == 0 { exact } else { coarse }).unwrap();
        }
        clock.advance(Duration::from_nanos(step % 11));
        if let Err(refused) = limiter.check_n("alice", 1 + step % 3) {
            let wait = refused.retry_after().unwrap();
            assert!(wait <= Duration::from_nanos(80), "{wait:?} is longer than any window");
        }
    }
}

/// Found by a reader: looking, or being refused, under a smaller plan clipped what was used under a larger one.
#[test]
fn looking_and_being_refused_under_one_plan_takes_nothing_from_another() {
    let stores = [MemoryStore::builder(), MemoryStore::builder().exact_keys()];
    for store in stores {
        let limiter = RateLimiter::per_hour(10)
            .plan("pro", Quota::per_hour(1000))
            .own_store(store.max_bytes(1 << 20))
            .build();
        let pro = limiter.plan("pro").unwrap();
        let now = Timestamp::from_secs(100);
        let _ = pro.check_n_at("alice", 1000, now).unwrap();
        assert!(limiter.peek_at("alice", 1, now).is_err());
        assert!(limiter.check_at("alice", now).is_err());
        assert!(pro.peek_at("alice", 1, now).is_err());
        assert!(pro.check_at("alice", now).is_err());
    }
}

#[test]
fn a_plan_with_the_same_quota_as_another_changes_for_itself() {
    let limiter = RateLimiter::per_hour(50).plan("standard", Quota::per_hour(50)).build();
    limiter.set_quota(Quota::per_hour(10)).unwrap();
    assert_eq!(limiter.plan("standard").unwrap().check("alice").unwrap().remaining, 49);
    assert_eq!(limiter.check("bob").unwrap().remaining, 9);
}

/// Found by a reader: a key that had used more than a smaller plan holds was told a wait that was too short, time and again. What
/// it has used ages by the larger plan until it passes under the smaller one, and so must the wait.
#[test]
fn a_key_that_comes_down_from_a_larger_plan_is_told_how_long_that_takes() {
    let stores = || [MemoryStore::builder(), MemoryStore::builder().exact_keys()];
    for (small, large) in RATES.into_iter().flat_map(|small| RATES.map(|large| (small, large))) {
        for (exact, store) in stores().into_iter().enumerate() {
            let clock = ManualClock::at(at(TODAY + 17 * SECOND));
            let quotas = [(small, 10, HOUR), (large, 100, HOUR)];
            let [of_small, of_large] =
                quotas.map(|(kind, count, per)| Spec::new(kind, count, count, per).quota());
            let limiter = RateLimiter::builder(of_small)
                .plan("pro", of_large)
                .own_store(store.max_bytes(1 << 20))
                .clock(clock.clone())
                .build();
            let pro = limiter.plan("pro").unwrap();
            // Spaced logs want pauses.
            for _ in 0..400 {
                let _ = pro.check_n("alice", 10);
                clock.advance(Duration::from_secs(1));
            }
            let context = format!("{small:?} below {large:?}, exact keys: {exact}");
            let refused = limiter.check("alice").expect_err(&context);
            let Some(wait) = refused.retry_after() else { panic!("{context}: never") };
            // Of logs with different grains it is the longest that it can take.
            if small.relatives().contains(&large) && WORDS.contains(&small) || (small, large) == (Log, Log) {
                clock.advance(wait - Duration::from_nanos(1));
                // Refused calls that count would put it off.
                assert!(limiter.peek("alice", 1).is_err(), "{context}: sooner than {wait:?}");
                clock.advance(Duration::from_nanos(1));
            } else {
                clock.advance(wait);
            }
            if small != CountingLog {
                let _ = limiter
                    .check("alice")
                    .unwrap_or_else(|again| panic!("{context}: {wait:?}, then {again}"));
            }
        }
    }
}
