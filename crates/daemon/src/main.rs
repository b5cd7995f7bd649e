//! The command line of Tollgate.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::time::timeout;
use tollgate::MemoryStore;
use tollgate_daemon::block_on::block_on;
use tollgate_daemon::conformance::{self, Target};
use tollgate_daemon::operate::{self, Instance};
use tollgate_daemon::settings::{self, RunArguments};
use tollgate_daemon::{check, run};
use tollgate_redis::RedisStore;

/// Many small allocations, from many threads: requests and answers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Keeps an API up: limits rates and concurrency, and sheds load when there is too much of it.
#[derive(Parser)]
#[command(
    name = "tollgate",
    version,
    override_usage = "tollgate [run] [OPTIONS]\n       tollgate <COMMAND> [OPTIONS]"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Opens the doors (the default): a gateway in front of your API, or of a demonstration if there is neither a policy nor
    /// an upstream
    Run(RunArguments),
    /// Shows how a running instance stands
    Status {
        #[command(flatten)]
        instance: Instance,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Sets the mode of a limiter of a running instance, until it ends or until it is set to `policy`
    #[command(
        override_usage = "tollgate switch LIMITER enforce|dark|off|policy\n       tollgate switch --all enforce|dark|off|policy"
    )]
    Switch {
        /// The limiter, and the mode: what becomes of what it decides; `policy` is what the policy says
        #[arg(required = true, num_args = 1..=2, value_names = ["LIMITER", "MODE"])]
        words: Vec<String>,
        /// All limiters: none is stricter than this
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        instance: Instance,
    },
    /// Validates a policy file: lists every mistake with its place and what would be right; exits with 1 if there are
    /// errors, with 2 if the file cannot be read
    Check {
        /// The policy file; `-` is standard input [default: $TOLLGATE_POLICY, else ./tollgate.yaml]
        file: Option<PathBuf>,
        /// Prints the JSON Schema of policy files, for editors
        #[arg(long, conflicts_with = "file")]
        schema: bool,
    },
    /// Replays test-vector files through a store; exits with 1 if any step comes out differently, with 2 if
    /// nothing could be replayed
    Conformance {
        /// The folder whose *.json files are replayed; folders inside it are not
        dir: PathBuf,
        /// The store whose code is tested: `memory`, or the address of a shared one: redis://host:6379/0,
        /// redis-cluster://a:6379,b:6379, redis-sentinel://a:26379/master-name
        #[arg(long, default_value = "memory")]
        store: String,
    },
}

/// What the exit code says besides success: that something was tried and failed, or that it could not be tried.
const FAILED: u8 = 1;
const CANNOT: u8 = 2;

fn main() -> ExitCode {
    match execute(arguments()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => FAILED.into(),
        // Whoever reads has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // What is wrong with a policy says so itself.
            let told = format!("{error:#}");
            let told = told.strip_prefix("error: ").unwrap_or(&told);
            let _ = writeln!(io::stderr(), "error: {told}");
            tell_of_variables(told);
            CANNOT.into()
        }
    }
}

/// The command; `run` is that of those who give none, also if they give its flags.
fn arguments() -> Command {
    let mut words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let is_flag_of_run = words
        .get(1)
        .and_then(|word| word.to_str())
        .is_some_and(|word| word.starts_with("--") && !matches!(word, "--help" | "--version"));
    if is_flag_of_run || words.len() == 1 {
        words.insert(1, "run".into());
    }
    let command = without_empty_variables(Arguments::command());
    let matches = command.try_get_matches_from(words);
    let parsed = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed
        .unwrap_or_else(|error| {
            let _ = error.print();
            if error.use_stderr() {
                tell_of_variables(&error.to_string());
            }
            std::process::exit(error.exit_code())
        })
        .command
}

