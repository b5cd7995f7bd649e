//! Four limiters in concert: one policy, one question, one answer.

mod admit;
mod counts;
mod file;
mod leases;
mod permit;
mod refusal;
mod running;
mod settle;
mod shed_log;
mod timings;
#[cfg(feature = "jwt")]
mod tokens;
mod toll;
#[cfg(feature = "watch")]
mod watch;
mod watched;

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};

use arc_swap::{ArcSwap, ArcSwapOption};
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use std::hash::BuildHasher;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::Op;
use tollgate_core::policy::{CallerName, Facts, LimiterDraft, Mistakes, Mode, Policy, PolicyDraft, Tokens};
use tollgate_core::store::{Charge, Store, StoreError};
use tollgate_core::worker::Source;
use tollgate_core::{Limit, LimitError, Timestamp};

use self::counts::TotalCounts;
use self::file::{Reloads, Tried};
use self::leases::Leases;
use self::running::{Lasting, Running, Vouching};
use self::shed_log::ShedLog;
use self::timings::TimingCounts;
use crate::clock::{AnyClock, Clock};
use crate::memory::MemoryStore;

pub use counts::{
    ClassStats, FleetUse, LimiterReport, LimiterStanding, LimiterStats, ReloadReport, Totals, WorkerStanding,
};
pub use file::PolicyFile;
pub use permit::{Decision, Permit};
pub use refusal::Refusal;
pub use running::PolicyError;
pub use settle::Settle;
pub use timings::Timings;
#[cfg(feature = "jwt")]
pub use tokens::JwtTokens;
#[cfg(feature = "watch")]
pub use watch::Watcher;
pub use watched::{WatchedDecisions, WouldReject};

/// Decides by a policy whether requests may pass. Clones share everything.
///
/// ```
/// use tollgate::{Facts, Limiter};
///
/// let limiter = Limiter::from_policy(
///     "
/// identify: { caller: [header: x-api-key, ip] }
/// trusted_proxies: []
/// limiters:
///   request-rate:        { rate: 50/s, burst: 100 }
///   concurrent-requests: { concurrency: 20 }
/// ",
/// )?;
/// let headers = [("x-api-key", "sk_1")];
/// let facts = Facts { method: "GET", path: "/v1/users", headers: &headers, ..Facts::default() };
/// match limiter.admit_now(&facts) {
///     Ok(permit) => println!("go ahead: {:?}", permit.decision().standings),
///     Err(refusal) => println!("{}: {refusal}", refusal.status()),
/// }
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
pub struct Limiter<S: Store + 'static = MemoryStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    store: S,
    running: ArcSwap<Running>,
    /// Who vouches for tokens, if it is not the policy's own keys.
    tokens: ArcSwapOption<Box<dyn Tokens>>,
    lasting: Lasting,
    reloads: Reloads,
    companion: Mutex<Option<Arc<dyn Companion>>>,
    clock: AnyClock,
    counts: TotalCounts,
    admit_took: TimingCounts,
    store_took: TimingCounts,
    in_flight: AtomicU64,
    shed_log: ShedLog,
    leases: Leases,
    /// For ids of leases and for draws.
    random: RandomState,
    process: u64,
    next: AtomicU64,
}

impl<S: Store> Shared<S> {
    /// The time for the store: its own, unless the limiter was given a clock.
    fn at(&self, now: Timestamp) -> Option<Timestamp> {
        (!self.clock.is_trusted()).then_some(now)
    }

