//! The evidence of a verdict, in sentences.

use crate::disk::AccessOrder;
use crate::figure::Figure;
use crate::footprint::{Footprint, HostFootprint};
use crate::part::Part;
use crate::verdict::{Limit, has_inferred_round_trips};

/// A disk or link that takes at least this many times as long as its calibrated speed predicts is slow, or used by
/// others.
const SLOWER: f64 = 1.5;
/// Another host with at least this part of the same use shares the limit.
const SIMILAR: f64 = 0.8;

/// Acknowledgements are worth a sentence if they were awaited for this part of the run.
const ROUND_TRIPS_SHOWN: f64 = 0.1;

/// Formats nanoseconds as a time for reports.
pub(crate) fn seconds(ns: f64) -> String {
    let seconds = ns / 1e9;
    if seconds >= 0.995 {
        format!("{seconds:.1} s")
    } else if seconds >= 0.995e-3 {
        format!("{:.0} ms", seconds * 1e3)
    } else {
        format!("{:.0} µs", seconds * 1e6)
    }
}

fn megabytes(bytes: f64, ns: f64) -> String {
    format!("{:.1} MB/s", bytes / 1e6 / (ns / 1e9).max(1e-9))
}

/// The evidence of a verdict.
pub(crate) fn evidence(footprint: &Footprint, limit: Limit) -> Vec<String> {
    let mut found = Vec::new();
    let run_ns = footprint.run_ns as f64;
    if let Some(host) = footprint.bottleneck_host() {
        match limit {
            Limit::Cpu | Limit::CpuContended => cpu(footprint, host, limit, run_ns, &mut found),
            Limit::DiskSequential | Limit::DiskRandom => disk(footprint, host, run_ns, &mut found),
            Limit::Network | Limit::Sender | Limit::Receiver => sockets(host, limit, run_ns, &mut found),
            Limit::RoundTrips => round_trips(footprint, host, &mut found),
            Limit::Lock => {
                if let Some(wait) = host.value(Figure::LockWaitNs) {
                    found.push(format!("Sessions waited {} for locks.", seconds(wait)));
                }
            }
            Limit::Queue => {
                let waits = &footprint.known.queued_ns;
                let longest = waits.iter().map(|(began, ended)| ended.saturating_sub(*began)).max();
                let longest = seconds(longest.unwrap_or(0) as f64);
                found.push(match waits.len() {
                    1 => format!("It waited once for room among other queries, for {longest}."),
                    count => format!("It waited {count} times for room, {longest} at the longest."),
                });
            }
            Limit::Memory => {
                if let Some(wait) = host.host_figures.get(&Figure::PressureMemorySomeNs) {
                    found.push(format!("Tasks of {} waited {} for memory.", host.host, seconds(wait.value)));
                }
            }
            Limit::Inefficient | Limit::Mixed | Limit::Unknown => idle(host, run_ns, &mut found),
        }
    }
    doubts(footprint, limit, &mut found);
    found
}

fn cpu(footprint: &Footprint, host: &HostFootprint, limit: Limit, run_ns: f64, found: &mut Vec<String>) {
    let Some(own) = host.cpu_ns() else { return };
    let of = host.processors.map_or(String::new(), |processors| format!(" of {processors}"));
    match host.host_cpu_ns() {
        Some(all) => found.push(format!(
            "{:.1}{of} processors of {} were busy, {:.1} with this query.",
            all / run_ns,
            host.host,
            own / run_ns
        )),
        None => found.push(format!("The query used {:.1}{of} processors of {}.", own / run_ns, host.host)),
    }
    let quota = host.value(Figure::QuotaWaitNs).unwrap_or(0.0);
    if let Some(wait) = host.value(Figure::RunQueueWaitNs).filter(|wait| *wait > 0.01 * run_ns) {
        found.push(format!("Its threads waited {} for a processor.", seconds(wait)));
        if quota > 0.01 * run_ns {
            found.push(format!(
                "Of that, the limit of its control group held them back for {}.",
                seconds(quota)
            ));
        }
    }
    if limit == Limit::CpuContended {
        let wait = |other: &HostFootprint| other.value(Figure::RunQueueWaitNs);
        if let Some(waited) = wait(host) {
            others(footprint, host, waited, "wait for processors", wait, found);
        }
    } else {
        others(footprint, host, own, "processor time", |other| other.cpu_ns(), found);
    }
}

