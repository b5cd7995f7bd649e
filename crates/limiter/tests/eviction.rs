//! A store that is far too small forgets, and never to anybody's advantage: an evicted key is let in no sooner
//! than its own refill would have let it in, memory stays under the ceiling, and everybody is decided.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::collections::HashMap;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::{Op, State};
use tollgate::core::store::Rule;
use tollgate::{Limit, ManualClock, MemoryStore, Nanos, Quota, RateLimiter};

/// A store with so many bytes for what it holds exactly; the rest of its ceiling is for evicted keys.
fn store(bytes: usize, exact: bool) -> MemoryStore {
    let builder = MemoryStore::builder().max_bytes(bytes * 10 / 3);
    match exact {
        true => builder.exact_keys().build(),
        false => builder.build(),
    }
}

/// What a key has taken, as if it had never been evicted.
struct Own {
    state: State,
    admitted: Admitted,
}

fn check_flood(spec: Spec, bytes: usize, exact: bool, seed: u64, start: u64) -> Result<(), TestCaseError> {
    let store = store(bytes, exact);
    let rule = store.define("rule", spec.limit());
    let limit = spec.limit();
    let mut random = random(seed);
    let mut own: HashMap<u64, Own> = HashMap::new();
    let keys = bytes as u64 / 8;
    let calls = 4 * keys;
    // The whole flood lasts about three refills, so that keys are evicted and come back, and some recover.
    let gap = (6 * spec.refill() / calls).max(1);
    let mut now = start;
    for call in 0..calls {
        // Many calls at the same instant, then a longer pause.
        if random(4) == 0 {
            now += random(4 * gap + 1);
        }
        // Half of the calls come from a few keys that come back again and again.
        let id = if random(2) == 0 { random(keys / 50 + 1) } else { random(keys) };
        let cost = 1 + random(spec.capacity.min(3));
        let outcome = charge(&store, rule, &id.to_string(), cost, now);
        let own =
            own.entry(id).or_insert_with(|| Own { state: limit.fresh(), admitted: Admitted::default() });
        if outcome.allowed {
            let alone = limit.apply(Op::Charge, &mut own.state, at(now), cost.into(), at(now));
            prop_assert!(
                alone.allowed || !spec.is_monotone(),
                "key {id} was let in at {now} and would have had to wait for {:?}",
                alone.retry_after
            );
            own.admitted.push(now, cost);
        }
        if call % 64 == 0 {
            let stats = store.stats();
            prop_assert!(stats.bytes <= stats.max_bytes, "{stats:?}");
        }
    }
    for own in own.values() {
        own.admitted.check(&spec)?;
    }
    // When all is over, the store is as good as new.
    for id in 0..20 {
        // What is remembered of evicted keys ends on a grid of 8 ms at the finest.
        now += 2 * spec.refill() + 20_000_000;
        let outcome = charge(&store, rule, &format!("late {id}"), spec.capacity, now);
        prop_assert!(outcome.allowed, "{outcome:?} when everything is idle");
    }
    Ok(())
}

proptest! {
    #![proptest_config(config(250))]

    #[test]
    fn an_evicted_key_never_gets_more_than_its_own_limit(
        spec in any_unit().prop_flat_map(|unit| spec_of(&RATES, unit)),
        kib in prop::sample::select(vec![4_usize, 8, 16, 64]),
        exact in prop::bool::weighted(0.3),
        seed in any::<u64>(),
        start in any_start(),
    ) {
        // Larger counts than this are remembered in steps.
        let capacity = if matches!(spec.kind, Bucket | Queue) { spec.capacity } else { spec.capacity.min(12) };
        check_flood(Spec { capacity, ..spec }, kib << 10, exact, seed, start)?;
    }
}

