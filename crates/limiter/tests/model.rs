//! The store equals the sequential model: whatever is asked of it, in whatever order, it answers as a plain map
//! of states would.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::core::limit::Op;
use tollgate::core::store::Rule;
use tollgate::{ManualClock, MemoryStore, MemoryStoreBuilder, Outcome, RateLimiter, Refused};

/// Families of rules, as they are at the start.
#[derive(Clone, Debug)]
struct World {
    unit: u64,
    start: u64,
    /// The plans of each family.
    families: Vec<Line<Vec<Spec>>>,
    steps: Vec<Line<Step>>,
    exact: bool,
    /// Whether the store reads a clock or is told the time.
    by_clock: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// So many quarters of a unit, and up to a nanosecond more or less.
    Wait(u64, i64),
    /// The caller's time goes back: for the store it stands still.
    Back(u64),
    Do {
        op: Op,
        rule: usize,
        key: usize,
        cost: Cost,
        lease: u128,
        critical: bool,
    },
    /// The same charge for all keys at once.
    Many {
        rule: usize,
        cost: Cost,
    },
    Forget {
        rule: usize,
        key: usize,
    },
    Redefine {
        rule: usize,
        spec: Spec,
    },
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Charge),
        2 => Just(Op::Estimate),
        2 => Just(Op::Refund),
        1 => Just(Op::Undo),
        1 => Just(Op::Renew),
    ]
}

fn step(unit: u64, kinds: &'static [Kind]) -> impl Strategy<Value = Line<Step>> {
    let operation = (any_op(), 0..9_usize, 0..KEYS.len(), any_cost(), 0..3_u128, any::<bool>())
        .prop_map(|(op, rule, key, cost, lease, critical)| Step::Do { op, rule, key, cost, lease, critical });
    prop_oneof![
        8 => (0..=40_u64, -1..=1_i64).prop_map(|(quarters, more)| Step::Wait(quarters, more)),
        1 => (0..=40_u64).prop_map(Step::Back),
        24 => operation,
        1 => (0..9_usize, any_cost()).prop_map(|(rule, cost)| Step::Many { rule, cost }),
        1 => (0..9_usize, 0..KEYS.len()).prop_map(|(rule, key)| Step::Forget { rule, key }),
        2 => (0..9_usize, spec_of(kinds, unit)).prop_map(|(rule, spec)| Step::Redefine { rule, spec }),
    ]
    .prop_map(Line)
}

/// Worlds of these kinds; in each family either all plans are of one algorithm, or of any.
fn world(kinds: &'static [Kind], mixed: bool) -> impl Strategy<Value = World> {
    let family = move |unit: u64| {
        prop::sample::select(kinds).prop_flat_map(move |kind| {
            let plans = if mixed { kinds } else { kind.relatives() };
            prop::collection::vec(spec_of(plans, unit), 1..=3).prop_map(Line)
        })
    };
    any_unit().prop_flat_map(move |unit| {
        let families = prop::collection::vec(family(unit), 1..=3);
        let steps = prop::collection::vec(step(unit, kinds), 1..80);
        (any_start(), families, steps, any::<bool>(), any::<bool>()).prop_map(
            move |(start, families, steps, exact, by_clock)| World {
                unit,
                start,
                families,
                steps,
                exact,
                by_clock,
            },
        )
    })
}

/// A store in which keys are near each other and nothing has to be evicted.
fn store(exact: bool, clock: &ManualClock) -> MemoryStoreBuilder {
    let store = MemoryStore::builder().max_bytes(256 << 10).clock(clock.clone());
    if exact { store.exact_keys() } else { store }
}

