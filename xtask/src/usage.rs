//! `make usage-demo`: where the time of queries goes, with a client that reads slowly as the bottleneck.

use std::ffi::OsStr;
use std::io::{IsTerminal as _, Read};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;
use lightship_testkit::tpch;
use serde_json::Value;

use crate::node::{Node, Result, command};

/// Options of the demonstration.
#[derive(Args)]
pub(crate) struct UsageArgs {
    /// TPC-H scale factor: 1 is about a gigabyte.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Address of the page.
    #[arg(long, default_value = "127.0.0.1:0")]
    http: String,
    /// Folder for the data.
    #[arg(long, default_value = "target/demo")]
    folder: PathBuf,
    /// The lightship binary to run.
    #[arg(long, default_value = "target/release/lightship")]
    lightship: PathBuf,
}

/// The nodes.
const NODES: usize = 3;
/// The queries of the workload.
const QUERIES: [usize; 4] = [1, 3, 6, 9];
/// What the slow client reads in a second.
const SLOW_BYTES_PER_SECOND: f64 = 4e6;
/// How long it reads slowly.
const SLOW: Duration = Duration::from_secs(4);
/// How long a query may take to be assessed.
const ASSESSED: Duration = Duration::from_secs(20);

/// Starts nodes, runs queries, reads one result slowly, and prints what limited each.
///
/// # Errors
/// When a step fails. The nodes are stopped in any case.
pub(crate) fn usage(args: &UsageArgs) -> Result<()> {
    let folder = args.folder.join(format!("tpch-{}-on-{NODES}", args.scale));
    println!("data: TPC-H at scale {} in {NODES} parts in {}", args.scale, folder.display());
    let parts = tpch::write_shards(args.scale, &folder, &[1; NODES])?;
    let mut nodes: Vec<Node> = Vec::new();
    for part in &parts {
        let first = nodes.first().map(|node| node.uri.trim_start_matches("lightship://").to_owned());
        let (flag, address) = match &first {
            Some(first) => ("--join", first.as_str()),
            None => ("--advertise", "127.0.0.1:0"),
        };
        let mut words = vec![OsStr::new("--data"), part.as_os_str(), OsStr::new(flag), OsStr::new(address)];
        words.extend(["--usage", "--usage-interval", "50ms"].map(OsStr::new));
        if first.is_none() {
            words.extend(["--http", &args.http].map(OsStr::new));
        }
        nodes.push(Node::start(&args.lightship, &words)?);
    }
    let node = nodes.first().ok_or("no node")?;
    let page = node.ready["page"].as_str().ok_or("the node serves no page")?.to_owned();
    println!("nodes: {NODES} on this host; hosts and queries are shown at {page}\n");

    let queries = tpch::queries(args.scale);
    for number in QUERIES {
        fetch(args, &node.uri, &queries[number - 1], &format!("TPC-H {number}"), None)?;
    }
    let slow = "select * from lineitem";
    fetch(args, &node.uri, slow, "lineitem, by a client that reads slowly", Some(SLOW_BYTES_PER_SECOND))?;

    let lightship = || {
        let mut lightship = command(&args.lightship);
        lightship.args(["usage", "show", "--node", &page]);
        lightship
    };
    let began = Instant::now();
    let id = loop {
        let output = lightship().arg("--json").output()?;
        let text = String::from_utf8(output.stdout)?;
        let rows = text.lines().map(serde_json::from_str).collect::<std::result::Result<Vec<Value>, _>>()?;
        let found = rows.iter().find(|row| row["label"] == slow && row["limit_name"].is_string());
        if let Some(id) = found.and_then(|row| row["id"].as_str()) {
            break id.to_owned();
        }
        if began.elapsed() > ASSESSED {
            return Err("the query was not assessed".into());
        }
        // It is assessed when the samples after it have come.
        std::thread::sleep(Duration::from_millis(200));
    };
    println!("\n$ lightship usage show --node {page}");
    lightship().status()?;
    let short: String = id.chars().take(8).collect();
    println!("\n$ lightship usage explain {short} --node {page}");
    command(&args.lightship).args(["usage", "explain", &id, "--node", &page]).status()?;
    if std::io::stdin().is_terminal() {
        println!("\nThe page is at {page} until you press Enter.");
        std::io::stdin().read_line(&mut String::new())?;
    }
    nodes.iter().for_each(Node::ask_to_stop);
    Ok(())
}

/// Runs a query, and takes its rows at a rate in bytes a second for a while, if one is given.
fn fetch(args: &UsageArgs, uri: &str, sql: &str, name: &str, rate: Option<f64>) -> Result<()> {
    let began = Instant::now();
    let mut client = command(&args.lightship);
    client.args(["fetch", "--quiet", uri, sql, "--format", "csv"]);
    if rate.is_some() {
        // Otherwise the client takes most of the rows ahead, and the node sees nothing of its slowness.
        client.args(["--memory", "4MiB"]);
    }
    let mut child = client.stdout(Stdio::piped()).spawn()?;
    let mut rows = child.stdout.take().ok_or("the client has no stdout")?;
    let mut buffer = vec![0; 64 << 10];
    let mut read = 0;
    loop {
        let bytes = rows.read(&mut buffer)?;
        if bytes == 0 {
            break;
        }
        read += bytes;
        if let Some(rate) = rate.filter(|_| began.elapsed() < SLOW) {
            let ahead = Duration::from_secs_f64(read as f64 / rate).saturating_sub(began.elapsed());
            std::thread::sleep(ahead);
        }
    }
    if !child.wait()?.success() {
        return Err(format!("{name} failed").into());
    }
    println!("{name}: {:.2} s", began.elapsed().as_secs_f64());
    Ok(())
}
