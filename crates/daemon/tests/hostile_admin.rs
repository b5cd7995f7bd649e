//! Those who come to the admin door and may not, and secrets that must not come out of any door.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests on real sockets, which live in real time"
)]

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{BINARY, OPEN, await_store, command, gateway, patient_store};
use tollgate_testkit::http::{Client, Response, Upstream};
use tollgate_testkit::http2::{Http2, request};
use tollgate_testkit::{RedisServer, Tollgate, free_port};

const TOKEN: &str = "a-token-that-is-long-enough";
const LIMITED: &str = "trusted_proxies: []\nlimiters: { rate: { rate: 1000/s, per: global } }\n";

fn ask(tollgate: &Tollgate, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
    Client::connect(tollgate.admin).ask(method, path, headers, body)
}

/// What the admin door says of the mode of a limiter.
fn mode(tollgate: &Tollgate, headers: &[(&str, &str)]) -> String {
    let status = ask(tollgate, "GET", "/api/status", headers, b"");
    let status: serde_json::Value = serde_json::from_slice(&status.body).unwrap();
    status["limiters"][0]["mode"].as_str().unwrap().to_owned()
}

const DOORS: &[(&str, &str)] = &[
    ("GET", "/metrics"),
    ("GET", "/api/status"),
    ("POST", "/api/limiters/rate/mode"),
    ("POST", "/api/mode"),
    ("POST", "/api/utilization"),
];
const OFF: &[u8] = b"{\"mode\": \"off\"}";
const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn without_its_token_the_door_shows_and_changes_nothing() {
    let upstream = Upstream::hello();
    let environment = [("TOLLGATE_TOKEN", TOKEN)];
    let url = upstream.url();
    let tollgate = Tollgate::start_in(BINARY, LIMITED, &["--upstream", &url], &environment, |_| ());
    let right = format!("Bearer {TOKEN}");
    let longer = format!("Bearer {TOKEN}x");
    let shorter = format!("Bearer {}", &TOKEN[1..]);
    let basic = format!("Basic {TOKEN}");
    for (method, path) in DOORS {
        for given in
            ["", "Bearer", "Bearer ", TOKEN, "Bearer wrong-token-of-some-length", &longer, &shorter, &basic]
        {
            let headers = [("authorization", given), JSON];
            let headers = if given.is_empty() { &headers[1..] } else { &headers[..] };
            let answer = ask(&tollgate, method, path, headers, OFF);
            assert_eq!(
                (answer.status, answer.header("www-authenticate")),
                (401, "Bearer"),
                "{path} {given:?}"
            );
            assert!(!answer.text().contains(TOKEN));
        }
        let twice = [("authorization", "Bearer no"), ("authorization", &*right), JSON];
        assert_eq!(ask(&tollgate, method, path, &twice, OFF).status, 401, "{path}");
    }
    assert_eq!(mode(&tollgate, &[("authorization", &right)]), "enforce");
    let answer = ask(&tollgate, "POST", "/api/limiters/rate/mode", &[("authorization", &right), JSON], OFF);
    assert_eq!(answer.status, 200);
    assert_eq!(mode(&tollgate, &[("authorization", &right)]), "off");
    assert!(!tollgate.said().join("\n").contains(TOKEN));
}

#[test]
fn pages_of_other_sites_change_nothing_and_names_that_lead_here_see_nothing() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    for (method, path) in DOORS {
        for host in [
            "evil.example",
            "evil.example:8083",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "",
            "localhost@evil",
        ] {
            let answer = ask(&tollgate, method, path, &[("host", host), JSON], OFF);
            let status = if matches!(host, "" | "localhost@evil") { 400 } else { 403 };
            assert_eq!(answer.status, status, "{path} {host:?}");
        }
        if *method == "POST" {
            for origin in ["http://evil.example", "null", "http://127.0.0.1:1", "file://", "http://localhost"]
            {
                let answer = ask(&tollgate, method, path, &[("origin", origin), JSON], OFF);
                assert_eq!(answer.status, 403, "{path} {origin:?}");
            }
            // What a form can send without asking first.
            for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
                let answer = ask(&tollgate, method, path, &[("content-type", kind)], OFF);
                assert_eq!(answer.status, 415, "{path} {kind}");
            }
        }
    }
    assert_eq!(mode(&tollgate, &[]), "enforce");
    let own = format!("http://{}", tollgate.admin);
    let answer = ask(&tollgate, "POST", "/api/mode", &[("origin", &own), JSON], OFF);
    assert_eq!(answer.status, 200);
}

