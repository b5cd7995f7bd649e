//! HTTP/2 through the gateway: without TLS, by prior knowledge; and gRPC to a real server behind it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that cannot set itself up fails")]
#![allow(clippy::disallowed_methods, reason = "real servers live in real time")]

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::{BINARY, OPEN, begin, gateway, pattern};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tollgate_testkit::http::{Client, Gate, Upstream};
use tollgate_testkit::http2::{Frame, Http2, flag, headers, kind, request};
use tollgate_testkit::{Tollgate, free_port};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

async fn connect(to: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = TcpStream::connect(to).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn get(to: SocketAddr, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://{to}{path}")).body(Full::default()).unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A server that answers with the path that it was asked for.
fn parrot() -> Upstream {
    Upstream::start(|received, stream| {
        let path = received.path();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
        std::io::Write::write_all(stream, answer.as_bytes()).is_ok()
    })
}

#[tokio::test]
async fn many_streams_on_one_connection_each_get_their_own_answer() {
    let upstream = parrot();
    let tollgate = gateway(OPEN, &upstream);
    let sender = connect(tollgate.gateway).await;
    let mut asked = tokio::task::JoinSet::new();
    for number in 0..500 {
        let (mut sender, to) = (sender.clone(), tollgate.gateway);
        asked.spawn(async move {
            sender.ready().await.unwrap();
            let response = sender.send_request(get(to, &format!("/{number}"))).await.unwrap();
            assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_2));
            assert_eq!(text(response).await, format!("/{number}"));
        });
    }
    while let Some(asked) = asked.join_next().await {
        asked.unwrap();
    }
    assert_eq!(upstream.received().len(), 500);
    let last = upstream.last();
    assert_eq!(last.header("host"), [tollgate.gateway.to_string()]);
    assert_eq!(last.header("x-forwarded-for"), ["127.0.0.1"]);
}

#[tokio::test]
async fn a_stream_that_is_given_up_gives_its_slot_back_and_harms_no_other() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let tollgate = gateway("limiters: { few: { concurrency: 1, per: global } }", &upstream);
    let mut sender = connect(tollgate.gateway).await;
    let given_up = sender.send_request(get(tollgate.gateway, "/slow"));
    assert!(tokio::time::timeout(Duration::from_millis(300), given_up).await.is_err());
    gate.let_through(1000);
    let mut status = 429;
    while status == 429 {
        status = sender.send_request(get(tollgate.gateway, "/")).await.unwrap().status().as_u16();
    }
    assert_eq!(status, 200);
}

#[tokio::test]
async fn refusals_of_one_stream_do_not_end_the_connection() {
    let upstream = parrot();
    let tollgate = gateway("limiters: { one: { rate: 1/h, burst: 3, per: global } }", &upstream);
    let mut sender = connect(tollgate.gateway).await;
    let mut statuses = Vec::new();
    for _ in 0..6 {
        statuses.push(sender.send_request(get(tollgate.gateway, "/")).await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429, 429]);
}

#[tokio::test]
async fn streams_in_progress_are_served_to_the_end() {
    let gate = Gate::default();
    let upstream = Upstream::hello_through(&gate);
    let mut tollgate = gateway(OPEN, &upstream);
    let mut sender = connect(tollgate.gateway).await;
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..10 {
        sender.ready().await.unwrap();
        let answer = sender.send_request(get(tollgate.gateway, "/slow"));
        asked.spawn(async move { text(answer.await.unwrap()).await });
    }
    while upstream.received().len() < 10 {
        tokio::task::yield_now().await;
    }
    tollgate.signal("TERM");
    tollgate.says("ending: no more connections are taken");
    gate.let_through(1000);
    while let Some(answer) = asked.join_next().await {
        assert_eq!(answer.unwrap(), "hello");
    }
    assert!(tollgate.ends(Duration::from_secs(20)));
    tollgate.says("ended; every request was answered");
}

