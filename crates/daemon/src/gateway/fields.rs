//! Fields of requests and answers on their way through: what is for us alone stays here, what we say is ours to say.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, Version};
use tollgate_core::policy::address::AddressHeader;
use tollgate_core::policy::{AddedHeaders, Policy};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Fields that are for one connection, and not for who is behind it.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-connection"
            | "transfer-encoding"
            | "upgrade"
            | "proxy-authenticate"
            | "proxy-authorization"
    )
}

/// Takes out of a request what is for us alone.
pub(super) fn strip_asked(headers: &mut HeaderMap, decisive: &HashSet<HeaderName>) {
    let is_for_us = |name: &HeaderName| is_hop_by_hop(name) || *name == header::TE || *name == header::EXPECT;
    // One look at all of them costs less than to ask for each that most requests have not.
    if headers.keys().any(is_for_us) {
        strip_hop_by_hop(headers, decisive);
        keep_trailers(headers);
        // What the client waits for before it sends its body is ours to say.
        headers.remove(header::EXPECT);
    }
}

/// Takes out of an answer what is for us alone.
pub(super) fn strip_answer(headers: &mut HeaderMap, decisive: &HashSet<HeaderName>) {
    if headers.keys().any(is_hop_by_hop) {
        if headers.contains_key(header::TRANSFER_ENCODING) {
            // Where both are there, the length is not the one that was read by.
            headers.remove(header::CONTENT_LENGTH);
        }
        strip_hop_by_hop(headers, decisive);
    }
}

/// Takes out what is for one connection, also what `Connection` names. What matters to others it cannot name away, nor what
/// was decisive here.
fn strip_hop_by_hop(headers: &mut HeaderMap, decisive: &HashSet<HeaderName>) {
    let mut connection = headers.get_all(header::CONNECTION).iter().map(HeaderValue::as_bytes);
    // The word that is said most names nothing that does not go anyway.
    if !connection.all(|named| named.eq_ignore_ascii_case(b"keep-alive")) {
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
            .filter(|name| !is_end_to_end(name) && !decisive.contains(name))
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    remove_those(headers, is_hop_by_hop);
}

/// Fields that are for who is behind the connection, whatever `Connection` says.
fn is_end_to_end(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded-")
        || name.starts_with("x-ratelimit-")
        || name.starts_with("ratelimit")
        || matches!(
            name,
            "forwarded"
                | "x-real-ip"
                | "host"
                | "authorization"
                | "cookie"
                | "content-length"
                | "content-type"
                | "retry-after"
                | "via"
                | "te"
        )
}

/// Takes out what only we say, what looks like it, and what a peer that is not trusted says of whom it speaks for.
pub(super) fn strip_words(
    headers: &mut HeaderMap,
    policy: &Policy,
    decisive: &HashSet<HeaderName>,
    is_trusted: bool,
) {
    remove_those(headers, |name| {
        is_ours(name.as_str())
            || *name == "proxy"
            || is_look_alike(name, policy, decisive)
            || !is_trusted && is_word_of_proxies(name, policy)
    });
}

/// What proxies say of those whom they speak for, but for what is made anew in any case.
fn is_word_of_proxies(name: &HeaderName, policy: &Policy) -> bool {
    let name = name.as_str();
    let is_address = || matches!(policy.address_header(), AddressHeader::Named(header) if **header == *name);
    let is_word = name.starts_with("x-forwarded-")
        || name.starts_with("x-envoy-")
        || matches!(
            name,
            "forwarded"
                | "x-forwarded"
                | "x-real-ip"
                | "front-end-https"
                | "true-client-ip"
                | "x-client-ip"
                | "x-cluster-client-ip"
                | "cf-connecting-ip"
                | "fastly-client-ip"
                | "fly-client-ip"
                | "x-original-url"
                | "x-original-uri"
                | "x-original-method"
                | "x-original-host"
                | "x-original-forwarded-for"
                | "x-rewrite-url"
        );
    is_word || is_address()
}

fn is_ours(name: &str) -> bool {
    match name.as_bytes().first() {
        Some(b'r') => name == "ratelimit" || name.starts_with("ratelimit-"),
        Some(b'x') => {
            name.starts_with("x-ratelimit-")
                || name == "x-envoy-ratelimited"
                || name.starts_with("x-tollgate-")
        }
        _ => false,
    }
}

/// Whether a server says itself what else only we say.
pub(super) fn has_ours(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| is_ours(name.as_str()))
}

