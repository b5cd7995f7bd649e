//! Bodies on their way through. That of a request is watched for its size and pace; that of an answer carries all that ends
//! with it: the permit, the connection to the server, the line of the log.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, timeout};
use tollgate::Permit;
use tollgate_core::answer::HeadLines;

use super::doing::{Progress, Streaming};
use super::fields;
use super::http1::{ClientBody, ServerBody};
use super::kept::{Original, Reader};
use super::pool::Lent;
use super::shelf::Share;
use super::site::Site;
use super::track::Track;
use super::tunnel::Tunnel;
use super::{FALLS_SILENT, LINGERS};
use crate::store::AnyStore;

/// What was wrong with the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Trouble {
    None = 0,
    TooLarge = 1,
    Slow = 2,
    /// The client has gone.
    Gone = 3,
    /// It is no HTTP.
    Malformed = 4,
}

impl Trouble {
    /// Why an answer that had begun was broken off, if that is why.
    fn in_the_middle(self) -> Option<&'static str> {
        Some(match self {
            Self::None => return None,
            Self::TooLarge => "the request became larger than it may be, in the middle of its answer",
            Self::Slow => {
                "neither the client nor the server said anything in time, in the middle of the answer"
            }
            Self::Gone => "the client went away in the middle of its request",
            Self::Malformed => "the body of the request is no HTTP, in the middle of its answer",
        })
    }
}

/// How the sending of a request goes, for who waits for the answer.
#[derive(Debug)]
pub(super) struct Sending {
    trouble: AtomicU8,
    /// Since when the server has all that the client has sent. None: more is being waited for.
    server_waits_since: Mutex<Option<Instant>>,
    /// When some of the answer last came, if it has begun.
    answered: Mutex<Option<Instant>>,
}

impl Default for Sending {
    fn default() -> Self {
        Self {
            trouble: AtomicU8::new(Trouble::None as u8),
            server_waits_since: Mutex::new(Some(Instant::now())),
            answered: Mutex::new(None),
        }
    }
}

impl Sending {
    pub(super) fn trouble(&self) -> Trouble {
        match self.trouble.load(Ordering::Acquire) {
            1 => Trouble::TooLarge,
            2 => Trouble::Slow,
            3 => Trouble::Gone,
            4 => Trouble::Malformed,
            _ => Trouble::None,
        }
    }

    fn fails(&self, trouble: Trouble) {
        self.trouble.store(trouble as u8, Ordering::Release);
    }

    /// Since when it is the server that is being waited for: not at all before now, while it is the client.
    pub(super) fn server_waits_since(&self) -> Instant {
        self.server_waits_since.lock().unwrap_or_else(Instant::now)
    }

    /// Some of the answer has come.
    fn answer_comes(&self) {
        *self.answered.lock() = Some(Instant::now());
    }

    fn waits_for_client(&self, does: bool) {
        *self.server_waits_since.lock() = (!does).then(Instant::now);
    }
}

/// Why a body was broken off.
#[derive(Debug, Error)]
pub(super) enum BrokenOff {
    #[error("the body is larger than it may be")]
    TooLarge,
    #[error("the body did not come in time")]
    Slow,
    #[error("the connection was closed in the middle of the body")]
    Closed,
    #[error("the body is no HTTP")]
    Malformed,
    #[error("the body is longer or shorter than was said")]
    Length,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Http2(#[from] hyper::Error),
}

/// A body as it comes in, over either HTTP.
pub(super) enum Coming<B> {
    Empty,
    Http1(B),
    Http2(Http2Body),
}

/// The body of a request, as it comes from the client.
pub(super) type AskingBody = Coming<ClientBody>;
/// The body of an answer, as it comes from the server.
pub(super) type PassedBody = Coming<ServerBody>;

impl<B: Body<Data = Bytes, Error = BrokenOff> + Unpin> Body for Coming<B> {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Http1(body) => Pin::new(body).poll_frame(context),
            Self::Http2(body) => body.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.body.as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.body.as_ref().map_or_else(SizeHint::default, Body::size_hint),
        }
    }
}

/// A body over HTTP/2, until it has come to its end.
pub(super) struct Http2Body {
    body: Option<Incoming>,
    whose: Whose,
}

