//! A body that carries its request's permit: whoever streams an answer is in progress until it has ended.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tollgate_core::store::Store;

use crate::admission::Permit;

pin_project! {
    /// The body of an answer that came through a [`TollgateLayer`](super::TollgateLayer).
    pub struct LimitedBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = Projected]
    enum Kind<B> {
        Passed { #[pin] body: B, permit: Option<Box<dyn Send + Sync>> },
        Refused { text: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    pub(super) fn passed<S: Store + 'static>(body: B, permit: Permit<S>) -> Self {
        Self { kind: Kind::Passed { body, permit: Some(Box::new(permit)) } }
    }

    pub(super) fn refused(text: String) -> Self {
        Self { kind: Kind::Refused { text: Some(Bytes::from(text)).filter(|text| !text.is_empty()) } }
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.project().kind.project() {
            Projected::Passed { body, permit } => {
                let frame = body.poll_frame(context);
                // Done, well or not: the place is free for the next, even if nobody drops this body yet.
                if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
                    *permit = None;
                }
                frame
            }
            Projected::Refused { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Passed { body, .. } => body.is_end_stream(),
            Kind::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Passed { body, .. } => body.size_hint(),
            Kind::Refused { text } => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}

impl<B> fmt::Debug for LimitedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_refused = matches!(self.kind, Kind::Refused { .. });
        f.debug_struct("LimitedBody").field("is_refused", &is_refused).finish_non_exhaustive()
    }
}
