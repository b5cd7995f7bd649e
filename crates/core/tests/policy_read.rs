//! A policy file is read whole: every mistake is told with its place and the likely right word, and nothing panics.

#![cfg(feature = "policy")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot set itself up fails"
)]

use crate::common::config;
use crate::common::told::{check, mistakes};
use proptest::prelude::*;
use tollgate_core::answer::HeaderStyle;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::log::SubWindows;
use tollgate_core::policy::{Cost, Facts, Kind, Mode, NoTokens, Policy, Surroundings, WorkerPolicy};
use tollgate_core::store::OnFailure;
use tollgate_core::worker::Source;
use tollgate_core::{Limit, LimitError, Nanos, Timestamp};

/// The policy of the design, with a little of everything.
const DEMO: &str = "\
store: memory

identify:                           # who is calling: the first that is present
  caller: [header: x-api-key, jwt: sub, ip]
  plan:   [header: x-plan, table]   # then `default`
  table:  { sk_1: pro }
  jwt:    { jwks_file: keys.json }
trusted_proxies: [10.0.0.0/8]
path_case: insensitive

plans:
  free:     { rate: 50/s }
  standard: { rate: 500/s, burst: 2500 }
  pro:      { rate: 1000/s, burst: 5000 }

classes:                            # most important first; the first match wins
  critical: [POST /v1/charges]
  test:     [header x-api-key: sk_test_*]
  post:     [POST *]
  get:      [GET *]

limiters:
  request-rate:        { rate: plan, per: caller }
  login-attempts:      { rate: 5/min, algorithm: sliding-log, per: [caller, path], match: [POST /login], on_store_failure: closed }
  concurrent-requests: { concurrency: 20, per: caller, lease: 60s }
  fleet-usage:         { fleet: 400, reserve: 20%, for: critical }
  worker-utilization:  { workers: { good: 70%, bad: 80%, grace: 28s, full: 120s } }

overrides:
  sk_big: { request-rate: 5000/s, concurrent-requests: 200, plan: pro }
allow: [192.0.2.0/24, caller: sk_ops]
block: [198.51.100.7]
answers: { headers: ietf-11, docs_url: 'https://example.com/limits', retry_jitter: 20% }
gateway: { timeout: 60s }
";

fn read(text: &str) -> Policy {
    Policy::read(text).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}")).0
}

/// Limiters, behind what every policy of these tests needs.
fn limiters(text: &str) -> Policy {
    let (policy, warnings) =
        Policy::read(&format!("trusted_proxies: []\npath_case: sensitive\nlimiters: {{ {text} }}"))
            .unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}"));
    assert!(warnings.is_empty(), "{warnings}");
    policy
}

#[test]
fn the_policy_of_the_design_is_read_without_a_word() {
    let (policy, warnings) = Policy::read(DEMO).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    let names: Vec<_> = policy.limiters().iter().map(|limiter| &*limiter.name).collect();
    let expected =
        ["request-rate", "login-attempts", "concurrent-requests", "fleet-usage", "worker-utilization"];
    assert_eq!(names, expected);
    assert_eq!(policy.plans().len(), 3);
    assert_eq!(policy.classes().collect::<Vec<_>>(), ["critical", "test", "post", "get", "other"]);
    assert_eq!(policy.answers().headers, HeaderStyle::Ietf11);
    assert_eq!(policy.answers().retry_jitter_percent, 20);
    assert_eq!(policy.jwt().unwrap().jwks_file.as_deref(), Some("keys.json"));
}

#[test]
fn an_empty_policy_is_told_what_the_least_is() {
    for text in ["", "\n", "# nothing yet\n", "---\n", "~", "null\n", "\u{feff}"] {
        check(text, &[(1, 1, "this policy is empty", "limiters: { request-rate: { rate: 50/s } }")]);
    }
    check("store: memory\n", &[(1, 1, "`limiters` is missing", "the least is")]);
    check("hello\n", &[(1, 1, "a policy is a map", "this is a single value")]);
    check("[a, b]\n", &[(1, 1, "a policy is a map", "this is a list")]);
    assert!(limiters("").limiters().is_empty(), "no limiter at all is allowed");
}

#[test]
fn a_file_of_50_mb_is_refused_before_it_is_read() {
    let line = "# a comment that goes on and on and on and on\n";
    let text = line.repeat((50 << 20) / line.len());
    check(&text, &[(1, 1, "the file is too large: a policy may have up to 4194304 bytes (4 MiB)", "")]);
    let shown = mistakes(&text).in_file("tollgate.yaml").to_string();
    assert!(shown.len() < 500 && shown.contains("tollgate.yaml:1:1"), "{shown}");
}

#[test]
fn unknown_fields_are_told_with_the_likely_word() {
    check("limitrs: {}\n", &[(1, 1, "no field \"limitrs\"", "did you mean `limiters`?")]);
    check("limiters:\n  a: { rat: 5/s }\n", &[(2, 8, "no field \"rat\"", "did you mean `rate`?")]);
    check("limiters:\n  a: { rate: 5/s, Burst: 7 }\n", &[(2, 19, "\"Burst\"", "`burst`")]);
    check("limiters: {}\ntrusted-proxies: []\n", &[(2, 1, "\"trusted-proxies\"", "`trusted_proxies`")]);
    check("limiters: {}\nbanana: 1\n", &[(2, 1, "\"banana\"", "there are `store`, `mode`")]);
    check("limiters: {}\nstore: { uri: memory }\n", &[(2, 10, "\"uri\"", "`url`")]);
    check("limiters: {}\nidentify: { calle: ip }\n", &[(2, 13, "\"calle\"", "`caller`")]);
    check("limiters: {}\nidentify: { caller: [headr: a] }\n", &[(2, 22, "\"headr\"", "`header`")]);
    check("limiters: {}\nplans: { a: { rate: 5/s, brst: 1 } }\n", &[(2, 26, "\"brst\"", "`burst`")]);
    check("limiters: {}\nclasses: { a: [{ pth: /a }] }\n", &[(2, 18, "no condition \"pth\"", "`path`")]);
    check("limiters: {}\nanswers: { style: off }\n", &[(2, 12, "\"style\"", "there are `headers`")]);
    check("limiters: {}\ngateway: { timout: 1s }\n", &[(2, 12, "\"timout\"", "`timeout`")]);
    check("limiters:\n  a: { workers: { god: 70% } }\n", &[(2, 19, "\"god\"", "`good`")]);
    check(
        "limiters:\n  a: { rate: 5/s, cost: { hedder: x } }\n",
        &[(2, 25, "a cost is a number, `given`, or by one of", ""), (2, 27, "\"hedder\"", "`header`")],
    );
}

#[test]
fn unknown_words_are_told_with_the_likely_one() {
    for (limiter, column, what, right) in [
        ("{ rate: 5/s, algorithm: token_bucket }", 30, "no algorithm \"token_bucket\"", "`token-bucket`"),
        ("{ rate: 5/s, algorithm: slidinglog }", 30, "\"slidinglog\"", "`sliding-log`"),
        ("{ rate: 5/s, mode: drak }", 25, "no mode \"drak\"", "`dark`"),
        ("{ rate: 5/s, mode: on }", 25, "no mode \"on\"", "there are `enforce`, `dark` and `off`"),
        ("{ rate: 5/s, on_store_failure: close }", 37, "\"close\"", "`closed`"),
        ("{ rate: 5/s, per: user }", 24, "\"user\"", "there are `caller`, `plan`"),
        ("{ rate: 5/s, per: [caller, pth] }", 33, "\"pth\"", "`path`"),
        ("{ rate: 5/s, cost: givne }", 25, "a cost is a number, `given`, or by one of `class`", "`given`"),
        ("{ rate: 5/s, cost: lots }", 25, "a cost is a number, `given`, or by one of `class`", "x-cost"),
        ("{ fleet: 5, count: totl }", 25, "\"totl\"", "`total`"),
        ("{ workers: { source: cpuu } }", 27, "\"cpuu\"", "`cpu`"),
        ("{ rate: 5/s, match: GET }", 26, "\"GET\" is no condition", "`GET *`"),
        ("{ rate: 5/s, match: [a b c] }", 27, "\"a b c\" is no condition", "POST /v1/charges"),
        ("{ rate: 5/s, match: [[a]] }", 27, "this is no condition", "POST /v1/charges"),
        ("{ rate: 5/s, match: [POST v1] }", 27, "must begin with a slash", ""),
        ("{ rate: 5/s, match: [G(T /a] }", 27, "\"G(T\" is no method", "GET"),
        ("{ rate: 5/s, match: [{ network: 10.0.0.1/8 }] }", 38, "write 10.0.0.0/8", ""),
    ] {
        check(&format!("limiters:\n  a: {limiter}\n"), &[(2, column, what, right)]);
    }
    check("limiters: {}\nmode: enforced\n", &[(2, 7, "\"enforced\"", "`enforce`")]);
    check("limiters: {}\nanswers: { headers: ietf }\n", &[(2, 21, "style of headers", "`ietf-11`")]);
    check(
        "limiters: {}\nanswers: { docs_url: example.com }\n",
        &[(2, 22, "no address of a page", "https://")],
    );
    check("limiters: {}\nidentify: { caller: ipp }\n", &[(2, 21, "no source \"ipp\"", "`ip`")]);
    check(
        "limiters: {}\nidentify: { plan: ip }\nplans: { a: {} }\n",
        &[(2, 19, "\"ip\"", "there are `tls` and `table`")],
    );
}

