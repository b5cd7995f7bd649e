//! Another policy while the gateway is at work.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{BINARY, gateway};
use serde_json::Value;
use tollgate_testkit::http::{Client, Upstream};
use tollgate_testkit::{Tollgate, wait_until};

fn burst(count: u32) -> String {
    format!("limiters: {{ one: {{ rate: 1/h, burst: {count}, per: global }} }}\n")
}

fn reloads(tollgate: &Tollgate) -> (u64, u64) {
    let status: Value = serde_json::from_slice(&tollgate.ask_admin("GET", "/api/status", "").body).unwrap();
    let count = |what: &str| status["reloads"][what].as_u64().unwrap();
    (count("succeeded"), count("failed"))
}

#[test]
fn a_file_that_is_changed_is_loaded_soon() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&burst(1), &upstream);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    assert_eq!(tollgate.get("/", &[]).status, 429);
    tollgate.write_policy("limiters: {}\n");
    let begun = Instant::now();
    wait_until("the new policy is at work", || tollgate.get("/", &[]).status == 200);
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn a_file_that_is_of_no_use_leaves_everything_as_it_was() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&burst(2), &upstream);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    tollgate.write_policy("limiters: { one: { rate: many } }\n");
    tollgate.says("the one before it goes on");
    assert_eq!(reloads(&tollgate).1, 1);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    assert_eq!(tollgate.get("/", &[]).status, 429);
    let (shown, code) = crate::common::command(&["status", "--admin", &tollgate.admin.to_string()]);
    // It stood below everything else, and was easily missed.
    assert!(shown.starts_with("THE POLICY FILE WAS NOT LOADED"), "{shown}");
    assert!(shown.contains("tollgate.yaml:1:"), "{shown}");
    assert_eq!(code, Some(0));
    let readiness = || tollgate.ask_admin("GET", "/readyz", "").text();
    assert_eq!(readiness(), "ready, degraded: the policy file was not loaded, the one before it goes on\n");
    tollgate.write_policy("limiters: {}\n");
    wait_until("it is mended", || tollgate.get("/", &[]).status == 200);
    assert_eq!(readiness(), "ready\n");
}

#[test]
fn a_signal_loads_the_file_at_once() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&burst(1), &upstream);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    tollgate.write_policy("limiters: {}\n");
    tollgate.signal("HUP");
    tollgate.says("the policy was loaded");
    assert_eq!(tollgate.get("/", &[]).status, 200);
}

#[test]
fn limits_that_stay_as_they_are_keep_what_was_used() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&burst(5), &upstream);
    for _ in 0..3 {
        assert_eq!(tollgate.get("/", &[]).status, 200);
    }
    tollgate
        .write_policy(&burst(5).replace("limiters: {", "limiters: { few: { concurrency: 50, per: global },"));
    wait_until("it is loaded", || reloads(&tollgate).0 > 0);
    assert_eq!([(); 4].map(|()| tollgate.get("/", &[]).status), [200, 200, 429, 429]);
}

#[test]
fn the_next_request_goes_to_the_server_that_the_new_policy_names() {
    let (first, second) = (Upstream::hello(), Upstream::hello());
    let policy =
        |upstream: &Upstream| format!("gateway: {{ upstream: {} }}\nlimiters: {{}}\n", upstream.url());
    let tollgate = Tollgate::start(BINARY, &policy(&first), &[]);
    let mut client = tollgate.client();
    assert_eq!(client.get("/", &[]).status, 200);
    tollgate.write_policy(&policy(&second));
    wait_until("it is loaded", || reloads(&tollgate).0 > 0);
    assert_eq!(client.get("/", &[]).status, 200);
    assert_eq!((first.received().len(), second.received().len()), (1, 1));
}

#[test]
fn another_store_is_refused_and_that_is_told() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&burst(1), &upstream);
    assert_eq!(tollgate.get("/", &[]).status, 200);
    tollgate.write_policy("store: redis://127.0.0.1:1\nlimiters: {}\n");
    tollgate.says("`store` has changed");
    assert_eq!(reloads(&tollgate), (0, 1));
    assert_eq!(tollgate.get("/", &[]).status, 429);
    let status = tollgate.ask_admin("GET", "/api/status", "").text();
    assert!(status.contains("Start again to use another store"), "{status}");
}

