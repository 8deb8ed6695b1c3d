//! Encodes the metrics of a node's part of a plan.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::metrics::{
    Count, CustomMetricValue, Gauge, Label, Metric, MetricValue, MetricsSet, PruningMetrics, RatioMetrics,
    Time, Timestamp,
};
use datafusion_distributed::{
    AvgLatencyMetric, BytesCounterMetric, FirstLatencyMetric, MaxGaugeMetric, MaxLatencyMetric,
    MinLatencyMetric, TaskMetrics,
};
use prost::Message;

/// The metrics of each operator, in pre-order, and of the whole part.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskReport {
    #[prost(message, repeated, tag = "1")]
    operators: Vec<Set>,
    #[prost(message, required, tag = "2")]
    task: Set,
}

#[derive(Clone, PartialEq, Message)]
struct Set {
    #[prost(message, repeated, tag = "1")]
    metrics: Vec<Measure>,
}

#[derive(Clone, PartialEq, Message)]
struct Measure {
    /// See [`kind`].
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(uint64, repeated, tag = "3")]
    values: Vec<u64>,
    #[prost(uint64, optional, tag = "4")]
    partition: Option<u64>,
    /// Names and values, alternating.
    #[prost(string, repeated, tag = "5")]
    labels: Vec<String>,
}

impl From<&TaskMetrics> for TaskReport {
    fn from(metrics: &TaskMetrics) -> Self {
        Self {
            operators: metrics.pre_order_plan_metrics.iter().map(Set::from).collect(),
            task: Set::from(&metrics.task_metrics),
        }
    }
}

impl TaskReport {
    pub(crate) fn to_metrics(&self) -> TaskMetrics {
        TaskMetrics {
            pre_order_plan_metrics: self.operators.iter().map(Set::to_metrics).collect(),
            task_metrics: self.task.to_metrics(),
        }
    }
}

impl From<&MetricsSet> for Set {
    fn from(set: &MetricsSet) -> Self {
        Self { metrics: set.iter().filter_map(|metric| Measure::of(metric)).collect() }
    }
}

impl Set {
    fn to_metrics(&self) -> MetricsSet {
        let mut set = MetricsSet::new();
        self.metrics.iter().filter_map(Measure::to_metric).for_each(|metric| set.push(Arc::new(metric)));
        set
    }
}

/// Numbers of the kinds. They never change between versions.
mod kind {
    pub(super) const OUTPUT_ROWS: u32 = 1;
    pub(super) const ELAPSED_COMPUTE: u32 = 2;
    pub(super) const SPILL_COUNT: u32 = 3;
    pub(super) const SPILLED_BYTES: u32 = 4;
    pub(super) const OUTPUT_BYTES: u32 = 5;
    pub(super) const OUTPUT_BATCHES: u32 = 6;
    pub(super) const SPILLED_ROWS: u32 = 7;
    pub(super) const CURRENT_MEMORY: u32 = 8;
    pub(super) const COUNT: u32 = 9;
    pub(super) const GAUGE: u32 = 10;
    pub(super) const PEAK_MEMORY: u32 = 11;
    pub(super) const TIME: u32 = 12;
    pub(super) const START: u32 = 13;
    pub(super) const END: u32 = 14;
    pub(super) const PRUNING: u32 = 15;
    pub(super) const RATIO: u32 = 16;
    pub(super) const BYTES: u32 = 17;
    pub(super) const MAX_GAUGE: u32 = 18;
    pub(super) const MIN_LATENCY: u32 = 19;
    pub(super) const MAX_LATENCY: u32 = 20;
    pub(super) const AVG_LATENCY: u32 = 21;
    pub(super) const FIRST_LATENCY: u32 = 22;
}

