//! Scans of tables whose rows are on several nodes.
//!
//! A scan names a table, not files: each node looks the table up among its own, so no path is ever sent.
//! Parts on other nodes are requested from there. So the node that runs a scan affects its speed, never its
//! result.

use std::fmt;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Statistics};
use datafusion::datasource::memory::DataSourceExec;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder};
use datafusion::datasource::provider_as_source;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
    ReplaceChildrenOptions, StatisticsArgs,
};
use datafusion_proto::bytes::Serializeable;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use datafusion_proto::protobuf::LogicalExprNode;
use futures::{StreamExt, TryStreamExt};
use prost::Message as _;
use tokio::sync::OnceCell;

use super::Cluster;
use super::channel::with_batches_of;
use super::request::{Leaf, LeafKind, RequestKind, Scan, Shards, Share, malformed};
use crate::files::damage;
use crate::range::scan::RangeScanExec;
use crate::remote::with_schema;

/// Reads a table's rows from the nodes that have them.
pub(crate) struct ShardScanExec {
    table: String,
    filters: Vec<Expr>,
    fetch: Option<usize>,
    shards: Shards,
    /// Of the rows of all shards; known to the coordinator only.
    statistics: Arc<Statistics>,
    /// Bytes in memory that are read to find these rows; known to the coordinator only.
    read_bytes: f64,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
    /// The plan over this node's rows, made when the first partition is executed.
    local: Arc<OnceCell<Arc<dyn ExecutionPlan>>>,
}

impl ShardScanExec {
    /// A scan of columns of a table; every filter is applied to all rows.
    pub(crate) fn new(
        table: String,
        schema: SchemaRef,
        filters: Vec<Expr>,
        fetch: Option<usize>,
        shards: Shards,
        partitions: usize,
    ) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(partitions.clamp(1, PARTITIONS_MAX)),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            table,
            filters,
            fetch,
            shards,
            statistics: Arc::new(Statistics::new_unknown(&schema)),
            read_bytes: 0.0,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
            local: Arc::default(),
        }
    }

    /// The same scan, with what is known of its rows, and the bytes in memory that are read to find them.
    pub(crate) fn with_statistics(self, statistics: Statistics, read_bytes: f64) -> Self {
        Self { statistics: Arc::new(statistics), read_bytes, ..self }
    }

    /// Bytes in memory that are read to find its rows.
    pub(crate) fn read_bytes(&self) -> f64 {
        self.read_bytes
    }

    /// The same scan, of other rows.
    pub(crate) fn with_shards(&self, shards: Shards) -> Self {
        Self {
            table: self.table.clone(),
            filters: self.filters.clone(),
            fetch: self.fetch,
            shards,
            statistics: self.statistics.clone(),
            read_bytes: self.read_bytes,
            properties: self.properties.clone(),
            metrics: ExecutionPlanMetricsSet::new(),
            local: Arc::default(),
        }
    }

    pub(crate) fn shards(&self) -> &Shards {
        &self.shards
    }

    /// Which rows it gives, of all shards.
    pub(crate) fn rows_read(&self) -> String {
        format!("{} {:?} {:?} {:?}", self.table, self.filters, self.fetch, self.shards.rows)
    }

    /// The scan as it is sent.
    pub(crate) fn to_message(&self) -> Result<Scan> {
        let filters = self.filters.iter().map(|filter| Ok(filter.to_bytes()?.to_vec()));
        Ok(Scan {
            table: self.table.clone(),
            schema: lightship_wire::schema::encode(&self.schema()).map_err(|e| malformed(&e.to_string()))?,
            filters: filters.collect::<Result<_>>()?,
            fetch: self.fetch.map(|rows| rows as u64),
            shards: Some(self.shards.clone()),
            partitions: self.properties.partitioning.partition_count() as u64,
        })
    }

    /// A scan that came from another node.
    pub(crate) fn from_message(scan: Scan, context: &TaskContext) -> Result<Self> {
        let schema = lightship_wire::schema::decode(&scan.schema).map_err(|e| malformed(&e.to_string()))?;
        let filters = scan.filters.iter().map(|filter| decode_filter(filter, context));
        let filters = filters.collect::<Result<Vec<_>>>()?;
        let shards = scan.shards.ok_or_else(|| malformed("a scan without shards"))?;
        let partitions = usize::try_from(scan.partitions).unwrap_or(usize::MAX);
        let fetch = scan.fetch.map(|rows| rows as usize);
        Ok(Self::new(scan.table, Arc::new(schema), filters, fetch, shards, partitions))
    }

    /// Other nodes whose rows are scanned.
    fn others<'a>(&'a self, cluster: &'a Cluster) -> impl Iterator<Item = &'a String> {
        // Shared files are read here, if this node can read them.
        let elsewhere = self.shards.share.is_none() || !cluster.has(&self.table);
        let nodes = if self.shards.share.is_some() {
            &self.shards.nodes[..1.min(self.shards.nodes.len())]
        } else {
            &self.shards.nodes
        };
        nodes.iter().filter(move |node| elsewhere && **node != cluster.name())
    }

    /// Whether this node reads some of the rows itself.
    fn is_here(&self, cluster: &Cluster) -> bool {
        if self.shards.share.is_some() {
            cluster.has(&self.table)
        } else {
            self.shards.nodes.iter().any(|node| *node == cluster.name())
        }
    }

    /// The plan over this node's rows.
    async fn plan_local(&self, cluster: &Cluster) -> Result<Arc<dyn ExecutionPlan>> {
        let (part, of, partitions) = match self.shards.share {
            Some(share) => {
                cluster.check_files(&self.table, share.fingerprint).await?;
                (share.part as usize, share.of as usize, share.partitions as usize)
            }
            None => (0, 1, self.properties.partitioning.partition_count()),
        };
        if part >= of || partitions == 0 || of.saturating_mul(partitions) > PARTITIONS_MAX * PARTITIONS_MAX {
            return Err(malformed("a share that does not exist"));
        }
        let (state, table) = cluster.local_table(&self.table, partitions).await?;
        let mut builder = LogicalPlanBuilder::scan("t", provider_as_source(table), None)?;
        if let Some(filter) = self.filters.iter().cloned().reduce(Expr::and) {
            builder = builder.filter(filter)?;
        }
        let schema = self.schema();
        let columns = schema.fields().iter().map(|f| Expr::Column(Column::new_unqualified(f.name())));
        builder = builder.project(columns)?;
        if let Some(rows) = self.fetch {
            builder = builder.limit(0, Some(rows))?;
        }
        let plan = state.create_physical_plan(&builder.build()?).await?;
        Ok(plan.transform_up(|leaf| cut_files(leaf, (part, of), partitions))?.data)
    }

    /// Rows of one partition: this node's, then those of others.
    async fn rows(
        self: Arc<Self>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let cluster = Cluster::of(&context)?;
        let partitions = self.properties.partitioning.partition_count();
        let mut streams = Vec::new();
        if self.is_here(&cluster) {
            let plan = self.local.get_or_try_init(|| self.plan_local(&cluster)).await?;
            let count = plan.output_partitioning().partition_count();
            for inner in (partition..count).step_by(partitions) {
                streams.push(damage::named(
                    plan.execute(inner, context.clone())?,
                    damage::scans(plan),
                    context.runtime_env(),
                ));
            }
        }
        for (index, node) in self.others(&cluster).enumerate() {
            if index % partitions == partition {
                streams.push(self.remote(&cluster, node, &context).await?);
            }
        }
        let schema = self.schema();
        let wanted = schema.clone();
        // Nodes may differ in nullability, and files in metadata.
        let rows = futures::stream::iter(streams).flatten().map(move |batch| with_schema(&batch?, &wanted));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    /// Rows of another node.
    async fn remote(
        &self,
        cluster: &Arc<Cluster>,
        node: &str,
        context: &TaskContext,
    ) -> Result<SendableRecordBatchStream> {
        let mut scan = self.to_message()?;
        scan.shards = Some(Shards { nodes: vec![node.to_owned()], ..self.shards.clone() });
        scan.partitions = 1;
        let peer = cluster.peer(node)?;
        let (plan, mut leases) = cluster.exchange().leases(1, None);
        let reply = peer.request(RequestKind::Scan(scan), plan, leases.pop()).await?;
        let schema = reply.schema.clone();
        let rows = futures::stream::try_unfold(reply, |mut reply| async move {
            Ok::<_, DataFusionError>(reply.next().await?.map(|rows| (rows, reply)))
        });
        let rows = with_batches_of(context.session_config().batch_size(), rows.boxed());
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }
}

