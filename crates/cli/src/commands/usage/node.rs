//! The queries of a node, by the page that it serves.

use std::path::PathBuf;

use clap::Args;
use lightship::usage::NodePage;

use super::report::seconds;
use super::{LAST, Subject};
use crate::columns::aligned;
use crate::commands::manual::print;
use crate::error::CliError;

/// Queries that are listed, and searched for the beginning of an id.
const QUERIES_MAX: usize = 1000;
/// Characters of the longest text of a query in a list.
const LABEL_MAX: usize = 60;
/// Characters of an id in a list.
const ID_SHOWN: usize = 8;

/// The node that is asked.
#[derive(Args)]
pub(super) struct NodeArgs {
    /// Ask a node for its queries: the URL of the page that `lightship node --http` serves. A token is
    /// taken from LIGHTSHIP_TOKEN.
    #[arg(long, value_name = "URL")]
    node: Option<String>,
    /// The certificate of the CA that signed the node's, in a PEM file. [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "node")]
    ca: Option<PathBuf>,
}

impl NodeArgs {
    /// The page; `None` if no node is asked.
    pub(super) fn page(&self) -> Result<Option<NodePage>, CliError> {
        let token = || std::env::var("LIGHTSHIP_TOKEN").unwrap_or_default();
        let page = self.node.as_deref().map(|url| NodePage::new(url, token(), self.ca.as_deref()));
        Ok(page.transpose()?)
    }
}

/// Lists the last queries of a node.
pub(super) async fn show(page: &NodePage, json: bool) -> Result<(), CliError> {
    let queries = page.queries(QUERIES_MAX).await?;
    if json {
        return queries.iter().try_for_each(|query| print(super::to_json(query)?.as_bytes()));
    }
    if queries.is_empty() {
        crate::say!("the node has not answered any query yet");
        return Ok(());
    }
    let mut table = vec![["id", "query", "limit", "time"].map(String::from).to_vec()];
    table.extend(queries.iter().rev().map(|query| {
        let limit = match (&query.error, &query.limit_name, query.ended_ns) {
            (Some(_), ..) => "failed",
            (None, Some(limit), _) => limit,
            (None, None, None) => "running",
            (None, None, Some(_)) => "not known",
        };
        let run_ns = |ended_ns: i64| u64::try_from(ended_ns.saturating_sub(query.began_ns)).unwrap_or(0);
        let time = query.ended_ns.map(|ended_ns| seconds(run_ns(ended_ns)));
        let id = query.id.chars().take(ID_SHOWN).collect();
        vec![id, one_line(&query.label), limit.to_owned(), time.unwrap_or_default()]
    }));
    let mut text = String::new();
    aligned(&mut text, 0, &table, 3);
    print(text.as_bytes())
}

/// A text in one line, without what a terminal would obey.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = line.chars().filter(|c| !c.is_control()).take(LABEL_MAX).collect();
    if line.chars().count() > LABEL_MAX {
        shown.push('…');
    }
    shown
}

/// The query with an id, or with the only one that begins with it; or the last one that was assessed.
pub(super) async fn find(page: &NodePage, id: &str) -> Result<Subject, CliError> {
    let queries = page.queries(QUERIES_MAX).await?;
    let mut matching = queries.iter().filter(|query| match id {
        LAST => query.limit_name.is_some(),
        id => query.id.starts_with(id),
    });
    let first = matching.next().ok_or_else(|| {
        CliError::usage(match id {
            LAST => "the node has no assessed query yet; one is assessed a few samples after its end".into(),
            id => format!("the node has no query {id}"),
        })
        .hint("list its queries with `lightship usage show --node URL`")
    })?;
    if id != LAST && matching.next().is_some() {
        return Err(CliError::usage(format!("several queries begin with {id}")).hint("give more of the id"));
    }
    let report = page.query(&first.id).await?;
    let (Some(footprint), Some(verdict)) = (report.footprint.clone(), report.verdict.clone()) else {
        let why = report.query.reason.as_deref().unwrap_or("it has not been assessed yet");
        return Err(CliError::usage(format!("nothing is known of query {}: {why}", first.id)));
    };
    let mut query = Box::new(report);
    (query.footprint, query.verdict) = (None, None);
    query.query.label = one_line(&query.query.label);
    Ok(Subject::Query { query, footprint: Box::new(footprint), verdict: Box::new(verdict) })
}
