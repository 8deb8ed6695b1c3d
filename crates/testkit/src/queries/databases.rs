//! Random tables of a database's types, as statements that create them.

use super::tables::{COLUMNS_MAX, TEXTS, names};
use crate::rng::Rng;

/// A database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Database {
    /// PostgreSQL.
    Postgres,
    /// MariaDB.
    MariaDb,
    /// SQLite.
    Sqlite,
}

/// Statements that a PostgreSQL server needs before it can hold tables of [`DatabaseTable::any`].
pub const PREPARE_POSTGRES: &str = "
    CREATE TYPE ways_mood AS ENUM ('sad', 'happy', 'Happy', 'it''s', 'a\\b', '');
    CREATE DOMAIN ways_positive AS int CHECK (VALUE > 0);
    CREATE TYPE ways_pair AS (a int, b text);
    CREATE COLLATION ways_nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);";

/// A table of a database.
#[derive(Debug, Clone)]
pub struct DatabaseTable {
    /// Names and types of the columns.
    pub columns: Vec<(String, &'static str)>,
    /// Values, as literals.
    pub rows: Vec<Vec<String>>,
}

/// A type as it is declared, and its values.
struct Declared(&'static str, Values);

enum Values {
    /// As literals of SQL.
    Sql(&'static [&'static str]),
    /// Texts of up to this many characters.
    Texts(usize),
}

use Values::{Sql, Texts};

const INT2: &[&str] = &["0", "1", "-1", "2", "7", "127", "-128", "32767", "-32768"];
const INT4: &[&str] = &["0", "1", "-1", "2", "7", "65536", "2147483647", "-2147483648"];
const INT8: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "7",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "9007199254740993",
];
const FEW: &[&str] = &["1", "2", "3", "4"];
const DATES: &[&str] =
    &["'1970-01-01'", "'1969-12-31'", "'2024-02-29'", "'1000-01-01'", "'9999-12-31'", "'1582-10-15'"];
const TIMESTAMPS: &[&str] = &[
    "'1970-01-01 00:00:01'",
    "'1999-12-31 23:59:59.999999'",
    "'2024-02-29 12:00:00'",
    "'2024-02-29 12:00:00.5'",
    "'2024-02-29 12:00:00.000001'",
    "'2037-01-19 03:14:07'",
];

