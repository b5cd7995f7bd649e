//! Every source of utilization, on trees of files as Linux writes them, on files that make no sense, and on this
//! machine as it is.

#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, missing_docs)]

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::*;
use proptest::prelude::*;
use tollgate::utilization::{Gauge, Source};
use tollgate::{Clock, ManualClock, Nanos, Timestamp, WorkerShedder};

/// A `/proc` and a `/sys` of our own.
struct Tree(PathBuf);

impl Tree {
    fn new() -> Self {
        static TREES: AtomicU64 = AtomicU64::new(0);
        let tree = TREES.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("tollgate-utilization-{}-{tree}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        Self(root)
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> &Self {
        let path = self.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn remove(&self, path: &str) {
        fs::remove_file(self.0.join(path.trim_start_matches('/'))).unwrap();
    }

    fn gauge(&self, source: Source) -> Gauge {
        Gauge::with_root(source, &self.0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

const NO_MATTER: Timestamp = Timestamp::ZERO;

// ---- Requests in flight ----

#[test]
fn requests_in_flight_against_the_workers() {
    let gauge = Gauge::new(Source::InFlight { workers: 16 });
    let all = [(0, 0), (1, 62_500), (13, 812_500), (16, 1_000_000), (32, 2_000_000)];
    for (in_flight, ppm) in all {
        assert_eq!(gauge.sample(in_flight, NO_MATTER), Some(ppm));
    }
    assert_eq!(Gauge::new(Source::InFlight { workers: 1 }).sample(u64::MAX, NO_MATTER), Some(u64::MAX));
    assert_eq!(gauge.check(), Ok(()));
}

#[test]
fn no_workers_are_a_mistake_and_not_a_division() {
    let gauge = Gauge::new(Source::InFlight { workers: 0 });
    assert_eq!(gauge.sample(3, NO_MATTER), None);
    assert_eq!(gauge.check().unwrap_err(), "workers is 0: it must be at least 1");
}

// ---- Processors of the machine ----

/// As a machine of two processors writes it.
const STAT: &str = "\
cpu  3368738 280303 516986 2643611 11610 0 35606 111285 0 0
cpu0 1647618 124042 255205 1379788 3993 0 17176 55913 0 0
cpu1 1721120 156260 261780 1263823 7616 0 18430 55372 0 0
intr 33304083 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 1 14 0 0 0 0 6963 2792 0 579 1 805537 0 22915
ctxt 451271254
btime 1785400000
processes 1291233
procs_running 4
procs_blocked 0
softirq 18235711 0 3371912 12 1271023 0 0 1 5203881 0 8388882
";

/// The same with other times of all processors together.
fn stat(cpu: &str) -> String {
    STAT.replacen("3368738 280303 516986 2643611 11610 0 35606 111285 0 0", cpu, 1)
}

#[test]
fn the_processors_between_two_samples() {
    let tree = Tree::new();
    let gauge = tree.write("/proc/stat", STAT).gauge(Source::Cpu);
    assert_eq!(gauge.check(), Ok(()));
    assert_eq!(gauge.sample(0, NO_MATTER), None, "the first has nothing to compare with");
    assert_eq!(gauge.sample(0, NO_MATTER), None, "not a tick has passed");

    // user +400, nice +100, system +200, idle +300, iowait +100, irq +10, softirq +90, steal +400: 1200 of 1600
    tree.write("/proc/stat", stat("3369138 280403 517186 2643911 11710 10 35696 111685 0 0"));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(750_000));

    // Guests are part of user and nice, and do not count twice.
    tree.write("/proc/stat", stat("3369238 280403 517186 2644011 11710 10 35696 111685 100 100"));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(500_000));

    // Nothing but steal: the host has given the processors to others.
    tree.write("/proc/stat", stat("3369238 280403 517186 2644011 11710 10 35696 111885 100 100"));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(1_000_000));

    // Nothing but waiting for a disk.
    tree.write("/proc/stat", stat("3369238 280403 517186 2644011 11910 10 35696 111885 100 100"));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(0));
}

/// 128 processors and the interrupts of as many queues: longer than what is read of it.
#[test]
fn the_stat_of_128_processors() {
    let stat = |busy: u64, idle: u64| {
        let mut text = format!("cpu  {} 0 0 {} 0 0 0 0 0 0\n", 128 * busy, 128 * idle);
        for cpu in 0..128 {
            writeln!(text, "cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0").unwrap();
        }
        text + "intr 1" + &" 1234567".repeat(20_000) + "\nctxt 1\n"
    };
    let tree = Tree::new();
    let gauge = tree.write("/proc/stat", stat(1_000_000, 9_000_000)).gauge(Source::Cpu);
    assert_eq!(gauge.sample(0, NO_MATTER), None);
    tree.write("/proc/stat", stat(1_000_700, 9_000_100));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(875_000));
}

#[test]
fn kernels_that_tell_fewer_times() {
    let tree = Tree::new();
    let gauge = tree.write("/proc/stat", "cpu  10 10 10 10\n").gauge(Source::Cpu);
    assert_eq!(gauge.sample(0, NO_MATTER), None);
    tree.write("/proc/stat", "cpu  20 20 20 20\n");
    assert_eq!(gauge.sample(0, NO_MATTER), Some(750_000));
}

#[test]
fn times_that_go_back_are_unknown_once() {
    let tree = Tree::new();
    let gauge = tree.gauge(Source::Cpu);
    let sample = |cpu: &str| {
        tree.write("/proc/stat", format!("cpu  {cpu}\n"));
        gauge.sample(0, NO_MATTER)
    };
    assert_eq!(sample("18446744073709551600 0 0 100 0 0 0 0 0 0"), None);
    assert_eq!(sample("90 0 0 110 0 0 0 0 0 0"), None, "the counter has wrapped");
    assert_eq!(sample("100 0 0 120 0 0 0 0 0 0"), Some(500_000));
    assert_eq!(sample("110 0 0 20 0 0 0 0 0 0"), None, "idle went back");
    assert_eq!(sample("120 0 0 30 10 0 0 0 0 0"), Some(333_333));
    // proc(5): iowait may decrease. A machine without an idle tick must not become unknown by that.
    assert_eq!(sample("130 0 0 30 9 0 0 0 0 0"), Some(1_000_000));
    assert_eq!(sample("18446744073709551615 18446744073709551615 0 30 9 0 0 0 0 0"), None, "no such sum");
}

#[test]
fn a_stat_that_cannot_be_read_now_and_then_costs_no_time() {
    let tree = Tree::new();
    let gauge = tree.write("/proc/stat", "cpu  100 0 0 100\n").gauge(Source::Cpu);
    assert_eq!(gauge.sample(0, NO_MATTER), None);
    tree.write("/proc/stat", "cpu  many 0 0 100\n");
    assert_eq!(gauge.sample(0, NO_MATTER), None);
    tree.remove("/proc/stat");
    assert_eq!(gauge.sample(0, NO_MATTER), None);
    tree.write("/proc/stat", "cpu  190 0 0 110\n");
    assert_eq!(gauge.sample(0, NO_MATTER), Some(900_000), "since the last that was known");
}

#[test]
fn what_is_wrong_with_a_stat_is_told() {
    let tree = Tree::new();
    let gauge = tree.gauge(Source::Cpu);
    let error = "/proc/stat is missing; use requests in flight, latency or a reported number instead";
    assert_eq!(gauge.check().unwrap_err(), error);
    for garbage in
        ["", "cpu", "cpu \n", "cpu0 1 2 3 4\n", "cpu  1 2 3\n", "cpu  1 2 3 -4\n", "cpu  1 2 3 4.5\n"]
    {
        tree.write("/proc/stat", garbage);
        assert!(gauge.check().unwrap_err().starts_with("/proc/stat has no line `cpu`"), "{garbage}");
        assert_eq!(gauge.sample(0, NO_MATTER), None);
    }
}

// ---- Processors of the control group ----

/// As systemd and a container runtime mount version 2.
const MOUNTS_2: &str = "\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
25 22 0:22 / /proc rw,nosuid,nodev,noexec,relatime shared:12 - proc proc rw
27 22 0:24 / /sys rw,nosuid,nodev,noexec,relatime shared:2 - sysfs sysfs rw
31 27 0:28 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
";

fn cpu_stat(usage_usec: u64) -> String {
    format!(
        "usage_usec {usage_usec}\nuser_usec 3650620\nsystem_usec 552838\nnice_usec 0\n\
         nr_periods 12\nnr_throttled 3\nthrottled_usec 91827\nnr_bursts 0\nburst_usec 0\n"
    )
}

/// A group in the given path, on a machine of four processors.
fn version_2(path: &str) -> Tree {
    let tree = Tree::new();
    tree.write("/proc/self/mountinfo", MOUNTS_2)
        .write("/proc/self/cgroup", format!("0::{path}\n"))
        .write("/sys/devices/system/cpu/online", "0-3\n");
    tree
}

const POD: &str = "/sys/fs/cgroup/kubepods.slice/pod7";
const BOX: &str = "/sys/fs/cgroup/kubepods.slice/pod7/box1";

#[test]
fn a_group_against_its_own_quota() {
    let tree = version_2("/kubepods.slice/pod7/box1");
    tree.write(&format!("{BOX}/cpu.max"), "50000 100000\n")
        .write(&format!("{BOX}/cpu.stat"), cpu_stat(1_000_000));
    let gauge = tree.gauge(Source::Cgroup);
    assert_eq!(gauge.check(), Ok(()));
    assert_eq!(gauge.sample(0, at(100)), None);
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(4_000_000)); // 3 s in 8 s, of half a processor
    assert_eq!(gauge.sample(0, at(108)), Some(750_000));
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(9_000_000)); // cpu.max.burst lets it go beyond
    assert_eq!(gauge.sample(0, at(116)), Some(1_250_000));
    tree.write(&format!("{BOX}/cpu.max"), "250000 100000\n"); // and five times as much from now on
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(19_000_000));
    assert_eq!(gauge.sample(0, at(124)), Some(500_000));
    assert_eq!(gauge.sample(0, at(124)), None, "no time has passed");
    assert_eq!(gauge.sample(0, at(100)), None, "the time went back");
    assert_eq!(gauge.sample(0, at(108)), Some(0));
}

