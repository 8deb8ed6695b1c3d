//! Writes batches to a table of MySQL or MariaDB.

use std::fmt;
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Value};
use tokio::time::timeout;

use super::kill::{ConnectionLock, kill_marked};
use super::load::Loader;
use super::target::Target;
use super::{CONNECT_MAX, errors, options};
use crate::columns::check_names;
use crate::tables::cells::{Cell, Cells};
use crate::tables::null_in_key;
use crate::{Destination, Result, SourceError, TableWrite, Written, cancel};

/// How long the server may take to drop the table of a copy that failed.
const DROP_MAX: Duration = Duration::from_secs(10);

/// Brings the connection into a known state: times in UTC, no silent changes of values, and 0 as a value of columns
/// that count by themselves. Warnings are kept, whatever the server's default. The source may need longer for a batch than the server waits for rows by default.
const SET: &str = "SET time_zone = '+00:00', net_read_timeout = 3600, net_write_timeout = 3600, \
     max_error_count = 64, \
     sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,NO_ENGINE_SUBSTITUTION'; SET NAMES utf8mb4; \
     SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE";

/// A table of MySQL or MariaDB as a destination.
///
/// The rows of an existing table change in one transaction. A new table, or one that replaces another, is filled
/// under another name and renamed at the end: unless the copy is finished, that table is dropped.
///
/// Each value is written unchanged, or refused with its row and column. Times with a zone go into `datetime` as UTC.
pub struct MySqlDestination {
    opts: Opts,
    server: String,
    mark: Option<ConnectionLock>,
    schema: SchemaRef,
    target: Target,
    /// Which of the values that are loaded are bytes.
    is_binary: Vec<bool>,
    /// `None` once the copy has ended.
    loader: Option<Loader>,
    rows: u64,
    bytes: u64,
}

impl fmt::Debug for MySqlDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MySqlDestination").field("target", &self.target).finish_non_exhaustive()
    }
}

impl MySqlDestination {
    /// Logs in, and finds or creates the table as the mode requires.
    ///
    /// # Errors
    /// As [`MySqlSource::connect`](super::MySqlSource::connect); [`SourceError::Value`] for a column that the table
    /// lacks or whose type does not fit, [`SourceError::Unsupported`] for one that no table can have,
    /// [`SourceError::DuplicateColumn`] for two of the same name; [`SourceError::NoUniqueIndex`] for an upsert into
    /// a table that has none on the key.
    pub async fn create(uri: &str, write: &TableWrite, schema: &SchemaRef) -> Result<Self> {
        if schema.fields().is_empty() {
            return Err(SourceError::Unsupported("rows without columns in a table".into()));
        }
        check_names(schema)?;
        write.check(schema)?;
        let (opts, _) = options(uri)?;
        let server = format!("{}:{}", opts.ip_or_hostname(), opts.tcp_port());
        let user = opts.user().map(|user| format!("{user}@")).unwrap_or_default();
        let database = opts.db_name().map(|database| format!("/{database}")).unwrap_or_default();
        let login = format!("{user}{server}{database}");
        let mark = ConnectionLock::new();
        let connect = async {
            let mut conn = Conn::new(opts.clone()).await?;
            let taken = conn.query_drop(mark.take()).await;
            let mark = mark.taken(taken)?;
            conn.query_drop(SET).await?;
            Ok((conn, mark))
        };
        let (mut conn, mark) = match timeout(CONNECT_MAX, connect).await {
            Ok(connected) => connected.map_err(|error| errors::connect(&server, &login, error))?,
            Err(_) => {
                let reason = format!("no answer within {} s", CONNECT_MAX.as_secs());
                return Err(SourceError::Connect { target: server, reason, source: None });
            }
        };
        let target = Target::open(&mut conn, &server, write, schema).await?;
        let row = target.row.iter().map(|_| false);
        let is_binary = row.chain(target.columns.iter().map(|column| column.rule.is_binary())).collect();
        let schema = schema.clone();
        // From here on, a new table is dropped unless the copy is finished.
        let mut this =
            Self { opts, server, mark, schema, target, is_binary, loader: None, rows: 0, bytes: 0 };
        conn.query_drop("START TRANSACTION")
            .await
            .map_err(|error| errors::statement(&this.server, "START TRANSACTION", 0, error))?;
        this.target.truncate(&mut conn, &this.server).await?;
        this.loader = Some(Loader::start(conn, &this.server, &this.target).await?);
        Ok(this)
    }

