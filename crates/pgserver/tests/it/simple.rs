//! The simple protocol, transactions, settings and cursors.

use super::TestServer;
use super::client::{Client, kinds, strings};

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn values_of_all_types_are_sent_as_text() {
    let server = TestServer::start();
    let mut client = server.client();
    let replies = client.query("select * from types");
    assert_eq!(kinds(&replies), "TDDCZ");
    assert_eq!(replies[0].types(), [16, 21, 23, 20, 701, 1700, 25, 17, 1082, 1114, 1184, 1007]);
    let expected = [
        "t",
        "-2",
        "4",
        "8",
        "1.5",
        "123.45",
        "a,\"b\"\n\\",
        "\\x00ff",
        "2024-02-29",
        "1970-01-01 00:00:01.5",
        "1970-01-01 00:00:01+00",
        "{1,NULL,3}",
    ];
    assert_eq!(replies[1].values(), some(&expected));
    assert!(replies[2].values().iter().all(Option::is_none));
    assert_eq!(replies[3].text(), "SELECT 2");
}

#[test]
fn a_string_may_have_several_statements() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(kinds(&client.query("select 1; ; select * from empty; -- end")), "TDCTCZ");
    assert_eq!(kinds(&client.query(" ; ")), "IZ");
    // The statements after an error are not run.
    assert_eq!(kinds(&client.query("select 1; nonsense; select 1")), "TDCEZ");
    let replies = client.query("select 1;  nonsense");
    let error = replies.iter().find(|reply| reply.kind == b'E').unwrap();
    assert_eq!(error.field(b'P').unwrap(), "12");
    assert_eq!(client.query("delete from numbers")[0].text(), "DELETE 3");
}

#[test]
fn errors_have_codes_and_hints() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.error("select * from missing"), ("42P01".into(), b'I'));
    assert_eq!(client.error("nonsense"), ("42601".into(), b'I'));
    let replies = client.query("select * from broken");
    assert_eq!(kinds(&replies[replies.len() - 2..]), "EZ");
    let error = &replies[replies.len() - 2];
    assert_eq!(error.field(b'C').unwrap(), "22012");
    assert_eq!(error.field(b'H').unwrap(), "exclude it");
    // A text with NUL would end early.
    let replies = client.query("select * from nul");
    assert_eq!(kinds(&replies), "TDEZ");
    assert_eq!(replies[2].field(b'C').unwrap(), "22021");
    assert!(replies[2].field(b'M').unwrap().contains("row 2, column \"s\""));
}

#[test]
fn transactions_have_states() {
    let server = TestServer::start();
    let mut client = server.client();
    let state = |replies: Vec<super::client::Reply>| replies.last().unwrap().body[0];
    assert_eq!(state(client.query("begin")), b'T');
    assert_eq!(kinds(&client.query("begin")), "NCZ");
    assert_eq!(client.error("nonsense"), ("42601".into(), b'E'));
    assert_eq!(client.error("select 1"), ("25P02".into(), b'E'));
    let replies = client.query("commit");
    assert_eq!((replies[0].text().as_str(), replies[1].body[0]), ("ROLLBACK", b'I'));
    assert_eq!(kinds(&client.query("commit")), "NCZ");
    assert_eq!(state(client.query("begin; select 1; commit")), b'I');
    assert_eq!(client.error("savepoint x"), ("25P01".into(), b'I'));
    client.query("begin; savepoint x");
    assert_eq!(client.error("nonsense").1, b'E');
    assert_eq!(state(client.query("rollback to savepoint x")), b'T');
}

#[test]
fn settings_are_kept_and_shown() {
    let server = TestServer::start();
    let mut client = server.client();
    let replies = client.query("set application_name = 'x'");
    assert_eq!(kinds(&replies), "SCZ");
    assert_eq!(client.rows("show application_name"), [some(&["x"])]);
    client.query("reset application_name");
    assert_eq!(client.rows("show application_name"), [some(&[""])]);
    assert_eq!(client.rows("show transaction isolation level"), [some(&["read committed"])]);
    assert!(client.rows("show server_version")[0][0].as_ref().unwrap().starts_with("16."));
    assert!(client.rows("show all").len() > 20);
    assert_eq!(client.error("show nonsense").0, "42704");
    assert_eq!(kinds(&client.query("set timezone = 'Europe/Berlin'")), "NCZ");
    assert_eq!(client.query("discard all")[0].kind, b'C');
}

#[test]
fn the_session_is_asked_about() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(
        client.rows("select current_schema(), current_database(), current_user"),
        [some(&["public", "db", "me"])]
    );
    assert!(client.rows("select version()")[0][0].as_ref().unwrap().starts_with("PostgreSQL 16."));
    assert_eq!(client.rows("select now()").len(), 1);
    let sql = "select column_name, data_type from information_schema.columns where table_name = 'numbers'";
    assert_eq!(client.rows(sql), [some(&["n", "bigint"])]);
}

#[test]
fn cursors_return_rows_in_parts() {
    let server = TestServer::start();
    let mut client = server.client();
    assert_eq!(client.error("declare c cursor for select * from numbers").0, "25P01");
    client.query("begin; declare c no scroll cursor for select * from numbers");
    assert_eq!(client.rows("fetch 2 from c"), [some(&["0"]), some(&["1"])]);
    assert_eq!(client.query("move 3 in c")[0].text(), "MOVE 3");
    assert_eq!(client.rows("fetch c"), [some(&["5"])]);
    assert_eq!(kinds(&client.query("fetch 0 from c")), "TCZ");
    assert_eq!(client.error("fetch backward 1 from c").0, "0A000");
    client.query("rollback");
    assert_eq!(client.error("fetch c").0, "34000");
    client.query("begin; declare d cursor with hold for select * from numbers; commit");
    assert_eq!(client.rows("fetch forward 1 from d"), [some(&["0"])]);
    client.query("close d");
    assert_eq!(client.error("close d").0, "34000");
}

#[test]
fn settings_end_with_their_transaction() {
    let server = TestServer::start();
    let mut client = server.client();
    let shown = |client: &mut Client| client.rows("show statement_timeout")[0][0].clone().unwrap();
    client.query("set statement_timeout = 7000");
    // Of a transaction.
    client.query("begin; set local statement_timeout = 8000");
    assert_eq!(shown(&mut client), "8000");
    client.query("commit");
    assert_eq!(shown(&mut client), "7000");
    // Of a transaction that is rolled back.
    client.query("begin; set statement_timeout = 9000");
    client.query("rollback");
    assert_eq!(shown(&mut client), "7000");
    client.query("begin; set statement_timeout = 9000; set local statement_timeout = 9500");
    client.query("commit");
    assert_eq!(shown(&mut client), "9000");
    // The client is told what it must know.
    client.query("begin; set application_name = 'x'");
    let replies = client.query("rollback");
    let report = replies.iter().find(|reply| reply.kind == b'S').unwrap();
    assert_eq!(report.body, strings(&["application_name", ""]));
    // Outside of a transaction it has no effect.
    assert_eq!(kinds(&client.query("set local statement_timeout = 1")), "NCZ");
    assert_eq!(shown(&mut client), "9000");
}
