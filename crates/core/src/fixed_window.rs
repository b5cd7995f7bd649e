//! Fixed windows: so many units per window, aligned to the clock or opened by the first admitted call.
//!
//! Any stretch of one window's length can hold up to twice the limit, across a boundary. That is the price of
//! its simplicity; a sliding window does not have it.

use crate::algorithm::{Algorithm, Packed, bits_for, divide, share};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::outcome::Outcome;
use crate::summary::{Summarized, Summary};
use crate::time::{Nanos, Timestamp};

/// `limit` units per window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u64,
    window: u64,
    start: WindowStart,
}

/// When windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WindowStart {
    /// At whole multiples of the window since the epoch, plus an offset: every node agrees.
    Aligned {
        /// Shifts all windows by less than one window.
        offset: Nanos,
    },
    /// At the first admitted call: no stampede at the top of the hour.
    FirstCall,
}

/// The window last charged, and what was taken in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    start: u64,
    used: u64,
}

impl FixedWindow {
    /// `limit` units per `window`.
    pub fn new(limit: u64, window: Nanos, start: WindowStart) -> Result<Self, LimitError> {
        let window = time_within("period", window, 1, MAX_PRODUCT)?;
        let limit = within("rate", limit, 1, MAX_PRODUCT)?;
        if let WindowStart::Aligned { offset } = start {
            time_within("offset", offset, 0, window - 1)?;
        }
        Ok(Self { limit, window, start })
    }

    /// The length of a window.
    pub fn window(&self) -> Nanos {
        Nanos::new(self.window)
    }

    /// When windows begin.
    pub fn start(&self) -> WindowStart {
        self.start
    }

    /// Whether `other`, which is no smaller, lets pass whatever this does: its windows are those of this, or lie within them,
    /// or are made up of them.
    #[cfg(feature = "policy")]
    pub(crate) fn covers(&self, other: &Self) -> bool {
        const TOGETHER: WindowStart = WindowStart::Aligned { offset: Nanos::ZERO };
        let is_within = self.window.is_multiple_of(other.window);
        let is_made_up = other.window.is_multiple_of(self.window)
            && other.window.checked_div(self.window).and_then(|windows| windows.checked_mul(self.limit))
                <= Some(other.limit);
        self.start == other.start
            && (self.window == other.window || self.start == TOGETHER && (is_within || is_made_up))
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        let (limit, longer) = divide(self.limit, nodes);
        Self { limit, window: self.window.saturating_mul(longer).min(MAX_PRODUCT), start: self.start }
    }

    /// The window that holds `now`, emptied if the remembered one is over.
    #[inline]
    fn current(&self, state: &Window, now: u64) -> Window {
        match self.start {
            WindowStart::FirstCall => {
                if state.used > 0 && now < state.start.saturating_add(self.window) {
                    *state
                } else {
                    Window { start: now, used: 0 }
                }
            }
            WindowStart::Aligned { offset } => {
                let start = self.aligned(offset, now);
                if state.start == start { *state } else { Window { start, used: 0 } }
            }
        }
    }

    /// The number of the window that holds `now`. An offset cuts the first one short: that is number 0.
    #[inline]
    fn number(&self, offset: Nanos, now: u64) -> u64 {
        match now.checked_sub(offset.as_u64()) {
            Some(since) => since.checked_div(self.window).unwrap_or(0).saturating_add(1),
            None => 0,
        }
    }

    /// When a window begins.
    #[inline]
    fn begin(&self, offset: Nanos, number: u64) -> u64 {
        match number.checked_sub(1) {
            Some(whole) => whole.saturating_mul(self.window).saturating_add(offset.as_u64()),
            None => 0,
        }
    }

    #[inline]
    fn aligned(&self, offset: Nanos, now: u64) -> u64 {
        self.begin(offset, self.number(offset, now))
    }

    /// Time until the window that holds `now` ends.
    #[inline]
    fn ends_in(&self, window: &Window, now: u64) -> u64 {
        match self.start {
            // A first window cut short by the offset begins at 0 and ends at the offset.
            WindowStart::Aligned { offset } if now < offset.as_u64() => offset.as_u64() - now,
            _ => window.start.saturating_add(self.window).saturating_sub(now),
        }
    }

    #[inline]
    fn outcome(&self, window: &Window, now: u64, cost: u64, fits: bool) -> Outcome {
        let end = self.ends_in(window, now);
        let remaining = self.limit.saturating_sub(window.used);
        let reset = if window.used > 0 { end } else { 0 };
        if fits {
            Outcome::allow(remaining, reset)
        } else {
            Outcome::refuse(remaining, (cost <= self.limit).then_some(end), reset)
        }
    }

    #[inline]
    fn fits(&self, window: &Window, cost: u64) -> bool {
        cost <= self.limit && window.used + cost <= self.limit
    }

    fn count_bits(&self) -> u32 {
        bits_for(self.limit)
    }
}

