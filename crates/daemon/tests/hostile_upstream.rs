//! Servers that fail in the middle, clients that go away in the middle, and no more files: every permit comes back once, and
//! the gateway goes on.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests on real sockets, which live in real time"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{BINARY, OPEN, begin, gateway};
use tollgate_testkit::http::{Client, Gate, Received, Upstream, reset_when_closed};
use tollgate_testkit::http2::{Http2, Outcome, request};
use tollgate_testkit::{Tollgate, free_port};

/// One request at a time: a permit that does not come back, or comes back twice, is seen by whoever is next.
const ONE: &str = "trusted_proxies: []\nlimiters: { one: { concurrency: 1, per: global } }\n\
                   gateway: { timeouts: { answer: 2s, body: 2s } }\n";

/// What becomes of a request whose server does this.
struct Trouble {
    does: &'static str,
    answer: &'static [u8],
    /// Whether the connection is reset after it, or closed.
    resets: bool,
    /// The status that the client gets.
    status: u16,
    /// Whether the answer comes to its end.
    is_whole: bool,
}

const fn trouble(does: &'static str, answer: &'static [u8], status: u16, is_whole: bool) -> Trouble {
    Trouble { does, answer, resets: false, status, is_whole }
}

const fn resets(trouble: Trouble) -> Trouble {
    Trouble { resets: true, ..trouble }
}

