//! The gateway as a policy has it: whom requests are passed on to, how long it waits for what, and what is wrong with that.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]

use tollgate_core::Nanos;
use tollgate_core::policy::{
    AddedHeaders, ConnectionLimits, Facts, Mistakes, Policy, Protocol, parse_server,
};

fn read(gateway: &str) -> Policy {
    Policy::read(&format!("limiters: {{}}\ngateway:\n{gateway}\n")).unwrap().0
}

fn mistakes(gateway: &str) -> String {
    let outcome = Policy::read(&format!("limiters: {{}}\ngateway:\n{gateway}\n"));
    outcome.map(|(_, unwise)| unwise).unwrap_or_else(|wrong: Mistakes| wrong).to_string()
}

#[test]
fn everything_has_a_value_if_nothing_is_said() {
    let (policy, _) = Policy::read("limiters: {}").unwrap();
    let gateway = policy.gateway();
    assert_eq!((gateway.listen.as_deref(), policy.admin_listen()), (None, None));
    assert!(gateway.upstreams.is_empty() && gateway.tls.is_none() && !gateway.proxy_protocol);
    let times = gateway.timeouts;
    let secs = [times.head, times.body, times.connect, times.queue, times.answer, times.idle, times.drain];
    assert_eq!(secs, [10, 30, 3, 3, 60, 75, 30].map(Nanos::from_secs));
    assert_eq!(gateway.connections, ConnectionLimits::default());
    assert!(!gateway.allow_trace && gateway.added_headers == AddedHeaders::default());
    assert_eq!((gateway.sizes.head, gateway.sizes.body), (65_536, None));
    assert_eq!(policy.upstream_of(&Facts::default()), None);
}

