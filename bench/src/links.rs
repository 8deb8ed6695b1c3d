//! Links between two hosts on this machine, and the bytes that went over them.

use std::fs;
use std::net::IpAddr;

use lab::{Host, Lab, LabError, Link, Measured, Pair};

use crate::{Error, Result};

/// How often a link is measured at most: a busy machine can spoil a measurement.
const VERIFY_MAX: u32 = 3;

/// Two hosts joined by a measured link.
pub(crate) struct LinkedHosts {
    pair: Pair,
    /// The link as requested.
    pub(crate) link: String,
    /// The measurement, as text.
    pub(crate) measured: String,
}

impl LinkedHosts {
    /// Joins two hosts and measures the link between them.
    pub(crate) fn open(lab: &Lab, link: &str) -> Result<Self> {
        let parsed: Link = link.parse()?;
        let pair = lab.pair(&parsed)?;
        let measured = summary(&verify(&pair)?);
        eprintln!("{link}: {measured}");
        Ok(Self { pair, link: link.to_owned(), measured })
    }

    /// Changes the link while it is in use.
    pub(crate) fn reshape(&self, link: &str) -> Result<()> {
        Ok(self.pair.reshape(&link.parse()?)?)
    }

    /// Sets TCP's congestion control on both hosts, for new connections.
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

    /// The server's address for the client.
    pub(crate) fn far_address(&self) -> String {
        match self.far().address() {
            IpAddr::V6(address) => format!("[{address}]"),
            IpAddr::V4(address) => address.to_string(),
        }
    }

    /// Returns the result of `work` and the bytes that the near host received meanwhile, headers of
    /// all layers included. On the local link it counts all bytes over this machine's loopback, those
    /// of other processes too.
    pub(crate) fn received<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
        let before = received_bytes(self.near())?;
        let done = work()?;
        Ok((done, received_bytes(self.near())?.saturating_sub(before)))
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

/// Describes a measured link in the direction of results, and how it differs from the request.
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

/// Bytes that a host has received from others; on the local link, all bytes over this machine's loopback.
pub(crate) fn received_bytes(host: &Host) -> Result<u64> {
    let table = host.run(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
    let local = host.link() == &Link::Local;
    sum_received(&table, local).ok_or_else(|| Error::from("/proc/net/dev has unexpected columns"))
}

/// TCP segments that a host has sent again.
pub(crate) fn retransmitted_segments(host: &Host) -> Result<u64> {
    let table = host.run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?;
    tcp_count(&table, "RetransSegs").ok_or_else(|| Error::from("/proc/net/snmp has no RetransSegs"))
}

/// A count of TCP in `/proc/net/snmp`: a line of names, then a line of numbers.
pub(crate) fn tcp_count(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, numbers) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|known| known == name)?;
    numbers.split_whitespace().nth(at)?.parse().ok()
}

/// Bytes received by the loopback, or by all other interfaces.
pub(crate) fn sum_received(table: &str, loopback: bool) -> Option<u64> {
    let interfaces = table.lines().filter_map(|line| line.split_once(':'));
    let wanted = interfaces.filter(|(name, _)| (name.trim() == "lo") == loopback);
    wanted.map(|(_, counts)| counts.split_whitespace().next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::{sum_received, tcp_count};

    #[test]
    fn received_bytes_are_the_first_count_of_an_interface() {
        let table = "Inter-|   Receive                            |  Transmit\n \
                     face |bytes    packets errs drop|bytes\n    lo: 100 2 0 0 300\n  veth0: 70 1 0 0 5\n  veth1:1 1 0 0 5";
        assert_eq!(sum_received(table, true), Some(100));
        assert_eq!(sum_received(table, false), Some(71));
        assert_eq!(sum_received("  eth0: many", false), None);
    }

    #[test]
    fn counts_of_tcp_are_found_by_their_names() {
        let table = "Ip: Forwarding InReceives\nIp: 1 7\nTcp: MaxConn RetransSegs InSegs\nTcp: -1 23 56\nUdp: InSegs\nUdp: 5";
        assert_eq!(tcp_count(table, "RetransSegs"), Some(23));
        assert_eq!(tcp_count(table, "InSegs"), Some(56));
        assert_eq!(tcp_count(table, "OutSegs"), None);
        assert_eq!(tcp_count("Tcp: InSegs", "InSegs"), None);
    }
}
