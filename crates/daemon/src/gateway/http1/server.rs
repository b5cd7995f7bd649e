//! Requests of clients: one connection, and its requests one after another.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::header;
use http::{Method, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::decode::{Decoder, Syntax};
use super::encode::{self, Announced, Encoder, Manner, Unlike};
use super::head::{self, Asked, Length, Scan, Wrong};
use super::wire::Wire;
use crate::gateway::alarm::Alarm;
use crate::gateway::body::{AnswerBody, AskingBody, BrokenOff};
use crate::gateway::doing::Doing;
use crate::gateway::problem::Problem;
use crate::gateway::request::Answering;
use crate::gateway::tunnel;
use crate::gateway::{FALLS_SILENT, LINGERS, Room};

/// So much of the next requests is read while one is answered.
const READ_AHEAD: usize = 8 << 10;
const MOST_EMPTY_LINES: u32 = 64;
/// How long connections that nobody uses are kept when the gateway ends: whoever was about to ask again is answered, and told.
const LAST_CALL: Duration = Duration::from_millis(250);
/// A body that nobody wants is read to its end if it is not larger and comes sooner: the connection goes on then.
const SMALL: usize = 64 << 10;
const SOON: Duration = Duration::from_millis(500);

/// A connection with a client.
pub(in crate::gateway) struct Connection {
    shared: Arc<Mutex<Shared>>,
    alarm: Alarm,
    /// Rings when each answer is the last.
    notice: CancellationToken,
    /// Rings when it is to end as soon as it can.
    drain: CancellationToken,
    /// What it stands in, which others may need more.
    room: Arc<Room>,
    doing: Arc<Doing>,
    bounds: Bounds,
}

/// How much is taken, and how long is waited for what.
#[derive(Clone, Copy)]
pub(in crate::gateway) struct Bounds {
    pub(in crate::gateway) head: Duration,
    pub(in crate::gateway) idle: Duration,
    /// For a client to take what is there for it.
    pub(in crate::gateway) write: Duration,
    pub(in crate::gateway) max_head: usize,
}

/// What the connection shares with the body of its request.
struct Shared {
    wire: Wire,
    /// What is still to come of the request's body.
    decoder: Decoder,
    /// Which body it is: one of another number has no business here any more.
    body: u64,
    /// Whether the client waits to be told that it may send the body.
    expects: bool,
    /// Whether the answer has begun.
    is_answered: bool,
    /// Who serves the connection, while somebody else may read the body.
    waker: Option<Waker>,
}

/// How a connection came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gateway) enum Ended {
    Well,
    /// By what its client did.
    Badly,
    /// By what was no request, and was answered with this status.
    Malformed(StatusCode),
}

/// Why there is no next request.
enum Stop {
    Wrong(Wrong),
    /// Nothing more comes, or not in time.
    Nothing(Ended),
}

impl Connection {
    pub(in crate::gateway) fn new(
        wire: Wire,
        bounds: Bounds,
        [notice, drain]: [CancellationToken; 2],
        room: Arc<Room>,
        doing: Arc<Doing>,
    ) -> Self {
        let shared = Shared {
            wire,
            decoder: Decoder::new(Length::Exactly(0), Syntax::Strict),
            body: 0,
            expects: false,
            is_answered: false,
            waker: None,
        };
        let shared = Arc::new(Mutex::new(shared));
        Self { shared, alarm: Alarm::default(), notice, drain, room, doing, bounds }
    }

