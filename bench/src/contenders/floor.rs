//! The floor: a hash of the key and one compare-and-swap on the cell it names. No clock, no key stored, no collisions
//! resolved: less than any limiter can do.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use foldhash::quality::RandomState;

use super::{Contender, Entry, Limit, Role};
use crate::keys::Text;
use crate::measure::serve;

#[repr(C, align(16))]
struct Cell {
    used: AtomicU64,
    _rest: u64,
}

struct Floor {
    cells: Box<[Cell]>,
    hasher: RandomState,
    burst: u64,
}

impl Floor {
    fn new(keys: usize, limit: Limit) -> Self {
        Self { cells: zeroed(keys.max(1024)), hasher: RandomState::default(), burst: limit.burst().into() }
    }

    #[inline(always)]
    fn take(&self, hash: u64) -> bool {
        let index = (u128::from(hash) * self.cells.len() as u128) >> 64;
        let used = &self.cells[index as usize].used;
        let mut seen = used.load(Relaxed);
        while seen < self.burst {
            match used.compare_exchange_weak(seen, seen + 1, Relaxed, Relaxed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
        false
    }
}

/// Memory that the kernel zeroes when it is first touched.
fn zeroed(len: usize) -> Box<[Cell]> {
    let layout = Layout::array::<Cell>(len).expect("a table that fits the address space");
    // SAFETY: the layout is not empty, all-zero bytes are valid cells, and `Box` frees with the same layout.
    unsafe {
        let start = alloc_zeroed(layout).cast::<Cell>();
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, len))
    }
}

impl Contender<Text> for Floor {
    fn new(keys: usize, limit: Limit) -> Self {
        Floor::new(keys, limit)
    }

    #[inline(always)]
    fn decide(&self, key: &Text) -> bool {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        self.take(hasher.finish())
    }
}

impl Contender<u64> for Floor {
    fn new(keys: usize, limit: Limit) -> Self {
        Floor::new(keys, limit)
    }

    #[inline(always)]
    fn decide(&self, key: &u64) -> bool {
        self.take(self.hasher.hash_one(key))
    }
}

pub fn entry() -> Entry {
    Entry {
        name: "floor: hash + CAS",
        role: Role::Floor,
        slow: false,
        text: Some(serve::<Text, Floor>),
        number: Some(serve::<u64, Floor>),
    }
}
