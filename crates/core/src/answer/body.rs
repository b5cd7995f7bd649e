//! What a person reads: one sentence or two, and the body around it.

use std::fmt::Write as _;

use super::Wait;
use super::accept::Kind;
use super::headers::integer;
use super::write::{digits, push_escaped, push_json, push_number};
use crate::decision::{Reason, Refused, Standing};

/// Longer names of requests are cut: a caller does not decide how much is sent back.
const LONGEST_INSTANCE: usize = 256;

/// Content type and body of a refusal.
pub(super) fn build(
    refused: &Refused,
    wait: Option<Wait>,
    accept: Option<&[u8]>,
    instance: &str,
    docs: Option<&str>,
    ready: Option<&Problem>,
) -> (&'static str, String) {
    let kind = Kind::wanted(accept);
    let end = match instance.len() <= LONGEST_INSTANCE {
        true => instance.len(),
        false => instance.char_indices().nth(LONGEST_INSTANCE).map_or(instance.len(), |(at, _)| at),
    };
    let instance = instance.get(..end).unwrap_or_default();
    let body = match kind {
        Kind::Problem | Kind::Json => match ready.filter(|ready| wait.is_some() && ready.is_of(refused)) {
            Some(ready) => ready.json(refused, wait, instance),
            None => Problem::new(refused, wait.is_some(), docs).json(refused, wait, instance),
        },
        Kind::Text => text(refused, wait, instance, docs),
        Kind::Html => html(refused, wait, instance, docs),
    };
    (kind.content_type(), body)
}

/// Which limiter it was, what the limit is, and when to come back.
pub(super) fn detail(refused: &Refused, wait: Option<Wait>) -> String {
    let mut detail = String::with_capacity(128);
    push_detail(
        &mut detail,
        refused,
        &Writing { quote: "\"", put: |text, part| text.push_str(part) },
        wait.map(|wait| move |text: &mut String| push_wait(text, wait)),
    );
    detail
}

/// How text from a policy is written: as it is, or inside a string of JSON.
struct Writing {
    quote: &'static str,
    put: fn(&mut String, &str),
}

impl Writing {
    fn quoted(&self, text: &mut String, name: &str) {
        text.push_str(self.quote);
        (self.put)(text, name);
        text.push_str(self.quote);
    }
}

/// Appends the same, with names as `writing` has them and the wait, if there is one, as `wait` writes it.
fn push_detail(
    text: &mut String,
    refused: &Refused,
    writing: &Writing,
    wait: Option<impl FnOnce(&mut String)>,
) {
    let mut around = |before: &str, behind: &str| {
        text.push_str(before);
        writing.quoted(text, &refused.limiter);
        text.push_str(behind);
    };
    match refused.reason {
        Reason::Rate | Reason::Concurrency if wait.is_none() => {
            text.push_str("The request costs more than the ");
            push_limit(text, refused, writing);
            text.push_str(" can ever give, and will never pass as it is.");
        }
        Reason::Rate | Reason::Concurrency => {
            text.push_str("The ");
            push_limit(text, refused, writing);
            text.push_str(" is exceeded.");
        }
        Reason::Fleet => {
            around("The service is busy, and ", " keeps what is left for critical requests.");
        }
        Reason::Worker => {
            around("The server is overloaded, and ", " turns requests of this kind away.");
        }
        Reason::StoreAway => {
            around("The limit ", " cannot be checked now, and nothing may pass it unchecked.");
        }
        Reason::Blocked => around("The caller is blocked by ", "."),
        Reason::Unclear => {
            text.push_str(
                "The request says more than once who is calling, and not always the same. Say it once.",
            );
        }
    }
    if let Some(wait) = wait {
        text.push_str(" Try again in ");
        wait(text);
        text.push('.');
    }
}

/// `limit "request-rate" of 50/s, burst 100`.
fn push_limit(text: &mut String, refused: &Refused, writing: &Writing) {
    let first = refused.exceeded.first();
    text.push_str("limit ");
    writing.quoted(text, first.map_or(&refused.limiter, |standing| &standing.name));
    if let Some(standing) = first {
        text.push_str(" of ");
        (writing.put)(text, &standing.stated);
    }
}

/// `5 s`, or `20 ms` where less than a second is enough.
fn push_wait(text: &mut String, Wait { secs, millis }: Wait) {
    let (number, unit) = if millis < 1000 { (millis, " ms") } else { (secs, " s") };
    push_number(text, number);
    text.push_str(unit);
}

/// A body of RFC 9457, with the problem types of the RateLimit draft: all of it that is the same for everybody who is refused
/// for the same reason, cut where something else goes in between.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    reason: Reason,
    /// Each piece, and what follows it.
    pieces: Vec<(Box<str>, Gap)>,
    length: usize,
}

/// What is another for every request.
#[derive(Clone, Copy, Debug)]
enum Gap {
    /// Whole seconds.
    Seconds,
    Millis,
    /// The wait as [`push_wait`] writes it.
    Wait,
    Instance,
    Remaining,
    /// Nothing more.
    End,
}

impl Problem {
    /// Of those who have exceeded one limit and no other.
    pub(super) fn of_one(reason: Reason, limiter: &str, standing: &Standing, docs: Option<&str>) -> Self {
        let exceeded = vec![standing.clone()];
        Self::new(&Refused { reason, limiter: limiter.into(), retry_after: None, exceeded }, true, docs)
    }

