//! What goes through the gateway is what was meant: the limiter and the server see the same caller, a request is made as often
//! as it was asked for, answers have the length that they have, and policies that would pass nothing on are not put to work.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot set itself up fails"
)]

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{BINARY, OPEN};
use tollgate_testkit::http::{Gate, Upstream};
use tollgate_testkit::http2::{Frame, Http2, headers, kind, request};
use tollgate_testkit::{Tollgate, wait_until};

fn gateway(policy: &str, upstream: &Upstream) -> Tollgate {
    Tollgate::start(BINARY, policy, &["--upstream", &upstream.url()])
}

#[test]
fn the_header_that_names_the_caller_cannot_be_read_differently_behind_the_gateway() {
    let upstream = Upstream::hello();
    let policy = "identify: { caller: [header: x-tenant, ip] }\ntrusted_proxies: []\nlimiters: { rate: { rate: 1/h } }";
    let tollgate = gateway(policy, &upstream);
    for name in ["r1", "r2", "r3"] {
        let forged = [("x-tenant", name), ("X_Tenant", "mallory"), ("Connection", "x-tenant")];
        assert_eq!(tollgate.get("/", &forged).status, 200);
        let got = upstream.last();
        assert_eq!(got.header("x-tenant"), [name], "what was charged is what arrives");
        assert!(got.header("x_tenant").is_empty());
    }
}

#[test]
fn a_request_that_its_server_breaks_off_is_made_once_more_and_not_once_for_each_idle_connection() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let upstream = Upstream::start(move |received, stream| match received.path() {
        "/die" => false,
        "/twice" => {
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd";
            stream.write_all(answer).is_ok()
        }
        _ => {
            held.pass();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok()
        }
    });
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream.url(), "--threads", "1"]);
    // Eight connections to the server, all idle afterwards.
    let mut clients: Vec<_> = (0..8).map(|_| tollgate.client()).collect();
    for client in &mut clients {
        client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    wait_until("all of them are there", || upstream.received().len() == 8);
    gate.let_through(8);
    clients.iter_mut().for_each(|client| assert_eq!(client.read().status, 200));
    for (path, most) in [("/die", 2), ("/twice", 1)] {
        assert_eq!(tollgate.get(path, &[]).status, 502);
        let made = upstream.received().iter().filter(|received| received.path() == path).count();
        assert!((1..=most).contains(&made), "{path} was made {made} times");
    }
}

#[test]
fn an_answer_with_a_length_and_chunks_is_as_long_as_its_chunks() {
    let upstream = Upstream::start(|_, stream| {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
        stream.write_all(answer).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let answer = tollgate.get("/", &[]);
    assert!(answer.status == 502 || answer.text() == "hello", "{answer:?}");
}

#[test]
fn a_server_of_http_1_0_does_not_make_the_gateway_one() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        false
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    for _ in 0..3 {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let head = String::from_utf8(client.read_until(b"\r\n\r\n")).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert_eq!(client.read_exactly(5), b"hello");
    }
}

#[test]
fn an_answer_that_nobody_takes_lets_go_of_its_permit_and_leaves_others_on_its_connection_alone() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let upstream = Upstream::start(move |received, stream| match received.path() {
        "/large" => {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 8 << 20);
            stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&vec![b'x'; 8 << 20]).is_ok()
        }
        _ => {
            held.pass();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok()
        }
    });
    let policy = "gateway: { timeouts: { body: 1s } }\nlimiters: { few: { concurrency: 2, per: global } }";
    let tollgate = gateway(policy, &upstream);
    let mut client = Http2::connect(tollgate.gateway);
    assert!(client.send(&headers(1, &request("GET", "/large"), true)));
    wait_until("the large one is being answered", || upstream.received().len() == 1);
    // There is room on the connection, but not for this answer.
    assert!(client.send(&Frame::new(kind::WINDOW_UPDATE, 0, 0, [0, 0x10, 0, 0])));
    assert!(client.send(&headers(3, &request("GET", "/patient"), true)));
    wait_until("the other one waits", || upstream.received().len() == 2);
    tollgate.comes_to("tollgate_requests_in_flight", 1.0);
    gate.let_through(1);
    assert_eq!(client.outcome(3).status(), 200, "on the same connection");
}

