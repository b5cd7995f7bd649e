//! Bodies as they come in: by length, in chunks, or until the connection ends.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use memchr::memchr;

use super::head::{self, Length, Scan, Wrong};
use super::wire::Wire;
use crate::gateway::body::BrokenOff;

/// Longer lines are no sizes of chunks.
const LONGEST_SIZE: usize = 256;
/// What may follow a body.
const MOST_TRAILERS: usize = 16 << 10;
/// The end of a chunk and of most bodies.
const LAST: &[u8] = b"\r\n0\r\n\r\n";

/// How chunks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// As the standard says, for bodies of requests: another reader of the same bytes must find the same end.
    Strict,
    /// As nginx reads answers of servers: lines may end in a bare LF, and a size may have spaces behind it. What is sent on is
    /// always written anew.
    Lenient,
}

/// What is left of a body.
#[derive(Debug)]
pub(super) struct Decoder {
    state: State,
    syntax: Syntax,
    /// Bytes that are certainly still to come.
    left: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// So much as is left, and then no more.
    Length,
    /// The size of a chunk.
    Size,
    /// What is left of a chunk.
    Chunk,
    /// The line end behind a chunk.
    ChunkEnd,
    Trailers(Scan),
    Open,
    Done,
}

/// A piece of a body.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    /// More has to come first.
    Awaited,
    End,
}

impl Decoder {
    pub(super) fn new(length: Length, syntax: Syntax) -> Self {
        let (state, left) = match length {
            Length::Exactly(0) => (State::Done, 0),
            Length::Exactly(left) => (State::Length, left),
            Length::Chunked => (State::Size, 0),
            Length::Open => (State::Open, 0),
        };
        Self { state, syntax, left }
    }

    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// How much is left, if that is known.
    pub(super) fn exactly(&self) -> Option<u64> {
        matches!(self.state, State::Length | State::Done).then_some(self.left)
    }

    /// The next frame of a body that comes over this connection. None: it has come to its end.
    pub(super) fn poll_frame(
        &mut self,
        wire: &mut Wire,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        loop {
            match self.next(&mut wire.read).map_err(|_| BrokenOff::Malformed)? {
                Piece::Data(data) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Piece::Trailers(trailers) => return Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
                Piece::End => return Poll::Ready(None),
                Piece::Awaited if ready!(wire.poll_fill(context))? > 0 => {}
                Piece::Awaited if matches!(self.state, State::Open) => self.state = State::Done,
                Piece::Awaited => return Poll::Ready(Some(Err(BrokenOff::Closed))),
            }
        }
    }

    /// How much is left, as those who take it want to know.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.exactly().map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    /// Takes the next piece out of what has come.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> Result<Piece, Wrong> {
        loop {
            match &mut self.state {
                State::Done => return Ok(Piece::End),
                _ if read.is_empty() => return Ok(Piece::Awaited),
                State::Open => return Ok(Piece::Data(read.split().freeze())),
                State::Length | State::Chunk => {
                    let all = u64::try_from(read.len()).unwrap_or(u64::MAX);
                    let some = self.left.min(all);
                    self.left -= some;
                    if self.left == 0 {
                        let is_chunk = matches!(self.state, State::Chunk);
                        self.state = if is_chunk { State::ChunkEnd } else { State::Done };
                    }
                    let some = usize::try_from(some).unwrap_or(usize::MAX).min(read.len());
                    let piece = read.split_to(some).freeze();
                    // Whoever takes the last piece is glad to know that it is.
                    if matches!(self.state, State::ChunkEnd) && read.starts_with(LAST) {
                        read.advance(LAST.len());
                        self.state = State::Done;
                    }
                    return Ok(Piece::Data(piece));
                }
                State::ChunkEnd => {
                    let end = match **read {
                        [b'\r', b'\n', ..] => 2,
                        [b'\r'] => return Ok(Piece::Awaited),
                        [b'\n', ..] if self.syntax == Syntax::Lenient => 1,
                        _ => return Err(Wrong::Head("A chunk is longer than it says.")),
                    };
                    read.advance(end);
                    self.state = State::Size;
                }
                State::Size => {
                    // What is longer than the limit is rejected, also if all of it has come at once.
                    let line = read.get(..read.len().min(LONGEST_SIZE)).unwrap_or_default();
                    let Some(end) = memchr(b'\n', line) else {
                        // What cannot become a size is told so at once.
                        return match read.len() < LONGEST_SIZE {
                            true => Ok(Piece::Awaited),
                            false => Err(Wrong::Head("A chunk has no size.")),
                        };
                    };
                    self.left = size_of(read.get(..end).unwrap_or_default(), self.syntax)?;
                    read.advance(end + 1);
                    self.state = if self.left == 0 { State::Trailers(Scan::default()) } else { State::Chunk };
                }
                State::Trailers(scan) => {
                    let is_strict = self.syntax == Syntax::Strict;
                    let Some(end) = scan.end(read, is_strict)?.filter(|end| *end <= MOST_TRAILERS) else {
                        return match read.len() < MOST_TRAILERS {
                            true => Ok(Piece::Awaited),
                            false => Err(Wrong::TooLarge),
                        };
                    };
                    self.state = State::Done;
                    let text = read.split_to(end).freeze();
                    if !matches!(*text, [b'\n'] | [b'\r', b'\n']) {
                        return Ok(Piece::Trailers(head::trailers(&text)?));
                    }
                }
            }
        }
    }
}

