//! Servers behind the gateway, and connections with them. Each worker keeps its own, so that no two wait for each other.

use std::future::{Future, poll_fn};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::header::{self, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tollgate_core::policy::{self, Protocol};

use super::body::{AskedBody, Http2Body, PassedBody};
use super::http1::{self, Exchange, Stream};
use super::kept::Original;
use super::tls::Trust;
use crate::seldom::Seldom;

/// Connections that nobody has used for so long are closed: most servers close theirs after a minute.
const FORGOTTEN: Duration = Duration::from_secs(50);
/// How long a server that could not be reached is not tried, while there are others.
const LEFT_ALONE: Duration = Duration::from_secs(2);

/// So many requests share a connection over HTTP/2, if the server takes as many at once.
const MOST_AT_ONCE: usize = 100;
/// How often a request is tried with a server that turns it away before it has begun with it, as one does that closes a connection.
const TURNED_AWAY: usize = 4;
/// How much of an answer over HTTP/2 is taken before its client has taken it.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same of all answers on one connection: as much as there can be. They are those of many clients, and however many do not take
/// theirs, the others get theirs. It also bounds the small pieces that h2 puts up with on a connection.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// Whether no more files can be opened here: EMFILE, ENFILE.
pub(super) fn is_out_of_files(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// Servers that do the same work.
pub(crate) struct Upstream {
    pub(crate) policy: policy::Upstream,
    pub(crate) servers: Vec<Arc<Server>>,
    trust: Trust,
    next: AtomicUsize,
    /// Requests that were passed on to them and have not ended.
    pub(crate) in_flight: Arc<AtomicU64>,
}

impl Upstream {
    /// The servers that were there before stay as they are.
    pub(super) fn new(
        policy: &policy::Upstream,
        workers: usize,
        before: Option<&Self>,
        trust: &Trust,
    ) -> Self {
        let is_alike = |before: &&Self| before.policy.protocol == policy.protocol && before.trust == *trust;
        let known = before.filter(is_alike);
        let server = |address: &policy::Server| {
            let same =
                known.and_then(|before| before.servers.iter().find(|server| server.address == *address));
            same.cloned()
                .unwrap_or_else(|| Arc::new(Server::new(address, policy.protocol, workers, &trust.config)))
        };
        Self {
            servers: policy.servers.iter().map(server).collect(),
            policy: policy.clone(),
            trust: trust.clone(),
            next: AtomicUsize::new(0),
            in_flight: before.map(|before| Arc::clone(&before.in_flight)).unwrap_or_default(),
        }
    }

    /// Closes connections that are kept for requests to come, and says how many there were.
    pub(super) fn close_idle(&self) -> usize {
        self.servers.iter().map(|server| server.close_idle()).sum()
    }

    /// Whose turn it is, of those that are well, or of all if none is.
    fn pick(&self, tried: usize) -> Option<usize> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.servers.len();
        if count > 1 && tried < count {
            // Only those take turns: else the one behind a server that is away would have that one's turns, too.
            let well =
                || (0..count).filter(|at| self.servers.get(*at).is_some_and(|server| server.is_well()));
            // Another may have been first to try one that was away: then it is well no longer.
            while let Some(at) = turn.checked_rem(well().count()).and_then(|turn| well().nth(turn)) {
                if self.servers.get(at).is_some_and(|server| server.may_be_tried()) {
                    return Some(at);
                }
            }
        }
        turn.checked_rem(count)
    }
}

/// One server.
pub(crate) struct Server {
    pub(crate) address: policy::Server,
    protocol: Protocol,
    shelves: Box<[Shelf]>,
    tls: Option<Tls>,
    /// Whether TLS has agreed on HTTP/2.
    prefers_http2: AtomicBool,
    /// When it was last found to be out of reach, and since when in a row, if it was.
    unreachable: Mutex<Option<Instant>>,
    is_unreachable: AtomicBool,
    /// When somebody last tried whether it is there again.
    tried: Mutex<Option<Instant>>,
    /// What looking after it has shown.
    is_ill: AtomicBool,
}

/// TLS with one server.
struct Tls {
    name: ServerName<'static>,
    /// For whichever HTTP it prefers.
    connector: TlsConnector,
    /// For what only HTTP/1.1 can do.
    http1_connector: TlsConnector,
}

/// Connections of one worker.
#[derive(Default)]
struct Shelf {
    http1: Mutex<Vec<Idle>>,
    http2: tokio::sync::Mutex<Vec<Many>>,
}

/// A connection for many requests at once.
struct Many {
    sender: http2::SendRequest<AskedBody>,
    /// Those that have no whole answer yet.
    requests: Arc<AtomicUsize>,
    /// How many the server takes at once.
    most: Arc<AtomicUsize>,
}

impl Many {
    /// Over a connection that is new.
    async fn over(stream: Stream, patience: Duration) -> Result<Self, String> {
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(10))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            // None before the server has said how many.
            .initial_max_send_streams(0)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| told(&error))?;
        let mut connection = Box::pin(connection);
        let begun = Instant::now();
        while connection.current_max_send_streams() == 0 {
            if poll_fn(|context| Poll::Ready(connection.as_mut().poll(context))).await.is_ready() {
                return Err("the server closed the connection at once: does it speak HTTP/2?".to_owned());
            }
            if begun.elapsed() > patience {
                return Err(format!("the server takes no requests over HTTP/2 within {patience:?}"));
            }
            // Nobody tells when it has said so; it does at once.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let most = Arc::new(AtomicUsize::new(1));
        let told = Arc::clone(&most);
        let tell = move |most: usize| told.store(most.clamp(1, MOST_AT_ONCE), Ordering::Relaxed);
        tell(connection.current_max_send_streams());
        tokio::spawn(poll_fn(move |context| {
            let polled = connection.as_mut().poll(context);
            tell(connection.current_max_send_streams());
            polled
        }));
        Ok(Self { sender, requests: Arc::default(), most })
    }

    fn has_room(&self) -> bool {
        self.requests.load(Ordering::Acquire) < self.most.load(Ordering::Relaxed)
    }

    fn share(&self) -> (http2::SendRequest<AskedBody>, Share) {
        self.requests.fetch_add(1, Ordering::AcqRel);
        (self.sender.clone(), Share(Arc::clone(&self.requests)))
    }
}

