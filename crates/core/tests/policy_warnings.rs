//! What is legal and probably not meant is warned of where it stands, and what is meant is not.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]

use crate::common::config;
use crate::common::told::{check, warned};
use proptest::prelude::*;
use tollgate_core::limit::Op;
use tollgate_core::policy::{Facts, NoTokens, Policy};
use tollgate_core::{Limit, Nanos, Timestamp};

#[test]
fn classes_that_nothing_can_be_of_are_warned_of() {
    warned(
        "classes:\n  a: [GET *]\n  b: [GET /x]\nlimiters: {}\n",
        &[(3, 3, "no request is ever of class \"b\"", "the first that matches wins")],
    );
    warned("classes:\n  a: ['*']\n  b: [{ header x: y }]\nlimiters: {}\n", &[(3, 3, "of class \"b\"", "")]);
    warned("classes:\n  a: [GET /x/*]\n  b: [GET /x/y, POST /x]\nlimiters: {}\n", &[]);
    warned("classes:\n  a: []\n  b: ['*']\nlimiters: {}\n", &[]);
    // Two headers are asked for, and one of them is less.
    warned(
        "classes:\n  a: [{ header x: '1', header y: '2' }]\n  b: [{ header x: '1' }]\nlimiters: {}\n",
        &[],
    );
    warned(
        "classes:\n  a: [{ header x: '1' }]\n  b: [{ header x: '1', header y: '2' }]\nlimiters: {}\n",
        &[(3, 3, "\"b\"", "")],
    );
    warned("classes:\n  a: [{ header x: '1' }]\n  b: [{ header x: ['1', '2'] }]\nlimiters: {}\n", &[]);
    warned("classes:\n  a: [{ path: /x, not: POST * }]\n  b: [/x]\nlimiters: {}\n", &[]);
}

#[test]
fn limiters_that_no_request_can_match_are_warned_of() {
    let text = "classes:\n  a: [GET *]\n  b: [GET /x]\nlimiters:\n  l: { rate: 5/s, per: global, match: [{ class: b }] }\n";
    warned(text, &[(3, 3, "of class \"b\"", ""), (5, 3, "no request can match \"l\"", "it limits nothing")]);
    let text = "limiters:\n  l: { rate: 5/s, per: global, match: [{ path: /x/y, not: /x/* }] }\n";
    warned(
        text,
        &[
            (2, 3, "no request can match \"l\"", ""),
            (2, 40, "no request can ever be like this", "`not` takes away all"),
        ],
    );
    // Nothing is critical among the usual classes, until somebody says so.
    warned(
        "limiters:\n  l: { rate: 5/s, per: global, match: [{ class: critical }] }\n",
        &[(2, 3, "no request can match", "")],
    );
    warned("limiters:\n  l: { rate: 5/s, per: global, match: [{ class: other }, GET /a] }\n", &[]);
    warned(
        "limiters:\n  l: { rate: 5/s, per: global, match: [PSOT /a] }\n",
        &[(2, 40, "\"PSOT\" is a rare method", "`POST`")],
    );
}

/// A limiter of logins that states `5/min` let 9 or 10 attempts pass in the first minute, and nothing said so.
#[test]
fn a_bucket_that_guards_logins_is_told_of_the_sliding_log() {
    let policy = |limiter: &str| format!("trusted_proxies: []\nlimiters:\n  {limiter}\n");
    for limiter in [
        "guard: { rate: 5/min, match: [POST /login] }",
        "guard: { rate: 5/min, match: [POST /account/sign-in, POST /v1/otp/verify] }",
        "guard: { rate: 5/min, match: [/password-reset] }",
        "logins: { rate: 5/min, per: global }",
        "by-address: { rate: 5/min, per: ip, match: [POST /door] }",
        "by-address: { rate: [1/s, 5/min], match: [POST /door] }",
    ] {
        let told = "lets up to 10 requests pass in the first 1min: its bucket starts with 5 and 5 come back";
        warned(&policy(limiter), &[(3, 3, told, "`algorithm: sliding-log`")]);
    }
    let told = "lets up to 13 requests pass in the first 1h: its bucket starts with 3 and 10 come back";
    warned(&policy("logins: { rate: 10/h, burst: 3 }"), &[(3, 3, told, "")]);
    for limiter in [
        "guard: { rate: 5/min, match: [POST /login], algorithm: sliding-log }",
        // Whoever names it means it.
        "guard: { rate: 5/min, match: [POST /login], algorithm: token-bucket }",
        "guard: { rate: 5/min, burst: 1, match: [POST /login] }",
        "guard: { rate: 50/s, match: [POST /login] }",
        "guard: { concurrency: 5, match: [POST /login] }",
        "guard: { rate: 5/min, match: [GET /hotpatch, POST /autopilot] }",
        "by-address: { rate: 5/min, per: ip }",
        "by-address: { rate: 5/min, per: ip, match: [GET /door] }",
        "exports: { rate: 5/min, per: global, match: [POST /exports] }",
    ] {
        warned(&policy(limiter), &[]);
    }
    let by_key = "identify: { caller: [header: x-api-key] }\n";
    warned(&format!("{by_key}limiters:\n  exports: {{ rate: 2/min, match: [POST /exports] }}\n"), &[]);
}

