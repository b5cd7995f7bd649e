//! The way to the servers and back: one task that keeps the connection, sends decisions that wait at the same moment
//! in one call, and knows when to leave a store alone.
//!
//! ```text
//! call -> breaker open? fail at once
//!      -> nothing on its way? send it, and wait for the reply
//!      -> else queue (bounded) -> driver -> EVALSHA of up to 32 decisions -> reply to each
//!      -> no reply within the deadline: fail; the breaker counts it
//! ```
//!
//! A call that may have been charged is never sent again. `NOSCRIPT` and redirects are followed: then nothing has run.
//! Leases that are given back or renewed travel in a queue of their own (chores): nobody waits behind them, and they may
//! be sent again, because doing it twice is doing it once.

use std::collections::VecDeque;
use std::iter::once;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::RwLock;
use redis::RedisError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tollgate_core::Timestamp;
use tollgate_core::store::StoreError;

use crate::address::{Connection, Servers, give_up};
use crate::answer::{Answer, Chores};
use crate::breaker::Breaker;
use crate::script;
use crate::server;
use crate::stats::Counts;
use crate::wire::{Message, Reply};

/// How the link behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The longest that a decision may take.
    pub(crate) deadline: Duration,
    /// Decisions that may wait; further ones fail at once.
    pub(crate) queue: usize,
}

/// Asks a server of a tag to do what it is there for: to write.
pub(crate) type Probe = Box<dyn Fn(u8) -> Message + Send + Sync>;

/// The caller's end.
#[derive(Debug)]
pub(crate) struct Link {
    jobs: mpsc::Sender<Job>,
    chores: Chores,
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
    broken: watch::Sender<u64>,
    deadline: Duration,
}

/// How it stands with the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Not known yet.
    Connecting,
    /// They answer, and this is to be said of them.
    Up(Vec<String>),
    /// They do not, because of this.
    Down(String),
}

/// What callers and the driver both see.
#[derive(Debug)]
struct Shared {
    breakers: Breakers,
    /// The connection in use, and which it is.
    connection: RwLock<Option<(u64, Connection)>>,
    /// Calls on their way.
    calls: AtomicUsize,
    counts: Arc<Counts>,
}

/// One breaker, or one for each tag where different tags live on different servers.
#[derive(Debug)]
struct Breakers(Box<[Breaker]>);

/// A message on its way, and who waits for the reply.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tag: u8,
    pub(crate) message: Message,
    pub(crate) at: Option<Timestamp>,
    pub(crate) nature: Nature,
    pub(crate) reply: Option<oneshot::Sender<Result<Answer, StoreError>>>,
}

/// What may become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    /// Let go when nobody waits for it any more.
    Decision,
    /// Sent in any case, never twice.
    Once,
    /// Sent in any case, and again if it may not have arrived.
    Repeatable {
        /// How often it may yet be sent.
        attempts: u8,
    },
}

impl Nature {
    /// For what can be done twice.
    pub(crate) const REPEATABLE: Self = Self::Repeatable { attempts: 5 };
}

