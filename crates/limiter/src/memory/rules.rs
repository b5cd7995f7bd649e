//! The rules that a store knows, and what the table's words mean under each of them.
//!
//! A rule is never changed: changing a limit makes a new record in the same family and leaves a link behind.
//! States are converted when they are next touched, so a change costs nothing at the moment it is made.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate_core::algorithm::{Algorithm, Packed};
use tollgate_core::limit::{self, State};
use tollgate_core::store::Rule;
use tollgate_core::{Limit, Timestamp};

use super::table::{Judge, MAX_RULES, Tag, Worth};

/// Words that would have to be rebased more often than this are not kept as words: one year.
const MIN_SPAN: u64 = 365 * 24 * 3600 * 1_000_000_000;

/// One rule.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) limit: Limit,
    pub(crate) family: Arc<Family>,
    /// The family's salt, near at hand.
    pub(crate) salt: u64,
    /// Whether its states are words of the table.
    pub(crate) in_table: bool,
    /// From here on the record must be looked after before it is used: it has no base yet, its words are
    /// running out of bits, or another record has taken its place.
    valid_until: AtomicU64,
    /// What its words count from.
    base: AtomicU64,
    /// When another record took its place.
    superseded: AtomicU64,
    successor: OnceLock<u32>,
    /// The highest states evicted, by groups of sets: newcomers start from there.
    floors: OnceLock<Box<[AtomicU64]>>,
}

/// All rules of a store. They are only ever added.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    records: boxcar::Vec<Arc<Record>>,
    families: Mutex<HashMap<String, Arc<Family>>>,
    /// Bytes that floors may still take.
    floor_bytes: AtomicUsize,
}

/// Rules that share what a key has used.
#[derive(Debug)]
pub(crate) struct Family {
    /// Spreads the same key of different families over different places, and tells them apart.
    pub(crate) salt: u64,
    members: Mutex<Vec<u32>>,
    /// Whether there ever was more than one member.
    shared: AtomicBool,
}

/// The algorithms whose states are words, each with the record's base at hand.
macro_rules! on_word {
    ($record:expr, $algorithm:ident => $do:expr, else $other:expr) => {
        match &$record.limit {
            Limit::Bucket($algorithm) => $do,
            Limit::FixedWindow($algorithm) => $do,
            Limit::SlidingWindow($algorithm) => $do,
            Limit::IntervalBucket($algorithm) => $do,
            _ => $other,
        }
    };
}
pub(crate) use on_word;

impl Record {
    /// Whether the record may be used at `now` as it is.
    #[inline]
    pub(crate) fn is_valid(&self, now: Timestamp) -> bool {
        let until = self.valid_until.load(Ordering::Acquire);
        now.as_nanos() < until || until == u64::MAX
    }

    #[inline]
    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::from_nanos(self.base.load(Ordering::Acquire))
    }

    /// When states under this record began to count under its successor: from then on, or from now.
    pub(crate) fn changed(&self, now: Timestamp) -> Timestamp {
        match self.superseded.load(Ordering::Acquire) {
            0 => now,
            at => Timestamp::from_nanos(at.min(now.as_nanos())),
        }
    }

    /// Whether a key may have states under other rules of the family.
    pub(crate) fn has_siblings(&self) -> bool {
        self.family.shared.load(Ordering::Acquire)
    }

    /// The state in one of this record's words.
    pub(crate) fn unpack(&self, word: u64) -> State {
        let base = self.base();
        match &self.limit {
            Limit::Bucket(a) => State::Debt(a.unpack(base, word)),
            Limit::FixedWindow(a) => State::Window(a.unpack(base, word)),
            Limit::SlidingWindow(a) => State::TwoWindows(a.unpack(base, word)),
            Limit::IntervalBucket(a) => State::Batch(a.unpack(base, word)),
            other => other.fresh(),
        }
    }

    /// The word for a state of this record's kind.
    pub(crate) fn pack(&self, state: &State) -> u64 {
        let base = self.base();
        match (&self.limit, state) {
            (Limit::Bucket(a), State::Debt(s)) => a.pack(base, *s),
            (Limit::FixedWindow(a), State::Window(s)) => a.pack(base, *s),
            (Limit::SlidingWindow(a), State::TwoWindows(s)) => a.pack(base, *s),
            (Limit::IntervalBucket(a), State::Batch(s)) => a.pack(base, *s),
            _ => 0,
        }
    }

    fn floor(&self, set: usize, of: usize) -> Option<&AtomicU64> {
        let floors = self.floors.get()?;
        floors.get(set * floors.len() / of.max(1))
    }

    /// The state from which a newcomer to these sets starts: fresh, unless something was evicted from them.
    pub(crate) fn floor_state<A: Packed>(
        &self,
        a: &A,
        sets: [usize; 2],
        of: usize,
        now: Timestamp,
    ) -> A::State {
        let floor = |set| match self.floor(set, of).map(|floor| floor.load(Ordering::Acquire)) {
            None | Some(0) => A::State::default(),
            Some(word) => a.unpack(self.base(), word),
        };
        match self.floors.get() {
            None => A::State::default(),
            Some(_) => a.join(&floor(sets[0]), &floor(sets[1]), now),
        }
    }

    /// Lets `step` change the floor itself; the answer is that of the step that was kept.
    pub(crate) fn on_floor<A: Packed, R>(
        &self,
        algorithm: &A,
        set: usize,
        of: usize,
        mut step: impl FnMut(&mut A::State) -> R,
    ) -> Option<R> {
        let floor = self.floor(set, of)?;
        let base = self.base();
        let mut word = floor.load(Ordering::Acquire);
        loop {
            let mut state = if word == 0 { A::State::default() } else { algorithm.unpack(base, word) };
            let before = state;
            let result = step(&mut state);
            if state == before {
                return Some(result);
            }
            match floor.compare_exchange(
                word,
                algorithm.pack(base, state),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(result),
                Err(seen) => word = seen,
            }
        }
    }
}

