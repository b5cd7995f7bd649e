//! What is forwarded to servers, and what is added to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::io::Write;

use crate::common::{OPEN, gateway};
use tollgate_testkit::http::{Gate, Upstream};
use tollgate_testkit::http2::{Http2, request};

#[test]
fn trace_is_rejected_unless_the_policy_allows_it() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    let answer = tollgate.client().ask("TRACE", "/", &[("cookie", "secret")], b"");
    assert_eq!((answer.status, answer.header("content-type")), (405, "application/problem+json"));
    assert_eq!(answer.header("allow"), "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    assert!(answer.text().contains("does not forward TRACE"), "{}", answer.text());
    let mut http2 = Http2::connect(tollgate.gateway);
    http2.ask(1, &request("TRACE", "/"), true);
    assert_eq!(http2.outcome(1).status(), 405);
    assert!(upstream.received().is_empty());
    let tollgate = gateway("gateway: { allow_trace: yes }\nlimiters: {}\n", &upstream);
    assert_eq!(tollgate.client().ask("TRACE", "/", &[], b"").status, 200);
    assert_eq!(upstream.last().line, "TRACE / HTTP/1.1");
}

/// With 95 headers from the client, five of ours made 100, which some servers answer with 431.
#[test]
fn a_request_with_95_headers_stays_below_100() {
    // As http.server of Python, Apache and gunicorn do it.
    let upstream = Upstream::start(|received, stream| {
        let status = if received.headers.len() >= 100 { "431 Too Many" } else { "200 OK" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let names: Vec<String> = (0..94).map(|number| format!("x-own-{number}")).collect();
    let headers: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(tollgate.get("/", &headers).status, 200);
    assert_eq!(upstream.last().headers.len(), 95 + 3);
}

/// A server that sends hints, and its answer when it may.
fn hinting(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::start(move |_, stream| {
        let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a.css>; rel=preload\r\nratelimit: \"forged\"\r\n\
                     connection: x-hop\r\nx-hop: 1\r\n\r\nHTTP/1.1 199 Mine\r\nx-more: 2\r\n\r\n";
        let continues = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n";
        stream.write_all([hints, continues].concat().as_bytes()).unwrap();
        gate.pass();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok()
    })
}

#[test]
fn early_hints_are_forwarded_before_the_answer() {
    let gate = Gate::default();
    let tollgate = gateway(OPEN, &hinting(&gate));
    let mut client = tollgate.client();
    for _ in 0..2 {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let hints = client.read_head();
        assert_eq!((hints.status, hints.header("link")), (103, "</a.css>; rel=preload"));
        assert_eq!(hints.headers.len(), 1, "nothing of ours, and nothing that was for us: {hints:?}");
        let more = client.read_head();
        assert_eq!((more.status, more.header("x-more")), (199, "2"));
        assert_eq!(client.read_head().status, 102, "100 is ours to say");
        gate.let_through(1);
        let answer = client.read();
        assert_eq!((answer.status, answer.text().as_str()), (200, "hello"));
    }
    // All in one piece.
    gate.let_through(1);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!([(); 3].map(|()| client.read_head().status), [103, 199, 102]);
    assert_eq!(client.read().text(), "hello");
    tollgate.comes_to_rest();
}

#[test]
fn clients_that_do_not_know_early_hints_get_none() {
    let gate = Gate::default();
    let tollgate = gateway(OPEN, &hinting(&gate));
    gate.let_through(2);
    let mut client = tollgate.client();
    client.send("GET / HTTP/1.0\r\nhost: a\r\n\r\n");
    assert_eq!(client.read().text(), "hello");
    let mut http2 = Http2::connect(tollgate.gateway);
    http2.ask(1, &request("GET", "/"), true);
    assert_eq!(http2.outcome(1).status(), 200);
}
