//! `lightship explain`: shows what a query does on each node and what is sent between nodes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Args;
use lightship::{Choice, Edge, ExpectedEdge, Explained, Explanation, Location, Strategy, explain};

use super::manual::Answer;
use super::sql::SqlArgs;
use crate::columns::aligned;
use crate::error::CliError;
use crate::size::{Seconds, Size, grouped};

/// Show the plan of a query: its stages, their nodes, and what is sent between them
///
/// For a cluster it shows each stage with the nodes that run it, from the coordinator down to the
/// tables; for a single node, the node's plan. It also shows how each join and aggregation is run and
/// what the other ways were expected to take, and what nodes are expected to send each other.
///
/// With --analyze the query is run, its rows are discarded, and the figures of each node are shown:
/// rows, processor time, bytes on the wire, how long they took from the request to the end, and how long readers
/// waited for them, beside what was expected.
/// What is measured improves later predictions.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship explain lightship://localhost 'select count(*) from lineitem'
  lightship explain lightship://localhost --analyze \\
      'select l_partkey, count(*) from lineitem group by 1'
  lightship --json explain lightship://localhost --analyze \\
      'select count(*) from lineitem' | jq .edges

Any client gets the same in SQL, with EXPLAIN and EXPLAIN ANALYZE.")]
pub(crate) struct ExplainArgs {
    /// The node to ask: lightship://[TOKEN@]HOST[:PORT] or lightship+unix:PATH.
    #[arg(value_name = "URI")]
    uri: String,
    #[command(flatten)]
    sql: SqlArgs,
    /// Run the query and show what was measured. It takes as long as the query.
    #[arg(long)]
    analyze: bool,
}

pub(crate) async fn cmd_explain(args: ExplainArgs, json: bool) -> Result<(), CliError> {
    answer(args).await?.print(json)
}

pub(super) async fn answer(args: ExplainArgs) -> Result<Answer, CliError> {
    let sql = args.sql.read().await?;
    shown(explain(&Location::parse(&args.uri)?, &sql, args.analyze).await?)
}

/// An explanation as text and as JSON.
pub(super) fn shown(explanation: Explanation) -> Result<Answer, CliError> {
    match explanation {
        Explanation::Distributed(explained) => Answer::new(show(&explained), &explained),
        Explanation::Plans(plans) => {
            let text = plans.iter().map(|(name, plan)| format!("{name}\n{plan}\n")).collect();
            let plans: serde_json::Map<_, _> =
                plans.into_iter().map(|(name, plan)| (name, plan.into())).collect();
            Answer::new(text, &plans)
        }
    }
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
        if let Some(out) = &stage.left_out {
            let _ = writeln!(
                text,
                "    not {}: receiving the rows would take {:.1} times as long with all nodes",
                out.nodes.join(", "),
                out.time_with_all
            );
        }
        text.push('\n');
    }
    choices(&mut text, &explained.choices);
    if explained.edges.is_empty() {
        expected(&mut text, &explained.expected_edges);
    } else {
        let heads = [
            "stage",
            "from",
            "to",
            "codec",
            "rows",
            "expected",
            "on the wire",
            "expected",
            "took",
            "expected",
            "waited for",
            "streams over the overlay",
        ];
        let mut table = vec![heads.map(String::from).to_vec()];
        let mut edges: Vec<&Edge> = explained.edges.iter().collect();
        edges.sort_by_key(|edge| (edge.to_stage, edge.from_stage, &edge.from_node, &edge.to_node));
        table.extend(edges.into_iter().map(|edge| {
            let expected = explained.expected_edges.iter().find(|expected| {
                (expected.from_stage, expected.to_stage) == (edge.from_stage, edge.to_stage)
                    && expected.from_node == edge.from_node
                    && expected.to_node == edge.to_node
            });
            let of = |show: fn(&ExpectedEdge) -> String| expected.map_or_else(String::new, show);
            vec![
                format!("{} to {}", edge.from_stage, edge.to_stage),
                edge.from_node.clone(),
                edge.to_node.clone(),
                edge.codec.clone().unwrap_or_default(),
                grouped(edge.rows),
                of(|expected| grouped(expected.rows as u64)),
                edge.bytes_wire.map_or_else(String::new, |bytes| Size(bytes).to_string()),
                of(|expected| Size(expected.bytes_wire as u64).to_string()),
                edge.seconds.map_or_else(String::new, |seconds| Seconds(seconds).to_string()),
                of(|expected| Seconds(expected.seconds).to_string()),
                Seconds(edge.wait_seconds).to_string(),
                grouped(edge.overlay_streams),
            ]
        }));
        if explained.edges.iter().all(|edge| edge.overlay_streams == 0) {
            table.iter_mut().for_each(|row| row.truncate(heads.len() - 1));
        }
        aligned(&mut text, 0, &table, CODEC + 1);
        text.push('\n');
        slowest(&mut text, explained);
    }
    if let (Some(rows), Some(seconds)) = (explained.rows, explained.seconds) {
        let wire: u64 = explained.edges.iter().filter_map(|edge| edge.bytes_wire).sum();
        let _ =
            writeln!(text, "{} rows in {}, {} between nodes", grouped(rows), Seconds(seconds), Size(wire));
    }
    text
}

