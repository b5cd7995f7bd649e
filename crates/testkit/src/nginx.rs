//! nginx: a server of another house behind the gateway.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::{free_port, wait_until};

/// A server. It serves the files of its folder, and takes others by PUT. It is killed when dropped.
///
/// `/hello` says so. What is below `/chunked` comes without a length, and with a trailer that was announced and one that was
/// not. All other answers say in `x-connection` on which connection they came, and in `x-expect` what was expected of it.
#[derive(Debug)]
pub struct Nginx {
    port: u16,
    folder: PathBuf,
    process: Option<Child>,
}

/// `@port@` and `@user@` are filled in. One process, which ends when it is told to and leaves nobody behind.
const SETTINGS: &str = "
@user@
daemon off;
master_process off;
pid nginx.pid;
error_log stderr warn;
events { worker_connections 256; }
http {
  access_log off;
  client_body_temp_path temporary;
  proxy_temp_path temporary;
  fastcgi_temp_path temporary;
  uwsgi_temp_path temporary;
  scgi_temp_path temporary;
  client_max_body_size 1g;
  keepalive_requests 1000000;
  add_header x-connection $connection always;
  add_header x-expect $http_expect always;
  server {
    listen 127.0.0.1:@port@;
    root files;
    dav_methods PUT;
    create_full_put_path on;
    location /hello { return 200 hello; }
    location /chunked/ {
      add_header trailer x-sum;
      add_trailer x-sum 42;
      add_trailer x-unannounced 1;
      alias files/;
    }
  }
}
";

impl Nginx {
    /// A server that answers.
    pub fn start() -> Self {
        Self::start_with(SETTINGS)
    }

    /// A server with other settings, in which `@port@` and `@user@` are filled in. It has to listen on `@port@`.
    pub fn start_with(settings: &str) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tollgate-nginx-{}-{port}", std::process::id()));
        fs::create_dir_all(folder.join("files")).expect("a folder for its files");
        // Started by root it changes to somebody who may not write here, if it is not told otherwise.
        let user = if fs::read_dir("/proc/1/fd").is_ok() { "user root;" } else { "" };
        let settings = settings.replace("@port@", &port.to_string()).replace("@user@", user);
        fs::write(folder.join("nginx.conf"), settings).expect("a file for its settings");
        let mut server = Self { port, folder, process: None };
        server.restart();
        server
    }

    /// Starts it again at the same place, and waits until it takes connections.
    pub fn restart(&mut self) {
        self.kill();
        // Servers are there, and not everybody's PATH leads to them.
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let process = Command::new("nginx")
            .args(["-p", "./", "-e", "stderr", "-c", "nginx.conf"])
            .env("PATH", path)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .spawn();
        self.process =
            Some(process.unwrap_or_else(|error| panic!("nginx: {error}; `make setup` installs it")));
        wait_until("nginx takes connections", || TcpStream::connect(self.address()).is_ok());
    }

    /// Kills it at once, as `kill -9` does.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Its address, as a policy has it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The folder whose files it serves.
    pub fn files(&self) -> PathBuf {
        self.folder.join("files")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
