//! Several limits answer one call: all or nothing, and the answer is as honest as each of theirs.

use crate::common::{Key, any_spec, config, cost, gap};
use proptest::prelude::*;
use tollgate_core::{Nanos, Outcome, Verdict};

fn outcome() -> impl Strategy<Value = Outcome> {
    let allowed = (0..100_u64, 0..100_u64, 0..5_u64).prop_map(|(remaining, reset, delay)| {
        let mut outcome = Outcome::allow(remaining, reset);
        outcome.delay = Nanos::new(delay);
        outcome
    });
    let refused = (0..100_u64, prop::option::weighted(0.8, 0..100_u64), 0..100_u64)
        .prop_map(|(remaining, retry, reset)| Outcome::refuse(remaining, retry, reset));
    prop_oneof![3 => allowed, 1 => refused]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_verdict_is_the_strictest_of_its_answers(outcomes in prop::collection::vec(outcome(), 1..6)) {
        let verdict = Verdict::of(outcomes.clone());
        let refused: Vec<usize> = (0..outcomes.len()).filter(|&i| !outcomes[i].allowed).collect();

        prop_assert_eq!(verdict.allowed, refused.is_empty());
        prop_assert_eq!(Some(verdict.remaining), outcomes.iter().map(|o| o.remaining).min());
        prop_assert_eq!(Some(verdict.reset_after), outcomes.iter().map(|o| o.reset_after).max());
        let waits: Option<Vec<Nanos>> = refused.iter().map(|&i| outcomes[i].retry_after).collect();
        let longest = waits.map(|waits| waits.into_iter().max().unwrap_or(Nanos::ZERO));
        prop_assert_eq!(verdict.retry_after, longest, "the longest wait, or never if one is never");
        let delay = outcomes.iter().map(|o| o.delay).max().filter(|_| refused.is_empty());
        prop_assert_eq!(verdict.delay, delay.unwrap_or(Nanos::ZERO));
        prop_assert_eq!(verdict.refused_by().collect::<Vec<_>>(), refused);
        prop_assert_eq!(verdict.outcomes, outcomes, "in the order of the charges");
    }

    /// Limits of any kinds at one instant: charged together or not at all.
    #[test]
    fn a_refused_group_succeeds_when_told_and_not_before(
        specs in prop::collection::vec(any_spec(), 1..4),
        start in crate::common::start(),
        calls in prop::collection::vec((gap(), cost()), 1..32),
    ) {
        let mut group: Vec<Key> = specs.iter().map(|spec| Key::new(spec, start)).collect();
        let ask = |group: &[Key], now: u64, costs: &[u64]| {
            let answers = group.iter().zip(costs).map(|(key, &cost)| key.at(now).estimate(cost));
            Verdict::of(answers.collect())
        };
        let mut now = start;
        for (i, (gap, cost)) in calls.into_iter().enumerate() {
            now += gap.of(&specs[i % specs.len()]);
            let rest = ask(&group, now, &vec![0; specs.len()]).remaining;
            let costs: Vec<u64> = specs.iter().map(|spec| cost.of(spec, rest)).collect();
            let verdict = ask(&group, now, &costs);
            match verdict.retry_after {
                _ if verdict.allowed => {
                    for (key, &cost) in group.iter_mut().zip(&costs) {
                        key.now = now;
                        prop_assert!(key.charge(cost).allowed);
                    }
                }
                Some(wait) => {
                    let then = now + wait.as_u64();
                    prop_assert!(ask(&group, then, &costs).allowed);
                    prop_assert!(!ask(&group, then - 1, &costs).allowed);
                }
                None => prop_assert!(specs.iter().zip(&costs).any(|(spec, &cost)| cost > spec.capacity())),
            }
        }
    }
}

#[test]
fn a_call_that_nothing_limits_passes() {
    let verdict = Verdict::of(Vec::new());
    assert!(verdict.allowed);
    assert_eq!((verdict.remaining, verdict.retry_after), (u64::MAX, Some(Nanos::ZERO)));
}
