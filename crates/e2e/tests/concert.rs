//! Four limiters in concert, through the tower layer of a real server, on memory and on Redis.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests on real sockets"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::BodyExt;
use tollgate::core::store::Store;
use tollgate::{Failsafe, Limiter, Mode};
use tollgate_redis::RedisStore;
use tollgate_testkit::RedisServer;

use crate::door::*;

/// Runs a test on both stores.
macro_rules! on_both {
    ($($name:ident, $policy:expr;)+) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::in_memory($policy).await).await;
            })+
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let (_server, door) = super::in_redis($policy).await;
                super::$name(door).await;
            })+
        }
    };
}

on_both! {
    each_plan_admits_its_rate_exactly, super::PLANS;
    the_twenty_first_request_in_progress_is_refused_and_a_place_comes_back, super::CONCURRENT;
    a_place_comes_back_when_its_client_goes_away, super::CONCURRENT;
    a_place_comes_back_when_its_handler_panics, super::CONCURRENT;
    a_place_is_held_until_the_body_has_ended, super::CONCURRENT;
    critical_requests_pass_while_others_have_filled_their_share_of_the_fleet, super::FLEET;
    a_burst_and_then_a_steady_state, super::BUCKET;
    a_refused_request_costs_nothing_anywhere, super::SEVERAL;
    what_a_request_has_cost_is_settled_afterwards, super::SETTLED;
    dark_limiters_and_candidates_change_nothing_and_are_counted, super::DARK;
}

const PLANS: &str = "
identify: { caller: [header: x-api-key], plan: [header: x-plan] }
trusted_proxies: [127.0.0.0/8]
plans:
  free:     { rate: 50/s }
  standard: { rate: 500/s, burst: 1000 }
  pro:      { rate: 1000/s, burst: 2000 }
limiters:
  request-rate: { rate: plan }
";

async fn each_plan_admits_its_rate_exactly<S: Store>(door: Door<S>) {
    for (plan, burst, rate) in [("free", 50, 50), ("standard", 1000, 500), ("pro", 2000, 1000)] {
        let headers = [("x-api-key", plan), ("x-plan", plan)];
        assert_eq!(door.passed(burst + 100, &headers).await, burst, "{plan}: the burst");
        for _ in 0..2 {
            door.clock.advance(Duration::from_secs(1));
            assert_eq!(door.passed(rate + 50, &headers).await, rate, "{plan}: a second later");
        }
        // A second and a half idle is no more than the bucket holds.
        door.clock.advance(Duration::from_millis(1500));
        let expected = burst.min(rate * 3 / 2);
        assert_eq!(door.passed(burst + 100, &headers).await, expected, "{plan}: after a rest");
    }
    let other = [("x-api-key", "somebody"), ("x-plan", "gold")];
    assert_eq!(door.passed(60, &other).await, 50, "an unknown plan is the default");
}

const CONCURRENT: &str = "
identify: { caller: [header: x-api-key] }
limiters:
  concurrent-requests: { concurrency: 20 }
";
const ALICE: [(&str, &str); 1] = [("x-api-key", "alice")];

async fn the_twenty_first_request_in_progress_is_refused_and_a_place_comes_back<S: Store>(door: Door<S>) {
    let busy = async { join_all((0..20).map(|_| door.status("GET", "/slow", &ALICE))).await };
    let rest = async {
        door.until_in_flight(20).await;
        let told = door.ask("GET", "/x", &ALICE).await;
        assert_eq!((told.status, told.header("retry-after")), (429, "1"), "{told:?}");
        assert!(told.body.contains("concurrent-requests"), "{told:?}");
        assert_eq!(door.status("GET", "/x", &[("x-api-key", "bob")]).await, 200, "others have their own");
        door.ends.add_permits(1);
        door.until_in_flight(19).await;
        until_passes(&door, &ALICE).await;
        door.ends.add_permits(19);
    };
    let (statuses, ()) = tokio::join!(busy, rest);
    assert_eq!(statuses, [200; 20]);
    door.until_in_flight(0).await;
}

/// Releases reach a shared store a moment later.
async fn until_passes<S: Store>(door: &Door<S>, headers: &[(&str, &str)]) {
    let begun = Instant::now();
    while door.status("GET", "/x", headers).await != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "no place came back");
    }
}

/// Takes 19 places, does something with the last one, and sees that it comes back.
async fn with_one_place<S: Store>(door: &Door<S>, lose: impl AsyncFnOnce(&Door<S>)) {
    let busy = async { join_all((0..19).map(|_| door.status("GET", "/slow", &ALICE))).await };
    let rest = async {
        door.until_in_flight(19).await;
        lose(door).await;
        door.until_in_flight(19).await;
        until_passes(door, &ALICE).await;
        door.ends.add_permits(19);
    };
    tokio::join!(busy, rest);
    door.until_in_flight(0).await;
}

