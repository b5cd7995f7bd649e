//! The worker shedder: exact timing, the order of the classes, and no drift.

use crate::common::{SECOND, config};
use proptest::prelude::*;
use tollgate_core::worker::{Fraction, PPM, Pressure, Worker, WorkerSettings};
use tollgate_core::{Nanos, Timestamp};

const TEST_MODE: u32 = 0;
const GET: u32 = 1;
const POST: u32 = 2;
const CRITICAL: u32 = 3;

/// The amount as a plain sum in 128 bits: every nanosecond moves it by a fraction of the denominator.
struct Model {
    settings: WorkerSettings,
    sum: i128,
    last: Option<u64>,
}

impl Model {
    fn new(settings: WorkerSettings) -> Self {
        let sum = -Self::top_speed(&settings) * i128::from(settings.grace.as_u64());
        Self { settings, sum, last: None }
    }

    fn top_speed(settings: &WorkerSettings) -> i128 {
        i128::from(settings.good_ppm) * i128::from(PPM - settings.bad_ppm)
    }

    fn sample(&mut self, now: u64, utilization: u64) {
        let WorkerSettings { good_ppm, bad_ppm, grace, full, max_step, .. } = self.settings;
        let (good, bad, u) = (i128::from(good_ppm), i128::from(bad_ppm), i128::from(utilization));
        let top = Self::top_speed(&self.settings);
        let speed = match u {
            _ if u < good => (u - good) * (i128::from(PPM) - bad),
            _ if u < bad => 0,
            _ => (u - bad) * good,
        };
        let gap = self.last.map_or(0, |last| now.saturating_sub(last)).min(max_step.as_u64());
        let moved = self.sum + speed.clamp(-top, top) * i128::from(gap);
        self.sum = moved.clamp(-top * i128::from(grace.as_u64()), top * i128::from(full.as_u64()));
        self.last = self.last.max(Some(now));
    }

