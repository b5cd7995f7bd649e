//! The shared store of Tollgate: every limit that memory can keep, kept in Redis, Redis Cluster or Valkey, where many
//! processes share one truth.
//!
//! One script call decides all charges of a request, all or nothing, on the server's clock. See [`RedisStore`].

mod address;
mod breaker;
mod keys;
mod limits;
mod link;
mod script;
mod store;
mod wire;

use std::time::Duration;

pub use address::AddressError;
pub use store::RedisStore;

use crate::address::Servers;
use crate::keys::Names;
use crate::link::{Link, Settings};

/// Builds a [`RedisStore`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RedisStoreBuilder {
    address: String,
    prefix: String,
    secret: Vec<u8>,
    deadline: Duration,
    queue: usize,
}

impl RedisStore {
    /// A store at an address: `redis://host:6379/0`, `redis-cluster://a:6379,b:6379`,
    /// `redis-sentinel://a:26379,b:26379/master-name`.
    pub fn builder(address: impl Into<String>) -> RedisStoreBuilder {
        RedisStoreBuilder {
            address: address.into(),
            prefix: "tg".to_owned(),
            secret: Vec::new(),
            deadline: Duration::from_millis(20),
            queue: 4096,
        }
    }
}

impl RedisStoreBuilder {
    /// What all keys begin with, `tg` unless said otherwise.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// The secret from which names of keys are made. All processes that share a store need the same.
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = secret.into();
        self
    }

    /// The longest that a decision may take, 20 ms unless said otherwise.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Decisions that may wait for the store at once; further ones fail at once. 4096 unless said otherwise.
    pub fn max_waiting(mut self, decisions: usize) -> Self {
        self.queue = decisions.max(1);
        self
    }

    /// The store. It connects on its own, on the present tokio runtime; until it has, decisions fail.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn build(self) -> Result<RedisStore, AddressError> {
        let servers = Servers::parse(&self.address)?;
        let settings = Settings { deadline: self.deadline, queue: self.queue };
        Ok(RedisStore::new(Names::new(&self.prefix, &self.secret), Link::start(servers, settings)))
    }
}
