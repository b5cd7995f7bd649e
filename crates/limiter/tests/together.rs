//! Calls that several limiters decide together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Clock, ManualClock, MemoryStore, Quota, RateLimiter, Timestamp, Together};

fn store(clock: &ManualClock) -> Arc<MemoryStore> {
    Arc::new(MemoryStore::builder().max_bytes(1 << 20).clock(clock.clone()).build())
}

#[test]
fn a_call_that_one_limiter_refuses_costs_nothing_in_any_whichever_comes_first() {
    let clock = ManualClock::default();
    let store = store(&clock);
    let wide = RateLimiter::per_hour(100).store(&store).build();
    let narrow = RateLimiter::per_hour(1).store(&store).build();
    let _ = narrow.check("here").unwrap();
    for call in [
        Together::new().charge(&wide, "alice").charge(&narrow, "here"),
        Together::new().charge(&narrow, "here").charge(&wide, "alice"),
    ] {
        let refused = call.check().unwrap_err();
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(3600)));
        assert_eq!(wide.peek("alice", 1).unwrap().remaining, 100);
    }
    clock.advance(Duration::from_secs(3600));
    assert!(Together::new().charge(&wide, "alice").charge(&narrow, "here").check().is_ok());
    assert_eq!(wide.peek("alice", 1).unwrap().remaining, 99);
}

#[test]
fn what_an_earlier_store_took_comes_back_when_a_later_one_refuses() {
    for quota in [
        Quota::per_hour(100),
        Quota::per_hour(100).fixed_window(),
        Quota::per_hour(100).sliding_window(),
        Quota::per_hour(100).sliding_log(),
        Quota::per_hour(100).sub_windows(6),
        Quota::per_hour(100).in_batches(),
    ] {
        let clock = ManualClock::at(Timestamp::from_secs(7200));
        let first = RateLimiter::builder(quota).clock(clock.clone()).build();
        let second = RateLimiter::per_hour(1).clock(clock.clone()).build();
        let call = Together::new().charge_n(&first, "alice", 10).charge(&second, "alice");
        assert!(call.check().is_ok());
        let refused = call.check().unwrap_err();
        assert_eq!(refused.limit, 1, "{quota:?}");
        assert_eq!(first.peek("alice", 1).unwrap().remaining, 90, "{quota:?}");
    }
}

#[test]
fn every_limit_of_a_limiter_and_its_plan_counts() {
    let limiter = RateLimiter::per_second(5)
        .and(Quota::per_hour(6))
        .plan("pro", Quota::per_second(50))
        .clock(ManualClock::default())
        .build();
    assert!(Together::new().charge_n(&limiter, "alice", 5).check().is_ok());
    let refused = Together::new().charge_n(&limiter, "alice", 2).check().unwrap_err();
    assert_eq!(refused.limit, 1);
    let pro = limiter.plan("pro").unwrap();
    assert_eq!(Together::new().charge_n(pro, "alice", 40).check().unwrap().remaining, 5);
}

#[test]
fn threads_that_race_for_two_keys_take_exactly_what_the_smaller_has() {
    let clock = ManualClock::default();
    let store = store(&clock);
    let user = RateLimiter::per_hour(1000).store(&store).build();
    let tenant = RateLimiter::per_hour(300).store(&store).build();
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let call = Together::new().charge(&user, "alice").charge(&tenant, "acme");
                    passed.fetch_add(u64::from(call.check().is_ok()), Ordering::Relaxed);
                }
            });
        }
    });
    // A call that was faster here and slower there gives back what it took: a unit may be left over then.
    while Together::new().charge(&user, "alice").charge(&tenant, "acme").check().is_ok() {
        passed.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(passed.into_inner(), 300);
    assert_eq!(user.peek("alice", 1).unwrap().remaining, 700);
}

