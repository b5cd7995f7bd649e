//! Clients that mean harm, over HTTP/2: frames that no client would send, and far too many of them. Whatever comes, others
//! go on, permits come back, and memory does not grow.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests on real sockets, which live in real time"
)]

use std::io::Write;
use std::time::Duration;

use tollgate_testkit::Tollgate;
use tollgate_testkit::http::{Received, Upstream};
use tollgate_testkit::http2::{Frame, Http2, Outcome, block, flag, headers, kind, request};

const BINARY: &str = env!("CARGO_BIN_EXE_tollgate");

/// Few requests at a time: permits that do not come back are seen by whoever is next.
const FEW: &str = "trusted_proxies: []\nlimiters: { few: { concurrency: 2, per: global } }\n";

/// What an attack may cost, in bytes.
const LITTLE: u64 = 48 << 20;

/// Closed within so long, which is far more than it has to be.
const SOON: Duration = Duration::from_secs(15);

fn gateway(policy: &str, upstream: &Upstream) -> Tollgate {
    Tollgate::start(BINARY, policy, &["--upstream", &upstream.url()])
}

/// Runs an attack, and looks at what became of everybody else: one that was there before it, and one that comes after it.
fn survives(attack: impl FnOnce(&Tollgate, &Upstream)) {
    let upstream = Upstream::hello();
    let tollgate = gateway(FEW, &upstream);
    let mut other = Http2::connect(tollgate.gateway);
    assert_eq!(other.get(1, "/before").status(), 200);
    let memory = tollgate.memory();
    attack(&tollgate, &upstream);
    tollgate.comes_to_rest();
    let grown = tollgate.memory().saturating_sub(memory);
    assert!(grown < LITTLE, "it has {grown} bytes more");
    assert_eq!(other.get(3, "/during").status(), 200);
    assert_eq!(tollgate.get("/after", &[]).status, 200);
    tollgate.comes_to_rest();
}

/// The frame that ends a stream.
fn reset(stream: u32) -> Frame {
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    Frame::new(kind::RST_STREAM, 0, stream, CANCEL)
}

/// Who is closed while it still sends may not hear why; and of several reasons any may be told.
fn assert_closed_as_too_much(client: &mut Http2) {
    const PROTOCOL_ERROR: u32 = 1;
    const STREAM_CLOSED: u32 = 5;
    const ENHANCE_YOUR_CALM: u32 = 11;
    let closed = client.closes(SOON).expect("the connection goes on");
    assert!(matches!(closed, None | Some(PROTOCOL_ERROR | STREAM_CLOSED | ENHANCE_YOUR_CALM)), "{closed:?}");
}

/// The streams of a client, from the first.
fn streams() -> impl Iterator<Item = u32> {
    (0..).map(|number| number * 2 + 1)
}

#[test]
fn streams_that_are_begun_and_reset_by_the_thousand_end_the_connection() {
    survives(|tollgate, _| {
        let mut client = Http2::connect(tollgate.gateway);
        let flood: Vec<u8> = streams()
            .take(2000)
            .flat_map(|stream| {
                [headers(stream, &request("GET", "/x"), true).bytes(), reset(stream).bytes()].concat()
            })
            .collect();
        client.send_bytes(&flood);
        assert_closed_as_too_much(&mut client);
    });
}

#[test]
fn streams_that_the_server_is_made_to_reset_end_the_connection() {
    survives(|tollgate, _| {
        // Each frame is an error of its stream, which the server has to end.
        type Wrong = fn(u32) -> Frame;
        let ways: [Wrong; 3] = [
            |stream| Frame::new(kind::WINDOW_UPDATE, 0, stream, [0; 4]),
            |stream| Frame::new(kind::DATA, 0, stream, [0; 10]),
            |stream| Frame::new(kind::WINDOW_UPDATE, 0, stream, [0x7f, 0xff, 0xff, 0xff]),
        ];
        for way in ways {
            let mut client = Http2::connect(tollgate.gateway);
            let flood: Vec<u8> = streams()
                .take(3000)
                .flat_map(|stream| {
                    [headers(stream, &request("GET", "/x"), true).bytes(), way(stream).bytes()].concat()
                })
                .collect();
            client.send_bytes(&flood);
            assert_closed_as_too_much(&mut client);
        }
    });
}

