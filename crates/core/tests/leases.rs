//! Requests in progress against the plainest model there is: a list of who holds what until when.

use crate::common::config;
use proptest::prelude::*;
use tollgate_core::concurrency::{InProgress, LeaseId};
use tollgate_core::fleet::FleetMode;
use tollgate_core::limit::{Ask, Op, State};
use tollgate_core::{Limit, Nanos, Outcome, Timestamp};

/// What a limit on requests in progress is made of.
#[derive(Clone, Copy, Debug)]
struct Spec {
    capacity: u64,
    ttl: u64,
    fleet: Option<(u64, u64, FleetMode)>,
}

impl Spec {
    fn limit(&self) -> Limit {
        let ttl = Nanos::new(self.ttl);
        let built = match self.fleet {
            None => Limit::leases(self.capacity, ttl),
            Some((kept, of, mode)) => Limit::fleet(self.capacity, (kept, of), mode, ttl),
        };
        built.unwrap_or_else(|error| unreachable!("{self:?}: {error}"))
    }

    /// The most that requests which are not critical may hold, and the most that all may hold.
    fn shares(&self) -> (u64, Option<u64>) {
        match self.fleet {
            None => (self.capacity, Some(self.capacity)),
            Some((kept, of, mode)) => {
                (self.capacity * (of - kept) / of, (mode == FleetMode::Total).then_some(self.capacity))
            }
        }
    }

    /// Leases know no critical requests.
    fn is_critical(&self, asked: bool) -> bool {
        asked && self.fleet.is_some()
    }
}

fn spec() -> impl Strategy<Value = Spec> {
    let mode = prop_oneof![Just(FleetMode::Allocation), Just(FleetMode::Total)];
    let fleet = (0..=5_u64, 1..=5_u64, mode).prop_map(|(kept, of, mode)| (kept.min(of), of, mode));
    (1..=8_u64, 1..=30_u64, prop::option::weighted(0.7, fleet)).prop_map(|(capacity, ttl, fleet)| Spec {
        capacity,
        ttl,
        fleet,
    })
}

#[derive(Clone, Copy, Debug)]
struct Held {
    id: u128,
    expiry: u64,
    cost: u64,
    critical: bool,
}

/// The holders, and nothing else.
#[derive(Clone, Debug)]
struct Model {
    spec: Spec,
    held: Vec<Held>,
}

impl Model {
    fn live(&self, now: u64) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(move |lease| now < lease.expiry)
    }

    fn in_progress(&self, now: u64) -> InProgress {
        let sum = |critical| self.live(now).filter(|l| l.critical == critical).map(|l| l.cost).sum();
        InProgress { critical: sum(true), other: sum(false) }
    }

    fn fits(&self, now: u64, cost: u64, critical: bool) -> bool {
        let (share, total) = self.spec.shares();
        let used = self.in_progress(now);
        cost == 0
            || (critical || used.other + cost <= share)
                && total.is_none_or(|total| used.critical + used.other + cost <= total)
    }

    fn is_possible(&self, cost: u64, critical: bool) -> bool {
        Model { spec: self.spec, held: Vec::new() }.fits(0, cost, critical)
    }

    fn remaining(&self, now: u64) -> u64 {
        let most = (0..=self.spec.capacity).rev().find(|&cost| self.fits(now, cost, false));
        most.unwrap_or(0)
    }

    fn outcome(&self, now: u64, allowed: bool, retry_after: Option<u64>) -> Outcome {
        let latest = self.live(now).map(|lease| lease.expiry - now).max();
        Outcome {
            allowed,
            remaining: self.remaining(now),
            retry_after: retry_after.map(Nanos::new),
            reset_after: Nanos::new(latest.unwrap_or(0)),
            delay: Nanos::ZERO,
        }
    }

    fn acquire(&mut self, now: u64, id: u128, cost: u64, critical: bool, take: bool) -> Outcome {
        if !self.is_possible(cost, critical) {
            return self.outcome(now, false, None);
        }
        let is_live = self.live(now).any(|lease| lease.id == id);
        if !is_live && !self.fits(now, cost, critical) {
            // The first expiry after which there is room.
            let ends = self.live(now).map(|lease| lease.expiry).filter(|&end| self.fits(end, cost, critical));
            let wait = ends.min().map(|end| end - now);
            return self.outcome(now, false, wait);
        }
        if take && cost > 0 && !self.extend(now, id) {
            self.held.retain(|lease| lease.id != id);
            self.held.push(Held { id, expiry: now + self.spec.ttl, cost, critical });
        }
        self.outcome(now, true, Some(0))
    }

    fn extend(&mut self, now: u64, id: u128) -> bool {
        let live = self.held.iter_mut().find(|lease| lease.id == id && now < lease.expiry);
        let is_live = live.is_some();
        if let Some(lease) = live {
            lease.expiry = lease.expiry.max(now + self.spec.ttl);
        }
        is_live
    }

    fn release(&mut self, now: u64, id: u128) -> bool {
        let was_live = self.live(now).any(|lease| lease.id == id);
        self.held.retain(|lease| lease.id != id);
        was_live
    }
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Acquire { id: u128, cost: u64, critical: bool },
    Estimate { id: u128, cost: u64, critical: bool },
    Renew { id: u128 },
    Release { id: u128, op: Op },
    Resize { spec: Spec },
}

