//! Policies in files: read with care, and loaded the same way at start and ever after.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_core::Timestamp;
use tollgate_core::policy::{Mistakes, Policy};
use tollgate_core::store::Store;

use super::counts::ReloadReport;
use super::running::{PolicyError, Running, Vouching};
use super::{Limiter, Shared};

/// Bytes of a policy: no more are read, whatever there is.
const LARGEST: u64 = 4 << 20;

/// A policy that was read from a file, to be looked at before it is put to work.
///
/// ```
/// use tollgate::{Limiter, PolicyFile};
///
/// # let path = std::env::temp_dir().join(format!("tollgate-doc-{}.yaml", std::process::id()));
/// # std::fs::write(&path, "limiters: { all: { rate: 100/s, per: global } }").unwrap();
/// let file = PolicyFile::read(&path)?;
/// for mistake in file.warnings().warnings() {
///     eprintln!("line {}: {}", mistake.line, mistake.message);
/// }
/// assert_eq!(file.policy().limiters().len(), 1);
/// let limiter = Limiter::builder().read_file(file).build()?;
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<_, tollgate::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicyFile {
    pub(super) policy: Policy,
    pub(super) warnings: Mistakes,
    pub(super) tried: Tried,
}

impl PolicyFile {
    /// Reads a file. Everything that is wrong with it is told at once.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, PolicyError> {
        let (tried, read) = look(path.as_ref());
        let (policy, warnings) = read?;
        Ok(Self { policy, warnings, tried })
    }

    /// What can be used of a file that is of no use as a policy; see [`Policy::salvage`].
    pub fn salvage(path: impl AsRef<Path>) -> Option<Policy> {
        Policy::salvage(&contents(path.as_ref(), LARGEST).and_then(text).ok()?)
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The same file with another policy, such as one that the command line has changed.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// What is unwise about it.
    pub fn warnings(&self) -> &Mistakes {
        &self.warnings
    }

    /// Where it is, from the root on.
    pub fn path(&self) -> &Path {
        &self.tried.path
    }
}

/// A file as it was when somebody last tried to load it, whether or not it was of use.
#[derive(Clone, Debug)]
#[cfg_attr(
    not(feature = "watch"),
    allow(dead_code, reason = "only who watches a file asks whether it is another")
)]
pub(super) struct Tried {
    path: PathBuf,
    text: u64,
    /// Files that the policy names: keys, certificates. They change while the policy does not.
    pub(super) files: Vec<PathBuf>,
    marks: u64,
}

impl Tried {
    /// Whether there is nothing in the file that was not tried already.
    #[cfg(feature = "watch")]
    fn is_all_there_is(&self, path: &Path) -> bool {
        self.path == path && self.text == mark(&contents(path, LARGEST)) && self.marks == marks(&self.files)
    }
}

/// Where files are that a policy names: beside its own, if it has one.
pub(super) fn folder(tried: Option<&Tried>) -> &Path {
    tried.and_then(|tried| tried.path.parent()).unwrap_or(Path::new(""))
}

/// Reads a policy.
pub(super) fn look(path: &Path) -> (Tried, Result<(Policy, Mistakes), PolicyError>) {
    let shown = path.display().to_string();
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let bytes = contents(&path, LARGEST);
    let mut tried = Tried { text: mark(&bytes), files: Vec::new(), marks: marks(&[]), path };
    let read = bytes.and_then(text).map_err(|error| PolicyError::Unreadable { path: shown.clone(), error });
    let read = read.and_then(|text| match Policy::read(&text) {
        Ok((policy, unwise)) => Ok((policy, unwise.in_file(shown))),
        Err(mistakes) => Err(mistakes.in_file(shown).into()),
    });
    if let Ok((policy, _)) = &read {
        tried.files = policy.files().map(|file| folder(Some(&tried)).join(file)).collect();
        tried.marks = marks(&tried.files);
    }
    (tried, read)
}

/// What is in a file, if it is one and not larger than it may be.
pub(super) fn contents(path: &Path, largest: u64) -> io::Result<Vec<u8>> {
    let about = fs::metadata(path)?;
    if about.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a folder"));
    }
    if !about.is_file() {
        // Whoever opens a pipe waits until somebody writes to it.
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe or a device, not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(largest + 1).read_to_end(&mut bytes)?;
    let read = bytes.len() as u64;
    if read > largest {
        let message = format!("it has {} bytes, and may have up to {largest}", about.len().max(read));
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(bytes)
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes().iter().take(valid).filter(|byte| **byte == b'\n').count() + 1;
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not UTF-8 text"))
    })
}

/// Tells contents apart, and reasons why there are none.
fn mark(contents: &io::Result<Vec<u8>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    match contents {
        Ok(bytes) => bytes.hash(&mut hasher),
        Err(error) => (error.kind(), error.to_string()).hash(&mut hasher),
    }
    hasher.finish()
}

