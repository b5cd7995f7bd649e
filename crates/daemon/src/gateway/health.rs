//! Looks after servers: those that are ill get no requests until they are well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tollgate_core::policy::{self, Health};

use super::pool::Server;

/// Says at once that a host has no address, and not when the first request fails. It may have one later, and then gets requests.
pub(super) async fn look_for(server: policy::Server) {
    let found = tokio::net::lookup_host((server.host.as_str(), server.port)).await;
    let problem = match found.map(|mut found| found.next().is_some()) {
        Ok(true) => return,
        Ok(false) => "it has no address".to_owned(),
        Err(error) => error.to_string(),
    };
    tracing::warn!(%server, "the host of this server is not known, and requests to it will fail (502) until it is: {problem}");
}

/// Looks after a server. One good or bad answer decides.
pub(super) async fn look_after(server: Arc<Server>, health: Health) {
    let (every, patience) = (Duration::from(health.every), Duration::from(health.timeout));
    loop {
        let is_well = timeout(patience, server.status_of(&health.path, patience)).await;
        let is_well =
            is_well.ok().flatten().is_some_and(|status| status.is_success() || status.is_redirection());
        if server.found(is_well) {
            match is_well {
                true => tracing::info!(server = %server.address, "the server is well again"),
                false => {
                    tracing::warn!(server = %server.address, "the server is ill, and gets no requests while there are others that are well")
                }
            }
        }
        tokio::time::sleep(every).await;
    }
}
