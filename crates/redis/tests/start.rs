//! How a store begins: addresses, encryption, passwords, and servers that will not do. What is wrong is told in words
//! that say what would be right, and limits are kept meanwhile.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test that cannot set itself up fails, and servers live in real time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::{Failsafe, FleetMode, Limit, Nanos};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Store};
use tollgate_redis::{BuildError, RedisStore};
use tollgate_testkit::{Cluster, Flavour, Proxy, RedisServer, Sentinel, TlsServer};

use crate::common::*;

/// What is said of an address under which no store can be had. Limits are kept all the same.
async fn problem(address: &str) -> String {
    let node = unready_node(address);
    let begun = Instant::now();
    let error = node.shared().ready().await.expect_err(address).to_string();
    assert!(begun.elapsed() < Duration::from_secs(3), "{error}: told after {:?}", begun.elapsed());
    let health = node.shared().health();
    let problem = health.problem.unwrap_or_default();
    assert!(health.degraded && error.ends_with(&problem), "{error:?}, and then {problem:?}");
    let rule = define_local(&node, "per user", once(3));
    assert_eq!(admitted(&*node, rule, "alice").await, 3, "{error}");
    assert!(!charge(&*node, rule, "bob").await.degraded.is_empty());
    error
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in {text:?}");
    }
}

/// Does everything that a store can do, with every kind of limit. Nothing fails.
async fn do_everything(store: &RedisStore) {
    let hour = Nanos::from_secs(3600);
    let limits = [
        Limit::token_bucket(10, 1, hour),
        Limit::fixed_window(10, hour, tollgate_core::fixed_window::WindowStart::FirstCall),
        Limit::sliding_window(10, hour),
        Limit::interval_bucket(10, 1, hour),
        Limit::sliding_log(10, hour),
        Limit::leases(10, hour),
        Limit::fleet(10, (1, 5), FleetMode::Allocation, hour),
        Limit::fleet(10, (1, 5), FleetMode::Total, hour),
    ];
    for (number, limit) in limits.into_iter().enumerate() {
        let (limit, name) = (limit.unwrap(), format!("limit {number}"));
        let rule = store.define(&name, limit).unwrap();
        let of = |id, critical| {
            let ask = Ask { critical, ..lease(id) };
            Charge { rule, key: name.as_str().into(), ask }
        };
        // More than there are, some of them critical.
        for id in 1..=14 {
            assert!(store.charge(&[of(id, id % 3 == 0)], None).await.is_ok(), "{name}");
        }
        assert!(!store.charge(&[of(15, false)], None).await.unwrap().allowed, "{name}");
        for op in [Op::Estimate, Op::Charge, Op::Renew, Op::Undo, Op::Refund] {
            for charge in [of(1, false), of(3, true)] {
                assert!(store.apply(op, charge, None).await.is_ok(), "{op:?} of {name}");
            }
        }
        store.in_progress(rule, name.as_str().into(), None).await.expect(&name);
        let other = Limit::token_bucket(20, 1, hour).unwrap();
        if number < 4 {
            store.redefine(rule, other, None).unwrap();
            assert!(store.charge(&[of(16, false)], None).await.unwrap().allowed, "{name}");
        }
        store.reset(rule, name.as_str().into()).await.expect(&name);
        assert!(store.charge(&[of(17, false)], None).await.unwrap().allowed, "{name}");
    }
    assert_eq!(store.stats().failed, 0, "{:?}", store.stats());
}

async fn open(address: &str) -> RedisStore {
    let store = RedisStore::builder(address)
        .secret("the tests' own")
        .deadline(Duration::from_secs(2))
        .build()
        .unwrap();
    store.ready().await.unwrap();
    store
}