fn marks(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.iter().for_each(|file| mark(&contents(file, LARGEST)).hash(&mut hasher));
    hasher.finish()
}

/// Reloads, one after the other, and what became of them.
#[derive(Debug)]
pub(super) struct Reloads {
    /// Held by whoever puts a policy to work: the file that was tried last.
    pub(super) turn: Mutex<Option<Tried>>,
    report: Mutex<ReloadReport>,
}

impl Reloads {
    pub(super) fn new(tried: Option<Tried>, now: Timestamp) -> Self {
        let report = ReloadReport { loaded_at: now, ..ReloadReport::default() };
        Self { turn: Mutex::new(tried), report: Mutex::new(report) }
    }

    pub(super) fn report(&self) -> ReloadReport {
        self.report.lock().clone()
    }

    pub(super) fn failed(&self, error: &PolicyError) {
        let mut report = self.report.lock();
        report.failed += 1;
        report.error = Some(error.to_string());
    }

    fn succeeded(&self, now: Timestamp) {
        let mut report = self.report.lock();
        report.succeeded += 1;
        report.loaded_at = now;
        report.error = None;
    }
}

impl<S: Store + 'static> Shared<S> {
    /// Counts what became of a reload.
    pub(super) fn counted<T>(&self, loaded: Result<T, PolicyError>) -> Result<T, PolicyError> {
        match &loaded {
            Ok(_) => self.reloads.succeeded(self.clock.now()),
            Err(error) => self.reloads.failed(error),
        }
        loaded
    }

    /// Has all decisions that begin from now on made by a policy. To be called by one at a time.
    pub(super) fn put_to_work(&self, policy: Policy, tried: Option<&Tried>) -> Result<(), PolicyError> {
        let vouching = match &*self.tokens.load() {
            Some(_) => Vouching::nobody(),
            None => Vouching::by(&policy, folder(tried))?,
        };
        let before = self.running.load_full();
        let running =
            Running::start(policy, vouching, &self.store, &self.lasting, Some(&before), &self.clock)?;
        // Whoever works by the same policy has to be able to.
        let companion = self.companion.lock().clone();
        let follows = match &companion {
            Some(companion) => {
                companion.prepare(&running.policy, folder(tried)).map_err(PolicyError::Companion)?
            }
            None => Box::new(|| ()),
        };
        running.supersede(&before, &self.store);
        self.running.store(Arc::new(running));
        self.lasting.tell(&self.running);
        follows();
        Ok(())
    }

    fn load_file(&self, turn: &mut Option<Tried>, path: &Path) -> Result<Mistakes, PolicyError> {
        let (tried, read) = look(path);
        let tried = turn.insert(tried);
        self.counted(read.and_then(|(policy, unwise)| {
            self.put_to_work(policy, Some(tried))?;
            Ok(unwise)
        }))
    }

    /// Loads a file, unless it is as it was.
    #[cfg(feature = "watch")]
    pub(super) fn load_changed(&self, path: &Path) -> Option<Result<Mistakes, PolicyError>> {
        let mut turn = self.reloads.turn.lock();
        let known = turn.as_ref().is_some_and(|tried| tried.is_all_there_is(path));
        (!known).then(|| self.load_file(&mut turn, path))
    }
}

impl<S: Store + 'static> Limiter<S> {
    /// As [`reload`](Self::reload), with the policy of a file and with its keys, the same way as at start. What is unwise about
    /// it comes back. A file that is of no use changes nothing, and is counted ([`LimiterReport::reloads`]).
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// # let path = std::env::temp_dir().join(format!("tollgate-doc-reload-{}.yaml", std::process::id()));
    /// std::fs::write(&path, "limiters: { all: { rate: 100/s, per: global } }").unwrap();
    /// let limiter = Limiter::load(&path)?;
    /// std::fs::write(&path, "limiters: { all: { rat").unwrap();
    /// assert!(limiter.reload_file(&path).is_err());
    /// std::fs::write(&path, "limiters: { all: { rate: 200/s, per: global } }").unwrap();
    /// assert!(limiter.reload_file(&path)?.is_empty(), "nothing is unwise");
    /// let reloads = limiter.report().reloads;
    /// assert_eq!((reloads.succeeded, reloads.failed, reloads.error), (1, 1, None));
    /// # std::fs::remove_file(path).unwrap();
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    ///
    /// [`LimiterReport::reloads`]: crate::LimiterReport::reloads
    pub fn reload_file(&self, path: impl AsRef<Path>) -> Result<Mistakes, PolicyError> {
        self.shared.load_file(&mut self.shared.reloads.turn.lock(), path.as_ref())
    }
}
