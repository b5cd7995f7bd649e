//! Quantities as people write them: `50/s`, `28s`, `20%`, `512MB`. Errors say what would be right.

use crate::time::Nanos;

/// So many in so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    pub(crate) period: Nanos,
}

const SECOND: u64 = 1_000_000_000;

/// The length of a unit of time.
fn unit(name: &str) -> Result<u64, String> {
    Ok(match name {
        "ms" => SECOND / 1000,
        "s" | "sec" | "second" | "seconds" => SECOND,
        "min" | "minute" | "minutes" => 60 * SECOND,
        "h" | "hour" | "hours" => 3600 * SECOND,
        "d" | "day" | "days" => 86_400 * SECOND,
        "m" | "M" => return Err("`m` could be minutes or months: write `min`".to_owned()),
        other => return Err(format!("{other:?} is no unit of time: there are ms, s, min, h and d")),
    })
}

/// A whole number, with `_` between its digits if that reads better.
pub(crate) fn whole(text: &str) -> Result<u64, String> {
    let digits: String = text.trim().chars().filter(|c| *c != '_').collect();
    if digits.is_empty() {
        return Err("a number is missing".to_owned());
    }
    if text.trim().starts_with('_') || text.trim().ends_with('_') {
        return Err(format!("{text:?} is no number: `_` goes between digits"));
    }
    if let Some(rest) = digits.strip_prefix('-')
        && rest.parse::<u64>().is_ok()
    {
        return Err("it cannot be negative".to_owned());
    }
    if digits.chars().all(|c| c.is_ascii_digit()) {
        return digits.parse().map_err(|_| format!("{text} is more than can be counted ({})", u64::MAX));
    }
    match digits.parse::<f64>() {
        Ok(number) if number.is_finite() => Err(format!("{text} is no whole number")),
        _ => Err(format!("{text:?} is no number")),
    }
}

/// `50/s`, `1000/h`, `5/10min`.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    const FORMS: &str = "a rate looks like 50/s, 10/min, 1000/h, 5000/d or 5/10min";
    let Some((count, period)) = text.split_once('/') else {
        return Err(match whole(text) {
            Ok(number) => format!("{number} per what? {FORMS}"),
            Err(_) => format!("{text:?} is no rate: {FORMS}"),
        });
    };
    let count = whole(count).map_err(|problem| {
        if problem.contains("whole") {
            format!("{problem}: where it is less than one, write a longer period, as in 1/10s")
        } else {
            format!("{problem}: {FORMS}")
        }
    })?;
    if count == 0 {
        return Err(
            "0 would let nobody pass: to refuse callers use `block`, to have no limit `mode: off`".to_owned()
        );
    }
    let period = period.trim();
    let digits = period.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(period.len());
    let (times, name) = period.split_at(digits);
    let times = if times.is_empty() { 1 } else { whole(times)? };
    let length = unit(name.trim()).map_err(|problem| format!("{problem}; {FORMS}"))?;
    match times.checked_mul(length) {
        Some(period) if period > 0 => Ok(Rate { count, period: Nanos::new(period) }),
        _ => Err(format!("a period of {times}{name} cannot be: {FORMS}")),
    }
}

/// `28s`, `500ms`, `5min`.
pub(crate) fn duration(text: &str) -> Result<Nanos, String> {
    const FORMS: &str = "a time looks like 500ms, 28s, 5min, 1h or 1d";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, name) = text.split_at(digits);
    if number.is_empty() || name.is_empty() {
        return Err(match whole(text) {
            Ok(number) => format!("{number} of what? {FORMS}"),
            Err(_) => format!("{text:?} is no time: {FORMS}"),
        });
    }
    let length = unit(name.trim()).map_err(|problem| format!("{problem}; {FORMS}"))?;
    let total = whole(number)?.checked_mul(length);
    total.map(Nanos::new).ok_or_else(|| format!("{text} is longer than can be counted"))
}

/// A time that is not none.
pub(crate) fn some_time(text: &str) -> Result<Nanos, String> {
    match duration(text)? {
        Nanos::ZERO => Err("it cannot be no time at all".to_owned()),
        time => Ok(time),
    }
}

/// How long a decision may take.
pub(crate) fn deadline(text: &str) -> Result<Nanos, String> {
    let time = duration(text)?;
    let sane = Nanos::new(SECOND / 1000)..=Nanos::from_secs(60);
    if sane.contains(&time) { Ok(time) } else { Err("it must be from 1ms to 60s".to_owned()) }
}

/// A whole number, 1 or more.
pub(crate) fn some(text: &str) -> Result<u64, String> {
    match whole(text)? {
        0 => Err("it must be 1 or more".to_owned()),
        number => Ok(number),
    }
}

