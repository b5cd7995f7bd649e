//! What a connection is doing: requests in progress, and clients that do not take what is there for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What one connection is doing, as its requests tell.
#[derive(Debug)]
pub(super) struct Doing {
    /// Requests in progress.
    pub(super) requests: AtomicU32,
    /// Requests that there have been.
    pub(super) served: AtomicU64,
    /// Whether it speaks another protocol from here on.
    pub(super) is_upgraded: AtomicBool,
    /// Answers that come in many pieces.
    streaming: Mutex<Vec<Arc<Progress>>>,
    begun: Instant,
}

impl Default for Doing {
    fn default() -> Self {
        Self {
            requests: AtomicU32::new(0),
            served: AtomicU64::new(0),
            is_upgraded: AtomicBool::new(false),
            streaming: Mutex::default(),
            begun: Instant::now(),
        }
    }
}

/// Since when a client does not take what is there for it: milliseconds from the beginning of the connection, and one.
/// 0: it is being waited for the server.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU64);

/// An answer that comes in many pieces, for as long as it does.
#[derive(Debug)]
pub(super) struct Streaming {
    progress: Arc<Progress>,
    doing: Arc<Doing>,
}

impl Progress {
    pub(super) fn streaming(doing: &Arc<Doing>) -> Streaming {
        let progress = Arc::<Self>::default();
        doing.streaming.lock().push(Arc::clone(&progress));
        let streaming = Streaming { progress, doing: Arc::clone(doing) };
        streaming.is_waiting_for_client();
        streaming
    }
}

impl Streaming {
    pub(super) fn is_waiting_for_server(&self) {
        self.progress.0.store(0, Ordering::Relaxed);
    }

    pub(super) fn is_waiting_for_client(&self) {
        let since = u64::try_from(self.doing.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.progress.0.store(since + 1, Ordering::Relaxed);
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.doing.streaming.lock().retain(|other| !Arc::ptr_eq(other, &self.progress));
    }
}

impl Doing {
    pub(super) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Whether a client has not taken for so long what is there for it.
    pub(super) fn is_stuck(&self, patience: Duration) -> bool {
        let now = self.begun.elapsed();
        self.streaming.lock().iter().any(|progress| match progress.0.load(Ordering::Relaxed) {
            0 => false,
            since => now.saturating_sub(Duration::from_millis(since - 1)) > patience,
        })
    }
}
