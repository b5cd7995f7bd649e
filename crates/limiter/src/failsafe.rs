//! A shared store that may fail, and what happens when it does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::KeyRef;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::outcome::Degraded;
use tollgate_core::store::{Charge, OnFailure, Rule, Store, StoreError};
use tollgate_core::{Limit, Nanos, Outcome, Timestamp, Verdict};

use crate::last_minute::{LastMinute, RecentDecisions};
use crate::memory::MemoryStore;

/// A shared store whose failure hurts nobody: while it does not answer, each limit does what its [`OnFailure`] says.
///
/// A decision that was made without the shared store is marked in [`Verdict::degraded`] and counted in
/// [`stats`](Self::stats). No error of the store comes out of a decision: a call passes, or is refused by a limit, or by
/// one that is [`Closed`](OnFailure::Closed) ([`Verdict::is_closed`]). Only [`reset`](Store::reset), which somebody asks for
/// who wants to know, tells that the store is away.
///
/// ```
/// use tollgate::core::store::Charge;
/// use tollgate::{Failsafe, MemoryStore, OnFailure, Quota, Store};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let shared = MemoryStore::new(); // or one in Redis
/// let store = Failsafe::new(shared);
/// let logins = store.define_with("logins", Quota::per_minute(5).limit()?, OnFailure::Closed)?;
/// let verdict = store.charge(&[Charge { rule: logins, key: "alice".into(), ask: 1.into() }], None).await?;
/// assert!(verdict.allowed && verdict.degraded.is_empty());
/// # Ok(())
/// # }
/// ```
///
/// # What an outage can let through
///
/// With [`Open`](OnFailure::Open), which is the default, everything passes.
///
/// With [`Local`](OnFailure::Local), every node goes on by itself with its share of the limit: the limit divided by
/// the number of nodes that the shared store last knew. Shares begin unused, so in an outage of length *P* all nodes
/// together let at most the limit's burst and *P* times its rate through, besides what had passed before: once the
/// limit's burst too much, and no more however long it lasts. Where a burst is smaller than the number of nodes each
/// node still admits one call. A call that costs more than a node's share, and no more than the limit, takes the whole
/// share, so that of such calls each node may admit one where all together should have admitted one. When the shared store is back it knows nothing of the outage: its states are as old as its last answer.
#[derive(Debug)]
pub struct Failsafe<S> {
    shared: S,
    local: Arc<MemoryStore>,
    rules: RwLock<Rules>,
    counts: [AtomicU64; 3],
    recent: RecentDecisions,
}

#[derive(Debug, Default)]
struct Rules {
    known: Vec<Arc<Guarded>>,
    by_shared: HashMap<(Rule, OnFailure), Rule>,
}

/// A limit, as both stores know it.
#[derive(Debug)]
struct Guarded {
    family: String,
    limit: Limit,
    on_failure: OnFailure,
    shared: Rule,
    degraded: AtomicU64,
    share: RwLock<Option<Share>>,
}

/// What this node keeps of a limit.
#[derive(Clone, Copy, Debug)]
struct Share {
    nodes: u64,
    limit: Limit,
    rule: Rule,
}

/// How many limits were decided without the shared store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailsafeStats {
    /// Passed unasked.
    pub open: u64,
    /// Refused unasked.
    pub closed: u64,
    /// Decided by this node's share.
    pub local: u64,
}

/// When to come back to a limit that is closed: outages have no end that could be told.
const CLOSED_FOR: Nanos = Nanos::from_secs(1);

/// What is told of a limit that nobody asked.
const UNASKED: Outcome = Outcome::allow(u64::MAX, 0);

/// A charge whose rule was looked up.
type Known<'a> = (Arc<Guarded>, Charge<'a>);

impl<S: Store> Failsafe<S> {
    /// A store that falls back on a memory store of its own.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore};
    /// let store = Failsafe::new(MemoryStore::new());
    /// assert_eq!(store.stats().local, 0);
    /// ```
    pub fn new(shared: S) -> Self {
        Self::with_local(shared, Arc::new(MemoryStore::new()))
    }