    /// Serves requests until there are no more. Each has the bounds of when it comes.
    pub(in crate::gateway) async fn serve(
        mut self,
        bounds: impl Fn() -> Bounds,
        mut answer: impl FnMut(http::Request<AskingBody>) -> Answering,
    ) -> Ended {
        loop {
            let asked = match self.next(&bounds).await {
                Ok(asked) => asked,
                Err(Stop::Nothing(ended)) => return ended,
                Err(Stop::Wrong(wrong)) => return self.refuse(wrong).await,
            };
            let Asked { request, length, stays, expects, takes_trailers } = asked;
            let mut manner = Manner {
                is_head: *request.method() == Method::HEAD,
                is_http_1_0: request.version() == Version::HTTP_10,
                takes_trailers,
                stays,
            };
            let body = self.body_of(length, expects);
            let mut answering = answer(request.map(|()| body));
            let answered = poll_fn(|context| {
                let polled = Pin::new(&mut answering).poll(context);
                self.send_interim(context);
                if let Poll::Ready(Ok(answer)) = polled {
                    return Poll::Ready(Some(answer));
                }
                self.poll_gone(context).map(|()| None)
            });
            let Some(answer) = answered.await else { return Ended::Badly };
            drop(answering);
            manner.stays &= !self.notice.is_cancelled();
            // A body that nobody wants is read if it is small. Else the client is told that the connection ends: its next
            // request would be lost.
            if manner.stays && !self.has_read() {
                let is_last = answer.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
                let is_held = Arc::strong_count(&self.shared) > 1;
                manner.stays = !is_last && if is_held { self.has_little() } else { self.reads(SOON).await };
            }
            let body = match self.write(answer, &mut manner).await {
                Ok(body) => body,
                Err(()) => return Ended::Badly,
            };
            if let Some(tunnel) = body.into_tunnel() {
                // Whatever comes from here on is no HTTP.
                let shared = Arc::into_inner(self.shared).map(Mutex::into_inner);
                let Some(shared) = shared.filter(|shared| shared.decoder.is_done()) else {
                    return Ended::Badly;
                };
                tunnel::connect(shared.wire, tunnel).await;
                return Ended::Well;
            }
            // Who still has the body has had the time of the answer to read it.
            self.shared.lock().body += 1;
            // Who was not told that the connection ends is waited for.
            if !manner.stays || !self.has_read() && !self.reads(self.bounds.write).await {
                self.close().await;
                return Ended::Well;
            }
        }
    }

    /// The body of a request, for whoever answers it.
    fn body_of(&self, length: Length, expects: bool) -> AskingBody {
        if length == Length::Exactly(0) {
            return AskingBody::Empty;
        }
        let mut shared = self.shared.lock();
        shared.decoder = Decoder::new(length, Syntax::Strict);
        shared.expects = expects;
        shared.is_answered = false;
        let number = shared.body;
        AskingBody::Http1(ClientBody { shared: Arc::clone(&self.shared), number, is_done: false })
    }

    /// Waits for the head of the next request.
    async fn next(&mut self, bounds: &impl Fn() -> Bounds) -> Result<Asked, Stop> {
        let mut scan = Scan::default();
        let (mut deadline, mut last_call, mut has_begun, mut empty_lines) = (None, None, false, 0);
        poll_fn(|context| {
            let wire = &mut self.shared.lock().wire;
            loop {
                match scan.end(&wire.read, true) {
                    Err(wrong) => return Poll::Ready(Err(Stop::Wrong(wrong))),
                    Ok(Some(end)) => {
                        scan = Scan::default();
                        if end == b"\r\n".len() {
                            // Empty lines before a request do no harm.
                            wire.read.advance(end);
                            empty_lines += 1;
                            if empty_lines > MOST_EMPTY_LINES {
                                return Poll::Ready(Err(Stop::Wrong(Wrong::Head("There is no request."))));
                            }
                            continue;
                        }
                        if end > self.bounds.max_head {
                            return Poll::Ready(Err(Stop::Wrong(Wrong::TooLarge)));
                        }
                        let head = wire.read.split_to(end).freeze();
                        return Poll::Ready(head::request(&head).map_err(Stop::Wrong));
                    }
                    Ok(None) if wire.read.len() > self.bounds.max_head => {
                        return Poll::Ready(Err(Stop::Wrong(Wrong::TooLarge)));
                    }
                    Ok(None) => {}
                }
                let is_between = matches!(*wire.read, [] | [b'\r']);
                match wire.poll_fill(context) {
                    Poll::Ready(Ok(1..)) => {
                        if is_between {
                            self.bounds = bounds();
                        }
                        continue;
                    }
                    Poll::Ready(Ok(0)) if is_between => return Poll::Ready(Err(Stop::Nothing(Ended::Well))),
                    Poll::Ready(_) => return Poll::Ready(Err(Stop::Nothing(Ended::Badly))),
                    Poll::Pending => {}
                }
                if is_between && self.drain.is_cancelled() {
                    let until = *last_call.get_or_insert_with(|| Instant::now() + LAST_CALL);
                    return match self.alarm.rings(until, context) {
                        true => Poll::Ready(Err(Stop::Nothing(Ended::Well))),
                        false => Poll::Pending,
                    };
                }
                if has_begun == is_between {
                    has_begun = !is_between;
                    deadline = None;
                }
                if is_between && deadline.is_some() {
                    // It was woken for something else, and has waited for a while.
                    if self.room.is_full() {
                        return Poll::Ready(Err(Stop::Nothing(Ended::Well)));
                    }
                    wire.relax();
                }
                let wait = if is_between { self.bounds.idle } else { self.bounds.head };
                let deadline = *deadline.get_or_insert_with(|| Instant::now() + wait);
                return match self.alarm.rings(deadline, context) {
                    true => {
                        Poll::Ready(Err(Stop::Nothing(if is_between { Ended::Well } else { Ended::Badly })))
                    }
                    false => Poll::Pending,
                };
            }
        })
        .await
    }

