//! A bucket that is refilled in whole batches: nothing for a period, then `refill` tokens at once.
//!
//! The first admitted call sets the beat, and the beat is kept while the key is remembered.

use crate::algorithm::{Algorithm, Packed, bits_for, divide, share};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::outcome::Outcome;
use crate::summary::{Summarized, Summary};
use crate::time::{Nanos, Timestamp};

/// `refill` tokens at the end of every `period`, up to `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntervalBucket {
    capacity: u64,
    refill: u64,
    period: u64,
}

/// What is missing, and when the last batch came. No beat: nothing was ever taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    used: u64,
    beat: Option<u64>,
}

impl IntervalBucket {
    /// A bucket of `capacity` tokens that regains `refill` of them at the end of every `period`.
    pub fn new(capacity: u64, refill: u64, period: Nanos) -> Result<Self, LimitError> {
        let period = time_within("period", period, 1, MAX_PRODUCT)?;
        let refill = within("rate", refill, 1, MAX_PRODUCT)?;
        // An empty bucket is full again within 2^62 ns.
        let most = (MAX_PRODUCT / period).saturating_mul(refill).min(MAX_PRODUCT);
        let capacity = within("burst", capacity, 1, most)?;
        Ok(Self { capacity, refill, period })
    }

    /// Tokens of a batch.
    pub fn refill(&self) -> u64 {
        self.refill
    }

    /// The time between two batches.
    pub fn period(&self) -> Nanos {
        Nanos::new(self.period)
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        let (refill, longer) = divide(self.refill, nodes);
        let period = self.period.saturating_mul(longer).min(MAX_PRODUCT);
        let (capacity, _) = divide(self.capacity, nodes);
        // An empty bucket is full again within 2^62 ns.
        Self { capacity: capacity.min((MAX_PRODUCT / period).saturating_mul(refill)), refill, period }
    }

    /// The batch in force at `now`: its use and its beat.
    #[inline]
    fn current(&self, state: &Batch, now: u64) -> (u64, u64) {
        let Some(beat) = state.beat else { return (0, now) };
        let batches = now.saturating_sub(beat).checked_div(self.period).unwrap_or(0);
        (state.used.saturating_sub(batches.saturating_mul(self.refill)), beat + batches * self.period)
    }

    #[inline]
    fn fits(&self, used: u64, cost: u64) -> bool {
        cost <= self.capacity && used.saturating_add(cost) <= self.capacity
    }

    /// Time until `units` have come back.
    fn time_for(&self, units: u64, beat: u64, now: u64) -> u64 {
        let batches = units.div_ceil(self.refill.max(1));
        beat.saturating_add(batches.saturating_mul(self.period)).saturating_sub(now)
    }

    #[inline]
    fn outcome(&self, used: u64, beat: u64, now: u64, cost: u64, fits: bool) -> Outcome {
        let remaining = self.capacity.saturating_sub(used);
        let reset = if used > 0 { self.time_for(used, beat, now) } else { 0 };
        if fits {
            Outcome::allow(remaining, reset)
        } else {
            let retry = (cost <= self.capacity)
                .then(|| self.time_for((used + cost).saturating_sub(self.capacity), beat, now));
            Outcome::refuse(remaining, retry, reset)
        }
    }

    fn clamp(state: &Batch, now: Timestamp) -> u64 {
        now.as_nanos().max(state.beat.unwrap_or(0))
    }

    fn count_bits(&self) -> u32 {
        bits_for(self.capacity)
    }
}

impl Algorithm for IntervalBucket {
    type State = Batch;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn decide(&self, state: &mut Batch, now: Timestamp, cost: u64) -> Outcome {
        let now = Self::clamp(state, now);
        let (mut used, beat) = self.current(state, now);
        let fits = self.fits(used, cost);
        if fits && cost > 0 {
            used += cost;
            *state = Batch { used, beat: Some(beat) };
        }
        self.outcome(used, beat, now, cost, fits)
    }

    fn estimate(&self, state: &Batch, now: Timestamp, cost: u64) -> Outcome {
        let now = Self::clamp(state, now);
        let (used, beat) = self.current(state, now);
        self.outcome(used, beat, now, cost, self.fits(used, cost))
    }

