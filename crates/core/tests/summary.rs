//! A summary is at least as strict as the state that it was made from, now and later, also when it is rounded up.

use proptest::prelude::*;
use tollgate_core::summary::Summary;
use tollgate_core::{Nanos, Timestamp};

use crate::common::{Key, Spec, any_spec, config, costs, later, schedule};

/// The key again, of which only a summary is left.
fn restored(key: &Key, summary: Summary, now: u64) -> Key {
    Key { limit: key.limit, state: key.limit.restore(summary, Timestamp::from_nanos(now)), now }
}

/// Whether `strict` allows nothing that `key` does not.
fn check_strict(spec: &Spec, strict: &Key, key: &Key) -> Result<(), TestCaseError> {
    prop_assert!(strict.peek().remaining <= key.peek().remaining, "{strict:?} instead of {key:?}");
    for cost in costs(spec) {
        prop_assert!(!strict.estimate(cost).allowed || key.estimate(cost).allowed, "cost {cost}: {strict:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_restored_state_is_at_least_as_strict(
        spec in any_spec(),
        schedule in schedule(),
        round_up in 0..32_u64,
        more in 0..3_u64,
    ) {
        let key = Key::after(&spec, &schedule);
        let summary = key.limit.summarize(&key.state, Timestamp::from_nanos(key.now)).unwrap();
        let horizon = key.limit.horizon().unwrap().as_u64();
        let rounded = Summary {
            until: summary.until + Nanos::new(horizon / 32 * round_up / 32),
            used: summary.used.map(|used| used.saturating_add(more)),
        };
        for summary in [summary, rounded] {
            for now in later(&spec, key.now) {
                let late = restored(&key, summary, now);
                check_strict(&spec, &late, &key.at(now))?;
                check_strict(&spec, &restored(&key, summary, key.now).at(now), &key.at(now))?;
            }
        }
    }

    /// A summary that is not rounded loses nothing of how much is in use at that moment.
    #[test]
    fn a_restored_state_has_as_much_left(spec in any_spec(), schedule in schedule()) {
        let key = Key::after(&spec, &schedule);
        let summary = key.limit.summarize(&key.state, Timestamp::from_nanos(key.now)).unwrap();
        let left = restored(&key, summary, key.now).peek().remaining;
        // A summary tells time in whole nanoseconds, in which a bucket may regain more than one.
        let per_nanosecond = match spec {
            Spec::Bucket { count, period, .. } | Spec::Queue { count, period, .. } => count.div_ceil(period),
            _ => 0,
        };
        let lost = key.peek().remaining - left;
        prop_assert!(lost <= per_nanosecond.max(1), "{left} of {:?}", key.peek());
    }

    #[test]
    fn nothing_matters_for_longer_than_the_horizon(spec in any_spec(), schedule in schedule()) {
        let key = Key::after(&spec, &schedule);
        let summary = key.limit.summarize(&key.state, Timestamp::from_nanos(key.now)).unwrap();
        let horizon = key.limit.horizon().unwrap();
        prop_assert!(summary.until <= Timestamp::from_nanos(key.now) + horizon);
        prop_assert!(restored(&key, summary, summary.until.as_nanos().max(key.now)).is_idle());
    }
}