    /// Forwards informational responses. What cannot be sent at once is sent with the final response.
    fn send_interim(&self, context: &mut Context<'_>) {
        if !self.doing.interim.is_empty() {
            let wire = &mut self.shared.lock().wire;
            self.doing.interim.move_to(&mut wire.write);
            let _ = wire.poll_send(context, &mut 0);
        }
    }

    /// Whether the client has gone, as far as can be seen without reading more than the next requests.
    fn poll_gone(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut shared = self.shared.lock();
        if !shared.decoder.is_done() {
            // Who reads the body hears of it, but not while there is more than the server takes.
            if !shared.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                shared.waker = Some(context.waker().clone());
            }
            return if shared.wire.has_hung_up(context) { Poll::Ready(()) } else { Poll::Pending };
        }
        while shared.wire.read.len() < READ_AHEAD {
            match ready!(shared.wire.poll_fill(context)) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Poll::Ready(()),
            }
        }
        if shared.wire.has_hung_up(context) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Sends an answer. An error: it could not be sent, or not to its end.
    async fn write(&mut self, answer: Response<AnswerBody>, manner: &mut Manner) -> Result<AnswerBody, ()> {
        let mut encoder = {
            let mut shared = self.shared.lock();
            shared.is_answered = true;
            let length = answer.body().size_hint().exact();
            let lines = |head: &mut Vec<u8>| answer.body().add_lines(head);
            encode::response(&mut shared.wire.write, &answer, lines, length, manner)
        };
        let announced =
            if manner.takes_trailers { Announced::by(answer.headers()) } else { Announced::default() };
        let mut body = answer.into_body();
        if encoder == Encoder::Length(0) {
            body.is_not_sent();
            self.flush().await?;
            return Ok(body);
        }
        let (mut is_whole, mut is_last) = (Ok(()), false);
        let mut late = Late::default();
        poll_fn(|context| {
            loop {
                if is_last || self.shared.lock().wire.is_full() {
                    let sent = self.poll_write(&mut late, context);
                    if std::mem::take(&mut late.has_moved) {
                        body.moves();
                    }
                    if sent.is_pending() {
                        // The rest of the request does not wait for its answer to be taken.
                        body.drive(context);
                    }
                    ready!(sent)?;
                    if is_last {
                        return Poll::Ready(is_whole);
                    }
                }
                let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(context) else {
                    ready!(self.poll_write(&mut late, context))?;
                    return self.poll_gone(context).map(|()| Err(()));
                };
                let wire = &mut self.shared.lock().wire;
                let put = match frame.transpose() {
                    Ok(Some(frame)) => match frame.into_data() {
                        Ok(data) => {
                            let put = encoder.add(wire, data);
                            // Behind a large piece there may be something yet.
                            is_last = body.is_end_stream() && !wire.is_full();
                            if is_last { put.and_then(|()| encoder.end(wire, None, &announced)) } else { put }
                        }
                        Err(frame) => {
                            is_last = true;
                            encoder.end(wire, frame.trailers_ref(), &announced)
                        }
                    },
                    Ok(None) => {
                        is_last = true;
                        encoder.end(wire, None, &announced)
                    }
                    Err(_) => Err(Unlike),
                };
                if put.is_err() {
                    // What there is of it is sent all the same, but not so that it could be taken for the whole.
                    (is_last, is_whole) = (true, Err(()));
                    if encoder == Encoder::Open {
                        wire.breaks_when_dropped();
                    }
                }
            }
        })
        .await
        .map(|()| body)
    }

    /// Sends what is to be sent.
    async fn flush(&mut self) -> Result<(), ()> {
        let mut late = Late::default();
        poll_fn(|context| self.poll_write(&mut late, context)).await
    }

    /// Sends what is to be sent, but does not wait for ever for the client to take it.
    fn poll_write(&mut self, late: &mut Late, context: &mut Context<'_>) -> Poll<Result<(), ()>> {
        let mut sent = 0;
        if let Poll::Ready(done) = self.shared.lock().wire.poll_send(context, &mut sent) {
            late.deadline = None;
            return Poll::Ready(done.map_err(|_| ()));
        }
        if sent > 0 {
            (late.deadline, late.has_moved) = (None, true);
        }
        let deadline = *late.deadline.get_or_insert_with(|| Instant::now() + self.bounds.write);
        if self.alarm.rings(deadline, context) { Poll::Ready(Err(())) } else { Poll::Pending }
    }

    /// Whether the body of the request has come to its end.
    fn has_read(&self) -> bool {
        self.shared.lock().decoder.is_done()
    }

    /// Whether certainly no more than a little is left of it, which comes without a word from us.
    fn has_little(&self) -> bool {
        let shared = self.shared.lock();
        !shared.expects && shared.decoder.exactly().is_some_and(|length| length <= SMALL as u64)
    }

    /// Reads what is left of the body, if that is little and comes in time.
    async fn reads(&mut self, patience: Duration) -> bool {
        let mut left = SMALL;
        {
            let shared = self.shared.lock();
            let is_large = shared.decoder.exactly().is_some_and(|length| length > SMALL as u64);
            // Who still waits to be told has not sent it.
            if shared.expects || is_large {
                return false;
            }
        }
        let read = poll_fn(|context| {
            loop {
                let mut shared = self.shared.lock();
                let Some(frame) = ready!(shared.poll_frame(context)) else { return Poll::Ready(true) };
                let length = frame.map(|frame| frame.data_ref().map_or(0, Bytes::len));
                match length.ok().and_then(|length| left.checked_sub(length)) {
                    Some(rest) => left = rest,
                    None => return Poll::Ready(false),
                }
            }
        });
        matches!(timeout(patience, read).await, Ok(true))
    }

    /// Answers somebody who has come to the wrong place.
    pub(in crate::gateway) async fn turn_away(self, detail: &'static str) -> Ended {
        self.refuse(Wrong::Head(detail)).await
    }

    /// Answers what is no request.
    async fn refuse(mut self, wrong: Wrong) -> Ended {
        let problem = match wrong {
            Wrong::Head(detail) => Problem::Malformed(detail),
            Wrong::TooLarge => Problem::HeadTooLarge,
            Wrong::Target => Problem::TargetTooLong,
        };
        let answer = problem.answer();
        {
            let wire = &mut self.shared.lock().wire;
            let mut manner = Manner::default();
            let length = Some(answer.body().len() as u64);
            encode::response(&mut wire.write, &answer, |_| {}, length, &mut manner);
            wire.add(answer.body().clone(), b"");
        }
        let _ = self.flush().await;
        self.close().await;
        Ended::Malformed(answer.status())
    }

    /// Closes the connection. What its client is still sending is taken for a while: to leave it would break the connection,
    /// and take the answer with it.
    async fn close(&mut self) {
        let closed = async {
            poll_fn(|context| self.shared.lock().wire.poll_close(context)).await?;
            loop {
                let more = poll_fn(|context| {
                    let wire = &mut self.shared.lock().wire;
                    wire.read.clear();
                    wire.poll_fill(context)
                });
                match timeout(FALLS_SILENT, more).await {
                    Ok(Ok(1..)) => {}
                    _ => return io::Result::Ok(()),
                }
            }
        };
        let lingers = if self.drain.is_cancelled() { FALLS_SILENT } else { LINGERS };
        let _ = timeout(lingers, closed).await;
    }
}