#[test]
fn a_group_without_a_quota_has_all_processors() {
    let tree = version_2("/kubepods.slice/pod7/box1");
    tree.write(&format!("{BOX}/cpu.max"), "max 100000\n").write(&format!("{BOX}/cpu.stat"), cpu_stat(0));
    let gauge = tree.gauge(Source::Cgroup);
    assert_eq!(gauge.sample(0, at(0)), None);
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(24_000_000)); // 24 s in 8 s, of 4 processors
    assert_eq!(gauge.sample(0, at(8)), Some(750_000));

    // A quota of more processors than there are is none.
    tree.write(&format!("{BOX}/cpu.max"), "800000 100000\n");
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(48_000_000));
    assert_eq!(gauge.sample(0, at(16)), Some(750_000));

    // Bound to three of them, by itself or from above.
    tree.write(&format!("{POD}/cpuset.cpus.effective"), "0-1,3\n");
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(66_000_000));
    assert_eq!(gauge.sample(0, at(24)), Some(750_000));
    tree.write(&format!("{BOX}/cpuset.cpus.effective"), "3\n");
    tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(72_000_000));
    assert_eq!(gauge.sample(0, at(32)), Some(750_000));
}

/// The pod has one processor for two boxes; the box itself could have two.
#[test]
fn a_quota_further_up_counts_with_all_that_share_it() {
    let tree = version_2("/kubepods.slice/pod7/box1");
    tree.write(&format!("{BOX}/cpu.max"), "200000 100000\n")
        .write(&format!("{POD}/cpu.max"), "100000 100000\n")
        .write("/sys/fs/cgroup/kubepods.slice/cpu.max", "max 100000\n")
        .write("/sys/fs/cgroup/kubepods.slice/cpu.stat", cpu_stat(0))
        .write("/sys/fs/cgroup/cpu.stat", cpu_stat(0)); // the root has no quota
    let gauge = tree.gauge(Source::Cgroup);
    let sample = |own: u64, pod: Option<u64>, now: u64| {
        tree.write(&format!("{BOX}/cpu.stat"), cpu_stat(own));
        match pod {
            Some(pod) => drop(tree.write(&format!("{POD}/cpu.stat"), cpu_stat(pod))),
            None => tree.remove(&format!("{POD}/cpu.stat")),
        }
        gauge.sample(0, at(now))
    };
    assert_eq!(sample(0, Some(0), 0), None);
    assert_eq!(sample(2_000_000, Some(2_000_000), 8), Some(250_000), "2 s of the pod's 8");
    assert_eq!(sample(4_000_000, Some(9_000_000), 16), Some(875_000), "5 more are the other box's");
    assert_eq!(sample(8_000_000, None, 24), Some(500_000), "at least what this box has used");
    assert_eq!(
        sample(10_000_000, Some(1_000_000_000), 32),
        Some(250_000),
        "nothing to compare the pod's with"
    );
    assert_eq!(sample(10_000_000, Some(1_008_000_000), 40), Some(1_000_000), "the other box spends all");
    assert_eq!(sample(11_000_000, Some(1), 48), None, "went back");
    assert_eq!(sample(12_000_000, Some(1_000_001), 56), Some(125_000));
}

