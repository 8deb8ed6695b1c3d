//! The schema `cluster`: tables `nodes`, `parts` and `links`, which describe the cluster.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, UInt64Array};
use datafusion::catalog::{MemTable, MemorySchemaProvider, SchemaProvider};
use datafusion::error::Result;

use super::Member;
use super::links::LinkCost;
use super::members::Snapshot;
use super::request::Table;

/// The tables, as they are when a query is planned.
pub(crate) fn schema(members: &[Member], snapshot: &Snapshot) -> Result<Arc<dyn SchemaProvider>> {
    let schema = MemorySchemaProvider::new();
    schema.register_table("nodes".into(), Arc::new(table(nodes(members)?)?))?;
    schema.register_table("links".into(), Arc::new(table(links(snapshot)?)?))?;
    schema.register_table("parts".into(), Arc::new(table(parts(members, snapshot)?)?))?;
    Ok(Arc::new(schema))
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

/// A row for each link that was measured, in the direction in which rows go.
fn links(snapshot: &Snapshot) -> Result<RecordBatch> {
    let rows: Vec<(&str, &str, LinkCost)> = snapshot.links().collect();
    let text = |of: fn(&(&str, &str, LinkCost)) -> String| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(of(row))).collect::<StringArray>())
    };
    let number = |of: fn(&LinkCost) -> f64| -> ArrayRef {
        Arc::new(rows.iter().map(|(_, _, cost)| Some(of(cost))).collect::<Float64Array>())
    };
    Ok(RecordBatch::try_from_iter_with_nullable([
        ("from_node", text(|row| row.0.to_owned()), false),
        ("to_node", text(|row| row.1.to_owned()), false),
        ("bytes_per_second", number(|cost| cost.bytes_per_second), false),
        ("first_message_seconds", number(|cost| cost.first_message_seconds), false),
        ("message_seconds", number(|cost| cost.message_seconds), false),
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
