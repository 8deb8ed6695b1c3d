//! The schema `cluster`: tables `nodes`, `parts`, `links`, `edges` and `overlay`, which describe the cluster.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, UInt64Array};
use async_trait::async_trait;
use datafusion::catalog::{MemTable, SchemaProvider, TableProvider};
use datafusion::error::Result;

use super::Member;
use super::cost::history::EdgeHistory;
use super::cost::rates::ProcessorRates;
use super::links::LinkCost;
use super::members::Snapshot;
use super::overlay::OverlayState;
use super::request::Table;

const TABLES: [&str; 5] = ["nodes", "overlay", "links", "edges", "parts"];

/// The tables, as they are when a query is planned. Their rows are collected only for queries that name them.
#[derive(Debug)]
pub(crate) struct ClusterTables {
    pub(crate) members: Vec<Member>,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) overlay: Option<OverlayState>,
    pub(crate) edges: Arc<EdgeHistory>,
}

#[async_trait]
impl SchemaProvider for ClusterTables {
    fn table_names(&self) -> Vec<String> {
        TABLES.map(str::to_owned).to_vec()
    }

    fn table_exist(&self, name: &str) -> bool {
        TABLES.contains(&name)
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let rows = match name {
            "nodes" => nodes(&self.members)?,
            "overlay" => overlay_rows(&self.members, self.overlay.as_ref())?,
            "links" => links(&self.snapshot)?,
            "edges" => self.edges.rows()?,
            "parts" => parts(&self.members, &self.snapshot)?,
            _ => return Ok(None),
        };
        Ok(Some(Arc::new(table(rows)?)))
    }
}

fn table(rows: RecordBatch) -> Result<MemTable> {
    MemTable::try_new(rows.schema(), vec![vec![rows]])
}

/// A row for each node: its name, its state, why it is absent, whether it is the coordinator of this query.
fn nodes(members: &[Member]) -> Result<RecordBatch> {
    let text = |of: fn(&Member) -> Option<String>| -> ArrayRef {
        Arc::new(members.iter().map(of).collect::<StringArray>())
    };
    let coordinator: BooleanArray = members.iter().map(|member| Some(member.is_self)).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("node", text(|member| Some(member.name.clone())), false),
        ("state", text(|member| Some(member.state.to_string())), false),
        ("reason", text(|member| member.why.clone()), true),
        ("is_coordinator", Arc::new(coordinator) as ArrayRef, false),
    ])?)
}

/// A row for the coordinator's part in the overlay, if it is configured for one.
fn overlay_rows(members: &[Member], overlay: Option<&OverlayState>) -> Result<RecordBatch> {
    let coordinator = members.iter().find(|member| member.is_self).map(|member| member.name.clone());
    let row = overlay.zip(coordinator);
    let count = |of: fn(&OverlayState) -> u64| -> ArrayRef {
        Arc::new(row.iter().map(|(state, _)| Some(of(state))).collect::<UInt64Array>())
    };
    let is_open: BooleanArray = row.iter().map(|(state, _)| Some(state.is_open)).collect();
    let node: StringArray = row.iter().map(|(_, name)| Some(name)).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("node", Arc::new(node) as ArrayRef, false),
        ("is_open", Arc::new(is_open), false),
        ("nodes", count(|state| state.nodes.len() as u64), false),
        ("topology_connections", count(|state| state.topology as u64), false),
        ("connections", count(|state| state.connections as u64), false),
        ("connections_max", count(|state| state.connections_max as u64), false),
        ("direct_peers_max", count(|state| state.direct_peers_max as u64), false),
        ("streams", count(|state| state.streams), false),
        ("forwarded_messages", count(|state| state.forwarded), false),
        ("broken_links", count(|state| state.broken_links as u64), false),
    ])?)
}

/// A row for each link that was measured, in the direction in which rows go.
fn links(snapshot: &Snapshot) -> Result<RecordBatch> {
    let rows: Vec<(&str, &str, LinkCost)> = snapshot.links().collect();
    let text = |of: fn(&(&str, &str, LinkCost)) -> String| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(of(row))).collect::<StringArray>())
    };
    let number = |of: fn(&LinkCost) -> f64| -> ArrayRef {
        Arc::new(rows.iter().map(|(_, _, cost)| Some(of(cost))).collect::<Float64Array>())
    };
    let rate = |node: &str, of: fn(ProcessorRates) -> f64| Some(1.0 / of(snapshot.processor(node)?));
    let encode: Float64Array = rows.iter().map(|row| rate(row.0, |rates| rates.encode_byte)).collect();
    let decode: Float64Array = rows.iter().map(|row| rate(row.1, |rates| rates.decode_byte)).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("from_node", text(|row| row.0.to_owned()), false),
        ("to_node", text(|row| row.1.to_owned()), false),
        ("bytes_per_second", number(|cost| cost.bytes_per_second), false),
        ("first_message_seconds", number(|cost| cost.first_message_seconds), false),
        ("message_seconds", number(|cost| cost.message_seconds), false),
        ("encode_bytes_per_second", Arc::new(encode), true),
        ("decode_bytes_per_second", Arc::new(decode), true),
    ])?)
}

/// A row for each table of each node. Absent nodes are included if their tables are known.
fn parts(members: &[Member], snapshot: &Snapshot) -> Result<RecordBatch> {
    let here = snapshot.nodes.iter().map(|node| (&node.name, &node.tables));
    let gone = snapshot.absent.iter().filter_map(|absent| Some((&absent.name, absent.tables.as_ref()?)));
    let mut rows: Vec<(&Table, &String)> =
        here.chain(gone).flat_map(|(node, tables)| tables.iter().map(move |table| (table, node))).collect();
    rows.sort_by(|a, b| (&a.0.name, a.1).cmp(&(&b.0.name, b.1)));
    let state = |node: &String| {
        members.iter().find(|member| member.name == *node).map(|member| member.state.to_string())
    };
    let names: StringArray = rows.iter().map(|(table, _)| Some(&table.name)).collect();
    let nodes: StringArray = rows.iter().map(|(_, node)| Some(node)).collect();
    let states: StringArray = rows.iter().map(|(_, node)| state(node)).collect();
    let shared: BooleanArray = rows.iter().map(|(table, _)| Some(table.shared)).collect();
    let counts: UInt64Array = rows.iter().map(|(table, _)| table.rows).collect();
    let bytes: UInt64Array = rows.iter().map(|(table, _)| table.bytes).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("table_name", Arc::new(names) as ArrayRef, false),
        ("node", Arc::new(nodes), false),
        ("state", Arc::new(states), true),
        ("is_shared", Arc::new(shared), false),
        ("rows_estimate", Arc::new(counts), true),
        ("bytes_estimate", Arc::new(bytes), true),
    ])?)
}
