//! What limits do while their shared store is away. The store here fails on command; `crates/redis/tests/faults.rs` has
//! the same with real servers that are killed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot set itself up fails")]

use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::core::concurrency::LeaseId;
use tollgate::core::key::KeyRef;
use tollgate::core::limit::{Ask, Op};
use tollgate::core::store::{Charge, Rule, StoreError};
use tollgate::{
    Degraded, Failsafe, FailsafeStats, InProgress, Limit, ManualClock, MemoryStore, Nanos, OnFailure,
    Outcome, Quota, Store, Timestamp, Verdict,
};

/// A store of which parts can be made to fail.
struct Fragile {
    store: MemoryStore,
    health: Arc<Health>,
}

#[derive(Default)]
struct Health {
    /// All calls fail.
    fails: AtomicU64,
    /// It is known that calls for keys that begin with `away` fail.
    away: AtomicU64,
    nodes: AtomicU64,
    calls: AtomicU64,
    /// Charges are never answered.
    hangs: AtomicU64,
    /// Nobody else uses the store.
    is_alone: AtomicU64,
    /// What was given back waits while the store is away.
    given_back: Mutex<Vec<LeaseId>>,
}

impl Fragile {
    fn check(&self) -> Result<(), StoreError> {
        self.health.calls.fetch_add(1, Ordering::Relaxed);
        match self.health.fails.load(Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(StoreError::Unavailable("told to".to_owned())),
        }
    }
}

impl Store for Fragile {
    fn define(&self, family: &str, limit: Limit) -> Result<Rule, StoreError> {
        Ok(self.store.define(family, limit))
    }
    fn redefine(&self, rule: Rule, limit: Limit, at: Option<Timestamp>) -> Result<(), StoreError> {
        self.store.redefine(rule, limit, at)
    }
    async fn charge(&self, charges: &[Charge<'_>], at: Option<Timestamp>) -> Result<Verdict, StoreError> {
        self.check()?;
        if self.health.hangs.load(Ordering::Relaxed) > 0 {
            std::future::pending::<()>().await;
        }
        self.store.charge(charges, at).await
    }
    async fn apply(&self, op: Op, charge: Charge<'_>, at: Option<Timestamp>) -> Result<Outcome, StoreError> {
        self.check()?;
        self.store.apply(op, charge, at).await
    }
    async fn reset(&self, rule: Rule, key: KeyRef<'_>) -> Result<(), StoreError> {
        self.check()?;
        self.store.reset(rule, key).await
    }
    async fn in_progress(
        &self,
        rule: Rule,
        key: KeyRef<'_>,
        at: Option<Timestamp>,
    ) -> Result<InProgress, StoreError> {
        self.check()?;
        self.store.in_progress(rule, key, at).await
    }
    fn give_back(&self, charge: Charge<'_>) {
        self.health.given_back.lock().unwrap().push(charge.ask.lease);
        self.store.give_back(charge);
    }
    fn answers_for(&self, key: KeyRef<'_>) -> bool {
        self.health.away.load(Ordering::Relaxed) == 0 || !key.bytes.starts_with(b"away")
    }
    fn nodes(&self) -> u64 {
        self.health.nodes.load(Ordering::Relaxed)
    }
    fn is_shared(&self) -> bool {
        self.health.is_alone.load(Ordering::Relaxed) == 0
    }
}

struct World {
    store: Failsafe<Fragile>,
    health: Arc<Health>,
    clock: ManualClock,
}

fn world(nodes: u64) -> World {
    let clock = ManualClock::default();
    clock.advance(Duration::from_secs(1000));
    let memory = || MemoryStore::builder().max_bytes(8 << 20).clock(clock.clone()).build();
    let health = Arc::new(Health { nodes: nodes.into(), ..Health::default() });
    let fragile = Fragile { store: memory(), health: Arc::clone(&health) };
    World { store: Failsafe::with_local(fragile, Arc::new(memory())), health, clock }
}

impl World {
    fn fail(&self, yes: bool) {
        self.health.fails.store(yes.into(), Ordering::Relaxed);
    }

    fn lose_keys_that_are_away(&self, yes: bool) {
        self.health.away.store(yes.into(), Ordering::Relaxed);
    }

    fn charge(&self, charges: &[(Rule, &str, u64)]) -> Verdict {
        let charges: Vec<_> = charges
            .iter()
            .map(|&(rule, key, cost)| Charge { rule, key: key.into(), ask: Ask::from(cost) })
            .collect();
        now(self.store.charge(&charges, None)).unwrap()
    }

