//! Who is calling, and by which plan.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use hashbrown::Equivalent;
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use super::plan::Request;
use super::{Facts, Policy, Said, address};
use crate::time::Timestamp;

/// Where a name is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Header(String),
    Cookie(String),
    Query(String),
    /// A claim of a token that was verified.
    Jwt(String),
    /// The name in the client's certificate.
    TlsClient,
    Ip,
    /// The policy's own table, by the caller.
    Table,
}

/// How callers are told apart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Identify {
    /// The first that is present. The tag tells callers of different sources apart.
    pub(crate) caller: Vec<(Source, [u8; 4])>,
    pub(crate) plan: Vec<Source>,
    pub(crate) v6_prefix: u8,
}

/// Reads tokens that callers bring, and vouches for what they say.
pub trait Tokens: Send + Sync {
    /// A claim of the token of a request, if there is one that is valid now.
    fn claim(&self, facts: &Facts<'_>, claim: &str, now: Timestamp) -> Option<String>;

    /// Whether a request brings several tokens that are not the same: whoever reads it next may take another than we do.
    fn has_several(&self, facts: &Facts<'_>) -> bool {
        let _ = facts;
        false
    }
}

/// Believes no token.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoTokens;

impl Tokens for NoTokens {
    fn claim(&self, _: &Facts<'_>, _: &str, _: Timestamp) -> Option<String> {
        None
    }
}

/// Who is calling, as a policy tells callers apart. For logs: it says nothing of limits.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallerName {
    /// The request has none of what the policy tells callers apart by.
    Unknown,
    /// Known by its address; of an IPv6 address only the network that counts as one caller.
    Address(IpAddr),
    /// Known by what it sent: an API key, a session, the subject of a token. It may be a secret.
    Value(Box<[u8]>),
}

impl fmt::Debug for CallerName {
    /// Without the value, which may be a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "Unknown",
            Self::Address(_) => "Address(..)",
            Self::Value(_) => "Value(..)",
        })
    }
}

/// Who is calling. Without a tag, nobody in particular: those share a bucket that nobody else can get into.
#[derive(Clone)]
pub(crate) struct Caller<'f> {
    pub(crate) tag: [u8; 4],
    value: Value<'f>,
    /// The same as it was sent, where that is another spelling.
    sent: Option<&'f [u8]>,
    /// Which of the policy's sources it is known by.
    source: Option<usize>,
    /// Whether a source that goes before that one says several things.
    pub(crate) is_unclear: bool,
}

#[derive(Clone)]
enum Value<'f> {
    Text(Cow<'f, [u8]>),
    Address(SmallVec<[u8; 16]>),
}

/// A caller as lists and tables know it. An address is none that a header could pretend to be.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Named {
    pub(crate) is_address: bool,
    pub(crate) value: Vec<u8>,
}

impl fmt::Debug for Named {
    /// Callers are known by their keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").field("is_address", &self.is_address).finish_non_exhaustive()
    }
}

impl Named {
    /// As it is written in a policy.
    pub(crate) fn of(text: &str, v6_prefix: u8) -> Self {
        match text.parse::<IpAddr>() {
            Ok(ip) => Self { is_address: true, value: octets(address::subject(ip, v6_prefix)).to_vec() },
            Err(_) => Self { is_address: false, value: text.as_bytes().to_vec() },
        }
    }
}

/// The same, borrowed.
#[derive(Hash)]
pub(crate) struct NamedRef<'v> {
    is_address: bool,
    value: &'v [u8],
}

impl Equivalent<Named> for NamedRef<'_> {
    fn equivalent(&self, other: &Named) -> bool {
        self.is_address == other.is_address && self.value == other.value
    }
}

