//! Which comparisons of a table's columns have the same meaning at the server as in Arrow.
//!
//! The column types of a result are not enough: `uuid` and `inet6` of MariaDB look like `char` there.
//! The catalog distinguishes them.

use std::collections::HashMap;

use arrow_schema::{DataType, Schema, TimeUnit};
use mysql_async::prelude::Queryable;

use super::errors;
use super::reader::Connection;
use crate::{Comparable, Comparison, Result, TableName};

const SQL: &str = "SELECT c.column_name, LOWER(c.data_type), LOWER(c.character_set_name), \
     LOWER(t.table_type) = 'base table' \
     FROM information_schema.columns c JOIN information_schema.tables t \
     ON t.table_schema = c.table_schema AND t.table_name = c.table_name \
     WHERE c.table_schema = COALESCE(?, DATABASE()) AND c.table_name = ?";

/// The comparison of each column of `schema`, which is the schema of `table`.
pub(super) async fn comparisons(
    connection: &mut Connection,
    server: &str,
    table: &TableName,
    schema: &Schema,
) -> Result<Vec<Comparison>> {
    type Row = (String, String, Option<String>, Option<bool>);
    let described = async {
        let parameters = (table.schema.as_deref(), &table.name);
        connection.get()?.exec::<Row, _, _>(SQL, parameters).await
    };
    let described = described.await.map_err(|error| errors::statement(server, SQL, 0, error))?;
    let described: HashMap<_, _> = described
        .into_iter()
        .map(|(name, data_type, charset, is_base)| {
            (
                name,
                Described { data_type, charset: charset.unwrap_or_default(), is_base: is_base == Some(true) },
            )
        })
        .collect();
    let comparison = |field: &arrow_schema::FieldRef| match described.get(field.name()) {
        Some(described) => described.comparison(field.name(), field.data_type()),
        None => Comparison::backticked(field.name(), Comparable::Nothing),
    };
    Ok(schema.fields().iter().map(comparison).collect())
}

/// A column, as the catalog describes it.
struct Described {
    data_type: String,
    /// Character set; empty if the column is not text.
    charset: String,
    /// Whether the column belongs to a table, not to a view.
    is_base: bool,
}

impl Described {
    fn comparison(&self, name: &str, arrow: &DataType) -> Comparison {
        let comparable = match (&*self.data_type, arrow) {
            ("tinyint" | "smallint" | "mediumint" | "int" | "bigint", _) => Comparable::Ordered,
            ("decimal", _) => Comparable::Ordered,
            // `double` has no NaN and no infinities. Single floats are compared as doubles.
            ("double", DataType::Float64) => Comparable::Ordered,
            ("date", DataType::Date32) => Comparable::Ordered,
            ("datetime", DataType::Timestamp(TimeUnit::Microsecond, None)) => Comparable::Ordered,
            ("char" | "varchar" | "tinytext" | "text" | "mediumtext" | "longtext", DataType::Utf8) => {
                return self.text(name);
            }
            // Without the cast, these are compared as numbers, or match a member with a different text.
            ("enum" | "set", DataType::Utf8) => {
                let plain = Comparison::backticked(name, Comparable::Equal);
                let operand = format!("CAST({} AS CHAR CHARACTER SET utf8mb4)", plain.column);
                return Comparison { operand: exactly(&operand), ..plain };
            }
            // `year` reads 70 as 1970; `json`, `uuid` and `inet6` compare the values that texts stand for.
            _ => Comparable::Nulls,
        };
        Comparison::backticked(name, comparable)
    }

    /// The comparison of a text. Collations may treat different texts as equal.
    fn text(&self, name: &str) -> Comparison {
        let plain = Comparison::backticked(name, Comparable::Equal);
        match (&*self.charset, self.is_base) {
            ("utf8mb4" | "utf8mb3" | "utf8", true) => plain,
            // A text with characters outside the character set can't be compared.
            (_, true) => Comparison { comparable: Comparable::EqualAscii, ..plain },
            // A view's column may be computed, and then have no collation or two conflicting ones.
            (_, false) => {
                let operand = exactly(&format!("CONVERT({} USING utf8mb4)", plain.column));
                Comparison { operand, ..plain }
            }
        }
    }
}

/// Compares by code points, ignoring trailing spaces.
fn exactly(operand: &str) -> String {
    format!("{operand} COLLATE utf8mb4_bin")
}
