//! HTTP/2 by hand, for tests that send what no client would: single frames, in any order.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long a client waits before a test has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames.
pub mod kind {
    #![allow(missing_docs, reason = "the names are those of RFC 9113")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// Flags of frames.
pub mod flag {
    #![allow(missing_docs, reason = "the names are those of RFC 9113")]
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
}

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// One of [`kind`].
    pub kind: u8,
    /// Some of [`flag`].
    pub flags: u8,
    /// The stream that it is for; 0 is the connection.
    pub stream: u32,
    /// What is in it.
    pub payload: Vec<u8>,
}

impl Frame {
    /// A frame, as it is sent.
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// Its bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }
}

/// What came of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was answered.
    Answer {
        /// The status.
        status: u16,
        /// The body.
        body: Vec<u8>,
    },
    /// The server has ended it, with this code.
    Reset(u32),
    /// The server has ended the connection, with this code if it gave one.
    Closed(Option<u32>),
}

impl Outcome {
    /// The status, or 0 if there was no answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Answer { status, .. } => *status,
            _ => 0,
        }
    }
}

/// A connection with a server, or with a client.
pub struct Http2 {
    stream: TcpStream,
    rest: Vec<u8>,
    /// What a GOAWAY has said.
    goaway: Option<u32>,
    /// Frames of streams that nobody has asked for yet.
    kept: VecDeque<Frame>,
}

impl Http2 {
    /// Connects and says so. Nothing is compressed with what came before, so that single frames can be read.
    pub fn connect(to: SocketAddr) -> Self {
        Self::connect_with(to, &[])
    }

    /// The same, with further settings.
    pub fn connect_with(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let mut client = Self::over(TcpStream::connect(to).unwrap());
        client.send_bytes(PREFACE);
        client.settle(settings);
        client
    }

    /// Takes a connection, as a server.
    pub fn accept(listener: &TcpListener) -> Self {
        let mut server = Self::over(listener.accept().unwrap().0);
        while server.rest.len() < PREFACE.len() {
            server.fill().unwrap();
        }
        assert!(server.rest.starts_with(PREFACE), "{:?} is no HTTP/2", server.rest.escape_ascii());
        server.rest.drain(..PREFACE.len());
        server.settle(&[]);
        server
    }

    fn over(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, rest: Vec::new(), goaway: None, kept: VecDeque::new() }
    }

    fn settle(&mut self, settings: &[(u16, u32)]) {
        const HEADER_TABLE_SIZE: u16 = 1;
        let all = [&[(HEADER_TABLE_SIZE, 0)], settings].concat();
        let payload: Vec<u8> = all
            .iter()
            .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()[..]].concat())
            .collect();
        self.send(&Frame::new(kind::SETTINGS, 0, 0, payload));
    }

    /// The connection itself.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends these bytes. A server that has closed the connection is no failure.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends a frame. False if the connection is closed.
    pub fn send(&mut self, frame: &Frame) -> bool {
        self.send_bytes(&frame.bytes())
    }

    /// Begins a stream.
    pub fn ask(&mut self, stream: u32, fields: &[(&str, &str)], is_all: bool) -> bool {
        self.send(&headers(stream, fields, is_all))
    }

    /// A GET and what comes of it.
    pub fn get(&mut self, stream: u32, path: &str) -> Outcome {
        self.ask(stream, &request("GET", path), true);
        self.outcome(stream)
    }

    /// The next frame. Settings and pings are answered.
    pub fn frame(&mut self) -> io::Result<Frame> {
        while self.rest.len() < 9 {
            self.fill()?;
        }
        let length = self.rest[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        while self.rest.len() < 9 + length {
            self.fill()?;
        }
        let rest = self.rest.split_off(9 + length);
        let bytes = std::mem::replace(&mut self.rest, rest);
        let frame = Frame::new(bytes[3], bytes[4], number(&bytes[5..9]), &bytes[9..]);
        match frame.kind {
            kind::SETTINGS | kind::PING if frame.flags & flag::ACK == 0 => {
                let payload = if frame.kind == kind::PING { frame.payload.clone() } else { Vec::new() };
                self.send(&Frame::new(frame.kind, flag::ACK, 0, payload));
            }
            kind::GOAWAY => self.goaway = Some(number(&frame.payload[4..8])),
            _ => {}
        }
        Ok(frame)
    }

    /// Reads until a stream has ended. Windows are kept open, and what comes of other streams is kept for whoever asks.
    pub fn outcome(&mut self, stream: u32) -> Outcome {
        let (mut status, mut body) = (0, Vec::new());
        loop {
            let kept = self.kept.iter().position(|frame| frame.stream == stream);
            let frame = match kept.and_then(|at| self.kept.remove(at)).map_or_else(|| self.frame(), Ok) {
                Ok(frame) => frame,
                Err(error) if is_late(&error) => panic!("stream {stream} has neither an answer nor an end"),
                Err(_) => return Outcome::Closed(self.goaway),
            };
            if frame.stream != stream {
                if frame.stream > 0 {
                    self.kept.push_back(frame);
                }
                continue;
            }
            match frame.kind {
                kind::HEADERS if status == 0 => status = status_of(&frame.payload),
                kind::DATA => {
                    let more = u32::try_from(frame.payload.len()).unwrap().to_be_bytes();
                    if frame.payload.len() > 1000 {
                        self.send(&Frame::new(kind::WINDOW_UPDATE, 0, 0, more));
                        self.send(&Frame::new(kind::WINDOW_UPDATE, 0, stream, more));
                    }
                    body.extend(frame.payload);
                }
                kind::RST_STREAM => return Outcome::Reset(number(&frame.payload)),
                _ => {}
            }
            if matches!(frame.kind, kind::HEADERS | kind::DATA) && frame.flags & flag::END_STREAM != 0 {
                return Outcome::Answer { status, body };
            }
        }
    }

    /// Reads until the server has closed the connection, and returns the code of its GOAWAY. None at the outside: it
    /// has not closed it in time.
    pub fn closes(&mut self, within: Duration) -> Option<Option<u32>> {
        self.stream.set_read_timeout(Some(within)).unwrap();
        let closed = loop {
            match self.frame() {
                Ok(_) => {}
                Err(error) => break (!is_late(&error)).then_some(self.goaway),
            }
        };
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        closed
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                self.rest.extend_from_slice(&buffer[..read]);
                Ok(())
            }
        }
    }
}

fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// The fields that every request has.
pub fn request<'r>(method: &'r str, path: &'r str) -> Vec<(&'r str, &'r str)> {
    vec![(":method", method), (":scheme", "http"), (":authority", "test"), (":path", path)]
}

/// A frame that begins a stream.
pub fn headers(stream: u32, fields: &[(&str, &str)], is_all: bool) -> Frame {
    let flags = flag::END_HEADERS | if is_all { flag::END_STREAM } else { 0 };
    Frame::new(kind::HEADERS, flags, stream, block(fields))
}

/// Fields as HPACK has them: each in full, and not to be remembered.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A length in seven bits, and more if they are not enough.
fn length(block: &mut Vec<u8>, length: usize) {
    match length.checked_sub(127) {
        None => block.push(length as u8),
        Some(mut left) => {
            block.push(127);
            while left >= 128 {
                block.push(left as u8 | 128);
                left >>= 7;
            }
            block.push(left as u8);
        }
    }
}

/// The status at the beginning of an answer's fields. What it can be is little: an entry of the static table, or three
/// digits, plain or in Huffman's code.
fn status_of(block: &[u8]) -> u16 {
    // A new size of the table may stand before it.
    let block = &block[block.iter().take_while(|byte| **byte & 0xe0 == 0x20).count()..];
    match block[0] {
        indexed if indexed & 0x80 != 0 => match indexed & 0x7f {
            8 => 200,
            9 => 204,
            10 => 206,
            11 => 304,
            12 => 400,
            13 => 404,
            14 => 500,
            other => panic!("entry {other} of the table is no status"),
        },
        named => {
            assert!([0x08, 0x18, 0x48].contains(&named), "{block:?} does not begin with a status");
            let (is_huffman, length) = (block[1] & 0x80 != 0, usize::from(block[1] & 0x7f));
            let value = &block[2..2 + length];
            let digits = if is_huffman { digits_of(value) } else { value.to_vec() };
            String::from_utf8(digits).unwrap().parse().unwrap()
        }
    }
}

/// Digits in Huffman's code: 0, 1 and 2 have five bits, the others six.
fn digits_of(code: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = code.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1)).collect();
    let value = |bits: &[u8]| bits.iter().fold(0, |value, bit| value << 1 | bit);
    let (mut digits, mut rest) = (Vec::new(), bits.as_slice());
    while rest.len() >= 5 {
        match value(&rest[..5]) {
            small @ 0..=2 => {
                digits.push(b'0' + small);
                rest = &rest[5..];
            }
            _ if rest.len() >= 6 && (25..=31).contains(&value(&rest[..6])) => {
                digits.push(b'3' + value(&rest[..6]) - 25);
                rest = &rest[6..];
            }
            _ => break,
        }
    }
    digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_read_in_each_of_their_forms() {
        assert_eq!(status_of(&[0x88]), 200);
        assert_eq!(status_of(&[0x20, 0x8d]), 404);
        assert_eq!(status_of(b"\x08\x03302"), 302);
        // The examples of RFC 7541, C.6, and one with padding.
        assert_eq!(status_of(&[0x48, 0x82, 0x64, 0x02]), 302);
        assert_eq!(status_of(&[0x48, 0x83, 0x64, 0x0e, 0xff]), 307);
    }

    #[test]
    fn lengths_go_on_where_seven_bits_are_not_enough() {
        for (text, expected) in [(10, vec![10]), (127, vec![127, 0]), (1337 + 127, vec![127, 0xb9, 0x0a])] {
            let mut block = Vec::new();
            length(&mut block, text);
            assert_eq!(block, expected);
        }
    }
}
