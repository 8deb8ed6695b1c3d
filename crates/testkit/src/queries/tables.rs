//! Random tables of Arrow's types.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, new_null_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use parquet::arrow::ArrowWriter;
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

use crate::arrays;
use crate::rng::Rng;

/// Maximum number of columns of a table.
pub(super) const COLUMNS_MAX: usize = 8;
/// Names of columns, some of which need quotes. No two differ only in case.
const NAMES: [&str; 16] = [
    "a",
    "b",
    "c",
    "d",
    "n",
    "value",
    "Mixed",
    "order",
    "two words",
    "ä",
    "it's",
    "x.y",
    "q\"q",
    "t`t",
    "key",
    "%",
];

/// A table for random queries.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its name in SQL, which needs no quotes.
    pub name: String,
    /// Its columns and rows.
    pub rows: RecordBatch,
}

/// Which types the columns of a table may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// All types that the engine reads.
    All,
    /// The types of text files: no bytes, nothing nested.
    Text,
}

/// `count` different names of columns.
pub(super) fn names(rng: &mut Rng, count: usize) -> Vec<&'static str> {
    let mut names = NAMES.to_vec();
    (0..count.min(NAMES.len())).map(|_| names.swap_remove(rng.below(names.len()))).collect()
}

/// A table of 1 to 8 columns and at most `rows_max` rows.
pub fn any_table(name: &str, types: Types, rows_max: usize, seed: u64) -> Table {
    let mut rng = Rng(seed);
    let rows = if rng.one_in(12) { 0 } else { 1 + rng.below(rows_max.max(1)) };
    let count = 1 + rng.below(COLUMNS_MAX);
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for name in names(&mut rng, count) {
        let (data_type, pool) = any_type(&mut rng, types);
        let column = any_column(&mut rng, &data_type, &pool, rows);
        fields.push(Field::new(name, data_type, true));
        columns.push(column);
    }
    let rows =
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).expect("columns follow the schema");
    Table { name: name.into(), rows }
}

/// Texts that are easily mistaken for each other, or for values of other types.
pub(super) const TEXTS: [&str; 40] = [
    "",
    " ",
    "a",
    "A",
    "a ",
    " a",
    "ab",
    "aB",
    "ä",
    "Ä",
    "ae",
    "ß",
    "ss",
    "SS",
    "é",
    "e\u{301}",
    "it's",
    "a\"b",
    "back\\slash",
    "\\",
    "%",
    "a_b",
    "a%",
    "null",
    "NULL",
    "true",
    "0",
    "1",
    "01",
    "1.0",
    "-0",
    "1e3",
    "NaN",
    "2024-02-29",
    "日本",
    "😀",
    "a,b",
    "a\tb",
    "a\nb",
    "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz",
];
const INTEGERS: [&str; 18] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "42",
    "127",
    "-128",
    "255",
    "32767",
    "-32768",
    "65535",
    "2147483647",
    "-2147483648",
    "4294967295",
    "9223372036854775807",
    "-9223372036854775808",
];
const FLOATS: [&str; 16] = [
    "0",
    "-0.0",
    "1",
    "-1",
    "0.1",
    "0.5",
    "1.5",
    "3",
    "1e-300",
    "16777217",
    "9007199254740993",
    "1.7976931348623157e308",
    "NaN",
    "inf",
    "-inf",
    "1e10",
];
const DECIMALS: [&str; 11] =
    ["0", "0.1", "0.01", "-0.01", "1", "1.5", "-1.5", "99.99", "-99.99", "12345.67", "9999999999.99"];
const DATES: [&str; 10] = [
    "1970-01-01",
    "1969-12-31",
    "2024-02-29",
    "2000-01-01",
    "0001-01-01",
    "9999-12-31",
    "1582-10-15",
    "2038-01-19",
    "2024-03-01",
    "1900-02-28",
];
const TIMESTAMPS: [&str; 10] = [
    "1970-01-01T00:00:00",
    "1969-12-31T23:59:59.999999",
    "2024-02-29T12:00:00",
    "2024-02-29T12:00:00.000001",
    "2024-02-29T12:00:00.5",
    "1677-09-22T00:00:00",
    "2262-04-11T00:00:00",
    "2024-03-31T02:30:00",
    "2000-01-01T00:00:00",
    "2038-01-19T03:14:08",
];
const TIMES: [&str; 6] =
    ["00:00:00", "23:59:59", "12:00:00", "12:00:00.000001", "12:00:00.5", "23:59:59.999999"];
const BOOLEANS: [&str; 2] = ["true", "false"];