    fn refund(&self, state: &mut Batch, now: Timestamp, cost: u64, taken: Timestamp) -> Outcome {
        let now = Self::clamp(state, now);
        let (mut used, beat) = self.current(state, now);
        // A batch that came since then has already made good what was taken.
        if used > 0 && taken.as_nanos() >= beat {
            used = used.saturating_sub(cost);
            *state = Batch { used, beat: Some(beat) };
        }
        self.outcome(used, beat, now, 0, true)
    }

    fn level(&self, state: &Batch, now: Timestamp) -> u64 {
        share(self.current(state, Self::clamp(state, now)).0, self.capacity)
    }

    fn join(&self, a: &Batch, b: &Batch, now: Timestamp) -> Batch {
        let now = Self::clamp(a, now).max(Self::clamp(b, now));
        let ((used_a, beat_a), (used_b, beat_b)) = (self.current(a, now), self.current(b, now));
        if used_a == 0 || used_b == 0 {
            // One of them is idle and means nothing; what never had a beat must not be given one.
            let (used, beat, of) = if used_a == 0 { (used_b, beat_b, b) } else { (used_a, beat_a, a) };
            return Batch { used, beat: of.beat.map(|_| beat) };
        }
        // The later beat: its batches come later than the other's, never earlier.
        Batch { used: used_a.max(used_b), beat: Some(beat_a.max(beat_b)) }
    }

    fn convert(&self, old: &Self, state: &Batch, changed: Timestamp) -> Batch {
        let Some(_) = state.beat else {
            return Batch::default();
        };
        let changed = Self::clamp(state, changed);
        let (used, beat) = old.current(state, changed);
        // A beat that lies more than a new period back would refill at once what is in use now.
        let beat = if changed - beat < self.period { beat } else { changed };
        Batch { used: used.min(self.capacity), beat: Some(beat) }
    }
}

impl Summarized for IntervalBucket {
    fn horizon(&self) -> Nanos {
        Nanos::new(self.capacity.div_ceil(self.refill.max(1)).saturating_mul(self.period))
    }

    fn summarize(&self, state: &Batch, now: Timestamp) -> Summary {
        let now = Self::clamp(state, now);
        let (used, beat) = self.current(state, now);
        let until = now.saturating_add(if used > 0 { self.time_for(used, beat, now) } else { 0 });
        Summary { until: Timestamp::from_nanos(until), used: Some(used) }
    }

    fn restore(&self, Summary { until, used }: Summary, now: Timestamp) -> Batch {
        // What is left comes back with the batches that are still to come.
        let to_come = until.since(now).as_u64().div_ceil(self.period.max(1));
        let left = to_come.saturating_mul(self.refill).min(used.unwrap_or(self.capacity)).min(self.capacity);
        if left == 0 {
            return Batch::default();
        }
        let batches = left.div_ceil(self.refill.max(1)).saturating_mul(self.period);
        Batch { used: left, beat: Some(until.as_nanos().saturating_sub(batches).min(now.as_nanos())) }
    }
}

/// The word is one more than the beat since the base, and the use in the low bits. A word of 0 has no beat.
impl Packed for IntervalBucket {
    fn span(&self) -> u64 {
        (u64::MAX >> self.count_bits()).saturating_sub(1).saturating_sub(self.period)
    }

    fn base(&self, now: Timestamp) -> Timestamp {
        // The last beat of anybody lies less than a period back.
        Timestamp::from_nanos(now.as_nanos().saturating_sub(self.period))
    }

    #[inline]
    fn pack(&self, base: Timestamp, state: Batch) -> u64 {
        let Some(beat) = state.beat else { return 0 };
        // A beat from before the base goes on from there.
        let (used, beat) = match beat < base.as_nanos() {
            true => self.current(&state, base.as_nanos().saturating_add(self.period - 1)),
            false => (state.used, beat),
        };
        (beat.saturating_sub(base.as_nanos()) + 1) << self.count_bits() | used.min(self.capacity)
    }

    #[inline]
    fn unpack(&self, base: Timestamp, word: u64) -> Batch {
        let count = (1 << self.count_bits()) - 1;
        let beat = (word >> self.count_bits()).checked_sub(1);
        Batch { used: word & count, beat: beat.map(|beat| beat.saturating_add(base.as_nanos())) }
    }
}
