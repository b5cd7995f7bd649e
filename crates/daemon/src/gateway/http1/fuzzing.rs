//! Fuzz harnesses of HTTP/1: request heads, request bodies, responses. Each one takes arbitrary bytes and panics if a
//! property does not hold. `crate::fuzzing` lists them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a harness panics"
)]

use std::cell::RefCell;
use std::collections::HashSet;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, Version};
use tokio::net::TcpStream;

use super::decode::{Decoder, Piece, Syntax};
use super::encode::{self, Announced, Encoder, Manner};
use super::head::{self, Asked, Length, Scan, Wrong};
use super::wire::{Stream, Wire};
use crate::gateway::{fields, request};

/// Request heads longer than this are rejected, as the gateway does by default.
const MAX_HEAD: usize = 32 << 10;
/// A decoder that waits for more bytes never holds more than this.
const MAX_HELD: usize = 17 << 10;

/// The reader takes 100 fields, and some are added on the way.
const MOST_CHECKED_FIELDS: usize = 90;

/// What was read from a connection, independent of how the bytes arrived.
#[derive(Debug, Default, PartialEq)]
struct Transcript {
    messages: Vec<Message>,
    /// Bytes behind the last complete head or body.
    left: usize,
    is_rejected: bool,
}

#[derive(Debug, PartialEq)]
struct Message {
    /// The start line and the fields, as parsed.
    head: String,
    length: Length,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_complete: bool,
}

/// Reads heads with `parse` and bodies with the decoder, as the bytes arrive in these pieces.
fn transcript<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    is_strict: bool,
    mut parse: impl FnMut(&Bytes) -> Result<(String, Length), Wrong>,
) -> Transcript {
    let (mut read, mut scan, mut seen) = (BytesMut::new(), Scan::default(), Transcript::default());
    let mut decoder: Option<Decoder> = None;
    for piece in pieces {
        read.extend_from_slice(piece);
        let stopped = loop {
            let next = match &mut decoder {
                Some(decoder) => decoder.next(&mut read),
                None => match scan.end(&read, is_strict) {
                    Ok(Some(end)) if end <= MAX_HEAD => {
                        scan = Scan::default();
                        let bytes = read.split_to(end).freeze();
                        // Empty lines before a request are skipped.
                        if is_strict && end == 2 {
                            continue;
                        }
                        parse(&bytes).map(|(head, length)| {
                            let syntax = if is_strict { Syntax::Strict } else { Syntax::Lenient };
                            decoder = Some(Decoder::new(length, syntax));
                            let (body, trailers) = (Vec::new(), None);
                            seen.messages.push(Message { head, length, body, trailers, is_complete: false });
                            Piece::Data(Bytes::new())
                        })
                    }
                    Ok(_) if read.len() > MAX_HEAD => Err(Wrong::TooLarge),
                    Ok(_) => Ok(Piece::Awaited),
                    Err(wrong) => Err(wrong),
                },
            };
            let message = seen.messages.last_mut();
            match next {
                Err(_) => break true,
                Ok(Piece::Awaited) => {
                    assert!(decoder.is_none() || read.len() <= MAX_HELD, "{} bytes are held", read.len());
                    break false;
                }
                Ok(Piece::Data(data)) => message.unwrap().body.extend_from_slice(&data),
                Ok(Piece::Trailers(trailers)) => message.unwrap().trailers = Some(trailers),
                Ok(Piece::End) => {
                    message.unwrap().is_complete = true;
                    decoder = None;
                }
            }
        };
        if stopped {
            return Transcript { is_rejected: true, ..seen };
        }
    }
    seen.left = read.len();
    seen
}

/// The same bytes give the same transcript, however they are cut.
fn same_for_all_cuts(data: &[u8], cut: u8, read: impl Fn(Vec<&[u8]>) -> Transcript) -> Transcript {
    let whole = read(vec![data]);
    let by_byte = read(data.chunks(1).collect());
    assert_eq!(by_byte, whole, "read byte by byte: {:?}", data.escape_ascii().to_string());
    let size = usize::from(cut).max(2);
    assert_eq!(
        read(data.chunks(size).collect()),
        whole,
        "in pieces of {size}: {:?}",
        data.escape_ascii().to_string()
    );
    whole
}

