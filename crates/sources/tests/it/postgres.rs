//! PostgreSQL, against a real server.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, Int64Type};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use futures::{StreamExt, TryStreamExt};
use lightship_sources::limit::ConnectionLimits;
use lightship_sources::postgres::{PostgresDestination, PostgresSource};
use lightship_sources::{
    Destination, ReadOptions, Result, Rows, Scan, Source, SourceError, TableName, TableWrite, WriteMode,
};
use lightship_testkit::postgres::Postgres;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// One server for the tests that leave its settings alone. Tests name their tables differently.
pub(crate) fn server() -> &'static Postgres {
    static SERVER: LazyLock<Postgres> = LazyLock::new(Postgres::start);
    &SERVER
}

pub(crate) async fn source() -> PostgresSource {
    PostgresSource::connect(&server().uri()).await.unwrap()
}

pub(crate) fn streams(count: usize) -> ReadOptions {
    ReadOptions { streams: NonZeroUsize::new(count).unwrap(), ..Default::default() }
}

pub(crate) async fn whole(rows: Rows) -> Result<RecordBatch> {
    let batches: Vec<_> = rows.batches.try_collect().await?;
    Ok(concat_batches(&rows.schema, &batches)?)
}

pub(crate) async fn query(sql: &str) -> Result<RecordBatch> {
    whole(source().await.query(sql, &ReadOptions::default()).await?).await
}

/// The values of a column, as Arrow prints them.
pub(crate) fn shown(batch: &RecordBatch, column: usize) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let values = ArrayFormatter::try_new(batch.column(column), &options).unwrap();
    (0..batch.num_rows()).map(|row| values.value(row).to_string()).collect()
}

pub(crate) fn table(name: &str) -> TableName {
    TableName { schema: None, name: name.into() }
}

pub(crate) async fn destination(
    name: &str,
    schema: &SchemaRef,
    mode: WriteMode,
) -> Result<PostgresDestination> {
    PostgresDestination::create(&server().uri(), &TableWrite::new(table(name), mode), schema).await
}

