//! Leases of requests that are in progress, and when each must be renewed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::policy::KeyBytes;
use tollgate_core::store::{Charge, Rule, Store};
use tollgate_core::{Nanos, Timestamp};

use super::Shared;

/// Leases that this process holds in a shared store.
#[derive(Debug, Default)]
pub(super) struct Leases {
    next: AtomicU64,
    live: Mutex<HashMap<u64, Vec<Lease>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) rule: Rule,
    pub(super) key: KeyBytes,
    pub(super) ask: Ask,
    pub(super) every: Nanos,
    pub(super) due: Timestamp,
    /// Whether a store holds it. It does not while the store is away and lets requests pass.
    pub(super) is_granted: bool,
}

impl Leases {
    /// Has leases renewed until they are forgotten.
    pub(super) fn keep(&self, leases: Vec<Lease>) -> Option<u64> {
        if leases.is_empty() {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.live.lock().insert(number, leases);
        Some(number)
    }

    /// Has leases renewed no more, and says how they stand.
    pub(super) fn forget(&self, number: u64) -> Vec<Lease> {
        self.live.lock().remove(&number).unwrap_or_default()
    }

    /// A lease was taken again. False if its request has ended meanwhile.
    fn granted(&self, number: u64, taken: &Lease) -> bool {
        let mut live = self.live.lock();
        let lease = live.get_mut(&number).and_then(|leases| leases.iter_mut().find(|lease| lease.is(taken)));
        lease.map(|lease| lease.is_granted = true).is_some()
    }

    /// One that is not to be renewed any more.
    fn give_up(&self, number: u64, lost: &Lease) {
        if let Some(leases) = self.live.lock().get_mut(&number) {
            leases.retain(|lease| !lease.is(lost));
        }
    }

    /// Those that must be renewed now, and from now on again after their time; with the numbers under which they are kept.
    fn due(&self, now: Timestamp) -> Vec<(u64, Lease)> {
        let mut live = self.live.lock();
        let mut due = Vec::new();
        for (number, leases) in live.iter_mut() {
            for lease in leases.iter_mut().filter(|lease| lease.due <= now) {
                lease.due = now + lease.every;
                due.push((*number, lease.clone()));
            }
        }
        due
    }
}

impl Lease {
    fn is(&self, other: &Self) -> bool {
        self.rule == other.rule && self.ask.lease == other.ask.lease
    }
}

impl<S: Store + 'static> Shared<S> {
    /// Renews what must be.
    pub(super) async fn renew_due(&self) {
        let now = self.clock.now();
        for (number, lease) in self.leases.due(now) {
            let key = KeyRef { kind: Kind::Bytes, bytes: &lease.key };
            let charge = Charge { rule: lease.rule, key, ask: lease.ask };
            let renewed = self.store.apply(Op::Renew, charge, self.at(now)).await;
            if renewed.is_ok_and(|outcome| !outcome.allowed) {
                // The store has forgotten it. It is taken again if there is room; else the request goes on uncounted.
                match self.store.charge(&[charge], self.at(now)).await {
                    Ok(retaken) if !retaken.allowed => {
                        self.counts.leases_lost.add();
                        self.leases.give_up(number, &lease);
                    }
                    Ok(retaken) if retaken.degraded.is_empty() && !self.leases.granted(number, &lease) => {
                        self.give_back(charge);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Renews leases for as long as anybody can take one.
pub(super) async fn renew<S: Store + 'static>(shared: Weak<Shared<S>>) {
    /// Leases last a second at least, and are renewed after a third of their time.
    const TICK: Duration = Duration::from_millis(250);
    loop {
        tokio::time::sleep(TICK).await;
        let Some(shared) = shared.upgrade() else { return };
        shared.renew_due().await;
    }
}

/// Takes samples of utilization for as long as anybody can ask, and looks at the shedders every second.
pub(super) async fn sample<S: Store + 'static>(shared: Weak<Shared<S>>) {
    /// How often it is looked whether another policy wants them more often.
    const TICK: Duration = Duration::from_secs(1);
    let mut waited = Duration::ZERO;
    loop {
        let every: Duration = match shared.upgrade() {
            Some(shared) => {
                let worker = shared.running.load().worker.as_ref().map(Arc::clone);
                worker.map_or(TICK, |worker| worker.policy.every.into())
            }
            None => return,
        };
        let wait = every.saturating_sub(waited).min(TICK);
        tokio::time::sleep(wait).await;
        waited += wait;
        let Some(shared) = shared.upgrade() else { return };
        if waited < every {
            shared.log_shedding();
            continue;
        }
        waited = Duration::ZERO;
        shared.sample();
    }
}
