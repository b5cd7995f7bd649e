//! The real binary, started on free ports and gone with the test.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::free_port;
use crate::http::{Client, Response};

/// A running `tollgate`.
pub struct Tollgate {
    process: Child,
    /// Where its gateway is.
    pub gateway: SocketAddr,
    /// Where its admin door is.
    pub admin: SocketAddr,
    folder: PathBuf,
    said: Arc<Mutex<Vec<String>>>,
}

impl Tollgate {
    /// Starts `binary run` with a policy and further flags, and waits until it is ready. Its folder holds the policy, as
    /// `tollgate.yaml`, and whatever the test has put there by `prepare`.
    pub fn start(binary: &str, policy: &str, flags: &[&str]) -> Self {
        Self::start_in(binary, policy, flags, &[], |_| ())
    }

    /// The same, with variables of the environment, and with files beside the policy.
    pub fn start_in(
        binary: &str,
        policy: &str,
        flags: &[&str],
        environment: &[(&str, &str)],
        prepare: impl FnOnce(&Path),
    ) -> Self {
        let [gateway, admin] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let folder =
            std::env::temp_dir().join(format!("tollgate-test-{}-{}", std::process::id(), gateway.port()));
        std::fs::create_dir_all(&folder).unwrap();
        prepare(&folder);
        std::fs::write(folder.join("tollgate.yaml"), policy).unwrap();
        let mut process = Command::new(binary)
            .arg("run")
            .args(["--gateway", &gateway.to_string(), "--admin", &admin.to_string()])
            .args(["--policy", "tollgate.yaml"])
            .args(flags)
            .envs(environment.iter().copied())
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let listen = |from: Box<dyn std::io::Read + Send>| {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                for line in BufReader::new(from).lines().map_while(Result::ok) {
                    said.lock().unwrap().push(line);
                }
            });
        };
        listen(Box::new(process.stdout.take().unwrap()));
        listen(Box::new(process.stderr.take().unwrap()));
        let mut tollgate = Self { process, gateway, admin, folder, said };
        tollgate.wait_until_ready();
        tollgate
    }

    fn wait_until_ready(&mut self) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                panic!("it has ended with {status}:\n{}", self.said().join("\n"));
            }
            let answer =
                Client::try_connect(self.admin).and_then(|mut client| client.try_get("/readyz", &[]));
            if answer.is_ok_and(|answer| answer.status == 200) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "not ready:\n{}", self.said().join("\n"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Everything that it has said so far, on standard output and standard error.
    pub fn said(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has said something, and returns the line.
    pub fn says(&self, part: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.said().into_iter().find(|line| line.contains(part)) {
                return line;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{part:?} was never said:\n{}",
                self.said().join("\n")
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A new connection with the gateway.
    pub fn client(&self) -> Client {
        Client::connect(self.gateway)
    }

    /// Asks the gateway on a connection of its own.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.client().get(path, headers)
    }

    /// Asks the admin door.
    pub fn ask_admin(&self, method: &str, path: &str, body: &str) -> Response {
        let mut client = Client::connect(self.admin);
        let headers = [("content-type", "application/json")];
        client.ask(method, path, &headers, body.as_bytes())
    }

    /// A number of its metrics, by the beginning of its line.
    pub fn metric(&self, sample: &str) -> f64 {
        let text = self.ask_admin("GET", "/metrics", "").text();
        let line =
            text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')));
        line.unwrap_or_else(|| panic!("no {sample} in:\n{text}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until a number of its metrics is this one.
    pub fn comes_to(&self, sample: &str, value: f64) {
        let begun = Instant::now();
        loop {
            let now = self.metric(sample);
            if now == value {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{sample} is {now} and not {value}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until nothing is in progress, and says so if a thread has panicked.
    pub fn comes_to_rest(&self) {
        for sample in
            ["tollgate_requests_in_flight", "tollgate_http_requests_in_flight", "tollgate_panics_total"]
        {
            self.comes_to(sample, 0.0);
        }
        let panicked = self.said().into_iter().find(|line| line.contains("panicked"));
        assert_eq!(panicked, None, "a thread has panicked");
    }

    /// Bytes of memory that it has now.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Files and connections that it has open now.
    pub fn open_files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }

    /// Its folder, which holds `tollgate.yaml`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes another policy into its file, as an editor does: whole, by another file in its place.
    pub fn write_policy(&self, policy: &str) {
        let new = self.folder.join("tollgate.yaml.new");
        let mut file = std::fs::File::create(&new).unwrap();
        file.write_all(policy.as_bytes()).unwrap();
        std::fs::rename(new, self.folder.join("tollgate.yaml")).unwrap();
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal by its name: `TERM`, `HUP`.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until it has ended, and says whether it ended well.
    pub fn ends(&mut self, within: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.success();
            }
            assert!(begun.elapsed() < within, "it has not ended:\n{}", self.said().join("\n"));
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Tollgate {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
        if std::thread::panicking() {
            eprintln!("the gateway had said:\n{}", self.said().join("\n"));
        }
    }
}