const TROUBLES: &[Trouble] = &[
    trouble("closes at once", b"", 502, true),
    resets(trouble("resets at once", b"", 502, true)),
    trouble("closes in its head", b"HTTP/1.1 200 OK\r\ncontent-le", 502, true),
    resets(trouble("resets in its head", b"HTTP/1.1 200 OK\r\ncontent-le", 502, true)),
    trouble("closes in its body", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", 200, false),
    resets(trouble("resets in its body", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", 200, false)),
    trouble("closes in a chunk", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc", 200, false),
    trouble(
        "closes before the last chunk",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
        200,
        false,
    ),
    trouble("sends garbage", b"\x16\x03\x01garbage\r\n\r\n", 502, true),
    trouble("speaks another protocol", b"220 mail.example.com ESMTP\r\n\r\n", 502, true),
    trouble("sends chunks that are none", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n", 200, false),
    trouble(
        "has spaces behind the sizes of its chunks",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2  \r\nab\r\n1\t\r\nc\r\n0 \r\n\r\n",
        200,
        true,
    ),
    trouble(
        "ends the lines of its chunks with a bare line feed",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\nab\n1\nc\n0\n\n",
        200,
        true,
    ),
    trouble(
        "has a chunk that is longer than it says",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        200,
        false,
    ),
    trouble(
        "has spaces around its coding",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: \t chunked \t\r\n\r\n3 ;a=b\r\nabc\r\n0\r\n\r\n",
        200,
        true,
    ),
    trouble("sends two lengths", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 502, true),
    trouble("sends no length at all", b"HTTP/1.1 200 OK\r\ncontent-length: abc\r\n\r\n", 502, true),
    trouble("folds a line", b"HTTP/1.1 200 OK\r\nx: a\r\n b\r\ncontent-length: 0\r\n\r\n", 502, true),
    trouble("says 101 to nobody", b"HTTP/1.1 101 Switching Protocols\r\n\r\nabc", 502, true),
    trouble(
        "changes its protocol for nobody",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nabc",
        502,
        true,
    ),
    trouble("says go on, and then closes", b"HTTP/1.1 100 Continue\r\n\r\n", 502, true),
    trouble(
        "says go on, and more is to come, and then answers",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
        200,
        true,
    ),
    trouble(
        "answers in a coding that nobody has asked for",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        502,
        true,
    ),
    trouble("ends its body by closing", b"HTTP/1.1 200 OK\r\n\r\nabc", 200, true),
    trouble("has a body where there is none", b"HTTP/1.1 204 No Content\r\ncontent-length: 3\r\n\r\nabc", 204, true),
    trouble("sends more than it announced", b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef", 200, true),
    trouble(
        "sends a second answer unasked",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
        200,
        true,
    ),
];

/// Asks for trouble by its number.
fn troubled() -> Upstream {
    Upstream::start(|received, stream| {
        let Some(trouble) = received.path().strip_prefix('/').and_then(|number| number.parse::<usize>().ok())
        else {
            return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok();
        };
        let trouble = &TROUBLES[trouble];
        let _ = stream.write_all(trouble.answer);
        if trouble.resets {
            // What was written is to arrive first.
            std::thread::sleep(Duration::from_millis(50));
            reset_when_closed(stream);
        }
        false
    })
}

#[test]
fn whatever_a_server_does_the_client_is_told_and_the_permit_comes_back_once() {
    let upstream = troubled();
    let tollgate = gateway(ONE, &upstream);
    for (number, trouble) in TROUBLES.iter().enumerate() {
        let mut client = tollgate.client();
        let answer = client.try_get(&format!("/{number}"), &[]);
        let does = trouble.does;
        match (&answer, trouble.is_whole) {
            (Ok(answer), true) => {
                assert_eq!(answer.status, trouble.status, "a server that {does}: {answer:?}");
                if answer.status == 502 {
                    assert_eq!(answer.header("content-type"), "application/problem+json", "{does}");
                }
                if answer.status == 200 {
                    assert_eq!(answer.text(), "abc", "a server that {does}");
                }
            }
            (Err(_), false) => {}
            _ => panic!("a server that {does}: {answer:?}"),
        }
        tollgate.comes_to_rest();
        assert_eq!(tollgate.get("/well", &[]).text(), "hello", "after a server that {does}");
    }
    tollgate.comes_to("tollgate_upstream_requests_in_flight{upstream=\"default\"}", 0.0);
}

#[test]
fn whatever_a_server_does_a_client_of_http_2_is_told_and_its_other_streams_go_on() {
    let upstream = troubled();
    let tollgate = gateway(ONE, &upstream);
    let mut client = Http2::connect(tollgate.gateway);
    for (number, trouble) in TROUBLES.iter().enumerate() {
        let stream = u32::try_from(number * 4 + 1).unwrap();
        let outcome = client.get(stream, &format!("/{number}"));
        let does = trouble.does;
        match (&outcome, trouble.is_whole) {
            (Outcome::Answer { status, body }, true) => {
                assert_eq!(*status, trouble.status, "a server that {does}");
                assert!(*status != 200 || body == b"abc", "a server that {does}: {outcome:?}");
            }
            (Outcome::Reset(_), false) => {}
            _ => panic!("a server that {does}: {outcome:?}"),
        }
        tollgate.comes_to_rest();
        assert_eq!(client.get(stream + 2, "/well").status(), 200, "after a server that {does}");
    }
}

#[test]
fn an_answer_whose_length_can_be_read_in_two_ways_is_not_passed_on_as_such() {
    let upstream = Upstream::start(|_, stream| {
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let tollgate = gateway(ONE, &upstream);
    for _ in 0..3 {
        let mut client = tollgate.client();
        match client.try_get("/x", &[]) {
            Ok(answer) => {
                let framing = [answer.header("content-length"), answer.header("transfer-encoding")];
                assert!(framing.contains(&""), "{answer:?}");
                assert!(answer.status == 502 || answer.text() == "abc", "{answer:?}");
            }
            // Broken off is as good.
            Err(_) => assert!(client.is_closed(Duration::from_secs(10))),
        }
        tollgate.comes_to_rest();
    }
}

#[test]
fn servers_that_are_not_there_or_do_not_answer_are_told_of_as_502_and_504() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let tollgate = Tollgate::start(BINARY, ONE, &["--upstream", &nobody]);
    for _ in 0..3 {
        let answer = tollgate.get("/x", &[]);
        assert_eq!((answer.status, answer.header("content-type")), (502, "application/problem+json"));
        assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
        tollgate.comes_to_rest();
    }
    // Takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let policy = ONE.replace("answer: 2s", "answer: 300ms");
    let tollgate = Tollgate::start(BINARY, &policy, &["--upstream", &url]);
    for _ in 0..3 {
        let answer = tollgate.get("/x", &[]);
        assert_eq!((answer.status, answer.header("content-type")), (504, "application/problem+json"));
        tollgate.comes_to_rest();
    }
    assert_eq!(tollgate.metric("tollgate_upstream_failures_total"), 3.0);
}

#[test]
fn a_server_that_stops_in_the_middle_is_not_waited_for_for_ever() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc");
        // Until the gateway has had enough.
        let _ = stream.read(&mut [0]);
        false
    });
    let policy = ONE.replace("answer: 2s, body: 2s", "answer: 500ms, body: 500ms");
    let tollgate = gateway(&policy, &upstream);
    let mut client = tollgate.client();
    assert!(client.try_get("/x", &[]).is_err());
    tollgate.comes_to_rest();
}

#[test]
fn a_server_that_closes_an_idle_connection_costs_nobody_a_request() {
    // Answers as if the connection stayed open, and closes it.
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        false
    });
    let tollgate = gateway(ONE, &upstream);
    let mut client = tollgate.client();
    for number in 0..100 {
        let answer = client.ask(if number % 2 == 0 { "GET" } else { "HEAD" }, "/x", &[], b"");
        assert_eq!(answer.status, 200, "{number}");
    }
    tollgate.comes_to_rest();
}

#[test]
fn an_answer_that_nobody_has_asked_for_is_given_to_nobody() {
    let upstream = Upstream::start(|received, stream| match received.path() {
        "/two" => {
            let one = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
            let other = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nstolen";
            stream.write_all(format!("{one}{other}").as_bytes()).is_ok()
        }
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok(),
    });
    let tollgate = gateway(ONE, &upstream);
    let mut client = tollgate.client();
    for _ in 0..200 {
        assert_eq!(client.get("/two", &[]).text(), "abc");
        assert_eq!(client.get("/well", &[]).text(), "hello");
        let two = client.ask("HEAD", "/two", &[], b"");
        assert_eq!((two.status, two.header("content-length")), (200, "3"));
        assert_eq!(client.get("/well", &[]).text(), "hello");
    }
}

/// One that answers slowly enough that its client can go away meanwhile.
fn slow() -> Upstream {
    Upstream::start(|received: &Received, stream| match received.path() {
        "/well" => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok(),
        "/download" => {
            let piece = vec![b'a'; 1 << 16];
            let begun = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n").is_ok();
            while begun && stream.write_all(&piece).is_ok() {}
            false
        }
        _ => {
            // Until the gateway has closed it.
            let _ = stream.read(&mut [0]);
            false
        }
    })
}

#[test]
fn clients_that_go_away_give_their_permits_back() {
    let upstream = slow();
    let policy = "trusted_proxies: []\nlimiters: { ten: { concurrency: 10, per: global } }\n";
    let tollgate = gateway(policy, &upstream);
    type Begin = fn(&mut Client);
    let leave: [(&str, Begin); 5] = [
        ("right after they have come", |_| ()),
        ("in the head", |client| client.send("GET /x HTTP/1.1\r\nhost")),
        ("before the answer", |client| client.send("GET /x HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("in an upload", |client| {
            client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nabc");
        }),
        ("in a download", |client| {
            client.send("GET /download HTTP/1.1\r\nhost: a\r\n\r\n");
            let _ = client.stream().read(&mut [0; 1000]);
        }),
    ];
    for (when, begin) in leave {
        for round in 0..20 {
            let mut clients: Vec<Client> = (0..10).map(|_| tollgate.client()).collect();
            for client in &mut clients {
                begin(client);
            }
            for (number, mut client) in clients.into_iter().enumerate() {
                // Half of them do not say goodbye.
                if (number + round) % 2 == 0 {
                    reset_when_closed(client.stream());
                }
            }
        }
        tollgate.comes_to_rest();
        tollgate.comes_to("tollgate_connections_open", 0.0);
        let mut all: Vec<Client> = (0..10).map(|_| tollgate.client()).collect();
        for client in &mut all {
            assert_eq!(client.get("/well", &[]).status, 200, "after clients that left {when}");
        }
        drop(all);
    }
    tollgate.comes_to("tollgate_upstream_requests_in_flight{upstream=\"default\"}", 0.0);
}

/// A gateway that is started with this limit of open files.
pub(crate) fn with_files(ulimit: &str, policy: &str, upstream: &Upstream) -> Tollgate {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("tollgate-few-files-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let script = folder.join("tollgate");
    std::fs::write(&script, format!("#!/bin/sh\nulimit {ulimit}\nexec {BINARY} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let flags = ["--upstream", &upstream.url(), "--threads", "2"];
    let tollgate = Tollgate::start(script.to_str().unwrap(), policy, &flags);
    std::fs::remove_dir_all(folder).unwrap();
    tollgate
}

#[test]
fn a_gateway_raises_its_limit_of_files_as_far_as_it_may() {
    let upstream = Upstream::hello();
    let few = with_files("-n 64", OPEN, &upstream).metric("tollgate_connections_max");
    let more = with_files("-S -n 64", OPEN, &upstream).metric("tollgate_connections_max");
    assert!(few < more, "{few}, {more}");
}

#[test]
fn clients_leave_files_for_connections_with_servers() {
    let upstream = Upstream::hello();
    let tollgate = with_files("-n 64", "limiters: {}\ngateway: { timeouts: { body: 1s } }\n", &upstream);
    let most = tollgate.metric("tollgate_connections_max");
    assert_eq!(most, 12.0);
    // Each keeps its connection: later ones have room because those that nobody uses are closed.
    let mut crowd: Vec<Client> = (0..30).map(|_| tollgate.client()).collect();
    for client in &mut crowd {
        client.send("GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    for client in &mut crowd {
        assert_eq!(client.read().status, 200);
    }
    tollgate.says("there are 12 connections, and no more are taken until some have ended");
    assert_eq!(tollgate.metric("tollgate_connections_not_accepted_total"), 0.0);
    assert_eq!(tollgate.metric("tollgate_upstream_failures_total"), 0.0);
}

/// One client with more requests than there are files took all of them: requests were answered 502, and no connection was accepted.
#[test]
fn one_client_with_many_requests_does_not_take_the_files_of_others() {
    let gate = Gate::default();
    let held = gate.clone();
    let upstream = Upstream::start(move |_, stream| {
        held.pass();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let policy = "gateway: { timeouts: { queue: 20s } }\nlimiters: {}\n";
    let tollgate = with_files("-n 64", policy, &upstream);
    let of_server = format!("{{upstream=\"default\",server=\"{}\"}}", upstream.url());
    let most = tollgate.metric(&format!("tollgate_upstream_connections_max{of_server}"));
    assert!((5.0..32.0).contains(&most), "{most}");
    let mut client = Http2::connect(tollgate.gateway);
    let streams: Vec<u32> = (0..100).map(|number| number * 2 + 1).collect();
    for stream in &streams {
        client.ask(*stream, &request("GET", "/x"), true);
    }
    tollgate.comes_to(&format!("tollgate_upstream_queue_length{of_server}"), 100.0 - most);
    let mut other = begin(&tollgate, "/x", &[]);
    tollgate.comes_to(&format!("tollgate_upstream_queue_length{of_server}"), 101.0 - most);
    gate.let_through(1000);
    for stream in &streams {
        assert_eq!(client.outcome(*stream).status(), 200);
    }
    assert_eq!(other.read().status, 200);
    assert_eq!(upstream.connections(), most as usize);
    assert_eq!(tollgate.metric("tollgate_connections_not_accepted_total"), 0.0);
    assert!(!tollgate.said().iter().any(|line| line.contains("files")), "{:?}", tollgate.said());
}

#[test]
fn a_gateway_that_runs_out_of_files_takes_connections_again_when_there_are_some() {
    let upstream = Upstream::hello();
    let tollgate = with_files("-n 64", ONE, &upstream);
    let crowd: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(tollgate.gateway).unwrap()).collect();
    tollgate.says("no more are taken until some have ended");
    drop(crowd);
    let begun = Instant::now();
    let passes = || Client::try_connect(tollgate.gateway).and_then(|mut client| client.try_get("/x", &[]));
    while !passes().is_ok_and(|answer| answer.status == 200) {
        assert!(begun.elapsed() < Duration::from_secs(20), "nobody is served");
    }
    tollgate.comes_to_rest();
}

#[test]
fn nobody_gets_what_a_server_sends_behind_an_answer_that_has_no_body() {
    for told in ["content-length: 4", "transfer-encoding: chunked"] {
        let gate = Gate::default();
        let held = gate.clone();
        let upstream = Upstream::start(move |received, stream| {
            if received.path() != "/none" {
                return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok();
            }
            stream.write_all(format!("HTTP/1.1 204 No Content\r\n{told}\r\n\r\n").as_bytes()).unwrap();
            held.pass();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil").is_ok()
        });
        let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream.url(), "--threads", "1"]);
        assert_eq!(tollgate.get("/none", &[]).status, 204);
        let mut next = tollgate.client();
        next.send("GET /next HTTP/1.1\r\nhost: a\r\n\r\n");
        gate.let_through(1);
        assert_eq!(next.read().text(), "hello", "{told}");
    }
}

#[test]
fn who_leaves_behind_much_that_nobody_has_read_has_left() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let tollgate = gateway(ONE, &upstream);
    let mut client = tollgate.client();
    client.send("GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
    client.send(format!("GET /y HTTP/1.1\r\nhost: a\r\nx: {}", "y".repeat(30_000)));
    tollgate.comes_to("tollgate_http_requests_in_flight", 1.0);
    drop(client);
    tollgate.comes_to_rest();
    gate.let_through(1);
}

#[test]
fn the_log_tells_which_server_did_not_answer() {
    let (silent, gone) = (TcpListener::bind("127.0.0.1:0").unwrap(), free_port());
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let gone = format!("http://127.0.0.1:{gone}");
    for (server, status) in [(silent, 504), (gone, 502)] {
        let policy = "gateway: { timeouts: { answer: 500ms } }\nlimiters: {}";
        let tollgate =
            Tollgate::start(BINARY, policy, &["--upstream", &server, "--access-log", "access.log"]);
        assert_eq!(tollgate.get("/x", &[]).status, status);
        let log = tollgate.folder().join("access.log");
        let told = format!("\"server\":\"{server}\"");
        tollgate_testkit::wait_until("it is written down", || {
            std::fs::read_to_string(&log).is_ok_and(|log| log.contains(&told))
        });
    }
}
