//! Catalogs, schemas, tables, columns and keys as the nested rows of GetObjects.

use std::sync::Arc;

use adbc_core::error::Result;
use adbc_core::options::ObjectDepth;
use adbc_core::schemas;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Int16Array, Int32Array, ListArray, RecordBatch, StringArray, StructArray,
    new_null_array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, FieldRef, Fields};

use crate::xdbc::{self, Xdbc};

/// Patterns as in LIKE; `None` admits all.
#[derive(Debug, Default)]
pub(crate) struct Wanted<'a> {
    pub(crate) catalog: Option<&'a str>,
    pub(crate) schema: Option<&'a str>,
    pub(crate) table: Option<&'a str>,
    pub(crate) types: Option<Vec<&'a str>>,
    pub(crate) column: Option<&'a str>,
}

impl Wanted<'_> {
    pub(crate) fn has_catalog(&self, name: &str) -> bool {
        self.catalog.is_none_or(|pattern| is_like(name, pattern))
    }

    pub(crate) fn has_schema(&self, name: &str) -> bool {
        self.schema.is_none_or(|pattern| is_like(name, pattern))
    }

    pub(crate) fn has(&self, schema: &str, table: &str) -> bool {
        self.has_schema(schema) && self.table.is_none_or(|pattern| is_like(table, pattern))
    }

    pub(crate) fn has_table(&self, table: &Table) -> bool {
        self.has(&table.schema, &table.name)
            && self
                .types
                .as_ref()
                .is_none_or(|types| types.iter().any(|kind| kind.eq_ignore_ascii_case(&table.kind)))
    }

    fn has_column(&self, name: &str) -> bool {
        self.column.is_none_or(|pattern| is_like(name, pattern))
    }
}

/// Whether a text matches a pattern with `%` and `_`.
fn is_like(text: &str, pattern: &str) -> bool {
    let (text, pattern): (Vec<char>, Vec<char>) = (text.chars().collect(), pattern.chars().collect());
    let (mut at, mut of) = (0, 0);
    // Where to go on if the shortest text for the latest `%` was too short.
    let mut retry = None;
    while at < text.len() {
        match pattern.get(of) {
            Some('%') => {
                retry = Some((at, of));
                of += 1;
            }
            Some(&c) if c == '_' || c == text[at] => (at, of) = (at + 1, of + 1),
            _ => match retry {
                Some((from, percent)) => {
                    retry = Some((from + 1, percent));
                    (at, of) = (from + 1, percent + 1);
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|&c| c == '%')
}

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) schema: String,
    name: String,
    kind: String,
    columns: Vec<Column>,
    /// Columns that were listed, also those that are not wanted.
    columns_seen: i32,
    pub(crate) keys: Vec<Key>,
}

#[derive(Debug)]
struct Column {
    position: i32,
    listed: ListedColumn,
    xdbc: Xdbc,
}

/// A column as the source lists it.
#[derive(Debug)]
pub(crate) struct ListedColumn {
    pub(crate) name: String,
    pub(crate) type_name: Option<String>,
    /// Whether it may be NULL, and whether its values are counted up or computed: `YES` or `NO`.
    pub(crate) nullable: Option<String>,
    pub(crate) default: Option<String>,
    pub(crate) counted: Option<String>,
    pub(crate) computed: Option<String>,
}

/// A primary, unique or foreign key.
#[derive(Debug)]
pub(crate) struct Key {
    name: Option<String>,
    kind: String,
    columns: Vec<String>,
    /// Of a foreign key: schema, table and column that it refers to.
    of: Vec<[String; 3]>,
}

impl Key {
    /// Adds a column of a key. Those of one key follow each other.
    pub(crate) fn add(
        keys: &mut Vec<Self>,
        name: Option<String>,
        kind: String,
        column: String,
        of: Option<[String; 3]>,
    ) {
        if keys.last().is_none_or(|last| last.name != name) {
            keys.push(Self { name, kind, columns: Vec::new(), of: Vec::new() });
        }
        if let Some(key) = keys.last_mut() {
            key.columns.push(column);
            key.of.extend(of);
        }
    }
}

impl Table {
    pub(crate) fn new(schema: String, name: String, kind: String) -> Self {
        Self { schema, name, kind, columns: Vec::new(), columns_seen: 0, keys: Vec::new() }
    }

    pub(crate) fn is_view(&self) -> bool {
        self.kind.contains("view")
    }

    pub(crate) fn full_name(&self) -> (String, String) {
        (self.schema.clone(), self.name.clone())
    }

    pub(crate) fn add_column(&mut self, listed: ListedColumn, wanted: &Wanted<'_>) {
        self.columns_seen += 1;
        if wanted.has_column(&listed.name) {
            let xdbc = listed.type_name.as_deref().map(xdbc::of).unwrap_or_default();
            self.columns.push(Column { position: self.columns_seen, listed, xdbc });
        }
    }
}

/// What is in a catalog.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    /// `None` if the catalog is not wanted.
    pub(crate) catalog: Option<String>,
    pub(crate) schemas: Vec<String>,
    pub(crate) tables: Vec<Table>,
}

