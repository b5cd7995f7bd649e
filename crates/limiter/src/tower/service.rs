//! One request through the layer.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use tollgate_core::answer::{HeaderList, grpc_message};
use tollgate_core::store::Store;
use tower_service::Service;

use super::body::LimitedBody;
use super::facts::{InMap, facts};
use super::layer::Known;
use crate::admission::{Limiter, Refusal};
use crate::memory::MemoryStore;

/// A service behind a [`TollgateLayer`](super::TollgateLayer).
pub struct TollgateService<T, S: Store + 'static = MemoryStore> {
    inner: T,
    limiter: Limiter<S>,
    known: Known,
}

impl<T, S: Store + 'static> TollgateService<T, S> {
    pub(super) fn new(inner: T, limiter: Limiter<S>, known: Known) -> Self {
        Self { inner, limiter, known }
    }
}

impl<T, S, B, R> Service<Request<B>> for TollgateService<T, S>
where
    T: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    T::Future: Send,
    S: Store + 'static,
    B: Send + 'static,
    R: Body<Data = Bytes>,
{
    type Response = Response<LimitedBody<R>>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        // Nothing is taken here: whoever is ready may never be called.
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (limiter, known) = (self.limiter.clone(), self.known.clone());
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let hints = known.of(&parts);
            known.watch_peer(hints.peer, || limiter.asks_for_addresses());
            let headers = InMap(&parts.headers);
            let permit = match limiter.admit(&facts(&parts, &headers, &hints)).await {
                Ok(permit) => permit,
                Err(refusal) => {
                    let response = refused(&refusal, &parts.headers, parts.uri.path());
                    let mut response = response.map(LimitedBody::refused);
                    response.extensions_mut().insert(refusal);
                    return Ok(response);
                }
            };
            let delay = permit.delay();
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let decision = permit.decision();
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(decision.clone());
            if let Some(settle) = permit.settle_later() {
                request.extensions_mut().insert(settle);
            }
            let mut response = inner.call(request).await?;
            response.extensions_mut().insert(decision);
            permit.answered(|name| response.headers().get(name).map(HeaderValue::as_bytes));
            add_fields(response.headers_mut(), permit.headers());
            Ok(response.map(|body| LimitedBody::passed(body, permit)))
        })
    }
}

/// Adds our fields to those that are there already: a limit of somebody else's is not made to look wider. Lists grow; of
/// fields that can tell of one limit only, those stay that tell of the one with less left. For doors of
/// one's own; the layer does so itself.
pub fn add_fields(headers: &mut HeaderMap, mut ours: HeaderList) {
    let is_alone = headers.is_empty();
    if !is_alone {
        beside_theirs(headers, &mut ours);
    }
    for (name, value) in ours {
        let value = match value {
            Cow::Borrowed(text) => ready(text),
            Cow::Owned(text) => match HeaderValue::try_from(text) {
                Ok(value) => value,
                Err(_) => continue,
            },
        };
        let (name, is_list) = match name {
            "ratelimit" => (RATELIMIT, true),
            "ratelimit-policy" => (RATELIMIT_POLICY, true),
            "retry-after" => (header::RETRY_AFTER, false),
            "cache-control" => (header::CACHE_CONTROL, false),
            other => (HeaderName::from_static(other), false),
        };
        if is_list || is_alone || !headers.contains_key(&name) {
            headers.append(name, value);
        }
    }
}

/// Makes way for ours among theirs, or leaves out what they tell better.
fn beside_theirs(headers: &mut HeaderMap, ours: &mut HeaderList) {
    for set in SETS {
        let Some(left) = left(set, |name| own(ours, name)) else { continue };
        // What cannot be read, or says it twice, tells nobody anything.
        let text = |name: &str| {
            let mut lines = headers.get_all(name).iter();
            lines.next().filter(|_| lines.next().is_none()).and_then(|value| value.to_str().ok())
        };
        if self::left(set, text).is_some_and(|theirs| theirs <= left) {
            ours.retain(|(name, _)| !set.contains(name));
        } else {
            set.iter().for_each(|name| drop(headers.remove(*name)));
        }
    }
    one_map(headers, ours);
}

