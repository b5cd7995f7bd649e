//! The store: rules, and what becomes of a charge on its way to the script and back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::RwLock;
use smallvec::SmallVec;
use tokio::time::Instant;
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::KeyRef;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store, StoreError};
use tollgate_core::{Limit, Nanos, Outcome, Timestamp, Verdict};

use crate::answer::Answer;
use crate::keys::{FamilyId, Names, Subject, family_id};
use crate::limits::{Parameters, Room};
use crate::link::{Link, Nature, Status};
use crate::marks::Marks;
use crate::nodes::{NODES, Nodes};
use crate::stats::RedisStats;
use crate::wire::{Act, Item, Keys, MAX_ITEMS, Message, Reply, Since};

/// Keeps the states of all limits in Redis, where many processes share them. Clones share rules and connection.
///
/// ```no_run
/// use tollgate_core::store::{Charge, Store};
/// use tollgate_core::{Limit, Nanos};
/// use tollgate_redis::RedisStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder("redis://127.0.0.1:6379").secret("the same on every node").build()?;
/// let limit = Limit::token_bucket(500, 100, Nanos::from_secs(1))?;
/// let per_user = store.define("per user", limit)?;
/// let charge = Charge { rule: per_user, key: "alice".into(), ask: 1.into() };
/// let verdict = store.charge(&[charge], None).await?;
/// assert!(verdict.allowed);
/// # Ok(())
/// # }
/// ```
///
/// Alone, this store answers with an error when Redis does not. Put it into a `tollgate::Failsafe`, and each limit does
/// then what it was told to do.
#[derive(Clone, Debug)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    names: Names,
    rules: RwLock<Rules>,
    /// The time of the servers as it was last told, in microseconds.
    latest: AtomicU64,
    link: Link,
    nodes: Nodes,
    marks: Marks,
    warnings: Vec<String>,
    address: String,
}

/// How it stands with a store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Why no decision can be had at all, if so.
    pub problem: Option<String>,
    /// Whether decisions fail at this moment, all or some of them.
    pub degraded: bool,
    /// What works and should be looked at all the same.
    pub warnings: Vec<String>,
    /// How many processes use the store, as last known.
    pub nodes: u64,
    /// Parts of the store that are not asked at this moment because they have failed. A server that is no cluster
    /// is one part.
    pub breakers_open: usize,
}

#[derive(Debug, Default)]
struct Rules {
    known: Vec<Arc<Known>>,
    by_name: HashMap<(FamilyId, [u64; 5]), u32>,
}

/// A rule as it is sent.
#[derive(Debug)]
pub(crate) struct Known {
    family: FamilyId,
    parameters: Parameters,
    since: Since,
}

impl RedisStore {
    pub(crate) fn new(
        names: Names,
        link: Link,
        nodes: Nodes,
        warnings: Vec<String>,
        address: String,
    ) -> Self {
        let heartbeat = nodes.heartbeat();
        let (rules, marks) = (RwLock::default(), Marks::default());
        let latest = AtomicU64::new(0);
        let inner = Arc::new(Inner { names, rules, latest, link, nodes, marks, warnings, address });
        tokio::spawn(announce(Arc::downgrade(&inner), heartbeat));
        Self { inner }
    }

    /// Waits until the first attempt to reach the servers has come to something. The store need not be waited for: it
    /// connects on its own, and again whenever it has to.
    pub async fn ready(&self) -> Result<(), StoreError> {
        match self.inner.link.known().await {
            Status::Down(problem) => Err(StoreError::Unavailable(problem)),
            Status::Up(_) | Status::Connecting => Ok(()),
        }
    }

    /// How it stands with the servers.
    pub fn health(&self) -> Health {
        let Inner { link, nodes, warnings, .. } = &*self.inner;
        let mut warnings = warnings.clone();
        let problem = match link.status() {
            Status::Down(problem) => Some(problem),
            Status::Connecting => Some("not connected yet".to_owned()),
            Status::Up(more) => {
                warnings.extend(more);
                warnings.extend(link.fault().map(|fault| format!("a decision failed: {fault}")));
                None
            }
        };
        let breakers_open = link.breakers_open();
        let degraded = problem.is_some() || breakers_open > 0;
        Health { degraded, problem, warnings, nodes: nodes.count(), breakers_open }
    }

