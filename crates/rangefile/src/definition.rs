//! What a range file is: its name, columns, key, and the capacity of its buckets.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use lightship_wire::schema;

use crate::error::{RangeError, Result};
use crate::key::{KeyFormat, SharedKeyFormat};
use crate::request::FileRecord;

/// The longest name of a file in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The name of the stored column that says which rows are deletions.
const DELETED: &str = "lightship_deleted";

/// How much a bucket may hold before it splits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capacity {
    /// In records.
    Records(u64),
    /// In bytes of Arrow data.
    Bytes(u64),
}

impl Default for Capacity {
    /// 64 MiB: large enough that a scan of one bucket is worth a connection, small enough to move in a second.
    fn default() -> Self {
        Self::Bytes(64 << 20)
    }
}

impl Capacity {
    /// The most that a bucket holds.
    pub(crate) fn max(self) -> u64 {
        match self {
            Self::Records(max) | Self::Bytes(max) => max,
        }
    }

    /// How much of it is used by records and their bytes.
    pub(crate) fn used(self, (records, bytes): (u64, u64)) -> u64 {
        match self {
            Self::Records(_) => records,
            Self::Bytes(_) => bytes,
        }
    }
}

/// A range file, as it was created.
#[derive(Debug, Clone)]
pub struct Definition {
    /// Its name, which is that of its table in SQL.
    pub name: String,
    /// Its columns. Those of the key are never NULL.
    pub schema: SchemaRef,
    /// The names of the key's columns, most significant first.
    pub key: Vec<String>,
    /// When a bucket splits.
    pub capacity: Capacity,
    format: SharedKeyFormat,
    /// Of stored rows, without and with a column of deletions.
    stored: [SchemaRef; 2],
    loose: SchemaRef,
}

impl Definition {
    /// A definition.
    ///
    /// # Errors
    /// [`RangeError::Definition`] for an impossible name, key or capacity.
    pub fn new(name: &str, schema: &Schema, key: &[String], capacity: Capacity) -> Result<Self> {
        let refuse = |why: &str| Err(RangeError::Definition(why.to_owned()));
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return refuse("the name of a range file has 1 to 255 bytes, without control characters");
        }
        if matches!(capacity, Capacity::Records(0..2) | Capacity::Bytes(0..1024)) {
            return refuse("the capacity of a bucket must be at least 2 records or 1 KiB");
        }
        if schema.fields().iter().any(|field| field.name() == DELETED) {
            return refuse("the column name lightship_deleted is reserved");
        }
        let fields = schema.fields().iter().map(|field| {
            let is_key = key.contains(field.name());
            Arc::new(field.as_ref().clone().with_nullable(field.is_nullable() && !is_key))
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let format = Arc::new(KeyFormat::new(&schema, key)?);
        let stored = [false, true].map(|with_deletions| {
            // A deletion has only a key.
            let nullable = |field: &Arc<Field>| {
                let is_key = key.contains(field.name());
                Arc::new(
                    field.as_ref().clone().with_nullable(!is_key && (field.is_nullable() || with_deletions)),
                )
            };
            let mut fields: Vec<_> = schema.fields().iter().map(nullable).collect();
            if with_deletions {
                fields.push(Arc::new(Field::new(DELETED, DataType::Boolean, false)));
            }
            Arc::new(Schema::new(fields))
        });
        let columns = stored[1].fields().iter().take(schema.fields().len()).cloned();
        let loose = Arc::new(Schema::new(columns.collect::<Vec<_>>()));
        Ok(Self { name: name.to_owned(), schema, key: key.to_vec(), capacity, format, stored, loose })
    }

    /// The columns for deletions: those of the key, and the others with NULL in them.
    pub fn key_schema(&self) -> SchemaRef {
        self.loose.clone()
    }

    /// Converts keys to bytes and back.
    pub fn format(&self) -> &SharedKeyFormat {
        &self.format
    }

    /// The columns of stored rows.
    pub(crate) fn stored(&self, with_deletions: bool) -> &SchemaRef {
        &self.stored[usize::from(with_deletions)]
    }

    /// The file's columns, of which only those of the key are never NULL: a deletion has only a key.
    pub(crate) fn loose(&self) -> &SchemaRef {
        &self.loose
    }

    pub(crate) fn to_record(&self) -> Result<FileRecord> {
        let (records, bytes) = match self.capacity {
            Capacity::Records(records) => (Some(records), None),
            Capacity::Bytes(bytes) => (None, Some(bytes)),
        };
        Ok(FileRecord {
            name: self.name.clone(),
            schema: schema::encode(&self.schema)?,
            key: self.key.clone(),
            capacity_records: records,
            capacity_bytes: bytes,
            id: 0,
        })
    }

    pub(crate) fn from_record(record: &FileRecord) -> Result<Self> {
        let schema = schema::decode(&record.schema)?;
        let capacity = match (record.capacity_records, record.capacity_bytes) {
            (Some(records), _) => Capacity::Records(records),
            (None, Some(bytes)) => Capacity::Bytes(bytes),
            (None, None) => Capacity::default(),
        };
        Self::new(&record.name, &schema, &record.key, capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_the_same_after_it_was_stored() {
        let schema = Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("text", DataType::Utf8, true),
        ]);
        for capacity in [Capacity::Records(50), Capacity::Bytes(1 << 20)] {
            let definition = Definition::new("orders", &schema, &["id".into()], capacity).unwrap();
            let again = Definition::from_record(&definition.to_record().unwrap()).unwrap();
            assert_eq!((again.schema.clone(), again.capacity), (definition.schema.clone(), capacity));
            assert!(!again.schema.field(0).is_nullable());
        }
    }

    #[test]
    fn impossible_definitions_are_refused() {
        let schema = Schema::new(vec![Field::new("id", DataType::Int64, true)]);
        let key = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        for (name, key, capacity) in [
            ("", key(&["id"]), Capacity::Records(50)),
            ("a\n", key(&["id"]), Capacity::Records(50)),
            ("a", key(&[]), Capacity::Records(50)),
            ("a", key(&["x"]), Capacity::Records(50)),
            ("a", key(&["id", "id"]), Capacity::Records(50)),
            ("a", key(&["id"]), Capacity::Records(1)),
        ] {
            assert!(Definition::new(name, &schema, &key, capacity).is_err(), "{name} {key:?}");
        }
    }
}
