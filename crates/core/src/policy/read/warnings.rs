//! What is legal and probably not meant.

use super::super::address::ClientAddress;
use super::super::identify::{Identify, Source};
use super::super::mistakes::Place;
use super::super::quantity::spelled;
use super::super::{Cost, Kind, Mode, Part, StoreChoice};
use super::ReadClass;
use super::limiters::Drafted;
use super::reader::{Fields, Reader};
use crate::limit::Limit;
use crate::time::Nanos;

/// What is already known when a policy is looked over.
pub(super) struct Known<'k> {
    pub(super) store: &'k StoreChoice,
    pub(super) identify: &'k Identify,
    pub(super) address: &'k ClientAddress,
    pub(super) timeout: Nanos,
}

impl Reader<'_> {
    pub(super) fn unwise(
        &mut self,
        top: &Fields<'_>,
        known: &Known<'_>,
        classes: &[ReadClass],
        drafts: &[Drafted],
    ) {
        let timeout = known.timeout;
        self.unproxied(top, known, drafts);
        let unreachable = self.unreachable(classes);
        for draft in drafts {
            self.unmatched(draft, classes, &unreachable);
            self.never_passing(draft);
            // In memory places are held without a lease.
            let shared = known.store.url.is_some();
            let has_leases = matches!(draft.limiter.kind, Kind::Concurrency | Kind::Fleet { .. });
            if has_leases && shared && draft.lease < timeout {
                let place = draft.lease_place.unwrap_or(draft.place);
                let message = format!(
                    "a lease of {} is shorter than what the gateway waits for an answer ({})",
                    spelled(draft.lease),
                    spelled(timeout)
                );
                self.warn(place, message, "a request whose lease cannot be renewed in time is not counted any more while it goes on");
            }
            if draft.limiter.mode == Mode::Off && draft.limiter.candidate.is_some() {
                self.warn(
                    draft.place,
                    "a limiter that is off counts no candidate either",
                    "did you mean `mode: dark`?",
                );
            }
        }
    }

    /// Everybody in one bucket, or plans that callers choose for themselves.
    fn unproxied(&mut self, top: &Fields<'_>, known: &Known<'_>, drafts: &[Drafted]) {
        let identify = known.identify;
        let is_told = top.get("trusted_proxies").is_some() || top.get("trusted_hops").is_some();
        let by_caller = identify.caller.iter().any(|(source, _)| *source == Source::Ip);
        let asks = |draft: &&Drafted| {
            let per = &draft.limiter.per;
            per.contains(&Part::Ip) || by_caller && per.contains(&Part::Caller)
        };
        if !is_told && let Some(draft) = drafts.iter().find(asks) {
            self.warn(
                draft.place,
                "callers are told apart by their addresses, and behind a proxy all have that of the proxy: one bucket for everybody",
                "add `trusted_proxies: [10.0.0.0/8]`, or `trusted_proxies: []` if there is none",
            );
        }
        let chosen =
            |source: &Source| matches!(source, Source::Header(_) | Source::Cookie(_) | Source::Query(_));
        if known.address.trusted.is_empty()
            && identify.plan.iter().any(chosen)
            && let Some(place) = top.place_of("identify")
        {
            self.warn(
                place,
                "callers choose their plans themselves: whatever they write is believed",
                "add `trusted_proxies: [10.0.0.0/8]`: then only what comes through these is",
            );
        }
    }

    /// Classes that no request can be of, because others come first.
    fn unreachable(&mut self, classes: &[ReadClass]) -> Vec<usize> {
        let mut unreachable = Vec::new();
        // Each is held against all that come before: with very many of them nobody waits for that.
        let many: usize = classes.iter().map(|read| read.class.conditions.len()).sum();
        let classes = if many > 2000 { &[] } else { classes };
        for (at, read) in classes.iter().enumerate() {
            let before = || classes.iter().take(at).flat_map(|read| &read.class.conditions);
            let conditions = &read.class.conditions;
            let is_covered = !conditions.is_empty()
                && conditions.iter().all(|condition| before().any(|wide| wide.covers(condition)));
            if is_covered || conditions.is_empty() {
                unreachable.push(at);
            }
            if let (true, Some(place)) = (is_covered, read.place) {
                let message = format!("no request is ever of class {:?}", read.class.name);
                self.warn(place, message, "classes before it take all of it: the first that matches wins");
            }
        }
        unreachable
    }

    fn unmatched(&mut self, draft: &Drafted, classes: &[ReadClass], unreachable: &[usize]) {
        let conditions = &draft.limiter.matches;
        let is_dead = |class: &usize| unreachable.contains(class) && *class < classes.len();
        let impossible = |condition: &super::Condition| {
            condition.is_impossible()
                || !condition.classes.is_empty() && condition.classes.iter().all(is_dead)
        };
        if !conditions.is_empty() && conditions.iter().all(impossible) {
            self.dead(draft.place, &draft.limiter.name);
        }
    }

    /// A request that costs more than there can ever be.
    fn never_passing(&mut self, draft: &Drafted) {
        let dearest = match &draft.limiter.cost {
            Cost::Fixed(cost) | Cost::Settled { estimate: cost, .. } => *cost,
            Cost::ByClass { classes, otherwise } => {
                classes.iter().map(|(_, cost)| *cost).max().unwrap_or(0).max(*otherwise)
            }
            Cost::Header { otherwise, .. } => *otherwise,
        };
        let least = draft.limiter.choices.iter().flatten().map(Limit::capacity).min();
        if let Some(least) = least.filter(|least| dearest > *least) {
            let message =
                format!("a request that costs {dearest} never passes where there are {least} at once");
            self.warn(draft.place, message, "add `burst`, or let it cost less");
        }
    }

    fn dead(&mut self, place: Place, name: &str) {
        self.warn(place, format!("no request can match {name:?}"), "it limits nothing");
    }
}
