//! What callers are told: exact headers of every style, honest waits, and bodies that nobody can break out of.

#![cfg(feature = "policy")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that finds nothing fails"
)]

use crate::common::{SECOND, config};
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate_core::Nanos;
use tollgate_core::answer::{
    Answer, AnswerStyle, HeaderList, HeaderStyle, grpc, grpc_message, refusal, standing_headers,
};
use tollgate_core::decision::{Reason, Refused, Standing, Unit};

const NOW: u64 = 1_794_771_136;
const SHEDDERS: [Reason; 3] = [Reason::Fleet, Reason::Worker, Reason::StoreAway];
const REASONS: [Reason; 6] =
    [Reason::Rate, Reason::Concurrency, Reason::Fleet, Reason::Worker, Reason::StoreAway, Reason::Blocked];

fn rate(name: &str, quota: u64, window: u64, remaining: u64) -> Standing {
    Standing {
        name: name.into(),
        stated: format!("{quota}/{window}s").into(),
        quota,
        window: Some(Nanos::from_secs(window)),
        unit: Unit::Requests,
        remaining,
        retry_after: Some(Nanos::ZERO),
        reset_after: Nanos::from_secs(window),
    }
}

fn in_progress(name: &str, quota: u64, remaining: u64) -> Standing {
    let standing = rate(name, quota, 30, remaining);
    let stated = format!("{quota} requests in progress").into();
    Standing { stated, window: None, unit: Unit::ConcurrentRequests, ..standing }
}

fn refused(reason: Reason, retry_after: Option<Nanos>, mut exceeded: Vec<Standing>) -> Refused {
    exceeded.iter_mut().for_each(|standing| standing.retry_after = retry_after);
    let limiter = exceeded.first().map_or("guard".into(), |standing| standing.name.clone());
    Refused { reason, limiter, retry_after, exceeded }
}

/// Two per minute, and the third request.
fn third() -> Refused {
    refused(Reason::Rate, Some(Nanos::from_secs(60)), vec![rate("per-ip", 2, 60, 0)])
}

fn style(headers: HeaderStyle) -> AnswerStyle {
    AnswerStyle { headers, ..AnswerStyle::default() }
}

fn tell(refused: &Refused, accept: &str, instance: &str) -> Answer {
    refusal(refused, &AnswerStyle::default(), Some(accept.as_bytes()), instance, NOW, 0)
}

fn problem(refused: &Refused) -> Value {
    serde_json::from_str(&tell(refused, "*/*", "/v1/charges").body).unwrap()
}

fn header<'a>(headers: &'a HeaderList, name: &str) -> Option<&'a str> {
    let mut found = headers.iter().filter(|(known, _)| *known == name);
    let value = found.next().map(|(_, value)| &**value);
    assert!(found.next().is_none(), "{name} twice");
    value
}

fn retry_after(answer: &Answer) -> Option<u64> {
    header(&answer.headers, "retry-after").map(|value| value.parse().unwrap())
}

/// Text with control characters too, which `any::<String>()` leaves out.
fn any_text(longest: usize) -> impl Strategy<Value = String> {
    let c = prop_oneof![any::<char>(), prop::char::range('\0', '\u{9f}')];
    prop::collection::vec(c, 0..=longest).prop_map(String::from_iter)
}

#[track_caller]
fn assert_headers(headers: &HeaderList, expected: &[(&str, &str)]) {
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, &**value)).collect();
    assert_eq!(headers, expected);
}

/// A strict reader of the Lists of RFC 9651, as far as Strings with Integers and Strings as parameters go.
mod field {
    #[derive(Clone, Debug, PartialEq)]
    pub(crate) enum Bare {
        String(String),
        Integer(u64),
    }

    pub(crate) type Item = (String, Vec<(String, Bare)>);

    pub(crate) fn list(mut rest: &str) -> Result<Vec<Item>, String> {
        let mut items = Vec::new();
        loop {
            let Bare::String(name) = bare(&mut rest)? else { return Err("not a String".to_owned()) };
            let mut parameters: Vec<(String, Bare)> = Vec::new();
            while let Some(after) = rest.strip_prefix(';') {
                let (key, value) = after.split_once('=').ok_or("a parameter without a value")?;
                if !key.starts_with(|c: char| c.is_ascii_lowercase())
                    || !key.chars().all(|c| c.is_ascii_lowercase())
                {
                    return Err(format!("key {key:?}"));
                }
                rest = value;
                parameters.push((key.to_owned(), bare(&mut rest)?));
            }
            items.push((name, parameters));
            match rest.strip_prefix(", ") {
                Some(after) => rest = after,
                None if rest.is_empty() => return Ok(items),
                None => return Err(format!("left over: {rest:?}")),
            }
        }
    }

    fn bare(rest: &mut &str) -> Result<Bare, String> {
        let Some(quoted) = rest.strip_prefix('"') else {
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            let (digits, after) = rest.split_at(end);
            *rest = after;
            return match digits.len() {
                1..=15 => digits.parse().map(Bare::Integer).map_err(|e| format!("{e}")),
                _ => Err(format!("integer {digits:?}")),
            };
        };
        let mut text = String::new();
        let mut chars = quoted.chars();
        loop {
            match chars.next().ok_or("a String without an end")? {
                '"' => break,
                '\\' => match chars.next() {
                    Some(c @ ('"' | '\\')) => text.push(c),
                    other => return Err(format!("escaped {other:?}")),
                },
                c @ ' '..='~' => text.push(c),
                c => return Err(format!("character {c:?}")),
            }
        }
        *rest = chars.as_str();
        Ok(Bare::String(text))
    }
}