#[test]
fn blank_fields_are_mistakes_and_never_defaults() {
    check("limiters:\n", &[(1, 1, "`limiters` is blank", "say something, or leave it out")]);
    check("limiters:\n  a:\n", &[(2, 4, "the limiter \"a\" is a map", "nothing is here")]);
    for field in ["rate", "per", "match", "mode", "cost", "burst", "algorithm", "candidate", "sample"] {
        let text = format!("limiters:\n  a:\n    concurrency: 5\n    {field}:\n");
        check(&text, &[(4, 5, &format!("`{field}` is blank"), "leave it out")]);
    }
    for field in ["store", "identify", "plans", "classes", "overrides", "allow", "block", "answers"] {
        let text = format!("limiters: {{}}\n{field}: ~\n");
        check(&text, &[(2, 1, &format!("`{field}` is blank"), "leave it out")]);
    }
    check("limiters: {}\nstore: ''\n", &[(2, 8, "`store` is blank", "")]);
    check("limiters: {}\nclasses: { a: }\n", &[(2, 12, "`a` is blank", "write []")]);
    check("limiters: {}\nclasses: { a: [{ path: }] }\n", &[(2, 18, "`path` is blank", "")]);
    check("limiters: { '': { rate: 5/s } }\n", &[(1, 13, "a name is blank", "")]);
    check("limiters: {}\nblock: [caller: ' ']\n", &[(2, 17, "a caller is blank", "")]);
    check("limiters: { a: { rate: [] } }\n", &[(1, 24, "this list is empty", "")]);
    check("limiters: { a: { rate: 5/s, per: [] } }\n", &[(1, 34, "this list is empty", "")]);
}

#[test]
fn zero_negative_and_absurd_numbers_are_refused_where_they_stand() {
    for (limiter, column, what) in [
        ("{ rate: 0/s }", 14, "0 would let nobody pass: to refuse callers use `block`"),
        ("{ rate: -5/s }", 14, "it cannot be negative"),
        ("{ rate: 0.5/s }", 14, "no whole number"),
        ("{ rate: 50 }", 14, "50 per what?"),
        ("{ rate: fast }", 14, "a rate looks like 50/s"),
        ("{ rate: 5/m }", 14, "`m` could be minutes or months: write `min`"),
        ("{ rate: 5/0s }", 14, "a period of 0s cannot be"),
        ("{ rate: 1e9/s }", 14, "no whole number"),
        ("{ rate: 18446744073709551616/s }", 14, "more than can be counted"),
        ("{ rate: 18446744073709551615/s }", 14, "it must be from 1 to"),
        ("{ rate: 5/999999999d }", 14, "cannot be"),
        ("{ rate: .inf/s }", 14, "no number"),
        ("{ rate: NaN/s }", 14, "no number"),
        ("{ rate: 5/s, burst: 0 }", 26, "burst is 0: it must be from 1"),
        ("{ rate: 5/s, burst: -1 }", 26, "it cannot be negative"),
        ("{ rate: 5/s, burst: _5 }", 26, "`_` goes between digits"),
        ("{ rate: _1/s }", 14, "`_` goes between digits"),
        ("{ rate: _1_/s }", 14, "`_` goes between digits"),
        ("{ rate: 1_/s }", 14, "`_` goes between digits"),
        ("{ rate: 5/s, burst: 18446744073709551615 }", 26, "burst is 18446744073709551615: it must be"),
        ("{ rate: [5/s, { rate: 9/h, burst: 0 }] }", 40, "burst is 0"),
        ("{ concurrency: 0 }", 21, "concurrency is 0: it must be from 1"),
        ("{ concurrency: -1 }", 21, "negative"),
        ("{ concurrency: lots }", 21, "\"lots\" is no number"),
        ("{ concurrency: 5, lease: 0s }", 31, "it cannot be no time at all"),
        ("{ concurrency: 5, lease: 60 }", 31, "60 of what?"),
        ("{ fleet: 0 }", 15, "fleet is 0"),
        ("{ fleet: 99999999999 }", 15, "fleet is 99999999999: it must be from 1 to 4294967295"),
        ("{ fleet: 5, reserve: 120% }", 27, "120% is more than all"),
        ("{ fleet: 5, reserve: 20 }", 27, "is no share"),
        ("{ rate: 5/s, cost: 0 }", 25, "it must be 1 or more"),
        ("{ rate: 5/s, cost: -1 }", 25, "it cannot be negative"),
        ("{ rate: 5/s, cost: { header: x, otherwise: 0 } }", 49, "it must be 1 or more"),
        ("{ rate: 5/s, cost: { header: x, max: 0 } }", 43, "it must be 1 or more"),
        ("{ rate: 5/s, sample: 10 }", 27, "is no share"),
        ("{ rate: 5/s, sample: -1% }", 27, "is no share"),
        ("{ rate: 5/s, candidate: 0/s }", 30, "0 would let nobody pass"),
        ("{ rate: 5/s, algorithm: sub-windows, windows: 0 }", 52, "it must be 1 or more"),
        ("{ rate: 5/s, algorithm: sub-windows, windows: 7 }", 14, "`windows` is 7: it must be a divisor"),
        ("{ workers: { good: 90%, bad: 80% } }", 35, "`good` not above `bad`"),
        ("{ workers: { bad: 100% } }", 24, "`bad` below 100%"),
        ("{ workers: { full: 0s } }", 25, "`full` is too short"),
        ("{ workers: { every: 1ms } }", 26, "so often"),
        ("{ workers: { source: { in_flight: 0 } } }", 40, "no worker at all?"),
        ("{ workers: { source: { latency: 0s } } }", 38, "no time at all"),
    ] {
        check(&format!("limiters:\n  a: {limiter}\n"), &[(2, column, what, "")]);
    }
    for (line, column, what) in [
        ("gateway: { timeout: 0s }", 21, "it cannot be no time at all"),
        ("store: { url: memory, deadline: 0s }", 33, "from 1ms to 60s"),
        ("store: { url: memory, expected_nodes: 0 }", 39, "it must be 1 or more"),
        ("store: { url: memory, max_bytes: lots }", 34, "no size"),
        ("identify: { ipv6_prefix: 8 }", 26, "from 32 to 128"),
        ("trusted_hops: 0", 15, "From 1 to 32"),
        ("trusted_hops: 1000", 15, "From 1 to 32"),
        ("trusted_proxies: [localhost]", 19, "is no network"),
    ] {
        check(&format!("limiters: {{}}\n{line}\n"), &[(2, column, what, "")]);
    }
}