impl Measure {
    /// `None` for a kind that has no number here, such as percentiles.
    fn of(metric: &Metric) -> Option<Self> {
        use MetricValue as V;
        let (kind, name, values) = match metric.value() {
            V::OutputRows(v) => (kind::OUTPUT_ROWS, "", vec![v.value()]),
            V::ElapsedCompute(v) => (kind::ELAPSED_COMPUTE, "", vec![v.value()]),
            V::SpillCount(v) => (kind::SPILL_COUNT, "", vec![v.value()]),
            V::SpilledBytes(v) => (kind::SPILLED_BYTES, "", vec![v.value()]),
            V::OutputBytes(v) => (kind::OUTPUT_BYTES, "", vec![v.value()]),
            V::OutputBatches(v) => (kind::OUTPUT_BATCHES, "", vec![v.value()]),
            V::SpilledRows(v) => (kind::SPILLED_ROWS, "", vec![v.value()]),
            V::CurrentMemoryUsage(v) => (kind::CURRENT_MEMORY, "", vec![v.value()]),
            V::Count { name, count } => (kind::COUNT, name.as_ref(), vec![count.value()]),
            V::Gauge { name, gauge } => (kind::GAUGE, name.as_ref(), vec![gauge.value()]),
            V::PeakMemoryUsage { name, gauge } => (kind::PEAK_MEMORY, name.as_ref(), vec![gauge.value()]),
            V::Time { name, time } => (kind::TIME, name.as_ref(), vec![time.value()]),
            V::StartTimestamp(v) => (kind::START, "", instant(v)),
            V::EndTimestamp(v) => (kind::END, "", instant(v)),
            V::PruningMetrics { name, pruning_metrics: v } => {
                (kind::PRUNING, name.as_ref(), vec![v.pruned(), v.matched()])
            }
            V::Ratio { name, ratio_metrics: v } => (kind::RATIO, name.as_ref(), vec![v.part(), v.total()]),
            V::Custom { name, value } => {
                let (kind, values) = custom(value.as_ref())?;
                (kind, name.as_ref(), values)
            }
        };
        Some(Self {
            kind,
            name: name.to_owned(),
            values: values.into_iter().map(|value| value as u64).collect(),
            partition: metric.partition().map(|partition| partition as u64),
            labels: metric
                .labels()
                .iter()
                .flat_map(|label| [label.name().to_owned(), label.value().to_owned()])
                .collect(),
        })
    }

    /// `None` for a kind of a later version.
    fn to_metric(&self) -> Option<Metric> {
        use MetricValue as V;
        let at = |index: usize| self.values.get(index).copied().unwrap_or(0) as usize;
        let name = || self.name.clone().into();
        let value = match self.kind {
            kind::OUTPUT_ROWS => V::OutputRows(count(at(0))),
            kind::ELAPSED_COMPUTE => V::ElapsedCompute(time(at(0))),
            kind::SPILL_COUNT => V::SpillCount(count(at(0))),
            kind::SPILLED_BYTES => V::SpilledBytes(count(at(0))),
            kind::OUTPUT_BYTES => V::OutputBytes(count(at(0))),
            kind::OUTPUT_BATCHES => V::OutputBatches(count(at(0))),
            kind::SPILLED_ROWS => V::SpilledRows(count(at(0))),
            kind::CURRENT_MEMORY => V::CurrentMemoryUsage(gauge(at(0))),
            kind::COUNT => V::Count { name: name(), count: count(at(0)) },
            kind::GAUGE => V::Gauge { name: name(), gauge: gauge(at(0)) },
            kind::PEAK_MEMORY => V::PeakMemoryUsage { name: name(), gauge: gauge(at(0)) },
            kind::TIME => V::Time { name: name(), time: time(at(0)) },
            kind::START => V::StartTimestamp(self.timestamp()),
            kind::END => V::EndTimestamp(self.timestamp()),
            kind::PRUNING => {
                let pruning_metrics = PruningMetrics::new();
                pruning_metrics.add_pruned(at(0));
                pruning_metrics.add_matched(at(1));
                V::PruningMetrics { name: name(), pruning_metrics }
            }
            kind::RATIO => {
                let ratio_metrics = RatioMetrics::new();
                ratio_metrics.add_part(at(0));
                ratio_metrics.add_total(at(1));
                V::Ratio { name: name(), ratio_metrics }
            }
            other => {
                let value: Arc<dyn CustomMetricValue> = match other {
                    kind::BYTES => Arc::new(BytesCounterMetric::from_value(at(0))),
                    kind::MAX_GAUGE => Arc::new(MaxGaugeMetric::from_value(at(0))),
                    kind::MIN_LATENCY => Arc::new(MinLatencyMetric::from_nanos(at(0))),
                    kind::MAX_LATENCY => Arc::new(MaxLatencyMetric::from_nanos(at(0))),
                    kind::AVG_LATENCY => Arc::new(AvgLatencyMetric::from_raw(at(0), at(1))),
                    kind::FIRST_LATENCY => Arc::new(FirstLatencyMetric::from_nanos(at(0))),
                    _ => return None,
                };
                V::Custom { name: name(), value }
            }
        };
        let labels = self.labels.chunks_exact(2).map(|l| Label::new(l[0].clone(), l[1].clone())).collect();
        Some(Metric::new_with_labels(value, self.partition.map(|p| p as usize), labels))
    }

