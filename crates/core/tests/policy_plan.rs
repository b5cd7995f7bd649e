//! What a policy says of a request: whose bucket, of which class, by which plan, at which cost. Nobody gets a fresh bucket by
//! writing the same thing in another way.

#![cfg(feature = "policy")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot set itself up fails"
)]

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::common::config;
use proptest::prelude::*;
use tollgate_core::Timestamp;
use tollgate_core::policy::path::normal;
use tollgate_core::policy::{Charges, Facts, Headers, KeyBytes, Listed, NoTokens, Planned, Policy, Tokens};

fn read(text: &str) -> Policy {
    Policy::read(text).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}")).0
}

fn plan<'p>(policy: &'p Policy, facts: &Facts<'_>) -> Planned<'p> {
    policy.plan(facts, &NoTokens, Timestamp::ZERO)
}

/// The bucket of the first limiter.
fn key(policy: &Policy, facts: &Facts<'_>) -> KeyBytes {
    let planned = policy.plan_unblocked(facts, &NoTokens, Timestamp::ZERO);
    let charged = planned.charged.first().unwrap_or_else(|| panic!("nothing is charged: {facts:?}"));
    planned.keys[charged.key].clone()
}

fn ip(text: &str) -> Option<IpAddr> {
    Some(text.parse().unwrap())
}

type Pairs<'h> = [(&'h str, &'h str)];

/// The bucket of a request with these headers, from this peer.
fn key_of(policy: &Policy, peer: &str, headers: &Pairs<'_>) -> KeyBytes {
    let headers = headers.to_vec();
    key(policy, &Facts { peer: ip(peer), headers: &headers, ..Facts::default() })
}

/// Callers by their key, or else by their address, behind proxies in 10.0.0.0/8.
const BY_KEY: &str = "
identify: { caller: [header: x-api-key, ip] }
trusted_proxies: [10.0.0.0/8, 'fd00::/8']
limiters: { l: { rate: 5/s } }
";

/// Callers by their address alone.
const BY_IP: &str = "
trusted_proxies: [10.0.0.0/8]
limiters: { l: { rate: 5/s, per: ip } }
";

#[test]
fn fault_31_a_forged_address_of_an_untrusted_peer_changes_nothing() {
    for text in [BY_KEY, BY_IP] {
        let policy = read(text);
        let honest = key_of(&policy, "203.0.113.9", &[]);
        for forged in ["1.1.1.1", "10.0.0.1", "::1", "1.1.1.1, 10.0.0.1", "for=1.1.1.1", ""] {
            for name in ["x-forwarded-for", "forwarded", "x-real-ip", "cf-connecting-ip", "X-Forwarded-For"] {
                assert_eq!(key_of(&policy, "203.0.113.9", &[(name, forged)]), honest, "{name}: {forged}");
            }
        }
    }
}

#[test]
fn fault_32_what_a_client_puts_before_what_a_proxy_appends_changes_nothing() {
    for text in [BY_KEY, BY_IP] {
        let policy = read(text);
        let real = key_of(&policy, "203.0.113.9", &[]);
        for line in
            ["203.0.113.9", "1.1.1.1, 203.0.113.9", "10.0.0.9, 203.0.113.9", "x, 203.0.113.9, 10.0.0.2"]
        {
            assert_eq!(key_of(&policy, "10.0.0.1", &[("x-forwarded-for", line)]), real, "{line}");
        }
        let other = key_of(&policy, "10.0.0.1", &[("x-forwarded-for", "203.0.113.10")]);
        assert_ne!(other, real, "two clients behind one proxy are two");
    }
}

#[test]
fn fault_32_proxies_that_are_told_by_their_number_are_believed_that_far() {
    let policy = read("trusted_hops: 2\nlimiters: { l: { rate: 5/s, per: ip } }");
    let bucket = |line: &str| key_of(&policy, "198.51.100.1", &[("x-forwarded-for", line)]);
    let real = bucket("203.0.113.9, 198.51.100.2");
    assert_eq!(bucket("1.1.1.1, 203.0.113.9, 198.51.100.2"), real);
    assert_ne!(bucket("203.0.113.10, 198.51.100.2"), real, "the proxies are not taken for the client");
    // Who did not come through both of them is the peer.
    assert_eq!(bucket("203.0.113.9"), key_of(&policy, "198.51.100.1", &[]));
}

#[test]
fn fault_33_addresses_in_odd_forms_are_those_addresses_or_their_proxy() {
    let policy = read(BY_IP);
    let real = key_of(&policy, "203.0.113.9", &[]);
    let proxy = key_of(&policy, "10.0.0.1", &[]);
    for headers in [
        &[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.9")][..],
        &[("x-forwarded-for", "203.0.113.9"), ("X-Forwarded-For", "10.0.0.2")],
        &[("x-forwarded-for", "203.0.113.9:4711")],
        &[("x-forwarded-for", "\t203.0.113.9 ")],
        &[("x-forwarded-for", "::ffff:203.0.113.9")],
    ] {
        assert_eq!(key_of(&policy, "10.0.0.1", headers), real, "{headers:?}");
    }
    let hops = vec!["1.1.1.1"; 10_000].join(", ");
    assert_eq!(key_of(&policy, "10.0.0.1", &[("x-forwarded-for", &format!("{hops}, 203.0.113.9"))]), real);
    for line in
        ["unknown", "203.0.113.9, ", "203.0.113.9, _hidden", "fe80::1%eth0", "203.0.113.999", "\u{7f}", ","]
    {
        assert_eq!(key_of(&policy, "10.0.0.1", &[("x-forwarded-for", line)]), proxy, "{line}");
    }
    let policy = read(&format!("{BY_IP}address_header: forwarded\n"));
    for line in ["for=203.0.113.9", "for=1.1.1.1, For=\"203.0.113.9:80\";proto=https, for=10.0.0.2"] {
        assert_eq!(key_of(&policy, "10.0.0.1", &[("forwarded", line)]), real, "{line}");
    }
    let policy = read(&format!("{BY_IP}address_header: CF-Connecting-IP\n"));
    assert_eq!(key_of(&policy, "10.0.0.1", &[("cf-connecting-ip", "203.0.113.9")]), real);
    let twice = [("cf-connecting-ip", "203.0.113.9"), ("cf-connecting-ip", "1.1.1.1")];
    assert_eq!(key_of(&policy, "10.0.0.1", &twice), proxy);
}

#[test]
fn fault_34_all_addresses_of_an_ipv6_network_are_one_caller() {
    for text in [BY_KEY, BY_IP] {
        let policy = read(text);
        let rotated: HashSet<_> = (0..10_000u32)
            .map(|n| key_of(&policy, &format!("2001:db8:1:2::{:x}:{:x}", n % 100, n), &[]))
            .collect();
        assert_eq!(rotated.len(), 1);
        assert!(!rotated.contains(&key_of(&policy, "2001:db8:1:3::1", &[])), "the next network is another");
    }
    let wide = read(&format!("{BY_IP}identify: {{ ipv6_prefix: 56 }}\n"));
    assert_eq!(key_of(&wide, "2001:db8:1:0100::1", &[]), key_of(&wide, "2001:db8:1:01ff::1", &[]));
    assert_ne!(key_of(&wide, "2001:db8:1:0100::1", &[]), key_of(&wide, "2001:db8:1:0200::1", &[]));
}

#[test]
fn fault_34_an_ipv4_address_in_ipv6_clothes_is_that_ipv4_address() {
    for text in [BY_KEY, BY_IP] {
        let policy = read(text);
        let plain: HashSet<_> = (0..=255).map(|n| key_of(&policy, &format!("203.0.113.{n}"), &[])).collect();
        let mapped: HashSet<_> =
            (0..=255).map(|n| key_of(&policy, &format!("::ffff:203.0.113.{n}"), &[])).collect();
        assert_eq!(plain.len(), 256, "all of IPv4 is not one caller");
        assert_eq!(plain, mapped);
    }
}

#[test]
fn fault_35_a_key_that_looks_like_an_address_is_another_caller_than_the_address() {
    let policy = read(BY_KEY);
    let address = key_of(&policy, "203.0.113.9", &[]);
    let octets: &[u8] = &[203, 0, 113, 9];
    let text = [("x-api-key", "203.0.113.9")];
    assert_ne!(key_of(&policy, "203.0.113.9", &text), address);
    let raw = [("x-api-key", octets)];
    assert_ne!(key(&policy, &Facts { headers: &raw, ..Facts::default() }), address);
    // One name from several sources is several callers.
    let policy = read(
        "identify: { caller: [header: k, header: l, cookie: k, query: k, tls] }\nlimiters: { l: { rate: 5/s } }",
    );
    let with = |name: &str, value: &str| key_of(&policy, "203.0.113.9", &[(name, value)]);
    let facts = Facts::default();
    let buckets: HashSet<_> = [
        with("k", "a"),
        with("l", "a"),
        with("cookie", "k=a"),
        key(&policy, &Facts { query: "k=a", ..facts }),
        key(&policy, &Facts { tls_client: Some("a"), ..facts }),
        key(&policy, &Facts { caller: Some("a"), ..facts }),
        key(&policy, &facts),
    ]
    .into_iter()
    .collect();
    assert_eq!(buckets.len(), 7);
}

#[test]
fn fault_35_parts_of_a_key_keep_their_bounds() {
    let policy = read("limiters: { l: { rate: 5/s, per: [header: a, header: b] } }");
    let bucket = |a: &str, b: &str| key_of(&policy, "203.0.113.9", &[("a", a), ("b", b)]);
    let pairs = [("a:b", "c"), ("a", "b:c"), ("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), ("", "")];
    let buckets: HashSet<_> = pairs.iter().map(|(a, b)| bucket(a, b)).collect();
    assert_eq!(buckets.len(), pairs.len());
}

/// What a request of the property below is made of.
#[derive(Clone, Debug)]
struct Made {
    key: Vec<Vec<u8>>,
    cookie: Option<String>,
    extra: Vec<Vec<u8>>,
    path: String,
    method: String,
    host: String,
    peer: Option<IpAddr>,
}

/// Values from few letters, so that different parts often look alike.
fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[ab:/\\x01\\x02\\x04 ]{0,4}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 0..6),
        Just(vec![203, 0, 113, 9]),
        Just(b"203.0.113.9".to_vec()),
    ]
}