impl Caller<'_> {
    pub(crate) fn value(&self) -> &[u8] {
        match &self.value {
            Value::Text(text) => text,
            Value::Address(octets) => octets,
        }
    }

    /// Its name, if it has one that is no address: as it was sent, and as it is usually spelled.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let usual = match &self.value {
            Value::Text(text) if self.tag != ANONYMOUS => Some(&**text),
            _ => None,
        };
        self.sent.into_iter().chain(usual)
    }

    /// Whether it is known by its address.
    pub(crate) fn is_address(&self) -> bool {
        matches!(self.value, Value::Address(_))
    }

    /// Somebody of whom nothing is known.
    pub(crate) fn nobody() -> Self {
        let value = Value::Text(Cow::Borrowed(&b""[..]));
        Self { tag: ANONYMOUS, value, sent: None, source: None, is_unclear: false }
    }

    /// The same for logs.
    pub(crate) fn name(&self) -> CallerName {
        match &self.value {
            _ if self.is_nobody() => CallerName::Unknown,
            Value::Text(text) => CallerName::Value((&**text).into()),
            Value::Address(octets) => match (<[u8; 4]>::try_from(&**octets), <[u8; 16]>::try_from(&**octets))
            {
                (Ok(v4), _) => CallerName::Address(v4.into()),
                (_, Ok(v6)) => CallerName::Address(v6.into()),
                _ => CallerName::Unknown,
            },
        }
    }

    /// Whether nothing tells who is calling.
    pub(crate) fn is_nobody(&self) -> bool {
        self.tag == ANONYMOUS
    }

    /// The header that it is known by, and what that says. It came once.
    pub(crate) fn header<'c>(&'c self, identify: &'c Identify) -> Option<(&'c str, &'c [u8])> {
        match identify.caller.get(self.source?) {
            Some((Source::Header(name), _)) => Some((name, self.sent.unwrap_or_else(|| self.value()))),
            _ => None,
        }
    }

    /// As lists and tables know it: by what it has sent, or by how that is usually spelled.
    pub(crate) fn names(&self) -> impl Iterator<Item = NamedRef<'_>> {
        let usual = NamedRef { is_address: self.is_address(), value: self.value() };
        self.sent.map(|value| NamedRef { is_address: false, value }).into_iter().chain([usual])
    }
}

const ANONYMOUS: [u8; 4] = [0; 4];
const GIVEN: [u8; 4] = [1, 0, 0, 0];

impl Source {
    /// What tells callers of this source from those of others, whatever else the policy says.
    pub(crate) fn tag(&self) -> [u8; 4] {
        let (kind, name) = match self {
            Self::Header(name) => (2, name.as_str()),
            Self::Cookie(name) => (3, name.as_str()),
            Self::Query(name) => (4, name.as_str()),
            Self::Jwt(name) => (5, name.as_str()),
            Self::TlsClient => (6, ""),
            Self::Ip => (7, ""),
            Self::Table => (8, ""),
        };
        let mut hasher = SipHasher13::new();
        hasher.write(name.as_bytes());
        let [a, b, c, ..] = hasher.finish().to_le_bytes();
        [kind, a, b, c]
    }

    fn find<'f>(&self, facts: &Facts<'f>, tokens: &dyn Tokens, now: Timestamp) -> Said<Cow<'f, [u8]>> {
        let one = |value: Option<Cow<'f, [u8]>>| value.map_or(Said::Nothing, Said::One);
        let said = match self {
            Self::Header(name) => facts.said(name).map(|value| usual(name, value)),
            Self::Cookie(name) => cookie(facts, name).map(|value| decoded(value, false)),
            Self::Query(name) => query(facts.query, name),
            Self::Jwt(_) if tokens.has_several(facts) => Said::Several,
            Self::Jwt(claim) => {
                one(tokens.claim(facts, claim, now).map(|claim| Cow::Owned(claim.into_bytes())))
            }
            Self::TlsClient => one(facts.tls_client.map(|name| Cow::Borrowed(name.as_bytes()))),
            Self::Ip | Self::Table => Said::Nothing,
        };
        match said {
            Said::One(value) if value.is_empty() => Said::Nothing,
            said => said,
        }
    }
}

impl Source {
    /// What [`find`](Self::find) has spelled otherwise.
    fn as_sent<'f>(&self, facts: &Facts<'f>) -> Option<&'f [u8]> {
        match self {
            Self::Header(name) => facts.said(name).one(),
            Self::Cookie(name) => cookie(facts, name).one(),
            _ => None,
        }
    }
}

pub(crate) fn caller_of<'f>(
    identify: &Identify,
    facts: &Facts<'f>,
    address: Option<IpAddr>,
    tokens: &dyn Tokens,
    now: Timestamp,
) -> Caller<'f> {
    if let Some(given) = facts.caller.filter(|given| !given.is_empty()) {
        let value = Value::Text(Cow::Borrowed(given.as_bytes()));
        return Caller { tag: GIVEN, value, sent: None, source: None, is_unclear: false };
    }
    let mut is_unclear = false;
    for (at, (source, tag)) in identify.caller.iter().enumerate() {
        if *source == Source::Ip {
            let Some(address) = address else { continue };
            let octets = octets(address::subject(address, identify.v6_prefix));
            let value = Value::Address(octets);
            return Caller { tag: *tag, value, sent: None, source: Some(at), is_unclear };
        }
        match source.find(facts, tokens, now) {
            Said::One(value) => {
                let sent = if matches!(value, Cow::Owned(_)) { source.as_sent(facts) } else { None };
                return Caller { tag: *tag, value: Value::Text(value), sent, source: Some(at), is_unclear };
            }
            Said::Several => is_unclear = true,
            Said::Nothing => {}
        }
    }
    Caller { is_unclear, ..Caller::nobody() }
}

