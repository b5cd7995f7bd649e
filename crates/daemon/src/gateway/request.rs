//! The whole path of a request through the gateway, on one screen.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};
use tollgate::tower::{InMap, add_fields, refused};
use tollgate::{Facts, Permit};

use super::Worker;
use super::body::{AnswerBody, AskedBody, Carried, Sending, Trouble};
use super::connection::Connection;
use super::doing::Held;
use super::fields::{self, Origin};
use super::pool::{Failed, Manner};
use super::problem::Problem;
use super::site::Site;
use super::track::Track;
use super::tunnel::{self, Ends};
use crate::store::AnyStore;

/// Answers a request: by the service behind the gateway, or in its place.
pub(super) async fn answer(
    worker: Arc<Worker>,
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let shared = &worker.shared;
    let mut track = Track::begin(&shared.watch, &connection.doing);
    // One policy for the whole request, whatever is loaded meanwhile.
    let site = shared.site.load_full();
    let (parts, body) = request.into_parts();
    let host = host_of(&parts).to_owned();
    let headers = InMap(&parts.headers);
    let facts = Facts {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        host: &host,
        peer: Some(connection.peer.ip()),
        tls_client: connection.tls_client.as_deref(),
        headers: &headers,
        ..Facts::default()
    };
    let client = site.policy.client_address(&facts).unwrap_or_else(|| connection.peer.ip());
    track.asked(facts.method, facts.path, Some(client));
    let is_grpc = is_grpc(&parts.headers);
    if let Err(problem) = check(&parts) {
        return own(problem, is_grpc, track);
    }
    let permit = match shared.limiter.admit(&facts).await {
        Ok(permit) => permit,
        Err(refusal) => {
            track.note(|entry| {
                entry.verdict = "refused";
                entry.limiter = Some(refusal.limiter().to_owned());
                entry.class = refusal.class().map(Arc::from);
                entry.plan = refusal.plan().map(Arc::from);
            });
            return text(refused(&refusal, &parts.headers, parts.uri.path()).map(Bytes::from), track);
        }
    };
    note_decision(&mut track, &permit);
    let delay = permit.delay();
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let Some(upstream) = site.policy.upstream_of(&facts).and_then(|at| site.upstreams.get(at)) else {
        // Where there is none at all, that is not the client's mistake.
        let is_ours = site.upstreams.is_empty();
        return own(if is_ours { Problem::Unreachable } else { Problem::NoUpstream }, is_grpc, track);
    };
    track.note(|entry| entry.upstream = Some(Arc::clone(&upstream.policy.name)));
    if is_larger(&parts.headers, site.max_body) {
        return own(Problem::TooLarge, is_grpc, track);
    }
    let upgrade = fields::upgrade_of(&parts.headers).filter(|_| parts.version == Version::HTTP_11);
    let manner = Manner {
        worker: worker.number,
        is_grpc,
        is_upgrade: upgrade.is_some(),
        connect_timeout: site.times.connect,
    };
    let is_http1 = parts.version < Version::HTTP_2;
    let mut request = Request::from_parts(parts, body);
    let client_end = upgrade.is_some().then(|| tunnel::client_end(&mut request));
    let (parts, body) = request.into_parts();
    let (body, sending) = AskedBody::new(body, site.max_body, site.times);
    let origin = Origin {
        peer: connection.peer.ip(),
        peer_value: &connection.peer_value,
        is_trusted: site.policy.trusts(connection.peer.ip()),
        client,
        is_tls: connection.is_tls,
        is_http1,
        host: &host,
    };
    let request = rewritten(parts, body, &site, &origin, upgrade.as_ref(), is_http1);
    let passed = match in_time(site.times.answer, sending.as_deref(), upstream.pass(request, manner)).await {
        Some(Ok(passed)) => Ok(passed),
        Some(Err(failed)) => Err(match sending.as_ref().map_or(Trouble::None, |sending| sending.trouble()) {
            Trouble::TooLarge => Problem::TooLarge,
            Trouble::Slow => Problem::Slow,
            Trouble::Gone => Problem::Malformed("The body of the request broke off."),
            Trouble::None => {
                let (Failed::Unreachable(why) | Failed::Broken(why)) = &failed;
                track.fails(why);
                Problem::Unreachable
            }
        }),
        None => {
            track.fails("no answer in time");
            Err(Problem::Late)
        }
    };
    let (mut response, lent) = match passed {
        Ok(passed) => passed,
        Err(problem) => return own(problem, is_grpc, track),
    };
    track.note(|entry| entry.server = Some(lent.server().to_string()));
    track.answered(response.status());
    permit.answered(|name| response.headers().get(name).map(HeaderValue::as_bytes));
    let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let agreed = fields::upgrade_of(response.headers()).filter(|_| is_switch);
    if response.headers().contains_key(header::TRANSFER_ENCODING) {
        // Where both are there, the length is not the one that was read by.
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    // Whatever the server speaks, this is what we do.
    *response.version_mut() = Version::HTTP_11;
    fields::strip_hop_by_hop(response.headers_mut(), &site.decisive);
    add_fields(response.headers_mut(), permit.headers());
    if permit.is_degraded() {
        response.headers_mut().insert("x-tollgate-degraded", HeaderValue::from_static("true"));
    }
    let mut carried =
        Box::new(Carried { held: Held { permit: Some(permit), lent: Some(lent) }, track, progress: None });
    match (agreed, client_end) {
        (Some(protocol), Some(client)) => {
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(header::UPGRADE, protocol);
            let server = tunnel::server_end(&mut response);
            // From here on it is not HTTP that comes from the client.
            connection.doing.is_upgraded.store(true, Ordering::Release);
            tokio::spawn(tunnel::connect(Ends { client, server }, carried, site.times.idle));
            response.map(|_| AnswerBody::none())
        }
        // Nobody has asked for it.
        _ if is_switch => {
            carried.track.fails("the server changed its protocol, and nobody had asked it to");
            own(Problem::Unreachable, is_grpc, carried.track)
        }
        _ => response.map(|body| AnswerBody::passed(body, site.times.answer, carried)),
    }
}

/// Waits for an answer, from when the server could have begun with it: while a client still sends its request, only the
/// client is being waited for, and that has its own patience.
async fn in_time<T>(
    patience: Duration,
    sending: Option<&Sending>,
    answer: impl Future<Output = T>,
) -> Option<T> {
    let mut answer = pin!(answer);
    let mut since = Instant::now();
    loop {
        if let Ok(answer) = timeout_at(since + patience, answer.as_mut()).await {
            return Some(answer);
        }
        since = sending.map(Sending::server_waits_since).filter(|later| *later > since)?;
    }
}

/// What the gateway itself has to say.
fn own(problem: Problem, is_grpc: bool, mut track: Track) -> Response<AnswerBody> {
    track.note(|entry| {
        entry.error.get_or_insert_with(|| problem.name().to_owned());
    });
    text(if is_grpc { problem.grpc_answer() } else { problem.answer() }, track)
}

fn text(response: Response<Bytes>, mut track: Track) -> Response<AnswerBody> {
    track.answered(response.status());
    response.map(|text| AnswerBody::text(text, track))
}

fn note_decision(track: &mut Track, permit: &Permit<AnyStore>) {
    track.note(|entry| {
        let decision = permit.decision();
        entry.verdict = "passed";
        entry.class = Some(decision.class);
        entry.plan = decision.plan;
        entry.degraded = decision.degraded;
    });
}

/// The host that was asked for: a target that names one goes before the field.
fn host_of(parts: &http::request::Parts) -> &str {
    match parts.uri.authority() {
        Some(authority) => authority.as_str(),
        None => parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    }
}

/// Whether it is a request that everybody reads alike.
fn check(parts: &http::request::Parts) -> Result<(), Problem> {
    if parts.method == Method::CONNECT {
        return Err(Problem::NoTunnel);
    }
    let hosts = parts.headers.get_all(header::HOST).iter().count();
    match parts.version {
        Version::HTTP_11 if hosts != 1 => {
            return Err(Problem::Malformed("A request has one Host, no more and no less."));
        }
        _ if hosts > 1 => return Err(Problem::Malformed("A request has no more than one Host.")),
        _ => {}
    }
    // The guard has seen to it in HTTP/1; HTTP/2 has its own lengths, but who is behind us may not speak it.
    if parts.headers.get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Problem::Malformed("A request has no more than one Content-Length."));
    }
    if parts.uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err(Problem::Malformed("The target of a request names no user."));
    }
    if let (Some(authority), Some(host)) = (parts.uri.authority(), parts.headers.get(header::HOST))
        && !authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes())
    {
        return Err(Problem::Malformed("The target of the request and its Host name different hosts."));
    }
    let named = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    let mut hosts = parts.headers.get_all(header::HOST).iter().map(HeaderValue::as_bytes).chain(named);
    if !hosts.all(is_host) {
        return Err(Problem::Malformed("The host of the request is no name of a host."));
    }
    let path = parts.uri.path();
    let is_star = path == "*" && parts.method == Method::OPTIONS;
    if !path.starts_with('/') && !is_star {
        return Err(Problem::Malformed("The path of a request begins with a slash."));
    }
    // Some end a path at a NUL, and others read a backslash as a slash.
    let bytes = path.as_bytes();
    if bytes.contains(&b'\\')
        || bytes.windows(3).any(|three| three == b"%00" || three.eq_ignore_ascii_case(b"%5c"))
    {
        return Err(Problem::Malformed(
            "The path of the request has a character that is read differently by different servers.",
        ));
    }
    Ok(())
}

