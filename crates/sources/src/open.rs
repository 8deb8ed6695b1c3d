//! Opens databases by location.

use crate::adbc::AdbcSource;
use crate::limit::ConnectionLimits;
use crate::mysql::MySqlSource;
use crate::postgres::PostgresSource;
use crate::sqlite::SqliteSource;
use crate::{Location, Result, Source, SourceError};

/// Opens a database, with no more connections to its server than the limits allow.
///
/// # Errors
/// [`SourceError::Unsupported`] for a location that is not a database, and the errors of the source's constructor.
pub async fn open(location: &Location, limits: &ConnectionLimits) -> Result<Box<dyn Source>> {
    Ok(match location {
        Location::Postgres(uri) => Box::new(PostgresSource::connect_within(uri, limits).await?),
        Location::MySql(uri) => Box::new(MySqlSource::connect_within(uri, limits).await?),
        Location::Adbc(location) => Box::new(AdbcSource::open_within(location, limits).await?),
        Location::Sqlite(path) => Box::new(SqliteSource::open(path)?),
        other => return Err(SourceError::Unsupported(format!("{other} is not a database"))),
    })
}
