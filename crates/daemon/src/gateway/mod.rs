//! The gateway: a reverse proxy with the limiters in its path.
//!
//! One thread accepts, and gives each connection to the worker that has the fewest. A worker is a thread with a runtime of
//! its own, in which a connection stays for its life, with its own connections to servers: nobody waits for a lock.

mod alarm;
mod body;
mod calm;
mod connection;
mod connection_limit;
mod counts;
mod doing;
mod fields;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod health;
mod http1;
mod interim;
mod kept;
pub(crate) mod own_service;
mod pool;
mod problem;
mod proxy_protocol;
mod rejection_log;
mod request;
mod shelf;
mod site;
mod stream;
mod tls;
mod track;
mod tunnel;

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tollgate::Limiter;
use tollgate_core::policy::Policy;

pub(crate) use self::counts::{BOUNDS, Counts};
pub(crate) use self::pool::ServerLoad;
use self::rejection_log::RejectionLog;
use self::site::{Site, Watch};
pub(crate) use self::tls::Certificates;
use self::tls::Trust;
use crate::access_log::AccessLog;
use crate::caller_labels::CallerLabels;
use crate::files;
use crate::seldom::Seldom;
use crate::store::AnyStore;

/// How long those are seen to who came just before the end.
const MOMENT: Duration = Duration::from_millis(100);
/// What a client still sends after its answer is taken for so long, lest the answer is lost with it; and for so long nothing comes
/// before it is left.
const LINGERS: Duration = Duration::from_secs(10);
const FALLS_SILENT: Duration = Duration::from_secs(1);
/// How often it is looked after connections that nobody uses.
const TIDY: Duration = Duration::from_secs(5);

/// What all workers share.
pub(crate) struct Shared {
    pub(crate) limiter: Limiter<AnyStore>,
    pub(crate) site: ArcSwap<Site>,
    pub(crate) watch: Arc<Watch>,
    tls: ArcSwapOption<TlsAcceptor>,
    /// What servers have to show, unless the policy says otherwise.
    trust: Trust,
    /// Rings when clients are told to go elsewhere, or to connect anew.
    notice: CancellationToken,
    /// Rings when no more connections are taken, and those that are there end when they can.
    drain: CancellationToken,
    /// Rings when those that have not ended are waited for no longer.
    cut: CancellationToken,
    workers: usize,
    pub(crate) room: Arc<Room>,
    /// The most connections to all servers together, by the limit of open files.
    upstream_connections: usize,
    /// Where it is seen to all that is no request.
    runtime: tokio::runtime::Handle,
}

/// Room for connections: so many that there are files left for connections with servers.
pub(crate) struct Room {
    pub(crate) whole: usize,
    left: Arc<Semaphore>,
}

impl Room {
    fn for_connections(whole: usize) -> Self {
        let whole = whole.min(Semaphore::MAX_PERMITS);
        Self { whole, left: Arc::new(Semaphore::new(whole)) }
    }

    /// Whether somebody may be waiting until others have gone.
    fn is_full(&self) -> bool {
        self.left.available_permits() == 0
    }

    /// Waits until there is some. None: there will not be any.
    async fn some(&self) -> Option<OwnedSemaphorePermit> {
        static TOLD: Seldom = Seldom::new();
        if self.is_full() && TOLD.is_due() {
            tracing::error!(
                "there are {} connections, and no more are taken until some have ended; those that nobody uses are closed. Raise the limit of open files (ulimit -n) if this goes on",
                self.whole
            );
        }
        Arc::clone(&self.left).acquire_owned().await.ok()
    }

    fn some_at_once(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.left).try_acquire_owned().ok()
    }
}

/// A connection that was accepted, and the room that it takes.
struct Accepted {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    room: OwnedSemaphorePermit,
}

/// One thread.
struct Worker {
    number: usize,
    shared: Arc<Shared>,
}

