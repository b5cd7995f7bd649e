//! Keys: who is limited. Arbitrary bytes, tagged by kind, composed so that different tuples never meet.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A key as stores see it: bytes, and what kind of thing they are. The number 1 and the text "\u{1}" are
/// different keys even where their bytes agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyRef<'a> {
    /// What the bytes mean.
    pub kind: Kind,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl<'a> From<&'a str> for KeyRef<'a> {
    fn from(text: &'a str) -> Self {
        Self { kind: Kind::Bytes, bytes: text.as_bytes() }
    }
}

impl<'a> From<&'a [u8]> for KeyRef<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { kind: Kind::Bytes, bytes }
    }
}

/// What the bytes of a key mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Text or bytes.
    Bytes = 0,
    /// An unsigned number of up to 64 bits.
    Number = 1,
    /// A number of 128 bits.
    Wide = 2,
    /// An IPv4 address; also one that came mapped into IPv6.
    Ipv4 = 3,
    /// An IPv6 address.
    Ipv6 = 4,
    /// Several keys, each with its kind and length.
    Tuple = 5,
}

/// Whatever can be limited: text, bytes, numbers, addresses, and tuples of those.
///
/// ```
/// use tollgate_core::key::{Key, encoded};
///
/// // The parts of a tuple keep their bounds: these are two different callers.
/// assert_ne!(encoded(&("a:b", "c")), encoded(&("a", "b:c")));
/// assert_ne!(encoded(&"127.0.0.1"), encoded(&std::net::Ipv4Addr::LOCALHOST));
/// ```
pub trait Key {
    /// Shows the key's bytes to `f`.
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R;
}

/// The key as one string of bytes that no other key has.
pub fn encoded(key: &impl Key) -> Vec<u8> {
    key.with(|key| {
        let mut out = vec![key.kind as u8];
        out.extend_from_slice(key.bytes);
        out
    })
}

fn append(out: &mut Vec<u8>, key: &impl Key) {
    key.with(|key| {
        out.push(key.kind as u8);
        out.extend_from_slice(&(key.bytes.len() as u64).to_le_bytes());
        out.extend_from_slice(key.bytes);
    });
}

macro_rules! key_of_bytes {
    ($($type:ty => $method:ident),*) => {$(
        impl Key for $type {
            #[inline(always)]
            fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
                f(KeyRef { kind: Kind::Bytes, bytes: self.$method() })
            }
        }
    )*};
}
key_of_bytes!(str => as_bytes, String => as_bytes, [u8] => as_ref, Vec<u8> => as_ref,
    Cow<'_, str> => as_bytes, Box<str> => as_bytes, std::sync::Arc<str> => as_bytes);

impl<const N: usize> Key for [u8; N] {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        f(KeyRef { kind: Kind::Bytes, bytes: self })
    }
}

macro_rules! key_of_number {
    ($($type:ty),*) => {$(
        impl Key for $type {
            #[inline(always)]
            fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
                f(KeyRef { kind: Kind::Number, bytes: &(*self as u64).to_le_bytes() })
            }
        }
    )*};
}
key_of_number!(u8, u16, u32, u64, usize);

impl Key for u128 {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        f(KeyRef { kind: Kind::Wide, bytes: &self.to_le_bytes() })
    }
}

impl Key for Ipv4Addr {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        f(KeyRef { kind: Kind::Ipv4, bytes: &self.octets() })
    }
}

impl Key for Ipv6Addr {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        match self.to_ipv4_mapped() {
            Some(v4) => v4.with(f),
            None => f(KeyRef { kind: Kind::Ipv6, bytes: &self.octets() }),
        }
    }
}

impl Key for IpAddr {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        match self {
            Self::V4(address) => address.with(f),
            Self::V6(address) => address.with(f),
        }
    }
}

impl Key for KeyRef<'_> {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        f(*self)
    }
}

impl<K: Key + ?Sized> Key for &K {
    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        (**self).with(f)
    }
}

impl<A: Key, B: Key> Key for (A, B) {
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        let mut bytes = Vec::with_capacity(64);
        append(&mut bytes, &self.0);
        append(&mut bytes, &self.1);
        f(KeyRef { kind: Kind::Tuple, bytes: &bytes })
    }
}

impl<A: Key, B: Key, C: Key> Key for (A, B, C) {
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        let mut bytes = Vec::with_capacity(64);
        append(&mut bytes, &self.0);
        append(&mut bytes, &self.1);
        append(&mut bytes, &self.2);
        f(KeyRef { kind: Kind::Tuple, bytes: &bytes })
    }
}
