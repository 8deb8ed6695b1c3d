//! What ODBC and JDBC say of a type, from its name at the source.

/// A type as ODBC describes it: the columns `xdbc_*` of GetObjects. What is not known is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Xdbc {
    /// The code of the type, `SQL_BIGINT` and so on.
    pub(crate) data_type: Option<i16>,
    /// Digits of numbers, characters of texts and times, bytes of binary data.
    pub(crate) column_size: Option<i32>,
    /// Digits after the point, also of seconds.
    pub(crate) decimal_digits: Option<i16>,
    /// 10 if the size is in decimal digits, and 2 if it is in bits.
    pub(crate) num_prec_radix: Option<i16>,
    /// The code of dates and times without its part for all of them.
    pub(crate) datetime_sub: Option<i16>,
    /// The most bytes of a text or of binary data.
    pub(crate) char_octet_length: Option<i32>,
}

/// ODBC's codes of types.
mod code {
    pub(super) const CHAR: i16 = 1;
    pub(super) const DECIMAL: i16 = 3;
    pub(super) const INTEGER: i16 = 4;
    pub(super) const SMALLINT: i16 = 5;
    pub(super) const REAL: i16 = 7;
    pub(super) const DOUBLE: i16 = 8;
    pub(super) const DATETIME: i16 = 9;
    pub(super) const VARCHAR: i16 = 12;
    pub(super) const DATE: i16 = 91;
    pub(super) const TIME: i16 = 92;
    pub(super) const TIMESTAMP: i16 = 93;
    pub(super) const INTERVAL: i16 = 110;
    pub(super) const LONGVARCHAR: i16 = -1;
    pub(super) const BINARY: i16 = -2;
    pub(super) const VARBINARY: i16 = -3;
    pub(super) const BIGINT: i16 = -5;
    pub(super) const TINYINT: i16 = -6;
    pub(super) const BIT: i16 = -7;
    pub(super) const GUID: i16 = -11;
}

/// Bytes of a character in UTF-8.
const CHARACTER_BYTES_MAX: i32 = 4;

/// The description of a type by the name that PostgreSQL, MySQL, SQLite or Arrow has for it.
pub(crate) fn of(type_name: &str) -> Xdbc {
    let lower = type_name.to_lowercase();
    let (name, numbers) = match lower.split_once('(') {
        Some((name, rest)) => (name.trim(), rest.split_once(')').map_or(rest, |(numbers, _)| numbers)),
        None => (lower.trim(), ""),
    };
    if lower.ends_with("[]") {
        return Xdbc::default();
    }
    let given: Vec<Option<i32>> = numbers.split(',').map(|number| number.trim().parse().ok()).collect();
    let first = given.first().copied().flatten();
    let second = given.get(1).copied().flatten().and_then(|digits| i16::try_from(digits).ok());
    // What follows the parentheses, or a name without them.
    let words = name.split_whitespace().next().unwrap_or_default();
    let is_zoned = lower.contains("with time zone") || name == "timestamptz" || name == "timetz";
    match name {
        "boolean" | "bool" => integer(code::BIT, 1),
        "smallint" | "int2" | "int16" | "smallserial" | "uint8" | "year" => integer(code::SMALLINT, 5),
        "integer" | "int" | "int4" | "int32" | "mediumint" | "serial" | "uint16" => {
            integer(code::INTEGER, 10)
        }
        "bigint" | "int8" if name == "bigint" || !type_name.starts_with("Int") => integer(code::BIGINT, 19),
        "int8" | "tinyint" => integer(code::TINYINT, 3),
        "int64" | "bigserial" | "uint32" => integer(code::BIGINT, 19),
        "uint64" => decimal(Some(20), Some(0)),
        "real" | "float4" | "float32" | "float16" => float(code::REAL, 24),
        "double precision" | "double" | "float8" | "float64" | "float" => float(code::DOUBLE, 53),
        "numeric" | "decimal" | "decimal32" | "decimal64" | "decimal128" | "decimal256" => {
            decimal(first, second.or(first.map(|_| 0)))
        }
        "character" | "char" | "bpchar" | "nchar" => text(code::CHAR, first.or(Some(1))),
        "character varying" | "varchar" | "nvarchar" => text(code::VARCHAR, first),
        "text" | "utf8" | "largeutf8" | "utf8view" | "clob" | "tinytext" | "mediumtext" | "longtext"
        | "name" | "json" | "jsonb" | "xml" | "citext" => text(code::LONGVARCHAR, None),
        "binary" if first.is_some() => bytes(code::BINARY, first),
        "fixedsizebinary" => bytes(code::BINARY, first),
        "bytea" | "blob" | "binary" | "varbinary" | "largebinary" | "binaryview" | "tinyblob"
        | "mediumblob" | "longblob" => bytes(code::VARBINARY, first),
        "uuid" => Xdbc { data_type: Some(code::GUID), column_size: Some(36), ..Xdbc::default() },
        "date" | "date32" | "date64" => time(code::DATE, 10, None),
        "time" | "timetz" | "time32" | "time64" | "time without time zone" | "time with time zone" => {
            let digits = fraction(numbers, first, name);
            time(code::TIME, 8 + fraction_characters(digits) + offset(is_zoned), Some(digits))
        }
        "timestamp"
        | "timestamptz"
        | "datetime"
        | "timestamp without time zone"
        | "timestamp with time zone" => {
            let is_arrow = type_name.starts_with("Timestamp");
            let digits = fraction(numbers, first, name);
            let is_zoned = is_zoned || is_arrow && numbers.contains('"');
            time(code::TIMESTAMP, 19 + fraction_characters(digits) + offset(is_zoned), Some(digits))
        }
        _ if words == "interval" => Xdbc { data_type: Some(code::INTERVAL), ..Xdbc::default() },
        // MySQL's `int(11) unsigned` and `bigint unsigned`.
        _ if name.ends_with(" unsigned") => of(name.trim_end_matches(" unsigned")),
        _ => Xdbc::default(),
    }
}

