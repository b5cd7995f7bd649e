//! Bounds what a client may say over HTTP/2 that asks for nothing: SETTINGS, PING and the like, each of which costs it less
//! than us. h2 bounds streams that are reset and heads without end, but answers these for as long as they come. Heads that do not come to
//! their end are taken note of, too.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::doing::Doing;

/// So many such frames at once: more than any client needs.
const BURST: u64 = 5_000;
/// And so many a second in the long run.
const PER_SECOND: u64 = 100;
/// One more for so many bytes that we send: clients that measure the way ping for what they get.
const FOR_BYTES: u64 = 256;
/// What a client says before its first frame.
const PREFACE: u64 = 24;
const HEAD: usize = 9;

/// Kinds of frames that are parts of heads, and the flag of the last of them.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// A connection over HTTP/2 that is closed when it chatters.
pub(super) struct Calm<T> {
    inner: T,
    /// Bytes up to the next frame.
    until_frame: u64,
    /// The head of a frame, as far as it has come.
    head: [u8; HEAD],
    known: usize,
    /// Whether a head ends with this frame.
    ends_head: bool,
    /// Frames that are left.
    left: u64,
    since: Instant,
    sent: u64,
    /// Who else wants to know what is sent.
    doing: Arc<Doing>,
}

impl<T> Calm<T> {
    pub(super) fn new(inner: T, doing: Arc<Doing>) -> Self {
        doing.begins_head();
        Self {
            inner,
            until_frame: PREFACE,
            head: [0; HEAD],
            known: 0,
            ends_head: true,
            left: BURST,
            since: Instant::now(),
            sent: 0,
            doing,
        }
    }

    fn has_sent(&mut self, bytes: usize) {
        self.sent += bytes as u64;
        self.doing.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Follows the frames. False if there are too many that ask for nothing.
    fn is_calm(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&first) = bytes.first() {
            if self.until_frame > 0 {
                let some = bytes.len().min(usize::try_from(self.until_frame).unwrap_or(usize::MAX));
                self.until_frame -= some as u64;
                bytes = bytes.get(some..).unwrap_or_default();
                self.may_have_ended_head();
                continue;
            }
            if let Some(byte) = self.head.get_mut(self.known) {
                *byte = first;
            }
            self.known += 1;
            bytes = bytes.get(1..).unwrap_or_default();
            if self.known == HEAD {
                self.known = 0;
                let [a, b, c, kind, flags, ..] = self.head;
                self.until_frame = u64::from(u32::from_be_bytes([0, a, b, c]));
                if matches!(kind, HEADERS | CONTINUATION) {
                    self.doing.begins_head();
                    self.ends_head = flags & END_HEADERS != 0;
                    self.may_have_ended_head();
                }
                if asks_for_nothing(kind, flags, self.until_frame) && !self.takes_one() {
                    return false;
                }
            }
        }
        true
    }

    fn may_have_ended_head(&mut self) {
        // Only what is here as a whole has.
        if self.until_frame == 0 && std::mem::take(&mut self.ends_head) {
            self.doing.ends_head();
        }
    }

    fn takes_one(&mut self) -> bool {
        if self.left == 0 {
            let seconds = self.since.elapsed().as_secs();
            self.since += std::time::Duration::from_secs(seconds);
            self.left = (seconds * PER_SECOND + self.sent / FOR_BYTES).min(BURST);
            self.sent = 0;
        }
        self.left.checked_sub(1).map(|left| self.left = left).is_some()
    }
}

/// Neither part of a request, nor room for an answer, nor the end of either.
fn asks_for_nothing(kind: u8, flags: u8, length: u64) -> bool {
    const DATA: u8 = 0;
    const END_STREAM: u8 = 1;
    match kind {
        DATA => length == 0 && flags & END_STREAM == 0,
        // HEADERS, RST_STREAM, PUSH_PROMISE, GOAWAY, WINDOW_UPDATE, CONTINUATION.
        1 | 3 | 5 | 7 | 8 | 9 => false,
        // PRIORITY, SETTINGS, PING, and what nobody knows.
        _ => true,
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Calm<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut stream.inner).poll_read(context, buffer))?;
        match stream.is_calm(buffer.filled().get(before..).unwrap_or_default()) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(io::Error::other("too many frames that ask for nothing"))),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Calm<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = ready!(Pin::new(&mut stream.inner).poll_write(context, bytes))?;
        stream.has_sent(written);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = ready!(Pin::new(&mut stream.inner).poll_write_vectored(context, slices))?;
        stream.has_sent(written);
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 0];
        frame.extend(std::iter::repeat_n(7, usize::from(length)));
        frame
    }

    /// The connection, after what a client says first, read in pieces of so many bytes.
    fn is_calm_after(frames: &[u8], piece: usize) -> bool {
        let mut calm = Calm::new(tokio::io::empty(), Arc::default());
        assert!(calm.is_calm(&[b'P'; PREFACE as usize]));
        frames.chunks(piece).all(|piece| calm.is_calm(piece))
    }

    #[test]
    fn pings_are_counted_however_they_are_cut_and_requests_are_not() {
        for piece in [1, 7, 100_000] {
            let pings = frame(6, 8).repeat(BURST as usize);
            assert!(is_calm_after(&pings, piece));
            assert!(!is_calm_after(&[pings, frame(6, 8)].concat(), piece));
            // The payload of DATA looks like nothing else.
            assert!(is_calm_after(&[frame(1, 20), frame(0, 200)].concat().repeat(10_000), piece));
        }
        assert!(!is_calm_after(&frame(0, 0).repeat(6_000), 100), "empty pieces of bodies");
        assert!(!is_calm_after(&frame(77, 3).repeat(6_000), 100), "what nobody knows");
    }

    #[test]
    fn heads_are_on_their_way_until_their_last_byte_is_here() {
        let with = |flags: u8, mut frame: Vec<u8>| {
            if let Some(place) = frame.get_mut(4) {
                *place = flags;
            }
            frame
        };
        let doing = Arc::<Doing>::default();
        let mut calm = Calm::new(tokio::io::empty(), Arc::clone(&doing));
        let is_heading = || doing.is_heading();
        assert!(is_heading(), "what a client says first");
        assert!(calm.is_calm(&[b'P'; PREFACE as usize]) && !is_heading());
        assert!(calm.is_calm(&frame(4, 6)) && !is_heading(), "settings are no head");
        let whole = with(END_HEADERS, frame(HEADERS, 20));
        let (first, rest) = whole.split_at(HEAD + 3);
        assert!(calm.is_calm(first) && is_heading(), "a part of one");
        assert!(calm.is_calm(rest) && !is_heading());
        assert!(calm.is_calm(&frame(HEADERS, 20)) && is_heading(), "more follows");
        assert!(calm.is_calm(&frame(CONTINUATION, 0)) && is_heading());
        assert!(calm.is_calm(&with(END_HEADERS, frame(CONTINUATION, 0))) && !is_heading());
    }

    #[test]
    fn who_is_sent_much_may_ping_more() {
        let mut calm = Calm::new(tokio::io::empty(), Arc::default());
        assert!(calm.is_calm(&[b'P'; PREFACE as usize]));
        for _ in 0..10 {
            calm.sent += BURST * FOR_BYTES;
            assert!(calm.is_calm(&frame(6, 8).repeat(BURST as usize)));
        }
    }
}
