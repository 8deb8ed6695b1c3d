//! The nodes of a cluster, one for each host, and what is measured of them.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Instant;

use arrow_array::RecordBatch;
use lab::{Host, LabError, Link};
use lightship_session::{Client, ClientConfig, Endpoint, Options};
use tokio::runtime::Builder;

use crate::Result;
use crate::links::{received_bytes, summary};
use crate::parts::Part;
use crate::process::Process;

/// The first port. Each cluster on the same hosts has its own ports.
const PORT: u16 = 7400;

/// How to start the nodes of a cluster.
pub(super) struct Setup<'h, 's> {
    /// The build.
    pub(super) program: &'s Path,
    pub(super) hosts: &'h [Host],
    /// Which of the clusters that run on the hosts at the same time.
    pub(super) number: usize,
    /// The folder of each node; of all nodes, if there is one.
    pub(super) folders: &'s [&'s Path],
    pub(super) partitions: usize,
    pub(super) grpc: bool,
    /// Connections for rows between nodes, if they can be part of an overlay.
    pub(super) connections: Option<usize>,
}

/// Nodes that all know each other, one per host.
pub(super) struct Cluster<'a> {
    hosts: &'a [Host],
    addresses: Vec<SocketAddr>,
    nodes: Vec<Process>,
}

impl<'a> Cluster<'a> {
    pub(super) fn start(setup: &Setup<'a, '_>) -> Result<Self> {
        let Setup { program, hosts, folders, .. } = *setup;
        let port = |index: usize| PORT + 2 * (setup.number * hosts.len() + index) as u16;
        let address = |(index, host): (usize, &Host)| SocketAddr::new(host.address(), port(index));
        let addresses: Vec<SocketAddr> = hosts.iter().enumerate().map(address).collect();
        let first = addresses[0].to_string();
        let (partitions, connections) =
            (setup.partitions.to_string(), setup.connections.map(|most| most.to_string()));
        let mut nodes = Vec::new();
        for (index, host) in hosts.iter().enumerate() {
            let folder = folders.get(index).or(folders.first()).ok_or("nodes without a folder")?;
            let (folder, address) = (folder.display().to_string(), addresses[index].to_string());
            let mut arguments = vec!["cluster-node", &folder, &address, "--partitions", &partitions];
            arguments.extend((folders.len() == 1).then_some("--shared"));
            arguments.extend(setup.grpc.then_some("--grpc"));
            if let Some(connections) = &connections {
                arguments.extend(["--connections", connections]);
            }
            if index > 0 {
                arguments.extend(["--join", &first]);
            }
            let mut node = Part::spawn_of(program, Some(host), &arguments)?;
            node.line()?;
            nodes.push(node);
        }
        for node in &mut nodes {
            while node.line()?.parse() != Ok(hosts.len()) {}
        }
        Ok(Self { hosts, addresses, nodes })
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Runs a query on the node of a host, from that host.
    pub(super) fn query(&self, host: usize, sql: &str) -> Result<(f64, Vec<RecordBatch>)> {
        let address = self.addresses[host];
        let endpoint = Endpoint::Tcp { host: address.ip().to_string(), port: address.port(), tls: None };
        let ask = async {
            let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
            let mut client = Client::connect_with(&endpoint, &config).await?;
            let began = Instant::now();
            let mut transfer = client.fetch(sql, &Options::default()).await?;
            let mut rows = Vec::new();
            while let Some(batch) = transfer.next().await? {
                rows.push(batch);
            }
            Ok::<_, lightship_session::TransportError>((began.elapsed().as_secs_f64(), rows))
        };
        let run =
            || Builder::new_current_thread().enable_all().build()?.block_on(ask).map_err(io::Error::other);
        Ok(self.hosts[host].run(run)?)
    }

    /// Bytes that all hosts received from each other; NaN if there is only a loopback.
    fn wire_bytes(&self) -> Result<f64> {
        let mut sum = 0.0;
        for host in self.hosts {
            if host.link() == &Link::Local {
                return Ok(f64::NAN);
            }
            sum += received_bytes(host)? as f64;
        }
        Ok(sum)
    }

    fn processor_seconds(&self) -> Result<f64> {
        self.nodes.iter().map(Process::processor_seconds).sum()
    }

    /// Runs a query. Returns its seconds, the megabytes that hosts received, the seconds of processors, and its rows.
    pub(super) fn measure(&self, host: usize, sql: &str) -> Result<(Vec<f64>, Vec<RecordBatch>)> {
        let (bytes, processors) = (self.wire_bytes()?, self.processor_seconds()?);
        let (seconds, rows) = self.query(host, sql)?;
        let figures =
            vec![seconds, (self.wire_bytes()? - bytes) / 1e6, self.processor_seconds()? - processors];
        Ok((figures, rows))
    }
}

/// Measures the link between two of the hosts, as text.
pub(super) fn measured(hosts: &[Host]) -> Result<String> {
    match lab::verify(&hosts[0], &hosts[1]) {
        Ok(measured) => Ok(summary(&measured)),
        // The machine is busy: report the measurement beside the figures.
        Err(LabError::FarOff { measured, .. }) => Ok(summary(&measured)),
        Err(error) => Err(error.into()),
    }
}
