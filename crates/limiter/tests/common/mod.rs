//! What the tests of the store share: limits of every kind in three numbers, what each kind promises, and the
//! sequential model that the store must equal.

#![allow(dead_code)] // some is for some features only
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

pub(crate) mod folder;

use std::collections::HashMap;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate::core::concurrency::{InProgress, LeaseId};
use tollgate::core::fixed_window::WindowStart;
use tollgate::core::key::{KeyRef, Kind as KeyKind};
use tollgate::core::limit::{Ask, Op, State};
use tollgate::core::log::{Log as LogLimit, SubWindows as Parts};
use tollgate::core::store::{Charge, Rule, StoreError};
use tollgate::{FleetMode, Limit, LimitError, MemoryStore, Nanos, Outcome, Quota, Timestamp};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const HOUR: u64 = 3600 * SECOND;
pub(crate) const YEAR: u64 = 365 * 24 * HOUR;
/// A day in 2023, so that tests also run where clocks are.
pub(crate) const TODAY: u64 = 1_700_000_000 * SECOND;

/// Failures are kept beside the test that found them, in `<test>.regressions`, and belong in the repository.
/// `PROPTEST_CASES` asks for another number of cases.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases),
        max_shrink_iters: 200_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// Shown on one line, so that a failing case fits on a screen.
#[derive(Clone, Copy)]
pub(crate) struct Line<T>(pub(crate) T);

impl<T: std::fmt::Debug> std::fmt::Debug for Line<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Every kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Bucket,
    Queue,
    Interval,
    Aligned,
    Anchored,
    TwoWindows,
    Log,
    SpacedLog,
    CountingLog,
    SubWindows,
    Concurrency,
    Leases,
    Fleet,
    CountedFleet,
}

pub(crate) use Kind::*;

/// Kinds whose state is one word.
pub(crate) const WORDS: [Kind; 6] = [Bucket, Queue, Interval, Aligned, Anchored, TwoWindows];
/// Kinds that limit a rate.
pub(crate) const RATES: [Kind; 10] =
    [Bucket, Queue, Interval, Aligned, Anchored, TwoWindows, Log, SpacedLog, CountingLog, SubWindows];
/// Kinds that count requests in progress.
pub(crate) const HOLDS: [Kind; 4] = [Concurrency, Leases, Fleet, CountedFleet];

impl Kind {
    /// The kinds of the same algorithm: with other parameters, states keep their meaning.
    pub(crate) fn relatives(self) -> &'static [Kind] {
        match self {
            Bucket | Queue => &[Bucket, Queue],
            Interval => &[Interval],
            Aligned | Anchored => &[Aligned, Anchored],
            TwoWindows => &[TwoWindows],
            Log | SpacedLog | CountingLog | SubWindows => &[Log, SpacedLog, CountingLog, SubWindows],
            Concurrency => &[Concurrency],
            Leases => &[Leases],
            Fleet => &[Fleet],
            CountedFleet => &[CountedFleet],
        }
    }

    pub(crate) fn is_word(self) -> bool {
        WORDS.contains(&self)
    }
}

/// A limit in three numbers, whose meaning depends on the kind: `capacity` units at once, `count` of them per
/// `span` nanoseconds where that is another number, else some further parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) kind: Kind,
    pub(crate) capacity: u64,
    pub(crate) count: u64,
    pub(crate) span: u64,
}

impl std::fmt::Debug for Spec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, capacity, count, span } = self;
        write!(f, "Spec::new({kind:?}, {capacity}, {count}, {span})")
    }
}

impl Spec {
    pub(crate) const fn new(kind: Kind, capacity: u64, count: u64, span: u64) -> Self {
        Self { kind, capacity, count, span }
    }

