//! What a limiter counts, and what it tells of itself at one moment.
#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::core::concurrency::InProgress;
use tollgate::core::key::KeyRef;
use tollgate::core::limit::Op;
use tollgate::core::store::{Charge, Rule, StoreError};
use tollgate::{
    ClassStats, Facts, Limit, Limiter, LimiterReport, LimiterStats, ManualClock, MemoryStore, Mode, Outcome,
    Reason, Store, Timestamp, Timings, Verdict,
};

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

fn limiter(policy: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let limiter = Limiter::builder().clock(clock.clone()).policy(policy).build();
    (limiter.unwrap_or_else(|error| panic!("{error}")), clock)
}

fn facts(method: &str) -> Facts<'_> {
    Facts { method, caller: Some("alice"), ..Facts::default() }
}

/// Asked and refused by a limiter, of each class.
fn by_class(report: &LimiterReport, limiter: &str) -> Vec<(String, u64, u64)> {
    let known = report.limiters.iter().find(|known| *known.name == *limiter).unwrap();
    known.by_class.iter().map(|(name, of)| (name.to_string(), of.asked, of.refused)).collect()
}

fn class(report: &LimiterReport, name: &str) -> (u64, u64) {
    let ClassStats { passed, refused, .. } = report.classes.iter().find(|(of, _)| **of == *name).unwrap().1;
    (passed, refused)
}

const TWO_CLASSES: &str = "
classes: { get: [GET *], post: [POST *] }
limiters:
  rate: { rate: 5/d, per: class }
  posts: { rate: 2/d, match: [POST *] }
";

#[test]
fn limiters_are_counted_by_class() {
    let (limiter, _) = limiter(TWO_CLASSES);
    for (method, times) in [("GET", 7), ("POST", 3), ("PUT", 1)] {
        (0..times).for_each(|_| drop(limiter.admit_now(&facts(method))));
    }
    let report = limiter.report();
    let told = |of: &[(&str, u64, u64)]| -> Vec<(String, u64, u64)> {
        of.iter().map(|(name, asked, refused)| ((*name).to_owned(), *asked, *refused)).collect()
    };
    assert_eq!(by_class(&report, "rate"), told(&[("get", 7, 2), ("post", 3, 0), ("other", 1, 0)]));
    assert_eq!(by_class(&report, "posts"), told(&[("get", 0, 0), ("post", 3, 1), ("other", 0, 0)]));
    let rate = &report.limiters[0];
    assert_eq!((rate.stats.asked, rate.stats.refused), (11, 2), "all classes together");
    assert_eq!((rate.mode, rate.kind), (Mode::Enforce, Reason::Rate));
    assert_eq!(
        (class(&report, "get"), class(&report, "post"), class(&report, "other")),
        ((5, 2), (2, 1), (1, 0))
    );
}

#[test]
fn what_is_dark_is_counted_by_class_too() {
    let policy = "
classes: { get: [GET *] }
limiters:
  dark: { rate: 2/d, per: global, mode: dark }
  rate: { rate: 100/d, candidate: 1/d, per: global }
";
    let (limiter, _) = limiter(policy);
    (0..5).for_each(|_| drop(limiter.admit_now(&facts("GET"))));
    let report = limiter.report();
    let get = |at: usize| -> LimiterStats { report.limiters[at].by_class[0].1.clone() };
    assert_eq!((report.limiters[0].mode, get(0).would_refuse, get(0).refused), (Mode::Dark, 3, 0));
    assert_eq!(get(1).candidate_refused, 4);
    assert_eq!(class(&report, "get"), (5, 0));
}