    fn new(refused: &Refused, has_wait: bool, docs: Option<&str>) -> Self {
        let first = refused.exceeded.first();
        let mut problem = Self { reason: refused.reason, pieces: Vec::with_capacity(8), length: 0 };
        let mut body = String::with_capacity(512);
        let text = |body: &mut String, name: &str, value: &str| {
            body.push_str(name);
            push_json(body, value);
        };
        // What we have written ourselves has nothing in it that JSON would want otherwise.
        for plain in [
            "{\"type\":\"",
            kind_of_problem(refused.reason),
            "\",\"title\":\"",
            title(refused.reason),
            "\",\"status\":",
        ] {
            body.push_str(plain);
        }
        push_number(&mut body, refused.reason.status().into());
        body.push_str(",\"detail\":\"");
        // As a string of JSON has it, so that it need not be written twice.
        let writing = Writing { quote: "\\\"", put: push_escaped };
        let wait = |text: &mut String| problem.cut(text, Gap::Wait);
        push_detail(&mut body, refused, &writing, has_wait.then_some(wait));
        body.push_str("\",\"instance\":");
        problem.cut(&mut body, Gap::Instance);
        body.push_str(",\"violated-policies\":[");
        for (at, standing) in refused.exceeded.iter().enumerate() {
            text(&mut body, if at == 0 { "" } else { "," }, &standing.name);
        }
        body.push(']');
        text(&mut body, ",\"limiter\":", &refused.limiter);
        for plain in [",\"reason\":\"", refused.reason.name(), "\""] {
            body.push_str(plain);
        }
        if let Some(first) = first {
            body.push_str(",\"limit\":");
            push_number(&mut body, integer(first.quota));
            body.push_str(",\"remaining\":");
            problem.cut(&mut body, Gap::Remaining);
        }
        if has_wait {
            body.push_str(",\"retry-after\":");
            problem.cut(&mut body, Gap::Seconds);
            body.push_str(",\"retry_after_ms\":");
            problem.cut(&mut body, Gap::Millis);
        }
        if let Some(docs) = docs {
            text(&mut body, ",\"docs\":", docs);
        }
        body.push('}');
        problem.cut(&mut body, Gap::End);
        problem
    }

    fn cut(&mut self, text: &mut String, gap: Gap) {
        self.length += text.len();
        self.pieces.push((text.as_str().into(), gap));
        text.clear();
    }

    /// Whether it is the problem of this refusal, which is one by the same limit.
    fn is_of(&self, refused: &Refused) -> bool {
        self.reason == refused.reason && refused.exceeded.len() == 1
    }

    /// The whole body.
    fn json(&self, refused: &Refused, wait: Option<Wait>, instance: &str) -> String {
        let wait = wait.unwrap_or(Wait { secs: 0, millis: 0 });
        let (secs, millis) = (integer(wait.secs), integer(wait.millis));
        let remaining = integer(refused.exceeded.first().map_or(0, |it| it.remaining));
        // As long as it gets: what has room left costs more to send. Of an odd instance nobody knows how long it gets.
        let gaps = self.pieces.iter().map(|(_, gap)| match gap {
            Gap::Seconds => digits(secs),
            Gap::Millis => digits(millis),
            Gap::Wait => digits(if millis < 1000 { millis } else { secs }) + " ms".len(),
            Gap::Instance => instance.len() + "\"\"".len(),
            Gap::Remaining => digits(remaining),
            Gap::End => 0,
        });
        let mut body = String::with_capacity(self.length + gaps.sum::<usize>());
        for (piece, gap) in &self.pieces {
            body.push_str(piece);
            match gap {
                Gap::Seconds => push_number(&mut body, secs),
                Gap::Millis => push_number(&mut body, millis),
                Gap::Wait => push_wait(&mut body, Wait { secs, millis }),
                Gap::Instance => push_json(&mut body, instance),
                Gap::Remaining => push_number(&mut body, remaining),
                Gap::End => {}
            }
        }
        body
    }
}

fn kind_of_problem(reason: Reason) -> &'static str {
    match reason {
        Reason::Rate | Reason::Concurrency => {
            "https://iana.org/assignments/http-problem-types#quota-exceeded"
        }
        Reason::Fleet | Reason::Worker | Reason::StoreAway => {
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        }
        Reason::Blocked | Reason::Unclear => "about:blank",
    }
}

fn title(reason: Reason) -> &'static str {
    match reason {
        Reason::Rate | Reason::Concurrency => "Quota Exceeded",
        Reason::Fleet | Reason::Worker | Reason::StoreAway => "Temporary Reduced Capacity",
        Reason::Blocked => "Forbidden",
        Reason::Unclear => "Bad Request",
    }
}

fn text(refused: &Refused, wait: Option<Wait>, instance: &str, docs: Option<&str>) -> String {
    let (status, title) = (refused.reason.status(), title(refused.reason));
    let detail = one_line(&detail(refused, wait));
    let mut body = format!("{status} {title}\n\n{detail}\n\nRequest: {}\n", one_line(instance));
    if let Some(docs) = docs {
        let _ = writeln!(body, "Limits: {}", one_line(docs));
    }
    body
}

fn html(refused: &Refused, wait: Option<Wait>, instance: &str, docs: Option<&str>) -> String {
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
