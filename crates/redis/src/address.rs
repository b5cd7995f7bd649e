//! Where the servers are: URLs, and a connection made from one.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, Cmd, ConnectionInfo, IntoConnectionInfo, RedisError,
    RedisResult, TlsCertificates, TlsMode, Value,
};
use thiserror::Error;
use tokio::sync::Mutex;

/// An address that cannot be one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{address:?} is no address of a store: {problem}")]
pub struct AddressError {
    /// The address, without its password.
    address: String,
    problem: String,
}

/// What an address stands for.
pub(crate) enum Servers {
    One(Client),
    Cluster(ClusterClient),
    Sentinel(Mutex<SentinelClient>),
}

/// An open connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

const FORMS: &str = "redis://host:6379/0, rediss://host:6379, redis+unix:///run/redis.sock, \
    redis-cluster://a:6379,b:6379 or redis-sentinel://a:26379,b:26379/master-name";

/// How long a call may take before its connection is given up. Decisions have a deadline of their own, which is
/// shorter.
pub(crate) const GIVE_UP: Duration = Duration::from_millis(500);

/// The parts of `scheme://login@hosts/path?settings`.
struct Parts<'a> {
    /// The scheme of one server.
    scheme: &'a str,
    login: Option<&'a str>,
    hosts: Vec<&'a str>,
    path: Vec<&'a str>,
    certificates: Option<TlsCertificates>,
}

impl<'a> Parts<'a> {
    fn of(scheme: &'a str, rest: &'a str) -> Result<Self, String> {
        let (rest, settings) = rest.split_once('?').unwrap_or((rest, ""));
        let certificates = certificates(settings)?;
        if certificates.is_some() && !scheme.starts_with("rediss") {
            return Err(format!(
                "certificates are for an encrypted connection: {}://",
                scheme.replacen("redis", "rediss", 1)
            ));
        }
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let mut path = rest.split('/');
        let hosts: Vec<_> = path.next().unwrap_or_default().split(',').collect();
        if hosts.iter().any(|host| host.is_empty()) {
            return Err(format!("the name of a host is missing: {FORMS}"));
        }
        let path = path.filter(|part| !part.is_empty()).collect();
        let scheme = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
        Ok(Self { scheme, login, hosts, path, certificates })
    }

    /// The address of one server.
    fn node(&self, host: &str, database: &str) -> RedisResult<ConnectionInfo> {
        let login = self.login.map_or(String::new(), |login| format!("{login}@"));
        format!("{}://{login}{host}/{database}", self.scheme).into_connection_info()
    }
}

/// The certificates that the settings of an address name: `ca=FILE&cert=FILE&key=FILE`.
fn certificates(settings: &str) -> Result<Option<TlsCertificates>, String> {
    let (mut root_cert, mut cert, mut key) = (None, None, None);
    for setting in settings.split('&').filter(|setting| !setting.is_empty()) {
        let (name, path) = setting.split_once('=').unwrap_or((setting, ""));
        let place = match name {
            "ca" => &mut root_cert,
            "cert" => &mut cert,
            "key" => &mut key,
            other => {
                return Err(format!(
                    "{other:?} is no setting; there are ca=FILE, cert=FILE and key=FILE (PEM)"
                ));
            }
        };
        *place = Some(std::fs::read(path).map_err(|error| format!("{name}={path} cannot be read: {error}"))?);
    }
    let client_tls = match (cert, key) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        (None, None) => None,
        (Some(_), None) => return Err("cert=FILE needs key=FILE beside it".to_owned()),
        (None, Some(_)) => return Err("key=FILE needs cert=FILE beside it".to_owned()),
    };
    let any = root_cert.is_some() || client_tls.is_some();
    Ok(any.then_some(TlsCertificates { client_tls, root_cert }))
}

impl Servers {
    /// The servers at an address, and nothing else: no connection is made.
    pub(crate) fn parse(address: &str) -> Result<Self, AddressError> {
        Self::of(address).map_err(|problem| AddressError { address: without_password(address), problem })
    }

