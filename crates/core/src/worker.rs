//! The worker utilization load shedder: a box in trouble slowly sheds, class by class, and slowly recovers.
//!
//! One amount runs from rest (below zero, the grace) to full. Utilization above `bad` pushes it up, below
//! `good` it sinks, in between it stays. The part above zero is split into equal bands, one per class, least
//! important first: the second class is touched only when the first is gone. All in integers: where shares and times
//! leave room for it, no sequence of samples drifts; where they do not, a sample is off by less than one part in 10^12.

use crate::error::{LimitError, time_within, within};
use crate::time::{Nanos, Timestamp};

/// One hundred percent, in parts per million.
pub const PPM: u64 = 1_000_000;

/// When to shed, how fast, and how many classes there are.
///
/// ```
/// use tollgate_core::worker::WorkerSettings;
///
/// let settings = WorkerSettings::default();
/// assert_eq!((settings.good_ppm, settings.bad_ppm), (700_000, 800_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Below this utilization the box recovers.
    pub good_ppm: u64,
    /// From this utilization on the box sheds.
    pub bad_ppm: u64,
    /// Full overload may last this long before anything is shed.
    pub grace: Nanos,
    /// Full overload takes this long from the first request shed to all of them.
    pub full: Nanos,
    /// A longer gap between two samples counts as this much.
    pub max_step: Nanos,
    /// Classes that can be shed, least important first; further ones never are.
    pub classes: u32,
}

impl Default for WorkerSettings {
    /// 70 % is good, 80 % is bad, 28 s of grace, 120 s to shed all of three classes.
    fn default() -> Self {
        Self {
            good_ppm: 700_000,
            bad_ppm: 800_000,
            grace: Nanos::from_secs(28),
            full: Nanos::from_secs(120),
            max_step: Nanos::from_secs(28),
            classes: 3,
        }
    }
}

/// Where the utilization comes from.
///
/// ```
/// use tollgate_core::Nanos;
/// use tollgate_core::worker::Source;
///
/// let source = Source::Latency { target: Nanos::new(200_000_000) };
/// assert_ne!(source, Source::Reported { stale_after: Source::STALE_AFTER });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The requests in progress in this process, against the number that it can work on at once.
    InFlight {
        /// So many requests in progress are 100 %.
        workers: u64,
    },
    /// The processors of this machine: the share of time that they were not idle. Time that the host took for
    /// other machines counts as busy; time waiting for a disk does not.
    Cpu,
    /// The processors that this container may use: the time its control group has used, against its quota, or
    /// against the number of processors if it has none. A quota further up counts too, with all that share it;
    /// the one that is nearest its end decides.
    Cgroup,
    /// The share of the last ten seconds in which some work waited for a processor (Linux PSI), in this control
    /// group if it is told there, else on this machine.
    ///
    /// This is not how busy the processors are: it stays near zero until they no longer suffice, and rises steeply
    /// then. Thresholds for it are lower than for the others.
    Pressure,
    /// The average latency of the requests since the last sample. At the target the utilization is 80 %, where
    /// shedding begins by default; it ends at 200 %. Without a request it is zero, so that a machine that sheds
    /// everything comes back.
    Latency {
        /// The latency from which on the service is in trouble.
        target: Nanos,
    },
    /// What the protected service says itself.
    Reported {
        /// A report counts for so long; then the utilization is unknown. See [`Source::STALE_AFTER`].
        stale_after: Nanos,
    },
}

impl Source {
    /// How long a report counts unless the policy says otherwise: 30 s.
    pub const STALE_AFTER: Nanos = Nanos::from_secs(30);
}

/// The controller: [`WorkerSettings`] that can be computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Worker {
    settings: WorkerSettings,
    /// The fastest that it can go per nanosecond. Every speed is a whole number.
    top_speed: i64,
    /// So much of speed times nanoseconds is 1 of the amount: 1, unless amounts would then be too large.
    unit: i128,
    /// The amount at which everything is shed.
    full: i64,
    /// The amount at rest, not above zero.
    rest: i64,
}

/// How much is shed, and when that was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    amount: i64,
    sampled: Option<Timestamp>,
}

/// A probability as an exact fraction.
///
/// ```
/// use tollgate_core::worker::Fraction;
///
/// let Fraction { num, den } = Fraction { num: 1, den: 4 };
/// assert_eq!(100 * num / den, 25); // percent
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fraction {
    /// The numerator; negative where an amount is below zero.
    pub num: i64,
    /// The denominator, above zero.
    pub den: i64,
}

impl Pressure {
    /// The amount, in the controller's own units.
    pub fn amount(self) -> i64 {
        self.amount
    }
}

/// No amount is larger.
const LARGEST: i128 = 1 << 60;
/// Times up to this, or as long as amounts are exact.
const LONGEST: Nanos = Nanos::from_secs(30 * 24 * 3600);