    fn admitted(&self, rule: Rule, key: &str) -> u64 {
        (0..1000).take_while(|_| self.charge(&[(rule, key, 1)]).allowed).count() as u64
    }

    fn left(&self, rule: Rule, key: &str) -> u64 {
        let charge = Charge { rule, key: key.into(), ask: Ask::from(0) };
        now(self.store.apply(Op::Estimate, charge, None)).unwrap().remaining
    }
}

/// Both stores are memory, so nothing is ever waited for.
fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

fn per_hour(count: u64) -> Limit {
    Quota::per_hour(count).limit().unwrap()
}

#[test]
fn each_limit_does_what_it_was_told_and_the_verdict_says_so() {
    let world = world(4);
    let define = |name, on_failure| world.store.define_with(name, per_hour(100), on_failure).unwrap();
    let (open, closed, local) = (
        define("open", OnFailure::Open),
        define("closed", OnFailure::Closed),
        define("local", OnFailure::Local),
    );
    assert!(world.charge(&[(open, "a", 1), (closed, "a", 1), (local, "a", 1)]).degraded.is_empty());
    world.fail(true);

    assert_eq!(world.admitted(open, "a"), 1000);
    assert_eq!(world.admitted(local, "a"), 25, "a quarter for each of four nodes");
    let refused = world.charge(&[(local, "a", 1)]);
    assert!(!refused.allowed && !refused.is_closed(), "a limit has refused it: 429");
    assert_eq!(refused.degraded, [Degraded { index: 0, by: OnFailure::Local }]);

    let refused = world.charge(&[(local, "b", 1), (closed, "b", 1)]);
    assert!(!refused.allowed && refused.is_closed(), "nobody has refused it: 503");
    assert_eq!(refused.retry_after, Some(Nanos::from_secs(1)));
    assert_eq!(refused.degraded.len(), 2);
    assert_eq!(world.admitted(local, "b"), 25, "a call that is refused costs nothing");

    let FailsafeStats { open: passed, closed: shut, local: shared, .. } = world.store.stats();
    assert_eq!((passed, shut), (1000, 1));
    assert_eq!(shared, world.store.degraded(local));
    assert_eq!(world.store.degraded(closed), 1);
}

#[test]
fn when_the_store_is_back_it_is_exact_again_and_the_outage_is_forgotten() {
    let world = world(2);
    let rule = world.store.define_with("per user", per_hour(100), OnFailure::Local).unwrap();
    assert!(world.charge(&[(rule, "a", 60)]).allowed);
    world.fail(true);
    assert_eq!(world.admitted(rule, "a"), 50);
    world.fail(false);
    assert_eq!(world.left(rule, "a"), 40);
    assert_eq!(world.admitted(rule, "a"), 40);
    // The next outage finds what the last one used.
    world.fail(true);
    assert_eq!(world.admitted(rule, "a"), 0);
}

#[test]
fn the_number_of_nodes_may_change_in_an_outage_and_nobody_gets_a_fresh_share() {
    let world = world(10);
    let rule = world.store.define_with("per user", per_hour(100), OnFailure::Local).unwrap();
    world.fail(true);
    assert_eq!(world.admitted(rule, "a"), 10);
    world.health.nodes.store(5, Ordering::Relaxed);
    assert_eq!(world.admitted(rule, "a"), 10, "20 in all");
    world.health.nodes.store(50, Ordering::Relaxed);
    assert_eq!(world.admitted(rule, "a"), 0);
}

#[test]
fn a_call_that_costs_more_than_a_share_takes_the_whole_share() {
    let world = world(10);
    let rule = world.store.define_with("per user", per_hour(100), OnFailure::Local).unwrap();
    world.fail(true);
    let never = world.charge(&[(rule, "a", 101)]);
    assert!(!never.allowed && never.retry_after.is_none(), "more than the limit is never allowed");
    assert!(world.charge(&[(rule, "a", 60)]).allowed);
    let refused = world.charge(&[(rule, "a", 60)]);
    assert!(!refused.allowed);
    // A share regains 10 in an hour.
    world.clock.advance(Duration::from_nanos(refused.retry_after.unwrap().as_u64()));
    assert!(world.charge(&[(rule, "a", 60)]).allowed);
}

#[test]
fn only_the_keys_of_the_part_that_is_away_are_decided_here() {
    let world = world(2);
    let user = world.store.define_with("per user", per_hour(10), OnFailure::Local).unwrap();
    let tenant = world.store.define_with("per tenant", per_hour(8), OnFailure::Local).unwrap();
    world.lose_keys_that_are_away(true);
    let call = || world.charge(&[(user, "alice", 1), (tenant, "away acme", 1)]);
    let passed = (0..20).filter(|_| call().allowed).count();
    assert_eq!(passed, 4, "the share of the tenant's limit");
    let refused = call();
    assert_eq!(refused.refused_by().collect::<Vec<_>>(), [1]);
    assert_eq!(refused.degraded, [Degraded { index: 1, by: OnFailure::Local }]);
    assert_eq!(world.left(user, "alice"), 6, "charged exactly for those that passed");

    // And when the part that answers refuses, the share gets back what it had given.
    let call = || world.charge(&[(user, "bob", 6), (tenant, "away other", 1)]);
    assert!(call().allowed);
    for _ in 0..20 {
        let refused = call();
        assert_eq!(refused.refused_by().collect::<Vec<_>>(), [0]);
        assert_eq!(refused.outcomes[1].remaining, 2);
    }
    assert_eq!(world.left(tenant, "away other"), 3);

    // The part that seems to answer does not: all is decided here, once.
    world.fail(true);
    let call = || world.charge(&[(user, "carol", 1), (tenant, "away third", 1)]);
    let before = world.store.stats().local;
    let passed: Vec<_> = (0..20).map(|_| call()).filter(|verdict| verdict.allowed).collect();
    assert_eq!(passed.len(), 4);
    assert!(passed.iter().all(|verdict| verdict.degraded.len() == 2));
    assert_eq!(
        world.store.stats().local - before,
        40 - 16,
        "two of a call, but one where the first share refuses"
    );
}

#[test]
fn a_store_that_is_known_to_be_away_is_not_asked() {
    let world = world(1);
    let rule = world.store.define_with("per user", per_hour(10), OnFailure::Local).unwrap();
    world.lose_keys_that_are_away(true);
    assert_eq!(world.admitted(rule, "away"), 10);
    assert_eq!(world.left(rule, "away"), 0);
    assert_eq!(world.health.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn a_lease_goes_back_to_where_it_was_taken() {
    let world = world(2);
    let rule = world
        .store
        .define_with("in progress", Limit::leases(4, Nanos::from_secs(60)).unwrap(), OnFailure::Local)
        .unwrap();
    let charge =
        |lease| Charge { rule, key: "alice".into(), ask: Ask { lease: LeaseId(lease), ..Ask::from(1) } };
    let take = |lease| now(world.store.charge(&[charge(lease)], None)).unwrap().allowed;
    let held = || now(world.store.in_progress(rule, "alice".into(), None)).unwrap().other;
    assert!(take(1) && take(2));
    world.fail(true);
    assert!(take(3) && take(4) && !take(5), "half of four on each of two nodes");
    assert_eq!(held(), 2);
    world.fail(false);
    assert_eq!(held(), 2);
    assert!(now(world.store.apply(Op::Renew, charge(3), None)).unwrap().allowed, "it is held here");
    for lease in [1, 3] {
        world.store.give_back(charge(lease));
    }
    assert_eq!(held(), 1, "one of the shared store's");
    assert!(now(world.store.apply(Op::Refund, charge(4), None)).unwrap().allowed);
    assert_eq!(held(), 1);
    world.fail(true);
    assert_eq!(held(), 0, "and both of this node's");
}

#[test]
fn nothing_but_a_rule_of_another_store_is_an_error() {
    let world = world(1);
    let rule = world.store.define_with("per user", per_hour(10), OnFailure::Local).unwrap();
    world.fail(true);
    let charge = Charge { rule, key: "alice".into(), ask: Ask::from(1) };
    for op in [Op::Charge, Op::Estimate, Op::Refund, Op::Undo, Op::Renew] {
        assert!(now(world.store.apply(op, charge, None)).is_ok());
    }
    assert!(now(world.store.in_progress(rule, "alice".into(), None)).is_ok());
    let unknown = Rule(99);
    let charge = Charge { rule: unknown, ..charge };
    assert_eq!(now(world.store.charge(&[charge], None)), Err(StoreError::UnknownRule(unknown)));
}

#[test]
fn a_limit_that_is_changed_keeps_its_way_of_failing() {
    let world = world(2);
    let rule = world.store.define_with("per user", per_hour(10), OnFailure::Local).unwrap();
    world.store.redefine(rule, per_hour(40), None).unwrap();
    assert_eq!(world.store.define_with("per user", per_hour(40), OnFailure::Open).unwrap(), Rule(1));
    world.fail(true);
    assert_eq!(world.admitted(rule, "a"), 20);
}

#[test]
fn changing_a_limit_leaves_its_twin_with_another_way_of_failing_as_it_was() {
    let world = world(1);
    let open = world.store.define_with("per user", per_hour(5), OnFailure::Open).unwrap();
    let closed = world.store.define_with("per user", per_hour(5), OnFailure::Closed).unwrap();
    world.store.redefine(open, per_hour(500), None).unwrap();
    assert_eq!(world.admitted(closed, "a"), 5);
    assert_eq!(world.admitted(open, "b"), 500);
}

#[test]
fn a_lease_that_is_given_back_in_an_outage_goes_back_to_the_store_that_holds_it() {
    let world = world(2);
    let rule = world
        .store
        .define_with("in progress", Limit::leases(4, Nanos::from_secs(60)).unwrap(), OnFailure::Local)
        .unwrap();
    let charge =
        |lease| Charge { rule, key: "away".into(), ask: Ask { lease: LeaseId(lease), ..Ask::from(1) } };
    let take = |lease| now(world.store.charge(&[charge(lease)], None)).unwrap().allowed;
    assert!(take(1) && take(2));
    world.lose_keys_that_are_away(true);
    assert!(take(3), "by this node's share");
    for (op, lease) in [(Op::Refund, 1), (Op::Undo, 2), (Op::Refund, 3)] {
        assert!(now(world.store.apply(op, charge(lease), None)).unwrap().allowed);
    }
    assert_eq!(*world.health.given_back.lock().unwrap(), [LeaseId(1), LeaseId(2)], "the third was held here");
    world.lose_keys_that_are_away(false);
    assert_eq!(now(world.store.in_progress(rule, "away".into(), None)).unwrap().other, 0);
}

#[test]
fn a_caller_that_goes_away_while_another_part_is_asked_leaves_nothing_behind_here() {
    let world = world(1);
    let progress = world
        .store
        .define_with("in progress", Limit::leases(1, Nanos::from_secs(60)).unwrap(), OnFailure::Local)
        .unwrap();
    let rate = world.store.define_with("per tenant", per_hour(8), OnFailure::Local).unwrap();
    let user = world.store.define_with("per user", per_hour(10), OnFailure::Local).unwrap();
    world.lose_keys_that_are_away(true);
    world.health.hangs.store(1, Ordering::Relaxed);
    let charges = |lease| {
        [
            Charge { rule: progress, key: "away".into(), ask: Ask { lease: LeaseId(lease), ..Ask::from(1) } },
            Charge { rule: rate, key: "away".into(), ask: Ask::from(3) },
            Charge { rule: user, key: "alice".into(), ask: Ask::from(1) },
        ]
    };
    for lease in 0..5 {
        let charges = charges(lease);
        let mut call = Box::pin(world.store.charge(&charges, None));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(now(world.store.in_progress(progress, "away".into(), None)).unwrap().other, 0);
    assert_eq!(world.left(rate, "away"), 8);
    world.health.hangs.store(0, Ordering::Relaxed);
    assert!(now(world.store.charge(&charges(9), None)).unwrap().allowed);
    assert_eq!(world.left(rate, "away"), 5, "what was decided is kept");
}

/// What a limiter has counted: would have refused, the candidate would have refused, decided without the store.
#[cfg(feature = "policy")]
fn counted(limiter: &tollgate::Limiter<Failsafe<Fragile>>, name: &str) -> (u64, u64, u64) {
    let report = limiter.report();
    let counts = &report.limiters.iter().find(|limiter| *limiter.name == *name).unwrap().stats;
    (counts.would_refuse, counts.candidate_refused, counts.degraded)
}

#[cfg(feature = "policy")]
#[test]
fn an_outage_is_no_refusal_of_a_limit_that_is_only_watched() {
    let World { store, health, clock } = world(1);
    let policy = "
limiters:
  closed: { rate: 5/h, per: global, mode: dark, candidate: 2/h, on_store_failure: closed }
  local: { rate: 5/h, per: global, mode: dark, on_store_failure: local }
";
    let limiter = tollgate::Limiter::builder().store(store).clock(clock).policy(policy).build().unwrap();
    let ask = |times: usize| {
        for _ in 0..times {
            assert!(now(limiter.admit(&tollgate::Facts::default())).is_ok());
        }
    };
    ask(3);
    assert_eq!(counted(&limiter, "closed"), (0, 1, 0));
    health.fails.store(1, Ordering::Relaxed);
    ask(10);
    assert_eq!(counted(&limiter, "closed"), (0, 1, 20), "the limit and its candidate, ten times");
    assert_eq!(
        counted(&limiter, "local"),
        (5, 0, 10),
        "what its share refuses, the limit would have refused"
    );
    health.fails.store(0, Ordering::Relaxed);
    ask(5);
    assert_eq!(counted(&limiter, "closed"), (3, 6, 20));
}

#[cfg(feature = "policy")]
#[test]
fn a_shared_store_without_a_failsafe_does_not_pretend_to_close() {
    use tollgate::{Limiter, PolicyError};
    let bare = || Fragile { store: MemoryStore::new(), health: Arc::default() };
    let policy = |how: &str| format!("limiters: {{ logins: {{ rate: 5/min, per: global{how} }} }}");
    for (how, said) in [(", on_store_failure: closed", "closed"), (", on_store_failure: local", "local")] {
        let error = Limiter::builder().store(bare()).policy(&policy(how)).build().unwrap_err();
        assert!(matches!(&error, PolicyError::Unguarded { wanted, .. } if *wanted == said), "{error}");
        let said = format!("\"logins\" has `on_store_failure: {said}`");
        assert!(error.to_string().contains(&said) && error.to_string().contains("Failsafe::new"), "{error}");
        assert!(Limiter::builder().store(Failsafe::new(bare())).policy(&policy(how)).build().is_ok());
        assert!(
            Limiter::builder().store(MemoryStore::new()).policy(&policy(how)).build().is_ok(),
            "never away"
        );
    }
    let open = Limiter::builder().store(bare()).policy(&policy("")).build().unwrap();
    assert!(open.reload_text(&policy(", on_store_failure: closed")).is_err(), "nor does a reload");
    assert!(Limiter::builder().store(bare()).policy("limiters: { w: { workers: {} } }").build().is_ok());
}

/// Found by a reader: where nobody else uses the store, places had no names, and after an outage none came back to where it was taken.
#[cfg(feature = "policy")]
#[test]
fn places_come_back_to_where_they_were_taken_also_where_the_store_is_nobody_elses() {
    let World { store, health, clock } = world(1);
    health.is_alone.store(1, Ordering::Relaxed);
    let policy = "limiters: { fleet: { fleet: 2, reserve: 0%, for: get, on_store_failure: local }, own: { concurrency: 2, per: global, on_store_failure: local } }";
    let limiter = tollgate::Limiter::builder().store(store).clock(clock).policy(policy).build().unwrap();
    let facts = tollgate::Facts { method: "POST", path: "/", ..tollgate::Facts::default() };
    let admit = || now(limiter.admit(&facts));
    let before = admit().unwrap();
    health.fails.store(1, Ordering::Relaxed);
    let meanwhile = admit().unwrap();
    health.fails.store(0, Ordering::Relaxed);
    drop((meanwhile, before));
    for round in 0..10 {
        let both = [admit(), admit()];
        assert!(both.iter().all(Result::is_ok), "{round}: nothing else is in progress");
        assert!(admit().is_err(), "{round}: two are");
    }
}

#[cfg(feature = "policy")]
#[test]
fn with_all_load_on_one_of_two_nodes_nobody_within_the_limit_is_rejected() {
    let World { store, health, clock } = world(2);
    let policy = "limiters: { rate: { rate: 100/h, per: global }, few: { concurrency: 20, per: global } }";
    let limiter = tollgate::Limiter::builder().store(store).clock(clock).policy(policy).build().unwrap();
    let admit = || now(limiter.admit(&tollgate::Facts::default()));
    health.fails.store(1, Ordering::Relaxed);
    let in_progress: Vec<_> = (0..20).map(|_| admit()).collect();
    assert!(in_progress.iter().all(Result::is_ok), "20 of 20 in progress");
    drop(in_progress);
    assert!((20..100).all(|_| admit().is_ok()), "100 of 100 in an hour");
}
