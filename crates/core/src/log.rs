//! Sliding window log, and its coarse form by sub-windows.
//!
//! A log remembers every admitted call of the last window, so no stretch of one window ever holds more than
//! the limit. Sub-windows are the same log with its instants rounded down to a grain: calls of one grain share
//! an entry, which bounds the memory by the number of grains.

use std::collections::VecDeque;

use crate::algorithm::{Algorithm, divide, share};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::outcome::Outcome;
use crate::summary::{Summarized, Summary};
use crate::time::{Nanos, Timestamp};

/// At most `limit` units in any window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Log {
    limit: u64,
    /// Instants are rounded down to multiples of this.
    grain: u64,
    /// How long an entry counts.
    lifetime: u64,
    /// The smallest distance between two calls.
    spacing: u64,
    count_rejected: bool,
}

/// How many sub-windows count.
///
/// ```
/// use tollgate_core::log::SubWindows;
///
/// assert_eq!(SubWindows::default(), SubWindows::NPlusOne);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubWindows {
    /// One more than fit in the window: never more than the limit in any window.
    #[default]
    NPlusOne,
    /// As many as fit in the window: up to twice the limit in a window, like a fixed one.
    N,
}

/// Entries of the window, oldest first, and the sum of their weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    list: VecDeque<Entry>,
    sum: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    weight: u64,
}

impl Log {
    /// At most `limit` units in any `window`, exactly.
    pub fn new(limit: u64, window: Nanos) -> Result<Self, LimitError> {
        let window = time_within("period", window, 1, MAX_PRODUCT)?;
        let limit = within("rate", limit, 1, MAX_PRODUCT)?;
        Ok(Self { limit, grain: 1, lifetime: window, spacing: 0, count_rejected: false })
    }

    /// At most `limit` units per `window`, counted in `count` sub-windows.
    pub fn sub_windows(limit: u64, window: Nanos, count: u64, kind: SubWindows) -> Result<Self, LimitError> {
        let mut log = Self::new(limit, window)?;
        let count = within("buckets", count, 1, window.as_u64())?;
        if !window.as_u64().is_multiple_of(count) {
            return Err(LimitError {
                field: "buckets",
                value: count.to_string(),
                allowed: format!("a divisor of the period of {window}"),
            });
        }
        log.grain = window.as_u64() / count;
        if kind == SubWindows::NPlusOne {
            log.lifetime += log.grain;
        }
        Ok(log)
    }

    /// Also refuses calls that come within `spacing` of the last one.
    pub fn min_difference(mut self, spacing: Nanos) -> Result<Self, LimitError> {
        self.spacing = time_within("min_difference", spacing, 0, self.lifetime - 1)?;
        Ok(self)
    }

    /// Counts refused calls too: who keeps hammering stays out until it pauses.
    pub fn count_rejected(mut self, yes: bool) -> Self {
        self.count_rejected = yes;
        self
    }

    /// What instants are rounded down to multiples of.
    pub fn grain(&self) -> Nanos {
        Nanos::new(self.grain)
    }

    /// How long an entry counts.
    pub fn lifetime(&self) -> Nanos {
        Nanos::new(self.lifetime)
    }

    /// The same of another limit, for calls that may be as close as they like.
    pub(crate) fn unspaced(self, limit: u64) -> Self {
        Self { limit, spacing: 0, ..self }
    }

    /// The smallest distance between two calls.
    pub fn spacing(&self) -> Nanos {
        Nanos::new(self.spacing)
    }

    /// Whether refused calls count too.
    pub fn counts_rejected(&self) -> bool {
        self.count_rejected
    }

