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
        let Self { prefix, .. } = self;
        format!("{prefix}:{{{:02x}}}:{:032x}", subject.tag(), subject.hash).into_bytes()
    }

    /// A key for one family of a subject.
    pub(crate) fn own(&self, subject: Subject, family: FamilyId, suffix: &str) -> Vec<u8> {
        let mut key = self.rates(subject);
        key.extend_from_slice(format!(":{:016x}{suffix}", u64::from_le_bytes(family)).as_bytes());
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
