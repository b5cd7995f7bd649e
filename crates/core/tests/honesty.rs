//! What an answer says is true: a refused call succeeds when it was told to come back and not before, what
//! remains can be taken and no more, and a key is fresh when it was said to be.

use crate::common::{Key, any_spec, check_reset, check_retry, config, costs, later, schedule};
use proptest::prelude::*;
use tollgate_core::Nanos;
use tollgate_core::limit::Op;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_refused_call_succeeds_when_told_and_not_before(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::new(&spec, schedule.start);
        for &(gap, cost) in &schedule.calls {
            key.now += gap.of(&spec);
            let cost = cost.of(&spec, key.peek().remaining);
            for probe in costs(&spec).into_iter().chain([cost]) {
                let outcome = key.estimate(probe);
                if outcome.allowed {
                    prop_assert_eq!(outcome.retry_after, Some(Nanos::ZERO));
                } else {
                    check_retry(&spec, &key, probe, outcome)?;
                }
            }
            // Where refused calls count, the wait already includes this one.
            let outcome = key.charge(cost);
            if !outcome.allowed {
                check_retry(&spec, &key, cost, outcome)?;
            }
        }
    }

    #[test]
    fn a_key_is_fresh_when_told_and_not_before(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::new(&spec, schedule.start);
        check_reset(&spec, &key, key.peek().reset_after)?;
        for &(gap, cost) in &schedule.calls {
            key.now += gap.of(&spec);
            check_reset(&spec, &key, key.peek().reset_after)?;
            let cost = cost.of(&spec, key.peek().remaining);
            let outcome = key.charge(cost);
            prop_assert!(outcome.reset_after.as_u64() <= spec.refill());
            check_reset(&spec, &key, outcome.reset_after)?;
        }
    }

    #[test]
    fn what_remains_can_be_taken_and_no_more(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::new(&spec, schedule.start);
        for &(gap, cost) in &schedule.calls {
            key.now += gap.of(&spec);
            let cost = cost.of(&spec, key.peek().remaining);
            let outcome = key.charge(cost);
            let remaining = outcome.remaining;
            prop_assert_eq!((remaining, outcome.reset_after), (key.peek().remaining, key.peek().reset_after));
            prop_assert!(remaining <= spec.capacity());
            prop_assert!(!key.clone().charge(remaining + 1).allowed);
            if remaining > 0 && spec.spacing() == 0 {
                prop_assert!(key.clone().charge(remaining).allowed);
            }
        }
    }

    #[test]
    fn an_estimate_tells_what_a_charge_would_do(spec in any_spec(), schedule in schedule()) {
        let key = Key::after(&spec, &schedule);
        for now in later(&spec, key.now) {
            let key = key.at(now);
            for cost in costs(&spec) {
                let (estimate, charge) = (key.estimate(cost), key.clone().charge(cost));
                prop_assert_eq!((estimate.allowed, estimate.delay), (charge.allowed, charge.delay));
                let peek = key.peek();
                prop_assert_eq!((estimate.remaining, estimate.reset_after), (peek.remaining, peek.reset_after));
                if charge.allowed {
                    prop_assert_eq!(charge.remaining, estimate.remaining - cost);
                } else if !spec.counts_rejected() {
                    prop_assert_eq!(estimate, charge);
                }
            }
        }
    }

    #[test]
    fn looking_and_being_refused_change_nothing(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::new(&spec, schedule.start);
        for &(gap, cost) in &schedule.calls {
            key.now += gap.of(&spec);
            let before = key.state.clone();
            for cost in costs(&spec) {
                let _ = key.apply(Op::Estimate, cost, 0);
                let _ = key.apply(Op::Renew, cost, 0);
            }
            let _ = key.charge(0);
            prop_assert_eq!(&key.state, &before);
            let cost = cost.of(&spec, key.peek().remaining);
            let recorded = spec.counts_rejected() && cost <= spec.capacity();
            if !key.charge(cost).allowed && !recorded {
                prop_assert_eq!(&key.state, &before);
            }
        }
    }

    /// Also where refused calls count, and however often the caller has hammered.
    #[test]
    fn nobody_who_pauses_is_locked_out_for_longer_than_one_refill(spec in any_spec(), schedule in schedule()) {
        let mut key = Key::after(&spec, &schedule);
        key.now += spec.refill();
        prop_assert!(key.charge(spec.capacity()).allowed);
    }
}
