//! nginx behind the gateway: a server that was not written to suit it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]

use std::collections::HashSet;
use std::fs;

use crate::common::{BINARY, OPEN};
use tollgate_testkit::http2::{Http2, Outcome};
use tollgate_testkit::{Nginx, Tollgate, wait_until};

fn in_front_of(nginx: &Nginx) -> Tollgate {
    Tollgate::start(BINARY, OPEN, &["--upstream", &nginx.url()])
}

/// Bytes that do not repeat soon, so that a piece in a wrong place is seen.
fn large() -> Vec<u8> {
    (0..20_000_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

#[test]
fn a_file_comes_whole_in_part_or_not_at_all_as_it_is_asked_for() {
    let nginx = Nginx::start();
    let tollgate = in_front_of(&nginx);
    fs::write(nginx.files().join("numbers"), "0123456789").unwrap();
    let mut client = tollgate.client();
    let whole = client.get("/numbers", &[]);
    assert_eq!((whole.status, whole.text().as_str()), (200, "0123456789"));
    let tag = whole.header("etag").to_owned();
    assert!(!tag.is_empty() && whole.header("accept-ranges") == "bytes", "{whole:?}");

    let same = client.get("/numbers", &[("if-none-match", &tag)]);
    assert_eq!((same.status, same.header("etag"), same.body.len()), (304, tag.as_str(), 0));
    let part = client.get("/numbers", &[("range", "bytes=2-5")]);
    assert_eq!(
        (part.status, part.text().as_str(), part.header("content-range")),
        (206, "2345", "bytes 2-5/10")
    );
    let beyond = client.get("/numbers", &[("range", "bytes=20-30")]);
    assert_eq!((beyond.status, beyond.header("content-range")), (416, "bytes */10"));
    // All on one connection: a body where there should be none would be the beginning of the next answer.
    let head = client.ask("HEAD", "/numbers", &[], b"");
    assert_eq!((head.status, head.header("content-length"), head.body.len()), (200, "10", 0));
    let none = client.get("/nothing", &[]);
    assert_eq!((none.status, none.text().contains("nginx")), (404, true));
    tollgate.comes_to_rest();
}

#[test]
fn large_bodies_stream_both_ways_with_a_length_and_without() {
    let nginx = Nginx::start();
    let tollgate = in_front_of(&nginx);
    let body = large();
    assert_eq!(tollgate.client().ask("PUT", "/by-length", &[], &body).status, 201);
    assert!(fs::read(nginx.files().join("by-length")).unwrap() == body);

    let mut client = tollgate.client();
    client.send("PUT /in-chunks HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    for chunk in body.chunks(100_000) {
        client.send(format!("{:x}\r\n", chunk.len()));
        client.send(chunk);
        client.send("\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.read().status, 201);
    assert!(fs::read(nginx.files().join("in-chunks")).unwrap() == body);

    assert!(client.get("/by-length", &[]).body == body);
    let chunked = client.get("/chunked/in-chunks", &[]);
    assert_eq!((chunked.status, chunked.header("transfer-encoding")), (200, "chunked"));
    assert!(chunked.body == body);
    match Http2::connect(tollgate.gateway).get(1, "/by-length") {
        Outcome::Answer { status, body: over_http2 } => assert!(status == 200 && over_http2 == body),
        other => assert_eq!(other.status(), 200),
    }
    tollgate.comes_to_rest();
}

#[test]
fn connections_are_kept_also_behind_answers_without_a_body_or_a_length() {
    let nginx = Nginx::start();
    fs::write(nginx.files().join("numbers"), "0123456789").unwrap();
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &nginx.url(), "--threads", "1"]);
    let mut connections = HashSet::new();
    for _ in 0..20 {
        // Clients come and go; the connection behind them stays.
        let mut client = tollgate.client();
        connections.insert(client.get("/numbers", &[]).header("x-connection").to_owned());
        assert_eq!(client.get("/chunked/numbers", &[]).text(), "0123456789");
        connections.insert(client.ask("HEAD", "/numbers", &[], b"").header("x-connection").to_owned());
        connections.insert(client.ask("POST", "/hello", &[], b"hi").header("x-connection").to_owned());
        let since = [("if-modified-since", "Fri, 31 Dec 2100 00:00:00 GMT")];
        assert_eq!(client.get("/chunked/numbers", &since).body.len(), 10);
    }
    assert_eq!(connections.len(), 1, "{connections:?}");
}

#[test]
fn a_trailer_that_was_announced_is_kept_for_those_who_take_trailers() {
    let nginx = Nginx::start();
    fs::write(nginx.files().join("numbers"), "0123456789").unwrap();
    let tollgate = in_front_of(&nginx);
    let mut client = tollgate.client();
    let with = client.get("/chunked/numbers", &[("te", "trailers")]);
    assert_eq!(with.text(), "0123456789");
    assert_eq!(with.trailers, [("x-sum".to_owned(), "42".to_owned())]);
    let without = client.get("/chunked/numbers", &[]);
    assert_eq!((without.text().as_str(), without.trailers.len()), ("0123456789", 0));
}

#[test]
fn who_waits_to_be_told_to_go_on_is_told_by_the_gateway() {
    let nginx = Nginx::start();
    let tollgate = in_front_of(&nginx);
    let mut client = tollgate.client();
    client.send("PUT /late HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n");
    assert_eq!(client.read_until(b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n");
    client.send("hello");
    let answer = client.read();
    assert_eq!((answer.status, answer.header("x-expect")), (201, ""));
    assert_eq!(fs::read(nginx.files().join("late")).unwrap(), b"hello");
    assert_eq!(client.get("/late", &[]).text(), "hello");
}

#[test]
fn a_server_that_is_killed_is_missed_and_used_again_when_it_is_back() {
    let mut nginx = Nginx::start();
    let tollgate = in_front_of(&nginx);
    let mut client = tollgate.client();
    assert_eq!(client.get("/hello", &[]).text(), "hello");
    nginx.kill();
    let missed = client.get("/hello", &[]);
    assert_eq!((missed.status, missed.header("content-type")), (502, "application/problem+json"));
    assert_eq!(client.ask("POST", "/hello", &[], b"hi").status, 502);
    nginx.restart();
    wait_until("it is used again", || client.get("/hello", &[]).text() == "hello");
    assert_eq!(client.ask("POST", "/hello", &[], b"hi").status, 200);
    tollgate.comes_to_rest();
}
