//! What callers and operators learn: the headers of answers, and what is logged of limiters that reject nobody and of shedders.
#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::fmt::Debug;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::core::policy::CallerName;
use tollgate::{Facts, Limiter, ManualClock, Permit, Timestamp};

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

fn limiter(policy: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000 * 60));
    let limiter = Limiter::builder().clock(clock.clone()).policy(policy).build();
    (limiter.unwrap_or_else(|error| panic!("{error}")), clock)
}

fn field(headers: impl IntoIterator<Item = (&'static str, std::borrow::Cow<'static, str>)>) -> String {
    let found = headers.into_iter().find(|(name, _)| *name == "ratelimit");
    found.map(|(_, value)| value.into_owned()).unwrap_or_default()
}

fn passes(limiter: &Limiter) -> Permit {
    limiter.admit_now(&Facts::default()).unwrap_or_else(|refusal| panic!("{refusal}"))
}

/// `t` of an answer with `r=0` was until the whole quota is back if the request had passed, and until the next request if not.
#[test]
fn the_last_request_that_passes_and_the_next_that_does_not_are_told_the_same_wait() {
    for (of, wait) in [
        ("rate: 5/min", Some(12 - 4)),
        ("rate: 7/min", None),
        ("rate: 5/min, burst: 20", None),
        ("rate: 5/min, burst: 4, algorithm: leaky-queue", Some(12 - 4)),
        ("rate: 5/min, burst: 12, algorithm: interval-bucket", None),
        ("rate: 5/min, algorithm: fixed-window", Some(60 - 4)),
        ("rate: 5/min, algorithm: anchored-window", Some(60 - 4)),
        ("rate: 5/min, algorithm: sliding-log", Some(60 - 4)),
        ("rate: 5/min, algorithm: sliding-window", None),
    ] {
        let (limiter, clock) = limiter(&format!("limiters: {{ l: {{ {of}, per: global }} }}"));
        // One a second, so that no two of them are over at once.
        let last = loop {
            let told = field(passes(&limiter).headers());
            if told.contains(";r=0;") {
                break told;
            }
            clock.advance(Duration::from_secs(1));
        };
        let Err(refusal) = limiter.admit_now(&Facts::default()) else { panic!("{of}: {last}") };
        assert_eq!(last, field(refusal.answer(None, "/").headers), "{of}");
        if let Some(wait) = wait {
            assert_eq!(last, format!("\"l\";r=0;t={wait}"), "{of}");
        }
    }
}

/// With one request in progress of 20, `RateLimit` spoke of these and not of the rate.
#[test]
fn all_limits_that_are_enforced_are_told() {
    let (limiter, _) = limiter(
        "limiters:\n  rate: { rate: 50/s, burst: 100, per: global }\n  busy: { concurrency: 20, per: global }\n  \
         dark: { rate: 1/h, per: global, mode: dark }",
    );
    let first = passes(&limiter);
    assert_eq!(field(first.headers()), "\"rate\";r=99;t=1, \"busy\";r=19");
    assert_eq!(field(passes(&limiter).headers()), "\"rate\";r=98;t=1, \"busy\";r=18");
}

#[test]
fn dark_limiters_and_candidates_that_would_reject_are_named() {
    let (limiter, _) = limiter(
        "limiters:\n  dark: { rate: 2/h, per: global, mode: dark }\n  \
         tried: { rate: 10/h, per: global, candidate: 1/h }\n  never: { rate: 1000/h, per: global, mode: dark }",
    );
    let named = |permit: Permit| -> Vec<(String, bool)> {
        let would = permit.watched().unwrap().would_reject();
        would.iter().map(|by| (by.limiter.to_string(), by.is_candidate)).collect()
    };
    assert_eq!(named(passes(&limiter)), []);
    assert_eq!(named(passes(&limiter)), [("tried".to_owned(), true)]);
    assert_eq!(named(passes(&limiter)), [("dark".to_owned(), false), ("tried".to_owned(), true)]);
    let (limiter, _) = limiter_without_watching();
    assert!(passes(&limiter).watched().is_none());
}

fn limiter_without_watching() -> (Limiter, ManualClock) {
    limiter("limiters: { all: { rate: 100/s, per: global } }")
}

