//! HTTP/1 for a service of this process, such as the admin endpoint. Its requests are read by the same strict reader as those of
//! the gateway's clients, so there is one set of rules for what a request is.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderValue};
use http::{Request, Response};
use hyper::service::Service;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::body::{AnswerBody, AskingBody};
use super::http1::{Bounds, Connection, Stream, Wire};
use super::problem::Problem;
use super::request::{Answering, check};
use super::{Room, fields};

/// How long a client is waited for.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// For the head of a request, and for the next request.
    pub(crate) head: Duration,
    /// For a client to take its response.
    pub(crate) write: Duration,
}

/// Requests of operators and of scrapers are smaller.
const MAX_HEAD: usize = 64 << 10;

/// Serves one connection until it ends.
pub(crate) async fn serve<S>(stream: TcpStream, patience: Patience, service: S)
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    let _ = stream.set_nodelay(true);
    let Patience { head, write } = patience;
    let bounds = || Bounds { head, idle: head, write, max_head: MAX_HEAD };
    let never = CancellationToken::new();
    // Whoever accepts connections bounds their number.
    let room = Arc::new(Room::for_connections(1));
    let wire = Wire::new(Stream::Plain(stream), BytesMut::new());
    let connection = Connection::new(wire, bounds(), [never.clone(), never], room, Arc::default());
    connection.serve(bounds, |request| answer(&service, request)).await;
}

fn answer<S>(service: &S, request: Request<AskingBody>) -> Answering
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    if let Err(problem) = check(&request, false) {
        return rejected(problem, &request);
    }
    let answered = service.call(request.map(Body::new));
    Answering::Later(Box::pin(async move {
        let Ok(response) = answered.await;
        let (parts, body) = response.into_parts();
        // The service writes its responses in memory, so this neither waits nor fails.
        let body = to_bytes(body, usize::MAX).await.unwrap_or_else(|_| Bytes::new());
        Response::from_parts(parts, AnswerBody::untracked(body))
    }))
}

fn rejected<B>(problem: Problem, request: &Request<B>) -> Answering {
    let mut response = problem.answer().map(AnswerBody::untracked);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // What follows may mean something else, too.
    fields::close(&mut response, request.version());
    Answering::Now(Some(response))
}
