//! The whole path of a request, on one screen.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::decision::{Reason, Refused, Standing};
use tollgate_core::limit::Ask;
use tollgate_core::outcome::Degraded;
use tollgate_core::policy::{Charged, Cost, Facts, KeyBytes, Keys, Listed, Mode, Planned};
use tollgate_core::store::{Charge, OnFailure, Store, StoreError};
use tollgate_core::{Nanos, Outcome, Outcomes, Timestamp, Verdict};

use super::leases::Lease;
use super::permit::{Dark, Held, HeldInDark, Permit, ask, charge};
use super::refusal::Refusal;
use super::running::{Ruled, Running, RunningLimiter};
use super::settle::Bill;
use super::toll::{Owed, effective};
use super::watched::{self, PendingDecision, WatchedDecisions};
use super::{Limiter, Shared};

/// One of so many requests is measured where the store answers at once.
const MEASURED: u64 = 16;

impl<S: Store + 'static> Limiter<S> {
    /// Whether a request may pass. It passes with a [`Permit`], which must be kept for as long as the request is in progress;
    /// or it does not, and the [`Refusal`] says why and when to come back.
    ///
    /// Nothing that goes wrong in here is the caller's fault, so nothing of it is: when the store has an error that no limit
    /// has an answer for, and also when limiter code panics, the request passes and is counted.
    pub async fn admit(&self, facts: &Facts<'_>) -> Result<Permit<S>, Refusal> {
        let number = self.shared.counts.asked.next();
        let mut decided = pin!(self.shared.measure(facts, number));
        let caught =
            poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| decided.as_mut().poll(context))) {
                Ok(poll) => poll.map(Ok),
                Err(panic) => Poll::Ready(Err(panic)),
            });
        match caught.await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(refusal)) => {
                self.shared.counts.refused.add();
                Err(refusal)
            }
            Err(_) => {
                self.shared.counts.panics.add();
                Ok(Permit::free(&self.shared))
            }
        }
    }

    /// As [`admit`](Self::admit), for doors that would rather not wait. None where the store may take its time: nothing has
    /// been asked then.
    pub fn admit_at_once(&self, facts: &Facts<'_>) -> Option<Result<Permit<S>, Refusal>> {
        if self.shared.store.is_shared() {
            return None;
        }
        Some(match pin!(self.admit(facts)).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            // A store that nobody shares never waits. If it did, nobody should be refused for it.
            Poll::Pending => Ok(Permit::free(&self.shared)),
        })
    }
}