    /// Where the servers are, without the password.
    pub fn address(&self) -> &str {
        &self.inner.address
    }

    /// For a process that ends: tells the store so, and waits until leases that were to be given back have been, no longer
    /// than the deadline of a decision. Without it, others count this process for some seconds more.
    pub async fn close(&self) {
        let Inner { names, link, nodes, marks, .. } = &*self.inner;
        nodes.leave();
        let (tag, message) = self.inner.to_nodes(Act::Refund);
        let deadline = link.deadline();
        let left = link.chore(tag, message, None, Nature::REPEATABLE, deadline).await;
        if left.is_ok_and(|reply| reply.outcomes().next().is_some_and(Nodes::is_nobody)) {
            let forget = |tag| {
                let message = marks.message(names, tag, Act::Forget);
                link.chore(tag, message, None, Nature::REPEATABLE, deadline)
            };
            join_all(marks.tags().into_iter().map(forget)).await;
        }
    }

    /// What the store has counted.
    pub fn stats(&self) -> RedisStats {
        self.inner.link.counts().read()
    }
}

/// Tells the store again and again that this process uses it, and learns how many do.
async fn announce(store: Weak<Inner>, heartbeat: Duration) {
    loop {
        let Some(inner) = store.upgrade().filter(|inner| !inner.nodes.has_left()) else { return };
        let known = inner.announce().await;
        if known || inner.link.has_slots() {
            inner.look_at_marks().await;
        }
        drop(inner);
        // Not all at once, and after a failure soon again.
        let wait = if known { heartbeat } else { heartbeat.min(Duration::from_secs(1)) };
        tokio::time::sleep(wait.mul_f64(0.8 + 0.2 * rand::random::<f64>())).await;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.nodes.has_left() {
            let (tag, message) = self.to_nodes(Act::Refund);
            self.link.chore_later(tag, message);
        }
    }
}

impl Inner {
    /// Something about this node, and where to send it.
    fn to_nodes(&self, act: Act) -> (u8, Message) {
        let subject = self.names.subject(NODES);
        (subject.tag(), self.nodes.rule().message(&self.names, subject, act, self.nodes.lease()))
    }

    /// Whether the store has heard it.
    async fn announce(&self) -> bool {
        let (tag, message) = self.to_nodes(Act::Charge);
        let answer = self.link.call(tag, message, None, self.link.deadline(), false).await;
        let outcome = answer.ok().and_then(|answer| answer.claim().outcomes().next());
        outcome.map(|outcome| self.nodes.heard(outcome)).is_some()
    }

    async fn look_at_marks(&self) {
        let deadline = self.link.deadline();
        let look = |tag| async move {
            let answer = self
                .link
                .call(tag, self.marks.message(&self.names, tag, Act::Charge), None, deadline, false)
                .await;
            answer.is_ok_and(|answer| self.marks.heard(tag, &answer.claim()))
        };
        if join_all(self.marks.next_tags(self.link.has_slots()).map(look)).await.contains(&true) {
            self.link.counts().states_lost.add(1);
            tracing::warn!(
                "the store in Redis has forgotten what it knew, or a part of it (flushed, or restarted): limits start anew"
            );
        }
    }

    /// The time of the servers, as a reply has told it.
    fn saw(&self, reply: &Reply) {
        self.latest.store(reply.now.as_nanos() / 1000, Ordering::Relaxed);
    }

    fn rule(&self, rule: Rule) -> Result<Arc<Known>, StoreError> {
        self.rules.read().known.get(rule.0 as usize).cloned().ok_or(StoreError::UnknownRule(rule))
    }

