//! How many processes use the store: each of them holds a lease, and renews it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::Outcome;
use tollgate_core::concurrency::LeaseId;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::Ask;

use crate::keys::{Names, Subject};
use crate::limits::Parameters;
use crate::link::Probe;
use crate::store::Known;
use crate::wire::Act;

/// Under which all nodes of a store hold their leases.
pub(crate) const NODES: KeyRef<'static> = KeyRef { kind: Kind::Bytes, bytes: b"tollgate nodes" };

/// A lease that is taken only to see whether it can be.
pub(crate) fn probe(names: &Names) -> Probe {
    let rule = Known::new("tollgate probe", Parameters::leases(MOST, Duration::from_secs(1)));
    let (names, lease) = (names.clone(), LeaseId(rand::random()));
    Box::new(move |tag| {
        rule.message(&names, Subject::with_tag(tag), Act::Charge, Ask { lease, ..Ask::from(1) })
    })
}

/// More than anybody runs.
const MOST: u64 = 1 << 20;

/// Heartbeats for which a node that has gone still counts, and for which the largest number counts.
const BEATS: u32 = 3;

/// This node, and how many there are.
#[derive(Debug)]
pub(crate) struct Nodes {
    rule: Known,
    lease: LeaseId,
    heartbeat: Duration,
    count: AtomicU64,
    seen: Mutex<Seen>,
    left: AtomicBool,
}

#[derive(Debug, Default)]
struct Seen {
    /// The last few numbers. The largest counts: a store that comes back empty hears of its nodes one by one.
    counts: [u64; BEATS as usize + 1],
    next: usize,
}

impl Nodes {
    /// This node, which says so at every heartbeat, and how many are expected.
    pub(crate) fn new(heartbeat: Duration, expected: u64) -> Self {
        let lasts = heartbeat.saturating_mul(BEATS);
        Self {
            rule: Known::new("tollgate nodes", Parameters::leases(MOST, lasts)),
            lease: LeaseId(rand::random()),
            heartbeat,
            count: AtomicU64::new(expected),
            seen: Mutex::default(),
            left: AtomicBool::new(false),
        }
    }

    pub(crate) fn rule(&self) -> &Known {
        &self.rule
    }

    pub(crate) fn lease(&self) -> Ask {
        Ask { lease: self.lease, ..Ask::from(1) }
    }

    pub(crate) fn heartbeat(&self) -> Duration {
        self.heartbeat
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// From now on this node is not announced any more.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// Whether the store says that nobody is left.
    pub(crate) fn is_nobody(outcome: Outcome) -> bool {
        outcome.remaining == MOST
    }

    /// Takes note of the store's answer.
    pub(crate) fn heard(&self, outcome: Outcome) {
        let mut seen = self.seen.lock();
        let next = seen.next % seen.counts.len();
        seen.next = next + 1;
        if let Some(place) = seen.counts.get_mut(next) {
            *place = MOST - outcome.remaining.min(MOST - 1);
        }
        self.count.store(seen.counts.iter().copied().max().unwrap_or(1).max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nodes: u64) -> Outcome {
        Outcome::allow(MOST - nodes, 0)
    }

    #[test]
    fn the_largest_of_the_last_numbers_counts() {
        let nodes = Nodes::new(Duration::from_secs(5), 3);
        assert_eq!(nodes.count(), 3, "as expected, until it is known");
        nodes.heard(of(12));
        assert_eq!(nodes.count(), 12);
        // The store comes back empty, and the others announce themselves again within a few heartbeats.
        for _ in 0..BEATS {
            nodes.heard(of(1));
            assert_eq!(nodes.count(), 12);
        }
        nodes.heard(of(2));
        assert_eq!(nodes.count(), 2);
    }
}
