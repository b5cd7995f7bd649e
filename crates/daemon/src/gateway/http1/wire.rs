//! A connection with what was read from it and not yet used, and what is yet to be written.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

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
    /// What is to be sent, from `sent` on, and a large piece behind it.
    pub(super) write: Vec<u8>,
    sent: usize,
    piece: Bytes,
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
        Self { stream, read, write: Vec::new(), sent: 0, piece: Bytes::new(), want: LITTLE, has_ended: false }
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

    /// Has a piece sent behind what is to be sent already. True if it has to be sent on its way before there can be another.
    pub(super) fn add(&mut self, piece: Bytes) -> bool {
        if piece.len() > PIECE && self.piece.is_empty() {
            self.piece = piece;
            return true;
        }
        self.write.extend_from_slice(&piece);
        self.write.len() - self.sent > PIECE
    }

    /// Whether a large piece is on its way, behind which nothing can be written yet.
    pub(super) fn is_full(&self) -> bool {
        !self.piece.is_empty()
    }

    pub(super) fn is_flushed(&self) -> bool {
        self.write.len() == self.sent && self.piece.is_empty()
    }

    /// Sends all that is to be sent. The number is that of bytes that were sent now, also if there is more.
    pub(super) fn poll_send(&mut self, context: &mut Context<'_>, sent: &mut usize) -> Poll<io::Result<()>> {
        while !self.is_flushed() {
            let head = self.write.get(self.sent..).unwrap_or_default();
            let stream = Pin::new(&mut self.stream);
            let some = if self.piece.is_empty() {
                ready!(stream.poll_write(context, head))?
            } else if head.is_empty() {
                ready!(stream.poll_write(context, &self.piece))?
            } else if stream.is_write_vectored() {
                let both = [io::IoSlice::new(head), io::IoSlice::new(&self.piece)];
                ready!(stream.poll_write_vectored(context, &both))?
            } else {
                ready!(stream.poll_write(context, head))?
            };
            if some == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            *sent += some;
            let of_head = some.min(head.len());
            self.sent += of_head;
            self.piece.advance(some - of_head);
        }
        self.write.clear();
        self.sent = 0;
        self.piece = Bytes::new();
        if self.write.capacity() > KEPT {
            self.write = Vec::new();
        }
        match &self.stream {
            // Nothing is kept back there.
            Stream::Plain(_) => Poll::Ready(Ok(())),
            _ => Pin::new(&mut self.stream).poll_flush(context),
        }
    }

    /// Keeps no room for what may not come for long.
    pub(super) fn relax(&mut self) {
        if self.read.is_empty() {
            self.read = BytesMut::new();
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
