//! Two different keys never meet, however they are composed; one key is found again however it is written.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::common::config;
use proptest::prelude::*;
use tollgate_core::key::{Key, KeyRef, encoded};

/// A key as its meaning, to compare with what its bytes say.
#[derive(Clone, Debug, PartialEq)]
enum Model {
    Bytes(Vec<u8>),
    Number(u64),
    Wide(u128),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Pair(Box<[Model; 2]>),
    Triple(Box<[Model; 3]>),
}

impl Key for Model {
    fn with<R>(&self, f: impl FnOnce(KeyRef<'_>) -> R) -> R {
        match self {
            Self::Bytes(bytes) => bytes.with(f),
            Self::Number(number) => number.with(f),
            Self::Wide(number) => number.with(f),
            Self::V4(address) => address.with(f),
            Self::V6(address) => address.with(f),
            Self::Pair(parts) => {
                let [a, b] = &**parts;
                (a, b).with(f)
            }
            Self::Triple(parts) => {
                let [a, b, c] = &**parts;
                (a, b, c).with(f)
            }
        }
    }
}

/// Keys close to each other: few letters, few numbers, and the bytes of one kind as the text of another.
fn model() -> impl Strategy<Value = Model> {
    let byte = prop_oneof![Just(0_u8), Just(1), Just(5), Just(b':'), Just(b'a'), any::<u8>()];
    let leaf = prop_oneof![
        4 => prop::collection::vec(byte, 0..20).prop_map(Model::Bytes),
        2 => (0..3_u64).prop_map(Model::Number),
        1 => (0..3_u64).prop_map(|n| Model::Bytes(n.to_le_bytes().to_vec())),
        1 => (0..3_u128).prop_map(Model::Wide),
        1 => (0..3_u32).prop_map(|n| Model::V4(Ipv4Addr::from(n))),
        1 => (0..3_u32).prop_map(|n| Model::Bytes(Ipv4Addr::from(n).octets().to_vec())),
        1 => (0..3_u128).prop_map(|n| Model::V6(Ipv6Addr::from(n))),
        1 => Just(Model::V6(Ipv4Addr::new(0, 0, 0, 1).to_ipv6_compatible())),
    ];
    // What an honest key encodes to, taken for a text, is another key.
    let leaf = prop_oneof![
        4 => leaf.clone(),
        1 => (leaf.clone(), leaf).prop_map(|(a, b)| Model::Bytes((a, b).with(|key| key.bytes.to_vec()))),
    ];
    leaf.prop_recursive(3, 12, 3, |part| {
        prop_oneof![
            (part.clone(), part.clone()).prop_map(|(a, b)| Model::Pair(Box::new([a, b]))),
            (part.clone(), part.clone(), part).prop_map(|(a, b, c)| Model::Triple(Box::new([a, b, c]))),
        ]
    })
}

/// Reads a key back from its bytes: what can be read back in one way only meets nothing else.
fn decode(kind: u8, bytes: &[u8]) -> Option<Model> {
    match kind {
        0 => Some(Model::Bytes(bytes.to_vec())),
        1 => Some(Model::Number(u64::from_le_bytes(bytes.try_into().ok()?))),
        2 => Some(Model::Wide(u128::from_le_bytes(bytes.try_into().ok()?))),
        3 => Some(Model::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
        4 => Some(Model::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))),
        5 => {
            let mut parts = Vec::new();
            let mut rest = bytes;
            while let Some((kind, tail)) = rest.split_first() {
                let (length, tail) = tail.split_first_chunk::<8>()?;
                let (part, tail) = tail.split_at_checked(u64::from_le_bytes(*length).try_into().ok()?)?;
                parts.push(decode(*kind, part)?);
                rest = tail;
            }
            match <[Model; 2]>::try_from(parts) {
                Ok(pair) => Some(Model::Pair(Box::new(pair))),
                Err(parts) => Some(Model::Triple(Box::new(parts.try_into().ok()?))),
            }
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_key_can_be_read_back_from_its_bytes(key in model()) {
        let bytes = encoded(&key);
        let (kind, rest) = bytes.split_first().unwrap();
        prop_assert_eq!(decode(*kind, rest), Some(key));
    }

    #[test]
    fn different_keys_have_different_bytes(a in model(), b in model()) {
        prop_assert_eq!(encoded(&a) == encoded(&b), a == b);
    }

    /// The parts of a tuple cut from one text at different places are different tuples.
    #[test]
    fn a_tuple_keeps_its_bounds(
        text in prop::collection::vec(any::<u8>(), 0..24),
        one in any::<prop::sample::Index>(),
        other in any::<prop::sample::Index>(),
    ) {
        let cuts = [one, other].map(|cut| cut.index(text.len() + 1));
        let [a, b] = cuts.map(|cut| encoded(&text.split_at(cut)));
        prop_assert_eq!(a == b, cuts[0] == cuts[1]);
        prop_assert_ne!(a, encoded(&text));
    }

    #[test]
    fn an_ipv4_address_is_one_key_however_it_came(address in any::<Ipv4Addr>()) {
        let mapped = address.to_ipv6_mapped();
        let key = encoded(&address);
        prop_assert_eq!(&encoded(&mapped), &key);
        prop_assert_eq!(&encoded(&IpAddr::V4(address)), &key);
        prop_assert_eq!(&encoded(&IpAddr::V6(mapped)), &key);
        prop_assert_eq!(encoded(&(mapped, "a")), encoded(&(address, "a")));
        // Its text and its bytes are other keys.
        prop_assert_ne!(&encoded(&address.to_string()), &key);
        prop_assert_ne!(&encoded(&address.octets()), &key);
    }

    #[test]
    fn an_ipv6_address_is_no_other_key(address in any::<Ipv6Addr>()) {
        prop_assert_eq!(encoded(&IpAddr::V6(address)), encoded(&address));
        prop_assert_ne!(encoded(&address.octets()), encoded(&address));
        prop_assert_ne!(encoded(&u128::from(address)), encoded(&address));
    }

    #[test]
    fn a_text_is_one_key_whatever_owns_it(text in ".*", number in any::<u32>()) {
        let key = encoded(&text);
        prop_assert_eq!(&encoded(&text.as_str()), &key);
        prop_assert_eq!(&encoded(&text.as_bytes()), &key);
        prop_assert_eq!(&encoded(&text.clone().into_boxed_str()), &key);
        prop_assert_eq!(&text.with(|key| encoded(&key)), &key);
        prop_assert_eq!(encoded(&number), encoded(&u64::from(number)));
        prop_assert_ne!(encoded(&number), encoded(&u128::from(number)));
    }
}
