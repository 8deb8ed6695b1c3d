//! A small service: a few tables in memory, and a handful of statements, which it tells apart by their words.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow_array::types::{Decimal128Type, Int8Type, Int32Type};
use arrow_array::*;
use arrow_buffer::OffsetBuffer;
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit, UnionFields};
use arrow_select::concat::concat_batches;
use futures::{Stream, StreamExt, stream};
use lightship_transport::net::{Answer, Prepared, Rows, Service};
use lightship_wire::control::{ErrorCode, Failure, Query};

type Answered<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// The service. `endless` is a statement whose rows do not end; it counts how many of those run.
pub(crate) struct Demo {
    tables: Mutex<BTreeMap<String, RecordBatch>>,
    running: Arc<AtomicUsize>,
}

/// Counts a stream while it exists.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn sql(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::Sql, message)
}

/// Types that statements name.
fn data_type(name: &str) -> Result<DataType, Failure> {
    Ok(match name {
        "bigint" => DataType::Int64,
        "double" => DataType::Float64,
        "varchar" => DataType::Utf8View,
        "boolean" => DataType::Boolean,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "decimal" => DataType::Decimal128(20, 3),
        "unknown" => DataType::Null,
        other => return Err(sql(format!("no type {other}"))),
    })
}

/// What a statement does.
enum Statement {
    Tables,
    Select(RecordBatch),
    /// Returns its parameters, with these names.
    Echo(Vec<(String, DataType)>),
    Insert {
        table: String,
        columns: SchemaRef,
        rows: usize,
    },
    Delete(String),
    Endless,
    Fail(Failure),
    Late,
    Panic,
}

