//! A policy's file, looked after by a thread of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::{Condvar, Mutex};
use tollgate_core::store::Store;

use super::running::PolicyError;
use super::{Limiter, Shared};

/// A file is written in several steps: this long after the first of them it is read.
const SETTLES: Duration = Duration::from_millis(100);
/// How often the file is looked at, whatever the system tells: not every change is told (network drives, some mounts).
const AT_LEAST: Duration = Duration::from_secs(30);
/// The same where the system tells nothing: it has no more watches, or the folder is not there.
const UNTOLD: Duration = Duration::from_secs(1);

/// Loads a policy's file whenever it changes, until it is dropped. See [`Limiter::watch_file`].
#[must_use = "a watcher that is dropped watches no more"]
pub struct Watcher {
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watcher {
    /// When this is done, nothing is loaded any more.
    fn drop(&mut self) {
        self.bell.rung.lock().stop = true;
        self.bell.heard.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

/// Rings when something has changed. However often it rings, it is heard once.
#[derive(Default)]
struct Bell {
    rung: Mutex<Rung>,
    heard: Condvar,
}

#[derive(Default)]
struct Rung {
    changed: bool,
    stop: bool,
}

impl Bell {
    fn changed(&self) {
        self.rung.lock().changed = true;
        self.heard.notify_all();
    }

    /// Waits for a change and until it has settled, but not for ever. False: it is over.
    fn wait(&self, at_most: Duration) -> bool {
        let mut rung = self.rung.lock();
        self.heard.wait_while_for(&mut rung, |rung| !rung.changed && !rung.stop, at_most);
        if rung.changed {
            self.heard.wait_while_for(&mut rung, |rung| !rung.stop, SETTLES);
        }
        // What changes from here on is seen by the next look.
        rung.changed = false;
        !rung.stop
    }
}

/// What does the watching.
struct Watch<S: Store + 'static> {
    shared: Weak<Shared<S>>,
    path: PathBuf,
    bell: Arc<Bell>,
    notifier: Option<RecommendedWatcher>,
    /// Folders from which changes are told, and which folder of that name it was.
    folders: BTreeMap<PathBuf, FolderId>,
    /// Whether it was said that changes are not told.
    complained: bool,
}

impl<S: Store + 'static> Watch<S> {
    fn run(mut self) {
        loop {
            let told = self.listen();
            // Whoever has dropped the limiter needs no policy.
            let Some(shared) = self.shared.upgrade() else { return };
            self.load(&shared);
            drop(shared);
            if !self.bell.wait(if told { AT_LEAST } else { UNTOLD }) {
                return;
            }
        }
    }

    /// Has changes told from the folder of the file, and from that to which its links lead at this moment. A folder sees what a
    /// file does not: links that are swapped, files that are put in its place, that go and come back.
    fn listen(&mut self) -> bool {
        if self.notifier.is_none() {
            let bell = Arc::clone(&self.bell);
            let told = move |event: notify::Result<Event>| {
                if event.map_or(true, |event| is_change(&event.kind)) {
                    bell.changed();
                }
            };
            match notify::recommended_watcher(told) {
                Ok(notifier) => self.notifier = Some(notifier),
                Err(error) => self.complain(&error),
            }
        }
        let Some(notifier) = &mut self.notifier else { return false };
        let of = |file: &Path| file.parent().map(Path::to_owned);
        let folders = [of(&self.path), self.path.canonicalize().ok().and_then(|file| of(&file))];
        let folders: BTreeMap<PathBuf, FolderId> =
            folders.into_iter().flatten().filter_map(|folder| Some((folder.clone(), id(&folder)?))).collect();
        for (gone, _) in self.folders.iter().filter(|(folder, id)| folders.get(*folder) != Some(id)) {
            let _ = notifier.unwatch(gone);
        }
        self.folders.retain(|folder, id| folders.get(folder) == Some(id));
        let mut failed = None;
        for (folder, id) in folders {
            if self.folders.contains_key(&folder) {
                continue;
            }
            match notifier.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.folders.insert(folder, id)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = &failed {
            self.complain(error);
        }
        failed.is_none() && self.path.parent().is_some_and(|folder| self.folders.contains_key(folder))
    }

    /// Says once that the file is looked at from time to time instead.
    fn complain(&mut self, error: &notify::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "changes of the policy are not told; it is looked at every second");
        }
    }

    fn load(&self, shared: &Shared<S>) {
        let path = self.path.display();
        match catch_unwind(AssertUnwindSafe(|| shared.load_changed(&self.path))) {
            Ok(None) => {}
            Ok(Some(Ok(unwise))) if unwise.is_empty() => tracing::info!(%path, "the policy was loaded"),
            Ok(Some(Ok(unwise))) => tracing::warn!(%path, "the policy was loaded, and is unwise:\n{unwise}"),
            Ok(Some(Err(error))) => {
                tracing::error!(%path, "the policy was not loaded, the one before it goes on: {error}");
            }
            Err(_) => {
                let error = PolicyError::Unreadable {
                    path: path.to_string(),
                    error: std::io::Error::other("reading it panicked: this is a bug, please report it"),
                };
                shared.reloads.failed(&error);
                tracing::error!(%path, "the policy was not loaded, the one before it goes on: {error}");
            }
        }
    }
}

/// Whether something may be different now. Reading is told, too, and we read.
fn is_change(kind: &EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write))
}

/// Tells a folder from another one that was put in its place. Numbers are used again, so its birthday belongs to it.
type FolderId = (u64, Option<SystemTime>);

fn id(folder: &Path) -> Option<FolderId> {
    let about = folder.metadata().ok()?;
    #[cfg(unix)]
    let number = std::os::unix::fs::MetadataExt::ino(&about);
    #[cfg(not(unix))]
    let number = 0;
    Some((number, about.created().ok()))
}

impl<S: Store + 'static> Limiter<S> {
    /// Loads a file now, if it is not the one at work, and whenever it changes: in place, by another that is put in its place,
    /// or by links that lead elsewhere, as in a Kubernetes ConfigMap. It also sees keys for tokens that change; at once where
    /// they are beside the policy, else within half a minute.
    ///
    /// A file that is of no use, half written or gone changes nothing; it is logged by `tracing`, counted in
    /// [`LimiterReport::reloads`], and loaded when it is whole. All that is done by a thread of its own, until the [`Watcher`] or
    /// the last limiter is dropped.
    ///
    /// ```no_run
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::load("/etc/tollgate/policy.yaml")?;
    /// let _watcher = limiter.watch_file("/etc/tollgate/policy.yaml")?;
    /// # Ok::<_, tollgate::PolicyError>(())
    /// ```
    ///
    /// [`LimiterReport::reloads`]: crate::LimiterReport::reloads
    pub fn watch_file(&self, path: impl AsRef<Path>) -> Result<Watcher, PolicyError> {
        let path = path.as_ref();
        let unwatched = |error| PolicyError::Unwatched { path: path.display().to_string(), error };
        let bell = Arc::<Bell>::default();
        let watch = Watch {
            shared: Arc::downgrade(&self.shared),
            path: std::path::absolute(path).map_err(unwatched)?,
            bell: Arc::clone(&bell),
            notifier: None,
            folders: BTreeMap::new(),
            complained: false,
        };
        let thread = std::thread::Builder::new().name("tollgate-policy".to_owned());
        let thread = thread.spawn(move || watch.run()).map_err(unwatched)?;
        Ok(Watcher { bell, thread: Some(thread) })
    }
}
