//! What is remembered of evicted keys: four bytes each, found by the key's own hash.
//!
//! ```text
//! line   [header] [entry] x 15                            a key has two lines and is in one of them
//! entry  [fingerprint 13] [line 1] [scale 6] [kind 1] [value 11]
//! ```
//!
//! A value says until when a key's use matters, in units of its *scale*, which is a power of two of time. For a bucket
//! that is all there is to know. For other algorithms four of the bits say how much is in use. Both are rounded up,
//! so a key that comes back is never better off for having been evicted. Where a step of the value is more than one
//! request, as in windows of more than 15, a key that is not exhausted is rounded at random: right on average.
//!
//! A key that was never seen inherits something only if it shares line and fingerprint with an evicted key: at most
//! 30 in 2^13, or 0.4 %, of new keys do.
//!
//! **Time.** Units are counted modulo 128. The header holds when the line was last cleaned; everything in it ends
//! after that, so every value has one meaning, however long nobody looks.
//!
//! **Overload.** When both lines of a key are full, the entry with the least use is forgotten. When all of them are as
//! exhausted as the new one, the first line gives eleven entries up for a *bitmap*: one bit per exhausted key and one
//! common value. Exhausted keys stay rejected, but for about one in ten thousand that finds no room; of new keys, the share `1 - (1 - 1/320)^n` is rejected with them, where
//! `n` is the number of exhausted keys per line. A key with less use than all others in its lines is rounded at random:
//! it counts as exhausted with a probability that is its share of the limit, else it is forgotten. So nobody gets more
//! than the limit on average. A key that was evicted after one request is forgotten instead: it loses at most that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tollgate_core::summary::Summary;
use tollgate_core::{Limit, Timestamp};

/// The evicted keys of a store.
#[derive(Debug)]
pub(crate) struct Evicted {
    /// Allocated by the first eviction.
    lines: OnceLock<Lines>,
    max_lines: usize,
    locks: Box<[Mutex<()>]>,
    /// What chance comes from: a counter in large steps.
    throws: AtomicU64,
}

#[derive(Debug)]
struct Lines {
    words: Box<[AtomicU32]>,
    /// The word where the first line begins, so that every line is a cache line.
    start: usize,
    count: usize,
    /// How often an empty line was put into use.
    used: AtomicUsize,
    /// Time is counted from here.
    base: u64,
}

/// What the entries of one limit have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// A unit of time is `2^(SHORTEST + scale)` nanoseconds.
    scale: u32,
    /// Whether the use follows from the time.
    is_timed: bool,
    capacity: u64,
    /// The longest time for which an entry matters.
    horizon: u64,
}

/// The two lines of a key and its fingerprint.
#[derive(Clone, Copy)]
struct Place {
    first: usize,
    second: usize,
    fingerprint: u32,
}

const WORDS: usize = 16;
const LOCKS: usize = 64;

/// Exponent of the shortest unit: 8 ms.
const SHORTEST: u32 = 23;
/// A horizon is at most so many units.
const UNITS: u64 = 64;
/// Headers count in `2^TICK` nanoseconds, a quarter of a second: enough for 18 years.
const TICK: u32 = 28;
const MAX_TICK: u64 = (1 << 31) - 1;
/// Marks a header whose line has a bitmap.
const HAS_BITMAP: u32 = 1 << 31;

const VALUE_BITS: u32 = 11;
const LEVEL_BITS: u32 = 4;
const FULL_LEVEL: u32 = (1 << LEVEL_BITS) - 1;
const TIMED: u32 = 1 << VALUE_BITS;
const SCALE_SHIFT: u32 = VALUE_BITS + 1;
const SCALE_MASK: u32 = 63;
/// Marks an entry in the second line of its key.
const SECOND: u32 = 1 << 18;
const FINGERPRINT_SHIFT: u32 = 19;
const FINGERPRINT_BITS: u32 = 13;
/// Scale, kind and value: what is left of an entry without its fingerprint.
const CONTENT: u32 = SECOND - 1;

/// With a bitmap, word 1 is the common value, the next ten are the bits, and four entries are left.
const COMMON: usize = 1;
const BITS: std::ops::Range<usize> = 2..12;
const KEPT: std::ops::Range<usize> = 12..WORDS;

const MIX: u64 = 0x9E6C_63D0_876A_6863;

