//! Several limits at once: all are charged or none, and the answer is their combination.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::{Ask, Op};
use tollgate::core::store::{Charge, Rule};
use tollgate::{Limit, ManualClock, MemoryStore, Quota, RateLimiter, Verdict};

/// One charge of a group.
#[derive(Clone, Copy, Debug)]
struct Part {
    rule: usize,
    key: usize,
    cost: u64,
    lease: u128,
    critical: bool,
}

impl Part {
    fn ask(&self) -> Ask {
        ask(self.cost, self.lease, self.critical)
    }
}

/// Whether two charges of one key may be two things.
fn is_held(limit: &Limit) -> bool {
    matches!(limit, Limit::Leases(_) | Limit::Fleet(_))
}

/// One limit of every kind, in this order.
fn specs() -> impl Strategy<Value = Vec<Spec>> {
    let kinds: Vec<Kind> = RATES.into_iter().chain(HOLDS).collect();
    kinds.into_iter().map(|kind| spec_of(&[kind], SECOND).boxed()).collect::<Vec<_>>()
}

type Group = (u64, Vec<Part>);

fn groups() -> impl Strategy<Value = Vec<Line<Group>>> {
    let part = (0..RATES.len() + HOLDS.len(), 0..3_usize, 0..=4_u64, 0..4_u128, any::<bool>())
        .prop_map(|(rule, key, cost, lease, critical)| Part { rule, key, cost, lease, critical });
    // Mostly at once, sometimes some seconds later.
    let wait = prop_oneof![3 => Just(0), 2 => 0..=5 * SECOND];
    prop::collection::vec((wait, prop::collection::vec(part, 1..=5)).prop_map(Line), 1..40)
}

/// The charges of a group as they count: those of the same key under the same rule together.
fn merged(parts: &[Part]) -> Vec<Part> {
    let mut merged: Vec<Part> = Vec::new();
    for part in parts {
        match merged.iter_mut().find(|other| (other.rule, other.key) == (part.rule, part.key)) {
            Some(other) => other.cost += part.cost,
            None => merged.push(*part),
        }
    }
    merged
}

fn charges<'a>(rules: &[Rule], parts: &[Part]) -> Vec<Charge<'a>> {
    let charge = |part: &Part| Charge { rule: rules[part.rule], key: key(KEYS[part.key]), ask: part.ask() };
    parts.iter().map(charge).collect()
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn a_group_takes_from_all_or_from_none(
        specs in specs(),
        groups in groups(),
        start in any_start(),
        exact in any::<bool>(),
    ) {
        let builder = MemoryStore::builder().max_bytes(1 << 20);
        let store = if exact { builder.exact_keys() } else { builder }.build();
        let mut model = Model::default();
        let rules: Vec<Rule> = specs.iter().enumerate().map(|(family, spec)| {
            assert_eq!(model.define(family, spec.limit()), family);
            store.define(&format!("family {family}"), spec.limit())
        }).collect();
        let mut now = start;
        for Line((wait, mut parts)) in groups {
            now += wait;
            // Two leases of one key are no duplicates; they have a test of their own.
            let leases = |part: &Part| is_held(&model.limit(part.rule));
            let mut seen = Vec::new();
            parts.retain(|part| !leases(part) || {
                let fresh = !seen.contains(&(part.rule, part.key));
                seen.push((part.rule, part.key));
                fresh
            });
            if parts.is_empty() {
                continue;
            }
            let verdict = store.decide_all(&charges(&rules, &parts), Some(at(now))).unwrap();
            prop_assert_eq!(&verdict, &Verdict::of(verdict.outcomes.clone()), "fields are the combination");
            prop_assert_eq!(verdict.outcomes.len(), parts.len());

            for merged in merged(&parts) {
                // Every duplicate is told what the whole was told.
                let same = parts.iter().zip(&verdict.outcomes);
                let mut told = same
                    .filter(|(part, _)| (part.rule, part.key) == (merged.rule, merged.key))
                    .map(|(_, outcome)| *outcome);
                let outcome = told.next().unwrap();
                prop_assert!(told.all(|other| other == outcome));
                // What refused counts the refusal if it counts refusals; else nothing was taken.
                let counts = matches!(model.limit(merged.rule), Limit::Log(_)) && !outcome.allowed;
                let op = if verdict.allowed || counts { Op::Charge } else { Op::Estimate };
                model.step(op, merged.rule, KEYS[merged.key], merged.ask(), now, outcome)?;
            }
            for (index, rule) in rules.iter().enumerate() {
                for name in &KEYS[..3] {
                    let seen = decide(&store, Op::Estimate, *rule, name, 1.into(), Some(now)).unwrap();
                    model.step(Op::Estimate, index, name, 1.into(), now, seen)?;
                }
            }
        }
        prop_assert_eq!(store.stats().evictions, 0);
    }
}

