//! A bounded table of one-word states that is read and charged without locks. It grows with use ([`growth`]).
//!
//! ```text
//! line (one cache line)   [tag|word] [tag|word] [tag|word] [tag|word]
//! set  (two lines)        [tag|word] [tag|word] [tag|word] [tag|word] | [tag|word] ...
//! ```
//!
//! A *tag* is 48 bits of the key's hash and 16 bits that name the rule. A key belongs in
//! one line; when that was full it sits in the set's other line, and when the set was full, in one of two other
//! sets of the same row: 24 slots in all, searched in an order that is the key's own. Slots are filled in that order and
//! never emptied again, so the first slot that was never used ends every search.
//!
//! **Charging** a key that is there is one compare-and-swap on its word. **Taking** a slot for another key,
//! which only happens to slots whose owner is idle or carries the least, goes in three steps: mark the tag,
//! swap the word, write the new tag. A late compare-and-swap by the old owner must not hit the new one. It
//! cannot, because a word is stored masked with a pad made from its tag: the same word of two owners differs in
//! the slot, but for a chance of 2^-64 that is no worse than that of two keys sharing a tag. And a reader
//! that loads the word of the new owner sees the tag changed when it looks again.
//!
//! **New keys** are put in under a lock, the same one for a key at all times, so that no key ever sits in two slots.
//!
//! [`growth`]: super::growth

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(not(tollgate_loom))]
use bytemuck::Zeroable;
use smallvec::SmallVec;

use super::budget::Budget;
use super::growth::{self, Extent, KeyGuard};
use crate::sync::{AtomicU64, Lock, Ordering, pause};

/// One key's state. 16 bytes.
#[repr(C, align(16))]
#[cfg_attr(not(tollgate_loom), derive(Zeroable))]
pub(crate) struct Slot {
    tag: AtomicU64,
    /// The state, masked with [`pad`].
    word: AtomicU64,
}

/// Slots of a cache line. A model checker gets by with fewer.
const LINE: usize = if cfg!(tollgate_loom) { 1 } else { 4 };
/// Slots of a set: two neighbouring lines.
const SET: usize = 2 * LINE;
/// Sets where a key may sit.
pub(crate) const SETS: usize = 3;

/// A slot that was never used.
const EMPTY: u64 = 0;
/// A slot that is changing hands. Rule numbers start at 1, so no key has this tag.
const TAKEN: u64 = 1 << RULE_BITS;
/// A slot whose key was forgotten.
const DEAD: u64 = 2 << RULE_BITS;

const RULE_BITS: u32 = 16;

/// Rules numbered from 0 up to here can have words in the table.
pub(crate) const MAX_RULES: u32 = (1 << RULE_BITS) - 1;

/// An odd number without pattern.
pub(super) const MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// What a slot's state is worth when another key needs room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Worth {
    /// Nothing: the slot may be taken.
    Idle,
    /// This much; the slot may be taken if it is the least.
    Live(u64),
}

/// Knows what the words of all rules mean.
pub(crate) trait Judge {
    /// What a state is worth.
    fn worth(&self, tag: Tag, word: u64) -> Worth;
    /// Whether a state was in use a short while ago, so that its key probably comes back.
    fn is_recent(&self, tag: Tag, word: u64) -> bool;
    /// A state is about to be forgotten: remember what must not be.
    fn evict(&self, tag: Tag, word: u64);
}

/// Where a key may sit. The table tells the lines anew each time, because they change when it grows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    hash: u64,
}

/// A place with its own line at hand.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    slots: &'a [Slot; LINE],
    index: usize,
    place: Place,
}

/// A key's mark under one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(u64);

impl Tag {
    /// The tag of a hash under rule number `rule`, which is below [`MAX_RULES`].
    #[inline]
    pub(crate) fn new(hash: u64, rule: u32) -> Self {
        Self(hash << RULE_BITS | u64::from(rule + 1))
    }

    /// Whether a slot with this tag has an owner.
    fn is_key(self) -> bool {
        self.0 & u64::from(MAX_RULES) != 0
    }