fn made() -> impl Strategy<Value = Made> {
    let peer = prop_oneof![
        Just(None),
        prop::sample::select(vec![
            "203.0.113.9",
            "::ffff:203.0.113.9",
            "2001:db8::1",
            "2001:db8::2",
            "2001:db8:0:1::1"
        ])
        .prop_map(ip),
    ];
    (
        prop::collection::vec(value(), 0..3),
        prop::option::of("[ab]{0,2}"),
        prop::collection::vec(value(), 0..3),
        "(/[ab%.]{0,3}){1,3}",
        prop::sample::select(vec!["GET", "get", "POST"]),
        prop::sample::select(vec!["a", "A", "a:80", "a.", "b"]),
        peer,
    )
        .prop_map(|(key, cookie, extra, path, method, host, peer)| Made {
            key,
            cookie,
            extra,
            path,
            method: method.to_owned(),
            host: host.to_owned(),
            peer,
        })
}

/// A header's value if it is always the same and not empty.
fn only(values: &[Vec<u8>]) -> Option<Vec<u8>> {
    let mut values = values.iter().map(|value| value.trim_ascii());
    let first = values.next().filter(|first| !first.is_empty())?;
    values.all(|value| value == first).then(|| first.to_vec())
}

/// What tells requests apart, part by part, in the words of the documentation.
fn told_parts(made: &Made) -> HashMap<&'static str, String> {
    let address = made.peer.map(|peer| match peer.to_canonical() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets()[..8].to_vec(),
    });
    let cookie = made.cookie.clone().filter(|cookie| !cookie.is_empty());
    let caller = match (only(&made.key), cookie) {
        (Some(key), _) => format!("key {key:?}"),
        (None, Some(cookie)) => format!("cookie {cookie}"),
        (None, None) => format!("ip {address:?}"),
    };
    HashMap::from([
        ("caller", caller),
        ("header: x-extra", format!("{:?}", only(&made.extra))),
        ("path", normal(&made.path).into_owned()),
        ("method", made.method.to_uppercase()),
        ("host", made.host.to_lowercase().replace(":80", "").replace('.', "")),
        ("ip", format!("{address:?}")),
    ])
}

