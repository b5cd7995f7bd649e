//! The whole path of a request through the gateway, on one screen.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::Guard;
use bytes::Bytes;
use http::header::{self, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::Body;
use memchr::{memchr, memchr2, memrchr};
use tokio::time::Instant;
use tollgate::tower::{InMap, add_fields, refused};
use tollgate::{Facts, Permit, Refusal};
use tollgate_core::answer::{Answer, Fields, HeadLines};
use tollgate_core::policy::Policy;

use super::Worker;
use super::body::{AnswerBody, AskedBody, AskingBody, Carried, PassedBody, Sending, Trouble};
use super::connection::Connection;
use super::doing::Doing;
use super::fields::{self, Origin};
use super::pool::{Attempt, Failed, Manner};
use super::problem::Problem;
use super::site::Site;
use super::track::Track;
use super::tunnel::Tunnel;
use crate::store::AnyStore;

/// Tells in an answer that something was decided without the store.
const DEGRADED: &str = "x-tollgate-degraded";

/// What is given to HTTP/2 at once. How fast a client takes its answer is seen when it takes the next piece.
const HTTP2_PIECE: usize = 16 << 10;

/// The answer to a request: made at once, or on its way.
#[allow(
    clippy::large_enum_variant,
    reason = "refusals are the smaller for it, and each connection has room for one"
)]
pub(super) enum Answering {
    Now(Option<Response<AnswerBody>>),
    Later(Pin<Box<dyn Future<Output = Response<AnswerBody>> + Send>>),
}

impl Future for Answering {
    type Output = Result<Response<AnswerBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Now(answer) => answer.take().map_or(Poll::Pending, |answer| Poll::Ready(Ok(answer))),
            Self::Later(answer) => answer.as_mut().poll(context).map(Ok),
        }
    }
}

/// Answers a request: by the service behind the gateway, or in its place. Nothing that is only needed to pass it on is made
/// before it may pass.
pub(super) fn answer(
    worker: &Arc<Worker>,
    connection: &Arc<Connection>,
    request: Request<AskingBody>,
) -> Answering {
    let shared = &worker.shared;
    let mut track = Track::begin(&shared.watch, &connection.doing);
    // One policy for the whole request, whatever is loaded meanwhile.
    let site = shared.site.load();
    let headers = InMap(request.headers());
    let facts = facts_of(request.method(), request.uri(), &headers, connection);
    let client = site.policy.client_address(&facts).unwrap_or_else(|| connection.peer.ip());
    track.asked(facts.method, facts.path, Some(client));
    let gateway = site.policy.gateway();
    let checked = check(&request, gateway.encoded_slashes)
        .and_then(|()| check_trace(request.method(), gateway.allow_trace))
        .and_then(|()| check_host_known(facts.host, &site.policy));
    if let Err(problem) = checked {
        let mut answer = own(problem, is_grpc(request.headers()), track);
        // Who sends such things may mean something else by what follows, too.
        fields::close(&mut answer, request.version());
        return Answering::Now(Some(answer));
    }
    let admitted = shared.limiter.admit_at_once(&facts);
    match &admitted {
        Some(Err(refusal)) => {
            track.rejected(refusal, || shared.limiter.caller(&facts));
            return Answering::Now(Some(refuse(refusal, &request, track)));
        }
        Some(Ok(permit)) => track.passed(permit, || shared.limiter.caller(&facts)),
        None => {}
    }
    let upstream = site.policy.upstream_of(&facts);
    let since = track.begun();
    let asked = Asked {
        worker: Arc::clone(worker),
        connection: Arc::clone(connection),
        site: Guard::into_inner(site),
        client,
        request,
        track,
    };
    match admitted {
        Some(Ok(permit)) => match asked.passes(permit, upstream, since) {
            Ok(passing) => Answering::Later(Box::pin(passing.on())),
            Err(answer) => Answering::Now(Some(*answer)),
        },
        _ => Answering::Later(Box::pin(asked.admit())),
    }
}

/// A request that has yet to be decided about.
struct Asked {
    worker: Arc<Worker>,
    connection: Arc<Connection>,
    site: Arc<Site>,
    client: std::net::IpAddr,
    request: Request<AskingBody>,
    track: Track,
}

/// A request that may pass, as the server gets it.
struct Passing {
    connection: Arc<Connection>,
    site: Arc<Site>,
    /// Which of the site's upstreams it is for.
    upstream: usize,
    request: Request<AskedBody>,
    manner: Manner,
    sending: Option<Arc<Sending>>,
    /// Whether its client speaks HTTP/1.
    is_http1: bool,
    /// Whether its client can make use of informational responses.
    is_http11: bool,
    permit: Permit<AnyStore>,
    track: Track,
}

