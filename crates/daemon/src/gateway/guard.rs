//! A strict reader in front of the lenient one: what two readers could take for different requests is none.
//!
//! hyper accepts lines that end without a carriage return, and where `Content-Length` and `Transfer-Encoding` contradict
//! each other it takes one of them without a word. A proxy before us may have taken the other. So every head is looked at as
//! it comes in; from the first doubt on hyper is given something that is no HTTP at all, answers 400 and closes.
//!
//! The guard also knows better than hyper what a connection waits for, and for how long it may: the rest of a head, or
//! the next request.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::alarm::Alarm;
use super::doing::Doing;
use super::stream::writes_through;

/// A connection over HTTP/1, strictly read.
pub(super) struct Guard<T> {
    inner: T,
    reading: Reading,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    /// Heads that have come to their end.
    heads: u64,
    doing: Arc<Doing>,
    head_timeout: Duration,
    idle_timeout: Duration,
    /// When whatever is waited for must be there. It only ever moves on; the alarm follows when it has rung.
    deadline: Option<Instant>,
    alarm: Alarm,
}

/// Where in the stream of requests we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    /// Before the first byte of a head.
    Start,
    Head(Framing),
    /// So much of a body.
    Body(u64),
    /// The size of a chunk.
    Chunk,
    /// So much of a chunk and of the line end behind it.
    InChunk(u64),
    Trailers,
    /// Whatever comes is not for us to judge.
    Other,
    /// Nothing more is let through.
    Spoiled,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// The next request.
    Request,
    /// The rest of a head.
    Head,
    Other,
}

/// What a head has said of its body so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Framing {
    has_first_line: bool,
    is_http_1_0: bool,
    length: Option<u64>,
    is_chunked: bool,
}

/// Something that two readers could read differently.
#[derive(Debug, PartialEq, Eq)]
struct Doubtful;

/// Longer lines are no sizes of chunks and no lengths of bodies.
const LONGEST_FRAMING: usize = 256;

impl<T> Guard<T> {
    pub(super) fn new(inner: T, doing: Arc<Doing>, head_timeout: Duration, idle_timeout: Duration) -> Self {
        Self {
            inner,
            reading: Reading::Start,
            line: Vec::new(),
            heads: 0,
            doing,
            head_timeout,
            idle_timeout,
            deadline: None,
            alarm: Alarm::default(),
        }
    }

