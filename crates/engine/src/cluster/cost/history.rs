//! What nodes sent each other in earlier queries, beside what they were expected to send: predictions compared with
//! facts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::explained::{Edge, ExpectedEdge};

/// Edges that are kept; the oldest are forgotten first.
const EDGES_MAX: usize = 10_000;

/// The edges of queries that were planned on this node and have ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EdgeHistory(Mutex<Past>);

#[derive(Debug, Default)]
struct Past {
    /// Queries that were added.
    queries: u64,
    edges: VecDeque<PastEdge>,
}

/// An edge of a query that has ended.
#[derive(Debug, Clone)]
pub(crate) struct PastEdge {
    /// The number of the query, from 1, in the order in which they ended.
    pub(crate) query: u64,
    /// When that was.
    pub(crate) ended: Instant,
    pub(crate) sent: Edge,
    /// `None` if nothing was known of the rows.
    pub(crate) expected: Option<ExpectedEdge>,
}

impl EdgeHistory {
    fn lock(&self) -> MutexGuard<'_, Past> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what the nodes of a query were expected to send, and what they sent. Rows that stay on a node do not count.
    pub(crate) fn add(&self, expected: &[ExpectedEdge], sent: Vec<Edge>) {
        let key = |edge: &ExpectedEdge| {
            (edge.from_stage, edge.to_stage, edge.from_node.clone(), edge.to_node.clone())
        };
        let expected: HashMap<_, _> = expected.iter().map(|edge| (key(edge), edge)).collect();
        let mut sent = sent.into_iter().filter(|edge| edge.from_node != edge.to_node).peekable();
        if sent.peek().is_none() {
            return;
        }
        let mut past = self.lock();
        past.queries += 1;
        let (query, ended) = (past.queries, Instant::now());
        for sent in sent {
            let key = (sent.from_stage, sent.to_stage, sent.from_node.clone(), sent.to_node.clone());
            let expected = expected.get(&key).map(|edge| (*edge).clone());
            if past.edges.len() == EDGES_MAX {
                past.edges.pop_front();
            }
            past.edges.push_back(PastEdge { query, ended, sent, expected });
        }
    }

    /// All edges, oldest first.
    pub(crate) fn edges(&self) -> Vec<PastEdge> {
        self.lock().edges.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(from: &str, to: &str, rows: u64) -> Edge {
        Edge {
            from_stage: 1,
            to_stage: 0,
            from_node: from.into(),
            to_node: to.into(),
            rows,
            bytes_wire: Some(rows * 8),
            overlay_streams: 0,
            wait_seconds: 0.0,
            transfer_seconds: 0.1,
        }
    }

    fn expected(from: &str, to: &str, rows: f64) -> ExpectedEdge {
        ExpectedEdge {
            from_stage: 1,
            to_stage: 0,
            from_node: from.into(),
            to_node: to.into(),
            rows,
            bytes_wire: rows * 8.0,
            link_seconds: 0.1,
            seconds: 0.2,
            is_known: true,
            message_bytes: 1,
            window_batches: 1,
        }
    }

    #[test]
    fn each_edge_is_beside_its_prediction_and_the_oldest_are_forgotten() {
        let history = EdgeHistory::default();
        history
            .add(&[expected("a", "b", 5.0)], vec![sent("a", "b", 7), sent("c", "b", 1), sent("b", "b", 9)]);
        // A query without edges has no number.
        history.add(&[], vec![sent("b", "b", 9)]);
        history.add(&[], vec![sent("a", "b", 8)]);
        let of = |edge: &PastEdge| (edge.query, edge.sent.rows, edge.expected.as_ref().map(|edge| edge.rows));
        let found: Vec<_> = history.edges().iter().map(of).collect();
        assert_eq!(found, [(1, 7, Some(5.0)), (1, 1, None), (2, 8, None)]);
        history.add(&[], (0..EDGES_MAX as u64 - 1).map(|row| sent("a", "b", row)).collect());
        let edges = history.edges();
        assert_eq!((edges.len(), edges[0].query, edges[1].query), (EDGES_MAX, 2, 3));
    }
}
