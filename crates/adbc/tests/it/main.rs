//! The driver through the driver manager of Rust, over the C interface. `python/tests/test_adbc.py` has the tests that need a
//! server.

use std::collections::HashSet;
use std::time::Duration;

use adbc_core::error::{Result, Status};
use adbc_core::options::{
    AdbcVersion, InfoCode, IngestMode, ObjectDepth, OptionConnection, OptionDatabase, OptionStatement,
};
use adbc_core::{Connection as _, Database as _, Driver as _, Optionable as _, Statement as _, constants};
use adbc_driver_manager::{ManagedConnection, ManagedDriver};
use adbc_ffi::FFI_AdbcDriverInitFunc;
use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use arrow_array::{Array as _, Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow_schema::DataType;

const INIT: FFI_AdbcDriverInitFunc = adbc_driver_lightship::entry::AdbcDriverLightshipInit;

/// A connection to `t.csv` with the numbers below 1000.
fn connect() -> (tempfile::TempDir, ManagedConnection) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("t.csv");
    let lines: String = (0..1000).map(|n| format!("{n}\n")).collect();
    std::fs::write(&path, format!("n\n{lines}")).expect("written");
    let uri = path.to_str().expect("UTF-8").into();
    let mut driver = ManagedDriver::load_static(&INIT, AdbcVersion::V110).expect("loaded");
    let database = driver.new_database_with_opts([(OptionDatabase::Uri, uri)]).expect("a database");
    (folder, database.new_connection().expect("connected"))
}

fn batches(reader: impl RecordBatchReader) -> Vec<RecordBatch> {
    reader.collect::<std::result::Result<_, _>>().expect("rows")
}

fn status<T>(result: Result<T>) -> Status {
    result.err().expect("an error").status
}

#[test]
fn a_query_is_a_stream() {
    let (_folder, mut connection) = connect();
    let mut statement = connection.new_statement().expect("a statement");
    assert_eq!(status(statement.execute()), Status::InvalidState);
    statement.set_sql_query("select sum(n) as total from t").expect("set");
    assert_eq!(statement.execute_schema().expect("columns").field(0).name(), "total");
    let rows = batches(statement.execute().expect("rows"));
    assert_eq!(rows[0].column(0).as_primitive::<Int64Type>().value(0), 499_500);
    statement.set_sql_query("select m from t").expect("set");
    let refused = statement.execute().err().expect("no such column");
    assert_eq!(refused.status, Status::InvalidArguments);
    assert_eq!(refused.sqlstate.map(|c| c as u8), *b"42703");
    let details = refused.details.expect("details");
    assert!(details.contains(&("lightship.kind".into(), b"source".to_vec())), "{details:?}");
}

#[test]
fn a_stream_is_cancelled_or_dropped() {
    let (_folder, mut connection) = connect();
    let mut statement = connection.new_statement().expect("a statement");
    statement.set_sql_query("select value from generate_series(1, 1000000000000) as t(value)").expect("set");
    let mut rows = statement.execute().expect("rows");
    assert!(rows.next().expect("more").expect("rows").num_rows() > 0);
    drop(rows);
    let mut rows = statement.execute().expect("rows");
    let handle = statement.get_cancel_handle();
    let cancelling = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        handle.try_cancel()
    });
    let error = rows.find_map(std::result::Result::err).expect("it has no end");
    assert!(error.to_string().contains("cancelled"), "{error}");
    cancelling.join().expect("no panic").expect("cancelled");
}

#[test]
fn what_is_there_is_listed() {
    let (_folder, connection) = connect();
    let objects =
        |depth, table| connection.get_objects(depth, None, None, table, None, None).expect("objects");
    for depth in [ObjectDepth::Catalogs, ObjectDepth::Schemas, ObjectDepth::Tables, ObjectDepth::All] {
        let rows = batches(objects(depth, None));
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 1, "{depth:?}");
        let schemas = rows[0].column(1).as_list::<i32>();
        assert_eq!(schemas.is_null(0), depth == ObjectDepth::Catalogs, "{depth:?}");
    }
    let rows = batches(objects(ObjectDepth::All, Some("no%")));
    let schemas = rows[0].column(1).as_list::<i32>().value(0);
    assert_eq!(schemas.as_struct().column(1).as_list::<i32>().value(0).len(), 0);
    assert_eq!(connection.get_table_schema(None, None, "t").expect("columns").field(0).name(), "n");
    let names = Some(HashSet::from([InfoCode::DriverName, InfoCode::VendorName]));
    assert_eq!(batches(connection.get_info(names).expect("info"))[0].num_rows(), 2);
    assert_eq!(batches(connection.get_table_types().expect("types"))[0].num_rows(), 2);
}

