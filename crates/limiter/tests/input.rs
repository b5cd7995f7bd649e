//! Whatever comes in: quotas that cannot work, costs and times at the edges of their range, keys of every kind.
//! Nothing panics, nothing is silently unlimited, and no two keys meet.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::{Ask, Op};
use tollgate::{Key, LimitError, ManualClock, MemoryStore, Quota, RateLimiter, Timestamp};

const NANO: Duration = Duration::from_nanos(1);

/// The error of a quota, as a limiter's builder tells it too.
fn error(quota: Quota) -> LimitError {
    let error = quota.limit().unwrap_err();
    assert_eq!(RateLimiter::builder(quota).try_build().unwrap_err(), error);
    assert_eq!(RateLimiter::per_second(1).and(quota).try_build().unwrap_err(), error);
    assert_eq!(RateLimiter::per_second(1).plan("x", quota).try_build().unwrap_err(), error);
    let limiter = RateLimiter::per_second(1).build();
    assert_eq!(limiter.set_quota(quota).unwrap_err(), error);
    let _ = limiter.check("alice").unwrap();
    assert!(limiter.check("alice").is_err(), "a wrong quota changes nothing");
    error
}

#[test]
fn a_wrong_quota_is_refused_with_its_field_its_value_and_the_range() {
    let hour = Quota::per_hour;
    let all = [
        (hour(0), "rate is 0: it must be from 1 to 4611686018427387904"),
        (hour(u64::MAX), "rate is 18446744073709551615: it must be from 1 to 4611686018427387904"),
        (Quota::per(1, Duration::ZERO), "period is 0ns: it must be from 1ns to 4611686018.427387904s"),
        (
            Quota::per(1, Duration::MAX),
            "period is 18446744073.709551615s: it must be from 1ns to 4611686018.427387904s",
        ),
        (hour(1).burst(0), "burst is 0: it must be from 1 to 1281023"),
        (hour(1).burst(1_281_024), "burst is 1281024: it must be from 1 to 1281023"),
        (hour(1).burst(u64::MAX), "burst is 18446744073709551615: it must be from 1 to 1281023"),
        (hour(0).burst(5), "rate is 0: it must be from 1 to 4611686018427387904"),
        (
            hour(1).burst(u64::MAX).leaky_queue(0),
            "burst is 18446744073709551615: it must be from 0 to 1281022",
        ),
        (hour(1).burst(1_281_023).leaky_queue(0), "burst is 1281023: it must be from 0 to 1281022"),
        (hour(1).burst(3).leaky_queue(4), "undelayed is 4: it must be from 0 to 3"),
        (hour(0).leaky_queue(0), "rate is 0: it must be from 1 to 4611686018427387904"),
        (hour(0).fixed_window(), "rate is 0: it must be from 1 to 4611686018427387904"),
        (
            hour(u64::MAX).anchored_window(),
            "rate is 18446744073709551615: it must be from 1 to 4611686018427387904",
        ),
        (hour(0).sliding_log(), "rate is 0: it must be from 1 to 4611686018427387904"),
        (hour(0).sliding_window(), "rate is 0: it must be from 1 to 4611686018427387904"),
        (
            Quota::per(1, Duration::ZERO).sliding_window(),
            "period is 0ns: it must be from 1ns to 4611686018.427387904s",
        ),
        (
            hour(5).sliding_log().min_difference(Duration::from_secs(3600)),
            "min_difference is 3600s: it must be from 0ns to 3599.999999999s",
        ),
        (hour(5).sub_windows(0), "buckets is 0: it must be from 1 to 3600000000000"),
        (hour(5).sub_windows(7), "buckets is 7: it must be a divisor of the period of 3600s"),
        (
            Quota::per_day(100_003),
            "rate is 100003: it must be given a burst from 1 to 53375, or be a rounder number",
        ),
        (
            hour(5).offset(Duration::from_secs(60)),
            "offset is 60s: it must be left out, or used with a fixed window",
        ),
        (
            hour(5).fixed_window().offset(Duration::from_secs(3600)),
            "offset is 3600s: it must be from 0ns to 3599.999999999s",
        ),
        (
            hour(5).sliding_window().counting_refused(),
            "counting_refused is set: it must be left out, or used with a sliding log or sub-windows",
        ),
        (hour(0).in_batches(), "rate is 0: it must be from 1 to 4611686018427387904"),
        (hour(1).burst(0).in_batches(), "burst is 0: it must be from 1 to 1281023"),
    ];
    for (quota, message) in all {
        assert_eq!(error(quota).to_string(), message, "{quota:?}");
    }
    let empty = RateLimiter::per_second(1).plan_of("x", []).try_build().unwrap_err();
    assert_eq!(empty.to_string(), "plan is x: it must be given at least one quota");
}