fn act() -> impl Strategy<Value = Act> {
    let id = || 0..8_u128;
    let cost = || prop_oneof![6 => 0..=3_u64, 2 => 0..=9_u64, 1 => Just(u64::MAX)];
    prop_oneof![
        8 => (id(), cost(), any::<bool>()).prop_map(|(id, cost, critical)| Act::Acquire { id, cost, critical }),
        4 => (id(), cost(), any::<bool>()).prop_map(|(id, cost, critical)| Act::Estimate { id, cost, critical }),
        2 => id().prop_map(|id| Act::Renew { id }),
        2 => (id(), prop_oneof![Just(Op::Refund), Just(Op::Undo)]).prop_map(|(id, op)| Act::Release { id, op }),
        1 => spec().prop_map(|spec| Act::Resize { spec }),
    ]
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    prop::collection::vec((prop_oneof![0..=3_u64, 0..=20_u64], act()), 1..80)
}

struct Subject {
    limit: Limit,
    state: State,
}

impl Subject {
    fn apply(&mut self, op: Op, now: u64, id: u128, cost: u64, critical: bool) -> Outcome {
        let ask = Ask { lease: LeaseId(id), critical, ..Ask::from(cost) };
        let now = Timestamp::from_nanos(now);
        self.limit.apply(op, &mut self.state, now, ask, now)
    }
}

