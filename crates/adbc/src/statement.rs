//! Statements: a query whose rows are a stream, or a table that is written.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionStatement, OptionValue};
use adbc_core::{CancelHandle, Optionable, PartitionedResult, Statement, constants};
use arrow_array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::Schema;
use lightship::blocking::{self, Canceller, Connection, Reader, RowProgress as Progress};
use lightship::{Location, StatementInfo, Target, WriteMode};

use crate::bound::{BoundReader, no_partitions};
use crate::errors::{error, from_library, not_implemented};
use crate::partitions;
use crate::settings::{Settings, double_of, int_of, text_of, unset};

/// The query or the write that runs, for those who cancel it.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<Option<Cancel>>>);

enum Cancel {
    /// A query; and, if it is executed several times, what keeps the next execution from beginning.
    Query(Canceller, Option<Arc<AtomicBool>>),
    Write(Arc<AtomicBool>),
}

impl Running {
    fn set(&self, cancel: Option<Cancel>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = cancel;
    }

    /// Notes which query is to be cancelled.
    pub(crate) fn set_query(&self, canceller: Canceller, is_cancelled: Option<Arc<AtomicBool>>) {
        self.set(Some(Cancel::Query(canceller, is_cancelled)));
    }

    /// Runs a query and waits until its columns are known.
    pub(crate) fn query(&self, connection: &Connection, sql: &str) -> Result<Reader> {
        let mut reader = connection.start(sql).map_err(|failure| from_library(&failure))?;
        self.set_query(reader.canceller(), None);
        reader.begin().map_err(|failure| from_library(&failure))?;
        Ok(reader)
    }

    /// Writes rows. Returns their number.
    fn write(
        &self,
        batches: Box<dyn RecordBatchReader + Send>,
        to: Target,
        settings: &Settings,
    ) -> Result<u64> {
        let asked = Arc::new(AtomicBool::new(false));
        self.set(Some(Cancel::Write(asked.clone())));
        let written = blocking::write(batches, to, settings.options()?, &mut || {
            if asked.load(Ordering::Relaxed) {
                return Err(lightship::Error::new(lightship::ErrorKind::Cancelled, "cancelled"));
            }
            Ok(())
        });
        self.set(None);
        Ok(written.map_err(|failure| from_library(&failure))?.rows)
    }
}

impl CancelHandle for Running {
    fn try_cancel(&self) -> Result<()> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(Cancel::Query(canceller, is_cancelled)) => {
                if let Some(is_cancelled) = is_cancelled {
                    is_cancelled.store(true, Ordering::Relaxed);
                }
                canceller.cancel();
            }
            Some(Cancel::Write(asked)) => asked.store(true, Ordering::Relaxed),
            None => return Err(error(Status::InvalidState, "nothing runs that could be cancelled")),
        }
        Ok(())
    }
}

/// A query, or rows to be written.
pub struct LightshipStatement {
    connection: Connection,
    settings: Settings,
    read_only: bool,
    sql: Option<String>,
    bound: Option<Box<dyn RecordBatchReader + Send>>,
    ingest: Ingest,
    running: Running,
    /// Of the last query.
    progress: Option<Arc<Progress>>,
}

/// Where rows are to be written.
#[derive(Debug, Clone, Default)]
struct Ingest {
    table: Option<String>,
    schema: Option<String>,
    mode: Option<String>,
}

impl Ingest {
    fn target(&self, location: &Location, table: &str) -> Result<Target> {
        let mode = match self.mode.as_deref().unwrap_or(constants::ADBC_INGEST_OPTION_MODE_CREATE) {
            constants::ADBC_INGEST_OPTION_MODE_CREATE => WriteMode::Create,
            constants::ADBC_INGEST_OPTION_MODE_APPEND => WriteMode::Existing,
            constants::ADBC_INGEST_OPTION_MODE_REPLACE => WriteMode::Replace,
            constants::ADBC_INGEST_OPTION_MODE_CREATE_APPEND => WriteMode::Append,
            other => return Err(error(Status::InvalidArguments, format!("unknown ingest mode `{other}`"))),
        };
        let target = match location {
            Location::Postgres(_) | Location::MySql(_) | Location::Sqlite(_) | Location::Adbc(_) => {
                let table = lightship::TableName { schema: self.schema.clone(), name: table.to_owned() };
                Target::table(location, table, mode)
            }
            other => Target::at(other, Some(table), Some(mode), &[]),
        };
        target.map_err(|failure| error(Status::NotImplemented, failure.with_hint()))
    }
}