    pub(crate) fn limit(&self) -> Limit {
        self.build().unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The limit, if these numbers make one.
    pub(crate) fn try_limit(&self) -> Option<Limit> {
        self.build().ok()
    }

    fn build(&self) -> Result<Limit, LimitError> {
        let Self { capacity, count, span, .. } = *self;
        let period = Nanos::new(span);
        match self.kind {
            Bucket => Limit::token_bucket(capacity, count, period),
            Queue => Limit::leaky_queue(capacity.saturating_sub(1), count, period, count % capacity.max(1)),
            Interval => Limit::interval_bucket(capacity, count, period),
            Aligned => Limit::fixed_window(
                capacity,
                period,
                WindowStart::Aligned { offset: Nanos::new(count % span.max(1)) },
            ),
            Anchored => Limit::fixed_window(capacity, period, WindowStart::FirstCall),
            TwoWindows => Limit::sliding_window(capacity, period),
            Log => Limit::sliding_log(capacity, period),
            SpacedLog => LogLimit::new(capacity, period)
                .and_then(|log| log.min_difference(Nanos::new(span / count.saturating_add(1))))
                .map(Limit::Log),
            CountingLog => LogLimit::new(capacity, period).map(|log| Limit::Log(log.count_rejected(true))),
            SubWindows => {
                Limit::sub_windows(capacity, Nanos::new(span.saturating_mul(count)), count, Parts::NPlusOne)
            }
            Concurrency => Limit::concurrency(capacity),
            Leases => Limit::leases(capacity, period),
            Fleet if count % 2 == 0 => {
                Limit::fleet(capacity, (1, count.saturating_add(1)), FleetMode::Total, period)
            }
            Fleet => Limit::fleet(capacity, (1, count.saturating_add(1)), FleetMode::Allocation, period),
            CountedFleet => Self { kind: Fleet, ..*self }.build().map(|limit| match limit {
                Limit::Fleet(fleet) => Limit::Fleet(fleet.counted()),
                other => other,
            }),
        }
    }

    /// The same limit as a quota, for the kinds that a quota can say.
    pub(crate) fn quota(&self) -> Quota {
        let Self { capacity, count, span, .. } = *self;
        let of = |count, span| Quota::per(count, std::time::Duration::from_nanos(span));
        match self.kind {
            Bucket => of(count, span).burst(capacity),
            Queue => of(count, span).burst(capacity - 1).leaky_queue(count % capacity),
            Interval => of(count, span).burst(capacity).in_batches(),
            Aligned => of(capacity, span).fixed_window(),
            Anchored => of(capacity, span).anchored_window(),
            TwoWindows => of(capacity, span).sliding_window(),
            Log => of(capacity, span).sliding_log(),
            SpacedLog => of(capacity, span)
                .sliding_log()
                .min_difference(std::time::Duration::from_nanos(span / (count + 1))),
            CountingLog => of(capacity, span).sliding_log().counting_refused(),
            SubWindows => of(capacity, span * count).sub_windows(count),
            Concurrency | Leases | Fleet | CountedFleet => panic!("{self:?} is no quota"),
        }
    }

    /// The most that may be admitted from an instant to another one `length` later, both included.
    pub(crate) fn bound(&self, length: u64) -> u64 {
        let Self { capacity, count, span, .. } = *self;
        // How many windows that follow each other without a gap can be touched.
        let touched = |window: u64| length.div_ceil(window) + 1;
        match self.kind {
            Bucket | Queue => capacity + (u128::from(count) * u128::from(length) / u128::from(span)) as u64,
            Interval => capacity + count * length.div_ceil(span),
            Aligned | Anchored => capacity * touched(span),
            TwoWindows if length < span => (2 * capacity - 1).max(1),
            TwoWindows => capacity * touched(span),
            Log | SpacedLog | CountingLog => capacity * (length + 1).div_ceil(span),
            SubWindows => capacity * touched(span).div_ceil(count + 1),
            Concurrency | Leases | Fleet | CountedFleet => panic!("{self:?} has no rate"),
        }
    }

    /// The longest it can take from exhausted to fresh.
    pub(crate) fn refill(&self) -> u64 {
        match self.kind {
            Bucket | Queue => {
                (u128::from(self.capacity) * u128::from(self.span)).div_ceil(u128::from(self.count)) as u64
            }
            Interval => self.capacity.div_ceil(self.count) * self.span,
            TwoWindows => 2 * self.span,
            SubWindows => self.span * (self.count + 1),
            _ => self.span,
        }
    }

    /// How far apart two calls must be, if the limit says.
    pub(crate) fn limit_spacing(&self) -> u64 {
        if self.kind == SpacedLog { self.span / (self.count + 1) } else { 0 }
    }

    /// Whether a key that has used more can never be let in earlier for it. Where a call sets the beat of a window
    /// or of the refills it can: an earlier one sets an earlier beat.
    pub(crate) fn is_monotone(&self) -> bool {
        !matches!(self.kind, Interval | Anchored | SpacedLog | CountingLog)
    }
}

/// A limit of one of these kinds whose times are multiples of `unit`.
pub(crate) fn spec_of(kinds: &[Kind], unit: u64) -> impl Strategy<Value = Spec> + use<> {
    let count = prop_oneof![4 => 1..=6_u64, 1 => prop::sample::select(vec![7, 12, 333])];
    (prop::sample::select(kinds.to_vec()), prop_oneof![3 => 1..=12_u64, 1 => Just(100)], count, 1..=60_u64)
        .prop_map(move |(kind, capacity, count, span)| Spec::new(kind, capacity, count, span * unit))
}

/// Nanoseconds, or times as people say them.
pub(crate) fn any_unit() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![1, 1_000_003, SECOND])
}

