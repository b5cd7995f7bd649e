//! What a connection is doing: requests in progress, and clients that do not take what is there for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate::Permit;

use super::alarm::Alarm;
use super::pool::Lent;
use crate::store::AnyStore;

/// What one connection is doing, as its requests tell.
pub(super) struct Doing {
    /// Requests in progress.
    pub(super) requests: AtomicU32,
    /// Requests that there have been.
    pub(super) served: AtomicU64,
    /// Whether it speaks another protocol from here on.
    pub(super) is_upgraded: AtomicBool,
    /// Answers that come in many pieces.
    streaming: Mutex<Vec<Arc<Progress>>>,
    /// What the last request has waited with, for the next.
    alarm: Mutex<Alarm>,
    begun: Instant,
}

impl Default for Doing {
    fn default() -> Self {
        Self {
            requests: AtomicU32::new(0),
            served: AtomicU64::new(0),
            is_upgraded: AtomicBool::new(false),
            streaming: Mutex::default(),
            alarm: Mutex::default(),
            begun: Instant::now(),
        }
    }
}

/// How an answer that comes in many pieces goes on.
#[derive(Default)]
pub(super) struct Progress {
    /// Since when a client does not take what is there for it: milliseconds from the beginning of the connection, and one.
    /// 0: it is being waited for the server.
    since: AtomicU64,
    /// What is held for the request meanwhile.
    held: Mutex<Held>,
}

/// What is held for a request until its answer has ended.
#[derive(Default)]
pub(super) struct Held {
    pub(super) permit: Option<Permit<AnyStore>>,
    /// The connection that the answer comes from.
    pub(super) lent: Option<Lent>,
}

/// An answer that comes in many pieces, for as long as it does.
pub(super) struct Streaming {
    progress: Arc<Progress>,
    doing: Arc<Doing>,
}

/// An alarm that goes back to its connection.
pub(super) struct Watching<'d> {
    pub(super) alarm: Alarm,
    doing: &'d Doing,
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        *self.doing.alarm.lock() = std::mem::take(&mut self.alarm);
    }
}

impl Progress {
    pub(super) fn streaming(doing: &Arc<Doing>, held: Held) -> Streaming {
        let progress = Arc::new(Self { since: AtomicU64::new(0), held: Mutex::new(held) });
        doing.streaming.lock().push(Arc::clone(&progress));
        let streaming = Streaming { progress, doing: Arc::clone(doing) };
        streaming.is_waiting_for_client();
        streaming
    }
}

impl Streaming {
    pub(super) fn is_waiting_for_server(&self) {
        self.progress.since.store(0, Ordering::Relaxed);
    }

    pub(super) fn is_waiting_for_client(&self) {
        let since = u64::try_from(self.doing.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.progress.since.store(since + 1, Ordering::Relaxed);
    }
}

impl Streaming {
    /// What is still held.
    pub(super) fn take(&self) -> Held {
        std::mem::take(&mut *self.progress.held.lock())
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.doing.streaming.lock().retain(|other| !Arc::ptr_eq(other, &self.progress));
    }
}

impl Doing {
    /// An alarm that is perhaps set already, for as long as a request waits.
    pub(super) fn alarm(&self) -> Watching<'_> {
        Watching { alarm: std::mem::take(&mut *self.alarm.lock()), doing: self }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Lets go of what is held for answers that a client has not taken for so long: its permits, and connections to servers.
    /// Other answers on the connection go on. True if there are none.
    pub(super) fn is_stuck(&self, patience: Duration) -> bool {
        let now = self.begun.elapsed();
        let stuck = |progress: &&Arc<Progress>| match progress.since.load(Ordering::Relaxed) {
            0 => false,
            since => now.saturating_sub(Duration::from_millis(since - 1)) > patience,
        };
        let streaming = self.streaming.lock();
        let held: Vec<Held> = streaming
            .iter()
            .filter(stuck)
            .map(|progress| std::mem::take(&mut *progress.held.lock()))
            .collect();
        let all = self.requests.load(Ordering::Acquire) as usize;
        drop(streaming);
        !held.is_empty() && held.len() >= all
    }
}
