//! What a service manager hands over and is told.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{BINARY, OPEN};
use tollgate_testkit::http::{Client, Upstream};
use tollgate_testkit::{Tollgate, free_port, wait_until};

/// A manager that listens, until the test ends.
struct Manager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Manager {
    fn new() -> Self {
        let path =
            std::env::temp_dir().join(format!("tollgate-notify-{}-{}", std::process::id(), free_port()));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, path }
    }

    /// The next message but for those that say that all is alive.
    fn hears(&self) -> String {
        loop {
            let message = self.hears_anything();
            if message != "WATCHDOG=1\n" {
                return message;
            }
        }
    }

    fn hears_anything(&self) -> String {
        let mut buffer = [0; 4096];
        let read = self.socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(buffer.get(..read).unwrap()).into_owned()
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[test]
fn a_manager_is_told_of_the_start_of_reloads_and_of_the_end() {
    let manager = Manager::new();
    let upstream = Upstream::hello();
    let environment = [("NOTIFY_SOCKET", manager.path.to_str().unwrap()), ("WATCHDOG_USEC", "100000")];
    let mut tollgate =
        Tollgate::start_in(BINARY, OPEN, &["--upstream", &upstream.url()], &environment, |_| ());
    assert_eq!(manager.hears(), "READY=1\nSTATUS=at work\n");
    for _ in 0..3 {
        assert_eq!(manager.hears_anything(), "WATCHDOG=1\n");
    }
    tollgate.signal("HUP");
    let reloading = manager.hears();
    let time = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
    assert!(time.trim_end().parse::<u64>().unwrap() > 0);
    assert_eq!(manager.hears(), "READY=1\nSTATUS=at work\n");
    tollgate.write_policy("limiters: { one: { rate: many } }\n");
    tollgate.signal("HUP");
    assert!(manager.hears().starts_with("RELOADING=1\n"));
    assert_eq!(manager.hears(), "READY=1\nSTATUS=the policy was not loaded, the one before it goes on\n");
    tollgate.signal("TERM");
    assert!(manager.hears().starts_with("STOPPING=1\nSTATUS=ending"));
    assert!(tollgate.ends(Duration::from_secs(20)));
}

/// A process that is ended with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it as a manager does: with these sockets from the third on, and a variable that says for which process they are.
fn start_with(sockets: [TcpListener; 2], names: &str, flags: &[&str]) -> Process {
    let [first, second] = sockets.map(|socket| Stdio::from(OwnedFd::from(socket)));
    let script = "exec 3<&0 4<&1 0</dev/null 1>&2; LISTEN_PID=$$ LISTEN_FDS=2 exec \"$@\"";
    let process = Command::new("sh")
        .args(["-c", script, "sh", BINARY, "run"])
        .args(flags)
        .env("LISTEN_FDNAMES", names)
        .current_dir(std::env::temp_dir())
        .stdin(first)
        .stdout(second)
        .spawn();
    Process(process.unwrap())
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[test]
fn sockets_that_are_handed_over_are_the_doors() {
    let upstream = Upstream::hello();
    let ((first, at_first), (second, at_second)) = (listener(), listener());
    // What comes before the process is there waits for it.
    let mut early = Client::connect(at_first);
    let flags = ["--upstream", &upstream.url(), "--policy", "/dev/null"];
    // Addresses that are taken do not matter: nothing is opened there.
    let taken = at_first.to_string();
    let _process =
        start_with([first, second], "", &[&flags[..], &["--gateway", &taken, "--admin", &taken]].concat());
    assert_eq!(early.get("/", &[]).text(), "hello");
    let ready = || Client::connect(at_second).get("/readyz", &[]).status;
    wait_until("it is ready", || ready() == 200);
}

#[test]
fn sockets_that_are_handed_over_are_known_by_their_names() {
    let upstream = Upstream::hello();
    let ((first, at_first), (second, at_second)) = (listener(), listener());
    let flags = ["--upstream", &upstream.url(), "--policy", "/dev/null"];
    let _process = start_with([first, second], "admin:gateway", &flags);
    assert_eq!(Client::connect(at_second).get("/", &[]).text(), "hello");
    assert_eq!(Client::connect(at_first).get("/livez", &[]).text(), "alive\n");
}