/// Names that servers with variables for headers (CGI, WSGI) cannot tell from names that matter: to them
/// `x_forwarded_for` is `x-forwarded-for`.
fn is_look_alike(name: &HeaderName, policy: &Policy, decisive: &HashSet<HeaderName>) -> bool {
    name.as_str().contains('_') && {
        let meant = name.as_str().replace('_', "-");
        let is_address = matches!(policy.address_header(), AddressHeader::Named(name) if **name == meant);
        is_address
            || HeaderName::try_from(meant).is_ok_and(|meant| matters(&meant) || decisive.contains(&meant))
    }
}

/// Takes out of what follows the body of a request all that is decided before it.
pub(super) fn strip_trailers(trailers: &mut HeaderMap, policy: &Policy, decisive: &HashSet<HeaderName>) {
    remove_those(trailers, |name| {
        matters(name)
            || decisive.contains(name)
            || is_look_alike(name, policy, decisive)
            || is_word_of_proxies(name, policy)
    });
}

/// Takes out of what follows the body of an answer what was said before it, and how it was sent.
pub(super) fn strip_answer_trailers(trailers: &mut HeaderMap) {
    remove_those(trailers, |name| {
        is_ours(name.as_str())
            || is_hop_by_hop(name)
            || *name == header::CONTENT_LENGTH
            || *name == header::HOST
    });
}

/// Takes out of an informational response what is for us alone, or is ours to say.
pub(super) fn strip_interim(headers: &mut HeaderMap, decisive: &HashSet<HeaderName>) {
    strip_answer(headers, decisive);
    remove_those(headers, |name| is_ours(name.as_str()) || *name == header::CONTENT_LENGTH);
}

fn matters(name: &HeaderName) -> bool {
    is_ours(name.as_str()) || is_end_to_end(name) || is_hop_by_hop(name)
}

fn remove_those(headers: &mut HeaderMap, which: impl Fn(&HeaderName) -> bool) {
    let Some(first) = headers.keys().find(|name| which(name)).cloned() else { return };
    headers.remove(first);
    // There is hardly ever another.
    let others: Vec<HeaderName> = headers.keys().filter(|name| which(name)).cloned().collect();
    for name in others {
        headers.remove(name);
    }
}

/// Whose request it is, for who is behind us.
pub(super) struct Origin<'o> {
    /// Who is at the other end of the connection.
    pub(super) peer: IpAddr,
    /// The same, as a field has it.
    pub(super) peer_value: &'o HeaderValue,
    /// Whether its word is taken.
    pub(super) is_trusted: bool,
    /// The client, as far as is known.
    pub(super) client: IpAddr,
    pub(super) is_tls: bool,
    pub(super) is_http1: bool,
}

/// Says on whose behalf the request is made, to the host that its field names. What a peer says of itself is passed on only
/// if it is trusted. Three headers are added, and others only if the policy asks for them: some servers take no more than 100.
pub(super) fn forward(headers: &mut HeaderMap, origin: &Origin<'_>, added: AddedHeaders) {
    let peer = origin.peer_value.clone();
    let proto = HeaderValue::from_static(if origin.is_tls { "https" } else { "http" });
    if !origin.is_trusted {
        headers.insert(X_FORWARDED_FOR, peer);
        headers.insert(X_FORWARDED_PROTO, proto);
        set_host(headers);
    } else {
        match joined(headers, &X_FORWARDED_FOR) {
            Some(before) => {
                let mut all = before;
                all.extend_from_slice(b", ");
                all.extend_from_slice(peer.as_bytes());
                let all = HeaderValue::from_bytes(&all).unwrap_or(peer);
                headers.insert(X_FORWARDED_FOR, all);
            }
            None => drop(headers.insert(X_FORWARDED_FOR, peer)),
        }
        if !headers.contains_key(X_FORWARDED_PROTO) {
            headers.insert(X_FORWARDED_PROTO, proto);
        }
        if !headers.contains_key(X_FORWARDED_HOST) {
            set_host(headers);
        }
        if headers.contains_key(header::FORWARDED)
            && let Ok(element) = HeaderValue::from_str(&forwarded(headers, origin))
        {
            headers.append(header::FORWARDED, element);
        }
    }
    if added.real_ip {
        let is_peer = origin.client == origin.peer;
        let client = if is_peer { origin.peer_value.clone() } else { address_value(origin.client) };
        headers.insert(X_REAL_IP, client);
    }
    if added.via {
        let via = if origin.is_http1 { "1.1 tollgate" } else { "2.0 tollgate" };
        headers.append(header::VIA, HeaderValue::from_static(via));
    }
}

