//! Where the servers are: URLs, and a connection made from one.

use std::net::Ipv6Addr;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError, RedisResult, TlsCertificates, TlsMode, Value,
};
use thiserror::Error;
use tokio::sync::Mutex;

/// An address that cannot be one.
///
/// ```
/// let error = tollgate_redis::RedisStore::check_address("redis://cache:99999").unwrap_err();
/// assert!(error.to_string().contains("with a port from 1 to 65535"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{address:?} is no address of a store: {problem}")]
pub struct AddressError {
    /// The address, without its password.
    address: String,
    problem: String,
}

/// What an address stands for.
pub(crate) struct Servers {
    kind: Kind,
    encrypted: bool,
}

enum Kind {
    One(Client),
    Cluster(ClusterClient),
    /// The sentinels' client, and which primary they named last.
    Sentinel(Mutex<(SentinelClient, String)>),
    /// The address is none: nobody ever answers.
    Nowhere(AddressError),
}

/// An open connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

const FORMS: &str = "redis://host:6379/0, rediss://host:6379, redis+unix:///run/redis.sock, \
    redis-cluster://a:6379,b:6379 or redis-sentinel://a:26379,b:26379/master-name";

const ENCODED: &str =
    "In a user name or password `@`, `:`, `/`, `?`, `#` and `%` are written %40, %3A, %2F, %3F, %23 and %25";

/// How long a call may take before its connection is given up, when decisions have this deadline.
pub(crate) fn give_up(deadline: Duration) -> Duration {
    (2 * deadline).max(Duration::from_millis(500))
}

/// The parts of `scheme://login@hosts/path?settings`.
struct Parts<'a> {
    /// The scheme of one server.
    scheme: &'a str,
    login: Option<&'a str>,
    hosts: Vec<&'a str>,
    path: Vec<&'a str>,
    settings: Settings,
}

/// What stands behind the question mark.
#[derive(Default)]
struct Settings {
    certificates: Option<TlsCertificates>,
    /// The login of the sentinels themselves.
    sentinel_user: Option<String>,
    sentinel_pass: Option<String>,
}

impl<'a> Parts<'a> {
    fn of(scheme: &'a str, rest: &'a str) -> Result<Self, String> {
        let (rest, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let encrypted = scheme.starts_with("rediss");
        if !encrypted && ["ca=", "cert=", "key="].iter().any(|setting| settings.contains(setting)) {
            return Err(format!(
                "certificates are for an encrypted connection: {}://",
                scheme.replacen("redis", "rediss", 1)
            ));
        }
        let settings = Settings::of(settings, scheme.ends_with("-sentinel"))?;
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        if login.is_some_and(|login| login.contains(['/', '?', '#'])) {
            return Err(ENCODED.to_owned());
        }
        login.map_or(Ok(String::new()), decoded)?;
        let mut path = rest.split('/');
        let hosts: Vec<_> = path.next().unwrap_or_default().split(',').collect();
        for host in &hosts {
            check_host(host)?;
        }
        let path = path.filter(|part| !part.is_empty()).collect();
        let scheme = if encrypted { "rediss" } else { "redis" };
        Ok(Self { scheme, login, hosts, path, settings })
    }

    /// The address of one server.
    fn node(&self, host: &str, database: &str) -> Result<ConnectionInfo, String> {
        let login = self.login.map_or(String::new(), |login| format!("{login}@"));
        let info = format!("{}://{login}{host}/{database}", self.scheme).into_connection_info();
        info.map_err(|error| format!("{error}: it should look like {FORMS}"))
    }
}

/// Whether this is `host`, `host:port` or `[::1]:port`.
fn check_host(host: &str) -> Result<(), String> {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((ip, port)) => (ip.parse::<Ipv6Addr>().map_or("", |_| ip), port),
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let shown = if is_plain(host) { format!("{host:?}") } else { "this".to_owned() };
    if host.is_empty() {
        Err(format!("the name of a host is missing: {FORMS}"))
    } else if name.is_empty()
        || name.contains(|c: char| c.is_whitespace() || c.is_control() || "#\\%\"<>".contains(c))
    {
        Err(format!("{shown} is no host: it should look like name:6379, 10.0.0.1:6379 or [::1]:6379"))
    } else if !port.is_empty() && !port.strip_prefix(':').is_some_and(is_port) {
        Err(format!(
            "{shown} is no host and port: it should look like name:6379, with a port from 1 to 65535"
        ))
    } else {
        Ok(())
    }
}

/// What `%40` and the like stand for.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let code = rest.split_first_chunk::<2>().and_then(|(code, behind)| {
            rest = behind;
            u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok()
        });
        bytes.push(code.ok_or("a % stands before two hexadecimal digits; by itself it is written %25")?);
    }
    String::from_utf8(bytes).map_err(|_| "user names and passwords are UTF-8".to_owned())
}

