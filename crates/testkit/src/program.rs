//! Servers and clients in other languages, run as processes.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};

use crate::{free_port, wait_until};

/// Where scripts/setup.sh puts Python packages.
const PYTHON_PACKAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/python");

/// A server that listens on the port it is given as its last argument. It is killed when dropped, with all its processes.
#[derive(Debug)]
pub struct Program {
    process: Child,
    port: u16,
}

/// A command that runs a script: `node` for JavaScript, otherwise `python3` with the packages of the tests.
pub fn script(path: &str) -> Command {
    let is_node = path.ends_with(".js");
    let mut command = Command::new(if is_node { "node" } else { "python3" });
    command
        .arg(path)
        .env("PYTHONPATH", PYTHON_PACKAGES)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    command
}

/// Runs a script to its end. It panics with all that the script has printed if it fails.
pub fn run_script(path: &str, arguments: &[&str]) -> String {
    let output = script(path).args(arguments).output();
    let Output { status, stdout, stderr } =
        output.unwrap_or_else(|error| panic!("{path}: {error}; `make setup` installs what it needs"));
    let said = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{path} failed:\n{said}{}", String::from_utf8_lossy(&stderr));
    said
}

impl Program {
    /// Starts a script with these arguments and a free port, and waits until it takes connections.
    pub fn start(path: &str, arguments: &[&str]) -> Self {
        let port = free_port();
        let process = script(path).args(arguments).arg(port.to_string()).process_group(0).spawn();
        let process =
            process.unwrap_or_else(|error| panic!("{path}: {error}; `make setup` installs what it needs"));
        let program = Self { process, port };
        wait_until("a server takes connections", || TcpStream::connect(program.address()).is_ok());
        program
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Also the workers that it has started: they are in its process group.
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let _ = self.process.wait();
    }
}
