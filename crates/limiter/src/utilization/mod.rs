//! How busy this machine is, from whichever source the policy names.
//!
//! A [`Gauge`] is read on a timer, every few seconds, and what it says goes to
//! [`WorkerShedder::record_ppm`](crate::WorkerShedder::record_ppm). It speaks in parts per million: 1 000 000 is
//! fully busy, and more is legal.
//!
//! A gauge that does not know says `None`. Then 0 is recorded: what is not known is not too much, and what was shed comes back.
//!
//! ```
//! use tollgate::utilization::{Gauge, Source};
//! use tollgate::{Clock, ManualClock, WorkerShedder};
//!
//! let clock = ManualClock::default();
//! let shedder = WorkerShedder::builder(["test", "get", "post"]).clock(clock.clone()).build()?;
//! let gauge = Gauge::new(Source::InFlight { workers: 16 });
//!
//! let (in_flight, now) = (13, clock.now());
//! shedder.record_ppm(gauge.sample(in_flight, now).unwrap_or(0), Some(now));
//! # Ok::<_, tollgate::LimitError>(())
//! ```

mod cgroup;
mod cpu;
mod files;
mod latency;
mod pressure;
mod report;
mod text;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tollgate_core::worker::PPM;
pub use tollgate_core::worker::Source;
use tollgate_core::{Nanos, Timestamp};

use files::Files;
use latency::{Latencies, Seen};
use report::Report;
pub use text::{UtilizationError, parse};

/// Measures the utilization. One gauge is shared by all threads: requests only touch atomics, and the files of the
/// system are read by [`sample`](Self::sample) alone.
///
/// ```
/// use tollgate::Timestamp;
/// use tollgate::utilization::{Gauge, Source};
///
/// let gauge = Gauge::new(Source::InFlight { workers: 16 });
/// assert_eq!(gauge.sample(12, Timestamp::ZERO), Some(750_000));
/// assert_eq!(gauge.sample(20, Timestamp::ZERO), Some(1_250_000));
/// ```
#[derive(Debug)]
pub struct Gauge {
    source: Source,
    files: Files,
    latencies: Latencies,
    report: Report,
    last: Mutex<Last>,
    latest: AtomicU64,
}

/// No sample, or one that could not be known.
const UNKNOWN: u64 = u64::MAX;

/// What the last sample saw, where a sample is the difference to the one before.
#[derive(Debug, Default)]
struct Last {
    times: Option<cpu::Times>,
    group: Option<cgroup::Reading>,
    latencies: Seen,
}

impl Gauge {
    /// A gauge of this machine.
    ///
    /// ```
    /// # use tollgate::{Timestamp, utilization::{Gauge, Source}};
    /// let gauge = Gauge::new(Source::Cpu);
    /// assert_eq!(gauge.sample(0, Timestamp::ZERO), None); // nothing to compare with yet
    /// ```
    pub fn new(source: Source) -> Self {
        Self::of(source, Files::of_this_machine())
    }

    /// A gauge that reads its `/proc` and `/sys` below another root: for tests, and for a container that sees
    /// those of its host elsewhere.
    ///
    /// ```
    /// # use std::path::Path; use tollgate::utilization::{Gauge, Source};
    /// let gauge = Gauge::with_root(Source::Cpu, Path::new("/host"));
    /// # assert_eq!(gauge.source(), &Source::Cpu);
    /// ```
    pub fn with_root(source: Source, root: &Path) -> Self {
        Self::of(source, Files::below(root))
    }

    fn of(source: Source, files: Files) -> Self {
        let (latencies, report, last) = Default::default();
        Self { source, files, latencies, report, last, latest: AtomicU64::new(UNKNOWN) }
    }

    /// Where the utilization comes from.
    ///
    /// ```
    /// # use tollgate::utilization::{Gauge, Source};
    /// assert_eq!(Gauge::new(Source::Cpu).source(), &Source::Cpu);
    /// ```
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Takes the latency of a request that has ended. It does nothing unless the source is [`Source::Latency`].
    ///
    /// ```
    /// # use tollgate::{Nanos, Timestamp, utilization::{Gauge, Source}};
    /// let gauge = Gauge::new(Source::Latency { target: Nanos::new(100) });
    /// gauge.record_latency(Nanos::new(50));
    /// gauge.record_latency(Nanos::new(150));
    /// assert_eq!(gauge.sample(0, Timestamp::ZERO), Some(800_000)); // the average is on target
    /// assert_eq!(gauge.sample(0, Timestamp::ZERO), Some(0)); // no request since
    /// ```
    #[inline]
    pub fn record_latency(&self, latency: Nanos) {
        if let Source::Latency { .. } = self.source {
            self.latencies.record(latency);
        }
    }

    /// A request waits for its answer from here on.
    pub(crate) fn begins_to_wait(&self, now: Timestamp) {
        self.latencies.begin(now);
    }

    /// One that has begun to wait then waits no more.
    pub(crate) fn waits_no_more(&self, begun: Timestamp) {
        self.latencies.end(begun);
    }

    /// Whether it matters how long answers take.
    #[inline]
    pub(crate) fn is_of_latency(&self) -> bool {
        matches!(self.source, Source::Latency { .. })
    }

    /// Whether answers tell it anything: how long they took, or what their headers say.
    #[inline]
    pub(crate) fn is_told_by_answers(&self) -> bool {
        matches!(self.source, Source::Latency { .. } | Source::Reported { .. })
    }

