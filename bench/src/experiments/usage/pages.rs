//! The sections of the page, with their plots.

use lightship_usage::Part;

use super::collect::node_names;
use super::nodes::{self, BASE, HARDWARE, LINK, SLOW, TRAFFIC_QUERY, place};
use super::outcome::{Row, Rows};
use super::predictions::{self, Line};
use super::site::COORDINATOR;
use super::system::{Configuration, LIGHTSHIP, POSTGRES, QUERIES};
use super::traffic::{Rate, TrafficRows};
use super::{cost, faults};
use crate::plot::{Axis, Lines, LinesPanel, Series, Stacked, StackedGroup, StackedPanel, Summary};
use crate::report::{Page, Report};
use crate::results::Results;
use crate::settings::Settings;
use crate::{Result, tables};

/// What is shown of the parts: a name, and the parts that it sums up.
const SHOWN: [(&str, &[Part]); 7] = [
    ("CPU", &[Part::Cpu]),
    ("processors taken by others", &[Part::RunQueueWait, Part::Stolen]),
    ("disk, sequential", &[Part::DiskSequential]),
    ("disk, random", &[Part::DiskRandom]),
    ("network", &[Part::Network, Part::RoundTrips]),
    (
        "receiver, locks, memory",
        &[Part::ReceiverLimited, Part::SenderLimited, Part::ClientWait, Part::LockWait, Part::MemoryPressure],
    ),
    ("unexplained", &[Part::Unexplained]),
];
const SYSTEMS: [&str; 2] = [POSTGRES, LIGHTSHIP];

fn shown(row: &Row) -> Vec<f64> {
    SHOWN.iter().map(|(_, parts)| parts.iter().map(|part| row.of(*part)).sum()).collect()
}

/// A table with a row for each of the lines.
fn table(head: &[&str], lines: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let rule = vec!["---".to_owned(); head.len()];
    let all = [line(&head), line(&rule)].into_iter().chain(lines.iter().map(|cells| line(cells)));
    all.collect::<Vec<_>>().join("\n")
}

fn percent(part: f64) -> String {
    if part < 0.005 { String::new() } else { format!("{:.0}", part * 100.0) }
}

/// The shares of a run by part, in percent.
fn shares(row: &Row) -> Vec<String> {
    shown(row).iter().map(|seconds| percent(seconds / row.seconds)).collect()
}

pub(super) fn nodes_section(settings: &Settings, load: &str, rows: &Rows) -> Result<()> {
    let [links, versions] = rows.circumstances(0);
    let mut plots = Vec::new();
    let mut all = Vec::new();
    for system in SYSTEMS.into_iter().filter(|system| !rows.places(&[system]).is_empty()) {
        plots.push((by_nodes(rows, system)?, "Seconds by query and number of nodes, divided into parts"));
        plots.push((by_hardware(rows, system)?, "Seconds by query and hardware, divided into parts"));
        all.push(format!("### {system}: median seconds\n\n{}", times(rows, system)));
        all.push(format!("### {system}: classes\n\n{}", classes(rows, system)));
    }
    let traffic = TrafficRows::open(&settings.results())?;
    for system in SYSTEMS {
        let rates: Vec<&Rate> = traffic.rows.iter().filter(|rate| rate.place[0] == system).collect();
        if !rates.is_empty() {
            plots.push((over_time(system, &rates)?, "Traffic over time, by node and direction"));
        }
    }
    Report {
        name: nodes::NAME,
        page: Page::Usage,
        title: "Five queries on 1, 3 and 6 nodes",
        text: format!(
            "TPC-H's queries 1, 3, 4, 8 and 12 on nodes of the lab. Each node has {} of a processor, a disk of {} MB/s \
             and a link of {LINK}; then one of them is faster: the processor 2.5 times, the disk 1.39 times (30.5 MB/s), \
             or the link 10 times. \"1-part\": lineitem is divided among the nodes; \"2-part\": lineitem and orders; each \
             node has all rows of the other tables. **PostgreSQL** (scale 0.05): the nodes know nothing of each other; \
             `lightship fetch --also` sends the query to all of them and unites the answers (TP-Lite). It is a black box: \
             `lightship agent` samples the processes of each server and the client, and a collector on the \
             coordinator's host puts the samples on one time line. **Lightship** (scale 0.25): a cluster of `lightship \
             node --usage` over Parquet, of which the first node is asked, and tells by its page where the time went; \
             each node reads a share of the tables that are not divided. Before each run the tables are dropped from \
             the page cache. Samples are 50 ms apart (Lightship's nodes: 200 ms). All hosts share two processors, one disk and \
             one clock: limits of control groups and token buckets make them different machines. The limit of a disk \
             counts as its calibrated rate. A wait for the limit of a control group counts as CPU. Waits for disks are counted by the kernel (`kernel.task_delayacct=1`); its figures \
             of pressure are left out on PostgreSQL's nodes, because the hosts share the kernel. The 0.4 Mbit/s that the \
             coordinator always receives are samples.\n\n\
             Measured links: {}.",
            BASE.cpus,
            BASE.disk_bytes_per_s / 1_000_000,
            links.join("; ")
        ),
        tables: all,
        plots,
        versions,
        load: load.to_owned(),
        settings,
    }
    .publish()
}

