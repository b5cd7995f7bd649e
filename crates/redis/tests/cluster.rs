//! Redis Cluster: charges that live in different slots, slots that move, and nodes that die.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::Failsafe;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_core::{Limit, Nanos, Timestamp};
use tollgate_redis::RedisStore;
use tollgate_testkit::{Cluster, Flavour, RedisServer};

use crate::common::*;

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
    let store = RedisStore::builder(cluster.url()).deadline(Duration::from_secs(1)).build().unwrap();
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

/// A subject's rates: their key, and where it is.
struct Place {
    key: String,
    slot: u16,
    primary: usize,
}

fn keys_of(server: &RedisServer) -> Vec<String> {
    let reply = server.command(&["KEYS", "*"]);
    reply.split("\r\n").filter(|line| line.contains('{')).map(str::to_owned).collect()
}

/// The keys of rates that all primaries hold.
fn rates_of(cluster: &Cluster) -> HashSet<String> {
    let primaries = cluster.nodes().iter().filter(|node| node.is_primary());
    let is_rate = |key: &String| key.len() == "tg:{00}:".len() + 32 && !is_of_nobody(key);
    primaries.flat_map(keys_of).filter(is_rate).collect()
}

/// Charges a subject that was never charged before, and says where it went.
async fn place(cluster: &Cluster, store: &impl Store, rule: Rule, name: &str) -> Place {
    let before = rates_of(cluster);
    assert!(charge(store, rule, name).await.degraded.is_empty());
    let after = rates_of(cluster);
    let key = after.difference(&before).next().unwrap().clone();
    let slot = cluster.slot_of(&key);
    Place { key, slot, primary: cluster.primary_of(slot) }
}

/// Whether all nodes say that a key is at this one.
fn knows_all(cluster: &Cluster, key: &str, at: usize) -> bool {
    let port = format!(":{}\r\n", cluster.nodes()[at].port());
    let knows = |(place, node): (usize, &RedisServer)| {
        let reply = node.try_command(&["GET", key]).unwrap();
        if place == at {
            reply.starts_with('$')
        } else {
            reply.starts_with("-MOVED") && reply.ends_with(&port)
        }
    };
    cluster.nodes().iter().enumerate().all(knows)
}

/// Subjects on every shard, `count` each: by the place of the shard's primary.
async fn subjects(
    cluster: &Cluster,
    store: &impl Store,
    rule: Rule,
    count: usize,
) -> HashMap<usize, Vec<String>> {
    let mut shards: HashMap<usize, Vec<String>> = HashMap::new();
    for number in 0.. {
        let name = format!("user {number}");
        let place = place(cluster, store, rule, &name).await;
        let names = shards.entry(place.primary).or_default();
        if names.len() < count {
            names.push(name);
        }
        if shards.len() == 3 && shards.values().all(|names| names.len() == count) {
            break;
        }
    }
    shards
}

/// The place of a primary: the one that has the first of all tags, or another.
fn a_shard(cluster: &Cluster, with_first_tag: bool) -> usize {
    let first = cluster.primary_of(cluster.slot_of("tg:{00}:"));
    let is_wanted =
        |&place: &usize| (place == first) == with_first_tag && cluster.nodes()[place].is_primary();
    (0..cluster.nodes().len()).find(is_wanted).unwrap()
}

/// The place of the replica that follows a primary.
fn replica_of(cluster: &Cluster, primary: usize) -> usize {
    let port = format!("master_port:{}\r\n", cluster.nodes()[primary].port());
    let follows = |node: &RedisServer| node.command(&["INFO", "replication"]).contains(&port);
    cluster.nodes().iter().position(follows).unwrap()
}

fn passed(calls: &[Call]) -> u64 {
    calls.iter().filter(|call| call.allowed).count() as u64
}