impl Rules {
    /// No rules yet, and so many bytes for the floors of those to come.
    pub(crate) fn with_floor_bytes(bytes: usize) -> Self {
        Self { floor_bytes: AtomicUsize::new(bytes), ..Self::default() }
    }

    pub(crate) fn get(&self, rule: u32) -> Option<&Record> {
        self.records.get(rule as usize).map(|record| &**record)
    }

    /// The rule for `limit` in `family`: the one that is there, or a new one.
    pub(crate) fn define(
        &self,
        name: &str,
        limit: Limit,
        tables: bool,
        salt: impl Fn(&str) -> u64,
    ) -> (Rule, Arc<Record>) {
        let mut families = self.families.lock();
        let family = families.entry_ref(name).or_insert_with(|| {
            Arc::new(Family { salt: salt(name), members: Mutex::default(), shared: AtomicBool::new(false) })
        });
        let known = family.members.lock().iter().copied().find_map(|member| {
            let known = self.records.get(member as usize)?;
            let same = known.limit == limit && known.successor.get().is_none();
            same.then(|| (Rule(member), Arc::clone(known)))
        });
        known.unwrap_or_else(|| self.add(limit, Arc::clone(family), tables))
    }

    /// Adds a record; to be called under the lock of the families.
    fn add(&self, limit: Limit, family: Arc<Family>, tables: bool) -> (Rule, Arc<Record>) {
        let is_word = tables && on_word!(RecordOf { limit }, a => a.span() >= MIN_SPAN, else false);
        // The table can name only so many rules. Beyond that, states live in the maps.
        let in_table = is_word && self.records.count() < MAX_RULES as usize;
        let record = Arc::new(Record {
            limit,
            salt: family.salt,
            family: Arc::clone(&family),
            in_table,
            valid_until: AtomicU64::new(if in_table { 0 } else { u64::MAX }),
            base: AtomicU64::new(0),
            superseded: AtomicU64::new(0),
            successor: OnceLock::new(),
            floors: OnceLock::new(),
        });
        let added = self.records.push(Arc::clone(&record)) as u32;
        let mut members = family.members.lock();
        members.push(added);
        family.shared.store(members.len() > 1, Ordering::Release);
        (Rule(added), record)
    }

    /// From `now` on, `rule` means `limit`.
    pub(crate) fn redefine(&self, rule: u32, limit: Limit, now: Timestamp, tables: bool) {
        if let Some((_, record)) = self.newest(rule)
            && record.limit != limit
        {
            self.succeed(record, limit, now, tables);
        }
    }

    /// The record at the end of a rule's links.
    pub(crate) fn newest(&self, mut rule: u32) -> Option<(u32, &Record)> {
        loop {
            let record = self.get(rule)?;
            match record.successor.get() {
                Some(next) => rule = *next,
                None => return Some((rule, record)),
            }
        }
    }

