//! An answer that somebody has to claim. If nobody does, because the caller gave up or went away while it was on its
//! way, the leases that were taken are given back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use tollgate_core::Timestamp;
use tollgate_core::store::StoreError;

use crate::link::{ByTag, Job, Nature};
use crate::stats::Counts;
use crate::wire::{Message, Reply};

/// What came back to a message, or is still to come.
#[derive(Debug)]
pub(crate) struct Answer {
    tag: u8,
    message: Message,
    reply: Option<Reply>,
    /// For leases that nobody claims.
    chores: Option<Chores>,
}

impl Answer {
    /// The answer to a message that is sent now.
    pub(crate) fn awaited(tag: u8, message: Message, chores: &Chores) -> Self {
        let chores = message.takes_leases().then(|| chores.clone());
        Self { tag, message, reply: None, chores }
    }

    /// The message that it answers.
    pub(crate) fn message(&self) -> &Message {
        &self.message
    }

    pub(crate) fn arrived(&mut self, reply: Reply) {
        self.reply = Some(reply);
    }

    /// The reply. Whoever takes it has what was taken.
    pub(crate) fn claim(mut self) -> Reply {
        self.chores = None;
        self.reply.take().unwrap_or_default()
    }

    /// The reply, while what was taken is not claimed yet.
    pub(crate) fn reply(&self) -> Option<&Reply> {
        self.reply.as_ref()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let Some(chores) = self.chores.take() else { return };
        if let Some(message) = self.message.giving_back_leases(self.reply.as_ref()) {
            chores.counts.leases_returned.add(message.items as u64);
            chores.push(chores.job(self.tag, message, None, Nature::REPEATABLE, None));
        }
    }
}

/// Where to leave what must be sent and what nobody waits for. It is bounded; what does not fit is lost, and leases then
/// expire.
#[derive(Clone, Debug)]
pub(crate) struct Chores {
    queue: Queue,
    counts: Arc<Counts>,
    pending: Arc<ByTag<AtomicUsize>>,
}

/// A chore that is not done yet.
#[derive(Debug)]
pub(crate) struct Pending {
    of: Arc<ByTag<AtomicUsize>>,
    tag: u8,
}

impl Pending {
    fn new(of: Arc<ByTag<AtomicUsize>>, tag: u8) -> Self {
        of.of(tag).fetch_add(1, Ordering::AcqRel);
        Self { of, tag }
    }
}

impl Clone for Pending {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.of), self.tag)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.of.of(self.tag).fetch_sub(1, Ordering::AcqRel);
    }
}

/// The driver's own does not keep the driver alive.
#[derive(Clone, Debug)]
enum Queue {
    Kept(mpsc::Sender<Job>),
    Borrowed(mpsc::WeakSender<Job>),
}

impl Chores {
    pub(crate) fn new(
        queue: mpsc::Sender<Job>,
        counts: Arc<Counts>,
        pending: Arc<ByTag<AtomicUsize>>,
    ) -> Self {
        Self { queue: Queue::Kept(queue), counts, pending }
    }

    pub(crate) fn downgrade(&self) -> Self {
        let queue = match &self.queue {
            Queue::Kept(queue) => Queue::Borrowed(queue.downgrade()),
            borrowed @ Queue::Borrowed(_) => borrowed.clone(),
        };
        Self { queue, counts: Arc::clone(&self.counts), pending: Arc::clone(&self.pending) }
    }

    /// A chore. From now on, who asks for the same tag asks behind it.
    pub(crate) fn job(
        &self,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
        nature: Nature,
        reply: Option<oneshot::Sender<Result<Answer, StoreError>>>,
    ) -> Job {
        let pending = Some(Pending::new(Arc::clone(&self.pending), tag));
        Job { tag, message, at, nature, reply, pending }
    }

    /// Whether there was room.
    pub(crate) fn push(&self, job: Job) -> bool {
        let sent = match &self.queue {
            Queue::Kept(queue) => queue.try_send(job).is_ok(),
            Queue::Borrowed(queue) => queue.upgrade().is_some_and(|queue| queue.try_send(job).is_ok()),
        };
        if !sent {
            self.counts.chores_dropped.add(1);
        }
        sent
    }
}
