//! Nodes that join or leave between the planning of a statement and its execution.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_flight::FlightInfo;
use arrow_flight::error::FlightError;
use arrow_flight::sql::client::FlightSqlServiceClient;
use futures::TryStreamExt;
use tonic::transport::{Channel, Endpoint};

use crate::cluster::Restartable;
use crate::range::joined;
use crate::support::*;

/// Node *n* has a row 2ⁿ.
const SUM: &str = "select cast(sum(a) as bigint) as s from t";
/// All nodes read the same files.
const SHARED: &str = "select cast(sum(b) as bigint) as s from u";

/// Nodes that join one after the other. The first answers other protocols too.
struct Growing {
    cluster: Restartable,
    shared: String,
    nodes: Vec<Node>,
}

impl Growing {
    /// Two nodes of three.
    fn start() -> Self {
        let cluster = Restartable::new(3);
        let shared = format!("u={}", cluster.folder.write("u.csv", "b\n10\n20\n30\n"));
        let mut growing = Self { cluster, shared, nodes: Vec::new() };
        growing.add(&["--flight", "127.0.0.1:0", "--postgres", "127.0.0.1:0"]);
        growing.add(&[]);
        growing
    }

    /// Starts the next node; returns when all have joined each other.
    fn add(&mut self, more: &[&str]) {
        let more = [&["--shared-table", &self.shared], more].concat();
        self.nodes.push(self.cluster.start(self.nodes.len(), &more));
        joined(&self.nodes);
    }

    /// Stops the last node; returns its name when the others know.
    fn stop_last(&mut self) -> String {
        let last = self.nodes.pop().expect("a node");
        let name = last.address().to_owned();
        last.process.signal("TERM");
        last.process.end().succeeds();
        for node in &self.nodes {
            node.process.says(&format!("node {name} has stopped"));
        }
        name
    }

    /// Removes a stopped node from the cluster, and waits until its rows no longer count.
    fn remove(&self, name: &str) {
        lightship(&["cluster", "remove", &self.nodes[0].uri, name]).succeeds();
        until("its rows no longer count", || {
            lightship(&["fetch", "--quiet", &self.nodes[0].uri, SUM]).text() == "s\n3\n"
        });
    }

    /// The nodes of the plan of a statement, by the first node.
    fn planned_on(&self, sql: &str) -> Vec<String> {
        let explained = lightship(&["--json", "explain", &self.nodes[0].uri, sql]).succeeds();
        let explained: serde_json::Value = serde_json::from_str(explained.text()).expect("JSON");
        let stages = explained["stages"].as_array().expect("stages").iter();
        let tasks = stages.flat_map(|stage| stage["tasks"].as_array().expect("tasks"));
        tasks.map(|task| task["node"].as_str().expect("a name").to_owned()).collect()
    }
}

/// A connection of PostgreSQL's protocol. It sends messages, and returns the values that come, one in a row.
struct Postgres(BufReader<TcpStream>);

impl Postgres {
    fn connect(node: &Node) -> Self {
        let place = node.ready["postgres"].as_str().expect("an address");
        let place = place.strip_prefix("postgresql://").expect("its scheme");
        let address = place.split('/').next().expect("a host and a port");
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        let mut body = 0x3_0000_i32.to_be_bytes().to_vec();
        body.extend(b"user\0me\0\0");
        let mut connection = Self(BufReader::new(stream));
        connection.send(&body);
        connection.until_ready().expect("a session");
        connection
    }

    /// Sends a message, whose kind is its first byte, unless it is the first.
    fn send(&mut self, body: &[u8]) {
        self.0.get_mut().write_all(&((body.len() as i32) + 4).to_be_bytes()).expect("a socket");
        self.0.get_mut().write_all(body).expect("a socket");
    }

    fn message(&mut self, kind: u8, body: &[u8]) {
        self.0.get_mut().write_all(&[kind]).expect("a socket");
        self.send(body);
    }

    /// The values up to the server being ready, or its error.
    fn until_ready(&mut self) -> Result<Vec<String>, String> {
        let mut answer = Ok(Vec::new());
        loop {
            let mut head = [0; 5];
            self.0.read_exact(&mut head).expect("a message");
            let [kind, length @ ..] = head;
            let mut body = vec![0; i32::from_be_bytes(length) as usize - 4];
            self.0.read_exact(&mut body).expect("its body");
            match kind {
                b'Z' => return answer,
                b'E' => answer = Err(String::from_utf8_lossy(&body).into_owned()),
                b'D' => {
                    // The number of values, and the length of the first.
                    let value = String::from_utf8_lossy(&body[6..]).into_owned();
                    answer = answer.map(|values| [values, vec![value]].concat());
                }
                _ => {}
            }
        }
    }

    fn sync(&mut self) -> Result<Vec<String>, String> {
        self.message(b'S', b"");
        self.until_ready()
    }

    fn simple(&mut self, sql: &str) {
        self.message(b'Q', format!("{sql}\0").as_bytes());
        self.until_ready().expect("a statement");
    }