/// The result of a query.
enum Query {
    Once(Box<Reader>),
    Bound(Box<BoundReader>),
}

impl LightshipStatement {
    pub(crate) fn new(connection: Connection, settings: Settings, read_only: bool) -> Self {
        let running = Running::default();
        let ingest = Ingest::default();
        Self { connection, settings, read_only, sql: None, bound: None, ingest, running, progress: None }
    }

    fn sql(&self) -> Result<&str> {
        self.sql.as_deref().ok_or_else(|| error(Status::InvalidState, "no query was set"))
    }

    /// Executes the query: once, or once for each row of the bound parameters, which belong to this execution only.
    fn query(&mut self) -> Result<Query> {
        let bound = self.bound.take();
        self.progress = None;
        let sql = self.sql()?;
        Ok(match bound {
            None => {
                let reader = self.running.query(&self.connection, sql)?;
                self.progress = Some(reader.progress());
                Query::Once(Box::new(reader))
            }
            Some(rows) => {
                let (connection, running) = (self.connection.clone(), self.running.clone());
                Query::Bound(Box::new(BoundReader::begin(connection, running, sql.to_owned(), rows)?))
            }
        })
    }

    fn describe(&self) -> Result<StatementInfo> {
        self.connection.describe(self.sql()?).map_err(|failure| from_library(&failure))
    }

    fn write(&mut self, table: &str) -> Result<u64> {
        // Also if it fails: they belong to this execution only.
        let bound = self.bound.take();
        if self.read_only {
            return Err(error(Status::InvalidState, "the connection is read-only"));
        }
        let [location] = self.connection.locations() else {
            return Err(not_implemented("writing to several places"));
        };
        let target = self.ingest.target(location, table)?;
        let Some(batches) = bound else {
            return Err(error(Status::InvalidState, "no rows were bound"));
        };
        self.running.write(batches, target, &self.settings)
    }
}

impl Optionable for LightshipStatement {
    type Option = OptionStatement;

    fn set_option(&mut self, key: OptionStatement, value: OptionValue) -> Result<()> {
        let is_off = |value: &OptionValue| bool::try_from(value).is_ok_and(|on| !on);
        match &key {
            OptionStatement::TargetTable => {
                (self.ingest.table, self.sql) = (Some(text_of(value)?), None);
            }
            OptionStatement::TargetDbSchema => {
                self.ingest.schema = Some(text_of(value)?).filter(|schema| !schema.is_empty());
            }
            OptionStatement::IngestMode => self.ingest.mode = Some(text_of(value)?),
            OptionStatement::TargetCatalog => return Err(not_implemented("writing to another catalog")),
            OptionStatement::Progress | OptionStatement::MaxProgress => {
                return Err(error(Status::InvalidArguments, format!("{} can only be read", key.as_ref())));
            }
            OptionStatement::Temporary if is_off(&value) => {}
            OptionStatement::Temporary => return Err(not_implemented("temporary tables")),
            OptionStatement::Incremental if is_off(&value) => {}
            OptionStatement::Incremental => return Err(not_implemented("incremental execution")),
            _ => {
                self.settings.set(key.as_ref(), value)?;
                self.connection = self.connection.with_options(self.settings.options()?);
            }
        }
        Ok(())
    }