#[test]
fn what_was_taken_in_a_window_that_is_over_is_not_given_back_to_this_one() {
    for quota in [
        Quota::per_minute(100).fixed_window(),
        Quota::per_minute(100).anchored_window(),
        Quota::per_minute(100).sliding_log(),
        Quota::per_minute(100).sub_windows(6),
    ] {
        let clock = ManualClock::at(Timestamp::from_secs(600));
        let limiter = RateLimiter::builder(quota).clock(clock.clone()).build();
        let begun = clock.now();
        let _ = limiter.check_n("report", 60).unwrap();
        clock.advance(Duration::from_secs(90));
        let _ = limiter.check_n("report", 60).unwrap();
        assert_eq!(limiter.refund_taken("report", 50, begun).remaining, 40, "{quota:?}");
        assert_eq!(limiter.refund_taken("report", 50, clock.now()).remaining, 90, "{quota:?}");
    }
}

/// Found by a reader: the undo named a time before the charge, and gave nothing back.
#[test]
fn a_call_refused_by_a_second_store_costs_the_first_nothing_even_when_its_time_goes_back() {
    for quota in [
        Quota::per_minute(10),
        Quota::per_minute(10).fixed_window(),
        Quota::per_minute(10).anchored_window(),
        Quota::per_hour(10).sliding_log(),
        Quota::per_hour(10).in_batches(),
    ] {
        let first = RateLimiter::builder(quota).build();
        let second = RateLimiter::per_hour(1).build();
        let late = Timestamp::from_secs(100);
        let _ = second.check_at("k", late).unwrap();
        let _ = first.check_at("other", late).unwrap();
        for _ in 0..5 {
            let call = Together::new().charge(&first, "k").charge(&second, "k");
            assert!(call.check_at(Timestamp::from_secs(50)).is_err());
        }
        assert_eq!(first.peek_at("k", 1, late).unwrap().remaining, 10, "{quota:?}");
    }
}

#[test]
fn a_refusal_by_several_stores_tells_the_longest_wait_and_what_is_really_left() {
    let clock = ManualClock::default();
    let [second, hour] = [Quota::per_second(1), Quota::per_hour(1)]
        .map(|quota| RateLimiter::builder(quota).clock(clock.clone()).build());
    let call = Together::new().charge(&second, "k").charge(&hour, "k");
    assert!(call.check().is_ok());
    let refused = call.check().unwrap_err();
    assert_eq!((refused.retry_after(), refused.limit), (Some(Duration::from_secs(3600)), 1));

    let [untouched, used] = [2, 10].map(|count| RateLimiter::per_hour(count).clock(clock.clone()).build());
    let _ = used.check_n("k", 9).unwrap();
    let refused = Together::new().charge_n(&untouched, "k", 2).charge_n(&used, "k", 2).check().unwrap_err();
    assert_eq!(refused.outcome.remaining, 1);
}

#[test]
fn threads_that_race_over_two_stores_leave_no_charge_of_a_refused_call_behind() {
    for quota in [
        Quota::per_hour(100_000),
        Quota::per_hour(100_000).anchored_window(),
        Quota::per_hour(100_000).in_batches(),
        Quota::per_hour(100_000).sub_windows(60),
    ] {
        let wide = RateLimiter::builder(quota).build();
        let narrow = RateLimiter::per_hour(50).build();
        let passed = AtomicU64::new(0);
        let ask = || {
            let call = Together::new().charge(&wide, "k").charge(&narrow, "k");
            passed.fetch_add(u64::from(call.check().is_ok()), Ordering::Relaxed);
        };
        // Windows begin here. A thread that had read the clock before, and was held up until after the beginning, would be
        // taken to have charged another window: an undo errs on the strict side.
        ask();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..2000).for_each(|_| ask()));
            }
        });
        let left = wide.peek("k", 1).unwrap().remaining;
        // A bucket regains a few of them while the test runs.
        assert!(left >= 100_000 - passed.into_inner(), "{quota:?}: {left}");
    }
}