/// A gateway at work.
pub(crate) struct Gateway {
    pub(crate) shared: Arc<Shared>,
    hands: Vec<Hand>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// The way to a worker.
#[derive(Clone)]
struct Hand {
    connections: UnboundedSender<Accepted>,
    /// Connections that it has.
    open: Arc<AtomicUsize>,
    runtime: tokio::runtime::Handle,
}

impl Gateway {
    /// Starts workers. Nothing is listened to yet.
    pub(crate) fn start(
        limiter: Limiter<AnyStore>,
        policy: Policy,
        certificates: Certificates,
        log: Option<AccessLog>,
        labels: CallerLabels,
        workers: usize,
    ) -> io::Result<Self> {
        let connections = files::connections_within(files::raise_limit(), workers);
        let room = Room::for_connections(connections);
        let trust = Trust::of_machine()?;
        let shared = Arc::new(Shared {
            limiter,
            site: ArcSwap::from_pointee(Site::new(policy, workers, None, &certificates, &trust, connections)),
            watch: Arc::new(Watch {
                counts: Counts::default(),
                log,
                rejections: RejectionLog::new(labels),
                is_over: AtomicBool::new(false),
            }),
            tls: ArcSwapOption::from_pointee(certificates.acceptor),
            trust,
            notice: CancellationToken::new(),
            drain: CancellationToken::new(),
            cut: CancellationToken::new(),
            workers,
            room: Arc::new(room),
            upstream_connections: connections,
            runtime: tokio::runtime::Handle::try_current().map_err(io::Error::other)?,
        });
        let (mut hands, mut threads) = (Vec::new(), Vec::new());
        for number in 0..workers {
            let (connections, taken) = unbounded_channel();
            let open = Arc::<AtomicUsize>::default();
            let worker = Arc::new(Worker { number, shared: Arc::clone(&shared) });
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let counted = Arc::clone(&open);
            let handle = runtime.handle().clone();
            let thread = std::thread::Builder::new().name(format!("gateway-{number}"));
            let cut = shared.cut.clone();
            threads.push(thread.spawn(move || {
                runtime.block_on(cut.run_until_cancelled(work(worker, taken, counted)));
            })?);
            hands.push(Hand { connections, open, runtime: handle });
        }
        shared.look_after_servers();
        Ok(Self { shared, hands, threads })
    }

    /// Where each worker works.
    pub(crate) fn runtimes(&self) -> Vec<tokio::runtime::Handle> {
        self.hands.iter().map(|hand| hand.runtime.clone()).collect()
    }

