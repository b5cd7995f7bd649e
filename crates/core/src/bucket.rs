//! Token bucket, and the two leaky buckets that are the same thing seen from other sides.
//!
//! A bucket holds `capacity` tokens and regains `count` tokens every `period`. It is kept as a *debt*: what is
//! missing to a full bucket. With the fraction `count / period` reduced to `R / P`, one token is worth `P`
//! units and every nanosecond pays `R` of them back, so any ratio is exact in integers: 7 per second does not
//! drift, and no remainder is lost however often the bucket is asked.
//!
//! A leaky bucket used as a meter is this bucket. Used as a queue it decides alike and also tells an admitted
//! call how long to wait, so that calls leave one by one; the caller's timer is the queue.

use std::num::NonZero;

use crate::algorithm::{Algorithm, Packed, divide, share};
use crate::error::{LimitError, MAX_PRODUCT, time_within, within};
use crate::outcome::Outcome;
use crate::summary::{Summarized, Summary};
use crate::time::{Nanos, Timestamp};

/// A token bucket, or a leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    capacity: u64,
    /// Units that one token is worth: P.
    token: NonZero<u64>,
    /// Units paid back per nanosecond: R.
    leak: NonZero<u64>,
    /// The debt of an empty bucket: `capacity * token`.
    full: u64,
    /// Debt that delays nobody. A bucket that polices never delays, whatever the debt.
    undelayed: u64,
}

/// What a bucket remembers: a debt, and when it was that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    units: u64,
    at: Timestamp,
}

impl Bucket {
    /// A bucket of `capacity` tokens that regains `count` tokens per `period`.
    pub fn new(capacity: u64, count: u64, period: Nanos) -> Result<Self, LimitError> {
        let (leak, token) = Self::units(count, period)?;
        let capacity = within("burst", capacity, 1, MAX_PRODUCT / token)?;
        Ok(Self { capacity, token, leak, full: capacity * token.get(), undelayed: u64::MAX })
    }

    /// Units paid back per nanosecond, and units of a token.
    fn units(count: u64, period: Nanos) -> Result<(NonZero<u64>, NonZero<u64>), LimitError> {
        let count = within("rate", count, 1, MAX_PRODUCT)?;
        let period = time_within("period", period, 1, MAX_PRODUCT)?;
        let divisor = gcd(count, period);
        let part = |of: u64| NonZero::new(of / divisor).unwrap_or(NonZero::<u64>::MIN);
        Ok((part(count), part(period)))
    }

    /// A queue that lets `count` calls per `period` leave one by one, with room for `queue` that wait, of
    /// which the first `undelayed` do not have to.
    pub fn queue(queue: u64, count: u64, period: Nanos, undelayed: u64) -> Result<Self, LimitError> {
        let (_, token) = Self::units(count, period)?;
        let queue = within("queue", queue, 0, (MAX_PRODUCT / token).saturating_sub(1))?;
        let mut bucket = Self::new(queue + 1, count, period)?;
        bucket.undelayed = within("undelayed", undelayed, 0, queue)? * bucket.token.get();
        Ok(bucket)
    }

    /// Units that one token is worth.
    pub fn token(&self) -> u64 {
        self.token.get()
    }

    /// Units paid back per nanosecond.
    pub fn leak(&self) -> u64 {
        self.leak.get()
    }

    /// Tokens of debt that delay nobody; none for a bucket that never delays.
    pub fn undelayed(&self) -> Option<u64> {
        (self.undelayed != u64::MAX).then(|| self.undelayed / self.token)
    }

    /// Whether this regains tokens no faster, and neither delays anybody.
    #[cfg(feature = "policy")]
    pub(crate) fn is_no_faster_than(&self, other: &Self) -> bool {
        let cross = |a: NonZero<u64>, b: NonZero<u64>| u128::from(a.get()) * u128::from(b.get());
        self.undelayed().is_none()
            && other.undelayed().is_none()
            && cross(self.leak, other.token) <= cross(other.leak, self.token)
    }

    /// How long an empty bucket takes to fill.
    pub fn time_to_fill(&self) -> Nanos {
        Nanos::new(self.full.div_ceil(self.leak.get()))
    }

    /// How much sooner an empty bucket has one token than all of them.
    pub(crate) fn first_token_lead(&self) -> Nanos {
        // Rounded down, so that a wait made from it is never too short.
        Nanos::new((self.full - self.token.get()) / self.leak.get())
    }