fn with_ca(server: &TlsServer) -> String {
    format!("{}?ca={}", server.url(), server.ca().display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_connection_trusts_the_authority_that_was_named_and_no_other() {
    let server = TlsServer::start();
    do_everything(&open(&with_ca(&server)).await).await;
    assert_says(&problem(&server.url()).await, &["certificate", "?ca=FILE"]);
    let other = TlsServer::start();
    let address = format!("{}?ca={}", server.url(), other.ca().display());
    assert_says(&problem(&address).await, &["certificate", "?ca=FILE"]);
    // The certificate is for localhost, too.
    let address = with_ca(&server).replace("127.0.0.1", "localhost");
    open(&address).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_wants_a_certificate_gets_the_one_that_was_named() {
    let server = TlsServer::start_for_certified_clients();
    let (certificate, key) = (server.client_certificate().display(), server.client_key().display());
    let address = format!("{}&cert={certificate}&key={key}", with_ca(&server));
    do_everything(&open(&address).await).await;
    assert_says(&problem(&with_ca(&server)).await, &["cert=FILE", "key=FILE"]);
    let half = format!("{}&cert={certificate}", with_ca(&server));
    let error = RedisStore::check_address(&half).unwrap_err().to_string();
    assert_says(&error, &["cert=FILE needs key=FILE"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_connection_to_a_plain_port_and_a_plain_one_to_an_encrypted_port_are_told() {
    let server = TlsServer::start();
    let plain = format!("redis://127.0.0.1:{}", server.port());
    assert_says(&problem(&plain).await, &["rediss://"]);
    let encrypted = format!("rediss://127.0.0.1:{}", server.server.port());
    assert_says(&problem(&encrypted).await, &["redis://", "TLS"]);
}

/// A server whose default user has a password.
fn locked(password: &str) -> RedisServer {
    // Its own launcher asks it without a password whether it is there; an error is an answer.
    RedisServer::start_with(Flavour::Redis, &["--requirepass", password])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_is_taken_from_the_address_and_shown_to_nobody() {
    let server = locked("p@ss:/?#%");
    let with = |login: &str| server.url().replace("redis://", &format!("redis://{login}@"));
    do_everything(&open(&with(":p%40ss%3A%2F%3F%23%25")).await).await;
    do_everything(&open(&with("default:p%40ss%3A%2F%3F%23%25")).await).await;
    for login in [":hunter2", "default:hunter2", "nobody:hunter2"] {
        let address = with(login);
        let builder = RedisStore::builder(&*address).secret("hunter2");
        let shown = format!("{builder:?}");
        let store = builder.build().unwrap();
        let error = store.ready().await.unwrap_err();
        assert_says(&error.to_string(), &["user or password are wrong", "redis://user:password@host"]);
        let shown = format!("{shown} {store:?} {error:?} {error} {:?} {}", store.health(), store.address());
        assert!(!shown.contains("hunter2"), "{shown}");
        problem(&address).await;
    }
    assert_says(&problem(&server.url()).await, &["it wants a password: redis://:password@host"]);
    // Whoever has no password is not asked for one.
    let open_server = RedisServer::start();
    let needless = open_server.url().replace("redis://", "redis://:hunter2@");
    let told = problem(&needless).await;
    assert_says(&told, &["or it wants none"]);
    assert!(!told.contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_get_the_login_that_is_their_own() {
    let sentinel = Sentinel::start();
    sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">p@ss%"]);
    let with = |settings: &str| format!("{}?{settings}", sentinel.url());
    do_everything(&open(&with("sentinel_pass=p%40ss%25")).await).await;
    do_everything(&open(&with("sentinel_user=default&sentinel_pass=p%40ss%25")).await).await;
    assert_says(&problem(&sentinel.url()).await, &["sentinel_pass=PASSWORD"]);
    assert_says(&problem(&with("sentinel_pass=hunter2")).await, &["sentinel_pass=PASSWORD"]);
    let store = RedisStore::builder(with("sentinel_pass=hunter2")).build().unwrap();
    assert!(!store.address().contains("hunter2"), "{}", store.address());
}

#[tokio::test]
async fn an_address_that_is_none_does_not_show_its_password_either() {
    for address in [
        "redis://user:hunter2@host:99999",
        "redis://user:hunter2@",
        "redis://user:hun/ter2@host",
        "redis://user:hunter2/x@host",
        "redis://user:hunter2?x@host",
        "redis://user:hunter2#x@host",
        "redis://user:?hunter2@host",
        "redis://user:?ca=hunter2@host",
        "redis://user:hunter2@host/x",
        "redis://user:hunter2@host?x=1",
        "redis://user:hunter2@x@host:a",
        "redis:/user:hunter2@host",
        "user:hunter2@host:6379",
        "hunter2@host",
        "http://user:hunter2@host",
        "redis-cluster://user:hunter2@a,b/1",
        "redis-sentinel://user:hunter2@a,b",
        "redis-sentinel://a,b/name?sentinel_user=me&sentinel_pass=hunter2&foo=1",
        "redis-sentinel://a,b/name?sentinel_pass=hunter2%",
        "redis-sentinel://a,b/name?sentinel_pass=hun@ter2",
        "redis+unix:///run/redis.sock?db=x&pass=hunter2",
        "redis+unix:///run/redis.sock?pass=hunter2&db=x",
        "redis+unix://user:hunter2@host/x",
        "redis+unix:///run/redis.sock?password=hunter2",
        "redis+unix:///run/redis.sock?pass=a&pass=hunter2&foo=1",
        "redis://host:6379?password=hunter2",
        "redis://host:6379?PASSWD=hunter2",
        "redis://host:6379?secret=a&api_token=hunter2&pwd=hunter2&x_key=hunter2",
        "redis-sentinel://h:26379/name?sentinel_password=hunter2",
        "redis-sentinel://h:26379/name?sentinel_pass=a&x_pass=hunter2",
        "redis-sentinel://:hunter2@h:26379/name?sentinel_pass=hunter2&foo=1",
        "redis://user:hunter2%40host:6379",
        "redis-cluster://a:6379,user:hunter2%40host:6379",
        "redis://user:hunter2:host:6379",
        "redis://user:hunter2",
        "redis://h:6379#hunter2",
        "redis:/user:hunter2",
        "redis:user:hunter2%40host",
    ] {
        let error = RedisStore::check_address(address).expect_err(address);
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("hun") && !shown.contains("ter2"), "{shown}");
    }
    let store =
        RedisStore::builder("redis+unix:///run/redis.sock?user=me&pass=hunter2&db=1").build().unwrap();
    assert_eq!(store.address(), "redis+unix:///run/redis.sock?user=me&pass=***&db=1");
    let store = RedisStore::builder("redis://me:hunter2@127.0.0.1:1/2").build().unwrap();
    assert_eq!(store.address(), "redis://***@127.0.0.1:1/2");
}

/// The command that a message advises, for a user of that name.
fn advised(message: &str, user: &str) -> Vec<String> {
    let command = message.split('`').find(|part| part.starts_with("ACL SETUSER name ")).expect(message);
    command.replace("SETUSER name", &format!("SETUSER {user}")).split(' ').map(str::to_owned).collect()
}

/// A user without rights is told which are needed, gets those and no others, and everything works.
async fn enough_rights(address: &str, servers: &[&RedisServer]) {
    let run = |words: &[&str]| servers.iter().for_each(|server| drop(server.command(words)));
    run(&["ACL", "SETUSER", "limiter", "reset", "on", ">secret"]);
    let address = address.replacen("://", "://limiter:secret@", 1);
    let node = unready_node(&address);
    let error = node.shared().ready().await.unwrap_err().to_string();
    assert_says(&error, &["the user may not do this"]);
    let rights = advised(&error, "limiter");
    run(&rights.iter().map(String::as_str).collect::<Vec<_>>());
    let begun = Instant::now();
    while node.shared().health().degraded {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", node.shared().health());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let store = open(&address).await;
    assert_eq!(store.health().warnings, Vec::<String>::new());
    do_everything(&store).await;
    until("they are counted", || store.health().nodes == 2).await;
    // What was denied before the rights were given is of no interest. Nothing is denied from now on.
    run(&["ACL", "LOG", "RESET"]);
    let more = define_local(&node, "more", once(5));
    assert_eq!(admitted(&*node, more, "alice").await, 5);
    for server in servers {
        assert_eq!(server.command(&["ACL", "LOG"]), "*0\r\n");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_are_advised_are_enough_for_everything() {
    let server = RedisServer::start();
    enough_rights(&server.url(), &[&server]).await;
    server.command(&["ACL", "DELUSER", "limiter"]);
    enough_rights(&format!("{}/3", server.url()), &[&server]).await;
    let valkey = RedisServer::start_with(Flavour::Valkey, &[]);
    enough_rights(&valkey.url(), &[&valkey]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_are_advised_are_enough_with_sentinels() {
    let pair = Sentinel::start();
    enough_rights(&pair.url(), &[&pair.primary, &pair.replica]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_that_are_advised_are_enough_in_a_cluster() {
    let cluster = Cluster::start(Flavour::Redis);
    enough_rights(&cluster.url(), &cluster.nodes().iter().collect::<Vec<_>>()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_kept_in_the_database_that_was_named() {
    let server = RedisServer::start();
    let store = open(&format!("{}/5", server.url())).await;
    do_everything(&store).await;
    let keyspace = server.command(&["INFO", "keyspace"]);
    assert!(keyspace.contains("db5:keys=") && !keyspace.contains("db0:"), "{keyspace}");
    let told = problem(&format!("{}/99", server.url())).await;
    assert_says(&told, &["DB index is out of range", "CONFIG GET databases"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_of_this_machine_leads_to_the_same_server() {
    let server = RedisServer::start();
    let store = open(&server.unix_url()).await;
    do_everything(&store).await;
    assert!(server.command(&["INFO", "keyspace"]).contains("db0:keys="));
    open(&format!("{}?db=7", server.unix_url())).await;
    assert!(server.command(&["INFO", "keyspace"]).contains("db7:keys="));
    assert_says(&problem("redis+unix:///nowhere/redis.sock").await, &["No such file"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_too_old_is_told_and_done_without() {
    let server = RedisServer::start();
    let about = server.command(&["INFO", "server"]);
    let version = about.lines().find(|line| line.starts_with("redis_version:")).unwrap().trim();
    let proxy = Proxy::in_front_of(server.port());
    for (old, is_old) in [("5.0.", true), ("6.0.", true), ("6.1.", true), ("6.2.", false)] {
        let mut old = format!("redis_version:{old}");
        old.push_str(&"9".repeat(version.len() - old.len()));
        proxy.rewrite(version.as_bytes(), old.as_bytes());
        if is_old {
            let number = old.strip_prefix("redis_version:").unwrap();
            assert_says(&problem(&proxy.url()).await, &[number, "too old", "6.2 or newer", "Valkey"]);
        } else {
            open(&proxy.url()).await;
        }
    }
    open(&RedisServer::start_with(Flavour::Valkey, &[]).url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_would_forget_limits_when_it_is_full_is_warned_of() {
    let server = RedisServer::start_with(Flavour::Redis, &["--maxmemory-policy", "volatile-ttl"]);
    let warnings = open(&server.url()).await.health().warnings;
    assert_says(&warnings.join(", "), &["maxmemory-policy is volatile-ttl", "set it to noeviction"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(open(&server.url()).await.health().warnings, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_of_a_cluster_that_would_forget_limits_is_named() {
    let cluster = Cluster::start(Flavour::Redis);
    assert_eq!(open(&cluster.url()).await.health().warnings, Vec::<String>::new());
    let node = cluster.nodes().iter().find(|node| node.is_primary()).unwrap();
    node.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let warnings = open(&cluster.url()).await.health().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_says(&warnings[0], &["maxmemory-policy of", &node.port().to_string(), "is allkeys-lru"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_belongs_to_no_cluster_yet_is_told() {
    let server = RedisServer::start_with(Flavour::Redis, &["--cluster-enabled", "yes"]);
    let address = server.url().replace("redis://", "redis-cluster://");
    assert_says(&problem(&address).await, &["serves any slot", "redis-cli --cluster check"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_of_another_kind_than_the_server_is_told() {
    let cluster = Cluster::start(Flavour::Redis);
    assert_says(&problem(&cluster.nodes()[0].url()).await, &["node of a cluster", "redis-cluster://"]);
    let server = RedisServer::start();
    let hosts = server.url().replace("redis://", "");
    assert_says(
        &problem(&format!("redis-cluster://{hosts}")).await,
        &["this is no cluster", "write redis://"],
    );
    assert_says(
        &problem(&format!("redis-sentinel://{hosts}/main")).await,
        &["no sentinel", "write redis://"],
    );
    let pair = Sentinel::start();
    let sentinel = format!("127.0.0.1:{}", pair.port());
    let told = problem(&format!("redis://{sentinel}")).await;
    assert_says(&told, &["this is a sentinel", "redis-sentinel://host:26379/master-name"]);
    let told = problem(&format!("redis-sentinel://{sentinel}/other")).await;
    assert_says(&told, &["no sentinel knows a master of this name", "SENTINEL MASTERS"]);
    let told = problem(&format!("redis-cluster://{sentinel}")).await;
    assert_says(&told, &["redis-sentinel://"]);
    let told = problem(&format!("redis://127.0.0.1:{}", pair.replica.port())).await;
    assert_says(&told, &["this is a replica", "sentinels"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_that_are_not_there_are_told() {
    assert_says(&problem("redis://127.0.0.1:1").await, &["refused"]);
    assert_says(&problem("redis-cluster://127.0.0.1:1,127.0.0.1:2").await, &["refused"]);
    assert_says(&problem("redis-sentinel://127.0.0.1:1/main").await, &["refused"]);
    problem("redis://no-such-host.invalid").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_secret_is_warned_of() {
    let server = RedisServer::start();
    let store = RedisStore::builder(server.url()).build().unwrap();
    store.ready().await.unwrap();
    assert_says(&store.health().warnings.join(", "), &["no secret is set", "the same secret on every node"]);
    assert_eq!(open(&server.url()).await.health().warnings, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_with_different_secrets_or_prefixes_know_nothing_of_each_other() {
    let server = RedisServer::start();
    let names = [("one", "tg"), ("two", "tg"), ("one", "tg2"), ("one", "a-b_c.d:e/f"), ("one", "x")];
    let build = |(secret, prefix): (&str, &str)| {
        RedisStore::builder(server.url())
            .secret(secret)
            .prefix(prefix)
            .deadline(Duration::from_secs(2))
            .build()
    };
    let mut stores = Vec::new();
    for name in names {
        let store = build(name).unwrap();
        store.ready().await.unwrap();
        let rule = store.define("per user", once(5)).unwrap();
        assert_eq!(admitted(&store, rule, "alice").await, 5, "{name:?}");
        let rule = store.define("in progress", leases(1)).unwrap();
        let charge = Charge { rule, key: "alice".into(), ask: lease(1) };
        assert!(store.charge(&[charge], None).await.unwrap().allowed);
        stores.push(store);
    }
    for name in names {
        let again = build(name).unwrap();
        again.ready().await.unwrap();
        let rule = again.define("per user", once(5)).unwrap();
        assert_eq!(admitted(&again, rule, "alice").await, 0, "{name:?}: the same names are the same store");
    }
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused_with_what_would() {
    let builder = || RedisStore::builder("redis://127.0.0.1:1");
    let long = "x".repeat(65);
    for prefix in ["", "{tg}", "a b", "a{", "}", "ä", "a\n", "a*", &long] {
        let error = builder().prefix(prefix).build().unwrap_err();
        assert!(matches!(error, BuildError::Prefix(_)), "{error:?}");
        assert_says(&error.to_string(), &["up to 64 letters, digits and any of `-_.:/`"]);
    }
    builder().prefix("x".repeat(64)).build().unwrap();
    for deadline in [Duration::ZERO, Duration::from_micros(1), Duration::from_secs(61), Duration::MAX] {
        let error = builder().deadline(deadline).build().unwrap_err();
        assert_says(&error.to_string(), &["the deadline is", "from 1ms to 60s"]);
    }
    for heartbeat in [Duration::ZERO, Duration::from_secs(3601), Duration::MAX] {
        let error = builder().heartbeat(heartbeat).build().unwrap_err();
        assert_says(&error.to_string(), &["the heartbeat is", "from 10ms to 3600s"]);
    }
    for waiting in [0, 1, usize::MAX] {
        builder().max_waiting(waiting).build().unwrap();
    }
}

#[tokio::test]
async fn an_address_that_is_none_is_refused_with_one_that_would_do() {
    let one = "redis://host:6379/0";
    for (address, says) in [
        ("", one),
        ("redis", one),
        ("127.0.0.1:6379", one),
        ("http://x", one),
        ("redis://", one),
        ("redis://:6379", "name:6379"),
        ("redis://a:b:c", "name:6379"),
        ("redis://host:99999", "a port from 1 to 65535"),
        ("redis://host:0", "a port from 1 to 65535"),
        ("redis://host:", "a port from 1 to 65535"),
        ("redis://::1:6379", "[::1]:6379"),
        ("redis://[::1", "name:6379"),
        ("redis://[::g]:1", "[::1]:6379"),
        ("redis://a b", "name:6379"),
        ("redis://h#insecure", "name:6379"),
        ("redis://a,b", "redis-cluster://"),
        ("redis://h/x", "/0, /1 and so on"),
        ("redis://h/-1", "/0, /1 and so on"),
        ("redis://h/99999", "/0, /1 and so on"),
        ("redis://h/0/1", one),
        ("redis-cluster://", "redis-cluster://a:6379,b:6379"),
        ("redis-cluster://a,", "redis-cluster://a:6379,b:6379"),
        ("redis-cluster://a,b:x", "name:6379"),
        ("redis-cluster://a/3", "redis-cluster://a:6379,b:6379"),
        ("redis-sentinel://a", "redis-sentinel://a:26379/master-name"),
        ("redis-sentinel:///name", "redis-sentinel://a:26379,b:26379/master-name"),
        ("redis-sentinel://a/name/x", "/0, /1 and so on"),
        ("redis-sentinel://a/name/0/x", "redis-sentinel://a:26379/master-name/0"),
        ("rediss://h?ca=/nonexistent", "ca=/nonexistent cannot be read: No such file"),
        ("rediss://h?ca", "ca= cannot be read"),
        ("rediss://h?foo=1", "\"foo\" is no setting; there are ca=FILE, cert=FILE and key=FILE"),
        ("rediss://h?ca=/dev/null", "ca=/dev/null is no PEM file with -----BEGIN CERTIFICATE-----"),
        ("rediss-cluster://h?cert=/dev/null", "cert=/dev/null is no PEM file"),
        (
            "rediss-sentinel://h/name?key=/dev/null",
            "key=/dev/null is no PEM file with -----BEGIN PRIVATE KEY-----",
        ),
        ("redis://h?ca=/etc/ssl/ca.pem", "rediss://"),
        ("redis-cluster://h?ca=/etc/ssl/ca.pem", "rediss-cluster://"),
        ("redis+unix://", "redis+unix:///run/redis.sock"),
        ("redis+unix:///run/redis.sock?db=x", "redis+unix:///run/redis.sock?db=0"),
        ("redis+unix:///run/redis.sock?foo=1", "redis+unix:///run/redis.sock?db=0"),
        ("rediss+unix:///run/redis.sock", "redis+unix:///run/redis.sock"),
        ("REDIS://h", one),
        ("\0", one),
        ("redis://\0", "name:6379"),
        ("redis://user:p%ZZ@h", "written %25"),
        ("redis://user:100%@h", "written %25"),
        ("redis://user:%ff@h", "UTF-8"),
        ("redis-sentinel://h/name?sentinel_pass=100%", "written %25"),
        ("redis-sentinel://h/name?sentinel_user=me", "needs sentinel_pass=PASSWORD"),
        ("redis-sentinel://h/name?pass=me", "sentinel_pass=PASSWORD"),
        ("rediss://h?sentinel_pass=me", "\"sentinel_pass\" is no setting"),
    ] {
        let error = RedisStore::check_address(address).expect_err(address);
        assert_says(&error.to_string(), &["is no address of a store", says]);
    }
    for address in [
        "redis://h",
        "redis://h/",
        "redis://h:1/15",
        "redis://[::1]:6379/1",
        "redis://user:password@10.0.0.1",
        "redis-cluster://a,b:1,[::1]:2",
        "redis-cluster://user:password@a,b/",
        "rediss-cluster://a",
        "redis-sentinel://a,b/name",
        "redis-sentinel://:password@a:1,b:2/name/3",
        "rediss-sentinel://a/name",
        "redis+unix:///run/redis.sock",
        "unix:///run/redis.sock",
    ] {
        assert_eq!(RedisStore::check_address(address), Ok(()));
    }
    // Whoever starts with one all the same runs in its failure mode, and tells why.
    for address in ["redis://host:99999", "http://host", "rediss://h?ca=/nonexistent"] {
        assert_says(&problem(address).await, &[address, "is no address of a store"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_know_how_many_they_are_while_some_come_and_go() {
    let server = RedisServer::start();
    let mut nodes = nodes(&server.url(), 3).await;
    nodes.pop().unwrap().shared().close().await;
    until("the closed one is no longer counted", || nodes.iter().all(|node| node.nodes() == 2)).await;
    // The last one who holds it has dropped it.
    let gone: Arc<Failsafe<RedisStore>> = nodes.pop().unwrap();
    drop(Arc::into_inner(gone).unwrap());
    until("the dropped one is no longer counted", || nodes[0].nodes() == 1).await;
    nodes.push(node(&server.url()).await);
    until("a new one is counted", || nodes.iter().all(|node| node.nodes() == 2)).await;
    assert_eq!(nodes[0].shared().stats().states_lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_has_never_reached_its_store_keeps_the_share_that_it_was_told_of() {
    let mut server = RedisServer::start();
    server.kill();
    let store = RedisStore::builder(server.url()).secret("s").expected_nodes(4).build().unwrap();
    let node = Failsafe::new(store);
    node.shared().ready().await.unwrap_err();
    let rule = define_local(&node, "per user", once(100));
    assert_eq!(admitted(&node, rule, "alice").await, 25);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_that_speaks_something_else_is_told_in_one_line() {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let told = problem(&format!("redis://127.0.0.1:{port}")).await;
    assert!(!told.contains('\n'), "{told:?}");
}