fn check(world: &World, mixed: bool) -> Result<(), TestCaseError> {
    let clock = ManualClock::at(at(world.start));
    let store = store(world.exact, &clock).build();
    let mut model = Model::default();
    let mut rules: Vec<Rule> = Vec::new();
    let mut kinds = Vec::new();
    for (family, plans) in world.families.iter().enumerate() {
        for spec in &plans.0 {
            let rule = store.define(&format!("family {family}"), spec.limit());
            if !rules.contains(&rule) {
                prop_assert_eq!(model.define(family, spec.limit()), rules.len());
                rules.push(rule);
                kinds.push(spec.kind);
            }
        }
    }
    // The store knows only what it was told.
    let (mut told, mut now) = (world.start, if world.by_clock { world.start } else { 0 });
    for step in &world.steps {
        let time = (!world.by_clock).then_some(told);
        if matches!(step.0, Step::Do { .. } | Step::Many { .. } | Step::Redefine { .. }) {
            now = now.max(told);
        }
        match &step.0 {
            Step::Wait(quarters, more) => {
                told = (told + quarters * world.unit / 4).saturating_add_signed(*more).max(told);
                clock.set(at(told));
            }
            Step::Back(_) if world.by_clock => {}
            Step::Back(quarters) => told = told.saturating_sub(quarters * world.unit / 4),
            Step::Do { op, rule, key, cost, lease, critical } => {
                let rule = rule % rules.len();
                let ask = ask(cost.of(&model.limit(rule)), *lease, *critical);
                let seen = decide(&store, *op, rules[rule], KEYS[*key], ask, time);
                model.step(*op, rule, KEYS[*key], ask, now, seen.unwrap())?;
                let held = store.count_in_progress(rules[rule], crate::common::key(KEYS[*key]), time.map(at));
                prop_assert_eq!(held.unwrap(), model.in_progress(rule, KEYS[*key], now));
            }
            Step::Many { rule, cost } => {
                let rule = rule % rules.len();
                let cost = cost.of(&model.limit(rule));
                let mut outcomes: Vec<(&str, Outcome)> = Vec::new();
                let each =
                    |key: &&'static str, outcome: Result<Outcome, _>| outcomes.push((*key, outcome.unwrap()));
                store.decide_many(rules[rule], &KEYS, cost, time.map(at), each).unwrap();
                prop_assert_eq!(outcomes.len(), KEYS.len());
                for (key, outcome) in outcomes {
                    model.step(Op::Charge, rule, key, cost.into(), now, outcome)?;
                }
            }
            Step::Forget { rule, key } => {
                let rule = rule % rules.len();
                store.forget(rules[rule], crate::common::key(KEYS[*key])).unwrap();
                model.forget(rule, KEYS[*key]);
            }
            Step::Redefine { rule, spec } => {
                let rule = rule % rules.len();
                let mut spec = *spec;
                if !mixed {
                    let relatives = kinds[rule].relatives();
                    spec.kind = relatives[spec.count as usize % relatives.len()];
                }
                store.redefine(rules[rule], spec.limit(), time.map(at)).unwrap();
                prop_assert_eq!(store.limit(rules[rule]), Some(spec.limit()));
                model.redefine(rule, spec.limit(), now);
            }
        }
    }
    let stats = store.stats();
    prop_assert_eq!((stats.evictions, stats.failed_open), (0, 0));
    prop_assert!(stats.bytes <= stats.max_bytes);
    Ok(())
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn the_store_equals_the_model_for_every_rate_limit(world in world(&RATES, false)) {
        check(&world, false)?;
    }

    #[test]
    fn the_store_equals_the_model_for_requests_in_progress(world in world(&HOLDS, false)) {
        check(&world, false)?;
    }

    #[test]
    fn the_store_equals_the_model_when_limits_change_their_algorithm(world in world(&RATES, true)) {
        check(&world, true)?;
    }
}

/// What is done with a limiter; the same as with a store, as people do it.
#[derive(Clone, Debug)]
enum Call {
    Wait(u64, i64),
    Check { plan: usize, key: usize, cost: Cost, own_time: bool },
    CheckMany { plan: usize },
    Peek { plan: usize, key: usize, cost: Cost },
    Refund { plan: usize, key: usize, cost: Cost },
    Reset { plan: usize, key: usize },
    SetQuota { plan: usize, spec: Spec },
}

fn call(unit: u64, kinds: &'static [Kind]) -> impl Strategy<Value = Line<Call>> {
    let (plan, key) = (0..3_usize, 0..KEYS.len());
    prop_oneof![
        8 => (0..=40_u64, -1..=1_i64).prop_map(|(quarters, more)| Call::Wait(quarters, more)),
        20 => (plan.clone(), key.clone(), any_cost(), any::<bool>())
            .prop_map(|(plan, key, cost, own_time)| Call::Check { plan, key, cost, own_time }),
        1 => plan.clone().prop_map(|plan| Call::CheckMany { plan }),
        2 => (plan.clone(), key.clone(), any_cost()).prop_map(|(plan, key, cost)| Call::Peek { plan, key, cost }),
        2 => (plan.clone(), key.clone(), any_cost()).prop_map(|(plan, key, cost)| Call::Refund { plan, key, cost }),
        1 => (plan.clone(), key).prop_map(|(plan, key)| Call::Reset { plan, key }),
        1 => (plan, spec_of(kinds, unit)).prop_map(|(plan, spec)| Call::SetQuota { plan, spec }),
    ]
    .prop_map(Line)
}