enum Whose {
    Client,
    /// And its place on the connection, for which others may wait.
    Server(#[expect(dead_code, reason = "it is given back with the body")] Share),
}

impl Http2Body {
    pub(super) fn of_client(body: Incoming) -> Self {
        Self { body: Some(body), whose: Whose::Client }
    }

    pub(super) fn of_server(body: Incoming, place: Share) -> Self {
        Self { body: Some(body), whose: Whose::Server(place) }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BrokenOff::from)))
    }
}

/// What a client still sends when nobody wants it any more is taken for a while: to leave it is to reset the stream, and there are
/// clients that take the answer for lost then, although they have it.
impl Drop for Http2Body {
    fn drop(&mut self) {
        let (Whose::Client, Some(mut body)) = (&self.whose, self.body.take()) else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        if !body.is_end_stream() {
            runtime.spawn(timeout(LINGERS, async move {
                while let Ok(Some(Ok(_))) = timeout(FALLS_SILENT, body.frame()).await {}
            }));
        }
    }
}

/// The body of a request, for the server.
#[derive(Default)]
pub(super) enum AskedBody {
    #[default]
    Empty,
    Streamed(Box<Streamed>),
    /// One that can be had again.
    Kept(Reader),
}

pub(super) struct Streamed {
    body: AskingBody,
    /// How much more may come.
    room: Option<u64>,
    seen: u64,
    site: Arc<Site>,
    begun: Instant,
    /// How long was waited for the client in all, and since when it is being waited for.
    waited: Duration,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    sending: Arc<Sending>,
}

impl AskedBody {
    pub(super) fn new(body: AskingBody, site: &Arc<Site>) -> (Self, Option<Arc<Sending>>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let sending = Arc::<Sending>::default();
        let streamed = Streamed {
            body,
            room: site.max_body,
            seen: 0,
            site: Arc::clone(site),
            begun: Instant::now(),
            waited: Duration::ZERO,
            waiting: None,
            sending: Arc::clone(&sending),
        };
        (Self::Streamed(Box::new(streamed)), Some(sending))
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    /// Sees to it that it can be had again.
    pub(super) fn keep(&mut self) -> Original {
        *self = match std::mem::take(self) {
            Self::Streamed(body) => Self::Kept(Reader::new(body)),
            other => other,
        };
        match self {
            Self::Kept(reader) => reader.original(),
            _ => Original::EMPTY,
        }
    }
}

impl Streamed {
    pub(super) fn has_ended(&self) -> bool {
        self.body.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let frame = match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                if self.waiting.is_none() {
                    self.sending.waits_for_client(true);
                }
                return self.wait(context).map(|slow| Some(Err(slow)));
            }
        };
        self.sending.waits_for_client(false);
        if let Some((since, _)) = self.waiting.take() {
            self.waited += Instant::now() - since;
        }
        Poll::Ready(match frame {
            Some(Ok(_)) if self.site.times.whole.is_some_and(|whole| self.begun.elapsed() > whole) => {
                self.sending.fails(Trouble::Slow);
                Some(Err(BrokenOff::Slow))
            }
            Some(Ok(frame)) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
                self.seen += bytes;
                match &mut self.room {
                    Some(room) if *room < bytes => {
                        self.sending.fails(Trouble::TooLarge);
                        return Poll::Ready(Some(Err(BrokenOff::TooLarge)));
                    }
                    Some(room) => *room -= bytes,
                    None => {}
                }
                Some(Ok(without_forgery(frame, &self.site)))
            }
            Some(Err(error)) => {
                let is_malformed = matches!(error, BrokenOff::Malformed);
                self.sending.fails(if is_malformed { Trouble::Malformed } else { Trouble::Gone });
                Some(Err(error))
            }
            None => None,
        })
    }

    /// Waits for the client, but not for ever: neither for the next piece, nor for all of them together. A request whose answer has begun
    /// is a conversation: both sides are there for as long as either says something.
    fn wait(&mut self, context: &mut Context<'_>) -> Poll<BrokenOff> {
        let (times, begun) = (self.site.times, self.begun);
        let left = times.body.min(times.earned(self.seen).saturating_sub(self.waited));
        let within = |until: Instant| times.whole.map_or(until, |whole| until.min(begun + whole));
        let (since, timer) = self.waiting.get_or_insert_with(|| {
            let now = Instant::now();
            (now, Box::pin(tokio::time::sleep_until(within(now + left))))
        });
        loop {
            ready!(timer.as_mut().poll(context));
            let answered = *self.sending.answered.lock();
            let later = answered.map(|answered| within(answered.max(*since) + times.answer));
            match later.filter(|later| *later > timer.deadline()) {
                Some(later) => timer.as_mut().reset(later),
                None => break,
            }
        }
        self.sending.fails(Trouble::Slow);
        Poll::Ready(BrokenOff::Slow)
    }
}

