//! A cursor, from which rows are fetched so many at a time: how drivers with a fetch size read
//! (psycopg's named cursors, psqlODBC's UseDeclareFetch; pgjdbc's portals come to the same). What is
//! fetched is counted and thrown away: it is the fetch that is of interest. And how large a result is
//! thought to be before it is fetched.

use super::connection::Connection;
use super::{BEGIN, PostgresSource};
use crate::{Result, SourceError};

const DECLARE: &str = "DECLARE lightship NO SCROLL CURSOR FOR ";
const EXPLAIN: &str = "EXPLAIN (FORMAT JSON) ";

/// What one fetch brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fetched {
    /// Rows: fewer than asked for at the end of the result.
    pub rows: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
}

/// What the server's planner thinks of a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimated {
    /// Its rows.
    pub rows: u64,
    /// Mean bytes of each, without what the protocol adds.
    pub row_bytes: f64,
}

/// An open cursor. Dropped, it takes its connection with it.
#[derive(Debug)]
pub struct Cursor<'a> {
    source: &'a PostgresSource,
    connection: Connection,
}

impl PostgresSource {
    /// Declares a cursor for a query, in a read-only transaction.
    ///
    /// # Errors
    /// The server's.
    pub async fn cursor(&self, sql: &str) -> Result<Cursor<'_>> {
        let (cursor, _) = self.prefixed(DECLARE, sql).await?;
        Ok(cursor)
    }

    /// How large the result of a query is thought to be.
    ///
    /// # Errors
    /// The server's; [`SourceError::Malformed`] where it explains in words of its own.
    pub async fn estimate(&self, sql: &str) -> Result<Estimated> {
        let (cursor, text) = self.prefixed(EXPLAIN, sql).await?;
        let target = cursor.connection.target();
        cursor.close().await?;
        let told: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let plan = told.pointer("/0/Plan");
        let of = |name: &str| plan?.get(name)?.as_f64().filter(|number| *number >= 0.0);
        of("Plan Rows")
            .zip(of("Plan Width"))
            .map(|(rows, width)| Estimated { rows: rows as u64, row_bytes: width.max(1.0) })
            .ok_or_else(|| SourceError::Malformed { target, reason: "it explains in other words".into() })
    }

    /// Runs a statement that begins so, alone: what stands behind a semicolon is refused. Answers what
    /// it says as text.
    async fn prefixed(&self, prefix: &str, sql: &str) -> Result<(Cursor<'_>, String)> {
        let (mut connection, _) = self.begin(BEGIN, None).await?;
        connection.execute(&format!("{prefix}{sql}"), &[], None).await?;
        let mut text = String::new();
        let done = connection
            .until_ready(|frame| {
                if frame.tag == b'D' {
                    text.extend(frame.text_row()?.into_iter().flatten());
                }
                Ok(())
            })
            .await;
        let cursor = Cursor { source: self, connection };
        match done {
            Ok(()) => Ok((cursor, text)),
            Err(mut error) => {
                cursor.close().await?;
                // Counted in the user's own text.
                if let SourceError::Sql { position: Some(position), .. } = &mut error {
                    *position = position.saturating_sub(prefix.len() as u32).max(1);
                }
                Err(error)
            }
        }
    }
}

impl Cursor<'_> {
    /// Fetches the next rows, at most so many.
    ///
    /// # Errors
    /// The server's, or that of a lost connection.
    pub async fn fetch(&mut self, rows: u32) -> Result<Fetched> {
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

    /// Ends the transaction; the connection can be used again.
    ///
    /// # Errors
    /// That of a lost connection.
    pub async fn close(mut self) -> Result<()> {
        self.connection.simple("ROLLBACK").await?;
        self.source.pool.put(self.connection);
        Ok(())
    }
}
