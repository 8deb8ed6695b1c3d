//! The same query, run in two ways, has the same answer.
//!
//! Each test covers one place of tables ([`Place`]). It generates random tables and queries over
//! them, and makes one of three checks of each query ([`Check`]). An error is an answer: both ways
//! fail, or neither. Only values that can't be computed may fail in one way alone, because it is
//! not defined which rows are computed before they are filtered out. These cases are counted.
//!
//! `LIGHTSHIP_QUERIES` is the number of queries for each place, `LIGHTSHIP_SEED` the first seed. A
//! failure prints its seed: `LIGHTSHIP_SEED=17/3` runs only the fourth query over the tables of
//! seed 17.

mod places;
mod tally;

use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field};
use lightship_testkit::queries::{Query, Shape, any_query, seed_of};
use lightship_testkit::results::{Order, difference};
use lightship_wire::control::{ErrorCode, Failure};

use self::places::{Method, Place, Servers, World};
use self::tally::{Fault, Tally};

/// Default number of queries for each place.
const QUERIES: u64 = 30;
/// Queries over the same tables.
const QUERIES_OF_TABLES: u64 = 20;
/// Timeout of a query. Most take milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of smaller queries that are tried in place of one that fails.
const TRIES_MAX: usize = 400;
/// A place with this many faults is checked no further.
const FAULTS_MAX: usize = 20;

/// Maximum number of times that tables are generated again because they have values that can't be read.
const UNREADABLE_MAX: u64 = 10_000;

/// Marks panics and timeouts, which are faults in all ways.
const BROKEN: &str = "broken";

/// Known faults: a part of the message, and why they are not fixed.
const KNOWN: [(&str, &str); 3] = [
    (
        "attempt to multiply with overflow",
        "a fault of DataFusion's planner with decimals of negative scale: numeric(5,-2)",
    ),
    (
        "TopK dynamic filter emitter completed more times",
        "a fault of datafusion-distributed with a join sorted with a limit",
    ),
    (
        "WorkerConnections stream for partition",
        "a fault of datafusion-distributed with a join without equal columns",
    ),
];

/// How a query is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// All ways of the place give the same rows.
    Compare,
    /// All rows together are those where a condition is true, those where it is false, and those
    /// where it is null.
    Partitions,
    /// The number of rows that meet a condition is the number of rows for which its value is true.
    Counts,
}

/// The result of a check for one way.
enum Verdict {
    /// The same answer.
    Same,
    /// The same: both ways fail.
    BothFail,
    /// One way fails because a value can't be computed.
    OneFails,
    /// Different answers.
    Differs(String),
}