fn with_made<R>(made: &Made, then: impl FnOnce(&Facts<'_>) -> R) -> R {
    let mut headers: Vec<(&str, Vec<u8>)> = Vec::new();
    headers.extend(made.key.iter().map(|value| ("x-api-key", value.clone())));
    headers.extend(made.extra.iter().map(|value| ("x-extra", value.clone())));
    headers.extend(made.cookie.iter().map(|value| ("cookie", format!("s={value}").into_bytes())));
    let Made { path, method, host, peer, .. } = made;
    then(&Facts { path, method, host, peer: *peer, headers: &headers, ..Facts::default() })
}

proptest! {
    #![proptest_config(config())]

    /// FAULTS 35, I13: requests share a bucket if nothing that the policy asks for is different, and only then.
    #[test]
    fn fault_35_keys_are_the_same_exactly_if_all_their_parts_are(a in made(), other in made(), differs in any::<[bool; 7]>()) {
        // Most pairs have nearly all in common.
        let mut b = a.clone();
        let [key_differs, cookie, extra, path, method, host, peer] = differs;
        if key_differs { b.key = other.key }
        if cookie { b.cookie = other.cookie }
        if extra { b.extra = other.extra }
        if path { b.path = other.path }
        if method { b.method = other.method }
        if host { b.host = other.host }
        if peer { b.peer = other.peer }
        let (parts_of_a, parts_of_b) = (told_parts(&a), told_parts(&b));
        let same_bucket = |per: &str| {
            let policy = read(&format!(
                "identify: {{ caller: [header: x-api-key, cookie: s, ip] }}\ntrusted_proxies: []\nlimiters: {{ l: {{ rate: 5/s, per: [{per}] }} }}"
            ));
            with_made(&a, |facts| key(&policy, facts)) == with_made(&b, |facts| key(&policy, facts))
        };
        let all = "caller, header: x-extra, path, method, host, ip";
        prop_assert_eq!(same_bucket(all), parts_of_a == parts_of_b);
        for part in all.split(", ") {
            prop_assert_eq!(same_bucket(part), parts_of_a[part] == parts_of_b[part], "{}", part);
        }
    }
}

/// Ways to write `/login` that servers take for it.
const LOGIN: [&str; 14] = [
    "/login",
    "/login/",
    "//login",
    "/./login",
    "/x/../login",
    "/%6cogin",
    "/%6Cogin",
    "/login;x",
    "/login;jsessionid=1",
    "/x/%2e%2e/login",
    "/../login",
    "/login//",
    "/login/.",
    "/;/login",
];

#[test]
fn fault_36_every_way_to_write_a_path_is_one_limiter_and_one_bucket() {
    let policy = read(
        "limiters:\n  logins: { rate: 5/min, match: [POST /login], per: path }\n  paths: { rate: 5/s, per: path }\n  rest: { rate: 5/s, per: path, match: [{ not: /login }] }\n",
    );
    let planned = |path: &str| plan(&policy, &Facts { method: "POST", path, ..Facts::default() });
    let names = |planned: &Planned| planned.charged.iter().map(|charged| charged.limiter).collect::<Vec<_>>();
    let keys = |planned: &Planned| {
        planned.charged.iter().map(|charged| planned.keys[charged.key].clone()).collect::<Vec<_>>()
    };
    let plain = planned("/login");
    assert_eq!(names(&plain), [0, 1]);
    for path in LOGIN {
        let odd = planned(path);
        assert_eq!((names(&odd), keys(&odd)), (names(&plain), keys(&plain)), "{path}");
    }
    // Servers tell these from it, and so do we; but each is in one bucket, however it is written.
    for (path, same) in [
        ("/Login", "/./Login"),
        ("/%252e%252e/login", "//%252e%252e/login"),
        ("/login\0", "/login%00"),
        ("/login%2Fx", "/login%2fx"),
        ("/log in", "/log%20in"),
        ("/login%", "/login%25"),
    ] {
        let (odd, same) = (planned(path), planned(same));
        assert_eq!(names(&odd), [1, 2], "{path}");
        assert_eq!(keys(&odd), keys(&same), "{path}");
        assert_ne!(odd.keys[odd.charged[0].key], plain.keys[plain.charged[1].key], "{path}");
    }
}

#[test]
fn fault_36_paths_of_one_pattern_are_one_bucket() {
    let policy = read("limiters: { l: { rate: 5/s, per: path, match: ['/users/{id}', '/files/*'] } }");
    let bucket = |path: &str| key(&policy, &Facts { path, ..Facts::default() });
    let many: HashSet<_> = (0..1000).map(|n| bucket(&format!("/users/{n}"))).collect();
    assert_eq!(many.len(), 1);
    assert_eq!(bucket("/files/a"), bucket("/files/a/b/c"));
    assert_ne!(bucket("/files/a"), bucket("/users/a"));
    // The pattern is that of the condition that is met, not of one that only has the path.
    let policy = read("limiters: { l: { rate: 5/s, per: path, match: [GET /a/*, POST /a/b] } }");
    let bucket = |method: &str| key(&policy, &Facts { method, path: "/a/b", ..Facts::default() });
    assert_ne!(bucket("GET"), bucket("POST"));
}

#[test]
fn hosts_are_told_apart_by_their_names_alone() {
    let policy = read("limiters: { l: { rate: 5/s, per: host } }");
    let bucket = |host: &str| key(&policy, &Facts { host, ..Facts::default() });
    for host in ["API.example.com", "api.example.com:443", "api.example.com:1", "api.example.com."] {
        assert_eq!(bucket(host), bucket("api.example.com"), "{host}");
    }
    assert_ne!(bucket("www.example.com"), bucket("api.example.com"));
}

#[test]
fn fault_37_a_key_that_is_empty_counts_as_none_and_the_same_twice_as_one() {
    let policy = read(BY_KEY);
    let address = key_of(&policy, "203.0.113.9", &[]);
    let a = key_of(&policy, "203.0.113.9", &[("x-api-key", "a")]);
    assert_ne!(a, address);
    for headers in
        [&[("x-api-key", "")][..], &[("x-api-key", " \t ")], &[("x-api-key", ""), ("X-API-KEY", " ")]]
    {
        assert_eq!(key_of(&policy, "203.0.113.9", headers), address, "{headers:?}");
    }
    for headers in [[("x-api-key", "a"), ("x-api-key", "a")], [("x-api-key", " a"), ("X-API-KEY", "a ")]] {
        assert_eq!(key_of(&policy, "203.0.113.9", &headers), a, "{headers:?}");
    }
}

/// Found by a reader: a second key, or an empty one, led past the block list and into another bucket, and the service behind took
/// the first.
#[test]
fn fault_37_who_says_two_things_of_who_is_calling_does_not_pass() {
    let policy = read(
        "identify: { caller: [header: x-api-key, cookie: s, query: key, jwt: sub, ip], jwt: { secret_env: SECRET }, plan: [header: x-plan] }\n\
         allow: [caller: me]\nplans: { p: {} }\nlimiters: { l: { rate: 5/s } }",
    );
    let listed = |headers: &dyn Headers, query: &str| {
        let facts = Facts { peer: ip("203.0.113.9"), headers, query, ..Facts::default() };
        policy.plan(&facts, &NoTokens, Timestamp::ZERO).listed
    };
    let mut headers = vec![("x-api-key", "a".to_owned())];
    assert_eq!(listed(&headers, "key=a&key=b"), Listed::No, "the first source is clear");
    for n in 0..100 {
        headers.push(("x-api-key", format!("k{n}")));
        assert_eq!(listed(&headers, ""), Listed::Unclear);
    }
    assert_eq!(listed(&[("x-api-key", "a"), ("X-API-KEY", "")], ""), Listed::Unclear);
    assert_eq!(listed(&[("cookie", "s=a; s=b")], ""), Listed::Unclear);
    assert_eq!(listed(&[("cookie", "s=a"), ("cookie", "s=")], ""), Listed::Unclear);
    assert_eq!(listed(&[("x", "")], "key=a&%6bey=b"), Listed::Unclear);
    assert_eq!(listed(&[("x-plan", "a"), ("x-plan", "b")], ""), Listed::No, "plans name nobody");
    assert_eq!(
        listed(&[("x-api-key", "a"), ("x-api-key", "b")], "key=me"),
        Listed::Unclear,
        "nor is it allowed"
    );
    struct Two;
    impl Tokens for Two {
        fn claim(&self, _: &Facts<'_>, _: &str, _: Timestamp) -> Option<String> {
            None
        }

        fn has_several(&self, _: &Facts<'_>) -> bool {
            true
        }
    }
    let facts = Facts { peer: ip("203.0.113.9"), ..Facts::default() };
    assert_eq!(policy.plan(&facts, &Two, Timestamp::ZERO).listed, Listed::Unclear);
    let goes_on = policy.plan_unblocked(&facts, &Two, Timestamp::ZERO);
    assert_eq!(goes_on.charged.len(), 1, "where nobody is refused it is charged as everybody is");
}

#[test]
fn fault_37_a_key_is_the_same_in_any_case_of_its_name_and_with_spaces_around() {
    let policy = read(BY_KEY);
    let a = key_of(&policy, "203.0.113.9", &[("x-api-key", "a")]);
    for header in [("X-Api-Key", "a"), ("X-API-KEY", " a"), ("x-api-key", "\ta  ")] {
        assert_eq!(key_of(&policy, "198.51.100.1", &[header]), a, "{header:?}");
    }
    assert_ne!(key_of(&policy, "203.0.113.9", &[("x-api-key", "A")]), a, "values have their case");
}

#[test]
fn fault_37_long_and_odd_keys_are_callers_of_their_own() {
    let policy = read(BY_KEY);
    let bucket = |value: &[u8]| {
        let headers = [("x-api-key", value)];
        key(&policy, &Facts { peer: ip("203.0.113.9"), headers: &headers, ..Facts::default() })
    };
    let long = vec![b'x'; 64 << 10];
    let mut longer = long.clone();
    longer.push(b'y');
    assert_eq!(bucket(&long), bucket(&long));
    assert_ne!(bucket(&long), bucket(&longer), "nothing is cut off");
    let odd: [&[u8]; 4] = [b"\xff\xfe", b"\xff", "\u{fffd}".as_bytes(), b"a\0b"];
    assert_eq!(odd.iter().map(|odd| bucket(odd)).collect::<HashSet<_>>().len(), 4);
}

#[test]
fn fault_37_cookies_and_parameters_that_say_nothing_count_as_none() {
    let policy = read("identify: { caller: [cookie: s, query: key] }\nlimiters: { l: { rate: 5/s } }");
    let nobody = key(&policy, &Facts::default());
    let cookie = |line: &str| key_of(&policy, "203.0.113.9", &[("cookie", line)]);
    let query = |query: &str| key(&policy, &Facts { query, ..Facts::default() });
    for line in ["s=", "s", "ss=a", "s=\"\""] {
        assert_eq!(cookie(line), nobody, "{line}");
    }
    for line in ["s=a", "x=1; s=a", "s=\"a\"", "s = a ; t=1", "s=a; s=a"] {
        assert_eq!(cookie(line), cookie("s=a"), "{line}");
    }
    for text in ["key=", "key", "k=a"] {
        assert_eq!(query(text), nobody, "{text}");
    }
    for text in ["key=a", "x=1&key=a", "%6bey=%61", "key=a&key=a"] {
        assert_eq!(query(text), query("key=a"), "{text}");
    }
}

#[test]
fn fault_38_who_has_no_key_is_in_a_bucket_of_its_own() {
    let policy = read(
        "identify: { caller: [header: x-api-key] }\nlimiters: { l: { rate: 5/s }, m: { rate: 5/s, per: [caller, method] } }",
    );
    let keys = |headers: &dyn Headers| {
        let facts = Facts { peer: ip("203.0.113.9"), headers, ..Facts::default() };
        let planned = plan(&policy, &facts);
        planned.charged.iter().map(|charged| planned.keys[charged.key].clone()).collect::<Vec<_>>()
    };
    let none: [(&str, &[u8]); 0] = [];
    let nobody = keys(&none);
    assert_eq!(nobody.len(), 2, "nobody is limited too");
    assert_eq!(keys(&[("x-api-key", "")]), nobody);
    for value in [&b"anonymous"[..], b"nobody", b"\0", b"\0\0\0\0", b"-", b"null", b"0"] {
        let real = keys(&[("x-api-key", value)]);
        assert!(real.iter().zip(&nobody).all(|(real, nobody)| real != nobody), "{value:?}");
    }
    // Where the address is not known either, nobody is nobody.
    let policy = read(BY_KEY);
    let facts = Facts::default();
    assert_ne!(key(&policy, &facts), key(&policy, &Facts { peer: ip("0.0.0.0"), ..facts }));
}

#[test]
fn fault_41_what_is_printed_of_a_request_or_a_policy_tells_nobodys_key() {
    let canary = "sk_canary_7f3a";
    let bytes = format!("{:?}", canary.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']);
    let policy = read(&format!(
        "
store: {{ url: 'redis://u:{canary}@cache', secret: {canary} }}
identify: {{ caller: [header: x-api-key, ip], plan: [table], table: {{ {canary}: a }} }}
trusted_proxies: []
plans: {{ a: {{ rate: 5/s }} }}
classes: {{ a: [header x-api-key: {canary}] }}
limiters: {{ l: {{ rate: 5/s, per: [caller, header: x-api-key], match: [{{ not: {{ header x-api-key: {canary}b }} }}] }} }}
overrides: {{ {canary}: {{ l: 9/s }} }}
allow: [caller: {canary}a]
block: [caller: {canary}b]
"
    ));
    let headers = [("x-api-key", canary), ("cookie", canary), ("authorization", canary)];
    let facts = Facts {
        headers: &headers,
        query: canary,
        caller: Some(canary),
        tls_client: Some(canary),
        peer: ip("203.0.113.9"),
        ..Facts::default()
    };
    let planned = plan(&policy, &facts);
    assert_eq!(planned.charged.len(), 1);
    for shown in
        [format!("{facts:?}"), format!("{policy:?}"), format!("{planned:?}"), format!("{:?}", policy.store())]
    {
        assert!(
            !shown.contains(canary) && !shown.contains(bytes) && !shown.contains("203.0.113.9"),
            "{shown}"
        );
        assert!(!shown.contains("203, 0, 113, 9"), "{shown}");
    }
}

const PLANS: &str = "
trusted_proxies: [10.0.0.0/8]
plans: { free: { rate: 5/s }, pro: { rate: 50/s }, none: { rate: unlimited } }
limiters: { l: { rate: plan } }
";

fn plan_name(policy: &Policy, facts: &Facts<'_>) -> String {
    policy.plans()[plan(policy, facts).plan.unwrap()].name.to_string()
}

#[test]
fn a_plan_in_a_header_is_believed_of_trusted_proxies_alone() {
    for (source, headers, query) in [
        ("header: x-plan", [("X-Plan", "pro")], ""),
        ("cookie: plan", [("cookie", "plan=pro")], ""),
        ("query: plan", [("x", "y")], "plan=pro"),
    ] {
        let policy = read(&format!("{PLANS}identify: {{ plan: [{source}] }}\n"));
        let facts = Facts { query, headers: &headers, ..Facts::default() };
        assert_eq!(plan_name(&policy, &Facts { peer: ip("10.0.0.1"), ..facts }), "pro");
        assert_eq!(plan_name(&policy, &Facts { peer: ip("::ffff:10.0.0.1"), ..facts }), "pro");
        assert_eq!(plan_name(&policy, &Facts { peer: ip("203.0.113.9"), ..facts }), "free", "{source}");
    }
    // What a verified certificate says is believed of everybody.
    let policy = read(&format!("{PLANS}identify: {{ plan: [tls] }}\n"));
    let facts = Facts { peer: ip("203.0.113.9"), tls_client: Some("pro"), ..Facts::default() };
    assert_eq!(plan_name(&policy, &facts), "pro");
}

#[test]
fn a_plan_that_is_none_is_the_default_one() {
    let policy =
        read(&format!("{PLANS}identify: {{ plan: [header: x-plan, header: x-tier], default_plan: pro }}\n"));
    let of = |headers: &Pairs<'_>| {
        let headers = headers.to_vec();
        plan_name(&policy, &Facts { peer: ip("10.0.0.1"), headers: &headers, ..Facts::default() })
    };
    assert_eq!(of(&[]), "pro");
    assert_eq!(of(&[("x-plan", "free")]), "free");
    for unknown in ["platinum", "", "FREE", "free,pro", "\u{e9}"] {
        assert_eq!(of(&[("x-plan", unknown)]), "pro", "{unknown}");
    }
    assert_eq!(of(&[("x-plan", "free"), ("x-plan", "pro")]), "pro", "of several none counts");
    assert_eq!(of(&[("x-plan", "free"), ("x-plan", "free")]), "free", "the same twice is one");
    assert_eq!(of(&[("x-plan", "platinum"), ("x-tier", "free")]), "free", "the next source is asked");
    let first = read(PLANS);
    assert_eq!(plan_name(&first, &Facts::default()), "free", "the first of the file unless said otherwise");
}

#[test]
fn plans_of_a_table_are_by_caller_and_an_address_cannot_be_pretended() {
    let policy = read(&format!(
        "{PLANS}identify: {{ caller: [header: x-api-key, ip], plan: [table], table: {{ sk_1: pro, 203.0.113.9: pro, '2001:db8::1': pro }} }}\n"
    ));
    let of = |peer: &str, headers: &Pairs<'_>| {
        let headers = headers.to_vec();
        plan_name(&policy, &Facts { peer: ip(peer), headers: &headers, ..Facts::default() })
    };
    assert_eq!(of("198.51.100.1", &[("x-api-key", "sk_1")]), "pro");
    assert_eq!(of("198.51.100.1", &[("x-api-key", "sk_2")]), "free");
    assert_eq!(of("203.0.113.9", &[]), "pro");
    assert_eq!(of("::ffff:203.0.113.9", &[]), "pro");
    assert_eq!(of("2001:db8::ffff", &[]), "pro", "addresses of one network are one caller");
    assert_eq!(of("198.51.100.1", &[("x-api-key", "203.0.113.9")]), "free");
}

