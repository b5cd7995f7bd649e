//! How busy the servers behind the gateway are, for shedders that ask for it.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::gateway::Shared;

/// Tells the limiter how busy the busiest upstream is, of those whose workers are known: requests in progress against those
/// that all of its servers can work on at once.
pub(crate) async fn report(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(Duration::from_millis(250)).await;
        let Some(shared) = shared.upgrade() else { return };
        let site = shared.site.load();
        if !site.policy.watches_upstreams() {
            continue;
        }
        let busy = site.upstreams.iter().filter_map(|upstream| {
            let workers = upstream.policy.workers?.saturating_mul(upstream.servers.len() as u64);
            let in_flight = upstream.in_flight.load(Ordering::Relaxed);
            Some(in_flight.saturating_mul(1_000_000) / workers.max(1))
        });
        if let Some(busiest) = busy.max() {
            shared.limiter.report_utilization(busiest.min(1_000_000));
        }
    }
}
