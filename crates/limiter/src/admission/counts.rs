//! What a limiter has decided, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate_core::Timestamp;

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
    };
}

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
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
        /// Those that passed because the store had an error, and nothing could be decided.
        store_errors,
        /// Those that passed because limiter code panicked. Each is a bug: please report it.
        panics,
        /// Leases that had expired when they were to be renewed: their requests went on uncounted.
        leases_lost,
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
    /// Each limiter of the present policy.
    pub limiters: Vec<(Arc<str>, LimiterStats)>,
    /// How the policy came to be at work.
    pub reloads: ReloadReport,
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
