//! Functions of PostgreSQL's catalog in SQLite.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

use super::{VALUE_BYTES_MAX, texts};
use crate::encode::array::{elements, put_element};

/// What functions look up. It changes with each statement, and with the tables of the service.
#[derive(Default)]
pub(super) struct Names {
    pub(super) user: String,
    pub(super) settings: BTreeMap<String, String>,
    /// Schema and name by OID.
    pub(super) relations: HashMap<i64, (String, String)>,
    pub(super) schemas: HashMap<i64, String>,
    /// Name, element and kind by OID.
    pub(super) types: HashMap<i64, TypeName>,
    /// Indexes by OID.
    pub(super) indexes: HashMap<i64, IndexName>,
    /// Definitions of constraints by OID.
    pub(super) constraints: HashMap<i64, String>,
}

/// What is known of an index.
pub(super) struct IndexName {
    pub(super) definition: String,
    /// The names of its columns, in quotes where they need them.
    pub(super) columns: Vec<String>,
}

/// What is known of a type.
pub(super) struct TypeName {
    pub(super) name: String,
    /// Of an array.
    pub(super) element: i64,
}

pub(super) type SharedNames = Arc<Mutex<Names>>;

fn with<T>(names: &SharedNames, look_up: impl FnOnce(&Names) -> T) -> T {
    look_up(&names.lock().unwrap_or_else(PoisonError::into_inner))
}

pub(super) fn failed(message: impl Into<String>) -> Error {
    Error::UserFunctionError(message.into().into())
}

/// The error of a value that is too long, or takes too long to compute.
pub(super) fn too_large() -> Error {
    Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_TOOBIG), None)
}

/// Fails for values that SQLite would refuse, before they are made.
pub(super) fn check_length(bytes: usize) -> Result<()> {
    if bytes > VALUE_BYTES_MAX { Err(too_large()) } else { Ok(()) }
}

/// An argument as text; `None` if it is NULL or missing.
pub(super) fn text(context: &Context<'_>, index: usize) -> Option<String> {
    if index >= context.len() {
        return None;
    }
    match context.get_raw(index) {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
    }
}

pub(super) fn integer(context: &Context<'_>, index: usize) -> Option<i64> {
    text(context, index)?.trim().parse().ok()
}

/// The elements of `{a,b}`, or of a vector of numbers (`1 2`).
pub(super) fn array(text: &str) -> Vec<Option<String>> {
    elements(text)
        .unwrap_or_else(|| text.split_whitespace().map(|element| Some(element.to_owned())).collect())
}

pub(super) fn array_text(items: &[Option<String>]) -> String {
    let mut out = bytes::BytesMut::from(&b"{"[..]);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b",");
        }
        match item {
            Some(item) => put_element(item.as_bytes(), &mut out),
            None => out.extend_from_slice(b"NULL"),
        }
    }
    out.extend_from_slice(b"}");
    String::from_utf8_lossy(&out).into_owned()
}

impl Names {
    /// The name of a type as SQL has it.
    pub(super) fn format_type(&self, oid: i64, modifier: Option<i64>) -> String {
        let Some(found) = self.types.get(&oid) else { return if oid == 0 { "-" } else { "???" }.into() };
        if found.element != 0 && found.name.starts_with('_') {
            return format!("{}[]", self.format_type(found.element, modifier));
        }
        let packed = modifier.and_then(|modifier| modifier.checked_sub(4)).filter(|packed| *packed >= 0);
        match (found.name.as_str(), packed) {
            ("bool", _) => "boolean".into(),
            ("int2", _) => "smallint".into(),
            ("int4", _) => "integer".into(),
            ("int8", _) => "bigint".into(),
            ("float4", _) => "real".into(),
            ("float8", _) => "double precision".into(),
            ("numeric", Some(packed)) => format!("numeric({},{})", packed >> 16, packed & 0x7ff),
            ("varchar", Some(length)) => format!("character varying({length})"),
            ("varchar", None) => "character varying".into(),
            ("bpchar", Some(length)) => format!("character({length})"),
            ("bpchar", None) => "character".into(),
            ("char", _) => "\"char\"".into(),
            ("bit", _) => "bit".into(),
            ("varbit", _) => "bit varying".into(),
            ("time", _) => "time without time zone".into(),
            ("timetz", _) => "time with time zone".into(),
            ("timestamp", _) => "timestamp without time zone".into(),
            ("timestamptz", _) => "timestamp with time zone".into(),
            (name, _) => name.to_owned(),
        }
    }

    /// The name of a relation, with its schema if it is not on the search path.
    pub(super) fn relation_name(&self, oid: i64) -> Option<String> {
        let (schema, name) = self.relations.get(&oid)?;
        let name = quoted(name);
        Some(if is_visible(schema) { name } else { format!("{}.{name}", quoted(schema)) })
    }