/// The largest and the smallest quotas that can be had are exact.
#[test]
fn quotas_at_the_edges_of_their_range_are_exact() {
    let clock = ManualClock::at(at(TODAY));
    // A thousand million per second: one every nanosecond.
    let fast = RateLimiter::per_second(1_000_000_000).burst(1).clock(clock.clone()).build();
    assert!(fast.check("x").is_ok() && fast.check("x").is_err());
    clock.advance(NANO);
    assert!(fast.check("x").is_ok() && fast.check("x").is_err());
    // One in thirty years.
    let slow = RateLimiter::per(1, Duration::from_nanos(30 * YEAR)).clock(clock.clone()).build();
    assert!(slow.check("x").is_ok());
    assert_eq!(slow.check("x").unwrap_err().retry_after(), Some(Duration::from_nanos(30 * YEAR)));
    clock.advance(Duration::from_nanos(30 * YEAR - 1));
    assert!(slow.check("x").is_err());
    clock.advance(NANO);
    assert!(slow.check("x").is_ok());
    // As large a bucket as there can be.
    let large = RateLimiter::per(1 << 62, Duration::from_nanos(1 << 62)).burst(1 << 62).build();
    assert_eq!(large.check_n("x", (1 << 62) - 1).unwrap().remaining, 1);
}

/// Numbers at the edges.
fn edge() -> impl Strategy<Value = u64> {
    let edges =
        vec![0, 1, 2, 3, 7, 333, 1 << 31, u64::from(u32::MAX), SECOND, HOUR, 30 * YEAR, 1 << 61, 1 << 62];
    prop_oneof![
        6 => prop::sample::select(edges),
        1 => prop::sample::select(vec![(1 << 62) + 1, 1 << 63, u64::MAX - 1, u64::MAX]),
        2 => any::<u64>().prop_flat_map(|n| (0..64_u32).prop_map(move |bits| n >> bits)),
    ]
}

fn edge_spec() -> impl Strategy<Value = Spec> {
    let kinds: Vec<Kind> = RATES.into_iter().chain(HOLDS).collect();
    (prop::sample::select(kinds), edge(), edge(), edge())
        .prop_map(|(kind, capacity, count, span)| Spec::new(kind, capacity, count, span))
}

proptest! {
    #![proptest_config(config(4000))]

    /// Whatever the quota, the time, the cost and the operation.
    #[test]
    fn no_input_panics(
        specs in prop::collection::vec(edge_spec().prop_filter_map("valid", |spec| spec.try_limit().map(|_| spec)), 1..4),
        steps in prop::collection::vec((edge(), edge(), 0..3_usize, 0..6_usize, any::<bool>(), 0..4_usize), 1..40),
        exact in any::<bool>(),
    ) {
        let builder = MemoryStore::builder().max_bytes(16 << 10);
        let store = if exact { builder.exact_keys() } else { builder }.build();
        let rules: Vec<_> = specs.iter().map(|spec| store.define("family", spec.try_limit().unwrap())).collect();
        for (index, (time, cost, rule, op, critical, key)) in steps.into_iter().enumerate() {
            let rule = rules[rule % rules.len()];
            let now = Some(time);
            let asked = ask(cost, key as u128, critical);
            let ops = [Op::Charge, Op::Estimate, Op::Refund, Op::Undo, Op::Renew];
            match ops.get(op) {
                Some(op) => { let _ = decide(&store, *op, rule, KEYS[key], asked, now); }
                None => {
                    let spec = specs[index % specs.len()];
                    store.redefine(rule, spec.try_limit().unwrap(), now.map(at)).unwrap();
                }
            }
            let _ = store.count_in_progress(rule, crate::common::key(KEYS[key]), now.map(at));
            let _ = store.count_keys(now.map(at));
        }
    }

    /// A clock that goes back stands still, and nobody gets more or waits longer for it.
    #[test]
    fn a_clock_that_goes_back_stands_still(
        spec in spec_of(&RATES, SECOND),
        steps in prop::collection::vec((-(HOUR as i64)..HOUR as i64, 0..KEYS.len(), any_cost()), 1..60),
        exact in any::<bool>(),
    ) {
        let clock = ManualClock::at(at(TODAY));
        let builder = MemoryStore::builder().max_bytes(256 << 10).clock(clock.clone());
        let store = if exact { builder.exact_keys() } else { builder }.build();
        let rule = store.define("rule", spec.limit());
        let mut model = Model::default();
        model.define(0, spec.limit());
        let (mut time, mut now) = (TODAY, 0);
        for (step, key, cost) in steps {
            time = time.saturating_add_signed(step);
            now = now.max(time);
            clock.set(at(time));
            let ask = Ask::from(cost.of(&spec.limit()));
            let seen = decide(&store, Op::Charge, rule, KEYS[key], ask, None).unwrap();
            model.step(Op::Charge, 0, KEYS[key], ask, now, seen)?;
        }
    }
}

