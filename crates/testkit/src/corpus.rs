//! The committed inputs of the fuzzers.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Runs a fuzz harness on every committed input of its target. A failure names the file.
pub fn replay_corpus(target: &str, harness: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty(), "no inputs in {}", folder.display());
    files.sort();
    for file in files {
        let data = fs::read(&file).unwrap();
        let held = catch_unwind(AssertUnwindSafe(|| harness(&data)));
        assert!(held.is_ok(), "the input {} breaks a property of {target}", file.display());
    }
}
