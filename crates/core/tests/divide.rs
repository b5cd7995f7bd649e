//! A limit divided among nodes that cannot reach each other: all together admit no more than it, but for one call each.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use proptest::prelude::*;
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::limit::{Ask, Op};
use tollgate_core::log::SubWindows;
use tollgate_core::{Limit, Nanos, Timestamp};

fn rates() -> impl Strategy<Value = (Limit, u64, u64)> {
    let numbers = (1..40_u64, 1..20_u64, 1..1000_u64, 0..7_usize);
    numbers.prop_map(|(capacity, count, period, kind)| {
        let time = Nanos::new(period * 12);
        let limit = match kind {
            0 => Limit::token_bucket(capacity, count, time),
            1 => Limit::leaky_queue(capacity, count, time, 0),
            2 => Limit::fixed_window(count, time, WindowStart::FirstCall),
            3 => Limit::sliding_window(count, time),
            4 => Limit::interval_bucket(capacity, count, time),
            5 => Limit::sliding_log(count, time),
            _ => Limit::sub_windows(count, time, 12, SubWindows::NPlusOne),
        };
        (limit.unwrap(), count, time.as_u64())
    })
}

/// What one node lets through that is asked all the time.
fn admitted(limit: &Limit, until: u64, step: u64) -> u64 {
    let mut state = limit.fresh();
    let asked = (0..=until).step_by(usize::try_from(step).unwrap());
    let allowed = |now: u64| {
        let now = Timestamp::from_nanos(1_000_000 + now);
        limit.apply(Op::Charge, &mut state, now, Ask::from(1), now).allowed
    };
    asked.map(allowed).filter(|allowed| *allowed).count() as u64
}

proptest! {
    #[test]
    fn shares_never_add_up_to_more_than_the_limit((limit, count, period) in rates(), nodes in 1..60_u64) {
        let share = limit.divided_among(nodes);
        let periods = 40;
        let until = period * periods;
        let all = nodes * admitted(&share, until, 1.max(period / 200));
        // The burst at the start, a window that had begun before, one call that every node may always admit.
        let bursts = 2 * limit.capacity().max(nodes);
        prop_assert!(
            all <= bursts + count * periods,
            "{all} through {nodes} shares {share:?} of {limit:?}, at most {bursts} + {count} x {periods}"
        );
        prop_assert_eq!(share.capacity(), (limit.capacity() / nodes).max(1));
        prop_assert_eq!(limit.divided_among(1), limit);
    }

    #[test]
    fn shares_are_limits_that_could_have_been_built(capacity in 1..u64::MAX, count in 1..u64::MAX, period in 1..u64::MAX, nodes in any::<u64>()) {
        let time = Nanos::new(period);
        let limits = [
            Limit::token_bucket(capacity, count, time),
            Limit::leaky_queue(capacity, count, time, capacity / 2),
            Limit::fixed_window(count, time, WindowStart::Aligned { offset: Nanos::new(period / 2) }),
            Limit::sliding_window(count, time),
            Limit::interval_bucket(capacity, count, time),
            Limit::sliding_log(count, time),
            Limit::concurrency(capacity),
            Limit::leases(capacity, time),
            Limit::fleet(capacity, (1, 5), FleetMode::Total, time),
        ];
        for limit in limits.into_iter().flatten() {
            let share = limit.divided_among(nodes);
            let mut state = share.fresh();
            for now in [0, 1, 1 << 40, 1 << 62] {
                let now = Timestamp::from_nanos(now);
                let _ = share.apply(Op::Charge, &mut state, now, Ask::from(1), now);
                let _ = share.apply(Op::Charge, &mut state, now, Ask::from(share.capacity()), now);
            }
        }
    }
}

#[test]
fn whoever_is_not_critical_keeps_a_place_on_every_node_unless_all_are_reserved() {
    let fleet =
        |reserve| Limit::fleet(10, (reserve, 10), FleetMode::Allocation, Nanos::from_secs(1)).unwrap();
    let places = |limit: Limit| match limit.divided_among(20) {
        Limit::Fleet(fleet) => (fleet.capacity(), fleet.allocation()),
        other => panic!("{other:?}"),
    };
    assert_eq!(places(fleet(2)), (1, 1));
    assert_eq!(places(fleet(10)), (1, 0));
}
