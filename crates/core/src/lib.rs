//! The pure core of Tollgate: every limiter as a function of its state, the time and the cost.
//!
//! Nothing here reads a clock, takes a lock, opens a socket or allocates behind the caller's back. `now` is
//! always an argument, so the same inputs give the same answer in memory, in a replay, in a test and, for the
//! twin written in another language, in a shared store.
//!
//! The map:
//!
//! | module | holds |
//! |---|---|
//! | [`time`] | [`Timestamp`] and [`Nanos`]: integers, never floats |
//! | [`limit`] | [`Limit`]: an algorithm and its quota, validated when built |
//! | [`outcome`] | [`Outcome`] and [`Verdict`]: what was decided, and what is left |
//! | [`algorithm`] | the contract that every algorithm meets, and the one-word packing of small states |
//! | [`bucket`] | token bucket, leaky bucket as a meter, leaky bucket as a queue |
//! | [`fixed_window`] | fixed windows, aligned and anchored |
//! | [`sliding_window`] | two weighted windows |
//! | [`log`] | sliding log and sub-windows |
//! | [`interval_bucket`] | a bucket that is refilled in whole batches |
//! | [`concurrency`] | requests in progress: counted, or leased with an expiry |
//! | [`fleet`] | the fleet usage load shedder |
//! | [`worker`] | the worker utilization load shedder |
//! | [`key`] | keys as bytes, composed so that two different tuples never meet |
//! | [`store`] | what every store can do |
//! | `policy` | the policy file, and what it says of a request (feature `policy`) |
//! | `decision`, `answer` | what became of a request, and how to tell its caller (feature `policy`) |

pub mod algorithm;
#[cfg(feature = "policy")]
pub mod answer;
pub mod bucket;
pub mod concurrency;
#[cfg(feature = "policy")]
pub mod decision;
mod error;
pub mod fixed_window;
pub mod fleet;
pub mod interval_bucket;
pub mod key;
pub mod limit;
pub mod log;
pub mod outcome;
#[cfg(feature = "policy")]
pub mod policy;
pub mod sliding_window;
pub mod store;
pub mod summary;
pub mod time;
pub mod worker;

pub use error::LimitError;
pub use limit::Limit;
pub use outcome::{Outcome, Outcomes, Verdict};
pub use time::{Nanos, Timestamp};
