//! Parquet.

use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, IntervalUnit, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use super::output::Output;
use super::type_mapping::{TypeMapping, decoded, find, interval_type};
use super::{BatchWriter, Compression, WriteOptions, check_fields, refused};
use crate::{Result, SourceError};

/// Maximum rows in a row group, whatever their size.
const ROW_GROUP_ROWS: usize = 1 << 20;
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
    Ok(TypeMapping::new(schema, &|t| match t {
        DataType::Dictionary(_, values) if !is_bytes(values) => decoded(t),
        DataType::RunEndEncoded(..) => decoded(t),
        DataType::Interval(IntervalUnit::MonthDayNano) => Some(interval_type()),
        // The library assumes that these are 64 bits wide, and fails.
        DataType::Decimal32(1, scale) => Some(DataType::Decimal128(1, *scale)),
        _ => None,
    }))
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
    /// A row group is written once it holds this many bytes, and at least `encoded_bytes_min`.
    flush_bytes: usize,
    /// Minimum bytes of encoded rows in a row group. What columns hold before their first row may exceed the
    /// budget, and a row group for every few rows makes a footer of many megabytes, which stays in memory until
    /// the end.
    encoded_bytes_min: usize,
}

impl Parquet {
    pub(super) fn new(output: Output, type_mapping: TypeMapping, options: &WriteOptions) -> Result<Self> {
        let columns = type_mapping.schema().flattened_fields().len();
        // Half is for the encoded pages that wait for their row group to end, the
        // rest for open pages and dictionaries and for closing them.
        let flush_bytes = options.memory_bytes / 2;
        let page_bytes = (flush_bytes / (4 * columns)).clamp(PAGE_BYTES_MIN, PAGE_BYTES_MAX);
        let codec = match options.compression {
            Compression::None => Codec::UNCOMPRESSED,
            Compression::Lz4 => Codec::LZ4_RAW,
            Compression::Zstd(level) => Codec::ZSTD(ZstdLevel::try_new(level.into())?),
        };
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_dictionary_enabled(true)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_data_page_size_limit(page_bytes)
            .set_dictionary_page_size_limit(page_bytes)
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
            .set_created_by(concat!("lightship ", env!("CARGO_PKG_VERSION")).into())
            .build();
        let writer = ArrowWriter::try_new(output, type_mapping.schema().clone(), Some(properties))?;
        Ok(Self { writer, type_mapping, flush_bytes, encoded_bytes_min: flush_bytes / 2 })
    }
}

impl BatchWriter for Parquet {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = self.type_mapping.apply(batch)?;
        // In slices, so that one large batch does not exceed the budget before it is checked.
        let slice_bytes = (self.flush_bytes / 4).max(1);
        let slices = batch_bytes(&batch).div_ceil(slice_bytes).max(1);
        let slice_rows = batch.num_rows().div_ceil(slices).max(1);
        for start in (0..batch.num_rows()).step_by(slice_rows) {
            let rows = slice_rows.min(batch.num_rows() - start);
            self.writer.write(&batch.slice(start, rows))?;
            let encoded_bytes = self.writer.in_progress_size();
            if self.writer.memory_size() >= self.flush_bytes && encoded_bytes >= self.encoded_bytes_min {
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
