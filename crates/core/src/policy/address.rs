//! Who is at the other end: client addresses behind proxies, and sets of addresses.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use prefix_trie::joint::JointPrefixSet;
use smallvec::SmallVec;

use super::Facts;

/// How much of an IPv6 address names a client, unless a policy says otherwise: the part that a provider gives out.
pub const V6_PREFIX: u8 = 64;

/// So many entries of a header are looked at, from the right.
const MOST_ENTRIES: usize = 64;

/// A set of networks. Thousands of them are searched as fast as one.
///
/// An IPv4 address that is mapped into IPv6 is taken for the IPv4 address that it is, in the set and in what it is
/// asked for. So `::/0` holds all of IPv6 and nothing of IPv4.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Networks(JointPrefixSet<IpNet>);

impl Networks {
    /// Whether one of the networks holds this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.is_covered(&IpNet::from(address.to_canonical()))
    }

    /// Whether one of the networks holds all of this one.
    pub(crate) fn holds(&self, network: &IpNet) -> bool {
        self.0.is_covered(network)
    }

    /// Whether there is no network in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<IpNet> for Networks {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self(networks.into_iter().map(|network| canonical(network).trunc()).collect())
    }
}

fn canonical(network: IpNet) -> IpNet {
    match (network.addr().to_canonical(), network) {
        (IpAddr::V4(address), IpNet::V6(_)) => {
            let prefix = network.prefix_len().checked_sub(96);
            prefix.and_then(|prefix| Ipv4Net::new(address, prefix).ok()).map_or(network, IpNet::V4)
        }
        _ => network,
    }
}

/// Reads a network such as `10.0.0.0/8`, or an address, which is a network of one. The error says what would be
/// right.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    let text = text.trim();
    let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
    let Ok(address) = address.parse::<IpAddr>() else {
        let wrong = match address {
            _ if address.contains('%') => "has a zone: write the address without it, as in fe80::/10",
            _ if address.starts_with('[') => "has brackets: write the address without them, as in ::1",
            _ => {
                "is no network: write one such as 10.0.0.0/8 or 2001:db8::/32, or an address such as 192.0.2.1"
            }
        };
        return Err(format!("{text} {wrong}"));
    };
    let Some(prefix) = prefix else {
        return Ok(canonical(IpNet::from(address)));
    };
    let Ok(network) = text.parse::<IpNet>() else {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let masked = prefix.parse().ok().and_then(|mask| IpNet::with_netmask(address, mask).ok());
        let right = masked.map_or(format!("{address}/{most}"), |network| network.trunc().to_string());
        return Err(format!("{text} needs a prefix from 0 to {most} behind its slash: write {right}"));
    };
    if network.trunc() != network {
        return Err(format!("{text} has bits behind its prefix: write {}", network.trunc()));
    }
    Ok(canonical(network))
}

/// The header in which proxies say whom they speak for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`, to which each proxy appends its peer.
    #[default]
    XForwardedFor,
    /// `Forwarded`, as RFC 7239 has it: `for="[2001:db8::1]:4711";proto=https`.
    Forwarded,
    /// A header that holds one address, such as `cf-connecting-ip`. If it came more than once, it is not used.
    Named(String),
}

/// How the address of a client is found. What a header says is believed only of peers that are trusted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientAddress {
    /// The proxies whose headers are believed. If there are none, the client is always the peer.
    pub trusted: Networks,
    /// If set, so many proxies stand before the client, whatever their addresses. The peer is the first of them and
    /// still has to be trusted: with 1 the client is the last entry of the header, with 2 the last but one, as
    /// Envoy's `xff_num_trusted_hops` counts where it uses the remote address. As there, a header with fewer entries
    /// did not come through all of these proxies and the client is the peer.
    pub hops: Option<u8>,
    /// The header in which proxies say whom they speak for.
    pub header: AddressHeader,
}

impl ClientAddress {
    /// The address of the client; none if the peer is not known.
    ///
    /// If the peer is trusted, all lines of the header are read as one, from right to left, up to the first address
    /// that is not trusted. What stands to the left of it, the client may have made up. An entry that is no address
    /// (also an empty one, `unknown`, or a name) ends the search: the client is then who passed it on, which is the
    /// entry to its right or else the peer. The same holds where the entries end, or 64 were looked at.
    pub fn of(&self, facts: &Facts<'_>) -> Option<IpAddr> {
        let peer = facts.peer?.to_canonical();
        if facts.is_peer_alone || self.trusted.is_empty() || !self.trusted.contains(peer) {
            return Some(peer);
        }
        Some(match &self.header {
            AddressHeader::XForwardedFor => {
                self.walk(peer, &Lines::of(facts, "x-forwarded-for"), false, node)
            }
            AddressHeader::Forwarded => self.walk(peer, &Lines::of(facts, "forwarded"), true, element),
            AddressHeader::Named(name) => facts.only_header(name).and_then(node).unwrap_or(peer),
        })
    }

