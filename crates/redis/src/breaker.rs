//! The breaker: a store that fails costs nothing, and is asked again by one probe at a time, not by callers.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::Notify;

/// Whether a part of the store is asked at all.
///
/// A failure, or an answer that comes too late, counts two; a success takes one back. At ten the breaker opens: after
/// five failures in a row, or when more than a third of all calls go on failing.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    open: AtomicBool,
    score: AtomicU32,
    tripped: Notify,
}

const FAILURE: u32 = 2;
const OPENS_AT: u32 = 10;

impl Breaker {
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn succeeded(&self) {
        if self.score.load(Ordering::Relaxed) > 0 {
            let _ =
                self.score.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |score| score.checked_sub(1));
        }
    }

    pub(crate) fn failed(&self) {
        if self.score.fetch_add(FAILURE, Ordering::AcqRel) + FAILURE >= OPENS_AT {
            self.open();
        }
    }

    /// Opens at once.
    pub(crate) fn open(&self) {
        if !self.open.swap(true, Ordering::AcqRel) {
            self.tripped.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        self.score.store(0, Ordering::Release);
        self.open.store(false, Ordering::Release);
    }

    /// Waits until the breaker opens.
    pub(crate) async fn opened(&self) {
        loop {
            self.tripped.notified().await;
            // It may have been told of an opening that is over.
            if self.is_open() {
                return;
            }
        }
    }
}