impl Settings {
    /// `ca=FILE&cert=FILE&key=FILE`, and for sentinels `sentinel_user=NAME&sentinel_pass=PASSWORD`.
    fn of(settings: &str, of_sentinels: bool) -> Result<Self, String> {
        let known = match of_sentinels {
            true => {
                "there are ca=FILE, cert=FILE and key=FILE (PEM), sentinel_user=NAME and sentinel_pass=PASSWORD"
            }
            false => "there are ca=FILE, cert=FILE and key=FILE (PEM)",
        };
        let (mut root_cert, mut cert, mut key) = (None, None, None);
        let mut read = Self::default();
        // What stands before an `@` may be a password, and is not repeated.
        let shown = |text: &str| if settings.contains('@') { "***".to_owned() } else { text.to_owned() };
        for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            let (place, holds) = match name {
                "ca" => (&mut root_cert, "CERTIFICATE"),
                "cert" => (&mut cert, "CERTIFICATE"),
                "key" => (&mut key, "PRIVATE KEY"),
                _ if settings.contains('@') => {
                    return Err(format!("behind the question mark stand settings: {known}. {ENCODED}"));
                }
                "sentinel_user" if of_sentinels => {
                    read.sentinel_user = Some(decoded(value)?);
                    continue;
                }
                "sentinel_pass" if of_sentinels => {
                    read.sentinel_pass = Some(decoded(value)?);
                    continue;
                }
                other => return Err(format!("{other:?} is no setting; {known}")),
            };
            let told = |problem: String| format!("{name}={} {problem}", shown(value));
            let bytes = std::fs::read(value).map_err(|error| told(format!("cannot be read: {error}")))?;
            if !String::from_utf8_lossy(&bytes)
                .lines()
                .any(|line| line.starts_with("-----BEGIN") && line.contains(holds))
            {
                return Err(told(format!("is no PEM file with -----BEGIN {holds}-----")));
            }
            *place = Some(bytes);
        }
        if read.sentinel_user.is_some() && read.sentinel_pass.is_none() {
            return Err("sentinel_user=NAME needs sentinel_pass=PASSWORD beside it".to_owned());
        }
        let client_tls = match (cert, key) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            (Some(_), None) => return Err("cert=FILE needs key=FILE beside it".to_owned()),
            (None, Some(_)) => return Err("key=FILE needs cert=FILE beside it".to_owned()),
        };
        if root_cert.is_some() || client_tls.is_some() {
            read.certificates = Some(TlsCertificates { client_tls, root_cert });
        }
        Ok(read)
    }
}

impl Servers {
    /// The servers at an address, and nothing else: no connection is made. At what is no address nobody answers.
    pub(crate) fn at(address: &str, give_up: Duration) -> Self {
        let kind = Kind::of(address, give_up).unwrap_or_else(|problem| {
            Kind::Nowhere(AddressError { address: without_password(address), problem })
        });
        Self { kind, encrypted: address.starts_with("rediss") }
    }