/// The keys: `numbers` has one of two columns, whose rows are not in order.
fn keys() -> RecordBatch {
    let texts = |texts: [&str; 3]| Arc::new(StringArray::from(texts.to_vec())) as ArrayRef;
    let positions = Arc::new(Int64Array::from(vec![2, 1, 1])) as ArrayRef;
    let columns = [
        ("table_catalog", texts(["datafusion"; 3])),
        ("table_schema", texts(["public"; 3])),
        ("table_name", texts(["numbers", "numbers", "line_item"])),
        ("column_name", texts(["n", "text", "n"])),
        ("constraint_name", texts(["numbers_pkey", "numbers_pkey", "line_item_pkey"])),
        ("ordinal_position", positions),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

impl Demo {
    pub(crate) fn new() -> Self {
        let numbers = RecordBatch::try_from_iter_with_nullable([
            ("n", Arc::new(Int64Array::from_iter_values(0..10)) as ArrayRef, false),
            (
                "text",
                Arc::new(StringArray::from_iter((0..10).map(|n| (n % 3 > 0).then(|| format!("text {n}"))))),
                true,
            ),
        ]);
        let numbers = numbers.unwrap();
        let large = RecordBatch::try_from_iter([
            ("n", Arc::new(Int64Array::from_iter_values(0..300_000)) as ArrayRef),
            (
                "text",
                Arc::new(StringViewArray::from_iter_values(
                    (0..300_000).map(|n| format!("a longer text, number {n}")),
                )),
            ),
        ]);
        let large = large.unwrap();
        let rows = RecordBatchOptions::new().with_row_count(Some(3));
        let none = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &rows).unwrap();
        let wide = StringArray::from(vec!["x".repeat(17 << 20)]);
        let tables = [
            ("empty", numbers.slice(0, 0)),
            ("large", large),
            ("line_item", numbers.slice(0, 1)),
            ("no_columns", none),
            ("numbers", numbers),
            ("target", RecordBatch::new_empty(target())),
            ("types", types()),
            ("too_wide", RecordBatch::try_from_iter([("wide", Arc::new(wide) as ArrayRef)]).unwrap()),
        ];
        let tables = tables.into_iter().map(|(name, rows)| (name.to_owned(), rows)).collect();
        Self { tables: Mutex::new(tables), running: Arc::default() }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    pub(crate) fn table(&self, name: &str) -> RecordBatch {
        self.tables.lock().unwrap()[name].clone()
    }

    pub(crate) fn replace(&self, name: &str, rows: RecordBatch) {
        self.tables.lock().unwrap().insert(name.to_owned(), rows);
    }

    fn find(&self, name: &str) -> Result<(String, RecordBatch), Failure> {
        let name = name.rsplit('.').next().unwrap_or(name).trim_matches('"').to_owned();
        let found = self.tables.lock().unwrap().get(&name).cloned();
        found.map(|rows| (name.clone(), rows)).ok_or_else(|| {
            Failure { position: Some((1, 15)), ..sql(format!("no table {name}")) }
                .hint("see information_schema.tables")
        })
    }

    fn parse(&self, text: &str) -> Result<Statement, Failure> {
        if text.contains("information_schema.tables") {
            return Ok(Statement::Tables);
        }
        if text.contains("information_schema.key_column_usage") {
            return Ok(Statement::Select(keys()));
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words.as_slice() {
            ["select", "*", "from", name] => Statement::Select(self.find(name)?.1),
            ["select", "*", "from", name, "limit", "0"] => Statement::Select(self.find(name)?.1.slice(0, 0)),
            ["echo", types @ ..] => {
                let types = types.iter().map(|t| data_type(t.trim_matches(','))).enumerate();
                Statement::Echo(
                    types.map(|(at, t)| Ok((format!("${}", at + 1), t?))).collect::<Result<_, _>>()?,
                )
            }
            // select cast($1 as TYPE) as NAME, ...
            ["select", first, ..] if first.starts_with("cast(") => {
                let columns = text["select ".len()..].split(", ").map(|column| {
                    let words: Vec<_> = column.split_whitespace().collect();
                    let [
                        "cast($1" | "cast($2" | "cast($3" | "cast($4" | "cast($5" | "cast($6",
                        "as",
                        kind,
                        "as",
                        name,
                    ] = words.as_slice()
                    else {
                        return Err(sql(format!("not a column: {column}")));
                    };
                    Ok(((*name).to_owned(), data_type(kind.trim_matches(')'))?))
                });
                Statement::Echo(columns.collect::<Result<_, _>>()?)
            }
            ["insert", "into", name, rest @ ..] => {
                let (table, rows) = self.find(name)?;
                if table != "target" {
                    return Ok(Statement::Fail(Failure::new(
                        ErrorCode::Forbidden,
                        format!("{table} can't be written"),
                    )));
                }
                let rest = rest.join(" ");
                let (names, values) = rest.split_once("values").ok_or_else(|| sql("no values"))?;
                let schema = rows.schema();
                let names: Vec<_> = names
                    .split(',')
                    .map(|n| n.trim_matches(['(', ')', ' ', '"']))
                    .filter(|n| !n.is_empty())
                    .collect();
                let columns: Vec<_> = match names.as_slice() {
                    [] => schema.fields().iter().cloned().collect(),
                    names => names
                        .iter()
                        .map(|n| {
                            schema
                                .field_with_name(n)
                                .map(|f| Arc::new(f.clone()))
                                .map_err(|e| sql(e.to_string()))
                        })
                        .collect::<Result<_, _>>()?,
                };
                let rows = values.matches('(').count();
                Statement::Insert { table, columns: Arc::new(Schema::new(columns)), rows }
            }
            ["delete", "from", name] => Statement::Delete(self.find(name)?.0),
            ["endless"] => Statement::Endless,
            ["late"] => Statement::Late,
            ["panic"] => Statement::Panic,
            ["fail", "busy"] => Statement::Fail(Failure::new(ErrorCode::Busy, "too busy").hint("later")),
            _ => return Err(sql(format!("not a statement: {text}"))),
        })
    }

    fn tables(&self) -> RecordBatch {
        let names: Vec<_> = self.tables.lock().unwrap().keys().cloned().collect();
        let schemas = names.iter().map(|_| "public").chain(["information_schema"]);
        let kinds = names.iter().map(|_| "BASE TABLE").chain(["VIEW"]);
        let texts = |texts: Vec<&str>| Arc::new(StringArray::from(texts)) as ArrayRef;
        let catalogs = vec!["datafusion"; names.len() + 1];
        let columns = [
            ("table_catalog", texts(catalogs)),
            ("table_schema", texts(schemas.collect())),
            ("table_name", texts(names.iter().map(String::as_str).chain(["tables"]).collect())),
            ("table_type", texts(kinds.collect())),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn plan(&self, text: &str) -> Result<(Statement, Prepared), Failure> {
        let statement = self.parse(text)?;
        let numbered = |types: &[DataType]| {
            let fields =
                types.iter().enumerate().map(|(at, t)| Field::new(format!("${}", at + 1), t.clone(), true));
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        };
        let no_parameters = numbered(&[]);
        let prepared = |columns, parameters, is_update| Prepared {
            columns,
            parameters,
            is_update,
            is_ordered: text.contains("ordered"),
        };
        let prepared = match &statement {
            Statement::Tables => prepared(self.tables().schema(), no_parameters, false),
            Statement::Select(rows) => prepared(rows.schema(), no_parameters, false),
            Statement::Echo(columns) => {
                let types: Vec<_> = columns.iter().map(|(_, data_type)| data_type.clone()).collect();
                let columns =
                    columns.iter().map(|(name, data_type)| Field::new(name, data_type.clone(), true));
                prepared(Arc::new(Schema::new(columns.collect::<Vec<_>>())), numbered(&types), false)
            }
            Statement::Insert { columns, rows, .. } => {
                let types: Vec<_> = columns.fields().iter().map(|field| field.data_type().clone()).collect();
                prepared(count(0).schema(), numbered(&vec![types; *rows].concat()), true)
            }
            Statement::Delete(_) => prepared(count(0).schema(), no_parameters, true),
            Statement::Endless | Statement::Late | Statement::Panic => prepared(
                Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)])),
                no_parameters,
                false,
            ),
            Statement::Fail(failure) => return Err(failure.clone()),
        };
        Ok((statement, prepared))
    }

    fn run(&self, text: &str, parameters: Option<&RecordBatch>) -> Result<Answer, Failure> {
        let (statement, prepared) = self.plan(text)?;
        let needed = prepared.parameters.fields();
        let values = parameters.map(RecordBatch::columns).unwrap_or_default();
        if values.len() != needed.len() {
            return Err(sql(format!("{} values for {} parameters", values.len(), needed.len())));
        }
        let data = |error: arrow_schema::ArrowError| Failure::new(ErrorCode::Data, error.to_string());
        let values: Vec<_> = values
            .iter()
            .zip(needed)
            .map(|(value, field)| match field.data_type() {
                DataType::Null => Ok(value.clone()),
                data_type => cast(value, data_type),
            })
            .collect::<Result<_, _>>()
            .map_err(data)?;
        let (schema, rows) = match statement {
            Statement::Tables => one(self.tables()),
            // Large tables come as slices of themselves, as from an engine.
            Statement::Select(batch) => {
                let slices = (0..batch.num_rows()).step_by(8192);
                let slices: Vec<_> =
                    slices.map(|at| Ok(batch.slice(at, 8192.min(batch.num_rows() - at)))).collect();
                (batch.schema(), Box::pin(stream::iter(slices)) as Rows)
            }
            Statement::Echo(_) => {
                let fields: Vec<_> = prepared
                    .columns
                    .fields()
                    .iter()
                    .zip(&values)
                    .map(|(f, v)| Field::new(f.name(), v.data_type().clone(), true))
                    .collect();
                one(RecordBatch::try_new(Arc::new(Schema::new(fields)), values).map_err(data)?)
            }
            Statement::Insert { table, columns, rows } => {
                let width = columns.fields().len();
                let mut tables = self.tables.lock().unwrap();
                let old = &tables[&table];
                let new: Vec<_> = (0..rows)
                    .map(|row| {
                        let value = |field: &Arc<Field>| match columns.index_of(field.name()) {
                            Ok(at) => values[row * width + at].clone(),
                            Err(_) => new_null_array(field.data_type(), 1),
                        };
                        let values = old.schema().fields().iter().map(value).collect();
                        RecordBatch::try_new(old.schema(), values).map_err(data)
                    })
                    .collect::<Result<_, _>>()?;
                let all = concat_batches(&old.schema(), [old].into_iter().chain(&new)).map_err(data)?;
                tables.insert(table, all);
                one(count(rows as u64))
            }
            Statement::Delete(table) => {
                let mut tables = self.tables.lock().unwrap();
                let rows = tables[&table].num_rows() as u64;
                let none = tables[&table].slice(0, 0);
                tables.insert(table, none);
                one(count(rows))
            }
            Statement::Endless => (prepared.columns.clone(), self.endless(prepared.columns.clone())),
            Statement::Late => {
                let failure = Err(Failure::new(ErrorCode::Data, "the second batch fails"));
                let rows = stream::iter([Ok(ints(prepared.columns.clone(), 5)), failure]);
                (prepared.columns.clone(), Box::pin(rows) as Rows)
            }
            Statement::Panic => {
                let rows = stream::iter([0])
                    .map(|_| -> Result<RecordBatch, Failure> { panic!("a test of a service that panics") });
                (prepared.columns.clone(), Box::pin(rows) as Rows)
            }
            Statement::Fail(failure) => return Err(failure),
        };
        Ok(Answer::new(schema, None, rows))
    }

    fn endless(&self, schema: SchemaRef) -> Rows {
        self.running.fetch_add(1, Ordering::SeqCst);
        let counted = Counted(self.running.clone());
        let batches = stream::unfold(counted, move |counted| {
            let batch = ints(schema.clone(), 8192);
            async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Some((Ok(batch), counted))
            }
        });
        Box::pin(batches)
    }
}

