//! The end of a gateway: whoever is being served is served to the end, and nobody else comes in.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::io::Write;
use std::time::{Duration, Instant};

use crate::common::{BINARY, OPEN, begin, gateway};
use tollgate_testkit::http::{Client, Gate, Upstream};
use tollgate_testkit::{Tollgate, wait_until};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers `/streamed` with half of its answer at once, and everything else when it is let.
fn slow(gate: &Gate) -> Upstream {
    let gate = gate.clone();
    Upstream::start(move |received, stream| {
        let is_streamed = received.path() == "/streamed";
        let head = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n";
        if is_streamed {
            stream.write_all(&[&head[..], b"half"].concat()).unwrap();
        }
        gate.pass();
        let rest = if is_streamed { b"half".to_vec() } else { [&head[..], b"half", b"half"].concat() };
        stream.write_all(&rest).is_ok()
    })
}

fn is_ready(tollgate: &Tollgate) -> u16 {
    tollgate.ask_admin("GET", "/readyz", "").status
}

#[test]
fn nobody_who_is_being_served_is_lost() {
    let gate = Gate::default();
    let upstream = slow(&gate);
    let mut tollgate = gateway(OPEN, &upstream);
    let mut idle = tollgate.client();
    gate.let_through(1);
    assert_eq!(idle.get("/", &[]).text(), "halfhalf");
    let mut waiting: Vec<Client> = (0..10).map(|_| begin(&tollgate, "/slow", &[])).collect();
    let mut streaming: Vec<Client> = (0..5).map(|_| begin(&tollgate, "/streamed", &[])).collect();
    for client in &mut streaming {
        assert_eq!(client.read_head().status, 200);
    }
    let mut sending: Vec<Client> = (0..5).map(|_| tollgate.client()).collect();
    for client in &mut sending {
        client.send("POST /sent HTTP/1.1\r\nhost: a\r\ncontent-length: 8\r\n\r\nhalf");
    }
    wait_until("all are in progress", || tollgate.metric("tollgate_http_requests_in_flight") == 20.0);

    tollgate.signal("TERM");
    tollgate.says("ending: no more connections are taken");
    wait_until("nobody else comes in", || Client::try_connect(tollgate.gateway).is_err());
    assert_eq!(is_ready(&tollgate), 503);
    assert!(idle.is_closed(PATIENCE), "a connection that does nothing is kept");
    for client in &mut sending {
        client.send("half");
    }
    gate.let_through(20);
    for client in &mut waiting {
        let answer = client.read();
        assert_eq!((answer.status, answer.text().as_str()), (200, "halfhalf"));
        // Whoever would use the connection again knows better.
        assert!(client.is_closed(PATIENCE));
    }
    for client in &mut streaming {
        assert_eq!(client.read_exactly(8), b"halfhalf");
    }
    for client in &mut sending {
        assert_eq!(client.read().text(), "halfhalf");
    }
    let bodies = upstream.received().iter().filter(|received| received.body == b"halfhalf").count();
    assert_eq!(bodies, 5);
    assert!(tollgate.ends(PATIENCE), "{:?}", tollgate.said());
    tollgate.says("ended; every request was answered");
}

#[test]
fn a_connection_that_has_said_nothing_holds_up_nobody() {
    let upstream = Upstream::hello();
    let mut tollgate = gateway("gateway: { timeouts: { head: 50s, idle: 50s } }\nlimiters: {}", &upstream);
    let mut silent = tollgate.client();
    wait_until("it is there", || tollgate.metric("tollgate_connections_open") == 1.0);
    tollgate.signal("TERM");
    assert!(tollgate.ends(PATIENCE));
    assert!(silent.is_closed(PATIENCE));
}

#[test]
fn who_has_come_before_the_end_is_served_even_if_nobody_has_looked_yet() {
    let upstream = Upstream::hello();
    let mut tollgate = gateway(OPEN, &upstream);
    tollgate.signal("STOP");
    let mut clients: Vec<Client> = (0..10).map(|_| begin(&tollgate, "/", &[])).collect();
    tollgate.signal("TERM");
    tollgate.signal("CONT");
    for client in &mut clients {
        assert_eq!(client.read().text(), "hello");
    }
    assert!(tollgate.ends(PATIENCE));
}

#[test]
fn who_takes_too_long_is_not_waited_for() {
    let gate = Gate::default();
    let mut tollgate = gateway("gateway: { timeouts: { drain: 500ms } }\nlimiters: {}", &slow(&gate));
    let mut client = begin(&tollgate, "/streamed", &[]);
    assert_eq!(client.read_head().status, 200);
    tollgate.signal("TERM");
    assert!(tollgate.ends(PATIENCE));
    tollgate.says("1 requests had no whole answer yet");
}