    /// A node's share: see [`Limit::divided_among`](crate::Limit::divided_among).
    pub(crate) fn divided_among(&self, nodes: u64) -> Self {
        let (capacity, _) = divide(self.capacity, nodes);
        let divisor = gcd(self.leak.get(), nodes);
        // Beyond this a token takes a century, whatever it is divided by.
        let token = self.token.get().saturating_mul(nodes / divisor).min(MAX_PRODUCT / capacity);
        let token = NonZero::new(token).unwrap_or(self.token);
        let leak = NonZero::new(self.leak.get() / divisor).unwrap_or(self.leak);
        let undelayed = match self.undelayed() {
            Some(undelayed) => (undelayed / nodes).min(capacity - 1) * token.get(),
            None => u64::MAX,
        };
        Self { capacity, token, leak, full: capacity * token.get(), undelayed }
    }

    /// The debt at `now`, never more than an empty bucket owes.
    #[inline]
    fn owed(&self, state: &Debt, now: Timestamp) -> u64 {
        let paid = now.since(state.at).as_u64().saturating_mul(self.leak.get());
        state.units.saturating_sub(paid).min(self.full)
    }

    /// How long it takes to pay `units` back.
    #[inline]
    fn time_for(&self, units: u64) -> u64 {
        if self.leak.get() == 1 { units } else { units.div_ceil(self.leak.get()) }
    }

    #[inline]
    fn remaining(&self, owed: u64) -> u64 {
        (self.full - owed) / self.token
    }

    /// Whether its words count whole nanoseconds from the origin, so that [`weigh_word`](Self::weigh_word) and
    /// [`word_after`](Self::word_after) hold.
    #[inline]
    pub fn is_whole(&self, base: Timestamp) -> bool {
        self.leak.get() == 1 && base == Timestamp::ZERO
    }

    /// Puts `cost` on top of what is owed at `now`, straight from the word of a bucket that counts whole
    /// nanoseconds.
    #[inline]
    pub fn weigh_word(&self, word: u64, now: Timestamp, cost: u64) -> Weighed {
        self.weigh_owed(word.saturating_sub(now.as_nanos()).min(self.full), cost)
    }

    /// The word after `cost` was taken at `now`, if it fits, of a bucket that counts whole nanoseconds: as
    /// [`decide`](Algorithm::decide) has it, in the fewest steps from word to word, because callers of the same key
    /// wait for each other's.
    #[inline(always)]
    pub fn word_after(&self, word: u64, now: Timestamp, cost: u64) -> Option<u64> {
        let price = if cost <= self.capacity { cost * self.token.get() } else { return None };
        let after = word.max(now.as_nanos()).checked_add(price)?;
        (after <= now.as_nanos().saturating_add(self.full)).then_some(after)
    }

    /// Puts `cost` on top of what is owed at `now`.
    #[inline]
    fn weigh(&self, state: &Debt, now: Timestamp, cost: u64) -> Weighed {
        self.weigh_owed(self.owed(state, now), cost)
    }

    #[inline]
    fn weigh_owed(&self, owed: u64, cost: u64) -> Weighed {
        let debt = if cost <= self.capacity { owed + cost * self.token.get() } else { u64::MAX };
        Weighed { owed, debt }
    }

    /// Whether what was weighed fits.
    #[inline]
    fn fits(&self, weighed: Weighed) -> bool {
        weighed.debt <= self.full
    }

    /// The answer to what was weighed and fits, with the debt left at `kept`.
    #[inline]
    fn allowed(&self, weighed: Weighed, kept: u64) -> Outcome {
        let mut outcome = Outcome::allow(self.remaining(kept), self.time_for(kept));
        outcome.delay = Nanos::new(self.time_for(weighed.owed.saturating_sub(self.undelayed)));
        outcome
    }

    /// The answer to what was weighed and does not fit.
    #[inline]
    pub fn refuse(&self, Weighed { owed, debt }: Weighed) -> Outcome {
        let wait = (debt != u64::MAX).then(|| self.time_for(debt - self.full));
        Outcome::refuse(self.remaining(owed), wait, self.time_for(owed))
    }

