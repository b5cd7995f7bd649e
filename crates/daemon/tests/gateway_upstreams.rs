//! Whom requests are passed on to: by path and host, in turn, and past servers that are ill or gone.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "the gateway is another process, with a clock of its own")]

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::{BINARY, OPEN, begin};
use serde_json::Value;
use tollgate_testkit::http::{Full, Gate, Upstream};
use tollgate_testkit::{Tollgate, free_port, wait_until};

/// A server that answers with its name.
fn named(name: &'static str) -> Upstream {
    Upstream::start(move |_, stream| {
        stream
            .write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{name}", name.len()).as_bytes())
            .is_ok()
    })
}

/// The address of nobody.
fn nobody() -> String {
    format!("http://{}", SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())))
}

#[test]
fn requests_go_by_path_and_by_host_and_the_rest_elsewhere() {
    let (pay, shop, rest) = (named("pay"), named("shop"), named("rest"));
    let policy = format!(
        "
gateway:
  upstreams:
    pay:  {{ match: [/pay/*, POST /charges], servers: [{}] }}
    shop: {{ match: [{{ host: shop.example.com }}], servers: [{}] }}
  upstream: {}
limiters: {{}}
",
        pay.url(),
        shop.url(),
        rest.url()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    let mut client = tollgate.client();
    for (method, path, host, who) in [
        ("GET", "/pay/1", "a", "pay"),
        ("GET", "/x/../pay/1", "a", "pay"),
        ("POST", "/charges", "shop.example.com", "pay"),
        ("GET", "/charges", "shop.example.com:8080", "shop"),
        ("GET", "/charges", "SHOP.example.com", "shop"),
        ("GET", "/charges", "a", "rest"),
        ("GET", "/", "notshop.example.com", "rest"),
    ] {
        assert_eq!(client.ask(method, path, &[("host", host)], b"").text(), who, "{method} {host}{path}");
    }
}

#[test]
fn what_is_for_nobody_is_not_found() {
    let pay = named("pay");
    let policy = format!(
        "gateway: {{ upstreams: {{ pay: {{ match: [/pay/*], servers: [{}] }} }} }}\nlimiters: {{}}\n",
        pay.url()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    assert_eq!(tollgate.get("/pay/1", &[]).status, 200);
    let answer = tollgate.get("/other", &[]);
    assert_eq!((answer.status, answer.header("content-type")), (404, "application/problem+json"));
    assert_eq!(pay.received().len(), 1);
}

#[test]
fn servers_take_turns() {
    let (a, b) = (named("a"), named("b"));
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &format!("{},{}", a.url(), b.url())]);
    let mut client = tollgate.client();
    for _ in 0..20 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    assert_eq!((a.received().len(), b.received().len()), (10, 10));
}

#[test]
fn one_that_is_gone_costs_nobody_an_answer() {
    let here = named("here");
    for servers in
        [format!("{},{}", nobody(), here.url()), format!("{},{},{}", here.url(), nobody(), nobody())]
    {
        let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &servers]);
        let mut client = tollgate.client();
        for _ in 0..20 {
            assert_eq!(client.get("/", &[]).text(), "here");
            assert_eq!(client.ask("POST", "/", &[], b"body").text(), "here");
            assert_eq!(here.last().body, b"body");
        }
        tollgate.says("the server cannot be reached");
    }
}

#[test]
fn where_nobody_is_left_that_is_told_and_nothing_of_what_is_behind() {
    let server = nobody();
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &server]);
    let mut client = tollgate.client();
    for _ in 0..3 {
        let answer = client.get("/", &[]);
        assert_eq!((answer.status, answer.header("content-type")), (502, "application/problem+json"));
        let port = server.rsplit(':').next().unwrap();
        assert!(!answer.text().contains(port), "{}", answer.text());
    }
}

#[test]
fn a_server_that_closes_connections_between_requests_costs_nobody_an_answer() {
    let upstream = Upstream::start(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
        false
    });
    let tollgate = crate::common::gateway(OPEN, &upstream);
    let mut client = tollgate.client();
    for _ in 0..100 {
        assert_eq!(client.get("/", &[]).text(), "hello");
    }
}

#[test]
fn a_server_that_breaks_off_is_a_bad_gateway_and_is_asked_once() {
    let upstream = Upstream::start(|_, _| false);
    let tollgate = crate::common::gateway(OPEN, &upstream);
    assert_eq!(tollgate.client().ask("POST", "/", &[], b"once").status, 502);
    assert_eq!(upstream.received().len(), 1);
}

/// A server that is well as long as it is told to be.
fn patient(name: &'static str, path: &'static str) -> (Upstream, Arc<AtomicBool>) {
    let is_well = Arc::new(AtomicBool::new(true));
    let told = Arc::clone(&is_well);
    let upstream = Upstream::start(move |received, stream| {
        let is_bad = received.path() == path && !told.load(Ordering::SeqCst);
        let status = if is_bad { "500 Ill" } else { "200 OK" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 1\r\n\r\n{name}").as_bytes()).is_ok()
    });
    (upstream, is_well)
}

/// Which servers are well, as the status has it.
fn well(tollgate: &Tollgate) -> Vec<bool> {
    let status: Value = serde_json::from_slice(&tollgate.ask_admin("GET", "/api/status", "").body).unwrap();
    let servers = status["upstreams"][0]["servers"].as_array().unwrap();
    servers.iter().map(|server| server["well"].as_bool().unwrap()).collect()
}

fn looked_after(servers: &[&Upstream], health: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|server| server.url()).collect();
    format!(
        "gateway: {{ upstreams: {{ api: {{ servers: [{}]{health} }} }} }}\nlimiters: {{}}\n",
        servers.join(", ")
    )
}

#[test]
fn an_ill_server_gets_no_requests_until_it_is_well() {
    let ((a, is_well), (b, _)) = (patient("a", "/healthz"), patient("b", "/healthz"));
    let policy = looked_after(&[&a, &b], ", health: { path: /healthz, every: 100ms, timeout: 2s }");
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    let mut client = tollgate.client();
    let mut answers = || (0..10).map(|_| client.get("/", &[]).text()).collect::<String>();
    wait_until("both are well", || well(&tollgate) == [true, true]);
    let both = answers();
    assert_eq!((both.matches('a').count(), both.matches('b').count()), (5, 5));
    is_well.store(false, Ordering::SeqCst);
    wait_until("the one is ill", || well(&tollgate) == [false, true]);
    assert_eq!(answers(), "bbbbbbbbbb");
    is_well.store(true, Ordering::SeqCst);
    wait_until("it is well again", || well(&tollgate) == [true, true]);
    assert_eq!(answers().matches('a').count(), 5);
    let asked = a.received().into_iter().find(|received| received.path() == "/healthz").unwrap();
    assert_eq!(asked.header("user-agent"), ["tollgate-health"]);
}

#[test]
fn servers_are_looked_after_as_the_new_policy_says() {
    let ((a, is_well), (b, _)) = (patient("a", "/old"), patient("b", "/old"));
    is_well.store(false, Ordering::SeqCst);
    let health = |path: &str| format!(", health: {{ path: {path}, every: 100ms, timeout: 2s }}");
    let tollgate = Tollgate::start(BINARY, &looked_after(&[&a, &b], &health("/old")), &[]);
    wait_until("one is ill", || well(&tollgate) == [false, true]);
    tollgate.write_policy(&looked_after(&[&a, &b], &health("/new")));
    wait_until("by the new path it is well", || well(&tollgate) == [true, true]);
    tollgate.write_policy(&looked_after(&[&a, &b], &health("/old")));
    wait_until("by the old it is ill again", || well(&tollgate) == [false, true]);
    tollgate.write_policy(&looked_after(&[&a, &b], ""));
    wait_until("nobody asks, and so it is well", || well(&tollgate) == [true, true]);
}

/// Found by a reader: the server behind one that was away had that one's turns, too: 60, 30 and 30 of 120.
#[test]
fn those_that_are_left_take_turns_evenly() {
    let servers = [named("a"), named("b"), named("c")];
    let urls: Vec<String> = [nobody()].into_iter().chain(servers.iter().map(Upstream::url)).collect();
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &urls.join(",")]);
    let mut client = tollgate.client();
    // Until it is known that one of them is away.
    assert_eq!([(); 4].map(|()| client.get("/", &[]).status), [200; 4]);
    let before: Vec<usize> = servers.iter().map(|server| server.received().len()).collect();
    for _ in 0..60 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    let each: Vec<usize> =
        servers.iter().zip(before).map(|(server, before)| server.received().len() - before).collect();
    assert_eq!(each, [20; 3]);
}

/// Found by a reader: servers that were named on the command line took all that the file says of an upstream with them.
#[test]
fn servers_of_the_command_line_take_the_place_of_those_of_the_file_and_of_nothing_else() {
    let (one, other) = (named("one"), Upstream::hello_through(&Gate::default()));
    let policy = format!(
        "gateway: {{ upstreams: {{ all: {{ servers: [{}], workers: 4 }} }} }}\n\
         limiters: {{ busy: {{ workers: {{ source: upstreams, every: 100ms, grace: 1h, full: 1h }} }} }}\n",
        one.url()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &["--upstream", &other.url()]);
    let _held = [(); 2].map(|()| begin(&tollgate, "/", &[]));
    wait_until("it is known how busy they are", || {
        let status: Value =
            serde_json::from_slice(&tollgate.ask_admin("GET", "/api/status", "").body).unwrap();
        status["limiters"][0]["utilization_percent"] == 50.0 && status["upstreams"][0]["name"] == "all"
    });
    assert!(one.received().is_empty());
}

/// Found by a reader: while a service hung, nothing ended, and so it seemed to be idle.
#[test]
fn a_service_that_hangs_is_not_idle() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let policy = "gateway: { timeouts: { answer: 2s } }\n\
                  limiters: { slow: { workers: { source: { latency: 100ms }, every: 100ms, grace: 1h, full: 1h } } }\n";
    let tollgate = crate::common::gateway(policy, &upstream);
    let busy = || {
        let status: Value =
            serde_json::from_slice(&tollgate.ask_admin("GET", "/api/status", "").body).unwrap();
        status["limiters"][0]["utilization_percent"].as_f64().unwrap_or(0.0)
    };
    let mut held = begin(&tollgate, "/", &[]);
    wait_until("it is seen that nothing comes", || busy() > 100.0);
    assert_eq!(held.read().status, 504);
    wait_until("it is idle again", || busy() == 0.0);
}

/// Found by a reader: every few seconds all requests of that moment waited for a server that was away.
#[test]
fn one_request_at_a_time_tries_whether_a_server_is_there_again() {
    let (here, away) = (named("here"), Full::start());
    let policy = "gateway: { timeouts: { connect: 1s } }\nlimiters: {}\n";
    let servers = format!("{},http://{}", here.url(), away.address);
    let tollgate = Tollgate::start(BINARY, policy, &["--upstream", &servers]);
    let begun = Instant::now();
    let asks = || {
        let (mut client, mut slow) = (tollgate.client(), 0);
        while begun.elapsed() < Duration::from_secs(8) {
            let asked = Instant::now();
            assert_eq!(client.get("/", &[]).text(), "here");
            let is_known = asked - begun > Duration::from_millis(1500);
            slow += u32::from(is_known && asked.elapsed() > Duration::from_millis(700));
            std::thread::sleep(Duration::from_millis(5));
        }
        slow
    };
    let slow: u32 = std::thread::scope(|scope| {
        let asking: Vec<_> = (0..8).map(|_| scope.spawn(asks)).collect();
        asking.into_iter().map(|asking| asking.join().unwrap()).sum()
    });
    tollgate.says("the server cannot be reached");
    assert!((1..=5).contains(&slow), "{slow} requests had to wait");
}

/// What `/readyz` says.
fn readiness(tollgate: &Tollgate) -> (u16, String) {
    let answer = tollgate.ask_admin("GET", "/readyz", "");
    (answer.status, answer.text())
}

/// It was ready although each request was answered 502.
#[test]
fn the_gateway_is_not_ready_while_its_only_upstream_is_unhealthy() {
    let (server, is_well) = patient("a", "/healthz");
    let policy = looked_after(&[&server], ", health: { path: /healthz, every: 100ms, timeout: 2s }");
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    is_well.store(false, Ordering::SeqCst);
    wait_until("it is not ready", || readiness(&tollgate).0 == 503);
    assert_eq!(readiness(&tollgate).1, "not ready: no server of upstream \"api\" is healthy\n");
    is_well.store(true, Ordering::SeqCst);
    wait_until("it is ready again", || readiness(&tollgate) == (200, "ready\n".to_owned()));
}

#[test]
fn without_health_checks_readiness_follows_whether_servers_can_be_reached() {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &format!("http://{server}")]);
    assert_eq!(tollgate.get("/", &[]).status, 502);
    assert_eq!(
        readiness(&tollgate),
        (503, "not ready: no server of upstream \"default\" is healthy\n".to_owned())
    );
    // Nobody sends requests to a gateway that is not ready: it finds out by itself.
    let _listener = TcpListener::bind(server).unwrap();
    wait_until("it is ready again", || readiness(&tollgate) == (200, "ready\n".to_owned()));
}

#[test]
fn one_of_several_upstreams_that_is_unhealthy_leaves_the_gateway_ready_and_is_named() {
    let here = named("here");
    let policy = format!(
        "gateway: {{ upstreams: {{ pay: {{ match: [/pay/*], servers: ['{}'] }} }}, upstream: '{}' }}\nlimiters: {{}}\n",
        nobody(),
        here.url()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    assert_eq!((tollgate.get("/pay/1", &[]).status, tollgate.get("/", &[]).status), (502, 200));
    let degraded = "ready, degraded: no server of upstream \"pay\" is healthy\n";
    assert_eq!(readiness(&tollgate), (200, degraded.to_owned()));
}
