//! Connections of the admin door. Those who say nothing are not waited for for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::files;
use crate::gateway::Shared;
use crate::gateway::own_service::{self, Patience};

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router, gateway: Arc<Shared>) {
    let most = files::for_admin(files::raise_limit());
    // The oldest makes room: what is asked here takes a moment, and whoever keeps a connection for longer is not in need of it.
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(most);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No more files, or no memory: that passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= most
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let timeouts = gateway.site.load().policy.gateway().timeouts;
        let patience = Patience { head: timeouts.head.into(), write: timeouts.body.into() };
        let connection = own_service::serve(stream, patience, TowerToHyperService::new(router.clone()));
        open.push_back(tokio::spawn(connection).abort_handle());
    }
}
