//! A row that is too large is refused with its number. If the protocol sends the length first, the row is refused
//! before it is read.

use futures::StreamExt;
use lightship_sources::{ReadOptions, Source, SourceError};

use crate::postgres::{source, streams, whole};
use crate::{collect, mysql, sqlite};

#[tokio::test]
async fn postgresql_rows_that_are_too_large_are_refused() {
    let source = source().await;
    for tuples in [false, true] {
        let options = ReadOptions { row_bytes_max: 1 << 20, tuples, ..streams(1) };
        let sql = |bytes: usize| {
            format!("SELECT CASE a WHEN 3 THEN repeat('x', {bytes}) END FROM generate_series(1, 5) a")
        };
        // A header of 5 bytes, a count of columns of 2, lengths of 4.
        let largest = (1 << 20) - 11;
        assert_eq!(whole(source.query(&sql(largest), &options).await.unwrap()).await.unwrap().num_rows(), 5);
        for bytes in [largest + 1, 300_000_000] {
            let mut rows = source.query(&sql(bytes), &options).await.unwrap();
            assert_eq!(rows.batches.next().await.unwrap().unwrap().num_rows(), 2);
            let error = rows.batches.next().await.unwrap().unwrap_err();
            let SourceError::RowTooLarge { row: 3, part: None, bytes: told, bytes_max: 1_048_576 } = error
            else {
                panic!("{error:?}")
            };
            assert_eq!(told, bytes as u64 + 11);
        }
    }
}

#[tokio::test]
async fn mysql_rows_that_are_too_large_are_refused() {
    let server = mysql::server();
    let source = mysql::connect(&server).await;
    let options = ReadOptions { row_bytes_max: 1000, ..ReadOptions::default() };
    let ask = async |bytes: usize| {
        let sql = format!("SELECT IF(seq = 3, REPEAT('x', {bytes}), '') FROM seq_1_to_5");
        collect(source.query(&sql, &options).await.unwrap()).await
    };
    let whole = ask(1000).await.unwrap();
    assert_eq!(whole.iter().map(|batch| batch.num_rows()).sum::<usize>(), 5);
    let error = ask(1001).await.unwrap_err();
    assert!(
        matches!(error, SourceError::RowTooLarge { row: 3, part: None, bytes: 1001, bytes_max: 1000 }),
        "{error:?}"
    );
    // The rest, which would take an hour, is not read.
    let sql = "SELECT IF(seq = 3, REPEAT('x', 2000), '') FROM seq_1_to_1000000000";
    let error = collect(source.query(sql, &options).await.unwrap()).await.unwrap_err();
    assert!(matches!(error, SourceError::RowTooLarge { row: 3, .. }), "{error:?}");
}

#[tokio::test]
async fn sqlite_rows_that_are_too_large_are_refused() {
    let database = sqlite::database("CREATE TABLE t (a TEXT)");
    let source = &database.source;
    let options = ReadOptions { row_bytes_max: 1000, ..ReadOptions::default() };
    let ask = async |bytes: usize| {
        let sql = format!(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 5) SELECT iif(x = 3, printf('%.{bytes}c', 'x'), '') FROM n"
        );
        collect(source.query(&sql, &options).await.unwrap()).await
    };
    let whole = ask(1000).await.unwrap();
    assert_eq!(whole.iter().map(|batch| batch.num_rows()).sum::<usize>(), 5);
    let error = ask(1001).await.unwrap_err();
    assert!(
        matches!(error, SourceError::RowTooLarge { row: 3, part: None, bytes: 1001, bytes_max: 1000 }),
        "{error:?}"
    );
}
