//! Two states joined are at least as strict as each of them, now and at every later instant.

use crate::common::{Key, Schedule, any_spec, config, costs, later, same_answers, schedule};
use proptest::prelude::*;

/// Two keys of one limit that have lived through different schedules, at the same instant.
fn two_keys(spec: &crate::common::Spec, one: &Schedule, other: &Schedule) -> (Key, Key) {
    let other = Schedule { start: one.start, ..other.clone() };
    let (a, b) = (Key::after(spec, one), Key::after(spec, &other));
    let now = a.now.max(b.now);
    (a.at(now), b.at(now))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_joined_states_allow_each_of_them_allows(
        spec in any_spec(),
        one in schedule(),
        other in schedule(),
    ) {
        let (a, b) = two_keys(&spec, &one, &other);
        let joined = a.join(&b);
        for now in later(&spec, joined.now) {
            let (a, b, joined) = (a.at(now), b.at(now), joined.at(now));
            let remaining = joined.peek().remaining;
            prop_assert!(remaining <= a.peek().remaining && remaining <= b.peek().remaining);
            prop_assert!(joined.level() >= a.level() && joined.level() >= b.level());
            prop_assert!(joined.peek().reset_after >= a.peek().reset_after.max(b.peek().reset_after));
            for cost in costs(&spec).into_iter().chain([remaining]) {
                let allowed = joined.estimate(cost).allowed;
                prop_assert!(!allowed || a.estimate(cost).allowed && b.estimate(cost).allowed);
            }
        }
    }

    #[test]
    fn the_order_of_a_join_does_not_matter(spec in any_spec(), one in schedule(), other in schedule()) {
        let (a, b) = two_keys(&spec, &one, &other);
        same_answers(&spec, &a.join(&b), &b.join(&a))?;
    }

    #[test]
    fn a_state_joined_with_itself_or_with_a_fresh_one_is_the_same(spec in any_spec(), schedule in schedule()) {
        let key = Key::after(&spec, &schedule);
        let fresh = Key::new(&spec, key.now);
        same_answers(&spec, &key, &key.join(&key))?;
        same_answers(&spec, &key, &key.join(&fresh))?;
        same_answers(&spec, &fresh, &fresh.join(&fresh))?;
    }

    /// No call was ever made: the first one still decides when windows and batches begin.
    #[test]
    fn fresh_states_join_to_a_fresh_one(spec in any_spec(), schedule in schedule()) {
        let mut fresh = Key::new(&spec, schedule.start);
        let mut joined = fresh.join(&fresh);
        prop_assert_eq!(joined.run(&spec, &schedule.calls), fresh.run(&spec, &schedule.calls));
        same_answers(&spec, &joined, &fresh)?;
    }

    /// Where a joined state is charged, it recovers as any other.
    #[test]
    fn a_joined_state_is_fresh_after_one_refill(spec in any_spec(), one in schedule(), other in schedule()) {
        let (a, b) = two_keys(&spec, &one, &other);
        let joined = a.join(&b);
        prop_assert!(joined.at(joined.now + spec.refill()).is_idle());
    }

    /// States of two threads whose clocks differ: the join is as strict as both from the later instant on.
    #[test]
    fn a_join_at_an_instant_before_a_state_is_still_as_strict(
        spec in any_spec(),
        one in schedule(),
        other in schedule(),
        back in 0..=100_u64,
    ) {
        let (a, b) = two_keys(&spec, &one, &other);
        let early = a.now.saturating_sub(back);
        let joined = a.at(early).join(&b.at(early));
        for now in later(&spec, a.now) {
            let (a, b, joined) = (a.at(now).peek(), b.at(now).peek(), joined.at(now).peek());
            prop_assert!(joined.remaining <= a.remaining && joined.remaining <= b.remaining);
        }
    }
}
