//! What happens to requests in progress when the server goes away and comes back.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::core::store::{Charge, Store};
use tollgate::{Facts, Failsafe, Limiter};
use tollgate_redis::RedisStore;
use tollgate_testkit::RedisServer;

use crate::common::*;

/// A rejected request: when, and whether it was decided without the store.
type Rejected = (Instant, bool);

/// Clients of some callers that each send one request after another until they are stopped.
struct Clients {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<(u64, Vec<Rejected>)>>,
}

impl Clients {
    fn start(limiter: &Limiter<Safe>, callers: usize, connections: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..callers * connections).map(|number| {
            let (limiter, stop) = (limiter.clone(), Arc::clone(&stop));
            let caller = format!("caller {}", number % callers);
            tokio::spawn(async move {
                let (mut sent, mut rejected) = (0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let headers = [("x-api-key", caller.as_str())];
                    let facts = Facts { method: "GET", path: "/", headers: &headers, ..Facts::default() };
                    sent += 1;
                    let admitted = limiter.admit(&facts).await;
                    if let Err(refusal) = &admitted {
                        rejected.push((Instant::now(), refusal.is_degraded()));
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                (sent, rejected)
            })
        });
        Self { tasks: tasks.collect(), stop }
    }

    async fn finish(self) -> (u64, Vec<Rejected>) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut sent, mut rejected) = (0, Vec::new());
        for task in self.tasks {
            let (more, some) = task.await.unwrap();
            sent += more;
            rejected.extend(some);
        }
        rejected.sort();
        (sent, rejected)
    }
}

fn limiter(server: &RedisServer, concurrency: u64, on_failure: &str) -> Limiter<Safe> {
    let store = RedisStore::builder(server.url()).secret("the tests' own").build().unwrap();
    let policy = format!(
        "identify: {{ caller: [header: x-api-key] }}\n\
         limiters: {{ few: {{ concurrency: {concurrency}, on_store_failure: {on_failure} }} }}\n"
    );
    Limiter::builder().store(Failsafe::new(store)).policy(&policy).build().unwrap()
}

/// Kills the server under load that stays within the limit, and starts it again after 2.6 s.
async fn outage(concurrency: u64, callers: usize, connections: usize, on_failure: &str) {
    let mut server = RedisServer::start();
    let limiter = limiter(&server, concurrency, on_failure);
    until_exact(limiter.store()).await;
    let clients = Clients::start(&limiter, callers, connections);
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.kill();
    tokio::time::sleep(Duration::from_millis(2600)).await;
    let back = Instant::now();
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    let _server = server.await.unwrap();
    until_exact(limiter.store()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (sent, rejected) = clients.finish().await;
    let stats = limiter.store().stats();
    assert!(stats.open + stats.local > 1000, "{stats:?}: too few to mean anything");
    let times = rejected.iter().map(|(when, degraded)| (when.saturating_duration_since(back), degraded));
    assert!(
        rejected.is_empty(),
        "{on_failure}: {} of {sent} were rejected, the first {:?}, after the restart began",
        rejected.len(),
        times.take(10).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_within_the_limit_is_rejected_when_the_server_comes_back() {
    for on_failure in ["open", "local"] {
        outage(4, 1, 3, on_failure).await;
        outage(20, 3, 12, on_failure).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_passed_in_an_outage_is_not_given_back_to_the_store() {
    let mut server = RedisServer::start();
    let limiter = limiter(&server, 4, "open");
    until_exact(limiter.store()).await;
    server.kill();
    until_degraded(limiter.store()).await;
    for _ in 0..20_000 {
        drop(limiter.admit(&Facts::default()).await.unwrap());
    }
    let stats = limiter.store().shared().stats();
    assert_eq!(stats.chores_dropped, 0, "there was nothing to give back: {stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_decides_again_when_it_has_all_that_was_given_back_meanwhile() {
    let server = RedisServer::start();
    let proxy = tollgate_testkit::Proxy::in_front_of(server.port());
    let node = patient_node(&proxy.url()).await;
    let rule = node.define("in progress", leases(5000)).unwrap();
    let of = |id| Charge { rule, key: "alice".into(), ask: lease(id) };
    for ids in (0..5000).collect::<Vec<u128>>().chunks(500) {
        let places: Vec<_> = ids.iter().map(|id| of(*id)).collect();
        assert!(node.charge(&places, None).await.unwrap().degraded.is_empty());
    }
    proxy.refuse();
    proxy.cut();
    until_degraded(&node).await;
    (0..5000).for_each(|id| node.give_back(of(id)));
    proxy.pass();
    until_exact(&node).await;
    assert!(node.charge(&[of(10_000)], None).await.unwrap().allowed, "all places are free");
    assert_eq!(node.in_progress(rule, "alice".into(), None).await.unwrap().other, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_reply_was_lost_goes_back_with_its_request() {
    let server = RedisServer::start();
    let proxy = tollgate_testkit::Proxy::in_front_of(server.port());
    let store = RedisStore::builder(proxy.url()).secret("the tests' own").deadline(DEADLINE).build().unwrap();
    let policy = "limiters: { few: { concurrency: 1, per: global } }";
    let limiter = Limiter::builder().store(Failsafe::new(store)).policy(policy).build().unwrap();
    for _ in 0..5 {
        until_exact(limiter.store()).await;
        drop(limiter.admit(&Facts::default()).await.unwrap());
        proxy.drop_replies();
        let permit = limiter.admit(&Facts::default()).await.unwrap();
        assert!(permit.is_degraded(), "its reply was lost");
        proxy.pass();
        drop(permit);
        let next = limiter.admit(&Facts::default()).await;
        assert!(next.is_ok(), "nothing else is in progress");
        drop(next);
        tokio::time::sleep(2 * DEADLINE).await;
    }
}

/// A release and a decision that comes after it take different connections: the release is on its way over one on which nothing
/// gets through, the decision takes the spare one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_over_a_spare_connection_does_not_overtake_a_release() {
    let server = RedisServer::start();
    let proxy = tollgate_testkit::Proxy::in_front_of(server.port());
    let node = node(&proxy.url()).await;
    let rule = node.define("in progress", leases(1)).unwrap();
    let of = move |key: &'static str, id| Charge { rule, key: key.into(), ask: lease(id) };
    for id in 0..5 {
        until_exact(&node).await;
        assert!(node.charge(&[of("alice", id)], None).await.unwrap().allowed);
        proxy.black_hole_next();
        let other = tokio::spawn({
            let node = Arc::clone(&node);
            async move { node.charge(&[of("bob", id)], None).await.unwrap() }
        });
        // Its reply is overdue after a quarter of the deadline. Meanwhile a release is sent behind it.
        tokio::time::sleep(DEADLINE / 8).await;
        node.give_back(of("alice", id));
        tokio::time::sleep(DEADLINE / 6).await;
        let next = node.charge(&[of("alice", 100 + id)], None).await.unwrap();
        assert!(next.allowed, "nothing else is in progress");
        node.give_back(of("alice", 100 + id));
        node.give_back(of("bob", id));
        assert!(other.await.unwrap().allowed);
    }
}