    fn relation_oid(&self, text: &str) -> Option<i64> {
        let (schema, name) = split_name(text);
        let mut found: Vec<_> = self
            .relations
            .iter()
            .filter(|(_, relation)| relation.1 == name)
            .filter(|(_, relation)| {
                schema.as_ref().map_or(is_visible(&relation.0), |schema| *schema == relation.0)
            })
            .map(|(oid, _)| *oid)
            .collect();
        found.sort_unstable();
        found.first().copied()
    }

    fn type_oid(&self, text: &str) -> Option<i64> {
        let (_, name) = split_name(text);
        let name = name.to_lowercase();
        let is_array = name.ends_with("[]");
        let name = name.trim_end_matches("[]").split('(').next().unwrap_or("").trim();
        let short = match name {
            "boolean" => "bool",
            "smallint" => "int2",
            "integer" | "int" => "int4",
            "bigint" => "int8",
            "real" => "float4",
            "double precision" | "float" => "float8",
            "character varying" => "varchar",
            "character" => "bpchar",
            "decimal" => "numeric",
            "timestamp without time zone" => "timestamp",
            "timestamp with time zone" => "timestamptz",
            "time without time zone" => "time",
            "time with time zone" => "timetz",
            other => other,
        };
        let wanted = if is_array { format!("_{short}") } else { short.to_owned() };
        self.types.iter().find(|(_, found)| found.name == wanted).map(|(oid, _)| *oid)
    }
}

fn is_visible(schema: &str) -> bool {
    matches!(schema, "public" | "pg_catalog")
}

/// A name in quotes, if it needs them.
pub(super) fn quoted(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// The parts of a name with dots. What is not in quotes is in lower case.
pub(super) fn name_parts(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_quoted = false;
    for c in text.trim().chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted => parts.push(String::new()),
            c => {
                if let Some(part) = parts.last_mut() {
                    if is_quoted { part.push(c) } else { part.extend(c.to_lowercase()) }
                }
            }
        }
    }
    parts
}

/// Schema and name of `schema."Name"`.
fn split_name(text: &str) -> (Option<String>, String) {
    let mut parts = name_parts(text);
    let name = parts.pop().unwrap_or_default();
    (parts.pop(), name)
}

/// Collects an array.
struct ArrayAgg;

/// The elements, and the bytes of the array.
type Collected = (Vec<Option<String>>, usize);

impl Aggregate<Collected, Option<String>> for ArrayAgg {
    fn init(&self, _: &mut Context<'_>) -> Result<Collected> {
        Ok((Vec::new(), 0))
    }

    fn step(&self, context: &mut Context<'_>, (items, bytes): &mut Collected) -> Result<()> {
        let item = text(context, 0);
        *bytes += 1 + item.as_ref().map_or(4, String::len);
        check_length(*bytes)?;
        items.push(item);
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, collected: Option<Collected>) -> Result<Option<String>> {
        Ok(collected.map(|(items, _)| array_text(&items)))
    }
}

/// Functions that are always NULL here: nothing has defaults, comments or definitions.
pub(super) const ALWAYS_NULL: &[&str] = &[
    "col_description",
    "inet_client_addr",
    "inet_client_port",
    "inet_server_addr",
    "inet_server_port",
    "obj_description",
    "pg_get_expr",
    "pg_get_function_arguments",
    "pg_get_function_identity_arguments",
    "pg_get_function_result",
    "pg_get_functiondef",
    "pg_get_partition_constraintdef",
    "pg_get_partkeydef",
    "pg_get_ruledef",
    "pg_get_serial_sequence",
    "pg_get_statisticsobjdef",
    "pg_get_statisticsobjdef_columns",
    "pg_get_triggerdef",
    "pg_get_viewdef",
    "pg_last_wal_receive_lsn",
    "pg_last_wal_replay_lsn",
    "pg_relation_filenode",
    "pg_relation_filepath",
    "pg_sequence_last_value",
    "pg_tablespace_location",
    "shobj_description",
];

/// Functions that are always true.
pub(super) const ALWAYS_TRUE: &[&str] = &[
    "has_any_column_privilege",
    "has_column_privilege",
    "has_database_privilege",
    "has_function_privilege",
    "has_schema_privilege",
    "has_sequence_privilege",
    "has_table_privilege",
    "pg_collation_is_visible",
    "pg_function_is_visible",
    "pg_has_role",
    "pg_opclass_is_visible",
    "pg_operator_is_visible",
    "pg_type_is_visible",
];

/// Functions that are always 0, or false.
pub(super) const ALWAYS_ZERO: &[&str] = &[
    "pg_column_is_updatable",
    "pg_database_size",
    "pg_index_column_has_property",
    "pg_indexam_has_property",
    "pg_indexes_size",
    "pg_is_in_recovery",
    "pg_is_other_temp_schema",
    "pg_my_temp_schema",
    "pg_relation_is_publishable",
    "pg_relation_is_updatable",
    "pg_relation_size",
    "pg_stat_get_numscans",
    "pg_table_size",
    "pg_total_relation_size",
    "txid_current",
];

