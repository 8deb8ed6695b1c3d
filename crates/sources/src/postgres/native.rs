//! The server's own types of columns: `varchar(20)` where Arrow has text. A source names them in the metadata of fields
//! (see [`crate::native`]), and a new table has them if they exist at its server.

use std::collections::HashMap;

use arrow_schema::{FieldRef, Schema};

use super::connection::Connection;
use super::message::{Described, TextRow};
use super::quote_literal;
use super::types::{PgType, builtin_element};
use crate::native::POSTGRES;
use crate::{NumericRule, ReadOptions, Result, SourceError};

/// Maximum bytes of a type's name: a schema, a name and modifiers.
const NAME_BYTES_MAX: usize = 400;
/// Types that a new column has anyway, for the Arrow type as which they are read: `boolean`, `bytea`, `bigint`,
/// `smallint`, `integer`, `text`, `real`, `double precision`, `date`, `time`, `timestamp`, `timestamptz`, `interval`,
/// `uuid` and `jsonb`.
const IMPLIED: [u32; 15] = [16, 17, 20, 21, 23, 25, 700, 701, 1082, 1083, 1114, 1184, 1186, 2950, 3802];

/// The names of the types of `columns`, which are read as `kinds`, where they say more than the Arrow type.
pub(super) async fn names(
    connection: &mut Connection,
    columns: &[Described],
    kinds: &[PgType],
    options: &ReadOptions,
) -> Result<Vec<Option<String>>> {
    let mut names = vec![None; columns.len()];
    let wanted = columns.iter().zip(kinds).enumerate().filter(|(_, (column, kind))| {
        let leaf = builtin_element(column.oid).unwrap_or(column.oid);
        let is_implied = column.modifier < 0 && IMPLIED.contains(&leaf);
        !is_implied && !follows_rule(kind, options)
    });
    let wanted: Vec<_> =
        wanted.map(|(at, (column, _))| format!("({at}, {}, {})", column.oid, column.modifier)).collect();
    if wanted.is_empty() {
        return Ok(names);
    }
    let rows = connection
        .simple(&format!(
            "SELECT n, pg_catalog.format_type(o::oid, m) FROM (VALUES {}) t (n, o, m)",
            wanted.join(", ")
        ))
        .await?;
    let pair = |row: &TextRow| Some((row.first()?.as_deref()?.parse::<usize>().ok()?, row.get(1)?.clone()?));
    for (at, name) in rows.iter().filter_map(pair) {
        if let Some(place) = names.get_mut(at) {
            *place = Some(name);
        }
    }
    Ok(names)
}

/// Whether the user has chosen the type as which a column is read.
fn follows_rule(kind: &PgType, options: &ReadOptions) -> bool {
    match kind {
        PgType::List(item) => follows_rule(item, options),
        PgType::NumericText | PgType::NumericDouble => options.numeric != NumericRule::RESULT,
        _ => false,
    }
}

/// The types that new columns get by the metadata of their fields. Types that this server lacks are named in `notices`.
pub(super) async fn column_types(
    connection: &mut Connection,
    schema: &Schema,
    notices: &mut Vec<String>,
) -> Result<Vec<Option<String>>> {
    let mut known: HashMap<String, bool> = HashMap::new();
    let mut types = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        let Some(name) = field.metadata().get(POSTGRES).filter(|name| is_name(name)) else {
            types.push(None);
            continue;
        };
        let exists = match known.get(name) {
            Some(exists) => *exists,
            None => {
                let exists = exists(connection, name).await?;
                known.insert(name.clone(), exists);
                exists
            }
        };
        if !exists {
            notices.push(missing(field, name));
        }
        types.push(exists.then(|| name.clone()));
    }
    Ok(types)
}

fn missing(field: &FieldRef, name: &str) -> String {
    let made = super::assign::column_type(field).unwrap_or_default();
    format!("column {} becomes {made}: its type {name} does not exist here", field.name())
}

/// Whether the text can be the name of a type, and nothing that an SQL statement would take for more: letters, digits and
/// the signs of modifiers and arrays, or names in quotes.
fn is_name(text: &str) -> bool {
    let mut is_quoted = false;
    let is_allowed = text.chars().all(|c| {
        if c == '"' {
            is_quoted = !is_quoted;
            return true;
        }
        is_quoted && c != '\0' || c.is_alphanumeric() || "_ .,()[]".contains(c)
    });
    is_allowed && !is_quoted && !text.is_empty() && text.len() <= NAME_BYTES_MAX
}

/// Whether the server reads the text as the name of one type that columns can have.
async fn exists(connection: &mut Connection, name: &str) -> Result<bool> {
    connection.simple("SAVEPOINT lightship_type").await?;
    let found = connection
        .simple(&format!(
            "SELECT 1 FROM pg_catalog.pg_type t WHERE t.oid = pg_catalog.to_regtype({}) AND t.typtype <> 'p' \
             AND pg_catalog.has_type_privilege(t.oid, 'USAGE')",
            quote_literal(name)
        ))
        .await;
    match found {
        Ok(rows) => {
            connection.simple("RELEASE SAVEPOINT lightship_type").await?;
            Ok(!rows.is_empty())
        }
        // The text is not the name of a type.
        Err(SourceError::Sql { .. }) => {
            connection.simple("ROLLBACK TO SAVEPOINT lightship_type").await?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_types_can_be_part_of_a_statement() {
        for name in [
            "character varying(20)",
            "numeric(10,2)[]",
            "timestamp(3) with time zone",
            "interval day to second(3)",
            "public.mood",
            "\"My Schema\".\"it's; --\"",
            "\"a\"\"b\"",
            "größe",
        ] {
            assert!(is_name(name), "{name}");
        }
        for name in
            ["", "int -- x", "int; drop table t", "int 'x'", "\"open", "int/**/", "$$", &"x".repeat(401)]
        {
            assert!(!is_name(name), "{name}");
        }
    }
}
