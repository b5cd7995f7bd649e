//! One call, and what can become of it.

use std::mem::take;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::RedisError;
use tokio::time::timeout;
use tollgate_core::Timestamp;

use super::{Job, OnItsWay, Shared};
use crate::address::Connection;
use crate::answer::Chores;
use crate::script::Script;
use crate::server;
use crate::wire::{Message, Reply};

/// Jobs on their way. If they are given up there, they may have been done or not.
pub(super) struct Carried<'s> {
    pub(super) jobs: Vec<Job>,
    pub(super) unclaimed: &'s Chores,
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        self.jobs.drain(..).for_each(|job| job.left_in_doubt(self.unclaimed));
    }
}

/// Sends jobs in one call; one by one, if the keys of some are on their way to another node.
pub(super) async fn carry(
    connection: Connection,
    mut carried: Carried<'_>,
    shared: &Shared,
    give_up: Duration,
) -> Vec<(Job, Result<Reply, Problem>)> {
    shared.calls.fetch_add(1, Ordering::AcqRel);
    let _call = OnItsWay(&shared.calls);
    let jobs = &carried.jobs;
    let at = jobs.first().and_then(|job| job.at);
    let sent = send(connection.clone(), messages(jobs), at, &shared.script, give_up).await;
    if let Err(problem) = &sent
        && problem.is_moving()
        && jobs.len() > 1
    {
        let one = |job| send(connection.clone(), messages(job), at, &shared.script, give_up);
        let results = join_all(jobs.chunks(1).map(one)).await;
        return take(&mut carried.jobs).into_iter().zip(results).collect();
    }
    let jobs = take(&mut carried.jobs);
    match sent {
        Ok(reply) => {
            let sizes: Vec<_> = jobs.iter().map(|job| job.message.items).collect();
            jobs.into_iter().zip(reply.split(sizes.into_iter()).map(Ok)).collect()
        }
        Err(problem) => jobs.into_iter().map(|job| (job, Err(problem.clone()))).collect(),
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
