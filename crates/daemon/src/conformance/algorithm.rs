//! The algorithms that vector files name: which are replayed, and how parameters make a limit.

use tollgate::{WorkerSettings, WorkerShedder};
use tollgate_core::fixed_window::WindowStart;
use tollgate_core::fleet::FleetMode;
use tollgate_core::log::{Log, SubWindows};
use tollgate_core::{Limit, Nanos};

use super::file::{Fields, Problem};

/// An algorithm whose vector files are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Token bucket; also named gcra and leaky bucket as a meter.
    TokenBucket,
    /// Token bucket with refunds and estimates.
    TokenBucketOps,
    /// Leaky bucket that delays.
    LeakyQueue,
    /// Fixed window on multiples of its length.
    AlignedWindow,
    /// Fixed window that the first call opens.
    AnchoredWindow,
    /// Sliding log.
    SlidingLog,
    /// Two weighted windows.
    SlidingWindow,
    /// Sub-windows.
    SubWindows,
    /// Bucket refilled in whole batches.
    IntervalBucket,
    /// Requests in progress, leased.
    Leases,
    /// Fleet usage.
    Fleet,
    /// Worker utilization.
    Worker,
    /// Several limits at once.
    Group,
}

/// What the worker shedder tells apart, in the order in which it is sacrificed.
pub const CATEGORIES: [&str; 4] = ["test", "get", "post", "critical"];

/// Whether an algorithm's files can be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// They are.
    Replayed(Algorithm),
    /// They are not yet, because of this.
    NotYet(&'static str),
}

impl Algorithm {
    /// The algorithm of this name.
    pub fn find(name: &str) -> Result<Support, Problem> {
        let algorithm = match name {
            "gcra" | "token_bucket" | "leaky_bucket_meter" => Self::TokenBucket,
            "token_bucket_ops" => Self::TokenBucketOps,
            "leaky_bucket_queue" => Self::LeakyQueue,
            "fixed_window_aligned" => Self::AlignedWindow,
            "fixed_window_anchored" => Self::AnchoredWindow,
            "sliding_log" | "sliding_log_count_rejected" => Self::SlidingLog,
            "sliding_window_counter" => Self::SlidingWindow,
            "sliding_subwindows" => Self::SubWindows,
            "interval_bucket" => Self::IntervalBucket,
            "concurrency_leases" => Self::Leases,
            "fleet_shedder" => Self::Fleet,
            "worker_shedder" => Self::Worker,
            "multi_limit" => Self::Group,
            _ => {
                let reason = not_yet(name).ok_or_else(|| Problem::UnknownAlgorithm(name.to_owned()))?;
                return Ok(Support::NotYet(reason));
            }
        };
        Ok(Support::Replayed(algorithm))
    }

    /// The limits that a case's parameters describe, with `tick` nanoseconds to the file's unit of time; none for
    /// the worker shedder, which is not one.
    pub fn limits(self, params: Fields<'_>, tick: u64) -> Result<Vec<Limit>, Problem> {
        let duration = |name| params.uint(name).map(|time| Nanos::new(time.saturating_mul(tick)));
        let limit = match self {
            Self::TokenBucket | Self::TokenBucketOps => token_bucket(params, tick)?,
            Self::LeakyQueue => {
                let (queue, count) = (params.uint("queue")?, params.uint("count")?);
                Limit::leaky_queue(queue, count, duration("period_ns")?, params.uint("undelayed")?)?
            }
            Self::AlignedWindow | Self::AnchoredWindow => {
                let start = match self {
                    Self::AlignedWindow => WindowStart::Aligned { offset: Nanos::ZERO },
                    _ => WindowStart::FirstCall,
                };
                Limit::fixed_window(params.uint("limit")?, duration("window_ns")?, start)?
            }
            Self::SlidingLog => {
                let log = Log::new(params.uint("limit")?, duration("window_ns")?)?;
                let log = log.min_difference(duration("min_difference_ns")?)?;
                Limit::Log(log.count_rejected(params.flag("count_rejected")?))
            }
            Self::SlidingWindow => Limit::sliding_window(params.uint("limit")?, duration("window_ns")?)?,
            Self::SubWindows => {
                let kind = match params.one_of("mode", &["n", "n_plus_1"], r#""n" or "n_plus_1""#)? {
                    0 => SubWindows::N,
                    _ => SubWindows::NPlusOne,
                };
                let (limit, window) = (params.uint("limit")?, duration("window_ns")?);
                let log = Log::sub_windows(limit, window, params.uint("buckets")?, kind)?;
                Limit::Log(log.count_rejected(params.flag("count_rejected")?))
            }
            Self::IntervalBucket => {
                let (capacity, refill) = (params.uint("capacity")?, params.uint("refill")?);
                Limit::interval_bucket(capacity, refill, duration("period_ns")?)?
            }
            Self::Leases => Limit::leases(params.uint("capacity")?, duration("ttl_ns")?)?,
            Self::Fleet => {
                let choices = ["allocation", "total"];
                let mode = match params.one_of("mode", &choices, r#""allocation" or "total""#)? {
                    0 => FleetMode::Allocation,
                    _ => FleetMode::Total,
                };
                let reserve = (params.uint("reserve_num")?, params.uint("reserve_den")?);
                Limit::fleet(params.uint("capacity")?, reserve, mode, duration("ttl_ns")?)?
            }
            Self::Group => {
                let limits = params.list("limits")?.iter();
                return limits.map(|limit| token_bucket(Fields::of("limits", limit)?, tick)).collect();
            }
            Self::Worker => return Ok(Vec::new()),
        };
        Ok(vec![limit])
    }
}

fn token_bucket(params: Fields<'_>, tick: u64) -> Result<Limit, Problem> {
    let (capacity, count) = (params.uint("capacity")?, params.uint("count")?);
    let period = Nanos::new(params.uint("period_ns")?.saturating_mul(tick));
    Ok(Limit::token_bucket(capacity, count, period)?)
}

/// The worker shedder that a case's parameters describe.
pub fn worker(params: Fields<'_>) -> Result<WorkerShedder, Problem> {
    let duration = |name| params.uint(name).map(Nanos::new);
    // Critical requests are shed only if the case says so.
    let classes = if params.flag("shed_critical")? { 4 } else { 3 };
    let settings = WorkerSettings {
        good_ppm: params.uint("good_ppm")?,
        bad_ppm: params.uint("bad_ppm")?,
        grace: duration("grace_ns")?,
        full: duration("full_ns")?,
        max_step: duration("max_step_ns")?,
        ..WorkerSettings::default()
    };
    let shedder = WorkerShedder::builder(CATEGORIES.into_iter().take(classes));
    Ok(shedder.settings(settings).build()?)
}

/// Why the files of a known algorithm are not replayed; none if the name is not known.
fn not_yet(name: &str) -> Option<&'static str> {
    Some(match name {
        "guava_bursty" | "guava_warming_up" => "limiters that borrow from the future are not there yet",
        "resilience4j_cycle" => "cycle limiters are not there yet",
        "aimd" | "windowed_aimd" | "vegas" | "gradient2" => "adaptive concurrency is not there yet",
        "partitioned" => "partitioned concurrency is not there yet",
        "client_throttle" => "client-side throttling is not there yet",
        "leased_quota" | "eventual_sync" => "quotas shared between nodes are not there yet",
        "redis_cell_reply" => "the RESP door is not there yet",
        "nginx_limit_req" => "the arithmetic of nginx is not there yet",
        _ => return None,
    })
}
