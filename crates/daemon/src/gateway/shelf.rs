//! Connections of one worker to one server: idle ones over HTTP/1, and shared ones over HTTP/2.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::body::AskedBody;
use super::connection_limit::{self, ConnectionLimit};
use super::http1::{Exchange, Stream};
use super::pool::{Server, told};

pub(super) type Limit = ConnectionLimit<Server>;
pub(super) type Slot = connection_limit::Slot<Server>;

/// Connections that nobody has used for so long are closed: most servers close theirs after a minute.
const FORGOTTEN: Duration = Duration::from_secs(50);
/// So many requests share a connection over HTTP/2, if the server takes as many at once.
const MOST_AT_ONCE: usize = 100;
/// How much of an answer over HTTP/2 is taken before its client has taken it.
const STREAM_WINDOW: u32 = 256 << 10;
/// The same of all answers on one connection: as much as there can be. They are those of many clients, and however many do not take
/// theirs, the others get theirs. It also bounds the small pieces that h2 puts up with on a connection.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A connection for itself.
    Connection,
    /// A stream of a shared connection, or the right to make one.
    Stream,
    /// Either: it is not known yet what the server speaks.
    Either,
    /// A stream of a shared connection, and nothing else.
    StreamOnly,
}

/// What a request gets.
pub(super) enum Grant {
    Connection(Lease),
    Stream(SharedStream),
}

/// The right to have a connection, and perhaps one that is idle. Health checks need no slot.
pub(super) struct Lease {
    pub(super) exchange: Option<Box<Exchange>>,
    pub(super) since: Instant,
    pub(super) slot: Option<Slot>,
}

impl Lease {
    /// For a connection that is yet to be made.
    pub(super) fn new(slot: Option<Slot>) -> Self {
        Self { exchange: None, since: Instant::now(), slot }
    }
}

/// Connections of one worker.
#[derive(Default)]
pub(super) struct Shelf {
    http1: Mutex<Vec<Idle>>,
    http2: Mutex<Vec<Shared>>,
    /// Held by the request that makes a connection over HTTP/2. Others wait for it instead of making another.
    pub(super) connecting: tokio::sync::Mutex<()>,
}

struct Idle {
    exchange: Box<Exchange>,
    since: Instant,
    slot: Slot,
}

impl Idle {
    fn is_forgotten(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.since) > FORGOTTEN
    }
}

impl Shelf {
    /// Keeps an idle connection.
    pub(super) fn put(&self, exchange: Box<Exchange>, since: Instant, slot: Slot) {
        self.http1.lock().push(Idle { exchange, since, slot });
    }

    /// The idle connection that was put here last. Its server may have closed it.
    pub(super) fn pop(&self, now: Instant) -> Option<Lease> {
        let mut kept = self.http1.lock();
        let mut idle = kept.pop();
        let mut forgotten = Vec::new();
        if idle.as_ref().is_some_and(|idle| idle.is_forgotten(now)) {
            // Those below are not all older: a connection that was put back unused keeps its time.
            forgotten.extend(idle.take());
            forgotten.extend(kept.extract_if(.., |idle| idle.is_forgotten(now)));
            idle = kept.pop();
        }
        drop(kept);
        // They are closed when nothing is locked any more.
        drop(forgotten);
        let Idle { exchange, since, slot } = idle?;
        Some(Lease { exchange: Some(exchange), since, slot: Some(slot) })
    }

    /// A stream of a shared connection that has room for one more request.
    pub(super) fn stream(&self) -> Option<SharedStream> {
        let mut kept = self.http2.lock();
        kept.retain(|shared| !shared.is_over());
        kept.iter().find_map(Shared::stream)
    }

    /// Whether a shared connection has room for one more request.
    pub(super) fn has_room(&self) -> bool {
        self.http2.lock().iter().any(Shared::has_room)
    }

    /// Keeps a shared connection.
    pub(super) fn share(&self, shared: Shared) {
        self.http2.lock().push(shared);
    }

    /// Closes one shared connection that no request uses, if there is one.
    pub(super) fn close_unused(&self) -> bool {
        let mut kept = self.http2.lock();
        kept.retain(|shared| !shared.is_over());
        let unused = kept.iter().position(|shared| shared.state.requests.load(Ordering::Acquire) == 0);
        unused.map(|at| kept.swap_remove(at)).is_some()
    }

    /// Connections that no request uses.
    pub(super) fn idle_count(&self) -> usize {
        let is_unused =
            |shared: &&Shared| !shared.is_over() && shared.state.requests.load(Ordering::Acquire) == 0;
        let unused = self.http2.lock().iter().filter(is_unused).count();
        self.http1.lock().len() + unused
    }

    /// Closes idle connections over HTTP/1, and says how many there were.
    pub(super) fn close_idle(&self) -> usize {
        let idle = std::mem::take(&mut *self.http1.lock());
        idle.len()
    }

