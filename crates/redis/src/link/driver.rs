//! The task that keeps the connection: it takes decisions and chores from their queues, and knows when to leave a store
//! alone and when to ask again.

use std::iter::once;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::call::{Carried, Done, Late, Problem, carry};
use super::channel::Channel;
use super::lanes::Lanes;
use super::pace::{TURNS, within};
use super::parts::Parts;
use super::spares::{self, Spares};
use super::{Ends, Job, Nature, Probe, Settings, Shared, Status, unavailable};
use crate::address::{Connection, Servers, give_up};
use crate::answer::{Answer, Chores};
use crate::breaker::Breaker;
use crate::script::Script;
use crate::server;
use crate::wire::Message;

/// Messages of one call.
pub(crate) const BATCH: usize = 32;
/// The first wait before a server is asked again, and the longest.
pub(super) const FIRST_WAIT: Duration = Duration::from_millis(50);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// The task's end.
pub(super) struct Driver {
    servers: Arc<Servers>,
    queue: mpsc::Receiver<Job>,
    inbox: mpsc::Receiver<Job>,
    shared: Arc<Shared>,
    status: watch::Sender<Status>,
    /// Calls that their callers have given up.
    late: mpsc::UnboundedReceiver<Late>,
    changed: Arc<Notify>,
    lanes: Lanes,
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
    /// No connection has brought a reply for the time of a whole decision.
    Silent,
}

impl Driver {
    pub(super) fn new(servers: Servers, settings: Settings, probe: Probe, ends: Ends) -> Self {
        let Ends { queue, inbox, shared, status, late, changed, unclaimed } = ends;
        Self {
            lanes: Lanes::new(servers.is_cluster()),
            servers: Arc::new(servers),
            queue,
            inbox,
            shared,
            status,
            late,
            changed,
            unclaimed,
            probe,
            deadline: settings.deadline,
            give_up: give_up(settings.deadline),
        }
    }

