//! What a service manager is told, and the sockets that it hands over. Where there is none, nothing is told.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::Context;
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::runtime::Handle;

/// Says how things stand. A manager that does not listen is its own affair.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager was not told");
    }
}

/// Requests can be sent here.
pub(crate) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The policy is being loaded again; [`ready`] says that it is over.
pub(crate) fn reloading() {
    // Without the time a newer manager takes the reload for a failed one.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

pub(crate) fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Says that all is alive, twice as often as it is asked for, for as long as all workers are: one that is stuck is waited for,
/// and has the process started anew.
pub(crate) async fn keep_saying_alive(workers: Vec<Handle>) {
    let Some(every) = sd_notify::watchdog_enabled() else { return };
    loop {
        for worker in &workers {
            // One that has ended is not stuck.
            let _ = worker.spawn(async {}).await;
        }
        tell(&[NotifyState::Watchdog]);
        tokio::time::sleep((every / 2).max(Duration::from_millis(1))).await;
    }
}

/// Sockets that were opened for us, each for its door.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    pub(crate) gateway: Option<TcpListener>,
    pub(crate) admin: Option<TcpListener>,
}

impl Inherited {
    /// Takes them from the environment. The doors are `gateway` and `admin` by name (FileDescriptorName); where no socket has
    /// one of these names, the first is that of the gateway, and the second that of the admin door.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut all = ListenFd::from_env();
        let [gateway, admin] = places(&names);
        let mut take = |at: Option<usize>| match at {
            Some(at) => all.take_tcp_listener(at),
            None => Ok(None),
        };
        let taken = take(gateway).and_then(|gateway| Ok(Self { gateway, admin: take(admin)? }));
        let taken = taken.context("a socket that was handed over (LISTEN_FDS) cannot be listened at: give TCP sockets, ListenStream=PORT or ListenStream=ADDRESS:PORT")?;
        if all.len() > 2 {
            tracing::warn!(
                "{} sockets were handed over; there are two doors, so the others are not used",
                all.len()
            );
        }
        for listener in [&taken.gateway, &taken.admin].into_iter().flatten() {
            listener.set_nonblocking(true)?;
        }
        Ok(taken)
    }
}

/// Which socket is that of the gateway, and which that of the admin door.
fn places(names: &str) -> [Option<usize>; 2] {
    let named = ["gateway", "admin"].map(|door| names.split(':').position(|name| name == door));
    if named == [None, None] { [Some(0), Some(1)] } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_known_by_name_or_else_by_their_place() {
        for (names, expected) in [
            ("", [Some(0), Some(1)]),
            ("tollgate.socket:tollgate.socket", [Some(0), Some(1)]),
            ("admin:gateway", [Some(1), Some(0)]),
            ("admin", [None, Some(0)]),
        ] {
            assert_eq!(places(names), expected, "{names}");
        }
    }
}
