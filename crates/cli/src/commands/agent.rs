//! `lightship agent`: samples this host for collectors elsewhere.

use std::net::SocketAddr;

use clap::Args;
use lightship_monitor::{
    Agent, AgentCounts, AgentEvent, AgentOptions, HostSpeedsStore, Watch, run_agent, unix_ns,
};
use lightship_sources::location::NODE_PORT;
use tokio::sync::watch;

use super::usage::{TokenArgs, address, host_name, interval_ns};
use crate::error::CliError;
use crate::size::{Limit, Seconds, Size, grouped};

/// Sample this host and its processes for a node or `lightship usage watch`
///
/// Each second, the agent counts processor time, waits, disk and network bytes, sockets, memory and
/// pressure, of the host and of processes, and sends them by UDP. It takes less than 1% of a
/// processor. Figures that this system does not give are missing, never 0.
#[derive(Args)]
#[command(after_long_help = "Examples:
  lightship agent 10.0.0.1 --token-file token
  lightship agent 10.0.0.1 10.0.0.2 --token-file token --process postgres --interval 100ms

An agent that may not look into the processes of others (it needs their user, or
root) counts their processor time only.")]
pub(crate) struct AgentArgs {
    /// The collectors: nodes with --usage, or `lightship usage watch`, as HOST[:PORT].
    #[arg(required = true, value_name = "COLLECTOR")]
    collectors: Vec<String>,
    /// Name of this host, which no other agent of these collectors may have. [default: the host's name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Count the processes with this name. Can be repeated. [default: those that use the most processor time]
    #[arg(long, value_name = "NAME")]
    process: Vec<String>,
    /// Count the process with this number and its descendants. Can be repeated.
    #[arg(long, value_name = "PID", conflicts_with = "process")]
    pid: Vec<u32>,
    /// The most processes.
    #[arg(long, default_value_t = 300, value_name = "N")]
    processes_max: usize,
    /// Time between two samples, from 10ms to 1h.
    #[arg(long, default_value = "1s", value_name = "DURATION")]
    interval: Limit,
    #[command(flatten)]
    token: TokenArgs,
}

pub(crate) async fn cmd_agent(
    args: AgentArgs,
    json: bool,
    mut stop: watch::Receiver<bool>,
) -> Result<(), CliError> {
    let collectors = args.collectors.iter().map(|text| address("COLLECTOR", text, Some(NODE_PORT)));
    let collectors: Vec<SocketAddr> = collectors.collect::<Result<_, _>>()?;
    let token = args.token.token(&collectors)?;
    let watch = match (args.process, args.pid) {
        (names, _) if !names.is_empty() => Watch::Names(names),
        (_, pids) if !pids.is_empty() => Watch::Trees(pids),
        _ => Watch::Busiest,
    };
    let host = args.host.unwrap_or_else(host_name);
    let options = AgentOptions {
        watch,
        processes_max: args.processes_max,
        interval_ns: interval_ns(args.interval)?,
        ..AgentOptions::new(host)
    };
    let agent = Agent::new(options, unix_ns()).with_speeds(HostSpeedsStore::own_speeds());
    let counter = agent.counter();
    crate::say!(
        "sampling {} every {}",
        agent.options().host,
        Seconds(agent.options().interval_ns as f64 / 1e9)
    );
    // The sender stays, so that the list does.
    let (_collectors, targets) = watch::channel(collectors);
    let ended = tokio::select! {
        ended = run_agent(agent, targets, &token, say) => {
            ended.map(|_| ()).map_err(|error| CliError::internal(format!("can't sample this host: {error}")))
        }
        // A closed channel also means to stop.
        _ = stop.wait_for(|&asked| asked) => Ok(()),
    };
    let AgentCounts { samples, datagrams, datagram_bytes, answers, .. } = counter.get();
    if json {
        let report = serde_json::json!({
            "samples": samples, "datagrams": datagrams, "datagram_bytes": datagram_bytes, "answers": answers,
        });
        crate::say!("{report}");
    } else {
        crate::say!(
            "{} samples in {} datagrams ({}); {} answers of collectors",
            grouped(samples),
            grouped(datagrams),
            Size(datagram_bytes),
            grouped(answers)
        );
    }
    ended
}

fn say(event: AgentEvent) {
    match event {
        AgentEvent::Accepted { collector } => crate::say!("{collector} accepts the samples"),
        AgentEvent::NameTaken { collector } => {
            crate::say!(
                "warning: {collector} has another agent with the name of this host; give one with --host"
            );
        }
        AgentEvent::Forged { collector } => {
            crate::say!("warning: {collector} has another token; its answers are ignored");
        }
        _ => {}
    }
}