#[test]
fn usage_that_goes_back_is_unknown_once() {
    let tree = version_2("/");
    let gauge = tree.write("/sys/fs/cgroup/cpu.stat", cpu_stat(8_000_000)).gauge(Source::Cgroup);
    assert_eq!(gauge.sample(0, at(0)), None);
    tree.write("/sys/fs/cgroup/cpu.stat", cpu_stat(10));
    assert_eq!(gauge.sample(0, at(8)), None);
    tree.write("/sys/fs/cgroup/cpu.stat", cpu_stat(8_000_010));
    assert_eq!(gauge.sample(0, at(16)), Some(250_000));
}

#[test]
fn a_process_that_is_moved_to_another_group_starts_again() {
    let tree = version_2("/a");
    tree.write("/sys/fs/cgroup/a/cpu.stat", cpu_stat(0))
        .write("/sys/fs/cgroup/b/cpu.stat", cpu_stat(1_000_000_000));
    let gauge = tree.gauge(Source::Cgroup);
    assert_eq!(gauge.sample(0, at(0)), None);
    assert_eq!(gauge.sample(0, at(8)), Some(0));
    tree.write("/proc/self/cgroup", "0::/b\n");
    assert_eq!(gauge.sample(0, at(16)), None);
    tree.write("/sys/fs/cgroup/b/cpu.stat", cpu_stat(1_016_000_000));
    assert_eq!(gauge.sample(0, at(24)), Some(500_000));
}

