//! The concurrent requests limiter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::concurrency::InProgress;
use tollgate_core::key::Key;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::store::{Charge, Rule};
use tollgate_core::{Limit, LimitError};

use crate::clock::{AnyClock, Clock};
use crate::memory::{Held, MemoryStore, MemoryStoreBuilder};
use crate::rate::Refused;

/// Limits how much each key may have in progress at once.
///
/// ```
/// use tollgate::ConcurrencyLimiter;
///
/// let limiter = ConcurrencyLimiter::new(2);
/// let first = limiter.acquire("alice").unwrap();
/// let second = limiter.acquire("alice").unwrap();
/// assert!(limiter.acquire("alice").is_err());
///
/// drop(first); // its request has ended, however it ended
/// assert!(limiter.acquire("alice").is_ok());
/// # drop(second);
/// ```
#[derive(Clone, Debug)]
pub struct ConcurrencyLimiter {
    store: Arc<MemoryStore>,
    rule: Rule,
}

/// The right to be in progress. It is given back when it is dropped: exactly once, on whichever thread, also when
/// the work panics or is cancelled.
///
/// ```
/// # use tollgate::ConcurrencyLimiter;
/// let limiter = ConcurrencyLimiter::new(1);
/// let permit = limiter.acquire("alice").unwrap();
/// std::thread::spawn(move || drop(permit)).join().unwrap();
/// assert!(limiter.acquire("alice").is_ok());
/// ```
#[derive(Debug)]
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct ConcurrencyPermit {
    store: Arc<MemoryStore>,
    /// Nothing, if the store was full and the call passed uncounted.
    held: Option<Held>,
}

impl Drop for ConcurrencyPermit {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            self.store.release(&held);
        }
    }
}

/// Builds a [`ConcurrencyLimiter`].
///
/// ```
/// # use tollgate::{ConcurrencyLimiter, MemoryStore};
/// let limiter = ConcurrencyLimiter::builder(20).own_store(MemoryStore::builder().max_bytes(1 << 20)).build();
/// # assert!(limiter.acquire("alice").is_ok());
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct ConcurrencyLimiterBuilder {
    capacity: u64,
    name: Option<String>,
    store: Result<Arc<MemoryStore>, MemoryStoreBuilder>,
    clock: Option<AnyClock>,
}

impl ConcurrencyLimiter {
    /// At most `capacity` in progress for each key.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::new(20);
    /// # assert!(limiter.acquire("alice").is_ok());
    /// ```
    ///
    /// # Panics
    ///
    /// If `capacity` is 0; see [`ConcurrencyLimiterBuilder::try_build`].
    pub fn new(capacity: u64) -> Self {
        Self::builder(capacity).build()
    }

    /// A limiter made to measure.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::builder(20).name("uploads").build();
    /// # assert!(limiter.acquire("alice").is_ok());
    /// ```
    pub fn builder(capacity: u64) -> ConcurrencyLimiterBuilder {
        ConcurrencyLimiterBuilder { capacity, name: None, store: Err(MemoryStore::builder()), clock: None }
    }

    /// Takes a permit of weight 1.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::new(1);
    /// let permit = limiter.acquire("alice").unwrap();
    /// assert!(limiter.acquire("alice").is_err());
    /// assert!(limiter.acquire("bob").is_ok());
    /// # drop(permit);
    /// ```
    pub fn acquire(&self, key: impl Key) -> Result<ConcurrencyPermit, Refused> {
        self.acquire_n(key, 1)
    }

    /// Takes a permit of weight `n`.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::new(10);
    /// let upload = limiter.acquire_n("alice", 8).unwrap();
    /// assert!(limiter.acquire_n("alice", 3).is_err());
    /// # drop(upload);
    /// ```
    pub fn acquire_n(&self, key: impl Key, n: u64) -> Result<ConcurrencyPermit, Refused> {
        key.with(|key| {
            let charge = Charge { rule: self.rule, key, ask: Ask::from(n) };
            let store = Arc::clone(&self.store);
            match self.store.decide(Op::Charge, charge, None) {
                Ok(outcome) if outcome.allowed => {
                    Ok(ConcurrencyPermit { held: self.store.hold(self.rule, key, n), store })
                }
                Ok(outcome) => Err(Refused { outcome, limit: 0 }),
                Err(_) => {
                    let _ = self.store.fail_open();
                    Ok(ConcurrencyPermit { held: None, store })
                }
            }
        })
    }

    /// What a key has in progress.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::new(10);
    /// let permit = limiter.acquire("alice").unwrap();
    /// assert_eq!(limiter.in_progress("alice"), 1);
    /// drop(permit);
    /// assert_eq!(limiter.in_progress("alice"), 0);
    /// ```
    pub fn in_progress(&self, key: impl Key) -> u64 {
        let count = key.with(|key| self.store.count_in_progress(self.rule, key, None));
        count.map_or(0, InProgress::total)
    }

