//! What is legal and probably not meant.

use super::super::identify::{Identify, Source};
use super::super::mistakes::Place;
use super::super::quantity::spelled;
use super::super::{Kind, Mode, Part};
use super::ReadClass;
use super::limiters::Drafted;
use super::reader::{Fields, Reader};
use crate::time::Nanos;

impl Reader {
    pub(super) fn unwise(
        &mut self,
        top: &Fields<'_>,
        identify: &Identify,
        classes: &[ReadClass],
        drafts: &[Drafted],
        timeout: Nanos,
    ) {
        self.unproxied(top, identify, drafts);
        let unreachable = self.unreachable(classes);
        for draft in drafts {
            self.unmatched(draft, classes, &unreachable);
            let shared = top.get("store").is_some();
            let has_leases = matches!(draft.limiter.kind, Kind::Concurrency | Kind::Fleet { .. });
            if has_leases
                && shared
                && draft.lease < timeout
                && let Some(place) = draft.lease_place
            {
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
    fn unproxied(&mut self, top: &Fields<'_>, identify: &Identify, drafts: &[Drafted]) {
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
        if !is_told
            && identify.plan.iter().any(chosen)
            && let Some(place) = top.place_of("identify")
        {
            self.warn(
                place,
                "anybody who can write this header can choose a plan",
                "add `trusted_proxies`: then only what comes through them is believed",
            );
        }
    }

    /// Classes that no request can be of, because others come first.
    fn unreachable(&mut self, classes: &[ReadClass]) -> Vec<usize> {
        let mut unreachable = Vec::new();
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

    fn dead(&mut self, place: Place, name: &str) {
        self.warn(place, format!("no request can match {name:?}"), "it limits nothing");
    }
}