#[test]
fn new_timeouts_hold_for_the_next_request() {
    let upstream = Upstream::by_hand(|_, mut client| assert!(client.is_closed(Duration::from_secs(60))));
    let policy = |time: &str| format!("gateway: {{ timeout: {time} }}\nlimiters: {{}}\n");
    let tollgate = gateway(&policy("1h"), &upstream);
    tollgate.write_policy(&policy("200ms"));
    wait_until("it is loaded", || reloads(&tollgate).0 > 0);
    assert_eq!(tollgate.get("/", &[]).status, 504);
}

#[test]
fn the_patience_of_the_end_is_that_of_the_last_policy() {
    let upstream = Upstream::by_hand(|_, mut client| assert!(client.is_closed(Duration::from_secs(60))));
    let policy = |time: &str| format!("gateway: {{ timeouts: {{ drain: {time} }} }}\nlimiters: {{}}\n");
    let mut tollgate = gateway(&policy("1h"), &upstream);
    let _waiting = crate::common::begin(&tollgate, "/", &[]);
    wait_until("the server has it", || upstream.received().len() == 1);
    tollgate.write_policy(&policy("100ms"));
    wait_until("it is loaded", || reloads(&tollgate).0 > 0);
    tollgate.signal("TERM");
    assert!(tollgate.ends(Duration::from_secs(20)));
}

#[test]
fn reloads_under_load_cost_nobody_an_answer() {
    let upstream = Upstream::hello();
    let policy = |number: usize| {
        format!(
            "gateway: {{ timeout: {}s }}\nlimiters: {{ many: {{ rate: {}/s, per: global }} }}\n",
            30 + number,
            100_000 + number
        )
    };
    let tollgate = gateway(&policy(0), &upstream);
    let is_over = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = (0..4)
        .map(|_| {
            let (is_over, to) = (Arc::clone(&is_over), tollgate.gateway);
            std::thread::spawn(move || {
                let mut client = Client::connect(to);
                let mut asked = 0;
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(client.get("/", &[]).text(), "hello");
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    for number in 1..=20 {
        tollgate.write_policy(&policy(number));
        tollgate.signal("HUP");
        wait_until("it is loaded", || reloads(&tollgate).0 >= number as u64);
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(callers.into_iter().all(|caller| caller.join().unwrap() > 0));
    assert_eq!(reloads(&tollgate).1, 0);
}

/// Found by a reader: they went on by the bounds that they had begun with.
#[test]
fn connections_that_were_there_before_have_the_new_bounds() {
    let upstream = Upstream::hello();
    let tollgate = gateway("gateway: { max_head: 64KB }\nlimiters: {}\n", &upstream);
    let (mut asks, mut waits) = (tollgate.client(), tollgate.client());
    let long = "a".repeat(20_000);
    for client in [&mut asks, &mut waits] {
        assert_eq!(client.get("/", &[("x", &long)]).status, 200);
    }
    tollgate.write_policy("gateway: { max_head: 8KB, timeouts: { head: 1s } }\nlimiters: {}\n");
    tollgate.says("the policy was loaded");
    assert_eq!(asks.get("/", &[("x", &long)]).status, 431);
    waits.send("GET / HTTP/1.1\r\n");
    assert!(waits.is_closed(Duration::from_secs(5)), "a head is not waited for so long any more");
}

/// Found by a reader: another access log was not written, and nobody was told.
#[test]
fn another_access_log_is_told_to_need_a_new_start() {
    let upstream = Upstream::hello();
    let tollgate = gateway("gateway: { access_log: one.log }\nlimiters: {}\n", &upstream);
    tollgate.write_policy("gateway: { access_log: other.log }\nlimiters: {}\n");
    tollgate
        .says("`access_log`, `log` or `log_addresses` has changed: logs stay as they are until a restart");
}
