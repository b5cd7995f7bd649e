//! The edges of arithmetic: the smallest and largest numbers, very long idleness, and very many tiny steps.

use crate::common::{HOUR, Key, SECOND, Spec, THIRTY_YEARS, any_spec, config, later, schedule};
use proptest::prelude::*;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::fleet::FleetMode;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::log::SubWindows;
use tollgate_core::worker::{Worker, WorkerSettings};
use tollgate_core::{Limit, LimitError, Nanos, Timestamp};

const NUMBERS: [u64; 13] = [
    0,
    1,
    2,
    3,
    7,
    SECOND,
    u32::MAX as u64,
    HOUR,
    THIRTY_YEARS,
    (1 << 62) - 1,
    1 << 62,
    (1 << 62) + 1,
    u64::MAX,
];

const INSTANTS: [u64; 8] =
    [0, 1, SECOND, 1_700_000_000 * SECOND, 1_700_000_000 * SECOND + 1, 1 << 63, u64::MAX - 1, u64::MAX];

/// The arguments of a constructor by name, and whether it should take them.
type Arguments = Vec<(&'static str, u64)>;

/// Checks that a limit was built exactly if it `can_work`, and that otherwise the error names one of the
/// arguments and tells its value.
fn check_built(built: Result<Limit, LimitError>, arguments: &Arguments, can_work: bool) -> Option<Limit> {
    match built {
        Ok(limit) => {
            assert!(can_work, "{limit:?} was built from {arguments:?}");
            Some(limit)
        }
        Err(error) => {
            assert!(!can_work, "{error}, yet {arguments:?} can work");
            let named = arguments.iter().find(|(name, _)| *name == error.field);
            let (_, value) = named.unwrap_or_else(|| unreachable!("{error} names none of {arguments:?}"));
            let as_time = Nanos::new(*value).to_string();
            assert!([value.to_string(), as_time].contains(&error.value), "{error}: {arguments:?}");
            assert!(error.to_string().starts_with(error.field));
            None
        }
    }
}

/// Does everything with a limit at every instant, forwards and backwards: nothing may panic.
fn exercise(limit: &Limit) {
    let capacity = limit.capacity();
    let costs = [0, 1, capacity, capacity.saturating_add(1), u64::MAX];
    let instants = INSTANTS.into_iter().chain(INSTANTS.into_iter().rev());
    let mut state = limit.fresh();
    let mut id = 0;
    for now in instants.map(Timestamp::from_nanos) {
        let mut fresh = limit.fresh();
        for cost in costs {
            for critical in [false, true] {
                id += 1;
                let ask = Ask { critical, lease: LeaseId(id), ..Ask::from(cost) };
                for op in [Op::Estimate, Op::Charge, Op::Renew, Op::Estimate] {
                    let _ = limit.apply(op, &mut state, now, ask, now);
                }
                let _ = limit.level(&state, now);
                let _ = limit.is_idle(&state, now);
                let _ = limit.in_progress(&state, now);
                fresh = limit.join(&fresh, &state, now);
                state = limit.convert(limit, &state, now);
                if critical {
                    let op = if cost % 2 == 0 { Op::Refund } else { Op::Undo };
                    let _ = limit.apply(op, &mut state, now, ask, Timestamp::from_nanos(id as u64));
                }
            }
        }
    }
}

/// Checks the answers of a rate limit to a key that was never seen, at every instant.
fn check_first_calls(limit: &Limit) {
    let capacity = limit.capacity();
    // At the very last instant a window is over as soon as it begins.
    for now in INSTANTS.into_iter().filter(|&now| now < u64::MAX) {
        let key = Key { limit: *limit, state: limit.fresh(), now };
        assert_eq!((key.peek().remaining, key.peek().reset_after), (capacity, Nanos::ZERO));
        assert!(key.clone().charge(1).allowed && key.clone().charge(capacity).allowed);
        for cost in [capacity.saturating_add(1), u64::MAX] {
            let outcome = key.clone().charge(cost);
            assert!(!outcome.allowed && outcome.retry_after.is_none());
        }
        let mut key = key;
        assert_eq!(key.charge(capacity).remaining, 0);
        assert!(!key.charge(1).allowed, "{limit:?} gave {capacity} and one more at {now}");
    }
}

fn check_rate(spec: Spec, arguments: &Arguments, can_work: bool) {
    if let Some(limit) = check_built(spec.build(), arguments, can_work) {
        assert_eq!(limit.capacity(), spec.capacity());
        check_first_calls(&limit);
        exercise(&limit);
    }
}

/// The most that a product of a quota may be.
fn is_small(factors: &[u64]) -> bool {
    let product = factors.iter().try_fold(1_u128, |product, &factor| product.checked_mul(u128::from(factor)));
    product.is_some_and(|product| (1..=1 << 62).contains(&product))
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// All triples of the numbers at the edges.
fn triples() -> impl Iterator<Item = (u64, u64, u64)> {
    NUMBERS
        .into_iter()
        .flat_map(|a| NUMBERS.into_iter().flat_map(move |b| NUMBERS.into_iter().map(move |c| (a, b, c))))
}

#[test]
fn a_bucket_of_any_size_is_refused_by_name_or_works() {
    for (capacity, count, period) in triples() {
        let token = period / gcd(count, period).max(1);
        let can_work = is_small(&[count]) && is_small(&[period]) && is_small(&[capacity, token]);
        let arguments = vec![("burst", capacity), ("rate", count), ("period", period)];
        check_rate(Spec::Bucket { capacity, count, period }, &arguments, can_work);
    }
}

#[test]
fn a_queue_of_any_size_is_refused_by_name_or_works() {
    for (queue, count, period) in triples().filter(|(queue, ..)| *queue < u64::MAX) {
        for undelayed in [0, queue, queue.saturating_add(1)] {
            let token = period / gcd(count, period).max(1);
            let can_work = is_small(&[count])
                && is_small(&[period])
                && is_small(&[queue + 1, token])
                && undelayed <= queue;
            let arguments =
                vec![("queue", queue), ("rate", count), ("period", period), ("undelayed", undelayed)];
            check_rate(Spec::Queue { queue, count, period, undelayed }, &arguments, can_work);
        }
    }
    let unlimited = Limit::leaky_queue(u64::MAX, 1, Nanos::new(1), 0);
    assert_eq!(unlimited.unwrap_err().field, "queue");
}

#[test]
fn an_interval_bucket_of_any_size_is_refused_by_name_or_works() {
    for (capacity, refill, period) in triples() {
        let full_in = capacity.checked_div(refill).is_some_and(|batches| {
            is_small(&[batches + u64::from(!capacity.is_multiple_of(refill)), period])
        });
        let can_work = is_small(&[refill]) && is_small(&[capacity]) && is_small(&[period]) && full_in;
        let arguments = vec![("burst", capacity), ("rate", refill), ("period", period)];
        check_rate(Spec::Interval { capacity, refill, period }, &arguments, can_work);
    }
}

#[test]
fn a_fixed_window_of_any_size_is_refused_by_name_or_works() {
    for (limit, window, offset) in triples() {
        let arguments = vec![("rate", limit), ("period", window), ("offset", offset)];
        let can_work = is_small(&[limit]) && is_small(&[window]);
        check_rate(Spec::Aligned { limit, window, offset }, &arguments, can_work && offset < window);
        check_rate(Spec::Anchored { limit, window }, &arguments, can_work);
    }
}

#[test]
fn a_sliding_window_of_any_size_is_refused_by_name_or_works() {
    for (limit, window, _) in triples().filter(|(.., first)| *first == 0) {
        let arguments = vec![("rate", limit), ("period", window)];
        check_rate(Spec::TwoWindows { limit, window }, &arguments, is_small(&[limit]) && is_small(&[window]));
    }
}

#[test]
fn a_log_of_any_size_is_refused_by_name_or_works() {
    for (limit, window, spacing) in triples() {
        let arguments = vec![("rate", limit), ("period", window), ("min_difference", spacing)];
        let can_work = is_small(&[limit]) && is_small(&[window]) && spacing < window;
        for count_rejected in [false, true] {
            check_rate(Spec::Log { limit, window, spacing, count_rejected }, &arguments, can_work);
        }
    }
}

#[test]
fn sub_windows_of_any_size_are_refused_by_name_or_work() {
    for (limit, window, buckets) in triples() {
        let arguments = vec![("rate", limit), ("period", window), ("buckets", buckets)];
        let can_work =
            is_small(&[limit]) && is_small(&[window]) && buckets > 0 && window.is_multiple_of(buckets);
        for kind in [SubWindows::NPlusOne, SubWindows::N] {
            let built = Limit::sub_windows(limit, Nanos::new(window), buckets, kind);
            if let Some(limit) = check_built(built, &arguments, can_work) {
                check_first_calls(&limit);
                exercise(&limit);
            }
        }
    }
}

#[test]
fn concurrency_of_any_size_is_refused_by_name_or_works() {
    for (capacity, ttl, _) in triples().filter(|(.., first)| *first == 0) {
        let arguments = vec![("concurrency", capacity), ("lease", ttl)];
        for (built, can_work) in [
            (Limit::concurrency(capacity), is_small(&[capacity])),
            (Limit::leases(capacity, Nanos::new(ttl)), is_small(&[capacity]) && is_small(&[ttl])),
        ] {
            if let Some(limit) = check_built(built, &arguments, can_work) {
                exercise(&limit);
            }
        }
    }
}

#[test]
fn a_fleet_of_any_size_is_refused_by_name_or_works() {
    for (capacity, kept, of) in triples() {
        for ttl in [0, 1, THIRTY_YEARS, u64::MAX] {
            let can_work = (1..=u64::from(u32::MAX)).contains(&capacity)
                && (1..=u64::from(u32::MAX)).contains(&of)
                && kept <= of
                && is_small(&[ttl]);
            for mode in [FleetMode::Allocation, FleetMode::Total] {
                match Limit::fleet(capacity, (kept, of), mode, Nanos::new(ttl)) {
                    Ok(limit) => {
                        assert!(can_work);
                        exercise(&limit);
                    }
                    Err(error) => {
                        assert!(!can_work, "{error}");
                        assert!(["fleet", "reserve", "lease"].contains(&error.field));
                    }
                }
            }
        }
    }
}

#[test]
fn a_worker_of_any_settings_is_refused_by_name_or_works() {
    let percents = [0, 1, 333_333, 700_000, 999_999, 1_000_000, u64::MAX];
    for (grace, full, max_step) in triples() {
        for (good_ppm, bad_ppm) in percents.iter().flat_map(|good| percents.map(|bad| (*good, bad))) {
            for classes in [0, 1, 1 << 16, u32::MAX] {
                let (grace, full, max_step) = (Nanos::new(grace), Nanos::new(full), Nanos::new(max_step));
                let settings = WorkerSettings { good_ppm, bad_ppm, grace, full, max_step, classes };
                let worker = match Worker::new(settings) {
                    Ok(worker) => worker,
                    Err(error) => {
                        let fields = ["good", "bad", "grace", "full", "max_step", "classes"];
                        assert!(fields.contains(&error.field), "{error}");
                        continue;
                    }
                };
                let mut pressure = worker.at_rest();
                for (now, utilization) in INSTANTS.into_iter().zip(percents.into_iter().cycle()) {
                    pressure = worker.sample(pressure, Timestamp::from_nanos(now), utilization);
                    for rank in [0, 1, classes - 1, classes, u32::MAX] {
                        let p = worker.drop_probability(pressure, rank);
                        assert!((0..=p.den).contains(&p.num));
                        assert!(rank < classes || !worker.sheds(pressure, rank, 0));
                    }
                }
            }
        }
    }
}

/// From one in thirty years to a thousand million a second.
#[test]
fn the_slowest_and_the_fastest_bucket_are_exact() {
    let mut slow = Key::new(&Spec::Bucket { capacity: 1, count: 1, period: THIRTY_YEARS }, 5);
    assert!(slow.charge(1).allowed);
    assert_eq!(slow.charge(1).retry_after, Some(Nanos::new(THIRTY_YEARS)));
    assert!(!slow.at(5 + THIRTY_YEARS - 1).charge(1).allowed);
    assert!(slow.at(5 + THIRTY_YEARS).charge(1).allowed);

    let mut fast = Key::new(&Spec::Bucket { capacity: 1, count: SECOND, period: SECOND }, 5);
    for now in 5..1000 {
        fast.now = now;
        assert!(fast.charge(1).allowed && !fast.charge(1).allowed);
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_key_that_was_idle_for_thirty_years_has_exactly_its_capacity(
        spec in any_spec(),
        schedule in schedule(),
    ) {
        let mut key = Key::after(&spec, &schedule);
        key.now += THIRTY_YEARS;
        prop_assert_eq!(key.peek().remaining, spec.capacity());
        prop_assert!(key.is_idle());
        prop_assert_eq!(key.level(), 0);
        prop_assert!(key.charge(spec.capacity()).allowed);
        prop_assert!(!key.charge(1).allowed);
    }

    /// Not just after long idleness: whenever it is exhausted, a full refill brings all of it back.
    #[test]
    fn an_exhausted_key_has_exactly_its_capacity_after_one_refill(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::after(&spec, &schedule);
        for now in later(&spec, key.now + spec.refill()) {
            let mut key = key.at(now);
            prop_assert_eq!(key.peek().remaining, spec.capacity());
            prop_assert!(key.charge(spec.capacity()).allowed && !key.charge(1).allowed);
        }
        key.now += spec.refill();
        prop_assert!(key.charge(spec.capacity()).allowed);
    }
}

/// Numbers that look random and are the same in every run (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[test]
fn a_million_tiny_refills_lose_no_remainder() {
    for (count, period) in [(7, SECOND), (333, SECOND), (713, 7_560_000_001), (1, SECOND), (999, SECOND)] {
        let capacity = 5;
        let start = 1_700_000_000 * SECOND;
        let mut key = Key::new(&Spec::Bucket { capacity, count, period }, start);
        let mut numbers = Numbers(count);
        let mut admitted = 0;
        for _ in 0..1_000_000 {
            let longest = 10_u64.pow((numbers.next() % 7) as u32);
            // Never a whole token in one step, so that a bucket once drained never fills up and spills.
            key.now += 1 + numbers.next() % longest;
            admitted += u64::from(key.charge(1).allowed);
        }
        let refilled = u128::from(count) * u128::from(key.now - start) / u128::from(period);
        assert_eq!(u128::from(admitted), u128::from(capacity) + refilled, "{count} per {period} ns");
    }
}
