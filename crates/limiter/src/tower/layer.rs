//! The layer: one limiter in front of any service.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use tollgate_core::store::Store;
use tower_layer::Layer;

use super::facts::Hints;
use super::service::TollgateService;
use crate::admission::Limiter;
use crate::memory::MemoryStore;

pub(super) type HintsOf = Arc<dyn Fn(&Parts) -> Hints + Send + Sync>;

/// Puts a [`Limiter`] in front of a service. Clones share it.
pub struct TollgateLayer<S: Store + 'static = MemoryStore> {
    limiter: Limiter<S>,
    hints: Option<HintsOf>,
}

impl<S: Store + 'static> TollgateLayer<S> {
    /// A layer that asks this limiter.
    pub fn new(limiter: Limiter<S>) -> Self {
        Self { limiter, hints: None }
    }

    /// Tells what a request does not say of itself. In axum, with `into_make_service_with_connect_info`, the peer is a
    /// `ConnectInfo<SocketAddr>` among the extensions.
    ///
    /// ```
    /// use std::net::SocketAddr;
    /// use tollgate::Limiter;
    /// use tollgate::tower::{Hints, TollgateLayer};
    ///
    /// /// As a server may put it there.
    /// #[derive(Clone)]
    /// struct Peer(SocketAddr);
    ///
    /// # let limiter = Limiter::from_policy("limiters: {}").unwrap();
    /// let layer = TollgateLayer::new(limiter).hints(|parts| Hints {
    ///     peer: parts.extensions.get::<Peer>().map(|peer| peer.0.ip()),
    ///     ..Hints::default()
    /// });
    /// ```
    #[must_use]
    pub fn hints(mut self, hints: impl Fn(&Parts) -> Hints + Send + Sync + 'static) -> Self {
        self.hints = Some(Arc::new(hints));
        self
    }
}

impl<T, S: Store + 'static> Layer<T> for TollgateLayer<S> {
    type Service = TollgateService<T, S>;

    fn layer(&self, inner: T) -> Self::Service {
        TollgateService::new(inner, self.limiter.clone(), self.hints.clone())
    }
}

impl<S: Store> Clone for TollgateLayer<S> {
    fn clone(&self) -> Self {
        Self { limiter: self.limiter.clone(), hints: self.hints.clone() }
    }
}

impl<S: Store> fmt::Debug for TollgateLayer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TollgateLayer").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}
