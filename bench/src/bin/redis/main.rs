//! The Redis store and the scripts that people write instead, side by side on one server: see `--help`.

mod checks;
mod contenders;
mod load;
mod meter;
mod plan;
mod report;

use std::path::Path;
use std::process::ExitCode;

use contenders::Failure;
use plan::Settings;
use tollgate_testkit::RedisServer;

const HELP: &str = "\
Measures the Redis store against scripts of one limit each and prints a report in Markdown.
A full run takes some minutes and also replaces docs/benchmarks-redis.md.

  --quick  few and short repetitions: rough
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
    let server = RedisServer::start();
    let results = plan::run(settings, &server)?;
    let report = report::markdown(settings, &server, &results);
    print!("{report}");
    if !settings.quick {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        std::fs::write(docs.join("benchmarks-redis.md"), &report)
            .map_err(|error| format!("docs/benchmarks-redis.md was not written: {error}"))?;
    }
    Ok(())
}

fn parse(args: &[String]) -> Option<Settings> {
    match args {
        [] => Some(Settings { quick: false }),
        [arg] if arg == "--quick" => Some(Settings { quick: true }),
        _ => None,
    }
}
