//! How many decisions of the last minute were made without the shared store, and when that is logged.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Timestamp;

/// Decisions of the last minute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastMinute {
    /// All of them.
    pub decisions: u64,
    /// Those that were made without the shared store, in whole or in part.
    pub degraded: u64,
}

impl LastMinute {
    /// The share of decisions that were made without the shared store, in percent.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore};
    /// assert_eq!(Failsafe::new(MemoryStore::new()).last_minute().degraded_percent(), 0.0);
    /// ```
    pub fn degraded_percent(&self) -> f64 {
        100.0 * self.degraded as f64 / self.decisions.max(1) as f64
    }
}

const SECONDS: usize = 60;

/// A degraded decision is logged this long after it was made, with those that follow it meanwhile.
const LOG_AFTER: u64 = 1;
/// There is at most one line in so many seconds.
const LOG_EVERY: u64 = 30;

/// Counts decisions by the second in which they were made.
#[derive(Debug)]
pub(crate) struct RecentDecisions {
    seconds: [Second; SECONDS],
    /// Since when something degraded has not been logged, in seconds; 0 if there is nothing.
    unlogged_since: AtomicU64,
    logged: AtomicU64,
}

#[derive(Debug, Default)]
struct Second {
    second: AtomicU64,
    decisions: AtomicU64,
    degraded: AtomicU64,
}

impl Default for RecentDecisions {
    fn default() -> Self {
        Self {
            seconds: std::array::from_fn(|_| Second::default()),
            unlogged_since: AtomicU64::new(0),
            logged: AtomicU64::new(0),
        }
    }
}

impl RecentDecisions {
    /// Counts a decision. Decisions that are counted while a second begins may be missed.
    pub(crate) fn add(&self, now: Timestamp, is_degraded: bool) {
        let now = seconds(now);
        if let Some(second) = self.seconds.get(now as usize % SECONDS) {
            if second.second.swap(now, Ordering::Relaxed) != now {
                second.decisions.store(0, Ordering::Relaxed);
                second.degraded.store(0, Ordering::Relaxed);
            }
            second.decisions.fetch_add(1, Ordering::Relaxed);
            second.degraded.fetch_add(u64::from(is_degraded), Ordering::Relaxed);
        }
        if is_degraded && self.unlogged_since.load(Ordering::Relaxed) == 0 {
            self.unlogged_since.store(now, Ordering::Relaxed);
        }
    }

    /// Whether it is time to log that decisions were degraded, which it then is not for a while.
    pub(crate) fn is_log_due(&self, now: Timestamp) -> bool {
        let since = self.unlogged_since.load(Ordering::Relaxed);
        if since == 0 {
            return false;
        }
        let (now, logged) = (seconds(now), self.logged.load(Ordering::Relaxed));
        let is_due = now >= since + LOG_AFTER && (logged == 0 || now >= logged + LOG_EVERY);
        is_due && self.unlogged_since.swap(0, Ordering::Relaxed) != 0 && {
            self.logged.store(now, Ordering::Relaxed);
            true
        }
    }

    pub(crate) fn read(&self, now: Timestamp) -> LastMinute {
        let now = seconds(now);
        let recent = self.seconds.iter().filter(|second| {
            let second = second.second.load(Ordering::Relaxed);
            second > 0 && second <= now && now - second < SECONDS as u64
        });
        recent.fold(LastMinute::default(), |sum, second| LastMinute {
            decisions: sum.decisions + second.decisions.load(Ordering::Relaxed),
            degraded: sum.degraded + second.degraded.load(Ordering::Relaxed),
        })
    }
}

/// Whole seconds. Never 0, which stands for none.
fn seconds(now: Timestamp) -> u64 {
    (now.as_nanos() / 1_000_000_000).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_count_for_a_minute_and_are_logged_now_and_then() {
        let recent = RecentDecisions::default();
        let at = Timestamp::from_secs;
        for second in 1000..1100 {
            (0..10).for_each(|number| recent.add(at(second), number == 0 && second % 10 == 5));
        }
        assert_eq!(recent.read(at(1099)), LastMinute { decisions: 600, degraded: 6 });
        assert_eq!(recent.read(at(1099)).degraded_percent(), 1.0);
        assert_eq!(recent.read(at(1130)), LastMinute { decisions: 290, degraded: 3 });
        assert_eq!(recent.read(at(2000)), LastMinute::default());

        let recent = RecentDecisions::default();
        recent.add(at(1000), false);
        assert!(!recent.is_log_due(at(1000)), "there is nothing to log");
        recent.add(at(1000), true);
        assert!(!recent.is_log_due(at(1000)), "more may follow");
        assert!(recent.is_log_due(at(1001)));
        assert!(!recent.is_log_due(at(1001)), "once");
        recent.add(at(1002), true);
        assert!(!recent.is_log_due(at(1029)), "not too often");
        assert!(recent.is_log_due(at(1031)));
        assert!(!recent.is_log_due(at(1100)), "and only what happened");
    }
}
