//! HTTP/1.1 by hand, for tests that must know every byte: a client that sends what it is told, and a server that
//! remembers what it was sent.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

/// How long a client waits before a test has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection with a server.
pub struct Client {
    stream: TcpStream,
    /// What was read and belongs to the next answer.
    rest: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// Its status.
    pub status: u16,
    /// Its headers, with names in small letters.
    pub headers: Vec<(String, String)>,
    /// Its body, without chunks.
    pub body: Vec<u8>,
    /// What came behind the last chunk.
    pub trailers: Vec<(String, String)>,
}

impl Response {
    /// The value of a header, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Client {
    /// Connects, or fails the test.
    pub fn connect(to: SocketAddr) -> Self {
        Self::try_connect(to).unwrap_or_else(|error| panic!("no connection with {to}: {error}"))
    }

    /// Connects, if anybody is there.
    pub fn try_connect(to: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, rest: Vec::new() })
    }

    /// The connection itself.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Sends these bytes and no others.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a request and reads its answer.
    pub fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Response {
        self.try_ask(method, path, headers, body).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// The same, for those who expect that it may fail.
    pub fn try_ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Response> {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("host: {}\r\n", self.stream.peer_addr()?);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("content-length: {}\r\n", body.len());
        }
        head += "\r\n";
        self.stream.write_all(&[head.as_bytes(), body].concat())?;
        self.try_read(method == "HEAD")
    }

    /// A GET.
    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Response {
        self.ask("GET", path, headers, b"")
    }

    /// A GET that may fail.
    pub fn try_get(&mut self, path: &str, headers: &[(&str, &str)]) -> io::Result<Response> {
        self.try_ask("GET", path, headers, b"")
    }

    /// The next answer.
    pub fn read(&mut self) -> Response {
        self.try_read(false).unwrap_or_else(|error| panic!("no answer: {error}"))
    }

    /// The head of the next answer; its body is left for [`read_some`](Self::read_some).
    pub fn read_head(&mut self) -> Response {
        let head = self.take_until(b"\r\n\r\n").unwrap();
        response_of(&head)
    }

    /// What has come, as it comes; nothing at the end.
    pub fn read_some(&mut self) -> Vec<u8> {
        if !self.rest.is_empty() {
            return std::mem::take(&mut self.rest);
        }
        let mut buffer = vec![0; 65_536];
        let read = self.stream.read(&mut buffer).unwrap_or(0);
        buffer.truncate(read);
        buffer
    }

    /// All up to these bytes, and these.
    pub fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        self.take_until(end).unwrap_or_else(|error| panic!("{:?} did not come: {error}", end.escape_ascii()))
    }

    /// So many bytes.
    pub fn read_exactly(&mut self, bytes: usize) -> Vec<u8> {
        self.take(bytes).unwrap_or_else(|error| panic!("{bytes} bytes did not come: {error}"))
    }

    /// The next answer, if there is one.
    pub fn try_read(&mut self, is_head: bool) -> io::Result<Response> {
        loop {
            let head = self.take_until(b"\r\n\r\n")?;
            let mut response = response_of(&head);
            // Informational responses are not the answer; 101 is.
            if (100..200).contains(&response.status) && response.status != 101 {
                continue;
            }
            let length = response.header("content-length").parse::<usize>().ok();
            if is_head || response.status == 204 || response.status == 304 || response.status == 101 {
                return Ok(response);
            }
            if response.header("transfer-encoding").contains("chunked") {
                loop {
                    let line = self.take_until(b"\r\n")?;
                    let line = String::from_utf8_lossy(&line).trim().to_owned();
                    let size = usize::from_str_radix(line.split(';').next().unwrap_or_default(), 16)
                        .map_err(|_| io::Error::other(format!("{line:?} is no size of a chunk")))?;
                    if size == 0 {
                        break;
                    }
                    let chunk = self.take(size + 2)?;
                    response.body.extend_from_slice(&chunk[..size]);
                }
                loop {
                    let line = self.take_until(b"\r\n")?;
                    if line == b"\r\n" {
                        break;
                    }
                    response.trailers.extend(field(&String::from_utf8_lossy(&line)));
                }
            } else if let Some(length) = length {
                response.body = self.take(length)?;
            } else {
                while let Ok(()) = self.fill() {}
                response.body = std::mem::take(&mut self.rest);
            }
            return Ok(response);
        }
    }

    /// Whether the other side has closed the connection; anything that comes before is read.
    pub fn is_closed(&mut self, within: Duration) -> bool {
        self.stream.set_read_timeout(Some(within)).unwrap();
        let mut buffer = [0; 4096];
        let closed = loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break true,
                Ok(read) => self.rest.extend_from_slice(&buffer[..read]),
                Err(error) => {
                    break !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
                }
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

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.rest.len() < bytes {
            self.fill()?;
        }
        let rest = self.rest.split_off(bytes);
        Ok(std::mem::replace(&mut self.rest, rest))
    }

    fn take_until(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        loop {
            if let Some(at) = self.rest.windows(end.len()).position(|some| some == end) {
                return self.take(at + end.len());
            }
            self.fill()?;
        }
    }
}

