//! Calls that are decided on the short way are decided as all others are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::Ask;
use tollgate::core::store::{Charge, Rule};
use tollgate::{Limit, ManualClock, MemoryStore, Nanos, Outcome, Outcomes, Quota, Store};

/// What a call charges: some of the limits, each with a key and a cost.
#[derive(Clone, Debug)]
struct Call {
    wait: u64,
    parts: Vec<(usize, usize, u64)>,
    critical: bool,
    /// Whether it ends at once, or some time later.
    ends: bool,
}

const KINDS: [Kind; 5] = [Bucket, Concurrency, CountedFleet, Queue, Aligned];

fn calls() -> impl Strategy<Value = Vec<Line<Call>>> {
    let part = (0..KINDS.len(), 0..3_usize, prop_oneof![4 => Just(1), 1 => 0..=3_u64]);
    let wait = prop_oneof![3 => Just(0), 2 => 0..=2 * SECOND];
    let call = (wait, prop::collection::vec(part, 1..=4), any::<bool>(), any::<bool>());
    let call = call.prop_map(|(wait, parts, critical, ends)| Line(Call { wait, parts, critical, ends }));
    prop::collection::vec(call, 1..60)
}

/// A store with a limit of each kind, and a log that never refuses: a call that also looks there goes the long way.
struct World {
    store: MemoryStore,
    clock: ManualClock,
    rules: Vec<Rule>,
    log: Rule,
}

impl World {
    fn new(specs: &[Spec], exact: bool) -> Self {
        let clock = ManualClock::at(at(TODAY));
        let builder = MemoryStore::builder().max_bytes(1 << 20).clock(clock.clone());
        let store = if exact { builder.exact_keys() } else { builder }.build();
        let rules = specs.iter().enumerate();
        let rules =
            rules.map(|(family, spec)| store.define(&format!("family {family}"), spec.limit())).collect();
        let log = store.define("log", Limit::sliding_log(1, Nanos::from_secs(1)).unwrap());
        Self { store, clock, rules, log }
    }

    fn charges(&self, call: &Call) -> Vec<Charge<'static>> {
        let ask = |cost| Ask { critical: call.critical, ..Ask::from(cost) };
        let parts = call.parts.iter();
        parts.map(|(rule, name, cost)| charge(self.rules[*rule], KEYS[*name], ask(*cost))).collect()
    }

    fn decide(&self, call: &Call, goes_the_long_way: bool) -> Vec<Outcome> {
        let mut charges = self.charges(call);
        if goes_the_long_way {
            charges.push(charge(self.log, "looks", Ask::from(0)));
        }
        let mut told = Outcomes::new();
        if let Some(allowed) = self.store.charge_at_once(&charges, None, &mut told) {
            assert!(!goes_the_long_way);
            assert_eq!(allowed, told.iter().all(|outcome| outcome.allowed));
            return told.into_vec();
        }
        let mut outcomes = self.store.decide_all(&charges, None).unwrap().outcomes;
        outcomes.truncate(call.parts.len());
        outcomes
    }

    /// Gives back all places of a call.
    fn end(&self, call: &Call) {
        for (charge, (kind, ..)) in self.charges(call).into_iter().zip(&call.parts) {
            if matches!(KINDS[*kind], Concurrency | CountedFleet) {
                self.store.give_back(charge);
            }
        }
    }

    fn in_progress(&self) -> Vec<u64> {
        let rules = self.rules.iter().flat_map(|rule| KEYS[..3].iter().map(|name| (*rule, *name)));
        rules
            .map(|(rule, name)| self.store.count_in_progress(rule, key(name), None).unwrap().total())
            .collect()
    }
}