    /// Prepares a statement, and describes it, for which it is planned.
    fn prepare(&mut self, name: &str, sql: &str) {
        self.message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes());
        self.message(b'D', format!("S{name}\0").as_bytes());
        self.sync().expect("a statement");
    }

    fn bind(&mut self, portal: &str, statement: &str) {
        // No formats of parameters, no parameters, no formats of columns.
        self.message(b'B', format!("{portal}\0{statement}\0\0\0\0\0\0\0").as_bytes());
    }

    /// Binds a portal and describes it, for which its statement is planned and started.
    fn start(&mut self, portal: &str, statement: &str) {
        self.bind(portal, statement);
        self.message(b'D', format!("P{portal}\0").as_bytes());
        self.sync().expect("a portal");
    }

    fn execute(&mut self, portal: &str) -> Result<Vec<String>, String> {
        self.message(b'E', format!("{portal}\0\0\0\0\0").as_bytes());
        self.sync()
    }

    /// Executes a prepared statement.
    fn run(&mut self, statement: &str) -> Result<Vec<String>, String> {
        self.bind("", statement);
        self.execute("")
    }
}

fn value(number: &str) -> Result<Vec<String>, String> {
    Ok(vec![number.to_owned()])
}

#[test]
fn a_statement_prepared_before_a_node_joins_or_leaves_has_the_rows_of_the_nodes_that_are_there() {
    let mut growing = Growing::start();
    let mut client = Postgres::connect(&growing.nodes[0]);
    client.prepare("sum", SUM);
    client.prepare("shared", SHARED);
    assert_eq!(client.run("sum"), value("3"));
    client.simple("begin");
    client.start("started", "sum");
    client.bind("bound", "sum");
    client.sync().expect("a portal");
    growing.add(&[]);
    let new = growing.nodes[2].address().to_owned();
    // It was planned for two nodes, and runs on them.
    assert_eq!(client.execute("started"), value("3"));
    // It is planned now.
    assert_eq!(client.execute("bound"), value("7"));
    client.simple("commit");
    assert_eq!(client.run("sum"), value("7"));
    assert_eq!(client.run("shared"), value("60"));
    assert!(growing.planned_on(SUM).contains(&new));

    client.simple("begin");
    client.start("started", "sum");
    assert_eq!(growing.stop_last(), new);
    // Its rows may have been read before it stopped. If not, the error names it.
    match client.execute("started") {
        Ok(values) => assert_eq!(values, ["7"]),
        Err(error) => assert!(error.contains(&new), "{error}"),
    }
    client.simple("rollback");
    // Rows are missing until the node is removed. Other nodes can read what is shared.
    let error = client.run("sum").expect_err("rows are missing");
    assert!(error.contains(&format!("node {new} has stopped")), "{error}");
    assert_eq!(client.run("shared"), value("60"));
    growing.remove(&new);
    assert_eq!(client.run("sum"), value("3"));
    assert!(!growing.planned_on(SUM).contains(&new));
}

/// The integer that a ticket leads to.
async fn integer(client: &mut FlightSqlServiceClient<Channel>, info: FlightInfo) -> Result<i64, FlightError> {
    let [endpoint] = &info.endpoint[..] else { panic!("one endpoint") };
    let ticket = endpoint.ticket.clone().expect("a ticket");
    let rows = client.do_get(ticket).await?;
    let batches: Vec<RecordBatch> = rows.try_collect().await?;
    let values: Vec<i64> = batches
        .iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec())
        .collect();
    let [value] = values[..] else { panic!("one row: {values:?}") };
    Ok(value)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_planned_before_a_node_joins_or_leaves_has_the_rows_of_the_nodes_that_are_there() {
    let mut growing = Growing::start();
    let place = growing.nodes[0].ready["flight"].as_str().expect("an address").replace("grpc://", "http://");
    let channel = Endpoint::from_shared(place).expect("a URI").connect().await.expect("a connection");
    let mut client = FlightSqlServiceClient::new(channel);
    let mut sum = client.prepare(SUM.into(), None).await.expect("a statement");
    let mut shared = client.prepare(SHARED.into(), None).await.expect("a statement");
    let planned = sum.execute().await.expect("a plan");
    growing.add(&[]);
    // A ticket has the statement, not the plan.
    assert_eq!(integer(&mut client, planned).await.expect("rows"), 7);
    let planned = sum.execute().await.expect("a plan");
    assert_eq!(integer(&mut client, planned).await.expect("rows"), 7);

    let planned = sum.execute().await.expect("a plan");
    let planned_shared = shared.execute().await.expect("a plan");
    let gone = growing.stop_last();
    let error = integer(&mut client, planned.clone()).await.expect_err("rows are missing").to_string();
    assert!(error.contains(&format!("node {gone} has stopped")), "{error}");
    assert_eq!(integer(&mut client, planned_shared).await.expect("rows"), 60);
    growing.remove(&gone);
    assert_eq!(integer(&mut client, planned).await.expect("rows"), 3);
    let planned = sum.execute().await.expect("a plan");
    assert_eq!(integer(&mut client, planned).await.expect("rows"), 3);
}
