//! Minutes of mixed traffic through the real binary, on 2,000 connections over HTTP/1 and HTTP/2, while its Redis is restarted
//! twice and paused again and again, its policy is reloaded, and a flood of random keys comes in: nothing fails, nothing grows,
//! nothing is left behind. `make soak` runs it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]
#![allow(clippy::panic, clippy::print_stderr, reason = "what it finds is told")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tollgate_testkit::{RedisServer, Tollgate};

/// Bytes of a large answer or request, in pieces of [`PIECE`].
const LARGE: usize = 256 << 10;
const PIECE: usize = 8 << 10;
/// No answer of the server takes longer than a second.
const PATIENCE: Duration = Duration::from_secs(20);

/// What may grow between the second quarter of the run and its last: allocators do not give back at once, and a connection
/// more or less is chance. Ten minutes have shown no growth at all; one or two of them do, because the first outage is in them.
const MEMORY_GROWS_AT_MOST: f64 = 1.20;
const FILES_GROW_AT_MOST: f64 = 24.0;
/// Connections with the server that are kept for later requests: as many as were needed at once in the last
/// [`KEPT_FOR`]. A run has to be much longer before their number says anything.
const KEPT_GROW_AT_MOST: f64 = 1.20;
const KEPT_FOR: Duration = Duration::from_secs(50);

/// Connections that are kept for the whole run, each with a request every [`CROWD_EVERY`].
const CROWD_HTTP1: usize = 1_500;
const CROWD_HTTP2: usize = 500;
const CROWD_EVERY: Duration = Duration::from_secs(4);
/// Requests a second whose keys have not been seen before.
const FLOOD: u64 = 500;
/// Between reloads of the policy, and between pauses of Redis. A pause is longer than the store's deadline.
const RELOADS: Duration = Duration::from_secs(5);
const PAUSES: Duration = Duration::from_secs(7);
const PAUSE: Duration = Duration::from_millis(400);

const RELOADED: &str = "tollgate_policy_reloads_total{result=\"success\"}";
const NOT_RELOADED: &str = "tollgate_policy_reloads_total{result=\"failure\"}";
const DEGRADED: &str = "tollgate_degraded_decisions_total{limiter=\"request-rate\"}";

type Answer = BoxBody<Bytes, Infallible>;

/// The store has time: a machine that is busy with the load is no outage. Each version of the policy has another limit.
fn policy(redis: &str, version: u64) -> String {
    let rate = 1_000_000 + version;
    format!(
        "
store: {{ url: {redis}, secret: 0123456789abcdef, deadline: 250ms }}
identify:
  caller: [header: x-api-key]
  plan: [table]
  default_plan: open
  table: {{ 'few_*': few }}
trusted_proxies: []
path_case: sensitive
plans: {{ open: {{ rate: {rate}/s }}, few: {{ rate: 20/s }} }}
classes: {{ critical: [POST /critical], others: ['/*'] }}
limiters:
  request-rate: {{ rate: plan, per: caller, on_store_failure: local }}
  concurrent-requests: {{ concurrency: 500, per: caller }}
  fleet-usage: {{ fleet: 1000, reserve: 20%, for: critical }}
  narrow: {{ fleet: 4, reserve: 50%, for: critical, match: [/narrow] }}
"
    )
}

/// The service behind the gateway.
async fn server(open: Arc<AtomicU64>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { continue };
            let _ = stream.set_nodelay(true);
            let service =
                hyper::service::service_fn(|request| async { Ok::<_, Infallible>(served(request).await) });
            let served = hyper::server::conn::http1::Builder::new();
            let open = Arc::clone(&open);
            open.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let _ = served.serve_connection(TokioIo::new(stream), service).with_upgrades().await;
                open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    address
}

