//! Sliding window counter by two windows: the previous window counts by the share that still overlaps.
//!
//! Nearly as smooth as a log at the price of two counters. It is an estimate: it takes the calls of the
//! previous window to be spread evenly.

use crate::algorithm::{Algorithm, Packed, bits_for, divide, share};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::outcome::Outcome;
use crate::summary::{Summarized, Summary};
use crate::time::{Nanos, Timestamp};

/// `limit` units in a window that slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    limit: u64,
    window: u64,
}

/// The counts of the current window and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwoWindows {
    /// Number of the current window since the epoch.
    index: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    /// `limit` units per `window`.
    pub fn new(limit: u64, window: Nanos) -> Result<Self, LimitError> {
        let window = time_within("period", window, 1, MAX_PRODUCT)?;
        let limit = within("rate", limit, 1, MAX_PRODUCT)?;
        Ok(Self { limit, window })
    }

    /// The length of a window.
    pub fn window(&self) -> Nanos {
        Nanos::new(self.window)
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        let (limit, longer) = divide(self.limit, nodes);
        Self { limit, window: self.window.saturating_mul(longer).min(MAX_PRODUCT) }
    }

    #[inline]
    fn index(&self, now: u64) -> u64 {
        now.checked_div(self.window).unwrap_or(0)
    }

    /// Time into the current window.
    #[inline]
    fn into(&self, now: u64) -> u64 {
        now.checked_rem(self.window).unwrap_or(0)
    }

    /// `now`, but never before the window that was charged last.
    #[inline]
    fn clamp(&self, state: &TwoWindows, now: Timestamp) -> u64 {
        now.as_nanos().max(state.index.saturating_mul(self.window))
    }

    #[inline]
    fn roll(&self, state: &TwoWindows, now: u64) -> TwoWindows {
        let index = self.index(now);
        match index - state.index.min(index) {
            0 => *state,
            1 => TwoWindows { index, current: 0, previous: state.current },
            _ => TwoWindows { index, current: 0, previous: 0 },
        }
    }

    /// The estimated use: what counts of the previous window, rounded up, and the current one. Rounding up here
    /// is exact, because everything it is compared with is whole.
    #[inline]
    fn estimated(&self, rolled: &TwoWindows, now: u64) -> u64 {
        let overlap = self.window - self.into(now);
        scale(rolled.previous, overlap, self.window, Round::Up).saturating_add(rolled.current)
    }

    #[inline]
    fn fits(&self, rolled: &TwoWindows, now: u64, cost: u64) -> bool {
        cost <= self.limit && self.estimated(rolled, now).saturating_add(cost) <= self.limit
    }

    fn retry_after(&self, rolled: &TwoWindows, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit {
            return None;
        }
        let left = self.window - self.into(now);
        let room = self.limit - cost;
        Some(if rolled.current <= room {
            // Enough of the previous window slides out before this one ends.
            left.saturating_sub(scale(room - rolled.current, self.window, rolled.previous, Round::Down))
        } else {
            // This window becomes the previous one and must slide out in part.
            left + self.window.saturating_sub(scale(room, self.window, rolled.current, Round::Down))
        })
    }

    #[inline]
    fn outcome(&self, rolled: &TwoWindows, now: u64, cost: u64, fits: bool) -> Outcome {
        let remaining = self.limit.saturating_sub(self.estimated(rolled, now));
        let left = self.window - self.into(now);
        let reset = match (rolled.current, rolled.previous) {
            (0, 0) => 0,
            (0, _) => left,
            _ => left + self.window,
        };
        if fits {
            Outcome::allow(remaining, reset)
        } else {
            Outcome::refuse(remaining, self.retry_after(rolled, now, cost), reset)
        }
    }

    fn count_bits(&self) -> u32 {
        bits_for(self.limit)
    }
}

impl Algorithm for SlidingWindow {
    type State = TwoWindows;

