//! The times of all processors, from `/proc/stat`.

use super::files::{Files, unreadable};
use super::ppm;

const STAT: &str = "/proc/stat";

/// Ticks since the machine started, of all processors together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    busy: u64,
    idle: u64,
    iowait: u64,
}

pub(super) fn read(files: &Files) -> Result<Times, String> {
    const INSTEAD: &str = "use requests in flight, latency or a reported number instead";
    let text = files.read(STAT).map_err(|error| format!("{}; {INSTEAD}", unreadable(STAT, &error)))?;
    parse(&text)
        .ok_or_else(|| format!("{STAT} has no line `cpu` with the times of all processors; {INSTEAD}"))
}

/// The line `cpu user nice system idle iowait irq softirq steal guest guest_nice`. Old kernels end it earlier; the
/// two for guests are in `user` and `nice` already.
fn parse(text: &str) -> Option<Times> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks =
        line.split_ascii_whitespace().take(8).map(str::parse).collect::<Result<Vec<u64>, _>>().ok()?;
    let [user, nice, system, idle, more @ ..] = ticks.as_slice() else { return None };
    let (iowait, interrupts_and_steal) = more.split_first().unwrap_or((&0, &[]));
    let busy = [user, nice, system].into_iter().chain(interrupts_and_steal);
    let busy = busy.copied().try_fold(0, u64::checked_add)?;
    Some(Times { busy, idle: *idle, iowait: *iowait })
}

impl Times {
    /// The busy share of the time since `before`.
    pub(super) fn since(self, before: Self) -> Option<u64> {
        let busy = u128::from(self.busy.checked_sub(before.busy)?);
        let idle = u128::from(self.idle.checked_sub(before.idle)?);
        // Linux lets this one go back a little now and then (proc(5)); on a busy machine, too.
        let iowait = u128::from(self.iowait.saturating_sub(before.iowait));
        ppm(busy, busy + idle + iowait)
    }
}
