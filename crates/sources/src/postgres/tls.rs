//! TLS to a server, as libpq's `sslmode` asks for it.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::config::{Config, SslMode};

/// A connector that verifies as much as the `sslmode` of `config` says.
///
/// # Errors
/// What is wrong with the authorities to trust.
pub(super) fn connector(config: &Config) -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let root = config.ssl_root.as_deref();
    let verifier: Arc<dyn ServerCertVerifier> = match config.ssl_mode {
        // libpq verifies under `require` only when it was given an authority.
        SslMode::Disable | SslMode::Prefer => Arc::new(Encrypted { provider: provider.clone(), chain: None }),
        SslMode::Require if root.is_none() => Arc::new(Encrypted { provider: provider.clone(), chain: None }),
        SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
            let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(root)?), provider.clone())
                .build()
                .map_err(|e| e.to_string())?;
            match config.ssl_mode {
                SslMode::VerifyFull => chain,
                _ => Arc::new(Encrypted { provider: provider.clone(), chain: Some(chain) }),
            }
        }
    };
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(client)))
}

fn roots(file: Option<&Path>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(path) => {
            let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| fail(&e))? {
                roots.add(certificate.map_err(|e| fail(&e))?).map_err(|e| fail(&e))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    if roots.is_empty() {
        return Err("there is no certificate authority to verify the server with; give sslrootcert".into());
    }
    Ok(roots)
}

/// Verifies less than TLS usually does: no host name and, without a chain, no
/// certificate. It keeps listeners out, not impostors, as libpq documents.
#[derive(Debug)]
struct Encrypted {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Encrypted {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The chain is verified before the name is.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name).is_err() => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
