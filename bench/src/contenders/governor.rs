//! governor, keyed: with its default hasher and with ahash.
//!
//! Its lookup takes `&K` for the very type it stores. The best form for text of a fixed length is `[u8; 24]`, kept
//! inline in the map; `String` is what text of any length needs, and gets its string here without an allocation.

use std::hash::{BuildHasher, Hash, RandomState};

use governor::clock::DefaultClock;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};

use super::{Contender, Entry, Limit, Role};
use crate::keys::Text;
use crate::measure::serve;

struct Governor<K: Hash + Eq + Clone, S: BuildHasher + Clone>(
    RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>,
);

impl<K, S> Contender<K> for Governor<K, S>
where
    K: Hash + Eq + Clone + Send + Sync,
    S: BuildHasher + Clone + Default + Send + Sync,
{
    fn new(_keys: usize, limit: Limit) -> Self {
        let quota = Quota::with_period(limit.interval())
            .expect("an interval above zero")
            .allow_burst(limit.burst().try_into().expect("a burst above zero"));
        Self(RateLimiter::dashmap_with_hasher(quota, S::default()))
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        self.0.check_key(key).is_ok()
    }
}

fn inline<S: BuildHasher + Clone + Default + Send + Sync>(name: &'static str) -> Entry {
    Entry {
        name,
        role: Role::Peer,
        slow: false,
        text: Some(serve::<Text, Governor<Text, S>>),
        number: Some(serve::<u64, Governor<u64, S>>),
    }
}

fn owned<S: BuildHasher + Clone + Default + Send + Sync>(name: &'static str) -> Entry {
    Entry {
        name,
        role: Role::Peer,
        slow: false,
        text: Some(serve::<String, Governor<String, S>>),
        number: None,
    }
}

/// governor as most use it with text keys.
pub const STRING: &str = "governor, `String` keys";
/// governor at its best with text keys, and as it is with numbers.
pub const INLINE: &str = "governor";

pub fn entries() -> Vec<Entry> {
    vec![
        owned::<RandomState>(STRING),
        owned::<ahash::RandomState>("governor, `String` keys, ahash"),
        inline::<RandomState>(INLINE),
        inline::<ahash::RandomState>("governor, ahash"),
    ]
}