#[test]
fn names_that_are_there_twice_are_told() {
    check(
        "limiters:\n  a: { rate: 5/s }\n  b: { rate: 5/s }\n  a: { rate: 6/s }\n",
        &[(4, 3, "\"a\" is there twice", "")],
    );
    check("limiters: {}\nlimiters: {}\n", &[(2, 1, "\"limiters\" is there twice", "")]);
    check("limiters: {}\nplans:\n  a: {}\n  a: {}\n", &[(4, 3, "\"a\" is there twice", "")]);
    check("limiters: {}\nclasses: { a: [], a: [] }\n", &[(2, 19, "\"a\" is there twice", "")]);
    check("limiters: { a: { rate: 5/s, rate: 6/s } }\n", &[(1, 29, "\"rate\" is there twice", "")]);
    check("limiters: { a: { rate: 5/s, per: [ip, ip] } }\n", &[(1, 39, "this is there twice", "")]);
    check("limiters: {}\nidentify: { caller: [ip, ip] }\n", &[(2, 26, "this source is there twice", "")]);
    check(
        "limiters: { a: { workers: { shed: [get, get] } } }\n",
        &[(1, 41, "this class is there twice", "")],
    );
    check(
        "limiters: { a: { workers: {} }, b: { workers: {} } }\n",
        &[(1, 33, "there is another `workers`", "")],
    );
    // Two spellings of one caller.
    let twice = "limiters: {}\nplans: { p: {} }\noverrides:\n  '2001:db8::1': { plan: p }\n  '2001:db8::2': { plan: p }\n";
    check(twice, &[(5, 3, "this caller is there twice", "one IPv6 network")]);
    // The second rate of one limiter would be called like the other.
    check(
        "limiters: { a: { rate: [5/s, 9/h] }, a-2: { rate: 5/s } }\n",
        &[(1, 38, "one of the rates of \"a\"", "something else")],
    );
    for list in ["allow", "block"] {
        for (entries, at, what, help) in [
            ("caller: a, caller: b, caller: a", 39, "this caller is there twice", ""),
            (
                "caller: '2001:db8::1', caller: '2001:db8::2'",
                40,
                "this caller is there twice",
                "one IPv6 network",
            ),
            ("10.0.0.0/8, 192.0.2.1, network: 10.0.0.0/8", 41, "this network is there twice", ""),
            ("192.0.2.1, 192.0.2.1/32", 20, "this network is there twice", ""),
        ] {
            check(&format!("limiters: {{}}\n{list}: [{entries}]\n"), &[(2, at, what, help)]);
        }
    }
    check("limiters: { plan: { rate: 5/s } }\n", &[(1, 13, "`plan` is no name of a limiter", "")]);
    check("limiters: { 'a b': { rate: 5/s } }\n", &[(1, 13, "\"a b\" is no name", "up to 64 letters")]);
}

#[test]
fn plans_classes_and_limiters_that_do_not_exist_are_told_with_the_likely_one() {
    let plans = "plans: { free: { rate: 5/s }, standard: { rate: 9/s } }\n";
    check(
        &format!("{plans}limiters: {{}}\nidentify: {{ default_plan: fre }}\n"),
        &[(3, 27, "no plan \"fre\"", "`free`")],
    );
    check(
        &format!("{plans}limiters: {{}}\nidentify: {{ plan: table, table: {{ sk_1: standart }} }}\n"),
        &[(3, 41, "no plan \"standart\"", "`standard`")],
    );
    check(
        &format!("{plans}limiters: {{}}\noverrides: {{ sk_1: {{ plan: pro }} }}\n"),
        &[(3, 28, "no plan \"pro\"", "there are `free` and `standard`")],
    );
    check(
        &format!("{plans}limiters: {{ a: {{ rate: 5/s, match: [{{ plan: [free, stndard] }}] }} }}\n"),
        &[(2, 52, "no plan \"stndard\"", "`standard`")],
    );
    check(
        "limiters: {}\noverrides: { sk_1: { request-rat: 5/s } }\n",
        &[(2, 22, "no limiter \"request-rat\"", "")],
    );
    check(
        "limiters: { request-rate: { rate: 5/s } }\noverrides: { sk_1: { request-rat: 5/s } }\n",
        &[(2, 22, "\"request-rat\"", "`request-rate`")],
    );
    check(
        "limiters: { a: { rate: plan } }\n",
        &[(1, 16, "takes its limits from plans, and there are none", "plans:")],
    );
    check(
        "plans: { free: {} }\nlimiters: { a: { rate: plan } }\n",
        &[(1, 16, "the plan \"free\"", "rate: 50/s")],
    );
    // Also where no limiter asks for plans, or for others.
    for limiters in ["", "a: { rate: plan }", "a: { concurrency: plan }", "a: { rate: 5/s }"] {
        for (own, at, help) in [
            ("rate: plan, concurrency: 5", 24, "write `rate: 50/s`, or `rate: unlimited`"),
            ("rate: 5/s, concurrency: plan", 42, "write `concurrency: 20`, or `concurrency: unlimited`"),
        ] {
            check(
                &format!("plans: {{ free: {{ {own} }} }}\nlimiters: {{ {limiters} }}\n"),
                &[(1, at, "is for limiters: the plan \"free\" must say how much", help)],
            );
        }
    }
    check("limiters: { a: { fleet: 5, for: critcal } }\n", &[(1, 33, "no class \"critcal\"", "`critical`")]);
    check(
        "classes: { a: [] }\nlimiters: { a: { fleet: 5 } }\n",
        &[(2, 13, "nothing is critical to this fleet", "`for`")],
    );
    check("limiters: { a: { workers: { shed: [gett] } } }\n", &[(1, 36, "no class \"gett\"", "`get`")]);
    check(
        "limiters: { a: { rate: 5/s, cost: { class: { psot: 5 } } } }\n",
        &[(1, 46, "no class \"psot\"", "`post`")],
    );
    check(
        "limiters: { a: { rate: 5/s, match: [{ class: pots }] } }\n",
        &[(1, 46, "no class \"pots\"", "`post`")],
    );
    check(
        "classes: { a: [{ class: b }] }\nlimiters: {}\n",
        &[(1, 18, "classes cannot be told by classes", "")],
    );
    check("classes: { other: [GET *] }\nlimiters: {}\n", &[(1, 12, "`other` is not for you to define", "")]);
}

#[test]
fn what_does_not_go_together_is_told() {
    for (limiter, column, what, right) in [
        ("{ rate: 5/s, concurrency: 5 }", 3, "is `rate` and `concurrency` at once", "one of `rate`"),
        ("{ per: caller }", 3, "limits nothing", "one of `rate`"),
        ("{ rate: unlimited }", 6, "limits nothing", "mode: off"),
        ("{ concurrency: 5, burst: 5 }", 31, "`burst` goes with a rate", "rate: 50/s"),
        ("{ rate: 5/s, lease: 5s }", 19, "`lease` goes with `concurrency`", ""),
        ("{ rate: 5/s, reserve: 5% }", 19, "`reserve` goes with `fleet`", ""),
        ("{ workers: {}, per: caller }", 21, "`per` has no meaning for `workers`", ""),
        ("{ rate: 5/s, per: [global, ip] }", 25, "nothing else can stand beside it", ""),
        ("{ rate: 5/s, windows: 5 }", 28, "`windows` goes with `algorithm: sub-windows`", ""),
        (
            "{ rate: 5/s, burst: 9, algorithm: sliding-log }",
            26,
            "\"sliding-log\" has no burst",
            "token-bucket",
        ),
        ("{ rate: [{ rate: 5/s, burst: 9 }, 9/h], algorithm: fixed-window }", 35, "has no burst", ""),
        ("{ rate: [5/s, 9/h], burst: 9 }", 14, "`burst` of which of these rates?", "burst: 20"),
        ("{ rate: 5/s, candidate: 9 }", 30, "the candidate has no rate", ""),
        ("{ rate: 5/s, candidate: unlimited }", 30, "a candidate that limits nothing", ""),
        (
            "{ rate: 5/s, candidate: { rate: 9/s, concurrency: 5 } }",
            43,
            "`concurrency` does not go with `rate`",
            "",
        ),
        ("{ concurrency: 5, candidate: 5/s }", 35, "the candidate has no concurrency", ""),
        (
            "{ rate: 5/s, cost: { class: {}, header: x } }",
            25,
            "a cost is a number, `given`, or by one of",
            "",
        ),
        ("{ rate: 5/s, cost: { response_header: x, max: 5 } }", 47, "`max` goes with `header`", ""),
        ("{ workers: { source: { latency: 1s, in_flight: 5 } } }", 27, "a source is a word, or one of", ""),
        ("[a]", 6, "the limiter \"a\" is a map", "this is a list"),
        ("{ rate: { per: s } }", 14, "a rate is missing", ""),
    ] {
        let text = format!("limiters:\n  a: {limiter}\n");
        let told = mistakes(&text);
        let found = told.errors().any(|told| {
            (told.line, told.column) == (2, column)
                && told.message.contains(what)
                && told.help.as_deref().unwrap_or_default().contains(right)
        });
        assert!(found, "{what:?} at 2:{column} of\n{text}\nis not in\n{told}");
    }
    let plans = "plans: { p: { rate: 5/s } }\nlimiters: { a: { rate: plan, burst: 5 } }\n";
    check(plans, &[(2, 37, "`burst` has no meaning here", "")]);
    check(
        "limiters: { a: { rate: 5/s } }\noverrides: { b: { a: { rate: 9/s, fleet: 5 } } }\n",
        &[(2, 35, "`fleet` does not go with `rate`", "")],
    );
    check(
        "limiters: { a: { workers: {} } }\noverrides: { b: { a: 5 } }\n",
        &[(2, 22, "workers shed by class, not by caller", "")],
    );
    check(
        "limiters: {}\ntrusted_proxies: []\ntrusted_hops: 1\n",
        &[(3, 15, "`trusted_proxies` is empty", "")],
    );
    check(
        "limiters: {}\nidentify: { caller: [{ header: a, cookie: b }] }\n",
        &[(2, 22, "these are several sources", "one after the other")],
    );
    check(
        "limiters: {}\nidentify: { caller: [jwt: sub] }\n",
        &[(2, 13, "how tokens are verified", "jwks_file")],
    );
    check(
        "limiters: {}\nidentify: { plan: [table] }\nplans: { a: {} }\n",
        &[(2, 13, "there is no table", "table:")],
    );
    for (jwt, what) in [
        ("{ issuer: a }", "one of `key_file`, `jwks_file` and `secret_env`"),
        ("{ key_file: a, jwks_file: b, algorithms: [RS256] }", "one of `key_file`"),
        ("{ key_file: a }", "which algorithm is the key for?"),
        ("{ jwks_file: a, algorithms: [HS256] }", "`secret_env`"),
        ("{ secret_env: A, algorithms: [RS256] }", "only HS256"),
        ("{ jwks_file: a, algorithms: [none] }", "no algorithm \"none\""),
    ] {
        let text = format!("limiters: {{}}\nidentify: {{ caller: [jwt: sub], jwt: {jwt} }}\n");
        assert!(mistakes(&text).to_string().contains(what), "{text}");
    }
    check("limiters: {}\nblock: [sk_1]\n", &[(2, 9, "\"sk_1\" is no network", "caller: sk_1")]);
    check("limiters: {}\nblock: [10.0.0.1/8]\n", &[(2, 9, "write 10.0.0.0/8", "")]);
}

