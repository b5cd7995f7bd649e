//! Limits as the script knows them: microseconds, in numbers that a double holds exactly.

use std::time::Duration;

use tollgate_core::algorithm::Algorithm;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::store::StoreError;
use tollgate_core::{Limit, LimitError, Nanos};

/// A limit, ready to be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Parameters {
    pub(crate) kind: u8,
    pub(crate) numbers: [f64; 3],
    /// What the kind needs besides, and what no state depends on.
    pub(crate) extra: f64,
}

/// Where the states of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// In the subject's one string, with its other rates.
    Rates,
    /// In a string of its own.
    Log,
    /// In a sorted set.
    Leases,
    /// In two sorted sets.
    Fleet,
}

impl Room {
    /// Whether what is taken has an id, and can be given back by it.
    pub(crate) fn is_leased(self) -> bool {
        matches!(self, Self::Leases | Self::Fleet)
    }

    fn of(kind: u8) -> Self {
        match kind {
            0..=4 => Self::Rates,
            5 | 6 => Self::Log,
            7 => Self::Leases,
            _ => Self::Fleet,
        }
    }
}

/// Whether what a kind takes has an id.
pub(crate) fn is_leased(kind: u8) -> bool {
    Room::of(kind).is_leased()
}

/// The script's name for critical requests.
pub(crate) const CRITICAL: f64 = 2.0;

/// Sums and products stay below this, so that every number in the script is whole.
const MAX: u64 = 1 << 52;

/// A debt that no bucket has: it delays nobody.
const NO_DELAY: f64 = 9_007_199_254_740_992.0;

/// Entries that a log may have: its key is read and written as a whole.
const MAX_ENTRIES: u64 = 1 << 16;

/// A number below 2^53, as it is.
#[allow(clippy::cast_precision_loss, reason = "checked against 2^52 where it comes in")]
pub(crate) fn double(number: u64) -> f64 {
    number.min(1 << 53) as f64
}

impl Parameters {
    pub(crate) fn of(limit: &Limit) -> Result<Self, StoreError> {
        let parameters =
            |kind, numbers: [u64; 3], extra: f64| Self { kind, numbers: numbers.map(double), extra };
        Ok(match limit {
            Limit::Bucket(bucket) => {
                // A thousand times as much is paid back per microsecond as per nanosecond.
                let leak = u128::from(bucket.leak()) * 1000;
                // The remainder is smaller than a token, which has 64 bits.
                let divisor = gcd(bucket.token(), (leak % u128::from(bucket.token())) as u64);
                let token = bucket.token() / divisor;
                let leak = u64::try_from(leak / u128::from(divisor)).unwrap_or(u64::MAX);
                within("burst", bucket.capacity(), 1, MAX / token)?;
                small("rate", leak)?;
                let extra = bucket.undelayed().map_or(NO_DELAY, |undelayed| double(undelayed * token));
                parameters(0, [bucket.capacity(), token, leak], extra)
            }
            Limit::FixedWindow(fixed) => {
                let (window, limit) = (micros("period", fixed.window())?, small("rate", fixed.capacity())?);
                match fixed.start() {
                    WindowStart::Aligned { offset } => {
                        parameters(1, [limit, window, micros_or_none("offset", offset)?], 0.0)
                    }
                    WindowStart::FirstCall => parameters(2, [limit, window, 0], 0.0),
                }
            }
            Limit::SlidingWindow(sliding) => {
                let window = micros("period", sliding.window())?;
                within("rate", sliding.capacity(), 1, MAX / window)?;
                parameters(3, [sliding.capacity(), window, 0], 0.0)
            }
            Limit::IntervalBucket(bucket) => {
                let period = micros("period", bucket.period())?;
                let capacity = within("burst", bucket.capacity(), 1, MAX / period)?;
                parameters(4, [capacity, small("rate", bucket.refill())?, period], 0.0)
            }
            Limit::Log(log) => {
                let kind = if log.counts_rejected() { 6 } else { 5 };
                // An exact log counts whole microseconds here.
                let grain =
                    if log.grain() == Nanos::new(1) { 1 } else { micros("period / buckets", log.grain())? };
                let lifetime = micros("period", log.lifetime())?;
                let limit = small("rate", log.capacity())?;
                let entries = limit.min(lifetime / grain + 1);
                if entries > MAX_ENTRIES {
                    let allowed = format!("up to {MAX_ENTRIES} here, or counted in sub-windows");
                    let error = LimitError { field: "rate", value: limit.to_string(), allowed };
                    return Err(StoreError::Unsupported(error));
                }
                let spacing = micros_or_none("min_difference", log.spacing())?;
                parameters(kind, [limit, lifetime, grain], double(spacing))
            }
            Limit::Leases(leases) => {
                let capacity = small("concurrency", leases.capacity())?;
                parameters(7, [capacity, whole_micros(leases.ttl()), 0], 0.0)
            }
            Limit::Fleet(fleet) if !fleet.is_counted() => {
                let total = f64::from(u8::from(fleet.mode() == FleetMode::Total));
                let numbers = [fleet.capacity(), whole_micros(fleet.ttl()), fleet.allocation()];
                parameters(8, numbers, total)
            }
            _ => {
                let allowed =
                    "a limit with a lease: what a process counts for itself cannot be shared".to_owned();
                let error = LimitError { field: "concurrency", value: format!("{limit:?}"), allowed };
                return Err(StoreError::Unsupported(error));
            }
        })
    }

    /// Leases that last so long.
    pub(crate) fn leases(capacity: u64, ttl: Duration) -> Self {
        let ttl = u64::try_from(ttl.as_micros()).unwrap_or(MAX).clamp(1, MAX);
        Self { kind: 7, numbers: [double(capacity), double(ttl), 0.0], extra: 0.0 }
    }

    /// A window that the first call opens, and in which everything passes.
    pub(crate) fn window(time: Duration) -> Self {
        let time = u64::try_from(time.as_micros()).unwrap_or(MAX).clamp(1, MAX);
        Self { kind: 2, numbers: [double(MAX), double(time), 0.0], extra: 0.0 }
    }

    pub(crate) fn room(&self) -> Room {
        Room::of(self.kind)
    }
}

fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<u64, StoreError> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    let allowed = match max {
        max if max < min => {
            "times a shorter period or a rounder rate: in a store that counts in doubles not even 1 fits"
                .to_owned()
        }
        max => format!("from {min} to {max} in a store that counts in doubles"),
    };
    Err(StoreError::Unsupported(LimitError { field, value: value.to_string(), allowed }))
}

fn small(field: &'static str, value: u64) -> Result<u64, StoreError> {
    within(field, value, 1, MAX)
}

/// A time in whole microseconds, above zero.
fn micros(field: &'static str, time: Nanos) -> Result<u64, StoreError> {
    let micros = micros_or_none(field, time)?;
    within(field, micros, 1, MAX)
}

fn micros_or_none(field: &'static str, time: Nanos) -> Result<u64, StoreError> {
    if time.as_u64().is_multiple_of(1000) {
        return within(field, time.as_u64() / 1000, 0, MAX);
    }
    let allowed = "whole microseconds: the store counts no finer".to_owned();
    Err(StoreError::Unsupported(LimitError { field, value: time.to_string(), allowed }))
}

/// A lease may last a little longer, never shorter.
fn whole_micros(time: Nanos) -> u64 {
    time.as_u64().div_ceil(1000).min(MAX)
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