#[test]
fn a_door_that_others_can_reach_wants_a_token() {
    let upstream = format!("http://127.0.0.1:{}", free_port());
    let folder = std::env::temp_dir().join(format!("tollgate-admin-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let policy = folder.join("tollgate.yaml");
    std::fs::write(&policy, OPEN).unwrap();
    let start = |address: &str, token: &[&str]| {
        let arguments = [
            "run",
            "--policy",
            policy.to_str().unwrap(),
            "--upstream",
            &upstream,
            "--gateway",
            "off",
            "--admin",
            address,
        ];
        command(&[&arguments, token].concat())
    };
    for address in ["0.0.0.0:8083", "[::]:8083"] {
        let (said, code) = start(address, &[]);
        assert_eq!(code, Some(2), "{said}");
        assert!(said.contains("TOLLGATE_TOKEN"), "{said}");
    }
    for token in ["", "   ", "short"] {
        let (said, code) = start("0.0.0.0:8083", &["--token", token]);
        assert_eq!(code, Some(2), "{token:?}: {said}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_no_request_of_the_door_is_refused_and_comes_back_harmless() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    let post = |path: &str, body: &[u8]| ask(&tollgate, "POST", path, &[JSON], body);
    for name in [
        "%0d%0aSet-Cookie:%20a=b",
        "%3Cimg%20src=x%20onerror=alert(1)%3E",
        "%1b[31m",
        "nobody",
        "%00",
        "rate%2F..",
        "%ff",
    ] {
        let answer = post(&format!("/api/limiters/{name}/mode"), OFF);
        assert!(matches!(answer.status, 400 | 404), "{name}: {answer:?}");
        assert!(answer.header("set-cookie").is_empty(), "{name}");
        assert!(!answer.header("content-type").contains("html"), "{name}: {answer:?}");
        assert!(
            answer.body.iter().all(|byte| *byte == b'\n' || !byte.is_ascii_control()),
            "{name}: {answer:?}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{name}");
    }
    for body in [
        "",
        "{",
        "no JSON",
        "[]",
        "7",
        "{}",
        "{\"mode\": 7}",
        "{\"mode\": \"everything\"}",
        "{\"mode\": [\"off\"]}",
        "\0",
    ] {
        for path in ["/api/mode", "/api/limiters/rate/mode"] {
            let answer = post(path, body.as_bytes());
            assert!(matches!(answer.status, 400 | 422), "{path} {body:?}: {answer:?}");
        }
    }
    let deep = "[".repeat(100_000);
    assert_eq!(post("/api/mode", deep.as_bytes()).status, 400);
    for path in [
        "/",
        "/api",
        "/api/",
        "/metrics/",
        "/api/limiters",
        "/api/limiters//mode",
        "/../metrics",
        "//metrics",
        "/%6detrics",
    ] {
        let answer = ask(&tollgate, "GET", path, &[], b"");
        assert!(matches!(answer.status, 400 | 404 | 405), "{path}: {answer:?}");
    }
    assert_eq!(ask(&tollgate, "DELETE", "/metrics", &[], b"").status, 405);
    let other_way = ask(&tollgate, "GET", "/api/mode", &[], b"");
    assert_eq!((other_way.status, other_way.header("allow")), (405, "POST"));
    assert_eq!(other_way.header("content-type"), "application/problem+json");
    assert_eq!(mode(&tollgate, &[]), "enforce");
    let said = tollgate.said().join("\n");
    assert!(!said.contains("panicked") && !said.contains("Set-Cookie") && !said.contains('\x1b'), "{said}");
}

#[test]
fn what_is_not_said_in_json_is_answered_in_json() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    for (kind, body, status) in
        [("text/plain", OFF, 415), ("application/json", b"{", 400), ("application/json", b"[1]", 400)]
    {
        for path in ["/api/mode", "/api/limiters/rate/mode", "/api/utilization"] {
            let answer = ask(&tollgate, "POST", path, &[("content-type", kind)], body);
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (status, "application/problem+json"),
                "{path} {answer:?}"
            );
            let problem: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(problem["status"], status);
        }
    }
    assert_eq!(mode(&tollgate, &[]), "enforce");
}

#[test]
fn a_body_of_ten_megabytes_is_not_read() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    let before = tollgate.memory();
    for head in ["content-length: 10485760", "transfer-encoding: chunked"] {
        let mut client = Client::connect(tollgate.admin);
        client.send(format!(
            "POST /api/mode HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{head}\r\n\r\n"
        ));
        let piece = if head.starts_with('c') {
            b"a".repeat(65_536)
        } else {
            [b"10000\r\n", &b"a".repeat(65_536)[..], b"\r\n"].concat()
        };
        for _ in 0..160 {
            client.send(&piece);
        }
        assert_eq!(client.read().status, 413);
    }
    let grown = tollgate.memory().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes more");
    assert_eq!(mode(&tollgate, &[]), "enforce");
}

/// Found by differential testing: the admin endpoint read requests with another reader than the gateway, a lenient one.
#[test]
fn the_admin_endpoint_rejects_requests_that_can_be_read_in_two_ways() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    let json = "content-type: application/json\r\ncontent-length: 15";
    let body = "{\"mode\": \"off\"}";
    for head in [
        format!("POST /api/mode HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n{json}\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n{json}\r\n\r\n"),
        format!("POST http://evil.example/api/mode HTTP/1.1\r\nhost: localhost\r\n{json}\r\n\r\n"),
        format!("POST http://localhost/api/mode HTTP/1.1\r\nhost: evil.example\r\n{json}\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\r\nhost:\r\n{json}\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\r\n{json}\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\nhost: localhost\n{}\n\n", json.replace("\r\n", "\n")),
        format!("POST /api/mode HTTP/1.1\r\nhost: localhost\nx: y\r\n{json}\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\r\nhost: localhost\r\nx: y\r\n z\r\n{json}\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\r\nhost: localhost\r\n{json}\r\ncontent-length: 15\r\n\r\n"),
        format!("POST /api/mode HTTP/1.1\r\nhost: localhost\r\n{json}\r\ntransfer-encoding: chunked\r\n\r\n"),
        format!("POST /api/mode#x HTTP/1.1\r\nhost: localhost\r\n{json}\r\n\r\n"),
    ] {
        let mut client = Client::connect(tollgate.admin);
        client.send(format!("{head}{body}"));
        let answer = client.read();
        assert_eq!((answer.status, answer.header("connection")), (400, "close"), "{head:?}");
        assert_eq!(answer.header("content-type"), "application/problem+json", "{head:?}");
        assert!(client.is_closed(Duration::from_secs(10)), "{head:?}");
    }
    assert_eq!(mode(&tollgate, &[]), "enforce");
    let absolute =
        format!("POST http://localhost/api/mode HTTP/1.1\r\nhost: localhost:80\r\n{json}\r\n\r\n{body}");
    let mut client = Client::connect(tollgate.admin);
    client.send(absolute);
    assert_eq!(client.read().status, 200);
    // The connection goes on behind a good request.
    client.send(
        "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\nHEAD /livez HTTP/1.1\r\nhost: localhost\r\n\r\n",
    );
    assert_eq!(client.read().text(), "alive\n");
    let head = client.try_read(true).unwrap();
    assert_eq!((head.status, head.header("content-length")), (200, "6"));
}

