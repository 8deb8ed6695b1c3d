//! Divides a query's run time into parts that add up to it.
//!
//! The run is cut into equal steps, as fine as the samples allow. In each step, one host is taken as the one that
//! limited the query: the host with the most explained time in the whole run, unless another one has clearly more in
//! this step. Where a receiver or a client is waited for, and its host was sampled, its own work counts as the reason.
//! The step is divided as that host spent it (`load.rs`). Then:
//!
//! - Where small messages went back and forth, hosts worked in turn: the processor time of the others is added, and
//!   what is left is round trips: all of it, if an exchange took no more than a few calibrated round trips, otherwise
//!   one calibrated round trip each.
//! - Where one host was at work in the step before, and another in the step after, the work of both counts: they worked
//!   in turn.
//! - What is left of a session's wait for its client is the client's.
//! - The rest is unexplained.
//!
//! Limits: what happens faster than a step is averaged. If hosts work in turn within a step, and no small messages
//! show it, only one of them is seen, and the rest is unexplained; the bounds say so. If a host is idle because it
//! waits for one that was not sampled, that is unexplained, too.
//!
//! The bounds of a part are those of its measurements over the whole run (the steps between do not add to them), less
//! what may have been hidden behind other parts, and more what was.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::figure::Figure;
use crate::fixed::find_fixed_work;
use crate::gather::Readings;
use crate::load::{Load, load};
use crate::part::{Basis, Division, PARTS, PHASES_MAX, Part, PartTime, PerPart, Phase};
use crate::query::QuerySpan;
use crate::spread::Spreads;
use crate::timeline::Timeline;
use crate::turns::{complete, hand_over, limiting, score};

/// The most steps of a run.
const STEPS_MAX: u64 = 512;
/// The shortest step, in nanoseconds.
const STEP_NS_MIN: u64 = 1_000_000;
/// The fewest ticks of the coarsest time counter in a step, so that a tick more or less is 5%.
const TICKS_PER_STEP: u64 = 20;
/// The shortest step, as a multiple of the bound within which clocks are known.
const BOUNDS_PER_STEP: u64 = 4;

/// What the division found besides the parts.
pub(crate) struct Divided {
    pub(crate) division: Division,
    /// The host with the most time as the limit, if any was sampled.
    pub(crate) bottleneck: Option<usize>,
    /// For each host, the seconds for which it limited the query.
    pub(crate) limit_seconds: Vec<f64>,
}

/// Sums over the steps, in seconds.
#[derive(Default)]
struct Sums {
    given: PerPart,
    certain: PerPart,
    demand: PerPart,
    /// Of what is given to a part, the seconds of each basis.
    bases: [BTreeMap<Basis, f64>; PARTS],
    is_shared: [bool; PARTS],
    /// Seconds that no host together with the others could explain.
    unexplained_low: f64,
}

