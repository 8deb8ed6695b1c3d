//! Serves the tables of the tests: `cargo run -p lightship-flight --example serve -- [PORT] [TOKEN] [CERT KEY]`.

#[path = "../tests/it/service.rs"]
#[allow(dead_code)]
mod service;

use std::sync::Arc;

use lightship_flight::{FlightConfig, FlightServer};
use lightship_transport::net::tls;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().map_or(Ok(4290), |port| port.parse())?;
    let tokens = arguments.next().into_iter().collect();
    let tls = match (arguments.next(), arguments.next()) {
        (Some(certificate), Some(key)) => Some(tls::server(certificate.as_ref(), key.as_ref())?),
        _ => None,
    };
    let config = FlightConfig { tokens, tls, ..FlightConfig::default() };
    let server = FlightServer::bind(([127, 0, 0, 1], port).into(), config).await?;
    eprintln!("listening on {}", server.address()?);
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    server.run(Arc::new(service::Demo::new()), stopped).await?;
    Ok(())
}
