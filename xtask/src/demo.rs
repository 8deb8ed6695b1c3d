//! `make demo`: the main job, from nothing.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use clap::Args;
use lightship_testkit::tpch;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// What to show.
#[derive(Args)]
pub(crate) struct DemoArgs {
    /// TPC-H scale factor: 1 is about a gigabyte.
    #[arg(long, default_value_t = 0.1)]
    scale: f64,
    /// Where data and results go.
    #[arg(long, default_value = "target/demo")]
    folder: PathBuf,
    /// The binary to show.
    #[arg(long, default_value = "target/release/lightship")]
    lightship: PathBuf,
}

const QUERIES: [(&str, &str); 3] = [
    (
        "TPC-H 1",
        "select l_returnflag, l_linestatus, sum(l_quantity) as sum_qty, sum(l_extendedprice) as sum_base_price,
           sum(l_extendedprice * (1 - l_discount)) as sum_disc_price,
           sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)) as sum_charge, avg(l_quantity) as avg_qty,
           avg(l_extendedprice) as avg_price, avg(l_discount) as avg_disc, count(*) as count_order
         from lineitem where l_shipdate <= date '1998-09-02'
         group by l_returnflag, l_linestatus order by l_returnflag, l_linestatus",
    ),
    (
        "TPC-H 3",
        "select l_orderkey, sum(l_extendedprice * (1 - l_discount)) as revenue, o_orderdate, o_shippriority
         from customer, orders, lineitem
         where c_mktsegment = 'BUILDING' and c_custkey = o_custkey and l_orderkey = o_orderkey
           and o_orderdate < date '1995-03-15' and l_shipdate > date '1995-03-15'
         group by l_orderkey, o_orderdate, o_shippriority order by revenue desc, o_orderdate limit 10",
    ),
    (
        "TPC-H 6",
        "select sum(l_extendedprice * l_discount) as revenue from lineitem
         where l_shipdate >= date '1994-01-01' and l_shipdate < date '1995-01-01'
           and l_discount between 0.05 and 0.07 and l_quantity < 24",
    ),
];

/// A node that is stopped whatever happens.
struct Node(Child);

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Shows the main job and prints what it came to.
///
/// # Errors
/// When a step fails; the node is stopped all the same.
pub(crate) fn demo(args: &DemoArgs) -> Result<()> {
    let data = args.folder.join(format!("tpch-{}", args.scale));
    let began = Instant::now();
    println!("data: TPC-H at scale {} in {}", args.scale, data.display());
    tpch::write_parquet(args.scale, &data, |_, _| {})?;
    println!("      ready after {:.1} s", began.elapsed().as_secs_f64());

    let (_node, uri) = start(args, &data)?;
    println!("node: {uri}\n");

    let mut table = vec![["", "rows", "Arrow", "wire", "seconds", "rate", "peak memory"].map(String::from)];
    let lineitem = args.folder.join("lineitem.parquet");
    table.push(fetch(args, &uri, "lineitem to Parquet", "select * from lineitem", &lineitem)?);
    for (name, sql) in QUERIES {
        table.push(fetch(args, &uri, name, sql, &args.folder.join("result.arrow"))?);
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

fn start(args: &DemoArgs, data: &Path) -> Result<(Node, String)> {
    let child = Command::new(&args.lightship)
        .args(["--json", "--log", "warn", "node", "--listen", "127.0.0.1:0", "--data"])
        .arg(data)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}; `make demo` builds it", args.lightship.display()))?;
    let mut node = Node(child);
    let stdout = node.0.stdout.take().ok_or("the node has no stdout")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let ready: Value = serde_json::from_str(&line).map_err(|_| "the node did not start")?;
    let uri = ready["listening"][0].as_str().ok_or("the node does not listen")?.to_owned();
    Ok((node, uri))
}

fn fetch(args: &DemoArgs, uri: &str, name: &str, sql: &str, output: &Path) -> Result<[String; 7]> {
    let stats = args.folder.join("stats.json");
    let status = Command::new(&args.lightship)
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

fn print(table: &[[String; 7]]) {
    let width = |column: usize| table.iter().map(|row| row[column].len()).max().unwrap_or(0);
    for row in table {
        let cells = row.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<width$}", width = width(0)),
            _ => format!("{cell:>width$}", width = width(column)),
        });
        println!("{}", cells.collect::<Vec<_>>().join("  "));
    }
}
