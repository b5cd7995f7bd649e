//! A real server behind the layer, and a client that asks it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests, each of which uses some of it, on real sockets in real time"
)]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path};
use axum::routing::any;
use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::sync::{Semaphore, mpsc};
use tollgate::core::store::Store;
use tollgate::tower::TollgateLayer;
use tollgate::{Clock, Failsafe, Limiter, ManualClock, MemoryStore, Settle, SystemClock};
use tollgate_redis::RedisStore;
use tollgate_testkit::RedisServer;

/// A service behind a policy.
pub struct Door<S: Store + 'static> {
    pub limiter: Limiter<S>,
    pub clock: ManualClock,
    pub address: SocketAddr,
    /// Requests to `/slow` end when they get one of these.
    pub ends: Arc<Semaphore>,
    /// Bodies of `/stream` get what is sent here. One that gets `used 7` settles that.
    pub stream: mpsc::UnboundedSender<&'static str>,
    /// Requests that have reached the service.
    pub reached: Arc<AtomicU64>,
    client: Client<HttpConnector, Empty<Bytes>>,
}

/// An answer.
#[derive(Debug)]
pub struct Told {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Told {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// A clock that stands still at the present.
pub fn stopped() -> ManualClock {
    ManualClock::at(SystemClock.now())
}

pub async fn in_memory(policy: &str) -> Door<MemoryStore> {
    open(policy, MemoryStore::builder().max_bytes(64 << 20).build(), stopped()).await
}

/// The server, and a door whose store is there.
pub async fn in_redis(policy: &str) -> (RedisServer, Door<Failsafe<RedisStore>>) {
    let server = RedisServer::start();
    let store =
        RedisStore::builder(server.url()).secret("tests").deadline(Duration::from_secs(5)).build().unwrap();
    store.ready().await.unwrap();
    let door = open(policy, Failsafe::new(store), stopped()).await;
    (server, door)
}

pub async fn open<S: Store + 'static>(policy: &str, store: S, clock: ManualClock) -> Door<S> {
    let limiter = Limiter::builder().store(store).policy(policy).clock(clock.clone()).build();
    serve(limiter.unwrap_or_else(|error| panic!("{error}")), clock).await
}

pub async fn serve<S: Store + 'static>(limiter: Limiter<S>, clock: ManualClock) -> Door<S> {
    let ends = Arc::new(Semaphore::new(0));
    let reached = Arc::new(AtomicU64::new(0));
    let (stream, chunks) = mpsc::unbounded_channel::<&'static str>();
    let chunks = Arc::new(tokio::sync::Mutex::new(chunks));
    let slow = {
        let (ends, reached) = (Arc::clone(&ends), Arc::clone(&reached));
        move || async move {
            reached.fetch_add(1, Ordering::AcqRel);
            ends.acquire().await.unwrap().forget();
            "done"
        }
    };
    let quick = {
        let reached = Arc::clone(&reached);
        move |_: Path<String>| async move {
            reached.fetch_add(1, Ordering::AcqRel);
            "ok"
        }
    };
    let streaming = move |request: axum::extract::Request| async move {
        let settle = request.extensions().get::<Settle>().cloned();
        let next = move |_: ()| {
            let (chunks, settle) = (Arc::clone(&chunks), settle.clone());
            async move {
                let chunk = chunks.lock().await.recv().await.filter(|chunk| !chunk.is_empty())?;
                if let (Some(settle), Some(used)) = (settle, chunk.strip_prefix("used ")) {
                    settle.settle(used.parse().unwrap());
                }
                Some((Ok::<_, Infallible>(Bytes::from(chunk)), ()))
            }
        };
        let first = futures_util::stream::once(async { Ok(Bytes::from("begun ")) });
        Response::new(Body::from_stream(first.chain(futures_util::stream::unfold((), next))))
    };
    let layer = TollgateLayer::new(limiter.clone())
        .peer(|parts| parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
    let app = Router::new()
        .route("/slow", any(slow))
        .route("/stream", any(streaming))
        .route("/panic", any(async || -> &'static str { panic!("a handler that panics") }))
        .route("/{*path}", any(quick))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await.unwrap();
    });
    let client = Client::builder(TokioExecutor::new()).build_http();
    Door { limiter, clock, address, ends, stream, reached, client }
}

impl<S: Store + 'static> Door<S> {
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Request<Empty<Bytes>> {
        let mut request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Empty::new()).unwrap()
    }

    /// The answer, before its body has come.
    pub async fn begin(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response<Incoming> {
        self.client.request(self.request(method, path, headers)).await.unwrap()
    }

    pub async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Told {
        let (parts, body) = self.begin(method, path, headers).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Told {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    pub async fn status(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        self.ask(method, path, headers).await.status
    }

    /// How many of so many requests pass, with 32 on their way at a time.
    pub async fn passed(&self, count: usize, headers: &[(&str, &str)]) -> usize {
        let statuses = futures_util::stream::iter(0..count).map(|_| self.status("GET", "/x", headers));
        let statuses: Vec<u16> = statuses.buffer_unordered(32).collect().await;
        statuses.into_iter().filter(|status| *status == 200).count()
    }

    /// Waits until so many requests are in progress.
    pub async fn until_in_flight(&self, count: u64) {
        until(&format!("{count} in progress"), || self.limiter.report().in_flight == count).await;
    }

    pub fn count(&self, limiter: &str) -> tollgate::LimiterStats {
        let report = self.limiter.report();
        report.limiters.into_iter().find(|known| *known.name == *limiter).unwrap().stats
    }
}

/// Waits for something that happens elsewhere, in real time.
pub async fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < Duration::from_secs(20), "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
