//! A proxy that can do to a connection what a bad network does.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::free_port;

/// How many pieces of replies a connection may hold back; beyond them the server has to wait.
const MOST_CHUNKS: usize = 1024;

/// A proxy on a port of 127.0.0.1 in front of another. What it does can change at any time, and holds for connections
/// already open as for new ones.
///
/// It runs on threads of its own, whatever the test's runtime does. A connection that finds nobody behind the proxy is
/// cut. Dropping the proxy cuts all of them.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Behaviour {
    Pass,
    Delay(Duration),
    DelayOneIn(u64, Duration),
    DropOneIn(u64),
    CutRepliesAfter(usize),
    BlackHole,
    BlackHoleNext,
    DropReplies,
    Refuse,
    Rewrite { from: Vec<u8>, to: Vec<u8> },
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    /// Counts the changes of behaviour.
    era: usize,
    /// Pieces of replies that have come, over all connections.
    pieces: u64,
    has_ended: bool,
    accepted: usize,
    connections: HashMap<usize, Arc<Connection>>,
}

#[derive(Debug)]
struct Connection {
    client: TcpStream,
    server: TcpStream,
    client_has_left: AtomicBool,
    is_cut: AtomicBool,
    is_black_hole: AtomicBool,
}

struct Chunk {
    arrived: Instant,
    bytes: Vec<u8>,
}