#[test]
fn a_log_that_is_rotated_goes_on_in_the_new_file() {
    let upstream = Upstream::hello();
    let tollgate =
        Tollgate::start(BINARY, OPEN, &["--upstream", &upstream.url(), "--access-log", "access.log"]);
    let (log, old) = (tollgate.folder().join("access.log"), tollgate.folder().join("access.log.1"));
    let lines = |file: &std::path::Path| std::fs::read_to_string(file).unwrap_or_default().lines().count();
    tollgate.get("/one", &[]);
    wait_until("the first line is written", || lines(&log) == 1);
    std::fs::rename(&log, &old).unwrap();
    std::fs::write(&log, "").unwrap();
    wait_until("lines go into the new file", || {
        tollgate.get("/two", &[]);
        lines(&log) > 0
    });
}

#[test]
fn a_reload_that_would_pass_nothing_on_is_refused_as_a_start_would_be() {
    let upstream = Upstream::hello();
    let policy = format!("gateway: {{ upstream: '{}' }}\nlimiters: {{}}", upstream.url());
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    tollgate.write_policy("limiters: {}");
    tollgate.says("whom shall requests be passed on to?");
    assert_eq!(tollgate.get("/", &[]).status, 200, "the policy before it goes on");
}

#[test]
fn of_a_bad_policy_the_servers_are_used_and_without_any_it_does_not_start() {
    let upstream = Upstream::hello();
    let policy =
        format!("gateway: {{ upstream: '{}' }}\nlimiters: {{ all: {{ rat: 1/h }} }}", upstream.url());
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    tollgate.says("THE POLICY IS OF NO USE");
    for _ in 0..3 {
        assert_eq!(tollgate.get("/", &[]).status, 200, "everything passes");
    }
    let folder = tollgate.folder().join("none.yaml");
    std::fs::write(&folder, "limiters: {").unwrap();
    let output =
        Command::new(BINARY).args(["run", "--admin", "off", "--policy"]).arg(&folder).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("none.yaml") && said.contains("whom shall requests be passed on to?"), "{said}");
}

#[test]
fn those_who_send_requests_hear_that_it_ends_before_it_does() {
    let upstream = Upstream::hello();
    let policy = "gateway: { timeouts: { notice: 2s } }\nlimiters: {}";
    let mut tollgate = gateway(policy, &upstream);
    tollgate.signal("TERM");
    wait_until("it is not ready any more", || tollgate.ask_admin("GET", "/readyz", "").status == 503);
    assert_eq!(tollgate.get("/", &[]).status, 200, "who has not heard it yet is served");
    assert!(tollgate.ends(Duration::from_secs(20)));
}

#[test]
fn a_target_with_a_fragment_is_none() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("GET /27#frag?x=1 HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.read().status, 400);
    assert!(upstream.received().is_empty());
}

/// Found by measuring: hyper closes a connection whose request was answered before its body had come, and tells nobody. The next
/// request on it, of a load balancer that keeps its connections, was lost.
#[test]
fn a_refused_request_whose_body_comes_later_keeps_its_connection_or_is_told() {
    let upstream = Upstream::hello();
    let policy = "limiters: { rate: { rate: 1/h, per: global, match: [POST *] } }";
    let tollgate = gateway(policy, &upstream);
    assert_eq!(tollgate.client().ask("POST", "/", &[], b"hello").status, 200);
    // In two pieces, whether or not the first has been answered when the second is sent.
    for (head, body) in
        [("content-length: 5", "hello"), ("transfer-encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
    {
        let mut client = tollgate.client();
        for _ in 0..20 {
            client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n"));
            std::thread::yield_now();
            client.send(body);
            let refused = client.read();
            assert_eq!((refused.status, refused.header("connection")), (429, ""));
            assert_eq!(client.get("/", &[]).status, 200, "the connection goes on");
        }
    }
    // Who does not send what it said, or more than anybody would read, or waits to be told, hears that this was the last answer.
    for head in ["content-length: 5", "content-length: 1000000", "content-length: 5\r\nexpect: 100-continue"]
    {
        let mut client = tollgate.client();
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n"));
        let refused = client.read();
        assert_eq!((refused.status, refused.header("connection")), (429, "close"), "{head}");
        assert!(client.is_closed(Duration::from_secs(5)), "{head}");
    }
}
