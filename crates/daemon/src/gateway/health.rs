//! Looks after servers: those that are ill get no requests until they are well.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tollgate_core::policy::Health;

use super::pool::Server;

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
                false => tracing::warn!(server = %server.address, "the server is ill, and gets no requests"),
            }
        }
        tokio::time::sleep(every).await;
    }
}
