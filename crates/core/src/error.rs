//! What is wrong with a limit, in the words of the person who wrote it.

use thiserror::Error;

use crate::time::Nanos;

/// A limit that cannot work: it is refused when built, so that deciding never has to check.
///
/// ```
/// use tollgate_core::{Limit, Nanos};
///
/// let error = Limit::token_bucket(0, 100, Nanos::from_secs(1)).unwrap_err();
/// assert_eq!(error.to_string(), "burst is 0: it must be from 1 to 461168601842");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field} is {value}: it must be {allowed}")]
pub struct LimitError {
    /// The name of the wrong field.
    pub field: &'static str,
    /// The value given.
    pub value: String,
    /// What would be right.
    pub allowed: String,
}

/// Products of a quota stay below this, so that no decision can overflow 64 bits.
pub(crate) const MAX_PRODUCT: u64 = 1 << 62;

/// `value` if it lies in `min..=max`.
pub(crate) fn within(field: &'static str, value: u64, min: u64, max: u64) -> Result<u64, LimitError> {
    within_shown(field, value, min, max, |number| number.to_string())
}

/// As [`within`], for a time in nanoseconds: it is written with its unit.
pub(crate) fn time_within(field: &'static str, value: Nanos, min: u64, max: u64) -> Result<u64, LimitError> {
    within_shown(field, value.as_u64(), min, max, |number| Nanos::new(number).to_string())
}

fn within_shown(
    field: &'static str,
    value: u64,
    min: u64,
    max: u64,
    show: impl Fn(u64) -> String,
) -> Result<u64, LimitError> {
    if (min..=max).contains(&value) {
        Ok(value)
    } else {
        Err(LimitError { field, value: show(value), allowed: format!("from {} to {}", show(min), show(max)) })
    }
}
