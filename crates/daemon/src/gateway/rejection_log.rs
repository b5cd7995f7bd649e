//! Logs who is rejected on standard error, throttled: at most one line every 10 s for each limiter, with a count.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate_core::policy::CallerName;

use crate::caller_labels::CallerLabels;

const EVERY: Duration = Duration::from_secs(10);

/// Who rejects a request, or would if its decisions were enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum By {
    /// A limiter that is enforced, or a list.
    Limiter,
    /// A limiter whose mode is dark.
    DarkLimiter,
    /// The candidate of a limiter.
    Candidate,
}

/// A request that was or would have been rejected.
pub(super) struct Rejection<'r> {
    pub(super) by: By,
    pub(super) limiter: &'r str,
    pub(super) class: Option<&'r str>,
    /// When the request was answered.
    pub(super) at: Instant,
}

pub(super) struct RejectionLog {
    labels: CallerLabels,
    limiters: Mutex<HashMap<By, HashMap<String, Throttle>>>,
}

/// What has happened since the last line about a limiter.
#[derive(Debug)]
struct Throttle {
    logged_at: Instant,
    count: u64,
}

impl RejectionLog {
    pub(super) fn new(labels: CallerLabels) -> Self {
        Self { labels, limiters: Mutex::default() }
    }

    /// Counts a rejection, and logs it if the last line about its limiter is old enough. `caller` is only asked then.
    pub(super) fn add(&self, rejection: &Rejection<'_>, caller: impl FnOnce() -> CallerName) {
        let Some(count) = self.due(rejection) else { return };
        let Rejection { by, limiter, class, .. } = *rejection;
        let caller = self.labels.caller(&caller());
        match by {
            By::Limiter => {
                tracing::info!(limiter, caller, class, count, "rejected; the latest was from this caller");
            }
            By::DarkLimiter => tracing::info!(
                limiter,
                caller,
                class,
                count,
                "would have been rejected by this dark limiter; the latest was from this caller"
            ),
            By::Candidate => tracing::info!(
                limiter,
                caller,
                class,
                count,
                "would have been rejected by the candidate; the latest was from this caller"
            ),
        }
    }

    /// How many requests the limiter has rejected since the last line about it, if it is time for another.
    fn due(&self, rejection: &Rejection<'_>) -> Option<u64> {
        let mut limiters = self.limiters.lock();
        let limiters = limiters.entry(rejection.by).or_default();
        let Some(throttle) = limiters.get_mut(rejection.limiter) else {
            let throttle = Throttle { logged_at: rejection.at, count: 0 };
            limiters.insert(rejection.limiter.to_owned(), throttle);
            return Some(1);
        };
        throttle.count += 1;
        if rejection.at.saturating_duration_since(throttle.logged_at) < EVERY {
            return None;
        }
        throttle.logged_at = rejection.at;
        Some(std::mem::take(&mut throttle.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limiter_has_a_line_at_most_every_ten_seconds_with_all_that_was_rejected_since() {
        let log = RejectionLog::new(CallerLabels::new(None, false));
        let begun = Instant::now();
        let due = |by: By, limiter: &str, secs: u64| {
            let at = begun + Duration::from_secs(secs);
            log.due(&Rejection { by, limiter, class: None, at })
        };
        assert_eq!(due(By::Limiter, "rate", 0), Some(1));
        assert_eq!(due(By::Limiter, "rate", 1), None);
        assert_eq!(due(By::Limiter, "logins", 1), Some(1), "another limiter has its own lines");
        assert_eq!(due(By::DarkLimiter, "rate", 1), Some(1));
        assert_eq!(due(By::Candidate, "rate", 1), Some(1));
        assert_eq!(due(By::Limiter, "rate", 9), None);
        assert_eq!(due(By::Limiter, "rate", 10), Some(3), "two that were not logged, and this one");
        assert_eq!(due(By::Limiter, "rate", 40), Some(1));
    }
}
