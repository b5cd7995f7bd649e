//! Small disturbances of a real server: what is decided without it stays in proportion to what goes wrong.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use std::time::{Duration, Instant};

use tollgate::OnFailure;
use tollgate_testkit::{Cluster, Flavour, Proxy, RedisServer};

use crate::common::*;

/// The share of decisions in percent that are made without the server while 16 callers ask.
async fn bypassed(deadline: Duration, disturb: impl FnOnce(&Proxy)) -> (f64, usize) {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let node = node_with_deadline(&proxy.url(), deadline).await;
    let rule = define(std::slice::from_ref(&node), once(1_000_000), OnFailure::Open);
    disturb(&proxy);
    let load = Load::start(&node, rule, "alice", 16);
    tokio::time::sleep(Duration::from_secs(5)).await;
    let calls = load.finish().await;
    proxy.pass();
    assert!(calls.iter().all(|call| call.allowed));
    let took = percentile(calls.iter().map(|call| call.took), 99);
    assert!(took <= deadline + SLACK, "99 % within {took:?}");
    let degraded = calls.iter().filter(|call| call.degraded).count();
    let percent = 100.0 * degraded as f64 / calls.len() as f64;
    (percent, calls.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_late_reply_in_a_hundred_degrades_no_more_than_three_decisions_in_a_hundred() {
    let (percent, calls) = bypassed(DEADLINE, |proxy| proxy.delay_one_in(100, 3 * DEADLINE)).await;
    assert!(calls > 500, "{calls}: too few to mean anything");
    assert!(percent <= 3.0, "{percent:.1} % of {calls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_lost_reply_in_ten_degrades_no_more_than_a_quarter_of_decisions() {
    // The shorter the deadline, the sooner a connection is replaced, and the more of them are needed.
    for deadline in [DEADLINE, DEADLINE / 10] {
        let (percent, calls) = bypassed(deadline, |proxy| proxy.drop_one_in(10)).await;
        assert!(calls > 500, "{calls}: too few to mean anything");
        assert!(percent > 1.0 && percent <= 25.0, "{percent:.1} % of {calls} with {deadline:?}");
    }
}

/// One late reply of a node of a cluster held up all other keys of that node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_late_reply_in_a_hundred_of_a_cluster_holds_up_no_other_keys() {
    let cluster = Cluster::start(Flavour::Redis);
    let proxies = cluster.put_behind_proxies();
    let deadline = DEADLINE / 5;
    let address = format!("redis-cluster://127.0.0.1:{}", proxies[0].port());
    let node = node_with_deadline(&address, deadline).await;
    let rule = define(std::slice::from_ref(&node), once(1_000_000), OnFailure::Open);
    proxies.iter().for_each(|proxy| proxy.delay_one_in(100, 3 * deadline));
    let keys: Vec<_> = (0..8).map(|number| format!("caller {number}")).collect();
    let loads: Vec<_> = keys.iter().map(|key| Load::start(&node, rule, key, 4)).collect();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut calls = Vec::new();
    for load in loads {
        calls.extend(load.finish().await);
    }
    assert!(calls.iter().all(|call| call.allowed));
    let degraded = calls.iter().filter(|call| call.degraded).count();
    let percent = 100.0 * degraded as f64 / calls.len() as f64;
    assert!(calls.len() > 500, "{}: too few to mean anything", calls.len());
    assert!(percent <= 3.0, "{percent:.1} % of {}", calls.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_process_is_not_taken_for_a_server_that_does_not_answer() {
    let server = RedisServer::start();
    let node = node(&server.url()).await;
    let rule = define(std::slice::from_ref(&node), once(1_000_000), OnFailure::Open);
    let load = Load::start(&node, rule, "alice", 16);
    for _ in 0..6 {
        // Both threads of the runtime are busy for longer than a decision may take.
        let busy = (0..2).map(|_| {
            tokio::spawn(async {
                let begun = Instant::now();
                while begun.elapsed() < DEADLINE + DEADLINE / 5 {
                    std::hint::spin_loop();
                }
            })
        });
        futures_util::future::join_all(busy.collect::<Vec<_>>()).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let calls = load.finish().await;
    let degraded = calls.iter().filter(|call| call.degraded).count();
    assert!(calls.len() > 300, "{}: too few to mean anything", calls.len());
    assert!(degraded * 20 <= calls.len(), "{degraded} of {} were decided without the server", calls.len());
}