/// A place for a request on a connection that others use too.
pub(super) struct Share(Arc<AtomicUsize>);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

struct Idle {
    exchange: Box<Exchange>,
    since: Instant,
}

/// A server for the length of one answer.
pub(super) struct Lent {
    server: Arc<Server>,
    worker: usize,
    in_flight: Arc<AtomicU64>,
}

impl Lent {
    fn new(server: &Arc<Server>, upstream: &Upstream, worker: usize) -> Self {
        upstream.in_flight.fetch_add(1, Ordering::AcqRel);
        Self { server: Arc::clone(server), worker, in_flight: Arc::clone(&upstream.in_flight) }
    }

    /// Its connection can be used again.
    pub(super) fn back(self, exchange: Box<Exchange>, since: Instant) {
        if let Some(shelf) = self.server.shelves.get(self.worker) {
            shelf.http1.lock().push(Idle { exchange, since });
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Why a request could not be passed on.
#[derive(Debug)]
pub(super) enum Failed {
    /// No server could be reached.
    Unreachable(String),
    /// No server could be asked, because no more files can be opened here.
    NoFiles(String),
    /// The connection broke before there was an answer.
    Broken(String),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        if is_out_of_files(&error) {
            Self::NoFiles(error.to_string())
        } else {
            Self::Unreachable(error.to_string())
        }
    }
}

impl Server {
    fn new(
        address: &policy::Server,
        protocol: Protocol,
        workers: usize,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Self {
        let name = ServerName::try_from(address.host.clone()).ok().filter(|_| address.is_tls);
        let connector = |protocols: &[&[u8]]| {
            let mut config = rustls::ClientConfig::clone(tls);
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        let tls = name.map(|name| Tls {
            name,
            connector: connector(match protocol {
                Protocol::Auto => &[b"h2", b"http/1.1"],
                Protocol::Http1 => &[b"http/1.1"],
                Protocol::Http2 => &[b"h2"],
            }),
            http1_connector: connector(&[b"http/1.1"]),
        });
        Self {
            address: address.clone(),
            protocol,
            // One for each worker, and one for who looks after it.
            shelves: (0..=workers).map(|_| Shelf::default()).collect(),
            tls,
            prefers_http2: AtomicBool::new(false),
            unreachable: Mutex::new(None),
            tried: Mutex::new(None),
            is_unreachable: AtomicBool::new(false),
            is_ill: AtomicBool::new(false),
        }
    }

    /// Whether it is worth a try.
    pub(crate) fn is_well(&self) -> bool {
        if self.is_ill.load(Ordering::Relaxed) {
            return false;
        }
        let is_long_ago =
            |time: &Mutex<Option<Instant>>| time.lock().is_none_or(|at| at.elapsed() > LEFT_ALONE);
        !self.is_unreachable.load(Ordering::Relaxed)
            || is_long_ago(&self.unreachable) && is_long_ago(&self.tried)
    }

    /// Whether this request may try it: one alone tries whether a server is there again, and the others need not wait for that.
    fn may_be_tried(&self) -> bool {
        if !self.is_unreachable.load(Ordering::Relaxed) {
            return true;
        }
        let mut tried = self.tried.lock();
        let is_first = tried.is_none_or(|tried| tried.elapsed() > LEFT_ALONE);
        if is_first {
            *tried = Some(Instant::now());
        }
        is_first
    }

    /// Whether it could not be reached by somebody who has tried since then.
    fn is_out_of_reach_since(&self, since: Instant) -> bool {
        self.is_unreachable.load(Ordering::Relaxed)
            && self.unreachable.lock().is_some_and(|tried| tried >= since)
    }

    /// What looking after it has shown. True if that is news.
    pub(super) fn found(&self, is_well: bool) -> bool {
        self.is_ill.swap(!is_well, Ordering::Relaxed) == is_well
    }

    fn reached(&self, error: Option<&io::Error>) {
        // That no more files can be opened here is not the server's fault.
        if error.is_some_and(is_out_of_files) {
            static TOLD: Seldom = Seldom::new();
            if TOLD.is_due() {
                tracing::error!(
                    "no more files can be opened, and so no connections with servers: raise the limit of open files (ulimit -n)"
                );
            }
            return;
        }
        match (error.is_none(), self.is_unreachable.load(Ordering::Relaxed)) {
            (true, false) => {}
            (true, true) => {
                self.is_unreachable.store(false, Ordering::Relaxed);
                tracing::info!(server = %self.address, "the server is there again");
            }
            (false, was_unreachable) => {
                *self.unreachable.lock() = Some(Instant::now());
                self.is_unreachable.store(true, Ordering::Relaxed);
                if !was_unreachable {
                    let why = error.map(ToString::to_string).unwrap_or_default();
                    tracing::warn!(server = %self.address, "the server cannot be reached: {why}");
                }
            }
        }
    }

    fn speaks_http2(&self, is_grpc: bool) -> bool {
        match self.protocol {
            Protocol::Http1 => false,
            Protocol::Http2 => true,
            Protocol::Auto if self.tls.is_some() => self.prefers_http2.load(Ordering::Relaxed),
            Protocol::Auto => is_grpc,
        }
    }

    async fn connect(&self, manner: Manner) -> io::Result<Stream> {
        let patience = manner.connect_timeout;
        let connected = timeout(patience, async {
            let tcp = TcpStream::connect((self.address.host.as_str(), self.address.port)).await?;
            tcp.set_nodelay(true)?;
            Ok(match &self.tls {
                None if self.address.is_tls => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        "its name is none that TLS knows",
                    ));
                }
                None => Stream::Plain(tcp),
                Some(tls) if manner.is_upgrade => {
                    Stream::Server(Box::new(tls.http1_connector.connect(tls.name.clone(), tcp).await?))
                }
                Some(tls) => {
                    let stream =
                        Stream::Server(Box::new(tls.connector.connect(tls.name.clone(), tcp).await?));
                    self.prefers_http2.store(stream.has_agreed_on(b"h2"), Ordering::Relaxed);
                    stream
                }
            })
        });
        let connected = connected.await.unwrap_or_else(|_| Err(late(patience)));
        self.reached(connected.as_ref().err());
        connected
    }
}

fn late(patience: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {patience:?}"))
}

/// How a request is to be passed on.
#[derive(Clone, Copy)]
pub(super) struct Manner {
    pub(super) worker: usize,
    pub(super) is_grpc: bool,
    pub(super) is_upgrade: bool,
    pub(super) connect_timeout: Duration,
    pub(super) now: Instant,
}

impl Upstream {
    /// Passes a request on. What has certainly not been begun is tried again elsewhere, and so is what can be repeated and
    /// was sent on a connection that its server had closed meanwhile. Nothing else is. `asked` is whom it was last tried with.
    pub(super) async fn pass(
        &self,
        request: &mut Request<AskedBody>,
        manner: Manner,
        asked: &mut Option<usize>,
    ) -> Result<(Response<PassedBody>, Lent), Failed> {
        let mut last = Failed::Unreachable("there is no server".to_owned());
        for tried in 0..self.servers.len().max(1) {
            *asked = self.pick(tried);
            let Some(server) = asked.and_then(|at| self.servers.get(at)) else { break };
            let lent = Lent::new(server, self, manner.worker);
            let passed = match server.speaks_http2(manner.is_grpc) && !manner.is_upgrade {
                true => Box::pin(server.pass_http2(request, manner)).await,
                false => server.pass_http1(request, manner).await,
            };
            match passed {
                Ok(response) => return Ok((response, lent)),
                Err((failed, again)) => {
                    tracing::debug!(server = %server.address, ?failed, "a request was not passed on");
                    last = failed;
                    if again == Again::Never {
                        break;
                    }
                }
            }
        }
        Err(last)
    }
}

/// Whether a request that was not passed on may be tried again: if the server has not begun with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    Elsewhere,
    Never,
}

