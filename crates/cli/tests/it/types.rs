//! Values of every type arrive exactly.

use std::fs::File;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::IntervalMonthDayNanoType;
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StructArray};
use arrow_cast::cast;
use arrow_schema::{DataType, IntervalUnit, Schema, SchemaRef};
use lightship_testkit::arrays;

use crate::support::*;

const ROWS: usize = 300;

/// Writes an Arrow file.
fn write_arrow(folder: &Folder, name: &str, batch: &RecordBatch) -> String {
    let file = File::create(folder.file(name)).expect("a file");
    let mut writer = arrow_ipc::writer::FileWriter::try_new(file, &batch.schema()).expect("a schema");
    writer.write(batch).expect("rows");
    writer.finish().expect("a whole file");
    folder.arg(name)
}

/// The columns whose type passes, renamed to `c0`, `c1` and so on.
fn columns(batch: &RecordBatch, pass: impl Fn(&DataType) -> bool) -> RecordBatch {
    let kept = batch.columns().iter().zip(batch.schema().fields().to_vec());
    let kept: Vec<_> = kept.filter(|(column, _)| pass(column.data_type())).collect();
    let fields: Vec<_> =
        kept.iter().enumerate().map(|(i, (_, f))| f.as_ref().clone().with_name(format!("c{i}"))).collect();
    RecordBatch::try_new(Schema::new(fields).into(), kept.into_iter().map(|(c, _)| c.clone()).collect())
        .expect("a batch")
}

/// The same values without dictionaries, whose keys may differ.
fn plain(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Dictionary(_, values) => cast(array, values).expect("values of a dictionary"),
        _ => array.clone(),
    }
}

/// Intervals as a struct of their parts, if `to` is one: some formats have no intervals.
fn parts(array: &ArrayRef, to: &DataType) -> ArrayRef {
    let DataType::Struct(fields) = to else { return array.clone() };
    let intervals = array.as_primitive::<IntervalMonthDayNanoType>();
    let values = intervals.values();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int32Array::from_iter_values(values.iter().map(|value| value.months))),
        Arc::new(Int32Array::from_iter_values(values.iter().map(|value| value.days))),
        Arc::new(Int64Array::from_iter_values(values.iter().map(|value| value.nanoseconds))),
    ];
    Arc::new(StructArray::new(fields.clone(), columns, intervals.nulls().cloned()))
}

/// Compares row by row, however the rows are divided into batches.
#[track_caller]
fn check_rows(expected: &RecordBatch, schema: &SchemaRef, found: &[RecordBatch], exact_types: bool) {
    assert_eq!(rows_of(found), expected.num_rows());
    assert_eq!(schema.fields().len(), expected.num_columns());
    let mut start = 0;
    for batch in found {
        for (i, column) in batch.columns().iter().enumerate() {
            let wanted = expected.column(i).slice(start, batch.num_rows());
            let (wanted, column) = if exact_types {
                assert_eq!(with_wide_keys(column.data_type()), with_wide_keys(wanted.data_type()));
                (wanted, column.clone())
            } else {
                (plain(&wanted), plain(column))
            };
            let wanted =
                if *wanted.data_type() == DataType::Interval(IntervalUnit::MonthDayNano) && !exact_types {
                    parts(&wanted, column.data_type())
                } else if wanted.data_type() == column.data_type() {
                    wanted
                } else {
                    cast(&wanted, column.data_type()).unwrap_or_else(|e| panic!("column {i}: {e}"))
                };
            assert_eq!(&wanted, &column, "column {i}, {}, from row {start}", expected.column(i).data_type());
        }
        start += batch.num_rows();
    }
}

/// The type's name. Dictionaries of a table may have wider keys than those of its files.
fn with_wide_keys(data_type: &DataType) -> String {
    let narrow = ["Int8", "Int16", "UInt8", "UInt16"].map(|keys| format!("Dictionary({keys},"));
    narrow.iter().fold(data_type.to_string(), |name, keys| name.replace(keys, "Dictionary(Int32,"))
}

fn in_parquet(data_type: &DataType) -> bool {
    match data_type {
        DataType::Union(..) => false,
        DataType::Struct(fields) => !fields.is_empty(),
        _ => true,
    }
}

