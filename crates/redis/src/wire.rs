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
//! since     f64          when the limit changed to these numbers; see `Since`
//! extra     f64
//! lease     16 bytes
//! ```

use smallvec::SmallVec;
use tollgate_core::concurrency::InProgress;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::{Nanos, Outcome, Timestamp};

use crate::keys::FamilyId;
use crate::limits::{CRITICAL, Parameters, Room, double, is_leased};
use crate::link::BATCH;

/// The groups of one call: keys, and the argument but for the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) keys: Keys,
    groups: Vec<u8>,
    pub(crate) items: usize,
    /// Where the positions of keys stand in `groups`.
    positions: SmallVec<[usize; 3]>,
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

/// What becomes of a state that was charged under another limit of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// That limit is still somebody's: the state moves when a call passes, and a refused one takes nothing from it.
    Beside,
    /// This limit took its place at an instant that nobody told: the state moves when it is seen.
    Unknown,
    /// This limit took its place then, in microseconds.
    At(u64),
    /// A policy was changed then: what was charged before moves when it is seen, what was charged later is beside.
    Superseded(u64),
}

impl Since {
    fn number(self) -> f64 {
        match self {
            Self::Unknown => -1.0,
            Self::Beside => -2.0,
            Self::At(micros) => double(micros),
            Self::Superseded(micros) => -double(micros.max(3)),
        }
    }
}

/// One item of a group.
pub(crate) struct Item<'a> {
    pub(crate) family: FamilyId,
    pub(crate) parameters: &'a Parameters,
    pub(crate) since: Since,
    pub(crate) act: Act,
    pub(crate) ask: Ask,
    /// Its keys, one behind the other in `KEYS`. The first one tells which the others are.
    pub(crate) keys: Keys,
}

/// The keys of an item.
pub(crate) type Keys = SmallVec<[Vec<u8>; 3]>;

/// Items that a group may have. With three keys each, and as many groups as share a call, positions fit.
pub(crate) const MAX_ITEMS: usize = u16::MAX as usize / 3 / BATCH;

/// Numbers of an item in the reply: allowed, remaining, retry after, reset after, delay.
const NUMBERS: usize = 5;

/// Bytes of an item, and where its kind and its op stand.
const ITEM: usize = 84;
const KIND: usize = 8;
const OP: usize = 33;

impl Message {
    pub(crate) fn takes_leases(&self) -> bool {
        self.takes_leases
    }

    pub(crate) fn begin_group(&mut self, items: usize) {
        self.groups.reserve(2 + items * ITEM);
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
        self.number(since.number());
        self.number(extra);
        self.groups.extend_from_slice(&ask.lease.0.to_be_bytes());
        self.items += 1;
    }

    fn number(&mut self, number: f64) {
        self.groups.extend_from_slice(&number.to_le_bytes());
    }

    fn position(&mut self, keys: Keys) -> u16 {
        let added = keys.len();
        // A rate's one key may stand there as another's last: then it is found, too.
        let known = self.keys.windows(keys.len()).position(|known| known == keys.as_slice());
        let position = known.unwrap_or_else(|| {
            self.keys.extend(keys);
            self.keys.len() - added
        });
        u16::try_from(position + 1).unwrap_or(u16::MAX)
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
}

/// The script's argument for messages that are sent as one, whose keys follow each other; at a time of the caller's own
/// or at the server's.
pub(crate) fn argument<'m>(
    messages: impl Iterator<Item = &'m Message> + Clone,
    at: Option<Timestamp>,
) -> Vec<u8> {
    let size = messages.clone().map(|message| message.groups.len()).sum::<usize>();
    let mut argument = Vec::with_capacity(8 + size);
    let now = at.map_or(-1.0, |at| double(at.as_nanos() / 1000));
    argument.extend_from_slice(&now.to_le_bytes());
    let mut shift = 0;
    for message in messages {
        let start = argument.len();
        argument.extend_from_slice(&message.groups);
        for &position in &message.positions {
            let position = start + position;
            if let Some(bytes) = argument.get_mut(position..position + 2)
                && let [low, high] = *bytes
            {
                let moved = u16::from_le_bytes([low, high]).saturating_add(shift);
                bytes.copy_from_slice(&moved.to_le_bytes());
            }
        }
        shift = shift.saturating_add(u16::try_from(message.keys.len()).unwrap_or(u16::MAX));
    }
    argument
}

/// What the script answered to one message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    /// When it was decided.
    pub(crate) now: Timestamp,
    items: SmallVec<[[i64; NUMBERS]; 3]>,
}

impl Reply {
    /// From the doubles that the script answers with.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        // The script's numbers are whole.
        let number = |bytes: [u8; 8]| f64::from_le_bytes(bytes) as i64;
        let (now, items) = bytes.split_first_chunk()?;
        let (numbers, []) = items.as_chunks() else { return None };
        let (items, []) = numbers.as_chunks::<NUMBERS>() else { return None };
        let now = Timestamp::from_nanos(number(*now).unsigned_abs().saturating_mul(1000));
        Some(Self { now, items: items.iter().map(|item| item.map(number)).collect() })
    }

    /// The replies to messages with so many items each that were sent as one.
    pub(crate) fn split(self, items: impl Iterator<Item = usize>) -> impl Iterator<Item = Self> {
        let mut rest = self.items.into_iter();
        items.map(move |count| Self { now: self.now, items: rest.by_ref().take(count).collect() })
    }

    /// The outcome of each item.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = Outcome> + '_ {
        self.items.iter().map(|&[allowed, remaining, retry, reset, delay]| Outcome {
            allowed: allowed > 0,
            remaining: remaining.unsigned_abs(),
            retry_after: (retry >= 0).then(|| nanos(retry)),
            reset_after: nanos(reset),
            delay: nanos(delay),
        })
    }

    /// Whether everything was allowed.
    pub(crate) fn is_allowed(&self) -> bool {
        self.outcomes().all(|outcome| outcome.allowed)
    }

    /// For each item, whether something was taken that an undo would have to give back.
    pub(crate) fn taken(&self) -> impl Iterator<Item = bool> + '_ {
        self.items.iter().map(|&[allowed, ..]| allowed == 1)
    }

    /// The answer to a count.
    pub(crate) fn in_progress(&self) -> InProgress {
        match self.items.first() {
            Some([_, other, critical, ..]) => {
                InProgress { critical: critical.unsigned_abs(), other: other.unsigned_abs() }
            }
            None => InProgress::default(),
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
        let keys = Keys::from_iter([key.as_bytes().to_vec(), b"string".to_vec()]);
        let ask = Ask { lease: LeaseId(7), ..Ask::from(2) };
        message.push(Item { family: [1; 8], parameters: &parameters, since: Since::Beside, act, ask, keys });
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
            let items = taken.iter().map(|allowed| [*allowed, 0, 0, 0, 0]).collect();
            Reply { now: Timestamp::ZERO, items }
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
