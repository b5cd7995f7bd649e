//! The headers that tell how limits stand.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::AnswerStyle;
use super::body::Problem;
use super::write::{Text, digits, push_number, push_quoted};
use crate::decision::{Reason, Standing, Unit};
use crate::outcome::Outcome;
use crate::time::Nanos;

/// Headers in the order in which they are sent; names in lower case.
pub type HeaderList = SmallVec<[(&'static str, Cow<'static, str>); 4]>;

/// Where headers go, in the order in which they are sent.
pub trait Fields {
    /// What a value is written to.
    type Text: Text;

    /// Adds one. `value` writes what it says, which is printable ASCII of this length or less.
    fn add(&mut self, name: &'static str, length: usize, value: impl FnOnce(&mut Self::Text));

    /// Adds one that always says the same.
    fn add_fixed(&mut self, name: &'static str, value: &'static str) {
        self.add(name, value.len(), |text| text.put(value));
    }
}

impl Fields for HeaderList {
    type Text = String;

    fn add(&mut self, name: &'static str, length: usize, value: impl FnOnce(&mut String)) {
        let mut text = String::with_capacity(length);
        value(&mut text);
        self.push((name, text.into()));
    }

    fn add_fixed(&mut self, name: &'static str, value: &'static str) {
        self.push((name, value.into()));
    }
}

/// Headers as lines of a head of HTTP/1, for those who write it themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadLines(pub Vec<u8>);

impl HeadLines {
    /// Adds headers to a head that is being written.
    pub fn add_to(head: &mut Vec<u8>, add: impl FnOnce(&mut Self)) {
        let mut lines = Self(std::mem::take(head));
        add(&mut lines);
        *head = lines.0;
    }
}

impl Fields for HeadLines {
    type Text = Vec<u8>;

    #[inline]
    fn add(&mut self, name: &'static str, length: usize, value: impl FnOnce(&mut Vec<u8>)) {
        /// Most answers say no more.
        const USUAL: usize = 240;
        let Self(lines) = self;
        let length = name.len() + length + ": \r\n".len();
        lines.reserve(if lines.is_empty() { length.max(USUAL) } else { length });
        lines.put(name);
        lines.put(": ");
        value(lines);
        lines.put("\r\n");
    }
}

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

    /// Whether it can tell of limits of this unit: requests in progress are told in [`HeaderStyle::Ietf11`] alone.
    pub fn tells(self, unit: Unit) -> bool {
        match self {
            Self::Ietf11 => true,
            Self::Off => false,
            _ => unit != Unit::ConcurrentRequests,
        }
    }
}

/// How limits stand, for an answer of any kind. [`HeaderStyle::Ietf11`] reports all of them, in this order; the other
/// styles report the first one that is a rate, which should be the one that decided, or else the one closest to
/// exhaustion. [`refusal`](super::refusal) sends these headers too.
///
/// ```
/// use tollgate_core::answer::{HeaderStyle, standing_headers};
/// use tollgate_core::decision::{Standing, Unit};
/// use tollgate_core::Nanos;
///
/// let standing = Standing {
///     name: "per-key".into(),
///     stated: "100/min".into(),
///     quota: 100,
///     window: Some(Nanos::from_secs(60)),
///     unit: Unit::Requests,
///     remaining: 99,
///     retry_after: Some(Nanos::ZERO),
///     reset_after: Nanos::new(600_000_000),
/// };
/// let headers = standing_headers(HeaderStyle::Ietf11, &[standing], 0);
/// assert_eq!(headers[0], ("ratelimit-policy", r#""per-key";q=100;w=60"#.into()));
/// assert_eq!(headers[1], ("ratelimit", r#""per-key";r=99;t=1"#.into()));
/// ```
pub fn standing_headers(style: HeaderStyle, standings: &[Standing], now_epoch_secs: u64) -> HeaderList {
    let mut list = HeaderList::new();
    on_told(style, standings, |told| push(&mut list, style, told, now_epoch_secs, None));
    list
}

/// What callers are told of a limit, as far as it is always the same: made once, and not for every request.
#[derive(Clone, Debug)]
pub struct Told {
    quota: u64,
    unit: Unit,
    /// How much sooner one unit is back than all of them, when none is left.
    lead: Nanos,
    /// Its name as a String of RFC 9651, up to where it says how much is left.
    opening: Box<str>,
    /// What is said of it where all limits are told.
    policy: Box<str>,
    /// The problem of those who have exceeded it and no other.
    pub(super) problem: Option<Problem>,
}