#[test]
fn costs_at_the_edges_are_what_they_say() {
    for kind in RATES {
        let clock = ManualClock::at(at(TODAY));
        let limiter = RateLimiter::builder(Spec::new(kind, 10, 3, HOUR).quota()).clock(clock).build();
        for _ in 0..100 {
            assert_eq!(limiter.check_n("alice", 0).unwrap().remaining, 10, "{kind:?}: 0 only looks");
        }
        for cost in [11, u64::from(u32::MAX), u64::MAX] {
            let refused = limiter.check_n("alice", cost).unwrap_err();
            assert_eq!((refused.retry_after(), refused.outcome.remaining), (None, 10), "{kind:?}: {cost}");
        }
        assert_eq!(limiter.check_n("alice", 10).unwrap().remaining, 0);
        assert!(limiter.check_n("alice", u64::MAX).is_err());
        let peek = limiter.check_n("alice", 0);
        assert!(peek.is_ok_and(|peek| peek.remaining == 0), "{kind:?}: looking is free");
        assert_eq!(limiter.refund("alice", u64::MAX).remaining, 10, "{kind:?}: never above the quota");
    }
}

/// For every kind of limit: who comes back after thirty years has a full quota, exactly.
#[test]
fn a_key_that_was_idle_for_thirty_years_has_its_quota_exactly() {
    for kind in RATES {
        for (capacity, count, span) in [(10, 7, SECOND), (10, 10, HOUR), (100, 333, 713), (3, 1, 1)] {
            let spec = Spec::new(kind, capacity, count, span);
            let clock = ManualClock::at(at(TODAY));
            let limiter = RateLimiter::builder(spec.quota()).clock(clock.clone()).build();
            for visit in 0..4 {
                for name in ["alice", "bob"] {
                    let outcome = limiter.check_n(name, capacity).unwrap();
                    assert_eq!(outcome.remaining, 0, "{spec:?} on visit {visit}");
                    assert!(limiter.check(name).is_err(), "{spec:?} on visit {visit}");
                }
                clock.advance(Duration::from_nanos(30 * YEAR));
                assert_eq!(limiter.peek("alice", 1).unwrap().remaining, capacity, "{spec:?}");
            }
        }
    }
}

#[test]
fn a_time_before_the_latest_counts_as_the_latest() {
    let limiter = RateLimiter::per_second(1).build();
    assert!(limiter.check_at("alice", at(100 * SECOND)).is_ok());
    for earlier in [99 * SECOND, 0] {
        let refused = limiter.check_at("alice", at(earlier)).unwrap_err();
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)), "not longer than a refill");
        let _ = limiter.check_at(earlier, at(earlier)).unwrap();
        let refused = limiter.check_at(earlier, at(99 * SECOND + 999_999_999)).unwrap_err();
        assert_eq!(refused.retry_after(), Some(Duration::from_secs(1)), "it was charged at 100 s");
    }
    assert!(limiter.check_at("alice", at(101 * SECOND)).is_ok());
}

/// Own time and the system's in one limiter: whichever is later.
#[test]
fn own_time_and_the_systems_may_alternate() {
    let limiter = RateLimiter::per_second(1).build();
    let _ = limiter.check("alice").unwrap();
    assert!(limiter.check_at("alice", at(5)).is_err(), "1970 is over");
    let future = at(4_000_000_000 * SECOND);
    assert!(limiter.check_at("alice", future).is_ok());
    assert!(limiter.check("alice").is_err(), "nor does time go back from there");
    assert!(limiter.check_at("alice", at(u64::MAX)).is_ok());
    let _ = limiter.check("alice");
    let _ = limiter.check_at("alice", at(0));
    let _ = limiter.peek("bob", u64::MAX);
    let _ = limiter.refund("bob", u64::MAX);
}

