//! Arrow Flight SQL in front of a [`Service`](lightship_transport::net::Service), for clients that do not speak
//! Lightship's protocol: ADBC, JDBC, `pyarrow.flight`, and tools on top of them.
//!
//! - [`FlightServer`]: binds an address and serves a service on it until it is told to stop.
//! - [`FlightConfig`]: TLS, tokens, and limits.
//!
//! Queries, prepared statements with parameters, updates, ingestion into tables that exist, cancellation, and the
//! metadata that tools show are supported. What the service refuses is refused here too: the front end adds no way to
//! run what the service would not run.
//!
//! The server keeps nothing of a client between two requests, unless results are divided over several endpoints: then it
//! remembers for some minutes which of them were fetched. A ticket is its statement, and so is the handle of a
//! prepared statement, with the parameters that were bound to it. So a client that never comes back, or never closes
//! its statements, costs nothing; a ticket works any number of times, also after a restart; and a forged one can only
//! run what its sender could have asked for. `GetFlightInfo` plans a statement to find its columns, and does not run
//! it: `DoGet` does.
//!
//! What it does not do:
//! - Endpoints at several servers. With [`FlightConfig::endpoints`], a result without an order is divided over several
//!   streams, all of this server: they share one execution. [`FlightConfig::locations`] are addresses of each endpoint.
//! - Transactions, savepoints and Substrait plans, which are refused.
//! - Creating or replacing tables by ingestion.
//! - Dictionaries, runs and views: columns are sent as plain values, because not all clients can read the others. The
//!   types that `GetFlightInfo` and `GetSchema` report are those that are sent.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use lightship_transport::net::Service;
//! # async fn serve(service: Arc<dyn Service>) -> lightship_transport::Result<()> {
//! use lightship_flight::{FlightConfig, FlightServer};
//!
//! let config = FlightConfig { tokens: vec!["secret".into()], ..FlightConfig::default() };
//! let server = FlightServer::bind("127.0.0.1:4290".parse().unwrap(), config).await?;
//! let (stop, stopped) = tokio::sync::watch::channel(false);
//! server.run(service, stopped).await?;
//! # drop(stop);
//! # Ok(())
//! # }
//! ```

mod actions;
mod admission;
mod catalog;
mod command;
mod config;
mod connection;
mod divided;
mod encode;
mod front;
mod gate;
mod handle;
mod ingest;
mod intake;
mod keys;
mod plain;
mod put;
mod results;
mod running;
mod server;
mod sql_info;
mod status;
mod type_info;

pub use config::FlightConfig;
pub use server::FlightServer;
