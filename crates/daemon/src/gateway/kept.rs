//! Bodies of requests that can be had again, because a server may say that it has not begun with them.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use super::body::{AskedBody, BrokenOff, Streamed};

/// Of a body that may be wanted again so much is kept.
const KEPT: usize = 64 << 10;

/// A body, and what has been read of it, for as long as that is little.
struct Kept {
    body: Box<Streamed>,
    read: Vec<Piece>,
    bytes: usize,
    is_lost: bool,
    /// The one reader who reads. Those before have given up.
    reader: usize,
}

#[derive(Clone)]
enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Piece {
    fn of(frame: &Frame<Bytes>) -> Option<Self> {
        let trailers = || frame.trailers_ref().cloned().map(Self::Trailers);
        frame.data_ref().cloned().map(Self::Data).or_else(trailers)
    }

    fn frame(&self) -> Frame<Bytes> {
        match self.clone() {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Data(data) => data.len(),
            Self::Trailers(_) => 0,
        }
    }
}

/// Reads a body that can be had again.
pub(super) struct Reader {
    kept: Arc<Mutex<Kept>>,
    number: usize,
    /// How many pieces it has read.
    next: usize,
}

/// What a body is read from, again and again.
pub(super) struct Original(Option<Arc<Mutex<Kept>>>);

impl Original {
    pub(super) const EMPTY: Self = Self(None);

    /// The body from its beginning. None if too much of it has gone.
    pub(super) fn body(&self) -> Option<AskedBody> {
        let Some(shared) = &self.0 else { return Some(AskedBody::Empty) };
        let mut kept = shared.lock();
        if kept.is_lost {
            return None;
        }
        kept.reader += 1;
        Some(AskedBody::Kept(Reader { kept: Arc::clone(shared), number: kept.reader, next: 0 }))
    }
}

impl Reader {
    pub(super) fn new(body: Box<Streamed>) -> Self {
        let kept = Kept { body, read: Vec::new(), bytes: 0, is_lost: false, reader: 0 };
        Self { kept: Arc::new(Mutex::new(kept)), number: 0, next: 0 }
    }

    pub(super) fn original(&self) -> Original {
        Original(Some(Arc::clone(&self.kept)))
    }

    pub(super) fn has_ended(&self) -> bool {
        let kept = self.kept.lock();
        self.next >= kept.read.len() && kept.body.has_ended()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let kept = self.kept.lock();
        let ahead: usize = kept.read.iter().skip(self.next).map(Piece::len).sum();
        kept.body
            .size_hint()
            .exact()
            .map_or_else(SizeHint::default, |left| SizeHint::with_exact(left + ahead as u64))
    }

    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let mut kept = self.kept.lock();
        if kept.reader != self.number {
            return Poll::Ready(Some(Err(BrokenOff::Closed)));
        }
        if let Some(piece) = kept.read.get(self.next) {
            self.next += 1;
            return Poll::Ready(Some(Ok(piece.frame())));
        }
        let frame = ready!(kept.body.poll(context));
        if let Some(Ok(frame)) = &frame
            && let Some(piece) = Piece::of(frame).filter(|_| !kept.is_lost)
        {
            kept.bytes += piece.len();
            kept.is_lost = kept.bytes > KEPT;
            if kept.is_lost {
                kept.read = Vec::new();
            } else {
                kept.read.push(piece);
                self.next += 1;
            }
        }
        Poll::Ready(frame)
    }
}