    /// Whether `other`, which is no smaller, lets pass whatever this does.
    #[cfg(feature = "policy")]
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let is_alike = (self.grain, self.spacing, self.count_rejected)
            == (other.grain, other.spacing, other.count_rejected)
            && !self.count_rejected;
        // So many windows of this hold all that counts in one of the other.
        let windows = other.lifetime.div_ceil(self.lifetime.max(1));
        let is_made_up = self.grain == 1
            && self.spacing == 0
            && windows.checked_mul(self.limit).is_some_and(|most| most <= other.limit);
        is_alike && (self.lifetime == other.lifetime || is_made_up)
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        let (limit, longer) = divide(self.limit, nodes);
        let lifetime = self.lifetime.saturating_mul(longer).min(MAX_PRODUCT);
        Self { limit, lifetime, spacing: self.spacing.saturating_mul(nodes).min(lifetime - 1), ..*self }
    }

    /// `now`, but never before the newest entry.
    fn clamp(state: &Entries, now: Timestamp) -> u64 {
        now.as_nanos().max(state.list.back().map_or(0, |entry| entry.at))
    }

    fn is_live(&self, entry: &Entry, now: u64) -> bool {
        now < entry.at.saturating_add(self.lifetime)
    }

    /// The weight of the entries that are over at `now`, and how many they are.
    fn expired(&self, state: &Entries, now: u64) -> (u64, usize) {
        let expired = state.list.iter().take_while(|entry| !self.is_live(entry, now));
        expired.fold((0, 0), |(sum, count), entry| (sum + entry.weight, count + 1))
    }

    fn prune(&self, state: &mut Entries, now: u64) {
        while let Some(oldest) = state.list.front().copied() {
            if self.is_live(&oldest, now) {
                break;
            }
            state.list.pop_front();
            state.sum = state.sum.saturating_sub(oldest.weight);
        }
    }

    fn record(&self, state: &mut Entries, now: u64, weight: u64) {
        let at = now - now.checked_rem(self.grain).unwrap_or(0);
        match state.list.back_mut() {
            Some(newest) if newest.at == at => newest.weight = newest.weight.saturating_add(weight),
            _ => state.list.push_back(Entry { at, weight }),
        }
        state.sum = state.sum.saturating_add(weight);
        // Older entries than those that already exceed the limit can no longer change any answer.
        while let Some(oldest) = state.list.front().copied() {
            if state.sum - oldest.weight <= self.limit {
                break;
            }
            state.list.pop_front();
            state.sum -= oldest.weight;
        }
    }

    fn too_close(&self, state: &Entries, now: u64, cost: u64) -> bool {
        self.spacing > 0
            && cost > 0
            && state
                .list
                .back()
                .is_some_and(|newest| self.is_live(newest, now) && now - newest.at < self.spacing)
    }

    fn fits(&self, state: &Entries, used: u64, now: u64, cost: u64) -> bool {
        cost <= self.limit && used.saturating_add(cost) <= self.limit && !self.too_close(state, now, cost)
    }

    /// From the live entries after the call: the first prefix whose end makes room.
    fn retry_after(&self, state: &Entries, now: u64, cost: u64) -> Option<u64> {
        if cost > self.limit {
            return None;
        }
        let (expired, skip) = self.expired(state, now);
        let mut excess = (state.sum - expired).saturating_add(cost).saturating_sub(self.limit);
        let mut wait = 0;
        for entry in state.list.iter().skip(skip) {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(entry.weight);
            wait = entry.at.saturating_add(self.lifetime).saturating_sub(now);
        }
        if cost > 0
            && self.spacing > 0
            && let Some(newest) = state.list.back()
        {
            wait = wait.max(newest.at.saturating_add(self.spacing).saturating_sub(now));
        }
        Some(wait)
    }

    fn outcome(&self, state: &Entries, now: u64, cost: u64, fits: bool) -> Outcome {
        let used = state.sum - self.expired(state, now).0;
        let remaining = self.limit.saturating_sub(used);
        let newest = state.list.back().filter(|newest| self.is_live(newest, now));
        let reset = newest.map_or(0, |newest| newest.at.saturating_add(self.lifetime).saturating_sub(now));
        if fits {
            Outcome::allow(remaining, reset)
        } else {
            Outcome::refuse(remaining, self.retry_after(state, now, cost), reset)
        }
    }
}

impl Algorithm for Log {
    type State = Entries;

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn decide(&self, state: &mut Entries, now: Timestamp, cost: u64) -> Outcome {
        let now = Self::clamp(state, now);
        let used = state.sum - self.expired(state, now).0;
        let fits = self.fits(state, used, now, cost);
        let counted = fits || (self.count_rejected && cost <= self.limit);
        if counted && cost > 0 {
            self.prune(state, now);
            self.record(state, now, cost);
        }
        self.outcome(state, now, cost, fits)
    }

    fn estimate(&self, state: &Entries, now: Timestamp, cost: u64) -> Outcome {
        let now = Self::clamp(state, now);
        let used = state.sum - self.expired(state, now).0;
        self.outcome(state, now, cost, self.fits(state, used, now, cost))
    }