type Limiters = (u64, u64, [Spec; 3], Vec<Line<Call>>, bool);

fn limiters() -> impl Strategy<Value = Limiters> {
    (any_unit(), prop::sample::select(&RATES[..])).prop_flat_map(|(unit, kind)| {
        let kinds = kind.relatives();
        let specs = [spec_of(kinds, unit), spec_of(kinds, unit), spec_of(kinds, unit)];
        let calls = prop::collection::vec(call(unit, kinds), 1..80);
        (Just(unit), any_start(), specs, calls, any::<bool>())
    })
}

fn outcome(answer: Result<Outcome, Refused>) -> Result<Outcome, TestCaseError> {
    match answer {
        Ok(outcome) => {
            prop_assert!(outcome.allowed);
            Ok(outcome)
        }
        Err(refused) => {
            prop_assert!(!refused.outcome.allowed);
            prop_assert_eq!(refused.limit, 0);
            Ok(refused.outcome)
        }
    }
}

proptest! {
    #![proptest_config(config(2000))]

    #[test]
    fn a_limiter_and_its_plans_equal_the_model((unit, start, specs, calls, exact) in limiters()) {
        let clock = ManualClock::at(at(start));
        let [free, pro, gold] = specs.map(|spec| spec.quota());
        let limiter = RateLimiter::builder(free)
            .plan("pro", pro)
            .plan("gold", gold)
            .own_store(store(exact, &clock))
            .build();
        let plans = [&limiter, limiter.plan("pro").unwrap(), limiter.plan("gold").unwrap()];
        let mut model = Model::default();
        // Plans of the same limit are rules of their own: each can change for itself.
        let rules = [free, pro, gold].map(|quota| model.define(0, quota.limit().unwrap()));
        let mut now = start;
        for call in calls {
            match call.0 {
                Call::Wait(quarters, more) => {
                    now = (now + quarters * unit / 4).saturating_add_signed(more).max(now);
                    clock.set(at(now));
                }
                Call::Check { plan, key, cost, own_time } => {
                    let cost = cost.of(&model.limit(rules[plan]));
                    let answer = match own_time {
                        true => plans[plan].check_n_at(KEYS[key], cost, at(now)),
                        false => plans[plan].check_n(KEYS[key], cost),
                    };
                    model.step(Op::Charge, rules[plan], KEYS[key], cost.into(), now, outcome(answer)?)?;
                }
                Call::CheckMany { plan } => {
                    let mut seen = Vec::new();
                    plans[plan].check_many(&KEYS, |key, outcome| seen.push((*key, outcome)));
                    prop_assert_eq!(seen.len(), KEYS.len());
                    for (key, outcome) in seen {
                        model.step(Op::Charge, rules[plan], key, 1.into(), now, outcome)?;
                    }
                }
                Call::Peek { plan, key, cost } => {
                    let cost = cost.of(&model.limit(rules[plan]));
                    let seen = outcome(plans[plan].peek(KEYS[key], cost))?;
                    model.step(Op::Estimate, rules[plan], KEYS[key], cost.into(), now, seen)?;
                }
                Call::Refund { plan, key, cost } => {
                    let cost = cost.of(&model.limit(rules[plan]));
                    let seen = plans[plan].refund(KEYS[key], cost);
                    model.step(Op::Refund, rules[plan], KEYS[key], cost.into(), now, seen)?;
                }
                Call::Reset { plan, key } => {
                    plans[plan].reset(KEYS[key]);
                    model.forget(rules[plan], KEYS[key]);
                }
                Call::SetQuota { plan, spec } => {
                    plans[plan].set_quota_of(0, spec.quota(), Some(at(now))).unwrap();
                    model.redefine(rules[plan], spec.quota().limit().unwrap(), now);
                }
            }
        }
        let stats = limiter.store().stats();
        prop_assert_eq!((stats.evictions, stats.failed_open), (0, 0));
    }
}

/// The clock and the caller's own time may alternate: the store's time is the latest of both.
#[test]
fn time_told_and_time_read_count_from_the_same_origin() {
    let clock = ManualClock::at(at(100 * SECOND));
    let limiter = RateLimiter::per_second(1).clock(clock.clone()).build();
    assert!(limiter.check("alice").is_ok());
    assert!(limiter.check_at("alice", at(50 * SECOND)).is_err(), "earlier than the clock");
    assert!(limiter.check_at("alice", at(101 * SECOND)).is_ok());
    assert!(limiter.check("alice").is_err(), "the clock is behind what was told");
    clock.advance(Duration::from_secs(2));
    assert!(limiter.check("alice").is_ok());
}