/// What follows a body says nothing of what was decided before it.
fn without_forgery(frame: Frame<Bytes>, site: &Site) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            fields::strip_trailers(&mut trailers, &site.policy, &site.decisive);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

impl Body for AskedBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Streamed(streamed) => streamed.poll(context),
            Self::Kept(reader) => reader.poll(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streamed(streamed) => streamed.has_ended(),
            Self::Kept(reader) => reader.has_ended(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streamed(streamed) => streamed.size_hint(),
            Self::Kept(reader) => reader.size_hint(),
        }
    }
}

/// The body of an answer, for the client.
pub(super) struct AnswerBody {
    kind: Kind,
    lines: Lines,
}

/// Fields of the answer's head that need not be looked at any more, as HTTP/1 has them.
enum Lines {
    Written(HeadLines),
    /// Those by which the permit tells how the caller stands: to be written where they stay.
    OfPermit,
}

impl Lines {
    const NONE: Self = Self::Written(HeadLines(Vec::new()));
}

enum Kind {
    /// Of our own, and what becomes of its request.
    Text(Bytes, Option<Track>),
    /// From the server, and how long is waited for more of it.
    Passed {
        flow: Flow,
        /// No more than this at once, and what has come of more.
        most: usize,
        rest: Bytes,
        patience: Duration,
        timer: Option<Pin<Box<Sleep>>>,
        sending: Option<Arc<Sending>>,
    },
    /// Nothing, behind which the connection goes on in another way.
    Tunnel(Option<Box<Tunnel>>),
}

/// Where the answer of a server is.
enum Flow {
    /// Here: it may be all in one piece.
    Own(Box<Passed>),
    /// With whoever looks for clients that do not take it, because there is more than one piece.
    Watched(Streaming),
    Ended,
}

impl Flow {
    /// Does something with the answer. None: it has ended, or was let go of.
    fn with<R>(&mut self, act: impl FnOnce(&mut Passed) -> R) -> Option<R> {
        match self {
            Self::Own(passed) => Some(act(passed)),
            Self::Watched(streaming) => streaming.passed().as_deref_mut().map(act),
            Self::Ended => None,
        }
    }

    fn look<R>(&self, look: impl FnOnce(&Passed) -> R) -> Option<R> {
        match self {
            Self::Own(passed) => Some(look(passed)),
            Self::Watched(streaming) => streaming.passed().as_deref().map(look),
            Self::Ended => None,
        }
    }

    fn take(&mut self) -> Option<Box<Passed>> {
        match std::mem::replace(self, Self::Ended) {
            Self::Own(passed) => Some(passed),
            Self::Watched(streaming) => streaming.passed().take(),
            Self::Ended => None,
        }
    }

    /// Has it be seen that so many bytes more are there for the client.
    fn waits_for_client(&mut self, bytes: usize) {
        *self = match std::mem::replace(self, Self::Ended) {
            Self::Own(passed) => {
                let doing = Arc::clone(passed.carried.track.doing());
                Self::Watched(Progress::streaming(&doing, passed))
            }
            other => other,
        };
        if let Self::Watched(streaming) = self {
            streaming.is_waiting_for_client(bytes);
        }
    }
}

/// The answer of a server.
pub(super) struct Passed {
    body: PassedBody,
    carried: Carried,
}

/// What lasts as long as an answer.
pub(super) struct Carried {
    pub(super) permit: Permit<AnyStore>,
    pub(super) lent: Lent,
    pub(super) track: Track,
}

impl Passed {
    /// Lets go of everything; the connection can be used again if the answer came to its end.
    fn end(self, is_whole: bool) {
        let Carried { permit, lent, mut track } = self.carried;
        drop(permit);
        let now = Instant::now();
        track.ended(is_whole, now);
        if let (true, PassedBody::Http1(mut body)) = (is_whole, self.body)
            && let Some(idle) = body.idle()
        {
            lent.back(idle, now);
        }
    }

