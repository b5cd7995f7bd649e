//! One call, and what can become of it.

use std::iter::once;
use std::mem::take;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use redis::RedisError;
use tokio::time::{Instant, timeout};
use tollgate_core::Timestamp;

use super::channel::Channel;
use super::pace::within;
use super::{Job, Nature, OnItsWay, Shared};
use crate::address::Connection;
use crate::answer::{Answer, Chores};
use crate::script::Script;
use crate::server;
use crate::wire::{Message, Reply};

/// Jobs on their way. If they are given up there, they may have been done or not.
pub(super) struct Carried<'s> {
    channel: Arc<Channel>,
    jobs: Vec<Job>,
    unclaimed: &'s Chores,
    /// Whether there are chores among them that were not sent once more by another connection.
    has_chores: AtomicBool,
    sent_again: AtomicBool,
}

impl<'s> Carried<'s> {
    pub(super) fn new(channel: &Arc<Channel>, jobs: Vec<Job>, unclaimed: &'s Chores) -> Self {
        let has_chores = jobs.iter().any(|job| job.nature != Nature::Decision);
        if has_chores {
            channel.add_chores();
        }
        Self {
            channel: Arc::clone(channel),
            jobs,
            unclaimed,
            has_chores: AtomicBool::new(has_chores),
            sent_again: AtomicBool::new(false),
        }
    }

    /// Has chores sent by another connection as well: doing them twice is doing them once, and decisions that take that
    /// connection must not overtake them.
    fn send_chores_again(&self) {
        if !self.sent_again.swap(true, Ordering::AcqRel) {
            for chore in self.jobs.iter().filter_map(Job::once_more) {
                self.unclaimed.push(chore);
            }
        }
        self.settle_chores();
    }

    /// No decision can overtake its chores any more.
    fn settle_chores(&self) {
        if self.has_chores.swap(false, Ordering::AcqRel) {
            self.channel.remove_chores();
        }
    }

    /// The jobs. What was sent again is not sent a third time.
    fn take(&mut self) -> Vec<Job> {
        let mut jobs = take(&mut self.jobs);
        if self.sent_again.load(Ordering::Acquire) {
            let chores = jobs.iter_mut().filter(|job| job.nature != Nature::Decision);
            chores.for_each(|job| job.nature = Nature::Once);
        }
        jobs
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        self.take().into_iter().for_each(|job| job.left_in_doubt(self.unclaimed));
        self.settle_chores();
    }
}

/// What became of the jobs of a call, and where they were sent.
pub(super) type Done = (Arc<Channel>, Vec<(Job, Result<Reply, Problem>)>);

/// Sends jobs in one call; one by one, if the keys of some are on their way to another node.
pub(super) async fn carry(mut carried: Carried<'_>, shared: &Shared, give_up: Duration) -> Done {
    let channel = Arc::clone(&carried.channel);
    shared.calls.fetch_add(1, Ordering::AcqRel);
    let _call = OnItsWay(&shared.calls);
    let at = carried.jobs.first().and_then(|job| job.at);
    let sent = send_watched(&channel, &carried, at, shared, give_up).await;
    if let Err(problem) = &sent
        && problem.is_moving()
        && carried.jobs.len() > 1
    {
        let one = |job| send(channel.connection(), messages(job), at, &shared.script, give_up);
        let results = join_all(carried.jobs.chunks(1).map(one)).await;
        return (channel, carried.take().into_iter().zip(results).collect());
    }
    (channel, divided(carried.take(), sent))
}

/// The result of a call, for each of its jobs.
fn divided(jobs: Vec<Job>, sent: Result<Reply, Problem>) -> Vec<(Job, Result<Reply, Problem>)> {
    match sent {
        Ok(reply) => {
            let sizes: Vec<_> = jobs.iter().map(|job| job.message.items).collect();
            jobs.into_iter().zip(reply.split(sizes.into_iter()).map(Ok)).collect()
        }
        Err(problem) => jobs.into_iter().map(|job| (job, Err(problem.clone()))).collect(),
    }
}