    /// Takes connections until the gateway ends: also those that were made before, and that nobody had taken yet.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        let counts = &self.shared.watch.counts;
        let mut pause = Duration::ZERO;
        let mut ended = pin!(async {
            self.shared.drain.cancelled().await;
            tokio::time::sleep(MOMENT).await;
        });
        loop {
            let accepted = async { (self.shared.room.some().await, listener.accept().await) };
            let (room, accepted) = tokio::select! {
                biased;
                () = ended.as_mut() => break,
                accepted = accepted => accepted,
            };
            let Some(room) = room else { return };
            match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
                Ok((stream, peer)) => {
                    pause = Duration::ZERO;
                    self.hand_over(Accepted { stream, peer, room });
                }
                // The client was faster to go than we to take it.
                Err(error) if is_of_one_connection(&error) => {}
                // No more files, or no memory: that passes when others end. Asking again at once does not help.
                Err(error) => {
                    counts.not_accepted.fetch_add(1, Ordering::Relaxed);
                    if pause.is_zero() {
                        tracing::error!(%error, "no connection can be accepted; raise the limit of open files (ulimit -n) if this goes on");
                    }
                    if pool::is_out_of_files(&error) {
                        self.shared.site.load().close_idle();
                    }
                    pause = (pause * 2).clamp(Duration::from_millis(5), Duration::from_secs(1));
                    tokio::time::sleep(pause).await;
                }
            }
        }
        // Those that wait to be taken would be broken with the listener.
        let Ok(listener) = listener.into_std() else { return };
        while let Some(room) = self.shared.room.some_at_once()
            && let Ok((stream, peer)) = listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            self.hand_over(Accepted { stream, peer, room });
        }
    }

    /// Gives a connection to the worker that has the fewest.
    fn hand_over(&self, accepted: Accepted) {
        self.shared.watch.counts.accepted.fetch_add(1, Ordering::Relaxed);
        if let Some(hand) = self.hands.iter().min_by_key(|hand| hand.open.load(Ordering::Relaxed)) {
            hand.open.fetch_add(1, Ordering::Relaxed);
            // A worker that is not there any more takes none, and closes none either.
            let _ = hand.connections.send(accepted);
        }
    }

    /// Takes no more connections, and waits until those that are there have ended, but not for longer than that, nor when it is
    /// hurried. The number is that of requests that had not.
    pub(crate) async fn drain(self, patience: Duration, hurried: impl Future<Output = ()>) -> u64 {
        let shared = self.shared;
        shared.drain();
        drop(self.hands);
        let threads = tokio::task::spawn_blocking(move || {
            self.threads.into_iter().for_each(|thread| drop(thread.join()))
        });
        let mut threads = pin!(threads);
        let is_late = tokio::select! {
            biased;
            _ = threads.as_mut() => false,
            () = tokio::time::sleep(patience) => true,
            () = hurried => true,
        };
        let left = shared.watch.counts.in_flight.load(Ordering::Relaxed);
        if is_late {
            // What is cut off now is written down like all else.
            shared.watch.is_over.store(true, Ordering::Relaxed);
            shared.cut.cancel();
            let _ = tokio::time::timeout(MOMENT, threads).await;
        }
        if let Some(log) = &shared.watch.log {
            log.flush();
        }
        left
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

impl Shared {
    /// Has clients told that it ends: each answer is the last on its connection.
    pub(crate) fn give_notice(&self) {
        self.notice.cancel();
    }

    /// Has connections end when they can.
    pub(crate) fn drain(&self) {
        self.notice.cancel();
        self.drain.cancel();
    }

    /// Has requests that begin from now on treated by another policy.
    pub(crate) fn put_to_work(self: &Arc<Self>, policy: Policy, certificates: Certificates) {
        let before = self.site.load_full();
        let connections = self.upstream_connections;
        let site = Site::new(policy, self.workers, Some(&before), &certificates, &self.trust, connections);
        self.site.store(Arc::new(site));
        self.tls.store(certificates.acceptor.map(Arc::new));
        before.is_replaced.cancel();
        self.look_after_servers();
    }

    /// Looks after the servers of the policy at work, as that says and for as long as it is.
    fn look_after_servers(&self) {
        let site = self.site.load();
        for server in site.upstreams.iter().flat_map(|upstream| &upstream.servers) {
            self.runtime.spawn(health::look_for(server.address.clone()));
        }
        for upstream in &site.upstreams {
            for server in &upstream.servers {
                match &upstream.policy.health {
                    Some(health) => {
                        let looked_after = health::look_after(Arc::clone(server), health.clone());
                        let until = site.is_replaced.clone().cancelled_owned();
                        self.runtime.spawn(async move {
                            tokio::select! {
                                () = looked_after => {}
                                () = until => {}
                            }
                        });
                    }
                    // Nobody asks any more.
                    None => drop(server.found(true)),
                }
            }
        }
    }
}

/// Closes connections with servers that are of no more use.
async fn tidy(worker: Arc<Worker>) {
    loop {
        tokio::time::sleep(TIDY).await;
        let site = worker.shared.site.load_full();
        for server in site.upstreams.iter().flat_map(|upstream| &upstream.servers) {
            server.tidy(worker.number, Instant::now());
        }
    }
}

/// Serves connections until no more come and the last has ended.
async fn work(worker: Arc<Worker>, mut taken: UnboundedReceiver<Accepted>, open: Arc<AtomicUsize>) {
    /// Counts a connection for as long as it is there.
    struct Open(Arc<AtomicUsize>, Arc<Shared>);
    impl Drop for Open {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
            self.1.watch.counts.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let tracker = tokio_util::task::TaskTracker::new();
    tokio::spawn(tidy(Arc::clone(&worker)));
    while let Some(Accepted { stream, peer, room }) = taken.recv().await {
        worker.shared.watch.counts.open.fetch_add(1, Ordering::Relaxed);
        let counted = Open(Arc::clone(&open), Arc::clone(&worker.shared));
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let worker = Arc::clone(&worker);
        tracker.spawn(async move {
            connection::serve(worker, stream, peer).await;
            drop((counted, room));
        });
    }
    tracker.close();
    tracker.wait().await;
    // What was upgraded goes on without its connection.
    while worker.shared.watch.counts.in_flight.load(Ordering::Relaxed) > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
