//! The byte budget of a store: one pool from which the table and the maps both draw.
//!
//! The table never gives memory back and the maps do, so neither side may take the whole pool: one eighth is always
//! left for the other. A store that has no table gives all of it to the maps.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The pool, and how much of it is in use.
#[derive(Debug)]
pub(crate) struct Budget {
    ceiling: usize,
    /// The most that the table may take.
    table_ceiling: usize,
    /// The most that the maps may take, including what the allocator adds.
    maps_ceiling: usize,
    /// Bytes of the table's active sets and of its locks.
    table: AtomicUsize,
    /// Bytes that the maps asked the allocator for.
    maps: AtomicUsize,
}

/// What the maps can always have: a limit may change into one whose states live there.
const MIN_MAP_BYTES: usize = 2048;

impl Budget {
    /// A pool of `bytes`. Without `has_table` the maps may take all of it.
    pub(crate) fn new(bytes: usize, has_table: bool) -> Self {
        let most = bytes - bytes / 8;
        Self {
            ceiling: bytes,
            table_ceiling: if has_table { most.min(bytes.saturating_sub(MIN_MAP_BYTES)) } else { 0 },
            maps_ceiling: if has_table { most } else { bytes },
            table: AtomicUsize::new(0),
            maps: AtomicUsize::new(0),
        }
    }

    /// The most bytes that the table can come to occupy.
    pub(crate) fn table_ceiling(&self) -> usize {
        self.table_ceiling
    }

    /// Takes `bytes` for the table if they are there.
    pub(crate) fn claim_for_table(&self, bytes: usize) -> bool {
        self.table
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |table| self.grown(table, bytes))
            .is_ok()
    }

    /// Whether the table could take `bytes`.
    pub(crate) fn has_for_table(&self, bytes: usize) -> bool {
        self.grown(self.table.load(Ordering::Relaxed), bytes).is_some()
    }

    /// The table's bytes after it has grown, if it may.
    fn grown(&self, table: usize, by: usize) -> Option<usize> {
        let after = table.saturating_add(by);
        let used = after.saturating_add(with_overhead(self.maps.load(Ordering::Relaxed)));
        (after <= self.table_ceiling && used <= self.ceiling).then_some(after)
    }

    /// Takes `bytes` for the table whether they are there or not: what it starts with.
    pub(crate) fn charge_table(&self, bytes: usize) {
        self.table.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the table and of the maps.
    pub(crate) fn used(&self) -> usize {
        self.table.load(Ordering::Relaxed) + self.maps.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.maps.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, bytes: usize) {
        self.maps.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An entry of the maps has become larger or smaller.
    pub(crate) fn resize(&self, before: usize, after: usize) {
        if after > before { self.add(after - before) } else { self.sub(before - after) }
    }

    /// The most bytes that the maps can have while the table is as large as it is.
    pub(crate) fn map_bytes(&self) -> usize {
        let left = self.ceiling.saturating_sub(self.table.load(Ordering::Relaxed));
        without_overhead(left.min(self.maps_ceiling))
    }

    /// The most bytes that the maps can ever have.
    pub(crate) fn max_map_bytes(&self) -> usize {
        without_overhead(self.maps_ceiling)
    }

    /// Whether `more` bytes in the maps would exceed the pool.
    pub(crate) fn is_short_of(&self, more: usize) -> bool {
        self.maps.load(Ordering::Relaxed).saturating_add(more) > self.map_bytes()
    }
}

/// Bytes that the maps may ask for out of `bytes`. A quarter is left to the allocator, whose free memory is in
/// pieces when large states follow small ones.
fn without_overhead(bytes: usize) -> usize {
    bytes / 4 * 3
}

/// Bytes that the maps take from the pool when they asked for `bytes`.
fn with_overhead(bytes: usize) -> usize {
    bytes.saturating_add(bytes.div_ceil(3))
}
