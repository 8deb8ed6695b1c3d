//! A node that also answers Flight SQL and PostgreSQL's protocol, asked by clients that are not ours: psql, and
//! arrow-flight's client.

use std::process::Command;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Int64Array, RecordBatch};
use arrow_flight::FlightInfo;
use arrow_flight::sql::CommandGetTables;
use arrow_flight::sql::client::FlightSqlServiceClient;
use futures::TryStreamExt;
use tonic::transport::{Channel, Endpoint};

use crate::support::*;

const TOKEN: &str = "secret";

/// A node with the table `t`, the range file `r`, and both protocols.
fn start() -> (Folder, Node) {
    let folder = Folder::new();
    let table = format!("t={}", folder.write("t.csv", "a,name\n1,one\n2,two\n3,\"thr,ee\"\n4,\n"));
    let data = folder.arg("range");
    let both = ["--flight", "127.0.0.1:0", "--postgres", "127.0.0.1:0"];
    let node =
        Node::start(&[&["--table", &table, "--range-data", &data, "--token", TOKEN][..], &both].concat());
    let uri = format!("lightship://{TOKEN}@{}", node.address());
    lightship(&["range", "create", &uri, "r", "--key", "id", "--columns", "id bigint, name text"]).succeeds();
    (folder, node)
}

