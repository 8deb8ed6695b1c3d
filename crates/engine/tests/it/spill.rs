//! Queries whose data is larger than the memory return what they return with enough of it.

use std::path::Path;

use arrow_array::RecordBatch;
use futures::TryStreamExt as _;
use lightship_engine::{Engine, EngineConfig};
use lightship_testkit::results::{Order, difference};
use lightship_testkit::tpch;

const SCALE: f64 = 0.03;
/// Less than each input of the queries below.
const LITTLE_BYTES: usize = 6 << 20;

async fn engine(folder: &Path, query_memory_bytes: usize, spill: &Path) -> Engine {
    let spill_folder = Some(spill.to_owned());
    let config = EngineConfig { partitions: 2, query_memory_bytes, spill_folder, ..EngineConfig::default() };
    let mut engine = Engine::new(config).unwrap();
    for table in ["lineitem", "orders"] {
        engine.register_path(table, &folder.join(table).with_extension("parquet")).await.unwrap();
    }
    engine
}

async fn rows(engine: &Engine, sql: &str) -> Vec<RecordBatch> {
    let rows = engine.query(sql).await.unwrap().into_rows();
    rows.try_collect().await.unwrap_or_else(|failure| panic!("{sql}: {}", failure.message))
}

#[tokio::test(flavor = "multi_thread")]
async fn sorts_aggregates_and_joins_spill() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(SCALE, folder.path(), |_, _| {}).unwrap();
    let spill = folder.path().join("spill");
    let roomy = engine(folder.path(), 1 << 30, &spill).await;
    let little = engine(folder.path(), LITTLE_BYTES, &spill).await;
    for (sql, order) in [
        ("select * from lineitem order by l_comment, l_orderkey, l_linenumber", Order::Kept),
        (
            "select l_orderkey, l_partkey, sum(l_quantity) as q, min(l_comment) as c, count(*) as n \
             from lineitem group by 1, 2",
            Order::Any,
        ),
        (
            "select a.l_orderkey, a.l_linenumber, a.l_comment, b.l_shipinstruct from lineitem a join lineitem b \
             on a.l_orderkey = b.l_orderkey and a.l_linenumber = b.l_linenumber and a.l_comment = b.l_comment",
            Order::Any,
        ),
        (
            "select o.o_orderkey, o.o_comment, l.l_comment from orders o left join lineitem l \
             on o.o_orderkey = l.l_orderkey and l.l_linenumber = 7 \
             where o.o_comment not in ('a', 'b') order by o.o_orderkey, l.l_comment",
            Order::Any,
        ),
        (
            "select o_orderkey, o_comment from orders where not exists \
             (select 1 from lineitem where l_orderkey = o_orderkey and l_comment like '%e%')",
            Order::Any,
        ),
        (
            "select count(*) as n, sum(length(a.l_comment)) as m from lineitem a full join lineitem b \
             on a.l_comment = b.l_comment and a.l_orderkey < b.l_orderkey",
            Order::Any,
        ),
    ] {
        let expected = rows(&roomy, sql).await;
        let got = rows(&little, sql).await;
        if let Some(difference) = difference(&expected, &got, order) {
            panic!("{sql}: {difference}");
        }
    }
    // The files have no names.
    assert_eq!(std::fs::read_dir(&spill).unwrap().count(), 0);
}