type Passed = Result<Response<PassedBody>, (Failed, Again)>;

impl Server {
    async fn pass_http1(&self, request: &mut Request<AskedBody>, manner: Manner) -> Passed {
        name_host_in_field(request);
        let is_repeatable = is_repeatable(request);
        while let Some(exchange) = self.idle(manner, !is_repeatable) {
            match exchange.ask(request).await {
                Ok(answered) => return Ok(joined(answered)),
                Err(broken) if broken.is_unsent => {}
                // One more try, on a connection that is certainly new; none if there was an answer of some kind.
                Err(broken) if broken.is_unanswered && is_repeatable => {
                    let again = Box::pin(self.pass_anew(request, manner)).await;
                    return again.map_err(|(failed, _)| (failed, Again::Never));
                }
                Err(broken) => return Err((Failed::Broken(broken.to_string()), Again::Never)),
            }
        }
        // On the heap: what connects is large, and hardly ever needed.
        Box::pin(self.pass_anew(request, manner)).await
    }

    /// Passes a request on over a new connection.
    async fn pass_anew(&self, request: &mut Request<AskedBody>, manner: Manner) -> Passed {
        let stream = match self.connect(manner).await {
            Ok(stream) => stream,
            Err(error) => return Err((error.into(), Again::Elsewhere)),
        };
        if stream.has_agreed_on(b"h2")
            && let Some(shelf) = self.shelves.get(manner.worker)
        {
            // That turns out with the first connection.
            match Many::over(stream, manner.connect_timeout).await {
                Ok(many) => shelf.http2.lock().await.push(many),
                Err(why) => return Err((Failed::Unreachable(why), Again::Elsewhere)),
            }
            return self.pass_http2(request, manner).await;
        }
        self.pass_on(stream, request).await
    }

