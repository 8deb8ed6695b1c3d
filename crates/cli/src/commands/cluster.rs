//! `lightship cluster`: shows and changes the members of a cluster, and shows their links and their parts of tables.

use std::collections::BTreeSet;
use std::path::PathBuf;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use clap::{Args, Subcommand};
use lightship::node::{endpoint, endpoint_as};
use lightship_engine::{MemberChange, change_members};
use lightship_plot::{Heat, HeatCell};
use lightship_session::{Client, ErrorCode, Options, TransportError};
use lightship_sources::Location;
use lightship_sources::writers::write_file;
use serde::Serialize;

use super::manual::print;
use crate::columns::aligned;
use crate::error::CliError;
use crate::size::{Seconds, Size, grouped};

/// Show the nodes of a cluster, their links and their parts of tables; remove and add nodes
///
/// A node that has joined belongs to the cluster until it is removed. While it is stopped or lost,
/// queries of tables of which it has a part fail. Once it is removed, its rows no longer belong to
/// these tables.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Show(ShowArgs),
    Links(LinksArgs),
    /// Remove a node from the cluster, until it is added again
    ///
    /// The node may be running or not. Its rows no longer belong to tables in parts, so that queries no
    /// longer fail without it. It can't rejoin until it is added again. The node at URI tells the
    /// others; nodes that are unreachable now learn of it when they are back.
    Remove(ChangeArgs),
    /// Take back a node that was removed
    ///
    /// Its rows belong to the tables again; while it is not running, queries of these tables fail.
    Add(ChangeArgs),
}

/// Show the nodes, their states, and their parts of tables
///
/// It shows the cluster as the node at URI sees it. Any client gets the same in SQL: select * from
/// cluster.nodes; select * from cluster.parts.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship cluster show lightship://localhost
  lightship --json cluster show lightship://localhost | \\
      jq '.nodes[] | select(.state != \"joined\")'

States:
  joined       it answers
  connecting   not tried yet
  unreachable  not reached since the queried node started
  stopped      it shut down
  lost         it crashed, or the connection broke
  removed      by `lightship cluster remove`")]
struct ShowArgs {
    /// The node to ask: lightship://[TOKEN@]HOST[:PORT] or lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
}

/// Show what was measured of the links between the nodes
///
/// Each node measures what it receives from each other node: when they meet, and again after 30 to 60
/// seconds or, while queries run, 5 to 10 minutes. Rows of queries that arrive faster count at once; if
/// they come at less than half the rate, the link is measured again when no query runs. Plans of
/// queries depend on it. Any client gets the same in SQL: select * from cluster.links.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship cluster links lightship://localhost
  lightship cluster links lightship://localhost --plot links.svg
  lightship --json cluster links lightship://localhost | \\
      jq '.[] | select(.bytes_per_second < 1e7)'")]
