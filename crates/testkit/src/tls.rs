//! A server that is reached over TLS.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::{Flavour, RedisServer, free_port};

/// A Redis server with a port for TLS, a certificate for `localhost` and 127.0.0.1, and a certificate authority of its
/// own.
#[derive(Debug)]
pub struct TlsServer {
    /// The server itself, which has a plain port too, for the test's own commands.
    pub server: RedisServer,
    port: u16,
    ca: PathBuf,
    client_certificate: PathBuf,
    client_key: PathBuf,
}

impl TlsServer {
    /// A server that asks its clients for no certificate.
    pub fn start() -> Self {
        Self::start_with("no")
    }

    /// A server that turns away clients without a certificate of its authority.
    pub fn start_for_certified_clients() -> Self {
        Self::start_with("yes")
    }

    fn start_with(auth_clients: &str) -> Self {
        let mut server = RedisServer::prepare(Flavour::Redis);
        let authority = authority();
        let ca = server.dir.join("ca.pem");
        fs::write(&ca, authority.pem()).expect("a file for the authority");
        let (certificate, key) =
            write_certified(&server.dir, "server", &authority, ExtendedKeyUsagePurpose::ServerAuth);
        let (client_certificate, client_key) =
            write_certified(&server.dir, "client", &authority, ExtendedKeyUsagePurpose::ClientAuth);
        let port = free_port();
        server.arguments = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", certificate.display().to_string()),
            ("--tls-key-file", key.display().to_string()),
            ("--tls-ca-cert-file", ca.display().to_string()),
            ("--tls-auth-clients", auth_clients.to_owned()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
        server.restart();
        Self { server, port, ca, client_certificate, client_key }
    }

    /// The port that speaks TLS.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address of that port.
    pub fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }

    /// The certificate of the authority, as a PEM file.
    pub fn ca(&self) -> &Path {
        &self.ca
    }

    /// A certificate for a client, as a PEM file.
    pub fn client_certificate(&self) -> &Path {
        &self.client_certificate
    }

    /// The key to the client's certificate, as a PEM file.
    pub fn client_key(&self) -> &Path {
        &self.client_key
    }
}

/// Files in a folder: `ca.pem`, and `server` and `client`, each with `.pem` and `.key`. Certificates are for `localhost`
/// and 127.0.0.1, and that of the client has a common name besides.
pub struct Certificates {
    authority: CertifiedIssuer<'static, KeyPair>,
}

impl Certificates {
    /// Writes them.
    pub fn write(dir: &Path) -> Self {
        let authority = authority();
        fs::write(dir.join("ca.pem"), authority.pem()).expect("a file for the authority");
        write_certified(dir, "server", &authority, ExtendedKeyUsagePurpose::ServerAuth);
        write_certified(dir, "client", &authority, ExtendedKeyUsagePurpose::ClientAuth);
        Self { authority }
    }

    /// Writes one for a server that has signed it itself, in the way in which openssl does it: as an authority.
    pub fn write_self_signed(dir: &Path, name: &str) {
        let mut wish =
            CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("plain names");
        wish.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = wish.self_signed(&key).expect("a certificate");
        fs::write(dir.join(format!("{name}.pem")), certificate.pem()).expect("a file for the certificate");
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).expect("a file for the key");
    }

    /// Writes another one for a client, by whose name alone it is known.
    pub fn write_client(&self, dir: &Path, name: &str) {
        let mut wish = CertificateParams::default();
        wish.distinguished_name = rcgen::DistinguishedName::new();
        wish.distinguished_name.push(DnType::CommonName, name);
        sign(dir, name, wish, &self.authority, ExtendedKeyUsagePurpose::ClientAuth);
    }
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut wish = CertificateParams::default();
    wish.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    wish.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    wish.distinguished_name.push(DnType::CommonName, "Tollgate's tests");
    CertifiedIssuer::self_signed(wish, KeyPair::generate().expect("a key")).expect("an authority")
}

/// Writes a certificate and its key, and says where they are.
fn write_certified(
    dir: &Path,
    name: &str,
    authority: &CertifiedIssuer<'_, KeyPair>,
    purpose: ExtendedKeyUsagePurpose,
) -> (PathBuf, PathBuf) {
    let mut wish =
        CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("plain names");
    wish.distinguished_name.push(DnType::CommonName, name);
    sign(dir, name, wish, authority, purpose)
}

fn sign(
    dir: &Path,
    name: &str,
    mut wish: CertificateParams,
    authority: &CertifiedIssuer<'_, KeyPair>,
    purpose: ExtendedKeyUsagePurpose,
) -> (PathBuf, PathBuf) {
    wish.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    wish.extended_key_usages = vec![purpose];
    wish.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate().expect("a key");
    let certificate = wish.signed_by(&key, authority).expect("a certificate");
    let paths = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
    fs::write(&paths.0, certificate.pem()).expect("a file for the certificate");
    fs::write(&paths.1, key.serialize_pem()).expect("a file for the key");
    paths
}
