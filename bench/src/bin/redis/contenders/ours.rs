//! Tollgate: one call of its store per decision.

use std::time::Duration;

use tollgate_bench::keys::Text;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::Ask;
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_core::{Limit, LimitError, Nanos};
use tollgate_redis::RedisStore;

use super::quota::{ADMITS, ADMITS_PER_HOUR, LEASE_TIME, LEASES, Quota, fresh_lease};
use super::{Contender, Failure};

/// Long enough for no decision to fail: what is measured is the work, not the giving up.
const DEADLINE: Duration = Duration::from_secs(1);
/// So rarely that all changes in the server are those of decisions.
const HEARTBEAT: Duration = Duration::from_secs(3_600);

#[derive(Clone)]
pub struct OneLimit {
    store: RedisStore,
    rate: Rule,
}

#[derive(Clone)]
pub struct ThreeLimits {
    store: RedisStore,
    rates: [Rule; 2],
    lease: Rule,
}

impl OneLimit {
    pub async fn new(url: &str, quota: Quota) -> Result<Self, Failure> {
        let store = store(url).await?;
        let rate = store.define("requests", bucket(quota)?)?;
        Ok(Self { store, rate })
    }
}

impl Contender for OneLimit {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let charge = Charge { rule: self.rate, key: key(subject), ask: Ask::from(1) };
        Ok(self.store.charge(&[charge], None).await?.allowed)
    }
}

impl ThreeLimits {
    pub async fn new(url: &str) -> Result<Self, Failure> {
        let store = store(url).await?;
        let rates = [
            store.define("requests per second", bucket(ADMITS)?)?,
            store.define("requests per hour", bucket(ADMITS_PER_HOUR)?)?,
        ];
        let lease = store.define("requests in progress", Limit::leases(LEASES, nanos(LEASE_TIME))?)?;
        Ok(Self { store, rates, lease })
    }
}

impl Contender for ThreeLimits {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let ask = Ask { lease: LeaseId(fresh_lease()), ..Ask::from(1) };
        let [second, hour] = self.rates;
        let charges = [second, hour, self.lease].map(|rule| Charge { rule, key: key(subject), ask });
        Ok(self.store.charge(&charges, None).await?.allowed)
    }
}

async fn store(url: &str) -> Result<RedisStore, Failure> {
    let builder = RedisStore::builder(url).deadline(DEADLINE).heartbeat(HEARTBEAT).secret("benchmark");
    let store = builder.build()?;
    store.ready().await?;
    Ok(store)
}

fn key(subject: &Text) -> KeyRef<'_> {
    KeyRef { kind: Kind::Bytes, bytes: subject }
}

fn bucket(quota: Quota) -> Result<Limit, LimitError> {
    Limit::token_bucket(quota.burst, quota.count, nanos(quota.period))
}

fn nanos(time: Duration) -> Nanos {
    Nanos::from_secs(time.as_secs())
}
