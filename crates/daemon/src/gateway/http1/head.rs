//! Heads of requests and answers: read once, and strictly. What two readers could take for different things is refused.

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use httparse::Header;
use hyper::ext::ReasonPhrase;
use memchr::{memchr, memchr_iter, memchr2, memmem};

/// More than anybody has need of.
const MOST_FIELDS: usize = 100;

/// Something that is no HTTP, or could be read in two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    Head(&'static str),
    TooLarge,
    /// The target of a request is too long. Answers have none.
    Target,
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Exactly(u64),
    Chunked,
    /// It ends with its connection.
    Open,
}

/// Looks for the end of a head, and at nothing twice.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    looked: usize,
    /// Where the line begins whose end has not come yet.
    line: usize,
}

impl Scan {
    /// How long the head is, if its end is there. Lines end as they should; of servers a line feed is enough.
    pub(super) fn end(&mut self, bytes: &[u8], is_strict: bool) -> Result<Option<usize>, Wrong> {
        let new = bytes.get(self.looked..).unwrap_or_default();
        for at in memchr_iter(b'\n', new) {
            let end = self.looked + at;
            let line = bytes.get(self.line..end).unwrap_or_default();
            let line = match line.strip_suffix(b"\r") {
                Some(line) => line,
                None if is_strict => return Err(Wrong::Head("A line of the request ends without CR.")),
                None => line,
            };
            self.line = end + 1;
            if line.is_empty() {
                return Ok(Some(end + 1));
            }
        }
        self.looked = bytes.len();
        Ok(None)
    }
}

/// A request without its body.
pub(super) struct Asked {
    pub(super) request: Request<()>,
    pub(super) length: Length,
    /// Whether the connection goes on behind it, if its client has its way.
    pub(super) stays: bool,
    /// Whether the client waits to be told that it may send the body.
    pub(super) expects: bool,
    /// Whether the client takes what follows a body.
    pub(super) takes_trailers: bool,
}

/// What the fields of a head say of what follows.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    is_chunked: bool,
    has_close: bool,
    has_keep_alive: bool,
    expects: bool,
    takes_trailers: bool,
}

/// No [`Uri`] is longer.
const LONGEST_TARGET: usize = u16::MAX as usize - 1;

/// What is asked for.
fn target_of(method: &Method, text: Bytes) -> Result<Uri, Wrong> {
    if text.len() > LONGEST_TARGET {
        return Err(Wrong::Target);
    }
    let is_of_server = *method == Method::OPTIONS && is_host_alone(&text);
    let none = Wrong::Head(
        "The target of the request is none: \", <, >, ` and what is not ASCII are encoded in it, such as %22.",
    );
    let mut target = Uri::from_maybe_shared(text).map_err(|_| none)?;
    if is_of_server {
        // Which is not its first page.
        let mut parts = target.into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static("*"));
        target = Uri::from_parts(parts).map_err(|_| none)?;
    }
    Ok(target)
}

/// Whether a target names a host and nothing on it.
fn is_host_alone(target: &[u8]) -> bool {
    let host = memmem::find(target, b"://").and_then(|at| target.get(at + 3..));
    !target.starts_with(b"/") && host.is_some_and(|host| memchr2(b'/', b'?', host).is_none())
}