/// Two leases are two things: both are held, or none.
#[test]
fn two_leases_of_one_key_in_a_group_are_both_held_or_none() {
    let store = MemoryStore::new();
    let rule = store.define("in progress", Limit::leases(3, tollgate::Nanos::from_secs(60)).unwrap());
    let two = |first, second| {
        let take = |lease| Charge { rule, key: key("alice"), ask: ask(1, lease, false) };
        store.decide_all(&[take(first), take(second)], Some(at(0))).unwrap()
    };
    assert!(two(1, 2).allowed);
    let held = || store.count_in_progress(rule, key("alice"), Some(at(0))).unwrap().other;
    assert_eq!(held(), 2);
    assert!(!two(3, 4).allowed, "only one place is left");
    assert_eq!(held(), 2);
    // One that is held, and two more than there is room for: the refusal takes nothing, and nothing away.
    let take = |lease| Charge { rule, key: key("alice"), ask: ask(1, lease, false) };
    assert!(!store.decide_all(&[take(1), take(3), take(4)], Some(at(0))).unwrap().allowed);
    assert_eq!(held(), 2);
    for lease in [1, 2] {
        let released = decide(&store, Op::Refund, rule, "alice", ask(1, lease, false), Some(0)).unwrap();
        assert!(released.allowed, "lease {lease} was held");
    }
    assert_eq!(held(), 0);
}

/// A limiter with several quotas, as people build it.
#[test]
fn a_refused_call_costs_nothing_under_any_of_a_limiters_quotas() {
    let clock = ManualClock::at(at(TODAY));
    let limiter = RateLimiter::per_minute(2)
        .and(Quota::per_hour(10).sliding_log())
        .and(Quota::per_day(3).fixed_window())
        .clock(clock.clone())
        .build();
    let passed = limiter.check("alice").unwrap();
    assert_eq!(passed.remaining, 1, "the smallest");
    assert_eq!(limiter.check("alice").unwrap().remaining, 0);
    let refused = limiter.check("alice").unwrap_err();
    assert_eq!((refused.limit, refused.outcome.remaining), (0, 0));
    clock.advance(std::time::Duration::from_secs(60));
    assert_eq!(limiter.check("alice").unwrap().remaining, 0, "the day's third and last");
    for _ in 0..20 {
        assert_eq!(limiter.check("alice").unwrap_err().limit, 2);
    }
    assert_eq!(limiter.check_n("alice", 4).unwrap_err().retry_after(), None, "more than a day's");
    clock.advance(std::time::Duration::from_secs(24 * 3600));
    // Of the hour's ten only three were ever taken, and they are over.
    let peek = limiter.peek("alice", 1).unwrap();
    assert_eq!(peek.remaining, 2);
    assert_eq!(limiter.refund("alice", 5).remaining, 2, "never above a quota");
}

/// How many threads race, on fewer cores.
const THREADS: usize = 4;

