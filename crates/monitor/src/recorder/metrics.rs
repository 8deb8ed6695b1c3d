//! Metrics in the text format that Prometheus reads.

use std::fmt::Error;
use std::sync::atomic::AtomicU64;

use lightship_usage::{Figure, Limit, Part};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::Recorder;
use super::hosts::{HostOverview, HostState};
use super::state::State;

/// The media type of [`Recorder::metrics`].
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter<f64, AtomicU64>>;
type Gauges = Family<Labels, Gauge<f64, AtomicU64>>;

/// Counters of hosts: the figure, its metric, the label that tells it from others of the same metric, and its value.
const HOST_COUNTERS: [(Figure, usize, &str); 17] = [
    (Figure::CpuUserNs, CPU, "user"),
    (Figure::CpuSystemNs, CPU, "system"),
    (Figure::CpuStolenNs, CPU, "stolen"),
    (Figure::CpuIdleNs, CPU, "idle"),
    (Figure::RunQueueWaitNs, RUN_QUEUE, ""),
    (Figure::DiskReadBytes, DISK_BYTES, "read"),
    (Figure::DiskWrittenBytes, DISK_BYTES, "written"),
    (Figure::DiskReads, DISK_REQUESTS, "read"),
    (Figure::DiskWrites, DISK_REQUESTS, "written"),
    (Figure::NetworkReceivedBytes, NETWORK_BYTES, "received"),
    (Figure::NetworkSentBytes, NETWORK_BYTES, "sent"),
    (Figure::LoopbackReceivedBytes, LOOPBACK_BYTES, "received"),
    (Figure::LoopbackSentBytes, LOOPBACK_BYTES, "sent"),
    (Figure::SocketRetransmits, RETRANSMITS, ""),
    (Figure::PressureCpuSomeNs, PRESSURE, "cpu"),
    (Figure::PressureIoSomeNs, PRESSURE, "io"),
    (Figure::PressureMemorySomeNs, PRESSURE, "memory"),
];

const CPU: usize = 0;
const RUN_QUEUE: usize = 1;
const DISK_BYTES: usize = 2;
const DISK_REQUESTS: usize = 3;
const NETWORK_BYTES: usize = 4;
const LOOPBACK_BYTES: usize = 5;
const RETRANSMITS: usize = 6;
const PRESSURE: usize = 7;

/// The metrics of [`HOST_COUNTERS`]: name without unit, help, unit, label.
const HOST_METRICS: [(&str, &str, Option<Unit>, &str); 8] = [
    ("host_cpu", "Processor time of a host, of all processors together", Some(Unit::Seconds), "mode"),
    ("host_run_queue_wait", "Time for which threads waited for a processor", Some(Unit::Seconds), ""),
    ("host_disk", "Bytes that disks read and wrote", Some(Unit::Bytes), "direction"),
    ("host_disk_requests", "Requests that disks completed", None, "direction"),
    ("host_network", "Bytes over the network, without loopback", Some(Unit::Bytes), "direction"),
    ("host_loopback", "Bytes over loopback", Some(Unit::Bytes), "direction"),
    ("host_tcp_retransmits", "Segments that TCP sent again", None, ""),
    ("host_pressure", "Time for which some task waited", Some(Unit::Seconds), "resource"),
];

