//! Tokens and TLS.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_flight::sql::client::FlightSqlServiceClient;
use hyper_util::rt::TokioIo;
use lightship_flight::{FlightConfig, FlightServer};
use lightship_transport::net::tls;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use super::{Client, Running, query, status};

fn with_tokens() -> FlightConfig {
    FlightConfig { tokens: vec!["secret".into(), "other".into()], ..FlightConfig::default() }
}

async fn code_of(client: &mut Client) -> Code {
    match query(client, "select * from numbers").await {
        Ok(_) => Code::Ok,
        Err(error) => status(error).code(),
    }
}

#[tokio::test]
async fn requests_need_a_token() {
    let running = Running::new(with_tokens()).await;
    let mut client = running.client().await;
    assert_eq!(code_of(&mut client).await, Code::Unauthenticated);
    client.set_token("wrong".into());
    assert_eq!(code_of(&mut client).await, Code::Unauthenticated);
    for token in ["secret", "other"] {
        client.set_token(token.into());
        assert_eq!(code_of(&mut client).await, Code::Ok, "{token}");
    }
}

#[tokio::test]
async fn a_handshake_with_a_password_yields_a_bearer() {
    let running = Running::new(with_tokens()).await;
    let mut client = running.client().await;
    assert!(client.handshake("anybody", "wrong").await.is_err());
    assert!(client.token().is_none());
    client.handshake("anybody", "other").await.unwrap();
    assert_eq!(client.token().map(String::as_str), Some("other"));
    assert_eq!(code_of(&mut client).await, Code::Ok);
    let open = Running::new(FlightConfig::default()).await;
    let mut client = open.client().await;
    client.handshake("", "").await.unwrap();
    assert_eq!(code_of(&mut client).await, Code::Ok);
}

#[tokio::test]
async fn an_open_address_needs_tls_and_a_token() {
    let everywhere: SocketAddr = ([0, 0, 0, 0], 0).into();
    assert!(FlightServer::bind(everywhere, with_tokens()).await.is_err());
    assert!(FlightServer::bind(everywhere, FlightConfig { insecure: true, ..with_tokens() }).await.is_ok());
    let taken = FlightServer::bind(([127, 0, 0, 1], 0).into(), with_tokens()).await.unwrap();
    assert!(FlightServer::bind(taken.address().unwrap(), with_tokens()).await.is_err());
}

/// Connects by TLS, with HTTP/2 as the protocol.
#[derive(Clone)]
struct Connect {
    address: SocketAddr,
    connector: TlsConnector,
}

impl Service<Uri> for Connect {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { address, connector } = self.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").unwrap();
            Ok(TokioIo::new(connector.connect(name, stream).await?))
        })
    }
}

#[tokio::test]
async fn tls_carries_the_requests() {
    let folder = tempfile::tempdir().unwrap();
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(&key, certified.signing_key.serialize_pem()).unwrap();
    let config = FlightConfig { tls: Some(tls::server(&certificate, &key).unwrap()), ..with_tokens() };
    let running = Running::new(config).await;
    let mut trusting = rustls::ClientConfig::clone(&tls::client_with_authority(&certificate).unwrap());
    trusting.alpn_protocols = vec![b"h2".to_vec()];
    let connect = Connect { address: running.address, connector: Arc::new(trusting).into() };
    let endpoint = Endpoint::from_static("http://localhost");
    let channel: Channel = endpoint.connect_with_connector(connect).await.unwrap();
    let mut client = FlightSqlServiceClient::new(channel);
    assert_eq!(code_of(&mut client).await, Code::Unauthenticated);
    client.set_token("secret".into());
    assert_eq!(code_of(&mut client).await, Code::Ok);
    assert!(
        Endpoint::from_shared(format!("http://{}", running.address)).unwrap().connect().await.is_err() || {
            let mut plain = running.client().await;
            code_of(&mut plain).await != Code::Ok
        }
    );
}