impl Asked {
    /// Waits for a store that takes its time.
    async fn admit(mut self) -> Response<AnswerBody> {
        let headers = InMap(self.request.headers());
        let facts = facts_of(self.request.method(), self.request.uri(), &headers, &self.connection);
        let limiter = &self.worker.shared.limiter;
        let admitted = limiter.admit(&facts).await;
        let upstream = self.site.policy.upstream_of(&facts);
        let permit = match admitted {
            Ok(permit) => permit,
            Err(refusal) => {
                self.track.rejected(&refusal, || limiter.caller(&facts));
                return refuse(&refusal, &self.request, self.track);
            }
        };
        self.track.passed(&permit, || limiter.caller(&facts));
        match self.passes(permit, upstream, Instant::now()) {
            Ok(passing) => passing.on().await,
            Err(answer) => *answer,
        }
    }

    /// Makes ready what may pass, for this of the site's upstreams. An error is an answer in the place of the service.
    fn passes(
        self,
        permit: Permit<AnyStore>,
        upstream: Option<usize>,
        now: Instant,
    ) -> Result<Passing, Box<Response<AnswerBody>>> {
        let Self { worker, connection, site, client, request, mut track } = self;
        let is_grpc = is_grpc(request.headers());
        let found = upstream.and_then(|at| Some((at, site.upstreams.get(at)?)));
        let Some((at, upstream)) = found else {
            // Where there is none at all, that is not the client's mistake.
            let is_ours = site.upstreams.is_empty();
            let problem = if is_ours { Problem::Unreachable } else { Problem::NoUpstream };
            return Err(Box::new(own(problem, is_grpc, track)));
        };
        track.note(|entry| entry.upstream = Some(Arc::clone(&upstream.policy.name)));
        if !request.body().is_end_stream() && is_larger(request.headers(), site.max_body) {
            return Err(Box::new(own(Problem::TooLarge, is_grpc, track)));
        }
        let is_http11 = request.version() == Version::HTTP_11;
        let upgrade = if is_http11 { fields::upgrade_of(request.headers()) } else { None };
        let manner = Manner {
            worker: worker.number,
            is_grpc,
            is_upgrade: upgrade.is_some(),
            connect_timeout: site.times.connect,
            queue_timeout: site.times.queue,
            now,
        };
        let (parts, body) = request.into_parts();
        let (body, sending) = AskedBody::new(body, &site);
        let peer = connection.peer.ip();
        let is_http1 = parts.version < Version::HTTP_2;
        let origin = Origin {
            peer,
            peer_value: &connection.peer_value,
            is_trusted: !connection.is_peer_alone && site.policy.trusts(peer),
            client,
            is_tls: connection.is_tls,
            is_http1,
        };
        let request = rewritten(parts, body, &site, &origin, upgrade);
        Ok(Passing {
            upstream: at,
            connection,
            site,
            request,
            manner,
            sending,
            is_http1,
            is_http11,
            permit,
            track,
        })
    }
}