#[tokio::test]
async fn cookies_in_pieces_are_one_line_for_http1() {
    let upstream = parrot();
    let tollgate = gateway("gateway: { add_headers: via }\nlimiters: {}\n", &upstream);
    let mut sender = connect(tollgate.gateway).await;
    let mut request = get(tollgate.gateway, "/?q=1");
    request.headers_mut().append("cookie", "a=1".parse().unwrap());
    request.headers_mut().append("cookie", "b=2".parse().unwrap());
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    assert_eq!(upstream.last().header("cookie"), ["a=1; b=2"]);
    assert_eq!(upstream.last().line, "GET /?q=1 HTTP/1.1");
    assert_eq!(upstream.last().header("via"), ["2.0 tollgate"]);
}

#[tokio::test]
async fn a_large_body_keeps_every_byte_over_http2() {
    let upstream = Upstream::start(|received, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", received.body.len());
        std::io::Write::write_all(stream, &[head.as_bytes(), &received.body].concat()).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut sender = connect(tollgate.gateway).await;
    let body = pattern(8 << 20);
    let request = Request::post(format!("http://{}/", tollgate.gateway));
    let request = request.body(Full::new(Bytes::from(body.clone()))).unwrap();
    let answer = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
    assert!(answer == body, "the answer is not what was sent");
}

/// A gRPC server that is well, and ill under one name.
async fn grpc() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("shop", ServingStatus::Serving).await;
    tokio::spawn(Server::builder().add_service(health).serve_with_incoming(TcpIncoming::from(listener)));
    address
}

fn asked(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

async fn client_of(tollgate: &Tollgate) -> HealthClient<Channel> {
    let channel = Channel::from_shared(format!("http://{}", tollgate.gateway)).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

#[tokio::test]
async fn grpc_comes_through_with_its_trailers() {
    let upstream = format!("http://{}", grpc().await);
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream]);
    let mut client = client_of(&tollgate).await;
    let answer = client.check(asked("shop")).await.unwrap().into_inner();
    assert_eq!(answer.status, 1);
    // An error of the service, which it tells in trailers.
    let error = client.check(asked("unknown")).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::NotFound);
    // And an answer in pieces, which goes on.
    let mut watched = client.watch(asked("shop")).await.unwrap().into_inner();
    assert_eq!(watched.message().await.unwrap().unwrap().status, 1);
}

#[tokio::test]
async fn grpc_trailers_are_there_to_the_letter() {
    let upstream = format!("http://{}", grpc().await);
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream]);
    let mut sender = connect(tollgate.gateway).await;
    let request = Request::post(format!("http://{}/grpc.health.v1.Health/Check", tollgate.gateway))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    // One message: not packed, six bytes long, with the service's name.
    let request = request.body(Full::new(Bytes::from_static(b"\0\0\0\0\x06\x0a\x04shop"))).unwrap();
    let whole = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), b"\0\0\0\0\x02\x08\x01"[..]);
}

#[tokio::test]
async fn a_refused_grpc_call_is_told_in_the_words_of_grpc() {
    let upstream = format!("http://{}", grpc().await);
    let policy = "limiters: { one: { rate: 1/h, burst: 2, per: global } }";
    let tollgate = Tollgate::start(BINARY, policy, &["--upstream", &upstream]);
    let mut client = client_of(&tollgate).await;
    assert!(client.check(asked("shop")).await.is_ok());
    assert!(client.check(asked("shop")).await.is_ok());
    let refused = client.check(asked("shop")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted, "{refused:?}");
}

/// A client that was told that its upload is refused, and is still sending it: on stream 3.
fn refused_upload() -> (Tollgate, Http2) {
    let tollgate = gateway("limiters: { one: { rate: 1/h, burst: 1, per: global } }", &parrot());
    let mut client = Http2::connect(tollgate.gateway);
    assert_eq!(client.get(1, "/").status(), 200);
    client.ask(3, &request("POST", "/upload"), false);
    assert_eq!(client.outcome(3).status(), 429);
    (tollgate, client)
}