    /// Whether the sum, over its own denominator, is this fraction.
    fn equals(&self, amount: Fraction) -> bool {
        let denominator = Self::top_speed(&self.settings) * i128::from(self.settings.full.as_u64());
        let (num, den) = (i128::from(amount.num), i128::from(amount.den));
        denominator % den == 0 && num * (denominator / den) == self.sum
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Whole percents, and times as long as can be computed with exactly.
fn settings() -> impl Strategy<Value = WorkerSettings> {
    let percent = 1..100_u64;
    let time = || prop_oneof![1..=10_u64, SECOND..=200 * SECOND];
    (percent.clone(), percent, prop_oneof![Just(0), time()], time(), time(), 1..=5_u32).prop_map(
        |(one, other, grace, full, max_step, classes)| {
            let (good_ppm, bad_ppm) = (one.min(other) * 10_000, one.max(other) * 10_000);
            let top_speed = good_ppm / gcd(good_ppm, PPM - bad_ppm) * (PPM - bad_ppm);
            let exact = |time: u64| Nanos::new(time.min((1 << 60) / top_speed));
            let (grace, full, max_step) = (exact(grace), exact(full), exact(max_step));
            WorkerSettings { good_ppm, bad_ppm, grace, full, max_step, classes }
        },
    )
}

/// What somebody may well write: shares to a hundredth of a percent, times from a second to a day, looked at every 100 ms to a
/// minute, as a policy makes settings of it.
fn sane() -> impl Strategy<Value = (WorkerSettings, u64)> {
    let share = 1..10_000_u64;
    let time = || prop_oneof![1..=300_u64, 1..=86_400_u64].prop_map(|seconds| seconds * SECOND);
    let every = prop_oneof![1..=600_u64, Just(1), Just(600)].prop_map(|tenths| tenths * (SECOND / 10));
    (share.clone(), share, time(), time(), every, 1..=5_u32).prop_map(
        |(one, other, grace, full, every, classes)| {
            let settings = WorkerSettings {
                good_ppm: one.min(other) * 100,
                bad_ppm: one.max(other) * 100,
                grace: Nanos::new(grace),
                full: Nanos::new(full),
                max_step: Nanos::new((4 * every).max(28 * SECOND)),
                classes,
            };
            (settings, every)
        },
    )
}

/// When an amount is first as it should be, looked at every so often. What is far away is approached in longer steps.
fn reaches(
    worker: &Worker,
    (mut pressure, mut now): (Pressure, u64),
    utilization: u64,
    every: u64,
    is: impl Fn(Fraction) -> bool,
) -> (Pressure, u64) {
    let long = worker.settings().max_step.as_u64() / every * every;
    pressure = worker.sample(pressure, Timestamp::from_nanos(now), utilization);
    for step in [long, every] {
        while !is(worker.amount(pressure)) {
            let next = worker.sample(pressure, Timestamp::from_nanos(now + step), utilization);
            let is_there = is(worker.amount(next));
            if !is_there || step == every {
                (pressure, now) = (next, now + step);
            }
            if is_there {
                break;
            }
        }
    }
    (pressure, now)
}

/// Gaps between samples, and the utilization at each.
fn samples() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let gap = prop_oneof![0..=10_u64, 0..=60 * SECOND];
    let utilization = prop_oneof![0..=PPM, Just(0), Just(PPM), Just(3 * PPM)];
    prop::collection::vec((gap, utilization), 1..64)
}

/// A controller after some samples, at an instant.
fn after(worker: &Worker, samples: &[(u64, u64)]) -> (Pressure, u64) {
    let mut now = 0;
    let mut pressure = worker.at_rest();
    for &(gap, utilization) in samples {
        now += gap;
        pressure = worker.sample(pressure, Timestamp::from_nanos(now), utilization);
    }
    (pressure, now)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_amount_is_the_exact_sum_of_all_samples(settings in settings(), samples in samples()) {
        let worker = Worker::new(settings).unwrap();
        let mut model = Model::new(settings);
        let mut pressure = worker.at_rest();
        let mut now = 0;
        for (gap, utilization) in samples {
            now += gap;
            pressure = worker.sample(pressure, Timestamp::from_nanos(now), utilization);
            model.sample(now, utilization);
            let amount = worker.amount(pressure);
            prop_assert!(model.equals(amount));
            prop_assert_eq!(worker.amount(worker.pressure(amount.num)), amount);
        }
    }

    #[test]
    fn one_sample_equals_the_many_it_is_split_into(
        settings in settings(),
        samples in samples(),
        utilization in 0..=2 * PPM,
        cuts in prop::collection::vec(0.0..1.0, 0..6),
    ) {
        let worker = Worker::new(settings).unwrap();
        let (start, now) = after(&worker, &samples);
        let step = settings.max_step.as_u64();
        let whole = worker.sample(start, Timestamp::from_nanos(now + step), utilization);

        let mut cuts: Vec<u64> = cuts.into_iter().map(|cut: f64| (step as f64 * cut) as u64).collect();
        cuts.sort_unstable();
        let split = cuts.into_iter().chain([step]).fold(start, |pressure, cut| {
            worker.sample(pressure, Timestamp::from_nanos(now + cut), utilization)
        });
        prop_assert_eq!(split, whole);
    }

    #[test]
    fn a_gap_counts_as_the_longest_step_at_most_and_time_never_runs_backwards(
        settings in settings(),
        samples in samples(),
        utilization in 0..=2 * PPM,
        beyond in 0..=100 * SECOND,
    ) {
        let worker = Worker::new(settings).unwrap();
        let (start, now) = after(&worker, &samples);
        let step = settings.max_step.as_u64();
        let amount = |now| worker.amount(worker.sample(start, Timestamp::from_nanos(now), utilization));
        prop_assert_eq!(amount(now + step + beyond), amount(now + step));
        prop_assert_eq!(worker.sample(start, Timestamp::from_nanos(now.saturating_sub(beyond)), utilization), start);
    }

    #[test]
    fn no_class_is_touched_before_the_less_important_one_is_gone(settings in settings(), samples in samples()) {
        let worker = Worker::new(settings).unwrap();
        let (pressure, _) = after(&worker, &samples);
        let amount = worker.amount(pressure);
        let shares: Vec<Fraction> =
            (0..settings.classes).map(|rank| worker.drop_probability(pressure, rank)).collect();
        for (less, more) in shares.iter().zip(shares.iter().skip(1)) {
            prop_assert!(more.num == 0 || less.num == less.den);
        }
        // Together they shed what the amount says: the bands are equal and leave no gap.
        let total: i128 = shares.iter().map(|share| i128::from(share.num)).sum();
        prop_assert_eq!(total, i128::from(amount.num.max(0)) * i128::from(settings.classes));
    }

    #[test]
    fn critical_requests_are_never_shed(
        settings in settings(),
        samples in samples(),
        rank in any::<u32>(),
        draw in any::<u32>(),
    ) {
        let worker = Worker::new(settings).unwrap();
        let (pressure, _) = after(&worker, &samples);
        for rank in [settings.classes, rank.max(settings.classes), u32::MAX] {
            for draw in [0, draw, u32::MAX] {
                prop_assert!(!worker.sheds(pressure, rank, draw));
            }
        }
    }

    /// From rest to everything, and back, at full speed; looked at as seldom as counts, and as often as said near the end.
    #[test]
    fn sane_settings_shed_everything_in_the_time_said_within_one_sample(sane in sane(), over in 0..=PPM) {
        let (settings, every) = sane;
        let worker = Worker::new(settings).unwrap();
        let (grace, full) = (settings.grace.as_u64(), settings.full.as_u64());
        let rest = worker.amount(worker.at_rest());
        prop_assert!(rest.num < 0 && rest.den > 0);

        let (shedding, at) = reaches(&worker, (worker.at_rest(), 0), PPM + over, every, |p| p.num > 0);
        prop_assert!(at > grace && at <= grace + every, "the first is shed after {}", at);
        let (all, at) = reaches(&worker, (shedding, at), PPM + over, every, |p| p.num == p.den);
        prop_assert!(at >= grace + full && at <= grace + full + every, "all are shed after {}", at);
        let back = at;
        let (none, at) = reaches(&worker, (all, at), 0, every, |p| p.num <= 0);
        prop_assert!(at - back >= full && at - back <= full + every, "none is shed after {}", at - back);
        let (_, at) = reaches(&worker, (none, at), 0, every, |p| p == rest);
        prop_assert!(at - back >= full + grace && at - back <= full + grace + every, "rest after {}", at - back);
    }

    #[test]
    fn more_trouble_for_longer_never_sheds_less(
        sane in sane(),
        samples in samples(),
        (one, other) in (0..=PPM, 0..=PPM),
        (soon, later) in (0..=60 * SECOND, 0..=60 * SECOND),
    ) {
        let (settings, _) = sane;
        let worker = Worker::new(settings).unwrap();
        let (start, now) = after(&worker, &samples);
        let then = |pressure, gap, utilization| {
            worker.sample(pressure, Timestamp::from_nanos(now + gap), utilization)
        };
        let (calm, busy) = (one.min(other), one.max(other));
        prop_assert!(then(start, soon, calm).amount() <= then(start, soon, busy).amount());
        let (short, long) = (soon.min(later), soon.max(later));
        let (sooner, later) = (then(start, short, busy).amount(), then(start, long, busy).amount());
        if busy >= settings.bad_ppm {
            prop_assert!(sooner <= later);
        } else {
            prop_assert!(sooner >= later);
        }
        // Who was worse off before is worse off afterwards.
        let (low, high) = (worker.pressure(start.amount() - 1), worker.pressure(start.amount()));
        let (low, high) = (then(low, 0, busy), then(high, 0, busy));
        prop_assert!(then(low, long, busy).amount() <= then(high, long, busy).amount());
        for rank in 0..settings.classes {
            let p = |pressure| worker.drop_probability(pressure, rank).num;
            prop_assert!(p(then(start, soon, calm)) <= p(then(start, soon, busy)));
        }
    }

    #[test]
    fn a_draw_is_shed_exactly_below_the_probability(settings in settings(), samples in samples(), draw in any::<u32>()) {
        let worker = Worker::new(settings).unwrap();
        let (pressure, _) = after(&worker, &samples);
        for rank in 0..settings.classes {
            let p = worker.drop_probability(pressure, rank);
            prop_assert!((0..=p.den).contains(&p.num));
            // As many of the 2^32 draws as the probability says, rounded up.
            let shed = ((i128::from(p.num) << 32) + i128::from(p.den) - 1) / i128::from(p.den);
            for draw in [0, draw, u32::MAX, shed.saturating_sub(1).max(0) as u32, shed as u32] {
                prop_assert_eq!(worker.sheds(pressure, rank, draw), i128::from(draw) < shed);
            }
        }
    }
}

/// A controller under one utilization from rest, sampled every second, and once more at the end.
fn under(worker: &Worker, start: Pressure, from: u64, length: u64, utilization: u64) -> Pressure {
    let mut pressure = start;
    let mut now = from;
    while now < from + length {
        pressure = worker.sample(pressure, Timestamp::from_nanos(now), utilization);
        now += SECOND;
    }
    worker.sample(pressure, Timestamp::from_nanos(from + length), utilization)
}

fn gist() -> Worker {
    Worker::new(WorkerSettings::default()).unwrap_or_else(|error| unreachable!("{error}"))
}

#[test]
fn full_overload_is_forgiven_for_28_s_and_sheds_everything_120_s_later() {
    let worker = gist();
    let after = |nanos| under(&worker, worker.at_rest(), 0, nanos, PPM);
    let is_gone = |pressure, rank| worker.sheds(pressure, rank, u32::MAX);
    let is_whole = |pressure, rank| !worker.sheds(pressure, rank, 0);

    assert_eq!(worker.amount(after(28 * SECOND)).num, 0);
    assert!(is_whole(after(28 * SECOND), TEST_MODE));
    assert!(!is_whole(after(28 * SECOND + 1), TEST_MODE), "the first drop comes a nanosecond later");
    for (rank, from, to) in [(TEST_MODE, 28, 68), (GET, 68, 108), (POST, 108, 148)] {
        assert!(is_whole(after(from * SECOND), rank), "rank {rank} is whole at {from} s");
        assert!(!is_whole(after(from * SECOND + 1), rank), "rank {rank} suffers after {from} s");
        let p = worker.drop_probability(after(to * SECOND - 1), rank);
        assert!(p.num < p.den, "rank {rank} is not gone before {to} s");
        assert!(is_gone(after(to * SECOND), rank), "rank {rank} is gone at {to} s");
    }
    let amount = worker.amount(after(148 * SECOND));
    assert_eq!(amount.num, amount.den);
    assert!(is_whole(after(1000 * SECOND), CRITICAL));
}

#[test]
fn an_idle_box_stops_shedding_after_120_s_and_has_its_grace_back_after_28_s_more() {
    let worker = gist();
    let full = under(&worker, worker.at_rest(), 0, 200 * SECOND, PPM);
    let rest = worker.amount(worker.at_rest());
    let after = |nanos, utilization| worker.amount(under(&worker, full, 200 * SECOND, nanos, utilization));

    assert_eq!(after(120 * SECOND, 0).num, 0);
    assert!(after(120 * SECOND - 1, 0).num > 0);
    assert_eq!(after(148 * SECOND, 0), rest);
    assert_ne!(after(148 * SECOND - 1, 0), rest);
    // Ten times slower at nine tenths of what is good, and not at all in the dead zone.
    assert_eq!(after(1200 * SECOND, 630_000).num, 0);
    assert!(after(1200 * SECOND - 1, 630_000).num > 0);
    for dead in [700_000, 799_999] {
        assert_eq!(after(1000 * SECOND, dead).num, rest.den);
    }
}

#[test]
fn shares_that_leave_no_room_to_be_exact_are_not_refused() {
    let day = Nanos::from_secs(86_400);
    for (good_ppm, bad_ppm) in
        [(500_000, 605_000), (610_000, 675_000), (700_100, 800_100), (999_999, 999_999)]
    {
        let settings =
            WorkerSettings { good_ppm, bad_ppm, grace: day, full: day, ..WorkerSettings::default() };
        let worker = Worker::new(settings).unwrap_or_else(|error| unreachable!("{error}"));
        let amount = worker.amount(worker.at_rest());
        assert_eq!(amount.num, -amount.den);
    }
    let settings = WorkerSettings { full: Nanos::from_secs(31 * 86_400), ..WorkerSettings::default() };
    let error = Worker::new(settings).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(error, Err("full is 2678400s: it must be from 1ns to 2592000s".to_owned()));
}

#[test]
fn a_hundred_thousand_samples_do_not_drift() {
    let settings = WorkerSettings::default();
    let worker = gist();
    let mut model = Model::new(settings);
    let mut pressure = worker.at_rest();
    let mut now = 0;
    for i in 0..100_000_u64 {
        // Steps of all lengths, and a utilization that swings around the dead zone.
        now += i * i % 1_000_003 * (i % 1000);
        let utilization = i * 7919 % (PPM + 1);
        pressure = worker.sample(pressure, Timestamp::from_nanos(now), utilization);
        model.sample(now, utilization);
    }
    assert!(model.equals(worker.amount(pressure)));

    // As far up as down, a hundred thousand times: back where it was.
    let start = under(&worker, worker.at_rest(), now, 70 * SECOND, PPM);
    now += 70 * SECOND;
    let mut pressure = start;
    for i in 0..100_000 {
        now += 333_333;
        pressure =
            worker.sample(pressure, Timestamp::from_nanos(now), if i % 2 == 0 { 900_000 } else { 350_000 });
    }
    assert_eq!(worker.amount(pressure), worker.amount(start));
}
