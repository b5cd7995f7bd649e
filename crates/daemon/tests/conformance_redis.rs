//! `tollgate conformance --store redis://...`: every vector that counts in microseconds passes through the script.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::path::Path;
use std::process::Command;

use tollgate_testkit::{Cluster, Flavour, RedisServer, Sentinel, wait_until};

fn conformance(folder: &str, store: &str) -> (String, Option<i32>) {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors").join(folder);
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["conformance".as_ref(), vectors.as_os_str(), "--store".as_ref(), store.as_ref()])
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code())
}

#[test]
fn every_vector_in_microseconds_passes_on_redis_and_leaves_nothing_behind() {
    let server = RedisServer::start_with(Flavour::Redis, &[]);
    let (text, code) = conformance("us", &server.url());
    assert!(text.ends_with("8500 passed, 0 failed\n"), "{text}");
    assert_eq!(code, Some(0));
    // What was written to find out whether the server takes writes lives a third of a second longer.
    wait_until("nothing is left", || server.command(&["DBSIZE"]) == ":0\r\n");
}

#[test]
fn files_in_nanoseconds_are_listed_as_skipped() {
    let server = RedisServer::start();
    let (text, code) = conformance("", &server.url());
    assert!(text.contains("skipped: this store counts microseconds"), "{text}");
    assert!(text.ends_with("error: nothing was replayed: 16 skipped of 16 files\n"), "{text}");
    assert_eq!(code, Some(2));
}

#[test]
fn a_store_that_is_not_there_and_an_address_that_is_none_are_told_at_once() {
    let (text, code) = conformance("us", "redis://127.0.0.1:1");
    assert!(
        text.starts_with("error: no store at redis://127.0.0.1:1: the store is not available: "),
        "{text}"
    );
    assert_eq!(code, Some(2));
    let (text, code) = conformance("us", "disk");
    assert!(
        text.starts_with("error: \"disk\" is no address of a store: it should look like redis://"),
        "{text}"
    );
    assert_eq!(code, Some(2));
    let (text, _) = conformance("us", "redis://a:1,b:2");
    assert!(text.contains("several servers are a cluster (redis-cluster://) or sentinels"), "{text}");
}

#[test]
fn every_vector_in_microseconds_passes_on_valkey_and_leaves_nothing_behind() {
    let server = RedisServer::start_with(Flavour::Valkey, &[]);
    let (text, code) = conformance("us", &server.url());
    assert!(text.ends_with("8500 passed, 0 failed\n"), "{text}");
    assert_eq!(code, Some(0));
    // What was written to find out whether the server takes writes lives a third of a second longer.
    wait_until("nothing is left", || server.command(&["DBSIZE"]) == ":0\r\n");
}

fn every_vector_in_microseconds_passes_on_a_cluster_of(flavour: Flavour) {
    let cluster = Cluster::start(flavour);
    let (text, code) = conformance("us", &cluster.url());
    assert!(text.ends_with("8500 passed, 0 failed\n"), "{text}");
    assert_eq!(code, Some(0));
}

#[test]
fn every_vector_in_microseconds_passes_on_a_cluster() {
    every_vector_in_microseconds_passes_on_a_cluster_of(Flavour::Redis);
}

#[test]
fn every_vector_in_microseconds_passes_on_a_cluster_of_valkey() {
    every_vector_in_microseconds_passes_on_a_cluster_of(Flavour::Valkey);
}

#[test]
fn every_vector_in_microseconds_passes_on_the_primary_that_a_sentinel_names() {
    let pair = Sentinel::start();
    let (text, code) = conformance("us", &pair.url());
    assert!(text.ends_with("8500 passed, 0 failed\n"), "{text}");
    assert_eq!(code, Some(0));
}
