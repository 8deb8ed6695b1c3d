//! Checks of Parquet files. DataFusion reads them; files that it would misread are refused.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use datafusion::common::Result as DataFusionResult;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};

use super::columns;
use crate::error::{EngineError, Result};

/// Checks that a file has a readable footer and unique column names.
pub(super) fn check(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(|e| EngineError::File(format!("{}: {e}", path.display())))?;
    // DataFusion skips empty files.
    if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        return Ok(());
    }
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|e| {
        let message = format!("{}: incomplete or damaged Parquet file: {e}", path.display());
        EngineError::bad_file(message, "write the file again")
    })?;
    columns::unique(path, metadata.schema())
}

/// Finds columns by name, as DataFusion does, and refuses files with duplicate names. Files may be
/// added after the table was opened.
#[derive(Debug)]
pub(super) struct UniqueNames;

impl PhysicalExprAdapterFactory for UniqueNames {
    fn create(&self, table: SchemaRef, file: SchemaRef) -> DataFusionResult<Arc<dyn PhysicalExprAdapter>> {
        columns::unique(Path::new("a Parquet file of the table"), &file)?;
        DefaultPhysicalExprAdapterFactory.create(table, file)
    }
}
