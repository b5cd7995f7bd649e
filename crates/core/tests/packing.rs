//! A state that travels in one word decides as the state itself does.

use crate::common::{Schedule, Spec, config, costs, later, packed_spec, schedule};
use proptest::prelude::*;
use tollgate_core::algorithm::{Algorithm, Packed};
use tollgate_core::limit::{self, Op};
use tollgate_core::{Limit, Nanos, Timestamp};

/// The last instant that words with this base can hold; none if they can hold nothing. Later than today by
/// more than anybody waits is late enough.
fn last_instant<A: Packed>(algorithm: &A, base: Timestamp) -> Option<u64> {
    let span = algorithm.span();
    (span > 0).then(|| base.as_nanos().saturating_add(span).min(u64::MAX / 2))
}

/// Does the same to a state and to its word, which is unpacked and packed again at every step.
///
/// A key gets its word with its first charge; the base of the words may be older than that.
fn check_steps<A: Packed>(
    algorithm: &A,
    spec: &Spec,
    schedule: &Schedule,
    ops: &[Op],
    older: u64,
) -> Result<(), TestCaseError> {
    let base = algorithm.base(Timestamp::from_nanos(schedule.start.saturating_sub(older)));
    let Some(end) = last_instant(algorithm, base) else {
        return Ok(());
    };
    let (mut state, mut word) = (A::State::default(), None);
    let mut now = schedule.start;
    let mut taken = Timestamp::ZERO;
    for (&(gap, cost), &op) in schedule.calls.iter().zip(ops.iter().cycle()) {
        now += gap.of(spec);
        if now > end {
            break;
        }
        let now = Timestamp::from_nanos(now);
        let mut unpacked = word.map_or_else(A::State::default, |word| algorithm.unpack(base, word));
        for cost in costs(spec) {
            prop_assert_eq!(algorithm.estimate(&unpacked, now, cost), algorithm.estimate(&state, now, cost));
        }
        prop_assert_eq!(algorithm.level(&unpacked, now), algorithm.level(&state, now));

        let cost = cost.of(spec, algorithm.estimate(&state, now, 0).remaining);
        let before = unpacked;
        let outcome = limit::apply(algorithm, op, &mut state, now, cost, taken);
        prop_assert_eq!(limit::apply(algorithm, op, &mut unpacked, now, cost, taken), outcome);
        if unpacked != before {
            word = Some(algorithm.pack(base, unpacked));
        }
        if op == Op::Charge && outcome.allowed {
            taken = now;
        }
    }
    Ok(())
}

/// Checks that nothing at all is packed as 0, and that 0 means nothing at all.
fn check_zero<A: Packed>(algorithm: &A, spec: &Spec, start: u64) -> Result<(), TestCaseError> {
    let base = algorithm.base(Timestamp::from_nanos(start));
    prop_assert_eq!(algorithm.pack(base, A::State::default()), 0);
    let zero = algorithm.unpack(base, 0);
    for now in later(spec, start).map(Timestamp::from_nanos) {
        prop_assert!(limit::is_idle(algorithm, &zero, now));
        prop_assert_eq!(algorithm.level(&zero, now), 0);
        for cost in costs(spec) {
            prop_assert_eq!(
                algorithm.estimate(&zero, now, cost),
                algorithm.estimate(&A::State::default(), now, cost)
            );
        }
    }
    Ok(())
}

/// Charges a key at the last instant that its words can hold.
fn check_last_instant<A: Packed>(algorithm: &A, start: u64) -> Result<(), TestCaseError> {
    let base = algorithm.base(Timestamp::from_nanos(start));
    let Some(last) = last_instant(algorithm, base).map(Timestamp::from_nanos) else {
        return Ok(());
    };
    let mut state = A::State::default();
    let _ = algorithm.decide(&mut state, last, algorithm.capacity());
    let unpacked = algorithm.unpack(base, algorithm.pack(base, state));
    for wait in [0, 1] {
        let now = last + Nanos::new(wait);
        prop_assert_eq!(algorithm.estimate(&unpacked, now, 1), algorithm.estimate(&state, now, 1));
    }
    Ok(())
}

macro_rules! with_packed {
    ($spec:expr, $algorithm:ident => $check:expr) => {
        match &$spec.limit() {
            Limit::Bucket($algorithm) => $check,
            Limit::FixedWindow($algorithm) => $check,
            Limit::SlidingWindow($algorithm) => $check,
            Limit::IntervalBucket($algorithm) => $check,
            other => unreachable!("{other:?} has no word"),
        }
    };
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![8 => Just(Op::Charge), 1 => Just(Op::Refund), 1 => Just(Op::Undo)];
    prop::collection::vec(op, 1..20)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_packed_state_decides_as_the_state_does(
        spec in packed_spec(),
        schedule in schedule(),
        ops in ops(),
        older in 0..1000_u64,
    ) {
        with_packed!(spec, a => check_steps(a, &spec, &schedule, &ops, older)?);
    }

    #[test]
    fn a_word_of_zero_is_idle_and_fresh(spec in packed_spec(), start in crate::common::start()) {
        with_packed!(spec, a => check_zero(a, &spec, start)?);
    }

    #[test]
    fn a_word_lasts_for_its_whole_span(spec in packed_spec(), start in crate::common::start()) {
        with_packed!(spec, a => check_last_instant(a, start)?);
    }

    /// Counters near the top of what a word can hold leave few bits for the time.
    #[test]
    fn large_limits_pack_as_small_ones_do(
        limit in prop_oneof![(1_u64 << 18)..(1 << 34), (1_u64 << 61)..=(1 << 62)],
        window in 1..=60_u64,
        schedule in schedule(),
        ops in ops(),
    ) {
        for spec in [
            Spec::Bucket { capacity: limit, count: 1, period: 1 },
            Spec::Bucket { capacity: limit, count: 7, period: 1 },
            Spec::Interval { capacity: limit, refill: 1 + limit / 7, period: window },
            Spec::Aligned { limit, window, offset: 0 },
            Spec::Anchored { limit, window },
            Spec::TwoWindows { limit, window },
        ] {
            // Shares of a capacity like this would overflow: units and the rest are enough.
            let calls = schedule.calls.iter().map(|&(gap, cost)| match cost {
                crate::common::Cost::Share(units) => (gap, crate::common::Cost::Units(units.into())),
                _ => (gap, cost),
            });
            let schedule = Schedule { calls: calls.collect(), ..schedule };
            with_packed!(spec, a => check_steps(a, &spec, &schedule, &ops, 0)?);
            with_packed!(spec, a => check_last_instant(a, schedule.start)?);
        }
    }
}

/// Windows that begin at an offset, seen from before the first of them.
#[test]
fn an_aligned_window_is_found_again_from_a_base_before_its_offset() {
    let spec = Spec::Aligned { limit: 3, window: 10, offset: 4 };
    let Limit::FixedWindow(windows) = spec.limit() else {
        return;
    };
    let base = windows.base(Timestamp::ZERO);
    let mut state = Default::default();
    let _ = windows.decide(&mut state, Timestamp::from_nanos(27), 3);
    let unpacked = windows.unpack(base, windows.pack(base, state));
    assert_eq!(unpacked, state);
    assert!(!windows.estimate(&unpacked, Timestamp::from_nanos(27), 1).allowed);
}
