//! The shared store of Tollgate: every limit that memory can keep, kept in Redis, Redis Cluster or Valkey, where many
//! processes share one truth.
//!
//! ```no_run
//! use tollgate::{Failsafe, Limit, Nanos, Store, core::store::Charge};
//! use tollgate_redis::RedisStore;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let redis = RedisStore::builder("redis://127.0.0.1:6379").secret("the same on every node").build()?;
//! let store = Failsafe::new(redis);
//! let per_user = store.define("per user", Limit::token_bucket(500, 100, Nanos::from_secs(1))?)?;
//! let verdict = store.charge(&[Charge { rule: per_user, key: "alice".into(), ask: 1.into() }], None).await?;
//! if !verdict.allowed {
//!     println!("come back in {:?}", verdict.retry_after);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! One script call decides all charges of a request, all or nothing, on the server's clock; decisions that wait at the same
//! moment share a call. A decision takes no longer than its deadline, and a store that fails is left alone until it is
//! back. [`RedisStore`] then answers with an error; in a [`Failsafe`](https://docs.rs/tollgate) each limit does what
//! it was told: open, close, or go on by this node's share.
//!
//! | to | see |
//! |---|---|
//! | connect, encrypt, log in | [`RedisStore::builder`] |
//! | take and give back leases | [`Store::charge`](tollgate_core::store::Store::charge) with a lease in the [`Ask`](tollgate_core::limit::Ask), [`Store::give_back`](tollgate_core::store::Store::give_back) |
//! | know how it stands | [`RedisStore::health`], [`RedisStore::stats`], the log (`tracing`) |
//! | end well | [`RedisStore::close`] |
//!
//! What is exact, what can go wrong and how much can pass when it does stands in `docs/shared-store.md`.

mod address;
mod answer;
mod breaker;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod keys;
mod limits;
mod link;
mod marks;
mod nodes;
mod script;
mod server;
mod stats;
mod store;
mod wire;

use std::time::Duration;

use thiserror::Error;

pub use address::AddressError;
pub use stats::RedisStats;
pub use store::{Health, RedisStore};

use crate::address::Servers;
use crate::keys::Names;
use crate::link::{Link, Settings};
use crate::nodes::Nodes;

/// Builds a [`RedisStore`].
///
/// ```no_run
/// use std::time::Duration;
/// use tollgate_redis::RedisStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = RedisStore::builder("redis-cluster://a:6379,b:6379,c:6379")
///     .secret(std::env::var("TOLLGATE_SECRET")?)
///     .deadline(Duration::from_millis(10))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisStoreBuilder {
    address: Secret<String>,
    prefix: String,
    secret: Secret<Vec<u8>>,
    deadline: Duration,
    queue: usize,
    heartbeat: Duration,
    expected_nodes: u64,
}

/// What nobody reads in a log.
#[derive(Clone)]
struct Secret<T>(T);

impl<T> std::fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// What is wrong with the settings of a store.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The prefix.
    #[error(
        "{0:?} cannot stand in front of keys: it must be up to 64 letters, digits and any of `-_.:/`, because braces would \
         take the choice of slots out of our hands"
    )]
    Prefix(String),
    /// A time.
    #[error("the {field} is {value:?}: it must be from {min:?} to {max:?}")]
    Time {
        /// Which.
        field: &'static str,
        /// What it is.
        value: Duration,
        /// The shortest that works.
        min: Duration,
        /// The longest that makes sense.
        max: Duration,
    },
}

