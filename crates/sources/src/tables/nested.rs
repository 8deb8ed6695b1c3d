//! Structures, maps, and lists that a database has no type for, as JSON.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};
use async_trait::async_trait;

use super::cells::plain;
use crate::writers::JsonValues;
use crate::{Destination, Location, Result, SourceError, Tuples, Written};

/// The columns that are written as JSON, and how.
pub(super) struct Nested {
    schema: SchemaRef,
    /// The encoders of the columns that are written as JSON, and `None` for the others.
    columns: Vec<Option<JsonValues>>,
}

impl Nested {
    /// The columns of `schema` that the database has no type for; `None` if there are none.
    ///
    /// # Errors
    /// For a type that JSON does not have either.
    pub(super) fn of(location: &Location, schema: &SchemaRef) -> Result<Option<Self>> {
        // A driver decides itself.
        if matches!(location, Location::Adbc(_)) {
            return Ok(None);
        }
        let has_lists = matches!(location, Location::Postgres(_));
        let is_nested = |field: &FieldRef| match plain(field.data_type()) {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)
                if has_lists =>
            {
                plain(item.data_type()).is_nested()
            }
            data_type => data_type.is_nested(),
        };
        if !schema.fields().iter().any(is_nested) {
            return Ok(None);
        }
        let columns = schema.fields().iter().map(|field| match is_nested(field) {
            true => Ok(Some(JsonValues::new(field)?)),
            false => Ok(None),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let fields = schema.fields().iter().map(|field| match is_nested(field) {
            true => {
                let json = [(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.json".to_owned())];
                Arc::new(Field::new(field.name(), DataType::Utf8, true).with_metadata(json.into()))
            }
            false => field.clone(),
        });
        let schema = Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone());
        Ok(Some(Self { schema: Arc::new(schema), columns }))
    }

    /// The columns as the database gets them.
    pub(super) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The destination of batches with nested columns, in front of one for JSON.
    pub(super) fn before(self, inner: Box<dyn Destination>) -> Box<dyn Destination> {
        Box::new(AsJson { nested: self, inner, rows: 0 })
    }
}

struct AsJson {
    nested: Nested,
    inner: Box<dyn Destination>,
    rows: u64,
}

#[async_trait]
impl Destination for AsJson {
    fn notices(&self) -> Vec<String> {
        self.inner.notices()
    }

    fn take_tuples(&mut self, offer: Tuples) -> bool {
        self.inner.take_tuples(offer)
    }

    async fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let Nested { schema, columns } = &self.nested;
        if batch.num_columns() != columns.len() {
            let reason = format!("a batch of {} columns; expected {}", batch.num_columns(), columns.len());
            return Err(SourceError::Unsupported(reason));
        }
        let converted = batch.columns().iter().zip(columns).map(|(array, json)| match json {
            Some(json) => json.texts(array).map_err(|error| error.after_rows(self.rows)),
            None => Ok(array.clone()),
        });
        let converted = converted.collect::<Result<Vec<_>>>()?;
        self.rows += batch.num_rows() as u64;
        self.inner.write(RecordBatch::try_new(schema.clone(), converted)?).await
    }

    async fn finish(self: Box<Self>) -> Result<Written> {
        self.inner.finish().await
    }
}