/// Found by a reader: of two lines the first was taken.
#[test]
fn the_admin_endpoint_rejects_two_authorization_lines() {
    let upstream = Upstream::hello();
    let url = upstream.url();
    let environment = [("TOLLGATE_TOKEN", TOKEN)];
    let tollgate = Tollgate::start_in(BINARY, LIMITED, &["--upstream", &url], &environment, |_| ());
    let right = format!("Bearer {TOKEN}");
    for other in [&*right, "Bearer no", "Basic Og==", ""] {
        for pair in [[&*right, other], [other, &*right]] {
            let headers = [("authorization", pair[0]), ("authorization", pair[1]), JSON];
            assert_eq!(ask(&tollgate, "POST", "/api/mode", &headers, OFF).status, 401, "{other:?}");
        }
    }
    assert_eq!(mode(&tollgate, &[("authorization", &right)]), "enforce");
}

/// Found by a reader: of two keys the last was taken.
#[test]
fn the_admin_endpoint_rejects_json_with_a_key_twice() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    for (path, body) in [
        ("/api/mode", r#"{"mode": "enforce", "mode": "off"}"#),
        ("/api/mode", r#"{"mode": "off", "mode": "off"}"#),
        ("/api/mode", r#"{"mode": "off", "m\u006fde": "off"}"#),
        ("/api/limiters/rate/mode", r#"{"mode": "dark", "mode": "off"}"#),
        ("/api/utilization", r#"{"percent": 1, "percent": 99}"#),
    ] {
        let answer = ask(&tollgate, "POST", path, &[JSON], body.as_bytes());
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.text().contains("is there twice"), "{body}: {}", answer.text());
    }
    assert_eq!(mode(&tollgate, &[]), "enforce");
}

/// Found by a reader: the connection was reset while the client still sent, and its answer was lost.
#[test]
fn a_client_of_the_admin_endpoint_that_sends_too_much_can_read_why_it_was_rejected() {
    let upstream = Upstream::hello();
    let tollgate = gateway(LIMITED, &upstream);
    let chunk = [b"10000\r\n", &b"a".repeat(65_536)[..], b"\r\n"].concat();
    for _ in 0..3 {
        let mut client = Client::connect(tollgate.admin);
        client.send(
            "POST /api/mode HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        );
        for _ in 0..100 {
            client.send(&chunk);
        }
        client.send("0\r\n\r\n");
        let answer = client.read();
        assert_eq!((answer.status, answer.header("connection")), (413, "close"), "{answer:?}");
        assert!(client.is_closed(Duration::from_secs(10)));
    }
    assert_eq!(mode(&tollgate, &[]), "enforce");
}

/// Values that must not be seen anywhere.
const CANARIES: [&str; 6] =
    ["canary-key", "canary-cookie", "canary-query", "canary-token", "203.0.113.77", "canary-header"];

/// Sends every canary on every way, also where it is refused.
fn send_canaries(tollgate: &Tollgate) {
    let headers = [
        ("x-api-key", "canary-key"),
        ("cookie", "session=canary-cookie"),
        ("authorization", "Bearer canary-token"),
        ("x-forwarded-for", "203.0.113.77"),
        ("x-other", "canary-header"),
    ];
    for _ in 0..3 {
        tollgate.get("/v1/charges?key=canary-query", &headers);
    }
    let mut client = Http2::connect(tollgate.gateway);
    for stream in [1, 3] {
        let fields = [request("GET", "/v1/charges?key=canary-query"), headers.to_vec()].concat();
        client.ask(stream, &fields, true);
        client.outcome(stream);
    }
    // Heads that are wrong are told of, but not what is in them.
    let mut client = tollgate.client();
    client.send(
        "GET /v1/charges?key=canary-query HTTP/1.1\r\nhost: a\r\nx-api-key: canary-key\r\n broken\r\n\r\n",
    );
    let _ = client.try_read(false);
    let mut client = tollgate.client();
    client.send("GET /v1/charges?key=canary-query HTTP/1.1\r\nhost: a\r\nx-api-key: canary-key\0\r\n\r\n");
    let _ = client.try_read(false);
}

fn assert_no_canary(text: &str, place: &str) {
    for canary in CANARIES {
        let line = text.lines().find(|line| line.contains(canary));
        assert_eq!(line, None, "{canary} is in {place}");
    }
}

#[test]
fn no_secret_of_a_caller_is_in_a_log_a_metric_a_status_or_the_store() {
    let redis = RedisServer::start();
    let upstream = Upstream::hello();
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let policy = |caller: &str| {
        format!(
            "identify: {{ caller: [{caller}] }}\ntrusted_proxies: [127.0.0.0/8]\n{}\
             limiters: {{ rate: {{ rate: 2/h }}, path: {{ rate: 100/h, per: [caller, ip, path] }} }}\n\
             gateway: {{ access_log: stdout }}\n",
            patient_store(&redis)
        )
    };
    for caller in ["header: x-api-key", "cookie: session", "query: key", "header: authorization", "ip"] {
        for url in [&upstream.url(), &nobody] {
            let environment = [("TOLLGATE_LOG", "trace")];
            let tollgate =
                Tollgate::start_in(BINARY, &policy(caller), &["--upstream", url], &environment, |_| ());
            await_store(&tollgate);
            send_canaries(&tollgate);
            tollgate.says("\"status\":429");
            assert_no_canary(&tollgate.ask_admin("GET", "/metrics", "").text(), "the metrics");
            assert_no_canary(&tollgate.ask_admin("GET", "/api/status", "").text(), "the status");
            let said = tollgate.said().join("\n");
            assert!(said.contains("TRACE"), "nothing was traced:\n{said}");
            assert_no_canary(&said, "what it says");
            let keys = redis.command(&["KEYS", "*"]);
            assert!(keys.contains("tg:"), "{keys}");
            assert_no_canary(&keys, "the keys of the store");
        }
    }
}

#[test]
fn twenty_thousand_callers_paths_and_methods_make_no_more_metrics() {
    let upstream = Upstream::hello();
    let policy = "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\nlimiters: { rate: { rate: 1/h, per: [caller, path, method] }, busy: { concurrency: 100 } }\n";
    let tollgate = gateway(policy, &upstream);
    tollgate.get("/x", &[]);
    let lines = |text: String| text.lines().count();
    let before = lines(tollgate.ask_admin("GET", "/metrics", "").text());
    let memory = tollgate.memory();
    let mut client = tollgate.client();
    // A hundred at a time, so that both sides have something to do.
    for hundred in 0..200 {
        let text: String = (0..100)
            .map(|number| {
                let number = hundred * 100 + number;
                format!("M{number} /{number} HTTP/1.1\r\nhost: h{number}\r\nx-api-key: k{number}\r\n\r\n")
            })
            .collect();
        client.send(text);
        for _ in 0..100 {
            assert_eq!(client.read().status, 200);
        }
    }
    assert_eq!(lines(tollgate.ask_admin("GET", "/metrics", "").text()), before);
    let grown = tollgate.memory().saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes more");
}

/// Has promtool judge metrics. `scripts/setup.sh` installs it.
fn assert_good_metrics(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool (scripts/setup.sh installs it): {error}"));
    promtool.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let judged = promtool.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&[judged.stdout, judged.stderr].concat()).into_owned();
    assert!(judged.status.success() && said.trim().is_empty(), "{said}\n{text}");
}

#[test]
fn promtool_has_nothing_to_say_of_the_metrics() {
    let redis = RedisServer::start();
    let upstream = Upstream::hello();
    let limiters = "limiters:\n  rate: { rate: 2/h }\n  busy: { concurrency: 10 }\n  fleet: { fleet: 10, reserve: 20% }\n  worker: { workers: { source: { in_flight: 8 } } }\n";
    for store in ["store: memory\n", &patient_store(&redis)] {
        let tollgate = gateway(&format!("trusted_proxies: []\n{store}{limiters}"), &upstream);
        await_store(&tollgate);
        for status in [200, 200, 429] {
            assert_eq!(tollgate.get("/x", &[]).status, status);
        }
        assert_good_metrics(&tollgate.ask_admin("GET", "/metrics", "").text());
        let open = ask(&tollgate, "GET", "/metrics", &[("accept", "application/openmetrics-text")], b"");
        assert!(open.header("content-type").starts_with("application/openmetrics-text"));
        assert!(open.text().ends_with("# EOF\n"));
    }
}

#[test]
fn clients_of_the_door_that_do_not_come_to_an_end_are_closed_in_time() {
    let upstream = Upstream::hello();
    let tollgate = gateway(&format!("{LIMITED}gateway: {{ timeouts: {{ head: 1s, body: 1s }} }}"), &upstream);
    let mut clients: Vec<Client> = (0..200).map(|_| Client::connect(tollgate.admin)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        match number % 3 {
            0 => {}
            1 => client.send("GET /metrics HTTP/1.1\r\nhost: local"),
            _ => client.send(
                "POST /api/mode HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 15\r\n\r\n{",
            ),
        }
    }
    assert_eq!(ask(&tollgate, "GET", "/readyz", &[], b"").status, 200);
    for client in &mut clients {
        assert!(client.is_closed(Duration::from_secs(20)));
    }
    assert_eq!(mode(&tollgate, &[]), "enforce");
}

/// Found by a reader: silent connections with the admin door took all files from the gateway.
#[test]
fn a_crowd_at_the_admin_door_takes_nothing_from_the_gateway() {
    let upstream = Upstream::hello();
    let tollgate = crate::hostile_upstream::with_files("-n 128", OPEN, &upstream);
    let crowd: Vec<Client> = (0..200).map_while(|_| Client::try_connect(tollgate.admin).ok()).collect();
    assert!(crowd.len() > 100);
    let mut clients: Vec<Client> = (0..20).map(|_| tollgate.client()).collect();
    for client in &mut clients {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    // Nor does it keep out those who have a question.
    assert_eq!(tollgate.ask_admin("GET", "/livez", "").status, 200);
    drop(crowd);
    assert_eq!(tollgate.metric("tollgate_connections_not_accepted_total"), 0.0);
}

/// Found by a reader: lines that a full disk did not take were counted nowhere.
#[test]
fn lines_of_the_access_log_that_cannot_be_written_are_counted_and_told() {
    let upstream = Upstream::hello();
    let tollgate = Tollgate::start(
        crate::common::BINARY,
        OPEN,
        &["--upstream", &upstream.url(), "--access-log", "/dev/full"],
    );
    let mut client = tollgate.client();
    for _ in 0..50 {
        assert_eq!(client.get("/", &[]).status, 200);
    }
    tollgate.comes_to("tollgate_access_log_lost_total", 50.0);
    tollgate.says("the access log cannot be written to /dev/full");
}