fn disk(footprint: &Footprint, host: &HostFootprint, run_ns: f64, found: &mut Vec<String>) {
    let waited = host.value(Figure::DiskWaitNs);
    let part = footprint.division.ns(Part::DiskSequential) + footprint.division.ns(Part::DiskRandom);
    if let Some(waited) = waited {
        found.push(format!("Threads of the query waited {} for the disk.", seconds(waited)));
    }
    if let Some(busy) = host.disk_busy_ns {
        found.push(format!(
            "The busiest disk of {} was busy for {:.0}% of the time.",
            host.host,
            100.0 * busy / run_ns
        ));
    }
    let bytes =
        [Figure::DiskReadBytes, Figure::DiskWrittenBytes].map(|figure| host.value(figure).unwrap_or(0.0));
    let bytes: f64 = bytes.iter().sum();
    let time = part as f64;
    if bytes > 0.0 && time > 0.0 {
        found.push(format!("The query moved {:.1} MB at {}.", bytes / 1e6, megabytes(bytes, time)));
    }
    if let Some(model) = host.model.disk_ns().filter(|model| *model > 0.0 && time > SLOWER * model) {
        found.push(format!(
            "At the calibrated speed it would take {}: the disk was slower than when it was calibrated, or others \
             used it.",
            seconds(model)
        ));
    }
    if host.access_order == Some(AccessOrder::MeanSize) {
        found.push("Sequential and random accesses are told apart by the mean size of requests.".into());
    } else if host.access_order == Some(AccessOrder::Assumed) {
        found.push("The order of accesses is not known; they are taken as sequential.".into());
    }
    let wait = |other: &HostFootprint| other.value(Figure::DiskWaitNs);
    if let Some(waited) = waited {
        others(footprint, host, waited, "wait for disks", wait, found);
    }
}

fn sockets(host: &HostFootprint, limit: Limit, run_ns: f64, found: &mut Vec<String>) {
    let value = |figure| host.value(figure);
    if let Some((received, sent)) = value(Figure::NetworkReceivedBytes).zip(value(Figure::NetworkSentBytes)) {
        found.push(format!(
            "{} received {} and sent {} for the query.",
            host.host,
            megabytes(received, run_ns),
            megabytes(sent, run_ns)
        ));
    }
    let times = [
        (Figure::SocketBusyNs, "TCP had data to send for"),
        (Figure::SocketReceiverLimitedNs, "The receiver's window was full for"),
        (Figure::SocketSendBufferLimitedNs, "The send buffer was full for"),
        (Figure::ClientWaitNs, "The database waited for its client for"),
    ];
    for (figure, what) in times {
        if let Some(ns) = value(figure).filter(|ns| *ns >= 0.01 * run_ns) {
            found.push(format!("{what} {}.", seconds(ns)));
        }
    }
    if let Some(model) = host.model.network_duplex_ns.filter(|_| limit == Limit::Receiver) {
        found.push(format!("The link needs {} for the bytes at its calibrated rate.", seconds(model)));
    } else if let (Some(model), Some(busy)) = (host.model.network_duplex_ns, value(Figure::SocketBusyNs))
        && busy > 0.5 * run_ns
        && model < run_ns / SLOWER
    {
        found.push(format!(
            "At the calibrated rate the bytes would take {}: the link was slower, or others used it.",
            seconds(model)
        ));
    }
    if let Some(segments) = value(Figure::SocketRetransmits).filter(|segments| *segments >= 1.0) {
        found.push(format!("TCP sent {segments:.0} segments again."));
    }
}

