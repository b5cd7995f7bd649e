//! Connections that are ready to take the place of one on which a reply is overdue.

use std::sync::Arc;
use std::time::Duration;

use redis::RedisResult;
use tokio::time::{Instant, timeout};

use crate::address::{Connection, Servers};

/// How many are kept ready: usually, and for a while after one was needed.
const USUALLY: usize = 1;
const WHEN_DISTURBED: usize = 8;
const DISTURBED_FOR: Duration = Duration::from_secs(10);
/// How long to wait after one could not be had.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// Connecting usually takes a few replies. Whatever takes longer than this, or than three decisions may take, while replies are lost
/// has lost one itself.
const PATIENCE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Spares {
    is_cluster: bool,
    ready: Vec<Connection>,
    /// When one was last needed.
    needed: Option<Instant>,
    failed: Option<Instant>,
    unfit_since: Option<Instant>,
}

impl Spares {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self { is_cluster, ..Self::default() }
    }

    /// One that takes the place of the connection in use.
    pub(super) fn take(&mut self) -> Option<Connection> {
        self.needed = Some(Instant::now());
        self.ready.pop().inspect(|_| self.unfit_since = None)
    }

    /// Takes note of whether the connection in use is fit.
    pub(super) fn note(&mut self, is_fit: bool) {
        self.unfit_since = if is_fit { None } else { self.unfit_since.or_else(|| Some(Instant::now())) };
    }

    /// Since when nothing could be sent.
    pub(super) fn silent_since(&self) -> Instant {
        self.unfit_since.unwrap_or_else(Instant::now)
    }

    /// Whether replies got lost or came late a short while ago.
    pub(super) fn is_disturbed(&self) -> bool {
        self.needed.is_some_and(|needed| needed.elapsed() < DISTURBED_FOR)
    }

    /// Closes those that are not needed any more.
    pub(super) fn tidy(&mut self) {
        self.ready.truncate(self.most());
    }

    /// How many connections should be on their way now.
    pub(super) fn wanted(&self) -> usize {
        if self.is_waiting() { 0 } else { self.most().saturating_sub(self.ready.len()) }
    }

    fn most(&self) -> usize {
        if self.is_disturbed() { WHEN_DISTURBED } else { USUALLY }
    }

    /// How long one may take.
    pub(super) fn patience(&self, deadline: Duration, give_up: Duration) -> Duration {
        let is_short = self.is_disturbed() && !self.is_cluster;
        if is_short { give_up.min(PATIENCE).min(3 * deadline) } else { give_up }
    }

    /// Takes note of one that was to be connected. While replies get lost, one that took too long is tried again at once.
    pub(super) fn connected(&mut self, connected: Option<RedisResult<Connection>>) {
        match connected {
            Some(Ok(connection)) => self.ready.push(connection),
            Some(Err(error)) if !error.is_timeout() => self.failed = Some(Instant::now()),
            _ if self.is_disturbed() && !self.is_cluster => {}
            _ => self.failed = Some(Instant::now()),
        }
    }

    /// Takes a connection back that works again.
    pub(super) fn put_back(&mut self, connection: Connection) {
        if self.ready.len() < self.most() {
            self.ready.push(connection);
        }
    }

    /// Closes all: the cluster is not what it was when they were opened.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
    }

    /// Whether the last attempt to open a spare connection failed a short time ago, and none is ready.
    pub(super) fn have_failed(&self) -> bool {
        self.ready.is_empty() && self.is_waiting()
    }

    /// Whether the last attempt to open one failed a short time ago: no other is made, however many are ready.
    pub(super) fn is_waiting(&self) -> bool {
        self.failed.is_some_and(|failed| failed.elapsed() < AFTER_FAILURE)
    }

    /// When one is tried again.
    pub(super) fn next_attempt(&self) -> Instant {
        self.failed.map_or_else(Instant::now, |failed| failed + AFTER_FAILURE)
    }
}

/// Connects one more. None if it took too long.
pub(super) async fn connect(servers: Arc<Servers>, patience: Duration) -> Option<RedisResult<Connection>> {
    timeout(patience, servers.connect(patience)).await.ok()
}
