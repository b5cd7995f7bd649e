//! A strict reader of what proxies and servers have sent, independent of Tollgate's own.

use serde_json::Value;

/// A request or a response.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    pub(super) line: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Whether it came to its end. A body that ends with the connection has not.
    pub(super) is_complete: bool,
}

impl Message {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The status of a response.
    pub(super) fn status(&self) -> u16 {
        self.line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// What a server says that it has seen; none if it rejected the request.
    pub(super) fn seen(&self) -> Option<Value> {
        match self.header("x-seen") {
            Some(encoded) => serde_json::from_slice(&base64(encoded)).ok(),
            None => serde_json::from_slice(&self.body).ok().filter(|seen: &Value| seen["target"].is_string()),
        }
    }
}

fn base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        (bits, held) = (bits << 6 | u32::from(value), held + 6);
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    bytes
}

fn latin1(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|some| some == what)
}

/// The next message, and how many bytes it takes. None if its head is not whole.
pub(super) fn message(bytes: &[u8], is_bodiless: impl Fn(&Message) -> bool) -> Option<(Message, usize)> {
    let end = find(bytes, b"\r\n\r\n")?;
    let text = latin1(&bytes[..end]);
    let mut lines = text.split("\r\n");
    let mut message = Message { line: lines.next().unwrap_or_default().to_owned(), ..Message::default() };
    for line in lines {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        message.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut at = end + 4;
    let is_response = message.line.starts_with("HTTP/");
    if is_bodiless(&message) {
        message.is_complete = true;
    } else if message.header("transfer-encoding").is_some() {
        message.is_complete = chunks(bytes, &mut at, &mut message.body);
    } else if let Some(length) = message.header("content-length") {
        let length = length.parse::<usize>().unwrap_or(usize::MAX);
        let body = &bytes[at..bytes.len().min(at.saturating_add(length))];
        message.is_complete = body.len() == length;
        at += body.len();
        message.body = body.to_vec();
    } else if is_response {
        message.body = bytes[at..].to_vec();
        at = bytes.len();
    } else {
        message.is_complete = true;
    }
    Some((message, at))
}

fn chunks(bytes: &[u8], at: &mut usize, body: &mut Vec<u8>) -> bool {
    let line = |at: &mut usize| {
        let length = find(&bytes[*at..], b"\r\n")?;
        let line = latin1(&bytes[*at..*at + length]);
        *at += length + 2;
        Some(line)
    };
    loop {
        let Some(size) = line(at).and_then(|size| usize::from_str_radix(&size, 16).ok()) else {
            return false;
        };
        if size == 0 {
            break;
        }
        let data = &bytes[*at..bytes.len().min(at.saturating_add(size))];
        body.extend_from_slice(data);
        *at += data.len();
        if data.len() < size || line(at).as_deref() != Some("") {
            return false;
        }
    }
    loop {
        match line(at).as_deref() {
            Some("") => return true,
            Some(_) => {}
            None => return false,
        }
    }
}

/// Whether a response has no body, given whether it answers HEAD.
pub(super) fn is_bodiless_response(response: &Message, is_head: bool) -> bool {
    is_head || response.status() / 100 == 1 || matches!(response.status(), 204 | 304)
}
