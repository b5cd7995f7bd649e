//! The script against its twin: random batches of charges, refunds, estimates, leases, resets and changes of limits and of
//! algorithms, and clocks that step back, give the same outcomes from Lua as from the pure core.
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
const BATCHES: usize = 80_000;
/// Further ones, under clocks that step back.
const STEPS: usize = 20_000;
/// Ids of leases: few, so that they meet.
const LEASES: u64 = 6;

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
    let most = random.of(&[12, 12, 12, 200]);
    let count = 1 + random.below(most);
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

#[derive(Clone, Copy)]
struct Family {
    rule: Rule,
    kind: usize,
    limit: Limit,
    /// When it changed to this limit; of one that was defined beside others, nothing.
    changed: Option<Timestamp>,
}

/// Where the script keeps a state. A change from one to another starts anew, or goes on from what is still there.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Room {
    Rates,
    Log,
    Leases,
}

fn room(limit: &Limit) -> Room {
    match limit {
        Limit::Log(_) => Room::Log,
        Limit::Leases(_) | Limit::Fleet(_) => Room::Leases,
        _ => Room::Rates,
    }
}

/// What a task's key has under each family: the state, and the limit that it was charged under.
#[derive(Clone, Default)]
struct Twin(HashMap<(usize, Room), (Limit, State)>);

impl Twin {
    /// What is kept, and under which limit. It moves when it is seen, if the other limit is nobody's any more.
    fn state(&mut self, family: usize, known: &Family) -> &mut (Limit, State) {
        let fresh = || (known.limit, known.limit.fresh());
        let kept = self.0.entry((family, room(&known.limit))).or_insert_with(fresh);
        let (limit, state) = kept;
        // Requests in progress are the same under all limits.
        let changed = known.changed.or((room(&known.limit) == Room::Leases).then_some(BEGIN));
        if let Some(changed) = changed.filter(|_| *limit != known.limit) {
            *state = known.limit.convert(limit, state, changed);
            *limit = known.limit;
        }
        kept
    }

    /// The state in terms of the limit, and what becomes of a refusal if it stays under another.
    fn seen(
        &mut self,
        family: usize,
        known: &Family,
        now: Timestamp,
    ) -> (State, impl Fn(Outcome, u64) -> Outcome + use<>) {
        let limit = known.limit;
        let (kept_under, kept) = self.state(family, known).clone();
        let seen = match kept_under == limit {
            true => kept.clone(),
            false => limit.convert(&kept_under, &kept, now),
        };
        let told = move |outcome: Outcome, cost| match outcome.allowed || kept_under == limit {
            true => outcome,
            false => limit.refused_beside(outcome, &kept_under, &kept, now, cost),
        };
        (seen, told)
    }

    fn apply(&mut self, op: Op, family: usize, known: &Family, ask: Ask, now: Timestamp) -> Outcome {
        let limit = known.limit;
        let (before, told) = self.seen(family, known, now);
        let mut after = before.clone();
        let mut outcome = limit.apply(op, &mut after, now, ask, ask.taken.unwrap_or(now));
        let kept = self.state(family, known);
        if after != before {
            *kept = (limit, after);
        } else if matches!(op, Op::Charge | Op::Estimate) {
            outcome = told(outcome, ask.cost);
        }
        let (state, mut same) = (&kept.1, before);
        if room(&limit) == Room::Leases {
            // Leases are summed up where a rate of the same family would be.
            let written = match op {
                Op::Charge => outcome.allowed && ask.cost > 0,
                Op::Estimate => false,
                _ => {
                    // Nobody has this lease: only what is over goes.
                    let _ = limit.apply(Op::Refund, &mut same, now, Ask::from(0), now);
                    *state != same
                }
            };
            if written {
                self.0.remove(&(family, Room::Rates));
            }
        }
        outcome
    }

