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
        return Err(fail(path, "no certificate in it"));
    }
    Ok(certificates)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A server that shows the chain in one PEM file, with the key in another.
///
/// # Errors
/// When a file can't be read or the key does not belong to the certificate.
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

/// A client that trusts these authorities.
///
/// # Errors
/// When there are none.
pub fn client(roots: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Arc<ClientConfig>> {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots);
    if store.is_empty() {
        return Err(TransportError::Tls("no authority to trust".into()));
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| TransportError::Tls(e.to_string()))?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A client that trusts the authorities in a PEM file.
///
/// # Errors
/// When the file can't be read.
pub fn client_with_authority(path: &Path) -> Result<Arc<ClientConfig>> {
    client(certificates(path)?)
}
