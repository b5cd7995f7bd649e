//! Does the steps of a case to a store and compares every answer with what the file expects.

use std::fmt;

use tollgate_core::store::Store;

use super::Target;
use super::algorithm::Algorithm;
use super::file::{Case, Fields, Malformed, Problem, VectorFile};
use super::subject::{Answer, NoAnswer, Subject};

/// How the steps of a file came out.
#[derive(Debug, Default)]
pub struct Tally {
    /// Cases replayed.
    pub cases: usize,
    /// Steps that came out as expected.
    pub passed: usize,
    /// Steps that did not.
    pub failed: usize,
    /// What was wrong with those, field by field.
    pub mismatches: Vec<String>,
}

/// Replays all cases of a file, each against a store of its own.
pub fn file<S: Store>(
    name: &str,
    algorithm: Algorithm,
    file: &VectorFile,
    target: &Target<impl Fn() -> S>,
) -> Result<Tally, Malformed> {
    let mut tally = Tally::default();
    for (index, case) in file.cases().enumerate() {
        let case = case.map_err(|problem| problem.at(name, format_args!("case {}", index + 1)))?;
        replay(&mut tally, name, algorithm, &case, (target.new_store)(), target.tick())?;
    }
    Ok(tally)
}

fn replay<S: Store>(
    tally: &mut Tally,
    file: &str,
    algorithm: Algorithm,
    case: &Case<'_>,
    store: S,
    tick: u64,
) -> Result<(), Malformed> {
    let subject = Subject::new(algorithm, store, case.params, tick);
    let mut subject =
        subject.map_err(|problem| problem.at(file, format_args!("case {:?}, params", case.name)))?;
    tally.cases += 1;
    for (index, step) in case.steps.iter().enumerate() {
        let place = format!("case {:?}, step {}", case.name, index + 1);
        let malformed = |problem: Problem| problem.at(file, &place);
        let step = Fields::of("step", step).map_err(malformed)?;
        let expected = step.object("expected").map_err(malformed)?;
        let before = tally.mismatches.len();
        let mut differs = |what: fmt::Arguments<'_>| {
            tally.mismatches.push(format!("{place}: {what}; input {step}"));
        };
        match subject.step(step) {
            Ok(answer) => compare(expected, &answer, &mut differs),
            Err(NoAnswer::Malformed(problem)) => return Err(malformed(problem)),
            Err(other) => differs(format_args!("{other}")),
        }
        if tally.mismatches.len() == before {
            tally.passed += 1;
        } else {
            tally.failed += 1;
        }
    }
    if let Err(error) = subject.clear() {
        tally.mismatches.push(format!("case {:?}: its keys could not be removed: {error}", case.name));
        tally.failed += 1;
    }
    Ok(())
}

/// Every field that is expected must be there and equal. One that nobody knows is no reason to pass.
fn compare(expected: Fields<'_>, answer: &Answer, differs: &mut impl FnMut(fmt::Arguments<'_>)) {
    for (field, expected) in expected.iter() {
        match answer.iter().find(|(name, _)| name == field) {
            Some((_, got)) if got == expected => {}
            Some((_, got)) => differs(format_args!("{field}: expected {expected}, got {got}")),
            None => differs(format_args!("{field}: expected {expected}, but there is no such field")),
        }
    }
}
