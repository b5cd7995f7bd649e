//! The PROXY protocol, versions 1 and 2: a proxy that passes connections on says whose they are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What stands at the beginning of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Whose connection it is, and how many bytes said so.
    Of(SocketAddr, usize),
    /// The proxy speaks for itself, as when it looks whether we are well.
    Own(usize),
    /// More bytes are needed.
    Partial,
    /// This is none.
    Wrong,
}

const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// A line of version 1 is no longer.
const LONGEST_V1: usize = 107;
/// Nor does a header of version 2 have more behind its addresses that anybody has a use for.
const LONGEST_V2: usize = 4096;

pub(super) fn parse(bytes: &[u8]) -> Header {
    if bytes.starts_with(V2) {
        return version_2(bytes);
    }
    if bytes.starts_with(b"PROXY ") {
        return version_1(bytes);
    }
    let may_be = |whole: &[u8]| whole.starts_with(bytes);
    if may_be(V2) || may_be(b"PROXY ") { Header::Partial } else { Header::Wrong }
}

fn version_1(bytes: &[u8]) -> Header {
    let line = bytes.get(..bytes.len().min(LONGEST_V1)).unwrap_or_default();
    let Some(end) = line.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() < LONGEST_V1 { Header::Partial } else { Header::Wrong };
    };
    let words = line.get(..end).and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    let words: Vec<&str> = words.split(' ').collect();
    match words.as_slice() {
        ["PROXY", "UNKNOWN", ..] => Header::Own(end + 2),
        ["PROXY", family @ ("TCP4" | "TCP6"), source, target, source_port, target_port] => {
            let address =
                |text: &str| text.parse::<IpAddr>().ok().filter(|ip| ip.is_ipv4() == (*family == "TCP4"));
            match (address(source), address(target), source_port.parse(), target_port.parse::<u16>()) {
                (Some(source), Some(_), Ok(port), Ok(_)) => {
                    Header::Of(SocketAddr::new(source, port), end + 2)
                }
                _ => Header::Wrong,
            }
        }
        _ => Header::Wrong,
    }
}

fn version_2(bytes: &[u8]) -> Header {
    let (Some([command, family]), Some(length)) = (bytes.get(12..14), bytes.get(14..16)) else {
        return Header::Partial;
    };
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if length > LONGEST_V2 {
        return Header::Wrong;
    }
    let Some(addresses) = bytes.get(16..16 + length) else { return Header::Partial };
    let all = 16 + length;
    match (command, family) {
        (0x20, _) => Header::Own(all),
        (0x21, 0x11) => match (addresses.first_chunk::<4>(), addresses.get(8..10)) {
            (Some(source), Some(port)) => {
                Header::Of(SocketAddr::new(Ipv4Addr::from(*source).into(), number(port)), all)
            }
            _ => Header::Wrong,
        },
        (0x21, 0x21) => match (addresses.first_chunk::<16>(), addresses.get(32..34)) {
            (Some(source), Some(port)) => {
                Header::Of(SocketAddr::new(Ipv6Addr::from(*source).into(), number(port)), all)
            }
            _ => Header::Wrong,
        },
        // Other families, such as Unix sockets, have no address that would mean anything to us.
        (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => Header::Own(all),
        _ => Header::Wrong,
    }
}

fn number(port: &[u8]) -> u16 {
    port.iter().fold(0, |port, byte| port << 8 | u16::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str, bytes: usize) -> Header {
        Header::Of(address.parse().unwrap(), bytes)
    }

    #[test]
    fn both_versions_say_whose_connection_it_is() {
        assert_eq!(parse(b"PROXY TCP4 192.0.2.1 192.0.2.2 4711 80\r\nGET"), of("192.0.2.1:4711", 40));
        assert_eq!(parse(b"PROXY TCP6 2001:db8::1 ::1 4711 80\r\n"), of("[2001:db8::1]:4711", 36));
        assert_eq!(parse(b"PROXY UNKNOWN\r\n"), Header::Own(15));
        let mut header = V2.to_vec();
        header.extend([0x21, 0x11, 0, 12, 192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x67, 0, 80]);
        assert_eq!(parse(&header), of("192.0.2.1:4711", 28));
        let mut header = V2.to_vec();
        header.extend([0x21, 0x21, 0, 36]);
        header.extend("2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        header.extend([0; 16]);
        header.extend([0x12, 0x67, 0, 80]);
        assert_eq!(parse(&header), of("[2001:db8::1]:4711", 52));
        let mut header = V2.to_vec();
        header.extend([0x20, 0, 0, 0]);
        assert_eq!(parse(&header), Header::Own(16));
        for end in 0..header.len() {
            assert_eq!(parse(&header[..end]), Header::Partial, "{end}");
        }
    }

    #[test]
    fn what_is_no_header_is_told_at_once() {
        for text in [
            "GET / HTTP/1.1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 4711\r\n",
            "PROXY TCP4 2001:db8::1 ::1 4711 80\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 99999 80\r\n",
            "PROXY TCP5 192.0.2.1 192.0.2.2 1 80\r\n",
            "PROXX",
            "\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0",
            "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\0",
        ] {
            assert_eq!(parse(text.as_bytes()), Header::Wrong, "{text:?}");
        }
        assert_eq!(parse(&[b"PROXY ".as_slice(), &[b'x'; 200]].concat()), Header::Wrong);
        let mut huge = V2.to_vec();
        huge.extend([0x21, 0x11, 0xff, 0xff]);
        assert_eq!(parse(&huge), Header::Wrong);
    }
}
