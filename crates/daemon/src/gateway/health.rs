//! Looks after servers: those that are ill get no requests until they are well.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request, header};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_core::policy::Health;

use super::pool::{Server, host_value};

/// Looks after a server. One good or bad answer decides.
pub(super) async fn look_after(server: Arc<Server>, health: Health) {
    let (every, patience) = (Duration::from(health.every), Duration::from(health.timeout));
    loop {
        let is_well = timeout(patience, ask(&server, &health.path)).await.unwrap_or(false);
        if server.found(is_well) {
            match is_well {
                true => tracing::info!(server = %server.address, "the server is well again"),
                false => tracing::warn!(server = %server.address, "the server is ill, and gets no requests"),
            }
        }
        tokio::time::sleep(every).await;
    }
}

async fn ask(server: &Arc<Server>, path: &str) -> bool {
    let asked = async {
        let stream = TcpStream::connect((server.address.host.as_str(), server.address.port)).await.ok()?;
        // With those that speak TLS, a connection has to be enough.
        if server.address.is_tls {
            return Some(true);
        }
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        let mut request = Request::new(Empty::<bytes::Bytes>::new());
        *request.uri_mut() = path.parse().ok()?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, host_value(&server.address)?);
        headers.insert(header::USER_AGENT, HeaderValue::from_static("tollgate-health"));
        let status = sender.send_request(request).await.ok()?.status();
        Some(status.is_success() || status.is_redirection())
    };
    asked.await.unwrap_or(false)
}
