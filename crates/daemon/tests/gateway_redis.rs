//! A shared store that goes away while requests come: nobody is answered worse for it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use std::time::{Duration, Instant};

use crate::common::{await_store, command, gateway, patient_store};
use tollgate_testkit::http::{Client, Upstream};
use tollgate_testkit::{RedisServer, Tollgate, wait_until};

fn readiness(tollgate: &Tollgate) -> (u16, String) {
    let answer = tollgate.ask_admin("GET", "/readyz", "");
    (answer.status, answer.text())
}

#[test]
fn no_request_fails_while_redis_is_killed_and_comes_back() {
    let mut redis = RedisServer::start();
    let upstream = Upstream::hello();
    let policy = format!(
        "{}identify: {{ caller: [header: x-api-key] }}\nlimiters:\n  rate: {{ rate: 200/s, per: caller, on_store_failure: local }}\n  few: {{ concurrency: 20, per: caller, on_store_failure: local }}\n",
        patient_store(&redis)
    );
    let tollgate = gateway(&policy, &upstream);
    await_store(&tollgate);
    let (is_over, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..4)
        .map(|number| {
            let (is_over, asked, to) = (Arc::clone(&is_over), Arc::clone(&asked), tollgate.gateway);
            std::thread::spawn(move || {
                let mut client = Client::connect(to);
                let key = format!("caller_{number}");
                let mut counts = std::collections::BTreeMap::<u16, usize>::new();
                while !is_over.load(Ordering::Relaxed) {
                    let answer = client.get("/", &[("x-api-key", &key)]);
                    *counts.entry(answer.status).or_default() += 1;
                    asked.fetch_add(1, Ordering::Relaxed);
                }
                counts
            })
        })
        .collect();
    let ask_more = |count: usize| {
        let before = asked.load(Ordering::Relaxed);
        wait_until("requests go on", || asked.load(Ordering::Relaxed) >= before + count);
    };
    ask_more(200);
    redis.kill();
    wait_until("it is noticed", || readiness(&tollgate).1.contains("degraded"));
    ask_more(500);
    assert_eq!(readiness(&tollgate).0, 200);
    tollgate.comes_to("tollgate_store_breakers_open", 1.0);
    assert!(tollgate.metric("tollgate_store_local_keys") > 0.0);
    assert!(tollgate.metric("tollgate_store_local_bytes") > 0.0);
    let during = tollgate.get("/", &[("x-api-key", "another")]);
    assert_eq!((during.status, during.header("x-tollgate-degraded")), (200, "true"));
    redis.restart();
    await_store(&tollgate);
    assert_eq!(tollgate.metric("tollgate_store_breakers_open"), 0.0);
    ask_more(200);
    let after = tollgate.get("/", &[("x-api-key", "another")]);
    assert_eq!((after.status, after.header("x-tollgate-degraded")), (200, ""));
    is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        let counts = caller.join().unwrap();
        assert!(counts.keys().all(|status| [200, 429].contains(status)), "{counts:?}");
        assert!(counts.contains_key(&200), "{counts:?}");
    }
}

#[test]
fn a_gateway_starts_while_redis_is_away_and_uses_it_when_it_comes() {
    let mut redis = RedisServer::start();
    redis.kill();
    let upstream = Upstream::hello();
    let policy =
        format!("{}limiters: {{ one: {{ rate: 1/h, burst: 50, per: global }} }}\n", patient_store(&redis));
    let tollgate = gateway(&policy, &upstream);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    assert_eq!(readiness(&tollgate).0, 200);
    redis.restart();
    await_store(&tollgate);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    assert_ne!(redis.command(&["DBSIZE"]), ":0\r\n");
}

#[test]
fn what_callers_are_told_is_the_same_on_redis_and_tells_when_it_is_not_asked() {
    let mut redis = RedisServer::start();
    let upstream = Upstream::hello();
    let policy = format!(
        "{}limiters:\n  few: {{ concurrency: 20, per: global, match: /few }}\n  one: {{ rate: 1/h, per: global, match: /one, on_store_failure: local }}\n",
        patient_store(&redis)
    );
    let tollgate = gateway(&policy, &upstream);
    await_store(&tollgate);
    // A place comes free when a request ends, and not when its lease would.
    assert_eq!(tollgate.get("/few", &[]).header("ratelimit"), "\"few\";r=19");
    let asked = || tollgate.metric("tollgate_store_duration_seconds_count");
    redis.kill();
    wait_until("it is noticed", || readiness(&tollgate).1.contains("degraded"));
    let before = asked();
    wait_until("it is refused", || tollgate.get("/one", &[]).status == 429);
    assert_eq!(tollgate.get("/one", &[]).header("x-tollgate-degraded"), "true");
    assert_eq!(asked(), before, "a store that is away has answered");
}

#[test]
fn short_pauses_of_redis_are_visible_in_log_status_readiness_and_metrics() {
    let redis = RedisServer::start();
    let upstream = Upstream::hello();
    let policy = format!(
        "store: {{ url: '{}', secret: 0123456789abcdef }}\nlimiters: {{ all: {{ rate: 1000000/s, per: global }} }}\n",
        redis.url()
    );
    let tollgate = gateway(&policy, &upstream);
    await_store(&tollgate);
    let mut client = tollgate.client();
    for _ in 0..8 {
        redis.freeze();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(150) {
            assert_eq!(client.get("/", &[]).status, 200);
        }
        redis.thaw();
        (0..50).for_each(|_| assert_eq!(client.get("/", &[]).status, 200));
    }
    wait_until("it is logged", || {
        assert_eq!(client.get("/", &[]).status, 200);
        tollgate.said().iter().any(|line| line.contains("were made without the shared store"))
    });
    assert!(tollgate.metric("tollgate_store_bypassed_ratio") > 0.0);
    let readiness = readiness(&tollgate);
    assert_eq!(readiness.0, 200);
    assert!(
        readiness.1.contains("% of decisions in the last minute were made without the store"),
        "{readiness:?}"
    );
    let (status, _) = command(&["status", "--admin", &tollgate.admin.to_string()]);
    assert!(status.contains("WITHOUT IT"), "{status}");
}