    fn refund(&self, state: &mut Entries, now: Timestamp, cost: u64, taken: Timestamp) -> Outcome {
        let now = Self::clamp(state, now);
        let mut left = cost;
        // The charge's own entry first, then what came before it: never a later call's.
        while let Some(index) = state.list.iter().rposition(|entry| entry.at <= taken.as_nanos())
            && left > 0
            && let Some(entry) = state.list.get_mut(index)
            && self.is_live(entry, now)
        {
            let back = entry.weight.min(left);
            entry.weight -= back;
            state.sum -= back;
            left -= back;
            if entry.weight == 0 {
                state.list.remove(index);
            }
        }
        // What gives nothing back changes nothing.
        if left < cost {
            self.prune(state, now);
        }
        self.outcome(state, now, 0, true)
    }

    fn undo(&self, state: &mut Entries, now: Timestamp, cost: u64, taken: Timestamp) {
        let now = Self::clamp(state, now);
        let at = taken.as_nanos() - taken.as_nanos().checked_rem(self.grain).unwrap_or(0);
        let Some(index) = state.list.iter().rposition(|entry| entry.at == at) else {
            return;
        };
        let Some(entry) = state.list.get_mut(index).filter(|entry| cost > 0 && self.is_live(entry, now))
        else {
            return;
        };
        let back = entry.weight.min(cost);
        entry.weight -= back;
        state.sum -= back;
        if entry.weight == 0 {
            state.list.remove(index);
        }
        self.prune(state, now);
    }

    fn level(&self, state: &Entries, now: Timestamp) -> u64 {
        let now = Self::clamp(state, now);
        share(state.sum - self.expired(state, now).0, self.limit)
    }

    /// For every instant, as much as the stricter of both has recorded since then.
    fn join(&self, a: &Entries, b: &Entries, now: Timestamp) -> Entries {
        let now = now.as_nanos();
        let mut joined = Entries::default();
        let (mut left, mut right) = (a.list.iter().rev().peekable(), b.list.iter().rev().peekable());
        let (mut sum_left, mut sum_right) = (0, 0);
        while let Some(at) = left.peek().map(|entry| entry.at).max(right.peek().map(|entry| entry.at)) {
            while let Some(entry) = left.next_if(|entry| entry.at == at) {
                sum_left += entry.weight;
            }
            while let Some(entry) = right.next_if(|entry| entry.at == at) {
                sum_right += entry.weight;
            }
            let weight = sum_left.max(sum_right) - joined.sum;
            if now >= at.saturating_add(self.lifetime) {
                break;
            }
            if weight > 0 {
                joined.list.push_front(Entry { at, weight });
                joined.sum += weight;
            }
        }
        joined
    }

    fn convert(&self, old: &Self, state: &Entries, changed: Timestamp) -> Entries {
        let now = Self::clamp(state, changed);
        let mut converted = Entries::default();
        for entry in state.list.iter().filter(|entry| old.is_live(entry, now)) {
            // An entry does not tell when in its grain a call came: it is taken for the latest instant.
            let latest = entry.at.saturating_add(old.grain - 1).min(now);
            self.record(&mut converted, latest, entry.weight);
        }
        converted
    }
}

impl Summarized for Log {
    fn horizon(&self) -> Nanos {
        self.lifetime()
    }

    /// Everything counts for as long as the newest entry does.
    fn summarize(&self, state: &Entries, now: Timestamp) -> Summary {
        let used = state.sum - self.expired(state, Self::clamp(state, now)).0;
        let newest = state.list.back().map_or(0, |newest| newest.at.saturating_add(self.lifetime));
        Summary { until: Timestamp::from_nanos(newest), used: Some(used) }
    }

    fn restore(&self, Summary { until, used }: Summary, now: Timestamp) -> Entries {
        let weight = used.unwrap_or(self.limit);
        if weight == 0 || until <= now {
            return Entries::default();
        }
        // Entries are whole grains apart, and so was the newest one.
        let at = until.as_nanos().saturating_sub(self.lifetime).min(now.as_nanos());
        let at = at - at.checked_rem(self.grain).unwrap_or(0);
        Entries { list: VecDeque::from([Entry { at, weight }]), sum: weight }
    }
}

impl Entries {
    /// Takes neighbours together, so that half the entries are left: each pair counts for as long as its later one, which
    /// is stricter and never looser. Whether there was anything to take together.
    pub fn compact(&mut self) -> bool {
        let before = self.list.len();
        let mut pairs = VecDeque::with_capacity(before.div_ceil(2));
        while let Some(earlier) = self.list.pop_front() {
            pairs.push_back(match self.list.pop_front() {
                Some(later) => Entry { at: later.at, weight: earlier.weight.saturating_add(later.weight) },
                None => earlier,
            });
        }
        self.list = pairs;
        self.list.len() < before
    }

    /// Gives back memory that is no longer needed.
    pub fn shrink(&mut self) {
        self.list.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Entry>()
    }
}
