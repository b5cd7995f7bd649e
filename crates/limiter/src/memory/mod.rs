//! The memory store: every limit of every key of this process, under one ceiling in bytes.

mod budget;
mod builder;
mod evicted;
mod family;
mod group;
mod growth;
mod rules;
mod shards;
mod single;
mod table;
mod usual;

#[cfg(all(test, tollgate_loom))]
mod loom_tests;

use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use foldhash::quality::SeedableRandomState;
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::store::{Charge, Rule, Store, StoreError};
use tollgate_core::{Limit, Outcome, Outcomes, Timestamp, Verdict};

use self::budget::Budget;
pub use self::builder::MemoryStoreBuilder;
use self::rules::{JudgeAt, Record, Rules};
use self::shards::{Call, Shards, Target};
use self::table::Table;
use crate::clock::{AnyClock, Clock, SystemClock};

/// Keeps the states of all limits of all keys of this process. Share it by reference or in an [`Arc`].
///
/// Small states (token and leaky buckets, fixed windows, two-window counters, interval buckets) are words in a
/// table that grows with use: slots of 16 bytes whatever a key's length, no locks on the way of a decision. Larger
/// ones (logs, requests in progress) live in maps. Both draw from one ceiling, which no number of keys can
/// pass; see [`MemoryStoreBuilder::max_bytes`].
///
/// # Keys and fingerprints
///
/// A key is not kept: a hash with a random seed stands for it, 48 bits of it in the slot and 9 to 10 more in the column
/// of the table where the slot is. Two keys that agree in all of them under one rule would share a bucket: each could be
/// refused for what the other used. With a million keys in use the chance that this happens to *any* two of them is
/// below 1 in 100,000; with ten million keys, below 1 in 1,000. Nobody can provoke it without knowing the seed. Whoever
/// cannot accept that keeps whole keys, at the price of memory and speed: [`MemoryStoreBuilder::exact_keys`]. States
/// that live in maps are told apart by 128 bits.
///
/// # Eviction
///
/// An idle entry is worth nothing and its place is taken first. When all places of a key are in use, entries of exhausted
/// keys make room, then those that were made by one request; all others stay, and so does an entry that is worth as much as
/// the new one. What was evicted is counted ([`Stats::evictions`]) and remembered in four bytes, so a rejected key is never
/// let in sooner for having been evicted. Up to about ten times as many keys as fit are remembered that way; meanwhile up to
/// 0.4 % of new keys inherit what another key has used. In a fuller store, one-request keys are forgotten first, and
/// exhausted keys stay rejected at the price of some new keys that are rejected with them. Requests in progress are never
/// evicted: where there is no room for more, they pass uncounted ([`Stats::failed_open`]).
///
/// ```
/// use std::sync::Arc;
/// use tollgate::{ConcurrencyLimiter, MemoryStore, RateLimiter};
///
/// // Two limiters, one ceiling.
/// let store = Arc::new(MemoryStore::builder().max_bytes(16 << 20).build());
/// let rate = RateLimiter::per_second(100).store(&store).build();
/// let in_progress = ConcurrencyLimiter::builder(20).store(&store).build();
/// # let _ = (rate.check("alice"), in_progress.acquire("alice"));
/// assert!(store.stats().bytes <= 16 << 20);
/// ```
///
/// [`Arc`]: std::sync::Arc
#[derive(Debug)]
pub struct MemoryStore {
    rules: Rules,
    /// What the table and the maps may take together.
    budget: Arc<Budget>,
    table: Table,
    shards: Shards,
    hash: SeedableRandomState,
    /// Of another seed: keys that are alike to the one are not to the other.
    check_hash: SeedableRandomState,
    clock: AnyClock,
    /// The latest time given by callers who bring their own.
    latest: AtomicU64,
    clock_used: AtomicBool,
    /// Whether the clock is in use and is the system's own.
    reads_system_clock: AtomicBool,
    /// Whether small states go to the table; exact keys never do.
    tables: bool,
    evictions: AtomicU64,
    failed_open: AtomicU64,
    max_bytes: usize,
}

/// How full a store is.
///
/// ```
/// # use tollgate::{MemoryStore, RateLimiter};
/// let limiter = RateLimiter::per_second(5).build();
/// limiter.check("alice").unwrap();
/// let stats = limiter.store().stats();
/// assert!(stats.bytes <= stats.max_bytes && stats.evictions == 0 && stats.failed_open == 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Bytes that the store occupies at most with what it holds now. The table grows in steps and does not shrink.
    pub bytes: usize,
    /// The ceiling.
    pub max_bytes: usize,
    /// States that had to make room while they still mattered, since the start.
    pub evictions: u64,
    /// Calls that were let through because the store had no room left: it is full of requests in progress, or a key's log is
    /// larger than it can hold.
    pub failed_open: u64,
}

