//! The client is who the last trusted proxy saw, whatever a client claims.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::config;
use ipnet::{IpNet, Ipv6Net};
use proptest::prelude::*;
use tollgate_core::policy::Facts;
use tollgate_core::policy::address::{
    AddressHeader, ClientAddress, Networks, V6_PREFIX, parse_network, subject,
};

const PROXY: &str = "10.0.0.1";
const REAL: &str = "203.0.113.9";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn networks(texts: &[&str]) -> Networks {
    texts.iter().map(|text| parse_network(text).unwrap()).collect()
}

fn behind(header: AddressHeader, hops: Option<u8>) -> ClientAddress {
    ClientAddress { trusted: networks(&["10.0.0.0/8", "2001:db8:ffff::/48"]), hops, header }
}

fn named(header: &AddressHeader) -> &str {
    match header {
        AddressHeader::XForwardedFor => "X-Forwarded-For",
        AddressHeader::Forwarded => "Forwarded",
        AddressHeader::Named(name) => name,
    }
}

fn client(rules: &ClientAddress, peer: &str, lines: &[impl AsRef<[u8]>]) -> IpAddr {
    let headers: Vec<_> = lines.iter().map(|line| (named(&rules.header), line.as_ref())).collect();
    rules.of(&Facts { peer: Some(ip(peer)), headers: &headers, ..Facts::default() }).unwrap()
}

#[test]
fn a_peer_that_is_not_trusted_is_the_client() {
    let named = AddressHeader::Named("cf-connecting-ip".into());
    for header in [AddressHeader::XForwardedFor, AddressHeader::Forwarded, named] {
        for hops in [None, Some(0), Some(1), Some(2)] {
            let rules = behind(header.clone(), hops);
            for line in ["1.1.1.1", "for=1.1.1.1", "1.1.1.1, 10.0.0.1", "10.0.0.1"] {
                assert_eq!(client(&rules, REAL, &[line]), ip(REAL), "{rules:?} {line}");
                let nobody = ClientAddress { trusted: Networks::default(), ..rules.clone() };
                assert_eq!(client(&nobody, PROXY, &[line]), ip(PROXY));
            }
        }
    }
}

#[test]
fn no_peer_no_client() {
    let headers = [("x-forwarded-for", REAL)];
    let facts = Facts { headers: &headers, ..Facts::default() };
    assert_eq!(ClientAddress::default().of(&facts), None);
    assert_eq!(behind(AddressHeader::XForwardedFor, Some(1)).of(&facts), None);
}

