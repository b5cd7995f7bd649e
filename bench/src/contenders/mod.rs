//! What is measured: the trait every contender implements, and the list of all of them.

mod floor;
mod generator;
pub mod governor;
mod limitador;
mod ours;
mod pingora;
mod throttlecrab;

pub use generator::NAME as GENERATOR;

use std::time::Duration;

use crate::keys::BLOCK;
use crate::measure::Job;

/// A limiter keyed by `K`. The measuring loop is compiled once per contender, so nothing here is a virtual call.
pub trait Contender<K>: Sync {
    /// A limiter that will see `keys` distinct keys, all under `limit`.
    fn new(keys: usize, limit: Limit) -> Self;

    /// One decision at a cost of one: true means admitted. Mark implementations `#[inline(always)]`.
    fn decide(&self, key: &K) -> bool;

    /// Decisions on a block of keys, in order; how many were admitted. Override for a batch interface.
    #[inline(always)]
    fn decide_block(&self, keys: &[K; BLOCK]) -> usize {
        keys.iter().filter(|key| self.decide(key)).count()
    }
}

/// The limit that every key is under.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// So large that nothing is refused.
    Admit,
    /// Small and slow, and used up before the measurement, so that everything is refused.
    Refuse,
}

impl Limit {
    /// Size of the bucket.
    pub fn burst(self) -> u32 {
        match self {
            Self::Admit => 4_000_000_000,
            Self::Refuse => 2,
        }
    }

    /// Time to earn one more.
    pub fn interval(self) -> Duration {
        match self {
            Self::Admit => Duration::from_micros(1),
            Self::Refuse => Duration::from_secs(3600),
        }
    }
}

/// The form of the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Number,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Writing the keys: subtracted from everyone.
    Generator,
    /// The physical limit.
    Floor,
    Ours,
    /// Keeps one exact state per key.
    Peer,
    /// Counts approximately: shown, but not what "the best peer" means.
    Sketch,
}

/// Becomes the limiter and answers the parent's requests to measure: `measure::serve::<K, C>`.
pub type Serve = fn(Job);

/// One row of the tables.
pub struct Entry {
    pub name: &'static str,
    pub role: Role,
    /// So slow that the largest number of keys would take too long: it gets a tenth of them.
    pub slow: bool,
    pub text: Option<Serve>,
    pub number: Option<Serve>,
}

impl Entry {
    pub fn serve(&self, form: Form) -> Option<Serve> {
        match form {
            Form::Text => self.text,
            Form::Number => self.number,
        }
    }
}

pub fn all() -> Vec<Entry> {
    let mut entries = vec![generator::entry(), floor::entry()];
    entries.extend(ours::entries());
    entries.extend(governor::entries());
    entries.extend([throttlecrab::entry(), limitador::entry(), pingora::entry()]);
    entries
}
