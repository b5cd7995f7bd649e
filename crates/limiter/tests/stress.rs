//! Threads: no update is lost, nobody gets more than the limit and nobody less, whatever the interleaving, the
//! clock and the pressure on memory. Loom tries every interleaving of the table's steps; here
//! the whole library runs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;

use crate::common::*;
use tollgate::core::limit::{Ask, Op};
use tollgate::core::store::Charge;
use tollgate::{
    Clock, ConcurrencyLimiter, FleetMode, FleetShedder, InProgress, ManualClock, MemoryStore,
    MemoryStoreBuilder, Priority, Quota, RateLimiter, Timestamp,
};

/// More threads than cores, so that they are also interrupted at odd moments.
const THREADS: u64 = 4;

/// Runs `work` on all threads at once and adds up what each answers.
fn race(work: impl Fn(u64) -> u64 + Sync) -> u64 {
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        let (work, barrier) = (&work, &barrier);
        let run = |thread| {
            move || {
                barrier.wait();
                work(thread)
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(run(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    })
}

/// The ways to charge a key; each has its own path through the library.
fn charge_somehow(limiter: &RateLimiter, way: u64, name: &str) -> bool {
    match way % 3 {
        0 => limiter.check(name).is_ok(),
        1 => {
            let mut allowed = false;
            limiter.check_many(&[name], |_, outcome| allowed = outcome.allowed);
            allowed
        }
        _ => {
            // What it takes and gives back at once, it has not taken.
            let allowed = limiter.check_n(name, 1).is_ok();
            let _ = limiter.peek(name, 1);
            allowed
        }
    }
}

fn stores() -> [MemoryStoreBuilder; 2] {
    [MemoryStore::builder().max_bytes(1 << 20), MemoryStore::builder().max_bytes(1 << 20).exact_keys()]
}

#[test]
fn stress_one_hot_key_admits_exactly_its_burst() {
    for kind in RATES {
        for builder in stores() {
            for round in 0..5 {
                let burst = if kind == SpacedLog { 1 } else { 5000 };
                let quota = Spec::new(kind, burst, 7, HOUR).quota();
                let clock = ManualClock::at(at(TODAY));
                let limiter = RateLimiter::builder(quota).own_store(builder.clone().clock(clock)).build();
                let admitted = race(|thread| {
                    (0..2000).filter(|way| charge_somehow(&limiter, way + thread + round, "hot")).count()
                        as u64
                });
                assert_eq!(admitted, burst, "{kind:?}");
                assert_eq!(limiter.peek("hot", 0).map_or(0, |peek| peek.remaining), 0, "{kind:?}");
            }
        }
    }
}

#[test]
fn stress_many_keys_admit_exactly_their_bursts() {
    const KEYS: usize = 300;
    for kind in RATES {
        for builder in stores() {
            let burst = if kind == SpacedLog { 1 } else { 50 };
            let clock = ManualClock::at(at(TODAY));
            let quota = Spec::new(kind, burst, 7, HOUR).quota();
            let limiter = RateLimiter::builder(quota).own_store(builder.clock(clock)).build();
            let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            race(|thread| {
                let mut random = random(thread + 1);
                for way in 0..30 * KEYS as u64 {
                    let key = random(KEYS as u64);
                    let passed = charge_somehow(&limiter, way, &key.to_string());
                    admitted[key as usize].fetch_add(passed.into(), Ordering::Relaxed);
                }
                // And each of them until it is refused.
                for (key, admitted) in admitted.iter().enumerate() {
                    while limiter.check(&*key.to_string()).is_ok() {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
                0
            });
            assert!(admitted.iter().all(|admitted| admitted.load(Ordering::Relaxed) == burst), "{kind:?}");
            assert_eq!(limiter.store().stats().evictions, 0, "{kind:?}");
        }
    }
}

/// Refunds, charges and looks race on a few keys: in the end, what was taken is gone.
#[test]
fn stress_refunds_and_charges_add_up() {
    for kind in [Bucket, Queue, Interval, Aligned, Anchored, TwoWindows, Log, SubWindows] {
        for builder in stores() {
            let clock = ManualClock::at(at(TODAY));
            let quota = Spec::new(kind, 100_000, 7, HOUR).quota();
            let limiter = RateLimiter::builder(quota).own_store(builder.clock(clock)).build();
            let taken = race(|thread| {
                let mut random = random(thread + 1);
                let mut taken = 0;
                for _ in 0..5000 {
                    let cost = 1 + random(4);
                    taken += if limiter.check_n("hot", cost).is_ok() { cost } else { 0 };
                    if random(3) == 0 {
                        let back = random(taken + 1).min(3);
                        let _ = limiter.refund("hot", back);
                        taken -= back;
                    }
                }
                taken
            });
            assert_eq!(limiter.peek("hot", 0).unwrap().remaining, 100_000 - taken, "{kind:?}");
        }
    }
}

#[test]
fn stress_a_tiny_table_never_admits_more_than_the_limit() {
    const KEYS: usize = 2000;
    for kind in [Bucket, Queue, Interval, Aligned, Anchored, TwoWindows, Log, CountingLog, SubWindows] {
        for exact in [false, true] {
            let spec = Spec::new(kind, 5, 1, HOUR);
            let clock = ManualClock::at(at(TODAY));
            let builder = MemoryStore::builder().max_bytes(28 << 10).clock(clock);
            let builder = if exact { builder.exact_keys() } else { builder };
            let limiter = RateLimiter::builder(spec.quota()).own_store(builder).build();
            let admitted: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
            race(|thread| {
                let mut random = random(thread + 1);
                for _ in 0..20 * KEYS {
                    // Some keys come back all the time, the others keep the table changing.
                    let key = if random(2) == 0 { random(20) } else { random(KEYS as u64) };
                    let passed = limiter.check(key).is_ok();
                    admitted[key as usize].fetch_add(passed.into(), Ordering::Relaxed);
                }
                0
            });
            for (key, admitted) in admitted.iter().enumerate() {
                let admitted = admitted.load(Ordering::Relaxed);
                assert!(admitted <= spec.capacity, "{kind:?}, exact: {exact}: key {key} got {admitted}");
            }
            let stats = limiter.store().stats();
            assert!(stats.evictions > 0 && stats.failed_open == 0, "{kind:?}: {stats:?}");
        }
    }
}

/// A clock that all threads share and that never goes back. What a thread has read may be old when it is used.
struct SlowToRead(AtomicU64);

impl Clock for SlowToRead {
    fn now(&self) -> Timestamp {
        let now = self.0.fetch_add(10, Ordering::AcqRel);
        if now.is_multiple_of(70) {
            thread::yield_now();
        }
        at(TODAY + now)
    }
}

/// A clock that differs from core to core by up to a microsecond (governor#299).
struct Jittering(AtomicU64);

impl Clock for Jittering {
    fn now(&self) -> Timestamp {
        let now = self.0.fetch_add(10, Ordering::AcqRel);
        at(TODAY + now + now.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 1000)
    }
}

/// All threads race for a key that nobody has used. Whoever reads the clock first and decides last must
/// not be refused while there is anything left.
fn check_no_burst_is_cut_short(name: &str, builder: impl Fn() -> MemoryStoreBuilder) {
    const ROUNDS: usize = 300;
    const BURST: u64 = 10;
    for kind in [Bucket, Queue, Interval, Anchored, Log, CountingLog, SubWindows] {
        // A year, so that no part of it ends meanwhile.
        let quota = Spec::new(kind, BURST, 7, YEAR / 7).quota();
        let limiter = RateLimiter::builder(quota).own_store(builder()).build();
        let grouped =
            RateLimiter::builder(quota).and(Quota::per_hour(1_000_000)).own_store(builder()).build();
        let at_once: Vec<(AtomicU64, [AtomicU64; 2])> = (0..ROUNDS).map(|_| Default::default()).collect();
        race(|thread| {
            for (round, (arrived, admitted)) in at_once.iter().enumerate() {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < THREADS {
                    thread::yield_now();
                }
                let key = round.to_string();
                for way in 0..BURST {
                    let passed = charge_somehow(&limiter, way + thread, &key);
                    admitted[0].fetch_add(passed.into(), Ordering::Relaxed);
                    let passed = grouped.check(&*key).is_ok();
                    admitted[1].fetch_add(passed.into(), Ordering::Relaxed);
                }
            }
            0
        });
        for (round, (_, admitted)) in at_once.iter().enumerate() {
            let admitted = admitted.each_ref().map(|admitted| admitted.load(Ordering::Relaxed));
            assert_eq!(admitted, [BURST; 2], "{name}, {kind:?}: alone and in a group, in round {round}");
        }
    }
}

#[test]
fn stress_the_system_clock_cuts_no_burst_short() {
    check_no_burst_is_cut_short("system clock", MemoryStore::builder);
    check_no_burst_is_cut_short("system clock, exact keys", || MemoryStore::builder().exact_keys());
}

#[test]
fn stress_a_clock_that_is_slow_to_read_cuts_no_burst_short() {
    let builder = || MemoryStore::builder().clock(SlowToRead(AtomicU64::new(0)));
    check_no_burst_is_cut_short("slow clock", builder);
}

#[test]
fn stress_a_jittering_clock_cuts_no_burst_short() {
    let builder = || MemoryStore::builder().clock(Jittering(AtomicU64::new(0)));
    check_no_burst_is_cut_short("jittering clock", builder);
}

/// Threads take, hold, hand over, drop and panic. Never are there more than the capacity, and in the end none.
#[test]
fn stress_permits_never_exceed_the_capacity_and_all_come_back() {
    const CAPACITY: u64 = 7;
    for builder in stores() {
        let limiter = ConcurrencyLimiter::builder(CAPACITY).own_store(builder).build();
        let held: [AtomicI64; 3] = Default::default();
        let (sender, receiver) = mpsc::channel();
        let dropper = thread::spawn(move || {
            receiver.into_iter().for_each(|(permit, give_back)| {
                let give_back: Box<dyn FnOnce() + Send> = give_back;
                give_back();
                drop::<tollgate::ConcurrencyPermit>(permit);
            })
        });
        let held = Arc::new(held);
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        race(|thread| {
            let mut random = random(thread + 1);
            let mut mine = Vec::new();
            for _ in 0..20_000 {
                let key = random(3);
                let weight = 1 + random(2);
                match limiter.acquire_n(key, weight) {
                    Ok(permit) => {
                        let now =
                            held[key as usize].fetch_add(weight as i64, Ordering::SeqCst) + weight as i64;
                        assert!(now <= CAPACITY as i64, "{now} at once");
                        mine.push((key, weight, permit));
                    }
                    Err(refused) => assert!(!refused.outcome.allowed),
                }
                if random(2) == 0 && !mine.is_empty() {
                    let (key, weight, permit) = mine.swap_remove(random(mine.len() as u64) as usize);
                    let counts = Arc::clone(&held);
                    let give_back = move || {
                        counts[key as usize].fetch_sub(weight as i64, Ordering::SeqCst);
                    };
                    match random(3) {
                        0 => {
                            give_back();
                            drop(permit);
                        }
                        1 => sender.send((permit, Box::new(give_back) as Box<dyn FnOnce() + Send>)).unwrap(),
                        _ => {
                            let panicked = catch_unwind(AssertUnwindSafe(move || {
                                let _permit = permit;
                                give_back();
                                panic!("the holder's");
                            }));
                            assert!(panicked.is_err());
                        }
                    }
                }
            }
            for (key, weight, permit) in mine {
                held[key as usize].fetch_sub(weight as i64, Ordering::SeqCst);
                drop(permit);
            }
            0
        });
        std::panic::set_hook(quiet);
        drop(sender);
        dropper.join().unwrap();
        for key in 0..3_u64 {
            assert_eq!(limiter.in_progress(key), 0, "at rest");
        }
    }
}

#[test]
fn stress_a_fleet_keeps_its_reserve_and_all_places_come_back() {
    let fleet = FleetShedder::with_mode(10, (1, 5), FleetMode::Total).unwrap();
    let (total, others) = (AtomicI64::new(0), AtomicI64::new(0));
    let passed = race(|thread| {
        let mut random = random(thread + 1);
        let mut mine = Vec::new();
        let mut passed = 0;
        for _ in 0..50_000 {
            let critical = random(3) == 0;
            if let Ok(permit) = fleet.admit(if critical { Priority::Critical } else { Priority::Other }) {
                assert!(total.fetch_add(1, Ordering::SeqCst) < 10);
                let other = i64::from(!critical);
                assert!(others.fetch_add(other, Ordering::SeqCst) + other <= 8);
                mine.push((critical, permit));
                passed += 1;
            }
            if random(2) == 0 && !mine.is_empty() {
                let (critical, permit) = mine.swap_remove(random(mine.len() as u64) as usize);
                total.fetch_sub(1, Ordering::SeqCst);
                others.fetch_sub(i64::from(!critical), Ordering::SeqCst);
                drop(permit);
            }
        }
        for (critical, permit) in mine {
            total.fetch_sub(1, Ordering::SeqCst);
            others.fetch_sub(i64::from(!critical), Ordering::SeqCst);
            drop(permit);
        }
        passed
    });
    assert!(passed > 0);
    assert_eq!(fleet.in_progress(), InProgress::default());
}

/// The quota changes under the callers' hands, also to another algorithm. Whatever is in force, no more than the
/// burst that all of them have passes while time stands still.
#[test]
fn stress_a_changing_quota_never_admits_more_than_the_burst() {
    const BURST: u64 = 2000;
    let pairs = [
        (Bucket, Bucket),
        (Aligned, Aligned),
        (Anchored, Anchored),
        (TwoWindows, TwoWindows),
        (Interval, Interval),
        (Log, Log),
        (Bucket, Log),
        (Log, Aligned),
        (Bucket, TwoWindows),
    ];
    for (one, other) in pairs {
        let quotas = [Spec::new(one, BURST, 3, HOUR).quota(), Spec::new(other, BURST, 5, 2 * HOUR).quota()];
        let clock = ManualClock::at(at(TODAY));
        let builder = MemoryStore::builder().max_bytes(4 << 20).clock(clock);
        let limiter = RateLimiter::builder(quotas[0]).plan("other", quotas[1]).own_store(builder).build();
        let plan = limiter.plan("other").unwrap();
        let done = AtomicBool::new(false);
        let admitted = thread::scope(|scope| {
            scope.spawn(|| {
                for flip in 1..400 {
                    limiter.set_quota(quotas[flip % 2]).unwrap();
                    thread::yield_now();
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
            let admitted = race(|thread| {
                let mut admitted = 0;
                for call in 0..3000 {
                    let limiter = if (call / 100 + thread) % 4 == 0 { plan } else { &limiter };
                    admitted += u64::from(charge_somehow(limiter, call, "hot"));
                }
                admitted
            });
            done.store(true, Ordering::Relaxed);
            admitted
        });
        assert!(admitted <= BURST, "{one:?} and {other:?}: {admitted} of {BURST}");
        assert!(admitted > BURST / 2, "{one:?} and {other:?}: only {admitted}");
        let stats = limiter.store().stats();
        assert_eq!((stats.evictions, stats.failed_open), (0, 0), "{one:?} and {other:?}");
    }
}

/// Everything at once, on a clock that moves: nothing panics, nothing hangs, memory stays under the ceiling.
#[test]
fn stress_everything_at_once() {
    let clock = ManualClock::at(at(TODAY));
    let store = Arc::new(MemoryStore::builder().max_bytes(64 << 10).clock(clock.clone()).build());
    let kinds: Vec<Kind> = RATES.into_iter().chain([Leases, Fleet]).collect();
    let rules: Vec<_> = kinds
        .iter()
        .map(|kind| store.define(&format!("{kind:?}"), Spec::new(*kind, 10, 3, SECOND).limit()))
        .collect();
    race(|thread| {
        let mut random = random(thread + 1);
        for step in 0..30_000_u64 {
            let index = random(rules.len() as u64) as usize;
            let (rule, name) = (rules[index], random(500).to_string());
            let ask = ask(1 + random(3), u128::from(step % 50), random(2) == 0);
            match random(12) {
                0 => clock.advance(std::time::Duration::from_millis(random(30))),
                1 => store.forget(rule, key(&name)).unwrap(),
                2 if step % 100 == 0 => {
                    let relatives = kinds[index].relatives();
                    let kind = relatives[random(relatives.len() as u64) as usize];
                    let spec = Spec::new(kind, 5 + random(10), 1 + random(5), SECOND);
                    store.redefine(rule, spec.limit(), None).unwrap();
                }
                3..6 => {
                    let others = [rule, rules[random(rules.len() as u64) as usize], rules[0]];
                    let group = others.map(|rule| Charge { rule, key: key(&name), ask });
                    let _ = store.decide_all(&group, None);
                }
                6 => {
                    let _ = decide(&store, Op::Refund, rule, &name, ask, None);
                }
                7 => {
                    let _ = decide(&store, Op::Renew, rule, &name, ask, None);
                }
                _ => {
                    let _ = decide(&store, Op::Charge, rule, &name, ask, None);
                }
            }
            if step % 1000 == 0 {
                let stats = store.stats();
                assert!(stats.bytes <= stats.max_bytes, "{stats:?}");
                let _ = store.count_keys(None);
            }
        }
        0
    });
    // When all is over, everybody starts afresh.
    clock.advance(std::time::Duration::from_secs(3600));
    for (rule, kind) in rules.iter().zip(&kinds) {
        let late = decide(&store, Op::Charge, *rule, "late", Ask::from(1), None).unwrap();
        assert!(late.allowed, "{kind:?}");
    }
}

/// Found by a reader: a batch was refused by the time that another thread had read meanwhile.
#[test]
fn stress_batches_cut_no_burst_short() {
    let limiter = RateLimiter::per_day(8).build();
    let refused = race(|_| {
        let mut refused = 0;
        for key in 0..5000_u64 {
            limiter.check_many(&[key; 2], |_, outcome| refused += u64::from(!outcome.allowed));
        }
        refused
    });
    // Every thread asks twice for each key.
    assert_eq!(refused, 5000 * (2 * THREADS).saturating_sub(8));
}