fn requests(pieces: Vec<&[u8]>) -> Transcript {
    transcript(pieces, true, |bytes| {
        let asked = head::request(bytes)?;
        let (request, stays, expects) = (&asked.request, asked.stays, asked.expects);
        Ok((format!("{request:?} {stays} {expects} {}", asked.takes_trailers), asked.length))
    })
}

/// A stream of requests: heads and bodies by length or in chunks.
pub(crate) fn requests_on_a_connection(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    same_for_all_cuts(data, cut, requests);
    let (mut scan, mut bytes) = (Scan::default(), BytesMut::from(data));
    if let Ok(Some(end)) = scan.end(&bytes, true)
        && end > 2
    {
        let bytes = bytes.split_to(end).freeze();
        if let Ok(asked) = head::request(&bytes) {
            assert_unambiguous(&bytes, &asked);
            assert_survives_forwarding(asked);
        }
    }
}

fn is_token(text: &[u8]) -> bool {
    let is_special = |byte: &u8| b"!#$%&'*+-.^_`|~".contains(byte);
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || is_special(byte))
}

/// A second reader, written from RFC 9112 alone, finds one request in the head, with the same framing.
fn assert_unambiguous(head: &[u8], asked: &Asked) {
    let text = head.strip_suffix(b"\r\n\r\n").expect("a head ends with an empty line");
    let is_control = |byte: &u8| (*byte < b' ' && *byte != b'\t') || *byte == 0x7f;
    let mut lines: Vec<&[u8]> = Vec::new();
    let mut rest = text;
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        lines.push(&rest[..end]);
        rest = &rest[end + 2..];
    }
    lines.push(rest);
    assert!(
        !lines.iter().any(|line| line.iter().any(is_control)),
        "a control byte: {:?}",
        head.escape_ascii()
    );
    let words: Vec<&[u8]> = lines[0].split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { panic!("words of the request line: {}", words.len()) };
    assert!(is_token(method) && asked.request.method().as_str().as_bytes() == method);
    assert!(!target.is_empty() && !target.contains(&b'#') && std::str::from_utf8(target).is_ok());
    let is_1_0 = asked.request.version() == Version::HTTP_10;
    assert_eq!(version, if is_1_0 { b"HTTP/1.0" } else { b"HTTP/1.1" });
    let (mut lengths, mut codings) = (Vec::new(), Vec::new());
    for line in &lines[1..] {
        let colon = line.iter().position(|byte| *byte == b':').expect("a colon in every field");
        let (name, value) = (line[..colon].to_ascii_lowercase(), line[colon + 1..].trim_ascii());
        assert!(is_token(&name), "a field without a name: {:?}", line.escape_ascii());
        match name.as_slice() {
            b"content-length" => lengths.push(value),
            b"transfer-encoding" => codings.push(value),
            _ => {}
        }
    }
    let expected = match (&lengths[..], &codings[..]) {
        ([], []) => Length::Exactly(0),
        ([length], []) if length.iter().all(u8::is_ascii_digit) => {
            Length::Exactly(std::str::from_utf8(length).unwrap().parse().expect("a length that fits"))
        }
        ([], [coding]) if coding.eq_ignore_ascii_case(b"chunked") && !is_1_0 => Length::Chunked,
        _ => panic!("ambiguous framing was accepted: {:?}", head.escape_ascii()),
    };
    assert_eq!(asked.length, expected);
}

