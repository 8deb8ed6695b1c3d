//! Files as tables: a query sees exactly what they hold, or the error says why not.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::parquet::arrow::ArrowWriter;
use lightship_engine::{ClusterConfig, Engine, EngineConfig};
use lightship_wire::control::{ErrorCode, Failure};
use tempfile::TempDir;

use crate::support::{Node, met, run};

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

async fn open(path: &Path) -> Result<Engine, Failure> {
    let config = EngineConfig { partitions: 4, ..EngineConfig::default() };
    let mut engine = Engine::new(config).unwrap();
    engine.register_path("t", path).await.map_err(|error| error.to_failure())?;
    Ok(engine)
}

/// Each row as text.
fn text(batches: &[RecordBatch]) -> Vec<String> {
    let row = |batch: &RecordBatch, row: usize| {
        let values = batch.columns().iter().map(|column| array_value_to_string(column, row).unwrap());
        values.collect::<Vec<_>>().join("|")
    };
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |at| row(batch, at))).collect()
}

async fn check(engine: &Engine, sql: &str, expected: &[&str]) {
    assert_eq!(text(&run(engine, sql).await.unwrap()), expected, "{sql}");
}

fn number(batches: &[RecordBatch], column: usize) -> i64 {
    batches[0].column(column).as_primitive::<Int64Type>().value(0)
}

/// Writes records with newlines in quotes, enough that they are read in parts.
fn with_newlines(path: &Path, records: usize) {
    let mut writer = csv::Writer::from_path(path).unwrap();
    writer.write_record(["id", "note"]).unwrap();
    for id in 0..records {
        writer
            .write_record([id.to_string(), format!("first, of {id}\n\"second\"\n{}", "x".repeat(id % 60))])
            .unwrap();
    }
    writer.flush().unwrap();
}

const COUNT: &str =
    "select count(*) as n, count(distinct id) as ids, cast(sum(length(note)) as bigint) as l from t";

