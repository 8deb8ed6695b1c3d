//! The tables in a database, as PostgreSQL is told of them.

/// Statements that make the tables, empty, with the types of the benchmark's specification; without keys, which
/// are quicker to make once there are rows.
///
/// Text of fixed length is `varchar` too: `char` would come back with blanks at its end, which no other reader
/// of the same rows sees.
pub const POSTGRES_TABLES: &str = include_str!("../../testdata/tpch/tables.sql");

/// Statements for tables that have their rows: primary keys, indexes on foreign ones (without which some of the
/// queries look through a table for each row of another), and statistics.
pub const POSTGRES_KEYS: &str = include_str!("../../testdata/tpch/keys.sql");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tpch::tables;

    /// Rows are copied by position.
    #[test]
    fn columns_are_the_generators() {
        let mut statements = POSTGRES_TABLES.split(';').map(str::trim);
        for (name, mut batches) in tables(0.001) {
            let statement = statements.next().expect("a statement for each table");
            let list =
                statement.strip_prefix(&format!("create unlogged table {name} (")).expect("this table");
            let schema = batches.next().expect("rows").schema();
            // Of a pair within brackets, what follows the comma begins with a digit.
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
