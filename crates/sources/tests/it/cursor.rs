//! PostgreSQL's cursors and estimates, as drivers with a fetch size meet them, against a real server.

use lightship_sources::SourceError;

use crate::postgres::{server, source};

#[tokio::test]
async fn a_cursor_gives_rows_by_the_piece() {
    let source = source().await;
    let mut cursor = source.cursor("select generate_series(1, 250) as n").await.unwrap();
    let mut fetched = Vec::new();
    while let piece = cursor.fetch(100).await.unwrap()
        && piece.rows > 0
    {
        assert!(piece.bytes > piece.rows * 8, "{piece:?}");
        fetched.push(piece.rows);
    }
    assert_eq!(fetched, [100, 100, 50]);
    cursor.close().await.unwrap();
    // One that can't be declared leaves the connection usable, and takes nothing else along.
    for sql in ["select 1 / 0 from nowhere", "select 1; drop table everything"] {
        let error = source.cursor(sql).await.unwrap_err();
        assert!(matches!(error, SourceError::Sql { .. }), "{error}");
    }
    let mut failing = source.cursor("select 1 / (n - 5) from generate_series(1, 10) as g(n)").await.unwrap();
    assert!(matches!(failing.fetch(100).await.unwrap_err(), SourceError::Sql { .. }));
    failing.close().await.unwrap();
    assert_eq!(source.cursor("select 7").await.unwrap().fetch(10).await.unwrap().rows, 1);
}

#[tokio::test]
async fn results_are_estimated() {
    let source = source().await;
    server().psql("create table estimated as select n, 'some text' as t from generate_series(1, 5000) n");
    server().psql("analyze estimated");
    let estimated = source.estimate("select * from estimated").await.unwrap();
    assert!((4500..5500).contains(&estimated.rows), "{estimated:?}");
    assert!((8.0..40.0).contains(&estimated.row_bytes), "{estimated:?}");
    let refused = source.estimate("select nothing from nowhere").await.unwrap_err();
    assert!(matches!(refused, SourceError::Sql { position: Some(21), .. }), "{refused:?}");
    assert!(source.estimate("select 1; select 2").await.is_err());
}