/// A primary goes away under load, and its replica takes over.
async fn one_primary_away(with_first_tag: bool, lose: impl FnOnce(&mut RedisServer)) {
    const LIMIT: u64 = 2500;
    /// A busy machine may hold up a call or two for as long as the deadline. A shard that is disturbed loses hundreds.
    const HELD_UP: usize = 10;
    let mut cluster = Cluster::start(Flavour::Redis);
    let node = node(&cluster.url()).await;
    let rule = define_local(&node, "per user", once(LIMIT));
    let shards = subjects(&cluster, &*node, rule, 2).await;
    let victim = a_shard(&cluster, with_first_tag);
    let loads: Vec<_> = shards
        .iter()
        .flat_map(|(&shard, names)| names.iter().map(move |name| (shard, name)))
        .map(|(shard, name)| (shard, name, Load::start(&node, rule, name, 2)))
        .collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let replica = replica_of(&cluster, victim);
    let offset = |place: usize| cluster.nodes()[place].info("replication", "master_repl_offset").unwrap();
    let written = offset(victim);
    until("the replica has heard of what is past", || offset(replica) >= written).await;
    let lost = Instant::now();
    lose(&mut cluster.nodes_mut()[victim]);
    until_degraded(&node).await;
    until_exact(&node).await;
    let back = Instant::now();
    tokio::time::sleep(Duration::from_millis(300)).await;
    for (shard, name, load) in loads {
        let calls = load.finish().await;
        let took = percentile(calls.iter().map(|call| call.took), 99);
        assert!(took <= DEADLINE + SLACK, "{name}: 99 % within {took:?}");
        let (alone, exact): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.degraded);
        let more = admitted_by_shared(&node, rule, name).await;
        // One was taken to find out where it goes.
        let admitted = 1 + passed(&exact) + more;
        if shard == victim {
            assert!(!alone.is_empty(), "{name}: nobody has noticed");
            let late = alone.iter().filter(|call| call.begun >= back).count();
            assert!(late <= HELD_UP, "{name}: all is exact again, and yet {late} calls were not");
            assert!(exact.iter().any(|call| call.begun > back));
            assert!(passed(&alone) <= LIMIT, "{} passed alone", passed(&alone));
            // What the replica had not heard of is forgotten; and what was charged when it died, or too late for who had asked, nobody
            // has heard of.
            let unheard = 10 + alone.iter().filter(|call| call.took >= DEADLINE).count() as u64;
            let least = LIMIT.saturating_sub(unheard);
            assert!(
                (least..=LIMIT + 100).contains(&admitted),
                "{name}: {admitted} of {LIMIT}, {unheard} unheard"
            );
        } else {
            let when: Vec<_> = alone.iter().map(|call| (call.begun - lost, call.took)).take(9).collect();
            let held_up = alone.len();
            assert!(held_up <= HELD_UP, "{name}: {held_up} calls of another shard were disturbed: {when:?}");
            assert!((LIMIT - held_up as u64..=LIMIT).contains(&admitted), "{name}: {admitted} of {LIMIT}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_is_killed_under_load_disturbs_its_own_keys_and_no_others() {
    one_primary_away(false, RedisServer::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_connections_are_tried_with_disturbs_no_others_either() {
    one_primary_away(true, RedisServer::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_hangs_under_load_disturbs_its_own_keys_and_no_others() {
    one_primary_away(false, |server| server.freeze()).await;
}

/// Memory of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Commands that those who live have processed.
fn commands(cluster: &Cluster) -> f64 {
    let alive = cluster.nodes().iter().filter(|node| node.pid().is_some());
    alive.map(|node| node.info("stats", "total_commands_processed").unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_lost_for_good_is_done_without_for_good() {
    one_shard_lost(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shard_that_connections_are_tried_with_is_done_without_for_good_as_well() {
    one_shard_lost(true).await;
}

async fn one_shard_lost(with_first_tag: bool) {
    let mut cluster = Cluster::start(Flavour::Redis);
    // Those who listen nowhere need no deadline to be found out, and a busy machine must not be taken for one of them.
    let node = Failsafe::new(store(&cluster).await);
    let rule = define_local(&node, "per user", once(100));
    let shards = subjects(&cluster, &node, rule, 3).await;
    let victim = a_shard(&cluster, with_first_tag);
    let lost = &shards[&victim];
    let replica = replica_of(&cluster, victim);
    cluster.nodes_mut()[victim].kill();
    cluster.nodes_mut()[replica].kill();
    // Every subject of the shard is left alone after some failures of its own.
    for name in lost {
        let begun = Instant::now();
        while node.shared().answers_for(name.as_str().into()) {
            let _ = charge(&node, rule, name).await;
            assert!(begun.elapsed() < Duration::from_secs(10), "{name} is still asked for");
        }
    }
    let mut decisions = 0;
    let begun = Instant::now();
    let (mut before, mut slow) = (0, 0);
    while begun.elapsed() < Duration::from_secs(3) || decisions < 150_000 {
        for name in lost {
            let begun = Instant::now();
            let verdict = charge(&node, rule, name).await;
            slow += u64::from(begun.elapsed() > Duration::from_millis(1));
            assert!(!verdict.degraded.is_empty(), "nobody can have answered");
            decisions += 1;
        }
        if decisions % 300 == 0 {
            for name in shards.iter().filter(|(shard, _)| **shard != victim).flat_map(|(_, names)| names) {
                assert!(charge(&node, rule, name).await.degraded.is_empty(), "{name} is of another shard");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if decisions == 30_000 {
            before = resident_bytes();
        }
    }
    let grown = resident_bytes().saturating_sub(before) >> 20;
    assert!(grown < 20, "{grown} MB more after {decisions} decisions");
    assert!(slow < decisions / 100, "{slow} of {decisions} decisions waited");
    for name in lost {
        assert!(!charge(&node, rule, name).await.allowed, "its share is used up");
    }
    // Nobody asks now, so that what is left are the probes.
    let (before, begun) = (commands(&cluster), Instant::now());
    tokio::time::sleep(Duration::from_secs(2)).await;
    let rate = (commands(&cluster) - before) / begun.elapsed().as_secs_f64();
    assert!(rate < 200.0, "{rate} commands a second on four nodes");
}

struct Random(TestRng);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_call_over_any_slots_leaves_every_balance_as_it_was() {
    let cluster = Cluster::start(Flavour::Redis);
    let store = store(&cluster).await;
    let day = Nanos::from_secs(86_400);
    let limits = [
        Limit::token_bucket(9, 1, day),
        Limit::fixed_window(7, day, WindowStart::FirstCall),
        Limit::sliding_window(8, day),
        Limit::interval_bucket(6, 1, day),
        Limit::sliding_log(5, day),
        Limit::leases(4, day),
        Limit::fleet(9, (1, 3), FleetMode::Total, day),
    ];
    let rules: Vec<(Rule, Limit)> = limits
        .into_iter()
        .enumerate()
        .map(|(number, limit)| {
            let limit = limit.unwrap();
            (store.define(&format!("limit {number}"), limit).unwrap(), limit)
        })
        .collect();
    // The test's own time, so that nothing comes back by itself.
    let at = Some(Timestamp::from_secs(1_700_000_000));
    let mut random = Random(TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let mut lease = 0_u128;
    let mut next = || {
        lease += 1;
        LeaseId(lease)
    };
    let (mut refused, mut allowed) = (0, 0);
    for round in 0..400 {
        let count = 2 + random.below(5);
        let parts: Vec<(Rule, String)> = (0..count)
            .map(|part| {
                let rule = rules[random.below(rules.len() as u64) as usize].0;
                (rule, format!("{} {}", round / 4 + part, random.below(2)))
            })
            .collect();
        let balances = || async {
            let of = |(rule, name): &(Rule, String)| {
                let (rule, name) = (*rule, name.clone());
                let store = &store;
                async move {
                    let look = Charge { rule, key: name.as_str().into(), ask: Ask::from(0) };
                    let left = store.apply(Op::Estimate, look, at).await.unwrap().remaining;
                    (left, store.in_progress(rule, name.as_str().into(), at).await.unwrap())
                }
            };
            join_all(parts.iter().map(of)).await
        };
        // Often one of them is used up before.
        if random.below(3) > 0 {
            let (rule, name) = &parts[random.below(count) as usize];
            loop {
                let ask = Ask { lease: next(), ..Ask::from(1) };
                let charge = Charge { rule: *rule, key: name.as_str().into(), ask };
                if !store.charge(&[charge], at).await.unwrap().allowed {
                    break;
                }
            }
        }
        let before = balances().await;
        let charges: Vec<_> = parts
            .iter()
            .map(|(rule, name)| {
                let ask = Ask { lease: next(), ..Ask::from(1 + random.below(3)) };
                Charge { rule: *rule, key: name.as_str().into(), ask }
            })
            .collect();
        let verdict = store.charge(&charges, at).await.unwrap();
        let after = balances().await;
        if verdict.allowed {
            allowed += 1;
            assert_ne!(after, before, "{round}: {charges:?}");
        } else {
            refused += 1;
            assert_eq!(after, before, "{round}: {charges:?} {verdict:?}");
        }
    }
    assert!(refused > 100 && allowed > 50, "{refused} refused, {allowed} allowed: too few to mean anything");
    assert_eq!(store.stats().failed, 0);
}

/// Whether a key is made of the prefix, hexadecimal digits, and what says which kind of state it holds.
fn is_plain(key: &str) -> bool {
    let is_hex = |part: &str, length| part.len() == length && part.bytes().all(|b| b.is_ascii_hexdigit());
    let parts: Vec<&str> = key.split(':').collect();
    let tag = |tag: &str| tag.strip_prefix('{').and_then(|tag| tag.strip_suffix('}')).map(str::to_owned);
    match parts.as_slice() {
        ["tg", braced, subject, rest @ ..] => {
            tag(braced).is_some_and(|tag| is_hex(&tag, 2))
                && is_hex(subject, 32)
                && matches!(rest, [] | [_, "l" | "o" | "c"])
                && rest.first().is_none_or(|family| is_hex(family, 16))
        }
        _ => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_with_braces_choose_no_slot_and_stand_in_no_key() {
    let mut cluster = Cluster::start(Flavour::Redis);
    let store = store(&cluster).await;
    let rates = store.define("per user", once(2)).unwrap();
    let log = store.define("log", Limit::sliding_log(2, Nanos::from_secs(3600)).unwrap()).unwrap();
    let progress = store.define("in progress", leases(2)).unwrap();
    let odd = ["{}", "{x}", "x{y}z", "}{", "{", "}", "{}{a}", "{{a}}", "tg:{00}:", "", "\r\n{\0}", "*"];
    let same = (0..1000).map(|number| format!("{{same}} user {number}"));
    let names: Vec<String> = odd.iter().map(|name| (*name).to_owned()).chain(same).collect();
    for (number, name) in names.iter().enumerate() {
        let key = name.as_str().into();
        let ask = lease(number as u128);
        let charges = [rates, log, progress].map(|rule| Charge { rule, key, ask });
        // Also with another name beside it.
        let other = names[(number + 1) % names.len()].as_str().into();
        let charges = [charges[0], charges[1], charges[2], Charge { key: other, ..charges[0] }];
        let verdict = store.charge(&charges, None).await.expect("no CROSSSLOT");
        assert!(verdict.allowed || number + 1 == names.len(), "{name:?}: {verdict:?}");
    }
    assert_eq!(store.stats().failed, 0, "{:?}", store.stats());
    for primary in cluster.primaries_mut() {
        let keys = keys_of(primary);
        let own = keys.iter().filter(|key| key.len() == "tg:{00}:".len() + 32).count();
        assert!(own > 100, "{own} of 1000 subjects on a third of the cluster");
        let odd: Vec<_> = keys.iter().filter(|key| !is_plain(key)).collect();
        assert!(odd.is_empty(), "{odd:?}");
        // Those that have expired are still counted for a while.
        let is_all = || primary.command(&["DBSIZE"]) == format!(":{}\r\n", keys_of(primary).len());
        until("all keys were looked at", is_all).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_cost_nobody_anything() {
    slots_move(Duration::from_millis(4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_take_long_to_move_cost_nobody_anything() {
    slots_move(Duration::from_millis(100)).await;
}

/// Slots move, and are for so long half here and half there.
async fn slots_move(half: Duration) {
    const LIMIT: u64 = 4000;
    let cluster = Cluster::start(Flavour::Redis);
    // Nobody is in a hurry here: what is looked at is that nothing is lost and nothing is charged twice.
    let node = Arc::new(Failsafe::new(store(&cluster).await));
    let rule = define_local(&node, "per user", once(LIMIT));
    let first = place(&cluster, &*node, rule, "alice").await;
    // Another one in the same slot, so that calls carry keys of which one has moved and the other has not.
    let mut second = None;
    for number in 0..20_000 {
        let name = format!("user {number}");
        if place(&cluster, &*node, rule, &name).await.slot == first.slot {
            second = Some(name);
            break;
        }
    }
    let names = ["alice".to_owned(), second.unwrap()];
    let loads = names.iter().map(|name| Load::start(&node, rule, name, 8)).collect::<Vec<_>>();
    for _ in 0..6 {
        let from = cluster.primary_of(first.slot);
        let to = (0..6).find(|&to| to != from && cluster.nodes()[to].is_primary()).unwrap();
        let moving = cluster.begin_move(first.slot, to);
        tokio::time::sleep(Duration::from_millis(20)).await;
        moving.carry(1);
        tokio::time::sleep(half).await;
        moving.finish();
        // A slot that moves on before all have heard of it may lose its keys, to Redis's own quarrels about who owns it.
        until("all nodes know where the slot is", || knows_all(&cluster, &first.key, to)).await;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    for (name, load) in names.iter().zip(loads) {
        let calls = load.finish().await;
        let alone = calls.iter().filter(|call| call.degraded).count();
        assert_eq!(alone, 0, "of {} calls of {name}; {:?}", calls.len(), node.shared().stats());
        let more = admitted(&*node, rule, name).await;
        assert_eq!(1 + passed(&calls) + more, LIMIT, "{name}: exactly the limit");
    }
    let stats = node.shared().stats();
    assert!(stats.redirects > 10, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_of_which_every_node_was_killed_and_restarted_is_found_again() {
    let mut cluster = Cluster::start(Flavour::Redis);
    let node = patient_node(&cluster.url()).await;
    let rule = define_local(&node, "per user", once(50));
    assert_eq!(admitted(&*node, rule, "alice").await, 50);
    let load = Load::start(&node, rule, "alice", 4);
    cluster.nodes_mut().iter_mut().for_each(RedisServer::kill);
    until("nobody answers for anything", || node.shared().health().problem.is_some()).await;
    let told = node.shared().health().problem.unwrap();
    assert!(told.contains("refused"), "{told}");
    cluster.nodes_mut().iter_mut().for_each(RedisServer::restart);
    let is_whole = |node: &RedisServer| node.command(&["CLUSTER", "INFO"]).contains("cluster_state:ok");
    until("the cluster is whole", || cluster.nodes().iter().all(is_whole)).await;
    until_exact(&node).await;
    let calls = load.finish().await;
    let (alone, exact): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.degraded);
    let more = admitted(&*node, rule, "alice").await;
    // The cluster comes back empty, once; this node is alone, so that its share is the limit.
    assert_eq!(passed(&alone), 50);
    assert_eq!(passed(&exact) + more, 50);
    for number in 0..300 {
        let verdict = charge(&*node, rule, &format!("user {number}")).await;
        assert!(verdict.degraded.is_empty(), "every shard answers");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_gives_a_place_back_and_asks_anew_finds_it_free_in_a_cluster_too() {
    let cluster = Cluster::start(Flavour::Redis);
    let node = patient_node(&cluster.url()).await;
    let (asked, refused, degraded) = take_and_give_back(&node, 256, Duration::from_secs(2)).await;
    assert!(asked > 5000, "{asked}: too few to mean anything");
    assert_eq!((refused, degraded), (0, 0), "of {asked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_hangs_keeps_no_places_of_others_from_coming_back() {
    let cluster = Cluster::start(Flavour::Redis);
    // Longer than a busy machine holds up a call, and than all others need.
    const DEADLINE: Duration = Duration::from_secs(2);
    let store = RedisStore::builder(cluster.url()).secret("s").deadline(DEADLINE).build().unwrap();
    store.ready().await.unwrap();
    let node = Failsafe::new(store);
    let found = define_local(&node, "per user", once(100));
    let shards = subjects(&cluster, &node, found, 40).await;
    let rule = define_local(&node, "in progress", leases(1));
    fn place(rule: Rule, name: &str, id: u128) -> Charge<'_> {
        Charge { rule, key: name.into(), ask: lease(id) }
    }
    for name in shards.values().flatten() {
        assert!(node.charge(&[place(rule, name, 1)], None).await.unwrap().degraded.is_empty());
    }
    let victim = a_shard(&cluster, false);
    let frozen = [victim, replica_of(&cluster, victim)];
    frozen.iter().for_each(|&place| cluster.nodes()[place].freeze());
    // Nobody has noticed yet, and the requests of the shard that hangs end first.
    shards[&victim].iter().for_each(|name| node.give_back(place(rule, name, 1)));
    let others: Vec<_> =
        shards.iter().filter(|(shard, _)| **shard != victim).flat_map(|(_, names)| names).collect();
    others.iter().for_each(|name| node.give_back(place(rule, name, 1)));
    let begun = Instant::now();
    for name in &others {
        let mut verdict = node.charge(&[place(rule, name, 2)], None).await.unwrap();
        while !verdict.allowed {
            assert!(begun.elapsed() < DEADLINE, "{name} waits for another shard");
            tokio::time::sleep(Duration::from_millis(2)).await;
            verdict = node.charge(&[place(rule, name, 2)], None).await.unwrap();
        }
        assert!(verdict.degraded.is_empty(), "{name}");
    }
    // A part that nobody asks, but where something is to be given back, is left alone too.
    let answers = |name: &String| node.shared().answers_for(name.as_str().into());
    until("the shard is left alone", || !shards[&victim].iter().any(answers)).await;
    frozen.iter().for_each(|&place| cluster.nodes()[place].thaw());
    until("the shard is back", || shards[&victim].iter().all(answers)).await;
    for name in &shards[&victim] {
        let begun = Instant::now();
        while !node.charge(&[place(rule, name, 2)], None).await.unwrap().allowed {
            assert!(begun.elapsed() < Duration::from_secs(5), "{name} is not given back");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_flushed_is_noticed_whichever_it_is_and_counted_once() {
    let cluster = Cluster::start(Flavour::Redis);
    let node = patient_node(&cluster.url()).await;
    let is_mark = |key: &String| is_of_nobody(key) && key.len() == "tg:{00}:".len() + 32;
    let primaries: Vec<_> = cluster.nodes().iter().filter(|node| node.is_primary()).collect();
    let marks = || primaries.iter().flat_map(|primary| keys_of(primary)).filter(is_mark).count();
    until("every tag has its mark", || marks() == 256).await;
    for (number, primary) in primaries.iter().enumerate() {
        // All marks are looked at within sixteen heartbeats.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(node.shared().stats().states_lost, number as u64);
        primary.command(&["FLUSHALL"]);
        until("it is noticed", || node.shared().stats().states_lost == number as u64 + 1).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(node.shared().stats().states_lost, 3);
}