/// One panel for each way to divide the tables, a group for each query, a bar for each number of nodes.
fn by_nodes(rows: &Rows, system: &str) -> Result<String> {
    let panel = |division: &str| {
        let group = |query: usize| {
            let with = Configuration::ALL.into_iter();
            let with = with.filter(|with| with.nodes == 1 || with.division_name() == division);
            let bar = |with: Configuration| {
                let row = rows.median(&place(system, with, SLOW, query))?;
                Some((with.nodes.to_string(), shown(row)))
            };
            StackedGroup { name: format!("Q{query}"), bars: with.filter_map(bar).collect() }
        };
        StackedPanel {
            title: format!("{system}, {division}, on 1, 3 and 6 nodes"),
            groups: QUERIES.iter().map(|(query, _)| group(*query)).collect(),
        }
    };
    stacked(["1-part", "2-part"].map(panel).into())
}

/// One panel for each configuration of the first division, a bar for each hardware.
fn by_hardware(rows: &Rows, system: &str) -> Result<String> {
    let panel = |with: Configuration| {
        let group = |query: usize| {
            let bar = |hardware: &&str| {
                let row = rows.median(&place(system, with, hardware, query))?;
                let name = hardware.split(' ').next().unwrap_or_default();
                Some((name.replace("network", "net"), shown(row)))
            };
            StackedGroup { name: format!("Q{query}"), bars: HARDWARE.iter().filter_map(bar).collect() }
        };
        StackedPanel {
            title: format!(
                "{system}, {}, nodes: {}; base, faster CPU, disk, network",
                with.division_name(),
                with.nodes
            ),
            groups: QUERIES.iter().map(|(query, _)| group(*query)).collect(),
        }
    };
    let chosen = Configuration::ALL.into_iter().filter(|with| with.division_name() != "2-part");
    stacked(chosen.map(panel).collect())
}

fn stacked(panels: Vec<StackedPanel>) -> Result<String> {
    let parts = SHOWN.iter().map(|(name, _)| (*name).to_owned()).collect();
    Ok(Stacked { parts, y: Axis::linear("seconds"), panels }.svg()?)
}

/// A panel for each number of nodes and direction.
fn over_time(system: &str, rates: &[&Rate]) -> Result<String> {
    let mut panels = Vec::new();
    for nodes in ["3", "6"] {
        for (direction, value) in [
            ("sent", Box::new(|rate: &Rate| rate.sent_mbit_per_s) as Box<dyn Fn(&Rate) -> f64>),
            ("received", Box::new(|rate: &Rate| rate.received_mbit_per_s)),
        ] {
            let here: Vec<&&Rate> =
                rates.iter().filter(|rate| rate.place[1] == "1-part" && rate.place[2] == nodes).collect();
            let mut hosts: Vec<&str> = here.iter().map(|rate| rate.host.as_str()).collect();
            hosts.sort_unstable();
            hosts.dedup();
            let used = node_names(nodes.parse()?);
            hosts.retain(|host| *host == COORDINATOR || used.iter().any(|name| name == host));
            let series = hosts.iter().map(|host| {
                let of_host = here.iter().filter(|rate| rate.host == *host);
                let points = of_host.map(|rate| (rate.seconds, Summary::single(value(rate))));
                Series { name: (*host).to_owned(), points: points.collect() }
            });
            panels.push(LinesPanel {
                title: format!("{system}, Q{TRAFFIC_QUERY}, {nodes} nodes: {direction}"),
                y: Axis::linear("Mbit/s"),
                series: series.collect(),
            });
        }
    }
    Ok(Lines::new(Axis::linear("seconds"), panels).svg()?)
}

