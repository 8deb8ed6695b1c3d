//! Replaces types that a format can't hold by types that hold the same values.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Date32Type, Date64Type};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, make_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};

use super::readable::{self, is_uuid};
use super::{reason, unfit};
use crate::Result;

const DAY_MS: i64 = 86_400_000;

/// Returns the type that replaces that of a column or item, if one does.
pub(super) type Rule<'a> = &'a dyn Fn(&Field) -> Option<DataType>;

/// Casts batches to the types that a format holds.
pub(super) struct TypeMapping {
    schema: SchemaRef,
    changed: bool,
}

impl TypeMapping {
    /// Replaces every type, nested ones too, for which `rule` returns another.
    pub(super) fn new(schema: &SchemaRef, rule: Rule<'_>) -> Self {
        let fields: Vec<FieldRef> = schema.fields().iter().map(|field| mapped(field, rule)).collect();
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
        let schema = batch.schema_ref();
        let columns = batch.columns().iter().zip(schema.fields()).zip(self.schema.fields());
        let columns = columns.map(|((column, from), field)| {
            if column.data_type() == field.data_type() {
                return Ok(Arc::clone(column));
            }
            let convert = |column: &ArrayRef| convert(column, is_uuid(from), field.data_type());
            convert(column).map_err(|error| {
                // A cast's error does not name the row: it is the first one that can't be cast alone.
                let fails = |row: &usize| convert(&column.slice(*row, 1)).is_err();
                let row = (0..column.len()).find(fails).unwrap_or(0);
                unfit(row, field.name(), reason(error), "write it as arrow")
            })
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let rows = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &rows)?)
    }
}

/// Converts the innermost types that differ, and leaves offsets and nulls as they are. (A cast of a nested array as a
/// whole supports fewer types.) `is_uuid` says whether bytes are UUIDs.
pub(super) fn convert(array: &ArrayRef, is_uuid: bool, to: &DataType) -> Result<ArrayRef, ArrowError> {
    use DataType::*;
    let pair = |from: &FieldRef, to: &FieldRef| (readable::is_uuid(from), to.data_type().clone());
    let children: Vec<(bool, DataType)> = match (array.data_type(), to) {
        (from, to) if from == to => return Ok(Arc::clone(array)),
        (List(from), List(item))
        | (LargeList(from), LargeList(item))
        | (ListView(from), ListView(item))
        | (LargeListView(from), LargeListView(item))
        | (FixedSizeList(from, _), FixedSizeList(item, _)) => vec![pair(from, item)],
        (Map(from, _), Map(entries, _)) => vec![pair(from, entries)],
        (Struct(from), Struct(fields)) => from.iter().zip(fields).map(|(from, to)| pair(from, to)).collect(),
        (Union(from, _), Union(fields, _)) => {
            from.iter().zip(fields.iter()).map(|((_, from), (_, to))| pair(from, to)).collect()
        }
        (RunEndEncoded(_, from), RunEndEncoded(ends, values)) => {
            vec![(false, ends.data_type().clone()), pair(from, values)]
        }
        // Values first: they may be nested, and of a type that is itself replaced.
        (Dictionary(_, values), to) if **values != *to => {
            let values = values.as_ref().clone();
            return convert(&convert(array, false, &values)?, is_uuid, to);
        }
        (RunEndEncoded(_, values), to) if values.data_type() != to => {
            let (is_uuid, values) = pair(values, values);
            return convert(&convert(array, false, &values)?, is_uuid, to);
        }
        (from, Utf8) if readable::has_own_form(from) => {
            let field = Field::new("", from.clone(), true);
            let field = if is_uuid { field.with_metadata(uuid_metadata()) } else { field };
            return readable::texts(&field, array);
        }
        (Date64, Date32) => return dates(array),
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
        .map(|(child, (is_uuid, to))| Ok(convert(&make_array(child.clone()), is_uuid, &to)?.into_data()));
    let converted = converted.collect::<Result<Vec<_>, ArrowError>>()?;
    Ok(make_array(data.into_builder().data_type(to.clone()).child_data(converted).build()?))
}

/// Dates in milliseconds as days; a cast would cut the time of day off.
fn dates(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let days = array.as_primitive::<Date64Type>().try_unary::<_, Date32Type, ArrowError>(|ms| {
        let invalid = |reason: &str| ArrowError::InvalidArgumentError(reason.to_owned());
        match ms % DAY_MS {
            0 => i32::try_from(ms / DAY_MS).map_err(|_| invalid("a date beyond 32 bits of days")),
            _ => Err(invalid("a date with a time of day; cast it to a timestamp in the query")),
        }
    })?;
    Ok(Arc::new(days))
}

fn uuid_metadata() -> HashMap<String, String> {
    HashMap::from([(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.uuid".to_owned())])
}

/// The field with every type replaced, nested ones too. The rule is applied to the replacement again.
pub(super) fn mapped(field: &FieldRef, rule: Rule<'_>) -> FieldRef {
    let data_type = replace(field, rule);
    if data_type == *field.data_type() {
        return Arc::clone(field);
    }
    // What extends a type does not extend its replacement.
    let mut metadata = field.metadata().clone();
    if data_type == DataType::Utf8 {
        metadata.retain(|key, _| !key.starts_with("ARROW:extension:"));
    }
    Arc::new(Field::clone(field).with_data_type(data_type).with_metadata(metadata))
}

fn replace(field: &Field, rule: Rule<'_>) -> DataType {
    use DataType::*;
    if let Some(other) = rule(field) {
        return replace(&field.clone().with_data_type(other), rule);
    }
    match field.data_type() {
        List(item) => List(mapped(item, rule)),
        LargeList(item) => LargeList(mapped(item, rule)),
        ListView(item) => ListView(mapped(item, rule)),
        LargeListView(item) => LargeListView(mapped(item, rule)),
        FixedSizeList(item, size) => FixedSizeList(mapped(item, rule), *size),
        Struct(fields) => Struct(fields.iter().map(|field| mapped(field, rule)).collect()),
        Map(entries, ordered) => Map(mapped(entries, rule), *ordered),
        Union(fields, mode) => {
            let fields = fields.iter().map(|(id, field)| (id, mapped(field, rule)));
            Union(fields.collect(), *mode)
        }
        RunEndEncoded(ends, values) => RunEndEncoded(ends.clone(), mapped(values, rule)),
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