impl<S: Store + 'static> Shared<S> {
    /// Decides, and counts how long it took. Where nobody waits for a network, it is enough to look now and then.
    async fn measure(self: &Arc<Self>, facts: &Facts<'_>, number: u64) -> Result<Permit<S>, Refusal> {
        let begun = self.clock.now();
        let decided = self.decide(facts, begun).await;
        if self.store.is_shared() || number.is_multiple_of(MEASURED) {
            self.admit_took.add(self.clock.now().since(begun));
        }
        decided
    }

    async fn decide(self: &Arc<Self>, facts: &Facts<'_>, now: Timestamp) -> Result<Permit<S>, Refusal> {
        // One policy for the whole decision, whatever is loaded meanwhile.
        let running = self.running.load_full();
        let given = self.tokens.load();
        let tokens = given.as_ref().map_or(&*running.vouching.0, |tokens| &***tokens);
        let mut planned = running.policy.plan(facts, tokens, now);
        let mut watched_decisions = None;
        match planned.listed {
            Listed::No => {}
            Listed::Allowed => {
                self.counts.allowed_by_list.add();
                let (class, plan) = (planned.class, planned.plan);
                let held = self.held(running, class, plan, Owed::NOTHING, Keys::new(), now);
                return Ok(Permit::new(self, Some(held)));
            }
            listed @ (Listed::Blocked | Listed::Unclear) => {
                let is_unclear = listed == Listed::Unclear;
                match running.mode_of_all() {
                    Mode::Enforce if is_unclear => {
                        self.counts.unclear.add();
                        return Err(Refusal::new(unclear(), running, now, self.draw()));
                    }
                    Mode::Enforce => {
                        self.counts.blocked_by_list.add();
                        return Err(Refusal::new(blocked(), running, now, self.draw()));
                    }
                    Mode::Dark if is_unclear => {
                        self.counts.would_refuse_unclear.add();
                        watched::note(&mut watched_decisions, unclear().limiter);
                    }
                    Mode::Dark => {
                        self.counts.would_block_by_list.add();
                        watched::note(&mut watched_decisions, blocked().limiter);
                    }
                    Mode::Off => {}
                }
                // Nobody is refused, so who would be goes on to the limiters as everybody does.
                planned = running.policy.plan_unblocked(facts, tokens, now);
            }
        }
        drop(given);
        let Planned { class, plan, is_nobody, charged, keys, .. } = planned;
        if is_nobody {
            self.counts.nobody.add();
        }
        // A box in trouble spends nothing more on a request that it will drop.
        if let Some(retry_after) = self.sheds(&running, class, &mut watched_decisions) {
            let refused = Refused { retry_after: Some(retry_after), ..shed(&running) };
            running.count(class, |counts| &counts.refused);
            let refusal = Refusal::new(refused, running, now, self.draw());
            return Err(refusal.of(class, plan));
        }
        let owed = running.owed(charged);
        let mut held = self.held(running, class, plan, owed, keys, now);
        // Rates, requests in progress and places of the fleet in one call, all or nothing.
        if let Err((refused, exceeded)) = self.charge(&mut held).await {
            let Held { running, class, plan, degraded, .. } = *held;
            running.count(class, |counts| &counts.refused);
            let refusal = Refusal::new(refused, running, now, self.draw());
            return Err(refusal.of(class, plan).by(exceeded, degraded));
        }
        held.running.count(held.class, |counts| &counts.passed);
        // From here on it is given back, whatever happens.
        let mut permit = Permit::new(self, Some(held));
        let Some(held) = permit.held_mut() else { return Ok(permit) };
        self.keep_leases(held);
        held.watched = watched_decisions;
        // What is only watched comes last, and changes nothing.
        let watched = self.watched(held);
        held.bill = Bill::of(held);
        for watched in watched {
            let shared = Arc::clone(self);
            let watching = Watching {
                running: Arc::clone(&held.running),
                class: held.class,
                lease: held.lease,
                taken_at: held.taken_at,
                at: held.at,
                dark: held.dark.clone(),
                decision: held.watched.get_or_insert_default().pending(),
            };
            self.aside(async move { shared.watch(&watching, &watched).await });
        }
        Ok(permit)
    }

    /// A request of which nothing is charged yet.
    #[inline]
    fn held(
        &self,
        running: Arc<Running>,
        class: usize,
        plan: Option<usize>,
        owed: Owed,
        keys: Keys,
        now: Timestamp,
    ) -> Box<Held> {
        Box::new(Held {
            class,
            plan,
            lease: self.next_lease(),
            taken_at: now,
            at: self.at(now),
            owed,
            keys,
            outcomes: Outcomes::new(),
            degraded: false,
            ungranted: SmallVec::new(),
            delay: Nanos::ZERO,
            renewed: None,
            bill: None,
            dark: None,
            watched: None,
            running,
        })
    }

    /// How long to stay away, if this worker sheds the request.
    fn sheds(
        &self,
        running: &Running,
        class: usize,
        watched_decisions: &mut Option<WatchedDecisions>,
    ) -> Option<Nanos> {
        let worker = running.worker.as_ref()?;
        let limiter = running.limiters.get(worker.index)?;
        let mode = running.mode(limiter);
        if mode == Mode::Off {
            return None;
        }
        limiter.count(class, |counts| &counts.asked);
        if worker.shedder.admit(worker.class(class)).is_ok() {
            return None;
        }
        match mode {
            Mode::Enforce => {
                limiter.count(class, |counts| &counts.refused);
                Some(worker.policy.every)
            }
            _ => {
                limiter.count(class, |counts| &counts.would_refuse);
                watched::note(watched_decisions, Arc::clone(&limiter.name));
                None
            }
        }
    }

    /// Charges everything that is enforced, or nothing.
    async fn charge(&self, held: &mut Held) -> Result<(), (Refused, Option<usize>)> {
        let mut charges: SmallVec<[Charge<'_>; 6]> = SmallVec::new();
        let toll = held.owed.toll(&held.running);
        for limiter in &toll.asked {
            held.running.count_asked(*limiter, held.class);
        }
        for due in &toll.dues {
            charges.push(due.charge(&held.keys, held.lease));
        }
        if charges.is_empty() {
            return Ok(());
        }
        if let Some(allowed) = self.store.charge_at_once(&charges, held.at, &mut held.outcomes) {
            held.delay = held.outcomes.iter().map(|outcome| outcome.delay).max().unwrap_or_default();
            return if allowed { Ok(()) } else { Err(refused(held, &[])) };
        }
        let verdict = match self.ask_store(&charges, held.at).await {
            Ok(verdict) => verdict,
            Err(_) => {
                self.counts.store_errors.add();
                drop(charges);
                held.owed = Owed::Own(Box::new(held.toll().unpaid()));
                return Ok(());
            }
        };
        drop(charges);
        held.degraded = !verdict.degraded.is_empty();
        for degraded in &verdict.degraded {
            let due = held.toll().dues.get(degraded.index);
            if let Some(limiter) = due.and_then(|due| held.running.limiters.get(due.limiter)) {
                limiter.count(held.class, |counts| &counts.degraded);
            }
        }
        held.ungranted = passed_open(&verdict).collect();
        held.delay = verdict.delay;
        held.outcomes = verdict.outcomes.into();
        if verdict.allowed { Ok(()) } else { Err(refused(held, &verdict.degraded)) }
    }

    async fn ask_store(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        if !self.store.is_shared() {
            return self.store.charge(charges, at).await;
        }
        let begun = self.clock.now();
        let answer = self.store.charge(charges, at).await;
        // What was decided without it says nothing of how long it takes.
        if answer.as_ref().is_ok_and(|verdict| verdict.degraded.is_empty()) {
            self.store_took.add(self.clock.now().since(begun));
        }
        answer
    }

    /// Has leases renewed for as long as the request lasts.
    fn keep_leases(&self, held: &mut Held) {
        if !self.store.is_shared() {
            return;
        }
        let toll = held.toll();
        let leases = toll.dues.iter().enumerate().filter_map(|(index, due)| {
            let lease = lease(held.ruled(due)?, due.ask(held.lease), due.key(&held.keys)?, held.taken_at)?;
            Some(Lease { is_granted: !held.ungranted.contains(&index), ..lease })
        });
        held.renewed = self.leases.keep(leases.collect());
    }

    /// What is decided and counted, and refuses nobody: limiters that are dark, and candidates.
    fn watched(&self, held: &mut Held) -> SmallVec<[Watched; 2]> {
        let mut watched = SmallVec::new();
        let toll = held.toll();
        if !toll.has_watched {
            return watched;
        }
        let all = held.running.mode_of_all();
        for charged in &toll.charged {
            let Some(limiter) = held.running.limiters.get(charged.limiter) else { continue };
            let mode = effective(limiter.mode_under(all), charged);
            let is_dark = mode == Mode::Dark;
            // Who has a limit of its own is not one of those for whom another is tried.
            let has_candidate = mode != Mode::Off && !limiter.candidate.is_empty() && !charged.is_own;
            for (is_watched, is_candidate) in [(is_dark, false), (has_candidate, true)] {
                if let (true, Some(key)) = (is_watched, held.keys.get(charged.key)) {
                    watched.push(Watched { charged: *charged, key: key.clone(), is_candidate });
                }
            }
        }
        let is_kept = watched.iter().any(|watched: &Watched| {
            let rules = watched.rules(&held.running);
            rules.iter().any(|ruled| ruled.held.is_some())
                || is_settled(&held.running, watched.charged.limiter)
        });
        if is_kept {
            held.dark = Some(Arc::default());
        }
        watched
    }

    /// Decides a watched limiter. The store accepts the decision when this is first polled.
    async fn watch(&self, of: &Watching, watched: &Watched) {
        let (charged, key) = (&watched.charged, &watched.key);
        let Some(limiter) = of.running.limiters.get(charged.limiter) else { return };
        let rules = watched.rules(&of.running);
        let charges: SmallVec<[Charge<'_>; 2]> =
            rules.iter().map(|ruled| charge(ruled.rule, key, charged, of.lease)).collect();
        if !watched.is_candidate {
            limiter.count(of.class, |counts| &counts.asked);
        }
        let leased = || rules.iter().filter(|ruled| ruled.held.is_some());
        let leases: Vec<HeldInDark> = leased().map(|ruled| (*charged, key.clone(), ruled.rule)).collect();
        if let Some(dark) = of.dark.as_ref().filter(|_| self.store.is_shared()) {
            dark.expect(leases.iter().cloned());
        }
        let verdict = self.store.charge_in_order(&charges, of.at).await;
        let is_held = verdict.as_ref().is_ok_and(|verdict| {
            // All limits of a limiter do the same while the store is away. A store that answers, but did not in time, may
            // hold the lease.
            let may_hold = || charges.first().is_some_and(|charge| self.store.answers_for(charge.key));
            verdict.allowed && (passed_open(verdict).next().is_none() || may_hold())
        });
        let is_degraded = verdict.as_ref().is_ok_and(|verdict| !verdict.degraded.is_empty());
        if is_degraded {
            limiter.count(of.class, |counts| &counts.degraded);
        }
        if let Some(dark) = &of.dark {
            if is_held {
                let renewed = leased()
                    .filter_map(|ruled| lease(ruled, ask(charged, of.lease), key, of.taken_at))
                    .collect();
                let renewed = if self.store.is_shared() { self.leases.keep(renewed) } else { None };
                dark.hold(leases, renewed, is_degraded, self, of.lease);
                if is_settled(&of.running, charged.limiter) {
                    let rates = rules.iter().filter(|ruled| ruled.held.is_none());
                    dark.charge(rates.map(|ruled| (*charged, key.clone(), ruled.rule)));
                }
            } else {
                dark.hold_nothing(&leases);
            }
        }
        match verdict {
            Ok(verdict) if verdict.allowed => {}
            // An outage says nothing of the limit.
            Ok(verdict) if verdict.is_closed() => {}
            Err(_) => {}
            Ok(_) => {
                of.decision.would_reject(Arc::clone(&limiter.name), watched.is_candidate);
                match watched.is_candidate {
                    true => limiter.count(of.class, |counts| &counts.candidate_refused),
                    false => limiter.count(of.class, |counts| &counts.would_refuse),
                }
            }
        }
    }
}

/// What is needed to decide in the dark, after the request has gone on.
struct Watching {
    running: Arc<Running>,
    class: usize,
    lease: LeaseId,
    taken_at: Timestamp,
    at: Option<Timestamp>,
    dark: Option<Arc<Dark>>,
    decision: PendingDecision,
}

/// Whether what a request costs is only known afterwards.
fn is_settled(running: &Running, limiter: usize) -> bool {
    let limiter = running.policy.limiters().get(limiter);
    limiter.is_some_and(|limiter| matches!(limiter.cost, Cost::Settled { .. }))
}

/// What has to be renewed for as long as a request lasts.
fn lease(ruled: &Ruled, ask: Ask, key: &KeyBytes, taken_at: Timestamp) -> Option<Lease> {
    let every = ruled.held.flatten()?;
    Some(Lease { rule: ruled.rule, key: key.clone(), ask, every, due: taken_at + every, is_granted: true })
}

/// Which charges passed because the store was away: nothing was taken for them.
fn passed_open(verdict: &Verdict) -> impl Iterator<Item = usize> + '_ {
    verdict.degraded.iter().filter(|degraded| degraded.by == OnFailure::Open).map(|degraded| degraded.index)
}

