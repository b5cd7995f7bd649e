//! The layer by itself, around services that are functions.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tollgate::tower::{Hints, LimitedBody, TollgateLayer};
use tollgate::{Decision, Limiter, ManualClock, Reason, Refusal, Timestamp};
use tower::{Layer, Service, ServiceExt, service_fn};

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

fn limiter(policy: &str) -> Limiter {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    Limiter::builder().clock(clock).policy(policy).build().unwrap_or_else(|error| panic!("{error}"))
}

type Answer<B> = Response<LimitedBody<B>>;

fn ask<T, B>(service: &T, headers: &[(&str, &str)]) -> Answer<B>
where
    T: Service<Request<String>, Response = Answer<B>, Error = Infallible> + Clone,
{
    let mut request = Request::builder().method("POST").uri("/v1/charges");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    now(service.clone().oneshot(request.body(String::new()).unwrap())).unwrap()
}

async fn ok(_: Request<String>) -> Result<Response<String>, Infallible> {
    Ok(Response::new("ok".to_owned()))
}

#[test]
fn an_access_log_outside_the_layer_can_tell_what_was_decided() {
    let policy = "
identify: { caller: [header: x-api-key], plan: [table], table: { alice: pro } }
plans: { free: { rate: 1/min }, pro: { rate: 1/min } }
classes: { charges: [POST /v1/charges] }
limiters: { request-rate: { rate: plan } }
";
    let service = TollgateLayer::new(limiter(policy)).layer(service_fn(ok));
    let passed = ask(&service, &[("x-api-key", "alice")]);
    let decision = passed.extensions().get::<Decision>().unwrap();
    assert_eq!((&*decision.class, decision.plan.as_deref()), ("charges", Some("pro")));
    assert_eq!(&*decision.standings[0].name, "request-rate");
    assert!(passed.extensions().get::<Refusal>().is_none());
    let refused = ask(&service, &[("x-api-key", "alice")]);
    assert_eq!(refused.status(), 429);
    let refusal = refused.extensions().get::<Refusal>().unwrap();
    assert_eq!((refusal.reason(), refusal.limiter()), (Reason::Rate, "request-rate"));
    assert_eq!((refusal.class(), refusal.plan()), (Some("charges"), Some("pro")));
    assert!(refused.extensions().get::<Decision>().is_none());
}

/// Callers by address, one request each.
const BY_ADDRESS: &str = "trusted_proxies: []\nlimiters: { rate: { rate: 1/d } }";

/// As a server may put it there.
#[derive(Clone)]
struct Connection(SocketAddr);

#[test]
fn the_peer_is_told_wherever_a_server_keeps_it() {
    let of = |peer: &str| {
        let mut request = Request::new(String::new());
        request.extensions_mut().insert(Connection(peer.parse().unwrap()));
        request
    };
    let layer = TollgateLayer::new(limiter(BY_ADDRESS));
    let layer = layer.peer(|parts| parts.extensions.get::<Connection>().map(|connection| connection.0));
    let service = layer.layer(service_fn(ok));
    let status = |request| now(service.clone().oneshot(request)).unwrap().status().as_u16();
    assert_eq!(status(of("192.0.2.1:1000")), 200);
    assert_eq!(status(of("192.0.2.2:1000")), 200, "another caller");
    assert_eq!(status(of("192.0.2.1:2000")), 429, "the same from another port");

    let of_ip = TollgateLayer::new(limiter(BY_ADDRESS)).peer(|_| Some(IpAddr::from([192, 0, 2, 7])));
    let hinted = of_ip.clone().hints(|_| Hints { peer: Some([192, 0, 2, 8].into()), ..Hints::default() });
    let ask = |layer: &TollgateLayer| ask(&layer.layer(service_fn(ok)), &[]).status().as_u16();
    assert_eq!((ask(&of_ip), ask(&of_ip)), (200, 429));
    assert_eq!((ask(&hinted), ask(&hinted)), (200, 429), "a hint goes first");
}

#[test]
fn a_hook_that_panics_is_no_reason_to_fail_a_request() {
    let layer =
        TollgateLayer::new(limiter(BY_ADDRESS)).peer(|_| -> Option<IpAddr> { panic!("a bug in a hook") });
    assert_eq!(ask(&layer.layer(service_fn(ok)), &[]).status(), 200);
}

/// Counts warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicU64>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_policy_by_address_that_is_told_none_is_warned_of_once() {
    let warnings = |layer: TollgateLayer| {
        let warned = Warnings::default();
        tracing::subscriber::with_default(warned.clone(), || {
            let service = layer.layer(service_fn(ok));
            (0..3).for_each(|_| drop(ask(&service, &[])));
        });
        warned.0.load(Ordering::Relaxed)
    };
    assert_eq!(warnings(TollgateLayer::new(limiter(BY_ADDRESS))), 1);
    let told = TollgateLayer::new(limiter(BY_ADDRESS)).peer(|_| Some(IpAddr::from([192, 0, 2, 7])));
    assert_eq!(warnings(told), 0, "it is told");
    let by_key = "identify: { caller: [header: x-api-key] }\nlimiters: { rate: { rate: 1/d } }";
    assert_eq!(warnings(TollgateLayer::new(limiter(by_key))), 0, "nobody asks for addresses");
}