    /// The outcomes, and which of them refuses only because of leases of the same call: when that could pass is not defined.
    fn charge(
        &mut self,
        families: &[Family],
        asks: &[(usize, Ask)],
        now: Timestamp,
    ) -> (Vec<Outcome>, Option<usize>) {
        // Leases of one family come one after the other, and each has to fit with those before it.
        let mut after = self.clone();
        let charged: Vec<Outcome> = asks
            .iter()
            .map(|&(family, ask)| after.apply(Op::Charge, family, &families[family], ask, now))
            .collect();
        let Some(refused) = charged.iter().position(|outcome| !outcome.allowed) else {
            *self = after;
            return (charged, None);
        };
        let mut outcomes = Vec::new();
        for &(family, ask) in asks {
            let known = &families[family];
            let (state, told) = self.seen(family, known, now);
            let mut outcome = told(known.limit.estimate(&state, now, ask).unwrap(), ask.cost);
            if !outcome.allowed && known.limit.counts_refused() {
                outcome = self.apply(Op::Charge, family, known, ask, now);
            }
            outcomes.push(outcome);
        }
        let crowded = outcomes[refused].allowed;
        outcomes[refused].allowed = false;
        (outcomes, crowded.then_some(refused))
    }

    fn reset(&mut self, family: usize, known: &Family) {
        self.0.remove(&(family, room(&known.limit)));
        if room(&known.limit) == Room::Leases {
            self.0.remove(&(family, Room::Rates));
        }
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
    let any = |random: &mut Random| random.below(families.len() as u64) as usize;
    let leased = |family: &usize| room(&families[*family].limit) == Room::Leases;
    match random.below(10) {
        0 => Plan::One(Op::Refund, any(random), Ask::from(0)),
        1 => Plan::One(Op::Estimate, any(random), Ask::from(0)),
        2 => {
            let leases: Vec<usize> = (0..families.len()).filter(leased).collect();
            // Only leases can be renewed.
            match leases.is_empty() {
                true => Plan::One(Op::Estimate, any(random), Ask::from(0)),
                false => Plan::One(Op::Renew, random.of(&leases), Ask::from(0)),
            }
        }
        3 => Plan::One(Op::Undo, any(random), Ask::from(0)),
        _ => {
            let mut chosen: Vec<usize> = Vec::new();
            for _ in 0..=random.below(5) {
                let family = any(random);
                if !chosen.contains(&family) {
                    chosen.push(family);
                }
            }
            if let Some(family) = chosen.iter().copied().find(leased) {
                chosen.extend(vec![family; random.of(&[0, 0, 1, 2])]);
            }
            Plan::Charges(chosen.into_iter().map(|family| (family, Ask::from(0))).collect())
        }
    }
    .filled(random, families, now)
}

impl Plan {
    fn is_chore(&self, families: &[Family]) -> bool {
        let Self::One(op, family, _) = self else { return false };
        room(&families[*family].limit) == Room::Leases && *op != Op::Estimate
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
            let lease = LeaseId(u128::from(1 + random.below(LEASES)));
            Ask { lease, critical: random.below(3) == 0, taken, ..Ask::from(cost) }
        };
        match self {
            Self::Charges(asks) => {
                let mut filled: Vec<(usize, Ask)> = Vec::new();
                for (family, _) in asks {
                    let mut ask = fill(family, Op::Charge);
                    while filled.iter().any(|(other, taken)| (*other, taken.lease) == (family, ask.lease)) {
                        ask.lease = LeaseId(ask.lease.0 % u128::from(LEASES) + 1);
                    }
                    filled.push((family, ask));
                }
                Self::Charges(filled)
            }
            Self::One(op, family, _) => Self::One(op, family, fill(family, op)),
        }
    }
}

/// An instant of the twin, as the store is told it.
fn real(now: Timestamp) -> Timestamp {
    Timestamp::from_nanos(now.as_nanos() * 1000)
}

fn key(bytes: &str) -> KeyRef<'_> {
    KeyRef { kind: Kind::Bytes, bytes: bytes.as_bytes() }
}

