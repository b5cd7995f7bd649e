//! The gateway, as a policy has it: where it listens, whom it passes requests on to, and how long it waits for what.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::condition::Condition;
use super::plan::Request;
use super::{Facts, Kind, Policy, StoreChoice};
use crate::time::Nanos;

/// Settings of the gateway. Where a policy says nothing, they are as by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gateway {
    /// Where it listens: an address, or `off`.
    pub listen: Option<String>,
    /// Its certificate, if it speaks TLS.
    pub tls: Option<GatewayTls>,
    /// Whether connections begin with a line of the PROXY protocol.
    pub proxy_protocol: bool,
    /// Whether paths may have `%2F`, which limiters read as no slash. Servers behind the gateway may think otherwise.
    pub encoded_slashes: bool,
    /// Whether TRACE requests are forwarded.
    pub allow_trace: bool,
    /// Headers that are added to forwarded requests besides `X-Forwarded-*`.
    pub added_headers: AddedHeaders,
    /// The most connections to each server, and the longest queue for them, unless the upstream has its own.
    pub connections: ConnectionLimits,
    /// Whom requests are passed on to. The first whose conditions hold is taken.
    pub upstreams: Vec<Upstream>,
    /// How long it waits for what.
    pub timeouts: Timeouts,
    /// How large requests may be.
    pub sizes: Sizes,
    /// Where the access log goes: `stdout`, a file, or nowhere.
    pub access_log: Option<String>,
    /// Whether the access log holds only what was not answered well.
    pub log_only_refused: bool,
    /// Whether logs show addresses of clients as they are, and not only a keyed hash of them.
    pub log_full_addresses: bool,
}

/// Headers that are added to forwarded requests only if the policy asks for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedHeaders {
    /// `X-Real-IP`: the address of the client.
    pub real_ip: bool,
    /// `Via`: `1.1 tollgate`.
    pub via: bool,
}

/// How many connections there may be to each server, and how many requests may wait for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The most connections, if the policy sets it.
    pub max_connections: Option<u64>,
    /// The most requests in the queue, if the policy sets it.
    pub max_queue: Option<u64>,
}

impl ConnectionLimits {
    /// What applies where a policy sets nothing, to connections as well as to the queue.
    pub const DEFAULT: u64 = 1024;

    /// These limits, and those of another where these set nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            max_connections: self.max_connections.or(other.max_connections),
            max_queue: self.max_queue.or(other.max_queue),
        }
    }
}

/// A certificate and its key, in files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayTls {
    /// The chain of certificates (PEM).
    pub certificate: String,
    /// The private key (PEM).
    pub key: String,
    /// Who must have signed the certificates of clients (PEM). Without it clients need none.
    pub client_ca: Option<String>,
}

/// Servers that do the same work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Upstream {
    /// Its name.
    pub name: Arc<str>,
    /// The servers, who take turns.
    pub servers: Vec<Server>,
    /// How it is found out whether they are well. Without it they are thought to be until a connection fails.
    pub health: Option<Health>,
    /// What is spoken with them.
    pub protocol: Protocol,
    /// Who must have signed the certificates of its servers (PEM), in place of those whom the machine trusts.
    pub ca: Option<String>,
    /// How many requests each of its servers can work on at once, if that is what utilization is measured by.
    pub workers: Option<u64>,
    /// Its own limits of connections, where they differ from those of the gateway.
    pub connections: ConnectionLimits,
    pub(super) matches: Vec<Condition>,
}

impl Upstream {
    /// Servers for all requests.
    pub fn of(name: &str, servers: Vec<Server>) -> Self {
        Self { name: Arc::from(name), servers, ..Self::default() }
    }
}

/// A server that requests are passed on to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// Whether TLS is spoken with it.
    pub is_tls: bool,
    /// Its name or address; an IPv6 address has no brackets here.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        match self.host.contains(':') {
            true => write!(f, "{scheme}://[{}]:{}", self.host, self.port),
            false => write!(f, "{scheme}://{}:{}", self.host, self.port),
        }
    }
}

/// What is spoken with the servers of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/2 for gRPC, and where TLS has agreed on it; else HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2.
    Http2,
}

/// How it is found out whether servers are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is asked for. An answer from 200 to 399 is a good one.
    pub path: String,
    /// How often.
    pub every: Nanos,
    /// How long an answer may take.
    pub timeout: Nanos,
}

/// How long the gateway waits for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// For the head of a request, from its first byte on, and for the first byte of a connection.
    pub head: Nanos,
    /// For more of the body of a request, and for a client to take what is there for it.
    pub body: Nanos,
    /// For a connection with a server.
    pub connect: Nanos,
    /// For a connection to become free, when all connections to a server are in use.
    pub queue: Nanos,
    /// For the head of an answer once the request has gone, and for more of its body.
    pub answer: Nanos,
    /// For the whole body of a request, and for the whole of an answer, if there is a bound.
    pub whole: Option<Nanos>,
    /// For the next request on a connection.
    pub idle: Nanos,
    /// For those who send requests here to hear that it is not ready any more, before no more connections are taken.
    pub notice: Nanos,
    /// For requests in progress when the gateway is told to end.
    pub drain: Nanos,
}

impl Default for Timeouts {
    fn default() -> Self {
        let [head, body, connect, queue, answer, idle, drain] =
            [10, 30, 3, 3, 60, 75, 30].map(Nanos::from_secs);
        Self { head, body, connect, queue, answer, whole: None, idle, notice: Nanos::ZERO, drain }
    }
}

