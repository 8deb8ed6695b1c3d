//! Cursors and estimates, as drivers with a fetch size use them, against real servers.

use std::time::Duration;

use lightship_sources::mysql::MySqlSource;
use lightship_sources::{Cursor, Cursors, SourceError};
use lightship_testkit::mariadb::MariaDb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::mysql;
use crate::postgres::{server, source};

#[tokio::test]
async fn a_cursor_returns_rows_in_blocks() {
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
    // A refused cursor leaves the connection usable, and nothing else is executed.
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
    assert!((4500..5500).contains(&estimated.rows.unwrap()), "{estimated:?}");
    assert!((8.0..40.0).contains(&estimated.row_bytes.unwrap()), "{estimated:?}");
    let refused = source.estimate("select nothing from nowhere").await.unwrap_err();
    assert!(matches!(refused, SourceError::Sql { position: Some(21), .. }), "{refused:?}");
    assert!(source.estimate("select 1; select 2").await.is_err());
}

/// The number of rows of each fetch of `rows`, to the end.
async fn pieces(source: &MySqlSource, sql: &str, rows: u32) -> Vec<u64> {
    let mut cursor = source.cursor(sql).await.unwrap();
    let mut fetched = Vec::new();
    while let piece = cursor.fetch(rows).await.unwrap()
        && piece.rows > 0
    {
        assert!(piece.bytes > piece.rows * 8, "{piece:?}");
        fetched.push(piece.rows);
    }
    assert_eq!(cursor.fetch(rows).await.unwrap().rows, 0);
    cursor.close().await.unwrap();
    fetched
}

#[tokio::test]
async fn a_cursor_of_mariadb_returns_rows_in_blocks() {
    let server = mysql::server();
    let source = MySqlSource::connect(&server.uri()).await.unwrap();
    let sql = "SELECT seq, 'some text' AS t FROM seq_1_to_250";
    assert_eq!(pieces(&source, sql, 100).await, [100, 100, 50]);
    assert_eq!(pieces(&source, sql, 125).await, [125, 125]);
    assert!(pieces(&source, "SELECT seq FROM seq_1_to_10 WHERE seq > 10", 100).await.is_empty());
    // A refused statement leaves the connection usable, and nothing else is executed.
    let connections = || server.sql("SHOW GLOBAL STATUS LIKE 'Connections'");
    server.sql("CREATE TABLE cursor_kept (id int)");
    let before = connections();
    for (sql, at) in [("SELECT 1; DROP TABLE cursor_kept", 11), ("SELECT 1 FORM cursor_kept, nowhere", 15)] {
        let error = source.cursor(sql).await.unwrap_err();
        assert!(matches!(error, SourceError::Sql { position: Some(p), .. } if p == at), "{error:?}");
    }
    for sql in [
        "SELECT nothing FROM cursor_kept",
        "INSERT INTO cursor_kept VALUES (1)",
        "SELECT (SELECT seq FROM seq_1_to_2)",
    ] {
        let error = source.cursor(sql).await.unwrap_err();
        assert!(matches!(error, SourceError::Sql { .. }), "{sql}: {error:?}");
    }
    let error = source.cursor("SELECT ? + 1").await.unwrap_err();
    assert!(matches!(error, SourceError::Parameters { .. }), "{error:?}");
    assert_eq!(pieces(&source, sql, 200).await, [200, 50]);
    assert_eq!(server.sql("SELECT COUNT(*) FROM cursor_kept"), "0\n");
    let number = |text: String| text.split_whitespace().last().unwrap().parse::<u64>().unwrap();
    assert!(number(connections()) - number(before) < 40, "a connection for each statement");
    let error = source.cursor("SET @x = 1").await.unwrap_err();
    assert!(matches!(error, SourceError::Unsupported(_)), "{error:?}");
    // Larger than a packet of the protocol, and then larger than the limit.
    let wide = source.cursor("SELECT REPEAT('x', 20000000)").await.unwrap().fetch(2).await.unwrap();
    assert!(wide.rows == 1 && wide.bytes > 20_000_000, "{wide:?}");
    let error = source.cursor("SELECT REPEAT('x', 100000000)").await.unwrap().fetch(2).await.unwrap_err();
    assert!(
        matches!(&error, SourceError::Malformed { reason, .. } if reason.contains("67108864")),
        "{error:?}"
    );
}

