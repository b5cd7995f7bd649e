//! TLS, with clients and with servers.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;
use tollgate_core::policy::GatewayTls;

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

/// TLS as the policy has it. Files are looked for beside the policy's own.
pub(crate) fn acceptor(policy: &GatewayTls, folder: &Path) -> io::Result<TlsAcceptor> {
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
            let mut roots = RootCertStore::empty();
            for certificate in certificates(&file)? {
                roots
                    .add(certificate)
                    .map_err(|error| wrong(&file, "no certificate of an authority", error))?;
            }
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
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

/// What servers have to show: a certificate of an authority that this machine trusts.
pub(crate) fn client_config() -> io::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
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