impl Objects {
    pub(crate) fn batch(&self, depth: ObjectDepth) -> Result<RecordBatch> {
        let schema = schemas::GET_OBJECTS_SCHEMA.clone();
        let catalogs = StringArray::from_iter_values(&self.catalog);
        let schemas = match depth {
            ObjectDepth::Catalogs => new_null_array(schema.field(1).data_type(), catalogs.len()),
            _ => self.schemas(depth)?,
        };
        Ok(RecordBatch::try_new(schema, vec![Arc::new(catalogs), schemas])?)
    }

    fn schemas(&self, depth: ObjectDepth) -> Result<ArrayRef> {
        let fields = fields(&schemas::OBJECTS_DB_SCHEMA_SCHEMA);
        let names = StringArray::from_iter_values(&self.schemas);
        let tables = match depth {
            ObjectDepth::Schemas => new_null_array(fields[1].data_type(), names.len()),
            _ => self.tables(depth)?,
        };
        let schemas = StructArray::try_new(fields, vec![Arc::new(names), tables], None)?;
        list(
            &schemas::OBJECTS_DB_SCHEMA_SCHEMA,
            self.catalog.iter().map(|_| self.schemas.len()),
            schemas,
            None,
        )
    }

    fn tables(&self, depth: ObjectDepth) -> Result<ArrayRef> {
        let fields = fields(&schemas::TABLE_SCHEMA);
        let is_of = |table: &&Table, schema: &String| table.schema == *schema;
        let of = |schema| self.tables.iter().filter(move |table| is_of(table, schema));
        let tables: Vec<&Table> = self.schemas.iter().flat_map(of).collect();
        let (columns, keys) = match depth {
            ObjectDepth::Tables => (
                new_null_array(fields[2].data_type(), tables.len()),
                new_null_array(fields[3].data_type(), tables.len()),
            ),
            _ => (columns(&tables)?, keys(&tables, self.catalog.as_deref())?),
        };
        let names = StringArray::from_iter_values(tables.iter().map(|table| &table.name));
        let kinds = StringArray::from_iter_values(tables.iter().map(|table| &table.kind));
        let children: Vec<ArrayRef> = vec![Arc::new(names), Arc::new(kinds), columns, keys];
        let counts = self.schemas.iter().map(|schema| of(schema).count());
        list(&schemas::TABLE_SCHEMA, counts, StructArray::try_new(fields, children, None)?, None)
    }
}

