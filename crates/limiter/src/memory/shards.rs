//! States larger than a word, and exact keys: maps behind locks, sharded by hash, under a ceiling in bytes.
//!
//! Nothing sweeps them. Every new key looks at a few entries in passing and drops the idle ones, so that what
//! is kept follows what is in use. At the ceiling the entry that is worth least makes room and is remembered as
//! [`evicted`](super::evicted). Requests in progress are never evicted.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::{Key, KeyRef};
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::store::StoreError;
use tollgate_core::{Nanos, Outcome, Timestamp};

use super::budget::Budget;
use super::evicted::Cause;
use super::family::Moves;
use super::rules::{Record, Rules, worth_of_state};
use super::table::Worth;

/// The maps.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Mutex<Shard>]>,
    exact: bool,
    budget: Arc<Budget>,
    /// How often [`relieve`](Self::relieve) was called.
    relieved: AtomicUsize,
    /// When all shards are searched again for an entry that can be evicted, after there was none.
    next_relief: AtomicU64,
}

/// Who is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    /// The rule's number and record.
    pub(crate) rule: u32,
    pub(crate) record: &'a Record,
    /// The key's hash under the rule's family, and a second, independent one.
    pub(crate) hash: u64,
    pub(crate) check: u64,
    pub(crate) key: KeyRef<'a>,
}

/// What is wanted of a state, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) op: Op,
    pub(crate) ask: &'a Ask,
    pub(crate) now: Timestamp,
    /// When that which is given back was taken.
    pub(crate) taken: Timestamp,
}

impl<'a> Call<'a> {
    #[inline]
    pub(crate) fn new(op: Op, ask: &'a Ask, now: Timestamp) -> Self {
        Self { op, ask, now, taken: ask.taken.unwrap_or(now) }
    }
}

#[derive(Debug)]
pub(crate) struct Shard {
    index: HashTable<u32>,
    entries: Vec<Entry>,
    budget: Arc<Budget>,
    /// Bytes of the list and the index themselves, as the budget knows them.
    own_bytes: usize,
    /// Where the key was that was found last: one call asks for the same several times, and many calls for the same.
    last: Cell<u32>,
    /// Where the next look in passing begins.
    hand: usize,
    evictions: u64,
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    identity: Identity,
    rule: u32,
    salt: u64,
    state: State,
}

/// What tells two keys of one hash apart.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    /// A second hash: 128 bits in all.
    Check(u64),
    /// The key itself.
    Exact(Box<[u8]>),
}

/// Entries looked at in passing by every new key, and in search of one to evict.
const PASSING: usize = 2;
const SEARCH: usize = 16;

/// How often all shards are searched for an entry that can be evicted, while there is none.
const RELIEF_EVERY: Nanos = Nanos::new(10_000_000);

/// What an allocator adds to what it is asked for, at most.
const ALLOCATION: usize = 24;

/// Bytes of an allocation of this size.
fn allocated(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + ALLOCATION }
}

impl Shards {
    /// Maps that draw from `budget`; `exact` ones keep whole keys.
    pub(crate) fn new(budget: Arc<Budget>, exact: bool) -> Self {
        let count = (budget.max_map_bytes() >> 16).clamp(1, 64).next_power_of_two();
        let shards = (0..count).map(|_| Mutex::new(Shard::new(Arc::clone(&budget))));
        Self {
            shards: shards.collect(),
            exact,
            budget,
            relieved: AtomicUsize::new(0),
            next_relief: AtomicU64::new(0),
        }
    }

    /// The number of the shard of a hash.
    pub(crate) fn index(&self, hash: u64) -> usize {
        (hash >> 32) as usize & (self.shards.len() - 1)
    }