fn integer(data_type: i16, digits: i32) -> Xdbc {
    Xdbc {
        data_type: Some(data_type),
        column_size: Some(digits),
        decimal_digits: Some(0),
        num_prec_radix: Some(10),
        ..Xdbc::default()
    }
}

fn float(data_type: i16, bits: i32) -> Xdbc {
    Xdbc { data_type: Some(data_type), column_size: Some(bits), num_prec_radix: Some(2), ..Xdbc::default() }
}

fn decimal(digits: Option<i32>, scale: Option<i16>) -> Xdbc {
    Xdbc {
        data_type: Some(code::DECIMAL),
        column_size: digits,
        decimal_digits: scale,
        num_prec_radix: Some(10),
        ..Xdbc::default()
    }
}

fn text(data_type: i16, characters: Option<i32>) -> Xdbc {
    let char_octet_length = characters.and_then(|characters| characters.checked_mul(CHARACTER_BYTES_MAX));
    Xdbc { data_type: Some(data_type), column_size: characters, char_octet_length, ..Xdbc::default() }
}

fn bytes(data_type: i16, size: Option<i32>) -> Xdbc {
    Xdbc { data_type: Some(data_type), column_size: size, char_octet_length: size, ..Xdbc::default() }
}

fn time(data_type: i16, characters: i32, digits: Option<i16>) -> Xdbc {
    Xdbc {
        data_type: Some(data_type),
        column_size: Some(characters),
        decimal_digits: digits,
        datetime_sub: Some(data_type - code::DATE + 1),
        ..Xdbc::default()
    }
}

/// Digits of a fraction of seconds: as given, by Arrow's unit, or what is usual for the name.
fn fraction(numbers: &str, given: Option<i32>, name: &str) -> i16 {
    let unit = numbers.split(',').next().unwrap_or_default().trim();
    match (unit, given) {
        (_, Some(digits)) => i16::try_from(digits.clamp(0, 9)).unwrap_or(6),
        ("s", _) => 0,
        ("ms", _) => 3,
        ("ns", _) => 9,
        ("", _) if name.contains("zone") || name.ends_with("tz") => 6,
        // MySQL's.
        ("", _) => 0,
        _ => 6,
    }
}

fn fraction_characters(digits: i16) -> i32 {
    if digits == 0 { 0 } else { i32::from(digits) + 1 }
}

/// Characters of an offset from UTC.
fn offset(is_zoned: bool) -> i32 {
    if is_zoned { 6 } else { 0 }
}

impl Xdbc {
    /// The code of the type, in which dates and times are one.
    pub(crate) fn sql_data_type(&self) -> Option<i16> {
        match self.data_type? {
            code::DATE | code::TIME | code::TIMESTAMP => Some(code::DATETIME),
            other => Some(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_each_source_are_described() {
        let check = |name: &str, data_type: i16, size: Option<i32>, digits: Option<i16>| {
            let found = of(name);
            let expected = (Some(data_type), size, digits);
            assert_eq!((found.data_type, found.column_size, found.decimal_digits), expected, "{name}");
        };
        check("bigint", -5, Some(19), Some(0));
        check("bigint unsigned", -5, Some(19), Some(0));
        check("int(11)", 4, Some(10), Some(0));
        check("INTEGER", 4, Some(10), Some(0));
        check("Int64", -5, Some(19), Some(0));
        check("Int8", -6, Some(3), Some(0));
        check("int8", -5, Some(19), Some(0));
        check("numeric(15,2)", 3, Some(15), Some(2));
        check("numeric", 3, None, None);
        check("decimal(10)", 3, Some(10), Some(0));
        check("Decimal128(15, 2)", 3, Some(15), Some(2));
        check("character varying(20)", 12, Some(20), None);
        check("Utf8", -1, None, None);
        check("double precision", 8, Some(53), None);
        check("date", 91, Some(10), None);
        check("timestamp with time zone", 93, Some(32), Some(6));
        check("timestamp(3) without time zone", 93, Some(23), Some(3));
        check("datetime", 93, Some(19), Some(0));
        check("datetime(6)", 93, Some(26), Some(6));
        check("Timestamp(µs)", 93, Some(26), Some(6));
        check("Timestamp(ms)", 93, Some(23), Some(3));
        check("Timestamp(ns, \"UTC\")", 93, Some(35), Some(9));
        check("time without time zone", 92, Some(15), Some(6));
        check("bytea", -3, None, None);
        check("uuid", -11, Some(36), None);
        assert_eq!(of("timestamp without time zone").sql_data_type(), Some(9));
        assert_eq!(of("timestamp without time zone").datetime_sub, Some(3));
        assert_eq!(of("varchar(20)").char_octet_length, Some(80));
        assert_eq!(of("integer[]"), Xdbc::default());
        assert_eq!(of("mood"), Xdbc::default());
        assert_eq!(of("numeric("), of("numeric"));
    }
}
