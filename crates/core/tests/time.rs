//! Time that goes back never admits more, and never locks out for longer than one refill.

use crate::common::{Admitted, Cost, HOUR, Key, any_spec, config, cost, costs};
use proptest::prelude::*;

/// Steps of a clock that somebody sets, and what is asked after each.
fn jumps() -> impl Strategy<Value = Vec<(i64, Cost)>> {
    let hour = HOUR as i64;
    let step = prop_oneof![-3..=60_i64, -60..=60_i64, -hour..=hour];
    prop::collection::vec((step, cost()), 1..48)
}

fn far_from_zero() -> impl Strategy<Value = u64> {
    100 * HOUR..101 * HOUR
}

proptest! {
    #![proptest_config(config())]

    /// As stores see time: it stands still until the clock has caught up.
    #[test]
    fn a_clock_that_is_set_back_admits_no_more(spec in any_spec(), mut clock in far_from_zero(), jumps in jumps()) {
        let mut key = Key::new(&spec, 0);
        let mut admitted = Vec::new();
        for (step, cost) in jumps {
            clock = clock.saturating_add_signed(step);
            key.now = key.now.max(clock);
            let cost = cost.of(&spec, key.peek().remaining);
            if key.charge(cost).allowed && cost > 0 {
                admitted.push(Admitted { at: key.now, cost });
            }
        }
        spec.check_intervals(&admitted)?;
        spec.check_windows(&admitted)?;
    }

    #[test]
    fn a_clock_that_is_set_back_locks_out_for_one_refill_at_most(
        spec in any_spec(),
        mut clock in far_from_zero(),
        jumps in jumps(),
    ) {
        let mut key = Key::new(&spec, 0);
        for (step, cost) in jumps {
            clock = clock.saturating_add_signed(step);
            key.now = key.now.max(clock);
            let cost = cost.of(&spec, key.peek().remaining);
            let outcome = key.charge(cost);
            prop_assert!(outcome.retry_after.is_none_or(|wait| wait.as_u64() <= spec.refill()));
            prop_assert!(key.at(key.now + spec.refill()).charge(spec.capacity()).allowed);
        }
    }

    /// Time as it comes, by whoever forgets to hold it: the state knows when it was last charged, and an
    /// earlier instant is never better for the caller than that one.
    #[test]
    fn raw_time_that_goes_back_admits_no_more_than_time_that_stands_still(
        spec in any_spec(),
        mut clock in far_from_zero(),
        jumps in jumps(),
    ) {
        let mut key = Key::new(&spec, 0);
        let mut admitted: Vec<Admitted> = Vec::new();
        let mut charged = 0;
        for (step, cost) in jumps {
            clock = clock.saturating_add_signed(step);
            let held = clock.max(charged);
            key.now = clock;
            let cost = cost.of(&spec, key.peek().remaining);
            for cost in costs(&spec).into_iter().chain([cost]) {
                if key.estimate(cost).allowed {
                    prop_assert!(key.at(held).estimate(cost).allowed, "{} passes only in the past", cost);
                }
                prop_assert!(key.estimate(cost).remaining <= key.at(held).estimate(cost).remaining);
                prop_assert!(key.level() >= key.at(held).level());
            }
            let before = key.state.clone();
            if key.charge(cost).allowed && cost > 0 {
                admitted.push(Admitted { at: held, cost });
            }
            if key.state != before {
                charged = held;
            }
        }
        spec.check_intervals(&admitted)?;
        spec.check_windows(&admitted)?;
        prop_assert!(key.at(charged + spec.refill()).charge(spec.capacity()).allowed);
    }
}
