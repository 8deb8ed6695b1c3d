//! A service over SQLite, for clients that are tried by hand: see `crates/cli/tests/clients`.
//!
//!     LIGHTSHIP_PG_PORT=5433 cargo test -p lightship-pgserver --test it lite -- --ignored

use std::pin::Pin;
use std::sync::{Arc, Mutex};

use arrow_array::*;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use lightship_pgserver::{PgConfig, PgServer};
use lightship_transport::net::{Answer, Prepared, Service};
use lightship_wire::control::{ErrorCode, Failure, Query, Reason};
use rusqlite::Connection;
use rusqlite::types::{Value, ValueRef};

const TABLES: &str = "
CREATE TABLE nation (n_nationkey bigint, n_name text, n_regionkey bigint, n_size double, n_founded date, n_blob blob);
WITH RECURSIVE g(v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM g WHERE v < 24)
INSERT INTO nation SELECT v, 'NATION ' || v, v % 5, v / 4.0, v * 1000, x'00ff' FROM g;
CREATE TABLE big (id bigint, name text);
WITH RECURSIVE g(v) AS (SELECT 0 UNION ALL SELECT v + 1 FROM g WHERE v < 99999)
INSERT INTO big SELECT v, 'row ' || v FROM g;
";

struct Lite {
    connection: Mutex<Connection>,
}

fn failure(error: rusqlite::Error) -> Failure {
    let message = error.to_string();
    let reason = if message.starts_with("no such table") { Reason::UndefinedTable } else { Reason::Syntax };
    Failure::new(ErrorCode::Sql, message).because(reason)
}

fn data_type(declared: Option<&str>, first: ValueRef<'_>) -> DataType {
    match (declared, first) {
        (Some("date"), _) => DataType::Date32,
        (Some("bigint"), _) | (None, ValueRef::Integer(_)) => DataType::Int64,
        (Some("double"), _) | (None, ValueRef::Real(_)) => DataType::Float64,
        (Some("blob"), _) | (None, ValueRef::Blob(_)) => DataType::Binary,
        _ => DataType::Utf8,
    }
}

/// A row of a parameter batch as SQLite's values.
fn values(batch: &RecordBatch) -> Vec<Value> {
    let value = |array: &ArrayRef| match array.data_type() {
        _ if array.logical_nulls().is_some_and(|nulls| nulls.is_null(0)) => Value::Null,
        DataType::Int16 | DataType::Int32 | DataType::Int64 => {
            let array = arrow_cast::cast(array, &DataType::Int64).unwrap();
            Value::Integer(arrow_array::cast::as_primitive_array::<types::Int64Type>(&array).value(0))
        }
        DataType::Float64 => {
            Value::Real(arrow_array::cast::as_primitive_array::<types::Float64Type>(array).value(0))
        }
        _ => Value::Text(arrow_cast::display::array_value_to_string(array, 0).unwrap()),
    };
    batch.columns().iter().map(value).collect()
}

impl Lite {
    fn run(&self, sql: &str, parameters: &[Value]) -> Result<RecordBatch, Failure> {
        if sql.contains("information_schema.columns") {
            let columns = "SELECT 'public', m.name, c.name, 'YES', CASE lower(c.type) WHEN 'bigint' THEN 'Int64' \
                WHEN 'double' THEN 'Float64' WHEN 'blob' THEN 'Binary' WHEN 'date' THEN 'Date32' ELSE 'Utf8' END \
                FROM sqlite_master m, pragma_table_info(m.name) c ORDER BY 2, c.cid";
            return self.run(columns, &[]);
        }
        let connection = self.connection.lock().unwrap();
        let sql = sql.replace('$', "?");
        let mut statement = connection.prepare(&sql).map_err(failure)?;
        let names: Vec<_> = statement
            .columns()
            .map(|column| (column.name().to_owned(), column.decl_type().map(str::to_lowercase)))
            .collect();
        let mut rows = statement.query(rusqlite::params_from_iter(parameters)).map_err(failure)?;
        let mut columns: Vec<Vec<Value>> = vec![Vec::new(); names.len()];
        while let Some(row) = rows.next().map_err(failure)? {
            for (index, column) in columns.iter_mut().enumerate() {
                column.push(row.get(index).map_err(failure)?);
            }
        }
        let mut fields = Vec::new();
        let mut arrays: Vec<ArrayRef> = Vec::new();
        for ((name, declared), values) in names.iter().zip(columns) {
            let kind = data_type(declared.as_deref(), values.first().map_or(ValueRef::Null, ValueRef::from));
            let integers = values.iter().map(|value| match value {
                Value::Integer(number) => Some(*number),
                _ => None,
            });
            arrays.push(match kind {
                DataType::Int64 => Arc::new(integers.collect::<Int64Array>()),
                DataType::Date32 => {
                    Arc::new(integers.map(|days| days.map(|days| days as i32)).collect::<Date32Array>())
                }
                DataType::Float64 => {
                    Arc::new(Float64Array::from_iter(values.iter().map(|value| match value {
                        Value::Real(number) => Some(*number),
                        _ => None,
                    })))
                }
                DataType::Binary => {
                    Arc::new(BinaryArray::from_iter(values.iter().map(|value| match value {
                        Value::Blob(bytes) => Some(bytes),
                        _ => None,
                    })))
                }
                _ => Arc::new(StringArray::from_iter(values.iter().map(|value| match value {
                    Value::Text(text) => Some(text),
                    _ => None,
                }))),
            });
            fields.push(Field::new(name, kind, true));
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)
            .map_err(|error| Failure::new(ErrorCode::Internal, error.to_string()))
    }
}

fn answer(batch: RecordBatch) -> Answer {
    Answer::new(batch.schema(), None, Box::pin(futures::stream::iter([Ok(batch)])))
}

impl Service for Lite {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async { self.run(&query.sql, &[]).map(answer) })
    }

    fn prepare<'a>(
        &'a self,
        sql: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Prepared, Failure>> + Send + 'a>> {
        Box::pin(async move {
            let count = sql.matches('$').count();
            let columns: SchemaRef = self.run(sql, &vec![Value::Integer(1); count])?.schema();
            let parameters = (1..=count).map(|index| Field::new(format!("${index}"), DataType::Int64, true));
            Ok(Prepared {
                columns,
                parameters: Arc::new(Schema::new(parameters.collect::<Vec<_>>())),
                is_update: false,
                is_ordered: true,
            })
        })
    }

    fn execute<'a>(
        &'a self,
        sql: &'a str,
        parameters: &'a RecordBatch,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async move { self.run(sql, &values(parameters)).map(answer) })
    }
}

#[test]
#[ignore = "it serves clients that are started by hand"]
fn serve() {
    let variable = |name: &str| std::env::var(name).ok();
    let port: u16 = variable("LIGHTSHIP_PG_PORT").and_then(|port| port.parse().ok()).unwrap_or(5433);
    let tokens = variable("LIGHTSHIP_PG_TOKEN").into_iter().collect();
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(TABLES).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    runtime.block_on(async {
        let server =
            PgServer::bind(([127, 0, 0, 1], port).into(), PgConfig { tokens, ..PgConfig::default() })
                .unwrap();
        server.run(Arc::new(Lite { connection: Mutex::new(connection) }), stopped).await.unwrap();
    });
}
