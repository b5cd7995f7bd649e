//! Stores under load while things go wrong with their servers.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and real servers live in real time"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tollgate::{Failsafe, Limit, Nanos, OnFailure, Verdict};
use tollgate_core::concurrency::LeaseId;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_redis::RedisStore;

/// A store that may lose its servers.
pub type Safe = Failsafe<RedisStore>;

/// The deadline of a decision in these tests: longer than shared machines often stand still.
pub const DEADLINE: Duration = Duration::from_millis(250);

/// What a busy machine may add to any time.
pub const SLACK: Duration = Duration::from_millis(100);

/// A node that has connected.
pub async fn node(address: &str) -> Arc<Safe> {
    node_with_deadline(address, DEADLINE).await
}

/// The same, with a deadline of its own.
pub async fn node_with_deadline(address: &str, deadline: Duration) -> Arc<Safe> {
    let node = build(address, deadline);
    node.shared().ready().await.unwrap();
    until("the node is known", || node.shared().nodes() > 0 && !node.shared().health().degraded).await;
    node
}

/// A node that has connected and whose decisions may take their time: for tests in which a busy machine must not be
/// taken for a fault.
pub async fn patient_node(address: &str) -> Arc<Safe> {
    let node = build(address, Duration::from_secs(5));
    node.shared().ready().await.unwrap();
    node
}

/// A node that may or may not have connected.
pub fn unready_node(address: &str) -> Arc<Safe> {
    build(address, DEADLINE)
}

fn build(address: &str, deadline: Duration) -> Arc<Safe> {
    let store = RedisStore::builder(address)
        .secret("the tests' own")
        .deadline(deadline)
        .heartbeat(Duration::from_millis(100))
        .build();
    Arc::new(Failsafe::new(store.unwrap()))
}

/// So many nodes that all know of each other.
pub async fn nodes(address: &str, count: u64) -> Vec<Arc<Safe>> {
    know_of_each_other(join_all((0..count).map(|_| node(address))).await).await
}

/// The same, of [`patient_node`]s.
pub async fn patient_nodes(address: &str, count: u64) -> Vec<Arc<Safe>> {
    know_of_each_other(join_all((0..count).map(|_| patient_node(address))).await).await
}

async fn know_of_each_other(nodes: Vec<Arc<Safe>>) -> Vec<Arc<Safe>> {
    let count = nodes.len() as u64;
    until("all nodes know of each other", || nodes.iter().all(|node| node.nodes() == count)).await;
    nodes
}

