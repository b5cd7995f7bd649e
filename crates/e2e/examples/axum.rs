//! An axum service behind a policy: `cargo run --release -p tollgate-e2e --example axum`, then
//! `for i in $(seq 8); do curl -si -H 'x-api-key: alice' localhost:3000/ | head -1; done`.
#![allow(clippy::print_stdout, reason = "an example")]

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::routing::{get, post};
use axum::{Extension, Router};
use tollgate::tower::TollgateLayer;
use tollgate::{Decision, Limiter};

const POLICY: &str = "
identify: { caller: [header: x-api-key, ip] }
trusted_proxies: []
classes:
  critical: [POST /charges]
  post: [POST *]
  get: [GET *]
limiters:
  request-rate:        { rate: 1/s, burst: 5 }
  concurrent-requests: { concurrency: 20 }
  fleet-usage:         { fleet: 400, reserve: 20% }
  worker-utilization:  { workers: { source: { in_flight: 64 } } }
";

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::from_policy(POLICY)?;
    let layer = TollgateLayer::new(limiter)
        .peer(|parts| parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
    let app =
        Router::new().route("/", get(hello)).route("/charges", post(|| async { "charged" })).layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// A handler may look at what was decided.
async fn hello(Extension(decision): Extension<Decision>) -> String {
    let left: Vec<String> = decision
        .standings
        .iter()
        .map(|standing| format!("{} of {}", standing.remaining, standing.name))
        .collect();
    format!("a request of class {}; left: {}\n", decision.class, left.join(", "))
}