/// How large requests may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes of a head.
    pub head: u64,
    /// Bytes of a body, if there is a bound.
    pub body: Option<u64>,
    /// Bytes a second that clients send of a body, and take of an answer, at least: in the long run, and while it is they who
    /// are being waited for.
    pub least_rate: u64,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { head: 64 << 10, body: None, least_rate: 500 }
    }
}

impl Policy {
    /// The same, but for the servers to which requests are passed on that are for nobody else. Whatever else is said of those stays.
    #[must_use]
    pub fn with_servers(mut self, servers: Vec<Server>) -> Self {
        let is_for_all = |upstream: &Upstream| upstream.matches.is_empty();
        let upstreams = &mut self.gateway.upstreams;
        let known = upstreams.iter().find(|upstream| is_for_all(upstream)).cloned();
        upstreams.retain(|upstream| !is_for_all(upstream));
        // Each has a name of its own, by which metrics know it.
        let is_free = |name: &&str| upstreams.iter().all(|other| *other.name != **name);
        let name = ["default", "all", "others"].into_iter().find(is_free).unwrap_or("from-the-command-line");
        upstreams.push(Upstream { servers, ..known.unwrap_or_else(|| Upstream::of(name, Vec::new())) });
        self
    }

    /// The same, but for where states are kept.
    #[must_use]
    pub fn with_store(mut self, store: StoreChoice) -> Self {
        self.store = store;
        self
    }

    /// Whether utilization is that of the servers behind the gateway.
    pub fn watches_upstreams(&self) -> bool {
        let watches = |limiter: &super::Limiter| matches!(&limiter.kind, Kind::Worker(worker) if worker.watches_upstreams);
        self.limiters.iter().any(watches)
    }

    /// Whether anything depends on the host of a request: a limiter, a class, or the choice of the upstream.
    pub fn depends_on_host(&self) -> bool {
        let by_limiter = |limiter: &super::Limiter| {
            limiter.per.contains(&super::Part::Host) || limiter.matches.iter().any(Condition::reads_host)
        };
        self.limiters.iter().any(by_limiter)
            || self.classes.iter().any(|class| class.conditions.iter().any(Condition::reads_host))
            || self
                .gateway
                .upstreams
                .iter()
                .any(|upstream| upstream.matches.iter().any(Condition::reads_host))
    }

    /// Whom a request is passed on to, by its place among the gateway's upstreams.
    pub fn upstream_of(&self, facts: &Facts<'_>) -> Option<usize> {
        let upstreams = &self.gateway.upstreams;
        // Most have one for everything, and then nothing has to be looked at.
        if upstreams.first().is_some_and(|first| first.matches.is_empty()) {
            return Some(0);
        }
        let request = Request::new(facts, self.address.of(facts));
        upstreams.iter().position(|upstream| {
            upstream.matches.is_empty() || upstream.matches.iter().any(|condition| condition.holds(&request))
        })
    }
}

/// Reads an address to listen at. `localhost` is this machine.
///
/// ```
/// use tollgate_core::policy::parse_address;
///
/// assert_eq!(parse_address("localhost:8080"), parse_address("127.0.0.1:8080"));
/// assert_eq!(parse_address("http://localhost:8080"), None);
/// ```
pub fn parse_address(text: &str) -> Option<SocketAddr> {
    match text.strip_prefix("localhost:") {
        Some(port) => Some(SocketAddr::from(([127, 0, 0, 1], port.parse().ok()?))),
        None => text.parse().ok(),
    }
}

/// The address in what looks like a URL, for those who have written one where an address belongs.
pub fn address_in_url(text: &str) -> Option<&str> {
    let rest = text.split_once("://")?.1;
    rest.split('/').next().filter(|address| parse_address(address).is_some())
}

/// Reads the address of a server: `http://10.0.0.5:9000`. The error says what would be right.
///
/// ```
/// use tollgate_core::policy::parse_server;
///
/// assert_eq!(parse_server("http://localhost:9000").unwrap().port, 9000);
/// assert!(parse_server("localhost:9000").unwrap_err().contains("http://localhost:9000"));
/// ```
pub fn parse_server(text: &str) -> Result<Server, String> {
    let text = text.trim();
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (scheme.to_ascii_lowercase(), rest),
        None => return Err(format!("{text:?} is no address of a server: write http://{text}")),
    };
    let is_tls = match scheme.as_str() {
        "http" => false,
        "https" => true,
        other => return Err(format!("{other:?} is not spoken here: write http:// or https://")),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['/', '?', '#']) {
        return Err(format!(
            "{text:?} has a path: requests keep the path that they came with, so write {scheme}://{}",
            rest.split(['/', '?', '#']).next().unwrap_or_default()
        ));
    }
    if rest.contains('@') {
        return Err(
            "a server has no user and no password here: take away what stands before the `@`".to_owned()
        );
    }
    let (host, port) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) if host.parse::<std::net::Ipv6Addr>().is_ok() => (host, port),
        Some((host, _)) => return Err(format!("{host:?} is no IPv6 address")),
        None if rest.matches(':').count() > 1 => {
            return Err(format!("{rest:?} needs brackets: write {scheme}://[::1]:9000"));
        }
        None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
    if host.is_empty() || !host.chars().all(is_name) {
        return Err(format!("{host:?} is no name of a host: write {scheme}://localhost:9000"));
    }
    let port = match port.strip_prefix(':') {
        None => Ok(if is_tls { 443 } else { 80 }),
        Some(digits) => digits.parse().ok().filter(|port| *port > 0).ok_or(digits),
    };
    match port {
        Ok(port) => Ok(Server { is_tls, host: host.to_owned(), port }),
        Err(digits) => Err(format!("{digits:?} is no port: there are 1 to 65535")),
    }
}