fn ints(schema: SchemaRef, rows: i64) -> RecordBatch {
    RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from_iter_values(0..rows))]).unwrap()
}

fn one(batch: RecordBatch) -> (SchemaRef, Rows) {
    let rows: Pin<Box<dyn Stream<Item = _> + Send>> = Box::pin(stream::iter([Ok(batch.clone())]));
    (batch.schema(), rows)
}

fn count(rows: u64) -> RecordBatch {
    RecordBatch::try_from_iter([("count", Arc::new(UInt64Array::from(vec![rows])) as ArrayRef)]).unwrap()
}

fn target() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("name", DataType::Utf8View, true),
        Field::new("at", DataType::Timestamp(TimeUnit::Microsecond, None), true),
    ]))
}

/// Columns of many types, each with three rows, the second of which is null.
fn types() -> RecordBatch {
    let item = |name: &str, data_type: DataType| Arc::new(Field::new(name, data_type, true));
    let words: DictionaryArray<Int8Type> = [Some("red"), None, Some("red")].into_iter().collect();
    let runs = RunArray::try_new(
        &Int32Array::from(vec![1, 2, 3]),
        &StringArray::from(vec![Some("x"), None, Some("y")]),
    );
    let runs: RunArray<Int32Type> = runs.unwrap();
    let numbers =
        ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
    let texts = ListArray::new(
        item("item", DataType::Utf8View),
        OffsetBuffer::from_lengths([2, 0, 1]),
        Arc::new(StringViewArray::from(vec!["a", "b", "c"])),
        Some(vec![true, false, true].into()),
    );
    let pair = StructArray::new(
        vec![item("a", DataType::Int32), item("b", DataType::Utf8)].into(),
        vec![
            Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])),
            Arc::new(StringArray::from(vec![Some("one"), None, None])),
        ],
        Some(vec![true, false, true].into()),
    );
    let union_fields = UnionFields::from_fields(vec![
        Field::new("number", DataType::Int32, true),
        Field::new("text", DataType::Utf8, true),
    ]);
    let union = UnionArray::try_new(
        union_fields,
        vec![0_i8, 1, 0].into(),
        Some(vec![0, 0, 1].into()),
        vec![
            Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef,
            Arc::new(StringArray::from(vec![None::<&str>])),
        ],
    );
    let micros = vec![Some(1_700_000_000_123_456), None, Some(-1)];
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("boolean", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]))),
        ("tiny", Arc::new(Int8Array::from(vec![Some(-1), None, Some(127)]))),
        ("small", Arc::new(Int16Array::from(vec![Some(-1), None, Some(i16::MAX)]))),
        ("int", Arc::new(Int32Array::from(vec![Some(-1), None, Some(i32::MAX)]))),
        ("big", Arc::new(Int64Array::from(vec![Some(i64::MIN), None, Some(i64::MAX)]))),
        ("unsigned", Arc::new(UInt64Array::from(vec![Some(0), None, Some(9_000_000_000)]))),
        ("real", Arc::new(Float32Array::from(vec![Some(1.5), None, Some(-0.25)]))),
        ("double", Arc::new(Float64Array::from(vec![Some(1e300), None, Some(0.1)]))),
        (
            "decimal",
            Arc::new(
                PrimitiveArray::<Decimal128Type>::from(vec![Some(12_345), None, Some(-1)])
                    .with_precision_and_scale(20, 3)
                    .unwrap(),
            ),
        ),
        (
            "small_decimal",
            Arc::new(
                Decimal64Array::from(vec![Some(12_345), None, Some(-1)])
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
        ),
        ("text", Arc::new(StringArray::from(vec![Some("é"), None, Some("")]))),
        ("view", Arc::new(StringViewArray::from(vec![Some("a text that is not inline"), None, Some("z")]))),
        ("bytes", Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None, Some(b"")]))),
        ("date", Arc::new(Date32Array::from(vec![Some(19_000), None, Some(-1)]))),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![Some(3_600_000_001), None, Some(0)]))),
        ("timestamp", Arc::new(TimestampMicrosecondArray::from(micros.clone()))),
        ("instant", Arc::new(TimestampMicrosecondArray::from(micros).with_timezone("UTC"))),
        ("dictionary", Arc::new(words)),
        ("runs", Arc::new(runs)),
        ("numbers", Arc::new(numbers)),
        ("texts", Arc::new(texts)),
        ("pair", Arc::new(pair)),
        ("union", Arc::new(union.unwrap())),
        ("nothing", Arc::new(NullArray::new(3))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        .unwrap()
}

impl Service for Demo {
    fn query<'a>(&'a self, query: &'a Query) -> Answered<'a, Answer> {
        Box::pin(async move { self.run(&query.sql, None) })
    }

    fn prepare<'a>(&'a self, sql: &'a str) -> Answered<'a, Prepared> {
        Box::pin(async move { Ok(self.plan(sql)?.1) })
    }

    fn execute<'a>(&'a self, sql: &'a str, parameters: &'a RecordBatch) -> Answered<'a, Answer> {
        Box::pin(async move {
            assert_eq!(parameters.num_rows(), 1);
            self.run(sql, Some(parameters))
        })
    }

    fn has_range_files(&self) -> bool {
        true
    }
}
