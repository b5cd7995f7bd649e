//! What a policy file is told, and where.

#![allow(
    dead_code,
    clippy::panic,
    reason = "not every test needs all of it, and a test that cannot set itself up fails"
)]

use tollgate_core::policy::{Mistakes, Policy};

pub(crate) fn mistakes(text: &str) -> Mistakes {
    match Policy::read(text) {
        Ok(_) => panic!("this should be wrong:\n{text}"),
        Err(mistakes) => mistakes,
    }
}

pub(crate) type Told<'t> = (usize, usize, &'t str, &'t str);

/// The errors of a text: line, column, a part of the message, a part of the help.
pub(crate) fn check(text: &str, expected: &[Told<'_>]) {
    let mistakes = mistakes(text);
    let told: Vec<_> = mistakes.errors().collect();
    let help = |told: &tollgate_core::policy::Mistake| told.help.clone().unwrap_or_default();
    let fits = told.len() == expected.len()
        && told.iter().zip(expected).all(|(told, (line, column, message, right))| {
            (told.line, told.column) == (*line, *column)
                && told.message.contains(message)
                && help(told).contains(right)
        });
    assert!(fits, "expected {expected:?} of\n{text}\ngot\n{mistakes}");
}

/// The warnings of a text that has no errors, on a server that tells `/a` from `/A`.
pub(crate) fn warned(text: &str, expected: &[Told<'_>]) {
    warned_as_written(&format!("{text}\npath_case: sensitive\n"), expected);
}

/// The warnings of a text that has no errors.
pub(crate) fn warned_as_written(text: &str, expected: &[Told<'_>]) {
    let warnings = Policy::read(text).unwrap_or_else(|mistakes| panic!("{text}\n{mistakes}")).1;
    let told: Vec<_> = warnings.warnings().collect();
    let fits = told.len() == expected.len()
        && told.iter().zip(expected).all(|(told, (line, column, message, right))| {
            (told.line, told.column) == (*line, *column)
                && told.message.contains(message)
                && told.help.as_deref().unwrap_or_default().contains(right)
        });
    assert!(fits, "expected {expected:?} of\n{text}\ngot\n{warnings}");
}
