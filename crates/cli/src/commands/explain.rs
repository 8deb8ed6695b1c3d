//! `lightship explain`: what a query does on each node, and what goes between them.

use std::fmt::Write as _;

use arrow_array::cast::AsArray;
use clap::Args;
use lightship_session::{Client, Options};
use lightship_sources::Location;
use serde::Deserialize;

use super::manual::print;
use crate::columns::aligned;
use crate::error::CliError;
use crate::feed::endpoint;
use crate::size::{Seconds, Size, grouped};

/// Show what a query does: stages, nodes, and what goes between them
///
/// Of a cluster, each stage with the nodes that run it, from the one that was asked down to the tables; of
/// a node alone, its plan. With --analyze the query is run, its rows are thrown away, and what each node
/// did is shown: rows, processor time, bytes on the wire, and how long readers waited.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship explain lightship://localhost 'select count(*) from lineitem'
  lightship explain lightship://localhost --analyze 'select l_partkey, count(*) from lineitem group by 1'
  lightship --json explain lightship://localhost --analyze 'select ...' | jq .edges

In SQL the same is EXPLAIN and EXPLAIN ANALYZE, of any client.")]
pub(crate) struct ExplainArgs {
    /// A node: lightship://HOST[:PORT], lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
    /// The query.
    sql: String,
    /// Run it, and show what was measured.
    #[arg(long)]
    analyze: bool,
}

#[derive(Deserialize)]
struct Explained {
    seconds: Option<f64>,
    rows: Option<u64>,
    stages: Vec<Stage>,
    edges: Vec<Edge>,
}

#[derive(Deserialize)]
struct Stage {
    stage: usize,
    tasks: Vec<Task>,
    operators: Vec<String>,
}

#[derive(Deserialize)]
struct Task {
    node: String,
    rows: Option<u64>,
    cpu_seconds: Option<f64>,
}

#[derive(Deserialize)]
struct Edge {
    from_stage: usize,
    to_stage: usize,
    from_node: String,
    to_node: String,
    rows: u64,
    bytes_wire: Option<u64>,
    wait_seconds: f64,
}

pub(crate) async fn cmd_explain(args: ExplainArgs, json: bool) -> Result<(), CliError> {
    let location = Location::parse(&args.uri)?;
    if !matches!(location, Location::Node { .. } | Location::NodeUnix { .. }) {
        return Err(CliError::usage("only queries of nodes can be explained")
            .hint("of a database, `lightship fetch URI 'EXPLAIN ...'` shows its own plan"));
    }
    let (endpoint, config) = endpoint(&location)?;
    let mut client = Client::connect_with(&endpoint, &config).await?;
    let verb = if args.analyze { "explain analyze" } else { "explain" };
    let mut answer = client.fetch(&format!("{verb} {}", args.sql), &Options::default()).await?;
    let mut texts = Vec::new();
    while let Some(rows) = answer.next().await? {
        let columns = rows.columns();
        let [kinds, plans] = columns else {
            return Err(CliError::internal("an explanation of other columns"));
        };
        let (Some(kinds), Some(plans)) = (kinds.as_string_opt::<i32>(), plans.as_string_opt::<i32>()) else {
            return Err(CliError::internal("an explanation of other columns"));
        };
        let pairs =
            kinds.iter().zip(plans).filter_map(|(kind, plan)| Some((kind?.to_owned(), plan?.to_owned())));
        texts.extend(pairs);
    }
    let found = texts.iter().find(|(kind, _)| kind == "distributed_plan_json").map(|(_, text)| text);
    let text = match (found, json) {
        (Some(found), true) => format!("{found}\n"),
        (None, true) => {
            let plans: serde_json::Map<_, _> =
                texts.into_iter().map(|(kind, plan)| (kind, plan.into())).collect();
            format!("{}\n", serde_json::Value::from(plans))
        }
        (Some(found), false) => {
            let explained: Explained = serde_json::from_str(found)
                .map_err(|e| CliError::internal(format!("an explanation that can't be read: {e}")))?;
            show(&explained)
        }
        (None, false) => texts.iter().map(|(kind, plan)| format!("{kind}\n{plan}\n")).collect(),
    };
    print(text.as_bytes())
}

fn show(explained: &Explained) -> String {
    let mut text = String::new();
    for stage in explained.stages.iter().rev() {
        let what = match (stage.stage, stage.tasks.len()) {
            (0, _) => "coordinator".to_owned(),
            (number, 1) => format!("stage {number}, one node"),
            (number, nodes) => format!("stage {number}, {nodes} nodes"),
        };
        let _ = writeln!(text, "{what}");
        for operator in &stage.operators {
            let _ = writeln!(text, "  {operator}");
        }
        let mut table = vec![["node", "rows", "processor time"].map(String::from).to_vec()];
        table.extend(stage.tasks.iter().map(|task| {
            vec![
                task.node.clone(),
                task.rows.map_or_else(String::new, grouped),
                task.cpu_seconds.map_or_else(String::new, |seconds| Seconds(seconds).to_string()),
            ]
        }));
        if stage.tasks.iter().all(|task| task.cpu_seconds.is_none()) {
            table.iter_mut().for_each(|row| row.truncate(1));
        }
        aligned(&mut text, 4, &table, 1);
        text.push('\n');
    }
    if !explained.edges.is_empty() {
        let heads = ["stage", "from", "to", "rows", "on the wire", "waited for"];
        let mut table = vec![heads.map(String::from).to_vec()];
        let mut edges: Vec<&Edge> = explained.edges.iter().collect();
        edges.sort_by_key(|edge| (edge.to_stage, edge.from_stage, &edge.from_node, &edge.to_node));
        table.extend(edges.into_iter().map(|edge| {
            vec![
                format!("{} to {}", edge.from_stage, edge.to_stage),
                edge.from_node.clone(),
                edge.to_node.clone(),
                grouped(edge.rows),
                edge.bytes_wire.map_or_else(String::new, |bytes| Size(bytes).to_string()),
                Seconds(edge.wait_seconds).to_string(),
            ]
        }));
        aligned(&mut text, 0, &table, 3);
        text.push('\n');
    }
    if let (Some(rows), Some(seconds)) = (explained.rows, explained.seconds) {
        let wire: u64 = explained.edges.iter().filter_map(|edge| edge.bytes_wire).sum();
        let _ =
            writeln!(text, "{} rows in {}, {} between nodes", grouped(rows), Seconds(seconds), Size(wire));
    }
    text
}
