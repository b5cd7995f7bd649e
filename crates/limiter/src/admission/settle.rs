//! What a request has cost, where that is known only afterwards.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::SmallVec;
use tollgate_core::Timestamp;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::policy::{Charged, Cost, KeyBytes};
use tollgate_core::store::{Charge, Rule, Store};

use super::Shared;
use super::permit::{Dark, Held};
use super::running::Running;

/// Says what a request has cost, in all limits whose cost is only known afterwards (`cost: { response_header: ... }`). It
/// works for as long as anybody has it: after the handler has returned, while the body of its answer streams, and when the
/// permit has ended.
///
/// The tower layer puts one among the extensions of each request that has such a limit; elsewhere it is had from
/// [`Permit::settle_later`](super::Permit::settle_later).
///
/// ```
/// use tollgate::{Facts, Limiter};
///
/// let limiter = Limiter::from_policy(
///     "limiters: { tokens: { rate: 100/h, per: global, cost: { response_header: x-tokens, otherwise: 80 } } }",
/// )?;
/// let permit = limiter.admit_now(&Facts::default()).unwrap();
/// let settle = permit.settle_later().expect("a limit is settled");
/// drop(permit);
/// assert!(limiter.admit_now(&Facts::default()).is_err(), "80 of 100 are taken");
/// settle.settle(20);
/// assert!(limiter.admit_now(&Facts::default()).is_ok());
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
///
/// With a shared store it has to be called within a tokio runtime.
#[derive(Clone)]
pub struct Settle {
    by: Arc<dyn Settling>,
    bill: Arc<Bill>,
}

impl Settle {
    pub(super) fn new<S: Store + 'static>(by: &Arc<Shared<S>>, bill: &Arc<Bill>) -> Self {
        let by: Arc<Shared<S>> = Arc::clone(by);
        Self { by, bill: Arc::clone(bill) }
    }

    /// The request has turned out to cost this much. The first word counts, be it this or a header of the answer. What was
    /// charged too much goes back; what was too little is charged as far as it is there.
    pub fn settle(&self, cost: u64) {
        Arc::clone(&self.by).settle(&self.bill, cost);
    }
}

impl fmt::Debug for Settle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settle").finish_non_exhaustive()
    }
}

/// Whoever has the store.
trait Settling: Send + Sync {
    fn settle(self: Arc<Self>, bill: &Bill, cost: u64);
}

impl<S: Store + 'static> Settling for Shared<S> {
    fn settle(self: Arc<Self>, bill: &Bill, cost: u64) {
        self.settle_bill(bill, |_| Some(cost));
    }
}

/// What is settled of a request, and whether it was.
pub(super) struct Bill {
    /// Limiters whose cost is settled, and whether it has been.
    limiters: SmallVec<[(usize, AtomicBool); 2]>,
    rates: Vec<(Charged, KeyBytes, Rule)>,
    dark: Option<Arc<Dark>>,
    taken_at: Timestamp,
    running: Arc<Running>,
}

impl Bill {
    /// The bill of a request, if there is something to settle.
    pub(super) fn of(held: &Held) -> Option<Arc<Self>> {
        if !held.running.has_settled {
            return None;
        }
        let toll = held.toll();
        let limiters: SmallVec<[(usize, AtomicBool); 2]> = toll
            .charged
            .iter()
            .filter(|charged| header_of(&held.running, charged.limiter).is_some())
            .map(|charged| (charged.limiter, AtomicBool::new(false)))
            .collect();
        if limiters.is_empty() {
            return None;
        }
        let rates = toll.dues.iter().filter(|due| !due.is_held).filter_map(|due| {
            header_of(&held.running, due.limiter)?;
            Some((*toll.charged_to(due.limiter)?, due.key(&held.keys)?.clone(), due.rule))
        });
        Some(Arc::new(Self {
            limiters,
            rates: rates.collect(),
            dark: held.dark.clone(),
            taken_at: held.taken_at,
            running: Arc::clone(&held.running),
        }))
    }

    /// Whether it is known what the request has cost in a limiter.
    pub(super) fn is_settled(&self, limiter: usize) -> bool {
        self.limiters
            .iter()
            .any(|(known, is_settled)| *known == limiter && is_settled.load(Ordering::Acquire))
    }
}

/// The header of the answer that tells what a limiter is charged, if it is settled.
fn header_of(running: &Running, limiter: usize) -> Option<&str> {
    match &running.policy.limiters().get(limiter)?.cost {
        Cost::Settled { header, .. } => Some(header),
        _ => None,
    }
}

impl<S: Store + 'static> Shared<S> {
    /// Settles what has not been settled yet. `cost` is told the header that would tell it.
    pub(super) fn settle_bill(self: &Arc<Self>, bill: &Bill, cost: impl Fn(&str) -> Option<u64>) {
        for (limiter, is_settled) in &bill.limiters {
            let limiter = *limiter;
            let Some(cost) = header_of(&bill.running, limiter).and_then(&cost) else { continue };
            if is_settled.swap(true, Ordering::AcqRel) {
                continue;
            }
            let mut rates: Vec<(Charged, KeyBytes, Rule)> = bill.rates.clone();
            bill.dark.iter().for_each(|dark| dark.charged_to(&mut rates));
            for (charged, key, rule) in rates.into_iter().filter(|(charged, ..)| charged.limiter == limiter) {
                // By now the bucket has gone on: what is charged or given back is so at this moment.
                let (estimate, taken_at, at) = (charged.cost, bill.taken_at, self.at(self.clock.now()));
                let shared = Arc::clone(self);
                self.aside(async move { shared.settle_rate(rule, &key, estimate, cost, taken_at, at).await });
            }
        }
    }

    async fn settle_rate(
        &self,
        rule: Rule,
        key: &KeyBytes,
        estimate: u64,
        cost: u64,
        taken_at: Timestamp,
        at: Option<Timestamp>,
    ) {
        let key = KeyRef { kind: Kind::Bytes, bytes: key };
        if cost <= estimate {
            let ask = Ask { taken: Some(taken_at), ..Ask::from(estimate - cost) };
            let _ = self.store.apply(Op::Refund, Charge { rule, key, ask }, at).await;
            return;
        }
        // Nobody can be refused any more: what is missing is taken as far as it is there.
        let mut more = cost - estimate;
        while more > 0 {
            let ask = Ask::from(more);
            match self.store.apply(Op::Charge, Charge { rule, key, ask }, at).await {
                Ok(outcome) if !outcome.allowed && outcome.remaining > 0 && outcome.remaining < more => {
                    more = outcome.remaining;
                }
                _ => return,
            }
        }
    }
}
