//! What is sent to the script and what comes back.
//!
//! A call is `EVALSHA <sha> <keys> <argument>`. The argument is binary, little-endian: the time in microseconds (-1: the
//! server's own), then for each group the number of its items (u16), then the items:
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
use crate::limits::{CRITICAL, Parameters, Room, double, is_leased};

/// The groups of one call: keys, and the argument but for the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) keys: Vec<Vec<u8>>,
    groups: Vec<u8>,
    pub(crate) items: usize,
    /// Where the positions of keys stand in `groups`.
    positions: Vec<usize>,
    /// Whether leases are taken.
    takes_leases: bool,
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

/// Items that a group may have.
pub(crate) const MAX_ITEMS: usize = u16::MAX as usize / 2;

/// Numbers of an item in the reply.
pub(crate) const NUMBERS: usize = 5;

/// Bytes of an item, and where its kind and its op stand.
const ITEM: usize = 84;
const KIND: usize = 8;
const OP: usize = 33;

impl Message {
    pub(crate) fn takes_leases(&self) -> bool {
        self.takes_leases
    }

    pub(crate) fn begin_group(&mut self, items: usize) {
        // The store sees to it that they are no more.
        self.groups.extend_from_slice(&u16::try_from(items).unwrap_or(u16::MAX).to_le_bytes());
    }

    pub(crate) fn push(&mut self, item: Item<'_>) {
        let Item { family, parameters, since, act, ask, keys } = item;
        let position = self.position(keys);
        let micros = |nanos: Option<u64>| nanos.map_or(-1.0, double);
        let critical = parameters.room() == Room::Fleet && ask.critical;
        self.takes_leases |= act == Act::Charge && parameters.room().is_leased();
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

    /// This message with another one's groups behind its own.
    pub(crate) fn followed_by(mut self, other: &Self) -> Self {
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
        self.takes_leases |= other.takes_leases;
        self
    }

    /// What gives back the leases that this message has taken by its reply, or may have taken if there is none.
    pub(crate) fn giving_back_leases(&self, reply: Option<&Reply>) -> Option<Self> {
        let mut taken = reply.map(Reply::taken);
        let mut back = Self::default();
        let mut items = Vec::new();
        let mut rest = self.groups.as_slice();
        while let Some((count, group)) = rest.split_first_chunk() {
            let (group, behind) = group.split_at_checked(usize::from(u16::from_le_bytes(*count)) * ITEM)?;
            rest = behind;
            for item in group.chunks_exact(ITEM) {
                let is_taken = taken.as_mut().is_none_or(|taken| taken.next().unwrap_or(false));
                let (kind, op) = (item.get(KIND).copied()?, item.get(OP).copied()?);
                if is_taken && op == Act::Charge as u8 && is_leased(kind) {
                    let start = items.len();
                    items.extend_from_slice(item);
                    *items.get_mut(start + OP)? = Act::Undo as u8;
                    back.positions.push(2 + start + OP + 1);
                    back.items += 1;
                }
            }
        }
        if back.items == 0 {
            return None;
        }
        back.begin_group(back.items);
        back.groups.extend_from_slice(&items);
        back.keys.clone_from(&self.keys);
        Some(back)
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
#[derive(Clone, Debug, Default)]
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

    /// Whether everything was allowed.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcomes().all(|outcome| outcome.allowed)
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

#[cfg(test)]
mod tests {
    use tollgate_core::Limit;
    use tollgate_core::concurrency::LeaseId;

    use super::*;

    fn push(message: &mut Message, limit: &Limit, act: Act, key: &str) {
        let parameters = Parameters::of(limit).unwrap();
        let keys = (key.as_bytes().to_vec(), None);
        let ask = Ask { lease: LeaseId(7), ..Ask::from(2) };
        message.push(Item { family: [1; 8], parameters: &parameters, since: None, act, ask, keys });
    }

    #[test]
    fn only_leases_that_were_taken_are_given_back() {
        let rate = Limit::token_bucket(5, 1, Nanos::from_secs(1)).unwrap();
        let leases = Limit::leases(5, Nanos::from_secs(1)).unwrap();
        let mut message = Message::default();
        message.begin_group(3);
        push(&mut message, &rate, Act::Charge, "rates");
        push(&mut message, &leases, Act::Charge, "some");
        push(&mut message, &leases, Act::Charge, "others");
        assert!(message.takes_leases());

        let reply = |taken: [i64; 3]| {
            let numbers = taken.iter().flat_map(|allowed| [*allowed, 0, 0, 0, 0]).collect();
            Reply { now: Timestamp::ZERO, numbers }
        };
        let mut expected = Message::default();
        expected.begin_group(1);
        push(&mut expected, &leases, Act::Undo, "others");
        // The second lease was held before, so it is not this call's to give back.
        let back = message.giving_back_leases(Some(&reply([1, 2, 1]))).unwrap();
        let key = usize::from(back.groups[back.positions[0]]) - 1;
        assert_eq!((back.items, back.keys[key].as_slice()), (1, &b"others"[..]));
        assert_eq!(back.groups[2 + OP], Act::Undo as u8);
        assert_eq!(back.groups[..back.positions[0]], expected.groups[..expected.positions[0]]);
        assert!(message.giving_back_leases(Some(&reply([0, 0, 0]))).is_none());
        assert_eq!(message.giving_back_leases(None).unwrap().items, 2);
        assert!(!back.takes_leases());
    }
}