/// Groups that take what another group needs, on every thread, while time stands still: what the admitted ones
/// took is what is gone, to the unit. A group that lost a race has given everything back.
#[test]
fn stress_racing_groups_leak_nothing() {
    let kinds = [Bucket, Queue, Interval, Aligned, Anchored, TwoWindows, Log, SubWindows, Concurrency];
    for round in 0..60_u64 {
        let store = MemoryStore::builder().max_bytes(1 << 20).build();
        let capacity = 40 + round;
        let rules: Vec<Rule> = kinds
            .iter()
            .map(|kind| store.define(&format!("{kind:?}"), Spec::new(*kind, capacity, 3, HOUR).limit()))
            .collect();
        let barrier = Barrier::new(THREADS);
        let race = |thread: usize| {
            let mut random = random(round * THREADS as u64 + thread as u64 + 1);
            let mut taken = [[0_u64; 2]; 9];
            barrier.wait();
            for _ in 0..200 {
                let parts: Vec<Part> = (0..=random(4))
                    .map(|_| Part {
                        rule: random(kinds.len() as u64) as usize,
                        key: random(2) as usize,
                        cost: 1 + random(3),
                        lease: 0,
                        critical: false,
                    })
                    .collect();
                let verdict = store.decide_all(&charges(&rules, &parts), Some(at(TODAY))).unwrap();
                if verdict.allowed {
                    for part in parts {
                        taken[part.rule][part.key] += part.cost;
                    }
                }
            }
            taken
        };
        let taken: Vec<_> = thread::scope(|scope| {
            let race = &race;
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || race(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (rule, kind) in kinds.iter().enumerate() {
            for (key, name) in KEYS[..2].iter().enumerate() {
                let sum: u64 = taken.iter().map(|taken| taken[rule][key]).sum();
                assert!(sum <= capacity, "{kind:?}: {sum} of {capacity}");
                let left = decide(&store, Op::Estimate, rules[rule], name, 0.into(), Some(TODAY)).unwrap();
                assert_eq!(left.remaining, capacity - sum, "{kind:?} in round {round}");
            }
        }
        assert_eq!(store.stats().evictions, 0);
    }
}

/// A lease that its holder takes again in a group (a retry) is extended. When the group then loses a race for
/// another limit, the lease must not be gone: its holder is still at work.
#[test]
fn stress_a_lease_survives_a_group_that_was_refused_elsewhere() {
    const ROUNDS: u64 = 10_000;
    let store = MemoryStore::builder().max_bytes(1 << 20).build();
    let leases = store.define("leases", Spec::new(Leases, 10, 1, HOUR).limit());
    let bucket = store.define("bucket", Spec::new(Bucket, 1, 1, HOUR).limit());
    let held = ask(1, 7, false);
    assert!(decide(&store, Op::Charge, leases, "alice", held, Some(TODAY)).unwrap().allowed);
    // Both begin each round at the same moment, as nearly as can be.
    let arrived = AtomicU64::new(0);
    let meet = |round: u64| {
        arrived.fetch_add(1, Ordering::SeqCst);
        let mut spins = 0_u32;
        while arrived.load(Ordering::SeqCst) < 2 * (round + 1) {
            spins += 1;
            if spins < 20_000 { std::hint::spin_loop() } else { thread::yield_now() }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                let name = round.to_string();
                meet(round);
                let _ = decide(&store, Op::Charge, bucket, &name, 1.into(), Some(TODAY)).unwrap();
            }
        });
        for round in 0..ROUNDS {
            let name = round.to_string();
            meet(round);
            let group = [
                Charge { rule: leases, key: key("alice"), ask: held },
                Charge { rule: bucket, key: key(&name), ask: 1.into() },
            ];
            let _ = store.decide_all(&group, Some(at(TODAY))).unwrap();
        }
    });
    let count = store.count_in_progress(leases, key("alice"), Some(at(TODAY))).unwrap();
    assert_eq!(count.other, 1, "the lease is still held");
}