    /// Passes a request on over a new connection of HTTP/1.1.
    async fn pass_on(&self, stream: Stream, request: &mut Request<AskedBody>) -> Passed {
        name_host_in_field(request);
        match Exchange::new(stream).ask(request).await {
            Ok(answered) => Ok(joined(answered)),
            Err(broken) => {
                let again = if broken.is_unsent { Again::Elsewhere } else { Again::Never };
                Err((Failed::Broken(broken.to_string()), again))
            }
        }
    }

    /// A connection that is not in use, and not closed either: for certain, if the request can be made only once.
    fn idle(&self, manner: Manner, for_certain: bool) -> Option<Box<Exchange>> {
        if manner.is_upgrade {
            return None;
        }
        let mut idle = self.shelves.get(manner.worker)?.http1.lock();
        loop {
            let Idle { mut exchange, since } = idle.pop()?;
            if manner.now.saturating_duration_since(since) > FORGOTTEN {
                // All below are older.
                idle.clear();
                return None;
            }
            if exchange.is_usable(for_certain) {
                return Some(exchange);
            }
        }
    }

    /// Closes connections that are kept for requests to come, and says how many there were.
    fn close_idle(&self) -> usize {
        self.shelves.iter().map(|shelf| std::mem::take(&mut *shelf.http1.lock()).len()).sum()
    }

