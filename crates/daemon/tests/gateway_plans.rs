//! The four limiters of the demonstration's policy, through the gateway: who gets how much, and who goes first when there is
//! too much of it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::common::{BINARY, begin, gateway};
use serde_json::Value;
use tollgate_testkit::http::{Client, Gate, Upstream};
use tollgate_testkit::{Tollgate, wait_until};

const DEMO: &str = include_str!("../../../examples/demo.yaml");

/// How many of so many requests pass that are sent in one go, and how long that took.
fn burst(tollgate: &Tollgate, key: &str, count: usize) -> (usize, f64) {
    let mut client = tollgate.client();
    let begun = Instant::now();
    let request = format!("GET /v1/charges HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n");
    let mut writer = client.stream().try_clone().unwrap();
    let sender = std::thread::spawn(move || writer.write_all(request.repeat(count).as_bytes()).unwrap());
    let statuses: Vec<u16> = (0..count).map(|_| client.read().status).collect();
    sender.join().unwrap();
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), count - passed, "{statuses:?}");
    (passed, begun.elapsed().as_secs_f64())
}

#[test]
fn each_plan_gets_its_rate_and_no_more() {
    let upstream = Upstream::hello();
    let tollgate = gateway(DEMO, &upstream);
    for (key, rate, sent) in [("sk_1", 50, 200), ("std_1", 500, 900), ("pro_1", 1000, 1800)] {
        let (passed, seconds) = burst(&tollgate, key, sent);
        let most = rate + (rate as f64 * seconds).ceil() as usize;
        assert!((rate..=most.min(sent)).contains(&passed), "{key}: {passed} of {sent} in {seconds} s");
    }
    // Another caller of the same plan has a rate of its own.
    let (passed, _) = burst(&tollgate, "sk_2", 40);
    assert_eq!(passed, 40);
    let refused = burst(&tollgate, "sk_2", 60);
    assert!(refused.0 < 60);
}

/// So many slow requests of a caller, all of them with the server.
fn occupy(tollgate: &Tollgate, upstream: &Upstream, key: &str, count: usize) -> Vec<Client> {
    let before = upstream.received().len();
    let clients = (0..count).map(|_| begin(tollgate, "/slow", &[("x-api-key", key)])).collect();
    wait_until("the server has all of them", || upstream.received().len() == before + count);
    clients
}

#[test]
fn the_twenty_first_at_once_is_refused_and_a_slot_comes_back_when_one_ends() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let tollgate = gateway(DEMO, &upstream);
    let key = [("x-api-key", "std_1")];
    let mut busy = occupy(&tollgate, &upstream, "std_1", 20);
    let refused = tollgate.get("/slow", &key);
    assert_eq!(refused.status, 429);
    assert!(refused.text().contains("\"concurrent-requests\""), "{}", refused.text());
    gate.let_through(1);
    wait_until("one of them has its answer", || {
        busy.iter_mut().any(|client| {
            client.stream().set_nonblocking(true).unwrap();
            client.stream().peek(&mut [0]).is_ok()
        })
    });
    let mut next = begin(&tollgate, "/slow", &key);
    wait_until("the next is with the server", || upstream.received().len() == 21);
    assert_eq!(tollgate.get("/slow", &key).status, 429);
    gate.let_through(20);
    assert_eq!(next.read().status, 200);
}

#[test]
fn a_client_that_goes_away_gives_its_slot_back() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let policy = "limiters: { few: { concurrency: 1, per: global } }";
    let tollgate = gateway(policy, &upstream);
    let gone = begin(&tollgate, "/slow", &[]);
    wait_until("the server has it", || upstream.received().len() == 1);
    assert_eq!(tollgate.get("/", &[]).status, 429);
    drop(gone);
    gate.let_through(100);
    wait_until("the slot is free", || tollgate.get("/", &[]).status == 200);
}