    /// The low 48 bits of the key's hash, which tell the row.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        self.0 >> RULE_BITS
    }

    /// The number of the rule.
    pub(crate) fn rule(self) -> u32 {
        ((self.0 & u64::from(MAX_RULES)) as u32).saturating_sub(1)
    }
}

/// What a word is masked with while it stands beside this tag.
#[inline]
fn pad(tag: u64) -> u64 {
    let product = u128::from(tag) * u128::from(MIX);
    product as u64 ^ (product >> 64) as u64
}

/// Where a new key can go.
enum Room<'a> {
    /// Nobody minds.
    Free(Seen<'a>),
    /// Every slot is in use; this one is worth least.
    Least { worth: u64, seen: Seen<'a> },
}

/// Whether a key is in the table.
pub(crate) enum Presence<'a> {
    /// It is.
    Present,
    /// It is not. The first slot of its own set that has no owner, if there is one.
    Absent { free: Option<Seen<'a>> },
}

/// A search for a key under its lock, line after line.
struct Search<'a> {
    tag: Tag,
    /// Whether a slot was changing hands, which could hide the key.
    is_hidden: bool,
    /// The first slot without an owner.
    free: Option<&'a Slot>,
}

/// Why a search ends.
enum End {
    /// The key is here.
    Found,
    /// The slot was never used: keys are put in the first one of their order.
    Unused,
}

impl<'a> Search<'a> {
    #[inline]
    fn in_line(&mut self, line: &'a [Slot; LINE]) -> Option<End> {
        for slot in line {
            let tag = slot.tag.load(Ordering::Acquire);
            if tag == self.tag.0 {
                return Some(End::Found);
            }
            match tag {
                EMPTY => {
                    self.free.get_or_insert(slot);
                    return Some(End::Unused);
                }
                DEAD => {
                    self.free.get_or_insert(slot);
                }
                TAKEN => self.is_hidden = true,
                _ => {}
            }
        }
        None
    }
}

/// A slot with an owner, as it was seen.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    slot: &'a Slot,
    tag: u64,
    stored: u64,
}

impl Seen<'_> {
    pub(crate) fn tag(&self) -> Tag {
        Tag(self.tag)
    }

    pub(crate) fn word(&self) -> u64 {
        self.stored ^ pad(self.tag)
    }
}

/// The table.
pub(crate) struct Table {
    lines: Lines,
    pub(super) extent: Extent,
    /// One lock for so many keys, held while one of them is put in or taken out.
    locks: Box<[CacheLine<Lock>]>,
    /// 1 while a thread makes the table grow.
    pub(super) growing: AtomicU64,
    /// Held by that thread, for those who wait for the keys that it moves. Nobody tries to take it: that would be `growing`.
    pub(super) splitting: Lock,
    /// By how many sets it should grow.
    wanted: AtomicU64,
    budget: Arc<Budget>,
}

#[repr(align(64))]
#[derive(Default)]
struct CacheLine<T>(T);

/// Slots by lines. The first one begins with a cache line, wherever the allocation does: memory of a larger alignment
/// would be zeroed by hand.
struct Lines {
    first: NonNull<[Slot; LINE]>,
    count: usize,
    /// The allocation, which [`Drop`] frees.
    slots: NonNull<[Slot]>,
}

impl Lines {
    /// The last slots may be left over.
    fn new(slots: Box<[Slot]>) -> Self {
        let into_set = (slots.as_ptr() as usize / size_of::<Slot>()) % SET;
        let skipped = ((SET - into_set) % SET).min(slots.len());
        let count = (slots.len() - skipped) / LINE;
        let slots = NonNull::from(Box::leak(slots));
        #[allow(unsafe_code)]
        // SAFETY: `skipped` is no more than the length of the allocation.
        let first = unsafe { slots.cast::<Slot>().add(skipped) }.cast();
        Self { first, count, slots }
    }

