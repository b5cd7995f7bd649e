//! Answers of the gateway itself, where it is neither the limiters' nor the service's to speak.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use serde_json::json;
use tollgate_core::answer::grpc_message;

use super::connection_limit::Busy;

/// Why the gateway answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Problem {
    /// The request is no request.
    Malformed(&'static str),
    /// Its head is larger than it may be, or has too many fields.
    HeadTooLarge,
    /// What it asks for is longer than can be read.
    TargetTooLong,
    /// Its body is larger than it may be.
    TooLarge,
    /// Its body did not come in time.
    Slow,
    /// The method is for proxies of another kind.
    NoTunnel,
    /// The method has a server send back the request, with the headers that proxies have added.
    NoTrace,
    /// Nobody is there for it.
    NoUpstream,
    /// Who is there for it cannot be reached, or has broken off.
    Unreachable,
    /// Who is there for it has not answered in time.
    Late,
    /// All connections to the service are in use.
    Busy(Busy),
}

/// When clients should come back that were rejected because all connections were in use, in seconds.
const RETRY_AFTER: u32 = 1;

impl Problem {
    fn status(self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TargetTooLong => StatusCode::URI_TOO_LONG,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::NoTunnel | Self::NoTrace => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoUpstream => StatusCode::NOT_FOUND,
            Self::Unreachable => StatusCode::BAD_GATEWAY,
            Self::Late => StatusCode::GATEWAY_TIMEOUT,
            Self::Busy(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// For logs and metrics.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::HeadTooLarge => "head-too-large",
            Self::TargetTooLong => "target-too-long",
            Self::TooLarge => "too-large",
            Self::Slow => "slow",
            Self::NoTunnel => "no-tunnel",
            Self::NoTrace => "no-trace",
            Self::NoUpstream => "no-upstream",
            Self::Unreachable => "unreachable",
            Self::Late => "late",
            Self::Busy(Busy::QueueFull) => "upstream-queue-full",
            Self::Busy(Busy::QueueTimeout) => "upstream-queue-timeout",
        }
    }

    fn detail(self) -> &'static str {
        match self {
            Self::Malformed(detail) => detail,
            Self::HeadTooLarge => {
                "The head of the request is larger than this service accepts, or has too many fields."
            }
            Self::TargetTooLong => "The target of a request is no longer than 65,534 bytes.",
            Self::TooLarge => "The body of the request is larger than this service accepts.",
            Self::Slow => "The body of the request did not come in time.",
            Self::NoTunnel => "This gateway makes no tunnels: CONNECT is for proxies of clients.",
            Self::NoTrace => "This gateway does not forward TRACE requests.",
            Self::NoUpstream => "Nothing is served under this address.",
            Self::Unreachable => {
                "The service behind this gateway cannot be reached, or has broken off. Try again later."
            }
            Self::Late => "The service behind this gateway has not answered in time. Try again later.",
            Self::Busy(Busy::QueueFull) => {
                "All connections to the service behind this gateway are in use, and too many requests wait for one. Try again \
                 later."
            }
            Self::Busy(Busy::QueueTimeout) => {
                "All connections to the service behind this gateway are in use, and none became free in time. Try again later."
            }
        }
    }

    /// The answer, as RFC 9457 has it. Nothing in it tells what is behind the gateway.
    pub(super) fn answer(self) -> Response<Bytes> {
        let status = self.status();
        let mut body = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or_default(),
            "status": status.as_u16(),
            "detail": self.detail(),
        });
        if let (Self::Busy(_), Some(body)) = (self, body.as_object_mut()) {
            // Clients have to tell it from the 503 of a limiter.
            body.insert("reason".to_owned(), self.name().into());
        }
        let mut response = Response::new(Bytes::from(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(self, Self::NoTunnel | Self::NoTrace) {
            headers.insert(
                header::ALLOW,
                HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
            );
        }
        if matches!(self, Self::Busy(_)) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER));
        }
        self.close(headers);
        response
    }

    /// What is left of the body may be anything: nothing more is read from here.
    fn close(self, headers: &mut HeaderMap) {
        if matches!(
            self,
            Self::Malformed(_) | Self::HeadTooLarge | Self::TargetTooLong | Self::TooLarge | Self::Slow
        ) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
    }

    /// The same in the words of gRPC.
    pub(super) fn grpc_answer(self) -> Response<Bytes> {
        let code: u32 = match self {
            Self::Malformed(_) | Self::NoTunnel | Self::NoTrace => 3, // INVALID_ARGUMENT
            Self::HeadTooLarge | Self::TargetTooLong | Self::TooLarge => 8, // RESOURCE_EXHAUSTED
            Self::Slow | Self::Late => 4,                             // DEADLINE_EXCEEDED
            Self::NoUpstream => 12,                                   // UNIMPLEMENTED
            Self::Unreachable | Self::Busy(_) => 14,                  // UNAVAILABLE
        };
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(code));
        if let Ok(message) = HeaderValue::from_str(&grpc_message(self.detail())) {
            headers.insert("grpc-message", message);
        }
        self.close(headers);
        response
    }
}
