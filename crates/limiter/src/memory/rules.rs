//! The rules that a store knows, and what the table's words mean under each of them.
//!
//! A rule is never changed: changing a limit makes a new record in the same family and leaves a link behind.
//! States are converted when they are next touched, so a change costs nothing at the moment it is made.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use hashbrown::HashMap;
use parking_lot::Mutex;
use tollgate_core::algorithm::{Algorithm, Packed};
use tollgate_core::concurrency::InProgress;
use tollgate_core::key::{KeyRef, Kind};
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::store::Rule;
use tollgate_core::{Limit, Nanos, Outcome, Timestamp};

use super::evicted::{Cause, Evicted, Shape};
use super::table::{Judge, MAX_RULES, Tag, Worth};

/// Changes that a state is taken through one by one. If there were more, the later ones count as one, so that what a key
/// costs does not grow with the number of changes.
const STEPS: u32 = 16;

/// Words that would have to be rebased more often than this are not kept as words: a week. Each time leaves a record behind.
const MIN_SPAN: u64 = 7 * 24 * 3600 * 1_000_000_000;

/// One rule.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) limit: Limit,
    /// Tells rules of one family and one limit apart that may change each for itself.
    label: Box<str>,
    pub(crate) family: Arc<Family>,
    /// The family's salt, near at hand.
    pub(crate) salt: u64,
    /// Whether its states are words of the table.
    pub(crate) in_table: bool,
    /// Whether what is in progress is counted: it can be taken and given back as if nothing had been.
    pub(crate) is_counted: bool,
    /// Whether its empty key is not in the maps: see [`Family::places`].
    has_places: bool,
    /// Until here its words are those of a bucket that counts whole nanoseconds, the commonest and quickest
    /// kind. 0 for all others.
    pub(crate) fast_until: AtomicU64,
    /// From here on the record must be looked after before it is used: it has no base yet, its words are
    /// running out of bits, or another record has taken its place.
    valid_until: AtomicU64,
    /// What its words count from.
    base: AtomicU64,
    /// When another record took its place; the end of time if none has.
    superseded: AtomicU64,
    successor: OnceLock<u32>,
    /// The rule that is asked for instead since a policy was changed, plus one; 0 if none is. Unlike with a successor, who
    /// still asks for this one gets it.
    heir: AtomicU32,
    /// A record further down the links, to get to the last one soon.
    shortcut: AtomicU32,
    /// How its states are remembered when they are evicted.
    shape: Option<Shape>,
    /// Whether the family knows that something was evicted under this rule.
    has_evicted: AtomicBool,
}

/// All rules of a store. They are only ever added.
#[derive(Debug)]
pub(crate) struct Rules {
    records: boxcar::Vec<Arc<Record>>,
    families: Mutex<HashMap<String, Arc<Family>>>,
    evicted: Evicted,
}

/// Rules that share what a key has used.
#[derive(Debug)]
pub(crate) struct Family {
    /// Spreads the same key of different families over different places, and tells them apart.
    pub(crate) salt: u64,
    /// Its rules by limit and label, but for those that have successors.
    known: Mutex<HashMap<(Limit, Box<str>), u32>>,
    /// The latest rules under which something was evicted, plus one. A key that was evicted under one limit and comes back
    /// under another is looked for under so many: what that costs must not grow with the number of limits.
    evicted_under: [AtomicU32; 16],
    next_evicted: AtomicUsize,
    /// Whether there ever was a member, and more than one.
    inhabited: AtomicBool,
    shared: AtomicBool,
    /// What is counted under its fleets for the key that all requests share, the empty one: critical ones in the upper half.
    places: AtomicU64,
    /// Whether states of a member are words of the table, and whether those of one are in the maps.
    has_words: AtomicBool,
    has_maps: AtomicBool,
}

impl Family {
    fn new(salt: u64) -> Self {
        Self {
            salt,
            known: Mutex::default(),
            evicted_under: Default::default(),
            next_evicted: AtomicUsize::new(0),
            inhabited: AtomicBool::new(false),
            shared: AtomicBool::new(false),
            places: AtomicU64::new(0),
            has_words: AtomicBool::new(false),
            has_maps: AtomicBool::new(false),
        }
    }
}

fn unpack_places(word: u64) -> InProgress {
    InProgress { critical: word >> 32, other: word & u64::from(u32::MAX) }
}

