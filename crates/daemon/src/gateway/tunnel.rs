//! Connections that change their protocol, such as WebSocket: bytes go both ways until one side ends, and the request is in
//! progress for as long.

use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::body::Carried;

/// Both ends of a change of protocol.
pub(super) struct Ends {
    pub(super) client: OnUpgrade,
    pub(super) server: OnUpgrade,
}

/// The end of the client, which is taken before the request goes on.
pub(super) fn client_end<B>(request: &mut Request<B>) -> OnUpgrade {
    hyper::upgrade::on(request)
}

/// The end of the server.
pub(super) fn server_end(response: &mut Response<Incoming>) -> OnUpgrade {
    hyper::upgrade::on(response)
}

/// Connects both ends until one of them is closed, or nothing has gone either way for so long.
pub(super) async fn connect(ends: Ends, mut carried: Box<Carried>, patience: Duration) {
    let (Ok(client), Ok(server)) = tokio::join!(ends.client, ends.server) else { return };
    let (from_client, to_client) = tokio::io::split(TokioIo::new(client));
    let (from_server, to_server) = tokio::io::split(TokioIo::new(server));
    let (up, down) =
        tokio::join!(copy(from_client, to_server, patience), copy(from_server, to_client, patience));
    carried.track.sent(usize::try_from(down.unwrap_or(0)).unwrap_or(usize::MAX));
    carried.track.ended(up.is_some() && down.is_some());
}

/// Copies all there is, and then closes the other side. None if that failed.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    patience: Duration,
) -> Option<u64> {
    let mut buffer = vec![0; 16 << 10];
    let mut all = 0;
    let copied = loop {
        let Ok(Ok(read)) = tokio::time::timeout(patience, from.read(&mut buffer)).await else { break None };
        if read == 0 {
            break Some(all);
        }
        let Ok(Ok(())) = tokio::time::timeout(patience, to.write_all(buffer.get(..read)?)).await else {
            break None;
        };
        all += read as u64;
    };
    let _ = to.shutdown().await;
    copied
}