#[test]
fn a_head_without_end_is_not_kept() {
    survives(|tollgate, upstream| {
        for fields in [block(&[("x", &"a".repeat(16_000))]), Vec::new(), vec![0x82; 16_000]] {
            let mut client = Http2::connect(tollgate.gateway);
            let begin = Frame::new(kind::HEADERS, 0, 1, block(&request("GET", "/x")));
            client.send(&begin);
            let more = Frame::new(kind::CONTINUATION, 0, 1, fields).bytes().repeat(16);
            let mut sent = 0;
            while sent < 64 << 20 && client.send_bytes(&more) {
                sent += more.len();
            }
            // Frames of nothing are few bytes: whoever sends them is closed for their number.
            assert!(sent < 64 << 20, "all was taken");
            assert!(client.closes(SOON).is_some(), "the connection goes on");
        }
        assert!(upstream.received().iter().all(|received| received.path() != "/x"));
    });
}

#[test]
fn floods_of_frames_that_cost_their_sender_nothing_cost_us_no_memory() {
    survives(|tollgate, _| {
        let ping = Frame::new(kind::PING, 0, 0, [0; 8]);
        let settings = Frame::new(kind::SETTINGS, 0, 0, [0, 4, 0, 1, 0, 0]);
        let empty = Frame::new(kind::DATA, 0, 1, []);
        let window = Frame::new(kind::WINDOW_UPDATE, 0, 0, [0, 0, 0, 1]);
        let priority = Frame::new(2, 0, 1, [0, 0, 0, 0, 7]);
        let unknown = Frame::new(0xbb, 0, 0, [0; 100]);
        for frame in [ping, settings, empty, window, priority, unknown] {
            let mut client = Http2::connect(tollgate.gateway);
            client.ask(1, &request("POST", "/x"), false);
            let some = frame.bytes().repeat(1000);
            // Nobody reads what is answered: the gateway must not keep it.
            client.stream().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            for _ in 0..200 {
                if !client.send_bytes(&some) {
                    break;
                }
            }
            drop(client);
            tollgate.comes_to_rest();
        }
    });
}

#[test]
fn frames_that_ask_for_nothing_by_the_thousand_end_the_connection() {
    survives(|tollgate, _| {
        let ping = Frame::new(kind::PING, 0, 0, [0; 8]);
        let settings = Frame::new(kind::SETTINGS, 0, 0, [0, 4, 0, 1, 0, 0]);
        let priority = Frame::new(2, 0, 1, [0, 0, 0, 0, 7]);
        for frame in [ping, settings, priority] {
            let mut client = Http2::connect(tollgate.gateway);
            // As many as a lively client may send.
            client.send_bytes(&frame.bytes().repeat(1000));
            assert_eq!(client.get(1, "/x").status(), 200);
            let mut sender = client.stream().try_clone().unwrap();
            let flood = frame.bytes().repeat(20_000);
            let sending = std::thread::spawn(move || std::io::Write::write_all(&mut sender, &flood));
            assert!(client.closes(SOON).is_some(), "{frame:?}");
            let _ = sending.join();
        }
    });
}

#[test]
fn a_length_that_is_said_twice_is_none_even_if_it_is_the_same() {
    survives(|tollgate, upstream| {
        let before = upstream.received().len();
        let mut client = Http2::connect(tollgate.gateway);
        let twice = [request("POST", "/x"), vec![("content-length", "3"), ("content-length", "3")]].concat();
        client.ask(1, &twice, false);
        client.send(&Frame::new(kind::DATA, flag::END_STREAM, 1, *b"abc"));
        assert_eq!(client.outcome(1).status(), 400);
        assert_eq!(upstream.received().len(), before);
    });
}

