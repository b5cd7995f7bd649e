//! Informational responses (1xx), such as 103 Early Hints, on their way from a server to a client over HTTP/1.1.
//!
//! 100 and 101 are not among them: the gateway itself says when a body may be sent, and 101 is the final response of its
//! request. Over HTTP/2 none are forwarded, in either direction: hyper neither shows nor sends them.

use std::sync::atomic::{AtomicBool, Ordering};

use http::Response;
use parking_lot::Mutex;

/// No more than this waits for a client that does not read.
const MOST: usize = 64 << 10;

/// Informational responses that have not been sent yet.
#[derive(Default)]
pub(super) struct Interim {
    has_some: AtomicBool,
    heads: Mutex<Vec<u8>>,
}

impl Interim {
    /// Has a response sent, unless too much waits already: it is a hint, and the client can do without.
    pub(super) fn add(&self, response: &Response<()>) {
        let status = response.status();
        let mut head =
            format!("HTTP/1.1 {} {}\r\n", status.as_str(), status.canonical_reason().unwrap_or("-"))
                .into_bytes();
        for (name, value) in response.headers() {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        let mut heads = self.heads.lock();
        if heads.len() + head.len() <= MOST {
            heads.extend_from_slice(&head);
            self.has_some.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_some.load(Ordering::Acquire)
    }

    /// Moves all to what is sent next.
    pub(super) fn move_to(&self, to: &mut Vec<u8>) {
        let mut heads = self.heads.lock();
        self.has_some.store(false, Ordering::Release);
        if to.len() + heads.len() <= MOST {
            to.extend_from_slice(&heads);
        }
        *heads = Vec::new();
    }
}
