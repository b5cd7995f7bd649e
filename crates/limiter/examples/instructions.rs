//! What `scripts/instructions.sh` counts: N decisions of one scenario, the same instructions every time.
//!
//! `instructions --list` names the scenarios; `instructions SCENARIO N` runs one.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program that talks to a script")]

use std::hint::black_box;
use std::process::ExitCode;

use http::{HeaderMap, HeaderValue};
use tollgate::tower::{InMap, add_fields, refused};
use tollgate::{
    ConcurrencyLimiter, Facts, Limiter, ManualClock, MemoryStore, Quota, RateLimiter, RateLimiterBuilder,
    Timestamp,
};

const KEY: &str = "user:0000000000000000042";

/// A name, and what to run N times.
type Scenario = (&'static str, fn(u64));

const SCENARIOS: [Scenario; 14] = [
    ("token-bucket-admitted", |n| repeat(n, &limiter(Quota::per_second(1_000_000_000)))),
    ("token-bucket-any-ratio", |n| repeat(n, &limiter(Quota::per_second(333).burst(1_000_000)))),
    ("token-bucket-refused", |n| repeat(n, &limiter(Quota::per_hour(1)))),
    ("token-bucket-new-key", new_keys),
    // What others have must not make it dearer.
    ("new-key-of-1000-limits", new_keys_of_many),
    ("fixed-window", |n| repeat(n, &limiter(Quota::per_hour(1_000_000).fixed_window()))),
    ("sliding-window", |n| repeat(n, &limiter(Quota::per_hour(500_000).sliding_window()))),
    ("sliding-log-refused", |n| repeat(n, &limiter(Quota::per_hour(10).sliding_log()))),
    ("two-limits", |n| {
        repeat(n, &built(RateLimiter::per_second(1_000_000_000).and(Quota::per_hour(1_000_000_000))))
    }),
    ("concurrency", permits),
    // A flood of requests in progress must not make each new one look at all of them.
    ("concurrency-when-full", permits_when_full),
    ("admit-demo-policy", |n| admit(n, "pro_1", "")),
    ("admit-demo-policy-refused", |n| admit(n, "free", "")),
    // Where one limiter's cost is told by requests, nothing is known of any beforehand.
    ("admit-by-request", |n| admit(n, "pro_1", "  never: { rate: 1/s, match: [GET /never], cost: given }\n")),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--list"] => SCENARIOS.iter().for_each(|(name, _)| println!("{name}")),
        [name, n] => match (SCENARIOS.iter().find(|(known, _)| known == name), n.parse()) {
            (Some((_, run)), Ok(n)) => run(n),
            _ => return usage(),
        },
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: instructions --list | instructions SCENARIO N");
    ExitCode::from(2)
}

/// A store that does the same in every run.
fn store() -> tollgate::MemoryStoreBuilder {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    MemoryStore::builder().max_bytes(8 << 20).fixed_seed(7).clock(clock)
}

fn built(builder: RateLimiterBuilder) -> RateLimiter {
    builder.own_store(store()).build()
}

fn limiter(quota: Quota) -> RateLimiter {
    built(RateLimiter::builder(quota))
}

fn repeat(n: u64, limiter: &RateLimiter) {
    for _ in 0..n {
        black_box(limiter.check(black_box(KEY)).is_ok());
    }
}

fn new_keys(n: u64) {
    check_new_keys(n, &limiter(Quota::per_hour(1)));
}

fn new_keys_of_many(n: u64) {
    let builder = RateLimiter::builder(Quota::per_hour(1));
    let plans = (2..=1000).fold(builder, |all, count| all.plan(count.to_string(), Quota::per_hour(count)));
    check_new_keys(n, &built(plans));
}

fn check_new_keys(n: u64, limiter: &RateLimiter) {
    for key in 0..n {
        black_box(limiter.check(black_box(key)).is_ok());
    }
}

/// The whole path of a request by the policy of the demonstration: decided, its answer told how it stands, ended; or refused and
/// answered. The store's clock stands still, so that one key's second is soon used up; the other one's plan is made large enough.
/// The limiter's own is that of the system, as it is in a gateway.
fn admit(n: u64, key: &'static str, more: &str) {
    let policy = include_str!("../../../examples/demo.yaml").replace("rate: 1000/s", "rate: 1000000000/s");
    let policy = policy.replace("limiters:\n", &format!("limiters:\n{more}"));
    let built = Limiter::builder().store(store().build()).policy(&policy).build();
    let Ok(limiter) = built else { return };
    let fields = [("host", "api.example.com"), ("accept", "*/*"), ("x-api-key", key)];
    let mut asked = HeaderMap::new();
    for (name, value) in fields {
        asked.insert(name, HeaderValue::from_static(value));
    }
    let headers = InMap(&asked);
    let (peer, method, path) = (Some([192, 0, 2, 1].into()), "GET", "/v1/charges");
    let facts = Facts { method, path, peer, headers: &headers, host: "api.example.com", ..Facts::default() };
    let mut answer = HeaderMap::with_capacity(8);
    for _ in 0..n {
        match black_box(limiter.admit_at_once(black_box(&facts))) {
            Some(Ok(permit)) => {
                permit.answered(|name| asked.get(name).map(HeaderValue::as_bytes));
                add_fields(&mut answer, permit.headers());
                black_box(&mut answer).clear();
            }
            Some(Err(refusal)) => drop(black_box(refused(&refusal, &asked, path))),
            None => return,
        }
    }
}

fn permits(n: u64) {
    let limiter = ConcurrencyLimiter::builder(20).own_store(store()).build();
    for _ in 0..n {
        drop(black_box(limiter.acquire(black_box(KEY))));
    }
}

/// New keys in a store that is full of requests in progress. They pass, and are not counted.
fn permits_when_full(n: u64) {
    let limiter = ConcurrencyLimiter::builder(20).own_store(store()).build();
    let mut held = Vec::new();
    let mut key = 0;
    while limiter.store().stats().failed_open < 100 {
        held.push(limiter.acquire(key));
        key += 1;
    }
    for key in key..key + n {
        drop(black_box(limiter.acquire(black_box(key))));
    }
}
