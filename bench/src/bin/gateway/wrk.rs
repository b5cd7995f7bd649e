//! The load, by wrk.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::Failure;

pub const CONNECTIONS: usize = 64;
/// What each request carries, as those of an API do.
pub const KEY: (&str, &str) = ("x-api-key", "std_1");

/// What came of one load. Times are milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub requests: f64,
    pub per_second: f64,
    pub p50: f64,
    pub p99: f64,
    /// Connections that broke or answers that did not come.
    pub broken: f64,
    /// Answers with a status of 400 or above.
    pub refused: f64,
}

fn load(wrk: &Path, server: SocketAddr, seconds: u64) -> Command {
    let mut command = Command::new(wrk);
    command
        .args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), "--latency"])
        .args(["-H", &format!("{}: {}", KEY.0, KEY.1)])
        .arg(format!("http://{server}/v1/charges"));
    command
}

/// The same load, until it is ended.
pub fn endless(wrk: &Path, server: SocketAddr) -> Result<Child, Failure> {
    const DAY: u64 = 24 * 3600;
    Ok(load(wrk, server, DAY).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
}

pub fn run(wrk: &Path, server: SocketAddr, seconds: u64) -> Result<Load, Failure> {
    let output = load(wrk, server, seconds).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    parse(&said).ok_or_else(|| {
        format!("wrk has said no figures: {said}{}", String::from_utf8_lossy(&output.stderr)).into()
    })
}

fn parse(said: &str) -> Option<Load> {
    let behind = |start: &str| said.lines().find_map(|line| line.trim().strip_prefix(start));
    let requests = said.lines().find_map(|line| line.split_once(" requests in "))?.0.trim().parse().ok()?;
    let errors = behind("Socket errors:").unwrap_or_default();
    let errors = errors.split(',').filter_map(|kind| kind.rsplit(' ').next()?.parse::<f64>().ok());
    Some(Load {
        requests,
        per_second: behind("Requests/sec:")?.trim().parse().ok()?,
        p50: milliseconds(behind("50%")?)?,
        p99: milliseconds(behind("99%")?)?,
        broken: errors.sum(),
        refused: behind("Non-2xx or 3xx responses:").map_or(Some(0.0), |count| count.trim().parse().ok())?,
    })
}

/// `954.00us`, `1.20ms`, `1.02s`, `1.00m`.
fn milliseconds(time: &str) -> Option<f64> {
    let time = time.trim();
    let (number, unit) = time.split_at(time.find(|c: char| c.is_ascii_alphabetic())?);
    let number: f64 = number.parse().ok()?;
    Some(match unit {
        "us" => number / 1e3,
        "ms" => number,
        "s" => number * 1e3,
        "m" => number * 60e3,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_wrk_says_is_read_with_and_without_errors() {
        let good = "\
Running 3s test @ http://127.0.0.1:9000/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.40ms  300.00us   9.00ms   90.00%
    Req/Sec    45.00k     2.00k   48.00k    80.00%
  Latency Distribution
     50%  954.00us
     75%    1.50ms
     90%    1.90ms
     99%    2.60ms
  135000 requests in 3.00s, 20.00MB read
";
        let load = |said: &str| parse(&format!("{good}{said}Requests/sec:  45000.25\n")).unwrap();
        let expected =
            Load { requests: 135e3, per_second: 45000.25, p50: 0.954, p99: 2.6, broken: 0.0, refused: 0.0 };
        assert_eq!(load(""), expected);
        let errors =
            "  Socket errors: connect 1, read 2, write 0, timeout 4\n  Non-2xx or 3xx responses: 135\n";
        assert_eq!(load(errors), Load { broken: 7.0, refused: 135.0, ..expected });
        assert_eq!(parse("unable to connect to 127.0.0.1:9000 Connection refused"), None);
    }

    #[test]
    fn times_have_units() {
        let read = ["1.02s", " 2.00m", "3.50ms", "7.00us", "1"].map(milliseconds);
        assert_eq!(read, [Some(1020.0), Some(120_000.0), Some(3.5), Some(0.007), None]);
    }
}