    /// An id that no other process has, nor had this one. Where nobody else uses the store, places are counted, and need none.
    fn next_lease(&self) -> LeaseId {
        if !self.store.is_shared() {
            return LeaseId::default();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        LeaseId(u128::from(self.process) << 64 | u128::from(number))
    }

    fn draw(&self) -> u32 {
        (self.random.hash_one(self.next.fetch_add(1, Ordering::Relaxed)) >> 32) as u32
    }

    /// Sets the mode of a limiter by hand, or that of all.
    fn switch(&self, limiter: Option<&str>, mode: Option<Mode>) {
        self.lasting.set(limiter, mode);
        self.lasting.tell(&self.running);
    }

    /// Takes a sample of utilization, and logs what the shedders do.
    fn sample(&self) {
        let running = self.running.load();
        let now = self.clock.now();
        if let Some(worker) = &running.worker {
            // Of what is not known nobody can say that it is too much: what is shed comes back, slowly, and whoever passes then can
            // tell again. A service that tells by its answers would be shut out for ever otherwise.
            let ppm = worker.gauge.sample(self.in_flight.load(Ordering::Acquire), now).unwrap_or(0);
            worker.shedder.record_ppm(ppm, Some(now));
        }
        self.shed_log.look(&running, now);
    }

    /// Logs what the shedders do, between two samples.
    fn log_shedding(&self) {
        self.shed_log.look(&self.running.load(), self.clock.now());
    }
}

impl<S: Store + 'static> Shared<S> {
    /// Gives back what was held for a request.
    #[inline]
    fn give_back(&self, charge: Charge<'_>) {
        if self.store.is_shared() || self.clock.is_trusted() {
            self.store.give_back(charge);
        } else {
            self.give_back_by_clock(charge);
        }
    }

    /// The same, at the time of the limiter's own clock.
    fn give_back_by_clock(&self, charge: Charge<'_>) {
        let back = self.store.apply(Op::Refund, charge, self.at(self.clock.now()));
        let _ = pin!(back).poll(&mut Context::from_waker(Waker::noop()));
    }

    /// Does something that the request does not wait for. It is begun at once, so that the store gets what several requests
    /// send in the order in which they send it; a store that answers at once is done with it, too.
    fn aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        if !self.store.is_shared() {
            let _ = pin!(work).poll(&mut Context::from_waker(Waker::noop()));
            return;
        }
        let mut work = Box::pin(work);
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn(work));
        }
    }
}

/// What works by the same policy as a limiter, such as a gateway that reads there whom requests are passed on to. It has to
/// agree to a policy before that is put to work, and follows when it is.
pub trait Companion: Send + Sync {
    /// Gets ready for a policy, whose files are in this folder, and says how to follow it. An error says why that cannot be:
    /// then the policy is not put to work.
    fn prepare(&self, policy: &Policy, folder: &Path) -> Result<Box<dyn FnOnce() + Send>, String>;
}

/// Builds a [`Limiter`].
///
/// ```
/// use tollgate::{Limiter, MemoryStore};
///
/// let limiter = Limiter::builder()
///     .store(MemoryStore::builder().max_bytes(64 << 20).build())
///     .policy("limiters: { all: { rate: 1000/s, per: global } }")
///     .build()?;
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
///
/// Few limiters need no policy text:
///
/// ```
/// use tollgate::{Limiter, Quota};
///
/// let limiter = Limiter::builder()
///     .caller_header("x-api-key")
///     .critical("POST /v1/charges")
///     .rate("request-rate", Quota::per_second(50).burst(100))
///     .concurrency("concurrent-requests", 20)
///     .fleet("fleet-usage", 400, 20)
///     .build()?;
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
#[must_use = "a builder does nothing until `build`"]
pub struct LimiterBuilder<S: Store + 'static = MemoryStore> {
    store: S,
    /// The policy, and what is unwise about it, if that is known.
    policy: Option<Result<(Policy, Option<Mistakes>), PolicyError>>,
    /// Limiters that were named one by one.
    draft: Option<PolicyDraft>,
    /// The file that the policy is from.
    tried: Option<Tried>,
    tokens: Option<Box<dyn Tokens>>,
    clock: AnyClock,
}

impl Limiter {
    /// A limiter that keeps its states in the memory of this process.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder {
            store: MemoryStore::new(),
            policy: None,
            draft: None,
            tried: None,
            tokens: None,
            clock: AnyClock::default(),
        }
    }

    /// A limiter in memory, by the text of a policy.
    pub fn from_policy(text: &str) -> Result<Self, PolicyError> {
        Self::builder().policy(text).build()
    }

    /// A limiter in memory, by the policy of a file.
    ///
    /// ```no_run
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::load("/etc/tollgate/policy.yaml")?;
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        Self::builder().policy_file(path).build()
    }

    /// As [`admit`](Self::admit), for those who cannot wait: memory answers at once.
    pub fn admit_now(&self, facts: &Facts<'_>) -> Result<Permit, Refusal> {
        self.admit_at_once(facts).unwrap_or_else(|| Ok(Permit::free(&self.shared)))
    }
}

