//! A bounded table of one-word states that is read and charged without locks.
//!
//! ```text
//! line (one cache line)   [tag|word] [tag|word] [tag|word] [tag|word]
//! set  (two lines)        [tag|word] [tag|word] [tag|word] [tag|word] | [tag|word] ...
//! ```
//!
//! A *tag* is 48 bits of the key's hash and 16 bits that name the rule. A key belongs in
//! one line; when that was full it sits in the set's other line, and when the set was full, in one of two other
//! sets: 24 slots in all, searched in an order that is the key's own. Slots are filled in that order and
//! never emptied again, so the first slot that was never used ends every search.
//!
//! **Charging** a key that is there is one compare-and-swap on its word. **Taking** a slot for another key,
//! which only happens to slots whose owner is idle or carries the least, goes in three steps: mark the tag,
//! swap the word, write the new tag. A late compare-and-swap by the old owner must not hit the new one. It
//! cannot, because a word is stored masked with a pad made from its tag: the same word of two owners differs in
//! the slot, but for a chance of 2^-64 that is no worse than that of two keys sharing a tag. And a reader
//! that loads the word of the new owner sees the tag changed when it looks again.
//!
//! **New keys** are put in under a lock of their set, so that no key ever sits in two slots.

use std::fmt;

#[cfg(not(tollgate_loom))]
use bytemuck::Zeroable;
use smallvec::SmallVec;

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
const MIX: u64 = 0xD6E8_FEB8_6659_FD93;

/// What a slot's state is worth to whoever looks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// A state in a slot of `set` is about to be forgotten: remember what must not be.
    fn evict(&self, tag: Tag, word: u64, set: usize);
}

/// Where a key may sit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The line where the key belongs.
    line: usize,
    hash: u64,
}

/// A place with its own line at hand.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    slots: &'a [Slot; LINE],
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
    /// Every slot is in use; this one is worth least, and is in this set.
    Least { worth: u64, set: usize, seen: Seen<'a> },
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
    slots: Box<[Slot]>,
    /// The slot where the first set begins, so that every set begins with a cache line.
    start: usize,
    /// Number of sets.
    sets: usize,
    /// One lock for every so many sets, held while a key is put in.
    locks: Box<[CacheLine<Lock>]>,
}

#[repr(align(64))]
#[derive(Default)]
struct CacheLine<T>(T);

impl Table {
    /// A table of at most `bytes`, and of at least one set; `dense` if nearly all of it will be in use.
    pub(crate) fn with_bytes(bytes: usize, dense: bool) -> Self {
        let set = SET * size_of::<Slot>();
        let locks = (bytes / set / 16).clamp(1, 1024).next_power_of_two();
        let lock_bytes = locks * size_of::<CacheLine<Lock>>();
        let sets = (bytes.saturating_sub(lock_bytes) / set).saturating_sub(1).max(1);
        let slots = empty_slots(SET.saturating_mul(sets + 1), if dense { HUGE_DENSE } else { HUGE });
        let sets = sets.min((slots.len() / SET).saturating_sub(1)).max(1);
        let into_set = (slots.as_ptr() as usize / size_of::<Slot>()) % SET;
        Self {
            slots,
            start: (SET - into_set) % SET,
            sets,
            locks: (0..locks).map(|_| CacheLine::default()).collect(),
        }
    }

