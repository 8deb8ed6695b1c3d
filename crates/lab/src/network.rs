//! Labs and the hosts of their networks.

use std::ffi::OsStr;
use std::io;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;

use crate::error::LabError;
use crate::group::{Group, Tree};
use crate::guardian::Guardian;
use crate::limits::Limits;
use crate::link::Link;
use crate::measure::{Measured, verify};
use crate::namespace::{Namespace, enter};
use crate::say;
use crate::shaper::Shaper;
use crate::tools::{self, Check};
use crate::wiring::{self, Place, Wiring};

/// The most hosts of one network: each has a letter.
pub const HOSTS_MAX: usize = 26;

/// A machine that can be several. Makes networks; holds nothing itself.
#[derive(Debug)]
pub struct Lab {
    netem: bool,
}

/// Two hosts that a link joins.
#[derive(Debug)]
pub struct Pair {
    /// Where the command usually runs.
    pub a: Host,
    /// Where the server usually runs.
    pub b: Host,
}

/// A host. The hosts of a network end together: when the last is dropped, all that
/// was started on any of them is killed.
#[derive(Debug)]
pub struct Host {
    name: String,
    address: IpAddr,
    /// None is the machine's own.
    namespace: Option<Namespace>,
    group: Group,
    network: Arc<Network>,
}

/// Fields are dropped in this order: all processes end before what they used.
#[derive(Debug)]
struct Network {
    _guardian: Guardian,
    _wiring: Wiring,
    link: Link,
    shaper: Shaper,
}

impl Lab {
    /// Checks that this machine can be a lab.
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

    /// For tests: a lab, or the reason on stderr (past the harness, which keeps what
    /// passing tests print) and nothing.
    ///
    /// # Panics
    /// When checking itself fails.
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

    /// Whether a link of this kind would first have rattan installed, which takes
    /// minutes.
    pub fn needs_install(&self, link: &Link) -> bool {
        matches!(self.shaper(link), Ok(Shaper::Rattan)) && tools::rattan().is_none()
    }

    /// What would shape `link` here.
    ///
    /// # Errors
    /// [`LabError::TooFast`].
    pub fn shaper(&self, link: &Link) -> Result<Shaper, LabError> {
        Shaper::choose(link, self.netem)
    }

    /// Two hosts, joined by one wire.
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

    /// 1 to [`HOSTS_MAX`] hosts that all reach all. Three or more have a wire each to
    /// a switch: delay and loss are on the way to it, the bandwidth is both ways, so
    /// between any two the link is as asked for, and what one host receives from all
    /// is bounded too.
    ///
    /// Installs rattan if it is needed and missing, and says so on stderr.
    ///
    /// # Errors
    /// When there is no such shaper, or the system refuses. Nothing is left behind.
    pub fn hosts(&self, count: usize, link: &Link) -> Result<Vec<Host>, LabError> {
        if !(1..=HOSTS_MAX).contains(&count) {
            return Err(LabError::Hosts { asked: count, max: HOSTS_MAX });
        }
        let shaper = self.shaper(link)?;
        let tree = Tree::plan()?;
        let guardian = Guardian::spawn(&tree.roots())?;
        tree.create()?;
        let (places, wiring) = wiring::wire(count, link, shaper, &tree)?;
        let network = Arc::new(Network { _guardian: guardian, _wiring: wiring, link: *link, shaper });
        let host = |(index, Place { namespace, address }): (usize, Place)| {
            let name = name(index);
            let group = tree.group(&name)?;
            Ok(Host { name, address, namespace, group, network: Arc::clone(&network) })
        };
        places.into_iter().enumerate().map(host).collect()
    }
}

impl Pair {
    /// Measures the link between the two: [`verify`].
    ///
    /// # Errors
    /// As [`verify`].
    pub fn verify(&self) -> Result<Measured, LabError> {
        verify(&self.a, &self.b)
    }

    /// Makes the link another one while it is in use. [`Host::link`] and [`Pair::verify`] go on to speak of
    /// the one it was made as.
    ///
    /// # Errors
    /// [`LabError::Reshape`] where either has delay or loss that is really made, or is no wire;
    /// [`LabError::Tool`] when the system refuses.
    pub fn reshape(&self, link: &Link) -> Result<(), LabError> {
        let refused = || LabError::Reshape { from: self.a.link().to_string(), to: link.to_string() };
        let (Link::Wire(shape), Link::Wire(made), Shaper::Tbf) = (link, self.a.link(), self.a.shaper())
        else {
            return Err(refused());
        };
        // Frames that wait in the bucket are not cut any more: one that is larger than it would wait for ever.
        let words = shape.bucket(made.burst_bytes().unwrap_or(0)).ok_or_else(refused)?;
        for host in [&self.a, &self.b] {
            let namespace = host.namespace.as_ref().ok_or_else(refused)?;
            namespace.tool(&format!("tc qdisc change dev eth0 root {words}"))?;
        }
        Ok(())
    }
}

impl Host {
    /// `a`, `b` and so on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the other hosts reach it; 127.0.0.1 when the link is local.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The link it was made with.
    pub fn link(&self) -> &Link {
        &self.network.link
    }

    /// What shapes its link.
    pub fn shaper(&self) -> Shaper {
        self.network.shaper
    }

    /// What of the link this machine can't make, for people; most links have nothing
    /// of the kind.
    pub fn left_out(&self) -> Option<String> {
        self.network.shaper.leaves_out(&self.network.link)
    }

    /// A command that will run in this host's namespace and group, and so will all it
    /// starts. They are killed with the network. Whoever spawns it waits for it, as ever.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        enter(&mut command, self.namespace.as_ref(), Some(&self.group));
        command
    }

    /// Runs `f` on a thread in this host's network. Sockets that it opens stay there,
    /// wherever they are used. Processes that it starts have the host's network, but
    /// are under no limit and are not killed with the host.
    ///
    /// # Errors
    /// What `f` returns, and when the namespace can't be entered.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        match &self.namespace {
            Some(namespace) => namespace.run(f),
            None => f(),
        }
    }

    /// Sets the limits that are `Some`; they hold for what runs already, too.
    ///
    /// # Errors
    /// When a limit makes no sense, or no control group has it.
    pub fn limit(&self, limits: &Limits) -> Result<(), LabError> {
        self.group.limit(limits)
    }
}

/// The letter of a host: `a` is the first.
fn name(index: usize) -> String {
    char::from(b'a' + index as u8).to_string()
}