async fn served(mut request: Request<Incoming>) -> Response<Answer> {
    match request.uri().path() {
        "/slow" | "/narrow" => {
            sleep(Duration::from_millis(250)).await;
            Response::new(whole("slow"))
        }
        "/stream" => Response::new(Pieces::every(Duration::from_millis(5)).boxed()),
        "/socket" => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(upgraded) = upgrade.await else { return };
                let (mut from, mut to) = tokio::io::split(TokioIo::new(upgraded));
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
            let mut response = Response::new(whole(""));
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert(http::header::CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().insert(UPGRADE, HeaderValue::from_static("websocket"));
            response
        }
        // Whatever was sent comes back by its length.
        _ => match request.into_body().collect().await {
            Ok(body) => Response::new(whole(body.to_bytes().len().to_string())),
            Err(_) => Response::new(whole("broken")),
        },
    }
}

fn whole(text: impl Into<Bytes>) -> Answer {
    Full::new(text.into()).boxed()
}

/// A large body in pieces, with a pause before each.
struct Pieces {
    left: usize,
    pause: Duration,
    paused: Pin<Box<tokio::time::Sleep>>,
}

impl Pieces {
    fn every(pause: Duration) -> Self {
        Self { left: LARGE / PIECE, pause, paused: Box::pin(sleep(pause)) }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        ready!(self.paused.as_mut().poll(context));
        self.left -= 1;
        let next = tokio::time::Instant::now() + self.pause;
        self.paused.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[b'p'; PIECE])))))
    }
}

/// What was seen of all requests.
#[derive(Default)]
struct Seen {
    by_status: Mutex<BTreeMap<(&'static str, u16), u64>>,
    failures: Mutex<Vec<String>>,
    asked: AtomicU64,
    is_over: AtomicBool,
}

impl Seen {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    fn count(&self, kind: &'static str, status: u16) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        *self.by_status.lock().entry((kind, status)).or_default() += 1;
    }

    fn fails(&self, kind: &str, why: impl std::fmt::Display) {
        let mut failures = self.failures.lock();
        if failures.len() < 20 {
            failures.push(format!("{kind}: {why}"));
        }
    }

