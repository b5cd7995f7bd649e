//! The limiter of a case, and what a step does to it: inputs in, an answer in the words of the files out.

use std::collections::HashMap;

use serde_json::{Value, json};
use thiserror::Error;
use tollgate::{Class, WorkerShedder};
use tollgate_core::concurrency::LeaseId;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store, StoreError};
use tollgate_core::{Limit, Nanos, Outcome, Timestamp};

use super::algorithm::{self, Algorithm, CATEGORIES};
use super::file::{Fields, Problem};
use crate::block_on::block_on;

/// The limiter of one case.
pub(super) enum Subject<S> {
    /// One limit of a store.
    One(One<S>),
    /// Several limits of a store, all or nothing.
    Group { store: S, rules: Vec<Rule>, tick: u64 },
    /// The worker shedder, which lives in its process and in no store.
    Worker(WorkerShedder),
}

/// One limit, asked twice: on its own, and in a group of one, each with its own state.
pub(super) struct One<S> {
    algorithm: Algorithm,
    store: S,
    alone: Rule,
    grouped: Rule,
    leases: HashMap<String, LeaseId>,
    /// Nanoseconds of the file's unit of time, in a store that counts real time.
    tick: u64,
}

/// The answer to a step: fields as they are named in the files.
pub(super) type Answer = Vec<(&'static str, Value)>;

/// Why a step has no answer.
#[derive(Debug, Error)]
pub(super) enum NoAnswer {
    /// The file is wrong.
    #[error(transparent)]
    Malformed(#[from] Problem),
    /// The store is.
    #[error("the store gave no answer: {0}")]
    Store(#[from] StoreError),
    /// A call on its own and the same call in a group must come out alike.
    #[error("the same call gave {alone:?} on its own and {grouped:?} in a group of one")]
    Disagreement { alone: Box<Outcome>, grouped: Vec<Outcome> },
}

/// The key of every case. In a shared store a case leaves nothing behind for the next.
const KEY: KeyRef<'static> = KeyRef { kind: Kind::Bytes, bytes: b"k" };

impl<S: Store> Subject<S> {
    /// The limiter that a case's parameters describe.
    pub(super) fn new(
        algorithm: Algorithm,
        store: S,
        params: Fields<'_>,
        tick: u64,
    ) -> Result<Self, Problem> {
        if algorithm == Algorithm::Worker {
            return Ok(Self::Worker(algorithm::worker(params)?));
        }
        let limits = algorithm.limits(params, tick)?;
        Ok(match *limits {
            [limit] if algorithm != Algorithm::Group => Self::One(One::new(algorithm, store, limit, tick)?),
            _ => {
                let define = |(index, limit)| store.define(&format!("case {index}"), limit);
                let rules = limits.into_iter().enumerate().map(define).collect::<Result<_, _>>()?;
                Self::Group { store, rules, tick }
            }
        })
    }

    /// Does one step and answers it.
    pub(super) fn step(&mut self, step: Fields<'_>) -> Result<Answer, NoAnswer> {
        let at = step.uint("t_ns")?;
        let at = |tick: u64| Timestamp::from_nanos(at.saturating_mul(tick));
        match self {
            Self::One(one) => one.step(step, at(one.tick)),
            Self::Group { store, rules, tick } => group(store, rules, step, at(*tick), *tick),
            Self::Worker(shedder) => sample(shedder, step, at(1)),
        }
    }

    /// Leaves nothing behind in the store.
    pub(super) fn clear(&self) -> Result<(), StoreError> {
        let (store, rules) = match self {
            Self::One(one) => (&one.store, &[one.alone, one.grouped][..]),
            Self::Group { store, rules, .. } => (store, rules.as_slice()),
            Self::Worker(_) => return Ok(()),
        };
        rules.iter().try_for_each(|&rule| block_on(store.reset(rule, KEY)))
    }
}

impl<S: Store> One<S> {
    fn new(algorithm: Algorithm, store: S, limit: Limit, tick: u64) -> Result<Self, StoreError> {
        let alone = store.define("case", limit)?;
        let grouped = store.define("case, in a group", limit)?;
        Ok(Self { algorithm, store, alone, grouped, leases: HashMap::new(), tick })
    }

    fn step(&mut self, step: Fields<'_>, at: Timestamp) -> Result<Answer, NoAnswer> {
        match self.algorithm {
            Algorithm::TokenBucketOps => self.bucket_step(step, at),
            Algorithm::Leases => self.lease_step(step, at),
            Algorithm::Fleet => self.fleet_step(step, at),
            _ => self.answer(Op::Charge, Ask::from(step.uint("cost")?), at),
        }
    }

    fn bucket_step(&mut self, step: Fields<'_>, at: Timestamp) -> Result<Answer, NoAnswer> {
        let ops = ["consume", "refund", "estimate"];
        let op = match step.one_of("op", &ops, r#""consume", "refund" or "estimate""#)? {
            0 => Op::Charge,
            1 => Op::Refund,
            _ => Op::Estimate,
        };
        self.answer(op, Ask::from(step.uint("cost")?), at)
    }

    fn lease_step(&mut self, step: Fields<'_>, at: Timestamp) -> Result<Answer, NoAnswer> {
        let (op, ask) = self.lease(step)?;
        self.answer(op, ask, at)
    }

    fn fleet_step(&mut self, step: Fields<'_>, at: Timestamp) -> Result<Answer, NoAnswer> {
        let (op, mut ask) = self.lease(step)?;
        ask.critical = op == Op::Charge && step.flag("critical")?;
        let outcome = self.apply(op, ask, at)?;
        let used = block_on(self.store.in_progress(self.alone, KEY, Some(at)))?;
        let mut fields = answer(outcome, self.tick);
        fields.extend([
            ("noncritical_remaining", json!(outcome.remaining)),
            ("noncritical_inflight", json!(used.other)),
            ("total_inflight", json!(used.total())),
        ]);
        Ok(fields)
    }

    /// What is done with which lease. Only a lease that is acquired has a cost.
    fn lease(&mut self, step: Fields<'_>) -> Result<(Op, Ask), Problem> {
        let ops = ["acquire", "release", "renew"];
        let (op, cost) = match step.one_of("op", &ops, r#""acquire", "release" or "renew""#)? {
            0 => (Op::Charge, step.uint("cost")?),
            1 => (Op::Refund, 0),
            _ => (Op::Renew, 0),
        };
        let next = LeaseId(self.leases.len() as u128 + 1);
        let lease = *self.leases.entry(step.text("id")?.to_owned()).or_insert(next);
        Ok((op, Ask { lease, ..Ask::from(cost) }))
    }

    fn answer(&self, op: Op, ask: Ask, at: Timestamp) -> Result<Answer, NoAnswer> {
        self.apply(op, ask, at).map(|outcome| answer(outcome, self.tick))
    }

    fn apply(&self, op: Op, ask: Ask, at: Timestamp) -> Result<Outcome, NoAnswer> {
        let [alone, grouped] = [self.alone, self.grouped].map(|rule| Charge { rule, key: KEY, ask });
        let alone = block_on(self.store.apply(op, alone, Some(at)))?;
        let grouped = match op {
            Op::Charge => block_on(self.store.charge(&[grouped], Some(at)))?.outcomes,
            _ => vec![block_on(self.store.apply(op, grouped, Some(at)))?],
        };
        if grouped == [alone] {
            Ok(alone)
        } else {
            Err(NoAnswer::Disagreement { alone: Box::new(alone), grouped })
        }
    }
}

fn group<S: Store>(
    store: &S,
    rules: &[Rule],
    step: Fields<'_>,
    at: Timestamp,
    tick: u64,
) -> Result<Answer, NoAnswer> {
    let ask = Ask::from(step.uint("cost")?);
    let charges: Vec<_> = rules.iter().map(|&rule| Charge { rule, key: KEY, ask }).collect();
    let verdict = block_on(store.charge(&charges, Some(at)))?;
    Ok(vec![
        ("allowed", json!(verdict.allowed)),
        ("remaining", json!(verdict.remaining)),
        ("retry_after_ns", json!(verdict.retry_after.map(|time| ticks(time, tick)))),
        ("reset_after_ns", json!(ticks(verdict.reset_after, tick))),
        ("delay_ns", json!(ticks(verdict.delay, tick))),
        ("denied_by", json!(verdict.refused_by().collect::<Vec<_>>())),
    ])
}

fn sample(shedder: &WorkerShedder, step: Fields<'_>, at: Timestamp) -> Result<Answer, NoAnswer> {
    let allowed = r#""test", "get", "post" or "critical""#;
    let class = Class(step.one_of("category", &CATEGORIES, allowed)? as u32);
    let draw = step.uint32("r32")?;
    shedder.record_ppm(step.uint("utilization_ppm")?, Some(at));
    let (shed, drop) = (shedder.amount(), shedder.drop_probability(class));
    Ok(vec![
        ("allowed", json!(shedder.admit_with(class, draw).is_ok())),
        ("shed_num", json!(shed.num)),
        ("shed_den", json!(shed.den)),
        ("drop_num", json!(drop.num)),
        ("drop_den", json!(drop.den)),
    ])
}

/// A time in the file's unit. A store that counts coarser than that has rounded up already.
fn ticks(time: Nanos, tick: u64) -> u64 {
    time.as_u64() / tick.max(1)
}

fn answer(outcome: Outcome, tick: u64) -> Answer {
    vec![
        ("allowed", json!(outcome.allowed)),
        ("remaining", json!(outcome.remaining)),
        ("retry_after_ns", json!(outcome.retry_after.map(|time| ticks(time, tick)))),
        ("reset_after_ns", json!(ticks(outcome.reset_after, tick))),
        ("delay_ns", json!(ticks(outcome.delay, tick))),
    ]
}
