//! The settings of a node in a cluster, and what it reports about the other nodes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lightship::node::is_this_host;
use lightship_engine::{ClusterConfig, Engine, MemberState};
use lightship_sources::location::NODE_PORT;
use lightship_transport::net::{Listen, tls};
use tokio::sync::watch;

use super::NodeArgs;
use crate::error::CliError;

impl NodeArgs {
    /// Whether it is a node of a cluster.
    pub(super) fn is_clustered(&self) -> bool {
        !self.join.is_empty() || self.advertise.is_some()
    }

    pub(super) fn cluster_token(&self) -> Result<String, CliError> {
        let Some(path) = &self.cluster_token_file else {
            let far = self.addresses()?.into_iter().find(|listen| !listen.is_local());
            return match far.filter(|_| !self.insecure) {
                Some(listen) => Err(CliError::usage(format!(
                    "{listen} can be reached from other hosts, which requires a cluster token"
                ))
                .hint("give all nodes the same file with --cluster-token-file")),
                None if !self.token.is_empty() || self.token_file.is_some() => {
                    Err(CliError::usage("clients need a token, but other nodes could join without one")
                        .hint("give all nodes the same file with --cluster-token-file"))
                }
                None => Ok(String::new()),
            };
        };
        token_in(path)
    }

    /// The cluster settings of a node that listens on these addresses.
    pub(super) fn cluster(&self, listening: &[Listen]) -> Result<ClusterConfig, CliError> {
        let specific = listening.iter().find_map(|listen| match listen {
            Listen::Tcp(address) if !address.ip().is_unspecified() => Some(address.to_string()),
            _ => None,
        });
        let port = listening.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(_) => None,
        });
        let name = match (&self.advertise, specific) {
            // Port 0 stands for the port that the system picked.
            (Some(name), _) if name.ends_with(":0") => {
                format!("{}:{}", name.trim_end_matches(":0"), port.unwrap_or(NODE_PORT))
            }
            (Some(name), _) if name.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok()) => {
                name.clone()
            }
            (Some(name), _) => format!("{name}:{NODE_PORT}"),
            (None, Some(address)) => address,
            (None, None) => {
                return Err(CliError::usage("other nodes can't reach this node by the address of --listen")
                    .hint("give the address by which they can: --advertise HOST[:PORT]"));
            }
        };
        let tls = match (&self.tls_cert, &self.cluster_ca) {
            (Some(_), Some(path)) => Some(tls::client_with_authority(path)?),
            (Some(_), None) => {
                return Err(CliError::usage("the certificates of other nodes can't be verified")
                    .hint("give the certificate of the CA that signed them: --cluster-ca FILE"));
            }
            (None, _) => None,
        };
        let with_port = |text: &String| match text.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => text.clone(),
            _ => format!("{text}:{NODE_PORT}"),
        };
        let token = self.cluster_token()?;
        let host = |node: &String| node.rsplit_once(':').map_or(node.clone(), |(host, _)| host.to_owned());
        let far =
            self.join.iter().map(with_port).find(|node| !is_this_host(host(node).trim_matches(['[', ']'])));
        if let Some(far) = far.filter(|_| tls.is_none() && !token.is_empty() && !self.insecure) {
            return Err(CliError::usage(format!("the cluster token would be sent to {far} unencrypted"))
                .hint(
                    "give --tls-cert, --tls-key and --cluster-ca, or --insecure if the network is trusted",
                ));
        }
        let defaults = ClusterConfig::default();
        let mut config = ClusterConfig {
            name,
            join: self.join.iter().map(with_port).collect(),
            state_folder: self.state_folder()?,
            expect_nodes: self.expect_nodes.unwrap_or(0),
            drop_parts: self.drop_part.clone(),
            token,
            tls,
            exchange_bytes: self
                .exchange_memory
                .map(|size| size.0)
                .or(self.shares()?.map(|shares| shares.exchange))
                .unwrap_or(defaults.exchange_bytes),
            ..defaults
        };
        self.add_overlay(&mut config)?;
        Ok(config)
    }

    /// Where the node stores the members of its cluster; `None` if the system picks its port.
    pub(super) fn state_folder(&self) -> Result<Option<PathBuf>, CliError> {
        let is_picked = |listen: &Listen| matches!(listen, Listen::Tcp(address) if address.port() == 0);
        if self.state_folder.is_some() || self.addresses()?.iter().any(is_picked) {
            return Ok(self.state_folder.clone());
        }
        lightship_session::state_folder("cluster", None).map(Some).ok_or_else(|| {
            CliError::usage(
                "no folder to store the members of the cluster in: neither XDG_STATE_HOME nor HOME is set",
            )
            .hint("give one with --state-folder DIR")
        })
    }
}

/// Reads the token of a cluster from a file.
pub(in crate::commands) fn token_in(path: &Path) -> Result<String, CliError> {
    let text =
        std::fs::read_to_string(path).map_err(|e| CliError::usage(format!("{}: {e}", path.display())))?;
    match text.trim() {
        "" => Err(CliError::usage(format!("{}: no token in it", path.display()))),
        token => Ok(token.to_owned()),
    }
}

/// Reports nodes that join and leave. When this node is asked to stop, tells the others that it leaves.
pub(super) async fn follow(engine: Arc<Engine>, mut stop: watch::Receiver<bool>) {
    let Some(mut changes) = engine.watch_cluster() else { return };
    let mut told = BTreeMap::new();
    let mut overlaid = 0;
    loop {
        let overlay = engine.cluster_overlay().filter(|overlay| overlay.is_open);
        let nodes = overlay.map_or(0, |overlay| overlay.nodes.len());
        if nodes != overlaid {
            overlaid = nodes;
            match nodes {
                0 => crate::say!("rows go directly between nodes"),
                nodes => crate::say!("rows go over an overlay of {nodes} nodes"),
            }
        }
        let now: BTreeMap<String, Option<String>> = engine
            .cluster_nodes()
            .into_iter()
            .filter(|node| !node.is_self)
            .filter(|node| !matches!(node.state, MemberState::Connecting | MemberState::Removed))
            .map(|node| (node.name, node.why))
            .collect();
        for (name, absent) in &now {
            if told.get(name) != Some(absent) {
                match absent {
                    None => crate::say!("node {name} joined"),
                    Some(why) => crate::say!("{why}"),
                }
            }
        }
        told.keys()
            .filter(|name| !now.contains_key(*name))
            .for_each(|name| crate::say!("node {name} no longer belongs to the cluster"));
        told = now;
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            // A closed channel also means to stop.
            _ = stop.wait_for(|&asked| asked) => return engine.leave(),
        }
    }
}