    fn timestamp(&self) -> Timestamp {
        let timestamp = Timestamp::new();
        if let Some(&ns) = self.values.first() {
            timestamp.set(chrono::DateTime::from_timestamp_nanos(i64::try_from(ns).unwrap_or(i64::MAX)));
        }
        timestamp
    }
}

fn custom(value: &dyn CustomMetricValue) -> Option<(u32, Vec<usize>)> {
    let value = value.as_any();
    if let Some(v) = value.downcast_ref::<BytesCounterMetric>() {
        return Some((kind::BYTES, vec![v.value()]));
    }
    if let Some(v) = value.downcast_ref::<MaxGaugeMetric>() {
        return Some((kind::MAX_GAUGE, vec![v.value()]));
    }
    if let Some(v) = value.downcast_ref::<MinLatencyMetric>() {
        return Some((kind::MIN_LATENCY, vec![v.value()]));
    }
    if let Some(v) = value.downcast_ref::<MaxLatencyMetric>() {
        return Some((kind::MAX_LATENCY, vec![v.value()]));
    }
    if let Some(v) = value.downcast_ref::<AvgLatencyMetric>() {
        return Some((kind::AVG_LATENCY, vec![v.nanos_sum(), v.count()]));
    }
    let v = value.downcast_ref::<FirstLatencyMetric>()?;
    Some((kind::FIRST_LATENCY, vec![v.value()]))
}

/// Nanoseconds since 1970; empty if it was never set.
fn instant(timestamp: &Timestamp) -> Vec<usize> {
    let ns = timestamp.value().and_then(|instant| instant.timestamp_nanos_opt());
    ns.and_then(|ns| usize::try_from(ns).ok()).into_iter().collect()
}

fn count(value: usize) -> Count {
    let count = Count::new();
    count.add(value);
    count
}

fn gauge(value: usize) -> Gauge {
    let gauge = Gauge::new();
    gauge.set(value);
    gauge
}

fn time(ns: usize) -> Time {
    let time = Time::new();
    if ns > 0 {
        // Adding a duration of 0 would count as 1 ns.
        time.add_duration(Duration::from_nanos(ns as u64));
    }
    time
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_metrics_decode_to_the_same() {
        let labels = vec![Label::new("node", "a:1")];
        let values = [
            MetricValue::OutputRows(count(1)),
            MetricValue::ElapsedCompute(time(2)),
            MetricValue::OutputBytes(count(3)),
            MetricValue::CurrentMemoryUsage(gauge(4)),
            MetricValue::Count { name: "c".into(), count: count(5) },
            MetricValue::Time { name: "t".into(), time: time(6) },
            MetricValue::Custom { name: "bytes".into(), value: Arc::new(BytesCounterMetric::from_value(7)) },
            MetricValue::Custom { name: "avg".into(), value: Arc::new(AvgLatencyMetric::from_raw(8, 2)) },
        ];
        let mut set = MetricsSet::new();
        for value in values {
            set.push(Arc::new(Metric::new_with_labels(value, Some(3), labels.clone())));
        }
        let task = TaskMetrics { pre_order_plan_metrics: vec![set.clone()], task_metrics: set };
        let report = TaskReport::from(&task);
        let read = TaskReport::decode(report.encode_to_vec().as_slice()).unwrap().to_metrics();
        let show = |set: &MetricsSet| set.iter().map(|m| format!("{m:?}")).collect::<Vec<_>>();
        assert_eq!(show(&read.task_metrics), show(&task.task_metrics));
        assert_eq!(show(&read.pre_order_plan_metrics[0]), show(&task.pre_order_plan_metrics[0]));
        assert_eq!(read.task_metrics.iter().count(), 8);
    }

    #[test]
    fn a_metric_of_a_later_version_is_left_out() {
        let unknown = Measure { kind: 99, ..Measure::default() };
        assert!(unknown.to_metric().is_none());
        // A known kind without a value counts as 0.
        let empty = Measure { kind: kind::OUTPUT_ROWS, ..Measure::default() };
        assert!(
            matches!(empty.to_metric().unwrap().value(), MetricValue::OutputRows(rows) if rows.value() == 0)
        );
    }
}
