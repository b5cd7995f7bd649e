//! The key generator alone: what is subtracted from every other row.

use std::hint::black_box;

use super::{Contender, Entry, Limit, Role};
use crate::keys::Text;
use crate::measure::serve;

pub const NAME: &str = "generator alone";

struct Generator(Limit);

impl<K> Contender<K> for Generator {
    fn new(_keys: usize, limit: Limit) -> Self {
        Self(limit)
    }

    #[inline(always)]
    fn decide(&self, key: &K) -> bool {
        black_box(key);
        self.0 == Limit::Admit
    }
}

pub fn entry() -> Entry {
    Entry {
        name: NAME,
        role: Role::Generator,
        slow: false,
        text: Some(serve::<Text, Generator>),
        number: Some(serve::<u64, Generator>),
    }
}