    async fn act(
        &self,
        act: Act,
        rule: Rule,
        key: KeyRef<'_>,
        ask: Ask,
        at: Option<Timestamp>,
    ) -> Result<Reply, StoreError> {
        let known = self.rule(rule)?;
        let subject = self.names.subject(key);
        let message = known.message(&self.names, subject, act, ask);
        let (tag, deadline) = (subject.tag(), self.link.deadline());
        let on_lease =
            known.parameters.room().is_leased() && matches!(act, Act::Refund | Act::Undo | Act::Renew);
        let reply = if on_lease {
            self.link.chore(tag, message, at, Nature::REPEATABLE, deadline).await?
        } else {
            self.link.call(tag, message, at, deadline, false).await?.claim()
        };
        self.link.counts().decided.add(1);
        Ok(reply)
    }
}

/// One charge of a call: of one limit and one subject.
#[derive(Debug)]
struct Part {
    rule: Rule,
    known: Arc<Known>,
    subject: Subject,
    ask: Ask,
}

impl Part {
    fn tag(&self) -> u8 {
        self.subject.tag()
    }

    /// The same, to be given back.
    fn given_back(&self, taken: Timestamp) -> Self {
        let ask = Ask { taken: Some(taken), ..self.ask };
        Self { rule: self.rule, known: Arc::clone(&self.known), subject: self.subject, ask }
    }
}