/// Found by a reader.
#[test]
fn a_fleet_that_is_all_reserved_is_warned_of() {
    let fleet = |of: &str| format!("classes:\n  critical: [POST /x]\nlimiters:\n  f: {{ {of} }}\n");
    for of in ["fleet: 1", "fleet: 10, reserve: 100%", "fleet: 4, reserve: 99%"] {
        let all = &[(4, 3, "none is left for requests that are not critical", "reserve less")];
        warned(&fleet(&format!("{of}, for: critical")), all);
    }
    warned(&fleet("fleet: 5, reserve: 20%, for: critical"), &[]);
}

/// Found by an operator: a fleet for each caller protects nothing, and nobody was told.
#[test]
fn a_fleet_that_each_caller_has_for_itself_is_warned_of() {
    let fleet =
        |per: &str| format!("trusted_proxies: []\nlimiters:\n  f: {{ fleet: 10, for: get, per: {per} }}\n");
    for per in ["caller", "ip", "[caller, path]"] {
        let each = &[(3, 34, "each caller has 10 places of its own", "use `concurrency`")];
        warned(&fleet(per), each);
    }
    for per in ["global", "path", "class", "{ header: x-region }"] {
        warned(&fleet(per), &[]);
    }
}

#[test]
fn a_lease_that_ends_before_the_gateway_gives_up_is_warned_of_where_there_are_leases() {
    let policy = |store: &str, limiter: &str| {
        format!(
            "store: {store}\ntrusted_proxies: []\nlimiters:\n  l: {limiter}\ngateway: {{ timeout: 90s }}\n"
        )
    };
    let redis = "redis://cache:6379";
    warned(
        &policy(redis, "{ concurrency: 5, lease: 30s }"),
        &[(
            4,
            31,
            "a lease of 30s is shorter than what the gateway waits for an answer (90s)",
            "not counted any more",
        )],
    );
    warned(&policy(redis, "{ concurrency: 5 }"), &[(4, 3, "a lease of 1min is shorter", "")]);
    warned(&policy(redis, "{ fleet: 5, for: get }"), &[(4, 3, "a lease of 1min is shorter", "")]);
    warned(&policy(redis, "{ concurrency: 5, lease: 2min }"), &[]);
    warned(&policy(redis, "{ rate: 5/s }"), &[]);
    warned(&policy("memory", "{ concurrency: 5, lease: 30s }"), &[]);
    warned(&policy("{ url: memory, prefix: a }", "{ concurrency: 5, lease: 30s }"), &[]);
}

#[test]
fn everybody_in_one_bucket_for_want_of_trusted_proxies_is_warned_of() {
    let one = "one bucket for everybody";
    warned("limiters:\n  l: { rate: 5/s }\n", &[(2, 3, one, "add `trusted_proxies: [10.0.0.0/8]`")]);
    warned(
        "limiters:\n  g: { rate: 5/s, per: global }\n  l: { rate: 5/s, per: [path, ip] }\n",
        &[(3, 3, one, "")],
    );
    warned("identify: { caller: [header: k, ip] }\nlimiters:\n  l: { rate: 5/s }\n", &[(3, 3, one, "")]);
    warned("identify: { caller: [header: k] }\nlimiters:\n  l: { rate: 5/s }\n", &[]);
    warned("trusted_proxies: []\nlimiters:\n  l: { rate: 5/s }\n", &[]);
    warned("trusted_hops: 1\nlimiters:\n  l: { rate: 5/s }\n", &[]);
    let plans = "plans: { a: { rate: 5/s } }\nlimiters: {}\nidentify: { plan: [header: x-plan] }\n";
    let chosen = "callers choose their plans themselves";
    warned(plans, &[(3, 1, chosen, "trusted_proxies")]);
    warned(&format!("{plans}trusted_proxies: []\n"), &[(3, 1, chosen, "")]);
    warned(&format!("{plans}trusted_proxies: [10.0.0.0/8]\n"), &[]);
    warned(&plans.replace("header: x-plan", "tls"), &[]);
    // By their number alone every peer is a proxy.
    let hops = "by `trusted_hops` alone every peer counts as a proxy";
    warned(&format!("{plans}trusted_hops: 1\n"), &[(3, 1, hops, "trusted_proxies")]);
    warned(&format!("{plans}trusted_hops: 1\ntrusted_proxies: [0.0.0.0/0]\n"), &[(3, 1, hops, "")]);
    warned(&format!("{plans}trusted_hops: 1\ntrusted_proxies: [10.0.0.0/8]\n"), &[]);
}

#[test]
fn a_list_of_everybody_is_warned_of() {
    let policy = |list: &str| format!("limiters: {{}}\ntrusted_proxies: []\n{list}\n");
    warned(
        &policy("allow: [10.0.0.0/8, 0.0.0.0/0]"),
        &[(3, 21, "0.0.0.0/0 is every address: everybody passes", "`mode: off`")],
    );
    warned(&policy("allow: [network: '::/0']"), &[(3, 18, "::/0 is every address", "")]);
    warned(&policy("allow: ['::ffff:0:0/96']"), &[(3, 9, "0.0.0.0/0 is every address", "")]);
    warned(&policy("allow: [0.0.0.0/1, 0.0.0.0]"), &[]);
    warned(
        &policy("block: [0.0.0.0/0]"),
        &[(3, 9, "every address: nobody passes who is not on `allow`", "may not")],
    );
    warned(&policy("block: [0.0.0.0/1]"), &[]);
}

