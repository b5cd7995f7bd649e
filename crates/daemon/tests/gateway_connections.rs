//! The limit of connections to each server, and the queue for them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "the gateway is another process, with a clock of its own")]

use std::io::Write;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::common::{BINARY, OPEN, begin, gateway};
use crate::hostile_upstream::with_files;
use serde_json::Value;
use tollgate_testkit::http::{Client, Gate, Response, Upstream};
use tollgate_testkit::http2::{Frame, Http2, flag, headers, kind};
use tollgate_testkit::{Tollgate, wait_until};

const SECOND: Duration = Duration::from_secs(1);

/// A policy with these settings of the gateway.
fn limited(settings: &str) -> String {
    format!("gateway: {{ {settings} }}\nlimiters: {{}}\n")
}

/// The name of a metric of the only server.
fn metric_of(upstream: &Upstream, name: &str, more: &str) -> String {
    format!("tollgate_upstream_{name}{{upstream=\"default\",server=\"{}\"{more}}}", upstream.url())
}

fn queued(tollgate: &Tollgate, upstream: &Upstream) -> f64 {
    tollgate.metric(&metric_of(upstream, "queue_length", ""))
}

/// Sends a GET that has to wait in the queue, and waits until it does.
fn begin_queued(tollgate: &Tollgate, upstream: &Upstream, path: &str) -> Client {
    let before = queued(tollgate, upstream);
    let client = begin(tollgate, path, &[]);
    tollgate.comes_to(&metric_of(upstream, "queue_length", ""), before + 1.0);
    client
}

fn paths(upstream: &Upstream) -> Vec<String> {
    upstream.received().iter().map(|received| received.path().to_owned()).collect()
}

/// Checks that a request was rejected because all connections were in use.
fn assert_rejected(answer: &Response, reason: &str) {
    assert_eq!((answer.status, answer.header("content-type")), (503, "application/problem+json"));
    assert_eq!(answer.header("retry-after"), "1");
    let body: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((body["status"].as_u64(), body["reason"].as_str()), (Some(503), Some(reason)), "{body}");
}

/// The gateway opened a connection for each request: 17,857 file descriptors with 20,000 requests at once.
#[test]
fn no_more_connections_are_made_than_allowed_and_requests_are_served_in_turn() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let tollgate = gateway(&limited("max_upstream_connections: 2, max_upstream_queue: 3"), &upstream);
    let mut held: Vec<Client> = ["/1", "/2"].map(|path| begin(&tollgate, path, &[])).into();
    wait_until("both connections are in use", || upstream.received().len() == 2);
    held.extend(["/3", "/4", "/5"].map(|path| begin_queued(&tollgate, &upstream, path)));
    assert_rejected(&tollgate.get("/6", &[]), "upstream-queue-full");
    assert_eq!(tollgate.metric(&metric_of(&upstream, "connections", ",state=\"active\"")), 2.0);
    assert_eq!(tollgate.metric(&metric_of(&upstream, "connections_max", "")), 2.0);
    // Each connection that becomes free serves one request.
    for (served, waiting) in [(3, 2.0), (4, 1.0), (5, 0.0)] {
        gate.let_through(1);
        wait_until("the next is served", || upstream.received().len() == served);
        assert_eq!(queued(&tollgate, &upstream), waiting);
    }
    gate.let_through(2);
    assert!(held.iter_mut().all(|client| client.read().text() == "hello"));
    assert_eq!(paths(&upstream)[2..], ["/3", "/4", "/5"]);
    assert_eq!(upstream.connections(), 2, "connections are used again");
    tollgate.comes_to(&metric_of(&upstream, "connections", ",state=\"idle\""), 2.0);
    let rejected = metric_of(&upstream, "rejections_total", ",reason=\"queue_full\"");
    assert_eq!(tollgate.metric(&rejected), 1.0);
    assert_eq!(tollgate.metric("tollgate_upstream_queue_duration_seconds_count{upstream=\"default\"}"), 3.0);
    tollgate.comes_to_rest();
}

