//! A range file as a table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arrow_schema::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::datasource::sink::{DataSink, DataSinkExec};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use futures::TryStreamExt;
use lightship_rangefile::{RangeFile, RowWriter, WriteMode};

use super::RangeFiles;
use super::condition::Conditions;
use super::scan::{Part, RangeScanExec};
use crate::error::EngineError;
use crate::remote::with_schema;

/// The sizes of buckets are only for the planner: it does not wait longer for a node that does not answer.
const SIZES_TIMEOUT: Duration = Duration::from_millis(500);

/// A range file, with the sizes of its buckets when the statement was planned.
#[derive(Debug)]
pub(crate) struct RangeTable {
    file: RangeFile,
    files: Arc<RangeFiles>,
    rows: u64,
    bytes: u64,
}

impl RangeTable {
    pub(crate) async fn open(file: RangeFile, files: Arc<RangeFiles>) -> Self {
        let buckets = tokio::time::timeout(SIZES_TIMEOUT, file.buckets()).await;
        let buckets = buckets.map(|(buckets, _)| buckets).unwrap_or_default();
        let rows = buckets.iter().filter_map(|bucket| bucket.records).sum();
        let bytes = buckets.iter().filter_map(|bucket| bucket.bytes).sum();
        Self { file, files, rows, bytes }
    }
}

#[async_trait]
impl TableProvider for RangeTable {
    fn schema(&self) -> SchemaRef {
        self.file.definition().schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(Statistics {
            num_rows: Precision::Inexact(self.rows as usize),
            total_byte_size: Precision::Inexact(self.bytes as usize),
            column_statistics: vec![ColumnStatistics::new_unknown(); self.schema().fields().len()],
        })
    }

    /// Conditions on the key select the buckets and the rows in them; the others are applied where the scan runs.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        let conditions = Conditions::of(self.file.definition(), filters);
        let used = conditions.used.iter().map(|&is_used| match is_used {
            true => TableProviderFilterPushDown::Exact,
            false => TableProviderFilterPushDown::Unsupported,
        });
        Ok(used.collect())
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let definition = self.file.definition();
        let schema = match projection {
            Some(columns) => Arc::new(definition.schema.project(columns)?),
            None => definition.schema.clone(),
        };
        let filters: Vec<&Expr> = filters.iter().collect();
        let Conditions { intervals, used } = Conditions::of(definition, &filters);
        if !intervals.is_empty() && used.contains(&false) {
            return Err(DataFusionError::Internal("a condition on a range file would not be checked".into()));
        }
        let image = self.file.image();
        let all = image.owners().count().max(1) as u64;
        let parts: Vec<Part> = intervals
            .iter()
            .flat_map(|interval| image.route(interval))
            .map(|(interval, owner)| Part { interval, node: owner.map(|owner| owner.node) })
            .collect();
        // As if all buckets were of one size.
        let share = |whole: u64| (whole as u128 * parts.len() as u128 / u128::from(all)) as u64;
        let (rows, bytes) = (share(self.rows), share(self.bytes));
        let partitions = state.config().target_partitions();
        let scan = RangeScanExec::new(
            Some(self.files.clone()),
            &definition.name,
            &definition.key,
            schema,
            partitions,
        );
        Ok(Arc::new(scan.of_parts(parts, (rows, bytes)).limited(limit)))
    }

    async fn insert_into(
        &self,
        _: &dyn Session,
        input: Arc<dyn ExecutionPlan>,
        operation: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let name = &self.file.definition().name;
        let mut reads_itself = false;
        input.apply(|plan| {
            reads_itself |= plan.downcast_ref::<RangeScanExec>().is_some_and(|scan| scan.file() == name);
            Ok(TreeNodeRecursion::Continue)
        })?;
        if reads_itself {
            // It would read the rows that it writes.
            return Err(DataFusionError::Plan(format!(
                "an insert into range file {name} can't read the same file: fetch the rows into a file first"
            )));
        }
        let mode = match operation {
            InsertOp::Append => WriteMode::Insert,
            InsertOp::Replace => WriteMode::Upsert,
            InsertOp::Overwrite => {
                return Err(DataFusionError::Plan("a range file can't be overwritten: drop it first".into()));
            }
        };
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(RangeSink { file: self.file.clone(), mode }), None)))
    }
}

/// Writes rows to a range file. If it fails, some rows may be written.
#[derive(Debug)]
struct RangeSink {
    file: RangeFile,
    mode: WriteMode,
}

impl DisplayAs for RangeSink {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeSink: file={}", self.file.definition().name)
    }
}

#[async_trait]
impl DataSink for RangeSink {
    fn schema(&self) -> &SchemaRef {
        &self.file.definition().schema
    }

    async fn write_all(&self, mut rows: SendableRecordBatchStream, _: &Arc<TaskContext>) -> Result<u64> {
        let mut writer = RowWriter::new(self.file.clone(), self.mode);
        while let Some(batch) = rows.try_next().await? {
            let batch = with_schema(&batch, &self.file.definition().schema)?;
            writer.write(batch).await.map_err(EngineError::from)?;
        }
        Ok(writer.finish().await.map_err(EngineError::from)?)
    }
}
