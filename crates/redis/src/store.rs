//! The store: rules, and what becomes of a charge on its way to the script and back.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use parking_lot::RwLock;
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::KeyRef;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store, StoreError};
use tollgate_core::{Limit, Nanos, Outcome, Timestamp, Verdict};

use crate::keys::{FamilyId, Names, Subject, family_id};
use crate::limits::{Parameters, Room};
use crate::link::{Link, Status};
use crate::wire::{Act, Item, Message, Reply};

/// Keeps the states of all limits in Redis, where many processes share them. Clones share rules and connection.
#[derive(Clone, Debug)]
pub struct RedisStore {
    names: Names,
    rules: Arc<RwLock<Rules>>,
    link: Arc<Link>,
}

#[derive(Debug, Default)]
struct Rules {
    known: Vec<Arc<Known>>,
    by_name: HashMap<(FamilyId, [u64; 5]), u32>,
}

/// A rule as it is sent.
#[derive(Debug)]
struct Known {
    family: FamilyId,
    parameters: Parameters,
    /// When it changed to these parameters, in microseconds, if a caller said so.
    since: Option<u64>,
}

impl RedisStore {
    pub(crate) fn new(names: Names, link: Link) -> Self {
        Self { names, rules: Arc::default(), link: Arc::new(link) }
    }

    /// Waits until the first attempt to reach the servers has come to something. The store need not be waited for: it
    /// connects on its own, and again whenever it has to.
    pub async fn ready(&self) -> Result<(), StoreError> {
        match self.link.known().await {
            Status::Down(problem) => Err(StoreError::Unavailable(problem)),
            Status::Up | Status::Connecting => Ok(()),
        }
    }

    /// Whether decisions fail at this moment, all or some of them, because servers do not answer.
    pub fn is_degraded(&self) -> bool {
        self.link.is_degraded()
    }

    fn rule(&self, rule: Rule) -> Result<Arc<Known>, StoreError> {
        self.rules.read().known.get(rule.0 as usize).cloned().ok_or(StoreError::UnknownRule(rule))
    }