/// A critical request of a fleet without a total is admitted whatever it weighs, within reason.
fn within_reason(spec: &Spec, cost: u64, critical: bool) -> u64 {
    let (_, total) = spec.shares();
    if spec.is_critical(critical) && total.is_none() { cost.min(spec.capacity) } else { cost }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn leases_and_fleets_answer_as_a_list_of_holders_would(
        spec in spec(),
        start in crate::common::start(),
        acts in acts(),
    ) {
        let mut model = Model { spec, held: Vec::new() };
        let mut subject = Subject { limit: spec.limit(), state: spec.limit().fresh() };
        let mut now = start;
        for (gap, act) in acts {
            now += gap;
            match act {
                Act::Acquire { id, cost, critical } => {
                    let cost = within_reason(&model.spec, cost, critical);
                    let outcome = subject.apply(Op::Charge, now, id, cost, critical);
                    let critical = model.spec.is_critical(critical);
                    prop_assert_eq!(outcome, model.acquire(now, id, cost, critical, true));
                }
                Act::Estimate { id, cost, critical } => {
                    let cost = within_reason(&model.spec, cost, critical);
                    let before = subject.state.clone();
                    let outcome = subject.apply(Op::Estimate, now, id, cost, critical);
                    let critical = model.spec.is_critical(critical);
                    prop_assert_eq!(outcome, model.acquire(now, id, cost, critical, false));
                    prop_assert_eq!(&subject.state, &before);
                }
                Act::Renew { id } => {
                    let outcome = subject.apply(Op::Renew, now, id, 1, false);
                    let held = model.extend(now, id);
                    prop_assert_eq!(outcome, model.outcome(now, held, Some(0)));
                }
                Act::Release { id, op } => {
                    let outcome = subject.apply(op, now, id, 1, false);
                    let held = model.release(now, id);
                    prop_assert_eq!(outcome, model.outcome(now, held, Some(0)));
                }
                // Holders stay, even if there are now too many of them.
                Act::Resize { spec } => {
                    let limit = spec.limit();
                    let at = Timestamp::from_nanos(now);
                    subject = Subject { state: limit.convert(&subject.limit, &subject.state, at), limit };
                    model.spec = spec;
                }
            }
            let at = Timestamp::from_nanos(now);
            let used = model.in_progress(now);
            let total = used.critical + used.other;
            prop_assert_eq!(subject.limit.in_progress(&subject.state, at), used);
            prop_assert_eq!(subject.limit.is_idle(&subject.state, at), total == 0);
            prop_assert_eq!(subject.limit.is_pinned(&subject.state, at), total > 0);
            let capacity = model.spec.capacity;
            prop_assert_eq!(subject.limit.level(&subject.state, at), (total.min(capacity) << 32) / capacity);
        }
    }

    /// Whatever happens, no newcomer gets in above the capacity, and holders that die are gone after the ttl.
    #[test]
    fn leases_never_hold_more_than_their_capacity(capacity in 1..=8_u64, ttl in 1..=30_u64, acts in acts()) {
        let spec = Spec { capacity, ttl, fleet: None };
        let mut subject = Subject { limit: spec.limit(), state: spec.limit().fresh() };
        let mut now = 0;
        for (gap, act) in acts {
            now += gap;
            let _ = match act {
                Act::Acquire { id, cost, .. } => subject.apply(Op::Charge, now, id, cost, false),
                Act::Renew { id } => subject.apply(Op::Renew, now, id, 1, false),
                Act::Release { id, op } => subject.apply(op, now, id, 1, false),
                _ => continue,
            };
            let at = Timestamp::from_nanos(now);
            let used = subject.limit.in_progress(&subject.state, at);
            prop_assert!(used.critical + used.other <= capacity);
            prop_assert!(subject.limit.is_idle(&subject.state, at + Nanos::new(ttl)));
        }
    }

    #[test]
    fn a_fleet_keeps_its_reserve_for_critical_requests(
        capacity in 1..=20_u64,
        (kept, of) in (0..=5_u64, 5..=5_u64),
        acts in acts(),
    ) {
        let spec = Spec { capacity, ttl: 10, fleet: Some((kept, of, FleetMode::Allocation)) };
        let allocation = capacity * (of - kept) / of;
        let mut subject = Subject { limit: spec.limit(), state: spec.limit().fresh() };
        let mut now = 0;
        for (gap, act) in acts {
            now += gap;
            if let Act::Acquire { id, cost, critical } = act {
                let cost = within_reason(&spec, cost, critical);
                let outcome = subject.apply(Op::Charge, now, id, cost, critical);
                prop_assert!(!critical || outcome.allowed, "a critical request was shed");
            }
            let used = subject.limit.in_progress(&subject.state, Timestamp::from_nanos(now));
            prop_assert!(used.other <= allocation);
        }
    }

    /// Permits in one process: a counter that nobody takes below zero or above the capacity.
    #[test]
    fn concurrency_is_what_was_taken_less_what_came_back(
        capacity in 1..=8_u64,
        acts in prop::collection::vec((any::<bool>(), 0..=10_u64), 1..80),
    ) {
        let limit = Limit::concurrency(capacity).unwrap();
        let mut subject = Subject { limit, state: limit.fresh() };
        let mut used = 0_u64;
        for (take, cost) in acts {
            let op = if take { Op::Charge } else { Op::Refund };
            let fits = cost == 0 || used + cost <= capacity;
            let outcome = subject.apply(op, 0, 0, cost, false);
            match take {
                true if fits => used += cost,
                true => {
                    // Nobody can tell when a holder will end.
                    prop_assert_eq!(outcome.retry_after, (cost <= capacity).then_some(Nanos::ZERO));
                }
                false => used = used.saturating_sub(cost),
            }
            prop_assert_eq!((outcome.allowed, outcome.remaining), (!take || fits, capacity - used));
            prop_assert_eq!(limit.in_progress(&subject.state, Timestamp::ZERO).other, used);
            prop_assert_eq!(limit.is_idle(&subject.state, Timestamp::ZERO), used == 0);
            prop_assert_eq!(limit.level(&subject.state, Timestamp::ZERO), (used << 32) / capacity);
        }
    }

    /// Where places are counted, as many are had as where they are leased and no lease ever expires.
    #[test]
    fn a_counted_fleet_is_a_leased_one_whose_leases_do_not_end(
        capacity in 1..=12_u64,
        (kept, of) in (0..=3_u64, 3..=5_u64),
        is_total in any::<bool>(),
        acts in prop::collection::vec((any::<bool>(), 0..=10_u64, any::<bool>()), 1..80),
    ) {
        let mode = if is_total { FleetMode::Total } else { FleetMode::Allocation };
        let leased = Spec { capacity, ttl: 1 << 50, fleet: Some((kept, of, mode)) }.limit();
        let Limit::Fleet(fleet) = leased else { panic!("{leased:?}") };
        let counted = Limit::Fleet(fleet.counted());
        let mut subject = Subject { limit: counted, state: counted.fresh() };
        let mut twin = Subject { limit: leased, state: leased.fresh() };
        let mut held: Vec<(u128, u64, bool)> = Vec::new();
        for (number, (take, cost, critical)) in acts.into_iter().enumerate() {
            let id = number as u128;
            let (outcome, told) = match (take, held.pop()) {
                (false, Some((id, cost, critical))) => (
                    subject.apply(Op::Refund, 0, id, cost, critical),
                    twin.apply(Op::Refund, 0, id, cost, critical),
                ),
                (_, last) => {
                    held.extend(last);
                    let ask = Ask { cost, lease: LeaseId(id), critical, taken: None };
                    let estimate = subject.limit.estimate(&subject.state, Timestamp::ZERO, ask);
                    let outcome = subject.apply(Op::Charge, 0, id, cost, critical);
                    prop_assert_eq!(estimate.map(|it| it.allowed), Some(outcome.allowed));
                    if outcome.allowed && cost > 0 {
                        held.push((id, cost, critical));
                    }
                    (outcome, twin.apply(Op::Charge, 0, id, cost, critical))
                }
            };
            prop_assert_eq!((outcome.allowed, outcome.remaining), (told.allowed, told.remaining));
            prop_assert_eq!(outcome.retry_after.is_none(), told.retry_after.is_none());
            let now = Timestamp::ZERO;
            let used = subject.limit.in_progress(&subject.state, now);
            prop_assert_eq!(used, twin.limit.in_progress(&twin.state, now));
            prop_assert_eq!(subject.limit.is_idle(&subject.state, now), used.total() == 0);
            prop_assert_eq!(subject.limit.level(&subject.state, now), twin.limit.level(&twin.state, now));
        }
    }

    /// Whether or not somebody asks how it stands then, the same is given back.
    #[test]
    fn what_is_uncounted_is_what_a_refund_gives_back(
        critical in 0..5_u64,
        other in 0..5_u64,
        cost in prop_oneof![0..7_u64, Just(u64::MAX)],
        is_critical in any::<bool>(),
        is_fleet in any::<bool>(),
    ) {
        let spec = Spec { capacity: 9, ttl: 10, fleet: Some((1, 5, FleetMode::Total)) };
        let limit = match spec.limit() {
            Limit::Fleet(fleet) if is_fleet => Limit::Fleet(fleet.counted()),
            _ => Limit::concurrency(9).unwrap(),
        };
        let ask = Ask { cost, lease: LeaseId(0), critical: is_critical, taken: None };
        let mut refunded = InProgress { critical, other };
        let mut uncounted = refunded;
        let _ = limit.count(Op::Refund, &mut refunded, &ask).unwrap();
        limit.uncount(&mut uncounted, &ask);
        prop_assert_eq!(uncounted, refunded);
    }
}

