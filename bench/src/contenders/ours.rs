//! Tollgate itself, in each of the ways that it can be called.

use std::time::Duration;

use tollgate::{Clock, Key, MemoryStore, RateLimiter, SystemClock, TickedClock};

use super::{Contender, Entry, Limit, Role};
use crate::keys::{BLOCK, Text};
use crate::measure::serve;

/// With the clock that it has by default.
struct OwnClock(RateLimiter);

/// With a clock that a thread ticks every millisecond.
struct Ticked(RateLimiter);

/// With a time that the caller has read already: once for a block of keys.
struct NowPassedIn(RateLimiter);

/// Sixteen keys in one call.
struct Batch(RateLimiter);

fn limiter(
    keys: usize,
    limit: Limit,
    store: impl FnOnce(tollgate::MemoryStoreBuilder) -> tollgate::MemoryStoreBuilder,
) -> RateLimiter {
    let store = store(MemoryStore::builder().expected_keys(keys));
    RateLimiter::per(1, limit.interval()).burst(limit.burst().into()).own_store(store).build()
}

impl<K: Key + Sync> Contender<K> for OwnClock {
    fn new(keys: usize, limit: Limit) -> Self {
        Self(limiter(keys, limit, |store| store))
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        self.0.check(key).is_ok()
    }
}

impl<K: Key + Sync> Contender<K> for Ticked {
    fn new(keys: usize, limit: Limit) -> Self {
        let clock = TickedClock::every(Duration::from_millis(1)).expect("a thread for the clock");
        Self(limiter(keys, limit, |store| store.clock(clock)))
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        self.0.check(key).is_ok()
    }
}

impl<K: Key + Sync> Contender<K> for NowPassedIn {
    fn new(keys: usize, limit: Limit) -> Self {
        Self(limiter(keys, limit, |store| store))
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        self.0.check_at(key, SystemClock.now()).is_ok()
    }

    #[inline(always)]
    fn decide_block(&self, keys: &[K; BLOCK]) -> usize {
        let now = SystemClock.now();
        keys.iter().filter(|key| self.0.check_at(key, now).is_ok()).count()
    }
}

impl<K: Key + Sync> Contender<K> for Batch {
    fn new(keys: usize, limit: Limit) -> Self {
        Self(limiter(keys, limit, |store| store))
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        self.0.check(key).is_ok()
    }

    #[inline(always)]
    fn decide_block(&self, keys: &[K; BLOCK]) -> usize {
        let mut admitted = 0;
        for keys in keys.as_chunks::<16>().0 {
            self.0.check_many(keys, |_, outcome| admitted += usize::from(outcome.allowed));
        }
        admitted
    }
}

macro_rules! entry {
    ($name:literal, $contender:ty) => {
        Entry {
            name: $name,
            role: Role::Ours,
            slow: false,
            text: Some(serve::<Text, $contender>),
            number: Some(serve::<u64, $contender>),
        }
    };
}

pub fn entries() -> Vec<Entry> {
    vec![
        entry!("tollgate", OwnClock),
        entry!("tollgate, ticked clock", Ticked),
        entry!("tollgate, now passed in", NowPassedIn),
        entry!("tollgate, 16 at a time", Batch),
    ]
}
