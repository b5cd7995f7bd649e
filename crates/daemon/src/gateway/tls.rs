//! TLS, with clients and with servers.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme, WantsVerifier,
};
use tokio_rustls::TlsAcceptor;
use tollgate_core::policy::{Gateway, GatewayTls};

fn wrong(file: &Path, what: &str, error: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}: {error}", file.display()))
}

fn certificates(file: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = read.map_err(|error| wrong(file, "certificates cannot be read (PEM)", error))?;
    match chain.is_empty() {
        true => Err(wrong(file, "certificates cannot be read (PEM)", "there is none in it")),
        false => Ok(chain),
    }
}

/// All that a policy has in files for TLS, read before it is put to work. Files are looked for beside the policy's own.
#[derive(Default)]
pub(crate) struct Certificates {
    /// With clients, if it is spoken with them.
    pub(super) acceptor: Option<TlsAcceptor>,
    /// Who signs for the servers of each upstream that says so, by its name.
    authorities: HashMap<Arc<str>, Trust>,
}

/// What servers have to show.
#[derive(Clone)]
pub(crate) struct Trust {
    pub(super) config: Arc<ClientConfig>,
    /// Whose signatures count, if not those that this machine trusts.
    authorities: Vec<CertificateDer<'static>>,
}

impl PartialEq for Trust {
    fn eq(&self, other: &Self) -> bool {
        self.authorities == other.authorities
    }
}

impl Certificates {
    pub(crate) fn read(policy: &Gateway, folder: &Path) -> io::Result<Self> {
        let acceptor = policy.tls.as_ref().map(|tls| acceptor(tls, folder)).transpose()?;
        let mut authorities = HashMap::new();
        for upstream in &policy.upstreams {
            if let Some(file) = &upstream.ca {
                authorities.insert(Arc::clone(&upstream.name), Trust::in_file(&folder.join(file))?);
            }
        }
        Ok(Self { acceptor, authorities })
    }

    /// Everything that is wrong with those files.
    pub(crate) fn problems(policy: &Gateway, folder: &Path) -> Vec<io::Error> {
        let clients = policy.tls.iter().filter_map(|tls| acceptor(tls, folder).err());
        let authorities = policy.upstreams.iter().filter_map(|upstream| upstream.ca.as_ref());
        clients.chain(authorities.filter_map(|file| Trust::in_file(&folder.join(file)).err())).collect()
    }

    /// What servers of an upstream have to show.
    pub(super) fn trust<'t>(&'t self, upstream: &str, otherwise: &'t Trust) -> &'t Trust {
        self.authorities.get(upstream).unwrap_or(otherwise)
    }
}

impl Trust {
    /// A certificate of an authority that this machine trusts.
    pub(crate) fn of_machine() -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let config = client_builder()?.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { config: Arc::new(config), authorities: Vec::new() })
    }

    /// A certificate of one of the authorities in a file, or one that is itself in it.
    fn in_file(file: &Path) -> io::Result<Self> {
        let authorities = certificates(file)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(file)?), provider)
            .build()
            .map_err(|error| wrong(file, "of no use for certificates of servers", error))?;
        let verifier = Arc::new(InFile { signed, listed: authorities.clone() });
        let config =
            client_builder()?.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Ok(Self { config: Arc::new(config), authorities })
    }
}

/// Takes certificates that an authority in a file has signed, and those that stand in the file themselves: servers that have
/// signed their own are no authorities, though their certificates may say so.
#[derive(Debug)]
struct InFile {
    signed: Arc<WebPkiServerVerifier>,
    listed: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for InFile {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.signed.verify_server_cert(shown, chain, name, ocsp, now);
        if verified.is_ok() || !self.listed.contains(shown) {
            return verified;
        }
        verify_server_name(&ParsedCertificate::try_from(shown)?, name)?;
        is_valid_at(shown, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls12_signature(message, shown, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.signed.verify_tls13_signature(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

fn is_valid_at(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), CertificateError> {
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let validity = parsed.validity();
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet);
    }
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired);
    }
    Ok(())
}

fn roots(file: &Path) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| wrong(file, "no certificate of an authority", error))?;
    }
    Ok(roots)
}

fn acceptor(policy: &GatewayTls, folder: &Path) -> io::Result<TlsAcceptor> {
    let (certificate, key) = (folder.join(&policy.certificate), folder.join(&policy.key));
    let chain = certificates(&certificate)?;
    let private = PrivateKeyDer::from_pem_file(&key)
        .map_err(|error| wrong(&key, "the private key cannot be read (PEM)", error))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &policy.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let file = folder.join(file);
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(&file)?), provider)
                .build()
                .map_err(|error| wrong(&file, "of no use for certificates of clients", error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| wrong(&certificate, "certificate and key do not fit", error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn client_builder() -> io::Result<ConfigBuilder<ClientConfig, WantsVerifier>> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)
}

/// Whom a certificate is for: the first of its alternative names, or else its common name.
pub(super) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    use x509_parser::extensions::GeneralName;
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let alternative = parsed.subject_alternative_name().ok().flatten().and_then(|names| {
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::URI(name) | GeneralName::DNSName(name) | GeneralName::RFC822Name(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        })
    });
    alternative.or_else(|| parsed.subject().iter_common_name().next()?.as_str().ok().map(str::to_owned))
}