/// Decodes a condition from another node. It must not contain subqueries, which could read anything.
fn decode_filter(bytes: &[u8], context: &TaskContext) -> Result<Expr> {
    let node = LogicalExprNode::decode(bytes).map_err(|e| malformed(&e.to_string()))?;
    if format!("{node:?}").contains("SubqueryNode {") {
        return Err(malformed("a condition with a subquery"));
    }
    Expr::from_bytes_with_ctx(bytes, context)
}

/// Whether a condition can be applied by another node.
pub(crate) fn can_travel(filter: &Expr) -> bool {
    let queries = filter.exists(|part| {
        Ok(matches!(
            part,
            Expr::ScalarSubquery(_)
                | Expr::InSubquery(_)
                | Expr::Exists(_)
                | Expr::SetComparison(_)
                | Expr::OuterReferenceColumn(..)
        ))
    });
    matches!(queries, Ok(false)) && !filter.is_volatile() && filter.to_bytes().is_ok()
}

/// The smallest piece that a file is split into.
const PIECE_BYTES_MIN: usize = 1 << 20;

/// Makes a plan that reads files read only one of `of` parts of them, in this many partitions.
///
/// Nodes that read the other parts split the same files in the same way, because only file sizes decide.
/// Partitions of one plan may take files from each other, so each part has its own plan.
fn cut_files(
    leaf: Arc<dyn ExecutionPlan>,
    (part, of): (usize, usize),
    partitions: usize,
) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(source) = leaf.downcast_ref::<DataSourceExec>() else { return Ok(Transformed::no(leaf)) };
    let Some(scan) = source.data_source().downcast_ref::<FileScanConfig>() else {
        return Ok(Transformed::no(leaf));
    };
    let source_splits = scan.file_source().repartitioned(of * partitions, PIECE_BYTES_MIN, None, scan)?;
    // Files that can't be split are distributed whole.
    let groups = match source_splits {
        Some(split) => split.file_groups,
        None => {
            let files = scan.file_groups.iter().flat_map(|group| group.files().to_vec());
            files.map(|file| FileGroup::new(vec![file])).collect()
        }
    };
    // Distributed round-robin, so that the parts differ by at most one piece.
    let mut own: Vec<FileGroup> = groups.into_iter().skip(part).step_by(of).collect();
    if own.len() > partitions {
        let rest = own.split_off(partitions);
        for (index, group) in rest.into_iter().enumerate() {
            group.files().iter().for_each(|file| own[index % partitions].push(file.clone()));
        }
    }
    if own.is_empty() {
        own.push(FileGroup::default());
    }
    let scan = FileScanConfigBuilder::from(scan.clone()).with_file_groups(own).build();
    Ok(Transformed::yes(DataSourceExec::from_data_source(scan)))
}

