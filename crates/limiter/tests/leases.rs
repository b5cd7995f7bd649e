//! Requests in progress in the store: leases by id, fleets, and what happens when the store has no room for
//! more of them. A live lease is never lost, and whoever finds no room is let through and counted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::Op;
use tollgate::core::store::{Rule, StoreError};
use tollgate::{ConcurrencyLimiter, InProgress, Limit, ManualClock, MemoryStore, Outcome, RateLimiter};

fn op(store: &MemoryStore, op: Op, rule: Rule, name: &str, lease: u128, cost: u64, now: u64) -> Outcome {
    decide(store, op, rule, name, ask(cost, lease, false), Some(now)).unwrap()
}

fn held(store: &MemoryStore, rule: Rule, name: &str, now: u64) -> u64 {
    let InProgress { critical, other } = store.count_in_progress(rule, key(name), Some(at(now))).unwrap();
    critical + other
}

#[test]
fn a_lease_is_taken_renewed_released_and_expires_on_time() {
    for exact in [false, true] {
        let builder = MemoryStore::builder();
        let store = if exact { builder.exact_keys() } else { builder }.build();
        let rule = store.define("leases", Spec::new(Leases, 3, 1, 10).limit());
        assert_eq!(op(&store, Op::Charge, rule, "alice", 1, 2, 100).remaining, 1, "weights count");
        let refused = op(&store, Op::Charge, rule, "alice", 2, 2, 105);
        assert_eq!((refused.allowed, refused.retry_after.unwrap().as_u64()), (false, 5));
        assert!(op(&store, Op::Charge, rule, "bob", 2, 3, 105).allowed, "keys are apart");
        assert!(op(&store, Op::Renew, rule, "alice", 1, 0, 105).allowed);
        assert_eq!(held(&store, rule, "alice", 114), 2, "renewed until 115");
        assert_eq!(held(&store, rule, "alice", 115), 0, "half open");
        assert!(!op(&store, Op::Renew, rule, "alice", 1, 0, 115).allowed, "not brought back");
        assert!(op(&store, Op::Charge, rule, "alice", 3, 3, 115).allowed);
        assert!(!op(&store, Op::Refund, rule, "alice", 1, 2, 116).allowed, "it was not held any more");
        assert!(op(&store, Op::Refund, rule, "alice", 3, 3, 116).allowed);
        assert!(!op(&store, Op::Refund, rule, "alice", 3, 3, 116).allowed, "given back once");
        assert_eq!(held(&store, rule, "alice", 116), 0);
    }
}

#[test]
fn a_retry_with_the_same_lease_is_not_a_second_request() {
    let store = MemoryStore::new();
    let rule = store.define("leases", Spec::new(Leases, 3, 1, 10).limit());
    for now in [100, 103, 106] {
        assert!(op(&store, Op::Charge, rule, "alice", 1, 3, now).allowed);
    }
    assert_eq!(held(&store, rule, "alice", 115), 3, "extended until 116");
    assert_eq!(held(&store, rule, "alice", 116), 0);
}

#[test]
fn a_fleet_keeps_its_reserve_in_the_store() {
    let store = MemoryStore::new();
    let limit = Limit::fleet(10, (1, 5), tollgate::FleetMode::Total, tollgate::Nanos::new(60)).unwrap();
    let rule = store.define("fleet", limit);
    let take = |lease, critical, now| {
        decide(&store, Op::Charge, rule, "fleet", ask(1, lease, critical), Some(now)).unwrap().allowed
    };
    for lease in 0..8 {
        assert!(take(lease, false, 0));
    }
    assert!(!take(8, false, 0), "the rest is reserved");
    assert!(take(8, true, 0) && take(9, true, 30));
    assert!(!take(10, true, 30), "the fleet is full");
    let count = store.count_in_progress(rule, key("fleet"), Some(at(30))).unwrap();
    assert_eq!(count, InProgress { critical: 2, other: 8 });
    assert_eq!(held(&store, rule, "fleet", 60), 1, "all but the last have expired");
    assert!(take(11, false, 60));
}