/// The time of the slowest edge between any two stages.
fn slowest(text: &mut String, explained: &Explained) {
    let mut slowest: BTreeMap<(usize, usize), Option<f64>> = BTreeMap::new();
    for edge in &explained.edges {
        // If not all rows were read, there is no such time.
        let known = slowest.entry((edge.to_stage, edge.from_stage)).or_insert(Some(0.0));
        *known = known.zip(edge.seconds).map(|(known, seconds)| known.max(seconds));
    }
    let mut table = vec![["stage", "slowest edge", "expected"].map(String::from).to_vec()];
    table.extend(slowest.into_iter().filter_map(|((to, from), seconds)| {
        let mut edges = explained.expected_edges.iter();
        let expected = edges.find(|edge| (edge.to_stage, edge.from_stage) == (to, from));
        let show = |seconds| Seconds(seconds).to_string();
        let expected = expected.map_or_else(String::new, |edge| show(edge.slowest_seconds));
        Some(vec![format!("{from} to {to}"), show(seconds?), expected])
    }));
    if table.len() == 1 {
        return;
    }
    aligned(text, 0, &table, 1);
    text.push('\n');
}

/// The column of the codec in tables of edges, the last one that is aligned to the left.
const CODEC: usize = 3;

/// What nodes are expected to send each other.
fn expected(text: &mut String, edges: &[ExpectedEdge]) {
    if edges.is_empty() {
        return;
    }
    let mut table = vec![
        ["stage", "from", "to", "codec", "rows expected", "on the wire", "time"].map(String::from).to_vec(),
    ];
    let mut edges: Vec<&ExpectedEdge> = edges.iter().collect();
    edges.sort_by_key(|edge| (edge.to_stage, edge.from_stage, &edge.from_node, &edge.to_node));
    table.extend(edges.into_iter().map(|edge| {
        vec![
            format!("{} to {}", edge.from_stage, edge.to_stage),
            edge.from_node.clone(),
            edge.to_node.clone(),
            edge.codec.clone().unwrap_or_default(),
            grouped(edge.rows as u64),
            Size(edge.bytes_wire as u64).to_string(),
            Seconds(edge.seconds).to_string(),
        ]
    }));
    if table.iter().skip(1).all(|row| row[CODEC].is_empty()) {
        // No query before has sent such rows.
        table.iter_mut().for_each(|row| drop(row.remove(CODEC)));
        aligned(text, 0, &table, CODEC);
    } else {
        aligned(text, 0, &table, CODEC + 1);
    }
    text.push('\n');
}

/// How each join and aggregation runs, and what the other ways would have cost.
fn choices(text: &mut String, choices: &[Choice]) {
    if choices.is_empty() {
        return;
    }
    let mut table = vec![["on", "rows expected", "chosen", "instead of"].map(String::from).to_vec()];
    table.extend(choices.iter().map(|choice| {
        let ways: Vec<String> = choice
            .ways
            .iter()
            .map(|cost| format!("{} {}", way(cost.strategy), Seconds(cost.seconds())))
            .collect();
        let rows: Vec<String> = choice.rows.iter().map(|rows| grouped(*rows as u64)).collect();
        let (chosen, others) = ways.split_first().map_or(("", [].as_slice()), |(first, rest)| (first, rest));
        vec![choice.on.clone(), rows.join(" and "), chosen.to_owned(), others.join(", ")]
    }));
    aligned(text, 0, &table, 4);
    text.push('\n');
}

fn way(way: Strategy) -> &'static str {
    match way {
        Strategy::BroadcastLeft => "broadcast left",
        Strategy::BroadcastRight => "broadcast right",
        Strategy::Repartition => "repartition",
        Strategy::AggregateTwice => "aggregate before and after",
        Strategy::AggregateOnce => "aggregate after",
    }
}
