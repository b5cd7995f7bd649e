//! Pressure stall information: how long work waited for a processor.

use super::cgroup::Group;
use super::files::{Files, unreadable};
use super::text::{PERCENT, decimal};

const PRESSURE: &str = "/proc/pressure/cpu";

pub(super) fn read(files: &Files) -> Result<u64, String> {
    const INSTEAD: &str = "use `cpu` or `cgroup` instead";
    let of_group = Group::unified(files).and_then(|group| files.read(group.dir().join("cpu.pressure")).ok());
    if let Some(ppm) = of_group.as_deref().and_then(parse) {
        return Ok(ppm);
    }
    let text = files.read(PRESSURE).map_err(|error| {
        let unreadable = unreadable(PRESSURE, &error);
        format!("{unreadable}: the kernel was built without PSI or booted without psi=1; {INSTEAD}")
    })?;
    parse(&text).ok_or_else(|| format!("{PRESSURE} has no line `some avg10=`; {INSTEAD}"))
}

/// The line `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, in percent.
fn parse(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = line.split_ascii_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    decimal(percent, PERCENT)
}
