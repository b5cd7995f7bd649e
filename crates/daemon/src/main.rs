//! The command line of Tollgate.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tollgate::MemoryStore;
use tollgate_daemon::{conformance, demo};

/// Keeps an API up: limits rates and concurrency, and sheds load when there is too much of it.
#[derive(Parser)]
#[command(name = "tollgate", version)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Shows the four limiters at work (the default)
    Run,
    /// Replays test-vector files through a store; exits with 1 if any step comes out differently
    Conformance {
        /// The folder whose *.json files are replayed; folders inside it are not
        dir: PathBuf,
        /// The store whose code is tested
        #[arg(long, value_enum, default_value_t = StoreKind::Memory)]
        store: StoreKind,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum StoreKind {
    /// In this process
    Memory,
}

fn main() -> anyhow::Result<ExitCode> {
    let passed = match Arguments::parse().command.unwrap_or(Command::Run) {
        Command::Run => {
            demo::run()?;
            true
        }
        Command::Conformance { dir, store: StoreKind::Memory } => {
            // Each case gets a store of its own for one key: a small one is enough, and quicker.
            let new_store = || MemoryStore::builder().max_bytes(8 << 20).build();
            conformance::run(&dir, new_store, &mut io::stdout().lock())?.failed == 0
        }
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
