//! What is sent to the script and what comes back.
//!
//! A call is `EVALSHA <sha> <keys> <argument>`. The argument is binary, little-endian: the time in microseconds (-1: the
//! server's own), then for each group the number of its items, then the items:
//!
//! ```text
//! family    8 bytes      the record's first 33 bytes, as they are
//! kind      1
//! numbers   3 x f64
//! op        1
//! key       u16          position in KEYS, from 1
//! cost      f64
//! taken     f64          for giving back: when it was taken; -1: now
//! since     f64          when the limit changed to these numbers; -1: unknown
//! extra     f64
//! lease     16 bytes
//! ```

use tollgate_core::concurrency::InProgress;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::{Nanos, Outcome, Timestamp};

use crate::keys::FamilyId;
use crate::limits::{CRITICAL, Parameters, Room, double};

/// The groups of one call: keys, and the argument but for the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) keys: Vec<Vec<u8>>,
    groups: Vec<u8>,
    pub(crate) items: usize,
    /// Where the positions of keys stand in `groups`.
    positions: Vec<usize>,
}

/// What is done with a state. The first five are [`Op`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Act {
    Charge = 0,
    Estimate = 1,
    Refund = 2,
    Undo = 3,
    Renew = 4,
    Count = 5,
    Forget = 6,
}

impl From<Op> for Act {
    fn from(op: Op) -> Self {
        match op {
            Op::Charge => Self::Charge,
            Op::Estimate => Self::Estimate,
            Op::Refund => Self::Refund,
            Op::Undo => Self::Undo,
            Op::Renew => Self::Renew,
        }
    }
}

/// One item of a group.
pub(crate) struct Item<'a> {
    pub(crate) family: FamilyId,
    pub(crate) parameters: &'a Parameters,
    pub(crate) since: Option<u64>,
    pub(crate) act: Act,
    pub(crate) ask: Ask,
    /// Its key, or its two keys.
    pub(crate) keys: (Vec<u8>, Option<Vec<u8>>),
}

/// Numbers of an item in the reply.
pub(crate) const NUMBERS: usize = 5;

impl Message {
    pub(crate) fn begin_group(&mut self, items: usize) {
        // A group has at most 255 limits: the store sees to it.
        self.groups.push(u8::try_from(items).unwrap_or(u8::MAX));
    }

    pub(crate) fn push(&mut self, item: Item<'_>) {
        let Item { family, parameters, since, act, ask, keys } = item;
        let position = self.position(keys);
        let micros = |nanos: Option<u64>| nanos.map_or(-1.0, double);
        let critical = parameters.room() == Room::Fleet && ask.critical;
        let extra = if critical { parameters.extra + CRITICAL } else { parameters.extra };
        self.groups.extend_from_slice(&family);
        self.groups.push(parameters.kind);
        parameters.numbers.iter().for_each(|number| self.number(*number));
        self.groups.push(act as u8);
        self.positions.push(self.groups.len());
        self.groups.extend_from_slice(&position.to_le_bytes());
        self.number(double(ask.cost));
        self.number(micros(ask.taken.map(|taken| taken.as_nanos() / 1000)));
        self.number(micros(since));
        self.number(extra);
        self.groups.extend_from_slice(&ask.lease.0.to_be_bytes());
        self.items += 1;
    }

    fn number(&mut self, number: f64) {
        self.groups.extend_from_slice(&number.to_le_bytes());
    }

    fn position(&mut self, (key, second): (Vec<u8>, Option<Vec<u8>>)) -> u16 {
        let known = self.keys.iter().position(|known| *known == key);
        let position = known.unwrap_or_else(|| {
            self.keys.push(key);
            let first = self.keys.len() - 1;
            self.keys.extend(second);
            first
        });
        u16::try_from(position + 1).unwrap_or(u16::MAX)
    }

    /// Puts another message's groups behind this one's.
    pub(crate) fn append(&mut self, other: &Self) {
        let shift = u16::try_from(self.keys.len()).unwrap_or(u16::MAX);
        let start = self.groups.len();
        self.groups.extend_from_slice(&other.groups);
        for &at in &other.positions {
            let at = start + at;
            if let Some(bytes) = self.groups.get_mut(at..at + 2)
                && let [low, high] = *bytes
            {
                let moved = u16::from_le_bytes([low, high]).saturating_add(shift);
                bytes.copy_from_slice(&moved.to_le_bytes());
            }
            self.positions.push(at);
        }
        self.keys.extend_from_slice(&other.keys);
        self.items += other.items;
    }

    /// The script's argument, at a time of the caller's own or at the server's.
    pub(crate) fn argument(&self, at: Option<Timestamp>) -> Vec<u8> {
        let mut argument = Vec::with_capacity(8 + self.groups.len());
        let now = at.map_or(-1.0, |at| double(at.as_nanos() / 1000));
        argument.extend_from_slice(&now.to_le_bytes());
        argument.extend_from_slice(&self.groups);
        argument
    }
}

/// What the script answered to one message.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// When it was decided.
    pub(crate) now: Timestamp,
    pub(crate) numbers: Vec<i64>,
}

impl Reply {
    /// The outcome of each item.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        self.numbers.as_chunks::<NUMBERS>().0.iter().map(|&[allowed, remaining, retry, reset, delay]| {
            Outcome {
                allowed: allowed > 0,
                remaining: remaining.unsigned_abs(),
                retry_after: (retry >= 0).then(|| nanos(retry)),
                reset_after: nanos(reset),
                delay: nanos(delay),
            }
        })
    }

    /// For each item, whether something was taken that an undo would have to give back.
    pub(crate) fn taken(&self) -> impl Iterator<Item = bool> + '_ {
        self.numbers.as_chunks::<NUMBERS>().0.iter().map(|&[allowed, ..]| allowed == 1)
    }

    /// The answer to a count.
    pub(crate) fn in_progress(&self) -> InProgress {
        match *self.numbers {
            [_, other, critical, ..] => {
                InProgress { critical: critical.unsigned_abs(), other: other.unsigned_abs() }
            }
            _ => InProgress::default(),
        }
    }
}

fn nanos(micros: i64) -> Nanos {
    Nanos::new(micros.unsigned_abs().saturating_mul(1000))
}
