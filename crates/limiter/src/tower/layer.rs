//! The layer: one limiter in front of any service.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use http::request::Parts;
use tollgate_core::store::Store;
use tower_layer::Layer;

use super::facts::{Hints, Peer};
use super::service::TollgateService;
use crate::admission::Limiter;
use crate::memory::MemoryStore;

type HintsOf = Arc<dyn Fn(&Parts) -> Hints + Send + Sync>;
type PeerOf = Arc<dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync>;

/// What a server knows of its requests.
#[derive(Clone, Default)]
pub(super) struct Known {
    hints: Option<HintsOf>,
    peer: Option<PeerOf>,
    peers: Arc<Peers>,
}

/// Whether anybody has ever told who is at the other end of a connection.
#[derive(Default)]
struct Peers(AtomicU8);

impl Peers {
    const TOLD: u8 = 1;
    const MISSED: u8 = 2;

    /// Whether this is the first request of a peer that is not known, and no other was known.
    fn is_first_unknown(&self, is_known: bool) -> bool {
        if self.0.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let after = if is_known { Self::TOLD } else { Self::MISSED };
        let first = self.0.compare_exchange(0, after, Ordering::Relaxed, Ordering::Relaxed);
        first.is_ok() && !is_known
    }
}

impl Known {
    /// What is known of a request. A hook that panics is no reason to fail one.
    pub(super) fn of(&self, parts: &Parts) -> Hints {
        let hints = self.hints.as_ref();
        let hints = hints.and_then(|hints| catch_unwind(AssertUnwindSafe(|| hints(parts))).ok());
        let mut hints = hints.unwrap_or_default();
        if let (None, Some(peer)) = (hints.peer, &self.peer) {
            hints.peer = catch_unwind(AssertUnwindSafe(|| peer(parts))).ok().flatten();
        }
        let beside = || parts.extensions.get::<SocketAddr>().map(SocketAddr::ip);
        hints.peer = hints.peer.or_else(beside);
        hints
    }

    /// Says once that nobody tells addresses to a policy that asks for them.
    pub(super) fn watch_peer(&self, peer: Option<IpAddr>, asks_for_addresses: impl Fn() -> bool) {
        if self.peers.is_first_unknown(peer.is_some()) && asks_for_addresses() {
            tracing::warn!(
                "the policy tells callers apart by address, and the layer does not know the address of a request's peer: \
                 all such callers share one bucket. Tell it by `TollgateLayer::peer`"
            );
        }
    }
}

/// Puts a [`Limiter`] in front of a service. Clones share it.
pub struct TollgateLayer<S: Store + 'static = MemoryStore> {
    limiter: Limiter<S>,
    known: Known,
}

impl<S: Store + 'static> TollgateLayer<S> {
    /// A layer that asks this limiter.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self { limiter, known: Known::default() }
    }

    /// Tells who is at the other end of a connection, which servers keep in different places. Without it the layer knows a
    /// `SocketAddr` among the request's extensions. A policy that tells callers apart by address puts all whose address nobody
    /// tells into one bucket; that is warned of once, through `tracing`, and counted ([`Totals::nobody`](crate::Totals)).
    ///
    /// In axum, with `into_make_service_with_connect_info::<SocketAddr>()`, this is it:
    ///
    /// ```
    /// # mod axum { pub mod extract { #[derive(Clone)] pub struct ConnectInfo<T>(pub T); } }
    /// use std::net::SocketAddr;
    /// use axum::extract::ConnectInfo;
    /// use tollgate::Limiter;
    /// use tollgate::tower::TollgateLayer;
    ///
    /// # let limiter = Limiter::from_policy("limiters: {}").unwrap();
    /// let layer = TollgateLayer::new(limiter)
    ///     .peer(|parts| parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0));
    /// ```
    #[must_use]
    pub fn peer<P: Into<Peer>>(mut self, peer: impl Fn(&Parts) -> Option<P> + Send + Sync + 'static) -> Self {
        self.known.peer = Some(Arc::new(move |parts| peer(parts).map(|peer| peer.into().0)));
        self
    }

    /// Tells what else a request does not say of itself.
    ///
    /// ```
    /// use tollgate::Limiter;
    /// use tollgate::tower::{Hints, TollgateLayer};
    ///
    /// /// As another layer, which has verified who is calling, may put it there.
    /// #[derive(Clone)]
    /// struct User(String);
    ///
    /// # let limiter = Limiter::from_policy("limiters: {}").unwrap();
    /// let layer = TollgateLayer::new(limiter).hints(|parts| Hints {
    ///     caller: parts.extensions.get::<User>().map(|user| user.0.clone()),
    ///     ..Hints::default()
    /// });
    /// ```
    #[must_use]
    pub fn hints(mut self, hints: impl Fn(&Parts) -> Hints + Send + Sync + 'static) -> Self {
        self.known.hints = Some(Arc::new(hints));
        self
    }
}

impl<T, S: Store + 'static> Layer<T> for TollgateLayer<S> {
    type Service = TollgateService<T, S>;

    fn layer(&self, inner: T) -> Self::Service {
        TollgateService::new(inner, self.limiter.clone(), self.known.clone())
    }
}

impl<S: Store> Clone for TollgateLayer<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), known: self.known.clone() }
    }
}

impl<S: Store> fmt::Debug for TollgateLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
