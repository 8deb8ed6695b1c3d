//! PostgreSQL's catalog: an engine of its own, filled with the tables of the service (decision 0026).

mod column;
mod expr;
mod fill;
mod functions;
mod guard;
mod keys;
mod recognise;
mod rewrite;
mod sets;
mod tables;
mod texts;

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema};
use lightship_transport::net::Service;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};
use tokio::sync::{Mutex, Semaphore, oneshot};

pub(crate) use self::recognise::CatalogQuery;

use self::column::Column;
use self::fill::TableEntry;
use self::functions::SharedNames;
use self::recognise::{Aliases, recognise};
use self::rewrite::Rewriter;
use self::tables::type_of_column;
use crate::error::{PgError, PgResult, code};
use crate::rows::RowStream;
use crate::settings::Settings;
use crate::types::{PgColumn, oid};

/// How long what is known of the service's tables is used again. A tool's command is several statements.
const FRESH: Duration = Duration::from_secs(1);
/// What the result of a query may hold.
const RESULT_BYTES_MAX: usize = 64 << 20;
/// The longest value and row.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// For the recursion over syntax trees, whose depth is limited.
const STACK_BYTES: usize = 64 << 20;
/// Statements that may be looked at at a time. Besides, one query runs.
const READERS_MAX: usize = 4;

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) process: u32,
    pub(crate) settings: Settings,
    /// The present time, in microseconds from 1970.
    pub(crate) now_us: i64,
}

impl Caller {
    /// What `version()` returns.
    fn version(&self) -> String {
        let version = self.settings.get("server_version").unwrap_or_default();
        format!("PostgreSQL {version}, a node of Lightship")
    }
}

/// The catalog of a server.
pub(crate) struct Catalog {
    engine: Arc<Mutex<Engine>>,
    /// What was last found out about the service's tables.
    known: Mutex<Option<(Instant, Arc<Vec<TableEntry>>)>>,
    /// Threads that may look at statements.
    readers: Arc<Semaphore>,
}

struct Engine {
    connection: Connection,
    names: SharedNames,
    /// What the tables were filled from.
    filled: Option<Arc<Vec<TableEntry>>>,
    oids: fill::Oids,
}

/// Runs work that recurses over a syntax tree, on a thread of its own. The work goes on if nobody waits for it any more, so
/// what limits the number of threads must belong to it.
async fn on_large_stack<T: Send + 'static>(
    work: impl FnOnce() -> PgResult<T> + Send + 'static,
) -> PgResult<T> {
    let (sender, receiver) = oneshot::channel();
    let thread = std::thread::Builder::new().name("pg-catalog".into()).stack_size(STACK_BYTES);
    let failed = |_| PgError::new(code::INTERNAL_ERROR, "the catalog has no thread");
    thread.spawn(move || drop(sender.send(work()))).map_err(failed)?;
    receiver.await.map_err(|_| PgError::new(code::INTERNAL_ERROR, "a query of the catalog has failed"))?
}

impl Catalog {
    pub(crate) fn new() -> rusqlite::Result<Self> {
        Ok(Self {
            engine: Arc::new(Mutex::new(Engine::new()?)),
            known: Mutex::default(),
            readers: Arc::new(Semaphore::new(READERS_MAX)),
        })
    }

    /// The query, if it is one of the catalog or about the session.
    ///
    /// # Errors
    /// If it reads tables of the service, too.
    pub(crate) async fn recognise(&self, sql: &str) -> PgResult<Option<CatalogQuery>> {
        if !recognise::may_be(sql) {
            return Ok(None);
        }
        let sql = sql.to_owned();
        // The semaphore is never closed.
        let slot = self.readers.clone().acquire_owned().await.ok();
        on_large_stack(move || {
            let _slot = slot;
            recognise(&sql)
        })
        .await
    }

    /// The tables of the service, if the query needs them.
    async fn tables(
        &self,
        query: &CatalogQuery,
        service: &dyn Service,
    ) -> PgResult<Option<Arc<Vec<TableEntry>>>> {
        // Names of tables are in texts and numbers, too ('t'::regclass).
        let mut known = self.known.lock().await;
        if let Some((at, tables)) = &*known
            && at.elapsed() < FRESH
        {
            return Ok(Some(tables.clone()));
        }
        let found = match fill::fetch(service).await {
            Ok(found) => found,
            // select version() needs no tables.
            Err(_) if !query.reads => return Ok(None),
            Err(error) => return Err(error),
        };
        let tables = match &*known {
            // The same, so that nothing is filled again.
            Some((_, tables)) if **tables == found => tables.clone(),
            _ => Arc::new(found),
        };
        *known = Some((Instant::now(), tables.clone()));
        Ok(Some(tables))
    }

