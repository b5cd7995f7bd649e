//! The PROXY protocol: a proxy that is trusted says for whom it speaks, and nobody else does.
#![allow(clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]

use crate::common::gateway;
use tollgate_testkit::Tollgate;
use tollgate_testkit::http::Upstream;

const GET: &str = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";

fn policy(trusted: &str) -> String {
    format!(
        "gateway: {{ proxy_protocol: yes, add_headers: x-real-ip, timeouts: {{ head: 1s }} }}\ntrusted_proxies: [{trusted}]\nidentify: {{ caller: [ip] }}\nlimiters: {{ one: {{ rate: 1/h, per: caller }} }}\n"
    )
}

/// The status of the answer to a request behind such a beginning.
fn status(tollgate: &Tollgate, beginning: &[u8]) -> u16 {
    let mut client = tollgate.client();
    client.send([beginning, GET.as_bytes()].concat());
    client.read().status
}

fn version_2(command: u8, source: [u8; 4]) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
    header.extend([command, 0x11, 0, 12]);
    header.extend(source);
    header.extend([192, 0, 2, 99, 0x12, 0x67, 0, 80]);
    header
}

#[test]
fn a_trusted_proxy_says_whose_connection_it_is() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&policy("127.0.0.1"), &upstream);
    let first = b"PROXY TCP4 192.0.2.1 192.0.2.99 4711 80\r\n";
    assert_eq!(status(&tollgate, first), 200);
    assert_eq!(upstream.last().header("x-forwarded-for"), ["192.0.2.1"]);
    assert_eq!(upstream.last().header("x-real-ip"), ["192.0.2.1"]);
    assert_eq!(status(&tollgate, first), 429);
    // The same client, in the other version.
    assert_eq!(status(&tollgate, &version_2(0x21, [192, 0, 2, 1])), 429);
    assert_eq!(status(&tollgate, &version_2(0x21, [192, 0, 2, 2])), 200);
    assert_eq!(upstream.last().header("x-real-ip"), ["192.0.2.2"]);
    assert_eq!(status(&tollgate, b"PROXY TCP6 2001:db8::1 ::1 4711 80\r\n"), 200);
    assert_eq!(upstream.last().header("x-real-ip"), ["2001:db8::1"]);
    // It speaks for itself.
    assert_eq!(status(&tollgate, &version_2(0x20, [192, 0, 2, 1])), 200);
    assert_eq!(upstream.last().header("x-real-ip"), ["127.0.0.1"]);
}

#[test]
fn a_header_may_come_in_pieces() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&policy("127.0.0.1"), &upstream);
    let whole = [version_2(0x21, [192, 0, 2, 7]), GET.as_bytes().to_vec()].concat();
    let mut client = tollgate.client();
    for piece in whole.chunks(5) {
        client.send(piece);
    }
    assert_eq!(client.read().status, 200);
    assert_eq!(upstream.last().header("x-real-ip"), ["192.0.2.7"]);
}

#[test]
fn a_trusted_proxy_that_says_nothing_is_not_served() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&policy("127.0.0.1"), &upstream);
    for beginning in [&b""[..], b"PROXY TCP4 nonsense\r\n", b"PROXY TCP4 192.0.2.1"] {
        let mut client = tollgate.client();
        client.send([beginning, GET.as_bytes()].concat());
        assert!(client.try_read(false).is_err());
    }
    assert!(upstream.received().is_empty());
    tollgate.says("a connection began with no PROXY protocol and was closed");
}

#[test]
fn what_an_unknown_peer_says_of_itself_is_not_believed() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&policy("10.0.0.0/8"), &upstream);
    // To others such a line is no HTTP.
    assert_eq!(status(&tollgate, b"PROXY TCP4 192.0.2.1 192.0.2.99 4711 80\r\n"), 400);
    assert_eq!(status(&tollgate, &version_2(0x21, [192, 0, 2, 1])), 400);
    assert!(upstream.received().is_empty());
    assert_eq!(status(&tollgate, b""), 200);
    assert_eq!(upstream.last().header("x-real-ip"), ["127.0.0.1"]);
}

/// Found by a reader: behind a proxy that does not say for whom it speaks, clients could.
#[test]
fn who_comes_through_a_proxy_that_names_nobody_is_not_believed_either() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&policy("127.0.0.1"), &upstream);
    let mut unix = version_2(0x21, [192, 0, 2, 1]);
    unix[13] = 0x31;
    let mut statuses = Vec::new();
    for (number, beginning) in
        [b"PROXY UNKNOWN\r\n".to_vec(), version_2(0x20, [192, 0, 2, 1]), unix].into_iter().enumerate()
    {
        let mut client = tollgate.client();
        let forged = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 9.9.9.{number}\r\n\r\n");
        client.send([beginning, forged.into_bytes()].concat());
        statuses.push(client.read().status);
        assert_eq!(upstream.last().header("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(upstream.last().header("x-real-ip"), ["127.0.0.1"]);
    }
    assert_eq!(statuses, [200, 429, 429], "and all of them are one caller: the proxy");
}

/// Found by another reader: what a load balancer asks for itself was nobody's, and no list could let it pass.
#[test]
fn a_proxy_that_speaks_for_itself_is_known_by_its_address() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{}allow: [127.0.0.1]\n", policy("127.0.0.1")), &upstream);
    for beginning in [version_2(0x20, [192, 0, 2, 1]), b"PROXY UNKNOWN\r\n".to_vec()] {
        assert_eq!([(); 3].map(|()| status(&tollgate, &beginning)), [200; 3]);
    }
}
