//! throttlecrab's library. It needs `&mut`, so threads share it through one lock, and it is handed the wall clock.
//!
//! `PeriodicStore` is the fastest of its stores here: the others sweep the whole table every 1,000 or 100,000 calls.

use std::sync::Mutex;
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use super::{Contender, Entry, Limit, Role};
use crate::keys::{Text, as_str};
use crate::measure::serve;

struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    burst: i64,
    count: i64,
    period_seconds: i64,
}

impl Contender<Text> for Throttlecrab {
    fn new(keys: usize, limit: Limit) -> Self {
        let period_seconds = limit.interval().as_secs().max(1);
        let count = f64::from(period_seconds as u32) / limit.interval().as_secs_f64();
        Self {
            limiter: Mutex::new(RateLimiter::new(PeriodicStore::with_capacity(keys))),
            burst: limit.burst().into(),
            count: count.round() as i64,
            period_seconds: period_seconds as i64,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "its users pass in the wall clock, read for each call")]
    #[inline(always)]
    fn decide(&self, key: &Text) -> bool {
        let mut limiter = self.limiter.lock().expect("no thread panicked");
        limiter
            .rate_limit(as_str(key), self.burst, self.count, self.period_seconds, 1, SystemTime::now())
            .expect("a valid limit")
            .0
    }
}

pub fn entry() -> Entry {
    Entry {
        name: "throttlecrab",
        role: Role::Peer,
        slow: false,
        text: Some(serve::<Text, Throttlecrab>),
        number: None,
    }
}