/// A type, and texts that can be cast to it.
fn any_type(rng: &mut Rng, types: Types) -> (DataType, Vec<&'static str>) {
    use DataType::*;
    let text = types == Types::Text;
    match rng.below(if text { 14 } else { 20 }) {
        0 | 1 => (rng.pick(&[Int8, Int16, Int32, Int64]).clone(), INTEGERS.to_vec()),
        2 => (rng.pick(&[UInt8, UInt16, UInt32, UInt64]).clone(), INTEGERS.to_vec()),
        3 => (Int64, vec!["1", "2", "3", "4", "5"]),
        4 => (rng.pick(&[Float32, Float64]).clone(), FLOATS.to_vec()),
        5 => (Float64, FLOATS.to_vec()),
        6 => {
            let decimals = [Decimal32(9, 2), Decimal64(18, 4), Decimal128(15, 2), Decimal128(38, 10)];
            (rng.pick(&decimals).clone(), DECIMALS.to_vec())
        }
        7 => (Boolean, BOOLEANS.to_vec()),
        8 => (Date32, DATES.to_vec()),
        9 => {
            let units =
                [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
            (Timestamp(*rng.pick(&units), None), TIMESTAMPS.to_vec())
        }
        10 => {
            let utc = Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
            let paris = Timestamp(TimeUnit::Millisecond, Some("+02:00".into()));
            (if rng.one_in(2) { utc } else { paris }, TIMESTAMPS.to_vec())
        }
        11 => (Utf8, vec!["a", "b", "c", "A"]),
        12 | 13 => (Utf8, TEXTS.to_vec()),
        14 => (
            rng.pick(&[
                Time32(TimeUnit::Second),
                Time64(TimeUnit::Microsecond),
                Time64(TimeUnit::Nanosecond),
            ])
            .clone(),
            TIMES.to_vec(),
        ),
        15 => (rng.pick(&[LargeUtf8, Utf8View]).clone(), TEXTS.to_vec()),
        16 => (rng.pick(&[Binary, LargeBinary, BinaryView]).clone(), TEXTS.to_vec()),
        17 => (Dictionary(Box::new(Int32), Box::new(Utf8)), TEXTS.to_vec()),
        18 => (rng.pick(&[Date64, Decimal256(60, 5), Float16, Null, FixedSizeBinary(3)]).clone(), vec![]),
        _ => {
            let item = Arc::new(Field::new_list_field(Int32, true));
            let fields = vec![Field::new("x", Int32, true), Field::new("y", Utf8, true)];
            (rng.pick(&[List(item), Struct(fields.into())]).clone(), vec![])
        }
    }
}

/// Values of the pool, often only a few of them, and nulls; random values if the pool is empty.
fn any_column(rng: &mut Rng, data_type: &DataType, pool: &[&str], rows: usize) -> ArrayRef {
    if pool.is_empty() {
        return arrays::array_of(data_type, true, rows, rng.next());
    }
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let first = rng.below(pool.len());
    let few = if rng.one_in(3) { 1 + rng.below(4) } else { pool.len() };
    let nulls = *rng.pick(&[0, 10, 10, 30, 100]);
    let texts = (0..rows).map(|_| {
        let text = pool[(first + rng.below(few)) % pool.len()];
        (!rng.percent(nulls)).then_some(text)
    });
    let texts = StringArray::from_iter(texts);
    let column = cast_with_options(&texts, data_type, &options);
    // What a type can't hold becomes null.
    column.unwrap_or_else(|_| new_null_array(data_type, texts.len()))
}

/// Writes rows as Parquet in small row groups and pages with statistics and Bloom filters, so that conditions
/// skip some of them.
///
/// # Errors
/// When the file can't be written, or Parquet has no such type.
pub fn write_parquet(rows: &RecordBatch, path: &Path) -> Result<(), ParquetError> {
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(7))
        .set_data_page_row_count_limit(3)
        .set_write_batch_size(3)
        .set_bloom_filter_enabled(true)
        .set_statistics_enabled(EnabledStatistics::Page)
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, rows.schema(), Some(properties))?;
    writer.write(rows)?;
    writer.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_functions_of_their_seed_and_reach_all_types() {
        let mut types = std::collections::BTreeSet::new();
        for seed in 0..2000 {
            let table = any_table("t", Types::All, 20, seed);
            assert_eq!(table.rows, any_table("t", Types::All, 20, seed).rows);
            types.extend(table.rows.schema().fields().iter().map(|field| field.data_type().to_string()));
        }
        assert_eq!(types.len(), 39, "{types:?}");
    }

    #[test]
    fn most_values_of_a_pool_fit_its_types() {
        let (mut null, mut all) = (0, 0);
        for seed in 0..500 {
            let table = any_table("t", Types::Text, 20, seed);
            null += table.rows.columns().iter().map(|column| column.null_count()).sum::<usize>();
            all += table.rows.columns().iter().map(|column| column.len()).sum::<usize>();
        }
        assert!(null * 2 < all, "{null} of {all}");
    }
}
