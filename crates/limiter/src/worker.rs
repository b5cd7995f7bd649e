//! The worker utilization load shedder: samples of utilization in, one decision per request out.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use thiserror::Error;
use tollgate_core::worker::{Fraction, Pressure, Worker, WorkerSettings};
use tollgate_core::{LimitError, Timestamp};

use crate::clock::{AnyClock, Clock};

/// Sheds load, class by class, while this box is in trouble.
///
/// Feed it the utilization on a timer, every few seconds; ask it for every request.
///
/// ```
/// use tollgate::{ManualClock, WorkerShedder};
/// use std::time::Duration;
///
/// let clock = ManualClock::default();
/// let shedder = WorkerShedder::builder(["test", "get", "post"]).clock(clock.clone()).build()?;
/// let get = shedder.class("get").unwrap();
///
/// for _ in 0..=68 {
///     shedder.record_percent(100); // full overload: 28 s of grace, then 40 s for each class
///     clock.advance(Duration::from_secs(1));
/// }
/// assert!(shedder.admit(shedder.class("test").unwrap()).is_err());
/// assert!(shedder.admit(get).is_ok());
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct WorkerShedder {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    worker: Worker,
    classes: Vec<String>,
    clock: AnyClock,
    pressure: Mutex<Pressure>,
    /// The amount of `pressure`, for requests: they read and do not wait.
    amount: AtomicI64,
    draws: AtomicU64,
    random: RandomState,
}

/// How important a request is: 0 is shed first. Beyond the classes that can be shed, a request never is.
///
/// ```
/// # use tollgate::{Class, WorkerShedder};
/// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
/// assert_eq!(shedder.class("get"), Some(Class(1)));
/// assert!(Class(1) < Class::CRITICAL);
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Class(pub u32);

impl Class {
    /// Never shed.
    pub const CRITICAL: Self = Self(u32::MAX);
}

/// The request is shed: this box is in trouble. Answer 503 and let it come back later.
///
/// ```
/// # use std::time::Duration; use tollgate::{Class, ManualClock, WorkerShedder};
/// let clock = ManualClock::default();
/// let shedder = WorkerShedder::builder(["all"]).clock(clock.clone()).build()?;
/// for _ in 0..200 {
///     shedder.record_percent(100);
///     clock.advance(Duration::from_secs(1));
/// }
/// let shed = shedder.admit(Class(0)).unwrap_err();
/// assert_eq!(shed.drop_probability.num, shed.drop_probability.den);
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("shed: this worker is overloaded and drops {}/{} of this class", drop_probability.num, drop_probability.den)]
pub struct Shed {
    /// The share of the class that is dropped at this moment.
    pub drop_probability: Fraction,
}

/// Builds a [`WorkerShedder`].
///
/// ```
/// # use tollgate::WorkerShedder;
/// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
/// # assert!(shedder.class("post").is_some());
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct WorkerShedderBuilder {
    settings: WorkerSettings,
    classes: Vec<String>,
    clock: AnyClock,
    before: Option<WorkerShedder>,
}

impl WorkerShedder {
    /// A shedder for `classes`, least important first; whatever is not among them is never shed.
    ///
    /// ```
    /// # use tollgate::WorkerShedder;
    /// let shedder = WorkerShedder::builder(["crawlers", "test", "everyone"]).build()?;
    /// # assert!(shedder.class("everyone").is_some());
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn builder<S: Into<String>>(classes: impl IntoIterator<Item = S>) -> WorkerShedderBuilder {
        WorkerShedderBuilder {
            settings: WorkerSettings::default(),
            classes: classes.into_iter().map(Into::into).collect(),
            clock: AnyClock::default(),
            before: None,
        }
    }

    /// The class of this name.
    ///
    /// ```
    /// # use tollgate::{Class, WorkerShedder};
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// let class = shedder.class("charge").unwrap_or(Class::CRITICAL);
    /// assert!(shedder.admit(class).is_ok());
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn class(&self, name: &str) -> Option<Class> {
        let rank = self.shared.classes.iter().position(|class| class == name)?;
        u32::try_from(rank).ok().map(Class)
    }