/// Adds the functions to a connection.
pub(super) fn add(connection: &Connection, names: &SharedNames) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8;
    for name in ALWAYS_NULL {
        connection.create_scalar_function(*name, -1, flags, |_| Ok(Value::Null))?;
    }
    for name in ALWAYS_TRUE {
        connection.create_scalar_function(*name, -1, flags, |_| Ok(true))?;
    }
    for name in ALWAYS_ZERO {
        connection.create_scalar_function(*name, -1, flags, |_| Ok(0))?;
    }
    connection.create_aggregate_function("array_agg", 1, flags, ArrayAgg)?;
    add_names(connection, names)?;
    texts::add(connection)
}

/// Functions about names and types.
fn add_names(connection: &Connection, names: &SharedNames) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8;
    let shared = names.clone();
    connection.create_scalar_function("format_type", -1, flags, move |context| {
        let oid = integer(context, 0);
        Ok(oid.map(|oid| with(&shared, |names| names.format_type(oid, integer(context, 1)))))
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_get_userbyid", 1, flags, move |_| {
        Ok(with(&shared, |names| names.user.clone()))
    })?;
    let shared = names.clone();
    connection.create_scalar_function("current_setting", -1, flags, move |context| {
        let Some(name) = text(context, 0).map(|name| name.to_lowercase()) else { return Ok(None) };
        let found = with(&shared, |names| names.settings.get(&name).cloned());
        let may_miss = integer(context, 1) == Some(1);
        if found.is_none() && !may_miss {
            return Err(failed(format!("unrecognized configuration parameter \"{name}\"")));
        }
        Ok(found)
    })?;
    connection.create_scalar_function("set_config", 3, flags, |context| Ok(text(context, 1)))?;
    let shared = names.clone();
    connection.create_scalar_function("pg_table_is_visible", 1, flags, move |context| {
        let oid = integer(context, 0);
        Ok(oid.and_then(|oid| {
            with(&shared, |names| names.relations.get(&oid).map(|(schema, _)| is_visible(schema)))
        }))
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_get_indexdef", -1, flags, move |context| {
        let Some(oid) = integer(context, 0) else { return Ok(None) };
        // The whole definition, or that of a column.
        let column = integer(context, 1).unwrap_or(0);
        Ok(with(&shared, |names| {
            let index = names.indexes.get(&oid)?;
            match usize::try_from(column) {
                Ok(0) => Some(index.definition.clone()),
                Ok(column) => Some(index.columns.get(column - 1).cloned().unwrap_or_default()),
                Err(_) => Some(String::new()),
            }
        }))
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_get_constraintdef", -1, flags, move |context| {
        let oid = integer(context, 0);
        Ok(oid.and_then(|oid| with(&shared, |names| names.constraints.get(&oid).cloned())))
    })?;
    // The OID that a name or number stands for.
    let shared = names.clone();
    connection.create_scalar_function("pg_regclass", -1, flags, move |context| {
        let Some(name) = text(context, 0) else { return Ok(None) };
        if let Ok(oid) = name.trim().parse::<i64>() {
            return Ok(Some(oid));
        }
        match with(&shared, |names| names.relation_oid(&name)) {
            None if context.len() == 1 => Err(failed(format!("relation \"{name}\" does not exist"))),
            found => Ok(found),
        }
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_regclass_name", 1, flags, move |context| {
        let Some(oid) = integer(context, 0) else { return Ok(None) };
        Ok(Some(with(&shared, |names| names.relation_name(oid)).unwrap_or_else(|| oid.to_string())))
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_regtype", -1, flags, move |context| {
        let Some(name) = text(context, 0) else { return Ok(None) };
        if let Ok(oid) = name.trim().parse::<i64>() {
            return Ok(Some(oid));
        }
        match with(&shared, |names| names.type_oid(&name)) {
            None if context.len() == 1 => Err(failed(format!("type \"{name}\" does not exist"))),
            found => Ok(found),
        }
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_regnamespace", -1, flags, move |context| {
        let Some(name) = text(context, 0) else { return Ok(None) };
        if let Ok(oid) = name.trim().parse::<i64>() {
            return Ok(Some(oid));
        }
        let (_, name) = split_name(&name);
        Ok(with(&shared, |names| {
            names.schemas.iter().find(|(_, known)| **known == name).map(|(oid, _)| *oid)
        }))
    })?;
    let shared = names.clone();
    connection.create_scalar_function("pg_regnamespace_name", 1, flags, move |context| {
        let Some(oid) = integer(context, 0) else { return Ok(None) };
        Ok(Some(with(&shared, |names| names.schemas.get(&oid).cloned()).unwrap_or_else(|| oid.to_string())))
    })?;
    connection.create_scalar_function("pg_encoding_to_char", 1, flags, |context| {
        Ok(integer(context, 0).map(|encoding| if encoding == 6 { "UTF8" } else { "" }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_where_they_must_be() {
        assert_eq!(quoted("lineitem"), "lineitem");
        assert_eq!(quoted("Line\"Item"), "\"Line\"\"Item\"");
        assert_eq!(split_name("Public.\"My.Table\""), (Some("public".into()), "My.Table".into()));
    }
}
