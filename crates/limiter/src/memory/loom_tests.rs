//! The table's protocol under every interleaving: charging, putting in, taking over, evicting, taking out, growing.
//!
//! Words here are plain counts: 0 is idle, more is live, and the level of a count is the count.

use loom::sync::Arc;
use loom::thread;

use super::budget::Budget;
use super::table::{Judge, Presence, Table, Tag, Worth};
use crate::sync::{AtomicU64, Ordering};

const KEY: u64 = 0x0123_4567_89AB_CDEF;
const OTHER: u64 = 0x1111_2222_3333_4444;
const THIRD: u64 = 0x5555_6666_7777_8888;

/// Remembers the highest count that was evicted of each of the keys above.
struct Floors([(Tag, AtomicU64); 3]);

impl Floors {
    fn new() -> Self {
        Self([KEY, OTHER, THIRD].map(|hash| (Tag::new(hash, 0), AtomicU64::new(0))))
    }

    fn of(&self, hash: u64) -> u64 {
        let tag = Tag::new(hash, 0);
        self.0.iter().find(|(known, _)| *known == tag).map_or(0, |(_, floor)| floor.load(Ordering::Acquire))
    }
}

impl Judge for Floors {
    fn worth(&self, _tag: Tag, word: u64) -> Worth {
        if word == 0 { Worth::Idle } else { Worth::Live(word) }
    }

    fn is_recent(&self, tag: Tag, word: u64) -> bool {
        self.worth(tag, word) != Worth::Idle
    }

    fn evict(&self, tag: Tag, word: u64) {
        for (known, floor) in &self.0 {
            if *known == tag {
                floor.fetch_max(word, Ordering::AcqRel);
            }
        }
    }
}

/// One charge, as the store does it: quickly if the key is there, else under the lock, from the floor.
fn charge(table: &Table, floors: &Floors, hash: u64) {
    let (place, tag) = (table.place(hash), Tag::new(hash, 0));
    let add = |word: u64| (Some(word + 1), ());
    if table.update(place, tag, add).is_some() {
        return;
    }
    let _guard = table.lock(place);
    let free = loop {
        match table.presence(place, tag) {
            Presence::Absent { free } => break free,
            Presence::Present if table.update(place, tag, add).is_some() => return,
            Presence::Present => {}
        }
    };
    let count = floors.of(hash) + 1;
    if !table.put(place, free, (tag, count), || count, floors) {
        floors.evict(tag, count);
    }
}

/// Puts a key with an idle state.
fn put_idle(table: &Table, floors: &Floors, hash: u64) -> bool {
    table.put(table.place(hash), None, (Tag::new(hash, 0), 0), || 0, floors)
}

/// What is known of a key: its word, or what was left of it when it was evicted.
fn known(table: &Table, floors: &Floors, hash: u64) -> u64 {
    let here = table.update(table.place(hash), Tag::new(hash, 0), |word| (None, word));
    here.unwrap_or(0).max(floors.of(hash))
}

/// A table of one set, which under loom has two slots. KEY has another lock than OTHER and THIRD.
fn check(setup: Step, threads: &'static [Step], then: Step) {
    check_growing(0, 3, setup, threads, then);
}

type Step = fn(&Table, &Floors);

fn grow(table: &Table, _: &Floors) {
    table.grow(None);
}

/// A table of one set that can double so often. When it does, KEY moves, and OTHER and THIRD stay.
fn check_growing(doublings: u32, preemptions: usize, setup: Step, threads: &'static [Step], then: Step) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let budget = std::sync::Arc::new(Budget::new(1 << 20, true));
        let shared = Arc::new((Table::with_columns(budget, 2, 1, doublings), Floors::new()));
        setup(&shared.0, &shared.1);
        let running: Vec<_> = threads
            .iter()
            .map(|run| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || run(&shared.0, &shared.1))
            })
            .collect();
        for thread in running {
            thread.join().unwrap();
        }
        then(&shared.0, &shared.1);
    });
}