    /// Looks at what has come in. The number is that of the bytes before the first doubt.
    fn look(&mut self, bytes: &[u8]) -> Result<(), usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = match self.reading {
                Reading::Other => return Ok(()),
                Reading::Spoiled => Err(Doubtful),
                Reading::Body(left) | Reading::InChunk(left) => {
                    let some = left.min(rest.len() as u64);
                    self.pass(left, rest, some)
                }
                Reading::Start | Reading::Head(_) | Reading::Chunk | Reading::Trailers => {
                    self.look_at_line(rest)
                }
            };
            match taken {
                Ok(taken) => rest = rest.get(taken..).unwrap_or_default(),
                Err(Doubtful) => {
                    self.reading = Reading::Spoiled;
                    return Err(bytes.len() - rest.len());
                }
            }
        }
        Ok(())
    }

    /// Passes over so many bytes of a body.
    fn pass(&mut self, left: u64, rest: &[u8], some: u64) -> Result<usize, Doubtful> {
        let left = left - some;
        let is_chunk = matches!(self.reading, Reading::InChunk(_));
        if is_chunk {
            // The last two are the end of its line.
            let end = rest.get(..some as usize).unwrap_or_default();
            if left == 0 && end.last() != Some(&b'\n') || left == 1 && end.last() != Some(&b'\r') {
                return Err(Doubtful);
            }
        }
        self.reading = match (left, is_chunk) {
            (0, true) => Reading::Chunk,
            (0, false) => Reading::Start,
            (left, true) => Reading::InChunk(left),
            (left, false) => Reading::Body(left),
        };
        Ok(some as usize)
    }

    /// Looks at one line, or at the beginning of one.
    fn look_at_line(&mut self, rest: &[u8]) -> Result<usize, Doubtful> {
        if self.reading == Reading::Start {
            self.reading = Reading::Head(Framing::default());
        }
        let Some(end) = memchr(b'\n', rest) else {
            // How long a head may be is hyper's to say. Only what is needed is kept.
            let room = LONGEST_FRAMING.saturating_sub(self.line.len());
            self.line.extend_from_slice(rest.get(..rest.len().min(room)).unwrap_or_default());
            // Of a long line the last byte counts, too.
            if rest.len() > room
                && let (Some(kept), Some(last)) = (self.line.last_mut(), rest.last())
            {
                *kept = *last;
            }
            return Ok(rest.len());
        };
        let line = rest.get(..end).unwrap_or_default();
        if self.line.is_empty() {
            self.line_is(line)?;
        } else {
            let mut whole = std::mem::take(&mut self.line);
            whole.extend_from_slice(line);
            self.line_is(&whole)?;
            whole.clear();
            self.line = whole;
        }
        Ok(end + 1)
    }

    fn line_is(&mut self, line: &[u8]) -> Result<(), Doubtful> {
        let Some(line) = line.strip_suffix(b"\r") else { return Err(Doubtful) };
        self.reading = match self.reading {
            Reading::Head(framing) => {
                self.heads += u64::from(framing.has_first_line && line.is_empty());
                head_line(framing, line)?
            }
            Reading::Chunk => match chunk_size(line)? {
                0 => Reading::Trailers,
                size => Reading::InChunk(size.checked_add(2).ok_or(Doubtful)?),
            },
            Reading::Trailers if line.is_empty() => Reading::Start,
            Reading::Trailers if line.starts_with(b" ") || line.starts_with(b"\t") => return Err(Doubtful),
            other => other,
        };
        Ok(())
    }

    /// What is waited for. Empty lines before a request are nothing.
    fn awaited(&self) -> Awaited {
        match self.reading {
            Reading::Start => Awaited::Request,
            Reading::Head(framing) if !framing.has_first_line && matches!(*self.line, [] | [b'\r']) => {
                Awaited::Request
            }
            Reading::Head(_) => Awaited::Head,
            _ => Awaited::Other,
        }
    }

    /// Whether what is waited for has not come in time.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let wait = match self.awaited() {
            Awaited::Request if self.doing.requests.load(Ordering::Relaxed) > 0 => None,
            Awaited::Request => Some(self.idle_timeout),
            Awaited::Head => Some(self.head_timeout),
            // Bodies have their own.
            Awaited::Other => None,
        };
        let Some(wait) = wait else {
            self.deadline = None;
            // Somebody must look again when nothing is in progress any more.
            self.alarm.rings_some_time(|| Instant::now() + self.idle_timeout, context);
            return false;
        };
        let deadline = *self.deadline.get_or_insert_with(|| Instant::now() + wait);
        self.alarm.rings(deadline, context)
    }
}

/// One line of a head.
fn head_line(mut framing: Framing, line: &[u8]) -> Result<Reading, Doubtful> {
    if !framing.has_first_line {
        // Empty lines before a request do no harm.
        framing.has_first_line = !line.is_empty();
        framing.is_http_1_0 = line.ends_with(b"HTTP/1.0");
        // A fragment is for clients: some cut it off, and others do not.
        if memchr(b'#', line).is_some() {
            return Err(Doubtful);
        }
        return Ok(if line.is_empty() { Reading::Start } else { Reading::Head(framing) });
    }
    match line.first() {
        None => return Ok(framing.body()),
        // A line that goes on is a line of its own to others.
        Some(b' ' | b'\t') => return Err(Doubtful),
        Some(b'c' | b'C' | b't' | b'T') => {}
        Some(_) => return Ok(Reading::Head(framing)),
    }
    let is = |name: &[u8]| {
        let (start, rest) = line.split_at_checked(name.len())?;
        // With anything else between the name and the colon hyper has its own opinion.
        let goes_on = rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
        (start.eq_ignore_ascii_case(name) && !goes_on).then_some(rest)
    };
    if let Some(rest) = is(b"content-length") {
        let value = rest.strip_prefix(b":").ok_or(Doubtful)?.trim_ascii();
        if framing.length.is_some() || framing.is_chunked || line.len() >= LONGEST_FRAMING {
            return Err(Doubtful);
        }
        framing.length = Some(number(value, 10).ok_or(Doubtful)?);
    } else if let Some(rest) = is(b"transfer-encoding") {
        let value = rest.strip_prefix(b":").ok_or(Doubtful)?;
        let value = value.strip_prefix(b" ").unwrap_or(value);
        let is_plain = value.eq_ignore_ascii_case(b"chunked");
        if framing.length.is_some() || framing.is_chunked || framing.is_http_1_0 || !is_plain {
            return Err(Doubtful);
        }
        framing.is_chunked = true;
    }
    Ok(Reading::Head(framing))
}