    fn of(address: &str) -> Result<Self, String> {
        let told = |error: RedisError| error.to_string();
        let (scheme, rest) =
            address.split_once("://").ok_or_else(|| format!("it should look like {FORMS}"))?;
        match scheme {
            "redis+unix" | "unix" => Client::open(address).map(Self::One).map_err(told),
            "redis" | "rediss" => {
                let parts = Parts::of(scheme, rest)?;
                let ([host], [] | [_]) = (parts.hosts.as_slice(), parts.path.as_slice()) else {
                    return Err(match parts.hosts.len() {
                        1 => "behind the host stands the number of a database, and nothing else".to_owned(),
                        _ => "several servers are a cluster (redis-cluster://) or sentinels (redis-sentinel://)"
                            .to_owned(),
                    });
                };
                let info = parts.node(host, database(parts.path.first())?).map_err(told)?;
                let client = match parts.certificates {
                    Some(certificates) => Client::build_with_tls(info, certificates),
                    None => Client::open(info),
                };
                client.map(Self::One).map_err(told)
            }
            "redis-cluster" | "rediss-cluster" => {
                let parts = Parts::of(scheme, rest)?;
                if !parts.path.is_empty() {
                    return Err("a cluster has one database, so none can be named".to_owned());
                }
                let nodes = parts.hosts.iter().map(|host| parts.node(host, ""));
                let mut builder =
                    ClusterClient::builder(nodes.collect::<RedisResult<Vec<_>>>().map_err(told)?)
                        // The client would also send again what a broken connection may have carried: a second charge.
                        .retries(0)
                        .connection_timeout(GIVE_UP)
                        .response_timeout(GIVE_UP);
                if let Some(certificates) = parts.certificates {
                    builder = builder.certs(certificates);
                }
                builder.build().map(Self::Cluster).map_err(told)
            }
            "redis-sentinel" | "rediss-sentinel" => {
                let parts = Parts::of(scheme, rest)?;
                let (master, path) = parts
                    .path
                    .split_first()
                    .ok_or("the name of the master is missing: redis-sentinel://a:26379/master-name")?;
                let settings = parts.node("master", database(path.first())?).map_err(told)?;
                let sentinels = parts.hosts.iter().map(|host| {
                    Parts { login: None, ..Parts::of(scheme, host)? }.node(host, "").map_err(told)
                });
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
                    if let Some(certificates) = &parts.certificates {
                        builder = builder
                            .set_client_to_redis_certificates(certificates.clone())
                            .set_client_to_sentinel_certificates(certificates.clone());
                    }
                    builder.build()
                };
                let client = SentinelClientBuilder::new(sentinels, *master, SentinelServerType::Master);
                client.and_then(of_sentinel).map(|client| Self::Sentinel(Mutex::new(client))).map_err(told)
            }
            other => Err(format!("{other:?} is not among {FORMS}")),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    pub(crate) async fn connect(&self) -> RedisResult<Connection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(GIVE_UP))
            .set_response_timeout(Some(GIVE_UP));
        Ok(match self {
            Self::One(client) => {
                Connection::One(client.get_multiplexed_async_connection_with_config(&config).await?)
            }
            Self::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
            Self::Sentinel(client) => {
                Connection::One(client.lock().await.get_async_connection_with_config(&config).await?)
            }
        })
    }
}

fn database<'a>(named: Option<&&'a str>) -> Result<&'a str, String> {
    let Some(&name) = named else { return Ok("") };
    name.parse::<u16>().map(|_| name).map_err(|_| format!("{name:?} is no number of a database"))
}

impl Connection {
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// A section of what a server says about itself: in a cluster, any one of them.
    pub(crate) async fn info(&mut self, section: &str) -> RedisResult<String> {
        let mut command = redis::cmd("INFO");
        command.arg(section);
        let value = match self {
            Self::One(connection) => connection.req_packed_command(&command).await?,
            Self::Cluster(connection) => {
                let node = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                connection.route_command(command, node).await?
            }
        };
        redis::from_redis_value(value.extract_error()?).map_err(Into::into)
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

/// The address as it may be shown.
pub(crate) fn without_password(address: &str) -> String {
    match (address.find("://"), address.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            let (start, rest) = (address.get(..scheme + 3), address.get(at..));
            format!("{}***{}", start.unwrap_or_default(), rest.unwrap_or_default())
        }
        _ => address.to_owned(),
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_cluster() { "Cluster" } else { "One" })
    }
}