/// Of each kind a fleet counts no more than 32 bits can tell.
fn pack_places(used: InProgress) -> u64 {
    used.critical << 32 | used.other & u64::from(u32::MAX)
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

    /// Whether a key's state is neither in the table nor in the maps, but here: all requests take a place of a fleet, and must not
    /// wait for each other.
    #[inline]
    pub(crate) fn holds(&self, key: KeyRef<'_>) -> bool {
        self.has_places && key.bytes.is_empty() && key.kind == Kind::Bytes
    }

    /// What is counted here.
    #[inline]
    pub(crate) fn places(&self) -> InProgress {
        unpack_places(self.family.places.load(Ordering::Acquire))
    }

    /// What is counted here, if there is room for so much more.
    #[inline]
    pub(crate) fn room_for(&self, ask: &Ask) -> Option<InProgress> {
        Some(self.places()).filter(|used| self.limit.has_room(used, ask))
    }

    /// Takes places for which there was `room`. None if others have taken the last ones since.
    #[inline]
    pub(crate) fn take_places(&self, room: InProgress, ask: &Ask) -> Option<Outcome> {
        let mut used = room;
        loop {
            let seen = pack_places(used);
            let outcome = self.limit.take(&mut used, ask)?;
            let (places, taken) = (&self.family.places, pack_places(used));
            match places.compare_exchange_weak(seen, taken, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(outcome),
                Err(word) => {
                    used = Some(unpack_places(word)).filter(|used| self.limit.has_room(used, ask))?
                }
            }
        }
    }

    /// Does `op` to what is counted here.
    #[inline]
    pub(crate) fn count_places(&self, op: Op, ask: &Ask) -> Outcome {
        let count = |used: &mut InProgress| self.limit.count(op, used, ask);
        self.change_places(count).unwrap_or(Outcome::allow(0, 0))
    }

    /// Gives back what is counted here.
    #[inline]
    pub(crate) fn uncount_places(&self, ask: &Ask) {
        self.change_places(|used| self.limit.uncount(used, ask));
    }

    #[inline]
    fn change_places<R>(&self, mut step: impl FnMut(&mut InProgress) -> R) -> R {
        let mut word = self.family.places.load(Ordering::Acquire);
        loop {
            let mut used = unpack_places(word);
            let result = step(&mut used);
            let next = pack_places(used);
            if next == word {
                return result;
            }
            match self.family.places.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return result,
                Err(seen) => word = seen,
            }
        }
    }

    /// Whether so much of the kind is counted here.
    pub(crate) fn has_taken(&self, ask: &Ask) -> bool {
        let InProgress { critical, other } = self.places();
        ask.cost > 0 && ask.cost <= if ask.critical { critical } else { other }
    }

    /// Whether it may be used at any time as it is.
    #[inline]
    pub(crate) fn is_lasting(&self) -> bool {
        self.valid_until.load(Ordering::Acquire) == u64::MAX
    }

    #[inline]
    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::from_nanos(self.base.load(Ordering::Acquire))
    }

    /// Lets words count from `now` on. To be called once, under the lock of the families.
    fn begin(&self, now: Timestamp) {
        let (base, span) = on_word!(self, a => (a.base(now), a.span()), else return);
        let until = base.as_nanos().saturating_add(span);
        self.base.store(base.as_nanos(), Ordering::Release);
        self.valid_until.store(until, Ordering::Release);
        if matches!(&self.limit, Limit::Bucket(bucket) if bucket.is_whole(base)) {
            self.fast_until.store(until, Ordering::Release);
        }
    }

    /// A record further down the links, the last one that is known.
    fn further(&self) -> Option<u32> {
        Some(self.shortcut.load(Ordering::Acquire).max(*self.successor.get()?))
    }

    /// The rule that is asked for instead of this one.
    fn heir(&self) -> Option<u32> {
        self.heir.load(Ordering::Acquire).checked_sub(1)
    }

    /// When states under this record began to count under its successor: from then on, or from now.
    pub(crate) fn changed(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(self.superseded.load(Ordering::Acquire).min(now.as_nanos()))
    }

    /// Whether a key may have states under other rules of the family.
    pub(crate) fn has_siblings(&self) -> bool {
        self.family.shared.load(Ordering::Acquire)
    }

    /// Whether a key may have states in the table under other rules of the family.
    pub(crate) fn has_siblings_in_table(&self) -> bool {
        self.has_siblings() && self.family.has_words.load(Ordering::Acquire)
    }

    /// Whether a key may have states in the maps, under this rule or others of the family.
    #[inline]
    pub(crate) fn may_be_in_maps(&self) -> bool {
        !self.in_table || self.has_siblings() && self.family.has_maps.load(Ordering::Acquire)
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
}