    fn keys(&self, subject: Subject, known: &Known) -> (Vec<u8>, Option<Vec<u8>>) {
        let own = |suffix| self.names.own(subject, known.family, suffix);
        match known.parameters.room() {
            Room::Rates => (self.names.rates(subject), None),
            Room::Log => (own(":l"), None),
            Room::Leases => (own(":o"), None),
            Room::Fleet => (own(":o"), Some(own(":c"))),
        }
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
        let mut message = Message::default();
        message.begin_group(1);
        message.push(item(&known, act, ask, self.keys(subject, &known)));
        self.link.call(subject.tag(), message, at).await
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

impl RedisStore {
    /// Does one thing to several limits in one call, all or nothing.
    async fn send(
        &self,
        tag: u8,
        act: Act,
        parts: &[&Part],
        at: Option<Timestamp>,
    ) -> Result<Reply, StoreError> {
        let mut message = Message::default();
        message.begin_group(parts.len());
        for part in parts {
            message.push(item(&part.known, act, part.ask, self.keys(part.subject, &part.known)));
        }
        self.link.call(tag, message, at).await
    }

    /// Charges that live in different slots: the first subject's own, because it refuses most often and then nobody else
    /// is troubled, then the rest side by side. What was taken goes back when another refuses or does not answer.
    async fn charge_by_slot(
        &self,
        parts: &[Part],
        at: Option<Timestamp>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut groups: Vec<(u8, Vec<usize>)> = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            match groups.iter_mut().find(|(tag, _)| *tag == part.tag()) {
                Some((_, group)) => group.push(index),
                None => groups.push((part.tag(), vec![index])),
            }
        }
        let of = |group: &[usize]| group.iter().filter_map(|&index| parts.get(index)).collect::<Vec<&Part>>();
        let mut outcomes = vec![Outcome::allow(u64::MAX, 0); parts.len()];
        let mut done: Vec<(&(u8, Vec<usize>), Reply)> = Vec::new();
        let mut failed = None;
        let Some((first, rest)) = groups.split_first() else { return Ok(outcomes) };
        for some in [std::slice::from_ref(first), rest] {
            let replies = some.iter().map(|(tag, group)| {
                let parts = of(group);
                async move { self.send(*tag, Act::Charge, &parts, at).await }
            });
            for (group, reply) in some.iter().zip(join_all(replies).await) {
                match reply {
                    Ok(reply) => done.push((group, reply)),
                    Err(error) => failed = Some(error),
                }
            }
            let refused = done.iter().any(|(_, reply)| reply.outcomes().any(|outcome| !outcome.allowed));
            if refused || failed.is_some() {
                break;
            }
        }
        for ((_, group), reply) in &done {
            for (&index, outcome) in group.iter().zip(reply.outcomes()) {
                if let Some(place) = outcomes.get_mut(index) {
                    *place = outcome;
                }
            }
        }
        if failed.is_none() && outcomes.iter().all(|outcome| outcome.allowed) {
            return Ok(outcomes);
        }
        // Never without a reply that says it was taken, and never twice.
        let passed = done.iter().filter(|(_, reply)| reply.outcomes().all(|outcome| outcome.allowed));
        let undone = passed.map(|((tag, group), reply)| async move {
            let taken = group.iter().zip(reply.taken()).filter(|(_, taken)| *taken).map(|(&index, _)| index);
            let (indices, back): (Vec<usize>, Vec<Part>) =
                taken.filter_map(|index| Some((index, parts.get(index)?.given_back(reply.now)))).unzip();
            let back: Vec<&Part> = back.iter().collect();
            if back.is_empty() {
                return Vec::new();
            }
            // If it cannot be given back now, it comes back by itself with time.
            match self.send(*tag, Act::Undo, &back, at).await {
                Ok(reply) => indices.into_iter().zip(reply.outcomes().collect::<Vec<_>>()).collect(),
                Err(_) => Vec::new(),
            }
        });
        // What is told of those that were charged for a moment is how they stand now.
        for (index, left) in join_all(undone).await.into_iter().flatten() {
            if let Some(place) = outcomes.get_mut(index) {
                *place = Outcome { allowed: true, retry_after: Some(Nanos::ZERO), ..left };
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(outcomes),
        }
    }
}

fn item(known: &Known, act: Act, ask: Ask, keys: (Vec<u8>, Option<Vec<u8>>)) -> Item<'_> {
    let Known { family, parameters, since } = known;
    Item { family: *family, parameters, since: *since, act, ask, keys }
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
        let mut rules = self.rules.write();
        let name = fingerprint(family, &parameters);
        if let Some(&number) = rules.by_name.get(&name) {
            return Ok(Rule(number));
        }
        let rule = rules.add(Known { family, parameters, since: None });
        rules.by_name.insert(name, rule.0);
        Ok(rule)
    }

    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        let parameters = Parameters::of(&limit)?;
        let mut rules = self.rules.write();
        rules.by_name.retain(|_, number| *number != rule.0);
        let place = rules.known.get_mut(rule.0 as usize).ok_or(StoreError::UnknownRule(rule))?;
        let since = at.map(|at| at.as_nanos() / 1000);
        *place = Arc::new(Known { family: place.family, parameters, since });
        Ok(())
    }

    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        let mut merged: Vec<Part> = Vec::with_capacity(charges.len());
        let mut places = Vec::with_capacity(charges.len());
        for charge in charges {
            let known = self.rule(charge.rule)?;
            let subject = self.names.subject(charge.key);
            let leased = matches!(known.parameters.room(), Room::Leases | Room::Fleet);
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
        let outcomes = if self.link.has_slots()
            && merged.windows(2).any(|pair| matches!(pair, [a, b] if a.tag() != b.tag()))
        {
            self.charge_by_slot(&merged, at).await?
        } else {
            let parts: Vec<&Part> = merged.iter().collect();
            match parts.first() {
                Some(first) => self.send(first.tag(), Act::Charge, &parts, at).await?.outcomes().collect(),
                None => Vec::new(),
            }
        };
        Ok(Verdict::of(places.into_iter().filter_map(|place| outcomes.get(place).copied()).collect()))
    }

    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        let reply = self.act(op.into(), charge.rule, charge.key, charge.ask, at).await?;
        reply
            .outcomes()
            .next()
            .ok_or_else(|| StoreError::Unavailable("the script's reply is too short".to_owned()))
    }

    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        self.act(Act::Forget, rule, key, Ask::from(0), None).await.map(|_| ())
    }

    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        let reply = self.act(Act::Count, rule, key, Ask::from(0), at).await?;
        Ok(reply.in_progress())
    }
}
