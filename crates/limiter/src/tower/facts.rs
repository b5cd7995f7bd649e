//! A request over HTTP, in the words of a policy.

use std::net::{IpAddr, SocketAddr};

use http::request::Parts;
use http::{HeaderMap, header};
use tollgate_core::policy::{Facts, Headers};

/// What a request does not say of itself, and its server knows.
///
/// ```
/// use tollgate::tower::Hints;
///
/// let hints = Hints { caller: Some("alice".to_owned()), ..Hints::default() };
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Who is at the other end of the connection. Without a hint, what [`TollgateLayer::peer`](super::TollgateLayer::peer)
    /// tells, or else a `SocketAddr` among the request's extensions.
    pub peer: Option<IpAddr>,
    /// The name in the certificate that the client has shown.
    pub tls_client: Option<String>,
    /// Who is calling, where that is known already. It goes before all that the policy says.
    pub caller: Option<String>,
    /// The caller's plan, where that is known already.
    pub plan: Option<String>,
    /// What the request costs, where that is known already. It is for limiters that ask for it: see [`Facts::cost`].
    pub cost: Option<u64>,
}

/// The address at the other end of a connection, with or without a port.
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
/// use tollgate::tower::Peer;
///
/// let with_port: SocketAddr = "192.0.2.1:4711".parse().unwrap();
/// assert_eq!(Peer::from(with_port), Peer::from(with_port.ip()));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub IpAddr);

impl From<IpAddr> for Peer {
    fn from(address: IpAddr) -> Self {
        Self(address)
    }
}

impl From<SocketAddr> for Peer {
    fn from(address: SocketAddr) -> Self {
        Self(address.ip())
    }
}

/// Headers where `http` keeps them, for [`Facts`].
#[derive(Clone, Copy, Debug)]
pub struct InMap<'m>(pub &'m HeaderMap);

impl Headers for InMap<'_> {
    fn each<'h>(&'h self, name: &str, each: &mut dyn FnMut(&'h [u8])) {
        // Few names are sooner compared than one is hashed.
        const FEW: usize = 16;
        if self.0.keys_len() > FEW {
            return self.0.get_all(name).iter().for_each(|value| each(value.as_bytes()));
        }
        // They are in lower case here, and nearly always in what is asked for.
        let is =
            |other: &str| other.len() == name.len() && (other == name || other.eq_ignore_ascii_case(name));
        let named = self.0.iter().filter(|(other, _)| is(other.as_str()));
        named.for_each(|(_, value)| each(value.as_bytes()));
    }
}

pub(super) fn facts<'p>(parts: &'p Parts, headers: &'p InMap<'p>, hints: &'p Hints) -> Facts<'p> {
    let named = || parts.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    Facts {
        method: parts.method.as_str(),
        path: parts.uri.path(),
        query: parts.uri.query().unwrap_or_default(),
        host: parts.uri.host().or_else(named).unwrap_or_default(),
        peer: hints.peer,
        is_peer_alone: false,
        tls_client: hints.tls_client.as_deref(),
        caller: hints.caller.as_deref(),
        plan: hints.plan.as_deref(),
        cost: hints.cost,
        headers,
    }
}