/// The size in a line such as `1a` or `1a ;name=value`. An extension may not contain what could end a line for another reader.
/// Whitespace is legal before an extension (RFC 9112, 7.1.1), and not where none follows.
fn size_of(line: &[u8], syntax: Syntax) -> Result<u64, Wrong> {
    let is_text = |byte: &u8| *byte == b'\t' || !byte.is_ascii_control();
    let ended = line.strip_suffix(b"\r");
    let line = if syntax == Syntax::Lenient { ended.or(Some(line)) } else { ended };
    let line = line.filter(|line| line.len() < LONGEST_SIZE && line.iter().all(is_text));
    let digits = line.and_then(|line| match memchr(b';', line) {
        Some(at) => line.get(..at).map(without_trailing_space),
        None if syntax == Syntax::Lenient => Some(without_trailing_space(line)),
        None => Some(line),
    });
    digits
        .and_then(|digits| head::length_of(digits, 16))
        .ok_or(Wrong::Head("A chunk has no size, or one that nothing has."))
}

/// Without spaces and tabs at its end.
fn without_trailing_space(line: &[u8]) -> &[u8] {
    let end = line.iter().rposition(|byte| !matches!(byte, b' ' | b'\t')).map_or(0, |last| last + 1);
    line.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body in chunks that arrives in pieces of this size: whether it came to its end.
    fn ends(text: &[u8], size: usize) -> Result<bool, Wrong> {
        let (mut decoder, mut read) = (Decoder::new(Length::Chunked, Syntax::Strict), BytesMut::new());
        for piece in text.chunks(size) {
            read.extend_from_slice(piece);
            while !matches!(decoder.next(&mut read)?, Piece::Awaited | Piece::End) {}
        }
        Ok(decoder.is_done())
    }

    /// Found by fuzzing: a line of exactly the limit, or trailers beyond it, were accepted if they came in one piece, and
    /// rejected if they came in several.
    #[test]
    fn whether_a_body_exceeds_a_limit_does_not_depend_on_how_it_is_cut() {
        let size_line = |length: usize| format!("5;{}\r\nhello\r\n0\r\n\r\n", "a".repeat(length - 4));
        let trailers = |length: usize| format!("0\r\nx: {}\r\n\r\n", "a".repeat(length - 7));
        for (text, is_accepted) in [
            (size_line(LONGEST_SIZE), true),
            (size_line(LONGEST_SIZE + 1), false),
            (trailers(MOST_TRAILERS), true),
            (trailers(MOST_TRAILERS + 1), false),
        ] {
            for size in [1, 7, text.len()] {
                let ended = ends(text.as_bytes(), size);
                assert_eq!(ended.is_ok(), is_accepted, "{} bytes in pieces of {size}", text.len());
                assert!(ended.unwrap_or(true));
            }
        }
    }
}
