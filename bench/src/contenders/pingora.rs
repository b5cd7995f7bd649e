//! pingora-limits' rate estimator: a sketch of fixed size that over-counts once there are more keys than slots.

use std::hash::Hash;
use std::time::Duration;

use pingora_limits::rate::Rate;

use super::{Contender, Entry, Limit, Role};
use crate::keys::Text;
use crate::measure::serve;

struct Pingora {
    rate: Rate,
    most: isize,
}

impl<K: Hash> Contender<K> for Pingora {
    fn new(_keys: usize, limit: Limit) -> Self {
        // A window of one second forgets; refusing throughout needs one that outlasts the run.
        let (window, most) = match limit {
            Limit::Admit => (Duration::from_secs(1), isize::MAX),
            Limit::Refuse => (limit.interval(), limit.burst() as isize),
        };
        Self { rate: Rate::new(window), most }
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        self.rate.observe(key, 1) <= self.most
    }
}

pub fn entry() -> Entry {
    Entry {
        name: "pingora-limits (approximate)",
        role: Role::Sketch,
        slow: false,
        text: Some(serve::<Text, Pingora>),
        number: Some(serve::<u64, Pingora>),
    }
}
