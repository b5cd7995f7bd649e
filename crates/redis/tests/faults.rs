//! What can go wrong with a server, each with a real one: no caller sees an error, nobody waits longer than the deadline,
//! and no more passes than docs/shared-store.md says. What can go wrong with a cluster is in `cluster.rs`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tollgate::{Failsafe, FleetMode, Limit, Nanos, OnFailure};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_redis::RedisStore;
use tollgate_testkit::{Flavour, Proxy, RedisServer, Sentinel};

use crate::common::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_absent_at_the_start_is_done_without_and_found_when_it_comes() {
    let mut server = RedisServer::start();
    server.kill();
    let node = unready_node(&server.url());
    let error = node.shared().ready().await.unwrap_err().to_string();
    assert!(error.contains("refused"), "{error}");
    let rule = define_local(&node, "per user", once(10));
    let verdict = charge(&*node, rule, "alice").await;
    assert!(verdict.allowed && !verdict.degraded.is_empty());
    let health = node.shared().health();
    assert!(health.degraded && health.problem.is_some_and(|problem| problem.contains("refused")));
    server.restart();
    assert_eq!(admitted_by_shared(&node, rule, "alice").await, 10);
    assert_eq!(node.shared().health().problem, None);
}

/// Two nodes under load lose their server for a while. What passed meanwhile, in all.
async fn outage(
    address: &str,
    lose: impl FnOnce(),
    find: impl FnOnce(),
    rate: u64,
) -> (Vec<Call>, Vec<Call>, Duration) {
    let nodes = nodes(address, 2).await;
    let limit = Limit::token_bucket(100, rate, Nanos::from_secs(1)).unwrap();
    let rule = define(&nodes, limit, OnFailure::Local);
    let loads: Vec<_> = nodes.iter().map(|node| Load::start(node, rule, "alice", 24)).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let lost = Instant::now();
    lose();
    for node in &nodes {
        until_degraded(node).await;
    }
    let left_alone = Instant::now();
    tokio::time::sleep(Duration::from_millis(800)).await;
    let found = Instant::now();
    find();
    for node in &nodes {
        until_exact(node).await;
    }
    let back = Instant::now();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut all = Vec::new();
    for load in loads {
        let calls = load.finish().await;
        assert_nobody_waited(&calls, left_alone, found);
        all.extend(calls);
    }
    let (degraded, exact) = all.into_iter().partition(|call| call.degraded);
    (degraded, exact, back - lost)
}

