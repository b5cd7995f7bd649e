//! A connection with what was read from it and not yet used, and what is yet to be written.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::unconstrained;

use crate::gateway::stream::Rewound;

/// A connection, whoever is at its other end.
pub(in crate::gateway) enum Stream {
    Plain(TcpStream),
    Client(Box<tokio_rustls::server::TlsStream<Rewound<TcpStream>>>),
    Server(Box<tokio_rustls::client::TlsStream<TcpStream>>),
}

impl Stream {
    /// Whether both sides have said that they will speak this.
    pub(in crate::gateway) fn has_agreed_on(&self, protocol: &[u8]) -> bool {
        let agreed = match self {
            Self::Plain(_) => None,
            Self::Client(stream) => stream.get_ref().1.alpn_protocol(),
            Self::Server(stream) => stream.get_ref().1.alpn_protocol(),
        };
        agreed == Some(protocol)
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Client(stream) => stream.get_ref().0.get_ref(),
            Self::Server(stream) => stream.get_ref().0,
        }
    }
}

/// Does the same with whatever the stream is.
macro_rules! each {
    ($stream:expr, |$inner:ident| $done:expr) => {
        match $stream.get_mut() {
            Stream::Plain(stream) => {
                let $inner = Pin::new(stream);
                $done
            }
            Stream::Client(stream) => {
                let $inner = Pin::new(stream);
                $done
            }
            Stream::Server(stream) => {
                let $inner = Pin::new(stream);
                $done
            }
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        each!(self, |stream| stream.poll_read(context, buffer))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        each!(self, |stream| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        each!(self, |stream| stream.poll_write_vectored(context, pieces))
    }

    fn is_write_vectored(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, |stream| stream.poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        each!(self, |stream| stream.poll_shutdown(context))
    }
}

/// A connection, read and written in pieces.
pub(in crate::gateway) struct Wire {
    stream: Stream,
    /// What has come and was not used yet.
    pub(super) read: BytesMut,
    /// What is to be sent, from `sent` on; behind it a large piece, and behind that its end.
    pub(super) write: Vec<u8>,
    sent: usize,
    piece: Bytes,
    piece_end: &'static [u8],
    /// Whether TLS may still keep something of what was written.
    is_kept_back: bool,
    /// How much is asked for at once: more, the more there is.
    want: usize,
    /// Whether nothing more comes.
    has_ended: bool,
}

/// Heads fit into this.
const LITTLE: usize = 4 << 10;
const MUCH: usize = 64 << 10;
/// What is larger is not copied.
const PIECE: usize = 4 << 10;
/// What a connection keeps room for while there is nothing to say.
const KEPT: usize = 16 << 10;

impl Wire {
    /// A connection of which something was read before.
    pub(in crate::gateway) fn new(stream: Stream, read: BytesMut) -> Self {
        Self {
            stream,
            read,
            write: Vec::new(),
            sent: 0,
            piece: Bytes::new(),
            piece_end: b"",
            is_kept_back: false,
            want: LITTLE,
            has_ended: false,
        }
    }

    /// Reads more, and says how much. Nothing: no more comes.
    pub(super) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.has_ended {
            return Poll::Ready(Ok(0));
        }
        // A piece that just does not fit costs another call.
        if self.read.capacity() - self.read.len() < LITTLE / 4 {
            self.read.reserve(self.want);
        }
        let room = self.read.capacity() - self.read.len();
        let read = ready!(pin!(self.stream.read_buf(&mut self.read)).poll(context))?;
        match read {
            0 => self.has_ended = true,
            _ if read == room => self.want = (self.want * 2).min(MUCH),
            _ if read < self.want / 4 => self.want = (self.want / 2).max(LITTLE),
            _ => {}
        }
        Poll::Ready(Ok(read))
    }

    /// Whether nothing more comes, whatever has come before and was not read yet. Not always seen at once.
    pub(super) fn has_hung_up(&self, context: &mut Context<'_>) -> bool {
        let tcp = self.stream.tcp();
        // Whoever only waits for that to be ready is woken no more once it has stopped waiting.
        if tcp.poll_read_ready(context).is_pending() {
            return false;
        }
        let ready = pin!(unconstrained(tcp.ready(Interest::READABLE))).poll(context);
        matches!(ready, Poll::Ready(Ok(ready)) if ready.is_read_closed())
    }

    /// Whether nothing has come, and not the end either: as far as the reactor knows, or, if this is to be known for certain, as
    /// far as the kernel knows in this very moment.
    pub(super) fn is_silent(&mut self, for_certain: bool) -> bool {
        if !self.read.is_empty() {
            return false;
        }
        let is_silent = |stream: &TcpStream| {
            let mut byte = [MaybeUninit::uninit()];
            let peeked = SockRef::from(stream).peek(&mut byte);
            peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        if for_certain && !is_silent(self.stream.tcp()) {
            return false;
        }
        let mut nobody = Context::from_waker(Waker::noop());
        // Whoever has done much may not be told the truth.
        pin!(unconstrained(poll_fn(|context| self.poll_fill(context)))).poll(&mut nobody).is_pending()
    }

    /// Has a piece sent behind what is to be sent already, and this behind it.
    pub(super) fn add(&mut self, piece: Bytes, end: &'static [u8]) {
        if piece.len() > PIECE {
            self.piece = piece;
            self.piece_end = end;
        } else {
            self.write.extend_from_slice(&piece);
            self.write.extend_from_slice(end);
        }
    }

    /// Whether so much is to be sent that it has to go before there can be more.
    pub(super) fn is_full(&self) -> bool {
        !self.piece.is_empty() || !self.piece_end.is_empty() || self.write.len() - self.sent > PIECE
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.is_written() && !self.is_kept_back
    }

    fn is_written(&self) -> bool {
        self.write.len() == self.sent && self.piece.is_empty() && self.piece_end.is_empty()
    }

    /// Sends all that is to be sent. The number grows by that of bytes that were sent now, also if there is more.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>, sent: &mut usize) -> Poll<io::Result<()>> {
        while !self.is_written() {
            let head = self.write.get(self.sent..).unwrap_or_default();
            let stream = Pin::new(&mut self.stream);
            let some = if self.piece.is_empty() && self.piece_end.is_empty() {
                ready!(stream.poll_write(context, head))?
            } else if stream.is_write_vectored() {
                let all = [head, &self.piece, self.piece_end].map(io::IoSlice::new);
                ready!(stream.poll_write_vectored(context, &all))?
            } else {
                let first = [head, &self.piece, self.piece_end].into_iter().find(|bytes| !bytes.is_empty());
                ready!(stream.poll_write(context, first.unwrap_or_default()))?
            };
            if some == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *sent += some;
            let of_head = some.min(head.len());
            let of_piece = (some - of_head).min(self.piece.len());
            self.sent += of_head;
            self.piece.advance(of_piece);
            self.piece_end = self.piece_end.get(some - of_head - of_piece..).unwrap_or_default();
            self.is_kept_back = !matches!(self.stream, Stream::Plain(_));
        }
        // What was sent is not kept, whoever else has the rest of its buffer.
        self.piece = Bytes::new();
        self.write.clear();
        self.sent = 0;
        if self.write.capacity() > KEPT {
            self.write = Vec::new();
        }
        if self.is_kept_back {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_kept_back = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Keeps no room for what may not come for long.
    pub(super) fn relax(&mut self) {
        if self.read.is_empty() {
            self.read = BytesMut::new();
            self.want = LITTLE;
        }
        if self.is_flushed() {
            self.write = Vec::new();
            self.sent = 0;
        }
    }

    /// Has the connection break rather than end, where that is all the difference. In TLS an end is said in words.
    pub(super) fn breaks_when_dropped(&self) {
        if let Stream::Plain(stream) = &self.stream {
            let _ = stream.set_zero_linger();
        }
    }

    pub(super) fn poll_close(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// For what is no longer HTTP: what was read before comes first.
impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let wire = self.get_mut();
        if wire.read.is_empty() {
            return Pin::new(&mut wire.stream).poll_read(context, buffer);
        }
        let some = wire.read.len().min(buffer.remaining());
        buffer.put_slice(&wire.read.split_to(some));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
