//! What the limiters cost, in processes whose policy is exchanged again and again while the load goes on. They cost a few hundredths, and
//! the speed of a shared machine changes by more than that from one second to the next: only slices that are short and side by side,
//! and many of them, tell the two apart.

use std::process::Child;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tollgate_testkit::http::Client;

use crate::Failure;
use crate::contenders::{self, Limit, Proxy};
use crate::plan::Settings;
use crate::server::Server;
use crate::tools::Tools;
use crate::wrk;

pub const SLICE: Duration = Duration::from_millis(150);
const PATIENCE: Duration = Duration::from_secs(5);

/// With the limiters over without them, of each pair of slices of each process.
pub struct Cost {
    pub cpu: Vec<Vec<f64>>,
    pub per_second: Vec<Vec<f64>>,
}

/// One slice of the load.
#[derive(Clone, Copy)]
struct Slice {
    /// Nanoseconds a request.
    cpu: f64,
    per_second: f64,
}

pub fn run(settings: &Settings, tools: &Tools, upstream: &Server) -> Result<Cost, Failure> {
    let mut cost = Cost { cpu: Vec::new(), per_second: Vec::new() };
    for process in 1..=settings.processes() {
        eprintln!("what the limiters cost: process {process} of {}", settings.processes());
        let pairs = compare(settings, tools, upstream)?;
        cost.cpu.push(pairs.iter().map(|[without, with]| with.cpu / without.cpu).collect());
        cost.per_second
            .push(pairs.iter().map(|[without, with]| with.per_second / without.per_second).collect());
    }
    Ok(cost)
}

/// Where a process has its memory makes a difference of a few hundredths too, for as long as it runs: each has its share of the pairs.
fn compare(settings: &Settings, tools: &Tools, upstream: &Server) -> Result<Vec<[Slice; 2]>, Failure> {
    let mut pairs = Vec::new();
    let gateway = Proxy::Tollgate.start(tools, Limit::None, upstream.port, settings.threads)?;
    let mut client = Client::try_connect(gateway.address())?;
    let mut counter = Client::try_connect(upstream.address())?;
    let _load = Endless(wrk::endless(&tools.wrk, gateway.address())?);
    sleep(Duration::from_secs(1));
    for pair in 1..=settings.pairs() {
        // To and fro, so that half of the time nothing has to be exchanged.
        let mut slices = [Limit::None, Limit::High];
        if pair % 2 == 0 {
            slices.reverse();
        }
        let mut measured = [None; 2];
        for limit in slices {
            exchange(&gateway, limit, &mut client)?;
            let slice = measure(&gateway, &mut counter)?;
            measured[usize::from(limit == Limit::High)] = Some(slice);
        }
        if let [Some(without), Some(with)] = measured {
            pairs.push([without, with]);
        }
    }
    Ok(pairs)
}

/// Puts a policy in the place of the one before, and waits until requests are answered by it.
fn exchange(gateway: &Server, limit: Limit, client: &mut Client) -> Result<(), Failure> {
    let is_there = |client: &mut Client| -> Result<bool, Failure> {
        let answer = client.try_get("/v1/charges", &[wrk::KEY])?;
        let is_told = !answer.header("ratelimit").is_empty();
        Ok(is_told == (limit == Limit::High))
    };
    if is_there(client)? {
        return Ok(());
    }
    gateway.replace(contenders::POLICY, &contenders::policy(limit))?;
    gateway.reload();
    let begun = Instant::now();
    while !is_there(client)? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("the policy was not exchanged in {PATIENCE:?}:\n{}", gateway.said()).into());
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn measure(gateway: &Server, counter: &mut Client) -> Result<Slice, Failure> {
    let begun = Instant::now();
    let (cpu, requests) = (gateway.cpu_nanos()?, answered(counter)?);
    sleep(SLICE);
    let (cpu, requests) = (gateway.cpu_nanos()? - cpu, answered(counter)? - requests);
    // One of them was the question itself.
    let requests = requests.saturating_sub(1).max(1) as f64;
    Ok(Slice { cpu: cpu as f64 / requests, per_second: requests / begun.elapsed().as_secs_f64() })
}

/// How many requests the server has answered, as it tells itself.
fn answered(counter: &mut Client) -> Result<u64, Failure> {
    let text = counter.try_get("/status", &[])?.text();
    parse(&text)
        .ok_or_else(|| format!("nginx does not tell how many requests it has answered: {text}").into())
}

/// The third number of its third line.
fn parse(status: &str) -> Option<u64> {
    status.lines().nth(2)?.split_ascii_whitespace().nth(2)?.parse().ok()
}

/// A load that ends when nobody wants it any more.
struct Endless(Child);

impl Drop for Endless {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nginx_has_answered_is_read() {
        let status = "Active connections: 65 \nserver accepts handled requests\n 70 70 123456 \nReading: 0 Writing: 1 Waiting: 64 \n";
        assert_eq!(parse(status), Some(123_456));
        assert_eq!(parse("404 page not found"), None);
    }
}