#[test]
fn who_is_cut_off_at_the_end_is_written_down() {
    let gate = Gate::default();
    let upstream = slow(&gate);
    let policy = "gateway: { timeouts: { drain: 500ms } }\nlimiters: {}";
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let mut tollgate = Tollgate::start(BINARY, policy, &flags);
    let _cut = [begin(&tollgate, "/streamed", &[]), begin(&tollgate, "/whole", &[])];
    wait_until("both are there", || tollgate.metric("tollgate_http_requests_in_flight") == 2.0);
    let log = tollgate.folder().join("access.log");
    tollgate.signal("TERM");
    assert!(tollgate.ends(PATIENCE));
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("the gateway ended before the answer did").count(), 2, "{log}");
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let gate = Gate::default();
    let mut tollgate = gateway("gateway: { timeouts: { drain: 10min } }\nlimiters: {}", &slow(&gate));
    let mut client = begin(&tollgate, "/streamed", &[]);
    assert_eq!(client.read_head().status, 200);
    tollgate.signal("TERM");
    tollgate.says("ending: no more connections are taken");
    let begun = Instant::now();
    tollgate.signal("TERM");
    assert!(tollgate.ends(PATIENCE));
    assert!(begun.elapsed() < Duration::from_secs(10));
    tollgate.says("1 requests had no whole answer yet");
}

#[test]
fn a_tunnel_is_waited_for_like_any_request() {
    let upstream = Upstream::by_hand(|_, mut client| {
        client.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n");
        client.read_until(b"question");
        client.send("answer");
    });
    let mut tollgate = gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: chat\r\n\r\n");
    assert_eq!(client.read_head().status, 101);
    tollgate.signal("TERM");
    tollgate.says("ending: no more connections are taken");
    client.send("question");
    assert_eq!(client.read_exactly(6), b"answer");
    drop(client);
    assert!(tollgate.ends(PATIENCE));
    tollgate.says("ended; every request was answered");
}

/// Asks again and again on kept connections, as clients do: whoever is told that a connection ends makes another. Returns how many
/// were answered before nobody was there any more, which is also so if a new connection is broken before anything came of it: it was
/// made in the very moment in which the door was closed.
fn goes_on(gateway: std::net::SocketAddr) -> u64 {
    let mut answered = 0;
    'anew: loop {
        let Ok(mut client) = Client::try_connect(gateway) else { return answered };
        let mut is_new = true;
        loop {
            let answer = match client.try_get("/", &[]) {
                Ok(answer) => answer,
                Err(_) if is_new => return answered,
                Err(error) => panic!("on a kept connection, after {answered}: {error}"),
            };
            is_new = false;
            assert_eq!(answer.text(), "hello");
            answered += 1;
            if answer.header("connection") == "close" {
                continue 'anew;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn who_asks_again_and_again_loses_nothing_with_or_without_notice() {
    for notice in ["0s", "1s"] {
        let upstream = Upstream::hello();
        let policy = format!("gateway: {{ timeouts: {{ notice: {notice} }} }}\nlimiters: {{}}");
        let mut tollgate = gateway(&policy, &upstream);
        let clients: Vec<_> = (0..8)
            .map(|_| {
                let to = tollgate.gateway;
                std::thread::spawn(move || goes_on(to))
            })
            .collect();
        wait_until("all are there", || tollgate.metric("tollgate_connections_open") >= 8.0);
        tollgate.signal("TERM");
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
        assert!(tollgate.ends(PATIENCE));
    }
}

#[test]
fn a_second_signal_ends_it_at_once_also_while_notice_is_given() {
    let gate = Gate::default();
    let upstream = slow(&gate);
    let policy = "gateway: { timeouts: { notice: 10min, drain: 10min } }\nlimiters: {}";
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let mut tollgate = Tollgate::start(BINARY, policy, &flags);
    let mut client = begin(&tollgate, "/streamed", &[]);
    assert_eq!(client.read_head().status, 200);
    tollgate.signal("TERM");
    tollgate.says("ending: not ready any more");
    tollgate.signal("TERM");
    assert!(tollgate.ends(PATIENCE));
    let log = std::fs::read_to_string(tollgate.folder().join("access.log")).unwrap();
    assert!(log.contains("the gateway ended before the answer did"), "{log}");
}

#[test]
fn a_client_of_http2_that_says_nothing_holds_up_nobody() {
    let upstream = Upstream::hello();
    let mut tollgate = gateway("gateway: { timeouts: { drain: 10min } }\nlimiters: {}", &upstream);
    let mut silent = tollgate_testkit::http2::Http2::connect(tollgate.gateway);
    silent.get(1, "/");
    tollgate.signal("TERM");
    assert!(tollgate.ends(PATIENCE));
}
