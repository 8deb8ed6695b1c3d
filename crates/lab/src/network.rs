//! Labs and the hosts of their networks.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

use crate::check::Check;
use crate::error::LabError;
use crate::group::{Group, Tree};
use crate::guardian::Guardian;
use crate::limits::Limits;
use crate::link::Link;
use crate::measure::verify;
use crate::measured::Measured;
use crate::namespace::{Namespace, enter, on_a_thread};
use crate::say;
use crate::shaper::Shaper;
use crate::tools;
use crate::wiring::{self, HostNetwork, Wiring};

/// The maximum number of hosts in a network.
pub const HOSTS_MAX: usize = 64;

/// Creates networks of hosts on this machine.
#[derive(Debug)]
pub struct Lab {
    netem: bool,
}

/// Two hosts joined by a link.
#[derive(Debug)]
pub struct Pair {
    /// The host that usually runs the command.
    pub a: Host,
    /// The host that usually runs the server.
    pub b: Host,
}

/// A host. The hosts of a network end together: when the last one is dropped, all processes
/// started on any of them are killed.
#[derive(Debug)]
pub struct Host {
    name: String,
    /// Its number in the network, from 0.
    index: usize,
    address: IpAddr,
    /// `None` is the machine's own.
    namespace: Option<Namespace>,
    group: Group,
    network: Arc<Network>,
}

/// Fields are dropped in this order, so that all processes end before the links they use.
#[derive(Debug)]
struct Network {
    _guardian: Guardian,
    wiring: Wiring,
    link: Link,
    shaper: Shaper,
}

impl Lab {
    /// Checks that this machine can run a lab.
    ///
    /// # Errors
    /// [`LabError::Missing`], with what is missing and how to get it.
    pub fn new() -> Result<Self, LabError> {
        let (found, missing): (Vec<_>, Vec<_>) = tools::doctor().into_iter().partition(|check| check.found);
        let missing: Vec<Check> = missing.into_iter().filter(|check| check.required).collect();
        if missing.is_empty() {
            Ok(Self { netem: found.iter().any(|check| check.what == "netem") })
        } else {
            Err(LabError::Missing(missing))
        }
    }

