//! What became of a request, in words that every door can say in its own way.

use std::sync::Arc;

use crate::time::Nanos;

/// What kind of limiter it was that refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The caller has sent too many requests: 429.
    Rate,
    /// The caller has too many requests in progress: 429.
    Concurrency,
    /// The fleet has no more places for requests that are not critical: 503.
    Fleet,
    /// This worker is overloaded and sheds requests of this class: 503.
    Worker,
    /// The store is away, and the limit is one that closes then: 503, since the caller has done nothing wrong.
    StoreAway,
    /// The caller is on the block list: 403.
    Blocked,
    /// The request says several things of who is calling: 400.
    Unclear,
}

impl Reason {
    /// The status of an answer over HTTP.
    pub fn status(self) -> u16 {
        match self {
            Self::Rate | Self::Concurrency => 429,
            Self::Fleet | Self::Worker | Self::StoreAway => 503,
            Self::Blocked => 403,
            Self::Unclear => 400,
        }
    }

    /// One word for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::Fleet => "fleet",
            Self::Worker => "worker",
            Self::StoreAway => "store-away",
            Self::Blocked => "blocked",
            Self::Unclear => "unclear",
        }
    }
}

/// What is counted against a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Requests, or what they cost.
    #[default]
    Requests,
    /// Requests in progress.
    ConcurrentRequests,
}

/// How one limit stands, as a caller may be told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The limit's name: that of its limiter, and a number behind it if that has several rates.
    pub name: Arc<str>,
    /// The limit as the policy states it: `50/s, burst 100`, or `20 requests in progress`.
    pub stated: Arc<str>,
    /// How much may be had in a window, or at once.
    pub quota: u64,
    /// The window; none for requests in progress.
    pub window: Option<Nanos>,
    /// What is counted.
    pub unit: Unit,
    /// How much is left.
    pub remaining: u64,
    /// How long until a request like this one fits: zero if it does now, none if it never will.
    pub retry_after: Option<Nanos>,
    /// How long until everything is available again.
    pub reset_after: Nanos,
}

/// A request that may not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What kind of limiter refused.
    pub reason: Reason,
    /// The limiter that keeps the caller away the longest.
    pub limiter: Arc<str>,
    /// How long to stay away. None: a request like this one will never pass.
    pub retry_after: Option<Nanos>,
    /// The limits that were exceeded, the one that takes longest first. None for shedders and lists.
    pub exceeded: Vec<Standing>,
}
