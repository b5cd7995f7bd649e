//! Decimal numbers as parts per million, without a float on the way.

use tollgate_core::worker::PPM;

/// One percent, in parts per million.
pub(super) const PERCENT: u64 = PPM / 100;

/// A number without a sign for percent is not a utilization above this.
const MOST_PLAIN: u64 = 10 * PPM;

const BLANKS: [char; 2] = [' ', '\t'];

/// `0.83`, `83%` or `83 %`.
pub(super) fn utilization(text: &[u8]) -> Option<u64> {
    let text = str::from_utf8(text).ok()?.trim_matches(BLANKS);
    match text.strip_suffix('%') {
        Some(percent) => decimal(percent.trim_end_matches(BLANKS), PERCENT),
        None => decimal(text, PPM).filter(|ppm| *ppm <= MOST_PLAIN),
    }
}

/// Digits, and perhaps a point and more digits, in a unit of so many parts per million. What is finer than a part
/// is cut off.
pub(super) fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    for digits in [whole, fraction] {
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
    }
    let whole = whole.parse::<u64>().unwrap_or(u64::MAX); // all digits: it can only be too large
    let mut place = unit;
    let mut parts = whole.saturating_mul(unit);
    for digit in fraction.bytes() {
        place /= 10;
        parts = parts.saturating_add(u64::from(digit - b'0') * place);
    }
    Some(parts)
}
