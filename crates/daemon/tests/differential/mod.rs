//! The same hostile bytes through Tollgate and through nginx, in front of Node and gunicorn.
//!
//! Every difference in what the client or the server sees is listed, with its reason, in `requests.differences` and
//! `responses.differences`. What Tollgate forwards is read by servers as Tollgate meant it, without exceptions.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that cannot set itself up fails"
)]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

mod cases;
mod expectations;
mod http;
mod relay;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use tollgate_testkit::{Nginx, Program, Tollgate, free_port};

use self::cases::Case;
use self::expectations::{Differences, Expectations};
use self::http::{Message, is_bodiless_response, message};
use self::relay::{Exchanged, Relay};
use crate::common::BINARY;

/// So many threads share the cases of each pair of proxy and server.
const SHARES: usize = 3;
const AFTER: &[u8] = b"GET /after HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

const POLICY: &str = "limiters: {}\ngateway: { timeouts: { head: 500ms, body: 500ms, answer: 2s } }\n";

fn script(name: &str) -> String {
    format!("{}/tests/differential/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// nginx as a proxy: for each port that it listens on, the server behind it. Its limits are those of Tollgate.
fn nginx(servers: &[(u16, SocketAddr)]) -> Nginx {
    let mut settings = "@user@ daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path temporary; proxy_temp_path temporary; fastcgi_temp_path temporary;
  uwsgi_temp_path temporary; scgi_temp_path temporary;
  client_header_timeout 500ms; client_body_timeout 500ms; lingering_timeout 500ms;
  large_client_header_buffers 4 64k;
  proxy_http_version 1.1; proxy_set_header Host $http_host; proxy_set_header Connection '';
  proxy_request_buffering off; proxy_read_timeout 2s; proxy_next_upstream off;
  proxy_buffer_size 64k; proxy_buffers 8 64k; proxy_busy_buffers_size 128k;
  server { listen 127.0.0.1:@port@; }
"
    .to_owned();
    for (port, server) in servers {
        let _ = writeln!(
            settings,
            "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{server}; }} }}"
        );
    }
    Nginx::start_with(&(settings + "}\n"))
}

/// Sends bytes and reads until the proxy closes the connection.
fn send(to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let bytes = bytes.to_vec();
    // A proxy that rejects a request early need not read all of it.
    let writing = std::thread::spawn(move || {
        let _ = writer.write_all(&bytes);
    });
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    drop(stream);
    let _ = writing.join();
    received
}

/// The responses that a client got. Those behind the first answer `GET /after`.
fn responses(mut bytes: &[u8], is_head: bool) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::new();
    while let Some((response, used)) = message(bytes, |response| {
        is_bodiless_response(response, is_head && all.iter().all(|known| known.status() / 100 == 1))
    }) {
        bytes = &bytes[used..];
        all.push(response);
    }
    if !bytes.is_empty() {
        all.push(Message { line: "no HTTP/1".to_owned(), body: bytes.to_vec(), ..Message::default() });
    }
    all
}

/// Long texts by their beginning and length.
fn short(text: &str) -> String {
    let escaped: String =
        text.chars().flat_map(|letter| (letter as u32 as u8).escape_ascii()).map(char::from).collect();
    if escaped.len() <= 100 { escaped } else { format!("{}...{} bytes", &escaped[..20], text.len()) }
}

fn shown_headers(headers: &mut [(String, String)]) -> String {
    headers.sort();
    let shown: Vec<String> =
        headers.iter().map(|(name, value)| format!("{}: {}", short(name), short(value))).collect();
    if shown.len() > 10 {
        format!("{{{} headers}}", shown.len())
    } else {
        format!("{{{}}}", shown.join(", "))
    }
}

/// What a server says that it has seen, without what the proxy adds to every request.
fn seen(response: &Message, added: &[(String, String)]) -> String {
    let Some(seen) = response.seen() else { return format!("rejected with {}", response.status()) };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut headers: Vec<(String, String)> =
        seen["headers"].as_array().unwrap().iter().map(|pair| (text(&pair[0]), text(&pair[1]))).collect();
    // How long the body is can be said in two ways, which make no difference.
    headers.retain(|header| {
        !added.contains(header)
            && !matches!(
                header.0.as_str(),
                "connection" | "content-length" | "transfer-encoding" | "x-forwarded-host"
            )
    });
    let (method, target, body) = (text(&seen["method"]), text(&seen["target"]), text(&seen["body"]));
    let headers = shown_headers(&mut headers);
    if (method.as_str(), target.as_str(), headers.as_str()) == ("GET", "/after", "{host: a}")
        && body.is_empty()
    {
        return "after".to_owned();
    }
    let body = if body.is_empty() { String::new() } else { format!(" \"{}\"", short(&body)) };
    format!("{method} {} {headers}{body}", short(&target))
}

/// What the server has read is what Tollgate has sent: as many requests, with the same methods, targets and bodies; and each
/// response has gone to the client once.
fn assert_in_sync(case: &str, exchanged: &[Exchanged], client: &[Message]) {
    let mut forwarded = 0;
    for Exchanged { requests, responses } in exchanged {
        assert!(responses.len() <= requests.len(), "{case}: more responses than requests: {exchanged:?}");
        forwarded += responses.len();
        for (request, response) in requests.iter().zip(responses) {
            let Some(seen) = response.seen() else { break };
            let words: Vec<&str> = request.line.split(' ').collect();
            let body: String = request.body.iter().map(|byte| char::from(*byte)).collect();
            let sent = (words[0], words[1], body.as_str());
            let as_seen =
                [&seen["method"], &seen["target"], &seen["body"]].map(|value| value.as_str().unwrap());
            assert_eq!(
                sent,
                (as_seen[0], as_seen[1], as_seen[2]),
                "{case}: the server has read something else"
            );
        }
    }
    let is_own = |response: &&Message| response.header("content-type") == Some("application/problem+json");
    let finals =
        client.iter().filter(|response| response.status() / 100 != 1 && response.line.starts_with("HTTP/"));
    let (own, passed): (Vec<_>, Vec<_>) = finals.partition(is_own);
    assert_eq!(
        passed.len(),
        forwarded,
        "{case}: responses of the server, and those of the client ({} own)",
        own.len()
    );
}

/// Sends the cases one after another through a proxy: what became of each.
fn run(proxy: SocketAddr, relay: &Relay, is_tollgate: bool, cases: &[Case]) -> BTreeMap<String, String> {
    send(proxy, AFTER);
    let mut plain = relay.take();
    let plain = plain.pop().unwrap().responses[0].seen().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let added = plain["headers"].as_array().unwrap().iter().map(|pair| (text(&pair[0]), text(&pair[1])));
    let added: Vec<(String, String)> = added.filter(|(name, _)| name != "host").collect();
    let mut outcomes = BTreeMap::new();
    for case in cases {
        let received = send(proxy, &[&case.bytes, AFTER].concat());
        let client = responses(&received, case.bytes.starts_with(b"HEAD "));
        let exchanged = relay.take();
        if is_tollgate {
            assert_in_sync(&case.name, &exchanged, &client);
        }
        let status = |response: &Message| match response.status() {
            0 => response.line.clone(),
            status => status.to_string(),
        };
        let statuses: Vec<String> = client.iter().map(status).collect();
        let seen: Vec<String> = exchanged
            .iter()
            .flat_map(|connection| connection.responses.iter().map(|response| seen(response, &added)))
            .collect();
        let statuses = if statuses.is_empty() { "closed".to_owned() } else { statuses.join(" ") };
        let seen = if seen.is_empty() { "nothing".to_owned() } else { seen.join("; ") };
        outcomes.insert(case.name.clone(), format!("{statuses} <- {seen}"));
    }
    assert!(relay.take().is_empty(), "requests or responses that belong to no case");
    outcomes
}

#[test]
fn hostile_requests_through_tollgate_and_nginx_differ_only_as_listed() {
    let cases = cases::requests();
    assert!(cases.len() >= 300, "{} requests", cases.len());
    let node = Program::start(&script("server.js"), &[]);
    let python = Program::start(&script("server.py"), &[]);
    let share = cases.len().div_ceil(SHARES);
    // Each share has a relay, and a proxy of its own in front of it.
    let mut lanes = Vec::new();
    for (server, address) in [("node", node.address()), ("python", python.address())] {
        for cases in cases.chunks(share) {
            lanes.push((server, Relay::start(address), free_port(), Relay::start(address), cases));
        }
    }
    let ports: Vec<(u16, SocketAddr)> =
        lanes.iter().map(|(_, _, port, relay, _)| (*port, relay.address)).collect();
    let _nginx = nginx(&ports);
    let mut found = Differences::new();
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (server, relay, port, nginx_relay, cases) in &lanes {
            let through_tollgate = scope.spawn(move || {
                let tollgate =
                    Tollgate::start(BINARY, POLICY, &["--upstream", &format!("http://{}", relay.address)]);
                let outcomes = run(tollgate.gateway, relay, true, cases);
                tollgate.comes_to_rest();
                outcomes
            });
            let through_nginx = scope
                .spawn(move || run(SocketAddr::from(([127, 0, 0, 1], *port)), nginx_relay, false, cases));
            running.push((server, through_tollgate, through_nginx));
        }
        for (server, tollgate, nginx) in running {
            let (tollgate, nginx) = (tollgate.join().unwrap(), nginx.join().unwrap());
            for (case, outcome) in tollgate {
                let other = &nginx[&case];
                if outcome != *other {
                    found.insert((case, (*server).to_owned()), (outcome, other.clone()));
                }
            }
        }
    });
    Expectations::read("requests.differences").check(&found);
}