fn times(rows: &Rows, system: &str) -> String {
    let mut lines = Vec::new();
    for with in Configuration::ALL {
        for (query, _) in QUERIES {
            let seconds = |hardware: &str| {
                let place = place(system, with, hardware, query);
                let summary = Summary::of(rows.at(&place).map(|row| row.seconds));
                tables::spread(summary, 2)
            };
            let first = [with.nodes.to_string(), with.division_name().to_owned(), format!("Q{query}")];
            lines.push(first.into_iter().chain(HARDWARE.map(seconds)).collect());
        }
    }
    table(&[&["nodes", "tables", "query"], &HARDWARE[..]].concat(), &lines)
}

fn classes(rows: &Rows, system: &str) -> String {
    let mut lines = Vec::new();
    for with in Configuration::ALL {
        for (query, _) in QUERIES {
            let Some(row) = rows.median(&place(system, with, SLOW, query)) else { continue };
            let first = [
                with.nodes.to_string(),
                with.division_name().to_owned(),
                format!("Q{query}"),
                row.limit.clone(),
            ];
            lines.push([&first[..], &shares(row), std::slice::from_ref(&row.evidence)].concat());
        }
    }
    let names = SHOWN.map(|(name, _)| name);
    let text = "Of the run with the median time on the base hardware: shares of the time in percent.\n\n";
    let head = [&["nodes", "tables", "query", "class"], &names[..], &["evidence"]].concat();
    format!("{text}{}", table(&head, &lines))
}

pub(super) fn what_if_section(settings: &Settings, load: &str) -> Result<()> {
    let lines = predictions::compared(&settings.results())?;
    let mut groups: Vec<(String, Vec<&Line>)> = vec![("all".into(), lines.iter().collect())];
    for kind in ["CPU", "disk", "network", "nodes"] {
        for system in SYSTEMS {
            let of = lines.iter().filter(|line| line.kind == kind && line.system == system).collect();
            groups.push((format!("{system}, {kind}"), of));
        }
    }
    let one = lines.iter().filter(|line| line.limit != "mixed" && line.limit != "inefficient").collect();
    groups.push(("one resource limited the run before".into(), one));
    let row = |(name, lines): &(String, Vec<&Line>)| {
        let errors: Vec<f64> = lines.iter().map(|line| line.error()).collect();
        let mean = errors.iter().sum::<f64>() / errors.len() as f64;
        let worst = errors.iter().copied().fold(0.0, f64::max);
        let few = errors.iter().filter(|error| **error <= 0.2).count();
        let within = lines.iter().filter(|line| (line.low..=line.high).contains(&line.measured)).count();
        let number = |value: f64| format!("{:.1}", value * 100.0);
        vec![
            name.clone(),
            errors.len().to_string(),
            number(mean),
            number(worst),
            few.to_string(),
            within.to_string(),
        ]
    };
    let summary: Vec<_> = groups.iter().filter(|(_, lines)| !lines.is_empty()).map(row).collect();
    let mut by_error: Vec<&Line> = lines.iter().collect();
    by_error.sort_by(|a, b| b.error().total_cmp(&a.error()));
    let line = |line: &&Line| {
        let seconds = [line.before, line.predicted, line.measured].map(|seconds| format!("{seconds:.2}"));
        let texts = [&line.system, &line.query, &line.from, &line.change, &line.limit].map(Clone::clone);
        [&texts[..], &seconds, &[format!("{:.0}", line.error() * 100.0)]].concat()
    };
    let worst: Vec<_> = by_error.iter().take(12).map(line).collect();
    Report {
        name: predictions::NAME,
        page: Page::Usage,
        title: "Predictions, made before the changed runs",
        text: "From the run with the median time on the base hardware, the model of `lightship usage what-if` predicted \
               the time with a faster processor, disk or network, and on three times or twice as many nodes. Each \
               prediction was stored, by the code behind `what-if --save`, before the changed run began; the file \
               has both moments. The measured time is the median of the changed runs. On PostgreSQL, the divided part \
               of the work was taken from the sizes of the tables. Errors are parts of the measured time."
            .to_owned(),
        tables: vec![
            table(&["change", "predictions", "mean error, %", "worst, %", "at most 20%", "within the range"], &summary),
            format!(
                "### The largest errors\n\n{}",
                table(
                    &["system", "query", "from", "change", "class before", "before, s", "predicted, s", "measured, s", "error, %"],
                    &worst
                )
            ),
        ],
        plots: vec![],
        versions: vec![],
        load: load.to_owned(),
        settings,
    }
    .publish()
}

