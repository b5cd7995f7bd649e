//! What the run happened on and with: date, processor, kernel, compiler, versions of the peers.

use std::process::Command;

const LOCK_FILE: &str = include_str!("../Cargo.lock");
const PEERS: [&str; 4] = ["governor", "throttlecrab", "limitador", "pingora-limits"];

pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let peers: Vec<String> = PEERS.iter().map(|peer| format!("{peer} {}", locked_version(peer))).collect();
    format!(
        "Written by `cargo run --release --manifest-path bench/Cargo.toml`; do not edit.\n\n\
         - Date: {}\n- Processor: {}, {cores} cores\n- Kernel: Linux {}\n- Compiler: {}\n- Peers: {}\n",
        says("date", &["-u", "+%F"]),
        processor(),
        says("uname", &["-r"]),
        says("rustc", &["--version"]),
        peers.join(", "),
    )
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