    /// Runs a query.
    pub(crate) async fn run(
        &self,
        query: CatalogQuery,
        parameters: Vec<Value>,
        caller: Caller,
        service: &dyn Service,
    ) -> PgResult<RowStream> {
        let tables = self.tables(&query, service).await?;
        let mut engine = self.engine.clone().lock_owned().await;
        // Dropped with this future, when the statement is cancelled or the client has gone: others wait for the engine.
        let waiting = Arc::new(());
        let waits = Arc::downgrade(&waiting);
        let rows = on_large_stack(move || {
            engine.prepare(tables, &caller)?;
            engine.run(query, &parameters, &caller, waits)
        });
        let rows = rows.await;
        drop(waiting);
        rows
    }

    /// The types of a query's parameters, and its columns.
    pub(crate) async fn describe(
        &self,
        query: CatalogQuery,
        service: &dyn Service,
    ) -> PgResult<(Vec<u32>, Vec<PgColumn>)> {
        let tables = self.tables(&query, service).await?;
        let mut engine = self.engine.clone().lock_owned().await;
        let waiting = Arc::new(());
        let waits = Arc::downgrade(&waiting);
        let described = on_large_stack(move || {
            // Names and types of columns depend on nobody.
            let settings = Settings::new("");
            let caller =
                Caller { user: String::new(), database: String::new(), process: 0, settings, now_us: 0 };
            engine.prepare(tables, &caller)?;
            let CatalogQuery { query, parameters, columns: known, aliases, .. } = query;
            let sql = Rewriter::new(&caller).rewrite(query)?;
            engine.guarded(waits, |engine| {
                let statement = engine.connection.prepare(&sql).map_err(|error| failed(&error))?;
                Ok((parameters, columns(&statement, known.as_deref(), &aliases)))
            })
        });
        let described = described.await;
        drop(waiting);
        described
    }
}

impl Engine {
    fn new() -> rusqlite::Result<Self> {
        use rusqlite::config::DbConfig;
        use rusqlite::limits::Limit;
        let connection = Connection::open_in_memory()?;
        // A name in double quotes is never a text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX as i32)?;
        connection.execute_batch("PRAGMA temp_store = memory; PRAGMA cache_size = -8192;")?;
        let names = SharedNames::default();
        functions::add(&connection, &names)?;
        let mut engine = Self { connection, names, filled: None, oids: fill::Oids::default() };
        engine.create()?;
        Ok(engine)
    }

    /// Brings the tables up to date.
    fn prepare(&mut self, tables: Option<Arc<Vec<TableEntry>>>, caller: &Caller) -> PgResult<()> {
        self.release()?;
        if let Some(tables) = tables
            && self.filled.as_ref().is_none_or(|filled| !Arc::ptr_eq(filled, &tables))
        {
            self.fill(&tables).map_err(|error| failed(&error))?;
            self.filled = Some(tables);
        }
        self.introduce(caller).map_err(|error| failed(&error))
    }

    /// Runs a query, as long as somebody holds what `waits` refers to.
    fn run(
        &mut self,
        query: CatalogQuery,
        parameters: &[Value],
        caller: &Caller,
        waits: Weak<()>,
    ) -> PgResult<RowStream> {
        let (known, aliases) = (query.columns, query.aliases);
        let sql = Rewriter::new(caller).rewrite(query.query)?;
        self.guarded(waits, |engine| engine.collect(&sql, parameters, known.as_deref(), &aliases))
    }

    fn collect(
        &self,
        sql: &str,
        parameters: &[Value],
        known: Option<&[(String, Option<u32>)]>,
        aliases: &Aliases,
    ) -> PgResult<RowStream> {
        tracing::trace!(sql, "query of the catalog");
        let mut statement = self.connection.prepare(sql).map_err(|error| failed(&error))?;
        let wanted = statement.parameter_count();
        if parameters.len() < wanted {
            let message = format!("the statement has {wanted} parameters, and {} values", parameters.len());
            return Err(PgError::new(code::PROTOCOL_VIOLATION, message));
        }
        let columns = columns(&statement, known, aliases);
        let mut builders: Vec<_> = columns.iter().map(|column| Column::new(column.oid)).collect();
        let mut rows =
            statement.query(params_from_iter(&parameters[..wanted])).map_err(|error| failed(&error))?;
        let (mut count, mut bytes) = (0, 0);
        while let Some(row) = rows.next().map_err(|error| failed(&error))? {
            for (index, builder) in builders.iter_mut().enumerate() {
                let value = row.get_ref(index).map_err(|error| failed(&error))?;
                bytes += builder.push(value, &self.names, columns[index].oid)?;
            }
            count += 1;
            if bytes > RESULT_BYTES_MAX {
                let error =
                    PgError::new(code::OUT_OF_MEMORY, "the result of a query of the catalog is too large");
                return Err(error.hint("select fewer columns or rows"));
            }
        }
        let arrays: Vec<ArrayRef> = builders.into_iter().map(Column::finish).collect();
        let field = |(column, array): (&PgColumn, &ArrayRef)| {
            Field::new(&column.name, array.data_type().clone(), true)
        };
        let schema = Schema::new(columns.iter().zip(&arrays).map(field).collect::<Vec<_>>());
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        let batch = RecordBatch::try_new_with_options(Arc::new(schema), arrays, &options)?;
        Ok(RowStream::of_batch(columns, batch))
    }
}

