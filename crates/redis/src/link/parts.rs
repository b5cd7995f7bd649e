//! Parts of a cluster that answer while others do not.

use std::time::Duration;

use tokio::time::Instant;

use super::driver::{BATCH, FIRST_WAIT, LONGEST_WAIT, jittered};

/// Calls with decisions that are on their way at the same time. While there are few, more would leave less to share; when
/// whole batches wait, there may be more, so that the server always has something to do.
const CALLS: usize = 2;
const FULL_CALLS: usize = 16;
/// Probes of a cluster that fail in a row before it is looked at anew.
const PROBES: u32 = 5;

/// Which decisions have to wait for others: in a cluster those of the same tag, so that a node that hangs holds up nobody
/// else's; elsewhere all.
pub(super) struct Busy {
    calls: Vec<u8>,
}

impl Busy {
    pub(super) fn new(cluster: bool) -> Self {
        Self { calls: vec![0; if cluster { 256 } else { 1 }] }
    }

    pub(super) fn by_tag(&self) -> bool {
        self.calls.len() > 1
    }

    fn of(&mut self, tag: u8) -> Option<&mut u8> {
        let count = self.calls.len();
        self.calls.get_mut(usize::from(tag) % count)
    }

    /// Whether a call with decisions of this tag can be sent, while so many wait.
    pub(super) fn is_free(&self, tag: u8, waiting: usize) -> bool {
        let most = match self.by_tag() {
            true => 1,
            false if waiting >= BATCH => FULL_CALLS,
            false => CALLS,
        };
        self.calls.get(usize::from(tag) % self.calls.len()).is_some_and(|calls| usize::from(*calls) < most)
    }

    pub(super) fn enter(&mut self, tag: u8) {
        if let Some(calls) = self.of(tag) {
            *calls = calls.saturating_add(1);
        }
    }

    pub(super) fn leave(&mut self, tag: u8) {
        if let Some(calls) = self.of(tag) {
            *calls = calls.saturating_sub(1);
        }
    }

    /// Whether more can be taken from the queue while so many wait here.
    pub(super) fn has_room(&self, waiting: usize) -> bool {
        waiting < self.calls.len().max(2) * BATCH
    }
}

/// The parts of a cluster that are left alone, and how they are asked whether they are back.
pub(super) struct Parts {
    /// How many are asked at once: more, once they are back.
    at_once: usize,
    wait: Duration,
    next: Option<Instant>,
    failed: u32,
}

impl Default for Parts {
    fn default() -> Self {
        Self { at_once: 1, wait: FIRST_WAIT, next: None, failed: 0 }
    }
}

impl Parts {
    pub(super) fn to_probe(&self, now: Instant) -> usize {
        if self.next.is_none_or(|next| next <= now) { self.at_once } else { 0 }
    }

    pub(super) fn probed(&mut self, back: bool) {
        if back {
            *self = Self { at_once: (2 * self.at_once).min(16), ..Self::default() };
        } else {
            self.wait = (2 * self.wait).min(LONGEST_WAIT);
            let next = Instant::now() + self.wait.mul_f64(0.5) + jittered(self.wait.mul_f64(0.5));
            *self = Self { at_once: 1, wait: self.wait, next: Some(next), failed: self.failed + 1 };
        }
    }

    /// Whether so many probes have failed in a row that the cluster has to be looked at anew.
    pub(super) fn look_outdated(&mut self) -> bool {
        let outdated = self.failed >= PROBES;
        if outdated {
            self.failed = 0;
        }
        outdated
    }
}