#[tokio::test]
async fn an_abandoned_cursor_is_killed_and_a_lost_one_is_an_error() {
    let server = mysql::server();
    let source = MySqlSource::connect(&server.uri()).await.unwrap();
    let endless = source.cursor("SELECT BENCHMARK(100000000000, SHA2('given_up', 512))");
    assert!(tokio::time::timeout(Duration::from_millis(300), endless).await.is_err());
    let waiting = server.clone();
    tokio::task::spawn_blocking(move || mysql::wait_for(&waiting, "given_up", false)).await.unwrap();
    // A dead idle connection is replaced. A connection that is lost while rows are fetched is an error.
    let mut cursor = source.cursor("SELECT seq FROM seq_1_to_10").await.unwrap();
    let kill = "SELECT GROUP_CONCAT(CONCAT('KILL ', id) SEPARATOR '; ') FROM information_schema.processlist
        WHERE id <> CONNECTION_ID() AND user = 'tester'";
    let alone = MariaDb::start();
    let other = MySqlSource::connect(&alone.uri()).await.unwrap();
    let mut lost = other.cursor("SELECT seq FROM seq_1_to_10").await.unwrap();
    alone.sql(&alone.sql(kill));
    let error = lost.fetch(5).await.unwrap_err();
    assert!(matches!(error, SourceError::Lost { .. }), "{error:?}");
    other.cursor("SELECT 1").await.unwrap().close().await.unwrap();
    alone.sql(&alone.sql(kill));
    assert_eq!(pieces(&other, "SELECT seq FROM seq_1_to_10", 10).await, [10]);
    assert_eq!(cursor.fetch(20).await.unwrap().rows, 10);
}

#[tokio::test]
async fn cursors_log_in_or_report_the_reason() {
    let server = mysql::server();
    server.sql("CREATE USER changed@'%' IDENTIFIED BY 'first'");
    let uri = server.uri_as("changed", "first", "");
    let source = MySqlSource::connect(&uri).await.unwrap();
    assert_eq!(source.cursor("SELECT 7").await.unwrap().fetch(2).await.unwrap().rows, 1);
    server.sql("ALTER USER changed@'%' IDENTIFIED BY 'second'");
    let error = source.cursor("SELECT 7").await.unwrap_err();
    assert!(matches!(&error, SourceError::Login { reason, .. } if reason.contains("denied")), "{error:?}");
    assert!(!error.to_string().contains("first"), "{error}");
    // A server that requires another login method first.
    server.sql("CREATE USER empty@'%' IDENTIFIED BY ''");
    let source = MySqlSource::connect(&server.uri_as("empty", "", "")).await.unwrap();
    assert_eq!(source.cursor("SELECT 7").await.unwrap().fetch(2).await.unwrap().rows, 1);
    let source = MySqlSource::connect(&format!("{}?compression=fast", server.uri())).await.unwrap();
    let error = source.cursor("SELECT 7").await.unwrap_err();
    assert!(error.to_string().contains("compression"), "{error}");
}

#[tokio::test]
async fn results_of_mariadb_are_estimated() {
    let server = mysql::server();
    server.sql(
        "CREATE TABLE estimated (id int PRIMARY KEY, k int, t varchar(100));
         INSERT INTO estimated SELECT seq, seq % 50, 'some text' FROM seq_1_to_5000;
         CREATE TABLE estimated_b (id int PRIMARY KEY, k int, KEY (k));
         INSERT INTO estimated_b SELECT seq, seq FROM seq_1_to_5000;
         ANALYZE TABLE estimated PERSISTENT FOR ALL; ANALYZE TABLE estimated_b PERSISTENT FOR ALL",
    );
    let source = MySqlSource::connect(&server.uri()).await.unwrap();
    let check = async |sql: &str, least: u64, most: u64| {
        let estimated = source.estimate(sql).await.unwrap();
        let rows = estimated.rows.unwrap_or_else(|| panic!("{sql}: {estimated:?}"));
        assert!((least..=most).contains(&rows), "{sql}: {estimated:?}");
        estimated.row_bytes
    };
    // Header, NULLs, two numbers, and nine letters with their length.
    let bytes = check("SELECT * FROM estimated", 4500, 5500).await;
    assert_eq!(bytes, Some(4.0 + 2.0 + 4.0 + 4.0 + 10.0));
    check("SELECT e.*, b.* FROM estimated e JOIN estimated_b b ON b.k = e.id -- of both ;", 4500, 5500).await;
    check("SELECT * FROM estimated WHERE k = 7 ORDER BY t;", 50, 200).await;
    check("SELECT id FROM estimated WHERE id <= 100", 90, 110).await;
    check("SELECT * FROM estimated LIMIT 10", 10, 10).await;
    check("WITH x AS (SELECT * FROM estimated) SELECT * FROM x ORDER BY t LIMIT 7", 7, 7).await;
    check("SELECT 1, 'one'", 1, 1).await;
    assert_eq!(check("SELECT * FROM estimated WHERE 1 = 0", 0, 0).await, None);
    // Without the optimizer's estimate there is none.
    for sql in [
        "SELECT COUNT(*) FROM estimated",
        "SELECT k, COUNT(*) FROM estimated GROUP BY k",
        "SELECT DISTINCT k FROM estimated",
        "SELECT id FROM estimated UNION SELECT id FROM estimated_b",
        "SELECT * FROM (SELECT k, COUNT(*) FROM estimated GROUP BY k) AS counted",
    ] {
        let estimated = source.estimate(sql).await.unwrap();
        assert!(estimated.rows.is_none() && estimated.row_bytes.is_some(), "{sql}: {estimated:?}");
    }
    let refused = source.estimate("SELECT nothing FROM nowhere").await.unwrap_err();
    assert!(matches!(refused, SourceError::Sql { .. }), "{refused:?}");
    for sql in ["SELECT 1; SELECT 2", "SELECT 1) SELECT * FROM result; -- "] {
        assert!(matches!(source.estimate(sql).await, Err(SourceError::Sql { .. })), "{sql}");
    }
    for sql in ["SHOW TABLES", "SET @x = 1"] {
        assert!(matches!(source.estimate(sql).await, Err(SourceError::Unsupported(_))), "{sql}");
    }
    let unbound = source.estimate("SELECT ?").await.unwrap_err();
    assert!(matches!(unbound, SourceError::Parameters { .. }), "{unbound:?}");
}

