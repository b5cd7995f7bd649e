//! What a run happened on and with: date, processor, kernel, compiler, versions of the peers.

use std::process::Command;

const LOCK_FILE: &str = include_str!("../Cargo.lock");

/// `command` is what wrote the report.
pub fn describe(command: &str, peers: &str) -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "Written by `{command}`; do not edit.\n\n\
         - Date: {}\n- Processor: {}, {cores} cores\n- Kernel: Linux {}\n- Compiler: {}\n- Peers: {peers}\n",
        says("date", &["-u", "+%F"]),
        processor(),
        says("uname", &["-r"]),
        says("rustc", &["--version"]),
    )
}

/// Packages with the versions that were built.
pub fn versions(packages: &[&str]) -> String {
    let versions: Vec<String> =
        packages.iter().map(|package| format!("{package} {}", locked_version(package))).collect();
    versions.join(", ")
}

fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(": "));
    model.map_or("unknown", |(_, name)| name).to_owned()
}

fn says(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
}

fn locked_version(package: &str) -> &'static str {
    let entry = format!("name = \"{package}\"\nversion = \"");
    let version = LOCK_FILE.split_once(&entry).and_then(|(_, rest)| rest.split_once('"'));
    version.map_or("unknown", |(version, _)| version)
}
