//! The profile of a measured link, and the estimated size of a query's result.

use std::time::SystemTime;

use lightship::node::endpoint;
use lightship_session::{Client, LinkPrior, Memory, Options, Profile, Profiles};
use lightship_sources::mysql::MySqlSource;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::{Cursors, Location};
use lightship_tuner::{Limits, Sizes};

use crate::error::CliError;

/// The source's estimate of a result, as far as it has one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Estimate {
    pub(super) rows: Option<u64>,
    pub(super) row_bytes: Option<f64>,
}

/// The profile of the link to a source. A doubtful profile is used with a warning.
pub(super) fn profile(location: &Location) -> Result<Profile, CliError> {
    let endpoint = location.to_string();
    let profiles = Profiles::of_user()?;
    let profile = profiles.find(&endpoint)?.ok_or_else(|| {
        CliError::usage(format!("the link to {endpoint} was not measured")).hint(format!(
            "measure it: lightship calibrate {endpoint}; or replace the URI by --alpha and --beta"
        ))
    })?;
    for doubt in profile.doubts(SystemTime::now()) {
        crate::say!("warning: the profile in {}: {doubt}", profiles.path(&endpoint).display());
    }
    Ok(profile)
}

/// The sizes that were measured on a link. The model holds only within them.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasuredRange {
    pub(super) limits: Limits,
    /// Whether the size of messages can be chosen; not for databases.
    pub(super) messages: bool,
    /// What `lightship fetch` starts with; only for nodes.
    pub(super) fetch: Option<Sizes>,
}

pub(super) fn tried(
    location: &Location,
    profile: &Profile,
    known: Option<LinkPrior>,
    memory: Option<u64>,
) -> MeasuredRange {
    let most = |of: fn(&lightship_tuner::Sample) -> f64| profile.samples.iter().map(of).fold(1.0, f64::max);
    let least =
        |of: fn(&lightship_tuner::Sample) -> f64| profile.samples.iter().map(of).fold(f64::MAX, f64::min);
    let batch_bytes_max = most(|sample| sample.batch_bytes) as u64;
    let messages = profile.calibration.next.samples > 0;
    // Without a choice of messages, a batch is one message, and may be as small as the smallest that was measured.
    let (message_bytes_min, message_bytes_max) = if messages {
        (least(|sample| sample.message_bytes) as u64, most(|sample| sample.message_bytes) as u64)
    } else {
        (least(|sample| sample.batch_bytes) as u64, batch_bytes_max)
    };
    // Half of a transfer's memory is for rows in flight.
    let default = Options::default();
    let memory = memory.map_or(default.memory, |bytes| Memory(bytes.saturating_mul(2)));
    let fetch = known.filter(|_| matches!(location, Location::Node { .. }));
    let fetch = fetch.map(|known| Options { known, memory, ..default }.sizes());
    MeasuredRange {
        limits: Limits { message_bytes_min, message_bytes_max, batch_bytes_max },
        messages,
        fetch,
    }
}

/// Asks the source for its estimate of the size of a result.
pub(super) async fn estimate(location: &Location, sql: &str) -> Result<Estimate, CliError> {
    match location {
        Location::Node { .. } | Location::NodeUnix { .. } => {
            let (endpoint, config) = endpoint(location)?;
            let mut client = Client::connect_with(&endpoint, &config).await?;
            let asked = client.fetch(sql, &Options::first_rows()).await;
            let mut transfer = asked.map_err(|error| CliError::from(error).in_statement(sql))?;
            let rows = transfer.rows_estimate();
            // The size of a row is estimated from the first rows; the rest of the result is cancelled.
            let row_bytes = transfer.row_bytes().await?;
            Ok(Estimate { rows, row_bytes })
        }
        Location::Postgres(uri) => of_database(&PostgresSource::connect(uri).await?, sql).await,
        Location::MySql(uri) => of_database(&MySqlSource::connect(uri).await?, sql).await,
        other => Err(CliError::usage(format!(
            "{other}: neither a node nor a PostgreSQL, MySQL or MariaDB database"
        ))),
    }
}

async fn of_database(source: &impl Cursors, sql: &str) -> Result<Estimate, CliError> {
    let estimated = source.estimate(sql).await;
    let estimated = estimated.map_err(|error| CliError::from(error).in_statement(sql))?;
    Ok(Estimate { rows: estimated.rows, row_bytes: estimated.row_bytes })
}
