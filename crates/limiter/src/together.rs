//! One call that several limiters decide together, each by a key of its own.

use std::sync::Arc;

use tollgate_core::key::{Key, KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, StoreError};
use tollgate_core::{Outcome, Timestamp, Verdict};

use crate::memory::MemoryStore;
use crate::rate::{RateLimiter, Refused, answer};

/// One call that several limiters decide, each by a key of its own: it is charged to all of them, or to none.
///
/// ```
/// use std::net::Ipv4Addr;
/// use std::sync::Arc;
/// use tollgate::{MemoryStore, RateLimiter, Together};
///
/// let store = Arc::new(MemoryStore::new());
/// let per_user = RateLimiter::per_hour(100).store(&store).build();
/// let per_address = RateLimiter::per_hour(2).store(&store).build();
/// let home = Ipv4Addr::new(192, 0, 2, 1);
///
/// for _ in 0..2 {
///     assert!(Together::new().charge(&per_user, "alice").charge(&per_address, home).check().is_ok());
/// }
/// let refused = Together::new().charge(&per_user, "alice").charge(&per_address, home).check().unwrap_err();
/// assert_eq!(refused.limit, 1); // the address, and the user has paid nothing for it
/// assert_eq!(per_user.peek("alice", 1).unwrap().remaining, 98);
/// ```
///
/// Limiters of one [`store`](crate::RateLimiterBuilder::store) are charged at the same instant. Limiters of several
/// stores are all asked first, then charged store by store; when another call was faster at a later one, what the earlier
/// ones took is given back.
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is decided until `check`"]
pub struct Together<'l> {
    charges: Vec<Entry<'l>>,
}

#[derive(Clone, Debug)]
struct Entry<'l> {
    store: &'l Arc<MemoryStore>,
    rule: Rule,
    kind: Kind,
    bytes: Vec<u8>,
    cost: u64,
}

impl Entry<'_> {
    fn charge(&self) -> Charge<'_> {
        let key = KeyRef { kind: self.kind, bytes: &self.bytes };
        Charge { rule: self.rule, key, ask: Ask::from(self.cost) }
    }
}

impl<'l> Together<'l> {
    /// A call that nobody limits yet.
    ///
    /// ```
    /// assert!(tollgate::Together::new().check().is_ok());
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// The call costs this key 1 of this limiter.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Together};
    /// let limiter = RateLimiter::per_hour(2).build();
    /// assert!(Together::new().charge(&limiter, "alice").charge(&limiter, "bob").check().is_ok());
    /// ```
    pub fn charge(self, limiter: &'l RateLimiter, key: impl Key) -> Self {
        self.charge_n(limiter, key, 1)
    }

    /// The call costs this key `n` of this limiter. What one key is charged twice counts together.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Together};
    /// let limiter = RateLimiter::per_hour(5).build();
    /// let transfer = Together::new().charge_n(&limiter, "alice", 2).charge_n(&limiter, "alice", 4);
    /// assert!(transfer.check().is_err());
    /// assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 5);
    /// ```
    pub fn charge_n(mut self, limiter: &'l RateLimiter, key: impl Key, n: u64) -> Self {
        key.with(|key| {
            for rule in limiter.rules() {
                let store = limiter.store();
                let entry = Entry { store, rule, kind: key.kind, bytes: key.bytes.to_vec(), cost: n };
                self.charges.push(entry);
            }
        });
        self
    }

    /// Decides the call. [`Refused::limit`] counts all limits of all limiters in the order given.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Together};
    /// let limiter = RateLimiter::per_second(10).and(Quota::per_hour(100)).build();
    /// assert_eq!(Together::new().charge(&limiter, "alice").check().unwrap().remaining, 9);
    /// ```
    pub fn check(&self) -> Result<Outcome, Refused> {
        self.decide(None)
    }

