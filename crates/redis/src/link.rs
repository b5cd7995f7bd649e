//! The way to the servers and back: one task that keeps the connection, sends decisions that wait at the same moment
//! in one call, and knows when to leave a store alone.
//!
//! ```text
//! call -> breaker open? fail at once
//!      -> queue (bounded) -> driver -> EVALSHA of up to 32 decisions -> reply to each
//!      -> no reply within the deadline: fail; the breaker counts it
//! ```
//!
//! A call that may have been charged is never sent again. Only `NOSCRIPT` is answered by sending the script itself:
//! then nothing has run.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tollgate_core::Timestamp;
use tollgate_core::store::StoreError;

use crate::address::{Connection, GIVE_UP, Servers};
use crate::breaker::Breaker;
use crate::script;
use crate::wire::{Message, NUMBERS, Reply};

/// How the link behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The longest that a decision may take.
    pub(crate) deadline: Duration,
    /// Decisions that may wait; further ones fail at once.
    pub(crate) queue: usize,
}

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Link {
    jobs: mpsc::Sender<Job>,
    breakers: Arc<Breakers>,
    status: watch::Receiver<Status>,
    deadline: Duration,
}

/// How it stands with the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not known yet.
    Connecting,
    /// They answer.
    Up,
    /// They do not, because of this.
    Down(String),
}

/// One breaker, or one for each tag where different tags live on different servers.
#[derive(Debug)]
struct Breakers(Box<[Breaker]>);

struct Job {
    tag: u8,
    message: Message,
    at: Option<Timestamp>,
    reply: oneshot::Sender<Result<Reply, StoreError>>,
}

/// Decisions of one call.
const BATCH: usize = 32;
/// Calls that are on their way at the same time. More would leave less to share.
const CALLS: usize = 2;
/// Probes of a cluster that fail in a row before it is looked at anew.
const PROBES: u32 = 5;
/// The first wait before a server is asked again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Link {
    /// Starts the driver on the present runtime.
    pub(crate) fn start(servers: Servers, settings: Settings) -> Self {
        let (jobs, queue) = mpsc::channel(settings.queue);
        let count = if servers.is_cluster() { 256 } else { 1 };
        let breakers = Arc::new(Breakers((0..count).map(|_| Breaker::default()).collect()));
        let (say, status) = watch::channel(Status::Connecting);
        let driver =
            Driver { servers, queue, breakers: Arc::clone(&breakers), status: say, waiting: Vec::new() };
        tokio::spawn(driver.run(settings.deadline));
        Self { jobs, breakers, status, deadline: settings.deadline }
    }

    /// Waits until it is known whether the servers answer.
    pub(crate) async fn known(&self) -> Status {
        let mut status = self.status.clone();
        match status.wait_for(|status| *status != Status::Connecting).await {
            Ok(status) => status.clone(),
            Err(_) => Status::Down("its task has ended".to_owned()),
        }
    }

    /// Sends a message and waits for its reply, no longer than the deadline.
    pub(crate) async fn call(
        &self,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
    ) -> Result<Reply, StoreError> {
        let breaker = self.breakers.of(tag);
        if breaker.is_open() {
            return Err(unavailable("it failed and is left alone for a moment"));
        }
        let (reply, answer) = oneshot::channel();
        if self.jobs.try_send(Job { tag, message, at, reply }).is_err() {
            return Err(unavailable("too many decisions are waiting for it"));
        }
        match timeout(self.deadline, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(unavailable("its connection was given up")),
            Err(_) => {
                breaker.failed();
                Err(unavailable(&format!("no answer within {:?}", self.deadline)))
            }
        }
    }

    /// Whether charges of different tags must travel apart.
    pub(crate) fn has_slots(&self) -> bool {
        self.breakers.0.len() > 1
    }

    /// Whether the store is left alone at this moment, in whole or in part.
    pub(crate) fn is_degraded(&self) -> bool {
        self.breakers.0.iter().any(Breaker::is_open)
    }
}

fn unavailable(why: &str) -> StoreError {
    StoreError::Unavailable(why.to_owned())
}

impl Breakers {
    #[allow(clippy::indexing_slicing, reason = "one breaker, or one for each of 256 tags")]
    fn of(&self, tag: u8) -> &Breaker {
        &self.0[usize::from(tag) % self.0.len()]
    }
}

/// The task's end.
struct Driver {
    servers: Servers,
    queue: mpsc::Receiver<Job>,
    breakers: Arc<Breakers>,
    status: watch::Sender<Status>,
    /// Taken from the queue, not yet sent.
    waiting: Vec<Job>,
}

/// Why serving stopped.
enum Stopped {
    /// Nobody can ask any more.
    Unused,
    /// The connection is of no use.
    Broken,
    /// A part of a cluster stays away: perhaps another node has taken its place.
    Outdated,
}