    /// Lets go of everything before its end.
    pub(super) fn let_go(mut self, why: &str) {
        self.carried.track.note(|entry| entry.error = Some(why.to_owned()));
        self.end(false);
    }
}

impl AnswerBody {
    pub(super) fn text(text: Bytes, track: Track) -> Self {
        Self { kind: Kind::Text(text, Some(track)), lines: Lines::NONE }
    }

    /// The response of a service whose requests are neither counted nor logged with those of the gateway.
    pub(super) fn untracked(text: Bytes) -> Self {
        Self { kind: Kind::Text(text, None), lines: Lines::NONE }
    }

    pub(super) fn tunnel(tunnel: Tunnel) -> Self {
        Self { kind: Kind::Tunnel(Some(Box::new(tunnel))), lines: Lines::NONE }
    }

    pub(super) fn with_lines(mut self, lines: HeadLines) -> Self {
        self.lines = Lines::Written(lines);
        self
    }

    /// Adds fields to the head of the answer.
    pub(super) fn add_lines(&self, head: &mut Vec<u8>) {
        match (&self.lines, &self.kind) {
            (Lines::Written(lines), _) => head.extend_from_slice(&lines.0),
            (Lines::OfPermit, Kind::Passed { flow, .. }) => {
                let permit = |passed: &Passed| {
                    HeadLines::add_to(head, |lines| passed.carried.permit.add_headers(lines));
                };
                flow.look(permit).unwrap_or_default();
            }
            (Lines::OfPermit, _) => {}
        }
    }

    /// What the connection goes on with, if that is no HTTP.
    pub(super) fn into_tunnel(mut self) -> Option<Box<Tunnel>> {
        match &mut self.kind {
            Kind::Tunnel(tunnel) => tunnel.take(),
            _ => None,
        }
    }

    /// Goes on with what is not the answer itself, while nobody takes more of that.
    pub(super) fn drive(&mut self, context: &mut Context<'_>) {
        if let Kind::Passed { flow, .. } = &mut self.kind {
            flow.with(|passed| {
                if let PassedBody::Http1(body) = &mut passed.body {
                    body.drive(context);
                }
            });
        }
    }

    /// The client has taken some of the last piece.
    pub(super) fn moves(&self) {
        if let Kind::Passed { flow: Flow::Watched(streaming), .. } = &self.kind {
            streaming.is_waiting_for_client(0);
        }
    }

    /// Whoever asked wants to know of it, and not to have it.
    pub(super) fn is_not_sent(&mut self) {
        self.end(true);
    }

    /// The answer of a server, of which no more than so much is given at once; its permit may have yet to tell how the caller
    /// stands.
    pub(super) fn passed(
        body: PassedBody,
        most: usize,
        patience: Duration,
        sending: Option<Arc<Sending>>,
        carried: Carried,
        is_yet_to_tell: bool,
    ) -> Self {
        if let Some(sending) = &sending {
            sending.answer_comes();
        }
        let flow = Flow::Own(Box::new(Passed { body, carried }));
        let kind = Kind::Passed { flow, most, rest: Bytes::new(), patience, timer: None, sending };
        let mut passed = Self { kind, lines: if is_yet_to_tell { Lines::OfPermit } else { Lines::NONE } };
        // Where there is nothing to wait for, nothing is held: some never ask for what is not there.
        if passed.is_end_stream() {
            let mut lines = HeadLines::default();
            passed.add_lines(&mut lines.0);
            passed.lines = Lines::Written(lines);
            passed.end(true);
        }
        passed
    }

    /// Lets go of everything.
    fn end(&mut self, is_whole: bool) {
        match &mut self.kind {
            Kind::Text(_, track) => {
                if let Some(mut track) = track.take() {
                    track.ended(is_whole, Instant::now());
                }
            }
            Kind::Passed { flow, .. } => {
                if let Some(passed) = flow.take() {
                    passed.end(is_whole);
                }
            }
            Kind::Tunnel(_) => {}
        }
    }

    /// Breaks off, for this reason, which is not the server's.
    fn breaks_off(&mut self, why: &str) {
        if let Kind::Passed { flow, .. } = &mut self.kind {
            flow.with(|passed| passed.carried.track.note(|entry| entry.error = Some(why.to_owned())));
        }
        self.end(false);
    }