/// Its own class has room; only the whole fleet is full, until the critical request ends.
#[test]
fn a_fleet_that_is_full_in_total_tells_the_first_instant_with_room() {
    let spec = Spec { capacity: 4, ttl: 50, fleet: Some((1, 2, FleetMode::Total)) };
    let mut subject = Subject { limit: spec.limit(), state: spec.limit().fresh() };
    assert!(subject.apply(Op::Charge, 0, 1, 3, true).allowed);
    assert!(subject.apply(Op::Charge, 20, 2, 1, false).allowed);
    let refusal = subject.apply(Op::Charge, 20, 3, 1, false);
    assert!(!refusal.allowed);
    assert_eq!(refusal.retry_after, Some(Nanos::new(30)));
    assert!(subject.apply(Op::Charge, 50, 3, 1, false).allowed);
}

/// Four are held and two are allowed: one more fits only when all four are gone.
#[test]
fn a_lowered_capacity_waits_for_all_who_are_too_many() {
    let spec = Spec { capacity: 4, ttl: 5, fleet: None };
    let mut subject = Subject { limit: spec.limit(), state: spec.limit().fresh() };
    assert!(subject.apply(Op::Charge, 0, 1, 2, false).allowed);
    assert!(subject.apply(Op::Charge, 1, 2, 2, false).allowed);
    subject.limit = Spec { capacity: 2, ..spec }.limit();
    assert_eq!(subject.apply(Op::Charge, 1, 3, 1, false).retry_after, Some(Nanos::new(5)));
}

