//! What a connection is doing: requests in progress, and clients that do not take what is there for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::alarm::Alarm;
use super::body::Passed;
use super::interim::Interim;
use super::site::Times;

/// What one connection is doing, as its requests tell.
pub(super) struct Doing {
    /// Requests in progress.
    pub(super) requests: AtomicU32,
    /// Requests that there have been.
    pub(super) served: AtomicU64,
    /// Bytes that were sent over HTTP/2, of whichever request: what it has been given of an answer it may send for long.
    pub(super) sent: AtomicU64,
    /// Since when the head of a request is on its way over HTTP/2: milliseconds from the beginning of the connection, and one. 0: none
    /// is.
    heading: AtomicU64,
    /// Answers that come in many pieces.
    streaming: Mutex<Vec<Arc<Progress>>>,
    /// What the last request has waited with, for the next.
    alarm: Mutex<Alarm>,
    /// Informational responses to the request in progress, over HTTP/1.1.
    pub(super) interim: Interim,
    begun: Instant,
}

impl Default for Doing {
    fn default() -> Self {
        Self {
            requests: AtomicU32::new(0),
            served: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            heading: AtomicU64::new(0),
            streaming: Mutex::default(),
            alarm: Mutex::default(),
            interim: Interim::default(),
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
    /// How long the client was waited for before that, in milliseconds.
    waited: AtomicU64,
    /// What it was sent meanwhile, or is about to be.
    bytes: AtomicU64,
    /// When it began, as `since`.
    begun: u64,
    /// The answer, with all that is held for it. None: it has ended, or was let go of.
    passed: Mutex<Option<Box<Passed>>>,
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
    pub(super) fn streaming(doing: &Arc<Doing>, passed: Box<Passed>) -> Streaming {
        let progress =
            Arc::new(Self { begun: doing.now(), passed: Mutex::new(Some(passed)), ..Self::default() });
        doing.streaming.lock().push(Arc::clone(&progress));
        Streaming { progress, doing: Arc::clone(doing) }
    }

    /// Why a client has had all the time that it may have, if it has.
    fn overdue(&self, now: u64, times: &Times) -> Option<&'static str> {
        let too_long = |bound: Duration, millis: u64| Duration::from_millis(millis) > bound;
        if times.whole.is_some_and(|whole| too_long(whole, now.saturating_sub(self.begun))) {
            return Some("the answer took longer than it may as a whole (timeouts.whole)");
        }
        let since = Some(self.since.load(Ordering::Relaxed)).filter(|since| *since > 0)?;
        let waits = now.saturating_sub(since);
        let in_all = self.waited.load(Ordering::Relaxed) + waits;
        let is_slow =
            too_long(times.body, waits) || too_long(times.earned(self.bytes.load(Ordering::Relaxed)), in_all);
        is_slow.then_some("the client did not take the answer in time")
    }
}

impl Streaming {
    pub(super) fn is_waiting_for_server(&self) {
        self.waits_from(0);
    }

    /// For so many bytes more to be taken.
    pub(super) fn is_waiting_for_client(&self, bytes: usize) {
        self.progress.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.waits_from(self.doing.now());
    }

    fn waits_from(&self, since: u64) {
        let before = self.progress.since.swap(since, Ordering::Relaxed);
        if before > 0 {
            let waited = self.doing.now().saturating_sub(before);
            self.progress.waited.fetch_add(waited, Ordering::Relaxed);
        }
    }
}

impl Streaming {
    /// The answer, if it was not let go of.
    pub(super) fn passed(&self) -> MutexGuard<'_, Option<Box<Passed>>> {
        self.progress.passed.lock()
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.doing.streaming.lock().retain(|other| !Arc::ptr_eq(other, &self.progress));
    }
}

impl Doing {
    /// The head of a request begins, unless it has.
    pub(super) fn begins_head(&self) {
        let _ = self.heading.compare_exchange(0, self.now(), Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn ends_head(&self) {
        self.heading.store(0, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn is_heading(&self) -> bool {
        self.heading.load(Ordering::Relaxed) != 0
    }

    /// Whether a head has not come in this time.
    pub(super) fn is_head_late(&self, patience: Duration) -> bool {
        match self.heading.load(Ordering::Relaxed) {
            0 => false,
            since => Duration::from_millis(self.now().saturating_sub(since)) > patience,
        }
    }

    /// An alarm that is perhaps set already, for as long as a request waits.
    pub(super) fn alarm(&self) -> Watching<'_> {
        Watching { alarm: std::mem::take(&mut *self.alarm.lock()), doing: self }
    }

    /// Milliseconds from the beginning of the connection, and one.
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1
    }

    pub(super) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Acquire) == 0
    }

    /// Lets go of answers that a client does not take, or too slowly, and of all that is held for them: permits, and connections
    /// to servers. Other answers on the connection go on. True if there are none.
    pub(super) fn is_stuck(&self, times: &Times) -> bool {
        let now = self.now();
        let streaming = self.streaming.lock();
        let stuck: Vec<(Box<Passed>, &'static str)> = streaming
            .iter()
            .filter_map(|progress| progress.overdue(now, times).map(|why| (progress, why)))
            .filter_map(|(progress, why)| Some((progress.passed.lock().take()?, why)))
            .collect();
        let all = self.requests.load(Ordering::Acquire) as usize;
        drop(streaming);
        let is_all = !stuck.is_empty() && stuck.len() >= all;
        for (passed, why) in stuck {
            passed.let_go(why);
        }
        is_all
    }
}