    /// What is wrong with the address.
    pub(crate) fn check(self) -> Result<(), AddressError> {
        match self.kind {
            Kind::Nowhere(error) => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(_))
    }

    pub(crate) fn has_sentinels(&self) -> bool {
        matches!(self.kind, Kind::Sentinel(_))
    }

    /// Whether the sentinels name another primary than the one that was connected to last.
    pub(crate) async fn names_another(&self) -> bool {
        let Kind::Sentinel(sentinels) = &self.kind else { return false };
        let (sentinels, named) = &mut *sentinels.lock().await;
        let primary = sentinels.async_get_client().await;
        primary.is_ok_and(|primary| primary.get_connection_info().addr().to_string() != *named)
    }

    pub(crate) async fn connect(&self, give_up: Duration) -> RedisResult<Connection> {
        self.kind.connect(give_up).await.map_err(|error| {
            if error.kind() == ErrorKind::InvalidClientConfig {
                return error;
            }
            let text = error.to_string();
            let hung_up =
                ["reset by peer", "end of file", "roken pipe"].iter().any(|part| text.contains(part));
            let hint = match self.encrypted {
                false if hung_up => "it hung up; if it speaks TLS, write rediss:// in place of redis://",
                true if hung_up || error.is_timeout() || text.contains("timed out") => {
                    "no encrypted connection; if it does not speak TLS, write redis:// in place of rediss://"
                }
                _ => return error,
            };
            RedisError::from((ErrorKind::Io, hint, text))
        })
    }
}

