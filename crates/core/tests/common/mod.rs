//! What the property tests share: limits of every kind, schedules of calls, and what each kind promises.
//!
//! A [`Spec`] says in plain numbers what a limit is made of. What it promises is computed from those numbers
//! and from a list of admitted calls alone, never by the code under test.

#![allow(dead_code)] // some is for some features only

#[cfg(feature = "policy")]
pub(crate) mod told;

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::log::{Log, SubWindows};
use tollgate_core::{Limit, LimitError, Nanos, Outcome, Timestamp};

pub(crate) const SECOND: u64 = 1_000_000_000;
pub(crate) const HOUR: u64 = 3600 * SECOND;
pub(crate) const THIRTY_YEARS: u64 = 30 * 365 * 24 * HOUR;

/// Failures are kept next to the test that found them, in `<test>.regressions`, and belong in the repository.
/// `PROPTEST_CASES` asks for more cases than these.
pub(crate) fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1024,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// What a rate limit is made of. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Spec {
    Bucket { capacity: u64, count: u64, period: u64 },
    Queue { queue: u64, count: u64, period: u64, undelayed: u64 },
    Interval { capacity: u64, refill: u64, period: u64 },
    Aligned { limit: u64, window: u64, offset: u64 },
    Anchored { limit: u64, window: u64 },
    TwoWindows { limit: u64, window: u64 },
    Log { limit: u64, window: u64, spacing: u64, count_rejected: bool },
    SubWindows { limit: u64, grain: u64, buckets: u64, kind: SubWindows, count_rejected: bool },
}

/// A call that was admitted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

impl Spec {
    pub(crate) fn build(&self) -> Result<Limit, LimitError> {
        match *self {
            Self::Bucket { capacity, count, period } => {
                Limit::token_bucket(capacity, count, Nanos::new(period))
            }
            Self::Queue { queue, count, period, undelayed } => {
                Limit::leaky_queue(queue, count, Nanos::new(period), undelayed)
            }
            Self::Interval { capacity, refill, period } => {
                Limit::interval_bucket(capacity, refill, Nanos::new(period))
            }
            Self::Aligned { limit, window, offset } => {
                let start = WindowStart::Aligned { offset: Nanos::new(offset) };
                Limit::fixed_window(limit, Nanos::new(window), start)
            }
            Self::Anchored { limit, window } => {
                Limit::fixed_window(limit, Nanos::new(window), WindowStart::FirstCall)
            }
            Self::TwoWindows { limit, window } => Limit::sliding_window(limit, Nanos::new(window)),
            Self::Log { limit, window, spacing, count_rejected } => {
                let log = Log::new(limit, Nanos::new(window))?.min_difference(Nanos::new(spacing))?;
                Ok(Limit::Log(log.count_rejected(count_rejected)))
            }
            Self::SubWindows { limit, grain, buckets, kind, count_rejected } => {
                let log = Log::sub_windows(limit, Nanos::new(grain * buckets), buckets, kind)?;
                Ok(Limit::Log(log.count_rejected(count_rejected)))
            }
        }
    }

    /// The limit of a spec that is known to be valid.
    pub(crate) fn limit(&self) -> Limit {
        match self.build() {
            Ok(limit) => limit,
            Err(error) => unreachable!("{self:?}: {error}"),
        }
    }

    pub(crate) fn capacity(&self) -> u64 {
        match *self {
            Self::Bucket { capacity, .. } | Self::Interval { capacity, .. } => capacity,
            Self::Queue { queue, .. } => queue + 1,
            Self::Aligned { limit, .. }
            | Self::Anchored { limit, .. }
            | Self::TwoWindows { limit, .. }
            | Self::Log { limit, .. }
            | Self::SubWindows { limit, .. } => limit,
        }
    }

    pub(crate) fn counts_rejected(&self) -> bool {
        matches!(self, Self::Log { count_rejected: true, .. } | Self::SubWindows { count_rejected: true, .. })
    }

    pub(crate) fn spacing(&self) -> u64 {
        if let Self::Log { spacing, .. } = *self { spacing } else { 0 }
    }

    /// An interval bucket keeps its beat when it is full again; everything else forgets all.
    pub(crate) fn keeps_a_beat(&self) -> bool {
        matches!(self, Self::Interval { .. })
    }

