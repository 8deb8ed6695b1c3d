//! Functions of PostgreSQL's catalog in SQLite.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};
use rusqlite::functions::{Aggregate, Context, FunctionFlags};
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Error, Result};

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
}

/// What is known of a type.
pub(super) struct TypeName {
    pub(super) name: String,
    /// Of an array.
    pub(super) element: i64,
}

pub(super) type SharedNames = Arc<Mutex<Names>>;

/// The most bytes of a compiled expression.
const REGEX_BYTES_MAX: usize = 1 << 20;

fn with<T>(names: &SharedNames, look_up: impl FnOnce(&Names) -> T) -> T {
    look_up(&names.lock().unwrap_or_else(PoisonError::into_inner))
}

fn failed(message: impl Into<String>) -> Error {
    Error::UserFunctionError(message.into().into())
}

/// An argument as text; `None` if it is NULL or missing.
fn text(context: &Context<'_>, index: usize) -> Option<String> {
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

fn integer(context: &Context<'_>, index: usize) -> Option<i64> {
    text(context, index)?.trim().parse().ok()
}

/// The elements of `{a,b}`, or of a vector of numbers (`1 2`).
fn array(text: &str) -> Vec<Option<String>> {
    elements(text)
        .unwrap_or_else(|| text.split_whitespace().map(|element| Some(element.to_owned())).collect())
}

fn array_text(items: &[Option<String>]) -> String {
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
fn quoted(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if is_plain { name.to_owned() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

/// Schema and name of `schema."Name"`. What is not in quotes is in lower case.
fn split_name(text: &str) -> (Option<String>, String) {
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
    let name = parts.pop().unwrap_or_default();
    (parts.pop(), name)
}

/// `LIKE` with an escape character.
pub(super) fn like(text: &str, pattern: &str, escape: Option<char>) -> bool {
    #[derive(PartialEq)]
    enum Part {
        Char(char),
        One,
        Many,
    }
    let mut parts = Vec::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        parts.push(match c {
            c if Some(c) == escape => match chars.next() {
                Some(next) => Part::Char(next),
                None => return false,
            },
            '%' => Part::Many,
            '_' => Part::One,
            c => Part::Char(c),
        });
    }
    let text: Vec<char> = text.chars().collect();
    // Goes back only to the last %.
    let (mut at, mut part) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while at < text.len() {
        match parts.get(part) {
            Some(Part::Many) => {
                retry = Some((at, part));
                part += 1;
                continue;
            }
            Some(Part::One) => {
                (at, part) = (at + 1, part + 1);
                continue;
            }
            Some(Part::Char(c)) if *c == text[at] => {
                (at, part) = (at + 1, part + 1);
                continue;
            }
            _ => {}
        }
        match retry {
            Some((from, many)) => {
                retry = Some((from + 1, many));
                (at, part) = (from + 1, many + 1);
            }
            None => return false,
        }
    }
    parts[part..].iter().all(|part| *part == Part::Many)
}

/// Collects an array.
struct ArrayAgg;

impl Aggregate<Vec<Option<String>>, Option<String>> for ArrayAgg {
    fn init(&self, _: &mut Context<'_>) -> Result<Vec<Option<String>>> {
        Ok(Vec::new())
    }

    fn step(&self, context: &mut Context<'_>, items: &mut Vec<Option<String>>) -> Result<()> {
        if items.len() >= 1 << 20 {
            return Err(failed("an array of too many elements"));
        }
        items.push(text(context, 0));
        Ok(())
    }

    fn finalize(&self, _: &mut Context<'_>, items: Option<Vec<Option<String>>>) -> Result<Option<String>> {
        Ok(items.map(|items| array_text(&items)))
    }
}

/// Functions that are always NULL here: nothing has defaults, keys, indexes, comments or definitions.
pub(super) const ALWAYS_NULL: &[&str] = &[
    "_pg_expandarray",
    "col_description",
    "generate_subscripts",
    "inet_client_addr",
    "inet_client_port",
    "inet_server_addr",
    "inet_server_port",
    "obj_description",
    "pg_get_constraintdef",
    "pg_get_expr",
    "pg_get_function_arguments",
    "pg_get_function_identity_arguments",
    "pg_get_function_result",
    "pg_get_functiondef",
    "pg_get_indexdef",
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
    "unnest",
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
    add_texts(connection)?;
    add_arrays(connection)
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

/// Functions of texts.
fn add_texts(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    for (name, is_insensitive) in [("pg_regex", false), ("pg_iregex", true)] {
        connection.create_scalar_function(name, 2, flags, move |context| {
            let (Some(value), Some(_)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
            let compile = |pattern: ValueRef<'_>| -> Result<Regex, Box<dyn std::error::Error + Send + Sync>> {
                let pattern = pattern.as_str()?;
                Ok(RegexBuilder::new(pattern)
                    .case_insensitive(is_insensitive)
                    .size_limit(REGEX_BYTES_MAX)
                    .build()?)
            };
            let regex = context.get_or_create_aux(1, compile)?;
            Ok(Some(regex.is_match(&value)))
        })?;
    }
    for (name, is_insensitive) in [("pg_like", false), ("pg_ilike", true)] {
        connection.create_scalar_function(name, -1, flags, move |context| {
            let (Some(value), Some(pattern)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
            let escape =
                if context.len() > 2 { text(context, 2).and_then(|e| e.chars().next()) } else { Some('\\') };
            let fold = |text: String| if is_insensitive { text.to_lowercase() } else { text };
            Ok(Some(like(&fold(value), &fold(pattern), escape)))
        })?;
    }
    connection.create_scalar_function("pg_bool", 1, flags, |context| {
        let Some(value) = text(context, 0) else { return Ok(None) };
        match value.to_lowercase().as_str() {
            "t" | "true" | "1" | "on" | "yes" | "y" => Ok(Some(true)),
            "f" | "false" | "0" | "off" | "no" | "n" => Ok(Some(false)),
            _ => Err(failed(format!("invalid input syntax for type boolean: \"{value}\""))),
        }
    })?;
    connection.create_scalar_function("pg_bool_text", 1, flags, |context| {
        Ok(integer(context, 0).map(|value| if value == 0 { "false" } else { "true" }))
    })?;
    connection.create_scalar_function("quote_ident", 1, flags, |context| {
        Ok(text(context, 0).map(|name| quoted(&name)))
    })?;
    connection.create_scalar_function("quote_literal", 1, flags, |context| {
        Ok(text(context, 0).map(|value| format!("'{}'", value.replace('\'', "''"))))
    })?;
    connection.create_scalar_function("pg_size_pretty", 1, flags, |context| {
        Ok(integer(context, 0).map(|size| format!("{size} bytes")))
    })?;
    connection.create_scalar_function("split_part", 3, flags, |context| {
        let (Some(value), Some(by), Some(index)) = (text(context, 0), text(context, 1), integer(context, 2))
        else {
            return Ok(None);
        };
        let index = usize::try_from(index.saturating_sub(1)).unwrap_or(usize::MAX);
        let part = if by.is_empty() { None } else { value.split(&by).nth(index).map(str::to_owned) };
        Ok(Some(part.unwrap_or_default()))
    })?;
    connection.create_scalar_function("left", 2, flags, |context| {
        let (Some(value), Some(count)) = (text(context, 0), integer(context, 1)) else { return Ok(None) };
        Ok(Some(value.chars().take(usize::try_from(count).unwrap_or(0)).collect::<String>()))
    })?;
    connection.create_scalar_function("regexp_replace", -1, flags, |context| {
        let (Some(value), Some(pattern), Some(with)) = (text(context, 0), text(context, 1), text(context, 2))
        else {
            return Ok(None);
        };
        let regex = RegexBuilder::new(&pattern)
            .size_limit(REGEX_BYTES_MAX)
            .build()
            .map_err(|e| failed(e.to_string()))?;
        let with =
            with.replace('$', "$$").replace("\\1", "${1}").replace("\\2", "${2}").replace("\\&", "${0}");
        let limit = if text(context, 3).is_some_and(|flags| flags.contains('g')) { 0 } else { 1 };
        Ok(Some(regex.replacen(&value, limit, with.as_str()).into_owned()))
    })
}

/// Functions of arrays, which are texts.
fn add_arrays(connection: &Connection) -> Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("pg_array", -1, flags, |context| {
        let items: Vec<_> = (0..context.len()).map(|index| text(context, index)).collect();
        Ok(array_text(&items))
    })?;
    connection.create_scalar_function("pg_in_array", 2, flags, |context| {
        let (Some(value), Some(items)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        Ok(Some(array(&items).contains(&Some(value))))
    })?;
    connection.create_scalar_function("pg_subscript", 2, flags, |context| {
        let (Some(items), Some(index)) = (text(context, 0), integer(context, 1)) else { return Ok(None) };
        let items = array(&items);
        Ok(usize::try_from(index)
            .ok()
            .and_then(|index| items.into_iter().nth(index.checked_sub(1)?))
            .flatten())
    })?;
    connection.create_scalar_function("array_to_string", -1, flags, |context| {
        let (Some(items), Some(by)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        let null = text(context, 2);
        let items: Vec<_> =
            array(&items).into_iter().filter_map(|item| item.or_else(|| null.clone())).collect();
        Ok(Some(items.join(&by)))
    })?;
    connection.create_scalar_function("string_to_array", 2, flags, |context| {
        let (Some(value), Some(by)) = (text(context, 0), text(context, 1)) else { return Ok(None) };
        let parts: Vec<_> =
            if by.is_empty() { vec![value] } else { value.split(&by).map(str::to_owned).collect() };
        Ok(Some(array_text(&parts.into_iter().map(Some).collect::<Vec<_>>())))
    })?;
    for name in ["array_length", "array_upper", "cardinality"] {
        connection.create_scalar_function(name, -1, flags, |context| {
            let count = text(context, 0).map(|items| array(&items).len() as i64);
            Ok(count.filter(|count| *count > 0 || context.len() == 1))
        })?;
    }
    connection.create_scalar_function("array_lower", 2, flags, |context| {
        Ok(text(context, 0).filter(|items| !array(items).is_empty()).map(|_| 1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_sql() {
        let check = |text, pattern, expected| {
            assert_eq!(like(text, pattern, Some('\\')), expected, "{text} {pattern}")
        };
        check("lineitem", "line%", true);
        check("lineitem", "%e%t%m", true);
        check("lineitem", "line", false);
        check("a_b", "a\\_b", true);
        check("axb", "a\\_b", false);
        check("axb", "a_b", true);
        check("", "%", true);
        check("a", "", false);
        check("abc", "%%%%%%%%%%%%%%%%%%%%d", false);
        check("x", "\\", false);
    }

    #[test]
    fn names_are_quoted_where_they_must_be() {
        assert_eq!(quoted("lineitem"), "lineitem");
        assert_eq!(quoted("Line\"Item"), "\"Line\"\"Item\"");
        assert_eq!(split_name("Public.\"My.Table\""), (Some("public".into()), "My.Table".into()));
    }
}
