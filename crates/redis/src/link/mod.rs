//! The way to the servers and back: one task that keeps the connection, sends decisions that wait at the same moment
//! in one call, and knows when to leave a store alone.
//!
//! ```text
//! call -> breaker open? fail at once
//!      -> nothing on its way or before it? send it, and wait for the reply
//!      -> else queue (bounded) -> driver -> EVALSHA of up to 32 chores and decisions -> reply to each
//!      -> no reply within the deadline: fail
//!      -> a reply is overdue: the next calls take another connection, which was opened beforehand
//!      -> a call without a reply: the breaker counts it
//! ```
//!
//! A call that may have been charged is never sent again. `NOSCRIPT` and redirects are followed: then nothing has run.
//! Leases that are given back or renewed (chores) wait in a queue of their own and are sent before the decisions that came
//! after them, so that who gives a place back and asks anew finds it free. They may be sent again, because doing it twice
//! is doing it once.

mod call;
mod channel;
mod driver;
mod lanes;
mod pace;
mod parts;
mod spares;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tollgate_core::Timestamp;
use tollgate_core::store::StoreError;

use self::call::{Direct, Late, Problem, send_directly};
use self::channel::Channel;
pub(crate) use self::driver::BATCH;
use self::driver::Driver;
use self::pace::{Pace, within};
use crate::address::Servers;
use crate::answer::{Answer, Chores, Pending};
use crate::breaker::Breaker;
use crate::script::Script;
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
    /// Calls that their callers have given up.
    late: mpsc::UnboundedSender<Late>,
    deadline: Duration,
    max_waiting: usize,
}

/// Chores that may wait. Beyond that leases are left to expire.
const CHORES: usize = 16_384;

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
    breakers: ByTag<Breaker>,
    /// Chores that are not done yet.
    chores: Arc<ByTag<AtomicUsize>>,
    /// The connection in use.
    channel: RwLock<Option<Arc<Channel>>>,
    /// Whether replies got lost or came late a short while ago: then there is one call on its way at a time.
    is_disturbed: AtomicBool,
    pace: Pace,
    /// Calls on their way.
    calls: AtomicUsize,
    /// Decisions whose callers wait.
    waiting: AtomicUsize,
    script: Script,
    /// What a server that answers otherwise has last said to a decision that failed, and when.
    fault: Mutex<Option<(Instant, String)>>,
}

/// What the driver holds the other ends of.
struct Ends {
    queue: mpsc::Receiver<Job>,
    inbox: mpsc::Receiver<Job>,
    shared: Arc<Shared>,
    status: watch::Sender<Status>,
    late: mpsc::UnboundedReceiver<Late>,
    /// Told when a channel has become fit or unfit.
    changed: Arc<Notify>,
    unclaimed: Chores,
}

/// One, or one for each tag where different tags live on different servers.
#[derive(Debug)]
pub(crate) struct ByTag<T>(Box<[T]>);

/// A message on its way, and who waits for the reply.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) tag: u8,
    pub(crate) message: Message,
    pub(crate) at: Option<Timestamp>,
    pub(crate) nature: Nature,
    pub(crate) reply: Option<oneshot::Sender<Result<Answer, StoreError>>>,
    /// Of a chore: it counts while it is not done.
    pub(crate) pending: Option<Pending>,
}

impl Job {
    /// The same, to be sent again, if it may be.
    fn once_more(&self) -> Option<Self> {
        let nature = match self.nature {
            Nature::Repeatable { attempts: attempts @ 1.. } => Nature::Repeatable { attempts: attempts - 1 },
            Nature::Trailing => Nature::REPEATABLE,
            _ => return None,
        };
        let Self { tag, ref message, at, ref pending, .. } = *self;
        Some(Self { tag, message: message.clone(), at, nature, reply: None, pending: pending.clone() })
    }

    /// It may have been done or not: it is done again if it may be, and what it may have taken and can be named goes back.
    fn left_in_doubt(self, chores: &Chores) {
        match self.nature {
            Nature::Repeatable { .. } | Nature::Trailing => {
                let _ = self.once_more().map(|chore| chores.push(chore));
            }
            Nature::Decision => drop(Answer::awaited(self.tag, self.message, chores)),
            Nature::Once => {}
        }
    }
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
    /// A release that waits in the queue of decisions, behind the decision that takes its lease. If it fails, it is sent again
    /// as [`Repeatable`](Self::Repeatable).
    Trailing,
}

impl Nature {
    /// For what can be done twice.
    pub(crate) const REPEATABLE: Self = Self::Repeatable { attempts: 5 };
}