    async fn push(&mut self, columns: &[Cells], row: usize) -> Result<()> {
        let number = self.rows + 1;
        let mut values = Vec::with_capacity(self.is_binary.len());
        if self.target.row.is_some() {
            values.push(Value::UInt(number));
        }
        for ((cells, column), field) in columns.iter().zip(&self.target.columns).zip(self.schema.fields()) {
            let cell = cells.get(row);
            let fail = |reason: String, hint: &str| SourceError::Unfit {
                row: number,
                column: field.name().clone(),
                reason,
                hint: Some(hint.into()),
            };
            if matches!(cell, Cell::Null) && column.is_key {
                return Err(null_in_key(number, field.name()));
            }
            if matches!(cell, Cell::Null) && !column.is_nullable {
                return Err(fail(
                    "NULL in a column that is NOT NULL".into(),
                    "exclude the row, or replace NULL in the query, as with coalesce()",
                ));
            }
            values.push(column.rule.value(cell).map_err(|unfit| fail(unfit.reason, unfit.hint))?);
        }
        let Some(loader) = &mut self.loader else {
            return Err(SourceError::Unsupported("a write after an error".into()));
        };
        match loader.push(values, &self.is_binary).await {
            Ok(bytes) => {
                (self.rows, self.bytes) = (number, self.bytes + bytes);
                Ok(())
            }
            Err(error) => {
                self.loader = None;
                Err(error)
            }
        }
    }

    async fn end(&mut self) -> Result<()> {
        let Some(loader) = self.loader.take() else {
            return Err(SourceError::Unsupported("a write after an error".into()));
        };
        let mut conn = loader.finish().await?;
        self.target.merge(&mut conn, &self.server).await?;
        conn.query_drop("COMMIT")
            .await
            .map_err(|error| errors::statement(&self.server, "COMMIT", self.rows, error))?;
        self.target.swap(&mut conn, &self.server).await?;
        self.target.new = None;
        self.mark = None;
        // All rows are there, so an error here does not matter.
        let _ = conn.disconnect().await;
        Ok(())
    }
}

impl Drop for MySqlDestination {
    /// Ends what still runs at the server, and drops the table of a copy that was not finished.
    fn drop(&mut self) {
        let (mark, new) = (self.mark.take(), self.target.new.take());
        if mark.is_none() && new.is_none() {
            return;
        }
        let opts = self.opts.clone();
        cancel::send(self.server.clone(), async move {
            let end = async {
                let mut conn = Conn::new(opts).await?;
                // A connection that could not be killed ends by itself, so the table is dropped anyway.
                let killed = match mark {
                    Some(mark) => kill_marked(&mut conn, &mark).await.map(drop),
                    None => Ok(()),
                };
                if let Some(new) = new {
                    conn.query_drop(format!("SET lock_wait_timeout = {}", DROP_MAX.as_secs())).await?;
                    conn.query_drop(format!("DROP TABLE IF EXISTS {new}")).await?;
                }
                conn.disconnect().await?;
                killed
            };
            match timeout(2 * DROP_MAX, end).await {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(errors::words(&error)),
                Err(_) => Err(format!("no answer within {} s", 2 * DROP_MAX.as_secs())),
            }
        });
    }
}

#[async_trait]
impl Destination for MySqlDestination {
    fn notices(&self) -> Vec<String> {
        self.target.notices.clone()
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let fields = self.schema.fields().iter().map(|field| &**field);
        let columns = Cells::of_batch(&batch, fields, self.rows)?;
        for row in 0..batch.num_rows() {
            self.push(&columns, row).await?;
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<Written> {
        self.end().await?;
        Ok(Written { rows: self.rows, bytes: self.bytes })
    }
}
