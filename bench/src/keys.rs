//! Keys and the order they are asked in: written on the fly, never kept, at the same cost for everyone.

/// Length of a text key in bytes.
pub const KEY_LEN: usize = 24;

/// A text key: `user:` and 19 zero-padded digits.
pub type Text = [u8; KEY_LEN];

/// Keys written at a time. Writing a block before deciding on it keeps the key bytes in the first-level
/// cache, as parsed requests are, without anyone paying for a load that overtakes the store it depends on.
pub const BLOCK: usize = 64;

const TEMPLATE: Text = *b"user:0000000000000000000";

/// Digits that change: identifiers stay below 10^8.
const DIGITS: usize = 8;

/// A form of key that can be overwritten in place with the key of a given number.
pub trait Key: Sized {
    fn blank() -> Self;
    fn write(&mut self, id: u64);
}

impl Key for u64 {
    fn blank() -> Self {
        0
    }

    #[inline(always)]
    fn write(&mut self, id: u64) {
        *self = id;
    }
}

impl Key for Text {
    fn blank() -> Self {
        TEMPLATE
    }

    #[inline(always)]
    fn write(&mut self, id: u64) {
        self[KEY_LEN - DIGITS..].copy_from_slice(&digits(id));
    }
}

/// An owned string, overwritten in place: for peers whose lookup takes `&String`. No allocation per key.
impl Key for String {
    fn blank() -> Self {
        as_str(&TEMPLATE).to_owned()
    }

    #[inline(always)]
    fn write(&mut self, id: u64) {
        // SAFETY: `digits` writes ASCII over ASCII.
        unsafe { self.as_bytes_mut()[KEY_LEN - DIGITS..].copy_from_slice(&digits(id)) }
    }
}

/// The text key as `&str`, for peers that take one.
#[inline(always)]
pub fn as_str(key: &Text) -> &str {
    // SAFETY: every `Text` comes from `TEMPLATE` and `digits`, which are ASCII.
    unsafe { str::from_utf8_unchecked(key) }
}

/// Eight decimal digits by arithmetic on all of them at once: halves, then pairs, then digits side by side in one
/// word. No table, so no cache lines taken from the contender.
#[inline(always)]
fn digits(id: u64) -> [u8; DIGITS] {
    let (high, low) = (id as u32 / 10_000, id as u32 % 10_000);
    let halves = u64::from(high) | u64::from(low) << 32;
    let hundreds = ((halves * 10_486) >> 20) & 0x7F_0000_007F;
    let pairs = hundreds | (halves - hundreds * 100) << 16;
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    let digits = tens | (pairs - tens * 10) << 8;
    (digits | 0x3030_3030_3030_3030).to_le_bytes()
}

/// An endless stream of keys, uniform over `count` of them, a block at a time.
pub struct Feed<K> {
    keys: [K; BLOCK],
    count: u64,
    state: u64,
}

impl<K: Key> Feed<K> {
    pub fn new(count: usize, seed: u64) -> Self {
        Self {
            keys: std::array::from_fn(|_| K::blank()),
            count: count as u64,
            state: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03,
        }
    }

    #[inline(always)]
    pub fn next_block(&mut self) -> &[K; BLOCK] {
        for key in &mut self.keys {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            key.write(((self.state >> 32) * self.count) >> 32);
        }
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_keys_spell_the_number() {
        let (mut key, mut owned) = (Text::blank(), String::blank());
        for id in (0..100_000_000).step_by(997).chain([9_999, 10_000, 99_999_999]) {
            key.write(id);
            owned.write(id);
            assert_eq!(as_str(&key), format!("user:{id:019}"));
            assert_eq!(owned, as_str(&key));
        }
    }

    #[test]
    fn the_feed_covers_its_keys_evenly() {
        let mut feed = Feed::<u64>::new(10, 1);
        let mut seen = [0u32; 10];
        for _ in 0..1_000 {
            for &id in feed.next_block() {
                seen[id as usize] += 1;
            }
        }
        assert!(seen.iter().all(|&n| (5_800..7_000).contains(&n)), "{seen:?}");
    }
}
