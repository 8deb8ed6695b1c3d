//! How well the measurements behind the parts of a run time are known, over the whole run.

use crate::amount::Amount;
use crate::figure::Figure;
use crate::gather::{CPU_TIMES, Readings};
use crate::part::{PARTS, Part};
use crate::query::QuerySpan;

/// How well the measurements behind the parts are known over the whole run.
pub(crate) struct Spreads {
    amounts: [Option<Amount>; PARTS],
    hosts: f64,
}

impl Spreads {
    /// Of the hosts that limited the query, each counts as much as it did.
    pub(crate) fn new(readings: &[Readings], span: &QuerySpan, limit_seconds: &[f64]) -> Self {
        let mut spreads = Self { amounts: [None; PARTS], hosts: 0.0 };
        let all: f64 = limit_seconds.iter().sum();
        for (host, seconds) in readings.iter().zip(limit_seconds) {
            // A host that was hardly ever the limit is not considered.
            if *seconds <= 0.01 * all {
                continue;
            }
            spreads.hosts += 1.0;
            for part in Part::ALL {
                let Some(amount) = measured(host, part, span.span()) else { continue };
                let sum = &mut spreads.amounts[part.index()];
                *sum = Some(sum.map_or(amount, |sum| sum.plus(amount)));
            }
        }
        spreads
    }

    /// Factors of the low and the high bound, and nanoseconds that the high bound gets if nothing was measured.
    pub(crate) fn of(&self, part: Part) -> (f64, f64, f64) {
        let Some(amount) = self.amounts[part.index()] else { return (1.0, 1.0, 0.0) };
        if amount.value <= 0.0 {
            let more = if is_in_bytes(part) { 0.0 } else { amount.high / self.hosts.max(1.0) };
            return (0.0, 1.0, more);
        }
        ((amount.low / amount.value).min(1.0), (amount.high / amount.value).clamp(1.0, 1e6), 0.0)
    }
}

fn is_in_bytes(part: Part) -> bool {
    matches!(part, Part::Network | Part::RoundTrips)
}

/// The measurement behind a part.
fn measured(host: &Readings, part: Part, (from, to): (u64, u64)) -> Option<Amount> {
    let own = |figure| host.own_amount(figure, from, to);
    match part {
        Part::Cpu => host.own_sum_amount(CPU_TIMES, from, to),
        Part::RunQueueWait => own(Figure::RunQueueWaitNs),
        Part::Stolen => host.around_amount(Figure::CpuStolenNs, from, to),
        Part::DiskSequential | Part::DiskRandom => own(Figure::DiskWaitNs)
            .filter(|_| host.counts_disk_wait)
            .or_else(|| own(Figure::DiskReadBytes).filter(|bytes| bytes.value > 0.0)),
        Part::Network => {
            host.own_sum_amount([Figure::NetworkReceivedBytes, Figure::NetworkSentBytes], from, to)
        }
        Part::RoundTrips => own(Figure::VoluntarySwitches),
        Part::ReceiverLimited => own(Figure::SocketReceiverLimitedNs),
        Part::SenderLimited => own(Figure::SocketSendBufferLimitedNs),
        Part::LockWait => own(Figure::LockWaitNs),
        Part::ClientWait => own(Figure::ClientWaitNs),
        Part::MemoryPressure => host.around_amount(Figure::PressureMemorySomeNs, from, to),
        Part::QueueWait | Part::Unexplained => None,
    }
}
