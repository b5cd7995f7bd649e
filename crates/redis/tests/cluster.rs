//! Redis Cluster: charges that live in different slots, redirects, and a primary that dies.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::time::Duration;

use futures_util::future::join_all;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_core::{Limit, Nanos};
use tollgate_redis::RedisStore;
use tollgate_testkit::{Cluster, Flavour};

fn key(bytes: &[u8]) -> KeyRef<'_> {
    KeyRef { kind: Kind::Bytes, bytes }
}

fn per_day(count: u64) -> Limit {
    Limit::token_bucket(count, 1, Nanos::from_secs(86_400)).unwrap()
}

async fn store(cluster: &Cluster) -> RedisStore {
    let store = RedisStore::builder(cluster.url()).deadline(Duration::from_secs(5)).build().unwrap();
    store.ready().await.unwrap();
    store
}

async fn remaining(store: &RedisStore, rule: Rule, name: &[u8]) -> u64 {
    let charge = Charge { rule, key: key(name), ask: Ask::from(0) };
    store.apply(Op::Estimate, charge, None).await.unwrap().remaining
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_over_several_slots_is_all_or_nothing() {
    let cluster = Cluster::start(Flavour::Redis);
    let store = store(&cluster).await;
    let user = store.define("per user", per_day(100)).unwrap();
    let tenant = store.define("per tenant", per_day(5)).unwrap();
    let leases = store.define("in progress", Limit::leases(10, Nanos::from_secs(600)).unwrap()).unwrap();
    // Enough names to meet every way in which three of them fall into slots.
    for round in 0..40_u128 {
        let names = [format!("user {round}"), format!("tenant {round}"), format!("host {round}")];
        let [who, whose, host] = [0, 1, 2].map(|index| key(names[index].as_bytes()));
        let call = |lease: u128| {
            let charges = [
                Charge { rule: user, key: who, ask: Ask::from(1) },
                Charge { rule: tenant, key: whose, ask: Ask::from(1) },
                Charge {
                    rule: leases,
                    key: host,
                    ask: Ask { lease: LeaseId(round << 64 | lease), ..Ask::from(1) },
                },
            ];
            let store = &store;
            async move { store.charge(&charges, None).await.unwrap() }
        };
        for lease in 1..=5 {
            assert!(call(lease).await.allowed);
        }
        let refused = call(6).await;
        assert!(!refused.allowed);
        assert_eq!(refused.refused_by().collect::<Vec<_>>(), [1], "the tenant refuses");
        assert_eq!(remaining(&store, user, who.bytes).await, 95, "the user has paid nothing");
        assert_eq!(store.in_progress(leases, host, None).await.unwrap().other, 5, "no lease is left behind");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_over_two_slots_admit_exactly_the_smaller_limit() {
    let cluster = Cluster::start(Flavour::Redis);
    let store = store(&cluster).await;
    let user = store.define("per user", per_day(1000)).unwrap();
    let tenant = store.define("per tenant", per_day(200)).unwrap();
    let tasks = (0..64).map(|_| async {
        let mut admitted = 0_u64;
        for _ in 0..10 {
            let charges = [
                Charge { rule: user, key: key(b"alice"), ask: Ask::from(1) },
                Charge { rule: tenant, key: key(b"acme"), ask: Ask::from(1) },
            ];
            admitted += u64::from(store.charge(&charges, None).await.unwrap().allowed);
        }
        admitted
    });
    let admitted: u64 = join_all(tasks).await.into_iter().sum();
    assert_eq!(admitted, 200);
    assert_eq!(remaining(&store, tenant, b"acme").await, 0);
    // An undo does not credit what was refilled between the charge and it: parts of a unit may still be missing.
    let left = remaining(&store, user, b"alice").await;
    assert!((799..=800).contains(&left), "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_degrades_its_own_keys_and_comes_back_with_its_replica() {
    let mut cluster = Cluster::start(Flavour::Redis);
    let store = RedisStore::builder(cluster.url()).deadline(Duration::from_millis(200)).build().unwrap();
    store.ready().await.unwrap();
    let rule = store.define("per user", per_day(50_000)).unwrap();
    let names: Vec<String> = (0..60).map(|number| format!("user {number}")).collect();
    let ask_all = || async {
        let charges = names.iter().map(|name| {
            let charge = Charge { rule, key: key(name.as_bytes()), ask: Ask::from(1) };
            let store = &store;
            async move { store.charge(&[charge], None).await.is_ok() }
        });
        join_all(charges).await.into_iter().filter(|passed| *passed).count()
    };
    assert_eq!(ask_all().await, names.len());
    cluster.primaries_mut().next().unwrap().kill();
    let degraded = ask_all().await;
    assert!(degraded > 0, "the keys of other nodes are decided");
    let mut healed = false;
    for _ in 0..300 {
        healed = ask_all().await == names.len();
        if healed {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(healed, "the replica took over and nobody noticed");
}
