//! Statements with parameters, and descriptions.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use lightship_transport::TransportError;
use lightship_transport::net::{Listen, ServerConfig};
use lightship_wire::control::{ErrorCode, Plan, Query};

use crate::support::*;

fn parameters(numbers: Vec<i64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(Int64Array::from(numbers));
    RecordBatch::try_from_iter([("$1", column)]).expect("a batch")
}

#[tokio::test]
async fn statements_are_executed_with_parameters() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    for server in [
        Running::start(ServerConfig::default()).await,
        Running::start_at(Listen::Unix(path.clone()), ServerConfig::default()).await,
    ] {
        let mut connection = server.connect().await;
        for batches in [0, 5, 40] {
            let query = Query { sql: String::new(), plan: Plan { streams: 2, ..plan(3) } };
            let (_, estimate) =
                within(connection.execute(&query, parameters(vec![batches]), 2)).await.expect("an answer");
            let rows = batches as u64 * BATCH_ROWS;
            assert_eq!(estimate, Some(rows));
            assert_eq!(take(&mut connection, 0, u64::MAX).await.expect("rows"), rows);
        }
        let query = Query { sql: "hang".into(), plan: plan(2) };
        within(connection.execute(&query, parameters(vec![1_000_000]), 0)).await.expect("an answer");
        take(&mut connection, 0, BATCH_ROWS).await.expect("rows");
        connection.cancel();
        whole(&mut connection, 5, plan(2)).await;
    }
}

#[tokio::test]
async fn statements_are_described() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    for _ in 0..3 {
        let described = within(connection.describe("")).await.expect("a description");
        assert_eq!(described.columns.field(0).name(), "n");
        assert_eq!(described.parameters.field(0).name(), "$1");
        let refused = within(connection.describe("fail")).await.expect_err("refused");
        assert_eq!(code(&refused), Some(ErrorCode::Sql));
    }
    whole(&mut connection, 5, plan(2)).await;
    assert_eq!(server.made(), 5);
}

#[tokio::test]
async fn parameters_that_are_not_one_row_are_not_sent() {
    let server = Running::start(ServerConfig::default()).await;
    let mut connection = server.connect().await;
    let query = Query { sql: String::new(), plan: plan(2) };
    for numbers in [vec![], vec![1, 2]] {
        let refused = within(connection.execute(&query, parameters(numbers), 0)).await;
        assert!(matches!(refused, Err(TransportError::Wire(_))), "{refused:?}");
    }
    whole(&mut connection, 5, plan(2)).await;
}