    /// Breaks off, for this reason, which is the server's.
    fn fails(&mut self, why: &str) {
        if let Kind::Passed { flow, .. } = &mut self.kind {
            flow.with(|passed| passed.carried.track.fails(why));
        }
        self.end(false);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let this = self.get_mut();
        let (flow, most, rest, patience, timer, sending) = match &mut this.kind {
            Kind::Text(text, track) => {
                let text = std::mem::take(text);
                if let Some(track) = track {
                    track.sent(text.len());
                }
                this.end(true);
                return Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(text))));
            }
            Kind::Passed { flow, most, rest, patience, timer, sending } => {
                (flow, *most, rest, *patience, timer, sending)
            }
            Kind::Tunnel(_) => return Poll::Ready(None),
        };
        let polled = flow.with(|Passed { body, carried }| {
            let mut frame = match rest.is_empty() {
                true => Pin::new(&mut *body).poll_frame(context),
                false => Poll::Ready(Some(Ok(Frame::data(std::mem::take(rest))))),
            };
            if let Poll::Ready(Some(Ok(frame))) = &mut frame {
                if let Some(data) = frame.data_mut().filter(|data| data.len() > most) {
                    *rest = data.split_off(most);
                }
                carried.track.sent(frame.data_ref().map_or(0, Bytes::len));
                if let Some(trailers) = frame.trailers_mut() {
                    fields::strip_answer_trailers(trailers);
                }
            }
            (frame, rest.is_empty() && body.is_end_stream())
        });
        let Some((frame, has_ended)) = polled else {
            // It was let go of, unless it had come to its end.
            let is_over = matches!(std::mem::replace(flow, Flow::Ended), Flow::Ended);
            return Poll::Ready((!is_over).then_some(Err(BrokenOff::Slow)));
        };
        match &frame {
            Poll::Pending => {
                if let Flow::Watched(streaming) = flow {
                    streaming.is_waiting_for_server();
                }
                let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
                loop {
                    ready!(timer.as_mut().poll(context));
                    // While the client still sends its request, the server need not say anything.
                    let later = sending.as_ref().map(|sending| sending.server_waits_since() + patience);
                    match later.filter(|later| *later > timer.deadline()) {
                        Some(later) => timer.as_mut().reset(later),
                        None => break,
                    }
                }
                this.fails("the server stopped in the middle of its answer");
                return Poll::Ready(Some(Err(BrokenOff::Slow)));
            }
            Poll::Ready(Some(Ok(frame))) => {
                *timer = None;
                if let Some(sending) = sending {
                    sending.answer_comes();
                }
                // Nobody asks for more behind trailers, and so nobody would hear that there is no more.
                match has_ended || frame.is_trailers() {
                    true => this.end(true),
                    false => flow.waits_for_client(frame.data_ref().map_or(0, Bytes::len)),
                }
            }
            Poll::Ready(None) => this.end(true),
            Poll::Ready(Some(Err(error))) => {
                match sending.as_ref().and_then(|sending| sending.trouble().in_the_middle()) {
                    Some(why) => this.breaks_off(why),
                    None => {
                        this.fails(&format!("the server broke off in the middle of its answer: {error}"));
                    }
                }
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Tunnel(_) | Kind::Passed { flow: Flow::Ended, .. } => true,
            Kind::Text(text, _) => text.is_empty(),
            Kind::Passed { flow, rest, .. } => {
                rest.is_empty() && flow.look(|passed| passed.body.is_end_stream()).unwrap_or(false)
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Tunnel(_) | Kind::Passed { flow: Flow::Ended, .. } => SizeHint::with_exact(0),
            Kind::Text(text, _) => SizeHint::with_exact(text.len() as u64),
            Kind::Passed { flow, rest, .. } => {
                let hint = flow.look(|passed| passed.body.size_hint()).unwrap_or_default();
                match hint.exact() {
                    Some(length) => SizeHint::with_exact(length + rest.len() as u64),
                    None => SizeHint::default(),
                }
            }
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        // Whoever takes the whole of a text need not ask whether there is more.
        let is_whole = self.is_end_stream();
        self.end(is_whole);
    }
}