    /// Takes a sample of the utilization, in percent.
    ///
    /// ```
    /// # use tollgate::WorkerShedder;
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// let (busy, workers) = (13, 16);
    /// shedder.record_percent(100 * busy / workers);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn record_percent(&self, percent: u64) {
        self.record_ppm(percent.saturating_mul(10_000), None);
    }

    /// Takes a sample in parts per million, now or at a time of the caller's own.
    ///
    /// ```
    /// # use tollgate::{Timestamp, WorkerShedder};
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// let before = shedder.amount();
    /// shedder.record_ppm(950_000, Some(Timestamp::from_secs(0)));
    /// shedder.record_ppm(950_000, Some(Timestamp::from_secs(5)));
    /// assert!(shedder.amount().num > before.num); // on its way
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn record_ppm(&self, utilization_ppm: u64, at: Option<Timestamp>) {
        let shared = &*self.shared;
        let mut pressure = shared.pressure.lock();
        let now = at.unwrap_or_else(|| shared.clock.now());
        *pressure = shared.worker.sample(*pressure, now, utilization_ppm);
        shared.amount.store(pressure.amount(), Ordering::Release);
    }

    /// Whether a request of a class may proceed.
    ///
    /// ```
    /// # use tollgate::{Class, WorkerShedder};
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// match shedder.admit(Class(0)) {
    ///     Ok(()) => println!("go ahead"),
    ///     Err(shed) => println!("503: {shed}"),
    /// }
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn admit(&self, class: Class) -> Result<(), Shed> {
        let shared = &*self.shared;
        if shared.amount.load(Ordering::Acquire) <= 0 {
            return Ok(());
        }
        let draw = shared.random.hash_one(shared.draws.fetch_add(1, Ordering::Relaxed));
        self.admit_with(class, (draw >> 32) as u32)
    }

    /// As [`admit`](Self::admit), with the caller's own draw from all 32-bit numbers: a hash of the caller's name
    /// sheds the same callers throughout.
    ///
    /// ```
    /// # use tollgate::{Class, WorkerShedder};
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// assert!(shedder.admit_with(Class(0), 7).is_ok());
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn admit_with(&self, class: Class, draw: u32) -> Result<(), Shed> {
        let pressure = self.pressure();
        match self.shared.worker.sheds(pressure, class.0, draw) {
            true => Err(Shed { drop_probability: self.drop_probability(class) }),
            false => Ok(()),
        }
    }

    /// How much is shed, of everything; below zero while there is grace left.
    ///
    /// ```
    /// # use tollgate::WorkerShedder;
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// assert!(shedder.amount().num < 0);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn amount(&self) -> Fraction {
        self.shared.worker.amount(self.pressure())
    }

    /// The share of a class that is dropped at this moment.
    ///
    /// ```
    /// # use tollgate::{Class, WorkerShedder};
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).build()?;
    /// assert_eq!(shedder.drop_probability(Class(0)).num, 0);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn drop_probability(&self, class: Class) -> Fraction {
        self.shared.worker.drop_probability(self.pressure(), class.0)
    }

    fn pressure(&self) -> Pressure {
        self.shared.worker.pressure(self.shared.amount.load(Ordering::Acquire))
    }
}

impl WorkerShedderBuilder {
    /// Other thresholds and times than 70 %, 80 %, 28 s and 120 s. The number of classes is that of the builder.
    ///
    /// ```
    /// # use tollgate::{WorkerSettings, WorkerShedder};
    /// let settings = WorkerSettings { good_ppm: 800_000, bad_ppm: 900_000, ..WorkerSettings::default() };
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).settings(settings).build()?;
    /// # let _ = shedder;
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn settings(mut self, settings: WorkerSettings) -> Self {
        self.settings = settings;
        self
    }

    /// Another clock than the system's.
    ///
    /// ```
    /// # use tollgate::{ManualClock, WorkerShedder};
    /// let shedder = WorkerShedder::builder(["test", "get", "post"]).clock(ManualClock::default()).build()?;
    /// # let _ = shedder;
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn clock(self, clock: impl Clock) -> Self {
        self.any_clock(AnyClock::Other(Arc::new(clock)))
    }

    /// Goes on from where another one is: what that sheds is shed.
    #[cfg(feature = "policy")]
    pub(crate) fn after(mut self, before: Option<&WorkerShedder>) -> Self {
        self.before = before.cloned();
        self
    }

    pub(crate) fn any_clock(mut self, clock: AnyClock) -> Self {
        self.clock = clock;
        self
    }

    /// The shedder, or what is wrong with its settings.
    ///
    /// ```
    /// # use tollgate::WorkerShedder;
    /// let error = WorkerShedder::builder(["get", "get"]).build().unwrap_err();
    /// assert_eq!(error.to_string(), "class is get: it must be named once");
    /// ```
    pub fn build(self) -> Result<WorkerShedder, LimitError> {
        let twice = self
            .classes
            .iter()
            .enumerate()
            .find(|(index, class)| self.classes.iter().take(*index).any(|other| other == *class));
        if let Some((_, class)) = twice {
            let allowed = "named once".to_owned();
            return Err(LimitError { field: "class", value: class.clone(), allowed });
        }
        let classes = u32::try_from(self.classes.len()).unwrap_or(u32::MAX);
        let worker = Worker::new(WorkerSettings { classes, ..self.settings })?;
        let pressure = match &self.before {
            Some(before) => worker.convert(&before.shared.worker, *before.shared.pressure.lock()),
            None => worker.at_rest(),
        };
        let shared = Shared {
            worker,
            classes: self.classes,
            clock: self.clock,
            amount: AtomicI64::new(pressure.amount()),
            pressure: Mutex::new(pressure),
            draws: AtomicU64::new(0),
            random: RandomState::default(),
        };
        Ok(WorkerShedder { shared: Arc::new(shared) })
    }
}