/// Bits of a hash that every part of the store knows.
const HASH_BITS: u64 = (1 << 48) - 1;

impl Shape {
    /// The shape of a limit's entries; none for requests in progress, which are never evicted.
    pub(crate) fn of(limit: &Limit) -> Option<Self> {
        let horizon = limit.horizon()?.as_u64();
        // The smallest unit of which 64 are enough.
        let scale = (horizon.div_ceil(UNITS) - 1).checked_ilog2().map_or(0, |bits| bits + 1);
        Some(Self {
            scale: scale.saturating_sub(SHORTEST).min(SCALE_MASK),
            is_timed: matches!(limit, Limit::Bucket(_)),
            capacity: limit.capacity().max(1),
            horizon,
        })
    }

    /// What entries of this shape have in their middle bits.
    fn bits(self) -> u32 {
        self.scale << SCALE_SHIFT | if self.is_timed { TIMED } else { 0 }
    }

    /// Scale, kind and value of a summary; `base` is what time is counted from. `rounds_up` says what to do with a part of a
    /// step, of 2^32.
    fn encode(self, summary: Summary, base: u64, rounds_up: impl FnOnce(u64) -> bool) -> u32 {
        let until = u128::from(summary.until.as_nanos().saturating_sub(base));
        let shift = SHORTEST + self.scale;
        let step = |units: u128, of: u128| {
            let part = ((units % of) << 32).div_ceil(of) as u64;
            (units / of) as u32 + u32::from(part > 0 && rounds_up(part))
        };
        let value = match summary.used {
            Some(used) if !self.is_timed => {
                let used = u128::from(used.min(self.capacity)) * u128::from(FULL_LEVEL);
                (until.div_ceil(1 << shift) as u32) << LEVEL_BITS | step(used, u128::from(self.capacity))
            }
            _ => step(until, 1 << (shift - LEVEL_BITS)),
        };
        self.bits() | value & (TIMED - 1)
    }

    /// Whether a step of the value is more than one request.
    fn is_coarse(self) -> bool {
        match self.is_timed {
            true => {
                let step = 1 << (SHORTEST + self.scale - LEVEL_BITS);
                self.capacity > 1 << (VALUE_BITS - 2) && self.horizon / self.capacity < step
            }
            false => self.capacity > u64::from(FULL_LEVEL),
        }
    }

    fn decode(self, entry: u32, cleaned: u64, base: u64) -> Summary {
        let level = u128::from(entry & FULL_LEVEL) * u128::from(self.capacity) / u128::from(FULL_LEVEL);
        Summary {
            until: Timestamp::from_nanos(base.saturating_add(until(entry, cleaned))),
            used: (!self.is_timed).then_some(level as u64),
        }
    }
}

/// Why a key is not kept exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It made room for another key.
    Evicted,
    /// There was no room for its request.
    Unplaced,
}

/// What an entry is compared with.
#[derive(Clone, Copy)]
struct At {
    /// When its line was last cleaned, since the base.
    cleaned: u64,
    now: u64,
}

impl Shape {
    /// The entry of the same key, exhausted at `now`.
    fn exhausted(self, entry: u32, now: u64) -> u32 {
        match self.is_timed {
            true => {
                let until = Timestamp::from_nanos(now.saturating_add(self.horizon));
                entry & !CONTENT | self.encode(Summary { until, used: None }, 0, |_| true)
            }
            false => entry | FULL_LEVEL,
        }
    }

    /// Whether an entry of this shape may be that of a single request.
    fn is_trivial(self, entry: u32, At { cleaned, now }: At) -> bool {
        // A single request exhausts a limit of one.
        if self.capacity == 1 {
            return false;
        }
        match self.is_timed {
            true => {
                let left = until(entry, cleaned).saturating_sub(now);
                left <= self.horizon / self.capacity + (1 << (shift_of(entry) - LEVEL_BITS))
            }
            false => u64::from(entry & FULL_LEVEL) <= u64::from(FULL_LEVEL).div_ceil(self.capacity),
        }
    }

