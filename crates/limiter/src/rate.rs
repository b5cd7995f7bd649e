//! The request rate limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashMap;
use thiserror::Error;
use tollgate_core::key::{Key, KeyRef, Kind};
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule, StoreError};
use tollgate_core::{Limit, LimitError, Outcome, Timestamp, Verdict};

use crate::clock::{AnyClock, Clock};
use crate::memory::{KnownRule, MemoryStore, MemoryStoreBuilder};
use crate::quota::Quota;

/// Limits how often each key may do something.
///
/// ```
/// use tollgate::RateLimiter;
///
/// let limiter = RateLimiter::per_second(100).burst(500).build();
/// match limiter.check("alice") {
///     Ok(outcome) => println!("go ahead, {} left", outcome.remaining),
///     Err(refused) => println!("come back in {:?}", refused.retry_after()),
/// }
/// ```
///
/// Share it by reference or clone it: clones are cheap and limit together.
#[derive(Clone, Debug)]
pub struct RateLimiter {
    store: Arc<MemoryStore>,
    /// The limits, at least one.
    first: Arc<KnownRule>,
    more: Arc<[KnownRule]>,
    plans: Arc<HashMap<String, RateLimiter>>,
    /// A rule of every family that the limiter and its plans use.
    families: Arc<[Rule]>,
}

/// A call that may not proceed.
///
/// ```
/// use tollgate::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::per_second(10).and(Quota::per_hour(1)).build();
/// limiter.check("alice").unwrap();
/// let refused = limiter.check("alice").unwrap_err();
/// assert_eq!(refused.limit, 1); // the hour's
/// assert_eq!(refused.outcome.remaining, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub struct Refused {
    /// What the limits said.
    pub outcome: Outcome,
    /// Which of several limits makes the call wait longest, counted from 0.
    pub limit: usize,
}

impl Refused {
    /// When the same call would pass; `None` if it never will, because it costs more than the whole quota. Zero
    /// from a concurrency limit: any moment, as soon as something in progress ends; back off a little.
    ///
    /// ```
    /// use tollgate::{ManualClock, RateLimiter};
    /// use std::time::Duration;
    ///
    /// let limiter = RateLimiter::per_second(1).clock(ManualClock::default()).build();
    /// assert!(limiter.check("bob").is_ok());
    /// assert_eq!(limiter.check("bob").unwrap_err().retry_after(), Some(Duration::from_secs(1)));
    /// assert_eq!(limiter.check_n("bob", 2).unwrap_err().retry_after(), None);
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome.retry_after.map(Duration::from)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.retry_after() {
            Some(Duration::ZERO) => {
                f.write_str("refused by the limit: retry when something in progress has ended")
            }
            Some(wait) => write!(f, "refused by the limit: retry in {wait:?}"),
            None => f.write_str("refused by the limit for good: the call costs more than the whole quota"),
        }
    }
}

/// Builds a [`RateLimiter`].
///
/// ```
/// # use tollgate::RateLimiter;
/// let limiter = RateLimiter::per_second(10).burst(50).name("search").build();
/// # assert!(limiter.check("alice").is_ok());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct RateLimiterBuilder {
    quota: Quota,
    more: Vec<Quota>,
    plans: Vec<(String, Vec<Quota>)>,
    name: Option<String>,
    store: Result<Arc<MemoryStore>, MemoryStoreBuilder>,
    clock: Option<AnyClock>,
}

impl RateLimiter {
    /// `count` calls per second and key, in bursts of as many unless [`burst`](RateLimiterBuilder::burst)
    /// says otherwise.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(100).build();
    /// assert_eq!(limiter.check("alice").unwrap().remaining, 99);
    /// ```
    pub fn per_second(count: u64) -> RateLimiterBuilder {
        Self::builder(Quota::per_second(count))
    }

    /// `count` calls per minute and key.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_minute(60).burst(5).build();
    /// assert_eq!(limiter.check("alice").unwrap().remaining, 4);
    /// ```
    pub fn per_minute(count: u64) -> RateLimiterBuilder {
        Self::builder(Quota::per_minute(count))
    }

    /// `count` calls per hour and key.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_hour(1000).build();
    /// assert!(limiter.check_n("alice", 1001).is_err());
    /// ```
    pub fn per_hour(count: u64) -> RateLimiterBuilder {
        Self::builder(Quota::per_hour(count))
    }