fn set_host(headers: &mut HeaderMap) {
    // Shares what the field has, which is neither copied nor checked again.
    match headers.get(header::HOST).filter(|host| !host.is_empty()).cloned() {
        Some(host) => drop(headers.insert(X_FORWARDED_HOST, host)),
        None => drop(headers.remove(X_FORWARDED_HOST)),
    }
}

/// An address as a field has it.
pub(super) fn address_value(address: IpAddr) -> HeaderValue {
    let mut text = String::with_capacity(45);
    let _ = write!(text, "{}", address.to_canonical());
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

/// An element of `Forwarded`.
fn forwarded(headers: &HeaderMap, origin: &Origin<'_>) -> String {
    let proto = if origin.is_tls { "https" } else { "http" };
    let node = match origin.peer.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("\"[{address}]\""),
    };
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    match headers.get(header::HOST).and_then(|host| host.to_str().ok()) {
        Some(host) if !host.is_empty() && host.chars().all(is_plain) => {
            format!("for={node};host=\"{host}\";proto={proto}")
        }
        _ => format!("for={node};proto={proto}"),
    }
}

/// All lines of a field as one.
pub(super) fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines: Vec<&[u8]> = headers.get_all(name).iter().map(HeaderValue::as_bytes).collect();
    (!lines.is_empty()).then(|| lines.join(&b", "[..]))
}

/// HTTP/2 may send a cookie in pieces; HTTP/1 has one line for all.
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    if headers.get_all(header::COOKIE).iter().nth(1).is_some() {
        let pieces: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
            headers.insert(header::COOKIE, whole);
        }
    }
}

/// Of `TE` only `trailers` is passed on: the codings are for one connection.
fn keep_trailers(headers: &mut HeaderMap) {
    if let Some(te) = joined(headers, &header::TE) {
        let asks =
            te.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(b"trailers"));
        match asks {
            true => drop(headers.insert(header::TE, HeaderValue::from_static("trailers"))),
            false => drop(headers.remove(header::TE)),
        }
    }
}

/// The protocol that a request wants to change to, if it does. Another HTTP is none: its requests would pass by the
/// limiters.
pub(super) fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let wanted = headers.get(header::UPGRADE)?;
    let protocols = joined(headers, &header::UPGRADE)?.to_ascii_lowercase();
    let is_http =
        |name: &[u8]| [&b"h2"[..], b"h3", b"http", b"tls"].iter().any(|other| name.starts_with(other));
    if protocols.split(|byte| *byte == b',').any(|name| is_http(name.trim_ascii())) {
        return None;
    }
    let connection = joined(headers, &header::CONNECTION)?;
    let names = connection.split(|byte| *byte == b',');
    names.map(<[u8]>::trim_ascii).any(|name| name.eq_ignore_ascii_case(b"upgrade")).then(|| wanted.clone())
}