/// The immich-folio trap: a refused key must not be let in because a flood of others made the store forget it.
#[test]
fn an_exhausted_key_stays_refused_through_a_flood_until_its_own_wait_is_over() {
    for kind in RATES {
        for (kib, exact) in [(4, false), (64, false), (4, true), (64, true)] {
            let spec = Spec::new(kind, 5, 5, HOUR);
            let store = store(kib << 10, exact);
            let rule = store.define("rule", spec.limit());
            let peek = |now| decide(&store, Op::Estimate, rule, "victim", 1.into(), Some(now)).unwrap();
            let mut now = TODAY;
            while charge(&store, rule, "victim", 1, now).allowed {
                now += HOUR / 1000 + spec.limit_spacing();
            }
            let own_wait = peek(now).retry_after.unwrap().as_u64();
            let until = now + own_wait;
            // A third of the others use all they have, so that even the exhausted are evicted.
            let keys = kib as u64 * 1024 / 4;
            for id in 0..keys {
                let cost = if id % 3 == 0 { spec.capacity } else { 1 };
                let _ = charge(&store, rule, &id.to_string(), cost, now + own_wait * id / keys);
                if id % 64 == 0 {
                    let refused = peek(now + own_wait * id / keys);
                    assert!(!refused.allowed, "{kind:?} of {kib} KiB, exact: {exact}, after {id} keys");
                }
            }
            assert!(!peek(until - 1).allowed, "{kind:?} of {kib} KiB, exact: {exact}");
            let evictions = store.stats().evictions;
            assert!(evictions > 0, "{kind:?} of {kib} KiB, exact: {exact}: nothing was evicted");
            // Nor is it locked out: once everybody's wait is over, so is its own.
            assert!(peek(until + 2 * spec.refill()).allowed, "{kind:?}: locked out");
        }
    }
}

/// A flood of keys that use little does not touch those that use much.
#[test]
fn hot_keys_keep_their_counts_to_the_unit() {
    for kind in [Bucket, Queue, Interval, Aligned, Anchored, TwoWindows, Log, SubWindows] {
        for exact in [false, true] {
            let spec = Spec::new(kind, 100, 3, HOUR);
            // An entry of a map is many times as large as a slot of the table.
            let in_table = kind.is_word() && !exact;
            let store = store(if in_table { 32 << 10 } else { 512 << 10 }, exact);
            let rule = store.define("rule", spec.limit());
            let hot = ["alice", "bob", "carol"];
            for name in hot {
                assert!(charge(&store, rule, name, 50, TODAY).allowed);
            }
            for id in 0..5000_u64 {
                assert!(charge(&store, rule, &id.to_string(), 1, TODAY).allowed, "{kind:?}: {id} is decided");
                if id % 1000 == 999 {
                    for name in hot {
                        let left = charge(&store, rule, name, 1, TODAY).remaining;
                        assert_eq!(left, 50 - (id + 1) / 1000, "{kind:?}, exact: {exact}: {name}");
                    }
                }
            }
            let stats = store.stats();
            assert!(stats.evictions > 0, "{kind:?}: {stats:?}");
        }
    }
}

/// What the store had to forget is counted, and it forgets nothing while there is room.
#[test]
fn evictions_are_counted() {
    for kind in [Bucket, Log] {
        let store = store(64 << 10, false);
        let rule = store.define("rule", Spec::new(kind, 100, 100, HOUR).limit());
        // An entry of a map takes some 200 bytes with its log.
        let (few, many) = if kind == Bucket { (1000, 12_000) } else { (100, 2000) };
        for id in 0..few {
            assert!(charge(&store, rule, &id.to_string(), 1, TODAY).allowed);
        }
        assert_eq!(store.stats().evictions, 0, "{kind:?}");
        assert_eq!(store.count_keys(Some(at(TODAY))), few as usize, "{kind:?}");
        for id in 0..many {
            let _ = charge(&store, rule, &id.to_string(), 1, TODAY);
        }
        let kept = store.count_keys(Some(at(TODAY))) as u64;
        let stats = store.stats();
        assert!(kept <= 4096 && stats.evictions >= many - kept, "{kind:?}: {kept} of {many}, {stats:?}");
    }
}

#[test]
fn only_keys_that_are_not_idle_are_counted() {
    for kind in [Bucket, Aligned, Log, Leases] {
        for exact in [false, true] {
            let store = store(64 << 10, exact);
            let rule = store.define("rule", Spec::new(kind, 10, 10, SECOND).limit());
            for id in 0..50 {
                assert!(charge(&store, rule, &id.to_string(), 1, TODAY).allowed);
            }
            assert_eq!(store.count_keys(Some(at(TODAY))), 50, "{kind:?}");
            assert_eq!(store.count_keys(Some(at(TODAY + 5 * SECOND))), 0, "{kind:?}, exact: {exact}");
        }
    }
}

/// Keys that have used all they have, more of them than the store can hold: most were evicted.
fn exhausted(store: &MemoryStore, rule: Rule, capacity: u64, now: u64) -> Vec<String> {
    let names: Vec<String> = (0..3000).map(|id| format!("victim {id}")).collect();
    names.into_iter().filter(|name| charge(store, rule, name, capacity, now).allowed).collect()
}

