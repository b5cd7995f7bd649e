//! The file of known differences between Tollgate and nginx.
//!
//! Each difference stands below its reason:
//!
//! ```text
//! ## Why they differ.
//!
//! case/name [node, python]
//!     tollgate  what happened
//!     nginx     what happened
//! ```

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The reason of differences that nobody has explained yet.
const UNEXPLAINED: &str = "TODO: give the reason.";

/// Cases in order, each with what both did, by server.
pub(super) type Differences = BTreeMap<(String, String), (String, String)>;

pub(super) struct Expectations {
    path: PathBuf,
    /// The text above the first reason.
    preface: String,
    /// Reasons, in the order of the file.
    reasons: Vec<String>,
    by_case: BTreeMap<(String, String), (String, String, usize)>,
}

impl Expectations {
    pub(super) fn read(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/differential").join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut all = Self { path, preface: String::new(), reasons: Vec::new(), by_case: BTreeMap::new() };
        let (mut case, mut servers, mut tollgate) = (String::new(), Vec::new(), String::new());
        for line in text.lines() {
            if let Some(reason) = line.strip_prefix("## ") {
                all.reasons.push(reason.to_owned());
            } else if all.reasons.is_empty() {
                all.preface += &format!("{line}\n");
            } else if let Some(outcome) = line.strip_prefix("    tollgate  ") {
                tollgate = outcome.to_owned();
            } else if let Some(nginx) = line.strip_prefix("    nginx     ") {
                for server in &servers {
                    let expected = (tollgate.clone(), nginx.to_owned(), all.reasons.len() - 1);
                    let known = all.by_case.insert((case.clone(), String::clone(server)), expected);
                    assert!(known.is_none(), "{case} is listed twice");
                }
            } else if let Some((name, list)) = line.split_once(" [") {
                case = name.to_owned();
                servers = list.trim_end_matches(']').split(", ").map(str::to_owned).collect();
            } else {
                assert!(line.is_empty(), "this line says nothing: {line}");
            }
        }
        all
    }

    /// What is found and not listed, listed and not found, or listed without a reason.
    pub(super) fn compare(&self, found: &Differences) -> Vec<String> {
        let mut wrong = Vec::new();
        for ((case, server), (tollgate, nginx)) in found {
            match self.by_case.get(&(case.clone(), server.clone())) {
                Some((known, other, _)) if (known, other) == (tollgate, nginx) => {}
                Some((known, other, _)) => wrong.push(format!(
                    "{case} [{server}]: another difference than the one that is listed\n    tollgate  {tollgate}\n      \
                     listed  {known}\n    nginx     {nginx}\n      listed  {other}"
                )),
                None => wrong.push(format!(
                    "{case} [{server}]: not listed\n    tollgate  {tollgate}\n    nginx     {nginx}"
                )),
            }
        }
        for (case, server) in self.by_case.keys() {
            if !found.contains_key(&(case.clone(), server.clone())) {
                wrong.push(format!("{case} [{server}]: listed, but there is no difference"));
            }
        }
        wrong.extend(self.reasons.iter().filter(|reason| reason.contains("TODO")).cloned());
        wrong
    }

    /// Writes the file anew. Cases keep the reasons they had.
    pub(super) fn update(&self, found: &Differences) {
        let mut reasons = self.reasons.clone();
        reasons.retain(|reason| reason != UNEXPLAINED);
        reasons.push(UNEXPLAINED.to_owned());
        let mut text = self.preface.clone();
        for (number, reason) in reasons.iter().enumerate() {
            let mut cases: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
            for ((case, server), (tollgate, nginx)) in found {
                // A case whose other server is listed has that one's reason.
                let known = self.by_case.get(&(case.clone(), server.clone())).or_else(|| {
                    self.by_case.iter().find(|((name, _), _)| name == case).map(|(_, expected)| expected)
                });
                let known = known.map_or(UNEXPLAINED, |(_, _, reason)| self.reasons[*reason].as_str());
                if known == reason && (reason != UNEXPLAINED || number == reasons.len() - 1) {
                    cases.entry((case, tollgate, nginx)).or_default().push(server);
                }
            }
            if cases.is_empty() {
                continue;
            }
            let _ = write!(text, "## {reason}\n\n");
            for ((case, tollgate, nginx), servers) in cases {
                let servers = servers.join(", ");
                let _ =
                    write!(text, "{case} [{servers}]\n    tollgate  {tollgate}\n    nginx     {nginx}\n\n");
            }
        }
        std::fs::write(&self.path, text.trim_end().to_owned() + "\n").unwrap();
    }

    /// Fails on any difference that is not listed. With UPDATE_DIFFERENCES=1 the file is written instead.
    pub(super) fn check(&self, found: &Differences) {
        if std::env::var_os("UPDATE_DIFFERENCES").is_some() {
            self.update(found);
            return;
        }
        let wrong = self.compare(found);
        assert!(
            wrong.is_empty(),
            "{} differences from {}:\n{}\n\nIf they are meant, run `UPDATE_DIFFERENCES=1 cargo nextest run -p \
             tollgate-daemon --all-features differential::` and give each its reason.",
            wrong.len(),
            self.path.display(),
            wrong.join("\n")
        );
    }
}
