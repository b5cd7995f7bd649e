//! What a limiter has decided, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Timestamp;
use tollgate_core::concurrency::InProgress;
use tollgate_core::decision::Reason;
use tollgate_core::policy::Mode;

use super::timings::Timings;

macro_rules! counted {
    ($(#[$about:meta])* $public:ident, $private:ident { $($(#[$doc:meta])* $name:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $public {
            $($(#[$doc])* pub $name: u64,)+
        }

        /// On lines of their own: counting one must not slow down whoever reads its neighbour.
        #[derive(Debug, Default)]
        #[repr(align(64))]
        pub(super) struct $private {
            $(pub(super) $name: Count,)+
        }

        impl $private {
            pub(super) fn read(&self) -> $public {
                $public { $($name: self.$name.0.load(Ordering::Relaxed),)+ }
            }
        }

        impl $public {
            #[allow(dead_code, reason = "not all are added up")]
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.next();
    }

    /// Counts one more, and tells how many there were before.
    pub(super) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

counted! {
    /// What one limiter of a policy has decided. Numbers only grow, also over reloads.
    LimiterStats, LimiterCounts {
        /// Requests that it was for.
        asked,
        /// Requests that it has refused.
        refused,
        /// Requests that it would have refused, had it not been dark.
        would_refuse,
        /// Requests that its candidate would have refused.
        candidate_refused,
        /// Decisions that were made without the store, also in the dark and by the candidate.
        degraded,
    }
}

counted! {
    /// What became of the requests of one class. Numbers only grow, also over reloads. Those that are on the
    /// allow list, those that were refused by the block list, and those that passed because limiter code panicked are not
    /// among them.
    ClassStats, ClassCounts {
        /// Requests that passed.
        passed,
        /// Requests that were refused, by whichever limiter.
        refused,
    }
}

counted! {
    /// What became of all requests. Numbers only grow.
    Totals, TotalCounts {
        /// Requests that were asked about.
        asked,
        /// Those that were refused.
        refused,
        /// Those that passed because they are on the allow list.
        allowed_by_list,
        /// Those that were refused because they are on the block list.
        blocked_by_list,
        /// Those that would have been, had the mode of everything not been dark. They went on to the limiters.
        would_block_by_list,
        /// Those that were refused because they said several things of who is calling.
        unclear,
        /// Those that would have been, had the mode of everything not been dark. They went on to the limiters as if they had said
        /// nothing.
        would_refuse_unclear,
        /// Those that passed because the store had an error, and nothing could be decided.
        store_errors,
        /// Those that passed because limiter code panicked. Each is a bug: please report it.
        panics,
        /// Leases that had expired when they were to be renewed: their requests went on uncounted.
        leases_lost,
        /// Those whose caller was not known: nothing was there of all that `identify.caller` names, and no address. Limits
        /// per caller have one bucket for all of them together. If this grows, the door is not told who is at the other end
        /// of its connections, or a header is missing that callers should send.
        nobody,
    }
}

/// Everything that a limiter has counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterReport {
    /// All requests.
    pub totals: Totals,
    /// Requests in progress.
    pub in_flight: u64,
    /// Whether somebody has set the mode of all limiters by hand.
    pub is_switched: bool,
    /// Each limiter of the present policy.
    pub limiters: Vec<LimiterStanding>,
    /// Each class of the present policy, in its order.
    pub classes: Vec<(Arc<str>, ClassStats)>,
    /// The shedder of this process, if the policy has one.
    pub worker: Option<WorkerStanding>,
    /// How long `admit` took, by the limiter's clock; that of the system is exact to a few microseconds. Where the store is
    /// not shared, only one of sixteen requests is measured: then these are a sixteenth of all.
    pub admit_took: Timings,
    /// How long a shared store took to answer, well or not, while a request waited for it. Empty where the store is not
    /// shared.
    pub store_took: Timings,
    /// How the policy came to be at work.
    pub reloads: ReloadReport,
}

/// One limiter of a policy, and what it has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimiterStanding {
    /// Its name.
    pub name: Arc<str>,
    /// Its mode at this moment.
    pub mode: Mode,
    /// Whether somebody has set a mode of its own by hand.
    pub is_switched: bool,
    /// Which of the four it is, as the reason that its refusals give.
    pub kind: Reason,
    /// What it has decided, also of classes that the policy has no more.
    pub stats: LimiterStats,
    /// The same by class, in the order of the policy.
    pub by_class: Vec<(Arc<str>, LimiterStats)>,
}

/// How a worker's shedder stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStanding {
    /// The limiter's name.
    pub name: Arc<str>,
    /// The last sample of utilization, in millionths. None: there was none yet, or it could not be known.
    pub utilization_ppm: Option<u64>,
    /// The share of each class that is shed at this moment, in millionths, in the order of the policy. While the limiter is
    /// dark, the share that would be.
    pub shed_ppm: Vec<(Arc<str>, u64)>,
}

/// How many places of a fleet are in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FleetUse {
    /// The limiter's name.
    pub name: Arc<str>,
    /// Places of the whole fleet.
    pub capacity: u64,
    /// Those that requests which are not critical may use.
    pub allocation: u64,
    /// Those that are in use.
    pub used: InProgress,
}

/// Policies that were put to work after the start, and those that could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReloadReport {
    /// How often another policy was put to work.
    pub succeeded: u64,
    /// How often that failed, so that everything stayed as it was.
    pub failed: u64,
    /// When the policy at work was put there.
    pub loaded_at: Timestamp,
    /// What is wrong with the policy that was tried last. None: it is the one at work.
    pub error: Option<String>,
}
