//! Redis and Valkey: one server.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
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
    /// `valkey-server`: the one named by `VALKEY_SERVER`, or the one on `PATH`, or the one that `make setup` installs.
    Valkey,
}

/// A server. It is killed when dropped.
#[derive(Debug)]
pub struct RedisServer {
    pub(crate) port: u16,
    pub(crate) dir: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) process: Option<Child>,
}

/// Where scripts/setup.sh puts what no package brings.
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/bin");

/// How long a server may take to start or to notice something.
const PATIENCE: Duration = Duration::from_secs(30);

impl Flavour {
    fn program(self) -> PathBuf {
        match self {
            Self::Redis => PathBuf::from("redis-server"),
            Self::Valkey => std::env::var_os("VALKEY_SERVER")
                .map(PathBuf::from)
                .or_else(|| on_path("valkey-server"))
                .unwrap_or_else(|| Path::new(TOOLS).join("valkey-server")),
        }
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

impl RedisServer {
    /// A Redis server that answers.
    pub fn start() -> Self {
        Self::start_with(Flavour::Redis, &[])
    }

    /// A server with further arguments.
    pub fn start_with(flavour: Flavour, arguments: &[&str]) -> Self {
        let mut server = Self::prepare(flavour);
        server.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        server.restart();
        server
    }

    /// A server with a port and a folder that does not run yet.
    pub(crate) fn prepare(flavour: Flavour) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("tollgate-{}-{number}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder for the server");
        Self { port: free_port(), dir, program: flavour.program(), arguments: Vec::new(), process: None }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The address of its Unix socket.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.socket())
    }

    fn socket(&self) -> String {
        format!("{}/redis.sock", self.dir.to_str().expect("a plain path"))
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
            .args(["--unixsocket", &self.socket(), "--unixsocketperm", "700"])
            // A replica that asks for the data gets it at once, and not after the five seconds in which others might ask.
            .args(["--repl-diskless-sync-delay", "0"])
            .args(["--cluster-config-file", &format!("nodes-{}.conf", self.port)])
            .args(&self.arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process =
            process.unwrap_or_else(|error| panic!("{:?}: {error}; `make setup` installs it", self.program));
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
        let mut reply = Vec::new();
        read_reply(&mut BufReader::new(stream), &mut reply)?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// Whether it answers, and as a primary.
    pub fn is_primary(&self) -> bool {
        self.try_command(&["INFO", "replication"]).is_ok_and(|info| info.contains("role:master"))
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

/// Reads one reply, and no further.
fn read_reply(from: &mut impl BufRead, reply: &mut Vec<u8>) -> std::io::Result<()> {
    let start = reply.len();
    from.read_until(b'\n', reply)?;
    let line = String::from_utf8_lossy(&reply[start..]).into_owned();
    let Some(line) = line.strip_suffix("\r\n") else { return Err(ErrorKind::UnexpectedEof.into()) };
    if let Some(length) = line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) {
        let start = reply.len();
        reply.resize(start + length + "\r\n".len(), 0);
        from.read_exact(&mut reply[start..])?;
    } else if let Some(count) = line.strip_prefix('*').and_then(|count| count.parse::<usize>().ok()) {
        for _ in 0..count {
            read_reply(from, reply)?;
        }
    }
    Ok(())
}

/// Waits for something that takes real time elsewhere.
pub fn wait_until(what: &str, mut happens: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happens() {
        assert!(begun.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        sleep(Duration::from_millis(20));
    }
}
