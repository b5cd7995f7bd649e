//! What the tests of the gateway share.
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
use tollgate_testkit::http::{Client, Upstream};
use tollgate_testkit::{RedisServer, Tollgate, wait_until};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tollgate");

/// Limits nothing.
pub(crate) const OPEN: &str = "limiters: {}\n";

/// Bytes that are all different from their neighbours, and that no two places share by chance.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// TLS for a client that trusts the authority in this folder.
pub(crate) fn trusting(folder: &Path) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
}

/// A gateway in front of a server.
pub(crate) fn gateway(policy: &str, upstream: &Upstream) -> Tollgate {
    Tollgate::start(BINARY, policy, &["--upstream", &upstream.url()])
}

/// The `store` of a policy whose decisions are Redis's own, however busy the machine is: at the usual deadline a
/// call that comes late is decided without it.
pub(crate) fn patient_store(redis: &RedisServer) -> String {
    format!("store: {{ url: '{}', secret: 0123456789abcdef, deadline: 10s }}\n", redis.url())
}

/// Until the store is asked: before that each node decides alone.
pub(crate) fn await_store(tollgate: &Tollgate) {
    wait_until("the store is used", || {
        let answer = tollgate.ask_admin("GET", "/readyz", "");
        answer.status == 200 && answer.text().starts_with("ready\n")
    });
}

/// Sends a GET and does not wait for the answer.
pub(crate) fn begin(tollgate: &Tollgate, path: &str, headers: &[(&str, &str)]) -> Client {
    let mut client = tollgate.client();
    let fields: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
    client
}

/// Runs a command of the binary to its end: what it says on both streams, and its exit code.
pub(crate) fn command(arguments: &[&str]) -> (String, Option<i32>) {
    let Output { status, stdout, stderr } = Command::new(BINARY).args(arguments).output().unwrap();
    (String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned(), status.code())
}
