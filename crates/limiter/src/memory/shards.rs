//! States larger than a word, and exact keys: maps behind locks, sharded by hash, under a ceiling in bytes.
//!
//! Nothing sweeps them. Every new key looks at a few entries in passing and drops the idle ones, so that what
//! is kept follows what is in use. At the ceiling the entry that carries least makes room and leaves its state
//! as the floor from which newcomers of its rule start. Requests in progress are never forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{HashMap, HashTable};
use parking_lot::{Mutex, MutexGuard};
use tollgate_core::key::{Key, KeyRef};
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::store::StoreError;
use tollgate_core::{Outcome, Timestamp};

use super::rules::{Record, Rules};

/// The maps.
#[derive(Debug)]
pub(crate) struct Shards {
    shards: Box<[Mutex<Shard>]>,
    exact: bool,
    budget: Arc<Budget>,
}

/// The bytes of all shards together, and their ceiling.
#[derive(Debug)]
struct Budget {
    used: AtomicUsize,
    ceiling: usize,
}

impl Budget {
    fn add(&self, bytes: usize) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    fn sub(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether `more` bytes would pass the ceiling.
    fn is_short_of(&self, more: usize) -> bool {
        self.used.load(Ordering::Relaxed).saturating_add(more) > self.ceiling
    }
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

impl Target<'_> {
    /// Whether both are the same key under the same rule.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.rule == other.rule && self.key == other.key
    }
}

/// What is wanted of a state, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) op: Op,
    pub(crate) ask: Ask,
    pub(crate) now: Timestamp,
    /// When that which is given back was taken.
    pub(crate) taken: Timestamp,
}

