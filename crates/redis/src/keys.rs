//! Names of keys: `<prefix>:{<tag>}:<subject>`, both parts from a keyed hash of the subject.
//!
//! What callers send never stands in a key: nobody reads personal data from Redis, chooses the slot of a subject, or
//! makes two subjects meet. The tag is one of 256, so that decisions of different subjects can share a call also in
//! a cluster, where a call must stay in one slot.

use std::hash::Hasher;

use siphasher::sip128::{Hasher128, SipHasher24};
use tollgate_core::key::KeyRef;

/// What a deployment's keys begin with, and the secret that they are made from.
#[derive(Clone)]
pub(crate) struct Names {
    prefix: String,
    secret: [u8; 16],
}

/// A subject as its keys show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    hash: u128,
}

/// A family's name in states and keys: the same on every node.
pub(crate) type FamilyId = [u8; 8];

impl Names {
    pub(crate) fn new(prefix: &str, secret: &[u8]) -> Self {
        Self { prefix: prefix.to_owned(), secret: digest(&[0; 16], secret).to_le_bytes() }
    }

    pub(crate) fn subject(&self, key: KeyRef<'_>) -> Subject {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write_u8(key.kind as u8);
        hasher.write(key.bytes);
        Subject { hash: hasher.finish128().as_u128() }
    }

    /// The key of a subject's rates.
    pub(crate) fn rates(&self, subject: Subject) -> Vec<u8> {
        self.named(subject, None, "")
    }

    /// A key for one family of a subject.
    pub(crate) fn own(&self, subject: Subject, family: FamilyId, suffix: &str) -> Vec<u8> {
        self.named(subject, Some(family), suffix)
    }

    fn named(&self, subject: Subject, family: Option<FamilyId>, suffix: &str) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.prefix.len() + 57 + suffix.len());
        key.extend_from_slice(self.prefix.as_bytes());
        key.extend_from_slice(b":{");
        push_hex(&mut key, &[subject.tag()]);
        key.extend_from_slice(b"}:");
        push_hex(&mut key, &subject.hash.to_be_bytes());
        if let Some(family) = family {
            key.push(b':');
            push_hex(&mut key, &family);
            key.extend_from_slice(suffix.as_bytes());
        }
        key
    }
}

impl Subject {
    /// Some subject whose keys have this tag.
    pub(crate) fn with_tag(tag: u8) -> Self {
        Self { hash: u128::from(tag) << 120 }
    }

    /// Which of 256 tags the subject's keys have.
    pub(crate) fn tag(self) -> u8 {
        (self.hash >> 120) as u8
    }
}

/// As `format!` writes it, in a fraction of the time: every decision needs it.
fn push_hex(text: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let digit = |value: u8| DIGITS.get(usize::from(value)).copied().unwrap_or(b'0');
    text.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

/// The id of a family. Names of families are the operator's and no secret.
pub(crate) fn family_id(name: &str) -> FamilyId {
    (digest(b"tollgate family ", name.as_bytes()) as u64).to_le_bytes()
}

fn digest(key: &[u8; 16], bytes: &[u8]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(bytes);
    hasher.finish128().as_u128()
}

impl std::fmt::Debug for Names {
    /// The secret is not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_show_prefix_tag_and_hashes_and_nothing_else() {
        let names = Names::new("tg", b"secret");
        let subject = names.subject("alice".into());
        let key = String::from_utf8(names.rates(subject)).unwrap();
        assert_eq!(key, format!("tg:{{{:02x}}}:{:032x}", subject.tag(), subject.hash));
        let family = family_id("per user");
        let own = String::from_utf8(names.own(subject, family, ":o")).unwrap();
        assert_eq!(own, format!("{key}:{:016x}:o", u64::from_be_bytes(family)));
        assert_ne!(Names::new("tg", b"other").subject("alice".into()), subject);
    }
}