#[test]
fn proxies_that_anybody_is_are_warned_of() {
    let policy = |proxies: &str| format!("limiters: {{}}\ntrusted_proxies: {proxies}\n");
    let all = "is every address: whoever connects can pretend to be anybody";
    warned(
        &policy("[10.0.0.0/8, 0.0.0.0/0, '::/0']"),
        &[(2, 31, all, "`trusted_hops: 1`"), (2, 42, all, "")],
    );
    warned(&policy("[10.0.0.0/8, 0.0.0.0]"), &[]);
    warned(&policy("[0.0.0.0/0]\ntrusted_hops: 2"), &[]);
}

#[test]
fn a_source_behind_ip_is_warned_of() {
    let policy = |caller: &str| {
        format!("identify: {{ caller: {caller} }}\ntrusted_proxies: []\nlimiters: {{ l: {{ rate: 5/s }} }}\n")
    };
    warned(&policy("[header: k, ip, cookie: c]"), &[(1, 37, "this is never looked at", "put `ip` last")]);
    warned(&policy("[ip, tls]"), &[(1, 26, "this is never looked at", "")]);
    let all = [(1, 26, "this is never looked at", ""), (1, 31, "this is never looked at", "")];
    warned(&policy("[ip, tls, header: k]"), &all);
    warned(&policy("[tls, header: k, ip]"), &[]);
}

#[test]
fn rates_that_never_decide_are_warned_of() {
    let policy =
        |rates: &str, more: &str| format!("trusted_proxies: []\nlimiters:\n  l: {{ rate: {rates}{more} }}\n");
    let idle = "this rate never decides";
    let by = |rate: &str| format!("{idle}: {rate} is at least as strict");
    warned(&policy("[10/s, 100000/s]", ""), &[(3, 21, &by("10/s"), "leave it out")]);
    warned(&policy("[100000/s, 10/s]", ""), &[(3, 15, &by("10/s"), "")]);
    warned(&policy("[10/s, 10/s]", ""), &[(3, 21, idle, "")]);
    warned(&policy("[10/s, { rate: 600/min, burst: 10 }]", ""), &[(3, 29, idle, "")]);
    warned(&policy("[10/s, 600/min]", ""), &[(3, 21, &by("10/s"), "")]);
    warned(&policy("[10/s, 1000/h]", ""), &[]);
    warned(&policy("[{ rate: 10/s, burst: 50 }, 20/s]", ""), &[]);
    warned(&policy("[10/s, 100000/s]", ", cost: { response_header: x }"), &[]);
    for (algorithm, rates, is_idle) in [
        ("sliding-log", "[10/s, 600/min]", true),
        ("sliding-log", "[10/s, 599/min]", false),
        ("sliding-log", "[10/min, 10/s]", true),
        ("sliding-log", "[10/min, 9/s]", false),
        ("fixed-window", "[10/s, 600/min]", true),
        ("fixed-window", "[10/s, 599/min]", false),
        ("fixed-window", "[10/min, 10/s]", true),
        ("fixed-window", "[10/2s, 20/3s]", false),
        ("anchored-window", "[10/min, 10/s]", false),
        ("anchored-window", "[10/s, 11/s]", true),
        ("sliding-window", "[10/s, 11/s]", true),
        ("sliding-window", "[10/min, 10/s]", false),
        ("sub-windows", "[10/s, 11/s]", true),
        ("sub-windows", "[10/min, 10/s]", false),
        ("leaky-queue", "[10/s, 11/s]", false),
        ("leaky-queue", "[10/s, 10/s]", true),
        ("interval-bucket", "[10/s, 11/s]", false),
    ] {
        let (_, warnings) = Policy::read(&policy(rates, &format!(", algorithm: {algorithm}"))).unwrap();
        assert_eq!(warnings.to_string().contains(idle), is_idle, "{algorithm} {rates}\n{warnings}");
    }
    // Rates of a plan are told of once, however many limiters take them.
    let plans = "trusted_proxies: []\nplans: { a: { rate: [5/s, 6/s] } }\nlimiters: { l: { rate: plan }, m: { rate: plan } }\n";
    warned(plans, &[(2, 27, idle, "")]);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_rate_that_is_said_never_to_decide_never_does(
        algorithm in prop::sample::select(vec!["token-bucket", "fixed-window", "anchored-window", "sliding-window", "sliding-log", "sub-windows", "leaky-queue", "interval-bucket"]),
        rates in prop::array::uniform2((1..12_u64, prop::sample::select(vec![1, 2, 3, 6, 60_u64]))),
        calls in prop::collection::vec((prop_oneof![Just(0), 0..3000_u64, 0..90_000_u64], 1..4_u64), 1..80),
    ) {
        let [(a, a_period), (b, b_period)] = rates;
        let text = format!(
            "limiters:\n  l:\n    per: global\n    algorithm: {algorithm}\n    rate:\n    - {a}/{a_period}s\n    - {b}/{b_period}s\n"
        );
        let (policy, warnings) = Policy::read(&text).unwrap();
        let idle: Vec<usize> = warnings
            .warnings()
            .filter(|told| told.message.contains("never decides"))
            .map(|told| told.line - 6)
            .collect();
        prop_assert!(idle.len() < 2, "one of them decides");
        let limits = &policy.limiters()[0].choices[0];
        let mut states: Vec<_> = limits.iter().map(Limit::fresh).collect();
        let mut now = Timestamp::from_secs(1_700_000_000);
        for (gap, cost) in calls {
            now = now + Nanos::new(gap * 1_000_000);
            let passes = |at: usize| limits[at].estimate(&states[at], now, cost.into()).unwrap().allowed;
            let passes = [passes(0), passes(1)];
            for idle in &idle {
                prop_assert!(passes[*idle] || !passes[1 - idle], "{}\n{}", text, warnings);
            }
            if passes == [true, true] {
                for (limit, state) in limits.iter().zip(&mut states) {
                    prop_assert!(limit.apply(Op::Charge, state, now, cost.into(), now).allowed);
                }
            }
        }
    }
}

