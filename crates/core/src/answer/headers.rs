//! The headers that tell how limits stand.

use smallvec::SmallVec;

use super::write::{number, push_number, push_quoted};
use crate::decision::{Standing, Unit};
use crate::time::Nanos;

/// Headers in the order in which they are sent; names in lower case.
pub type HeaderList = SmallVec<[(&'static str, String); 4]>;

/// Which headers tell a caller how its limits stand.
///
/// ```
/// use tollgate_core::answer::HeaderStyle;
///
/// assert_eq!(HeaderStyle::parse("draft-7"), Some(HeaderStyle::Draft7));
/// assert_eq!(HeaderStyle::parse("draft-5"), None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy` as in revision 11 of the draft; revisions 8 to 10 look the same.
    #[default]
    Ietf11,
    /// As in revision 7: one `RateLimit` that says limit, remaining and reset.
    Draft7,
    /// As in revisions 4 to 6: `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Draft6,
    /// As GitHub and many others: `X-RateLimit-Reset` is a time, in seconds since 1970.
    XRateLimit,
    /// As Envoy: `X-RateLimit-Reset` is a number of seconds from now.
    Envoy,
    /// None at all.
    Off,
}

impl HeaderStyle {
    /// The names of all styles.
    pub const NAMES: [&'static str; 6] = ["ietf-11", "draft-7", "draft-6", "x-ratelimit", "envoy", "off"];

    /// The style of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "ietf-11" => Self::Ietf11,
            "draft-7" => Self::Draft7,
            "draft-6" => Self::Draft6,
            "x-ratelimit" => Self::XRateLimit,
            "envoy" => Self::Envoy,
            "off" => Self::Off,
            _ => return None,
        })
    }
}

/// How limits stand, for an answer of any kind. The first limit is the one that is reported; it should be the one
/// that decided, or else the one closest to exhaustion. [`refusal`](super::refusal) sends these headers too.
///
/// Requests in progress can be told in [`HeaderStyle::Ietf11`] alone; the other styles leave them out.
///
/// ```
/// use tollgate_core::answer::{HeaderStyle, standing_headers};
/// use tollgate_core::decision::{Standing, Unit};
/// use tollgate_core::Nanos;
///
/// let standing = Standing {
///     name: "per-key".into(),
///     quota: 100,
///     window: Some(Nanos::from_secs(60)),
///     unit: Unit::Requests,
///     remaining: 99,
///     retry_after: Some(Nanos::ZERO),
///     reset_after: Nanos::new(600_000_000),
/// };
/// let headers = standing_headers(HeaderStyle::Ietf11, &[standing], 0);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""per-key";q=100;w=60"#.to_owned()));
/// assert_eq!(headers[1], ("ratelimit", r#""per-key";r=99;t=1"#.to_owned()));
/// ```
pub fn standing_headers(style: HeaderStyle, standings: &[Standing], now_epoch_secs: u64) -> HeaderList {
    build(style, standings, now_epoch_secs, None)
}

/// As [`standing_headers`], with the number that `Retry-After` carries in the same answer, if there is one.
pub(super) fn build(
    style: HeaderStyle,
    standings: &[Standing],
    now_epoch_secs: u64,
    retry_after: Option<u64>,
) -> HeaderList {
    let mut list = HeaderList::new();
    let mut told =
        standings.iter().filter(|it| style == HeaderStyle::Ietf11 || it.unit != Unit::ConcurrentRequests);
    let all = told.clone();
    let (Some(first), false) = (told.next(), style == HeaderStyle::Off) else { return list };
    let limit = integer(first.quota);
    let left = integer(first.remaining);
    let wait = retry_after.unwrap_or_else(|| until(first));
    match style {
        HeaderStyle::Ietf11 => {
            list.push(("ratelimit-policy", policies(style, String::new(), all)));
            let mut told = String::with_capacity(first.name.len() + 40);
            push_quoted(&mut told, &first.name);
            told.push_str(";r=");
            push_number(&mut told, left);
            told.push_str(";t=");
            push_number(&mut told, integer(wait));
            list.push(("ratelimit", told));
        }
        HeaderStyle::Draft7 => {
            list.push(("ratelimit-policy", policies(style, String::new(), all)));
            let wait = integer(wait);
            list.push(("ratelimit", format!("limit={limit}, remaining={left}, reset={wait}")));
        }
        HeaderStyle::Draft6 => {
            list.push(("ratelimit-policy", policies(style, String::new(), all)));
            list.push(("ratelimit-limit", number(limit)));
            list.push(("ratelimit-remaining", number(left)));
            list.push(("ratelimit-reset", number(integer(wait))));
        }
        HeaderStyle::XRateLimit => {
            list.push(("x-ratelimit-limit", number(limit)));
            list.push(("x-ratelimit-remaining", number(left)));
            list.push(("x-ratelimit-reset", number(integer(now_epoch_secs.saturating_add(wait)))));
        }
        HeaderStyle::Envoy => {
            list.push(("x-ratelimit-limit", policies(style, number(limit), all)));
            list.push(("x-ratelimit-remaining", number(left)));
            list.push(("x-ratelimit-reset", number(integer(wait))));
        }
        HeaderStyle::Off => {}
    }
    list
}

/// Seconds until a caller finds more than now. A limit says in `retry_after` that a request like this one does not
/// fit, and until when; who was let in by the last unit, or will never fit, hears of the whole quota instead.
fn until(standing: &Standing) -> u64 {
    let wait = standing.retry_after.filter(|wait| *wait > Nanos::ZERO);
    let secs = wait.unwrap_or(standing.reset_after).as_secs_ceil();
    if standing.remaining == 0 { secs.max(1) } else { secs }
}

/// The quotas of all limits, behind what `list` says already.
fn policies<'a>(
    style: HeaderStyle,
    mut list: String,
    standings: impl Iterator<Item = &'a Standing>,
) -> String {
    list.reserve(128);
    for standing in standings {
        if !list.is_empty() {
            list.push_str(", ");
        }
        if style == HeaderStyle::Ietf11 {
            push_quoted(&mut list, &standing.name);
            list.push_str(";q=");
        }
        push_number(&mut list, integer(standing.quota));
        match (standing.unit, standing.window) {
            (Unit::ConcurrentRequests, _) => list.push_str(";qu=\"concurrent-requests\""),
            (Unit::Requests, Some(window)) => {
                list.push_str(";w=");
                push_number(&mut list, window.as_secs_ceil().max(1));
            }
            (Unit::Requests, None) => {}
        }
        if style == HeaderStyle::Envoy {
            list.push_str(";name=");
            push_quoted(&mut list, &standing.name);
        }
    }
    list
}

/// Integers in headers have 15 digits at most.
pub(super) fn integer(n: u64) -> u64 {
    n.min(999_999_999_999_999)
}