/// Reads the head of a request, all of which is there.
pub(super) fn request(head: &Bytes) -> Result<Asked, Wrong> {
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut parsed = httparse::Request::new(&mut []);
    match parsed.parse_with_uninit_headers(head, &mut fields) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(Wrong::Head("The head of the request is no HTTP.")),
        Err(error) => return Err(wrong(error)),
    }
    let target = parsed.path.unwrap_or_default();
    // A fragment is for clients: some cut it off, and others do not.
    if memchr(b'#', target.as_bytes()).is_some() {
        return Err(Wrong::Head("The target of a request has no fragment."));
    }
    let is_http_1_0 = parsed.version == Some(0);
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(parsed.method.unwrap_or_default().as_bytes())
        .map_err(|_| Wrong::Head("The method of the request is none."))?;
    *request.uri_mut() = target_of(request.method(), head.slice_ref(target.as_bytes()))?;
    *request.version_mut() = if is_http_1_0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let mut framing = Framing::default();
    *request.headers_mut() = map_of(parsed.headers, head, |name, value| {
        match *name {
            header::CONTENT_LENGTH => {
                if framing.length.is_some() || framing.is_chunked {
                    return Err(Wrong::Head("The length of the body is said twice."));
                }
                let length = length_of(value.as_bytes(), 10);
                framing.length = Some(
                    length.ok_or(Wrong::Head("Content-Length is a number of digits and nothing else."))?,
                );
            }
            header::TRANSFER_ENCODING => {
                // Whitespace around it is legal, and not part of the value.
                let is_plain = value.as_bytes().eq_ignore_ascii_case(b"chunked");
                if framing.length.is_some() || framing.is_chunked || is_http_1_0 || !is_plain {
                    return Err(Wrong::Head(
                        "Transfer-Encoding is `chunked` and nothing else, and there is no Content-Length beside it.",
                    ));
                }
                framing.is_chunked = true;
            }
            header::CONNECTION => return Ok(framing.connection(value)),
            header::TE => {
                framing.takes_trailers |= words(value).any(|word| word.eq_ignore_ascii_case(b"trailers"))
            }
            header::EXPECT => framing.expects |= value.as_bytes().eq_ignore_ascii_case(b"100-continue"),
            _ => {}
        }
        Ok(Of::All)
    })?;
    let length = match framing.length {
        _ if framing.is_chunked => Length::Chunked,
        length => Length::Exactly(length.unwrap_or(0)),
    };
    Ok(Asked {
        request,
        length,
        stays: framing.stays(is_http_1_0),
        expects: framing.expects && !is_http_1_0 && length != Length::Exactly(0),
        takes_trailers: framing.takes_trailers,
    })
}

/// An answer without its body.
pub(super) struct Told {
    pub(super) response: Response<()>,
    pub(super) length: Length,
    /// Whether the connection can be used again.
    pub(super) stays: bool,
}

/// Reads the head of an answer to a request of this method, all of which is there.
pub(super) fn response(head: &Bytes, method: &Method) -> Result<Told, Wrong> {
    let mut fields = [const { MaybeUninit::uninit() }; MOST_FIELDS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut parsed, head, &mut fields) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Err(Wrong::Head("the head of the answer is no HTTP")),
        Err(error) => return Err(wrong(error)),
    }
    let is_http_1_0 = parsed.version == Some(0);
    let status = StatusCode::from_u16(parsed.code.unwrap_or_default())
        .map_err(|_| Wrong::Head("the status of the answer is none"))?;
    let mut response = Response::new(());
    *response.status_mut() = status;
    let has_no_body = status.is_informational() || status == StatusCode::NO_CONTENT;
    let mut framing = Framing::default();
    let mut is_coded = false;
    *response.headers_mut() = map_of(parsed.headers, head, |name, value| {
        match *name {
            header::CONTENT_LENGTH => {
                let length = length_of(value.as_bytes(), 10)
                    .ok_or(Wrong::Head("the length of the answer is no number"))?;
                if framing.length.is_some_and(|other| other != length) {
                    return Err(Wrong::Head("the answer has two lengths"));
                }
                // It is passed on once, and not where there is nothing that could be so long.
                let is_told = framing.length.is_some() || has_no_body;
                framing.length = Some(length);
                return Ok(if is_told { Of::Reader } else { Of::All });
            }
            header::TRANSFER_ENCODING => {
                // Nobody has asked for another coding, and nobody could say so behind us.
                if is_coded || !value.as_bytes().eq_ignore_ascii_case(b"chunked") {
                    return Err(Wrong::Head("its coding is another than `chunked`"));
                }
                is_coded = true;
                framing.is_chunked = true;
            }
            header::CONNECTION => return Ok(framing.connection(value)),
            _ => {}
        }
        Ok(Of::All)
    })?;
    if let Some(reason) = parsed.reason.filter(|reason| status.canonical_reason() != Some(reason))
        && !reason.is_empty()
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    let is_bare = has_no_body || *method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    let length = match framing.length {
        _ if is_bare => Length::Exactly(0),
        _ if framing.is_chunked => Length::Chunked,
        Some(length) => Length::Exactly(length),
        None => Length::Open,
    };
    // Where two lengths are told, or a body where there is none, nobody knows where the next answer begins.
    let is_body_told = is_coded || framing.length.is_some_and(|length| length > 0);
    let is_clear = !(is_coded && framing.length.is_some() || has_no_body && is_body_told);
    Ok(Told { response, length, stays: is_clear && framing.stays(is_http_1_0) && length != Length::Open })
}