/// A limiter that is only watched, or its candidate.
#[derive(Clone, Debug)]
struct Watched {
    charged: Charged,
    key: KeyBytes,
    is_candidate: bool,
}

impl Watched {
    fn rules<'r>(&self, running: &'r Running) -> &'r [Ruled] {
        let limiter = running.limiters.get(self.charged.limiter);
        let places = limiter.and_then(|limiter| match self.is_candidate {
            true => Some(&limiter.candidate),
            false => limiter.choices.get(self.charged.choice),
        });
        places.map(|places| running.ruled(places)).unwrap_or_default()
    }
}

/// Who has refused, and for how long: a limit of the caller's own before one of the fleet, and of those the one that takes
/// longest. And where that limit is, if it is the only one of the caller's own.
fn refused(held: &Held, degraded: &[Degraded]) -> (Refused, Option<usize>) {
    /// Places come free at any moment; whoever waits for one should not wait long, nor ask at once.
    const SOON: Nanos = Nanos::from_secs(1);
    let closed = |index: usize| {
        degraded.iter().any(|degraded| degraded.index == index && degraded.by == OnFailure::Closed)
    };
    let rank = |reason: Reason| match reason {
        Reason::Rate | Reason::Concurrency => 0,
        _ => 1,
    };
    let mut exceeded: SmallVec<[Exceeded<'_>; 2]> = SmallVec::new();
    // Of several rates of one limiter more than one may be exceeded. The request is refused once.
    let mut counted = None;
    let told = held.toll().dues.iter().zip(&held.outcomes).enumerate();
    for (index, (due, outcome)) in told.filter(|(_, (_, outcome))| !outcome.allowed) {
        let (Some(limiter), Some(ruled)) = (held.running.limiters.get(due.limiter), held.ruled(due)) else {
            continue;
        };
        if counted.replace(due.limiter) != Some(due.limiter) {
            limiter.count(held.class, |counts| &counts.refused);
        }
        let reason = if closed(index) { Reason::StoreAway } else { limiter.reason };
        let mut outcome = *outcome;
        if ruled.held.is_some() {
            outcome.retry_after = outcome.retry_after.map(|_| SOON);
        }
        exceeded.push(Exceeded { reason, limiter, ruled, outcome, place: due.ruled });
    }
    let away = |wait: Option<Nanos>| std::cmp::Reverse(wait.map_or(u64::MAX, Nanos::as_u64));
    if exceeded.len() > 1 {
        exceeded.sort_by_key(|it| (rank(it.reason), away(it.outcome.retry_after)));
    }
    let Some(&Exceeded { reason, limiter, outcome, place, .. }) = exceeded.first() else {
        return (blocked(), None);
    };
    // Nearly always one: no more room than that.
    let mut own: Vec<Standing> = Vec::with_capacity(exceeded.len());
    for it in exceeded.iter().filter(|it| rank(it.reason) == 0) {
        own.push(it.ruled.standing(&it.outcome));
    }
    let place = (own.len() == 1).then_some(place);
    let (limiter, retry_after) = (Arc::clone(&limiter.name), outcome.retry_after);
    (Refused { reason, limiter, retry_after, exceeded: own }, place)
}

/// A limit that refuses.
struct Exceeded<'h> {
    reason: Reason,
    limiter: &'h RunningLimiter,
    ruled: &'h Ruled,
    outcome: Outcome,
    /// Where it is among [`Running::ruled`].
    place: usize,
}

fn blocked() -> Refused {
    Refused { reason: Reason::Blocked, limiter: Arc::from("block"), retry_after: None, exceeded: Vec::new() }
}

fn unclear() -> Refused {
    Refused {
        reason: Reason::Unclear,
        limiter: Arc::from("identify"),
        retry_after: None,
        exceeded: Vec::new(),
    }
}

fn shed(running: &Running) -> Refused {
    let worker = running.worker.as_ref().and_then(|worker| running.limiters.get(worker.index));
    let limiter = worker.map_or_else(|| Arc::from("workers"), |limiter| Arc::clone(&limiter.name));
    Refused { reason: Reason::Worker, limiter, retry_after: None, exceeded: Vec::new() }
}
