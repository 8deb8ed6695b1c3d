//! Creates namespaces and joins them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use crate::error::LabError;
use crate::group::Tree;
use crate::link::{Link, Shape};
use crate::namespace::Namespace;
use crate::rattan::Rattan;
use crate::shaper::Shaper;
use crate::tools;

/// The namespace and address of a host.
#[derive(Debug)]
pub(crate) struct HostNetwork {
    /// `None` is the machine's own.
    pub(crate) namespace: Option<Namespace>,
    pub(crate) address: IpAddr,
}

/// Resources that must live as long as the network.
#[derive(Debug, Default)]
pub(crate) struct Wiring {
    rattans: Vec<Rattan>,
    /// The switch or router.
    centre: Option<Namespace>,
}

impl Wiring {
    /// The switch, and the name of its port to a host; `None` if there is no switch.
    pub(crate) fn port(&self, host: usize) -> Option<(&Namespace, String)> {
        // A router has no such ports.
        let switch = self.centre.as_ref().filter(|_| self.rattans.is_empty())?;
        Some((switch, port(host)))
    }
}

fn port(host: usize) -> String {
    format!("port{host}")
}

/// The group of processes that belong to no host.
const LINKS: &str = "links";

/// Creates `count` places joined by `link`.
pub(crate) fn wire(
    count: usize,
    link: &Link,
    shaper: Shaper,
    tree: &Tree,
) -> Result<(Vec<HostNetwork>, Wiring), LabError> {
    match (link, shaper) {
        (Link::Local, _) => Ok((loopback(count), Wiring::default())),
        (Link::Wire(shape), Shaper::Rattan) if count == 2 => rattan_pair(shape, tree),
        (Link::Wire(shape), Shaper::Rattan) => rattan_star(count, shape, tree),
        (Link::Wire(shape), _) if count == 2 => Ok((pair(shape, shaper)?, Wiring::default())),
        (Link::Wire(shape), _) => star(count, shape, shaper),
    }
}

fn loopback(count: usize) -> Vec<HostNetwork> {
    (0..count).map(|_| HostNetwork { namespace: None, address: Ipv4Addr::LOCALHOST.into() }).collect()
}

fn pair(shape: &Shape, shaper: Shaper) -> Result<Vec<HostNetwork>, LabError> {
    let [a, b] = [Namespace::new()?, Namespace::new()?];
    a.tool(&format!("ip link add eth0 type veth peer name eth0 netns {}", b.path()))?;
    [a, b].into_iter().enumerate().map(|(index, host)| settle(index, host, shape, shaper)).collect()
}

/// Joins each host to a switch by a wire.
fn star(count: usize, shape: &Shape, shaper: Shaper) -> Result<(Vec<HostNetwork>, Wiring), LabError> {
    let switch = Namespace::new()?;
    switch.tool("ip link add switch type bridge")?;
    switch.tool("ip link set switch up")?;
    let mut places = Vec::with_capacity(count);
    for index in 0..count {
        let host = Namespace::new()?;
        let port = port(index);
        host.tool(&format!("ip link add eth0 type veth peer name {port} netns {}", switch.path()))?;
        switch.tool(&format!("ip link set {port} master switch up"))?;
        shape_end(&switch, &port, &shape.without_delay_and_loss(), Shaper::Tbf)?;
        places.push(settle(index, host, shape, shaper)?);
    }
    Ok((places, Wiring { centre: Some(switch), ..Wiring::default() }))
}

fn rattan_pair(shape: &Shape, tree: &Tree) -> Result<(Vec<HostNetwork>, Wiring), LabError> {
    let b = Namespace::new()?;
    let rattan = Rattan::start(&rattan()?, [shape, shape], &b, &tree.group(LINKS)?)?;
    let a = HostNetwork { namespace: Some(rattan.left.clone()), address: rattan.left_address };
    let b = HostNetwork { namespace: Some(b), address: rattan.right_address };
    Ok((vec![a, b], Wiring { rattans: vec![rattan], ..Wiring::default() }))
}

/// Joins each host to a router by a rattan link.
fn rattan_star(count: usize, shape: &Shape, tree: &Tree) -> Result<(Vec<HostNetwork>, Wiring), LabError> {
    let (program, links) = (rattan()?, tree.group(LINKS)?);
    let router = Namespace::new()?;
    router
        .run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))
        .map_err(LabError::io("can't enable forwarding in the router"))?;
    let down = shape.without_delay_and_loss();
    // One after the other, because each checks which addresses are taken.
    let rattans: Vec<_> = (0..count)
        .map(|_| Rattan::start(&program, [shape, &down], &router, &links))
        .collect::<Result<_, _>>()?;
    let place =
        |rattan: &Rattan| HostNetwork { namespace: Some(rattan.left.clone()), address: rattan.left_address };
    Ok((rattans.iter().map(place).collect(), Wiring { rattans, centre: Some(router) }))
}

/// Gives a host with an `eth0` its address and its end of the link.
fn settle(index: usize, host: Namespace, shape: &Shape, shaper: Shaper) -> Result<HostNetwork, LabError> {
    // The addresses are private to the network, so all networks use the same ones.
    let address = Ipv4Addr::new(10, 77, 0, index as u8 + 1);
    host.tool(&format!("ip address add {address}/24 dev eth0"))?;
    host.tool("ip link set eth0 up")?;
    if shaper == Shaper::Netem {
        // Otherwise netem would drop and count a segment of up to 64 KB as one packet.
        host.tool("ip link set eth0 gso_max_segs 1")?;
    }
    shape_end(&host, "eth0", shape, shaper)?;
    Ok(HostNetwork { namespace: Some(host), address: address.into() })
}

/// Shapes the traffic that leaves `namespace` by `device`.
fn shape_end(namespace: &Namespace, device: &str, shape: &Shape, shaper: Shaper) -> Result<(), LabError> {
    match shape.qdisc(shaper) {
        Some(words) => namespace.tool(&format!("tc qdisc add dev {device} root {words}")),
        None => Ok(()),
    }
}

fn rattan() -> Result<PathBuf, LabError> {
    tools::rattan().map_or_else(tools::install_rattan, Ok)
}
