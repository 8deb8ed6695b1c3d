//! TLS to a database server, with a configurable level of verification.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

/// A connection to a server, encrypted or not.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Socket for T {}

/// What is verified about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Nothing: this protects against eavesdroppers, but not against impostors.
    Nothing,
    /// Its certificate, but not its name.
    Authority,
    /// Its certificate and its name.
    Name,
}

/// A connector with this level of verification. It trusts the authorities in `files`, or the system's if
/// there are none.
///
/// # Errors
/// What is wrong with the authorities.
pub(crate) fn connector(verify: Verify, files: &[PathBuf]) -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier: Arc<dyn ServerCertVerifier> = match verify {
        Verify::Nothing => Arc::new(Encrypted { provider: provider.clone(), chain: None }),
        Verify::Authority | Verify::Name => {
            let chain =
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots(files)?), provider.clone())
                    .build()
                    .map_err(|e| e.to_string())?;
            match verify {
                Verify::Name => chain,
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

fn roots(files: &[PathBuf]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for path in files {
        let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
        for certificate in CertificateDer::pem_file_iter(path).map_err(|e| fail(&e))? {
            roots.add(certificate.map_err(|e| fail(&e))?).map_err(|e| fail(&e))?;
        }
    }
    if files.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err(
            "no certificate authority to verify the server; set one in the URI (sslrootcert, ssl_ca)".into(),
        );
    }
    Ok(roots)
}

/// Verifies less than TLS usually does: not the host name and, without a chain,
/// not the certificate.
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
            // The chain is verified before the name.
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