#[test]
fn options_are_read_back_and_wrong_ones_refused() {
    let (_folder, mut connection) = connect();
    assert_eq!(connection.get_option_string(OptionConnection::AutoCommit).expect("set"), "true");
    let off = constants::ADBC_OPTION_VALUE_DISABLED;
    assert_eq!(
        status(connection.set_option(OptionConnection::AutoCommit, off.into())),
        Status::NotImplemented
    );
    assert_eq!(status(connection.commit()), Status::InvalidState);
    let mut statement = connection.new_statement().expect("a statement");
    let rows = OptionStatement::Other("lightship.batch_rows".into());
    assert_eq!(statement.get_option_string(rows.clone()).expect("a default"), "auto");
    statement.set_option(rows.clone(), 100.into()).expect("set");
    assert_eq!(statement.get_option_int(rows).expect("a number"), 100);
    let memory = OptionStatement::Other("lightship.memory_bytes".into());
    assert_eq!(status(statement.set_option(memory, "much".into())), Status::InvalidArguments);
    let unknown = OptionStatement::Other("lightship.speed".into());
    assert_eq!(status(statement.get_option_string(unknown)), Status::NotFound);
}

#[test]
fn what_can_not_be_done_is_not_implemented() {
    let (_folder, mut connection) = connect();
    let mut statement = connection.new_statement().expect("a statement");
    let numbers: Int64Array = vec![1, 2].into();
    let batch = RecordBatch::try_from_iter([("n", std::sync::Arc::new(numbers) as _)]).expect("a batch");
    statement.set_option(OptionStatement::TargetTable, "t".into()).expect("set");
    statement.set_option(OptionStatement::IngestMode, IngestMode::Append.into()).expect("set");
    assert_eq!(status(statement.execute_update()), Status::NotImplemented);
    statement.bind(batch.clone()).expect("bound");
    assert_eq!(status(statement.execute_update()), Status::NotImplemented);
    statement.set_sql_query("select n from t").expect("set");
    statement.bind(batch).expect("bound");
    assert_eq!(status(statement.execute_partitions()), Status::NotImplemented);
    statement.set_sql_query("select n from t where n = ?").expect("set");
    assert_eq!(status(statement.execute_partitions()), Status::NotImplemented);
}

fn row(numbers: Vec<i64>) -> RecordBatch {
    let numbers: Int64Array = numbers.into();
    RecordBatch::try_from_iter([("n", std::sync::Arc::new(numbers) as _)]).expect("a batch")
}