    /// The longest it can take from exhausted to fresh.
    pub(crate) fn refill(&self) -> u64 {
        match *self {
            Self::Bucket { capacity, count, period } => mul_div_ceil(capacity, period, count),
            Self::Queue { queue, count, period, .. } => mul_div_ceil(queue + 1, period, count),
            Self::Interval { capacity, refill, period } => capacity.div_ceil(refill) * period,
            Self::Aligned { window, .. } | Self::Anchored { window, .. } | Self::Log { window, .. } => window,
            Self::TwoWindows { window, .. } => 2 * window,
            Self::SubWindows { grain, buckets, kind, .. } => grain * live_buckets(buckets, kind),
        }
    }

    /// The time in which something interesting happens: a token, a batch, a window.
    pub(crate) fn beat(&self) -> u64 {
        match *self {
            Self::Bucket { count, period, .. } | Self::Queue { count, period, .. } => period.div_ceil(count),
            Self::Interval { period, .. } => period,
            Self::Aligned { window, .. }
            | Self::Anchored { window, .. }
            | Self::TwoWindows { window, .. }
            | Self::Log { window, .. } => window,
            Self::SubWindows { grain, .. } => grain,
        }
    }

    /// The most that may be admitted from an instant to another one `length` later, both included.
    pub(crate) fn bound(&self, length: u64) -> u128 {
        let wide = u128::from;
        // How many of the windows that follow each other without a gap can be touched.
        let touched = |window: u64| wide(length.div_ceil(window)) + 1;
        match *self {
            Self::Bucket { capacity, count, period } => {
                wide(capacity) + wide(count) * wide(length) / wide(period)
            }
            Self::Queue { queue, count, period, .. } => {
                wide(queue) + 1 + wide(count) * wide(length) / wide(period)
            }
            Self::Interval { capacity, refill, period } => {
                wide(capacity) + wide(refill) * wide(length.div_ceil(period))
            }
            Self::Aligned { limit, window, .. } | Self::Anchored { limit, window } => {
                wide(limit) * touched(window)
            }
            Self::TwoWindows { limit, window } if length < window => wide(2 * limit - 1),
            Self::TwoWindows { limit, window } => wide(limit) * touched(window),
            // At most the limit in as many grains as count at once.
            Self::Log { limit, window, .. } => wide(limit) * touched(1).div_ceil(wide(window)),
            Self::SubWindows { limit, grain, buckets, kind, .. } => {
                wide(limit) * touched(grain).div_ceil(wide(live_buckets(buckets, kind)))
            }
        }
    }

    /// Checks the bound over every pair of admitted instants.
    pub(crate) fn check_intervals(&self, admitted: &[Admitted]) -> Result<(), TestCaseError> {
        for (i, first) in admitted.iter().enumerate() {
            let mut sum = 0;
            for last in admitted.iter().skip(i) {
                sum += u128::from(last.cost);
                let bound = self.bound(last.at - first.at);
                prop_assert!(
                    sum <= bound,
                    "{self:?} admitted {sum} from {} to {}, more than {bound}",
                    first.at,
                    last.at
                );
            }
        }
        Ok(())
    }

    /// Checks that no window of the limit's own holds more than the limit.
    pub(crate) fn check_windows(&self, admitted: &[Admitted]) -> Result<(), TestCaseError> {
        let limit = u128::from(self.capacity());
        let mut window_of: Box<dyn FnMut(u64) -> i128> = match *self {
            Self::Aligned { window, offset, .. } => {
                Box::new(move |at| (i128::from(at) - i128::from(offset)).div_euclid(i128::from(window)))
            }
            Self::TwoWindows { window, .. } => Box::new(move |at| i128::from(at / window)),
            Self::Anchored { window, .. } => {
                let mut opened = None;
                Box::new(move |at| match opened {
                    Some(start) if at < start + window => i128::from(start),
                    _ => i128::from(*opened.insert(at)),
                })
            }
            _ => return Ok(()),
        };
        let mut current = None;
        let mut sum = 0;
        for call in admitted {
            let window = Some(window_of(call.at));
            sum = if window == current { sum } else { 0 } + u128::from(call.cost);
            current = window;
            prop_assert!(sum <= limit, "{self:?} admitted {sum} in the window of {}", call.at);
        }
        Ok(())
    }
}

fn live_buckets(buckets: u64, kind: SubWindows) -> u64 {
    match kind {
        SubWindows::NPlusOne => buckets + 1,
        SubWindows::N => buckets,
    }
}

