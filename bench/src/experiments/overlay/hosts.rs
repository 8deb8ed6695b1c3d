//! Shuffles over sockets between hosts of the lab, each with a link of limited rate, without and with a limit of processor
//! time, and the same in virtual time.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use lab::{Host, Lab, Limits, Link};
use lightship_overlay::{DirectPolicy, Routes, Shape, Topology, Traffic};
use lightship_relay::shuffle::{Load, Shuffle, Site};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{Row, arguments, figures, run_rows_with, said};
use crate::Result;
use crate::links::retransmitted_segments;
use crate::results::Results;
use crate::settings::Settings;

/// The place of these results: over the link, and in virtual time.
pub(super) const WHAT: &str = "hosts";
pub(super) const LINK: &str = "100mbit";
pub(super) const ALIKE: &str = "100mbit, simulated";
/// The same with a limit of processor time for each host.
pub(super) const LIMITED: &str = "100mbit, 0.025 of a processor";
/// All 60 together have three quarters of two processors: what is left is for the kernel, which carries their packets.
const PROCESSORS: f64 = 0.025;
const NODES: usize = 60;
/// A run takes less than a minute.
const PATIENCE: Duration = Duration::from_secs(600);
/// Every node's messages, and the rate of the link of a host, which a connection can fill.
pub(super) const LIKE: &str = "simulate --nodes 60 --messages-per-node 300 --period 1s --node-rate 100Mbit/s \
                               --link-rate 100Mbit/s";

/// Each node on a host of its own.
struct Sites {
    sites: Vec<Site>,
    runtimes: Vec<Runtime>,
}

impl Sites {
    fn on(hosts: &[Host], is_limited: bool) -> Result<Self> {
        // The threads of a runtime inherit the network and the limits of the thread that builds it.
        let build = || Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let build = |host: &Host| if is_limited { host.run_limited(build) } else { host.run(build) };
        let runtimes: Vec<Runtime> = hosts.iter().map(build).collect::<Result<_, _>>()?;
        let site = |(host, runtime): (&Host, &Runtime)| Site {
            address: host.address(),
            runtime: runtime.handle().clone(),
        };
        Ok(Self { sites: hosts.iter().zip(&runtimes).map(site).collect(), runtimes })
    }

    fn end(self) {
        // Their threads may belong to the hosts' groups, whose processes are killed with the hosts.
        self.runtimes.into_iter().for_each(|runtime| runtime.shutdown_timeout(PATIENCE));
    }
}

/// Room for the neighbours of all hosts in the kernel's table, which is that of the whole machine. The earlier limits come
/// back when it is dropped.
struct Neighbours {
    limits: Vec<(PathBuf, String)>,
}

impl Neighbours {
    /// Every host may send to every other, and the table is cleared while it is above its middle limit.
    fn of_all(hosts: usize) -> Result<Self> {
        let room = 2 * hosts * hosts;
        // What was changed is undone if the next change fails.
        let mut earlier = Self { limits: Vec::new() };
        // The largest first: the others are below it.
        for name in ["gc_thresh3", "gc_thresh2", "gc_thresh1"] {
            let path = PathBuf::from("/proc/sys/net/ipv4/neigh/default").join(name);
            let now = fs::read_to_string(&path)?;
            if now.trim().parse::<usize>()? < room {
                fs::write(&path, room.to_string()).map_err(|error| format!("{}: {error}", path.display()))?;
                earlier.limits.push((path, now));
            }
        }
        Ok(earlier)
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        for (path, limit) in self.limits.iter().rev() {
            // Fails only if it could not be changed either.
            let _ = fs::write(path, limit);
        }
    }
}

/// What is counted before and after a run.
struct Counters {
    retransmitted_segments: u64,
    /// Ticks of all processors of this machine, and those in which they worked.
    ticks: u64,
    busy_ticks: u64,
}

impl Counters {
    fn read(hosts: &[Host]) -> Result<Self> {
        let segments: Vec<u64> = hosts.iter().map(retransmitted_segments).collect::<Result<_>>()?;
        let stat = fs::read_to_string("/proc/stat")?;
        let of_all = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
        let ticks = of_all.ok_or("/proc/stat has no sum")?.split_whitespace().map(str::parse);
        // user, nice, system, idle, iowait, irq, softirq, steal; the guests' are in user and nice too.
        let ticks: Vec<u64> = ticks.take(8).collect::<Result<_, _>>()?;
        let all: u64 = ticks.iter().sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        Ok(Self { retransmitted_segments: segments.iter().sum(), ticks: all, busy_ticks: all - idle })
    }
}

