//! Workers that shed when they are in trouble.

use super::super::document::{Node, Value};
use super::super::{WorkerPolicy, fields, quantity};
use super::reader::{Reader, spelled_out};
use crate::time::Nanos;
use crate::worker::{PPM, Source, Worker, WorkerSettings};

/// How often utilization is looked at.
const EVERY: Nanos = Nanos::from_secs(8);

/// What follows from how often samples are taken, and from the classes that can go.
fn settings_of(every: Nanos, ranks: &[Option<u32>]) -> WorkerSettings {
    let usual = WorkerSettings::default();
    WorkerSettings {
        // Three samples may be missed before time is lost.
        max_step: usual.max_step.max(Nanos::new(every.as_u64().saturating_mul(4))),
        classes: ranks.iter().flatten().max().map_or(1, |rank| rank + 1),
        ..usual
    }
}

/// Workers of which only the source of utilization is said.
pub(super) fn usual_workers(source: Source, ranks: Vec<Option<u32>>) -> WorkerPolicy {
    let settings = settings_of(EVERY, &ranks);
    WorkerPolicy { settings, source, reported_in: None, watches_upstreams: false, every: EVERY, ranks }
}

impl Reader<'_> {
    pub(super) fn workers(&mut self, node: &Node, classes: &[&str]) -> Option<WorkerPolicy> {
        let fields = self.fields(node, "`workers`", fields::WORKERS)?;
        let usual = WorkerSettings::default();
        let share = |reader: &mut Self, name: &str, usual: u64| {
            fields.get(name).and_then(|node| reader.parsed(node, name, quantity::percent)).unwrap_or(usual)
        };
        let time = |reader: &mut Self, name: &str, usual: Nanos| {
            fields.get(name).and_then(|node| reader.parsed(node, name, quantity::duration)).unwrap_or(usual)
        };
        let every = time(self, "every", EVERY);
        let ranks = self.ranks(fields.get("shed"), classes);
        let settings = WorkerSettings {
            good_ppm: share(self, "good", usual.good_ppm),
            bad_ppm: share(self, "bad", usual.bad_ppm),
            grace: time(self, "grace", usual.grace),
            full: time(self, "full", usual.full),
            ..settings_of(every, &ranks)
        };
        if settings.good_ppm == 0 || settings.good_ppm > settings.bad_ppm || settings.bad_ppm >= PPM {
            let place = fields.get("bad").or(fields.get("good")).map_or(node.place, |node| node.place);
            self.error(place, "`good` is above 0%, `bad` below 100%, and `good` not above `bad`");
        } else if let Err(error) = Worker::new(settings) {
            let name = if error.field == "max_step" { "every" } else { error.field };
            let place = fields.get(name).map_or(node.place, |node| node.place);
            let help = "`full` is longer than no time; `grace` and `full` are up to 30d, `every` up to 7d";
            self.error_with(place, format!("`{name}` is too short or too long"), help);
        }
        if every < Nanos::new(100_000_000) {
            let place = fields.get("every").map_or(node.place, |node| node.place);
            self.error_with(place, "utilization cannot be looked at so often", "it must be 100ms or more");
        }
        let (source, reported_in) = match fields.get("source") {
            Some(node) => self.source(node)?,
            None => (Source::Cpu, None),
        };
        let is_word = |node: &Node| matches!(&node.value, Value::Text(word) if word.trim() == "upstreams");
        let watches_upstreams = fields.get("source").is_some_and(is_word);
        Some(WorkerPolicy { settings, source, reported_in, watches_upstreams, every, ranks })
    }

    /// Where utilization is read, and the header that tells it, if one does.
    fn source(&mut self, node: &Node) -> Option<(Source, Option<String>)> {
        const REPORTED: Source = Source::Reported { stale_after: Source::STALE_AFTER };
        if !matches!(node.value, Value::Map(_)) {
            if let Value::Text(text) = &node.value
                && fields::WORKER_WAYS.contains(&text.trim())
            {
                let example = match text.trim() {
                    "in_flight" => "{ in_flight: 64 }",
                    "latency" => "{ latency: 200ms }",
                    _ => "{ response_header: x-utilization }",
                };
                let message = format!("the source `{}` needs a value", text.trim());
                self.error_with(node.place, message, format!("write `source: {example}`"));
                return None;
            }
            let source = match self.word(node, "source of utilization", fields::WORKER_SOURCES)? {
                "cgroup" => Source::Cgroup,
                "pressure" => Source::Pressure,
                // Those are reported by the gateway.
                "reported" | "upstreams" => REPORTED,
                _ => Source::Cpu,
            };
            return Some((source, None));
        }
        let fields = self.fields(node, "a source of utilization", fields::WORKER_SOURCE)?;
        match fields.present(fields::WORKER_WAYS).as_slice() {
            ["in_flight"] => {
                let node = fields.get("in_flight")?;
                let workers = self.parsed(node, "`in_flight`", quantity::whole)?;
                if workers == 0 {
                    self.error_with(node.place, "no worker at all?", "it must be 1 or more");
                }
                Some((Source::InFlight { workers: workers.max(1) }, None))
            }
            ["latency"] => {
                let node = fields.get("latency")?;
                let target = self.parsed(node, "`latency`", quantity::duration)?;
                if target == Nanos::ZERO {
                    self.error(node.place, "answers cannot take no time at all");
                }
                Some((Source::Latency { target }, None))
            }
            ["response_header"] => Some((REPORTED, Some(self.header_name(fields.get("response_header")?)?))),
            _ => {
                self.error(
                    node.place,
                    format!("a source is a word, or one of {}", spelled_out(fields::WORKER_WAYS)),
                );
                None
            }
        }
    }

    /// When each class is shed: what is least important goes first.
    pub(super) fn ranks(&mut self, shed: Option<&Node>, classes: &[&str]) -> Vec<Option<u32>> {
        let rank = |at: usize| u32::try_from(at).ok();
        if let Some(node) = shed {
            let mut ranks = vec![None; classes.len()];
            for (at, node) in self.list(node, "`shed`").iter().enumerate() {
                if let Some(class) = self.named(node, "class", classes)
                    && let Some(place) = ranks.get_mut(class)
                {
                    if place.is_some() {
                        self.error(node.place, "this class is there twice");
                    }
                    *place = rank(at);
                }
            }
            return ranks;
        }
        const USUAL: [&str; 3] = ["test", "get", "post"];
        let (other, named) = match classes.split_last() {
            Some((_, named)) => (0, named),
            None => return Vec::new(),
        };
        let usual = named.iter().all(|class| *class == "critical" || USUAL.contains(class));
        let order: Vec<&str> = match usual {
            true => USUAL.into_iter().filter(|class| named.contains(class)).collect(),
            // Most important first in the file, least important first to go, and the most important never.
            false => named.iter().skip(1).rev().copied().collect(),
        };
        let of = |class: &&str| order.iter().position(|name| name == class).and_then(rank);
        // What is of no class goes with what is least important.
        named.iter().map(of).chain([Some(other)]).collect()
    }
}
