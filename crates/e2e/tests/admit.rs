//! `admit` itself: one table for every door, panics that hurt nobody, permits that come back exactly once.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests on real sockets"
)]

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http_body_util::BodyExt;
use proptest::prelude::*;
use tollgate::core::concurrency::InProgress;
use tollgate::core::key::KeyRef;
use tollgate::core::limit::Op;
use tollgate::core::store::{Charge, Rule, Store, StoreError};
use tollgate::{Facts, Limit, Limiter, MemoryStore, Outcome, Timestamp, Tokens, Verdict};
use tollgate_testkit::cases::{Asked, CASES};

use crate::door::*;

/// What a caller can tell apart: the status, who refused, and when to come back.
#[derive(Debug, PartialEq)]
struct Answer {
    status: u16,
    limiter: String,
    retry_after: String,
}

fn expected(asked: &Asked, retry_after: &str) -> Answer {
    let drawn = asked.status == 503;
    Answer {
        status: asked.status,
        limiter: asked.limiter.to_owned(),
        retry_after: if drawn { retry_after } else { asked.retry_after }.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_table_gives_the_same_answers_by_admit_and_through_the_layer() {
    for case in CASES {
        let (direct, layer) = (in_memory(case.policy).await, in_memory(case.policy).await);
        for asked in case.requests {
            for _ in 0..asked.times {
                let (path, query) = asked.target.split_once('?').unwrap_or((asked.target, ""));
                let headers: Vec<(&str, &str)> = asked.headers.to_vec();
                let facts = Facts {
                    method: asked.method,
                    path,
                    query,
                    peer: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
                    headers: &headers,
                    ..Facts::default()
                };
                let by_admit = match direct.limiter.admit(&facts).await {
                    Ok(_) => Answer { status: 200, limiter: String::new(), retry_after: String::new() },
                    Err(refusal) => {
                        let answer = refusal.answer(None, path);
                        let wait = answer.headers.iter().find(|(name, _)| *name == "retry-after");
                        Answer {
                            status: answer.status,
                            limiter: refusal.limiter().to_owned(),
                            retry_after: wait.map_or(String::new(), |(_, wait)| wait.to_string()),
                        }
                    }
                };
                assert_eq!(by_admit, expected(asked, &by_admit.retry_after), "{}: {asked:?}", case.name);
                let told = layer.ask(asked.method, asked.target, asked.headers).await;
                let body: serde_json::Value = serde_json::from_str(&told.body).unwrap_or_default();
                let by_layer = Answer {
                    // What passes finds a service or does not.
                    status: if told.status == 404 { 200 } else { told.status },
                    limiter: body["limiter"].as_str().unwrap_or_default().to_owned(),
                    retry_after: told.header("retry-after").to_owned(),
                };
                assert_eq!(by_layer, expected(asked, &by_layer.retry_after), "{}: {asked:?}", case.name);
            }
        }
    }
}

/// A store that panics, fails or never answers when it is told to.
struct Broken {
    store: MemoryStore,
    panics: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
    /// How often it says that it is not ready.
    pending: Arc<AtomicU64>,
}

impl Broken {
    fn new() -> Self {
        Self {
            store: MemoryStore::builder().max_bytes(8 << 20).build(),
            panics: Arc::default(),
            fails: Arc::default(),
            pending: Arc::default(),
        }
    }
}

impl Store for Broken {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        Ok(self.store.define(family, limit))
    }
    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        self.store.redefine(rule, limit, at)
    }
    fn is_shared(&self) -> bool {
        false
    }
    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        for _ in 0..self.pending.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        assert!(!self.panics.load(Ordering::Relaxed), "a bug in limiter code");
        if self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable("told to".to_owned()));
        }
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