async fn start(server: &RedisServer) -> (RedisStore, u64, Random) {
    let store = RedisStore::builder(server.url()).deadline(Duration::from_secs(10)).build().unwrap();
    store.ready().await.unwrap();
    let seed = std::env::var("TWIN_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_115_u64);
    let random = Random(TestRng::from_seed(RngAlgorithm::ChaCha, &seed.to_le_bytes().repeat(4)));
    (store, seed, random)
}

/// In microseconds, and later than the server's clock, by which states are reset: nothing may expire meanwhile.
const BEGIN: Timestamp = Timestamp::from_nanos(4_000_000_000_000_000);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_and_the_core_agree_on_every_outcome() {
    let server = RedisServer::start();
    let (store, seed, mut random) = start(&server).await;
    let mut families: Vec<Family> = (0..2 * KINDS)
        .map(|number| {
            let (limit, real) = both(number % KINDS, &mut random);
            let rule = store.define(&format!("family {number}"), real).unwrap();
            Family { rule, kind: number % KINDS, limit, changed: None }
        })
        .collect();
    let mut beside: Vec<Vec<Family>> = vec![Vec::new(); families.len()];
    let mut twins: Vec<Twin> = (0..KEYS).map(|_| Twin::default()).collect();
    let keys: Vec<String> = (0..TASKS).map(|task| format!("key {}", task % KEYS)).collect();
    let mut now = BEGIN;
    let (mut refused, mut changes, mut together) = (0, 0, 0);
    for round in 0..2 * BATCHES / (TASKS + KEYS) + 1 {
        now = now
            + Nanos::new(match random.below(10) {
                0 => 0,
                1 => random.below(40_000_000),
                2 => 1,
                _ => random.below(400_000),
            });
        if round % 3 == 2 {
            let number = random.below(families.len() as u64) as usize;
            let Family { rule, kind, .. } = families[number];
            let kind = if random.below(2) == 0 { kind } else { random.below(KINDS as u64) as usize };
            let (limit, real_limit) = both(kind, &mut random);
            families[number] = match random.below(3) {
                0 => {
                    store.redefine(rule, real_limit, Some(real(now))).unwrap();
                    beside[number].retain(|known| known.rule != rule);
                    Family { rule, kind, limit, changed: Some(now) }
                }
                // Other plans of the same limiter, that come and go.
                1 => {
                    let rule = store.define(&format!("family {number}"), real_limit).unwrap();
                    beside[number].push(Family { rule, kind, limit, changed: None });
                    Family { rule, kind, limit, changed: None }
                }
                _ if beside[number].is_empty() => families[number],
                _ => random.of(&beside[number]),
            };
            changes += 1;
        }
        if round % 5 == 4 {
            // By the server's own clock.
            let number = random.below(families.len() as u64) as usize;
            let some = || (0..KEYS).filter(|key| (key + round / 5) % 4 == 0);
            let resets = some().map(|place| store.reset(families[number].rule, key(&keys[place])));
            join_all(resets).await.into_iter().for_each(Result::unwrap);
            some().for_each(|place| twins[place].reset(number, &families[number]));
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
        let answers = join_all(plans.iter().zip(&keys).map(|(plan, name)| {
            let families = &families;
            let charge = move |family: usize, ask: Ask| Charge {
                rule: families[family].rule,
                key: key(name),
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
            let mut answer: Vec<Outcome> = answer.into_iter().map(in_micros).collect();
            let (expected, what) = match plan {
                Plan::Charges(asks) => {
                    let what: Vec<_> = asks
                        .iter()
                        .map(|(family, ask)| {
                            let known = &families[*family];
                            (
                                known.limit,
                                *ask,
                                known.changed,
                                twin.0.get(&(*family, room(&known.limit))).cloned(),
                            )
                        })
                        .collect();
                    let (expected, crowded) = twin.charge(&families, asks, now);
                    if let Some(crowded) = crowded {
                        answer[crowded].retry_after = expected[crowded].retry_after;
                        together += 1;
                    }
                    (expected, format!("{what:?}"))
                }
                Plan::One(op, family, ask) => {
                    let limit = families[*family].limit;
                    let before = format!("{:?}", twin.state(*family, &families[*family]));
                    let outcome = twin.apply(*op, *family, &families[*family], *ask, now);
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
        refused > BATCHES / 10 && changes > 100 && together > 100,
        "{refused} refusals, {changes} changes, {together} calls refused as a whole: too few to mean anything"
    );
}

/// A state under a clock that steps back: it waits for a small step to pass, and goes on from where a large one leads.
#[derive(Clone)]
struct Clocked {
    state: State,
    written: u64,
    ahead: u64,
}

impl Clocked {
    fn apply(&mut self, op: Op, limit: &Limit, ask: Ask, now: Timestamp) -> Outcome {
        const WAITED_OUT: u64 = 60_000_000;
        let mut own = now.as_nanos() + self.ahead;
        let back = self.written.saturating_sub(own);
        own += back;
        if back > WAITED_OUT {
            self.ahead += back;
        }
        let own = Timestamp::from_nanos(own);
        let outcome = limit.apply(op, &mut self.state, own, ask, own);
        let counts = outcome.allowed || limit.counts_refused() && ask.cost <= limit.capacity();
        if op == Op::Charge && counts && ask.cost > 0 {
            self.written = own.as_nanos();
        }
        outcome
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_and_the_core_agree_when_clocks_step_back() {
    /// Their windows begin at whole multiples of time: from where a large step leads, the core has no such state.
    const ALIGNED: [usize; 4] = [2, 4, 9, 10];
    let server = RedisServer::start();
    let (store, seed, mut random) = start(&server).await;
    let families: Vec<(Rule, Limit)> = (0..KINDS)
        .map(|kind| {
            let (limit, real) = both(kind, &mut random);
            (store.define(&format!("family {kind}"), real).unwrap(), limit)
        })
        .collect();
    let fresh = |(_, limit): &(Rule, Limit)| Clocked { state: limit.fresh(), written: 0, ahead: 0 };
    let mut twins: Vec<Vec<Clocked>> = vec![families.iter().map(fresh).collect(); KEYS];
    let keys: Vec<String> = (0..TASKS).map(|task| format!("key {}", task % KEYS)).collect();
    let (mut latest, mut wild) = (BEGIN.as_nanos(), BEGIN.as_nanos());
    let mut steps = [0; 2];
    for round in 0..STEPS / TASKS + 1 {
        let most = random.of(&[0, 1, 1_000, 100_000, 3_000_000, 60_000_000, 60_000_001, 3_600_000_000]);
        let some = random.below(most + 1);
        let step = random.of(&[most, some]);
        let (wide, back) = (round % 2 == 0, random.below(3) == 0);
        let now = match (wide, back) {
            (true, true) => wild - step,
            (true, false) => wild + step.min(60_000_000),
            (false, true) => latest - step.min(60_000_000),
            (false, false) => latest + step.min(3_000_000),
        };
        if wide {
            wild = now;
        } else {
            latest = latest.max(now);
        }
        let now = Timestamp::from_nanos(now);
        let plans: Vec<(Op, usize, Ask)> = (0..TASKS)
            .map(|_| {
                let kinds = (0..KINDS).filter(|kind| !(wide && ALIGNED.contains(kind)));
                let kind = random.of(&kinds.collect::<Vec<_>>());
                let capacity = families[kind].1.capacity();
                let cost = random.of(&[0, 1, 1, 1, 1, capacity.div_ceil(3), capacity, capacity + 1]);
                let lease = LeaseId(u128::from(1 + random.below(LEASES)));
                let ask = Ask { lease, critical: random.below(3) == 0, ..Ask::from(cost) };
                (random.of(&[Op::Charge, Op::Charge, Op::Charge, Op::Estimate]), kind, ask)
            })
            .collect();
        let answers = join_all(plans.iter().zip(&keys).map(|(&(op, kind, ask), name)| {
            store.apply(op, Charge { rule: families[kind].0, key: key(name), ask }, Some(real(now)))
        }))
        .await;
        for (task, (&(op, kind, ask), answer)) in plans.iter().zip(answers).enumerate() {
            let (limit, twin) = (families[kind].1, &mut twins[task % KEYS][kind]);
            let (before, ahead) = (format!("{:?}", twin.state), twin.ahead);
            steps[0] += usize::from(twin.written > now.as_nanos() + ahead);
            let expected = twin.apply(op, &limit, ask, now);
            steps[1] += usize::from(twin.ahead > ahead);
            let what = format!("{op:?} {limit:?} {ask:?}, {before}, {ahead} ahead");
            assert_eq!(
                in_micros(answer.unwrap()),
                expected,
                "seed {seed}, round {round}, at {now:?}: {what}"
            );
        }
    }
    assert!(
        steps.iter().all(|steps| *steps > 100),
        "{steps:?} steps back, large ones: too few to mean anything"
    );
}

/// Found by comparing stores: a call that a smaller plan refused clipped what was used under a larger one, so that whoever asked by
/// turns got more than the larger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn being_refused_under_one_plan_takes_nothing_from_another() {
    let server = RedisServer::start();
    let (store, ..) = start(&server).await;
    let hour = Nanos::from_secs(3600);
    let log = |count| Limit::Log(Log::new(count, hour).unwrap());
    let kinds: [fn(u64, Nanos) -> Limit; 4] = [
        |count, hour| Limit::token_bucket(count, count, hour).unwrap(),
        |count, hour| Limit::fixed_window(count, hour, WindowStart::FirstCall).unwrap(),
        |count, hour| Limit::sliding_window(count, hour).unwrap(),
        |count, hour| Limit::interval_bucket(count, count, hour).unwrap(),
    ];
    let limits = kinds.map(|kind| (kind(10, hour), kind(1000, hour)));
    let begin = Timestamp::from_secs(1_700_000_000);
    for (number, (small, large)) in limits.into_iter().chain([(log(10), log(1000))]).enumerate() {
        let family = format!("flips {number}");
        let [free, pro] = [small, large].map(|limit| store.define(&family, limit).unwrap());
        let ask = async |rule, cost, now| {
            let charge = Charge { rule, key: key("alice"), ask: Ask::from(cost) };
            store.charge(&[charge], Some(now)).await.unwrap()
        };
        assert!(ask(pro, 1000, begin).await.allowed, "{large:?}");
        let told = ask(free, 1, begin).await;
        assert!(!told.allowed && !ask(pro, 1, begin).await.allowed, "{large:?}");
        // And what it is told is true, though its state has stayed where it was.
        let wait = told.retry_after.unwrap();
        assert!(
            !ask(free, 1, begin + Nanos::new(wait.as_u64() - 1000)).await.allowed,
            "{small:?} within {wait:?}"
        );
        assert!(ask(free, 1, begin + wait).await.allowed, "{small:?} after {wait:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_takes_the_place_of_a_larger_one_tells_true_waits() {
    let server = RedisServer::start();
    let (store, ..) = start(&server).await;
    let hour = Nanos::from_secs(3600);
    let begin = Timestamp::from_secs(1_700_000_000);
    let after = |seconds| begin + Nanos::from_secs(seconds);
    let [old, new] = [100, 10].map(|count| {
        let limit = Limit::token_bucket(count, count, hour).unwrap();
        store.define("reloaded", limit).unwrap()
    });
    let ask = async |rule, cost, now| {
        let charge = Charge { rule, key: key("alice"), ask: Ask::from(cost) };
        store.charge(&[charge], Some(now)).await.unwrap()
    };
    assert!(ask(old, 100, begin).await.allowed);
    store.supersede(old, new);
    for seconds in [1, 100, 359] {
        let told = ask(new, 1, after(seconds)).await.retry_after.unwrap();
        assert_eq!(
            told.as_u64() / 1_000_000_000,
            360 - seconds,
            "the first of ten in an hour since it changed"
        );
    }
    assert!(ask(new, 1, after(361)).await.allowed);
}