/// `20%`, `0.5%`, in millionths.
pub(crate) fn percent(text: &str) -> Result<u64, String> {
    const FORMS: &str = "a share looks like 20% or 0.5%, from 0% to 100%";
    let wrong = || format!("{text:?} is no share: {FORMS}");
    let number = text.trim().strip_suffix('%').ok_or_else(wrong)?.trim();
    let (whole_part, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 4 || !fraction.chars().all(|c| c.is_ascii_digit()) {
        return Err(if fraction.len() > 4 { format!("{text} is too fine: {FORMS}") } else { wrong() });
    }
    let whole_part = whole(whole_part).map_err(|_| wrong())?;
    let fraction: u64 = format!("{fraction:0<4}").parse().map_err(|_| wrong())?;
    let share = whole_part.saturating_mul(10_000).saturating_add(fraction);
    if share > 1_000_000 { Err(format!("{text} is more than all: {FORMS}")) } else { Ok(share) }
}

/// `512MB`, `64KiB`; powers of 1024 either way.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    let (number, name) = text.split_at(digits);
    let shift = match name.trim() {
        "" | "B" => 0,
        "KB" | "KiB" | "k" | "K" => 10,
        "MB" | "MiB" | "M" => 20,
        "GB" | "GiB" | "G" => 30,
        _ => return Err(format!("{text:?} is no size: a size looks like 64MB or 2GB")),
    };
    whole(number)?.checked_mul(1 << shift).ok_or_else(|| format!("{text} is more than there is"))
}

/// Nanoseconds as people would write them.
pub(crate) fn spelled(time: Nanos) -> String {
    let nanos = time.as_u64();
    let units = [
        (86_400 * SECOND, "d"),
        (3600 * SECOND, "h"),
        (60 * SECOND, "min"),
        (SECOND, "s"),
        (SECOND / 1000, "ms"),
    ];
    match units.iter().find(|(length, _)| nanos > 0 && nanos.is_multiple_of(*length)) {
        Some((length, name)) => format!("{}{name}", nanos / length),
        None => format!("{nanos}ns"),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_they_are_written() {
        let read = |text| rate(text).map(|rate| (rate.count, rate.period.as_u64() / SECOND));
        assert_eq!(read("50/s"), Ok((50, 1)));
        assert_eq!(read("1_000 / min"), Ok((1000, 60)));
        assert_eq!(read("5/10min"), Ok((5, 600)));
        assert_eq!(read("1/d"), Ok((1, 86_400)));
        for (text, says) in [
            ("50", "50 per what?"),
            ("fast", "a rate looks like"),
            ("0/s", "`block`"),
            ("-5/s", "negative"),
            ("0.5/s", "1/10s"),
            ("5/m", "write `min`"),
            ("5/fortnight", "ms, s, min, h and d"),
            ("/s", "a number is missing"),
            ("5/", "is no unit"),
            ("5/0s", "cannot be"),
            ("99999999999999999999999/s", "more than can be counted"),
            ("5/99999999999999d", "cannot be"),
            ("NaN/s", "no number"),
            ("1e9/s", "no whole number"),
            ("_1/s", "between digits"),
            ("1_/s", "between digits"),
            ("_1_/s", "between digits"),
            ("5/_1s", "between digits"),
        ] {
            let problem = rate(text).unwrap_err();
            assert!(problem.contains(says), "{text}: {problem}");
        }
    }

    #[test]
    fn times_shares_and_sizes_are_read_as_they_are_written() {
        assert_eq!(duration("28s"), Ok(Nanos::from_secs(28)));
        assert_eq!(duration("500ms").map(|time| time.as_u64()), Ok(500_000_000));
        assert!(duration("28").unwrap_err().contains("28 of what?"));
        assert!(duration("_1s").is_err() && duration("1_s").is_err() && bytes("1_KB").is_err());
        assert!(duration("soon").is_err() && duration("").is_err() && duration("-1s").is_err());
        assert_eq!(percent("20%"), Ok(200_000));
        assert_eq!(percent("0.5 %"), Ok(5_000));
        assert_eq!(percent("100%"), Ok(1_000_000));
        for text in ["20", "101%", "-1%", "%", "0.12345%", "a%", "1.-5%"] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(bytes("64MB"), Ok(64 << 20));
        assert!(bytes("64 parsec").is_err() && bytes("99999999999GB").is_err());
        assert_eq!(spelled(Nanos::from_secs(60)), "1min");
        assert_eq!(spelled(Nanos::from_secs(90)), "90s");
    }
}