    #[inline(always)]
    fn get(&self, index: usize) -> Option<&[Slot; LINE]> {
        // SAFETY: `count` lines follow each other from `first` on, within the allocation, which lives as long as `self`
        // does. They are only ever shared.
        #[allow(unsafe_code)]
        (index < self.count).then(|| unsafe { self.first.add(index).as_ref() })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: it came from a box, and nothing refers to it any more.
        #[allow(unsafe_code)]
        drop(unsafe { Box::from_raw(self.slots.as_ptr()) });
    }
}

// SAFETY: it owns its slots, which are atomics.
#[allow(unsafe_code)]
unsafe impl Send for Lines {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Lines {}

/// Bytes of a line.
const LINE_BYTES: usize = LINE * size_of::<Slot>();

/// Columns that a table has at the most: it starts with half as many sets at the least, if there is room for more than that.
/// More columns tell more keys apart, and make small tables larger.
const MAX_COLUMNS: usize = 1024;

/// How often a table doubles at the least, if it is not tiny: so much of the memory can also go to the maps.
const MIN_DOUBLINGS: u32 = 3;

impl Table {
    /// A table that grows as far as the budget goes, and has at least one set.
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let bytes = budget.table_ceiling();
        let locks = (bytes / (2 * LINE_BYTES) / 16).clamp(1, 64).next_power_of_two();
        let lock_bytes = locks * size_of::<CacheLine<Lock>>();
        let sets = (bytes.saturating_sub(lock_bytes) / (2 * LINE_BYTES)).saturating_sub(1).max(1);
        let mut doublings = 0;
        while sets >> doublings >= MAX_COLUMNS || sets >> doublings >= 4 && doublings < MIN_DOUBLINGS {
            doublings += 1;
        }
        Self::with_columns(budget, locks, sets >> doublings, doublings)
    }

    /// A table that starts with one row of so many columns and doubles so often. `locks` is a power of two.
    pub(super) fn with_columns(
        budget: Arc<Budget>,
        locks: usize,
        columns: usize,
        mut doublings: u32,
    ) -> Self {
        // If that is more than there can be, it grows less.
        let slots = loop {
            match empty_slots(SET.saturating_mul((columns << doublings) + 1)) {
                Some(slots) => break slots,
                None if doublings > 0 => doublings -= 1,
                None => break Box::default(),
            }
        };
        budget.charge_table(locks * size_of::<CacheLine<Lock>>() + (columns + 1) * 2 * LINE_BYTES);
        Self {
            lines: Lines::new(slots),
            extent: Extent::new(columns, doublings),
            locks: (0..locks).map(|_| CacheLine::default()).collect(),
            growing: AtomicU64::new(0),
            splitting: Lock::default(),
            wanted: AtomicU64::new(0),
            budget,
        }
    }

    /// Where a key with this hash may sit.
    #[inline]
    pub(crate) fn place(&self, hash: u64) -> Place {
        Place { hash }
    }

    /// The lines where a key may sit, in the order in which they are filled.
    #[inline]
    fn lines(&self, place: Place) -> [usize; 2 * SETS] {
        self.extent.lines_of(place.hash, self.extent.active())
    }

    #[inline(always)]
    pub(super) fn line(&self, index: usize) -> Option<&[Slot; LINE]> {
        self.lines.get(index)
    }