impl<S: Store + 'static> LimiterBuilder<S> {
    /// Where states are kept: in memory unless said otherwise. The limiter runs on the store that it is given; what a policy says
    /// under `store` is for the binary `tollgate`, which makes one of it.
    ///
    /// A store that others share belongs into a [`Failsafe`](crate::Failsafe), which does for each limiter what its
    /// `on_store_failure` says. By itself such a store lets requests pass while it is away, so that without a `Failsafe` a
    /// policy is refused unless all its limiters say `on_store_failure: open`.
    pub fn store<T: Store + 'static>(self, store: T) -> LimiterBuilder<T> {
        let Self { policy, draft, tried, tokens, clock, .. } = self;
        LimiterBuilder { store, policy, draft, tried, tokens, clock }
    }

    /// The policy, as text.
    pub fn policy(mut self, text: &str) -> Self {
        (self.policy, self.tried) = (Some(read(text).map(|(policy, unwise)| (policy, Some(unwise)))), None);
        self
    }

    /// The policy, as it was read before.
    pub fn read_policy(mut self, policy: Policy) -> Self {
        (self.policy, self.tried) = (Some(Ok((policy, None))), None);
        self
    }

    /// The policy of a file, which is read at once.
    pub fn policy_file(mut self, path: impl AsRef<Path>) -> Self {
        let (tried, read) = file::look(path.as_ref());
        (self.policy, self.tried) = (Some(read.map(|(policy, unwise)| (policy, Some(unwise)))), Some(tried));
        self
    }

    /// The policy of a file, as it was read before.
    pub fn read_file(mut self, file: PolicyFile) -> Self {
        (self.policy, self.tried) = (Some(Ok((file.policy, Some(file.warnings)))), Some(file.tried));
        self
    }

    /// Callers are told apart by this header. Of several sources the first that is there counts; without any it is the address.
    pub fn caller_header(self, name: &str) -> Self {
        self.drafted(|draft| draft.caller_header(name))
    }

    /// Callers are told apart by their address, where the sources before it have no name. There are no proxies whose word
    /// would be believed.
    pub fn caller_address(self) -> Self {
        self.drafted(PolicyDraft::caller_address)
    }

    /// These requests are critical, written as in a policy: `POST /v1/charges`.
    pub fn critical(self, condition: &str) -> Self {
        self.drafted(|draft| draft.critical(condition))
    }

    /// A limiter: so many requests in so long, for each caller.
    pub fn rate(self, name: &str, quota: impl Into<Result<Limit, LimitError>>) -> Self {
        self.drafted(|draft| draft.rate(name, quota))
    }

    /// A limiter: so many requests in progress, for each caller.
    pub fn concurrency(self, name: &str, count: u64) -> Self {
        self.drafted(|draft| draft.concurrency(name, count))
    }

    /// A limiter: so many places for everybody together, of which a share is kept for what is critical.
    pub fn fleet(self, name: &str, places: u64, reserve_percent: u64) -> Self {
        self.drafted(|draft| draft.fleet(name, places, reserve_percent))
    }

    /// A limiter: a worker in trouble sheds class by class, tests first, and never what is critical.
    pub fn workers(self, name: &str, source: Source) -> Self {
        self.drafted(|draft| draft.workers(name, source))
    }

    /// Any limiter, with more to say about it.
    ///
    /// ```
    /// use tollgate::core::policy::LimiterDraft;
    /// use tollgate::{Limiter, Mode, Quota};
    ///
    /// let logins = LimiterDraft::rate("logins", Quota::per_minute(5)).matching("POST /login").mode(Mode::Dark);
    /// let limiter = Limiter::builder().limiter(logins).build()?;
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    pub fn limiter(self, limiter: LimiterDraft) -> Self {
        self.drafted(|draft| draft.limiter(limiter))
    }

    fn drafted(mut self, more: impl FnOnce(PolicyDraft) -> PolicyDraft) -> Self {
        self.draft = Some(more(self.draft.take().unwrap_or_default()));
        self
    }

    /// The policy, however it was given. What is unwise about it is logged, as it is when a file is loaded again.
    fn given(&mut self) -> Result<Policy, PolicyError> {
        let (policy, unwise) = match (self.policy.take(), self.draft.take()) {
            (Some(read), None) => {
                let (policy, unwise) = read?;
                (policy, unwise.map(|unwise| unwise.to_string()).unwrap_or_default())
            }
            (None, Some(draft)) => {
                let (policy, unwise) = draft.checked()?;
                (policy, unwise.join("\n"))
            }
            (None, None) => return open(),
            (Some(_), Some(_)) => return Err(PolicyError::Twice),
        };
        if !unwise.is_empty() {
            tracing::warn!("the policy is unwise:\n{unwise}");
        }
        Ok(policy)
    }

    /// Who vouches for tokens that callers bring. Unless said otherwise that is `JwtTokens` (feature `jwt`), by the keys
    /// that the policy names.
    pub fn tokens(mut self, tokens: impl Tokens + 'static) -> Self {
        self.tokens = Some(Box::new(tokens));
        self
    }

    /// The clock: that of the system unless said otherwise. The store is told this time, too.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = AnyClock::Other(Arc::new(clock));
        self
    }

    /// The limiter. What is unwise about its policy is logged (`tracing`), but for one that came by
    /// [`read_policy`](Self::read_policy): whoever read it was told. Within a tokio runtime it samples utilization and
    /// renews leases there; outside of one, [`Limiter::tend`] does.
    pub fn build(mut self) -> Result<Limiter<S>, PolicyError> {
        let policy = self.given()?;
        let lasting = Lasting::default();
        let running = self.running(policy, &lasting)?;
        Ok(self.started(running, lasting))
    }

    /// As [`build`](Self::build), for servers that must start. If the policy is of no use, the limiter lets everything pass
    /// until it is given another one, and what is wrong comes with it: say it loudly.
    ///
    /// ```
    /// use tollgate::{Facts, Limiter};
    ///
    /// let (limiter, wrong) = Limiter::builder().policy_file("/no/such/policy.yaml").build_or_open()?;
    /// assert!(wrong.unwrap().to_string().starts_with("/no/such/policy.yaml cannot be read"));
    /// assert!(limiter.admit_now(&Facts::default()).is_ok());
    /// assert_eq!(limiter.report().reloads.failed, 1);
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    pub fn build_or_open(mut self) -> Result<(Limiter<S>, Option<PolicyError>), PolicyError> {
        let policy = self.given();
        let lasting = Lasting::default();
        match policy.and_then(|policy| self.running(policy, &lasting)) {
            Ok(running) => Ok((self.started(running, lasting), None)),
            Err(error) => {
                let running = self.running(open()?, &lasting)?;
                let limiter = self.started(running, lasting);
                limiter.shared.reloads.failed(&error);
                Ok((limiter, Some(error)))
            }
        }
    }

    fn running(&self, policy: Policy, lasting: &Lasting) -> Result<Running, PolicyError> {
        let vouching = match &self.tokens {
            Some(_) => Vouching::nobody(),
            None => Vouching::by(&policy, file::folder(self.tried.as_ref()))?,
        };
        Running::start(policy, vouching, &self.store, lasting, None, &self.clock)
    }

    fn started(self, running: Running, lasting: Lasting) -> Limiter<S> {
        let random = RandomState::default();
        let shared = Arc::new(Shared {
            store: self.store,
            running: ArcSwap::from_pointee(running),
            tokens: ArcSwapOption::from_pointee(self.tokens),
            lasting,
            reloads: Reloads::new(self.tried, self.clock.now()),
            companion: Mutex::new(None),
            clock: self.clock,
            counts: TotalCounts::default(),
            admit_took: TimingCounts::default(),
            store_took: TimingCounts::default(),
            in_flight: AtomicU64::new(0),
            shed_log: ShedLog::default(),
            leases: Leases::default(),
            process: random.hash_one(std::process::id()),
            random,
            next: AtomicU64::new(0),
        });
        shared.lasting.tell(&shared.running);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Most sources tell what has been since they were last asked.
            if let Some(worker) = &shared.running.load().worker {
                let _ = worker.gauge.sample(0, shared.clock.now());
            }
            runtime.spawn(leases::sample(Arc::downgrade(&shared)));
            if shared.store.is_shared() {
                runtime.spawn(leases::renew(Arc::downgrade(&shared)));
            }
        }
        Limiter { shared }
    }
}