use field::Bare::{Integer, String as Text};

fn parameters(list: &[(&str, field::Bare)]) -> Vec<(String, field::Bare)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

mod styles {
    use super::*;

    #[test]
    fn every_name_is_a_style_of_its_own() {
        let styles = HeaderStyle::NAMES.map(|name| HeaderStyle::parse(name).unwrap());
        use HeaderStyle::*;
        assert_eq!(styles, [Ietf11, Draft7, Draft6, XRateLimit, Envoy, Off]);
        assert_eq!(HeaderStyle::default(), Ietf11);
        for name in ["", "IETF-11", "ietf-11 ", "draft-5", "github"] {
            assert_eq!(HeaderStyle::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn the_third_of_two_a_minute() {
        let headers = |headers| refusal(&third(), &style(headers), None, "/", NOW, u32::MAX).headers;
        assert_headers(
            &headers(HeaderStyle::Ietf11),
            &[
                ("ratelimit-policy", r#""per-ip";q=2;w=60"#),
                ("ratelimit", r#""per-ip";r=0;t=60"#),
                ("retry-after", "60"),
                ("cache-control", "no-store"),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::Draft7),
            &[
                ("ratelimit-policy", "2;w=60"),
                ("ratelimit", "limit=2, remaining=0, reset=60"),
                ("retry-after", "60"),
                ("cache-control", "no-store"),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::Draft6),
            &[
                ("ratelimit-policy", "2;w=60"),
                ("ratelimit-limit", "2"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "60"),
                ("retry-after", "60"),
                ("cache-control", "no-store"),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::XRateLimit),
            &[
                ("x-ratelimit-limit", "2"),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "1794771196"),
                ("retry-after", "60"),
                ("cache-control", "no-store"),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::Envoy),
            &[
                ("x-ratelimit-limit", r#"2, 2;w=60;name="per-ip""#),
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-reset", "60"),
                ("retry-after", "60"),
                ("x-envoy-ratelimited", "true"),
                ("cache-control", "no-store"),
            ],
        );
        assert_headers(&headers(HeaderStyle::Off), &[("retry-after", "60"), ("cache-control", "no-store")]);
    }

    #[test]
    fn two_limits_of_an_allowed_request() {
        let standings = [rate("per1", 5, 1, 2), rate("daily", 1000, 86_400, 640)];
        let headers = |style| standing_headers(style, &standings, NOW);
        assert_headers(
            &headers(HeaderStyle::Ietf11),
            &[
                ("ratelimit-policy", r#""per1";q=5;w=1, "daily";q=1000;w=86400"#),
                ("ratelimit", r#""per1";r=2;t=1, "daily";r=640;t=86400"#),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::Draft7),
            &[("ratelimit-policy", "5;w=1, 1000;w=86400"), ("ratelimit", "limit=5, remaining=2, reset=1")],
        );
        assert_headers(
            &headers(HeaderStyle::Draft6),
            &[
                ("ratelimit-policy", "5;w=1, 1000;w=86400"),
                ("ratelimit-limit", "5"),
                ("ratelimit-remaining", "2"),
                ("ratelimit-reset", "1"),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::XRateLimit),
            &[
                ("x-ratelimit-limit", "5"),
                ("x-ratelimit-remaining", "2"),
                ("x-ratelimit-reset", "1794771137"),
            ],
        );
        assert_headers(
            &headers(HeaderStyle::Envoy),
            &[
                ("x-ratelimit-limit", r#"5, 5;w=1;name="per1", 1000;w=86400;name="daily""#),
                ("x-ratelimit-remaining", "2"),
                ("x-ratelimit-reset", "1"),
            ],
        );
        assert_headers(&headers(HeaderStyle::Off), &[]);
    }

    /// A policy with `concurrency: 20` said `"concurrent-requests";r=19` on every answer, and nothing of the rate.
    #[test]
    fn a_concurrency_limit_does_not_hide_the_rate_limit() {
        let standings = [rate("request-rate", 100, 2, 98), in_progress("concurrent-requests", 20, 19)];
        let headers = standing_headers(HeaderStyle::Ietf11, &standings, NOW);
        let told = r#""request-rate";r=98;t=2, "concurrent-requests";r=19"#;
        assert_eq!(header(&headers, "ratelimit"), Some(told));
        let full = [rate("request-rate", 100, 2, 98), in_progress("concurrent-requests", 20, 0)];
        let headers = standing_headers(HeaderStyle::Ietf11, &full, NOW);
        let told = r#""request-rate";r=98;t=2, "concurrent-requests";r=0;t=1"#;
        assert_eq!(header(&headers, "ratelimit"), Some(told));
    }

    #[test]
    fn requests_in_progress_are_told_in_one_style_alone() {
        let both = [in_progress("inflight", 64, 3), rate("per1", 5, 1, 2)];
        assert_headers(
            &standing_headers(HeaderStyle::Ietf11, &both, NOW),
            &[
                ("ratelimit-policy", r#""inflight";q=64;qu="concurrent-requests", "per1";q=5;w=1"#),
                ("ratelimit", r#""inflight";r=3, "per1";r=2;t=1"#),
            ],
        );
        let draft = standing_headers(HeaderStyle::Draft7, &both, NOW);
        assert_headers(
            &draft,
            &[("ratelimit-policy", "5;w=1"), ("ratelimit", "limit=5, remaining=2, reset=1")],
        );

        let alone = [in_progress("inflight", 64, 0)];
        for name in HeaderStyle::NAMES {
            let style = HeaderStyle::parse(name).unwrap();
            assert!(standing_headers(style, &[], NOW).is_empty(), "{name}");
            let told = !standing_headers(style, &alone, NOW).is_empty();
            assert_eq!(told, style == HeaderStyle::Ietf11, "{name}");
        }
        let refused = refused(Reason::Concurrency, Some(Nanos::new(1)), alone.to_vec());
        let answer = refusal(&refused, &style(HeaderStyle::Draft6), None, "/", NOW, 0);
        assert_headers(&answer.headers, &[("retry-after", "1"), ("cache-control", "no-store")]);
    }

    #[test]
    fn only_limits_are_marked_for_envoy() {
        for reason in REASONS {
            let refused = refused(reason, None, Vec::new());
            let answer = refusal(&refused, &style(HeaderStyle::Envoy), None, "/", NOW, 0);
            let marked = header(&answer.headers, "x-envoy-ratelimited");
            assert_eq!(marked, (answer.status == 429).then_some("true"), "{reason:?}");
        }
    }

    #[test]
    fn names_become_printable_ascii() {
        let cases = [
            ("", r#""""#),
            ("a b~", r#""a b~""#),
            (r#"say "hi""#, r#""say \"hi\"""#),
            (r"back\slash", r#""back\\slash""#),
            ("naïve ☃", r#""na?ve ?""#),
            ("a\r\nset-cookie: b\t\0\x7f", r#""a??set-cookie: b???""#),
        ];
        for (name, written) in cases {
            let headers = standing_headers(HeaderStyle::Ietf11, &[rate(name, 1, 1, 1)], NOW);
            assert_eq!(header(&headers, "ratelimit"), Some(format!("{written};r=1;t=1").as_str()));
            let headers = standing_headers(HeaderStyle::Envoy, &[rate(name, 1, 1, 1)], NOW);
            let limit = format!("1, 1;w=1;name={written}");
            assert_eq!(header(&headers, "x-ratelimit-limit"), Some(limit.as_str()));
        }
    }

    #[test]
    fn integers_have_fifteen_digits_at_most() {
        const MOST: &str = "999999999999999";
        let window = Some(Nanos::new(u64::MAX));
        let huge = Standing { window, ..rate("huge", u64::MAX, 1, u64::MAX) };
        let headers = standing_headers(HeaderStyle::Ietf11, std::slice::from_ref(&huge), NOW);
        let policy = format!(r#""huge";q={MOST};w=18446744074"#);
        assert_eq!(header(&headers, "ratelimit-policy"), Some(policy.as_str()));
        assert_eq!(header(&headers, "ratelimit"), Some(format!(r#""huge";r={MOST};t=1"#).as_str()));
        let headers = standing_headers(HeaderStyle::XRateLimit, std::slice::from_ref(&huge), u64::MAX);
        for (name, value) in &headers {
            assert_eq!(value, MOST, "{name}");
        }

        let just = [rate("just", 999_999_999_999_999, 1, 1_000_000_000_000_000)];
        let headers = standing_headers(HeaderStyle::Draft7, &just, NOW);
        let value = format!("limit={MOST}, remaining={MOST}, reset=1");
        assert_eq!(header(&headers, "ratelimit"), Some(value.as_str()));

        let body = problem(&refused(Reason::Rate, Some(Nanos::new(u64::MAX)), vec![huge]));
        assert_eq!(body["limit"], json!(999_999_999_999_999_u64));
        assert_eq!(body["retry-after"], json!(18_446_744_074_u64));
    }

    fn any_standing() -> impl Strategy<Value = Standing> {
        let window = prop::option::of(any::<u64>().prop_map(Nanos::new));
        let retry = prop::option::of(any::<u64>().prop_map(Nanos::new));
        let parts = (any_text(16), any::<u64>(), window, any::<bool>(), 0..4_u64, retry, any::<u64>());
        parts.prop_map(|(name, quota, window, concurrent, remaining, retry_after, reset)| Standing {
            name: name.into(),
            stated: "some".into(),
            quota,
            window,
            unit: if concurrent { Unit::ConcurrentRequests } else { Unit::Requests },
            remaining,
            retry_after,
            reset_after: Nanos::new(reset),
        })
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn a_strict_reader_finds_what_was_written(standings in prop::collection::vec(any_standing(), 1..5)) {
            let headers = standing_headers(HeaderStyle::Ietf11, &standings, NOW);
            let printable = |name: &str| -> String {
                name.chars().map(|c| if (' '..='~').contains(&c) { c } else { '?' }).collect()
            };

            let policies = field::list(header(&headers, "ratelimit-policy").unwrap()).unwrap();
            prop_assert_eq!(policies.len(), standings.len());
            for (item, standing) in policies.iter().zip(&standings) {
                prop_assert_eq!(&item.0, &printable(&standing.name));
                let mut expected = vec![("q", Integer(standing.quota.min(999_999_999_999_999)))];
                match (standing.unit, standing.window) {
                    (Unit::ConcurrentRequests, _) => expected.push(("qu", Text("concurrent-requests".into()))),
                    (_, Some(window)) => expected.push(("w", Integer(window.as_secs_ceil().max(1)))),
                    _ => {}
                }
                prop_assert_eq!(&item.1, &parameters(&expected));
            }

            let reported = field::list(header(&headers, "ratelimit").unwrap()).unwrap();
            prop_assert_eq!(reported.len(), standings.len());
            for (item, standing) in reported.iter().zip(&standings) {
                prop_assert_eq!(&item.0, &printable(&standing.name));
                prop_assert_eq!(&item.1[0], &("r".to_owned(), Integer(standing.remaining)));
                let is_free = standing.remaining > 0 && standing.retry_after == Some(Nanos::ZERO);
                let has_no_wait = standing.unit == Unit::ConcurrentRequests && is_free;
                prop_assert_eq!(item.1.len(), if has_no_wait { 1 } else { 2 });
            }
        }

        /// A line break in a value would be a header of the caller's own.
        #[test]
        fn values_are_printable_whatever_the_names(standings in prop::collection::vec(any_standing(), 0..4)) {
            for name in HeaderStyle::NAMES {
                let style = style(HeaderStyle::parse(name).unwrap());
                let refused = Refused {
                    reason: Reason::Rate,
                    limiter: "x\r\n".into(),
                    retry_after: None,
                    exceeded: standings.clone(),
                };
                for (name, value) in refusal(&refused, &style, None, "\r\n", NOW, 7).headers {
                    prop_assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
                    prop_assert!(value.bytes().all(|b| (b' '..=b'~').contains(&b)), "{}: {:?}", name, value);
                }
            }
        }
    }
}

mod waits {
    use super::*;

    fn ratelimit_t(headers: &HeaderList) -> u64 {
        let list = field::list(header(headers, "ratelimit").unwrap()).unwrap();
        match list[0].1[1] {
            (ref key, Integer(t)) if key == "t" => t,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn seconds_are_rounded_up_and_never_zero() {
        let cases =
            [(0, 1), (1, 1), (SECOND, 1), (SECOND + 1, 2), (59 * SECOND + 1, 60), (u64::MAX, 18_446_744_074)];
        for (nanos, secs) in cases {
            for remaining in [0, 1] {
                let refused =
                    refused(Reason::Rate, Some(Nanos::new(nanos)), vec![rate("x", 9, 60, remaining)]);
                let answer = tell(&refused, "*/*", "/");
                assert_eq!(retry_after(&answer), Some(secs), "{nanos} ns");
                assert_eq!(ratelimit_t(&answer.headers), secs, "{nanos} ns");
                let body: Value = serde_json::from_str(&answer.body).unwrap();
                assert_eq!(body["retry-after"], json!(secs));
                let millis = nanos.div_ceil(1_000_000).max(1);
                assert_eq!(body["retry_after_ms"], json!(millis), "{nanos} ns");
                let told = if millis < 1000 { format!("{millis} ms") } else { format!("{secs} s") };
                assert!(body["detail"].as_str().unwrap().ends_with(&format!(" Try again in {told}.")));
            }
        }
    }

    /// A caller that may send 50 a second was told to wait for 1 s where 20 ms are enough.
    #[test]
    fn a_refusal_says_in_milliseconds_when_the_next_request_passes() {
        let wait = Some(Nanos::new(19_999_001));
        let refused = refused(Reason::Rate, wait, vec![rate("x", 50, 1, 0)]);
        let body: Value = serde_json::from_str(&tell(&refused, "*/*", "/").body).unwrap();
        assert_eq!((&body["retry-after"], &body["retry_after_ms"]), (&json!(1), &json!(20)));
        assert!(grpc(&refused).1.ends_with("Try again in 20 ms."));
        // Whoever is shed comes back at another time than the others.
        let shed = |draw| {
            let refused = super::refused(Reason::Worker, Some(Nanos::from_secs(4)), Vec::new());
            let answer = refusal(&refused, &AnswerStyle::default(), None, "/", NOW, draw);
            serde_json::from_str::<Value>(&answer.body).unwrap()["retry_after_ms"].as_u64().unwrap()
        };
        assert_eq!([0, 1 << 31, u32::MAX].map(shed), [4000, 5000, 6000]);
    }

    #[test]
    fn an_answer_to_an_allowed_request_speaks_of_the_whole_quota_or_of_the_next_request() {
        let reset = |nanos| Standing { reset_after: Nanos::new(nanos), ..rate("x", 9, 60, 3) };
        let t = |standing| ratelimit_t(&standing_headers(HeaderStyle::Ietf11, &[standing], NOW));
        assert_eq!(t(reset(0)), 0);
        assert_eq!(t(reset(1)), 1);
        assert_eq!(t(reset(SECOND + 1)), 2);
        // The last unit was taken. An outcome that is allowed has no wait of its own: all of it, then.
        assert_eq!(t(Standing { remaining: 0, ..reset(20 * SECOND) }), 20);
        assert_eq!(t(Standing { remaining: 0, ..reset(0) }), 1);
        // The last unit was taken, and somebody worked out when there will be another.
        let next = Some(Nanos::new(3 * SECOND + 1));
        assert_eq!(t(Standing { remaining: 0, retry_after: next, ..reset(20 * SECOND) }), 4);
        // Refused with something left: the request costs more than that.
        assert_eq!(t(Standing { retry_after: next, ..reset(20 * SECOND) }), 4);
        // Never.
        assert_eq!(t(Standing { retry_after: None, ..reset(20 * SECOND) }), 20);
    }

    #[test]
    fn windows_below_a_second_are_a_second() {
        for (nanos, w) in [(0, 1), (1, 1), (SECOND / 10, 1), (SECOND + 1, 2)] {
            let standing = Standing { window: Some(Nanos::new(nanos)), ..rate("x", 5, 1, 1) };
            let headers = standing_headers(HeaderStyle::Draft7, &[standing], NOW);
            assert_eq!(header(&headers, "ratelimit-policy"), Some(format!("5;w={w}").as_str()));
        }
    }

    #[test]
    fn a_request_that_never_fits_is_not_invited_back() {
        for reason in [Reason::Rate, Reason::Concurrency] {
            let refused = refused(reason, None, vec![rate("x", 50, 1, 12)]);
            let style = AnswerStyle { retry_jitter_percent: 100, ..AnswerStyle::default() };
            let answer = refusal(&refused, &style, None, "/", NOW, u32::MAX);
            assert_eq!(answer.status, 429);
            assert_eq!(retry_after(&answer), None);
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            assert!(body.get("retry-after").is_none());
            assert_eq!(
                body["detail"],
                "The request costs more than the limit \"x\" of 50/1s can ever give, and will never \
                 pass as it is."
            );
        }
    }

    #[test]
    fn the_blocked_are_not_invited_back_either() {
        let answer = tell(&refused(Reason::Blocked, Some(Nanos::from_secs(5)), Vec::new()), "*/*", "/");
        assert_eq!(answer.status, 403);
        assert_headers(&answer.headers, &[("cache-control", "no-store")]);
    }

    /// Callers that are shed together must not come back together, even if nobody has asked for jitter.
    #[test]
    fn shed_callers_are_spread_over_whole_seconds() {
        let steps = 1_000_u32;
        let waits = |wait: Option<Nanos>, percent| {
            SHEDDERS.map(|reason| {
                let style = AnswerStyle { retry_jitter_percent: percent, ..AnswerStyle::default() };
                let mut seen = std::collections::BTreeMap::<u64, u32>::new();
                for draw in (0..steps).map(|step| step * (u32::MAX / steps)) {
                    let answer = refusal(&refused(reason, wait, Vec::new()), &style, None, "/", NOW, draw);
                    assert_eq!(answer.status, 503);
                    *seen.entry(retry_after(&answer).unwrap()).or_default() += 1;
                }
                assert!(seen.values().all(|times| *times >= steps / seen.len() as u32 - 1), "{seen:?}");
                seen.into_keys().collect::<Vec<_>>()
            })
        };
        for (wait, percent, expected) in [
            (None, 0, vec![1, 2]),
            (Some(0), 0, vec![1, 2]),
            (Some(1), 10, vec![1, 2]),
            (Some(SECOND + 1), 0, vec![2, 3]),
            (Some(6 * SECOND), 0, vec![6, 7, 8, 9]),
            (Some(4 * SECOND), 100, vec![4, 5, 6, 7, 8]),
        ] {
            for seen in waits(wait.map(Nanos::new), percent) {
                assert_eq!(seen, expected, "{wait:?} {percent}%");
            }
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn jitter_never_sends_anybody_back_too_early_or_much_too_late(
            nanos in prop_oneof![0..100 * SECOND, any::<u64>()],
            percent in any::<u8>(),
            draw in prop_oneof![any::<u32>(), Just(0), Just(u32::MAX)],
            reason in prop::sample::select(&REASONS[..5]),
        ) {
            let refused = refused(reason, Some(Nanos::new(nanos)), vec![rate("x", 9, 60, 0)]);
            for name in HeaderStyle::NAMES {
                let style = AnswerStyle {
                    headers: HeaderStyle::parse(name).unwrap(),
                    retry_jitter_percent: percent,
                    docs_url: None,
                };
                let answer = refusal(&refused, &style, None, "/", NOW, draw);
                let sent = retry_after(&answer).unwrap();
                let least = nanos.div_ceil(SECOND).max(1);
                let percent = u64::from(if answer.status == 503 { percent.clamp(50, 100) } else { percent.min(100) });
                prop_assert!(sent >= least);
                prop_assert!(sent <= least + (least * percent).div_ceil(100));
                if percent == 0 || draw == 0 {
                    prop_assert_eq!(sent, least);
                }
                if draw == u32::MAX && least < 1_000_000 {
                    prop_assert_eq!(sent, least + (least * percent).div_ceil(100));
                }

                // Whatever else is said in the answer is the same number.
                let body: Value = serde_json::from_str(&answer.body).unwrap();
                prop_assert_eq!(&body["retry-after"], &json!(sent));
                let told = |name| header(&answer.headers, name).map(str::to_owned);
                match style.headers {
                    HeaderStyle::Ietf11 => prop_assert_eq!(ratelimit_t(&answer.headers), sent),
                    HeaderStyle::Draft7 => {
                        prop_assert_eq!(told("ratelimit").unwrap(), format!("limit=9, remaining=0, reset={sent}"));
                    }
                    HeaderStyle::Draft6 => prop_assert_eq!(told("ratelimit-reset").unwrap(), sent.to_string()),
                    HeaderStyle::XRateLimit => {
                        prop_assert_eq!(told("x-ratelimit-reset").unwrap(), (NOW + sent).to_string());
                    }
                    HeaderStyle::Envoy => prop_assert_eq!(told("x-ratelimit-reset").unwrap(), sent.to_string()),
                    HeaderStyle::Off => {}
                }
            }
        }
    }
}

mod bodies {
    use super::*;

    #[test]
    fn a_problem_in_full() {
        let style =
            AnswerStyle { docs_url: Some("https://example.com/limits".into()), ..AnswerStyle::default() };
        let answer = refusal(&third(), &style, None, "/v1/charges", NOW, 0);
        assert_eq!(answer.content_type, "application/problem+json");
        assert_eq!(
            answer.body,
            concat!(
                r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","#,
                r#""status":429,"detail":"The limit \"per-ip\" of 2/60s is exceeded. Try again in 60 s.","#,
                r#""instance":"/v1/charges","violated-policies":["per-ip"],"limiter":"per-ip","reason":"rate","#,
                r#""limit":2,"remaining":0,"retry-after":60,"retry_after_ms":60000,"docs":"https://example.com/limits"}"#
            )
        );
    }

    #[test]
    fn every_reason_has_its_words() {
        let wait = Some(Nanos::from_secs(3));
        let exceeded = |reason| match reason {
            Reason::Rate => vec![rate("x", 1, 1, 0), rate("y", 9, 60, 0)],
            Reason::Concurrency => vec![in_progress("x", 20, 0)],
            _ => Vec::new(),
        };
        let iana = "https://iana.org/assignments/http-problem-types#";
        let cases = [
            (Reason::Rate, "quota-exceeded", "The limit \"x\" of 1/1s is exceeded. Try again in 3 s."),
            (
                Reason::Concurrency,
                "quota-exceeded",
                "The limit \"x\" of 20 requests in progress is exceeded. Try again in 3 s.",
            ),
            (
                Reason::Fleet,
                "temporary-reduced-capacity",
                "The service is busy, and \"guard\" keeps what is left for critical requests. Try again in 3 s.",
            ),
            (
                Reason::Worker,
                "temporary-reduced-capacity",
                "The server is overloaded, and \"guard\" turns requests of this kind away. Try again in 3 s.",
            ),
            (
                Reason::StoreAway,
                "temporary-reduced-capacity",
                "The limit \"guard\" cannot be checked now, and nothing may pass it unchecked. Try again in 3 s.",
            ),
            (Reason::Blocked, "", "The caller is blocked by \"guard\"."),
        ];
        for (reason, kind, detail) in cases {
            let refused = refused(reason, wait, exceeded(reason));
            let body = problem(&refused);
            let kind = if kind.is_empty() { "about:blank".to_owned() } else { format!("{iana}{kind}") };
            assert_eq!(body["type"], kind);
            assert_eq!(body["status"], reason.status());
            assert_eq!(body["reason"], reason.name());
            assert_eq!(body["detail"], detail);
            assert_eq!(body["limiter"], *refused.limiter);
            let names: Vec<_> = refused.exceeded.iter().map(|standing| &*standing.name).collect();
            assert_eq!(body["violated-policies"], json!(names));
            assert_eq!(body.get("limit").is_some(), !refused.exceeded.is_empty());
            assert_eq!(body.get("remaining").is_some(), !refused.exceeded.is_empty());
            assert!(body.get("docs").is_none());
            assert_eq!(grpc(&refused).1, detail);
        }
    }

    #[test]
    fn text_and_html_in_full() {
        let style = AnswerStyle { docs_url: Some("/limits?a=1&b='2'".into()), ..AnswerStyle::default() };
        let answer = |accept: &str| refusal(&third(), &style, Some(accept.as_bytes()), "/a<b", NOW, 0);
        let text = answer("text/plain");
        assert_eq!(text.content_type, "text/plain; charset=utf-8");
        assert_eq!(
            text.body,
            "429 Quota Exceeded\n\nThe limit \"per-ip\" of 2/60s is exceeded. Try again in 60 s.\n\n\
             Request: /a<b\nLimits: /limits?a=1&b='2'\n"
        );
        let html = answer("text/html");
        assert_eq!(html.content_type, "text/html; charset=utf-8");
        assert_eq!(
            html.body,
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>429 Quota Exceeded</title></head>\n\
             <body>\n<h1>Quota Exceeded</h1>\n\
             <p>The limit &quot;per-ip&quot; of 2/60s is exceeded. Try again in 60 s.</p>\n\
             <p>Request: <code>/a&lt;b</code></p>\n\
             <p>Limits: <a href=\"/limits?a=1&amp;b=&#39;2&#39;\">/limits?a=1&amp;b=&#39;2&#39;</a></p>\n\
             </body>\n</html>\n"
        );
        let json = answer("application/json");
        assert_eq!(json.content_type, "application/json");
        assert_eq!(json.body, answer("*/*").body);
    }

    #[test]
    fn the_caller_gets_what_it_accepts() {
        const PROBLEM: &str = "application/problem+json";
        const JSON: &str = "application/json";
        const TEXT: &str = "text/plain; charset=utf-8";
        const HTML: &str = "text/html; charset=utf-8";
        let cases = [
            ("*/*", PROBLEM),
            ("", PROBLEM),
            ("text/html,application/xhtml+xml,*/*;q=0.8", HTML),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8", HTML),
            ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", HTML),
            ("text/plain", TEXT),
            ("text/plain; charset=utf-8", TEXT),
            ("TEXT/PLAIN;Q=1", TEXT),
            ("text/*", TEXT),
            ("application/*", PROBLEM),
            ("application/json", JSON),
            ("application/problem+json", PROBLEM),
            ("application/json, application/problem+json", PROBLEM),
            // axios and jQuery name a type, and take all others as well.
            ("application/json, text/plain, */*", JSON),
            ("application/json, text/javascript, */*; q=0.01", JSON),
            ("text/html;q=0.5, text/plain;q=0.6", TEXT),
            ("text/html;q=0.601, text/plain;q=0.6", HTML),
            ("text/html ; q=0.001", HTML),
            ("text/plain;q=1.000, text/html;q=0.999", TEXT),
            ("text/*;q=0.3, text/html;q=0.2, */*;q=0.1", TEXT),
            ("text/*, text/plain;q=0", HTML),
            // A name that is more exact decides, also against.
            ("application/problem+json;q=0, */*", JSON),
            ("application/*;q=0, */*", TEXT),
            ("*/*;q=0", PROBLEM),
            ("text/html;q=0", PROBLEM),
            ("*/*;q=0.1, text/html;q=0", PROBLEM),
            // Weights that are none, and what else is garbage.
            ("text/html;q=2", PROBLEM),
            ("text/html;q=1.001", PROBLEM),
            ("text/html;q=0.1234", PROBLEM),
            ("text/html;q=", PROBLEM),
            ("text/html;q=-1", PROBLEM),
            ("text/html;q=0.5.5, text/plain;q=0.1", TEXT),
            ("garbage", PROBLEM),
            (",,;;//,/,*/html,text/,/plain", PROBLEM),
            ("image/png, application/xhtml+xml", PROBLEM),
            ("text/html;x=\",text/plain;q=1,\";q=0.1, application/json;q=0.2", JSON),
            ("text/html;x=\"\\\",;q=0\";q=0.3, application/json;q=0.2", HTML),
            ("text/html;x=\"\\\",\";q=0.1, application/json;q=0.2", JSON),
            ("text/html;x=\"never closed, application/json", HTML),
        ];
        for (accept, content_type) in cases {
            assert_eq!(tell(&third(), accept, "/").content_type, content_type, "{accept:?}");
        }
        let absent = refusal(&third(), &AnswerStyle::default(), None, "/", NOW, 0);
        assert_eq!(absent.content_type, PROBLEM);
        let bytes = refusal(&third(), &AnswerStyle::default(), Some(b"text/html,\xff\xfe"), "/", NOW, 0);
        assert_eq!(bytes.content_type, PROBLEM);
    }

    #[test]
    fn nothing_gets_out_of_its_place() {
        let evil = "/</code><script>alert('1')</script>\"&\r\n\0\x1b[2J\u{202e}\u{85}";
        let standing = rate("<b>\"per\nip\"", 2, 60, 0);
        let refused = refused(Reason::Rate, Some(Nanos::new(1)), vec![standing]);

        let html = tell(&refused, "text/html", evil).body;
        assert!(html.contains(
            "<code>/&lt;/code&gt;&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;&quot;&amp;????[2J??</code>"
        ));
        assert!(html.contains("The limit &quot;&lt;b&gt;&quot;per?ip&quot;&quot; of 2/60s is exceeded."));

        let text = tell(&refused, "text/plain", evil).body;
        assert!(text.contains("Request: /</code><script>alert('1')</script>\"&????[2J??\n"));
        assert!(text.contains("The limit \"<b>\"per?ip\"\" of 2/60s is exceeded."));
        assert_eq!(text.lines().count(), 5);

        let style = AnswerStyle { docs_url: Some("/a\nb".into()), ..AnswerStyle::default() };
        let text = refusal(&refused, &style, Some(b"text/plain"), "/", NOW, 0).body;
        assert!(text.ends_with("Limits: /a?b\n"));

        let body: Value = serde_json::from_str(&tell(&refused, "*/*", evil).body).unwrap();
        assert_eq!(body["instance"], evil);
        assert_eq!(body["violated-policies"], json!(["<b>\"per\nip\""]));
    }

    #[test]
    fn a_long_instance_is_cut_between_characters() {
        for c in ["a", "é", "☃", "🦀", "<", "\0"] {
            let body: Value = serde_json::from_str(&tell(&third(), "*/*", &c.repeat(100_000)).body).unwrap();
            assert_eq!(body["instance"], c.repeat(256));
            for accept in ["text/html", "text/plain", "*/*"] {
                assert!(tell(&third(), accept, &c.repeat(100_000)).body.len() < 4096);
            }
        }
    }

    /// Only what was exceeded is told: how much is left elsewhere is nobody's business, and no door is named that
    /// was not shut.
    #[test]
    fn other_limits_stay_in_the_dark() {
        for reason in SHEDDERS.into_iter().chain([Reason::Blocked]) {
            let answer = tell(&refused(reason, None, Vec::new()), "*/*", "/");
            assert!(!answer.headers.iter().any(|(name, _)| name.starts_with("ratelimit")), "{reason:?}");
            let body: Value = serde_json::from_str(&answer.body).unwrap();
            let mut names: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
            names.retain(|name| !["retry-after", "retry_after_ms"].contains(name));
            names.sort_unstable();
            let expected =
                ["detail", "instance", "limiter", "reason", "status", "title", "type", "violated-policies"];
            assert_eq!(names, expected);
            assert_eq!(body["violated-policies"], json!([]));
        }
        let two =
            refused(Reason::Rate, Some(Nanos::new(1)), vec![rate("one", 3, 1, 0), rate("two", 77, 60, 55)]);
        for accept in ["*/*", "text/plain", "text/html"] {
            let answer = tell(&two, accept, "/");
            assert!(!answer.body.contains("77") && !answer.body.contains("55"), "{}", answer.body);
            assert_eq!(header(&answer.headers, "ratelimit"), Some(r#""one";r=0;t=1, "two";r=55;t=1"#));
        }
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn no_accept_and_no_instance_breaks_an_answer(
            accept in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..64),
                "[a-z*/;,=q0-9.\" \\\\]{0,64}".prop_map(String::into_bytes),
                "((text|application|\\*)/(html|plain|json|\\*)(;q=[01](\\.[0-9]{0,4})?)?,? ?){0,5}"
                    .prop_map(String::into_bytes),
            ],
            instance in prop_oneof![any_text(40), any_text(400)],
            name in any_text(16),
            reason in prop::sample::select(&REASONS[..]),
            draw in any::<u32>(),
        ) {
            let refused = refused(reason, Some(Nanos::new(1)), vec![rate(&name, 2, 60, 0)]);
            let answer = refusal(&refused, &AnswerStyle::default(), Some(&accept), &instance, NOW, draw);
            match answer.content_type {
                "application/problem+json" | "application/json" => {
                    let body: Value = serde_json::from_str(&answer.body).unwrap();
                    let cut: String = instance.chars().take(256).collect();
                    prop_assert_eq!(body["instance"].as_str().unwrap(), &cut);
                    prop_assert_eq!(body["limiter"].as_str().unwrap(), &name);
                }
                "text/plain; charset=utf-8" => {
                    prop_assert_eq!(answer.body.chars().filter(|c| c.is_control()).count(), 5);
                }
                "text/html; charset=utf-8" => {
                    let plain = refusal(&third(), &AnswerStyle::default(), Some(&accept), "", NOW, draw).body;
                    for c in ['<', '>'] {
                        prop_assert_eq!(answer.body.matches(c).count(), plain.matches(c).count());
                    }
                }
                other => prop_assert!(false, "{}", other),
            }
        }

        #[test]
        fn a_weight_decides_between_two(html in 0..=1000_u32, text in 0..=1000_u32) {
            let weight = |n: u32| format!("{}.{:03}", n / 1000, n % 1000);
            let accept = format!("text/html;q={},text/plain;q={}", weight(html), weight(text));
            let expected = match html.cmp(&text) {
                _ if html == 0 && text == 0 => "application/problem+json",
                std::cmp::Ordering::Greater => "text/html; charset=utf-8",
                _ => "text/plain; charset=utf-8",
            };
            prop_assert_eq!(tell(&third(), &accept, "/").content_type, expected);
        }
    }
}

mod over_grpc {
    use super::*;

    #[test]
    fn codes() {
        let code = |reason| grpc(&refused(reason, None, Vec::new())).0;
        assert_eq!(REASONS.map(code), [8, 8, 14, 14, 14, 7]);
    }

    #[test]
    fn a_shedder_without_a_wait_says_a_second() {
        let (_, message) = grpc(&refused(Reason::Worker, None, Vec::new()));
        assert!(message.ends_with(" Try again in 1 s."), "{message}");
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(grpc_message(""), "");
        assert_eq!(grpc_message(" a~\"\\"), " a~\"\\");
        assert_eq!(grpc_message("50%25"), "50%2525");
        assert_eq!(grpc_message("a\r\n\0\x7f☃"), "a%0D%0A%00%7F%E2%98%83");
    }

    proptest! {
        #![proptest_config(config())]

        #[test]
        fn messages_can_be_decoded(message in any_text(64)) {
            let encoded = grpc_message(&message);
            prop_assert!(encoded.bytes().all(|b| (b' '..=b'~').contains(&b)));
            let mut decoded = Vec::new();
            let mut bytes = encoded.bytes();
            while let Some(byte) = bytes.next() {
                decoded.push(match byte {
                    b'%' => {
                        let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                        prop_assert!(digits.iter().all(|d| d.is_ascii_digit() || (b'A'..=b'F').contains(d)));
                        u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
                    }
                    plain => plain,
                });
            }
            prop_assert_eq!(decoded, message.into_bytes());
        }
    }
}
