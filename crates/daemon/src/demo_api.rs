//! A small API to stand behind the gateway until there is a real one.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::Query;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use tokio::net::TcpListener;

/// The policy of the demonstration.
pub(crate) const POLICY: &str = include_str!("../../../examples/demo.yaml");

/// Where it is kept in the project.
pub(crate) const POLICY_FILE: &str = "examples/demo.yaml";

#[derive(serde::Deserialize)]
struct Slow {
    #[serde(default = "usual")]
    ms: u64,
}

fn usual() -> u64 {
    2000
}

fn router() -> Router {
    let list = || async { Json(json!({ "charges": [{ "id": "ch_1", "amount": 2000 }] })) };
    let create = || async { (StatusCode::CREATED, Json(json!({ "id": "ch_2", "amount": 2000 }))) };
    let report = |Query(Slow { ms }): Query<Slow>| async move {
        tokio::time::sleep(Duration::from_millis(ms.min(60_000))).await;
        Json(json!({ "report": "done", "ms": ms }))
    };
    let missing = || async {
        let here = "GET and POST /v1/charges, GET /v1/reports?ms=2000, GET /healthz\n";
        (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, "text/plain")], here).into_response()
    };
    Router::new()
        .route("/v1/charges", get(list).post(create))
        .route("/v1/reports", get(report))
        .route("/healthz", get(|| async { "well\n" }))
        .fallback(missing)
}

/// Serves it on this machine, at a port that is free.
pub(crate) async fn start() -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router()).await });
    Ok(address)
}
