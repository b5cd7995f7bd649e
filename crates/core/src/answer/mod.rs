//! What a caller is told: status, headers and body over HTTP, code and message over gRPC.
//!
//! The RateLimit fields are those of draft-ietf-httpapi-ratelimit-headers-11, unless an older style is asked for.
//! A refusal speaks of the limits that were exceeded and of no others.

mod accept;
mod body;
mod headers;
mod write;

use std::fmt::Write as _;
use std::sync::Arc;

pub use headers::{
    Fields, HeadLines, HeaderList, HeaderStyle, Told, ToldStanding, add_told, standing_headers,
};
pub use write::Text;

use crate::decision::{Reason, Refused};
use crate::time::Nanos;

/// How callers are answered.
///
/// ```
/// use tollgate_core::answer::{AnswerStyle, HeaderStyle};
///
/// let style = AnswerStyle { retry_jitter_percent: 20, ..AnswerStyle::default() };
/// assert_eq!(style.headers, HeaderStyle::Ietf11);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerStyle {
    /// Which headers tell how the limits stand.
    pub headers: HeaderStyle,
    /// Where callers can read about the limits.
    pub docs_url: Option<Arc<str>>,
    /// How much longer than needed callers are sent away, at most, so that they do not all come back together: 0
    /// to 100. Load shedders never use less than 50.
    pub retry_jitter_percent: u8,
}

/// An answer over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<F = HeaderList> {
    /// The status.
    pub status: u16,
    /// The headers, but for the content type.
    pub headers: F,
    /// The content type.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

/// The answer to a request that may not pass.
///
/// The body is what the `Accept` header asks for, and `application/problem+json` if it asks for nothing that is
/// known here. `instance` names the request, usually by its path; it may be whatever the caller has sent. `draw` is
/// a random number, from which the jitter is made.
///
/// ```
/// use tollgate_core::answer::{AnswerStyle, refusal};
/// use tollgate_core::decision::{Reason, Refused, Standing, Unit};
/// use tollgate_core::Nanos;
///
/// let wait = Nanos::new(4_200_000_000);
/// let standing = Standing {
///     name: "per-key".into(),
///     stated: "100/min".into(),
///     quota: 100,
///     window: Some(Nanos::from_secs(60)),
///     unit: Unit::Requests,
///     remaining: 0,
///     retry_after: Some(wait),
///     reset_after: Nanos::from_secs(60),
/// };
/// let refused = Refused {
///     reason: Reason::Rate,
///     limiter: "per-key".into(),
///     retry_after: Some(wait),
///     exceeded: vec![standing],
/// };
/// let answer = refusal(&refused, &AnswerStyle::default(), Some(b"text/plain"), "/v1/charges", 0, 0);
/// assert_eq!(answer.status, 429);
/// assert!(answer.headers.contains(&("retry-after", "5".into())));
/// assert!(answer.headers.contains(&("ratelimit", r#""per-key";r=0;t=5"#.into())));
/// assert!(answer.body.contains(r#"The limit "per-key" of 100/min is exceeded. Try again in 5 s."#));
/// ```
pub fn refusal(
    refused: &Refused,
    style: &AnswerStyle,
    accept: Option<&[u8]>,
    instance: &str,
    now_epoch_secs: u64,
    draw: u32,
) -> Answer {
    refusal_in(refused, None, style, accept, instance, now_epoch_secs, draw)
}

