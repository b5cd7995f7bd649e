//! What the gateway does with requests at this moment: the policy at work, and whom requests are passed on to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use tokio_util::sync::CancellationToken;
use tollgate_core::Nanos;
use tollgate_core::policy::{Policy, Timeouts};

use super::counts::Counts;
use super::pool::Upstream;
use crate::access_log::AccessLog;

/// What is counted and written down of every request.
pub(crate) struct Watch {
    pub(crate) counts: Counts,
    pub(crate) log: Option<AccessLog>,
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
    pub(super) answer: Duration,
    pub(super) idle: Duration,
}

impl Times {
    fn new(timeouts: &Timeouts) -> Self {
        let [head, body, connect, answer, idle] =
            [timeouts.head, timeouts.body, timeouts.connect, timeouts.answer, timeouts.idle]
                .map(|time: Nanos| Duration::from(time));
        Self { head, body, connect, answer, idle }
    }
}

impl Site {
    /// Servers that were there before keep their connections.
    pub(crate) fn new(
        policy: Policy,
        workers: usize,
        before: Option<&Self>,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Self {
        let gateway = policy.gateway();
        let upstreams = gateway.upstreams.iter().map(|upstream| {
            let same = before
                .and_then(|before| before.upstreams.iter().find(|other| other.policy.name == upstream.name));
            Upstream::new(upstream, workers, same, tls)
        });
        let decisive = policy.headers_read().into_iter().filter_map(|name| HeaderName::try_from(name).ok());
        Self {
            decisive: decisive.collect(),
            upstreams: upstreams.collect(),
            times: Times::new(&gateway.timeouts),
            max_body: gateway.sizes.body,
            max_head: usize::try_from(gateway.sizes.head).unwrap_or(64 << 10),
            is_replaced: CancellationToken::new(),
            policy,
        }
    }
}