/// Reads what follows a body in chunks, all of which is there.
pub(super) fn trailers(text: &Bytes) -> Result<HeaderMap, Wrong> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    match httparse::parse_headers(text, &mut fields) {
        Ok(httparse::Status::Complete((_, fields))) => map_of(fields, text, |_, _| Ok(Of::All)),
        Ok(httparse::Status::Partial) => Err(Wrong::Head("What follows the body is no HTTP.")),
        Err(error) => Err(wrong(error)),
    }
}

/// Whom a field is for.
enum Of {
    All,
    /// For whoever reads the head, and nobody behind it.
    Reader,
}

impl Framing {
    /// What `Connection` says is for the reader alone, unless it names other fields.
    fn connection(&mut self, value: &HeaderValue) -> Of {
        let mut of = Of::Reader;
        for word in words(value) {
            if word.eq_ignore_ascii_case(b"keep-alive") {
                self.has_keep_alive = true;
            } else if word.eq_ignore_ascii_case(b"close") {
                self.has_close = true;
            } else {
                of = Of::All;
            }
        }
        of
    }

    fn stays(&self, is_http_1_0: bool) -> bool {
        !self.has_close && (!is_http_1_0 || self.has_keep_alive)
    }
}

/// The words of a list.
fn words(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// The fields of a head, each of which is looked at.
fn map_of(
    fields: &[Header<'_>],
    head: &Bytes,
    mut look: impl FnMut(&HeaderName, &HeaderValue) -> Result<Of, Wrong>,
) -> Result<HeaderMap, Wrong> {
    // Some more are added on the way.
    let mut map = HeaderMap::with_capacity(fields.len() + 6);
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| Wrong::TooLarge)?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(field.value))
            .map_err(|_| Wrong::Head("A field of the head has a value that is none."))?;
        if let Of::All = look(&name, &value)? {
            map.try_append(name, value).map_err(|_| Wrong::TooLarge)?;
        }
    }
    Ok(map)
}

fn wrong(error: httparse::Error) -> Wrong {
    match error {
        httparse::Error::TooManyHeaders => Wrong::TooLarge,
        httparse::Error::HeaderName => {
            Wrong::Head("A field of the head has a name that is none, or a line that goes on.")
        }
        httparse::Error::HeaderValue => Wrong::Head("A field of the head has a value that is none."),
        httparse::Error::Version => Wrong::Head("The version of HTTP is not 1.0 and not 1.1."),
        _ => Wrong::Head("The first line of the head is no HTTP."),
    }
}

/// How long something is: what is larger than this overflows in some other reader.
pub(super) fn length_of(digits: &[u8], radix: u32) -> Option<u64> {
    number(digits, radix).filter(|length| *length < i64::MAX as u64 - 2)
}

/// A number of digits and of nothing else.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let mut all: u64 = 0;
    for digit in digits {
        let digit = char::from(*digit).to_digit(radix)?;
        all = all.checked_mul(u64::from(radix))?.checked_add(u64::from(digit))?;
    }
    (!digits.is_empty()).then_some(all)
}