    pub(crate) fn lock(&self, index: usize) -> Option<MutexGuard<'_, Shard>> {
        self.shards.get(index).map(Mutex::lock)
    }

    /// Whether keys are kept whole.
    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }

    fn identity(&self, target: &Target<'_>) -> Identity {
        if self.exact {
            Identity::Exact(tollgate_core::key::encoded(&target.key).into())
        } else {
            Identity::Check(target.check)
        }
    }

    /// Evictions so far.
    pub(crate) fn evictions(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().evictions).sum()
    }

    /// Number of entries that are not idle.
    pub(crate) fn count_live(&self, rules: &Rules, now: Timestamp) -> usize {
        self.shards.iter().map(|shard| shard.lock().count_live(rules, now)).sum()
    }

    /// Where a key is that was last charged under the same rule.
    #[inline(always)]
    pub(crate) fn seat(&self, shard: &Shard, target: &Target<'_>) -> Option<u32> {
        let position = shard.find(target, self.exact)?;
        shard.entry(position).filter(|entry| entry.rule == target.rule).map(|_| position)
    }

    /// Does `op` to a state, in its locked shard. `elsewhere` yields the state that a key has in the table, under another
    /// rule of its family.
    #[inline]
    pub(crate) fn apply(
        &self,
        shard: &mut Shard,
        rules: &Rules,
        target: &Target<'_>,
        call: &Call<'_>,
        elsewhere: impl Fn(Moves) -> Option<State>,
    ) -> Result<Outcome, StoreError> {
        let Some(position) = shard.find(target, self.exact) else {
            return self.apply_to_newcomer(shard, rules, target, call, elsewhere);
        };
        let Some(entry) = shard.entries.get_mut(position as usize) else { return Err(self.full()) };
        match (&target.record.limit, &mut entry.state) {
            _ if entry.rule != target.rule => {}
            // What is only looked at stays as large as it is.
            (limit, state) if call.op == Op::Estimate => {
                if let Some(outcome) = limit.estimate(state, call.now, *call.ask) {
                    return Ok(outcome);
                }
            }
            _ => {}
        }
        self.apply_and_resize(shard, rules, target, call, position)
    }

    /// The same for a state that may become larger or smaller.
    #[inline(never)]
    fn apply_and_resize(
        &self,
        shard: &mut Shard,
        rules: &Rules,
        target: &Target<'_>,
        call: &Call<'_>,
        position: u32,
    ) -> Result<Outcome, StoreError> {
        let Some(entry) = shard.entries.get_mut(position as usize) else { return Err(self.full()) };
        let before = entry.state.heap_bytes();
        if entry.rule != target.rule
            && let Some(outcome) = entry.carry(rules, target, call)
        {
            return Ok(outcome);
        }
        let limit = &target.record.limit;
        let outcome = limit.apply(call.op, &mut entry.state, call.now, *call.ask, call.taken);
        let after = entry.state.heap_bytes();
        if after == before {
            return Ok(outcome);
        }
        let (before, after) = (allocated(before), allocated(after));
        shard.budget.resize(before, after);
        // Where all is under the ceiling, so is this one.
        if after > before && shard.budget.is_short_of(0) {
            return self.settle_grown(shard, rules, target, call, (position, after), outcome);
        }
        Ok(outcome)
    }

    fn full(&self) -> StoreError {
        StoreError::Full { bytes: self.budget.max_map_bytes() }
    }

    /// The same for a key that is not here.
    #[cold]
    #[inline(never)]
    fn apply_to_newcomer(
        &self,
        shard: &mut Shard,
        rules: &Rules,
        target: &Target<'_>,
        call: &Call<'_>,
        elsewhere: impl Fn(Moves) -> Option<State>,
    ) -> Result<Outcome, StoreError> {
        let Call { op, ask: &ask, now, taken } = *call;
        let limit = &target.record.limit;
        let before = elsewhere(Moves::No);
        let must_put = before.is_some();
        let state = match before {
            Some(before) => {
                // Looking, and being refused, must not take from one plan what another would clip.
                let mut state = before.clone();
                let outcome = limit.apply(op, &mut state, now, ask, taken);
                if state == before {
                    return Ok(outcome);
                }
                elsewhere(Moves::Yes)
            }
            None => None,
        };
        let recalled = || rules.recall(target.rule, target.record, target.hash, now);
        let mut state = state.or_else(recalled).unwrap_or_else(|| limit.fresh());
        let given_back = matches!(op, Op::Refund | Op::Undo).then(|| state.clone());
        let outcome = limit.apply(op, &mut state, now, ask, taken);
        if !must_put && given_back.is_some_and(|before| before != state) {
            rules.remember(target.rule, target.hash, state, Cause::Unplaced, now);
            return Ok(outcome);
        }
        // Looking, giving back what is not there and being refused change nothing, unless refusals count.
        let charged = op == Op::Charge && ask.cost > 0 && (outcome.allowed || limit.counts_refused());
        if !must_put && (!charged || limit.is_idle(&state, now)) {
            return Ok(outcome);
        }
        let identity = self.identity(target);
        match shard.put(rules, target, identity, state, now, || self.relieve(rules, now)) {
            Put::Done => Ok(outcome),
            // Everything there is worth as much: it is remembered as if it had been put and evicted at once.
            Put::TooLight(state) => {
                shard.evictions += 1;
                rules.remember(target.rule, target.hash, state, Cause::Unplaced, now);
                Ok(outcome)
            }
            // A refusal needs no room.
            Put::Full if !outcome.allowed => Ok(outcome),
            Put::Full => Err(self.full()),
        }
    }

    /// What becomes of a call whose state has grown to so many bytes, at its position, while there is no room.
    #[cold]
    fn settle_grown(
        &self,
        shard: &mut Shard,
        rules: &Rules,
        target: &Target<'_>,
        call: &Call<'_>,
        (position, bytes): (u32, usize),
        outcome: Outcome,
    ) -> Result<Outcome, StoreError> {
        let Err((position, bytes)) = self.settle(shard, rules, call.now, position, bytes) else {
            return Ok(outcome);
        };
        // It cannot grow: the charge is taken back and the caller is told.
        if let Some(entry) = shard.entries.get_mut(position as usize)
            && call.op == Op::Charge
        {
            let _ = target.record.limit.apply(Op::Undo, &mut entry.state, call.now, *call.ask, call.now);
            entry.state.shrink();
            shard.budget.resize(bytes, allocated(entry.state.heap_bytes()));
        }
        if outcome.allowed { Err(self.full()) } else { Ok(outcome) }
    }

    /// Brings the store back under its ceiling after an entry has grown to so many bytes. One that takes much of the
    /// store becomes coarser before it costs others theirs. If there is no way: where it is then, and its bytes.
    fn settle(
        &self,
        shard: &mut Shard,
        rules: &Rules,
        now: Timestamp,
        mut position: u32,
        mut bytes: usize,
    ) -> Result<(), (u32, usize)> {
        loop {
            let is_large = bytes > shard.budget.map_bytes() / 16 && shard.budget.is_short_of(0);
            if !is_large {
                match shard.make_room(rules, now, position, || self.relieve(rules, now)) {
                    Ok(_) => return Ok(()),
                    Err(moved) => position = moved,
                }
            }
            let entry = shard.entries.get_mut(position as usize).ok_or((position, bytes))?;
            if !entry.state.compact() {
                let made = shard.make_room(rules, now, position, || self.relieve(rules, now));
                return made.map(|_| ()).map_err(|position| (position, bytes));
            }
            let smaller = allocated(entry.state.heap_bytes());
            shard.budget.resize(bytes, smaller);
            bytes = smaller;
        }
    }

    /// Evicts one entry from whichever shard can be had. A shard that others hold, or this thread itself, is passed
    /// over: waiting for it could be for ever. While all entries are of requests in progress, this looks at every one in vain:
    /// so a flood of those does not make it look each time.
    fn relieve(&self, rules: &Rules, now: Timestamp) -> bool {
        let wait = self.next_relief.load(Ordering::Relaxed).saturating_sub(now.as_nanos());
        if wait > 0 && wait <= RELIEF_EVERY.as_u64() {
            return false;
        }
        // Not always from the same shard.
        let first = self.relieved.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        let (before, from) = self.shards.split_at(first);
        let has_evicted = from.iter().chain(before).filter_map(Mutex::try_lock).any(|mut shard| {
            let least = shard.least(rules, now, None);
            least.map(|(position, _)| shard.evict(rules, position, now)).is_some()
        });
        if !has_evicted {
            self.next_relief.store((now + RELIEF_EVERY).as_nanos(), Ordering::Relaxed);
        }
        has_evicted
    }

    /// Takes a key's state out, with the rule under which it was charged last.
    pub(crate) fn take(&self, shard: &mut Shard, target: &Target<'_>) -> Option<(u32, State)> {
        let position = shard.find(target, self.exact)?;
        shard.drop_entry(position).map(|entry| (entry.rule, entry.state))
    }

    /// Forgets a key's state, but for requests in progress that are counted: they end, and would give back what others have taken.
    pub(crate) fn forget(&self, shard: &mut Shard, target: &Target<'_>) {
        let is_counted = |entry: &Entry| matches!(&entry.state, State::InProgress(used) if used.total() > 0);
        if let Some(position) = shard.find(target, self.exact)
            && !shard.entry(position).is_some_and(is_counted)
        {
            shard.drop_entry(position);
        }
    }

    /// A copy of a key's state, with the rule under which it was charged last.
    pub(crate) fn look(&self, shard: &Shard, target: &Target<'_>) -> Option<(u32, State)> {
        let entry = shard.entry(shard.find(target, self.exact)?)?;
        Some((entry.rule, entry.state.clone()))
    }

    /// The rule under which a key was charged last.
    pub(crate) fn rule_of(&self, shard: &Shard, target: &Target<'_>) -> Option<u32> {
        shard.entry(shard.find(target, self.exact)?).map(|entry| entry.rule)
    }

    /// Looks at a state, if there is one.
    pub(crate) fn with_state<R>(
        &self,
        shard: &Shard,
        target: &Target<'_>,
        look: impl FnOnce(&State) -> R,
    ) -> Option<R> {
        let position = shard.find(target, self.exact)?;
        shard.entries.get(position as usize).map(|entry| look(&entry.state))
    }
}