impl Proxy {
    /// A proxy that passes everything on to a port of 127.0.0.1.
    pub fn in_front_of(server: u16) -> Self {
        let port = free_port();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("a port for the proxy");
        let state = State {
            behaviour: Behaviour::Pass,
            era: 0,
            pieces: 0,
            has_ended: false,
            accepted: 0,
            connections: HashMap::new(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let accepting = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener, SocketAddr::from((Ipv4Addr::LOCALHOST, server)))
        });
        Self { port, shared, accepting: Some(accepting) }
    }

    /// The port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address, for a Redis server behind it.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Passes everything on, as at the start.
    pub fn pass(&self) {
        self.shared.behave(Behaviour::Pass);
    }

    /// Holds back each piece of a reply that long.
    pub fn delay(&self, time: Duration) {
        self.shared.behave(Behaviour::Delay(time));
    }

    /// Holds back one in so many pieces of replies that long, and with it what comes behind it on the same connection.
    pub fn delay_one_in(&self, pieces: u64, time: Duration) {
        self.shared.behave(Behaviour::DelayOneIn(pieces, time));
    }

    /// Swallows one in so many pieces of replies.
    pub fn drop_one_in(&self, pieces: u64) {
        self.shared.behave(Behaviour::DropOneIn(pieces));
    }

    /// Cuts each connection, with a reset, once that many further bytes of reply have passed. With 0, the first reply
    /// cuts it and is lost.
    pub fn cut_replies_after(&self, bytes: usize) {
        self.shared.behave(Behaviour::CutRepliesAfter(bytes));
    }

    /// Swallows requests and replies and closes nothing.
    pub fn black_hole(&self) {
        self.shared.behave(Behaviour::BlackHole);
    }

    /// Swallows what comes over the connection that sends the next request, for as long as it is open. The others go on.
    pub fn black_hole_next(&self) {
        self.shared.behave(Behaviour::BlackHoleNext);
    }

    /// Passes requests on and swallows the replies.
    pub fn drop_replies(&self) {
        self.shared.behave(Behaviour::DropReplies);
    }

    /// Resets new connections at once; those already open go on.
    pub fn refuse(&self) {
        self.shared.behave(Behaviour::Refuse);
    }

    /// Replaces bytes in replies by as many others, also where the pieces of a reply divide them. Bytes at the end of
    /// a piece that may begin `from` wait for the next piece.
    pub fn rewrite(&self, from: &[u8], to: &[u8]) {
        assert!(!from.is_empty() && from.len() == to.len(), "a reply keeps its length");
        self.shared.behave(Behaviour::Rewrite { from: from.to_vec(), to: to.to_vec() });
    }

    /// Cuts the open connections with a reset, before it returns.
    pub fn cut(&self) {
        let state = self.shared.lock();
        let ids: Vec<_> = state.connections.keys().copied().collect();
        state.connections.values().for_each(|connection| connection.cut());
        self.shared.changed.notify_all();
        let are_open = |state: &mut State| ids.iter().any(|id| state.connections.contains_key(id));
        drop(self.shared.changed.wait_while(state, are_open).expect("no thread of a proxy panics"));
    }

    /// How many connections it has accepted so far, those that it reset at once among them.
    pub fn connections(&self) -> usize {
        self.shared.lock().accepted
    }

    /// How many connections are open now: neither closed by the client nor cut nor closed by the server.
    pub fn open(&self) -> usize {
        let state = self.shared.lock();
        state.connections.values().filter(|connection| connection.is_open()).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        // Wakes the thread that accepts.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        self.cut();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of a proxy panics")
    }

    fn behave(&self, behaviour: Behaviour) {
        let mut state = self.lock();
        state.behaviour = behaviour;
        state.era += 1;
        self.changed.notify_all();
    }

    fn accept(self: Arc<Self>, listener: &TcpListener, server: SocketAddr) {
        for client in listener.incoming() {
            if self.lock().has_ended {
                return;
            }
            let Ok(client) = client else { continue };
            let refuses = {
                let mut state = self.lock();
                state.accepted += 1;
                state.behaviour == Behaviour::Refuse
            };
            let connected = if refuses {
                Err(ErrorKind::ConnectionRefused.into())
            } else {
                TcpStream::connect_timeout(&server, Duration::from_secs(5))
            };
            match connected {
                Ok(server) => self.open(Connection::new(client, server)),
                Err(_) => reset_when_closed(&client),
            }
        }
    }

    fn open(self: &Arc<Self>, connection: Connection) {
        let connection = Arc::new(connection);
        let mut state = self.lock();
        let id = state.accepted;
        state.connections.insert(id, Arc::clone(&connection));
        let shared = Arc::clone(self);
        thread::spawn(move || {
            shared.serve(&connection);
            // The last one to hold the connection closes it, and whoever waits for that finds it done.
            drop(connection);
            shared.lock().connections.remove(&id);
            shared.changed.notify_all();
        });
    }

    fn serve(&self, connection: &Connection) {
        let (sender, replies) = sync_channel(MOST_CHUNKS);
        thread::scope(|scope| {
            scope.spawn(|| self.carry_requests(connection));
            let reading = scope.spawn(move || connection.read_replies(&sender));
            let _ = self.carry_replies(connection, replies);
            self.wait_while(|state| state.behaviour == Behaviour::BlackHole && connection.is_open());
            let _ = connection.server.shutdown(Shutdown::Both);
            let has_closed = reading.join().is_ok_and(|read| read.is_ok());
            if has_closed && !connection.is_cut() {
                let _ = connection.client.shutdown(Shutdown::Both);
            } else {
                connection.cut();
            }
        });
    }

    fn carry_requests(&self, connection: &Connection) {
        let mut buffer = [0; 16 * 1024];
        let how = loop {
            match (&connection.client).read(&mut buffer) {
                Ok(0) => break Shutdown::Write,
                Err(_) => break Shutdown::Both,
                Ok(_) if self.swallows_requests(connection) => {}
                Ok(length) => {
                    if (&connection.server).write_all(&buffer[..length]).is_err() {
                        break Shutdown::Both;
                    }
                }
            }
        };
        let state = self.lock();
        connection.client_has_left.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
        let _ = connection.server.shutdown(how);
    }

    fn swallows_requests(&self, connection: &Connection) -> bool {
        let mut state = self.lock();
        if state.behaviour == Behaviour::BlackHoleNext {
            state.behaviour = Behaviour::Pass;
            connection.is_black_hole.store(true, Ordering::Relaxed);
        }
        state.behaviour == Behaviour::BlackHole || connection.is_black_hole.load(Ordering::Relaxed)
    }

    fn carry_replies(&self, connection: &Connection, replies: Receiver<Chunk>) -> Result<()> {
        let mut counted = (0, 0);
        let mut held = Vec::new();
        for Chunk { arrived, mut bytes } in replies {
            let (era, behaviour) = self.when_due(arrived, connection);
            held.append(&mut bytes);
            let mut bytes = std::mem::take(&mut held);
            match behaviour {
                Behaviour::Pass | Behaviour::Delay(_) | Behaviour::Refuse | Behaviour::BlackHoleNext => {
                    connection.reply(&bytes)?;
                }
                Behaviour::BlackHole | Behaviour::DropReplies => {}
                Behaviour::DelayOneIn(pieces, time) => {
                    if self.is_one_in(pieces) {
                        thread::sleep(time.saturating_sub(arrived.elapsed()));
                    }
                    connection.reply(&bytes)?;
                }
                Behaviour::DropOneIn(pieces) => {
                    if !self.is_one_in(pieces) {
                        connection.reply(&bytes)?;
                    }
                }
                Behaviour::Rewrite { from, to } => {
                    held = rewrite(&mut bytes, &from, &to);
                    connection.reply(&bytes)?;
                }
                Behaviour::CutRepliesAfter(limit) => {
                    let passed = if counted.0 == era { counted.1 } else { 0 };
                    let rest = limit - passed;
                    if bytes.len() >= rest {
                        connection.reply(&bytes[..rest])?;
                        connection.cut();
                        return Ok(());
                    }
                    connection.reply(&bytes)?;
                    counted = (era, passed + bytes.len());
                }
            }
        }
        connection.reply(&held)
    }

    /// Whether a piece of a reply is the one of so many that something is done with.
    fn is_one_in(&self, pieces: u64) -> bool {
        let mut state = self.lock();
        state.pieces += 1;
        state.pieces.is_multiple_of(pieces)
    }

    /// What to do with what arrived then, once its delay is over.
    fn when_due(&self, arrived: Instant, connection: &Connection) -> (usize, Behaviour) {
        let mut state = self.lock();
        loop {
            let left = match state.behaviour {
                Behaviour::Delay(time) if !connection.is_cut() => time.checked_sub(arrived.elapsed()),
                _ => None,
            };
            let Some(left) = left.filter(|left| !left.is_zero()) else {
                return (state.era, state.behaviour.clone());
            };
            state = self.changed.wait_timeout(state, left).expect("no thread of a proxy panics").0;
        }
    }

    fn wait_while(&self, holds: impl Fn(&State) -> bool) {
        let state = self.lock();
        drop(self.changed.wait_while(state, |state| holds(state)).expect("no thread of a proxy panics"));
    }
}

