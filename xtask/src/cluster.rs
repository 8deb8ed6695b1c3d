//! `make cluster`: queries over many nodes.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use lightship_testkit::tpch;
use serde_json::Value;

use crate::demo::print;
use crate::node::{Node, Result, command};

/// Options of the demonstration.
#[derive(Args)]
pub(crate) struct ClusterArgs {
    /// TPC-H scale factor: 1 is about a gigabyte.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Nodes on this host, each with a part of the tables.
    #[arg(long, default_value_t = 4)]
    nodes: usize,
    /// The TPC-H query to explain.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=22))]
    query: u8,
    /// Folder for the data.
    #[arg(long, default_value = "target/demo")]
    folder: PathBuf,
    /// The lightship binary to run.
    #[arg(long, default_value = "target/release/lightship")]
    lightship: PathBuf,
}

/// Starts nodes, runs all queries, and explains one.
///
/// # Errors
/// When a step fails. The nodes are stopped in any case.
pub(crate) fn cluster(args: &ClusterArgs) -> Result<()> {
    let folder = args.folder.join(format!("tpch-{}-on-{}", args.scale, args.nodes));
    println!("data: TPC-H at scale {} in {} parts in {}", args.scale, args.nodes, folder.display());
    let parts = tpch::write_shards(args.scale, &folder, &vec![1; args.nodes.max(1)])?;
    let mut nodes: Vec<Node> = Vec::new();
    for part in &parts {
        // The first node begins the cluster; each other one joins the first.
        let first = nodes.first().map(|node| node.uri.trim_start_matches("lightship://").to_owned());
        let (flag, address) = match &first {
            Some(first) => ("--join", first.as_str()),
            None => ("--advertise", "127.0.0.1:0"),
        };
        let data = part.as_os_str();
        let words = [OsStr::new("--data"), data, OsStr::new(flag), OsStr::new(address)];
        nodes.push(Node::start(&args.lightship, &words)?);
        println!("node: {} serves {}", nodes[nodes.len() - 1].uri, part.display());
    }
    println!();

    let mut table = vec![["", "rows", "seconds"].map(String::from)];
    let queries = tpch::queries(args.scale);
    for (number, sql) in (1..).zip(&queries) {
        // Any node can answer.
        let uri = &nodes[number % nodes.len()].uri;
        let began = Instant::now();
        let output = command(&args.lightship).args(["--json", "fetch", uri, sql]).output()?;
        if !output.status.success() {
            return Err(format!("query {number}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        let report: Value = serde_json::from_slice(&output.stderr)?;
        table.push([
            format!("TPC-H {number}"),
            report["rows"].to_string(),
            format!("{:.3}", began.elapsed().as_secs_f64()),
        ]);
    }
    print(&table);

    println!("\nTPC-H {}, explained:\n", args.query);
    let uri = &nodes[0].uri;
    let status = command(&args.lightship)
        .args(["explain", "--analyze", uri, &queries[usize::from(args.query) - 1]])
        .status()?;
    nodes.iter().for_each(Node::ask_to_stop);
    if !status.success() {
        return Err(format!("lightship explain ended with {status}").into());
    }
    Ok(())
}
