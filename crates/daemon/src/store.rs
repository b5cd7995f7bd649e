//! The store that a policy names: memory, or a Redis with what each limit does without it.

use std::time::Duration;

use tollgate::core::concurrency::InProgress;
use tollgate::core::key::KeyRef;
use tollgate::core::limit::Op;
use tollgate::core::policy::StoreChoice;
use tollgate::core::store::{Charge, Rule, StoreError};
use tollgate::{Failsafe, Limit, MemoryStore, OnFailure, Outcome, Outcomes, Store, Timestamp, Verdict};
use tollgate_redis::RedisStore;

/// One of the stores that the binary knows.
#[allow(clippy::large_enum_variant, reason = "there is one, and every decision goes through it")]
pub(crate) enum AnyStore {
    /// In this process.
    Memory(MemoryStore),
    /// Shared by many.
    Shared(Failsafe<RedisStore>),
}

impl AnyStore {
    /// The store of a policy. The secret of the environment goes before that of the file.
    pub(crate) fn open(
        choice: &StoreChoice,
        secret: Option<String>,
    ) -> Result<Self, tollgate_redis::BuildError> {
        let memory = || match choice.max_bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
            Some(bytes) => MemoryStore::builder().max_bytes(bytes).build(),
            None => MemoryStore::new(),
        };
        let Some(url) = &choice.url else { return Ok(Self::Memory(memory())) };
        let mut builder = RedisStore::builder(url.as_str());
        if let Some(secret) = secret.or_else(|| choice.secret.clone()) {
            builder = builder.secret(secret);
        }
        if let Some(prefix) = &choice.prefix {
            builder = builder.prefix(prefix.as_str());
        }
        if let Some(deadline) = choice.deadline {
            builder = builder.deadline(Duration::from(deadline));
        }
        if let Some(nodes) = choice.expected_nodes {
            builder = builder.expected_nodes(nodes);
        }
        let local = std::sync::Arc::new(memory());
        Ok(Self::Shared(Failsafe::with_local(builder.build()?, local)))
    }
}

/// Asks whichever store it is.
macro_rules! either {
    ($self:expr, $store:ident => $asked:expr) => {
        match $self {
            AnyStore::Memory($store) => $asked,
            AnyStore::Shared($store) => $asked,
        }
    };
}

impl Store for AnyStore {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        either!(self, store => Store::define(store, family, limit))
    }

    fn define_with(&self, family: &str, limit: Limit, on_failure: OnFailure) -> Result<Rule, StoreError> {
        either!(self, store => Store::define_with(store, family, limit, on_failure))
    }

    #[inline]
    fn is_shared(&self) -> bool {
        either!(self, store => store.is_shared())
    }

    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        either!(self, store => Store::redefine(store, rule, limit, at))
    }

    fn supersede(&self, old: Rule, new: Rule) {
        either!(self, store => Store::supersede(store, old, new))
    }

    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        either!(self, store => Store::charge(store, charges, at).await)
    }

    async fn charge_in_order(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        either!(self, store => Store::charge_in_order(store, charges, at).await)
    }

    #[inline]
    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
        told: &mut Outcomes,
    ) -> Option<bool> {
        either!(self, store => store.charge_at_once(charges, at, told))
    }

    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        either!(self, store => Store::apply(store, op, charge, at).await)
    }

    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        either!(self, store => Store::reset(store, rule, key).await)
    }

    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        either!(self, store => Store::in_progress(store, rule, key, at).await)
    }

    #[inline]
    fn give_back(&self, charge: Charge<'_>) {
        either!(self, store => store.give_back(charge));
    }

    fn give_back_in_order(&self, charge: Charge<'_>) -> bool {
        either!(self, store => store.give_back_in_order(charge))
    }

    fn answers_for(&self, key: KeyRef<'_>) -> bool {
        either!(self, store => store.answers_for(key))
    }

    fn keeps_failure_modes(&self) -> bool {
        either!(self, store => store.keeps_failure_modes())
    }

    fn nodes(&self) -> u64 {
        either!(self, store => store.nodes())
    }
}