    fn capacity(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn decide(&self, state: &mut TwoWindows, now: Timestamp, cost: u64) -> Outcome {
        let now = self.clamp(state, now);
        let mut rolled = self.roll(state, now);
        let fits = self.fits(&rolled, now, cost);
        if fits && cost > 0 {
            rolled.current += cost;
            *state = rolled;
        }
        self.outcome(&rolled, now, cost, fits)
    }

    fn estimate(&self, state: &TwoWindows, now: Timestamp, cost: u64) -> Outcome {
        let now = self.clamp(state, now);
        let rolled = self.roll(state, now);
        self.outcome(&rolled, now, cost, self.fits(&rolled, now, cost))
    }

    fn refund(&self, state: &mut TwoWindows, now: Timestamp, cost: u64, taken: Timestamp) -> Outcome {
        let now = self.clamp(state, now);
        let mut rolled = self.roll(state, now);
        let age = rolled.index.saturating_sub(self.index(taken.as_nanos()));
        match age {
            0 => rolled.current = rolled.current.saturating_sub(cost),
            1 => rolled.previous = rolled.previous.saturating_sub(cost),
            _ => {}
        }
        if age < 2 && (state.current, state.previous) != (0, 0) {
            *state = rolled;
        }
        self.outcome(&rolled, now, 0, true)
    }

    fn level(&self, state: &TwoWindows, now: Timestamp) -> u64 {
        let now = self.clamp(state, now);
        share(self.estimated(&self.roll(state, now), now), self.limit)
    }

    fn join(&self, a: &TwoWindows, b: &TwoWindows, now: Timestamp) -> TwoWindows {
        let now = self.clamp(a, now).max(self.clamp(b, now));
        let (a, b) = (self.roll(a, now), self.roll(b, now));
        if [a.current, a.previous, b.current, b.previous] == [0; 4] {
            return TwoWindows::default();
        }
        TwoWindows { index: a.index, current: a.current.max(b.current), previous: a.previous.max(b.previous) }
    }

    fn convert(&self, old: &Self, state: &TwoWindows, changed: Timestamp) -> TwoWindows {
        let changed = old.clamp(state, changed);
        let rolled = old.roll(state, changed);
        if self.window == old.window && rolled.previous <= self.limit {
            return TwoWindows { current: rolled.current.min(self.limit), ..rolled };
        }
        // Windows of another length do not line up, and counts above the limit do not fit: what the estimate
        // says is in use stays in use.
        let used = old.estimated(&rolled, changed);
        TwoWindows { index: self.index(changed), current: used.min(self.limit), previous: 0 }
    }
}

impl Summarized for SlidingWindow {
    fn horizon(&self) -> Nanos {
        Nanos::new(self.window.saturating_mul(2))
    }

    fn summarize(&self, state: &TwoWindows, now: Timestamp) -> Summary {
        let now = self.clamp(state, now);
        let rolled = self.roll(state, now);
        let end = now.saturating_add(self.window - self.into(now));
        let (until, used) = match rolled.current {
            0 => (end, rolled.previous),
            _ => (end.saturating_add(self.window), self.estimated(&rolled, now)),
        };
        Summary { until: Timestamp::from_nanos(until), used: Some(used) }
    }

    fn restore(&self, Summary { until, used }: Summary, now: Timestamp) -> TwoWindows {
        let used = used.unwrap_or(self.limit).min(self.limit);
        let index = self.index(now.as_nanos());
        // It ends where a window begins: what was rounded up is undone.
        match self.index(until.as_nanos()).saturating_sub(index) {
            0 => TwoWindows::default(),
            _ if used == 0 => TwoWindows::default(),
            1 => TwoWindows { index, current: 0, previous: used },
            _ => TwoWindows { index, current: used, previous: 0 },
        }
    }
}

/// The word is the number of the window since the base, then both counts.
impl Packed for SlidingWindow {
    fn span(&self) -> u64 {
        let numbers = u64::MAX.checked_shr(2 * self.count_bits()).unwrap_or(0).saturating_sub(1);
        numbers.saturating_mul(self.window)
    }

    fn base(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos() - self.into(now.as_nanos()))
    }

    #[inline]
    fn pack(&self, base: Timestamp, state: TwoWindows) -> u64 {
        let bits = self.count_bits();
        let number = state.index.saturating_sub(self.index(base.as_nanos()));
        (number << bits | state.current.min(self.limit)) << bits | state.previous.min(self.limit)
    }

    #[inline]
    fn unpack(&self, base: Timestamp, word: u64) -> TwoWindows {
        let bits = self.count_bits();
        let count = (1 << bits) - 1;
        TwoWindows {
            index: (word >> bits >> bits) + self.index(base.as_nanos()),
            current: word >> bits & count,
            previous: word & count,
        }
    }
}

enum Round {
    Up,
    Down,
}

/// `a * b / c`, in the width that it needs; 0 where c is 0.
#[inline]
fn scale(a: u64, b: u64, c: u64, round: Round) -> u64 {
    let more = match round {
        Round::Up => c.saturating_sub(1),
        Round::Down => 0,
    };
    if let Some(sum) = a.checked_mul(b).and_then(|product| product.checked_add(more)) {
        return sum.checked_div(c).unwrap_or(0);
    }
    let sum = u128::from(a) * u128::from(b) + u128::from(more);
    u64::try_from(sum.checked_div(u128::from(c)).unwrap_or(0)).unwrap_or(u64::MAX)
}
