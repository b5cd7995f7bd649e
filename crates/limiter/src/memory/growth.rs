//! How the table grows: linear hashing in place, a few sets at a time.
//!
//! ```text
//! row 0   [set] [set] [set] ... one set for each column       a small table is one row
//! row 1   [set] [set] [set]                                   each doubling adds as many rows as there are,
//! row 2   [set] |  <- active ends here                        one set after another
//! row 3
//! ```
//!
//! The memory for all rows is reserved at once, and is resident only where it is used. A key's *columns* come from the
//! upper bits of its hash and never change. Its *row* comes from the lower bits, and growth uses one more of them at a
//! time: set `s` is split into itself and the set `s + half`, and the keys whose next bit is 1 move there. The bits of
//! the row are part of the tag, so that a slot can be moved without knowing its key.
//!
//! **A split does not stop anybody but the keys that it moves.** One thread at a time does this:
//!
//! 1. It announces the sets to come (`target`). From now on, who wants the lock of a key that has one of them among its
//!    sets waits for the end of the split ([`Table::lock`]).
//! 2. It takes and releases each lock once. Whoever was under a lock before the announcement has left it then, so from
//!    here on nobody puts, moves or takes out any key that is going to move. Charging goes on.
//! 3. It moves the keys, each into the slot of the new set that corresponds to its old one. A slot changes hands as
//!    ever: a late charge misses the old slot, and its thread looks again under the lock, which means: after the split.
//! 4. It publishes the new size (`active`). Only now can others see the new sets.
//!
//! Slots correspond to each other, so what ends a search is kept: a slot of the new set is empty only if that of the
//! old set is, and then no key that moves was ever put further on than there.

use super::table::{SETS, Table, scale};
use crate::sync::{AtomicU64, Lock, LockGuard, Ordering, pause};

/// Sets by which the table grows when a key finds its own set in use, and when it finds the next one in use too. More
/// cost less each, and keep those that wait for them waiting for longer.
pub(super) const BATCH: usize = 32;
pub(super) const URGENT: usize = 256;

/// How often a key that finds no slot makes the table grow before another key is evicted: by half a megabyte of sets in
/// all, which takes less than a millisecond.
pub(super) const GROWTH_TRIES: usize = 16;

/// Which lines there are, and which of them are a key's own.
#[derive(Debug)]
pub(super) struct Extent {
    /// Lines of a row: two for each column.
    row: usize,
    /// Lines that there will be in the end.
    max: usize,
    /// Bits of a hash that tell its row while this doubling lasts; and the lines at its start.
    mask: AtomicU64,
    half: AtomicU64,
    /// Lines in use.
    active: AtomicU64,
    /// Lines in use after the split that is in progress; as many as are in use if none is.
    target: AtomicU64,
}

impl Extent {
    pub(super) fn new(columns: usize, doublings: u32) -> Self {
        let row = 2 * columns;
        Self {
            row,
            max: row << doublings,
            mask: AtomicU64::new(u64::from(doublings > 0)),
            half: AtomicU64::new(row as u64),
            active: AtomicU64::new(row as u64),
            target: AtomicU64::new(row as u64),
        }
    }

    /// The line where a key belongs. While a doubling begins, it may be another one: then the key is not found there.
    #[inline(always)]
    pub(super) fn home(&self, hash: u64) -> usize {
        // In this order. At the moment when the next doubling begins, both masks are right with the new half.
        let row = hash & self.mask.load(Ordering::Acquire);
        let half = self.half.load(Ordering::Acquire) as usize;
        let line = (row as usize).wrapping_mul(self.row).wrapping_add(scale(hash, self.row));
        if line >= self.active() { line.wrapping_sub(half) } else { line }
    }

