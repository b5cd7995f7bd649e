//! A relay between a proxy and a server, which keeps a copy of all bytes in both directions.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::http::{Message, is_bodiless_response, message};

#[derive(Default)]
struct Tape {
    to_server: Vec<u8>,
    from_server: Vec<u8>,
    /// Whether one of the two has closed the connection.
    is_closed: bool,
}

pub(super) struct Relay {
    pub(super) address: SocketAddr,
    tapes: Arc<Mutex<Vec<Arc<Mutex<Tape>>>>>,
}

/// What went over one connection between proxy and server.
#[derive(Debug)]
pub(super) struct Exchanged {
    pub(super) requests: Vec<Message>,
    pub(super) responses: Vec<Message>,
}

impl Relay {
    pub(super) fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tapes = Arc::<Mutex<Vec<Arc<Mutex<Tape>>>>>::default();
        let kept = Arc::clone(&tapes);
        std::thread::spawn(move || {
            for proxy in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let tape = Arc::<Mutex<Tape>>::default();
                kept.lock().unwrap().push(Arc::clone(&tape));
                let (from, to) = (proxy.try_clone().unwrap(), server.try_clone().unwrap());
                let requests = Arc::clone(&tape);
                std::thread::spawn(move || copy(from, to, &requests, |tape| &mut tape.to_server));
                std::thread::spawn(move || copy(server, proxy, &tape, |tape| &mut tape.from_server));
            }
        });
        Self { address, tapes }
    }

    /// Waits until every whole request has its response, and takes what was exchanged since the last call.
    pub(super) fn take(&self) -> Vec<Exchanged> {
        let begun = Instant::now();
        while !self.is_quiet() && begun.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut all = Vec::new();
        self.tapes.lock().unwrap().retain(|tape| {
            let mut tape = tape.lock().unwrap();
            let (requests, used) = requests(&tape.to_server);
            let are_head: Vec<bool> =
                requests.iter().map(|request| request.line.starts_with("HEAD ")).collect();
            let (responses, answered) = responses(&tape.from_server, &are_head);
            tape.to_server.drain(..used);
            tape.from_server.drain(..answered);
            if !requests.is_empty() || !responses.is_empty() {
                all.push(Exchanged { requests, responses });
            }
            !tape.is_closed
        });
        all
    }

    fn is_quiet(&self) -> bool {
        self.tapes.lock().unwrap().iter().all(|tape| {
            let tape = tape.lock().unwrap();
            let (requests, used) = requests(&tape.to_server);
            let (responses, _) = responses(&tape.from_server, &vec![false; requests.len()]);
            tape.is_closed || (used == tape.to_server.len() && responses.len() >= requests.len())
        })
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, tape: &Mutex<Tape>, side: fn(&mut Tape) -> &mut Vec<u8>) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        side(&mut tape.lock().unwrap()).extend_from_slice(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    tape.lock().unwrap().is_closed = true;
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// Whole requests, and how many bytes they take.
fn requests(bytes: &[u8]) -> (Vec<Message>, usize) {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some((request, used)) =
        message(&bytes[at..], |_| false).filter(|(request, _)| request.is_complete)
    {
        at += used;
        all.push(request);
    }
    (all, at)
}

/// Responses to requests, of which this says which are HEAD, and how many bytes they take.
fn responses(bytes: &[u8], are_head: &[bool]) -> (Vec<Message>, usize) {
    let (mut all, mut at): (Vec<Message>, usize) = (Vec::new(), 0);
    let is_head = |known: usize, response: &Message| {
        response.header("x-seen").is_some() || are_head.get(known).copied().unwrap_or(false)
    };
    while let Some((response, used)) =
        message(&bytes[at..], |response| is_bodiless_response(response, is_head(all.len(), response)))
    {
        at += used;
        if response.status() != 100 {
            all.push(response);
        }
    }
    (all, at)
}