fn charge(rule: Rule, name: &'static str, ask: Ask) -> Charge<'static> {
    Charge { rule, key: key(name), ask }
}

proptest! {
    #![proptest_config(config(1500))]

    #[test]
    fn the_short_way_decides_as_the_long_one(
        specs in KINDS.map(|kind| spec_of(&[kind], SECOND).boxed()).to_vec(),
        calls in calls(),
        exact in any::<bool>(),
    ) {
        let (short, long) = (World::new(&specs, exact), World::new(&specs, exact));
        let mut lasting: Vec<Call> = Vec::new();
        for Line(call) in calls {
            for world in [&short, &long] {
                world.clock.advance(Duration::from_nanos(call.wait));
            }
            let outcomes = short.decide(&call, false);
            prop_assert_eq!(&outcomes, &long.decide(&call, true), "{:?}", call);
            if outcomes.iter().all(|outcome| outcome.allowed) {
                lasting.push(call.clone());
            }
            if call.ends && let Some(ended) = lasting.pop() {
                short.end(&ended);
                long.end(&ended);
            }
            prop_assert_eq!(short.in_progress(), long.in_progress());
        }
        for call in lasting {
            short.end(&call);
        }
        prop_assert_eq!(short.in_progress(), vec![0; 3 * KINDS.len()], "all has come back");
    }
}

/// Threads that take the last places, and rates that refuse: nothing is lost, and there are never more than there may be.
#[test]
fn stress_places_that_are_counted_all_come_back() {
    const THREADS: usize = 4;
    const PLACES: u64 = 3;
    for round in 0..40 {
        let store = MemoryStore::builder().max_bytes(1 << 20).build();
        let fleet = Limit::fleet(4, (1, 4), tollgate::FleetMode::Allocation, Nanos::from_secs(1)).unwrap();
        let Limit::Fleet(fleet) = fleet else { panic!("{fleet:?}") };
        let rate = store.define("rate", Quota::per_hour(100 + round).limit().unwrap());
        let own = store.define("own", Limit::concurrency(2).unwrap());
        let all = store.define("all", Limit::Fleet(fleet.counted()));
        let barrier = Barrier::new(THREADS);
        let race = |name: &'static str| {
            let charges =
                [(rate, name), (own, name), (all, "")].map(|(rule, key)| charge(rule, key, Ask::from(1)));
            barrier.wait();
            let mut passed = 0_u64;
            for _ in 0..400 {
                if store.decide_all(&charges, None).unwrap().allowed {
                    passed += 1;
                    let used = store.count_in_progress(all, key(""), None).unwrap();
                    assert!(used.other <= PLACES && used.critical == 0, "{used:?}");
                    charges[1..].iter().for_each(|held| store.give_back(*held));
                }
            }
            passed
        };
        let passed: u64 = thread::scope(|scope| {
            let race = &race;
            let threads = (0..THREADS).map(|at| scope.spawn(move || race(["alice", "bob"][at % 2])));
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        // Each of the two has its own rate, of which nothing is lost to calls that were refused elsewhere.
        assert!(passed <= 2 * (100 + round), "{passed}");
        for (rule, name) in [(own, "alice"), (own, "bob"), (all, "")] {
            assert_eq!(store.count_in_progress(rule, key(name), None).unwrap().total(), 0, "{name}");
        }
        for name in ["alice", "bob"] {
            let left = store.decide_all(&[charge(rate, name, Ask::from(0))], None).unwrap().remaining;
            assert!(left == 0 || passed < 2 * (100 + round), "{name} has {left} left");
        }
    }
}

/// A fleet, and the rule of its counted places.
fn fleet_of(store: &MemoryStore, places: u64) -> Rule {
    let fleet = Limit::fleet(places, (0, 1), tollgate::FleetMode::Total, Nanos::from_secs(60)).unwrap();
    let Limit::Fleet(fleet) = fleet else { panic!("{fleet:?}") };
    store.define("all", Limit::Fleet(fleet.counted()))
}

/// Found by a reader: a place that came free while a call was refused made it pass without one. Nobody else has to agree to such a
/// call, so it has no rate.
#[test]
fn stress_who_passes_has_a_place() {
    for beside in [false, true] {
        let store = MemoryStore::builder().max_bytes(1 << 20).build();
        let all = fleet_of(&store, 1);
        let own = store.define("own", Limit::concurrency(9).unwrap());
        let inside = AtomicU64::new(0);
        let ask = |turns: u64| {
            let charges = [charge(all, "", Ask::from(1)), charge(own, "alice", Ask::from(1))];
            let charges = &charges[..1 + usize::from(beside)];
            for turn in 0..turns {
                if store.decide_all(charges, None).unwrap().allowed {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two have the only place");
                    (0..turn % 7).for_each(|_| std::hint::spin_loop());
                    inside.fetch_sub(1, Ordering::SeqCst);
                    charges.iter().for_each(|held| store.give_back(*held));
                }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| ask(300_000));
            ask(300_000);
        });
        assert_eq!(store.count_in_progress(all, key(""), None).unwrap().total(), 0);
        assert_eq!(store.count_in_progress(own, key("alice"), None).unwrap().total(), 0);
    }
}

/// Found by a reader: a rule that meant a fleet and means something else by now gave its places back to the fleet for ever.
#[test]
fn what_a_rule_holds_comes_back_to_what_the_rule_was() {
    let store = MemoryStore::new();
    let rule = fleet_of(&store, 5);
    let held = charge(rule, "", Ask::from(1));
    let in_progress = || store.count_in_progress(rule, key(""), None).unwrap().total();
    assert!(store.decide_all(&[held], None).unwrap().allowed);
    store.redefine(rule, Limit::concurrency(1).unwrap(), None).unwrap();
    assert!(store.decide_all(&[held], None).unwrap().allowed, "those of the fleet are none of its own");
    assert_eq!(in_progress(), 1);
    // Of two that cannot be told apart the older goes first.
    store.give_back(held);
    assert_eq!(in_progress(), 1);
    store.give_back(held);
    assert_eq!(in_progress(), 0);
    assert_eq!(store.count_keys(None), 0, "nor is anything left of the fleet");
    assert!(store.decide_all(&[held], None).unwrap().allowed);
}

/// Found by a reader: to forget a fleet let those who still had places give back those of others.
#[test]
fn a_fleet_is_not_forgotten_while_it_is_used() {
    let store = MemoryStore::new();
    let rule = fleet_of(&store, 1);
    let held = charge(rule, "", Ask::from(1));
    assert!(store.decide_all(&[held], None).unwrap().allowed);
    store.forget(rule, key("")).unwrap();
    assert!(!store.decide_all(&[held], None).unwrap().allowed, "the place is taken");
    store.give_back(held);
    assert!(store.decide_all(&[held], None).unwrap().allowed);
}