impl Told {
    /// The words for a limit of this limiter. Of the standing only that counts which does not change. `lead` is the
    /// limit's [`first_unit_lead`](crate::Limit::first_unit_lead).
    pub fn new(style: &AnswerStyle, reason: Reason, limiter: &str, standing: &Standing, lead: Nanos) -> Self {
        let problem = Problem::of_one(reason, limiter, standing, style.docs_url.as_deref());
        Self { problem: Some(problem), lead, ..Self::in_headers(style.headers, standing) }
    }

    /// What is said of it where all limits are told.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    fn in_headers(style: HeaderStyle, standing: &Standing) -> Self {
        let (mut opening, mut policy) = (String::new(), String::new());
        push_quoted(&mut opening, &standing.name);
        opening.push_str(";r=");
        push_policy(&mut policy, style, standing);
        Self {
            quota: standing.quota,
            unit: standing.unit,
            lead: Nanos::ZERO,
            opening: opening.into_boxed_str(),
            policy: policy.into_boxed_str(),
            problem: None,
        }
    }
}

/// How a limit stands, with the words for it at hand.
#[derive(Clone, Copy, Debug)]
pub struct ToldStanding<'t> {
    told: &'t Told,
    remaining: u64,
    retry_after: Option<Nanos>,
    reset_after: Nanos,
}

impl<'t> ToldStanding<'t> {
    /// As an outcome has it.
    #[inline]
    pub fn new(told: &'t Told, outcome: &Outcome) -> Self {
        let Outcome { remaining, retry_after, reset_after, .. } = *outcome;
        Self { told, remaining, retry_after, reset_after }
    }

    /// Whether less of its quota is left than of the other's.
    #[inline]
    pub fn is_closer_to_exhaustion(&self, other: &Self) -> bool {
        let left = |it: &Self, other: &Self| u128::from(it.remaining) * u128::from(other.told.quota.max(1));
        left(self, other) < left(other, self)
    }

    /// As a standing of the same limit has it.
    pub(super) fn of(told: &'t Told, standing: &Standing) -> Self {
        let Standing { remaining, retry_after, reset_after, .. } = *standing;
        Self { told, remaining, retry_after, reset_after }
    }
}

