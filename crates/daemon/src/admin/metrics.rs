//! Every metric and its name. How many series there are depends on the policy, never on what callers send.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use tollgate::{FleetUse, Limiter, LimiterReport, LimiterStats, Mode, Timings};

use crate::gateway::{BOUNDS, ServerLoad, Shared};
use crate::store::AnyStore;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics, in the form that is asked for: that of OpenMetrics for those who know it, else that of Prometheus.
pub(super) async fn text(
    limiter: &Limiter<AnyStore>,
    gateway: &Arc<Shared>,
    accept: &str,
) -> (&'static str, String) {
    let fleets = limiter.fleet_use().await.unwrap_or_default();
    let mut registry = Registry::with_prefix("tollgate");
    let report = limiter.report();
    registry.register_collector(Box::new(Snapshot {
        report,
        fleets,
        limiter: limiter.clone(),
        gateway: Arc::clone(gateway),
    }));
    let mut text = String::new();
    if encode(&mut text, &registry).is_err() {
        return (PROMETHEUS, String::new());
    }
    match accept.contains("application/openmetrics-text") {
        true => (OPEN_METRICS, text),
        false => (PROMETHEUS, classic(&text)),
    }
}

/// The older form: there a counter is declared by the name of its samples.
fn classic(text: &str) -> String {
    let mut classic = String::with_capacity(text.len());
    let mut help: Option<(&str, &str)> = None;
    for line in text.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(name), about) => help = Some((name, about.unwrap_or_default())),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                if let Some((_, about)) = help.take() {
                    classic += &format!("# HELP {name}{suffix} {about}\n");
                }
                classic += &format!("# TYPE {name}{suffix} {kind}\n");
            }
            (Some("#"), ..) => {}
            _ => {
                classic += line;
                classic.push('\n');
            }
        }
    }
    classic
}

/// Labels of one sample.
struct Labels<'l>(&'l [(&'static str, &'l str)]);

impl EncodeLabelSet for Labels<'_> {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        use prometheus_client::encoding::EncodeLabel;
        for label in self.0 {
            label.encode(encoder.encode_label())?;
        }
        Ok(())
    }
}

/// How everything stood when somebody asked.
struct Snapshot {
    report: LimiterReport,
    fleets: Vec<FleetUse>,
    limiter: Limiter<AnyStore>,
    gateway: Arc<Shared>,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

/// Samples of one metric, by their labels.
type Samples<'l, T> = Vec<(Vec<(&'static str, &'l str)>, T)>;

fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: &Samples<'_, u64>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            metric.encode_counter::<NoLabelSet, _, u64>(value, None)?;
        } else {
            metric.encode_family(&Labels(labels))?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
        }
    }
    Ok(())
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    samples: &Samples<'_, f64>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            metric.encode_gauge(value)?;
        } else {
            metric.encode_family(&Labels(labels))?.encode_gauge(value)?;
        }
    }
    Ok(())
}

fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    sum: f64,
    buckets: &[(f64, u64)],
) -> fmt::Result {
    let count = buckets.iter().map(|(_, count)| count).sum();
    let mut metric = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
    metric.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
}

fn timings(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, timings: &Timings) -> fmt::Result {
    let bounds = Timings::bounds().map(|bound: Duration| bound.as_secs_f64()).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(timings.buckets).collect();
    histogram(encoder, name, help, timings.sum.as_secs_f64(), &buckets)
}

/// What became of requests that a limiter was asked about.
fn verdicts(stats: &LimiterStats) -> [(&'static str, u64); 4] {
    let dark = stats.refused + stats.would_refuse;
    [
        ("pass", stats.asked.saturating_sub(dark)),
        ("refuse", stats.refused),
        ("dark_refuse", stats.would_refuse),
        ("candidate_refuse", stats.candidate_refused),
    ]
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let version: Samples<'_, f64> = vec![(vec![("version", env!("CARGO_PKG_VERSION"))], 1.0)];
        gauges(encoder, "build_info", "The version that is at work", None, &version)?;
        self.limiters(encoder)?;
        self.requests(encoder)?;
        self.policy(encoder)?;
        self.store(encoder)?;
        self.doors(encoder)?;
        self.upstream_connections(encoder)
    }
}

