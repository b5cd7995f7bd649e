//! HTTP/1 with clients and servers that have their own ways.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests on real sockets, which live in real time"
)]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{BINARY, OPEN, gateway};
use tollgate_testkit::http::{Client, Gate, Upstream, reset_when_closed};
use tollgate_testkit::{Tollgate, wait_until};

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
    for size in [400_000, 400_000, 400_000, 10_000_000] {
        let mut client = tollgate.client();
        client.send(format!("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", size + 1));
        // Nobody reads that, and to close the connection now would take the answer with it.
        client.stream().write_all(&vec![b'a'; size]).unwrap();
        let answer = client.read();
        assert_eq!((answer.status, answer.header("connection")), (413, "close"));
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

/// Refuses whatever is asked for under `/refused`, after the first.
const REFUSES: &str =
    "trusted_proxies: []\nlimiters:\n  one: { rate: 1/h, per: global, match: [GET /refused] }\n";

/// So many requests at once, all of which are refused: enough of them, and their connection is to let others go on.
fn refused(count: usize) -> String {
    "GET /refused HTTP/1.1\r\nhost: a\r\n\r\n".repeat(count)
}

/// A gateway where the next request under `/refused` is refused, and its client with so many of them on their way.
fn busy(more: &str, upstream: &Upstream, count: usize) -> (Tollgate, Client) {
    let policy = format!("{REFUSES}{more}");
    let tollgate = Tollgate::start(BINARY, &policy, &["--upstream", &upstream.url(), "--threads", "1"]);
    assert_eq!(tollgate.get("/refused", &[]).status, 200);
    let client = tollgate.client();
    assert_eq!(tollgate.get("/refused", &[]).status, 429, "{count}");
    (tollgate, client)
}

#[test]
fn an_answer_that_nobody_has_asked_for_is_given_to_nobody_however_busy_a_connection_is() {
    let gate = Gate::default();
    let (stray, is_stray) = channel();
    let held = gate.clone();
    let upstream = Upstream::start(move |received, stream| {
        let is_well = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok();
        if received.path() == "/stray" {
            // When the connection is no longer in use.
            held.pass();
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
            let _ = stray.send(());
        }
        is_well
    });
    let (tollgate, mut client) = busy("", &upstream, 1);
    for count in 120..132 {
        assert_eq!(tollgate.get("/stray", &[]).status, 200);
        gate.let_through(1);
        is_stray.recv_timeout(PATIENCE).unwrap();
        client.send(format!("{}GET /x HTTP/1.1\r\nhost: a\r\n\r\n", refused(count)));
        (0..count).for_each(|_| assert_eq!(client.read().status, 429));
        assert_eq!(client.read().text(), "ok", "behind {count} others");
    }
}

#[test]
fn a_client_that_asks_for_much_before_is_let_go_all_the_same() {
    let upstream = Upstream::start(|received, stream| {
        if received.path() == "/refused" {
            return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok();
        }
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while stream.write_all(b"1\r\na\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    });
    let (tollgate, mut client) = busy("gateway: { timeouts: { whole: 1s } }\n", &upstream, 300);
    client.send(format!("{}GET /drips HTTP/1.1\r\nhost: a\r\n\r\n", refused(300)));
    assert!(client.is_closed(PATIENCE));
    tollgate.comes_to_rest();
}

#[test]
fn who_waits_to_be_told_to_go_on_is_told_however_busy_the_connection_is() {
    let upstream = Upstream::hello();
    let (_tollgate, mut client) = busy("", &upstream, 1);
    for count in 120..132 {
        let asks = "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
        client.send(format!("{}{asks}", refused(count)));
        (0..count).for_each(|_| assert_eq!(client.read().status, 429));
        assert_eq!(client.read_until(b"\r\n\r\n"), b"HTTP/1.1 100 Continue\r\n\r\n", "{count}");
        client.send("hello");
        assert_eq!(client.read().status, 200);
    }
}

#[test]
fn a_request_with_a_body_is_not_repeated_without_it() {
    let upstream = Upstream::start(|received, stream| match received.path() {
        "/search" => false,
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok(),
    });
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream.url(), "--threads", "1"]);
    let mut client = tollgate.client();
    assert_eq!(client.get("/first", &[]).status, 200);
    assert_eq!(client.ask("GET", "/search", &[], b"query").status, 502);
    let bodies = |path: &str| -> Vec<Vec<u8>> {
        let all = upstream.received();
        all.into_iter().filter(|received| received.path() == path).map(|received| received.body).collect()
    };
    assert_eq!(bodies("/search"), [b"query".to_vec()]);
}

#[test]
fn a_request_is_made_twice_at_most_whatever_becomes_of_the_servers() {
    let dies = |received: &tollgate_testkit::http::Received, stream: &mut std::net::TcpStream| match received
        .path()
    {
        "/dies" => false,
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok(),
    };
    let servers = [Upstream::start(dies), Upstream::start(dies), Upstream::start(dies)];
    let urls: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    let policy = format!("{OPEN}gateway: {{ upstreams: {{ all: {{ servers: [{}] }} }} }}\n", urls.join(", "));
    let tollgate = Tollgate::start(BINARY, &policy, &["--threads", "1"]);
    // One kept connection with each.
    (0..3).for_each(|_| assert_eq!(tollgate.get("/well", &[]).status, 200));
    assert_eq!(tollgate.get("/dies", &[]).status, 502);
    let made = |server: &Upstream| server.received().iter().filter(|got| got.path() == "/dies").count();
    assert!((1..=2).contains(&servers.iter().map(made).sum::<usize>()));
}

#[test]
fn a_server_that_has_said_something_is_not_asked_again() {
    let upstream = Upstream::start(|received, stream| match received.path() {
        "/hm" => {
            let _ = stream.write_all(b"HTTP/1.1 102 Processing\r\n\r\n");
            false
        }
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").is_ok(),
    });
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream.url(), "--threads", "1"]);
    let mut client = tollgate.client();
    assert_eq!((client.get("/first", &[]).status, client.get("/hm", &[]).status), (200, 502));
    assert_eq!(upstream.received().iter().filter(|received| received.path() == "/hm").count(), 1);
}

