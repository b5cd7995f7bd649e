//! Redis and Valkey: one server, a cluster, a pair with a sentinel.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::free_port;

/// Whose server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// `redis-server`.
    Redis,
    /// `valkey-server`, where it is installed; its path may stand in `VALKEY_SERVER`.
    Valkey,
}

/// A server. It is killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    dir: PathBuf,
    program: String,
    arguments: Vec<String>,
    process: Option<Child>,
}

/// How long a server may take to start or to notice something.
const PATIENCE: Duration = Duration::from_secs(30);

impl Flavour {
    fn program(self) -> String {
        match self {
            Self::Redis => "redis-server".to_owned(),
            Self::Valkey => std::env::var("VALKEY_SERVER").unwrap_or_else(|_| "valkey-server".to_owned()),
        }
    }

    /// Whether the server is installed.
    pub fn is_installed(self) -> bool {
        Command::new(self.program())
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    }
}

impl RedisServer {
    /// A Redis server that answers.
    pub fn start() -> Self {
        Self::start_with(Flavour::Redis, &[])
    }

    /// A server with further arguments.
    pub fn start_with(flavour: Flavour, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let port = free_port();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tollgate-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder for the server");
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut server = Self { port, dir, program: flavour.program(), arguments, process: None };
        server.restart();
        server
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its process.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Kills it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again on the same port, empty, and waits until it answers.
    pub fn restart(&mut self) {
        self.kill();
        let process = Command::new(&self.program)
            .args([
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--port",
                &self.port.to_string(),
            ])
            .args(["--dir", self.dir.to_str().expect("a plain path")])
            .args(["--cluster-config-file", &format!("nodes-{}.conf", self.port)])
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process =
            process.unwrap_or_else(|error| panic!("{}: {error}; `make setup` installs it", self.program));
        self.process = Some(process);
        wait_until("the server answers", || self.try_command(&["PING"]).is_ok());
    }

    /// Stops the process without ending it: connections stay open and nothing is answered.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.pid().expect("a server that runs");
        let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {signal} {pid}");
    }

    /// The reply to a command, as it comes over the wire. Panics if it is an error.
    pub fn command(&self, words: &[&str]) -> String {
        let reply = self.try_command(words).expect("a server that answers");
        assert!(!reply.starts_with('-'), "{words:?}: {reply}");
        reply
    }

    /// The reply to a command, or why there is none.
    pub fn try_command(&self, words: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut message = format!("*{}\r\n", words.len());
        for word in words {
            message.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        stream.write_all(message.as_bytes())?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// A number from `INFO`.
    pub fn info(&self, section: &str, field: &str) -> Option<f64> {
        let info = self.command(&["INFO", section]);
        let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        line.trim().parse().ok()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Waits for something that takes real time elsewhere.
fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    }
}

/// Three primaries, each with a replica.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<RedisServer>,
}

impl Cluster {
    /// A cluster that serves all slots, and whose replicas have caught up.
    pub fn start(flavour: Flavour) -> Self {
        let arguments = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-require-full-coverage",
            "no",
        ];
        let nodes: Vec<_> = (0..6).map(|_| RedisServer::start_with(flavour, &arguments)).collect();
        let addresses = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port()));
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(addresses)
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .output()
            .expect("redis-cli; `make setup` installs it");
        assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stdout));
        let cluster = Self { nodes };
        wait_until("the cluster is whole", || cluster.is_whole());
        cluster
    }

    fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let info = node.command(&["CLUSTER", "INFO"]);
            let replication = node.command(&["INFO", "replication"]);
            info.contains("cluster_state:ok")
                && (replication.contains("role:master") || replication.contains("master_link_status:up"))
        })
    }

    /// The address of all nodes.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }

    /// All nodes.
    pub fn nodes_mut(&mut self) -> &mut [RedisServer] {
        &mut self.nodes
    }

    /// The nodes that are primaries at this moment.
    pub fn primaries_mut(&mut self) -> impl Iterator<Item = &mut RedisServer> {
        self.nodes.iter_mut().filter(|node| {
            node.try_command(&["INFO", "replication"]).is_ok_and(|info| info.contains("role:master"))
        })
    }
}

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
            RedisServer { port, dir, program: String::new(), arguments: Vec::new(), process: Some(process) };
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
}