/// Every one of these is somebody else.
#[test]
fn different_keys_never_share_a_bucket() {
    fn once(limiter: &RateLimiter, key: impl Key) {
        let shown = key.with(|key| format!("{:?} {:?}", key.kind, &key.bytes[..key.bytes.len().min(40)]));
        assert!(limiter.check(&key).is_ok(), "{shown} shares a bucket");
        assert!(limiter.check(&key).is_err(), "{shown} has none");
    }
    for exact in [false, true] {
        let builder = MemoryStore::builder();
        let builder = if exact { builder.exact_keys() } else { builder };
        let limiter = RateLimiter::per_hour(1).own_store(builder).build();
        once(&limiter, "");
        once(&limiter, ("", ""));
        once(&limiter, ("", "", ""));
        once(&limiter, ("a:b", "c"));
        once(&limiter, ("a", "b:c"));
        once(&limiter, ("ab", "c"));
        once(&limiter, ("a", "bc"));
        once(&limiter, ("a", "b", "c"));
        once(&limiter, (("a", "b"), "c"));
        once(&limiter, ("a", ("b", "c")));
        once(&limiter, "abc");
        once(&limiter, 1_u64);
        once(&limiter, "1");
        once(&limiter, "\u{1}");
        once(&limiter, 1_u64.to_le_bytes());
        once(&limiter, 1_u128);
        once(&limiter, 1_u128.to_le_bytes());
        once(&limiter, Ipv4Addr::new(1, 2, 3, 4));
        once(&limiter, "1.2.3.4");
        once(&limiter, [1_u8, 2, 3, 4]);
        once(&limiter, u64::from(u32::from_le_bytes([1, 2, 3, 4])));
        once(&limiter, Ipv6Addr::LOCALHOST);
        once(&limiter, Ipv6Addr::LOCALHOST.octets());
        once(&limiter, u128::from_le_bytes(Ipv6Addr::LOCALHOST.octets()));
        once(&limiter, Ipv4Addr::LOCALHOST);
        once(&limiter, (Ipv4Addr::LOCALHOST, 80_u16));
        once(&limiter, (Ipv4Addr::LOCALHOST, "80"));
        // Of equal bytes and another length; 1 MB and another one that differs in one byte.
        for length in 1..300 {
            once(&limiter, vec![0_u8; length]);
            once(&limiter, "x".repeat(length));
        }
        let mut long = vec![b'x'; 1 << 20];
        once(&limiter, &*long);
        for place in [0, 1 << 10, (1 << 19) + 1, (1 << 20) - 1] {
            long[place] = b'y';
            once(&limiter, &*long);
            long[place] = b'x';
        }
        // These are the same.
        let mapped = Ipv4Addr::new(1, 2, 3, 4).to_ipv6_mapped();
        assert!(limiter.check(mapped).is_err() && limiter.check(IpAddr::V6(mapped)).is_err());
        assert!(limiter.check(1_u8).is_err() && limiter.check(1_usize).is_err());
        assert!(limiter.check(String::from("abc")).is_err() && limiter.check(b"abc").is_err());
        assert_eq!(limiter.store().stats().evictions, 0);
    }
}

/// The same key under two limiters of one store is two things.
#[test]
fn different_limiters_never_share_a_bucket() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let limiters: Vec<_> = (0..50).map(|_| RateLimiter::per_hour(1).store(&store).build()).collect();
    for limiter in &limiters {
        assert!(limiter.check("alice").is_ok() && limiter.check("alice").is_err());
    }
    let named = |name: &str| RateLimiter::per_hour(1).name(name).store(&store).build();
    assert!(named("login").check("alice").is_ok());
    assert!(named("login").check("alice").is_err(), "the same name is the same limit");
    assert!(named("search").check("alice").is_ok());
}