/// A container without a namespace of its own is told its path on the host, and sees its own group alone.
#[test]
fn a_container_sees_its_group_as_the_top() {
    let name = r"/system.slice/docker\x2d1.scope";
    let in_mountinfo = r"/system.slice/docker\134x2d1.scope";
    for (path, root) in [(name, in_mountinfo), ("/", "/../.."), ("/../sibling", "/"), (name, "/elsewhere")] {
        let tree = version_2(path);
        tree.write("/proc/self/mountinfo", MOUNTS_2.replace("0:28 /", &format!("0:28 {root}")))
            .write("/sys/fs/cgroup/cpu.max", "100000 100000\n")
            .write("/sys/fs/cgroup/cpu.stat", cpu_stat(0));
        let gauge = tree.gauge(Source::Cgroup);
        assert_eq!(gauge.check(), Ok(()), "{path} {root}");
        gauge.sample(0, at(0));
        tree.write("/sys/fs/cgroup/cpu.stat", cpu_stat(2_000_000));
        assert_eq!(gauge.sample(0, at(8)), Some(250_000), "{path} {root}");
    }
}

#[test]
fn a_machine_that_does_not_tell_its_mounts_has_the_usual_ones() {
    let tree = version_2("/a");
    tree.remove("/proc/self/mountinfo");
    let gauge = tree.write("/sys/fs/cgroup/a/cpu.stat", cpu_stat(0)).gauge(Source::Cgroup);
    gauge.sample(0, at(0));
    tree.write("/sys/fs/cgroup/a/cpu.stat", cpu_stat(16_000_000));
    assert_eq!(gauge.sample(0, at(8)), Some(500_000));
}

/// Version 1, with both controllers in one hierarchy; the unified one is there for systemd alone.
fn version_1() -> Tree {
    let tree = Tree::new();
    tree.write(
        "/proc/self/mountinfo",
        "30 27 0:25 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:4 - tmpfs tmpfs ro,mode=755\n\
         31 30 0:26 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 cgroup2 rw,nsdelegate\n\
         32 30 0:27 / /sys/fs/cgroup/systemd rw,relatime shared:6 - cgroup cgroup rw,xattr,name=systemd\n\
         35 30 0:30 / /sys/fs/cgroup/cpuset rw,relatime shared:9 - cgroup cgroup rw,cpuset\n\
         36 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:10 - cgroup cgroup rw,cpu,cpuacct\n",
    )
    .write(
        "/proc/self/cgroup",
        "12:cpuset:/docker/1f\n6:memory:/docker/1f\n4:cpu,cpuacct:/docker/1f\n\
         1:name=systemd:/docker/1f\n0::/system.slice/docker.service\n",
    )
    .write("/sys/fs/cgroup/unified/system.slice/docker.service/cpu.stat", cpu_stat(0))
    .write("/sys/fs/cgroup/cpuset/docker/1f/cpuset.effective_cpus", "0-3\n")
    .write("/sys/devices/system/cpu/online", "0-127\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage", "1\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/docker/cpuacct.usage", "1\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "-1\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us", "200000\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_period_us", "100000\n")
    .write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpuacct.usage", "0\n");
    tree
}

#[test]
fn version_1_has_its_quota_and_its_usage_elsewhere() {
    let tree = version_1();
    let gauge = tree.gauge(Source::Cgroup);
    assert_eq!(gauge.check(), Ok(()));
    assert_eq!(gauge.sample(0, at(0)), None);
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpuacct.usage", "12000000000\n"); // 12 s in 8 s, of 2
    assert_eq!(gauge.sample(0, at(8)), Some(750_000));
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpu.cfs_quota_us", "-1\n"); // 4 processors of its cpuset
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpuacct.usage", "28000000000\n");
    assert_eq!(gauge.sample(0, at(16)), Some(500_000));
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/1f/cpuacct.usage", "5\n");
    assert_eq!(gauge.sample(0, at(24)), None);
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "100000\n"); // one, for all of docker
    tree.write("/sys/fs/cgroup/cpu,cpuacct/docker/cpuacct.usage", "7200000001\n");
    assert_eq!(gauge.sample(0, at(32)), Some(900_000));
}

