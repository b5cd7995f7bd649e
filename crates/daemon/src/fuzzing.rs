//! Fuzz harnesses: each takes arbitrary bytes and panics if a property does not hold.
//!
//! `fuzz/` runs them with libFuzzer (`make fuzz`), which sets `--cfg fuzzing`. The test below replays the committed inputs.
//! The harness for replies of Redis is in `tollgate_redis::fuzzing`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a harness panics")]

use std::net::IpAddr;

use tollgate_core::Timestamp;
use tollgate_core::policy::address::{AddressHeader, ClientAddress, parse_network};
use tollgate_core::policy::{Facts, NoTokens, Policy};

use crate::gateway::fuzzing as gateway;

/// A harness.
pub type Harness = fn(&[u8]);

/// Every harness of this crate, by the name of its target and its folder in `fuzz/corpus`.
pub const HARNESSES: [(&str, Harness); 6] = [
    ("requests", gateway::requests_on_a_connection),
    ("request_body", gateway::request_body),
    ("response", gateway::response),
    ("proxy_protocol", gateway::proxy_protocol),
    ("client_address", client_address),
    ("policy_file", policy_file),
];

/// Runs the harness of a target.
pub fn run(target: &str, data: &[u8]) {
    let (_, harness) = HARNESSES.iter().find(|(name, _)| *name == target).expect("a target of this crate");
    harness(data);
}

/// `X-Forwarded-For` and `Forwarded`: a client cannot choose its own address.
fn client_address(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let trusted: IpAddr = "10.0.0.1".parse().unwrap();
    let client: IpAddr = "203.0.113.7".parse().unwrap();
    let (header, name, entry) = match choice & 1 {
        0 => (AddressHeader::XForwardedFor, "x-forwarded-for", "203.0.113.7"),
        _ => (AddressHeader::Forwarded, "forwarded", "for=203.0.113.7"),
    };
    let networks = || [parse_network("10.0.0.0/8").unwrap()].into_iter().collect();
    let by_address = ClientAddress { trusted: networks(), hops: None, header: header.clone() };
    let by_hops = ClientAddress { trusted: networks(), hops: Some(choice >> 1 & 3), header };
    // Each line of the input is a line of the header: what a client has sent.
    let lines: Vec<(&str, Vec<u8>)> =
        data.split(|byte| *byte == b'\n').map(|line| (name, line.to_vec())).collect();
    let of = |settings: &ClientAddress, peer: IpAddr, lines: &Vec<(&str, Vec<u8>)>| {
        settings
            .of(&Facts { peer: Some(peer), headers: lines, ..Facts::default() })
            .expect("the peer is known")
    };
    for settings in [&by_address, &by_hops] {
        let found = of(settings, trusted, &lines);
        assert_eq!(of(settings, trusted, &lines), found);
        assert_eq!(of(settings, client, &lines), client, "a peer that is not trusted speaks for itself");
        assert_eq!(found, found.to_canonical());
    }
    // A trusted proxy appends the client, in the last line or in one of its own. Nothing that the client sent changes that.
    let mut appended = lines.clone();
    if let Some((_, last)) = appended.last_mut() {
        last.extend_from_slice(b", ");
        last.extend_from_slice(entry.as_bytes());
    }
    let mut added = lines;
    added.push((name, entry.as_bytes().to_vec()));
    let one_hop = ClientAddress { hops: Some(1), ..by_hops };
    for settings in [&by_address, &one_hop] {
        for lines in [&appended, &added] {
            assert_eq!(of(settings, trusted, lines), client, "the client chose its address: {lines:?}");
        }
    }
}

/// Policy files: every text is either a policy or a list of errors that can be shown.
fn policy_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Policy::read(&text) {
        Ok((policy, warnings)) => {
            assert!(!warnings.has_errors(), "accepted with an error: {warnings}");
            let (again, _) = Policy::read(&text).expect("accepted before");
            assert!(policy == again, "one text, two policies");
            let _ = policy.headers_read();
            let headers = [("x-api-key", "sk_live_1"), ("authorization", "Bearer a.b.c")];
            let peer = Some("192.0.2.1".parse().unwrap());
            let facts = Facts {
                method: "POST",
                path: "/v1/a",
                host: "a",
                peer,
                headers: &headers,
                ..Facts::default()
            };
            let _ = policy.plan(&facts, &NoTokens, Timestamp::from_nanos(1_700_000_000_000_000_000));
            assert!(Policy::salvage(&text).is_some(), "a policy of which nothing can be used");
        }
        Err(mistakes) => {
            assert!(mistakes.has_errors(), "rejected without an error");
            let shown = mistakes.in_file("tollgate.yaml").to_string();
            assert!(!shown.is_empty());
            let _ = Policy::salvage(&text);
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_committed_fuzz_inputs_hold_every_property() {
        for (target, harness) in super::HARNESSES {
            tollgate_testkit::replay_corpus(target, harness);
        }
    }
}
