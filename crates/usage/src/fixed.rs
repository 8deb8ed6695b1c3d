//! The work of nodes that more nodes would not divide.
//!
//! A query is planned once, by the node that is asked. A stage that has one task, such as the last one, which gives the
//! rows to the client, has one task on any number of nodes. What the node of such tasks uses beside its tasks, and more
//! than other nodes do, is taken to serve them: it sends plans, and receives rows. All this stays whole. The rest is
//! divided: the other tasks, and what nodes use beside them, such as reading.
//!
//! If no stage has several tasks, one node did all, and others would take over their part: only its planning is known to
//! stay.
//!
//! Waits for processors belong to those who used them. Disks and links are divided, except while the query is planned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::gather::{CPU_TIMES, Readings};
use crate::part::Part;
use crate::query::{HostWork, QuerySpan};
use crate::sample::Subject;
use crate::timeline::Timeline;

/// The fixed part of what a host did, 0 to 1.
#[derive(Debug, Clone, Default)]
pub(crate) struct FixedWork {
    /// The moments between which `steps` has the part of the processor time.
    moments: Arc<[u64]>,
    steps: Vec<f64>,
    /// The same of the whole run.
    whole: f64,
    /// Until when the query was planned on this host.
    planned: (u64, u64),
}

impl FixedWork {
    /// The fixed part of the time that a part of the run has in a step.
    pub(crate) fn of(&self, part: Part, from: u64, to: u64) -> f64 {
        let planned = self.planned(from, to);
        match part {
            Part::Cpu | Part::RunQueueWait | Part::Stolen => planned.max(self.cpu(from, to)),
            _ => planned,
        }
    }

    /// For which part of a step the query was planned on this host.
    fn planned(&self, from: u64, to: u64) -> f64 {
        let (began, ended) = self.planned;
        let planned = ended.min(to).saturating_sub(began.max(from));
        planned as f64 / to.saturating_sub(from).max(1) as f64
    }

    fn cpu(&self, from: u64, to: u64) -> f64 {
        let step = self.moments.partition_point(|moment| *moment < from);
        let is_step = self.moments.get(step) == Some(&from) && self.moments.get(step + 1) == Some(&to);
        self.steps.get(step).filter(|_| is_step).copied().unwrap_or(self.whole)
    }
}

/// Finds the fixed work of each host, in the order of the query's hosts, from each of the moments to the next.
pub(crate) fn find_fixed_work(
    timeline: &Timeline,
    span: &QuerySpan,
    readings: &mut [Readings],
    moments: &Arc<[u64]>,
) {
    let stages = single_stages(&span.hosts);
    let used: Vec<ProcessorTime> = readings
        .iter()
        .zip(&span.hosts)
        .map(|(readings, work)| ProcessorTime::new(timeline, span, readings, (work, &stages), moments))
        .collect();
    let is_alone = readings.len() == 1;
    let others =
        used.iter().filter(|used| used.has_tasks && !used.has_single).filter_map(|used| used.beside_ns);
    let (count, sum) = others.fold((0u32, 0.0), |(count, sum), beside_ns| (count + 1, sum + beside_ns));
    let usual = (count > 0).then(|| sum / f64::from(count));
    for (readings, used) in readings.iter_mut().zip(used) {
        if !used.has_single && !is_alone {
            continue;
        }
        let planned_ns = span.known.planned_ns.unwrap_or(0).min(span.run_ns());
        let beside_ns = used.beside_ns.zip(usual).map_or(0.0, |(own, usual)| (own - usual).max(0.0));
        let single_ns: f64 = used.single.iter().sum();
        let other_ns = used.own.iter().sum::<f64>() - single_ns;
        let more = if other_ns > 0.0 { (beside_ns / other_ns).min(1.0) } else { 0.0 };
        let part = |single: f64, own: f64| {
            let fixed = single + (own - single).max(0.0) * more;
            if own > 0.0 { (fixed / own).min(1.0) } else { 0.0 }
        };
        readings.fixed = FixedWork {
            moments: moments.clone(),
            steps: used.single.iter().zip(&used.own).map(|(single, own)| part(*single, *own)).collect(),
            whole: part(single_ns, single_ns + other_ns.max(0.0)),
            planned: (span.began_ns, span.began_ns.saturating_add(planned_ns)),
        };
    }
}