impl Link {
    /// Starts the driver on the present runtime.
    pub(crate) fn start(servers: Servers, settings: Settings, probe: Probe) -> Self {
        let (jobs, queue) = mpsc::channel(settings.queue);
        let (chores, inbox) = mpsc::channel(CHORES);
        let is_cluster = servers.is_cluster();
        let shared = Arc::new(Shared {
            breakers: ByTag::new(is_cluster),
            chores: Arc::new(ByTag::new(is_cluster)),
            channel: RwLock::default(),
            is_disturbed: AtomicBool::new(false),
            pace: Pace::new(settings.deadline),
            calls: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            script: Script::default(),
            fault: Mutex::default(),
        });
        let (say, status) = watch::channel(Status::Connecting);
        let (late, judged) = mpsc::unbounded_channel();
        let chores = Chores::new(chores, Arc::clone(&shared.script.counts), Arc::clone(&shared.chores));
        let driver = Driver::new(
            servers,
            settings,
            probe,
            Ends {
                queue,
                inbox,
                shared: Arc::clone(&shared),
                status: say,
                late: judged,
                changed: Arc::default(),
                unclaimed: chores.downgrade(),
            },
        );
        tokio::spawn(driver.run());
        Self { jobs, chores, shared, status, late, deadline: settings.deadline, max_waiting: settings.queue }
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
        match self.status.has_changed() {
            Ok(_) => self.status.borrow().clone(),
            Err(_) => Status::Down("the runtime that it was built on has ended".to_owned()),
        }
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.shared.script.counts
    }

    /// What the server has lately said to a decision that failed although it answers others.
    pub(crate) fn fault(&self) -> Option<String> {
        let fault = self.shared.fault.lock();
        fault.as_ref().filter(|(when, _)| when.elapsed() < FAULT_LASTS).map(|(_, fault)| fault.clone())
    }