/// `a * b / c`, rounded up.
fn mul_div_ceil(a: u64, b: u64, c: u64) -> u64 {
    let quotient = (u128::from(a) * u128::from(b)).div_ceil(u128::from(c));
    quotient.try_into().unwrap_or(u64::MAX)
}

/// A limit of any kind: tiny ones, where every nanosecond is an edge, and ones as people write them.
pub(crate) fn any_spec() -> impl Strategy<Value = Spec> {
    prop_oneof![bucket(), queue(), interval(), aligned(), anchored(), two_windows(), log(), sub_windows()]
}

/// The kinds whose state fits in one word.
pub(crate) fn packed_spec() -> impl Strategy<Value = Spec> {
    prop_oneof![bucket(), queue(), interval(), aligned(), anchored(), two_windows()]
}

/// Two limits of one kind.
pub(crate) fn two_of_a_kind() -> impl Strategy<Value = (Spec, Spec)> {
    let windows = || prop_oneof![aligned(), anchored()];
    let logs = || prop_oneof![log(), sub_windows()];
    let buckets = || prop_oneof![bucket(), queue()];
    prop_oneof![
        (buckets(), buckets()),
        (interval(), interval()),
        (windows(), windows()),
        (two_windows(), two_windows()),
        // Only the limit changes: the counters of both windows stay where they are.
        (two_windows(), 1..=12_u64).prop_map(|(old, limit)| {
            let Spec::TwoWindows { window, .. } = old else {
                return (old, old);
            };
            (old, Spec::TwoWindows { limit, window })
        }),
        (logs(), logs()),
    ]
}

fn tokens() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1..=12_u64, 1 => 1..=1000_u64]
}

/// Counts of windows are not multiplied by anything, so that they may be large.
fn counts() -> impl Strategy<Value = u64> {
    prop_oneof![8 => tokens(), 1 => (1_u64 << 30)..=(1 << 55)]
}

fn span() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => 1..=60_u64,
        1 => prop::sample::select(vec![1_000_000, SECOND, 7_560_000_001, 60 * SECOND, HOUR]),
        1 => 1..=HOUR,
    ]
}

/// Tokens per time, simple or awkward.
fn rate() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        3 => (1..=20_u64, 1..=60_u64),
        2 => (prop::sample::select(vec![1, 7, 333, 713, 3_000_000_000]), span()),
        1 => (1..=1000_u64, span()),
    ]
}

pub(crate) fn bucket() -> impl Strategy<Value = Spec> {
    (tokens(), rate()).prop_map(|(capacity, (count, period))| Spec::Bucket { capacity, count, period })
}

pub(crate) fn queue() -> impl Strategy<Value = Spec> {
    (tokens(), rate(), any::<prop::sample::Index>()).prop_map(|(places, (count, period), undelayed)| {
        let queue = places - 1;
        Spec::Queue { queue, count, period, undelayed: undelayed.index(queue as usize + 1) as u64 }
    })
}

pub(crate) fn interval() -> impl Strategy<Value = Spec> {
    let small = (tokens(), tokens(), span());
    // Full again after so many batches.
    let large = (counts(), tokens(), span())
        .prop_map(|(capacity, batches, period)| (capacity, capacity.div_ceil(batches), period));
    prop_oneof![small, large].prop_map(|(capacity, refill, period)| Spec::Interval {
        capacity,
        refill,
        period,
    })
}

pub(crate) fn aligned() -> impl Strategy<Value = Spec> {
    (counts(), span(), prop_oneof![Just(0.0), 0.0..1.0]).prop_map(|(limit, window, at)| Spec::Aligned {
        limit,
        window,
        offset: (window as f64 * at) as u64,
    })
}

pub(crate) fn anchored() -> impl Strategy<Value = Spec> {
    (counts(), span()).prop_map(|(limit, window)| Spec::Anchored { limit, window })
}

pub(crate) fn two_windows() -> impl Strategy<Value = Spec> {
    (counts(), span()).prop_map(|(limit, window)| Spec::TwoWindows { limit, window })
}

pub(crate) fn log() -> impl Strategy<Value = Spec> {
    (counts(), span(), prop_oneof![2 => Just(0.0), 1 => 0.0..1.0], any::<bool>()).prop_map(
        |(limit, window, spacing, count_rejected)| Spec::Log {
            limit,
            window,
            spacing: (window as f64 * spacing) as u64,
            count_rejected,
        },
    )
}