#[test]
fn a_refused_upload_is_taken_to_its_end_lest_the_answer_is_taken_for_lost() {
    let (_tollgate, mut client) = refused_upload();
    for part in 0..12 {
        let flags = if part == 11 { flag::END_STREAM } else { 0 };
        client.send(&Frame::new(kind::DATA, flags, 3, [7; 16 << 10]));
    }
    client.ask(5, &request("GET", "/"), true);
    let is_told = |frame: &Frame| (frame.stream, frame.kind) == (5, kind::HEADERS);
    let frames = std::iter::repeat_with(|| client.frame().unwrap());
    let reset = frames.take_while(|frame| !is_told(frame)).find(|frame| frame.kind == kind::RST_STREAM);
    assert_eq!(reset, None);
}

#[test]
fn a_refused_upload_that_does_not_go_on_is_ended() {
    let (_tollgate, mut client) = refused_upload();
    let mut frames = std::iter::repeat_with(|| client.frame().unwrap());
    let reset = frames.find(|frame| frame.kind == kind::RST_STREAM).unwrap();
    let no_error = [0; 4];
    assert_eq!((reset.stream, &reset.payload[..]), (3, &no_error[..]));
}

#[tokio::test]
async fn an_unreachable_grpc_server_is_unavailable() {
    let upstream = format!("http://127.0.0.1:{}", free_port());
    let tollgate = Tollgate::start(BINARY, OPEN, &["--upstream", &upstream]);
    let mut client = client_of(&tollgate).await;
    assert_eq!(client.check(asked("shop")).await.unwrap_err().code(), tonic::Code::Unavailable);
}

#[tokio::test]
async fn grpc_for_browsers_goes_on_over_http1() {
    let upstream = parrot();
    let tollgate = gateway(OPEN, &upstream);
    for kind in ["application/grpc-web+proto", "application/grpcx"] {
        let answer = tollgate.get("/shop.Shop/Buy", &[("content-type", kind)]);
        assert_eq!((answer.status, answer.text().as_str()), (200, "/shop.Shop/Buy"), "{kind}");
    }
}

/// A gateway in front of a server that wants HTTP/2. It does not wait long for bodies.
fn in_front_of_http2(server: SocketAddr) -> Tollgate {
    let policy = format!(
        "gateway: {{ timeouts: {{ body: 1s }}, upstreams: {{ api: {{ servers: ['http://{server}'], protocol: http2 }} }} }}\nlimiters: {{}}\n"
    );
    Tollgate::start(BINARY, &policy, &[])
}

#[tokio::test]
async fn a_server_that_wants_http2_gets_it_from_clients_of_http1() {
    let tollgate = in_front_of_http2(grpc().await);
    let stream = TcpStream::connect(tollgate.gateway).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/nothing").header("host", "a").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    // Tonic's word for a method that it does not know.
    assert_eq!(response.headers()["grpc-status"], "12");
}