/// The numbers of the first column.
fn numbers(reader: impl RecordBatchReader) -> Vec<i64> {
    let rows = batches(reader);
    rows.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

#[test]
fn a_query_is_executed_once_for_each_row_of_parameters() {
    let (_folder, mut connection) = connect();
    let mut statement = connection.new_statement().expect("a statement");
    assert_eq!(status(statement.get_parameter_schema()), Status::InvalidState);
    statement.set_sql_query("select n from t where n >= ? order by n limit 2").expect("set");
    statement.prepare().expect("prepared");
    let parameters = statement.get_parameter_schema().expect("parameters");
    assert_eq!((parameters.fields().len(), parameters.field(0).data_type()), (1, &DataType::Int64));
    assert_eq!(statement.execute_schema().expect("columns").field(0).name(), "n");
    statement.bind(row(vec![5, 998, 0])).expect("bound");
    assert_eq!(numbers(statement.execute().expect("rows")), [5, 6, 998, 999, 0, 1]);
    // They were those of one execution.
    let without = statement.execute().err().expect("no values");
    assert!(without.message.contains("no value for parameter"), "{without}");
    let stream = [row(vec![1]), row(vec![]), row(vec![2, 3])].map(Ok);
    let schema = row(vec![]).schema();
    statement.bind_stream(Box::new(RecordBatchIterator::new(stream, schema.clone()))).expect("bound");
    assert_eq!(numbers(statement.execute().expect("rows")), [1, 2, 2, 3, 3, 4]);
    // Without rows, nothing is executed.
    statement.bind_stream(Box::new(RecordBatchIterator::new([], schema))).expect("bound");
    let none = statement.execute().expect("no rows");
    assert_eq!((none.schema().field(0).name().as_str(), numbers(none)), ("n", vec![]));
    statement.bind(row(vec![1, 2])).expect("bound");
    assert_eq!(statement.execute_update().expect("executed"), None);
}

#[test]
fn wrong_parameters_are_refused() {
    let (_folder, mut connection) = connect();
    let mut statement = connection.new_statement().expect("a statement");
    statement.set_sql_query("select n from t").expect("set");
    statement.bind(row(vec![1])).expect("bound");
    let refused = statement.execute().err().expect("no parameters");
    assert_eq!(refused.sqlstate.map(|c| c as u8), *b"22023");
    assert!(refused.message.contains("hint: "), "{refused}");
    // Only the second execution fails.
    statement.set_sql_query("select 6 / n as n from t where n = ?").expect("set");
    statement.bind(row(vec![3, 0])).expect("bound");
    let mut rows = statement.execute().expect("rows");
    assert_eq!(rows.next().expect("a batch").expect("rows").num_rows(), 1);
    let error = rows.find_map(std::result::Result::err).expect("a division by zero");
    assert!(error.to_string().to_lowercase().contains("zero"), "{error}");
    assert!(rows.next().is_none());
}

#[test]
fn executions_for_many_parameters_are_cancelled() {
    let (_folder, mut connection) = connect();
    let mut statement = connection.new_statement().expect("a statement");
    statement.set_sql_query("select n from t where n = ?").expect("set");
    let schema = row(vec![]).schema();
    let endless = std::iter::repeat_with(|| Ok(row(vec![1])));
    statement.bind_stream(Box::new(RecordBatchIterator::new(endless, schema))).expect("bound");
    let mut rows = statement.execute().expect("rows");
    assert_eq!(rows.next().expect("a batch").expect("rows").num_rows(), 1);
    statement.get_cancel_handle().try_cancel().expect("cancelled");
    let error = rows.find_map(std::result::Result::err).expect("it has no end");
    assert!(error.to_string().contains("cancelled"), "{error}");
}

#[test]
fn numbers_of_rows_are_statistics() {
    let (_folder, connection) = connect();
    let count = |table, is_approximate| {
        let found = connection.get_statistics(None, None, table, is_approximate).expect("statistics");
        let rows = batches(found);
        let schemas = rows[0].column(1).as_list::<i32>().value(0);
        let statistics = schemas.as_struct().column(1).as_list::<i32>().values().clone();
        let statistics = statistics.as_struct();
        let values = statistics.column(3).as_union();
        (0..values.len()).map(|at| values.value(at).as_primitive::<Int64Type>().value(0)).collect::<Vec<_>>()
    };
    assert_eq!(count(None, false), [1000]);
    assert_eq!(count(Some("t"), false), [1000]);
    assert!(count(Some("no%"), false).is_empty());
    assert_eq!(
        batches(connection.get_statistics(Some("nowhere"), None, None, true).expect("none"))[0].num_rows(),
        0
    );
    assert_eq!(batches(connection.get_statistic_names().expect("names"))[0].num_rows(), 0);
}

#[test]
fn a_connection_with_several_sources_has_a_partition_for_each() {
    let folder = tempfile::tempdir().expect("a folder");
    let paths = ["a", "b"].map(|name| folder.path().join(name).join("t.csv"));
    for (first, path) in paths.iter().enumerate() {
        std::fs::create_dir(path.parent().expect("a parent")).expect("a folder");
        std::fs::write(path, format!("n\n{first}\n{}\n", first + 10)).expect("written");
    }
    let [first, second] = paths.each_ref().map(|path| path.to_str().expect("UTF-8"));
    let open = |uris: &[&str]| {
        let mut driver = ManagedDriver::load_static(&INIT, AdbcVersion::V110).expect("loaded");
        let also = OptionDatabase::Other("lightship.also".into());
        let options = [(OptionDatabase::Uri, uris[0].into()), (also, uris[1..].join("\n").as_str().into())];
        driver.new_database_with_opts(options).expect("a database").new_connection().expect("connected")
    };
    let mut both = open(&[first, second]);
    let mut statement = both.new_statement().expect("a statement");
    statement.set_sql_query("select n from t order by n").expect("set");
    let result = statement.execute_partitions().expect("partitions");
    assert_eq!((result.partitions.len(), result.schema.field(0).name().as_str()), (2, "n"));
    let other = open(&[first, second]);
    let read = |part: &[u8]| numbers(other.read_partition(part).expect("rows"));
    assert_eq!([read(&result.partitions[0]), read(&result.partitions[1])], [vec![0, 10], vec![1, 11]]);
    // What is listed is that of the first source, and not of all.
    let tables =
        batches(both.get_objects(ObjectDepth::Tables, None, None, None, None, None).expect("objects"));
    let schemas = tables[0].column(1).as_list::<i32>().value(0);
    assert_eq!(schemas.as_struct().column(1).as_list::<i32>().values().len(), 1);
    let mut alone = open(&[first]);
    assert_eq!(status(alone.read_partition(&result.partitions[0])), Status::InvalidArguments);
    assert_eq!(status(alone.read_partition(b"{}")), Status::InvalidArguments);
    assert_eq!(status(alone.read_partition(b"\xff")), Status::InvalidArguments);
    let mut statement = alone.new_statement().expect("a statement");
    statement.set_sql_query("select n from t order by n").expect("set");
    let whole = statement.execute_partitions().expect("one partition");
    assert_eq!(whole.partitions.len(), 1);
    assert_eq!(numbers(alone.read_partition(&whole.partitions[0]).expect("rows")), [0, 10]);
}
