//! A policy's file, looked after by a thread of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use parking_lot::{Condvar, Mutex};
use tollgate_core::store::Store;

use super::running::PolicyError;
use super::{Limiter, Shared};

/// A file is written in several steps: this long after the first of them, or after it was closed, it is read.
const SETTLES: Duration = Duration::from_millis(100);
/// For so long after what was last written whoever has begun to write it may take to close it: where that is told, a minute, for
/// those who never do.
const WRITTEN: Duration = Duration::from_secs(if cfg!(target_os = "linux") { 60 } else { 2 });
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
    /// Whether somebody is still writing, as far as is known, and how often there was something to tell.
    is_written: bool,
    told: u64,
    stop: bool,
}

impl Bell {
    fn changed(&self, is_written: bool) {
        let mut rung = self.rung.lock();
        (rung.changed, rung.is_written, rung.told) = (true, is_written, rung.told.wrapping_add(1));
        drop(rung);
        self.heard.notify_all();
    }

    /// Waits for a change and until it has settled, but not for ever. False: it is over.
    fn wait(&self, at_most: Duration) -> bool {
        let mut rung = self.rung.lock();
        self.heard.wait_while_for(&mut rung, |rung| !rung.changed && !rung.stop, at_most);
        if rung.changed {
            while rung.is_written && !rung.stop {
                let told = rung.told;
                let goes_on = |rung: &mut Rung| rung.is_written && rung.told == told && !rung.stop;
                if self.heard.wait_while_for(&mut rung, goes_on, WRITTEN).timed_out() {
                    break;
                }
            }
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
    ear: Ear,
}

impl<S: Store + 'static> Watch<S> {
    fn run(mut self) {
        loop {
            // Whoever has dropped the limiter needs no policy.
            let Some(shared) = self.shared.upgrade() else { return };
            let mut told = self.listen(&shared);
            if self.load(&shared) {
                // It may name other files, which may have changed since they were read.
                told = self.listen(&shared);
                self.load(&shared);
            }
            drop(shared);
            if !self.ear.bell.wait(if told { AT_LEAST } else { UNTOLD }) {
                return;
            }
        }
    }

    /// Has changes told of the policy and of all files that it names.
    fn listen(&mut self, shared: &Shared<S>) -> bool {
        let mut files = vec![self.path.clone()];
        files.extend(shared.reloads.turn.lock().iter().flat_map(|tried| tried.files.iter().cloned()));
        self.ear.listen(&files)
    }

    /// Loads what has changed. False if nothing has.
    fn load(&self, shared: &Shared<S>) -> bool {
        let path = self.path.display();
        match catch_unwind(AssertUnwindSafe(|| shared.load_changed(&self.path))) {
            Ok(None) => return false,
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
        true
    }
}

/// Hears of changes from the system, and rings the bell for those that matter.
struct Ear {
    bell: Arc<Bell>,
    notifier: Option<RecommendedWatcher>,
    /// Folders from which changes are told, and which folder of that name it was.
    folders: BTreeMap<PathBuf, FolderId>,
    /// Names that matter, in whichever of the folders: of files, of links on the way to them, of the folders themselves.
    names: Arc<Mutex<BTreeSet<OsString>>>,
    /// Whether it was said that changes are not told.
    complained: bool,
}

impl Ear {
    fn new(bell: Arc<Bell>) -> Self {
        Self { bell, notifier: None, folders: BTreeMap::new(), names: Arc::default(), complained: false }
    }

    /// Has changes of files told, from the folders that they are in, and from those to which their links lead at this moment. A
    /// folder sees what a file does not: links that are swapped, files that are put in its place, that go and come back. False if
    /// not all of them can be told.
    fn listen(&mut self, files: &[PathBuf]) -> bool {
        let ways: BTreeSet<PathBuf> = files.iter().flat_map(|file| way_to(file)).collect();
        let wanted: BTreeSet<&Path> = ways.iter().filter_map(|step| step.parent()).collect();
        let names =
            ways.iter().map(PathBuf::as_path).chain(wanted.iter().copied()).filter_map(Path::file_name);
        *self.names.lock() = names.map(OsStr::to_owned).collect();
        if self.notifier.is_none() {
            let (bell, names) = (Arc::clone(&self.bell), Arc::clone(&self.names));
            let told = move |event: notify::Result<Event>| match event {
                Ok(event) if is_change(&event, &names.lock()) => bell.changed(is_written(&event)),
                Ok(_) => {}
                Err(_) => bell.changed(false),
            };
            match notify::recommended_watcher(told) {
                Ok(notifier) => self.notifier = Some(notifier),
                Err(error) => self.complain(files, &error),
            }
        }
        let Some(notifier) = &mut self.notifier else { return false };
        let there: BTreeMap<PathBuf, FolderId> =
            wanted.iter().filter_map(|folder| Some((folder.to_path_buf(), id(folder)?))).collect();
        for (gone, _) in self.folders.iter().filter(|(folder, id)| there.get(*folder) != Some(id)) {
            let _ = notifier.unwatch(gone);
        }
        self.folders.retain(|folder, id| there.get(folder) == Some(id));
        let mut failed = None;
        for (folder, id) in there {
            if self.folders.contains_key(&folder) {
                continue;
            }
            match notifier.watch(&folder, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.folders.insert(folder, id)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = &failed {
            self.complain(files, error);
        }
        wanted.iter().all(|folder| self.folders.contains_key(*folder))
    }

    /// Says once that files are looked at from time to time instead.
    fn complain(&mut self, files: &[PathBuf], error: &notify::Error) {
        if !std::mem::replace(&mut self.complained, true) {
            let path = files.first().map(|path| path.display());
            tracing::warn!(path = path.map(tracing::field::display), %error, "changes of the policy are not told; it is looked at every second");
        }
    }
}

/// The file itself, and each link on the way to it: in a ConfigMap of Kubernetes it is not the file that changes, but a link
/// to its folder.
fn way_to(file: &Path) -> BTreeSet<PathBuf> {
    /// As many links as the system follows.
    const LINKS: usize = 40;
    let mut way = BTreeSet::from([file.to_owned()]);
    let mut at = file.to_owned();
    for _ in 0..LINKS {
        // The first link from the root on decides where the rest of the path is.
        let links = at.ancestors().filter(|part| part.is_symlink());
        let Some(link) = links.last().map(Path::to_owned) else { break };
        let (Ok(target), Ok(rest)) = (link.read_link(), at.strip_prefix(&link)) else { break };
        let leads_to = link.parent().unwrap_or(Path::new("/")).join(target);
        at = if rest.as_os_str().is_empty() { leads_to } else { leads_to.join(rest) };
        way.insert(link);
    }
    way.insert(at);
    way
}

/// Whether something that matters may be different now. Reading is told, too, and we read; and so is all that others write
/// beside the policy, such as every line of an access log. Where no file is named, some changes were not told.
fn is_change(event: &Event, names: &BTreeSet<OsString>) -> bool {
    let is_read =
        matches!(&event.kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write));
    let matters = |path: &PathBuf| path.file_name().is_none_or(|name| names.contains(name));
    !is_read && (event.paths.is_empty() || event.need_rescan() || event.paths.iter().any(matters))
}

/// Whether more may follow before the file is closed: the first half of a policy may well be one.
fn is_written(event: &Event) -> bool {
    matches!(event.kind, EventKind::Modify(ModifyKind::Data(_)))
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
    /// or by links that lead elsewhere, as in a Kubernetes ConfigMap. The same holds for files that the policy names: keys for
    /// tokens, certificates of the gateway. What others write beside them is not looked at.
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
            ear: Ear::new(Arc::clone(&bell)),
        };
        let thread = std::thread::Builder::new().name("tollgate-policy".to_owned());
        let thread = thread.spawn(move || watch.run()).map_err(unwatched)?;
        Ok(Watcher { bell, thread: Some(thread) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]

    use std::fs;
    use std::io::Write;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name =
                format!("tollgate-ear-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().canonicalize().unwrap().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Whether it rings.
    fn rings(bell: &Bell) -> bool {
        let mut rung = bell.rung.lock();
        bell.heard.wait_while_for(&mut rung, |rung| !rung.changed, Duration::from_secs(20));
        std::mem::take(&mut rung.changed)
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_others_write_beside_a_policy_wakes_nobody() {
        let folder = Folder::new();
        let bell = Arc::<Bell>::default();
        fs::write(folder.file("policy.yaml"), "").unwrap();
        let mut ear = Ear::new(Arc::clone(&bell));
        assert!(ear.listen(&[folder.file("policy.yaml"), folder.file("server.pem")]));
        // The bell does not say how often it rang.
        let heard = Arc::new(AtomicU32::new(0));
        let (counted, names) = (Arc::clone(&heard), Arc::clone(&ear.names));
        let mut counter = notify::recommended_watcher(move |event: notify::Result<Event>| {
            counted.fetch_add(u32::from(is_change(&event.unwrap(), &names.lock())), Ordering::SeqCst);
        })
        .unwrap();
        counter.watch(&folder.0, RecursiveMode::NonRecursive).unwrap();
        let mut log = fs::File::create(folder.file("access.log")).unwrap();
        for line in 0..1000 {
            writeln!(log, "{line}").unwrap();
            fs::write(folder.file(&format!("{}.tmp", line % 10)), "x").unwrap();
        }
        fs::rename(folder.file("access.log"), folder.file("access.log.1")).unwrap();
        assert!(!bell.rung.lock().changed, "it rang for what does not matter");
        // What is done last is told last.
        fs::write(folder.file("server.pem"), "new").unwrap();
        assert!(rings(&bell));
        while heard.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(heard.load(Ordering::SeqCst) <= 3, "a file that is made, written and closed");
    }

    #[cfg(unix)]
    #[test]
    fn links_that_are_swapped_on_the_way_to_a_file_are_heard() {
        use std::os::unix::fs::symlink;
        let folder = Folder::new();
        let bell = Arc::<Bell>::default();
        for version in ["..1", "..2"] {
            fs::create_dir(folder.file(version)).unwrap();
            fs::write(folder.file(version).join("policy.yaml"), version).unwrap();
        }
        symlink("..1", folder.file("..data")).unwrap();
        symlink("..data/policy.yaml", folder.file("policy.yaml")).unwrap();
        let file = folder.file("policy.yaml");
        let mut ear = Ear::new(Arc::clone(&bell));
        assert!(ear.listen(std::slice::from_ref(&file)));
        let expected = ["..1/policy.yaml", "..data", "policy.yaml"].map(|name| folder.file(name));
        assert_eq!(way_to(&file), BTreeSet::from(expected));
        symlink("..2", folder.file("..data_tmp")).unwrap();
        fs::rename(folder.file("..data_tmp"), folder.file("..data")).unwrap();
        assert!(rings(&bell));
        // And then it is heard from where they lead now.
        assert!(ear.listen(std::slice::from_ref(&file)));
        bell.rung.lock().changed = false;
        fs::write(folder.file("..2").join("policy.yaml"), "other").unwrap();
        assert!(rings(&bell));
        symlink("loop", folder.file("loop")).unwrap();
        assert!(way_to(&folder.file("loop")).contains(&folder.file("loop")), "and no way is endless");
    }

    /// Found by a reader: the first half of a policy was put to work while the second was being written.
    #[test]
    fn who_writes_a_file_is_waited_for_until_it_is_closed() {
        use notify::event::{CreateKind, DataChange, RenameMode};
        let of = |kind: EventKind| is_written(&Event::new(kind));
        assert!(of(EventKind::Modify(ModifyKind::Data(DataChange::Any))));
        assert!(!of(EventKind::Access(AccessKind::Close(AccessMode::Write))));
        assert!(!of(EventKind::Modify(ModifyKind::Name(RenameMode::To))), "what takes its place is whole");
        assert!(!of(EventKind::Create(CreateKind::Any)), "so is a link");
        let bell = Bell::default();
        bell.changed(true);
        bell.changed(false);
        assert!(bell.wait(Duration::MAX), "it is heard once it is closed");
        // And who takes more than two seconds for it is waited for as well.
        #[cfg(target_os = "linux")]
        assert!(WRITTEN > Duration::from_secs(30));
    }
}
