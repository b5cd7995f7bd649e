//! What must hold whatever happens: dark limiters change nothing, switches are seen at once by everybody, and callers' secrets
//! are told to nobody.
#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Facts, Limiter, ManualClock, Mode, Policy, Quota, Timestamp};

const ENFORCED: &str = "
identify: { caller: [header: x-api-key] }
classes: { critical: [/critical], rest: [/*] }
limiters:
  rate: { rate: [5/s, 40/min] }
  log: { rate: 20/min, algorithm: sliding-log, per: path, match: [/a, /b] }
  places: { concurrency: 3 }
  fleet: { fleet: 8, reserve: 25% }
";

const WATCHED: &str = "
  dark-rate: { rate: 2/s, mode: dark }
  dark-log: { rate: 3/min, algorithm: sliding-log, mode: dark }
  dark-places: { concurrency: 1, mode: dark }
  dark-fleet: { fleet: 2, reserve: 50%, mode: dark }
  sampled: { rate: 1/h, sample: 0% }
  off: { rate: 1/h, mode: off }
";

fn limiter(policy: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_nanos(1_000_000_000_000));
    let built = Limiter::builder().clock(clock.clone()).policy(policy).build();
    (built.unwrap_or_else(|error| panic!("{error}")), clock)
}

/// What a caller can tell.
fn told(answer: &Result<tollgate::Permit, tollgate::Refusal>) -> String {
    match answer {
        Ok(permit) => format!("{:?} {:?}", permit.headers(), permit.delay()),
        Err(refusal) => {
            // A shedder's wait is drawn by lot.
            let wait = if refusal.status() == 503 { None } else { refusal.retry_after() };
            format!("{} {} {wait:?} {:?}", refusal.status(), refusal.limiter(), refusal.exceeded())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The same requests under the same policy, once with limiters that are only watched beside it: the same answers, the same
    /// headers, the same counts.
    #[test]
    fn dark_limiters_and_candidates_change_nothing(
        steps in prop::collection::vec((0..6u8, 0..4usize, 0..3usize, 0..2_000u64), 1..200),
    ) {
        let with_candidates = ENFORCED.replace("rate: [5/s, 40/min]", "rate: [5/s, 40/min], candidate: 1/s")
            .replace("concurrency: 3", "concurrency: 3, candidate: 1");
        let (plain, plain_clock) = limiter(ENFORCED);
        let (watched, watched_clock) = limiter(&(with_candidates + WATCHED));
        let (mut plain_held, mut watched_held) = (Vec::new(), Vec::new());
        for (step, caller, path, millis) in steps {
            match step {
                0 => {
                    plain_clock.advance(Duration::from_millis(millis));
                    watched_clock.advance(Duration::from_millis(millis));
                }
                1 if !plain_held.is_empty() => {
                    let at = millis as usize % plain_held.len();
                    drop((plain_held.swap_remove(at), watched_held.swap_remove(at)));
                }
                _ => {
                    let headers = [("x-api-key", ["a", "b", "c", "d"][caller])];
                    let facts = Facts { path: ["/a", "/b", "/critical"][path], headers: &headers, ..Facts::default() };
                    let (one, other) = (plain.admit_now(&facts), watched.admit_now(&facts));
                    prop_assert_eq!(told(&one), told(&other));
                    // Some go on, others end at once.
                    if let (Ok(one), Ok(other), true) = (one, other, millis % 2 == 0) {
                        plain_held.push(one);
                        watched_held.push(other);
                    }
                }
            }
        }
        let (one, other) = (plain.report(), watched.report());
        prop_assert_eq!(one.totals, other.totals);
        prop_assert_eq!(one.classes, other.classes);
        for (one, other) in one.limiters.iter().zip(&other.limiters) {
            prop_assert_eq!(&one.name, &other.name);
            prop_assert_eq!((one.stats.asked, one.stats.refused), (other.stats.asked, other.stats.refused));
        }
    }
}

#[test]
fn a_switch_is_seen_by_every_decision_that_begins_after_it() {
    let (limiter, _) = limiter("limiters: { all: { rate: 1/d, per: global } }");
    let _ = limiter.admit_now(&Facts::default());
    // Odd while it is surely off.
    let (phase, stop, passed) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let before = phase.load(Ordering::Acquire);
                    let answer = limiter.admit_now(&Facts::default());
                    let was_off = before % 2 == 1 && phase.load(Ordering::Acquire) == before;
                    assert!(answer.is_ok() || !was_off, "refused after the switch");
                    passed.fetch_add(u64::from(was_off), Ordering::Relaxed);
                }
            });
        }
        for _ in 0..50 {
            assert!(limiter.switch("all", Some(Mode::Off)));
            phase.fetch_add(1, Ordering::AcqRel);
            let before = passed.load(Ordering::Relaxed);
            while passed.load(Ordering::Relaxed) < before + 20 {
                std::thread::yield_now();
            }
            phase.fetch_add(1, Ordering::AcqRel);
            limiter.switch("all", None);
        }
        stop.store(true, Ordering::Release);
    });
    assert!(limiter.admit_now(&Facts::default()).is_err(), "on again");
}

#[test]
fn no_secret_of_a_caller_is_told_to_anybody() {
    const CANARY: &str = "sk_live_canary_7f3a";
    let (limiter, _) =
        limiter("identify: { caller: [header: x-api-key] }\nlimiters: { rate: { rate: 1/d } }");
    let headers = [("x-api-key", CANARY), ("authorization", CANARY)];
    let facts = Facts { headers: &headers, caller: None, ..Facts::default() };
    let permit = limiter.admit_now(&facts).unwrap();
    let refusal = limiter.admit_now(&facts).unwrap_err();
    let answer = refusal.answer(None, "/x");
    let all = format!(
        "{facts:?} {permit:?} {:?} {:?} {refusal:?} {refusal} {answer:?} {:?} {limiter:?} {:?} {:?}",
        permit.decision(),
        permit.headers(),
        refusal.grpc(),
        limiter.report(),
        limiter.policy(),
    );
    assert!(!all.contains(CANARY) && !all.contains("canary"), "{all}");
}

/// How many of a hundred requests pass.
fn passed(limiter: &Limiter, facts: &Facts<'_>) -> usize {
    (0..100).filter(|_| limiter.admit_now(facts).is_ok()).count()
}

#[test]
fn a_request_is_settled_once_whoever_says_what_it_has_cost() {
    let policy = "limiters: { tokens: { rate: 100/d, per: global, cost: { response_header: x-used, otherwise: 10 } } }";
    let (limiter, _) = limiter(policy);
    let permits: Vec<_> = (0..8).map(|_| limiter.admit_now(&Facts::default()).unwrap()).collect();
    (0..4).for_each(|_| permits[0].settle(0));
    // Ten of a hundred have come back, so that thirty are left.
    assert_eq!(passed(&limiter, &Facts::default()), 3);
    permits[1].answered(|name| (name == "x-used").then_some(&b"0"[..]));
    permits[1].settle(0);
    assert_eq!(passed(&limiter, &Facts::default()), 1);
}

/// Found by a reader: of more than 64 some were never settled.
#[test]
fn however_many_limiters_there_are_all_are_settled() {
    let one = |number: u32| {
        format!(
            "  l{number}: {{ rate: 100/d, per: global, cost: {{ response_header: x, otherwise: 10 }} }}\n"
        )
    };
    let (limiter, _) = limiter(&format!("limiters:\n{}", (0..70).map(one).collect::<String>()));
    limiter.admit_now(&Facts::default()).unwrap().settle(0);
    let standings = limiter.admit_now(&Facts::default()).unwrap().decision().standings;
    assert_eq!(standings.len(), 70);
    assert!(standings.iter().all(|standing| standing.remaining == 90), "{standings:?}");
}

#[test]
fn a_request_is_settled_also_when_its_permit_has_ended() {
    let policy =
        "limiters: { tokens: { rate: 100/d, per: global, cost: { response_header: x, otherwise: 100 } },
  dark: { rate: 100/d, mode: dark, per: global, cost: { response_header: x, otherwise: 100 } } }";
    let (limiter, _) = limiter(policy);
    let permit = limiter.admit_now(&Facts::default()).unwrap();
    let (settle, again) = (permit.settle_later().unwrap(), permit.settle_later().unwrap());
    drop(permit);
    assert_eq!(passed(&limiter, &Facts::default()), 0);
    settle.clone().settle(0);
    (0..3).for_each(|_| again.settle(0));
    assert_eq!(passed(&limiter, &Facts::default()), 1, "the first word counts");
    let dark = &limiter.report().limiters[1].stats;
    assert_eq!((dark.asked, dark.would_refuse), (2, 0), "what is dark was settled, too");
}

#[test]
fn only_requests_whose_cost_is_settled_can_be() {
    let policy =
        "limiters: { tokens: { rate: 100/d, match: [/chat], per: global, cost: { response_header: x } },
  all: { rate: 100/d, per: global } }";
    let (limiter, _) = limiter(policy);
    let settles = |path| {
        let permit = limiter.admit_now(&Facts { path, ..Facts::default() }).unwrap();
        permit.settle_later().is_some()
    };
    assert!(settles("/chat") && !settles("/other"));
}

#[test]
fn dark_limiters_and_candidates_are_settled_too() {
    let policy = "limiters: { tokens: { rate: 100000/d, candidate: 100/d, per: global, cost: { response_header: x, otherwise: 1 } },
  dark: { rate: 100/d, mode: dark, per: global, cost: { response_header: x, otherwise: 1 } } }";
    let (limiter, _) = limiter(policy);
    for _ in 0..50 {
        limiter.admit_now(&Facts::default()).unwrap().settle(50);
    }
    let report = limiter.report();
    assert_eq!((report.limiters[0].stats.candidate_refused, report.limiters[1].stats.would_refuse), (48, 48));
}

#[test]
fn the_block_list_can_be_switched_off_with_everything_else() {
    let (limiter, _) = limiter("block: [caller: mallory]\nlimiters: {}");
    let facts = Facts { caller: Some("mallory"), ..Facts::default() };
    assert_eq!(limiter.admit_now(&facts).unwrap_err().status(), 403);
    for mode in [Mode::Dark, Mode::Off] {
        limiter.switch_all(Some(mode));
        assert!(limiter.admit_now(&facts).is_ok());
    }
    limiter.switch_all(None);
    assert!(limiter.admit_now(&facts).is_err());
}

#[test]
fn in_the_dark_who_is_blocked_is_counted_and_goes_on_to_the_limiters() {
    let policy = "block: [caller: mallory]\nlimiters: { rate: { rate: 2/d }, other: { rate: 100/d } }";
    let (limiter, _) = limiter(policy);
    let facts = Facts { method: "POST", caller: Some("mallory"), ..Facts::default() };
    assert!(limiter.admit_now(&facts).is_err());
    limiter.switch_all(Some(Mode::Dark));
    for _ in 0..5 {
        assert_eq!(&*limiter.admit_now(&facts).unwrap().decision().class, "post");
    }
    let report = limiter.report();
    assert_eq!((report.totals.blocked_by_list, report.totals.would_block_by_list), (1, 5));
    let [rate, other] = [&report.limiters[0].stats, &report.limiters[1].stats];
    assert_eq!((rate.asked, rate.would_refuse, other.asked, other.would_refuse), (5, 3, 5, 0));
    let post = report.classes.iter().find(|(name, _)| &**name == "post").unwrap();
    assert_eq!((post.1.passed, post.1.refused), (5, 0));
    // Off is off: nothing is asked, and nothing counted.
    limiter.switch_all(Some(Mode::Off));
    assert_eq!(&*limiter.admit_now(&facts).unwrap().decision().class, "post");
    let report = limiter.report();
    assert_eq!((report.totals.would_block_by_list, report.limiters[0].stats.asked), (5, 5));
}

#[test]
fn who_is_on_the_allow_list_has_its_class_and_plan() {
    let policy = "identify: { plan: table, table: { ops: pro } }
plans: { free: { rate: 1/d }, pro: { rate: 1/d } }
limiters: { rate: { rate: plan } }
allow: [caller: ops]";
    let (limiter, _) = limiter(policy);
    let facts = Facts { method: "POST", caller: Some("ops"), ..Facts::default() };
    for _ in 0..3 {
        let permit = limiter.admit_now(&facts).unwrap();
        let decision = permit.decision();
        assert_eq!((&*decision.class, decision.plan.as_deref()), ("post", Some("pro")));
        assert!(decision.standings.is_empty() && permit.headers().is_empty(), "no limit was asked");
        assert_eq!(limiter.report().in_flight, 1);
    }
    let report = limiter.report();
    assert_eq!((report.totals.allowed_by_list, report.limiters[0].stats.asked, report.in_flight), (3, 0, 0));
}

#[test]
fn a_candidate_is_for_those_who_have_no_limit_of_their_own() {
    let policy = "plans: { a: { rate: 100/d }, b: { rate: 50/d } }
limiters: { rate: { rate: plan, candidate: 2/d } }
overrides: { big: { rate: 1000/d }, free: { rate: unlimited }, other: { plan: b } }";
    let (limiter, _) = limiter(policy);
    let refused = |caller: &str| {
        let before = limiter.report().limiters[0].stats.candidate_refused;
        let facts = Facts { caller: Some(caller), ..Facts::default() };
        (0..5).for_each(|_| drop(limiter.admit_now(&facts).unwrap()));
        limiter.report().limiters[0].stats.candidate_refused - before
    };
    assert_eq!([refused("big"), refused("free"), refused("other"), refused("nobody")], [0, 0, 3, 3]);
}

/// Found by a reader: who has no limit was counted in the dark alone.
#[test]
fn a_limiter_is_asked_about_callers_who_are_unlimited() {
    let policy = "limiters: { rate: { rate: 5/d } }
overrides: { free: { rate: unlimited } }";
    let (limiter, _) = limiter(policy);
    let facts = Facts { caller: Some("free"), ..Facts::default() };
    for (mode, asked) in [(Mode::Enforce, 7), (Mode::Dark, 14), (Mode::Off, 14)] {
        limiter.switch_all(Some(mode));
        (0..7).for_each(|_| drop(limiter.admit_now(&facts).unwrap()));
        assert_eq!(limiter.report().limiters[0].stats.asked, asked, "{mode:?}");
    }
}

#[test]
fn what_a_door_says_of_a_cost_is_for_limiters_that_ask_for_it() {
    let policy = "limiters:
  tokens: { rate: 1000/d, per: global, cost: given }
  logins: { rate: 5/d, per: global, match: [POST /login] }
  places: { concurrency: 2, per: global }";
    let (limiter, _) = limiter(policy);
    let facts = Facts { method: "POST", path: "/login", cost: Some(400), ..Facts::default() };
    let held = [limiter.admit_now(&facts).unwrap(), limiter.admit_now(&facts).unwrap()];
    assert_eq!(limiter.admit_now(&facts).unwrap_err().limiter(), "tokens");
    let free = Facts { cost: Some(0), ..facts };
    assert_eq!(limiter.admit_now(&free).unwrap_err().limiter(), "places");
    drop(held);
    assert_eq!(passed(&limiter, &free), 3, "of five logins two were made");
}

/// Found by a reader: `RateLimit` told what was left before, although the answer that carries it says what it has cost.
#[test]
fn what_is_left_is_told_as_it_is_once_it_was_settled() {
    let policy = "limiters:
  tokens: { rate: 100/h, per: global, cost: { response_header: x-used, otherwise: 10 } }
  all:    { rate: 1000/h, per: global }";
    let (limiter, _) = limiter(policy);
    let told = |used: Option<&'static str>| {
        let permit = limiter.admit_now(&Facts::default()).unwrap();
        permit.answered(|name| used.filter(|_| name == "x-used").map(str::as_bytes));
        let told =
            permit.headers().into_iter().find(|(name, _)| *name == "ratelimit").unwrap().1.into_owned();
        told.split(", ").next().unwrap().to_owned()
    };
    assert_eq!(told(Some("50")), r#""tokens";r=50;t=1800"#, "more than was thought");
    assert_eq!(told(Some("1")), r#""tokens";r=49;t=1836"#, "less");
    assert_eq!(told(None), r#""tokens";r=39;t=2196"#, "nobody says what it has cost");
    assert_eq!(told(Some("90")), r#""tokens";r=0;t=36"#, "more than there is: until the next unit");
}

#[test]
fn what_is_settled_later_is_charged_later() {
    let policy =
        "limiters: { tokens: { rate: 100/min, per: global, cost: { response_header: x, otherwise: 10 } } }";
    let (limiter, clock) = limiter(policy);
    let permit = limiter.admit_now(&Facts::default()).unwrap();
    // Meanwhile the bucket has filled: all that is owed is owed from now on.
    clock.advance(Duration::from_secs(60));
    permit.settle(100);
    let facts = Facts { cost: Some(11), ..Facts::default() };
    assert_eq!(limiter.admit_now(&facts).unwrap_err().retry_after(), Some(Duration::from_millis(600)));
    assert!(limiter.admit_now(&Facts::default()).is_ok(), "ninety were taken of a hundred");
}

#[test]
fn a_reload_that_has_nothing_to_do_with_it_leaves_a_shedder_where_it_is() {
    let workers = "w: { workers: { source: reported, grace: 1s, full: 1s, every: 100ms } }";
    let (limiter, clock) = limiter(&format!("limiters:\n  {workers}\n"));
    for _ in 0..50 {
        clock.advance(Duration::from_millis(100));
        limiter.report_utilization(1_000_000);
        let mut tend = std::pin::pin!(limiter.tend());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(tend.as_mut().poll(&mut context).is_ready());
    }
    assert_eq!(limiter.admit_now(&Facts::default()).unwrap_err().status(), 503);
    limiter
        .reload_text(&format!("limiters:\n  more: {{ rate: 1000/s, per: global }}\n  {workers}\n"))
        .unwrap();
    assert_eq!(limiter.admit_now(&Facts::default()).unwrap_err().status(), 503);
}

#[test]
fn limiters_that_are_named_one_by_one_decide_as_those_of_a_policy() {
    let builder = || Limiter::builder().caller_header("x-api-key").rate("rate", Quota::per_day(3));
    let limiter = builder().build().unwrap();
    let headers = [("x-api-key", "a")];
    assert_eq!(passed(&limiter, &Facts { headers: &headers, ..Facts::default() }), 3);
    let (read, _) =
        Policy::read("identify: { caller: [header: x-api-key] }\nlimiters: { rate: { rate: 3/d } }").unwrap();
    assert_eq!(limiter.policy(), read);
    let wrong = builder().rate("rate", Quota::per_day(0)).build().unwrap_err().to_string();
    assert!(wrong.contains("two limiters") && wrong.contains("rate is 0"), "{wrong}");
    let twice = builder().policy("limiters: {}").build().unwrap_err().to_string();
    assert!(twice.contains("leave it out"), "{twice}");
}