    /// The share of the limit that an entry of this shape has used, of 2^32; all of it where the next request is rejected.
    fn share(self, entry: u32, At { cleaned, now }: At) -> u64 {
        let (used, of) = match self.is_timed {
            // A bucket rejects while less than one request is left.
            true => (until(entry, cleaned).saturating_sub(now), self.horizon - self.horizon / self.capacity),
            false => (u64::from(entry & FULL_LEVEL), u64::from(FULL_LEVEL)),
        };
        match used {
            0 => 0,
            used if used >= of => 1 << 32,
            used => ((u128::from(used) << 32) / u128::from(of)) as u64,
        }
    }
}

fn shift_of(entry: u32) -> u32 {
    SHORTEST + (entry >> SCALE_SHIFT & SCALE_MASK)
}

/// When an entry ends, since the base: the first instant of its value at which its line was clean.
fn until(entry: u32, cleaned: u64) -> u64 {
    let (value, bits, shift) = match entry & TIMED {
        0 => (entry >> LEVEL_BITS, VALUE_BITS - LEVEL_BITS, shift_of(entry)),
        _ => (entry, VALUE_BITS, shift_of(entry) - LEVEL_BITS),
    };
    let (value, mask) = (u64::from(value), (1_u64 << bits) - 1);
    let earliest = cleaned >> shift;
    let units = earliest + (value.wrapping_sub(earliest) & mask);
    u64::try_from(u128::from(units) << shift).unwrap_or(u64::MAX)
}

/// How much an entry carries at `now`, from 0 to about 64.
fn weight(entry: u32, cleaned: u64, now: u64) -> u64 {
    let left = until(entry, cleaned).saturating_sub(now);
    match entry & TIMED {
        _ if left == 0 => 0,
        0 => 4 + 4 * u64::from(entry & FULL_LEVEL),
        _ => 1 + (left >> shift_of(entry)),
    }
}

/// The stricter of two entries of one shape.
fn stricter(a: u32, b: u32, cleaned: u64) -> u32 {
    let later = if until(a, cleaned) >= until(b, cleaned) { a } else { b };
    match a & TIMED {
        0 => later & !FULL_LEVEL | (a & FULL_LEVEL).max(b & FULL_LEVEL),
        _ => later,
    }
}

impl Evicted {
    /// Room for as many evicted keys as fit in so many bytes.
    pub(crate) fn with_bytes(bytes: usize) -> Self {
        let max_lines = (bytes / (WORDS * size_of::<u32>())).saturating_sub(1).max(1);
        let locks = LOCKS.min(max_lines.next_power_of_two());
        Self {
            lines: OnceLock::new(),
            max_lines,
            locks: (0..locks).map(|_| Mutex::default()).collect(),
            throws: AtomicU64::new(MIX),
        }
    }

    /// Bytes that are resident at the most: none before the first eviction, then a page for each line in use.
    pub(crate) fn bytes(&self) -> usize {
        const PAGE: usize = 4096;
        self.lines.get().map_or(0, |lines| {
            let pages = lines.used.load(Ordering::Relaxed).saturating_mul(PAGE);
            pages.min(size_of_val(&*lines.words))
        })
    }