    fn succeed(&self, record: &Record, limit: Limit, now: Timestamp, tables: bool) {
        let _one_change_at_a_time = self.families.lock();
        if record.successor.get().is_some() {
            return;
        }
        let (Rule(next), _) = self.add(limit, Arc::clone(&record.family), tables);
        record.superseded.store(now.as_nanos().max(1), Ordering::Release);
        let _ = record.successor.set(next);
        record.valid_until.store(0, Ordering::Release);
    }

    /// The record that serves `rule` at `now`.
    #[inline]
    pub(crate) fn current(&self, rule: u32, now: Timestamp) -> Option<(u32, &Record)> {
        let record = self.get(rule)?;
        if record.is_valid(now) { Some((rule, record)) } else { self.look_after(rule, now) }
    }

    #[cold]
    fn look_after(&self, rule: u32, now: Timestamp) -> Option<(u32, &Record)> {
        loop {
            let (rule, record) = self.newest(rule)?;
            if !record.in_table || record.is_valid(now) {
                return Some((rule, record));
            }
            let (base, span) =
                on_word!(record, a => (a.base(now), a.span()), else return Some((rule, record)));
            {
                let _one_base = self.families.lock();
                if record.valid_until.load(Ordering::Acquire) == 0 && record.successor.get().is_none() {
                    record.base.store(base.as_nanos(), Ordering::Release);
                    let until = base.as_nanos().saturating_add(span);
                    record.valid_until.store(until, Ordering::Release);
                    continue;
                }
            }
            // The words have run out of bits: the same limit goes on with a new base.
            self.succeed(record, record.limit, now, true);
        }
    }

    /// Makes room for a record's floors, as long as there are bytes left for them.
    fn floors<'a>(&self, record: &'a Record, sets: usize) -> &'a [AtomicU64] {
        record.floors.get_or_init(|| {
            let want = (sets / 16).clamp(1, 4096);
            let bytes = want * size_of::<AtomicU64>();
            let granted = self
                .floor_bytes
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(bytes))
                .is_ok();
            (0..if granted { want } else { 1 }).map(|_| AtomicU64::new(0)).collect()
        })
    }

    /// Raises the floor of a set to a state that is about to be forgotten.
    pub(crate) fn raise_floor(&self, tag: Tag, word: u64, set: usize, of: usize, now: Timestamp) {
        let Some(record) = self.get(tag.rule()) else {
            return;
        };
        let state = record.unpack(word);
        // What was charged under a rule that has changed comes back under the one in force.
        let (_, heir) = self.newest(tag.rule()).unwrap_or((0, record));
        let state = if std::ptr::eq(heir, record) {
            state
        } else {
            heir.limit.convert(&record.limit, &state, record.changed(now))
        };
        self.floors(heir, of);
        macro_rules! raise {
            ($algorithm:expr, $state:expr) => {
                heir.on_floor($algorithm, set, of, |floor| {
                    *floor = $algorithm.join(floor, $state, now);
                })
            };
        }
        match (&heir.limit, &state) {
            (Limit::Bucket(a), State::Debt(s)) => raise!(a, s),
            (Limit::FixedWindow(a), State::Window(s)) => raise!(a, s),
            (Limit::SlidingWindow(a), State::TwoWindows(s)) => raise!(a, s),
            (Limit::IntervalBucket(a), State::Batch(s)) => raise!(a, s),
            _ => None,
        };
    }

    /// What a word of the table is worth.
    pub(crate) fn worth(&self, tag: Tag, word: u64, now: Timestamp) -> Worth {
        let Some(record) = self.get(tag.rule()) else {
            return Worth::Idle;
        };
        fn weigh<A: Packed>(algorithm: &A, base: Timestamp, word: u64, now: Timestamp) -> Worth {
            let state = algorithm.unpack(base, word);
            if limit::is_idle(algorithm, &state, now) {
                Worth::Idle
            } else {
                Worth::Live(algorithm.level(&state, now))
            }
        }
        on_word!(record, a => weigh(a, record.base(), word, now), else Worth::Idle)
    }
}

/// Lets [`on_word!`] look at a limit that has no record yet.
struct RecordOf {
    limit: Limit,
}

/// The rules as the table sees them at one instant.
pub(crate) struct JudgeAt<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) now: Timestamp,
    pub(crate) sets: usize,
    pub(crate) evictions: &'a AtomicU64,
}

impl Judge for JudgeAt<'_> {
    fn worth(&self, tag: Tag, word: u64) -> Worth {
        self.rules.worth(tag, word, self.now)
    }

    fn evict(&self, tag: Tag, word: u64, set: usize) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
        self.rules.raise_floor(tag, word, set, self.sets, self.now);
    }
}
