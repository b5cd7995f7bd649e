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
use http_body::Body;
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

/// The three fields of an answer that came through two layers, the inner of which is first.
fn through_two(style: &str, prefix: &str, rates: [&str; 2]) -> [Vec<String>; 3] {
    let [inner, outer] = rates.map(|rate| {
        let policy =
            format!("answers: {{ headers: {style} }}\nlimiters: {{ all: {{ rate: {rate}, per: global }} }}");
        TollgateLayer::new(limiter(&policy))
    });
    let answer = ask(&outer.layer(inner.layer(service_fn(ok))), &[]);
    ["limit", "remaining", "reset"].map(|field| {
        let values = answer.headers().get_all(format!("{prefix}{field}"));
        values.iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    })
}

#[test]
fn of_two_layers_the_one_with_less_left_is_told() {
    for (style, prefix) in
        [("draft-6", "ratelimit-"), ("x-ratelimit", "x-ratelimit-"), ("envoy", "x-ratelimit-")]
    {
        for rates in [["10/min", "20/min"], ["20/min", "10/min"]] {
            let [limit, remaining, reset] = through_two(style, prefix, rates);
            assert_eq!(remaining, ["9"], "{style} {rates:?}");
            assert!(limit.len() == 1 && limit[0].starts_with("10"), "{style} {rates:?}: {limit:?}");
            assert!(
                reset.len() == 1 && ["6", "1000006"].contains(&&*reset[0]),
                "{style} {rates:?}: {reset:?}"
            );
        }
    }
}

/// The fields of an answer of a service that says these itself, behind a layer of this style with ten a minute.
fn beside(style: &str, theirs: &'static [(&'static str, &'static str)], field: &str) -> Vec<String> {
    let service = service_fn(move |_: Request<String>| async move {
        let answer =
            theirs.iter().fold(Response::builder(), |answer, (name, value)| answer.header(*name, *value));
        Ok::<_, Infallible>(answer.body(String::new()).unwrap())
    });
    let policy =
        format!("answers: {{ headers: {style} }}\nlimiters: {{ all: {{ rate: 10/min, per: global }} }}");
    let answer = ask(&TollgateLayer::new(limiter(&policy)).layer(service), &[]);
    answer.headers().get_all(field).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
}

