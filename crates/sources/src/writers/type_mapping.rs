//! Replaces types that a format can't hold by types that hold the same values.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::IntervalMonthDayNanoType;
use arrow_array::{
    Array, ArrayRef, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, StructArray, make_array,
};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Fields, IntervalUnit, Schema, SchemaRef};

use super::unfit;
use crate::Result;

/// Casts batches to the types that a format holds.
pub(super) struct TypeMapping {
    schema: SchemaRef,
    changed: bool,
}

impl TypeMapping {
    /// Replaces every type, nested ones too, for which `rule` returns another. The
    /// rule is applied to the replacement again.
    pub(super) fn new(schema: &SchemaRef, rule: &dyn Fn(&DataType) -> Option<DataType>) -> Self {
        let fields: Vec<FieldRef> = schema.fields().iter().map(|field| replace_field(field, rule)).collect();
        let changed = fields.iter().zip(schema.fields()).any(|(a, b)| a.data_type() != b.data_type());
        let schema = match changed {
            true => Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())),
            false => Arc::clone(schema),
        };
        Self { schema, changed }
    }

    /// The schema as the format sees it.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The batch as the format sees it; a value that can't be converted is an error.
    pub(super) fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        if !self.changed {
            return Ok(batch.clone());
        }
        let columns = batch.columns().iter().zip(self.schema.fields()).map(|(column, field)| {
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            convert(column, field.data_type()).map_err(|error| {
                // A cast's error does not name the row: it is the first one that can't be cast alone.
                let fails = |row: &usize| convert(&column.slice(*row, 1), field.data_type()).is_err();
                let row = (0..column.len()).find(fails).unwrap_or(0);
                unfit(row, field.name(), error.to_string(), "write it as arrow")
            })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows)?)
    }
}

/// Converts the innermost types that differ, and leaves offsets and nulls as they
/// are. (A cast of a nested array as a whole supports fewer types.)
fn convert(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, ArrowError> {
    use DataType::*;
    let children: Vec<&DataType> = match (array.data_type(), to) {
        (from, to) if from == to => return Ok(Arc::clone(array)),
        (List(_), List(item))
        | (LargeList(_), LargeList(item))
        | (ListView(_), ListView(item))
        | (LargeListView(_), LargeListView(item))
        | (FixedSizeList(..), FixedSizeList(item, _)) => vec![item.data_type()],
        (Map(..), Map(entries, _)) => vec![entries.data_type()],
        (Struct(_), Struct(fields)) => fields.iter().map(|field| field.data_type()).collect(),
        (Union(..), Union(fields, _)) => fields.iter().map(|(_, field)| field.data_type()).collect(),
        (RunEndEncoded(..), RunEndEncoded(ends, values)) => vec![ends.data_type(), values.data_type()],
        // Values first: they may be nested, and of a type that is itself replaced.
        (Dictionary(_, values), to) if **values != *to => {
            let values = values.as_ref().clone();
            return convert(&convert(array, &values)?, to);
        }
        (RunEndEncoded(_, values), to) if values.data_type() != to => {
            let values = values.data_type().clone();
            return convert(&convert(array, &values)?, to);
        }
        (Interval(IntervalUnit::MonthDayNano), Struct(parts)) => {
            return Ok(Arc::new(interval_parts(array, parts)?));
        }
        (_, to) => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            return cast_with_options(array, to, &options);
        }
    };
    let data = array.to_data();
    let converted = data
        .child_data()
        .iter()
        .zip(children)
        .map(|(child, to)| Ok(convert(&make_array(child.clone()), to)?.into_data()));
    let converted = converted.collect::<Result<Vec<_>, ArrowError>>()?;
    Ok(make_array(data.into_builder().data_type(to.clone()).child_data(converted).build()?))
}

/// The replacement for an interval of months, days and nanoseconds, which few
/// formats support: a struct of the three numbers, which can't be combined into one.
pub(super) fn interval_type() -> DataType {
    let part = |name, data_type| Field::new(name, data_type, false);
    DataType::Struct(
        vec![
            part("months", DataType::Int32),
            part("days", DataType::Int32),
            part("nanoseconds", DataType::Int64),
        ]
        .into(),
    )
}

fn interval_parts(array: &ArrayRef, parts: &Fields) -> Result<StructArray, ArrowError> {
    let intervals = array.as_primitive::<IntervalMonthDayNanoType>();
    let values = intervals.values();
    let months = Int32Array::from_iter_values(values.iter().map(|interval| interval.months));
    let days = Int32Array::from_iter_values(values.iter().map(|interval| interval.days));
    let nanoseconds = Int64Array::from_iter_values(values.iter().map(|interval| interval.nanoseconds));
    let columns: Vec<ArrayRef> = vec![Arc::new(months), Arc::new(days), Arc::new(nanoseconds)];
    StructArray::try_new(parts.clone(), columns, intervals.nulls().cloned())
}

fn replace_field(field: &FieldRef, rule: &dyn Fn(&DataType) -> Option<DataType>) -> FieldRef {
    let data_type = replace(field.data_type(), rule);
    if data_type == *field.data_type() {
        return Arc::clone(field);
    }
    Arc::new(Field::clone(field).with_data_type(data_type))
}

fn replace(data_type: &DataType, rule: &dyn Fn(&DataType) -> Option<DataType>) -> DataType {
    use DataType::*;
    if let Some(other) = rule(data_type) {
        return replace(&other, rule);
    }
    match data_type {
        List(item) => List(replace_field(item, rule)),
        LargeList(item) => LargeList(replace_field(item, rule)),
        ListView(item) => ListView(replace_field(item, rule)),
        LargeListView(item) => LargeListView(replace_field(item, rule)),
        FixedSizeList(item, size) => FixedSizeList(replace_field(item, rule), *size),
        Struct(fields) => Struct(fields.iter().map(|field| replace_field(field, rule)).collect()),
        Map(entries, ordered) => Map(replace_field(entries, rule), *ordered),
        Union(fields, mode) => {
            let fields = fields.iter().map(|(id, field)| (id, replace_field(field, rule)));
            Union(fields.collect(), *mode)
        }
        RunEndEncoded(ends, values) => RunEndEncoded(ends.clone(), replace_field(values, rule)),
        other => other.clone(),
    }
}

/// The first type in `data_type`, itself or nested, for which `wrong` is true.
pub(super) fn find<'a>(data_type: &'a DataType, wrong: &dyn Fn(&DataType) -> bool) -> Option<&'a DataType> {
    use DataType::*;
    if wrong(data_type) {
        return Some(data_type);
    }
    match data_type {
        List(item) | LargeList(item) | ListView(item) | LargeListView(item) | FixedSizeList(item, _) => {
            find(item.data_type(), wrong)
        }
        Map(entries, _) => find(entries.data_type(), wrong),
        Struct(fields) => fields.iter().find_map(|field| find(field.data_type(), wrong)),
        Union(fields, _) => fields.iter().find_map(|(_, field)| find(field.data_type(), wrong)),
        Dictionary(_, values) => find(values, wrong),
        RunEndEncoded(_, values) => find(values.data_type(), wrong),
        _ => None,
    }
}

/// The type of the values of a dictionary or of runs.
pub(super) fn decoded(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Dictionary(_, values) => Some(values.as_ref().clone()),
        DataType::RunEndEncoded(_, values) => Some(values.data_type().clone()),
        _ => None,
    }
}