#[test]
fn a_share_of_nobody_or_of_one_bucket_is_warned_of() {
    let policy = |limiter: &str| format!("trusted_proxies: []\nlimiters:\n  l: {{ {limiter} }}\n");
    warned(&policy("rate: 5/s, sample: 0%"), &[(3, 27, "enforced for nobody", "`mode: dark`")]);
    let one = "a share of one bucket is all or nothing";
    warned(&policy("rate: 5/s, sample: 10%, per: global"), &[(3, 27, one, "`per: caller`")]);
    warned(&policy("fleet: 5, for: get, sample: 10%"), &[(3, 36, one, "")]);
    warned(&policy("rate: 5/s, sample: 100%, per: global"), &[]);
    warned(&policy("rate: 5/s, sample: 10%"), &[]);
    warned(&policy("rate: 5/s, sample: 0%, mode: dark"), &[]);
}

#[test]
fn a_candidate_that_counts_nothing_is_warned_of() {
    let policy = |limiter: &str| format!("trusted_proxies: []\nlimiters:\n  l: {{ {limiter} }}\n");
    let wide = "this candidate counts nothing";
    warned(&policy("rate: 5/s, candidate: 6/s"), &[(3, 30, wide, "`mode: dark`")]);
    warned(&policy("rate: 5/s, candidate: 5/s"), &[(3, 30, wide, "")]);
    warned(&policy("rate: [5/s, 100/h], candidate: 6/s"), &[(3, 39, wide, "")]);
    warned(&policy("concurrency: 5, candidate: 5"), &[(3, 35, wide, "")]);
    warned(&policy("fleet: 5, for: get, candidate: 6"), &[(3, 39, wide, "")]);
    warned(&policy("fleet: 5, for: get, candidate: { reserve: 10% }"), &[(3, 39, wide, "")]);
    for certain_of_nothing in [
        "rate: 5/s, candidate: 4/s",
        "rate: 5/s, candidate: { rate: 6/s, burst: 4 }",
        "rate: 5/s, candidate: { rate: 4/s, burst: 6 }",
        "rate: 5/s, candidate: { rate: [6/s, 100/h] }",
        "rate: 5/s, candidate: 6/s, mode: dark",
        "rate: 5/s, candidate: 6/s, sample: 10%",
        "rate: 5/s, candidate: 6/s, cost: { response_header: x }",
        "concurrency: 5, candidate: 4",
        "fleet: 5, for: get, candidate: 4",
        "fleet: 5, for: get, candidate: { reserve: 90% }",
    ] {
        warned(&policy(certain_of_nothing), &[]);
    }
    warned(&format!("{}mode: dark\n", policy("rate: 5/s, candidate: 6/s")), &[]);
    // Who has a limit of its own is not asked of the candidate.
    let overridden = "identify: { caller: [header: k] }\noverrides: { a: { l: 9/s } }\n";
    warned(&format!("{overridden}{}", policy("rate: 5/s, candidate: 6/s")), &[(5, 30, wide, "")]);
}

#[test]
fn networks_for_want_of_trusted_proxies_are_warned_of() {
    let policy = |more: &str| format!("identify: {{ caller: [header: k] }}\n{more}\n");
    let limiter = "limiters: { l: { rate: 5/s } }";
    let network = "clients are known by their networks";
    let tell = "add `trusted_proxies: [10.0.0.0/8]`";
    warned(&policy(&format!("{limiter}\nblock: [192.0.2.1]")), &[(3, 1, network, tell)]);
    warned(&policy(&format!("{limiter}\nallow: [192.0.2.1]")), &[(3, 1, network, tell)]);
    for matches in ["{ network: 10.0.0.0/8 }", "{ path: /a, not: { network: 10.0.0.0/8 } }"] {
        let limiters = format!("limiters: {{ l: {{ rate: 5/s, match: {matches} }} }}");
        warned(&policy(&limiters), &[(2, 13, network, tell)]);
        warned(&policy(&format!("classes: {{ a: {matches} }}\n{limiter}")), &[(2, 12, network, tell)]);
        warned(&policy(&format!("{limiters}\ntrusted_proxies: []")), &[]);
        warned(&policy(&format!("{limiters}\ntrusted_hops: 1")), &[]);
    }
    warned(&policy(&format!("{limiter}\nblock: [caller: a]")), &[]);
    // What is missing is told of once.
    warned(
        "limiters:\n  l: { rate: 5/s }\nblock: [192.0.2.1]\n",
        &[(2, 3, "one bucket for everybody", tell)],
    );
}

