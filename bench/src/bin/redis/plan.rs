//! What is run, in what order, and what came out.

use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tollgate_bench::figures::median;
use tollgate_testkit::RedisServer;

use crate::contenders::{self, Entry, Failure, Question};
use crate::load::{Load, TASKS};
use crate::meter::Meter;

pub const WORKERS: usize = 2;

/// How thorough the run is.
pub struct Settings {
    pub quick: bool,
}

impl Settings {
    pub fn rounds(&self) -> u64 {
        if self.quick { 2 } else { 7 }
    }

    pub fn time(&self) -> Duration {
        Duration::from_millis(if self.quick { 300 } else { 1_000 })
    }
}

/// How much is asked at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Idle,
    Loaded,
}

impl Mode {
    pub const ALL: [Self; 2] = [Self::Idle, Self::Loaded];

    pub fn label(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Loaded => "loaded",
        }
    }

    fn tasks(self) -> u64 {
        match self {
            Self::Idle => 1,
            Self::Loaded => TASKS,
        }
    }
}

/// One repetition. Times are microseconds.
#[derive(Clone, Copy)]
pub struct Sample {
    pub decisions: f64,
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    /// Per decision, as are the next two.
    pub server_cpu: f64,
    pub client_cpu: f64,
    pub changes: f64,
}

/// All repetitions of one contender.
pub struct Row {
    pub name: &'static str,
    pub question: Question,
    idle: Vec<Sample>,
    loaded: Vec<Sample>,
}

impl Row {
    pub fn samples(&self, mode: Mode) -> &[Sample] {
        match mode {
            Mode::Idle => &self.idle,
            Mode::Loaded => &self.loaded,
        }
    }

    pub fn median(&self, mode: Mode, figure: fn(&Sample) -> f64) -> f64 {
        median(self.samples(mode).iter().map(figure).collect())
    }
}

pub struct Results(pub Vec<Row>);

impl Results {
    pub fn row(&self, name: &str, question: Question) -> &Row {
        let row = self.0.iter().find(|row| row.name == name && row.question == question);
        row.unwrap_or_else(|| panic!("'{name}' is a contender"))
    }
}

/// All contenders in turn, and that again and again.
pub fn run(settings: &Settings, server: &RedisServer) -> Result<Results, Failure> {
    let runtime = Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?;
    let entries = runtime.block_on(contenders::all(&server.url()))?;
    let empty = |entry: &Entry| Row {
        name: entry.name,
        question: entry.question,
        idle: Vec::new(),
        loaded: Vec::new(),
    };
    let mut rows: Vec<Row> = entries.iter().map(empty).collect();
    for round in 1..=settings.rounds() {
        eprintln!("round {round} of {}", settings.rounds());
        for (entry, row) in entries.iter().zip(&mut rows) {
            let in_context = |failure| format!("{}: {failure}", entry.name);
            server.command(&["FLUSHALL"]);
            entry.contender.fill(&runtime).map_err(in_context)?;
            let measure = |mode| measure(settings, server, &runtime, entry, mode, round).map_err(in_context);
            row.idle.push(measure(Mode::Idle)?);
            row.loaded.push(measure(Mode::Loaded)?);
        }
    }
    Ok(Results(rows))
}

fn measure(
    settings: &Settings,
    server: &RedisServer,
    runtime: &Runtime,
    entry: &Entry,
    mode: Mode,
    round: u64,
) -> Result<Sample, Failure> {
    let admitted = entry.question != Question::OneLimitRefuses;
    let load = Load { tasks: mode.tasks(), time: settings.time(), admitted, seed: round };
    let before = Meter::read(server);
    let begun = Instant::now();
    let mut times = entry.contender.load(runtime, load)?;
    let elapsed = begun.elapsed();
    let spent = Meter::read(server).since(before);
    times.sort_unstable();
    let decisions = times.len() as f64;
    let percentile = |share: f64| times[(share * (decisions - 1.0)) as usize].as_secs_f64() * 1e6;
    Ok(Sample {
        decisions,
        per_second: decisions / elapsed.as_secs_f64(),
        p50: percentile(0.5),
        p99: percentile(0.99),
        server_cpu: spent.server_micros() / decisions,
        client_cpu: spent.client_micros() / decisions,
        changes: spent.changes() / decisions,
    })
}