#[test]
fn waiting_in_the_queue_ends_in_time_and_is_no_failure_of_the_server() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let policy = limited("max_upstream_connections: 1, timeouts: { queue: 100ms }");
    let tollgate = gateway(&policy, &upstream);
    let mut held = begin(&tollgate, "/", &[]);
    wait_until("the connection is in use", || upstream.received().len() == 1);
    assert_rejected(&tollgate.get("/", &[]), "upstream-queue-timeout");
    let grpc = tollgate.client().ask("POST", "/", &[("content-type", "application/grpc")], b"");
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, "14"));
    assert_eq!(tollgate.metric("tollgate_upstream_failures_total"), 0.0);
    assert_eq!(tollgate.metric(&metric_of(&upstream, "server_up", "")), 1.0);
    let rejected = metric_of(&upstream, "rejections_total", ",reason=\"queue_timeout\"");
    assert_eq!(tollgate.metric(&rejected), 2.0);
    tollgate.says("requests are answered 503: all connections to the server are in use");
    gate.let_through(1);
    assert_eq!(held.read().status, 200);
    assert_eq!(upstream.received().len(), 1, "nothing of them was sent");
}

#[test]
fn a_client_that_leaves_the_queue_gives_its_place_back() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let policy = limited("max_upstream_connections: 1, max_upstream_queue: 1, timeouts: { queue: 20s }");
    let tollgate = gateway(&policy, &upstream);
    let mut held = begin(&tollgate, "/1", &[]);
    wait_until("the connection is in use", || upstream.received().len() == 1);
    let left = begin_queued(&tollgate, &upstream, "/2");
    assert_rejected(&tollgate.get("/3", &[]), "upstream-queue-full");
    drop(left);
    tollgate.comes_to(&metric_of(&upstream, "queue_length", ""), 0.0);
    let mut http2 = Http2::connect(tollgate.gateway);
    http2.ask(1, &tollgate_testkit::http2::request("GET", "/4"), true);
    tollgate.comes_to(&metric_of(&upstream, "queue_length", ""), 1.0);
    http2.send(&Frame::new(kind::RST_STREAM, 0, 1, 8_u32.to_be_bytes()));
    tollgate.comes_to(&metric_of(&upstream, "queue_length", ""), 0.0);
    let mut next = begin_queued(&tollgate, &upstream, "/5");
    gate.let_through(2);
    assert_eq!((held.read().status, next.read().status), (200, 200));
    assert_eq!(paths(&upstream), ["/1", "/5"]);
    tollgate.comes_to_rest();
}

