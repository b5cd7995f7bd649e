//! Logs answer "who?": the caller, who would have been rejected, and none of their secrets.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use crate::common::{BINARY, await_store, patient_store};
use serde_json::Value;
use tollgate_testkit::http::Upstream;
use tollgate_testkit::{RedisServer, Tollgate, wait_until};

const KEY: &str = "sk_live_canary00112233445566778899aabb";
const OTHER_KEY: &str = "sk_live_other000112233445566778899aabb";
const SHORT_KEY: &str = "sk_shortcanary";

fn start(policy: &str, upstream: &Upstream, environment: &[(&str, &str)]) -> Tollgate {
    let flags = ["--upstream", &upstream.url(), "--access-log", "access.log"];
    Tollgate::start_in(BINARY, policy, &flags, environment, |_| ())
}

/// The lines of the access log, once there are so many.
fn lines(tollgate: &Tollgate, count: usize) -> Vec<Value> {
    let read = || std::fs::read_to_string(tollgate.folder().join("access.log")).unwrap_or_default();
    wait_until("the log is written", || read().lines().count() >= count);
    let lines: Vec<Value> = read().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count, "{lines:?}");
    lines
}

fn text<'l>(line: &'l Value, field: &str) -> &'l str {
    line.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// 239,114 lines from dozens of API keys had one and the same value: a hash of the address.
#[test]
fn the_access_log_says_which_caller_it_was_and_shows_no_key() {
    let upstream = Upstream::hello();
    let policy = "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\nlimiters: { l: { rate: 1/h } }\n";
    let tollgate = start(policy, &upstream, &[]);
    for key in [KEY, OTHER_KEY, SHORT_KEY, KEY] {
        tollgate.get("/", &[("x-api-key", key)]);
    }
    tollgate.get("/", &[]);
    let lines = lines(&tollgate, 5);
    let callers: Vec<&str> = lines.iter().map(|line| text(line, "caller")).collect();
    assert!(callers[0].starts_with("sk_live_c~") && callers[0].len() == 9 + 1 + 12, "{callers:?}");
    assert!(callers[1].starts_with("sk_live_o~"), "{callers:?}");
    assert!(callers[2].starts_with('~') && callers[2].len() == 13, "a short key has no prefix: {callers:?}");
    assert_eq!(callers[3], callers[0]);
    assert_eq!(callers[4], format!("ip:{}", text(&lines[4], "client")));
    assert_eq!((text(&lines[3], "verdict"), text(&lines[3], "limiter")), ("refused", "l"));
    // Who was rejected is on standard error, too, with the same name.
    let told = tollgate.says("rejected; the latest was from this caller");
    assert!(
        told.contains("limiter=\"l\"") && told.contains(callers[0]) && told.contains("count=1"),
        "{told}"
    );
}

#[test]
fn no_log_shows_more_than_the_first_quarter_of_a_key() {
    let upstream = Upstream::hello();
    let policy = |caller: &str| {
        format!(
            "identify: {{ caller: [{caller}] }}\nlimiters:\n  l: {{ rate: 1/h }}\n  d: {{ rate: 1/h, mode: dark }}\n  \
             c: {{ rate: 9/h, candidate: 1/h }}\n"
        )
    };
    // bob:canary correct horse battery staple
    let basic = "Basic Ym9iOmNhbmFyeSBjb3JyZWN0IGhvcnNlIGJhdHRlcnkgc3RhcGxl";
    let bearer = format!("Bearer {KEY}");
    let cookie = format!("session={KEY}");
    let query = format!("/?key={KEY}");
    for (caller, path, headers, shown) in [
        ("header: x-api-key", "/", [("x-api-key", KEY)], "sk_live_c~"),
        ("header: x-api-key", "/", [("x-api-key", SHORT_KEY)], "~"),
        ("header: authorization", "/", [("authorization", bearer.as_str())], "sk_live_c~"),
        ("header: authorization", "/", [("authorization", basic)], "~"),
        ("cookie: session", "/", [("cookie", cookie.as_str())], "sk_live_c~"),
        ("query: key", query.as_str(), [("x", "y")], "sk_live_c~"),
    ] {
        let tollgate = start(&policy(caller), &upstream, &[("TOLLGATE_LOG", "trace")]);
        (0..3).for_each(|_| drop(tollgate.get(path, &headers)));
        let lines = lines(&tollgate, 3);
        assert!(text(&lines[0], "caller").starts_with(shown), "{caller}: {lines:?}");
        tollgate.says("rejected; the latest");
        let said = tollgate.said().join("\n");
        let log = std::fs::read_to_string(tollgate.folder().join("access.log")).unwrap();
        let metrics = tollgate.ask_admin("GET", "/metrics", "").text();
        let status = tollgate.ask_admin("GET", "/api/status", "").text();
        for secret in ["canary", "shortc", "Ym9i", "sk_live_ca"] {
            for output in [&said, &log, &metrics, &status] {
                let line = output.lines().find(|line| line.contains(secret));
                assert_eq!(line, None, "{caller}");
            }
        }
    }
}

