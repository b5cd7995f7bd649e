//! What is counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! stats {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What a store has counted since it was built. Numbers only grow.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct RedisStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl RedisStats {
            /// All numbers, with their names and what they mean, for metrics.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)+].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counts {
            $(pub(crate) $name: Count,)+
        }

        impl Counts {
            pub(crate) fn read(&self) -> RedisStats {
                RedisStats { $($name: self.$name.get(),)+ }
            }
        }
    };
}

stats! {
    /// Connections that were used: one, one more for each time that the store came back, and one for each overdue reply.
    connections,
    /// Calls of the script.
    calls,
    /// Decisions that were answered.
    decided,
    /// Decisions that were not answered, for whatever reason.
    failed,
    /// Those among them that were given up at the deadline. They may have been charged.
    late,
    /// How often a server did not know the script.
    script_loads,
    /// How often a node of a cluster pointed to another.
    redirects,
    /// How often the store, or a part of it, was found to have forgotten what it knew: flushed, restarted, or replaced by
    /// a replica that knew nothing.
    states_lost,
    /// Leases that were given back because their callers had gone away.
    leases_returned,
    /// Leases that were not given back or renewed because too many were waiting for it: they expire.
    chores_dropped,
}