const POSTGRES: &[Declared] = &[
    Declared("bool", Sql(&["true", "false"])),
    Declared("int2", Sql(INT2)),
    Declared("int4", Sql(INT4)),
    Declared("int4", Sql(FEW)),
    Declared("int8", Sql(INT8)),
    Declared(
        "float4",
        Sql(&["0", "'-0'", "0.1", "1.5", "16777217", "'NaN'", "'Infinity'", "'-Infinity'", "-1"]),
    ),
    Declared(
        "float8",
        Sql(&[
            "0",
            "'-0'",
            "0.1",
            "1.5",
            "1e308",
            "1e-300",
            "'NaN'",
            "'Infinity'",
            "'-Infinity'",
            "9007199254740993",
        ]),
    ),
    Declared(
        "numeric(15,2)",
        Sql(&["0", "0.01", "-0.01", "1.5", "99.99", "9999999999999.99", "-9999999999999.99"]),
    ),
    Declared("numeric(38,0)", Sql(&["0", "1", "-1", "99999999999999999999999999999999999999"])),
    Declared("numeric(50,10)", Sql(&["0", "1.5", "-1234567890123456789012345678901234567890.0000000001"])),
    Declared("numeric(5,-2)", Sql(&["0", "100", "123400", "-100"])),
    Declared("numeric", Sql(&["0", "0.1", "1.50", "-3.25", "100000000000000000000"])),
    Declared("money", Sql(&["'0'", "'1.50'", "'-12.34'", "'1234.56'", "'-0.01'"])),
    Declared("text", Texts(usize::MAX)),
    Declared("text", Sql(&["'a'", "'b'", "'A'", "'a '"])),
    Declared("text collate ways_nocase", Texts(usize::MAX)),
    Declared("varchar(20)", Texts(20)),
    Declared("char(4)", Texts(4)),
    Declared("name", Texts(60)),
    Declared("\"char\"", Sql(&["'a'", "'A'", "'%'", "''"])),
    Declared("bytea", Sql(&["'\\x00ff'", "''", "'\\x61'", "'\\x00'", "'\\x5c'"])),
    Declared("date", Sql(DATES)),
    Declared("date", Sql(&["'0001-01-01'", "'2024-02-29'", "'2024-03-01'", "'4713-01-01 BC'"])),
    Declared("time", Sql(&["'00:00:00'", "'12:00:00'", "'12:00:00.000001'", "'23:59:59.999999'"])),
    Declared("timetz", Sql(&["'12:00:00+02'", "'10:00:00+00'", "'00:00:00-11'"])),
    Declared("timestamp", Sql(TIMESTAMPS)),
    Declared("timestamptz", Sql(TIMESTAMPS)),
    Declared(
        "timestamptz",
        Sql(&["'2024-07-01 12:00:00+02'", "'2024-07-01 10:00:00+00'", "'0001-01-01 00:00:00+00'"]),
    ),
    Declared(
        "interval",
        Sql(&["'1 mon'", "'30 days'", "'1 day'", "'24:00:00'", "'-1 year'", "'00:00:00.000001'", "'0'"]),
    ),
    Declared(
        "uuid",
        Sql(&["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "'00000000-0000-0000-0000-000000000000'"]),
    ),
    Declared("json", Sql(&["'{\"a\":  1}'", "'{\"a\": 1}'", "'null'", "'[1, 2]'", "'\"a\"'", "'1'"])),
    Declared(
        "jsonb",
        Sql(&["'{\"a\":  1}'", "'{\"b\": 2, \"a\": 1}'", "'null'", "'[1, 2]'", "'\"a\"'", "'1.0'", "'1'"]),
    ),
    Declared("oid", Sql(&["0", "1", "4294967295"])),
    Declared("inet", Sql(&["'10.0.0.1/8'", "'10.0.0.1'", "'::1'", "'255.255.255.255'", "'9.0.0.1'"])),
    Declared("cidr", Sql(&["'10.0.0.0/8'", "'10.0.0.1'", "'::/0'"])),
    Declared("macaddr", Sql(&["'08:00:2b:01:02:03'", "'FF:00:2b:01:02:03'"])),
    Declared("bit(3)", Sql(&["B'101'", "B'000'", "B'111'"])),
    Declared("varbit", Sql(&["B'1'", "B'10'", "B'01'", "B''"])),
    Declared("int4range", Sql(&["'[1,5)'", "'[1,4]'", "'empty'", "'(,5)'"])),
    Declared("tsvector", Sql(&["'a b'", "'b a'"])),
    Declared("xml", Sql(&["'<a/>'", "'<a></a>'"])),
    Declared("point", Sql(&["'(1,2)'"])),
    Declared("ways_mood", Sql(&["'sad'", "'happy'", "'Happy'", "'it''s'", "'a\\b'", "''"])),
    Declared("ways_positive", Sql(&["1", "2", "2147483647"])),
    Declared("ways_pair", Sql(&["'(1,x)'", "'(,)'"])),
    Declared("int4[]", Sql(&["'{1,NULL,3}'", "'{}'", "'{1}'"])),
    Declared("text[]", Sql(&["'{a,\"b,c\",\"\"}'", "'{}'"])),
];

const MARIADB: &[Declared] = &[
    Declared("bool", Sql(&["0", "1", "7"])),
    Declared("tinyint", Sql(&["0", "1", "-128", "127"])),
    Declared("tinyint unsigned", Sql(&["0", "1", "255"])),
    Declared("smallint", Sql(INT2)),
    Declared("mediumint", Sql(&["0", "1", "8388607", "-8388608"])),
    Declared("int", Sql(INT4)),
    Declared("int", Sql(FEW)),
    Declared("int unsigned", Sql(&["0", "1", "4294967295"])),
    Declared("int zerofill", Sql(&["0", "1", "42"])),
    Declared("bigint", Sql(INT8)),
    Declared("bigint unsigned", Sql(&["0", "1", "18446744073709551615", "9223372036854775808"])),
    Declared("bit(1)", Sql(&["b'0'", "b'1'"])),
    Declared("bit(64)", Sql(&["0", "5", "0xffffffffffffffff"])),
    Declared("year", Sql(&["1901", "2155", "0", "2024"])),
    Declared("float", Sql(&["0", "-0e0", "0.1", "1.5", "-3.402823e38", "16777217"])),
    Declared(
        "double",
        Sql(&["0", "-0e0", "0.1", "1.5", "1.7976931348623157e308", "1e-300", "9007199254740993"]),
    ),
    Declared("decimal(10,2)", Sql(&["0", "0.01", "-0.01", "1.5", "12345678.90"])),
    Declared("decimal(38,10)", Sql(&["0", "0.1", "-1.5", "1234567890123456789012345678.0123456789"])),
    Declared(
        "decimal(65,30)",
        Sql(&["0", "-99999999999999999999999999999999999.999999999999999999999999999999"]),
    ),
    Declared("date", Sql(DATES)),
    Declared("datetime", Sql(TIMESTAMPS)),
    Declared("datetime(6)", Sql(TIMESTAMPS)),
    Declared("timestamp(6) null", Sql(TIMESTAMPS)),
    Declared("timestamp null", Sql(TIMESTAMPS)),
    Declared("time", Sql(&["'-838:59:59'", "'00:00:00'", "'12:00:00'", "'838:59:59'"])),
    Declared("time(6)", Sql(&["'12:00:00.000001'", "'-00:00:00.000001'", "'00:00:00'"])),
    Declared("char(5)", Texts(5)),
    Declared("varchar(20)", Texts(20)),
    Declared("varchar(20)", Sql(&["'a'", "'b'", "'A'", "'a '"])),
    Declared("varchar(20) collate utf8mb4_bin", Texts(20)),
    Declared("varchar(20) collate utf8mb4_nopad_bin", Texts(20)),
    Declared("varchar(20) collate utf8mb4_unicode_ci", Texts(20)),
    Declared("varchar(20) character set latin1", Sql(&["'a'", "'A'", "'ä'", "'Ä'", "'ß'", "'ss'", "''"])),
    Declared("text", Texts(usize::MAX)),
    Declared("json", Sql(&["'{\"a\": [1, null]}'", "'null'", "'1'", "'\"a\"'"])),
    Declared("binary(3)", Sql(&["0x00ff", "0x61", "0x612020"])),
    Declared("varbinary(3)", Sql(&["0x00ff", "''", "0x61", "0x6120", "0x5c"])),
    Declared("blob", Sql(&["0xff", "''", "0x61"])),
    Declared("enum('a','B','it''s','')", Sql(&["'a'", "'B'", "'it''s'", "''"])),
    Declared("enum('3','2','1')", Sql(&["'1'", "'2'", "'3'"])),
    Declared("set('a','b','c')", Sql(&["'a,c'", "''", "'b'"])),
    Declared(
        "uuid",
        Sql(&["'123e4567-e89b-12d3-a456-426655440000'", "'00000000-0000-0000-0000-000000000000'"]),
    ),
    Declared("inet6", Sql(&["'::1'", "'::ffff:1.2.3.4'"])),
];

const SQLITE: &[Declared] = &[
    Declared("boolean", Sql(&["0", "1"])),
    Declared("integer", Sql(INT8)),
    Declared("int", Sql(FEW)),
    Declared("text", Texts(usize::MAX)),
    Declared("text", Sql(&["'a'", "'b'", "'A'", "'a '", "5", "5.0"])),
    Declared("text collate nocase", Texts(usize::MAX)),
    Declared("text collate rtrim", Texts(usize::MAX)),
    Declared("varchar(3)", Texts(usize::MAX)),
    Declared("blob", Sql(&["x'00ff'", "x''", "x'61'", "'text'"])),
    Declared("real", Sql(&["0", "-0.0", "0.1", "1.5", "9e999", "-9e999", "1e-300", "9007199254740993", "7"])),
    Declared("decimal(10,2)", Sql(&["0", "0.1", "1.5", "99.99", "3"])),
    Declared("numeric", Sql(&["0", "0.5", "2"])),
    Declared("decimal(10)", Sql(INT4)),
    Declared("date", Sql(&["'2024-02-29'", "'1970-01-01'"])),
    Declared("datetime", Sql(&["'2024-02-29 12:00:00'", "'2024-02-29T12:00:00Z'"])),
    Declared("date", Sql(&["0", "1", "20240229"])),
    Declared("json", Sql(&["'{\"a\": 1}'", "'1'"])),
    Declared("", Sql(&["1", "2.5", "'x'", "'2.5'"])),
    Declared("", Sql(&["1", "2.5", "3"])),
    Declared("any", Sql(&["x'61'", "'a'", "1"])),
];

impl Database {
    fn types(self) -> &'static [Declared] {
        match self {
            Self::Postgres => POSTGRES,
            Self::MariaDb => MARIADB,
            Self::Sqlite => SQLITE,
        }
    }

    fn quoted_name(self, name: &str) -> String {
        match self {
            Self::MariaDb => format!("`{}`", name.replace('`', "``")),
            Self::Postgres | Self::Sqlite => super::ast::quoted(name),
        }
    }

    fn quoted_text(self, text: &str) -> String {
        let text = text.replace('\'', "''");
        match self {
            // In MariaDB a backslash begins an escape.
            Self::MariaDb => format!("'{}'", text.replace('\\', "\\\\")),
            Self::Postgres | Self::Sqlite => format!("'{text}'"),
        }
    }
}

impl DatabaseTable {
    /// A table of 1 to 8 columns and at most `rows_max` rows.
    pub fn any(database: Database, rows_max: usize, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let rows = if rng.one_in(12) { 0 } else { 1 + rng.below(rows_max.max(1)) };
        let count = 1 + rng.below(COLUMNS_MAX);
        let names = names(&mut rng, count);
        let types: Vec<&Declared> = names.iter().map(|_| rng.pick(database.types())).collect();
        let pools: Vec<Vec<String>> = types
            .iter()
            .map(|Declared(_, values)| match values {
                Sql(literals) => literals.iter().map(|&literal| literal.to_owned()).collect(),
                Texts(length) => {
                    let fitting = TEXTS.iter().filter(|text| text.chars().count() <= *length);
                    fitting.map(|text| database.quoted_text(text)).collect()
                }
            })
            .collect();
        let nulls: Vec<usize> = pools.iter().map(|_| *rng.pick(&[0, 10, 10, 30])).collect();
        let value = |rng: &mut Rng, column: usize| match rng.percent(nulls[column]) {
            true => "NULL".to_owned(),
            false => rng.pick(&pools[column]).clone(),
        };
        let row = |rng: &mut Rng| (0..pools.len()).map(|column| value(rng, column)).collect();
        let rows = (0..rows).map(|_| row(&mut rng)).collect();
        let columns =
            names.iter().zip(&types).map(|(name, declared)| ((*name).to_owned(), declared.0)).collect();
        Self { columns, rows }
    }

    /// The statements that create the table under a name.
    pub fn statements(&self, database: Database, name: &str) -> String {
        let columns =
            self.columns.iter().map(|(name, declared)| format!("{} {declared}", database.quoted_name(name)));
        let mut sql = format!("CREATE TABLE {name} ({});\n", columns.collect::<Vec<_>>().join(", "));
        if !self.rows.is_empty() {
            let rows: Vec<_> = self.rows.iter().map(|row| format!("({})", row.join(", "))).collect();
            sql.push_str(&format!("INSERT INTO {name} VALUES {};\n", rows.join(",\n")));
        }
        sql
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_a_function_of_its_seed() {
        for database in [Database::Postgres, Database::MariaDb, Database::Sqlite] {
            for seed in 0..50 {
                let statements = || DatabaseTable::any(database, 10, seed).statements(database, "t");
                assert_eq!(statements(), statements());
            }
        }
    }
}
