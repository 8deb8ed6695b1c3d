//! The time of disk accesses by the source's formulas: bytes at the sequential rate, and random accesses.
//!
//! Where an agent knows the order of requests, it counts sequential bytes and random requests. Where it knows only how
//! many there were, their mean size decides: from [`SEQUENTIAL_BYTES`] on they are taken as sequential, up to
//! [`RANDOM_BYTES`] as random, and in between as a mixture. Where it knows only bytes, all are taken as sequential,
//! which is the least time possible.

use serde::{Deserialize, Serialize};

use crate::figure::Figure;
use crate::gather::Readings;

/// Mean size from which requests are taken as sequential: Linux reads ahead at least 128 KiB.
pub(crate) const SEQUENTIAL_BYTES: f64 = 128.0 * 1024.0;
/// Mean size up to which they are taken as random: twice the 8 KiB page of a database, as neighbours are merged.
pub(crate) const RANDOM_BYTES: f64 = 16.0 * 1024.0;

/// How the order of disk accesses is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessOrder {
    /// Sequential and random accesses were counted.
    Counted,
    /// From the mean size of requests.
    MeanSize,
    /// Not at all: all are taken as sequential.
    Assumed,
}

/// Disk accesses of a query on a host, and the time that they take by the formulas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DiskWork {
    /// Bytes of both directions.
    pub(crate) bytes: f64,
    /// Seconds; `None` without calibration.
    pub(crate) sequential_seconds: Option<f64>,
    pub(crate) random_seconds: Option<f64>,
    pub(crate) order: AccessOrder,
    /// The part of the time that is sequential, also without calibration.
    pub(crate) sequential_part: f64,
}

/// The query's disk accesses; `None` if its bytes are not known.
pub(crate) fn disk_work(readings: &Readings, from: u64, to: u64) -> Option<DiskWork> {
    let read = readings.own(Figure::DiskReadBytes, from, to);
    let written = readings.own(Figure::DiskWrittenBytes, from, to);
    let bytes = read.or(written).map(|_| read.unwrap_or(0.0) + written.unwrap_or(0.0))?;
    let of_disks = |figure| readings.of_disks(figure, from, to);
    let disk_bytes = match [Figure::DiskReadBytes, Figure::DiskWrittenBytes].map(of_disks) {
        [None, None] => None,
        [a, b] => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
    };
    let share = disk_bytes.map_or(1.0, |all| if all > 0.0 { (bytes / all).min(1.0) } else { 0.0 });
    // The query's own figure, or its share of the disk's by bytes.
    let of_query = |figure| {
        let own = readings.own(figure, from, to);
        own.or_else(|| of_disks(figure).map(|all| all * share))
    };
    let requests = match [Figure::DiskReads, Figure::DiskWrites].map(of_query) {
        [None, None] => None,
        [a, b] => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
    };
    let counted = of_query(Figure::DiskRandomRequests);
    let (sequential_bytes, random, order) = match (counted, of_query(Figure::DiskSequentialBytes), requests) {
        (Some(random), sequential, _) => {
            (sequential.unwrap_or(bytes).min(bytes), random, AccessOrder::Counted)
        }
        (None, _, Some(requests)) if requests > 0.0 => {
            let random_part = random_part(bytes / requests);
            (bytes * (1.0 - random_part), requests * random_part, AccessOrder::MeanSize)
        }
        _ => (bytes, 0.0, AccessOrder::Assumed),
    };
    let speeds = &readings.speeds;
    let part = if bytes > 0.0 { sequential_bytes / bytes } else { 0.0 };
    let seconds = |bytes: Option<f64>, rate: Option<f64>| match (bytes.unwrap_or(0.0), rate) {
        (bytes, Some(rate)) => Some(bytes * part / rate),
        (bytes, None) if bytes <= 0.0 => Some(0.0),
        _ => None,
    };
    let reading = seconds(read, speeds.disk_read_bytes_per_second);
    let writing = seconds(written, speeds.disk_write_bytes_per_second.or(speeds.disk_read_bytes_per_second));
    let sequential_seconds = reading.zip(writing).map(|(a, b)| a + b);
    let access = speeds.disk_access_seconds;
    let random_seconds = access.map(|access| random * access).or((random <= 0.0).then_some(0.0));
    let sequential_part = match (sequential_seconds, random_seconds) {
        (Some(a), Some(b)) if a + b > 0.0 => a / (a + b),
        // A wait without bytes is for a place on the disk, as a flush is.
        _ if bytes <= 0.0 => 0.0,
        _ => part,
    };
    Some(DiskWork { bytes, sequential_seconds, random_seconds, order, sequential_part })
}

/// The part of the requests that are random, by their mean size.
fn random_part(mean_bytes: f64) -> f64 {
    let mean = mean_bytes.clamp(RANDOM_BYTES, SEQUENTIAL_BYTES);
    (SEQUENTIAL_BYTES / mean).log2() / (SEQUENTIAL_BYTES / RANDOM_BYTES).log2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_requests_tells_random_from_sequential() {
        assert_eq!(random_part(8192.0), 1.0);
        assert_eq!(random_part(1e6), 0.0);
        assert!((random_part((RANDOM_BYTES * SEQUENTIAL_BYTES).sqrt()) - 0.5).abs() < 1e-9);
        assert!(random_part(0.0) == 1.0 && random_part(f64::MAX) == 0.0);
    }
}
