//! Removes nodes from a cluster for good and adds them again, for a program that has the cluster's token.

use lightship_transport::Result;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming};
use lightship_wire::cluster::{Recipient, Task};
use lightship_wire::control::Plan;
use prost::Message as _;

use super::request::{Change, Request, RequestKind};

/// A change of the cluster's members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// Removes a node for good: its rows are no longer part of the tables.
    Remove(String),
    /// Adds a removed node again.
    Add(String),
}

/// Asks a node to change the members of its cluster; the node tells the others.
///
/// `config` has the cluster's token. When this returns, the node has stored the change on disk.
///
/// # Errors
/// When the node can't be reached, is not in a cluster, has another token, or refuses the change.
pub async fn change_members(endpoint: &Endpoint, config: &ClientConfig, change: MemberChange) -> Result<()> {
    let config = ClientConfig { peer: true, shared_memory: false, ..config.clone() };
    let (node, remove) = match change {
        MemberChange::Remove(node) => (node, true),
        MemberChange::Add(node) => (node, false),
    };
    let body = Request { kind: Some(RequestKind::Change(Change { node, remove })) }.encode_to_vec();
    let mut connection = Connection::connect(endpoint, &config).await?;
    connection.task(&Task { recipient: Recipient::Engine, body, plan: Plan::default() }).await?;
    while !matches!(connection.next().await?, Incoming::Finished(_)) {}
    Ok(())
}
