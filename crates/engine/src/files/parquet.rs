//! Checks of Parquet files. DataFusion reads them; files that it would misread are refused.

use std::error::Error;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use arrow_schema::SchemaRef;
use bytes::Bytes;
use datafusion::common::Result as DataFusionResult;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::errors::{ParquetError, Result as ParquetResult};
use datafusion::parquet::file::reader::{ChunkReader, Length};
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};

use lightship_sources::objects::ObjectError;

use super::columns;
use super::input::{FilePath, Input};
use crate::error::{EngineError, Result};

/// Checks that a file has a readable footer and unique column names.
pub(super) fn check(path: &FilePath) -> Result<()> {
    drop(path.open().map_err(|error| EngineError::reading(path, &error))?);
    // DataFusion skips empty files.
    if path.len() == 0 {
        return Ok(());
    }
    let metadata = ArrowReaderMetadata::load(path, ArrowReaderOptions::new());
    let metadata = metadata.map_err(|error| damaged(path, "incomplete or damaged Parquet file", &error))?;
    columns::unique(path, metadata.schema())
}

/// A file that is not what it should be, unless its store has failed.
pub(super) fn damaged(path: &FilePath, what: &str, error: &(dyn Error + 'static)) -> EngineError {
    match ObjectError::find(error) {
        Some(error) => EngineError::Source(error.clone().into()),
        None => EngineError::bad_file(format!("{}: {what}: {error}", path.display()), "write the file again"),
    }
}

impl Length for FilePath {
    fn len(&self) -> u64 {
        self.bytes().unwrap_or_default()
    }
}

/// Reads it where a thread may block.
impl ChunkReader for FilePath {
    type T = BufReader<Input>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut input = self.open()?;
        input.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(input))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let mut bytes = Vec::new();
        // The length may be that of a damaged file: it is not allocated before the bytes are there.
        self.get_read(start)?.take(length as u64).read_to_end(&mut bytes)?;
        match bytes.len() == length {
            true => Ok(bytes.into()),
            false => Err(ParquetError::EOF(format!("{length} bytes at {start} are beyond its end"))),
        }
    }
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