impl Passing {
    /// Passes it on, and the answer back.
    async fn on(mut self) -> Response<AnswerBody> {
        let is_grpc = self.manner.is_grpc;
        let Some(upstream) = self.site.upstreams.get(self.upstream) else {
            return own(Problem::Unreachable, is_grpc, self.track);
        };
        let delay = self.permit.delay();
        if !delay.is_zero() {
            Box::pin(tokio::time::sleep(delay)).await;
            self.manner.now = Instant::now();
        }
        if self.sending.is_none() {
            self.permit.waits();
        }
        let mut track = self.track;
        // HTTP/1.0 knows no informational responses.
        let interim = (&self.connection.doing.interim, &self.site.decisive);
        let (attempt, mut is_again) = (Attempt::new(self.is_http11.then_some(interim)), false);
        let passed = loop {
            let passed = pin!(upstream.pass(&mut self.request, self.manner, &attempt));
            let (patience, doing) = (self.site.times.answer, &self.connection.doing);
            let sending = self.sending.as_deref();
            let passed = in_time(patience, self.manner.now, sending, &attempt, doing, passed).await;
            let is_short = matches!(passed, Some(Err(Failed::NoFiles(_))));
            if is_again || !is_short || !self.site.close_idle() {
                break passed;
            }
            is_again = true;
        };
        let server = attempt.server().and_then(|at| upstream.servers.get(at));
        track.note(|entry| entry.server = server.map(|server| server.address.to_string()));
        let trouble = || self.sending.as_ref().map_or(Trouble::None, |sending| sending.trouble());
        let (mut response, lent) = match passed {
            Some(Ok(passed)) => passed,
            Some(Err(failed)) => {
                let problem = match trouble() {
                    Trouble::TooLarge => Problem::TooLarge,
                    Trouble::Slow => Problem::Slow,
                    Trouble::Gone => return gone(is_grpc, track),
                    Trouble::Malformed => Problem::Malformed("The body of the request is no HTTP."),
                    Trouble::None => match &failed {
                        Failed::Unreachable(why) | Failed::NoFiles(why) | Failed::Broken(why) => {
                            track.fails(why);
                            Problem::Unreachable
                        }
                        // The server has failed at nothing: it was not asked.
                        Failed::Busy(busy) => Problem::Busy(*busy),
                    },
                };
                return own(problem, is_grpc, track);
            }
            None => {
                self.permit.gave_up();
                track.fails("no answer in time");
                return own(Problem::Late, is_grpc, track);
            }
        };
        let (permit, site) = (self.permit, self.site);
        track.answered(response.status());
        permit.answered(|name| response.headers().get(name).map(HeaderValue::as_bytes));
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let agreed = if is_switch { fields::upgrade_of(response.headers()) } else { None };
        // Whatever the server speaks, this is what we do.
        *response.version_mut() = Version::HTTP_11;
        fields::strip_answer(response.headers_mut(), &site.decisive);
        let is_yet_to_tell = self.is_http1 && !fields::has_ours(response.headers());
        if !is_yet_to_tell {
            // Our word, whoever else says it.
            response.headers_mut().remove(DEGRADED);
            add_fields(response.headers_mut(), permit.headers());
        }
        if permit.is_degraded() {
            response.headers_mut().insert(DEGRADED, HeaderValue::from_static("true"));
        }
        let mut carried = Carried { permit, lent, track };
        if !is_switch {
            let (patience, sending) = (site.times.answer, self.sending);
            let most = if self.is_http1 { usize::MAX } else { HTTP2_PIECE };
            return response
                .map(|body| AnswerBody::passed(body, most, patience, sending, carried, is_yet_to_tell));
        }
        let (mut parts, body) = response.into_parts();
        let server = match body {
            PassedBody::Http1(body) if self.manner.is_upgrade => body.into_wire(),
            _ => None,
        };
        let (Some(protocol), Some(server)) = (agreed, server) else {
            carried.track.fails("the server changed its protocol, and nobody had asked it to");
            return own(Problem::Unreachable, is_grpc, carried.track);
        };
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        parts.headers.insert(header::UPGRADE, protocol);
        let mut lines = HeadLines::default();
        if is_yet_to_tell {
            carried.permit.add_headers(&mut lines);
        }
        let tunnel = Tunnel { server, carried, patience: site.times.idle };
        Response::from_parts(parts, AnswerBody::tunnel(tunnel).with_lines(lines))
    }
}

/// What a policy may ask of a request.
fn facts_of<'r>(
    method: &'r Method,
    uri: &'r Uri,
    headers: &'r InMap<'r>,
    connection: &'r Connection,
) -> Facts<'r> {
    Facts {
        method: method.as_str(),
        path: uri.path(),
        query: uri.query().unwrap_or_default(),
        host: host_of(uri, headers.0),
        peer: Some(connection.peer.ip()),
        is_peer_alone: connection.is_peer_alone,
        tls_client: connection.tls_client.as_deref(),
        headers,
        ..Facts::default()
    }
}

/// Waits for an answer, from when the server could have begun with it: while a client still sends its request, only the
/// client is being waited for, and that has its own patience. So has a request that waits in the queue for a connection.
async fn in_time<T>(
    patience: Duration,
    mut since: Instant,
    sending: Option<&Sending>,
    attempt: &Attempt<'_>,
    doing: &Doing,
    mut answer: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    let mut watching = doing.alarm();
    poll_fn(|context| {
        if let Poll::Ready(answer) = answer.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        while watching.alarm.rings(since + patience, context) {
            let later = sending.map(Sending::server_waits_since).max(attempt.left_queue());
            match later.filter(|later| *later > since) {
                Some(later) => since = later,
                None => return Poll::Ready(None),
            }
        }
        Poll::Pending
    })
    .await
}