struct LinksArgs {
    /// The node to ask: lightship://[TOKEN@]HOST[:PORT] or lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
    /// Draw the rate of each link in this file (SVG), from the node of the row to that of the column.
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship cluster remove lightship://localhost:4301 localhost:4302
  lightship cluster add lightship://db1 db2:4270 --cluster-token-file secret")]
struct ChangeArgs {
    /// Another node of the cluster, which tells the rest: lightship://HOST[:PORT] or lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
    /// The node that is removed or added, by its name in `lightship cluster show`.
    #[arg(value_name = "HOST:PORT")]
    node: String,
    /// File with the token of the cluster, if it has one.
    #[arg(long, value_name = "FILE")]
    cluster_token_file: Option<PathBuf>,
}

pub(crate) async fn cmd_cluster(args: ClusterArgs, json: bool) -> Result<(), CliError> {
    match args.action {
        Action::Show(args) => show(&args, json).await,
        Action::Links(args) => links(&args, json).await,
        Action::Remove(args) => {
            let node = args.node.clone();
            change(&args, MemberChange::Remove(node)).await?;
            done(&args.node, "removed", json)
        }
        Action::Add(args) => {
            let node = args.node.clone();
            change(&args, MemberChange::Add(node)).await?;
            done(&args.node, "added", json)
        }
    }
}

fn done(node: &str, what: &str, json: bool) -> Result<(), CliError> {
    match json {
        true => print(format!("{}\n", serde_json::json!({ what: node })).as_bytes()),
        false => print(format!("node {node} {what}\n").as_bytes()),
    }
}

async fn change(args: &ChangeArgs, change: MemberChange) -> Result<(), CliError> {
    let token = match &args.cluster_token_file {
        Some(path) => super::node::token_in(path)?,
        None => String::new(),
    };
    let (endpoint, config) = endpoint_as(&Location::parse(&args.uri)?, Some(token))?;
    change_members(&endpoint, &config, change).await.map_err(|error| match error {
        TransportError::Failed(failure) if failure.code == ErrorCode::Unauthenticated => {
            let hint = "give the file with the token of the cluster: --cluster-token-file FILE";
            CliError::from(failure).hint(hint)
        }
        TransportError::Failed(failure) if failure.code == ErrorCode::Forbidden => {
            let hint = format!("lightship cluster show {} lists the nodes", args.uri);
            CliError::from(failure).hint(hint)
        }
        error => error.into(),
    })
}

#[derive(Serialize)]
struct Node {
    node: String,
    state: String,
    reason: Option<String>,
    is_coordinator: bool,
}

#[derive(Serialize)]
struct Part {
    table: String,
    node: String,
    state: Option<String>,
    is_shared: bool,
    rows_estimate: Option<u64>,
    bytes_estimate: Option<u64>,
}

#[derive(Serialize)]
struct LinkRow {
    from_node: String,
    to_node: String,
    bytes_per_second: f64,
    first_message_seconds: f64,
    message_seconds: f64,
    /// Of the node that sends; `None` until it has measured its processor.
    encode_bytes_per_second: Option<f64>,
    /// Of the node that receives.
    decode_bytes_per_second: Option<f64>,
}

async fn links(args: &LinksArgs, json: bool) -> Result<(), CliError> {
    let (endpoint, config) = endpoint(&Location::parse(&args.uri)?)?;
    let mut client = Client::connect_with(&endpoint, &config).await?;
    let sql = "select * from cluster.links order by from_node, to_node";
    let links = rows(&mut client, sql, link).await.map_err(|error| not_in_cluster(&args.uri, error))?;
    let links = whole(links)?;
    if let Some(path) = &args.plot {
        let drawn = heat_map(&links).map_err(|e| CliError::internal(e.to_string()))?;
        write_file(path, drawn.as_bytes())?;
    }
    if json {
        let links = serde_json::to_string(&links).map_err(|e| CliError::internal(e.to_string()))?;
        return print(format!("{links}\n").as_bytes());
    }
    if links.is_empty() {
        return print(b"no link has been measured yet\n");
    }
    let heads = ["from", "to", "rate", "first message", "each further message", "encodes", "decodes"];
    let mut table = vec![heads.map(str::to_owned).to_vec()];
    let rate = |bytes_per_second: f64| format!("{}/s", Size(bytes_per_second as u64));
    table.extend(links.into_iter().map(|link| {
        vec![
            link.from_node,
            link.to_node,
            rate(link.bytes_per_second),
            Seconds(link.first_message_seconds).to_string(),
            Seconds(link.message_seconds).to_string(),
            link.encode_bytes_per_second.map_or_else(String::new, rate),
            link.decode_bytes_per_second.map_or_else(String::new, rate),
        ]
    }));
    let mut text = String::new();
    aligned(&mut text, 0, &table, 2);
    print(text.as_bytes())
}

/// The rate of each link.
fn heat_map(links: &[LinkRow]) -> Result<String, lightship_plot::PlotError> {
    let names = links.iter().flat_map(|link| [&link.from_node, &link.to_node]);
    let names: Vec<&String> = names.collect::<BTreeSet<_>>().into_iter().collect();
    let cell = |from: &String, to: &String| {
        let link = links.iter().find(|link| link.from_node == *from && link.to_node == *to)?;
        let mbit_per_second = link.bytes_per_second * 8.0 / 1e6;
        Some(HeatCell { value: mbit_per_second.log10(), text: format!("{mbit_per_second:.0}") })
    };
    let numbers = (1..=names.len()).map(|number| number.to_string());
    // The names are too long for the columns. Rows are drawn from the bottom.
    let rows = names.iter().enumerate().rev();
    Heat {
        title: "Rate of the links between nodes, Mbit/s".into(),
        columns: ("to node".into(), numbers.collect()),
        rows: ("from node".into(), rows.map(|(index, name)| format!("{}: {name}", index + 1)).collect()),
        cells: names.iter().rev().map(|from| names.iter().map(|to| cell(from, to)).collect()).collect(),
    }
    .svg()
}

fn not_in_cluster(uri: &str, error: TransportError) -> CliError {
    match error {
        TransportError::Failed(failure) if failure.code == ErrorCode::Sql => {
            CliError::usage(format!("{uri} is not in a cluster"))
                .hint("start nodes of a cluster with `lightship node --advertise HOST:PORT` and --join")
        }
        error => error.into(),
    }
}

async fn show(args: &ShowArgs, json: bool) -> Result<(), CliError> {
    let (endpoint, config) = endpoint(&Location::parse(&args.uri)?)?;
    let mut client = Client::connect_with(&endpoint, &config).await?;
    let nodes = rows(&mut client, "select * from cluster.nodes order by node", node).await;
    let nodes = nodes.map_err(|error| not_in_cluster(&args.uri, error))?;
    let nodes = whole(nodes)?;
    let parts = rows(&mut client, "select * from cluster.parts order by table_name, node", part).await?;
    let parts = whole(parts)?;
    if json {
        return print(format!("{}\n", serde_json::json!({ "nodes": nodes, "parts": parts })).as_bytes());
    }
    let mut text = String::new();
    let mut table = vec![["node", "state", ""].map(str::to_owned).to_vec()];
    table.extend(nodes.into_iter().map(|node| {
        let mark = if node.is_coordinator { "coordinator".to_owned() } else { String::new() };
        vec![node.node, node.state, node.reason.unwrap_or(mark)]
    }));
    aligned(&mut text, 0, &table, 3);
    if !parts.is_empty() {
        text.push('\n');
        let has_bytes = parts.iter().any(|part| part.bytes_estimate.is_some());
        let mut table = vec![["table", "node", "state", "kind", "rows", "bytes"].map(str::to_owned).to_vec()];
        table.extend(parts.into_iter().map(|part| {
            let kind = if part.is_shared { "shared" } else { "part" };
            vec![
                part.table,
                part.node,
                part.state.unwrap_or_default(),
                kind.to_owned(),
                part.rows_estimate.map_or_else(String::new, grouped),
                part.bytes_estimate.map_or_else(String::new, |bytes| Size(bytes).to_string()),
            ]
        }));
        if !has_bytes {
            table.iter_mut().for_each(|row| row.truncate(5));
        }
        aligned(&mut text, 0, &table, 4);
    }
    print(text.as_bytes())
}

/// All rows, or an error if one could not be read: a node left out would look like one that was removed.
fn whole<T>(rows: Vec<Option<T>>) -> Result<Vec<T>, CliError> {
    rows.into_iter().collect::<Option<_>>().ok_or_else(|| {
        CliError::internal("the node's tables of the cluster have columns that this version does not know")
            .hint("use the same version as the node")
    })
}

/// All rows of a query, each read by `read`; `None` for a row that lacks an expected column.
async fn rows<T>(
    client: &mut Client,
    sql: &str,
    read: fn(&RecordBatch, usize) -> Option<T>,
) -> Result<Vec<Option<T>>, TransportError> {
    let mut answer = client.fetch(sql, &Options::default()).await?;
    let mut found = Vec::new();
    while let Some(rows) = answer.next().await? {
        found.extend((0..rows.num_rows()).map(|row| read(&rows, row)));
    }
    Ok(found)
}

fn node(rows: &RecordBatch, row: usize) -> Option<Node> {
    Some(Node {
        node: text(rows, "node", row)?,
        state: text(rows, "state", row)?,
        reason: text(rows, "reason", row),
        is_coordinator: flag(rows, "is_coordinator", row)?,
    })
}

fn part(rows: &RecordBatch, row: usize) -> Option<Part> {
    Some(Part {
        table: text(rows, "table_name", row)?,
        node: text(rows, "node", row)?,
        state: text(rows, "state", row),
        is_shared: flag(rows, "is_shared", row)?,
        rows_estimate: count(rows, "rows_estimate", row),
        bytes_estimate: count(rows, "bytes_estimate", row),
    })
}

fn link(rows: &RecordBatch, row: usize) -> Option<LinkRow> {
    Some(LinkRow {
        from_node: text(rows, "from_node", row)?,
        to_node: text(rows, "to_node", row)?,
        bytes_per_second: number(rows, "bytes_per_second", row)?,
        first_message_seconds: number(rows, "first_message_seconds", row)?,
        message_seconds: number(rows, "message_seconds", row)?,
        encode_bytes_per_second: number(rows, "encode_bytes_per_second", row),
        decode_bytes_per_second: number(rows, "decode_bytes_per_second", row),
    })
}

fn number(rows: &RecordBatch, column: &str, row: usize) -> Option<f64> {
    let column = rows.column_by_name(column)?.as_primitive_opt::<Float64Type>()?;
    column.is_valid(row).then(|| column.value(row))
}

fn text(rows: &RecordBatch, column: &str, row: usize) -> Option<String> {
    let column = rows.column_by_name(column)?.as_string_opt::<i32>()?;
    column.is_valid(row).then(|| column.value(row).to_owned())
}

fn flag(rows: &RecordBatch, column: &str, row: usize) -> Option<bool> {
    let column = rows.column_by_name(column)?.as_boolean_opt()?;
    column.is_valid(row).then(|| column.value(row))
}

fn count(rows: &RecordBatch, column: &str, row: usize) -> Option<u64> {
    let column = rows.column_by_name(column)?.as_primitive_opt::<UInt64Type>()?;
    column.is_valid(row).then(|| column.value(row))
}
