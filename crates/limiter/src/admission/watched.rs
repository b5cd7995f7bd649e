//! What limiters that reject nobody would have done with a request, for logs.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

/// The decisions about one request of limiters that do not enforce them: limiters in the dark, and candidates.
///
/// With a store that answers at once they are complete when the request is admitted. With a shared store they are made
/// beside the request, and may come later. Clones share them.
#[derive(Clone, Default)]
pub struct WatchedDecisions(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    would_reject: Vec<WouldReject>,
    /// Limiters that have yet to decide.
    pending: usize,
    /// What is done when all have decided.
    then: Option<Box<dyn FnOnce() + Send>>,
}

/// A limiter that would have rejected a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WouldReject {
    /// Its name; `block` and `identify` for the block list and for requests with contradictory callers.
    pub limiter: Arc<str>,
    /// Whether it is the limiter's candidate that would have rejected the request.
    pub is_candidate: bool,
}

impl WatchedDecisions {
    /// The limiters that would have rejected the request, as far as they have decided.
    pub fn would_reject(&self) -> Vec<WouldReject> {
        self.0.lock().would_reject.clone()
    }

    /// Calls `then` when all limiters have decided, or can no longer decide: now, or in the task that decides last. It must
    /// not block.
    pub fn when_decided(&self, then: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        if state.pending > 0 {
            state.then = Some(Box::new(then));
            return;
        }
        drop(state);
        then();
    }

    /// One more limiter that has yet to decide.
    pub(super) fn pending(&self) -> PendingDecision {
        self.0.lock().pending += 1;
        PendingDecision(self.clone())
    }

    fn add(&self, limiter: Arc<str>, is_candidate: bool) {
        self.0.lock().would_reject.push(WouldReject { limiter, is_candidate });
    }
}

impl fmt::Debug for WatchedDecisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WatchedDecisions").field(&self.would_reject()).finish()
    }
}

/// The decision of one limiter. When it is dropped, the limiter has decided, or never will.
pub(super) struct PendingDecision(WatchedDecisions);

impl PendingDecision {
    /// The limiter would have rejected the request.
    pub(super) fn would_reject(&self, limiter: Arc<str>, is_candidate: bool) {
        self.0.add(limiter, is_candidate);
    }
}

impl Drop for PendingDecision {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.pending = state.pending.saturating_sub(1);
        let then = if state.pending == 0 { state.then.take() } else { None };
        drop(state);
        if let Some(then) = then {
            then();
        }
    }
}

/// Takes note of a limiter that would have rejected a request of which nothing else was noted so far.
pub(super) fn note(watched: &mut Option<WatchedDecisions>, limiter: Arc<str>) {
    watched.get_or_insert_default().add(limiter, false);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn whoever_waits_for_decisions_hears_of_them_once_and_when_all_are_there() {
        let decisions = WatchedDecisions::default();
        let heard = Arc::<AtomicUsize>::default();
        let wait = || {
            let (heard, decided) = (Arc::clone(&heard), decisions.clone());
            decisions.when_decided(move || {
                heard.fetch_add(1 + decided.would_reject().len(), Ordering::Relaxed);
            });
        };
        wait();
        assert_eq!(heard.load(Ordering::Relaxed), 1, "there is nothing to wait for");
        let (one, other) = (decisions.pending(), decisions.pending());
        wait();
        one.would_reject(Arc::from("l"), false);
        drop(one);
        assert_eq!(heard.load(Ordering::Relaxed), 1, "one has yet to decide");
        drop(other);
        assert_eq!(heard.load(Ordering::Relaxed), 3);
        assert_eq!(Arc::strong_count(&decisions.0), 1, "nothing is kept");
    }
}