/// What the gateway itself has to say.
fn own(problem: Problem, is_grpc: bool, mut track: Track) -> Response<AnswerBody> {
    track.note(|entry| {
        entry.error.get_or_insert_with(|| problem.name().to_owned());
    });
    text(if is_grpc { problem.grpc_answer() } else { problem.answer() }, track)
}

/// What is said to a client that went away in the middle of its request, should it still listen. For the log there was no answer.
fn gone(is_grpc: bool, mut track: Track) -> Response<AnswerBody> {
    track.note(|entry| entry.error = Some("the client went away in the middle of its request".to_owned()));
    let problem = Problem::Malformed("The body of the request broke off.");
    let answer = if is_grpc { problem.grpc_answer() } else { problem.answer() };
    answer.map(|text| AnswerBody::text(text, track))
}

/// What the limiters have to say.
fn refuse<B>(refusal: &Refusal, request: &Request<B>, track: Track) -> Response<AnswerBody> {
    let (headers, path) = (request.headers(), request.uri().path());
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
    if request.version() >= Version::HTTP_2 || is_grpc {
        let mut response = refused(refusal, headers, path).map(Bytes::from);
        if refusal.is_degraded() {
            response.headers_mut().insert(DEGRADED, HeaderValue::from_static("true"));
        }
        return text(response, track);
    }
    // The same, without a map of fields that nobody looks at any more.
    let accept = fields::joined(headers, &header::ACCEPT);
    let mut answer: Answer<HeadLines> = refusal.answer_in(accept.as_deref(), path);
    answer.headers.add_fixed("content-type", answer.content_type);
    if refusal.is_degraded() {
        answer.headers.add_fixed(DEGRADED, "true");
    }
    let mut response = Response::new(Bytes::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
    text(response, track).map(|body| body.with_lines(answer.headers))
}

fn text(response: Response<Bytes>, mut track: Track) -> Response<AnswerBody> {
    track.answered(response.status());
    response.map(|text| AnswerBody::text(text, track))
}

/// The host that was asked for: a target that names one goes before the field.
fn host_of<'r>(uri: &'r Uri, headers: &'r http::HeaderMap) -> &'r str {
    match uri.authority() {
        Some(authority) => authority.as_str(),
        None => headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default(),
    }
}

/// Rejects a request without a host where the policy depends on it. Only HTTP/1.0 allows such requests, and they would match no
/// limiter for a host.
fn check_host_known(host: &str, policy: &Policy) -> Result<(), Problem> {
    match host.is_empty() && policy.depends_on_host() {
        true => Err(Problem::Malformed("The request has no Host, and this service needs one.")),
        false => Ok(()),
    }
}

/// Rejects TRACE, which has a server send back the request with whatever proxies have added to it.
fn check_trace(method: &Method, is_allowed: bool) -> Result<(), Problem> {
    if *method == Method::TRACE && !is_allowed { Err(Problem::NoTrace) } else { Ok(()) }
}

/// Whether it is a request that everybody reads alike.
pub(super) fn check<B>(request: &Request<B>, may_have_slashes: bool) -> Result<(), Problem> {
    if request.method() == Method::CONNECT {
        return Err(Problem::NoTunnel);
    }
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().map(HeaderValue::as_bytes);
    let has_more = hosts.next().is_some();
    // An empty field names no host either.
    let has_host = host.is_some_and(|host| !host.is_empty());
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    match request.version() {
        Version::HTTP_2 if authority.is_none() && !has_host => {
            return Err(Problem::Malformed("A request names the host that it is for."));
        }
        Version::HTTP_11 if !has_host || has_more => {
            return Err(Problem::Malformed(
                "A request has one Host, no more and no less, which is not empty.",
            ));
        }
        _ if has_more => return Err(Problem::Malformed("A request has no more than one Host.")),
        _ => {}
    }
    // In HTTP/1 such a head is none; HTTP/2 has its own lengths, but who is behind us may not speak it.
    if request.headers().get_all(header::CONTENT_LENGTH).iter().nth(1).is_some() {
        return Err(Problem::Malformed("A request has no more than one Content-Length."));
    }
    if request.uri().scheme_str().is_some_and(|scheme| !matches!(scheme, "http" | "https")) {
        return Err(Problem::Malformed("The target of a request is of http or https."));
    }
    if authority.is_some_and(|authority| authority.contains(&b'@')) {
        return Err(Problem::Malformed("The target of a request names no user."));
    }
    if let (Some(authority), Some(host)) = (authority, host)
        && !is_same_host(authority, host, request.uri().scheme_str())
    {
        return Err(Problem::Malformed("The target of the request and its Host name different hosts."));
    }
    if !host.filter(|_| has_host).into_iter().chain(authority).all(is_host) {
        return Err(Problem::Malformed("The host of the request is no name of a host."));
    }
    let path = request.uri().path();
    let is_star = path == "*" && request.method() == Method::OPTIONS;
    if !path.starts_with('/') && !is_star {
        return Err(Problem::Malformed("The path of a request begins with a slash."));
    }
    // Some end a path at a NUL, and others read a backslash as a slash.
    let bytes = path.as_bytes();
    let is_suspect = memchr2(b'\\', b'%', bytes).is_some();
    if is_suspect
        && (bytes.contains(&b'\\')
            || bytes.windows(3).any(|three| three == b"%00" || three.eq_ignore_ascii_case(b"%5c")))
    {
        return Err(Problem::Malformed(
            "The path of the request has a character that is read differently by different servers.",
        ));
    }
    // To some servers it is a slash, and what is behind it another path than the one that limiters have seen.
    if is_suspect && !may_have_slashes && bytes.windows(3).any(|three| three.eq_ignore_ascii_case(b"%2f")) {
        return Err(Problem::Malformed(
            "The path of the request has an encoded slash (%2F), which this gateway does not pass on.",
        ));
    }
    Ok(())
}

/// A host without its port, and the port, if there is one. The colons of an address in brackets belong to the address.
fn split_port(host: &[u8]) -> (&[u8], Option<&[u8]>) {
    let ends = if host.first() == Some(&b'[') { memrchr(b']', host).unwrap_or_default() } else { 0 };
    let colon = host.get(ends..).and_then(|after| memchr(b':', after)).map(|at| ends + at);
    match colon.and_then(|at| host.split_at_checked(at)) {
        Some((name, port)) => (name, port.get(1..)),
        None => (host, None),
    }
}

/// Whether both name the same host. No port, an empty one, and the usual one of the scheme are the same.
fn is_same_host(one: &[u8], other: &[u8], scheme: Option<&str>) -> bool {
    let usual: &[u8] = if scheme == Some("https") { b"443" } else { b"80" };
    let is_usual = |port: Option<&[u8]>| port.is_none_or(|port| port.is_empty() || port == usual);
    let ((name, port), (other_name, other_port)) = (split_port(one), split_port(other));
    name.eq_ignore_ascii_case(other_name) && (port == other_port || is_usual(port) && is_usual(other_port))
}

/// Whether it may be the name of a host, with or without a port. With a user before it, it is none.
fn is_host(text: &[u8]) -> bool {
    let (name, port) = split_port(text);
    !name.is_empty() && port.unwrap_or_default().iter().all(u8::is_ascii_digit) && text.iter().all(|byte| {
        matches!(
            byte,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\''
                | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'[' | b']' | b'%'
        )
    })
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
    upgrade: Option<HeaderValue>,
) -> Request<AskedBody> {
    let mut headers = parts.headers;
    fields::strip_asked(&mut headers, &site.decisive);
    fields::strip_words(&mut headers, &site.policy, &site.decisive, origin.is_trusted);
    if parts.version >= Version::HTTP_2 {
        fields::join_cookies(&mut headers);
    }
    // A target that names a host goes before the field, and is left out of what is passed on.
    if let Some(host) = parts.uri.authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        headers.insert(header::HOST, host);
    }
    // HTTP/1.1 needs the field. Where no host is known it is empty (RFC 9112, 3.2): the address of the server, which is internal,
    // is not what the client asked for.
    headers.entry(header::HOST).or_insert(HeaderValue::from_static(""));
    fields::forward(&mut headers, origin, site.policy.gateway().added_headers);
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
    let mut request = Request::new(body);
    *request.method_mut() = parts.method;
    *request.uri_mut() = target_of(parts.uri);
    *request.headers_mut() = headers;
    request
}

/// The path and the query alone. A target that names a host may have no path, which is the same as a slash.
pub(super) fn target_of(uri: Uri) -> Uri {
    if uri.authority().is_none() {
        return uri;
    }
    let target = uri.into_parts().path_and_query.unwrap_or_else(|| PathAndQuery::from_static("/"));
    if target.as_str().starts_with('/') || target == "*" {
        return Uri::from(target);
    }
    PathAndQuery::try_from(format!("/{}", target.as_str())).map(Uri::from).unwrap_or_default()
}