/// What became of a new key.
enum Put {
    Done,
    /// Everything else carries more: here is the state back.
    TooLight(State),
    Full,
}

impl Entry {
    /// Has it count under another rule, unless the call would change nothing there: then here is what it is told.
    #[cold]
    fn carry(&mut self, rules: &Rules, target: &Target<'_>, call: &Call<'_>) -> Option<Outcome> {
        let Call { op, ask: &ask, now, taken } = *call;
        let carried = rules.carry(self.rule, self.state.clone(), target.rule, now);
        let mut state = carried.clone();
        let outcome = target.record.limit.apply(op, &mut state, now, ask, taken);
        if state == carried {
            return Some(outcome);
        }
        (self.state, self.rule) = (carried, target.rule);
        None
    }

    /// Bytes beside its place in the list.
    fn bytes(&self) -> usize {
        let key = match &self.identity {
            Identity::Check(_) => 0,
            Identity::Exact(key) => key.len(),
        };
        allocated(key) + allocated(self.state.heap_bytes())
    }

    fn is(&self, target: &Target<'_>, exact: bool) -> bool {
        let same = self.hash == target.hash && self.salt == target.record.salt;
        same && match &self.identity {
            Identity::Check(check) => !exact && *check == target.check,
            Identity::Exact(key) => key.split_first().is_some_and(|(&kind, bytes)| {
                target.key.with(|key| kind == key.kind as u8 && bytes == key.bytes)
            }),
        }
    }
}

