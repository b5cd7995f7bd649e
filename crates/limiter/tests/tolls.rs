//! What a request has to pay is known from its class and its plan, or found out for it alone: whichever it is, nobody notices.
#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Facts, Limiter, LimiterReport, ManualClock, Mode, Permit, Timestamp};

const POLICY: &str = "
identify: { caller: [header: x-api-key, ip], plan: [table], default_plan: free, table: { 'pro_*': pro } }
trusted_proxies: []
plans: { free: { rate: 2/s }, pro: { rate: 3/s } }
overrides: { pro_own: { by-plan: 1/s }, pro_free: { by-plan: unlimited, twice: unlimited } }
classes: { critical: [POST *], get: [GET *] }
answers: { headers: HEADERS }
limiters:
  by-plan:    { rate: plan }
  twice:      { rate: [4/s, 9/min] }
  concurrent: { concurrency: 3 }
  fleet:      { fleet: 5, reserve: 40%, for: critical }
  dark:       { rate: 1/s, mode: dark }
  puts:       { rate: 2/s, match: [PUT *], per: global }
  reports:    { rate: 3/s, match: [{ method: GET, path: /reports, path_case: insensitive }] }
  tried:      { concurrency: 8, per: global, candidate: { concurrency: 2 } }
";

#[derive(Clone, Debug)]
enum Step {
    Ask {
        method: &'static str,
        path: &'static str,
        key: &'static str,
    },
    /// One that is in progress ends.
    End(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let method = prop::sample::select(vec!["GET", "HEAD", "POST", "PUT"]);
    let path = prop::sample::select(vec!["/", "/reports", "/REPORTS"]);
    let key = prop::sample::select(vec!["pro_1", "pro_2", "pro_own", "pro_free", "sk_1", ""]);
    let step = prop_oneof![
        6 => (method, path, key).prop_map(|(method, path, key)| Step::Ask { method, path, key }),
        3 => (0..8_usize).prop_map(Step::End),
        2 => (1..1500_u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..60)
}

/// A limiter, what is in progress, and all that was told.
struct World {
    limiter: Limiter,
    clock: ManualClock,
    permits: Vec<Permit>,
    told: Vec<String>,
}

impl World {
    fn new(headers: &str) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let limiter =
            Limiter::builder().clock(clock.clone()).policy(&POLICY.replace("HEADERS", headers)).build();
        let limiter = limiter.unwrap_or_else(|error| panic!("{error}"));
        Self { limiter, clock, permits: Vec::new(), told: Vec::new() }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Wait(millis) => self.clock.advance(Duration::from_millis(*millis)),
            Step::End(which) => {
                if let Some(which) = which.checked_rem(self.permits.len()) {
                    drop(self.permits.swap_remove(which));
                }
            }
            Step::Ask { method, path, key } => {
                let fields = [("x-api-key", *key)];
                let peer = Some([192, 0, 2, 1].into());
                let facts = Facts { method, path, peer, headers: &fields, ..Facts::default() };
                match self.limiter.admit_now(&facts) {
                    Ok(permit) => {
                        self.told.push(format!("{:?} {:?}", permit.headers(), permit.decision()));
                        self.permits.push(permit);
                    }
                    Err(refusal) => self.told.push(format!("{:?} {:?}", refusal, refusal.class())),
                }
            }
        }
    }

    /// What was counted of everything, but for whether somebody has set a mode by hand.
    fn counted(&self) -> String {
        let LimiterReport { totals, in_flight, limiters, classes, .. } = self.limiter.report();
        let limiters: Vec<_> = limiters.into_iter().map(|it| (it.name, it.mode, it.by_class)).collect();
        format!("{totals:?} {in_flight} {limiters:?} {classes:?}")
    }
}

proptest! {
    #![proptest_config(crate::common::config(300))]

    /// A mode that is set by hand to what it is already makes no difference but this: what requests pay is found out anew for each.
    #[test]
    fn what_is_paid_by_class_and_plan_is_what_each_would_pay_by_itself(
        headers in prop::sample::select(vec!["ietf-11", "draft-7", "draft-6", "x-ratelimit", "envoy", "off"]),
        steps in steps(),
    ) {
        let (mut known, mut found) = (World::new(headers), World::new(headers));
        prop_assert!(found.limiter.switch("by-plan", Some(Mode::Enforce)));
        for step in &steps {
            known.take(step);
            found.take(step);
            prop_assert_eq!(known.told.last(), found.told.last(), "{:?}", step);
        }
        prop_assert_eq!(known.counted(), found.counted());
        known.permits.clear();
        found.permits.clear();
        prop_assert_eq!(known.counted(), found.counted());
    }
}

