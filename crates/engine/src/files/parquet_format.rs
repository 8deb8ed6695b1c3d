//! DataFusion's Parquet format, without the minimum and maximum of float columns.
//!
//! The minimum and maximum of a column in a Parquet file ignore NaN, but Arrow and our queries
//! treat NaN as greater than all numbers. By these statistics a column of infinities and NaN would
//! be constant, `max` would not be NaN, and `x > 5` would skip rows with NaN. So the minimum and
//! maximum of float columns are not used.

use std::sync::Arc;

use arrow_schema::{DataType, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Result, Statistics};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::memory::DataSourceExec;
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::table_schema::TableSchema;
use datafusion::object_store::{ObjectMeta, ObjectStore};
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{LexOrdering, conjunction, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

/// Parquet without the minimum and maximum of float columns.
#[derive(Debug)]
pub(super) struct Parquet(ParquetFormat);

impl Default for Parquet {
    fn default() -> Self {
        // A format created here ignores the session's options.
        Self(ParquetFormat::default().with_force_view_types(false))
    }
}

/// Statistics without the minimum and maximum of float columns.
fn without_floats(mut statistics: Statistics, schema: &SchemaRef) -> Statistics {
    for (field, column) in schema.fields().iter().zip(&mut statistics.column_statistics) {
        if has_floats(field.data_type()) {
            (column.min_value, column.max_value) = (Precision::Absent, Precision::Absent);
        }
    }
    statistics
}

/// Whether values of a type are floats or contain floats.
fn has_floats(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => has_floats(values),
        DataType::Struct(fields) => fields.iter().any(|field| has_floats(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::FixedSizeList(field, _)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::RunEndEncoded(_, field)
        | DataType::Map(field, _) => has_floats(field.data_type()),
        other => other.is_floating(),
    }
}

#[async_trait]
impl FileFormat for Parquet {
    fn get_ext(&self) -> String {
        self.0.get_ext()
    }

    fn get_ext_with_compression(&self, compression: &FileCompressionType) -> Result<String> {
        self.0.get_ext_with_compression(compression)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.0.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.0.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        let statistics = self.0.infer_stats(state, store, table_schema.clone(), object).await?;
        Ok(without_floats(statistics, &table_schema))
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        self.0.infer_ordering(state, store, table_schema, object).await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        let mut found = self.0.infer_stats_and_ordering(state, store, table_schema.clone(), object).await?;
        found.statistics = without_floats(found.statistics, &table_schema);
        Ok(found)
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        config: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.create_physical_plan(state, config).await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        self.0.file_source(table_schema)
    }
}

/// Lets only conditions on columns without floats skip row groups and pages of Parquet. All
/// conditions are still checked row by row.
#[derive(Debug)]
pub(crate) struct PruneWithoutFloats;

impl PhysicalOptimizerRule for PruneWithoutFloats {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|plan| {
            let scan = plan.downcast_ref::<DataSourceExec>();
            let Some((config, source)) =
                scan.and_then(|scan| scan.downcast_to_file_source::<ParquetSource>())
            else {
                return Ok(Transformed::no(plan));
            };
            let Some(predicate) = source.filter() else { return Ok(Transformed::no(plan)) };
            let schema = config.file_source().table_schema().table_schema().clone();
            let is_float = |name: &str| schema.field_with_name(name).is_ok_and(|f| has_floats(f.data_type()));
            let all = split_conjunction(&predicate);
            let kept: Vec<_> = all
                .iter()
                .filter(|part| !collect_columns(part).iter().any(|column| is_float(column.name())))
                .map(|part| Arc::clone(part))
                .collect();
            if kept.len() == all.len() {
                return Ok(Transformed::no(plan));
            }
            let predicate = if kept.is_empty() { lit(true) } else { conjunction(kept) };
            let source = Arc::new(source.with_predicate(predicate));
            let config = FileScanConfigBuilder::from(config.clone()).with_source(source).build();
            Ok(Transformed::yes(DataSourceExec::from_data_source(config)))
        })?;
        Ok(plan.data)
    }

    fn name(&self) -> &str {
        "PruneWithoutFloats"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