/// Waits for something that happens elsewhere, in real time.
pub async fn until(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: not within 30 s");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a key is of none of the subjects that limits are charged for.
pub fn is_of_nobody(key: &str) -> bool {
    key.contains("000000000000000000000000000000")
}

/// `burst` at once, and in any time that a test takes nothing more.
pub fn once(burst: u64) -> Limit {
    Limit::fixed_window(burst, Nanos::from_secs(86_400), WindowStart::FirstCall).unwrap()
}

pub fn leases(capacity: u64) -> Limit {
    Limit::leases(capacity, Nanos::from_secs(600)).unwrap()
}

pub fn lease(id: u128) -> Ask {
    Ask { lease: LeaseId(id), ..Ask::from(1) }
}

/// Makes a limit known that this node keeps by its share while the server is away.
pub fn define_local(node: &Safe, family: &str, limit: Limit) -> Rule {
    node.define_with(family, limit, OnFailure::Local).unwrap()
}

/// Makes a limit known to all nodes, by the same name.
pub fn define(nodes: &[Arc<Safe>], limit: Limit, on_failure: OnFailure) -> Rule {
    let rules = nodes.iter().map(|node| node.define_with("per user", limit, on_failure).unwrap());
    rules.reduce(|_, rule| rule).unwrap()
}

/// A decision. That it is one, and no error, is the first thing that all tests here check.
pub async fn charge(store: &impl Store, rule: Rule, key: &str) -> Verdict {
    let charge = Charge { rule, key: key.into(), ask: Ask::from(1) };
    store.charge(&[charge], None).await.expect("no error of the store reaches a caller")
}

/// How many calls pass in a row.
pub async fn admitted(store: &impl Store, rule: Rule, key: &str) -> u64 {
    let mut count = 0;
    while charge(store, rule, key).await.allowed {
        count += 1;
        assert!(count < 100_000, "no limit at all");
    }
    count
}

/// What is left, as the shared store has it.
pub async fn left(store: &Safe, rule: Rule, key: &str) -> u64 {
    let charge = Charge { rule, key: key.into(), ask: Ask::from(0) };
    let before = store.stats();
    let outcome = store.apply(Op::Estimate, charge, None).await.unwrap();
    assert_eq!(store.stats(), before, "decided by the shared store");
    outcome.remaining
}

/// Waits until the shared store decides again.
pub async fn until_exact(store: &Safe) {
    until("the store is back", || !store.shared().health().degraded).await;
}

/// How many calls pass in a row of those that the shared store decides. It may go away once more on its way back.
pub async fn admitted_by_shared(store: &Safe, rule: Rule, key: &str) -> u64 {
    let mut count = 0;
    loop {
        until_exact(store).await;
        let verdict = charge(store, rule, key).await;
        match verdict.degraded.is_empty() {
            true if verdict.allowed => count += 1,
            true => return count,
            false => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// Whether the shared store is left alone.
pub async fn until_degraded(store: &Safe) {
    until("the store is left alone", || store.shared().health().degraded).await;
}

/// One call that was made under load.
pub struct Call {
    pub begun: Instant,
    pub took: Duration,
    pub allowed: bool,
    pub degraded: bool,
}

/// Callers that go on until they are stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<Call>>>,
}

impl Load {
    /// So many callers of one key, each with a short pause after each call.
    pub fn start(node: &Arc<Safe>, rule: Rule, key: &str, callers: usize) -> Self {
        // Some 10,000 calls a second, whoever makes them.
        let pause = Duration::from_micros(100) * u32::try_from(callers).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..callers).map(|_| {
            let (node, stop, key) = (Arc::clone(node), Arc::clone(&stop), key.to_owned());
            tokio::spawn(async move {
                let mut calls = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    let verdict = charge(&*node, rule, &key).await;
                    let (took, degraded) = (begun.elapsed(), !verdict.degraded.is_empty());
                    calls.push(Call { begun, took, allowed: verdict.allowed, degraded });
                    tokio::time::sleep(pause).await;
                }
                calls
            })
        });
        Self { tasks: tasks.collect(), stop }
    }

    /// All calls, in the order of their beginning.
    pub async fn finish(self) -> Vec<Call> {
        self.stop.store(true, Ordering::Relaxed);
        let mut calls: Vec<Call> = join_all(self.tasks)
            .await
            .into_iter()
            .flat_map(|calls| calls.expect("no caller fails"))
            .collect();
        calls.sort_by_key(|call| call.begun);
        calls
    }
}

/// Callers that each take the only place of a key of their own, give it back, and ask anew at once, for so long. How many
/// asked, were refused, and were decided without the store.
pub async fn take_and_give_back(node: &Arc<Safe>, callers: u128, time: Duration) -> (u64, u64, u64) {
    let rule = node.define("one in progress", leases(1)).unwrap();
    let begun = Instant::now();
    let tasks = (0..callers).map(|caller| {
        let node = Arc::clone(node);
        tokio::spawn(async move {
            let (mut asked, mut refused, mut degraded) = (0, 0, 0);
            let key = format!("caller {caller}");
            while begun.elapsed() < time {
                asked += 1;
                let place =
                    Charge { rule, key: key.as_str().into(), ask: lease(caller << 64 | u128::from(asked)) };
                let verdict =
                    node.charge(&[place], None).await.expect("no error of the store reaches a caller");
                degraded += u64::from(!verdict.degraded.is_empty());
                refused += u64::from(!verdict.allowed);
                if verdict.allowed {
                    node.give_back(place);
                }
            }
            (asked, refused, degraded)
        })
    });
    let all = join_all(tasks.collect::<Vec<_>>()).await;
    all.into_iter()
        .map(Result::unwrap)
        .fold((0, 0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1, sum.2 + one.2))
}

/// The time within which so many percent of all calls were answered.
pub fn percentile(times: impl Iterator<Item = Duration>, percent: usize) -> Duration {
    let mut times: Vec<_> = times.collect();
    times.sort();
    times[(times.len() * percent / 100).min(times.len() - 1)]
}

/// Nobody waited longer than the deadline; and once the store was left alone, nobody waited at all.
pub fn assert_nobody_waited(calls: &[Call], left_alone: Instant, back: Instant) {
    let took = percentile(calls.iter().map(|call| call.took), 99);
    assert!(took <= DEADLINE + SLACK, "99 % within {took:?}");
    let alone = calls.iter().filter(|call| call.begun > left_alone && call.begun + call.took < back);
    let alone: Vec<_> = alone.collect();
    assert!(alone.len() > 50, "{} calls in the outage: too few to mean anything", alone.len());
    assert!(alone.iter().all(|call| call.degraded), "all are marked");
    let took = percentile(alone.iter().map(|call| call.took), 99);
    assert!(took <= Duration::from_millis(1), "99 % within {took:?} while the store was left alone");
}