/// Divides a run. The readings are in the order of the query's hosts.
pub(crate) fn divide(timeline: &Timeline, span: &QuerySpan, readings: &mut [Readings]) -> Divided {
    let run_ns = span.run_ns();
    let steps = steps(timeline, span, readings);
    let moment = |step: u64| {
        let into = u128::from(run_ns) * u128::from(step) / u128::from(steps);
        span.began_ns.saturating_add(into as u64)
    };
    let moments: Arc<[u64]> = (0..=steps).map(moment).collect();
    readings.iter_mut().for_each(|host| host.divide_at(&moments));
    find_fixed_work(timeline, span, readings, &moments);
    let readings = &*readings;
    let whole: Vec<f64> =
        readings.iter().map(|host| score(&load(host, span, span.began_ns, span.ended_ns))).collect();
    let primary = (0..whole.len()).max_by(|a, b| whole[*a].total_cmp(&whole[*b]).then(b.cmp(a)));
    let mut sums = Sums::default();
    let mut limit_seconds = vec![0.0; readings.len()];
    let mut phases: Vec<Phase> = Vec::new();
    let loads_of = |step: u64| -> Vec<Load> {
        let (from, to) = (moment(step), moment(step + 1));
        readings.iter().map(|host| load(host, span, from, to)).collect()
    };
    let (mut before, mut loads): (Option<Vec<Load>>, _) = (None, loads_of(0));
    for step in 0..steps {
        let (from, to) = (moment(step), moment(step + 1));
        let seconds = to.saturating_sub(from) as f64 / 1e9;
        let after = (step + 1 < steps).then(|| loads_of(step + 1));
        let mut phase = Phase {
            began_ns: from,
            ended_ns: to,
            host: String::new(),
            seconds: [0.0; PARTS],
            fixed_seconds: [0.0; PARTS],
            divided_demand_seconds: [0.0; PARTS],
            fixed_demand_seconds: [0.0; PARTS],
        };
        if let Some(primary) = primary {
            let host = limiting(&loads, primary);
            let mut load = complete(span, &loads, host, from, to);
            if let (Some(before), Some(after)) = (&before, &after) {
                hand_over(&mut load, &loads, [before, after], primary, host);
            }
            limit_seconds[host] += load.explained() * seconds;
            phase.host.clone_from(&readings[host].host);
            sums.add(&load, &loads, seconds, &mut phase);
            for load in &loads {
                for part in 0..PARTS {
                    let fixed = load.fixed_demand[part] * seconds;
                    let divided = load.demand[part] * seconds - fixed;
                    let most = &mut phase.divided_demand_seconds[part];
                    *most = most.max(divided);
                    let most = &mut phase.fixed_demand_seconds[part];
                    *most = most.max(fixed);
                }
            }
        } else {
            sums.unexplained_low += seconds;
        }
        let unexplained = (seconds - phase.seconds.iter().sum::<f64>()).max(0.0);
        phase.seconds[Part::Unexplained.index()] = unexplained;
        match phases.last_mut() {
            Some(last) if last.host == phase.host && last.largest() == phase.largest() => last.join(&phase),
            _ => phases.push(phase),
        }
        (before, loads) = (Some(loads), after.unwrap_or_default());
    }
    while phases.len() > PHASES_MAX {
        phases = phases.chunks(2).filter_map(joined).collect();
    }
    let spreads = Spreads::new(readings, span, &limit_seconds);
    let division = Division { run_ns, parts: sums.parts(run_ns, &spreads), phases, step_ns: run_ns / steps };
    let bottleneck = (0..limit_seconds.len())
        .max_by(|a, b| limit_seconds[*a].total_cmp(&limit_seconds[*b]).then(b.cmp(a)))
        .filter(|host| limit_seconds[*host] > 0.0)
        .or(primary);
    Divided { division, bottleneck, limit_seconds }
}

fn joined(phases: &[Phase]) -> Option<Phase> {
    let (first, others) = phases.split_first()?;
    let mut all = first.clone();
    others.iter().for_each(|next| all.join(next));
    Some(all)
}

/// The number of steps of a run.
fn steps(timeline: &Timeline, span: &QuerySpan, readings: &[Readings]) -> u64 {
    let mut step_ns = STEP_NS_MIN;
    for host in readings {
        let sampled = timeline.step_ns(&host.host, span.span()).unwrap_or(span.run_ns());
        let ticks = host.own.iter().filter(|(figure, _)| is_time(**figure));
        let ticks = ticks.filter_map(|(figure, reading)| timeline.source(&host.host, reading.kind, *figure));
        let tick = ticks.map(|source| source.resolution()).max().unwrap_or(0);
        let bound = timeline.clock_bound_ns(&host.host, span.span());
        step_ns = step_ns
            .max(sampled)
            .max(tick.saturating_mul(TICKS_PER_STEP))
            .max(bound.saturating_mul(BOUNDS_PER_STEP));
    }
    (span.run_ns() / step_ns.max(1)).clamp(1, STEPS_MAX)
}