/// At the beginning of time, and today.
pub(crate) fn any_start() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, TODAY..TODAY + HOUR]
}

/// What a call takes, in terms of the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    Capacity,
    TooMuch,
    Huge,
}

impl Cost {
    pub(crate) fn of(self, limit: &Limit) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Capacity => limit.capacity(),
            Self::TooMuch => limit.capacity() + 1,
            Self::Huge => u64::MAX,
        }
    }
}

pub(crate) fn any_cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        12 => (0..=4_u64).prop_map(Cost::Units),
        3 => Just(Cost::Capacity),
        1 => Just(Cost::TooMuch),
        1 => Just(Cost::Huge),
    ]
}

/// Names of keys: empty, odd and ordinary ones.
pub(crate) const KEYS: [&str; 6] = ["alice", "bob", "", "a:b", "\0", "10.0.0.1"];

/// The key of a text.
pub(crate) fn key(name: &str) -> KeyRef<'_> {
    KeyRef { kind: KeyKind::Bytes, bytes: name.as_bytes() }
}

pub(crate) fn ask(cost: u64, lease: u128, critical: bool) -> Ask {
    Ask { lease: LeaseId(lease), critical, ..Ask::from(cost) }
}

pub(crate) fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// One operation on a store, for those who bring their own time.
pub(crate) fn decide(
    store: &MemoryStore,
    op: Op,
    rule: Rule,
    name: &str,
    ask: Ask,
    now: Option<u64>,
) -> Result<Outcome, StoreError> {
    let charge = Charge { rule, key: key(name), ask };
    store.decide(op, charge, now.map(at))
}

/// A charge that the store can decide.
pub(crate) fn charge(store: &MemoryStore, rule: Rule, name: &str, cost: u64, now: u64) -> Outcome {
    match decide(store, Op::Charge, rule, name, Ask::from(cost), Some(now)) {
        Ok(outcome) => outcome,
        Err(error) => panic!("{error}"),
    }
}

/// What a store must do, without its cleverness: a map of states over the pure functions.
///
/// A key that is idle may be remembered or not. That makes no difference but for an interval bucket, which
/// keeps its beat while it is remembered. So the model keeps every state that the store may be in and drops
/// those that an outcome contradicts.
#[derive(Debug, Default)]
pub(crate) struct Model {
    rules: Vec<(usize, Limit)>,
    /// The states in which each key may be, and the rule that it was charged under last.
    keys: HashMap<(usize, String), Vec<(usize, State)>>,
}

impl Model {
    /// A rule of a family; its number.
    pub(crate) fn define(&mut self, family: usize, limit: Limit) -> usize {
        self.rules.push((family, limit));
        self.rules.len() - 1
    }

    pub(crate) fn limit(&self, rule: usize) -> Limit {
        self.rules[rule].1
    }

    pub(crate) fn redefine(&mut self, rule: usize, limit: Limit, now: u64) {
        let old = std::mem::replace(&mut self.rules[rule].1, limit);
        if old == limit {
            return;
        }
        for (_, state) in self.keys.values_mut().flatten().filter(|(charged, _)| *charged == rule) {
            *state = limit.convert(&old, state, at(now));
        }
    }

