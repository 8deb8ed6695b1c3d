//! Limits of a host, and the control group settings that apply them.

use std::fs;
use std::path::Path;

use crate::error::LabError;

/// Limits of a host; `None` means no limit.
///
/// Version 1 of the control groups throttles only writes that the process itself sends to the
/// disk: synced or direct ones. Version 2 throttles all writes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Processor time in cores: 0.5 is half of one, in slices of 10 ms.
    pub cpus: Option<f64>,
    /// The processors it may run on, numbered from 0.
    pub pinned: Option<Vec<usize>>,
    /// Memory including the page cache of its files. Beyond it, processes are killed.
    pub memory_bytes: Option<u64>,
    /// Read rate from each disk of the machine.
    pub disk_read_bytes_per_s: Option<u64>,
    /// Write rate to each disk of the machine.
    pub disk_write_bytes_per_s: Option<u64>,
}

/// The version of control groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

/// A value for a file of a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) controller: &'static str,
    pub(crate) file: &'static str,
    pub(crate) value: String,
    /// Kernels without swap accounting have no such file.
    pub(crate) optional: bool,
}

impl Setting {
    fn new(controller: &'static str, file: &'static str, value: impl ToString) -> Self {
        Self { controller, file, value: value.to_string(), optional: false }
    }

    fn optional(self) -> Self {
        Self { optional: true, ..self }
    }
}

/// Short, so that a limited host runs slowly instead of stopping and starting.
const PERIOD_US: f64 = 10_000.0;
/// The kernel's limits for a quota and a period.
const QUOTA_US_MIN: f64 = 1_000.0;
const PERIOD_US_MAX: f64 = 1_000_000.0;
const CPUS_MIN: f64 = QUOTA_US_MIN / PERIOD_US_MAX;

impl Limits {
    /// Refuses limits that no kernel would accept.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        match self.cpus {
            Some(cpus) if !cpus.is_finite() || cpus < CPUS_MIN => {
                Err(LabError::Limit(format!("{cpus} cores: expected at least {CPUS_MIN}")))
            }
            _ if self.pinned.as_ref().is_some_and(Vec::is_empty) => {
                Err(LabError::Limit("expected at least one processor to pin a host to".into()))
            }
            _ => Ok(()),
        }
    }

    /// The files that set the limits, in the order in which to write them.
    /// `disks` are `major:minor`.
    pub(crate) fn settings(&self, version: Version, disks: &[String]) -> Vec<Setting> {
        let mut settings = Vec::new();
        if let Some(cpus) = self.cpus {
            let quota_us = (cpus * PERIOD_US).max(QUOTA_US_MIN);
            let (quota, period) = (quota_us.round(), (quota_us / cpus).min(PERIOD_US_MAX).round());
            match version {
                Version::One => settings.extend([
                    Setting::new("cpu", "cpu.cfs_period_us", period),
                    Setting::new("cpu", "cpu.cfs_quota_us", quota),
                ]),
                Version::Two => settings.push(Setting::new("cpu", "cpu.max", format!("{quota} {period}"))),
            }
        }
        if let Some(pinned) = &self.pinned {
            let list = pinned.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            settings.push(Setting::new("cpuset", "cpuset.cpus", list));
        }
        if let Some(bytes) = self.memory_bytes {
            match version {
                // The limit with swap must never be below the limit without: remove it first, set it last.
                Version::One => settings.extend([
                    Setting::new("memory", "memory.memsw.limit_in_bytes", -1).optional(),
                    Setting::new("memory", "memory.limit_in_bytes", bytes),
                    Setting::new("memory", "memory.memsw.limit_in_bytes", bytes).optional(),
                ]),
                Version::Two => settings.extend([
                    Setting::new("memory", "memory.max", bytes),
                    Setting::new("memory", "memory.swap.max", 0).optional(),
                ]),
            }
        }
        for (bytes_per_s, one, two) in [
            (self.disk_read_bytes_per_s, "blkio.throttle.read_bps_device", "rbps"),
            (self.disk_write_bytes_per_s, "blkio.throttle.write_bps_device", "wbps"),
        ] {
            let Some(bytes) = bytes_per_s else { continue };
            settings.extend(disks.iter().map(|disk| match version {
                Version::One => Setting::new("io", one, format!("{disk} {bytes}")),
                Version::Two => Setting::new("io", "io.max", format!("{disk} {two}={bytes}")),
            }));
        }
        settings
    }
}

/// `major:minor` of the disks that are not built from others (as RAID and loop devices are).
pub(crate) fn disks() -> Vec<String> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let real = entries.filter_map(|entry| {
        let path = entry.path().canonicalize().ok()?;
        let is_virtual = path.starts_with(Path::new("/sys/devices/virtual"));
        (!is_virtual).then(|| fs::read_to_string(path.join("dev")).ok())?
    });
    real.map(|number| number.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(limits: &Limits, version: Version) -> Vec<String> {
        let settings = limits.settings(version, &["254:0".into()]);
        settings.iter().map(|s| format!("{} {}={}", s.controller, s.file, s.value)).collect()
    }

    #[test]
    fn each_version_gets_its_own_settings() {
        let limits = Limits {
            cpus: Some(0.5),
            pinned: Some(vec![0, 2]),
            memory_bytes: Some(1 << 30),
            disk_read_bytes_per_s: Some(50_000_000),
            disk_write_bytes_per_s: Some(20_000_000),
        };
        assert_eq!(
            shown(&limits, Version::One),
            [
                "cpu cpu.cfs_period_us=10000",
                "cpu cpu.cfs_quota_us=5000",
                "cpuset cpuset.cpus=0,2",
                "memory memory.memsw.limit_in_bytes=-1",
                "memory memory.limit_in_bytes=1073741824",
                "memory memory.memsw.limit_in_bytes=1073741824",
                "io blkio.throttle.read_bps_device=254:0 50000000",
                "io blkio.throttle.write_bps_device=254:0 20000000",
            ]
        );
        assert_eq!(
            shown(&limits, Version::Two),
            [
                "cpu cpu.max=5000 10000",
                "cpuset cpuset.cpus=0,2",
                "memory memory.max=1073741824",
                "memory memory.swap.max=0",
                "io io.max=254:0 rbps=50000000",
                "io io.max=254:0 wbps=20000000",
            ]
        );
        assert_eq!(shown(&Limits::default(), Version::Two), [""; 0]);
    }

    #[test]
    fn small_cpu_shares_get_long_periods() {
        for (cpus, value) in [(2.5, "25000 10000"), (0.1, "1000 10000"), (0.02, "1000 50000")] {
            let limits = Limits { cpus: Some(cpus), ..Limits::default() };
            assert_eq!(shown(&limits, Version::Two), [format!("cpu cpu.max={value}")]);
        }
    }

    #[test]
    fn invalid_limits_are_refused() {
        for cpus in [0.0, -1.0, f64::NAN, 0.0001] {
            assert!(Limits { cpus: Some(cpus), ..Limits::default() }.check().is_err(), "{cpus}");
        }
        assert!(Limits { pinned: Some(vec![]), ..Limits::default() }.check().is_err());
        assert!(Limits { cpus: Some(0.001), ..Limits::default() }.check().is_ok());
    }
}