    /// A place with the line where its key belongs.
    #[inline(always)]
    fn home(&self, place: Place) -> Option<Line<'_>> {
        let index = self.extent.home(place.hash);
        Some(Line { slots: self.line(index)?, index, place })
    }

    /// The lock under which a key of this place is put in and taken out.
    pub(crate) fn lock(&self, place: Place) -> KeyGuard<'_> {
        self.lock_hash(place.hash)
    }

    /// The lock of a key: of its hash, so that it stays the same while the table grows.
    pub(super) fn key_lock(&self, hash: u64) -> &Lock {
        #[allow(clippy::indexing_slicing, reason = "masked by the length, a power of two")]
        &self.locks[(hash >> 40) as usize & (self.locks.len() - 1)].0
    }

    /// Waits until everybody else who is under a lock now has left it.
    pub(super) fn wait_for_all_locks(&self, own: Option<&Lock>) {
        let others = self.locks.iter().filter(|lock| !own.is_some_and(|own| std::ptr::eq(own, &lock.0)));
        for lock in others {
            drop(lock.0.hold());
        }
    }

    /// Takes so many lines from the budget, if they are there.
    pub(super) fn claim(&self, lines: usize) -> bool {
        self.budget.claim_for_table(lines * LINE_BYTES)
    }

    /// Whether it should grow.
    #[inline]
    pub(super) fn wants_growth(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Whether there is memory for one more set.
    fn can_grow(&self) -> bool {
        self.extent.active() < self.extent.max() && self.budget.has_for_table(2 * LINE_BYTES)
    }

    /// By how many sets it should grow. From now on that is done.
    pub(super) fn take_wanted(&self) -> usize {
        let wanted = self.wanted.load(Ordering::Relaxed);
        self.wanted.store(0, Ordering::Relaxed);
        wanted as usize
    }

    /// A key found the slots of its own set in use, and perhaps those of the `second` one too. Has the table grow if there
    /// is memory, unless a sample of it says that it was chance: new keys must not make it larger while idle ones make
    /// room for them.
    #[cold]
    #[inline(never)]
    fn ask_for_growth(&self, tag: Tag, second: bool, judge: &impl Judge) {
        let active = self.extent.active();
        let sets = if second { growth::URGENT } else { growth::BATCH };
        if !self.can_grow() || self.wanted.load(Ordering::Relaxed) >= sets as u64 {
            return;
        }
        // Four sets, evenly spread: the first part of a table that is growing is in use by half as much as the rest.
        let first = (tag.hash() as usize % active) & !1;
        let sample = (0..4).flat_map(|part| {
            let line = (first + ((active * part / 4) & !1)) % active;
            [line, line + 1]
        });
        let seen = sample.filter_map(|line| self.line(line)).flatten().filter_map(Self::look);
        let recent = seen.filter(|seen| seen.tag().is_key() && judge.is_recent(seen.tag(), seen.word()));
        // Of 32 slots.
        let least = if second { SET } else { 3 * SET / 2 };
        if recent.count() >= least {
            self.wanted.store(sets as u64, Ordering::Relaxed);
        }
    }

    /// The slots of a place, in the order in which they are filled.
    fn slots(&self, place: Place) -> impl Iterator<Item = &Slot> {
        self.lines(place).into_iter().filter_map(|line| self.line(line)).flatten()
    }

    #[inline(always)]
    fn find<'a>(&'a self, line: Line<'a>, tag: Tag) -> Option<&'a Slot> {
        match Self::search(line.slots, tag) {
            Some(slot) => Some(slot),
            None => self.find_further(line.slots, line.index, line.place, tag),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_further(&self, own: &[Slot; LINE], index: usize, place: Place, tag: Tag) -> Option<&Slot> {
        // A slot that was never used ends the search: a key is put in the first one of its order.
        let ends_search =
            |line: &[Slot; LINE]| line.iter().any(|slot| slot.tag.load(Ordering::Acquire) == EMPTY);
        if ends_search(own) {
            return None;
        }
        let mut searched = self.line(index ^ 1)?;
        if let Some(slot) = Self::search(searched, tag) {
            return Some(slot);
        }
        for line in self.lines(place).into_iter().skip(2) {
            if ends_search(searched) {
                return None;
            }
            searched = self.line(line)?;
            if let Some(slot) = Self::search(searched, tag) {
                return Some(slot);
            }
        }
        None
    }

    /// Which slot of a line a key is in cannot be foreseen: all are compared, and no branch depends on which
    /// it is, so that the processor goes on to the next decision while it waits for this one's memory.
    #[inline(always)]
    fn search(line: &[Slot; LINE], tag: Tag) -> Option<&Slot> {
        let mut hits = 0_u32;
        for (position, slot) in line.iter().enumerate() {
            hits |= u32::from(slot.tag.load(Ordering::Acquire) == tag.0) << position;
        }
        if hits == 0 { None } else { line.get(hits.trailing_zeros() as usize) }
    }

    /// Looks a slot over, if it has an owner and is not just changing hands.
    #[inline]
    fn look(slot: &Slot) -> Option<Seen<'_>> {
        let tag = slot.tag.load(Ordering::Acquire);
        let stored = slot.word.load(Ordering::Acquire);
        (tag == slot.tag.load(Ordering::Acquire) && tag != TAKEN).then_some(Seen { slot, tag, stored })
    }

    /// Looks a slot over, if it has no owner.
    #[inline]
    fn look_free(slot: &Slot) -> Option<Seen<'_>> {
        Self::look(slot).filter(|seen| seen.tag == EMPTY || seen.tag == DEAD)
    }

    /// Changes a key's word if the key is there: `step` is given the word and says what becomes of it, if
    /// anything. It may be called again when another thread was faster.
    #[inline(always)]
    pub(crate) fn update<R>(
        &self,
        place: Place,
        tag: Tag,
        step: impl FnMut(u64) -> (Option<u64>, R),
    ) -> Option<R> {
        self.update_from(self.home(place)?, tag, step)
    }

    /// As [`update`](Self::update), for a line that was sent for.
    #[inline(always)]
    pub(crate) fn update_from<R>(
        &self,
        line: Line<'_>,
        tag: Tag,
        mut step: impl FnMut(u64) -> (Option<u64>, R),
    ) -> Option<R> {
        let pad = pad(tag.0);
        loop {
            let slot = self.find(line, tag)?;
            let stored = slot.word.load(Ordering::Acquire);
            if slot.tag.load(Ordering::Relaxed) != tag.0 {
                continue;
            }
            let (next, result) = step(stored ^ pad);
            let Some(word) = next else { return Some(result) };
            if slot.word.compare_exchange(stored, word ^ pad, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(result);
            }
        }
    }

    /// Sends for a place's own line, so that what follows waits less for it.
    #[inline(always)]
    pub(crate) fn fetch(&self, place: Place) -> Option<Line<'_>> {
        let line = self.home(place)?;
        #[cfg(all(target_arch = "x86_64", not(tollgate_loom)))]
        // SAFETY: every x86-64 processor has the instruction; it is a hint and changes nothing.
        #[allow(unsafe_code)]
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.slots.as_ptr().cast());
        }
        Some(line)
    }

    /// Whether a key is certainly absent: none of its slots has its tag, and none is just changing hands, which
    /// could hide it. To be asked under the key's lock.
    pub(crate) fn presence(&self, place: Place, tag: Tag) -> Presence<'_> {
        loop {
            let mut search = Search { tag, is_hidden: false, free: None };
            let own = self.extent.own_lines_of(place.hash, self.extent.active());
            let mut end =
                own.into_iter().filter_map(|line| self.line(line)).find_map(|line| search.in_line(line));
            let free = search.free;
            if end.is_none() {
                let others = self.lines(place).into_iter().skip(2);
                end = others.filter_map(|line| self.line(line)).find_map(|line| search.in_line(line));
            }
            match end {
                Some(End::Found) => return Presence::Present,
                _ if search.is_hidden => pause(),
                _ => return Presence::Absent { free: free.and_then(Self::look_free) },
            }
        }
    }

    pub(crate) fn is_absent(&self, place: Place, tag: Tag) -> bool {
        matches!(self.presence(place, tag), Presence::Absent { .. })
    }

    /// The tags under which a key is there, whatever the rule.
    pub(crate) fn tags_of(&self, place: Place) -> SmallVec<[Tag; 2]> {
        let tags = self.slots(place).map(|slot| Tag(slot.tag.load(Ordering::Acquire)));
        tags.filter(|tag| tag.is_key() && tag.0 >> RULE_BITS == place.hash << RULE_BITS >> RULE_BITS)
            .collect()
    }

    /// Puts a key that is absent, under its lock: into a slot without an owner, else into that of an idle one, else
    /// into that of the owner which is worth least. `free` is what [`presence`](Self::presence) found. `own` is what the key's
    /// own state is worth: if every slot is worth as much, nothing is put and the answer is false.
    pub(crate) fn put(
        &self,
        place: Place,
        free: Option<Seen<'_>>,
        (tag, word): (Tag, u64),
        own: impl FnOnce() -> u64,
        judge: &impl Judge,
    ) -> bool {
        // Mostly there is a slot without an owner, and nobody's worth matters.
        if free.is_some_and(|seen| self.take(seen, tag, word)) {
            return true;
        }
        self.put_among_others(place, tag, word, own(), judge)
    }

    #[cold]
    #[inline(never)]
    fn put_among_others(&self, place: Place, tag: Tag, word: u64, own: u64, judge: &impl Judge) -> bool {
        let mut tries = 0;
        loop {
            let taken = match self.find_room(place, tag, judge) {
                Some(Room::Free(seen)) => self.take(seen, tag, word),
                // Nothing is evicted while a little more growth may help.
                Some(Room::Least { .. })
                    if tries < growth::GROWTH_TRIES
                        && self.can_grow()
                        && self.grow(Some(self.key_lock(place.hash))) =>
                {
                    tries += 1;
                    false
                }
                Some(Room::Least { worth, .. }) if worth >= own => return false,
                Some(Room::Least { seen, .. }) => {
                    judge.evict(seen.tag(), seen.word());
                    self.take(seen, tag, word)
                }
                // All slots are changing hands at this moment.
                None => {
                    pause();
                    false
                }
            };
            if taken {
                return true;
            }
        }
    }

    fn find_room(&self, place: Place, tag: Tag, judge: &impl Judge) -> Option<Room<'_>> {
        // Idle owners may come back: newcomers do not all displace the same one.
        let first = (tag.0 >> RULE_BITS) as usize % (SETS * SET);
        let mut idle: Option<(usize, Seen<'_>)> = None;
        let mut least: Option<Room<'_>> = None;
        // Idle keys that come back soon are new keys each time if others take their slots, which costs more than memory.
        let mut has_room = !self.can_grow();
        let slots = self.lines(place).into_iter().filter_map(|line| self.line(line)).flatten();
        for (position, slot) in slots.enumerate() {
            if (position == SET || position == 2 * SET) && !has_room {
                self.ask_for_growth(tag, position > SET, judge);
            }
            let Some(seen) = Self::look(slot) else { continue };
            if seen.tag == EMPTY || seen.tag == DEAD {
                return Some(Room::Free(seen));
            }
            match judge.worth(seen.tag(), seen.word()) {
                Worth::Idle => {
                    has_room = has_room || !judge.is_recent(seen.tag(), seen.word());
                    let distance = (position + SETS * SET - first) % (SETS * SET);
                    if idle.is_none_or(|(nearest, _)| distance < nearest) {
                        idle = Some((distance, seen));
                    }
                }
                Worth::Live(worth) => {
                    if !matches!(least, Some(Room::Least { worth: least, .. }) if least <= worth) {
                        least = Some(Room::Least { worth, seen });
                    }
                }
            }
        }
        idle.map(|(_, seen)| Room::Free(seen)).or(least)
    }

    /// Whether a key could be put without taking a slot from another.
    #[cold]
    pub(super) fn has_free_slot(&self, hash: u64) -> bool {
        self.slots(Place { hash }).any(Self::is_free)
    }

    fn is_free(slot: &Slot) -> bool {
        matches!(slot.tag.load(Ordering::Acquire), EMPTY | DEAD)
    }

    /// Takes a slot for `tag`, if it still is as it was seen.
    pub(crate) fn take(&self, seen: Seen<'_>, tag: Tag, word: u64) -> bool {
        self.hand_over(seen, tag.0, word ^ pad(tag.0))
    }

    fn hand_over(&self, Seen { slot, tag, stored }: Seen<'_>, new_tag: u64, new_stored: u64) -> bool {
        if slot.tag.compare_exchange(tag, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        let swapped =
            slot.word.compare_exchange(stored, new_stored, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Charged at the last moment: it stays with its owner.
        slot.tag.store(if swapped { new_tag } else { tag }, Ordering::Release);
        swapped
    }

    /// Moves a key that `moves` to a slot that nobody else can see yet. A key that stays leaves a slot there that was used.
    /// False if the slot was changing hands, or was charged meanwhile.
    pub(super) fn split_slot(old: &Slot, new: &Slot, moves: impl Fn(Tag) -> bool) -> bool {
        let Some(Seen { tag, stored, .. }) = Self::look(old) else { return false };
        if tag == EMPTY {
            return true;
        }
        if !Tag(tag).is_key() || !moves(Tag(tag)) {
            new.tag.store(DEAD, Ordering::Release);
            return true;
        }
        if old.tag.compare_exchange(tag, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        // Any other word than the one that is there, so that a late charge misses it.
        let moved = old.word.compare_exchange(stored, !stored, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if moved {
            new.word.store(stored, Ordering::Relaxed);
            new.tag.store(tag, Ordering::Release);
        }
        old.tag.store(if moved { DEAD } else { tag }, Ordering::Release);
        moved
    }

    /// Takes a key out, under its lock, and yields its last word.
    pub(crate) fn extract(&self, place: Place, tag: Tag) -> Option<u64> {
        while !self.is_absent(place, tag) {
            for seen in self.slots(place).filter_map(Self::look) {
                // Any other word than the one that is there, so that a late charge misses it.
                if seen.tag == tag.0 && self.hand_over(seen, DEAD, !seen.stored) {
                    return Some(seen.word());
                }
            }
        }
        None
    }

    /// Number of slots whose owners are not idle. Walks the whole table.
    pub(crate) fn count_live(&self, judge: &impl Judge) -> usize {
        let used = (0..self.extent.active()).filter_map(|line| self.line(line)).flatten();
        let owned = used.filter_map(Self::look).filter(|seen| seen.tag != EMPTY && seen.tag != DEAD);
        owned.filter(|seen| judge.worth(seen.tag(), seen.word()) != Worth::Idle).count()
    }
}

/// Maps a hash evenly to `0..n`; 0 where n is 0.
#[inline]
pub(super) fn scale(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}

/// Slots as the system hands them out: zero, and not resident before they are used. None if there is not so much memory.
#[cfg(not(tollgate_loom))]
fn empty_slots(count: usize) -> Option<Box<[Slot]>> {
    /// glibc maps fresh pages for so many bytes. Less may come from memory that was freed before: then all of it is
    /// zeroed by hand, and resident.
    const FRESH: usize = 32 << 20;
    const LARGE: usize = 1 << 20;
    let is_large = count >= LARGE / size_of::<Slot>();
    let reserved = if is_large { count.max(FRESH / size_of::<Slot>() + 1) } else { count };
    let slots = bytemuck::allocation::try_zeroed_slice_box(reserved).ok()?;
    ask_for_huge_pages(&slots);
    Some(slots)
}

/// A large table is better off in huge pages: with small ones, finding the page of a slot takes about as long as
/// fetching the slot. Its first part stays in small ones, so that what is resident is close to what is used.
#[cfg(all(target_os = "linux", not(tollgate_loom)))]
const SMALL_PAGES: usize = 4 << 20;

#[cfg(all(target_os = "linux", not(tollgate_loom)))]
fn ask_for_huge_pages(slots: &[Slot]) {
    const PAGE: usize = 2 << 20;
    let start = (slots.as_ptr() as usize).saturating_add(SMALL_PAGES).next_multiple_of(PAGE);
    let end = (slots.as_ptr() as usize + size_of_val(slots)) / PAGE * PAGE;
    if start < end {
        // SAFETY: the range lies within the slots, which are mapped; the advice changes how they are backed,
        // not what they hold. Where it is refused, small pages serve.
        #[allow(unsafe_code)]
        unsafe {
            libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(all(not(target_os = "linux"), not(tollgate_loom)))]
fn ask_for_huge_pages(_slots: &[Slot]) {}

#[cfg(tollgate_loom)]
fn empty_slots(count: usize) -> Option<Box<[Slot]>> {
    Some((0..count).map(|_| Slot { tag: AtomicU64::new(EMPTY), word: AtomicU64::new(0) }).collect())
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("extent", &self.extent).finish_non_exhaustive()
    }
}
