//! Fuzz harnesses of the gateway's parsers; see `crate::fuzzing`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a harness panics")]

use std::net::SocketAddr;

pub(crate) use super::http1::fuzzing::{request_body, requests_on_a_connection, response};
use super::proxy_protocol::{Header, parse};

/// PROXY protocol headers: an answer is final, bounded, and the same address written out again is read again.
pub(crate) fn proxy_protocol(data: &[u8]) {
    let whole = parse(data);
    for end in 0..data.len() {
        match parse(&data[..end]) {
            Header::Partial => {}
            decided => {
                assert_eq!(
                    decided,
                    whole,
                    "{end} of {} bytes: {:?}",
                    data.len(),
                    data.escape_ascii().to_string()
                );
                break;
            }
        }
    }
    match whole {
        Header::Partial => assert!(data.len() < 16 + (4 << 10), "{} bytes are waited for", data.len()),
        Header::Wrong => {}
        Header::Own(used) => assert!(used <= data.len()),
        Header::Of(address, used) => {
            assert!(used <= data.len());
            for written in [version_1(address), version_2(address)] {
                assert_eq!(parse(&written), Header::Of(address, written.len()));
            }
        }
    }
}

fn version_1(address: SocketAddr) -> Vec<u8> {
    let (family, ip) = (if address.is_ipv4() { 4 } else { 6 }, address.ip());
    format!("PROXY TCP{family} {ip} {ip} {} 80\r\n", address.port()).into_bytes()
}

fn version_2(address: SocketAddr) -> Vec<u8> {
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21".to_vec();
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) => ip.octets().to_vec(),
        std::net::IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    header.push(if address.is_ipv4() { 0x11 } else { 0x21 });
    header.extend(((ip.len() * 2 + 4) as u16).to_be_bytes());
    header.extend(ip.repeat(2));
    header.extend(address.port().to_be_bytes());
    header.extend([0, 80]);
    header
}