/// What `cpuacct` counts for another group than `cpu` limits is no share of that limit.
#[test]
fn version_1_with_controllers_in_different_groups_is_unknown() {
    let tree = version_1();
    tree.write(
        "/proc/self/mountinfo",
        "1 0 0:1 / /cpu rw - cgroup cgroup rw,cpu\n2 0 0:2 / /acct rw - cgroup cgroup rw,cpuacct\n",
    )
    .write("/proc/self/cgroup", "2:cpuacct:/\n1:cpu:/docker/1f\n");
    let gauge = tree.gauge(Source::Cgroup);
    let error = gauge.check().unwrap_err();
    assert!(error.contains("`cpu` and `cpuacct` in different groups"), "{error}");
    assert_eq!(gauge.sample(0, at(0)), None);
}

#[test]
fn what_is_wrong_with_a_group_is_told() {
    let tree = Tree::new();
    let gauge = tree.gauge(Source::Cgroup);
    let check = || {
        assert_eq!(gauge.sample(0, at(0)), None);
        gauge.check().unwrap_err()
    };
    assert_eq!(check(), "/proc/self/cgroup is missing; use `cpu` instead");
    tree.write("/proc/self/cgroup", "garbage\n");
    assert!(check().starts_with("/proc/self/cgroup and /proc/self/mountinfo name no control group"));
    tree.write("/proc/self/cgroup", "0::/a\n");
    assert_eq!(check(), "/sys/fs/cgroup/a does not tell its processor time; use `cpu` instead");
    tree.write("/sys/fs/cgroup/a/cpu.stat", cpu_stat(0));
    assert!(check().starts_with("there is no quota, and /sys/devices/system/cpu/online does not tell"));
    for garbage in ["", "max", "0 100000", "100000 0", "-1 100000", "5 5 5", "18446744073709551616 1"] {
        tree.write("/sys/fs/cgroup/a/cpu.max", garbage);
        assert_eq!(check(), "/sys/fs/cgroup/a/cpu.max is not a quota; use `cpu` instead", "{garbage}");
    }
    tree.write("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
    for garbage in
        ["", "a", "3-1", "0-18446744073709551615", "0-18446744073709551614,5", "0-99999999999999999"]
    {
        tree.write("/sys/devices/system/cpu/online", garbage);
        assert!(check().starts_with("there is no quota"), "{garbage}");
    }
    tree.write("/sys/devices/system/cpu/online", "0-3,8-11\n");
    assert_eq!(gauge.check(), Ok(()));
}

// ---- Pressure ----

const PSI: &str = "\
some avg10=70.14 avg60=47.77 avg300=39.54 total=7416759618
full avg10=0.00 avg60=0.00 avg300=0.00 total=0
";

#[test]
fn pressure_of_the_machine_and_of_the_group() {
    let tree = Tree::new();
    let gauge = tree.write("/proc/pressure/cpu", PSI).gauge(Source::Pressure);
    assert_eq!(gauge.check(), Ok(()));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(701_400), "the first sample is known already");
    tree.write("/proc/pressure/cpu", "some avg10=0.07 avg60=0.00 avg300=0.00 total=1\n"); // before Linux 5.13
    assert_eq!(gauge.sample(0, NO_MATTER), Some(700));

    tree.write("/proc/self/cgroup", "0::/a\n").write("/proc/self/mountinfo", MOUNTS_2);
    assert_eq!(gauge.sample(0, NO_MATTER), Some(700), "the group does not tell its own");
    tree.write("/sys/fs/cgroup/a/cpu.pressure", PSI);
    assert_eq!(gauge.sample(0, NO_MATTER), Some(701_400));
}

#[test]
fn what_is_wrong_with_pressure_is_told() {
    let tree = Tree::new();
    let gauge = tree.gauge(Source::Pressure);
    let error = "/proc/pressure/cpu is missing: the kernel was built without PSI or booted without psi=1; \
                 use `cpu` or `cgroup` instead";
    assert_eq!(gauge.check().unwrap_err(), error);
    for garbage in [
        "",
        "some",
        "some avg10=\n",
        "full avg10=1.00\n",
        "some avg10=-1.00\n",
        "some avg60=1.00\n",
        "some avg10=nan",
    ] {
        tree.write("/proc/pressure/cpu", garbage);
        assert!(
            gauge.check().unwrap_err().starts_with("/proc/pressure/cpu has no line `some avg10=`"),
            "{garbage}"
        );
        assert_eq!(gauge.sample(0, NO_MATTER), None);
    }
}

// ---- Latency ----

const MILLI: u64 = 1_000_000;

fn latency(millis: u64) -> Gauge {
    Gauge::new(Source::Latency { target: Nanos::new(millis * MILLI) })
}