/// Whether it may be the name of a host, with or without a port. With a user before it, it is none.
fn is_host(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:[]%".contains(byte))
}

fn is_larger(headers: &http::HeaderMap, most: Option<u64>) -> bool {
    let length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    length.zip(most).is_some_and(|(length, most)| length > most)
}

/// Not so gRPC-Web, which is made for HTTP/1.1.
fn is_grpc(headers: &http::HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// The request as the server gets it: the same target to the byte, without what was for us, with what we say.
fn rewritten(
    parts: http::request::Parts,
    body: AskedBody,
    site: &Site,
    origin: &Origin<'_>,
    upgrade: Option<&HeaderValue>,
    is_http1: bool,
) -> Request<AskedBody> {
    let mut headers = parts.headers;
    fields::strip_hop_by_hop(&mut headers, &site.decisive);
    fields::strip_words(&mut headers, &site.policy, &site.decisive, origin.is_trusted);
    fields::keep_trailers(&mut headers);
    // What the client waits for before it sends its body is ours to say.
    headers.remove(header::EXPECT);
    if !is_http1 {
        fields::join_cookies(&mut headers);
    }
    fields::forward(&mut headers, origin);
    if let Ok(host) = HeaderValue::from_str(origin.host)
        && !host.is_empty()
    {
        headers.insert(header::HOST, host);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade.clone());
    }
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = target_of(parts.uri);
    *request.headers_mut() = headers;
    request
}

/// The path and the query alone.
fn target_of(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    let target = uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(target)
}