fn columns(tables: &[&Table]) -> Result<ArrayRef> {
    let fields = fields(&schemas::COLUMN_SCHEMA);
    let columns: Vec<&Column> = tables.iter().flat_map(|table| &table.columns).collect();
    let texts = |of: fn(&ListedColumn) -> Option<&String>| -> ArrayRef {
        Arc::new(StringArray::from_iter(columns.iter().map(|column| of(&column.listed))))
    };
    let shorts = |of: fn(&Column) -> Option<i16>| -> ArrayRef {
        Arc::new(Int16Array::from_iter(columns.iter().map(|column| of(column))))
    };
    let numbers = |of: fn(&Column) -> Option<i32>| -> ArrayRef {
        Arc::new(Int32Array::from_iter(columns.iter().map(|column| of(column))))
    };
    let flags = |of: fn(&ListedColumn) -> Option<&String>| -> ArrayRef {
        let is = columns.iter().map(|column| of(&column.listed).map(|said| said == "YES"));
        Arc::new(BooleanArray::from_iter(is))
    };
    let children = fields
        .iter()
        .map(|field| -> ArrayRef {
            match field.name().as_str() {
                "column_name" => texts(|column| Some(&column.name)),
                "ordinal_position" => numbers(|column| Some(column.position)),
                "xdbc_data_type" => shorts(|column| column.xdbc.data_type),
                "xdbc_type_name" => texts(|column| column.type_name.as_ref()),
                "xdbc_column_size" => numbers(|column| column.xdbc.column_size),
                "xdbc_decimal_digits" => shorts(|column| column.xdbc.decimal_digits),
                "xdbc_num_prec_radix" => shorts(|column| column.xdbc.num_prec_radix),
                "xdbc_nullable" => {
                    shorts(|column| column.listed.nullable.as_ref().map(|said| i16::from(said != "NO")))
                }
                "xdbc_column_def" => texts(|column| column.default.as_ref()),
                "xdbc_sql_data_type" => shorts(|column| column.xdbc.sql_data_type()),
                "xdbc_datetime_sub" => shorts(|column| column.xdbc.datetime_sub),
                "xdbc_char_octet_length" => numbers(|column| column.xdbc.char_octet_length),
                "xdbc_is_nullable" => texts(|column| column.nullable.as_ref()),
                "xdbc_is_autoincrement" => flags(|column| column.counted.as_ref()),
                "xdbc_is_generatedcolumn" => flags(|column| column.computed.as_ref()),
                // Remarks, and the scopes of references.
                _ => new_null_array(field.data_type(), columns.len()),
            }
        })
        .collect();
    let counts = tables.iter().map(|table| table.columns.len());
    list(&schemas::COLUMN_SCHEMA, counts, StructArray::try_new(fields.clone(), children, None)?, None)
}

fn keys(tables: &[&Table], catalog: Option<&str>) -> Result<ArrayRef> {
    let fields = fields(&schemas::CONSTRAINT_SCHEMA);
    let keys: Vec<&Key> = tables.iter().flat_map(|table| &table.keys).collect();
    let columns: Vec<&String> = keys.iter().flat_map(|key| &key.columns).collect();
    let columns = StringArray::from_iter_values(columns);
    let columns = list(&DataType::Utf8, keys.iter().map(|key| key.columns.len()), columns, None)?;
    let of: Vec<&[String; 3]> = keys.iter().flat_map(|key| &key.of).collect();
    let part =
        |at: usize| -> ArrayRef { Arc::new(StringArray::from_iter_values(of.iter().map(|of| &of[at]))) };
    let catalogs: ArrayRef = Arc::new(StringArray::from_iter(of.iter().map(|_| catalog)));
    let usage_fields = self::fields(&schemas::USAGE_SCHEMA);
    let usage = StructArray::try_new(usage_fields, vec![catalogs, part(0), part(1), part(2)], None)?;
    let is_foreign: NullBuffer = keys.iter().map(|key| key.kind == "FOREIGN KEY").collect::<Vec<_>>().into();
    let usage = list(&schemas::USAGE_SCHEMA, keys.iter().map(|key| key.of.len()), usage, Some(is_foreign))?;
    let names = StringArray::from_iter(keys.iter().map(|key| key.name.as_ref()));
    let kinds = StringArray::from_iter_values(keys.iter().map(|key| &key.kind));
    let children: Vec<ArrayRef> = vec![Arc::new(names), Arc::new(kinds), columns, usage];
    let counts = tables.iter().map(|table| table.keys.len());
    list(&schemas::CONSTRAINT_SCHEMA, counts, StructArray::try_new(fields, children, None)?, None)
}

pub(crate) fn fields(of: &DataType) -> Fields {
    match of {
        DataType::Struct(fields) => fields.clone(),
        _ => Fields::empty(),
    }
}

/// A list of `counts` values each.
pub(crate) fn list(
    of: &DataType,
    counts: impl Iterator<Item = usize>,
    values: impl Array + 'static,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let item: FieldRef = Arc::new(arrow_schema::Field::new_list_field(of.clone(), true));
    Ok(Arc::new(ListArray::try_new(item, OffsetBuffer::from_lengths(counts), Arc::new(values), nulls)?))
}