fn passed(calls: &[Call]) -> u64 {
    calls.iter().filter(|call| call.allowed).count() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_under_load_hurts_nobody() {
    let server = std::sync::Mutex::new(RedisServer::start());
    let address = server.lock().unwrap().url();
    let begun = Instant::now();
    let (degraded, exact, out) =
        outage(&address, || server.lock().unwrap().kill(), || server.lock().unwrap().restart(), 20).await;
    // Two shares of 50 and 10 per second; and the server, which comes back empty, twice the limit.
    let most = 2.0 * (50.0 + 10.0 * out.as_secs_f64());
    assert!(
        passed(&degraded) as f64 <= most + 2.0,
        "{} passed without the store, {most} may",
        passed(&degraded)
    );
    let most = 200.0 + 20.0 * begun.elapsed().as_secs_f64();
    assert!(passed(&exact) as f64 <= most + 2.0, "{} passed with the store, {most} may", passed(&exact));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_with_its_sockets_open_hurts_nobody() {
    let server = RedisServer::start();
    let begun = Instant::now();
    let (degraded, exact, out) = outage(&server.url(), || server.freeze(), || server.thaw(), 20).await;
    let most = 2.0 * (50.0 + 10.0 * out.as_secs_f64());
    assert!(
        passed(&degraded) as f64 <= most + 2.0,
        "{} passed without the store, {most} may",
        passed(&degraded)
    );
    // It has forgotten nothing.
    let most = 100.0 + 20.0 * begun.elapsed().as_secs_f64();
    assert!(passed(&exact) as f64 <= most + 2.0, "{} passed with the store, {most} may", passed(&exact));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_decisions_wait_for_a_server_that_hangs_than_were_allowed_to() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).secret("s").deadline(DEADLINE).max_waiting(100);
    let node = Failsafe::new(store.build().unwrap());
    node.shared().ready().await.unwrap();
    let rule = node.define_with("per user", once(10), OnFailure::Open).unwrap();
    server.freeze();
    let begun = Instant::now();
    let calls = (0..5000).map(|_| async {
        let begun = Instant::now();
        let verdict = charge(&node, rule, "alice").await;
        (verdict.allowed, begun.elapsed())
    });
    let calls = join_all(calls).await;
    assert!(calls.iter().all(|(allowed, _)| *allowed));
    let waited = calls.iter().filter(|(_, took)| *took >= DEADLINE).count();
    assert!(waited <= 100, "{waited} calls waited");
    assert!(begun.elapsed() < DEADLINE + 4 * SLACK, "{:?}", begun.elapsed());
    server.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_replies_are_late_is_left_alone_until_they_are_not() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    outage(&proxy.url(), || proxy.delay(2 * DEADLINE), || proxy.pass(), 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_paused_is_left_alone_until_it_goes_on() {
    let server = RedisServer::start();
    let pause = || drop(server.command(&["CLIENT", "PAUSE", "60000", "WRITE"]));
    outage(&server.url(), pause, || drop(server.command(&["CLIENT", "UNPAUSE"])), 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_that_vanish_are_not_waited_for_nor_are_new_connections() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    outage(&proxy.url(), || proxy.black_hole(), || proxy.pass(), 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_in_the_midst_of_a_reply_gives_nobody_the_reply_of_another() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let node = patient_node(&proxy.url()).await;
    // Each key has a limit of its own size, so that a reply shows whose it is.
    let rules: Vec<Rule> = (0..64)
        .map(|number| node.define(&format!("limit {number}"), once(1000 * (number + 1))).unwrap())
        .collect();
    let mut broken = 0;
    for bytes in (0..400).step_by(29) {
        until_exact(&node).await;
        proxy.cut_replies_after(bytes);
        for _ in 0..3 {
            let calls = rules.iter().enumerate().map(|(number, rule)| {
                let node = &node;
                async move { (number as u64, charge(&**node, *rule, &format!("key {number}")).await) }
            });
            for (number, verdict) in join_all(calls).await {
                assert!(verdict.allowed);
                let remaining = verdict.outcomes[0].remaining;
                if verdict.degraded.is_empty() {
                    assert!(
                        remaining < 1000 * (number + 1) && remaining >= 1000 * number,
                        "{number}: {remaining}"
                    );
                } else {
                    broken += 1;
                }
            }
        }
        proxy.pass();
    }
    assert!(broken > 64, "{broken} calls met a broken connection: too few to mean anything");
    assert!(node.shared().stats().connections > 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_decision_whose_caller_goes_away_is_charged_once_at_most_and_its_lease_comes_back() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    proxy.delay(Duration::from_millis(3));
    let node = patient_node(&proxy.url()).await;
    let rate = define_local(&node, "rate", once(1_000_000));
    let progress = define_local(&node, "in progress", leases(1_000_000));
    let mut ids = 0;
    for polls in 0..400_u64 {
        let tasks = (0..8).map(|task| {
            ids += 1;
            let (node, id) = (Arc::clone(&node), ids);
            tokio::spawn(async move {
                let charges = [
                    Charge { rule: rate, key: "alice".into(), ask: Ask::from(1) },
                    Charge { rule: progress, key: "alice".into(), ask: lease(id) },
                ];
                let mut decision = pin!(node.charge(&charges, None));
                // Dropped before it is polled, or after it was polled some times, or when it was answered and nobody
                // has looked yet.
                for _ in 0..(polls + task) % 5 {
                    if let Poll::Ready(verdict) =
                        decision.as_mut().poll(&mut Context::from_waker(Waker::noop()))
                    {
                        let _ = verdict;
                        node.give_back(charges[1]);
                        break;
                    }
                    tokio::time::sleep(Duration::from_micros(700 * (task % 4))).await;
                }
            })
        });
        join_all(tasks.collect::<Vec<_>>()).await;
    }
    proxy.pass();
    until_exact(&node).await;
    let held = || async { node.in_progress(progress, "alice".into(), None).await.unwrap().other };
    let begun = Instant::now();
    while held().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "{} leases are held by nobody", held().await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let charged = 1_000_000 - left(&node, rate, "alice").await;
    assert!(charged <= ids as u64, "{charged} charged for {ids} calls");
    assert!(charged > 200, "{charged} charged: too few to mean anything");
    assert!(node.shared().stats().leases_returned > 100);
    // The connection is in step: everybody gets their own replies.
    let rules: Vec<_> =
        (1..50).map(|size| node.define(&format!("limit {size}"), once(size)).unwrap()).collect();
    let calls = rules.iter().map(|rule| async { charge(&*node, *rule, "bob").await.remaining });
    assert_eq!(join_all(calls).await, (0..49).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_to_thousands_who_wait_is_not_stormed() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let nodes = patient_nodes(&proxy.url(), 4).await;
    let rule = define(&nodes, once(1_000_000), OnFailure::Open);
    let loads: Vec<_> = nodes.iter().map(|node| Load::start(node, rule, "alice", 250)).collect();
    for _ in 0..3 {
        let before = proxy.connections();
        proxy.refuse();
        proxy.cut();
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Each node asks now and then, with waits that double from 50 ms and are drawn at random, not for each caller.
        let attempts = proxy.connections() - before;
        assert!(attempts <= 4 * 25, "{attempts} attempts of 4 nodes in a second");
        let before = proxy.connections();
        proxy.pass();
        for node in &nodes {
            until_exact(node).await;
        }
        let made = proxy.connections() - before;
        // Each has one that it uses, and a spare one.
        assert!(made <= 3 * nodes.len(), "{made} connections of 4 nodes");
        assert!(proxy.open() <= 2 * nodes.len() + 1, "{} open", proxy.open());
    }
    for load in loads {
        assert!(load.finish().await.iter().all(|call| call.allowed));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flush_gives_one_fresh_burst_and_is_counted() {
    let server = RedisServer::start();
    let nodes = patient_nodes(&server.url(), 2).await;
    let rule = define(&nodes, once(50), OnFailure::Local);
    assert_eq!(admitted(&*nodes[0], rule, "alice").await, 50);
    assert_eq!(nodes[0].shared().stats().states_lost, 0);
    server.command(&["FLUSHALL"]);
    let passed = admitted(&*nodes[0], rule, "alice").await + admitted(&*nodes[1], rule, "alice").await;
    assert_eq!(passed, 50);
    for node in &nodes {
        until("the flush is noticed", || node.shared().stats().states_lost == 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_that_takes_longer_than_any_heartbeat_is_counted_and_one_that_keeps_its_data_is_not() {
    let mut server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    until("the node is known", || !keys(&server).is_empty()).await;
    for lost in 1..3 {
        // Some heartbeats, so that the mark is there.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(node.shared().stats().states_lost, lost - 1);
        server.kill();
        tokio::time::sleep(Duration::from_millis(800)).await;
        server.restart();
        until("the loss is noticed", || node.shared().stats().states_lost == lost).await;
    }
    server.freeze();
    tokio::time::sleep(Duration::from_millis(800)).await;
    server.thaw();
    until_exact(&node).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(node.shared().stats().states_lost, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_to_a_replica_that_lags_gives_back_what_it_had_not_heard_of_and_no_more() {
    let mut primary = RedisServer::start();
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(Flavour::Redis, &["--replicaof", "127.0.0.1", &port]);
    let is_synced =
        |server: &RedisServer| server.command(&["INFO", "replication"]).contains("master_link_status:up");
    until("the replica has caught up", || is_synced(&replica)).await;
    // Before that it is not sent what is new.
    until("the replica is online", || primary.command(&["INFO", "replication"]).contains("state=online"))
        .await;
    let node = patient_node(&primary.url()).await;
    let rule = define_local(&node, "per user", once(100));
    for _ in 0..40 {
        assert!(charge(&*node, rule, "alice").await.degraded.is_empty());
    }
    let offset = |server: &RedisServer, of: &str| server.info("replication", of).unwrap();
    until("the replica knows of all of them", || {
        offset(&replica, "slave_repl_offset") >= offset(&primary, "master_repl_offset")
    })
    .await;
    replica.command(&["REPLICAOF", "127.0.0.1", "1"]);
    for _ in 0..25 {
        assert!(charge(&*node, rule, "alice").await.degraded.is_empty());
    }
    primary.kill();
    until_degraded(&node).await;
    // The replica's data takes the primary's place and address.
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    primary.restart();
    primary.command(&["REPLICAOF", "127.0.0.1", &replica.port().to_string()]);
    until("the old primary has the replica's data", || is_synced(&primary)).await;
    primary.command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(admitted_by_shared(&node, rule, "alice").await, 60, "40 were known, 25 are forgotten");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_that_is_flushed_under_load_is_sent_again_and_charges_once() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let rule = define_local(&node, "per user", once(2000));
    let load = Load::start(&node, rule, "alice", 64);
    let before = node.shared().stats().script_loads;
    for _ in 0..50 {
        server.command(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let calls = load.finish().await;
    let more = admitted(&*node, rule, "alice").await;
    assert!(calls.iter().all(|call| !call.degraded), "nobody has to do without");
    assert_eq!(passed(&calls) + more, 2000, "exactly the limit");
    let loads = node.shared().stats().script_loads - before;
    assert!(
        (10..=50).contains(&loads),
        "{loads} loads: one for each flush, however many calls were on their way"
    );
}

/// A server that refuses in its own words is done without, and found again.
async fn refusal(server: &RedisServer, refuse: impl FnOnce(), agree: impl FnOnce(), says: &str) {
    let node = node(&server.url()).await;
    let local = define_local(&node, "local", once(10));
    let closed = node.define_with("closed", once(10), OnFailure::Closed).unwrap();
    assert!(charge(&*node, local, "alice").await.degraded.is_empty());
    refuse();
    let begun = Instant::now();
    let mut told = String::new();
    while !told.contains(says) {
        let _ = charge(&*node, local, "alice").await;
        told = node.shared().health().problem.unwrap_or_default();
        assert!(begun.elapsed() < Duration::from_secs(10), "{told:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // Ten at this node, which is the only one.
    let mut passed = 0;
    for _ in 0..30 {
        let verdict = charge(&*node, local, "bob").await;
        assert!(!verdict.degraded.is_empty());
        passed += u64::from(verdict.allowed);
        let verdict = charge(&*node, closed, "bob").await;
        assert!(!verdict.allowed && verdict.is_closed(), "not the caller's fault");
    }
    assert_eq!(passed, 10);
    agree();
    until_exact(&node).await;
    assert_eq!(admitted_by_shared(&node, local, "carol").await, 10, "{told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_is_no_answer() {
    let server = RedisServer::start_with(Flavour::Redis, &["--busy-reply-threshold", "20"]);
    let port = server.port();
    let hog = || {
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(b"EVAL \"while true do end\" 0\r\n").unwrap();
            let _ = stream.read(&mut [0; 16]);
        });
    };
    refusal(&server, hog, || drop(server.command(&["SCRIPT", "KILL"])), "another script keeps it busy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_is_no_answer() {
    let server = RedisServer::start();
    let fill = || drop(server.command(&["CONFIG", "SET", "maxmemory", "1mb"]));
    refusal(
        &server,
        fill,
        || drop(server.command(&["CONFIG", "SET", "maxmemory", "0"])),
        "its memory is full",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_no_answer() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let port = other.port().to_string();
    let demote = || drop(server.command(&["REPLICAOF", "127.0.0.1", &port]));
    refusal(&server, demote, || drop(server.command(&["REPLICAOF", "NO", "ONE"])), "this is a replica").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_was_changed_is_no_answer() {
    let server = RedisServer::start();
    let lock = || {
        server.command(&["CONFIG", "SET", "requirepass", "other"]);
        let port = server.port();
        let _ = std::process::Command::new("redis-cli")
            .args([
                "-a",
                "other",
                "--no-auth-warning",
                "-p",
                &port.to_string(),
                "CLIENT",
                "KILL",
                "TYPE",
                "normal",
            ])
            .output();
    };
    let unlock = || {
        let words = ["-a", "other", "--no-auth-warning", "-p", &server.port().to_string()]
            .map(str::to_owned)
            .into_iter()
            .chain(["CONFIG", "SET", "requirepass", ""].map(str::to_owned));
        assert!(std::process::Command::new("redis-cli").args(words).output().unwrap().status.success());
    };
    refusal(&server, lock, unlock, "it wants a password").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_right_that_was_taken_away_is_no_answer() {
    let server = RedisServer::start();
    let take = || drop(server.command(&["ACL", "SETUSER", "default", "-evalsha", "-eval"]));
    refusal(
        &server,
        take,
        || drop(server.command(&["ACL", "SETUSER", "default", "+@all"])),
        "the user may not do this",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_still_loading_is_no_answer() {
    let server = RedisServer::start_with(Flavour::Redis, &["--enable-debug-command", "yes"]);
    server.command(&["DEBUG", "POPULATE", "2000", "filler", "10"]);
    server.command(&["CONFIG", "SET", "key-load-delay", "1000"]);
    server.command(&["CONFIG", "SET", "loading-process-events-interval-bytes", "1024"]);
    let port = server.port();
    let reload = || {
        std::thread::spawn(move || {
            use std::io::{Read, Write};
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.write_all(b"DEBUG RELOAD\r\n").unwrap();
            let _ = stream.read(&mut [0; 16]);
        });
    };
    refusal(&server, reload, || {}, "still loading").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eviction_is_warned_of_and_survived() {
    let server = RedisServer::start_with(
        Flavour::Redis,
        &["--maxmemory-policy", "allkeys-lru", "--maxmemory", "3mb", "--enable-debug-command", "yes"],
    );
    let node = patient_node(&server.url()).await;
    let warnings = node.shared().health().warnings;
    assert!(
        warnings.iter().any(|warning| warning.contains("maxmemory-policy is allkeys-lru")),
        "{warnings:?}"
    );
    let rates = define_local(&node, "rate", once(5));
    let log = define_local(&node, "log", Limit::sliding_log(5, Nanos::from_secs(3600)).unwrap());
    let progress = define_local(&node, "in progress", leases(5));
    for round in 0..2000_u128 {
        let (rate, logged) = (format!("rate {}", round % 700), format!("log {}", round % 700));
        let charges = [
            Charge { rule: rates, key: rate.as_str().into(), ask: Ask::from(1) },
            Charge { rule: log, key: logged.as_str().into(), ask: Ask::from(1) },
            Charge { rule: progress, key: rate.as_str().into(), ask: lease(round) },
        ];
        let verdict = node.charge(&charges, None).await.unwrap();
        assert!(verdict.degraded.is_empty(), "{verdict:?}");
        if verdict.allowed {
            node.give_back(charges[2]);
        }
        if round % 50 == 0 {
            server.command(&["DEBUG", "POPULATE", "400", &format!("filler {round}"), "200"]);
        }
    }
    assert!(server.info("stats", "evicted_keys").unwrap() > 1000.0);
}

/// All keys but those of nobody, by which the store itself is watched.
fn keys(server: &RedisServer) -> Vec<String> {
    let reply = server.command(&["KEYS", "tg:*"]);
    let is_own = |line: &&str| line.starts_with("tg:") && !is_of_nobody(line);
    reply.split("\r\n").filter(is_own).map(str::to_owned).collect()
}

fn expiry(server: &RedisServer, key: &str) -> i64 {
    server.command(&["PTTL", key]).trim().trim_start_matches(':').parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_was_made_to_stay_for_ever_expires_again_after_the_next_charge() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let day = Nanos::from_secs(86_400);
    let limits = [
        Limit::token_bucket(10, 1, day),
        Limit::fixed_window(10, day, tollgate_core::fixed_window::WindowStart::FirstCall),
        Limit::sliding_window(10, day),
        Limit::interval_bucket(10, 1, day),
        Limit::sliding_log(10, day),
        Limit::leases(10, day),
        Limit::fleet(10, (1, 5), tollgate::FleetMode::Allocation, day),
    ];
    let mut id = 0;
    for (number, limit) in limits.into_iter().enumerate() {
        let rule = node.define(&format!("limit {number}"), limit.unwrap()).unwrap();
        let key = format!("key {number}");
        let mut charge = async || {
            id += 1;
            let charge = Charge { rule, key: key.as_str().into(), ask: lease(id) };
            assert!(node.charge(&[charge], None).await.unwrap().allowed);
        };
        server.command(&["FLUSHALL"]);
        charge().await;
        for key in keys(&server) {
            server.command(&["PERSIST", &key]);
        }
        charge().await;
        // Of the nodes, too, when they are next heard of.
        until("all keys expire", || keys(&server).iter().all(|key| expiry(&server, key) > 0)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_idle_within_less_than_a_millisecond_is_a_limit_all_the_same() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let limit = |burst, count| Limit::token_bucket(burst, count, Nanos::from_secs(1)).unwrap();
    let slow = node.define("3 per second", limit(1, 3)).unwrap();
    assert!(charge(&*node, slow, "alice").await.allowed);
    let refused = charge(&*node, slow, "alice").await;
    assert!(!refused.allowed && refused.retry_after.unwrap() <= Nanos::new(334_000_000));
    let expiries: Vec<i64> = keys(&server).iter().map(|key| expiry(&server, key)).collect();
    assert!(expiries.iter().all(|expiry| *expiry >= 1), "{expiries:?}");
    // Idle after 10 microseconds, with the time that the test gives.
    let fast = node.define("100000 per second", limit(1, 100_000)).unwrap();
    let at = |micros: u64| Some(tollgate::Timestamp::from_nanos(1_700_000_000_000_000_000 + micros * 1000));
    let ask = Charge { rule: fast, key: "bob".into(), ask: Ask::from(1) };
    for (micros, allowed) in [(0, true), (9, false), (10, true), (19, false), (20, true)] {
        assert_eq!(node.charge(&[ask], at(micros)).await.unwrap().allowed, allowed, "after {micros} us");
    }
    // And with the server's own.
    assert!(charge(&*node, fast, "carol").await.allowed);
    assert!(keys(&server).iter().all(|key| expiry(&server, key) != -1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_reply_is_lost_is_not_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let node = node(&proxy.url()).await;
    let rule = define_local(&node, "per user", once(1000));
    assert!(charge(&*node, rule, "alice").await.degraded.is_empty());
    let mut lost = 0;
    for _ in 0..10 {
        proxy.drop_replies();
        // All of them reach the server in one call or two, and none hears of it.
        let calls = join_all((0..4).map(|_| charge(&*node, rule, "alice"))).await;
        lost += calls.iter().filter(|verdict| !verdict.degraded.is_empty()).count() as u64;
        assert!(calls.iter().all(|verdict| verdict.allowed), "they pass by this node's share");
        let connections = node.shared().stats().connections;
        proxy.pass();
        proxy.cut();
        until("another connection", || {
            node.shared().stats().connections > connections && !node.shared().health().degraded
        })
        .await;
    }
    let charged = 999 - left(&node, rule, "alice").await;
    assert!(lost >= 30, "{lost} lost: too few to mean anything");
    assert!(
        charged <= 40 && charged >= lost / 2,
        "{charged} charged for 40 calls, of which {lost} heard nothing"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_clock_steps_back_locks_nobody_out_and_gives_nobody_a_burst() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let minute = Nanos::from_secs(60);
    let limits = [
        Limit::token_bucket(10, 10, minute),
        Limit::fixed_window(10, minute, tollgate_core::fixed_window::WindowStart::FirstCall),
        Limit::interval_bucket(10, 10, minute),
        Limit::sliding_log(10, minute),
        Limit::leases(10, minute),
    ];
    let noon = 1_700_000_000;
    let mut id = 0;
    for (number, limit) in limits.into_iter().enumerate() {
        let rule = node.define(&format!("limit {number}"), limit.unwrap()).unwrap();
        let mut passes = async |seconds: i64| {
            let at = tollgate::Timestamp::from_secs((noon + seconds) as u64);
            let mut passed = 0;
            for _ in 0..20 {
                id += 1;
                let charge = Charge { rule, key: "alice".into(), ask: lease(id) };
                passed += u64::from(node.charge(&[charge], Some(at)).await.unwrap().allowed);
            }
            passed
        };
        assert_eq!(passes(0).await, 10, "limit {number}");
        assert_eq!(passes(-30).await, 0, "limit {number}: a small step back is waited out");
        assert_eq!(passes(-3600).await, 0, "limit {number}: a large one is no fresh burst");
        assert_eq!(passes(-3600 + 121).await, 10, "limit {number}: and locks out for two windows at most");
        assert_eq!(passes(86_400).await, 10, "limit {number}: a step forward gives one burst");
        assert_eq!(passes(86_400).await, 0, "limit {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_writes_nothing_whoever_refuses() {
    let server = RedisServer::start();
    // No heartbeat in between: it writes.
    let store = RedisStore::builder(server.url()).secret("s").deadline(Duration::from_secs(1));
    let store = store.heartbeat(Duration::from_secs(3600)).build().unwrap();
    store.ready().await.unwrap();
    let day = Nanos::from_secs(86_400);
    let limits = [
        Limit::token_bucket(5, 1, day).unwrap(),
        Limit::sliding_window(5, day).unwrap(),
        Limit::sliding_log(5, day).unwrap(),
        Limit::leases(5, day).unwrap(),
        Limit::fleet(5, (0, 1), tollgate::FleetMode::Allocation, day).unwrap(),
    ];
    let define = |number: usize, limit: Limit| store.define(&format!("limit {number}"), limit).unwrap();
    let rules: Vec<Rule> =
        limits.into_iter().enumerate().map(|(number, limit)| define(number, limit)).collect();
    let mut id = 0;
    let mut call = async |of: &[(usize, &str)]| {
        id += 1;
        let charge = |&(rule, key): &(usize, &'static str)| Charge {
            rule: rules[rule],
            key: key.into(),
            ask: lease(id),
        };
        let of: Vec<(usize, &'static str)> =
            of.iter().map(|&(rule, key)| (rule, if key == "full" { "full" } else { "empty" })).collect();
        store.charge(&of.iter().map(charge).collect::<Vec<_>>(), None).await.unwrap()
    };
    for rule in 0..5 {
        for _ in 0..5 {
            assert!(call(&[(rule, "full")]).await.allowed);
        }
    }
    let changes = || server.info("persistence", "rdb_changes_since_last_save").unwrap();
    let before = changes();
    for rule in 0..5 {
        assert!(!call(&[(rule, "full")]).await.allowed);
        for other in (0..5).filter(|other| *other != rule) {
            let verdict = call(&[(other, "empty"), (rule, "full"), (other, "full")]).await;
            assert!(!verdict.allowed && verdict.outcomes[0].allowed);
            assert_eq!(verdict.outcomes[0].remaining, 5, "as if nothing had happened");
        }
    }
    assert_eq!(changes(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_counted_right_when_one_of_their_two_keys_is_gone() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let rule = define_local(&node, "in progress", leases(3));
    let take = async |id: u128| {
        let charge = Charge { rule, key: "alice".into(), ask: lease(id) };
        node.charge(&[charge], None).await.unwrap()
    };
    // The only key that stands for a rate or a lease of this subject, and the set beside it.
    let forget = |set: bool| {
        let own: Vec<_> = keys(&server).into_iter().filter(|key| key.ends_with(":o") == set).collect();
        let of_alice = own.into_iter().filter(|key| expiry(&server, key) > 60_000);
        let gone: Vec<_> = of_alice.map(|key| server.command(&["DEL", &key])).collect();
        assert_eq!(gone.len(), 1);
    };
    assert!(
        take(1).await.allowed && take(2).await.allowed && take(3).await.allowed && !take(4).await.allowed
    );
    forget(false);
    assert!(!take(4).await.allowed, "the set knows of all three");
    assert!(take(3).await.allowed, "and of this one");
    forget(true);
    assert!(take(5).await.allowed && take(6).await.allowed && take(7).await.allowed, "nobody is locked out");
    assert!(!take(8).await.allowed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_of_one_call_that_share_a_state_refuse_together() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let progress = define_local(&node, "in progress", leases(3));
    let many: Vec<_> =
        (0..50).map(|id| Charge { rule: progress, key: "alice".into(), ask: lease(id) }).collect();
    assert!(!node.charge(&many, None).await.unwrap().allowed, "50 leases of 3");
    assert_eq!(node.in_progress(progress, "alice".into(), None).await.unwrap().other, 0);
    assert!(node.charge(&many[..3], None).await.unwrap().allowed);
    assert_eq!(node.in_progress(progress, "alice".into(), None).await.unwrap().other, 3);
    // Two rules of one family are two views of one state.
    let hour = define_local(&node, "per user", Limit::token_bucket(5, 5, Nanos::from_secs(3600)).unwrap());
    let day = define_local(&node, "per user", Limit::token_bucket(5, 5, Nanos::from_secs(86_400)).unwrap());
    let both = [hour, day].map(|rule| Charge { rule, key: "bob".into(), ask: Ask::from(1) });
    let mut passed = 0;
    for _ in 0..20 {
        passed += u64::from(node.charge(&both, None).await.unwrap().allowed);
    }
    assert_eq!(passed, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_weight_of_a_lease_keeps_the_server_from_others() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let fleet = Limit::fleet(4, (1, 4), tollgate::FleetMode::Allocation, Nanos::from_secs(60)).unwrap();
    for limit in [fleet, leases(1 << 40)] {
        let rule = node.define(&format!("{limit:?}"), limit).unwrap();
        for cost in [1001, 1 << 40, u64::MAX] {
            let ask = Ask { cost, critical: true, ..lease(1) };
            let verdict = node.charge(&[Charge { rule, key: "alice".into(), ask }], None).await.unwrap();
            assert!(
                !verdict.allowed && verdict.retry_after.is_none() && verdict.degraded.is_empty(),
                "{verdict:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_somebody_made_something_else_is_taken_back_and_disturbs_nobody() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let rule = define_local(&node, "per user", once(10));
    assert!(charge(&*node, rule, "alice").await.allowed);
    let own: Vec<_> = keys(&server).into_iter().filter(|key| expiry(&server, key) > 60_000).collect();
    server.command(&["DEL", &own[0]]);
    server.command(&["RPUSH", &own[0], "x"]);
    assert_eq!(admitted(&*node, rule, "alice").await, 10);
    assert_eq!(node.stats().local, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_somebody_made_something_else_is_taken_back_and_disturbs_nobody() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let limits = [
        Limit::leases(3, Nanos::from_secs(3600)).unwrap(),
        Limit::fleet(3, (0, 4), FleetMode::Allocation, Nanos::from_secs(3600)).unwrap(),
        Limit::fleet(3, (0, 4), FleetMode::Total, Nanos::from_secs(3600)).unwrap(),
    ];
    let mut ids = 0;
    for (number, limit) in limits.into_iter().enumerate() {
        let rule = node.define(&format!("limit {number}"), limit).unwrap();
        let mut take = async |critical: bool| {
            ids += 1;
            let ask = Ask { critical, ..lease(ids) };
            let charge = Charge { rule, key: "alice".into(), ask };
            (charge, node.charge(&[charge], None).await.unwrap())
        };
        let spoil = |which: &str| {
            let sets: Vec<_> = keys(&server).into_iter().filter(|key| key.ends_with(which)).collect();
            assert!(!sets.is_empty(), "limit {number} has no {which}");
            sets.iter().for_each(|key| drop(server.command(&["SET", key, "x"])));
        };
        // Whatever meets it first: a charge, one that is refused, a count, or a lease that goes back.
        for first in 0..4 {
            let (held, verdict) = take(false).await;
            assert!(verdict.allowed && verdict.degraded.is_empty());
            if number > 0 {
                assert!(take(true).await.1.allowed);
            }
            let of = if number > 0 && first % 2 == 0 { ":c" } else { ":o" };
            spoil(of);
            match first {
                0 => assert!(take(false).await.1.degraded.is_empty()),
                1 => while take(false).await.1.allowed {},
                2 => drop(node.in_progress(rule, "alice".into(), None).await.unwrap()),
                _ => drop(node.apply(Op::Refund, held, None).await.unwrap()),
            }
            // What was held is forgotten with its set, and the limit holds again.
            let mut taken = 0;
            while take(false).await.1.allowed {
                taken += 1;
                assert!(taken <= 3);
            }
            let counted = node.in_progress(rule, "alice".into(), None).await.unwrap();
            assert_eq!(
                counted.other,
                3 - if number == 2 { counted.critical } else { 0 },
                "limit {number}, {first}"
            );
            node.reset(rule, "alice".into()).await.unwrap();
        }
    }
    assert_eq!((node.stats().local, node.shared().stats().failed), (0, 0));
    // And those who share a call with it.
    let rule = define_local(&node, "in progress", leases(10));
    let names: Vec<String> = (0..200).map(|name| format!("user {name}")).collect();
    let of = |name: &'static str, id| Charge { rule, key: name.into(), ask: lease(id) };
    server.command(&["FLUSHALL"]);
    assert!(node.charge(&[of("bob", 1)], None).await.unwrap().allowed);
    for key in keys(&server).into_iter().filter(|key| key.ends_with(":o") && expiry(&server, key) > 60_000) {
        server.command(&["SET", &key, "x"]);
    }
    let calls = names.iter().enumerate().map(|(number, name)| {
        let (key, node) = (if number == 100 { "bob" } else { name.as_str() }, &node);
        async move { node.charge(&[Charge { rule, key: key.into(), ask: lease(2) }], None).await.unwrap() }
    });
    for verdict in join_all(calls).await {
        assert!(verdict.allowed && verdict.degraded.is_empty());
    }
}

/// What the script takes of the server's time for one call, in microseconds, while something is done.
async fn time_per_call(server: &RedisServer, what: impl Future<Output = ()>) -> f64 {
    server.command(&["CONFIG", "RESETSTAT"]);
    what.await;
    let stats = server.command(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap();
    let per_call = line.split(',').find_map(|part| part.strip_prefix("usec_per_call=")).unwrap();
    per_call.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_lowered_below_what_is_held_keeps_the_server_from_nobody() {
    const HELD: u64 = 20_000;
    const HOUR: Nanos = Nanos::from_secs(3600);
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let noon = 1_700_000_000;
    let at = |seconds: u64| Some(tollgate::Timestamp::from_secs(noon + seconds));
    let fleet = |capacity| Limit::fleet(capacity, (0, 1), FleetMode::Total, HOUR).unwrap();
    let lease_limit = |capacity| Limit::leases(capacity, HOUR).unwrap();
    for limit in [fleet, lease_limit] as [fn(u64) -> Limit; 2] {
        let rule = node.define(&format!("{:?}", limit(1)), limit(HELD)).unwrap();
        let is_fleet = matches!(limit(1), Limit::Fleet(_));
        for id in 0..HELD / 1000 {
            // Every other one is critical, so that the two sets end by turns.
            let ask = Ask { cost: 1000, critical: is_fleet && id % 2 == 0, ..lease(id.into()) };
            let taken = node.charge(&[Charge { rule, key: "alice".into(), ask }], at(id)).await.unwrap();
            assert!(taken.allowed);
        }
        node.redefine(rule, limit(100), None).unwrap();
        let ask = |cost| Charge { rule, key: "alice".into(), ask: Ask { cost, ..lease(99_999) } };
        let refused = async {
            for _ in 0..100 {
                assert!(!node.charge(&[ask(1)], at(100)).await.unwrap().allowed);
            }
        };
        let took = time_per_call(&server, refused).await;
        assert!(took < 1000.0, "{took} microseconds for one call");
        // 19,901 of 20,000 have to end: all but some of the last thousand, which was taken after 19 seconds.
        let refused = node.charge(&[ask(1)], at(100)).await.unwrap();
        assert_eq!(refused.retry_after, Some(Nanos::from_secs(3600 + 19 - 100)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_leases_under_a_clock_that_steps_back_are_set_back_some_at_a_time() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let noon = 1_700_000_000_i64;
    let at = |seconds: i64| Some(tollgate::Timestamp::from_secs((noon + seconds) as u64));
    let minute = Nanos::from_secs(60);
    let limits = [Limit::leases(10_000, minute), Limit::fleet(10_000, (0, 1), FleetMode::Total, minute)];
    for (number, limit) in limits.into_iter().enumerate() {
        let rule = node.define(&format!("limit {number}"), limit.unwrap()).unwrap();
        let take = async |id: u128, cost, seconds| {
            let ask = Ask { cost, critical: number == 1 && id.is_multiple_of(2), ..lease(id) };
            node.charge(&[Charge { rule, key: "alice".into(), ask }], at(seconds)).await.unwrap().allowed
        };
        for id in 0..10 {
            assert!(take(id, 1000, 0).await);
        }
        let stepped = async {
            for id in 100..120 {
                assert!(!take(id, 1, -3600).await, "limit {number}: no place comes free by the step");
            }
        };
        let took = time_per_call(&server, stepped).await;
        assert!(took < 5000.0, "{took} microseconds for one call");
        assert!(!take(200, 1, -3600 + 59).await, "limit {number}");
        assert!(
            take(201, 1, -3600 + 61).await,
            "limit {number}: nobody is locked out for longer than a lease"
        );
        assert_eq!(node.in_progress(rule, "alice".into(), at(-3600 + 61)).await.unwrap().critical, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_idle_leaves_a_subjects_string_while_the_rest_of_it_lives() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let long = node.define("long", once(10)).unwrap();
    assert!(charge(&*node, long, "alice").await.allowed);
    let short = |number| {
        let limit = Limit::token_bucket(1, 1, Nanos::new(1_000_000)).unwrap();
        node.define(&format!("short {number}"), limit).unwrap()
    };
    for number in 0..200 {
        assert!(charge(&*node, short(number), "alice").await.allowed);
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(charge(&*node, long, "alice").await.allowed);
    let own = keys(&server).into_iter().filter(|key| expiry(&server, key) > 60_000).collect::<Vec<_>>();
    assert_eq!(own.len(), 1);
    let length: usize = server.command(&["STRLEN", &own[0]]).trim().trim_start_matches(':').parse().unwrap();
    assert!(length <= 9 * 65, "{length} bytes: some of what is idle may stay");
    assert_eq!(left(&node, long, "alice").await, 8);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_that_are_given_back_while_packets_vanish_are_given_back() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(server.port());
    let node = node(&proxy.url()).await;
    let rule = define_local(&node, "in progress", leases(1000));
    let of = |id| Charge { rule, key: "alice".into(), ask: lease(id) };
    for id in 0..200 {
        assert!(node.charge(&[of(id)], None).await.unwrap().degraded.is_empty());
    }
    proxy.black_hole();
    (0..100).for_each(|id| node.give_back(of(id)));
    until_degraded(&node).await;
    for id in 100..200 {
        let op = if id % 2 == 0 { Op::Refund } else { Op::Undo };
        assert!(node.apply(op, of(id), None).await.unwrap().allowed);
    }
    tokio::time::sleep(Duration::from_millis(700)).await;
    proxy.pass();
    until_exact(&node).await;
    let begun = Instant::now();
    while node.in_progress(rule, "alice".into(), None).await.unwrap().other > 0 {
        assert!(begun.elapsed() < Duration::from_secs(5), "some are held by nobody");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_sentinels_have_replaced_is_left_although_it_lives() {
    let pair = Sentinel::start();
    let node = patient_node(&pair.url()).await;
    let rule = define_local(&node, "per user", once(100_000));
    let load = Load::start(&node, rule, "alice", 16);
    tokio::time::sleep(Duration::from_millis(300)).await;
    pair.failover();
    let begun = Instant::now();
    // From the moment on at which the new primary was named.
    until("the new primary is used", || node.shared().stats().connections >= 2).await;
    assert!(begun.elapsed() < Duration::from_secs(6), "after {:?}", begun.elapsed());
    let calls = load.finish().await;
    assert!(calls.iter().all(|call| call.allowed));
    assert!(left(&node, rule, "alice").await > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_a_place_back_and_asks_anew_finds_it_free_however_many_others_do() {
    let server = RedisServer::start();
    let node = patient_node(&server.url()).await;
    let (asked, refused, degraded) = take_and_give_back(&node, 256, Duration::from_secs(2)).await;
    assert!(asked > 5000, "{asked}: too few to mean anything");
    assert_eq!((refused, degraded), (0, 0), "of {asked}");
    // And when nobody else is there, so that nothing has to wait.
    assert_eq!(take_and_give_back(&node, 1, Duration::from_millis(300)).await.1, 0);
}