fn round_trips(footprint: &Footprint, host: &HostFootprint, found: &mut Vec<String>) {
    if has_inferred_round_trips(footprint) {
        return;
    }
    let time = footprint.division.ns(Part::RoundTrips) as f64;
    let hosts = footprint.hosts.iter();
    let switches = hosts.filter_map(|host| host.value(Figure::VoluntarySwitches)).reduce(f64::max);
    let known = footprint.known.round_trips.map(|count| count as f64);
    if let Some(count) = known.or(switches).filter(|count| *count >= 1.0) {
        let each = seconds(time / count);
        found.push(format!("About {count:.0} exchanges, one after the other, waited {each} each."));
    }
    let bytes = [
        Figure::NetworkReceivedBytes,
        Figure::NetworkSentBytes,
        Figure::LoopbackReceivedBytes,
        Figure::LoopbackSentBytes,
    ]
    .map(|figure| host.value(figure).unwrap_or(0.0));
    let rate = megabytes(bytes.iter().sum(), footprint.run_ns as f64);
    found.push(format!("{} moved only {rate}: the rate of the link is not the limit.", host.host));
}

fn idle(host: &HostFootprint, run_ns: f64, found: &mut Vec<String>) {
    if let Some(own) = host.cpu_ns() {
        found.push(format!("The query used {:.2} processors of {}.", own / run_ns, host.host));
    }
    if let Some(busy) = host.disk_busy_ns {
        found.push(format!("Its busiest disk was busy for {:.0}% of the time.", 100.0 * busy / run_ns));
    }
}

/// Compares the limiting host with the others: is it alone?
fn others(
    footprint: &Footprint,
    host: &HostFootprint,
    value: f64,
    what: &str,
    of: impl Fn(&HostFootprint) -> Option<f64>,
    found: &mut Vec<String>,
) {
    let others = footprint.hosts.iter().filter(|other| other.host != host.host);
    let values: Vec<f64> = others.filter_map(of).collect();
    let Some(most) = values.iter().copied().reduce(f64::max) else { return };
    let similar = values.iter().filter(|other| **other >= SIMILAR * value).count();
    found.push(match similar {
        0 => format!("No other host has more than {} of {what}.", seconds(most)),
        1 => format!("One other host has about the same {what}."),
        _ => format!("{similar} other hosts have about the same {what}."),
    });
}

/// What weakens a verdict, and what was expected.
fn doubts(footprint: &Footprint, limit: Limit, found: &mut Vec<String>) {
    let parts = limit.parts();
    let is_shared = footprint.division.parts.iter().any(|time| time.is_shared && parts.contains(&time.part));
    if is_shared {
        found.push("A part of this is shared with other work on the same host or process.".into());
    }
    if has_inferred_round_trips(footprint)
        && footprint.division.fraction(Part::RoundTrips) >= ROUND_TRIPS_SHOWN
    {
        found.push(
            "TCP waited for acknowledgements of small messages, which receivers delay by up to 40 ms; the query \
             may not have waited for them."
                .into(),
        );
    }
    if let Some(predicted) = footprint.known.predicted_ns {
        let more = (footprint.run_ns as f64 / (predicted as f64).max(1.0) - 1.0) * 100.0;
        found.push(format!("Predicted were {}; the run took {more:+.0}%.", seconds(predicted as f64)));
    }
    for host in &footprint.hosts {
        if !host.missing.is_empty() {
            let count = host.missing.len();
            let have = if count == 1 { "subject" } else { "subjects" };
            found.push(format!("No samples of {count} {have} of {}.", host.host));
        }
        if host.lost > 0 {
            let all = host.lost.saturating_add(host.samples);
            found.push(format!("{} of {all} samples of {} were lost.", host.lost, host.host));
        }
    }
}
