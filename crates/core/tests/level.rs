//! The level of a key is the share of its quota that is in use.

use crate::common::{Key, any_spec, config, costs, later, schedule};
use proptest::prelude::*;

const FULL: u64 = 1 << 32;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_fresh_key_is_at_zero_and_an_exhausted_one_is_full(spec in any_spec(), start in crate::common::start()) {
        let mut key = Key::new(&spec, start);
        prop_assert_eq!(key.level(), 0);
        prop_assert!(key.is_idle());
        prop_assert!(key.charge(spec.capacity()).allowed);
        prop_assert_eq!(key.level(), FULL);
        // Also where refused calls count, it is full and not more.
        let _ = key.charge(spec.capacity());
        prop_assert_eq!(key.level(), FULL);
        prop_assert!(!key.is_idle());
    }

    #[test]
    fn an_idle_key_is_at_zero(spec in any_spec(), schedule in schedule()) {
        let key = Key::after(&spec, &schedule);
        for now in later(&spec, key.now) {
            let key = key.at(now);
            prop_assert!(!key.is_idle() || key.level() == 0);
            prop_assert!(key.level() < FULL || key.peek().remaining == 0);
        }
    }

    #[test]
    fn use_raises_the_level_and_time_lowers_it(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::new(&spec, schedule.start);
        for &(gap, cost) in &schedule.calls {
            let before = key.level();
            key.now += gap.of(&spec);
            prop_assert!(key.level() <= before, "time alone raised it");

            let (before, remaining) = (key.level(), key.peek().remaining);
            for cost in costs(&spec) {
                let mut key = key.clone();
                let allowed = key.charge(cost).allowed;
                prop_assert!(key.level() >= before);
                // Below one part in 2^32 nothing can be seen.
                let shows = u128::from(cost) << 32 >= u128::from(spec.capacity());
                prop_assert!(!allowed || !shows || key.level() > before);
            }
            let cost = cost.of(&spec, remaining);
            let _ = key.charge(cost);
            prop_assert!(key.level() <= FULL);
        }
    }

    /// The level tells the same as what remains: of 2^32 so much, of the capacity so much.
    #[test]
    fn the_level_agrees_with_what_remains(spec in any_spec(), schedule in schedule()) {
        let key = Key::after(&spec, &schedule);
        let capacity = u128::from(spec.capacity());
        let used = capacity - u128::from(key.peek().remaining);
        let level = u128::from(key.level());
        // Of the used units the last may be used in part only.
        prop_assert!(level * capacity <= used << 32);
        prop_assert!((level + 1) * capacity > used.saturating_sub(1) << 32);
    }
}