#[test]
fn small_pieces_that_a_server_does_not_take_fill_no_memory() {
    // Says something again and again, and reads nothing.
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        while client.stream().write_all(b"1\r\na\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    assert_eq!(client.read_head().status, 200);
    let mut reader = client.stream().try_clone().unwrap();
    std::thread::spawn(move || while reader.read(&mut [0; 4096]).is_ok_and(|read| read > 0) {});
    client.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    let chunk = format!("1000\r\n{}\r\n", "a".repeat(4096));
    let taken = (0..50_000).take_while(|_| client.stream().write_all(chunk.as_bytes()).is_ok()).count();
    assert!(taken < 10_000, "{taken} chunks of 4 KB were taken");
    assert!(tollgate.memory() < 100 << 20, "{} bytes", tollgate.memory());
}

#[test]
fn a_client_may_send_all_before_it_reads_anything() {
    const SIZE: usize = 20_000_000;
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n"));
        let mut writer = client.stream().try_clone().unwrap();
        let wrote = std::thread::spawn(move || writer.write_all(&vec![b'b'; SIZE]).is_ok());
        let mut read = 0;
        while read < SIZE {
            match client.read_some().len() {
                0 => break,
                some => read += some,
            }
        }
        assert!(wrote.join().unwrap() && read == SIZE);
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send(format!("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: {SIZE}\r\n\r\n"));
    client.stream().write_all(&vec![b'a'; SIZE]).unwrap();
    assert_eq!(client.read().body.len(), SIZE);
    tollgate.comes_to_rest();
}

#[test]
fn a_client_that_leaves_is_missed_also_while_its_server_does_not_read() {
    let (is_over, over) = channel::<()>();
    let over = std::sync::Mutex::new(over);
    let upstream = Upstream::by_hand(move |_, _client| {
        let _ = over.lock().unwrap().recv();
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n");
    client.stream().set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while client.stream().write_all(&[b'a'; 65_536]).is_ok() {}
    tollgate.comes_to("tollgate_requests_in_flight", 1.0);
    reset_when_closed(client.stream());
    drop(client);
    wait_until("the client is missed", || tollgate.metric("tollgate_requests_in_flight") == 0.0);
    drop(is_over);
}

#[test]
fn an_upload_behind_an_early_head_is_no_slow_answer() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
        let body = client.read_exactly(20);
        client.send(format!("{:x}\r\n{}\r\n0\r\n\r\n", body.len(), String::from_utf8(body).unwrap()));
    });
    let policy = format!("{OPEN}gateway: {{ timeouts: {{ answer: 500ms, body: 5s }} }}");
    let tollgate = gateway(&policy, &upstream);
    let mut client = tollgate.client();
    client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 20\r\n\r\n");
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(100));
        client.send("a");
    }
    assert_eq!(client.read().text(), "a".repeat(20));
}

#[test]
fn a_target_without_a_path_has_one_behind_the_gateway() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    for (target, line) in [
        ("http://a?x=1", "GET /?x=1 HTTP/1.1"),
        ("http://a", "GET / HTTP/1.1"),
        ("http://a/b?c", "GET /b?c HTTP/1.1"),
    ] {
        client.send(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(client.read().status, 200, "{target}");
        assert_eq!(upstream.last().line, line);
    }
}

#[test]
fn what_follows_a_body_names_no_caller_and_no_length() {
    let upstream = Upstream::start(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum, content-length, ratelimit\r\n\r\n";
        let rest = "1\r\na\r\n0\r\nx-sum: 1\r\ncontent-length: 7\r\nratelimit: x\r\n\r\n";
        stream.write_all(format!("{head}{rest}").as_bytes()).is_ok()
    });
    let policy = "trusted_proxies: []\nidentify: { caller: [header: x-key] }\n\
                  limiters: { all: { rate: 1000/s, per: caller } }\n";
    let tollgate = gateway(policy, &upstream);
    let mut client = tollgate.client();
    client.send(
        "POST /x HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\
         trailer: x-key, x_forwarded_for, x_key, x-sum\r\n\r\n\
         1\r\na\r\n0\r\nx-key: other\r\nx_forwarded_for: 1.1.1.1\r\nx_key: other\r\nx-sum: 1\r\n\r\n",
    );
    let sum = [("x-sum".to_owned(), "1".to_owned())];
    assert_eq!(client.read().trailers, sum);
    assert_eq!(upstream.last().trailers, sum);
}