/// Sends jobs, and waits no longer than a decision may take; in a cluster longer, because the nodes may change. While the reply is
/// overdue, others take another connection.
async fn send_watched(
    channel: &Arc<Channel>,
    carried: &Carried<'_>,
    at: Option<Timestamp>,
    shared: &Shared,
    give_up: Duration,
) -> Result<Reply, Problem> {
    let begun = Instant::now();
    let time = if channel.is_cluster() { give_up } else { shared.pace.deadline() };
    let breaker = shared.breakers.of(carried.jobs.first().map_or(0, |job| job.tag));
    let mut connection = channel.connection();
    let mut call = pin!(shared.script.call(&mut connection, messages(&carried.jobs), at));
    let sent = tokio::select! {
        biased;
        sent = timeout(shared.pace.overdue_after(), call.as_mut()) => sent.ok(),
        () = channel.replaced() => {
            carried.send_chores_again();
            let rest = shared.pace.overdue_after().saturating_sub(begun.elapsed());
            timeout(rest, call.as_mut()).await.ok()
        }
    };
    let sent = match sent {
        Some(sent) => Some(sent),
        None => {
            let _overdue = channel.overdue();
            carried.send_chores_again();
            let mut waited = shared.pace.deadline();
            loop {
                match within(begun + waited.min(time), call.as_mut()).await {
                    Some(sent) => break Some(sent),
                    None if waited >= time => break None,
                    // A server is judged by its calls, of which each may carry many decisions.
                    None => breaker.failed(),
                }
                waited += shared.pace.deadline();
            }
        }
    };
    match sent {
        Some(Ok(reply)) => {
            shared.pace.record(begun.elapsed());
            Ok(reply)
        }
        Some(Err(error)) => Err(Problem::Server(error)),
        None => Err(Problem::Silence(time)),
    }
}

async fn send<'j>(
    mut connection: Connection,
    messages: impl Iterator<Item = &'j Message> + Clone,
    at: Option<Timestamp>,
    script: &Script,
    give_up: Duration,
) -> Result<Reply, Problem> {
    match timeout(give_up, script.call(&mut connection, messages, at)).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(Problem::Server(error)),
        Err(_) => Err(Problem::Silence(give_up)),
    }
}

fn messages(jobs: &[Job]) -> impl Iterator<Item = &Message> + Clone {
    jobs.iter().map(|job| &job.message)
}

/// A call that a caller makes by itself.
pub(super) type Direct = Pin<Box<dyn Future<Output = Result<Answer, Problem>> + Send>>;

/// A call that its caller has given up at the deadline. Whether the server has failed is for the driver to say: it runs
/// beside the task that reads replies, so that a busy machine is not taken for a server that does not answer.
pub(super) struct Late {
    pub(super) tag: u8,
    pub(super) channel: Arc<Channel>,
    pub(super) call: Direct,
}

/// Sends one decision, which is alone on its way for as long as `idle` lasts.
pub(super) async fn send_directly(
    shared: Arc<Shared>,
    idle: super::Idle,
    mut answer: Answer,
    at: Option<Timestamp>,
) -> Result<Answer, Problem> {
    let begun = Instant::now();
    let mut connection = idle.channel.connection();
    let sent = {
        let mut call = pin!(shared.script.call(&mut connection, once(answer.message()), at));
        match timeout(shared.pace.overdue_after(), call.as_mut()).await {
            Ok(sent) => sent,
            Err(_) => {
                let _overdue = idle.channel.overdue();
                call.await
            }
        }
    };
    drop(idle);
    match sent {
        Ok(reply) => {
            shared.pace.record(begun.elapsed());
            answer.arrived(reply);
            Ok(answer)
        }
        Err(error) => {
            let problem = Problem::Server(error);
            if !problem.may_have_run() {
                answer.claim();
            }
            Err(problem)
        }
    }
}

/// Why a call has no reply.
#[derive(Clone)]
pub(super) enum Problem {
    Server(RedisError),
    Silence(Duration),
}

impl Problem {
    /// Whether the connection must not be used again.
    pub(super) fn is_fatal(&self) -> bool {
        match self {
            Self::Silence(_) => true,
            Self::Server(error) => {
                let code = error.code().unwrap_or_default();
                error.is_unrecoverable_error()
                    || error.is_io_error()
                    || matches!(code, "READONLY" | "LOADING" | "NOAUTH" | "MASTERDOWN" | "UNBLOCKED")
            }
        }
    }

    /// Whether the server itself is the reason, so that another connection to it would be of no use.
    pub(super) fn is_of_server(&self) -> bool {
        matches!(self, Self::Server(error) if error.code().is_some())
    }

    /// Whether something may have been done all the same.
    pub(super) fn may_have_run(&self) -> bool {
        let code = match self {
            Self::Server(error) => error.code().unwrap_or_default(),
            Self::Silence(_) => return true,
        };
        let elsewhere = matches!(code, "NOSCRIPT" | "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN");
        let not_now = matches!(code, "BUSY" | "LOADING" | "READONLY" | "OOM" | "NOAUTH" | "MASTERDOWN");
        !elsewhere && !not_now
    }

    /// Whether nothing came back at all.
    pub(super) fn is_silence(&self) -> bool {
        match self {
            Self::Silence(_) => true,
            Self::Server(error) => error.is_timeout(),
        }
    }

    /// Whether nothing has run because keys are half here and half there.
    pub(super) fn is_moving(&self) -> bool {
        matches!(self, Self::Server(error) if error.code() == Some("TRYAGAIN"))
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Server(error) => server::explain(error),
            Self::Silence(time) => format!("no reply within {time:?}"),
        }
    }
}
