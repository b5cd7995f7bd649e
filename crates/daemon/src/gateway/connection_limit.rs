//! Limits the connections to one server, and queues the requests for which none is free.
//!
//! A [`Slot`] is the right to have one connection. While slots are free nothing here takes a lock. When all are in use,
//! requests wait in a bounded queue, first in, first out. Whoever frees something that a request can use (a slot, an idle
//! connection, a stream of a shared connection) makes it visible and then calls [`ConnectionLimit::freed`], which hands it to
//! the first request in the queue: each thing that is freed wakes one request. A request that leaves the queue gives its
//! place back, and passes on what it was handed in the same moment.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::counts::Durations;

/// Where requests in the queue get their connections from.
pub(super) trait Supply: Sized {
    /// What a request asks for.
    type Want: Copy;
    /// What it gets.
    type Grant;

    /// Takes something for a request, if there is something.
    fn take(&self, want: Self::Want) -> Option<Self::Grant>;
    /// Takes back what nobody needs after all.
    fn put_back(&self, grant: Self::Grant);
    /// What a request behind the first may get, if the first can make no use of it.
    fn out_of_turn(want: Self::Want) -> Option<Self::Want>;
}

/// Why a request got no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Busy {
    /// All connections are in use, and the queue is full.
    QueueFull,
    /// No connection became free in time.
    QueueTimeout,
}

impl Busy {
    /// What happened, for logs.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::QueueFull => "all connections to the server are in use, and the queue is full",
            Self::QueueTimeout => "all connections to the server are in use, and none became free in time",
        }
    }
}

/// The limit of connections to one server, and the queue of those who wait for one.
pub(super) struct ConnectionLimit<S: Supply> {
    supply: Weak<S>,
    max_connections: AtomicUsize,
    max_queue: AtomicUsize,
    open: AtomicUsize,
    /// The length of the queue, for those who only want to know whether there is one.
    queued: AtomicUsize,
    queue: Mutex<Queue<S>>,
    /// Calls of `serve` that have not been seen to.
    calls: AtomicUsize,
    rejected_full: AtomicU64,
    rejected_late: AtomicU64,
    waits: Durations,
}

/// Requests in the order in which they came.
struct Queue<S: Supply> {
    waiters: BTreeMap<u64, Waiter<S>>,
    next: u64,
}

struct Waiter<S: Supply> {
    want: S::Want,
    granted: oneshot::Sender<S::Grant>,
}

impl<S: Supply> ConnectionLimit<S> {
    pub(super) fn new(supply: Weak<S>, max_connections: usize, max_queue: usize) -> Self {
        Self {
            supply,
            max_connections: AtomicUsize::new(max_connections),
            max_queue: AtomicUsize::new(max_queue),
            open: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            queue: Mutex::new(Queue { waiters: BTreeMap::new(), next: 0 }),
            calls: AtomicUsize::new(0),
            rejected_full: AtomicU64::new(0),
            rejected_late: AtomicU64::new(0),
            waits: Durations::default(),
        }
    }

    /// Changes the limits. Requests in the queue stay there; connections above the limit end when their requests do.
    pub(super) fn set(&self, max_connections: usize, max_queue: usize) {
        self.max_connections.store(max_connections, Ordering::Release);
        self.max_queue.store(max_queue, Ordering::Release);
        self.freed();
    }

    /// The most connections.
    pub(super) fn max_connections(&self) -> usize {
        self.max_connections.load(Ordering::Acquire)
    }