    /// Lines in use.
    #[inline(always)]
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire) as usize
    }

    /// Lines that there will be in the end.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// The lines where a key may sit when this many are in use, in the order in which they are filled: its own and its
    /// neighbour, then those of two other columns, unless there are no others.
    #[inline]
    pub(super) fn lines_of(&self, hash: u64, active: usize) -> [usize; 2 * SETS] {
        let row = self.row_of(hash, active);
        let first = scale(hash, self.row);
        let mut lines = [row.line(first); 2 * SETS];
        // From the hash's other end, so that keys of one set do not all go to the same other ones.
        let mut mixed = hash.rotate_left(32);
        for (index, [line, neighbour]) in lines.as_chunks_mut().0.iter_mut().enumerate() {
            if index > 0 {
                mixed = mixed.wrapping_mul(super::table::MIX);
                let column = (first | 1) + 1 + 2 * scale(mixed, self.row / 2 - 1);
                let column = if column >= self.row { column - self.row } else { column };
                *line = row.line(column + (mixed & 1) as usize);
            }
            *neighbour = *line ^ 1;
        }
        lines
    }

    /// The lines of a key's own set: the first two of [`lines_of`](Self::lines_of).
    #[inline]
    pub(super) fn own_lines_of(&self, hash: u64, active: usize) -> [usize; 2] {
        let line = self.row_of(hash, active).line(scale(hash, self.row));
        [line, line ^ 1]
    }

    #[inline]
    fn row_of(&self, hash: u64, active: usize) -> Row {
        let level = (active / self.row).checked_ilog2().unwrap_or(0);
        let start = (hash & ((2 << level) - 1)) as usize * self.row;
        Row { start, active, half: self.row << level }
    }

    /// Whether a key has one of the sets that a split is making at this moment. Under a lock the answer holds until the
    /// lock is released.
    #[inline]
    fn is_splitting(&self, hash: u64) -> bool {
        let target = self.target.load(Ordering::Acquire) as usize;
        let active = self.active();
        target > active && self.lines_of(hash, target).into_iter().any(|line| line >= active)
    }

    /// The split that makes so many sets, or fewer if the doubling ends before.
    fn next(&self, sets: usize) -> Split {
        let active = self.active();
        let half = self.half.load(Ordering::Acquire) as usize;
        let half = if active == 2 * half { active } else { half };
        Split { active, half, end: (active + 2 * sets).min(2 * half).min(self.max) }
    }

    /// Begins with the next doubling if the last one is finished.
    fn begin_doubling(&self, split: &Split) {
        let half = split.half as u64;
        if self.half.load(Ordering::Relaxed) != half {
            self.half.store(half, Ordering::Release);
            self.mask.store(2 * half / self.row as u64 - 1, Ordering::Release);
        }
    }
}

/// The row of a key while so many lines are in use.
struct Row {
    start: usize,
    active: usize,
    /// How far before it the row is where its keys are until it is in use.
    half: usize,
}

impl Row {
    #[inline]
    fn line(&self, column: usize) -> usize {
        let line = self.start + column;
        if line >= self.active { line - self.half } else { line }
    }
}

/// A split of some lines.
struct Split {
    /// Lines in use before and after it.
    active: usize,
    end: usize,
    /// By how much further on the new lines are than those that are split.
    half: usize,
}

/// Holds the lock of a key. When it is released, the table grows if that was found necessary meanwhile.
pub(crate) struct KeyGuard<'a> {
    table: &'a Table,
    held: Option<LockGuard<'a>>,
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        drop(self.held.take());
        if self.table.wants_growth() {
            self.table.grow(None);
        }
    }
}

impl Table {
    /// The lock under which a key of this hash is put in and taken out. If a split is moving the key, waits for its end.
    pub(super) fn lock_hash(&self, hash: u64) -> KeyGuard<'_> {
        // Under the lock it could not wait for another thread's growth, and would have to evict.
        while self.growing.load(Ordering::Relaxed) != 0 && !self.has_free_slot(hash) {
            drop(self.splitting.hold());
            pause();
        }
        loop {
            let held = self.key_lock(hash).hold();
            if !self.extent.is_splitting(hash) {
                return KeyGuard { table: self, held: Some(held) };
            }
            drop(held);
            drop(self.splitting.hold());
        }
    }

    /// Grows by a few sets. False if another thread is doing so, or if there is no memory left. `own` is the lock that the
    /// caller holds, for a key that is in no slot.
    #[cold]
    #[inline(never)]
    pub(super) fn grow(&self, own: Option<&Lock>) -> bool {
        // Who holds a lock must not wait here: another thread may be waiting for that lock in order to grow.
        if self.growing.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let splitting = self.splitting.hold();
        let grown = self.grow_alone(own);
        drop(splitting);
        self.growing.store(0, Ordering::Release);
        grown
    }

    /// The same, for one thread at a time.
    fn grow_alone(&self, own: Option<&Lock>) -> bool {
        let wanted = self.take_wanted().max(if own.is_some() { URGENT } else { 1 });
        // By one set, if there is no memory for more.
        let splits = [wanted, 1].map(|sets| self.extent.next(sets));
        let Some(split) = splits.into_iter().find(|it| it.end > it.active && self.claim(it.end - it.active))
        else {
            return false;
        };
        let Split { active, end, half } = split;
        self.extent.begin_doubling(&split);
        self.extent.target.store(end as u64, Ordering::Release);
        self.wait_for_all_locks(own);
        let bit = (half / self.extent.row) as u64;
        for line in active..end {
            self.split(line - half, line, bit);
        }
        self.extent.active.store(end as u64, Ordering::Release);
        true
    }

    /// Sets in use.
    #[cfg(all(test, tollgate_loom))]
    pub(super) fn active_sets(&self) -> usize {
        self.extent.active() / 2
    }

    /// Moves the keys of a line that have this bit of their row set to the line that was made for them.
    fn split(&self, from: usize, into: usize, bit: u64) {
        let (Some(from), Some(into)) = (self.line(from), self.line(into)) else { return };
        for (old, new) in from.iter().zip(into) {
            while !Self::split_slot(old, new, |tag| tag.hash() & bit != 0) {
                // Changing hands, or charged at this moment.
                pause();
            }
        }
    }
}
