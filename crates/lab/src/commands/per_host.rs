//! Options that limit all hosts or a single one.

use clap::Args;
use lab::{Limits, units};

/// A value for one host (`b=0.4`) or for all (`0.4`).
#[derive(Debug, Clone, PartialEq)]
struct PerHost<T> {
    host: Option<String>,
    value: T,
}

fn per_host<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<PerHost<T>, String> {
    match text.split_once('=') {
        Some((host, value)) => Ok(PerHost { host: Some(host.to_owned()), value: read(value)? }),
        None => Ok(PerHost { host: None, value: read(text)? }),
    }
}

fn cores(text: &str) -> Result<PerHost<f64>, String> {
    per_host(text, |text| text.parse().map_err(|_| format!("`{text}` is not a number of cores such as 0.5")))
}

fn pinned(text: &str) -> Result<PerHost<Vec<usize>>, String> {
    per_host(text, |text| {
        let numbers: Result<_, _> = text.split(',').map(str::parse).collect();
        numbers.map_err(|_| format!("`{text}` is not a list of processors such as 0,1"))
    })
}

fn bytes(text: &str) -> Result<PerHost<u64>, String> {
    per_host(text, units::bytes)
}

/// Limits of hosts: `VALUE` for all, `HOST=VALUE` for one.
#[derive(Args)]
pub(crate) struct LimitArgs {
    /// Processor time in cores: 0.5, or b=0.4 for one host. All limits can be repeated.
    #[arg(long, value_name = "[HOST=]CORES", value_parser = cores, help_heading = "Limits")]
    cpu: Vec<PerHost<f64>>,
    /// The processors that a host may run on: 0,1.
    #[arg(long, value_name = "[HOST=]LIST", value_parser = pinned, help_heading = "Limits")]
    pin: Vec<PerHost<Vec<usize>>>,
    /// Memory, including the page cache: 1GiB. Beyond it, processes are killed.
    #[arg(long, value_name = "[HOST=]BYTES", value_parser = bytes, help_heading = "Limits")]
    memory: Vec<PerHost<u64>>,
    /// Bytes per second read from each disk: 50MB.
    #[arg(long, value_name = "[HOST=]BYTES", value_parser = bytes, help_heading = "Limits")]
    disk_read: Vec<PerHost<u64>>,
    /// Bytes per second written to each disk: 50MB. Control groups of version 1 limit only
    /// synced and direct writes.
    #[arg(long, value_name = "[HOST=]BYTES", value_parser = bytes, help_heading = "Limits")]
    disk_write: Vec<PerHost<u64>>,
}

impl LimitArgs {
    /// The limits of a host. A limit for this host overrides one for all hosts; the last of
    /// several applies.
    pub(crate) fn of(&self, host: &str) -> Limits {
        Limits {
            cpus: pick(&self.cpu, host),
            pinned: pick(&self.pin, host),
            memory_bytes: pick(&self.memory, host),
            disk_read_bytes_per_s: pick(&self.disk_read, host),
            disk_write_bytes_per_s: pick(&self.disk_write, host),
        }
    }

    /// Hosts named in the options.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        let hosts = self.cpu.iter().map(|limit| &limit.host);
        let hosts = hosts.chain(self.pin.iter().map(|limit| &limit.host));
        let bytes = [&self.memory, &self.disk_read, &self.disk_write];
        hosts.chain(bytes.into_iter().flatten().map(|limit| &limit.host)).filter_map(|host| host.as_deref())
    }
}

fn pick<T: Clone>(given: &[PerHost<T>], host: &str) -> Option<T> {
    let own = given.iter().rfind(|limit| limit.host.as_deref() == Some(host));
    own.or_else(|| given.iter().rfind(|limit| limit.host.is_none())).map(|limit| limit.value.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_for_one_host_overrides_one_for_all() {
        let given = ["b=0.4", "1", "2"].map(|text| cores(text).unwrap());
        assert_eq!(pick(&given, "a"), Some(2.0));
        assert_eq!(pick(&given, "b"), Some(0.4));
        assert_eq!(pick::<f64>(&[], "a"), None);
        assert_eq!(pinned("a=0,1").unwrap(), PerHost { host: Some("a".into()), value: vec![0, 1] });
        assert!(bytes("b=lots").unwrap_err().contains("64MiB"));
        assert!(cores("b=").is_err());
    }
}