#[test]
fn all_of_it_is_read() {
    let policy = read(
        "  listen: 0.0.0.0:8443
  tls: { certificate: cert.pem, key: key.pem, client_ca: ca.pem }
  proxy_protocol: yes
  upstream: [http://10.0.0.5:9000, 'http://[::1]:9000']
  upstreams:
    reports:
      match: [GET /v1/reports/*, { host: reports.example.com }]
      servers: https://reports.internal
      protocol: http2
      health: /healthz
      workers: 50
  timeouts: { head: 5s, body: 20s, connect: 500ms, answer: 30s, idle: 60s, drain: 0s }
  max_head: 32KB
  max_body: 10MB
  access_log: stdout
  log: refused",
    );
    let gateway = policy.gateway();
    assert_eq!(gateway.listen.as_deref(), Some("0.0.0.0:8443"));
    assert_eq!(gateway.tls.as_ref().unwrap().client_ca.as_deref(), Some("ca.pem"));
    assert!(gateway.proxy_protocol && gateway.log_only_refused);
    assert_eq!((gateway.sizes.head, gateway.sizes.body), (32 << 10, Some(10 << 20)));
    assert_eq!(gateway.timeouts.connect, Nanos::new(500_000_000));
    assert_eq!(gateway.timeouts.drain, Nanos::ZERO);
    let names: Vec<&str> = gateway.upstreams.iter().map(|upstream| &*upstream.name).collect();
    assert_eq!(names, ["reports", "default"]);
    let reports = &gateway.upstreams[0];
    assert_eq!((reports.protocol, reports.workers), (Protocol::Http2, Some(50)));
    assert_eq!(reports.health.as_ref().unwrap().path, "/healthz");
    assert_eq!(reports.servers[0].to_string(), "https://reports.internal:443");
    assert_eq!(gateway.upstreams[1].servers[1].to_string(), "http://[::1]:9000");
}

#[test]
fn requests_go_to_the_first_upstream_that_is_for_them() {
    let policy = read(
        "  upstream: http://a:1
  upstreams:
    reports: { match: [/v1/reports/*], servers: http://b:1 }
    other-host: { match: [{ host: b.example.com }], servers: http://c:1 }",
    );
    let at = |path, host| policy.upstream_of(&Facts { path, host, ..Facts::default() });
    assert_eq!(at("/v1/reports/7", ""), Some(0));
    assert_eq!(at("/v1/%72eports//7", ""), Some(0), "in its normal form");
    assert_eq!(at("/", "B.example.com:8080"), Some(1));
    assert_eq!(at("/v1/charges", "a.example.com"), Some(2));
    let policy = read("  upstreams: { reports: { match: [/v1/reports/*], servers: http://b:1 } }");
    assert_eq!(policy.upstream_of(&Facts::default()), None);
}

#[test]
fn what_is_wrong_with_a_server_is_told_with_what_would_be_right() {
    for (server, told) in [
        ("10.0.0.5:9000", "write http://10.0.0.5:9000"),
        ("ftp://a", "write http:// or https://"),
        ("http://a/v1", "so write http://a"),
        ("http://u:p@a", "no user and no password"),
        ("http://::1:80", "needs brackets"),
        ("http://[::g]:80", "no IPv6 address"),
        ("http://a:0", "no port"),
        ("http://a:99999", "no port"),
        ("http://", "no name of a host"),
        ("http://a b", "no name of a host"),
    ] {
        let wrong = parse_server(server).unwrap_err();
        assert!(wrong.contains(told), "{server}: {wrong}");
    }
    assert_eq!(parse_server("HTTPS://a/").unwrap().to_string(), "https://a:443");
}

#[test]
fn what_is_wrong_with_a_gateway_is_told_with_its_place() {
    for (gateway, told) in [
        ("  listen: 8080", "write 127.0.0.1:8080"),
        ("  listen: localhost", "write 127.0.0.1:8080, or `off`"),
        ("  upstream: a:1", "write http://a:1"),
        ("  upstream: [http://a:1, http://a:1]", "is there twice"),
        ("  upstreams: { a: {} }", "`servers` is missing"),
        ("  upstreams: { a: { servers: http://a, match: [{ class: critical }] } }", "class"),
        ("  upstreams: { a: { servers: http://a, health: healthz } }", "write `/healthz`"),
        ("  upstreams: { a: { servers: http://a, health: { every: 1s } } }", "`path` is missing"),
        ("  upstreams: { a: { servers: http://a, protocol: h2 } }", "protocol"),
        ("  tls: { certificate: a.pem }", "`key` is missing"),
        ("  timeouts: { head: 0s }", "no time at all"),
        ("  timeouts: { answer: 5s }\n  timeout: 6s", "already"),
        ("  timeouts: { heads: 5s }", "did you mean `head`"),
        ("  max_head: 1KB", "from 8KB to 1MB"),
        ("  log: some", "`all`"),
        (
            "  upstreams: { a: { servers: http://a }, b: { servers: http://b } }",
            "no request is ever passed on to \"b\"",
        ),
        (
            "  upstream: http://c\n  upstreams: { a: { servers: http://a } }",
            "no request is ever passed on to this",
        ),
    ] {
        let mistakes = mistakes(gateway);
        assert!(mistakes.contains(told), "{gateway}: {mistakes}");
        assert!(mistakes.contains("^"), "its place: {mistakes}");
    }
}

#[test]
fn utilization_of_upstreams_needs_the_number_of_their_workers() {
    let limiters = "limiters: { shed: { workers: { source: upstreams } } }\n";
    let wrong = Policy::read(limiters).unwrap_err().to_string();
    assert!(wrong.contains("add `workers: 50`"), "{wrong}");
    let gateway = "gateway: { upstreams: { a: { servers: http://a, workers: 50 } } }";
    let (policy, _) = Policy::read(&format!("{limiters}{gateway}")).unwrap();
    assert!(policy.watches_upstreams());
}

#[test]
fn of_a_policy_that_is_of_no_use_the_doors_can_be() {
    let text = "limiters: { a: { rat: 5/s } }\ngateway: { listen: 127.0.0.1:1, upstream: http://a:1 }\nadmin: { listen: 127.0.0.1:2 }\ntrusted_proxies: [10.0.0.0/8]";
    assert!(Policy::read(text).is_err());
    let policy = Policy::salvage(text).unwrap();
    assert!(policy.limiters().is_empty() && policy.trusts("10.0.0.1".parse().unwrap()));
    assert_eq!(policy.gateway().upstreams[0].servers[0].to_string(), "http://a:1");
    assert_eq!(
        (policy.gateway().listen.as_deref(), policy.admin_listen()),
        (Some("127.0.0.1:1"), Some("127.0.0.1:2"))
    );
    assert_eq!(Policy::salvage("limiters: {"), None);
    assert_eq!(Policy::salvage(""), None);
}

#[test]
fn all_headers_that_decide_something_are_known() {
    let text = "identify: { caller: [header: X-Tenant, cookie: c], plan: [header: x-plan] }
trusted_proxies: [10.0.0.0/8]
plans: { free: { rate: 5/s } }
classes: { a: [header x-class: '*'] }
limiters: { a: { rate: 5/s, per: [header: x-per], match: [{ not: [header x-not: a] }], cost: { header: x-cost, max: 5 } } }
gateway: { upstreams: { u: { servers: http://a, match: [header x-route: b] } } }";
    let (policy, _) = Policy::read(text).unwrap();
    let mut names = policy.headers_read();
    names.sort_unstable();
    assert_eq!(names, ["x-class", "x-cost", "x-not", "x-per", "x-plan", "x-route", "x-tenant"]);
}

/// Found by a reader: two upstreams of one name are one to metrics and reloads.
#[test]
fn no_two_upstreams_have_one_name() {
    let text = "limiters: {}\ngateway:\n  upstream: http://a:1\n  upstreams: { default: { match: [/x/*], servers: [http://b:1] } }\n";
    let mistakes = Policy::read(text).unwrap_err().to_string();
    assert!(mistakes.contains("this is an upstream called \"default\", and there is one"), "{mistakes}");
    let text =
        "limiters: {}\ngateway: { upstreams: { default: { match: [/x/*], servers: [http://b:1] } } }\n";
    let (policy, _) = Policy::read(text).unwrap();
    let policy = policy.with_servers(Vec::new());
    let names: Vec<&str> = policy.gateway().upstreams.iter().map(|upstream| &*upstream.name).collect();
    assert_eq!(names, ["default", "all"]);
}

#[test]
fn limits_of_connections_are_those_of_the_upstream_or_else_of_the_gateway() {
    let policy = read(
        "  max_upstream_connections: 200
  max_upstream_queue: 0
  timeouts: { queue: 500ms }
  upstream: http://10.0.0.5:9000
  upstreams:
    slow: { match: [/slow], servers: http://10.0.0.6:9000, max_connections: 16 }",
    );
    let gateway = policy.gateway();
    assert_eq!(gateway.timeouts.queue, Nanos::new(500_000_000));
    let limits = |at: usize| {
        let limits = gateway.upstreams[at].connections.or(gateway.connections);
        (limits.max_connections, limits.max_queue)
    };
    assert_eq!((limits(0), limits(1)), ((Some(16), Some(0)), (Some(200), Some(0))));
    for (wrong, said) in [
        ("  max_upstream_connections: 0", "1 or more"),
        ("  max_upstream_connections: -5", "cannot be negative"),
        ("  max_upstream_connections: 65536", "65535 is the most"),
        ("  max_upstream_queue: -1", "cannot be negative"),
        ("  timeouts: { queue: 0s }", "`queue`"),
        ("  max_connections: 5", "max_upstream_connections"),
        ("  upstreams: { a: { servers: http://a, max_conections: 5 } }", "max_connections"),
    ] {
        assert!(mistakes(wrong).contains(said), "{wrong}: {}", mistakes(wrong));
    }
}

#[test]
fn headers_that_are_added_and_trace_are_asked_for_by_name() {
    let policy = read("  add_headers: [x-real-ip, via]\n  allow_trace: yes");
    assert_eq!(policy.gateway().added_headers, AddedHeaders { real_ip: true, via: true });
    assert!(policy.gateway().allow_trace);
    assert!(read("  add_headers: via").gateway().added_headers.via);
    assert!(mistakes("  add_headers: x-real-ipp").contains("x-real-ip"));
}
