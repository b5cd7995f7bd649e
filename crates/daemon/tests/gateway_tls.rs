//! TLS on both sides of the gateway: with clients, by certificates if need be, and with servers.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::convert::Infallible;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use crate::common::{BINARY, OPEN, pattern, trusting};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Collected, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tollgate_testkit::http::{Client, Upstream, connect_narrow, listen_narrow};
use tollgate_testkit::{Certificates, Tollgate, wait_until};

fn certificates(folder: &Path, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(folder.join(format!("{name}.pem"))).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
    (chain.map(Result::unwrap).collect(), key)
}

/// A connection over TLS, with a certificate of this name if there is one.
async fn connect(
    tollgate: &Tollgate,
    protocol: &str,
    certificate: Option<&str>,
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_over(TcpStream::connect(tollgate.gateway).await?, tollgate, protocol, certificate).await
}

async fn connect_over(
    stream: TcpStream,
    tollgate: &Tollgate,
    protocol: &str,
    certificate: Option<&str>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let builder = trusting(tollgate.folder());
    let mut config = match certificate {
        None => builder.with_no_client_auth(),
        Some(name) => {
            let (chain, key) = certificates(tollgate.folder(), name);
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The answer over HTTP/1.1.
async fn ask_http1(stream: TlsStream<TcpStream>) -> hyper::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender
        .send_request(Request::get("/").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap())
        .await
}

fn start(policy: &str, upstream: &Upstream, prepare: impl FnOnce(&Path)) -> Tollgate {
    Tollgate::start_in(BINARY, policy, &["--upstream", &upstream.url()], &[], prepare)
}

fn write_certificates(folder: &Path) {
    Certificates::write(folder);
}

const TLS: &str = "gateway: { tls: { certificate: server.pem, key: server.key } }\nlimiters: {}\n";

#[tokio::test]
async fn http1_over_tls() {
    let upstream = Upstream::hello();
    let tollgate = start(TLS, &upstream, write_certificates);
    let stream = connect(&tollgate, "http/1.1", None).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = ask_http1(stream).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_11));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(upstream.last().header("x-forwarded-proto"), ["https"]);
}

#[tokio::test]
async fn http2_over_tls_as_both_have_agreed() {
    let upstream = Upstream::hello();
    let tollgate = start(TLS, &upstream, write_certificates);
    let stream = connect(&tollgate, "h2", None).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("https://localhost/").body(Empty::<Bytes>::new()).unwrap();
    let answer = sender.send_request(request).await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.version()), (200, Version::HTTP_2));
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello");
    assert_eq!(upstream.last().header("x-forwarded-proto"), ["https"]);
}

#[tokio::test]
async fn who_speaks_no_tls_is_told_to_or_gets_no_answer_and_others_do() {
    let upstream = Upstream::hello();
    let tollgate = start(TLS, &upstream, write_certificates);
    let answer = tollgate.get("/", &[]);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("TLS is spoken here: ask with https."), "{}", answer.text());
    let mut garbage = tollgate.client();
    garbage.send("what?");
    assert!(garbage.try_read(false).is_err());
    assert!(upstream.received().is_empty());
    tollgate.says("a client did not come to terms over TLS");
    let stream = connect(&tollgate, "http/1.1", None).await.unwrap();
    assert_eq!(ask_http1(stream).await.unwrap().status(), 200);
}

#[tokio::test]
async fn callers_are_told_apart_by_their_certificates() {
    let upstream = Upstream::hello();
    let policy = "
gateway: { tls: { certificate: server.pem, key: server.key, client_ca: ca.pem } }
identify: { caller: [tls] }
limiters: { one: { rate: 1/h, per: caller } }
";
    let tollgate = start(policy, &upstream, |folder| {
        let certificates = Certificates::write(folder);
        certificates.write_client(folder, "alice");
        certificates.write_client(folder, "bob");
    });
    for (name, status) in [("alice", 200), ("alice", 429), ("bob", 200), ("bob", 429), ("client", 200)] {
        let stream = connect(&tollgate, "http/1.1", Some(name)).await.unwrap();
        assert_eq!(ask_http1(stream).await.unwrap().status(), status, "{name}");
    }
}

#[tokio::test]
async fn without_a_certificate_of_the_authority_nobody_comes_in() {
    let upstream = Upstream::hello();
    let policy =
        "gateway: { tls: { certificate: server.pem, key: server.key, client_ca: ca.pem } }\nlimiters: {}\n";
    let tollgate = start(policy, &upstream, |folder| {
        let strange = folder.join("strange");
        std::fs::create_dir_all(&strange).unwrap();
        Certificates::write(&strange).write_client(&strange, "mallory");
        for file in ["mallory.pem", "mallory.key"] {
            std::fs::copy(strange.join(file), folder.join(file)).unwrap();
        }
        Certificates::write(folder);
    });
    for name in [None, Some("mallory")] {
        // Refused in the handshake, or with the first bytes behind it.
        let asked = async { ask_http1(connect(&tollgate, "http/1.1", name).await.ok()?).await.ok() };
        assert!(asked.await.is_none(), "{name:?}");
    }
    assert!(upstream.received().is_empty());
    let stream = connect(&tollgate, "http/1.1", Some("client")).await.unwrap();
    assert_eq!(ask_http1(stream).await.unwrap().status(), 200);
}