    /// Connections that are open, or about to be.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    /// Requests in the queue.
    pub(super) fn queue_length(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Whether somebody waits. Whoever comes now has to wait behind them.
    pub(super) fn has_queue(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Whether there are more connections than there may be, since the limit was lowered.
    pub(super) fn is_exceeded(&self) -> bool {
        self.open() > self.max_connections()
    }

    /// Requests that were rejected, by reason.
    pub(super) fn rejections(&self) -> [(&'static str, u64); 2] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [("queue_full", read(&self.rejected_full)), ("queue_timeout", read(&self.rejected_late))]
    }

    /// How long requests have waited in the queue.
    pub(super) fn waits(&self) -> &Durations {
        &self.waits
    }

    /// The right to make a connection, if there is one left.
    pub(super) fn try_slot(self: &Arc<Self>) -> Option<Slot<S>> {
        let most = self.max_connections();
        let more = |open: usize| (open < most).then_some(open + 1);
        let taken = self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Slot(Arc::clone(self)))
    }

    /// Waits in the queue until there is something to use. Dropping the future leaves the queue.
    pub(super) async fn wait(self: &Arc<Self>, want: S::Want, patience: Duration) -> Result<S::Grant, Busy> {
        let since = Instant::now();
        let mut place = self.join(want)?;
        // Something may have been freed before anybody could see that this request waits.
        self.freed();
        let granted = match timeout(patience, &mut place.granted).await {
            Ok(granted) => granted.ok(),
            Err(_) => {
                place.granted.close();
                place.granted.try_recv().ok()
            }
        };
        self.waits.record(since.elapsed());
        if granted.is_none() {
            self.rejected_late.fetch_add(1, Ordering::Relaxed);
        }
        granted.ok_or(Busy::QueueTimeout)
    }

    fn join(self: &Arc<Self>, want: S::Want) -> Result<Place<S>, Busy> {
        let mut queue = self.queue.lock();
        if queue.waiters.len() >= self.max_queue.load(Ordering::Acquire) {
            self.rejected_full.fetch_add(1, Ordering::Relaxed);
            return Err(Busy::QueueFull);
        }
        let ticket = queue.next;
        queue.next += 1;
        let (sender, granted) = oneshot::channel();
        queue.waiters.insert(ticket, Waiter { want, granted: sender });
        self.queued.store(queue.waiters.len(), Ordering::Release);
        Ok(Place { limit: Arc::clone(self), ticket, granted })
    }

    /// Something that requests can use has been made visible: hands it to those who wait. It must not be called while a lock
    /// is held that [`Supply::take`] needs.
    pub(super) fn freed(&self) {
        // Either this sees that somebody waits, or they see what was freed.
        fence(Ordering::SeqCst);
        if self.has_queue()
            && let Some(supply) = self.supply.upgrade()
        {
            self.serve(&supply);
        }
    }

    /// Hands out whatever there is. One thread does so at a time, and sees to the calls that come meanwhile; those may also
    /// be its own, when it drops something.
    fn serve(&self, supply: &S) {
        if self.calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen = 1;
        loop {
            while let Some((waiter, grant)) = self.next_match(supply) {
                // One that has just left the queue takes nothing.
                if let Err(grant) = waiter.granted.send(grant) {
                    supply.put_back(grant);
                }
            }
            match self.calls.fetch_sub(seen, Ordering::AcqRel) - seen {
                0 => return,
                more => seen = more,
            }
        }
    }

    /// The first request in the queue that can be served, and what it gets.
    fn next_match(&self, supply: &S) -> Option<(Waiter<S>, S::Grant)> {
        let mut queue = self.queue.lock();
        let (&ticket, first) = queue.waiters.first_key_value()?;
        let (ticket, grant) = match supply.take(first.want) {
            Some(grant) => (ticket, grant),
            None => {
                let mut others = queue.waiters.iter();
                let (&ticket, want) =
                    others.find_map(|(ticket, waiter)| Some((ticket, S::out_of_turn(waiter.want)?)))?;
                (ticket, supply.take(want)?)
            }
        };
        let waiter = queue.waiters.remove(&ticket)?;
        self.queued.store(queue.waiters.len(), Ordering::Release);
        Some((waiter, grant))
    }
}

/// The right to have one connection. It is given back when it is dropped, and then the next in the queue has it.
pub(super) struct Slot<S: Supply>(Arc<ConnectionLimit<S>>);

impl<S: Supply> Drop for Slot<S> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.freed();
    }
}

/// A place in the queue.
struct Place<S: Supply> {
    limit: Arc<ConnectionLimit<S>>,
    ticket: u64,
    granted: oneshot::Receiver<S::Grant>,
}

