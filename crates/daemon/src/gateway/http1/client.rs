//! Requests to servers: one connection, and what goes over it at this moment.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::decode::{Decoder, Syntax};
use super::encode::{self, Announced, Encoder};
use super::head::{self, Length, Scan, Wrong};
use super::wire::{Stream, Wire};
use crate::gateway::body::{AskedBody, BrokenOff};

/// Heads of answers are not larger.
const MOST_HEAD: usize = 128 << 10;
/// So often a server may say that the answer is yet to come.
const MOST_INTERIM: u32 = 64;

/// A connection with a server, and the request that it is used for.
pub(in crate::gateway) struct Exchange {
    wire: Wire,
    method: Method,
    /// What is still to be sent of the request.
    sending: Option<Sending>,
    /// Why no more can be sent.
    unsent: Option<io::Error>,
    /// Why the rest of the request does not come.
    broken_off: Option<BrokenOff>,
    /// Whether the server has said something.
    has_heard: bool,
    /// How often it has said that the answer is yet to come.
    interim: u32,
    /// What is still to come of the answer.
    decoder: Decoder,
    scan: Scan,
    /// Whether it can be used again.
    stays: bool,
}

struct Sending {
    body: AskedBody,
    encoder: Encoder,
    announced: Announced,
    /// Whether something of the body was taken.
    is_begun: bool,
}

/// An answer, and where the rest of it comes from.
pub(in crate::gateway) type Answered = (Response<()>, ServerBody);

/// Why there is no answer.
#[derive(Debug)]
pub(in crate::gateway) struct Broken {
    why: Why,
    /// Whether the server has certainly not begun with the request.
    pub(in crate::gateway) is_unsent: bool,
    /// Whether nothing at all came back.
    pub(in crate::gateway) is_unanswered: bool,
}

#[derive(Debug)]
enum Why {
    Closed,
    Io(io::Error),
    Wrong(Wrong),
    /// The body of the request broke off.
    Asked(BrokenOff),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Closed => f.write_str("the server closed the connection before its answer"),
            Why::Io(error) => write!(f, "the connection broke before the answer: {error}"),
            Why::Wrong(Wrong::Head(why)) => write!(f, "the answer is no HTTP: {why}"),
            Why::Wrong(Wrong::TooLarge | Wrong::Target) => f.write_str("the head of the answer is too large"),
            Why::Asked(error) => write!(f, "the request broke off: {error}"),
        }
    }
}

impl From<Wrong> for Why {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

impl Exchange {
    pub(in crate::gateway) fn new(stream: Stream) -> Box<Self> {
        Box::new(Self {
            wire: Wire::new(stream, BytesMut::new()),
            method: Method::GET,
            sending: None,
            unsent: None,
            broken_off: None,
            has_heard: false,
            interim: 0,
            decoder: Decoder::new(Length::Exactly(0), Syntax::Lenient),
            scan: Scan::default(),
            stays: true,
        })
    }

    /// Whether nothing has come that nobody has asked for, and not the end either. To know that for certain takes a system call,
    /// and is for what cannot be tried again.
    pub(in crate::gateway) fn is_usable(&mut self, for_certain: bool) -> bool {
        self.wire.is_silent(for_certain)
    }

    /// Keeps no room for what may not come for long.
    pub(in crate::gateway) fn relax(&mut self) {
        self.wire.relax();
    }

    /// Sends a request, and waits for the head of its answer. Informational responses before it go to `inform`, but for
    /// 100 Continue. Of a request that was not begun nothing is taken.
    pub(in crate::gateway) async fn ask(
        mut self: Box<Self>,
        request: &mut Request<AskedBody>,
        mut inform: impl FnMut(Response<()>),
    ) -> Result<Answered, Broken> {
        let body = mem::take(request.body_mut());
        let length = (!body.is_empty()).then(|| body.size_hint().exact());
        self.method.clone_from(request.method());
        (self.has_heard, self.interim) = (false, 0);
        let to = &mut self.wire.write;
        let encoder = encode::request(to, request.method(), request.uri(), request.headers(), length);
        let announced = || Announced::by(request.headers());
        self.sending = length.map(|_| Sending { body, encoder, announced: announced(), is_begun: false });
        let mut sent = 0;
        match poll_fn(|context| self.poll_head(context, &mut sent, &mut inform)).await {
            Ok(told) => {
                self.decoder = Decoder::new(told.length, Syntax::Lenient);
                self.stays &= told.stays;
                Ok((told.response, ServerBody { exchange: Some(self) }))
            }
            Err(why) => {
                let is_begun = self.sending.as_ref().map_or(length.is_some(), |sending| sending.is_begun);
                let has_heard = self.has_heard || !self.wire.read.is_empty();
                let is_unsent = sent == 0 && !is_begun && !has_heard;
                if let (true, Some(sending)) = (is_unsent, self.sending.take()) {
                    *request.body_mut() = sending.body;
                }
                let is_unanswered = !has_heard && !matches!(why, Why::Asked(_) | Why::Wrong(_));
                Err(Broken { why, is_unsent, is_unanswered })
            }
        }
    }

