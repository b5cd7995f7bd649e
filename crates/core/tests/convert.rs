//! When a limit changes, what was used stays used: a change is never a fresh burst.

use crate::common::{
    Admitted, Key, Spec, any_spec, check_reset, check_retry, config, costs, same_answers, schedule,
    two_of_a_kind,
};
use proptest::prelude::*;
use tollgate_core::Nanos;
use tollgate_core::log::SubWindows;

/// How long a call counts for sure, under a limit that remembers every call.
fn memory(spec: &Spec) -> Option<u64> {
    match *spec {
        Spec::Log { window, .. } => Some(window),
        Spec::SubWindows { grain, buckets, kind, .. } => Some(match kind {
            SubWindows::NPlusOne => grain * buckets + 1,
            SubWindows::N => grain * (buckets - 1) + 1,
        }),
        _ => None,
    }
}

/// What is in use under `old` and has to be in use under `new`. A log remembers every call, so that of those
/// which it still has it can tell what the new limit would have counted; all others keep what is used.
fn in_use(old: &Spec, new: &Spec, key: &Key, admitted: &[Admitted]) -> u64 {
    match (memory(old), memory(new)) {
        (Some(before), Some(after)) => {
            let counts = |call: &&Admitted| key.now < call.at + before.min(after);
            admitted.iter().filter(counts).map(|call| call.cost).sum()
        }
        _ => old.capacity() - key.peek().remaining,
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_change_to_the_same_changes_nothing(spec in any_spec(), schedule in schedule(), more in schedule()) {
        let key = Key::after(&spec, &schedule);
        let mut converted = key.convert(&spec);
        same_answers(&spec, &key, &converted)?;
        let mut key = key;
        prop_assert_eq!(key.run(&spec, &more.calls), converted.run(&spec, &more.calls));
    }

    #[test]
    fn what_was_used_stays_used((old, new) in two_of_a_kind(), schedule in schedule()) {
        let mut key = Key::new(&old, schedule.start);
        let admitted = key.run(&old, &schedule.calls);
        let converted = key.convert(&new);
        let left = new.capacity().saturating_sub(in_use(&old, &new, &key, &admitted));
        prop_assert!(converted.peek().remaining <= left, "{:?} left, not {}", converted.peek(), left);
        if memory(&new).is_none() {
            prop_assert_eq!(converted.peek().remaining, left);
        }
        prop_assert!(!converted.clone().charge(left + 1).allowed);
    }

    #[test]
    fn a_changed_key_keeps_the_new_bound_and_recovers(
        (old, new) in two_of_a_kind(),
        schedule in schedule(),
        more in schedule(),
    ) {
        let mut key = Key::after(&old, &schedule).convert(&new);
        prop_assert!(key.at(key.now + new.refill()).charge(new.capacity()).allowed);
        let admitted = key.run(&new, &more.calls);
        new.check_intervals(&admitted)?;
    }

    #[test]
    fn a_changed_key_answers_honestly(
        (old, new) in two_of_a_kind(),
        schedule in schedule(),
        more in schedule(),
    ) {
        let mut key = Key::after(&old, &schedule).convert(&new);
        for &(gap, cost) in &more.calls {
            for cost in costs(&new) {
                let outcome = key.estimate(cost);
                check_reset(&new, &key, outcome.reset_after)?;
                if !outcome.allowed {
                    check_retry(&new, &key, cost, outcome)?;
                }
            }
            key.now += gap.of(&new);
            let cost = cost.of(&new, key.peek().remaining);
            let _ = key.charge(cost);
        }
    }

    /// A change there and back in one instant is no way to get anything back.
    #[test]
    fn a_change_there_and_back_gives_nothing((one, other) in two_of_a_kind(), schedule in schedule()) {
        let key = Key::after(&one, &schedule);
        let back = key.convert(&other).convert(&one);
        let used = one.capacity() - key.peek().remaining;
        let kept = one.capacity() - back.peek().remaining;
        if memory(&one).is_none() {
            prop_assert!(kept >= used.min(other.capacity()));
        }
    }

    #[test]
    fn the_share_that_was_used_survives_a_change_of_kind(
        old in any_spec(),
        new in any_spec(),
        schedule in schedule(),
    ) {
        let key = Key::after(&old, &schedule);
        if std::mem::discriminant(&key.limit) == std::mem::discriminant(&new.limit()) {
            return Ok(());
        }
        let converted = key.convert(&new);
        prop_assert!(converted.level() >= key.level());
        // As many whole units as cover the share, and not one more.
        let share = u128::from(key.level()) * u128::from(new.capacity());
        let used = share.div_ceil(1 << 32) as u64;
        prop_assert_eq!(converted.peek().remaining, new.capacity() - used);
        prop_assert_eq!(converted.is_idle(), used == 0);
    }
}

/// The last window was full under a limit of 10; under one of 5 half of it still weighs as much as all of that.
#[test]
fn a_lower_limit_of_two_windows_still_counts_the_previous_one() {
    let old = Spec::TwoWindows { limit: 10, window: 10 };
    let mut key = Key::new(&old, 9);
    assert!(key.charge(10).allowed);
    key.now = 15;
    assert_eq!(key.peek().remaining, 5);
    let converted = key.convert(&Spec::TwoWindows { limit: 5, window: 10 });
    assert_eq!(converted.peek().remaining, 0);
}

/// A sub-window does not tell when in it a call came: a log has to take it for the latest instant.
#[test]
fn a_call_in_a_sub_window_is_not_forgotten_early_by_a_log() {
    let kind = SubWindows::NPlusOne;
    let old = Spec::SubWindows { limit: 5, grain: 10, buckets: 1, kind, count_rejected: false };
    let mut key = Key::new(&old, 9);
    assert!(key.charge(5).allowed);
    key.now = 11;
    let new = Spec::Log { limit: 5, window: 10, spacing: 0, count_rejected: false };
    assert!(!key.convert(&new).charge(1).allowed, "5 at 9 and one more at 11 are 6 in a window of 10");
}

/// A call at 17 belongs to the grain of 10: it must not stand behind one that came at 18.
#[test]
fn a_log_that_becomes_sub_windows_stays_in_order() {
    let old = Spec::Log { limit: 2, window: 100, spacing: 0, count_rejected: false };
    let mut key = Key::new(&old, 17);
    assert!(key.charge(1).allowed);
    let kind = SubWindows::NPlusOne;
    let new = Spec::SubWindows { limit: 2, grain: 10, buckets: 1, kind, count_rejected: false };
    key = key.convert(&new);
    key.now = 18;
    assert!(key.charge(1).allowed);
    assert_eq!(key.at(29).estimate(2).retry_after, Some(Nanos::new(1)));
    assert!(key.at(31).charge(2).allowed);
}