#[test]
fn latency_at_the_target_is_80_percent() {
    let gauge = latency(200);
    assert_eq!(gauge.check(), Ok(()));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(0), "no request");
    let all: [(&[u64], u64); 6] = [
        (&[200], 800_000),
        (&[100, 300], 800_000),
        (&[50, 50, 200], 400_000),
        (&[], 0),
        (&[250], 1_000_000),
        (&[60_000], 2_000_000),
    ];
    for (latencies, ppm) in all {
        latencies.iter().for_each(|millis| gauge.record_latency(Nanos::new(millis * MILLI)));
        assert_eq!(gauge.sample(0, NO_MATTER), Some(ppm), "{latencies:?}");
    }
}

#[test]
fn latencies_at_the_edges() {
    let gauge = latency(200);
    for _ in 0..3 {
        gauge.record_latency(Nanos::new(u64::MAX));
    }
    assert_eq!(gauge.sample(0, NO_MATTER), Some(2_000_000));
    gauge.record_latency(Nanos::ZERO);
    assert_eq!(gauge.sample(0, NO_MATTER), Some(0));
    // A sum of more than 2^64 ns in all: 250 000 days, in samples of 50 000.
    for _ in 0..5 {
        for _ in 0..50_000 {
            gauge.record_latency(Nanos::from_secs(24 * 3600));
        }
        assert_eq!(gauge.sample(0, NO_MATTER), Some(2_000_000));
    }
    gauge.record_latency(Nanos::new(100 * MILLI));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(400_000));

    let gauge = latency(0);
    assert_eq!(gauge.check().unwrap_err(), "target is 0ns: it must be at least 1ns");
    assert_eq!(gauge.sample(0, NO_MATTER), None);
    gauge.record_latency(Nanos::new(1));
    assert_eq!(gauge.sample(0, NO_MATTER), None);
}

/// A request that a sample has seen by half is whole in the next one.
#[test]
fn latencies_are_recorded_while_they_are_sampled() {
    const EACH: u64 = 200_000;
    let gauge = latency(200);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    gauge.record_latency(Nanos::new(200 * MILLI));
                }
                done.fetch_add(1, Ordering::Release);
            });
        }
        while done.load(Ordering::Acquire) < 4 {
            assert!(gauge.sample(0, NO_MATTER).is_some());
        }
    });
    gauge.sample(0, NO_MATTER);
    gauge.record_latency(Nanos::new(200 * MILLI));
    assert_eq!(gauge.sample(0, NO_MATTER), Some(800_000), "the sum and the count have met again");
}

// ---- Reports ----

fn reported() -> Gauge {
    Gauge::new(Source::Reported { stale_after: Source::STALE_AFTER })
}

#[test]
fn a_report_counts_until_it_is_stale() {
    let gauge = reported();
    assert_eq!(gauge.check(), Ok(()));
    assert_eq!(gauge.sample(0, at(0)), None, "no report");
    gauge.report_ppm(830_000, at(0));
    assert_eq!(gauge.sample(0, at(0)), Some(830_000));
    assert_eq!(gauge.sample(0, Timestamp::from_nanos(30 * SECOND - 1)), Some(830_000));
    assert_eq!(gauge.sample(0, at(30)), None);
    gauge.report_ppm(0, at(100));
    assert_eq!(gauge.sample(0, at(99)), Some(0), "from a clock that is a little behind");
    assert_eq!(gauge.sample(0, at(129)), Some(0));
    gauge.report_ppm(u64::MAX, at(129));
    assert!(gauge.sample(0, at(130)).is_some_and(|ppm| ppm > 1_000_000));

    let never = Gauge::new(Source::Reported { stale_after: Nanos::ZERO });
    never.report_ppm(1, at(0));
    assert_eq!(never.sample(0, at(0)), None);
    assert_eq!(never.check().unwrap_err(), "stale_after is 0ns: it must be at least 1ns");
}

#[test]
fn reports_as_text() {
    let right = [
        ("0", 0),
        ("0.0", 0),
        ("0.83", 830_000),
        ("0.8333333333333333333333333333333", 833_333),
        ("0.0000009", 0),
        ("1", 1_000_000),
        ("1.0", 1_000_000),
        ("1.05", 1_050_000),
        ("2", 2_000_000),
        ("00.5", 500_000),
        ("  0.5\t", 500_000),
        ("0%", 0),
        ("83%", 830_000),
        ("83 %", 830_000),
        ("83\t %", 830_000),
        (" 83% ", 830_000),
        ("83.25%", 832_500),
        ("0.000%", 0),
        ("1%", 10_000),
        ("100%", 1_000_000),
        ("1000%", 10_000_000),
    ];
    for (text, ppm) in right {
        let gauge = reported();
        assert!(gauge.report_text(text.as_bytes(), at(0)), "{text}");
        assert_eq!(gauge.sample(0, at(0)), Some(ppm), "{text}");
    }
    let huge = reported();
    assert!(!huge.report_text("9".repeat(100).as_bytes(), at(0)));
    assert!(!huge.report_text(("9".repeat(100) + "%").as_bytes(), at(0)));
    assert_eq!(huge.sample(0, at(0)), None);

    let wrong = "| |%| %|.|.5|5.|5.%|0..5|0.5.5|0,83|-0.5|-0|+0.5|-83%|NaN|nan|NaN%|inf|infinity|-inf|1e-1|0x1|83|\
                 2.000001|10|0.85%|0.0001%|0.9999%|1000.0001%|83%%|% 83|8 3%|0 .5|0.83 0.9|83 percent|٨٣%|0.5\0|0.5\n|½";
    let gauge = reported();
    for text in wrong.split('|') {
        assert!(!gauge.report_text(text.as_bytes(), at(0)), "{text:?}");
    }
    assert!(!gauge.report_text(b"0.\xff", at(0)));
    assert_eq!(gauge.sample(0, at(0)), None, "what is wrong changes nothing");
}

