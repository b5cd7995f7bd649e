//! The processor time of this process's control group, against what it may use.
//!
//! Where the group's files are is told by `/proc/self/cgroup` (its path in the hierarchy) and
//! `/proc/self/mountinfo` (where the hierarchy is mounted, and from which of its directories on). A container
//! sees the part of the hierarchy that begins at its own group.

use std::path::{Component, Path, PathBuf};

use tollgate_core::Timestamp;
use tollgate_core::worker::PPM;

use super::files::{Files, unreadable};
use super::ppm;

const GROUPS: &str = "/proc/self/cgroup";
const MOUNTS: &str = "/proc/self/mountinfo";
const ONLINE: &str = "/sys/devices/system/cpu/online";
const INSTEAD: &str = "use `cpu` instead";

/// Where the hierarchies usually are, if the mounts are not told.
const USUAL_MOUNTS: &str = "\
    1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
    2 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
    3 0 0:3 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
    4 0 0:4 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";

/// Groups are nested less deeply than this.
const DEEPEST: usize = 64;

const NO_LIMIT: u64 = u64::MAX;

/// A control group as this process sees it.
#[derive(Debug)]
pub(super) struct Group {
    /// The top of what can be seen.
    mount: PathBuf,
    /// This group, below the top.
    path: PathBuf,
}

/// What this group and those above it have used, and may use.
#[derive(Debug)]
pub(super) struct Reading {
    at: Timestamp,
    dir: PathBuf,
    /// This group first.
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    /// Nanoseconds of processor time.
    used: Option<u64>,
    /// Millionths of a processor.
    limit: u64,
}

impl Group {
    /// The group in the one hierarchy of version 2.
    pub(super) fn unified(files: &Files) -> Option<Self> {
        Self::find(files, "")
    }

    /// The group that a controller of version 1 has this process in; version 2 is the one without a name.
    fn find(files: &Files, controller: &str) -> Option<Self> {
        let named = |list: &str| list.split(',').any(|name| name == controller);
        let groups = files.read(GROUPS).ok()?;
        let path = groups.lines().find_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            named(controllers).then_some(Path::new(path))
        })?;

        let mounts = files.read(MOUNTS).unwrap_or_else(|_| USUAL_MOUNTS.to_owned());
        let mut mounts = mounts.lines().filter_map(|line| {
            let (mount, system) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (root, point) = (mount.next()?, mount.next()?);
            let mut system = system.split(' ');
            let (kind, options) = (system.next()?, system.nth(1)?);
            let fits =
                if controller.is_empty() { kind == "cgroup2" } else { kind == "cgroup" && named(options) };
            fits.then(|| (unescape(root), unescape(point)))
        });
        let first = mounts.next()?;
        let below = |(root, point): &(PathBuf, PathBuf)| {
            let path = path.strip_prefix(root).ok()?;
            path.components()
                .all(|part| matches!(part, Component::Normal(_)))
                .then(|| (point.clone(), path.to_owned()))
        };
        // A mount that begins elsewhere (`/../..` inside of a namespace) shows no more of the group than its top.
        let (mount, path) = below(&first)
            .or_else(|| mounts.find_map(|mount| below(&mount)))
            .unwrap_or((first.1, PathBuf::new()));
        Some(Self { mount, path })
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.mount.join(&self.path)
    }

    /// This group's directory and those above it.
    fn dirs(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.path.ancestors().take(DEEPEST).map(|path| self.mount.join(path))
    }
}

/// The kernel writes blanks and backslashes of a path as `\040` and `\134`; systemd's names are full of the latter.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        match (code, part.get(3..)) {
            (Some(code), Some(rest)) if code.is_ascii() => {
                path.extend([char::from(code)].into_iter().chain(rest.chars()))
            }
            _ => path.extend(['\\'].into_iter().chain(part.chars())),
        }
    }
    PathBuf::from(path)
}

pub(super) fn read(files: &Files, now: Timestamp) -> Result<Reading, String> {
    files.read(GROUPS).map_err(|error| format!("{}; {INSTEAD}", unreadable(GROUPS, &error)))?;
    // A controller is in one hierarchy only. Where systemd mixes the versions, the unified one tells the usage,
    // but the quota is where the controller is.
    let (dir, mut levels, cpus) = match Group::find(files, "cpu") {
        Some(cpu) => version_1(files, &cpu)?,
        None => version_2(files)?,
    };
    let cpus = cpus.or_else(|| files.read(ONLINE).ok().and_then(|list| count(&list)));
    match levels.first_mut() {
        Some(Level { used: Some(_), limit }) => *limit = cpus.unwrap_or(NO_LIMIT).min(*limit),
        _ => return Err(format!("{} does not tell its processor time; {INSTEAD}", dir.display())),
    }
    if levels.iter().all(|level| level.limit == NO_LIMIT) {
        return Err(format!(
            "there is no quota, and {ONLINE} does not tell the number of processors; {INSTEAD}"
        ));
    }
    Ok(Reading { at: now, dir, levels })
}