pub(crate) fn sub_windows() -> impl Strategy<Value = Spec> {
    let buckets = prop_oneof![3 => 1..=6_u64, 1 => Just(60_u64)];
    let kind = prop_oneof![Just(SubWindows::NPlusOne), Just(SubWindows::N)];
    (counts(), span(), buckets, kind, any::<bool>()).prop_map(
        |(limit, grain, buckets, kind, count_rejected)| Spec::SubWindows {
            limit,
            grain,
            buckets,
            kind,
            count_rejected,
        },
    )
}

/// Time between two calls, told in terms of the limit that is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    Nanos(u64),
    /// So many beats of the limit, and up to a nanosecond more or less.
    Beats(u64, i64),
    /// So many 65536ths of a full refill.
    Refill(u16),
}

impl Gap {
    pub(crate) fn of(self, spec: &Spec) -> u64 {
        match self {
            Self::Nanos(nanos) => nanos,
            Self::Beats(beats, more) => (beats * spec.beat()).saturating_add_signed(more),
            Self::Refill(share) => ((u128::from(spec.refill()) * u128::from(share)) >> 16) as u64,
        }
    }
}

pub(crate) fn gap() -> impl Strategy<Value = Gap> {
    prop_oneof![
        2 => (0..=3_u64).prop_map(Gap::Nanos),
        3 => (0..=3_u64, -1..=1_i64).prop_map(|(beats, more)| Gap::Beats(beats, more)),
        3 => any::<u16>().prop_map(Gap::Refill),
    ]
}

/// What a call takes, told in terms of the limit that is called.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cost {
    Units(u64),
    /// So many 255ths of the capacity, rounded up.
    Share(u8),
    /// Whatever is left.
    Rest,
    Capacity,
    /// More than there can ever be.
    TooMuch(u64),
}

impl Cost {
    pub(crate) fn of(self, spec: &Spec, remaining: u64) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Share(share) => mul_div_ceil(spec.capacity(), share.into(), 255),
            Self::Rest => remaining,
            Self::Capacity => spec.capacity(),
            Self::TooMuch(more) => spec.capacity().saturating_add(more),
        }
    }
}

pub(crate) fn cost() -> impl Strategy<Value = Cost> {
    prop_oneof![
        8 => (0..=3_u64).prop_map(Cost::Units),
        4 => any::<u8>().prop_map(Cost::Share),
        4 => Just(Cost::Rest),
        1 => Just(Cost::Capacity),
        1 => prop::sample::select(vec![1, 2, u64::MAX]).prop_map(Cost::TooMuch),
    ]
}

/// Calls that follow each other, and when the first gap begins.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub(crate) start: u64,
    pub(crate) calls: Vec<(Gap, Cost)>,
}

pub(crate) fn schedule() -> impl Strategy<Value = Schedule> {
    (start(), prop::collection::vec((gap(), cost()), 1..48))
        .prop_map(|(start, calls)| Schedule { start, calls })
}

/// At the beginning of time, and today.
pub(crate) fn start() -> impl Strategy<Value = u64> {
    prop_oneof![0..100_u64, 1_700_000_000 * SECOND..1_700_003_600 * SECOND]
}

/// One key of one limit, and the time it is at.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) limit: Limit,
    pub(crate) state: State,
    pub(crate) now: u64,
}

impl Key {
    pub(crate) fn new(spec: &Spec, now: u64) -> Self {
        let limit = spec.limit();
        Self { limit, state: limit.fresh(), now }
    }

    /// A key that has lived through a schedule.
    pub(crate) fn after(spec: &Spec, schedule: &Schedule) -> Self {
        let mut key = Self::new(spec, schedule.start);
        key.run(spec, &schedule.calls);
        key
    }

    /// Makes the calls; the admitted ones.
    pub(crate) fn run(&mut self, spec: &Spec, calls: &[(Gap, Cost)]) -> Vec<Admitted> {
        let mut admitted = Vec::new();
        for &(gap, cost) in calls {
            self.now += gap.of(spec);
            let cost = cost.of(spec, self.peek().remaining);
            if self.charge(cost).allowed && cost > 0 {
                admitted.push(Admitted { at: self.now, cost });
            }
        }
        admitted
    }

    pub(crate) fn charge(&mut self, cost: u64) -> Outcome {
        self.apply(Op::Charge, cost, self.now)
    }

