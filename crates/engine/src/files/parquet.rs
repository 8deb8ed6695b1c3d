//! Parquet files are DataFusion's; what it would misread is refused.

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

/// Makes sure that a file has a footer that can be read, and each column a name of its own.
pub(super) fn check(path: &Path) -> Result<()> {
    let file = File::open(path).map_err(|e| EngineError::File(format!("{}: {e}", path.display())))?;
    // DataFusion passes over files without any bytes.
    if file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        return Ok(());
    }
    let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
        .map_err(|e| EngineError::File(format!("{}: not a whole Parquet file: {e}", path.display())))?;
    columns::unique(path, metadata.schema())
}

/// Finds columns by name, as DataFusion does, in files that have each name once. Files may come after the table was
/// opened.
#[derive(Debug)]
pub(super) struct UniqueNames;

impl PhysicalExprAdapterFactory for UniqueNames {
    fn create(&self, table: SchemaRef, file: SchemaRef) -> DataFusionResult<Arc<dyn PhysicalExprAdapter>> {
        columns::unique(Path::new("a Parquet file of the table"), &file)?;
        DefaultPhysicalExprAdapterFactory.create(table, file)
    }
}
