//! A limiter for a path or a method is not evaded by another spelling that reaches the same handler of the server.

#![cfg(feature = "policy")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot set itself up fails"
)]

use crate::common::config;
use crate::common::told::{check, warned_as_written};
use proptest::prelude::*;
use tollgate_core::Timestamp;
use tollgate_core::policy::path::PathPattern;
use tollgate_core::policy::{Facts, KeyBytes, LimiterDraft, NoTokens, Policy};
use tollgate_core::{Limit, Nanos};

fn read(text: &str) -> Policy {
    Policy::read(text).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}")).0
}

/// The limiters that a request is charged to, and the key of the first.
fn charged(policy: &Policy, method: &str, path: &str) -> (Vec<String>, Option<KeyBytes>) {
    let facts = Facts { method, path, caller: Some("alice"), ..Facts::default() };
    let planned = policy.plan(&facts, &NoTokens, Timestamp::ZERO);
    let names = planned.charged.iter().map(|charged| policy.limiters()[charged.limiter].name.to_string());
    let key = planned.charged.first().map(|charged| planned.keys[charged.key].clone());
    (names.collect(), key)
}

fn is_limited(policy: &Policy, method: &str, path: &str) -> bool {
    !charged(policy, method, path).0.is_empty()
}

#[test]
fn head_does_not_evade_a_limiter_for_get() {
    for condition in
        ["GET /search", "{ method: GET, path: /search }", "{ method: [POST, get], path: /search }"]
    {
        let policy = read(&format!("limiters: {{ l: {{ rate: 5/s, match: [{condition}] }} }}"));
        assert!(is_limited(&policy, "GET", "/search"), "{condition}");
        assert!(is_limited(&policy, "HEAD", "/search"), "{condition}");
        assert!(!is_limited(&policy, "OPTIONS", "/search"), "{condition}");
    }
    let only_get = read("limiters: { l: { rate: 5/s, match: [{ method: GET, not: HEAD * }] } }");
    assert!(is_limited(&only_get, "GET", "/") && !is_limited(&only_get, "HEAD", "/"));
    let only_head = read("limiters: { l: { rate: 5/s, match: [HEAD *] } }");
    assert!(!is_limited(&only_head, "GET", "/") && is_limited(&only_head, "HEAD", "/"));
    let writes = read("limiters: { l: { rate: 5/s, match: [{ not: GET * }] } }");
    assert!(
        is_limited(&writes, "POST", "/") && !is_limited(&writes, "HEAD", "/"),
        "HEAD is a read, like GET"
    );
}

#[test]
fn head_is_of_the_class_of_get_and_shares_its_bucket() {
    let policy =
        read("classes: { reads: [GET *] }\nlimiters: { l: { rate: 5/s, per: [caller, method, class] } }");
    assert_eq!(charged(&policy, "HEAD", "/"), charged(&policy, "GET", "/"));
    assert_ne!(charged(&policy, "POST", "/"), charged(&policy, "GET", "/"));
}

#[test]
fn a_path_in_upper_case_does_not_evade_a_limiter_that_ignores_case() {
    let spellings = ["/login", "/LOGIN", "/Login/", "//lOgIn", "/%4Cogin", "/login;v=1"];
    let global = "path_case: insensitive\nlimiters: { l: { rate: 5/s, match: [POST /login] } }";
    let local =
        "limiters: { l: { rate: 5/s, match: [{ method: POST, path: /Login, path_case: insensitive }] } }";
    let class = "path_case: insensitive\nclasses: { auth: [/LOGIN] }\nlimiters: { l: { rate: 5/s, match: [{ class: auth }] } }";
    for text in [global, local, class] {
        let policy = read(text);
        for path in spellings {
            assert!(is_limited(&policy, "POST", path), "{path}: {text}");
        }
        assert!(!is_limited(&policy, "POST", "/logins"), "{text}");
    }
    let exact = "path_case: insensitive\nlimiters: { l: { rate: 5/s, match: [{ path: /login, path_case: sensitive }] } }";
    for text in [exact, "limiters: { l: { rate: 5/s, match: [POST /login] } }"] {
        let policy = read(text);
        assert!(is_limited(&policy, "POST", "/login") && !is_limited(&policy, "POST", "/LOGIN"), "{text}");
    }
}

