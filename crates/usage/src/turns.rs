//! Which host limits a step, and what hosts do in turn.

use crate::exchange::Exchanges;
use crate::load::Load;
use crate::part::{Basis, Part};
use crate::query::QuerySpan;

/// Another host takes the step if it explains this much more of it.
const CLEARLY_MORE: f64 = 0.1;
/// Waits for a receiver or a client count less than work when hosts are compared: the work is their reason.
const WAIT_WEIGHT: f64 = 0.8;
/// A host that explains this much of a step is at work nearly all the time.
const SATURATED: f64 = 0.7;
/// An exchange that takes at most this many calibrated round trips is taken to consist of round trips: processes must
/// wake up, too.
const ROUND_TRIPS_PER_EXCHANGE: f64 = 4.0;
/// The longest time of an exchange, in seconds, that is a round trip if none is calibrated.
const EXCHANGE_SECONDS_MAX: f64 = 5e-3;

/// How much of a step a host explains by work, for the comparison of hosts.
pub(crate) fn score(load: &Load) -> f64 {
    let waits = load.given[Part::ReceiverLimited.index()] + load.given[Part::ClientWait.index()];
    load.explained() - (1.0 - WAIT_WEIGHT) * waits
}

/// The host that limits a step.
pub(crate) fn limiting(loads: &[Load], primary: usize) -> usize {
    let scores: Vec<f64> = loads.iter().map(score).collect();
    let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(b.cmp(a)));
    best.filter(|best| scores[*best] > scores[primary] + CLEARLY_MORE).unwrap_or(primary)
}

/// Adds the work of a host that took over, or was to: where one host is nearly saturated in the step before, and
/// another one in the step after, they worked in turn.
pub(crate) fn hand_over(load: &mut Load, loads: &[Load], around: [&[Load]; 2], primary: usize, host: usize) {
    let limits = around.map(|loads| limiting(loads, primary));
    let is_saturated =
        |(loads, host): (&[Load], usize)| loads.get(host).is_some_and(|load| load.explained() >= SATURATED);
    if limits[0] == limits[1] || !around.into_iter().zip(limits).all(is_saturated) {
        return;
    }
    for other in limits.into_iter().filter(|other| *other != host) {
        let Some(other) = loads.get(other) else { continue };
        for part in Part::ALL.into_iter().filter(|part| other.given[part.index()] > 0.0) {
            load.fill_from(other, part, other.given[part.index()]);
        }
    }
}

/// The load of the limiting host, completed by what depends on the others.
pub(crate) fn complete(span: &QuerySpan, loads: &[Load], host: usize, from: u64, to: u64) -> Load {
    let mut load = loads[host].clone();
    let length_ns = to.saturating_sub(from);
    let length = (length_ns as f64 / 1e9).max(1e-9);
    if let Some(exchanges) = exchanges(loads) {
        for other in loads.iter().enumerate().filter(|(other, _)| *other != host).map(|(_, load)| load) {
            let cpu = other.demand[Part::Cpu.index()].min(1.0 - load.explained());
            load.fill_from(other, Part::Cpu, cpu);
        }
        let rest = 1.0 - load.explained();
        let each = rest * length / exchanges.count.max(1.0);
        let calibrated = exchanges.round_trip_seconds.map(|seconds| seconds * exchanges.count / length);
        let longest = exchanges
            .round_trip_seconds
            .map_or(EXCHANGE_SECONDS_MAX, |seconds| seconds * ROUND_TRIPS_PER_EXCHANGE);
        let time = if each <= longest { rest } else { calibrated.unwrap_or(0.0) };
        load.fill(Part::RoundTrips, time, Basis::Exchanges, false);
        // As much as the calibrated round trips take is certain.
        let given = load.given[Part::RoundTrips.index()];
        load.certain[Part::RoundTrips.index()] = given.min(calibrated.unwrap_or(0.0));
    }
    let client_wait = loads.iter().enumerate().map(|(other, load)| {
        // Another host that waits for its client may wait for what this one explains.
        let reason = if other == host { 0.0 } else { loads[host].explained() };
        (load.client_wait - reason).max(0.0)
    });
    let given = load.given[Part::ReceiverLimited.index()] + load.given[Part::RoundTrips.index()];
    let client_wait = client_wait.fold(0.0, f64::max) - given;
    load.fill(Part::ClientWait, client_wait, Basis::Counted, false);
    load.certain[Part::ClientWait.index()] = load.given[Part::ClientWait.index()];
    if let Some(waited) = span.known.client_wait_ns {
        // While the client did not wait, it was at work itself, and the query may have waited for it.
        let at_work = 1.0 - waited as f64 / span.run_ns().max(1) as f64;
        let found = load.given[Part::ReceiverLimited.index()] + load.given[Part::ClientWait.index()];
        load.fill(Part::ClientWait, at_work - found, Basis::Inferred, false);
    }
    load
}

/// The exchanges of a step, as seen from the host with the most.
fn exchanges(loads: &[Load]) -> Option<Exchanges> {
    let order = |exchanges: &Exchanges| (exchanges.count, exchanges.round_trip_seconds.unwrap_or(0.0));
    loads.iter().filter_map(|load| load.exchanges).max_by(|a, b| {
        let (a, b) = (order(a), order(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    })
}