#[test]
fn several_mistakes_are_all_listed_in_the_order_of_the_file() {
    let text = "\
store: memory
idntify: { caller: ip }
trusted_proxies: [10.0.0.0/33]
plans:
  free: { rate: 0/s }
limiters:
  a: { rate: plan, algorithm: leakybucket }
  b: { concurrency: -1, lease: soon }
  b: { rate: 5/s }
  c: { fleet: 10, for: vip }
";
    check(
        text,
        &[
            (2, 1, "\"idntify\"", "`identify`"),
            (3, 19, "prefix from 0 to 32", ""),
            (5, 17, "0 would let nobody pass", ""),
            (7, 31, "\"leakybucket\"", "`leaky-bucket`"),
            (8, 21, "negative", ""),
            (8, 32, "\"soon\" is no time", ""),
            (9, 3, "\"b\" is there twice", ""),
            (10, 24, "no class \"vip\"", ""),
        ],
    );
    let shown = mistakes(text).in_file("tollgate.yaml").to_string();
    for line in [
        "error: there is no field \"idntify\"\n --> tollgate.yaml:2:1\n",
        "2 | idntify: { caller: ip }\n  | ^^^^^^^ did you mean `identify`?\n",
        " --> tollgate.yaml:10:24\n",
    ] {
        assert!(shown.contains(line), "{line}\n is not in\n{shown}");
    }
}

#[test]
fn a_file_full_of_mistakes_is_answered_at_once() {
    let many: String = (0..150_000).map(|n| format!("f{n}: 1\n")).collect();
    let one_line = format!("{{{}}}", many.replace('\n', ", "));
    let twice: String = (0..100_000).map(|_| "a: 1\n").collect();
    for text in [many, one_line, twice] {
        let mistakes = mistakes(&text);
        assert!(mistakes.has_errors());
        let shown = mistakes.in_file("f.yaml").to_string();
        assert!(shown.len() < 60_000 && shown.contains(" more\n"), "{}", shown.len());
    }
}

#[test]
fn very_long_lists_are_refused_and_not_gone_through_again_and_again() {
    let list = |entry: &dyn Fn(usize) -> String| (0..50_000).map(entry).collect::<Vec<_>>().join(", ");
    let header = list(&|n| format!("header: h{n}"));
    for (text, what) in [
        (format!("limiters: {{ a: {{ rate: 5/s, per: [{header}] }} }}"), "more than 16 parts of a key"),
        (format!("limiters: {{}}\nidentify: {{ caller: [{header}] }}"), "more than 16 sources"),
        (
            format!("limiters: {{ a: {{ rate: [{}] }} }}", list(&|n| format!("{}/s", n + 1))),
            "more than 16 rates",
        ),
        (
            format!("limiters: {{}}\nclasses: {{ {} }}", list(&|n| format!("c{n}: [GET /{n}]"))),
            "more than 1000 classes",
        ),
        (
            format!("limiters: {{ {} }}", list(&|n| format!("l{n}: {{ rate: 5/s }}"))),
            "more than 1000 limiters",
        ),
    ] {
        assert!(mistakes(&text).to_string().contains(what), "{what}");
    }
    // What may be many is read all the same, and quickly.
    let text = format!(
        "trusted_proxies: []\nplans: {{ p: {{ rate: 5/s }} }}\nlimiters: {{ a: {{ rate: plan, match: [{}] }} }}\noverrides: {{ {} }}\nclasses: {{ c: [{}], d: [{}] }}",
        list(&|n| format!("GET /m/{n}")),
        (0..30_000).map(|n| format!("sk_{n}: {{ a: {}/s }}", n + 1)).collect::<Vec<_>>().join(", "),
        (0..20_000).map(|n| format!("GET /c/{n}")).collect::<Vec<_>>().join(", "),
        (0..20_000).map(|n| format!("GET /d/{n}")).collect::<Vec<_>>().join(", "),
    );
    assert_eq!(read(&text).limiters().first().unwrap().choices.len(), 30_001);
}

#[test]
fn a_route_without_its_space_is_told_apart() {
    for (route, help) in [
        ("POST/v1", "did you mean `POST /v1`?"),
        ("POST/v1/charges", "did you mean `POST /v1/charges`?"),
        ("get/*", "did you mean `get /*`?"),
        ("'GET*'", "did you mean `GET *`?"),
        ("v1/charges", "did you mean `/v1/charges`?"),
        ("POST", "write `POST *` for every path"),
    ] {
        let text = format!("limiters: {{ l: {{ rate: 5/s, match: [{route}] }} }}\n");
        check(&text, &[(1, 37, "is no condition", help)]);
    }
}

/// Believes neither addresses nor files.
struct Nothing;

impl Surroundings for Nothing {
    fn store(&self, address: &str) -> Result<(), String> {
        Err(format!("no store at {}", address.len()))
    }

    fn file(&self, path: &str) -> Result<(), String> {
        Err(format!("no file {path}"))
    }
}

#[test]
fn what_only_the_surroundings_know_is_told_in_its_place() {
    let text = "store: redis://a\nlimiters: { a: { rat: 5/s } }\nidentify: { caller: [jwt: sub], jwt: { jwks_file: keys.json } }\n";
    let mistakes = Policy::read_in(text, &Nothing).unwrap_err();
    let told: Vec<_> =
        mistakes.errors().map(|told| (told.line, told.column, told.message.as_str())).collect();
    assert_eq!(
        told,
        [(1, 8, "no store at 9"), (2, 18, "there is no field \"rat\""), (3, 51, "no file keys.json")]
    );
    let text = "store: { prefix: a, url: redis://a }\nlimiters: {}\n";
    let mistakes = Policy::read_in(text, &Nothing).unwrap_err();
    assert_eq!(mistakes.errors().map(|told| (told.line, told.column)).collect::<Vec<_>>(), [(1, 26)]);
    assert!(Policy::read_in("store: memory\nlimiters: {}\n", &Nothing).is_ok());
}