/// When something of what is to be sent has to be gone.
#[derive(Default)]
struct Late {
    deadline: Option<Instant>,
    /// Whether some of it was sent, and not all.
    has_moved: bool,
}

impl Shared {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        self.decoder.poll_frame(&mut self.wire, context)
    }
}

/// The body of a request.
pub(in crate::gateway) struct ClientBody {
    shared: Arc<Mutex<Shared>>,
    /// Which of the connection's bodies it is.
    number: u64,
    is_done: bool,
}

impl Body for ClientBody {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let body = self.get_mut();
        if body.is_done {
            return Poll::Ready(None);
        }
        let shared = &mut *body.shared.lock();
        if shared.body != body.number {
            // The connection has gone on without it.
            return Poll::Ready(Some(Err(BrokenOff::Closed)));
        }
        if !shared.is_answered {
            if std::mem::take(&mut shared.expects) {
                shared.wire.write.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
            // Whatever goes wrong here goes wrong with the answer, too.
            let _ = shared.wire.poll_send(context, &mut 0);
        }
        let frame = ready!(shared.poll_frame(context));
        body.is_done = shared.decoder.is_done();
        if body.is_done
            && let Some(waker) = shared.waker.take().filter(|waker| !waker.will_wake(context.waker()))
        {
            waker.wake();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.is_done
    }

    fn size_hint(&self) -> SizeHint {
        let shared = self.shared.lock();
        if shared.body == self.number { shared.decoder.size_hint() } else { SizeHint::default() }
    }
}

impl Drop for ClientBody {
    fn drop(&mut self) {
        // Nobody reads it any more: whether the client goes is for the connection to see.
        if let Some(waker) = self.shared.lock().waker.take() {
            waker.wake();
        }
    }
}