/// The pairs of limits between which a rule may change: of one algorithm, and of others, in the table and not.
const CHANGES: [(Kind, Kind); 14] = [
    (Bucket, Bucket),
    (Aligned, Aligned),
    (Anchored, Anchored),
    (TwoWindows, TwoWindows),
    (Interval, Interval),
    (Log, Log),
    (Bucket, Aligned),
    (TwoWindows, Bucket),
    (Bucket, Log),
    (Log, Bucket),
    (Aligned, Log),
    (Anchored, Log),
    (TwoWindows, Log),
    (Interval, Log),
];

#[test]
fn an_evicted_key_gets_no_fresh_burst_from_a_changed_limit() {
    for (old, new) in CHANGES {
        let store = MemoryStore::builder().max_bytes(32 << 10).build();
        let rule = store.define("rule", Spec::new(old, 10, 10, HOUR).limit());
        let victims = exhausted(&store, rule, 10, TODAY);
        assert!(store.stats().evictions > 0);
        store.redefine(rule, Spec::new(new, 10, 10, 2 * HOUR).limit(), Some(at(TODAY))).unwrap();
        let fresh = victims.iter().filter(|name| charge(&store, rule, name, 10, TODAY).allowed);
        assert_eq!(fresh.count(), 0, "{old:?} to {new:?}: of {} that had used all", victims.len());
    }
}

#[test]
fn an_evicted_key_gets_no_fresh_burst_from_another_plan() {
    for (old, new) in CHANGES {
        let store = MemoryStore::builder().max_bytes(32 << 10).build();
        let free = store.define("rule", Spec::new(old, 10, 10, HOUR).limit());
        let pro = store.define("rule", Spec::new(new, 10, 10, 2 * HOUR).limit());
        let victims = exhausted(&store, free, 10, TODAY);
        assert!(store.stats().evictions > 0);
        let fresh = victims.iter().filter(|name| charge(&store, pro, name, 10, TODAY).allowed);
        assert_eq!(fresh.count(), 0, "{old:?} to {new:?}: of {} that had used all", victims.len());
    }
}

/// A limit becomes slower, and what was charged under the old one is evicted when that one would have refilled it:
/// it is remembered as the new one sees it.
#[test]
fn what_is_evicted_long_after_a_change_is_remembered_under_the_new_limit() {
    for (old, new) in CHANGES {
        let store = MemoryStore::builder().max_bytes(128 << 10).build();
        let rule = store.define("rule", Spec::new(old, 10, 10, SECOND).limit());
        let others: Vec<Rule> = (0..100)
            .map(|id| {
                let kind = [Bucket, Log][id % 2];
                store.define(&format!("other {id}"), Spec::new(kind, 10, 10, HOUR).limit())
            })
            .collect();
        let start = TODAY / HOUR * HOUR + 1000;
        let names: Vec<String> = (0..40).map(|id| format!("victim {id}")).collect();
        for name in &names {
            assert!(charge(&store, rule, name, 10, start).allowed);
        }
        assert_eq!(store.stats().evictions, 0, "{old:?} to {new:?}");
        store.redefine(rule, Spec::new(new, 10, 10, HOUR).limit(), Some(at(start))).unwrap();
        for id in 0..3000 {
            let _ = charge(&store, others[id % 100], &id.to_string(), 5, start + 10 * SECOND);
        }
        assert!(store.stats().evictions > 0);
        let fresh = names.iter().filter(|name| charge(&store, rule, name, 10, start + 11 * SECOND).allowed);
        assert_eq!(fresh.count(), 0, "{old:?} to {new:?}");
    }
}

/// What is evicted under a limit that has just changed, before anybody called under the new one, is remembered in
/// the new one's terms: nobody is locked out for longer than the new limit takes to refill.
#[test]
fn what_is_evicted_right_after_a_change_locks_nobody_out() {
    for kind in WORDS {
        let store = store(16 << 10, false);
        let rule = store.define("rule", Spec::new(kind, 10, 10, HOUR).limit());
        let other = store.define("other", Spec::new(Bucket, 10, 10, HOUR).limit());
        for id in 0..500 {
            let _ = charge(&store, rule, &id.to_string(), 10, TODAY);
        }
        let changed = Spec::new(kind, 12, 10, HOUR);
        store.redefine(rule, changed.limit(), Some(at(TODAY))).unwrap();
        for id in 0..3000 {
            let _ = charge(&store, other, &id.to_string(), 10, TODAY);
        }
        assert!(store.stats().evictions > 0);
        let now = TODAY + 2 * changed.refill();
        for id in 0..500 {
            let outcome = charge(&store, rule, &format!("new {id}"), 1, now);
            assert!(outcome.allowed, "{kind:?}: {outcome:?} two refills later");
        }
    }
}