/// FAULTS 41: what is shown of a file that is wrong may end up in a log.
#[test]
fn secrets_of_a_file_are_not_shown_with_its_mistakes() {
    for store in [
        "store: { url: 'redis://user:hunter2@cache:6379', secret: hunter2, prefx: a }",
        "store: { url: \"redis+unix:///run/r.sock?db=0&user=a&pass=hunter2\", secret: \"hunter2\", prefx: a }",
        "store: { secret: |\n  hunter2\n  hunter2\n, prefx: a }",
        "store: redis://:hunter2@cache:6379 # old",
        "store: { url: redis://c, secret: \u{e9}\u{20ac}\u{1f600}hunter2, prefx: a }",
    ] {
        let mistakes = mistakes(&format!("{store}\nlimiters: {{ a: {{ rat: 5/s }} }}\n"));
        let shown = format!("{mistakes}{mistakes:?}");
        assert!(!shown.contains("hunter2") || shown.contains("this is no YAML"), "{shown}");
    }
    let text = "store: { url: redis://:hunter2@cache, secret: hunter2 }\nlimiters: {}\n";
    let (policy, _) = Policy::read(text).unwrap();
    assert_eq!(policy.store().secret.as_deref(), Some("hunter2"), "it is hidden, not lost");
    assert_eq!(policy.store().url.as_deref(), Some("redis://:hunter2@cache"));
    assert!(!format!("{policy:?}").contains("hunter2"));
}

#[test]
fn a_mark_of_the_byte_order_and_ends_of_lines_change_nothing() {
    assert_eq!(read(&format!("\u{feff}{DEMO}")), read(DEMO));
    assert_eq!(read(&DEMO.replace('\n', "\r\n")), read(DEMO));
    assert_eq!(read(&format!("---\n{DEMO}...\n")), read(DEMO));
    check("\u{feff}limitrs: {}\n", &[(1, 1, "\"limitrs\"", "`limiters`")]);
    assert!(mistakes("\u{feff}limitrs: {}\n").in_file("f").to_string().contains(" --> f:1:1\n"));
    check("limiters:\r\n  a: { rat: 5/s }\r\n", &[(2, 8, "\"rat\"", "")]);
    // Columns are counted in characters.
    check(
        "limiters:\n  a: { rate: 5/s } # \u{e9}\u{1f600}\n  \u{e9}\u{1f600}: { rat: 5/s }\n",
        &[(3, 3, "is no name of a limiter", ""), (3, 9, "\"rat\"", "")],
    );
}

#[test]
fn what_is_no_yaml_is_told_with_its_place() {
    check("limiters:\n\ta: { rate: 5/s }\n", &[(2, 2, "this is no YAML: tabs disallowed", "")]);
    check("limiters: { a: { rate: 5/s }\n", &[(1, 11, "this is no YAML: ", "")]);
    check(
        "limiters:\n  a: *nobody\n",
        &[(2, 6, "`*nobody` is read as a YAML alias", "in quotes: '*nobody'")],
    );
    check("limiters: &a\n  a: *a\n", &[(2, 6, "this alias stands within what it stands for", "")]);
    check("limiters: {}\n---\nlimiters: {}\n", &[(2, 1, "a policy is one document", "")]);
    check("limiters: { [a]: 5 }\n", &[(1, 13, "a name is a word", "")]);
    check("limiters:\n  a: &x { rate: 5/s }\n  b: { <<: *x }\n", &[(3, 8, "maps cannot be merged here", "")]);
    assert!(mistakes("limiters: { a: \"5/s\0\" }").has_errors());
    for text in ["[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(100_000), "? ".repeat(100_000)] {
        assert_eq!(mistakes(&text).errors().count(), 1);
    }
    let deep = format!("limiters: {}{}", "[".repeat(40), "]".repeat(40));
    check(&deep, &[(1, 42, "nothing in a policy is 32 levels deep", "")]);
}

/// Found by an operator: it was told that the file is no YAML.
#[test]
fn a_pattern_that_yaml_takes_for_an_alias_wants_quotes() {
    let alias = "is read as a YAML alias";
    for (text, line, column, word) in [
        ("identify:\n  table:\n    *std: standard\n", 3, 5, "'*std'"),
        ("identify: { table: { *std: standard } }\n", 1, 22, "'*std'"),
        ("identify: { table: { a: b, *_x: standard } }\n", 1, 28, "'*_x'"),
        ("limiters: { a: { rate: 5/s, match: [*] } }\n", 1, 37, "'*'"),
        ("limiters: { a: { rate: 5/s, match: * } }\n", 1, 36, "'*'"),
        ("limiters:\n  a:\n    rate: 5/s\n    match:\n      - *\n", 5, 9, "'*'"),
        ("limiters:\n  a: { rate: 5/s, match: { host: *.example.com } }\n", 2, 34, "'*.example.com'"),
    ] {
        check(text, &[(line, column, alias, word)]);
    }
}

/// Found by an operator: nothing said which word was meant, or which number.
#[test]
fn mistakes_that_new_users_make_are_told_with_what_is_right() {
    let identify = |caller: &str| format!("limiters: {{}}\nidentify: {{ caller: {caller} }}\n");
    for (caller, column, right) in [
        ("x-api-key", 21, "did you mean `header: x-api-key`?"),
        ("[Authorization, ip]", 22, "did you mean `header: Authorization`?"),
        ("header", 21, "did you mean `header: x-api-key`?"),
        ("cookie", 21, "did you mean `cookie: session`?"),
        ("jwt", 21, "did you mean `jwt: sub`?"),
        ("ipp", 21, "did you mean `ip`?"),
        ("x api key", 21, "there are `ip` and `tls`"),
    ] {
        check(&identify(caller), &[(2, column, "there is no source", right)]);
    }
    let limiter = |limiter: &str| format!("limiters:\n  a: {{ {limiter} }}\n");
    for (text, column, message) in [
        ("concurrency: -20", 21, "`concurrency`: it cannot be negative"),
        ("fleet: -1, for: get", 15, "`fleet`: it cannot be negative"),
        ("rate: 5/s, burst: -1", 26, "`burst`: it cannot be negative"),
        ("concurrency: 5, lease: 7", 31, "`lease`: 7 of what?"),
    ] {
        check(&limiter(text), &[(2, column, message, "")]);
    }
    let workers = |source: &str| format!("limiters:\n  a: {{ workers: {{ source: {source} }} }}\n");
    check(&workers("cpuu"), &[(2, 27, "there is no source of utilization \"cpuu\"", "did you mean `cpu`?")]);
    check(&workers("latency"), &[(2, 27, "`latency` needs a value", "`source: { latency: 200ms }`")]);
}

#[test]
fn anchors_and_aliases_can_be_used() {
    let policy = read(
        "trusted_proxies: []\nlimiters:\n  a: &shared { rate: 5/s, match: &m [GET /x] }\n  b: *shared\n  c: { rate: 9/s, match: *m }\n",
    );
    let [a, b, c] = policy.limiters() else { panic!("there are three") };
    assert_eq!((&a.choices, &a.kind), (&b.choices, &b.kind));
    assert_eq!(c.choices[0].as_slice(), [Limit::token_bucket(9, 9, Nanos::from_secs(1)).unwrap()]);
    // A mistake in what is shared is one mistake.
    check("limiters:\n  a: &x { rat: 5/s }\n  b: *x\n", &[(2, 11, "\"rat\"", "`rate`")]);
}

#[test]
fn what_aliases_stand_for_cannot_fill_the_memory() {
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for (name, before) in ('b'..='k').zip('a'..='j') {
        let nine = vec![format!("*{before}"); 9].join(", ");
        bomb += &format!("{name}: &{name} [{nine}]\n");
    }
    let told = mistakes(&bomb);
    assert!(told.to_string().contains("more than 400000 values"), "{told}");
    // Few values, and each of them long.
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 300_000].join(", "));
    let told = mistakes(&long);
    assert!(told.to_string().contains("more than 8388608 bytes"), "{told}");
    let names = format!("a: &a {{ {}: 1 }}\nb: [{}]\n", "x".repeat(1000), vec!["*a"; 100_000].join(", "));
    assert!(mistakes(&names).has_errors());
}

fn built(policy: &Policy) -> Vec<Vec<Limit>> {
    let choices = policy.limiters().iter().flat_map(|limiter| &limiter.choices);
    choices.map(|limits| limits.to_vec()).collect()
}

