//! A gRPC service behind a limiter: `cargo run --release -p tollgate-e2e --example tonic`. A caller that asks too
//! often gets RESOURCE_EXHAUSTED, here by a client of its own.
#![allow(clippy::print_stdout, reason = "an example")]

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tollgate::Limiter;
use tollgate::tower::TollgateLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let limiter = Limiter::from_policy("limiters: { request-rate: { rate: 1/s, burst: 3, per: global } }")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address: SocketAddr = listener.local_addr()?;
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(TollgateLayer::new(limiter)).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = HealthClient::new(Channel::from_shared(format!("http://{address}"))?.connect().await?);
    for _ in 0..5 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(_) => println!("served"),
            Err(status) => println!("{:?}: {}", status.code(), status.message()),
        }
    }
    Ok(())
}
