//! Clients that mean harm, over HTTP/1.1 and raw sockets: requests that can be read in two ways, that are too large or too
//! slow, and that claim to come from somebody else.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests on real sockets, which live in real time"
)]

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate_testkit::http::{Client, Received, Upstream};
use tollgate_testkit::{Certificates, Tollgate, wait_until};

const BINARY: &str = env!("CARGO_BIN_EXE_tollgate");

/// One request at a time: a permit that does not come back is seen by whoever is next.
const ONE: &str = "trusted_proxies: []\nlimiters: { one: { concurrency: 1, per: global } }\n";

fn gateway(policy: &str, upstream: &Upstream) -> Tollgate {
    Tollgate::start(BINARY, policy, &["--upstream", &upstream.url()])
}

/// The statuses of all answers until the connection is closed; a last one of 0 says that it is not.
fn statuses(client: &mut Client) -> Vec<u16> {
    client.stream().set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut statuses = Vec::new();
    loop {
        match client.try_read(false) {
            Ok(answer) => statuses.push(answer.status),
            Err(error) => {
                statuses.extend(is_late(&error).then_some(0));
                return statuses;
            }
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Whether it was refused and the connection closed. Who closes while the client still sends may not be heard.
fn is_refusal(statuses: &[u16]) -> bool {
    matches!(statuses, [] | [400])
}

fn paths(received: &[Received]) -> Vec<&str> {
    received.iter().map(Received::path).collect()
}

const FIRST: &str = "GET /first HTTP/1.1\r\nhost: a\r\n\r\n";

/// What one reader takes for one request and another for two, and what is no request.
const DOUBTFUL: &[&str] = &[
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 33\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\ncontent-length: 0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0, 0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: +0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 0x0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: \r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked,\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx: y\r\n\ttransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\n host: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length\t: 0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx : y\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\n: y\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\nhost: a\ncontent-length: 0\n\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx: y\ncontent-length: 0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\n\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx: y\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\rcontent-length: 33\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx: y\0z\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx\0: y\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nx: \x7f\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n10000000000000000\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0x0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0 \r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1;\nx\r\na\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\r\n z\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 18446744073709551615\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0;a\rb\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0;a\0b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost:\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: :80\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST http://a:81/x HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST http://a:443/x HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0 0;a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a@b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a:b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a:80:90\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: [::1]:b\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1\r\nhost: a/b?c\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST http://b/x HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST http://u@a/x HTTP/1.1\r\nhost: u@a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST x HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x y HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x  HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST\t/x HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.1 \r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/1.2\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x HTTP/2.0\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "POST /x\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
    "P(ST /x HTTP/1.1\r\nhost: a\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
];

#[test]
fn what_can_be_read_in_two_ways_is_refused_and_the_connection_closed() {
    let upstream = Upstream::hello();
    let tollgate = gateway(ONE, &upstream);
    for text in DOUBTFUL {
        let mut client = tollgate.client();
        client.send(text);
        let statuses = statuses(&mut client);
        assert!(is_refusal(&statuses), "{text:?}: {statuses:?}");
        let received = upstream.received();
        assert_eq!(paths(&received), [""; 0], "{text:?}");
    }
    tollgate.comes_to_rest();
    assert_eq!(tollgate.get("/others", &[]).status, 200);
}

#[test]
fn nothing_hidden_gets_through_behind_a_good_request_on_the_same_connection() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: []\nlimiters: {}", &upstream);
    for text in DOUBTFUL {
        let mut client = tollgate.client();
        client.send(FIRST);
        assert_eq!(client.read().status, 200);
        client.send(text);
        let after = statuses(&mut client);
        assert!(is_refusal(&after), "{text:?} after another: {after:?}");
        let mut client = tollgate.client();
        client.send(format!("{FIRST}{text}"));
        let pipelined = statuses(&mut client);
        assert!(matches!(pipelined.as_slice(), [] | [200] | [200, 400]), "{text:?} pipelined: {pipelined:?}");
        let received = upstream.received();
        assert!(paths(&received).iter().all(|path| *path == "/first"), "{text:?}: {:?}", paths(&received));
    }
    tollgate.comes_to_rest();
}

#[test]
fn nothing_hidden_gets_through_however_it_is_cut_into_pieces() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: []\nlimiters: {}", &upstream);
    for number in [0, 1, 3, 8, 17, 18, 26, 29, 35, 41, 44, 50] {
        let text = DOUBTFUL[number];
        // First halves on all connections, then second halves: the gateway has read the one before it gets the other.
        let mut clients: Vec<(usize, Client)> = (1..text.len()).map(|at| (at, tollgate.client())).collect();
        for (at, client) in &mut clients {
            client.send(&text[..*at]);
        }
        for (at, client) in &mut clients {
            // It may have been refused already.
            let _ = client.stream().write_all(&text.as_bytes()[*at..]);
        }
        for (at, client) in &mut clients {
            let statuses = statuses(client);
            assert!(is_refusal(&statuses), "{text:?} cut at {at}: {statuses:?}");
        }
        let received = upstream.received();
        assert_eq!(paths(&received), [""; 0], "{text:?}");
    }
    tollgate.comes_to_rest();
}

#[test]
fn what_is_odd_but_has_one_meaning_passes_and_means_the_same_behind_the_gateway() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: []\nlimiters: {}", &upstream);
    let odd = [
        ("\r\nPOST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\na\nb", "a\nb"),
        ("POST /x HTTP/1.1\r\nHOST:a\r\nTRANSFER-ENCODING:CHUNKED\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "abc"),
        (
            "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n00A;z\r\n0123456789\r\n0;end\r\n\r\n",
            "abc0123456789",
        ),
        ("POST http://a/x HTTP/1.1\r\nhost: A\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        (
            "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 33\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        ("POST /x HTTP/1.0\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        // Whitespace before an extension of a chunk, and around the value of a field.
        (
            "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3 ;a=b\r\nabc\r\n0\t;c\r\n\r\n",
            "abc",
        ),
        (
            "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: \t chunked \t\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            "abc",
        ),
        // The port that a scheme has anyway.
        ("POST http://a:80/x HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        ("POST http://a/x HTTP/1.1\r\nhost: A:80\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        ("POST https://a:443/x HTTP/1.1\r\nhost: a:\r\ncontent-length: 3\r\n\r\nabc", "abc"),
        ("POST http://[::1]:80/x HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 3\r\n\r\nabc", "abc"),
    ];
    for (number, (text, body)) in odd.into_iter().enumerate() {
        let mut client = tollgate.client();
        client.send(text);
        assert_eq!(client.read().status, 200, "{text:?}");
        let received = upstream.received();
        assert_eq!(received.len(), number + 1, "{text:?}");
        let received = received.last().unwrap();
        assert_eq!(received.line, "POST /x HTTP/1.1", "{text:?}");
        assert_eq!(received.body, body.as_bytes(), "{text:?}");
        let framing = received.header("content-length").len() + received.header("transfer-encoding").len();
        assert_eq!(framing, 1, "{text:?}: {received:?}");
    }
}

#[test]
fn early_data_behind_an_upgrade_that_is_not_agreed_to_is_a_request_like_any_other() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: []\nlimiters: { all: { rate: 1/h, per: global } }", &upstream);
    let mut client = tollgate.client();
    let upgrade = "GET /x HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    client.send(format!("{upgrade}GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"));
    assert_eq!(client.read().status, 200);
    assert_eq!(client.read().status, 429);
    assert_eq!(paths(&upstream.received()), ["/x"]);
}

#[test]
fn nobody_gets_past_the_limiters_by_changing_to_http_2_behind_them() {
    let upstream = Upstream::start(|received, stream| {
        let answer = match received.header("upgrade").as_slice() {
            [] => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            _ => "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
        };
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let tollgate = gateway("trusted_proxies: []\nlimiters: {}", &upstream);
    for protocols in ["h2c", "H2C", "websocket, h2c", "h2", "HTTP/2.0", "TLS/1.0"] {
        let headers = [
            ("connection", "upgrade, http2-settings"),
            ("upgrade", protocols),
            ("http2-settings", "AAMAAABkAAQAAP__"),
        ];
        assert_eq!(tollgate.get("/x", &headers).status, 200, "{protocols}");
        assert_eq!(upstream.last().header("upgrade"), [""; 0], "{protocols}");
    }
}

#[test]
fn methods_for_other_kinds_of_proxies_are_refused() {
    let upstream = Upstream::hello();
    let tollgate = gateway(ONE, &upstream);
    let mut client = tollgate.client();
    client.send("CONNECT a:80 HTTP/1.1\r\nhost: a:80\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.read().status, 405);
    tollgate.comes_to_rest();
    assert!(!paths(&upstream.received()).contains(&"a:80"));
}

#[test]
fn a_head_that_is_too_large_is_refused_and_others_go_on() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{ONE}gateway: {{ max_head: 8KB }}"), &upstream);
    let begin = "GET /x HTTP/1.1\r\nhost: a\r\n";
    let long = "a".repeat(9000);
    let many: String = (0..10_000).map(|number| format!("h{number}: x\r\n")).collect();
    let few: String = (0..200).map(|number| format!("h{number}: x\r\n")).collect();
    for (what, text) in [
        ("one header", format!("{begin}x: {long}\r\n\r\n")),
        ("ten thousand headers", format!("{begin}{many}\r\n")),
        ("two hundred headers", format!("{begin}{few}\r\n")),
        ("the target", format!("GET /{long} HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("the query", format!("GET /?{long} HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("the method", format!("{long} / HTTP/1.1\r\nhost: a\r\n\r\n")),
        ("a line without an end", format!("{begin}x: {}", "a".repeat(4 << 20))),
        ("a line of nothing but line ends", "\r\n".repeat(1 << 20)),
    ] {
        let mut client = tollgate.client();
        let _ = client.stream().write_all(text.as_bytes());
        if what == "a line of nothing but line ends" {
            let _ = client.stream().shutdown(std::net::Shutdown::Write);
        }
        let statuses = statuses(&mut client);
        assert!(matches!(statuses.as_slice(), [] | [400 | 414 | 431]), "{what}: {statuses:?}");
        assert_eq!(tollgate.get("/others", &[]).status, 200, "{what}");
    }
    assert!(paths(&upstream.received()).iter().all(|path| *path == "/others"));
    tollgate.comes_to_rest();
    assert!(tollgate.memory() < 200 << 20, "{} bytes", tollgate.memory());
}

/// Found by a reader: it was told that its target is none.
#[test]
fn a_target_that_is_longer_than_any_is_told_so() {
    let upstream = Upstream::hello();
    let tollgate = gateway("gateway: { max_head: 1MB }\nlimiters: {}\n", &upstream);
    for (length, status) in [(65_534, 200), (65_535, 414), (500_000, 414)] {
        let answer = tollgate.get(&format!("/{}", "a".repeat(length - 1)), &[]);
        assert_eq!(answer.status, status, "{length}: {}", answer.text());
    }
}

/// Found by a reader: nobody was told what is wrong with such a target.
#[test]
fn a_target_with_what_has_to_be_encoded_is_told_so() {
    let upstream = Upstream::hello();
    let tollgate = gateway("limiters: {}\n", &upstream);
    for target in ["/?q=\"x\"", "/?a<b", "/<id>", "/`"] {
        let answer = tollgate.get(target, &[]);
        assert_eq!(answer.status, 400, "{target}");
        assert!(answer.text().contains("are encoded in it"), "{target}: {}", answer.text());
    }
    assert_eq!(tollgate.get("/?q=%22x%22", &[]).status, 200);
}

#[test]
fn a_host_may_have_a_port_or_none_at_all() {
    let upstream = Upstream::hello();
    let tollgate = gateway("limiters: {}\n", &upstream);
    for host in ["a", "a:80", "a:", "[::1]", "[::1]:80", "a%41"] {
        assert_eq!(tollgate.get("/", &[("host", host)]).status, 200, "{host:?}");
    }
}

/// Requests of HTTP/1.0 that name no host.
const NO_HOST: [&str; 2] = ["GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.0\r\nhost:\r\n\r\n"];

/// Found by differential testing against nginx: the server got its own address in the place of the host.
#[test]
fn a_server_does_not_get_an_internal_address_as_the_host_of_a_request_without_one() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: []\nlimiters: {}\n", &upstream);
    for text in NO_HOST {
        let mut client = tollgate.client();
        client.send(text);
        assert_eq!(client.read().status, 200, "{text:?}");
        let received = upstream.last();
        assert_eq!(received.header("host"), [""], "{text:?}");
        assert_eq!(received.header("x-forwarded-host"), [""; 0], "{text:?}");
    }
    let mut client = tollgate.client();
    client.send("GET http://a.example/x HTTP/1.0\r\n\r\n");
    assert_eq!(client.read().status, 200);
    assert_eq!(upstream.last().header("host"), ["a.example"]);
}

/// Found by differential testing against nginx: such requests matched no limiter for a host.
#[test]
fn a_request_without_a_host_does_not_evade_a_policy_that_goes_by_hosts() {
    let upstream = Upstream::hello();
    let url = upstream.url();
    for policy in [
        "limiters: { l: { rate: 1/h, per: global, match: [{ host: a.example }] } }".to_owned(),
        "limiters: { l: { rate: 1/h, per: global, match: [{ path: /*, not: { host: b.example } }] } }"
            .to_owned(),
        "limiters: { l: { rate: 1/h, per: [ip, host] } }".to_owned(),
        "classes: { a: [{ host: '*.example' }] }\nlimiters: {}".to_owned(),
        format!(
            "limiters: {{}}\ngateway: {{ upstreams: {{ a: {{ match: [{{ host: a.example }}], servers: {url} }} }} }}"
        ),
    ] {
        let tollgate = gateway(&format!("trusted_proxies: []\n{policy}\n"), &upstream);
        for text in NO_HOST {
            let mut client = tollgate.client();
            client.send(text);
            let answer = client.read();
            assert_eq!(answer.status, 400, "{text:?}: {policy}");
            assert!(answer.text().contains("no Host"), "{}", answer.text());
        }
        assert_eq!(paths(&upstream.received()), [""; 0], "{policy}");
    }
}

/// Found by a reader: `/LOGIN` reaches the handler of `/login` in Express, and HEAD that of GET.
#[test]
fn another_case_of_a_path_and_head_do_not_evade_a_limiter() {
    let upstream = Upstream::hello();
    let policy = "trusted_proxies: []\npath_case: insensitive\nlimiters:\n  login: { rate: 1/h, per: global, match: [POST /login] }\n  search: { rate: 1/h, per: global, match: [GET /search] }\n";
    let tollgate = gateway(policy, &upstream);
    let ask = |method: &str, path: &str| tollgate.client().ask(method, path, &[], b"").status;
    assert_eq!(ask("POST", "/login"), 200);
    for path in ["/login", "/LOGIN", "/Login/", "/%4Cogin", "/./lOGIN?a"] {
        assert_eq!(ask("POST", path), 429, "{path}");
    }
    assert_eq!(ask("HEAD", "/search"), 200);
    assert_eq!((ask("GET", "/search"), ask("HEAD", "/SEARCH")), (429, 429));
    assert_eq!(ask("OPTIONS", "/search"), 200);
}

#[test]
fn a_body_that_is_too_large_is_refused_at_once_or_broken_off_and_others_go_on() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{ONE}gateway: {{ max_body: 64KB }}"), &upstream);
    let announced = "POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 65537\r\n";
    for head in [announced.to_owned(), format!("{announced}expect: 100-continue\r\n")] {
        let mut client = tollgate.client();
        client.send(format!("{head}\r\n"));
        let answer = client.read();
        assert_eq!((answer.status, answer.header("connection")), (413, "close"));
        assert!(client.is_closed(Duration::from_secs(10)));
        assert_eq!(upstream.connections(), 0);
    }
    let chunk = format!("1000\r\n{}\r\n", "a".repeat(4096));
    let begin = "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    for chunks in [17, 500] {
        let mut client = tollgate.client();
        let text = format!("{begin}{}0\r\n\r\n", chunk.repeat(chunks));
        let _ = client.stream().write_all(text.as_bytes());
        let statuses = statuses(&mut client);
        assert!(matches!(statuses.as_slice(), [] | [413]), "{chunks}: {statuses:?}");
    }
    assert_eq!(paths(&upstream.received()), [""; 0]);
    let mut client = tollgate.client();
    client.send(format!("{begin}{}0\r\n\r\n", chunk.repeat(16)));
    assert_eq!(client.read().status, 200);
    assert_eq!(upstream.last().body.len(), 65_536);
    tollgate.comes_to_rest();
}

/// Times that are short enough to be waited for.
const SHORT: &str = "gateway: { timeouts: { head: 1s, body: 1s, idle: 1s } }\n";

/// Closed within so long, which is far more than it has to be.
const SOON: Duration = Duration::from_secs(15);

/// Sends some bytes, one by one, until the connection is closed.
fn drip(stream: &mut TcpStream, bytes: impl IntoIterator<Item = u8>) -> Duration {
    let begun = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    for byte in bytes {
        if stream.write_all(&[byte]).is_err() {
            return begun.elapsed();
        }
        match stream.read(&mut [0; 512]) {
            Ok(0) => return begun.elapsed(),
            Err(error) if !is_late(&error) => return begun.elapsed(),
            _ => {}
        }
        assert!(begun.elapsed() < SOON, "not closed");
    }
    panic!("all was taken");
}

#[test]
fn clients_that_send_nothing_or_a_head_byte_by_byte_are_closed_in_time_and_hold_no_permit() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{ONE}{SHORT}"), &upstream);
    let mut silent = tollgate.client();
    let mut half = tollgate.client();
    half.send("GET /x HTTP/1.1\r\nhost: a\r\n");
    let mut preface = tollgate.client();
    preface.send("PRI * HTTP/2.0\r\n");
    let mut used = tollgate.client();
    assert_eq!(used.get("/used", &[]).status, 200);
    let mut used_half = tollgate.client();
    assert_eq!(used_half.get("/used", &[]).status, 200);
    used_half.send("GET /x HT");
    tollgate.comes_to_rest();
    assert_eq!(tollgate.get("/others", &[]).status, 200);
    let mut slow = tollgate.client();
    let head = format!("GET /x HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(1000));
    drip(slow.stream(), head.into_bytes());
    let mut empty = tollgate.client();
    drip(empty.stream(), b"\r\n".repeat(1000));
    for client in [&mut silent, &mut half, &mut preface, &mut used, &mut used_half] {
        assert!(client.is_closed(SOON));
    }
    assert!(paths(&upstream.received()).iter().all(|path| *path != "/x"));
    tollgate.comes_to_rest();
    tollgate.comes_to("tollgate_connections_open", 0.0);
}

#[test]
fn a_body_that_comes_byte_by_byte_is_broken_off_and_gives_its_permit_back() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{ONE}{SHORT}"), &upstream);
    for head in ["content-length: 1000", "transfer-encoding: chunked"] {
        let mut client = tollgate.client();
        client.send(format!("POST /x HTTP/1.1\r\nhost: a\r\n{head}\r\n\r\n"));
        // Also what is behind a refusal is not waited for.
        let rest = if head.starts_with('c') { b"a".repeat(1000) } else { b"1\r\na\r\n".repeat(200) };
        drip(client.stream(), rest);
        tollgate.comes_to_rest();
        assert_eq!(tollgate.get("/others", &[]).status, 200);
    }
    let mut stopped = tollgate.client();
    stopped.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nabc");
    let answer = stopped.read();
    assert_eq!((answer.status, answer.header("connection")), (408, "close"));
    assert!(stopped.is_closed(SOON));
    tollgate.comes_to_rest();
    assert_eq!(paths(&upstream.received()), ["/others", "/others"]);
}

#[test]
fn a_body_that_nobody_wants_any_more_is_not_waited_for() {
    let upstream = Upstream::hello();
    let policy = format!("trusted_proxies: []\nlimiters: {{ all: {{ rate: 1/h, per: global }} }}\n{SHORT}");
    let tollgate = gateway(&policy, &upstream);
    assert_eq!(tollgate.get("/first", &[]).status, 200);
    let mut client = tollgate.client();
    client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nabc");
    assert_eq!(client.read().status, 429);
    drip(client.stream(), b"a".repeat(900));
    tollgate.comes_to("tollgate_connections_open", 0.0);
}

#[test]
fn a_tls_handshake_that_does_not_end_is_closed_in_time() {
    let upstream = Upstream::hello();
    let policy = format!(
        "{ONE}gateway: {{ tls: {{ certificate: server.pem, key: server.key }}, timeouts: {{ head: 1s, body: 1s, idle: 1s }} }}"
    );
    let upstream_url = upstream.url();
    let tollgate = Tollgate::start_in(BINARY, &policy, &["--upstream", &upstream_url], &[], |folder| {
        drop(Certificates::write(folder))
    });
    let mut silent = tollgate.client();
    let mut plain = tollgate.client();
    plain.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut slow = tollgate.client();
    // A record of a handshake that is 512 bytes long, which never comes to its end.
    let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc].into_iter().chain(std::iter::repeat_n(3, 500));
    drip(slow.stream(), hello);
    assert!(silent.is_closed(SOON) && plain.is_closed(SOON));
    tollgate.comes_to("tollgate_connections_open", 0.0);
    assert_eq!(upstream.connections(), 0);
}

#[test]
fn a_client_that_does_not_take_its_answer_is_closed_and_gives_its_permit_back() {
    let upstream = Upstream::start(|received, stream| match received.path() {
        "/large" => {
            let piece = vec![b'a'; 1 << 20];
            let begun = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n").is_ok();
            begun && (0..1024).all(|_| stream.write_all(&piece).is_ok())
        }
        _ => stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok(),
    });
    let tollgate = gateway(&format!("{ONE}{SHORT}"), &upstream);
    let mut client = tollgate.client();
    client.send("GET /large HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.read_head().status, 200);
    assert_eq!(tollgate.metric("tollgate_requests_in_flight"), 1.0);
    assert_eq!(tollgate.get("/others", &[]).status, 429);
    tollgate.comes_to_rest();
    assert_eq!(tollgate.get("/others", &[]).status, 200);
    tollgate.comes_to("tollgate_upstream_requests_in_flight{upstream=\"default\"}", 0.0);
    assert!(tollgate.memory() < 200 << 20, "{} bytes", tollgate.memory());
}

#[test]
fn five_hundred_idle_connections_are_no_requests_in_progress() {
    let upstream = Upstream::hello();
    let policy = "trusted_proxies: []\nlimiters: { few: { concurrency: 2, per: global } }\n";
    let tollgate = gateway(policy, &upstream);
    let mut clients: Vec<Client> = (0..500).map(|_| tollgate.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/x", &[]).status, 200);
    }
    tollgate.comes_to_rest();
    assert_eq!(tollgate.metric("tollgate_connections_open"), 500.0);
    assert_eq!(tollgate.get("/next", &[]).status, 200);
    // They were not closed either.
    for client in &mut clients {
        assert_eq!(client.get("/x", &[]).status, 200);
    }
}

/// What reaches the server of a request with these headers.
fn passed(tollgate: &Tollgate, upstream: &Upstream, headers: &[(&str, &str)]) -> Received {
    assert_eq!(tollgate.get("/x", headers).status, 200, "{headers:?}");
    upstream.last()
}

#[test]
fn what_an_unknown_peer_says_of_its_address_is_neither_believed_nor_passed_on() {
    let upstream = Upstream::hello();
    let forged = [
        ("x-forwarded-for", "1.1.1.1"),
        ("X-Forwarded-For", "2.2.2.2, 3.3.3.3"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
        ("x-forwarded-host", "evil"),
        ("x-forwarded-proto", "gopher"),
        ("x-forwarded-port", "1"),
        ("true-client-ip", "1.1.1.1"),
        ("cf-connecting-ip", "1.1.1.1"),
        ("fly-client-ip", "1.1.1.1"),
        // Servers that know headers as variables of an environment take these for the ones with hyphens.
        ("x_forwarded_for", "1.1.1.1"),
        ("X_Forwarded-For", "1.1.1.1"),
        ("x_real_ip", "1.1.1.1"),
        ("x_forwarded_proto", "gopher"),
        ("true_client_ip", "1.1.1.1"),
    ];
    for trusted in ["", "10.0.0.0/8"] {
        let policy = format!(
            "trusted_proxies: [{trusted}]\naddress_header: true-client-ip\ngateway: {{ add_headers: x-real-ip }}\n\
             limiters: {{ rate: {{ rate: 2/h }} }}"
        );
        let tollgate = gateway(&policy, &upstream);
        let received = passed(&tollgate, &upstream, &forged);
        assert_eq!(received.header("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(received.header("x-real-ip"), ["127.0.0.1"]);
        assert_eq!(received.header("x-forwarded-proto"), ["http"]);
        assert_eq!(received.header("x-forwarded-host"), [tollgate.gateway.to_string()]);
        for name in ["forwarded", "x-forwarded-port", "true-client-ip", "cf-connecting-ip", "fly-client-ip"] {
            assert_eq!(received.header(name), [""; 0], "{name}");
        }
        assert!(received.headers.iter().all(|(name, _)| !name.contains('_')), "{received:?}");
        assert_eq!(tollgate.get("/x", &[]).status, 200);
        assert_eq!(tollgate.get("/x", &[("x-forwarded-for", "9.9.9.9")]).status, 429);
        assert_eq!(tollgate.get("/x", &[("true-client-ip", "9.9.9.9")]).status, 429);
    }
}

#[test]
fn behind_a_proxy_of_ours_the_rightmost_stranger_counts_over_all_lines_and_we_are_added_to_the_list() {
    let upstream = Upstream::hello();
    let policy = "trusted_proxies: [127.0.0.0/8, 10.0.0.0/8]\ngateway: { add_headers: x-real-ip }\n\
                  limiters: { rate: { rate: 1/h } }";
    let tollgate = gateway(policy, &upstream);
    let lines = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "9.9.9.9, 10.0.0.1")];
    let received = passed(&tollgate, &upstream, &lines);
    assert_eq!(received.header("x-forwarded-for"), ["1.1.1.1, 9.9.9.9, 10.0.0.1, 127.0.0.1"]);
    assert_eq!(received.header("x-real-ip"), ["9.9.9.9"]);
    let many = format!("{}9.9.9.9", "7.7.7.7, ".repeat(1000));
    for same in [
        &[("x-forwarded-for", "2.2.2.2, 9.9.9.9")][..],
        &[("x-forwarded-for", "9.9.9.9"), ("x-forwarded-for", "10.0.0.2")],
        &[("x-forwarded-for", "garbage"), ("x-forwarded-for", "9.9.9.9:4711")],
        &[("x-forwarded-for", ", 9.9.9.9")],
        &[("x-forwarded-for", "[::ffff:9.9.9.9]:1")],
        &[("x-forwarded-for", &many)],
    ] {
        assert_eq!(tollgate.get("/x", same).status, 429, "{same:?}");
    }
    assert_eq!(tollgate.get("/x", &[("x-forwarded-for", "8.8.8.8")]).status, 200);
}

#[test]
fn what_only_a_limiter_says_does_not_come_from_a_client() {
    let upstream = Upstream::hello();
    let tollgate = gateway("trusted_proxies: [127.0.0.0/8]\nlimiters: {}", &upstream);
    let received = passed(
        &tollgate,
        &upstream,
        &[
            ("RateLimit", "1"),
            ("ratelimit-policy", "1"),
            ("ratelimit-remaining", "1"),
            ("x-ratelimit-limit", "1"),
            ("x-ratelimit-remaining-requests", "1"),
            ("x-envoy-ratelimited", "true"),
            ("x-tollgate-degraded", "true"),
            ("X-Tollgate-Caller", "root"),
            ("x_ratelimit_limit", "1"),
            ("x_tollgate_caller", "root"),
            ("x-mine", "1"),
        ],
    );
    let names: Vec<&str> = received.headers.iter().map(|(name, _)| name.as_str()).collect();
    let expected = ["host", "x-mine", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
    assert_eq!(names, expected);
    let mut client = tollgate.client();
    client.send(
        "POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\ntrailer: x-tollgate-caller, x-forwarded-for, x-sum\r\n\r\n1\r\na\r\n0\r\nx-tollgate-caller: root\r\nx-forwarded-for: 1.1.1.1\r\nx-sum: 7\r\n\r\n",
    );
    assert_eq!(client.read().status, 200);
    let trailers = upstream.last().trailers;
    assert!(trailers.iter().all(|(name, _)| name == "x-sum"), "{trailers:?}");
}

#[test]
fn connection_cannot_name_away_what_matters_to_others() {
    let upstream = Upstream::start(|_, stream| {
        let answer = "HTTP/1.1 200 OK\r\nconnection: ratelimit, ratelimit-policy, x-secret, content-length\r\n\
                      x-secret: 1\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let policy = "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: [127.0.0.0/8]\nlimiters: { rate: { rate: 1/h } }";
    let tollgate = gateway(policy, &upstream);
    let named =
        "close, x-forwarded-for, X-API-Key, ratelimit, host, content-length, x-mine, cookie, authorization";
    let headers = [
        ("connection", named),
        ("x-forwarded-for", "1.1.1.1"),
        ("x-api-key", "k"),
        ("x-mine", "1"),
        ("cookie", "a=b"),
        ("authorization", "Basic Og=="),
    ];
    let answer = tollgate.get("/x", &headers);
    assert_eq!(answer.status, 200);
    assert!(answer.header("ratelimit").contains("r=0"), "{answer:?}");
    assert_eq!(answer.header("x-secret"), "");
    let received = upstream.last();
    assert_eq!(received.header("x-forwarded-for"), ["1.1.1.1, 127.0.0.1"]);
    for name in ["x-api-key", "cookie", "authorization", "host"] {
        assert_eq!(received.header(name).len(), 1, "{name}: {received:?}");
    }
    for name in ["x-mine", "connection"] {
        assert_eq!(received.header(name), [""; 0], "{name}");
    }
    assert_eq!(tollgate.get("/x", &headers).status, 429);
}

#[test]
fn no_form_of_a_key_gets_a_fresh_bucket() {
    let upstream = Upstream::hello();
    let policy = "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\nlimiters: { rate: { rate: 1/h } }";
    let tollgate = gateway(policy, &upstream);
    let ask = |fields: &[u8]| {
        let mut client = tollgate.client();
        client.send([b"GET /x HTTP/1.1\r\nhost: a\r\n", fields, b"\r\n"].concat());
        client.read().status
    };
    let long = format!("x-api-key: {}\r\n", "k".repeat(60_000));
    let spaced = format!("x-api-key:{}key\r\n", " ".repeat(1000));
    for (first, others) in [
        (
            &b"x-api-key: key\r\n"[..],
            &[
                &b"X-API-KEY: key\r\n"[..],
                b"x-api-key:key\r\n",
                b"x-api-key: \t key \t\r\n",
                spaced.as_bytes(),
            ][..],
        ),
        (long.as_bytes(), &[long.as_bytes()]),
        (b"x-api-key: \xff\xfe\r\n", &[b"x-api-key: \xff\xfe\r\n"]),
        // All of these are one caller: whoever has this address.
        (
            b"",
            &[b"x-api-key:\r\n", b"x-api-key: \r\n", b"x-api-key:\r\nX-Api-Key: \r\n", b"x_api_key: e\r\n"],
        ),
    ] {
        assert_eq!(ask(first), 200, "{}", String::from_utf8_lossy(first));
        for other in others {
            assert_eq!(ask(other), 429, "{}", String::from_utf8_lossy(other));
        }
    }
    let before = upstream.received().len();
    for several in [
        &b"x-api-key: a\r\nx-api-key: b\r\n"[..],
        b"x-api-key: c\r\nX-Api-Key: \r\n",
        b"x-api-key: \xff\r\nx-api-key: d\r\n",
    ] {
        assert_eq!(ask(several), 400, "{}", String::from_utf8_lossy(several));
    }
    assert_eq!(upstream.received().len(), before);
    assert_eq!(tollgate.metric("tollgate_unclear_callers_total"), 3.0);
}

#[test]
fn no_form_of_a_path_gets_past_its_limiter_and_the_server_gets_the_very_bytes() {
    let upstream = Upstream::hello();
    let policy = "trusted_proxies: []\nlimiters:\n  login: { rate: 1/h, per: global, match: [POST /v1/login] }\n  each: { rate: 1/h, per: [path], match: [GET /v1/*] }\n";
    let tollgate = gateway(policy, &upstream);
    let ask = |method: &str, target: &str| {
        let mut client = tollgate.client();
        client.send(format!("{method} {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        client.read().status
    };
    assert_eq!(ask("POST", "/v1/login"), 200);
    assert_eq!(ask("GET", "/v1/a/b"), 200);
    let before = upstream.received().len();
    for target in [
        "/v1/login",
        "/v1/login/",
        "/v1/login?a=b",
        "/v1/login?",
        "/v1//login",
        "//v1/login",
        "/v1/./login",
        "/./v1/login",
        "/v1/%2e/login",
        "/v1/%2E/login",
        "/v1/x/../login",
        "/v1/x/%2e%2e/login",
        "/v1/x/.%2E/login",
        "/../v1/login",
        "/v1/login;x=y",
        "/v1;x/login",
        "/v1/%6cogin",
        "/v1/%6Cogin",
        "/%76%31/login",
        "/v1/login/.",
        "/v1/login/x/..",
        "http://a/v1/login",
    ] {
        assert_eq!(ask("POST", target), 429, "{target}");
    }
    for target in ["/v1/a//b", "/v1/a/./b", "/v1/a/b/", "/v1/a/b;c", "/v1/%61/b", "/v1/x/../a/b"] {
        assert_eq!(ask("GET", target), 429, "{target}");
    }
    for target in [
        "/v1/login%00",
        "/v1/login%00.png",
        "/v1\\login",
        "/v1%5clogin",
        "/v1/%5Clogin",
        "\\v1/login",
        "/v1%2flogin",
        "/x/..%2Fv1/login",
    ] {
        assert_eq!(ask("POST", target), 400, "{target}");
    }
    assert_eq!(upstream.received().len(), before);
    for target in [
        "/a?b%2fc",
        "/a%252fb",
        "/%2e%2e/c",
        "//d//e/",
        "/f;g=h/i",
        "/j/./k/../l",
        "/m?n=%00\\&o=//",
        "/%E2%82%AC",
        "/p%",
        "/q%zz",
        "/r|s",
        "/t{u}",
        "/v\"w",
        "/%252e",
    ] {
        assert_eq!(ask("POST", target), 200, "{target}");
        assert_eq!(upstream.last().line, format!("POST {target} HTTP/1.1"));
    }
}

#[test]
fn heads_that_are_none_are_counted_and_written_down() {
    let upstream = Upstream::hello();
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let mut tollgate = Tollgate::start(BINARY, ONE, &flags);
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx: {}\r\n\r\n", "a".repeat(100_000));
    for (head, status) in [("GET / HTTP/1.1\nhost: a\n\n", 400), ("what?\r\n\r\n", 400), (&large, 431)] {
        let mut client = tollgate.client();
        let _ = client.stream().write_all(head.as_bytes());
        assert_eq!(client.try_read(false).map_or(status, |answer| answer.status), status);
    }
    tollgate.comes_to("tollgate_http_answers_total{status=\"4xx\"}", 3.0);
    tollgate.signal("TERM");
    let log = tollgate.folder().join("access.log");
    assert!(tollgate.ends(SOON));
    let log = std::fs::read_to_string(log).unwrap();
    let count = |status: &str| {
        let is_one = |line: &&str| line.contains("\"error\":\"malformed\"") && line.contains(status);
        log.lines().filter(is_one).count()
    };
    assert_eq!((count("\"status\":400"), count("\"status\":431")), (2, 1), "{log}");
}

/// Found by a reader: they were written down as 400, and looked like somebody's mistake.
#[test]
fn clients_that_leave_in_the_middle_of_their_request_are_written_down_as_such() {
    let upstream = Upstream::hello();
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let mut tollgate = Tollgate::start(BINARY, "limiters: {}\n", &flags);
    for length in ["content-length: 100\r\n\r\nabc", "transfer-encoding: chunked\r\n\r\n9\r\nabc"] {
        let mut client = tollgate.client();
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{length}"));
        tollgate.comes_to("tollgate_http_requests_in_flight", 1.0);
        drop(client);
        tollgate.comes_to_rest();
    }
    tollgate.signal("TERM");
    let log = tollgate.folder().join("access.log");
    assert!(tollgate.ends(SOON));
    let log = std::fs::read_to_string(log).unwrap();
    let is_told = |line: &&str| {
        line.contains("\"status\":499") && line.contains("the client went away in the middle of its request")
    };
    assert_eq!(log.lines().filter(is_told).count(), 2, "{log}");
}

/// Bounds that a test can wait for: a megabyte a second at least.
const FAST: &str = "gateway: { min_rate: 1MB, timeouts: { body: 1s } }\n";
/// Another for all of a body.
const WHOLE: &str = "gateway: { timeouts: { whole: 1s } }\n";

#[test]
fn a_body_below_the_least_rate_or_without_end_is_broken_off() {
    for (bounds, pause) in [(FAST, Duration::from_millis(50)), (WHOLE, Duration::from_millis(1))] {
        let upstream = Upstream::by_hand(|_, mut client| while !client.read_some().is_empty() {});
        let tollgate = gateway(&format!("{ONE}{bounds}"), &upstream);
        let mut client = tollgate.client();
        client.send("POST /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n");
        let begun = Instant::now();
        // It always comes soon, and is never enough.
        while client.stream().write_all(&[b'a'; 10_000]).is_ok() {
            assert!(begun.elapsed() < SOON, "{bounds}");
            std::thread::sleep(pause);
        }
        tollgate.comes_to_rest();
    }
}

#[test]
fn an_answer_that_is_taken_below_the_least_rate_or_without_end_is_broken_off() {
    for (bounds, pause) in [(FAST, Duration::from_millis(100)), (WHOLE, Duration::from_millis(1))] {
        let upstream = Upstream::by_hand(|_, mut client| {
            let _ = client.stream().write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            while client.stream().write_all(&[b'a'; 65_536]).is_ok() {}
        });
        let tollgate = gateway(&format!("{ONE}{bounds}"), &upstream);
        let mut client = tollgate.client();
        client.send("GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.read_head().status, 200);
        let begun = Instant::now();
        while tollgate.metric("tollgate_requests_in_flight") > 0.0 {
            assert!(begun.elapsed() < SOON, "{bounds}");
            client.read_some();
            std::thread::sleep(pause);
        }
        tollgate.comes_to_rest();
    }
}

/// Found by a reader: clients were blamed for it who took everything.
#[test]
fn an_answer_that_takes_longer_than_any_may_is_told_as_such() {
    let upstream = Upstream::by_hand(|_, mut client| {
        let _ = client.stream().write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while client.stream().write_all(b"some").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    let tollgate = Tollgate::start(BINARY, &format!("{WHOLE}limiters: {{}}\n"), &flags);
    let mut client = tollgate.client();
    client.send("GET /x HTTP/1.1\r\nhost: a\r\n\r\n");
    while !client.read_some().is_empty() {}
    let log = || std::fs::read_to_string(tollgate.folder().join("access.log")).unwrap_or_default();
    wait_until("it is written", || log().contains("/x"));
    assert!(log().contains("longer than it may as a whole (timeouts.whole)"), "{}", log());
}

#[test]
fn encoded_slashes_pass_where_the_policy_says_so() {
    let upstream = Upstream::hello();
    let policy = "gateway: { encoded_slashes: yes }\nlimiters: { login: { rate: 1/h, per: global, match: POST /a/b } }";
    let tollgate = gateway(policy, &upstream);
    for target in ["/a%2Fb", "/a%2fb"] {
        assert_eq!(tollgate.client().ask("POST", target, &[], b"").status, 200);
        assert_eq!(upstream.last().line, format!("POST {target} HTTP/1.1"));
    }
}

#[test]
fn who_takes_an_answer_slowly_over_http1_is_not_taken_to_take_nothing() {
    let upstream = Upstream::by_hand(|_, mut client| {
        let piece = vec![b'x'; 1 << 16];
        client.send("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n");
        while client.stream().write_all(&piece).is_ok() {}
    });
    let tollgate = gateway("gateway: { timeouts: { body: 1s } }\nlimiters: {}", &upstream);
    let mut client = tollgate_testkit::http::connect_narrow(tollgate.gateway);
    client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    // Five seconds, and much less than the kernel has room for.
    let mut some = [0; 4096];
    for _ in 0..100 {
        let read = std::io::Read::read(&mut client, &mut some).unwrap();
        assert!(read > 0, "it was cut off");
        std::thread::sleep(Duration::from_millis(50));
    }
}
