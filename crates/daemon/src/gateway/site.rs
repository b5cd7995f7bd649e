//! What the gateway does with requests at this moment: the policy at work, and whom requests are passed on to.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use http::HeaderName;
use tokio_util::sync::CancellationToken;
use tollgate_core::Nanos;
use tollgate_core::policy::{ConnectionLimits, Gateway, Policy, Timeouts};

use super::counts::Counts;
use super::pool::{Limits, Upstream};
use super::rejection_log::RejectionLog;
use super::tls::{Certificates, Trust};
use crate::access_log::{AccessLog, Entry};

/// What is counted and written down of every request.
pub(crate) struct Watch {
    pub(crate) counts: Counts,
    pub(crate) log: Option<AccessLog>,
    pub(super) rejections: RejectionLog,
    /// Whether whatever has not ended is cut off.
    pub(super) is_over: AtomicBool,
}

impl Watch {
    /// Writes a line into the access log, if there are both.
    pub(super) fn write(&self, entry: Option<Box<Entry>>) {
        if let (Some(entry), Some(log)) = (entry, &self.log) {
            log.write(entry);
        }
    }

    /// Counts and writes down what is no request and was answered all the same.
    pub(super) fn malformed(&self, client: IpAddr, status: u16) {
        self.counts.answered(status, Duration::ZERO);
        if let Some(log) = &self.log {
            let error = Some("malformed".to_owned());
            log.write(Box::new(Entry {
                client: Some(client),
                status,
                error,
                is_whole: true,
                ..Entry::default()
            }));
        }
    }
}

/// One policy, in the form in which the gateway uses it. A reload makes another; requests keep the one they began with.
pub(crate) struct Site {
    pub(crate) policy: Policy,
    pub(crate) upstreams: Vec<Upstream>,
    /// Headers by which it is decided who is calling and what it costs: nobody may have them read differently behind us.
    pub(super) decisive: HashSet<HeaderName>,
    pub(super) times: Times,
    pub(super) max_body: Option<u64>,
    pub(super) max_head: usize,
    /// Rings when another has taken its place.
    pub(super) is_replaced: CancellationToken,
}

/// How long the gateway waits for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) head: Duration,
    pub(super) body: Duration,
    pub(super) connect: Duration,
    pub(super) queue: Duration,
    pub(super) answer: Duration,
    pub(super) idle: Duration,
    /// For the whole of a body, if there is a bound.
    pub(super) whole: Option<Duration>,
    /// Bytes a second that a client sends or takes at least.
    pub(super) least_rate: u64,
}

impl Times {
    fn new(timeouts: &Timeouts, least_rate: u64) -> Self {
        let [head, body, connect, queue, answer, idle] =
            [timeouts.head, timeouts.body, timeouts.connect, timeouts.queue, timeouts.answer, timeouts.idle]
                .map(|time: Nanos| Duration::from(time));
        let whole = timeouts.whole.map(Duration::from);
        Self { head, body, connect, queue, answer, idle, whole, least_rate: least_rate.max(1) }
    }

    /// How long a client may be waited for in all, of whom so many bytes have come or gone.
    pub(super) fn earned(&self, bytes: u64) -> Duration {
        self.body + Duration::from_millis(bytes.saturating_mul(1000) / self.least_rate)
    }
}

impl Site {
    /// Servers that were there before keep their connections.
    pub(crate) fn new(
        policy: Policy,
        workers: usize,
        before: Option<&Self>,
        certificates: &Certificates,
        trust: &Trust,
        upstream_connections: usize,
    ) -> Self {
        let gateway = policy.gateway();
        let upstreams = gateway.upstreams.iter().map(|upstream| {
            let same = before
                .and_then(|before| before.upstreams.iter().find(|other| other.policy.name == upstream.name));
            let limits = limits_of(gateway, upstream, upstream_connections);
            Upstream::new(upstream, workers, same, certificates.trust(&upstream.name, trust), limits)
        });
        let decisive = policy.headers_read().into_iter().filter_map(|name| HeaderName::try_from(name).ok());
        Self {
            decisive: decisive.collect(),
            upstreams: upstreams.collect(),
            times: Times::new(&gateway.timeouts, gateway.sizes.least_rate),
            max_body: gateway.sizes.body,
            max_head: usize::try_from(gateway.sizes.head).unwrap_or(64 << 10),
            is_replaced: CancellationToken::new(),
            policy,
        }
    }
    /// Closes the connections with servers that are kept for requests to come, where files are needed for something else. Says
    /// whether there were any.
    pub(super) fn close_idle(&self) -> bool {
        self.upstreams.iter().map(Upstream::close_idle).sum::<usize>() > 0
    }
}

/// The limits of each server of an upstream: those of the policy, but no more connections than its share of the files that may
/// be open.
fn limits_of(
    gateway: &Gateway,
    upstream: &tollgate_core::policy::Upstream,
    upstream_connections: usize,
) -> Limits {
    let count = |limit: Option<u64>| {
        usize::try_from(limit.unwrap_or(ConnectionLimits::DEFAULT)).unwrap_or(usize::MAX)
    };
    let ConnectionLimits { max_connections, max_queue } = upstream.connections.or(gateway.connections);
    let servers: usize = gateway.upstreams.iter().map(|upstream| upstream.servers.len()).sum();
    // Each server may have one connection more for health checks.
    let share = upstream_connections.saturating_sub(servers) / servers.max(1);
    let limits =
        Limits { max_connections: count(max_connections).min(share).max(1), max_queue: count(max_queue) };
    if max_connections.is_some_and(|wanted| wanted > limits.max_connections as u64) {
        tracing::warn!(
            upstream = %upstream.name,
            "each server gets up to {} connections, and not the {} of the policy: there are too few open files for {servers} \
             servers. Raise the limit of open files (ulimit -n)",
            limits.max_connections,
            count(max_connections),
        );
    }
    limits
}