/// Keys that collide under hashes without a seed spread like any others.
#[test]
fn keys_made_to_collide_are_spread() {
    const COUNT: u64 = 10_000;
    /// FxHash's multiplier.
    const FX: u64 = 0x517c_c1b7_2722_0a95;
    fn fx(word: u64) -> u64 {
        word.wrapping_mul(FX)
    }
    // Two words with the same FxHash, whatever the first: the second undoes it.
    fn text(n: u64) -> [u8; 16] {
        let second = fx(n).rotate_left(5) ^ 0x0123_4567_89AB_CDEF;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&n.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }
    let hash = |bytes: [u8; 16]| {
        let word = |range: std::ops::Range<usize>| u64::from_le_bytes(bytes[range].try_into().unwrap());
        fx(fx(word(0..8)).rotate_left(5) ^ word(8..16))
    };
    assert_eq!(hash(text(1)), hash(text(2)), "they do collide");
    type Make = fn(u64) -> Vec<u8>;
    let families: [(&str, Make); 5] = [
        ("the same FxHash", |n| text(n).to_vec()),
        ("the same low bits", |n| (n << 40).to_le_bytes().to_vec()),
        ("the same high bits", |n| n.to_le_bytes().to_vec()),
        ("the same end", |n| format!("{n:08}{}", "x".repeat(100)).into_bytes()),
        ("the same start", |n| format!("{}{n:08}", "x".repeat(100)).into_bytes()),
    ];
    for (name, key) in families {
        let limiter =
            RateLimiter::per_hour(1).own_store(MemoryStore::builder().expected_keys(20_000)).build();
        for n in 0..COUNT {
            assert!(limiter.check(key(n)).is_ok(), "{name}: {n} shares a bucket");
        }
        for n in 0..COUNT {
            assert!(limiter.check(key(n)).is_err(), "{name}: {n} was forgotten");
        }
        assert_eq!(limiter.store().stats().evictions, 0, "{name}");
    }
    let limiter = RateLimiter::per_hour(1).own_store(MemoryStore::builder().expected_keys(20_000)).build();
    for n in 0..COUNT {
        assert!(limiter.check(n << 40).is_ok());
    }
    assert_eq!(limiter.store().stats().evictions, 0, "numbers");
}

/// A store made for so many keys holds so many keys, but for a few.
#[test]
fn a_store_holds_the_keys_that_it_was_made_for() {
    for keys in [1000_u64, 20_000, 300_000] {
        let limiter =
            RateLimiter::per_hour(1).own_store(MemoryStore::builder().expected_keys(keys as usize)).build();
        for n in 0..keys {
            let _ = limiter.check(n);
        }
        let evictions = limiter.store().stats().evictions;
        assert!(evictions <= keys / 200, "{evictions} of {keys}");
    }
}

/// Where a key goes cannot be known from outside.
#[test]
fn two_stores_place_keys_differently() {
    let crowded = |builder: tollgate::MemoryStoreBuilder| -> Vec<u64> {
        let store = builder.max_bytes(4096).build();
        let rule = store.define("rule", Spec::new(Bucket, 1000, 1000, HOUR).limit());
        for n in 0..2000_u64 {
            let _ = charge(&store, rule, &n.to_string(), 1 + n % 7, TODAY);
        }
        let left = |n: u64| {
            decide(&store, Op::Estimate, rule, &n.to_string(), 0.into(), Some(TODAY)).unwrap().remaining
        };
        (0..2000).map(left).collect()
    };
    let random = || crowded(MemoryStore::builder());
    assert_ne!(random(), random(), "others were forgotten");
    let seeded = |seed| crowded(MemoryStore::builder().fixed_seed(seed));
    assert_eq!(seeded(7), seeded(7));
    assert_ne!(seeded(7), seeded(8));
}

#[test]
fn every_key_of_a_batch_is_answered_once() {
    // A store in which one key's log takes all the room: the batch must not begin anew for the others.
    let clock = ManualClock::at(at(TODAY));
    let builder = MemoryStore::builder().max_bytes(8 << 10).clock(clock.clone());
    let limiter = RateLimiter::builder(Quota::per_hour(100_000).sliding_log()).own_store(builder).build();
    for _ in 0..5000 {
        clock.advance(NANO);
        let _ = limiter.check("hoarder");
    }
    let mut answered = Vec::new();
    clock.advance(NANO);
    let left = limiter.peek("alice", 1).unwrap().remaining;
    limiter.check_many(&["alice", "bob", "hoarder", "carol"], |key, _| answered.push(*key));
    assert_eq!(answered, ["alice", "bob", "hoarder", "carol"]);
    // There is no room to count it exactly.
    assert!(limiter.peek("alice", 1).unwrap().remaining + 1 >= left, "charged at most once");
}

