//! A table as a Parquet file: zstd, 122 880 rows a row group.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use tempfile::NamedTempFile;

use super::BATCH_ROWS;

/// Rows in a row group of a file: 15 batches, some 10 MB of `lineitem`.
const ROW_GROUP_ROWS: usize = 15 * BATCH_ROWS;
/// Key of a file's metadata for its mark: what the file holds.
const MARK_KEY: &str = "tpch.scale";

/// The path of a table.
pub(super) fn path(folder: &Path, table: &str) -> PathBuf {
    folder.join(format!("{table}.parquet"))
}

/// Whether a complete file with this mark exists.
pub(super) fn is_whole(path: &Path, mark: &str) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(footer) = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()) else { return false };
    let entries = footer.metadata().file_metadata().key_value_metadata();
    entries.is_some_and(|entries| {
        entries.iter().any(|entry| entry.key == MARK_KEY && entry.value.as_deref() == Some(mark))
    })
}

/// A file that is being written. It appears under its name when it is complete.
pub(super) struct TableFile(ArrowWriter<NamedTempFile>);

impl TableFile {
    pub(super) fn create(folder: &Path, schema: &SchemaRef, mark: String) -> Result<Self, ParquetError> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1)?))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_key_value_metadata(Some(vec![KeyValue::new(MARK_KEY.into(), mark)]))
            .build();
        let file = NamedTempFile::new_in(folder)?;
        Ok(Self(ArrowWriter::try_new(file, schema.clone(), Some(properties))?))
    }

    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        self.0.write(batch)
    }

    pub(super) fn finish(self, path: &Path) -> Result<(), ParquetError> {
        self.0.into_inner()?.persist(path).map_err(|e| e.error)?;
        Ok(())
    }
}