#[test]
fn spellings_of_one_path_share_a_bucket_where_case_is_ignored() {
    for limiter in ["per: path", "per: path, match: ['/V1/{id}', /v1/*]"] {
        let policy = read(&format!("path_case: insensitive\nlimiters: {{ l: {{ rate: 5/s, {limiter} }} }}"));
        let key = |path: &str| charged(&policy, "GET", path).1.unwrap();
        assert_eq!(key("/v1/a"), key("/V1/A"), "{limiter}");
    }
    let policy = read("limiters: { l: { rate: 5/s, per: path } }");
    assert_ne!(charged(&policy, "GET", "/v1/a").1, charged(&policy, "GET", "/V1/A").1);
}

#[test]
fn a_draft_can_ignore_case_as_a_file_can() {
    let logins =
        || LimiterDraft::rate("l", Limit::token_bucket(5, 5, Nanos::from_secs(1))).matching("POST /login");
    let drafted =
        Policy::builder().caller_header("x-api-key").ignore_path_case().limiter(logins()).build().unwrap();
    let file = "identify: { caller: [header: x-api-key] }\npath_case: insensitive\nlimiters: { l: { rate: 5/s, match: POST /login } }";
    assert_eq!(drafted, read(file));
}

#[test]
fn a_path_that_another_case_evades_is_warned_of_once_until_the_policy_says_what_its_server_does() {
    let limiters = "limiters:\n  a: { rate: 5/s, per: global }\n  b: { rate: 5/s, per: global, match: [POST /login] }\n  c: { rate: 5/s, per: global, match: [/x] }\n";
    warned_as_written(
        limiters,
        &[(3, 3, "`/LOGIN` is not limited by \"b\", which matches `/login`", "add `path_case: insensitive`")],
    );
    for said in ["sensitive", "insensitive"] {
        warned_as_written(&format!("{limiters}path_case: {said}\n"), &[]);
    }
    let one = |limiter: &str| format!("limiters:\n  a: {{ rate: 5/s, per: global, {limiter} }}\n");
    for quiet in [
        "match: ['*']",
        "match: [GET *]",
        "match: ['/{a}/7/*']",
        "match: [{ path: /login, path_case: insensitive }]",
        "match: [{ path: [/login, /*] }]",
        "match: [{ not: /health }]",
        "match: [POST /login], mode: off",
    ] {
        warned_as_written(&one(quiet), &[]);
    }
    warned_as_written(&one("match: [/ADMIN]"), &[(2, 3, "`/admin` is not limited by \"a\"", "path_case")]);
    // Classes count where a limiter goes by them: a request that leaves its class is not limited, or costs less.
    let classes = "classes: { dear: [/export], rest: ['*'] }\n";
    for (limiter, is_warned) in [
        ("match: [{ class: dear }]", true),
        ("cost: { class: { dear: 5 } }", true),
        ("cost: { class: { dear: 0 } }", false),
        ("match: [{ class: rest }]", false),
    ] {
        let expected = [(3, 3, "`/EXPORT` is not limited by", "path_case")];
        warned_as_written(&format!("{classes}{}", one(limiter)), if is_warned { &expected } else { &[] });
    }
}

#[test]
fn mistakes_in_path_case_are_told_where_they_stand() {
    check(
        "path_case: ignore\nlimiters: {}\n",
        &[(1, 12, "no path_case \"ignore\"", "`sensitive` and `insensitive`")],
    );
    check(
        "limiters: { a: { rate: 5/s, match: [{ method: GET, path_case: insensitive }] } }\n",
        &[(1, 63, "`path_case` needs a `path`", "add `path: /login`")],
    );
    check(
        "limiters: { a: { rate: 5/s, match: [{ path: /a, path_case: insensitiv }] } }\n",
        &[(1, 60, "no path_case \"insensitiv\"", "did you mean `insensitive`?")],
    );
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ignoring_case_is_matching_in_lower_case(
        parts in prop::collection::vec(prop::sample::select(vec!["a", "aB", "AB", "b*", "B1*", "*", "{x}"]), 0..4),
        path in prop::collection::vec(prop::sample::select(vec!["a", "Ab", "ab", "B", "b1c", "B1C"]), 0..5),
    ) {
        let (pattern, path) = (format!("/{}", parts.join("/")), format!("/{}", path.join("/")));
        let parse = |text: &str| PathPattern::parse(text).unwrap();
        let lower = parse(&pattern.to_ascii_lowercase()).matches(&path.to_ascii_lowercase());
        prop_assert_eq!(parse(&pattern).ignoring_case().matches(&path), lower, "{} {}", pattern, path);
        prop_assert!(lower || !parse(&pattern).matches(&path), "it matches no less: {} {}", pattern, path);
    }
}