/// The stages that have one task, if others have several.
fn single_stages(hosts: &[HostWork]) -> BTreeSet<u32> {
    let mut stages: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for worker in hosts.iter().flat_map(|work| &work.workers) {
        if let Subject::Task { stage, task, .. } = worker.subject {
            stages.entry(stage).or_default().insert(task);
        }
    }
    // A task with a higher number is not the only one, even if the others are in no sample.
    let is_single = |tasks: &BTreeSet<u32>| tasks.iter().eq([&0]);
    if stages.values().all(is_single) {
        return BTreeSet::new();
    }
    stages.into_iter().filter(|(_, tasks)| is_single(tasks)).map(|(stage, _)| stage).collect()
}

/// Processor time that a host used, in nanoseconds.
struct ProcessorTime {
    has_tasks: bool,
    /// Whether it has a task that is the only one of its stage.
    has_single: bool,
    /// Of such tasks, in each step.
    single: Vec<f64>,
    /// Of the whole query, in each step.
    own: Vec<f64>,
    /// Beside tasks, in the whole run; `None` if only tasks are counted for the query alone.
    beside_ns: Option<f64>,
}

impl ProcessorTime {
    fn new(
        timeline: &Timeline,
        span: &QuerySpan,
        readings: &Readings,
        (work, stages): (&HostWork, &BTreeSet<u32>),
        moments: &Arc<[u64]>,
    ) -> Self {
        let host = work.host.as_str();
        let bound_ns = timeline.clock_bound_ns(host, span.span());
        let steps = moments.windows(2).map(|step| readings.own_cpu(step[0], step[1]).unwrap_or(0.0));
        let mut used = Self {
            has_tasks: false,
            has_single: false,
            single: vec![0.0; moments.len().saturating_sub(1)],
            own: steps.collect(),
            beside_ns: None,
        };
        let mut tasks_ns = 0.0;
        let mut seen = BTreeSet::new();
        for worker in work.workers.iter().filter(|worker| seen.insert(&worker.subject)) {
            let Subject::Task { stage, .. } = worker.subject else { continue };
            used.has_tasks = true;
            used.has_single |= stages.contains(&stage);
            for figure in CPU_TIMES {
                let curve = timeline.curve(host, &worker.subject, figure, (span.span(), bound_ns), true);
                let Some(curve) = curve else { continue };
                let amount = curve.between(span.began_ns, span.ended_ns);
                tasks_ns += amount.map_or(0.0, |amount| amount.value);
                if stages.contains(&stage) {
                    let grown = used.single.iter_mut().zip(curve.growth(moments));
                    grown.for_each(|(sum, grown)| *sum += grown.unwrap_or(0.0));
                }
            }
        }
        if used.has_tasks && !readings.cpu_is_shared() {
            let all = readings.own_cpu(span.began_ns, span.ended_ns);
            used.beside_ns = all.map(|all| (all - tasks_ns).max(0.0));
        }
        used.begin_earlier();
        used
    }

    /// Tasks are sampled from the end of the planning on, and have used processor time before: what is more than the
    /// query used in a step was used before it.
    fn begin_earlier(&mut self) {
        for step in (1..self.single.len()).rev() {
            let excess = (self.single[step] - self.own[step]).max(0.0);
            self.single[step] -= excess;
            self.single[step - 1] += excess;
        }
        if let (Some(first), Some(own)) = (self.single.first_mut(), self.own.first()) {
            *first = first.min(*own);
        }
    }
}
