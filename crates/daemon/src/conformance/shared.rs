//! Stores in Redis: one connection, and for each case keys that no other case has.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::{Key, KeyRef};
use tollgate_core::limit::Op;
use tollgate_core::store::{Charge, Rule, Store, StoreError};
use tollgate_core::{Limit, Outcome, Timestamp, Verdict};
use tollgate_redis::RedisStore;

use crate::block_on::block_on;

/// Makes stores for cases.
pub struct SharedStores {
    store: Arc<RedisStore>,
    cases: AtomicU64,
}

/// The store as one case sees it.
pub struct CaseStore {
    store: Arc<RedisStore>,
    case: String,
}

/// A server far away may take its time: here it is the answer that counts.
const DEADLINE: Duration = Duration::from_secs(5);

impl SharedStores {
    /// Stores at this address. Fails if there is no server that answers.
    pub fn at(address: &str) -> anyhow::Result<Self> {
        let prefix = format!("tollgate-conformance-{:016x}", rand::random::<u64>());
        let store = RedisStore::builder(address).prefix(prefix).deadline(DEADLINE).build()?;
        block_on(store.ready()).with_context(|| format!("no store at {address}"))?;
        Ok(Self { store: Arc::new(store), cases: AtomicU64::new(0) })
    }

    /// A store for the next case.
    pub fn for_one_case(&self) -> CaseStore {
        let case = self.cases.fetch_add(1, Ordering::Relaxed);
        CaseStore { store: Arc::clone(&self.store), case: format!("case {case}") }
    }
}

impl CaseStore {
    fn of_case<R>(&self, key: KeyRef<'_>, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        (self.case.as_str(), key).with(f)
    }
}

impl Store for CaseStore {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        self.store.define(family, limit)
    }

    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        self.store.redefine(rule, limit, at)
    }

    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        let Some(first) = charges.first() else { return self.store.charge(&[], at).await };
        // All charges of a case are of one key.
        self.of_case(first.key, |key| {
            let charges: Vec<_> = charges.iter().map(|charge| Charge { key, ..*charge }).collect();
            block_on(self.store.charge(&charges, at))
        })
    }

    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        self.of_case(charge.key, |key| block_on(self.store.apply(op, Charge { key, ..charge }, at)))
    }

    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        self.of_case(key, |key| block_on(self.store.reset(rule, key)))
    }

    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        self.of_case(key, |key| block_on(self.store.in_progress(rule, key, at)))
    }
}