    /// A store that falls back on this memory store.
    ///
    /// ```
    /// # use std::sync::Arc; use tollgate::{Failsafe, MemoryStore};
    /// let local = MemoryStore::builder().max_bytes(8 << 20).build();
    /// let store = Failsafe::with_local(MemoryStore::new(), Arc::new(local));
    /// ```
    pub fn with_local(shared: S, local: Arc<MemoryStore>) -> Self {
        let (rules, counts, recent) = (RwLock::default(), Default::default(), RecentDecisions::default());
        Self { shared, local, rules, counts, recent }
    }

    /// The shared store.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore};
    /// assert_eq!(Failsafe::new(MemoryStore::new()).shared().stats().failed_open, 0);
    /// ```
    pub fn shared(&self) -> &S {
        &self.shared
    }

    /// The memory store that it falls back on.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore};
    /// assert_eq!(Failsafe::new(MemoryStore::new()).local().count_keys(None), 0);
    /// ```
    pub fn local(&self) -> &MemoryStore {
        &self.local
    }

    /// As [`define`](Store::define), and says what becomes of the limit while the shared store is away.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore, OnFailure, Quota};
    /// let store = Failsafe::new(MemoryStore::new());
    /// store.define_with("searches", Quota::per_second(10).limit()?, OnFailure::Open)?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn define_with(&self, family: &str, limit: Limit, on_failure: OnFailure) -> Result<Rule, StoreError> {
        let shared = self.shared.define(family, limit)?;
        let mut rules = self.rules.write();
        if let Some(&rule) = rules.by_shared.get(&(shared, on_failure)) {
            return Ok(rule);
        }
        let rule = Rule(u32::try_from(rules.known.len()).unwrap_or(u32::MAX));
        rules.known.push(Arc::new(Guarded {
            family: family.to_owned(),
            limit,
            on_failure,
            shared,
            degraded: AtomicU64::new(0),
            share: RwLock::default(),
        }));
        rules.by_shared.insert((shared, on_failure), rule);
        Ok(rule)
    }

    /// How many limits were decided without the shared store.
    ///
    /// ```
    /// # use tollgate::{Failsafe, FailsafeStats, MemoryStore};
    /// assert_eq!(Failsafe::new(MemoryStore::new()).stats(), FailsafeStats::default());
    /// ```
    pub fn stats(&self) -> FailsafeStats {
        let [open, closed, local] = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        FailsafeStats { open, closed, local }
    }

    /// How many decisions of the last minute were made without the shared store. That some were is logged, too, at most
    /// twice a minute.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore};
    /// assert_eq!(Failsafe::new(MemoryStore::new()).last_minute().degraded, 0);
    /// ```
    pub fn last_minute(&self) -> LastMinute {
        self.recent.read(self.local.now())
    }

    /// Counts a decision, and logs from time to time that some were made without the shared store.
    fn count(&self, is_degraded: bool, why: Option<&StoreError>) {
        let now = self.local.now();
        self.recent.add(now, is_degraded);
        if self.recent.is_log_due(now) {
            let recent = self.recent.read(now);
            // What was degraded may be longer ago by now.
            if recent.degraded == 0 {
                return;
            }
            let why = why.map_or_else(String::new, |why| format!(": {why}"));
            tracing::warn!(
                "{} of {} decisions in the last minute ({:.1} %) were made without the shared store{why}",
                recent.degraded,
                recent.decisions,
                recent.degraded_percent(),
            );
        }
    }

    /// How often a rule was decided without the shared store.
    ///
    /// ```
    /// # use tollgate::{Failsafe, MemoryStore, Quota, Store};
    /// let store = Failsafe::new(MemoryStore::new());
    /// let rule = store.define("searches", Quota::per_second(10).limit()?)?;
    /// assert_eq!(store.degraded(rule), 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn degraded(&self, rule: Rule) -> u64 {
        self.guarded(rule).map_or(0, |guarded| guarded.degraded.load(Ordering::Relaxed))
    }

    fn guarded(&self, rule: Rule) -> Result<Arc<Guarded>, StoreError> {
        self.rules.read().known.get(rule.0 as usize).cloned().ok_or(StoreError::UnknownRule(rule))
    }

    /// The charge as this node's share of the limit takes it.
    fn share<'k>(&self, guarded: &Guarded, charge: Charge<'k>) -> Charge<'k> {
        let nodes = self.shared.nodes();
        let known = *guarded.share.read();
        let Share { rule, limit: share, .. } =
            known.filter(|known| known.nodes == nodes).unwrap_or_else(|| {
                let limit = guarded.limit.divided_among(nodes);
                let share = Share { nodes, limit, rule: self.local.define(&guarded.family, limit) };
                *guarded.share.write() = Some(share);
                share
            });
        let critical = charge.ask.critical;
        let cost = match charge.ask.cost {
            cost if cost <= most(&guarded.limit, critical) => cost.min(most(&share, critical)),
            never => never,
        };
        Charge { rule, ask: Ask { cost, ..charge.ask }, ..charge }
    }

    /// Decides without the shared store. Also tells when, so that it can be undone.
    fn decide_alone(&self, charges: &[Known<'_>], at: Option<Timestamp>) -> (Vec<Outcome>, Timestamp) {
        let by = |wanted| move |(guarded, _): &&Known<'_>| guarded.on_failure == wanted;
        let is_closed = charges.iter().any(|known| by(OnFailure::Closed)(&known));
        let mut shares = Vec::new();
        if !is_closed {
            shares.extend(
                charges.iter().filter(by(OnFailure::Local)).map(|(g, charge)| self.share(g, *charge)),
            );
        }
        let (decided, now) = match self.local.decide_all_at(&shares, at) {
            Ok((verdict, now)) => (verdict.outcomes, now),
            // No room for the state of a key: it passes, as everywhere.
            Err(_) => (vec![self.local.fail_open(); shares.len()], self.local.now()),
        };
        let mut decided = decided.into_iter();
        let outcomes = charges.iter().map(|(guarded, _)| match guarded.on_failure {
            OnFailure::Closed => Outcome::refuse(0, Some(CLOSED_FOR.as_u64()), 0),
            OnFailure::Open => UNASKED,
            OnFailure::Local => decided.next().unwrap_or(UNASKED),
        });
        (outcomes.collect(), now)
    }

    fn all_alone(&self, charges: &[Known<'_>], at: Option<Timestamp>) -> Verdict {
        self.marked(Verdict::of(self.decide_alone(charges, at).0), charges, 0..charges.len())
    }

    /// Marks and counts those that were decided alone.
    fn marked(
        &self,
        verdict: Verdict,
        charges: &[Known<'_>],
        alone: impl IntoIterator<Item = usize>,
    ) -> Verdict {
        let [open, closed, local] = &self.counts;
        let mark = |index: usize| {
            let (guarded, _) = charges.get(index)?;
            let count = match guarded.on_failure {
                OnFailure::Open => open,
                OnFailure::Closed => closed,
                OnFailure::Local => local,
            };
            guarded.degraded.fetch_add(1, Ordering::Relaxed);
            count.fetch_add(1, Ordering::Relaxed);
            Some(Degraded { index, by: guarded.on_failure })
        };
        Verdict { degraded: alone.into_iter().filter_map(mark).collect(), ..verdict }
    }

    async fn ask_shared(
        &self,
        charges: &[Known<'_>],
        at: Option<Timestamp>,
        in_order: bool,
    ) -> Result<Verdict, StoreError> {
        let charges: Vec<_> = charges.iter().map(|(guarded, charge)| in_shared(guarded, *charge)).collect();
        match in_order {
            true => self.shared.charge_in_order(&charges, at).await,
            false => self.shared.charge(&charges, at).await,
        }
    }

    /// Decides in the shared store, and without it whatever it does not answer.
    async fn decide(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
        in_order: bool,
    ) -> Result<Verdict, StoreError> {
        let known = charges.iter().map(|charge| Ok((self.guarded(charge.rule)?, *charge)));
        let known = known.collect::<Result<Vec<Known<'_>>, StoreError>>()?;
        let is_here = |(_, charge): &Known<'_>| self.shared.answers_for(charge.key);
        if known.iter().all(is_here) {
            return Ok(match self.ask_shared(&known, at, in_order).await {
                Ok(verdict) => {
                    self.count(false, None);
                    verdict
                }
                Err(error) => {
                    let verdict = self.all_alone(&known, at);
                    self.count(true, Some(&error));
                    verdict
                }
            });
        }
        // Those whose part of the store answers are still decided there. The others go first: what they take can be
        // given back at once.
        let (here, away): (Vec<_>, Vec<_>) =
            known.iter().cloned().enumerate().partition(|(_, known)| is_here(known));
        let ((places_here, here), (places_away, away)) = (unzip(here), unzip(away));
        self.count(true, None);
        let (alone, when) = self.decide_alone(&away, at);
        let mut outcomes = vec![UNASKED; known.len()];
        if !here.is_empty() && alone.iter().all(|outcome| outcome.allowed) {
            let taken = Taken { by: self, charges: &away, when, at };
            let Ok(verdict) = self.ask_shared(&here, at, in_order).await else {
                drop(taken);
                return Ok(self.all_alone(&known, at));
            };
            if verdict.allowed {
                taken.keep();
            }
            put(&mut outcomes, &places_here, verdict.outcomes);
        }
        put(&mut outcomes, &places_away, alone);
        Ok(self.marked(Verdict::of(outcomes), &known, places_away))
    }

    /// Does something to a lease where it was taken: here in an outage, or in the shared store. Nothing, if it is not
    /// here.
    fn on_own_lease(
        &self,
        guarded: &Guarded,
        op: Op,
        charge: Charge<'_>,
        at: Option<Timestamp>,
    ) -> Option<Outcome> {
        if !guarded.is_leased() || guarded.degraded.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let outcome = self.local.decide(op, self.share(guarded, charge), at).ok()?;
        outcome.allowed.then_some(outcome)
    }
}

/// What [`decide_alone`](Failsafe::decide_alone) took. It is given back unless it is kept, also if the caller goes away
/// meanwhile.
struct Taken<'a, S: Store> {
    by: &'a Failsafe<S>,
    charges: &'a [Known<'a>],
    when: Timestamp,
    at: Option<Timestamp>,
}

impl<S: Store> Taken<'_, S> {
    fn keep(mut self) {
        self.charges = &[];
    }
}