async fn a_place_comes_back_when_its_client_goes_away<S: Store>(door: Door<S>) {
    with_one_place(&door, async |door| {
        let gone = door.begin("GET", "/slow", &ALICE);
        tokio::select! {
            _ = gone => panic!("it ends only when it is told to"),
            () = door.until_in_flight(20) => {}
        }
        // The connection is closed with the request that was on it.
    })
    .await;
}

async fn a_place_comes_back_when_its_handler_panics<S: Store>(door: Door<S>) {
    with_one_place(&door, async |door| {
        let request = door.request("GET", "/panic", &ALICE);
        let client =
            hyper_util::client::legacy::Client::builder(hyper_util::rt::TokioExecutor::new()).build_http();
        assert!(client.request(request).await.is_err(), "the server hangs up");
    })
    .await;
}

async fn a_place_is_held_until_the_body_has_ended<S: Store>(door: Door<S>) {
    with_one_place(&door, async |door| {
        let answer = door.begin("GET", "/stream", &ALICE).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(door.status("GET", "/x", &ALICE).await, 429, "the body is still coming");
        door.stream.send("and more").unwrap();
        door.stream.send("").unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "begun and more");
    })
    .await;
}

const FLEET: &str = "
identify: { caller: [header: x-api-key] }
classes:
  critical: [POST /v1/charges, { path: /slow, header x-class: critical }]
  rest: [/*]
limiters:
  fleet-usage: { fleet: 10, reserve: 20% }
";

async fn critical_requests_pass_while_others_have_filled_their_share_of_the_fleet<S: Store>(door: Door<S>) {
    let busy = async { join_all((0..8).map(|_| door.status("GET", "/slow", &[]))).await };
    let rest = async {
        door.until_in_flight(8).await;
        for _ in 0..5 {
            let told = door.ask("GET", "/v1/users", &[]).await;
            assert_eq!(told.status, 503, "{told:?}");
            assert!(["1", "2"].contains(&told.header("retry-after")), "{told:?}");
            assert_eq!(door.status("POST", "/v1/charges", &[]).await, 200);
        }
        // Those that are critical take no place of the others.
        let critical = join_all((0..4).map(|_| door.status("GET", "/slow", &[("x-class", "critical")])));
        let rest = async {
            door.until_in_flight(12).await;
            assert_eq!(door.status("GET", "/v1/users", &[]).await, 503);
            door.ends.add_permits(12);
        };
        tokio::join!(critical, rest);
    };
    tokio::join!(busy, rest);
    door.until_in_flight(0).await;
    until_passes(&door, &[]).await;
}

const BUCKET: &str = "
identify: { caller: [header: x-api-key] }
limiters:
  request-rate: { rate: 5/s, burst: 10 }
";

/// As the first of the small suites that this project began with: a burst, and then what the rate allows.
async fn a_burst_and_then_a_steady_state<S: Store>(door: Door<S>) {
    let passed: Vec<bool> = {
        let mut passed = Vec::new();
        for _ in 0..12 {
            passed.push(door.status("GET", "/x", &ALICE).await == 200);
        }
        passed
    };
    assert_eq!(passed, [vec![true; 10], vec![false; 2]].concat());
    for _ in 0..5 {
        door.clock.advance(Duration::from_secs(1));
        assert_eq!(door.passed(20, &ALICE).await, 5);
    }
    let told = door.ask("GET", "/x", &ALICE).await;
    assert_eq!((told.status, told.header("retry-after")), (429, "1"));
    assert_eq!(told.header("ratelimit-policy"), "\"request-rate\";q=10;w=2");
    assert_eq!(told.header("ratelimit"), "\"request-rate\";r=0;t=1");
    door.clock.advance(Duration::from_millis(200));
    assert_eq!(door.status("GET", "/x", &ALICE).await, 200);
}

const SEVERAL: &str = "
identify: { caller: [header: x-api-key] }
limiters:
  request-rate: { rate: [10/s, 25/min] }
  global: { rate: 1000/h, per: global }
";

async fn a_refused_request_costs_nothing_anywhere<S: Store>(door: Door<S>) {
    assert_eq!(door.passed(50, &ALICE).await, 10);
    door.clock.advance(Duration::from_secs(1));
    assert_eq!(door.passed(50, &ALICE).await, 10, "the refused ones took nothing of the minute");
    door.clock.advance(Duration::from_secs(1));
    let told = door.ask("GET", "/x", &ALICE).await;
    assert!(told.header("ratelimit").contains(", \"request-rate-2\";r=4;t="), "{told:?}");
    // 25 in a minute, and what two seconds have brought back: 4 more, of which one was taken.
    assert_eq!(door.passed(50, &ALICE).await, 4);
    let told = door.ask("GET", "/x", &[("x-api-key", "bob")]).await;
    let left = 1000 - 10 - 10 - 1 - 4 - 1;
    assert!(told.header("ratelimit-policy").contains("\"global\";q=1000;w=3600"), "{told:?}");
    assert_eq!(door.count("global").asked, door.count("request-rate").asked);
    let bob = door.limiter.report().totals;
    assert_eq!(bob.asked - bob.refused, 1000 - left);
}

const SETTLED: &str = "
identify: { caller: [header: x-api-key] }
limiters:
  tokens: { rate: 1000/h, cost: { response_header: x-tokens-used, otherwise: 100 } }
";

async fn what_a_request_has_cost_is_settled_afterwards<S: Store>(door: Door<S>) {
    let alice = tollgate::Facts { headers: &ALICE, ..Default::default() };
    let left = async || {
        let facts = tollgate::Facts { cost: Some(0), ..alice };
        door.limiter.admit(&facts).await.unwrap().decision().standings[0].remaining
    };
    let settled = async |expected: u64| {
        let begun = Instant::now();
        while left().await != expected {
            assert!(begun.elapsed() < Duration::from_secs(20), "{} are left, not {expected}", left().await);
        }
    };
    let permit = door.limiter.admit(&alice).await.unwrap();
    assert_eq!(left().await, 900);
    permit.answered(|name| (name == "x-tokens-used").then_some(&b"40"[..]));
    settled(960).await;
    door.limiter.admit(&alice).await.unwrap().settle(460);
    settled(500).await;
    // More than there is takes what there is, and the next one waits.
    door.limiter.admit(&alice).await.unwrap().settle(100_000);
    settled(0).await;
    assert_eq!(door.limiter.admit(&alice).await.unwrap_err().status(), 429);
}

const DARK: &str = "
identify: { caller: [header: x-api-key] }
limiters:
  request-rate: { rate: 10/h, candidate: 4/h }
  stricter: { rate: 3/h, mode: dark }
  places: { concurrency: 1, mode: dark }
  sampled: { rate: 2/h, sample: 0% }
";

async fn dark_limiters_and_candidates_change_nothing_and_are_counted<S: Store>(door: Door<S>) {
    let plain =
        in_memory("identify: { caller: [header: x-api-key] }\nlimiters: { request-rate: { rate: 10/h } }")
            .await;
    for _ in 0..15 {
        let (told, expected) = (door.ask("GET", "/x", &ALICE).await, plain.ask("GET", "/x", &ALICE).await);
        assert_eq!((told.status, &told.body), (expected.status, &expected.body));
        for name in ["ratelimit", "ratelimit-policy", "retry-after"] {
            assert_eq!(told.header(name), expected.header(name), "{name}");
        }
    }
    let counts = || {
        [
            door.count("stricter").would_refuse,
            door.count("sampled").would_refuse,
            door.count("request-rate").candidate_refused,
        ]
    };
    // Of the ten that passed. In a shared store they are decided a moment later.
    until("all are counted", || counts() == [7, 8, 6]).await;
    assert_eq!(door.count("request-rate").refused, 5);
    // One after the other; but in a shared store a place may come back after the next one was asked for.
    let before = door.count("places").would_refuse;
    let busy =
        async { join_all((0..3).map(|_| door.status("GET", "/slow", &[("x-api-key", "carol")]))).await };
    let rest = async {
        door.until_in_flight(3).await;
        until("two had no place", || door.count("places").would_refuse == before + 2).await;
        door.ends.add_permits(3);
    };
    assert_eq!(tokio::join!(busy, rest).0, [200; 3]);
    // Places that were taken in the dark come back, too.
    let begun = Instant::now();
    loop {
        let before = door.count("places");
        assert_eq!(door.status("GET", "/x", &[("x-api-key", "carol")]).await, 200);
        until("it is counted", || door.count("places").asked > before.asked).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        if door.count("places").would_refuse == before.would_refuse {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "a place in the dark never came back");
    }
}

const SHED: &str = "
identify: { caller: [header: x-api-key] }
classes:
  critical: [POST /v1/charges]
  test: [header x-api-key: sk_test_*]
  post: [POST *]
  get: [GET *]
limiters:
  worker-utilization: { workers: { good: 70%, bad: 80%, grace: 28s, full: 120s, every: 1s, source: reported } }
";

/// How many of 20 requests of each class pass: test, get, post, critical.
async fn by_class<S: Store>(door: &Door<S>) -> [usize; 4] {
    let mut passed = [0; 4];
    let kinds = [
        ("GET", "/v1/users", "sk_test_1"),
        ("GET", "/v1/users", "sk"),
        ("POST", "/v1/users", "sk"),
        ("POST", "/v1/charges", "sk"),
    ];
    for (count, (method, path, key)) in passed.iter_mut().zip(kinds) {
        for _ in 0..20 {
            *count += usize::from(door.status(method, path, &[("x-api-key", key)]).await == 200);
        }
    }
    passed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_overload_sheds_test_then_get_then_post_and_never_critical_and_brings_them_back() {
    let door = in_memory(SHED).await;
    let overload = async |seconds: u64, ppm: u64| {
        for _ in 0..seconds {
            door.clock.advance(Duration::from_secs(1));
            door.limiter.report_utilization(ppm);
            door.limiter.tend().await;
        }
    };
    overload(1, 1_000_000).await;
    overload(28, 1_000_000).await;
    assert_eq!(by_class(&door).await, [20, 20, 20, 20], "28 s of grace");
    overload(20, 1_000_000).await;
    let [test, get, post, critical] = by_class(&door).await;
    assert!((1..20).contains(&test), "half of test mode goes: {test}");
    assert_eq!([get, post, critical], [20, 20, 20]);
    overload(20, 1_000_000).await;
    assert_eq!(by_class(&door).await, [0, 20, 20, 20], "68 s: test mode is gone, GETs are untouched");
    overload(40, 1_000_000).await;
    assert_eq!(by_class(&door).await, [0, 0, 20, 20], "108 s: GETs are gone");
    overload(40, 1_000_000).await;
    assert_eq!(by_class(&door).await, [0, 0, 0, 20], "148 s: POSTs are gone, critical requests never");
    overload(1000, 1_000_000).await;
    assert_eq!(by_class(&door).await, [0, 0, 0, 20]);
    let told = door.ask("GET", "/v1/users", &[]).await;
    assert_eq!(told.status, 503);
    assert!(told.body.contains("temporary-reduced-capacity"), "{told:?}");
    overload(40, 0).await;
    assert_eq!(by_class(&door).await, [0, 0, 20, 20], "slowly back, the other way round");
    overload(40, 0).await;
    assert_eq!(by_class(&door).await, [0, 20, 20, 20]);
    overload(40, 0).await;
    assert_eq!(by_class(&door).await, [20, 20, 20, 20]);
    // At nine tenths of good it takes ten times as long to get the grace back.
    overload(28, 630_000).await;
    overload(27, 1_000_000).await;
    assert!(by_class(&door).await[0] < 20, "a tenth of the grace was not 27 s");
}

/// As the last of those small suites: 149 samples of full overload, one request with each.
#[tokio::test]
async fn about_sixty_of_149_requests_are_dropped_in_the_overload_run() {
    let policy = "
classes: { rest: [/*] }
limiters:
  worker-utilization: { workers: { every: 1s, source: reported, shed: [rest] } }
";
    let clock = stopped();
    let limiter = Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap();
    let mut dropped = 0;
    for _ in 0..149 {
        limiter.report_utilization(1_000_000);
        limiter.tend().await;
        dropped += u32::from(limiter.admit_now(&tollgate::Facts::default()).is_err());
        clock.advance(Duration::from_secs(1));
    }
    // The sum of max(0, (i - 28) / 120) is 60.5, its deviation about 4.5.
    assert!((38..=83).contains(&dropped), "{dropped}");
}

/// As the second of those: more than may be in progress at once, while some finish; then as many at once as may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pounding_while_others_finish_and_then_all_at_once() {
    let door =
        in_memory("identify: { caller: [header: x-api-key] }\nlimiters: { places: { concurrency: 5 } }")
            .await;
    for _ in 0..50 {
        assert_eq!(door.status("GET", "/x", &ALICE).await, 200, "each ends before the next");
    }
    let all = join_all((0..10).map(|_| door.status("GET", "/slow", &ALICE)));
    let rest = async {
        until("all have been asked", || door.count("places").asked == 60).await;
        door.ends.add_permits(5);
    };
    let (statuses, ()) = tokio::join!(all, rest);
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5, "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_is_killed_under_load_fails_no_request_and_delays_none_beyond_the_deadline() {
    const DEADLINE: Duration = Duration::from_millis(50);
    let mut server = RedisServer::start();
    let store = RedisStore::builder(server.url()).secret("tests").deadline(DEADLINE).build().unwrap();
    store.ready().await.unwrap();
    let policy = "
identify: { caller: [header: x-api-key] }
limiters:
  request-rate: { rate: 1000000/s }
  concurrent-requests: { concurrency: 1000 }
  closed: { rate: 1000000/s, match: [/closed], on_store_failure: closed }
";
    let limiter = Limiter::builder().store(Failsafe::new(store)).policy(policy).build().unwrap();
    let door = Arc::new(serve(limiter, stopped()).await);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let callers: Vec<_> = (0..16)
        .map(|caller| {
            let (door, stop) = (Arc::clone(&door), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut slowest = Vec::new();
                let key = format!("caller {caller}");
                while !stop.load(std::sync::atomic::Ordering::Acquire) {
                    let begun = Instant::now();
                    assert_eq!(door.status("GET", "/x", &[("x-api-key", &key)]).await, 200);
                    slowest.push(begun.elapsed());
                }
                slowest
            })
        })
        .collect();
    let before = door.limiter.report().totals.asked;
    until("there is load", || door.limiter.report().totals.asked > before + 500).await;
    server.kill();
    let killed = door.limiter.report().totals.asked;
    until("it goes on without", || door.limiter.report().totals.asked > killed + 2000).await;
    assert!(door.count("request-rate").degraded > 0);
    assert_eq!(
        door.status("GET", "/closed", &[("x-api-key", "x")]).await,
        503,
        "a limit that closes is no 429"
    );
    stop.store(true, std::sync::atomic::Ordering::Release);
    let mut times: Vec<Duration> = join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    times.sort();
    let late = times[times.len() * 99 / 100];
    assert!(late <= DEADLINE + Duration::from_millis(40), "99 of 100 within {late:?}");
    assert_eq!(door.limiter.report().totals.panics, 0);
    server.restart();
    let begun = Instant::now();
    loop {
        let before = door.count("request-rate").degraded;
        door.status("GET", "/x", &ALICE).await;
        if door.count("request-rate").degraded == before {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it never came back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_takes_effect_with_the_next_request_and_outlives_reloads() {
    let door = in_memory("limiters: { all: { rate: 1/h, per: global } }").await;
    assert_eq!(door.passed(5, &[]).await, 1);
    assert!(door.limiter.switch("all", Some(Mode::Off)));
    assert_eq!(door.passed(5, &[]).await, 5);
    door.limiter
        .reload_text("limiters: { all: { rate: 1/h, per: global }, more: { rate: 9/h, per: global } }")
        .unwrap();
    assert_eq!(door.passed(12, &[]).await, 9, "off after a reload, too");
    door.limiter.switch_all(Some(Mode::Dark));
    assert_eq!(door.passed(5, &[]).await, 5);
    door.limiter.switch_all(None);
    assert!(door.limiter.switch("all", None));
    assert_eq!(door.passed(5, &[]).await, 0, "as the policy says, with what was used");
    assert!(!door.limiter.switch("nobody", Some(Mode::Off)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_hold_nothing() {
    let door = in_memory("limiters: { places: { concurrency: 100, per: global } }").await;
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(tokio::net::TcpStream::connect(door.address).await.unwrap());
    }
    assert_eq!(door.limiter.report().in_flight, 0);
    assert_eq!(door.status("GET", "/x", &[]).await, 200);
    drop(idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_tenant_who_floods_takes_nothing_from_others_and_critical_requests_pass() {
    let policy = "
identify: { caller: [header: x-api-key] }
classes: { critical: [GET /healthz], rest: [/*] }
allow: [caller: operator]
limiters:
  per-tenant: { rate: 10/s, match: [{ not: { class: critical } }] }
  everybody:  { rate: 100/s, per: global, match: [{ not: { class: critical } }] }
";
    let door = in_memory(policy).await;
    // Ten times as much as everybody may have.
    assert_eq!(door.passed(1000, &[("x-api-key", "flood")]).await, 10);
    for tenant in 0..9 {
        let key = format!("tenant {tenant}");
        assert_eq!(door.passed(10, &[("x-api-key", &key)]).await, 10, "tenant {tenant} keeps its share");
    }
    assert_eq!(door.passed(1, &[("x-api-key", "one more")]).await, 0, "everybody's is used up");
    assert_eq!(door.status("GET", "/healthz", &[]).await, 200);
    assert_eq!(door.passed(20, &[("x-api-key", "operator")]).await, 20);
}