impl Rules {
    /// No rules yet, and so many bytes for what is remembered of evicted keys.
    pub(crate) fn with_evicted_bytes(bytes: usize) -> Self {
        Self { records: boxcar::Vec::new(), families: Mutex::default(), evicted: Evicted::with_bytes(bytes) }
    }

    /// Whether any key was ever evicted.
    #[inline]
    pub(crate) fn has_evicted(&self) -> bool {
        self.evicted.is_in_use()
    }

    /// Bytes in use for evicted keys.
    pub(crate) fn evicted_bytes(&self) -> usize {
        self.evicted.bytes()
    }

    pub(crate) fn get(&self, rule: u32) -> Option<&Record> {
        self.records.get(rule as usize).map(|record| &**record)
    }

    /// The rule for `limit` in `family`: the one that is there, or a new one.
    pub(crate) fn define(
        &self,
        name: &str,
        label: &str,
        limit: Limit,
        tables: bool,
        salt: impl Fn(&str) -> u64,
    ) -> (Rule, Arc<Record>) {
        let mut families = self.families.lock();
        let family = families.entry_ref(name).or_insert_with(|| Arc::new(Family::new(salt(name))));
        let known = family.known.lock().get(&(limit, Box::from(label))).copied();
        match known.and_then(|rule| Some((rule, self.records.get(rule as usize)?))) {
            Some((rule, record)) => {
                // It is in force again.
                if record.heir.swap(0, Ordering::AcqRel) != 0 {
                    record.superseded.store(u64::MAX, Ordering::Release);
                }
                (Rule(rule), Arc::clone(record))
            }
            None => self.add(limit, label, Arc::clone(family), tables),
        }
    }