type Answer = Result<Vec<RecordBatch>, Failure>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    check_place(Place::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb() {
    check_place(Place::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    check_place(Place::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parquet() {
    check_place(Place::Parquet).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrow() {
    check_place(Place::Arrow).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csv() {
    check_place(Place::Csv).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json() {
    check_place(Place::Json).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_tables_in_parts() {
    check_place(Place::Parts).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_shared_tables() {
    check_place(Place::Shared).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_with_a_database() {
    check_place(Place::ClusterDatabase).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wire() {
    check_place(Place::Wire).await;
}

/// The first seed of tables, and the query to run if it is to be only one.
fn seed() -> (u64, Option<u64>) {
    let Ok(text) = std::env::var("LIGHTSHIP_SEED") else { return (1, None) };
    let number =
        |text: &str| text.parse().unwrap_or_else(|_| panic!("LIGHTSHIP_SEED={text}: expected a number"));
    match text.split_once('/') {
        Some((tables, query)) => (number(tables), Some(number(query))),
        None => (number(&text), None),
    }
}

fn queries() -> u64 {
    let number =
        |text: String| text.parse().unwrap_or_else(|_| panic!("LIGHTSHIP_QUERIES={text}: expected a number"));
    std::env::var("LIGHTSHIP_QUERIES").map_or(QUERIES, number)
}

async fn check_place(place: Place) {
    let (first, only) = seed();
    let servers = Servers::start(place);
    let mut tally = Tally::new(place);
    let mut queries = if only.is_some() { 1 } else { queries() };
    for tables in first.. {
        if queries == 0 || tally.faults.len() >= FAULTS_MAX {
            break;
        }
        let asked = match only {
            Some(query) => query..query + 1,
            None => 0..QUERIES_OF_TABLES.min(queries),
        };
        let Some(world) = World::new(place, &servers, tables).await else {
            tally.unreadable += 1;
            assert!(only.is_none() && tally.unreadable < UNREADABLE_MAX, "tables that can't be read");
            continue;
        };
        queries -= asked.end - asked.start;
        for query in asked {
            check_query(&world, tables, query, &mut tally).await;
        }
        world.end().await;
        tally.progress();
    }
    tally.end();
}

async fn check_query(world: &World, tables: u64, number: u64, tally: &mut Tally) {
    let seed = seed_of(tables, number + 100);
    let check = match seed % 10 {
        0..=5 => Check::Compare,
        6 | 7 => Check::Partitions,
        _ => Check::Counts,
    };
    let shape = if check == Check::Compare { Shape::Any } else { Shape::Plain };
    let query = any_query(&world.tables, shape, seed);
    for (way, verdict) in judge(world, check, &query).await {
        tally.count(check, way, &verdict);
        let Verdict::Differs(found) = verdict else { continue };
        if tally.is_known(&found) {
            continue;
        }
        let (query, found) = smallest(world, check, way, query.clone(), found).await;
        let about = world.about.clone();
        let check = format!("{check:?}");
        tally.fault(Fault { seed: (tables, number), check, way, query: query.to_string(), found, about });
    }
}

/// The verdict on each way. Two checks need only one way: the last, which is the farthest from a plain scan.
async fn judge(world: &World, check: Check, query: &Query) -> Vec<(&'static str, Verdict)> {
    let last = world.ways.last().expect("a place has ways");
    match check {
        Check::Compare => {
            let sql = query.to_string();
            let (first, others) = world.ways.split_first().expect("a place has ways");
            let expected = ask(first, &sql).await;
            let mut verdicts = Vec::new();
            for way in others {
                verdicts.push((way.name, compare(&expected, &ask(way, &sql).await)));
            }
            verdicts
        }
        Check::Partitions => {
            let Some((whole, parts)) = query.partitions() else { return Vec::new() };
            let expected = ask(last, &whole.to_string()).await;
            let mut got = Ok(Vec::new());
            for part in parts {
                let part = ask(last, &part.to_string()).await;
                got = match (got, part) {
                    (Ok(got), Ok(part)) => Ok([got, part].concat()),
                    (Err(failure), _) | (_, Err(failure)) => Err(failure),
                };
            }
            vec![(last.name, without_answer(compare(&expected, &got), &got))]
        }
        Check::Counts => {
            let Some((values, counted)) = query.counts() else { return Vec::new() };
            let expected = ask(last, &values.to_string()).await;
            let got = ask(last, &counted.to_string()).await;
            vec![(last.name, without_answer(compare(&expected, &got), &expected))]
        }
    }
}

/// A condition that can't be planned counts as a failure in both ways.
fn without_answer(verdict: Verdict, conditional: &Answer) -> Verdict {
    match (verdict, conditional) {
        (Verdict::Differs(_), Err(failure)) if is_refusal(failure) => Verdict::BothFail,
        (verdict, _) => verdict,
    }
}

fn is_refusal(failure: &Failure) -> bool {
    failure.code == ErrorCode::Sql || failure.message.starts_with("Failed to coerce types")
}

/// The answer of one way. A panic or a timeout becomes an error.
async fn ask(way: &Method, sql: &str) -> Answer {
    let (asked, sql) = (way.asked.clone(), sql.to_owned());
    let mut task = tokio::spawn(async move { asked.ask(&sql).await });
    let broken = |why: String| Err(Failure::new(ErrorCode::Internal, format!("{BROKEN}: {why}")));
    match tokio::time::timeout(PATIENCE, &mut task).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => broken(error.to_string()),
        Err(_) => {
            task.abort();
            broken("the query timed out".into())
        }
    }
}

fn compare(expected: &Answer, got: &Answer) -> Verdict {
    let broken = |answer: &Answer| matches!(answer, Err(failure) if failure.message.starts_with(BROKEN));
    match (expected, got) {
        (Err(failure), _) | (_, Err(failure)) if broken(expected) || broken(got) => {
            Verdict::Differs(failure.message.clone())
        }
        (Ok(expected), Ok(got)) => {
            match other_types(expected, got).or_else(|| difference(expected, got, Order::Any)) {
                Some(difference) => Verdict::Differs(difference),
                None => Verdict::Same,
            }
        }
        (Err(_), Err(_)) => Verdict::BothFail,
        (Err(failure), Ok(_)) | (Ok(_), Err(failure)) if failure.code == ErrorCode::Data => Verdict::OneFails,
        (Err(failure), Ok(_)) => Verdict::Differs(format!("expected {:?}: {failure}", failure.code)),
        (Ok(_), Err(failure)) => Verdict::Differs(format!("got {:?}: {failure}", failure.code)),
    }
}

/// The first column whose types differ, if both answers have rows. A dictionary has the type of its values.
fn other_types(expected: &[RecordBatch], got: &[RecordBatch]) -> Option<String> {
    let (expected, got) = (expected.first()?.schema(), got.first()?.schema());
    let pairs = expected.fields().iter().zip(got.fields());
    let values = |field: &Field| match field.data_type() {
        DataType::Dictionary(_, values) => (**values).clone(),
        other => other.clone(),
    };
    let mut other = pairs.filter(|(one, other)| !values(one).equals_datatype(&values(other)));
    other.next().map(|(one, other)| format!("other types: expected {one}, got {other}"))
}

/// The smallest query found that fails in the same way.
async fn smallest(
    world: &World,
    check: Check,
    way: &'static str,
    mut query: Query,
    mut found: String,
) -> (Query, String) {
    let mut tries = 0;
    'smaller: loop {
        for smaller in query.smaller() {
            tries += 1;
            if tries > TRIES_MAX {
                break 'smaller;
            }
            let verdicts = judge(world, check, &smaller).await;
            let differs = verdicts.into_iter().find_map(|(name, verdict)| match verdict {
                Verdict::Differs(found) if name == way => Some(found),
                _ => None,
            });
            if let Some(differs) = differs {
                (query, found) = (smaller, differs);
                continue 'smaller;
            }
        }
        break;
    }
    (query, found)
}
