//! Heads and bodies as they are sent.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};
use hyper::ext::ReasonPhrase;
use tollgate::{Clock, SystemClock};

use super::head;
use super::wire::Wire;
use crate::gateway::body::BrokenOff;

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoder {
    /// So much is left.
    Length(u64),
    Chunked,
    /// By the end of the connection.
    Open,
}

/// A body that is longer or shorter than was said of it.
#[derive(Debug)]
pub(super) struct Unlike;

impl From<Unlike> for BrokenOff {
    fn from(Unlike: Unlike) -> Self {
        Self::Length
    }
}

impl Encoder {
    /// Has a piece sent.
    pub(super) fn add(&mut self, wire: &mut Wire, piece: Bytes) -> Result<(), Unlike> {
        let length = piece.len();
        if length == 0 {
            return Ok(());
        }
        match self {
            Self::Length(left) => {
                *left = left.checked_sub(length as u64).ok_or(Unlike)?;
                wire.add(piece, b"");
            }
            Self::Open => wire.add(piece, b""),
            Self::Chunked => {
                let mut digits = [0; 16];
                wire.write.extend_from_slice(in_hex(length as u64, &mut digits));
                wire.write.extend_from_slice(b"\r\n");
                wire.add(piece, b"\r\n");
            }
        }
        Ok(())
    }

    /// Tells that there is no more, but for those of these that were announced.
    pub(super) fn end(
        self,
        wire: &mut Wire,
        trailers: Option<&HeaderMap>,
        announced: &Announced,
    ) -> Result<(), Unlike> {
        match self {
            Self::Length(0) | Self::Open => Ok(()),
            Self::Length(_) => Err(Unlike),
            Self::Chunked => {
                wire.write.extend_from_slice(b"0\r\n");
                for (name, value) in trailers.into_iter().flatten().filter(|(name, _)| announced.names(name))
                {
                    add_field(&mut wire.write, name, value);
                }
                wire.write.extend_from_slice(b"\r\n");
                Ok(())
            }
        }
    }
}

/// Which fields may follow a body: those that its head has announced. Who has not been told to look for them would take them
/// for something else.
#[derive(Debug, Default)]
pub(super) struct Announced(Vec<HeaderValue>);

impl Announced {
    pub(super) fn by(fields: &HeaderMap) -> Self {
        Self(fields.get_all(header::TRAILER).iter().cloned().collect())
    }

    fn names(&self, name: &HeaderName) -> bool {
        let mut names = self.0.iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        names.any(|named| named.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
    }
}

fn in_hex(number: u64, digits: &mut [u8; 16]) -> &[u8] {
    let mut rest = number;
    let mut first = digits.len();
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef".get((rest & 15) as usize).copied().unwrap_or_default();
        rest >>= 4;
        first -= 1;
        if rest == 0 {
            break;
        }
    }
    digits.get(first..).unwrap_or_default()
}

fn add_field(to: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    to.extend_from_slice(name.as_str().as_bytes());
    to.extend_from_slice(b": ");
    to.extend_from_slice(value.as_bytes());
    to.extend_from_slice(b"\r\n");
}

/// Room for a head, so that it is made only once.
fn make_room(to: &mut Vec<u8>, fields: &HeaderMap) {
    let size: usize =
        fields.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>() + 256;
    to.reserve(size);
}

fn add_length(to: &mut Vec<u8>, length: u64) {
    to.extend_from_slice(b"content-length: ");
    to.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
    to.extend_from_slice(b"\r\n");
}

/// The head of a request, for a server.
pub(super) fn request(
    to: &mut Vec<u8>,
    method: &Method,
    target: &http::Uri,
    fields: &HeaderMap,
    body: Option<Option<u64>>,
) -> Encoder {
    make_room(to, fields);
    to.extend_from_slice(method.as_str().as_bytes());
    to.push(b' ');
    // Whoever asked for a host and nothing else wants all of it.
    let target = target.path_and_query().map_or("/", |target| target.as_str());
    to.extend_from_slice(target.as_bytes());
    to.extend_from_slice(b" HTTP/1.1\r\n");
    let encoder = match body {
        None => Encoder::Length(0),
        Some(Some(length)) => Encoder::Length(length),
        Some(None) => Encoder::Chunked,
    };
    let mut says_length = false;
    for (name, value) in fields {
        match *name {
            header::CONTENT_LENGTH => says_length = true,
            // It is for the next hop alone, and has to say so.
            header::TE => {
                add_field(to, name, value);
                to.extend_from_slice(b"connection: te\r\n");
            }
            _ => add_field(to, name, value),
        }
    }
    match encoder {
        Encoder::Chunked => to.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        // Of these some servers want to hear that there is nothing.
        Encoder::Length(0)
            if says_length || matches!(*method, Method::POST | Method::PUT | Method::PATCH) =>
        {
            add_length(to, 0);
        }
        Encoder::Length(length) if length > 0 => add_length(to, length),
        Encoder::Length(_) | Encoder::Open => {}
    }
    to.extend_from_slice(b"\r\n");
    encoder
}

