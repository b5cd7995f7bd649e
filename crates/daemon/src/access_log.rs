//! The access log: a line of JSON for every request, written by a thread of its own. Nobody waits for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use serde_json::{Map, Value};
use tollgate::{Clock, SystemClock, WatchedDecisions};
use tollgate_core::policy::CallerName;

use crate::caller_labels::CallerLabels;
use crate::seldom::Seldom;

/// Lines that may wait to be written.
const WAITING: usize = 16_384;

/// One request.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) method: String,
    /// Without the query, which may hold secrets.
    pub(crate) path: String,
    pub(crate) client: Option<IpAddr>,
    pub(crate) caller: Option<CallerName>,
    pub(crate) status: u16,
    pub(crate) bytes: u64,
    pub(crate) took: Duration,
    /// Whether the answer came to its end.
    pub(crate) is_whole: bool,
    pub(crate) verdict: &'static str,
    pub(crate) limiter: Option<String>,
    pub(crate) class: Option<Arc<str>>,
    pub(crate) plan: Option<Arc<str>>,
    pub(crate) upstream: Option<Arc<str>>,
    pub(crate) server: Option<String>,
    pub(crate) degraded: bool,
    /// What dark limiters and candidates have decided.
    pub(crate) watched: Option<WatchedDecisions>,
    pub(crate) error: Option<String>,
}

impl Entry {
    /// Whether it is one of those that were not answered well.
    fn is_bad(&self) -> bool {
        let would_be_rejected = || self.watched.as_ref().is_some_and(|it| !it.would_reject().is_empty());
        self.limiter.is_some()
            || self.status >= 500
            || self.error.is_some()
            || !self.is_whole
            || would_be_rejected()
    }

    /// As a line. Callers and clients appear only as their labels.
    fn line(&self, written_at: Duration, labels: &CallerLabels) -> String {
        let text = |text: &str| Value::from(text);
        let micros = u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX);
        let watched = self.watched.as_ref().map(WatchedDecisions::would_reject).unwrap_or_default();
        let would_reject = |is_candidate: bool| {
            let names = watched.iter().filter(|by| by.is_candidate == is_candidate);
            let names: Vec<Value> = names.map(|by| text(&by.limiter)).collect();
            Some(Value::from(names)).filter(|names| *names != Value::Array(Vec::new()))
        };
        let when = humantime::format_rfc3339_millis(std::time::UNIX_EPOCH + written_at);
        let fields = [
            ("time", Some(text(&when.to_string()))),
            ("client", self.client.map(|client| labels.address(client).into())),
            ("caller", self.caller.as_ref().map(|caller| labels.caller(caller).into())),
            ("method", Some(text(&self.method))),
            ("path", Some(text(&self.path))),
            ("status", Some(Value::from(self.status))),
            ("bytes", Some(Value::from(self.bytes))),
            ("ms", Some(Value::from(micros as f64 / 1000.0))),
            ("verdict", Some(text(self.verdict)).filter(|_| !self.verdict.is_empty())),
            ("limiter", self.limiter.as_deref().map(text)),
            ("would_reject", would_reject(false)),
            ("candidate_would_reject", would_reject(true)),
            ("class", self.class.as_deref().map(text)),
            ("plan", self.plan.as_deref().map(text)),
            ("upstream", self.upstream.as_deref().map(text)),
            ("server", self.server.as_deref().map(text)),
            ("degraded", self.degraded.then(|| Value::from(true))),
            ("broken_off", (!self.is_whole).then(|| Value::from(true))),
            ("error", self.error.as_deref().map(text)),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Value::from(fields.collect::<Map<_, _>>()).to_string()
    }
}

/// Where entries go.
#[derive(Clone, Debug)]
pub(crate) struct AccessLog {
    entries: SyncSender<Line>,
    only_bad: bool,
    lost: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Line {
    Of(Box<Entry>),
    /// Everything before it is to be written, and then it is to be told.
    Flush(SyncSender<()>),
}

impl AccessLog {
    /// Writes to `stdout` or to a file, which is opened anew when somebody has moved it away.
    pub(crate) fn open(to: &str, only_bad: bool, labels: CallerLabels) -> io::Result<Self> {
        let output = Output::open(to)?;
        let (entries, waiting) = sync_channel(WAITING);
        let lost = Arc::<AtomicU64>::default();
        let (lost_by_writer, where_to) = (Arc::clone(&lost), to.to_owned());
        let writer = Writer { output, is_flushed: true, lost: lost_by_writer, where_to, labels };
        std::thread::Builder::new().name("access-log".to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Self { entries, only_bad, lost })
    }

