//! What is run, in what order, and what came out.

use std::path::PathBuf;

use tollgate_bench::figures::median;

use crate::Failure;
use crate::contenders::{self, Contender};
use crate::exchange::{self, Cost};
use crate::server::{Cpu, Server};
use crate::tools::Tools;
use crate::wrk::{self, Load};

/// How thorough the run is, and of what.
pub struct Settings {
    pub is_quick: bool,
    pub tollgate: PathBuf,
    pub threads: usize,
}

impl Settings {
    pub fn rounds(&self) -> usize {
        if self.is_quick { 1 } else { 11 }
    }

    pub fn seconds(&self) -> u64 {
        if self.is_quick { 3 } else { 2 }
    }

    /// Gateways that are asked what the limiters cost, one after another.
    pub fn processes(&self) -> usize {
        if self.is_quick { 1 } else { 7 }
    }

    /// Slices with the limiters and without them, of each of those.
    pub fn pairs(&self) -> usize {
        if self.is_quick { 20 } else { 100 }
    }
}

/// How long each is warmed up before each turn.
pub const WARM_UP_SECONDS: u64 = 1;

/// One repetition.
#[derive(Clone, Copy)]
pub struct Sample {
    pub load: Load,
    /// Requests that were not answered as they should have been.
    pub errors: f64,
    /// Of the proxy, per 100,000 requests; nothing where there is no proxy.
    pub cpu: Option<Cpu>,
    /// Of the server behind it, likewise.
    pub server_cpu: Cpu,
}

/// All repetitions of one contender.
pub struct Row {
    pub name: &'static str,
    pub samples: Vec<Sample>,
}

impl Row {
    /// A figure of every repetition that has it.
    pub fn figures(&self, figure: fn(&Sample) -> Option<f64>) -> Vec<f64> {
        self.samples.iter().filter_map(figure).collect()
    }

    pub fn median(&self, figure: fn(&Sample) -> Option<f64>) -> Option<f64> {
        Some(self.figures(figure)).filter(|figures| !figures.is_empty()).map(median)
    }
}

pub struct Results {
    pub rows: Vec<Row>,
    pub cost: Cost,
    /// How many processes wanted a processor before anything was begun, in the mean of a minute.
    pub load_before: String,
}

impl Results {
    pub fn row(&self, name: &str) -> &Row {
        let row = self.rows.iter().find(|row| row.name == name);
        row.unwrap_or_else(|| panic!("'{name}' is a contender"))
    }
}

/// All contenders in turn, and that again and again.
pub fn run(settings: &Settings, tools: &Tools) -> Result<Results, Failure> {
    let load_before = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load_before = load_before.split(' ').next().unwrap_or_default().to_owned();
    let upstream = contenders::upstream(tools)?;
    let mut servers = Vec::new();
    for contender in &contenders::ALL {
        servers.push(contender.start(tools, upstream.port, settings.threads)?);
    }
    let mut rows: Vec<Row> =
        contenders::ALL.iter().map(|contender| Row { name: contender.name, samples: Vec::new() }).collect();
    for round in 1..=settings.rounds() {
        eprintln!("round {round} of {}", settings.rounds());
        let mut turns: Vec<_> = contenders::ALL.iter().zip(&servers).zip(&mut rows).collect();
        // To and fro: what a machine becomes while it runs favours nobody.
        if round % 2 == 0 {
            turns.reverse();
        }
        for ((contender, server), row) in turns {
            let sample = measure(settings, tools, contender, server.as_ref(), &upstream);
            row.samples.push(sample.map_err(|failure| format!("{}: {failure}", contender.name))?);
        }
    }
    drop(servers);
    eprintln!("the same with and without limiters, side by side");
    let cost = exchange::run(settings, tools, &upstream)?;
    Ok(Results { rows, cost, load_before })
}

fn measure(
    settings: &Settings,
    tools: &Tools,
    contender: &Contender,
    proxy: Option<&Server>,
    upstream: &Server,
) -> Result<Sample, Failure> {
    let address = proxy.unwrap_or(upstream).address();
    wrk::run(&tools.wrk, address, WARM_UP_SECONDS)?;
    let (before, server_before) = (proxy.map(Server::cpu), upstream.cpu());
    let load = wrk::run(&tools.wrk, address, settings.seconds())?;
    let (after, server_after) = (proxy.map(Server::cpu), upstream.cpu());
    let wrong = if contender.refuses() { load.requests - load.refused } else { load.refused };
    Ok(Sample {
        load,
        errors: wrong + load.broken,
        cpu: before.zip(after).map(|(before, after)| after.since(before, load.requests / 1e5)),
        server_cpu: server_after.since(server_before, load.requests / 1e5),
    })
}