/// A server that answers `/case/N` with the bytes of a case.
fn hostile_server(cases: Vec<Case>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve = move |mut stream: TcpStream, cases: &[Case]| {
        let mut read = Vec::new();
        loop {
            let mut buffer = [0; 4096];
            while !read.windows(4).any(|some| some == b"\r\n\r\n") {
                match stream.read(&mut buffer) {
                    Ok(some @ 1..) => read.extend_from_slice(&buffer[..some]),
                    _ => return,
                }
            }
            let (request, used) = message(&read, |_| true).unwrap();
            read.drain(..used);
            let target = request.line.split(' ').nth(1).unwrap_or_default();
            let case = target.strip_prefix("/case/").map(|number| &cases[number.parse::<usize>().unwrap()]);
            let after = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nafter";
            let sent = stream.write_all(case.map_or(after, |case| case.bytes.as_slice()));
            if sent.is_err() || case.is_some_and(|case| case.closes) {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        std::thread::scope(|scope| {
            for stream in listener.incoming().map_while(Result::ok) {
                let cases = &cases;
                scope.spawn(move || serve(stream, cases));
            }
        });
    });
    address
}

/// What a client got.
fn told(response: &Message, added: &[(String, String)]) -> String {
    let mut headers = response.headers.clone();
    headers.retain(|header| {
        let is_framing =
            matches!(header.0.as_str(), "content-length" | "transfer-encoding" | "connection" | "date");
        !is_framing && !added.contains(header)
    });
    let headers = shown_headers(&mut headers);
    let is_problem = response.header("content-type").is_some_and(|kind| kind != "text/plain");
    if response.status() >= 500 && is_problem {
        return response.status().to_string();
    }
    let body: String = response.body.iter().map(|byte| char::from(*byte)).collect();
    let headers = if headers == "{}" { String::new() } else { format!(" {headers}") };
    let end = if response.is_complete { "" } else { " cut off" };
    format!("{}{headers} \"{}\"{end}", short(response.line.trim_start_matches("HTTP/1.1 ")), short(&body))
}

#[test]
fn hostile_responses_through_tollgate_and_nginx_differ_only_as_listed() {
    let cases = cases::responses();
    assert!(cases.len() >= 60, "{} responses", cases.len());
    let server = hostile_server(cases.clone());
    let port = free_port();
    let _nginx = nginx(&[(port, server)]);
    let tollgate = Tollgate::start(BINARY, POLICY, &["--upstream", &format!("http://{server}")]);
    let run = |proxy: SocketAddr, is_tollgate: bool| {
        let added = responses(&send(proxy, AFTER), false).remove(0).headers;
        let run = |number: usize, case: &Case| {
            let request = format!("GET /case/{number} HTTP/1.1\r\nHost: a\r\n\r\n");
            let client = responses(&send(proxy, &[request.as_bytes(), AFTER].concat()), false);
            if is_tollgate {
                // Nothing that a server sends for one request is taken for the response to another.
                let finals: Vec<&Message> = client.iter().filter(|some| some.status() / 100 != 1).collect();
                assert!(finals.len() <= 2, "{}: {finals:?}", case.name);
                if let Some(after) = finals.get(1) {
                    assert_eq!(
                        (after.status(), after.body.as_slice()),
                        (200, &b"after"[..]),
                        "{}",
                        case.name
                    );
                }
            }
            let told: Vec<String> = client.iter().map(|response| told(response, &added)).collect();
            (case.name.clone(), if told.is_empty() { "closed".to_owned() } else { told.join("; ") })
        };
        std::thread::scope(|scope| {
            let shares: Vec<_> = (0..SHARES)
                .map(|share| {
                    let (cases, run) = (&cases, &run);
                    scope.spawn(move || {
                        let own = cases.iter().enumerate().filter(|(number, _)| number % SHARES == share);
                        own.map(|(number, case)| run(number, case)).collect::<Vec<_>>()
                    })
                })
                .collect();
            shares.into_iter().flat_map(|share| share.join().unwrap()).collect::<BTreeMap<String, String>>()
        })
    };
    let (outcomes, others) =
        (run(tollgate.gateway, true), run(SocketAddr::from(([127, 0, 0, 1], port)), false));
    let differ = outcomes.into_iter().filter(|(case, outcome)| others[case] != *outcome);
    let found: Differences = differ
        .map(|(case, outcome)| ((case.clone(), "any".to_owned()), (outcome, others[&case].clone())))
        .collect();
    tollgate.comes_to_rest();
    Expectations::read("responses.differences").check(&found);
}
