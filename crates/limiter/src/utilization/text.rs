//! Utilization as text, and decimal numbers as parts per million, without a float on the way.

use std::fmt;

use tollgate_core::worker::PPM;

/// One percent, in parts per million.
pub(super) const PERCENT: u64 = PPM / 100;

/// A ratio is not above this: a larger number is likely a percentage without its sign.
const MAX_RATIO: u64 = 2 * PPM;
/// A percentage is not above this.
const MAX_PERCENT: u64 = 1000 * PERCENT;

const BLANKS: [char; 2] = [' ', '\t'];

/// Why a text is not a utilization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UtilizationError {
    text: String,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Problem {
    NotANumber,
    RatioTooLarge,
    PercentTooLarge,
    /// Between 0 % and 1 %: likely a ratio with a wrong sign.
    PercentTooSmall,
}

impl fmt::Display for UtilizationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        match self.problem {
            Problem::NotANumber => {
                write!(f, "{text:?} is not a utilization: write a ratio (0.83) or a percentage (83%)")
            }
            Problem::RatioTooLarge => write!(
                f,
                "{text:?} is ambiguous: without a percent sign it is a ratio, and that is at most 2. Write {text}% for a \
                 percentage"
            ),
            Problem::PercentTooLarge => write!(f, "{text:?} is too large: the most is 1000%"),
            Problem::PercentTooSmall => write!(
                f,
                "{text:?} is ambiguous: it may be a ratio. A percentage is 0 or at least 1: write 85% for 85 percent, or \
                 0.85 as a ratio"
            ),
        }
    }
}

impl std::error::Error for UtilizationError {}

/// Reads a utilization, in parts per million: a ratio from 0 to 2 (`0.83`), or a percentage from 1 to 1000 with its sign
/// (`83%`, `83 %`), or `0%`.
///
/// Values that are likely meant otherwise are rejected: `83` lacks its sign, and `0.83%` has one too many.
///
/// ```
/// use tollgate::utilization::parse;
///
/// assert_eq!(parse(b"0.83"), Ok(830_000));
/// assert_eq!(parse(b"83%"), Ok(830_000));
/// assert!(parse(b"83").unwrap_err().to_string().contains("Write 83% for a percentage"));
/// assert!(parse(b"0.83%").unwrap_err().to_string().contains("ambiguous"));
/// ```
pub fn parse(text: &[u8]) -> Result<u64, UtilizationError> {
    let shown = String::from_utf8_lossy(text);
    let text = shown.trim_matches(BLANKS);
    let (number, problem) = match text.strip_suffix('%') {
        Some(percent) => match decimal(percent.trim_end_matches(BLANKS), PERCENT) {
            Some(ppm) if ppm > 0 && ppm < PERCENT => (None, Problem::PercentTooSmall),
            Some(ppm) if ppm > MAX_PERCENT => (None, Problem::PercentTooLarge),
            number => (number, Problem::NotANumber),
        },
        None => match decimal(text, PPM) {
            Some(ppm) if ppm > MAX_RATIO => (None, Problem::RatioTooLarge),
            number => (number, Problem::NotANumber),
        },
    };
    number.ok_or_else(|| UtilizationError { text: text.chars().take(40).collect(), problem })
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