#[test]
fn counts_by_class_outlive_reloads_and_the_whole_keeps_classes_that_are_gone() {
    let (limiter, _) = limiter(TWO_CLASSES);
    (0..3).for_each(|_| drop(limiter.admit_now(&facts("GET"))));
    drop(limiter.admit_now(&facts("POST")));
    let fewer = "classes: { get: [GET *] }\nlimiters: { rate: { rate: 5/d, per: class } }";
    limiter.reload_text(fewer).unwrap();
    let report = limiter.report();
    assert_eq!(by_class(&report, "rate"), [("get".to_owned(), 3, 0), ("other".to_owned(), 0, 0)]);
    assert_eq!(report.limiters[0].stats.asked, 4, "the whole never shrinks");
    limiter.reload_text(TWO_CLASSES).unwrap();
    let report = limiter.report();
    assert_eq!(by_class(&report, "rate")[1], ("post".to_owned(), 1, 0));
    assert_eq!((class(&report, "get"), class(&report, "post")), ((3, 0), (1, 0)));
}

#[test]
fn a_request_that_exceeds_two_rates_of_a_limiter_is_refused_once() {
    let (limiter, _) = limiter("limiters: { rate: { rate: [2/d, 2/h], per: global } }");
    (0..5).for_each(|_| drop(limiter.admit_now(&Facts::default())));
    let stats = &limiter.report().limiters[0].stats;
    assert_eq!((stats.asked, stats.refused), (5, 3));
}

#[test]
fn requests_of_nobody_are_counted() {
    let (limiter, _) = limiter("trusted_proxies: []\nlimiters: { rate: { rate: 3/d } }");
    (0..5).for_each(|_| drop(limiter.admit_now(&Facts::default())));
    drop(limiter.admit_now(&Facts { peer: Some([192, 0, 2, 1].into()), ..Facts::default() }));
    drop(limiter.admit_now(&Facts { caller: Some("alice"), ..Facts::default() }));
    let totals = limiter.report().totals;
    assert_eq!((totals.asked, totals.nobody, totals.refused), (7, 5, 2), "they share one bucket");
}

/// A store whose answers take their time, by a clock that it moves itself.
struct Slow {
    store: MemoryStore,
    clock: ManualClock,
    takes: Duration,
    is_shared: bool,
}

impl Store for Slow {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        Ok(self.store.define(family, limit))
    }
    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        self.store.redefine(rule, limit, at)
    }
    fn is_shared(&self) -> bool {
        self.is_shared
    }
    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        self.clock.advance(self.takes);
        self.store.charge(charges, at).await
    }
    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        self.store.apply(op, charge, at).await
    }
    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        self.store.reset(rule, key).await
    }
    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        self.store.in_progress(rule, key, at).await
    }
    fn give_back(&self, charge: Charge<'_>) {
        self.store.give_back(charge);
    }
}

fn slow(takes: Duration, is_shared: bool, requests: usize) -> LimiterReport {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let store = Slow { store: MemoryStore::new(), clock: clock.clone(), takes, is_shared };
    let policy = "limiters: { rate: { rate: 1000/s, per: global, on_store_failure: open } }";
    let limiter = Limiter::builder().store(store).clock(clock).policy(policy).build().unwrap();
    (0..requests).for_each(|_| drop(now(limiter.admit(&Facts::default()))));
    limiter.report()
}

#[test]
fn a_shared_store_is_measured_every_time_it_is_asked() {
    let report = slow(Duration::from_micros(250), true, 20);
    for took in [&report.store_took, &report.admit_took] {
        assert_eq!((took.count(), took.sum), (20, Duration::from_millis(5)), "{took:?}");
        let cumulative: Vec<_> = took.cumulative().collect();
        assert_eq!(cumulative[3], (Duration::from_micros(100), 0));
        assert_eq!(cumulative[4], (Duration::from_micros(250), 20), "a bound belongs to what is below it");
        assert_eq!(cumulative.last(), Some(&(Duration::from_secs(1), 20)));
    }
    let report = slow(Duration::from_secs(2), true, 3);
    assert_eq!(report.store_took.cumulative().last(), Some((Duration::from_secs(1), 0)));
    assert_eq!((report.store_took.count(), report.store_took.buckets.last()), (3, Some(&3)));
}

#[test]
fn a_store_of_ones_own_is_measured_now_and_then() {
    let report = slow(Duration::from_micros(30), false, 33);
    assert_eq!(report.store_took, Timings::default());
    assert_eq!((report.admit_took.count(), report.admit_took.sum), (3, Duration::from_micros(90)));
    let bounds: Vec<u128> = Timings::bounds().map(|bound| bound.as_micros()).collect();
    assert_eq!(
        bounds,
        [10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000]
    );
}