#[test]
fn addresses_as_names_where_nobody_is_known_by_one_are_warned_of() {
    let policy = |caller: &str| {
        format!(
            "identify:\n  caller: {caller}\n  plan: table\n  table: {{ 203.0.113.1: a, b: a }}\n\
             overrides: {{ '2001:db8::1': {{ l: 5/s }} }}\nallow: [caller: 203.0.113.2]\n\
             trusted_proxies: []\nplans: {{ a: {{ rate: 5/s }} }}\nlimiters: {{ l: {{ rate: plan }} }}\n"
        )
    };
    let nobody = "is nobody: callers are not known by their addresses here";
    let expected = [
        (4, 12, nobody, "add `ip` to `caller`"),
        (5, 14, nobody, "add `ip` to `caller`"),
        (6, 17, nobody, "write `network: 203.0.113.2`"),
    ];
    warned(&policy("[header: k]"), &expected);
    warned(&policy("[header: k, ip]"), &[]);
    let patterns = |pattern: &str| policy("[header: k, ip]").replace("b: a", &format!("'{pattern}': a"));
    for pattern in ["203.0.113.*", "203.0.*", "203.*", "2001:db8:*"] {
        warned(&patterns(pattern), &[(4, 28, "is of no address", "match: { network:")]);
    }
    for pattern in ["*", "1*", "v1.*", "sk_*"] {
        warned(&patterns(pattern), &[]);
    }
}

#[test]
fn names_that_are_nearly_addresses_are_warned_of() {
    let policy = |caller: &str, name: &str| {
        format!(
            "trusted_proxies: []\nidentify: {{ caller: [{caller}] }}\nlimiters: {{ l: {{ rate: 5/s }} }}\noverrides: {{ '{name}': {{ l: 9/s }} }}\nblock: [caller: '{name}']\n"
        )
    };
    let taken = "is taken for a name: it is no address";
    for (name, right) in [
        ("010.0.0.1", "write `10.0.0.1`"),
        ("203.0.113.9:80", "write `203.0.113.9`"),
        ("203.0.113.009:80", "write `203.0.113.9`"),
        ("[2001:db8::1]", "write `2001:db8::1`"),
        ("[2001:db8::1]:80", "write `2001:db8::1`"),
        ("fe80::1%eth0", "write `fe80::1`"),
    ] {
        warned(&policy("header: k, ip", name), &[(4, 14, taken, right), (5, 17, taken, right)]);
        // A header may say anything.
        warned(&policy("header: k", name), &[]);
    }
    for name in ["sk_1", "1.2.3", "1.2.3.4.5", "1.2.3.256", "a:80", "v1.2.3.4", "7", "10.0.0.1"] {
        warned(&policy("header: k, ip", name), &[]);
    }
}

#[test]
fn who_is_on_both_lists_is_warned_of() {
    let policy = |allow: &str, block: &str| {
        format!(
            "trusted_proxies: []\nidentify: {{ caller: [header: k] }}\nlimiters: {{ l: {{ rate: 5/s }} }}\nblock: [{block}]\nallow: [{allow}]\n"
        )
    };
    let help = "`allow` goes before `block`";
    let caller = "this caller is on `allow` as well, and passes";
    let network = "this network is on `allow` as well, and passes";
    warned(&policy("caller: a, caller: b", "caller: c, caller: a"), &[(4, 28, caller, help)]);
    warned(&policy("10.0.0.0/8", "192.0.2.1, 10.0.0.0/8"), &[(4, 20, network, help)]);
    warned(&policy("10.0.0.0/8", "network: 10.1.0.0/16"), &[(4, 18, network, help)]);
    // A part of what is blocked may pass.
    warned(&policy("10.1.0.0/16, caller: a", "10.0.0.0/8, caller: b"), &[]);
}

#[test]
fn a_number_of_proxies_beside_a_header_of_one_address_is_warned_of() {
    let policy = |text: &str| format!("limiters: {{ l: {{ rate: 5/s }} }}\ntrusted_hops: 2\n{text}\n");
    let one = "no proxies are counted in \"cf-connecting-ip\": it holds one address";
    warned(&policy("address_header: CF-Connecting-IP"), &[(2, 1, one, "`trusted_proxies: [10.0.0.0/8]`")]);
    let both = "address_header: cf-connecting-ip\ntrusted_proxies: [10.0.0.0/8]";
    warned(&policy(both), &[(2, 1, one, "leave it out")]);
    for header in ["x-forwarded-for", "forwarded"] {
        warned(&policy(&format!("address_header: {header}")), &[]);
    }
}

#[test]
fn other_things_that_are_legal_and_not_meant_are_warned_of() {
    let plans = "plans: { a: { rate: 5/s } }\nlimiters: {}\nidentify: { table: { b: a } }\n";
    warned(plans, &[(3, 13, "no plan is looked for in this table", "plan: [table]")]);
    warned(
        "limiters: {}\nidentify: { jwt: { secret_env: S } }\n",
        &[(2, 18, "no claim of a token is asked for", "")],
    );
    let off = "limiters:\n  l: { rate: 5/s, per: global, mode: off, candidate: 6/s }\n";
    warned(off, &[(2, 3, "counts no candidate", "mode: dark")]);
    let dear = "limiters:\n  l: { rate: 5/s, per: global, cost: 6 }\n";
    warned(dear, &[(2, 3, "a request that costs 6 never passes where there are 5 at once", "burst")]);
    warned("limiters:\n  l: { rate: 5/s, per: global, burst: 6, cost: 6 }\n", &[]);
}

