//! Bodies through the gateway: nothing is held back, nothing is lost, nothing is added.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "the gateway is another process, with a clock of its own")]

use std::io::Write;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{OPEN, begin, gateway, pattern};
use tollgate_testkit::http::{Gate, Received, Upstream};
use tollgate_testkit::{Tollgate, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn an_answer_arrives_piece_by_piece() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::start(move |received, stream| {
        let (head, pieces) = match received.path() {
            "/chunked" => ("transfer-encoding: chunked", ["5\r\nfirst\r\n", "4\r\nlast\r\n0\r\n\r\n"]),
            _ => ("content-length: 9", ["first", "last"]),
        };
        stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{}", pieces[0]).as_bytes()).unwrap();
        held.pass();
        stream.write_all(pieces[1].as_bytes()).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = begin(&tollgate, "/chunked", &[]);
    assert_eq!(client.read_head().header("transfer-encoding"), "chunked");
    assert_eq!(client.read_until(b"first\r\n"), b"5\r\nfirst\r\n");
    gate.let_through(1);
    assert_eq!(client.read_until(b"0\r\n\r\n"), b"4\r\nlast\r\n0\r\n\r\n");

    let mut client = begin(&tollgate, "/sized", &[]);
    assert_eq!(client.read_head().header("content-length"), "9");
    assert_eq!(client.read_exactly(5), b"first");
    gate.let_through(1);
    assert_eq!(client.read_exactly(4), b"last");
}

#[test]
fn a_request_arrives_piece_by_piece() {
    let (arrived, arrives) = channel();
    let upstream = Upstream::by_hand(move |received, mut client| {
        let mut expect = |bytes: &[u8]| {
            let came = client.read_until(bytes);
            arrived.send(String::from_utf8_lossy(&came).into_owned()).unwrap();
        };
        let is_chunked = !received.header("transfer-encoding").is_empty();
        expect(b"first");
        expect(if is_chunked { b"0\r\n\r\n" } else { b"last" });
        client.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n");
    assert_eq!(arrives.recv_timeout(PATIENCE).unwrap(), "5\r\nfirst");
    client.send("4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(arrives.recv_timeout(PATIENCE).unwrap(), "\r\n4\r\nlast\r\n0\r\n\r\n");
    assert_eq!(client.read().status, 200);

    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nfirst");
    assert_eq!(arrives.recv_timeout(PATIENCE).unwrap(), "first");
    client.send("last");
    assert_eq!(arrives.recv_timeout(PATIENCE).unwrap(), "last");
    assert_eq!(client.read().status, 200);
    let lengths: Vec<_> =
        upstream.received().iter().map(|head| head.header("content-length").len()).collect();
    assert_eq!(lengths, [0, 1]);
}

#[test]
fn both_ways_at_once() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        for word in ["one", "two", "three"] {
            client.read_until(format!("{word}\r\n").as_bytes());
            client.send(format!("{:x}\r\n{word}\r\n", word.len()));
        }
        client.read_until(b"0\r\n\r\n");
        client.send("0\r\n\r\n");
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(client.read_head().status, 200);
    for word in ["one", "two", "three"] {
        let chunk = format!("{:x}\r\n{word}\r\n", word.len());
        client.send(&chunk);
        assert_eq!(client.read_until(format!("{word}\r\n").as_bytes()), chunk.as_bytes());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.read_until(b"0\r\n\r\n"), b"0\r\n\r\n");
}

#[test]
fn who_asks_before_sending_a_body_is_told_to_go_on_unless_it_is_refused() {
    let upstream = Upstream::hello();
    let policy = "limiters: { one: { rate: 1/h, per: global } }";
    let tollgate = gateway(policy, &upstream);
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    let mut client = tollgate.client();
    client.send(head);
    assert_eq!(client.read_head().status, 100);
    client.send("body");
    assert_eq!(client.read().status, 200);
    assert_eq!(upstream.last().body, b"body");

    let mut client = tollgate.client();
    client.send(head);
    assert_eq!(client.read_head().status, 429);
    assert_eq!(upstream.received().len(), 1);
}

#[test]
fn trailers_come_through_both_ways() {
    let (arrived, arrives) = channel();
    let upstream = Upstream::by_hand(move |_, mut client| {
        arrived.send(client.read_until(b"\r\n\r\n")).unwrap();
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 7\r\n\r\n");
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: x-sent\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nx-sent: 3\r\n\r\n");
    let answer = client.read();
    assert_eq!((answer.text().as_str(), answer.header("trailer")), ("hello", "x-sum"));
    assert_eq!(answer.trailers, [("x-sum".to_owned(), "7".to_owned())]);
    let body = arrives.recv_timeout(PATIENCE).unwrap();
    assert_eq!(String::from_utf8_lossy(&body), "2\r\nhi\r\n0\r\nx-sent: 3\r\n\r\n");
    assert_eq!(upstream.last().header("te"), ["trailers"]);
    assert_eq!(upstream.last().header("connection"), ["te"]);
}

#[test]
fn answers_without_a_body_have_none_and_the_connection_goes_on() {
    let upstream = Upstream::start(|received, stream| {
        let answer = match (received.line.split(' ').next(), received.path()) {
            (Some("HEAD"), _) => "200 OK\r\ncontent-length: 12345\r\netag: \"1\"",
            (_, "/none") => "204 No Content",
            (_, "/same") => "304 Not Modified\r\netag: \"1\"",
            _ => "200 OK\r\ncontent-length: 0",
        };
        stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    let head = client.ask("HEAD", "/", &[], b"");
    assert_eq!((head.status, head.header("content-length"), head.header("etag")), (200, "12345", "\"1\""));
    let none = client.get("/none", &[]);
    assert_eq!((none.status, none.header("content-length"), none.header("transfer-encoding")), (204, "", ""));
    let same = client.get("/same", &[]);
    assert_eq!((same.status, same.header("etag"), same.header("transfer-encoding")), (304, "\"1\"", ""));
    let empty = client.get("/", &[]);
    assert_eq!((empty.status, empty.header("content-length")), (200, "0"));
    assert_eq!(upstream.connections(), 1);
}

const LARGE: usize = 50 << 20;

#[test]
fn fifty_megabytes_each_way_keep_every_byte() {
    let upstream = Upstream::start(|received: &Received, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", received.body.len());
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&received.body).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let body = pattern(LARGE);
    let mut client = tollgate.client();
    let mut writer = client.stream().try_clone().unwrap();
    let sent = body.clone();
    let sender = std::thread::spawn(move || {
        writer
            .write_all(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGE}\r\n\r\n").as_bytes())
            .unwrap();
        writer.write_all(&sent).unwrap();
    });
    let answer = client.read();
    sender.join().unwrap();
    assert_eq!(answer.status, 200);
    assert!(answer.body == body, "the answer is not what was sent");
    assert!(upstream.last().body == body, "the server got something else");
}

/// Memory that a process has, in bytes.
fn memory(tollgate: &Tollgate) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tollgate.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn a_client_that_does_not_read_fills_no_memory() {
    const MUCH: usize = 400 << 20;
    let (sent, told) = channel();
    let upstream = Upstream::by_hand(move |_, mut client| {
        client.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {MUCH}\r\n\r\n"));
        let stream = client.stream();
        stream.set_nonblocking(true).unwrap();
        // All that the sockets and the gateway take while nobody reads.
        let (mut all, mut idle) = (0, 0);
        wait_until("nothing more is taken", || {
            let before = all;
            while all < MUCH
                && let Ok(some) = stream.write(&[0; 65_536])
            {
                all += some;
            }
            idle = if all == before { idle + 1 } else { 0 };
            idle > 10
        });
        sent.send(all).unwrap();
        assert!(client.is_closed(PATIENCE));
    });
    let tollgate = gateway(OPEN, &upstream);
    let before = memory(&tollgate);
    let _client = begin(&tollgate, "/", &[]);
    let taken = told.recv_timeout(PATIENCE).unwrap();
    let grown = memory(&tollgate).saturating_sub(before);
    assert!(taken < MUCH, "all of it was taken");
    assert!(grown < 16 << 20, "{grown} bytes more, for {taken} that nobody reads");
}

#[test]
fn connections_with_the_server_are_used_again() {
    let upstream = Upstream::hello();
    let tollgate =
        Tollgate::start(crate::common::BINARY, OPEN, &["--upstream", &upstream.url(), "--threads", "1"]);
    let mut client = tollgate.client();
    for _ in 0..200 {
        assert_eq!(client.get("/", &[]).text(), "hello");
    }
    for _ in 0..50 {
        assert_eq!(tollgate.get("/", &[]).text(), "hello");
    }
    let mut posting = tollgate.client();
    for _ in 0..50 {
        assert_eq!(posting.ask("POST", "/", &[], b"body").text(), "hello");
    }
    assert_eq!(upstream.received().len(), 300);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::start(|received, stream| {
        let path = received.path();
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len()).as_bytes())
            .is_ok()
    });
    let tollgate =
        Tollgate::start(crate::common::BINARY, OPEN, &["--upstream", &upstream.url(), "--threads", "1"]);
    let mut client = tollgate.client();
    let requests: String = (0..100)
        .map(|number| match number % 2 {
            0 => format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n"),
            _ => format!("POST /{number} HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc"),
        })
        .collect();
    client.send(requests);
    for number in 0..100 {
        assert_eq!(client.read().text(), format!("/{number}"));
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_slow_upload_is_no_slow_answer() {
    let upstream = Upstream::hello();
    let policy = "gateway: { timeouts: { answer: 1s, body: 10s } }\nlimiters: {}";
    let tollgate = gateway(policy, &upstream);
    let mut client = tollgate.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2000\r\n\r\n");
    assert!(!client.is_closed(Duration::from_millis(1500)));
    client.send("x".repeat(2000));
    assert_eq!(client.read().status, 200);
}

#[test]
fn half_a_request_behind_another_does_not_hold_up_its_answer() {
    let upstream = Upstream::hello();
    let tollgate = gateway("gateway: { timeouts: { head: 10m } }\nlimiters: {}", &upstream);
    let mut client = tollgate.client();
    client.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HT");
    assert_eq!(client.read().text(), "hello");
    client.send("TP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.read().text(), "hello");
    assert_eq!(upstream.last().path(), "/2");
}

#[test]
fn what_is_no_request_is_told_so() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    for bytes in [
        "GARBAGE\r\n\r\n",
        "\0\r\n\r\n",
        "GET / HTTP/1.1\nhost: a\n\n",
        "GET / HTTP/1.1\r\nhost: a\r\n b\r\n\r\n",
    ] {
        let mut client = tollgate.client();
        client.send(bytes);
        assert_eq!(client.read().status, 400, "{bytes:?}");
        assert!(client.is_closed(PATIENCE));
    }
    assert!(upstream.received().is_empty());
}

/// A gateway that waits a second for more of a request, and three for more of an answer.
fn impatient(upstream: &Upstream) -> Tollgate {
    let policy = "gateway: { timeouts: { body: 1s, answer: 3s } }\nlimiters: {}\n";
    gateway(policy, upstream)
}

const CONVERSATION: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n";

/// A client that has nothing to say while it is being told something is not a slow one.
#[test]
fn a_conversation_goes_on_as_long_as_either_side_says_something() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.read_until(b"hello\r\n");
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(500));
            client.send("4\r\nmore\r\n");
        }
        client.read_until(b"0\r\n\r\n");
        client.send("0\r\n\r\n");
    });
    let tollgate = impatient(&upstream);
    let mut client = tollgate.client();
    client.send(CONVERSATION);
    assert_eq!(client.read_head().status, 200);
    for _ in 0..8 {
        client.read_until(b"more\r\n");
    }
    // And the other way round.
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(500));
        client.send("2\r\nhm\r\n");
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.read_until(b"0\r\n\r\n"), b"0\r\n\r\n");
    tollgate.comes_to_rest();
    assert_eq!(tollgate.metric("tollgate_upstream_failures_total"), 0.0);
}

/// If neither does, it ends, and the server is not to blame.
#[test]
fn a_conversation_in_which_nobody_says_anything_ends() {
    let (end, ended) = channel::<()>();
    let ended = std::sync::Mutex::new(ended);
    let upstream = Upstream::by_hand(move |_, mut client| {
        client.read_until(b"hello\r\n");
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        let _ = ended.lock().unwrap().recv_timeout(PATIENCE);
    });
    let tollgate = impatient(&upstream);
    let mut client = tollgate.client();
    client.send(CONVERSATION);
    assert_eq!(client.read_head().status, 200);
    let begun = std::time::Instant::now();
    assert!(client.is_closed(PATIENCE));
    assert!(begun.elapsed() > Duration::from_secs(2), "only after {:?}", begun.elapsed());
    tollgate.comes_to_rest();
    assert_eq!(tollgate.metric("tollgate_upstream_failures_total"), 0.0);
    drop(end);
}