/// The plan of a caller who brings this key.
fn plan_by_key(policy: &Policy, value: &str) -> String {
    let headers = [("x-api-key", value)];
    plan_name(policy, &Facts { peer: ip("203.0.113.9"), headers: &headers, ..Facts::default() }).to_owned()
}

/// Callers by their keys, with a table.
fn with_table(table: &str) -> Policy {
    read(&format!(
        "{PLANS}identify: {{ caller: [header: x-api-key, query: key, ip], plan: [table], table: {{ {table} }} }}\n"
    ))
}

#[test]
fn plans_of_a_table_may_be_by_pattern_and_a_whole_name_goes_before() {
    let policy = with_table("'std_*': pro, std_1: free, '*_trial': none, 'a*b*c': none");
    for (name, plan) in [
        ("std_", "pro"),
        ("std_2", "pro"),
        ("std_11", "pro"),
        ("std_1", "free"),
        ("std", "free"),
        ("STD_2", "free"),
        ("x_std_2", "free"),
        ("x_trial", "none"),
        ("_trial", "none"),
        ("trial", "free"),
        ("abc", "none"),
        ("a-b-c", "none"),
        ("acb", "free"),
        ("std_*", "pro"),
    ] {
        assert_eq!(plan_by_key(&policy, name), plan, "{name}");
    }
}