impl RedisStore {
    /// A store at an address:
    ///
    /// | | |
    /// |---|---|
    /// | `redis://user:password@host:6379/0` | one server; user, password and number of the database may be left out |
    /// | `redis+unix:///run/redis.sock` | the same, by a socket of this machine |
    /// | `redis-cluster://a:6379,b:6379` | a cluster, by some of its nodes |
    /// | `redis-sentinel://a:26379,b:26379/name/0` | whichever server is the primary `name` |
    ///
    /// With `rediss` in place of `redis` connections are encrypted. `?ca=FILE` trusts the authority of that file alone,
    /// `cert=FILE&key=FILE` shows a certificate to the server; all are PEM. Sentinels that want a login of their own get
    /// `?sentinel_user=NAME&sentinel_pass=PASSWORD`.
    pub fn builder(address: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder {
            address: Secret(address.into()),
            prefix: "tg".to_owned(),
            secret: Secret(Vec::new()),
            deadline: Duration::from_millis(20),
            queue: 4096,
            heartbeat: Duration::from_secs(5),
            expected_nodes: 1,
        }
    }

    /// Whether a store could be at an address. Nobody is asked.
    ///
    /// ```
    /// use tollgate_redis::RedisStore;
    ///
    /// assert!(RedisStore::check_address("redis-cluster://a:6379,b:6379").is_ok());
    /// let error = RedisStore::check_address("redis-cluster://a:6379/3").unwrap_err();
    /// assert!(error.to_string().contains("a cluster has one database"));
    /// ```
    pub fn check_address(address: &str) -> Result<(), AddressError> {
        Servers::at(address, Duration::from_secs(1)).check()
    }
}

impl RedisStoreBuilder {
    /// What all keys begin with, `tg` unless said otherwise. Stores with different prefixes know nothing of each other.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The secret from which names of keys are made, so that nobody who reads them learns who is limited, and nobody
    /// who calls chooses where in a cluster. All processes that share a store need the same. Without one there is a
    /// warning.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Secret(secret.into());
        self
    }

    /// The longest that a decision may take, 20 ms unless said otherwise.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Decisions that may wait for the store at once; further ones fail at once. 4096 unless said otherwise.
    pub fn max_waiting(mut self, decisions: usize) -> Self {
        self.queue = decisions.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// How often this process tells the store that it is there, every 5 seconds unless said otherwise. One that has not
    /// been heard of three times is no longer counted.
    pub fn heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// How many processes will use the store, for as long as it has not told: one that starts while the store is away keeps
    /// this share of its limits. 1 unless said otherwise.
    pub fn expected_nodes(mut self, nodes: u64) -> Self {
        self.expected_nodes = nodes.max(1);
        self
    }

    /// The store. It connects on its own, on the present tokio runtime; until it has, decisions fail.
    ///
    /// At an address that is none nobody ever answers: [`RedisStore::ready`], [`RedisStore::health`] and the log say what
    /// is wrong with it, and limits are kept without the store, as they are when it is away.
    /// [`RedisStore::check_address`] tells beforehand.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn build(self) -> Result<RedisStore, BuildError> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.:/".contains(letter);
        if self.prefix.is_empty() || self.prefix.len() > 64 || !self.prefix.chars().all(plain) {
            return Err(BuildError::Prefix(self.prefix));
        }
        within("deadline", self.deadline, Duration::from_millis(1), Duration::from_secs(60))?;
        within("heartbeat", self.heartbeat, Duration::from_millis(10), Duration::from_secs(3600))?;
        let servers = Servers::at(&self.address.0, address::give_up(self.deadline));
        let mut warnings = Vec::new();
        if self.secret.0.is_empty() {
            let warning = "no secret is set, so whoever can read its keys can find out whose they are, and callers could \
                           aim at one node of a cluster: set the same secret on every node";
            tracing::warn!("the store in Redis: {warning}");
            warnings.push(warning.to_owned());
        }
        let settings = Settings { deadline: self.deadline, queue: self.queue };
        let names = Names::new(&self.prefix, &self.secret.0);
        let address = address::without_password(&self.address.0);
        let link = Link::start(servers, settings, nodes::probe(&names));
        let nodes = Nodes::new(self.heartbeat, self.expected_nodes);
        Ok(RedisStore::new(names, link, nodes, warnings, address))
    }
}

fn within(field: &'static str, value: Duration, min: Duration, max: Duration) -> Result<(), BuildError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(BuildError::Time { field, value, min, max }) }
}

/// The code in the README runs too.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
