//! A request that may not pass, and what its caller is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::Timestamp;
use tollgate_core::answer::{self, Answer, Fields};
use tollgate_core::decision::{Reason, Refused, Standing};

use super::running::Running;

/// Why a request may not pass, and when to come back.
///
/// ```
/// use tollgate::{Facts, Limiter, Reason};
///
/// let limiter = Limiter::from_policy("limiters: { all: { rate: 1/min, per: global } }")?;
/// let _permit = limiter.admit_now(&Facts::default());
/// let refusal = limiter.admit_now(&Facts::default()).unwrap_err();
/// assert_eq!((refusal.reason(), refusal.limiter(), refusal.status()), (Reason::Rate, "all", 429));
/// let answer = refusal.answer(None, "/v1/users");
/// assert!(answer.headers.iter().any(|(name, value)| *name == "retry-after" && value == "60"));
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
#[derive(Clone)]
pub struct Refusal(Box<Inner>);

#[derive(Clone)]
struct Inner {
    refused: Refused,
    running: Arc<Running>,
    class: Option<usize>,
    plan: Option<usize>,
    /// The limit that was exceeded, if it was one alone: its place among [`Running::ruled`].
    exceeded: Option<usize>,
    degraded: bool,
    now: Timestamp,
    draw: u32,
}

impl Refusal {
    pub(super) fn new(refused: Refused, running: Arc<Running>, now: Timestamp, draw: u32) -> Self {
        let (class, plan, exceeded, degraded) = (None, None, None, false);
        Self(Box::new(Inner { refused, running, class, plan, exceeded, degraded, now, draw }))
    }

    /// The same, by one limit alone, or perhaps without the store.
    pub(super) fn by(mut self, exceeded: Option<usize>, degraded: bool) -> Self {
        (self.0.exceeded, self.0.degraded) = (exceeded, degraded);
        self
    }

    /// The same, of a request of this class and plan.
    pub(super) fn of(mut self, class: usize, plan: Option<usize>) -> Self {
        (self.0.class, self.0.plan) = (Some(class), plan);
        self
    }

    /// The class of the request. None if its caller is on the block list: then nobody asks.
    pub fn class(&self) -> Option<&str> {
        self.0.class.map(|class| self.0.running.policy.class_name(class))
    }

    /// The caller's plan.
    pub fn plan(&self) -> Option<&str> {
        self.0.running.policy.plans().get(self.0.plan?).map(|plan| &*plan.name)
    }

    /// What kind of limiter refused.
    pub fn reason(&self) -> Reason {
        self.0.refused.reason
    }

    /// The limiter that keeps the caller away the longest.
    pub fn limiter(&self) -> &str {
        &self.0.refused.limiter
    }

    /// How long to stay away. None: a request like this one will never pass.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.refused.retry_after.map(Duration::from)
    }

    /// The caller's own limits that were exceeded, the one that takes longest first.
    pub fn exceeded(&self) -> &[Standing] {
        &self.0.refused.exceeded
    }

    /// Whether something was decided without the store.
    pub fn is_degraded(&self) -> bool {
        self.0.degraded
    }

    /// The status of an answer over HTTP: 429 if the caller has done too much, 503 if there is too much of everything.
    pub fn status(&self) -> u16 {
        self.reason().status()
    }

    /// The whole answer over HTTP, in a form that the caller accepts. `instance` is what was asked for.
    pub fn answer(&self, accept: Option<&[u8]>, instance: &str) -> Answer {
        self.answer_in(accept, instance)
    }

    /// The same, with headers of any kind.
    pub fn answer_in<F: Fields + Default>(&self, accept: Option<&[u8]>, instance: &str) -> Answer<F> {
        let Inner { refused, running, exceeded, now, draw, .. } = &*self.0;
        let (style, seconds) = (running.policy.answers(), now.as_nanos() / 1_000_000_000);
        let told = exceeded.and_then(|place| running.ruled.get(place)).map(|ruled| &ruled.told);
        answer::refusal_in(refused, told, style, accept, instance, seconds, *draw)
    }

    /// The code and the message of an answer over gRPC.
    pub fn grpc(&self) -> (u32, String) {
        answer::grpc(&self.0.refused)
    }

    /// Plain data, for doors of one's own.
    pub fn refused(&self) -> &Refused {
        &self.0.refused
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Refusal").field(&self.0.refused).finish()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.grpc().1)
    }
}

impl std::error::Error for Refusal {}