impl Algorithm for FixedWindow {
    type State = Window;

    fn capacity(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn decide(&self, state: &mut Window, now: Timestamp, cost: u64) -> Outcome {
        let now = now.as_nanos().max(state.start);
        let mut window = self.current(state, now);
        let fits = self.fits(&window, cost);
        if fits && cost > 0 {
            window.used += cost;
            *state = window;
        }
        self.outcome(&window, now, cost, fits)
    }

    fn estimate(&self, state: &Window, now: Timestamp, cost: u64) -> Outcome {
        let now = now.as_nanos().max(state.start);
        let window = self.current(state, now);
        self.outcome(&window, now, cost, self.fits(&window, cost))
    }

    fn refund(&self, state: &mut Window, now: Timestamp, cost: u64, taken: Timestamp) -> Outcome {
        let now = now.as_nanos().max(state.start);
        let mut window = self.current(state, now);
        // A charge belongs to its window: one that is over takes nothing back.
        if window.used > 0 && taken.as_nanos() >= window.start {
            window.used = window.used.saturating_sub(cost);
            *state = window;
        }
        self.outcome(&window, now, 0, true)
    }

    fn level(&self, state: &Window, now: Timestamp) -> u64 {
        share(self.current(state, now.as_nanos().max(state.start)).used, self.limit)
    }

    fn join(&self, a: &Window, b: &Window, now: Timestamp) -> Window {
        let now = now.as_nanos().max(a.start).max(b.start);
        let (a, b) = (self.current(a, now), self.current(b, now));
        match (a.used, b.used) {
            (0, 0) => Window::default(),
            (0, _) => b,
            (_, 0) => a,
            _ => Window { start: a.start.max(b.start), used: a.used.max(b.used) },
        }
    }

    fn convert(&self, old: &Self, state: &Window, changed: Timestamp) -> Window {
        let changed = changed.as_nanos().max(state.start);
        let live = old.current(state, changed);
        let mut window = self.current(&live, changed);
        if window.used == 0 && live.used > 0 {
            // The old window is no window of the new kind: its count moves into the one that is open now.
            window = Window { start: self.current(&Window::default(), changed).start, used: live.used };
        }
        window.used = window.used.min(self.limit);
        window
    }
}

impl Summarized for FixedWindow {
    fn horizon(&self) -> Nanos {
        self.window()
    }

    fn summarize(&self, state: &Window, now: Timestamp) -> Summary {
        let now = now.as_nanos().max(state.start);
        let window = self.current(state, now);
        let until = Timestamp::from_nanos(now.saturating_add(self.ends_in(&window, now)));
        Summary { until, used: Some(window.used) }
    }

    fn restore(&self, Summary { until, used }: Summary, now: Timestamp) -> Window {
        let (now, until) = (now.as_nanos(), until.as_nanos());
        let used = used.unwrap_or(self.limit).min(self.limit);
        let (start, end) = match self.start {
            WindowStart::FirstCall => (until.saturating_sub(self.window).min(now), until),
            // A window ends where the next one begins: what was rounded up is undone.
            WindowStart::Aligned { offset } => (self.aligned(offset, now), self.aligned(offset, until)),
        };
        if used > 0 && end > now { Window { start, used } } else { Window::default() }
    }
}

/// The word is the number of the window since the base, and the count in the low bits.
impl Packed for FixedWindow {
    fn span(&self) -> u64 {
        let numbers = (u64::MAX >> self.count_bits()).saturating_sub(1);
        match self.start {
            WindowStart::Aligned { .. } => numbers.saturating_mul(self.window),
            WindowStart::FirstCall => numbers.saturating_sub(self.window),
        }
    }

    fn base(&self, now: Timestamp) -> Timestamp {
        match self.start {
            // Windows that are open at `now` began later than this.
            WindowStart::FirstCall => Timestamp::from_nanos(now.as_nanos().saturating_sub(self.window)),
            WindowStart::Aligned { offset } => Timestamp::from_nanos(self.aligned(offset, now.as_nanos())),
        }
    }

    #[inline]
    fn pack(&self, base: Timestamp, state: Window) -> u64 {
        let base = base.as_nanos();
        if state.start < base {
            return 0;
        }
        let number = match self.start {
            WindowStart::FirstCall => state.start.saturating_sub(base),
            WindowStart::Aligned { offset } => {
                self.number(offset, state.start).saturating_sub(self.number(offset, base))
            }
        };
        number << self.count_bits() | state.used.min(self.limit)
    }

    #[inline]
    fn unpack(&self, base: Timestamp, word: u64) -> Window {
        let base = base.as_nanos();
        let number = word >> self.count_bits();
        let start = match self.start {
            WindowStart::FirstCall => base.saturating_add(number),
            WindowStart::Aligned { offset } => {
                self.begin(offset, self.number(offset, base).saturating_add(number))
            }
        };
        Window { start, used: word & ((1 << self.count_bits()) - 1) }
    }
}
