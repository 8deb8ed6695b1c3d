//! Links between two hosts of this machine, and what went over them.

use std::fs;
use std::net::IpAddr;

use lab::{Host, Lab, LabError, Link, Measured, Pair};

use crate::{Error, Result};

/// A measurement that a busy moment has spoilt is made again, at most so often.
const VERIFY_MAX: u32 = 3;

/// Two hosts joined by a link that was measured.
pub(crate) struct Course {
    pair: Pair,
    /// The link as it was asked for.
    pub(crate) link: String,
    /// What it was measured at.
    pub(crate) measured: String,
}

impl Course {
    /// Joins two hosts and measures the link between them.
    pub(crate) fn open(lab: &Lab, link: &str) -> Result<Self> {
        let parsed: Link = link.parse()?;
        let pair = lab.pair(&parsed)?;
        let measured = summary(&verify(&pair)?);
        eprintln!("{link}: {measured}");
        Ok(Self { pair, link: link.to_owned(), measured })
    }

    /// Makes the link another one while it is in use.
    pub(crate) fn reshape(&self, link: &str) -> Result<()> {
        Ok(self.pair.reshape(&link.parse()?)?)
    }

    /// TCP's congestion control on both hosts, for connections made from now on.
    pub(crate) fn congestion_control(&self, name: &str) -> Result<()> {
        for host in [self.near(), self.far()] {
            let set = host.run(|| fs::write("/proc/sys/net/ipv4/tcp_congestion_control", name));
            set.map_err(|error| format!("congestion control {name}: {error}"))?;
        }
        Ok(())
    }

    /// Where the client runs.
    pub(crate) fn near(&self) -> &Host {
        &self.pair.a
    }

    /// Where the server runs.
    pub(crate) fn far(&self) -> &Host {
        &self.pair.b
    }

    /// Where the client finds the server.
    pub(crate) fn far_address(&self) -> String {
        match self.far().address() {
            IpAddr::V6(address) => format!("[{address}]"),
            IpAddr::V4(address) => address.to_string(),
        }
    }

    /// What `work` returns, and the bytes that the near host received meanwhile,
    /// headers of all layers included. On the local link these are all bytes over
    /// this machine's loopback, whoever sent them.
    pub(crate) fn received<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let before = self.received_bytes()?;
        let done = work()?;
        Ok((done, self.received_bytes()?.saturating_sub(before)))
    }

    fn received_bytes(&self) -> Result<u64> {
        let table = self.near().run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        let local = self.pair.a.link() == &Link::Local;
        received_bytes(&table, local).ok_or_else(|| Error::from("/proc/net/dev has other columns than known"))
    }
}

fn verify(pair: &Pair) -> Result<Measured> {
    for _ in 1..VERIFY_MAX {
        match pair.verify() {
            Err(error @ LabError::FarOff { .. }) => eprintln!("measuring again: {error}"),
            other => return Ok(other?),
        }
    }
    Ok(pair.verify()?)
}

/// What stands beside a figure: the way that results take, and what is not as asked.
pub(crate) fn summary(measured: &Measured) -> String {
    let Measured { mbit_per_s, rtt_ms, loss, left_out, .. } = measured;
    let mut parts = vec![
        format!("{:.0} Mbit/s", mbit_per_s.b_to_a),
        format!("round trip {:.2} ms (least {:.2})", rtt_ms.median, rtt_ms.min),
    ];
    if loss.b_to_a > 0.0 {
        parts.push(format!("{:.1}% lost", loss.b_to_a * 100.0));
    }
    parts.extend(left_out.clone());
    format!("measured {}", parts.join(", "))
}

/// Bytes received, of the loopback or of all others.
pub(crate) fn received_bytes(table: &str, loopback: bool) -> Option<u64> {
    let interfaces = table.lines().filter_map(|line| line.split_once(':'));
    let wanted = interfaces.filter(|(name, _)| (name.trim() == "lo") == loopback);
    wanted.map(|(_, counts)| counts.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::received_bytes;

    #[test]
    fn the_bytes_of_an_interface_are_the_first_count() {
        let table = "Inter-|   Receive                            |  Transmit\n \
                     face |bytes    packets errs drop|bytes\n    lo: 100 2 0 0 300\n  veth0: 70 1 0 0 5\n  veth1:1 1 0 0 5";
        assert_eq!(received_bytes(table, true), Some(100));
        assert_eq!(received_bytes(table, false), Some(71));
        assert_eq!(received_bytes("  eth0: many", false), None);
    }
}
