//! What every store can do, whether it answers at once from memory or over a network.

use std::future::Future;

use thiserror::Error;

use crate::concurrency::InProgress;
use crate::error::LimitError;
use crate::key::KeyRef;
use crate::limit::{Ask, Limit, Op};
use crate::outcome::{Outcome, Outcomes, Verdict};
use crate::time::Timestamp;

/// A limit that a store knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Rule(pub u32);

/// One limit of one key, and what is wanted of it.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit.
    pub rule: Rule,
    /// Who is limited.
    pub key: KeyRef<'a>,
    /// How much.
    pub ask: Ask,
}

/// Why a store could not decide. Never a refusal: whoever gets this decides whether to let the call pass.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing that could be forgotten would make enough room: what is there are requests in progress, or
    /// one key's log is too large for the ceiling.
    #[error(
        "the store's {bytes} bytes have no room for this key: raise its memory ceiling, or lower the limits \
         whose states are large (logs, requests in progress)"
    )]
    Full {
        /// The ceiling.
        bytes: usize,
    },
    /// The limit is right, but this store cannot keep it.
    #[error("this store cannot keep the limit: {0}")]
    Unsupported(LimitError),
    /// The store did not answer, or not in time. The call may or may not have been charged.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// The rule was made by another store.
    #[error("rule {0:?} is unknown to this store: define it here first")]
    UnknownRule(Rule),
}

/// What a limit does while its store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// Lets every call pass: nobody who is within the limit is rejected because the store is away.
    #[default]
    Open,
    /// Refuses every call.
    Closed,
    /// Decides in this process by its share of the limit: [`Limit::divided_among`] the nodes that use the store. A caller
    /// whose requests reach the nodes unevenly is rejected before it has used its whole limit.
    Local,
}

/// Keeps the states of all limits of all keys.
///
/// `at` is the time for those who bring their own (tests, simulations, replays); without it the store reads
/// its clock. Time never goes back: an earlier `at` counts as the latest one seen.
pub trait Store: Send + Sync {
    /// Makes a limit known. Rules of one family share what a key has used: moving a key from one to another
    /// keeps it.
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError>;

    /// As [`define`](Self::define), and says what becomes of the limit while the store is away. A store that never is has no
    /// use for it.
    fn define_with(&self, family: &str, limit: Limit, on_failure: OnFailure) -> Result<Rule, StoreError> {
        let _ = on_failure;
        self.define(family, limit)
    }

    /// Whether others share this store: requests in progress then need leases that expire, and an answer takes its time.
    fn is_shared(&self) -> bool {
        true
    }

    /// Whether a limit does what [`define_with`](Self::define_with) was told while the store is away. A store that others share
    /// is away at times, and by itself answers with an error then, whatever it was told; one that is never away has nothing to
    /// keep.
    fn keeps_failure_modes(&self) -> bool {
        !self.is_shared()
    }

    /// From `at` on, the rule means another limit. What was used under the old one stays used.
    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError>;

    /// From now on `new`, of the same family, is asked for instead of `old`, because a policy was changed. Until then
    /// what was used under the old one ages by it, and from then on by the new one. A store that moves what was used as soon
    /// as it sees it under another rule has nothing to do.
    fn supersede(&self, old: Rule, new: Rule) {
        let _ = (old, new);
    }

    /// Decides all charges of one call at one instant: all are taken, or none.
    fn charge(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send;

    /// As [`charge`](Self::charge), for a usual call to a store that answers on the spot: whether all charges were taken, and in
    /// `told` what each of them is told. None for every other: nothing has happened then, and what is in `told` means nothing.
    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
        told: &mut Outcomes,
    ) -> Option<bool> {
        let _ = (charges, at, told);
        None
    }

    /// As [`charge`](Self::charge), for a decision that no request waits for, such as that of a dark limiter.
    ///
    /// The store accepts the decision when the future is first polled. Decisions and releases of one key that are sent by
    /// this method and by [`give_back_in_order`](Self::give_back_in_order) take effect in the order in which they were
    /// accepted.
    fn charge_in_order(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
    ) -> impl Future<Output = Result<Verdict, StoreError>> + Send {
        self.charge(charges, at)
    }

    /// Does one thing to one limit of one key.
    fn apply(
        &self,
        op: Op,
        charge: Charge<'_>,
        at: Option<Timestamp>,
    ) -> impl Future<Output = Result<Outcome, StoreError>> + Send;

    /// Forgets what a key has used of a rule's family.
    fn reset(&self, rule: Rule, key: KeyRef<'_>) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// What a key has in progress under a concurrency limit or a fleet.
    fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> impl Future<Output = Result<InProgress, StoreError>> + Send;

    /// Gives a lease back without waiting: for those who cannot, because they are being dropped.
    fn give_back(&self, charge: Charge<'_>);

    /// Gives back a lease whose [`charge_in_order`](Self::charge_in_order) has no answer yet. The release takes effect after
    /// that charge and before charges that are sent later. False if the store cannot accept it now: then the lease must be
    /// given back by [`give_back`](Self::give_back) once the charge was answered.
    #[must_use]
    fn give_back_in_order(&self, charge: Charge<'_>) -> bool {
        let _ = charge;
        false
    }

    /// Whether this key's decisions can be had at this moment, as far as is known. If not, asking is a waste of time.
    fn answers_for(&self, _key: KeyRef<'_>) -> bool {
        true
    }

    /// How many processes use this store, as far as is known.
    fn nodes(&self) -> u64 {
        1
    }
}
