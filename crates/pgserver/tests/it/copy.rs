//! COPY to the client.

use super::TestServer;
use super::client::{Reply, kinds};

fn data(replies: &[Reply]) -> Vec<u8> {
    replies.iter().filter(|reply| reply.kind == b'd').flat_map(|reply| reply.body.clone()).collect()
}

#[test]
fn copies_have_three_formats() {
    let server = TestServer::start();
    let mut client = server.client();
    let mut copy = |sql: &str| {
        let replies = client.query(sql);
        assert_eq!(kinds(&replies).replace("dd", "d").replace("dd", "d"), "HdcCZ", "{sql}: {replies:?}");
        assert_eq!(replies[replies.len() - 2].text(), "COPY 2");
        data(&replies)
    };
    let text = copy("copy (select t, i4 from types) to stdout");
    assert_eq!(text, b"a,\"b\"\\n\\\\\t4\n\\N\t\\N\n");
    let csv = copy("COPY (select t, i4 from types) TO STDOUT (FORMAT csv, HEADER)");
    assert_eq!(csv, b"t,i4\n\"a,\"\"b\"\"\n\\\",4\n,\n");
    let csv = copy("copy (select t, i4 from types) to stdout csv delimiter ';' null 'NULL' quote ''''");
    assert_eq!(csv, b"'a,\"b\"\n\\';4\nNULL;NULL\n");
    let binary = copy("COPY (select t, i4 from types) TO STDOUT WITH BINARY");
    let mut expected = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\0\x02\0\0\0\x08a,\"b\"\n\\".to_vec();
    expected[24] = 7;
    expected.extend(b"\0\0\0\x04\0\0\0\x04\0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    assert_eq!(binary, expected);
}

#[test]
fn copies_of_tables_and_of_nothing_work() {
    let server = TestServer::start();
    let mut client = server.client();
    let replies = client.query("copy empty to stdout (format binary)");
    assert_eq!(kinds(&replies), "HdcCZ");
    assert_eq!(data(&replies), b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\xff\xff");
    assert_eq!(server.tables.asked.lock().unwrap().last().unwrap(), "SELECT * FROM empty");
    assert_eq!(kinds(&client.query("copy empty to stdout")), "HcCZ");
}

#[test]
fn copies_work_in_the_extended_protocol() {
    let server = TestServer::start();
    let mut client = server.client();
    client.parse("", "COPY (select * from types) TO STDOUT (FORMAT binary)", &[]);
    client.bind("", "", &[], 0);
    client.describe(b'P', "");
    client.execute("", 0);
    assert_eq!(kinds(&client.sync()), "12nHdddcCZ");
}

#[test]
fn a_copy_that_fails_ends_with_an_error() {
    let server = TestServer::start();
    let mut client = server.client();
    let replies = client.query("copy (select * from broken) to stdout");
    assert_eq!(kinds(&replies[replies.len() - 2..]), "EZ");
    assert!(replies.iter().all(|reply| reply.kind != b'c'));
    assert_eq!(client.error("copy numbers from stdin").0, "0A000");
    assert_eq!(client.error("copy numbers to '/tmp/x'").0, "0A000");
    assert_eq!(client.error("copy missing to stdout").0, "42P01");
    assert_eq!(kinds(&client.query("select 1")), "TDCZ");
}