    fn get_option_string(&self, key: OptionStatement) -> Result<String> {
        let of_ingest = match &key {
            OptionStatement::TargetTable => &self.ingest.table,
            OptionStatement::TargetDbSchema => &self.ingest.schema,
            OptionStatement::IngestMode => {
                let mode = self.ingest.mode.as_deref();
                return Ok(mode.unwrap_or(constants::ADBC_INGEST_OPTION_MODE_CREATE).to_owned());
            }
            OptionStatement::Temporary | OptionStatement::Incremental => {
                return Ok(constants::ADBC_OPTION_VALUE_DISABLED.to_owned());
            }
            OptionStatement::Progress | OptionStatement::MaxProgress => {
                return self.get_option_double(key).map(|progress| progress.to_string());
            }
            OptionStatement::TargetCatalog => return Err(unset(key.as_ref())),
            _ => return self.settings.get(key.as_ref()),
        };
        of_ingest.clone().ok_or_else(|| unset(key.as_ref()))
    }

    fn get_option_bytes(&self, key: OptionStatement) -> Result<Vec<u8>> {
        self.get_option_string(key).map(String::into_bytes)
    }

    fn get_option_int(&self, key: OptionStatement) -> Result<i64> {
        int_of(&self.get_option_string(key)?)
    }

    fn get_option_double(&self, key: OptionStatement) -> Result<f64> {
        let progress = self.progress.as_deref();
        match key {
            // In rows.
            OptionStatement::Progress => return Ok(progress.map_or(0, Progress::rows) as f64),
            // 0 if it is not known.
            OptionStatement::MaxProgress => {
                return Ok(progress.and_then(Progress::rows_max).unwrap_or(0) as f64);
            }
            _ => {}
        }
        double_of(&self.get_option_string(key)?)
    }
}

impl Statement for LightshipStatement {
    fn bind(&mut self, batch: RecordBatch) -> Result<()> {
        let schema = batch.schema();
        self.bound = Some(Box::new(RecordBatchIterator::new([Ok(batch)], schema)));
        Ok(())
    }

    fn bind_stream(&mut self, reader: Box<dyn RecordBatchReader + Send>) -> Result<()> {
        self.bound = Some(reader);
        Ok(())
    }

    fn execute(&mut self) -> Result<Box<dyn RecordBatchReader + Send + 'static>> {
        if let Some(table) = self.ingest.table.clone() {
            self.write(&table)?;
            return Ok(Box::new(RecordBatchIterator::new([], Arc::new(Schema::empty()))));
        }
        let rows: Box<dyn RecordBatchReader + Send> = match self.query()? {
            Query::Once(rows) => rows,
            Query::Bound(rows) => rows,
        };
        Ok(rows)
    }

    fn execute_update(&mut self) -> Result<Option<i64>> {
        if let Some(table) = self.ingest.table.clone() {
            return Ok(i64::try_from(self.write(&table)?).ok());
        }
        let affected = match self.query()? {
            Query::Once(mut rows) => {
                while rows.next_batch().map_err(|failure| from_library(&failure))?.is_some() {}
                rows.affected()
            }
            Query::Bound(rows) => rows.run()?,
        };
        // A query affects no rows.
        Ok(affected.and_then(|affected| i64::try_from(affected).ok()))
    }

    fn execute_schema(&mut self) -> Result<Schema> {
        Ok(self.describe()?.columns.as_ref().clone())
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        if self.bound.take().is_some() {
            return Err(no_partitions());
        }
        partitions::of(&self.connection, self.sql()?)
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        Ok(self.describe()?.parameters.as_ref().clone())
    }

    fn prepare(&mut self) -> Result<()> {
        match self.sql {
            Some(_) => Ok(()),
            None => Err(error(Status::InvalidState, "no query was set")),
        }
    }

    fn set_sql_query(&mut self, query: impl AsRef<str>) -> Result<()> {
        (self.sql, self.ingest.table) = (Some(query.as_ref().to_owned()), None);
        Ok(())
    }

    fn set_substrait_plan(&mut self, _plan: impl AsRef<[u8]>) -> Result<()> {
        Err(not_implemented("Substrait"))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.running.clone())
    }
}
