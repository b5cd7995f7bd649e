//! The files in which Linux tells about itself.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// More than this is not read of any file: what matters stands at the beginning of those that are longer.
const MOST: u64 = 64 << 10;

/// The tree that holds `/proc` and `/sys`.
#[derive(Debug)]
pub(super) struct Files {
    /// None on a system that has no such files.
    root: Option<PathBuf>,
}

impl Files {
    pub(super) fn of_this_machine() -> Self {
        Self { root: cfg!(target_os = "linux").then(|| PathBuf::from("/")) }
    }

    pub(super) fn below(root: &Path) -> Self {
        Self { root: Some(root.to_owned()) }
    }

    pub(super) fn are_there(&self) -> bool {
        self.root.is_some()
    }

    /// The beginning of a file, in whole lines. `path` is absolute, as this machine sees it.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let root = self.root.as_ref().ok_or(ErrorKind::Unsupported)?;
        let path = path.as_ref();
        let mut bytes = Vec::new();
        File::open(root.join(path.strip_prefix("/").unwrap_or(path)))?.take(MOST).read_to_end(&mut bytes)?;
        if bytes.len() as u64 == MOST {
            // A number cut in half would be another number.
            let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
            bytes.truncate(whole);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Why a file says nothing, for people.
pub(super) fn unreadable(path: impl AsRef<Path>, error: &io::Error) -> String {
    let path = path.as_ref().display();
    match error.kind() {
        ErrorKind::NotFound => format!("{path} is missing"),
        _ => format!("{path} cannot be read ({error})"),
    }
}
