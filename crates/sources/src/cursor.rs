//! Cursors, from which rows are fetched so many at a time: how drivers with a fetch size read. Lightship
//! itself does not; what is fetched is counted and thrown away, for it is the fetch that is of interest.

use crate::Result;

/// A database with cursors, which can say how large a result is before it comes.
pub trait Cursors {
    /// An open cursor of it.
    type Cursor<'a>: Cursor
    where
        Self: 'a;

    /// Opens a cursor for a query, in a read-only transaction.
    ///
    /// # Errors
    /// The server's; [`crate::SourceError::Unsupported`] for what has no cursor.
    fn cursor(&self, sql: &str) -> impl Future<Output = Result<Self::Cursor<'_>>> + Send;

    /// How large the result of a query is thought to be. It must be one statement.
    ///
    /// # Errors
    /// The server's; [`crate::SourceError::Malformed`] where it explains in words that are not known.
    fn estimate(&self, sql: &str) -> impl Future<Output = Result<Estimated>> + Send;
}

/// An open cursor. Dropped, it takes its connection with it.
pub trait Cursor: Send {
    /// Fetches the next rows, at most so many.
    ///
    /// # Errors
    /// The server's, or that of a lost connection.
    fn fetch(&mut self, rows: u32) -> impl Future<Output = Result<Fetched>> + Send;

    /// Ends the transaction; the connection can be used again.
    ///
    /// # Errors
    /// That of a lost connection.
    fn close(self) -> impl Future<Output = Result<()>> + Send;
}

/// What one fetch brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fetched {
    /// Rows: fewer than asked for at the end of the result.
    pub rows: u64,
    /// Their bytes on the wire, with what the protocol adds to each.
    pub bytes: u64,
}

/// What a server thinks of a result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimated {
    /// Its rows, where the server can tell.
    pub rows: Option<u64>,
    /// Mean bytes of each, where that is known.
    pub row_bytes: Option<f64>,
}