const ALL: &str = "
limiters:
  rate: { rate: 1000000/s, per: global }
  places: { concurrency: 3, per: global }
  dark: { concurrency: 2, per: global, mode: dark }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_limiter_code_lets_the_request_pass_and_is_counted() {
    let store = Broken::new();
    let panics = Arc::clone(&store.panics);
    let door = open("limiters: { rate: { rate: 1/h, per: global } }", store, stopped()).await;
    assert_eq!(door.status("GET", "/x", &[]).await, 200);
    assert_eq!(door.status("GET", "/x", &[]).await, 429);
    panics.store(true, Ordering::Relaxed);
    for _ in 0..10 {
        assert_eq!(door.status("GET", "/x", &[]).await, 200);
    }
    assert_eq!(door.limiter.report().totals.panics, 10);
    panics.store(false, Ordering::Relaxed);
    assert_eq!(door.status("GET", "/x", &[]).await, 429, "and it limits again");
    assert_eq!(door.limiter.report().in_flight, 0);
}

struct PanickyTokens;

impl Tokens for PanickyTokens {
    fn claim(&self, _: &Facts<'_>, _: &str, _: Timestamp) -> Option<String> {
        panic!("a bug in a token verifier")
    }
}

#[test]
fn a_panic_while_the_policy_is_applied_lets_the_request_pass() {
    let policy =
        "identify: { caller: [jwt: sub], jwt: { secret_env: SECRET } }\nlimiters: { rate: { rate: 1/h } }";
    let limiter = Limiter::builder().tokens(PanickyTokens).policy(policy).build().unwrap();
    for _ in 0..5 {
        assert!(limiter.admit_now(&Facts::default()).is_ok());
    }
    assert_eq!(limiter.report().totals.panics, 5);
}

#[test]
fn a_store_that_fails_lets_the_request_pass_and_is_counted() {
    let store = Broken::new();
    let fails = Arc::clone(&store.fails);
    let limiter = Limiter::builder()
        .store(store)
        .policy("limiters: { rate: { rate: 1/h, per: global } }")
        .build()
        .unwrap();
    fails.store(true, Ordering::Relaxed);
    for _ in 0..5 {
        assert!(now(limiter.admit(&Facts::default())).is_ok());
    }
    assert_eq!(limiter.report().totals.store_errors, 5);
}

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever becomes of requests, as many are in progress as have permits, and none when all are gone.
    #[test]
    fn permits_come_back_exactly_once(steps in prop::collection::vec((0..4u8, 0..8usize, 0..5u64), 1..60)) {
        let store = Broken::new();
        let pending = Arc::clone(&store.pending);
        let limiter = Limiter::builder().store(store).policy(ALL).build().unwrap();
        let mut held = Vec::new();
        for (step, at, polls) in steps {
            match step {
                // A request that comes and stays.
                0 | 1 => {
                    pending.store(0, Ordering::Relaxed);
                    let admitted = now(limiter.admit(&Facts::default()));
                    prop_assert_eq!(admitted.is_ok(), held.len() < 3);
                    held.extend(admitted);
                }
                // One whose caller goes away before it is decided.
                2 => {
                    pending.store(10, Ordering::Relaxed);
                    let facts = Facts::default();
                    let mut future = Box::pin(limiter.admit(&facts));
                    for _ in 0..polls {
                        prop_assert!(future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
                    }
                }
                // One that ends.
                _ => {
                    if !held.is_empty() {
                        drop(held.swap_remove(at % held.len()));
                    }
                }
            }
            prop_assert_eq!(limiter.report().in_flight, held.len() as u64);
        }
        held.clear();
        prop_assert_eq!(limiter.report().in_flight, 0);
        pending.store(0, Ordering::Relaxed);
        let all: Vec<_> = (0..4).map(|_| now(limiter.admit(&Facts::default()))).collect();
        prop_assert_eq!(all.iter().filter(|admitted| admitted.is_ok()).count(), 3);
        // Also those that were only watched.
        let before = limiter.report().limiters[2].stats.would_refuse;
        drop(all);
        let two = [now(limiter.admit(&Facts::default())), now(limiter.admit(&Facts::default()))];
        prop_assert_eq!(limiter.report().limiters[2].stats.would_refuse, before);
        drop(two);
    }

    /// No input panics: whatever a request says, somebody decides.
    #[test]
    fn no_request_makes_the_limiter_panic(
        method in ".{0,8}", path in ".{0,40}", query in ".{0,40}", host in ".{0,20}",
        headers in prop::collection::vec((prop::sample::select(vec![
            "x-api-key", "x-forwarded-for", "forwarded", "cookie", "x-cost", "x-plan", "authorization",
        ]), prop::collection::vec(any::<u8>(), 0..60)), 0..6),
    ) {
        thread_local! {
            static LIMITER: Limiter = Limiter::from_policy(EVERYTHING).unwrap_or_else(|error| panic!("{error}"));
        }
        let facts = Facts {
            method: &method,
            path: &path,
            query: &query,
            host: &host,
            peer: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            headers: &headers,
            ..Facts::default()
        };
        LIMITER.with(|limiter| {
            match limiter.admit_now(&facts) {
                Ok(permit) => drop((permit.decision(), permit.headers())),
                Err(refusal) => drop((refusal.answer(Some(path.as_bytes()), &path), refusal.grpc())),
            }
            assert_eq!(limiter.report().totals.panics, 0);
        });
    }
}