    /// Judges an answer: what was asked for, or a refusal that gives its reason.
    async fn judge<B>(&self, kind: &'static str, expected: usize, response: Response<B>)
    where
        B: Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let (head, body) = response.into_parts();
        let body = match timeout(PATIENCE, body.collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return self.fails(kind, format!("{} breaks off: {error}", head.status)),
            Err(_) => return self.fails(kind, format!("{} does not end", head.status)),
        };
        let is_as_expected = match head.status.as_u16() {
            200 => body.len() == expected,
            429 | 503 => {
                head.headers.contains_key("retry-after")
                    && head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/problem+json")
                    && serde_json::from_slice::<serde_json::Value>(&body)
                        .is_ok_and(|problem| problem["limiter"].is_string())
            }
            _ => false,
        };
        if !is_as_expected {
            let text = String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
            self.fails(kind, format!("{} with {} bytes: {text}", head.status, body.len()));
        }
        self.count(kind, head.status.as_u16());
    }
}

/// Who asks what, and whom.
#[derive(Clone)]
struct Traffic {
    to: SocketAddr,
    seen: Arc<Seen>,
}

fn request(method: &str, path: &str, key: &str, body: Answer) -> Request<Answer> {
    let request = Request::builder().method(method).uri(path).header(HOST, "soak").header("x-api-key", key);
    request.body(body).unwrap()
}

impl Traffic {
    async fn connect(&self) -> Option<TcpStream> {
        match TcpStream::connect(self.to).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                Some(stream)
            }
            Err(error) => {
                self.seen.fails("connect", error);
                None
            }
        }
    }

    async fn http1(&self) -> Option<http1::SendRequest<Answer>> {
        let (sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }

    async fn http2(&self) -> Option<http2::SendRequest<Answer>> {
        let stream = TokioIo::new(self.connect().await?);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }

    async fn ask_on(
        &self,
        sender: &mut http1::SendRequest<Answer>,
        kind: &'static str,
        expected: usize,
        request: Request<Answer>,
    ) {
        if let Err(error) = sender.ready().await {
            return self.seen.fails(kind, error);
        }
        match timeout(PATIENCE, sender.send_request(request)).await {
            Ok(Ok(response)) => self.seen.judge(kind, expected, response).await,
            Ok(Err(error)) => self.seen.fails(kind, error),
            Err(_) => self.seen.fails(kind, "no answer"),
        }
    }

    /// Small requests on a connection that is kept, every so often; as fast as they are answered if that is zero.
    async fn small(self, number: usize, every: Duration) {
        let Some(mut sender) = self.http1().await else { return };
        let key = format!("caller_{}", number % 50);
        let mut pace = Pace::new(every);
        while !self.seen.is_over() {
            match number % 4 {
                0 => {
                    let post = request("POST", "/", &key, whole(Bytes::from_static(&[b'p'; 4096])));
                    self.ask_on(&mut sender, "POST", 4, post).await;
                }
                _ => self.ask_on(&mut sender, "GET", 1, request("GET", "/", &key, whole(""))).await,
            }
            pace.next().await;
        }
    }

    /// The same over HTTP/2; several of these share one connection.
    async fn small_http2(self, mut sender: http2::SendRequest<Answer>, every: Duration) {
        let mut pace = Pace::new(every);
        while !self.seen.is_over() {
            let mut get = request("GET", "http://soak/", "caller_2", whole(""));
            get.headers_mut().remove(HOST);
            let asked = async {
                sender.ready().await?;
                sender.send_request(get).await
            };
            match timeout(PATIENCE, asked).await {
                Ok(Ok(response)) => self.seen.judge("HTTP/2", 1, response).await,
                Ok(Err(error)) => self.seen.fails("HTTP/2", error),
                Err(_) => self.seen.fails("HTTP/2", "no answer"),
            }
            pace.next().await;
        }
    }

    /// One of the crowd: a connection of its own, kept for the whole run.
    async fn one_of_many(self, number: usize) {
        // Not all in the same moment.
        sleep(CROWD_EVERY.mul_f64(number as f64 / (CROWD_HTTP1 + CROWD_HTTP2) as f64)).await;
        if number < CROWD_HTTP1 {
            return self.small(number, CROWD_EVERY).await;
        }
        match self.http2().await {
            Some(sender) => self.small_http2(sender, CROWD_EVERY).await,
            None => self.seen.fails("crowd", "no HTTP/2"),
        }
    }

    /// Requests that each have a key of their own.
    async fn flood(self, number: u64, every: Duration) {
        let Some(mut sender) = self.http1().await else { return };
        let (mut pace, mut sent) = (Pace::new(every), 0_u64);
        while !self.seen.is_over() {
            sent += 1;
            let key = format!("flood_{number}_{:016x}", sent.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            self.ask_on(&mut sender, "flood", 1, request("GET", "/", &key, whole(""))).await;
            pace.next().await;
        }
    }

    /// Requests on connections of their own.
    async fn fresh(
        self,
        kind: &'static str,
        path: &'static str,
        key: &'static str,
        expected: usize,
        every: Duration,
    ) {
        let mut pace = Pace::new(every);
        while !self.seen.is_over() {
            if let Some(mut sender) = self.http1().await {
                let (method, body) = match kind {
                    "upload" => ("POST", Pieces::every(Duration::from_millis(1)).boxed()),
                    _ => ("GET", whole("")),
                };
                self.ask_on(&mut sender, kind, expected, request(method, path, key, body)).await;
            }
            pace.next().await;
        }
    }

    /// Clients that leave in the middle of their answer.
    async fn leaving(self, every: Duration) {
        let mut pace = Pace::new(every);
        while !self.seen.is_over() {
            if let Some(mut sender) = self.http1().await {
                let asked = sender.send_request(request("GET", "/stream", "leaver", whole("")));
                match timeout(PATIENCE, asked).await {
                    Ok(Ok(mut response)) => {
                        let _ = timeout(PATIENCE, response.frame()).await;
                        self.seen.count("leaves", response.status().as_u16());
                    }
                    other => self.seen.fails("leaves", format!("{other:?}")),
                }
            }
            pace.next().await;
        }
    }

    async fn sockets(self, every: Duration) {
        let mut pace = Pace::new(every);
        while !self.seen.is_over() {
            match timeout(PATIENCE, self.socket()).await {
                Ok(Ok(status)) => self.seen.count("socket", status),
                Ok(Err(error)) => self.seen.fails("socket", error),
                Err(_) => self.seen.fails("socket", "no end"),
            }
            pace.next().await;
        }
    }

    async fn socket(&self) -> std::io::Result<u16> {
        let mut stream = TcpStream::connect(self.to).await?;
        let asked = b"GET /socket HTTP/1.1\r\nhost: soak\r\nx-api-key: socket\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        stream.write_all(asked).await?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await?);
        }
        if !head.starts_with(b"HTTP/1.1 101") {
            return Err(std::io::Error::other(String::from_utf8_lossy(&head).into_owned()));
        }
        for _ in 0..10 {
            stream.write_all(b"there and back").await?;
            let mut back = [0; 14];
            stream.read_exact(&mut back).await?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(101)
    }
}

/// Keeps a distance between requests. What comes too late is left out and not made up for.
struct Pace {
    every: Duration,
    next: tokio::time::Instant,
}

impl Pace {
    fn new(every: Duration) -> Self {
        Self { every, next: tokio::time::Instant::now() }
    }

    async fn next(&mut self) {
        let now = tokio::time::Instant::now();
        self.next = (self.next + self.every).max(now.checked_sub(self.every).unwrap_or(now));
        if self.next > now {
            tokio::time::sleep_until(self.next).await;
        }
    }
}

/// Callers of small requests on connections of HTTP/1.1, and on two of HTTP/2.
const HTTP1: usize = 32;
const HTTP2: usize = 16;

async fn begin_small(traffic: &Traffic, every: Duration) -> Vec<tokio::task::JoinHandle<()>> {
    let mut callers: Vec<_> =
        (0..HTTP1).map(|number| tokio::spawn(traffic.clone().small(number, every))).collect();
    for _ in 0..2 {
        let Some(sender) = traffic.http2().await else { continue };
        for _ in 0..HTTP2 / 2 {
            callers.push(tokio::spawn(traffic.clone().small_http2(sender.clone(), every)));
        }
    }
    callers
}

fn begin_others(traffic: &Traffic) -> Vec<tokio::task::JoinHandle<()>> {
    let every = Duration::from_millis;
    let fresh = |kind, path, key, expected, pace| {
        tokio::spawn(traffic.clone().fresh(kind, path, key, expected, pace))
    };
    let mut callers = vec![
        fresh("fresh", "/", "fresh", 1, every(10)),
        fresh("refused", "/", "few_1", 1, every(5)),
        fresh("upload", "/", "uploader", 6, every(200)),
        tokio::spawn(traffic.clone().leaving(every(200))),
    ];
    for _ in 0..4 {
        callers.push(fresh("download", "/stream", "downloader", LARGE, every(100)));
        callers.push(fresh("slow", "/slow", "slow", 4, every(300)));
        callers.push(fresh("shed", "/narrow", "narrow", 4, every(20)));
        callers.push(tokio::spawn(traffic.clone().sockets(every(100))));
    }
    callers
}

/// The crowd, and the flood of keys.
fn begin_many(traffic: &Traffic) -> Vec<tokio::task::JoinHandle<()>> {
    const FLOODERS: u64 = 10;
    let crowd =
        (0..CROWD_HTTP1 + CROWD_HTTP2).map(|number| tokio::spawn(traffic.clone().one_of_many(number)));
    let every = Duration::from_secs_f64(FLOODERS as f64 / FLOOD as f64);
    let flood = (0..FLOODERS).map(|number| tokio::spawn(traffic.clone().flood(number, every)));
    crowd.chain(flood).collect()
}

/// This process has both ends of all connections but the gateway's.
fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    assert!(
        limit.current.is_none_or(|files| files >= 8_192),
        "the limit of open files is too low: {limit:?}"
    );
}