#[test]
fn of_several_patterns_the_longest_text_wins_and_then_the_first() {
    let shorter_first = with_table("'*': none, 'sk_*': free, 'sk_live_*': pro");
    let longer_first = with_table("'sk_live_*': pro, 'sk_*': free, '*': none");
    for policy in [&shorter_first, &longer_first] {
        assert_eq!(plan_by_key(policy, "sk_live_1"), "pro");
        assert_eq!(plan_by_key(policy, "sk_test_1"), "free");
        assert_eq!(plan_by_key(policy, "else"), "none");
    }
    // Stars are no text: `*b*c` has two, `a*` has one.
    assert_eq!(plan_by_key(&with_table("'a*': pro, '*b*c': none"), "abc"), "none");
    assert_eq!(plan_by_key(&with_table("'a***': pro, '*bc': none"), "abc"), "none");
    assert_eq!(plan_by_key(&with_table("'a*': pro, '*c': none"), "abc"), "pro");
    assert_eq!(plan_by_key(&with_table("'*c': none, 'a*': pro"), "abc"), "none");
}

#[test]
fn patterns_are_of_names_whichever_source_they_came_from_and_addresses_are_none() {
    let policy = with_table("'*': pro, '203.0.113.*': none");
    let of = |peer: Option<IpAddr>, query: &str| {
        plan_name(&policy, &Facts { peer, query, ..Facts::default() }).to_owned()
    };
    assert_eq!(of(ip("203.0.113.9"), "key=a"), "pro");
    assert_eq!(of(ip("203.0.113.9"), "key=203.0.113.9"), "none", "a name that looks like an address");
    assert_eq!(of(ip("203.0.113.9"), ""), "free", "an address");
    assert_eq!(of(None, ""), "free", "nobody in particular");
    let given = Facts { caller: Some("door"), ..Facts::default() };
    assert_eq!(plan_name(&policy, &given), "pro", "who is known to the door has a name, too");
    let spaced = with_table("'a*': pro");
    let facts = Facts { query: "key=+a", ..Facts::default() };
    assert_eq!(plan_name(&spaced, &facts), "pro", "spaces around a name do not count");
}

#[test]
fn a_table_has_at_most_a_thousand_patterns_and_any_number_of_names() {
    let table = |patterns: usize| {
        let names = (0..5000).map(|n| format!("name_{n}: pro"));
        let patterns = (0..patterns).map(|n| format!("'p{n}_*': none"));
        let entries = names.chain(patterns).collect::<Vec<_>>().join(", ");
        format!("{PLANS}identify: {{ caller: [header: x-api-key], plan: [table], table: {{ {entries} }} }}\n")
    };
    let policy = read(&table(1000));
    assert_eq!(plan_by_key(&policy, "name_4999"), "pro");
    assert_eq!(plan_by_key(&policy, "p999_x"), "none");
    let mistakes = Policy::read(&table(1001)).unwrap_err().to_string();
    assert!(mistakes.contains("there are more than 1000 patterns"), "{mistakes}");
}

#[test]
fn a_plan_has_its_own_limit_or_none() {
    let policy = read(&format!("{PLANS}identify: {{ plan: [tls] }}\n"));
    let charged = |plan_of: &str| {
        let planned = plan(&policy, &Facts { tls_client: Some(plan_of), ..Facts::default() });
        planned
            .charged
            .first()
            .map(|charged| policy.limiters()[charged.limiter].choices[charged.choice][0].capacity())
    };
    assert_eq!(charged("free"), Some(5));
    assert_eq!(charged("pro"), Some(50));
    assert_eq!(charged("none"), None, "unlimited");
    // The door may know the plan; what it does not know is looked for.
    let facts = Facts { tls_client: Some("free"), ..Facts::default() };
    assert_eq!(plan_name(&policy, &Facts { plan: Some("pro"), ..facts }), "pro");
    assert_eq!(plan_name(&policy, &Facts { plan: Some("platinum"), ..facts }), "free");
}

#[test]
fn overrides_are_for_their_caller_alone() {
    let policy = read(
        "
identify: { caller: [header: x-api-key, ip] }
trusted_proxies: []
plans: { free: { rate: 5/s, concurrency: 5 }, pro: { rate: 50/s, concurrency: 50 } }
limiters: { r: { rate: plan }, c: { concurrency: plan } }
overrides:
  sk_rate: { r: 999/s }
  sk_both: { r: { rate: 7/s, burst: 70 }, c: 3 }
  sk_free: { r: unlimited }
  sk_plan: { plan: pro }
  203.0.113.9: { c: 1 }
",
    );
    let of = |peer: &str, value: &str| {
        let headers = [("x-api-key", value)];
        let planned = plan(&policy, &Facts { peer: ip(peer), headers: &headers, ..Facts::default() });
        let limits = |charged: &tollgate_core::policy::Charged| {
            policy.limiters()[charged.limiter].choices[charged.choice].first().map(|limit| limit.capacity())
        };
        planned.charged.iter().map(limits).collect::<Vec<_>>()
    };
    let other = "198.51.100.1";
    assert_eq!(of(other, "sk_1"), [Some(5), Some(5)]);
    assert_eq!(of(other, "sk_rate"), [Some(999), Some(5)]);
    assert_eq!(of(other, "sk_both"), [Some(70), Some(3)]);
    assert_eq!(of(other, "sk_free"), [None, Some(5)], "no limit at all");
    assert_eq!(of(other, "sk_plan"), [Some(50), Some(50)]);
    assert_eq!(of("203.0.113.9", ""), [Some(5), Some(1)]);
    assert_eq!(of(other, "203.0.113.9"), [Some(5), Some(5)], "an address in a header is no address");
}