impl Driver {
    async fn run(mut self, deadline: Duration) {
        let mut wait = FIRST_WAIT;
        let mut outdated = false;
        loop {
            let connected = match timeout(2 * GIVE_UP, self.servers.connect()).await {
                Ok(Ok(connection)) => Self::probe(connection, deadline).await,
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no connection in time".to_owned()),
            };
            match connected {
                Ok(connection) => {
                    wait = FIRST_WAIT;
                    // With a new view of a cluster, parts that were away come back one by one, when they answer.
                    if !outdated {
                        self.breakers.0.iter().for_each(Breaker::close);
                    }
                    self.status.send_replace(Status::Up);
                    outdated = match self.serve(connection, deadline).await {
                        Stopped::Unused => return,
                        Stopped::Broken => false,
                        Stopped::Outdated => true,
                    };
                }
                Err(problem) => {
                    self.breakers.0.iter().for_each(Breaker::open);
                    self.status.send_replace(Status::Down(problem.clone()));
                    if self.refuse_for(jittered(wait), &problem).await {
                        return;
                    }
                    wait = (2 * wait).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Whether the script runs there, and soon enough.
    async fn probe(mut connection: Connection, deadline: Duration) -> Result<Connection, String> {
        // The first time the script has to be sent, and compiled.
        let loaded = timeout(GIVE_UP, call(&mut connection, &Message::default(), None)).await;
        match loaded {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("the script did not run in time".to_owned()),
        }
        match timeout(deadline, call(&mut connection, &Message::default(), None)).await {
            Ok(Ok(_)) => Ok(connection),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("it takes longer than {deadline:?} to answer")),
        }
    }

    /// Lets nobody wait for a server that cannot be had, for so long. True if nobody can ask any more.
    async fn refuse_for(&mut self, time: Duration, problem: &str) -> bool {
        let refuse = |job: Job| drop(job.reply.send(Err(unavailable(problem))));
        self.waiting.drain(..).for_each(refuse);
        let over = tokio::time::sleep(time);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return false,
                job = self.queue.recv() => match job {
                    Some(job) => refuse(job),
                    None => return true,
                },
            }
        }
    }

    async fn serve(&mut self, connection: Connection, deadline: Duration) -> Stopped {
        let cluster = self.servers.is_cluster();
        let breakers = Arc::clone(&self.breakers);
        let mut calls = FuturesUnordered::new();
        let mut probing = tokio::time::interval(2 * FIRST_WAIT);
        probing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut next_probe, mut failed_probes) = (0, 0);
        loop {
            tokio::select! {
                biased;
                Some((jobs, result)) = calls.next(), if !calls.is_empty() => {
                    if let Err(problem) = finish(jobs, result, &breakers) && !cluster && problem.is_fatal() {
                        return Stopped::Broken;
                    }
                }
                () = breakers.of(0).opened(), if !cluster => return Stopped::Broken,
                _ = probing.tick(), if cluster => {
                    // One tag that is left alone is asked whether its server is back.
                    let count = breakers.0.len();
                    let open = (0..count).map(|step| (next_probe + step) % count);
                    let open = open.into_iter().find(|&tag| breakers.0.get(tag).is_some_and(Breaker::is_open));
                    if let Some(tag) = open.and_then(|tag| u8::try_from(tag).ok()) {
                        next_probe = usize::from(tag) + 1;
                        let mut connection = connection.clone();
                        let breaker = breakers.of(tag);
                        if timeout(deadline, probe_tag(&mut connection, tag)).await.is_ok_and(|probed| probed.is_ok()) {
                            breaker.close();
                            failed_probes = 0;
                            probing.reset_immediately();
                        } else if breakers.0.iter().all(Breaker::is_open) {
                            return Stopped::Broken;
                        } else {
                            failed_probes += 1;
                            if failed_probes == PROBES {
                                return Stopped::Outdated;
                            }
                        }
                    }
                }
                count = self.queue.recv_many(&mut self.waiting, BATCH), if calls.len() < CALLS => {
                    if count == 0 {
                        return Stopped::Unused;
                    }
                    while !self.waiting.is_empty() {
                        let jobs = self.next_batch(cluster);
                        let mut connection = connection.clone();
                        calls.push(async move {
                            let result = match jobs.as_slice() {
                                [job] => timed(call(&mut connection, &job.message, job.at)).await,
                                jobs => {
                                    let mut message = Message::default();
                                    jobs.iter().for_each(|job| message.append(&job.message));
                                    let at = jobs.first().and_then(|job| job.at);
                                    timed(call(&mut connection, &message, at)).await
                                }
                            };
                            (jobs, result)
                        });
                    }
                }
            }
        }
    }