pub(super) fn faults_section(settings: &Settings, load: &str, rows: &Rows) -> Result<()> {
    let [links, versions] = rows.circumstances(1);
    let of = |set: &str| {
        let mut lines = Vec::new();
        for place in rows.places(&[set]) {
            let Some(row) = rows.median(&place) else { continue };
            let runs = rows.at(&place).count();
            let right = rows.at(&place).filter(|row| faults::is_right(row)).count();
            let first = [place[1].clone(), place[2].clone(), place[3].clone(), format!("{:.2}", row.seconds)];
            let verdict = [format!("{right} of {runs}"), row.limit.clone(), row.host.clone()];
            lines.push([&first[..], &verdict, &shares(row), std::slice::from_ref(&row.evidence)].concat());
        }
        let names = SHOWN.map(|(name, _)| name);
        let head = ["system", "what is slow", "query", "seconds", "right", "class", "host"];
        table(&[&head[..], &names, &["evidence"]].concat(), &lines)
    };
    Report {
        name: faults::NAME,
        page: Page::Usage,
        title: "Limits and faults, made on purpose",
        text: format!(
            "Limits: one node, of which one resource is slow, so that it is known what the query waits for. Faults: on \
             three nodes (1-part) one thing is slow, and the verdict must name it, and the node if one is meant. The thresholds of the model were made from simulated machines, and were not changed. But \
             these are not runs that the model had never seen the like of: trial runs of the same limits \
             and faults (11 of 15 verdicts right, 50% of the time under limits explained) showed faults \
             in the counting of waits, which were repaired, and then all runs were made again. Locks and \
             single sessions are watched by `lightship usage run --postgres`. A hog is {} programs that compute on the \
             processor to which the node is pinned. The slow client reads 10 MB/s (Lightship: 5 MB/s) of CSV. The slow processor is 0.04 of one (Lightship: 0.1). Fetch size 1 is psql's \
             `FETCH_COUNT=1` over a relay that delays each direction by 1 ms, or `--batch-rows 1 --window 1` over links that do. Each row \
             shows the run with the median time: its class, and the shares of the time in percent.\n\nMeasured links: {}.",
            faults::HOGS,
            links.join("; ")
        ),
        tables: vec![
            format!("### Limits of one node\n\n{}", of(faults::LIMIT)),
            format!("### Faults\n\n{}", of(faults::FAULT)),
        ],
        plots: vec![],
        versions,
        load: load.to_owned(),
        settings,
    }
    .publish()
}

pub(super) fn cost_section(settings: &Settings, load: &str, [costs, agents]: &[Results; 2]) -> Result<()> {
    let standing = tables::Standing {
        ratio: tables::Ratio::Of(cost::PLAIN),
        targets: &[(cost::USAGE, 1.01), (cost::BESIDE, 1.01)],
    };
    let place = ["TPC-H"];
    let intervals = ["1s", "100ms"]
        .map(|interval| format!("Each {interval}:\n\n{}", tables::contenders(agents, &[interval], None)));
    Report {
        name: cost::NAME,
        page: Page::Usage,
        title: "What agents cost",
        text: "The 22 queries of TPC-H, three times one after the other, on one node over Parquet, after a first pass that \
               does not count: a node without and with `--usage` (one sample a second, and the processor time of each \
               task), and a node beside which `lightship agent` samples this host and its busiest processes each second. \
               The contenders take turns, each with a new node. The agent alone is observed for 10 s, while this host does \
               nothing else; a collector on the same host receives its datagrams."
            .to_owned(),
        tables: vec![
            format!("### Queries\n\n{}", tables::contenders(costs, &place, Some(&standing))),
            format!(
                "### The agent alone\n\n{}\n\nEvery run: [{name}.csv]({name}.csv)",
                intervals.join("\n\n"),
                name = cost::AGENT_NAME
            ),
        ],
        plots: vec![],
        versions: vec![],
        load: load.to_owned(),
        settings,
    }
    .publish()
}
