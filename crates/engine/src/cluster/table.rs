//! The tables of a cluster: each joins the parts of all nodes under one name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{SchemaProvider, Session, TableProvider};
use datafusion::common::Statistics;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use lightship_wire::control::{ErrorCode, Failure};

use super::Cluster;
use super::cost::estimate::width;
use super::cost::statistics;
use super::members::{Members, Node, Snapshot};
use super::request::{Shards, Share, Table};
use super::shard::{ShardScanExec, can_travel};
use crate::error::EngineError;

/// The tables that a statement can name: those of the nodes that it is planned for.
#[derive(Debug)]
pub(crate) struct ClusterSchema {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) cluster: Weak<Cluster>,
}

impl std::fmt::Debug for Members {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Members").field(&self.me).finish()
    }
}

#[async_trait]
impl SchemaProvider for ClusterSchema {
    fn table_names(&self) -> Vec<String> {
        let tables = self.snapshot.nodes.iter().flat_map(|node| &node.tables);
        let names: BTreeSet<String> = tables.map(|table| table.name.clone()).collect();
        names.into_iter().collect()
    }

    fn table_exist(&self, name: &str) -> bool {
        self.snapshot.nodes.iter().any(|node| node.tables.iter().any(|table| table.name == name))
    }

    async fn table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        let Some(mut table) = ClusterTable::open(name, &self.snapshot)? else { return Ok(None) };
        if let Some(share) = &mut table.shards.share
            && let Some(cluster) = self.cluster.upgrade()
            && let Some(fingerprint) = cluster.fingerprint(name).await?
        {
            // Files may have been added since the nodes described themselves.
            share.fingerprint = fingerprint;
        }
        Ok(Some(Arc::new(table)))
    }
}

/// A table whose rows may be on any nodes.
#[derive(Debug)]
struct ClusterTable {
    name: String,
    schema: SchemaRef,
    shards: Shards,
    statistics: Statistics,
}

impl ClusterTable {
    /// Bytes in memory that are read of these columns, and of those that the conditions need.
    fn read_bytes(&self, projection: Option<&Vec<usize>>, filters: &[Expr], limit: Option<usize>) -> f64 {
        let all = || (0..self.schema.fields().len()).collect();
        let mut columns: BTreeSet<usize> =
            projection.map_or_else(all, |columns| columns.iter().copied().collect());
        let needed = filters.iter().flat_map(Expr::column_refs);
        columns.extend(needed.filter_map(|column| self.schema.index_of(&column.name).ok()));
        let row_bytes = columns.iter().map(|&index| width(&self.statistics, index, self.schema.field(index)));
        // A condition may have to read all rows to find a few.
        let most = limit.filter(|_| filters.is_empty()).unwrap_or(usize::MAX);
        let rows = self.statistics.num_rows.get_value().map_or(0, |rows| most.min(*rows));
        rows as f64 * row_bytes.sum::<f64>()
    }

    /// `None` if no node has it.
    fn open(name: &str, snapshot: &Snapshot) -> Result<Option<Self>> {
        let find = |tables: &[Table]| tables.iter().find(|table| table.name == name).cloned();
        let parts: Vec<(&Node, Table)> =
            snapshot.nodes.iter().filter_map(|node| Some((node, find(&node.tables)?))).collect();
        let Some((first, table)) = parts.first() else {
            // The table may be on an absent node.
            return match snapshot.missing(name) {
                Some(failure) => Err(EngineError::Remote(failure).into()),
                None => Ok(None),
            };
        };
        let only = read_schema(table)?;
        let mut schema = common(name, (&first.name, &only), (&first.name, &only))?;
        for (node, other) in &parts[1..] {
            schema = common(name, (&first.name, &schema), (&node.name, &read_schema(other)?))?;
            if other.shared != table.shared {
                return Err(unfit(format!(
                    "table `{name}` is shared on node {} and not on node {}",
                    if table.shared { &first.name } else { &node.name },
                    if table.shared { &node.name } else { &first.name },
                )));
            }
        }
        let nodes = parts.iter().map(|(node, _)| node.name.clone()).collect();
        let shards = if table.shared {
            let share = Share { part: 0, of: 1, fingerprint: table.fingerprint, partitions: 1 };
            Shards { nodes, share: Some(share), rows: table.rows, bytes: table.bytes }
        } else {
            same_rows(name, &parts)?;
            if let Some(failure) = snapshot.missing(name) {
                return Err(EngineError::Remote(failure).into());
            }
            let sum = |of: fn(&Table) -> Option<u64>| parts.iter().map(|(_, table)| of(table)).sum();
            Shards { nodes, share: None, rows: sum(|t| t.rows), bytes: sum(|t| t.bytes) }
        };
        let of_part = |(_, part): &(&Node, Table)| statistics::decode(&part.statistics, &schema);
        // All nodes describe the same files of a shared table.
        let parts = &parts[..if table.shared { 1 } else { parts.len() }];
        let statistics = statistics::of_table(&parts.iter().map(of_part).collect::<Vec<_>>(), &schema);
        Ok(Some(Self { name: name.into(), schema, shards, statistics }))
    }
}

