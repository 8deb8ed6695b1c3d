//! Parquet.

use std::sync::Arc;

use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, Field, SchemaRef, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::output::Output;
use super::page_spill::PageSpill;
use super::type_mapping::{TypeMapping, decoded, find};
use super::{BatchWriter, Compression, WriteOptions, check_fields, refused};
use crate::{Result, SourceError};

/// A row group is complete when it has so many rows or encoded bytes. Readers divide a file among threads by row
/// groups, and skip them by their statistics; each adds some 100 bytes per column to the footer, which is in memory
/// until the end.
const ROW_GROUP_ROWS: usize = 1 << 20;
const ROW_GROUP_BYTES: usize = 128 << 20;
/// Minimum and maximum size of a column's pages and dictionary.
const PAGE_BYTES_MIN: usize = 16 << 10;
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Refuses types that Parquet can't hold, and decides which types replace others.
pub(super) fn check(schema: &SchemaRef) -> Result<TypeMapping> {
    if schema.fields().is_empty() {
        let reason = "Parquet can't hold rows without columns; write them as arrow or json";
        return Err(SourceError::Unsupported(reason.into()));
    }
    for field in schema.fields() {
        if let Some(wrong) = find(field.data_type(), &is_refused) {
            return Err(refused(
                "Parquet",
                field.name(),
                wrong,
                "write it as arrow, or cast it in the query",
            ));
        }
    }
    check_fields("Parquet", schema)?;
    Ok(TypeMapping::new(schema, &rule))
}

/// The type that replaces one that Parquet does not have, or that readers return as another.
fn rule(field: &Field) -> Option<DataType> {
    match field.data_type() {
        DataType::Dictionary(_, values) if !is_bytes(values) => decoded(field.data_type()),
        DataType::RunEndEncoded(..) => decoded(field.data_type()),
        // Parquet has times in milliseconds and finer units, and dates in days. Without a type of its own, only readers
        // that know Arrow's schema would find more than integers.
        DataType::Timestamp(TimeUnit::Second, zone) => {
            Some(DataType::Timestamp(TimeUnit::Millisecond, zone.clone()))
        }
        DataType::Time32(TimeUnit::Second) => Some(DataType::Time32(TimeUnit::Millisecond)),
        DataType::Date64 => Some(DataType::Date32),
        // Parquet's intervals have unsigned months, days and milliseconds, and few readers know them.
        DataType::Interval(_) | DataType::Duration(_) => Some(DataType::Utf8),
        // The library assumes that these are 64 bits wide, and fails.
        DataType::Decimal32(1, scale) => Some(DataType::Decimal128(1, *scale)),
        _ => None,
    }
}

fn is_refused(data_type: &DataType) -> bool {
    match data_type {
        DataType::Union(..) => true,
        DataType::Struct(fields) => fields.is_empty(),
        DataType::FixedSizeBinary(width) => *width == 0,
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => *scale < 0,
        _ => false,
    }
}

/// Value types of dictionaries that readers of Parquet return as dictionaries.
fn is_bytes(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary)
}

pub(super) struct Parquet {
    writer: ArrowWriter<Output>,
    type_mapping: TypeMapping,
    /// Batches are encoded in slices of about this size, so that a large one does not exceed the budget.
    slice_bytes: usize,
}

impl Parquet {
    pub(super) fn new(output: Output, type_mapping: TypeMapping, options: &WriteOptions) -> Result<Self> {
        let columns = type_mapping.schema().flattened_fields().len();
        // Half is for complete pages in memory, the rest for open pages and dictionaries and for closing them.
        let pages_bytes = options.memory_bytes / 2;
        let page_bytes = (pages_bytes / (4 * columns)).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let codec = match options.compression {
            Compression::None => Codec::UNCOMPRESSED,
            Compression::Lz4 => Codec::LZ4_RAW,
            Compression::Zstd(level) => Codec::ZSTD(ZstdLevel::try_new(level.into())?),
        };
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_dictionary_enabled(true)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            // An index of pages without their statistics helps no reader, and stays in memory until the end.
            .set_offset_index_disabled(true)
            .set_data_page_size_limit(page_bytes)
            .set_dictionary_page_size_limit(page_bytes)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_created_by(concat!("lightship ", env!("CARGO_PKG_VERSION")).into())
            .build();
        let spill = PageSpill::new(pages_bytes, output.spill_folder(), output.failures());
        let options =
            ArrowWriterOptions::new().with_properties(properties).with_page_store_factory(Arc::new(spill));
        let schema = type_mapping.schema().clone();
        let writer = ArrowWriter::try_new_with_options(output, schema, options)?;
        Ok(Self { writer, type_mapping, slice_bytes: (pages_bytes / 4).max(1) })
    }
}

impl BatchWriter for Parquet {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = self.type_mapping.apply(batch)?;
        let slices = batch_bytes(&batch).div_ceil(self.slice_bytes).max(1);
        let slice_rows = batch.num_rows().div_ceil(slices).max(1);
        for start in (0..batch.num_rows()).step_by(slice_rows) {
            let rows = slice_rows.min(batch.num_rows() - start);
            self.writer.write(&batch.slice(start, rows))?;
            if self.writer.in_progress_size() >= ROW_GROUP_BYTES {
                self.writer.flush()?;
            }
        }
        Ok(())
    }

    fn output(&mut self) -> &mut Output {
        self.writer.inner_mut()
    }

    fn finish(self: Box<Self>) -> Result<Output> {
        Ok(self.writer.into_inner()?)
    }
}

/// Bytes of the rows in the batch, without other data in its buffers.
fn batch_bytes(batch: &RecordBatch) -> usize {
    let bytes = |column: &dyn Array| {
        column.to_data().get_slice_memory_size().unwrap_or_else(|_| column.get_array_memory_size())
    };
    batch.columns().iter().map(|column| bytes(column)).sum()
}