/// What is sent to the server reads as one request with the same method, target, fields and framing.
fn assert_survives_forwarding(asked: Asked) {
    let (mut parts, ()) = asked.request.into_parts();
    // Tunnels are rejected later. Fields that are added may be more than the reader takes.
    if parts.method == Method::CONNECT || parts.headers.len() > MOST_CHECKED_FIELDS {
        return;
    }
    parts.uri = request::target_of(parts.uri);
    fields::strip_asked(&mut parts.headers, &HashSet::new());
    let body = match asked.length {
        Length::Exactly(0) => None,
        Length::Exactly(length) => Some(Some(length)),
        Length::Chunked | Length::Open => Some(None),
    };
    let mut sent = Vec::new();
    encode::request(&mut sent, &parts.method, &parts.uri, &parts.headers, body);
    let end = Scan::default().end(&sent, true).expect("lines end well").expect("a whole head");
    assert_eq!(end, sent.len(), "one head and nothing behind it: {:?}", sent.escape_ascii().to_string());
    let again = head::request(&Bytes::from(sent)).expect("our own request is valid");
    assert_eq!(again.length, asked.length);
    assert_eq!(again.request.method(), parts.method);
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    assert_eq!(again.request.uri().to_string(), target);
    let without = |headers: &HeaderMap| {
        let mut headers = headers.clone();
        for name in ["content-length", "transfer-encoding", "connection"] {
            headers.remove(name);
        }
        headers
    };
    assert_eq!(without(again.request.headers()), without(&parts.headers));
}

/// A chunked request body, without its head.
pub(crate) fn request_body(data: &[u8]) {
    let Some((&cut, data)) = data.split_first() else { return };
    let read = |pieces: Vec<&[u8]>| body(&pieces, Decoder::new(Length::Chunked, Syntax::Strict));
    let whole = read(vec![data]);
    for size in [1, usize::from(cut).max(2)] {
        assert_eq!(read(data.chunks(size).collect()), whole, "{size}: {:?}", data.escape_ascii().to_string());
    }
    if let Some(Ended { body, left, .. }) = &whole.1 {
        let (expected, used) = reference_chunks(data).expect("accepted, but not by the reference");
        assert_eq!((body.as_slice(), data.len() - left), (expected.as_slice(), used));
        assert_encodes(body, usize::from(cut) + 1);
    }
}

/// A body that came to its end.
#[derive(Debug, PartialEq)]
struct Ended {
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// Bytes behind it.
    left: usize,
}

/// Decodes a body: whether it was rejected, and what it is if it came to its end.
fn body(pieces: &[&[u8]], mut decoder: Decoder) -> (bool, Option<Ended>) {
    let (mut read, mut body, mut trailers) = (BytesMut::new(), Vec::new(), None);
    let mut arriving = pieces.iter();
    loop {
        match decoder.next(&mut read) {
            Err(_) => return (true, None),
            Ok(Piece::Data(data)) => body.extend_from_slice(&data),
            Ok(Piece::Trailers(fields)) => trailers = Some(fields),
            Ok(Piece::End) => {
                let left = read.len() + arriving.map(|piece| piece.len()).sum::<usize>();
                return (false, Some(Ended { body, trailers, left }));
            }
            Ok(Piece::Awaited) => {
                assert!(read.len() <= MAX_HELD, "{} bytes are held", read.len());
                match arriving.next() {
                    Some(piece) => read.extend_from_slice(piece),
                    None => return (false, None),
                }
            }
        }
    }
}

