//! The right to go on, for as long as a request lasts.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tollgate_core::answer::{Fields, HeaderList, HeaderStyle, ToldStanding, add_told};
use tollgate_core::concurrency::LeaseId;
use tollgate_core::decision::Standing;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::policy::{Charged, KeyBytes, Keys};
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_core::{Nanos, Outcome, Outcomes, Timestamp};

use super::Shared;
use super::running::{Ruled, Running};
use super::settle::{Bill, Settle};
use super::toll::{Due, Owed, Toll};
use super::watched::WatchedDecisions;
use crate::memory::MemoryStore;

/// A request that may pass. While it lasts the request counts as in progress; when it is dropped, everything that was held
/// for it is given back: exactly once, on success, error, panic, or when the client goes away.
///
/// ```
/// use tollgate::{Facts, Limiter};
///
/// let limiter = Limiter::from_policy("limiters: { concurrent: { concurrency: 1, per: global } }")?;
/// let permit = limiter.admit_now(&Facts::default()).unwrap();
/// assert!(limiter.admit_now(&Facts::default()).is_err());
/// drop(permit);
/// assert!(limiter.admit_now(&Facts::default()).is_ok());
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit<S: Store + 'static = MemoryStore> {
    shared: Arc<Shared<S>>,
    /// Nothing, if nobody was asked.
    held: Option<Box<Held>>,
    /// Since when the service is being waited for, in nanoseconds; 0 if it is not, or if it does not matter.
    waits_since: AtomicU64,
}

/// What is known of a request that passed.
pub(super) struct Held {
    pub(super) running: Arc<Running>,
    pub(super) class: usize,
    pub(super) plan: Option<usize>,
    pub(super) lease: LeaseId,
    pub(super) taken_at: Timestamp,
    /// The time that the store was given, where it was not its own.
    pub(super) at: Option<Timestamp>,
    pub(super) owed: Owed,
    pub(super) keys: Keys,
    /// What the store says of each of its dues.
    pub(super) outcomes: Outcomes,
    pub(super) degraded: bool,
    /// Which of its dues passed because the store was away (`on_store_failure: open`): no store holds anything for them.
    pub(super) ungranted: SmallVec<[usize; 2]>,
    pub(super) delay: Nanos,
    pub(super) renewed: Option<u64>,
    /// What is to be settled, if something is.
    pub(super) bill: Option<Arc<Bill>>,
    /// What is held for it by limiters that are only watched.
    pub(super) dark: Option<Arc<Dark>>,
    /// What those limiters decide.
    pub(super) watched: Option<WatchedDecisions>,
}

/// What limiters that are only watched hold for a request. They may still be deciding when it has ended.
///
/// A request that ends before its lease was granted releases the lease at once, behind the undecided charge. Otherwise a
/// charge of the next request could reach the store before the release, and be counted as over the limit although no more
/// requests were in progress than the limit allows.
#[derive(Debug, Default)]
pub(super) struct Dark(Mutex<DarkState>);

#[derive(Debug, Default)]
struct DarkState {
    has_ended: bool,
    /// Leases whose charges were sent and not answered yet, unless they were released meanwhile.
    undecided: Vec<HeldInDark>,
    held: Vec<HeldInDark>,
    renewed: Vec<u64>,
    /// Rates whose cost is only known afterwards.
    charged: Vec<(Charged, KeyBytes, Rule)>,
}

/// A lease that a watched limiter holds.
pub(super) type HeldInDark = (Charged, KeyBytes, Rule);

impl Dark {
    /// Takes note of leases whose charges are about to be sent.
    pub(super) fn expect(&self, leases: impl Iterator<Item = HeldInDark>) {
        self.0.lock().undecided.extend(leases);
    }

    /// The charges of these leases were answered, and none is held.
    pub(super) fn hold_nothing(&self, leases: &[HeldInDark]) {
        self.0.lock().decided(leases);
    }

