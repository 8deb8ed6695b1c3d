//! Tokens and encryption: who is let in, and what others see.

use std::sync::Arc;

use lightship_overlay::Shape;
use lightship_relay::{Config, Relay, RelayError, Security, Tls};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::*;

const NAME: &str = "node.test";

/// A certificate of its own, and trust in it.
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

/// What becomes of two nodes with these; node 0 opens the connection.
async fn meet(opens: Security, accepts: Security) -> Result<(), RelayError> {
    let (mut listeners, addresses) = listeners(2).await;
    let routes = routes(Shape::FullMesh, 2);
    let mut starting = JoinSet::new();
    for (node, security) in [(1, accepts), (0, opens)] {
        let config = Config {
            security,
            // How one that hangs up at the first word is tried again until then.
            connect_timeout: std::time::Duration::from_secs(2),
            ..Config::new(node, addresses.clone(), Arc::clone(&routes), 1000)
        };
        let listener = listeners.remove(node as usize);
        starting.spawn(async move { (node, Relay::start(listener, config).await) });
    }
    // The other one may have to be there, or wait for somebody who never comes.
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
async fn encrypted_as_well_as_plain() {
    let tls = tls();
    let security = Security { tls: Some(tls), ..with_token("secret") };
    let (relays, mut inboxes) = start(Shape::Ring, 6, |config| config.security = security.clone()).await;
    assert_eq!(exchange(&relays, &mut inboxes, 0, 3).await.hops, 3);
    // Larger than what is encrypted at a time, and than what sockets hold.
    let large: bytes::Bytes = (0..MESSAGE_BYTES_MAX).map(|at| at as u8).collect::<Vec<_>>().into();
    relays[1].send(3, large.clone()).await.expect("sent");
    let message = soon(inboxes[3].recv()).await.expect("no failure").expect("a message");
    assert_eq!((message.hops, message.bytes), (2, large));
    relays[0].set_direct(vec![3], 1);
    until_hops(&relays, &mut inboxes, (0, 3), 1).await;
    close(&relays).await;
}

#[tokio::test]
async fn the_token_has_to_be_the_same() {
    assert_eq!(meet(with_token("secret"), with_token("secret")).await, Ok(()));
    // Who asks for none lets everybody in.
    assert_eq!(meet(with_token("secret"), Security::default()).await, Ok(()));
    for other in [with_token("Secret"), with_token("secret, and more"), Security::default()] {
        let error = meet(other, with_token("secret")).await.expect_err("refused");
        assert_eq!(error.to_string(), "no connection to node 1: it refuses: it has another token");
    }
}

#[tokio::test]
async fn plain_and_encrypted_do_not_meet() {
    let encrypted = || Security { tls: Some(tls()), ..Security::default() };
    // Another's certificate is as good as none.
    for (opens, accepts) in
        [(Security::default(), encrypted()), (encrypted(), Security::default()), (encrypted(), encrypted())]
    {
        let error = meet(opens, accepts).await.expect_err("refused");
        assert!(matches!(error, RelayError::Connect { node: 1, .. }), "{error}");
    }
}

/// Neither what a node sends nor its token can be read on the way.
#[tokio::test]
async fn nothing_is_sent_in_clear() {
    let (mut listeners, addresses) = listeners(2).await;
    let security = Security { tls: Some(tls()), ..with_token("a token to look for") };
    let mut config = Config { security, ..Config::new(0, addresses, routes(Shape::FullMesh, 2), 1000) };
    config.connect_timeout = std::time::Duration::from_secs(1);
    let listener = listeners.remove(1);
    let starting = tokio::spawn(Relay::start(listeners.remove(0), config));
    let (mut peer, _) = soon(listener.accept()).await.expect("it comes");
    let mut bytes = vec![0; 16];
    soon(peer.read_exact(&mut bytes)).await.expect("a greeting");
    // A handshake of TLS, and no frame.
    assert_eq!(bytes[0], 22);
    drop(peer);
    let error = soon(starting).await.expect("no panic").map(|_| ()).expect_err("nobody there");
    assert!(matches!(error, RelayError::Connect { node: 1, .. }), "{error}");
}

#[tokio::test]
async fn listening_beyond_this_host() {
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
        assert!(error.to_string().contains("takes TLS and a token"), "{error}");
    }
    for security in [Security { tls, ..with_token("t") }, Security { insecure: true, ..Security::default() }]
    {
        // It listens, and nobody comes.
        assert_eq!(start(security).await, RelayError::Missing { nodes: vec![0] });
    }
}

/// What claims to be a token is not read beyond its limit.
#[tokio::test]
async fn a_token_without_end() {
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
    for hello in [frame(1, 1, 0, 0, 0, u32::MAX), frame(1, 1, 0, 0, 0, 1025)] {
        let mut stranger = TcpStream::connect(address).await.expect("connected");
        stranger.write_all(&hello).await.expect("sent");
        let mut answer = Vec::new();
        // It need not send a byte of it to be sent away.
        let _ = soon(stranger.read_to_end(&mut answer)).await;
        assert!(answer.is_empty(), "{answer:?}");
    }
    exchange(&relays, &mut inboxes, 0, 1).await;
    close(&relays).await;
}