async fn end(seen: &Seen, callers: Vec<tokio::task::JoinHandle<()>>) {
    seen.is_over.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
}

/// How much is answered when nobody holds back.
async fn measured(to: SocketAddr) -> f64 {
    const SECONDS: u64 = 5;
    let traffic = Traffic { to, seen: Arc::default() };
    let callers = begin_small(&traffic, Duration::ZERO).await;
    sleep(Duration::from_secs(1)).await;
    let before = traffic.seen.asked.load(Ordering::Relaxed);
    sleep(Duration::from_secs(SECONDS)).await;
    let asked = traffic.seen.asked.load(Ordering::Relaxed) - before;
    end(&traffic.seen, callers).await;
    assert_eq!(*traffic.seen.failures.lock(), Vec::<String>::new());
    asked as f64 / SECONDS as f64
}

/// What the process had at some moment of the run.
struct Sample {
    at: Duration,
    memory: f64,
    files: f64,
    /// Connections with clients and with the server; an upgraded one with the server is not counted.
    with_clients: f64,
    with_server: f64,
    degraded: f64,
}

fn mean(samples: &[Sample], from: f64, to: f64, whole: Duration, of: impl Fn(&Sample) -> f64) -> f64 {
    let (from, to) = (whole.mul_f64(from), whole.mul_f64(to));
    let some: Vec<f64> =
        samples.iter().filter(|sample| sample.at >= from && sample.at < to).map(of).collect();
    some.iter().sum::<f64>() / some.len() as f64
}