    /// `count` calls per day of 24 hours and key.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_day(10_000).burst(100).build();
    /// assert!(limiter.check_n("alice", 100).is_ok());
    /// ```
    pub fn per_day(count: u64) -> RateLimiterBuilder {
        Self::builder(Quota::per_day(count))
    }

    /// `count` calls per `period` and key.
    ///
    /// ```
    /// # use tollgate::RateLimiter; use std::time::Duration;
    /// let limiter = RateLimiter::per(3, Duration::from_millis(200)).build();
    /// # assert!(limiter.check("x").is_ok());
    /// ```
    pub fn per(count: u64, period: Duration) -> RateLimiterBuilder {
        Self::builder(Quota::per(count, period))
    }

    /// A limiter for any quota.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let login = RateLimiter::builder(Quota::per_minute(5).sliding_log()).build();
    /// # assert!(login.check("alice").is_ok());
    /// ```
    pub fn builder(quota: Quota) -> RateLimiterBuilder {
        RateLimiterBuilder {
            quota,
            more: Vec::new(),
            plans: Vec::new(),
            name: None,
            store: Err(MemoryStore::builder()),
            clock: None,
        }
    }

    /// Decides a call of cost 1, and charges it if it may proceed.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_hour(1).build();
    /// assert!(limiter.check("alice").is_ok());
    /// assert!(limiter.check("alice").is_err());
    /// assert!(limiter.check(("alice", 443_u16)).is_ok()); // a key of two parts is another key
    /// ```
    #[inline(always)]
    pub fn check(&self, key: impl Key) -> Result<Outcome, Refused> {
        self.check_n(key, 1)
    }

    /// Decides a call of cost `n`. Cost 0 looks without taking; a cost above the whole quota is refused for
    /// good.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(10).build();
    /// assert_eq!(limiter.check_n("batch", 8).unwrap().remaining, 2);
    /// assert!(limiter.check_n("batch", 3).is_err());
    /// ```
    #[inline(always)]
    pub fn check_n(&self, key: impl Key, n: u64) -> Result<Outcome, Refused> {
        key.with(
            #[inline(always)]
            |key| self.charge(key, n, None),
        )
    }

    /// As [`check`](Self::check), at a time of the caller's own. Time is the store's: it never goes back for any
    /// key, so a time far ahead holds for all of them. Do not take it from callers.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Timestamp};
    /// let limiter = RateLimiter::per_second(1).build();
    /// assert!(limiter.check_at("bob", Timestamp::from_secs(7)).is_ok());
    /// assert!(limiter.check_at("bob", Timestamp::from_secs(7)).is_err());
    /// assert!(limiter.check_at("bob", Timestamp::from_secs(8)).is_ok());
    /// ```
    #[inline(always)]
    pub fn check_at(&self, key: impl Key, now: Timestamp) -> Result<Outcome, Refused> {
        self.check_n_at(key, 1, now)
    }

    /// As [`check_n`](Self::check_n), at a time of the caller's own.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Timestamp};
    /// let limiter = RateLimiter::per_second(10).build();
    /// assert!(limiter.check_n_at("bob", 10, Timestamp::from_secs(7)).is_ok());
    /// assert!(limiter.check_n_at("bob", 10, Timestamp::from_secs(8)).is_ok());
    /// ```
    #[inline(always)]
    pub fn check_n_at(&self, key: impl Key, n: u64, now: Timestamp) -> Result<Outcome, Refused> {
        key.with(
            #[inline(always)]
            |key| self.charge(key, n, Some(now)),
        )
    }

    /// What a call of cost `n` would be told, without taking anything: `remaining` is what is there now.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(10).build();
    /// assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 10);
    /// ```
    pub fn peek(&self, key: impl Key, n: u64) -> Result<Outcome, Refused> {
        key.with(|key| self.decide(Op::Estimate, key, Ask::from(n), None))
    }

    /// As [`peek`](Self::peek), at a time of the caller's own.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Timestamp};
    /// let limiter = RateLimiter::per_second(10).build();
    /// limiter.check_n_at("bob", 10, Timestamp::from_secs(7)).unwrap();
    /// assert!(limiter.peek_at("bob", 1, Timestamp::from_secs(7)).is_err());
    /// assert_eq!(limiter.peek_at("bob", 1, Timestamp::from_secs(8)).unwrap().remaining, 10);
    /// ```
    pub fn peek_at(&self, key: impl Key, n: u64, now: Timestamp) -> Result<Outcome, Refused> {
        key.with(|key| self.decide(Op::Estimate, key, Ask::from(n), Some(now)))
    }