/// A group's directory, its levels, and the processors it is bound to (in millionths, too).
type Found = (PathBuf, Vec<Level>, Option<u64>);

fn version_2(files: &Files) -> Result<Found, String> {
    let group = Group::unified(files)
        .ok_or_else(|| format!("{GROUPS} and {MOUNTS} name no control group of the processor; {INSTEAD}"))?;
    let levels = group.dirs().map(|dir| {
        let used = files.read(dir.join("cpu.stat")).ok().and_then(|text| usage_usec(&text));
        let file = dir.join("cpu.max");
        // The root has no such file, nor has a group for which the controller is off.
        let limit = files.read(&file).map_or(Some(NO_LIMIT), |text| cpu_max(&text));
        Ok(Level { used, limit: limit.ok_or_else(|| senseless(&file))? })
    });
    let levels = levels.collect::<Result<_, String>>()?;
    let cpus = group.dirs().find_map(|dir| files.read(dir.join("cpuset.cpus.effective")).ok());
    Ok((group.dir(), levels, cpus.and_then(|list| count(&list))))
}

fn version_1(files: &Files, cpu: &Group) -> Result<Found, String> {
    let same = |group: &Group| group.path == cpu.path;
    let Some(usage) = Group::find(files, "cpuacct").filter(same) else {
        return Err(format!(
            "{GROUPS} has `cpu` and `cpuacct` in different groups: the usage of this one is not told; {INSTEAD}"
        ));
    };
    let levels = cpu.dirs().zip(usage.dirs()).map(|(dir, usage)| {
        let used = files.read(usage.join("cpuacct.usage")).ok().and_then(|text| text.trim().parse().ok());
        let file = dir.join("cpu.cfs_quota_us");
        let limit = match (files.read(&file), files.read(dir.join("cpu.cfs_period_us"))) {
            (Ok(quota), Ok(period)) => match quota.trim() {
                "-1" => Some(NO_LIMIT),
                quota => share(quota, period.trim()),
            },
            _ => Some(NO_LIMIT),
        };
        Ok(Level { used, limit: limit.ok_or_else(|| senseless(&file))? })
    });
    let levels = levels.collect::<Result<_, String>>()?;
    let cpus = Group::find(files, "cpuset").filter(same).and_then(|group| {
        let list = files.read(group.dir().join("cpuset.effective_cpus"));
        count(&list.or_else(|_| files.read(group.dir().join("cpuset.cpus"))).ok()?)
    });
    Ok((usage.dir(), levels, cpus))
}

fn senseless(file: &Path) -> String {
    format!("{} is not a quota; {INSTEAD}", file.display())
}

/// The line `usage_usec 123` of `cpu.stat`, in nanoseconds.
fn usage_usec(text: &str) -> Option<u64> {
    let micros = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    micros.trim().parse::<u64>().ok()?.checked_mul(1000)
}

/// `50000 100000` is half a processor, `max 100000` is all there are.
fn cpu_max(text: &str) -> Option<u64> {
    match text.trim().split_once(' ')? {
        ("max", _) => Some(NO_LIMIT),
        (quota, period) => share(quota, period),
    }
}

fn share(quota: &str, period: &str) -> Option<u64> {
    let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
    ppm(quota.into(), period.into()).filter(|share| *share > 0)
}

/// The number of processors in a list like `0-3,8`, in millionths.
fn count(list: &str) -> Option<u64> {
    let cpus = list.trim().split(',').try_fold(0_u64, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    });
    cpus?.checked_mul(PPM)
}

impl Reading {
    /// The highest utilization of the levels since `before`: a quota further up is shared, and spent by others.
    pub(super) fn since(&self, before: &Self) -> Option<u64> {
        if self.dir != before.dir {
            return None;
        }
        let time = u128::from(self.at.since(before.at).as_u64());
        let mut highest = 0;
        let mut below = None;
        for (level, before) in self.levels.iter().zip(&before.levels) {
            // A group above that does not tell its usage has used at least what the one below it has.
            let used = match (level.used, before.used) {
                (Some(now), Some(before)) => now.checked_sub(before)?,
                _ => below?,
            };
            below = Some(used);
            let share = ppm(u128::from(used) * u128::from(PPM), time * u128::from(level.limit))?;
            highest = share.max(highest);
        }
        Some(highest)
    }
}
