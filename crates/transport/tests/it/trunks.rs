//! Connections between nodes that carry others.

use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, ServerConfig, Trunk};
use lightship_wire::control::ErrorCode;

use crate::support::*;

fn config(token: &str) -> ClientConfig {
    ClientConfig { token: token.into(), peer: true, ..ClientConfig::default() }
}

async fn trunk(server: &Running, token: &str) -> Result<Trunk, TransportError> {
    let config = config(token);
    let connected = within(Trunk::connect(&server.endpoint, &config)).await;
    connected.map(|trunk| trunk.expect("a server that knows of trunks"))
}

#[tokio::test]
async fn a_trunk_carries_what_follows_the_hellos() {
    let config_of_server =
        ServerConfig { tokens: vec!["one".into()], peer_token: Some("us".into()), ..ServerConfig::default() };
    let server = Running::start(config_of_server).await;
    // A client's token opens no trunk.
    for token in ["", "one", "two"] {
        let Err(error) = trunk(&server, token).await else { panic!("let in: {token}") };
        assert_eq!(code(&error), Some(ErrorCode::Unauthenticated), "{error}");
    }
    let opened = trunk(&server, "us").await.expect("a trunk");
    assert!(opened.same_host);
    // What it carries shows a token, too.
    let over = |trunk: Trunk, token: &str| {
        let config = config(token);
        async move { within(Connection::over(tokio::io::join(trunk.read, trunk.write), "a node", &config)).await }
    };
    let Err(error) = over(opened, "two").await else { panic!("let in") };
    assert_eq!(code(&error), Some(ErrorCode::Unauthenticated), "{error}");
    let mut connection =
        over(trunk(&server, "us").await.expect("a trunk"), "us").await.expect("a connection");
    whole(&mut connection, 500, plan(3)).await;
}

#[tokio::test]
async fn a_server_of_no_cluster_has_no_trunks() {
    let server = Running::start(ServerConfig::default()).await;
    let Err(error) = trunk(&server, "").await else { panic!("let in") };
    assert_eq!(code(&error), Some(ErrorCode::Unauthenticated), "{error}");
}