const EVERYTHING: &str = "
identify:
  caller: [header: x-api-key, cookie: session, query: key, ip]
  plan: [header: x-plan, cookie: plan, table]
  table: { alice: pro }
trusted_proxies: [127.0.0.0/8]
plans: { free: { rate: 5/s }, pro: { rate: 50/s, concurrency: 5 } }
classes:
  critical: [POST /v1/charges, { host: \"*.example.com\", not: { method: GET } }]
  test: [header x-api-key: sk_test_*]
  rest: [/*]
limiters:
  rate: { rate: plan }
  by-everything: { rate: 10/s, per: [caller, plan, path, method, host, ip, class, header: x-cost] }
  log: { rate: 100/min, algorithm: sliding-log, match: [{ path: /v1/*, network: 0.0.0.0/0 }] }
  cost: { rate: 1000/s, cost: { header: x-cost, max: 50 } }
  places: { concurrency: 100 }
  fleet: { fleet: 50, reserve: 10% }
  workers: { workers: { source: { in_flight: 10 } } }
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_are_told_in_words_that_the_caller_accepts() {
    let policy = "
answers: { headers: draft-6, docs_url: https://example.com/limits }
limiters: { all: { rate: 2/min, per: global } }
";
    let door = in_memory(policy).await;
    let told = door.ask("GET", "/x", &[]).await;
    assert_eq!(
        (told.status, told.header("ratelimit-limit"), told.header("ratelimit-remaining")),
        (200, "2", "1")
    );
    door.ask("GET", "/x", &[]).await;
    let told = door.ask("GET", "/x'y", &[]).await;
    assert_eq!(told.header("content-type"), "application/problem+json");
    assert_eq!(told.header("cache-control"), "no-store");
    let body: serde_json::Value = serde_json::from_str(&told.body).unwrap();
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], serde_json::json!(["all"]));
    assert_eq!(
        (&body["limit"], &body["remaining"], &body["retry-after"]),
        (&2.into(), &0.into(), &30.into())
    );
    assert_eq!(body["docs"], "https://example.com/limits");
    let html = door.ask("GET", "/x", &[("accept", "text/html,*/*;q=0.8")]).await;
    assert!(html.header("content-type").starts_with("text/html") && html.body.contains("<"), "{html:?}");
    let text = door.ask("GET", "/x", &[("accept", "text/plain")]).await;
    assert!(text.header("content-type").starts_with("text/plain"), "{text:?}");
    let grpc = door.ask("POST", "/x", &[("content-type", "application/grpc")]).await;
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, "8"));
    assert!(grpc.header("grpc-message").contains("all"), "{grpc:?}");
}

