//! Which scenarios are run, in what order, and what came out.

use std::time::Duration;

use crate::contenders::{self, Entry, Form, Limit, Role};
use crate::measure::Job;
use crate::worker::Worker;

pub const THREADS: [usize; 2] = [1, 2];

/// How thorough the run is.
pub struct Settings {
    pub quick: bool,
    pub only: Option<String>,
}

impl Settings {
    pub fn repetitions(&self) -> usize {
        if self.quick { 3 } else { 5 }
    }

    pub fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 30 } else { 300 })
    }

    /// The largest number of keys.
    pub fn many(&self) -> usize {
        if self.quick { 1_000_000 } else { 10_000_000 }
    }

    /// How many of the scenario's keys the contender gets.
    pub fn keys(&self, entry: &Entry, scenario: Scenario) -> usize {
        let most = if entry.slow { self.many() / 10 } else { self.many() };
        scenario.keys.min(most)
    }

    /// Scenarios in groups: those of a group are measured in turn, so that they can be compared.
    fn groups(&self) -> Vec<Vec<Scenario>> {
        let mut groups = Vec::new();
        for form in [Form::Text, Form::Number] {
            for keys in [1, 100_000, self.many()] {
                let scenario = |limit| Scenario { form, keys, limit };
                groups.push(vec![scenario(Limit::Admit), scenario(Limit::Refuse)]);
            }
        }
        groups
    }

    fn wants(&self, entry: &Entry, scenario: Scenario) -> bool {
        let Some(only) = &self.only else { return true };
        let label = format!("{} / {}", entry.name, scenario.label());
        label.contains(only)
    }

    /// Whether anyone is measured in the scenario; the generator and the floor then are too.
    fn wants_any(&self, entries: &[Entry], scenario: Scenario) -> bool {
        entries.iter().any(|entry| self.wants(entry, scenario))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    pub form: Form,
    pub keys: usize,
    pub limit: Limit,
}

impl Scenario {
    pub fn label(self) -> String {
        let form = match self.form {
            Form::Text => "text keys",
            Form::Number => "u64 keys",
        };
        let limit = match self.limit {
            Limit::Admit => "admitted",
            Limit::Refuse => "refused",
        };
        format!("{form}, {}, {limit}", size(self.keys))
    }
}

/// "hot key", "100k keys", "10M keys".
pub fn size(keys: usize) -> String {
    match keys {
        1 => "hot key".to_owned(),
        _ if keys < 1_000_000 => format!("{}k keys", keys / 1_000),
        _ => format!("{}M keys", keys / 1_000_000),
    }
}

/// All repetitions of one contender in one scenario on so many threads, in ns per decision.
struct Sample {
    name: &'static str,
    scenario: Scenario,
    threads: usize,
    nanos: Vec<f64>,
}

/// Median and best of the repetitions, in ns per decision.
#[derive(Clone, Copy)]
pub struct Summary {
    pub median: f64,
    pub best: f64,
}

#[derive(Default)]
pub struct Results {
    samples: Vec<Sample>,
    bytes: Vec<(&'static str, Scenario, f64)>,
}

impl Results {
    /// The contender's time with the generator's in it.
    pub fn gross(&self, entry: &Entry, scenario: Scenario, threads: usize) -> Option<Summary> {
        self.raw(entry.name, scenario, threads)
    }

    fn raw(&self, name: &str, scenario: Scenario, threads: usize) -> Option<Summary> {
        let sample =
            self.samples.iter().find(|s| s.name == name && s.scenario == scenario && s.threads == threads)?;
        let mut nanos = sample.nanos.clone();
        nanos.sort_by(f64::total_cmp);
        Some(Summary { median: nanos[nanos.len() / 2], best: nanos[0] })
    }

    /// The contender's time, less the generator's (whose own is as it is).
    pub fn time(&self, entry: &Entry, scenario: Scenario, threads: usize) -> Option<Summary> {
        let raw = self.gross(entry, scenario, threads)?;
        if entry.role == Role::Generator {
            return Some(raw);
        }
        let generator = self.raw(contenders::GENERATOR, scenario, threads)?;
        Some(Summary {
            median: (raw.median - generator.median).max(0.1),
            best: (raw.best - generator.best).max(0.1),
        })
    }

    pub fn bytes_per_key(&self, entry: &Entry, scenario: Scenario) -> Option<f64> {
        let mut found = self.bytes.iter();
        let found = found.find(|(name, s, _)| *name == entry.name && *s == scenario)?;
        Some(found.2)
    }
}

/// Runs everything: within a group all contenders are filled first, then measured in turn, again and again.
pub fn run(settings: &Settings, entries: &[Entry]) -> Results {
    let mut results = Results::default();
    for group in settings.groups() {
        let labels: Vec<String> = group.iter().map(|scenario| scenario.label()).collect();
        eprintln!("{}", labels.join("; "));
        run_group(settings, entries, &group, &mut results);
    }
    results
}

fn run_group(settings: &Settings, entries: &[Entry], group: &[Scenario], results: &mut Results) {
    let mut workers = Vec::new();
    for entry in entries {
        for &scenario in group {
            let baseline = matches!(entry.role, Role::Generator | Role::Floor);
            let wanted = settings.wants(entry, scenario) || baseline && settings.wants_any(entries, scenario);
            if wanted && entry.serve(scenario.form).is_some() {
                let keys = settings.keys(entry, scenario);
                let limit = scenario.limit;
                let worker = Worker::start(entry.name, scenario.form, Job { keys, limit });
                workers.push((entry.name, scenario, keys, worker));
            }
        }
    }
    for (name, scenario, keys, worker) in &mut workers {
        let per_key = worker.bytes() as f64 / *keys as f64;
        results.bytes.push((name, *scenario, per_key));
    }
    for threads in THREADS {
        let empty =
            |&(name, scenario, ..): &(_, _, _, Worker)| Sample { name, scenario, threads, nanos: Vec::new() };
        let mut samples: Vec<Sample> = workers.iter().map(empty).collect();
        for _ in 0..settings.repetitions() {
            for (sample, (.., worker)) in samples.iter_mut().zip(&mut workers) {
                sample.nanos.push(worker.measure(threads, settings.time()));
            }
        }
        results.samples.append(&mut samples);
    }
}
