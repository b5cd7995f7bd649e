//! The usual call: one bucket at the most, one count of requests in progress, and a place of the fleet, all of keys that are known here.
//! Nearly every request is one, so it is decided on one screen. Whatever is not as usual goes the way of [`group`](super::group),
//! which decides the same.

use tollgate_core::limit::Op;
use tollgate_core::store::Charge;
use tollgate_core::{Outcome, Timestamp};

use super::MemoryStore;
use super::rules::Record;
use super::shards::{Call, Target};

/// A charge, and the record of its rule.
type Ruled<'s, 'c> = (&'c Charge<'c>, &'s Record);

/// The charges of a usual call, by where their states are.
#[derive(Clone, Copy, Default)]
struct Sorted<'s, 'c> {
    /// A word of the table.
    word: Option<Ruled<'s, 'c>>,
    /// A count in the maps.
    counted: Option<Ruled<'s, 'c>>,
    /// The places of a fleet.
    placed: Option<Ruled<'s, 'c>>,
}

impl MemoryStore {
    /// What each charge is told. Nothing is done, and nothing told, if the call is not a usual one.
    #[inline]
    pub(super) fn charge_usual<'c>(
        &self,
        charges: &'c [Charge<'c>],
        at: Option<Timestamp>,
    ) -> Option<Vec<Outcome>> {
        let mut sorted = Sorted::default();
        for charge in charges {
            let record = self.rules.get(charge.rule.0)?;
            let place = match record {
                _ if record.in_table => &mut sorted.word,
                _ if record.holds(charge.key) => &mut sorted.placed,
                _ if record.is_counted => &mut sorted.counted,
                _ => return None,
            };
            if place.replace((charge, record)).is_some() {
                return None;
            }
        }
        self.charge_sorted(charges, sorted, at)
    }

    #[inline(never)]
    fn charge_sorted<'c>(
        &self,
        charges: &'c [Charge<'c>],
        Sorted { word, counted, placed }: Sorted<'_, 'c>,
        at: Option<Timestamp>,
    ) -> Option<Vec<Outcome>> {
        let now = self.time_soon(at);
        if ![word, counted, placed].iter().flatten().all(|(_, record)| record.is_valid(now)) {
            return None;
        }
        // Where the last places are fought for it is seen on the long way who gets them.
        if placed.is_some_and(|(charge, record)| !record.has_places_for(&charge.ask)) {
            return None;
        }
        let mut has_room = true;
        let mut hashed = None;
        let mut seat = None;
        if let Some((charge, record)) = counted {
            let hash = self.hash_key(charge.key);
            let target = self.counted_target(charge, record, hash);
            let mut shard = self.shards.lock(self.shards.index(target.hash))?;
            let position = self.shards.seat(&shard, &target)?;
            has_room = record.limit.has_room(shard.counted(position)?, &charge.ask);
            hashed = Some((charge.key, hash));
            seat = Some((shard, position));
        }
        // If all else would pass, a word decides by itself, and if it refuses, nothing was touched.
        let mut by_word = None;
        if let Some((charge, record)) = word {
            if !has_room {
                return None;
            }
            let hash = match hashed {
                // Most limits of a call are of the same key: it is hashed once.
                Some((key, hash))
                    if key.kind == charge.key.kind && std::ptr::eq(key.bytes, charge.key.bytes) =>
                {
                    hash
                }
                _ => self.hash_key(charge.key),
            };
            let hash = hash ^ record.salt;
            let line = self.table.fetch(self.table.place(hash))?;
            let charged = self.charge_line(line, charge.rule.0, record, hash, now, charge.ask.cost, at)?;
            has_room = charged.is_ok();
            by_word = Some((hash, charged.unwrap_or_else(|refused| refused)));
        }
        let op = if has_room { Op::Charge } else { Op::Estimate };
        let by_place = placed.map(|(charge, record)| record.count_places(op, &charge.ask));
        if has_room && by_place.is_some_and(|outcome| !outcome.allowed) {
            drop(seat);
            if let (Some((charge, record)), Some((hash, _))) = (word, by_word) {
                self.undo_word(charge, record, hash, now, at);
            }
            return None;
        }
        let by_count = match (counted, &mut seat) {
            (Some((charge, record)), Some((shard, position))) => {
                record.limit.count(op, shard.counted(*position)?, &charge.ask)
            }
            _ => None,
        };
        let is = |of: Option<Ruled<'_, 'c>>, charge| of.is_some_and(|(of, _)| std::ptr::eq(of, charge));
        let mut outcomes = Vec::with_capacity(charges.len());
        for charge in charges {
            let told = match charge {
                _ if is(counted, charge) => by_count,
                _ if is(placed, charge) => by_place,
                _ => by_word.map(|(_, outcome)| outcome),
            };
            if let Some(told) = told {
                outcomes.push(told);
            }
        }
        Some(outcomes)
    }

    /// Others have taken the last places since they were looked at: what the call has taken goes back.
    #[cold]
    fn undo_word(
        &self,
        charge: &Charge<'_>,
        record: &Record,
        hash: u64,
        taken: Timestamp,
        at: Option<Timestamp>,
    ) {
        let undo = Call { op: Op::Undo, ask: &charge.ask, now: self.latest_seen(at).max(taken), taken };
        let _ = self.decide_in_table(charge.rule.0, record, hash, charge.key, &undo, None);
    }

    /// Gives back what was counted, of a key that is where it was. Else nothing is done, and nothing told.
    #[inline]
    pub(super) fn uncount(&self, charge: &Charge<'_>) -> Option<()> {
        let record =
            self.rules.get(charge.rule.0).filter(|record| record.is_counted && record.is_lasting())?;
        if record.holds(charge.key) {
            let _ = record.count_places(Op::Refund, &charge.ask);
            return Some(());
        }
        let target = self.counted_target(charge, record, self.hash_key(charge.key));
        let mut shard = self.shards.lock(self.shards.index(target.hash))?;
        let seat = self.shards.seat(&shard, &target)?;
        record.limit.count(Op::Refund, shard.counted(seat)?, &charge.ask).map(|_| ())
    }

    #[inline(always)]
    fn counted_target<'a>(&self, charge: &Charge<'a>, record: &'a Record, hash: u64) -> Target<'a> {
        let check = self.check(charge.key);
        Target { rule: charge.rule.0, record, hash: hash ^ record.salt, check, key: charge.key }
    }
}
