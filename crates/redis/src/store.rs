//! The store: rules, and what becomes of a charge on its way to the script and back.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::KeyRef;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store, StoreError};
use tollgate_core::{Limit, Outcome, Timestamp, Verdict};

use crate::keys::{FamilyId, Names, Subject, family_id};
use crate::limits::{Parameters, Room};
use crate::link::{Link, Status};
use crate::wire::{Act, Item, Message, Reply};

/// Keeps the states of all limits in Redis, where many processes share them.
#[derive(Debug)]
pub struct RedisStore {
    names: Names,
    rules: RwLock<Rules>,
    link: Link,
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
        Self { names, rules: RwLock::default(), link }
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
        let mut merged: Vec<(Rule, KeyRef<'_>, Ask)> = Vec::with_capacity(charges.len());
        let mut places = Vec::with_capacity(charges.len());
        let mut known = Vec::with_capacity(charges.len());
        for charge in charges {
            let rule = self.rule(charge.rule)?;
            let leased = matches!(rule.parameters.room(), Room::Leases | Room::Fleet);
            let same = |(other, key, ask): &(Rule, KeyRef<'_>, Ask)| {
                *other == charge.rule && *key == charge.key && (!leased || ask.lease == charge.ask.lease)
            };
            match merged.iter().position(same) {
                Some(place) => {
                    if let Some((_, _, ask)) = merged.get_mut(place) {
                        ask.cost = ask.cost.saturating_add(charge.ask.cost);
                    }
                    places.push(place);
                }
                None => {
                    places.push(merged.len());
                    merged.push((charge.rule, charge.key, charge.ask));
                    known.push(rule);
                }
            }
        }
        let Some((_, first, _)) = merged.first() else { return Ok(Verdict::of(Vec::new())) };
        let tag = self.names.subject(*first).tag();
        let mut message = Message::default();
        message.begin_group(merged.len());
        for ((_, key, ask), known) in merged.iter().zip(&known) {
            message.push(item(known, Act::Charge, *ask, self.keys(self.names.subject(*key), known)));
        }
        let reply = self.link.call(tag, message, at).await?;
        let outcomes: Vec<Outcome> = reply.outcomes().collect();
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