fn field(line: &str) -> Option<(String, String)> {
    let (name, value) = line.trim_end().split_once(':')?;
    Some((name.to_ascii_lowercase(), value.trim().to_owned()))
}

fn response_of(head: &[u8]) -> Response {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    Response { status, headers: lines.filter_map(field).collect(), ..Response::default() }
}

/// A request as a server got it.
#[derive(Clone, Debug, Default)]
pub struct Received {
    /// The first line, to the byte.
    pub line: String,
    /// Headers, with names in small letters.
    pub headers: Vec<(String, String)>,
    /// The body, without chunks.
    pub body: Vec<u8>,
    /// What came behind the last chunk.
    pub trailers: Vec<(String, String)>,
}

impl Received {
    /// All values of a header, as they came.
    pub fn header(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
    }

    /// The path, without the query.
    pub fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default()
    }
}

/// An answer for everybody.
const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// Has a connection reset when it is closed: the other side gets an error, and not an end.
pub fn reset_when_closed(stream: &TcpStream) {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// A socket through which little goes at a time: whoever sends more than is read has to keep it.
fn narrow() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    // The other side's buffer grows with it.
    socket.set_tcp_mss(1000).unwrap();
    socket
}

/// Connects, and takes little at a time.
pub fn connect_narrow(to: SocketAddr) -> TcpStream {
    let socket = narrow();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.into()
}

/// For servers that take little at a time.
pub fn listen_narrow() -> TcpListener {
    let socket = narrow();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(64).unwrap();
    socket.into()
}

/// A server that nobody gets a connection with: as many wait for it as may.
pub struct Full {
    /// Where it is.
    pub address: SocketAddr,
    _kept: Vec<Socket>,
}

impl Full {
    /// Starts it.
    pub fn start() -> Self {
        let server = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        server.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        server.listen(0).unwrap();
        let address = server.local_addr().unwrap();
        let waiting = (0..4).map(|_| {
            let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&address);
            client
        });
        let mut kept: Vec<Socket> = waiting.collect();
        kept.push(server);
        Self { address: address.as_socket().unwrap(), _kept: kept }
    }
}

/// What a server does with a request: it has the connection for itself. False closes it.
type Handler = dyn Fn(&Received, &mut TcpStream) -> bool + Send + Sync;

/// A server behind the gateway, which remembers what it was sent.
pub struct Upstream {
    /// Where it is.
    pub address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<AtomicUsize>,
}

impl Upstream {
    /// One that says hello to everybody.
    pub fn hello() -> Self {
        Self::start(|_, stream| stream.write_all(HELLO).is_ok())
    }

