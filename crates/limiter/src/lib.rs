//! Rate limits and load shedding for Rust services: exact, bounded in memory, and fast.
//!
//! ```
//! use tollgate::RateLimiter;
//!
//! let limiter = RateLimiter::per_second(100).burst(500).build();
//! match limiter.check("alice") {
//!     Ok(outcome) => println!("go ahead, {} left", outcome.remaining),
//!     Err(refused) => println!("429, come back in {:?}", refused.retry_after()),
//! }
//! ```
//!
//! # One policy, or limiter by limiter
//!
//! A service that wants all four limiters, and wants to change them while it runs, has a [`Limiter`]: one policy says who is
//! calling, which requests are critical, and what is limited; [`Limiter::admit`] answers with a [`Permit`] to keep for as
//! long as the request lasts, or with a [`Refusal`] that knows its answer over HTTP and gRPC. The tower layer
//! (`tollgate::tower`, feature `tower`) puts it in front of axum, hyper and tonic services.
//!
//! ```
//! use tollgate::{Facts, Limiter};
//!
//! let limiter = Limiter::from_policy("
//! identify: { caller: [header: x-api-key] }
//! classes:
//!   critical: [POST /v1/charges]
//!   rest: [/*]
//! limiters:
//!   request-rate:        { rate: 50/s, burst: 100 }       # one caller sends too much
//!   concurrent-requests: { concurrency: 20 }              # one caller's slow calls pile up
//!   fleet-usage:         { fleet: 400, reserve: 20% }     # all callers together fill the fleet
//!   worker-utilization:  { workers: { source: cpu } }     # this box is drowning
//! ")?;
//! let headers = [("x-api-key", "alice")];
//! let facts = Facts { method: "POST", path: "/v1/charges", headers: &headers, ..Facts::default() };
//! let permit = limiter.admit_now(&facts).expect("nobody else is calling");
//! assert_eq!(&*permit.decision().class, "critical");
//! # Ok::<_, tollgate::PolicyError>(())
//! ```
//!
//! Everything else here is for those who want one limiter, in their own code.
//!
//! # Which limiter?
//!
//! Four things keep an API up. They answer different questions, and most services want the first two from the
//! start and the others before they need them.
//!
//! | the trouble | the limiter | on refusal |
//! |---|---|---|
//! | one caller sends too much | [`RateLimiter`]: so many calls per second and key | 429, come back in `retry_after` |
//! | one caller's slow calls pile up | [`ConcurrencyLimiter`]: so many in progress per key | 429 |
//! | all callers together fill the fleet | [`FleetShedder`]: a share of the places is kept for what is critical | 503 |
//! | this box is drowning | [`WorkerShedder`]: sheds class by class, slowly, and recovers slowly | 503 |
//!
//! # Which algorithm?
//!
//! [`RateLimiter`] is a token bucket unless its [`Quota`] says otherwise. It is the right choice for most: steady on
//! average, generous to bursts, one word of memory. Choose another when its difference is what you need:
//!
//! | quota | in any period at most | state per key | choose it when |
//! |---|---|---|---|
//! | [`Quota::burst`] (token bucket) | burst + count | 16 bytes | callers are bursty and that is fine |
//! | [`Quota::leaky_queue`] | evenly spaced | 16 bytes | calls should be delayed, not refused |
//! | [`Quota::sliding_log`] | count, exactly | 16 bytes per call | the number is a promise: logins, payments |
//! | [`Quota::sub_windows`] | count | 16 bytes per part | the same for large counts |
//! | [`Quota::sliding_window`] | about count | 16 bytes | large counts, and an estimate will do |
//! | [`Quota::fixed_window`] | 2 × count | 16 bytes | "1000 a day" must mean the calendar's day |
//! | [`Quota::anchored_window`] | 2 × count | 16 bytes | the same, without a stampede at midnight |
//! | [`Quota::in_batches`] | burst + count | 16 bytes | refills come in lumps elsewhere too |
//!
//! Around its state a key takes some more memory: see [`MemoryStoreBuilder::max_bytes`].
//!
//! # What to rely on
//!
//! * **Exact.** Times and counts are integers; 7 per second is 7 per second for ever. Where a rate refuses, `retry_after`
//!   is the smallest wait after which the same call passes, as long as nobody else calls and the limit stays the same. A key
//!   that was evicted may be told a longer wait. When a place among those in progress comes free nobody knows: there it is
//!   a moment, and no promise.
//! * **All or nothing.** With several limits ([`RateLimiterBuilder::and`]) a refused call costs nothing anywhere.
//! * **Bounded.** A store has a ceiling in bytes ([`MemoryStoreBuilder::max_bytes`]). A flood of keys cannot pass
//!   it, and gives no exhausted key a fresh burst: see [`MemoryStore`] for what is remembered of evicted keys. No thread
//!   sweeps.
//! * **No input panics.** Wrong quotas are refused when they are built, with the field, the value and the range.
//! * **Time is an argument.** Every limiter takes a [`Clock`], or the time itself ([`RateLimiter::check_at`]): tests
//!   move a [`ManualClock`] and never sleep.
//!
//! ```
//! use std::time::Duration;
//! use tollgate::{ManualClock, RateLimiter};
//!
//! let clock = ManualClock::default();
//! let limiter = RateLimiter::per_minute(1).clock(clock.clone()).build();
//! assert!(limiter.check("alice").is_ok());
//! assert!(limiter.check("alice").is_err());
//! clock.advance(Duration::from_secs(60));
//! assert!(limiter.check("alice").is_ok());
//! ```
//!
//! # Keys
//!
//! Text, bytes, numbers, addresses, and tuples of those: anything that is a [`Key`]. Parts of a tuple keep their
//! bounds, so `("a:b", "c")` and `("a", "b:c")` are two keys; an IPv4 address is the same key when it comes mapped
//! into IPv6. How keys are kept, and how improbable it is that two share a bucket, is told at [`MemoryStore`].