#[test]
fn loom_charging_one_key_loses_no_update() {
    check(
        |t, f| charge(t, f, KEY),
        &[|t, f| charge(t, f, KEY), |t, f| charge(t, f, KEY)],
        |t, f| assert_eq!(known(t, f, KEY), 3),
    );
}

#[test]
fn loom_a_new_key_is_put_in_once() {
    check(
        |_, _| {},
        &[|t, f| charge(t, f, KEY), |t, f| charge(t, f, KEY)],
        |t, f| {
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(t.count_live(f), 1);
        },
    );
}

/// The idle key's slot is taken for another key while its owner comes back: nobody pays for the other.
#[test]
fn loom_taking_an_idle_slot_charges_nobody_else() {
    check(
        |t, f| {
            assert!(put_idle(t, f, KEY));
            charge(t, f, THIRD);
        },
        &[|t, f| charge(t, f, KEY), |t, f| charge(t, f, OTHER)],
        |t, f| {
            assert_eq!(known(t, f, KEY), 1);
            assert_eq!(known(t, f, OTHER), 1);
            assert_eq!(known(t, f, THIRD), 1);
        },
    );
}

/// The new owner's word is the very word that the old owner's late charge expects: the pad tells them apart.
#[test]
fn loom_a_late_charge_misses_a_new_owner_with_the_same_word() {
    check(
        |t, f| {
            assert!(put_idle(t, f, KEY));
            charge(t, f, THIRD);
        },
        &[
            |t, f| charge(t, f, KEY),
            |t, f| {
                let _guard = t.lock(t.place(OTHER));
                put_idle(t, f, OTHER);
            },
        ],
        |t, f| {
            assert_eq!(known(t, f, KEY), 1);
            assert_eq!(known(t, f, OTHER), 0);
        },
    );
}

/// Two live keys fill the set and a third comes: whoever goes leaves all of its charges behind.
#[test]
fn loom_an_evicted_key_loses_no_charge() {
    check(
        |t, f| {
            charge(t, f, KEY);
            charge(t, f, THIRD);
            charge(t, f, THIRD);
        },
        &[|t, f| charge(t, f, KEY), |t, f| charge(t, f, OTHER)],
        |t, f| {
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(known(t, f, OTHER), 1);
            assert_eq!(known(t, f, THIRD), 2);
        },
    );
}

/// A key that is taken out takes all charges made until then with it, and the next one starts from nothing.
#[test]
fn loom_taking_a_key_out_splits_its_charges() {
    static TAKEN_OUT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    check(
        |t, f| charge(t, f, KEY),
        &[
            |t, f| charge(t, f, KEY),
            |t, _| {
                let _guard = t.lock(t.place(KEY));
                let word = t.extract(t.place(KEY), Tag::new(KEY, 0)).unwrap();
                TAKEN_OUT.store(word, std::sync::atomic::Ordering::SeqCst);
            },
        ],
        |t, f| {
            let taken_out = TAKEN_OUT.load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(taken_out + known(t, f, KEY), 2);
        },
    );
}

/// A key is charged while it moves to a new set: each charge goes with it.
#[test]
fn loom_growth_loses_no_charge() {
    check_growing(
        1,
        3,
        |t, f| {
            charge(t, f, KEY);
            charge(t, f, OTHER);
        },
        &[
            |t, f| {
                charge(t, f, KEY);
                charge(t, f, OTHER);
            },
            grow,
        ],
        |t, f| {
            assert_eq!(t.active_sets(), 2);
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(known(t, f, OTHER), 2);
            assert_eq!(t.count_live(f), 2);
        },
    );
}

/// A new key is put while the set where it belongs is being split: it is put once, where it is found.
#[test]
fn loom_growth_and_new_keys_find_each_other() {
    check_growing(
        1,
        3,
        |t, f| charge(t, f, OTHER),
        &[
            |t, f| {
                charge(t, f, KEY);
                charge(t, f, KEY);
            },
            grow,
        ],
        |t, f| {
            assert_eq!(t.active_sets(), 2);
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(known(t, f, OTHER), 1);
            assert_eq!(t.count_live(f), 2);
        },
    );
}

