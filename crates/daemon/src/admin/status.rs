//! How everything stands, for people and for programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};
use tollgate::{Limiter, Mode};

use crate::gateway::Shared;
use crate::store::AnyStore;

/// Everything that is known.
pub(super) async fn of(limiter: &Limiter<AnyStore>, gateway: &Arc<Shared>) -> Value {
    let report = limiter.report();
    let fleets = limiter.fleet_use().await.unwrap_or_default();
    let policy = limiter.policy();
    let sampled = |name: &str| policy.limiters().iter().find(|known| *known.name == *name)?.sample_percent();
    let limiters: Vec<Value> = report
        .limiters
        .iter()
        .map(|known| {
            let mut shown = json!({
                "name": &*known.name,
                "kind": known.kind.name(),
                "mode": known.mode.name(),
                "by_hand": known.is_switched,
                "asked": known.stats.asked,
                "refused": known.stats.refused,
                "would_refuse": known.stats.would_refuse,
                "candidate_refused": known.stats.candidate_refused,
                "degraded": known.stats.degraded,
            });
            if let Some(percent) = sampled(&known.name) {
                add(&mut shown, "sample_percent", json!(percent));
            }
            if let Some(fleet) = fleets.iter().find(|fleet| fleet.name == known.name) {
                let places = json!({
                    "capacity": fleet.capacity,
                    "for_others": fleet.allocation,
                    "critical": fleet.used.critical,
                    "others": fleet.used.other,
                });
                add(&mut shown, "fleet", places);
            }
            if let Some(worker) = report.worker.as_ref().filter(|worker| worker.name == known.name) {
                let shed: Value = worker
                    .shed_ppm
                    .iter()
                    .map(|(class, ppm)| (class.to_string(), json!(*ppm as f64 / 1e4)))
                    .collect();
                let utilization = worker.utilization_ppm.map(|ppm| ppm as f64 / 1e4);
                add(&mut shown, "utilization_percent", json!(utilization));
                add(&mut shown, "shed_percent", shed);
            }
            shown
        })
        .collect();
    let store = match limiter.store() {
        AnyStore::Memory(store) => {
            let stats = store.stats();
            json!({ "kind": "memory", "bytes": stats.bytes, "max_bytes": stats.max_bytes, "evictions": stats.evictions })
        }
        AnyStore::Shared(store) => {
            let (health, recent) = (store.shared().health(), store.last_minute());
            json!({
                "kind": "redis",
                "address": store.shared().address(),
                "degraded": health.degraded,
                "problem": health.problem,
                "warnings": health.warnings,
                "nodes": health.nodes,
                "last_minute": {
                    "decisions": recent.decisions,
                    "without_store": recent.degraded,
                    "without_store_percent": recent.degraded_percent(),
                },
            })
        }
    };
    let site = gateway.site.load();
    let upstreams = site.upstreams.iter().map(|upstream| {
        let servers = upstream.servers.iter().map(|server| {
            let load = server.load();
            json!({
                "url": server.address.to_string(),
                "well": server.is_well(),
                "connections": load.active,
                "idle_connections": load.idle,
                "max_connections": load.max_connections,
                "queued": load.queued,
                "rejected": load.rejections.iter().map(|(_, count)| count).sum::<u64>(),
            })
        });
        json!({
            "name": &*upstream.policy.name,
            "in_flight": upstream.in_flight.load(Ordering::Relaxed),
            "servers": servers.collect::<Vec<_>>(),
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "mode": limiter.mode_of_all().name(),
        "by_hand": report.is_switched,
        "requests": report.totals.asked,
        "refused": report.totals.refused,
        "in_flight": report.in_flight,
        "limiters": limiters,
        "store": store,
        "upstreams": upstreams.collect::<Vec<_>>(),
        "reloads": {
            "succeeded": report.reloads.succeeded,
            "failed": report.reloads.failed,
            "error": report.reloads.error,
        },
    })
}

fn add(shown: &mut Value, name: &str, value: Value) {
    if let Some(fields) = shown.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

/// The same as lines.
pub fn lines(status: &Value) -> Vec<String> {
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    // First of all: a file that was not loaded is the likely reason for whatever else is odd.
    if let Some(error) = status.pointer("/reloads/error").and_then(Value::as_str) {
        let is_open = status.pointer("/limiters").and_then(Value::as_array).is_none_or(Vec::is_empty);
        let goes_on =
            if is_open { "there is no limiter, and everything passes" } else { "the one before it goes on" };
        lines.push(format!("THE POLICY FILE WAS NOT LOADED, {goes_on}:\n{error}\n"));
    }
    lines.push(format!(
        "tollgate {}: {} requests, {} refused, {} in progress",
        text(&status["version"]),
        number(&status["requests"]),
        number(&status["refused"]),
        number(&status["in_flight"]),
    ));
    // Who looks at night has to see what is not as the file says.
    let by_hand = |of: &Value| if of["by_hand"].as_bool().unwrap_or(false) { ", set by hand" } else { "" };
    let mode = text(&status["mode"]);
    if mode != Mode::Enforce.name() || !by_hand(status).is_empty() {
        let meaning = if mode == Mode::Enforce.name() { "each as it says" } else { "no limiter is stricter" };
        lines.push(format!("  all        {mode}: {meaning}{}", by_hand(status)));
    }
    let store = &status["store"];
    lines.push(match text(&store["kind"]).as_str() {
        "memory" => format!(
            "  store      memory, {} of {} MiB set aside, {} states forgotten",
            number(&store["bytes"]) >> 20,
            number(&store["max_bytes"]) >> 20,
            number(&store["evictions"])
        ),
        _ => {
            let state = match (store["degraded"].as_bool(), store["problem"].as_str()) {
                (Some(true), Some(problem)) => format!("AWAY: {problem}"),
                (Some(true), None) => "AWAY, in part".to_owned(),
                _ => format!("well, {} nodes", number(&store["nodes"])),
            };
            format!("  store      {}: {state}{}", text(&store["address"]), bypassed(&store["last_minute"]))
        }
    });
    for limiter in status["limiters"].as_array().into_iter().flatten() {
        let mut line = format!(
            "  {:<26} {:<8} {:>10} asked {:>8} refused",
            text(&limiter["name"]),
            text(&limiter["mode"]),
            number(&limiter["asked"]),
            number(&limiter["refused"]),
        );
        for (field, what) in [
            ("would_refuse", "would be"),
            ("candidate_refused", "by candidate"),
            ("degraded", "without the store"),
        ] {
            if number(&limiter[field]) > 0 {
                line += &format!(", {} {what}", number(&limiter[field]));
            }
        }
        line += by_hand(limiter);
        if let Some(percent) = limiter.get("sample_percent").and_then(Value::as_f64) {
            line += &format!(", ONLY FOR {percent} % OF ITS BUCKETS");
        }
        if let Some(fleet) = limiter.get("fleet") {
            line += &format!(
                "; {} critical and {} others in {} places, of which others may have {}",
                number(&fleet["critical"]),
                number(&fleet["others"]),
                number(&fleet["capacity"]),
                number(&fleet["for_others"])
            );
        }
        if let Some(shed) = limiter.get("shed_percent").and_then(Value::as_object) {
            let busy = limiter["utilization_percent"]
                .as_f64()
                .map_or("unknown".to_owned(), |busy| format!("{busy:.0} %"));
            let shed: Vec<String> = shed
                .iter()
                .filter(|(_, share)| share.as_f64().unwrap_or(0.0) > 0.0)
                .map(|(class, share)| format!("{class} {:.0} %", share.as_f64().unwrap_or(0.0)))
                .collect();
            let sheds = if text(&limiter["mode"]) == Mode::Enforce.name() { "sheds" } else { "would shed" };
            line += &format!(
                "; utilization {busy}, {sheds} {}",
                if shed.is_empty() { "nothing".to_owned() } else { shed.join(", ") }
            );
        }
        lines.push(line);
    }
    for upstream in status["upstreams"].as_array().into_iter().flatten() {
        let servers: Vec<String> = upstream["servers"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|server| {
                let mut line = text(&server["url"]);
                if !server["well"].as_bool().unwrap_or(true) {
                    line += " ILL";
                }
                let (queued, rejected) = (number(&server["queued"]), number(&server["rejected"]));
                if queued + rejected > 0 {
                    let (used, most) = (number(&server["connections"]), number(&server["max_connections"]));
                    line += &format!(
                        " ({used} of {most} connections in use, {queued} requests queued, {rejected} rejected)"
                    );
                }
                line
            })
            .collect();
        lines.push(format!(
            "  upstream   {}: {}, {} in progress",
            text(&upstream["name"]),
            servers.join(", "),
            number(&upstream["in_flight"])
        ));
    }
    lines
}

/// What to say of decisions that were made without the store, if there were any.
fn bypassed(last_minute: &Value) -> String {
    let number = |name: &str| last_minute[name].as_u64().unwrap_or(0);
    match number("without_store") {
        0 => String::new(),
        some => format!(
            "; {some} of {} decisions in the last minute ({:.1} %) WITHOUT IT",
            number("decisions"),
            last_minute["without_store_percent"].as_f64().unwrap_or(0.0)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_error_is_at_the_top() {
        let status =
            json!({ "mode": "enforce", "limiters": [{ "name": "l" }], "reloads": { "error": "bad file" } });
        let told = lines(&status).first().cloned().unwrap_or_default();
        assert_eq!(told, "THE POLICY FILE WAS NOT LOADED, the one before it goes on:\nbad file\n");
    }

    /// Found by a reader: one that is off was said to shed, and of a sample nothing was said.
    #[test]
    fn what_is_not_enforced_is_told() {
        let line = |mode: &str, more: Value| {
            let mut limiter = json!({ "name": "l", "mode": mode, "asked": 7 });
            for (name, value) in more.as_object().into_iter().flatten() {
                add(&mut limiter, name, value.clone());
            }
            lines(&json!({ "mode": "enforce", "limiters": [limiter] })).pop().unwrap_or_default()
        };
        let sheds = || json!({ "utilization_percent": 100.0, "shed_percent": { "get": 50.0 } });
        assert!(line("enforce", sheds()).ends_with("; utilization 100 %, sheds get 50 %"));
        for mode in ["dark", "off"] {
            assert!(line(mode, sheds()).ends_with("; utilization 100 %, would shed get 50 %"));
        }
        let sampled = line("enforce", json!({ "sample_percent": 12.5 }));
        assert!(sampled.ends_with("7 asked        0 refused, ONLY FOR 12.5 % OF ITS BUCKETS"), "{sampled}");
    }
}
