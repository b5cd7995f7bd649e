//! One connection with a client, from its first byte to its last.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::unconstrained;
use tokio::time::{Instant, timeout};

use super::body::{AnswerBody, AskingBody, Http2Body};
use super::calm::Calm;
use super::doing::Doing;
use super::fields;
use super::http1::{self, Ended, Stream, Wire};
use super::proxy_protocol::{self, Header};
use super::request::{self, Answering};
use super::site::Times;
use super::stream::Rewound;
use super::{MOMENT, Shared, Worker};
use crate::seldom::Seldom;

/// What is known of a connection.
pub(super) struct Connection {
    /// Who is at the other end, or who they say they speak for if they are one of our proxies.
    pub(super) peer: SocketAddr,
    /// Whether the peer is a proxy that has not said for whom it speaks: then nothing of what comes says so either.
    pub(super) is_peer_alone: bool,
    /// Its address as a field has it.
    pub(super) peer_value: HeaderValue,
    pub(super) is_tls: bool,
    /// The name in the client's certificate.
    pub(super) tls_client: Option<String>,
    pub(super) doing: Arc<Doing>,
}

/// How long nothing goes over a connection of HTTP/2 that was told to end and does not, until it is closed.
const LAST_CALL: Duration = Duration::from_secs(3);
/// How often it is looked at what a connection is doing.
const TICK: Duration = Duration::from_secs(5);
/// How much of a body over HTTP/2 is taken before its server has taken it.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same of all bodies on one connection. One whose server takes nothing leaves room for others, also of small pieces: h2 bounds
/// those by this window.
const CONNECTION_WINDOW: u32 = 16 << 20;
/// How much is kept for a client by the kernel that could not be sent yet.
const UNSENT: u32 = 32 << 10;
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves a connection until it ends.
pub(super) async fn serve(worker: Arc<Worker>, stream: TcpStream, peer: SocketAddr) {
    let _ = stream.set_nodelay(true);
    // Else a client that takes its answer slowly, but takes it, seems to take nothing for minutes: there is much room for what was not
    // sent yet, and not before a third of it is free is there said to be some.
    let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT);
    let shared = Arc::clone(&worker.shared);
    let site = shared.site.load_full();
    let head = site.times.head;
    let mut stream = Rewound::new(stream);
    if !matches!(timeout(head, speaks(&mut stream, &shared)).await, Ok(true)) {
        return;
    }
    let (mut peer, mut is_peer_alone) = (peer, false);
    if site.policy.gateway().proxy_protocol && site.policy.trusts(peer.ip()) {
        match timeout(head, announced(&mut stream)).await {
            Ok(Some(Some(client))) => peer = client,
            Ok(Some(None)) => is_peer_alone = true,
            _ => {
                static TOLD: Seldom = Seldom::new();
                if TOLD.is_due() {
                    tracing::warn!(
                        %peer,
                        "a connection began with no PROXY protocol and was closed: have the proxy send it, or leave `proxy_protocol` out of the policy"
                    );
                }
                return shared.watch.counts.misbehaved.fetch_add(1, Ordering::Relaxed).ignore();
            }
        }
    }
    let peer_value = fields::address_value(peer.ip());
    let mut connection = Connection {
        peer,
        peer_value,
        is_peer_alone,
        is_tls: false,
        tls_client: None,
        doing: Arc::default(),
    };
    let Some(acceptor) = shared.tls.load_full() else {
        return begin(worker, stream, connection, head).await;
    };
    if stream.beginning().first().is_some_and(u8::is_ascii_uppercase) {
        return answer_plainly(worker, stream, connection).await;
    }
    let accepted = Box::pin(timeout(head, acceptor.accept(stream))).await;
    let stream = match accepted.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
        Ok(stream) => stream,
        Err(error) => {
            static TOLD: Seldom = Seldom::new();
            if TOLD.is_due() {
                tracing::info!(%peer, "a client did not come to terms over TLS: {error}");
            }
            return shared.watch.counts.misbehaved.fetch_add(1, Ordering::Relaxed).ignore();
        }
    };
    let session = stream.get_ref().1;
    connection.is_tls = true;
    connection.tls_client = session.peer_certificates().and_then(|chain| super::tls::name_of(chain.first()?));
    match session.alpn_protocol() == Some(b"h2") {
        true => Box::pin(serve_http2(worker, stream, connection)).await,
        false => {
            let wire = Wire::new(Stream::Client(Box::new(stream)), BytesMut::new());
            serve_http1(worker, wire, connection).await;
        }
    }
}

