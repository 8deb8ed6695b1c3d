//! A service with a few tables, whose statements are known texts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrow_array::builder::{Int32Builder, ListBuilder};
use arrow_array::*;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use futures::StreamExt as _;
use lightship_transport::net::{Answer, Prepared, Rows, Service};
use lightship_wire::control::{ErrorCode, Failure, Query, Reason};

/// Rows of a batch of `numbers`, and its batches.
pub(crate) const BATCH_ROWS: i64 = 1000;
pub(crate) const BATCHES: i64 = 1000;

/// The service.
#[derive(Default)]
pub(crate) struct Tables {
    /// Batches that were taken from `numbers`.
    pub(crate) batches: Arc<AtomicU64>,
    /// Results that are alive.
    pub(crate) alive: Arc<AtomicUsize>,
    /// The statements that were asked for, but those of the catalog.
    pub(crate) asked: std::sync::Mutex<Vec<String>>,
}

/// Counts a result that is alive.
struct Alive(Arc<AtomicUsize>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true)))
        .unwrap()
}

/// Two rows, the second of which is NULL.
pub(crate) fn types() -> RecordBatch {
    let mut list = ListBuilder::new(Int32Builder::new());
    list.append_value([Some(1), None, Some(3)]);
    list.append_null();
    let decimals = Decimal128Array::from(vec![Some(12_345), None]).with_precision_and_scale(15, 2).unwrap();
    batch(vec![
        ("b", Arc::new(BooleanArray::from(vec![Some(true), None]))),
        ("i2", Arc::new(Int16Array::from(vec![Some(-2), None]))),
        ("i4", Arc::new(Int32Array::from(vec![Some(4), None]))),
        ("i8", Arc::new(Int64Array::from(vec![Some(8), None]))),
        ("f8", Arc::new(Float64Array::from(vec![Some(1.5), None]))),
        ("n", Arc::new(decimals)),
        ("t", Arc::new(StringViewArray::from(vec![Some("a,\"b\"\n\\"), None]))),
        ("x", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None]))),
        ("d", Arc::new(Date32Array::from(vec![Some(19_782), None]))),
        ("ts", Arc::new(TimestampMicrosecondArray::from(vec![Some(1_500_000), None]))),
        (
            "tz",
            Arc::new(TimestampNanosecondArray::from(vec![Some(1_000_000_000), None]).with_timezone("UTC")),
        ),
        ("l", Arc::new(list.finish())),
    ])
}

fn columns() -> RecordBatch {
    let text = |texts: Vec<&str>| Arc::new(StringArray::from(texts)) as ArrayRef;
    let schema = types().schema();
    let rows = schema.fields().len() + 1;
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    let kinds: Vec<String> = schema.fields().iter().map(|field| field.data_type().to_string()).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    batch(vec![
        ("table_schema", text(vec!["public"; rows])),
        ("table_name", text([vec!["numbers"], vec!["types"; rows - 1]].concat())),
        ("column_name", text([vec!["n"], names].concat())),
        ("is_nullable", text([vec!["NO"], vec!["YES"; rows - 1]].concat())),
        ("data_type", text([vec!["Int64"], kinds].concat())),
    ])
}

fn not_found(sql: &str) -> Failure {
    match sql.to_lowercase().rsplit_once("from ") {
        Some((_, table)) => {
            Failure::new(ErrorCode::Sql, format!("no table {table}")).because(Reason::UndefinedTable)
        }
        None => Failure {
            position: Some((1, 1)),
            ..Failure::new(ErrorCode::Sql, "expected a statement").because(Reason::Syntax)
        },
    }
}

impl Tables {
    fn answer(
        &self,
        schema: SchemaRef,
        rows: impl futures::Stream<Item = Result<RecordBatch, Failure>> + Send + 'static,
    ) -> Answer {
        self.alive.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(self.alive.clone());
        let rows: Rows = Box::pin(rows.inspect(move |_| {
            let _ = &alive;
        }));
        Answer::new(schema, None, rows)
    }

    fn one(&self, batch: RecordBatch) -> Answer {
        self.answer(batch.schema(), futures::stream::iter([Ok(batch)]))
    }

    fn run(&self, sql: &str) -> Result<Answer, Failure> {
        if sql.contains("information_schema.columns") {
            return Ok(self.one(columns()));
        }
        self.asked.lock().unwrap().push(sql.to_owned());
        let numbers = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
        let batches = self.batches.clone();
        let of_batch = move |index: i64| {
            let first = index * BATCH_ROWS;
            let array = Int64Array::from_iter_values(first..first + BATCH_ROWS);
            batch(vec![("n", Arc::new(array))])
        };
        Ok(match sql.to_lowercase().as_str() {
            "select 1" => self.one(batch(vec![("1", Arc::new(Int64Array::from(vec![1])))])),
            "select * from wide" => {
                let names: Vec<String> = (0..1000).map(|number| format!("column_{number}")).collect();
                let column = || Arc::new(Int32Array::from(vec![1])) as ArrayRef;
                self.one(batch(names.iter().map(|name| (name.as_str(), column())).collect()))
            }
            "select * from types" => self.one(types()),
            "select t, i4 from types" => self.one(types().project(&[6, 2]).unwrap()),
            "select * from numbers" => {
                let rows = futures::stream::iter(0..BATCHES).map(move |index| {
                    batches.fetch_add(1, Ordering::SeqCst);
                    Ok(of_batch(index))
                });
                self.answer(numbers, rows)
            }
            "select * from broken" => {
                let failure = Failure::new(ErrorCode::Data, "Divide by zero")
                    .because(Reason::DivisionByZero)
                    .hint("exclude it");
                self.answer(numbers, futures::stream::iter([Ok(of_batch(0)), Err(failure)]))
            }
            "select * from slow" => self.answer(numbers, futures::stream::pending()),
            "select * from nul" => {
                self.one(batch(vec![("s", Arc::new(StringArray::from(vec!["ok", "a\0b"])))]))
            }
            "select * from empty" => self.answer(numbers, futures::stream::empty()),
            "delete from numbers" => self.one(batch(vec![("count", Arc::new(UInt64Array::from(vec![3])))])),
            _ => return Err(not_found(sql)),
        })
    }
}

impl Service for Tables {
    fn query<'a>(
        &'a self,
        query: &'a Query,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async { self.run(&query.sql) })
    }

    /// `select $1` has one parameter, a bigint; other statements have none.
    fn prepare<'a>(
        &'a self,
        sql: &'a str,
    ) -> Pin<Box<dyn Future<Output = Result<Prepared, Failure>> + Send + 'a>> {
        Box::pin(async move {
            if sql == "select $1" {
                let field = Field::new("$1", DataType::Int64, true);
                let schema = Arc::new(Schema::new(vec![field]));
                return Ok(Prepared {
                    columns: schema.clone(),
                    parameters: schema,
                    is_update: false,
                    is_ordered: true,
                });
            }
            let columns = self.run(sql)?.schema;
            let is_update = sql.starts_with("delete");
            Ok(Prepared { columns, parameters: Arc::new(Schema::empty()), is_update, is_ordered: true })
        })
    }

    /// The parameters come back.
    fn execute<'a>(
        &'a self,
        _sql: &'a str,
        parameters: &'a RecordBatch,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(async { Ok(self.one(parameters.clone())) })
    }
}