/// A rule with its record at hand.
#[derive(Debug)]
pub(crate) struct KnownRule {
    pub(crate) rule: Rule,
    record: Arc<Record>,
    /// The number of the record that has taken its place, if one has.
    moved: AtomicU32,
}

/// A key that holds something, as its permit remembers it.
#[derive(Debug)]
pub(crate) struct Held {
    rule: Rule,
    hash: u64,
    check: u64,
    /// The key itself, where keys are kept whole.
    exact: Option<(Kind, Box<[u8]>)>,
    cost: u64,
}

impl MemoryStore {
    /// A store of 64 MiB: room for about 700,000 keys exactly, and for ten million evicted ones, to within one request
    /// where a limit is small. It starts with about 100 KiB.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// assert_eq!(MemoryStore::new().stats().max_bytes, 64 << 20);
    /// ```
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A store made to measure.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// let store = MemoryStore::builder().max_bytes(1 << 20).build();
    /// # let _ = store.stats();
    /// ```
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder::default()
    }

    /// Makes a limit known. Rules of one family share what a key has used: moving a key from one to another
    /// keeps it. The same limit in the same family is the same rule.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, Quota};
    /// let store = MemoryStore::new();
    /// let rule = store.define("per user", Quota::per_second(10).limit()?);
    /// assert_eq!(rule, store.define("per user", Quota::per_second(10).limit()?));
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn define(&self, family: &str, limit: Limit) -> Rule {
        self.define_known(family, "", limit).rule
    }

    /// As [`define`](Self::define), for those who will use the rule often.
    pub(crate) fn define_known(&self, family: &str, label: &str, limit: Limit) -> KnownRule {
        let salt = |name: &str| self.hash.hash_one(name);
        let (rule, record) = self.rules.define(family, label, limit, self.tables, salt);
        KnownRule { rule, record, moved: AtomicU32::new(0) }
    }

    /// From now on the rule means another limit. What was used under the old one stays used; each key is
    /// converted when it is next seen. A change leaves some 400 bytes behind, beside the ceiling. Requests in progress are known to
    /// a limit of the same kind, and to none of another.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, Quota};
    /// let store = MemoryStore::new();
    /// let rule = store.define("per user", Quota::per_second(10).limit()?);
    /// store.redefine(rule, Quota::per_second(20).limit()?, None)?;
    /// assert_eq!(store.limit(rule).unwrap().capacity(), 20);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        self.rules.get(rule.0).ok_or(StoreError::UnknownRule(rule))?;
        self.rules.redefine(
            rule.0,
            limit,
            at.map_or_else(|| self.now(), |at| self.time(Some(at))),
            self.tables,
        );
        Ok(())
    }

    /// The limit that a rule means now.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, Quota};
    /// let store = MemoryStore::new();
    /// let limit = Quota::per_second(10).limit()?;
    /// assert_eq!(store.limit(store.define("per user", limit)), Some(limit));
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn limit(&self, rule: Rule) -> Option<Limit> {
        self.rules.newest(rule.0).map(|(_, record)| record.limit)
    }

    /// Forgets what a key has used of a rule's family. Requests in progress that are counted are not forgotten: they end, and would
    /// give back what others have taken.
    ///
    /// ```
    /// # use tollgate::{Key, MemoryStore, Quota};
    /// let store = MemoryStore::new();
    /// let rule = store.define("per user", Quota::per_second(10).limit()?);
    /// "alice".with(|key| store.forget(rule, key))?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        let (rule, record) = self.rules.newest(rule.0).ok_or(StoreError::UnknownRule(rule))?;
        let target = self.target(rule, record, self.hash(key, record), key);
        let place = self.table.place(target.hash);
        let mut shard = self.shards.lock(self.shards.index(target.hash));
        let _guard = self.table.lock(place);
        if let Some(shard) = &mut shard {
            self.shards.forget(shard, &target);
        }
        for tag in self.family_in_table(place, record) {
            self.table.extract(place, tag);
        }
        self.rules.forget_evicted(target.hash);
        Ok(())
    }

    /// Gives back what a permit holds. Its key was resolved when it was taken.
    pub(crate) fn release(&self, held: &Held) {
        let now = self.now();
        let Ok((rule, record)) = self.current(held.rule, now) else {
            return;
        };
        let key = held
            .exact
            .as_ref()
            .map_or(KeyRef { kind: Kind::Bytes, bytes: &[] }, |(kind, bytes)| KeyRef { kind: *kind, bytes });
        let target = Target { rule, record, hash: held.hash, check: held.check, key };
        let ask = Ask::from(held.cost);
        let call = Call::new(Op::Refund, &ask, now);
        // Giving back needs no room, so it cannot fail.
        let _ = self.decide_in_maps(&target, &call);
    }

    /// What a permit must remember of its key.
    pub(crate) fn hold(&self, rule: Rule, key: KeyRef<'_>, cost: u64) -> Option<Held> {
        let (number, record) = self.rules.newest(rule.0)?;
        let Target { hash, check, .. } = self.target(number, record, self.hash(key, record), key);
        let exact = self.shards.is_exact().then(|| (key.kind, key.bytes.into()));
        Some(Held { rule, hash, check, exact, cost })
    }

    /// What a key has in progress under a concurrency limit or a fleet.
    ///
    /// ```
    /// # use tollgate::{Key, Limit, MemoryStore};
    /// let store = MemoryStore::new();
    /// let rule = store.define("in progress", Limit::concurrency(20)?);
    /// assert_eq!("alice".with(|key| store.count_in_progress(rule, key, None))?.other, 0);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn count_in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        let now = self.time(at);
        let (rule, record) = self.current(rule, now)?;
        if record.holds(key) {
            return Ok(record.places());
        }
        let target = self.target(rule, record, self.hash(key, record), key);
        let Some(shard) = self.shards.lock(self.shards.index(target.hash)) else {
            return Ok(InProgress::default());
        };
        let count = |state: &State| record.limit.in_progress(state, now);
        Ok(self.shards.with_state(&shard, &target, count).unwrap_or_default())
    }

    /// How full the store is.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// println!("{:?}", MemoryStore::new().stats());
    /// ```
    pub fn stats(&self) -> Stats {
        let evictions = self.shards.evictions();
        Stats {
            bytes: self.budget.used() + self.rules.evicted_bytes(),
            max_bytes: self.max_bytes,
            evictions: self.evictions.load(Ordering::Relaxed) + evictions,
            failed_open: self.failed_open.load(Ordering::Relaxed),
        }
    }

    /// Number of keys that are not idle, each under each of its rules. Walks the whole store.
    ///
    /// ```
    /// # use tollgate::RateLimiter;
    /// let limiter = RateLimiter::per_hour(5).build();
    /// limiter.check("alice").unwrap();
    /// limiter.check("bob").unwrap();
    /// assert_eq!(limiter.store().count_keys(None), 2);
    /// ```
    pub fn count_keys(&self, at: Option<Timestamp>) -> usize {
        let now = at.unwrap_or_else(|| self.now());
        let kept = self.table.count_live(&self.judge(now)) + self.shards.count_live(&self.rules, now);
        kept + self.rules.count_fleets()
    }

    /// The time of the store: what its clock shows, or the latest time given where callers bring their own. Looking
    /// does not move it.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// let store = MemoryStore::new();
    /// assert!(store.now() <= store.now());
    /// ```
    pub fn now(&self) -> Timestamp {
        let latest = Timestamp::from_nanos(self.latest.load(Ordering::Acquire));
        // Who brings a time of their own has no use for the clock's.
        if latest > Timestamp::ZERO && !self.clock_used.load(Ordering::Acquire) {
            return latest;
        }
        self.clock.now().min(END).max(latest)
    }

    /// A decision that the store could not make: the call passes and is counted.
    pub(crate) fn fail_open(&self) -> Outcome {
        self.failed_open.fetch_add(1, Ordering::Relaxed);
        Outcome::allow(0, 0)
    }

    /// `at`, or what the clock shows; never before the latest time seen.
    #[inline]
    fn time(&self, at: Option<Timestamp>) -> Timestamp {
        let latest = Timestamp::from_nanos(self.latest.load(Ordering::Acquire));
        match at {
            None => {
                if !self.clock_used.load(Ordering::Relaxed) {
                    self.clock_used.store(true, Ordering::Relaxed);
                    self.reads_system_clock.store(self.clock.is_trusted(), Ordering::Relaxed);
                }
                let now = self.clock.now().min(END);
                if now > latest && !self.clock.is_trusted() {
                    self.latest.fetch_max(now.as_nanos(), Ordering::AcqRel);
                }
                now.max(latest)
            }
            Some(at) => {
                let clock = match self.clock.is_trusted() && self.clock_used.load(Ordering::Relaxed) {
                    true => SystemClock::latest(),
                    false => Timestamp::ZERO,
                };
                let now = at.min(END).max(latest).max(clock);
                if now > latest {
                    self.latest.fetch_max(now.as_nanos(), Ordering::AcqRel);
                }
                now
            }
        }
    }

    /// As [`time`](Self::time), for the way that nearly every decision takes.
    #[inline(always)]
    fn time_soon(&self, at: Option<Timestamp>) -> Timestamp {
        match at {
            None if self.reads_system_clock.load(Ordering::Relaxed) => {
                SystemClock.now().max(Timestamp::from_nanos(self.latest.load(Ordering::Acquire)))
            }
            None => self.time_by_call(),
            Some(_) => self.time(at),
        }
    }

    /// The first time, or by a clock of the caller's own: a call, so that who uses the system's does not carry it along.
    #[inline(never)]
    fn time_by_call(&self) -> Timestamp {
        self.time(None)
    }

    /// The latest time at which anybody can have charged something that this thread has seen. A refusal at an
    /// earlier time is not final: else a burst would be cut short by the time it took to get from reading the
    /// clock to deciding.
    #[inline]
    fn latest_seen(&self, at: Option<Timestamp>) -> Timestamp {
        let latest = Timestamp::from_nanos(self.latest.load(Ordering::Acquire));
        // What other clocks have shown is kept in `latest`.
        if at.is_some() || !self.clock.is_trusted() { latest } else { latest.max(SystemClock::latest()) }
    }

    #[inline]
    fn current(&self, rule: Rule, now: Timestamp) -> Result<(u32, &Record), StoreError> {
        self.rules.current(rule.0, now).ok_or(StoreError::UnknownRule(rule))
    }

    #[inline(always)]
    fn hash(&self, key: KeyRef<'_>, record: &Record) -> u64 {
        self.hash_key(key) ^ record.salt
    }

    /// The hash of a key in whichever family: those are told apart after the costly part, and so are the kinds of keys.
    #[inline(always)]
    fn hash_key(&self, key: KeyRef<'_>) -> u64 {
        self.hash_bytes(self.hash.build_hasher(), key) ^ KIND_SALT.wrapping_mul(key.kind as u64)
    }

    /// A second hash, independent of the first.
    #[inline]
    fn check(&self, key: KeyRef<'_>) -> u64 {
        self.hash_bytes(self.check_hash.build_hasher(), key) ^ KIND_SALT.wrapping_mul(key.kind as u64)
    }

    #[inline(always)]
    fn hash_bytes(&self, mut hasher: impl Hasher, key: KeyRef<'_>) -> u64 {
        match key.bytes.split_at_checked(16) {
            // In two pieces of a length that is hashed in place, which is quicker than calling for the whole.
            Some((head, tail)) if tail.len() <= 16 => {
                hasher.write(head);
                hasher.write(tail);
            }
            _ => hasher.write(key.bytes),
        }
        hasher.finish()
    }

    #[inline]
    fn target<'a>(&self, rule: u32, record: &'a Record, hash: u64, key: KeyRef<'a>) -> Target<'a> {
        let check = if record.may_be_in_maps() { self.check(key) } else { 0 };
        Target { rule, record, hash, check, key }
    }

    fn judge(&self, now: Timestamp) -> JudgeAt<'_> {
        JudgeAt { rules: &self.rules, now, evictions: &self.evictions }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// Time goes no further: beyond, windows would run out of bits. That is in the year 2262.
