//! The script against its twin: random batches of charges, refunds, estimates, leases and changes of limits give the same
//! outcomes from Lua as from the pure core.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate_core::concurrency::LeaseId;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::log::{Log, SubWindows};
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_core::{Limit, Nanos, Outcome, Timestamp};
use tollgate_redis::RedisStore;
use tollgate_testkit::RedisServer;

/// Tasks that ask at the same instant, so that their decisions share calls.
const TASKS: usize = 64;
/// Keys that they ask for, so that some of the decisions of a call are for the same key, one after the other.
const KEYS: usize = 24;
const BATCHES: usize = 100_000;

struct Random(TestRng);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// A limit of one kind with random numbers, with `unit` nanoseconds to its unit of time.
fn limit(kind: usize, random: &mut Random, unit: u64) -> Limit {
    let time = |n: u64| Nanos::new(n * unit);
    let count = 1 + random.below(12);
    let period = random.of(&[1_000, 10_000, 333_333, 1_000_000, 60_000_000]);
    let refill = 1 + random.below(9);
    let offset = random.below(period);
    let buckets = random.of(&[1, 2, 4, 5, 10]);
    let whole = period / 20 * 20;
    match kind {
        0 => Limit::token_bucket(count, refill, time(period)),
        1 => Limit::leaky_queue(count, refill, time(period), random.below(count + 1)),
        2 => Limit::fixed_window(count, time(period), WindowStart::Aligned { offset: time(offset) }),
        3 => Limit::fixed_window(count, time(period), WindowStart::FirstCall),
        4 => Limit::sliding_window(count, time(period)),
        5 => Limit::interval_bucket(count, refill, time(period)),
        6 => Ok(Limit::Log(Log::new(count, time(period)).unwrap())),
        7 => Ok(Limit::Log(Log::new(count, time(period)).unwrap().count_rejected(true))),
        8 => Ok(Limit::Log(Log::new(count, time(period)).unwrap().min_difference(time(period / 7)).unwrap())),
        9 => Limit::sub_windows(count, time(whole), buckets, SubWindows::NPlusOne),
        10 => Limit::sub_windows(count, time(whole), buckets, SubWindows::N),
        11 => Limit::leases(count, time(period)),
        _ => {
            let mode = random.of(&[FleetMode::Allocation, FleetMode::Total]);
            Limit::fleet(count, (random.below(4), 4), mode, time(period))
        }
    }
    .unwrap()
}

const KINDS: usize = 13;

/// The same limit twice: for the twin, that counts in microseconds, and for the store.
fn both(kind: usize, random: &mut Random) -> (Limit, Limit) {
    let seed = random.0.next_u64().to_le_bytes().repeat(4);
    let make = |unit| {
        let mut random = Random(TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
        limit(kind, &mut random, unit)
    };
    (make(1), make(1000))
}

struct Family {
    rule: Rule,
    limit: Limit,
    changed: Timestamp,
}

/// What a task's key has under each family: the state, and the limit that it was charged under.
#[derive(Default)]
struct Twin(HashMap<usize, (Limit, State)>);

impl Twin {
    fn state(&mut self, family: usize, known: &Family) -> &mut State {
        let (limit, state) = self.0.entry(family).or_insert_with(|| (known.limit, known.limit.fresh()));
        if *limit != known.limit {
            *state = known.limit.convert(limit, state, known.changed);
            *limit = known.limit;
        }
        state
    }

    fn charge(&mut self, families: &[Family], asks: &[(usize, Ask)], now: Timestamp) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for &(family, ask) in asks {
            let limit = families[family].limit;
            outcomes.push(limit.estimate(self.state(family, &families[family]), now, ask).unwrap());
        }
        let all = outcomes.iter().all(|outcome| outcome.allowed);
        for (&(family, ask), outcome) in asks.iter().zip(&mut outcomes) {
            let limit = families[family].limit;
            if all || (!outcome.allowed && limit.counts_refused()) {
                *outcome = limit.apply(Op::Charge, self.state(family, &families[family]), now, ask, now);
            }
        }
        outcomes
    }
}

fn in_micros(outcome: Outcome) -> Outcome {
    let micros = |time: Nanos| Nanos::new(time.as_u64() / 1000);
    Outcome {
        retry_after: outcome.retry_after.map(micros),
        reset_after: micros(outcome.reset_after),
        delay: micros(outcome.delay),
        ..outcome
    }
}

fn quiet(outcomes: Vec<Outcome>) -> Vec<Outcome> {
    let left = |outcome: Outcome| Outcome::allow(outcome.remaining, outcome.reset_after.as_u64());
    outcomes.into_iter().map(left).collect()
}

enum Plan {
    Charges(Vec<(usize, Ask)>),
    One(Op, usize, Ask),
}

fn plan(random: &mut Random, families: &[Family], now: Timestamp) -> Plan {
    let single = |random: &mut Random, op: Op| {
        Plan::One(op, random.below(families.len() as u64) as usize, Ask::from(0))
    };
    match random.below(10) {
        0 => single(random, Op::Refund),
        1 => single(random, Op::Estimate),
        // Only leases can be renewed.
        2 => Plan::One(Op::Renew, random.of(&[11, 12, KINDS + 11, KINDS + 12]), Ask::from(0)),
        3 => single(random, Op::Undo),
        _ => {
            let mut chosen: Vec<usize> = Vec::new();
            for _ in 0..=random.below(5) {
                let family = random.below(families.len() as u64) as usize;
                if !chosen.contains(&family) {
                    chosen.push(family);
                }
            }
            Plan::Charges(chosen.into_iter().map(|family| (family, Ask::from(0))).collect())
        }
    }
    .filled(random, families, now)
}