/// A server of HTTP/2 that answers with the target that it was asked for, and with `Host` if there was one.
async fn targets() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: Request<Incoming>| async move {
                let host = request.headers().get("host").map(|host| format!(" {host:?}"));
                let target = format!("{}{}", request.uri(), host.unwrap_or_default());
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(target))))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test]
async fn a_request_that_is_tried_elsewhere_keeps_its_host() {
    let (gone, here) = (free_port(), targets().await);
    let policy = format!(
        "gateway: {{ upstreams: {{ api: {{ servers: ['http://127.0.0.1:{gone}', 'http://{here}'], protocol: http2 }} }} }}\nlimiters: {{}}\n"
    );
    let tollgate = Tollgate::start(BINARY, &policy, &[]);
    let mut sender = connect(tollgate.gateway).await;
    for _ in 0..4 {
        let request = Request::get("http://shop.example.com/").body(Full::default()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(text(response).await, "http://shop.example.com/");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_http2_cannot_name_changes_nothing_in_the_path() {
    let here = targets().await;
    let tollgate = in_front_of_http2(here);
    for (host, target) in [
        ("a", "http://a/secret/path?q=1"),
        ("a%41", "/secret/path?q=1 \"a%41\""),
        ("[", "/secret/path?q=1 \"[\""),
    ] {
        let answer = tollgate.get("/secret/path?q=1", &[("host", host)]);
        assert_eq!((answer.status, answer.text()), (200, target.to_owned()), "{host:?}");
    }
}

/// Found by differential testing against nginx: the server got its own address in the place of the host.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_over_http2_does_not_get_its_address_as_the_host_of_a_request_without_one() {
    let tollgate = in_front_of_http2(targets().await);
    for head in ["GET /x HTTP/1.0\r\n\r\n", "GET /x HTTP/1.0\r\nhost:\r\n\r\n"] {
        let mut client = tollgate.client();
        client.send(head);
        let answer = client.read();
        assert_eq!((answer.status, answer.text()), (200, "/x \"\"".to_owned()), "{head:?}");
    }
}

/// A server of HTTP/2 that answers its first request at once, and in full as soon as the gate lets it, whatever is still to
/// come; and the second at its end. Of that it takes no more than a window until it has heard of the first again. Says what
/// came.
fn hasty(gate: &Gate) -> (SocketAddr, Receiver<Frame>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (came, comes) = channel();
    let gate = gate.clone();
    std::thread::spawn(move || {
        let mut server = Http2::accept(&listener);
        let more = |stream| Frame::new(kind::WINDOW_UPDATE, 0, stream, (1_u32 << 20).to_be_bytes());
        server.send(&more(0));
        let (mut has_second, mut has_first_again) = (false, false);
        while let Ok(frame) = server.frame() {
            let _ = came.send(frame.clone());
            let is_end = frame.flags & flag::END_STREAM != 0;
            match (frame.stream, frame.kind) {
                (1, kind::HEADERS) => {
                    server.send(&headers(1, &[(":status", "200")], false));
                    gate.pass();
                    server.send(&Frame::new(kind::DATA, flag::END_STREAM, 1, "hello"));
                }
                (1, kind::DATA | kind::RST_STREAM) => has_first_again = true,
                (3, kind::HEADERS) => has_second = true,
                (3, kind::DATA) if is_end => {
                    server.send(&headers(3, &[(":status", "204")], true));
                }
                _ => {}
            }
            if has_second && has_first_again {
                (has_second, has_first_again) = (false, false);
                server.send(&more(3));
            }
        }
    });
    (address, comes)
}

/// What a stream has got so far.
fn data_of(stream: u32, frames: &[Frame]) -> Vec<u8> {
    let data = frames.iter().filter(|frame| (frame.stream, frame.kind) == (stream, kind::DATA));
    data.flat_map(|frame| frame.payload.clone()).collect()
}

/// Sends the head of a request, and reads its answer, which comes before the body. Returns what it says of the connection.
fn answered_early(client: &mut Client, length: &str, gate: &Gate) -> String {
    client.send(format!("POST /one HTTP/1.1\r\nhost: a\r\n{length}\r\n\r\n"));
    let head = client.read_head();
    assert_eq!((head.status, head.header("transfer-encoding")), (200, "chunked"));
    gate.let_through(1);
    assert_eq!(client.read_until(b"0\r\n\r\n"), b"5\r\nhello\r\n0\r\n\r\n");
    head.header("connection").to_owned()
}

#[test]
fn a_request_that_was_answered_early_gets_nothing_of_the_next() {
    let gate = Gate::default();
    let (address, frames) = hasty(&gate);
    let tollgate = in_front_of_http2(address);
    let mut client = tollgate.client();
    assert_eq!(answered_early(&mut client, "content-length: 5", &gate), "");
    let second = pattern(200_000);
    client.send(format!("firstPOST /two HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", second.len()));
    client.send(&second);
    assert_eq!(client.read().status, 204);
    let frames: Vec<_> = frames.try_iter().collect();
    let first = data_of(1, &frames);
    assert!(b"first".starts_with(&first), "{} bytes for the first", first.len());
    assert!(data_of(3, &frames) == second, "the second is not what was sent");
    tollgate.comes_to_rest();
}

#[test]
fn who_was_answered_early_is_told_that_the_connection_ends_unless_little_is_left() {
    for length in ["transfer-encoding: chunked", "content-length: 1000000"] {
        let gate = Gate::default();
        let (address, frames) = hasty(&gate);
        let tollgate = in_front_of_http2(address);
        let mut client = tollgate.client();
        assert_eq!(answered_early(&mut client, length, &gate), "close", "{length}");
        client
            .send("5\r\nfirst\r\n0\r\n\r\nPOST /two HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\nsecond");
        assert!(client.is_closed(Duration::from_secs(20)));
        tollgate.comes_to_rest();
        let frames: Vec<_> = frames.try_iter().collect();
        assert!(frames.iter().all(|frame| frame.stream < 3), "{length}: a second request was made");
        assert_eq!(data_of(1, &frames), b"", "{length}");
    }
}

/// A body of so many pieces.
struct Pieces {
    left: usize,
    piece: &'static [u8],
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        let piece = self.piece;
        self.left = match self.left.checked_sub(1) {
            Some(left) => left,
            None => return std::task::Poll::Ready(None),
        };
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(piece)))))
    }
}

