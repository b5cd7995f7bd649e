//! Files of a test's own.

#![allow(dead_code)] // every test binary uses a part of this

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder that goes when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("tollgate-folder-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file in place.
    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.file(name), text).unwrap();
        self.file(name)
    }

    /// Writes a file beside, and puts it in its place.
    pub(crate) fn replace(&self, name: &str, text: impl AsRef<[u8]>) {
        let beside = self.write(&format!(".{name}.new"), text);
        std::fs::rename(beside, self.file(name)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