    /// Adds a record; to be called under the lock of the families.
    fn add(&self, limit: Limit, label: &str, family: Arc<Family>, tables: bool) -> (Rule, Arc<Record>) {
        let is_word = tables && on_word!(RecordOf { limit }, a => a.span() >= MIN_SPAN, else false);
        // The table can name only so many rules. Beyond that, states live in the maps.
        let in_table = is_word && self.records.count() < MAX_RULES as usize;
        let record = Arc::new(Record {
            limit,
            label: label.into(),
            salt: family.salt,
            family: Arc::clone(&family),
            in_table,
            is_counted: limit.is_counted(),
            has_places: matches!(limit, Limit::Fleet(fleet) if fleet.is_counted()),
            fast_until: AtomicU64::new(0),
            valid_until: AtomicU64::new(if in_table { 0 } else { u64::MAX }),
            base: AtomicU64::new(0),
            superseded: AtomicU64::new(u64::MAX),
            successor: OnceLock::new(),
            heir: AtomicU32::new(0),
            shortcut: AtomicU32::new(0),
            shape: Shape::of(&limit),
            has_evicted: AtomicBool::new(false),
        });
        let added = self.records.push(Arc::clone(&record)) as u32;
        let kept_in = if in_table { &family.has_words } else { &family.has_maps };
        kept_in.store(true, Ordering::Release);
        if family.inhabited.swap(true, Ordering::AcqRel) {
            family.shared.store(true, Ordering::Release);
        }
        family.known.lock().entry((limit, label.into())).or_insert(added);
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

    /// From `now` on, `new` is asked for instead of `old`: what was used under that is moved, and ages, as if it had been
    /// redefined. Who still asks for `old` gets it.
    pub(crate) fn supersede(&self, old: u32, new: u32, now: Timestamp) {
        let _one_change_at_a_time = self.families.lock();
        if let (Some((old, record)), Some((new, heir))) = (self.newest(old), self.newest(new))
            && old != new
            && record.salt == heir.salt
        {
            record.superseded.store(now.as_nanos(), Ordering::Release);
            record.heir.store(new + 1, Ordering::Release);
        }
    }

    /// The rule under which a state counts that was charged under another: at the end of all links, and of all changes of
    /// policies.
    pub(crate) fn in_force(&self, rule: u32) -> Option<(u32, &Record)> {
        let mut last = self.newest(rule)?;
        for _ in 0..STEPS {
            match last.1.heir() {
                Some(heir) => last = self.newest(heir)?,
                None => break,
            }
        }
        Some(last)
    }

    /// Number of fleets of which places are taken.
    pub(crate) fn count_fleets(&self) -> usize {
        let families = self.families.lock();
        families.values().filter(|family| family.places.load(Ordering::Acquire) != 0).count()
    }

    /// The record at the end of a rule's links.
    pub(crate) fn newest(&self, rule: u32) -> Option<(u32, &Record)> {
        let (mut last, mut record) = (rule, self.get(rule)?);
        while let Some(next) = record.further() {
            last = next;
            record = self.get(last)?;
        }
        // Everyone on the way gets there at once the next time.
        let mut passed = rule;
        while passed != last
            && let Some(record) = self.get(passed)
        {
            passed = record.further().unwrap_or(last);
            record.shortcut.store(last, Ordering::Release);
        }
        Some((last, record))
    }

    /// The state under rule `to` of a key that was last charged under rule `from`. It lives under each rule
    /// that was in force since then for as long as it was.
    pub(crate) fn carry(&self, from: u32, mut state: State, to: u32, now: Timestamp) -> State {
        let mut rule = from;
        let mut steps = 0;
        while rule != to
            && let Some(record) = self.get(rule)
        {
            steps += 1;
            let next = record.successor.get().copied().or_else(|| record.heir());
            rule = next.filter(|_| steps < STEPS).unwrap_or(to);
            let Some(next) = self.get(rule) else { break };
            state = next.limit.convert(&record.limit, &state, record.changed(now));
        }
        state
    }

    /// Remembers a key whose state has no room, in the terms of the rule in force.
    pub(crate) fn remember(&self, rule: u32, hash: u64, state: State, cause: Cause, now: Timestamp) {
        let Some((newest, heir)) = self.in_force(rule) else { return };
        let state = self.carry(rule, state, newest, now);
        if let (Some(shape), Some(summary)) = (heir.shape, heir.limit.summarize(&state, now)) {
            let next = heir.limit.estimate(&state, now, Ask::from(1));
            let is_exhausted = next.is_some_and(|outcome| !outcome.allowed);
            self.note_evicted(newest, heir);
            self.evicted.remember(hash, shape, summary, is_exhausted, cause, now);
        }
    }

    /// The state of an evicted key under a rule of its family.
    pub(crate) fn recall(&self, rule: u32, record: &Record, hash: u64, now: Timestamp) -> Option<State> {
        if !record.has_siblings() {
            let summary = self.evicted.recall(hash, record.shape?, now)?;
            return Some(record.limit.restore(summary, now));
        }
        let members = record.family.evicted_under.iter();
        let members = members.filter_map(|member| member.load(Ordering::Acquire).checked_sub(1));
        let states = members.filter_map(|member| {
            let other = self.get(member)?;
            let changed = other.changed(now);
            let summary = self.evicted.recall(hash, other.shape?, changed)?;
            Some(self.carry(member, other.limit.restore(summary, changed), rule, now))
        });
        states.reduce(|a, b| record.limit.join(&a, &b, now))
    }

    /// Forgets a key that was evicted, under all rules of its family.
    pub(crate) fn forget_evicted(&self, hash: u64) {
        self.evicted.forget(hash);
    }

    fn succeed(&self, record: &Record, limit: Limit, now: Timestamp, tables: bool) {
        let _one_change_at_a_time = self.families.lock();
        if record.successor.get().is_some() {
            return;
        }
        let (Rule(next), heir) = self.add(limit, &record.label, Arc::clone(&record.family), tables);
        record.superseded.store(now.as_nanos(), Ordering::Release);
        if heir.in_table {
            heir.begin(now);
        }
        let is_itself = |rule: u32| self.get(rule).is_some_and(|known| std::ptr::eq(known, record));
        let mut known = record.family.known.lock();
        let this = (record.limit, record.label.clone());
        if known.get(&this).is_some_and(|rule| is_itself(*rule)) {
            known.remove(&this);
        }
        known.entry((limit, record.label.clone())).or_insert(next);
        drop(known);
        let _ = record.successor.set(next);
        record.valid_until.store(0, Ordering::Release);
        record.fast_until.store(0, Ordering::Release);
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
            {
                let _one_beginning = self.families.lock();
                if record.valid_until.load(Ordering::Acquire) == 0 && record.successor.get().is_none() {
                    record.begin(now);
                    continue;
                }
            }
            // The words have run out of bits: the same limit goes on with a new base.
            self.succeed(record, record.limit, now, true);
        }
    }