    /// Bytes that the table can come to occupy.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.locks)
    }

    /// Number of sets.
    pub(crate) fn sets(&self) -> usize {
        self.sets
    }

    /// Where a key with this hash may sit.
    #[inline]
    pub(crate) fn place(&self, hash: u64) -> Place {
        Place { line: scale(hash, 2 * self.sets), hash }
    }

    /// The lines where a key may sit, in the order in which they are filled: its own and its neighbour, then those
    /// of other sets, unless there are no others.
    #[inline]
    fn lines(&self, place: Place) -> [usize; 2 * SETS] {
        let mut lines = [place.line; 2 * SETS];
        // From the hash's other end, so that keys of one set do not all go to the same other ones.
        let mut mixed = place.hash.rotate_left(32);
        for [line, neighbour] in lines.as_chunks_mut().0 {
            *neighbour = *line ^ 1;
        }
        for [line, neighbour] in lines.as_chunks_mut().0.iter_mut().skip(1) {
            mixed = mixed.wrapping_mul(MIX);
            let set = place.line / 2 + 1 + scale(mixed, self.sets - 1);
            let set = if set >= self.sets { set - self.sets } else { set };
            *line = 2 * set + (mixed & 1) as usize;
            *neighbour = *line ^ 1;
        }
        lines
    }

    #[inline]
    fn line(&self, index: usize) -> Option<&[Slot; LINE]> {
        self.slots.get(self.start + LINE * index..)?.first_chunk()
    }

    /// The sets where a key may sit.
    pub(crate) fn sets_of(&self, place: Place) -> [usize; SETS] {
        let lines = self.lines(place);
        let mut sets = [0; SETS];
        for (set, [line, _]) in sets.iter_mut().zip(lines.as_chunks().0) {
            *set = line / 2;
        }
        sets
    }

    /// The lock under which a key of this place is put in.
    pub(crate) fn lock(&self, place: Place) -> impl Drop + '_ {
        let index = (place.line / 2) & (self.locks.len() - 1);
        #[allow(clippy::indexing_slicing, reason = "masked by the length, a power of two")]
        self.locks[index].0.hold()
    }

    /// The slots of a place, in the order in which they are filled.
    fn slots(&self, place: Place) -> impl Iterator<Item = &Slot> {
        self.lines(place).into_iter().filter_map(|line| self.line(line)).flatten()
    }

    #[inline(always)]
    fn find<'a>(&'a self, line: Line<'a>, tag: Tag) -> Option<&'a Slot> {
        match Self::search(line.slots, tag) {
            Some(slot) => Some(slot),
            None => self.find_further(line.place, tag),
        }
    }

    #[cold]
    #[inline(never)]
    fn find_further(&self, place: Place, tag: Tag) -> Option<&Slot> {
        let mut searched = self.line(place.line)?;
        for line in self.lines(place).into_iter().skip(1) {
            // A slot that was never used ends the search: a key is put in the first one of its order.
            if searched.iter().any(|slot| slot.tag.load(Ordering::Acquire) == EMPTY) {
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

    /// Changes a key's word if the key is there: `step` is given the word and says what becomes of it, if
    /// anything. It may be called again when another thread was faster.
    #[inline(always)]
    pub(crate) fn update<R>(
        &self,
        place: Place,
        tag: Tag,
        step: impl FnMut(u64) -> (Option<u64>, R),
    ) -> Option<R> {
        self.update_from(Line { slots: self.line(place.line)?, place }, tag, step)
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
        let slots = self.line(place.line)?;
        #[cfg(all(target_arch = "x86_64", not(tollgate_loom)))]
        // SAFETY: every x86-64 processor has the instruction; it is a hint and changes nothing.
        #[allow(unsafe_code)]
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(slots.as_ptr().cast());
        }
        Some(Line { slots, place })
    }

    /// Whether a key is certainly absent: none of its slots has its tag, and none is just changing hands, which
    /// could hide it. To be asked under the key's lock.
    pub(crate) fn is_absent(&self, place: Place, tag: Tag) -> bool {
        loop {
            let mut hidden = false;
            for slot in self.slots(place) {
                match slot.tag.load(Ordering::Acquire) {
                    TAKEN => hidden = true,
                    EMPTY => break,
                    seen if seen == tag.0 => return false,
                    _ => {}
                }
            }
            if !hidden {
                return true;
            }
            pause();
        }
    }

    /// The tags under which a key is there, whatever the rule.
    pub(crate) fn tags_of(&self, place: Place) -> SmallVec<[Tag; 2]> {
        let tags = self.slots(place).map(|slot| Tag(slot.tag.load(Ordering::Acquire)));
        tags.filter(|tag| tag.is_key() && tag.0 >> RULE_BITS == place.hash << RULE_BITS >> RULE_BITS)
            .collect()
    }

    /// Puts a key that is absent, under its lock: into a slot without an owner, else into that of an idle one, else
    /// into that of the owner which is worth least. `level` is what the key's own state is worth: if every
    /// slot is worth more, nothing is put and the answer is false.
    pub(crate) fn put(&self, place: Place, tag: Tag, word: u64, level: u64, judge: &impl Judge) -> bool {
        loop {
            let taken = match self.find_room(place, tag, judge) {
                Some(Room::Free(seen)) => self.take(seen, tag, word),
                Some(Room::Least { worth, .. }) if worth > level => return false,
                Some(Room::Least { set, seen, .. }) => {
                    judge.evict(seen.tag(), seen.word(), set);
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
        let sets = self.sets_of(place);
        // Idle owners may come back: newcomers do not all displace the same one.
        let first = (tag.0 >> RULE_BITS) as usize % (SETS * SET);
        let mut idle: Option<(usize, Seen<'_>)> = None;
        let mut least: Option<Room<'_>> = None;
        for (position, slot) in self.slots(place).enumerate() {
            let Some(seen) = Self::look(slot) else { continue };
            if seen.tag == EMPTY || seen.tag == DEAD {
                return Some(Room::Free(seen));
            }
            match judge.worth(seen.tag(), seen.word()) {
                Worth::Idle => {
                    let distance = (position + SETS * SET - first) % (SETS * SET);
                    if idle.is_none_or(|(nearest, _)| distance < nearest) {
                        idle = Some((distance, seen));
                    }
                }
                Worth::Live(worth) => {
                    if !matches!(least, Some(Room::Least { worth: least, .. }) if least <= worth) {
                        let set = sets.get(position / SET).copied().unwrap_or(place.line / 2);
                        least = Some(Room::Least { worth, set, seen });
                    }
                }
            }
        }
        idle.map(|(_, seen)| Room::Free(seen)).or(least)
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
        let owned =
            self.slots.iter().filter_map(Self::look).filter(|seen| seen.tag != EMPTY && seen.tag != DEAD);
        owned.filter(|seen| judge.worth(seen.tag(), seen.word()) != Worth::Idle).count()
    }
}

/// Maps a hash evenly to `0..n`; 0 where n is 0.
#[inline]
fn scale(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}

/// Slots as the system hands them out: zero, and not resident before they are used. That is why the table
/// aligns its sets itself: memory of a larger alignment would be zeroed by hand.
#[cfg(not(tollgate_loom))]
fn empty_slots(count: usize, huge: usize) -> Box<[Slot]> {
    let mut granted = count;
    loop {
        match bytemuck::allocation::try_zeroed_slice_box(granted) {
            Ok(slots) => {
                if size_of_val(&*slots) >= huge {
                    ask_for_huge_pages(&slots);
                }
                return slots;
            }
            // More than there can be: as much as there is will do.
            Err(()) => granted /= 2,
        }
    }
}

/// Tables from this size on are better off in huge pages: with small ones, finding the page of a slot takes
/// about as long as fetching the slot. Below, small pages keep what is resident close to what is used.
const HUGE: usize = 64 << 20;
/// The same for a table of which nearly all will be used.
const HUGE_DENSE: usize = 4 << 20;

#[cfg(all(target_os = "linux", not(tollgate_loom)))]
fn ask_for_huge_pages(slots: &[Slot]) {
    const PAGE: usize = 2 << 20;
    let start = (slots.as_ptr() as usize).next_multiple_of(PAGE);
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
fn empty_slots(count: usize, _huge: usize) -> Box<[Slot]> {
    (0..count).map(|_| Slot { tag: AtomicU64::new(EMPTY), word: AtomicU64::new(0) }).collect()
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("sets", &self.sets).finish_non_exhaustive()
    }
}
