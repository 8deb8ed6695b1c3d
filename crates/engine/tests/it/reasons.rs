//! The reasons of failed statements, and the current time.

use arrow_array::cast::AsArray;
use arrow_array::types::{Time64NanosecondType, TimestampNanosecondType};
use lightship_engine::{Engine, EngineConfig};
use lightship_wire::control::Reason;
use tempfile::TempDir;

use crate::support::run;

async fn small() -> (TempDir, Engine) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, "a,name\n1,one\n2,two\n0,three\n").unwrap();
    let mut engine = Engine::new(EngineConfig::default()).unwrap();
    engine.register_path("t", &file).await.unwrap();
    (folder, engine)
}

#[tokio::test]
async fn failures_have_reasons() {
    let (_folder, engine) = small().await;
    for (sql, expected) in [
        ("select", Some(Reason::Syntax)),
        ("selec 1", Some(Reason::Syntax)),
        ("select 'open", Some(Reason::Syntax)),
        ("select 1; select 2", Some(Reason::Syntax)),
        ("select * from nonsense", Some(Reason::UndefinedTable)),
        ("select * from other.t", Some(Reason::UndefinedTable)),
        ("explain select * from nonsense", Some(Reason::UndefinedTable)),
        ("with x as (select 1) select * from x, y", Some(Reason::UndefinedTable)),
        ("select a, a from nonsense", Some(Reason::UndefinedTable)),
        ("select nonsense from t", Some(Reason::UndefinedColumn)),
        ("select t.nonsense from t", Some(Reason::UndefinedColumn)),
        ("select a from t where \"table 'x' not found\" = 1", Some(Reason::UndefinedColumn)),
        ("select a from t x, t y", Some(Reason::AmbiguousColumn)),
        ("select nonsense(a) from t", Some(Reason::UndefinedFunction)),
        ("select sums(a) from t", Some(Reason::UndefinedFunction)),
        ("select a / 0 from t", Some(Reason::DivisionByZero)),
        ("select 1 / a from t", Some(Reason::DivisionByZero)),
        ("select a + 9223372036854775807 from t", Some(Reason::OutOfRange)),
        ("select sum(a + 9223372036854775800) from t", Some(Reason::OutOfRange)),
        ("select cast(name as bigint) from t", Some(Reason::InvalidValue)),
        ("select cast('x' as date)", Some(Reason::InvalidValue)),
        ("select a from t where a = $1", Some(Reason::Parameters)),
        ("select repeat(name, 2000000000) from t", Some(Reason::OutOfMemory)),
        ("create table x (a int)", None),
        // The text says what the reason is not.
        ("select sum(a, name, 'table not found') from t", None),
    ] {
        let failure = run(&engine, sql).await.unwrap_err();
        assert_eq!(failure.reason, expected, "{sql}: {failure:?}");
    }
}

#[tokio::test]
async fn the_present_time_has_whole_microseconds() {
    let (_folder, engine) = small().await;
    for _ in 0..20 {
        let sql = "select now() as a, current_timestamp as b, current_time as c, now() = now() as d, \
                   (select max(now()) from t) as e from t where now() > timestamp '2020-01-01'";
        let batches = run(&engine, sql).await.unwrap();
        let batch = batches.iter().find(|batch| batch.num_rows() > 0).expect("rows");
        let now = batch.column(0).as_primitive::<TimestampNanosecondType>().value(0);
        assert_eq!(now % 1000, 0);
        assert_eq!(batch.column(1).as_primitive::<TimestampNanosecondType>().value(0), now);
        assert_eq!(batch.column(2).as_primitive::<Time64NanosecondType>().value(0) % 1000, 0);
        assert!(batch.column(3).as_boolean().value(0));
        assert_eq!(batch.column(4).as_primitive::<TimestampNanosecondType>().value(0), now);
    }
}
