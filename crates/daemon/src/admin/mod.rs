//! The door of those who operate a Tollgate: is it well, what does it do, and who may change that.

mod access;
mod connections;
mod json_body;
pub(crate) mod metrics;
mod status;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::bail;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::{LastMinute, Limiter, Mode};

use self::access::Access;
use self::json_body::Said;
pub use self::status::lines;
use crate::gateway::Shared;
use crate::settings::Door;
use crate::store::AnyStore;

/// What the door shows and changes.
#[derive(Clone)]
pub(crate) struct Admin {
    limiter: Limiter<AnyStore>,
    gateway: Arc<Shared>,
    access: Arc<Access>,
    readiness: Readiness,
}

/// Whether requests may be sent here.
#[derive(Clone, Default)]
pub(crate) struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// No more should come: the process is about to end.
    pub(crate) fn end(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn is_ending(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Without a token it is for this machine alone.
pub(crate) fn check(door: &Door, token: Option<&str>) -> anyhow::Result<()> {
    if token.is_some_and(|token| token.trim().len() < 8) {
        bail!(
            "the admin token is too short to be one: it has 8 characters or more (openssl rand -hex 16 makes one)"
        );
    }
    match door.address {
        Some(address) if !address.ip().is_loopback() && token.is_none() => bail!(
            "the admin door at {address} can be reached from elsewhere, and whoever reaches it can switch limiters off: set \
             TOLLGATE_TOKEN (or --token), or listen on this machine with --admin 127.0.0.1:{}",
            address.port()
        ),
        _ => Ok(()),
    }
}

impl Admin {
    pub(crate) fn new(limiter: Limiter<AnyStore>, gateway: Arc<Shared>, token: Option<String>) -> Self {
        Self { limiter, gateway, access: Arc::new(Access::new(token)), readiness: Readiness::default() }
    }

    pub(crate) fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Serves until the process ends.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let guarded = Router::new()
            .route("/metrics", get(show_metrics))
            .route("/api/status", get(show_status))
            .route("/api/limiters/{name}/mode", post(switch))
            .route("/api/mode", post(switch_all))
            .route("/api/utilization", post(report_utilization))
            .method_not_allowed_fallback(other_method)
            .layer(middleware::from_fn_with_state(self.clone(), guard));
        let router = Router::new()
            .route("/livez", get(|| async { "alive\n" }))
            .route("/readyz", get(ready))
            .method_not_allowed_fallback(other_method)
            .merge(guarded)
            .fallback(|| async {
                let all = "there are GET /livez, /readyz, /metrics and /api/status, and POST /api/limiters/NAME/mode, \
                           /api/mode and /api/utilization";
                problem(StatusCode::NOT_FOUND, all)
            })
            .layer(middleware::map_response(as_it_is))
            .with_state(self.clone());
        connections::serve(listener, router, self.gateway).await;
    }
}

async fn guard(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    match admin.access.refuses(request.method(), request.headers()) {
        Some((status, why)) => problem(status, why),
        None => {
            let patience = admin.gateway.site.load().policy.gateway().timeouts.body.into();
            let answered = tokio::time::timeout(patience, next.run(request)).await;
            answered.unwrap_or_else(|_| {
                problem(StatusCode::REQUEST_TIMEOUT, "the body of the request did not come in time")
            })
        }
    }
}

async fn other_method() -> Response {
    let why = "this is asked in another way, which `Allow` names: what changes something is a POST, all else is a GET";
    problem(StatusCode::METHOD_NOT_ALLOWED, why)
}

/// Browsers make nothing of an answer that it does not say it is.
async fn as_it_is(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(header::HeaderValue::from_static("no-store"));
    response
}

/// Ready also while the store is away: limits then do what they were told to, and requests are served. Not ready while no upstream
/// has a healthy server: whoever sends requests here can send them to another gateway, which may reach one.
async fn ready(State(admin): State<Admin>) -> Response {
    if admin.readiness.is_ending() {
        return (StatusCode::SERVICE_UNAVAILABLE, "ending\n").into_response();
    }
    let (is_away, recent) = match admin.limiter.store() {
        AnyStore::Shared(store) => (store.shared().health().degraded, store.last_minute()),
        AnyStore::Memory(_) => (false, LastMinute::default()),
    };
    let report = admin.limiter.report();
    let policy = report.reloads.error.map(|_| match report.limiters.is_empty() {
        true => "the policy file was not loaded, there is no limiter, and everything passes",
        false => "the policy file was not loaded, the one before it goes on",
    });
    let (unhealthy, is_any_healthy) = unhealthy_upstreams(&admin.gateway).await;
    if !is_any_healthy {
        let text = format!("not ready: {}\n", unhealthy.join("; "));
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    }
    let known = is_away.then_some("the store is away").into_iter().chain(policy).map(str::to_owned);
    let degraded: Vec<String> = known.chain(unhealthy).collect();
    let mut text = match degraded.as_slice() {
        [] => "ready\n".to_owned(),
        some => format!("ready, degraded: {}\n", some.join("; ")),
    };
    if recent.degraded > 0 {
        let percent = recent.degraded_percent();
        text += &format!("{percent:.1} % of decisions in the last minute were made without the store\n");
    }
    text.into_response()
}

/// What is wrong with each upstream that has no healthy server, and whether there is one that has.
async fn unhealthy_upstreams(gateway: &Shared) -> (Vec<String>, bool) {
    let site = gateway.site.load_full();
    let (mut unhealthy, mut is_any_healthy) = (Vec::new(), site.upstreams.is_empty());
    let looked_at = join_all(site.upstreams.iter().map(|upstream| upstream.is_unhealthy())).await;
    for (upstream, is_unhealthy) in site.upstreams.iter().zip(looked_at) {
        match is_unhealthy {
            true => unhealthy.push(format!("no server of upstream {:?} is healthy", upstream.policy.name)),
            false => is_any_healthy = true,
        }
    }
    (unhealthy, is_any_healthy)
}

async fn show_metrics(State(admin): State<Admin>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let (kind, text) = metrics::text(&admin.limiter, &admin.gateway, accept).await;
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn show_status(State(admin): State<Admin>) -> Json<Value> {
    Json(status::of(&admin.limiter, &admin.gateway).await)
}

/// What is said to those who ask for no mode that there is.
const MODES: &str = "say {\"mode\": \"enforce\"}, \"dark\", \"off\", or \"policy\" for what the policy says";

/// The mode that is asked for: `null` is what the policy says. None if there is no such mode.
fn mode_in(body: &Value) -> Option<Option<Mode>> {
    match body.get("mode")? {
        Value::Null => Some(None),
        Value::String(name) if name == "policy" => Some(None),
        Value::String(name) => Mode::named(name).map(Some),
        _ => None,
    }
}

fn shown(mode: Option<Mode>) -> &'static str {
    mode.map_or("policy", Mode::name)
}

async fn switch(State(admin): State<Admin>, Path(name): Path<String>, Said(body): Said) -> Response {
    let Some(mode) = mode_in(&body) else { return problem(StatusCode::BAD_REQUEST, MODES) };
    if !admin.limiter.switch(&name, mode) {
        let names: Vec<String> = admin.limiter.modes().iter().map(|(name, _)| name.to_string()).collect();
        let shown: String = name.chars().take(64).collect();
        let others = match names.as_slice() {
            [] => "the policy has none".to_owned(),
            names => format!("there are {}", names.join(", ")),
        };
        return problem(StatusCode::NOT_FOUND, &format!("there is no limiter {shown:?}: {others}"));
    }
    tracing::warn!(limiter = %name, mode = shown(mode), "switched by hand");
    Json(json!({ "limiter": name, "mode": shown(mode) })).into_response()
}

async fn switch_all(State(admin): State<Admin>, Said(body): Said) -> Response {
    let Some(mode) = mode_in(&body) else { return problem(StatusCode::BAD_REQUEST, MODES) };
    admin.limiter.switch_all(mode);
    tracing::warn!(mode = shown(mode), "all limiters switched by hand");
    Json(json!({ "mode": shown(mode) })).into_response()
}

/// What the protected service says of itself.
async fn report_utilization(State(admin): State<Admin>, Said(body): Said) -> Response {
    // The same rule as for a header that tells it: a ratio, or a percentage with its sign.
    let text = match (body.get("percent"), body.get("ratio")) {
        (Some(Value::Number(percent)), None) => percent.as_f64().map(|percent| format!("{percent}%")),
        (None, Some(Value::Number(ratio))) => ratio.as_f64().map(|ratio| ratio.to_string()),
        _ => None,
    };
    let Some(text) = text else {
        return problem(StatusCode::BAD_REQUEST, "send {\"percent\": 85} or {\"ratio\": 0.85}, and not both");
    };
    match tollgate::utilization::parse(text.as_bytes()) {
        Ok(ppm) => {
            let is_for_us = !admin.limiter.policy().watches_upstreams();
            match is_for_us && admin.limiter.report_utilization(ppm) {
                true => Json(json!({ "percent": ppm as f64 / 1e4 })).into_response(),
                false => problem(
                    StatusCode::CONFLICT,
                    "no limiter of the policy asks for it: one with `workers: { source: reported }` would",
                ),
            }
        }
        Err(error) => problem(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

fn problem(status: StatusCode, detail: &str) -> Response {
    let body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or_default(),
        "status": status.as_u16(),
        "detail": detail,
    });
    let mut response =
        (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}