#[test]
fn heads_that_are_no_http_end_their_stream_and_never_reach_the_server() {
    survives(|tollgate, upstream| {
        let mut fields: Vec<(&str, Vec<(&str, &str)>)> = Vec::new();
        for (what, field) in [
            ("an upper-case name", ("X-Mine", "1")),
            ("connection", ("connection", "close")),
            ("keep-alive", ("keep-alive", "1")),
            ("proxy-connection", ("proxy-connection", "close")),
            ("upgrade", ("upgrade", "websocket")),
            ("transfer-encoding", ("transfer-encoding", "chunked")),
            ("te", ("te", "gzip")),
            ("a line end in a value", ("x", "a\r\nx-injected: 1")),
            ("NUL in a value", ("x", "a\0b")),
            ("a line end in a name", ("x\r\ny", "1")),
            ("a colon in a name", ("x:y", "1")),
            ("a space in a name", ("x ", "1")),
            ("no name", ("", "1")),
            ("another host", ("host", "other")),
            ("another port", ("host", "test:443")),
            ("an empty host", ("host", "")),
            ("a second pseudo-header", (":path", "/other")),
            ("an unknown pseudo-header", (":unknown", "1")),
            ("an answer's pseudo-header", (":status", "200")),
            ("a body that is missing", ("content-length", "5")),
            ("two lengths", ("content-length", "0, 0")),
        ] {
            fields.push((what, [request("GET", "/bad"), vec![field]].concat()));
        }
        let without = |name| request("GET", "/bad").into_iter().filter(|(known, _)| *known != name).collect();
        for name in [":method", ":scheme", ":path", ":authority"] {
            fields.push((name, without(name)));
        }
        let with = |name: &'static str, value: &'static str| {
            request("GET", "/bad")
                .into_iter()
                .map(|(known, old)| (known, if known == name { value } else { old }))
                .collect()
        };
        fields.push(("a line end in the path", with(":path", "/bad HTTP/1.1\r\nx: y")));
        fields.push(("a space in the path", with(":path", "/bad bad")));
        fields.push(("no slash before the path", with(":path", "bad")));
        fields.push(("an empty path", with(":path", "")));
        fields.push(("a line end in the host", with(":authority", "a\r\nx: y")));
        fields.push(("a scheme that is none of ours", with(":scheme", "ftp")));
        fields.push(("an empty host in the target", with(":authority", "")));
        fields.push(("a user before the host", with(":authority", "user@test")));
        fields.push(("a path behind the host", with(":authority", "test/bad")));
        fields.push(("a method of two words", with(":method", "GET /x")));
        fields.push(("a tunnel", with(":method", "CONNECT")));
        fields.push(("pseudo-headers last", {
            let mut fields = request("GET", "/bad");
            fields.insert(1, ("x", "1"));
            fields
        }));
        for (what, fields) in fields {
            let mut client = Http2::connect(tollgate.gateway);
            client.ask(1, &fields, true);
            let outcome = client.outcome(1);
            let is_refused = match outcome {
                Outcome::Answer { status, .. } => matches!(status, 400 | 405),
                Outcome::Reset(_) | Outcome::Closed(_) => true,
            };
            assert!(is_refused, "{what}: {outcome:?}");
        }
        let received = upstream.received();
        let bad = received.iter().find(|received| received.line.contains("bad"));
        assert!(bad.is_none(), "{bad:?}");
    });
}

#[test]
fn the_usual_port_in_only_one_of_target_and_host_is_the_same_host() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: []\nlimiters: {}\n", &upstream);
    for host in ["test", "TEST", "test:80", "test:"] {
        let mut client = Http2::connect(tollgate.gateway);
        client.ask(1, &[request("GET", "/x"), vec![("host", host)]].concat(), true);
        assert_eq!(client.outcome(1).status(), 200, "{host}");
    }
}