/// As [`refusal`], with headers of any kind, and without finding the words for a limit anew that alone was exceeded.
pub fn refusal_in<F: Fields + Default>(
    refused: &Refused,
    told: Option<&Told>,
    style: &AnswerStyle,
    accept: Option<&[u8]>,
    instance: &str,
    now_epoch_secs: u64,
    draw: u32,
) -> Answer<F> {
    let mut fields = F::default();
    let wait = Wait::of(refused, style.retry_jitter_percent, draw);
    let seconds = wait.map(|wait| wait.secs);
    let mut push = |told: &[ToldStanding<'_>]| {
        headers::push(&mut fields, style.headers, told, now_epoch_secs, seconds);
    };
    let ready = match (told, refused.exceeded.as_slice()) {
        (Some(told), [standing]) => {
            push(&[ToldStanding::of(told, standing)]);
            told.problem.as_ref()
        }
        (_, standings) => {
            headers::on_told(style.headers, standings, push);
            None
        }
    };
    if let Some(seconds) = seconds {
        headers::add_number(&mut fields, "retry-after", seconds);
    }
    let status = refused.reason.status();
    // Envoy does not retry what carries this header. Another worker may well take what this one has shed.
    if style.headers == HeaderStyle::Envoy && status == 429 {
        fields.add_fixed("x-envoy-ratelimited", "true");
    }
    fields.add_fixed("cache-control", "no-store");
    let docs = style.docs_url.as_deref();
    let (content_type, body) = body::build(refused, wait, accept, instance, docs, ready);
    Answer { status, headers: fields, content_type, body }
}

/// The code and the message of a refusal over gRPC. The message is for people; [`grpc_message`] makes it fit for a
/// header, where no library does.
///
/// ```
/// use tollgate_core::answer::grpc;
/// use tollgate_core::decision::{Reason, Refused};
///
/// let refused =
///     Refused { reason: Reason::Worker, limiter: "shed".into(), retry_after: None, exceeded: Vec::new() };
/// assert_eq!(grpc(&refused).0, 14); // UNAVAILABLE
/// ```
pub fn grpc(refused: &Refused) -> (u32, String) {
    let code = match refused.reason {
        Reason::Rate | Reason::Concurrency => 8,
        Reason::Fleet | Reason::Worker | Reason::StoreAway => 14,
        Reason::Blocked => 7,
        Reason::Unclear => 3,
    };
    (code, body::detail(refused, Wait::of(refused, 0, 0)))
}

/// A message as the header `grpc-message` carries it: percent-encoded, but for spaces and printable ASCII.
///
/// ```
/// use tollgate_core::answer::grpc_message;
///
/// assert_eq!(grpc_message("100% full: café"), "100%25 full: caf%C3%A9");
/// ```
pub fn grpc_message(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' => encoded.push_str("%25"),
            b' '..=b'~' => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    encoded
}

/// How long to stay away, without jitter. A shedder cannot know, and says a second if nobody else does.
fn promised(refused: &Refused) -> Option<Nanos> {
    match refused.reason {
        Reason::Rate | Reason::Concurrency => refused.retry_after,
        Reason::Fleet | Reason::Worker | Reason::StoreAway => {
            refused.retry_after.or(Some(Nanos::from_secs(1)))
        }
        Reason::Blocked | Reason::Unclear => None,
    }
}

/// The wait that a rejected caller is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    /// The number for `Retry-After`: whole seconds, and never zero.
    secs: u64,
    /// The same as precisely as a program may want it: who may send 50 a second need not wait for a whole one.
    millis: u64,
}

impl Wait {
    /// What a refusal promises, made longer by the jitter. `None`: it promises nothing.
    fn of(refused: &Refused, jitter_percent: u8, draw: u32) -> Option<Self> {
        let shed = matches!(refused.reason, Reason::Fleet | Reason::Worker | Reason::StoreAway);
        let jitter_percent = if shed { jitter_percent.max(50) } else { jitter_percent };
        let wait = promised(refused)?;
        let (secs, millis) = (wait.as_secs_ceil().max(1), wait.as_u64().div_ceil(1_000_000).max(1));
        let spread = |least: u64| spread(least, jitter_percent.min(100), draw);
        Some(Self { secs: spread(secs), millis: spread(millis) })
    }
}

/// One of the numbers from `least` to `percent` more, each as likely as the others.
///
/// The draw picks among whole seconds. A wait that was first made longer and then rounded up would be 2 for nearly
/// everybody who waits for 1, and they would come back together after all.
fn spread(least: u64, percent: u8, draw: u32) -> u64 {
    let more = least.saturating_mul(u64::from(percent)).div_ceil(100);
    let picked = ((u128::from(more) + 1) * u128::from(draw)) >> 32;
    least.saturating_add(u64::try_from(picked).unwrap_or(more))
}
