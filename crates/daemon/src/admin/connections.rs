//! Connections of the admin door. Those who say nothing are not waited for for ever.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::files;
use crate::gateway::Shared;

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
        let patience = Duration::from(gateway.site.load().policy.gateway().timeouts.head);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        open.push_back(tokio::spawn(async move { drop(connection.await) }).abort_handle());
    }
}
