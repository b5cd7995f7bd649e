//! Connections that change their protocol, as those of WebSocket do.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{OPEN, gateway, pattern, trusting};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::Value;
use tollgate_testkit::http::{Client, Gate, Upstream, connect_narrow, reset_when_closed};
use tollgate_testkit::{Certificates, Tollgate, wait_until};

const ASK: &str = "GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: abc\r\n\r\n";
const AGREE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: def\r\n\r\n";
const SECOND: Duration = Duration::from_secs(1);

/// A server that agrees, and says everything twice until the other side ends.
fn echo() -> Upstream {
    Upstream::by_hand(|received, mut client| {
        if received.header("upgrade") != ["websocket"] {
            return client.send("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nplain");
        }
        client.send(AGREE);
        loop {
            let some = client.read_some();
            if some.is_empty() {
                return client.send("bye");
            }
            client.send([some.as_slice(), &some].concat());
        }
    })
}

fn upgraded(tollgate: &Tollgate) -> Client {
    let mut client = tollgate.client();
    client.send(ASK);
    let head = client.read_head();
    assert_eq!((head.status, head.header("upgrade")), (101, "websocket"));
    assert_eq!((head.header("connection"), head.header("sec-websocket-accept")), ("upgrade", "def"));
    client
}

#[test]
fn bytes_go_both_ways_until_one_side_ends() {
    let upstream = echo();
    let tollgate = gateway(OPEN, &upstream);
    let mut client = upgraded(&tollgate);
    assert_eq!(upstream.last().header("sec-websocket-key"), ["abc"]);
    for word in ["\0\u{1}not http\r\n\r\n", "hello"] {
        client.send(word);
        assert_eq!(client.read_exactly(2 * word.len()), word.repeat(2).as_bytes());
    }
    client.stream().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.read_exactly(3), b"bye");
    assert!(client.is_closed(20 * SECOND));
}

#[test]
fn what_is_sent_right_behind_the_request_is_not_lost() {
    let tollgate = gateway(OPEN, &echo());
    let mut client = tollgate.client();
    client.send(format!("{ASK}early"));
    assert_eq!(client.read_head().status, 101);
    assert_eq!(client.read_exactly(10), b"earlyearly");
}

#[test]
fn a_tunnel_is_in_progress_until_it_ends() {
    let tollgate = gateway("limiters: { few: { concurrency: 1, per: global } }", &echo());
    let mut client = upgraded(&tollgate);
    client.send("x");
    assert_eq!(client.read_exactly(2), b"xx");
    assert_eq!(tollgate.get("/", &[]).status, 429);
    drop(client);
    wait_until("its slot is free", || tollgate.get("/", &[]).status == 200);
}

#[test]
fn a_server_that_does_not_agree_answers_as_ever() {
    let upstream = Upstream::start(|_, stream| {
        std::io::Write::write_all(stream, b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 2\r\n\r\nno")
            .is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send(ASK);
    let answer = client.read();
    assert_eq!((answer.status, answer.text().as_str()), (426, "no"));
    // And the connection goes on.
    assert_eq!(client.get("/", &[]).status, 426);
}

#[test]
fn a_tunnel_in_which_only_one_side_speaks_is_not_idle() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send(AGREE);
        for _ in 0..8 {
            client.send(".");
            // Until the other side ends, which it does not, or so long.
            if client.is_closed(Duration::from_millis(300)) {
                return;
            }
        }
        client.send("!");
    });
    let policy = "gateway: { timeouts: { idle: 1s } }\nlimiters: {}";
    let tollgate = gateway(policy, &upstream);
    let mut client = upgraded(&tollgate);
    assert_eq!(client.read_until(b"!"), b"........!");
}

#[test]
fn a_tunnel_in_which_nobody_speaks_is_closed() {
    let policy = "gateway: { timeouts: { idle: 1s } }\nlimiters: {}";
    let tollgate = gateway(policy, &echo());
    let mut client = upgraded(&tollgate);
    assert!(client.is_closed(20 * SECOND));
    tollgate.comes_to_rest();
}

