//! HTTP/1 with clients and servers that have their own ways.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod common;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::time::Duration;

use common::{OPEN, gateway};
use tollgate_testkit::http::Upstream;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn what_is_no_request_is_told_why() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    let many: String = (0..200).map(|number| format!("h{number}: x\r\n")).collect();
    for (text, status, why) in [
        ("GET / HTTP/1.1\nhost: a\n\n", 400, "without CR"),
        ("GET / HTTP/1.1\r\nhost: a\r\n b\r\n\r\n", 400, "a line that goes on"),
        ("GET /#a HTTP/1.1\r\nhost: a\r\n\r\n", 400, "fragment"),
        ("GET / HTTP/3.0\r\nhost: a\r\n\r\n", 400, "version"),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n", 400, "twice"),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n", 400, "digits"),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 400, "`chunked`"),
        (&format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), 431, "too many fields"),
    ] {
        let mut client = tollgate.client();
        client.send(text);
        let answer = client.read();
        assert_eq!((answer.status, answer.header("connection")), (status, "close"), "{text:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{text:?}");
        assert!(answer.text().contains(why), "{text:?}: {}", answer.text());
        assert!(client.is_closed(PATIENCE));
    }
    assert!(upstream.received().is_empty());
}

#[test]
fn a_client_that_goes_on_sending_gets_its_answer_before_the_connection_is_closed() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{OPEN}gateway: {{ max_body: 1KB }}"), &upstream);
    for _ in 0..20 {
        let mut client = tollgate.client();
        client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 500000\r\n\r\n");
        // Nobody reads that, and to close the connection now would take the answer with it.
        let _ = client.stream().write_all(&[b'a'; 400_000]);
        assert_eq!(client.read().status, 413);
        assert!(client.is_closed(PATIENCE));
    }
}

#[test]
fn a_server_that_answers_before_it_has_the_body_costs_the_client_no_connection() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send("HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno");
        while !client.read_some().is_empty() {}
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    for _ in 0..5 {
        client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello");
        let answer = client.read();
        assert_eq!((answer.status, answer.header("connection")), (401, ""));
        client.send("world");
    }
    tollgate.comes_to_rest();
}

#[test]
fn a_connection_that_its_server_has_closed_is_not_kept_open() {
    let (ended, is_ended) = channel();
    let upstream = Upstream::by_hand(move |_, mut client| {
        client.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        client.stream().shutdown(Shutdown::Write).unwrap();
        let _ = ended.send(client.stream().read(&mut [0; 16]).unwrap());
    });
    let tollgate = gateway(OPEN, &upstream);
    assert_eq!(tollgate.get("/x", &[]).text(), "hello");
    assert_eq!(is_ended.recv_timeout(PATIENCE), Ok(0));
}

#[test]
fn clients_of_http_1_0_are_answered_as_they_understand() {
    let upstream = Upstream::start(|received, stream| {
        let answer: &[u8] = match received.path() {
            "/open" => b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        };
        stream.write_all(answer).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    for _ in 0..3 {
        client.send("GET /x HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
        let answer = client.read();
        assert_eq!((answer.text().as_str(), answer.header("connection")), ("hello", "keep-alive"));
    }
    client.send("GET /x HTTP/1.0\r\nhost: a\r\n\r\n");
    assert_eq!(client.read().header("connection"), "close");
    assert!(client.is_closed(PATIENCE));
    // They know of no chunks: the end of the connection is that of the body.
    let mut client = tollgate.client();
    client.send("GET /open HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
    let answer = client.read();
    assert_eq!((answer.text().as_str(), answer.header("transfer-encoding")), ("hello", ""));
    assert_eq!(answer.header("connection"), "close");
}

#[test]
fn half_an_answer_is_not_taken_for_a_whole_one() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n");
        false
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    // To this client the end of the connection is that of the body.
    client.send("GET /x HTTP/1.0\r\nhost: a\r\n\r\n");
    let mut read = Vec::new();
    let error = client.stream().read_to_end(&mut read).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{}", read.escape_ascii());
}

#[test]
fn what_a_server_says_of_its_status_is_passed_on_and_what_it_leaves_out_is_added() {
    let upstream = Upstream::start(|received, stream| {
        let answer: &[u8] = match received.path() {
            "/dated" => {
                b"HTTP/1.1 200 Fine\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\ncontent-length: 0\r\n\r\n"
            }
            _ => b"HTTP/1.1 299 Never heard of\r\ncontent-length: 0\r\n\r\n",
        };
        stream.write_all(answer).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("GET /dated HTTP/1.1\r\nhost: a\r\n\r\nGET /x HTTP/1.1\r\nhost: a\r\n\r\n");
    let dated = String::from_utf8(client.read_until(b"\r\n\r\n")).unwrap();
    assert!(dated.starts_with("HTTP/1.1 200 Fine\r\n"), "{dated}");
    assert_eq!(dated.matches("date: ").count(), 1, "{dated}");
    let other = String::from_utf8(client.read_until(b"\r\n\r\n")).unwrap();
    assert!(other.starts_with("HTTP/1.1 299 Never heard of\r\n"), "{other}");
    assert!(other.contains(" GMT\r\n"), "{other}");
}

#[test]
fn methods_that_have_a_body_say_that_there_is_none() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    for (method, length) in [("POST", vec!["0"]), ("PUT", vec!["0"]), ("GET", vec![]), ("DELETE", vec![])] {
        client.send(format!("{method} /x HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(client.read().status, 200);
        assert_eq!(upstream.last().header("content-length"), length, "{method}");
        assert!(upstream.last().header("transfer-encoding").is_empty());
    }
}
