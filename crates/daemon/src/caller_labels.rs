//! How callers and addresses appear in logs: recognizable, and without their secrets.
//!
//! A caller that is known by a key, a session or a name is shown as `PREFIX~HASH`. The hash is keyed, so that nobody can
//! try keys against a log. The prefix is what an operator can look up: the first quarter of the key, 12 characters at
//! most, and nothing of a key shorter than 24. At least 18 characters of a key are never shown.
//!
//! Of an `Authorization` value the scheme does not count, and only tokens have a prefix: the first characters of Basic
//! credentials would be a user's name and a part of the password.

use std::fmt::Write as _;
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher24;
use siphasher::sip128::{Hasher128, SipHasher24 as SipHasher128};
use tollgate_core::policy::CallerName;

/// Keys that are shorter have no prefix in logs.
const SHORTEST_WITH_PREFIX: usize = 24;
const LONGEST_PREFIX: usize = 12;
/// Schemes whose credentials are one random token.
const TOKEN_SCHEMES: [&str; 4] = ["Bearer", "Token", "ApiKey", "DPoP"];
const OTHER_SCHEMES: [&str; 3] = ["Basic", "Digest", "Negotiate"];

/// Makes labels of callers and addresses. The same caller has the same label as long as the secret stays the same.
#[derive(Clone)]
pub(crate) struct CallerLabels {
    hasher: SipHasher24,
    shows_addresses: bool,
}

impl CallerLabels {
    /// With the secret of the deployment labels are the same on all nodes and after a restart. Without one they change
    /// with every start.
    pub(crate) fn new(secret: Option<&str>, shows_addresses: bool) -> Self {
        let key = match secret {
            Some(secret) => {
                let mut hasher = SipHasher128::new();
                hasher.write(b"tollgate labels of callers in logs\0");
                hasher.write(secret.as_bytes());
                hasher.finish128().as_u128().to_le_bytes()
            }
            None => rand::random(),
        };
        Self { hasher: SipHasher24::new_with_key(&key), shows_addresses }
    }

    /// `sk_live_4eC3~5f0c1d8e3a21`, `~5f0c1d8e3a21` for a short key, `ip:...` for an address, or `unknown`.
    pub(crate) fn caller(&self, caller: &CallerName) -> String {
        match caller {
            CallerName::Value(value) => {
                let mut label = String::with_capacity(LONGEST_PREFIX + 13);
                label.push_str(prefix(value));
                let _ = write!(label, "~{:012x}", self.hash(value));
                label
            }
            CallerName::Address(address) => format!("ip:{}", self.address(*address)),
            _ => "unknown".to_owned(),
        }
    }

    /// An address, in full if the policy says so.
    pub(crate) fn address(&self, address: IpAddr) -> String {
        let address = address.to_canonical();
        match address {
            address if self.shows_addresses => address.to_string(),
            IpAddr::V4(address) => format!("{:012x}", self.hash(&address.octets())),
            IpAddr::V6(address) => format!("{:012x}", self.hash(&address.octets())),
        }
    }

    /// 48 bits: enough to tell the callers of one service apart.
    fn hash(&self, value: &[u8]) -> u64 {
        let mut hasher = self.hasher;
        hasher.write(value);
        hasher.finish() >> 16
    }
}

/// The first characters of a key, if it is long enough to stay a secret without them.
fn prefix(value: &[u8]) -> &str {
    let is_scheme = |schemes: &[&str], word: &[u8]| {
        schemes.iter().any(|scheme| word.eq_ignore_ascii_case(scheme.as_bytes()))
    };
    let word = value.split(|byte| *byte == b' ').next().unwrap_or_default();
    let key = match value.get(word.len() + 1..) {
        Some(token) if is_scheme(&TOKEN_SCHEMES, word) => token,
        Some(_) if is_scheme(&OTHER_SCHEMES, word) => return "",
        _ => value,
    };
    if key.len() < SHORTEST_WITH_PREFIX {
        return "";
    }
    // Nothing that could end a line or look like another field.
    let shown = key.iter().take((key.len() / 4).min(LONGEST_PREFIX));
    let plain = shown.take_while(|byte| byte.is_ascii_graphic() && !b"\"\\~=".contains(byte)).count();
    key.get(..plain).and_then(|prefix| std::str::from_utf8(prefix).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_never_shows_more_than_a_quarter_of_a_key() {
        for (key, shown) in [
            ("", ""),
            ("sk_1", ""),
            ("12345678901234567890123", ""),
            ("123456789012345678901234", "123456"),
            ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_live_"),
            ("sk_live_4eC39HqLyjWDarjtT1zdp7dc_sk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_live_4eC3"),
            ("Bearer sk_live_4eC39HqLyjWDarjtT1zdp7dc", "sk_live_"),
            ("bearer short", ""),
            // The scheme is no part of the key, and does not make it long enough.
            ("Bearer 1234567890123456", ""),
            // bob:correct horse battery staple
            ("Basic Ym9iOmNvcnJlY3QgaG9yc2UgYmF0dGVyeSBzdGFwbGU=", ""),
            ("a b c d e f g h i j k l m n o p q r s t u v", "a"),
            ("ab\"cdefghijklmnopqrstuvwxyz", "ab"),
            ("ab\u{e9}defghijklmnopqrstuvwxyz", "ab"),
        ] {
            assert_eq!(prefix(key.as_bytes()), shown, "{key:?}");
        }
    }

    #[test]
    fn labels_of_one_secret_agree_and_those_of_others_do_not() {
        let caller = CallerName::Value(b"sk_live_4eC39HqLyjWDarjtT1zdp7dc".as_slice().into());
        let label = |secret: Option<&str>| CallerLabels::new(secret, false).caller(&caller);
        assert_eq!(label(Some("secret")), label(Some("secret")));
        assert_ne!(label(Some("secret")), label(Some("other")));
        assert_ne!(label(None), label(None));
        let label = label(None);
        let hash = label.strip_prefix("sk_live_~").unwrap_or_default();
        assert!(hash.len() == 12 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{label}");
    }

    #[test]
    fn addresses_are_hashed_unless_the_policy_wants_them_in_full() {
        let address: IpAddr = [203, 0, 113, 9].into();
        let (hashed, full) = (CallerLabels::new(None, false), CallerLabels::new(None, true));
        assert_eq!(full.address(address), "203.0.113.9");
        assert_eq!(full.caller(&CallerName::Address(address)), "ip:203.0.113.9");
        let shown = hashed.caller(&CallerName::Address(address));
        assert_eq!(shown, format!("ip:{}", hashed.address(address)));
        assert!(!shown.contains("113"), "{shown}");
        assert_eq!(hashed.caller(&CallerName::Unknown), "unknown");
        let mapped: IpAddr = std::net::Ipv4Addr::new(203, 0, 113, 9).to_ipv6_mapped().into();
        assert_eq!(hashed.address(mapped), hashed.address(address));
    }
}