#[derive(Debug)]
pub(crate) struct Shard {
    index: HashTable<u32>,
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// The highest states evicted, by rule.
    floors: HashMap<u32, State>,
    budget: Arc<Budget>,
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

/// An entry with its place in the index and in the list.
const ENTRY_BYTES: usize = size_of::<Option<Entry>>() + 2 * size_of::<u32>() + 2;

impl Shards {
    /// Maps that hold at most `bytes`; `exact` ones keep whole keys.
    pub(crate) fn with_bytes(bytes: usize, exact: bool) -> Self {
        let count = (bytes >> 16).clamp(1, 64).next_power_of_two();
        let budget = Arc::new(Budget { used: AtomicUsize::new(0), ceiling: bytes });
        let shards = (0..count).map(|_| Mutex::new(Shard::new(Arc::clone(&budget))));
        Self { shards: shards.collect(), exact, budget }
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

    /// Bytes in use, live entries and evictions so far.
    pub(crate) fn usage(&self) -> (usize, usize, u64) {
        let bytes = self.budget.used.load(Ordering::Relaxed);
        self.shards.iter().fold((bytes, 0, 0), |(bytes, keys, evictions), shard| {
            let shard = shard.lock();
            (bytes, keys + shard.index.len(), evictions + shard.evictions)
        })
    }

    /// Does `op` to a state, in its locked shard. `adopt` yields the state of a key that is not here but was
    /// kept elsewhere under another rule of the family.
    pub(crate) fn apply(
        &self,
        shard: &mut Shard,
        rules: &Rules,
        target: Target<'_>,
        call: Call,
        adopt: impl FnOnce() -> Option<State>,
    ) -> Result<Outcome, StoreError> {
        let Call { op, ask, now, taken } = call;
        let limit = &target.record.limit;
        let full = Err(StoreError::Full { bytes: self.budget.ceiling });
        let Some(position) = shard.find(&target, self.exact) else {
            let adopted = adopt();
            let must_put = adopted.is_some();
            let floor = || shard.floors.get(&target.rule).cloned().unwrap_or_else(|| limit.fresh());
            let mut state = adopted.unwrap_or_else(floor);
            let before = state.clone();
            let outcome = limit.apply(op, &mut state, now, ask, taken);
            if state == before && !must_put {
                return Ok(outcome);
            }
            return match shard.put(rules, &target, self.identity(&target), state, now) {
                Put::Done => Ok(outcome),
                // Everything there carries more than this key does: it counts on the floor.
                Put::TooLight(state) => {
                    shard.raise_floor(target.rule, target.record, state, now);
                    Ok(outcome)
                }
                Put::Full => full,
            };
        };
        let Some(Some(entry)) = shard.entries.get_mut(position as usize) else {
            return full;
        };
        let before = entry.state.heap_bytes();
        if entry.rule != target.rule
            && let Some(old) = rules.get(entry.rule)
        {
            entry.state = limit.convert(&old.limit, &entry.state, old.changed(now));
            entry.rule = target.rule;
        }
        let outcome = limit.apply(op, &mut entry.state, now, ask, taken);
        let after = entry.state.heap_bytes();
        shard.budget.add(after);
        shard.budget.sub(before);
        if after > before && !shard.make_room(rules, now, position) {
            // It cannot grow: the charge is taken back and the caller is told.
            if let Some(Some(entry)) = shard.entries.get_mut(position as usize)
                && op == Op::Charge
            {
                let _ = limit.apply(Op::Undo, &mut entry.state, now, ask, now);
                entry.state.shrink();
                shard.budget.add(entry.state.heap_bytes());
                shard.budget.sub(after);
            }
            return full;
        }
        Ok(outcome)
    }

    /// Takes a key's state out, with the rule under which it was charged last.
    pub(crate) fn take(&self, shard: &mut Shard, target: Target<'_>) -> Option<(u32, State)> {
        let position = shard.find(&target, self.exact)?;
        shard.drop_entry(position).map(|entry| (entry.rule, entry.state))
    }

    /// Looks at a state, if there is one.
    pub(crate) fn with_state<R>(
        &self,
        shard: &Shard,
        target: Target<'_>,
        look: impl FnOnce(&State) -> R,
    ) -> Option<R> {
        let position = shard.find(&target, self.exact)?;
        shard.entries.get(position as usize)?.as_ref().map(|entry| look(&entry.state))
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
    fn bytes(&self) -> usize {
        let key = match &self.identity {
            Identity::Check(_) => 0,
            Identity::Exact(key) => key.len(),
        };
        ENTRY_BYTES + key + self.state.heap_bytes()
    }

    fn is(&self, target: &Target<'_>, exact: bool) -> bool {
        let same = self.hash == target.hash && self.salt == target.record.family.salt;
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
            free: Vec::new(),
            floors: HashMap::new(),
            budget,
            hand: 0,
            evictions: 0,
        }
    }

    fn entry(&self, position: u32) -> Option<&Entry> {
        self.entries.get(position as usize)?.as_ref()
    }

    fn find(&self, target: &Target<'_>, exact: bool) -> Option<u32> {
        let is = |&position: &u32| self.entry(position).is_some_and(|entry| entry.is(target, exact));
        self.index.find(target.hash, is).copied()
    }

    fn drop_entry(&mut self, position: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(position as usize)?.take()?;
        if let Ok(found) = self.index.find_entry(entry.hash, |&other| other == position) {
            found.remove();
        }
        self.free.push(position);
        self.budget.sub(entry.bytes());
        Some(entry)
    }

    /// Raises the floor of a rule to a state that is not kept on its own.
    fn raise_floor(&mut self, rule: u32, record: &Record, state: State, now: Timestamp) {
        let bytes = |state: &State| size_of::<(u32, State)>() + state.heap_bytes();
        let floor = match self.floors.remove(&rule) {
            Some(floor) => {
                self.budget.sub(bytes(&floor));
                record.limit.join(&floor, &state, now)
            }
            None => state,
        };
        if !record.limit.is_idle(&floor, now) {
            self.budget.add(bytes(&floor));
            self.floors.insert(rule, floor);
        }
    }

    fn put(
        &mut self,
        rules: &Rules,
        target: &Target<'_>,
        identity: Identity,
        state: State,
        now: Timestamp,
    ) -> Put {
        self.drop_idle(rules, PASSING, now);
        let entry =
            Entry { hash: target.hash, identity, rule: target.rule, salt: target.record.family.salt, state };
        let needed = entry.bytes();
        let limit = &target.record.limit;
        while self.budget.is_short_of(needed) {
            let level = limit.level(&entry.state, now);
            match self.least(rules, now, None) {
                Some((_, least)) if least > level && !limit.is_pinned(&entry.state, now) => {
                    return Put::TooLight(entry.state);
                }
                Some((position, _)) => self.evict(rules, position, now),
                None if self.drop_idle(rules, self.entries.len(), now) > 0 => {}
                None => return Put::Full,
            }
        }
        self.budget.add(needed);
        let position = match self.free.pop() {
            Some(position) => position,
            None => {
                self.entries.push(None);
                self.entries.len() as u32 - 1
            }
        };
        let hash = entry.hash;
        if let Some(place) = self.entries.get_mut(position as usize) {
            *place = Some(entry);
        }
        let Self { index, entries, .. } = self;
        index.insert_unique(hash, position, |&position| {
            entries.get(position as usize).and_then(Option::as_ref).map_or(0, |entry| entry.hash)
        });
        Put::Done
    }

    /// Evicts others than `keep` until all is under the ceiling again. False if that cannot be.
    fn make_room(&mut self, rules: &Rules, now: Timestamp, keep: u32) -> bool {
        while self.budget.is_short_of(0) {
            match self.least(rules, now, Some(keep)) {
                Some((position, _)) => self.evict(rules, position, now),
                None => return false,
            }
        }
        true
    }

    /// Drops the idle ones among the next `count` entries.
    fn drop_idle(&mut self, rules: &Rules, count: usize, now: Timestamp) -> usize {
        let mut dropped = 0;
        for _ in 0..count.min(self.entries.len()) {
            let position = self.advance();
            let idle = self.entry(position).is_some_and(|entry| {
                rules.get(entry.rule).is_none_or(|record| record.limit.is_idle(&entry.state, now))
            });
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

    /// Among the next few entries, the one that carries least; further ones only while none may go.
    fn least(&mut self, rules: &Rules, now: Timestamp, keep: Option<u32>) -> Option<(u32, u64)> {
        let mut least: Option<(u32, u64)> = None;
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
            let level = record.limit.level(&entry.state, now);
            if least.is_none_or(|(_, least)| level < least) {
                least = Some((position, level));
            }
        }
        least
    }

    fn evict(&mut self, rules: &Rules, position: u32, now: Timestamp) {
        let Some(entry) = self.drop_entry(position) else {
            return;
        };
        let Some(record) = rules.get(entry.rule) else {
            return;
        };
        if record.limit.is_idle(&entry.state, now) {
            return;
        }
        self.evictions += 1;
        let Some((rule, heir)) = rules.newest(entry.rule) else {
            return;
        };
        let state = if rule == entry.rule {
            entry.state
        } else {
            heir.limit.convert(&record.limit, &entry.state, record.changed(now))
        };
        self.raise_floor(rule, heir, state, now);
    }
}
