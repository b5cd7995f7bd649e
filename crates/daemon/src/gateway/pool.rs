//! Servers behind the gateway, and connections with them. Each worker keeps its own, so that no two wait for each other.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use http::header::{self, HeaderName, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tollgate_core::policy::{self, Protocol};

use super::body::{AskedBody, Http2Body, PassedBody};
use super::connection_limit::{Busy, Supply};
use super::counts::Durations;
use super::fields;
use super::http1::{self, Exchange, Stream};
use super::interim::Interim;
use super::kept::Original;
use super::shelf::{Grant, Lease, Limit, Shared, SharedStream, Shelf, Slot, Want};
use super::tls::Trust;
use crate::seldom::Seldom;

/// How long a server that could not be reached is not tried, while there are others.
const LEFT_ALONE: Duration = Duration::from_secs(2);

/// How long `/readyz` waits for a connection with a server that could not be reached before.
const PROBE_TIMEOUT: Duration = Duration::from_millis(500);
/// How often a request is tried with a server that turns it away before it has begun with it, as one does that closes a connection.
const TURNED_AWAY: usize = 4;
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
    /// The servers that were there before stay as they are, but for their limits.
    pub(super) fn new(
        policy: &policy::Upstream,
        workers: usize,
        before: Option<&Self>,
        trust: &Trust,
        limits: Limits,
    ) -> Self {
        let is_alike = |before: &&Self| before.policy.protocol == policy.protocol && before.trust == *trust;
        let known = before.filter(is_alike);
        let server = |address: &policy::Server| {
            let same =
                known.and_then(|before| before.servers.iter().find(|server| server.address == *address));
            match same {
                Some(server) => {
                    server.set_limits(limits);
                    Arc::clone(server)
                }
                None => Server::new(address, policy.protocol, workers, &trust.config, limits),
            }
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
                    return Some(self.with_room(at));
                }
            }
        }
        turn.checked_rem(count)
    }

    /// Whether none of its servers is healthy. Where no health check finds out whether a server is back, this tries to connect
    /// with those that could not be reached, as seldom as requests do.
    pub(crate) async fn is_unhealthy(&self) -> bool {
        // All at once: a readiness probe does not wait for one unreachable server after another.
        if self.policy.health.is_none() {
            join_all(self.servers.iter().map(|server| server.try_to_reach())).await;
        }
        !self.servers.iter().any(|server| server.is_known_to_be_well())
    }

    /// The server whose turn it is; or, if all of its connections are in use, the next that has one; or, if none has, the one
    /// with the shortest queue.
    fn with_room(&self, turn: usize) -> usize {
        let is_full = |at: usize| self.servers.get(at).is_none_or(|server| server.is_full());
        if !is_full(turn) {
            return turn;
        }
        let can_do = |at: &usize| self.servers.get(*at).is_some_and(|server| server.is_known_to_be_well());
        let others = || (turn + 1..self.servers.len()).chain(0..turn).filter(can_do);
        let queue = |at: &usize| self.servers.get(*at).map(|server| server.limit.queue_length());
        let free = others().find(|at| !is_full(*at));
        free.or_else(|| std::iter::once(turn).chain(others()).min_by_key(queue)).unwrap_or(turn)
    }
}

/// How many connections there may be to each server of an upstream, and how many requests may wait for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) max_connections: usize,
    pub(super) max_queue: usize,
}