    /// When a decision that begins now must be over.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.deadline
    }

    /// Sends a decision and waits for its reply, no longer than the deadline. A decision `in_order` always takes the queue,
    /// and is in it when this is first polled: see [`Store::charge_in_order`](tollgate_core::store::Store::charge_in_order).
    pub(crate) async fn call(
        &self,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
        deadline: Instant,
        in_order: bool,
    ) -> Result<Answer, StoreError> {
        let counts = &self.shared.script.counts;
        let breaker = self.shared.breakers.of(tag);
        if breaker.is_open() {
            counts.failed.add(1);
            return Err(unavailable("it failed and is left alone for a moment"));
        }
        let waiting = self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let _waits = OnItsWay(&self.shared.waiting);
        if waiting >= self.max_waiting {
            counts.failed.add(1);
            return Err(unavailable("too many decisions are waiting for it"));
        }
        let idle = if in_order { None } else { self.shared.channel_if_idle(tag) };
        let answer = match idle {
            Some(idle) => self.call_directly(idle, tag, message, at, deadline).await,
            None => {
                let (reply, answer) = oneshot::channel();
                let reply = Some(reply);
                let job = Job { tag, message, at, nature: Nature::Decision, reply, pending: None };
                if self.jobs.try_send(job).is_err() {
                    counts.failed.add(1);
                    return Err(unavailable("too many decisions are waiting for it"));
                }
                within(deadline, pin!(received(answer))).await
            }
        };
        let answer = answer.unwrap_or_else(|| {
            counts.late.add(1);
            Err(unavailable(&format!("no answer within {:?}", self.deadline)))
        });
        if answer.is_err() {
            counts.failed.add(1);
        }
        answer
    }

    /// Sends a decision over the idle connection. None if there was no reply by the deadline.
    async fn call_directly(
        &self,
        idle: Idle,
        tag: u8,
        message: Message,
        at: Option<Timestamp>,
        deadline: Instant,
    ) -> Option<Result<Answer, StoreError>> {
        let channel = Arc::clone(&idle.channel);
        // If this is given up on the way, leases that it may have taken are given back.
        let answer = Answer::awaited(tag, message, &self.chores);
        let mut call: Direct = Box::pin(send_directly(Arc::clone(&self.shared), idle, answer, at));
        match within(deadline, call.as_mut()).await {
            Some(result) => Some(self.shared.judged(tag, &channel, result)),
            None => {
                // In a cluster a call is waited for longer than a decision.
                if channel.is_cluster() {
                    self.shared.breakers.of(tag).failed();
                }
                let _ = self.late.send(Late { tag, channel, call });
                None
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
        if !self.chores.push(self.chores.job(tag, message, at, nature, Some(reply))) {
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
        self.chores.push(self.chores.job(tag, message, None, Nature::REPEATABLE, None));
    }

    /// Sends a release behind the decisions that wait in the queue. False if the queue has no room.
    pub(crate) fn release_in_order(&self, tag: u8, message: Message) -> bool {
        self.jobs.try_send(self.chores.job(tag, message, None, Nature::Trailing, None)).is_ok()
    }

    /// Whether charges of different tags must travel apart.
    pub(crate) fn has_slots(&self) -> bool {
        self.shared.breakers.len() > 1
    }

    /// Whether a tag is left alone at this moment.
    pub(crate) fn is_open(&self, tag: u8) -> bool {
        self.shared.breakers.of(tag).is_open()
    }

    /// How many parts of the store are left alone at this moment.
    pub(crate) fn breakers_open(&self) -> usize {
        self.shared.breakers.iter().filter(|breaker| breaker.is_open()).count()
    }
}

async fn received(answer: oneshot::Receiver<Result<Answer, StoreError>>) -> Result<Answer, StoreError> {
    answer.await.unwrap_or_else(|_| Err(unavailable("its connection was given up")))
}

fn unavailable(why: &str) -> StoreError {
    StoreError::Unavailable(why.to_owned())
}

/// The right to use the connection while nobody else does.
struct Idle {
    channel: Arc<Channel>,
    shared: Arc<Shared>,
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.shared.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts for as long as it lasts.
struct OnItsWay<'s>(&'s AtomicUsize);

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// For how long a fault is told of, and how often it is logged.
const FAULT_LASTS: Duration = Duration::from_secs(60);

impl Shared {
    /// Takes note of what a server has said. Of a connection that must not be used again the driver tells.
    fn complain(&self, problem: &Problem) {
        if problem.is_fatal() {
            return;
        }
        let (now, text) = (Instant::now(), problem.describe());
        let mut fault = self.fault.lock();
        let is_new = fault.as_ref().is_none_or(|(when, told)| *told != text || when.elapsed() >= FAULT_LASTS);
        if is_new {
            tracing::warn!("a decision in Redis failed, and was made without it: {text}");
            *fault = Some((now, text));
        }
    }

    /// What a call that one caller made came to, and what it says of the server.
    fn judged(
        &self,
        tag: u8,
        channel: &Channel,
        result: Result<Answer, Problem>,
    ) -> Result<Answer, StoreError> {
        let breaker = self.breakers.of(tag);
        result.inspect(|_| breaker.succeeded()).map_err(|problem| {
            breaker.failed();
            self.complain(&problem);
            if problem.is_fatal() && !channel.is_cluster() {
                channel.give_up(problem.is_of_server());
            }
            unavailable(&problem.describe())
        })
    }

    /// The connection, if it is fit, nothing is on its way and no chore waits that came before.
    fn channel_if_idle(self: &Arc<Self>, tag: u8) -> Option<Idle> {
        if self.chores.of(tag).load(Ordering::Acquire) > 0 || self.is_disturbed.load(Ordering::Acquire) {
            return None;
        }
        let channel = self.channel.read().as_ref().filter(|channel| channel.is_fit()).map(Arc::clone)?;
        self.calls.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Idle { channel, shared: Arc::clone(self) })
    }
}

impl<T> ByTag<T> {
    #[allow(clippy::indexing_slicing, reason = "one, or one for each of 256 tags")]
    pub(crate) fn of(&self, tag: u8) -> &T {
        &self.0[usize::from(tag) % self.0.len()]
    }

    #[allow(clippy::indexing_slicing, reason = "one, or one for each of 256 tags")]
    fn of_mut(&mut self, tag: u8) -> &mut T {
        let count = self.0.len();
        &mut self.0[usize::from(tag) % count]
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.0.iter_mut()
    }
}

impl<T: Default> ByTag<T> {
    fn new(is_cluster: bool) -> Self {
        Self((0..if is_cluster { 256 } else { 1 }).map(|_| T::default()).collect())
    }
}

impl ByTag<Breaker> {
    /// Some of the tags that are left alone, chosen at random.
    fn some_open(&self, count: usize) -> impl Iterator<Item = u8> {
        let from = rand::random::<u8>();
        let open = move |tag: &u8| self.of(*tag).is_open();
        (0..=u8::MAX).map(move |step| from.wrapping_add(step)).filter(open).take(count)
    }
}