    /// The answer to what was weighed and fits, and is taken.
    #[inline]
    pub fn allow(&self, weighed: Weighed) -> Outcome {
        self.allowed(weighed, weighed.debt)
    }
}

/// A cost on top of a debt: all that a bucket's answer depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    owed: u64,
    /// With the cost, or the largest number if the cost exceeds the capacity.
    debt: u64,
}

impl Algorithm for Bucket {
    type State = Debt;

    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn decide(&self, state: &mut Debt, now: Timestamp, cost: u64) -> Outcome {
        let weighed = self.weigh(state, now, cost);
        if !self.fits(weighed) {
            return self.refuse(weighed);
        }
        if cost > 0 {
            *state = Debt { units: weighed.debt, at: now.max(state.at) };
        }
        self.allow(weighed)
    }

    #[inline]
    fn estimate(&self, state: &Debt, now: Timestamp, cost: u64) -> Outcome {
        let weighed = self.weigh(state, now, cost);
        if self.fits(weighed) { self.allowed(weighed, weighed.owed) } else { self.refuse(weighed) }
    }

    fn refund(&self, state: &mut Debt, now: Timestamp, cost: u64, _taken: Timestamp) -> Outcome {
        let owed = self.owed(state, now);
        let kept = owed.saturating_sub(cost.saturating_mul(self.token.get()));
        if kept != owed {
            *state = Debt { units: kept, at: now.max(state.at) };
        }
        Outcome::allow(self.remaining(kept), self.time_for(kept))
    }

    fn undo(&self, state: &mut Debt, now: Timestamp, cost: u64, taken: Timestamp) {
        // What was refilled since the charge was refilled for everybody: only the rest is still this call's.
        let refilled = now.since(taken).as_u64().saturating_mul(self.leak.get());
        let units = cost.saturating_mul(self.token.get()).saturating_sub(refilled);
        let owed = self.owed(state, now);
        if units > 0 && owed > 0 {
            *state = Debt { units: owed.saturating_sub(units), at: now.max(state.at) };
        }
    }

    fn level(&self, state: &Debt, now: Timestamp) -> u64 {
        share(self.owed(state, now), self.full)
    }

    fn join(&self, a: &Debt, b: &Debt, now: Timestamp) -> Debt {
        let now = now.max(a.at).max(b.at);
        Debt { units: self.owed(a, now).max(self.owed(b, now)), at: now }
    }

    fn convert(&self, old: &Self, state: &Debt, changed: Timestamp) -> Debt {
        let changed = changed.max(state.at);
        let owed = old.owed(state, changed);
        // The same number of tokens, in the new units, rounded towards the stricter side.
        let units = (owed as u128 * self.token.get() as u128).div_ceil(old.token.get() as u128);
        Debt { units: u64::try_from(units).unwrap_or(u64::MAX).min(self.full), at: changed }
    }
}

impl Summarized for Bucket {
    fn horizon(&self) -> Nanos {
        self.time_to_fill()
    }

    fn summarize(&self, state: &Debt, now: Timestamp) -> Summary {
        let now = now.max(state.at);
        let until = now.as_nanos().saturating_add(self.time_for(self.owed(state, now)));
        Summary { until: Timestamp::from_nanos(until), used: None }
    }

    fn restore(&self, summary: Summary, now: Timestamp) -> Debt {
        let units = summary.until.since(now).as_u64().saturating_mul(self.leak.get());
        Debt { units: units.min(self.full), at: now }
    }
}

/// The word is the instant at which the debt is paid, in units of 1/R ns: the theoretical arrival time.
impl Packed for Bucket {
    fn span(&self) -> u64 {
        (u64::MAX - self.full) / self.leak
    }

    fn base(&self, now: Timestamp) -> Timestamp {
        // Whole nanoseconds need no base for the next two centuries.
        if self.leak.get() == 1 && now.as_nanos() >> 63 == 0 { Timestamp::ZERO } else { now }
    }

    #[inline]
    fn pack(&self, base: Timestamp, state: Debt) -> u64 {
        let after = state.at.since(base).as_u64().saturating_mul(self.leak.get());
        let before = base.since(state.at).as_u64().saturating_mul(self.leak.get());
        after.saturating_add(state.units).saturating_sub(before)
    }

    #[inline]
    fn unpack(&self, base: Timestamp, word: u64) -> Debt {
        Debt { units: word, at: base }
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