impl<S: Store> Drop for Taken<'_, S> {
    fn drop(&mut self) {
        for (guarded, charge) in self.charges {
            if guarded.on_failure == OnFailure::Local {
                let share = self.by.share(guarded, *charge);
                let ask = Ask { taken: Some(self.when), ..share.ask };
                // What was just charged is there, so giving it back cannot fail.
                let _ = self.by.local.decide(Op::Undo, Charge { ask, ..share }, self.at);
            }
        }
    }
}

impl Guarded {
    /// Whether what is taken has an id, and can be given back by it.
    fn is_leased(&self) -> bool {
        self.limit.is_leased()
    }
}

/// The most that one call can take.
fn most(limit: &Limit, critical: bool) -> u64 {
    match limit {
        Limit::Fleet(fleet) if !critical => fleet.allocation(),
        limit => limit.capacity(),
    }
}

fn in_shared<'k>(guarded: &Guarded, charge: Charge<'k>) -> Charge<'k> {
    Charge { rule: guarded.shared, ..charge }
}

impl<S: Store> Store for Failsafe<S> {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        self.define_with(family, limit, OnFailure::default())
    }

    fn define_with(&self, family: &str, limit: Limit, on_failure: OnFailure) -> Result<Rule, StoreError> {
        Self::define_with(self, family, limit, on_failure)
    }

    /// Whoever has a place must be able to say which: it may have been taken here or there, as the store was away or not.
    fn is_shared(&self) -> bool {
        true
    }

    fn keeps_failure_modes(&self) -> bool {
        true
    }

    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        let old = self.guarded(rule)?;
        let is_alone = self.rules.read().known.iter().filter(|known| known.shared == old.shared).count() == 1;
        let shared = if is_alone {
            self.shared.redefine(old.shared, limit, at)?;
            old.shared
        } else {
            // Another of ours is the same limit, with another way of failing. That one stays as it is.
            self.shared.define(&old.family, limit)?
        };
        let mut rules = self.rules.write();
        // Whoever defines the old limit anew must not get this rule.
        rules.by_shared.retain(|_, known| *known != rule);
        if let Some(place) = rules.known.get_mut(rule.0 as usize) {
            *place = Arc::new(Guarded {
                family: old.family.clone(),
                limit,
                on_failure: old.on_failure,
                shared,
                degraded: AtomicU64::new(old.degraded.load(Ordering::Relaxed)),
                share: RwLock::default(),
            });
        }
        Ok(())
    }

    fn supersede(&self, old: Rule, new: Rule) {
        if let (Ok(old), Ok(new)) = (self.guarded(old), self.guarded(new)) {
            self.shared.supersede(old.shared, new.shared);
        }
    }

    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        self.decide(charges, at, false).await
    }

    async fn charge_in_order(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        self.decide(charges, at, true).await
    }

    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        if op == Op::Charge {
            let verdict = self.charge(&[charge], at).await?;
            return Ok(verdict.outcomes.first().copied().unwrap_or(UNASKED));
        }
        let guarded = self.guarded(charge.rule)?;
        if op != Op::Estimate
            && let Some(outcome) = self.on_own_lease(&guarded, op, charge, at)
        {
            return Ok(outcome);
        }
        if self.shared.answers_for(charge.key) {
            // A failure here may have happened after the deed, so that it is not done once more elsewhere.
            let done = self.shared.apply(op, in_shared(&guarded, charge), at).await;
            if op != Op::Estimate || done.is_ok() {
                return Ok(done.unwrap_or(UNASKED));
            }
        } else if guarded.is_leased() && matches!(op, Op::Refund | Op::Undo) {
            // It is held there, where it waits to be given back.
            self.shared.give_back(in_shared(&guarded, charge));
            return Ok(UNASKED);
        }
        Ok(match guarded.on_failure {
            OnFailure::Local if op != Op::Renew => {
                let done = self.local.decide(op, self.share(&guarded, charge), at);
                done.unwrap_or_else(|_| self.local.fail_open())
            }
            OnFailure::Closed if op == Op::Estimate => Outcome::refuse(0, Some(CLOSED_FOR.as_u64()), 0),
            // Nobody can say that a lease has ended.
            _ => UNASKED,
        })
    }

    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        let guarded = self.guarded(rule)?;
        let share = self.share(&guarded, Charge { rule, key, ask: Ask::from(0) });
        self.local.forget(share.rule, key)?;
        self.shared.reset(guarded.shared, key).await
    }

    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        let guarded = self.guarded(rule)?;
        if self.shared.answers_for(key)
            && let Ok(count) = self.shared.in_progress(guarded.shared, key, at).await
        {
            return Ok(count);
        }
        let share = self.share(&guarded, Charge { rule, key, ask: Ask::from(0) });
        self.local.count_in_progress(share.rule, key, at)
    }

    fn give_back(&self, charge: Charge<'_>) {
        let Ok(guarded) = self.guarded(charge.rule) else { return };
        if self.on_own_lease(&guarded, Op::Refund, charge, None).is_none() {
            self.shared.give_back(in_shared(&guarded, charge));
        }
    }

    fn give_back_in_order(&self, charge: Charge<'_>) -> bool {
        self.guarded(charge.rule)
            .is_ok_and(|guarded| self.shared.give_back_in_order(in_shared(&guarded, charge)))
    }

    fn answers_for(&self, key: KeyRef<'_>) -> bool {
        self.shared.answers_for(key)
    }

    fn nodes(&self) -> u64 {
        self.shared.nodes()
    }
}

fn unzip<T>(numbered: Vec<(usize, T)>) -> (Vec<usize>, Vec<T>) {
    numbered.into_iter().unzip()
}

fn put(outcomes: &mut [Outcome], places: &[usize], some: Vec<Outcome>) {
    for (&place, outcome) in places.iter().zip(some) {
        if let Some(place) = outcomes.get_mut(place) {
            *place = outcome;
        }
    }
}