#[test]
fn health_checks_do_not_wait_for_requests() {
    let gate = Gate::default();
    let pass = gate.clone();
    let upstream = Upstream::start(move |received, stream| {
        if received.path() != "/healthz" {
            pass.pass();
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let policy = format!(
        "gateway: {{ upstreams: {{ api: {{ servers: [{}], max_connections: 1, max_queue: 0, health: {{ path: /healthz, every: 100ms }} }} }} }}\nlimiters: {{}}\n",
        upstream.url()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    let mut held = begin(&tollgate, "/", &[]);
    let asked = |path: &str| paths(&upstream).iter().filter(|asked| *asked == path).count();
    wait_until("the connection is in use", || asked("/") == 1);
    assert_rejected(&tollgate.get("/", &[]), "upstream-queue-full");
    let before = asked("/healthz");
    wait_until("its health is looked at", || asked("/healthz") > before + 2);
    let up = format!("tollgate_upstream_server_up{{upstream=\"api\",server=\"{}\"}}", upstream.url());
    assert_eq!(tollgate.metric(&up), 1.0);
    gate.let_through(1);
    assert_eq!(held.read().status, 200);
}

/// Each worker keeps its own connections: those of one that has nothing to do are of use to the others.
#[test]
fn workers_lend_each_other_idle_connections() {
    let upstream = Upstream::hello();
    let policy = limited("max_upstream_connections: 1");
    let flags = ["--upstream", &upstream.url(), "--threads", "2"];
    let tollgate = Tollgate::start(BINARY, &policy, &flags);
    // Connections go to the worker that has the fewest.
    let mut clients = [(); 4].map(|()| tollgate.client());
    for _ in 0..5 {
        for client in &mut clients {
            assert_eq!(client.get("/", &[]).text(), "hello");
        }
    }
    assert_eq!(upstream.connections(), 1);
    tollgate.comes_to_rest();
}

#[test]
fn tunnels_count_and_take_the_place_of_idle_connections() {
    let upstream = Upstream::by_hand(|received, mut client| {
        if received.header("upgrade").is_empty() {
            client.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello");
            return while !client.read_some().is_empty() {};
        }
        client.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n");
        while !client.read_some().is_empty() {}
    });
    let policy = limited("max_upstream_connections: 1, timeouts: { queue: 20s }");
    let tollgate = gateway(&policy, &upstream);
    assert_eq!(tollgate.get("/", &[]).text(), "hello");
    tollgate.comes_to(&metric_of(&upstream, "connections", ",state=\"idle\""), 1.0);
    let mut tunnel = begin(&tollgate, "/chat", &[("connection", "upgrade"), ("upgrade", "websocket")]);
    assert_eq!(tunnel.read_head().status, 101);
    assert_eq!(tollgate.metric(&metric_of(&upstream, "connections", ",state=\"active\"")), 1.0);
    let mut waiting = begin_queued(&tollgate, &upstream, "/");
    drop(tunnel);
    assert_eq!(waiting.read().text(), "hello");
}

#[test]
fn a_reload_changes_the_limits_and_serves_those_who_wait() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let policy = |connections: u32| {
        limited(&format!("max_upstream_connections: {connections}, timeouts: {{ queue: 20s }}"))
    };
    let tollgate = gateway(&policy(1), &upstream);
    let mut clients = vec![begin(&tollgate, "/", &[])];
    wait_until("the connection is in use", || upstream.received().len() == 1);
    clients.extend([(); 3].map(|()| begin_queued(&tollgate, &upstream, "/")));
    tollgate.write_policy(&policy(3));
    wait_until("two more are served", || upstream.received().len() == 3);
    assert_eq!(queued(&tollgate, &upstream), 1.0);
    assert_eq!(upstream.connections(), 3);
    tollgate.write_policy(&policy(1));
    tollgate.comes_to(&metric_of(&upstream, "connections_max", ""), 1.0);
    gate.let_through(4);
    assert!(clients.iter_mut().all(|client| client.read().status == 200));
    tollgate.comes_to(&metric_of(&upstream, "connections", ",state=\"idle\""), 1.0);
    assert_eq!(tollgate.metric(&metric_of(&upstream, "connections", ",state=\"active\"")), 0.0);
}

/// How long a server may take to answer is measured from when it was asked.
#[test]
fn time_in_the_queue_is_not_time_of_the_server() {
    let upstream = Upstream::start(|received, stream| {
        if received.path() == "/never" {
            return stream.set_read_timeout(Some(20 * SECOND)).is_ok();
        }
        std::thread::sleep(Duration::from_millis(700));
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let policy = limited("max_upstream_connections: 1, timeouts: { queue: 20s, answer: 1s }");
    let tollgate = gateway(&policy, &upstream);
    let mut late = begin(&tollgate, "/never", &[]);
    wait_until("the connection is in use", || upstream.received().len() == 1);
    let mut waiting = begin_queued(&tollgate, &upstream, "/slow");
    assert_eq!(late.read().status, 504);
    assert_eq!(waiting.read().status, 200);
}

#[test]
fn servers_share_the_files_that_may_be_open() {
    let (one, other) = (Upstream::hello(), Upstream::hello());
    let tollgate = with_files("-n 1024", OPEN, &one);
    let alone = tollgate.metric(&metric_of(&one, "connections_max", ""));
    assert_eq!(tollgate.metric("tollgate_connections_max"), alone + 1.0, "one is for health checks");
    let policy = format!(
        "gateway: {{ max_upstream_connections: 2000, upstreams: {{ o: {{ match: [/o], servers: [{}] }} }} }}\nlimiters: {{}}\n",
        other.url()
    );
    let tollgate = with_files("-n 1024", &policy, &one);
    assert!(tollgate.metric(&metric_of(&one, "connections_max", "")) < alone / 2.0 + 1.0);
    tollgate.says("and not the 2000 of the policy");
    assert_eq!(tollgate.get("/", &[]).status, 200);
    let tollgate = gateway(OPEN, &one);
    assert_eq!(tollgate.metric(&metric_of(&one, "connections_max", "")), 1024.0, "unless files are few");
}

#[test]
fn a_server_whose_connections_are_in_use_is_passed_over() {
    let gate = Gate::default();
    let (slow, fast) = (Upstream::hello_through(&gate), Upstream::hello());
    let servers = format!("{},{}", slow.url(), fast.url());
    let policy = limited("max_upstream_connections: 1");
    let tollgate = Tollgate::start(BINARY, &policy, &["--upstream", &servers]);
    let mut held: Vec<Client> = [(); 2].map(|()| begin(&tollgate, "/held", &[])).into();
    wait_until("the slow one is busy", || slow.received().len() == 1 && !fast.received().is_empty());
    let mut client = tollgate.client();
    for _ in 0..10 {
        assert_eq!(client.get("/", &[]).text(), "hello");
    }
    assert_eq!(slow.received().len(), 1);
    gate.let_through(1);
    assert!(held.iter_mut().all(|client| client.read().status == 200));
}

/// A server over HTTP/2 that takes one request at a time, and answers when it is told to. It tells of each.
#[test]
fn requests_over_http2_wait_for_a_stream_when_there_are_enough_connections() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let (asked, is_asked) = channel();
    let (answer, may_answer) = channel::<()>();
    std::thread::spawn(move || {
        let mut connection = Http2::accept(&listener);
        // SETTINGS_MAX_CONCURRENT_STREAMS
        connection.send(&Frame::new(kind::SETTINGS, 0, 0, [0, 3, 0, 0, 0, 1]));
        while let Ok(frame) = connection.frame() {
            if frame.kind == kind::HEADERS {
                asked.send(frame.stream).unwrap();
                may_answer.recv().unwrap();
                let head = headers(frame.stream, &[(":status", "200")], true);
                connection.send(&Frame { flags: flag::END_HEADERS | flag::END_STREAM, ..head });
            }
        }
        drop(listener);
    });
    let policy = format!(
        "gateway: {{ upstreams: {{ api: {{ servers: ['{server}'], protocol: http2, max_connections: 1, max_queue: 2 }} }}, timeouts: {{ queue: 20s }} }}\nlimiters: {{}}\n"
    );
    let tollgate = Tollgate::start(BINARY, &policy, &["--threads", "2"]);
    let waiting = format!("tollgate_upstream_queue_length{{upstream=\"api\",server=\"{server}\"}}");
    let mut clients = vec![begin(&tollgate, "/", &[])];
    is_asked.recv_timeout(20 * SECOND).unwrap();
    for count in [1.0, 2.0] {
        clients.push(begin(&tollgate, "/", &[]));
        tollgate.comes_to(&waiting, count);
    }
    assert_rejected(&tollgate.get("/", &[]), "upstream-queue-full");
    // Another worker's requests get streams of the same connection.
    for left in [1.0, 0.0] {
        answer.send(()).unwrap();
        is_asked.recv_timeout(20 * SECOND).unwrap();
        assert_eq!(tollgate.metric(&waiting), left);
    }
    answer.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(client.read().status, 200);
    }
    tollgate.comes_to_rest();
    let active =
        format!("tollgate_upstream_connections{{upstream=\"api\",server=\"{server}\",state=\"idle\"}}");
    assert_eq!(tollgate.metric(&active), 1.0);
}

/// While requests waited, each health check over HTTP/2 opened another connection.
#[test]
fn health_checks_over_http2_use_one_connection_while_requests_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let (event, events) = channel();
    // Requests with a body get no answer. Health checks have none, and are answered.
    std::thread::spawn(move || {
        loop {
            let mut connection = Http2::accept(&listener);
            let event = event.clone();
            let _ = event.send("connection");
            std::thread::spawn(move || {
                // SETTINGS_MAX_CONCURRENT_STREAMS
                connection.send(&Frame::new(kind::SETTINGS, 0, 0, [0, 3, 0, 0, 0, 1]));
                while let Ok(frame) = connection.frame() {
                    if frame.kind != kind::HEADERS {
                        continue;
                    }
                    let is_check = frame.flags & flag::END_STREAM != 0;
                    if is_check {
                        let head = headers(frame.stream, &[(":status", "200")], true);
                        connection.send(&Frame { flags: flag::END_HEADERS | flag::END_STREAM, ..head });
                    }
                    let _ = event.send(if is_check { "check" } else { "request" });
                }
            });
        }
    });
    let policy = format!(
        "gateway: {{ upstreams: {{ api: {{ servers: ['{server}'], protocol: http2, max_connections: 1, max_queue: 2, health: {{ path: /healthz, every: 100ms }} }} }}, timeouts: {{ queue: 20s }} }}\nlimiters: {{}}\n"
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    let upload = || {
        let mut client = tollgate.client();
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
        client
    };
    let _held = upload();
    while events.recv_timeout(20 * SECOND).unwrap() != "request" {}
    let _waiting = upload();
    tollgate
        .comes_to(&format!("tollgate_upstream_queue_length{{upstream=\"api\",server=\"{server}\"}}"), 1.0);
    // What was seen until now does not count.
    while events.try_recv().is_ok() {}
    let mut checks = 0;
    while checks < 5 {
        let seen = events.recv_timeout(20 * SECOND).unwrap();
        assert_ne!(seen, "connection", "after {checks} checks");
        checks += usize::from(seen == "check");
    }
}

/// An upgrade waits in the queue, because it needs a connection of its own. Requests that need only a stream do not wait behind it.
#[test]
fn a_free_stream_is_used_while_another_request_waits_for_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let (asked, is_asked) = channel();
    std::thread::spawn(move || {
        let mut connection = Http2::accept(&listener);
        // SETTINGS_MAX_CONCURRENT_STREAMS
        connection.send(&Frame::new(kind::SETTINGS, 0, 0, [0, 3, 0, 0, 0, 2]));
        while let Ok(frame) = connection.frame() {
            // The first request gets no answer.
            if frame.kind == kind::HEADERS && frame.stream > 1 {
                let head = headers(frame.stream, &[(":status", "200")], true);
                connection.send(&Frame { flags: flag::END_HEADERS | flag::END_STREAM, ..head });
            } else if frame.kind == kind::HEADERS {
                asked.send(()).unwrap();
            }
        }
        drop(listener);
    });
    let policy = format!(
        "gateway: {{ upstreams: {{ api: {{ servers: ['{server}'], protocol: http2, max_connections: 1, max_queue: 1 }} }}, timeouts: {{ queue: 20s }} }}\nlimiters: {{}}\n"
    );
    let tollgate = Tollgate::start(BINARY, &policy, &["--threads", "2"]);
    let _held = begin(&tollgate, "/", &[]);
    is_asked.recv_timeout(20 * SECOND).unwrap();
    let _upgrade = begin(&tollgate, "/", &[("connection", "upgrade"), ("upgrade", "websocket")]);
    tollgate
        .comes_to(&format!("tollgate_upstream_queue_length{{upstream=\"api\",server=\"{server}\"}}"), 1.0);
    for _ in 0..4 {
        assert_eq!(tollgate.get("/", &[]).status, 200);
    }
}
