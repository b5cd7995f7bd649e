//! Building a memory store: how much memory, which clock, whole keys or fingerprints.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use foldhash::SharedSeed;
use foldhash::quality::SeedableRandomState;

use super::MemoryStore;
use super::budget::Budget;
use super::rules::Rules;
use super::shards::Shards;
use super::table::Table;
use crate::clock::{AnyClock, Clock};

/// Builds a [`MemoryStore`].
///
/// ```
/// use tollgate::{ManualClock, MemoryStore};
///
/// let store = MemoryStore::builder().max_bytes(1 << 20).clock(ManualClock::default()).build();
/// assert_eq!(store.stats().max_bytes, 1 << 20);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct MemoryStoreBuilder {
    max_bytes: usize,
    /// How many percent of the ceiling are for evicted keys.
    evicted_share: u8,
    exact: bool,
    seed: Option<u64>,
    clock: AnyClock,
}

impl Default for MemoryStoreBuilder {
    fn default() -> Self {
        Self { max_bytes: 64 << 20, evicted_share: 70, exact: false, seed: None, clock: AnyClock::default() }
    }
}

/// Below this a store cannot hold anything worth holding.
const MIN_BYTES: usize = 4096;

impl MemoryStoreBuilder {
    /// The ceiling, in bytes: no number of keys makes the store larger. 64 MiB unless said otherwise, at least
    /// 4 KiB.
    ///
    /// The store starts small and grows as keys come: address space is reserved at once, memory is used only where
    /// there are keys. Under a small limit, and whatever its length, a key takes about 26 bytes in a table that is full, 40 to 50
    /// in one that is still growing (10,000 keys and more), and 120 where there are only a thousand.
    /// Small states (buckets, windows) and large ones (logs, requests in progress) share 30 % of the ceiling; each of the
    /// two kinds can take up to seven eighths of that. From there on keys are evicted, and what is remembered of them takes up to
    /// the other 70 %, at four bytes a key.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// assert_eq!(MemoryStore::builder().max_bytes(8 << 20).build().stats().max_bytes, 8 << 20);
    /// ```
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes.max(MIN_BYTES);
        self
    }

    /// A ceiling that holds `keys` keys in use under one small limit, with few evictions, and remembers nearly as many
    /// evicted ones.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// let store = MemoryStore::builder().expected_keys(1_000_000).build();
    /// assert!(store.stats().max_bytes < 32 << 20);
    /// ```
    pub fn expected_keys(mut self, keys: usize) -> Self {
        self.evicted_share = 10;
        // The table may take seven eighths of the rest: 26 bytes for each key.
        self.max_bytes(keys.saturating_mul(33).saturating_add(20 * 1024))
    }

    /// Keeps whole keys instead of fingerprints: no two keys ever share a bucket, keys count towards the
    /// ceiling by their length, and decisions take a lock.
    ///
    /// ```
    /// # use tollgate::{MemoryStore, RateLimiter};
    /// let limiter = RateLimiter::per_second(5).own_store(MemoryStore::builder().exact_keys()).build();
    /// # assert!(limiter.check("alice").is_ok());
    /// ```
    pub fn exact_keys(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Another clock than the system's.
    ///
    /// ```
    /// # use tollgate::{ManualClock, MemoryStore, Timestamp};
    /// let store = MemoryStore::builder().clock(ManualClock::at(Timestamp::from_secs(7))).build();
    /// assert_eq!(store.now(), Timestamp::from_secs(7));
    /// ```
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = AnyClock::Other(Arc::new(clock));
        self
    }

    pub(crate) fn any_clock(mut self, clock: AnyClock) -> Self {
        self.clock = clock;
        self
    }

    /// A fixed seed for the hash instead of a random one, so that runs repeat exactly. For tests and
    /// measurements only: who knows the seed can make keys that collide.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// let store = MemoryStore::builder().fixed_seed(42).build();
    /// # let _ = store.stats();
    /// ```
    pub fn fixed_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The store.
    ///
    /// ```
    /// # use tollgate::MemoryStore;
    /// let store = MemoryStore::builder().build();
    /// assert_eq!(store.count_keys(None), 0);
    /// ```
    pub fn build(self) -> MemoryStore {
        let evicted_bytes = self.max_bytes / 100 * usize::from(self.evicted_share);
        // The smallest stores need most of it for what is exact.
        let evicted_bytes = evicted_bytes.min(self.max_bytes.saturating_sub(3 * MIN_BYTES / 4));
        let budget = Arc::new(Budget::new(self.max_bytes - evicted_bytes, !self.exact));
        MemoryStore {
            rules: Rules::with_evicted_bytes(evicted_bytes),
            shards: Shards::new(Arc::clone(&budget), self.exact),
            tables: !self.exact,
            table: Table::new(Arc::clone(&budget)),
            budget,
            hash: match self.seed {
                Some(seed) => SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()),
                None => SeedableRandomState::random(),
            },
            check_hash: match self.seed {
                Some(seed) => SeedableRandomState::with_seed(!seed, SharedSeed::global_fixed()),
                None => SeedableRandomState::random(),
            },
            clock: self.clock,
            latest: AtomicU64::new(0),
            clock_used: AtomicBool::new(false),
            reads_system_clock: AtomicBool::new(false),
            evictions: AtomicU64::new(0),
            failed_open: AtomicU64::new(0),
            max_bytes: self.max_bytes,
        }
    }
}