    /// Gives back `n` of what a call took, for a call that turned out cheaper. Never above the quota.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_hour(100).build();
    /// limiter.check_n("query", 60).unwrap();
    /// assert_eq!(limiter.refund("query", 50).remaining, 90);
    /// ```
    pub fn refund(&self, key: impl Key, n: u64) -> Outcome {
        self.give_back(key, Ask::from(n), None)
    }

    /// As [`refund`](Self::refund), at a time of the caller's own.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Timestamp};
    /// let limiter = RateLimiter::per_hour(100).build();
    /// limiter.check_n_at("query", 60, Timestamp::from_secs(5)).unwrap();
    /// assert_eq!(limiter.refund_at("query", 50, Timestamp::from_secs(5)).remaining, 90);
    /// ```
    pub fn refund_at(&self, key: impl Key, n: u64, now: Timestamp) -> Outcome {
        self.give_back(key, Ask::from(n), Some(now))
    }

    /// As [`refund`](Self::refund), for what was taken at `taken`: a call that took long. What it took from a window
    /// that is over by now is not given back to the present one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{Clock, ManualClock, Quota, RateLimiter};
    ///
    /// let clock = ManualClock::default();
    /// let limiter = RateLimiter::builder(Quota::per_minute(100).fixed_window()).clock(clock.clone()).build();
    /// let begun = clock.now();
    /// limiter.check_n("report", 60).unwrap();
    /// clock.advance(Duration::from_secs(60)); // another minute has begun
    /// limiter.check_n("report", 60).unwrap();
    /// assert_eq!(limiter.refund_taken("report", 50, begun).remaining, 40);
    /// ```
    pub fn refund_taken(&self, key: impl Key, n: u64, taken: Timestamp) -> Outcome {
        self.give_back(key, Ask { taken: Some(taken), ..Ask::from(n) }, None)
    }

    fn give_back(&self, key: impl Key, ask: Ask, at: Option<Timestamp>) -> Outcome {
        key.with(|key| match self.decide(Op::Refund, key, ask, at) {
            Ok(outcome) | Err(Refused { outcome, .. }) => outcome,
        })
    }

    /// Forgets what a key has used: it starts afresh, under every plan.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_hour(1).build();
    /// limiter.check("alice").unwrap();
    /// limiter.reset("alice");
    /// assert!(limiter.check("alice").is_ok());
    /// ```
    pub fn reset(&self, key: impl Key) {
        key.with(|key| {
            for &rule in self.families.iter() {
                // Only an unknown rule can fail, and these are the store's own.
                let _ = self.store.forget(rule, key);
            }
        });
    }

    /// Decides the same call for many keys. Far faster than one by one once there are more keys than fit in the
    /// processor's caches, because the waits for memory overlap.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(1).build();
    /// let mut passed = Vec::new();
    /// limiter.check_many(&["a", "b", "a"], |key, outcome| passed.push((*key, outcome.allowed)));
    /// assert_eq!(passed, [("a", true), ("b", true), ("a", false)]);
    /// ```
    pub fn check_many<'k, K: Key>(&self, keys: &'k [K], each: impl FnMut(&'k K, Outcome)) {
        self.check_many_n(keys, 1, None, each);
    }

    /// As [`check_many`](Self::check_many), for calls of cost `n`, at a time of the caller's own if there is one.
    ///
    /// ```
    /// # use tollgate::{RateLimiter, Timestamp};
    /// let limiter = RateLimiter::per_second(3).build();
    /// let mut left = Vec::new();
    /// let now = Some(Timestamp::from_secs(7));
    /// limiter.check_many_n(&["a", "b", "a"], 2, now, |_, outcome| left.push(outcome.remaining));
    /// assert_eq!(left, [1, 1, 1]);
    /// ```
    pub fn check_many_n<'k, K: Key>(
        &self,
        keys: &'k [K],
        n: u64,
        at: Option<Timestamp>,
        mut each: impl FnMut(&'k K, Outcome),
    ) {
        if self.more.is_empty() {
            let each =
                |key, outcome: Result<_, _>| each(key, outcome.unwrap_or_else(|_| self.store.fail_open()));
            // Only an unknown rule can fail as a whole, and this is the store's own.
            let _ = self.store.decide_many(self.first.rule, keys, n, at, each);
            return;
        }
        for key in keys {
            match key.with(|key| self.charge(key, n, at)) {
                Ok(outcome) | Err(Refused { outcome, .. }) => each(key, outcome),
            }
        }
    }