#[test]
fn a_cost_that_never_passes_is_warned_of_with_what_would_help() {
    let policy = |limiter: &str| format!("trusted_proxies: []\nlimiters:\n  l: {{ {limiter} }}\n");
    for (limiter, help) in [
        ("rate: 5/s, cost: 6", "add `burst`"),
        ("rate: 5/s, cost: 6, algorithm: sliding-log", "let more pass in a period"),
        ("concurrency: 5, cost: 6", "let more be in progress"),
        ("fleet: 5, for: get, cost: 6", "more places"),
        ("rate: 5/s, cost: { header: x-cost, max: 6 }", "add `burst`"),
        ("rate: 5/s, cost: { header: x-cost, otherwise: 6 }", "add `burst`"),
    ] {
        warned(&policy(limiter), &[(3, 3, "a request that costs 6 never passes", help)]);
    }
    warned(&policy("rate: 5/s, cost: { header: x-cost, max: 5 }"), &[]);
    warned(&policy("rate: 5/s, cost: { header: x-cost }"), &[]);
    warned(&policy("rate: 5/s, cost: given"), &[]);
}

#[test]
fn a_cost_of_a_class_that_the_limiter_never_sees_is_not_warned_of() {
    let policy = |matches: &str, cost: &str| {
        format!(
            "trusted_proxies: []\nclasses: {{ critical: [POST /pay], get: [GET *] }}\nlimiters:\n  l: {{ rate: 100/min{matches}, cost: {{ {cost} }} }}\n"
        )
    };
    let dear = "class: { critical: 500, get: 2 }";
    let told = [(4, 3, "a request that costs 500 never passes where there are 100 at once", "`burst`")];
    for matches in
        ["", ", match: { class: [get, critical] }", ", match: POST *", ", match: { not: { class: get } }"]
    {
        warned(&policy(matches, dear), &told);
    }
    for matches in ["{ class: get }", "{ class: other }", "GET *", "/login", "{ not: { class: critical } }"] {
        warned(&policy(&format!(", match: {matches}"), dear), &[]);
    }
    // The same for what is not named.
    let others = "class: { get: 2 }, otherwise: 500";
    warned(&policy(", match: { class: get }", others), &[]);
    warned(&policy(", match: { class: [get, other] }", others), &told);
    warned(&policy("", "class: { get: 2, critical: 3, other: 4 }, otherwise: 500"), &[]);
}

#[test]
fn a_queue_that_nobody_waits_in_is_warned_of() {
    let policy = |rate: &str, timeout: &str| {
        format!(
            "trusted_proxies: []\nlimiters:\n  l: {{ {rate}, algorithm: leaky-queue }}\ngateway: {{ timeout: {timeout} }}\n"
        )
    };
    let long = "a request may wait for up to 100s in this queue: longer than an answer may take (1min)";
    warned(
        &policy("rate: 1/s, burst: 100", "60s"),
        &[(3, 3, long, "make `burst` smaller: 60 wait no longer")],
    );
    warned(&policy("rate: 1/s, burst: 100", "100s"), &[]);
    warned(&policy("rate: 1/min, burst: 1", "60s"), &[]);
    warned(&policy("rate: 1/2min, burst: 1", "60s"), &[(3, 3, "up to 2min", "let more pass in a period")]);
    warned(&policy("rate: 1/s, burst: 100", "60s").replace("leaky-queue", "leaky-bucket"), &[]);
}

#[test]
fn plans_that_change_nothing_or_that_nobody_has_are_warned_of() {
    let policy = |limiter: &str, more: &str| {
        format!(
            "trusted_proxies: []\nplans:\n  a: {{ rate: 5/s }}\n  b: {{ rate: 6/s }}\nlimiters: {{ l: {{ {limiter} }} }}\n{more}\n"
        )
    };
    let unused = "no limiter asks for plans: they change nothing";
    let table = "identify: { plan: table, table: { k: b } }";
    warned(&policy("rate: 5/s", table), &[(2, 1, unused, "`rate: plan`")]);
    for used in ["rate: plan", "rate: 5/s, per: plan", "rate: 5/s, match: { not: { plan: b } }"] {
        warned(&policy(used, table), &[]);
        warned(&policy(used, "identify: { caller: [header: h] }\noverrides: { k: { plan: b } }"), &[]);
    }
    let all = "callers have the plan \"a\": nothing says where others are looked for";
    warned(&policy("rate: plan", ""), &[(2, 1, all, "add `plan` to `identify`")]);
    warned(
        &policy("rate: plan", "identify: { plan: table, table: { k: a } }"),
        &[(4, 3, "nobody has the plan \"b\"", "name its callers in `table`")],
    );
    warned(&policy("rate: plan", "identify: { plan: table, table: { k: a }, default_plan: b }"), &[]);
    warned(&policy("rate: plan", "identify: { plan: [tls, table], table: { k: a } }"), &[]);
}