#[test]
fn lists_are_by_caller_and_network_and_cannot_be_pretended() {
    let policy = read(
        "
identify: { caller: [header: x-api-key, ip] }
trusted_proxies: [10.0.0.0/8]
limiters: { l: { rate: 5/s } }
allow: [192.0.2.0/24, caller: sk_ops, network: '2001:db8::/32', caller: 203.0.113.1]
block: [192.0.2.66, caller: sk_bad, caller: 203.0.113.2, network: 198.51.100.0/24]
",
    );
    let of = |peer: &str, headers: &Pairs<'_>| {
        let headers = headers.to_vec();
        let planned = plan(&policy, &Facts { peer: ip(peer), headers: &headers, ..Facts::default() });
        assert_eq!(
            planned.charged.is_empty(),
            planned.listed != Listed::No,
            "who is on a list is charged nothing"
        );
        planned.listed
    };
    assert_eq!(of("203.0.113.9", &[]), Listed::No);
    assert_eq!(of("192.0.2.7", &[]), Listed::Allowed);
    assert_eq!(of("::ffff:192.0.2.7", &[]), Listed::Allowed);
    assert_eq!(of("2001:db8:1::1", &[]), Listed::Allowed);
    assert_eq!(of("192.0.2.66", &[]), Listed::Allowed, "`allow` goes before `block`");
    assert_eq!(of("203.0.113.9", &[("x-api-key", "sk_ops")]), Listed::Allowed);
    assert_eq!(of("203.0.113.9", &[("x-api-key", "sk_bad")]), Listed::Blocked);
    assert_eq!(of("203.0.113.1", &[]), Listed::Allowed);
    assert_eq!(of("203.0.113.2", &[]), Listed::Blocked);
    assert_eq!(of("198.51.100.3", &[]), Listed::Blocked);
    assert_eq!(
        of("198.51.100.3", &[("x-api-key", "sk_1")]),
        Listed::Blocked,
        "a key does not open a network"
    );
    // What a header says is no address.
    assert_eq!(of("203.0.113.9", &[("x-api-key", "203.0.113.1")]), Listed::No);
    assert_eq!(of("203.0.113.9", &[("x-api-key", "192.0.2.7")]), Listed::No);
    assert_eq!(of("203.0.113.9", &[("x-forwarded-for", "192.0.2.7")]), Listed::No);
    assert_eq!(of("10.0.0.1", &[("x-forwarded-for", "192.0.2.7")]), Listed::Allowed);
    assert_eq!(of("10.0.0.1", &[("x-forwarded-for", "192.0.2.7, 203.0.113.9")]), Listed::No);
    // A second key does not leave the block list to a fresh name.
    let twice = [("x-api-key", "a"), ("x-api-key", "sk_bad")];
    assert_eq!(of("203.0.113.2", &twice), Listed::Blocked);
    assert_eq!(of("203.0.113.9", &twice), Listed::Unclear);
    assert_eq!(of("192.0.2.7", &twice), Listed::Allowed, "whoever it is has this address");
}

#[test]
fn a_sample_is_a_share_of_callers_and_always_the_same_ones() {
    let policy = |share: &str| {
        read(&format!(
            "identify: {{ caller: [header: k] }}\nlimiters: {{ l: {{ rate: 5/s, sample: {share} }}, m: {{ rate: 5/s, sample: {share} }} }}"
        ))
    };
    let enforced = |policy: &Policy, limiter: usize| {
        let is_enforced = |n: &u32| {
            let name = format!("caller-{n}");
            let headers = [("k", name.as_str())];
            let planned = plan(policy, &Facts { headers: &headers, ..Facts::default() });
            !planned.charged[limiter].only_watched
        };
        (0..10_000).filter(is_enforced).collect::<HashSet<u32>>()
    };
    let ten = enforced(&policy("10%"), 0);
    assert!((900..1100).contains(&ten.len()), "{}", ten.len());
    assert_eq!(ten, enforced(&policy("10%"), 0), "the same ones");
    let half = enforced(&policy("50%"), 0);
    assert!((4800..5200).contains(&half.len()), "{}", half.len());
    assert!(ten.is_subset(&half), "a larger share leaves nobody out who was in");
    let other = enforced(&policy("10%"), 1);
    assert!(ten.intersection(&other).count() < 200, "another limiter tries it on others");
    assert!(enforced(&policy("0%"), 0).is_empty());
    assert_eq!(enforced(&policy("100%"), 0).len(), 10_000);
    let few = enforced(&policy("0.5%"), 0);
    assert!((20..90).contains(&few.len()), "{}", few.len());
}

#[test]
fn a_sample_treats_all_requests_of_one_bucket_alike() {
    let is_enforced = |per: &str, name: &str, path: &str, peer: &str| {
        let policy = read(&format!(
            "identify: {{ caller: [header: k] }}\ntrusted_proxies: []\nlimiters: {{ l: {{ rate: 5/s, sample: 50%, per: {per} }} }}"
        ));
        let headers = [("k", name)];
        let facts = Facts { headers: &headers, path, peer: ip(peer), ..Facts::default() };
        !plan(&policy, &facts).charged[0].only_watched
    };
    let names: Vec<String> = (0..64).map(|n| format!("n{n}")).collect();
    let (mut paths_in, mut ips_in) = (0, 0);
    for n in 0..64 {
        let (path, peer) = (format!("/p{n}"), format!("203.0.113.{n}"));
        let of_path = is_enforced("path", "a", &path, "192.0.2.1");
        assert!(names.iter().all(|name| is_enforced("path", name, &path, "192.0.2.2") == of_path), "{path}");
        let of_ip = is_enforced("ip", "a", "/", &peer);
        assert!(names.iter().all(|name| is_enforced("ip", name, "/x", &peer) == of_ip), "{peer}");
        (paths_in, ips_in) = (paths_in + u32::from(of_path), ips_in + u32::from(of_ip));
    }
    assert!((16..48).contains(&paths_in) && (16..48).contains(&ips_in), "{paths_in} {ips_in}");
    let one = is_enforced("global", "a", "/", "192.0.2.1");
    assert!(names.iter().all(|name| is_enforced("global", name, "/x", "192.0.2.2") == one));
}

fn cost_of(policy: &Policy, facts: &Facts<'_>) -> u64 {
    plan(policy, facts).charged[0].cost
}

#[test]
fn costs_are_by_class_or_by_a_header_that_never_makes_it_free() {
    let policy = read(
        "limiters: { l: { rate: 50/s, per: global, cost: { class: { post: 5, test: 0 }, otherwise: 2 } } }",
    );
    let facts = Facts::default();
    let test = [("x-api-key", "sk_test_1")];
    assert_eq!(cost_of(&policy, &facts), 2);
    assert_eq!(cost_of(&policy, &Facts { method: "POST", ..facts }), 5);
    assert_eq!(cost_of(&policy, &Facts { headers: &test, ..facts }), 0);

    let policy = read(
        "limiters: { l: { rate: 500/s, per: global, cost: { header: x-cost, otherwise: 3, max: 100 } } }",
    );
    for (value, cost) in [
        ("7", 7),
        (" 7 ", 7),
        ("100", 100),
        ("101", 100),
        ("18446744073709551615", 100),
        ("0", 1),
        ("-0", 3),
        ("-5", 3),
        ("", 3),
        ("free", 3),
        ("1e3", 3),
        ("0x10", 3),
        ("7.5", 3),
        ("NaN", 3),
        ("18446744073709551616", 100),
        ("\u{0667}", 3),
    ] {
        let headers = [("X-Cost", value)];
        assert_eq!(cost_of(&policy, &Facts { headers: &headers, ..facts }), cost, "{value:?}");
    }
    let twice = [("x-cost", "1"), ("x-cost", "50")];
    assert_eq!(cost_of(&policy, &Facts { headers: &twice, ..facts }), 3);
    let bytes = [("x-cost", &b"\xff"[..])];
    assert_eq!(cost_of(&policy, &Facts { headers: &bytes, ..facts }), 3);
    assert_eq!(cost_of(&policy, &Facts { cost: Some(9), ..facts }), 9, "what the door knows goes first");

    let policy = read(
        "limiters: { l: { rate: 500/s, per: global, cost: { response_header: x-used, otherwise: 50 } } }",
    );
    let request = [("x-used", "1")];
    assert_eq!(
        cost_of(&policy, &Facts { headers: &request, ..facts }),
        50,
        "a request does not speak for its answer"
    );
}