/// How a client has asked, and so is answered.
#[derive(Debug, Default)]
pub(super) struct Manner {
    pub(super) is_head: bool,
    pub(super) is_http_1_0: bool,
    pub(super) takes_trailers: bool,
    /// Whether the connection goes on.
    pub(super) stays: bool,
}

/// The head of an answer, for a client, with what is added in it. The length is that of the body, if it is known.
pub(super) fn response<B>(
    to: &mut Vec<u8>,
    response: &Response<B>,
    add: impl FnOnce(&mut Vec<u8>),
    length: Option<u64>,
    manner: &mut Manner,
) -> Encoder {
    let (status, fields) = (response.status(), response.headers());
    make_room(to, fields);
    to.extend_from_slice(b"HTTP/1.1 ");
    to.extend_from_slice(status.as_str().as_bytes());
    to.push(b' ');
    let reason = match response.extensions().get::<ReasonPhrase>() {
        Some(reason) => reason.as_bytes(),
        None => status.canonical_reason().unwrap_or_default().as_bytes(),
    };
    to.extend_from_slice(reason);
    to.extend_from_slice(b"\r\n");
    let is_switch = status == StatusCode::SWITCHING_PROTOCOLS;
    let has_no_length = status.is_informational() || status == StatusCode::NO_CONTENT;
    let is_bare = has_no_length || manner.is_head || status == StatusCode::NOT_MODIFIED;
    let (mut said, mut is_last, mut is_dated) = (None, false, false);
    for (name, value) in fields {
        match *name {
            header::CONTENT_LENGTH => {
                said = head::length_of(value.as_bytes(), 10).filter(|_| !has_no_length);
                continue;
            }
            header::CONNECTION if !is_switch => {
                is_last |= value.as_bytes().eq_ignore_ascii_case(b"close");
                continue;
            }
            header::DATE => is_dated = true,
            _ => {}
        }
        add_field(to, name, value);
    }
    add(to);
    let encoder = match length.or(said) {
        _ if is_bare => Encoder::Length(0),
        Some(length) => Encoder::Length(length),
        None if manner.is_http_1_0 => Encoder::Open,
        None => Encoder::Chunked,
    };
    manner.stays &= !is_last && encoder != Encoder::Open && !is_switch;
    match encoder {
        Encoder::Length(_) if is_bare => {
            // What there would be if it had a body.
            if let Some(length) = said.or(length.filter(|length| *length > 0 && manner.is_head)) {
                add_length(to, length);
            }
        }
        Encoder::Length(length) => add_length(to, length),
        Encoder::Chunked => to.extend_from_slice(b"transfer-encoding: chunked\r\n"),
        Encoder::Open => {}
    }
    if !is_dated {
        add_date(to);
    }
    match manner.stays {
        _ if is_switch => {}
        true if manner.is_http_1_0 => to.extend_from_slice(b"connection: keep-alive\r\n"),
        true => {}
        false => to.extend_from_slice(b"connection: close\r\n"),
    }
    to.extend_from_slice(b"\r\n");
    encoder
}

/// Says what time it is, which is written out once a second.
fn add_date(to: &mut Vec<u8>) {
    thread_local! {
        static LAST: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = SystemClock.now().as_nanos() / 1_000_000_000;
    LAST.with_borrow_mut(|(last, text)| {
        if *last != second {
            *last = second;
            *text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(second));
        }
        to.extend_from_slice(b"date: ");
        to.extend_from_slice(text.as_bytes());
        to.extend_from_slice(b"\r\n");
    });
}
