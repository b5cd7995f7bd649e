//! The layer by itself, around services that are functions.
#![cfg(feature = "tower")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tollgate::tower::{LimitedBody, TollgateLayer};
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