#[test]
fn what_a_door_says_of_a_cost_is_for_limiters_that_ask_for_it() {
    let policy = read(
        "trusted_proxies: []
limiters:
  logins: { rate: 5/min, per: global }
  by-class: { rate: 500/s, per: global, cost: { class: { get: 2 } } }
  places: { concurrency: 5, per: global }
  tokens: { rate: 9000/min, per: global, cost: given }
  by-header: { rate: 9000/min, per: global, cost: { header: x-cost, otherwise: 3, max: 100 } }
  settled: { rate: 9000/min, per: global, cost: { response_header: x-used, otherwise: 50 } }
  heavy: { concurrency: 9000, per: global, cost: given }",
    );
    let costs = |facts: &Facts<'_>| -> Vec<u64> {
        plan(&policy, facts).charged.iter().map(|charged| charged.cost).collect()
    };
    let headers = [("x-cost", "7")];
    let facts = Facts { headers: &headers, ..Facts::default() };
    assert_eq!(costs(&facts), [1, 2, 1, 1, 7, 50, 1]);
    assert_eq!(costs(&Facts { cost: Some(4000), ..facts }), [1, 2, 1, 4000, 4000, 4000, 4000]);
    assert_eq!(
        costs(&Facts { cost: Some(0), ..facts }),
        [1, 2, 1, 0, 0, 0, 0],
        "the door may look without paying"
    );
}

#[test]
fn a_limit_of_a_callers_own_is_told_apart() {
    let policy = read(
        "identify: { caller: [header: k] }
plans: { a: { rate: 5/s }, b: { rate: 9/s } }
limiters: { l: { rate: plan, candidate: 4/s }, m: { rate: 5/s } }
overrides: { own: { l: 7/s }, free: { l: unlimited }, other: { plan: b } }",
    );
    let own = |name: &str| -> Vec<bool> {
        let headers = [("k", name)];
        let planned = plan(&policy, &Facts { headers: &headers, ..Facts::default() });
        planned.charged.iter().map(|charged| charged.is_own).collect()
    };
    assert_eq!(
        [own("own"), own("free"), own("other"), own("nobody")],
        [[true, false], [true, false], [false; 2], [false; 2]]
    );
}

#[test]
fn who_is_on_a_list_has_a_class_and_a_plan_all_the_same() {
    let policy = read(
        "identify: { caller: [header: k], plan: table, table: { ops: pro, bad: pro } }
plans: { free: { rate: 5/s }, pro: { rate: 9/s } }
limiters: { l: { rate: plan } }
allow: [caller: ops]
block: [caller: bad]",
    );
    let told = |planned: &Planned| {
        let plan = planned.plan.map(|plan| policy.plans()[plan].name.to_string());
        (planned.listed, policy.class_name(planned.class).to_owned(), plan, planned.charged.len())
    };
    let of = |name: &'static str| [("k", name)];
    let (ops, bad) = (of("ops"), of("bad"));
    let facts = |headers| Facts { method: "POST", headers, ..Facts::default() };
    let pro = Some("pro".to_owned());
    assert_eq!(told(&plan(&policy, &facts(&ops))), (Listed::Allowed, "post".to_owned(), pro.clone(), 0));
    assert_eq!(plan(&policy, &facts(&bad)).charged.len(), 0);
    let dark = policy.plan_unblocked(&facts(&bad), &NoTokens, Timestamp::ZERO);
    assert_eq!(told(&dark), (Listed::Blocked, "post".to_owned(), pro.clone(), 1));
    let allowed = policy.plan_unblocked(&facts(&ops), &NoTokens, Timestamp::ZERO);
    assert_eq!(told(&allowed), (Listed::Allowed, "post".to_owned(), pro, 0));
}

#[test]
fn the_first_class_that_matches_wins_and_the_rest_is_other() {
    let policy = read(
        "
classes:
  critical: [POST /v1/charges]
  test: [header x-api-key: sk_test_*]
  post: [POST *]
limiters:
  f: { fleet: 10, for: [critical, test] }
  c: { rate: 5/s, per: class }
",
    );
    let test = [("x-api-key", "sk_test_1")];
    let facts = Facts::default();
    for (facts, class, critical) in [
        (Facts { method: "POST", path: "/v1/charges", headers: &test, ..facts }, "critical", true),
        (Facts { method: "POST", path: "//v1/charges/", ..facts }, "critical", true),
        (Facts { method: "POST", path: "/v1/refunds", headers: &test, ..facts }, "test", true),
        (Facts { method: "POST", path: "/v1/refunds", ..facts }, "post", false),
        (Facts { method: "GET", path: "/v1/charges", ..facts }, "other", false),
    ] {
        let planned = plan(&policy, &facts);
        assert_eq!(policy.class_name(planned.class), class);
        assert_eq!(planned.charged[0].critical, critical, "{class}");
        assert!(!planned.charged[1].critical, "a rate knows nothing critical");
    }
    let bucket = |method: &str| {
        let planned = plan(&policy, &Facts { method, ..facts });
        planned.keys[planned.charged[1].key].clone()
    };
    assert_eq!(bucket("GET"), bucket("PUT"), "both are of class `other`");
    assert_ne!(bucket("GET"), bucket("POST"));
}

/// A token of `authorization: Bearer name plan`, valid for ten seconds.
struct Fake;

impl Tokens for Fake {
    fn claim(&self, facts: &Facts<'_>, claim: &str, now: Timestamp) -> Option<String> {
        let header = facts.only_header("authorization")?;
        let mut words = std::str::from_utf8(header).ok()?.strip_prefix("Bearer ")?.split(' ');
        let (sub, plan) = (words.next()?, words.next()?);
        let is_valid = now < Timestamp::from_secs(10);
        is_valid.then(|| if claim == "sub" { sub.to_owned() } else { plan.to_owned() })
    }
}

#[test]
fn claims_of_tokens_that_were_verified_name_the_caller_and_the_plan() {
    let policy = read(
        "
identify:
  caller: [jwt: sub, ip]
  plan: [jwt: plan]
  jwt: { secret_env: SECRET }
trusted_proxies: [10.0.0.0/8]
plans: { free: { rate: 5/s }, pro: { rate: 50/s } }
limiters: { l: { rate: plan } }
overrides: { eve: { l: 1/s } }
",
    );
    let of = |token: &str, peer: &str, now: u64| {
        let headers = [("authorization", token)];
        let facts = Facts { peer: ip(peer), headers: &headers, ..Facts::default() };
        let planned = policy.plan(&facts, &Fake, Timestamp::from_secs(now));
        (planned.keys[planned.charged[0].key].clone(), planned.plan, planned.charged[0].choice)
    };
    let alice = of("Bearer alice pro", "203.0.113.9", 0);
    assert_eq!(alice.1, Some(1), "a token is believed of everybody");
    assert_eq!(of("Bearer alice pro", "198.51.100.1", 9), alice, "wherever she is");
    assert_ne!(of("Bearer bob pro", "203.0.113.9", 0).0, alice.0);
    assert_eq!(of("Bearer eve pro", "203.0.113.9", 0).2, 2, "a limit of her own");
    // A token that is not valid is none: the caller is where it comes from, by the default plan.
    let nobody = of("", "203.0.113.9", 0);
    assert_eq!(of("Bearer alice pro", "203.0.113.9", 10), nobody);
    assert_eq!(of("Basic alice pro", "203.0.113.9", 0), nobody);
    assert_eq!(of("Bearer  pro", "203.0.113.9", 0).0, nobody.0, "a name that is blank is none");
    assert_eq!(nobody.1, Some(0));
}