    pub(crate) fn forget(&mut self, rule: usize, name: &str) {
        // Who is in progress ends, and gives back what is counted.
        let is_counted = |state: &State| matches!(state, State::InProgress(used) if used.total() > 0);
        let key = (self.rules[rule].0, name.to_owned());
        if let Some(states) = self.keys.get_mut(&key) {
            states.retain(|(_, state)| is_counted(state));
            if states.is_empty() {
                self.keys.remove(&key);
            }
        }
    }

    /// The states in which a key may be, each with the rule that it was charged under last.
    fn states(&mut self, rule: usize, name: &str, now: u64) -> &mut Vec<(usize, State)> {
        let (family, limit) = self.rules[rule];
        let states =
            self.keys.entry((family, name.to_owned())).or_insert_with(|| vec![(rule, limit.fresh())]);
        let forgotten = states.iter().find_map(|(charged, state)| {
            let old = self.rules[*charged].1;
            let keeps_a_beat = matches!(old, Limit::IntervalBucket(_));
            (keeps_a_beat && old.is_idle(state, at(now))).then(|| (*charged, old.fresh()))
        });
        if let Some(forgotten) = forgotten
            && !states.contains(&forgotten)
        {
            states.push(forgotten);
        }
        states
    }

    /// Does `op` and compares with what the store answered. On success the model has gone the same way: a state moves to
    /// another rule only when it is changed there.
    pub(crate) fn step(
        &mut self,
        op: Op,
        rule: usize,
        name: &str,
        ask: Ask,
        now: u64,
        seen: Outcome,
    ) -> Result<(), TestCaseError> {
        let limits: Vec<Limit> = self.rules.iter().map(|(_, limit)| *limit).collect();
        let limit = limits[rule];
        let states = self.states(rule, name, now);
        let mut expected = Vec::new();
        states.retain_mut(|(charged, state)| {
            let before = match *charged == rule {
                true => state.clone(),
                false => limit.convert(&limits[*charged], state, at(now)),
            };
            let mut after = before.clone();
            let mut outcome = limit.apply(op, &mut after, at(now), ask, at(now));
            if after != before {
                (*charged, *state) = (rule, after);
            } else if *charged != rule && !outcome.allowed && matches!(op, Op::Charge | Op::Estimate) {
                outcome = limit.refused_beside(outcome, &limits[*charged], state, at(now), ask.cost);
            }
            expected.push(outcome);
            outcome == seen
        });
        states.dedup();
        prop_assert!(
            !states.is_empty(),
            "{op:?} {ask:?} of {name:?} at {now} under rule {rule} {limit:?}\n   store: {seen:?}\n   model: {expected:?}"
        );
        Ok(())
    }

    pub(crate) fn in_progress(&mut self, rule: usize, name: &str, now: u64) -> InProgress {
        let limits: Vec<Limit> = self.rules.iter().map(|(_, limit)| *limit).collect();
        let (charged, state) = &self.states(rule, name, now)[0];
        let state = limits[rule].convert(&limits[*charged], state, at(now));
        limits[rule].in_progress(&state, at(now))
    }
}

/// Admitted calls of one key, and the check that no interval holds more than its limit promises.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admitted(pub(crate) Vec<(u64, u64)>);

impl Admitted {
    pub(crate) fn push(&mut self, now: u64, cost: u64) {
        self.0.push((now, cost));
    }

    pub(crate) fn check(&self, spec: &Spec) -> Result<(), TestCaseError> {
        for (i, (first, _)) in self.0.iter().enumerate() {
            let mut sum = 0;
            for (last, cost) in &self.0[i..] {
                sum += cost;
                let bound = spec.bound(last - first);
                prop_assert!(sum <= bound, "{spec:?}: {sum} from {first} to {last}, more than {bound}");
            }
        }
        Ok(())
    }
}

/// Numbers without pattern, the same on every run.
pub(crate) fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % below
    }
}

/// Bytes of this process that are in memory.
pub(crate) fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}
