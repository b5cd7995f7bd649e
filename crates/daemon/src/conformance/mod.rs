//! Replays test-vector files through a store: the same code that serves requests, step by step.
//!
//! | module | holds |
//! |---|---|
//! | [`mod@file`] | reading a vector file, and what can be wrong with one |
//! | [`algorithm`] | which algorithms are replayed, and how their parameters make a limit |
//! | [`replay`] | the cases of a file step by step, and the comparison |
//! | `subject` | what a step does to a store, and the answer |

pub mod algorithm;
pub mod file;
pub mod replay;
mod subject;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use tollgate_core::store::Store;

use self::algorithm::{Algorithm, Support};
use self::file::{Malformed, Problem, VectorFile};
use self::replay::Tally;

/// Mismatches of one file that are printed; further ones are counted.
const SHOWN: usize = 5;

/// How a run ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Steps that came out as expected.
    pub passed: usize,
    /// Steps that did not, and one for each file that could not be read.
    pub failed: usize,
    /// Files of algorithms that are not there yet.
    pub skipped: usize,
}

/// How one file ended.
enum Replayed {
    Tally(Tally),
    Skipped(&'static str),
}

/// What the files are replayed through.
#[derive(Clone, Copy, Debug)]
pub struct Target<F> {
    /// A store for one case.
    pub new_store: F,
    /// Whether the store counts real microseconds. Other stores count in whatever unit they are given.
    pub in_micros: bool,
}

impl<F> Target<F> {
    /// Nanoseconds of a unit of time in the files that this store can replay.
    fn tick(&self) -> u64 {
        if self.in_micros { 1000 } else { 1 }
    }
}

/// Replays every `*.json` file of `dir`, in the order of their names, each case against a store of its own.
/// Writes a line per file, what went wrong, and last `N passed, M failed`. That nothing was replayed is an error.
pub fn run<S: Store>(
    dir: &Path,
    target: &Target<impl Fn() -> S>,
    out: &mut impl Write,
) -> anyhow::Result<Report> {
    let files = vector_files(dir)?;
    let names = files.iter().map(|path| name_of(path).len());
    let width = names.max().unwrap_or(0);
    let mut report = Report::default();
    for path in &files {
        let name = name_of(path);
        match replay(path, target) {
            Ok(Replayed::Tally(tally)) => {
                report.passed += tally.passed;
                report.failed += tally.failed;
                write_tally(out, &name, width, &tally)?;
            }
            Ok(Replayed::Skipped(reason)) => {
                report.skipped += 1;
                writeln!(out, "{name:width$}  skipped: {reason}")?;
            }
            Err(malformed) => {
                report.failed += 1;
                writeln!(out, "{name:width$}  cannot be replayed")?;
                writeln!(out, "  {malformed}")?;
            }
        }
    }
    writeln!(out, "{} passed, {} failed", report.passed, report.failed)?;
    if report.passed + report.failed == 0 {
        bail!("nothing was replayed: {} skipped of {}", report.skipped, counted(files.len(), "file"));
    }
    Ok(report)
}

/// The `*.json` files directly in `dir`, by name.
fn vector_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let cannot_read = || format!("cannot read the folder {}", dir.display());
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).with_context(cannot_read)? {
        let path = entry.with_context(cannot_read)?.path();
        if path.extension().is_some_and(|extension| extension == "json") && !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        bail!("no vector files in {}: expected at least one *.json file there", dir.display());
    }
    files.sort();
    Ok(files)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn replay<S: Store>(path: &Path, target: &Target<impl Fn() -> S>) -> Result<Replayed, Malformed> {
    let name = name_of(path);
    let in_file = |problem: Problem| problem.in_file(&name);
    if !path.is_file() {
        let problem = std::io::Error::other("it is no regular file, or leads nowhere");
        return Err(in_file(problem.into()));
    }
    let file = VectorFile::read(path).map_err(in_file)?;
    if target.in_micros && !file.is_in_micros() {
        return Ok(Replayed::Skipped("this store counts microseconds, the file nanoseconds"));
    }
    match Algorithm::find(file.algorithm()).map_err(in_file)? {
        Support::Replayed(algorithm) => replay::file(&name, algorithm, &file, target).map(Replayed::Tally),
        Support::NotYet(reason) => Ok(Replayed::Skipped(reason)),
    }
}

fn write_tally(out: &mut impl Write, name: &str, width: usize, tally: &Tally) -> std::io::Result<()> {
    let Tally { cases, passed, failed, mismatches } = tally;
    let (cases, passed) = (counted(*cases, "case"), counted(*passed, "step"));
    write!(out, "{name:width$}  {cases}, {passed} passed")?;
    if *failed == 0 {
        return writeln!(out);
    }
    writeln!(out, ", {failed} failed")?;
    for mismatch in mismatches.iter().take(SHOWN) {
        writeln!(out, "  {name}, {mismatch}")?;
    }
    match mismatches.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => writeln!(out, "  and {more} more mismatches in {name}"),
    }
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}