#[test]
fn a_node_passes_on_every_arrow_type() {
    let folder = Folder::new();
    for seed in 1..=3 {
        let batch = columns(&arrays::every_type(ROWS, seed), |_| true);
        let file = write_arrow(&folder, "every.arrow", &batch);
        let node = Node::start(&["--table", &format!("every={file}")]);
        for small in [false, true] {
            let mut args = vec!["select * from every", "--quiet", "--format", "stream"];
            if small {
                args.extend(["--message-bytes", "2KiB", "--batch-rows", "100", "--codec", "light+zstd"]);
            }
            let outcome = node.fetch(&args).succeeds();
            let (schema, found) = read_arrow_stream(&outcome.stdout);
            assert_eq!(found.len() > 1, small);
            check_rows(&batch, &schema, &found, true);
        }
        let path = folder.arg("again.arrow");
        node.fetch(&["select * from every", "-o", &path]).succeeds();
        let (schema, found) = read_arrow_file(path.as_ref());
        check_rows(&batch, &schema, &found, false);
    }
}

/// Whether Parquet has values of the type, or of one nested in it, as text.
fn is_text_in_parquet(data_type: &DataType) -> bool {
    let text = format!("{data_type:?}");
    text.contains("Interval(") || text.contains("Duration(")
}

#[test]
fn parquet_keeps_every_arrow_type_that_it_can_hold() {
    let folder = Folder::new();
    for seed in 4..=6 {
        let all = arrays::every_type(ROWS, seed);
        let batch = columns(&all, |data_type| in_parquet(data_type) && !is_text_in_parquet(data_type));
        let file = write_arrow(&folder, "every.arrow", &batch);
        let node = Node::start(&["--table", &format!("every={file}")]);
        let path = folder.arg("every.parquet");
        node.fetch(&["select * from every", "-o", &path]).succeeds();
        let (schema, found) = read_parquet(path.as_ref());
        check_rows(&batch, &schema, &found, false);
        // A type that Parquet can't hold is an error before anything is written.
        std::fs::remove_file(&path).expect("removed");
        for (i, column) in all.columns().iter().enumerate() {
            if !in_parquet(column.data_type()) {
                let one = columns(&all.project(&[i]).expect("a column"), |_| true);
                let node =
                    Node::start(&["--table", &format!("one={}", write_arrow(&folder, "one.arrow", &one))]);
                node.fetch(&["select * from one", "-o", &path])
                    .fails(USAGE, &["Parquet can't hold", "`c0`", "arrow"]);
                assert_eq!(folder.names(), ["every.arrow", "one.arrow"]);
                std::fs::remove_file(folder.file("one.arrow")).expect("removed");
            }
        }
    }
}