/// Two threads put the same new key meanwhile.
#[test]
fn loom_growth_puts_a_new_key_in_once() {
    check_growing(
        1,
        1,
        |_, _| {},
        &[|t, f| charge(t, f, KEY), |t, f| charge(t, f, KEY), grow],
        |t, f| {
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(t.count_live(f), 1);
        },
    );
}

/// A key that stays finds the set full while another thread splits it: either it takes the slot of the one that would
/// move, which leaves all of its charges behind, or there is room.
#[test]
fn loom_growth_and_eviction_lose_no_charge() {
    check_growing(
        1,
        2,
        |t, f| {
            charge(t, f, KEY);
            charge(t, f, THIRD);
            charge(t, f, THIRD);
        },
        &[|t, f| charge(t, f, OTHER), grow],
        |t, f| {
            assert_eq!(known(t, f, KEY), 1);
            assert_eq!(known(t, f, OTHER), 1);
            assert_eq!(known(t, f, THIRD), 2);
        },
    );
}

/// An idle key's slot is taken for one that stays while the set is split, and its owner comes back.
#[test]
fn loom_growth_and_taking_an_idle_slot_charge_nobody_else() {
    check_growing(
        1,
        2,
        |t, f| {
            assert!(put_idle(t, f, KEY));
            charge(t, f, THIRD);
        },
        &[|t, f| charge(t, f, OTHER), grow],
        |t, f| {
            charge(t, f, KEY);
            assert_eq!(known(t, f, KEY), 1);
            assert_eq!(known(t, f, OTHER), 1);
            assert_eq!(known(t, f, THIRD), 1);
        },
    );
}

/// A key is taken out while it moves: it takes all charges until then with it, and the next one starts from nothing.
#[test]
fn loom_growth_and_taking_a_key_out_split_its_charges() {
    static TAKEN_OUT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    check_growing(
        1,
        3,
        |t, f| charge(t, f, KEY),
        &[
            |t, f| {
                {
                    let _guard = t.lock(t.place(KEY));
                    let word = t.extract(t.place(KEY), Tag::new(KEY, 0)).unwrap();
                    TAKEN_OUT.store(word, std::sync::atomic::Ordering::SeqCst);
                }
                charge(t, f, KEY);
            },
            grow,
        ],
        |t, f| {
            assert_eq!(TAKEN_OUT.load(std::sync::atomic::Ordering::SeqCst), 1);
            assert_eq!(known(t, f, KEY), 1);
            assert_eq!(t.count_live(f), 1);
        },
    );
}

/// The table doubles twice while a key is charged: the second doubling begins with another mask.
#[test]
fn loom_growth_goes_on_from_one_doubling_to_the_next() {
    check_growing(
        2,
        2,
        |t, f| charge(t, f, KEY),
        &[
            |t, f| charge(t, f, KEY),
            |t, _| {
                t.grow(None);
                t.grow(None);
            },
        ],
        |t, f| {
            assert_eq!(t.active_sets(), 3);
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(t.count_live(f), 1);
        },
    );
}

/// A full set asks for growth, and whoever has put the key that found no room makes the table grow.
#[test]
fn loom_growth_is_asked_for_by_a_full_set() {
    check_growing(
        1,
        2,
        |t, f| {
            charge(t, f, KEY);
            charge(t, f, THIRD);
        },
        &[|t, f| charge(t, f, OTHER), |t, f| charge(t, f, KEY)],
        |t, f| {
            assert_eq!(t.active_sets(), 2);
            assert_eq!(known(t, f, KEY), 2);
            assert_eq!(known(t, f, OTHER), 1);
            assert_eq!(known(t, f, THIRD), 1);
        },
    );
}
