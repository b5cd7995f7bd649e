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
    // A side that only says no more may still listen; one that is gone leaves nothing to be said to the other.
    let ended = tokio::try_join!(
        copy(from_client, to_server, &pulse, &up, [Cut::ByClient, Cut::ByServer]),
        copy(from_server, to_client, &pulse, &down, [Cut::ByServer, Cut::ByClient]),
    );
    let track = &mut ending.carried.track;
    if let Err(cut) = ended {
        track.note(|entry| entry.error = Some(cut.told().to_owned()));
    }
    track.ended(ended.is_ok(), Instant::now());
}

/// Why a tunnel ended before both sides had said all.
#[derive(Clone, Copy)]
enum Cut {
    ByClient,
    ByServer,
    Silence,
}

impl Cut {
    fn told(self) -> &'static str {
        match self {
            Self::ByClient => "the client broke the connection off",
            Self::ByServer => "the server broke the connection off",
            Self::Silence => "neither side said anything in time (timeouts.idle)",
        }
    }
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

    /// Waits for something of this side, or until nothing has gone either way for too long.
    async fn keeps<T>(&self, side: Cut, awaited: impl Future<Output = io::Result<T>>) -> Result<T, Cut> {
        let mut awaited = pin!(awaited);
        loop {
            let deadline = *self.last.lock() + self.patience;
            match timeout_at(deadline, awaited.as_mut()).await {
                Ok(came) => return came.map_err(|_| side),
                Err(_) if *self.last.lock() + self.patience > deadline => {}
                Err(_) => return Err(Cut::Silence),
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

/// Copies all there is, and then closes the other side. Each side can break it off.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    pulse: &Pulse,
    copied: &AtomicUsize,
    [from_side, to_side]: [Cut; 2],
) -> Result<(), Cut> {
    let mut buffer = vec![0; 16 << 10];
    let ended = loop {
        let read = match pulse.keeps(from_side, from.read(&mut buffer)).await {
            Ok(0) => break Ok(()),
            Ok(read) => read,
            Err(cut) => break Err(cut),
        };
        pulse.beats();
        let sent = async {
            to.write_all(buffer.get(..read).unwrap_or_default()).await?;
            to.flush().await
        };
        if let Err(cut) = pulse.keeps(to_side, sent).await {
            break Err(cut);
        }
        pulse.beats();
        copied.fetch_add(read, Ordering::Relaxed);
    };
    // Who takes nothing is not waited for with that either.
    let _ = timeout(pulse.patience, to.shutdown()).await;
    ended
}