#[test]
fn a_slot_is_taken_until_the_last_byte_of_the_answer() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::start(move |received, stream| {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst";
        if received.path() == "/streamed" {
            stream.write_all(whole).unwrap();
            held.pass();
            return stream.write_all(b" last").is_ok();
        }
        stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").is_ok()
    });
    let tollgate = gateway("limiters: { few: { concurrency: 1, per: global } }", &upstream);
    let mut client = begin(&tollgate, "/streamed", &[]);
    assert_eq!(client.read_head().status, 200);
    assert_eq!(client.read_exactly(5), b"first");
    assert_eq!(tollgate.get("/", &[]).status, 429);
    gate.let_through(1);
    assert_eq!(client.read_exactly(5), b" last");
    wait_until("the slot is free", || tollgate.get("/", &[]).status == 204);
}

#[test]
fn what_is_kept_for_critical_requests_is_not_for_others() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::start(move |received, stream| {
        if received.path() == "/slow" {
            held.pass();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let tollgate = gateway(DEMO, &upstream);
    let busy: Vec<Client> = ["pro_1", "pro_2", "pro_3", "pro_4"]
        .iter()
        .flat_map(|key| occupy(&tollgate, &upstream, key, 20))
        .collect();
    assert_eq!(busy.len(), 80);
    let refused = tollgate.get("/v1/charges", &[("x-api-key", "pro_5")]);
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("\"fleet-usage\""), "{}", refused.text());
    let critical = || tollgate.client().ask("POST", "/v1/charges", &[("x-api-key", "pro_5")], b"{}").status;
    assert_eq!(critical(), 200);
    gate.let_through(1);
    wait_until("others pass again", || tollgate.get("/v1/charges", &[("x-api-key", "pro_5")]).status == 200);
    gate.let_through(79);
}

/// Classes as in the demonstration, and one shedder.
fn shedding(source: &str) -> String {
    let classes: String = DEMO
        .lines()
        .skip_while(|line| !line.starts_with("classes:"))
        .take(5)
        .fold(String::new(), |text, line| text + line + "\n");
    format!(
        "{classes}limiters:\n  overload: {{ workers: {{ good: 50%, bad: 60%, grace: 200ms, full: 900ms, every: 100ms, source: {source} }} }}\n"
    )
}

/// The share of each class that is shed, in percent.
fn shed(tollgate: &Tollgate) -> [f64; 4] {
    let status: Value = serde_json::from_slice(&tollgate.ask_admin("GET", "/api/status", "").body).unwrap();
    ["test", "get", "post", "critical"].map(|class| {
        let shares = &status["limiters"][0]["shed_percent"];
        shares[class].as_f64().unwrap_or(0.0)
    })
}

/// The answers to one request of each class.
fn asked(tollgate: &Tollgate) -> [u16; 4] {
    let mut client = tollgate.client();
    let mut ask =
        |method: &str, path: &str, headers: &[(&str, &str)]| client.ask(method, path, headers, b"").status;
    [
        ask("GET", "/", &[("x-api-key", "sk_test_1")]),
        ask("GET", "/", &[]),
        ask("POST", "/", &[]),
        ask("POST", "/v1/charges", &[]),
    ]
}

/// Classes go in their order, and what is critical never does.
fn assert_order([test, get, post, critical]: [f64; 4]) {
    assert!(get == 0.0 || test == 100.0, "test {test} %, get {get} %");
    assert!(post == 0.0 || get == 100.0, "get {get} %, post {post} %");
    assert_eq!(critical, 0.0);
}

#[test]
fn a_service_that_tells_its_load_sheds_class_by_class_and_recovers() {
    let load = Arc::new(AtomicU64::new(10));
    let told = Arc::clone(&load);
    let upstream = Upstream::start(move |_, stream| {
        let load = told.load(Ordering::SeqCst);
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\nx-load: {load}%\r\ncontent-length: 0\r\n\r\n").as_bytes())
            .is_ok()
    });
    let tollgate = gateway(&shedding("{ response_header: x-load }"), &upstream);
    assert_eq!(asked(&tollgate), [200; 4]);
    load.store(100, Ordering::SeqCst);
    let mut seen = Vec::new();
    wait_until("everything is shed but what is critical", || {
        assert_eq!(asked(&tollgate)[3], 200);
        let shares = shed(&tollgate);
        assert_order(shares);
        seen.push(shares);
        shares[2] == 100.0
    });
    assert_eq!(asked(&tollgate), [503, 503, 503, 200]);
    assert!(seen.iter().any(|[test, get, ..]| *test > 0.0 && *get < 100.0), "all at once: {seen:?}");
    load.store(10, Ordering::SeqCst);
    wait_until("nothing is shed any more", || {
        assert_eq!(asked(&tollgate)[3], 200);
        assert_order(shed(&tollgate));
        shed(&tollgate) == [0.0; 4]
    });
    assert_eq!(asked(&tollgate), [200; 4]);
}

#[test]
fn a_service_that_tells_its_load_in_words_that_nobody_knows_is_told_of_once() {
    let upstream = Upstream::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nx-load: 83\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let tollgate = gateway(&shedding("{ response_header: x-load }"), &upstream);
    assert_eq!(asked(&tollgate), [200; 4]);
    tollgate.says("nothing is shed for it: \"83\" is ambiguous: without a percent sign it is a ratio");
    assert_eq!(asked(&tollgate), [200; 4]);
    assert_eq!(tollgate.said().iter().filter(|line| line.contains("reports no utilization")).count(), 1);
}

#[test]
fn busy_upstreams_shed_class_by_class_and_recover() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::start(move |received, stream| {
        if received.line.starts_with("POST /v1/charges?slow") {
            held.pass();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let policy = format!(
        "gateway: {{ upstreams: {{ api: {{ servers: [{}], workers: 4 }} }} }}\n{}",
        upstream.url(),
        shedding("upstreams")
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    assert_eq!(asked(&tollgate), [200; 4]);
    let mut busy: Vec<Client> = (0..4)
        .map(|_| {
            let mut client = tollgate.client();
            client.send("POST /v1/charges?slow HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
            client
        })
        .collect();
    wait_until("everything is shed but what is critical", || {
        let shares = shed(&tollgate);
        assert_order(shares);
        shares[2] == 100.0
    });
    assert_eq!(asked(&tollgate), [503, 503, 503, 200]);
    gate.let_through(4);
    assert!(busy.iter_mut().all(|client| client.read().status == 200));
    wait_until("nothing is shed any more", || shed(&tollgate) == [0.0; 4]);
    assert_eq!(asked(&tollgate), [200; 4]);
}

#[test]
fn a_load_that_nobody_asks_for_is_told_so() {
    let upstream = Upstream::hello();
    for policy in ["limiters: {}\n".to_owned(), shedding("cpu")] {
        let answer = gateway(&policy, &upstream).ask_admin("POST", "/api/utilization", "{\"percent\": 85}");
        assert_eq!(answer.status, 409, "{policy}");
        assert!(answer.text().contains("source: reported"));
    }
}

/// `{"percent": 0.85}` meant 0.85 %, and `0.85` in a header 85 %.
#[test]
fn an_ambiguous_utilization_is_rejected_with_a_hint() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&shedding("reported"), &upstream);
    let report = |body: &str| tollgate.ask_admin("POST", "/api/utilization", body);
    for (body, percent) in [
        ("{\"percent\": 85}", 85.0),
        ("{\"ratio\": 0.85}", 85.0),
        ("{\"percent\": 0}", 0.0),
        ("{\"percent\": 1}", 1.0),
    ] {
        let answer = report(body);
        let told: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!((answer.status, told["percent"].as_f64()), (200, Some(percent)), "{body}");
    }
    for (body, hint) in [
        ("{\"percent\": 0.85}", "write 85% for 85 percent, or 0.85 as a ratio"),
        ("{\"ratio\": 85}", "Write 85% for a percentage"),
        ("{\"percent\": 1001}", "the most is 1000%"),
        ("{\"percent\": -1}", "is not a utilization"),
        ("{\"percent\": \"85\"}", "send {\\\"percent\\\": 85} or"),
        ("{\"percent\": 85, \"ratio\": 0.85}", "and not both"),
    ] {
        let answer = report(body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.text().contains(hint), "{body}: {}", answer.text());
    }
}