/// Messages of one call.
const BATCH: usize = 32;
/// Calls with decisions that the driver has on their way at the same time. More would leave less to share.
const CALLS: usize = 2;
/// Probes of a cluster that fail in a row before it is looked at anew.
const PROBES: u32 = 5;
/// Chores that may wait. Beyond that leases are left to expire.
const CHORES: usize = 16_384;
/// The first wait before a server is asked again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(50);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Link {
    /// Starts the driver on the present runtime.
    pub(crate) fn start(servers: Servers, settings: Settings, probe: Probe) -> Self {
        let (jobs, queue) = mpsc::channel(settings.queue);
        let (chores, inbox) = mpsc::channel(CHORES);
        let count = if servers.is_cluster() { 256 } else { 1 };
        let shared = Arc::new(Shared {
            breakers: Breakers((0..count).map(|_| Breaker::default()).collect()),
            connection: RwLock::default(),
            calls: AtomicUsize::new(0),
            counts: Arc::default(),
        });
        let (say, status) = watch::channel(Status::Connecting);
        let (broken, is_broken) = watch::channel(0);
        let chores = Chores::new(chores, Arc::clone(&shared.counts));
        let driver = Driver {
            servers,
            queue,
            inbox,
            shared: Arc::clone(&shared),
            status: say,
            broken: is_broken,
            waiting: Vec::new(),
            chores: VecDeque::new(),
            unclaimed: chores.downgrade(),
            probe,
            deadline: settings.deadline,
            give_up: give_up(settings.deadline),
        };
        tokio::spawn(driver.run());
        Self { jobs, chores, shared, status, broken, deadline: settings.deadline }
    }

    /// Waits until it is known whether the servers answer.
    pub(crate) async fn known(&self) -> Status {
        let mut status = self.status.clone();
        match status.wait_for(|status| *status != Status::Connecting).await {
            Ok(status) => status.clone(),
            Err(_) => Status::Down("its task has ended".to_owned()),
        }
    }

    /// How it stands at this moment.
    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.shared.counts
    }

    /// When a decision that begins now must be over.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Sends a decision and waits for its reply, no longer than the deadline.
    pub(crate) async fn call(
        &self,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
        deadline: Instant,
    ) -> Result<Answer, StoreError> {
        let counts = &self.shared.counts;
        let breaker = self.shared.breakers.of(tag);
        if breaker.is_open() {
            counts.failed.add(1);
            return Err(unavailable("it failed and is left alone for a moment"));
        }
        let answer = match self.shared.connection_if_idle() {
            Some(idle) => timeout_at(deadline, self.call_directly(idle, tag, message, at)).await,
            None => {
                let (reply, answer) = oneshot::channel();
                let job = Job { tag, message, at, nature: Nature::Decision, reply: Some(reply) };
                if self.jobs.try_send(job).is_err() {
                    counts.failed.add(1);
                    return Err(unavailable("too many decisions are waiting for it"));
                }
                timeout_at(deadline, received(answer)).await
            }
        };
        let answer = answer.unwrap_or_else(|_| {
            breaker.failed();
            counts.late.add(1);
            Err(unavailable(&format!("no answer within {:?}", self.deadline)))
        });
        if answer.is_err() {
            counts.failed.add(1);
        }
        answer
    }

    async fn call_directly(
        &self,
        idle: Idle<'_>,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
    ) -> Result<Answer, StoreError> {
        let Idle { generation, mut connection, .. } = idle;
        // If this is given up on the way, leases that it may have taken are given back.
        let mut answer = Answer::awaited(tag, message, &self.chores);
        let breaker = self.shared.breakers.of(tag);
        let counts = &self.shared.counts;
        match script::call(&mut connection, once(answer.message()), at, counts).await {
            Ok(reply) => {
                breaker.succeeded();
                answer.arrived(reply);
                Ok(answer)
            }
            Err(error) => {
                breaker.failed();
                let problem = Problem::Server(error);
                if problem.is_fatal() && !self.has_slots() {
                    self.broken.send_replace(generation);
                }
                Err(unavailable(&problem.describe()))
            }
        }
    }

    /// Sends what must be sent in any case, and waits for the reply, no longer than the deadline.
    pub(crate) async fn chore(
        &self,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
        nature: Nature,
        deadline: Instant,
    ) -> Result<Reply, StoreError> {
        let (reply, answer) = oneshot::channel();
        if !self.chores.push(Job { tag, message, at, nature, reply: Some(reply) }) {
            return Err(unavailable("too much is waiting for it"));
        }
        if self.is_open(tag) {
            return Err(unavailable("it failed and is left alone for a moment"));
        }
        match timeout_at(deadline, received(answer)).await {
            Ok(answer) => answer.map(Answer::claim),
            Err(_) => Err(unavailable(&format!("no answer within {:?}", self.deadline))),
        }
    }

    /// Sends what must be sent in any case, and waits for nothing.
    pub(crate) fn chore_later(&self, tag: u8, message: Message) {
        self.chores.push(Job { tag, message, at: None, nature: Nature::REPEATABLE, reply: None });
    }

    /// Whether charges of different tags must travel apart.
    pub(crate) fn has_slots(&self) -> bool {
        self.shared.breakers.0.len() > 1
    }

    /// Whether a tag is left alone at this moment.
    pub(crate) fn is_open(&self, tag: u8) -> bool {
        self.shared.breakers.of(tag).is_open()
    }

    /// Whether the store is left alone at this moment, in whole or in part.
    pub(crate) fn is_degraded(&self) -> bool {
        self.shared.breakers.0.iter().any(Breaker::is_open)
    }
}

