//! What is forwarded to servers, and what is added to it.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::io::Write;

use crate::common::{OPEN, gateway};
use tollgate_testkit::http::Upstream;
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
