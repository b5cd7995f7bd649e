//! Calls that are decided on the short way are decided as all others are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::Ask;
use tollgate::core::store::{Charge, Rule};
use tollgate::{Limit, ManualClock, MemoryStore, Nanos, Outcome, Quota, Store};

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
