//! The usual call: one bucket at the most, and requests in progress that are counted by two limits at the most, all of keys that are
//! known here. Nearly every request is one, so it is decided on one screen. Whatever is not as usual goes the way of
//! [`group`](super::group), which decides the same.

use tollgate_core::limit::Op;
use tollgate_core::store::Charge;
use tollgate_core::{Outcome, Timestamp};

use super::MemoryStore;
use super::rules::Record;
use super::shards::{Shard, Target};

/// A charge, and the record of its rule.
type Ruled<'s, 'c> = (&'c Charge<'c>, &'s Record);

impl MemoryStore {
    /// Whether it may be a usual call, as far as its limits go.
    #[inline]
    pub(super) fn is_usual(&self, charges: &[Charge<'_>]) -> bool {
        let (mut words, mut counted) = (0, 0);
        for charge in charges {
            let Some(record) = self.rules.get(charge.rule.0) else { return false };
            words += usize::from(record.in_table);
            counted += usize::from(record.is_counted);
            if words > 1 || counted > 2 {
                return false;
            }
        }
        words + counted == charges.len() && counted > 0
    }

    /// What each charge is told, and when it was decided. Nothing is done, and nothing told, if the call is not a usual one.
    #[inline(never)]
    pub(super) fn charge_usual<'c>(
        &self,
        charges: &'c [Charge<'c>],
        at: Option<Timestamp>,
    ) -> Option<(Vec<Outcome>, Timestamp)> {
        let now = self.time_soon(at);
        let (mut word, mut first, mut second): (Option<Ruled<'_, '_>>, Option<Ruled<'_, '_>>, _) = (None, None, None);
        for charge in charges {
            let record = self.rules.get(charge.rule.0).filter(|record| record.is_valid(now))?;
            let place = match record.in_table {
                true => &mut word,
                false if first.is_none() => &mut first,
                false => &mut second,
            };
            *place = Some((charge, record));
        }
        let (first, first_record) = first?;
        let hash = self.hash_key(first.key);
        let target = self.counted_target(first, first_record, hash);
        let first_index = self.shards.index(target.hash);
        let mut first_shard = self.shards.try_lock(first_index)?;
        let first_seat = self.shards.seat(&first_shard, &target)?;
        let mut has_room = first_record.limit.has_room(first_shard.counted(first_seat)?, &first.ask);
        // Of the same shard, or of one that can be had at once: to wait for a second one could be for ever.
        let mut second_shard = None;
        let mut second_seat = 0;
        if let Some((second, record)) = second {
            // Charges of the same limit count together.
            if second.rule == first.rule {
                return None;
            }
            let target = self.counted_target(second, record, self.hash_key(second.key));
            let index = self.shards.index(target.hash);
            if index != first_index {
                second_shard = Some(self.shards.try_lock(index)?);
            }
            let shard: &mut Shard = second_shard.as_mut().unwrap_or(&mut first_shard);
            second_seat = self.shards.seat(shard, &target)?;
            has_room &= record.limit.has_room(shard.counted(second_seat)?, &second.ask);
        }
        // What is counted is locked, and a word decides by itself: if all else would pass, it is charged, and if it refuses,
        // nothing was touched.
        let mut by_word = None;
        if let Some((charge, record)) = word {
            if !has_room {
                return None;
            }
            let is_same_key = charge.key.kind == first.key.kind && std::ptr::eq(charge.key.bytes, first.key.bytes);
            let hash = if is_same_key { hash } else { self.hash_key(charge.key) } ^ record.salt;
            let line = self.table.fetch(self.table.place(hash))?;
            let charged = self.charge_line(line, charge.rule.0, record, hash, now, charge.ask.cost, at)?;
            has_room = charged.is_ok();
            by_word = Some(charged.unwrap_or_else(|refused| refused));
        }
        let op = if has_room { Op::Charge } else { Op::Estimate };
        let mut outcomes = Vec::with_capacity(charges.len());
        for charge in charges {
            let counted = if std::ptr::eq(charge, first) {
                first_record.limit.count(op, first_shard.counted(first_seat)?, &charge.ask)
            } else if let Some((_, record)) = second.filter(|(second, _)| std::ptr::eq(charge, *second)) {
                let shard: &mut Shard = second_shard.as_mut().unwrap_or(&mut first_shard);
                record.limit.count(op, shard.counted(second_seat)?, &charge.ask)
            } else {
                by_word
            };
            outcomes.extend(counted);
        }
        Some((outcomes, now))
    }

    /// Gives back what was counted, of a key that is where it was. Else nothing is done, and nothing told.
    #[inline]
    pub(super) fn uncount(&self, charge: &Charge<'_>) -> Option<()> {
        let record = self.rules.get(charge.rule.0).filter(|record| record.is_counted && record.is_lasting())?;
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
