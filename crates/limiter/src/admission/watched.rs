//! What limiters that reject nobody would have done with a request, for logs.

use std::sync::Arc;

use parking_lot::Mutex;

/// The decisions about one request of limiters that do not enforce them: limiters in the dark, and candidates.
///
/// With a store that answers at once they are complete when the request is admitted. With a shared store they are made
/// beside the request, and may come later. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WatchedDecisions(Arc<Mutex<Vec<WouldReject>>>);

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
        self.0.lock().clone()
    }

    pub(super) fn add(&self, limiter: Arc<str>, is_candidate: bool) {
        self.0.lock().push(WouldReject { limiter, is_candidate });
    }
}

/// Takes note of a limiter that would have rejected a request of which nothing else was noted so far.
pub(super) fn note(watched: &mut Option<WatchedDecisions>, limiter: Arc<str>) {
    watched.get_or_insert_with(WatchedDecisions::default).add(limiter, false);
}
