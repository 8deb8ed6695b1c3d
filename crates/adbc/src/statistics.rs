//! Numbers of rows, and what is known of the values of columns, as the nested rows of GetStatistics.

use std::sync::Arc;

use adbc_core::error::Result;
use adbc_core::{constants, schemas};
use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int16Array, Int64Array, RecordBatch, StringArray, StructArray,
    UnionArray, new_empty_array, new_null_array,
};
use arrow_schema::DataType;

use crate::objects::{fields, list};

/// The positions of types in the union of values.
const INT64: i8 = 0;
const FLOAT64: i8 = 2;

/// A number that is known of a table or a column.
#[derive(Debug)]
pub(crate) struct Statistic {
    pub(crate) schema: String,
    pub(crate) table: String,
    /// `None` if it is about the whole table.
    pub(crate) column: Option<String>,
    /// What it is about, one of `ADBC_STATISTIC_…_KEY`.
    pub(crate) key: i16,
    pub(crate) value: StatisticValue,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum StatisticValue {
    Exactly(i64),
    About(f64),
}

impl Statistic {
    /// The number of rows of a table.
    pub(crate) fn row_count(schema: String, table: String, rows: u64, is_approximate: bool) -> Self {
        let value = match is_approximate {
            true => StatisticValue::About(rows as f64),
            false => StatisticValue::Exactly(i64::try_from(rows).unwrap_or(i64::MAX)),
        };
        Self { schema, table, column: None, key: constants::ADBC_STATISTIC_ROW_COUNT_KEY, value }
    }
}

/// The statistics of a catalog, whose tables are in these schemas.
pub(crate) fn batch(catalog: &str, names: &[String], found: &[Statistic]) -> Result<RecordBatch> {
    let of = |name: &String| found.iter().filter(|statistic| statistic.schema == *name).collect::<Vec<_>>();
    let in_schemas: Vec<Vec<&Statistic>> = names.iter().map(of).collect();
    let lengths: Vec<usize> = in_schemas.iter().map(Vec::len).collect();
    let all = statistics(&in_schemas.concat())?;
    let statistics = list(&schemas::STATISTICS_SCHEMA, lengths.into_iter(), all, None)?;
    let in_schemas = StructArray::try_new(
        fields(&schemas::STATISTICS_DB_SCHEMA_SCHEMA),
        vec![Arc::new(StringArray::from_iter_values(names)), statistics],
        None,
    )?;
    let in_catalog =
        list(&schemas::STATISTICS_DB_SCHEMA_SCHEMA, std::iter::once(names.len()), in_schemas, None)?;
    let catalogs: ArrayRef = Arc::new(StringArray::from_iter_values([catalog]));
    Ok(RecordBatch::try_new(schemas::GET_STATISTICS_SCHEMA.clone(), vec![catalogs, in_catalog])?)
}

fn statistics(found: &[&Statistic]) -> Result<StructArray> {
    let fields = fields(&schemas::STATISTICS_SCHEMA);
    let names = StringArray::from_iter_values(found.iter().map(|statistic| &statistic.table));
    let columns = StringArray::from_iter(found.iter().map(|statistic| statistic.column.as_ref()));
    let keys = Int16Array::from_iter_values(found.iter().map(|statistic| statistic.key));
    let approximate = found.iter().map(|statistic| matches!(statistic.value, StatisticValue::About(_)));
    let approximate = BooleanArray::from_iter(approximate.map(Some));
    let children: Vec<ArrayRef> =
        vec![Arc::new(names), Arc::new(columns), Arc::new(keys), values(found)?, Arc::new(approximate)];
    Ok(StructArray::try_new(fields, children, None)?)
}

/// Whole numbers if they are exact, and others if not.
fn values(found: &[&Statistic]) -> Result<ArrayRef> {
    let DataType::Union(fields, _) = &*schemas::STATISTIC_VALUE_SCHEMA else {
        return Ok(new_null_array(&schemas::STATISTIC_VALUE_SCHEMA, found.len()));
    };
    let (mut kinds, mut offsets) = (Vec::new(), Vec::<i32>::new());
    let (mut exact, mut approximate) = (Vec::new(), Vec::new());
    for statistic in found {
        match statistic.value {
            StatisticValue::About(value) => {
                kinds.push(FLOAT64);
                offsets.push(approximate.len() as i32);
                approximate.push(value);
            }
            StatisticValue::Exactly(value) => {
                kinds.push(INT64);
                offsets.push(exact.len() as i32);
                exact.push(value);
            }
        }
    }
    let (exact, approximate) = (Int64Array::from(exact), Float64Array::from(approximate));
    let children = fields
        .iter()
        .map(|(id, field)| -> ArrayRef {
            match id {
                INT64 => Arc::new(exact.clone()),
                FLOAT64 => Arc::new(approximate.clone()),
                _ => new_empty_array(field.data_type()),
            }
        })
        .collect();
    Ok(Arc::new(UnionArray::try_new(fields.clone(), kinds.into(), Some(offsets.into()), children)?))
}