#[test]
fn a_limit_of_one_caller_on_a_bucket_of_others_is_warned_of() {
    let policy = |caller: &str, limiter: &str, own: &str| {
        format!(
            "trusted_proxies: []\nidentify: {{ caller: [{caller}] }}\nlimiters: {{ l: {{ {limiter} }} }}\noverrides: {{ 192.0.2.1: {{ l: {own} }} }}\n"
        )
    };
    let shared = "buckets that all callers share, and this limit is of one caller alone";
    let told = [(4, 27, shared, "`per: caller`")];
    warned(&policy("header: k, ip", "rate: 5/s, per: global", "9/s"), &told);
    warned(&policy("header: k, ip", "concurrency: 5, per: global", "9"), &told);
    warned(&policy("header: k, ip", "fleet: 5, for: get", "{ reserve: 0% }"), &told);
    warned(
        &policy("header: k, ip", "rate: 5/s, per: [ip, path]", "9/s"),
        &[(4, 27, "buckets that callers share", "")],
    );
    // Who is not counted meets nobody, and where callers are addresses, those are their buckets.
    warned(&policy("header: k, ip", "rate: 5/s, per: global", "unlimited"), &[]);
    warned(&policy("ip", "rate: 5/s, per: [ip, path]", "9/s"), &[]);
    warned(&policy("header: k, ip", "rate: 5/s, per: [path, caller]", "9/s"), &[]);
    // The same for the only header.
    let header = |caller: &str, per: &str| {
        policy(caller, &format!("rate: 5/s, per: {per}"), "9/s").replace("192.0.2.1", "sk_live_1")
    };
    warned(&header("header: X-Api-Key", "{ header: x-api-key }"), &[]);
    warned(&header("header: x-api-key", "[path, { header: X-API-Key }]"), &[]);
    for (caller, per) in
        [("header: x-api-key", "{ header: x-tenant }"), ("header: x-api-key, ip", "{ header: x-api-key }")]
    {
        warned(&header(caller, per), &[(4, 27, "buckets that callers share", "`per: caller`")]);
    }
    let fleet = [(3, 43, "each caller has 5 places of its own", "")];
    warned(&policy("header: k, ip", "fleet: 5, for: get, per: caller", "9"), &fleet);
}

#[test]
fn what_is_no_number_of_places_is_refused_for_a_fleet() {
    let limiter = |own: &str| {
        format!("limiters: {{ l: {{ fleet: 5, for: get }} }}\noverrides: {{ k: {{ l: {own} }} }}\n")
    };
    for own in ["unlimited", "5/s", "{}"] {
        check(
            &limiter(own),
            &[(2, 22, "this caller has no places of the fleet", "write a number such as `400`")],
        );
        let candidate = format!("limiters: {{ l: {{ fleet: 5, for: get, candidate: {own} }} }}\n");
        check(
            &candidate,
            &[(1, 49, "the candidate has no places of the fleet", "{ fleet: 400, reserve: 10% }")],
        );
    }
    assert!(Policy::read(&limiter("{ reserve: 10% }")).is_ok());
}

#[test]
fn names_that_no_request_can_have_are_refused() {
    let header = "no header can be called";
    for (field, at, message, help) in [
        ("identify: { caller: [header: 'x api key'] }", 30, header, "letters, digits and `-`"),
        ("identify: { caller: [header: 'x-api-key:'] }", 30, header, "write `x-api-key`"),
        ("identify: { caller: [header: ' x-api-key'] }", 30, header, "write `x-api-key`"),
        ("identify: { caller: [header: ':authority'] }", 30, header, ""),
        ("identify: { caller: [cookie: a=b] }", 30, "no cookie can be called \"a=b\"", "write `a`"),
        ("identify: { caller: [cookie: 'a;b'] }", 30, "no cookie can be called", "write `a`"),
        ("identify: { caller: [cookie: '=b'] }", 30, "no cookie can be called", "session"),
        ("address_header: x forwarded for", 17, header, ""),
        ("classes: { a: [{ header: { 'x y': z } }] }", 28, header, ""),
        ("classes: { a: [header x(y): z] }", 16, header, ""),
        ("classes: { a: [header x: 'z '] }", 26, "no value is ever like this", "write 'z'"),
        ("classes: { a: [host: api.example.com:8080] }", 22, "has a port", "write `api.example.com`"),
        ("classes: { a: [host: '*.example.com:*'] }", 22, "has a port", "write `*.example.com`"),
        (
            "classes: { a: [host: 'https://api.example.com/v1'] }",
            22,
            "has a scheme",
            "write `api.example.com`",
        ),
        ("classes: { a: [host: example.com/v1] }", 22, "has a path", "write `example.com`"),
        ("classes: { a: [host: example.com.] }", 22, "ends with a dot", "write `example.com`"),
        ("classes: { a: [host: '[::1]:80'] }", 22, "has a port", "write `[::1]`"),
        ("classes: { a: [host: '::1'] }", 22, "needs brackets", "write '[::1]'"),
        ("classes: { a: [host: 'a b'] }", 22, "is no name of a host", ""),
    ] {
        check(&format!("limiters: {{}}\n{field}\n"), &[(2, at, message, help)]);
    }
    for limiter in [
        "rate: 5/s, per: { header: x y }",
        "rate: 5/s, cost: { header: x y }",
        "rate: 5/s, cost: { response_header: x y }",
        "workers: { source: { response_header: x y } }",
    ] {
        let text = format!("limiters: {{ l: {{ {limiter} }} }}\n");
        check(&text, &[(1, text.find("x y").unwrap() + 1, header, "")]);
    }
    let good = "host: [api.example.com, '*', '*.a', '[::1]', localhost, 10.0.0.1], header x_y: 'a b', header !#$%: '*'";
    assert!(
        Policy::read(&format!("limiters: {{}}\nclasses: {{ a: [{{ {good} }}] }}\n")).unwrap().1.is_empty()
    );
}

