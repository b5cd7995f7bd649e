//! Parts of a cluster that answer while others do not.

use std::time::Duration;

use tokio::time::Instant;

use super::driver::{FIRST_WAIT, LONGEST_WAIT, jittered};

/// Probes of a cluster that fail in a row before it is looked at anew.
const PROBES: u32 = 5;

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
