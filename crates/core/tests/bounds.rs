//! No interval, wherever it begins and however long it is, admits more than its limit promises.

use crate::common::{Admitted, Cost, Key, Spec, any_spec, config, queue, schedule, start};
use proptest::prelude::*;

/// Whatever remains, at every call: who tries hardest to get more than allowed.
fn greedy(calls: &[(crate::common::Gap, Cost)]) -> Vec<(crate::common::Gap, Cost)> {
    calls.iter().map(|&(gap, _)| (gap, Cost::Rest)).collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_interval_admits_more_than_its_bound(spec in any_spec(), schedule in schedule()) {
        let admitted = Key::new(&spec, schedule.start).run(&spec, &schedule.calls);
        spec.check_intervals(&admitted)?;
        spec.check_windows(&admitted)?;
    }

    #[test]
    fn no_interval_admits_more_to_a_greedy_caller(spec in any_spec(), schedule in schedule()) {
        let admitted = Key::new(&spec, schedule.start).run(&spec, &greedy(&schedule.calls));
        spec.check_intervals(&admitted)?;
        spec.check_windows(&admitted)?;
    }

    #[test]
    fn a_log_keeps_its_spacing(spec in crate::common::log(), schedule in schedule()) {
        let admitted = Key::new(&spec, schedule.start).run(&spec, &schedule.calls);
        for pair in admitted.windows(2) {
            let [before, after] = pair else { continue };
            prop_assert!(after.at - before.at >= spec.spacing());
        }
    }

    /// Not even by calls that are refused and count.
    #[test]
    fn a_log_never_outgrows_its_limit(spec in prop_oneof![crate::common::log(), crate::common::sub_windows()], start in start()) {
        let mut key = Key::new(&spec, start);
        for _ in 0..3 * spec.capacity().min(1000) {
            key.now += 1;
            let _ = key.charge(1);
        }
        // One entry more than the limit, in a buffer that grows by doubling.
        let entries = (spec.capacity() + 2).next_power_of_two().max(4);
        prop_assert!(key.state.heap_bytes() as u64 <= entries * 16);
    }

    /// The queue as its definition has it: one instant at which the next unit may leave, in exact fractions.
    #[test]
    fn a_queue_delays_every_call_to_its_turn(spec in queue(), schedule in schedule()) {
        let Spec::Queue { queue, count, period, undelayed } = spec else { return Ok(()) };
        // All in units of 1/count ns.
        let (count, period) = (u128::from(count), u128::from(period));
        let room = (u128::from(queue) + 1) * period;
        let mut next = 0;
        let mut key = Key::new(&spec, schedule.start);
        for &(gap, cost) in &schedule.calls {
            key.now += gap.of(&spec);
            let cost = cost.of(&spec, key.peek().remaining);
            let now = u128::from(key.now) * count;
            let start = now.max(next);
            let leaves = start + u128::from(cost) * period;
            let fits = cost <= queue + 1 && leaves <= now + room;
            let delay = (start - now).saturating_sub(u128::from(undelayed) * period).div_ceil(count);

            let outcome = key.charge(cost);
            prop_assert_eq!(outcome.allowed, fits);
            prop_assert_eq!(u128::from(outcome.delay.as_u64()), if fits { delay } else { 0 });
            if fits && cost > 0 {
                next = leaves;
            }
        }
    }
}

/// A log never admits more than its limit in any window, yet gives all of it as soon as it may.
#[test]
fn a_log_gives_back_each_unit_one_window_after_it_was_taken() {
    let spec = Spec::Log { limit: 3, window: 10, spacing: 0, count_rejected: false };
    let mut key = Key::new(&spec, 0);
    let mut admitted = Vec::new();
    for now in 0..40 {
        key.now = now;
        if key.charge(1).allowed {
            admitted.push(Admitted { at: now, cost: 1 });
        }
    }
    let instants: Vec<u64> = admitted.iter().map(|call| call.at).collect();
    assert_eq!(instants, [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]);
}