    /// One that answers as it is told.
    pub fn start(handler: impl Fn(&Received, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        Self::listen(move |stream, kept| serve(stream, &handler, kept))
    }

    /// One that says hello as soon as a gate lets it.
    pub fn hello_through(gate: &Gate) -> Self {
        let gate = gate.clone();
        Self::start(move |_, stream| {
            gate.pass();
            stream.write_all(HELLO).is_ok()
        })
    }

    /// One whose connections are served by hand: the head is read, and the rest is up to the test. It remembers
    /// nothing but heads.
    pub fn by_hand(serve: impl Fn(Received, Client) + Send + Sync + 'static) -> Self {
        Self::listen(move |stream, kept| {
            let mut client = Client { stream, rest: Vec::new() };
            let Ok(head) = client.take_until(b"\r\n\r\n") else { return };
            let received = received_of(&head);
            kept.lock().unwrap().push(received.clone());
            serve(received, client);
        })
    }

    fn listen(serve: impl Fn(TcpStream, &Mutex<Vec<Received>>) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (received, connections) = (Arc::<Mutex<Vec<Received>>>::default(), Arc::<AtomicUsize>::default());
        let serve = Arc::new(serve);
        let (kept, counted) = (Arc::clone(&received), Arc::clone(&connections));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let _ = stream.set_nodelay(true);
                counted.fetch_add(1, Ordering::SeqCst);
                let (serve, kept) = (Arc::clone(&serve), Arc::clone(&kept));
                std::thread::spawn(move || serve(stream, &kept));
            }
        });
        Self { address, received, connections }
    }

    /// Its address, as a policy has it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// The last request.
    pub fn last(&self) -> Received {
        self.received().pop().expect("nothing was received")
    }

    /// Connections that were made.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn received_of(head: &[u8]) -> Received {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or_default().to_owned();
    Received { line, headers: lines.filter_map(field).collect(), ..Received::default() }
}

/// Holds up whoever comes until the test lets them through.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<usize>, Condvar)>);

impl Gate {
    /// Lets so many through, now or when they come.
    pub fn let_through(&self, count: usize) {
        let (open_for, changed) = &*self.0;
        *open_for.lock().unwrap() += count;
        changed.notify_all();
    }

    /// Waits to be let through.
    pub fn pass(&self) {
        let (open_for, changed) = &*self.0;
        let mut open_for = changed.wait_while(open_for.lock().unwrap(), |open_for| *open_for == 0).unwrap();
        *open_for -= 1;
    }
}

fn serve(stream: TcpStream, handler: &Handler, kept: &Mutex<Vec<Received>>) {
    let Ok(mut answers) = stream.try_clone() else { return };
    let mut client = Client { stream, rest: Vec::new() };
    loop {
        let Ok(head) = client.take_until(b"\r\n\r\n") else { return };
        let mut received = received_of(&head);
        let length = received.header("content-length").first().and_then(|length| length.parse().ok());
        let is_chunked = !received.header("transfer-encoding").is_empty();
        let body = if is_chunked {
            let mut body = Vec::new();
            loop {
                let Ok(line) = client.take_until(b"\r\n") else { return };
                let Ok(size) = usize::from_str_radix(String::from_utf8_lossy(&line).trim(), 16) else {
                    return;
                };
                if size == 0 {
                    break;
                }
                let Ok(chunk) = client.take(size + 2) else { return };
                body.extend_from_slice(&chunk[..size]);
            }
            loop {
                let Ok(line) = client.take_until(b"\r\n") else { return };
                if line == b"\r\n" {
                    break Ok(body);
                }
                received.trailers.extend(field(&String::from_utf8_lossy(&line)));
            }
        } else {
            client.take(length.unwrap_or(0))
        };
        let Ok(body) = body else { return };
        received.body = body;
        kept.lock().unwrap().push(received.clone());
        if !handler(&received, &mut answers) {
            return;
        }
    }
}
