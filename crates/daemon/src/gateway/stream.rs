//! Connections as they are, but for how they are read at first.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// Reads first what was read before.
pub(super) struct Rewound<T> {
    before: BytesMut,
    inner: T,
}

impl<T: AsyncRead + Unpin> Rewound<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { before: BytesMut::new(), inner }
    }

    /// Reads more of the beginning, which is read again later. False if there is no more.
    pub(super) async fn peek_more(&mut self) -> io::Result<bool> {
        self.before.reserve(1024);
        Ok(self.inner.read_buf(&mut self.before).await? > 0)
    }

    /// What was read of the beginning.
    pub(super) fn beginning(&self) -> &[u8] {
        &self.before
    }

    /// The connection itself.
    pub(super) fn get_ref(&self) -> &T {
        &self.inner
    }

    /// What was read of the beginning, and the connection.
    pub(super) fn into_parts(self) -> (BytesMut, T) {
        (self.before, self.inner)
    }

    /// Leaves out so much of the beginning.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.before.advance(bytes.min(self.before.len()));
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Rewound<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if stream.before.is_empty() {
            return Pin::new(&mut stream.inner).poll_read(context, buffer);
        }
        let some = stream.before.len().min(buffer.remaining());
        buffer.put_slice(&stream.before.split_to(some));
        if stream.before.is_empty() {
            // An idle connection keeps no buffer for it.
            stream.before = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Rewound<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, pieces)
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
