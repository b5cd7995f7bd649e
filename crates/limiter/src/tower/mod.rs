//! Middleware for axum, hyper and tonic, and whatever else is made of [tower](https://docs.rs/tower) services.
//!
//! ```
//! use http::{Request, Response};
//! use tollgate::Limiter;
//! use tollgate::tower::TollgateLayer;
//! use tower::{ServiceBuilder, service_fn};
//!
//! let limiter = Limiter::from_policy("limiters: { request-rate: { rate: 50/s, per: global } }")?;
//! let hello = service_fn(|_: Request<String>| async { Ok::<_, std::io::Error>(Response::new(String::from("hello"))) });
//! let service = ServiceBuilder::new().layer(TollgateLayer::new(limiter)).service(hello);
//! # Ok::<_, tollgate::PolicyError>(())
//! ```
//!
//! In axum it is `Router::layer(TollgateLayer::new(limiter))`, in tonic `Server::builder().layer(..)`; the workspace's
//! `crates/e2e/examples` has a whole service of each.
//!
//! * A request that may not pass is answered by the layer: 429 or 503, with `Retry-After`, RateLimit fields and a body that
//!   the caller accepts. One over gRPC gets the status that it understands.
//! * One that passes finds a [`Decision`](crate::Decision) among its extensions, and counts as in progress until the body of
//!   its answer has ended or its client has gone away.
//! * Where what a request costs is only known afterwards, it finds a [`Settle`](crate::Settle) there, too, which a handler
//!   can keep for as long as its answer streams.
//! * Whoever is outside the layer, such as an access log, finds the same [`Decision`](crate::Decision) among the extensions of
//!   the answer, or the [`Refusal`](crate::Refusal), which knows the deciding limiter.
//! * Clones share one limiter, and an idle connection holds nothing: a permit is taken when a request comes, not when a
//!   service is ready for one.
//!
//! What the layer cannot know of a request it is told: the peer's address by [`TollgateLayer::peer`], all else by
//! [`TollgateLayer::hints`].

mod body;
mod facts;
mod layer;
mod service;

pub use body::LimitedBody;
pub use facts::{Hints, InMap, Peer};
pub use layer::TollgateLayer;
pub use service::{TollgateService, add_fields, refused};
