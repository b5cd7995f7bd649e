//! The fleet usage load shedder, for the fleet that is this process: its threads, its worker slots.

use std::sync::Arc;

use thiserror::Error;
use tollgate_core::concurrency::InProgress;
use tollgate_core::fleet::{Fleet, FleetMode};
use tollgate_core::{LimitError, Nanos};

use crate::sync::{AtomicU64, Ordering};

/// Keeps a share of the places for critical requests.
///
/// ```
/// use tollgate::{FleetShedder, Priority};
///
/// let fleet = FleetShedder::new(10, 20)?; // 10 places, 20 % of them for critical requests
/// let others: Vec<_> = (0..8).map(|_| fleet.admit(Priority::Other).unwrap()).collect();
/// assert!(fleet.admit(Priority::Other).is_err());
/// assert!(fleet.admit(Priority::Critical).is_ok());
/// assert_eq!(fleet.in_progress().other, 8);
/// # drop(others);
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FleetShedder {
    fleet: Fleet,
    /// Critical requests in progress in the upper half, all others in the lower.
    used: Arc<AtomicU64>,
}

/// Whether a request may use what is reserved.
///
/// ```
/// # use tollgate::Priority;
/// let priority = |method: &str| if method == "POST" { Priority::Critical } else { Priority::Other };
/// assert_eq!(priority("GET"), Priority::Other);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// It may.
    Critical,
    /// It may not.
    Other,
}

/// A place in the fleet, given back when dropped.
///
/// ```
/// # use tollgate::{FleetShedder, Priority};
/// let fleet = FleetShedder::new(10, 20)?;
/// let place = fleet.admit(Priority::Other).unwrap();
/// assert_eq!(fleet.in_progress().other, 1);
/// drop(place);
/// assert_eq!(fleet.in_progress().other, 0);
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Debug)]
#[must_use = "a place that is given back at once limits nothing"]
pub struct FleetPermit {
    used: Arc<AtomicU64>,
    unit: u64,
}

/// The request is shed: the places for its kind are taken. Answer 503 and let it come back later.
///
/// ```
/// # use tollgate::{FleetShedder, Priority};
/// let fleet = FleetShedder::new(1, 0)?;
/// let place = fleet.admit(Priority::Other).unwrap();
/// let full = fleet.admit(Priority::Other).unwrap_err();
/// assert_eq!(full.in_progress.other, 1);
/// # drop(place);
/// # Ok::<_, tollgate::LimitError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "shed: no place is left for this request ({} critical and {} other requests are in progress)",
    in_progress.critical, in_progress.other
)]
pub struct FleetFull {
    /// What is in progress.
    pub in_progress: InProgress,
}

const CRITICAL: u64 = 1 << 32;
const OTHER: u64 = 1;

fn unpack(used: u64) -> InProgress {
    InProgress { critical: used >> 32, other: used & (CRITICAL - 1) }
}

impl FleetShedder {
    /// A fleet of `capacity` places, `reserve_percent` of which only critical requests may use. Critical
    /// requests are counted and never refused.
    ///
    /// ```
    /// # use tollgate::FleetShedder;
    /// assert_eq!(FleetShedder::new(100, 20)?.remaining(), 80);
    /// assert!(FleetShedder::new(0, 20).is_err());
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn new(capacity: u64, reserve_percent: u64) -> Result<Self, LimitError> {
        Self::with_mode(capacity, (reserve_percent, 100), FleetMode::Allocation)
    }

    /// A fleet with the reserve as a fraction; in mode [`FleetMode::Total`] critical requests too are refused
    /// beyond the whole capacity.
    ///
    /// ```
    /// use tollgate::{FleetMode, FleetShedder, Priority};
    ///
    /// let fleet = FleetShedder::with_mode(3, (1, 3), FleetMode::Total)?;
    /// let all: Vec<_> = (0..3).map(|_| fleet.admit(Priority::Critical).unwrap()).collect();
    /// assert!(fleet.admit(Priority::Critical).is_err());
    /// # drop(all);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn with_mode(capacity: u64, reserve: (u64, u64), mode: FleetMode) -> Result<Self, LimitError> {
        // Permits come back when dropped, so nothing expires.
        let fleet = Fleet::new(capacity, reserve, mode, Nanos::from_secs(1))?;
        Ok(Self { fleet, used: Arc::new(AtomicU64::new(0)) })
    }

    /// A place for a request, held until the permit is dropped.
    ///
    /// ```
    /// # use tollgate::{FleetShedder, Priority};
    /// let fleet = FleetShedder::new(100, 20)?;
    /// match fleet.admit(Priority::Other) {
    ///     Ok(place) => drop(place), // when the request has ended
    ///     Err(full) => println!("503: {full}"),
    /// }
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn admit(&self, priority: Priority) -> Result<FleetPermit, FleetFull> {
        let (critical, unit) = match priority {
            Priority::Critical => (true, CRITICAL),
            Priority::Other => (false, OTHER),
        };
        let mut seen = self.used.load(Ordering::Acquire);
        loop {
            let in_progress = unpack(seen);
            let counts = if critical { in_progress.critical } else { in_progress.other };
            // No process has four billion requests in progress; if it did, the halves must not run over.
            if !self.fleet.fits(in_progress, critical, 1) || counts == u64::from(u32::MAX) {
                return Err(FleetFull { in_progress });
            }
            match self.used.compare_exchange(seen, seen + unit, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    return Ok(FleetPermit { used: Arc::clone(&self.used), unit });
                }
                Err(now) => seen = now,
            }
        }
    }

    /// What is in progress.
    ///
    /// ```
    /// # use tollgate::{FleetShedder, Priority};
    /// let fleet = FleetShedder::new(100, 20)?;
    /// let place = fleet.admit(Priority::Critical).unwrap();
    /// assert_eq!((fleet.in_progress().critical, fleet.in_progress().other), (1, 0));
    /// # drop(place);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn in_progress(&self) -> InProgress {
        unpack(self.used.load(Ordering::Acquire))
    }

    /// Places that a request which is not critical could take.
    ///
    /// ```
    /// # use tollgate::{FleetShedder, Priority};
    /// let fleet = FleetShedder::new(100, 20)?;
    /// let place = fleet.admit(Priority::Other).unwrap();
    /// assert_eq!(fleet.remaining(), 79);
    /// # drop(place);
    /// # Ok::<_, tollgate::LimitError>(())
    /// ```
    pub fn remaining(&self) -> u64 {
        self.fleet.remaining(self.in_progress())
    }
}

impl Drop for FleetPermit {
    fn drop(&mut self) {
        self.used.fetch_sub(self.unit, Ordering::AcqRel);
    }
}

#[cfg(all(test, tollgate_loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_permits_never_exceed_the_share_and_come_back_exactly_once() {
        loom::model(|| {
            let fleet = FleetShedder::new(2, 50).unwrap();
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let fleet = fleet.clone();
                    loom::thread::spawn(move || {
                        if let Ok(permit) = fleet.admit(Priority::Other) {
                            assert_eq!(fleet.in_progress().other, 1);
                            drop(permit);
                        }
                        drop(fleet.admit(Priority::Critical).unwrap());
                    })
                })
                .collect();
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(fleet.in_progress(), InProgress::default());
        });
    }
}