#[test]
fn names_that_hardly_a_request_has_are_warned_of() {
    let policy = |text: &str| format!("trusted_proxies: []\nlimiters: {{ l: {{ rate: 5/s }} }}\n{text}\n");
    for (text, at, message, help) in [
        ("identify: { caller: [query: a&b] }", 29, "hardly any request has a parameter \"a&b\"", "decoded"),
        ("identify: { caller: [query: '?key'] }", 29, "hardly any request", ""),
        ("identify: { caller: [query: 'a%5B0%5D'] }", 29, "hardly any request", ""),
        ("identify: { caller: [header: 'x-*'] }", 30, "is a star", "the whole name"),
        ("classes: { a: [host: b\u{fc}cher.example] }", 22, "ASCII only", "xn--"),
        (
            "identify: { caller: [header: k] }\nallow: [caller: 'sk_*']",
            17,
            "whose name has a star in it",
            "`table`",
        ),
        ("identify: { caller: [header: k] }\nblock: [caller: ' sk_1']", 17, "hardly anybody", "write `sk_1`"),
        (
            "identify: { caller: [header: k] }\noverrides: { 'sk_*': { l: 9/s } }",
            14,
            "whose name has a star in it",
            "",
        ),
    ] {
        let line = 3 + text.matches('\n').count();
        warned(&policy(text), &[(line, at, message, help)]);
    }
    warned(&policy("identify: { caller: [query: 'a[0]', cookie: '__Host-a'] }"), &[]);
}

#[test]
fn a_class_that_contradicts_the_rest_of_its_condition_is_warned_of() {
    let policy = |condition: &str| {
        format!(
            "classes: {{ reads: [GET /a/*, OPTIONS /a/*], all: [{{ host: a.example }}] }}\nlimiters:\n  l: {{ rate: 5/s, per: global, match: [{condition}] }}\n"
        )
    };
    let never = [
        (3, 3, "no request can match \"l\"", ""),
        (3, 40, "no request can ever be like this", "requests of this class are others"),
    ];
    for condition in [
        "{ class: reads, method: POST }",
        "{ class: reads, path: /b }",
        "{ class: reads, path: /a }",
        "{ class: reads, path: ['/b/{id}', /c/*], method: GET }",
        "{ class: all, host: b.example }",
        "{ class: reads, not: [GET *, OPTIONS *] }",
    ] {
        warned(&policy(condition), &never);
    }
    for condition in [
        "{ class: reads, method: [POST, GET] }",
        "{ class: reads, path: /a/b }",
        "{ class: reads, path: '/{any}/b' }",
        "{ class: [reads, all], method: POST }",
        "{ class: other, method: POST }",
        "{ class: all, host: '*.example' }",
        "{ class: reads, not: GET * }",
        "{ class: reads, not: [HEAD *, OPTIONS *] }",
    ] {
        warned(&policy(condition), &[]);
    }
    // Nothing is of class `other` where another takes everything.
    warned(
        "limiters:\n  l: { rate: 5/s, per: global, match: [{ class: other }] }\n",
        &[(2, 3, "no request can match", "")],
    );
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_is_said_to_match_no_request_matches_none(
        kind in route(), asked in route(), not in prop::option::of(route()), requests in prop::collection::vec((method(), path()), 1..12),
    ) {
        let map = |(method, path): &(&str, &str)| format!("method: {method}, path: '{path}'");
        let not = not.map(|not| format!(", not: {{ {} }}", map(&not))).unwrap_or_default();
        let text = format!(
            "classes: {{ c: [{{ {} }}] }}\nlimiters: {{ l: {{ rate: 5/s, per: global, match: [{{ class: c, {}{not} }}] }} }}\n",
            map(&kind), map(&asked),
        );
        let (policy, warnings) = Policy::read(&text).unwrap();
        let is_dead = warnings.warnings().any(|told| told.message.contains("no request can match"));
        for (method, path) in requests {
            let path = path.replace('*', "x").replace("{id}", "y");
            let facts = Facts { method, path: &path, ..Facts::default() };
            let is_charged = !policy.plan(&facts, &NoTokens, Timestamp::ZERO).charged.is_empty();
            prop_assert!(!is_dead || !is_charged, "{method} {path}\n{text}{warnings}");
        }
    }
}

fn method() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["GET", "POST"])
}

fn path() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "/",
        "/*",
        "/a",
        "/a/*",
        "/a*",
        "/ab/*",
        "/{id}/b",
        "/a/b",
        "/{id}",
        "/ab*",
        "/a/{id}/*",
    ])
}

fn route() -> impl Strategy<Value = (&'static str, &'static str)> {
    (method(), path())
}