    fn poll_head(
        &mut self,
        context: &mut Context<'_>,
        sent: &mut usize,
        inform: &mut impl FnMut(Response<()>),
    ) -> Poll<Result<head::Told, Why>> {
        self.poll_send(context, sent).map_err(Why::Asked)?;
        loop {
            if let Some(end) = self.scan.end(&self.wire.read, false)?.filter(|end| *end <= MOST_HEAD) {
                self.scan = Scan::default();
                self.has_heard = true;
                let told = head::response(&self.wire.read.split_to(end).freeze(), &self.method)?;
                let status = told.response.status();
                if !status.is_informational() || status == StatusCode::SWITCHING_PROTOCOLS {
                    return Poll::Ready(Ok(told));
                }
                self.interim += 1;
                if self.interim > MOST_INTERIM {
                    return Poll::Ready(Err(Why::Wrong(Wrong::Head("the answer never comes"))));
                }
                if status != StatusCode::CONTINUE {
                    inform(told.response);
                }
                continue;
            }
            if self.wire.read.len() > MOST_HEAD {
                return Poll::Ready(Err(Why::Wrong(Wrong::TooLarge)));
            }
            match ready!(self.wire.poll_fill(context)) {
                Ok(0) => return Poll::Ready(Err(self.unsent.take().map_or(Why::Closed, Why::Io))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(Why::Io(self.unsent.take().unwrap_or(error)))),
            }
        }
    }

    /// Sends as much of the request as can be sent. A server that takes no more of it may have answered all the same; only
    /// what goes wrong with the client is an error.
    fn poll_send(&mut self, context: &mut Context<'_>, sent: &mut usize) -> Result<(), BrokenOff> {
        loop {
            if self.unsent.is_some() {
                return Ok(());
            }
            if self.wire.is_full() || self.sending.is_none() {
                if !self.flush(context, sent) || self.sending.is_none() {
                    return Ok(());
                }
            } else if self.poll_next(context)?.is_pending() {
                self.flush(context, sent);
                return Ok(());
            }
        }
    }

    /// Puts the next piece of the request to what is to be sent.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Result<Poll<()>, BrokenOff> {
        let Some(sending) = &mut self.sending else { return Ok(Poll::Ready(())) };
        let Poll::Ready(frame) = Pin::new(&mut sending.body).poll_frame(context) else {
            return Ok(Poll::Pending);
        };
        sending.is_begun = true;
        let (wire, announced) = (&mut self.wire, &sending.announced);
        let put = match frame.transpose() {
            Err(error) => Err(error),
            Ok(None) => sending.encoder.end(wire, None, announced).map(|()| true).map_err(BrokenOff::from),
            Ok(Some(frame)) => match frame.into_data() {
                Ok(data) => sending.encoder.add(wire, data).map(|()| false).map_err(BrokenOff::from),
                Err(frame) => {
                    let ended = sending.encoder.end(wire, frame.trailers_ref(), announced);
                    ended.map(|()| true).map_err(BrokenOff::from)
                }
            },
        };
        if !matches!(put, Ok(false)) {
            self.sending = None;
            self.stays &= put.is_ok();
        }
        put.map(|_| Poll::Ready(()))
    }

    /// Whether all has been sent that is to be sent.
    fn flush(&mut self, context: &mut Context<'_>, sent: &mut usize) -> bool {
        match self.wire.poll_send(context, sent) {
            Poll::Ready(Ok(())) => true,
            Poll::Ready(Err(error)) => {
                self.unsent = Some(error);
                self.stays = false;
                false
            }
            Poll::Pending => false,
        }
    }
}

/// The body of an answer, with the connection that it comes from.
pub(in crate::gateway) struct ServerBody {
    exchange: Option<Box<Exchange>>,
}

impl ServerBody {
    /// Goes on with sending the request, while nobody can take more of the answer.
    pub(in crate::gateway) fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(exchange) = &mut self.exchange
            && let Err(error) = exchange.poll_send(context, &mut 0)
        {
            exchange.broken_off = Some(error);
        }
    }

    /// The connection, if it can be used for another request.
    pub(in crate::gateway) fn idle(&mut self) -> Option<Box<Exchange>> {
        self.exchange.take_if(|exchange| {
            exchange.decoder.is_done()
                && exchange.stays
                && exchange.sending.is_none()
                && exchange.wire.is_flushed()
                && exchange.wire.read.is_empty()
        })
    }

    /// The connection, for something that is no longer HTTP. None if the request is still being sent.
    pub(in crate::gateway) fn into_wire(self) -> Option<Wire> {
        let exchange = self.exchange.filter(|exchange| exchange.sending.is_none())?;
        exchange.wire.is_flushed().then_some(exchange.wire)
    }
}

impl Body for ServerBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let body = self.get_mut();
        body.drive(context);
        let Some(exchange) = &mut body.exchange else { return Poll::Ready(None) };
        if let Some(error) = exchange.broken_off.take() {
            return Poll::Ready(Some(Err(error)));
        }
        exchange.decoder.poll_frame(&mut exchange.wire, context)
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.as_ref().is_none_or(|exchange| exchange.decoder.is_done())
    }

    fn size_hint(&self) -> SizeHint {
        match &self.exchange {
            None => SizeHint::with_exact(0),
            Some(exchange) => exchange.decoder.size_hint(),
        }
    }
}