#[test]
fn a_shedder_tells_which_share_of_each_class_it_sheds() {
    let policy = "
classes: { critical: [POST /charges], post: [POST *], get: [GET *] }
limiters: { w: { workers: { source: reported, grace: 0s, full: 20s, every: 1s } } }
";
    let (limiter, clock) = limiter(policy);
    let shares = |limiter: &Limiter| -> Vec<(String, u64)> {
        let worker = limiter.report().worker.unwrap();
        worker.shed_ppm.iter().map(|(name, ppm)| (name.to_string(), *ppm)).collect()
    };
    assert_eq!(limiter.report().worker.unwrap().utilization_ppm, None, "no sample yet");
    for _ in 0..=5 {
        limiter.report_utilization(1_000_000);
        now(limiter.tend());
        clock.advance(Duration::from_secs(1));
    }
    let worker = limiter.report().worker.unwrap();
    assert_eq!((&*worker.name, worker.utilization_ppm), ("w", Some(1_000_000)));
    // A quarter of everything is half of the first of two classes.
    let told: Vec<(String, u64)> = [("critical", 0), ("post", 0), ("get", 500_000), ("other", 500_000)]
        .map(|(name, ppm)| (name.to_owned(), ppm))
        .to_vec();
    assert_eq!(shares(&limiter), told);
    limiter.reload_text(&format!("{policy}  # the same\n")).unwrap();
    assert_eq!(limiter.report().worker.unwrap().utilization_ppm, Some(1_000_000), "also after a reload");
    clock.advance(Duration::from_secs(60));
    now(limiter.tend());
    assert_eq!(limiter.report().worker.unwrap().utilization_ppm, None, "what is stale is not known");
}

#[test]
fn a_service_that_tells_nothing_because_all_is_shed_is_not_shut_out() {
    let policy = "
classes: { get: [GET *] }
limiters: { w: { workers: { source: reported, grace: 0s, full: 20s, every: 1s, shed: [get, other] } } }
";
    let (limiter, clock) = limiter(policy);
    for _ in 0..=25 {
        limiter.report_utilization(1_000_000);
        now(limiter.tend());
        clock.advance(Duration::from_secs(1));
    }
    assert!(limiter.admit_now(&facts("GET")).is_err(), "all is shed");
    // Nobody gets through who could tell anything, and the last word grows old.
    for _ in 0..=60 {
        now(limiter.tend());
        clock.advance(Duration::from_secs(1));
    }
    assert_eq!(limiter.report().worker.unwrap().utilization_ppm, None);
    assert!(limiter.admit_now(&facts("GET")).is_ok());
}

#[test]
fn a_fleet_tells_who_uses_its_places() {
    let policy = "
classes: { critical: [POST /charges] }
limiters:
  fleet: { fleet: 10, reserve: 20% }
  by-host: { fleet: 5, per: host }
  places: { concurrency: 100 }
";
    let (limiter, _) = limiter(policy);
    let charge = Facts { path: "/charges", ..facts("POST") };
    let mut held: Vec<_> = (0..3).map(|_| limiter.admit_now(&charge).unwrap()).collect();
    held.extend((0..2).map(|_| limiter.admit_now(&facts("GET")).unwrap()));
    let fleets = now(limiter.fleet_use()).unwrap();
    assert_eq!(fleets.len(), 1, "one with many buckets is left out: {fleets:?}");
    let fleet = &fleets[0];
    assert_eq!((&*fleet.name, fleet.capacity, fleet.allocation), ("fleet", 10, 8));
    assert_eq!(fleet.used, InProgress { critical: 3, other: 2 });
    held.truncate(1);
    assert_eq!(now(limiter.fleet_use()).unwrap()[0].used, InProgress { critical: 1, other: 0 });
}

