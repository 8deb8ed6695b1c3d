//! Tables of databases.

use std::fmt;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, Statistics};
use datafusion::error::{DataFusionError, Result as DataFusionResult};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use futures::{StreamExt, TryStreamExt};
use lightship_sources::{ReadOptions, Scan, Source, TableInfo, TableName};

use crate::error::Result;
use crate::pushdown;

/// A table in a database.
#[derive(Debug)]
pub(crate) struct SourceTable {
    source: Arc<dyn Source>,
    name: TableName,
    info: TableInfo,
    options: ReadOptions,
}

impl SourceTable {
    pub(crate) async fn open(source: Arc<dyn Source>, name: TableName, options: ReadOptions) -> Result<Self> {
        let info = source.table(&name, &options).await?;
        Ok(Self { source, name, info, options })
    }
}

#[async_trait]
impl TableProvider for SourceTable {
    fn schema(&self) -> SchemaRef {
        self.info.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn statistics(&self) -> Option<Statistics> {
        let num_rows =
            self.info.rows_estimate.map_or(Precision::Absent, |rows| Precision::Inexact(rows as usize));
        let columns = self.info.schema.fields().len();
        Some(Statistics {
            num_rows,
            total_byte_size: Precision::Absent,
            column_statistics: vec![ColumnStatistics::new_unknown(); columns],
        })
    }

    /// A condition pushed down to the database is checked again here: the database only has to
    /// return every row that meets it.
    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> DataFusionResult<Vec<TableProviderFilterPushDown>> {
        let judge = |filter: &&Expr| match pushdown::condition(filter, &self.info, self.source.dialect()) {
            Some(_) => TableProviderFilterPushDown::Inexact,
            None => TableProviderFilterPushDown::Unsupported,
        };
        Ok(filters.iter().map(judge).collect())
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DataFusionResult<Arc<dyn ExecutionPlan>> {
        let schema: SchemaRef = match projection {
            Some(columns) => Arc::new(self.info.schema.project(columns)?),
            None => self.info.schema.clone(),
        };
        let conditions: Vec<String> = filters
            .iter()
            .filter_map(|filter| pushdown::condition(filter, &self.info, self.source.dialect()))
            .map(|condition| format!("({condition})"))
            .collect();
        // Every condition is checked again here, and few of the first rows that the database returns
        // may meet it. So a limit is pushed down only without conditions.
        let limit = limit.filter(|_| filters.is_empty());
        let scan = Scan {
            table: self.name.clone(),
            columns: projection.is_some().then(|| schema.fields().iter().map(|f| f.name().clone()).collect()),
            filter: (!conditions.is_empty()).then(|| conditions.join(" AND ")),
            limit: limit.map(|rows| rows as u64),
        };
        let part = SourceScan {
            source: self.source.clone(),
            scan,
            options: self.options.clone(),
            schema: schema.clone(),
        };
        let exec = StreamingTableExec::try_new(schema, vec![Arc::new(part)], None, [], false, limit)?;
        Ok(Arc::new(exec))
    }
}

/// A scan of a table, started when it is executed.
struct SourceScan {
    source: Arc<dyn Source>,
    scan: Scan,
    options: ReadOptions,
    schema: SchemaRef,
}

impl fmt::Debug for SourceScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.scan, self.source)
    }
}

impl PartitionStream for SourceScan {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (source, scan, options) = (self.source.clone(), self.scan.clone(), self.options.clone());
        let schema = self.schema.clone();
        let external = |error| DataFusionError::External(Box::new(error));
        let batches = async move {
            let rows = source.scan(&scan, &options).await.map_err(external)?;
            same_columns(&rows.schema, &schema)?;
            Ok::<_, DataFusionError>(
                rows.batches.map(move |batch| with_schema(&batch.map_err(external)?, &schema)),
            )
        };
        let batches = futures::stream::once(batches).try_flatten();
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches))
    }
}

/// Fails if the table was altered after it was registered.
fn same_columns(found: &Schema, expected: &Schema) -> DataFusionResult<()> {
    let same = found.fields().len() == expected.fields().len()
        && found.fields().iter().zip(expected.fields()).all(|(a, b)| a.data_type() == b.data_type());
    if same {
        return Ok(());
    }
    Err(DataFusionError::Execution(
        "the table's columns changed after the node started; restart the node to use them".into(),
    ))
}

/// The same rows under another schema, of the same types.
pub(crate) fn with_schema(batch: &RecordBatch, schema: &SchemaRef) -> DataFusionResult<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(schema.clone(), batch.columns().to_vec(), &options)?)
}