    /// Closes connections that nobody has used for long, and those that the server has closed.
    pub(super) fn tidy(&self, now: Instant) {
        let is_of_no_use = |idle: &mut Idle| {
            let is_of_no_use = idle.is_forgotten(now) || !idle.exchange.is_usable(false);
            idle.exchange.relax();
            is_of_no_use
        };
        // They are closed when nothing is locked any more.
        let closed: Vec<Idle> = {
            let mut kept = self.http1.lock();
            kept.extract_if(.., is_of_no_use).collect()
        };
        drop(closed);
        // One is kept, however few use it.
        let mut is_first = true;
        self.http2.lock().retain(|shared| {
            !shared.is_over()
                && (std::mem::take(&mut is_first) || shared.state.requests.load(Ordering::Acquire) > 0)
        });
    }
}

/// A connection for many requests at once.
pub(super) struct Shared {
    sender: http2::SendRequest<AskedBody>,
    state: Arc<SharedState>,
}

/// What a shared connection and its streams know of each other.
pub(super) struct SharedState {
    /// Requests that have no whole answer yet.
    requests: AtomicUsize,
    /// How many the server takes at once.
    most: AtomicUsize,
    /// Whether no more requests are sent over it.
    is_retired: AtomicBool,
    limit: Arc<Limit>,
}

impl SharedState {
    /// The server has said how many requests it takes at once.
    fn takes(&self, most: usize) {
        let most = most.clamp(1, MOST_AT_ONCE);
        if self.most.swap(most, Ordering::Relaxed) < most {
            self.limit.freed();
        }
    }
}

impl Shared {
    /// Over a new connection, which holds its slot until it is closed.
    pub(super) async fn over(
        stream: Stream,
        patience: Duration,
        slot: Option<Slot>,
        limit: &Arc<Limit>,
    ) -> Result<Self, String> {
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
        let state = Arc::new(SharedState {
            requests: AtomicUsize::new(0),
            most: AtomicUsize::new(1),
            is_retired: AtomicBool::new(false),
            limit: Arc::clone(limit),
        });
        state.takes(connection.current_max_send_streams());
        let told = Arc::clone(&state);
        tokio::spawn(async move {
            poll_fn(|context| {
                let polled = connection.as_mut().poll(context).map(drop);
                told.takes(connection.current_max_send_streams());
                polled
            })
            .await;
            drop(connection);
            drop(slot);
        });
        Ok(Self { sender, state })
    }

    /// Whether it is of no use for further requests.
    fn is_over(&self) -> bool {
        self.sender.is_closed() || self.state.is_retired.load(Ordering::Acquire)
    }

    fn has_room(&self) -> bool {
        let state = &self.state;
        !self.is_over() && state.requests.load(Ordering::Acquire) < state.most.load(Ordering::Relaxed)
    }

    /// A stream for one more request, if there is room.
    pub(super) fn stream(&self) -> Option<SharedStream> {
        if self.is_over() {
            return None;
        }
        let most = self.state.most.load(Ordering::Relaxed);
        let more = |requests: usize| (requests < most).then_some(requests + 1);
        self.state.requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(SharedStream { sender: self.sender.clone(), share: Share(Arc::clone(&self.state)) })
    }
}

/// A stream of a shared connection.
pub(super) struct SharedStream {
    pub(super) sender: http2::SendRequest<AskedBody>,
    pub(super) share: Share,
}

/// A place for a request on a connection that others use too.
pub(super) struct Share(Arc<SharedState>);

impl Share {
    /// No more requests are sent over its connection.
    pub(super) fn retire(&self) {
        self.0.is_retired.store(true, Ordering::Release);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::AcqRel);
        self.0.limit.freed();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// A request that was handed a connection of an earlier time and did not use it puts it back on top of newer ones.
    #[tokio::test]
    async fn a_forgotten_connection_that_was_put_back_does_not_close_newer_ones() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limit = Arc::new(Limit::new(Weak::new(), 8, 0));
        let shelf = Shelf::default();
        let begun = Instant::now();
        for age in [60, 1, 55, 2, 51] {
            let stream = Stream::Plain(TcpStream::connect(address).await.unwrap());
            let now = begun + Duration::from_secs(60);
            shelf.put(Exchange::new(stream), now - Duration::from_secs(age), limit.try_slot().unwrap());
        }
        let now = begun + Duration::from_secs(60);
        let age = |lease: Option<Lease>| lease.map(|lease| (now - lease.since).as_secs());
        assert_eq!([shelf.pop(now), shelf.pop(now), shelf.pop(now)].map(age), [Some(2), Some(1), None]);
        assert_eq!(limit.open(), 0, "all are closed");
    }
}