/// Most partitions of a scan.
const PARTITIONS_MAX: usize = 4096;

impl fmt::Debug for ShardScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardScanExec").field("table", &self.table).field("shards", &self.shards).finish()
    }
}

impl DisplayAs for ShardScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        write!(f, "ShardScanExec: table={}, columns=[{}]", self.table, columns.join(", "))?;
        match self.shards.share {
            Some(Share { part, of, .. }) if of > 1 => write!(f, ", part {} of {of}", part + 1)?,
            Some(_) => write!(f, ", shared")?,
            None => write!(f, ", nodes=[{}]", self.shards.nodes.join(", "))?,
        }
        if !self.filters.is_empty() {
            let filters: Vec<String> = self.filters.iter().map(ToString::to_string).collect();
            write!(f, ", filter={}", filters.join(" AND "))?;
        }
        if let Some(rows) = self.fetch {
            write!(f, ", fetch={rows}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for ShardScanExec {
    fn name(&self) -> &'static str {
        "ShardScanExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    /// The next iteration of a recursive query reads the rows again.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(self.with_shards(self.shards.clone())))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let measured = BaselineMetrics::new(&self.metrics, partition);
        // All partitions share the plan over this node's rows.
        let scan = Self { local: self.local.clone(), ..self.with_shards(self.shards.clone()) };
        let rows = futures::stream::once(Arc::new(scan).rows(partition, context)).try_flatten();
        let rows = rows.map(move |batch| batch.record_output(&measured));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        if args.partition().is_none() {
            return Ok(self.statistics.clone());
        }
        let parts = self.properties.partitioning.partition_count().max(1);
        let part = |whole: Precision<usize>| whole.map(|whole| whole / parts).to_inexact();
        Ok(Arc::new(Statistics {
            num_rows: part(self.statistics.num_rows),
            total_byte_size: part(self.statistics.total_byte_size),
            column_statistics: self.statistics.column_statistics.clone(),
        }))
    }
}

/// Encodes and decodes the leaves of a plan.
#[derive(Debug)]
pub(crate) struct ShardCodec;

impl PhysicalExtensionCodec for ShardCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        _: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let leaf = Leaf::decode(bytes).map_err(|e| malformed(&e.to_string()))?;
        Ok(match leaf.kind {
            Some(LeafKind::Scan(scan)) => Arc::new(ShardScanExec::from_message(scan, context)?),
            Some(LeafKind::RangeScan(scan)) => Arc::new(RangeScanExec::from_message(scan, context)?),
            None => return Err(malformed("a leaf of an unknown kind")),
        })
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let kind = if let Some(scan) = node.downcast_ref::<ShardScanExec>() {
            LeafKind::Scan(scan.to_message()?)
        } else if let Some(scan) = node.downcast_ref::<RangeScanExec>() {
            LeafKind::RangeScan(scan.to_message()?)
        } else {
            return Err(DataFusionError::NotImplemented(format!(
                "{} can't be sent to another node",
                node.name()
            )));
        };
        Leaf { kind: Some(kind) }.encode(bytes).map_err(|e| malformed(&e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{EmptyRelation, LogicalPlan, col, lit, scalar_subquery};

    #[test]
    fn conditions_with_subqueries_are_neither_sent_nor_accepted() {
        let context = TaskContext::default();
        let plain = col("a").gt(lit(1));
        assert!(can_travel(&plain));
        assert_eq!(decode_filter(&plain.to_bytes().unwrap(), &context).unwrap(), plain);
        let schema = datafusion::common::DFSchema::empty().into();
        let empty = LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: true, schema });
        let query = col("a").eq(scalar_subquery(Arc::new(empty)));
        assert!(!can_travel(&query));
        let refused = decode_filter(&query.to_bytes().unwrap(), &context).unwrap_err();
        assert!(refused.to_string().contains("a condition with a subquery"), "{refused}");
    }
}