impl Snapshot {
    fn limiters(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let report = &self.report;
        let mut decisions: Samples<'_, u64> = Vec::new();
        let mut degraded: Samples<'_, u64> = Vec::new();
        let mut modes: Samples<'_, f64> = Vec::new();
        for limiter in &report.limiters {
            for (class, stats) in &limiter.by_class {
                for (verdict, count) in verdicts(stats) {
                    decisions.push((
                        vec![("limiter", &limiter.name), ("class", class), ("verdict", verdict)],
                        count,
                    ));
                }
            }
            degraded.push((vec![("limiter", &limiter.name)], limiter.stats.degraded));
            for mode in [Mode::Enforce, Mode::Dark, Mode::Off] {
                let is = if limiter.mode == mode { 1.0 } else { 0.0 };
                modes.push((vec![("limiter", &limiter.name), ("mode", mode.name())], is));
            }
        }
        counters(
            encoder,
            "decisions",
            "What limiters decided; dark_refuse is what one would have refused, candidate_refuse what its candidate would have refused of what passed",
            &decisions,
        )?;
        counters(encoder, "degraded_decisions", "Decisions that were made without the store", &degraded)?;
        gauges(encoder, "limiter_mode", "1 for the mode that a limiter is in", None, &modes)?;
        let fleets = self.fleets.iter();
        let mut places: Samples<'_, f64> = Vec::new();
        for fleet in fleets {
            places
                .push((vec![("limiter", &fleet.name), ("used_by", "critical")], fleet.used.critical as f64));
            places.push((vec![("limiter", &fleet.name), ("used_by", "others")], fleet.used.other as f64));
        }
        gauges(encoder, "fleet_places_used", "Places of the fleet that are in use", None, &places)?;
        let capacity: Samples<'_, f64> = self
            .fleets
            .iter()
            .map(|fleet| (vec![("limiter", &*fleet.name)], fleet.capacity as f64))
            .collect();
        gauges(encoder, "fleet_places", "Places of the fleet", None, &capacity)?;
        if let Some(worker) = &report.worker {
            let busy: Samples<'_, f64> =
                worker.utilization_ppm.map(|ppm| (Vec::new(), ppm as f64 / 1e6)).into_iter().collect();
            gauges(encoder, "worker_utilization_ratio", "The last sample of utilization", None, &busy)?;
            let shed: Samples<'_, f64> = worker
                .shed_ppm
                .iter()
                .map(|(class, ppm)| (vec![("class", &**class)], *ppm as f64 / 1e6))
                .collect();
            gauges(
                encoder,
                "worker_shed_ratio",
                "The share of a class that is shed, or would be if the limiter were enforced (limiter_mode)",
                None,
                &shed,
            )?;
        }
        Ok(())
    }

    fn requests(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let report = &self.report;
        let mut requests: Samples<'_, u64> = Vec::new();
        for (class, stats) in &report.classes {
            requests.push((vec![("class", class), ("verdict", "pass")], stats.passed));
            requests.push((vec![("class", class), ("verdict", "refuse")], stats.refused));
        }
        counters(encoder, "requests", "Requests that were decided, by class", &requests)?;
        let totals = &report.totals;
        let of = |value: u64| vec![(Vec::new(), value)];
        counters(
            encoder,
            "allowed_by_list",
            "Requests that passed because they are on the allow list",
            &of(totals.allowed_by_list),
        )?;
        counters(
            encoder,
            "blocked_by_list",
            "Requests that were refused because they are on the block list",
            &of(totals.blocked_by_list),
        )?;
        counters(
            encoder,
            "would_block_by_list",
            "Requests that the block list would have refused, had the mode of everything not been dark",
            &of(totals.would_block_by_list),
        )?;
        counters(
            encoder,
            "unclear_callers",
            "Requests that were refused because they said several things of who is calling",
            &of(totals.unclear),
        )?;
        counters(
            encoder,
            "would_refuse_unclear_callers",
            "Requests that would have been refused for that, had the mode of everything not been dark",
            &of(totals.would_refuse_unclear),
        )?;
        counters(
            encoder,
            "store_errors",
            "Requests that passed because the store had an error that no limit has an answer for: an outage is none, see degraded decisions",
            &of(totals.store_errors),
        )?;
        counters(
            encoder,
            "panics",
            "Requests that passed because limiter code panicked; each is a bug",
            &of(totals.panics),
        )?;
        counters(
            encoder,
            "leases_lost",
            "Leases that had expired when they were to be renewed",
            &of(totals.leases_lost),
        )?;
        counters(
            encoder,
            "unidentified_requests",
            "Requests of callers of whom nothing is known; they share one bucket",
            &of(totals.nobody),
        )?;
        gauges(
            encoder,
            "requests_in_flight",
            "Requests in progress",
            None,
            &vec![(Vec::new(), report.in_flight as f64)],
        )?;
        timings(
            encoder,
            "decision_duration",
            "How long decisions took; with the store in memory, one of sixteen is measured",
            &report.admit_took,
        )?;
        timings(encoder, "store_duration", "How long a shared store took to answer", &report.store_took)
    }