impl Kind {
    fn of(address: &str, give_up: Duration) -> Result<Self, String> {
        let told = |error: RedisError| error.to_string();
        let (scheme, rest) =
            address.split_once("://").ok_or_else(|| format!("it should look like {FORMS}"))?;
        match scheme {
            "redis+unix" | "unix" => {
                let (_, settings) = rest.split_once('?').unwrap_or((rest, ""));
                let is_known = |name: &str| matches!(name, "db" | "user" | "pass");
                let mut names =
                    settings.split('&').map(|setting| setting.split('=').next().unwrap_or_default());
                let client = match names.all(|name| name.is_empty() || is_known(name)) {
                    true => Client::open(address).map(Self::One).map_err(told),
                    false => Err("db, user and pass are its settings".to_owned()),
                };
                client.map_err(|problem| {
                    format!(
                        "{problem}: it should look like redis+unix:///run/redis.sock?db=0&user=name&pass=password"
                    )
                })
            }
            "redis" | "rediss" => {
                let parts = Parts::of(scheme, rest)?;
                let ([host], [] | [_]) = (parts.hosts.as_slice(), parts.path.as_slice()) else {
                    return Err(match parts.hosts.len() {
                        1 => "behind the host stands the number of a database, and nothing else: redis://host:6379/0"
                            .to_owned(),
                        _ => "several servers are a cluster (redis-cluster://) or sentinels (redis-sentinel://)"
                            .to_owned(),
                    });
                };
                let info = parts.node(host, database(parts.path.first())?)?;
                let client = match parts.settings.certificates {
                    Some(certificates) => Client::build_with_tls(info, certificates),
                    None => Client::open(info),
                };
                client.map(Self::One).map_err(told)
            }
            "redis-cluster" | "rediss-cluster" => {
                let parts = Parts::of(scheme, rest)?;
                if !parts.path.is_empty() {
                    return Err(
                        "a cluster has one database, so none can be named: redis-cluster://a:6379,b:6379"
                            .to_owned(),
                    );
                }
                let nodes = parts.hosts.iter().map(|host| parts.node(host, ""));
                let mut builder = ClusterClient::builder(nodes.collect::<Result<Vec<_>, _>>()?)
                    // The client would also send again what a broken connection may have carried: a second charge.
                    .retries(0)
                    .connection_timeout(give_up)
                    .response_timeout(give_up);
                if let Some(certificates) = parts.settings.certificates {
                    builder = builder.certs(certificates);
                }
                builder.build().map(Self::Cluster).map_err(told)
            }
            "redis-sentinel" | "rediss-sentinel" => {
                let parts = Parts::of(scheme, rest)?;
                let [master, path @ ..] = parts.path.as_slice() else {
                    return Err(
                        "the name of the master is missing: redis-sentinel://a:26379/master-name".to_owned()
                    );
                };
                let ([] | [_]) = path else {
                    return Err(
                        "behind the name of the master stands the number of a database, and nothing else: \
                                redis-sentinel://a:26379/master-name/0"
                            .to_owned(),
                    );
                };
                let settings = parts.node("master", database(path.first())?)?;
                let sentinels = parts
                    .hosts
                    .iter()
                    .map(|host| Parts { login: None, ..Parts::of(scheme, host)? }.node(host, ""));
                let sentinels: Vec<_> =
                    sentinels.map(|sentinel| Ok(sentinel?.addr().clone())).collect::<Result<_, String>>()?;
                let of_sentinel = |builder: SentinelClientBuilder| {
                    let settings = settings.redis_settings();
                    let mut builder = builder.set_client_to_redis_db(settings.db());
                    if let Some(user) = settings.username() {
                        builder = builder.set_client_to_redis_username(user);
                    }
                    if let Some(password) = settings.password() {
                        builder = builder.set_client_to_redis_password(password);
                    }
                    if parts.scheme == "rediss" {
                        builder = builder
                            .set_client_to_redis_tls_mode(TlsMode::Secure)
                            .set_client_to_sentinel_tls_mode(TlsMode::Secure);
                    }
                    let Settings { certificates, sentinel_user, sentinel_pass } = &parts.settings;
                    if let Some(user) = sentinel_user {
                        builder = builder.set_client_to_sentinel_username(user);
                    }
                    if let Some(password) = sentinel_pass {
                        builder = builder.set_client_to_sentinel_password(password);
                    }
                    if let Some(certificates) = certificates {
                        builder = builder
                            .set_client_to_redis_certificates(certificates.clone())
                            .set_client_to_sentinel_certificates(certificates.clone());
                    }
                    builder.build()
                };
                let client = SentinelClientBuilder::new(sentinels, *master, SentinelServerType::Master);
                client
                    .and_then(of_sentinel)
                    .map(|client| Self::Sentinel(Mutex::new((client, String::new()))))
                    .map_err(told)
            }
            other => Err(format!("{other:?} is not among {FORMS}")),
        }
    }

    async fn connect(&self, give_up: Duration) -> RedisResult<Connection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(give_up))
            .set_response_timeout(Some(give_up));
        Ok(match self {
            Self::One(client) => {
                Connection::One(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Self::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
            Self::Nowhere(error) => {
                return Err((ErrorKind::InvalidClientConfig, "wrong address", error.to_string()).into());
            }
            Self::Sentinel(sentinels) => {
                let (sentinels, named) = &mut *sentinels.lock().await;
                let primary = sentinels.async_get_client().await.map_err(of_sentinels)?;
                *named = primary.get_connection_info().addr().to_string();
                Connection::One(primary.get_multiplexed_async_connection_with_config(&config).await?)
            }
        })
    }
}

/// What a sentinel says of a login concerns its own, not that of the servers behind it.
fn of_sentinels(error: RedisError) -> RedisError {
    let of_login = matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        || error.kind() == ErrorKind::AuthenticationFailed;
    if !of_login {
        return error;
    }
    let advice = "the sentinels want a login of their own: ?sentinel_user=NAME&sentinel_pass=PASSWORD, where the default \
                  user's name may be left out";
    RedisError::from((ErrorKind::InvalidClientConfig, "login", format!("{error} ({advice})")))
}

fn database<'a>(named: Option<&&'a str>) -> Result<&'a str, String> {
    let Some(&name) = named else { return Ok("") };
    name.parse::<u16>()
        .map(|_| name)
        .map_err(|_| format!("{name:?} is no number of a database: /0, /1 and so on"))
}