    /// The charges of these leases were answered, and all are held: in the shared store, or, if `degraded`, by this process.
    pub(super) fn hold<S: Store + 'static>(
        &self,
        leases: Vec<HeldInDark>,
        renewed: Option<u64>,
        degraded: bool,
        shared: &Shared<S>,
        lease: LeaseId,
    ) {
        let mut state = self.0.lock();
        let unreleased = state.decided(&leases);
        state.held.extend(if degraded || !shared.store.is_shared() { leases } else { unreleased });
        state.renewed.extend(renewed);
        if state.has_ended {
            state.give_back(shared, lease);
        }
    }

    /// Takes note of rates that will be settled.
    pub(super) fn charge(&self, rates: impl Iterator<Item = (Charged, KeyBytes, Rule)>) {
        self.0.lock().charged.extend(rates);
    }

    /// Adds those rates to others.
    pub(super) fn charged_to(&self, rates: &mut Vec<(Charged, KeyBytes, Rule)>) {
        rates.extend(self.0.lock().charged.iter().cloned());
    }

    fn end<S: Store + 'static>(&self, shared: &Shared<S>, lease: LeaseId) {
        let mut state = self.0.lock();
        state.has_ended = true;
        state.give_back(shared, lease);
        state.undecided.retain(|(charged, key, rule)| {
            !shared.store.give_back_in_order(charge(*rule, key, charged, lease))
        });
    }
}

impl DarkState {
    /// The charges of these leases were answered. Those that were not released meanwhile come back.
    fn decided(&mut self, leases: &[HeldInDark]) -> Vec<HeldInDark> {
        let is_decided = |(_, _, rule): &mut HeldInDark| leases.iter().any(|(_, _, decided)| decided == rule);
        self.undecided.extract_if(.., is_decided).collect()
    }

    fn give_back<S: Store + 'static>(&mut self, shared: &Shared<S>, lease: LeaseId) {
        self.renewed.drain(..).for_each(|renewed| drop(shared.leases.forget(renewed)));
        for (charged, key, rule) in self.held.drain(..) {
            shared.give_back(charge(rule, &key, &charged, lease));
        }
    }
}

/// What became of a request that passed, for whoever handles it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Decision {
    /// The class of the request.
    pub class: Arc<str>,
    /// The caller's plan.
    pub plan: Option<Arc<str>>,
    /// How the caller's limits stand, the one closest to exhaustion first.
    pub standings: Vec<Standing>,
    /// Whether something was decided without the store.
    pub degraded: bool,
}

impl Held {
    /// What the request is charged to.
    #[inline]
    pub(super) fn toll(&self) -> &Toll {
        self.owed.toll(&self.running)
    }

    pub(super) fn ruled(&self, due: &Due) -> Option<&Ruled> {
        self.running.ruled.get(due.ruled)
    }

    /// How the caller stands with the limits that it is told of, as they were decided or as `newer` has it. In the order of the policy
    /// where the style tells all of them; else only the one closest to exhaustion.
    #[inline]
    fn told(
        &self,
        style: HeaderStyle,
        newer: impl Fn(&Due, &Ruled, &Outcome) -> Option<Outcome>,
    ) -> SmallVec<[ToldStanding<'_>; 4]> {
        let mut told: SmallVec<[ToldStanding<'_>; 4]> = SmallVec::new();
        for (due, outcome) in self.toll().dues.iter().zip(&self.outcomes).filter(|(due, _)| due.is_told) {
            let Some(ruled) = self.ruled(due) else { continue };
            let is_empty = ruled.is_sliding && outcome.remaining == 0;
            let newer = if self.bill.is_some() || is_empty { newer(due, ruled, outcome) } else { None };
            let it = ToldStanding::new(&ruled.told, newer.as_ref().unwrap_or(outcome));
            match told.first_mut() {
                Some(closest) if style != HeaderStyle::Ietf11 => {
                    if it.is_closer_to_exhaustion(closest) {
                        *closest = it;
                    }
                }
                _ => told.push(it),
            }
        }
        told
    }

    /// How the caller's own limits stand, the one closest to exhaustion first.
    fn standings(&self) -> Vec<Standing> {
        let all = self.toll().dues.iter().zip(&self.outcomes);
        let all = all.filter_map(|(due, outcome)| Some((self.ruled(due)?, outcome)));
        let own = all.filter(|(ruled, _)| ruled.is_shown);
        let mut standings: Vec<Standing> = own.map(|(ruled, outcome)| ruled.standing(outcome)).collect();
        let left =
            |it: &Standing, other: &Standing| u128::from(it.remaining) * u128::from(other.quota.max(1));
        standings.sort_by(|a, b| left(a, b).cmp(&left(b, a)));
        standings
    }
}

pub(super) fn charge<'c>(rule: Rule, key: &'c KeyBytes, charged: &Charged, lease: LeaseId) -> Charge<'c> {
    Charge { rule, key: KeyRef { kind: Kind::Bytes, bytes: key }, ask: ask(charged, lease) }
}