#[test]
fn what_is_not_the_source_is_not_counted() {
    let gauge = reported();
    gauge.record_latency(Nanos::from_secs(9));
    assert_eq!(gauge.sample(99, at(0)), None);
    let gauge = latency(200);
    gauge.report_ppm(900_000, at(0));
    assert!(gauge.report_text(b"90%", at(0)));
    assert_eq!(gauge.sample(99, at(0)), Some(0));
}

/// The whole way, on a moved clock: reports in, requests shed, and an unknown sample changes nothing.
#[test]
fn samples_drive_the_shedder() {
    let clock = ManualClock::default();
    let shedder = WorkerShedder::builder(["all"]).clock(clock.clone()).build().unwrap();
    let gauge = reported();
    let tick = || {
        clock.advance(Duration::from_secs(8));
        if let Some(ppm) = gauge.sample(0, clock.now()) {
            shedder.record_ppm(ppm, Some(clock.now()));
        }
        shedder.amount().num
    };
    let rest = shedder.amount().num;
    assert_eq!(tick(), rest);
    for _ in 0..8 {
        assert!(gauge.report_text(b"100%", clock.now()));
        tick();
    }
    let shed = shedder.amount().num;
    assert!(shed > 0);
    let stale = [tick(), tick(), tick(), tick()][3];
    assert_eq!(tick(), stale, "unknown: it stays");
    gauge.report_ppm(0, clock.now());
    assert!(tick() < stale);
}

// ---- Garbage ----

const WORDS: &str = "cpu |cpu0 |some |avg10=|usage_usec |max |0::/|4:cpu,cpuacct:/|7:cpuset:|/a|/..|\\134|\\0|\\999|\
                     1 0 0:1 / |/sys/fs/cgroup | - cgroup2 x rw| - cgroup x cpu,cpuacct|\n| |.|-|,|:|%|-1|100000";

/// Numbers and words of all those files, in any order, and bytes of any kind.
fn content() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        prop::sample::select(WORDS.split('|').collect::<Vec<_>>()).prop_map(|word| word.as_bytes().to_vec()),
        any::<u64>().prop_map(|number| format!("{number} ").into_bytes()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    prop::collection::vec(word, 0..30).prop_map(|words| words.concat())
}

/// Well-formed files of any numbers.
fn counters() -> impl Strategy<Value = [u64; 12]> {
    let edge = prop_oneof![any::<u64>(), 0..100_u64, (u64::MAX - 9)..=u64::MAX, 99_990..100_010_u64];
    prop::array::uniform12(edge)
}

const FILES: [&str; 14] = [
    "/proc/stat",
    "/proc/pressure/cpu",
    "/proc/self/cgroup",
    "/proc/self/mountinfo",
    "/sys/devices/system/cpu/online",
    "/sys/fs/cgroup/a/cpu.stat",
    "/sys/fs/cgroup/a/cpu.max",
    "/sys/fs/cgroup/a/cpu.pressure",
    "/sys/fs/cgroup/a/cpuset.cpus.effective",
    "/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us",
    "/sys/fs/cgroup/cpu/a/cpu.cfs_period_us",
    "/sys/fs/cgroup/cpuacct/a/cpuacct.usage",
    "/sys/fs/cgroup/cpu.stat",
    "/sys/fs/cgroup/cpu.max",
];

