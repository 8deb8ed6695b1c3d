//! A cursor, from which rows are fetched so many at a time: how drivers with a fetch size read
//! (psycopg's named cursors, psqlODBC's UseDeclareFetch; pgjdbc's portals come to the same). What is
//! fetched is counted and thrown away: it is the fetch that is of interest.

use super::connection::Connection;
use super::{BEGIN, PostgresSource};
use crate::{Result, SourceError};

const DECLARE: &str = "DECLARE lightship NO SCROLL CURSOR FOR ";

/// What one fetch brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fetched {
    /// Rows: fewer than asked for at the end of the result.
    pub rows: u64,
    /// Their bytes on the wire.
    pub bytes: u64,
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
        let (mut connection, _) = self.begin(BEGIN, None).await?;
        // A statement alone: what stands behind a semicolon is refused.
        connection.execute(&format!("{DECLARE}{sql}"), &[], None).await?;
        let declared = connection.until_ready(|_| Ok(())).await;
        let cursor = Cursor { source: self, connection };
        match declared {
            Ok(()) => Ok(cursor),
            Err(mut error) => {
                cursor.close().await?;
                // Counted in the user's own text.
                if let SourceError::Sql { position: Some(position), .. } = &mut error {
                    *position = position.saturating_sub(DECLARE.len() as u32).max(1);
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