/// In revision 7 of the draft `RateLimit` is no list but a map: twice in an answer, or beside a list, nobody can read it.
fn one_map(headers: &mut HeaderMap, ours: &mut HeaderList) {
    let is_map = |value: &str| value.contains("remaining=");
    let left = |value: &str| {
        let number = |part: &str| {
            let part = part.trim();
            part.strip_prefix("remaining=").or(part.strip_prefix("r="))?.parse::<u64>().ok()
        };
        value.split([',', ';']).filter_map(number).min()
    };
    let Some(own) = own(ours, RATELIMIT.as_str()) else { return };
    let theirs = || headers.get_all(RATELIMIT).iter().map(|value| value.to_str().unwrap_or_default());
    let Some(least) = theirs().map(|value| left(value).unwrap_or(u64::MAX)).min() else { return };
    // What cannot be read tells nobody anything, and keeps the rest from being read.
    let is_readable = theirs().all(|value| left(value).is_some());
    if is_readable && !is_map(own) && !theirs().any(is_map) {
        return;
    }
    if !is_readable || left(own).is_some_and(|left| left < least) {
        headers.remove(RATELIMIT);
    } else {
        ours.retain(|(name, _)| *name != RATELIMIT.as_str());
    }
}

/// The value of a text that is known beforehand. The commonest are not looked at again.
fn ready(text: &'static str) -> HeaderValue {
    const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
    const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
    match text {
        "no-store" => NO_STORE,
        "application/problem+json" => PROBLEM,
        other => HeaderValue::from_static(other),
    }
}

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Fields that tell of one limit together; the second says how much is left.
type Set = [&'static str; 3];
const SETS: [Set; 2] = [
    ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"],
    ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"],
];

/// How much is left, by a set of fields.
fn left<'h>(set: Set, text: impl Fn(&str) -> Option<&'h str>) -> Option<u64> {
    let [_, remaining, _] = set;
    text(remaining)?.trim().parse().ok()
}

fn own<'h>(ours: &'h HeaderList, name: &str) -> Option<&'h str> {
    ours.iter().find(|(own, _)| *own == name).map(|(_, value)| &**value)
}

/// The answer to a request that may not pass, over HTTP or gRPC as it was asked. For doors of one's own; the layer does so
/// itself.
pub fn refused(refusal: &Refusal, asked: &HeaderMap, path: &str) -> Response<String> {
    let grpc = asked.get(header::CONTENT_TYPE).and_then(grpc_answer);
    let is_grpc = grpc.is_some();
    let accept = joined(asked, &header::ACCEPT);
    let answer = refusal.answer(accept.as_deref(), path);
    let mut response = Response::new(if is_grpc { String::new() } else { answer.body });
    let headers = response.headers_mut();
    // Room for all at once.
    headers.reserve(6);
    add_fields(headers, answer.headers);
    if let Some(content_type) = grpc {
        // An answer without a message: its status stands where headers do.
        let (code, message) = refusal.grpc();
        headers.insert(header::CONTENT_TYPE, content_type);
        headers.insert("grpc-status", HeaderValue::from(code));
        if let Ok(message) = HeaderValue::from_str(&grpc_message(&message)) {
            headers.insert("grpc-message", message);
        }
        return response;
    }
    headers.insert(header::CONTENT_TYPE, ready(answer.content_type));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    response
}

/// The content type of an answer over gRPC, if that is what was asked in. Clients of gRPC-Web take their own only.
fn grpc_answer(asked: &HeaderValue) -> Option<HeaderValue> {
    let media = asked.as_bytes().split(|byte| *byte == b';').next()?.trim_ascii().to_ascii_lowercase();
    let is = |name: &[u8]| {
        let rest = media.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+"))
    };
    if is(b"application/grpc") {
        return Some(HeaderValue::from_static("application/grpc"));
    }
    let is_web = is(b"application/grpc-web") || is(b"application/grpc-web-text");
    is_web.then(|| HeaderValue::from_bytes(&media).ok()).flatten()
}

/// All lines of a header as one.
fn joined<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<Cow<'h, [u8]>> {
    let mut lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let first = lines.next()?;
    let mut rest = lines.peekable();
    if rest.peek().is_none() {
        return Some(Cow::Borrowed(first));
    }
    let all: Vec<&[u8]> = std::iter::once(first).chain(rest).collect();
    Some(Cow::Owned(all.join(&b", "[..])))
}

impl<T: Clone, S: Store> Clone for TollgateService<T, S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limiter: self.limiter.clone(), known: self.known.clone() }
    }
}

impl<T: fmt::Debug, S: Store> fmt::Debug for TollgateService<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateService").field("inner", &self.inner).finish_non_exhaustive()
    }
}