#[test]
fn a_mode_that_is_set_by_hand_and_taken_back_is_as_the_policy_says() {
    let world = World::new("ietf-11");
    let facts = Facts { method: "GET", caller: Some("alice"), ..Facts::default() };
    let passes = || (0..10).filter(|_| world.limiter.admit_now(&facts).is_ok()).count();
    assert_eq!(passes(), 2);
    assert!(
        world.limiter.switch("by-plan", Some(Mode::Off)) && world.limiter.switch("twice", Some(Mode::Dark))
    );
    assert_eq!(passes(), 10, "from the next request on");
    assert!(world.limiter.switch("by-plan", None));
    assert_eq!(passes(), 0, "one that is back counts while another is still dark");
    world.limiter.switch_all(Some(Mode::Off));
    assert_eq!(passes(), 10);
    world.limiter.switch_all(None);
    assert!(world.limiter.switch("twice", None));
    assert_eq!(passes(), 0);
}

/// Found by a reader: it was looked at for as long as the process ran, although nobody could take it back.
#[test]
fn a_mode_that_was_set_for_a_limiter_that_is_gone_comes_back_with_it() {
    let with = "limiters: { a: { rate: 1/d }, b: { rate: 2/d } }";
    let without = "limiters: { b: { rate: 2/d } }";
    let limiter = Limiter::from_policy(with).unwrap();
    let passes = |caller: &str| {
        let facts = Facts { caller: Some(caller), ..Facts::default() };
        (0..5).filter(|_| limiter.admit_now(&facts).is_ok()).count()
    };
    assert!(limiter.switch("a", Some(Mode::Off)));
    assert_eq!(passes("one"), 2);
    limiter.reload_text(without).unwrap();
    assert_eq!(passes("two"), 2);
    assert!(!limiter.switch("a", None), "there is none");
    limiter.reload_text(with).unwrap();
    assert_eq!(passes("three"), 2, "it is still off");
    assert!(limiter.switch("a", None));
    assert_eq!(passes("four"), 1);
}

/// Headers name all limits in the order of the policy. Styles that can report only one take the rate that is closest to exhaustion,
/// wherever it stands.
#[test]
fn what_is_told_of_several_limits() {
    let told = |style: &str, limiters: &str| {
        let policy = format!("answers: {{ headers: {style} }}\nlimiters: {{ {limiters} }}");
        let limiter =
            Limiter::builder().clock(ManualClock::at(Timestamp::from_secs(1_000_000))).policy(&policy);
        let limiter = limiter.build().unwrap();
        let facts = Facts { caller: Some("alice"), ..Facts::default() };
        let headers = limiter.admit_now(&facts).unwrap().headers();
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    let rates = "wide: { rate: 10/s }, narrow: { rate: 2/s }, busy: { concurrency: 5 }";
    assert_eq!(
        told("ietf-11", rates),
        [
            r#"ratelimit-policy: "wide";q=10;w=1, "narrow";q=2;w=1, "busy";q=5;qu="concurrent-requests""#,
            r#"ratelimit: "wide";r=9;t=1, "narrow";r=1;t=1, "busy";r=4"#
        ]
    );
    assert_eq!(
        told("draft-7", rates),
        ["ratelimit-policy: 10;w=1, 2;w=1", "ratelimit: limit=2, remaining=1, reset=1"]
    );
    assert_eq!(
        told("envoy", rates),
        [
            r#"x-ratelimit-limit: 2, 10;w=1;name="wide", 2;w=1;name="narrow""#,
            "x-ratelimit-remaining: 1",
            "x-ratelimit-reset: 1"
        ]
    );
    assert_eq!(told("x-ratelimit", "busy: { concurrency: 5 }"), [""; 0], "it has no words for it");
    assert_eq!(told("off", rates), [""; 0]);
}
