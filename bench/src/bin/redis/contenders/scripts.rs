//! Scripts of one limit each, called by name over redis-rs's shared connection.

use std::time::SystemTime;

use redis::aio::MultiplexedConnection;
use redis::{Client, Cmd, Pipeline};
use tollgate_bench::keys::Text;

use super::quota::{ADMITS, ADMITS_PER_HOUR, LEASE_TIME, LEASES, Quota, fresh_lease};
use super::{Contender, Failure};

const TWO_KEYS: &str = include_str!("../lua/two_keys.lua");
const GCRA: &str = include_str!("../lua/gcra.lua");
const NO_DECISION: &str = include_str!("../lua/no_decision.lua");
const LEASE: &str = include_str!("../lua/lease.lua");

/// Admitted, remaining, retry after, reset after.
type RateAnswer = (bool, i64, i64, i64);
/// Admitted, remaining.
type ShortAnswer = (bool, i64);

/// Tokens and their time in two keys, by the client's clock: two reads and two writes.
#[derive(Clone)]
pub struct TwoKeys {
    connection: MultiplexedConnection,
    sha: String,
    per_second: f64,
    burst: u64,
}

impl TwoKeys {
    pub async fn new(url: &str, quota: Quota) -> Result<Self, Failure> {
        let (connection, sha) = connect_with(url, TWO_KEYS).await?;
        let per_second = quota.count as f64 / quota.period.as_secs_f64();
        Ok(Self { connection, sha, per_second, burst: quota.burst })
    }
}

impl Contender for TwoKeys {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let mut command = evalsha(&self.sha, 2);
        command.arg(key("tokens:", subject)).arg(key("timestamp:", subject));
        command.arg(self.per_second).arg(self.burst).arg(now).arg(1);
        let (admitted, _): ShortAnswer = command.query_async(&mut self.connection.clone()).await?;
        Ok(admitted)
    }
}

/// A script of one key and a rate.
#[derive(Clone)]
pub struct OneKey {
    connection: MultiplexedConnection,
    sha: String,
    quota: Quota,
}

impl OneKey {
    pub async fn gcra(url: &str, quota: Quota) -> Result<Self, Failure> {
        Self::new(url, GCRA, quota).await
    }

    pub async fn no_decision(url: &str, quota: Quota) -> Result<Self, Failure> {
        Self::new(url, NO_DECISION, quota).await
    }

    async fn new(url: &str, script: &str, quota: Quota) -> Result<Self, Failure> {
        let (connection, sha) = connect_with(url, script).await?;
        Ok(Self { connection, sha, quota })
    }
}

impl Contender for OneKey {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let command = rate(&self.sha, key("rate:", subject), self.quota);
        let (admitted, ..): RateAnswer = command.query_async(&mut self.connection.clone()).await?;
        Ok(admitted)
    }
}

/// No script at all.
#[derive(Clone)]
pub struct Incr {
    connection: MultiplexedConnection,
}

impl Incr {
    pub async fn new(url: &str) -> Result<Self, Failure> {
        Ok(Self { connection: connect(url).await? })
    }
}

impl Contender for Incr {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let mut command = Cmd::new();
        command.arg("INCR").arg(key("count:", subject));
        let count: i64 = command.query_async(&mut self.connection.clone()).await?;
        Ok(count > 0)
    }
}

/// Two rates and a lease, a script each.
#[derive(Clone)]
pub struct ThreeLimits {
    connection: MultiplexedConnection,
    rate: String,
    lease: String,
}

impl ThreeLimits {
    pub async fn new(url: &str) -> Result<Self, Failure> {
        let (mut connection, rate) = connect_with(url, GCRA).await?;
        let lease = load(&mut connection, LEASE).await?;
        Ok(Self { connection, rate, lease })
    }

    fn rates(&self, subject: &Text) -> [Cmd; 2] {
        [
            rate(&self.rate, key("per-second:", subject), ADMITS),
            rate(&self.rate, key("per-hour:", subject), ADMITS_PER_HOUR),
        ]
    }

    fn lease(&self, subject: &Text) -> Cmd {
        let mut command = evalsha(&self.lease, 1);
        command.arg(key("in-progress:", subject));
        command.arg(LEASES).arg(LEASE_TIME.as_micros() as u64).arg(&fresh_lease().to_be_bytes());
        command
    }
}

/// One call after the other, no further than to the first that refuses.
#[derive(Clone)]
pub struct InTurn(pub ThreeLimits);

impl Contender for InTurn {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let mut connection = self.0.connection.clone();
        for rate in self.0.rates(subject) {
            let (admitted, ..): RateAnswer = rate.query_async(&mut connection).await?;
            if !admitted {
                return Ok(false);
            }
        }
        let (admitted, _): ShortAnswer = self.0.lease(subject).query_async(&mut connection).await?;
        Ok(admitted)
    }
}

/// All three calls at once.
#[derive(Clone)]
pub struct Pipelined(pub ThreeLimits);

impl Contender for Pipelined {
    async fn decide(&self, subject: &Text) -> Result<bool, Failure> {
        let mut pipeline = Pipeline::with_capacity(3);
        for rate in self.0.rates(subject) {
            pipeline.add_command(rate);
        }
        pipeline.add_command(self.0.lease(subject));
        let ((second, ..), (hour, ..), (lease, _)): (RateAnswer, RateAnswer, ShortAnswer) =
            pipeline.query_async(&mut self.0.connection.clone()).await?;
        Ok(second && hour && lease)
    }
}

async fn connect(url: &str) -> Result<MultiplexedConnection, Failure> {
    Ok(Client::open(url)?.get_multiplexed_async_connection().await?)
}

/// A connection to a server that knows the script, and the name it has there.
async fn connect_with(url: &str, script: &str) -> Result<(MultiplexedConnection, String), Failure> {
    let mut connection = connect(url).await?;
    let sha = load(&mut connection, script).await?;
    Ok((connection, sha))
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> Result<String, Failure> {
    let mut command = Cmd::new();
    command.arg("SCRIPT").arg("LOAD").arg(script);
    Ok(command.query_async(connection).await?)
}

fn evalsha(sha: &str, keys: usize) -> Cmd {
    let mut command = Cmd::new();
    command.arg("EVALSHA").arg(sha).arg(keys);
    command
}

fn rate(sha: &str, key: Vec<u8>, quota: Quota) -> Cmd {
    let micros_per_token = quota.period.as_micros() as u64 / quota.count;
    let mut command = evalsha(sha, 1);
    command.arg(key).arg(micros_per_token).arg(quota.burst).arg(1);
    command
}

fn key(prefix: &str, subject: &Text) -> Vec<u8> {
    [prefix.as_bytes(), subject].concat()
}