    fn policy(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let reloads = &self.report.reloads;
        let results: Samples<'_, u64> = vec![
            (vec![("result", "success")], reloads.succeeded),
            (vec![("result", "failure")], reloads.failed),
        ];
        counters(
            encoder,
            "policy_reloads",
            "Policies that were put to work after the start, and those that could not be",
            &results,
        )?;
        let loaded = reloads.loaded_at.as_nanos() as f64 / 1e9;
        gauges(
            encoder,
            "policy_loaded_timestamp",
            "When the policy at work was put there",
            Some(&Unit::Seconds),
            &vec![(Vec::new(), loaded)],
        )?;
        let is_current = if reloads.error.is_none() { 1.0 } else { 0.0 };
        gauges(
            encoder,
            "policy_is_current",
            "0 if the policy file could not be loaded and an older one is at work",
            None,
            &vec![(Vec::new(), is_current)],
        )
    }

    fn store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let one = |value: f64| vec![(Vec::new(), value)];
        match self.limiter.store() {
            AnyStore::Memory(store) => {
                let stats = store.stats();
                gauges(encoder, "store_up", "1 if the store answers", None, &one(1.0))?;
                gauges(
                    encoder,
                    "store_keys",
                    "States that the store holds and that are not idle",
                    None,
                    &one(store.count_keys(None) as f64),
                )?;
                gauges(
                    encoder,
                    "store",
                    "Bytes that are set aside for states, in use or not",
                    Some(&Unit::Bytes),
                    &one(stats.bytes as f64),
                )?;
                gauges(
                    encoder,
                    "store_max",
                    "Bytes that states may take",
                    Some(&Unit::Bytes),
                    &one(stats.max_bytes as f64),
                )?;
                counters(
                    encoder,
                    "store_evictions",
                    "States that were forgotten while they still mattered",
                    &vec![(Vec::new(), stats.evictions)],
                )
            }
            AnyStore::Shared(store) => {
                let health = store.shared().health();
                let up = if health.degraded { 0.0 } else { 1.0 };
                gauges(encoder, "store_up", "1 if the store answers", None, &one(up))?;
                gauges(
                    encoder,
                    "store_nodes",
                    "Processes that use the store",
                    None,
                    &one(health.nodes as f64),
                )?;
                gauges(
                    encoder,
                    "store_breakers_open",
                    "Parts of the store that are not asked because they have failed",
                    None,
                    &one(health.breakers_open as f64),
                )?;
                gauges(
                    encoder,
                    "store_bypassed_ratio",
                    "Share of the decisions of the last minute that were made without the store",
                    None,
                    &one(store.last_minute().degraded_percent() / 100.0),
                )?;
                gauges(
                    encoder,
                    "store_local_keys",
                    "States that this process holds for outages of the store and that are not idle",
                    None,
                    &one(store.local().count_keys(None) as f64),
                )?;
                gauges(
                    encoder,
                    "store_local",
                    "Bytes that these states take",
                    Some(&Unit::Bytes),
                    &one(store.local().stats().bytes as f64),
                )?;
                for (name, means, value) in store.shared().stats().named() {
                    counters(
                        encoder,
                        &format!("redis_{name}"),
                        means.trim_end_matches('.'),
                        &vec![(Vec::new(), value)],
                    )?;
                }
                let alone = store.stats();
                let outcomes: Samples<'_, u64> = vec![
                    (vec![("outcome", "open")], alone.open),
                    (vec![("outcome", "closed")], alone.closed),
                    (vec![("outcome", "local")], alone.local),
                ];
                counters(
                    encoder,
                    "store_failures",
                    "Charges that were decided while the store was away",
                    &outcomes,
                )
            }
        }
    }

    fn doors(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let watch = &self.gateway.watch;
        let counts = &watch.counts;
        let read = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let one = |value: u64| vec![(Vec::new(), value)];
        let by_status: Samples<'_, u64> =
            counts.by_status().map(|(status, count)| (vec![("status", status)], count)).collect();
        counters(
            encoder,
            "http_answers",
            "Answers of the gateway by status; gone is a client that left before its answer",
            &by_status,
        )?;
        let (sum, buckets) = counts.times();
        let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(buckets).collect();
        histogram(
            encoder,
            "http_request_duration",
            "From the head of a request to the end of its answer",
            sum,
            &buckets,
        )?;
        gauges(
            encoder,
            "http_requests_in_flight",
            "Requests in the gateway",
            None,
            &vec![(Vec::new(), read(&counts.in_flight) as f64)],
        )?;
        counters(encoder, "connections", "Connections that were accepted", &one(read(&counts.accepted)))?;
        gauges(
            encoder,
            "connections_open",
            "Connections that are open",
            None,
            &vec![(Vec::new(), read(&counts.open) as f64)],
        )?;
        gauges(
            encoder,
            "connections_max",
            "Connections that there is room for",
            None,
            &vec![(Vec::new(), self.gateway.room.whole as f64)],
        )?;
        counters(
            encoder,
            "connections_not_accepted",
            "Times that no connection could be accepted",
            &one(read(&counts.not_accepted)),
        )?;
        counters(
            encoder,
            "connections_broken",
            "Connections that ended because of what their client did",
            &one(read(&counts.misbehaved)),
        )?;
        counters(
            encoder,
            "upstream_failures",
            "Requests that servers did not answer, or not to the end",
            &one(read(&counts.upstream_failures)),
        )?;
        counters(
            encoder,
            "access_log_lost",
            "Lines of the access log that were lost",
            &one(watch.log.as_ref().map_or(0, |log| log.lost())),
        )?;
        let site = self.gateway.site.load();
        let in_flight: Samples<'_, f64> = site
            .upstreams
            .iter()
            .map(|upstream| (vec![("upstream", &*upstream.policy.name)], read(&upstream.in_flight) as f64))
            .collect();
        gauges(
            encoder,
            "upstream_requests_in_flight",
            "Requests that were passed on and have not ended, with those that wait for a connection",
            None,
            &in_flight,
        )?;
        let servers: Vec<(String, &str, bool)> = site
            .upstreams
            .iter()
            .flat_map(|upstream| {
                upstream
                    .servers
                    .iter()
                    .map(|server| (server.address.to_string(), &*upstream.policy.name, server.is_well()))
            })
            .collect();
        let up: Samples<'_, f64> = servers
            .iter()
            .map(|(url, upstream, well)| {
                (vec![("upstream", *upstream), ("server", url.as_str())], if *well { 1.0 } else { 0.0 })
            })
            .collect();
        gauges(
            encoder,
            "upstream_server_up",
            "1 if a server is well; where none is, all get requests",
            None,
            &up,
        )
    }

    /// Connections to servers, and the queues for them.
    fn upstream_connections(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let site = self.gateway.site.load();
        let servers: Vec<(&str, String, ServerLoad)> = site
            .upstreams
            .iter()
            .flat_map(|upstream| upstream.servers.iter().map(move |server| (upstream, server)))
            .map(|(upstream, server)| (&*upstream.policy.name, server.address.to_string(), server.load()))
            .collect();
        let (mut connections, mut most): (Samples<'_, f64>, Samples<'_, f64>) = Default::default();
        let (mut queued, mut rejections): (Samples<'_, f64>, Samples<'_, u64>) = Default::default();
        for (upstream, server, load) in &servers {
            let labels = || vec![("upstream", *upstream), ("server", server.as_str())];
            for (state, count) in [("active", load.active), ("idle", load.idle)] {
                connections.push(([labels(), vec![("state", state)]].concat(), count as f64));
            }
            most.push((labels(), load.max_connections as f64));
            queued.push((labels(), load.queued as f64));
            for (reason, count) in load.rejections {
                rejections.push(([labels(), vec![("reason", reason)]].concat(), count));
            }
        }
        let about = "Connections to a server; the idle ones wait for a request";
        gauges(encoder, "upstream_connections", about, None, &connections)?;
        let about = "The most connections to a server (max_connections, and the limit of open files)";
        gauges(encoder, "upstream_connections_max", about, None, &most)?;
        let about = "Requests that wait for a connection to a server";
        gauges(encoder, "upstream_queue_length", about, None, &queued)?;
        let about = "Requests that were answered 503 because all connections to a server were in use";
        counters(encoder, "upstream_rejections", about, &rejections)?;
        let about = "How long requests have waited for a connection to become free";
        let seconds = Some(&Unit::Seconds);
        let mut waits =
            encoder.encode_descriptor("upstream_queue_duration", about, seconds, MetricType::Histogram)?;
        for upstream in &site.upstreams {
            let (mut sum, mut buckets) = (0.0, vec![0; BOUNDS.len() + 1]);
            for (seconds, counts) in upstream.servers.iter().map(|server| server.waits().read()) {
                sum += seconds;
                buckets.iter_mut().zip(counts).for_each(|(bucket, count)| *bucket += count);
            }
            let bounds = BOUNDS.iter().map(|micros| *micros as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = bounds.zip(buckets).collect();
            let count = buckets.iter().map(|(_, count)| count).sum();
            let labels = [("upstream", &*upstream.policy.name)];
            waits
                .encode_family(&Labels(&labels))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_declared_by_the_name_of_their_samples() {
        let open = "# HELP a_b What.\n# TYPE a_b counter\na_b_total{x=\"# y\"} 1\n# HELP c How.\n# TYPE c gauge\n# UNIT c bytes\nc 2\n# EOF\n";
        let expected = "# HELP a_b_total What.\n# TYPE a_b_total counter\na_b_total{x=\"# y\"} 1\n# HELP c How.\n# TYPE c gauge\nc 2\n";
        assert_eq!(classic(open), expected);
    }
}