/// Answers a client that does not know that TLS is spoken here.
async fn answer_plainly(worker: Arc<Worker>, stream: Rewound<TcpStream>, connection: Connection) {
    let (_, stream) = stream.into_parts();
    let served = http1_of(&worker, Wire::new(Stream::Plain(stream), BytesMut::new()), &connection);
    let ended = served.turn_away("TLS is spoken here: ask with https.").await;
    note(&worker, connection.peer.ip(), ended);
}

/// Says that a value is of no interest.
trait Ignore: Sized {
    fn ignore(self) {}
}
impl Ignore for u64 {}

/// Whether anything comes. Whoever has said nothing yet is not waited for when the gateway ends, nor for long when others need the
/// room.
async fn speaks(stream: &mut Rewound<TcpStream>, shared: &Shared) -> bool {
    loop {
        tokio::select! {
            biased;
            begun = stream.peek_more() => return matches!(begun, Ok(true)),
            () = shared.drain.cancelled() => break,
            () = tokio::time::sleep(TICK) => if shared.room.is_full() {
                return false;
            },
        }
    }
    // It may have spoken before, and nobody has listened yet.
    matches!(timeout(MOMENT, stream.peek_more()).await, Ok(Ok(true)))
}

/// For whom a proxy speaks: nobody, if it speaks for itself. None if it says nothing of the kind.
async fn announced(stream: &mut Rewound<TcpStream>) -> Option<Option<SocketAddr>> {
    loop {
        match proxy_protocol::parse(stream.beginning()) {
            Header::Of(client, bytes) => {
                stream.skip(bytes);
                return Some(Some(client));
            }
            Header::Own(bytes) => {
                stream.skip(bytes);
                return Some(None);
            }
            Header::Wrong => return None,
            Header::Partial => {
                if !stream.peek_more().await.ok()? {
                    return None;
                }
            }
        }
    }
}

/// Finds out which HTTP is spoken, where nobody has agreed on it.
async fn begin(worker: Arc<Worker>, mut stream: Rewound<TcpStream>, connection: Connection, head: Duration) {
    let looked = timeout(head, async {
        loop {
            let beginning = stream.beginning();
            let some = beginning.len().min(HTTP2.len());
            if some > 0 && beginning.get(..some) != HTTP2.get(..some) {
                return Some(false);
            }
            if some == HTTP2.len() {
                return Some(true);
            }
            if !stream.peek_more().await.ok()? {
                return None;
            }
        }
    });
    match looked.await {
        // On the heap, as all that is large and not for everybody: connections that wait are many.
        Ok(Some(true)) => Box::pin(serve_http2(worker, stream, connection)).await,
        Ok(Some(false)) => {
            let (beginning, stream) = stream.into_parts();
            serve_http1(worker, Wire::new(Stream::Plain(stream), beginning), connection).await;
        }
        // Nothing came, or not in time.
        _ => {}
    }
}

/// Requests of one connection over HTTP/2.
#[derive(Clone)]
struct Edge {
    worker: Arc<Worker>,
    connection: Arc<Connection>,
}

impl Service<Request<Incoming>> for Edge {
    type Response = Response<AnswerBody>;
    type Error = std::convert::Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let request = request.map(|body| AskingBody::Http2(Http2Body::of_client(body)));
        request::answer(&self.worker, &self.connection, request)
    }
}

fn http1_of(worker: &Worker, wire: Wire, connection: &Connection) -> http1::Connection {
    let shared = &worker.shared;
    let ends = [shared.notice.clone(), shared.drain.clone()];
    let doing = Arc::clone(&connection.doing);
    http1::Connection::new(wire, bounds_of(worker), ends, Arc::clone(&shared.room), doing)
}

/// What holds for requests that come now.
fn bounds_of(worker: &Worker) -> http1::Bounds {
    let site = worker.shared.site.load();
    let Times { head, idle, body, .. } = site.times;
    http1::Bounds { head, idle, write: body, max_head: site.max_head }
}

/// Counts how a connection came to its end, where nobody else knows of it.
fn note(worker: &Worker, client: IpAddr, ended: Ended) {
    let counts = &worker.shared.watch.counts;
    match ended {
        Ended::Well => {}
        Ended::Badly => counts.misbehaved.fetch_add(1, Ordering::Relaxed).ignore(),
        Ended::Malformed(status) => {
            counts.misbehaved.fetch_add(1, Ordering::Relaxed);
            worker.shared.watch.malformed(client, status.as_u16());
        }
    }
}