impl Framing {
    fn body(self) -> Reading {
        match self.length {
            _ if self.is_chunked => Reading::Chunk,
            Some(length) if length > 0 => Reading::Body(length),
            _ => Reading::Start,
        }
    }
}

/// `1a`, and perhaps an extension.
fn chunk_size(line: &[u8]) -> Result<u64, Doubtful> {
    if line.len() >= LONGEST_FRAMING {
        return Err(Doubtful);
    }
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    number(digits, 16).ok_or(Doubtful)
}

/// A number of digits and of nothing else.
fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let is_plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_alphanumeric);
    std::str::from_utf8(digits)
        .ok()
        .filter(|_| is_plain)
        .and_then(|digits| u64::from_str_radix(digits, radix).ok())
}

impl<T: AsyncRead + Unpin> AsyncRead for Guard<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guard = self.get_mut();
        if guard.reading == Reading::Spoiled {
            return Poll::Ready(Ok(()));
        }
        if guard.doing.is_upgraded.load(Ordering::Acquire) {
            guard.reading = Reading::Other;
        }
        let before = buffer.filled().len();
        match Pin::new(&mut guard.inner).poll_read(context, buffer) {
            Poll::Pending if guard.reading != Reading::Other && guard.is_late(context) => {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            read => ready!(read)?,
        }
        let waited_for = (guard.awaited(), guard.heads);
        let new = buffer.filled().get(before..).unwrap_or_default();
        if new.is_empty() || guard.reading == Reading::Other {
            return Poll::Ready(Ok(()));
        }
        if let Err(good) = guard.look(new) {
            // No reader takes this for the beginning or the rest of a line.
            const NOTHING: u8 = 0;
            buffer.set_filled(before + good);
            buffer.put_slice(&[NOTHING]);
        }
        if waited_for != (guard.awaited(), guard.heads) {
            guard.deadline = None;
        }
        Poll::Ready(Ok(()))
    }
}

writes_through!(Guard);

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard<tokio::io::Empty> {
        let second = Duration::from_secs(1);
        Guard::new(tokio::io::empty(), Arc::default(), second, second)
    }

    /// How much is let through, however it is cut into pieces.
    fn good(text: &str) -> usize {
        let whole = guard().look(text.as_bytes()).err().unwrap_or(text.len());
        let mut in_bytes = guard();
        let cut = text.bytes().position(|byte| in_bytes.look(&[byte]).is_err()).unwrap_or(text.len());
        let lines = |end: usize| text.get(..end).unwrap().matches('\n').count();
        assert_eq!(lines(whole), lines(cut), "{text:?}");
        cut
    }

    #[test]
    fn requests_that_all_read_alike_are_let_through() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\n12\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n5\r\n\n\n\n\n\n\r\nA;x=y\r\n0123456789\r\n0\r\nx: y\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding:chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-length: 0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\ncontent-type: a\r\nte: trailers\r\ncontent-length-x: 7\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
        ] {
            assert_eq!(good(text), text.len(), "{text:?}");
        }
    }

    #[test]
    fn requests_that_could_be_read_differently_are_not() {
        for text in [
            "GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n",
            "GET / HTTP/1.1\r\nA: b\r\n\tc\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\t\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: \tchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding\t: chunked\r\n\r\n",
            "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n 5\r\n12345\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123456\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\n\r0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n x\r\n\r\n",
        ] {
            assert!(good(text) < text.len(), "{text:?}");
        }
    }
}