async fn received(answer: oneshot::Receiver<Result<Answer, StoreError>>) -> Result<Answer, StoreError> {
    answer.await.unwrap_or_else(|_| Err(unavailable("its connection was given up")))
}

fn unavailable(why: &str) -> StoreError {
    StoreError::Unavailable(why.to_owned())
}

/// The right to use the connection while nobody else does.
struct Idle<'s> {
    generation: u64,
    connection: Connection,
    _call: OnItsWay<'s>,
}

/// Counts a call for as long as it lasts.
struct OnItsWay<'s>(&'s AtomicUsize);

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    fn connection_if_idle(&self) -> Option<Idle<'_>> {
        self.calls.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        let call = OnItsWay(&self.calls);
        let (generation, connection) = self.connection.read().clone()?;
        Some(Idle { generation, connection, _call: call })
    }
}

impl Breakers {
    #[allow(clippy::indexing_slicing, reason = "one breaker, or one for each of 256 tags")]
    fn of(&self, tag: u8) -> &Breaker {
        &self.0[usize::from(tag) % self.0.len()]
    }

    /// The next tag from here on that is left alone.
    fn open_from(&self, tag: u8) -> Option<u8> {
        (0..=u8::MAX).map(|step| tag.wrapping_add(step)).find(|&tag| self.of(tag).is_open())
    }
}