pub(crate) async fn write(name: &str, batch: &RecordBatch) -> Result<u64> {
    let mut destination = destination(name, &batch.schema(), WriteMode::Append).await?;
    destination.write(batch.clone()).await?;
    Ok(Box::new(destination).finish().await?.rows)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_limited() {
    server().psql(
        "CREATE TABLE bounded AS SELECT i, repeat('x', 200) AS f FROM generate_series(1, 100000) i; ANALYZE bounded",
    );
    let limits = ConnectionLimits::new(NonZeroUsize::new(2).unwrap()).with_wait(Duration::from_millis(50));
    let uri = format!("{}?application_name=bounded", server().uri());
    let open = || PostgresSource::connect_within(&uri, &limits);
    let one = open().await.unwrap();
    let connections = || {
        server()
            .psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'bounded'")
            .trim()
            .to_owned()
    };
    // A result that could use four connections gets the two that the limit allows.
    let many = streams(4);
    let mut rows = one.query("SELECT * FROM bounded", &many).await.unwrap();
    assert!(rows.batches.next().await.unwrap().is_ok());
    assert_eq!(connections(), "2");
    let busy = open().await.unwrap_err();
    assert!(matches!(&busy, SourceError::Busy { connections: 2, .. }), "{busy}");
    assert!(busy.retryable());
    // A source does not wait if a connection has become free, or if one is only idle.
    let rest: usize = rows.batches.try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    assert!(rest < 100_000);
    let two = open().await.unwrap();
    assert_eq!(whole(two.query("SELECT 1", &many).await.unwrap()).await.unwrap().num_rows(), 1);
    // With a limit of one, sources take turns.
    let limits = ConnectionLimits::new(NonZeroUsize::MIN).with_wait(Duration::from_secs(20));
    let uri = format!("{}?application_name=bounded_one", server().uri());
    let (one, two) = (
        PostgresSource::connect_within(&uri, &limits).await.unwrap(),
        PostgresSource::connect_within(&uri, &limits).await.unwrap(),
    );
    let count = async |source: &PostgresSource| {
        let rows = source.query("SELECT * FROM bounded", &many).await.unwrap();
        whole(rows).await.unwrap().num_rows()
    };
    let (a, b, c) = tokio::join!(count(&one), count(&two), count(&one));
    assert_eq!([a, b, c], [100_000; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_beyond_the_first_are_released_to_waiting_queries() {
    server().psql(
        "CREATE TABLE shared AS SELECT i, repeat('x', 200) AS f FROM generate_series(1, 200000) i; ANALYZE shared",
    );
    let limits = ConnectionLimits::new(NonZeroUsize::new(2).unwrap()).with_wait(Duration::from_secs(60));
    let source = PostgresSource::connect_within(&server().uri(), &limits).await.unwrap();
    let mut rows = source.query("SELECT * FROM shared", &streams(4)).await.unwrap();
    let mut read = rows.batches.next().await.unwrap().unwrap().num_rows();
    let other = async { whole(source.query("SELECT 1", &streams(4)).await.unwrap()).await.unwrap() };
    let mut other = std::pin::pin!(other);
    // The large result is read slowly, and the other query does not wait for its end.
    while tokio::time::timeout(Duration::from_millis(200), &mut other).await.is_err() {
        read += rows.batches.next().await.expect("the other query waits for all rows").unwrap().num_rows();
    }
    assert!(read < 200_000);
    let rest: usize = rows.batches.try_fold(0, async |sum, batch| Ok(sum + batch.num_rows())).await.unwrap();
    assert_eq!(read + rest, 200_000);
}

#[tokio::test]
async fn unusual_results_are_read() {
    let none = query("SELECT 1 AS a WHERE false").await.unwrap();
    assert_eq!((none.num_rows(), none.num_columns()), (0, 1));
    let bare = query("SELECT FROM generate_series(1, 20000)").await.unwrap();
    assert_eq!((bare.num_rows(), bare.num_columns()), (20_000, 0));
    let twice = query("SELECT 1 AS a, 'x' AS a").await.unwrap();
    assert_eq!((shown(&twice, 0), shown(&twice, 1)), (vec!["1".to_owned()], vec!["x".to_owned()]));
    assert_eq!(shown(&query("SHOW server_encoding").await.unwrap(), 0), ["UTF8"]);
    assert_eq!(shown(&query("VALUES (1), (2); -- done").await.unwrap(), 0), ["1", "2"]);
    assert_eq!(shown(&query("EXPLAIN SELECT 1").await.unwrap(), 0).len(), 1);
    assert_eq!(shown(&query("WITH a AS (SELECT 3) TABLE a").await.unwrap(), 0), ["3"]);
}

#[tokio::test]
async fn refused_statements_report_code_and_position() {
    let source = source().await;
    let error = async |sql: &str| match source.query(sql, &ReadOptions::default()).await {
        Ok(rows) => whole(rows).await.unwrap_err(),
        Err(error) => error,
    };
    let SourceError::Sql { position, code, hint, .. } = error("SELECT 1 +\n lenth('x')").await else {
        panic!()
    };
    assert_eq!((position, code.as_deref()), (Some(13), Some("42883")));
    assert!(hint.is_some());
    let wrong = error("SELECT 1/(a-3) FROM generate_series(1, 5) a").await;
    assert!(matches!(&wrong, SourceError::Sql { code: Some(code), .. } if code == "22012"), "{wrong}");
    for (sql, expected) in [
        ("SELECT 1; SELECT 2", "42601"),
        ("CREATE TABLE wrong_a (b int) RETURNING b", "42601"),
        ("SELECT nextval('wrong_seq')", "42P01"),
        ("SELECT 'a\0b'", ""),
    ] {
        let wrong = error(sql).await;
        let SourceError::Sql { code, .. } = &wrong else { panic!("{sql}: {wrong:?}") };
        assert_eq!(code.as_deref().unwrap_or_default(), expected, "{sql}");
    }
    server().psql("CREATE TABLE wrong_kept (a int)");
    let wrong = error("INSERT INTO wrong_kept VALUES (1) RETURNING a").await;
    assert!(matches!(&wrong, SourceError::Sql { code: Some(code), .. } if code == "25006"), "{wrong}");
    assert!(matches!(error("SELECT $1::int").await, SourceError::Parameters { .. }));
    for sql in ["CREATE TABLE wrong_b (a int)", ""] {
        assert!(matches!(error(sql).await, SourceError::Unsupported(_)), "{sql}");
    }
    // The source still works.
    assert_eq!(query("SELECT 1").await.unwrap().num_rows(), 1);
}

#[tokio::test]
async fn refused_logins_report_the_reason_without_secrets() {
    let server = server();
    let error = async |uri: String| PostgresSource::connect(&uri).await.unwrap_err();
    let login = error(server.uri_as(server.user(), "hush", "test")).await;
    assert!(matches!(login, SourceError::Login { .. }), "{login:?}");
    assert!(!format!("{login} {login:?}").contains("hush"));
    let login = error(server.uri_as(server.user(), server.password(), "nowhere")).await;
    assert!(matches!(&login, SourceError::Login { reason, .. } if reason.contains("nowhere")), "{login:?}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let connect = error(format!("postgresql://a:hush@127.0.0.1:{free}/test")).await;
    assert!(matches!(connect, SourceError::Connect { .. }), "{connect:?}");
    assert!(!format!("{connect} {connect:?}").contains("hush"));
    let tls = error(format!("{}?sslmode=require", server.uri())).await;
    assert!(matches!(&tls, SourceError::Connect { reason, .. } if reason.contains("TLS")), "{tls:?}");
    PostgresSource::connect(&server.uri_unix()).await.unwrap();
}

#[tokio::test]
async fn tls_verifies_as_sslmode_requires() {
    let certify = || rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (own, other) = (certify(), certify());
    let files = tempfile::tempdir().unwrap();
    let [own_file, other_file] = ["own.pem", "other.pem"].map(|name| files.path().join(name));
    std::fs::write(&own_file, own.cert.pem()).unwrap();
    std::fs::write(&other_file, other.cert.pem()).unwrap();
    let settings = ["ssl=on", "ssl_cert_file={dir}/cert.pem", "ssl_key_file={dir}/key.pem"];
    let server = Postgres::start_prepared(&settings, |dir| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(dir.join("cert.pem"), own.cert.pem()).unwrap();
        std::fs::write(dir.join("key.pem"), own.signing_key.serialize_pem()).unwrap();
        std::fs::set_permissions(dir.join("key.pem"), std::fs::Permissions::from_mode(0o600)).unwrap();
    });
    let connect = async |host: &str, query: &str| {
        let uri = format!("{}?{query}", server.uri()).replace("127.0.0.1", host);
        let source = PostgresSource::connect(&uri).await?;
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let batch = whole(source.query(sql, &ReadOptions::default()).await?).await?;
        Ok::<_, SourceError>(batch.column(0).as_boolean().value(0))
    };
    let root = |file: &std::path::Path| format!("sslrootcert={}", file.display());
    assert!(!connect("127.0.0.1", "sslmode=disable").await.unwrap());
    assert!(connect("127.0.0.1", "sslmode=prefer").await.unwrap());
    assert!(connect("127.0.0.1", "sslmode=require").await.unwrap());
    assert!(connect("127.0.0.1", &format!("sslmode=verify-ca&{}", root(&own_file))).await.unwrap());
    assert!(connect("localhost", &format!("sslmode=verify-full&{}", root(&own_file))).await.unwrap());
    for (host, query) in [
        ("127.0.0.1", format!("sslmode=verify-full&{}", root(&own_file))),
        ("localhost", format!("sslmode=verify-full&{}", root(&other_file))),
        ("localhost", format!("sslmode=verify-ca&{}", root(&other_file))),
        ("localhost", format!("sslmode=require&{}", root(&other_file))),
        ("localhost", format!("sslmode=verify-full&{}", root(&files.path().join("none.pem")))),
    ] {
        let error = connect(host, &query).await.unwrap_err();
        assert!(matches!(error, SourceError::Connect { .. }), "{host} {query}: {error}");
    }
}

#[tokio::test]
async fn tables_are_described_and_scanned() {
    server().psql(
        "CREATE SCHEMA \"Scan S\"; CREATE TABLE \"Scan S\".\"T 1\" (a int, \"b c\" text);
         INSERT INTO \"Scan S\".\"T 1\" SELECT i, 'x' || i FROM generate_series(1, 100) i;
         CREATE VIEW scan_view AS SELECT 1 AS a; ANALYZE \"Scan S\".\"T 1\"",
    );
    let source = source().await;
    let name = TableName { schema: Some("Scan S".into()), name: "T 1".into() };
    let info = source.table(&name, &ReadOptions::default()).await.unwrap();
    assert_eq!((info.schema.fields().len(), info.rows_estimate), (2, Some(100)));
    let missing = source.table(&table("scan_nothing"), &ReadOptions::default()).await.unwrap_err();
    assert!(matches!(missing, SourceError::NoTable { .. }), "{missing}");
    assert!(source.tables().await.unwrap().contains(&table("scan_view")));

    let scan = |columns: Option<&[&str]>, filter: Option<&str>, limit| Scan {
        table: name.clone(),
        columns: columns.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        filter: filter.map(Into::into),
        limit,
    };
    let read =
        async |scan: Scan| whole(source.scan(&scan, &ReadOptions::default()).await.unwrap()).await.unwrap();
    assert_eq!(read(scan(None, None, None)).await.num_rows(), 100);
    let some = read(scan(Some(&["b c", "a"]), Some("a < 10 -- few"), Some(3))).await;
    assert_eq!((some.num_rows(), some.schema().field(0).name().as_str()), (3, "b c"));
    let bare = read(scan(Some(&[]), Some("a <= 10"), None)).await;
    assert_eq!((bare.num_rows(), bare.num_columns()), (10, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_share_one_snapshot() {
    server().psql(
        "CREATE TABLE split_t (id int, v int8, filler text);
         INSERT INTO split_t SELECT i, i, repeat('x', 200) FROM generate_series(1, 100000) i; ANALYZE split_t",
    );
    let stop = Arc::new(AtomicBool::new(false));
    // Moves amounts between rows meanwhile: the sum is the same in every snapshot.
    let churn = std::thread::spawn({
        let stop = stop.clone();
        move || {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                // Rows 1 to 99,999, which all exist.
                round = 1 + (round + 7919) % 99_000;
                server().psql(&format!(
                    "BEGIN; UPDATE split_t SET v = v + 10 WHERE id BETWEEN {round} AND {round} + 499;
                     UPDATE split_t SET v = v - 10 WHERE id BETWEEN {round} + 500 AND {round} + 999; COMMIT;
                     BEGIN; DELETE FROM split_t WHERE id = {round};
                     INSERT INTO split_t SELECT {round}, {round}, repeat('y', 200); ROLLBACK;"
                ));
            }
        }
    });
    let source = source().await;
    for round in 0..5 {
        let rows = source.query("select id, v, filler from split_t", &streams(4)).await.unwrap();
        assert!(rows.rows_estimate.is_some(), "it is not split");
        let batch = whole(rows).await.unwrap();
        let mut ids: Vec<_> = batch.column(0).as_primitive::<Int32Type>().values().to_vec();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(1..=100_000), "round {round}: {} rows", ids.len());
        let sum: i64 = batch.column(1).as_primitive::<Int64Type>().values().iter().sum();
        assert_eq!(sum, 5_000_050_000, "round {round}: parts of several snapshots");
    }
    stop.store(true, Ordering::Relaxed);
    churn.join().unwrap();
    assert_ne!(server().psql("SELECT count(*) FROM split_t WHERE v <> id").trim(), "0", "nothing was moved");

    let serial = query("SELECT count(*), sum(v)::int8 FROM split_t WHERE id % 3 = 1").await.unwrap();
    let scan = Scan {
        table: table("split_t"),
        columns: Some(vec!["v".into()]),
        filter: Some("id % 3 = 1".into()),
        limit: None,
    };
    let parts = source.scan(&scan, &streams(3)).await.unwrap();
    assert!(parts.rows_estimate.is_some());
    let parts = whole(parts).await.unwrap();
    let sum: i64 = parts.column(0).as_primitive::<Int64Type>().values().iter().sum();
    assert_eq!(shown(&serial, 0), [parts.num_rows().to_string()]);
    assert_eq!(shown(&serial, 1), [sum.to_string()]);

    server()
        .psql("CREATE TABLE split_child () INHERITS (split_t); INSERT INTO split_child VALUES (0, 0, '')");
    for sql in [
        "select * from split_t",
        "select now() from only split_t",
        "select count(*) from only split_t",
        "select id from only split_t order by id",
        "select generate_series(1, 2) from only split_t",
        "select id from only split_t where id in (select id from split_child)",
        "select sum(v) over () from only split_t",
    ] {
        let rows = source.query(sql, &streams(2)).await.unwrap();
        assert!(rows.rows_estimate.is_none(), "split: {sql}");
        drop(rows);
    }
    let all = whole(source.query("select * from split_t", &streams(2)).await.unwrap()).await.unwrap();
    assert_eq!(all.num_rows(), 100_001);
}

#[tokio::test]
async fn notices_between_rows_lose_no_row() {
    server().psql(
        "CREATE FUNCTION noted(n int) RETURNS int LANGUAGE plpgsql AS
         $$ BEGIN RAISE NOTICE '%', repeat('x', n % 300 * 300); RETURN n; END $$",
    );
    let batch = query("SELECT noted(n) FROM generate_series(1, 5000) n").await.unwrap();
    let sum: i64 = batch.column(0).as_primitive::<Int32Type>().values().iter().copied().map(i64::from).sum();
    assert_eq!((batch.num_rows(), sum), (5000, 12_502_500));
}

#[tokio::test]
async fn a_dropped_stream_cancels_the_query() {
    let source = source().await;
    let sql = "SELECT /* dropped_query */ pg_sleep(600) UNION ALL SELECT pg_sleep(600)";
    let rows = source.query(sql, &ReadOptions::default()).await.unwrap();
    until_running("dropped_query", 1).await;
    drop(rows);
    until_running("dropped_query", 0).await;
}

/// Waits until the server runs `count` statements that contain `name`.
async fn until_running(name: &str, count: usize) {
    let running = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%{name}%' AND pid <> pg_backend_pid() \
         AND state = 'active'"
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    while server().psql(&running).trim() != count.to_string() {
        assert!(Instant::now() < deadline, "not {count}");
        tokio::task::yield_now().await;
    }
}

/// A cancel request has a connection of its own, so it may arrive before the statement does.
#[tokio::test]
async fn a_cancel_request_that_overtakes_the_query_is_repeated() {
    // Execute, with the portal "" and all its rows.
    const EXECUTE: &[u8] = b"E\0\0\0\x09\0\0\0\0\0";
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (far, near) = (server().port(), listener.local_addr().unwrap().port());
    let uri = server().uri().replace(&format!(":{far}/"), &format!(":{near}/"));
    let (held, arrived) = watch::channel(false);
    let (requests, mut requested) = watch::channel(0);
    let asked = requested.clone();
    let relay = tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(("127.0.0.1", far)).await.unwrap();
            let (held, requests, mut asked) = (held.clone(), requests.clone(), asked.clone());
            tokio::spawn(async move {
                let ((mut client_read, mut client_write), (mut server_read, mut server_write)) =
                    (client.into_split(), server.into_split());
                let up = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(length @ 1..) = client_read.read(&mut buffer).await {
                        let sent = &buffer[..length];
                        if sent.windows(EXECUTE.len()).any(|part| part == EXECUTE) {
                            held.send_replace(true);
                            asked.wait_for(|count| *count > 0).await.unwrap();
                        }
                        server_write.write_all(sent).await.unwrap();
                    }
                    let _ = server_write.shutdown().await;
                };
                let down = async {
                    let sent = tokio::io::copy(&mut server_read, &mut client_write).await;
                    let _ = client_write.shutdown().await;
                    // To cancel requests, PostgreSQL server_read only whether it has TLS.
                    if matches!(sent, Ok(0 | 1)) {
                        requests.send_modify(|count| *count += 1);
                    }
                };
                tokio::join!(up, down);
            });
        }
    });
    let source = PostgresSource::connect(&uri).await.unwrap();
    let sql = "SELECT /* overtaken_query */ pg_sleep(600)";
    let rows = source.query(sql, &streams(1)).await.unwrap();
    let mut arrived = arrived;
    let execute = arrived.wait_for(|arrived| *arrived);
    drop(tokio::time::timeout(Duration::from_secs(20), execute).await.expect("the statement"));
    drop(rows);
    let again = requested.wait_for(|count| *count > 1);
    drop(tokio::time::timeout(Duration::from_secs(20), again).await.expect("a second request"));
    until_running("overtaken_query", 0).await;
    relay.abort();
}

#[tokio::test]
async fn a_lost_backend_is_an_error_after_the_received_rows() {
    let source = source().await;
    let options = ReadOptions { batch_rows: 1000, ..streams(1) };
    let sql = "SELECT a, pg_backend_pid() AS pid, repeat('x', 1000) FROM generate_series(1, 1000000) a";
    let mut rows = source.query(sql, &options).await.unwrap();
    let first = rows.batches.next().await.unwrap().unwrap();
    let pid = first.column(1).as_primitive::<Int32Type>().value(0);
    server().psql(&format!("SELECT pg_terminate_backend({pid})"));
    let mut count = first.num_rows() as u64;
    let lost = loop {
        match rows.batches.next().await.expect("an error before the end") {
            Ok(batch) => count += batch.num_rows() as u64,
            Err(error) => break error,
        }
    };
    assert!(rows.batches.next().await.is_none());
    let SourceError::Lost { rows, .. } = lost else { panic!("{lost:?}") };
    assert_eq!(rows, count);
    assert!(count < 1_000_000);

    // Idle connections that were closed are not handed out.
    server()
        .psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'lost_idle'");
    let source =
        PostgresSource::connect(&format!("{}?application_name=lost_idle", server().uri())).await.unwrap();
    server().psql(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'lost_idle'",
    );
    let rows = source.query("SELECT 1", &ReadOptions::default()).await.unwrap();
    assert_eq!(whole(rows).await.unwrap().num_rows(), 1);
}

#[tokio::test]
async fn large_values_arrive_complete() {
    let batch = query("SELECT repeat('abcdefghij', 10000000) AS a, 1 AS b").await.unwrap();
    let text = batch.column(0).as_string::<i32>().value(0);
    assert_eq!(text.len(), 100_000_000);
    assert!(text.as_bytes().chunks(10).all(|chunk| chunk == b"abcdefghij"));
    let batch = query("SELECT convert_to(repeat('x', 10000000), 'UTF8') AS a FROM generate_series(1, 12)")
        .await
        .unwrap();
    assert_eq!(write("large_in", &batch).await.unwrap(), 12);
    assert_eq!(server().psql("SELECT sum(length(a)) FROM large_in").trim(), "120000000");
}