#[test]
fn a_body_of_another_length_than_announced_never_reaches_the_server_whole() {
    survives(|tollgate, upstream| {
        for (announced, sent) in [("5", 3), ("5", 7), ("0", 1)] {
            let mut client = Http2::connect(tollgate.gateway);
            let fields = [request("POST", "/bad"), vec![("content-length", announced)]].concat();
            client.ask(1, &fields, false);
            client.send(&Frame::new(kind::DATA, flag::END_STREAM, 1, vec![b'a'; sent]));
            let outcome = client.outcome(1);
            // A request of no body is whole before more of it comes: it may have been answered by then.
            assert!(outcome.status() != 200 || announced == "0", "{announced} and {sent}: {outcome:?}");
            tollgate.comes_to_rest();
        }
        // But more than was announced has never come with it.
        let is_whole = |received: &Received| received.path() == "/bad" && !received.body.is_empty();
        assert!(!upstream.received().iter().any(is_whole));
    });
}

#[test]
fn fields_that_are_too_large_together_are_refused() {
    survives(|tollgate, upstream| {
        let long = "a".repeat(12_000);
        let mut client = Http2::connect(tollgate.gateway);
        let fields = block(&[request("GET", "/bad"), vec![("x", long.as_str())]].concat());
        client.send(&Frame::new(kind::HEADERS, flag::END_STREAM, 1, fields));
        for last in [0, 0, 0, 0, 0, 0, 0, flag::END_HEADERS] {
            client.send(&Frame::new(kind::CONTINUATION, last, 1, block(&[("x", &long)])));
        }
        let outcome = client.outcome(1);
        assert!(outcome.status() != 200, "{outcome:?}");
        // A few bytes that stand for many: a value that is kept once, and named a thousand times.
        let mut client = Http2::connect(tollgate.gateway);
        let mut fields = block(&request("GET", "/bad"));
        fields.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
        fields.extend([b'a'; 4000]);
        fields.extend([0xbe; 12_000]);
        client.send(&Frame::new(kind::HEADERS, flag::END_STREAM | flag::END_HEADERS, 1, fields));
        let outcome = client.outcome(1);
        assert!(outcome.status() != 200, "{outcome:?}");
        assert!(upstream.received().iter().all(|received| received.path() != "/bad"));
    });
}

#[test]
fn a_client_that_opens_no_window_for_its_answer_is_closed_and_gives_its_permit_back() {
    let upstream = Upstream::start(|received, stream| {
        let size = if received.path() == "/large" { 64 << 20 } else { 5 };
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&vec![b'a'; size]).is_ok()
    });
    let policy = format!("{FEW}gateway: {{ timeouts: {{ head: 1s, body: 1s, idle: 1s }} }}");
    let tollgate = gateway(&policy, &upstream);
    const INITIAL_WINDOW_SIZE: u16 = 4;
    for path in ["/large", "/small"] {
        let mut client = Http2::connect_with(tollgate.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
        for stream in streams().take(2) {
            client.ask(stream, &request("GET", path), true);
        }
        assert!(client.closes(SOON).is_some(), "{path}: the connection goes on");
        tollgate.comes_to_rest();
        assert_eq!(tollgate.get("/others", &[]).status, 200);
    }
    tollgate.comes_to("tollgate_connections_open", 0.0);
}

#[test]
fn a_client_that_sends_nothing_or_no_end_is_closed_in_time() {
    let upstream = Upstream::hello();
    let policy = format!("{FEW}gateway: {{ timeouts: {{ head: 1s, body: 1s, idle: 1s }} }}");
    let tollgate = gateway(&policy, &upstream);
    let mut idle = Http2::connect(tollgate.gateway);
    let mut half_a_head = Http2::connect(tollgate.gateway);
    half_a_head.send(&Frame::new(kind::HEADERS, 0, 1, block(&request("GET", "/x"))));
    let mut half_a_frame = Http2::connect(tollgate.gateway);
    half_a_frame.send_bytes(&headers(1, &request("GET", "/x"), true).bytes()[..20]);
    let mut no_body = Http2::connect(tollgate.gateway);
    no_body.ask(1, &request("POST", "/x"), false);
    let outcome = no_body.outcome(1);
    assert!(matches!(outcome.status(), 0 | 408), "{outcome:?}");
    for client in [&mut idle, &mut half_a_head, &mut half_a_frame, &mut no_body] {
        assert!(client.closes(SOON).is_some(), "a connection goes on");
    }
    tollgate.comes_to_rest();
    tollgate.comes_to("tollgate_connections_open", 0.0);
    assert!(upstream.received().is_empty());
}