/// The caller's plan: the first name that is one, or else the default.
pub(crate) fn plan_of(
    policy: &Policy,
    request: &Request<'_, '_>,
    caller: &Caller<'_>,
    tokens: &dyn Tokens,
    now: Timestamp,
) -> Option<usize> {
    if policy.plans.is_empty() {
        return None;
    }
    let facts = request.facts;
    let named = |name: &[u8]| policy.plan_named(std::str::from_utf8(name).ok()?);
    if let Some(plan) = facts.plan.and_then(|plan| named(plan.as_bytes())) {
        return Some(plan);
    }
    let proxies = &policy.address.trusted;
    // What a caller could write into a request without passing a proxy of ours is not believed, where there are some.
    let is_proxy = |peer: IpAddr| !facts.is_peer_alone && proxies.contains(peer);
    let is_ours = proxies.is_empty() || facts.peer.is_some_and(is_proxy);
    for source in &policy.identify.plan {
        let plan = match source {
            Source::Table => policy.table.plan_of(caller),
            Source::Header(_) | Source::Cookie(_) | Source::Query(_) if !is_ours => None,
            _ => source.find(facts, tokens, now).one().and_then(|name| named(&name)),
        };
        if plan.is_some() {
            return plan;
        }
    }
    policy.default_plan
}

fn octets(address: IpAddr) -> SmallVec<[u8; 16]> {
    match address {
        IpAddr::V4(ip) => ip.octets().as_slice().into(),
        IpAddr::V6(ip) => ip.octets().as_slice().into(),
    }
}

/// A cookie. Servers take it with or without quotes, and with spaces around its name: so it is the same here.
fn cookie<'f>(facts: &Facts<'f>, name: &str) -> Said<&'f [u8]> {
    let mut said = Said::Nothing;
    facts.headers.each("cookie", &mut |line| {
        for pair in line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii) {
            let Some(rest) = pair.strip_prefix(name.as_bytes()) else { continue };
            if let Some(value) = rest.trim_ascii_start().strip_prefix(b"=").map(<[u8]>::trim_ascii) {
                let bare = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
                said = said.and(bare.unwrap_or(value));
            }
        }
    });
    said
}

/// A value of a header as it is usually spelled.
pub(crate) fn usual<'v>(name: &str, value: &'v [u8]) -> Cow<'v, [u8]> {
    if name.eq_ignore_ascii_case("authorization") { credentials(value) } else { Cow::Borrowed(value) }
}

/// Credentials, however they are spelled: to servers `bearer  x` is `Bearer x`.
fn credentials(value: &[u8]) -> Cow<'_, [u8]> {
    /// As they are registered, and as policies name callers by them.
    const SCHEMES: [&str; 7] = ["Bearer", "Basic", "Digest", "DPoP", "Negotiate", "Token", "ApiKey"];
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(end) = value.iter().position(is_space) else { return Cow::Borrowed(value) };
    let (scheme, rest) = value.split_at(end);
    let token = rest.trim_ascii_start();
    let known = SCHEMES.iter().find(|known| scheme.eq_ignore_ascii_case(known.as_bytes()));
    let is_usual = match known {
        Some(known) => scheme == known.as_bytes(),
        None => !scheme.iter().any(u8::is_ascii_uppercase),
    };
    if is_usual && rest.len() == token.len() + 1 && rest.starts_with(b" ") {
        return Cow::Borrowed(value);
    }
    let scheme = known.map_or_else(|| scheme.to_ascii_lowercase(), |known| known.as_bytes().to_vec());
    Cow::Owned([&scheme, &b" "[..], token].concat())
}

/// A parameter, decoded: one that is spelled otherwise is still the same.
fn query<'f>(query: &'f str, name: &str) -> Said<Cow<'f, [u8]>> {
    let mut said = Said::Nothing;
    for pair in query.split('&') {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        if *decoded(key.as_bytes(), true) == *name.as_bytes() {
            said = said.and(trimmed(decoded(value.as_bytes(), true)));
        }
    }
    said
}

/// Without spaces around it, as values of headers are.
fn trimmed(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    match value {
        Cow::Borrowed(bytes) => Cow::Borrowed(bytes.trim_ascii()),
        Cow::Owned(bytes) => Cow::Owned(bytes.trim_ascii().to_vec()),
    }
}

