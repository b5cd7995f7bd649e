//! Connections that change their protocol, such as WebSocket: bytes go both ways until one side ends, and the request is in
//! progress for as long.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

use super::body::Carried;
use super::http1::Wire;

/// The end of the server, and what lasts as long as the tunnel.
pub(super) struct Tunnel {
    pub(super) server: Wire,
    pub(super) carried: Carried,
    /// How long nothing may go either way.
    pub(super) patience: Duration,
}

/// Connects both ends until one of them is closed, or nothing has gone either way for too long.
pub(super) async fn connect(client: Wire, tunnel: Box<Tunnel>) {
    let Tunnel { server, carried, patience } = *tunnel;
    let down = AtomicUsize::new(0);
    let mut ending = Ending { carried, down: &down };
    let (from_client, to_client) = tokio::io::split(client);
    let (from_server, to_server) = tokio::io::split(server);
    let pulse = Pulse { last: Mutex::new(Instant::now()), patience };
    let up = AtomicUsize::new(0);
    let (up, down) =
        tokio::join!(copy(from_client, to_server, &pulse, &up), copy(from_server, to_client, &pulse, &down));
    ending.carried.track.ended(up.is_some() && down.is_some(), Instant::now());
}

/// When something last went either way.
struct Pulse {
    last: Mutex<Instant>,
    patience: Duration,
}

impl Pulse {
    fn beats(&self) {
        *self.last.lock() = Instant::now();
    }

    /// Waits for something, or until nothing has gone either way for too long.
    async fn keeps<T>(&self, awaited: impl Future<Output = io::Result<T>>) -> Option<T> {
        let mut awaited = pin!(awaited);
        loop {
            let deadline = *self.last.lock() + self.patience;
            match timeout_at(deadline, awaited.as_mut()).await {
                Ok(came) => return came.ok(),
                Err(_) if *self.last.lock() + self.patience > deadline => {}
                Err(_) => return None,
            }
        }
    }
}

/// Writes down how much went to the client, also if the tunnel is cut.
struct Ending<'t> {
    carried: Carried,
    down: &'t AtomicUsize,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.carried.track.sent(self.down.load(Ordering::Relaxed));
    }
}

/// Copies all there is, and then closes the other side. None if that failed.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pulse: &Pulse,
    copied: &AtomicUsize,
) -> Option<()> {
    let mut buffer = vec![0; 16 << 10];
    let ended = loop {
        let Some(read) = pulse.keeps(from.read(&mut buffer)).await else { break None };
        if read == 0 {
            break Some(());
        }
        pulse.beats();
        let sent = async {
            to.write_all(buffer.get(..read).unwrap_or_default()).await?;
            to.flush().await
        };
        let Some(()) = pulse.keeps(sent).await else { break None };
        pulse.beats();
        copied.fetch_add(read, Ordering::Relaxed);
    };
    // Who takes nothing is not waited for with that either.
    let _ = timeout(pulse.patience, to.shutdown()).await;
    ended
}