pub(super) fn ask(charged: &Charged, lease: LeaseId) -> Ask {
    Ask { cost: charged.cost, lease, critical: charged.critical, taken: None }
}

impl<S: Store + 'static> Permit<S> {
    /// For a request that nobody was asked about.
    pub(super) fn free(shared: &Arc<Shared<S>>) -> Self {
        Self::new(shared, None)
    }

    pub(super) fn new(shared: &Arc<Shared<S>>, held: Option<Box<Held>>) -> Self {
        shared.in_flight.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(shared), held, waits_since: AtomicU64::new(0) }
    }

    /// From here on nobody is waited for but the service: the whole request is with it. Where latency tells how busy it is, a service
    /// that does not answer at all is noticed by this.
    pub fn waits(&self) {
        let Some(worker) = self.held.as_ref().and_then(|held| held.running.worker.as_ref()) else { return };
        if worker.gauge.is_of_latency() {
            let now = self.shared.clock.now();
            let since = now.as_nanos().max(1);
            if self.waits_since.compare_exchange(0, since, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                worker.gauge.begins_to_wait(Timestamp::from_nanos(since));
            }
        }
    }

    /// The service has not answered in time. That it would have taken longer counts as a latency.
    pub fn gave_up(&self) {
        let Some(held) = &self.held else { return };
        if let Some(worker) = &held.running.worker {
            self.waits_no_more(held);
            worker.gauge.record_latency(self.shared.clock.now().since(held.taken_at));
        }
    }

    fn waits_no_more(&self, held: &Held) {
        if self.waits_since.load(Ordering::Acquire) == 0 {
            return;
        }
        let since = self.waits_since.swap(0, Ordering::AcqRel);
        if let Some(worker) = held.running.worker.as_ref().filter(|_| since != 0) {
            worker.gauge.waits_no_more(Timestamp::from_nanos(since));
        }
    }

    pub(super) fn held_mut(&mut self) -> Option<&mut Held> {
        self.held.as_deref_mut()
    }

    /// What became of the request, for whoever handles it.
    pub fn decision(&self) -> Decision {
        let Some(held) = &self.held else {
            return Decision {
                class: Arc::from("other"),
                plan: None,
                standings: Vec::new(),
                degraded: false,
            };
        };
        let policy = &held.running.policy;
        Decision {
            class: Arc::from(policy.class_name(held.class)),
            plan: held.plan.and_then(|plan| policy.plans().get(plan)).map(|plan| Arc::clone(&plan.name)),
            standings: held.standings(),
            degraded: held.degraded,
        }
    }

    /// What limiters that are dark, and candidates, decide about the request. None if there are none.
    ///
    /// ```
    /// use tollgate::{Facts, Limiter};
    ///
    /// let limiter = Limiter::from_policy("limiters: { all: { rate: 1/h, per: global, mode: dark } }")?;
    /// let _first = limiter.admit_now(&Facts::default()).unwrap();
    /// let second = limiter.admit_now(&Facts::default()).unwrap();
    /// let would_reject = second.watched().unwrap().would_reject();
    /// assert_eq!(&*would_reject[0].limiter, "all");
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    pub fn watched(&self) -> Option<&WatchedDecisions> {
        self.held.as_ref()?.watched.as_ref()
    }

    /// Whether something was decided without the store.
    pub fn is_degraded(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.degraded)
    }

    /// How long the request should wait before it goes on: not at all, unless a queue (`algorithm: leaky-queue`) says so.
    pub fn delay(&self) -> std::time::Duration {
        self.held.as_ref().map_or(std::time::Duration::ZERO, |held| held.delay.into())
    }

    /// The headers that tell an allowed caller how it stands.
    pub fn headers(&self) -> HeaderList {
        let mut headers = HeaderList::new();
        self.add_headers(&mut headers);
        headers
    }

    /// Adds the same to headers of any kind.
    pub fn add_headers(&self, fields: &mut impl Fields) {
        let Some(held) = &self.held else { return };
        let style = held.running.policy.answers().headers;
        let told = held.told(style, |due, ruled, outcome| self.newer(held, due, ruled, outcome));
        if told.is_empty() {
            return;
        }
        // One style alone tells the time.
        let seconds = match style {
            HeaderStyle::XRateLimit => self.shared.clock.now().as_nanos() / 1_000_000_000,
            _ => 0,
        };
        let policies = held.toll().policies(&held.running.ruled);
        add_told(fields, style, &told, &policies, seconds);
    }

    /// How a limit stands now, where its outcome does not say what the caller is told: because its cost was settled since, or because
    /// nothing is left of it and the wait for the next unit depends on the past. Only a store that answers at once is asked.
    #[cold]
    fn newer(&self, held: &Held, due: &Due, ruled: &Ruled, outcome: &Outcome) -> Option<Outcome> {
        if self.shared.store.is_shared() {
            return None;
        }
        let now = self.shared.at(self.shared.clock.now());
        let estimate = |cost: u64| {
            let charge = Charge { ask: Ask::from(cost), ..due.charge(&held.keys, held.lease) };
            let looked = pin!(self.shared.store.apply(Op::Estimate, charge, now));
            match looked.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(outcome)) => Some(outcome),
                _ => None,
            }
        };
        let is_settled = held.bill.as_ref().is_some_and(|bill| bill.is_settled(due.limiter));
        let settled = if is_settled { estimate(0) } else { None };
        let is_empty = ruled.is_sliding && settled.as_ref().unwrap_or(outcome).remaining == 0;
        if is_empty { estimate(1) } else { settled }
    }

    /// The answer has begun: how long that took, and what is told by its headers, is taken note of. `header` finds one by its name.
    pub fn answered<'h>(&self, header: impl Fn(&str) -> Option<&'h [u8]>) {
        let Some(held) = &self.held else { return };
        // Only then does anybody look at the clock.
        if let Some(worker) = held.running.worker.as_ref().filter(|worker| worker.gauge.is_told_by_answers())
        {
            let now = self.shared.clock.now();
            self.waits_no_more(held);
            worker.gauge.record_latency(now.since(held.taken_at));
            worker.hears(&header, now);
        }
        if let Some(bill) = &held.bill {
            let number = |value: &[u8]| std::str::from_utf8(value).ok()?.trim().parse().ok();
            self.shared.settle_bill(bill, |name| header(name).and_then(number));
        }
    }

    /// The request has turned out to cost this much, in all limits whose cost is only known afterwards
    /// (`cost: { response_header: ... }`). The first word counts, be it this or a header of the answer. What was charged too
    /// much goes back; what was too little is charged as far as it is there.
    pub fn settle(&self, cost: u64) {
        if let Some(bill) = self.held.as_ref().and_then(|held| held.bill.as_ref()) {
            self.shared.settle_bill(bill, |_| Some(cost));
        }
    }

    /// The same for later, also for when this permit has ended. None if no limit is settled.
    pub fn settle_later(&self) -> Option<Settle> {
        let bill = self.held.as_ref()?.bill.as_ref()?;
        Some(Settle::new(&self.shared, bill))
    }
}

impl<S: Store + 'static> Drop for Permit<S> {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::AcqRel);
        let Some(held) = self.held.take() else { return };
        self.waits_no_more(&held);
        if let Some(dark) = &held.dark {
            dark.end(&self.shared, held.lease);
        }
        let leases = held.renewed.map(|renewed| self.shared.leases.forget(renewed)).unwrap_or_default();
        for (index, due) in held.toll().dues.iter().enumerate().filter(|(_, due)| due.is_held) {
            let charge = due.charge(&held.keys, held.lease);
            // A store that answers, but did not in time, may hold the lease.
            let is_granted = held.ungranted.is_empty()
                || !held.ungranted.contains(&index)
                || leases.iter().any(|lease| lease.rule == due.rule && lease.is_granted)
                || self.shared.store.answers_for(charge.key);
            if is_granted {
                self.shared.give_back(charge);
            }
        }
    }
}

impl<S: Store> fmt::Debug for Permit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}