/// A server of HTTP/2 that answers `/many/LENGTH` with many pieces of that length, and everything else with a few.
async fn pieces() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: Request<Incoming>| async move {
                let length =
                    request.uri().path().strip_prefix("/many/").map(|length| length.parse().unwrap());
                let body = match length {
                    Some(length) => Pieces { left: 100_000, piece: &[b'x'; 16 << 10][..length] },
                    None => Pieces { left: 5, piece: &[b'y'; 10_000] },
                };
                Ok::<_, std::convert::Infallible>(Response::new(body))
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

/// A gateway of one thread, and so of one connection, in front of a server that wants HTTP/2. It waits long for bodies.
fn patient_in_front_of_http2(server: SocketAddr) -> Tollgate {
    let policy = format!(
        "gateway: {{ timeouts: {{ body: 10min }}, upstreams: {{ api: {{ servers: ['http://{server}'], protocol: http2 }} }} }}\nlimiters: {{}}\n"
    );
    Tollgate::start(BINARY, &policy, &["--threads", "1"])
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_take_nothing_leave_a_server_over_http2_to_others() {
    let tollgate = patient_in_front_of_http2(pieces().await);
    let mut stuck = Vec::new();
    for _ in 0..24 {
        let mut client = tollgate_testkit::http::connect_narrow(tollgate.gateway);
        std::io::Write::write_all(&mut client, b"GET /many/16384 HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        stuck.push(client);
    }
    tollgate.comes_to("tollgate_upstream_requests_in_flight{upstream=\"api\"}", 24.0);
    for _ in 0..20 {
        assert_eq!(tollgate.get("/few", &[]).body.len(), 50_000);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_pieces_that_nobody_takes_do_not_end_the_connection_that_others_use() {
    let tollgate = patient_in_front_of_http2(pieces().await);
    let mut victim = begin(&tollgate, "/many/16384", &[]);
    assert_eq!(victim.read_head().status, 200);
    for length in [1, 10, 40] {
        let mut stuck = tollgate_testkit::http::connect_narrow(tollgate.gateway);
        let head = format!("GET /many/{length} HTTP/1.1\r\nhost: a\r\n\r\n");
        std::io::Write::write_all(&mut stuck, head.as_bytes()).unwrap();
        for _ in 0..200 {
            assert!(!victim.read_some().is_empty());
        }
        assert_eq!(tollgate.get("/few", &[]).body.len(), 50_000);
    }
    assert_eq!(tollgate.metric("tollgate_upstream_failures_total"), 0.0);
}

#[test]
fn who_waits_for_a_connection_that_does_not_come_about_hears_of_it_with_the_others() {
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let policy = format!(
        "gateway: {{ timeouts: {{ connect: 1s }}, upstreams: {{ api: {{ servers: 'https://localhost:{}', protocol: http2 }} }} }}\nlimiters: {{}}\n",
        silent.local_addr().unwrap().port()
    );
    let tollgate = Tollgate::start(BINARY, &policy, &["--threads", "1"]);
    let begun = std::time::Instant::now();
    let mut clients: Vec<Client> = (0..15).map(|_| begin(&tollgate, "/", &[])).collect();
    for client in &mut clients {
        assert_eq!(client.read().status, 502);
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "one after another");
}

#[tokio::test]
async fn what_http1_bears_of_lengths_is_put_right_for_http2() {
    let upstream = Upstream::start(|received, stream| {
        let answer: &[u8] = match received.path() {
            "/twice" => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok",
            _ => b"HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
        };
        std::io::Write::write_all(stream, answer).is_ok()
    });
    let tollgate = gateway(OPEN, &upstream);
    let mut sender = connect(tollgate.gateway).await;
    for (path, lengths, body) in [("/none", 0, ""), ("/twice", 1, "ok")] {
        let response = sender.send_request(get(tollgate.gateway, path)).await.unwrap();
        assert_eq!(response.headers().get_all("content-length").iter().count(), lengths, "{path}");
        assert_eq!(text(response).await, body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_a_hundred_requests_on_a_connection_is_asked_more_on_another() {
    asked_on_more_connections(100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_few_requests_on_a_connection_is_asked_on_many() {
    asked_on_more_connections(7).await;
}

async fn asked_on_more_connections(most: u32) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: Request<Incoming>| async move {
                if request.uri().path() == "/wait" {
                    std::future::pending::<()>().await;
                }
                Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from("hello"))))
            });
            let mut server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            server.max_concurrent_streams(most);
            tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
        }
    });
    let tollgate = patient_in_front_of_http2(address);
    let waiting: Vec<Client> = (0..150).map(|_| begin(&tollgate, "/wait", &[])).collect();
    tollgate.comes_to("tollgate_upstream_requests_in_flight{upstream=\"api\"}", 150.0);
    assert_eq!(tollgate.get("/", &[]).text(), "hello");
    drop(waiting);
    tollgate.comes_to_rest();
    assert_eq!(tollgate.get("/", &[]).text(), "hello");
}

/// A server that turns away the first request of its first connections, each in a way of its own, before it answers with what it was sent.
fn turns_away(ways: Vec<Frame>) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for way in ways.into_iter().map(Some).chain([None]) {
            let mut server = Http2::accept(&listener);
            let (mut body, mut has_ended, mut stream) = (Vec::new(), false, 1);
            while !has_ended {
                let Ok(frame) = server.frame() else { return };
                if matches!(frame.kind, kind::HEADERS | kind::DATA) {
                    (has_ended, stream) = (frame.flags & flag::END_STREAM != 0, frame.stream);
                }
                if frame.kind == kind::DATA {
                    body.extend(frame.payload);
                }
            }
            if let Some(way) = way {
                server.send(&way);
                // One that has begun with something and yet closes the connection never answers.
                if way == breaks() {
                    continue;
                }
            } else {
                server.send(&tollgate_testkit::http2::headers(stream, &[(":status", "200")], false));
                server.send(&Frame::new(kind::DATA, flag::END_STREAM, stream, body));
            }
            kept.push(server);
        }
        std::thread::park();
    });
    address
}