#[test]
fn the_rightmost_that_is_not_trusted_is_the_client() {
    let rules = behind(AddressHeader::XForwardedFor, None);
    for (lines, expected) in [
        (&[][..], PROXY),
        (&[REAL], REAL),
        (&["1.1.1.1, 203.0.113.9"], REAL),
        (&["1.1.1.1,203.0.113.9\t, 10.2.3.4 ,10.0.0.2"], REAL),
        (&["1.1.1.1, 203.0.113.9", "10.0.0.2"], REAL),
        (&["1.1.1.1", "203.0.113.9, 10.0.0.2", "10.0.0.3, 10.0.0.4"], REAL),
        (&["203.0.113.9:4711"], REAL),
        (&["::ffff:203.0.113.9"], REAL),
        (&["203.0.113.9, ::ffff:10.0.0.2"], REAL),
        (&["[2001:db8::1]:443, 2001:db8:ffff::7"], "2001:db8::1"),
        (&["2001:db8::1"], "2001:db8::1"),
        // All are trusted: the one that nobody spoke for.
        (&["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ] {
        assert_eq!(client(&rules, PROXY, lines), ip(expected), "{lines:?}");
        assert_eq!(client(&rules, "::ffff:10.0.0.1", lines), ip(expected), "{lines:?}");
    }
}

#[test]
fn an_entry_that_is_no_address_ends_the_search() {
    let rules = behind(AddressHeader::XForwardedFor, None);
    for bad in [
        "",
        " ",
        "unknown",
        "_hidden",
        "nonsense",
        "1.1.1",
        "1.1.1.1.1",
        "01.1.1.1",
        "1.1.1.256",
        "1.1.1.1:",
        "1.1.1.1:a",
        "1.1.1.1:123456",
        "1.1.1.1:1:1",
        "fe80::1%eth0",
        "[fe80::1%eth0]:80",
        "[fe80::1",
        "fe80::1]",
        "[1.1.1.1]",
        "[::1]80",
        "[::1]:",
        "\"1.1.1.1\"",
        "1.1.1.1 2.2.2.2",
        "for=1.1.1.1",
        "1.1.1.1;2.2.2.2",
        "0x7f000001",
        "1.1.1.1/32",
        "\u{661}.1.1.1",
    ] {
        assert_eq!(client(&rules, PROXY, &[format!("1.1.1.1, {bad}")]), ip(PROXY), "{bad}");
        assert_eq!(client(&rules, PROXY, &[format!("1.1.1.1, {bad}, 10.0.0.2")]), ip("10.0.0.2"), "{bad}");
        assert_eq!(client(&rules, PROXY, &[&format!("1.1.1.1, {bad}"), "10.0.0.2"]), ip("10.0.0.2"), "{bad}");
        assert_eq!(client(&rules, PROXY, &["1.1.1.1", bad]), ip(PROXY), "{bad}");
        assert_eq!(client(&rules, PROXY, &[format!("{bad}, {REAL}, 10.0.0.2")]), ip(REAL), "{bad}");
    }
    assert_eq!(client(&rules, PROXY, &[b"1.1.1.1, \xff\xfe"]), ip(PROXY));
}

#[test]
fn hops_are_counted_from_the_peer() {
    let line = "6.6.6.6, 5.5.5.5, 10.0.0.3, 3.3.3.3";
    for (hops, expected) in [
        (0, PROXY),
        (1, "3.3.3.3"),
        (2, "10.0.0.3"),
        (3, "5.5.5.5"),
        (4, "6.6.6.6"),
        // Fewer entries than hops: it did not come through all of them.
        (5, PROXY),
        (255, PROXY),
    ] {
        let rules = behind(AddressHeader::XForwardedFor, Some(hops));
        assert_eq!(client(&rules, PROXY, &[line]), ip(expected), "{hops}");
        assert_eq!(
            client(&rules, PROXY, &["6.6.6.6,5.5.5.5", "10.0.0.3", "3.3.3.3"]),
            ip(expected),
            "{hops}"
        );
    }
    let rules = behind(AddressHeader::XForwardedFor, Some(3));
    assert_eq!(client(&rules, PROXY, &["1.1.1.1, unknown, 2.2.2.2"]), ip("2.2.2.2"));
}

#[test]
fn forwarded_as_the_rfc_has_it() {
    let rules = behind(AddressHeader::Forwarded, None);
    for (line, expected) in [
        ("for=203.0.113.9", REAL),
        ("For=203.0.113.9;proto=https;by=10.0.0.1", REAL),
        ("proto=https; FOR = \"203.0.113.9\"", PROXY),
        ("proto=https; FOR=\"203.0.113.9\" ; host=\"a,b;c\"", REAL),
        ("for=\"203.0.113.9:4711\"", REAL),
        ("for=203.0.113.9:4711", REAL),
        ("for=\"203.0.113.9:_port-1.x\"", REAL),
        ("for=\"[2001:db8::1]\"", "2001:db8::1"),
        ("for=\"[2001:db8::1]:4711\"", "2001:db8::1"),
        ("for=\"[::ffff:203.0.113.9]\"", REAL),
        ("for=1.1.1.1, for=203.0.113.9, for=\"10.0.0.2:80\"", REAL),
        ("for=1.1.1.1, for=203.0.113.9;x=\"a \\\" , for=9.9.9.9\", for=10.0.0.2", REAL),
        ("for=1.1.1.1, for=203.0.113.9;x=\"\\\\\", for=10.0.0.2;y=\"\"", REAL),
        ("for=\"203.0.113\\.9\"", REAL),
        // Nobody's address: whoever passed it on.
        ("for=unknown", PROXY),
        ("for=1.1.1.1, for=_hidden, for=10.0.0.2", "10.0.0.2"),
        ("for=1.1.1.1, for=\"_SEVKISEK\"", PROXY),
        ("for=1.1.1.1, proto=https", PROXY),
        ("for=1.1.1.1, ", PROXY),
        ("for=1.1.1.1;for=2.2.2.2", PROXY),
        ("for=\"fe80::1%eth0\"", PROXY),
        ("for=\"[fe80::1%25eth0]:80\"", PROXY),
        ("for=\"1.1.1.1", PROXY),
        ("for=1.1.1.1\"", PROXY),
        ("for=\"1.1.1.1\\\"", PROXY),
        ("for=\"\"1.1.1.1", PROXY),
        ("for=\"1.1.1.1\"2", PROXY),
        ("for=", PROXY),
        ("for", PROXY),
        ("1.1.1.1", PROXY),
        ("=", PROXY),
        ("\\\"", PROXY),
        // A quote that the client left open swallows nothing.
        ("for=\", for=203.0.113.9", REAL),
        ("for=\"x\\, for=203.0.113.9, for=\"[2001:db8:ffff::1]:80\"", REAL),
        ("for=1.1.1.1;x=\", for=\"203.0.113.9\"", REAL),
    ] {
        assert_eq!(client(&rules, PROXY, &[line]), ip(expected), "{line}");
        assert_eq!(client(&rules, PROXY, &["for=1.1.1.1;x=\"", line]), ip(expected), "{line}");
        assert_eq!(client(&rules, PROXY, &[&format!("for=1.1.1.1, {line}")]), ip(expected), "{line}");
    }
    assert_eq!(
        client(&behind(AddressHeader::Forwarded, Some(2)), PROXY, &["for=4.4.4.4, for=5.5.5.5"]),
        ip("4.4.4.4")
    );
}

#[test]
fn a_named_header_holds_one_address() {
    let rules = behind(AddressHeader::Named("CF-Connecting-IP".into()), None);
    for (lines, expected) in [
        (&[REAL][..], REAL),
        (&[" ::ffff:203.0.113.9 "], REAL),
        (&["10.9.9.9"], "10.9.9.9"),
        (&[], PROXY),
        (&[""], PROXY),
        (&["nonsense"], PROXY),
        (&["1.1.1.1, 203.0.113.9"], PROXY),
        (&["1.1.1.1", REAL], PROXY),
        (&[REAL, REAL], REAL),
        (&["", REAL], PROXY),
    ] {
        assert_eq!(client(&rules, PROXY, lines), ip(expected), "{lines:?}");
    }
}

#[test]
fn ten_thousand_hops_are_not_walked() {
    let hop = |n: usize| format!("10.1.{}.{}", n / 250, n % 250);
    let hops: Vec<_> = (0..10_000).rev().map(hop).collect();
    let elements: Vec<_> = hops.iter().map(|hop| format!("for=\"{hop}\"")).collect();
    for (header, hops) in [(AddressHeader::XForwardedFor, hops), (AddressHeader::Forwarded, elements)] {
        for count in [None, Some(64), Some(200)] {
            let rules = behind(header.clone(), count);
            let line = [hops.join(",")];
            for lines in [&line[..], &hops] {
                assert_eq!(client(&rules, PROXY, lines), ip(&hop(63)), "{rules:?}");
            }
            for _ in 0..1000 {
                client(&rules, PROXY, &line);
            }
        }
    }
    // Nor does an endless entry cost more than to read it.
    for piece in ["\\", "\"", "\\\"", "\"\\\"", "[", ":", "for=\"", ";", "=", "for=1.1.1.1;"] {
        let line = [piece.repeat(100_000)];
        assert_eq!(client(&behind(AddressHeader::Forwarded, None), PROXY, &line), ip(PROXY));
        assert_eq!(client(&behind(AddressHeader::XForwardedFor, None), PROXY, &line), ip(PROXY));
    }
}

#[test]
fn ten_thousand_addresses_of_one_network_are_one_client() {
    let inside =
        |n: u128| IpAddr::V6(Ipv6Addr::from_bits((0x2001_0db8_0000_0001 << 64) | (n * 0x1_0000_0001)));
    assert!((0..10_000).all(|n| subject(inside(n), V6_PREFIX) == ip("2001:db8:0:1::")));
    for (address, prefix, expected) in [
        ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::"),
        ("2001:db8:1:2ff:3:4:5:6", 56, "2001:db8:1:200::"),
        ("2001:db8:1:2:3:4:5:6", 48, "2001:db8:1::"),
        ("2001:db8:1:2:3:4:5:6", 32, "2001:db8::"),
        ("2001:db8:1:2:3:4:5:6", 128, "2001:db8:1:2:3:4:5:6"),
        ("2001:db8:1:2:3:4:5:6", 0, "2001:db8::"),
        ("2001:db8:1:2:3:4:5:6", 255, "2001:db8:1:2:3:4:5:6"),
        ("192.0.2.7", 64, "192.0.2.7"),
        // Folded before it is cut: else all of IPv4 is one client.
        ("::ffff:192.0.2.7", 64, "192.0.2.7"),
        ("::ffff:192.0.2.8", 32, "192.0.2.8"),
    ] {
        assert_eq!(subject(ip(address), prefix), ip(expected), "{address}/{prefix}");
    }
}

#[test]
fn networks_hold_what_is_in_them() {
    let set = networks(&["10.0.0.0/8", "192.0.2.1", "2001:db8::/32", "::1", "::ffff:172.16.0.0/108"]);
    for inside in
        ["10.255.0.1", "::ffff:10.0.0.1", "192.0.2.1", "2001:db8:1::", "::1", "172.16.0.1", "172.31.255.255"]
    {
        assert!(set.contains(ip(inside)), "{inside}");
    }
    for outside in ["11.0.0.0", "192.0.2.2", "2001:db9::", "::2", "172.32.0.0", "::10.0.0.1"] {
        assert!(!set.contains(ip(outside)), "{outside}");
    }
    assert!(!networks(&["::/0"]).contains(ip("::ffff:1.1.1.1")));
    assert!(networks(&["0.0.0.0/0"]).contains(ip("::ffff:1.1.1.1")));
    assert!(!set.is_empty() && Networks::default().is_empty() && !Networks::default().contains(ip("::")));
    assert_eq!(networks(&["10.0.0.0/8", "::1"]), networks(&["::1/128", "10.0.0.0/8", "::1"]));
    assert_ne!(networks(&["10.0.0.0/8"]), networks(&["10.0.0.0/9"]));
    assert_eq!(Networks::from_iter(["10.1.1.1/8".parse().unwrap()]), networks(&["10.0.0.0/8"]));
}

#[test]
fn a_network_that_is_none_is_told_what_would_be_right() {
    for (text, right) in [
        ("private", "such as 10.0.0.0/8"),
        ("", "such as 10.0.0.0/8"),
        ("10.0.0/8", "such as 10.0.0.0/8"),
        ("10.0.0.1/8", "10.0.0.1/8 has bits behind its prefix: write 10.0.0.0/8"),
        ("2001:db8::1/32", "write 2001:db8::/32"),
        ("10.0.0.0/33", "from 0 to 32"),
        ("10.0.0.0/", "write 10.0.0.0/32"),
        ("10.0.0.0/+8", "from 0 to 32"),
        ("10.0.0.0/-1", "from 0 to 32"),
        ("10.0.0.1/255.0.0.0", "write 10.0.0.0/8"),
        ("::/129", "from 0 to 128"),
        ("fe80::1%eth0", "without it"),
        ("[::1]", "without them"),
    ] {
        let error = parse_network(text).unwrap_err();
        assert!(error.contains(right), "{text}: {error}");
    }
    for (text, expected) in
        [("10.0.0.0/8", "10.0.0.0/8"), ("10.0.0.1", "10.0.0.1/32"), ("::1", "::1/128"), (" ::/0 ", "::/0")]
    {
        assert_eq!(parse_network(text).unwrap().to_string(), expected);
    }
}

fn header() -> impl Strategy<Value = AddressHeader> {
    prop::sample::select(vec![
        AddressHeader::XForwardedFor,
        AddressHeader::Forwarded,
        AddressHeader::Named("x-real-ip".into()),
    ])
}

/// What a client may send: anything, and often what a parser might stumble over.
fn claim() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        8 => prop::sample::select(vec![",", ";", "=", "\"", "\\", " ", "for=", "[", "]", ":", "%", "10.0.0.7", "1.1.1.1", "2001:db8::1", "unknown"])
            .prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..4),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// What trusted proxies append, in the order in which a request meets them; the first of them saw the client.
fn chain() -> impl Strategy<Value = Vec<IpAddr>> {
    let inner = prop_oneof![
        any::<[u8; 3]>().prop_map(|[a, b, c]| IpAddr::V4(Ipv4Addr::new(10, a, b, c))),
        any::<u64>().prop_map(|low| IpAddr::V6(Ipv6Addr::from_bits(
            0x2001_0db8_ffff_0000_u128 << 64 | u128::from(low)
        ))),
    ];
    let real = prop::sample::select(vec![ip(REAL), ip("2001:db8::1")]);
    (real, prop::collection::vec(inner, 0..4)).prop_map(|(real, inner)| [vec![real], inner].concat())
}

fn written(header: &AddressHeader, address: IpAddr) -> String {
    match (header, address) {
        (AddressHeader::Forwarded, IpAddr::V4(address)) => format!("for={address};by=\"a, \\\"b\""),
        (AddressHeader::Forwarded, IpAddr::V6(address)) => format!("proto=https;for=\"[{address}]:4711\""),
        _ => address.to_string(),
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_a_client_claims_changes_nothing(
        forwarded in any::<bool>(),
        counted in any::<bool>(),
        claims in prop::collection::vec(claim(), 0..3),
        chain in chain(),
        fresh_lines in any::<u8>(),
    ) {
        let header = if forwarded { AddressHeader::Forwarded } else { AddressHeader::XForwardedFor };
        let rules = behind(header, counted.then_some(chain.len() as u8));
        let mut lines = claims;
        for (n, hop) in chain.iter().enumerate() {
            let entry = written(&rules.header, *hop);
            match lines.last_mut().filter(|_| fresh_lines >> n & 1 == 0) {
                Some(line) => line.extend_from_slice(format!(", {entry}").as_bytes()),
                None => lines.push(entry.into_bytes()),
            }
        }
        prop_assert_eq!(client(&rules, PROXY, &lines), chain[0]);
    }

    #[test]
    fn no_bytes_panic(header in header(), hops in any::<Option<u8>>(), lines in prop::collection::vec(claim(), 0..5), peer in any::<IpAddr>()) {
        let rules = ClientAddress { trusted: networks(&["0.0.0.0/0", "::/1"]), hops, header };
        let found = client(&rules, &peer.to_string(), &lines);
        prop_assert_eq!(found, found.to_canonical());
    }

    #[test]
    fn no_text_panics(text in "[0-9a-f:./%\\[\\] ]{0,24}|\\PC{0,8}") {
        if let Ok(network) = parse_network(&text) {
            prop_assert_eq!(network, network.trunc());
            prop_assert!(Networks::from_iter([network]).contains(network.addr()));
        }
    }

    #[test]
    fn sets_answer_as_their_networks_do(
        nets in prop::collection::vec((any::<IpAddr>(), any::<prop::sample::Index>()), 1..20),
        near in any::<prop::sample::Index>(),
        flip in 0..128_u32,
    ) {
        let net = |(address, prefix): &(IpAddr, prop::sample::Index)| {
            let address = address.to_canonical();
            IpNet::new(address, prefix.index(if address.is_ipv4() { 33 } else { 129 }) as u8).unwrap()
        };
        let nets: Vec<_> = nets.iter().map(net).collect();
        let address = match near.get(&nets).addr() {
            IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() ^ (1 << (flip % 32)))),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() ^ (1 << flip))),
        };
        let expected = nets.iter().any(|net| net.contains(&address.to_canonical()));
        prop_assert_eq!(nets.into_iter().collect::<Networks>().contains(address), expected);
    }

    #[test]
    fn one_subject_is_one_network(a in any::<u128>(), b in any::<u128>(), prefix in 32..=128_u8) {
        let (a, b) = (Ipv6Addr::from_bits(a), Ipv6Addr::from_bits((b >> (prefix - 1)) ^ a));
        prop_assume!(a.to_ipv4_mapped().is_none() && b.to_ipv4_mapped().is_none());
        let same = Ipv6Net::new(a, prefix).unwrap().contains(&b);
        prop_assert_eq!(subject(a.into(), prefix) == subject(b.into(), prefix), same);
        prop_assert_eq!(subject(subject(a.into(), prefix), prefix), subject(a.into(), prefix));
    }
}