    /// The store that keeps the counts.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// assert_eq!(ConcurrencyLimiter::new(20).store().stats().failed_open, 0);
    /// ```
    pub fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    /// Changes the capacity. Who is in progress stays so; newcomers wait until enough have left.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::new(1);
    /// let first = limiter.acquire("alice").unwrap();
    /// limiter.set_capacity(2)?;
    /// assert!(limiter.acquire("alice").is_ok());
    /// # drop(first);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn set_capacity(&self, capacity: u64) -> Result<(), LimitError> {
        let limit = Limit::concurrency(capacity)?;
        // Only an unknown rule can fail, and this is the store's own.
        let _ = self.store.redefine(self.rule, limit, None);
        Ok(())
    }
}

impl ConcurrencyLimiterBuilder {
    /// Limiters of the same name in the same store count together. Without a name, a limiter is on its own.
    ///
    /// ```
    /// # use std::sync::Arc; use tollgate::{ConcurrencyLimiter, MemoryStore};
    /// let store = Arc::new(MemoryStore::new());
    /// let here = ConcurrencyLimiter::builder(1).name("exports").store(&store).build();
    /// let there = ConcurrencyLimiter::builder(1).name("exports").store(&store).build();
    /// let permit = here.acquire("alice").unwrap();
    /// assert!(there.acquire("alice").is_err());
    /// # drop(permit);
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Counts in a store that others use too.
    ///
    /// ```
    /// # use std::sync::Arc; use tollgate::{ConcurrencyLimiter, MemoryStore};
    /// let store = Arc::new(MemoryStore::new());
    /// let limiter = ConcurrencyLimiter::builder(20).store(&store).build();
    /// let permit = limiter.acquire("alice").unwrap();
    /// assert_eq!(store.count_keys(None), 1);
    /// # drop(permit);
    /// ```
    pub fn store(mut self, store: &Arc<MemoryStore>) -> Self {
        self.store = Ok(Arc::clone(store));
        self
    }

    /// Settings for a store of its own, in place of the usual ones.
    ///
    /// ```
    /// # use tollgate::{ConcurrencyLimiter, MemoryStore};
    /// let store = MemoryStore::builder().exact_keys();
    /// let limiter = ConcurrencyLimiter::builder(20).own_store(store).build();
    /// # assert!(limiter.acquire("alice").is_ok());
    /// ```
    pub fn own_store(mut self, store: MemoryStoreBuilder) -> Self {
        self.store = Err(store);
        self
    }

    /// Another clock than the system's, for a store of its own. A count of what is in progress needs no time, but what
    /// else is kept in the store may.
    ///
    /// ```
    /// # use tollgate::{ConcurrencyLimiter, ManualClock};
    /// let limiter = ConcurrencyLimiter::builder(20).clock(ManualClock::default()).build();
    /// # assert!(limiter.acquire("alice").is_ok());
    /// ```
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(AnyClock::Other(Arc::new(clock)));
        self
    }

    /// The limiter.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let limiter = ConcurrencyLimiter::builder(20).build();
    /// # assert!(limiter.acquire("alice").is_ok());
    /// ```
    ///
    /// # Panics
    ///
    /// If the capacity is 0 or absurd; see [`try_build`](Self::try_build).
    #[allow(clippy::panic, reason = "a capacity written in the program; try_build is for all others")]
    pub fn build(self) -> ConcurrencyLimiter {
        match self.try_build() {
            Ok(limiter) => limiter,
            Err(error) => panic!("{error}"),
        }
    }

    /// The limiter, or what is wrong with the capacity.
    ///
    /// ```
    /// # use tollgate::ConcurrencyLimiter;
    /// let error = ConcurrencyLimiter::builder(0).try_build().unwrap_err();
    /// assert_eq!(error.to_string(), "concurrency is 0: it must be from 1 to 4611686018427387904");
    /// ```
    pub fn try_build(self) -> Result<ConcurrencyLimiter, LimitError> {
        static UNNAMED: AtomicU64 = AtomicU64::new(0);
        let limit = Limit::concurrency(self.capacity)?;
        let store = self.store.unwrap_or_else(|store| {
            Arc::new(self.clock.map_or(store.clone(), |clock| store.any_clock(clock)).build())
        });
        let unnamed = || format!("limiter {}", UNNAMED.fetch_add(1, Ordering::Relaxed));
        let rule = store.define(&format!("in progress {}", self.name.unwrap_or_else(unnamed)), limit);
        Ok(ConcurrencyLimiter { store, rule })
    }
}