/// A key that is larger than the whole store cannot be kept. It must not push out everybody else for that.
#[test]
fn an_exact_key_larger_than_the_store_evicts_nobody() {
    let store = store(64 << 10, true);
    let rule = store.define("rule", Spec::new(Bucket, 10, 10, HOUR).limit());
    for id in 0..50 {
        assert!(charge(&store, rule, &id.to_string(), 1 + id % 9, TODAY).allowed);
    }
    let huge = "x".repeat(1 << 20);
    let _ = decide(&store, Op::Charge, rule, &huge, 1.into(), Some(TODAY));
    assert_eq!(store.stats().evictions, 0);
    for id in 0..50 {
        let left = decide(&store, Op::Estimate, rule, &id.to_string(), 1.into(), Some(TODAY)).unwrap();
        assert_eq!(left.remaining, 10 - (1 + id % 9));
    }
}

/// One key's log outgrows the store. The others keep their counts, and when all is over the store is as new.
#[test]
fn a_log_larger_than_the_store_evicts_nobody_and_passes() {
    let store = store(16 << 10, false);
    let small = store.define("small", Spec::new(Log, 10, 1, HOUR).limit());
    let huge = store.define("huge", Limit::sliding_log(1_000_000, Nanos::new(HOUR)).unwrap());
    for id in 0..5 {
        assert!(charge(&store, small, &id.to_string(), id + 1, TODAY).allowed);
    }
    for call in 0..5000 {
        let _ = decide(&store, Op::Charge, huge, "hoarder", 1.into(), Some(TODAY + call));
        let stats = store.stats();
        assert!(stats.bytes <= stats.max_bytes, "{stats:?} after {call} calls");
    }
    for id in 0..5 {
        let peek =
            decide(&store, Op::Estimate, small, &id.to_string(), 1.into(), Some(TODAY + 5000)).unwrap();
        assert_eq!(peek.remaining, 10 - (id + 1), "key {id}");
    }
    for id in 0..20 {
        let name = format!("late {id}");
        let outcome = decide(&store, Op::Charge, small, &name, 10.into(), Some(TODAY + 2 * HOUR)).unwrap();
        assert!(outcome.allowed, "{outcome:?}");
    }
}

/// What is remembered of large logs that were evicted must not fill the store for good.
#[test]
fn what_is_remembered_of_evicted_logs_passes_with_them() {
    let store = store(8 << 10, false);
    let rules: Vec<Rule> = (0..6)
        .map(|limit| store.define(&format!("rule {limit}"), Spec::new(Log, 100 + limit, 1, HOUR).limit()))
        .collect();
    for call in 0..20_000_u64 {
        let name = (call % 7).to_string();
        let _ = decide(&store, Op::Charge, rules[call as usize % 6], &name, 1.into(), Some(TODAY + call));
    }
    for id in 0..20 {
        let now = TODAY + (id + 2) * HOUR;
        for rule in &rules {
            let outcome = decide(&store, Op::Charge, *rule, &format!("late {id}"), 1.into(), Some(now));
            assert!(outcome.as_ref().is_ok_and(|outcome| outcome.allowed), "{outcome:?}");
        }
    }
    let stats = store.stats();
    assert!(stats.bytes <= stats.max_bytes, "{stats:?}");
}

/// Found by a reader: a window that begins with the first call began anew with every refused one, and so did the wait.
#[test]
fn a_newcomer_that_is_taken_for_an_evicted_key_is_told_the_smallest_wait() {
    for quota in [Quota::per_hour(3).anchored_window(), Quota::per_hour(3).in_batches(), Quota::per_hour(3)] {
        let store = MemoryStore::builder().max_bytes(4096);
        let clock = ManualClock::at(at(TODAY));
        let limiter = RateLimiter::builder(quota).own_store(store).clock(clock.clone()).build();
        for key in 0..20_000_u64 {
            let _ = limiter.check_n(key, 3);
        }
        clock.advance(Duration::from_secs(1800));
        let mut asked = 0;
        for newcomer in 20_000..20_200_u64 {
            let now = limiter.store().now();
            if let Err(refused) = limiter.peek(newcomer, 2) {
                let wait = refused.outcome.retry_after.unwrap();
                let sooner = Nanos::new(wait.as_u64() - 1);
                // Time told is the store's for good, so the earlier instant comes first.
                if limiter.peek_at(newcomer, 2, now + sooner).is_ok() {
                    unreachable!("{quota:?}: told to wait {wait}, yet {sooner} is enough");
                }
                assert!(limiter.peek_at(newcomer, 2, now + wait).is_ok(), "{quota:?}: {wait} is not enough");
                asked += 1;
                break;
            }
        }
        assert_eq!(asked, 1, "{quota:?}: nobody is refused");
    }
}