    pub(crate) fn write(&self, entry: Box<Entry>) {
        if self.only_bad && !entry.is_bad() {
            return;
        }
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.entries.try_send(Line::Of(entry))
        {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were lost, because nobody took them in time or they could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Waits until all is written, but not for long.
    pub(crate) fn flush(&self) {
        let (told, done) = sync_channel(1);
        if self.entries.send(Line::Flush(told)).is_ok() {
            let _ = done.recv_timeout(Duration::from_secs(2));
        }
    }
}

enum Output {
    Stdout(io::Stdout),
    /// And whether what was written last may lack its end.
    File {
        path: String,
        file: BufWriter<File>,
        is_torn: bool,
    },
}

impl Output {
    fn open(to: &str) -> io::Result<Self> {
        Ok(match to {
            "stdout" => Self::Stdout(io::stdout()),
            path => {
                let file = BufWriter::new(OpenOptions::new().create(true).append(true).open(path)?);
                Self::File { path: path.to_owned(), file, is_torn: false }
            }
        })
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.write_all(text),
            Self::File { file, is_torn, .. } => {
                if *is_torn {
                    file.write_all(b"\n")?;
                    *is_torn = false;
                }
                file.write_all(text)
            }
        }
    }

    /// Forgets what could not be written, so that it is not tried for ever: so many lines.
    fn give_up(&mut self) -> u64 {
        let Self::File { file, is_torn, .. } = self else { return 0 };
        let left = file.buffer();
        let ends = left.iter().filter(|byte| **byte == b'\n').count();
        // Of the first there may be a part, which gets its end later. One of which nothing else is left is not lost.
        let lines = ends - usize::from(left.starts_with(b"\n"));
        *is_torn |= !left.is_empty();
        match file.get_ref().try_clone() {
            Ok(again) => {
                let _ = std::mem::replace(file, BufWriter::new(again)).into_parts();
                lines as u64
            }
            Err(_) => 0,
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File { path, file, .. } => {
                file.flush()?;
                // Whoever rotates logs moves the file away, and perhaps puts a new one in its place.
                let is_same = |here: fs::Metadata| {
                    file.get_ref()
                        .metadata()
                        .is_ok_and(|open| (open.dev(), open.ino()) == (here.dev(), here.ino()))
                };
                if !fs::metadata(path.as_str()).is_ok_and(is_same) {
                    *file = BufWriter::new(OpenOptions::new().create(true).append(true).open(path.as_str())?);
                }
                Ok(())
            }
        }
    }
}

/// Who writes lines.
struct Writer {
    output: Output,
    is_flushed: bool,
    lost: Arc<AtomicU64>,
    where_to: String,
    labels: CallerLabels,
}

impl Writer {
    fn run(mut self, waiting: &Receiver<Line>) {
        let clock = SystemClock;
        loop {
            let line = match waiting.try_recv() {
                Ok(line) => Ok(line),
                Err(_) => {
                    // Nobody is waiting: now is the time to have it all where it belongs.
                    if !self.is_flushed {
                        self.flush();
                    }
                    waiting.recv_timeout(Duration::from_secs(1))
                }
            };
            match line {
                Ok(Line::Of(entry)) => {
                    let mut text = entry.line(Duration::from_nanos(clock.now().as_nanos()), &self.labels);
                    text.push('\n');
                    self.is_flushed = false;
                    if let Err(error) = self.output.write(text.as_bytes()) {
                        self.loses(1, &error);
                    }
                }
                Ok(Line::Flush(told)) => {
                    self.flush();
                    let _ = told.send(());
                }
                Err(RecvTimeoutError::Timeout) => self.flush(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn flush(&mut self) {
        self.is_flushed = true;
        if let Err(error) = self.output.flush() {
            self.loses(0, &error);
        }
    }

    /// A disk that is full takes no lines: so many, and those that waited before them. Nobody is refused for it, but it is told.
    fn loses(&mut self, lines: u64, error: &io::Error) {
        static TOLD: Seldom = Seldom::new();
        self.lost.fetch_add(lines + self.output.give_up(), Ordering::Relaxed);
        if TOLD.is_due() {
            let lost = self.lost.load(Ordering::Relaxed);
            tracing::error!(lost, "the access log cannot be written to {}: {error}", self.where_to);
        }
    }
}