    /// The limiter of a plan: the same keys, another quota. A key that moves to another plan keeps what it
    /// has used.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let limiter = RateLimiter::per_second(50)
    ///     .plan("standard", Quota::per_second(500))
    ///     .plan("pro", Quota::per_second(1000))
    ///     .build();
    /// assert_eq!(limiter.plan("pro").unwrap().check("alice").unwrap().remaining, 999);
    /// assert!(limiter.plan("gold").is_none());
    /// ```
    pub fn plan(&self, name: &str) -> Option<&Self> {
        self.plans.get(name)
    }

    /// The limiter of a plan, or this one if there is no such plan.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let limiter = RateLimiter::per_second(50).plan("pro", Quota::per_second(1000)).build();
    /// assert_eq!(limiter.plan_or_default("free").check("alice").unwrap().remaining, 49);
    /// ```
    pub fn plan_or_default(&self, name: &str) -> &Self {
        self.plan(name).unwrap_or(self)
    }

    /// Changes the first limit, for all keys and at once. What was used stays used.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let limiter = RateLimiter::per_hour(10).build();
    /// limiter.check_n("alice", 10).unwrap();
    /// limiter.set_quota(Quota::per_hour(15))?;
    /// assert_eq!(limiter.peek("alice", 1).unwrap().remaining, 5);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn set_quota(&self, quota: Quota) -> Result<(), LimitError> {
        self.change(0, quota, None)
    }

    /// As [`set_quota`](Self::set_quota), for the limit in a position, at a time of the caller's own if there is one.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter, Timestamp};
    /// let limiter = RateLimiter::per_second(10).and(Quota::per_hour(100)).build();
    /// limiter.set_quota_of(1, Quota::per_hour(5), Some(Timestamp::from_secs(7)))?;
    /// assert_eq!(limiter.peek_at("alice", 1, Timestamp::from_secs(7)).unwrap().remaining, 5);
    /// assert!(limiter.set_quota_of(2, Quota::per_hour(5), None).is_err());
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn set_quota_of(&self, limit: usize, quota: Quota, at: Option<Timestamp>) -> Result<(), LimitError> {
        self.change(limit, quota, at)
    }

    fn change(&self, position: usize, quota: Quota, at: Option<Timestamp>) -> Result<(), LimitError> {
        let limit = quota.limit()?;
        let Some(rule) = self.rules().nth(position) else {
            let allowed = format!("from 0 to {}", self.more.len());
            return Err(LimitError { field: "limit", value: position.to_string(), allowed });
        };
        // Only an unknown rule can fail, and this is the store's own.
        let _ = self.store.redefine(rule, limit, at);
        Ok(())
    }

    /// The store that keeps the states.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(50).build();
    /// limiter.check("alice").unwrap();
    /// assert_eq!(limiter.store().count_keys(None), 1);
    /// ```
    pub fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = Rule> + '_ {
        std::iter::once(&*self.first).chain(self.more.iter()).map(|known| known.rule)
    }

    #[inline(always)]
    fn charge(&self, key: KeyRef<'_>, n: u64, at: Option<Timestamp>) -> Result<Outcome, Refused> {
        if self.more.is_empty()
            && let Some(charged) = self.store.charge_bucket(&self.first, key, n, at)
        {
            return charged.map_err(|outcome| Refused { outcome, limit: 0 });
        }
        self.charge_slowly(key.kind, key.bytes, n, at)
    }

    #[cold]
    #[inline(never)]
    fn charge_slowly(
        &self,
        kind: Kind,
        bytes: &[u8],
        n: u64,
        at: Option<Timestamp>,
    ) -> Result<Outcome, Refused> {
        let key = KeyRef { kind, bytes };
        if !self.more.is_empty() {
            return self.decide_all(Op::Charge, key, Ask::from(n), at);
        }
        let charged = self.store.charge_one(&self.first, key, n, at);
        let outcome = charged.unwrap_or_else(|_| self.store.fail_open());
        if outcome.allowed { Ok(outcome) } else { Err(Refused { outcome, limit: 0 }) }
    }

    fn decide(&self, op: Op, key: KeyRef<'_>, ask: Ask, at: Option<Timestamp>) -> Result<Outcome, Refused> {
        if !self.more.is_empty() {
            return self.decide_all(op, key, ask, at);
        }
        let charge = Charge { rule: self.first.rule, key, ask };
        let outcome = self.store.decide(op, charge, at).unwrap_or_else(|_| self.store.fail_open());
        if outcome.allowed { Ok(outcome) } else { Err(Refused { outcome, limit: 0 }) }
    }

    fn decide_all(
        &self,
        op: Op,
        key: KeyRef<'_>,
        ask: Ask,
        at: Option<Timestamp>,
    ) -> Result<Outcome, Refused> {
        let charges: Vec<_> = self.rules().map(|rule| Charge { rule, key, ask }).collect();
        let one_by_one = || {
            let outcomes = charges.iter().map(|charge| self.store.decide(op, *charge, at));
            outcomes.collect::<Result<Vec<Outcome>, StoreError>>().map(Verdict::of)
        };
        let all = || self.store.decide_all_at(&charges, at).map(|(verdict, _)| verdict);
        let verdict = if op == Op::Charge { all() } else { one_by_one() };
        let Ok(verdict) = verdict else {
            return Ok(self.store.fail_open());
        };
        answer(&verdict)
    }
}

