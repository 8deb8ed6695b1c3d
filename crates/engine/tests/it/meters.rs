//! The processor time of each task, and who is told of queries.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt;
use lightship_engine::{
    ClusterConfig, Engine, EngineConfig, QueryObserver, QueryOutcome, QueryTimes, TaskMeters,
};
use lightship_testkit::tpch;
use lightship_usage::{Figure, Subject};

use crate::support::{Node, met, run};

/// Remembers what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<(String, String, Option<QueryOutcome>)>>, Mutex<Vec<QueryTimes>>);

impl QueryObserver for Told {
    fn began(&self, query: &str, sql: &str, _: Duration) {
        self.0.lock().unwrap().push((query.into(), sql.into(), None));
    }

    fn ended(&self, query: &str, outcome: QueryOutcome, times: &QueryTimes) {
        self.1.lock().unwrap().push(times.clone());
        let mut told = self.0.lock().unwrap();
        let (.., ended) = told.iter_mut().find(|(began, ..)| began == query).unwrap();
        assert_eq!(ended.replace(outcome), None);
    }
}

fn metered() -> (EngineConfig, Arc<TaskMeters>, Arc<Told>) {
    let (meters, told) = (TaskMeters::new(), Arc::<Told>::default());
    meters.observe(told.clone());
    (EngineConfig { partitions: 2, meters: Some(meters.clone()), ..EngineConfig::default() }, meters, told)
}

/// The stages of a query that have tasks, and the processor time of all.
fn used(meters: &TaskMeters, of: &str) -> (BTreeSet<u32>, u64) {
    let mut used = (BTreeSet::new(), 0);
    for entry in meters.entries(usize::MAX) {
        let Subject::Task { query, stage, .. } = entry.subject else { panic!("{entry:?}") };
        if query == of {
            used.0.insert(stage);
            used.1 += entry.figures.get(Figure::CpuNs).unwrap();
        }
    }
    used
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_query_are_counted_on_every_node() {
    let folder = tempfile::tempdir().unwrap();
    tpch::write_parquet(0.01, folder.path(), |_, _| {}).unwrap();
    let mut nodes: Vec<Node> = Vec::new();
    let mut counted = Vec::new();
    for _ in 0..2 {
        let (config, meters, told) = metered();
        let mut engine = Engine::new(config).unwrap();
        engine.register_shared_path("lineitem", &folder.path().join("lineitem.parquet")).await.unwrap();
        let first: Vec<&Node> = nodes.iter().take(1).collect();
        nodes.push(Node::start(engine, &first, ClusterConfig::default()).await);
        counted.push((meters, told));
    }
    met(&nodes[0], 1).await;
    met(&nodes[1], 1).await;
    let sql = "select l_partkey, sum(l_quantity) from lineitem group by l_partkey order by 2 desc limit 10";
    assert_eq!(nodes[0].query(sql).await.unwrap().iter().map(|rows| rows.num_rows()).sum::<usize>(), 10);
    let told = counted[0].1.0.lock().unwrap().clone();
    let [(query, text, outcome)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((text.as_str(), outcome), (sql, &Some(QueryOutcome::Finished)));
    // The other node has parts of the query, which it was not asked.
    assert!(counted[1].1.0.lock().unwrap().is_empty());
    let of_node = counted.iter().map(|(meters, _)| used(meters, query)).collect::<Vec<_>>();
    let [(here, here_ns), (there, there_ns)] = &of_node[..] else { panic!("{of_node:?}") };
    assert!(here.contains(&0) && here.len() > 1, "{of_node:?}");
    assert!(!there.contains(&0) && !there.is_empty(), "{of_node:?}");
    // Either reads about 30,000 rows.
    assert!(*here_ns > 1_000_000 && *there_ns > 1_000_000, "{of_node:?}");
    for node in nodes {
        node.leave().await;
    }
}

#[tokio::test]
async fn the_observer_is_told_how_a_query_ended() {
    let (config, meters, told) = metered();
    let engine = Engine::new(config).unwrap();
    run(&engine, "select 1").await.unwrap();
    run(&engine, "select cast(v as int) from (values ('1'), ('x')) t(v)").await.unwrap_err();
    let sql = "select a.value from generate_series(1, 100000) a, generate_series(1, 100000) b";
    let mut rows = engine.query(sql).await.unwrap().into_rows();
    assert!(rows.next().await.unwrap().is_ok());
    drop(rows);
    // It is not planned.
    run(&engine, "select nothing").await.unwrap_err();
    let told = told.0.lock().unwrap();
    let outcomes: Vec<_> = told.iter().map(|(.., outcome)| outcome.clone().unwrap()).collect();
    let [QueryOutcome::Finished, QueryOutcome::Failed(message), QueryOutcome::Cancelled] = &outcomes[..]
    else {
        panic!("{outcomes:?}")
    };
    assert!(message.contains('x'), "{message}");
    let waits =
        meters.entries(usize::MAX).iter().filter_map(|entry| entry.figures.get(Figure::ClientWaitNs)).count();
    assert_eq!(waits, 3, "an entry for the last task of each query");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_observer_is_told_when_a_query_waited_for_room() {
    let (config, _, told) = metered();
    let mut engine = Engine::new(EngineConfig { row_memory_bytes: 2 << 20, ..config }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), format!("a\n{}", "1\n".repeat(100_000))).unwrap();
    engine.register_path("t", &folder.path().join("t.csv")).await.unwrap();
    let mut holding = Vec::new();
    for _ in 0..2 {
        let mut rows = engine.query("select * from t").await.unwrap().into_rows();
        assert!(rows.next().await.unwrap().is_ok());
        holding.push(rows);
    }
    let mut waiting = engine.query("select * from t").await.unwrap().into_rows();
    let mut next = std::pin::pin!(waiting.next());
    assert!(futures::poll!(&mut next).is_pending());
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(20) {
        assert!(futures::poll!(&mut next).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(told.1.lock().unwrap().is_empty());
    drop(holding.pop());
    assert!(next.await.unwrap().is_ok());
    drop(waiting);
    let times = told.1.lock().unwrap().clone();
    let [dropped, waited] = &times[..] else { panic!("{times:?}") };
    assert!(dropped.queued.is_empty() && dropped.planned > Duration::ZERO, "{times:?}");
    let [(from, to)] = waited.queued[..] else { panic!("{times:?}") };
    assert!(from < to && to >= Duration::from_millis(20), "{times:?}");
    assert!(waited.planned <= from, "it waits for room when it has been planned: {times:?}");
}