#[test]
fn requests_that_their_client_takes_back_give_their_permits_back() {
    let upstream = Upstream::start(|received, stream| {
        if received.path() == "/never" {
            // Until the gateway has closed it.
            let _ = std::io::Read::read(stream, &mut [0]);
            return false;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let tollgate = gateway(FEW, &upstream);
    let mut client = Http2::connect(tollgate.gateway);
    for pair in 0..50 {
        let streams = [pair * 4 + 1, pair * 4 + 3];
        for stream in streams {
            client.ask(stream, &request("GET", "/never"), true);
        }
        tollgate.comes_to("tollgate_requests_in_flight", 2.0);
        for stream in streams {
            client.send(&reset(stream));
        }
        tollgate.comes_to_rest();
    }
    assert_eq!(client.get(1001, "/x").status(), 200);
}

#[test]
fn an_answer_that_nobody_takes_keeps_nothing_while_others_on_its_connection_go_on() {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let (left, leaves) = std::sync::mpsc::channel();
    let upstream = Upstream::by_hand(move |received, mut client| {
        client.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n");
        let (piece, pause) = match received.path() {
            "/alive" => (vec![b'x'; 1], Duration::from_millis(20)),
            _ => (vec![b'x'; 1 << 16], Duration::ZERO),
        };
        while client.stream().write_all(&piece).is_ok() {
            std::thread::sleep(pause);
        }
        let _ = left.send(received.path().to_owned());
    });
    let policy = format!("{FEW}gateway: {{ min_rate: 1, timeouts: {{ body: 1s }} }}\n");
    let tollgate = gateway(&policy, &upstream);
    let mut client = Http2::connect_with(tollgate.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    client.ask(1, &request("GET", "/alive"), true);
    client.send(&Frame::new(kind::WINDOW_UPDATE, 0, 1, 60_000_u32.to_be_bytes()));
    // Of two that may be in progress the first is: each of these is let in only when the one before it was let go of.
    for stream in [3, 5, 7] {
        client.ask(stream, &request("GET", "/stuck"), true);
        assert_eq!(leaves.recv_timeout(SOON).expect("its connection is kept"), "/stuck");
        tollgate.comes_to("tollgate_http_requests_in_flight", 1.0);
    }
    tollgate.comes_to("tollgate_upstream_requests_in_flight{upstream=\"default\"}", 1.0);
    assert!(leaves.try_recv().is_err(), "the first was let go of, too");
}

/// Found by a reader: a head over HTTP/2 that never ended was waited for as long as connections are kept that nobody uses.
#[test]
fn heads_that_do_not_come_to_their_end_are_not_waited_for() {
    let upstream = Upstream::hello();
    let policy = "limiters: {}\ngateway: { timeouts: { head: 1s, idle: 10min } }\n";
    let tollgate = Tollgate::start(BINARY, policy, &["--upstream", &upstream.url()]);
    let mut patient = Http2::connect(tollgate.gateway);
    let mut slow = Http2::connect(tollgate.gateway);
    slow.send(&Frame::new(kind::HEADERS, flag::END_STREAM, 1, block(&request("GET", "/"))));
    let mut cut = Http2::connect(tollgate.gateway);
    let whole = headers(1, &request("GET", "/"), true).bytes();
    // What it says of settings later goes into the gap, and does not fill it.
    cut.send_bytes(whole.first_chunk::<10>().unwrap());
    for client in [&mut slow, &mut cut] {
        assert!(client.closes(Duration::from_secs(20)).is_some());
    }
    assert_eq!(patient.get(1, "/").status(), 200, "who asks for nothing may stay");
}
