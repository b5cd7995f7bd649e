//! What a flood of random keys does to everybody else: who is rejected by mistake, and who gets a fresh burst.
//!
//! `flood [MULTIPLE...]` floods a store of the default size with so many times the keys that it can hold, and prints a
//! line of tab-separated figures for each limiter. docs/decisions/0015 explains them. `make flood` keeps them in
//! docs/flood.tsv.
#![allow(clippy::print_stdout, reason = "a program that prints a table")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program for developers"
)]

use std::collections::{HashMap, VecDeque};

use tollgate::{ConcurrencyLimiter, ManualClock, MemoryStore, Quota, RateLimiter, Timestamp};

/// Callers of each kind that are looked at.
const CALLERS: u64 = 1000;
const EARLIER: u64 = 1 << 60;
const EXHAUSTED: u64 = 2 << 60;
const DURING: u64 = 3 << 60;
const AFTER: u64 = 4 << 60;
const SOLO: u64 = 5 << 60;

/// Something that allows a key so many requests.
trait Contender {
    /// Whether a request passes.
    fn check(&mut self, key: u64) -> bool;
    /// How many more requests a key has.
    fn remaining(&mut self, key: u64) -> u64;
    /// States that found no room so far.
    fn displaced(&self) -> u64;
    /// Bytes in use.
    fn bytes(&self) -> usize;
}

struct Rate(RateLimiter);

impl Contender for Rate {
    fn check(&mut self, key: u64) -> bool {
        self.0.check(key).is_ok()
    }
    fn remaining(&mut self, key: u64) -> u64 {
        match self.0.peek(key, 0) {
            Ok(outcome) => outcome.remaining,
            Err(refused) => refused.outcome.remaining,
        }
    }
    fn displaced(&self) -> u64 {
        self.0.store().stats().evictions
    }
    fn bytes(&self) -> usize {
        self.0.store().stats().bytes
    }
}

struct Concurrent {
    limiter: ConcurrencyLimiter,
    limit: u64,
    held: Vec<tollgate::ConcurrencyPermit>,
}

impl Contender for Concurrent {
    fn check(&mut self, key: u64) -> bool {
        self.limiter.acquire(key).map(|permit| self.held.push(permit)).is_ok()
    }
    fn remaining(&mut self, key: u64) -> u64 {
        self.limit - self.limiter.in_progress(key)
    }
    fn displaced(&self) -> u64 {
        self.limiter.store().stats().failed_open
    }
    fn bytes(&self) -> usize {
        self.limiter.store().stats().bytes
    }
}

/// The two simple ways of being bounded: forget the key that was used longest ago, or reject new keys when full.
struct Simple {
    limit: u64,
    capacity: usize,
    forgets: bool,
    used: HashMap<u64, (u64, u64)>,
    order: VecDeque<(u64, u64)>,
    calls: u64,
    evictions: u64,
}

impl Simple {
    fn new(limit: u64, capacity: usize, forgets: bool) -> Self {
        let (used, order) = (HashMap::with_capacity(capacity), VecDeque::new());
        Self { limit, capacity, forgets, used, order, calls: 0, evictions: 0 }
    }
}

impl Contender for Simple {
    fn check(&mut self, key: u64) -> bool {
        self.calls += 1;
        if !self.used.contains_key(&key) && self.used.len() >= self.capacity {
            if !self.forgets {
                return false;
            }
            while let Some((oldest, at)) = self.order.pop_front() {
                if self.used.get(&oldest).is_some_and(|(_, last)| *last == at) {
                    self.used.remove(&oldest);
                    self.evictions += 1;
                    break;
                }
            }
        }
        let (used, last) = self.used.entry(key).or_default();
        *last = self.calls;
        self.order.push_back((key, self.calls));
        let passes = *used < self.limit;
        *used += u64::from(passes);
        passes
    }
    fn remaining(&mut self, key: u64) -> u64 {
        self.limit - self.used.get(&key).map_or(0, |(used, _)| *used)
    }
    fn displaced(&self) -> u64 {
        self.evictions
    }
    fn bytes(&self) -> usize {
        0
    }
}

fn store() -> tollgate::MemoryStoreBuilder {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_040));
    MemoryStore::builder().fixed_seed(7).clock(clock)
}