/// Runs psql with a password and these commands, each of which is a statement or begins with a backslash.
fn psql(node: &Node, password: &str, commands: &[&str]) -> Outcome {
    let place = node.ready["postgres"].as_str().expect("an address");
    let uri = place.replace("postgresql://", "postgresql://me@");
    let mut psql = Command::new("psql");
    psql.args(["-X", "-v", "ON_ERROR_STOP=1", "-A", "-t", "-d", &uri]).env("PGPASSWORD", password);
    commands.iter().for_each(|command| {
        psql.args(["-c", command]);
    });
    let output = psql.output().expect("psql, which comes with PostgreSQL");
    Outcome {
        code: output.status.code(),
        stdout: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

#[test]
fn psql_asks_a_node() {
    let (folder, node) = start();
    let ask = |commands: &[&str]| psql(&node, TOKEN, commands);
    assert_eq!(ask(&["select sum(a), count(name) from t"]).succeeds().text(), "10|3\n");
    // Several statements of a session, a cursor, and a transaction that has failed.
    let session = ["begin; declare c cursor for select a from t order by a; fetch 2 from c; commit"];
    assert!(ask(&session).succeeds().text().contains("1\n2\n"));
    let copied = folder.arg("copied.csv");
    ask(&[&format!("\\copy (select * from t order by a) to '{copied}' csv header")]).succeeds();
    let text = std::fs::read_to_string(&copied).expect("the copy");
    assert_eq!(text, "a,name\n1,one\n2,two\n3,\"thr,ee\"\n4,\n");
    // The catalog.
    let described = ask(&["\\d t"]).succeeds();
    assert!(described.text().contains("a|bigint|"), "{described}");
    assert!(ask(&["\\dt"]).succeeds().text().contains("public|r|table|"));
    // The one kind of table that a node lets clients write.
    let written = ["insert into r values (1, 'one'), (2, 'two')", "select name from r where id = 2"];
    assert_eq!(ask(&written).succeeds().text(), "INSERT 0 2\ntwo\n");
    // What is wrong is said as PostgreSQL would.
    let missing = ask(&["select * from nothing"]);
    assert_ne!(missing.code, Some(0));
    assert!(missing.stderr.contains("ERROR:") && missing.stderr.contains("nothing"), "{missing}");
    assert!(ask(&["delete from t"]).stderr.contains("ERROR:"));
    for (sql, code) in [
        ("select * from nothing", "42P01"),
        ("select nothing from t", "42703"),
        ("select nothing(a) from t", "42883"),
        ("selec a from t", "42601"),
        ("select a / (a - a) from t", "22012"),
        ("select a + 9223372036854775807 from t", "22003"),
        ("select cast(name as bigint) from t", "22P02"),
    ] {
        let refused = ask(&["\\set VERBOSITY verbose", sql]);
        assert!(refused.stderr.contains(&format!("ERROR:  {code}:")), "{sql}: {refused}");
    }
    // The present time has microseconds, which a timestamp of PostgreSQL can hold.
    for sql in [
        "select now(), * from t limit 1",
        "select current_timestamp",
        "select a from t where now() > timestamp '2020-01-01' limit 1",
    ] {
        assert_eq!(ask(&[sql]).succeeds().text().lines().count(), 1, "{sql}");
    }
    let refused = psql(&node, "wrong", &["select 1"]);
    assert_eq!(refused.code, Some(2), "{refused}");
    assert!(refused.stderr.contains("password authentication failed"), "{refused}");
    // The node's own protocol is as before.
    let uri = format!("lightship://{TOKEN}@{}", node.address());
    assert_eq!(csv(&uri, "select name from r where id = 1"), "name\none\n");
}

/// The integers of the first column of a result.
async fn integers(client: &mut FlightSqlServiceClient<Channel>, info: FlightInfo) -> Vec<i64> {
    let [endpoint] = &info.endpoint[..] else { panic!("one endpoint") };
    let ticket = endpoint.ticket.clone().expect("a ticket");
    let batches: Vec<RecordBatch> =
        client.do_get(ticket).await.expect("a stream").try_collect().await.expect("rows");
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

#[tokio::test]
async fn a_client_of_flight_sql_asks_a_node() {
    let (_folder, node) = tokio::task::spawn_blocking(start).await.expect("a node");
    let place = node.ready["flight"].as_str().expect("an address").replace("grpc://", "http://");
    let channel = Endpoint::from_shared(place).expect("a URI").connect().await.expect("a connection");
    let mut client = FlightSqlServiceClient::new(channel);
    client.execute("select 1".into(), None).await.expect_err("no token");
    client.handshake("anybody", TOKEN).await.expect("the token");

    let info = client.execute("select a from t order by a".into(), None).await.expect("a query");
    assert_eq!(integers(&mut client, info).await, [1, 2, 3, 4]);

    let statement = "select a from t where a > ? and a < ? order by a";
    let mut prepared = client.prepare(statement.into(), None).await.expect("a statement");
    let value = |value: i64| Arc::new(Int64Array::from(vec![value])) as _;
    let values = RecordBatch::try_from_iter([("$1", value(1)), ("$2", value(4))]).expect("values");
    prepared.set_parameters(values).expect("parameters");
    let info = prepared.execute().await.expect("a query");
    assert_eq!(integers(&mut client, info).await, [2, 3]);

    let changed = client.execute_update("insert into r values (7, 'seven')".into(), None).await;
    assert_eq!(changed.expect("an insert"), 1);
    let info = client.execute("select id from r".into(), None).await.expect("a query");
    assert_eq!(integers(&mut client, info).await, [7]);
    client.execute_update("delete from t".into(), None).await.expect_err("not allowed");

    let tables = CommandGetTables { table_types: vec!["TABLE".into()], ..CommandGetTables::default() };
    let info = client.get_tables(tables).await.expect("tables");
    let ticket = info.endpoint[0].ticket.clone().expect("a ticket");
    let tables: Vec<RecordBatch> =
        client.do_get(ticket).await.expect("a stream").try_collect().await.expect("rows");
    let names = |batch: &RecordBatch| -> Vec<String> {
        let names = batch.column_by_name("table_name").expect("names").as_string::<i32>();
        names.iter().flatten().map(str::to_owned).collect()
    };
    let mut names: Vec<String> = tables.iter().flat_map(names).collect();
    names.sort();
    assert_eq!(names, ["r", "t"]);
}

#[test]
fn other_protocols_are_not_open_to_other_hosts_by_mistake() {
    for option in ["--flight", "--postgres"] {
        let refused = Node::try_start(&[option, "0.0.0.0:0"]).err().expect("an error");
        refused.fails(USAGE, &[option, "requires TLS and a token", "--insecure"]);
        let refused = Node::try_start(&[option, "localhost"]).err().expect("an error");
        refused.fails(USAGE, &[option, "expected HOST:PORT"]);
        // An address that is taken is found before tables are loaded.
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = taken.local_addr().expect("its address").to_string();
        let refused = Node::try_start(&[option, &address]).err().expect("an error");
        refused.fails(NETWORK, &[&address]);
    }
}
