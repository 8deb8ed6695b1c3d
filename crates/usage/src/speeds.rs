//! What a host and its link can do at most, measured once.

use serde::{Deserialize, Serialize};

use crate::error::{Result, within};

/// The highest plausible rate, in bytes per second.
const RATE_MAX: f64 = 1e15;

/// What a host can do, as measured by a calibration while nothing else ran. `None` is not measured, and the times that
/// need it are unavailable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSpeeds {
    /// Processors.
    pub processors: u32,
    /// Work units of the calibration that one processor does in a second: only ratios of hosts mean something.
    pub cpu_units_per_second: Option<f64>,
    /// Processor cycles of an instruction, in the calibration's work.
    pub cycles_per_instruction: Option<f64>,
    /// Cycles per second of a processor that works: its clock.
    pub cycles_per_second: Option<f64>,
    /// Bytes per second that are read from the disk one after the other.
    pub disk_read_bytes_per_second: Option<f64>,
    /// Bytes per second that are written to the disk one after the other.
    pub disk_write_bytes_per_second: Option<f64>,
    /// Seconds of one random access, one at a time.
    pub disk_access_seconds: Option<f64>,
    /// Bytes of the disk. The source takes the time of a random access as proportional to the stride over this size.
    pub disk_bytes: Option<u64>,
    /// Bytes per second that a processor reads from memory.
    pub memory_bytes_per_second: Option<f64>,
    /// The link of the host to the other hosts of its queries.
    pub link: LinkSpeeds,
}

/// What the link of a host can do, as measured against another host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSpeeds {
    /// Bytes per second that the host receives.
    pub received_bytes_per_second: Option<f64>,
    /// Bytes per second that the host sends.
    pub sent_bytes_per_second: Option<f64>,
    /// Seconds from a small message to its answer.
    pub round_trip_seconds: Option<f64>,
}

impl HostSpeeds {
    /// Checks that all speeds are finite and in range.
    ///
    /// # Errors
    /// [`UsageError::OutOfRange`](crate::UsageError::OutOfRange) names the first that is not.
    pub fn check(&self) -> Result<()> {
        within("number of processors", self.processors.into(), 0.0, 65_536.0)?;
        let rates = [
            ("CPU speed in work units per second", self.cpu_units_per_second),
            ("disk read rate in bytes per second", self.disk_read_bytes_per_second),
            ("disk write rate in bytes per second", self.disk_write_bytes_per_second),
            ("memory rate in bytes per second", self.memory_bytes_per_second),
            ("clock in cycles per second", self.cycles_per_second),
            ("receive rate in bytes per second", self.link.received_bytes_per_second),
            ("send rate in bytes per second", self.link.sent_bytes_per_second),
        ];
        for (what, rate) in rates {
            rate.map_or(Ok(()), |rate| within(what, rate, 1.0, RATE_MAX))?;
        }
        let cycles = self.cycles_per_instruction.unwrap_or(1.0);
        within("number of cycles per instruction", cycles, 1e-3, 1e6)?;
        let access = self.disk_access_seconds.unwrap_or(1e-3);
        within("time of a random access in seconds", access, 1e-9, 100.0)?;
        let round_trip = self.link.round_trip_seconds.unwrap_or(1e-3);
        within("round trip in seconds", round_trip, 1e-9, 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_checked_and_survive_json() {
        let speeds = HostSpeeds {
            processors: 2,
            disk_read_bytes_per_second: Some(2e8),
            link: LinkSpeeds { round_trip_seconds: Some(1e-4), ..LinkSpeeds::default() },
            ..HostSpeeds::default()
        };
        speeds.check().unwrap();
        let json = serde_json::to_string(&speeds).unwrap();
        assert_eq!(serde_json::from_str::<HostSpeeds>(&json).unwrap(), speeds);
        for rate in [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300] {
            let bad = HostSpeeds { disk_read_bytes_per_second: Some(rate), ..speeds };
            assert!(bad.check().is_err(), "{rate}");
        }
        let bad = HostSpeeds { cycles_per_instruction: Some(0.0), ..speeds };
        assert!(bad.check().is_err());
        let bad = HostSpeeds { disk_access_seconds: Some(f64::NAN), ..speeds };
        assert!(bad.check().is_err());
    }
}