    fn walk(
        &self,
        peer: IpAddr,
        lines: &Lines<'_>,
        quotes: bool,
        read: fn(&[u8]) -> Option<IpAddr>,
    ) -> IpAddr {
        let (mut last, mut seen) = (peer, 0);
        if self.hops == Some(0) {
            return peer;
        }
        for line in lines.backwards() {
            let mut rest = Some(line);
            while let Some(line) = rest {
                let (before, entry) = split_last(line, quotes);
                let Some(address) = read(entry) else {
                    return last;
                };
                (last, seen, rest) = (address, seen + 1, before);
                let found =
                    self.hops.map_or_else(|| !self.trusted.contains(last), |hops| seen == usize::from(hops));
                if found || seen == MOST_ENTRIES {
                    return last;
                }
            }
        }
        if self.hops.is_some() { peer } else { last }
    }
}

/// The last lines of a header. A line has an entry at least, so more than [`MOST_ENTRIES`] are not needed.
struct Lines<'a> {
    ring: SmallVec<[&'a [u8]; 4]>,
    count: usize,
}

impl<'a> Lines<'a> {
    fn of(facts: &Facts<'a>, name: &str) -> Self {
        let mut lines = Self { ring: SmallVec::new(), count: 0 };
        facts.headers.each(name, &mut |line| {
            match lines.ring.get_mut(lines.count % MOST_ENTRIES) {
                Some(oldest) => *oldest = line,
                None => lines.ring.push(line),
            }
            lines.count += 1;
        });
        lines
    }

    fn backwards(&self) -> impl Iterator<Item = &'a [u8]> {
        let places = (0..self.count).rev().take(MOST_ENTRIES);
        places.filter_map(|place| self.ring.get(place % MOST_ENTRIES).copied())
    }
}

/// Cuts the last entry off a line. Quotes are paired from the right as well: from the left, one quote that a client
/// leaves open would swallow all that proxies append.
fn split_last(line: &[u8], quotes: bool) -> (Option<&[u8]>, &[u8]) {
    let mut quoted = false;
    for (at, byte) in line.iter().enumerate().rev() {
        let before = line.get(..at).unwrap_or_default();
        if quotes && *byte == b'"' {
            quoted = !quoted || before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1;
        } else if *byte == b',' && !quoted {
            return (Some(before), line.get(at + 1..).unwrap_or_default());
        }
    }
    (None, line)
}

/// The address in an element of `Forwarded`, which must say `for` once. Spaces and unquoted colons, which the RFC
/// has not, do no harm.
fn element(text: &[u8]) -> Option<IpAddr> {
    let (mut rest, mut found) = (text.trim_ascii(), None);
    while !rest.is_empty() {
        let (name, value) = rest.split_at_checked(rest.iter().position(|byte| *byte == b'=')?)?;
        let (value, more) = value_of(value.get(1..)?)?;
        if name.trim_ascii().eq_ignore_ascii_case(b"for") && found.replace(node(&value)?).is_some() {
            return None;
        }
        rest = more;
    }
    found
}

/// The value of a pair without its quotes, and what stands behind the semicolon.
fn value_of(text: &[u8]) -> Option<(SmallVec<[u8; 64]>, &[u8])> {
    let mut value = SmallVec::new();
    let mut rest = text.iter();
    if let Some(quoted) = text.strip_prefix(b"\"") {
        rest = quoted.iter();
        loop {
            match rest.next()? {
                b'"' => break,
                b'\\' => value.push(*rest.next()?),
                byte => value.push(*byte),
            }
        }
    }
    let mut parts = rest.as_slice().splitn(2, |byte| *byte == b';');
    let token = parts.next()?.trim_ascii();
    let is_quoted = rest.len() < text.len();
    if token.contains(&b'"') || (is_quoted && !token.is_empty()) {
        return None;
    }
    value.extend_from_slice(token);
    Some((value, parts.next().unwrap_or_default().trim_ascii()))
}

/// An address with or without a port: `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]:80`. One with a
/// zone is none: a zone means something only to the machine that wrote it.
fn node(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text.trim_ascii()).ok()?;
    let (address, port) = match (text.strip_prefix('['), text.split_once(':')) {
        (Some(inner), _) => {
            let (address, rest) = inner.split_once(']')?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), port)
        }
        (None, Some((address, port))) if !port.contains(':') => (address.parse().ok()?, Some(port)),
        _ => (text.parse::<IpAddr>().ok()?, None),
    };
    port.is_none_or(is_port).then(|| address.to_canonical())
}

/// The name of a port may also be obfuscated: `_http`.
fn is_port(text: &str) -> bool {
    match text.strip_prefix('_') {
        Some(name) => {
            !name.is_empty()
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
        }
        None => (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// The address by which a client is limited. IPv6 is cut to its first `v6_prefix` bits (32 to 128), because whoever
/// has one address of a network has them all. An IPv4 address stays whole, also if it came mapped into IPv6: cut as
/// IPv6, all of IPv4 would be one client.
pub fn subject(address: IpAddr, v6_prefix: u8) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let mask = u128::MAX << (128 - v6_prefix.clamp(32, 128));
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
        v4 => v4,
    }
}
