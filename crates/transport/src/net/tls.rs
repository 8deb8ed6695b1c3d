//! Certificates and keys.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::{Result, TransportError};

fn fail(path: &Path, reason: impl std::fmt::Display) -> TransportError {
    TransportError::Tls(format!("{}: {reason}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let certificates: Vec<_> =
        CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(|e| fail(path, e))?;
    if certificates.is_empty() {
        return Err(fail(path, "contains no certificate"));
    }
    Ok(certificates)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The configuration of a server, with a certificate chain from one PEM file and the key from another.
///
/// # Errors
/// If a file can't be read or the key does not match the certificate.
pub fn server(certificate: &Path, key: &Path) -> Result<Arc<ServerConfig>> {
    let chain = certificates(certificate)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| fail(key, e))?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| TransportError::Tls(e.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|e| fail(certificate, e))?;
    Ok(Arc::new(config))
}

/// The configuration of a client that trusts these certificate authorities.
///
/// # Errors
/// If there are none.
pub fn client(roots: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    if store.is_empty() {
        return Err(TransportError::Tls("no certificate authority to trust".into()));
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| TransportError::Tls(e.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The configuration of a client that trusts the certificate authorities in a PEM file.
///
/// # Errors
/// If the file can't be read.
pub fn client_with_authority(path: &Path) -> Result<Arc<ClientConfig>> {
    client(certificates(path)?)
}
