//! What a person reads: one sentence or two, and the body around it.

use std::fmt::Write as _;

use serde_json::Value;

use super::accept::Kind;
use super::headers::integer;
use crate::decision::{Reason, Refused, Standing, Unit};
use crate::time::Nanos;

/// Longer names of requests are cut: a caller does not decide how much is sent back.
const LONGEST_INSTANCE: usize = 256;

/// Content type and body of a refusal; `wait` is the number in `Retry-After`.
pub(super) fn build(
    refused: &Refused,
    wait: Option<u64>,
    accept: Option<&[u8]>,
    instance: &str,
    docs: Option<&str>,
) -> (&'static str, String) {
    let kind = Kind::wanted(accept);
    let instance: String = instance.chars().take(LONGEST_INSTANCE).collect();
    let body = match kind {
        Kind::Problem | Kind::Json => json(refused, wait, instance, docs),
        Kind::Text => text(refused, wait, &instance, docs),
        Kind::Html => html(refused, wait, &instance, docs),
    };
    (kind.content_type(), body)
}

/// Which limiter it was, what the limit is, and when to come back.
pub(super) fn detail(refused: &Refused, wait: Option<u64>) -> String {
    let limiter = &refused.limiter;
    let limit = || match refused.exceeded.first() {
        Some(standing) => format!("limit \"{}\" of {}", standing.name, amount(standing)),
        None => format!("limit \"{limiter}\""),
    };
    let mut detail = match refused.reason {
        Reason::Rate | Reason::Concurrency if wait.is_none() => {
            let limit = limit();
            return format!(
                "The request costs more than the {limit} can ever give, and will never pass as it is."
            );
        }
        Reason::Rate | Reason::Concurrency => format!("The {} is exceeded.", limit()),
        Reason::Fleet => {
            format!("The service is busy, and \"{limiter}\" keeps what is left for critical requests.")
        }
        Reason::Worker => {
            format!("The server is overloaded, and \"{limiter}\" turns requests of this kind away.")
        }
        Reason::StoreAway => {
            format!("The limit \"{limiter}\" cannot be checked now, and nothing may pass it unchecked.")
        }
        Reason::Blocked => format!("The caller is blocked by \"{limiter}\"."),
    };
    if let Some(wait) = wait {
        let _ = write!(detail, " Try again in {wait} s.");
    }
    detail
}

/// `50 requests per 1 s`.
fn amount(standing: &Standing) -> String {
    let quota = integer(standing.quota);
    let requests = if quota == 1 { "request" } else { "requests" };
    match (standing.unit, standing.window) {
        (Unit::ConcurrentRequests, _) => format!("{quota} {requests} in progress"),
        (Unit::Requests, Some(window)) => format!("{quota} {requests} per {}", spaced(window)),
        (Unit::Requests, None) => format!("{quota} {requests}"),
    }
}

/// A duration with a space before its unit: `1.5 s`.
fn spaced(duration: Nanos) -> String {
    let written = duration.to_string();
    let number = written.trim_end_matches(|c: char| c.is_alphabetic());
    format!("{number} {}", written.strip_prefix(number).unwrap_or_default())
}

/// RFC 9457, with the problem types of the RateLimit draft.
fn json(refused: &Refused, wait: Option<u64>, instance: String, docs: Option<&str>) -> String {
    let first = refused.exceeded.first();
    let names = refused.exceeded.iter().map(|standing| Value::from(&*standing.name));
    let members = [
        ("type", Some(Value::from(kind_of_problem(refused.reason)))),
        ("title", Some(Value::from(title(refused.reason)))),
        ("status", Some(Value::from(refused.reason.status()))),
        ("detail", Some(Value::from(detail(refused, wait)))),
        ("instance", Some(Value::from(instance))),
        ("violated-policies", Some(names.collect())),
        ("limiter", Some(Value::from(&*refused.limiter))),
        ("reason", Some(Value::from(refused.reason.name()))),
        ("limit", first.map(|standing| Value::from(integer(standing.quota)))),
        ("remaining", first.map(|standing| Value::from(integer(standing.remaining)))),
        ("retry-after", wait.map(Value::from)),
        ("docs", docs.map(Value::from)),
    ];
    // A map of serde_json sorts its members; people want the type first.
    let mut body = String::from("{");
    for (name, value) in members {
        let Some(value) = value else { continue };
        let comma = if body.len() > 1 { "," } else { "" };
        let _ = write!(body, "{comma}\"{name}\":{value}");
    }
    body.push('}');
    body
}

fn kind_of_problem(reason: Reason) -> &'static str {
    match reason {
        Reason::Rate | Reason::Concurrency => {
            "https://iana.org/assignments/http-problem-types#quota-exceeded"
        }
        Reason::Fleet | Reason::Worker | Reason::StoreAway => {
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        }
        Reason::Blocked => "about:blank",
    }
}

fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::Rate | Reason::Concurrency => "Quota Exceeded",
        Reason::Fleet | Reason::Worker | Reason::StoreAway => "Temporary Reduced Capacity",
        Reason::Blocked => "Forbidden",
    }
}

fn text(refused: &Refused, wait: Option<u64>, instance: &str, docs: Option<&str>) -> String {
    let (status, title) = (refused.reason.status(), title(refused.reason));
    let detail = one_line(&detail(refused, wait));
    let mut body = format!("{status} {title}\n\n{detail}\n\nRequest: {}\n", one_line(instance));
    if let Some(docs) = docs {
        let _ = writeln!(body, "Limits: {}", one_line(docs));
    }
    body
}

fn html(refused: &Refused, wait: Option<u64>, instance: &str, docs: Option<&str>) -> String {
    let (status, title) = (refused.reason.status(), title(refused.reason));
    let detail = escaped(&detail(refused, wait));
    let mut body = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{status} {title}</title></head>\n\
         <body>\n<h1>{title}</h1>\n<p>{detail}</p>\n<p>Request: <code>{}</code></p>\n",
        escaped(instance)
    );
    if let Some(docs) = docs {
        let docs = escaped(docs);
        let _ = writeln!(body, "<p>Limits: <a href=\"{docs}\">{docs}</a></p>");
    }
    body.push_str("</body>\n</html>\n");
    body
}

/// Without the characters that move a terminal's cursor or begin a line in a log.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if moves(c) { '?' } else { c }).collect()
}

/// Control characters, line and paragraph separators, and marks that turn the direction of the text around them.
fn moves(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{061c}')
}

/// Text that stays text inside HTML, between tags and in quoted attributes.
fn escaped(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c if moves(c) => html.push('?'),
            c => html.push(c),
        }
    }
    html
}