#[cfg(feature = "policy")]
mod admission;
pub mod clock;
mod concurrency;
mod failsafe;
mod fleet;
mod last_minute;
mod memory;
mod quota;
mod rate;
mod sync;
mod together;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "policy")]
pub mod utilization;
mod worker;

#[cfg(feature = "jwt")]
pub use admission::JwtTokens;
#[cfg(feature = "watch")]
pub use admission::Watcher;
#[cfg(feature = "policy")]
pub use admission::{
    ClassStats, Companion, Decision, FleetUse, Limiter, LimiterBuilder, LimiterReport, LimiterStanding,
    LimiterStats, Permit, PolicyError, PolicyFile, Refusal, ReloadReport, Settle, Timings, Totals,
    WatchedDecisions, WorkerStanding, WouldReject,
};
pub use clock::{Clock, ManualClock, SystemClock, TickedClock};
pub use concurrency::{ConcurrencyLimiter, ConcurrencyLimiterBuilder, ConcurrencyPermit};
pub use failsafe::{Failsafe, FailsafeStats};
pub use fleet::{FleetFull, FleetPermit, FleetShedder, Priority};
pub use last_minute::LastMinute;
pub use memory::{MemoryStore, MemoryStoreBuilder, Stats};
pub use quota::Quota;
pub use rate::{RateLimiter, RateLimiterBuilder, Refused};
pub use together::Together;
pub use tollgate_core as core;
pub use tollgate_core::concurrency::InProgress;
#[cfg(feature = "policy")]
pub use tollgate_core::decision::{Reason, Standing};
pub use tollgate_core::fleet::FleetMode;
pub use tollgate_core::key::Key;
pub use tollgate_core::log::SubWindows;
pub use tollgate_core::outcome::Degraded;
#[cfg(feature = "policy")]
pub use tollgate_core::policy::{Facts, Headers, Mistakes, Mode, Policy, Tokens};
pub use tollgate_core::store::{OnFailure, Store};
pub use tollgate_core::worker::{Fraction, WorkerSettings};
pub use tollgate_core::{Limit, LimitError, Nanos, Outcome, Outcomes, Timestamp, Verdict};
pub use worker::{Class, Shed, WorkerShedder, WorkerShedderBuilder};