impl Inner {
    fn message<'p>(&self, act: Act, parts: impl ExactSizeIterator<Item = &'p Part>) -> Message {
        let mut message = Message::default();
        message.begin_group(parts.len());
        for part in parts {
            message.push(part.known.item(&self.names, part.subject, act, part.ask));
        }
        message
    }

    /// Decides charges of one call, all or nothing; `in_order` as [`Link::call`] says.
    async fn charge(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
        in_order: bool,
    ) -> Result<Verdict, StoreError> {
        let deadline = self.link.deadline();
        let mut merged: SmallVec<[Part; 3]> = SmallVec::new();
        let mut places: SmallVec<[usize; 8]> = SmallVec::new();
        for charge in charges {
            let known = self.rule(charge.rule)?;
            let subject = self.names.subject(charge.key);
            let leased = known.parameters.room().is_leased();
            let same = |part: &Part| {
                part.rule == charge.rule
                    && part.subject == subject
                    && (!leased || part.ask.lease == charge.ask.lease)
            };
            match merged.iter_mut().enumerate().find(|(_, part)| same(part)) {
                Some((place, part)) => {
                    part.ask.cost = part.ask.cost.saturating_add(charge.ask.cost);
                    places.push(place);
                }
                None => {
                    places.push(merged.len());
                    merged.push(Part { rule: charge.rule, known, subject, ask: charge.ask });
                }
            }
        }
        if merged.len() > MAX_ITEMS {
            let problem = format!("a call may have {MAX_ITEMS} limits, not {}", merged.len());
            return Err(StoreError::Unavailable(problem));
        }
        let apart = |pair: &[Part]| matches!(pair, [a, b] if a.tag() != b.tag());
        let outcomes = match merged.first() {
            None => Vec::new(),
            Some(_) if self.link.has_slots() && merged.windows(2).any(apart) => {
                self.charge_by_slot(&merged, at, deadline, in_order).await?
            }
            Some(first) => {
                let message = self.message(Act::Charge, merged.iter());
                let reply = self.link.call(first.tag(), message, at, deadline, in_order).await?.claim();
                self.saw(&reply);
                reply.outcomes().collect()
            }
        };
        self.link.counts().decided.add(1);
        Ok(Verdict::of(places.into_iter().filter_map(|place| outcomes.get(place).copied()).collect()))
    }

    /// Charges that live in different slots: the first subject's own, because it refuses most often and then nobody else
    /// is troubled, then the rest side by side. What was taken goes back when another refuses or does not answer.
    async fn charge_by_slot(
        &self,
        parts: &[Part],
        at: Option<Timestamp>,
        deadline: Instant,
        in_order: bool,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut groups: Vec<(u8, Vec<usize>)> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            match groups.iter_mut().find(|(tag, _)| *tag == part.tag()) {
                Some((_, group)) => group.push(index),
                None => groups.push((part.tag(), vec![index])),
            }
        }
        let of = |group: &[usize]| group.iter().filter_map(|&index| parts.get(index)).collect::<Vec<&Part>>();
        let mut done: Vec<(&(u8, Vec<usize>), Answer)> = Vec::new();
        let mut failed = None;
        let mut refused = false;
        let Some((first, rest)) = groups.split_first() else { return Ok(Vec::new()) };
        for some in [std::slice::from_ref(first), rest] {
            let answers = some.iter().map(|(tag, group)| {
                self.link.call(*tag, self.message(Act::Charge, of(group).into_iter()), at, deadline, in_order)
            });
            for (group, answer) in some.iter().zip(join_all(answers).await) {
                match answer {
                    Ok(answer) => done.push((group, answer)),
                    Err(error) => failed = Some(error),
                }
            }
            let refuses = |answer: &Answer| answer.reply().is_none_or(|reply| !reply.is_allowed());
            refused = done.iter().any(|(_, answer)| refuses(answer));
            if refused || failed.is_some() {
                break;
            }
        }
        let done: Vec<_> = done.into_iter().map(|(group, answer)| (group, answer.claim())).collect();
        let mut outcomes = vec![Outcome::allow(u64::MAX, 0); parts.len()];
        for ((_, group), reply) in &done {
            self.saw(reply);
            put(&mut outcomes, group.iter().copied().zip(reply.outcomes()));
        }
        if !refused && failed.is_none() {
            return Ok(outcomes);
        }
        // Never without a reply that says it was taken, and never twice.
        let passed = done.iter().filter(|(_, reply)| reply.is_allowed());
        let undone = passed.map(|((tag, group), reply)| async move {
            let taken = group.iter().zip(reply.taken()).filter(|(_, taken)| *taken).map(|(&index, _)| index);
            let (indices, back): (Vec<usize>, Vec<Part>) =
                taken.filter_map(|index| Some((index, parts.get(index)?.given_back(reply.now)))).unzip();
            if back.is_empty() {
                return Vec::new();
            }
            let message = self.message(Act::Undo, back.iter());
            // If it cannot be given back now, it comes back by itself with time.
            match self.link.chore(*tag, message, at, Nature::Once, deadline).await {
                Ok(reply) => indices.into_iter().zip(reply.outcomes().collect::<Vec<_>>()).collect(),
                Err(_) => Vec::new(),
            }
        });
        // What is told of those that were charged for a moment is how they stand now.
        let stand =
            |(index, left)| (index, Outcome { allowed: true, retry_after: Some(Nanos::ZERO), ..left });
        put(&mut outcomes, join_all(undone).await.into_iter().flatten().map(stand));
        match failed {
            Some(error) => Err(error),
            None => Ok(outcomes),
        }
    }
}

fn put(outcomes: &mut [Outcome], some: impl Iterator<Item = (usize, Outcome)>) {
    for (index, outcome) in some {
        if let Some(place) = outcomes.get_mut(index) {
            *place = outcome;
        }
    }
}

impl Known {
    /// A rule that never changes.
    pub(crate) fn new(family: &str, parameters: Parameters) -> Self {
        Self { family: family_id(family), parameters, since: Since::Unknown }
    }

    /// What does one thing to this rule's state of one subject.
    pub(crate) fn message(&self, names: &Names, subject: Subject, act: Act, ask: Ask) -> Message {
        let mut message = Message::default();
        message.begin_group(1);
        message.push(self.item(names, subject, act, ask));
        message
    }