impl Plan {
    fn is_chore(&self, families: &[Family]) -> bool {
        let Self::One(op, family, _) = self else { return false };
        let leased = matches!(families[*family].limit, Limit::Leases(_) | Limit::Fleet(_));
        leased && *op != Op::Estimate
    }

    /// With costs and leases.
    fn filled(self, random: &mut Random, families: &[Family], now: Timestamp) -> Self {
        let mut fill = |family: usize, op: Op| {
            let capacity = families[family].limit.capacity();
            let cost = match random.below(10) {
                0 => 0,
                1 => capacity + random.below(3),
                2 | 3 => 1 + random.below(capacity),
                _ => 1,
            };
            let gives_back = matches!(op, Op::Refund | Op::Undo);
            let taken = gives_back.then(|| Timestamp::from_nanos(now.as_nanos() - random.below(2_000_000)));
            let lease = LeaseId(u128::from(1 + random.below(6)));
            Ask { lease, critical: random.below(3) == 0, taken, ..Ask::from(cost) }
        };
        match self {
            Self::Charges(asks) => Self::Charges(
                asks.into_iter().map(|(family, _)| (family, fill(family, Op::Charge))).collect(),
            ),
            Self::One(op, family, _) => Self::One(op, family, fill(family, op)),
        }
    }
}

/// An instant of the twin, as the store is told it.
fn real(now: Timestamp) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos() * 1000)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_and_the_core_agree_on_every_outcome() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10)).build().unwrap();
    store.ready().await.unwrap();
    let seed = std::env::var("TWIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_115_u64);
    let mut random = Random(TestRng::from_seed(RngAlgorithm::ChaCha, &seed.to_le_bytes().repeat(4)));
    let mut families: Vec<Family> = (0..2 * KINDS)
        .map(|number| {
            let (limit, real) = both(number % KINDS, &mut random);
            let rule = store.define(&format!("family {number}"), real).unwrap();
            Family { rule, limit, changed: Timestamp::ZERO }
        })
        .collect();
    let mut twins: Vec<Twin> = (0..KEYS).map(|_| Twin::default()).collect();
    let keys: Vec<String> = (0..TASKS).map(|task| format!("key {}", task % KEYS)).collect();
    let mut now = Timestamp::from_nanos(1_700_000_000_000_000);
    let (mut refused, mut changes) = (0, 0);
    for round in 0..2 * BATCHES / (TASKS + KEYS) + 1 {
        now = now
            + Nanos::new(match random.below(10) {
                0 => 0,
                1 => random.below(40_000_000),
                2 => 1,
                _ => random.below(400_000),
            });
        if round % 7 == 6 {
            let number = random.below(families.len() as u64) as usize;
            let (limit, real_limit) = both(number % KINDS, &mut random);
            store.redefine(families[number].rule, real_limit, Some(real(now))).unwrap();
            families[number] = Family { rule: families[number].rule, limit, changed: now };
            changes += 1;
        }
        // Chores travel in a queue of their own, so who shares a key with one cannot tell which comes first.
        let tidies = round % 2 == 0;
        let mut next = || loop {
            let plan = plan(&mut random, &families, now);
            if tidies || !plan.is_chore(&families) {
                return plan;
            }
        };
        let plans: Vec<Plan> = (0..if tidies { KEYS } else { TASKS }).map(|_| next()).collect();
        let answers = join_all(plans.iter().zip(&keys).map(|(plan, key)| {
            let key = KeyRef { kind: Kind::Bytes, bytes: key.as_bytes() };
            let families = &families;
            let charge = move |family: usize, ask: Ask| Charge {
                rule: families[family].rule,
                key,
                ask: Ask { taken: ask.taken.map(real), ..ask },
            };
            let store = &store;
            async move {
                match plan {
                    Plan::Charges(asks) => {
                        let charges: Vec<_> = asks.iter().map(|&(family, ask)| charge(family, ask)).collect();
                        store.charge(&charges, Some(real(now))).await.unwrap().outcomes
                    }
                    Plan::One(op, family, ask) => {
                        vec![store.apply(*op, charge(*family, *ask), Some(real(now))).await.unwrap()]
                    }
                }
            }
        }))
        .await;
        for (task, (plan, answer)) in plans.iter().zip(answers).enumerate() {
            let twin = &mut twins[task % KEYS];
            let answer: Vec<Outcome> = answer.into_iter().map(in_micros).collect();
            let (expected, what) = match plan {
                Plan::Charges(asks) => {
                    let what: Vec<_> =
                        asks.iter().map(|(family, ask)| (families[*family].limit, *ask)).collect();
                    (twin.charge(&families, asks, now), format!("{what:?}"))
                }
                Plan::One(op, family, ask) => {
                    let limit = families[*family].limit;
                    let before = format!("{:?}", twin.state(*family, &families[*family]));
                    let taken = ask.taken.unwrap_or(now);
                    let outcome = limit.apply(*op, twin.state(*family, &families[*family]), now, *ask, taken);
                    (vec![outcome], format!("{op:?} {limit:?} {ask:?}, {before}"))
                }
            };
            // Of an undo only what is left matters: nobody asks it whether anything is allowed.
            let (answer, expected) = match plan {
                Plan::One(Op::Undo, ..) => (quiet(answer), quiet(expected)),
                _ => (answer, expected),
            };
            refused += usize::from(expected.iter().any(|outcome| !outcome.allowed));
            assert_eq!(answer, expected, "seed {seed}, round {round}, at {now:?}: {what}");
        }
    }
    assert!(
        refused > BATCHES / 10 && changes > 100,
        "{refused} refusals, {changes} changes: too few to mean anything"
    );
}
