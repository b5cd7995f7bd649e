//! What is given back is never more than was there, and never more than the bound allows.

use crate::common::{
    Admitted, Cost, Gap, Key, SECOND, Spec, any_spec, config, cost, gap, same_answers, schedule, start,
};
use proptest::prelude::*;
use tollgate_core::limit::Op;

/// A call, or taking one of the earlier ones back.
#[derive(Clone, Debug)]
enum Act {
    Charge(Cost),
    Undo(prop::sample::Index),
}

fn acts() -> impl Strategy<Value = Vec<(Gap, Act)>> {
    let act = prop_oneof![
        2 => cost().prop_map(Act::Charge),
        1 => any::<prop::sample::Index>().prop_map(Act::Undo),
    ];
    prop::collection::vec((gap(), act), 1..64)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_refund_never_gives_more_than_the_capacity(
        spec in any_spec(),
        schedule in schedule(),
        refund in cost(),
        age in gap(),
    ) {
        let mut key = Key::after(&spec, &schedule);
        for op in [Op::Refund, Op::Undo] {
            let taken = key.now.saturating_sub(age.of(&spec));
            let before = key.peek();
            let outcome = key.apply(op, refund.of(&spec, before.remaining), taken);
            prop_assert!(outcome.remaining <= spec.capacity());
            prop_assert!(outcome.remaining >= before.remaining, "giving back took something");
            prop_assert!(outcome.reset_after <= before.reset_after);
            prop_assert_eq!((outcome.remaining, outcome.reset_after), (key.peek().remaining, key.peek().reset_after));
        }
        let mut drained = key.clone();
        prop_assert!(!drained.charge(spec.capacity() + 1).allowed);
        let rest = drained.peek().remaining;
        let _ = drained.charge(rest);
        prop_assert!(spec.spacing() > 0 || !drained.charge(1).allowed);
    }

    #[test]
    fn a_refund_of_nothing_and_a_refund_to_a_fresh_key_change_nothing(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::after(&spec, &schedule);
        let before = key.clone();
        let _ = key.apply(Op::Refund, 0, key.now);
        let _ = key.apply(Op::Undo, 0, key.now);
        same_answers(&spec, &key, &before)?;

        let mut fresh = Key::new(&spec, schedule.start);
        let _ = fresh.apply(Op::Refund, u64::MAX, schedule.start);
        let _ = fresh.apply(Op::Undo, u64::MAX, schedule.start);
        prop_assert!(fresh.is_idle());
        same_answers(&spec, &fresh, &Key::new(&spec, schedule.start))?;
    }

    #[test]
    fn a_refund_gives_back_what_was_just_taken(spec in any_spec(), schedule in schedule(), cost in cost()) {
        let mut key = Key::after(&spec, &schedule);
        let before = key.peek();
        let cost = cost.of(&spec, before.remaining);
        if key.charge(cost).allowed {
            let outcome = key.apply(Op::Refund, cost, key.now);
            prop_assert_eq!((outcome.remaining, outcome.reset_after), (before.remaining, before.reset_after));
        }
    }

    #[test]
    fn an_undo_at_the_same_instant_leaves_no_trace(spec in any_spec(), schedule in schedule(), cost in cost()) {
        let mut key = Key::after(&spec, &schedule);
        let before = key.clone();
        let cost = cost.of(&spec, key.peek().remaining);
        if key.charge(cost).allowed {
            let _ = key.apply(Op::Undo, cost, key.now);
            same_answers(&spec, &key, &before)?;
        }
    }

    /// Calls that were charged here, refused elsewhere and taken back later: what is left keeps the bound.
    #[test]
    fn an_undo_however_late_never_lets_more_pass_than_the_bound(
        spec in any_spec(),
        start in start(),
        acts in acts(),
    ) {
        let mut key = Key::new(&spec, start);
        let mut admitted: Vec<Admitted> = Vec::new();
        for (gap, act) in acts {
            key.now += gap.of(&spec);
            match act {
                Act::Charge(cost) => {
                    let cost = cost.of(&spec, key.peek().remaining);
                    if key.charge(cost).allowed && cost > 0 {
                        admitted.push(Admitted { at: key.now, cost });
                    }
                }
                Act::Undo(which) if !admitted.is_empty() => {
                    let call = admitted.remove(which.index(admitted.len()));
                    let _ = key.apply(Op::Undo, call.cost, call.at);
                }
                Act::Undo(_) => {}
            }
        }
        spec.check_intervals(&admitted)?;
        // A window that its first call opened stays open when that call is taken back.
        if !matches!(spec, Spec::Anchored { .. }) {
            spec.check_windows(&admitted)?;
        }
    }

    /// Where a charge is counted by the instant it was made at, giving it back is as if it had never been made.
    #[test]
    fn what_was_given_back_leaves_no_trace_in_a_window(
        spec in prop_oneof![crate::common::aligned(), crate::common::two_windows(), crate::common::log(), crate::common::sub_windows()],
        schedule in schedule(),
        which in any::<prop::sample::Index>(),
        gap in gap(),
        op in prop_oneof![Just(Op::Refund), Just(Op::Undo)],
    ) {
        let mut key = Key::new(&spec, schedule.start);
        let mut admitted = key.run(&spec, &schedule.calls);
        // Refused calls that count are refused for other reasons in the other life.
        if admitted.is_empty() || spec.counts_rejected() {
            return Ok(());
        }
        key.now += gap.of(&spec);
        let call = admitted.remove(which.index(admitted.len()));
        let _ = key.apply(op, call.cost, call.at);

        let mut other = Key::new(&spec, schedule.start);
        for call in admitted {
            other.now = call.at;
            prop_assert!(other.charge(call.cost).allowed);
        }
        same_answers(&spec, &key, &other)?;
    }

    /// Whoever takes every charge back at once is never refused.
    #[test]
    fn taking_everything_back_leaves_room_for_everything(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::new(&spec, schedule.start);
        for (gap, _) in schedule.calls {
            key.now += gap.of(&spec);
            prop_assert!(key.charge(spec.capacity()).allowed);
            let _ = key.apply(Op::Undo, spec.capacity(), key.now);
        }
    }
}

/// Five were taken and refilled; a plain refund of them would let five too many pass, an undo does not.
#[test]
fn an_undo_credits_nothing_that_was_refilled_in_the_meantime() {
    let spec = Spec::Bucket { capacity: 10, count: 5, period: SECOND };
    let mut key = Key::new(&spec, 0);
    assert!(key.charge(5).allowed);
    key.now = SECOND;
    assert!(key.charge(10).allowed);
    let _ = key.apply(Op::Undo, 5, 0);
    assert_eq!(key.peek().remaining, 0);

    // Half of it refilled: half of it comes back.
    let mut key = Key::new(&spec, 0);
    assert!(key.charge(10).allowed);
    key.now = SECOND;
    assert_eq!(key.peek().remaining, 5);
    let _ = key.apply(Op::Undo, 10, 0);
    assert_eq!(key.peek().remaining, 10);
}