    /// As [`check`](Self::check), at a time of the caller's own.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Timestamp, Together};
    /// let limiter = RateLimiter::per_second(1).build();
    /// let call = Together::new().charge(&limiter, "alice");
    /// assert!(call.check_at(Timestamp::from_secs(7)).is_ok());
    /// assert!(call.check_at(Timestamp::from_secs(7)).is_err());
    /// assert!(call.check_at(Timestamp::from_secs(8)).is_ok());
    /// ```
    pub fn check_at(&self, now: Timestamp) -> Result<Outcome, Refused> {
        self.decide(Some(now))
    }

    fn decide(&self, at: Option<Timestamp>) -> Result<Outcome, Refused> {
        let mut stores: Vec<&Arc<MemoryStore>> = Vec::new();
        for entry in &self.charges {
            if !stores.iter().any(|store| Arc::ptr_eq(store, entry.store)) {
                stores.push(entry.store);
            }
        }
        let mut outcomes = vec![Outcome::allow(u64::MAX, 0); self.charges.len()];
        // With one store, it alone decides. With several, all are asked first: a refusal then has cost nothing, and tells
        // what every one of them says.
        let mut all = true;
        if stores.len() > 1 {
            for store in &stores {
                all &= self.tell(store, &mut outcomes, store.estimate_together(&self.of(store), at));
            }
        }
        let mut taken: Vec<(&Arc<MemoryStore>, Timestamp)> = Vec::new();
        for store in stores {
            let refuses =
                || self.in_store(store).any(|(index, _)| outcomes.get(index).is_some_and(|of| !of.allowed));
            // If one refuses, only those that do are told of the call: some count what they refuse.
            if !all && !refuses() {
                continue;
            }
            let (decided, now) = match store.decide_all_at(&self.of(store), at) {
                Ok((verdict, now)) => (Ok(verdict), now),
                Err(error) => (Err(error), store.now()),
            };
            if !all && decided.as_ref().is_ok_and(|verdict| verdict.allowed) {
                // It has changed its mind since it was asked. The call stays refused.
                self.undo(store, now, at);
            } else if self.tell(store, &mut outcomes, decided) {
                taken.push((store, now));
            } else if all {
                // Somebody was faster: nothing more is taken, and the others say how it stands.
                all = false;
                for (earlier, taken) in taken.drain(..) {
                    self.undo(earlier, taken, at);
                    self.tell(earlier, &mut outcomes, earlier.estimate_together(&self.of(earlier), at));
                }
            }
        }
        answer(&Verdict::of(outcomes))
    }

    /// The charges of one store, and their positions.
    fn in_store<'s>(&'s self, store: &'s Arc<MemoryStore>) -> impl Iterator<Item = (usize, &'s Entry<'l>)> {
        self.charges.iter().enumerate().filter(move |(_, entry)| Arc::ptr_eq(entry.store, store))
    }

    fn of(&self, store: &Arc<MemoryStore>) -> Vec<Charge<'_>> {
        let of_store = self.charges.iter().filter(|entry| Arc::ptr_eq(entry.store, store));
        of_store.map(Entry::charge).collect()
    }

    /// Puts what a store says in its places; whether it allows the call. A store that cannot decide lets the call pass,
    /// and counts that.
    fn tell(
        &self,
        store: &Arc<MemoryStore>,
        outcomes: &mut [Outcome],
        said: Result<Verdict, StoreError>,
    ) -> bool {
        let places: Vec<usize> = self.in_store(store).map(|(index, _)| index).collect();
        let verdict = said.unwrap_or_else(|_| Verdict::of(vec![store.fail_open(); places.len()]));
        for (place, outcome) in places.into_iter().zip(&verdict.outcomes) {
            if let Some(place) = outcomes.get_mut(place) {
                *place = *outcome;
            }
        }
        verdict.allowed
    }

    fn undo(&self, store: &Arc<MemoryStore>, taken: Timestamp, at: Option<Timestamp>) {
        for charge in self.of(store) {
            let ask = Ask { taken: Some(taken), ..charge.ask };
            // What was just charged is there, so giving it back cannot fail.
            let _ = store.decide(Op::Undo, Charge { ask, ..charge }, at);
        }
    }
}