/// The error for parts that can't form one table.
fn unfit(message: String) -> DataFusionError {
    EngineError::File(message).into()
}

/// Refuses parts that are the same files or the same table of a database: each row would appear once for
/// each node.
fn same_rows(name: &str, parts: &[(&Node, Table)]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for (node, table) in parts {
        let Some(other) = seen.insert(table.fingerprint, &node.name).filter(|_| table.fingerprint != 0)
        else {
            continue;
        };
        let same = if table.in_database { "one table of a database" } else { "the same files" };
        let failure = Failure::new(
            ErrorCode::Source,
            format!("nodes {other} and {} have {same} for `{name}`: its rows would be duplicated", node.name),
        );
        return Err(EngineError::Remote(failure.hint(match table.in_database {
            true => "register it on one node only: every node can query it. Or register a view with different rows on each node",
            false => "if all nodes read one storage, give it with --shared-table or --shared-data",
        }))
        .into());
    }
    Ok(())
}

pub(super) fn read_schema(table: &Table) -> Result<SchemaRef> {
    let schema = lightship_wire::schema::decode(&table.schema);
    Ok(Arc::new(schema.map_err(|e| unfit(format!("columns of `{}`: {e}", table.name)))?))
}

/// The common columns of two parts. Names and types must be equal; a column is nullable if it is in either
/// part.
fn common(name: &str, one: (&str, &SchemaRef), other: (&str, &SchemaRef)) -> Result<SchemaRef> {
    let show = |schema: &Schema| {
        let fields: Vec<String> =
            schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect();
        fields.join(", ")
    };
    let of = |schema: &Schema| -> Vec<(String, DataType)> {
        schema.fields().iter().map(|f| (f.name().clone(), f.data_type().clone())).collect()
    };
    if of(one.1) != of(other.1) {
        return Err(unfit(format!(
            "table `{name}` has different columns on node {} ({}) and node {} ({})",
            one.0,
            show(one.1),
            other.0,
            show(other.1)
        )));
    }
    let fields = one
        .1
        .fields()
        .iter()
        .zip(other.1.fields())
        .map(|(a, b)| Field::new(a.name(), a.data_type().clone(), a.is_nullable() || b.is_nullable()));
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

#[async_trait]
impl TableProvider for ClusterTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(self.statistics.clone())
    }

    /// A condition that can be sent is applied where the rows are.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(filters
            .iter()
            .map(|filter| match can_travel(filter) {
                true => TableProviderFilterPushDown::Exact,
                false => TableProviderFilterPushDown::Unsupported,
            })
            .collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => self.schema.clone(),
        };
        let partitions = state.config().target_partitions();
        let mut shards = self.shards.clone();
        if let Some(share) = &mut shards.share {
            share.partitions = partitions as u64;
        }
        let statistics = statistics::filtered(&self.statistics, &self.schema, filters, state);
        let statistics = statistics.project(projection).with_fetch(limit, 0, 1)?;
        let read_bytes = self.read_bytes(projection, filters, limit);
        let (name, filters) = (self.name.clone(), filters.to_vec());
        let scan = ShardScanExec::new(name, schema, filters, limit, shards, partitions);
        Ok(Arc::new(scan.with_statistics(statistics, read_bytes)))
    }
}
