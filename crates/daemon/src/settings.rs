//! What `tollgate run` is told, and by whom: a flag goes before the environment, and that before the policy file.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use tollgate_core::policy::{Server, address_in_url, parse_address, parse_server};

/// Where a policy is looked for when nobody says where it is.
pub const USUAL_POLICY: &str = "tollgate.yaml";

/// The policy file of commands that were given none: TOLLGATE_POLICY, or ./tollgate.yaml if there is one.
pub fn policy_path() -> Option<PathBuf> {
    let usual = || Some(PathBuf::from(USUAL_POLICY)).filter(|path| path.exists());
    variable("TOLLGATE_POLICY").map(PathBuf::from).or_else(usual)
}

/// Where the admin door is when nobody says where.
pub(crate) const USUAL_ADMIN: &str = "127.0.0.1:8083";

/// Flags of `tollgate run`, and variables of the environment for each of them.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArguments {
    /// The policy file. Without one: ./tollgate.yaml if it is there, else a demonstration
    #[arg(long, env = "TOLLGATE_POLICY", value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The service to protect, such as http://127.0.0.1:9000; several are separated by commas
    #[arg(long, env = "TOLLGATE_UPSTREAM", value_name = "URL", value_delimiter = ',')]
    pub upstream: Vec<String>,
    /// Where the gateway listens, or `off` [default: 127.0.0.1:8080]
    #[arg(long, env = "TOLLGATE_GATEWAY", value_name = "ADDRESS")]
    pub gateway: Option<String>,
    /// Where the admin door listens, or `off` [default: 127.0.0.1:8083]
    #[arg(long, env = "TOLLGATE_ADMIN", value_name = "ADDRESS")]
    pub admin: Option<String>,
    /// The token that the admin door asks for. Without one it listens on this machine only
    #[arg(long, env = "TOLLGATE_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// The store, in place of the policy's: `memory`, or the address of a Redis
    #[arg(long, env = "TOLLGATE_STORE", value_name = "URL", hide_env_values = true)]
    pub store: Option<String>,
    /// Threads that serve requests [default: as many as there are processors]
    #[arg(long, env = "TOLLGATE_THREADS", value_name = "N", value_parser = threads)]
    pub threads: Option<u16>,
    /// The access log: `stdout`, a file, or `off`, in place of the policy's
    #[arg(long, env = "TOLLGATE_ACCESS_LOG", value_name = "WHERE")]
    pub access_log: Option<String>,
}

/// A variable of the environment. One that is empty says nothing: that is how many set those that they do not need.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

/// A door: where it listens, and how it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Door {
    /// What it is called in messages.
    pub name: &'static str,
    /// The flag that sets it.
    pub flag: &'static str,
    /// Where it listens; none if it is closed.
    pub address: Option<SocketAddr>,
}

impl Door {
    /// The first that is said, in the order of precedence.
    pub fn choose(
        name: &'static str,
        flag: &'static str,
        flag_or_environment: Option<&str>,
        policy: Option<&str>,
        usual: &str,
    ) -> anyhow::Result<Self> {
        let text = flag_or_environment.or(policy).unwrap_or(usual).trim();
        let address = match text {
            "off" => None,
            text => {
                Some(address(flag, text, usual).map_err(|error| anyhow::anyhow!("{error}, or {flag} off"))?)
            }
        };
        Ok(Self { name, flag, address })
    }

    /// The same door where a socket was opened for it, which goes before all that is said of its address. One that is off
    /// stays so.
    pub(crate) fn opened_by(mut self, listener: Option<&std::net::TcpListener>) -> anyhow::Result<Self> {
        if let (Some(address), Some(listener)) = (&mut self.address, listener) {
            *address = listener.local_addr()?;
        }
        Ok(self)
    }

    /// Takes the address, unless that was done before. An error says which door it is and how to move it.
    pub(crate) async fn open(
        &self,
        opened: Option<std::net::TcpListener>,
    ) -> anyhow::Result<Option<tokio::net::TcpListener>> {
        let Some(address) = self.address else { return Ok(None) };
        if let Some(listener) = opened {
            return Ok(Some(tokio::net::TcpListener::from_std(listener)?));
        }
        let Self { name, flag, .. } = self;
        match listen(address) {
            Ok(listener) => Ok(Some(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let other = SocketAddr::new(address.ip(), address.port().wrapping_add(1000).max(1024));
                bail!(
                    "{address} is taken already: the {name} cannot listen there. Move it with {flag} {other}, or close it with {flag} off"
                )
            }
            Err(error) => {
                bail!("the {name} cannot listen at {address}: {error}. Move it with {flag} ADDRESS")
            }
        }
    }
}

fn threads(text: &str) -> Result<u16, String> {
    let threads = text.trim().parse().ok().filter(|threads| (1..=1024).contains(threads));
    threads.ok_or_else(|| "write a number from 1 to 1024".to_owned())
}

/// The address that a flag names. An error says what to write.
pub(crate) fn address(flag: &str, text: &str, usual: &str) -> Result<SocketAddr, String> {
    parse_address(text).ok_or_else(|| match address_in_url(text) {
        Some(address) => format!("{flag} {text:?} is a URL, and no address: write {flag} {address}"),
        None => {
            let port = text.rsplit(':').next().filter(|port| port.parse::<u16>().is_ok());
            let port = port.unwrap_or_else(|| usual.rsplit(':').next().unwrap_or("8080"));
            format!("{flag} {text:?} is no address: write {flag} 127.0.0.1:{port}")
        }
    })
}

fn listen(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    // Connections of the process before this one, which are still winding down, do no harm.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(4096)
}

/// Servers that were named on the command line.
pub fn upstreams(named: &[String]) -> anyhow::Result<Vec<Server>> {
    let servers = named
        .iter()
        .map(|text| parse_server(text).map_err(|problem| anyhow::anyhow!("--upstream: {problem}")));
    servers.collect()
}