/// One server.
pub(crate) struct Server {
    pub(crate) address: policy::Server,
    protocol: Protocol,
    /// Connections of each worker, and those of health checks.
    shelves: Box<[Shelf]>,
    limit: Arc<Limit>,
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

/// How the connections to a server are used.
pub(crate) struct ServerLoad {
    /// Connections that requests use, or that are being made.
    pub(crate) active: usize,
    /// Connections that wait for a request.
    pub(crate) idle: usize,
    pub(crate) max_connections: usize,
    /// Requests that wait for a connection.
    pub(crate) queued: usize,
    /// Requests that were rejected, by reason.
    pub(crate) rejections: [(&'static str, u64); 2],
}

/// TLS with one server.
struct Tls {
    name: ServerName<'static>,
    /// For whichever HTTP it prefers.
    connector: TlsConnector,
    /// For what only HTTP/1.1 can do.
    http1_connector: TlsConnector,
}

/// A server for the length of one answer.
pub(super) struct Lent {
    server: Arc<Server>,
    worker: usize,
    in_flight: Arc<AtomicU64>,
    /// The right to its connection, if that is not shared.
    slot: Option<Slot>,
}

impl Lent {
    fn new(server: &Arc<Server>, upstream: &Upstream, worker: usize) -> Self {
        upstream.in_flight.fetch_add(1, Ordering::AcqRel);
        Self { server: Arc::clone(server), worker, in_flight: Arc::clone(&upstream.in_flight), slot: None }
    }

    /// Its connection can be used again.
    pub(super) fn back(mut self, exchange: Box<Exchange>, since: Instant) {
        let lease = Lease { exchange: Some(exchange), since, slot: self.slot.take() };
        self.server.keep(self.worker, lease);
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
    /// All connections to the server are in use.
    Busy(Busy),
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
        limits: Limits,
    ) -> Arc<Self> {
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
        Arc::new_cyclic(|server| Self {
            address: address.clone(),
            protocol,
            limit: Arc::new(Limit::new(server.clone(), limits.max_connections, limits.max_queue)),
            // One for each worker, and one for who looks after it.
            shelves: (0..=workers).map(|_| Shelf::default()).collect(),
            tls,
            prefers_http2: AtomicBool::new(false),
            unreachable: Mutex::new(None),
            tried: Mutex::new(None),
            is_unreachable: AtomicBool::new(false),
            is_ill: AtomicBool::new(false),
        })
    }

    /// Limits its connections from now on. Idle ones above the limit are closed.
    fn set_limits(&self, limits: Limits) {
        self.limit.set(limits.max_connections, limits.max_queue);
        while self.limit.is_exceeded()
            && let Some(idle) = self.take_idle(0)
        {
            drop(idle);
        }
    }

    /// How its connections are used at this moment.
    pub(crate) fn load(&self) -> ServerLoad {
        let idle = self.workers().iter().map(Shelf::idle_count).sum();
        ServerLoad {
            active: self.limit.open().saturating_sub(idle),
            idle,
            max_connections: self.limit.max_connections(),
            queued: self.limit.queue_length(),
            rejections: self.limit.rejections(),
        }
    }

    /// How long requests have waited for a connection to become free.
    pub(crate) fn waits(&self) -> &Durations {
        self.limit.waits()
    }

    /// Whether a request would have to wait for a connection.
    fn is_full(&self) -> bool {
        if self.limit.has_queue() {
            return true;
        }
        self.limit.open() >= self.limit.max_connections()
            && !self.workers().iter().any(|shelf| shelf.idle_count() > 0 || shelf.has_room())
    }

    /// Finds out whether a server that could not be reached is back, if that has not been tried for a while.
    async fn try_to_reach(&self) {
        if self.is_unreachable.load(Ordering::Relaxed) && self.may_be_tried() {
            let manner = Manner::of_health_check(self.workers().len(), PROBE_TIMEOUT);
            // A failure is noted there.
            let _ = self.connect(manner).await;
        }
    }

    /// Whether nothing speaks against sending requests to it.
    fn is_known_to_be_well(&self) -> bool {
        !self.is_ill.load(Ordering::Relaxed) && !self.is_unreachable.load(Ordering::Relaxed)
    }

    /// Connections of workers, without those of health checks.
    fn workers(&self) -> &[Shelf] {
        self.shelves.split_last().map_or(&[], |(_, workers)| workers)
    }

    /// An idle connection of any worker, this one first.
    fn take_idle(&self, first: usize) -> Option<Lease> {
        let now = Instant::now();
        let workers = self.workers();
        let (before, after) = workers.split_at_checked(first).unwrap_or((workers, &[]));
        after.iter().chain(before).find_map(|shelf| shelf.pop(now))
    }

    /// Keeps a connection for the next request of this worker, or hands it to whoever waits.
    fn keep(&self, worker: usize, lease: Lease) {
        let Lease { exchange: Some(exchange), since, slot: Some(slot) } = lease else { return };
        if !self.limit.is_exceeded()
            && let Some(shelf) = self.workers().get(worker)
        {
            shelf.put(exchange, since, slot);
            self.limit.freed();
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
    pub(super) queue_timeout: Duration,
    pub(super) now: Instant,
}

impl Manner {
    fn of_health_check(worker: usize, patience: Duration) -> Self {
        Self {
            worker,
            is_grpc: false,
            is_upgrade: false,
            connect_timeout: patience,
            queue_timeout: patience,
            now: Instant::now(),
        }
    }
}

/// How far a request has come on its way to a server, for whoever waits for the answer.
#[derive(Default)]
pub(super) struct Attempt<'r> {
    way: Mutex<Way>,
    /// Where informational responses go, and which of their headers matter here. None: the client gets none.
    interim: Option<(&'r Interim, &'r HashSet<HeaderName>)>,
}

#[derive(Default)]
struct Way {
    server: Option<usize>,
    queue: InQueue,
}

#[derive(Clone, Copy, Default)]
enum InQueue {
    #[default]
    Never,
    Now,
    Until(Instant),
}

impl<'r> Attempt<'r> {
    pub(super) fn new(interim: Option<(&'r Interim, &'r HashSet<HeaderName>)>) -> Self {
        Self { interim, ..Self::default() }
    }

    /// The server has sent an informational response.
    fn inform(&self, mut response: Response<()>) {
        if let Some((interim, decisive)) = self.interim {
            fields::strip_interim(response.headers_mut(), decisive);
            interim.add(&response);
        }
    }

    /// The server that was tried last.
    pub(super) fn server(&self) -> Option<usize> {
        self.way.lock().server
    }

    /// Since when the server is waited for, if the request had to wait in a queue before: not at all before now, while it is
    /// there.
    pub(super) fn left_queue(&self) -> Option<Instant> {
        match self.way.lock().queue {
            InQueue::Never => None,
            InQueue::Now => Some(Instant::now()),
            InQueue::Until(left) => Some(left),
        }
    }
}

impl Upstream {
    /// Passes a request on. What has certainly not been begun is tried again elsewhere, and so is what can be repeated and
    /// was sent on a connection that its server had closed meanwhile. Nothing else is.
    pub(super) async fn pass(
        &self,
        request: &mut Request<AskedBody>,
        manner: Manner,
        attempt: &Attempt<'_>,
    ) -> Result<(Response<PassedBody>, Lent), Failed> {
        let mut last = Failed::Unreachable("there is no server".to_owned());
        for tried in 0..self.servers.len().max(1) {
            let picked = self.pick(tried);
            attempt.way.lock().server = picked;
            let Some(server) = picked.and_then(|at| self.servers.get(at)) else { break };
            let mut lent = Lent::new(server, self, manner.worker);
            let passed = match server.speaks_http2(manner.is_grpc) && !manner.is_upgrade {
                true => Box::pin(server.pass_http2(request, manner, attempt, None)).await,
                false => server.pass_http1(request, manner, attempt).await,
            };
            match passed {
                Ok((response, slot)) => {
                    lent.slot = slot;
                    return Ok((response, lent));
                }
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

/// An answer, and the right to its connection if that is not shared.
type Passed = Result<(Response<PassedBody>, Option<Slot>), (Failed, Again)>;

/// What a request over HTTP/2 is sent over.
enum Opened {
    Stream(SharedStream),
    /// A new connection, and a stream of it.
    Fresh(SharedStream),
    /// The server speaks HTTP/1.1 after all.
    Http1(Stream, Option<Slot>),
}

impl Supply for Server {
    type Want = Want;
    type Grant = Grant;

    fn take(&self, want: Want) -> Option<Grant> {
        if want != Want::Connection
            && let Some(stream) = self.workers().iter().find_map(Shelf::stream)
        {
            return Some(Grant::Stream(stream));
        }
        if want == Want::StreamOnly {
            return None;
        }
        let new = || self.limit.try_slot().map(|slot| Lease::new(Some(slot)));
        let lease = match want {
            Want::Stream => new().or_else(|| self.take_idle(0)),
            _ => self.take_idle(0).or_else(new),
        };
        if lease.is_none() {
            // It is closed soon, and then there is a slot.
            let _ = self.workers().iter().any(Shelf::close_unused);
        }
        lease.map(Grant::Connection)
    }

    fn put_back(&self, grant: Grant) {
        if let Grant::Connection(lease) = grant {
            self.keep(0, lease);
        }
    }

    fn out_of_turn(want: Want) -> Option<Want> {
        matches!(want, Want::Stream | Want::Either).then_some(Want::StreamOnly)
    }
}

impl Server {
    /// What a request is sent over, if it need not wait for that.
    fn acquire_now(&self, manner: Manner, want: Want) -> Option<Grant> {
        if manner.worker >= self.workers().len() {
            // A health check waits for nobody, and takes nothing from others.
            return Some(Grant::Connection(Lease::new(None)));
        }
        if self.limit.has_queue() {
            // Requests that need a connection of their own may wait while a stream is free.
            return Self::out_of_turn(want).and_then(|want| self.take(want));
        }
        if want != Want::Stream
            && !manner.is_upgrade
            && let Some(idle) = self.idle(manner)
        {
            return Some(Grant::Connection(idle));
        }
        match self.limit.try_slot() {
            Some(slot) => Some(Grant::Connection(Lease::new(Some(slot)))),
            // Other workers may have something to spare.
            None => self.take(want),
        }
    }

    /// Waits in the queue for what a request is sent over.
    async fn acquire_later(
        &self,
        manner: Manner,
        want: Want,
        attempt: &Attempt<'_>,
    ) -> Result<Grant, (Failed, Again)> {
        attempt.way.lock().queue = InQueue::Now;
        let granted = self.limit.wait(want, manner.queue_timeout).await;
        attempt.way.lock().queue = InQueue::Until(Instant::now());
        granted.map_err(|busy| {
            static TOLD: Seldom = Seldom::new();
            if TOLD.is_due() {
                tracing::warn!(
                    server = %self.address,
                    connections = self.limit.open(),
                    queued = self.limit.queue_length(),
                    "requests are answered 503: {}. Raise max_connections or max_queue, or add servers",
                    busy.reason(),
                );
            }
            // Other servers have longer queues.
            (Failed::Busy(busy), Again::Never)
        })
    }

    /// The idle connection that this worker has used last.
    fn idle(&self, manner: Manner) -> Option<Lease> {
        self.workers().get(manner.worker)?.pop(manner.now)
    }
}

impl Server {
    async fn pass_http1(
        &self,
        request: &mut Request<AskedBody>,
        manner: Manner,
        attempt: &Attempt<'_>,
    ) -> Passed {
        name_host_in_field(request);
        let is_repeatable = is_repeatable(request);
        let may_share = self.tls.is_some() && self.protocol == Protocol::Auto && !manner.is_upgrade;
        let want = if may_share { Want::Either } else { Want::Connection };
        let grant = match self.acquire_now(manner, want) {
            Some(grant) => grant,
            None => Box::pin(self.acquire_later(manner, want, attempt)).await?,
        };
        let mut lease = match grant {
            Grant::Connection(lease) => lease,
            Grant::Stream(stream) => {
                return Box::pin(self.pass_http2(request, manner, attempt, Some(stream))).await;
            }
        };
        if manner.is_upgrade {
            lease.exchange = None;
        }
        while let Some(mut exchange) = lease.exchange.take() {
            // What can be made only once needs a connection that is certainly not closed.
            if exchange.is_usable(!is_repeatable) {
                match exchange.ask(request, |response| attempt.inform(response)).await {
                    Ok(answered) => return Ok((joined(answered), lease.slot)),
                    Err(broken) if broken.is_unsent => {}
                    // One more try, on a connection that is certainly new; none if there was an answer of some kind.
                    Err(broken) if broken.is_unanswered && is_repeatable => {
                        let again = Box::pin(self.pass_anew(request, manner, attempt, lease.slot)).await;
                        return again.map_err(|(failed, _)| (failed, Again::Never));
                    }
                    Err(broken) => return Err((Failed::Broken(broken.to_string()), Again::Never)),
                }
            }
            if let Some(next) = self.idle(manner) {
                lease = next;
            }
        }
        // On the heap: what connects is large, and hardly ever needed.
        Box::pin(self.pass_anew(request, manner, attempt, lease.slot)).await
    }

    /// Passes a request on over a new connection.
    async fn pass_anew(
        &self,
        request: &mut Request<AskedBody>,
        manner: Manner,
        attempt: &Attempt<'_>,
        slot: Option<Slot>,
    ) -> Passed {
        let stream = match self.connect(manner).await {
            Ok(stream) => stream,
            Err(error) => return Err((error.into(), Again::Elsewhere)),
        };
        if stream.has_agreed_on(b"h2")
            && let Some(shelf) = self.shelves.get(manner.worker)
        {
            // That turns out with the first connection.
            let shared = match Shared::over(stream, manner.connect_timeout, slot, &self.limit).await {
                Ok(shared) => shared,
                Err(why) => return Err((Failed::Unreachable(why), Again::Elsewhere)),
            };
            let stream = shared.stream();
            shelf.share(shared);
            // The rest of its streams is for those who wait.
            self.limit.freed();
            return self.pass_http2(request, manner, attempt, stream).await;
        }
        self.pass_on(stream, request, attempt, slot).await
    }

    /// Passes a request on over a new connection of HTTP/1.1.
    async fn pass_on(
        &self,
        stream: Stream,
        request: &mut Request<AskedBody>,
        attempt: &Attempt<'_>,
        slot: Option<Slot>,
    ) -> Passed {
        name_host_in_field(request);
        match Exchange::new(stream).ask(request, |response| attempt.inform(response)).await {
            Ok(answered) => Ok((joined(answered), slot)),
            Err(broken) => {
                let again = if broken.is_unsent { Again::Elsewhere } else { Again::Never };
                Err((Failed::Broken(broken.to_string()), again))
            }
        }
    }

    /// Closes connections that are kept for requests to come, and says how many there were.
    fn close_idle(&self) -> usize {
        self.shelves.iter().map(Shelf::close_idle).sum()
    }

    /// Closes connections of a worker that nobody has used for long, and those that the server has closed.
    pub(super) fn tidy(&self, worker: usize, now: Instant) {
        if let Some(shelf) = self.shelves.get(worker) {
            shelf.tidy(now);
        }
    }

    /// What a request over HTTP/2 is sent over: a stream of a connection of this worker, of a new one, or of another worker's.
    async fn open(&self, manner: Manner, attempt: &Attempt<'_>) -> Result<Opened, (Failed, Again)> {
        let Some(shelf) = self.shelves.get(manner.worker) else {
            return Err((Failed::Unreachable("there is no such worker".to_owned()), Again::Elsewhere));
        };
        let mut granted = None;
        let (slot, _connecting) = loop {
            // A health check has a connection of its own, for which nobody queues.
            let is_health_check = manner.worker >= self.workers().len();
            let is_in_turn = is_health_check || granted.is_some() || !self.limit.has_queue();
            if let Some(stream) = is_in_turn.then(|| shelf.stream()).flatten() {
                return Ok(Opened::Stream(stream));
            }
            // Whoever comes meanwhile waits for this connection instead of making another, and hears when there is none.
            let since = Instant::now();
            let Ok(connecting) = timeout(manner.connect_timeout, shelf.connecting.lock()).await else {
                return Err((late(manner.connect_timeout).into(), Again::Elsewhere));
            };
            if let Some(stream) = is_in_turn.then(|| shelf.stream()).flatten() {
                return Ok(Opened::Stream(stream));
            }
            if self.is_out_of_reach_since(since) {
                let why = "no connection, neither for another request".to_owned();
                return Err((Failed::Unreachable(why), Again::Elsewhere));
            }
            if let Some(slot) = granted.take() {
                break (slot, connecting);
            }
            let grant = match self.acquire_now(manner, Want::Stream) {
                Some(Grant::Connection(Lease { slot, .. })) => break (slot, connecting),
                Some(grant) => grant,
                None => {
                    drop(connecting);
                    Box::pin(self.acquire_later(manner, Want::Stream, attempt)).await?
                }
            };
            match grant {
                Grant::Stream(stream) => return Ok(Opened::Stream(stream)),
                Grant::Connection(lease) => granted = Some(lease.slot),
            }
        };
        let stream = match self.connect(manner).await {
            Ok(stream) => stream,
            Err(error) => return Err((error.into(), Again::Elsewhere)),
        };
        if stream.has_agreed_on(b"http/1.1") {
            // It has another opinion than before.
            return Ok(Opened::Http1(stream, slot));
        }
        let shared = match Shared::over(stream, manner.connect_timeout, slot, &self.limit).await {
            Ok(shared) => shared,
            Err(why) => return Err((Failed::Unreachable(why), Again::Elsewhere)),
        };
        let stream = shared.stream();
        shelf.share(shared);
        // The rest of its streams is for those who wait.
        self.limit.freed();
        match stream {
            Some(stream) => Ok(Opened::Fresh(stream)),
            None => Err((
                Failed::Unreachable("the server closed the connection at once".to_owned()),
                Again::Elsewhere,
            )),
        }
    }

    /// Passes a request on over HTTP/2. `first` is a stream that it has already.
    async fn pass_http2(
        &self,
        request: &mut Request<AskedBody>,
        manner: Manner,
        attempt: &Attempt<'_>,
        mut first: Option<SharedStream>,
    ) -> Passed {
        // What may have been begun with is tried once more, and nowhere else.
        let mut again = Again::Elsewhere;
        for _ in 0..TURNED_AWAY {
            let opened = match first.take() {
                Some(stream) => Opened::Stream(stream),
                None => match self.open(manner, attempt).await {
                    Ok(opened) => opened,
                    Err((failed, Again::Elsewhere)) => return Err((failed, again)),
                    Err(failed) => return Err(failed),
                },
            };
            let (is_fresh, SharedStream { mut sender, share }) = match opened {
                Opened::Stream(stream) => (false, stream),
                Opened::Fresh(stream) => (true, stream),
                Opened::Http1(stream, slot) => return self.pass_on(stream, request, attempt, slot).await,
            };
            name_host_in_target(request, &self.address);
            let (is_repeatable, copy) = (is_repeatable(request), Copied::of(request));
            let mut error = match sender.try_send_request(std::mem::take(request)).await {
                Ok(response) => {
                    let response = response.map(|body| PassedBody::Http2(Http2Body::of_server(body, share)));
                    return Ok((response, None));
                }
                Err(error) => error,
            };
            let unsent = error.take_message();
            let error = error.into_error();
            let is_unbegun = unsent.is_some() || is_unbegun(&error);
            if is_unbegun {
                // Nothing more is asked on a connection that is being closed, or that has too much to do.
                share.retire();
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
        let manner = Manner::of_health_check(worker, patience);
        let attempt = Attempt::default();
        let answered = match self.speaks_http2(false) {
            true => self.pass_http2(&mut request, manner, &attempt, None).await,
            false => self.pass_http1(&mut request, manner, &attempt).await,
        };
        answered.ok().map(|(response, _)| response.status())
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
pub(super) fn told(error: &hyper::Error) -> String {
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
