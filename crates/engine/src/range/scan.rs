//! Scans of range files in plans.

use std::fmt;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::metrics::{
    BaselineMetrics, ExecutionPlanMetricsSet, MetricsSet, RecordOutput,
};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, EmptyRecordBatchStream, ExecutionPlan, Partitioning, PlanProperties,
    ReplaceChildrenOptions, StatisticsArgs,
};
use futures::{StreamExt, TryStreamExt};
use lightship_rangefile::{Interval, Order, RangeError, ScanOptions};

use super::RangeFiles;
use crate::cluster::{Cluster, RangeScan, RangeScanPart, malformed};
use crate::error::EngineError;
use crate::remote::with_schema;

/// Most partitions of a scan.
const PARTITIONS_MAX: usize = 4096;
/// Memory for rows of a partition that are on their way or wait. A partition is a bucket, as long as it has not split.
const BUDGET_BYTES: u64 = 4 << 20;

/// A part of a scan: the keys that a bucket had when the scan was planned.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) interval: Interval,
    /// The node of the bucket, if it was known.
    pub(crate) node: Option<String>,
}

/// Reads rows of a range file, each partition in the order of the key.
pub(crate) struct RangeScanExec {
    /// `None` on a node without range files, which can have a part of the plan without parts of the file.
    files: Option<Arc<RangeFiles>>,
    file: String,
    /// The parts of each partition, in order.
    partitions: Vec<Vec<Part>>,
    fetch: Option<usize>,
    /// Estimates for the planner.
    rows: u64,
    bytes: u64,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl RangeScanExec {
    /// A scan of columns of a file with this key, without parts.
    pub(crate) fn new(
        files: Option<Arc<RangeFiles>>,
        file: &str,
        key: &[String],
        schema: SchemaRef,
        partitions: usize,
    ) -> Self {
        let key = key.iter().map_while(|name| {
            let column = schema.index_of(name).ok()?;
            Some(PhysicalSortExpr::new_default(Arc::new(Column::new(name, column))))
        });
        let ordering: Vec<PhysicalSortExpr> = key.collect();
        let orderings = (!ordering.is_empty()).then_some(ordering);
        let partitions = partitions.clamp(1, PARTITIONS_MAX);
        let properties = PlanProperties::new(
            EquivalenceProperties::new_with_orderings(schema, orderings),
            Partitioning::UnknownPartitioning(partitions),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self {
            files,
            file: file.to_owned(),
            partitions: vec![Vec::new(); partitions],
            fetch: None,
            rows: 0,
            bytes: 0,
            properties: Arc::new(properties),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The same scan of these parts, which are in order, with estimates of their rows and bytes.
    pub(crate) fn of_parts(&self, parts: Vec<Part>, (rows, bytes): (u64, u64)) -> Self {
        let mut partitions = vec![Vec::new(); self.partitions.len()];
        let each = parts.len().div_ceil(partitions.len()).max(1);
        // Neighbours are in one partition, which then is in order.
        for (index, part) in parts.into_iter().enumerate() {
            partitions[index / each].push(part);
        }
        Self { partitions, rows, bytes, ..self.same() }
    }

    /// The same scan, of which the first rows suffice. Each partition asks at least one bucket, so there is only one if its
    /// rows are likely to be in fewer buckets than there are partitions; it asks one bucket first, then twice as many each
    /// time.
    pub(crate) fn limited(mut self, fetch: Option<usize>) -> Self {
        let buckets = self.parts().count() as u128;
        let needed = |rows: usize| (rows as u128 * buckets).checked_div(self.rows.into());
        if fetch.and_then(needed).is_some_and(|needed| needed < self.partitions.len() as u128) {
            self.partitions = vec![self.partitions.concat()];
            let properties = PlanProperties::clone(&self.properties);
            self.properties = Arc::new(properties.with_partitioning(Partitioning::UnknownPartitioning(1)));
        }
        self.with_fetch_per_partition(fetch)
    }

    /// The same scan, of at most this many rows of each partition. They can't share one limit: where partitions are merged in
    /// the order of the key, all of the first rows may be in any of them.
    fn with_fetch_per_partition(self, fetch: Option<usize>) -> Self {
        Self { fetch, ..self }
    }

    /// Whether one task has to do it: the limit of a single partition is that of the scan, and the planner relies on it.
    pub(crate) fn is_whole(&self) -> bool {
        self.fetch.is_some() && self.partitions.len() == 1
    }

    /// The name of the file.
    pub(crate) fn file(&self) -> &String {
        &self.file
    }

    /// All parts, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        self.partitions.iter().flatten()
    }

    /// About the bytes of its rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A scan for each of `tasks` tasks; `task` says which one gets a part. If one task has to do it, because other scans of
    /// its stage are divided, that is the task of the first part.
    pub(crate) fn divided(&self, tasks: usize, task: impl Fn(usize, &Part) -> usize) -> Vec<Self> {
        let mut divided = vec![Vec::new(); tasks];
        let first = self.parts().next().filter(|_| self.is_whole()).map(|part| task(0, part));
        for (index, part) in self.parts().enumerate() {
            divided[first.unwrap_or_else(|| task(index, part))].push(part.clone());
        }
        let all = self.parts().count().max(1) as u64;
        let of_task = |parts: Vec<Part>| {
            let share = |whole: u64| (whole as u128 * parts.len() as u128 / u128::from(all)) as u64;
            let size = (share(self.rows), share(self.bytes));
            self.of_parts(parts, size)
        };
        divided.into_iter().map(of_task).collect()
    }

    fn same(&self) -> Self {
        Self {
            files: self.files.clone(),
            file: self.file.clone(),
            partitions: self.partitions.clone(),
            fetch: self.fetch,
            rows: self.rows,
            bytes: self.bytes,
            properties: self.properties.clone(),
            metrics: ExecutionPlanMetricsSet::new(),
        }
    }

    /// The scan as it is sent to another node.
    pub(crate) fn to_message(&self) -> Result<RangeScan> {
        let parts = self.partitions.iter().enumerate().flat_map(|(partition, parts)| {
            parts.iter().map(move |part| RangeScanPart {
                partition: partition as u64,
                low: part.interval.low.clone(),
                high: part.interval.high.clone(),
                node: part.node.clone(),
            })
        });
        Ok(RangeScan {
            file: self.file.clone(),
            schema: lightship_wire::schema::encode(&self.schema()).map_err(|e| malformed(&e.to_string()))?,
            key: self.key(),
            partitions: self.partitions.len() as u64,
            parts: parts.collect(),
            fetch: self.fetch.map(|rows| rows as u64),
            rows: self.rows,
            bytes: self.bytes,
        })
    }

    /// The columns that the rows are in the order of.
    fn key(&self) -> Vec<String> {
        let Some(ordering) = self.properties.output_ordering() else { return Vec::new() };
        let columns = ordering.iter().filter_map(|sorted| sorted.expr.downcast_ref::<Column>());
        columns.map(|column| column.name().to_owned()).collect()
    }

    /// A scan that came from another node.
    pub(crate) fn from_message(scan: RangeScan, context: &TaskContext) -> Result<Self> {
        let files = Cluster::of(context)?.range_files();
        let schema = lightship_wire::schema::decode(&scan.schema).map_err(|e| malformed(&e.to_string()))?;
        let partitions = usize::try_from(scan.partitions).unwrap_or(usize::MAX);
        let mut decoded = Self::new(files, &scan.file, &scan.key, Arc::new(schema), partitions);
        for part in scan.parts {
            let partition = decoded.partitions.get_mut(usize::try_from(part.partition).unwrap_or(usize::MAX));
            let interval = Interval::new(part.low, part.high);
            partition
                .ok_or_else(|| malformed("a part of no partition"))?
                .push(Part { interval, node: part.node });
        }
        (decoded.rows, decoded.bytes) = (scan.rows, scan.bytes);
        Ok(decoded
            .with_fetch_per_partition(scan.fetch.map(|rows| usize::try_from(rows).unwrap_or(usize::MAX))))
    }
}

impl fmt::Debug for RangeScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeScanExec").field("file", &self.file).field("parts", &self.partitions).finish()
    }
}

impl DisplayAs for RangeScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schema = self.schema();
        let columns: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        let mut nodes: Vec<&str> = self.parts().filter_map(|part| part.node.as_deref()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let (file, columns, buckets) = (&self.file, columns.join(", "), self.parts().count());
        write!(
            f,
            "RangeScanExec: file={file}, columns=[{columns}], buckets={buckets}, nodes=[{}]",
            nodes.join(", ")
        )?;
        if let Some(rows) = self.fetch {
            write!(f, ", fetch={rows}")?;
        }
        Ok(())
    }
}