/// The expected answer to [`COUNT`].
fn counted(records: usize) -> String {
    let length = |id: usize| format!("first, of {id}\n\"second\"\n{}", "x".repeat(id % 60)).len();
    format!("{records}|{records}|{}", (0..records).map(length).sum::<usize>())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newlines_in_quotes_do_not_split_records_of_a_file_read_in_parts() {
    let folder = folder();
    let path = folder.path().join("t.csv");
    with_newlines(&path, 200_000);
    // Large enough for DataFusion to read it in parts.
    assert!(path.metadata().unwrap().len() > 11 << 20);
    check(&open(&path).await.unwrap(), COUNT, &[&counted(200_000)]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newlines_in_quotes_do_not_split_records_on_three_nodes() {
    let folder = folder();
    let path = folder.path().join("t.csv");
    with_newlines(&path, 100_000);
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..3 {
        let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
        engine.register_shared_path("t", &path).await.unwrap();
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 2).await;
    }
    for node in &nodes {
        assert_eq!(text(&node.query(COUNT).await.unwrap()), [counted(100_000)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_files_in_a_folder_are_found_by_name() {
    let folder = folder();
    let csv = folder.path().join("csv");
    write(&csv.join("1.csv"), "a,b\n1,x\n");
    write(&csv.join("2.csv"), "b,c,a\ny,2024-01-01,2.5\n");
    write(&csv.join("3.csv"), "c\nnever\n");
    let engine = open(&csv).await.unwrap();
    let sql = "select * from t order by a";
    check(&engine, sql, &["1.0|x|", "2.5|y|2024-01-01", "||never"]).await;
    // The columns of a file that is added later are found by name too, or the error names the file.
    write(&csv.join("4.csv"), "c,a\nlater,7\n");
    check(&engine, sql, &["1.0|x|", "2.5|y|2024-01-01", "7.0||later", "||never"]).await;
    check(&engine, "select b from t where a = 2.5", &["y"]).await;
    write(&csv.join("5.csv"), "a,z\n1,2\n");
    let failure = run(&engine, "select a from t").await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Data);
    assert!(failure.message.contains("5.csv: the table has no column `z`"), "{failure:?}");
    assert!(failure.hint.is_some());

    let arrow = folder.path().join("arrow");
    std::fs::create_dir(&arrow).unwrap();
    let ints: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    let longs: ArrayRef = Arc::new(Int64Array::from(vec![3, 1 << 40]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "y"]));
    write_arrow(&arrow.join("1.arrow"), &[("a", ints.clone()), ("b", texts.clone())]);
    write_arrow(&arrow.join("2.arrow"), &[("c", texts.clone()), ("a", longs)]);
    let engine = open(&arrow).await.unwrap();
    check(&engine, "select * from t order by a", &["1|x|", "2|y|", "3||x", "1099511627776||y"]).await;
    write_arrow(&arrow.join("3.arrow"), &[("a", texts.clone())]);
    let failure = run(&engine, "select a from t").await.unwrap_err();
    assert!(
        failure.message.contains("3.arrow") && failure.message.contains("column `a` is Utf8"),
        "{failure:?}"
    );
    let failure = open(&arrow).await.err().unwrap();
    assert!(failure.message.contains("3.arrow: column `a` is Utf8, but Int64"), "{failure:?}");
    // A double can't represent every 64-bit integer.
    let doubles: ArrayRef = Arc::new(Float64Array::from(vec![0.5]));
    write_arrow(&arrow.join("3.arrow"), &[("a", doubles)]);
    let failure = open(&arrow).await.err().unwrap();
    assert!(failure.message.contains("3.arrow: column `a` is Float64"), "{failure:?}");
}

fn batch(columns: &[(&str, ArrayRef)]) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.iter().map(|(_, c)| c.clone()).collect())
        .unwrap()
}

fn write_arrow(path: &Path, columns: &[(&str, ArrayRef)]) {
    let batch = batch(columns);
    let mut writer = FileWriter::try_new(File::create(path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_json_fields_are_read_or_refused() {
    let folder = folder();
    let json = folder.path().join("json");
    write(
        &json.join("1.json"),
        &format!("{}{{\"a\": 1.5, \"b\": {{\"c\": [1]}}}}\n", "{\"a\": 1}\n".repeat(3000)),
    );
    let engine = open(&json).await.unwrap();
    check(&engine, "select a, b['c'][1] as c from t where b is not null", &["1.5|1"]).await;
    check(&engine, "select count(*) as n from t", &["3001"]).await;
    write(&json.join("2.json"), "{\"a\": 1}\n{\"a\": 1, \"b\": {\"c\": [], \"d\": 1}}\n");
    let failure = run(&engine, "select a from t").await.unwrap_err();
    assert_eq!(failure.code, ErrorCode::Data);
    assert!(failure.message.contains("2.json, line 2: the table has no field `b.d`"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicate_column_names_are_refused() {
    let folder = folder();
    let one: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let columns = [("a", one.clone()), ("a", one.clone()), ("b", one)];
    let path = |name: &str| folder.path().join(name);
    write_arrow(&path("t.arrow"), &columns);
    let rows = batch(&columns);
    let mut writer =
        ArrowWriter::try_new(File::create(path("t.parquet")).unwrap(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    write(&path("t.csv"), "a,a,b\n1,1,1\n");
    write(&path("t.json"), "{\"a\": 1, \"a\": 2}\n");
    for name in ["t.arrow", "t.parquet", "t.csv", "t.json"] {
        let failure = open(&path(name)).await.err().unwrap();
        assert_eq!(failure.code, ErrorCode::Data, "{failure:?}");
        assert!(failure.message.contains(name) && failure.message.contains("`a`"), "{failure:?}");
        assert!(failure.hint.is_some(), "{failure:?}");
    }
    // Also in a file that is added later.
    let later = path("later");
    std::fs::create_dir(&later).unwrap();
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let single = batch(&[("a", column)]);
    let mut writer =
        ArrowWriter::try_new(File::create(later.join("1.parquet")).unwrap(), single.schema(), None).unwrap();
    writer.write(&single).unwrap();
    writer.close().unwrap();
    let engine = open(&later).await.unwrap();
    std::fs::copy(path("t.parquet"), later.join("2.parquet")).unwrap();
    let failure = run(&engine, "select sum(a) from t").await.unwrap_err();
    assert!(failure.message.contains("two columns are called `a`"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_name_truncated_files() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let one: ArrayRef = Arc::new(Int64Array::from((0..1000).collect::<Vec<i64>>()));
    write_arrow(&path("t.arrow"), &[("a", one.clone())]);
    let rows = batch(&[("a", one)]);
    let mut writer =
        ArrowWriter::try_new(File::create(path("t.parquet")).unwrap(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    for name in ["t.arrow", "t.parquet"] {
        let whole = std::fs::read(path(name)).unwrap();
        for bytes in [1, 7, whole.len() / 2, whole.len() - 1] {
            std::fs::write(path(name), &whole[..bytes]).unwrap();
            let failure = match open(&path(name)).await {
                Err(failure) => failure,
                Ok(engine) => run(&engine, "select sum(a) from t").await.unwrap_err(),
            };
            assert!(failure.message.contains(name), "{bytes} bytes: {failure:?}");
            assert!(!failure.message.contains("bug report"), "{bytes} bytes: {failure:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partition_folders_become_columns() {
    let folder = folder();
    write(&folder.path().join("year=2023/1.csv"), "b,a\n1,x\n");
    write(&folder.path().join("year=2024/1.csv"), "a,b\ny,2\n");
    let engine = open(folder.path()).await.unwrap();
    check(&engine, "select year, a, b from t order by b", &["2023|x|1", "2024|y|2"]).await;
    check(&engine, "select sum(b) as s from t where year = '2024'", &["2"]).await;
    assert_eq!(
        run(&engine, "select a from t").await.unwrap()[0].schema().field(0).data_type(),
        &DataType::Utf8
    );
    assert_eq!(number(&run(&engine, "select count(*) from t").await.unwrap(), 0), 2);
}

/// Both sides of the join have a column of the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_condition_on_one_side_of_a_join_is_not_pushed_to_the_other() {
    let folder = folder();
    let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
    for (name, columns) in [
        ("small", [("c", vec![Some(1), Some(2), Some(9)]), ("o", vec![None, Some(5), None])]),
        ("large", [("o", vec![Some(1), Some(2), Some(3)]), ("x", vec![Some(7), Some(8), Some(9)])]),
    ] {
        let path = folder.path().join(format!("{name}.parquet"));
        let columns = columns.map(|(name, values)| (name, Arc::new(Int64Array::from(values)) as ArrayRef));
        let rows = RecordBatch::try_from_iter_with_nullable(columns.map(|(n, c)| (n, c, true))).unwrap();
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), rows.schema(), None).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
        engine.register_path(name, &path).await.unwrap();
    }
    let from = "from small t right join large u on t.c = u.o where t.o is null";
    for select in ["count(*)", "sum(u.o) / 2", "count(u.x)"] {
        let got = run(&engine, &format!("select {select} as n {from}")).await.unwrap();
        assert_eq!(number(&got, 0), 2, "{select}");
    }
}

/// The minimum and maximum of a Parquet row group ignore NaN; in queries NaN is greater than all numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nan_in_parquet_is_treated_as_in_memory() {
    let folder = folder();
    let path = folder.path().join("f.parquet");
    let (nan, infinite) = (f64::NAN, f64::INFINITY);
    let columns: [(&str, ArrayRef); 2] = [
        ("same", Arc::new(Float64Array::from(vec![infinite, nan, infinite, nan]))),
        ("x", Arc::new(Float64Array::from(vec![1.0, nan, 3.0, 2.0]))),
    ];
    let rows = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
    engine.register_path("f", &path).await.unwrap();
    engine.register_in_memory("m", &path).await.unwrap();
    for sql in [
        "select same, x from T",
        "select max(x) as m from T",
        "select count(*) as n from T where x > 5",
        "select count(*) as n from T where x > 5 and same > 1",
        "select count(*) as n from T where same = 'NaN'::double",
        "select x from T order by x desc limit 1",
    ] {
        let [file, memory] = ["f", "m"].map(|table| sql.replace('T', table));
        let (file, memory) = (run(&engine, &file).await.unwrap(), run(&engine, &memory).await.unwrap());
        assert_eq!(text(&file), text(&memory), "{sql}");
        assert!(!file.is_empty(), "{sql}");
    }
    assert_eq!(number(&run(&engine, "select count(*) as n from f where x > 5").await.unwrap(), 0), 1);
}

/// No file of a folder is skipped without an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_in_subfolders_are_partitions_or_refused() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for name in ["t", "t/year=2024", "t/year=2024/month=1", "u", "u/2024", "u/.hidden"] {
        std::fs::create_dir(path(name)).unwrap();
    }
    write(&path("t/year=2024/month=1/a.csv"), "a\n1\n");
    write(&path("u/a.csv"), "a\n1\n");
    let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
    engine.register_path("t", &path("t")).await.unwrap();
    check(&engine, "select a, year, month from t", &["1|2024|1"]).await;
    write(&path("u/.hidden/b.csv"), "a\n2\n");
    engine.register_path("u", &path("u")).await.unwrap();
    check(&engine, "select a from u", &["1"]).await;
    write(&path("u/.a.csv"), "a\n2\n");
    let error = engine.register_path("w", &path("u")).await.unwrap_err().to_string();
    assert!(error.contains(".a.csv") && error.contains("hidden"), "{error}");
    std::fs::remove_file(path("u/.a.csv")).unwrap();
    write(&path("u/2024/b.csv"), "a\n2\n");
    let error = engine.register_path("v", &path("u")).await.unwrap_err().to_string();
    assert!(error.contains("2024/b.csv") && error.contains("COLUMN=VALUE"), "{error}");
}
