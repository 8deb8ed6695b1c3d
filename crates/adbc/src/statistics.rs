//! Numbers of rows, as the nested rows of GetStatistics.

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

/// The number of rows of a table.
#[derive(Debug)]
pub(crate) struct RowCount {
    pub(crate) schema: String,
    pub(crate) table: String,
    pub(crate) rows: u64,
    pub(crate) is_approximate: bool,
}

/// The statistics of a catalog, whose tables are in these schemas.
pub(crate) fn batch(catalog: &str, names: &[String], counts: &[RowCount]) -> Result<RecordBatch> {
    let counts: Vec<&RowCount> =
        names.iter().flat_map(|name| counts.iter().filter(move |count| count.schema == *name)).collect();
    let lengths: Vec<usize> =
        names.iter().map(|name| counts.iter().filter(|c| c.schema == *name).count()).collect();
    let statistics = list(&schemas::STATISTICS_SCHEMA, lengths.into_iter(), statistics(&counts)?, None)?;
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

fn statistics(counts: &[&RowCount]) -> Result<StructArray> {
    let fields = fields(&schemas::STATISTICS_SCHEMA);
    let names = StringArray::from_iter_values(counts.iter().map(|count| &count.table));
    // It is about the whole table.
    let columns = new_null_array(&DataType::Utf8, counts.len());
    let keys = Int16Array::from(vec![constants::ADBC_STATISTIC_ROW_COUNT_KEY; counts.len()]);
    let approximate = BooleanArray::from_iter(counts.iter().map(|count| Some(count.is_approximate)));
    let children: Vec<ArrayRef> =
        vec![Arc::new(names), columns, Arc::new(keys), values(counts)?, Arc::new(approximate)];
    Ok(StructArray::try_new(fields, children, None)?)
}

/// Whole numbers if they are exact, and others if not.
fn values(counts: &[&RowCount]) -> Result<ArrayRef> {
    let DataType::Union(fields, _) = &*schemas::STATISTIC_VALUE_SCHEMA else {
        return Ok(new_null_array(&schemas::STATISTIC_VALUE_SCHEMA, counts.len()));
    };
    let (mut kinds, mut offsets) = (Vec::new(), Vec::<i32>::new());
    let (mut exact, mut approximate) = (Vec::new(), Vec::new());
    for count in counts {
        if count.is_approximate {
            kinds.push(FLOAT64);
            offsets.push(approximate.len() as i32);
            approximate.push(count.rows as f64);
        } else {
            kinds.push(INT64);
            offsets.push(exact.len() as i32);
            exact.push(i64::try_from(count.rows).unwrap_or(i64::MAX));
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