impl ExecutionPlan for RangeScanExec {
    fn name(&self) -> &'static str {
        "RangeScanExec"
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

    fn fetch(&self) -> Option<usize> {
        self.fetch
    }

    fn with_fetch(&self, fetch: Option<usize>) -> Option<Arc<dyn ExecutionPlan>> {
        Some(Arc::new(self.same().limited(fetch)))
    }

    fn execute(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let measured = BaselineMetrics::new(&self.metrics, partition);
        let (files, name, schema) = (self.files.clone(), self.file.clone(), self.schema());
        let parts = self.partitions.get(partition).into_iter().flatten();
        let intervals: Vec<Interval> = parts.map(|part| part.interval.clone()).collect();
        if intervals.is_empty() {
            return Ok(Box::pin(EmptyRecordBatchStream::new(schema)));
        }
        let Some(files) = files else {
            return Err(EngineError::Remote(Cluster::of(&context)?.no_range_files()).into());
        };
        let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
        let options = ScanOptions {
            order: Order::Key,
            limit: self.fetch.map(|rows| rows as u64),
            columns: Some(columns),
            budget_bytes: BUDGET_BYTES,
            ..ScanOptions::default()
        };
        let wanted = schema.clone();
        let rows = async move {
            let failed = |error: RangeError| DataFusionError::from(EngineError::from(error));
            let scanned = files.open_file(&name).await.and_then(|file| file.scan_all(&intervals, &options));
            let rows = scanned.map_err(failed)?.rows;
            Ok::<_, DataFusionError>(rows.map(move |rows| with_schema(&rows.map_err(failed)?, &wanted)))
        };
        let rows = futures::stream::once(rows).try_flatten();
        let rows = rows.map(move |batch| batch.record_output(&measured));
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn statistics_from_inputs(
        &self,
        _: &[Arc<Statistics>],
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let parts = if args.partition().is_some() { self.partitions.len() as u64 } else { 1 };
        let rows = match self.fetch {
            Some(fetch) => (self.rows / parts).min(fetch as u64),
            None => self.rows / parts,
        };
        Ok(Arc::new(Statistics {
            num_rows: Precision::Inexact(rows as usize),
            total_byte_size: Precision::Inexact((self.bytes / parts) as usize),
            column_statistics: vec![ColumnStatistics::new_unknown(); self.schema().fields().len()],
        }))
    }
}
