//! Cursors, as psycopg's named cursors and psqlODBC's UseDeclareFetch use them (pgjdbc's portals are
//! equivalent), and the planner's estimates.

use super::connection::Connection;
use super::{BEGIN, PostgresSource};
use crate::{Cursor, Cursors, Estimated, Fetched, Result, SourceError};

const DECLARE: &str = "DECLARE lightship NO SCROLL CURSOR FOR ";
const EXPLAIN: &str = "EXPLAIN (FORMAT JSON) ";

/// An open cursor. Dropping it closes its connection.
#[derive(Debug)]
pub struct PostgresCursor<'a> {
    source: &'a PostgresSource,
    connection: Connection,
}

impl Cursors for PostgresSource {
    type Cursor<'a> = PostgresCursor<'a>;

    async fn cursor(&self, sql: &str) -> Result<PostgresCursor<'_>> {
        let (cursor, _) = self.prefixed(DECLARE, sql).await?;
        Ok(cursor)
    }

    /// The planner's estimate. Its width does not include the protocol's overhead.
    async fn estimate(&self, sql: &str) -> Result<Estimated> {
        let (cursor, text) = self.prefixed(EXPLAIN, sql).await?;
        let target = cursor.connection.target();
        cursor.close().await?;
        let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let plan = told.pointer("/0/Plan");
        let of = |name: &str| plan?.get(name)?.as_f64().filter(|number| *number >= 0.0);
        of("Plan Rows")
            .zip(of("Plan Width"))
            .map(|(rows, width)| Estimated { rows: Some(rows as u64), row_bytes: Some(width.max(1.0)) })
            .ok_or_else(|| SourceError::Malformed {
                target,
                reason: "the output of EXPLAIN has an unknown form".into(),
            })
    }
}

impl PostgresSource {
    /// Runs `prefix` and `sql` as a single statement: the server refuses another one after a semicolon.
    /// Returns the output as text.
    async fn prefixed(&self, prefix: &str, sql: &str) -> Result<(PostgresCursor<'_>, String)> {
        let (mut connection, _) = self.begin(BEGIN, None).await?;
        connection.execute(&format!("{prefix}{sql}"), &[], &[], None).await?;
        let mut text = String::new();
        let done = connection
            .until_ready(|frame| {
                if frame.tag == b'D' {
                    text.extend(frame.text_row()?.into_iter().flatten());
                }
                Ok(())
            })
            .await;
        let cursor = PostgresCursor { source: self, connection };
        match done {
            Ok(()) => Ok((cursor, text)),
            Err(mut error) => {
                cursor.close().await?;
                // Convert to the position in the user's own text.
                if let SourceError::Sql { position: Some(position), .. } = &mut error {
                    *position = position.saturating_sub(prefix.len() as u32).max(1);
                }
                Err(error)
            }
        }
    }
}

impl Cursor for PostgresCursor<'_> {
    async fn fetch(&mut self, rows: u32) -> Result<Fetched> {
        self.connection.ask(&format!("FETCH FORWARD {rows} FROM lightship"))?;
        self.connection.send().await?;
        let mut fetched = Fetched::default();
        self.connection
            .until_ready(|frame| {
                if frame.tag == b'D' {
                    fetched.rows += 1;
                    fetched.bytes += frame.total_bytes();
                }
                Ok(())
            })
            .await?;
        Ok(fetched)
    }

    async fn close(mut self) -> Result<()> {
        self.connection.simple("ROLLBACK").await?;
        self.source.pool.put(self.connection);
        Ok(())
    }
}