    /// Takes the service's own word for its utilization. It does nothing unless the source is
    /// [`Source::Reported`].
    ///
    /// ```
    /// # use tollgate::{Timestamp, utilization::{Gauge, Source}};
    /// let gauge = Gauge::new(Source::Reported { stale_after: Source::STALE_AFTER });
    /// gauge.report_ppm(830_000, Timestamp::from_secs(100));
    /// assert_eq!(gauge.sample(0, Timestamp::from_secs(129)), Some(830_000));
    /// assert_eq!(gauge.sample(0, Timestamp::from_secs(130)), None);
    /// ```
    pub fn report_ppm(&self, ppm: u64, now: Timestamp) {
        if let Source::Reported { .. } = self.source {
            self.report.set(ppm, now);
        }
    }

    /// As [`report_ppm`](Self::report_ppm), from the text of a header: `0.83`, `83%` or `83 %`, as [`parse`] reads it.
    /// Anything else is false and changes nothing.
    ///
    /// ```
    /// # use tollgate::{Timestamp, utilization::{Gauge, Source}};
    /// let (gauge, now) = (Gauge::new(Source::Reported { stale_after: Source::STALE_AFTER }), Timestamp::ZERO);
    /// assert!(gauge.report_text(b"83 %", now));
    /// assert!(!gauge.report_text(b"83", now));
    /// assert!(!gauge.report_text(b"busy", now));
    /// assert_eq!(gauge.sample(0, now), Some(830_000));
    /// ```
    pub fn report_text(&self, text: &[u8], now: Timestamp) -> bool {
        parse(text).map(|ppm| self.report_ppm(ppm, now)).is_ok()
    }

    /// The utilization now, in parts per million. Call it on a timer, from one place: for most sources a sample is
    /// the difference to the one before.
    ///
    /// `None` means that it cannot be known: the first sample of a difference, a file that is missing or makes no
    /// sense, a counter that went backwards, a report that is stale. Record 0 then: what is not known is not too much, and
    /// what was shed comes back.
    ///
    /// ```
    /// # use tollgate::{Timestamp, utilization::{Gauge, Source}};
    /// let gauge = Gauge::new(Source::InFlight { workers: 200 });
    /// assert_eq!(gauge.sample(1, Timestamp::ZERO), Some(5_000));
    /// ```
    pub fn sample(&self, in_flight: u64, now: Timestamp) -> Option<u64> {
        let mut last = self.last.lock();
        let sample = self.measure(&mut last, in_flight, now);
        self.latest.store(sample.unwrap_or(UNKNOWN), Ordering::Relaxed);
        sample
    }

    /// What the last sample was: none if there was none yet, or if it could not be known.
    ///
    /// ```
    /// # use tollgate::{Timestamp, utilization::{Gauge, Source}};
    /// let gauge = Gauge::new(Source::InFlight { workers: 200 });
    /// assert_eq!(gauge.latest(), None);
    /// gauge.sample(1, Timestamp::ZERO);
    /// assert_eq!(gauge.latest(), Some(5_000));
    /// ```
    pub fn latest(&self) -> Option<u64> {
        Some(self.latest.load(Ordering::Relaxed)).filter(|ppm| *ppm != UNKNOWN)
    }

    fn measure(&self, last: &mut Last, in_flight: u64, now: Timestamp) -> Option<u64> {
        match self.source {
            Source::InFlight { workers } => ppm(in_flight.into(), workers.into()),
            Source::Cpu => {
                let times = cpu::read(&self.files).ok()?;
                let before = last.times.replace(times)?;
                times.since(before)
            }
            Source::Cgroup => {
                let group = cgroup::read(&self.files, now).ok()?;
                let utilization = last.group.as_ref().and_then(|before| group.since(before));
                last.group = Some(group);
                utilization
            }
            Source::Pressure => pressure::read(&self.files).ok(),
            Source::Latency { target } => self.latencies.sample(&mut last.latencies, target, now),
            Source::Reported { stale_after } => self.report.get(stale_after, now),
        }
    }

    /// Whether the source is there on this machine, or what is wrong and what would be right.
    ///
    /// ```
    /// # use std::path::Path; use tollgate::utilization::{Gauge, Source};
    /// let gauge = Gauge::with_root(Source::Pressure, Path::new("/nowhere"));
    /// let error = gauge.check().unwrap_err();
    /// assert!(error.starts_with("/proc/pressure/cpu is missing"));
    /// ```
    pub fn check(&self) -> Result<(), String> {
        match self.source {
            Source::InFlight { workers: 0 } => Err("workers is 0: it must be at least 1".to_owned()),
            Source::Latency { target: Nanos::ZERO } => {
                Err("target is 0ns: it must be at least 1ns".to_owned())
            }
            Source::Reported { stale_after: Nanos::ZERO } => {
                Err("stale_after is 0ns: it must be at least 1ns".to_owned())
            }
            Source::InFlight { .. } | Source::Latency { .. } | Source::Reported { .. } => Ok(()),
            Source::Cpu | Source::Cgroup | Source::Pressure if !self.files.are_there() => Err(
                "only Linux tells this; on this system use requests in flight, latency or a reported number"
                    .to_owned(),
            ),
            Source::Cpu => cpu::read(&self.files).map(drop),
            Source::Cgroup => cgroup::read(&self.files, Timestamp::ZERO).map(drop),
            Source::Pressure => pressure::read(&self.files).map(drop),
        }
    }
}

/// `part` of `whole`, in parts per million.
fn ppm(part: u128, whole: u128) -> Option<u64> {
    let ppm = part.saturating_mul(PPM.into()).checked_div(whole)?;
    Some(u64::try_from(ppm).unwrap_or(u64::MAX))
}
