//! What is known of a request, whichever door it came through.

use std::net::IpAddr;

/// A request, in the words of a policy. Doors fill in what they know; what they do not know stays as it is by default.
///
/// ```
/// use tollgate_core::policy::Facts;
///
/// let headers = [("x-api-key", "sk_live_1")];
/// let facts = Facts { method: "POST", path: "/v1/charges", headers: &headers, ..Facts::default() };
/// assert_eq!(facts.only_header("X-Api-Key"), Some(&b"sk_live_1"[..]));
/// ```
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The method, as it came: `GET`.
    pub method: &'a str,
    /// The path, as it came, without the query.
    pub path: &'a str,
    /// What stands behind the question mark.
    pub query: &'a str,
    /// The name of the host that was asked for, with or without a port.
    pub host: &'a str,
    /// Who is at the other end of the connection.
    pub peer: Option<IpAddr>,
    /// Whether the peer speaks for nobody but itself, even if it is a proxy that is trusted: what the request says of others is not
    /// its word.
    pub is_peer_alone: bool,
    /// The name in the certificate that the client has shown, and that was verified.
    pub tls_client: Option<&'a str>,
    /// Who is calling, where the door knows it already. It goes before all that the policy says.
    pub caller: Option<&'a str>,
    /// The caller's plan, where the door knows it already.
    pub plan: Option<&'a str>,
    /// What the request costs, where the door knows it already. It is for limiters that ask for it: those with `cost: given`,
    /// or with a cost by `header` or `response_header`, where it goes before the header of the request or the estimate.
    pub cost: Option<u64>,
    /// The headers.
    pub headers: &'a (dyn Headers + 'a),
}

/// Headers of a request, wherever they are kept. Names are given in any case and compared without regard to it.
pub trait Headers: Sync {
    /// Calls `each` with every value of a header, in the order in which they came.
    fn each<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8]));
}

impl<N: AsRef<str> + Sync, V: AsRef<[u8]> + Sync> Headers for [(N, V)] {
    fn each<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        let named = self.iter().filter(|(known, _)| known.as_ref().eq_ignore_ascii_case(name));
        named.for_each(|(_, value)| each(value.as_ref()));
    }
}

impl<N: AsRef<str> + Sync, V: AsRef<[u8]> + Sync, const M: usize> Headers for [(N, V); M] {
    fn each<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        self.as_slice().each(name, each);
    }
}

impl<N: AsRef<str> + Sync, V: AsRef<[u8]> + Sync> Headers for Vec<(N, V)> {
    fn each<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        self.as_slice().each(name, each);
    }
}

impl Default for Facts<'_> {
    fn default() -> Self {
        const NONE: &[(&str, &str); 0] = &[];
        Self {
            method: "GET",
            path: "/",
            query: "",
            host: "",
            peer: None,
            is_peer_alone: false,
            tls_client: None,
            caller: None,
            plan: None,
            cost: None,
            headers: NONE,
        }
    }
}

/// What a request says of something that it should say once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said<T> {
    /// Nothing, or nothing that is not empty.
    Nothing,
    /// This, once or always the same.
    One(T),
    /// One thing here and another there: whichever is taken, whoever reads the request next may take the other.
    Several,
}

impl<T: PartialEq> Said<T> {
    /// With one thing more.
    pub(crate) fn and(self, value: T) -> Self {
        match self {
            Self::Nothing => Self::One(value),
            Self::One(before) if before == value => Self::One(before),
            _ => Self::Several,
        }
    }

    pub(crate) fn map<U>(self, with: impl FnOnce(T) -> U) -> Said<U> {
        match self {
            Self::Nothing => Said::Nothing,
            Self::One(value) => Said::One(with(value)),
            Self::Several => Said::Several,
        }
    }

    pub(crate) fn one(self) -> Option<T> {
        match self {
            Self::One(value) => Some(value),
            _ => None,
        }
    }
}

impl<'a> Facts<'a> {
    /// What all values of a header say together. An empty one beside another says something else.
    pub fn said(&self, name: &str) -> Said<&'a [u8]> {
        let mut said = Said::Nothing;
        self.headers.each(name, &mut |value| said = said.and(value.trim_ascii()));
        if said == Said::One(b"") { Said::Nothing } else { said }
    }

    /// The value of a header that says one thing. One that says several has no value: whichever were taken, a caller could choose
    /// another by adding one.
    pub fn only_header(&self, name: &str) -> Option<&'a [u8]> {
        self.said(name).one()
    }

    /// Whether any value of a header is as it should be.
    pub fn any_header(&self, name: &str, mut is: impl FnMut(&[u8]) -> bool) -> bool {
        let mut any = false;
        self.headers.each(name, &mut |value| any = any || is(value));
        any
    }
}

impl std::fmt::Debug for Facts<'_> {
    /// Headers, callers and addresses are nobody's business who reads a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Facts")
            .field("method", &self.method)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