async fn serve_http1(worker: Arc<Worker>, wire: Wire, connection: Connection) {
    let doing = Arc::clone(&connection.doing);
    let client = connection.peer.ip();
    let drain = worker.shared.drain.clone();
    let served = http1_of(&worker, wire, &connection);
    let connection = Arc::new(connection);
    let mut served =
        pin!(served.serve(|| bounds_of(&worker), |request| request::answer(&worker, &connection, request)));
    let tick_every = |times: &Times| TICK.min(times.body).min(times.whole.map_or(TICK, |whole| whole / 4));
    let mut tick = pin!(tokio::time::sleep(tick_every(&worker.shared.site.load().times)));
    let mut ends = pin!(unconstrained(drain.cancelled()));
    // Both wake this task when it is time, and need not be asked each time that something else does. They answer truly also
    // when the task has done so much that it is to let others go on.
    let mut is_set = false;
    let ended = poll_fn(|context| {
        loop {
            if let Poll::Ready(ended) = served.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            if is_set && !tick.is_elapsed() {
                return Poll::Pending;
            }
            while pin!(unconstrained(tick.as_mut())).poll(context).is_ready() {
                let times = worker.shared.site.load().times;
                if doing.is_stuck(&times) {
                    return Poll::Ready(Ended::Badly);
                }
                tick.as_mut().reset(Instant::now() + tick_every(&times));
            }
            if is_set || ends.as_mut().poll(context).is_pending() {
                is_set = true;
                return Poll::Pending;
            }
            is_set = true;
        }
    });
    let ended = ended.await;
    note(&worker, client, ended);
}

async fn serve_http2<T>(worker: Arc<Worker>, stream: T, connection: Connection)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let site = worker.shared.site.load_full();
    let doing = Arc::clone(&connection.doing);
    let edge = Edge { worker: Arc::clone(&worker), connection: Arc::new(connection) };
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(256)
        .max_header_list_size(u32::try_from(site.max_head).unwrap_or(64 << 10))
        .max_pending_accept_reset_streams(20)
        .max_local_error_reset_streams(128)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(site.times.idle.min(Duration::from_secs(30)))
        .keep_alive_timeout(site.times.head)
        .serve_connection(TokioIo::new(Calm::new(stream, Arc::clone(&doing))), edge);
    let mut served = pin!(served);
    let tick_every = |times: &Times| {
        let Times { head, body, idle, whole, .. } = *times;
        TICK.min(idle).min(head).min(body).min(whole.map_or(TICK, |whole| whole / 4))
    };
    let mut tick = pin!(tokio::time::sleep(tick_every(&site.times)));
    // Who has come since clients were told to go elsewhere stays until the end.
    let (notice, drain) = (&worker.shared.notice, &worker.shared.drain);
    let told = if notice.is_cancelled() { drain } else { notice };
    let mut told = pin!(told.cancelled());
    let mut ends = pin!(drain.cancelled());
    let (mut is_ending, mut is_last_call, mut was_stuck) = (false, false, false);
    let (mut served_before, mut sent_before, mut idle_since) = (0, 0, Instant::now());
    loop {
        tokio::select! {
            biased;
            ended = served.as_mut() => {
                if ended.is_err() {
                    worker.shared.watch.counts.misbehaved.fetch_add(1, Ordering::Relaxed);
                }
                return;
            }
            () = told.as_mut(), if !is_ending => {
                is_ending = true;
                served.as_mut().graceful_shutdown();
            }
            () = ends.as_mut(), if !is_last_call => {
                is_last_call = true;
                tick.as_mut().reset(Instant::now() + LAST_CALL);
            }
            () = tick.as_mut() => {
                // Those of now, whatever was loaded since the connection began.
                let times = worker.shared.site.load().times;
                if doing.is_head_late(times.head) {
                    worker.shared.watch.counts.misbehaved.fetch_add(1, Ordering::Relaxed);
                    return;
                }
                let is_stuck = doing.is_stuck(&times);
                if is_stuck {
                    worker.shared.watch.counts.misbehaved.fetch_add(1, Ordering::Relaxed);
                }
                let now = Instant::now();
                let requests = doing.served.load(Ordering::Relaxed);
                if !doing.is_idle() || requests != served_before {
                    (served_before, idle_since) = (requests, now);
                }
                let idle = now - idle_since;
                let is_in_the_way = doing.is_idle() && worker.shared.room.is_full();
                // Answers that are here as a whole are not in progress any more, and may take long to be sent.
                let sent = doing.sent.load(Ordering::Relaxed);
                let is_silent = doing.is_idle() && sent == sent_before;
                sent_before = sent;
                if idle >= times.idle + times.head
                    || is_silent && is_ending && (was_stuck || is_last_call || is_in_the_way)
                {
                    // It was told that the connection ends, and has not ended it.
                    return;
                }
                was_stuck |= is_stuck;
                if (idle >= times.idle || is_in_the_way || is_stuck) && !is_ending {
                    is_ending = true;
                    served.as_mut().graceful_shutdown();
                }
                tick.as_mut().reset(now + if is_last_call { LAST_CALL } else { tick_every(&times) });
            }
        }
    }
}
