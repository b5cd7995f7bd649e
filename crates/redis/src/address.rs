//! Where the servers are: URLs, and a connection made from one.

use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::SingleNodeRoutingInfo;
use redis::sentinel::{SentinelClient, SentinelNodeConnectionInfo, SentinelServerType};
use redis::{AsyncConnectionConfig, Client, Cmd, RedisConnectionInfo, RedisError, RedisResult, Value};
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

impl Servers {
    /// The servers at an address, and nothing else: no connection is made.
    pub(crate) fn parse(address: &str) -> Result<Self, AddressError> {
        let wrong = |problem: String| AddressError { address: without_password(address), problem };
        let refused = |error: redis::RedisError| wrong(error.to_string());
        let (scheme, rest) =
            address.split_once("://").ok_or_else(|| wrong(format!("it should look like {FORMS}")))?;
        match scheme {
            "redis" | "rediss" | "redis+unix" | "unix" => {
                if rest.contains(',') {
                    let problem = "several servers are a cluster (redis-cluster://) or sentinels \
                        (redis-sentinel://)";
                    return Err(wrong(problem.to_owned()));
                }
                Ok(Self::One(Client::open(address).map_err(refused)?))
            }
            "redis-cluster" | "rediss-cluster" => {
                let scheme = scheme.trim_end_matches("-cluster");
                let (login, hosts) =
                    rest.rsplit_once('@').map_or((None, rest), |(login, hosts)| (Some(login), hosts));
                let hosts = hosts.trim_end_matches('/');
                if hosts.contains('/') {
                    return Err(wrong("a cluster has one database, so none can be named".to_owned()));
                }
                let node = |host: &str| match login {
                    Some(login) => format!("{scheme}://{login}@{host}"),
                    None => format!("{scheme}://{host}"),
                };
                let client = ClusterClient::builder(hosts.split(',').map(node))
                    // The client would also send again what a broken connection may have carried: a second charge.
                    .retries(0)
                    .connection_timeout(GIVE_UP)
                    .response_timeout(GIVE_UP)
                    .build();
                Ok(Self::Cluster(client.map_err(refused)?))
            }
            "redis-sentinel" => {
                let (login, rest) =
                    rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
                let mut parts = rest.split('/');
                let hosts = parts.next().unwrap_or_default();
                let master = parts.next().filter(|name| !name.is_empty());
                let master = master.ok_or_else(|| {
                    wrong(
                        "the name of the master is missing: redis-sentinel://a:26379/master-name".to_owned(),
                    )
                })?;
                let database = match parts.next().filter(|database| !database.is_empty()) {
                    Some(database) => database
                        .parse::<i64>()
                        .map_err(|_| wrong(format!("{database:?} is no number of a database")))?,
                    None => 0,
                };
                let sentinels = hosts.split(',').map(|host| format!("redis://{host}")).collect();
                let mut settings = RedisConnectionInfo::default().set_db(database);
                if let Some(login) = login {
                    let (user, password) = login.split_once(':').unwrap_or(("", login));
                    if !user.is_empty() {
                        settings = settings.set_username(user);
                    }
                    settings = settings.set_password(password);
                }
                let node = SentinelNodeConnectionInfo::default().set_redis_connection_info(settings);
                let client = SentinelClient::build(
                    sentinels,
                    master.to_owned(),
                    Some(node),
                    SentinelServerType::Master,
                );
                Ok(Self::Sentinel(Mutex::new(client.map_err(refused)?)))
            }
            other => Err(wrong(format!("{other:?} is not among {FORMS}"))),
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

impl Connection {
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

fn without_password(address: &str) -> String {
    match (address.find("://"), address.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            let (start, rest) = (address.get(..scheme + 3), address.get(at..));
            format!("{}***{}", start.unwrap_or_default(), rest.unwrap_or_default())
        }
        _ => address.to_owned(),
    }
}
