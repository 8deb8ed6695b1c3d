//! Refuses options of a node that have no effect or with which it can't work.

use std::path::Path;

use super::NodeArgs;
use crate::error::CliError;

impl NodeArgs {
    /// Checks the options before anything is opened.
    pub(super) fn check(&self) -> Result<(), CliError> {
        if self.connections_max == Some(0) {
            return Err(CliError::usage("--connections-max must be at least 1: with 0, no client is served"));
        }
        if self.connections_between_nodes.is_some_and(|most| most < 2) {
            return Err(CliError::usage(
                "--connections-between-nodes must be at least 2: an overlay with fewer can't connect all nodes",
            ));
        }
        if self.flight_endpoints.is_some() && self.flight.is_none() {
            return Err(CliError::usage("--flight-endpoints requires --flight HOST:PORT"));
        }
        let unused = self.cluster_options().into_iter().find(|(_, is_given)| *is_given);
        match unused.filter(|_| !self.is_clustered()) {
            Some((option, _)) => Err(CliError::usage(format!(
                "{option} requires a cluster, but neither --join nor --advertise is given"
            ))
            .hint("join a cluster with --join HOST:PORT, or start one with --advertise HOST:PORT")),
            None => Ok(()),
        }
    }

    /// The options that only a node of a cluster uses, and whether they are given.
    fn cluster_options(&self) -> [(&'static str, bool); 12] {
        [
            ("--shared-table", !self.shared_table.is_empty()),
            ("--shared-data", self.shared_data.is_some()),
            ("--expect-nodes", self.expect_nodes.is_some()),
            ("--state-folder", self.has_state_option()),
            ("--drop-part", !self.drop_part.is_empty()),
            ("--cluster-token-file", self.cluster_token_file.is_some()),
            ("--cluster-ca", self.cluster_ca.is_some()),
            ("--exchange-memory", self.exchange_memory.is_some()),
            ("--exchange-message", self.exchange_message.is_some()),
            ("--overlay-listen", self.overlay_listen.is_some()),
            ("--overlay-advertise", self.overlay_advertise.is_some()),
            ("--connections-between-nodes", self.connections_between_nodes.is_some()),
        ]
    }

    /// Whether the state folder is given as an option. The environment may name it for all nodes of a
    /// host, also for those without a cluster.
    fn has_state_option(&self) -> bool {
        let set = std::env::var_os("LIGHTSHIP_STATE");
        self.state_folder.is_some() && self.state_folder.as_deref() != set.as_deref().map(Path::new)
    }
}
