//! How long replies take, and how long they are waited for.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// How long replies usually take, and from when on one is overdue.
#[derive(Debug)]
pub(super) struct Pace {
    /// A moving average over some eight replies, in microseconds.
    usual: AtomicU64,
    deadline: Duration,
}

impl Pace {
    pub(super) fn new(deadline: Duration) -> Self {
        Self { usual: AtomicU64::new(0), deadline }
    }

    /// The longest that a decision may take.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// A reply that takes longer than this is overdue: a quarter of the deadline, or twice as long as replies usually take.
    pub(super) fn overdue_after(&self) -> Duration {
        let usual = Duration::from_micros(self.usual.load(Ordering::Relaxed));
        (2 * usual).clamp(self.deadline / 4, self.deadline)
    }

    /// A reply took so long. A single one that took much longer than usual says little of the next.
    pub(super) fn record(&self, took: Duration) {
        let took = u64::try_from(took.min(self.deadline).as_micros()).unwrap_or(u64::MAX);
        let usual = self.usual.load(Ordering::Relaxed);
        let took = took.min(2 * usual + 1000);
        self.usual.store(usual - usual / 8 + took / 8, Ordering::Relaxed);
    }
}

/// How often other tasks get their turn after a deadline, and for how long, before it counts as missed.
pub(super) const TURNS: u32 = 4;
const GRACE: Duration = Duration::from_millis(2);

/// Waits for something until a deadline. None if it did not come.
///
/// On a busy machine a reply can be here, and nobody has had the time to read it. So when the deadline has passed, the tasks
/// that read replies get their turn before it counts as missed.
pub(super) async fn within<F: Future + ?Sized>(
    deadline: Instant,
    mut awaited: Pin<&mut F>,
) -> Option<F::Output> {
    if let Ok(output) = timeout_at(deadline, awaited.as_mut()).await {
        return Some(output);
    }
    let expired = Instant::now();
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        if let Poll::Ready(output) = poll_fn(|context| Poll::Ready(awaited.as_mut().poll(context))).await {
            return Some(output);
        }
        if expired.elapsed() > GRACE {
            break;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_overdue_by_what_is_usual() {
        let pace = Pace::new(Duration::from_millis(20));
        assert_eq!(pace.overdue_after(), Duration::from_millis(5));
        (0..100).for_each(|_| pace.record(Duration::from_micros(200)));
        assert_eq!(pace.overdue_after(), Duration::from_millis(5));
        pace.record(Duration::from_millis(15));
        assert_eq!(pace.overdue_after(), Duration::from_millis(5), "one late reply changes nothing");
        (0..100).for_each(|_| pace.record(Duration::from_millis(6)));
        let after = pace.overdue_after();
        assert!(after > Duration::from_millis(11) && after <= Duration::from_millis(12), "{after:?}");
        (0..100).for_each(|_| pace.record(Duration::from_secs(3)));
        assert_eq!(pace.overdue_after(), Duration::from_millis(20), "never later than the deadline");
    }

    #[tokio::test]
    async fn what_is_there_when_this_process_was_busy_is_not_missed() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let deadline = Instant::now();
        // It has not run yet when the deadline has passed.
        tokio::spawn(async move { sender.send(7) });
        let awaited = std::pin::pin!(receiver);
        assert_eq!(within(deadline, awaited).await, Some(Ok(7)));
        let never = std::pin::pin!(std::future::pending::<()>());
        assert_eq!(within(deadline, never).await, None);
    }
}
