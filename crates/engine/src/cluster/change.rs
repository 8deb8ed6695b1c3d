//! Taking nodes out of a cluster for good, and in again, by a program that has the cluster's token.

use lightship_transport::Result;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming};
use lightship_wire::cluster::Task;
use lightship_wire::control::Plan;
use prost::Message as _;

use super::ask::{Ask, Change, Request};

/// What is to become of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberChange {
    /// It is removed for good: its rows no longer belong to the tables.
    Remove(String),
    /// It is taken in again, after it was removed.
    Add(String),
}

/// Asks a node to change which nodes belong to its cluster; it tells the others.
///
/// `config` has the cluster's token. Once this returns, the node that was asked has it on disk.
///
/// # Errors
/// When the node can't be reached, is in no cluster, has another token, or refuses the change.
pub async fn change_members(endpoint: &Endpoint, config: &ClientConfig, change: MemberChange) -> Result<()> {
    let config = ClientConfig { peer: true, shared_memory: false, ..config.clone() };
    let (node, remove) = match change {
        MemberChange::Remove(node) => (node, true),
        MemberChange::Add(node) => (node, false),
    };
    let body = Request { ask: Some(Ask::Change(Change { node, remove })) }.encode_to_vec();
    let mut connection = Connection::connect(endpoint, &config).await?;
    connection.task(&Task { body, plan: Plan::default() }).await?;
    while !matches!(connection.next().await?, Incoming::Finished(_)) {}
    Ok(())
}