impl Connection {
    fn new(client: TcpStream, server: TcpStream) -> Self {
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("a socket takes this option");
        }
        // A client that does not read must not keep a thread from noticing the end.
        client.set_write_timeout(Some(Duration::from_millis(50))).expect("a socket takes this option");
        Self {
            client,
            server,
            client_has_left: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
            is_black_hole: AtomicBool::new(false),
        }
    }

    fn is_open(&self) -> bool {
        !self.client_has_left.load(Ordering::Relaxed) && !self.is_cut()
    }

    fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    /// Ends the threads' reading, which leads to the socket being closed. The client is told nothing before that.
    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        reset_when_closed(&self.client);
        let _ = self.client.shutdown(Shutdown::Read);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    fn read_replies(&self, chunks: &SyncSender<Chunk>) -> Result<()> {
        let mut buffer = [0; 16 * 1024];
        loop {
            let length = (&self.server).read(&mut buffer)?;
            let chunk = Chunk { arrived: Instant::now(), bytes: buffer[..length].to_vec() };
            if length == 0 || chunks.send(chunk).is_err() {
                return Ok(());
            }
        }
    }

    fn reply(&self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && !self.is_cut() {
            match (&self.client).write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn reset_when_closed(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

/// Replaces what it finds, and takes off the end what may be the beginning of more.
fn rewrite(bytes: &mut Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut at = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            at += to.len();
        } else {
            at += 1;
        }
    }
    let end = (at..bytes.len()).find(|start| from.starts_with(&bytes[*start..])).unwrap_or(bytes.len());
    bytes.split_off(end)
}