    /// Closes connections of a worker that nobody has used for long, and those that the server has closed.
    pub(super) fn tidy(&self, worker: usize, now: Instant) {
        if let Some(shelf) = self.shelves.get(worker) {
            shelf.http1.lock().retain_mut(|Idle { exchange, since }| {
                let is_usable =
                    now.saturating_duration_since(*since) <= FORGOTTEN && exchange.is_usable(false);
                exchange.relax();
                is_usable
            });
            // One is kept, however few use it.
            if let Ok(mut kept) = shelf.http2.try_lock() {
                let mut is_first = true;
                kept.retain(|many| {
                    std::mem::take(&mut is_first) || many.requests.load(Ordering::Acquire) > 0
                });
            }
        }
    }

    async fn pass_http2(&self, request: &mut Request<AskedBody>, manner: Manner) -> Passed {
        let Some(shelf) = self.shelves.get(manner.worker) else {
            return Err((Failed::Unreachable("there is no such worker".to_owned()), Again::Elsewhere));
        };
        // What may have been begun with is tried once more, and nowhere else.
        let mut again = Again::Elsewhere;
        for _ in 0..TURNED_AWAY {
            let ((mut sender, share), is_fresh) = {
                // Whoever comes meanwhile waits for this connection instead of making another, and hears when there is none.
                let since = Instant::now();
                let Ok(mut kept) = timeout(manner.connect_timeout, shelf.http2.lock()).await else {
                    return Err((late(manner.connect_timeout).into(), again));
                };
                kept.retain(|many| !many.sender.is_closed());
                match kept.iter().find(|many| many.has_room()) {
                    Some(many) => (many.share(), false),
                    None if self.is_out_of_reach_since(since) => {
                        let why = "no connection, neither for another request".to_owned();
                        return Err((Failed::Unreachable(why), again));
                    }
                    None => {
                        let stream = match self.connect(manner).await {
                            Ok(stream) => stream,
                            Err(error) => return Err((error.into(), again)),
                        };
                        if stream.has_agreed_on(b"http/1.1") {
                            // It has another opinion than before.
                            drop(kept);
                            return self.pass_on(stream, request).await;
                        }
                        let many = match Many::over(stream, manner.connect_timeout).await {
                            Ok(many) => many,
                            Err(why) => return Err((Failed::Unreachable(why), again)),
                        };
                        let shared = many.share();
                        kept.push(many);
                        (shared, true)
                    }
                }
            };
            name_host_in_target(request, &self.address);
            let (is_repeatable, copy) = (is_repeatable(request), Copied::of(request));
            let mut error = match sender.try_send_request(std::mem::take(request)).await {
                Ok(response) => {
                    return Ok(response.map(|body| PassedBody::Http2(Http2Body::of_server(body, share))));
                }
                Err(error) => error,
            };
            let unsent = error.take_message();
            let error = error.into_error();
            let is_unbegun = unsent.is_some() || is_unbegun(&error);
            if is_unbegun {
                // Nothing more is asked on a connection that is being closed, or that has too much to do.
                shelf.http2.lock().await.retain(|many| !Arc::ptr_eq(&many.requests, &share.0));
            } else if !is_repeatable || is_fresh || again == Again::Never {
                return Err((Failed::Broken(told(&error)), Again::Never));
            } else {
                again = Again::Never;
            }
            match unsent.or_else(|| copy.request()) {
                Some(next) => *request = next,
                None => return Err((Failed::Broken(told(&error)), Again::Never)),
            }
        }
        Err((Failed::Broken("the server has turned the request away again and again".to_owned()), again))
    }
}