/// No cost brings the count to overflow, not even that of critical calls, which are always let in.
#[test]
fn no_cost_overflows_a_fleet() {
    for count in [1, 2] {
        let store = MemoryStore::new();
        let rule = store.define("fleet", Spec::new(Fleet, 10, count, HOUR).limit());
        for lease in 0..10 {
            for cost in [u64::MAX, u64::MAX / 2, 10, 1] {
                let _ = decide(&store, Op::Charge, rule, "fleet", ask(cost, lease, true), Some(0)).unwrap();
                let _ =
                    decide(&store, Op::Estimate, rule, "fleet", ask(cost, lease, false), Some(0)).unwrap();
            }
        }
        let _ = store.count_in_progress(rule, key("fleet"), Some(at(0))).unwrap();
    }
}

proptest! {
    #![proptest_config(config(200))]

    /// Leases of many keys in a store that cannot hold them: each answer is true. A lease that was granted is
    /// there until it expires or is given back; one that found no room is not there.
    #[test]
    fn a_full_store_loses_no_live_lease(
        kib in 4..16_usize,
        exact in any::<bool>(),
        seed in any::<u64>(),
        capacity in 1..200_u64,
    ) {
        let builder = MemoryStore::builder().max_bytes((kib << 10) * 10 / 3);
        let store = if exact { builder.exact_keys() } else { builder }.build();
        let ttl = 1000;
        let rule = store.define("leases", Spec::new(Leases, capacity, 1, ttl).limit());
        let logs = store.define("logs", Spec::new(Log, 3, 1, ttl).limit());
        let mut random = random(seed);
        let mut live: Vec<(u64, u128, u64)> = Vec::new();
        let (mut now, mut full) = (TODAY, 0);
        for step in 0..3000_u128 {
            now += random(4);
            live.retain(|(_, _, expiry)| now < *expiry);
            match random(8) {
                0 if !live.is_empty() => {
                    let (name, lease, _) = live.swap_remove(random(live.len() as u64) as usize);
                    prop_assert!(op(&store, Op::Refund, rule, &name.to_string(), lease, 1, now).allowed);
                }
                1 if !live.is_empty() => {
                    let index = random(live.len() as u64) as usize;
                    let (name, lease, expiry) = &mut live[index];
                    prop_assert!(op(&store, Op::Renew, rule, &name.to_string(), *lease, 1, now).allowed);
                    *expiry = now + ttl;
                }
                2 => {
                    // Others want room too; they are decided, or told that there is none.
                    let name = random(200).to_string();
                    let _ = decide(&store, Op::Charge, logs, &name, 1.into(), Some(now));
                }
                _ => {
                    let name = random(40);
                    let asked = ask(1, step, false);
                    match decide(&store, Op::Charge, rule, &name.to_string(), asked, Some(now)) {
                        Ok(outcome) if outcome.allowed => live.push((name, step, now + ttl)),
                        Ok(_) => {}
                        Err(StoreError::Full { .. }) => full += 1,
                        Err(error) => prop_assert!(false, "{error}"),
                    }
                }
            }
            let stats = store.stats();
            prop_assert!(stats.bytes <= stats.max_bytes, "{stats:?} after {step} steps");
            if step % 64 == 0 {
                for name in 0..40 {
                    let own = live.iter().filter(|(owner, ..)| *owner == name).count() as u64;
                    prop_assert_eq!(held(&store, rule, &name.to_string(), now), own, "key {}", name);
                }
            }
        }
        prop_assume!(full > 0 || kib > 8 || capacity < 20);
        // When all leases are over, all of the room is there again.
        now += 2 * ttl;
        let fresh = store.define("fresh", Spec::new(Leases, 1, 1, ttl).limit());
        for name in 0..4 {
            prop_assert!(op(&store, Op::Charge, fresh, &name.to_string(), 1, 1, now).allowed);
        }
    }
}

