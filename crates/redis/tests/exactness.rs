//! Two processes, 64 tasks each, one key: as many are admitted as the limit says, by every algorithm.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test that cannot set itself up fails")]

use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::Ask;
use tollgate_core::log::{Log, SubWindows};
use tollgate_core::store::{Charge, Store};
use tollgate_core::{Limit, Nanos};
use tollgate_redis::RedisStore;
use tollgate_testkit::RedisServer;

const LIMIT: u64 = 500;
const TASKS: u64 = 64;
/// Attempts of each task: both processes together ask more than twice as often as they may.
const ATTEMPTS: u64 = 10;

/// Limits that give nothing back while the test runs.
fn limits() -> Vec<(&'static str, Limit)> {
    let (day, age) = (Nanos::from_secs(86_400), Nanos::from_secs(100 * 366 * 86_400));
    vec![
        ("token bucket", Limit::token_bucket(LIMIT, 1, day).unwrap()),
        ("leaky queue", Limit::leaky_queue(LIMIT - 1, 1, day, 3).unwrap()),
        // The first window of 1970 is not over yet.
        (
            "aligned window",
            Limit::fixed_window(LIMIT, age, WindowStart::Aligned { offset: Nanos::ZERO }).unwrap(),
        ),
        ("anchored window", Limit::fixed_window(LIMIT, day, WindowStart::FirstCall).unwrap()),
        ("sliding window", Limit::sliding_window(LIMIT, day).unwrap()),
        ("interval bucket", Limit::interval_bucket(LIMIT, 1, day).unwrap()),
        ("sliding log", Limit::sliding_log(LIMIT, day).unwrap()),
        ("sliding log, refused counted", Limit::Log(Log::new(LIMIT, day).unwrap().count_rejected(true))),
        ("sub-windows", Limit::sub_windows(LIMIT, day, 24, SubWindows::NPlusOne).unwrap()),
        ("leases", Limit::leases(LIMIT, day).unwrap()),
        ("fleet", Limit::fleet(LIMIT, (0, 1), FleetMode::Total, day).unwrap()),
        // Enough of those who ask are critical to take all that is kept for them.
        (RESERVE, Limit::fleet(LIMIT, (1, 5), FleetMode::Total, day).unwrap()),
    ]
}

const URL: &str = "TOLLGATE_TEST_URL";
const RESERVE: &str = "fleet with a reserve";
const KEY: KeyRef<'_> = KeyRef { kind: Kind::Bytes, bytes: b"one key" };

async fn open(url: &str) -> RedisStore {
    let store = RedisStore::builder(url).deadline(Duration::from_secs(30)).build().unwrap();
    store.ready().await.unwrap();
    store
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_admit_exactly_the_limit_by_every_algorithm() {
    let server = RedisServer::start();
    let children: Vec<_> = (0..2)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--exact",
                    "exactness::one_of_two_processes",
                    "--ignored",
                    "--nocapture",
                    "--test-threads",
                    "1",
                ])
                .env(URL, server.url())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let counts = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line =
            text.lines().find_map(|line| line.split_once("admitted ")).map(|(_, counts)| counts.to_owned());
        let counts = line.unwrap_or_else(|| unreachable!("a process failed: {text}"));
        counts.split(' ').map(|count| count.parse().unwrap()).collect::<Vec<u64>>()
    });
    let counts: Vec<_> = counts.collect();
    let [first, second] = counts.as_slice() else { unreachable!("two processes") };
    for (((name, _), first), second) in limits().into_iter().zip(first).zip(second) {
        assert_eq!(first + second, LIMIT, "{name}: {first} in one process, {second} in the other");
    }
    let (_, limit) = limits().into_iter().find(|(name, _)| *name == RESERVE).unwrap();
    let store = open(&server.url()).await;
    let held = store.in_progress(store.define(RESERVE, limit).unwrap(), KEY, None).await.unwrap();
    assert_eq!(held.other + held.critical, LIMIT);
    assert!(held.critical >= LIMIT / 5, "{held:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the test above, twice"]
async fn one_of_two_processes() {
    let store = open(&std::env::var(URL).unwrap()).await;
    let process = u128::from(std::process::id());
    let mut counts = Vec::new();
    for (name, limit) in limits() {
        let rule = store.define(name, limit).unwrap();
        let tasks = (0..TASKS).map(|task| {
            let store = &store;
            async move {
                let mut admitted = 0;
                for attempt in 0..ATTEMPTS {
                    let lease = LeaseId(process << 64 | u128::from(task * ATTEMPTS + attempt));
                    let ask = Ask { lease, critical: attempt % 3 == 0, ..Ask::from(1) };
                    let charge = Charge { rule, key: KEY, ask };
                    admitted += u64::from(store.charge(&[charge], None).await.unwrap().allowed);
                }
                admitted
            }
        });
        counts.push(join_all(tasks).await.into_iter().sum::<u64>().to_string());
    }
    println!("admitted {}", counts.join(" "));
}