impl Connection {
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// A section of what each server says about itself, in a cluster with its address.
    pub(crate) async fn info(&mut self, section: &str) -> RedisResult<Vec<(Option<String>, String)>> {
        let mut command = redis::cmd("INFO");
        command.arg(section);
        match self {
            Self::One(connection) => {
                let value = connection.req_packed_command(&command).await?.extract_error()?;
                Ok(vec![(None, redis::from_redis_value(value)?)])
            }
            Self::Cluster(connection) => {
                let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                match connection.route_command(command.clone(), primaries).await {
                    Ok(value) => {
                        let nodes: Vec<(String, String)> = redis::from_redis_value(value.extract_error()?)?;
                        Ok(nodes.into_iter().map(|(node, text)| (Some(node), text)).collect())
                    }
                    // While one is away, any other answers for all.
                    Err(error) if error.code().is_none() => {
                        let any = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                        let value = connection.route_command(command, any).await?.extract_error()?;
                        Ok(vec![(None, redis::from_redis_value(value)?)])
                    }
                    Err(error) => Err(error),
                }
            }
        }
    }

    pub(crate) async fn send(&mut self, command: &Cmd) -> RedisResult<Value> {
        let value = match self {
            Self::One(connection) => connection.req_packed_command(command).await?,
            Self::Cluster(connection) => connection.req_packed_command(command).await?,
        };
        value.extract_error()
    }

    /// Sends a command to where an error has pointed: the node that a slot has moved to, or is moving to.
    pub(crate) async fn send_to(&mut self, command: &Cmd, error: &RedisError) -> Option<RedisResult<Value>> {
        let Self::Cluster(connection) = self else { return None };
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? };
        let asks = error.code() == Some("ASK");
        let mut pipeline = redis::pipe();
        if asks {
            // A node that is only taking the slot over answers who asks.
            pipeline.cmd("ASKING").ignore();
        }
        pipeline.add_command(command.clone());
        let answers = connection.route_pipeline(pipeline, 0, usize::from(asks) + 1, node).await;
        Some(answers.and_then(|mut answers| answers.pop().unwrap_or(Value::Nil).extract_error()))
    }
}

/// The address as it may be shown. What may be a password is not.
pub(crate) fn without_password(address: &str) -> String {
    let (scheme, rest) = address.split_at(address.find("://").map_or(0, |at| at + "://".len()));
    let (place, settings) = rest.split_once('?').map_or((rest, None), |(place, rest)| (place, Some(rest)));
    let (login, place) = place.rsplit_once('@').map_or(("", place), |(_, place)| ("***@", place));
    if settings.is_some_and(|settings| settings.contains('@')) || !place.split(['/', ',']).all(is_plain) {
        return format!("{scheme}***");
    }
    let settings = settings.map_or(String::new(), |settings| {
        let shown: Vec<_> = settings.split('&').map(shown_setting).collect();
        format!("?{}", shown.join("&"))
    });
    format!("{scheme}{login}{place}{settings}")
}

/// Whether this can be no more than a host with its port, or the part of a path: no login whose `@` was forgotten or
/// encoded.
fn is_plain(part: &str) -> bool {
    let port = part.rsplit_once(']').map_or(part, |(_, port)| port);
    let mut words = port.split(':').skip(1);
    let is_port = words.next().is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()));
    is_port && words.next().is_none() && !part.contains(['%', '#'])
}

fn shown_setting(setting: &str) -> String {
    let Some((name, _)) = setting.split_once('=') else { return setting.to_owned() };
    let small = name.to_ascii_lowercase();
    let is_secret = ["pass", "secret", "token", "pwd", "key", "auth"].iter().any(|word| small.contains(word));
    // That one is the name of a file.
    if is_secret && name != "key" { format!("{name}=***") } else { setting.to_owned() }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_cluster() { "Cluster" } else { "One" })
    }
}
