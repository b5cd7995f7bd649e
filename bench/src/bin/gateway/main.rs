//! The gateway beside nginx, HAProxy and Envoy, in front of one server and under one load: see `--help`.

mod checks;
mod contenders;
mod exchange;
mod plan;
mod report;
mod server;
mod tools;
mod wrk;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use plan::Settings;
use tools::Tools;

/// Why there are no figures.
type Failure = Box<dyn std::error::Error>;

const HELP: &str = "\
Measures the gateway beside nginx, HAProxy and Envoy and prints a report in Markdown.
A full run takes about twelve minutes and also replaces docs/benchmarks-gateway.md.
scripts/bench-setup.sh installs what it needs.

  --quick          one short repetition: rough
  --tollgate FILE  the binary that is measured [target/release/tollgate]
  --threads N      threads that serve requests, for each of the proxies [1]
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(settings) = parse(&args) else {
        eprint!("{HELP}");
        return ExitCode::FAILURE;
    };
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("no figures: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Failure> {
    let tools = Tools::find(&settings.tollgate)?;
    let results = plan::run(settings, &tools)?;
    let report = report::markdown(settings, &tools, &results);
    print!("{report}");
    if !settings.is_quick {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        std::fs::write(docs.join("benchmarks-gateway.md"), &report)
            .map_err(|error| format!("docs/benchmarks-gateway.md was not written: {error}"))?;
    }
    Ok(())
}

fn parse(args: &[String]) -> Option<Settings> {
    let tollgate = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/tollgate");
    let mut settings = Settings { is_quick: false, tollgate, threads: 1 };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => settings.is_quick = true,
            "--tollgate" => settings.tollgate = PathBuf::from(args.next()?),
            "--threads" => settings.threads = args.next()?.parse().ok().filter(|threads| *threads > 0)?,
            _ => return None,
        }
    }
    Some(settings)
}
