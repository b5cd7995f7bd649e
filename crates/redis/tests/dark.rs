//! Dark limiters on a real server report what they would have rejected if they had been enforced.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use futures_util::future::join_all;
use tollgate::core::limit::Ask;
use tollgate::core::store::{Charge, Store};
use tollgate::{Facts, Failsafe, Limiter, LimiterStats};
use tollgate_testkit::RedisServer;

use crate::common::*;

/// A limiter whose decisions may take their time, and its server.
async fn limiter(policy: &str) -> (RedisServer, Limiter<Failsafe<tollgate_redis::RedisStore>>) {
    let server = RedisServer::start();
    let store = tollgate_redis::RedisStore::builder(server.url())
        .secret("the tests' own")
        .deadline(std::time::Duration::from_secs(5))
        .max_waiting(1 << 16)
        .build()
        .unwrap();
    store.ready().await.unwrap();
    let limiter = Limiter::builder().store(Failsafe::new(store)).policy(policy).build().unwrap();
    (server, limiter)
}

/// What a limiter counts while some clients send so many requests each, one after another.
async fn counted(policy: &str, clients: usize, requests: u64) -> LimiterStats {
    let (_server, limiter) = limiter(policy).await;
    let clients = (0..clients).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            for number in 0..requests {
                drop(limiter.admit(&Facts::default()).await);
                // Dark requests wait for nothing: without a pause more decisions would wait than the queue has room for.
                match number % 16 {
                    15 => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
                    _ => tokio::task::yield_now().await,
                }
            }
        })
    });
    let total = clients.len() as u64 * requests;
    join_all(clients.collect::<Vec<_>>()).await.into_iter().for_each(Result::unwrap);
    let stats = || limiter.report().limiters[0].stats.clone();
    until("all decisions were made", || stats().asked == total).await;
    // The last decisions come back after their requests have ended.
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    stats()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dark_limiters_report_nothing_while_the_load_stays_within_the_limit() {
    for (limit, clients, requests) in [
        ("concurrency: 1, per: global", 1, 3000),
        ("concurrency: 4, per: global", 4, 1500),
        ("fleet: 4, reserve: 0%", 4, 1500),
        ("concurrency: 1000, per: global, candidate: { concurrency: 4 }", 4, 1500),
    ] {
        for mode in ["enforce", "dark"] {
            let policy = format!("limiters: {{ few: {{ {limit}, mode: {mode} }} }}");
            let stats = counted(&policy, clients, requests).await;
            let total = clients as u64 * requests;
            let reported = (stats.asked, stats.refused, stats.would_refuse, stats.candidate_refused);
            assert_eq!(reported, (total, 0, 0, 0), "{policy}");
            assert_eq!(stats.degraded, 0, "{policy}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dark_limiter_reports_every_request_above_the_limit_and_gives_every_lease_back() {
    let (_server, limiter) = limiter("limiters: { few: { fleet: 4, reserve: 0%, mode: dark } }").await;
    let stats = || limiter.report().limiters[0].stats.clone();
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(limiter.admit(&Facts::default()).await.unwrap());
    }
    until("six are above the limit", || stats().would_refuse == 6).await;
    for _ in 0..100 {
        drop(limiter.admit(&Facts::default()).await.unwrap());
    }
    until("all of these are", || stats().would_refuse == 106).await;
    drop(held);
    let begun = std::time::Instant::now();
    while limiter.fleet_use().await.unwrap()[0].used.total() > 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(5), "leases are held by nobody");
    }
    for _ in 0..100 {
        drop(limiter.admit(&Facts::default()).await.unwrap());
    }
    until("all were decided", || stats().asked == 210).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(stats().would_refuse, 106);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_in_order_takes_effect_behind_the_charge_before_it() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let rule = node.define("in progress", leases(1)).unwrap();
    for id in 0..500 {
        let place = Charge { rule, key: "alice".into(), ask: Ask { ..lease(id) } };
        let places = [place];
        let mut taken = Box::pin(node.charge_in_order(&places, None));
        // Mostly not answered yet: the server has not even read it.
        let first =
            std::future::poll_fn(|context| std::task::Poll::Ready(taken.as_mut().poll(context))).await;
        assert!(node.give_back_in_order(place));
        if let std::task::Poll::Ready(verdict) = first {
            assert!(verdict.unwrap().allowed, "lease {id}");
            continue;
        }
        assert!(taken.await.unwrap().allowed, "lease {id}");
    }
    until_exact(&node).await;
    assert_eq!(node.in_progress(rule, "alice".into(), None).await.unwrap().other, 0);
}