    pub(crate) fn apply(&mut self, op: Op, cost: u64, taken: u64) -> Outcome {
        let (now, taken) = (Timestamp::from_nanos(self.now), Timestamp::from_nanos(taken));
        self.limit.apply(op, &mut self.state, now, Ask::from(cost), taken)
    }

    pub(crate) fn estimate(&self, cost: u64) -> Outcome {
        self.clone().apply(Op::Estimate, cost, 0)
    }

    pub(crate) fn peek(&self) -> Outcome {
        self.estimate(0)
    }

    pub(crate) fn level(&self) -> u64 {
        self.limit.level(&self.state, Timestamp::from_nanos(self.now))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.limit.is_idle(&self.state, Timestamp::from_nanos(self.now))
    }

    /// The same key later.
    pub(crate) fn at(&self, now: u64) -> Self {
        Self { now, ..self.clone() }
    }

    pub(crate) fn join(&self, other: &Self) -> Self {
        let now = self.now.max(other.now);
        let state = self.limit.join(&self.state, &other.state, Timestamp::from_nanos(now));
        Self { limit: self.limit, state, now }
    }

    /// The same key under another limit, from now on.
    pub(crate) fn convert(&self, spec: &Spec) -> Self {
        let limit = spec.limit();
        let state = limit.convert(&self.limit, &self.state, Timestamp::from_nanos(self.now));
        Self { limit, state, now: self.now }
    }
}

/// Instants from now on at which a key of this limit may answer differently.
pub(crate) fn later(spec: &Spec, now: u64) -> impl Iterator<Item = u64> {
    let (beat, refill) = (spec.beat(), spec.refill());
    [0, 1, beat - 1, beat, beat + 1, refill / 3, refill / 2, refill - 1, refill, refill + 1]
        .into_iter()
        .map(move |wait| now + wait)
}

/// Costs around which a key of this limit may answer differently.
pub(crate) fn costs(spec: &Spec) -> [u64; 6] {
    let capacity = spec.capacity();
    [0, 1, capacity.div_ceil(2), capacity, capacity + 1, u64::MAX]
}

/// Checks that two keys answer alike from now on, whatever is asked of them.
pub(crate) fn same_answers(spec: &Spec, a: &Key, b: &Key) -> Result<(), TestCaseError> {
    for now in later(spec, a.now.max(b.now)) {
        for cost in costs(spec) {
            prop_assert_eq!(a.at(now).estimate(cost), b.at(now).estimate(cost), "cost {} at {}", cost, now);
        }
    }
    Ok(())
}

/// Checks that the call that got this refusal, made again on `key`, succeeds after the wait and not earlier.
pub(crate) fn check_retry(spec: &Spec, key: &Key, cost: u64, refusal: Outcome) -> Result<(), TestCaseError> {
    let Some(wait) = refusal.retry_after else {
        prop_assert!(cost > spec.capacity(), "a cost of {cost} is possible");
        return Ok(());
    };
    prop_assert!(cost <= spec.capacity(), "a cost of {cost} is never possible");
    let then = key.now + wait.as_u64();
    prop_assert!(wait > Nanos::ZERO, "refused, but welcome at once");
    prop_assert!(!key.at(then - 1).charge(cost).allowed, "a cost of {cost} fits 1 ns before {then}");
    prop_assert!(key.at(then).charge(cost).allowed, "a cost of {cost} does not fit at {then}");
    Ok(())
}

/// Checks that a key becomes fresh `wait` from now and not earlier.
pub(crate) fn check_reset(spec: &Spec, key: &Key, wait: Nanos) -> Result<(), TestCaseError> {
    let then = key.now + wait.as_u64();
    prop_assert_eq!(key.is_idle(), wait == Nanos::ZERO);
    if wait > Nanos::ZERO {
        prop_assert_eq!(key.at(then - 1).peek().reset_after, Nanos::new(1));
    }
    let (mut reset, mut fresh) = (key.at(then), Key::new(spec, then));
    prop_assert!(reset.is_idle());
    for cost in costs(spec) {
        prop_assert_eq!(reset.estimate(cost), fresh.estimate(cost));
    }
    // Not only at that instant: from there on it lives as a fresh key does.
    for now in later(spec, then) {
        for cost in [1, spec.capacity()] {
            if now < reset.now {
                continue;
            }
            (reset.now, fresh.now) = (now, now);
            let (was, would_be) = (reset.charge(cost), fresh.charge(cost));
            if !spec.keeps_a_beat() {
                prop_assert_eq!(was, would_be);
            }
        }
    }
    Ok(())
}