#[test]
fn every_algorithm_builds_its_limit() {
    let (s, min) = (Nanos::from_secs(1), Nanos::from_secs(60));
    let aligned = WindowStart::Aligned { offset: Nanos::ZERO };
    for (written, limit) in [
        ("rate: 50/s", Limit::token_bucket(50, 50, s)),
        ("rate: 50/s, burst: 200", Limit::token_bucket(200, 50, s)),
        ("rate: 50/s, algorithm: token-bucket", Limit::token_bucket(50, 50, s)),
        ("rate: 50/s, algorithm: leaky-bucket, burst: 7", Limit::token_bucket(7, 50, s)),
        ("rate: 50/s, algorithm: leaky-queue", Limit::leaky_queue(50, 50, s, 0)),
        ("rate: 50/s, algorithm: leaky-queue, burst: 7", Limit::leaky_queue(7, 50, s, 0)),
        ("rate: 50/min, algorithm: fixed-window", Limit::fixed_window(50, min, aligned)),
        ("rate: 50/min, algorithm: anchored-window", Limit::fixed_window(50, min, WindowStart::FirstCall)),
        ("rate: 50/min, algorithm: sliding-window", Limit::sliding_window(50, min)),
        ("rate: 50/min, algorithm: sliding-log", Limit::sliding_log(50, min)),
        ("rate: 50/min, algorithm: sub-windows", Limit::sub_windows(50, min, 10, SubWindows::NPlusOne)),
        (
            "rate: 50/min, algorithm: sub-windows, windows: 6",
            Limit::sub_windows(50, min, 6, SubWindows::NPlusOne),
        ),
        ("rate: 50/min, algorithm: interval-bucket", Limit::interval_bucket(50, 50, min)),
        ("rate: 50/min, algorithm: interval-bucket, burst: 7", Limit::interval_bucket(7, 50, min)),
        ("concurrency: 20", Limit::leases(20, min)),
        ("concurrency: 20, lease: 5s", Limit::leases(20, Nanos::from_secs(5))),
        ("fleet: 400, for: get", Limit::fleet(400, (200_000, 1_000_000), FleetMode::Allocation, min)),
        (
            "fleet: 400, reserve: 12.5%, count: total, lease: 5s, for: get",
            Limit::fleet(400, (125_000, 1_000_000), FleetMode::Total, Nanos::from_secs(5)),
        ),
    ] {
        assert_eq!(built(&limiters(&format!("a: {{ {written} }}"))), [[limit.unwrap()]], "{written}");
    }
}

#[test]
fn units_bursts_and_several_rates_are_read_as_they_are_written() {
    let day = 86_400;
    for (rate, count, seconds) in [
        ("50/s", 50, 1),
        ("50/sec", 50, 1),
        ("50/min", 50, 60),
        ("1_000/h", 1000, 3600),
        ("5/d", 5, day),
        ("5/day", 5, day),
        ("5/10min", 5, 600),
        ("'5 / 10 min'", 5, 600),
        ("\"5/s\"", 5, 1),
    ] {
        let limit = Limit::token_bucket(count, count, Nanos::from_secs(seconds)).unwrap();
        assert_eq!(built(&limiters(&format!("a: {{ rate: {rate} }}"))), [[limit]], "{rate}");
    }
    let ms = Limit::token_bucket(5, 5, Nanos::new(100_000_000)).unwrap();
    assert_eq!(built(&limiters("a: { rate: 5/100ms }")), [[ms]]);
    let (s, h) = (Nanos::from_secs(1), Nanos::from_secs(3600));
    let several = || -> Result<_, LimitError> {
        Ok([Limit::token_bucket(20, 10, s)?, Limit::token_bucket(1000, 1000, h)?])
    };
    assert_eq!(built(&limiters("a: { rate: [{ rate: 10/s, burst: 20 }, 1000/h] }")), [several().unwrap()]);
    assert_eq!(
        built(&limiters("a: { rate: [10/s], burst: 20 }")),
        [[Limit::token_bucket(20, 10, s).unwrap()]]
    );
}

#[test]
fn plans_overrides_and_candidates_are_limits_of_their_limiter() {
    let policy = read(
        "
trusted_proxies: []
plans:
  free: { rate: 50/min, concurrency: 5 }
  pro: { rate: [10/s, 1000/h], burst: 7, concurrency: unlimited }
  all: { rate: unlimited, concurrency: 9 }
limiters:
  r: { rate: plan, algorithm: sliding-log, candidate: 40/min }
  c: { concurrency: plan, lease: 5s, candidate: 4 }
  f: { fleet: 100, reserve: 20%, for: get, candidate: { fleet: 90, reserve: 10% } }
overrides:
  a: { r: 5/s, c: 99 }
  b: { r: { rate: [5/s, 9/h] }, c: { concurrency: 3 }, f: { fleet: 200 } }
  c: { r: unlimited, c: unlimited }
  d: { plan: pro }
"
        .replace("burst: 7, ", "")
        .as_str(),
    );
    let [r, c, f] = policy.limiters() else { panic!("there are three") };
    let (s, min, h) = (Nanos::from_secs(1), Nanos::from_secs(60), Nanos::from_secs(3600));
    let log = |count, period| Limit::sliding_log(count, period).unwrap();
    let leases = |count| Limit::leases(count, Nanos::from_secs(5)).unwrap();
    let fleet = |count, kept| Limit::fleet(count, (kept, 1_000_000), FleetMode::Allocation, min).unwrap();
    let lists = |limiter: &tollgate_core::policy::Limiter| -> Vec<Vec<Limit>> {
        limiter.choices.iter().map(|limits| limits.to_vec()).collect()
    };
    // Plans first, then callers in the order of the file.
    assert_eq!(
        lists(r),
        [
            vec![log(50, min)],
            vec![log(10, s), log(1000, h)],
            vec![log(5, s)],
            vec![log(5, s), log(9, h)],
            vec![]
        ]
    );
    assert_eq!(lists(c), [vec![leases(5)], vec![leases(9)], vec![leases(99)], vec![leases(3)], vec![]]);
    assert_eq!(lists(f), [vec![fleet(100, 200_000)], vec![fleet(200, 200_000)]]);
    assert_eq!(r.candidate.as_deref(), Some(&[log(40, min)][..]));
    assert_eq!(c.candidate.as_deref(), Some(&[leases(4)][..]));
    assert_eq!(f.candidate.as_deref(), Some(&[fleet(90, 100_000)][..]));
    // A plan may have a burst that one of its limiters has no use for.
    read(
        "trusted_proxies: []\nplans: { p: { rate: 5/s, burst: 9 } }\nlimiters: { a: { rate: plan, algorithm: sliding-log }, b: { rate: plan } }",
    );
}

#[test]
fn costs_modes_and_ways_to_fail_are_read_as_they_are_written() {
    let one = |text: &str| {
        read(&format!("trusted_proxies: []\nlimiters: {{ a: {{ rate: 9/s, {text} }} }}")).limiters()[0]
            .clone()
    };
    assert_eq!(one("mode: enforce").cost, Cost::Fixed(1));
    assert_eq!(one("cost: 7").cost, Cost::Fixed(7));
    let by_class = Cost::ByClass { classes: vec![(2, 5), (3, 0)], otherwise: 2 };
    assert_eq!(one("cost: { class: { post: 5, get: 0 }, otherwise: 2 }").cost, by_class);
    let header = Cost::Header { name: "x-cost".into(), otherwise: 3, max: 100 };
    assert_eq!(one("cost: { header: X-Cost, otherwise: 3, max: 100 }").cost, header);
    let bare = Cost::Header { name: "x-cost".into(), otherwise: 1, max: u64::MAX };
    assert_eq!(one("cost: { header: x-cost }").cost, bare);
    let settled = Cost::Settled { header: "x-tokens-used".into(), estimate: 5 };
    assert_eq!(one("cost: { response_header: x-tokens-used, otherwise: 5 }").cost, settled);

    assert_eq!(one("cost: 1").mode, Mode::Enforce);
    for mode in [Mode::Enforce, Mode::Dark, Mode::Off] {
        assert_eq!(one(&format!("mode: {}", mode.name())).mode, mode);
        assert_eq!(read(&format!("mode: {}\nlimiters: {{}}", mode.name())).mode(), mode);
    }
    assert_eq!(one("cost: 1").on_store_failure, OnFailure::Open);
    for (word, way) in [("open", OnFailure::Open), ("closed", OnFailure::Closed), ("local", OnFailure::Local)]
    {
        assert_eq!(one(&format!("on_store_failure: {word}")).on_store_failure, way);
    }
    let styles = ["ietf-11", "draft-7", "draft-6", "x-ratelimit", "envoy", "off"];
    for style in styles {
        let policy = read(&format!("limiters: {{}}\nanswers: {{ headers: {style} }}"));
        assert_eq!(Some(policy.answers().headers), HeaderStyle::parse(style));
    }
}