impl<S: Supply> Drop for Place<S> {
    fn drop(&mut self) {
        self.granted.close();
        if let Ok(grant) = self.granted.try_recv() {
            // The client left in the moment in which it was served.
            if let Some(supply) = self.limit.supply.upgrade() {
                supply.put_back(grant);
            }
            return;
        }
        let mut queue = self.limit.queue.lock();
        if queue.waiters.remove(&self.ticket).is_some() {
            self.limit.queued.store(queue.waiters.len(), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    /// Connections that are numbers.
    struct Numbers {
        limit: Arc<ConnectionLimit<Self>>,
        idle: Mutex<Vec<Connection>>,
    }

    struct Connection {
        number: usize,
        slot: Slot<Numbers>,
    }

    impl Supply for Numbers {
        type Want = ();
        type Grant = Connection;

        fn take(&self, (): ()) -> Option<Connection> {
            let idle = self.idle.lock().pop();
            idle.or_else(|| Some(Connection { slot: self.limit.try_slot()?, number: self.limit.open() }))
        }

        fn put_back(&self, connection: Connection) {
            self.idle.lock().push(connection);
            self.limit.freed();
        }

        fn out_of_turn((): ()) -> Option<()> {
            None
        }
    }

    impl Numbers {
        fn new(max_connections: usize, max_queue: usize) -> Arc<Self> {
            Arc::new_cyclic(|numbers| Self {
                limit: Arc::new(ConnectionLimit::new(numbers.clone(), max_connections, max_queue)),
                idle: Mutex::default(),
            })
        }

        fn wait(&self) -> Pin<Box<dyn Future<Output = Result<Connection, Busy>> + Send>> {
            let limit = Arc::clone(&self.limit);
            Box::pin(async move { limit.wait((), LONG).await })
        }
    }

    fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + Send>>) -> Poll<T> {
        future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    fn in_runtime(test: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { test() });
    }

    #[test]
    fn each_connection_that_is_freed_goes_to_the_request_that_has_waited_longest() {
        in_runtime(|| {
            let numbers = Numbers::new(1, 3);
            let first = numbers.take(()).unwrap();
            let mut waiting = [(); 3].map(|()| numbers.wait());
            assert!(waiting.iter_mut().all(|wait| poll(wait).is_pending()));
            assert!(matches!(poll(&mut numbers.wait()), Poll::Ready(Err(Busy::QueueFull))));
            let number = first.number;
            numbers.put_back(first);
            // The same connection, to one of them.
            let [a, b, c] = &mut waiting;
            let Poll::Ready(Ok(second)) = poll(a) else { panic!("the first was not served") };
            assert_eq!(second.number, number);
            assert!(poll(b).is_pending() && poll(c).is_pending());
            // One that is closed leaves room for a new one.
            drop(second);
            let Poll::Ready(Ok(third)) = poll(b) else { panic!("the second was not served") };
            assert!(poll(c).is_pending());
            drop(third);
            assert!(matches!(poll(c), Poll::Ready(Ok(_))));
            assert_eq!((numbers.limit.open(), numbers.limit.queue_length()), (0, 0));
            assert_eq!(numbers.limit.rejections(), [("queue_full", 1), ("queue_timeout", 0)]);
        });
    }

    #[test]
    fn a_request_that_leaves_gives_its_place_and_its_connection_to_the_next() {
        in_runtime(|| {
            let numbers = Numbers::new(1, 2);
            let held = numbers.take(()).unwrap();
            let (mut a, mut b) = (numbers.wait(), numbers.wait());
            assert!(poll(&mut a).is_pending() && poll(&mut b).is_pending());
            drop(a);
            let mut c = numbers.wait();
            assert!(poll(&mut c).is_pending(), "there is room in the queue again");
            numbers.put_back(held);
            // It was served, and has not heard of it when it leaves.
            drop(b);
            assert!(matches!(poll(&mut c), Poll::Ready(Ok(Connection { number: 1, .. }))));
            assert_eq!((numbers.limit.open(), numbers.limit.queue_length()), (0, 0));
        });
    }

    #[test]
    fn a_request_waits_no_longer_than_it_may() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let numbers = Numbers::new(1, 2);
        let held = numbers.take(()).unwrap();
        let late = runtime.block_on(numbers.limit.wait((), Duration::ZERO));
        assert!(matches!(late, Err(Busy::QueueTimeout)));
        assert_eq!(numbers.limit.queue_length(), 0);
        assert_eq!(numbers.limit.rejections(), [("queue_full", 0), ("queue_timeout", 1)]);
        drop(held);
    }

    #[test]
    fn a_higher_limit_serves_those_who_wait() {
        in_runtime(|| {
            let numbers = Numbers::new(1, 9);
            let held = numbers.take(()).unwrap();
            let mut waiting = [(); 3].map(|()| numbers.wait());
            assert!(waiting.iter_mut().all(|wait| poll(wait).is_pending()));
            numbers.limit.set(3, 9);
            let served: Vec<_> = waiting.iter_mut().map(poll).collect();
            assert_eq!(served.iter().map(Poll::is_ready).collect::<Vec<_>>(), [true, true, false]);
            numbers.limit.set(1, 9);
            assert!(numbers.limit.is_exceeded());
            drop(served);
            assert!(poll(&mut waiting[2]).is_pending(), "one is still in use");
            drop(held);
            assert!(poll(&mut waiting[2]).is_ready());
        });
    }

    /// Threads that take connections, give them back or close them, and leave the queue: there are never too many, and nobody
    /// is forgotten.
    #[test]
    fn stress_no_request_is_forgotten_in_the_queue() {
        const MOST: usize = 3;
        let numbers = Numbers::new(MOST, 1_000);
        let in_use = AtomicUsize::new(0);
        let asks = |seed: u64| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            let mut random = seed;
            runtime.block_on(async {
                for _ in 0..20_000 {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let choice = random >> 60;
                    let now = if numbers.limit.has_queue() { None } else { numbers.take(()) };
                    let connection = match now {
                        Some(connection) => connection,
                        // Some leave at once.
                        None if choice < 2 => {
                            let _ = numbers.limit.wait((), Duration::ZERO).await;
                            continue;
                        }
                        None if choice < 4 => {
                            drop(poll(&mut numbers.wait()));
                            continue;
                        }
                        None => numbers.wait().await.ok().unwrap(),
                    };
                    assert!(in_use.fetch_add(1, Ordering::SeqCst) < MOST);
                    if choice & 1 == 0 {
                        std::thread::yield_now();
                    }
                    in_use.fetch_sub(1, Ordering::SeqCst);
                    match choice % 3 {
                        0 => drop(connection.slot),
                        _ => numbers.put_back(connection),
                    }
                }
            });
        };
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let asks = &asks;
                scope.spawn(move || asks(seed));
            }
        });
        assert_eq!(numbers.limit.queue_length(), 0);
        assert_eq!(numbers.limit.open(), numbers.idle.lock().len());
    }
}