impl Shard {
    fn new(budget: Arc<Budget>) -> Self {
        Self {
            index: HashTable::new(),
            entries: Vec::new(),
            budget,
            own_bytes: 0,
            last: Cell::new(0),
            hand: 0,
            evictions: 0,
        }
    }

    fn entry(&self, position: u32) -> Option<&Entry> {
        self.entries.get(position as usize)
    }

    /// What is counted of the key at a position. It becomes neither larger nor smaller by that, nor does it depend on the time.
    #[inline(always)]
    pub(crate) fn counted(&mut self, position: u32) -> Option<&mut InProgress> {
        match &mut self.entries.get_mut(position as usize)?.state {
            State::InProgress(used) => Some(used),
            _ => None,
        }
    }

    #[inline]
    fn find(&self, target: &Target<'_>, exact: bool) -> Option<u32> {
        let is = |&position: &u32| self.entry(position).is_some_and(|entry| entry.is(target, exact));
        let last = self.last.get();
        if is(&last) {
            return Some(last);
        }
        let found = self.index.find(target.hash, is).copied()?;
        self.last.set(found);
        Some(found)
    }

    /// Takes an entry out. The last one takes its place.
    fn drop_entry(&mut self, position: u32) -> Option<Entry> {
        let last = self.entries.len().checked_sub(1)? as u32;
        let entry = (position <= last).then(|| self.entries.swap_remove(position as usize))?;
        if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == position) {
            found.remove();
        }
        if let Some(moved) = self.entries.get(position as usize)
            && let Some(place) = self.index.find_mut(moved.hash, |&other| other == last)
        {
            *place = position;
        }
        self.budget.sub(entry.bytes());
        if self.entries.len() < self.entries.capacity() / 2 {
            self.entries.shrink_to(self.entries.len() + Self::more(self.entries.len()));
            let Self { index, entries, .. } = self;
            let hash = |&position: &u32| entries.get(position as usize).map_or(0, |entry| entry.hash);
            index.shrink_to(entries.capacity(), hash);
            self.count_own_bytes();
        }
        Some(entry)
    }

    fn count_live(&self, rules: &Rules, now: Timestamp) -> usize {
        self.entries.iter().filter(|entry| !rules.is_idle(entry.rule, &entry.state, now)).count()
    }

    fn put(
        &mut self,
        rules: &Rules,
        target: &Target<'_>,
        identity: Identity,
        state: State,
        now: Timestamp,
        mut relieve: impl FnMut() -> bool,
    ) -> Put {
        self.drop_idle(rules, PASSING, now);
        let entry = Entry { hash: target.hash, identity, rule: target.rule, salt: target.record.salt, state };
        let limit = &target.record.limit;
        if entry.bytes() > self.budget.map_bytes() {
            return Put::Full;
        }
        while self.budget.is_short_of(entry.bytes() + self.growth()) {
            let own = worth_of_state(limit, &entry.state, now);
            match self.least(rules, now, None) {
                Some((_, least)) if least.0 >= own && !limit.is_pinned(&entry.state, now) => {
                    return Put::TooLight(entry.state);
                }
                Some((position, _)) => self.evict(rules, position, now),
                None if self.drop_idle(rules, self.entries.len(), now) > 0 => {}
                None if relieve() => {}
                None => return Put::Full,
            }
        }
        self.budget.add(entry.bytes());
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(Self::more(self.entries.len()));
        }
        let (hash, position) = (entry.hash, self.entries.len() as u32);
        self.entries.push(entry);
        let Self { index, entries, .. } = self;
        index.insert_unique(hash, position, |&position| {
            entries.get(position as usize).map_or(0, |entry| entry.hash)
        });
        self.count_own_bytes();
        Put::Done
    }

    /// By how many places a list of this length grows.
    fn more(len: usize) -> usize {
        (len / 4).max(2)
    }

    /// Bytes by which one more entry would make the list and the index grow.
    fn growth(&self) -> usize {
        let list = match self.entries.len() == self.entries.capacity() {
            true => Self::more(self.entries.len()) * size_of::<Entry>(),
            false => 0,
        };
        let index = match self.index.len() == self.index.capacity() {
            true => self.index.allocation_size().max(64),
            false => 0,
        };
        list + index
    }

    /// Lets the budget know how large the list and the index are.
    fn count_own_bytes(&mut self) {
        let now = self.entries.capacity() * size_of::<Entry>() + self.index.allocation_size();
        self.budget.resize(self.own_bytes, now);
        self.own_bytes = now;
    }

    /// Evicts others than `keep` until all is under the ceiling again, or fails to. Tells where `keep` is then.
    fn make_room(
        &mut self,
        rules: &Rules,
        now: Timestamp,
        mut keep: u32,
        mut relieve: impl FnMut() -> bool,
    ) -> Result<u32, u32> {
        if self.entry(keep).map_or(0, Entry::bytes) > self.budget.map_bytes() {
            return Err(keep);
        }
        while self.budget.is_short_of(0) {
            match self.least(rules, now, Some(keep)) {
                Some((position, _)) => {
                    self.evict(rules, position, now);
                    if keep as usize == self.entries.len() {
                        keep = position;
                    }
                }
                None if relieve() => {}
                None => return Err(keep),
            }
        }
        Ok(keep)
    }

    /// Drops the idle ones among the next `count` entries.
    fn drop_idle(&mut self, rules: &Rules, count: usize, now: Timestamp) -> usize {
        let mut dropped = 0;
        for _ in 0..count.min(self.entries.len()) {
            let position = self.advance();
            let idle = self.entry(position).is_some_and(|entry| rules.is_idle(entry.rule, &entry.state, now));
            if idle {
                self.drop_entry(position);
                dropped += 1;
            }
        }
        dropped
    }

    fn advance(&mut self) -> u32 {
        self.hand = (self.hand + 1) % self.entries.len().max(1);
        self.hand as u32
    }

    /// Among the next few entries, the one that is worth least and of those the one that carries least; further ones only
    /// while none may go.
    fn least(&mut self, rules: &Rules, now: Timestamp, keep: Option<u32>) -> Option<(u32, (Worth, u64))> {
        let mut least: Option<(u32, (Worth, u64))> = None;
        for looked in 0..self.entries.len() {
            if looked >= SEARCH && least.is_some() {
                break;
            }
            let position = self.advance();
            let Some(entry) = self.entry(position).filter(|_| keep != Some(position)) else {
                continue;
            };
            let Some(record) = rules.get(entry.rule) else {
                continue;
            };
            if record.limit.is_pinned(&entry.state, now) {
                continue;
            }
            let (limit, state) = (&record.limit, &entry.state);
            let worth = (worth_of_state(limit, state, now), limit.level(state, now));
            if least.is_none_or(|(_, least)| worth < least) {
                least = Some((position, worth));
            }
        }
        least
    }

    fn evict(&mut self, rules: &Rules, position: u32, now: Timestamp) {
        let Some(entry) = self.drop_entry(position) else { return };
        if rules.is_idle(entry.rule, &entry.state, now) {
            return;
        }
        self.evictions += 1;
        rules.remember(entry.rule, entry.hash, entry.state, Cause::Evicted, now);
    }
}