    pub(super) async fn run(mut self) {
        let mut wait = FIRST_WAIT;
        loop {
            let connected = match self.connect().await {
                Ok((connection, warnings)) => {
                    self.deliver_chores(&connection).await.map(|()| (connection, warnings))
                }
                Err(problem) => Err(problem),
            };
            match connected {
                Ok((connection, warnings)) => {
                    let begun = Instant::now();
                    self.shared.script.counts.connections.add(1);
                    let channel = Channel::new(connection, &self.changed);
                    *self.shared.channel.write() = Some(Arc::clone(&channel));
                    self.shared.breakers.iter().for_each(Breaker::close);
                    self.say(Status::Up(warnings));
                    let stopped = self.serve(channel).await;
                    *self.shared.channel.write() = None;
                    match stopped {
                        Stopped::Unused => return,
                        Stopped::Silent => self.shared.breakers.iter().for_each(Breaker::open),
                        Stopped::Broken => {}
                    }
                    // A server that takes connections and then fails is not connected to again and again.
                    if begun.elapsed() >= 4 * FIRST_WAIT {
                        wait = FIRST_WAIT;
                        continue;
                    }
                    self.shared.breakers.iter().for_each(Breaker::open);
                    if self.refuse_for(jittered(wait), "its connection broke").await {
                        return;
                    }
                    wait = (2 * wait).min(LONGEST_WAIT);
                }
                Err(problem) => {
                    self.shared.breakers.iter().for_each(Breaker::open);
                    self.say(Status::Down(problem.clone()));
                    if self.refuse_for(jittered(wait), &problem).await {
                        return;
                    }
                    wait = (2 * wait).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Connects to a server that will do. While that takes longer than a reply, nobody waits for it.
    async fn connect(&self) -> Result<(Connection, Vec<String>), String> {
        let mut attempt = pin!(async {
            let connection = connect(Arc::clone(&self.servers), self.give_up).await?;
            self.probe(connection).await
        });
        match timeout(self.shared.pace.overdue_after(), attempt.as_mut()).await {
            Ok(connected) => connected,
            Err(_) => {
                self.shared.breakers.iter().for_each(Breaker::open);
                attempt.await
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
    /// Of a cluster, a part is enough.
    async fn probe(&self, mut connection: Connection) -> Result<(Connection, Vec<String>), String> {
        let inspected = timeout(self.give_up, server::inspect(&mut connection)).await;
        let warnings = inspected.map_err(|_| format!("no reply within {:?}", self.give_up))??;
        let tags = (0..=u8::MAX).step_by(if connection.is_cluster() { 16 } else { 256 });
        let probes = tags.map(|tag| self.probe_tag(connection.clone(), tag));
        let mut problem = String::new();
        for probed in join_all(probes).await {
            match probed {
                Ok(()) => return Ok((connection, warnings)),
                Err(why) => problem = why,
            }
        }
        Err(problem)
    }

    /// Sends the releases that have waited for a server, before any decision is made by it. A decision that overtakes them
    /// would count leases that have ended, and could reject a caller who is within its limit. In a cluster each part sends
    /// its own when it is back.
    async fn deliver_chores(&mut self, connection: &Connection) -> Result<(), String> {
        if connection.is_cluster() {
            return Ok(());
        }
        let (shared, unclaimed) = (Arc::clone(&self.shared), self.unclaimed.clone());
        let channel = Channel::new(connection.clone(), &self.changed);
        loop {
            while self.lanes.has_room_for_chores(false)
                && let Ok(chore) = self.inbox.try_recv()
            {
                self.take_in(chore);
            }
            let jobs = self.lanes.next_chores();
            if jobs.is_empty() {
                return Ok(());
            }
            let done = carry(Carried::new(&channel, jobs, &unclaimed), &shared, self.give_up).await;
            self.finish(done);
            if channel.is_broken() {
                return Err("its connection broke while releases were sent".to_owned());
            }
        }
    }

    async fn probe_tag(&self, mut connection: Connection, tag: u8) -> Result<(), String> {
        let (script, probe) = (&self.shared.script, (self.probe)(tag));
        // The first time the script has to be sent, and compiled.
        match timeout(self.give_up, script.call(&mut connection, once(&probe), None)).await {
            Ok(loaded) => drop(loaded.map_err(|error| server::explain(&error))?),
            Err(_) => return Err("the script did not run in time".to_owned()),
        }
        let call = pin!(script.call(&mut connection, once(&probe), None));
        match within(Instant::now() + self.deadline, call).await {
            Some(Ok(_)) => Ok(()),
            Some(Err(error)) => Err(server::explain(&error)),
            None => Err(format!("it takes longer than {:?} to answer", self.deadline)),
        }
    }

    /// Lets nobody wait for a server that cannot be had, for so long. True if nobody can ask any more.
    async fn refuse_for(&mut self, time: Duration, problem: &str) -> bool {
        for job in self.lanes.drain_decisions() {
            self.refuse(job, problem);
        }
        let over = tokio::time::sleep(time);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return false,
                job = self.queue.recv() => match job {
                    Some(job) => self.refuse(job, problem),
                    None => return true,
                },
            }
        }
    }

    /// Lets a decision fail. A release behind it is kept, and sent when the server is back.
    fn refuse(&mut self, job: Job, problem: &str) {
        if job.nature == Nature::Trailing {
            if let Some(chore) = job.once_more() {
                self.take_in(chore);
            }
        } else if let Some(reply) = job.reply {
            let _ = reply.send(Err(unavailable(problem)));
        }
    }

    async fn serve(&mut self, mut channel: Arc<Channel>) -> Stopped {
        self.lanes.restart();
        let unclaimed = self.unclaimed.clone();
        let cluster = self.servers.is_cluster();
        let shared = Arc::clone(&self.shared);
        let breakers = &shared.breakers;
        let changed = Arc::clone(&self.changed);
        let mut spares = Spares::new(cluster);
        // Connections that others have taken the place of, while a reply is overdue or chores were not sent again.
        let mut replaced: Vec<Arc<Channel>> = Vec::new();
        let (mut connected, mut judged) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut calls = FuturesUnordered::new();
        let mut decisions = Vec::with_capacity(BATCH);
        let mut parts = Parts::default();
        let (mut probes, mut connecting) = (FuturesUnordered::new(), FuturesUnordered::new());
        let mut demotion = pin!(demoted(Arc::clone(&self.servers), self.give_up));
        let mut ticks = tokio::time::interval(2 * FIRST_WAIT);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut unused, mut tidied, mut turns) = (false, false, 0);
        loop {
            // Whatever was given back before somebody asked is here by now, and goes first.
            while self.lanes.has_room_for_chores(false)
                && let Ok(chore) = self.inbox.try_recv()
            {
                self.take_in(chore);
            }
            if !cluster && channel.has_lost_server() {
                return Stopped::Broken;
            }
            if channel.should_be_replaced()
                && let Some(spare) = spares.take()
            {
                replaced.push(self.replace(&mut channel, spare));
            }
            replaced.retain(|old| {
                let is_waited_for = old.has_chores() || old.has_overdue() && !old.is_broken();
                // A late reply of one node says little of the others, and connecting with all of them takes long.
                if cluster && !is_waited_for && !old.is_broken() {
                    spares.put_back(old.connection());
                }
                is_waited_for
            });
            if !cluster {
                if channel.is_broken() && spares.have_failed() && connected.is_empty() {
                    return Stopped::Broken;
                }
                spares.note(channel.is_fit());
                if channel.is_fit() {
                    turns = 0;
                }
            }
            spares.tidy();
            for _ in connected.len()..spares.wanted() {
                let patience = spares.patience(self.deadline, self.give_up);
                connected.push(spares::connect(Arc::clone(&self.servers), patience));
            }
            let is_overtaking = replaced.iter().any(|old| old.has_chores());
            let is_disturbed = spares.is_disturbed();
            shared.is_disturbed.store(is_disturbed, Ordering::Release);
            while channel.is_fit()
                && !is_overtaking
                && let Some(jobs) = self.lanes.next(breakers, is_disturbed)
            {
                calls.push(carry(Carried::new(&channel, jobs, &unclaimed), &shared, self.give_up));
            }
            // What is left is for parts that are away.
            if unused && tidied && calls.is_empty() {
                return Stopped::Unused;
            }
            tokio::select! {
                biased;
                Some(done) = calls.next(), if !calls.is_empty() => {
                    if Arc::ptr_eq(&done.0, &channel)
                        && let Some((job, _)) = done.1.first()
                    {
                        self.lanes.leave(job.tag);
                    }
                    self.finish(done);
                }
                Some(late) = self.late.recv() => {
                    let time = if cluster { self.give_up } else { shared.pace.overdue_after() };
                    judged.push(judge(late, time));
                }
                Some((tag, channel, result)) = judged.next(), if !judged.is_empty() => match result {
                    // Nobody waits for it any more: leases are given back.
                    Some(result) => drop(shared.judged(tag, &channel, result)),
                    None => {
                        breakers.of(tag).failed();
                        channel.give_up(false);
                    }
                },
                Some(spare) = connected.next(), if !connected.is_empty() => spares.connected(spare),
                () = sleep_until(spares.next_attempt()), if spares.is_waiting() => {}
                () = sleep_until(spares.silent_since() + self.deadline), if !cluster && !channel.is_fit() => {
                    // Those who read replies may not have had their turn yet.
                    if turns >= TURNS {
                        return Stopped::Silent;
                    }
                    turns += 1;
                    tokio::task::yield_now().await;
                }
                () = changed.notified() => {}
                () = breakers.of(0).opened(), if !cluster => return Stopped::Broken,
                () = &mut demotion, if self.servers.has_sentinels() => return Stopped::Broken,
                Some((tag, back)) = probes.next(), if !probes.is_empty() => {
                    if back {
                        breakers.of(tag).close();
                        self.lanes.wake(tag);
                    }
                    parts.probed(back);
                    if probes.is_empty() {
                        if breakers.iter().all(Breaker::is_open) {
                            return Stopped::Broken;
                        }
                        // Perhaps another node has taken the place of one that stays away. Meanwhile the others are
                        // served.
                        if parts.look_outdated() && connecting.is_empty() {
                            let tags = (0..=u8::MAX).step_by(16).map(|tag| (tag, (self.probe)(tag))).collect();
                            let old = (channel.connection(), tags, self.deadline, &shared.script);
                            connecting.push(connect_anew(Arc::clone(&self.servers), self.give_up, old));
                        }
                    }
                }
                Some(connected) = connecting.next(), if !connecting.is_empty() => match connected {
                    Some(anew) => {
                        spares.clear();
                        // It does not know the cluster as it is now.
                        channel.give_up(false);
                        replaced.push(self.replace(&mut channel, anew));
                    }
                    None => return Stopped::Broken,
                },
                _ = ticks.tick(), if cluster && probes.is_empty() => {
                    // Some that are left alone are asked whether their servers are back.
                    for tag in breakers.some_open(parts.to_probe(Instant::now())) {
                        let message = (self.probe)(tag);
                        probes.push(probe_later(channel.connection(), tag, message, self.deadline, &shared.script));
                    }
                }
                count = self.queue.recv_many(&mut decisions, BATCH), if !unused && self.lanes.has_room() => {
                    unused = count == 0;
                    decisions.drain(..).for_each(|job| self.lanes.add(job));
                }
                chore = self.inbox.recv(), if !tidied && self.lanes.has_room_for_chores(false) => match chore {
                    Some(chore) => self.take_in(chore),
                    None => tidied = true,
                }
            }
        }
    }

    /// Has another connection used from now on. Yields the one that it takes the place of.
    fn replace(&mut self, channel: &mut Arc<Channel>, connection: Connection) -> Arc<Channel> {
        let old = std::mem::replace(channel, Channel::new(connection, &self.changed));
        old.replace();
        *self.shared.channel.write() = Some(Arc::clone(channel));
        self.shared.script.counts.connections.add(1);
        self.lanes.restart();
        old
    }

    /// A chore waits its turn, unless too many of parts that are away do already: then its lease expires.
    fn take_in(&mut self, chore: Job) {
        if self.lanes.has_room_for_chores(self.shared.breakers.of(chore.tag).is_open()) {
            self.lanes.add(chore);
        } else {
            self.shared.script.counts.chores_dropped.add(1);
        }
    }

    /// Tells every caller of a call what it is waiting for.
    fn finish(&mut self, (channel, done): Done) {
        // One call that fails is one failure, and one that succeeds one success, however many share it.
        let mut is_counted = false;
        for (mut job, result) in done {
            let breaker = self.shared.breakers.of(job.tag);
            let is_first = !std::mem::replace(&mut is_counted, true);
            match result {
                Ok(reply) => {
                    if is_first {
                        breaker.succeeded();
                    }
                    let mut answer = Answer::awaited(job.tag, job.message, &self.unclaimed);
                    answer.arrived(reply);
                    match job.reply {
                        // If nobody waits for it any more, leases are given back: see `Answer`.
                        Some(reply) => drop(reply.send(Ok(answer))),
                        None => drop(answer.claim()),
                    }
                }
                Err(problem) => {
                    if is_first {
                        breaker.failed();
                    }
                    if channel.is_cluster() && problem.is_silence() {
                        // Chores go on being sent where nobody asks and fails, and each of these would be waited for.
                        breaker.open();
                    }
                    if problem.is_fatal() {
                        channel.give_up(problem.is_of_server());
                    }
                    self.shared.complain(&problem);
                    if let Some(reply) = job.reply.take() {
                        let _ = reply.send(Err(unavailable(&problem.describe())));
                    }
                    if job.nature != Nature::Decision || problem.may_have_run() {
                        job.left_in_doubt(&self.unclaimed);
                    }
                }
            }
        }
    }
}

async fn connect(servers: Arc<Servers>, give_up: Duration) -> Result<Connection, String> {
    match timeout(2 * give_up, servers.connect(give_up)).await {
        Ok(connected) => connected.map_err(|error| server::explain(&error)),
        Err(_) => Err("no connection in time".to_owned()),
    }
}

/// Waits a moment longer for a call that its caller has given up.
async fn judge(late: Late, time: Duration) -> (u8, Arc<Channel>, Option<Result<Answer, Problem>>) {
    let Late { tag, channel, mut call } = late;
    let result = within(Instant::now() + time, call.as_mut()).await;
    (tag, channel, result)
}

/// Waits until sentinels name another primary. The old one may live on for a while, and would take what nobody hears of.
async fn demoted(servers: Arc<Servers>, give_up: Duration) {
    loop {
        tokio::time::sleep(LONGEST_WAIT / 2 + jittered(LONGEST_WAIT)).await;
        if timeout(2 * give_up, servers.names_another()).await.unwrap_or(false) {
            return;
        }
    }
}

/// Another connection to a cluster, or the old one if that still leads anywhere.
async fn connect_anew(
    servers: Arc<Servers>,
    give_up: Duration,
    (old, tags, deadline, script): (Connection, Vec<(u8, Message)>, Duration, &Script),
) -> Option<Connection> {
    if let Ok(connection) = connect(servers, give_up).await {
        return Some(connection);
    }
    let probes =
        tags.into_iter().map(|(tag, message)| probe_later(old.clone(), tag, message, deadline, script));
    join_all(probes).await.into_iter().any(|(_, answers)| answers).then_some(old)
}

/// Whether the server of a tag answers in time.
async fn probe_later(
    mut connection: Connection,
    tag: u8,
    message: Message,
    deadline: Duration,
    script: &Script,
) -> (u8, bool) {
    let call = script.call(&mut connection, once(&message), None);
    (tag, timeout(deadline, call).await.is_ok_and(|reply| reply.is_ok()))
}

/// Anything from nothing to the whole time: those who wait for the same thing do not come back together.
pub(super) fn jittered(time: Duration) -> Duration {
    time.mul_f64(rand::random::<f64>())
}
