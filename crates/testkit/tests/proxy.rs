//! The proxy, in front of a server that sends back what it gets.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test of real connections in real time")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::{Proxy, RedisServer, free_port};

const SHORT: Duration = Duration::from_millis(100);

fn echo_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    port
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream
}

/// Whether a new connection is broken off at once. It may be before it was noticed that there was one.
#[track_caller]
fn is_refused(proxy: &Proxy) {
    match TcpStream::connect(("127.0.0.1", proxy.port())) {
        Ok(stream) => {
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            is_reset(&stream);
        }
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

fn say(mut stream: &TcpStream, words: &[u8]) {
    stream.write_all(words).unwrap();
}

#[track_caller]
fn hears(mut stream: &TcpStream, words: &[u8]) {
    let mut heard = vec![0; words.len()];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(heard, words);
}

#[track_caller]
fn hears_nothing(mut stream: &TcpStream) {
    stream.set_read_timeout(Some(SHORT)).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
}

#[track_caller]
fn is_reset(mut stream: &TcpStream) {
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[track_caller]
fn soon(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(5));
        thread::yield_now();
    }
}

#[test]
fn passes_everything_on_and_counts_connections() {
    let proxy = Proxy::in_front_of(echo_server());
    let [one, two] = [connect(&proxy), connect(&proxy)];
    let long: Vec<_> = (0..1_000_000_u32).map(|number| number as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| say(&one, &long));
        hears(&one, &long);
    });
    say(&two, b"two");
    hears(&two, b"two");
    assert_eq!((proxy.connections(), proxy.open()), (2, 2));
    drop(one);
    soon(|| proxy.open() == 1);
    assert_eq!(proxy.connections(), 2);
    // Whoever has said all still hears the rest, and then the end.
    say(&two, b"last");
    two.shutdown(Shutdown::Write).unwrap();
    hears(&two, b"last");
    assert_eq!((&two).read(&mut [0]).unwrap(), 0);
    soon(|| proxy.open() == 0);
}

#[test]
fn delays_replies_until_told_otherwise() {
    let proxy = Proxy::in_front_of(echo_server());
    let stream = connect(&proxy);
    proxy.delay(3 * SHORT);
    let begun = Instant::now();
    say(&stream, b"one");
    thread::sleep(SHORT / 5);
    say(&stream, b"two");
    hears(&stream, b"one");
    assert!(begun.elapsed() >= 3 * SHORT);
    hears(&stream, b"two");
    assert!(begun.elapsed() < 6 * SHORT, "the delays of two replies overlap");
    proxy.delay(Duration::from_secs(3600));
    say(&stream, b"three");
    hears_nothing(&stream);
    proxy.pass();
    hears(&stream, b"three");
}

#[test]
fn cuts_in_the_midst_of_a_reply() {
    let proxy = Proxy::in_front_of(echo_server());
    let [old, idle] = [connect(&proxy), connect(&proxy)];
    say(&old, b"before");
    hears(&old, b"before");
    proxy.cut_replies_after(5);
    let new = connect(&proxy);
    for stream in [&old, &new] {
        say(stream, b"one");
        hears(stream, b"one");
        say(stream, b"two");
        hears(stream, b"tw");
        is_reset(stream);
    }
    soon(|| proxy.open() == 1);
    proxy.cut_replies_after(0);
    say(&idle, b"lost");
    is_reset(&idle);
}

#[test]
fn a_black_hole_swallows_both_directions() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let old = connect(&proxy);
    proxy.black_hole();
    let new = connect(&proxy);
    for stream in [&old, &new] {
        say(stream, b"INCR count\r\n");
        hears_nothing(stream);
    }
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    hears_nothing(&new);
    assert_eq!((proxy.connections(), proxy.open()), (2, 2));
    proxy.pass();
    assert_eq!((&new).read(&mut [0]).unwrap(), 0, "the server has closed it meanwhile");
    let stream = connect(&proxy);
    say(&stream, b"INCR count\r\n");
    hears(&stream, b":1\r\n");
}

#[test]
fn a_lost_reply_belongs_to_a_request_that_counted() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let stream = connect(&proxy);
    proxy.drop_replies();
    say(&stream, b"INCR count\r\n");
    hears_nothing(&stream);
    assert_eq!(server.command(&["GET", "count"]), "$1\r\n1\r\n");
    proxy.pass();
    say(&stream, b"INCR count\r\n");
    hears(&stream, b":2\r\n");
}

#[test]
fn cuts_at_once_and_refuses() {
    let proxy = Proxy::in_front_of(echo_server());
    let [idle, busy, deaf] = [connect(&proxy), connect(&proxy), connect(&proxy)];
    say(&busy, b"one");
    hears(&busy, b"one");
    // A client that never reads: its replies fill all buffers.
    deaf.set_write_timeout(Some(SHORT)).unwrap();
    while (&deaf).write(&[0; 100_000]).is_ok() {}
    proxy.cut();
    assert_eq!((proxy.connections(), proxy.open()), (3, 0));
    is_reset(&idle);
    is_reset(&busy);
    let open = connect(&proxy);
    say(&open, b"two");
    hears(&open, b"two");
    proxy.refuse();
    is_refused(&proxy);
    say(&open, b"three");
    hears(&open, b"three");
    assert_eq!((proxy.connections(), proxy.open()), (5, 1));
    proxy.pass();
    let again = connect(&proxy);
    say(&again, b"four");
    hears(&again, b"four");
}

#[test]
fn nobody_behind_it_is_a_reset() {
    let proxy = Proxy::in_front_of(free_port());
    is_refused(&proxy);
}

#[test]
fn rewrites_within_and_across_pieces() {
    let proxy = Proxy::in_front_of(echo_server());
    let stream = connect(&proxy);
    proxy.rewrite(b"aab", b"xyz");
    say(&stream, b"aab aaab aa-");
    hears(&stream, b"xyz axyz aa-");
    say(&stream, b"-a");
    hears(&stream, b"-");
    say(&stream, b"a");
    hears_nothing(&stream);
    say(&stream, b"b-aa");
    hears(&stream, b"xyz-");
    proxy.pass();
    say(&stream, b"b");
    hears(&stream, b"aab");
}

#[test]
fn a_server_can_claim_another_version() {
    let server = RedisServer::start();
    let info = server.command(&["INFO", "server"]);
    let version = info.lines().find(|line| line.starts_with("redis_version:")).unwrap();
    let claim = format!("redis_version:{:0<width$}", "5.", width = version.len() - "redis_version:".len());
    let proxy = Proxy::in_front_of(server.port());
    proxy.rewrite(version.as_bytes(), claim.as_bytes());
    let mut stream = connect(&proxy);
    say(&stream, b"INFO server\r\nQUIT\r\n");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.contains(&claim) && !reply.contains(version), "{reply}");
}

#[test]
fn is_gone_when_dropped() {
    let proxy = Proxy::in_front_of(echo_server());
    proxy.black_hole();
    let stream = connect(&proxy);
    soon(|| proxy.open() == 1);
    let port = proxy.port();
    drop(proxy);
    is_reset(&stream);
    assert_eq!(TcpStream::connect(("127.0.0.1", port)).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