/// Part of a JSON object, as its type.
fn part<T: serde::de::DeserializeOwned>(said: &Value, pointer: &str) -> Result<T> {
    let value = said.pointer(pointer).ok_or_else(|| format!("the simulation has no {pointer}"))?;
    Ok(serde_json::from_value(value.clone())?)
}

/// Runs the shuffle of a simulation between hosts, and returns what it says, in the same form.
fn between(hosts: &[Host], is_limited: bool, simulated: &Value) -> Result<Value> {
    let shape: Shape = part(simulated, "/topology/shape")?;
    let traffic: Traffic = part(simulated, "/parameters/traffic")?;
    let pool: DirectPolicy = part(simulated, "/parameters/pool")?;
    let seed: u64 = part(simulated, "/seed")?;
    let warm: bool = part(simulated, "/parameters/warm")?;
    let load = Load {
        // The traffic of another seed, as in the simulation.
        last: warm.then(|| traffic.drawn(NODES, seed.wrapping_add(1))),
        traffic,
        pool,
        queue_messages: part(simulated, "/parameters/queue_messages")?,
        window_messages: part(simulated, "/parameters/window_messages")?,
        period: Duration::from_secs_f64(part(simulated, "/parameters/period_seconds")?),
        seed,
    };
    let shuffle = Shuffle::new(Routes::new(Topology::new(shape, NODES)?), load);
    let sites = Sites::on(hosts, is_limited)?;
    let before = Counters::read(hosts)?;
    let run = async { tokio::time::timeout(PATIENCE, shuffle.run(&sites.sites, |_| {})).await };
    let done = Runtime::new()?.block_on(run);
    let after = Counters::read(hosts)?;
    sites.end();
    let unfinished = |_| format!("{} of {} messages arrived", shuffle.arrived(), shuffle.messages());
    let done = done.map_err(unfinished)??;
    let forwards: u64 = done.per_node.iter().map(|node| node.forwarded).sum();
    let mut said = simulated.clone();
    said["seconds"] = done.seconds.into();
    said["forwards_per_message"] = (forwards as f64 / shuffle.messages() as f64).into();
    said["reconnections"] = done.reconnections.into();
    said["sockets_max"] = done.per_node.iter().map(|node| node.sockets_max).max().into();
    let segments = after.retransmitted_segments - before.retransmitted_segments;
    said["retransmitted_segments"] = segments.into();
    let busy = (after.busy_ticks - before.busy_ticks) as f64;
    said["processors_busy"] = (busy / (after.ticks - before.ticks).max(1) as f64).into();
    said["per_node"] = serde_json::to_value(&done.per_node)?;
    // That of the simulation; without it there is no floor.
    said["parameters"]["network"] = Value::Null;
    Ok(said)
}

/// Runs every row in virtual time and between hosts.
pub(super) fn measure(settings: &Settings, results: &mut Results, rows: &[Row]) -> Result<()> {
    let wanted: Vec<Row> = rows.iter().copied().filter(|(name, ..)| settings.wants(name)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = wanted.iter().map(|row| (row.0, arguments(LIKE, *row))).collect();
    run_rows_with(settings, results, [WHAT, ALIKE], &rows, |arguments, seed| {
        figures(&said(arguments, seed)?)
    })?;
    let _room = Neighbours::of_all(NODES)?;
    let lab = Lab::new()?;
    let link: Link = LINK.parse()?;
    let hosts = lab.hosts(NODES, &link)?;
    for host in &hosts {
        host.limit(&Limits { cpus: Some(PROCESSORS), ..Limits::default() })?;
    }
    for (how, is_limited) in [(LINK, false), (LIMITED, true)] {
        run_rows_with(settings, results, [WHAT, how], &rows, |arguments, seed| {
            figures(&between(&hosts, is_limited, &said(arguments, seed)?)?)
        })?;
    }
    Ok(())
}