    /// Remembers a key that is evicted at `now`. `is_exhausted` says whether its next request would be rejected.
    pub(crate) fn remember(
        &self,
        hash: u64,
        shape: Shape,
        summary: Summary,
        is_exhausted: bool,
        cause: Cause,
        now: Timestamp,
    ) {
        let is_idle = summary.until <= now || summary.used == Some(0);
        let lines = match self.lines.get() {
            Some(lines) => lines,
            None if is_idle => return,
            None => self.lines.get_or_init(|| Lines::allocate(self.max_lines, now)),
        };
        let place = lines.place(hash);
        let _guards = self.lock(place);
        let now = now.as_nanos().saturating_sub(lines.base);
        let is_random = shape.is_coarse() && !is_exhausted;
        let content = shape.encode(summary, lines.base, |part| !is_random || self.happens(part));
        let is_nothing = is_idle || !shape.is_timed && content & FULL_LEVEL == 0;
        let entry = place.fingerprint << FINGERPRINT_SHIFT | content;
        let (Some(first), Some(second)) = (lines.line(place.first), lines.line(place.second)) else { return };
        [first, second].iter().for_each(|line| line.clean(now));
        let in_second = entry | SECOND;
        let lookups = [(first, entry), (second, in_second)];
        let known = lookups.into_iter().find_map(|(line, entry)| Some((line.find(entry)?, line, entry)));
        if let Some((slot, line, entry)) = known {
            let before = slot.load(Ordering::Relaxed);
            let after = match cause {
                // It was read before: it is part of this, or was given back.
                Cause::Unplaced if is_nothing => 0,
                Cause::Unplaced => entry,
                // It may be of another key with the same fingerprint, which must not lose it.
                Cause::Evicted if is_nothing => before,
                Cause::Evicted => stricter(before, entry, line.cleaned()),
            };
            slot.store(after, Ordering::Relaxed);
            return;
        }
        if is_nothing {
            return;
        }
        for (line, entry) in lookups {
            if let Some(slot) = line.free() {
                if line.is_empty() {
                    lines.used.fetch_add(1, Ordering::Relaxed);
                }
                slot.store(entry, Ordering::Relaxed);
                return;
            }
        }
        let own = weight(entry, now, now);
        let weights = lookups
            .into_iter()
            .flat_map(|(line, entry)| line.weights(now).map(move |(weight, slot)| (weight, slot, entry)));
        let Some((least, slot, entry_there)) = weights.min_by_key(|(weight, ..)| *weight) else { return };
        let is_rounded_up = |entry, cleaned, cause| {
            let at = At { cleaned, now };
            let is_forgotten = cause == Cause::Evicted && shape.is_trivial(entry, at);
            !is_forgotten && self.happens(shape.share(entry, at))
        };
        // Among entries that are as good as exhausted, or with more use than its own.
        let is_bit = match is_exhausted {
            true => first.has_bitmap_of(entry) || 4 * least >= 3 * own,
            false => own < least && is_rounded_up(entry, now, cause),
        };
        match is_bit {
            true if first.has_bitmap_of(entry) => first.add_to_bitmap(shape.exhausted(entry, now)),
            true if !first.has_bitmap() => {
                first.make_bitmap(shape.exhausted(entry, now), now, |other| {
                    is_rounded_up(other, first.cleaned(), Cause::Evicted).then(|| shape.exhausted(other, now))
                });
            }
            _ if own >= least => slot.store(entry_there, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Whether something happens that has this probability, of 2^32.
    fn happens(&self, probability: u64) -> bool {
        let throw = self.throws.fetch_add(MIX, Ordering::Relaxed);
        let mixed = (throw ^ throw >> 32).wrapping_mul(MIX);
        (mixed ^ mixed >> 29).wrapping_mul(MIX) >> 32 < probability
    }

    /// Whether anything was ever remembered.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.lines.get().is_some()
    }

    /// What is remembered of a key under a limit of this shape.
    pub(crate) fn recall(&self, hash: u64, shape: Shape, now: Timestamp) -> Option<Summary> {
        let lines = self.lines.get()?;
        let place = lines.place(hash);
        let _guards = self.lock(place);
        let entry = place.fingerprint << FINGERPRINT_SHIFT | shape.bits();
        let (first, second) = (lines.line(place.first)?, lines.line(place.second)?);
        let in_bitmap = first.in_bitmap(entry).map(|value| (value, first));
        let lookups = [(first, entry), (second, entry | SECOND)];
        let found = lookups.into_iter().filter_map(|(line, entry)| Some((line.find(entry)?, line)));
        let found = found.map(|(slot, line)| (slot.load(Ordering::Relaxed), line)).chain(in_bitmap);
        let summaries = found.map(|(entry, line)| shape.decode(entry, line.cleaned(), lines.base));
        summaries
            .filter(|summary| summary.until > now)
            .reduce(|a, b| Summary { until: a.until.max(b.until), used: a.used.max(b.used) })
    }

    /// Forgets a key, whatever its limits.
    pub(crate) fn forget(&self, hash: u64) {
        let Some(lines) = self.lines.get() else { return };
        let place = lines.place(hash);
        let _guards = self.lock(place);
        for line in [place.first, place.second].into_iter().filter_map(|line| lines.line(line)) {
            line.forget(place.fingerprint);
        }
        if let Some(first) = lines.line(place.first) {
            first.unset_bit(place.fingerprint);
        }
    }

    /// Locks both lines of a place, in one order for all threads.
    fn lock(&self, place: Place) -> (Option<MutexGuard<'_, ()>>, Option<MutexGuard<'_, ()>>) {
        let [a, b] = [place.first, place.second].map(|line| line & (self.locks.len() - 1));
        let hold = |index: usize| self.locks.get(index).map(Mutex::lock);
        let first = hold(a.min(b));
        (first, if a == b { None } else { hold(a.max(b)) })
    }
}

/// A line whose lock is held.
#[derive(Clone, Copy)]
struct Line<'a>(&'a [AtomicU32; WORDS]);

impl Lines {
    fn allocate(max_lines: usize, now: Timestamp) -> Self {
        let mut words = WORDS.saturating_mul(max_lines + 1);
        let words: Box<[AtomicU32]> = loop {
            match bytemuck::allocation::try_zeroed_slice_box(words) {
                Ok(words) => break words,
                // More than there can be: as much as there is will do.
                Err(()) => words /= 2,
            }
        };
        let into_line = (words.as_ptr() as usize / size_of::<u32>()) % WORDS;
        let count = (words.len() / WORDS).saturating_sub(1).min(max_lines);
        Self {
            words,
            start: (WORDS - into_line) % WORDS,
            count,
            used: AtomicUsize::new(0),
            base: now.as_nanos(),
        }
    }