#[test]
#[ignore = "takes minutes: make soak"]
fn a_long_run_fails_nobody_and_leaves_nothing_behind() {
    let seconds = std::env::var("SOAK_SECONDS").ok().map_or(600, |text| text.parse().unwrap());
    let binary = std::env::var("SOAK_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tollgate").to_owned());
    assert!(seconds >= 60, "what holds for less than a minute says nothing");
    let whole = Duration::from_secs(seconds);
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut redis = RedisServer::start();
    let with_server = Arc::<AtomicU64>::default();
    let upstream = runtime.block_on(server(Arc::clone(&with_server)));
    let tollgate =
        Tollgate::start(&binary, &policy(&redis.url(), 0), &["--upstream", &format!("http://{upstream}")]);
    let files_before = tollgate.open_files();

    let most = runtime.block_on(measured(tollgate.gateway));
    let every = Duration::from_secs_f64((HTTP1 + HTTP2) as f64 / (most / 2.0));
    eprintln!("the most is {most:.0} requests a second; {seconds} s at half of it");
    let traffic = Traffic { to: tollgate.gateway, seen: Arc::default() };
    let callers = runtime.block_on(async {
        let mut callers = begin_small(&traffic, every).await;
        callers.extend(begin_others(&traffic));
        callers.extend(begin_many(&traffic));
        callers
    });
    let begun = Instant::now();
    let mut samples = Vec::new();
    // Before what is measured first, and again in between.
    let mut restarts = vec![whole.mul_f64(0.6), whole.mul_f64(0.1)];
    let (mut reloads, mut pauses, mut most_open) = (0, 0, 0.0_f64);
    while begun.elapsed() < whole {
        std::thread::sleep(Duration::from_millis(500));
        let at = begun.elapsed();
        if at > RELOADS * (reloads + 1) {
            reloads += 1;
            tollgate.write_policy(&policy(&redis.url(), u64::from(reloads)));
        }
        if at > PAUSES * (pauses + 1) {
            pauses += 1;
            redis.freeze();
            std::thread::sleep(PAUSE);
            redis.thaw();
        }
        let with_clients = tollgate.metric("tollgate_connections_open");
        most_open = most_open.max(with_clients);
        if restarts.last().is_some_and(|next| at >= *next) {
            restarts.pop();
            redis.kill();
            // Long enough to be noticed: the breaker opens, and limits go on by themselves.
            std::thread::sleep(Duration::from_secs(3));
            redis.restart();
        }
        let (memory, files) = (tollgate.memory() as f64, tollgate.open_files() as f64);
        let with_server = with_server.load(Ordering::Relaxed) as f64;
        let degraded = tollgate.metric(DEGRADED);
        samples.push(Sample { at, memory, files, with_clients, with_server, degraded });
        if !traffic.seen.failures.lock().is_empty() {
            break;
        }
    }
    runtime.block_on(end(&traffic.seen, callers));

    let asked = traffic.seen.asked.load(Ordering::Relaxed);
    eprintln!("{asked} requests, {:.0} a second:", asked as f64 / begun.elapsed().as_secs_f64());
    for ((kind, status), count) in &*traffic.seen.by_status.lock() {
        eprintln!("  {kind:<10} {status} {count:>10}");
    }
    eprintln!("{reloads} reloads, {pauses} pauses of the store, {most_open} connections at once");
    assert!(most_open >= (CROWD_HTTP1 + CROWD_HTTP2) as f64, "there were only {most_open} connections");
    // Writes that follow each other closely are read as one.
    assert!(tollgate.metric(RELOADED) >= f64::from(reloads) / 2.0, "the policy was not reloaded");
    assert_eq!(tollgate.metric(NOT_RELOADED), 0.0);
    let seen = |status: u16| traffic.seen.by_status.lock().keys().any(|(_, other)| *other == status);
    assert_eq!(*traffic.seen.failures.lock(), Vec::<String>::new());
    assert!([101, 200, 429, 503].into_iter().all(seen), "the mix is none");
    let degraded = tollgate.metric(DEGRADED);
    eprintln!("{degraded} decisions without the store");
    assert!(degraded > 0.0, "the store was never missed");

    let tenths = |of: fn(&Sample) -> f64, unit: f64| -> Vec<String> {
        let tenth =
            |at: u32| mean(&samples, f64::from(at) / 10.0, f64::from(at + 1) / 10.0, whole, of) / unit;
        (0..10).map(|at| format!("{:.0}", tenth(at))).collect()
    };
    eprintln!(
        "by tenths of the run: memory, MiB: {}",
        tenths(|sample| sample.memory, (1 << 20) as f64).join(" ")
    );
    eprintln!("  open files: {}", tenths(|sample| sample.files, 1.0).join(" "));
    eprintln!("  decisions without the store so far: {}", tenths(|sample| sample.degraded, 1.0).join(" "));
    for line in tollgate.said().iter().filter(|line| line.contains("ERROR") || line.contains("WARN")) {
        eprintln!("  {line}");
    }
    let shown = |name: &str, of: fn(&Sample) -> f64, unit: f64| {
        let (before, after) = (mean(&samples, 0.25, 0.5, whole, of), mean(&samples, 0.75, 1.0, whole, of));
        eprintln!("{name}: {:.1} in the second quarter, {:.1} in the last", before / unit, after / unit);
        (before, after)
    };
    let (before, after) = shown("memory, MiB", |sample| sample.memory, (1 << 20) as f64);
    assert!(after <= before * MEMORY_GROWS_AT_MOST, "memory grows");
    shown("open files", |sample| sample.files, 1.0);
    shown("connections with clients", |sample| sample.with_clients, 1.0);
    let (before, after) = shown("connections with the server", |sample| sample.with_server, 1.0);
    if whole >= KEPT_FOR * 5 {
        assert!(after <= before * KEPT_GROW_AT_MOST, "connections with the server grow");
    }
    let others = |sample: &Sample| sample.files - sample.with_clients - sample.with_server;
    let (before, after) = shown("other open files", others, 1.0);
    assert!(after <= before + FILES_GROW_AT_MOST, "open files grow that are no connections");

    tollgate.comes_to_rest();
    for limiter in ["fleet-usage", "narrow"] {
        for by in ["critical", "others"] {
            tollgate.comes_to(
                &format!("tollgate_fleet_places_used{{limiter=\"{limiter}\",used_by=\"{by}\"}}"),
                0.0,
            );
        }
    }
    tollgate.comes_to("tollgate_connections_open", 0.0);
    // Kept connections are closed when nobody has used them for a while. Then nothing is left.
    let resting = Instant::now();
    let mut files = tollgate.open_files();
    while files as f64 > files_before as f64 + FILES_GROW_AT_MOST && resting.elapsed() < KEPT_FOR * 3 {
        std::thread::sleep(Duration::from_secs(1));
        files = tollgate.open_files();
    }
    let kept = with_server.load(Ordering::Relaxed);
    let took = resting.elapsed().as_secs();
    eprintln!(
        "open files: {files_before} before, {files} after {took} s of rest, {kept} of them with the server"
    );
    assert!(files as f64 <= files_before as f64 + FILES_GROW_AT_MOST, "connections are left behind");
}
