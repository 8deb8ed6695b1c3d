//! Every benchmark, one after the other.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, CommandFactory};

use crate::{Cli, Result, places};

/// Commands that run others.
const GROUPS: [&str; 2] = ["all", "transfer"];

/// The options of `all`.
#[derive(Args, Debug)]
pub(crate) struct All {
    /// Trials: each benchmark with its --quick; results go to target/bench/quick.
    #[arg(long)]
    quick: bool,
    /// How often each contender runs. [default: that of each benchmark]
    #[arg(long, conflicts_with = "quick", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Begins with this benchmark, e.g. one that failed.
    #[arg(long, value_name = "BENCHMARK")]
    from: Option<String>,
    /// Folder for results; not the published ones, many of which were measured with other options, which their pages
    /// show. [default: target/bench/all, or target/bench/quick with --quick]
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

/// The names of all benchmarks.
fn names() -> Vec<String> {
    let command = Cli::command();
    let shown =
        command.get_subcommands().filter(|one| !one.is_hide_set()).map(|one| one.get_name().to_owned());
    shown.filter(|name| !GROUPS.contains(&name.as_str())).collect()
}

/// How a benchmark ended.
struct Ended {
    name: String,
    took: Duration,
    failed: bool,
}

impl All {
    /// Runs every benchmark in a process of its own, and goes on after one that fails.
    ///
    /// # Errors
    /// If a benchmark failed: names those that did.
    pub(crate) fn run(&self) -> Result<()> {
        let logs = places::data().join("all");
        fs::create_dir_all(&logs)?;
        let names = names();
        let place = |from: &String| {
            let place = names.iter().position(|name| name == from);
            place.ok_or_else(|| format!("unknown benchmark `{from}`; expected one of: {}", names.join(", ")))
        };
        let first = self.from.as_ref().map_or(Ok(0), place)?;
        let mut ended = Vec::new();
        for (at, name) in names.iter().enumerate().skip(first) {
            eprint!("[{}/{}] {name} ... ", at + 1, names.len());
            let began = Instant::now();
            let failed = !self.run_one(name, &log(&logs, name))?;
            let took = began.elapsed();
            eprintln!("{:.0} s{}", took.as_secs_f64(), if failed { ", failed" } else { "" });
            ended.push(Ended { name: name.clone(), took, failed });
        }
        let seconds: f64 = ended.iter().map(|one| one.took.as_secs_f64()).sum();
        eprintln!(
            "{} benchmarks in {:.0} min; what they print is in {}",
            ended.len(),
            seconds / 60.0,
            logs.display()
        );
        let failed: Vec<_> = ended.iter().filter(|one| one.failed).map(|one| one.name.as_str()).collect();
        if failed.is_empty() {
            return Ok(());
        }
        let first = log(&logs, failed[0]);
        Err(format!("failed: {}; see {}", failed.join(", "), first.display()).into())
    }

    /// Returns whether the benchmark succeeded.
    fn run_one(&self, name: &str, log: &Path) -> Result<bool> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(name);
        command.args(self.quick.then_some("--quick"));
        if let Some(rounds) = self.rounds {
            command.args(["--rounds", &rounds.to_string()]);
        }
        match &self.results {
            Some(results) => command.arg("--results").arg(results),
            None if self.quick => &mut command,
            None => command.arg("--results").arg(places::data().join("all")),
        };
        let log = File::create(log)?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Ok(command.status()?.success())
    }
}

fn log(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.log"))
}