/// What a caller is told of several limits.
pub(crate) fn answer(verdict: &Verdict) -> Result<Outcome, Refused> {
    let longest = verdict.refused_by().max_by_key(|&limit| {
        verdict.outcomes.get(limit).map(|outcome| (outcome.retry_after.is_none(), outcome.retry_after))
    });
    let outcome = Outcome {
        allowed: verdict.allowed,
        remaining: verdict.remaining,
        retry_after: verdict.retry_after,
        reset_after: verdict.reset_after,
        delay: verdict.delay,
    };
    match longest {
        None => Ok(outcome),
        Some(limit) => Err(Refused { outcome, limit }),
    }
}

impl RateLimiterBuilder {
    /// How much may be taken at once; see [`Quota::burst`].
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(10).burst(50).build();
    /// assert!(limiter.check_n("alice", 50).is_ok());
    /// ```
    pub fn burst(mut self, burst: u64) -> Self {
        self.quota = self.quota.burst(burst);
        self
    }

    /// A further limit that holds at the same time: a call passes if all of them let it, and is charged to all
    /// or to none.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let limiter = RateLimiter::per_second(10).and(Quota::per_hour(1000)).build();
    /// # assert!(limiter.check("alice").is_ok());
    /// ```
    pub fn and(mut self, quota: Quota) -> Self {
        self.more.push(quota);
        self
    }

    /// Another quota for keys of a plan; see [`RateLimiter::plan`].
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let limiter = RateLimiter::per_second(50).plan("pro", Quota::per_second(1000)).build();
    /// assert!(limiter.plan("pro").is_some());
    /// ```
    pub fn plan(self, name: impl Into<String>, quota: Quota) -> Self {
        self.plan_of(name, [quota])
    }

    /// Several limits for keys of a plan.
    ///
    /// ```
    /// # use tollgate::{Quota, RateLimiter};
    /// let limiter = RateLimiter::per_second(5)
    ///     .and(Quota::per_day(1000))
    ///     .plan_of("pro", [Quota::per_second(50), Quota::per_day(100_000)])
    ///     .build();
    /// assert_eq!(limiter.plan("pro").unwrap().check("alice").unwrap().remaining, 49);
    /// ```
    pub fn plan_of(mut self, name: impl Into<String>, quotas: impl IntoIterator<Item = Quota>) -> Self {
        self.plans.push((name.into(), quotas.into_iter().collect()));
        self
    }

    /// Limiters of the same name in the same store share what a key has used. Without a name, a limiter is
    /// on its own.
    ///
    /// ```
    /// # use std::sync::Arc; use tollgate::{MemoryStore, RateLimiter};
    /// let store = Arc::new(MemoryStore::new());
    /// let reads = RateLimiter::per_hour(2).name("calls").store(&store).build();
    /// let writes = RateLimiter::per_hour(2).name("calls").store(&store).build();
    /// assert_eq!(reads.check("alice").unwrap().remaining, 1);
    /// assert_eq!(writes.check("alice").unwrap().remaining, 0);
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Keeps its states in a store that others use too.
    ///
    /// ```
    /// # use std::sync::Arc; use tollgate::{MemoryStore, RateLimiter};
    /// let store = Arc::new(MemoryStore::builder().max_bytes(1 << 20).build());
    /// let per_user = RateLimiter::per_second(10).store(&store).build();
    /// let per_address = RateLimiter::per_second(100).store(&store).build();
    /// # assert!(per_user.check("alice").is_ok() && per_address.check([127, 0, 0, 1]).is_ok());
    /// ```
    pub fn store(mut self, store: &Arc<MemoryStore>) -> Self {
        self.store = Ok(Arc::clone(store));
        self
    }