    /// For tests: returns a lab, or prints to stderr why there is none. The test harness does
    /// not capture the message.
    ///
    /// # Panics
    /// If the check itself fails.
    pub fn or_skip() -> Option<Self> {
        match Self::new() {
            Ok(lab) => Some(lab),
            Err(missing @ LabError::Missing(_)) => {
                say(&format!("skipped: {missing}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether rattan must be installed before this link can be created, which takes minutes.
    pub fn needs_install(&self, link: &Link) -> bool {
        matches!(self.shaper(link), Ok(Shaper::Rattan)) && tools::rattan().is_none()
    }

    /// The shaper for `link` on this machine.
    ///
    /// # Errors
    /// [`LabError::TooFast`].
    pub fn shaper(&self, link: &Link) -> Result<Shaper, LabError> {
        Shaper::choose(link, self.netem)
    }

    /// Creates two hosts joined by one wire.
    ///
    /// # Errors
    /// As [`Lab::hosts`].
    pub fn pair(&self, link: &Link) -> Result<Pair, LabError> {
        let mut hosts = self.hosts(2, link)?.into_iter();
        match (hosts.next(), hosts.next()) {
            (Some(a), Some(b)) => Ok(Pair { a, b }),
            _ => Err(LabError::Hosts { asked: 2, max: HOSTS_MAX }),
        }
    }

    /// Creates 1 to [`HOSTS_MAX`] hosts that can all reach each other. Three or more hosts
    /// are each connected to a switch by a wire. Delay and loss apply towards the switch, the
    /// bandwidth limit in both directions. So the link between any two hosts is as requested, and
    /// the total that a host receives is limited too.
    ///
    /// Installs rattan if it is needed and missing, and reports this on stderr.
    ///
    /// # Errors
    /// If no shaper can carry the link, or a system call fails. Nothing is left behind.
    pub fn hosts(&self, count: usize, link: &Link) -> Result<Vec<Host>, LabError> {
        if !(1..=HOSTS_MAX).contains(&count) {
            return Err(LabError::Hosts { asked: count, max: HOSTS_MAX });
        }
        let shaper = self.shaper(link)?;
        let tree = Tree::plan()?;
        let guardian = Guardian::spawn(&tree.roots())?;
        tree.create()?;
        let (places, wiring) = wiring::wire(count, link, shaper, &tree)?;
        let network = Arc::new(Network { _guardian: guardian, wiring, link: *link, shaper });
        let host = |(index, HostNetwork { namespace, address }): (usize, HostNetwork)| {
            let name = name(index);
            let group = tree.group(&name)?;
            Ok(Host { name, index, address, namespace, group, network: Arc::clone(&network) })
        };
        places.into_iter().enumerate().map(host).collect()
    }
}

impl Pair {
    /// Measures the link between the two hosts: [`verify`].
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self) -> Result<Measured, LabError> {
        verify(&self.a, &self.b)
    }

    /// Changes the bandwidth of the link while it is in use. The delay and loss of `link` are
    /// ignored. [`Host::link`] and [`Pair::verify`] still refer to the original link.
    ///
    /// # Errors
    /// [`LabError::Reshape`] unless the current link is shaped by a token bucket and the new one is a
    /// wire with a bandwidth; [`LabError::Tool`] if `tc` fails.
    pub fn reshape(&self, link: &Link) -> Result<(), LabError> {
        self.a.reshape(link)?;
        self.b.reshape(link)
    }
}

impl Host {
    /// The name: `a`, `b` and so on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which other hosts reach it; 127.0.0.1 if the link is local.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The link it was created with.
    pub fn link(&self) -> &Link {
        &self.network.link
    }

    /// Changes the bandwidth of this host's link while it is in use: of what it sends and, if there are more
    /// than two hosts, of what it receives. The delay and loss of `link` are ignored. [`Host::link`] and
    /// [`verify`] still refer to the original link.
    ///
    /// # Errors
    /// [`LabError::Reshape`] unless the current link is shaped by a token bucket and the new one is a
    /// wire with a bandwidth; [`LabError::Tool`] if `tc` fails.
    pub fn reshape(&self, link: &Link) -> Result<(), LabError> {
        let refused = || LabError::Reshape { from: self.link().to_string(), to: link.to_string() };
        let (Link::Wire(shape), Link::Wire(made), Shaper::Tbf) = (link, self.link(), self.shaper()) else {
            return Err(refused());
        };
        // Frames that already wait in the queue are not split again. With a smaller bucket, one that is
        // larger than the bucket would wait forever.
        let words = shape.bucket(made.burst_bytes().unwrap_or(0)).ok_or_else(refused)?;
        let namespace = self.namespace.as_ref().ok_or_else(refused)?;
        namespace.tool(&format!("tc qdisc change dev eth0 root {words}"))?;
        if let Some((switch, port)) = self.network.wiring.port(self.index) {
            switch.tool(&format!("tc qdisc change dev {port} root {words}"))?;
        }
        Ok(())
    }

    /// The shaper of its link.
    pub fn shaper(&self) -> Shaper {
        self.network.shaper
    }

    /// A message about the part of the link that this machine can't emulate, if any.
    pub fn left_out(&self) -> Option<String> {
        self.network.shaper.leaves_out(&self.network.link)
    }

    /// A command that runs in this host's namespace and group, as do all processes it
    /// starts. They are killed with the network. The caller must wait for it, as for any child.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        enter(&mut command, self.namespace.as_ref(), Some(&self.group));
        command
    }

    /// Runs `f` on a thread in this host's network. Sockets that it opens stay there,
    /// wherever they are used. Processes that it starts have the host's network, but
    /// have no limits and are not killed with the host.
    ///
    /// # Errors
    /// The error of `f`, or of entering the namespace.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.run(f),
            None => f(),
        }
    }

    /// The same with the host's limit of processor time, which all threads that run so share, and all that they start. They must
    /// have ended before the network is dropped: what belongs to a host's group then is killed, which is this whole process.
    ///
    /// # Errors
    /// As [`Self::run`], and if this machine limits no single threads (control groups of version 2).
    pub fn run_limited<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        let join_and_run = || {
            self.group.join_as_thread()?;
            f()
        };
        match &self.namespace {
            Some(namespace) => namespace.run(join_and_run),
            None => on_a_thread(join_and_run),
        }
    }

    /// Sets the limits that are `Some`. They also apply to processes that already run.
    ///
    /// # Errors
    /// If a limit is invalid, or no control group supports it.
    pub fn limit(&self, limits: &Limits) -> Result<(), LabError> {
        self.group.limit(limits)
    }
}

/// The name of a host: `a` to `z`, then `a1` to `z1`, and so on.
fn name(index: usize) -> String {
    let letter = char::from(b'a' + (index % 26) as u8);
    match index / 26 {
        0 => letter.to_string(),
        more => format!("{letter}{more}"),
    }
}