/// A limiter whose store has no room left lets calls pass and says so; who holds a permit keeps it.
#[test]
fn a_limiter_with_a_full_store_fails_open_and_counts_it() {
    for exact in [false, true] {
        let builder = MemoryStore::builder().max_bytes(4096);
        let builder = if exact { builder.exact_keys() } else { builder };
        let limiter = ConcurrencyLimiter::builder(1).own_store(builder).build();
        let permits: Vec<_> = (0..200_u32).map(|id| limiter.acquire(id).unwrap()).collect();
        let kept = (0..200_u32).filter(|id| limiter.in_progress(*id) == 1).count();
        assert!((5..100).contains(&kept), "{kept} fit in 4 KiB");
        // Those that are counted are limited, all others are not.
        let passed = (0..200_u32).filter(|id| limiter.acquire(*id).is_ok()).count();
        assert_eq!(passed, 200 - kept);
        drop(permits);
        for id in 0..200_u32 {
            assert_eq!(limiter.in_progress(id), 0, "what was not counted is not given back");
        }
        // With room again, everybody is limited again.
        let permit = limiter.acquire("again").unwrap();
        assert!(limiter.acquire("again").is_err());
        drop(permit);
    }
}

#[test]
fn failing_open_is_counted() {
    let store = Arc::new(MemoryStore::builder().max_bytes(4096).build());
    let limiter = ConcurrencyLimiter::builder(1).store(&store).build();
    let permits: Vec<_> = (0..200_u32).map(|id| limiter.acquire(id).unwrap()).collect();
    let kept = (0..200_u32).filter(|id| limiter.in_progress(*id) == 1).count() as u64;
    assert_eq!(store.stats().failed_open, 200 - kept);
    assert_eq!(store.stats().evictions, 0);
    let stats = store.stats();
    assert!(stats.bytes <= stats.max_bytes, "{stats:?}");
    drop(permits);
}

/// A rate limit whose store is full of requests in progress cannot count, so it lets pass. What it refuses
/// stays refused all the same.
#[test]
fn a_refusal_stands_when_there_is_no_room_to_count_it() {
    let clock = ManualClock::at(at(TODAY));
    let builder = MemoryStore::builder().max_bytes(8192).clock(clock.clone());
    let store = Arc::new(builder.build());
    let quota = tollgate::Quota::per_hour(5).sliding_log().counting_refused();
    let limiter = RateLimiter::builder(quota).store(&store).build();
    for _ in 0..4 {
        clock.advance(Duration::from_nanos(1));
        let _ = limiter.check("alice").unwrap();
    }
    assert!(limiter.check_n("alice", 2).is_err());
    let in_progress = ConcurrencyLimiter::builder(1).store(&store).build();
    let permits: Vec<_> = (0..500_u32).map(|id| in_progress.acquire(id)).collect();
    for _ in 0..50 {
        clock.advance(Duration::from_nanos(1));
        assert!(limiter.check_n("alice", 2).is_err());
    }
    drop(permits);
}

/// Lowering the capacity evicts nobody; newcomers wait until enough have left.
#[test]
fn who_is_in_progress_stays_so_when_the_capacity_changes() {
    let limiter = ConcurrencyLimiter::new(4);
    let mut permits: Vec<_> = (0..4).map(|_| limiter.acquire("alice").unwrap()).collect();
    limiter.set_capacity(2).unwrap();
    assert_eq!(limiter.in_progress("alice"), 4);
    assert!(limiter.acquire("alice").is_err());
    permits.truncate(2);
    assert!(limiter.acquire("alice").is_err());
    permits.truncate(1);
    let second = limiter.acquire("alice").unwrap();
    limiter.set_capacity(10).unwrap();
    assert_eq!(limiter.in_progress("alice"), 2);
    drop((permits, second));
    assert_eq!(limiter.in_progress("alice"), 0);
    assert_eq!(
        limiter.set_capacity(0).unwrap_err().to_string(),
        "concurrency is 0: it must be from 1 to 4611686018427387904"
    );
}