    fn item(&self, names: &Names, subject: Subject, act: Act, ask: Ask) -> Item<'_> {
        let own = |suffix| names.own(subject, self.family, suffix);
        let mut keys = Keys::new();
        match self.parameters.room() {
            Room::Rates => {}
            Room::Log => keys.push(own(":l")),
            Room::Leases | Room::Fleet => keys.extend([own(":o"), own(":c")]),
        }
        // All but logs have a record in the subject's one string.
        if self.parameters.room() != Room::Log {
            keys.push(names.rates(subject));
        }
        Item { family: self.family, parameters: &self.parameters, since: self.since, act, ask, keys }
    }
}

impl Rules {
    fn add(&mut self, known: Known) -> Rule {
        let number = u32::try_from(self.known.len()).unwrap_or(u32::MAX);
        self.known.push(Arc::new(known));
        Rule(number)
    }
}

fn fingerprint(family: FamilyId, parameters: &Parameters) -> (FamilyId, [u64; 5]) {
    let [a, b, c] = parameters.numbers.map(f64::to_bits);
    (family, [u64::from(parameters.kind), a, b, c, parameters.extra.to_bits()])
}

impl Store for RedisStore {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        let parameters = Parameters::of(&limit)?;
        let family = family_id(family);
        let mut rules = self.inner.rules.write();
        let name = fingerprint(family, &parameters);
        if let Some(&number) = rules.by_name.get(&name) {
            return Ok(Rule(number));
        }
        let rule = rules.add(Known { family, parameters, since: Since::Beside });
        rules.by_name.insert(name, rule.0);
        Ok(rule)
    }

    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        let parameters = Parameters::of(&limit)?;
        let mut rules = self.inner.rules.write();
        rules.by_name.retain(|_, number| *number != rule.0);
        let place = rules.known.get_mut(rule.0 as usize).ok_or(StoreError::UnknownRule(rule))?;
        let since = at.map_or(Since::Unknown, |at| Since::At(at.as_nanos() / 1000));
        *place = Arc::new(Known { family: place.family, parameters, since });
        Ok(())
    }

    fn supersede(&self, old: Rule, new: Rule) {
        let mut rules = self.inner.rules.write();
        // What this process has not seen charged is beside, until it is.
        let since = match self.inner.latest.load(Ordering::Relaxed) {
            0 => return,
            latest => Since::Superseded(latest + 1),
        };
        let family = rules.known.get(old.0 as usize).map(|known| known.family);
        if let Some(place) = rules.known.get_mut(new.0 as usize).filter(|known| Some(known.family) == family)
        {
            *place = Arc::new(Known { family: place.family, parameters: place.parameters, since });
        }
    }

    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        self.inner.charge(charges, at, false).await
    }

    async fn charge_in_order(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        self.inner.charge(charges, at, true).await
    }

    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        let reply = self.inner.act(op.into(), charge.rule, charge.key, charge.ask, at).await?;
        reply
            .outcomes()
            .next()
            .ok_or_else(|| StoreError::Unavailable("the script's reply is too short".to_owned()))
    }

    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        self.inner.act(Act::Forget, rule, key, Ask::from(0), None).await.map(|_| ())
    }

    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        let reply = self.inner.act(Act::Count, rule, key, Ask::from(0), at).await?;
        Ok(reply.in_progress())
    }

    fn give_back(&self, charge: Charge<'_>) {
        let Ok(known) = self.inner.rule(charge.rule) else { return };
        let subject = self.inner.names.subject(charge.key);
        let message = known.message(&self.inner.names, subject, Act::Refund, charge.ask);
        self.inner.link.chore_later(subject.tag(), message);
    }

    fn give_back_in_order(&self, charge: Charge<'_>) -> bool {
        let Ok(known) = self.inner.rule(charge.rule) else { return false };
        let subject = self.inner.names.subject(charge.key);
        let message = known.message(&self.inner.names, subject, Act::Refund, charge.ask);
        self.inner.link.release_in_order(subject.tag(), message)
    }

    fn answers_for(&self, key: KeyRef<'_>) -> bool {
        !self.inner.link.is_open(self.inner.names.subject(key).tag())
    }

    fn nodes(&self) -> u64 {
        self.inner.nodes.count()
    }
}