    fn line(&self, index: usize) -> Option<Line<'_>> {
        self.words.get(self.start + WORDS * index..)?.first_chunk().map(Line)
    }

    fn place(&self, hash: u64) -> Place {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let scale = |hash: u64| ((u128::from(hash) * self.count as u128) >> 64) as usize;
        let mixed = fold(hash & HASH_BITS | 1 << 63, MIX);
        let second = fold(mixed | 1, MIX.rotate_left(31));
        let fingerprint = (second & ((1 << FINGERPRINT_BITS) - 1)) as u32;
        Place { first: scale(mixed), second: scale(second), fingerprint: fingerprint.max(1) }
    }
}

impl<'a> Line<'a> {
    fn header(self) -> &'a AtomicU32 {
        let [header, ..] = self.0;
        header
    }

    fn has_bitmap(self) -> bool {
        self.header().load(Ordering::Relaxed) & HAS_BITMAP != 0
    }

    /// When the line was last cleaned, since the base.
    fn cleaned(self) -> u64 {
        u64::from(self.header().load(Ordering::Relaxed) & !HAS_BITMAP) << TICK
    }

    fn entries(self) -> &'a [AtomicU32] {
        self.0.get(if self.has_bitmap() { KEPT } else { 1..WORDS }).unwrap_or_default()
    }

    fn common(self) -> u32 {
        self.0.get(COMMON).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn set_common(self, value: u32) {
        if let Some(word) = self.0.get(COMMON) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Drops what has ended. What is put in afterwards is read as of now.
    fn clean(self, now: u64) {
        let tick = (now >> TICK).min(MAX_TICK) as u32;
        if self.header().load(Ordering::Relaxed) & !HAS_BITMAP == tick {
            return;
        }
        let cleaned = self.cleaned();
        let has_ended = |entry: u32| until(entry, cleaned) <= now;
        if self.has_bitmap() && has_ended(self.common()) {
            self.0.iter().take(BITS.end).skip(COMMON).for_each(|word| word.store(0, Ordering::Relaxed));
            self.header().fetch_and(!HAS_BITMAP, Ordering::Relaxed);
        }
        for slot in self.entries() {
            let entry = slot.load(Ordering::Relaxed);
            if entry != 0 && has_ended(entry) {
                slot.store(0, Ordering::Relaxed);
            }
        }
        let bitmap = self.header().load(Ordering::Relaxed) & HAS_BITMAP;
        self.header().store(tick | bitmap, Ordering::Relaxed);
    }

    /// The entry of the same key and shape.
    fn find(self, entry: u32) -> Option<&'a AtomicU32> {
        let is_same = |other: u32| other != 0 && (other ^ entry) & !(TIMED - 1) == 0;
        self.entries().iter().find(|slot| is_same(slot.load(Ordering::Relaxed)))
    }

    fn is_empty(self) -> bool {
        !self.has_bitmap() && self.entries().iter().all(|slot| slot.load(Ordering::Relaxed) == 0)
    }

    fn free(self) -> Option<&'a AtomicU32> {
        self.entries().iter().find(|slot| slot.load(Ordering::Relaxed) == 0)
    }

    fn weights(self, now: u64) -> impl Iterator<Item = (u64, &'a AtomicU32)> {
        let cleaned = self.cleaned();
        self.entries().iter().map(move |slot| (weight(slot.load(Ordering::Relaxed), cleaned, now), slot))
    }

    /// The bit of a key in the bitmap.
    fn bit(self, entry: u32) -> Option<(&'a AtomicU32, u32)> {
        let bits = (BITS.end - BITS.start) as u32 * u32::BITS;
        let position = ((entry >> FINGERPRINT_SHIFT) * bits) >> FINGERPRINT_BITS;
        Some((self.0.get(BITS.start + (position / u32::BITS) as usize)?, 1 << (position % u32::BITS)))
    }

    /// Whether the bitmap is for entries of this one's shape.
    fn has_bitmap_of(self, entry: u32) -> bool {
        self.has_bitmap() && (self.common() ^ entry) & CONTENT & !(TIMED - 1) == 0
    }

    /// The common value, if the key's bit is set.
    fn in_bitmap(self, entry: u32) -> Option<u32> {
        let (word, bit) = self.bit(entry).filter(|_| self.has_bitmap_of(entry))?;
        (word.load(Ordering::Relaxed) & bit != 0).then(|| self.common())
    }

    /// Sets a key's bit. The bitmap is of its shape.
    fn add_to_bitmap(self, entry: u32) {
        if let Some((word, bit)) = self.bit(entry) {
            word.fetch_or(bit, Ordering::Relaxed);
            self.set_common(stricter(self.common(), entry & CONTENT, self.cleaned()));
        }
    }

    /// Makes room for a bitmap, whose first key is `entry`. Of the others of its shape, those become bits that `exhausted`
    /// says. Of all others the heaviest stay.
    fn make_bitmap(self, entry: u32, now: u64, exhausted: impl Fn(u32) -> Option<u32>) {
        let cleaned = self.cleaned();
        let mut entries = [0; WORDS];
        for (copy, slot) in entries.iter_mut().zip(self.entries()) {
            *copy = slot.swap(0, Ordering::Relaxed);
        }
        self.header().fetch_or(HAS_BITMAP, Ordering::Relaxed);
        self.set_common(entry & CONTENT);
        self.add_to_bitmap(entry);
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(weight(*entry, cleaned, now)));
        for entry in entries.into_iter().filter(|entry| *entry != 0) {
            // Keys look for their bits in their first lines only.
            if self.has_bitmap_of(entry) && entry & SECOND == 0 {
                exhausted(entry).into_iter().for_each(|entry| self.add_to_bitmap(entry));
            } else if let Some(slot) = self.free() {
                slot.store(entry, Ordering::Relaxed);
            }
        }
    }

    fn forget(self, fingerprint: u32) {
        for slot in self.entries() {
            let entry = slot.load(Ordering::Relaxed);
            if entry != 0 && entry >> FINGERPRINT_SHIFT == fingerprint {
                slot.store(0, Ordering::Relaxed);
            }
        }
    }

    fn unset_bit(self, fingerprint: u32) {
        if let Some((word, bit)) = self.bit(fingerprint << FINGERPRINT_SHIFT).filter(|_| self.has_bitmap()) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_core::Nanos;

    use super::*;

    /// Both were in the table at the same time, so that the second has not inherited what is remembered of the first.
    #[test]
    fn a_key_with_the_same_fingerprint_does_not_erase_what_another_has_used() {
        let limit = Limit::sliding_log(10, Nanos::from_secs(60)).unwrap();
        let shape = Shape::of(&limit).unwrap();
        let evicted = Evicted::with_bytes(2 * WORDS * size_of::<u32>());
        let now = Timestamp::from_secs(1000);
        let until = Timestamp::from_secs(1050);
        let remember = |hash, used, is_exhausted| {
            let summary = Summary { until, used: Some(used) };
            evicted.remember(hash, shape, summary, is_exhausted, Cause::Evicted, now);
        };
        remember(0, 10, true);
        let lines = evicted.lines.get().unwrap();
        let place = |hash| (lines.place(hash).first, lines.place(hash).second, lines.place(hash).fingerprint);
        let other = (1..).find(|hash| place(*hash) == place(0)).unwrap();
        remember(other, 1, false);
        assert_eq!(evicted.recall(0, shape, now).unwrap().used, Some(10));
    }
}