    /// Settings for a store of its own, in place of the usual ones.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, RateLimiter};
    /// let store = MemoryStore::builder().expected_keys(10_000).exact_keys();
    /// let limiter = RateLimiter::per_second(5).own_store(store).build();
    /// # assert!(limiter.check("alice").is_ok());
    /// ```
    pub fn own_store(mut self, store: MemoryStoreBuilder) -> Self {
        self.store = Err(store);
        self
    }

    /// Another clock than the system's, for a store of its own. A store that others use too keeps the clock that it
    /// was built with.
    ///
    /// ```
    /// # use std::time::Duration; use tollgate::{ManualClock, RateLimiter};
    /// let clock = ManualClock::default();
    /// let limiter = RateLimiter::per_hour(1).clock(clock.clone()).build();
    /// limiter.check("alice").unwrap();
    /// clock.advance(Duration::from_secs(3600));
    /// assert!(limiter.check("alice").is_ok());
    /// ```
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(AnyClock::Other(Arc::new(clock)));
        self
    }

    /// The limiter.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_second(10).build();
    /// # assert!(limiter.check("alice").is_ok());
    /// ```
    ///
    /// # Panics
    ///
    /// If a quota cannot work, with the field, the value and what would be right. For quotas from outside the
    /// program there is [`try_build`](Self::try_build).
    #[allow(clippy::panic, reason = "quotas written in the program; try_build is for all others")]
    pub fn build(self) -> RateLimiter {
        match self.try_build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// The limiter, or what is wrong with a quota.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let error = RateLimiter::per_second(10).burst(0).try_build().unwrap_err();
    /// assert_eq!(error.to_string(), "burst is 0: it must be from 1 to 46116860184");
    /// ```
    pub fn try_build(self) -> Result<RateLimiter, LimitError> {
        static UNNAMED: AtomicU64 = AtomicU64::new(0);
        let limits = |quotas: &[Quota]| quotas.iter().map(Quota::limit).collect::<Result<Vec<Limit>, _>>();
        let first = self.quota.limit()?;
        let more = limits(&self.more)?;
        let mut plans: Vec<(String, Limit, Vec<Limit>)> = Vec::with_capacity(self.plans.len());
        for (name, quotas) in self.plans {
            if plans.iter().any(|(known, ..)| *known == name) {
                let allowed = "given once".to_owned();
                return Err(LimitError { field: "plan", value: name, allowed });
            }
            match limits(&quotas)?.split_first() {
                Some((first, more)) => plans.push((name, *first, more.to_vec())),
                None => {
                    let allowed = "given at least one quota".to_owned();
                    return Err(LimitError { field: "plan", value: name, allowed });
                }
            }
        }
        let store = self.store.unwrap_or_else(|store| {
            Arc::new(self.clock.map_or(store.clone(), |clock| store.any_clock(clock)).build())
        });
        let name =
            self.name.unwrap_or_else(|| format!("limiter {}", UNNAMED.fetch_add(1, Ordering::Relaxed)));
        // Limits in the same position of different plans share what a key has used; each plan can change for itself.
        let define = |plan: &str, position: usize, limit: Limit| {
            store.define_known(&format!("rate {name}/{position}"), plan, limit)
        };
        let all = std::iter::once(("", &first, &more));
        let all = all.chain(plans.iter().map(|(name, first, more)| (name.as_str(), first, more)));
        let longest = all.max_by_key(|(_, _, more)| more.len());
        let families: Arc<[Rule]> = longest
            .into_iter()
            .flat_map(|(plan, first, more)| {
                std::iter::once((plan, first)).chain(more.iter().map(move |of| (plan, of)))
            })
            .enumerate()
            .map(|(position, (plan, limit))| define(plan, position, *limit).rule)
            .collect();
        let limiter = |plan: &str, first: Limit, more: Vec<Limit>, plans| RateLimiter {
            store: Arc::clone(&store),
            first: Arc::new(define(plan, 0, first)),
            more: more.into_iter().enumerate().map(|(index, limit)| define(plan, index + 1, limit)).collect(),
            plans,
            families: Arc::clone(&families),
        };
        let named = plans
            .iter()
            .map(|(name, first, more)| (name.clone(), limiter(name, *first, more.clone(), Arc::default())));
        let named = Arc::new(named.collect());
        Ok(limiter("", first, more.clone(), named))
    }
}