    /// Lets the family know that something was evicted under a rule.
    fn note_evicted(&self, rule: u32, record: &Record) {
        let is_known =
            record.has_evicted.load(Ordering::Relaxed) || record.has_evicted.swap(true, Ordering::AcqRel);
        let Family { evicted_under, next_evicted, .. } = &*record.family;
        let place = next_evicted.load(Ordering::Relaxed) % evicted_under.len();
        if let Some(place) = evicted_under.get(place).filter(|_| !is_known) {
            next_evicted.fetch_add(1, Ordering::Relaxed);
            let before = place.swap(rule + 1, Ordering::AcqRel).checked_sub(1);
            if let Some(before) = before.and_then(|before| self.get(before)) {
                before.has_evicted.store(false, Ordering::Release);
            }
        }
    }

    /// What a word of the table is worth, under the rule in force.
    pub(crate) fn worth(&self, tag: Tag, word: u64, now: Timestamp) -> Worth {
        let Some(record) = self.get(tag.rule()) else { return Worth::Idle };
        if let Some((newest, heir)) = self.in_force(tag.rule())
            && newest != tag.rule()
        {
            let state = self.carry(tag.rule(), record.unpack(word), newest, now);
            return worth_of_state(&heir.limit, &state, now);
        }
        fn weigh<A: Packed>(algorithm: &A, base: Timestamp, word: u64, now: Timestamp) -> Worth {
            worth_of(algorithm, &algorithm.unpack(base, word), now)
        }
        on_word!(record, a => weigh(a, record.base(), word, now), else Worth::Idle)
    }

    /// Whether a state charged under a rule is worth nothing under the one in force.
    pub(crate) fn is_idle(&self, rule: u32, state: &State, now: Timestamp) -> bool {
        match (self.get(rule), self.in_force(rule)) {
            (Some(_), Some((newest, heir))) if newest != rule => {
                heir.limit.is_idle(&self.carry(rule, state.clone(), newest, now), now)
            }
            (Some(record), _) => record.limit.is_idle(state, now),
            _ => true,
        }
    }
}

/// A state whose next request is rejected. Little has to be remembered for that.
const EXHAUSTED: u64 = 1;
/// A state that one request made. Forgetting it costs at most one request.
const TRIVIAL: u64 = 2;
/// Any other state in use.
const COUNTED: u64 = 3;

/// Which states make room for others: idle ones first, then exhausted, then trivial ones. One that is worth as much as
/// a newcomer stays, so that a flood of new keys does not displace earlier ones.
fn worth_by(outcome: &Outcome, capacity: u64) -> Worth {
    match outcome.remaining {
        _ if outcome.reset_after == Nanos::ZERO => Worth::Idle,
        0 => Worth::Live(EXHAUSTED),
        left if left >= capacity.saturating_sub(1) => Worth::Live(TRIVIAL),
        _ => Worth::Live(COUNTED),
    }
}

/// What a state of an algorithm is worth.
pub(crate) fn worth_of<A: Algorithm>(algorithm: &A, state: &A::State, now: Timestamp) -> Worth {
    worth_by(&algorithm.estimate(state, now, 0), algorithm.capacity())
}

/// What a state of a limit is worth; one of another algorithm, nothing.
pub(crate) fn worth_of_state(limit: &Limit, state: &State, now: Timestamp) -> Worth {
    let outcome = limit.estimate(state, now, Ask::from(0));
    outcome.map_or(Worth::Idle, |outcome| worth_by(&outcome, limit.capacity()))
}

/// Lets [`on_word!`] look at a limit that has no record yet.
struct RecordOf {
    limit: Limit,
}

/// A key that was in use so many nanoseconds ago is expected back.
const RECENT: u64 = 1_000_000_000;

/// The rules as the table sees them at one instant.
pub(crate) struct JudgeAt<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) now: Timestamp,
    pub(crate) evictions: &'a AtomicU64,
}

impl Judge for JudgeAt<'_> {
    fn worth(&self, tag: Tag, word: u64) -> Worth {
        self.rules.worth(tag, word, self.now)
    }

    fn is_recent(&self, tag: Tag, word: u64) -> bool {
        let before = Timestamp::from_nanos(self.now.as_nanos().saturating_sub(RECENT));
        self.rules.worth(tag, word, before) != Worth::Idle
    }

    fn evict(&self, tag: Tag, word: u64) {
        self.remember(tag, word, Cause::Evicted);
    }
}

impl JudgeAt<'_> {
    /// Remembers a key that is not in the table.
    pub(crate) fn remember(&self, tag: Tag, word: u64, cause: Cause) {
        self.evictions.fetch_add(1, Ordering::Relaxed);
        if let Some(record) = self.rules.get(tag.rule()) {
            self.rules.remember(tag.rule(), tag.hash(), record.unpack(word), cause, self.now);
        }
    }
}
