//! Cursors, from which rows are fetched in blocks, as drivers with a fetch size do.
//!
//! Lightship reads results without cursors. It uses them only to measure fetches: fetched rows are
//! counted and discarded.

use crate::Result;

/// A database that has cursors and can estimate the size of a result.
pub trait Cursors {
    /// Its type of open cursors.
    type Cursor<'a>: Cursor
    where
        Self: 'a;

    /// Opens a cursor for a query, in a read-only transaction.
    ///
    /// # Errors
    /// The server's errors; [`crate::SourceError::Unsupported`] for a statement that can't have a cursor.
    fn cursor(&self, sql: &str) -> impl Future<Output = Result<Self::Cursor<'_>>> + Send;

    /// Estimates the size of a query's result. `sql` must be a single statement.
    ///
    /// # Errors
    /// The server's errors; [`crate::SourceError::Malformed`] if its EXPLAIN output has an unknown form.
    fn estimate(&self, sql: &str) -> impl Future<Output = Result<Estimated>> + Send;
}

/// An open cursor. Dropping it closes its connection.
pub trait Cursor: Send {
    /// Fetches the next rows, at most `rows`.
    ///
    /// # Errors
    /// The server's errors, or a lost connection.
    fn fetch(&mut self, rows: u32) -> impl Future<Output = Result<Fetched>> + Send;

    /// Ends the transaction, so that the connection can be reused.
    ///
    /// # Errors
    /// When the connection is lost.
    fn close(self) -> impl Future<Output = Result<()>> + Send;
}

/// The result of one fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fetched {
    /// Number of rows: fewer than requested at the end of the result.
    pub rows: u64,
    /// Their bytes on the wire, including the protocol's overhead.
    pub bytes: u64,
}

/// A server's estimate of a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimated {
    /// Number of rows, if the server can estimate it.
    pub rows: Option<u64>,
    /// Mean bytes of a row, if known.
    pub row_bytes: Option<f64>,
}