fn rate(quota: Quota) -> Box<dyn Contender> {
    Box::new(Rate(RateLimiter::builder(quota).own_store(store()).build()))
}

fn concurrency(limit: u64) -> Box<dyn Contender> {
    let limiter = ConcurrencyLimiter::builder(limit).own_store(store()).build();
    Box::new(Concurrent { limiter, limit, held: Vec::new() })
}

/// A name, a limit, and how to make it.
type Case = (&'static str, u64, fn() -> Box<dyn Contender>);

const CASES: [Case; 6] = [
    ("token bucket 5/h", 5, || rate(Quota::per_hour(5))),
    ("sliding-log 10/h", 10, || rate(Quota::per_hour(10).sliding_log())),
    ("sliding-log 10/min", 10, || rate(Quota::per_minute(10).sliding_log())),
    ("concurrency 5", 5, || concurrency(5)),
    ("LRU, 5", 5, || Box::new(Simple::new(5, 1_000_000, true))),
    ("reject when full, 5", 5, || Box::new(Simple::new(5, 1_000_000, false))),
];

/// How many keys fit before one in a hundred has to go.
fn capacity(case: &Case) -> u64 {
    let mut contender = case.2();
    if case.0.starts_with("reject") {
        return 1_000_000;
    }
    (1..)
        .find(|key| {
            contender.check(*key);
            contender.displaced() * 100 > *key
        })
        .unwrap_or(0)
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

fn flood(case: &Case, capacity: u64, multiple: u64, requests: u64) {
    let (name, limit, make) = case;
    let mut contender = make();
    for id in 0..CALLERS {
        (0..*limit).for_each(|_| _ = contender.check(EXHAUSTED + id));
        // From one request to all but one.
        (0..=id % (limit - 1)).for_each(|_| _ = contender.check(EARLIER + id));
    }
    let keys = capacity * multiple;
    let pause = (keys / CALLERS).max(1);
    let (mut passed, mut asked) = (0, 0);
    for key in 0..keys {
        (0..requests).for_each(|_| _ = contender.check(key));
        if key % pause == 0 {
            asked += 1;
            passed += u64::from(contender.check(DURING + key));
        }
    }
    let after = (0..CALLERS).filter(|id| contender.check(AFTER + id)).count() as u64;
    let rejected = (0..CALLERS).filter(|id| !contender.check(EXHAUSTED + id)).count() as u64;
    let kept = (0..CALLERS).filter(|id| {
        let expected = limit - 1 - id % (limit - 1);
        contender.remaining(EARLIER + id).abs_diff(expected) <= 1
    });
    let kept = kept.count() as u64;
    // The keys of the flood itself, where they had all they may have: a random one gets no more.
    let refreshed = (0..CALLERS).filter(|id| {
        requests >= *limit && contender.check(id.wrapping_mul(0x9E37_79B9_7F4A_7C15) % keys.max(1))
    });
    let refreshed = refreshed.count() as u64;
    // One new caller alone gets what the limit allows, and no more.
    let solo = (0..100).map(|id| (0..4 * limit).filter(|_| contender.check(SOLO + id)).count() as u64);
    let solo: u64 = solo.sum();
    println!(
        "{name}\t{capacity}\t{multiple}\t{requests}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{:.1}\t{:.2}\t{}",
        percent(rejected, CALLERS),
        percent(kept, CALLERS),
        percent(passed, asked),
        percent(after, CALLERS),
        percent(refreshed, CALLERS),
        solo as f64 / 100.0,
        contender.bytes()
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let multiples: Vec<u64> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let only: Option<&String> = args.iter().find(|arg| arg.parse::<u64>().is_err());
    println!(
        "limiter\tcapacity\tflood\trequests per key\texhausted rejected %\tearlier kept %\tnew pass during %\tnew pass after %\tattackers refreshed %\tallowed per new caller\tbytes"
    );
    for case in CASES.iter().filter(|case| only.is_none_or(|only| case.0.contains(only.as_str()))) {
        let capacity = capacity(case);
        for multiple in &multiples {
            for requests in [1, case.1] {
                flood(case, capacity, *multiple, requests);
            }
        }
    }
}
