//! A connection to one server, and whether it is fit for more calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::address::Connection;

/// A connection, and whether replies come over it.
///
/// Replies come in the order of their calls, so that one that is late holds up all behind it. A channel on which a reply is
/// overdue gets no more calls: another connection takes its place.
#[derive(Debug)]
pub(super) struct Channel {
    connection: Connection,
    overdue: AtomicUsize,
    is_broken: AtomicBool,
    has_lost_server: AtomicBool,
    /// Calls on their way whose chores were not sent again.
    with_chores: AtomicUsize,
    is_replaced: AtomicBool,
    replaced: Notify,
    /// Wakes the driver.
    changed: Arc<Notify>,
}

impl Channel {
    pub(super) fn new(connection: Connection, changed: &Arc<Notify>) -> Arc<Self> {
        Arc::new(Self {
            connection,
            overdue: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            has_lost_server: AtomicBool::new(false),
            with_chores: AtomicUsize::new(0),
            is_replaced: AtomicBool::new(false),
            replaced: Notify::new(),
            changed: Arc::clone(changed),
        })
    }

    pub(super) fn connection(&self) -> Connection {
        self.connection.clone()
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.connection.is_cluster()
    }

    /// Whether more can be sent. The nodes of a cluster fail by themselves: the others go on.
    pub(super) fn is_fit(&self) -> bool {
        self.is_cluster() || !self.is_broken() && !self.has_overdue()
    }

    /// Whether another connection should take its place, if there is one.
    pub(super) fn should_be_replaced(&self) -> bool {
        self.is_broken() && !self.is_cluster() || self.has_overdue()
    }

    /// Whether a reply is overdue.
    pub(super) fn has_overdue(&self) -> bool {
        self.overdue.load(Ordering::Acquire) > 0
    }

    /// Whether it must not be used again.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    /// Whether its server takes no calls, so that another connection to it would be of no use.
    pub(super) fn has_lost_server(&self) -> bool {
        self.has_lost_server.load(Ordering::Acquire)
    }

    /// Has it not used again. `is_server` says that the server itself is the reason.
    pub(super) fn give_up(&self, is_server: bool) {
        self.has_lost_server.fetch_or(is_server, Ordering::AcqRel);
        self.is_broken.store(true, Ordering::Release);
        self.changed.notify_one();
    }

    /// Another connection takes its place. Whoever waits for the reply to chores has them sent again by that one.
    pub(super) fn replace(&self) {
        self.is_replaced.store(true, Ordering::Release);
        self.replaced.notify_waiters();
    }

    /// Waits until another connection takes its place.
    pub(super) async fn replaced(&self) {
        let replaced = self.replaced.notified();
        if !self.is_replaced.load(Ordering::Acquire) {
            replaced.await;
        }
    }

    /// Whether chores are on their way that were not sent again. Decisions over another connection could overtake them.
    pub(super) fn has_chores(&self) -> bool {
        self.with_chores.load(Ordering::Acquire) > 0
    }

    pub(super) fn add_chores(&self) {
        self.with_chores.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn remove_chores(&self) {
        self.with_chores.fetch_sub(1, Ordering::AcqRel);
        // Only then does the driver wait for it.
        if self.is_replaced.load(Ordering::Acquire) {
            self.changed.notify_one();
        }
    }

    /// A reply is overdue, for as long as the value lasts.
    pub(super) fn overdue(self: &Arc<Self>) -> Overdue {
        self.overdue.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_one();
        Overdue(Arc::clone(self))
    }
}

/// A reply that is overdue.
pub(super) struct Overdue(Arc<Channel>);

impl Drop for Overdue {
    fn drop(&mut self) {
        self.0.overdue.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
}