/// Without the ways in which bytes can also be written. In forms a plus is a space.
fn decoded(text: &[u8], is_form: bool) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| *byte == b'%' || is_form && *byte == b'+') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        rest = behind;
        let digits = |pair: &[u8; 2]| {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            u8::try_from(high? * 16 + low?).ok()
        };
        match (first, behind.split_first_chunk::<2>()) {
            (b'%', Some((pair, behind))) if digits(pair).is_some() => {
                bytes.extend(digits(pair));
                rest = behind;
            }
            (b'+', _) if is_form => bytes.push(b' '),
            _ => bytes.push(first),
        }
    }
    Cow::Owned(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_cookies_that_servers_read_alike_are_one_caller() {
        for spelled in ["Bearer x", "bearer x", "BEARER  x", "bEARER \tx", "Bearer\tx"] {
            assert_eq!(*credentials(spelled.as_bytes()), *b"Bearer x", "{spelled}");
        }
        assert_eq!(credentials(b"HAWK x"), credentials(b"Hawk x"));
        for other in ["x", "Bearerx", "Basic x", "Bearer X", ""] {
            assert_ne!(*credentials(other.as_bytes()), *b"Bearer x", "{other}");
        }
        let found = |line: &str| {
            let headers = [("cookie", line)];
            let facts = Facts { headers: &headers, ..Facts::default() };
            let source = Source::Cookie("session".to_owned());
            source.find(&facts, &NoTokens, Timestamp::ZERO).one().map(|value| value.into_owned())
        };
        for spelled in ["session=a+c", "session=%61+c", "session=\"a+%63\""] {
            assert_eq!(found(spelled).unwrap(), b"a+c", "{spelled}");
        }
    }

    #[test]
    fn lists_and_tables_know_callers_as_they_are_sent_and_as_they_are_usually_spelled() {
        let identify = |source: &str| {
            let source = match source {
                "cookie" => Source::Cookie("session".to_owned()),
                name => Source::Header(name.to_owned()),
            };
            Identify { caller: vec![(source.clone(), source.tag())], plan: Vec::new(), v6_prefix: 64 }
        };
        for (source, sent, listed) in [
            ("authorization", "bearer k", "bearer k"),
            ("authorization", "bearer  k", "Bearer k"),
            ("authorization", "token t", "token t"),
            ("authorization", "MAC m", "MAC m"),
            ("x-api-key", "Bearer  k", "Bearer  k"),
            ("cookie", "session=s%3Aabc", "s%3Aabc"),
            ("cookie", "session=s%3Aabc", "s:abc"),
        ] {
            let headers = [(source, sent)];
            let facts = Facts { headers: &headers, ..Facts::default() };
            let caller = caller_of(&identify(source), &facts, None, &NoTokens, Timestamp::ZERO);
            let name = Named::of(listed, 64);
            assert!(caller.names().any(|known| known.equivalent(&name)), "{sent} as {listed}");
        }
    }

    #[test]
    fn a_cookie_or_parameter_that_says_two_things_says_neither() {
        let headers = [("cookie", "a=1; session=x"), ("Cookie", "b=2")];
        let facts = Facts { headers: &headers, ..Facts::default() };
        assert_eq!(cookie(&facts, "session"), Said::One(&b"x"[..]));
        assert_eq!(cookie(&facts, "sess"), Said::Nothing);
        for line in ["session=\"x\"", "session = x", "a=1;session= x ;b"] {
            let headers = [("cookie", line)];
            let said = cookie(&Facts { headers: &headers, ..facts }, "session");
            assert_eq!(said, Said::One(&b"x"[..]), "{line}");
        }
        for (other, said) in [("y", Said::Several), ("", Said::Several), ("x", Said::One(&b"x"[..]))] {
            let other = format!("session={other}");
            let headers = [("cookie", "session=x"), ("cookie", &*other)];
            assert_eq!(cookie(&Facts { headers: &headers, ..facts }, "session"), said, "{other}");
        }
        let one = |value: &'static [u8]| Said::One(Cow::Borrowed(value));
        assert_eq!(query("a=1&key=x", "key"), one(b"x"));
        assert_eq!(query("key=x&key=y", "key"), Said::Several);
        assert_eq!(query("key=x&key=", "key"), Said::Several);
        assert_eq!(query("key=x&k%65y=%78", "key"), one(b"x"), "the same is one");
        assert_eq!(query("key=+x%20", "key"), one(b"x"));
        assert_eq!(query("k%65y=%78+%zz", "key"), one(b"x %zz"));
    }
}