#[test]
fn the_block_list_in_the_dark_is_named() {
    let (limiter, _) = limiter(
        "mode: dark\nidentify: { caller: [header: x-api-key] }\nblock: [caller: bad]\nlimiters: { all: { rate: 100/s } }",
    );
    let headers = [("x-api-key", "bad")];
    let permit = limiter.admit_now(&Facts { headers: &headers, ..Facts::default() }).unwrap();
    assert_eq!(&*permit.watched().unwrap().would_reject()[0].limiter, "block");
}

#[test]
fn callers_are_named_as_the_policy_tells_them_apart() {
    let (limiter, _) = limiter(
        "identify: { caller: [header: x-api-key, ip] }\ntrusted_proxies: []\nlimiters: { all: { rate: 100/s } }",
    );
    let headers = [("x-api-key", "sk_1")];
    let peer = Some([203, 0, 113, 9].into());
    let by_key = limiter.caller(&Facts { headers: &headers, peer, ..Facts::default() });
    assert_eq!(by_key, CallerName::Value((*b"sk_1").into()));
    assert_eq!(format!("{by_key:?}"), "Value(..)", "it may be a secret");
    let by_address = limiter.caller(&Facts { peer, ..Facts::default() });
    assert_eq!(by_address, CallerName::Address([203, 0, 113, 9].into()));
    assert_eq!(limiter.caller(&Facts::default()), CallerName::Unknown);
}

/// Collects what is logged: level, limiter and message.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// What has been logged since this was last asked.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[derive(Default)]
struct Line {
    limiter: String,
    message: String,
}

impl tracing::field::Visit for Line {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        if field.name() == "limiter" {
            value.clone_into(&mut self.limiter);
        }
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = event.metadata().level();
        self.0.lock().unwrap().push(format!("{level} {}: {}", line.limiter, line.message));
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_worker_that_starts_to_shed_sheds_a_class_and_stops_is_logged() {
    let (limiter, clock) = limiter(
        "classes: { critical: [POST /charges], post: [POST *], get: [GET *] }\n\
         limiters: { w: { workers: { source: reported, grace: 0s, full: 20s, every: 1s, shed: [get, post] } } }",
    );
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let tend = |ppm: u64| {
            limiter.report_utilization(ppm);
            now(limiter.tend());
            clock.advance(Duration::from_secs(1));
        };
        tend(0);
        assert_eq!(lines.take(), [""; 0]);
        (0..3).for_each(|_| tend(1_000_000));
        assert_eq!(lines.take(), ["WARN w: starts to shed load: get 10 %"]);
        (0..10).for_each(|_| tend(1_000_000));
        assert_eq!(lines.take(), ["WARN w: sheds all requests of class get"]);
        (0..10).for_each(|_| tend(1_000_000));
        assert_eq!(lines.take(), ["WARN w: sheds all requests of class post"]);
        (0..100).for_each(|_| tend(0));
        assert_eq!(lines.take(), ["INFO w: has stopped shedding load"]);
    });
}

#[test]
fn a_fleet_that_starts_to_shed_sheds_a_class_and_stops_is_logged() {
    let (limiter, clock) = limiter(
        "classes: { critical: [POST /charges], get: [GET *] }\nlimiters: { f: { fleet: 10, reserve: 20% } }",
    );
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let gets = |count: usize| -> Vec<Permit> {
            let facts = Facts { method: "GET", path: "/", ..Facts::default() };
            (0..count).filter_map(|_| limiter.admit_now(&facts).ok()).collect()
        };
        let tend = || {
            now(limiter.tend());
            clock.advance(Duration::from_secs(1));
        };
        tend();
        let held = gets(6);
        tend();
        assert_eq!(lines.take(), [""; 0]);
        let more = gets(8);
        assert_eq!(more.len(), 2);
        tend();
        assert_eq!(lines.take(), ["WARN f: starts to shed load: get 75 %"]);
        assert!(gets(20).is_empty());
        tend();
        assert_eq!(lines.take(), ["WARN f: sheds all requests of class get"]);
        drop((held, more));
        for _ in 0..9 {
            assert_eq!(gets(5).len(), 5);
            tend();
        }
        assert_eq!(lines.take(), [""; 0], "it may go on at any moment");
        (0..2).for_each(|_| tend());
        assert_eq!(lines.take(), ["INFO f: has stopped shedding load"]);
    });
}
