//! A result that does not fit its type is an error, on one node and on several.

use std::path::Path;

use arrow_array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use lightship_engine::{ClusterConfig, Engine, EngineConfig};
use lightship_wire::control::{ErrorCode, Failure};

use crate::support::{Node, met, run};

/// Writes groups whose sums fit (g = 0), don't fit (1), and fit only once all values are added (2).
fn write(path: &Path, from: i64) {
    let max = i64::MAX;
    let rows = [(0, from), (0, 1), (1, max), (1, 1), (2, max), (2, from - 1), (2, -max)];
    let lines = rows.iter().map(|(group, value)| format!("{group},{value}\n"));
    std::fs::write(path, format!("g,x\n{}", lines.collect::<String>())).unwrap();
}

async fn engine(path: &Path) -> Engine {
    let mut engine = Engine::new(EngineConfig { partitions: 3, ..EngineConfig::default() }).unwrap();
    engine.register_path("t", path).await.unwrap();
    engine
}

fn text(batches: &[RecordBatch]) -> Vec<String> {
    let row = |batch: &RecordBatch, row: usize| {
        let values = batch.columns().iter().map(|column| array_value_to_string(column, row).unwrap());
        values.collect::<Vec<_>>().join("|")
    };
    batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |at| row(batch, at))).collect()
}

/// Queries whose result does not fit.
const TOO_LARGE: &[&str] = &[
    "select sum(x) from t where g = 1",
    "select g, sum(x) from t group by g",
    "select sum(distinct x) from t where g = 1",
    "select g, sum(distinct x) from t group by g",
    "select g, count(distinct x), sum(distinct x) from t group by g",
    "select sum(x) over (order by x rows between 1 preceding and current row) from t where g = 1",
    "select sum(x) over (partition by g) from t",
    "select sum(x) filter (where g = 1) from t",
    "select sum(cast(18446744073709551615 as bigint unsigned)) from t",
    "select sum(cast(x as decimal(38, 0)) * 9000000000000000000) from t where x > 100",
    "select sum(x + 1) from t where g = 1",
    "select x + x from t where g = 1",
    "select x * 2 from t where g = 1",
    "select -x - 2 from t where g = 1",
    "select g from t where x + 1 > 0",
    "select max(x) + 1 from t",
    "select 9223372036854775807 + 1",
    "select -x from (values (-9223372036854775808)) as v(x)",
    "select cast(1 as bigint unsigned) - cast(g + 2 as bigint unsigned) from t",
    "select a.x + b.x from t a join t b on a.x + 1 = b.x + 1",
];

/// Queries whose result fits, and is the same in whatever order the rows are added.
const FITS: &[&str] = &[
    "select g, sum(x) as s from t where g <> 1 group by g order by g",
    "select sum(x) as s from t where g = 2",
    "select g, sum(distinct x) as s from t where g <> 1 group by g order by g",
    "select sum(x) over (partition by g) as s from t where g = 2",
    "select sum(x) over (order by x rows between 1 preceding and current row) as s from t where g = 0 order by s",
    "select sum(distinct x) over (order by x rows between 1 preceding and current row) as s from t where g = 0 order by s",
    "select sum(x) as s from t where g = 9",
    "select sum(cast(x as decimal(38, 0))) as s from t",
    "select sum(cast(x as double)) > 1e19 as large from t",
    "select avg(x) > 0 as a, sum(cast(g as int)) as i, sum(g + 1) as p from t",
    "select g + 1 as h, count(*) as n, sum(g * 2 - 1) as s from t group by g + 1 order by g + 1",
    "select sum(g) filter (where g > 0) as s, sum(null::bigint) as n from t",
    "select sum(d) as s from (select x as d, g from t where g = 0) order by s",
];

fn is_overflow(sql: &str, result: Result<Vec<RecordBatch>, Failure>) {
    let failure = match result {
        Ok(rows) => panic!("{sql}: {:?}", text(&rows)),
        Err(failure) => failure,
    };
    assert_eq!(failure.code, ErrorCode::Data, "{sql}: {failure:?}");
    let says = ["exceeds", "overflow", "Overflow"].iter().any(|word| failure.message.contains(word));
    assert!(says, "{sql}: {failure:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integer_arithmetic_does_not_wrap_around() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("t.csv"), 5);
    let engine = engine(&folder.path().join("t.csv")).await;
    for sql in TOO_LARGE {
        is_overflow(sql, run(&engine, sql).await);
    }
    let sums = run(&engine, FITS[0]).await.unwrap();
    assert_eq!(text(&sums), ["0|6", "2|4"]);
    assert_eq!(text(&run(&engine, "select x + 1 from t where x = 5").await.unwrap()), ["6"]);
    let failure = run(&engine, TOO_LARGE[0]).await.unwrap_err();
    assert!(failure.message.contains("sum(t.x) exceeds BIGINT; cast to decimal"), "{failure:?}");
    // Columns keep the names that DataFusion gives them.
    let rows = run(&engine, "select g + 1, sum(x) from t where g = 0 group by g").await.unwrap();
    let names: Vec<String> = rows[0].schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["t.g + Int64(1)", "sum(t.x)"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn integer_arithmetic_does_not_wrap_around_on_three_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    let mut all = String::from("g,x\n");
    for number in 0..3 {
        let path = folder.path().join(format!("{number}.csv"));
        write(&path, 5 + number);
        all.push_str(std::fs::read_to_string(&path).unwrap().strip_prefix("g,x\n").unwrap());
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine(&path).await, &first, ClusterConfig::default()).await);
    }
    for node in &nodes {
        met(node, 2).await;
    }
    std::fs::write(folder.path().join("all.csv"), all).unwrap();
    let alone = engine(&folder.path().join("all.csv")).await;
    for (place, sql) in TOO_LARGE.iter().enumerate() {
        is_overflow(sql, nodes[place % 3].query(sql).await);
    }
    for (place, sql) in FITS.iter().enumerate() {
        let expected = text(&run(&alone, sql).await.unwrap());
        assert_eq!(text(&nodes[place % 3].query(sql).await.unwrap()), expected, "{sql}");
    }
}