#[test]
fn every_postgresql_type_survives_parquet_and_a_node() {
    let types = [
        ("bool", "true"),
        ("int2", "-32768"),
        ("int4", "-2147483648"),
        ("int8", "-9223372036854775808"),
        ("float4", "'-1.5e-30'"),
        ("float8", "'NaN'"),
        ("numeric(15,2)", "9999999999999.99"),
        ("numeric(38,10)", "-1234567890123456789012345678.0123456789"),
        ("numeric(60,5)", "1234567890123456789012345678901234567890.00001"),
        ("numeric", "3.2500000000"),
        ("money", "-12.34"),
        ("text", "E'\\u00e9\\n\\t\"'"),
        ("varchar(5)", "'abc'"),
        ("char(4)", "'ab'"),
        ("name", "'abc'"),
        ("\"char\"", "'x'"),
        ("bytea", "'\\x00ff'"),
        ("date", "'2024-02-29'"),
        ("time", "'23:59:59.999999'"),
        ("timetz", "'12:00:00+02'"),
        ("timestamp", "'1999-12-31 23:59:59.000001'"),
        ("timestamptz", "'2024-07-01 12:00:00+02'"),
        ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        ("json", "'{\"a\":  1}'"),
        ("jsonb", "'{\"a\": [1, null]}'"),
        ("oid", "4294967295"),
        ("inet", "'10.0.0.1/8'"),
        ("cidr", "'10.0.0.0/8'"),
        ("macaddr", "'08:00:2b:01:02:03'"),
        ("bit(3)", "B'101'"),
        ("varbit", "B'1'"),
        ("xml", "'<a/>'"),
        ("int4range", "'[1,5)'"),
        ("tsvector", "'a b'"),
        ("point", "'(1,2)'"),
        ("types_mood", "'happy'"),
        ("types_price", "5.25"),
        ("types_pair", "'(1,x)'"),
        ("int4[]", "'{1,NULL,3}'"),
        ("text[]", "'{a,\"b,c\",\"\"}'"),
        ("numeric(6,2)[]", "'{1.5,-2}'"),
        ("timestamp[]", "'{2000-01-01}'"),
        ("types_mood[]", "'{sad,happy}'"),
    ];
    let server = postgres();
    server.psql(
        "create type types_mood as enum ('sad', 'happy'); create type types_pair as (a int, b text);
         create domain types_price as numeric(8, 2);",
    );
    let made: Vec<_> = types.iter().enumerate().map(|(i, (name, _))| format!("c{i} {name}")).collect();
    let values: Vec<_> = types.iter().map(|(_, value)| *value).collect();
    let nulls = vec!["null"; types.len()];
    server.psql(&format!(
        "create table types_all (n int, {}); insert into types_all values (1, {}), (2, {});
         insert into types_all select n + 2, {} from generate_series(1, 100) g(n);
         create table types_file (like types_all); create table types_direct (like types_all);
         create table types_node (like types_all);",
        made.join(", "),
        values.join(", "),
        nulls.join(", "),
        values.join(", "),
    ));
    let folder = Folder::new();
    let file = folder.arg("types_all.parquet");
    let sql = "select * from types_all";
    // As text, a number keeps its trailing zeros.
    let numeric = ["--numeric", "string"];
    let ordered = "select * from types_all order by n";
    lightship(&["fetch", &server.uri(), ordered, "-o", &file, numeric[0], numeric[1]]).succeeds();
    let node = Node::start(&["--table", &format!("types_all={}?numeric=string", server.uri())]);
    for (from, table) in [(&file, "types_file"), (&server.uri(), "types_direct"), (&node.uri, "types_node")] {
        lightship(&["copy", from, sql, &server.uri(), "--table", table, numeric[0], numeric[1]]).succeeds();
        let text = |table: &str| server.psql(&format!("select t::text from {table} t order by n"));
        assert_eq!(text("types_all"), text(table), "{table}");
    }
    // An interval is text in Parquet, which a column of intervals takes.
    let sql = "select interval '1 year 2 mons -3 days 04:05:06.5' as i";
    lightship(&["copy", &server.uri(), sql, &server.uri(), "--table", "types_interval"]).succeeds();
    lightship(&["fetch", &server.uri(), sql, "-o", &file]).succeeds();
    let all = "select * from types_all";
    assert_eq!(csv(&file, all), "i\n1 year 2 mons -3 days 04:05:06.5\n");
    lightship(&["copy", &file, all, &server.uri(), "--table", "types_interval"]).succeeds();
    let found = server.psql("select count(*), min(i) = max(i), min(i) from types_interval");
    assert_eq!(found.trim(), "2\tt\t1 year 2 mons -3 days +04:05:06.5");
}

#[test]
fn a_node_passes_on_random_nested_types() {
    // Random columns and nested types, through the node and back.
    let folder = Folder::new();
    for seed in 100..110 {
        let batch = arrays::batch(seed, ROWS);
        if batch.num_columns() == 0 {
            continue;
        }
        let batch = columns(&batch, |_| true);
        let file = write_arrow(&folder, "any.arrow", &batch);
        let node = Node::start(&["--table", &format!("any={file}")]);
        let outcome = node.fetch(&["select * from \"any\"", "--quiet", "--format", "stream"]).succeeds();
        let (schema, found) = read_arrow_stream(&outcome.stdout);
        check_rows(&batch, &schema, &found, true);
        let _ = StructArray::from(batch);
    }
}
