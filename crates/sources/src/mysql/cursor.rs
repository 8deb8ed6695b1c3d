//! Cursors, as `STMT_ATTR_PREFETCH_ROWS` of the C API and `useCursorFetch` of Connector/J use them. The
//! server writes the whole result to a temporary table before the first row is fetched.

use std::sync::PoisonError;

use mysql_async::Error;
use mysql_common::constants::StatusFlags;

use super::raw::{Prepared, ProtocolConnection};
use super::{BEGIN, MySqlSource, errors};
use crate::{Cursor, Cursors, Estimated, Fetched, Result, SourceError};

/// An open cursor. Dropping it closes its connection and kills a running statement.
#[derive(Debug)]
pub struct MySqlCursor<'a> {
    source: &'a MySqlSource,
    raw: ProtocolConnection,
    statement: Prepared,
    /// Rows fetched so far.
    rows: u64,
    ended: bool,
}

impl Cursors for MySqlSource {
    type Cursor<'a> = MySqlCursor<'a>;

    async fn cursor(&self, sql: &str) -> Result<MySqlCursor<'_>> {
        let mut raw = self.raw().await?;
        let statement = match raw.prepare(sql).await {
            Ok(statement) => statement,
            Err(error) => return Err(self.failed(raw, sql, 0, error)),
        };
        match raw.execute(statement).await {
            Ok(true) => Ok(MySqlCursor { source: self, raw, statement, rows: 0, ended: false }),
            Ok(false) => {
                Err(SourceError::Unsupported("a cursor for a statement that is not a SELECT".into()))
            }
            Err(error) => {
                // The server still holds the prepared statement.
                let _ = raw.forget(statement).await;
                Err(self.failed(raw, sql, 0, error))
            }
        }
    }

    async fn estimate(&self, sql: &str) -> Result<Estimated> {
        super::estimate::estimate(self, sql).await
    }
}

impl MySqlSource {
    /// A connection in a read-only transaction, without the driver.
    async fn raw(&self) -> Result<ProtocolConnection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(mut raw), Some(start)) = (idle, BEGIN.rsplit("; ").next())
            && raw.run(start).await.is_ok()
        {
            return Ok(raw);
        }
        // Boxed, because the futures of logins are large.
        self.in_time(Box::pin(async {
            let mut raw = ProtocolConnection::open(&self.opts, &self.authorities).await?;
            for statement in BEGIN.split("; ") {
                raw.run(statement).await?;
            }
            Ok(raw)
        }))
        .await
    }

    /// Keeps the connection for reuse.
    fn put(&self, raw: ProtocolConnection) {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = Some(raw);
    }

    /// Converts an error, and keeps the connection for reuse if the server refused the statement.
    fn failed(&self, raw: ProtocolConnection, sql: &str, rows: u64, error: Error) -> SourceError {
        if matches!(error, Error::Server(_)) {
            self.put(raw);
        }
        errors::statement(&self.server, sql, rows, error)
    }
}

impl Cursor for MySqlCursor<'_> {
    async fn fetch(&mut self, rows: u32) -> Result<Fetched> {
        // The server closes the cursor after the last row.
        if self.ended {
            return Ok(Fetched::default());
        }
        let fetched = self.raw.fetch(self.statement, rows).await;
        let (fetched, status) =
            fetched.map_err(|error| errors::statement(&self.source.server, "", self.rows, error))?;
        self.ended = status.contains(StatusFlags::SERVER_STATUS_LAST_ROW_SENT);
        self.rows += fetched.rows;
        Ok(fetched)
    }

    async fn close(mut self) -> Result<()> {
        let closed = async {
            self.raw.forget(self.statement).await?;
            self.raw.run("ROLLBACK").await
        };
        let closed: Result<(), Error> = closed.await;
        closed.map_err(|error| errors::statement(&self.source.server, "ROLLBACK", self.rows, error))?;
        self.source.put(self.raw);
        Ok(())
    }
}