/// Says that this is the last answer of its connection, where that is said.
pub(super) fn close<B>(answer: &mut Response<B>, version: Version) {
    if version < Version::HTTP_2 {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn what_matters_to_others_cannot_be_named_away() {
        let mut headers = map(&[
            ("connection", "close, X-Forwarded-For, x-mine, ratelimit, Authorization, x-tenant"),
            ("x-tenant", "1"),
            ("x-forwarded-for", "1.1.1.1"),
            ("x-mine", "1"),
            ("ratelimit", "1"),
            ("authorization", "1"),
            ("keep-alive", "1"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
        ]);
        strip_hop_by_hop(&mut headers, &HashSet::from([HeaderName::from_static("x-tenant")]));
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["authorization", "ratelimit", "x-forwarded-for", "x-tenant"]);
    }

    #[test]
    fn what_only_we_say_is_not_taken_from_others() {
        let mut headers = map(&[
            ("ratelimit", "1"),
            ("ratelimit-policy", "1"),
            ("x-ratelimit-limit", "1"),
            ("x-envoy-ratelimited", "true"),
            ("x-tollgate-degraded", "1"),
            ("range", "1"),
            ("x-api-key", "1"),
        ]);
        strip_words(&mut headers, &Policy::read("limiters: {}").unwrap().0, &HashSet::new(), true);
        assert_eq!(headers.len(), 2);
    }

    fn forwarded_of(policy: &str, peer: &str, headers: &mut HeaderMap) {
        let (policy, _) = Policy::read(policy).unwrap();
        let peer = peer.parse().unwrap();
        let peer_value = &address_value(peer);
        let is_trusted = policy.trusts(peer);
        headers.insert(header::HOST, HeaderValue::from_static("api.example.com"));
        strip_words(headers, &policy, &HashSet::new(), is_trusted);
        let origin = Origin { peer, peer_value, is_trusted, client: peer, is_tls: true, is_http1: true };
        forward(headers, &origin, policy.gateway().added_headers);
    }

    /// Found with 95 headers from a client: with five of ours some servers answered 431.
    #[test]
    fn three_headers_are_added_unless_the_policy_asks_for_more() {
        let added = |policy: &str, headers: &[(&'static str, &'static str)]| {
            let mut headers = map(headers);
            forwarded_of(policy, "192.0.2.7", &mut headers);
            let mut names: Vec<String> = headers.keys().map(ToString::to_string).collect();
            names.sort_unstable();
            names.retain(|name| name != "host");
            names.join(" ")
        };
        let usual = "x-forwarded-for x-forwarded-host x-forwarded-proto";
        assert_eq!(added("limiters: {}", &[]), usual);
        // Nobody but a trusted peer is believed, also where we do not say it ourselves.
        assert_eq!(added("limiters: {}", &[("x-real-ip", "1.1.1.1")]), usual);
        let all = "limiters: {}\ngateway: { add_headers: [x-real-ip, via] }";
        assert_eq!(added(all, &[]), format!("via {usual} x-real-ip"));
        assert_eq!(added("limiters: {}\ngateway: { add_headers: via }", &[]), format!("via {usual}"));
    }

    #[test]
    fn an_unknown_peer_speaks_only_for_itself() {
        let mut headers = map(&[
            ("x-forwarded-for", "1.1.1.1"),
            ("forwarded", "for=1.1.1.1"),
            ("x-real-ip", "1.1.1.1"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-proto", "gopher"),
            ("cf-connecting-ip", "1.1.1.1"),
        ]);
        let policy = "limiters: {}\ntrusted_proxies: [10.0.0.0/8]\naddress_header: cf-connecting-ip\n\
                      gateway: { add_headers: [x-real-ip, via] }";
        forwarded_of(policy, "192.0.2.7", &mut headers);
        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-real-ip"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-host"], "api.example.com");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["via"], "1.1 tollgate");
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("cf-connecting-ip"));
    }

    #[test]
    fn a_proxy_of_ours_is_added_to_the_list() {
        let mut headers = map(&[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-proto", "http")]);
        headers.append("x-forwarded-for", HeaderValue::from_static("2.2.2.2"));
        headers.append("forwarded", HeaderValue::from_static("for=2.2.2.2"));
        forwarded_of("limiters: {}\ntrusted_proxies: [10.0.0.0/8]", "10.0.0.1", &mut headers);
        assert_eq!(joined(&headers, &X_FORWARDED_FOR).unwrap(), b"1.1.1.1, 2.2.2.2, 10.0.0.1");
        assert_eq!(headers["x-forwarded-proto"], "http");
        let forwarded = joined(&headers, &header::FORWARDED).unwrap();
        assert_eq!(forwarded, b"for=2.2.2.2, for=10.0.0.1;host=\"api.example.com\";proto=https");
    }

    #[test]
    fn pieces_of_cookies_are_one_line_and_of_te_only_trailers_stay() {
        let mut headers = map(&[("cookie", "a=1"), ("te", "gzip, Trailers")]);
        headers.append("cookie", HeaderValue::from_static("b=2"));
        join_cookies(&mut headers);
        keep_trailers(&mut headers);
        assert_eq!(
            (&headers["cookie"], &headers["te"]),
            (&HeaderValue::from_static("a=1; b=2"), &HeaderValue::from_static("trailers"))
        );
        let headers = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert_eq!(upgrade_of(&headers).unwrap(), "websocket");
        assert_eq!(upgrade_of(&map(&[("upgrade", "websocket")])), None);
    }
}
