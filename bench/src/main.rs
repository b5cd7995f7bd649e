//! Tollgate and its peers side by side, in one run: see `--help`.

mod checks;
mod contenders;
mod measure;
mod plan;
mod report;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use plan::Settings;
use tollgate_bench::{keys, machine, markdown};

const HELP: &str = "\
Measures Tollgate and its peers side by side and prints a report in Markdown.
A full run takes some minutes and also replaces docs/benchmarks-in-process.md.

  --quick           fewer keys and repetitions: under a minute, rough
  --only SUBSTRING  only what has SUBSTRING in 'contender / scenario', beside the floor
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some((first, rest)) = args.split_first()
        && first == worker::SUBCOMMAND
    {
        worker::become_worker(rest);
        return ExitCode::SUCCESS;
    }
    let Some(settings) = parse(&args) else {
        eprint!("{HELP}");
        return ExitCode::FAILURE;
    };
    let entries = contenders::all();
    let results = plan::run(&settings, &entries);
    let report = report::markdown(&settings, &entries, &results);
    print!("{report}");
    if !settings.quick && settings.only.is_none() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let written = std::fs::create_dir_all(&docs)
            .and_then(|()| std::fs::write(docs.join("benchmarks-in-process.md"), &report));
        if let Err(error) = written {
            eprintln!("docs/benchmarks-in-process.md was not written: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn parse(args: &[String]) -> Option<Settings> {
    let mut settings = Settings { quick: false, only: None };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--quick" => settings.quick = true,
            "--only" => settings.only = Some(args.next()?.clone()),
            _ => return None,
        }
    }
    Some(settings)
}
