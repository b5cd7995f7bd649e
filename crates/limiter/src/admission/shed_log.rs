//! Logs what load shedders do: when one starts to shed, when it has shed a whole class, and when it has stopped.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::decision::Reason;
use tollgate_core::policy::Mode;
use tollgate_core::worker::PPM;
use tollgate_core::{Nanos, Timestamp};

use super::counts::LimiterStats;
use super::running::Running;

/// A shedder that sheds nothing for this long has stopped. Shorter pauses belong to the same episode, so that load
/// around a threshold does not fill the log.
const QUIET: Nanos = Nanos::from_secs(10);
/// Of fewer requests in one interval nobody can say that a whole class was shed.
const LEAST_REQUESTS: u64 = 5;

/// What has been logged of each shedder, by its name.
#[derive(Debug, Default)]
pub(super) struct ShedLog(Mutex<HashMap<Arc<str>, Shedder>>);

#[derive(Debug, Default)]
struct Shedder {
    episode: Option<Episode>,
    /// Of a fleet: what was counted by class when it was last looked at.
    counted: HashMap<Arc<str>, LimiterStats>,
}

/// The time from the first request that is shed to the last.
#[derive(Debug)]
struct Episode {
    since: Timestamp,
    last_shed: Timestamp,
    /// Classes that were logged as shed completely.
    whole: Vec<Arc<str>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Event {
    Starts,
    ShedsAllOf(Arc<str>),
    Stopped { after: Nanos },
}

impl Shedder {
    /// Takes the share of each class that is shed at `now`, in millionths.
    fn update(&mut self, shares: &[(Arc<str>, u64)], now: Timestamp) -> Vec<Event> {
        let mut events = Vec::new();
        if shares.iter().any(|(_, share)| *share > 0) {
            let episode = self.episode.get_or_insert_with(|| {
                events.push(Event::Starts);
                Episode { since: now, last_shed: now, whole: Vec::new() }
            });
            episode.last_shed = now;
            for (class, _) in shares.iter().filter(|(_, share)| *share >= PPM) {
                if !episode.whole.contains(class) {
                    episode.whole.push(Arc::clone(class));
                    events.push(Event::ShedsAllOf(Arc::clone(class)));
                }
            }
        } else if let Some(episode) = self.episode.take_if(|episode| now.since(episode.last_shed) >= QUIET) {
            events.push(Event::Stopped { after: episode.last_shed.since(episode.since) });
        }
        events
    }

    /// The share of each class that a fleet has rejected since it was last looked at.
    fn rejected(&mut self, by_class: &[(Arc<str>, LimiterStats)]) -> Vec<(Arc<str>, u64)> {
        let share = |(class, now): &(Arc<str>, LimiterStats)| {
            let before = self.counted.insert(Arc::clone(class), now.clone()).unwrap_or_default();
            let count = |stats: &LimiterStats| stats.refused + stats.would_refuse;
            let asked = now.asked.saturating_sub(before.asked);
            let rejected = count(now).saturating_sub(count(&before));
            let share = rejected.saturating_mul(PPM) / asked.max(1);
            let is_certain = asked >= LEAST_REQUESTS;
            (Arc::clone(class), if is_certain { share } else { share.min(PPM - 1) })
        };
        by_class.iter().map(share).collect()
    }
}

impl ShedLog {
    /// Looks at all shedders of a policy, and logs what has changed.
    pub(super) fn look(&self, running: &Running, now: Timestamp) {
        let mut shedders = self.0.lock();
        for limiter in running.limiters.iter().filter(|limiter| limiter.reason.status() == 503) {
            let mode = running.mode(limiter);
            let shedder = shedders.entry(Arc::clone(&limiter.name)).or_default();
            let mut utilization = None;
            let shares = match limiter.reason {
                _ if mode == Mode::Off => Vec::new(),
                Reason::Worker => running.worker_standing().map_or_else(Vec::new, |standing| {
                    utilization = standing.utilization_ppm;
                    standing.shed_ppm
                }),
                _ => shedder.rejected(&running.by_class(limiter)),
            };
            let shares_now = || shown(&shares);
            let is_dark = mode == Mode::Dark;
            let utilization = utilization.map(|ppm| format!("{} %", ppm / 10_000));
            let utilization = utilization.as_deref();
            for event in shedder.update(&shares, now) {
                let limiter = &*limiter.name;
                match event {
                    Event::Starts => {
                        tracing::warn!(
                            limiter,
                            is_dark,
                            utilization,
                            "starts to shed load: {}",
                            shares_now()
                        );
                    }
                    Event::ShedsAllOf(class) => {
                        tracing::warn!(limiter, is_dark, utilization, "sheds all requests of class {class}");
                    }
                    Event::Stopped { after } => {
                        let after = format!("{} s", after.as_secs_ceil());
                        tracing::info!(limiter, is_dark, utilization, after, "has stopped shedding load");
                    }
                }
            }
        }
    }
}

/// `test 40 %, get 1 %`.
fn shown(shares: &[(Arc<str>, u64)]) -> String {
    let shed = shares.iter().filter(|(_, share)| *share > 0);
    let shed: Vec<String> =
        shed.map(|(class, share)| format!("{class} {} %", share.div_ceil(10_000))).collect();
    shed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(list: &[(&str, u64)]) -> Vec<(Arc<str>, u64)> {
        list.iter().map(|(class, share)| (Arc::from(*class), *share)).collect()
    }

    #[test]
    fn a_shedder_is_logged_when_it_starts_has_shed_a_class_and_stops() {
        let mut shedder = Shedder::default();
        let mut at =
            |secs: u64, list: &[(&str, u64)]| shedder.update(&shares(list), Timestamp::from_secs(100 + secs));
        assert_eq!(at(0, &[("test", 0), ("get", 0)]), []);
        assert_eq!(at(1, &[("test", 10_000), ("get", 0)]), [Event::Starts]);
        assert_eq!(at(2, &[("test", 500_000), ("get", 0)]), []);
        assert_eq!(at(3, &[("test", PPM), ("get", 10_000)]), [Event::ShedsAllOf("test".into())]);
        assert_eq!(at(4, &[("test", PPM), ("get", PPM)]), [Event::ShedsAllOf("get".into())]);
        assert_eq!(at(5, &[("test", 0), ("get", 0)]), [], "a pause is no end");
        assert_eq!(at(6, &[("test", PPM), ("get", 0)]), [], "the same episode");
        assert_eq!(at(15, &[("test", 0), ("get", 0)]), []);
        assert_eq!(at(16, &[("test", 0), ("get", 0)]), [Event::Stopped { after: Nanos::from_secs(5) }]);
        assert_eq!(at(17, &[("test", 1), ("get", 0)]), [Event::Starts]);
    }

    #[test]
    fn a_fleet_sheds_a_class_when_it_rejects_all_of_it() {
        let mut shedder = Shedder::default();
        let mut after = |asked: u64, refused: u64| {
            let stats = LimiterStats { asked, refused, ..LimiterStats::default() };
            shedder.rejected(&[(Arc::from("get"), stats)]).pop().map(|(_, share)| share)
        };
        assert_eq!(after(100, 0), Some(0));
        assert_eq!(after(200, 25), Some(250_000));
        assert_eq!(after(300, 125), Some(PPM));
        assert_eq!(after(301, 126), Some(PPM - 1), "one request is no whole class");
        assert_eq!(after(301, 126), Some(0));
    }
}
