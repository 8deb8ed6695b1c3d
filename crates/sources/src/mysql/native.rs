//! The server's own types of columns: `enum('a','b')` where Arrow has text. A source names them in the metadata of fields
//! (see [`crate::native`]), and a new table has them.

use std::collections::{BTreeSet, HashMap};

use arrow_schema::Field;
use mysql_async::prelude::Queryable;
use mysql_async::{Column, Conn};

use super::assign::{ColumnRule, Described};
use super::parse;
use crate::native::MYSQL;

/// The names of the types of `columns`, where the catalog has them: those of columns of tables, not of expressions.
///
/// # Errors
/// Those of the connection.
pub(super) async fn names(
    conn: &mut Conn,
    columns: &[Column],
) -> Result<Vec<Option<String>>, mysql_async::Error> {
    let table = |column: &Column| (column.schema_str().into_owned(), column.org_table_str().into_owned());
    let tables: BTreeSet<_> = columns.iter().map(table).filter(|(_, table)| !table.is_empty()).collect();
    let mut types = HashMap::new();
    for (schema, table) in tables {
        const SQL: &str = "SELECT column_name, column_type FROM information_schema.columns \
             WHERE table_schema = ? AND table_name = ?";
        let rows: Vec<(String, String)> = conn.exec(SQL, (&schema, &table)).await?;
        for (column, name) in rows {
            types.insert((schema.clone(), table.clone(), column), name);
        }
    }
    let name = |column: &Column| {
        let (schema, table) = table(column);
        types.get(&(schema, table, column.org_name_str().into_owned())).cloned()
    };
    Ok(columns.iter().map(name).collect())
}

/// The type that a new column for `field` gets by its metadata, if its values fit.
pub(super) fn column_type(field: &Field, is_key: bool) -> Option<String> {
    let native = Native::parse(field.metadata().get(MYSQL)?)?;
    let is_text = matches!(&*native.name, "char" | "varchar");
    if is_key && !is_text && !native.is_number() {
        return None;
    }
    let made = native.sql();
    let numbers = (native.numbers.first().copied(), native.numbers.get(1).copied());
    let rule = ColumnRule::new(&Described {
        data_type: native.name.clone(),
        column_type: made.clone(),
        chars_max: numbers.0.map(u64::from),
        bytes_max: None,
        precision: numbers.0,
        scale: numbers.1.and_then(|scale| i32::try_from(scale).ok()),
        second_places: numbers.0,
        charset: None,
    });
    // Different texts are different keys.
    let collation = if is_key && is_text { " COLLATE utf8mb4_bin" } else { "" };
    // Columns of text also take other values, which would come back as text.
    let data_type = field.data_type();
    let is_kept = data_type.is_string() == (is_text || native.is_list() || native.name.ends_with("text"));
    (is_kept && rule.takes(data_type)).then(|| made + collation)
}

/// A type, taken apart, so that nothing of the text becomes part of a statement unchecked.
struct Native {
    name: String,
    numbers: Vec<u32>,
    members: Option<Vec<String>>,
    is_unsigned: bool,
}

const NUMBERS: [&str; 9] =
    ["tinyint", "smallint", "mediumint", "int", "bigint", "float", "double", "decimal", "year"];
const OTHERS: [&str; 16] = [
    "date",
    "datetime",
    "timestamp",
    "time",
    "char",
    "varchar",
    "tinytext",
    "text",
    "mediumtext",
    "longtext",
    "binary",
    "varbinary",
    "tinyblob",
    "blob",
    "mediumblob",
    "longblob",
];

impl Native {
    fn parse(text: &str) -> Option<Self> {
        let name: String = text.chars().take_while(char::is_ascii_alphabetic).collect();
        let rest = &text[name.len()..];
        let name = name.to_ascii_lowercase();
        if matches!(&*name, "enum" | "set") {
            let is_list = rest.starts_with("('") && rest.ends_with("')");
            let members = Some(parse::members(rest)).filter(|members| is_list && !members.is_empty());
            return Some(Self { name, numbers: Vec::new(), members: Some(members?), is_unsigned: false });
        }
        if !NUMBERS.contains(&&*name) && !OTHERS.contains(&&*name) {
            return None;
        }
        let (numbers, rest) = match rest.strip_prefix('(') {
            None => (Vec::new(), rest),
            Some(rest) => {
                let (numbers, rest) = rest.split_once(')')?;
                (numbers.split(',').map(|n| n.trim().parse().ok()).collect::<Option<Vec<u32>>>()?, rest)
            }
        };
        let is_unsigned = rest.split_ascii_whitespace().any(|word| word.eq_ignore_ascii_case("unsigned"));
        (numbers.len() <= 2).then_some(Self { name, numbers, members: None, is_unsigned })
    }

    fn is_list(&self) -> bool {
        self.members.is_some()
    }

    fn is_number(&self) -> bool {
        NUMBERS.contains(&&*self.name)
    }

    fn sql(&self) -> String {
        let mut sql = self.name.clone();
        let list: Vec<String> = match &self.members {
            Some(members) => members
                .iter()
                .map(|member| format!("'{}'", member.replace('\\', "\\\\").replace('\'', "''")))
                .collect(),
            None => self.numbers.iter().map(u32::to_string).collect(),
        };
        if !list.is_empty() {
            sql = format!("{sql}({})", list.join(","));
        }
        sql + if self.is_unsigned { " unsigned" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    #[test]
    fn types_are_kept_if_values_fit_and_nothing_else_is() {
        let check = |native: &str, data_type: DataType, is_key: bool, expected: Option<&str>| {
            let field = Field::new("a", data_type, true)
                .with_metadata([(MYSQL.to_owned(), native.to_owned())].into());
            assert_eq!(column_type(&field, is_key).as_deref(), expected, "{native}");
        };
        check("varchar(20)", DataType::Utf8, false, Some("varchar(20)"));
        check("varchar(20)", DataType::Utf8, true, Some("varchar(20) COLLATE utf8mb4_bin"));
        check("int(10) unsigned zerofill", DataType::UInt32, false, Some("int(10) unsigned"));
        check("enum('a','it''s','b\\\\')", DataType::Utf8, false, Some("enum('a','it''s','b\\\\\\\\')"));
        check("set('a','b')", DataType::Utf8, true, None);
        check("decimal(10,2)", DataType::Decimal128(10, 2), false, Some("decimal(10,2)"));
        check("longtext", DataType::Utf8, true, None);
        check("varchar(20)", DataType::Int32, false, None);
        check("bit(3)", DataType::UInt64, false, None);
        check("float(7,2)", DataType::Float32, false, None);
        check("varchar(20); drop table t", DataType::Utf8, false, Some("varchar(20)"));
        check("enum('a') comment 'x'", DataType::Utf8, false, None);
        check("int(x)", DataType::Int32, false, None);
        check("", DataType::Int32, false, None);
    }
}