impl Worker {
    /// A controller for `settings`. Times are up to 30 days.
    pub fn new(settings: WorkerSettings) -> Result<Self, LimitError> {
        let WorkerSettings { good_ppm, bad_ppm, grace, full, max_step, classes } = settings;
        let bad = within("bad", bad_ppm, 1, PPM - 1)?;
        let good = within("good", good_ppm, 1, bad)?;
        within("classes", u64::from(classes), 1, 1 << 16)?;
        let top_speed = lcm(good, PPM - bad);
        let longest = (LARGEST as u64 / top_speed).max(LONGEST.as_u64());
        for (field, value, least) in [("grace", grace, 0), ("full", full, 1), ("max_step", max_step, 1)] {
            time_within(field, value, least, longest)?;
        }
        let way = |time: Nanos| i128::from(top_speed) * i128::from(time.as_u64());
        let unit = ((way(grace.max(full)) + LARGEST - 1) / LARGEST).max(1);
        let amount = |time: Nanos| way(time).checked_div(unit).unwrap_or(0) as i64; // at most LARGEST
        let (full, rest) = (amount(full), -amount(grace));
        Ok(Self { settings, top_speed: top_speed as i64, unit, full, rest })
    }

    /// What the controller was made of.
    pub fn settings(&self) -> &WorkerSettings {
        &self.settings
    }

    /// A box that has seen nothing yet: it has its whole grace.
    pub fn at_rest(&self) -> Pressure {
        Pressure { amount: self.rest, sampled: None }
    }

    /// The pressure under these settings that is as far on the way to shedding everything, or has used as much of the grace, as
    /// `pressure` under `old` ones.
    pub fn convert(&self, old: &Self, pressure: Pressure) -> Pressure {
        let share = |to: i64, from: i64| {
            let moved = i128::from(pressure.amount) * i128::from(to);
            moved.checked_div(i128::from(from)).unwrap_or(0) as i64 // no further than `to`
        };
        let amount = match pressure.amount {
            at_rest if at_rest <= old.rest => self.rest,
            shedding if shedding > 0 => share(self.full, old.full),
            _ => share(self.rest, old.rest),
        };
        Pressure { amount: amount.clamp(self.rest, self.full), sampled: pressure.sampled }
    }

    /// A pressure of a given amount, as [`Pressure::amount`] told it.
    pub fn pressure(&self, amount: i64) -> Pressure {
        Pressure { amount: amount.clamp(self.rest, self.full), sampled: None }
    }

    /// The pressure after a sample of the utilization, in parts per million; more than 100 % counts as 100 %.
    pub fn sample(&self, pressure: Pressure, now: Timestamp, utilization_ppm: u64) -> Pressure {
        let last = pressure.sampled.unwrap_or(now);
        let step = now.since(last).as_u64().min(self.settings.max_step.as_u64());
        let way = i128::from(step) * i128::from(self.speed(utilization_ppm));
        let moved = i128::from(pressure.amount) + way.checked_div(self.unit).unwrap_or(0);
        let amount = moved.clamp(i128::from(self.rest), i128::from(self.full)) as i64;
        Pressure { amount, sampled: Some(now.max(last)) }
    }

    fn speed(&self, utilization_ppm: u64) -> i64 {
        let WorkerSettings { good_ppm, bad_ppm, .. } = self.settings;
        // Above 100 % the speed is the top speed anyway; bounded here, everything fits.
        let (u, good, bad) = (utilization_ppm.min(2 * PPM) as i64, good_ppm as i64, bad_ppm as i64);
        let speed = if u < good {
            self.top_speed.checked_div(good).unwrap_or(0) * (u - good)
        } else if u < bad {
            0
        } else {
            self.top_speed.checked_div(PPM as i64 - bad).unwrap_or(0) * (u - bad)
        };
        speed.clamp(-self.top_speed, self.top_speed)
    }

    /// The amount that is shed, as a fraction of everything; below zero while there is grace left.
    pub fn amount(&self, pressure: Pressure) -> Fraction {
        Fraction { num: pressure.amount, den: self.full }
    }

    /// The probability that a request of a class is shed. `rank` 0 is the least important class; a rank
    /// beyond the classes that can be shed is never shed.
    pub fn drop_probability(&self, pressure: Pressure, rank: u32) -> Fraction {
        let classes = self.settings.classes;
        if rank >= classes {
            return Fraction { num: 0, den: self.full };
        }
        let full = i128::from(self.full);
        let band = i128::from(classes) * i128::from(pressure.amount) - i128::from(rank) * full;
        Fraction { num: band.clamp(0, full) as i64, den: self.full } // clamped to full, which fits
    }

    /// Whether a request of a class is shed, by a uniform draw from all 32-bit numbers.
    pub fn sheds(&self, pressure: Pressure, rank: u32, draw: u32) -> bool {
        let p = self.drop_probability(pressure, rank);
        i128::from(draw) * i128::from(p.den) < i128::from(p.num) << 32
    }
}

const fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