/// As [`standing_headers`], without finding the words for each limit anew: of these limits, and with the policies of all of them, one
/// after another or put together with `", "` before. Each must be one that the style [tells](HeaderStyle::tells).
pub fn add_told(
    fields: &mut impl Fields,
    style: HeaderStyle,
    standings: &[ToldStanding<'_>],
    policies: &[&str],
    now_epoch_secs: u64,
) {
    push_told(fields, style, standings, policies, now_epoch_secs, None);
}

/// Finds the words for standings.
pub(super) fn on_told(style: HeaderStyle, standings: &[Standing], on: impl FnOnce(&[ToldStanding<'_>])) {
    let told: SmallVec<[Told; 2]> = standings.iter().map(|it| Told::in_headers(style, it)).collect();
    let told = told.iter().zip(standings).map(|(told, standing)| ToldStanding::of(told, standing));
    on(&told.collect::<SmallVec<[ToldStanding<'_>; 4]>>());
}

/// Adds the headers, with the number that `Retry-After` carries in the same answer, if there is one.
pub(super) fn push(
    fields: &mut impl Fields,
    style: HeaderStyle,
    standings: &[ToldStanding<'_>],
    now_epoch_secs: u64,
    retry_after: Option<u64>,
) {
    let all = standings.iter().filter(|it| style.tells(it.told.unit));
    let policies: SmallVec<[&str; 4]> = all.clone().map(|it| it.told.policy()).collect();
    match standings {
        [only] if style.tells(only.told.unit) => {
            push_told(fields, style, standings, &policies, now_epoch_secs, retry_after)
        }
        _ => {
            let all: SmallVec<[ToldStanding<'_>; 4]> = all.copied().collect();
            push_told(fields, style, &all, &policies, now_epoch_secs, retry_after);
        }
    }
}

fn push_told(
    fields: &mut impl Fields,
    style: HeaderStyle,
    standings: &[ToldStanding<'_>],
    policies: &[&str],
    now_epoch_secs: u64,
    retry_after: Option<u64>,
) {
    let Some(first) = standings.first() else { return };
    let limit = integer(first.told.quota);
    let left = integer(first.remaining);
    let wait = retry_after.unwrap_or_else(|| until(first));
    match style {
        HeaderStyle::Ietf11 => {
            add_policies(fields, policies);
            let length = |it: &ToldStanding<'_>| it.told.opening.len() + ";t=, ".len() + 2 * MOST_DIGITS;
            fields.add("ratelimit", standings.iter().map(length).sum(), |text| {
                let mut wait = Some(wait);
                for it in standings {
                    // The first one decided, and says the same as `Retry-After`.
                    let wait = wait.take().unwrap_or_else(|| {
                        text.put(", ");
                        until(it)
                    });
                    text.put(&it.told.opening);
                    push_number(text, integer(it.remaining));
                    // Places come free at any moment: while there are some, there is nothing to wait for.
                    let is_free = it.remaining > 0 && it.retry_after == Some(Nanos::ZERO);
                    if it.told.unit == Unit::Requests || !is_free {
                        text.put(";t=");
                        push_number(text, integer(wait));
                    }
                }
            });
        }
        HeaderStyle::Draft7 => {
            add_policies(fields, policies);
            fields.add("ratelimit", "limit=, remaining=, reset=".len() + 3 * MOST_DIGITS, |text| {
                text.put("limit=");
                push_number(text, limit);
                text.put(", remaining=");
                push_number(text, left);
                text.put(", reset=");
                push_number(text, integer(wait));
            });
        }
        HeaderStyle::Draft6 => {
            add_policies(fields, policies);
            add_number(fields, "ratelimit-limit", limit);
            add_number(fields, "ratelimit-remaining", left);
            add_number(fields, "ratelimit-reset", wait);
        }
        HeaderStyle::XRateLimit => {
            add_number(fields, "x-ratelimit-limit", limit);
            add_number(fields, "x-ratelimit-remaining", left);
            add_number(fields, "x-ratelimit-reset", now_epoch_secs.saturating_add(wait));
        }
        HeaderStyle::Envoy => {
            let length = MOST_DIGITS + length_of_policies(policies);
            fields.add("x-ratelimit-limit", length, |text| {
                push_number(text, limit);
                for policy in policies {
                    text.put(", ");
                    text.put(policy);
                }
            });
            add_number(fields, "x-ratelimit-remaining", left);
            add_number(fields, "x-ratelimit-reset", wait);
        }
        HeaderStyle::Off => {}
    }
}

/// Seconds until a caller finds more than now: until a request fits where none does, and else until the whole quota is back.
/// Who will never fit hears of the whole quota, too.
fn until(standing: &ToldStanding<'_>) -> u64 {
    let ToldStanding { told, remaining, retry_after, reset_after } = *standing;
    let wait = match (told.unit, retry_after) {
        (_, Some(wait)) if wait > Nanos::ZERO => wait,
        // A place comes free when a request ends, however long a store would keep it for one that never does.
        (Unit::ConcurrentRequests, _) => Nanos::ZERO,
        // The request that takes the last unit reports the same wait as the rejected one after it.
        (Unit::Requests, Some(_)) if remaining == 0 => {
            Nanos::new(reset_after.as_u64().saturating_sub(told.lead.as_u64()))
        }
        (Unit::Requests, _) => reset_after,
    };
    let secs = wait.as_secs_ceil();
    if remaining == 0 { secs.max(1) } else { secs }
}

/// The quotas of all limits.
fn add_policies(fields: &mut impl Fields, policies: &[&str]) {
    fields.add("ratelimit-policy", length_of_policies(policies), |text| {
        for (place, policy) in policies.iter().enumerate() {
            if place > 0 {
                text.put(", ");
            }
            text.put(policy);
        }
    });
}

fn length_of_policies(policies: &[&str]) -> usize {
    policies.iter().map(|policy| policy.len() + ", ".len()).sum()
}

/// A field that is a number.
pub(super) fn add_number(fields: &mut impl Fields, name: &'static str, number: u64) {
    let number = integer(number);
    fields.add(name, digits(number), |text| push_number(text, number));
}

/// How many digits an integer has, at most.
const MOST_DIGITS: usize = 15;

/// The quota of a limit.
fn push_policy(text: &mut String, style: HeaderStyle, standing: &Standing) {
    if style == HeaderStyle::Ietf11 {
        push_quoted(text, &standing.name);
        text.push_str(";q=");
    }
    push_number(text, integer(standing.quota));
    match (standing.unit, standing.window) {
        (Unit::ConcurrentRequests, _) => text.push_str(";qu=\"concurrent-requests\""),
        (Unit::Requests, Some(window)) => {
            text.push_str(";w=");
            push_number(text, window.as_secs_ceil().max(1));
        }
        (Unit::Requests, None) => {}
    }
    if style == HeaderStyle::Envoy {
        text.push_str(";name=");
        push_quoted(text, &standing.name);
    }
}

/// Integers in headers have 15 digits at most.
pub(super) fn integer(n: u64) -> u64 {
    n.min(999_999_999_999_999)
}
