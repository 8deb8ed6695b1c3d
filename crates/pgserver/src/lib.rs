//! PostgreSQL's protocol in front of a service.
//!
//! Clients of PostgreSQL (psql, JDBC, psycopg, ADBC, ConnectorX) connect to a [`PgServer`], and read what the
//! [`Service`](lightship_transport::net::Service) behind it returns.
//!
//! - [`PgServer`] listens and serves clients; [`PgConfig`] has its limits, tokens and certificate.
//! - `session` is one client's session: the simple and the extended protocol, cursors, COPY. `link` is its socket, with
//!   the limits of what is read and collected; `startup` is what comes before: TLS and SCRAM.
//! - `encode` writes values of any Arrow type in PostgreSQL's text and binary formats, `parameters` reads those that
//!   clients send. `types` says which type stands for which.
//! - `catalog` answers queries of `pg_catalog` and `information_schema`, in a SQLite database that is filled with the
//!   tables of the service.
//!
//! It has no SQL engine of its own: what is not about the catalog or the session goes to the service as it is. It has
//! no `COPY ... FROM`, no real transactions (`BEGIN` and `COMMIT` are accepted, and each statement sees the
//! tables as they are), no notifications and no replication.
//!
//! ```no_run
//! # async fn serve(service: std::sync::Arc<dyn lightship_transport::net::Service>) -> lightship_transport::Result<()> {
//! use lightship_pgserver::{PgConfig, PgServer};
//!
//! let config = PgConfig { tokens: vec!["secret".into()], ..PgConfig::default() };
//! let server = PgServer::bind(([127, 0, 0, 1], 5432).into(), config)?;
//! let (_stop, stopped) = tokio::sync::watch::channel(false);
//! server.run(service, stopped).await
//! # }
//! ```

mod cancel;
mod catalog;
mod config;
mod encode;
mod error;
mod link;
mod message;
mod parameters;
mod rows;
mod scram;
mod server;
mod session;
mod settings;
mod sql;
mod startup;
mod types;

pub use config::PgConfig;
pub use server::{PgReserved, PgServer};