impl Recorder {
    /// The metrics of hosts and queries as of `now_ns`, in the text format of OpenMetrics ([`METRICS_CONTENT_TYPE`]).
    ///
    /// # Errors
    /// If a metric can't be written.
    pub fn metrics(&self, now_ns: u64) -> Result<String, Error> {
        let registry = self.state().registry(now_ns);
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl State {
    fn registry(&self, now_ns: u64) -> Registry {
        let overview = self.overview(now_ns);
        let mut registry = Registry::with_prefix("lightship");
        self.host_counters(&mut registry);
        host_gauges(&mut registry, &overview.hosts);
        host_datagrams(&mut registry, &overview.hosts);
        let collector = overview.collector;
        let rejected = [
            ("forged", collector.forged),
            ("malformed", collector.malformed),
            ("unconfirmed", collector.unconfirmed),
            ("old_run", collector.old_runs),
            ("host_refused", collector.refused),
        ];
        counters(
            &mut registry,
            "collector_datagrams_rejected",
            "Datagrams that belong to no host",
            "reason",
            rejected,
        );
        let queries = &overview.queries;
        let fates = [
            ("restored", queries.restored),
            ("began", queries.began),
            ("ended", queries.ended),
            ("failed", queries.failed),
            ("assessed", queries.assessed),
            ("assessed_late", queries.assessed_late),
            ("not_assessed", queries.not_assessed),
            ("forgotten", queries.forgotten),
        ];
        counters(
            &mut registry,
            "queries",
            "Queries by what became of them; one may count in several",
            "event",
            fates,
        );
        let by_limit = queries.by_limit.iter().map(|(limit, count)| (limit_name(*limit), *count));
        counters(
            &mut registry,
            "queries_limited",
            "Assessed queries by what limited them",
            "limit",
            by_limit,
        );
        let seconds = Counters::default();
        for (part, value) in &queries.seconds_by_part {
            seconds.get_or_create(&vec![("part", part_name(*part))]).inc_by(*value);
        }
        let help = "Run time of assessed queries by part";
        registry.register_with_unit("query_time", help, Unit::Seconds, seconds);
        let recorder = &overview.recorder;
        for (name, help, value) in [
            ("queries_running", "Queries that run", recorder.queries_running),
            ("queries_waiting", "Queries that ended and were not assessed yet", recorder.queries_waiting),
            ("recorder_samples_bytes", "Memory of samples", recorder.sample_bytes),
        ] {
            let gauge = Gauge::<f64, AtomicU64>::default();
            gauge.set(value as f64);
            registry.register(name, help, gauge);
        }
        let dropped = [
            ("arrivals", recorder.arrivals_dropped),
            ("samples_refused", recorder.samples_refused),
            ("footprints", queries.footprints_dropped),
        ];
        if let Some(history) = &overview.history {
            let gauge = Gauge::<f64, AtomicU64>::default();
            gauge.set(f64::from(u8::from(history.error.is_some())));
            registry.register(
                "history_failing",
                "1 if samples can't be written to disk, 0 if they can",
                gauge,
            );
            let lost = Counter::<f64, AtomicU64>::default();
            lost.inc_by(history.lost as f64);
            registry.register("history_samples_lost", "Samples that are not on disk because of errors", lost);
        }
        counters(&mut registry, "recorder_dropped", "What the recorder had no room for", "what", dropped);
        registry
    }

    /// The counters of the last sample of each host. Those that can't be had are left out.
    fn host_counters(&self, registry: &mut Registry) {
        let families: [Counters; HOST_METRICS.len()] = Default::default();
        for host in self.hosts.keys() {
            for (figure, metric, value) in HOST_COUNTERS {
                let Some(count) = self.last_figure(host, figure) else { continue };
                let (Some((_, _, unit, label)), Some(family)) =
                    (HOST_METRICS.get(metric), families.get(metric))
                else {
                    continue;
                };
                let is_time = matches!(unit, Some(Unit::Seconds));
                let count = if is_time { count as f64 / 1e9 } else { count as f64 };
                let mut labels: Labels = vec![("host", host.clone())];
                if !label.is_empty() {
                    labels.push((label, value.to_owned()));
                }
                family.get_or_create(&labels).inc_by(count);
            }
        }
        for ((name, help, unit, _), family) in HOST_METRICS.into_iter().zip(families) {
            match unit {
                Some(unit) => registry.register_with_unit(name, help, unit, family),
                None => registry.register(name, help, family),
            }
        }
    }
}

fn host_gauges(registry: &mut Registry, hosts: &[HostOverview]) {
    type Value = fn(&HostOverview) -> Option<f64>;
    let gauges: [(&str, &str, Option<Unit>, Value); 8] = [
        ("host_up", "1 if samples of the host come, 0 if not", None, |host| {
            Some(f64::from(u8::from(host.state == HostState::Live)))
        }),
        ("host_silent", "Time since the last datagram", Some(Unit::Seconds), |host| {
            Some(host.silent_ns as f64 / 1e9)
        }),
        ("host_processors", "Processors", None, |host| {
            Some(f64::from(host.facts.processors)).filter(|processors| *processors > 0.0)
        }),
        ("host_memory_used", "Used memory", Some(Unit::Bytes), |host| {
            host.memory_used_bytes.map(|bytes| bytes as f64)
        }),
        ("host_memory_available", "Available memory", Some(Unit::Bytes), |host| {
            host.memory_available_bytes.map(|bytes| bytes as f64)
        }),
        (
            "host_clock_offset",
            "By how much the clock is ahead of the collector's",
            Some(Unit::Seconds),
            |host| host.clock.offset_ns.map(|ns| ns as f64 / 1e9),
        ),
        ("host_clock_bound", "By how much the offset may be wrong", Some(Unit::Seconds), |host| {
            host.clock.bound_ns.map(|ns| ns as f64 / 1e9)
        }),
        ("host_clock_doubtful", "1 if the clock contradicts itself, 0 if not", None, |host| {
            Some(f64::from(u8::from(host.clock.is_doubtful)))
        }),
    ];
    for (name, help, unit, value) in gauges {
        let family = Gauges::default();
        for host in hosts {
            if let Some(value) = value(host) {
                family.get_or_create(&vec![("host", host.name.clone())]).set(value);
            }
        }
        match unit {
            Some(unit) => registry.register_with_unit(name, help, unit, family),
            None => registry.register(name, help, family),
        }
    }
}

fn host_datagrams(registry: &mut Registry, hosts: &[HostOverview]) {
    let family = Counters::default();
    for host in hosts {
        let datagrams = host.datagrams;
        for (result, count) in [
            ("received", datagrams.received),
            ("lost", datagrams.lost),
            ("doubled", datagrams.doubled),
            ("reordered", datagrams.reordered),
        ] {
            let labels = vec![("host", host.name.clone()), ("result", result.to_owned())];
            family.get_or_create(&labels).inc_by(count as f64);
        }
    }
    registry.register("host_datagrams", "Datagrams of a host; one may count in several results", family);
}

fn counters(
    registry: &mut Registry,
    name: &str,
    help: &str,
    label: &'static str,
    values: impl IntoIterator<Item = (impl Into<String>, u64)>,
) {
    let family = Counters::default();
    for (value, count) in values {
        family.get_or_create(&vec![(label, value.into())]).inc_by(count as f64);
    }
    registry.register(name, help, family);
}

/// The name in JSON, which is a plain word.
fn plain(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "unknown".to_owned(),
    }
}

fn limit_name(limit: Limit) -> String {
    plain(limit)
}

fn part_name(part: Part) -> String {
    plain(part)
}
