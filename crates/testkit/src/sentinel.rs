//! A pair of servers with a sentinel.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::redis::wait_until;
use crate::{Flavour, RedisServer, free_port};

/// A primary and a replica, watched over by a sentinel.
#[derive(Debug)]
pub struct Sentinel {
    /// The primary at the start.
    pub primary: RedisServer,
    /// Its replica at the start.
    pub replica: RedisServer,
    sentinel: RedisServer,
}

impl Sentinel {
    /// A pair whose sentinel knows both.
    pub fn start() -> Self {
        let primary = RedisServer::start();
        let from = primary.port().to_string();
        let replica = RedisServer::start_with(Flavour::Redis, &["--replicaof", "127.0.0.1", &from]);
        wait_until("the replica has caught up", || {
            replica.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let port = free_port();
        let dir = std::env::temp_dir().join(format!("tollgate-{}-sentinel-{port}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder for the sentinel");
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor tollgate 127.0.0.1 {from} 1\n\
             sentinel down-after-milliseconds tollgate 1000\nsentinel failover-timeout tollgate 3000\n"
        );
        let file = dir.join("sentinel.conf");
        fs::write(&file, settings).expect("a file for the sentinel");
        let process = Command::new("redis-sentinel")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-sentinel; `make setup` installs it");
        let sentinel =
            RedisServer { port, dir, program: PathBuf::new(), arguments: Vec::new(), process: Some(process) };
        wait_until("the sentinel knows the replica", || {
            let replicas = sentinel.try_command(&["SENTINEL", "REPLICAS", "tollgate"]);
            replicas.is_ok_and(|list| list.contains(&replica.port().to_string()))
        });
        Self { primary, replica, sentinel }
    }

    /// The address that leads to whoever is the primary.
    pub fn url(&self) -> String {
        format!("redis-sentinel://127.0.0.1:{}/tollgate", self.sentinel.port)
    }
    /// The sentinel's own port.
    pub fn port(&self) -> u16 {
        self.sentinel.port
    }

    /// The sentinel's reply to a command, as it comes over the wire. Panics if it is an error.
    pub fn command(&self, words: &[&str]) -> String {
        self.sentinel.command(words)
    }

    /// Has the primary and the replica change places, and waits until the sentinel names the new primary.
    pub fn failover(&self) {
        let primary = || self.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "tollgate"]);
        let old = primary();
        wait_until("the sentinel begins a failover", || {
            let begun = self.sentinel.try_command(&["SENTINEL", "FAILOVER", "tollgate"]);
            begun.is_ok_and(|reply| reply.starts_with("+OK"))
        });
        wait_until("the sentinel names another primary", || primary() != old);
    }
}