/// Found by a reader: what cannot be read was taken for nothing that is left, and shown in the place of ours, however wide it was.
#[test]
fn fields_of_a_service_that_cannot_be_read_make_way_for_ours() {
    const REMAINING: &str = "x-ratelimit-remaining";
    for theirs in [
        &[("x-ratelimit-limit", "5000")][..],
        &[(REMAINING, "many"), ("x-ratelimit-limit", "7")],
        &[(REMAINING, "99999999999999999999999999")],
        &[(REMAINING, "-1")],
        &[(REMAINING, "")],
        &[(REMAINING, "3"), (REMAINING, "9000")],
    ] {
        for (field, ours) in [(REMAINING, "9"), ("x-ratelimit-limit", "10"), ("x-ratelimit-reset", "1000006")]
        {
            assert_eq!(beside("x-ratelimit", theirs, field), [ours], "{theirs:?} {field}");
        }
    }
    assert_eq!(beside("x-ratelimit", &[(REMAINING, "3")], REMAINING), ["3"], "less is left of it");
    assert_eq!(
        beside("x-ratelimit", &[(REMAINING, "3")], "x-ratelimit-limit"),
        [""; 0],
        "which is theirs to tell"
    );
    for theirs in [&[("ratelimit", "garbage;;;")][..], &[("ratelimit", "")]] {
        assert_eq!(beside("draft-7", theirs, "ratelimit"), ["limit=10, remaining=9, reset=6"], "{theirs:?}");
        assert_eq!(beside("ietf-11", theirs, "ratelimit"), [r#""all";r=9;t=6"#], "{theirs:?}");
    }
    let both = [r#""theirs";r=3;t=1"#, r#""all";r=9;t=6"#];
    assert_eq!(beside("ietf-11", &[("ratelimit", r#""theirs";r=3;t=1"#)], "ratelimit"), both);
}

#[test]
fn a_map_of_two_layers_is_told_once_by_the_one_with_less_left() {
    let field = |styles: [&str; 2], rates: [&str; 2], name: &str| -> Vec<String> {
        let layer = |at: usize| {
            let (style, rate) = (styles[at], rates[at]);
            let policy = format!(
                "answers: {{ headers: {style} }}\nlimiters: {{ l{at}: {{ rate: {rate}, per: global }} }}"
            );
            TollgateLayer::new(limiter(&policy))
        };
        let answer = ask(&layer(1).layer(layer(0).layer(service_fn(ok))), &[]);
        answer.headers().get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    for rates in [["10/min", "20/min"], ["20/min", "10/min"]] {
        let told = field(["draft-7"; 2], rates, "ratelimit");
        assert_eq!(told, ["limit=10, remaining=9, reset=6"], "{rates:?}");
        assert_eq!(field(["draft-7"; 2], rates, "ratelimit-policy").len(), 2, "policies are a list");
    }
    // A list and a map make neither.
    let (map, list) = ("limit=10, remaining=9, reset=6", "\"l1\";r=9;t=6");
    assert_eq!(field(["draft-7", "ietf-11"], ["10/min", "20/min"], "ratelimit"), [map]);
    assert_eq!(field(["draft-7", "ietf-11"], ["20/min", "10/min"], "ratelimit"), [list]);
    assert_eq!(field(["ietf-11", "draft-7"], ["20/min", "10/min"], "ratelimit"), [map]);
}

#[test]
fn what_is_unwise_about_a_policy_is_logged_when_a_limiter_is_built() {
    let warnings = |build: &dyn Fn() -> Result<Limiter, tollgate::PolicyError>| {
        let warned = Warnings::default();
        tracing::subscriber::with_default(warned.clone(), || drop(build().unwrap()));
        warned.0.load(Ordering::Relaxed)
    };
    let of_ip = "limiters: { rate: { rate: 1/d } }";
    assert_eq!(warnings(&|| Limiter::from_policy(of_ip)), 1);
    assert_eq!(warnings(&|| Limiter::builder().rate("rate", tollgate::Quota::per_day(1)).build()), 1);
    let by_key =
        || Limiter::builder().caller_header("x-api-key").rate("rate", tollgate::Quota::per_day(1)).build();
    assert_eq!(warnings(&by_key), 0);
    let (policy, unwise) = tollgate::Policy::read(of_ip).unwrap();
    assert!(!unwise.is_empty());
    assert_eq!(
        warnings(&|| Limiter::builder().read_policy(policy.clone()).build()),
        0,
        "whoever read it knows"
    );
}

#[test]
fn lists_tell_of_both_layers() {
    let inner = TollgateLayer::new(limiter("limiters: { inner: { rate: 10/min, per: global } }"));
    let outer = TollgateLayer::new(limiter("limiters: { outer: { rate: 20/min, per: global } }"));
    let answer = ask(&outer.layer(inner.layer(service_fn(ok))), &[]);
    let told: Vec<_> = answer.headers().get_all("ratelimit").iter().collect();
    assert_eq!(told, ["\"inner\";r=9;t=6", "\"outer\";r=19;t=3"]);
}

#[test]
fn clients_of_grpc_and_grpc_web_are_refused_in_their_own_words() {
    let service =
        TollgateLayer::new(limiter("limiters: { all: { rate: 1/d, per: global } }")).layer(service_fn(ok));
    drop(ask(&service, &[]));
    for (asked, told) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("application/grpc-web", "application/grpc-web"),
        ("application/grpc-web+proto; charset=utf-8", "application/grpc-web+proto"),
        ("application/grpc-web-text", "application/grpc-web-text"),
        ("Application/gRPC-Web-Text+proto", "application/grpc-web-text+proto"),
    ] {
        let answer = ask(&service, &[("content-type", asked)]);
        assert_eq!(answer.status(), 200, "{asked}");
        assert_eq!(answer.headers()["content-type"], told, "{asked}");
        assert_eq!(answer.headers()["grpc-status"], "8", "{asked}");
        assert!(answer.headers()["grpc-message"].to_str().unwrap().contains("all"), "{asked}");
        assert!(answer.body().is_end_stream(), "{asked}: without a message");
    }
    let answer = ask(&service, &[("content-type", "application/grpcish")]);
    assert_eq!((answer.status().as_u16(), answer.headers().contains_key("grpc-status")), (429, false));
}
