//! The tables in a database, as statements for PostgreSQL.

/// Statements that create the empty tables with the types of TPC-H's specification. They have no keys, which are
/// created faster once there are rows.
///
/// Text of fixed length is `varchar` too: `char` would return trailing blanks, which other readers of the same
/// rows do not see.
pub const POSTGRES_TABLES: &str = include_str!("../../testdata/tpch/tables.sql");

/// Statements for loaded tables: primary keys, indexes on foreign keys (without which some of the queries scan a
/// table for each row of another), and statistics.
pub const POSTGRES_KEYS: &str = include_str!("../../testdata/tpch/keys.sql");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpch::tables;

    /// Rows are copied by position.
    #[test]
    fn columns_are_in_the_order_of_the_generators() {
        let mut statements = POSTGRES_TABLES.split(';').map(str::trim);
        for (name, mut batches) in tables(0.001) {
            let statement = statements.next().expect("a statement for each table");
            let list =
                statement.strip_prefix(&format!("create unlogged table {name} (")).expect("this table");
            let schema = batches.next().expect("rows").schema();
            // The second number in brackets follows a comma too, but begins with a digit.
            let columns = list
                .split([',', '\n'])
                .map(str::trim)
                .filter(|word| word.starts_with(|first: char| first.is_ascii_lowercase()));
            let columns: Vec<&str> = columns.filter_map(|word| word.split(' ').next()).collect();
            let expected: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            assert_eq!(columns, expected, "{name}");
        }
    }
}