/// A second decoder, written from RFC 9112 section 7.1 alone: the body, and how many bytes it takes.
fn reference_chunks(data: &[u8]) -> Option<(Vec<u8>, usize)> {
    let (mut body, mut at) = (Vec::new(), 0);
    let line = |at: &mut usize| {
        let length = data.get(*at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &data[*at..*at + length];
        *at += length + 2;
        (!line.contains(&b'\r') && !line.contains(&b'\n')).then_some(line)
    };
    loop {
        let size = line(&mut at)?;
        let digits = size.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let behind = size[digits..].trim_ascii_start();
        if !behind.is_empty() && !behind.starts_with(b";") {
            return None;
        }
        let size = usize::from_str_radix(std::str::from_utf8(&size[..digits]).ok()?, 16).ok()?;
        if size == 0 {
            break;
        }
        body.extend_from_slice(data.get(at..at.checked_add(size)?)?);
        at += size;
        if line(&mut at)? != b"" {
            return None;
        }
    }
    while !line(&mut at)?.is_empty() {}
    Some((body, at))
}

/// What is encoded in chunks of this size is decoded to the same body, and ends where it should.
fn assert_encodes(body: &[u8], size: usize) {
    let encoded = with_wire(|wire| {
        let mut encoder = Encoder::Chunked;
        for piece in body.chunks(size) {
            encoder.add(wire, Bytes::copy_from_slice(piece)).expect("chunks have no length to exceed");
        }
        encoder.end(wire, None, &Announced::default()).expect("chunks can always end");
        wire.write.clone()
    });
    let decoded = self::body(&[&encoded, b"x"], Decoder::new(Length::Chunked, Syntax::Strict));
    assert_eq!(decoded, (false, Some(Ended { body: body.to_vec(), trailers: None, left: 1 })));
}

/// A connection on which nothing is sent: encoders write into its buffer.
fn with_wire<T>(encode: impl FnOnce(&mut Wire) -> T) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        static WIRE: RefCell<Wire> = RefCell::new(disconnected_wire());
    }
    fn disconnected_wire() -> Wire {
        RUNTIME.with(|runtime| {
            let _entered = runtime.enter();
            let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("its address");
            let stream = std::net::TcpStream::connect(address).expect("a connection");
            stream.set_nonblocking(true).expect("a socket");
            Wire::new(Stream::Plain(TcpStream::from_std(stream).expect("a socket")), BytesMut::new())
        })
    }
    WIRE.with_borrow_mut(|wire| {
        wire.write.clear();
        encode(wire)
    })
}

/// A response of a server: its head, and its body up to the end of the connection.
pub(crate) fn response(data: &[u8]) {
    let Some((&choice, data)) = data.split_first() else { return };
    let method = if choice & 1 == 1 { Method::HEAD } else { Method::GET };
    let responses = |pieces: Vec<&[u8]>| {
        transcript(pieces, false, |bytes| {
            let told = head::response(bytes, &method)?;
            Ok((format!("{:?} {}", told.response, told.stays), told.length))
        })
    };
    let seen = same_for_all_cuts(data, choice, responses);
    if let Ok(Some(end)) = Scan::default().end(data, false)
        && let Ok(told) = head::response(&Bytes::copy_from_slice(&data[..end]), &method)
    {
        let message = seen.messages.first().expect("a head was read");
        let is_complete = message.is_complete || (message.length == Length::Open && !seen.is_rejected);
        assert_reaches_client(told, &method, message, is_complete);
    }
}

/// What is sent to a client reads as one response with the same status and body.
fn assert_reaches_client(told: head::Told, method: &Method, message: &Message, is_complete: bool) {
    let (mut parts, ()) = told.response.into_parts();
    if parts.status == StatusCode::SWITCHING_PROTOCOLS || parts.headers.len() > MOST_CHECKED_FIELDS {
        return;
    }
    fields::strip_answer(&mut parts.headers, &HashSet::new());
    let length = match told.length {
        Length::Exactly(length) => Some(length),
        Length::Chunked | Length::Open => None,
    };
    let sent = http::Response::from_parts(parts, ());
    let mut manner = Manner { is_head: method == Method::HEAD, stays: true, ..Manner::default() };
    let encoded = with_wire(|wire| {
        let mut encoder = encode::response(&mut wire.write, &sent, |_| {}, length, &mut manner);
        if is_complete && encoder != Encoder::Length(0) {
            for piece in message.body.chunks(1000) {
                encoder.add(wire, Bytes::copy_from_slice(piece)).expect("as long as it says");
            }
            encoder.end(wire, None, &Announced::default()).expect("as long as it says");
        }
        wire.write.clone()
    });
    let end = Scan::default().end(&encoded, true).expect("lines end well").expect("a whole head");
    let head = Bytes::copy_from_slice(&encoded[..end]);
    let again = head::response(&head, method).expect("our own response is valid");
    assert_eq!(again.response.status(), sent.status());
    if is_complete {
        let (is_rejected, ended) = body(&[&encoded[end..]], Decoder::new(again.length, Syntax::Strict));
        let ended = ended.expect("a complete body");
        assert!(!is_rejected && ended.left == 0, "bytes behind the response");
        assert_eq!(ended.body, message.body);
    }
}
