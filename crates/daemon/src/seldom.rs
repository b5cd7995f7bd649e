//! Things that may happen a thousand times a second, and are told now and then.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

const EVERY: Duration = Duration::from_secs(10);

/// When something was last told.
pub(crate) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether it is time to tell it, which it then is not for a while.
    pub(crate) fn is_due(&self) -> bool {
        let mut told = self.0.lock();
        let is_due = told.is_none_or(|told| told.elapsed() >= EVERY);
        if is_due {
            *told = Some(Instant::now());
        }
        is_due
    }
}