fn read(text: &str) -> Result<(Policy, Mistakes), PolicyError> {
    Ok(Policy::read(text)?)
}

/// A policy that limits nothing.
fn open() -> Result<Policy, PolicyError> {
    Ok(Policy::read("limiters: {}")?.0)
}

impl<S: Store + 'static> Limiter<S> {
    /// Puts another policy to work, for all decisions that begin from now on. Limits that did not change keep what was used of
    /// them; where there is an error, everything stays as it is.
    pub fn reload(&self, policy: Policy) -> Result<(), PolicyError> {
        let tried = self.shared.reloads.turn.lock();
        self.shared.counted(self.shared.put_to_work(policy, tried.as_ref()))
    }

    /// As [`reload`](Self::reload), with the text of a policy. What is unwise about it comes back.
    pub fn reload_text(&self, text: &str) -> Result<Mistakes, PolicyError> {
        let tried = self.shared.reloads.turn.lock();
        self.shared.counted(read(text).and_then(|(policy, unwise)| {
            self.shared.put_to_work(policy, tried.as_ref())?;
            Ok(unwise)
        }))
    }

    /// Has another work by the same policies from the next one on.
    pub fn set_companion(&self, companion: impl Companion + 'static) {
        *self.shared.companion.lock() = Some(Arc::new(companion));
    }

    /// Has somebody else vouch for tokens.
    pub fn set_tokens(&self, tokens: impl Tokens + 'static) {
        self.shared.tokens.store(Some(Arc::new(Box::new(tokens))));
    }

    /// Sets the mode of a limiter by hand, from the next decision on, over what the policy says and over all reloads of it.
    /// `None`: as the policy says. False if the policy has no such limiter.
    pub fn switch(&self, limiter: &str, mode: Option<Mode>) -> bool {
        let known = self.shared.running.load().limiters.iter().any(|known| *known.name == *limiter);
        if known {
            self.shared.switch(Some(limiter), mode);
        }
        known
    }

    /// Sets the mode of everything by hand: no limiter is stricter.
    pub fn switch_all(&self, mode: Option<Mode>) {
        self.shared.switch(None, mode);
    }

    /// The mode than which no limiter is stricter at this moment.
    pub fn mode_of_all(&self) -> Mode {
        self.shared.running.load().mode_of_all()
    }

    /// Modes as they are at this moment.
    pub fn modes(&self) -> Vec<(Arc<str>, Mode)> {
        let running = self.shared.running.load();
        running.limiters.iter().map(|limiter| (Arc::clone(&limiter.name), running.mode(limiter))).collect()
    }

    /// What the protected service says of its utilization, in millionths: 1,000,000 is fully busy. False if no limiter wants to
    /// know, because its policy has another source or there is none.
    pub fn report_utilization(&self, ppm: u64) -> bool {
        let running = self.shared.running.load();
        let Some(worker) = &running.worker else { return false };
        if !matches!(worker.gauge.source(), Source::Reported { .. }) {
            return false;
        }
        worker.gauge.report_ppm(ppm, self.shared.clock.now());
        true
    }

    /// Does at once what a runtime does from time to time: takes a sample of utilization and renews leases. For tests that
    /// move a clock, and for those who have no runtime.
    pub async fn tend(&self) {
        self.shared.sample();
        self.shared.renew_due().await;
    }

    /// What was counted.
    pub fn report(&self) -> LimiterReport {
        let running = self.shared.running.load();
        LimiterReport {
            totals: self.shared.counts.read(),
            in_flight: self.shared.in_flight.load(Ordering::Acquire),
            is_switched: self.shared.lasting.all.get().is_some(),
            limiters: running
                .limiters
                .iter()
                .map(|limiter| running.standing(limiter, &self.shared.lasting))
                .collect(),
            classes: running.classes.iter().map(|(name, counts)| (Arc::clone(name), counts.read())).collect(),
            worker: running.worker_standing(),
            admit_took: self.shared.admit_took.read(),
            store_took: self.shared.store_took.read(),
            reloads: self.shared.reloads.report(),
        }
    }

    /// How many places of each fleet are in use, as the store knows it: in a shared one, by all who share it. A fleet that has
    /// several buckets (`per`) is left out, since nobody knows them all.
    ///
    /// ```
    /// use tollgate::{Facts, Limiter};
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let policy = "classes: { critical: [POST /charges] }\nlimiters: { fleet-usage: { fleet: 100, reserve: 20% } }";
    /// let limiter = Limiter::from_policy(policy)?;
    /// let _permit = limiter.admit(&Facts { method: "POST", path: "/charges", ..Facts::default() }).await.unwrap();
    /// let fleets = limiter.fleet_use().await.unwrap();
    /// assert_eq!((fleets[0].capacity, fleets[0].allocation), (100, 80));
    /// assert_eq!((fleets[0].used.critical, fleets[0].used.other), (1, 0));
    /// # Ok::<_, tollgate::PolicyError>(())
    /// # }).unwrap();
    /// ```
    pub async fn fleet_use(&self) -> Result<Vec<FleetUse>, StoreError> {
        let running = self.shared.running.load_full();
        let at = self.shared.at(self.shared.clock.now());
        let mut fleets = Vec::new();
        for (limiter, known) in running.limiters.iter().zip(running.policy.limiters()) {
            let rule = limiter.choices.first().and_then(|places| running.ruled(places).first());
            let limit = known.choices.first().and_then(|limits| limits.first());
            if let (Some(ruled), Some(Limit::Fleet(fleet)), true) = (rule, limit, known.is_global()) {
                let key = KeyRef { kind: Kind::Bytes, bytes: &[] };
                let used = self.shared.store.in_progress(ruled.rule, key, at).await?;
                let name = Arc::clone(&limiter.name);
                let (capacity, allocation) = (fleet.capacity(), fleet.allocation());
                fleets.push(FleetUse { name, capacity, allocation, used });
            }
        }
        Ok(fleets)
    }

    /// Who sends a request, as the policy at work tells callers apart: for logs. It decides nothing.
    ///
    /// ```
    /// use tollgate::core::policy::CallerName;
    /// use tollgate::{Facts, Limiter};
    ///
    /// let limiter = Limiter::from_policy("identify: { caller: [header: x-api-key] }\nlimiters: {}")?;
    /// let headers = [("x-api-key", "sk_1")];
    /// let caller = limiter.caller(&Facts { headers: &headers, ..Facts::default() });
    /// assert_eq!(caller, CallerName::Value((*b"sk_1").into()));
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    pub fn caller(&self, facts: &Facts<'_>) -> CallerName {
        let running = self.shared.running.load();
        let given = self.shared.tokens.load();
        let tokens = given.as_ref().map_or(&*running.vouching.0, |tokens| &***tokens);
        running.policy.caller(facts, tokens, self.shared.clock.now())
    }

    /// Where states are kept.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Whether the policy at work tells callers apart by address.
    #[cfg(feature = "tower")]
    pub(crate) fn asks_for_addresses(&self) -> bool {
        self.shared.running.load().policy.asks_for_addresses()
    }

    /// The policy at work.
    pub fn policy(&self) -> Policy {
        self.shared.running.load().policy.clone()
    }
}

impl<S: Store> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S: Store> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<Arc<str>> = self.modes().into_iter().map(|(name, _)| name).collect();
        f.debug_struct("Limiter").field("limiters", &names).finish_non_exhaustive()
    }
}