/// Found by a reader: while a service hung nothing ended, and so its latency was nothing.
#[test]
fn requests_that_wait_for_an_answer_have_a_latency_too() {
    let policy = "limiters: { w: { workers: { source: { latency: 100ms }, every: 1s } } }";
    let (limiter, clock) = limiter(policy);
    let sampled = || {
        now(limiter.tend());
        limiter.report().worker.unwrap().utilization_ppm
    };
    assert_eq!(sampled(), Some(0), "nobody waits");
    let [one, other, uploads] = [(); 3].map(|()| limiter.admit_now(&facts("GET")).unwrap());
    one.waits();
    other.waits();
    other.waits();
    clock.advance(Duration::from_millis(100));
    assert_eq!(sampled(), Some(800_000), "two have waited for as long as they may");
    clock.advance(Duration::from_millis(50));
    assert_eq!(sampled(), Some(1_200_000));
    // What has an answer waits no more, however long its body is.
    one.answered(|_| None);
    assert_eq!(sampled(), Some(1_200_000), "it took 150 ms, and so has the other one waited");
    drop(one);
    clock.advance(Duration::from_millis(50));
    assert_eq!(sampled(), Some(1_600_000), "the other one still waits");
    // Found by another reader: a client that was slow, or left, was taken for a service that is.
    drop(other);
    assert_eq!(sampled(), Some(0), "who has left says nothing");
    clock.advance(Duration::from_secs(10));
    assert_eq!(sampled(), Some(0), "nor does who is still sending");
    drop(uploads);
    assert_eq!(sampled(), Some(0));
    // What was given up is told as what it took.
    let late = limiter.admit_now(&facts("GET")).unwrap();
    late.waits();
    clock.advance(Duration::from_millis(100));
    late.gave_up();
    drop(late);
    assert_eq!(sampled(), Some(800_000));
    assert_eq!(sampled(), Some(0));
}

/// Found by another reader: a few quick answers hid that everything else hung, and answers of our own that a service was slow.
#[test]
fn some_that_hang_are_seen_among_others_and_some_that_wait_for_long_do_not_outweigh_them() {
    let policy = "limiters: { w: { workers: { source: { latency: 100ms }, every: 1s } } }";
    let (limiter, clock) = limiter(policy);
    let sampled = || {
        now(limiter.tend());
        limiter.report().worker.unwrap().utilization_ppm.unwrap()
    };
    let admit = || limiter.admit_now(&facts("GET")).unwrap();
    let quick = |count: usize| {
        for permit in (0..count).map(|_| admit()) {
            permit.waits();
            permit.answered(|_| None);
        }
    };
    sampled();
    let hanging: Vec<_> = (0..20).map(|_| admit()).collect();
    hanging.iter().for_each(|permit| permit.waits());
    clock.advance(Duration::from_secs(1));
    quick(2);
    assert!(sampled() > 1_000_000);
    drop(hanging);
    let long: Vec<_> = (0..2).map(|_| admit()).collect();
    long.iter().for_each(|permit| permit.waits());
    clock.advance(Duration::from_secs(60));
    quick(1);
    sampled();
    clock.advance(Duration::from_secs(1));
    quick(1000);
    assert!(sampled() < 20_000, "two of a thousand have waited for a second more");
    let slow = admit();
    slow.waits();
    clock.advance(Duration::from_millis(100));
    drop(long);
    slow.answered(|_| None);
    (0..50).for_each(|_| drop(admit()));
    assert_eq!(sampled(), 800_000, "what was never asked of the service is none of its answers");
}

/// Found by a reader: after a reload that wants samples more often, the next one came when the old policy would have taken it.
#[tokio::test(start_paused = true)]
async fn samples_are_taken_as_often_as_the_latest_policy_wants() {
    let policy =
        |every: &str| format!("limiters: {{ w: {{ workers: {{ source: reported, every: {every} }} }} }}");
    let limiter = Limiter::from_policy(&policy("1h")).unwrap();
    limiter.report_utilization(500_000);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(limiter.report().worker.unwrap().utilization_ppm, None);
    limiter.reload_text(&policy("500ms")).unwrap();
    limiter.report_utilization(500_000);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(limiter.report().worker.unwrap().utilization_ppm, Some(500_000));
}
