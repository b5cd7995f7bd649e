//! Connections of the admin door. Those who say nothing are not waited for for ever.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::files;
use crate::gateway::Shared;

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router, gateway: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(files::for_admin(files::raise_limit())));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No more files, or no memory: that passes.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let patience = Duration::from(gateway.site.load().policy.gateway().timeouts.head);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(patience)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        tokio::spawn(async move {
            let _ = connection.await;
            drop(place);
        });
    }
}
