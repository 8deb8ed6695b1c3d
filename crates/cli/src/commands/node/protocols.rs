//! Other protocols by which clients reach a node: Arrow Flight SQL, and PostgreSQL's.

use std::net::SocketAddr;
use std::sync::Arc;

use lightship_engine::Engine;
use lightship_flight::{FlightConfig, FlightServer};
use lightship_pgserver::{PgConfig, PgReserved, PgServer};
use lightship_transport::net::ServerConfig;
use tokio::sync::watch;

use super::NodeArgs;
use crate::commands::usage::address;
use crate::error::CliError;

/// Reserved addresses. Clients that connect before the tables are ready wait, or are refused.
pub(super) struct ReservedProtocols {
    flight: Option<FlightServer>,
    postgres: Option<PgReserved>,
    is_encrypted: bool,
}

/// Servers that listen.
pub(super) struct Protocols {
    flight: Option<FlightServer>,
    postgres: Option<PgServer>,
    /// Where clients reach them.
    pub(super) places: Places,
}

/// Where clients reach the servers, as URIs.
#[derive(Clone)]
pub(super) struct Places {
    pub(super) flight: Option<String>,
    pub(super) postgres: Option<String>,
}

impl NodeArgs {
    /// The settings of the servers for other protocols, which are those of the node's own server.
    fn protocol_configs(&self, server: &ServerConfig) -> (FlightConfig, PgConfig) {
        let (tls, tokens) = (server.tls.clone(), server.tokens.clone());
        let flight = FlightConfig {
            tls: tls.clone(),
            tokens: tokens.clone(),
            insecure: server.insecure,
            endpoints: self.flight_endpoints.unwrap_or(1),
            connections_max: server.connections_max,
            queries_max: server.connections_max,
            queue_timeout: server.queue_timeout,
            stall_timeout: server.stall_timeout,
            shutdown_grace: server.shutdown_grace,
            ..FlightConfig::default()
        };
        let postgres = PgConfig {
            tls,
            tokens,
            insecure: server.insecure,
            connections_max: server.connections_max,
            stall_timeout: server.stall_timeout,
            shutdown_grace: server.shutdown_grace,
            ..PgConfig::default()
        };
        (flight, postgres)
    }

    /// The maximum number of sockets of these servers.
    pub(super) fn protocol_descriptors_max(&self, server: &ServerConfig) -> u64 {
        let (flight, postgres) = self.protocol_configs(server);
        let flight = self.flight.as_ref().map_or(0, |_| flight.descriptors_max());
        flight + self.postgres.as_ref().map_or(0, |_| postgres.descriptors_max())
    }

    /// Reserves the addresses of --flight and --postgres.
    pub(super) async fn reserve_protocols(
        &self,
        server: &ServerConfig,
    ) -> Result<ReservedProtocols, CliError> {
        let (flight_config, postgres_config) = self.protocol_configs(server);
        let flight = match &self.flight {
            Some(text) => {
                Some(FlightServer::bind(self.safe_address("--flight", text, server)?, flight_config).await?)
            }
            None => None,
        };
        let postgres = match &self.postgres {
            Some(text) => {
                Some(PgServer::reserve(self.safe_address("--postgres", text, server)?, postgres_config)?)
            }
            None => None,
        };
        Ok(ReservedProtocols { flight, postgres, is_encrypted: server.tls.is_some() })
    }

    /// The address of an option. Without TLS and a token it must not be one that other hosts can reach.
    pub(super) fn safe_address(
        &self,
        option: &str,
        text: &str,
        server: &ServerConfig,
    ) -> Result<SocketAddr, CliError> {
        let address = address(option, text, None)?;
        let is_safe = address.ip().is_loopback() || self.insecure;
        if !is_safe && (server.tls.is_none() || server.tokens.is_empty()) {
            return Err(CliError::usage(format!(
                "{option} {text} can be reached from other hosts, which requires TLS and a token"
            ))
            .hint(
                "give --tls-cert, --tls-key and --token-file; or use 127.0.0.1; or --insecure if the network is \
                 trusted",
            ));
        }
        Ok(address)
    }
}

impl ReservedProtocols {
    /// Begins to listen.
    pub(super) fn listen(self) -> Result<Protocols, CliError> {
        let postgres = self.postgres.map(PgReserved::listen).transpose()?;
        let scheme = if self.is_encrypted { "grpc+tls" } else { "grpc" };
        let flight_address = self.flight.as_ref().map(FlightServer::address).transpose()?;
        let places = Places {
            flight: flight_address.map(|address| format!("{scheme}://{address}")),
            postgres: postgres.as_ref().map(|server| format!("postgresql://{}/lightship", server.address())),
        };
        Ok(Protocols { flight: self.flight, postgres, places })
    }
}

impl Protocols {
    /// Serves clients until the node stops.
    pub(super) async fn run(self, engine: Arc<Engine>, stop: watch::Receiver<bool>) {
        let flight = async {
            if let Some(server) = self.flight
                && let Err(error) = server.run(engine.clone(), stop.clone()).await
            {
                tracing::error!(%error, "Flight SQL is no longer served");
            }
        };
        let postgres = async {
            if let Some(server) = self.postgres
                && let Err(error) = server.run(engine.clone(), stop.clone()).await
            {
                tracing::error!(%error, "clients of PostgreSQL are no longer served");
            }
        };
        tokio::join!(flight, postgres);
    }
}
