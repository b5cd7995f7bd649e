//! The usual call: one bucket at the most, one count of requests in progress, and a place of the fleet, all of keys that are known here.
//! Nearly every request is one, so it is decided on one screen. Whatever is not as usual goes the way of [`group`](super::group),
//! which decides the same.

use tollgate_core::limit::Op;
use tollgate_core::store::Charge;
use tollgate_core::{Outcome, Outcomes, Timestamp};

use super::MemoryStore;
use super::rules::Record;
use super::shards::{Call, Target};

/// One of the charges of a call.
#[derive(Clone, Copy)]
struct Ruled<'s, 'c> {
    /// Which of them.
    place: usize,
    charge: &'c Charge<'c>,
    /// The record of its rule.
    record: &'s Record,
}

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
    /// Whether the call passes, and what each charge is told. If it is not a usual one nothing is done, and what is told means nothing.
    #[inline]
    pub(super) fn charge_usual<'c>(
        &self,
        charges: &'c [Charge<'c>],
        at: Option<Timestamp>,
        told: &mut Outcomes,
    ) -> Option<bool> {
        let mut sorted = Sorted::default();
        for (place, charge) in charges.iter().enumerate() {
            let record = self.rules.get(charge.rule.0)?;
            let one = match record {
                _ if record.in_table => &mut sorted.word,
                _ if record.holds(charge.key) => &mut sorted.placed,
                _ if record.is_counted => &mut sorted.counted,
                _ => return None,
            };
            if one.replace(Ruled { place, charge, record }).is_some() {
                return None;
            }
        }
        // Each is told in its place.
        told.clear();
        told.extend_from_slice([Outcome::allow(0, 0); 3].get(..charges.len())?);
        self.charge_sorted(sorted, at, told)
    }

    #[inline(never)]
    fn charge_sorted(
        &self,
        Sorted { word, counted, placed }: Sorted<'_, '_>,
        at: Option<Timestamp>,
        told: &mut [Outcome],
    ) -> Option<bool> {
        let now = self.time_soon(at);
        if ![word, counted, placed].iter().flatten().all(|it| it.record.is_valid(now)) {
            return None;
        }
        // Where the last places are fought for it is seen on the long way who gets them.
        let placed = match placed {
            Some(it) => Some((it, it.record.room_for(&it.charge.ask)?)),
            None => None,
        };
        let mut tell = |of: &Ruled<'_, '_>, outcome| {
            if let Some(place) = told.get_mut(of.place) {
                *place = outcome;
            }
        };
        let mut has_room = true;
        let mut hashed = None;
        let mut seat = None;
        if let Some(Ruled { charge, record, .. }) = counted {
            let hash = self.hash_key(charge.key);
            let target = self.counted_target(charge, record, hash);
            let mut shard = self.shards.lock(self.shards.index(target.hash))?;
            let position = self.shards.seat(&shard, &target)?;
            has_room = record.limit.has_room(shard.counted(position)?, &charge.ask);
            hashed = Some((charge.key, hash));
            seat = Some((shard, position));
        }
        // If all else would pass, a word decides by itself, and if it refuses, nothing was touched.
        let mut word_hash = 0;
        if let Some(it @ Ruled { charge, record, .. }) = &word {
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
            word_hash = hash ^ record.salt;
            let line = self.table.fetch(self.table.place(word_hash))?;
            let charged =
                self.charge_line(line, charge.rule.0, record, word_hash, now, charge.ask.cost, at)?;
            has_room = charged.is_ok();
            tell(it, charged.unwrap_or_else(|refused| refused));
        }
        if let Some((it, room)) = &placed {
            let ask = &it.charge.ask;
            let taken = if has_room {
                it.record.take_places(*room, ask)
            } else {
                Some(it.record.count_places(Op::Estimate, ask))
            };
            let Some(outcome) = taken else {
                drop(seat);
                if let Some(word) = &word {
                    self.undo_word(word.charge, word.record, word_hash, now, at);
                }
                return None;
            };
            tell(it, outcome);
        }
        if let (Some(it), Some((shard, position))) = (&counted, &mut seat) {
            let (limit, used, ask) = (&it.record.limit, shard.counted(*position)?, &it.charge.ask);
            let outcome =
                if has_room { limit.take(used, ask)? } else { limit.count(Op::Estimate, used, ask)? };
            tell(it, outcome);
        }
        Some(has_room)
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
            record.uncount_places(&charge.ask);
            return Some(());
        }
        let target = self.counted_target(charge, record, self.hash_key(charge.key));
        let mut shard = self.shards.lock(self.shards.index(target.hash))?;
        let seat = self.shards.seat(&shard, &target)?;
        record.limit.uncount(shard.counted(seat)?, &charge.ask);
        Some(())
    }

    #[inline(always)]
    fn counted_target<'a>(&self, charge: &Charge<'a>, record: &'a Record, hash: u64) -> Target<'a> {
        let check = self.check(charge.key);
        Target { rule: charge.rule.0, record, hash: hash ^ record.salt, check, key: charge.key }
    }
}