/// The columns of a statement's result.
fn columns(
    statement: &rusqlite::Statement<'_>,
    known: Option<&[(String, Option<u32>)]>,
    aliases: &Aliases,
) -> Vec<PgColumn> {
    let column = |(index, column): (usize, rusqlite::Column<'_>)| {
        let known = known.and_then(|known| known.get(index));
        let name = known.map_or_else(|| column.name().to_owned(), |(name, _)| name.clone());
        let declared = column.decl_type().map(|declared| tables::declared(&declared.to_lowercase()));
        let oid = declared
            .or_else(|| known.and_then(|(_, oid)| *oid))
            .or_else(|| type_of_column(column.name()))
            .or_else(|| aliases.get(column.name()).copied().flatten());
        PgColumn::new(name, oid.unwrap_or(oid::TEXT))
    };
    statement.columns().enumerate().map(column).collect()
}

fn failed(error: &rusqlite::Error) -> PgError {
    use rusqlite::ErrorCode::{AuthorizationForStatementDenied, OutOfMemory, TooBig};
    let message = match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        rusqlite::Error::SqlInputError { msg, .. } => msg.clone(),
        other => other.to_string(),
    };
    let code = match error.sqlite_error_code() {
        Some(TooBig) => code::PROGRAM_LIMIT,
        Some(OutOfMemory) => code::OUT_OF_MEMORY,
        Some(AuthorizationForStatementDenied) => code::FEATURE_NOT_SUPPORTED,
        // SQLite has one code for all that is wrong with a statement.
        _ => match message.as_str() {
            text if text.starts_with("no such table") => code::UNDEFINED_TABLE,
            text if text.starts_with("no such column") => code::UNDEFINED_COLUMN,
            text if text.starts_with("no such function") => code::UNDEFINED_FUNCTION,
            text if text.contains("too deep") || text.contains("too many") => code::PROGRAM_LIMIT,
            text if text.starts_with("not authorized") => code::FEATURE_NOT_SUPPORTED,
            text if text.contains("syntax error") => code::FEATURE_NOT_SUPPORTED,
            text if text.contains("does not exist") => code::UNDEFINED_OBJECT,
            _ => code::DATA_EXCEPTION,
        },
    };
    PgError::new(code, format!("the catalog: {message}"))
}

/// The short name of a type as SQL has it, and whether it is one of arrays.
fn names_of_types(name: &str) -> (&'static str, bool) {
    let lower = name.to_lowercase();
    let is_list = lower.ends_with("[]") || lower.starts_with("array");
    let base = lower.trim_end_matches("[]");
    let base = base.rsplit('.').next().unwrap_or(base).trim().trim_matches('"');
    let base = base.split('(').next().unwrap_or(base).trim();
    let short = match base {
        "boolean" | "bool" => "bool",
        "smallint" | "int2" => "int2",
        "integer" | "int" | "int4" => "int4",
        "bigint" | "int8" => "int8",
        "real" | "float4" => "float4",
        "double precision" | "double" | "float" | "float8" => "float8",
        "numeric" | "decimal" => "numeric",
        "oid" => "oid",
        "xid" => "xid",
        "name" => "name",
        "char" => "char",
        "cstring" => "cstring",
        "character" | "bpchar" => "bpchar",
        "varchar" | "character varying" => "varchar",
        "regclass" => "regclass",
        "regtype" => "regtype",
        "regproc" => "regproc",
        "regprocedure" => "regprocedure",
        "regnamespace" => "regnamespace",
        "regrole" => "regrole",
        "text" => "text",
        _ => "other",
    };
    (short, is_list)
}

#[cfg(test)]
mod tests;
