//! What a query of a node does.

use arrow_array::cast::AsArray;
use lightship_engine::Explained;
use lightship_session::Client;
use lightship_sources::Location;

use crate::{Error, ErrorKind, Result, node};

/// What a node says of a query.
#[derive(Debug, Clone, PartialEq)]
pub enum Explanation {
    /// A query of a cluster: stages, nodes, and what went between them.
    Distributed(Explained),
    /// A query of a single node: the names of its plans and the plans, in DataFusion's words.
    Plans(Vec<(String, String)>),
}

/// Asks a node what a query does; with `analyze` the query is run, its rows are thrown away, and what was measured is
/// said as well.
///
/// # Errors
/// For a location that is no node, and when the node refuses the query or is lost.
pub async fn explain(location: &Location, sql: &str, analyze: bool) -> Result<Explanation> {
    if !matches!(location, Location::Node { .. } | Location::NodeUnix { .. }) {
        return Err(Error::usage("only queries of nodes can be explained")
            .hint("of a database, `lightship fetch URI 'EXPLAIN ...'` shows its own plan"));
    }
    let unexpected = || Error::new(ErrorKind::Internal, "an explanation of other columns");
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
    let explained = serde_json::from_str(&text).map_err(|error| {
        Error::new(ErrorKind::Internal, format!("an explanation that can't be read: {error}"))
    })?;
    Ok(Explanation::Distributed(explained))
}