fn is_time(figure: Figure) -> bool {
    matches!(
        figure,
        Figure::CpuUserNs
            | Figure::CpuSystemNs
            | Figure::CpuNs
            | Figure::RunQueueWaitNs
            | Figure::QuotaWaitNs
            | Figure::DiskWaitNs
            | Figure::LockWaitNs
            | Figure::ClientWaitNs
            | Figure::SocketBusyNs
            | Figure::SocketReceiverLimitedNs
            | Figure::SocketSendBufferLimitedNs
    )
}

impl Sums {
    fn add(&mut self, load: &Load, loads: &[Load], seconds: f64, phase: &mut Phase) {
        let mut all = 0.0;
        for part in 0..PARTS {
            let given = load.given[part] * seconds;
            phase.seconds[part] = given;
            phase.fixed_seconds[part] = load.fixed[part] * seconds;
            self.given[part] += given;
            self.certain[part] += load.certain[part] * seconds;
            self.demand[part] += load.demand[part] * seconds;
            self.is_shared[part] |= load.is_shared[part];
            if given > 0.0 {
                *self.bases[part].entry(load.basis[part]).or_default() += given;
            }
        }
        for other in loads {
            all += other.explained();
        }
        self.unexplained_low += (1.0 - all.max(load.explained()).min(1.0)).max(0.0) * seconds;
    }

    /// The parts in nanoseconds, which add up to the run time.
    fn parts(&self, run_ns: u64, spreads: &Spreads) -> Vec<PartTime> {
        let mut left = run_ns;
        let (mut low_sum, mut high_sum) = (0u64, 0u64);
        let mut parts = Vec::with_capacity(PARTS);
        for part in Part::ALL.into_iter().filter(|part| *part != Part::Unexplained) {
            let index = part.index();
            let ns = nanoseconds(self.given[index]).min(left);
            left -= ns;
            let (down, up, more_ns) = spreads.of(part);
            let low_ns = nanoseconds(self.certain[index] * down).min(ns);
            let high_ns = nanoseconds(self.demand[index] * up + more_ns / 1e9).clamp(ns, run_ns.max(ns));
            low_sum = low_sum.saturating_add(low_ns);
            high_sum = high_sum.saturating_add(high_ns);
            let most = self.bases[index].iter().max_by(|a, b| a.1.total_cmp(b.1));
            let basis = most.map_or(Basis::Rest, |(basis, _)| *basis);
            parts.push(PartTime { part, ns, low_ns, high_ns, is_shared: self.is_shared[index], basis });
        }
        parts.push(PartTime {
            part: Part::Unexplained,
            ns: left,
            low_ns: run_ns.saturating_sub(high_sum).min(nanoseconds(self.unexplained_low)).min(left),
            high_ns: run_ns.saturating_sub(low_sum).max(left),
            is_shared: false,
            basis: Basis::Rest,
        });
        parts
    }
}

fn nanoseconds(seconds: f64) -> u64 {
    // Casts saturate, and make 0 of NaN.
    (seconds * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_based_on_what_most_of_it_is_and_not_on_its_largest_step() {
        let (mut sums, index) = (Sums::default(), Part::RoundTrips.index());
        let step = |given: f64, basis| {
            let mut load = Load::default();
            load.fill(Part::RoundTrips, given, basis, false);
            load
        };
        let loads = [step(0.9, Basis::Exchanges), step(0.4, Basis::Inferred), step(0.6, Basis::Inferred)];
        for load in &loads {
            let mut phase = Phase {
                began_ns: 0,
                ended_ns: 1_000_000_000,
                host: String::new(),
                seconds: [0.0; PARTS],
                fixed_seconds: [0.0; PARTS],
                divided_demand_seconds: [0.0; PARTS],
                fixed_demand_seconds: [0.0; PARTS],
            };
            sums.add(load, std::slice::from_ref(load), 1.0, &mut phase);
        }
        let parts = sums.parts(3_000_000_000, &Spreads::new(&[], &QuerySpan::default(), &[]));
        assert_eq!((parts[index].ns, parts[index].basis), (1_900_000_000, Basis::Inferred));
    }
}