/// What a server closes a connection to has not been begun with, and neither has what it refuses: it says so (RFC 9113, 8.7).
#[test]
fn requests_that_a_server_has_not_begun_with_are_made_again_with_their_bodies() {
    let closes = || Frame::new(kind::GOAWAY, 0, 0, [0; 8]);
    let refuses = || Frame::new(kind::RST_STREAM, 0, 1, 7_u32.to_be_bytes());
    for ways in [vec![closes()], vec![refuses()], vec![closes(), closes(), refuses()]] {
        let tollgate = patient_in_front_of_http2(turns_away(ways));
        let answer =
            tollgate.client().ask("POST", "/", &[("content-type", "text/plain")], b"once and for all");
        assert_eq!((answer.status, answer.text().as_str()), (200, "once and for all"));
        tollgate.comes_to_rest();
    }
}

/// The last stream that the server has begun with is the first one.
fn breaks() -> Frame {
    Frame::new(kind::GOAWAY, 0, 0, [0, 0, 0, 1, 0, 0, 0, 2])
}

/// What may have been begun with is not made again.
#[test]
fn requests_that_a_server_may_have_begun_with_are_made_once() {
    let internal_error = Frame::new(kind::RST_STREAM, 0, 1, 2_u32.to_be_bytes());
    for way in [internal_error, breaks()] {
        let tollgate = patient_in_front_of_http2(turns_away(vec![way]));
        assert_eq!(tollgate.client().ask("POST", "/", &[], b"once").status, 502);
        tollgate.comes_to_rest();
    }
}

