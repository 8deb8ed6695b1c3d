//! No statement can harm the process that runs it.

use std::sync::Arc;
use std::time::Instant;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int64Type};
use arrow_array::{ArrayRef, DictionaryArray, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow_schema::Field;
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::ipc::writer::FileWriter;
use futures::StreamExt;
use lightship_engine::{Engine, EngineConfig};
use lightship_testkit::statements;
use lightship_wire::control::{ErrorCode, Failure};
use parquet::arrow::ArrowWriter;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use crate::support::run;

/// An engine with a table `t` of one column `a`.
async fn small() -> (TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, "a\n1\n2\n3\n").unwrap();
    let config = EngineConfig { partitions: 2, query_memory_bytes: 256 << 20, ..EngineConfig::default() };
    let mut engine = Engine::new(config).unwrap();
    engine.register_path("t", &file).await.unwrap();
    (folder, engine)
}

/// Statements with chains of about this many levels, and this many joins.
fn chains(levels: usize, joins: usize) -> Vec<(&'static str, String)> {
    let levels = levels - 20;
    let chain = |before: &str, part: &str, cost: usize, after: &str| {
        format!("{before}{}{after}", part.repeat(levels / cost))
    };
    vec![
        ("sum of constants", chain("select 1", "+1", 1, "")),
        ("sum of columns", chain("select a", "+a", 1, " as s from t")),
        ("or", chain("select a from t where a = 0", " or a = 1", 2, "")),
        ("and", chain("select a from t where a = 1", " and a <> 0", 2, "")),
        ("different or", {
            let terms: Vec<String> = (0..levels / 2).map(|n| format!("a = {n}")).collect();
            format!("select a from t where {}", terms.join(" or "))
        }),
        ("or of and", chain("select a from t where a = 0", " or a = 1 and a < 5", 4, "")),
        ("casts", chain("select a", "::bigint", 2, " as c from t")),
        ("concatenation", chain("select 'x'", " || a", 1, " as c from t")),
        ("is null", chain("select a", " is null", 2, " as c from t")),
        ("case", chain("select case", " when a = 7 then 1", 3, " else 2 end as c from t")),
        ("union all", chain("select 1", " union all select 1", 3, "")),
        ("joins", {
            let joins: Vec<String> = (0..joins).map(|n| format!("join t as t{n} on t{n}.a = t.a")).collect();
            format!("select count(*) as c from t {}", joins.join(" "))
        }),
        ("with", {
            let queries: Vec<String> =
                (0..levels / 40).map(|n| format!("q{} as (select a + 1 as a from q{n})", n + 1)).collect();
            format!("with q0 as (select a from t), {} select * from q{}", queries.join(", "), levels / 40)
        }),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn statements_that_are_too_deep_are_refused_and_the_engine_continues() {
    let (_folder, engine) = small().await;
    for (name, sql) in chains(30_000, 3000) {
        match run(&engine, &sql).await {
            Err(Failure { code: ErrorCode::Limit, hint: Some(_), .. }) => {}
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(run(&engine, "select a from t").await.unwrap()[0].num_rows(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deep_statements_run_or_fail_with_an_error() {
    let (_folder, engine) = small().await;
    for (name, sql) in chains(300, 20) {
        let began = Instant::now();
        let answer = run(&engine, &sql).await;
        eprintln!("{name}: {:?}, {}", began.elapsed(), answer.is_ok());
        match (name, &answer) {
            ("or" | "different or" | "and" | "sum of columns" | "union all" | "case", Err(failure)) => {
                panic!("{name}: {failure:?}")
            }
            (_, Err(failure)) => assert!(
                matches!(failure.code, ErrorCode::Sql | ErrorCode::Limit | ErrorCode::Data),
                "{name}: {failure:?}"
            ),
            (_, Ok(_)) => {}
        }
    }
    assert_eq!(run(&engine, "select a from t").await.unwrap()[0].num_rows(), 3);
}

#[test]
fn deep_statements_of_any_shape_do_not_end_the_process() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_folder, engine) = runtime.block_on(small());
    let config = Config { cases: 8, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let choices = prop::collection::vec(any::<u8>(), 2..12);
    runner
        .run(&choices, |choices| {
            let sql = statements::deep(&choices, 80);
            // A stack overflow ends the process. The last line printed then names the statement.
            eprintln!("choices {choices:?}, {} bytes", sql.len());
            if let Err(failure) = runtime.block_on(run(&engine, &sql)) {
                prop_assert!(failure.code != ErrorCode::Protocol, "{failure:?}");
                prop_assert!(!failure.message.contains("DataFusion"), "{failure:?}");
            }
            Ok(())
        })
        .unwrap();
}

/// The files have separate dictionaries, with more values together than 8-bit keys can number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dictionaries_with_small_keys_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let batch = |from: i64| {
        let names: StringArray = (from..from + 100).map(|n| Some(format!("name {n}"))).collect();
        let keys = (0..100).map(|n| Some(n as i8)).collect::<arrow_array::Int8Array>();
        let names = DictionaryArray::<Int8Type>::new(keys, Arc::new(names));
        let numbers = Int64Array::from_iter_values(from..from + 100);
        RecordBatch::try_from_iter([("name", Arc::new(names) as _), ("n", Arc::new(numbers) as _)]).unwrap()
    };
    // Each name in a list and a struct as well.
    let nested = |batch: &RecordBatch| {
        let (name, n) = (batch.column(0), batch.column(1));
        let item = Arc::new(Field::new("item", name.data_type().clone(), true));
        let list = ListArray::new(item, OffsetBuffer::from_repeated_length(1, 100), name.clone(), None);
        let one = StructArray::try_from(vec![("inner", name.clone())]).unwrap();
        let columns: [(_, ArrayRef); 4] =
            [("name", name.clone()), ("n", n.clone()), ("list", Arc::new(list)), ("one", Arc::new(one))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let batches: Vec<RecordBatch> = (0..10).map(|place| batch(place * 100)).collect();
    let (parquet, arrow) = (folder.path().join("parquet"), folder.path().join("arrow"));
    std::fs::create_dir(&parquet).unwrap();
    std::fs::create_dir(&arrow).unwrap();
    for (number, batch) in batches.iter().enumerate() {
        let file = std::fs::File::create(arrow.join(format!("{number}.arrow"))).unwrap();
        let batch = nested(batch);
        let mut writer = FileWriter::try_new(file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
    }
    for (number, batch) in batches.iter().enumerate() {
        let file = std::fs::File::create(parquet.join(format!("{number}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
    }
    let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
    engine.register_path("p", &parquet).await.unwrap();
    engine.register_path("a", &arrow).await.unwrap();
    engine.register_in_memory("m", &parquet).await.unwrap();
    engine.register_in_memory("ma", &arrow).await.unwrap();
    for sql in [
        "select list from T order by n desc",
        "select one from T order by n desc",
        "select one, list, count(*) as c from T group by one, list",
        "select x.list, y.one from T x join T y on x.n = y.n",
    ] {
        for table in ["a", "ma"] {
            let sql = sql.replace('T', table);
            let got = run(&engine, &sql).await.unwrap_or_else(|failure| panic!("{sql}: {failure:?}"));
            assert_eq!(got.iter().map(RecordBatch::num_rows).sum::<usize>(), 1000, "{sql}");
        }
    }
    for table in ["p", "m", "a", "ma"] {
        for (sql, rows) in [
            ("select name from T order by n desc", 1000),
            ("select name, count(*) as c from T group by name", 1000),
            ("select x.name from T x join T y on x.name = y.name", 1000),
            ("select distinct name from T", 1000),
            ("select max(name) as m from T", 1),
            ("select name, row_number() over (partition by name) as r from T", 1000),
        ] {
            let sql = sql.replace('T', table);
            let got = run(&engine, &sql).await.unwrap_or_else(|failure| panic!("{sql}: {failure:?}"));
            assert_eq!(got.iter().map(RecordBatch::num_rows).sum::<usize>(), rows, "{sql}");
        }
        let sql = format!("select sum(n) as s from {table} where name = 'name 999'");
        let sum = run(&engine, &sql).await.unwrap();
        assert_eq!(sum[0].column(0).as_primitive::<Int64Type>().value(0), 999);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_that_need_more_memory_than_there_is_are_refused() {
    // 8192 rows, and memory for 256 MiB.
    let (_folder, mut engine) = small().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("many.csv");
    let lines: String = (0..8192).map(|n| format!("{n},2020-01-01\n")).collect();
    std::fs::write(&file, format!("n,d\n{lines}")).unwrap();
    engine.register_path("many", &file).await.unwrap();
    for huge in [
        "repeat('x', 1000000 + n)",
        "lpad('x', 1000000 + n)",
        "rpad('x', 1000000 + n, 'ab')",
        "range(0, 1000000 + n)",
        "generate_series(n, n - 1000000, -1)",
        "range(d, d + interval '10000 years', interval '1 day')",
        "array_repeat(repeat('x', 1000), 1000 + n)",
        "array_repeat(range(0, 1000), 1000 + n)",
        "array_resize([n], 1000000)",
        "replace(repeat('a', 1000 + n - n), 'a', repeat('b', 1000))",
        // With constants only.
        "repeat('x', 2000000000)",
        "range(0, 20000000000)",
        "range(0, 20000000000) || range(n)",
        "array_repeat(cast(null as int), 2000000000)",
        "array_repeat('', 2000000000)",
        "array_repeat(range(0, 250000), n + 1)",
    ] {
        let failed = run(&engine, &format!("select length(cast({huge} as varchar)) as l from many")).await;
        let failed = match failed {
            Err(failure) => failure,
            Ok(rows) => panic!("{huge}: {} rows", rows.len()),
        };
        assert_eq!((failed.code, failed.hint.is_some()), (ErrorCode::Limit, true), "{huge}: {failed:?}");
    }
    for small in [
        "length(repeat('x', 1000 + n))",
        "length(lpad('x', 10))",
        "cardinality(range(n % 100))",
        "cardinality(range(n, 0))",
        "cardinality(generate_series(0, 10, 3))",
        "cardinality(generate_series(d, d + interval '1 year', interval '1 day'))",
        "cardinality(array_repeat(n, 5))",
        "cardinality(array_resize([n], 3))",
        "length(replace('banana', 'a', 'oo'))",
        "length(repeat('x', 200000000))",
        "length(repeat(null, 200000000))",
        "length(replace(cast(n as varchar), 'zzz', repeat('y', 200000)))",
        "length(lpad(cast(n as varchar), 12, '0'))",
    ] {
        let rows = run(&engine, &format!("select {small} as l from many")).await.unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 8192, "{small}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_without_memory_for_its_rows_waits_for_another_to_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, format!("a\n{}", "1\n".repeat(100_000))).unwrap();
    let config = EngineConfig { row_memory_bytes: 2 << 20, ..EngineConfig::default() };
    let mut engine = Engine::new(config).unwrap();
    engine.register_path("t", &file).await.unwrap();
    let begin = async || engine.query("select a from t").await.unwrap().into_rows();
    // Each takes half of the row memory.
    let (mut first, mut second, mut third) = (begin().await, begin().await, begin().await);
    assert!(first.next().await.unwrap().is_ok() && second.next().await.unwrap().is_ok());
    // The third has its columns, but no rows until another query ends. Queries that read few rows
    // do not wait.
    assert!(futures::poll!(third.next()).is_pending());
    assert_eq!(run(&engine, "select 1 as one").await.unwrap()[0].num_rows(), 1);
    drop(begin().await);
    drop(first);
    let mut rows = 0;
    while let Some(batch) = third.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, 100_000);
    drop((second, third));
    assert_eq!(run(&engine, "select count(*) as c from t").await.unwrap()[0].num_rows(), 1);
}