proptest! {
    #![proptest_config(config(100))]

    /// Each step breaks one file of a tree that was right.
    #[test]
    fn no_file_panics(
        first in any::<bool>(),
        steps in prop::collection::vec((0..FILES.len(), content(), any::<u64>()), 1..12),
    ) {
        let tree = version_2("/a");
        tree.remove("/proc/self/mountinfo");
        tree.write("/proc/stat", STAT)
            .write("/sys/fs/cgroup/a/cpu.stat", cpu_stat(1))
            .write("/sys/fs/cgroup/cpuacct/a/cpuacct.usage", "1\n");
        if first {
            tree.write("/proc/self/cgroup", "2:cpuacct:/a\n1:cpu:/a\n0::/\n");
        }
        let gauges = [Source::Cpu, Source::Cgroup, Source::Pressure].map(|source| tree.gauge(source));
        for (file, content, now) in steps {
            tree.write(FILES[file], content);
            for gauge in &gauges {
                let sample = gauge.sample(0, Timestamp::from_nanos(now));
                prop_assert!(sample.is_none() || gauge.check().is_ok());
                prop_assert!(gauge.source() != &Source::Cpu || sample <= Some(1_000_000));
            }
        }
    }

    /// Whatever the counters, and however they jump.
    #[test]
    fn no_counter_panics(steps in prop::collection::vec((counters(), any::<u64>()), 2..8)) {
        let tree = version_2("/a");
        let gauges = [Source::Cpu, Source::Cgroup].map(|source| tree.gauge(source));
        let mut before = [None, None]; // what each gauge could read last
        for (n, now) in steps {
            let times = n[..10].iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
            tree.write("/proc/stat", format!("cpu  {times}\n"))
                .write("/sys/fs/cgroup/a/cpu.stat", cpu_stat(n[0]))
                .write("/sys/fs/cgroup/a/cpu.max", format!("{} {}\n", n[1], n[2]))
                .write("/sys/fs/cgroup/cpu.stat", cpu_stat(n[3]))
                .write("/sys/fs/cgroup/cpu.max", format!("max {}\n", n[4]));
            let [cpu, group] = [0, 1].map(|gauge| gauges[gauge].sample(0, Timestamp::from_nanos(now)));
            prop_assert!(cpu <= Some(1_000_000));
            let [cpu_before, group_before] = before;
            prop_assert!(cpu.is_none() || cpu_before.is_some_and(|(_, idle, _)| idle <= n[3]));
            prop_assert!(group.is_none() || group_before.is_some_and(|(used, _, then)| used <= n[0] && then < now));
            for (gauge, before) in gauges.iter().zip(&mut before) {
                if gauge.check().is_ok() {
                    *before = Some((n[0], n[3], now));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(config(4000))]

    /// Text of any kind is false, or the number that it says.
    #[test]
    fn text_says_what_it_says(text in prop_oneof![
        "[ \t]?[0-9]{0,12}[.]?[0-9]{0,9}[ ]?%?",
        "[-+0-9.e%a-z ]{0,8}",
        any::<String>(),
    ]) {
        let gauge = reported();
        let taken = gauge.report_text(text.as_bytes(), at(0));
        prop_assert_eq!(gauge.sample(0, at(0)).is_some(), taken);
        if taken {
            let number: f64 = text.trim().trim_end_matches('%').trim().parse().unwrap();
            let right: f64 = if text.contains('%') { number * 10_000.0 } else { number * 1_000_000.0 };
            let right = right.min(u64::MAX as f64);
            let ppm = gauge.sample(0, at(0)).unwrap() as f64;
            prop_assert!((ppm - right).abs() <= 1.0 + right * 1e-9, "{} is not {}", ppm, right);
        }
    }

    #[test]
    fn every_ppm_can_be_written(ppm in 0..=10_000_000_u64) {
        let gauge = reported();
        for (text, is_clear) in [
            (format!("{}.{:06}", ppm / 1_000_000, ppm % 1_000_000), ppm <= 2_000_000),
            (format!("{}.{:04}%", ppm / 10_000, ppm % 10_000), ppm == 0 || ppm >= 10_000),
        ] {
            prop_assert_eq!(gauge.report_text(text.as_bytes(), at(0)), is_clear);
            prop_assert!(!is_clear || gauge.sample(0, at(0)) == Some(ppm));
        }
    }
}

// ---- This machine ----

/// The one test in real time: a thread that works for 200 ms is seen.
#[cfg(target_os = "linux")]
#[test]
fn this_machine_is_seen_to_work() {
    use tollgate::SystemClock;

    let gauges = [Source::Cpu, Source::Cgroup].map(Gauge::new);
    assert_eq!(gauges[0].check(), Ok(()));
    let begun = SystemClock.now();
    for gauge in &gauges {
        assert_eq!(gauge.sample(0, begun), None);
    }
    while SystemClock.now().since(begun) < Nanos::new(200 * MILLI) {
        std::hint::spin_loop();
    }
    let cpu = gauges[0].sample(0, SystemClock.now()).unwrap();
    assert!(0 < cpu && cpu <= 1_000_000, "{cpu}");
    let group = gauges[1].sample(0, SystemClock.now());
    match gauges[1].check() {
        Ok(()) => assert!(group.is_some_and(|ppm| ppm > 0), "{group:?}"),
        Err(why) => assert_eq!(group, None, "{why}"),
    }
    let pressure = Gauge::new(Source::Pressure);
    assert_eq!(pressure.sample(0, begun).is_some(), pressure.check().is_ok());
}
