//! Policies without a file.
#![cfg(feature = "policy")]
#![allow(clippy::unwrap_used, reason = "tests")]

use tollgate_core::Nanos;
use tollgate_core::limit::Limit;
use tollgate_core::policy::{Facts, LimiterDraft, Mode, NoTokens, Policy};
use tollgate_core::store::OnFailure;
use tollgate_core::worker::Source;
use tollgate_core::{LimitError, Timestamp};

fn bucket(burst: u64, count: u64, secs: u64) -> Result<Limit, LimitError> {
    Limit::token_bucket(burst, count, Nanos::from_secs(secs))
}

#[test]
fn a_draft_and_a_file_that_say_the_same_are_the_same() {
    let drafted = Policy::builder()
        .caller_header("X-Api-Key")
        .caller_address()
        .rate("request-rate", bucket(100, 50, 1))
        .concurrency("concurrent-requests", 20)
        .fleet("fleet-usage", 400, 20)
        .workers("worker-utilization", Source::Cpu)
        .limiter(
            LimiterDraft::rate("logins", bucket(5, 5, 60))
                .and(bucket(20, 20, 3600))
                .matching("POST /login")
                .matching("POST /token/*")
                .mode(Mode::Dark)
                .on_store_failure(OnFailure::Closed),
        )
        .limiter(LimiterDraft::rate("all", bucket(1000, 1000, 1)).global())
        .build()
        .unwrap();
    let (read, _) = Policy::read(
        "identify: { caller: [header: x-api-key, ip] }
trusted_proxies: []
limiters:
  request-rate: { rate: 50/s, burst: 100 }
  concurrent-requests: { concurrency: 20 }
  fleet-usage: { fleet: 400, reserve: 20% }
  worker-utilization: { workers: { source: cpu } }
  logins: { rate: [5/min, 20/h], match: [POST /login, POST /token/*], mode: dark, on_store_failure: closed }
  all: { rate: 1000/s, per: global }",
    )
    .unwrap();
    assert_eq!(drafted, read);
    let (empty, _) = Policy::read("limiters: {}").unwrap();
    assert_eq!(Policy::builder().build().unwrap(), empty);
}

#[test]
fn a_draft_says_what_is_critical() {
    let policy = Policy::builder().critical("POST /charges").critical("/pay/*").build().unwrap();
    let class = |method, path| {
        let facts = Facts { method, path, ..Facts::default() };
        policy.class_name(policy.plan(&facts, &NoTokens, Timestamp::ZERO).class).to_owned()
    };
    assert_eq!([class("POST", "/charges"), class("GET", "/pay/1")], ["critical"; 2]);
    assert_eq!([class("POST", "/x"), class("GET", "/charges")], ["post", "get"]);
}

#[test]
fn everything_that_is_wrong_with_a_draft_is_told_at_once() {
    let error = Policy::builder()
        .caller_header(" ")
        .critical("POST")
        .rate("a b", bucket(1, 1, 1))
        .rate("zero", bucket(0, 1, 1))
        .concurrency("zero", 0)
        .fleet("fleet", 10, 101)
        .limiter(LimiterDraft::rate("two", bucket(1, 1, 1)).and(bucket(2, 2, 2)))
        .rate("two-2", bucket(1, 1, 1))
        .limiter(LimiterDraft::concurrency("one", 1).and(bucket(1, 1, 1)))
        .workers("w", Source::InFlight { workers: 0 })
        .workers("v", Source::Cpu)
        .build()
        .unwrap_err();
    let said = error.to_string();
    for words in [
        "a header without a name",
        "\"POST\" is no condition: write `POST *`",
        "\"a b\" is no name of a limiter",
        "the limiter \"zero\": burst is 0",
        "there are two limiters \"zero\"",
        "the limiter \"fleet\": reserve is 101/100: it must be from 0 to 1",
        "\"two-2\" is what one of the rates of \"two\" is called",
        "the limiter \"one\": and is another limit: it must be left out",
        "no worker at all?",
        "there is another `workers`",
    ] {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    assert!(error.messages().count() >= 10, "{said}");
}

#[test]
fn what_is_unwise_about_a_draft_is_told_with_it() {
    let (_, warnings) = Policy::builder()
        .caller_address()
        .caller_header("x-api-key")
        .limiter(LimiterDraft::rate("logins", bucket(5, 5, 60)).matching("PSOT /login"))
        .limiter(LimiterDraft::rate("twice", bucket(5, 5, 60)).and(bucket(9, 9, 60)))
        .checked()
        .unwrap();
    let said = warnings.join("\n");
    for words in [
        "behind `caller_address` is never looked at",
        "\"PSOT\" is a rare method: did you mean `POST`?",
        "the limiter \"twice\" has a rate that never decides",
    ] {
        assert!(said.contains(words), "{words} is not in\n{said}");
    }
    assert_eq!(warnings.len(), 3, "{said}");
    let warnings = |draft: tollgate_core::policy::PolicyDraft| draft.checked().unwrap().1;
    let proxied = warnings(Policy::builder().rate("a", bucket(5, 5, 60)));
    assert!(proxied.join("").contains("behind a proxy all have that of the proxy"), "{proxied:?}");
    assert!(warnings(Policy::builder().caller_address().rate("a", bucket(5, 5, 60))).is_empty());
    assert!(warnings(Policy::builder().fleet("a", 5, 20)).is_empty());
    let wrong =
        Policy::builder().caller_header("x api key").caller_address().caller_address().build().unwrap_err();
    assert_eq!(wrong.messages().count(), 2, "{wrong}");
}

#[test]
fn what_a_door_says_of_a_cost_is_for_drafts_that_ask_for_it() {
    let policy = Policy::builder()
        .caller_address()
        .limiter(LimiterDraft::rate("tokens", bucket(5000, 5000, 60)).given_cost())
        .rate("requests", bucket(5, 5, 60))
        .build()
        .unwrap();
    let planned = policy.plan(&Facts { cost: Some(4000), ..Facts::default() }, &NoTokens, Timestamp::ZERO);
    assert_eq!(planned.charged.iter().map(|charged| charged.cost).collect::<Vec<_>>(), [4000, 1]);
}

/// Found by a reader: what was taken of such a rate never came back.
#[test]
fn requests_in_progress_are_no_rate() {
    let limits = [Limit::concurrency(1), Limit::leases(1, Nanos::from_secs(60))];
    for limit in limits {
        let error = Policy::builder().caller_address().rate("c", limit).build().unwrap_err().to_string();
        assert!(error.contains("say `concurrency`"), "{error}");
    }
}
