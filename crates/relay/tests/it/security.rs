//! Tokens and encryption.

use std::sync::Arc;

use lightship_overlay::Shape;
use lightship_relay::{Config, Relay, RelayError, Security, Tls};
use lightship_wire::frame::{FrameHeader, FrameKind, HELLO_BYTES_MAX};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::*;

const NAME: &str = "node.test";

/// A new self-signed certificate, which both ends trust.
fn tls() -> Tls {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]).expect("a certificate");
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .expect("they belong together");
    let mut roots = RootCertStore::empty();
    roots.add(certificate).expect("an authority");
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).expect("a name");
    Tls { server: Arc::new(server), client: Arc::new(client), names: vec![name] }
}

fn with_token(token: &str) -> Security {
    Security { token: Some(token.to_owned()), ..Security::default() }
}

/// Starts two nodes with these settings; node 0 opens the connection. Returns the result of node 0.
async fn meet(opens: Security, accepts: Security) -> Result<(), RelayError> {
    let (mut listeners, addresses) = listeners(2).await;
    let routes = routes(Shape::FullMesh, 2);
    let mut starting = JoinSet::new();
    for (node, security) in [(1, accepts), (0, opens)] {
        let config = Config {
            security,
            // A node that hangs up during the handshake is retried until then.
            connect_timeout: std::time::Duration::from_secs(2),
            ..Config::new(node, addresses.clone(), Arc::clone(&routes), 1000)
        };
        let listener = listeners.remove(node as usize);
        starting.spawn(async move { (node, Relay::start(listener, config).await) });
    }
    // Results of the other node are kept, because node 0 may need it.
    let mut others = Vec::new();
    soon(async {
        loop {
            let (node, met) = starting.join_next().await.expect("a node").expect("no panic");
            if node == 0 {
                return met.map(|_| ());
            }
            others.push(met);
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_forwarded_over_tls() {
    let tls = tls();
    let security = Security { tls: Some(tls), ..with_token("secret") };
    let (relays, mut inboxes) = start(Shape::Ring, 6, |config| config.security = security.clone()).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 3);
    // Larger than a TLS record and than the socket buffers.
    let large: bytes::Bytes = (0..MESSAGE_BYTES_MAX).map(|at| at as u8).collect::<Vec<_>>().into();
    relays[1].send(3, large.clone()).await.expect("sent");
    let message = soon(inboxes[3].recv()).await.expect("no failure").expect("a message");
    assert_eq!((message.hops, message.bytes), (2, large));
    relays[0].set_direct(vec![3], 1);
    until_hops(&relays, &mut inboxes, (0, 3), 1).await;
    close(&relays).await;
}

#[tokio::test]
async fn a_wrong_token_is_refused() {
    assert_eq!(meet(with_token("secret"), with_token("secret")).await, Ok(()));
    // A node without a token accepts any.
    assert_eq!(meet(with_token("secret"), Security::default()).await, Ok(()));
    for other in [with_token("Secret"), with_token("secret, and more"), Security::default()] {
        let error = meet(other, with_token("secret")).await.expect_err("refused");
        assert_eq!(
            error.to_string(),
            "no connection to node 1: it refused the connection: the tokens differ"
        );
    }
}

#[tokio::test]
async fn nodes_need_tls_at_both_ends_and_a_trusted_certificate() {
    let encrypted = || Security { tls: Some(tls()), ..Security::default() };
    // Each call makes a new certificate, so the last pair does not trust each other.
    for (opens, accepts) in
        [(Security::default(), encrypted()), (encrypted(), Security::default()), (encrypted(), encrypted())]
    {
        let error = meet(opens, accepts).await.expect_err("refused");
        assert!(matches!(error, RelayError::Connect { node: 1, .. }), "{error}");
    }
}

#[tokio::test]
async fn with_tls_nothing_is_sent_in_clear() {
    let (mut listeners, addresses) = listeners(2).await;
    let security = Security { tls: Some(tls()), ..with_token("a token to look for") };
    let mut config = Config { security, ..Config::new(0, addresses, routes(Shape::FullMesh, 2), 1000) };
    config.connect_timeout = std::time::Duration::from_secs(1);
    let listener = listeners.remove(1);
    let starting = tokio::spawn(Relay::start(listeners.remove(0), config));
    let (mut peer, _) = soon(listener.accept()).await.expect("it comes");
    let mut bytes = vec![0; 16];
    soon(peer.read_exact(&mut bytes)).await.expect("a greeting");
    // A TLS handshake, not a frame.
    assert_eq!(bytes[0], 22);
    drop(peer);
    let error = soon(starting).await.expect("no panic").map(|_| ()).expect_err("nobody there");
    assert!(matches!(error, RelayError::Connect { node: 1, .. }), "{error}");
}

#[tokio::test]
async fn listening_beyond_this_host_requires_tls_and_a_token() {
    let start = async |security: Security| {
        let listener = TcpListener::bind("0.0.0.0:0").await.expect("a port");
        let addresses = vec![listener.local_addr().expect("bound"); 2];
        let config = Config {
            security,
            connect_timeout: std::time::Duration::from_millis(1),
            ..Config::new(1, addresses, routes(Shape::FullMesh, 2), 1000)
        };
        soon(Relay::start(listener, config)).await.map(|_| ()).expect_err("it is alone")
    };
    let tls = Some(tls());
    for security in
        [Security::default(), with_token("t"), Security { tls: tls.clone(), ..Security::default() }]
    {
        let error = start(security).await;
        assert!(error.to_string().contains("requires TLS and a token"), "{error}");
    }
    for security in [Security { tls, ..with_token("t") }, Security { insecure: true, ..Security::default() }]
    {
        // It listens, and the other node never connects.
        assert_eq!(start(security).await, RelayError::Missing { nodes: vec![0] });
    }
}

#[tokio::test]
async fn a_token_that_is_too_long_is_not_read() {
    let (listeners, addresses) = listeners(2).await;
    let address = addresses[0];
    let routes = routes(Shape::FullMesh, 2);
    let start = |(node, listener)| {
        let security = with_token("secret");
        Relay::start(
            listener,
            Config { security, ..Config::new(node, addresses.clone(), Arc::clone(&routes), 1000) },
        )
    };
    let started = futures::future::join_all((0..).zip(listeners).map(start));
    let started = soon(started).await.into_iter().map(|started| started.expect("started"));
    let (relays, mut inboxes): (Vec<_>, Vec<_>) = started.unzip();
    for payload_bytes in [u32::MAX, HELLO_BYTES_MAX + 1] {
        let header = FrameHeader::whole(FrameKind::Hello, 0, 0, 0, &[]);
        let hello = FrameHeader { payload_bytes, part_bytes: payload_bytes, ..header }.encode();
        let mut unauthenticated = TcpStream::connect(address).await.expect("connected");
        unauthenticated.write_all(&hello).await.expect("sent");
        let mut answer = Vec::new();
        // The connection is closed before any byte of the token is sent.
        let _ = soon(unauthenticated.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "{answer:?}");
    }
    exchange(&relays, &mut inboxes, 0, 1).await;
    close(&relays).await;
}