const END: Timestamp = Timestamp::from_nanos(1 << 63);

/// Tells the kinds of keys apart in the hash.
const KIND_SALT: u64 = 0xA24B_AED4_963E_E407;

/// Memory answers at once.
impl Store for MemoryStore {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        Ok(self.define(family, limit))
    }

    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        self.redefine(rule, limit, at)
    }

    fn supersede(&self, old: Rule, new: Rule) {
        self.rules.supersede(old.0, new.0, self.now());
    }

    fn is_shared(&self) -> bool {
        false
    }

    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        self.decide_all(charges, at)
    }

    #[inline]
    fn charge_at_once(
        &self,
        charges: &[Charge<'_>],
        at: Option<Timestamp>,
        told: &mut Outcomes,
    ) -> Option<bool> {
        self.charge_usual(charges, at, told)
    }

    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        self.decide(op, charge, at)
    }

    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        self.forget(rule, key)
    }

    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        self.count_in_progress(rule, key, at)
    }

    #[inline]
    fn give_back(&self, charge: Charge<'_>) {
        if self.uncount(&charge).is_none() {
            self.refund(&charge);
        }
    }
}

impl MemoryStore {
    /// Gives back what is not counted, or not where it was.
    #[inline(never)]
    fn refund(&self, charge: &Charge<'_>) {
        // What is given back is there whatever the time is, so that of the last reading will do.
        let is_read = self.reads_system_clock.load(Ordering::Relaxed);
        let now = if is_read { self.latest_seen(None) } else { self.time(None) };
        // Giving back needs no room, so it cannot fail.
        let _ = self.decide_once(Op::Refund, charge, now);
    }
}