#[test]
fn what_a_dark_limiter_or_a_candidate_would_have_rejected_is_logged_by_name() {
    let redis = RedisServer::start();
    let upstream = Upstream::hello();
    for store in ["", &patient_store(&redis)] {
        let policy = format!(
            "{store}identify: {{ caller: [header: x-api-key] }}\ngateway: {{ log: refused }}\nlimiters:\n  \
             night: {{ rate: 2/h, mode: dark }}\n  tried: {{ rate: 100/h, candidate: 1/h }}\n"
        );
        let tollgate = start(&policy, &upstream, &[]);
        if !store.is_empty() {
            await_store(&tollgate);
        }
        for _ in 0..3 {
            assert_eq!(tollgate.get("/", &[("x-api-key", KEY)]).status, 200);
        }
        let dark = tollgate.says("would have been rejected by this dark limiter");
        assert!(dark.contains("limiter=\"night\"") && dark.contains("caller=\"sk_live_c~"), "{dark}");
        let candidate = tollgate.says("would have been rejected by the candidate");
        assert!(
            candidate.contains("limiter=\"tried\"") && candidate.contains("caller=\"sk_live_c~"),
            "{candidate}"
        );
        // Of those that passed, only the ones that would not have are logged.
        let lines = lines(&tollgate, 2);
        let names = |line: &Value, field: &str| line.get(field).cloned().unwrap_or_default();
        assert_eq!(names(&lines[0], "would_reject"), Value::Null);
        assert_eq!(names(&lines[0], "candidate_would_reject"), serde_json::json!(["tried"]));
        assert_eq!(names(&lines[1], "would_reject"), serde_json::json!(["night"]));
        assert_eq!(names(&lines[1], "candidate_would_reject"), serde_json::json!(["tried"]));
        assert_eq!(text(&lines[1], "verdict"), "passed");
    }
}

#[test]
fn addresses_are_logged_in_full_only_if_the_policy_says_so() {
    let upstream = Upstream::hello();
    let policy = |gateway: &str| {
        format!(
            "identify: {{ caller: ip }}\ntrusted_proxies: []\n{gateway}limiters: {{ l: {{ rate: 1/h }} }}\n"
        )
    };
    let tollgate = start(&policy("gateway: { log_addresses: full }\n"), &upstream, &[]);
    tollgate.get("/", &[]);
    let shown = lines(&tollgate, 1);
    assert_eq!((text(&shown[0], "client"), text(&shown[0], "caller")), ("127.0.0.1", "ip:127.0.0.1"));
    let tollgate = start(&policy(""), &upstream, &[]);
    tollgate.get("/", &[]);
    let hidden = lines(&tollgate, 1);
    assert!(!hidden[0].to_string().contains("127.0.0.1\",\"client"), "{hidden:?}");
    assert_eq!(text(&hidden[0], "client").len(), 12);
}

/// A caller has one name in the logs of all nodes of a deployment, also after a restart.
#[test]
fn nodes_with_the_same_secret_log_the_same_names() {
    let upstream = Upstream::hello();
    let policy = "identify: { caller: [header: x-api-key] }\nlimiters: { l: { rate: 1/h } }\n";
    let caller = |environment: &[(&str, &str)]| {
        let tollgate = start(policy, &upstream, environment);
        tollgate.get("/", &[("x-api-key", KEY)]);
        text(&lines(&tollgate, 1)[0], "caller").to_owned()
    };
    let one = caller(&[("TOLLGATE_SECRET", "0123456789abcdef")]);
    assert_eq!(one, caller(&[("TOLLGATE_SECRET", "0123456789abcdef")]));
    assert_ne!(one, caller(&[("TOLLGATE_SECRET", "another-secret-0")]));
    assert_ne!(one, caller(&[]));
}