    /// Jobs that can share a call: of one moment, and of one slot where there are slots. Those whose callers have gone
    /// away are let go: they have not been charged.
    fn next_batch(&mut self, cluster: bool) -> Vec<Job> {
        self.waiting.retain(|job| !job.reply.is_closed());
        let Some(first) = self.waiting.first() else { return Vec::new() };
        let (tag, at) = (first.tag, first.at);
        let fits = |job: &mut Job| job.at == at && (!cluster || job.tag == tag);
        self.waiting.extract_if(.., fits).take(BATCH).collect()
    }
}

async fn timed(call: impl Future<Output = RedisResult<Reply>>) -> Result<Reply, Problem> {
    match timeout(GIVE_UP, call).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(Problem::Server(error)),
        Err(_) => Err(Problem::Silence),
    }
}

/// Why a call has no reply.
enum Problem {
    Server(RedisError),
    Silence,
}

impl Problem {
    /// Whether the connection must not be used again.
    fn is_fatal(&self) -> bool {
        match self {
            Self::Silence => true,
            Self::Server(error) => {
                let code = error.code().unwrap_or_default();
                error.is_unrecoverable_error()
                    || error.is_io_error()
                    || matches!(code, "READONLY" | "LOADING" | "NOAUTH" | "MASTERDOWN" | "UNBLOCKED")
            }
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Server(error) => error.to_string(),
            Self::Silence => format!("no reply within {GIVE_UP:?}"),
        }
    }
}

/// Tells every caller of a call what it is waiting for.
fn finish(jobs: Vec<Job>, result: Result<Reply, Problem>, breakers: &Breakers) -> Result<(), Problem> {
    match result {
        Ok(reply) => {
            let mut numbers = reply.numbers.into_iter();
            for job in jobs {
                breakers.of(job.tag).succeeded();
                let own = numbers.by_ref().take(NUMBERS * job.message.items).collect();
                let _ = job.reply.send(Ok(Reply { now: reply.now, numbers: own }));
            }
            Ok(())
        }
        Err(problem) => {
            let why = problem.describe();
            for job in jobs {
                breakers.of(job.tag).failed();
                let _ = job.reply.send(Err(unavailable(&why)));
            }
            Err(problem)
        }
    }
}

async fn probe_tag(connection: &mut Connection, tag: u8) -> RedisResult<()> {
    let mut message = Message::default();
    message.keys.push(format!("{{{tag:02x}}}").into_bytes());
    call(connection, &message, None).await.map(|_| ())
}

/// Runs the script once. If the server does not know it, it is sent along.
async fn call(connection: &mut Connection, message: &Message, at: Option<Timestamp>) -> RedisResult<Reply> {
    let argument = message.argument(at);
    let command = |name: &str, script: &str| {
        let mut command = Cmd::new();
        command.arg(name).arg(script).arg(message.keys.len());
        for key in &message.keys {
            command.arg(key.as_slice());
        }
        command.arg(argument.as_slice());
        command
    };
    let value = run(connection, command).await?;
    let Value::Array(values) = value else {
        return Err(RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "the script answers with a list",
        )));
    };
    let mut numbers = values.into_iter().map(|value| match value {
        Value::Int(number) => Ok(number),
        _ => Err(RedisError::from((
            redis::ErrorKind::UnexpectedReturnType,
            "the script answers with integers",
        ))),
    });
    let now = numbers.next().transpose()?.unwrap_or(0);
    let now = Timestamp::from_nanos(now.unsigned_abs().saturating_mul(1000));
    Ok(Reply { now, numbers: numbers.collect::<RedisResult<_>>()? })
}

/// Runs the script by its name, and where it is not known, or a slot is elsewhere, tries again: then nothing has run.
async fn run(connection: &mut Connection, command: impl Fn(&str, &str) -> Cmd) -> RedisResult<Value> {
    /// Redirects that are followed; a cluster that sends us round in circles is not asked for ever.
    const REDIRECTS: u32 = 4;
    let mut by_name = true;
    let mut pointed: Option<RedisError> = None;
    for _ in 0..REDIRECTS {
        let command =
            if by_name { command("EVALSHA", script::sha()) } else { command("EVAL", script::SOURCE) };
        let sent = match &pointed {
            Some(error) => match connection.send_to(&command, error).await {
                Some(sent) => sent,
                None => connection.send(&command).await,
            },
            None => connection.send(&command).await,
        };
        let error = match sent {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match error.code() {
            Some("NOSCRIPT") if by_name => by_name = false,
            Some("MOVED" | "ASK") => pointed = Some(error),
            // A slot whose keys are half here and half there.
            Some("TRYAGAIN") => tokio::time::sleep(Duration::from_millis(2)).await,
            _ => return Err(error),
        }
    }
    Err(RedisError::from((redis::ErrorKind::Io, "redirected too often")))
}

/// Anything from nothing to the whole time: those who wait for the same thing do not come back together.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::random::<f64>())
}
