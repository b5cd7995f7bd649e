//! The servers in all their forms.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]

use std::process::Command;

use tollgate_testkit::{Cluster, Flavour, RedisServer, Sentinel, TlsServer};

fn redis_cli(arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(arguments).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn ping_over_tls(server: &TlsServer, host: &str, with_certificate: bool) -> String {
    let [ca, certificate, key] = [server.ca(), server.client_certificate(), server.client_key()]
        .map(|path| path.to_str().unwrap().to_owned());
    let port = server.port().to_string();
    let mut arguments = vec!["--tls", "-h", host, "-p", &port, "--cacert", &ca];
    if with_certificate {
        arguments.extend(["--cert", &certificate, "--key", &key]);
    }
    arguments.push("PING");
    redis_cli(&arguments)
}

#[test]
fn tls_for_everyone() {
    let mut server = TlsServer::start();
    assert_eq!(server.url(), format!("rediss://127.0.0.1:{}", server.port()));
    assert_eq!(ping_over_tls(&server, "127.0.0.1", false), "PONG\n");
    assert_eq!(ping_over_tls(&server, "localhost", false), "PONG\n");
    server.server.restart();
    assert_eq!(ping_over_tls(&server, "127.0.0.1", true), "PONG\n");
    let stranger = TlsServer::start();
    let port = stranger.port().to_string();
    let ca = server.ca().to_str().unwrap();
    assert_eq!(redis_cli(&["--tls", "-p", &port, "--cacert", ca, "PING"]), "", "another authority's server");
}

#[test]
fn tls_for_certified_clients() {
    let server = TlsServer::start_for_certified_clients();
    assert_eq!(ping_over_tls(&server, "127.0.0.1", true), "PONG\n");
    assert_eq!(ping_over_tls(&server, "127.0.0.1", false), "");
    assert_eq!(server.server.command(&["PING"]), "+PONG\r\n");
}

#[test]
fn a_unix_socket() {
    let mut server = RedisServer::start();
    server.restart();
    let url = server.unix_url();
    let path = url.strip_prefix("redis+unix://").unwrap();
    assert!(path.starts_with('/'));
    assert_eq!(redis_cli(&["-s", path, "PING"]), "PONG\n");
}

#[test]
fn valkey() {
    let server = RedisServer::start_with(Flavour::Valkey, &[]);
    assert!(server.command(&["INFO", "server"]).contains("server_name:valkey"));
}

#[test]
fn a_sentinel_fails_over() {
    let pair = Sentinel::start();
    assert!(pair.primary.is_primary() && !pair.replica.is_primary());
    pair.failover();
    let named = pair.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "tollgate"]);
    assert!(named.contains(&pair.replica.port().to_string()));
    assert!(pair.replica.is_primary());
}

#[test]
fn a_slot_moves_in_redis() {
    a_slot_moves(&Cluster::start(Flavour::Redis));
}

#[test]
fn a_slot_moves_in_valkey() {
    a_slot_moves(&Cluster::start(Flavour::Valkey));
}

fn a_slot_moves(cluster: &Cluster) {
    let slot = cluster.slot_of("{tag}");
    assert_eq!(slot, cluster.slot_of("{tag} one"));
    let from = cluster.primary_of(slot);
    let to = cluster.primary_of((slot + 8192) % 16384);
    assert_ne!(from, to);
    let [old, new] = [from, to].map(|index| &cluster.nodes()[index]);
    let keys: Vec<_> = (0..250).map(|number| format!("{{tag}} {number}")).collect();
    for key in &keys {
        old.command(&["SET", key, key]);
    }
    let stays_at = |key: &&String| old.try_command(&["GET", key]).unwrap().starts_with('$');

    let begun = cluster.begin_move(slot, to);
    assert_eq!(keys.iter().filter(stays_at).count(), 250);
    assert_eq!(begun.carry(10), 10);
    assert_eq!(keys.iter().filter(stays_at).count(), 240);
    let here = keys.iter().find(stays_at).unwrap();
    let there = keys.iter().find(|key| !stays_at(key)).unwrap();
    assert!(old.try_command(&["GET", there]).unwrap().starts_with(&format!("-ASK {slot} ")));
    assert!(old.try_command(&["MGET", here, there]).unwrap().starts_with("-TRYAGAIN"));
    assert_eq!(cluster.primary_of(slot), from);

    begun.finish();
    assert_eq!(cluster.primary_of(slot), to);
    assert!(old.try_command(&["GET", here]).unwrap().starts_with(&format!("-MOVED {slot} ")));
    assert_eq!(new.command(&["DBSIZE"]), ":250\r\n");
    cluster.move_slot(slot, from);
    assert_eq!(cluster.primary_of(slot), from);
    assert_eq!(keys.iter().filter(stays_at).count(), 250);
}