impl Server {
    /// Asks for a path as requests do, and says what the status is.
    pub(super) async fn status_of(&self, path: &str, patience: Duration) -> Option<StatusCode> {
        let mut request = Request::new(AskedBody::Empty);
        *request.uri_mut() = path.parse().ok()?;
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static("tollgate-health"));
        if let Some(host) = host_value(&self.address) {
            request.headers_mut().insert(header::HOST, host);
        }
        let worker = self.shelves.len().checked_sub(1)?;
        let now = Instant::now();
        let manner = Manner { worker, is_grpc: false, is_upgrade: false, connect_timeout: patience, now };
        let answered = match self.speaks_http2(false) {
            true => self.pass_http2(&mut request, manner).await,
            false => self.pass_http1(&mut request, manner).await,
        };
        answered.ok().map(|response| response.status())
    }
}

/// HTTP/2 names the host in its target, and has no field for it. A host that a target cannot have, or none at all, stays in its
/// field.
fn name_host_in_target(request: &mut Request<AskedBody>, address: &policy::Server) {
    *request.version_mut() = Version::HTTP_2;
    // Where it was tried before in this way, the target has it.
    if request.uri().authority().is_some() {
        return;
    }
    let host = request.headers().get(header::HOST);
    let Some(host) = host.and_then(|host| Authority::try_from(host.as_bytes()).ok()) else {
        // Only for requests of an older version does h2 send a target without a host.
        *request.version_mut() = Version::HTTP_11;
        return;
    };
    request.headers_mut().remove(header::HOST);
    let mut target = request.uri().clone().into_parts();
    target.authority = Some(host);
    target.scheme = Some(if address.is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    target.path_and_query.get_or_insert_with(|| PathAndQuery::from_static("/"));
    // Without a host it stays as it is, and is not sent: another path would be another request.
    if let Ok(target) = Uri::from_parts(target) {
        *request.uri_mut() = target;
    }
}

/// HTTP/1 names it in a field. A request that was tried over HTTP/2 before has none.
fn name_host_in_field(request: &mut Request<AskedBody>) {
    if request.uri().authority().is_none() {
        return;
    }
    let target = std::mem::take(request.uri_mut()).into_parts();
    if let Some(host) = target.authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        request.headers_mut().insert(header::HOST, host);
    }
    *request.uri_mut() = Uri::from(target.path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/")));
    *request.version_mut() = Version::HTTP_11;
}

/// What went wrong, and why.
fn told(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Whether a request does no harm when it is made twice.
fn is_repeatable(request: &Request<AskedBody>) -> bool {
    request.body().is_empty()
        && matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// Whether the server has certainly not begun with a request: it says so itself, by closing the connection to all that came
/// behind another, or by refusing it (RFC 9113, 8.7).
fn is_unbegun(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM))
    })
}

/// A request that can be made again.
struct Copied {
    head: Request<()>,
    body: Original,
}

impl Copied {
    fn of(request: &mut Request<AskedBody>) -> Self {
        let mut head = Request::new(());
        *head.method_mut() = request.method().clone();
        *head.uri_mut() = request.uri().clone();
        *head.version_mut() = request.version();
        head.headers_mut().clone_from(request.headers());
        Self { head, body: request.body_mut().keep() }
    }

    /// None, if too much of its body has gone.
    fn request(self) -> Option<Request<AskedBody>> {
        let body = self.body.body()?;
        Some(self.head.map(|()| body))
    }
}

/// An answer with its body.
fn joined((response, body): http1::Answered) -> Response<PassedBody> {
    response.map(|()| PassedBody::Http1(body))
}

/// What a server is called in `Host` of requests that are the gateway's own.
fn host_value(address: &policy::Server) -> Option<HeaderValue> {
    let shown = address.to_string();
    HeaderValue::from_str(shown.split_once("://")?.1).ok()
}