/// Found by a reader: who was gone kept its place until nobody had said anything for `timeouts.idle`, and nobody was told why a tunnel
/// had ended.
#[test]
fn a_side_that_breaks_a_tunnel_off_ends_it_for_both() {
    let gate = Gate::default();
    let end = gate.clone();
    let upstream = Upstream::by_hand(move |received, mut client| {
        client.send(AGREE);
        reset_when_closed(client.stream());
        // One does not listen, not even for the end.
        if received.path() == "/chat" {
            gate.pass();
        }
    });
    let policy = "gateway: { timeouts: { idle: 10m } }\nlimiters: { few: { concurrency: 9, per: global } }\n";
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let tollgate = Tollgate::start(crate::common::BINARY, policy, &flags);
    let mut client = upgraded(&tollgate);
    reset_when_closed(client.stream());
    drop(client);
    tollgate.comes_to_rest();
    let mut client = tollgate.client();
    client.send(ASK.replace("/chat", "/server"));
    assert_eq!(client.read_head().status, 101);
    assert!(client.is_closed(20 * SECOND));
    tollgate.comes_to_rest();
    let log = || std::fs::read_to_string(tollgate.folder().join("access.log")).unwrap_or_default();
    wait_until("all is written", || log().lines().count() == 2);
    assert!(log().contains("the client broke the connection off"), "{}", log());
    assert!(log().contains("the server broke the connection off"), "{}", log());
    end.let_through(1);
}

#[test]
fn an_upgrade_is_one_request_in_the_log() {
    let upstream = echo();
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let tollgate = Tollgate::start(crate::common::BINARY, OPEN, &flags);
    drop(upgraded(&tollgate));
    assert_eq!(tollgate.get("/after", &[]).status, 200);
    let lines = || std::fs::read_to_string(tollgate.folder().join("access.log")).unwrap();
    wait_until("all is written", || lines().contains("/after") && lines().contains("/chat"));
    let mut shown: Vec<(String, u64)> = lines()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| (line["path"].as_str().unwrap().to_owned(), line["status"].as_u64().unwrap()))
        .collect();
    shown.sort();
    assert_eq!(shown, [("/after".to_owned(), 200), ("/chat".to_owned(), 101)]);
}

/// A gateway that is reached over TLS.
fn secure_gateway(upstream: &Upstream, idle: &str) -> Tollgate {
    let policy = format!(
        "gateway: {{ tls: {{ certificate: server.pem, key: server.key }}, timeouts: {{ idle: {idle} }} }}\nlimiters: {{ few: {{ concurrency: 100, per: global }} }}\n"
    );
    Tollgate::start_in(crate::common::BINARY, &policy, &["--upstream", &upstream.url()], &[], |folder| {
        Certificates::write(folder);
    })
}

/// A tunnel over TLS whose client takes little at a time.
fn upgraded_over_tls(tollgate: &Tollgate) -> StreamOwned<ClientConnection, TcpStream> {
    let config = Arc::new(trusting(tollgate.folder()).with_no_client_auth());
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(config, name).unwrap();
    let mut client = StreamOwned::new(connection, connect_narrow(tollgate.gateway));
    client.write_all(ASK.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", head.escape_ascii());
    client
}

#[test]
fn a_tunnel_to_who_never_reads_comes_to_an_end_over_tls() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send(AGREE);
        // Until nobody takes it any more.
        while client.stream().write_all(&[0; 65_536]).is_ok() {}
    });
    let tollgate = secure_gateway(&upstream, "1s");
    let _clients = [(); 3].map(|()| upgraded_over_tls(&tollgate));
    assert!(tollgate.metric("tollgate_requests_in_flight") > 0.0);
    tollgate.comes_to_rest();
}

#[test]
fn the_end_of_a_large_message_waits_for_nothing_else_over_tls() {
    let (sent, told) = channel();
    let tunnels = AtomicUsize::new(0);
    let upstream = Upstream::by_hand(move |_, mut client| {
        let length = 20_000 * (tunnels.fetch_add(1, Ordering::SeqCst) + 1);
        client.send(AGREE);
        client.send(pattern(length));
        sent.send(()).unwrap();
        // Says no more until the other side ends.
        while !client.is_closed(20 * SECOND) {}
    });
    // An end would bring what is held back.
    let tollgate = secure_gateway(&upstream, "10m");
    // Among the messages are some of which only the end is.
    let clients: Vec<_> = (1..=30).map(|part| (upgraded_over_tls(&tollgate), 20_000 * part)).collect();
    for _ in &clients {
        told.recv_timeout(20 * SECOND).unwrap();
    }
    for (mut client, length) in clients {
        let mut message = vec![0; length];
        client
            .read_exact(&mut message)
            .unwrap_or_else(|error| panic!("{length} bytes did not come: {error}"));
        assert!(message == pattern(length), "the message is not what was sent");
    }
}
