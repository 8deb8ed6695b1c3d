//! The extended protocol.

use super::TestServer;
use super::client::{kinds, strings};

#[test]
fn statements_are_prepared_described_and_executed() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("s", "select $1", &[]);
    client.describe(b'S', "s");
    let replies = client.sync();
    assert_eq!(kinds(&replies), "1tTZ");
    assert_eq!(replies[1].body, [0, 1, 0, 0, 0, 20]);
    assert_eq!(replies[2].types(), [20]);
    // In both formats, both ways.
    client.bind("", "s", &[(1, Some(&7i64.to_be_bytes()))], 1);
    client.describe(b'P', "");
    client.execute("", 0);
    let replies = client.sync();
    assert_eq!(kinds(&replies), "2TDCZ");
    assert_eq!(replies[2].raw_values(), [Some(7i64.to_be_bytes().to_vec())]);
    client.parse("typed", "select $1", &[20]);
    client.bind("", "typed", &[(0, Some(b"-5"))], 0);
    client.execute("", 0);
    let replies = client.sync();
    assert_eq!(kinds(&replies), "12DCZ");
    assert_eq!(replies[2].values(), [Some("-5".to_owned())]);
    client.bind("", "typed", &[(0, None)], 0);
    client.execute("", 0);
    assert_eq!(client.sync()[1].values(), [None]);
}

#[test]
fn the_described_columns_are_those_that_come() {
    let server = TestServer::start();
    let mut client = server.client();
    // Described as bigint; the text of an untyped parameter would come back as text.
    client.parse("s", "select $1", &[]);
    client.describe(b'S', "s");
    client.bind("", "s", &[(0, Some(b"x"))], 0);
    client.execute("", 0);
    let replies = client.sync();
    assert_eq!(kinds(&replies), "1tT2EZ");
    assert_eq!(replies[4].field(b'M').unwrap(), "cached plan must not change result type");
}

#[test]
fn all_types_have_a_binary_format() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("", "select * from types", &[]);
    client.bind("", "", &[], 1);
    client.describe(b'P', "");
    client.execute("", 0);
    let replies = client.sync();
    assert_eq!(kinds(&replies), "12TDDCZ");
    let values: Vec<Vec<u8>> = replies[3].raw_values().into_iter().map(Option::unwrap).collect();
    assert_eq!(values[0], [1]);
    assert_eq!(values[1], (-2i16).to_be_bytes());
    assert_eq!(values[4], 1.5f64.to_be_bytes());
    assert_eq!(values[5], [0, 2, 0, 0, 0, 0, 0, 2, 0, 123, 0x11, 0x94]);
    assert_eq!(values[6], b"a,\"b\"\n\\");
    assert_eq!(values[8], (19_782i32 - 10_957).to_be_bytes());
    assert_eq!(values[9], (1_500_000i64 - 946_684_800_000_000).to_be_bytes());
    assert!(replies[4].raw_values().iter().all(Option::is_none));
}

#[test]
fn portals_are_suspended() {
    let server = TestServer::start();
    let mut client = server.client();
    client.query("begin");
    client.parse("", "select * from numbers", &[]);
    client.bind("p", "", &[], 0);
    client.execute("p", 2);
    assert_eq!(kinds(&client.sync()), "12DDsZ");
    client.execute("p", 1);
    let replies = client.sync();
    assert_eq!(replies[0].values(), [Some("2".to_owned())]);
    assert_eq!(kinds(&replies), "DsZ");
    client.query("commit");
    client.execute("p", 1);
    let replies = client.sync();
    assert_eq!(replies[0].field(b'C').unwrap(), "34000");
    // Without a transaction a portal ends with Sync.
    client.parse("", "select * from numbers", &[]);
    client.bind("q", "", &[], 0);
    client.execute("q", 1);
    client.sync();
    client.execute("q", 1);
    assert_eq!(client.sync()[0].kind, b'E');
}

#[test]
fn messages_after_an_error_are_skipped_up_to_sync() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("", "select * from missing", &[]);
    client.bind("", "", &[], 0);
    client.describe(b'P', "");
    client.execute("", 0);
    client.parse("s", "select 1", &[]);
    assert_eq!(kinds(&client.sync()), "12EZ");
    client.bind("", "s", &[], 0);
    assert_eq!(client.sync()[0].field(b'C').unwrap(), "26000");
    assert_eq!(kinds(&client.query("select 1")), "TDCZ");
}

