//! `make demo`: the main job, on generated data.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use lightship_testkit::tpch;
use serde_json::Value;

use crate::node::{Node, Result, command};

/// Options of the demonstration.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// TPC-H scale factor: 1 is about a gigabyte.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Folder for data and results.
    #[arg(long, default_value = "target/demo")]
    folder: PathBuf,
    /// The lightship binary to run.
    #[arg(long, default_value = "target/release/lightship")]
    lightship: PathBuf,
}

/// The TPC-H queries to run, by number.
const QUERIES: [usize; 3] = [1, 3, 6];

/// Runs the main job and prints its figures.
///
/// # Errors
/// When a step fails. The node is stopped in any case.
pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let data = args.folder.join(format!("tpch-{}", args.scale));
    let began = Instant::now();
    println!("data: TPC-H at scale {} in {}", args.scale, data.display());
    tpch::write_parquet(args.scale, &data, |_, _| {})?;
    println!("      ready after {:.1} s", began.elapsed().as_secs_f64());

    let node = Node::start(&args.lightship, &["--data".as_ref(), data.as_os_str()])?;
    let uri = node.uri.clone();
    println!("node: {uri}\n");

    let mut table = vec![["", "rows", "Arrow", "wire", "seconds", "rate", "peak memory"].map(String::from)];
    let lineitem = args.folder.join("lineitem.parquet");
    table.push(fetch(args, &uri, "lineitem to Parquet", "select * from lineitem", &lineitem)?);
    let queries = tpch::queries(args.scale);
    for number in QUERIES {
        let (name, sql) = (format!("TPC-H {number}"), &queries[number - 1]);
        table.push(fetch(args, &uri, &name, sql, &args.folder.join("result.arrow"))?);
    }
    print(&table);

    let shown = args.lightship.display();
    println!("\nlineitem is in {}. Try next:", lineitem.display());
    println!("  {shown} fetch {} 'select count(*), max(l_shipdate) from lineitem'", lineitem.display());
    println!("  {shown} node --data {} --in-memory &", data.display());
    println!("  {shown} fetch lightship://localhost 'select * from nation'");
    println!("  {shown} fetch postgresql://you@host/db 'select * from your_table' -o your_table.parquet");
    Ok(())
}

fn fetch(args: &DemoArgs, uri: &str, name: &str, sql: &str, output: &Path) -> Result<[String; 7]> {
    let stats = args.folder.join("stats.json");
    let status = command(&args.lightship)
        .args(["fetch", "--quiet", uri, sql, "-o"])
        .arg(output)
        .arg("--stats")
        .arg(&stats)
        .status()?;
    if !status.success() {
        return Err(format!("{name}: lightship fetch ended with {status}").into());
    }
    let stats: Value = serde_json::from_str(&std::fs::read_to_string(stats)?)?;
    let number = |key: &str| stats[key].as_f64().unwrap_or(0.0);
    Ok([
        name.to_owned(),
        format!("{:.0}", number("rows")),
        megabytes(number("bytes_arrow")),
        megabytes(number("bytes_wire")),
        format!("{:.3}", number("seconds")),
        format!("{}/s", megabytes(number("bytes_arrow") / number("seconds").max(1e-9))),
        megabytes(number("peak_memory_bytes")),
    ])
}

fn megabytes(bytes: f64) -> String {
    if bytes < 1e5 { format!("{:.1} KB", bytes / 1e3) } else { format!("{:.1} MB", bytes / 1e6) }
}

pub(crate) fn print<const N: usize>(table: &[[String; N]]) {
    let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or(0);
    for row in table {
        let cells = row.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<width$}", width = width(0)),
            _ => format!("{cell:>width$}", width = width(column)),
        });
        println!("{}", cells.collect::<Vec<_>>().join("  "));
    }
}