/// An error that names a flag which nobody has written is about a variable of the environment.
fn tell_of_variables(error: &str) {
    let is_written = |flag: &str| {
        std::env::args()
            .any(|word| word.strip_prefix(flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    };
    let mut told = Vec::new();
    for command in Arguments::command().get_subcommands() {
        for argument in command.get_arguments() {
            let (Some(flag), Some(variable)) = (argument.get_long(), argument.get_env()) else { continue };
            let flag = format!("--{flag}");
            let is_meant = error.split(|c: char| !(c.is_alphanumeric() || c == '-')).any(|word| word == flag);
            let variable = variable.to_string_lossy().into_owned();
            let is_set = std::env::var(&variable).is_ok_and(|value| !value.trim().is_empty());
            if is_meant && is_set && !is_written(&flag) && !told.contains(&variable) {
                let _ = writeln!(io::stderr(), "note: {flag} was not given; the variable {variable} says it");
                told.push(variable);
            }
        }
    }
}

/// Variables of the environment that are empty say nothing: that is how many set those that they do not need.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    /// A variable cannot be taken away from an argument, but another can be put in its place.
    const NOT_THERE: &str = "TOLLGATE_NOTHING_IS_CALLED_THIS";
    let is_empty = |name: &std::ffi::OsStr| {
        std::env::var_os(name).is_some_and(|value| value.to_string_lossy().trim().is_empty())
    };
    command.mut_subcommands(|command| {
        command.mut_args(|argument| match argument.get_env().is_some_and(is_empty) {
            true => argument.env(NOT_THERE).hide_env(true),
            false => argument,
        })
    })
}

/// Waits for an answer of a running instance.
fn ask<T>(asked: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(asked)
}

fn execute(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Run(arguments) => run::run(&arguments).map(|()| true),
        Command::Status { instance, json } => {
            let status = ask(instance.status())?;
            let out = &mut io::stdout().lock();
            if json {
                writeln!(out, "{status:#}")?;
            } else {
                operate::lines(&status).iter().try_for_each(|line| writeln!(out, "{line}"))?;
            }
            Ok(true)
        }
        Command::Switch { words, all, instance } => {
            const MODES: [&str; 4] = ["enforce", "dark", "off", "policy"];
            let (limiter, mode) = match (words.as_slice(), all) {
                ([mode], true) => (None, mode.as_str()),
                ([limiter, mode], false) => (Some(limiter.as_str()), mode.as_str()),
                ([_], false) => {
                    bail!("which limiter, and which mode? tollgate switch LIMITER enforce|dark|off|policy")
                }
                _ => bail!("--all is for all of them: tollgate switch --all enforce|dark|off|policy"),
            };
            if !MODES.contains(&mode) {
                bail!(
                    "{mode:?} is no mode: there are enforce, dark, off, and policy for what the policy says"
                );
            }
            ask(instance.switch(limiter, mode))?;
            let whom = limiter.unwrap_or("all limiters");
            let what = if mode == "policy" { "as the policy says" } else { mode };
            writeln!(io::stdout(), "{whom}: {what}")?;
            // What was said before about one or all of them may hold it back.
            let status = ask(instance.status())?;
            let field = |known: &serde_json::Value, name: &str| {
                known.get(name).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
            };
            let is_by_hand = |known: &serde_json::Value| known.get("by_hand") == Some(&true.into());
            let limiters = status.get("limiters").and_then(serde_json::Value::as_array);
            for known in limiters.into_iter().flatten() {
                let (name, holds) = (field(known, "name"), field(known, "mode"));
                let is_meant = limiter.is_none_or(|limiter| limiter == name);
                if is_meant && mode != "policy" && holds != mode {
                    let (why, how) = match limiter {
                        None => ("by its own switch, or by the policy", format!("{name} {mode}")),
                        Some(_) => ("no limiter is stricter than all of them", format!("--all {mode}")),
                    };
                    writeln!(io::stdout(), "  {name} is {holds} all the same, {why}: tollgate switch {how}")?;
                }
                if limiter.is_none() && mode == "policy" && is_by_hand(known) {
                    let how = format!("tollgate switch {name} policy");
                    writeln!(io::stdout(), "  {name} is still {holds} by its own switch: {how}")?;
                }
            }
            if limiter.is_some() && mode == "policy" && is_by_hand(&status) {
                let (all, how) = (field(&status, "mode"), "tollgate switch --all policy");
                writeln!(io::stdout(), "  all limiters are switched to {all}: {how}")?;
            }
            Ok(true)
        }
        Command::Check { file, schema } => {
            let (out, err) = (&mut io::stdout().lock(), &mut io::stderr().lock());
            if schema {
                return check::print_schema(out).map(|()| true);
            }
            let file = match file.or_else(settings::policy_path) {
                Some(file) => file,
                None => bail!(
                    "there is no {} here: name the policy file, tollgate check FILE",
                    settings::USUAL_POLICY
                ),
            };
            check::run(&file, &mut io::stdin().lock(), out, err)
        }
        Command::Conformance { dir, store } => {
            let out = &mut io::stdout().lock();
            let report = match store.as_str() {
                "memory" => {
                    // Each case gets a store of its own for one key: a small one is enough, and quicker.
                    let new_store = || MemoryStore::builder().max_bytes(8 << 20).build();
                    conformance::run(&dir, &Target { new_store, in_micros: false }, out)?
                }
                address => {
                    RedisStore::check_address(address)?;
                    let runtime = tokio::runtime::Runtime::new()?;
                    let _context = runtime.enter();
                    // Keys that nobody else has. A server far away may take its time: here it is the answer that counts.
                    let store = RedisStore::builder(address)
                        .secret(rand::random::<[u8; 16]>())
                        .prefix(format!("tollgate-conformance-{:016x}", rand::random::<u64>()))
                        .deadline(Duration::from_secs(5))
                        .build()?;
                    let soon =
                        runtime.block_on(async { timeout(Duration::from_secs(1), store.ready()).await });
                    if soon.is_err() {
                        writeln!(io::stderr(), "waiting for {}, which does not answer yet", store.address())?;
                    }
                    block_on(store.ready()).with_context(|| format!("no store at {}", store.address()))?;
                    for warning in store.health().warnings {
                        writeln!(io::stderr(), "warning: {warning}")?;
                    }
                    let target = Target { new_store: || store.clone(), in_micros: true };
                    let report = conformance::run(&dir, &target, out);
                    block_on(store.close());
                    report?
                }
            };
            Ok(report.failed == 0)
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
