//! What a run happened on and with: date, processor, kernel, compiler, versions of the peers.

use std::path::Path;
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

/// The version of a program, as it says itself.
pub fn version_of(program: &Path, flag: &str) -> String {
    let output = Command::new(program).arg(flag).output();
    // Some say it on standard error.
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    version_in(&String::from_utf8_lossy(&said)).unwrap_or("unknown").to_owned()
}

/// The first number such as 1.22.1.
fn version_in(said: &str) -> Option<&str> {
    let mut numbers = said.split(|c: char| !c.is_ascii_digit() && c != '.');
    numbers.find(|number| number.split('.').filter(|part| !part.is_empty()).count() == 3)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        assert_eq!(version_in("nginx version: nginx/1.22.1"), Some("1.22.1"));
        assert_eq!(
            version_in("HAProxy version 2.6.12-1+deb12u3 2025/10/03 - https://haproxy.org/"),
            Some("2.6.12")
        );
        assert_eq!(version_in("../bin/envoy  version: 9e55/1.40.0/Clean/RELEASE/BoringSSL"), Some("1.40.0"));
        assert_eq!(version_in("no such option"), None);
    }
}