#[test]
fn statements_about_the_session_work_as_prepared_ones() {
    let server = TestServer::start();
    let mut client = server.client();
    for (sql, described, done) in [
        ("BEGIN", "1t2nCZ", "BEGIN"),
        ("SHOW server_version", "1tT2TDCZ", "SHOW"),
        ("SET extra_float_digits = 3", "1t2nCZ", "SET"),
        ("DECLARE c CURSOR FOR select * from numbers", "1t2nCZ", "DECLARE CURSOR"),
        ("FETCH 2 FROM c", "1tT2TDDCZ", "FETCH 2"),
        ("CLOSE c", "1t2nCZ", "CLOSE CURSOR"),
        ("COMMIT", "1t2nCZ", "COMMIT"),
        ("delete from numbers", "1tn2nCZ", "DELETE 3"),
        ("select current_schema()", "1tT2TDCZ", "SELECT 1"),
    ] {
        client.parse("", sql, &[]);
        client.describe(b'S', "");
        client.bind("", "", &[], 0);
        client.describe(b'P', "");
        client.execute("", 0);
        let replies = client.sync();
        assert_eq!(replies[replies.len() - 2].text(), done, "{sql}");
        let described = described.replace("1t2n", "1tn2n");
        assert_eq!(kinds(&replies), described, "{sql}");
    }
    client.parse("", "", &[]);
    client.bind("", "", &[], 0);
    client.execute("", 0);
    assert_eq!(kinds(&client.sync()), "12IZ");
}

#[test]
fn statements_are_closed() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("s", "select 1", &[]);
    client.parse("s", "select 1", &[]);
    assert_eq!(client.sync()[1].field(b'C').unwrap(), "42P05");
    client.send(b'C', &[&b"S"[..], &strings(&["s"])].concat());
    client.send(b'C', &[&b"S"[..], &strings(&["s"])].concat());
    assert_eq!(kinds(&client.sync()), "33Z");
    client.parse("", "select 1; select 1", &[]);
    assert_eq!(client.sync()[0].field(b'C').unwrap(), "42601");
}

#[test]
fn queries_of_the_catalog_take_parameters() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("s", "select relname from pg_class where relname like $1 and oid > $2", &[]);
    client.describe(b'S', "s");
    let replies = client.sync();
    assert_eq!(replies[1].body, [0, 2, 0, 0, 0, 25, 0, 0, 0, 25]);
    client.bind("", "s", &[(0, Some(b"num%")), (0, Some(b"5"))], 0);
    client.execute("", 0);
    assert_eq!(client.sync()[1].values(), [Some("numbers".to_owned())]);
}

#[test]
fn a_function_call_is_answered_without_a_sync() {
    let server = TestServer::start();
    let mut client = server.client();
    client.send(b'F', &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let replies = client.until_ready();
    assert_eq!(kinds(&replies), "EZ");
    assert_eq!(replies[0].field(b'C').unwrap(), "0A000");
    assert_eq!(kinds(&client.query("select 1")), "TDCZ");
}

#[test]
fn everything_is_skipped_up_to_the_next_sync() {
    let server = TestServer::start();
    let mut client = server.client();
    client.execute("nonsense", 0);
    client.send(b'Q', &strings(&["select 1"]));
    client.send(b'F', &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(kinds(&client.sync()), "EZ");
    assert_eq!(kinds(&client.query("select 1")), "TDCZ");
}

#[test]
fn what_is_described_is_not_run() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("", "delete from numbers", &[]);
    client.bind("", "", &[], 0);
    client.describe(b'P', "");
    assert_eq!(kinds(&client.sync()), "12nZ");
    assert!(server.tables.asked.lock().unwrap().is_empty());
    // Nor is what can only fail.
    assert_eq!(client.error("copy (delete from numbers) to stdout").0, "0A000");
    assert_eq!(client.error("begin; declare c cursor for delete from numbers").0, "42601");
    assert!(server.tables.asked.lock().unwrap().is_empty());
    // Nothing is in a transaction that has failed.
    client.query("rollback; begin");
    client.parse("", "select 1", &[]);
    client.bind("p", "", &[], 0);
    client.execute("nonsense", 0);
    assert_eq!(kinds(&client.sync()), "12EZ");
    client.describe(b'P', "p");
    assert_eq!(client.sync()[0].field(b'C').unwrap(), "25P02");
    assert!(server.tables.asked.lock().unwrap().is_empty());
}
