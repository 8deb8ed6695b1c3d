//! Explains how a node executes a query.

use arrow_array::cast::AsArray;
use lightship_engine::Explained;
use lightship_session::Client;
use lightship_sources::Location;

use crate::{Error, ErrorKind, Result, node};

/// How a node executes a query.
#[derive(Debug, Clone, PartialEq)]
pub enum Explanation {
    /// A query on a cluster: its stages, its nodes, and the data exchanged between them.
    Distributed(Explained),
    /// A query on a single node: the name and text of each DataFusion plan.
    Plans(Vec<(String, String)>),
}

/// Asks a node how it executes a query. With `analyze` the node runs the query, discards the rows, and
/// adds what it measured.
///
/// # Errors
/// If the location is not a node, or the node refuses the query or is lost.
pub async fn explain(location: &Location, sql: &str, analyze: bool) -> Result<Explanation> {
    if !matches!(location, Location::Node { .. } | Location::NodeUnix { .. }) {
        return Err(Error::usage("only queries on nodes can be explained")
            .hint("for the plan of a database, run `lightship fetch URI 'EXPLAIN ...'`"));
    }
    let unexpected = || Error::new(ErrorKind::Internal, "unexpected columns in the explanation");
    let (endpoint, config) = node::endpoint(location)?;
    let mut client = Client::connect_with(&endpoint, &config).await?;
    let verb = if analyze { "explain analyze" } else { "explain" };
    let mut result = client.fetch(&format!("{verb} {sql}"), &lightship_session::Options::default()).await?;
    let mut plans = Vec::new();
    while let Some(rows) = result.next().await? {
        let [names, texts] = rows.columns() else { return Err(unexpected()) };
        let (names, texts) =
            names.as_string_opt::<i32>().zip(texts.as_string_opt::<i32>()).ok_or_else(unexpected)?;
        let pairs = names.iter().zip(texts);
        plans.extend(pairs.filter_map(|(name, text)| Some((name?.to_owned(), text?.to_owned()))));
    }
    let Some(at) = plans.iter().position(|(name, _)| name == "distributed_plan_json") else {
        return Ok(Explanation::Plans(plans));
    };
    let (_, text) = plans.swap_remove(at);
    let explained = serde_json::from_str(&text)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("cannot read the explanation: {error}")))?;
    Ok(Explanation::Distributed(explained))
}
