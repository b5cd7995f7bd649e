//! Which kind of body a caller wants.

/// A kind of body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Problem,
    Json,
    Text,
    Html,
}

/// All kinds, the one that is sent when the caller does not mind first.
const KINDS: [(Kind, &str, &str); 4] = [
    (Kind::Problem, "application", "problem+json"),
    (Kind::Json, "application", "json"),
    (Kind::Text, "text", "plain"),
    (Kind::Html, "text", "html"),
];

impl Kind {
    /// What an `Accept` header asks for. A type that is named goes before one that a wildcard covers as well, if both
    /// are as welcome. A caller that takes none of these gets a problem: it has one anyway.
    pub(super) fn wanted(accept: Option<&[u8]>) -> Self {
        let Some(accept) = accept.filter(|accept| *accept != b"*/*") else { return Self::Problem };
        let ranges = std::str::from_utf8(accept).unwrap_or_default();
        let mut best = (Self::Problem, (0, 0));
        for (kind, main, sub) in KINDS {
            let (specific, quality) = welcome(ranges, main, sub);
            if quality > 0 && (quality, specific) > best.1 {
                best = (kind, (quality, specific));
            }
        }
        best.0
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Problem => "application/problem+json",
            Self::Json => "application/json",
            Self::Text => "text/plain; charset=utf-8",
            Self::Html => "text/html; charset=utf-8",
        }
    }
}

/// How exactly a type is named, from 0 to 3, and how welcome it is there, from 0 to 1000. The most exact name decides
/// (RFC 9110, 12.5.1), so that `text/html;q=0, */*` is anything but HTML.
fn welcome(ranges: &str, main: &str, sub: &str) -> (u8, u16) {
    let mut found = (0, 0);
    for range in ranges.split(outside_quotes(',')) {
        let mut parts = range.split(outside_quotes(';')).map(str::trim);
        let Some((of_main, of_sub)) = parts.next().and_then(|name| name.split_once('/')) else { continue };
        let specific = match (of_main, of_sub) {
            ("*", "*") => 1,
            (m, "*") if m.eq_ignore_ascii_case(main) => 2,
            (m, s) if m.eq_ignore_ascii_case(main) && s.eq_ignore_ascii_case(sub) => 3,
            _ => continue,
        };
        let mut weights =
            parts.filter_map(|part| part.split_once('=')).filter(|(name, _)| name.eq_ignore_ascii_case("q"));
        let quality = weights.next().map_or(Some(1000), |(_, q)| thousandths(q));
        found = quality.map_or(found, |quality| found.max((specific, quality)));
    }
    found
}

/// A weight of RFC 9110: 0 to 1, with three digits behind the point at most.
fn thousandths(q: &str) -> Option<u16> {
    let (whole, part) = q.split_once('.').unwrap_or((q, ""));
    if part.len() > 3 || !part.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let digits = part.bytes().chain(std::iter::repeat(b'0')).take(3);
    let part = digits.fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    match whole {
        "0" => Some(part),
        "1" if part == 0 => Some(1000),
        _ => None,
    }
}

/// Finds separators, but for those in quoted strings.
fn outside_quotes(separator: char) -> impl FnMut(char) -> bool {
    let (mut quoted, mut escaped) = (false, false);
    move |c| {
        let plain = !quoted;
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => {}
        }
        plain && c == separator
    }
}
