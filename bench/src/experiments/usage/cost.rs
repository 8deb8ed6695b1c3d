//! What agents cost: by themselves, in a node, and to the queries beside them.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lightship_testkit::tpch;

use crate::comparison::{Comparison, Contender};
use crate::parts::{Part, TransferResult};
use crate::process::{Node, Process, memory_bytes};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Result, places};

pub(super) const NAME: &str = "usage-cost";
pub(super) const AGENT_NAME: &str = "usage-agent";
pub(super) const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "processor seconds of the node", digits: 2, range: true },
    Figure { name: "peak MB of the node", digits: 0, range: false },
];
pub(super) const AGENT_FIGURES: &[Figure] = &[
    Figure { name: "% of a processor", digits: 2, range: true },
    Figure { name: "MB of memory", digits: 1, range: false },
    Figure { name: "bytes per second", digits: 0, range: false },
];
pub(super) const PLAIN: &str = "node";
pub(super) const USAGE: &str = "node --usage";
pub(super) const BESIDE: &str = "node, agent beside";
pub(super) const AGENT: &str = "lightship agent";
/// How long an agent is observed.
const OBSERVED: Duration = Duration::from_secs(10);
/// Runs of the queries in a measurement, after one that does not count.
const REPEATED: usize = 3;
const COLLECTOR: &str = "127.0.0.1:4390";

pub(super) fn measure(settings: &Settings) -> Result<[Results; 2]> {
    let scale = settings.scale_or(0.3);
    let folder = places::data().join(format!("tpch-{scale}"));
    tpch::write_parquet(scale, &folder, |_, _| {})?;
    let temporary = places::temporary()?;
    let once = temporary.path().join("once.json");
    let repeated = temporary.path().join("repeated.json");
    let queries = tpch::queries(scale);
    std::fs::write(&once, serde_json::to_string(&queries)?)?;
    std::fs::write(&repeated, serde_json::to_string(&vec![queries; REPEATED].concat())?)?;
    let run = |more: &[&str]| {
        let node = Node::start_folder_with(&folder, more)?;
        let ask = |file: &std::path::Path| -> Result<TransferResult> {
            let file = file.display().to_string();
            Part::spawn(None, &["queries", &node.port.to_string(), &file])?.result()
        };
        ask(&once)?;
        let before = node.process.processor_seconds()?;
        let done = ask(&repeated)?;
        let processor = node.process.processor_seconds()? - before;
        Ok(vec![done.seconds, processor, node.process.memory_bytes("VmHWM")? as f64 / 1e6])
    };
    let _collector = Process::spawn(
        None,
        places::lightship()?,
        ["--json", "usage", "watch", "--listen", COLLECTOR, "--insecure"],
    )?;
    let beside = || {
        let _agent = Agent::start(&["--interval", "1s"])?;
        run(&[])
    };
    let contenders = vec![
        Contender::new(PLAIN, || run(&[])),
        Contender::new(USAGE, || run(&["--usage"])),
        Contender::new(BESIDE, beside),
    ];
    let place = Case { values: vec!["TPC-H".into()], scale, note: String::new() };
    let mut results = Results::open(&settings.results(), NAME, &["what"], FIGURES)?;
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    let mut agents = Results::open(&settings.results(), AGENT_NAME, &["interval"], AGENT_FIGURES)?;
    for interval in ["1s", "100ms"] {
        let observe = || Agent::start(&["--interval", interval])?.observed();
        let contenders = vec![Contender::new(AGENT, observe).rounds_max(settings.rounds().min(3))];
        let place = Case { values: vec![interval.to_owned()], scale: 0.0, note: String::new() };
        agents.add(Comparison { figures: AGENT_FIGURES, contenders }.run(settings, &place)?)?;
    }
    Ok([results, agents])
}

/// An agent that samples this host and its busiest processes.
struct Agent {
    child: std::process::Child,
    began: Instant,
}

impl Agent {
    fn start(arguments: &[&str]) -> Result<Self> {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(places::lightship()?);
        command.args(["--json", "agent", COLLECTOR, "--host", "observed", "--insecure"]).args(arguments);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        Ok(Self { child, began: Instant::now() })
    }

    /// Its figures after a while.
    fn observed(mut self) -> Result<Vec<f64>> {
        std::thread::sleep(OBSERVED);
        let pid = self.child.id().to_string();
        // Ticks of 10 ms would be too coarse.
        let mut processor_ns = 0.0;
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            processor_ns += text.split_whitespace().next().map_or(Ok(0.0), str::parse)?;
        }
        let seconds = self.began.elapsed().as_secs_f64();
        let memory = memory_bytes(&pid, "VmHWM")? as f64 / 1e6;
        Command::new("kill").args(["-TERM", &pid]).status()?;
        let mut text = String::new();
        self.child.stderr.take().ok_or("no stderr")?.read_to_string(&mut text)?;
        let report = text.lines().find_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        let bytes = report.and_then(|report| report["datagram_bytes"].as_f64()).unwrap_or(f64::NAN);
        Ok(vec![processor_ns / 1e7 / seconds, memory, bytes / seconds])
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