/// A packet of the protocol.
fn packet(sequence: u8, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes()[..3], &[sequence], body].concat()
}

#[tokio::test]
async fn servers_that_violate_the_protocol_are_errors() {
    let server = mysql::server();
    let mut greeting = [b"\x0a5.5.5-10.11\0", &7_u32.to_le_bytes()[..], b"12345678\0"].concat();
    greeting.extend([0xff, 0xf7, 45, 2, 0, 0xff, 0x81, 21]);
    greeting.extend([[0; 10].as_slice(), b"123456789012\0", b"mysql_native_password\0"].concat());
    let (greeted, ok) = (packet(0, &greeting), packet(2, &[0, 0, 0, 2, 0, 0, 0]));
    // The session's three statements, and then the prepared statement.
    let session = [greeted.clone(), ok.clone(), packet(1, &[0, 0, 0, 2, 0, 0, 0]).repeat(3)].concat();
    let cases: &[Vec<u8>] = &[
        Vec::new(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        packet(0, &[]),
        packet(0, &[10, 0]),
        packet(5, &greeting),
        // Longer than a greeting may be.
        [&[0xff, 0xff, 0xff, 0][..], &[1; 1000]].concat(),
        [&greeted[..], &packet(2, &[0xff])].concat(),
        [&greeted[..], &packet(2, &[0xfe])].concat(),
        [&greeted[..], &packet(2, b"\xfeclient_ed25519\0nonce")].concat(),
        [&greeted[..], &packet(2, b"\xfecaching_sha2_password\0")].concat(),
        [&greeted[..], &packet(2, b"\xfeparsec\0")].concat(),
        [&greeted[..], &packet(2, &[1, 4])].concat(),
        [&greeted[..], &packet(2, &[0xfb, b'/'])].concat(),
        [&session[..], &packet(1, &[0, 1])].concat(),
        [&session[..], &packet(1, &[0, 1, 0, 0, 0, 255, 255, 0, 0, 0, 0, 0]), &packet(2, &[0xfe, 0, 0])]
            .concat(),
        [&session[..], &packet(1, &[0xff, 1])].concat(),
    ];
    for case in cases {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, real) = (listener.local_addr().unwrap().port(), server.port());
        let answer = case.clone();
        let hostile = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            let mut behind = TcpStream::connect(("127.0.0.1", real)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut first, &mut behind).await;
            while let Ok((mut other, _)) = listener.accept().await {
                let _ = other.write_all(&answer).await;
                let _ = other.shutdown().await;
                let _ = other.read_to_end(&mut Vec::new()).await;
            }
        });
        let uri = server.uri().replace(&format!(":{real}/"), &format!(":{port}/"));
        let source = MySqlSource::connect(&uri).await.unwrap();
        let error = source.cursor("SELECT 1").await.unwrap_err();
        let kinds = matches!(
            error,
            SourceError::Connect { .. }
                | SourceError::Login { .. }
                | SourceError::Lost { .. }
                | SourceError::Malformed { .. }
        );
        assert!(kinds, "{case:?}: {error:?}");
        hostile.abort();
    }
}