/// Found by a reader: a log that did not fit was not enforced at all.
#[test]
fn a_log_larger_than_its_store_is_enforced_and_only_becomes_coarser() {
    for (count, bytes) in [(4096, 4096), (65_536, 65_536), (50_000, 1 << 20)] {
        let limiter = RateLimiter::builder(Quota::per_hour(count).sliding_log())
            .own_store(MemoryStore::builder().max_bytes(bytes))
            .build();
        let start = 1_000_000_000_000;
        let at = |call: u64| Timestamp::from_nanos(start + 1000 * call);
        let passed =
            (0..2 * count).filter(|&call| limiter.check_at("alice", at(call)).is_ok()).count() as u64;
        assert_eq!(passed, count, "in {bytes} bytes");
        assert_eq!(limiter.store().stats().failed_open, 0);
        assert!(limiter.store().stats().bytes <= bytes);
        // What is told is when it passes, and an hour later all of it is back.
        let wait = limiter.check_at("alice", at(2 * count)).unwrap_err().outcome.retry_after.unwrap();
        assert!(limiter.check_at("alice", at(2 * count) + wait).is_ok());
    }
}

#[test]
fn several_logs_that_do_not_fit_together_are_all_enforced() {
    let limiter = RateLimiter::builder(Quota::per_day(1500).sliding_log())
        .own_store(MemoryStore::builder().max_bytes(64 << 10))
        .build();
    let mut passed = [0; 4];
    for call in 0..4000_u64 {
        for (caller, passed) in passed.iter_mut().enumerate() {
            *passed +=
                u64::from(limiter.check_at(caller, Timestamp::from_nanos(1_000_000 * call + 1)).is_ok());
        }
    }
    assert!(passed.iter().all(|&passed| passed <= 1500), "{passed:?}");
    assert!(passed.iter().sum::<u64>() >= 1500, "{passed:?}");
    assert_eq!(limiter.store().stats().failed_open, 0);
}

#[test]
fn a_rate_and_a_count_of_requests_of_the_same_name_do_not_meet() {
    let store = std::sync::Arc::new(MemoryStore::new());
    let in_progress = tollgate::ConcurrencyLimiter::builder(1).name("api/0").store(&store).build();
    let rate = RateLimiter::per_hour(10).name("api").store(&store).build();
    let permit = in_progress.acquire("k").unwrap();
    assert_eq!(rate.check("k").unwrap().remaining, 9);
    assert!(in_progress.acquire("k").is_err());
    drop(permit);
}

#[test]
fn at_the_end_of_time_limits_still_hold() {
    let quota = Quota::per_hour(3);
    for quota in [
        quota,
        quota.fixed_window(),
        quota.anchored_window(),
        quota.sliding_log(),
        quota.sub_windows(6),
        quota.sliding_window(),
        quota.in_batches(),
    ] {
        for store in [MemoryStore::builder(), MemoryStore::builder().exact_keys()] {
            let limiter = RateLimiter::builder(quota).own_store(store.max_bytes(1 << 20)).build();
            let passed = (0..1000).filter(|_| limiter.check_at("k", Timestamp::from_nanos(u64::MAX)).is_ok());
            assert_eq!(passed.count(), 3, "{quota:?}");
        }
    }
}

#[test]
fn looking_at_a_store_and_changing_a_quota_do_not_move_the_time_of_those_who_bring_their_own() {
    let at = Timestamp::from_secs;
    let limiter = RateLimiter::per_hour(10).build();
    let _ = limiter.check_n_at("a", 10, at(5)).unwrap();
    limiter.set_quota(Quota::per_hour(10).burst(11)).unwrap();
    assert_eq!(limiter.peek_at("a", 1, at(6)).unwrap().remaining, 1);
    let _ = limiter.check_at("a", at(6)).unwrap();
    assert_eq!(limiter.store().count_keys(None), 1);
    assert_eq!(limiter.store().now(), at(6));
    assert!(limiter.check_at("a", at(7)).is_err());
}

#[test]
fn a_bucket_in_batches_that_takes_longer_than_time_to_fill_is_refused() {
    let error = Quota::per_day(1).burst(1_000_000).in_batches().limit().unwrap_err();
    assert_eq!(error.to_string(), "burst is 1000000: it must be from 1 to 53375");
}