const TOKENS: &str =
    "limiters: { tokens: { rate: 100/d, per: global, cost: { response_header: x-tokens, otherwise: 60 } } }";

/// A streamed answer that tells at its end what it has cost.
async fn streams_and_settles<S: Store + 'static>(door: &Door<S>) {
    let mut streamed = door.begin("POST", "/stream", &[]).await;
    assert_eq!(streamed.status(), 200);
    assert_eq!(door.status("GET", "/x", &[]).await, 429, "60 of 100 are taken");
    for chunk in ["some", "more", "used 10", "", ""] {
        door.stream.send(chunk).unwrap();
    }
    let body = streamed.body_mut().collect().await.unwrap().to_bytes();
    assert_eq!(body, "begun somemoreused 10");
    let mut left = door.status("GET", "/x", &[]).await;
    // A shared store is told while nobody waits for it.
    for _ in 0..1000 {
        if left == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
        left = door.status("GET", "/x", &[]).await;
    }
    assert_eq!(left, 200, "90 were left");
    assert_eq!(door.status("GET", "/x", &[]).await, 429, "30 are left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_answer_is_settled_when_it_knows_what_it_has_cost() {
    streams_and_settles(&in_memory(TOKENS).await).await;
    let (_server, door) = in_redis(TOKENS).await;
    streams_and_settles(&door).await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_delays_requests_and_refuses_those_for_whom_it_is_too_long() {
    let limiter = Limiter::from_policy(
        "limiters: { queue: { rate: 1/s, burst: 3, algorithm: leaky-queue, per: global } }",
    )
    .unwrap();
    let delays: Vec<_> =
        (0..5).map(|_| limiter.admit_now(&Facts::default()).map(|permit| permit.delay())).collect();
    let delays: Vec<_> = delays.into_iter().map(Result::ok).collect();
    assert_eq!(delays[0], Some(Duration::ZERO));
    assert!(delays[1] > Some(Duration::ZERO), "{delays:?}");
    assert_eq!(delays[4], None, "{delays:?}");
}

#[test]
fn a_permit_that_ends_does_not_move_the_time_of_whoever_brought_a_clock() {
    let clock = tollgate::ManualClock::default();
    let policy = "limiters: { rate: { rate: 10/h, per: global }, places: { concurrency: 5, per: global } }";
    let limiter = Limiter::builder().clock(clock.clone()).policy(policy).build().unwrap();
    let passed = (0..100).filter(|_| limiter.admit_now(&Facts::default()).is_ok()).count();
    assert_eq!(passed, 10, "the clock stands still");
    clock.advance(Duration::from_secs(3600));
    assert_eq!((0..100).filter(|_| limiter.admit_now(&Facts::default()).is_ok()).count(), 10);
}

#[test]
fn plans_overrides_and_lists_are_looked_up_not_searched() {
    let mut policy = "identify: { caller: [header: x-api-key], plan: [table], table: {".to_owned();
    (0..2000).for_each(|n| policy.push_str(&format!("t{n}: p{}, ", n % 100)));
    policy.push_str("} }\nplans: {");
    (0..100).for_each(|n| policy.push_str(&format!("p{n}: {{ rate: {}/h }}, ", n + 1)));
    policy.push_str("}\noverrides: {");
    (0..2000).for_each(|n| policy.push_str(&format!("o{n}: {{ rate: {}/h }}, ", n + 1)));
    policy.push_str("}\nlimiters: { rate: { rate: plan } }");
    let limiter = Limiter::from_policy(&policy).unwrap_or_else(|error| panic!("{error}"));
    let passed = |key: &str| {
        let headers = [("x-api-key", key)];
        let facts = Facts { headers: &headers, ..Facts::default() };
        (0..3000).take_while(|_| limiter.admit_now(&facts).is_ok()).count()
    };
    assert_eq!(passed("t1042"), 43);
    assert_eq!(passed("o1999"), 2000);
    assert_eq!(passed("nobody"), 1, "the first plan");
}