/// A server that is reached over TLS and says which HTTP it was spoken to.
async fn secure_server(folder: &Path, protocols: &[&str]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    secure_server_that(folder, protocols, listener, |request| async move {
        Bytes::from(format!("{:?}", request.version()))
    })
}

/// One that answers as it is told.
fn secure_server_that<A: Future<Output = Bytes> + Send + 'static>(
    folder: &Path,
    protocols: &[&str],
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> A + Clone + Send + 'static,
) -> SocketAddr {
    let (chain, key) = certificates(folder, "server");
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, answer) = (acceptor.clone(), answer.clone());
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = service_fn(move |request: Request<Incoming>| {
                    let answered = answer(request);
                    async { Ok::<_, Infallible>(Response::new(Full::new(answered.await))) }
                });
                let io = TokioIo::new(stream);
                if is_http2 {
                    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(io, service).await;
                } else {
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                }
            });
        }
    });
    address
}

/// Asks without stopping the runtime, in which the server is.
async fn ask_plainly(tollgate: &Tollgate, headers: &'static [(&'static str, &'static str)]) -> (u16, String) {
    let address = tollgate.gateway;
    let asked = tokio::task::spawn_blocking(move || {
        let answer = Client::connect(address).get("/", headers);
        (answer.status, answer.text())
    });
    asked.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_over_tls_is_asked_if_its_certificate_is_trusted() {
    let folder = std::env::temp_dir().join(format!("tollgate-test-{}-secure", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    Certificates::write(&folder);
    let ca = folder.join("ca.pem").display().to_string();
    for (protocols, spoken) in
        [(&["h2", "http/1.1"][..], "HTTP/2.0"), (&["http/1.1"], "HTTP/1.1"), (&[], "HTTP/1.1")]
    {
        let server = format!("https://localhost:{}", secure_server(&folder, protocols).await.port());
        let flags = ["--upstream", server.as_str()];
        let trusting = Tollgate::start_in(BINARY, OPEN, &flags, &[("SSL_CERT_FILE", &ca)], |_| ());
        for time in 0..3 {
            let answer = ask_plainly(&trusting, &[]).await;
            assert_eq!(answer, (200, spoken.to_owned()), "{protocols:?}, time {time}");
        }
        // What only HTTP/1.1 can do is asked for in that.
        let upgrade = ask_plainly(&trusting, &[("connection", "upgrade"), ("upgrade", "chat")]).await;
        assert_eq!(upgrade, (200, "HTTP/1.1".to_owned()), "{protocols:?}");
        let doubting = Tollgate::start(BINARY, OPEN, &flags);
        assert_eq!(ask_plainly(&doubting, &[]).await.0, 502);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_show_a_certificate_of_the_authority_that_their_upstream_names() {
    let folder = std::env::temp_dir().join(format!("tollgate-test-{}-authority", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    Certificates::write(&folder);
    let server = secure_server(&folder, &["http/1.1"]).await.port();
    let policy = format!(
        "gateway: {{ upstreams: {{ all: {{ servers: 'https://localhost:{server}', ca: ca.pem }} }} }}\nlimiters: {{}}\n"
    );
    let tollgate = Tollgate::start_in(BINARY, &policy, &[], &[], |own| {
        // Of another authority, for now.
        Certificates::write(own);
    });
    assert_eq!(ask_plainly(&tollgate, &[]).await.0, 502);
    std::fs::copy(folder.join("ca.pem"), tollgate.folder().join("ca.pem")).unwrap();
    tollgate.says("the policy was loaded");
    assert_eq!(ask_plainly(&tollgate, &[]).await, (200, "HTTP/1.1".to_owned()));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_signed_its_own_certificate_is_trusted_if_the_policy_has_that_certificate() {
    let folder = std::env::temp_dir().join(format!("tollgate-test-{}-itself", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (host, status) in [("localhost", 200), ("127.0.0.2", 502)] {
        Certificates::write_self_signed(&folder, "server");
        let server = secure_server(&folder, &["http/1.1"]).await.port();
        let policy = format!(
            "gateway: {{ upstreams: {{ all: {{ servers: 'https://{host}:{server}', ca: ca.pem }} }} }}\nlimiters: {{}}\n"
        );
        let start = |ca: &Path| {
            Tollgate::start_in(BINARY, &policy, &[], &[], |own| {
                std::fs::copy(ca, own.join("ca.pem")).unwrap();
            })
        };
        let tollgate = start(&folder.join("server.pem"));
        assert_eq!(ask_plainly(&tollgate, &[]).await.0, status, "{host}");
        // Another one of the same name is another.
        Certificates::write_self_signed(&folder, "other");
        let tollgate = start(&folder.join("other.pem"));
        assert_eq!(ask_plainly(&tollgate, &[]).await.0, 502);
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A body in chunks, as large as a gateway passes them on.
fn in_chunks(body: &[u8]) -> Vec<u8> {
    let chunk = |some: &[u8]| [format!("{:x}\r\n", some.len()).as_bytes(), some, b"\r\n"].concat();
    [body.chunks(60_000).flat_map(chunk).collect(), b"0\r\n\r\n".to_vec()].concat()
}

#[tokio::test]
async fn a_large_answer_in_chunks_keeps_every_byte_for_a_client_that_takes_little_at_a_time() {
    let body = pattern(8 << 20);
    let answer =
        [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", in_chunks(&body).as_slice()].concat();
    let upstream = Upstream::start(move |_, stream| stream.write_all(&answer).is_ok());
    let tollgate = start(TLS, &upstream, write_certificates);
    let stream = connect_narrow(tollgate.gateway);
    stream.set_nonblocking(true).unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    let stream = connect_over(stream, &tollgate, "http/1.1", None).await.unwrap();
    let answer = ask_http1(stream).await.unwrap();
    assert_eq!(answer.headers()["transfer-encoding"], "chunked");
    assert!(answer.into_body().collect().await.unwrap().to_bytes() == body, "the client got something else");
}

/// A gateway in front of a server over TLS that reads nothing until it is let, takes little at a time then, and answers with
/// what it got.
fn in_front_of_a_slow_server(may_read: &Arc<Semaphore>) -> Tollgate {
    let listener = listen_narrow();
    listener.set_nonblocking(true).unwrap();
    let policy = format!(
        "gateway: {{ upstreams: {{ all: {{ servers: 'https://localhost:{}', ca: ca.pem }} }} }}\nlimiters: {{}}\n",
        listener.local_addr().unwrap().port()
    );
    Tollgate::start_in(BINARY, &policy, &[], &[], |folder| {
        write_certificates(folder);
        let (listener, may_read) = (TcpListener::from_std(listener).unwrap(), Arc::clone(may_read));
        secure_server_that(folder, &["http/1.1"], listener, move |request| {
            let may_read = Arc::clone(&may_read);
            async move {
                may_read.acquire().await.unwrap().forget();
                // What is no HTTP has no body, and the test sees that.
                request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default()
            }
        });
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_request_in_chunks_keeps_every_byte_for_a_server_that_is_slow() {
    let may_read = Arc::new(Semaphore::new(0));
    let tollgate = in_front_of_a_slow_server(&may_read);
    let body = pattern(8 << 20);
    let mut client = tollgate.client();
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n");
    let (first, rest) = body.split_at(1 << 20);
    let chunks = in_chunks(first);
    client.send(chunks.strip_suffix(b"0\r\n\r\n").unwrap());
    may_read.add_permits(1);
    client.send(in_chunks(rest));
    let answer = client.read();
    assert_eq!(answer.status, 200);
    assert!(answer.body == body, "the server got something else");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_request_reaches_a_server_that_reads_late() {
    let may_read = Arc::new(Semaphore::new(0));
    let tollgate = in_front_of_a_slow_server(&may_read);
    // Among them are some of which only the end is held back.
    let clients: Vec<_> = (1..=30)
        .map(|part| {
            let body = pattern(part * 20_000);
            let mut client = tollgate.client();
            client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", body.len()));
            client.send(&body);
            (client, body)
        })
        .collect();
    may_read.add_permits(clients.len());
    for (mut client, body) in clients {
        let length = body.len();
        let answer =
            client.try_read(false).unwrap_or_else(|error| panic!("{length} bytes did not come: {error}"));
        assert_eq!((answer.status, answer.body.len()), (200, length));
        assert!(answer.body == body, "the server got something else");
    }
}

/// The certificate that the gateway shows, if it is of the authority in its folder.
fn shown(runtime: &tokio::runtime::Runtime, tollgate: &Tollgate) -> Option<CertificateDer<'static>> {
    let stream = runtime.block_on(connect(tollgate, "http/1.1", None)).ok()?;
    stream.get_ref().1.peer_certificates()?.first().map(|certificate| certificate.clone().into_owned())
}

#[test]
fn certificates_that_are_renewed_are_shown_though_the_policy_is_as_it_was() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let upstream = Upstream::hello();
    let policy = "gateway: { tls: { certificate: certs/server.pem, key: certs/server.key } }\nlimiters: {}\n";
    let write = |folder: &Path| {
        std::fs::create_dir_all(folder.join("certs")).unwrap();
        write_certificates(&folder.join("certs"));
        std::fs::copy(folder.join("certs/ca.pem"), folder.join("ca.pem")).unwrap();
    };
    let tollgate = start(policy, &upstream, write);
    let first = shown(&runtime, &tollgate).unwrap();
    // One that is half written, or of no use, changes nothing.
    std::fs::write(tollgate.folder().join("certs/server.pem"), "-----BEGIN").unwrap();
    tollgate.says("the one before it goes on");
    assert_eq!(shown(&runtime, &tollgate), Some(first));
    write(tollgate.folder());
    wait_until("the new one is shown", || shown(&runtime, &tollgate).is_some());
    // The same if somebody asks for it.
    write(tollgate.folder());
    tollgate.signal("HUP");
    wait_until("the newest is shown", || shown(&runtime, &tollgate).is_some());
}