/// The task's end.
struct Driver {
    servers: Servers,
    queue: mpsc::Receiver<Job>,
    inbox: mpsc::Receiver<Job>,
    shared: Arc<Shared>,
    status: watch::Sender<Status>,
    /// Which connection a caller has found broken.
    broken: watch::Receiver<u64>,
    /// Decisions taken from the queue, not yet sent.
    waiting: Vec<Job>,
    chores: VecDeque<Job>,
    unclaimed: Chores,
    probe: Probe,
    deadline: Duration,
    give_up: Duration,
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
    async fn run(mut self) {
        let mut wait = FIRST_WAIT;
        let mut outdated = false;
        for generation in 1.. {
            let connected = match timeout(2 * self.give_up, self.servers.connect(self.give_up)).await {
                Ok(Ok(connection)) => self.probe(connection).await,
                Ok(Err(error)) => Err(server::explain(&error)),
                Err(_) => Err("no connection in time".to_owned()),
            };
            match connected {
                Ok((connection, warnings)) => {
                    wait = FIRST_WAIT;
                    self.shared.counts.connections.add(1);
                    *self.shared.connection.write() = Some((generation, connection.clone()));
                    // With a new view of a cluster, parts that were away come back one by one, when they answer.
                    if !outdated {
                        self.shared.breakers.0.iter().for_each(Breaker::close);
                    }
                    self.say(Status::Up(warnings));
                    let stopped = self.serve(connection, generation).await;
                    *self.shared.connection.write() = None;
                    outdated = match stopped {
                        Stopped::Unused => return,
                        Stopped::Broken => false,
                        Stopped::Outdated => true,
                    };
                }
                Err(problem) => {
                    self.shared.breakers.0.iter().for_each(Breaker::open);
                    self.say(Status::Down(problem.clone()));
                    if self.refuse_for(jittered(wait), &problem).await {
                        return;
                    }
                    wait = (2 * wait).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Tells how it stands, in the log only if that is new.
    fn say(&self, status: Status) {
        let before = self.status.send_replace(status.clone());
        if before == status {
            return;
        }
        match status {
            Status::Up(warnings) => {
                tracing::info!("the store in Redis answers");
                warnings.iter().for_each(|warning| tracing::warn!("the store in Redis: {warning}"));
            }
            Status::Down(problem) => {
                tracing::error!("the store in Redis is not available, limits are kept without it: {problem}");
            }
            Status::Connecting => {}
        }
    }

    /// Whether the server is one that will do, and the script runs and writes there soon enough; what is to be said of it.
    async fn probe(&self, mut connection: Connection) -> Result<(Connection, Vec<String>), String> {
        let counts = &self.shared.counts;
        let inspected = timeout(self.give_up, server::inspect(&mut connection)).await;
        let warnings = inspected.map_err(|_| format!("no reply within {:?}", self.give_up))??;
        let probe = (self.probe)(0);
        // The first time the script has to be sent, and compiled.
        match timeout(self.give_up, script::call(&mut connection, once(&probe), None, counts)).await {
            Ok(loaded) => loaded.map_err(|error| server::explain(&error))?,
            Err(_) => return Err("the script did not run in time".to_owned()),
        };
        match timeout(self.deadline, script::call(&mut connection, once(&probe), None, counts)).await {
            Ok(Ok(_)) => Ok((connection, warnings)),
            Ok(Err(error)) => Err(server::explain(&error)),
            Err(_) => Err(format!("it takes longer than {:?} to answer", self.deadline)),
        }
    }

    /// Lets nobody wait for a server that cannot be had, for so long. True if nobody can ask any more.
    async fn refuse_for(&mut self, time: Duration, problem: &str) -> bool {
        let refuse = |job: Job| {
            if let Some(reply) = job.reply {
                let _ = reply.send(Err(unavailable(problem)));
            }
        };
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

    async fn serve(&mut self, connection: Connection, generation: u64) -> Stopped {
        let cluster = self.servers.is_cluster();
        let shared = Arc::clone(&self.shared);
        let breakers = &shared.breakers;
        let mut broken = self.broken.clone();
        let mut calls = FuturesUnordered::new();
        let (mut deciding, mut tidying) = (0, false);
        let mut probing = tokio::time::interval(2 * FIRST_WAIT);
        probing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut probes = FuturesUnordered::new();
        let (mut next_probe, mut failed_probes) = (0_u8, 0);
        let (mut unused, mut tidied) = (false, false);
        loop {
            if !tidying && let Some(chores) = self.next_chores(cluster) {
                tidying = true;
                calls.push(carry(connection.clone(), chores, &shared, self.give_up));
            }
            if unused && tidied && calls.is_empty() && self.chores.is_empty() {
                return Stopped::Unused;
            }
            tokio::select! {
                biased;
                Some((jobs, result)) = calls.next(), if !calls.is_empty() => {
                    let chores = jobs.first().is_some_and(|job: &Job| job.nature != Nature::Decision);
                    if chores { tidying = false } else { deciding -= 1 }
                    if let Err(problem) = self.finish(jobs, result) && !cluster && problem.is_fatal() {
                        return Stopped::Broken;
                    }
                }
                () = breakers.of(0).opened(), if !cluster => return Stopped::Broken,
                Ok(_) = broken.wait_for(|&broken| broken == generation) => return Stopped::Broken,
                Some((tag, back)) = probes.next(), if !probes.is_empty() => {
                    if back {
                        breakers.of(tag).close();
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
                _ = probing.tick(), if cluster && probes.is_empty() => {
                    // One tag that is left alone is asked whether its server is back.
                    if let Some(tag) = breakers.open_from(next_probe) {
                        next_probe = tag.wrapping_add(1);
                        let message = (self.probe)(tag);
                        probes.push(probe_tag(connection.clone(), tag, message, self.deadline, &shared.counts));
                    }
                }
                count = self.queue.recv_many(&mut self.waiting, BATCH), if deciding < CALLS && !unused => {
                    unused = count == 0;
                    while let Some(jobs) = self.next_batch(cluster) {
                        deciding += 1;
                        calls.push(carry(connection.clone(), jobs, &shared, self.give_up));
                    }
                }
                chore = self.inbox.recv(), if !tidied && self.chores.len() < CHORES => match chore {
                    Some(chore) => {
                        self.chores.push_back(chore);
                        while self.chores.len() < BATCH && let Ok(chore) = self.inbox.try_recv() {
                            self.chores.push_back(chore);
                        }
                    }
                    None => tidied = true,
                }
            }
        }
    }

    /// Decisions that can share a call: of one moment, and of one slot where there are slots. Those whose callers have
    /// gone away are let go: they have not been charged.
    fn next_batch(&mut self, cluster: bool) -> Option<Vec<Job>> {
        self.waiting.retain(|job| job.reply.as_ref().is_some_and(|reply| !reply.is_closed()));
        let first = self.waiting.first()?;
        let (tag, at) = (first.tag, first.at);
        let fits = |job: &mut Job| job.at == at && (!cluster || job.tag == tag);
        Some(self.waiting.extract_if(.., fits).take(BATCH).collect())
    }

    /// Chores that can share a call, and whose part of the store answers.
    fn next_chores(&mut self, cluster: bool) -> Option<Vec<Job>> {
        let breakers = &self.shared.breakers;
        let first = self.chores.iter().find(|job| !breakers.of(job.tag).is_open())?;
        let (tag, at) = (first.tag, first.at);
        let mut jobs = Vec::new();
        let mut rest = VecDeque::with_capacity(self.chores.len());
        for job in self.chores.drain(..) {
            if jobs.len() < BATCH && job.at == at && (!cluster || job.tag == tag) {
                jobs.push(job);
            } else {
                rest.push_back(job);
            }
        }
        self.chores = rest;
        Some(jobs)
    }

    /// Tells every caller of a call what it is waiting for.
    fn finish(&mut self, jobs: Vec<Job>, result: Result<Reply, Problem>) -> Result<(), Problem> {
        let breakers = &self.shared.breakers;
        match result {
            Ok(reply) => {
                let sizes: Vec<_> = jobs.iter().map(|job| job.message.items).collect();
                for (job, reply) in jobs.into_iter().zip(reply.split(sizes.into_iter())) {
                    breakers.of(job.tag).succeeded();
                    let mut answer = Answer::awaited(job.tag, job.message, &self.unclaimed);
                    answer.arrived(reply);
                    match job.reply {
                        // If nobody waits for it any more, leases are given back: see `Answer`.
                        Some(reply) => drop(reply.send(Ok(answer))),
                        None => drop(answer.claim()),
                    }
                }
                Ok(())
            }
            Err(problem) => {
                let why = problem.describe();
                for mut job in jobs {
                    breakers.of(job.tag).failed();
                    if let Some(reply) = job.reply.take() {
                        let _ = reply.send(Err(unavailable(&why)));
                    }
                    match job.nature {
                        Nature::Repeatable { attempts: attempts @ 1.. } => {
                            let nature = Nature::Repeatable { attempts: attempts - 1 };
                            self.chores.push_back(Job { nature, ..job });
                        }
                        // It may have run: what it may have taken and can be named is given back.
                        Nature::Decision if problem.is_fatal() => {
                            drop(Answer::awaited(job.tag, job.message, &self.unclaimed));
                        }
                        _ => {}
                    }
                }
                Err(problem)
            }
        }
    }
}

/// Whether the server of a tag answers in time.
async fn probe_tag(
    mut connection: Connection,
    tag: u8,
    message: Message,
    deadline: Duration,
    counts: &Counts,
) -> (u8, bool) {
    let call = script::call(&mut connection, once(&message), None, counts);
    (tag, timeout(deadline, call).await.is_ok_and(|reply| reply.is_ok()))
}

/// Sends jobs in one call.
async fn carry(
    mut connection: Connection,
    jobs: Vec<Job>,
    shared: &Shared,
    give_up: Duration,
) -> (Vec<Job>, Result<Reply, Problem>) {
    shared.calls.fetch_add(1, Ordering::AcqRel);
    let _call = OnItsWay(&shared.calls);
    let at = jobs.first().and_then(|job| job.at);
    let messages = jobs.iter().map(|job| &job.message);
    let call = script::call(&mut connection, messages, at, &shared.counts);
    let result = match timeout(give_up, call).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(Problem::Server(error)),
        Err(_) => Err(Problem::Silence(give_up)),
    };
    (jobs, result)
}

/// Why a call has no reply.
enum Problem {
    Server(RedisError),
    Silence(Duration),
}

impl Problem {
    /// Whether the connection must not be used again.
    fn is_fatal(&self) -> bool {
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

    fn describe(&self) -> String {
        match self {
            Self::Server(error) => server::explain(error),
            Self::Silence(time) => format!("no reply within {time:?}"),
        }
    }
}

/// Anything from nothing to the whole time: those who wait for the same thing do not come back together.
fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::random::<f64>())
}