/// A client that takes so many bytes each time, until the answer has ended. Returns how much it got.
fn takes_slowly(client: &mut Http2, stream: u32, bytes: u32, pause: Duration) -> usize {
    let mut got = 0;
    loop {
        client.send(&Frame::new(kind::WINDOW_UPDATE, 0, stream, bytes.to_be_bytes()));
        client.send(&Frame::new(kind::WINDOW_UPDATE, 0, 0, bytes.to_be_bytes()));
        std::thread::sleep(pause);
        let mut taken = 0;
        while taken < bytes as usize {
            let Ok(frame) = client.frame() else { return got };
            if frame.stream == stream && frame.kind == kind::DATA {
                (taken, got) = (taken + frame.payload.len(), got + frame.payload.len());
                if frame.flags & flag::END_STREAM != 0 {
                    return got;
                }
            }
        }
    }
}

/// Asks for `/` with a window of nothing.
fn begins_slowly(tollgate: &Tollgate) -> Http2 {
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let mut client = Http2::connect_with(tollgate.gateway, &[(INITIAL_WINDOW_SIZE, 0)]);
    client.ask(1, &tollgate_testkit::http2::request("GET", "/"), true);
    client
}

#[test]
fn who_takes_an_answer_slowly_gets_all_of_it_also_when_the_gateway_ends() {
    let body = pattern(60_000);
    let upstream = Upstream::start(move |_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        std::io::Write::write_all(stream, &[head.as_bytes(), &body].concat()).is_ok()
    });
    let mut tollgate = gateway(OPEN, &upstream);
    let mut client = begins_slowly(&tollgate);
    tollgate.comes_to("tollgate_http_requests_in_flight", 1.0);
    tollgate.signal("TERM");
    tollgate.says("ending: no more connections are taken");
    // The last piece is with HTTP/2 long before the client has taken it.
    assert_eq!(takes_slowly(&mut client, 1, 3_000, Duration::from_millis(250)), 60_000);
    assert!(tollgate.ends(Duration::from_secs(20)));
}

#[test]
fn who_takes_an_answer_steadily_is_not_too_slow_however_large_its_pieces_are() {
    let body = pattern(130_000);
    let upstream = Upstream::start(move |_, stream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        std::io::Write::write_all(stream, &[head.as_bytes(), &body].concat()).is_ok()
    });
    let tollgate = gateway("gateway: { timeouts: { body: 2s } }\nlimiters: {}", &upstream);
    let mut client = begins_slowly(&tollgate);
    // Some 13 KB a second: a piece takes more than a second, and 64 KB take five.
    assert_eq!(takes_slowly(&mut client, 1, 2_600, Duration::from_millis(200)), 130_000);
}

/// Found by a reader: what is asked of the server as a whole was passed on as if it were a file.
#[test]
fn options_of_the_whole_server_are_asked_as_they_are() {
    let upstream = Upstream::hello();
    let tollgate = gateway(OPEN, &upstream);
    let mut client = Http2::connect(tollgate.gateway);
    client.ask(1, &tollgate_testkit::http2::request("OPTIONS", "*"), true);
    assert_eq!(client.outcome(1).status(), 200);
    assert_eq!(upstream.last().line, "OPTIONS * HTTP/1.1");
    // The same over HTTP/1, also by those who take us for a proxy of theirs.
    for (target, line) in [
        ("*", "OPTIONS * HTTP/1.1"),
        ("http://a", "OPTIONS * HTTP/1.1"),
        ("http://a/", "OPTIONS / HTTP/1.1"),
        ("http://a?q=://b", "OPTIONS /?q=://b HTTP/1.1"),
        ("/q://b", "OPTIONS /q://b HTTP/1.1"),
    ] {
        let mut client = tollgate.client();
        client.send(format!("OPTIONS {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(client.read().status, 200, "{target}");
        assert_eq!(upstream.last().line, line, "{target}");
    }
}