#[test]
fn who_is_known_to_the_door_is_that_caller() {
    let policy = read(BY_KEY);
    let headers = [("x-api-key", "a")];
    let facts = Facts { peer: ip("203.0.113.9"), headers: &headers, ..Facts::default() };
    let given = key(&policy, &Facts { caller: Some("a"), ..facts });
    assert_ne!(given, key(&policy, &facts), "a name of the door is none of a header");
    assert_eq!(given, key(&policy, &Facts { caller: Some("a"), headers: &[("x-api-key", "b")], ..facts }));
    assert_eq!(key(&policy, &Facts { caller: Some(""), ..facts }), key(&policy, &facts));
}

#[test]
fn one_bucket_for_all_is_one_bucket() {
    let policy = read("limiters: { l: { rate: 5/s, per: global }, f: { fleet: 5, for: get } }");
    let headers = [("x-api-key", "a")];
    let a = plan(&policy, &Facts { peer: ip("203.0.113.9"), headers: &headers, ..Facts::default() });
    let b = plan(&policy, &Facts { path: "/x", method: "POST", ..Facts::default() });
    assert_eq!(a.keys[a.charged[0].key], b.keys[b.charged[0].key]);
    assert_eq!(a.keys[a.charged[1].key], b.keys[b.charged[1].key], "a fleet is one");
}

#[test]
fn limiters_that_ask_the_same_of_a_request_get_the_same_answer() {
    let paths = ["/a", "/b", "/a/*"];
    let matches = |number: usize| paths[number * 7 % 3];
    let mut policy = "limiters:\n".to_owned();
    for number in 0..150 {
        let limit = if number == 3 {
            "workers: {}".to_owned()
        } else {
            format!("rate: 1/s, match: ['{}']", matches(number))
        };
        policy.push_str(&format!("  l{number}: {{ {limit} }}\n"));
    }
    let policy = read(&policy);
    for (path, wanted) in [("/a", "/a"), ("/b", "/b"), ("/a/7", "/a/*"), ("/c", "")] {
        let planned = plan(&policy, &Facts { path, ..Facts::default() });
        let charged: Vec<usize> = planned.charged.iter().map(|charged| charged.limiter).collect();
        let expected: Vec<usize> =
            (0..150).filter(|number| *number != 3 && matches(*number) == wanted).collect();
        assert_eq!(charged, expected, "{path}");
    }
}

#[test]
fn a_caller_of_whom_nothing_is_known_is_nobody() {
    let policy = read("identify: { caller: [header: x-api-key, ip] }\nlimiters: { rate: { rate: 1/s } }");
    let headers = [("x-api-key", "sk_1")];
    let is_nobody = |facts: Facts<'_>| plan(&policy, &facts).is_nobody;
    assert!(is_nobody(Facts::default()));
    assert!(!is_nobody(Facts { headers: &headers, ..Facts::default() }));
    assert!(!is_nobody(Facts { peer: ip("192.0.2.1"), ..Facts::default() }));
    assert!(!is_nobody(Facts { caller: Some("alice"), ..Facts::default() }));
}

/// All that a policy can have of which nothing counts but the class and the plan of a request, and what it matches.
const BY_CLASS_AND_PLAN: &str = "
identify: { caller: [header: x-api-key, ip], plan: [table], default_plan: free, table: { 'pro_*': pro, 'odd_*': odd } }
trusted_proxies: []
plans:
  free: { rate: 50/s, concurrency: unlimited }
  pro:  { rate: 100/s, concurrency: 9 }
  odd:  { rate: unlimited, concurrency: 3 }
classes: { critical: [POST /charges], reports: [GET /reports/*], of-pro: [{ plan: pro }] }
overrides: { pro_own: { by-plan: 7/s }, pro_moved: { plan: odd } }
allow: [192.0.2.8]
block: [caller: odd_2]
limiters:
  by-plan:    { rate: plan }
  of-all:     { rate: 1000/s, per: global, cost: { class: { reports: 10 }, otherwise: 2 } }
  by-path:    { rate: 10/s, per: [caller, path] }
  concurrent: { concurrency: plan }
  fleet:      { fleet: 100, reserve: 20%, for: critical }
  dark:       { rate: 5/s, per: ip, mode: dark, candidate: { rate: 1/s } }
  twice:      { rate: [10/s, 100/h], per: [header: x-tenant] }
  reports:    { rate: 10/s, per: [caller, path], match: [GET /reports/*] }
  puts:       { rate: 10/s, match: [PUT *] }
  tenants:    { rate: 10/s, match: [header x-tenant: a] }
  more-puts:  { concurrency: 5, match: [PUT *] }
  any-case:   { rate: 10/s, per: [caller, path], match: [{ path: /Reports/*, path_case: insensitive }] }
  workers:    { workers: { source: cpu } }
";

/// One more limiter, which is for no request that is asked here. What it charges is told by each request, so all are looked at.
const BY_REQUEST: &str = "  never: { rate: 1/s, match: [GET /never], cost: given }\n";

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_known_of_a_class_and_a_plan_is_what_is_found_limiter_by_limiter(
        requests in prop::collection::vec(
            (
                prop::sample::select(vec!["GET", "HEAD", "POST", "PUT"]),
                prop::sample::select(vec!["/charges", "/reports/1", "/REPORTS/1", "/reports//1", "/", "/%2e/x"]),
                prop::option::of(prop::sample::select(vec!["pro_1", "pro_own", "pro_moved", "odd_1", "odd_2", "else"])),
                prop::option::of(prop::sample::select(vec!["a", "b"])),
                prop::sample::select(vec!["192.0.2.7", "192.0.2.8"]),
            ),
            1..8,
        ),
    ) {
        let (known, found) = (read(BY_CLASS_AND_PLAN), read(&format!("{BY_CLASS_AND_PLAN}{BY_REQUEST}")));
        for (method, path, key, tenant, peer) in requests {
            let fields: Vec<(&str, &str)> =
                key.map(|key| ("x-api-key", key)).into_iter().chain(tenant.map(|it| ("x-tenant", it))).collect();
            let facts = Facts { method, path, peer: ip(peer), headers: &fields, ..Facts::default() };
            let (known, found) = (plan(&known, &facts), plan(&found, &facts));
            let is_usual = known.listed == Listed::No && key != Some("pro_own");
            prop_assert_eq!(matches!(known.charged, Charges::Usual(..)), is_usual);
            prop_assert!(matches!(found.charged, Charges::Own(_)));
            prop_assert_eq!(&*known.charged, &*found.charged);
            prop_assert_eq!(&known.keys, &found.keys);
            prop_assert_eq!((known.class, known.plan, known.listed), (found.class, found.plan, found.listed));
        }
    }
}

/// What requests match is remembered for the first kinds of limiters, and the others are asked one by one.
#[test]
fn any_number_of_limiters_may_be_for_different_requests() {
    for kinds in [0_usize, 1, 9, 63, 64, 65, 130] {
        let matching =
            (0..kinds).map(|at| format!("  l{at}: {{ rate: 5/s, match: [GET /{at}, GET /all] }}\n"));
        let limiters: String = matching.collect();
        let policy = read(&format!("limiters:\n  of-all: {{ rate: 5/s }}\n{limiters}"));
        let charged = |path: &str| -> Vec<usize> {
            let facts = Facts { method: "GET", path, caller: Some("alice"), ..Facts::default() };
            plan(&policy, &facts).charged.iter().map(|charged| charged.limiter).collect()
        };
        for at in 0..kinds {
            assert_eq!(charged(&format!("/{at}")), [0, at + 1], "of {kinds}");
        }
        assert_eq!(charged("/all"), (0..=kinds).collect::<Vec<_>>(), "of {kinds}");
        assert_eq!(charged("/none"), [0], "of {kinds}");
    }
}