#[test]
fn a_store_is_read_as_it_is_written() {
    let store = |text: &str| read(&format!("store: {text}\nlimiters: {{}}")).store().clone();
    assert_eq!(store("memory").url, None);
    assert_eq!(store("redis://cache:6379/0").url.as_deref(), Some("redis://cache:6379/0"));
    let all = store(
        "{ url: 'redis://c', secret: s, prefix: p, deadline: 10ms, expected_nodes: 4, max_bytes: 64MB }",
    );
    assert_eq!(all.url.as_deref(), Some("redis://c"));
    assert_eq!((all.secret.as_deref(), all.prefix.as_deref()), (Some("s"), Some("p")));
    assert_eq!(
        (all.deadline, all.expected_nodes, all.max_bytes),
        (Some(Nanos::new(10_000_000)), Some(4), Some(64 << 20))
    );
    assert_eq!(read("limiters: {}").gateway().timeouts.answer, Nanos::from_secs(60));
    assert_eq!(read("limiters: {}\ngateway: { timeout: 5s }").gateway().timeouts.answer, Nanos::from_secs(5));
}

fn worker(text: &str) -> WorkerPolicy {
    match &read(text).limiters()[0].kind {
        Kind::Worker(worker) => worker.clone(),
        other => panic!("{other:?} is no worker"),
    }
}

#[test]
fn utilization_is_read_from_where_the_policy_says() {
    let source =
        |source: &str| worker(&format!("limiters: {{ a: {{ workers: {{ source: {source} }} }} }}")).source;
    assert_eq!(worker("limiters: { a: { workers: {} } }").source, Source::Cpu);
    assert_eq!(source("cpu"), Source::Cpu);
    assert_eq!(source("cgroup"), Source::Cgroup);
    assert_eq!(source("pressure"), Source::Pressure);
    assert_eq!(source("reported"), Source::Reported { stale_after: Source::STALE_AFTER });
    assert_eq!(source("{ in_flight: 64 }"), Source::InFlight { workers: 64 });
    assert_eq!(source("{ latency: 250ms }"), Source::Latency { target: Nanos::new(250_000_000) });
    let header = Some("x-utilization".to_owned());
    let by_header = worker("limiters: { a: { workers: { source: { response_header: X-Utilization } } } }");
    assert_eq!(by_header.source, source("reported"));
    assert_eq!(by_header.reported_in, header);
}

#[test]
fn a_worker_may_have_any_shares_and_times_up_to_days() {
    for shares in ["good: 50%, bad: 60.5%", "good: 61%, bad: 67.5%", "good: 70.01%, bad: 79.99%"] {
        for times in ["grace: 28s, full: 120s", "grace: 1s, full: 1d", "grace: 1d, full: 1s, every: 1min"] {
            worker(&format!("limiters: {{ a: {{ workers: {{ {shares}, {times} }} }} }}"));
        }
    }
    check(
        "limiters: { a: { workers: { full: 31d } } }\n",
        &[(1, 35, "`full` is too short or too long", "up to 30d")],
    );
    check(
        "limiters: { a: { workers: { every: 8d } } }\n",
        &[(1, 36, "`every` is too short or too long", "`every` up to 7d")],
    );
}

#[test]
fn a_worker_has_the_settings_that_are_written() {
    let WorkerPolicy { settings, every, .. } = worker("limiters: { a: { workers: {} } }");
    assert_eq!((settings.good_ppm, settings.bad_ppm), (700_000, 800_000));
    assert_eq!((settings.grace, settings.full), (Nanos::from_secs(28), Nanos::from_secs(120)));
    assert_eq!((every, settings.classes), (Nanos::from_secs(8), 3));
    let WorkerPolicy { settings, every, .. } = worker(
        "limiters: { a: { workers: { good: 50%, bad: 62.5%, grace: 10s, full: 1min, every: 500ms } } }",
    );
    assert_eq!((settings.good_ppm, settings.bad_ppm), (500_000, 625_000));
    assert_eq!(
        (settings.grace, settings.full, every),
        (Nanos::from_secs(10), Nanos::from_secs(60), Nanos::new(500_000_000))
    );
}

#[test]
fn classes_are_shed_in_the_order_of_their_importance() {
    for (classes, shed, ranks) in [
        // critical, test, post, get, other
        ("", "", &[None, Some(0), Some(2), Some(1), Some(0)][..]),
        (
            "classes: { critical: [POST /a], test: [], get: [GET *], post: [POST *] }",
            "",
            &[None, Some(0), Some(1), Some(2), Some(0)],
        ),
        ("classes: { critical: [POST /a], get: [GET *] }", "", &[None, Some(0), Some(0)]),
        // Own classes: the last goes first, and the first never.
        ("classes: { vip: [/a], paid: [/b], free: [/c] }", "", &[None, Some(1), Some(0), Some(0)]),
        ("classes: { vip: [/a] }", "", &[None, Some(0)]),
        (
            "classes: { vip: [/a], paid: [/b], free: [/c] }",
            "shed: [other, paid]",
            &[None, Some(1), None, Some(0)],
        ),
        ("", "shed: [get, critical]", &[Some(1), None, None, Some(0), None]),
    ] {
        let worker = worker(&format!("{classes}\nlimiters: {{ a: {{ workers: {{ {shed} }} }} }}"));
        assert_eq!(worker.ranks, ranks, "{classes} {shed}");
        let most = ranks.iter().flatten().max().map_or(1, |most| most + 1);
        assert_eq!(worker.settings.classes, most);
    }
}

#[test]
fn critical_to_a_fleet_is_what_the_policy_says() {
    let critical = |limiter: &str| match &read(&format!("limiters: {{ a: {{ fleet: 5, {limiter} }} }}"))
        .limiters()[0]
        .kind
    {
        Kind::Fleet { critical, .. } => critical.clone(),
        other => panic!("{other:?} is no fleet"),
    };
    assert_eq!(critical("reserve: 10%"), [0]);
    assert_eq!(critical("for: post"), [2]);
    assert_eq!(critical("for: [post, other]"), [2, 4]);
}

#[test]
fn what_names_are_looked_like_in_conditions_holds_for_requests() {
    let matched = |condition: &str, facts: &Facts<'_>| {
        let text = format!(
            "plans: {{ free: {{}}, pro: {{}} }}\nclasses: {{ big: [PUT *] }}\nlimiters: {{ a: {{ rate: 5/s, per: global, match: {condition} }} }}"
        );
        !read(&text).plan(facts, &NoTokens, Timestamp::ZERO).charged.is_empty()
    };
    let headers = [("x-api-key", "sk_test_1"), ("X-Other", "a"), ("x-other", "b")];
    let facts = Facts {
        method: "POST",
        path: "/v1/charges/7",
        host: "API.example.com:443",
        peer: Some("192.0.2.7".parse().unwrap()),
        plan: Some("pro"),
        headers: &headers,
        ..Facts::default()
    };
    for (condition, is) in [
        ("'*'", true),
        ("POST *", true),
        ("post *", true),
        ("GET *", false),
        ("'/v1/charges/{id}'", true),
        ("/v1/*", true),
        ("/v1/charges", false),
        ("'* /v1/*'", true),
        ("[GET *, /v1/charges/*]", true),
        ("[GET *, /v2/*]", false),
        ("{ method: [GET, POST], path: [/v2/*, /v1/*] }", true),
        ("{ method: GET, path: /v1/* }", false),
        ("{ header x-api-key: sk_test_* }", true),
        ("{ header X-Api-Key: [sk_live_*, sk_test_*] }", true),
        ("{ header: { x-api-key: sk_live_* } }", false),
        ("{ header: { x-api-key: '*', x-other: b } }", true),
        ("{ header: { x-api-key: '*', x-other: c } }", false),
        ("{ header x-absent: '*' }", false),
        ("{ not: { header x-absent: '*' } }", true),
        ("{ host: api.example.com }", true),
        ("{ host: '*.example.com' }", true),
        ("{ host: example.com }", false),
        ("{ plan: pro }", true),
        ("{ plan: [free] }", false),
        ("{ class: other }", true),
        ("{ class: big }", false),
        ("{ network: 192.0.2.0/24 }", true),
        ("{ network: ['2001:db8::/32', 192.0.2.7] }", true),
        ("{ network: 10.0.0.0/8 }", false),
        ("{ not: POST * }", false),
        ("{ not: [GET *, { network: 10.0.0.0/8 }] }", true),
        ("{ not: [GET *, { network: 192.0.2.0/24 }] }", false),
        ("{ path: /v1/*, not: { class: big } }", true),
        ("{ not: { not: POST * } }", true),
    ] {
        assert_eq!(matched(condition, &facts), is, "{condition}");
    }
    assert!(
        !matched("{ network: 0.0.0.0/0 }", &Facts { peer: None, ..facts }),
        "who is not known is in no network"
    );
}