#[test]
fn critical_requests_of_absurd_weight_do_no_harm() {
    for mode in [FleetMode::Allocation, FleetMode::Total] {
        let spec = Spec { capacity: 10, ttl: 10, fleet: Some((1, 5, mode)) };
        let mut subject = Subject { limit: spec.limit(), state: spec.limit().fresh() };
        for id in 0..3 {
            let _ = subject.apply(Op::Charge, 0, id, u64::MAX, true);
            let _ = subject.apply(Op::Charge, 0, 100 + id, 1, false);
            let _ = subject.limit.level(&subject.state, Timestamp::ZERO);
        }
        assert!(subject.limit.is_idle(&subject.state, Timestamp::from_nanos(10)));
    }
}

/// Of each kind there are no more than a fleet can have, so that what comes back is what was taken.
#[test]
fn places_that_are_counted_are_as_many_as_can_be() {
    let spec = Spec { capacity: 10, ttl: 10, fleet: Some((1, 5, FleetMode::Allocation)) };
    let Limit::Fleet(fleet) = spec.limit() else { panic!("{:?}", spec.limit()) };
    let limit = Limit::Fleet(fleet.counted());
    let mut subject = Subject { limit, state: limit.fresh() };
    assert!(subject.apply(Op::Charge, 0, 1, u32::MAX.into(), true).allowed);
    assert!(!subject.apply(Op::Charge, 0, 2, 1, true).allowed, "one more would not be told from none");
    let never = subject.apply(Op::Charge, 0, 2, u64::MAX, true);
    assert_eq!((never.allowed, never.retry_after), (false, None));
    assert!(subject.apply(Op::Charge, 0, 3, 8, false).allowed, "the others have their share");
    assert!(!subject.apply(Op::Renew, 0, 3, 8, false).allowed, "there are no leases");
    assert!(subject.apply(Op::Refund, 0, 1, u32::MAX.into(), true).allowed);
    assert_eq!(limit.in_progress(&subject.state, Timestamp::ZERO), InProgress { critical: 0, other: 8 });
}

/// A change of its size changes nothing for those who have a place; leases and counts do not become each other.
#[test]
fn a_counted_fleet_keeps_its_count_when_it_is_changed() {
    let fleet = |capacity| match (Spec { capacity, ttl: 10, fleet: Some((0, 1, FleetMode::Total)) }).limit() {
        Limit::Fleet(fleet) => fleet,
        other => panic!("{other:?}"),
    };
    let (old, new) = (Limit::Fleet(fleet(4).counted()), Limit::Fleet(fleet(2).counted()));
    let mut subject = Subject { limit: old, state: old.fresh() };
    assert!(subject.apply(Op::Charge, 0, 1, 3, false).allowed);
    subject.state = new.convert(&old, &subject.state, Timestamp::ZERO);
    subject.limit = new;
    assert!(!subject.apply(Op::Charge, 0, 2, 1, false).allowed);
    assert!(subject.apply(Op::Refund, 0, 1, 3, false).allowed);
    assert!(subject.apply(Op::Charge, 0, 2, 2, false).allowed);
    let leased = Limit::Fleet(fleet(2));
    assert_eq!(leased.convert(&new, &subject.state, Timestamp::ZERO), leased.fresh());
    assert_eq!(new.convert(&leased, &leased.fresh(), Timestamp::ZERO), new.fresh());
}