#[test]
fn classes_of_those_who_name_none_are_the_usual_four() {
    let policy = read("limiters: {}");
    assert_eq!(policy.classes().collect::<Vec<_>>(), ["critical", "test", "post", "get", "other"]);
    let class = |method: &str, headers: &[(&str, &str)]| {
        let headers = headers.to_vec();
        let facts = Facts { method, headers: &headers, ..Facts::default() };
        policy.class_name(policy.plan(&facts, &NoTokens, Timestamp::ZERO).class).to_owned()
    };
    assert_eq!(class("GET", &[]), "get");
    assert_eq!(class("OPTIONS", &[]), "get");
    for method in ["POST", "PUT", "PATCH", "DELETE", "post"] {
        assert_eq!(class(method, &[]), "post");
    }
    assert_eq!(class("POST", &[("x-api-key", "sk_test_1")]), "test");
    assert_eq!(class("GET", &[("authorization", "Bearer sk_test_1")]), "test");
}

#[test]
fn a_policy_that_was_cut_short_is_never_a_panic() {
    for end in 0..=DEMO.len() {
        let _ = Policy::read(&DEMO[..end]).map_err(|mistakes| mistakes.to_string());
    }
}

/// What is worth putting into a policy to spoil it.
fn spoiler() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<char>().prop_map(String::from),
        "[\\[\\]{}:,&*#?|>'\"%@`!~ \t\n-]{1,4}",
        Just("\r\n".to_owned()),
        Just("\u{feff}".to_owned()),
        Just("*a".to_owned()),
        Just("&a ".to_owned()),
        Just("<<: ".to_owned()),
        Just("\0".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("-1".to_owned()),
        Just("~".to_owned()),
        Just("\u{1f600}".to_owned()),
    ]
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_policy_that_was_spoiled_is_never_a_panic(
        spoiled in prop::collection::vec((0..DEMO.len(), 0usize..6, spoiler()), 1..8),
    ) {
        let mut text = DEMO.to_owned();
        for (at, cut, with) in spoiled {
            let floor = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let (from, to) = (floor(at), floor(at + cut));
            text.replace_range(from..to, &with);
        }
        match Policy::read(&text) {
            Ok((policy, warnings)) => {
                let _ = warnings.in_file("f").to_string();
                let headers = [("x-api-key", "sk_test_1")];
                let facts = Facts { path: "/login", method: "POST", headers: &headers, ..Facts::default() };
                let _ = policy.plan(&facts, &NoTokens, Timestamp::ZERO);
            }
            Err(mistakes) => {
                prop_assert!(mistakes.has_errors());
                for mistake in mistakes.errors() {
                    prop_assert!(mistake.line >= 1 && mistake.column >= 1);
                    prop_assert!(mistake.line <= text.lines().count() + 1);
                    prop_assert!(!mistake.message.is_empty());
                }
                prop_assert!(!mistakes.in_file("f").to_string().is_empty());
            }
        }
    }

    #[test]
    fn lines_of_a_policy_in_any_order_are_never_a_panic(
        lines in prop::collection::vec(prop::sample::select(DEMO.lines().collect::<Vec<_>>()), 0..20),
    ) {
        let text = lines.join("\n");
        let _ = Policy::read(&text).map_err(|mistakes| mistakes.to_string());
    }

    #[test]
    fn arbitrary_text_is_never_a_panic(text in any::<String>(), tail in "[ -~\n\t]{0,80}") {
        let _ = Policy::read(&text).map_err(|mistakes| mistakes.to_string());
        let _ = Policy::read(&tail).map_err(|mistakes| mistakes.to_string());
        let _ = Policy::read(&format!("limiters: {{ a: {{ rate: {tail} }} }}")).map_err(|mistakes| mistakes.to_string());
        let _ = Policy::read(&format!("limiters:\n  {tail}")).map_err(|mistakes| mistakes.to_string());
    }

    #[test]
    fn arbitrary_words_are_never_a_panic(
        field in prop::sample::select(vec!["rate", "burst", "concurrency", "lease", "fleet", "reserve", "cost", "sample", "match", "per", "candidate", "windows"]),
        value in prop_oneof!["[0-9]{0,25}(/|%|s|min|d|ms|MB)?[a-z0-9]{0,4}", "[ -~]{0,20}", any::<u64>().prop_map(|n| n.to_string()), any::<f64>().prop_map(|n| n.to_string())],
    ) {
        for base in ["rate: 5/s", "concurrency: 5", "fleet: 5", "rate: 5/s, algorithm: sub-windows"] {
            let quoted = value.replace('\'', "''");
            let _ = Policy::read(&format!("limiters: {{ a: {{ {base}, {field}: '{quoted}' }} }}")).map_err(|mistakes| mistakes.to_string());
        }
    }
}

#[test]
fn a_condition_that_says_nothing_is_none() {
    for text in [
        "limiters: { a: { rate: 1/s, match: [{}] } }",
        "limiters: { a: { rate: 1/s, match: [{ not: [{}] }] } }",
        "classes: { critical: [{}] }\nlimiters: {}",
    ] {
        let wrong = Policy::read(text).unwrap_err().to_string();
        assert!(wrong.contains("says nothing"), "{text}: {wrong}");
    }
}

#[test]
fn several_rates_of_a_candidate_or_a_caller_need_no_map() {
    let policy = |candidate: &str, own: &str| {
        format!(
            "identify: {{ caller: [header: k] }}\nlimiters: {{ a: {{ rate: [9/s, 900/h], candidate: {candidate} }} }}\noverrides: {{ bob: {{ a: {own} }} }}"
        )
    };
    let short = read(&policy("[5/s, 500/h]", "[20/s, { rate: 1000/h, burst: 50 }]"));
    assert_eq!(
        short,
        read(&policy("{ rate: [5/s, 500/h] }", "{ rate: [20/s, { rate: 1000/h, burst: 50 }] }"))
    );
    assert_eq!(short.limiters()[0].candidate.as_ref().unwrap().len(), 2);
    assert_eq!(read(&policy("5/s", "[20/s]")), read(&policy("[5/s]", "20/s")));
    check(&policy("[]", "20/s"), &[(2, 49, "this list is empty", "")]);
    check(&policy("[5/s, 5]", "20/s"), &[(2, 55, "5 per what?", "")]);
    check(
        "limiters: { a: { concurrency: 5, candidate: [4, 3] } }\n",
        &[(1, 45, "a candidate of `concurrency` is one number", "")],
    );
}

#[test]
fn networks_are_no_callers() {
    let policy = |text: &str| format!("trusted_proxies: []\nlimiters: {{ a: {{ rate: 5/s }} }}\n{text}\n");
    for network in ["10.0.0.0/8", "10.0.0.1/8", "2001:db8::/32"] {
        let message = format!("{network:?} is a network, and no caller");
        check(
            &policy(&format!("overrides: {{ '{network}': {{ a: 9/s }} }}")),
            &[(3, 14, &message, "match: { network:")],
        );
        check(
            &policy(&format!(
                "plans: {{ p: {{}} }}\nidentify: {{ plan: table, table: {{ '{network}': p }} }}"
            )),
            &[(4, 35, &message, "match: { network:")],
        );
        check(&policy(&format!("allow: [caller: '{network}']")), &[(3, 17, &message, "write `network:")]);
    }
}
