//! Builds columns of a result: one type for each column, although each value has its own.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{BinaryBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_schema::DataType;
use rusqlite::types::{Type, Value, ValueRef};

use crate::{Comparable, Result, SourceError};

/// What a column holds, from narrow to wide: each except `Boolean` also holds the
/// values of those before it (`Real` only integers that it represents exactly).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SqliteType {
    Boolean,
    Integer,
    Real,
    Text,
    Blob,
}

impl SqliteType {
    /// The kind of a declared type. Dates have none: applications store them as
    /// text or as numbers.
    pub(super) fn declared(declared: &str) -> Option<Self> {
        let declared = declared.to_ascii_uppercase();
        let has = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
        // Before "INT", which "POINT" contains.
        if has(&["REAL", "FLOA", "DOUB"]) {
            Some(Self::Real)
        } else if has(&["BOOL"]) {
            Some(Self::Boolean)
        } else if has(&["INT"]) {
            Some(Self::Integer)
        } else if has(&["CHAR", "CLOB", "TEXT"]) {
            Some(Self::Text)
        } else if has(&["BLOB", "BINARY"]) {
            Some(Self::Blob)
        } else if has(&["DEC", "NUM"]) {
            Some(if without_fraction(&declared) { Self::Integer } else { Self::Real })
        } else {
            None
        }
    }

    /// Which comparisons of an ordinary table's column, with this declared type, mean the same in SQLite as
    /// in Arrow. SQLite compares numbers as numbers, whatever the column's affinity, and texts as texts if
    /// all values that could be texts are stored as texts.
    pub(super) fn comparable(self, declared: &str) -> Comparable {
        let declared = declared.to_ascii_uppercase();
        // https://sqlite.org/datatype3.html#determination_of_column_affinity
        let is_text =
            !declared.contains("INT") && ["CHAR", "CLOB", "TEXT"].iter().any(|part| declared.contains(part));
        match self {
            // Reading refuses a text in such a column, but SQLite would compare a number as a text.
            Self::Boolean | Self::Integer | Self::Real if is_text => Comparable::Nulls,
            Self::Boolean => Comparable::Equal,
            Self::Integer | Self::Real => Comparable::Ordered,
            Self::Text if is_text => Comparable::Equal,
            Self::Text | Self::Blob => Comparable::Nulls,
        }
    }

    /// The kind of one stored value; `None` for NULL.
    pub(super) fn stored(stored: Type) -> Option<Self> {
        match stored {
            Type::Null => None,
            Type::Integer => Some(Self::Integer),
            Type::Real => Some(Self::Real),
            Type::Text => Some(Self::Text),
            Type::Blob => Some(Self::Blob),
        }
    }

    /// As [`SqliteType::stored`], by the result of SQL's `typeof`.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "integer" => Some(Self::Integer),
            "real" => Some(Self::Real),
            "text" => Some(Self::Text),
            "blob" => Some(Self::Blob),
            _ => None,
        }
    }

    /// The narrowest kind that holds all of these; `Text` if there are none.
    pub(super) fn widest(kinds: impl IntoIterator<Item = Self>) -> Self {
        kinds.into_iter().max().unwrap_or(Self::Text)
    }

    /// Its Arrow type.
    pub(super) fn data_type(self) -> DataType {
        match self {
            Self::Boolean => DataType::Boolean,
            Self::Integer => DataType::Int64,
            Self::Real => DataType::Float64,
            Self::Text => DataType::Utf8,
            Self::Blob => DataType::Binary,
        }
    }
}

/// Whether it is like `DECIMAL(18)` or `NUMERIC(18, 0)`.
fn without_fraction(declared: &str) -> bool {
    let Some((_, arguments)) = declared.split_once('(') else { return false };
    let mut arguments =
        arguments.trim_end().trim_end_matches(')').split(',').map(|a| a.trim().parse::<u32>());
    matches!(arguments.next(), Some(Ok(_))) && matches!(arguments.next(), None | Some(Ok(0)))
}

/// One column being filled.
pub(super) struct ColumnBuilder {
    name: String,
    values: Values,
}

enum Values {
    /// The first batch decides the kind. Its values are kept until then.
    Undecided(Vec<Value>),
    Boolean(BooleanBuilder),
    Integer(Int64Builder),
    Real(Float64Builder),
    Text(StringBuilder),
    Blob(BinaryBuilder),
}

impl Values {
    fn of(kind: SqliteType) -> Self {
        match kind {
            SqliteType::Boolean => Self::Boolean(BooleanBuilder::new()),
            SqliteType::Integer => Self::Integer(Int64Builder::new()),
            SqliteType::Real => Self::Real(Float64Builder::new()),
            SqliteType::Text => Self::Text(StringBuilder::new()),
            SqliteType::Blob => Self::Blob(BinaryBuilder::new()),
        }
    }
}

impl ColumnBuilder {
    /// A column of this kind, or one whose kind the first batch decides.
    pub(super) fn new(name: &str, kind: Option<SqliteType>) -> Self {
        Self { name: name.to_owned(), values: kind.map_or(Values::Undecided(Vec::new()), Values::of) }
    }

    /// Whether [`ColumnBuilder::decide`] must still be called.
    pub(super) fn undecided(&self) -> bool {
        matches!(self.values, Values::Undecided(_))
    }

    /// Decides the kind by the values seen so far, rows `1..` of the result.
    ///
    /// # Errors
    /// [`SourceError::Value`] when a real can't represent an integer exactly.
    pub(super) fn decide(&mut self) -> Result<()> {
        if let Values::Undecided(seen) = &mut self.values {
            let seen = std::mem::take(seen);
            let kind =
                SqliteType::widest(seen.iter().filter_map(|value| SqliteType::stored(value.data_type())));
            self.values = Values::of(kind);
            for (row, value) in (1..).zip(&seen) {
                self.append(ValueRef::from(value), row)?;
            }
        }
        Ok(())
    }

    /// The Arrow type, once decided.
    pub(super) fn data_type(&self) -> DataType {
        match self.values {
            Values::Undecided(_) => DataType::Null,
            Values::Boolean(_) => DataType::Boolean,
            Values::Integer(_) => DataType::Int64,
            Values::Real(_) => DataType::Float64,
            Values::Text(_) => DataType::Utf8,
            Values::Blob(_) => DataType::Binary,
        }
    }

    /// Appends the value of row `row` (from 1); returns the bytes the column grew by.
    ///
    /// # Errors
    /// [`SourceError::Value`] when it does not fit the column's type.
    pub(super) fn append(&mut self, value: ValueRef<'_>, row: u64) -> Result<usize> {
        self.try_append(value).map_err(|unfit| SourceError::Value {
            column: self.name.clone(),
            reason: format!("row {row} holds {}, {}", show(value), unfit),
        })
    }

    fn try_append(&mut self, value: ValueRef<'_>) -> Result<usize, &'static str> {
        const NOT_BOOLEAN: &str = "which is not 0 or 1; use CAST(... AS INTEGER) or CAST(... AS TEXT)";
        const NOT_INTEGER: &str =
            "which is not an integer; use CAST(... AS TEXT), or CAST(... AS REAL) for numbers";
        const NOT_REAL: &str = "which is not a number; use CAST(... AS TEXT)";
        const NOT_EXACT: &str =
            "which a float can't represent exactly; use CAST(... AS INTEGER) or CAST(... AS TEXT)";
        const NOT_TEXT: &str = "which is not text; use CAST(... AS BLOB)";
        const NOT_UTF8: &str = "which is not UTF-8; use CAST(... AS BLOB)";

        Ok(match &mut self.values {
            Values::Undecided(seen) => {
                let bytes = match value {
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.len(),
                    _ => 0,
                };
                seen.push(owned(value).ok_or(NOT_UTF8)?);
                bytes + size_of::<Value>()
            }
            Values::Boolean(builder) => {
                match value {
                    ValueRef::Null => builder.append_null(),
                    ValueRef::Integer(0) => builder.append_value(false),
                    ValueRef::Integer(1) => builder.append_value(true),
                    _ => return Err(NOT_BOOLEAN),
                }
                1
            }
            Values::Integer(builder) => {
                match value {
                    ValueRef::Null => builder.append_null(),
                    ValueRef::Integer(v) => builder.append_value(v),
                    ValueRef::Real(v) => builder.append_value(integer(v).ok_or(NOT_INTEGER)?),
                    _ => return Err(NOT_INTEGER),
                }
                8
            }
            Values::Real(builder) => {
                match value {
                    ValueRef::Null => builder.append_null(),
                    ValueRef::Real(v) => builder.append_value(v),
                    ValueRef::Integer(v) => builder.append_value(real(v).ok_or(NOT_EXACT)?),
                    _ => return Err(NOT_REAL),
                }
                8
            }
            Values::Text(builder) => {
                let before = builder.values_slice().len();
                match value {
                    ValueRef::Null => builder.append_null(),
                    ValueRef::Integer(v) => builder.append_value(v.to_string()),
                    ValueRef::Real(v) => builder.append_value(format!("{v:?}")),
                    ValueRef::Text(v) => builder.append_value(std::str::from_utf8(v).map_err(|_| NOT_UTF8)?),
                    ValueRef::Blob(_) => return Err(NOT_TEXT),
                }
                builder.values_slice().len() - before + 4
            }
            Values::Blob(builder) => {
                let before = builder.values_slice().len();
                match value {
                    ValueRef::Null => builder.append_null(),
                    ValueRef::Integer(v) => builder.append_value(v.to_string()),
                    ValueRef::Real(v) => builder.append_value(format!("{v:?}")),
                    ValueRef::Text(v) | ValueRef::Blob(v) => builder.append_value(v),
                }
                builder.values_slice().len() - before + 4
            }
        })
    }

    /// The values so far as an array; the builder is empty afterwards.
    pub(super) fn finish(&mut self) -> ArrayRef {
        match &mut self.values {
            Values::Undecided(seen) => Arc::new(arrow_array::NullArray::new(std::mem::take(seen).len())),
            Values::Boolean(builder) => Arc::new(builder.finish()),
            Values::Integer(builder) => Arc::new(builder.finish()),
            Values::Real(builder) => Arc::new(builder.finish()),
            Values::Text(builder) => Arc::new(builder.finish()),
            Values::Blob(builder) => Arc::new(builder.finish()),
        }
    }
}

/// The value as an owned one; `None` for text that is not UTF-8.
fn owned(value: ValueRef<'_>) -> Option<Value> {
    Some(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(v) => Value::Integer(v),
        ValueRef::Real(v) => Value::Real(v),
        ValueRef::Text(v) => Value::Text(std::str::from_utf8(v).ok()?.to_owned()),
        ValueRef::Blob(v) => Value::Blob(v.to_vec()),
    })
}

/// The integer that is equal to a real, if there is one.
fn integer(real: f64) -> Option<i64> {
    // 2^63 as a float is exact; i64::MAX is not.
    let within = (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&real);
    (within && real.fract() == 0.0).then_some(real as i64)
}

/// The real that is equal to an integer, if there is one.
fn real(integer: i64) -> Option<f64> {
    let real = integer as f64;
    (real as i128 == i128::from(integer)).then_some(real)
}

/// A value for an error message.
fn show(value: ValueRef<'_>) -> String {
    const SHOWN: usize = 40;
    match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(v) => format!("the integer {v}"),
        ValueRef::Real(v) => format!("the real {v:?}"),
        ValueRef::Text(v) => {
            let text = String::from_utf8_lossy(&v[..v.len().min(4 * SHOWN)]);
            let shown: String = text.chars().take(SHOWN).collect();
            format!("the text `{shown}{}`", if shown.len() < v.len() { "..." } else { "" })
        }
        ValueRef::Blob(v) => format!("a blob of {} bytes", v.len()),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use arrow_array::types::{Float64Type, Int64Type};
    use arrow_array::{Array, StringArray};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn declared_types_decide_the_kind() {
        use SqliteType::*;
        for (declared, kind) in [
            ("INTEGER", Some(Integer)),
            ("bigint", Some(Integer)),
            ("TINYINT UNSIGNED", Some(Integer)),
            ("VARCHAR(20)", Some(Text)),
            ("native character(70)", Some(Text)),
            ("CLOB", Some(Text)),
            ("BLOB", Some(Blob)),
            ("VARBINARY(3)", Some(Blob)),
            ("REAL", Some(Real)),
            ("double precision", Some(Real)),
            ("FLOATING POINT", Some(Real)),
            ("BOOLEAN", Some(Boolean)),
            ("DECIMAL(10,2)", Some(Real)),
            ("NUMERIC", Some(Real)),
            ("NUMERIC(18)", Some(Integer)),
            ("decimal( 18 , 0 )", Some(Integer)),
            ("DATE", None),
            ("DATETIME", None),
            ("JSON", None),
            ("", None),
        ] {
            assert_eq!(SqliteType::declared(declared), kind, "{declared}");
        }
    }

    fn fill(kind: Option<SqliteType>, values: &[Value]) -> Result<(DataType, ArrayRef)> {
        let mut column = ColumnBuilder::new("c", kind);
        for (row, value) in (1..).zip(values) {
            column.append(ValueRef::from(value), row)?;
        }
        column.decide()?;
        Ok((column.data_type(), column.finish()))
    }

    #[test]
    fn undecided_columns_take_the_widest_kind() {
        let (int, real, text, blob) =
            (Value::Integer(1), Value::Real(0.5), Value::Text("x".into()), Value::Blob(vec![255]));
        let check = |values: &[Value], expected: DataType| {
            let (data_type, array) = fill(None, values).unwrap();
            assert_eq!(data_type, expected, "{values:?}");
            assert_eq!(array.len(), values.len());
            assert_eq!(array.null_count(), values.iter().filter(|v| **v == Value::Null).count());
        };
        check(&[], DataType::Utf8);
        check(&[Value::Null], DataType::Utf8);
        check(&[Value::Null, int.clone()], DataType::Int64);
        check(&[int.clone(), real.clone()], DataType::Float64);
        check(&[text.clone(), real.clone(), int.clone()], DataType::Utf8);
        check(&[text, blob, int, Value::Null], DataType::Binary);
        let (_, array) = fill(None, &[Value::Integer(7), Value::Real(0.5), Value::Text("x".into())]).unwrap();
        assert_eq!(array.as_string::<i32>(), &StringArray::from(vec!["7", "0.5", "x"]));
    }

    #[test]
    fn errors_name_the_row_and_a_cast_that_works() {
        let check = |kind, value: Value, expected: &str| {
            let error = fill(Some(kind), &[Value::Null, value]).unwrap_err().to_string();
            assert_eq!(error, format!("column `c`: row 2 holds {expected}"));
        };
        check(
            SqliteType::Boolean,
            Value::Integer(2),
            "the integer 2, which is not 0 or 1; use CAST(... AS INTEGER) or CAST(... AS TEXT)",
        );
        check(
            SqliteType::Integer,
            Value::Text("a".into()),
            "the text `a`, which is not an integer; use CAST(... AS TEXT), or CAST(... AS REAL) for numbers",
        );
        check(
            SqliteType::Integer,
            Value::Real(1.5),
            "the real 1.5, which is not an integer; use CAST(... AS TEXT), or CAST(... AS REAL) for numbers",
        );
        check(
            SqliteType::Real,
            Value::Integer(i64::MAX),
            "the integer 9223372036854775807, which a float can't represent exactly; use CAST(... AS INTEGER) \
             or CAST(... AS TEXT)",
        );
        check(
            SqliteType::Text,
            Value::Blob(vec![0; 3]),
            "a blob of 3 bytes, which is not text; use CAST(... AS BLOB)",
        );
        let long = show(ValueRef::Text("ü".repeat(100).as_bytes()));
        assert_eq!(long, format!("the text `{}...`", "ü".repeat(40)));
    }

    proptest! {
        #[test]
        fn integers_and_reals_convert_exactly_or_not_at_all(v in any::<i64>(), f in any::<f64>()) {
            if let Some(r) = real(v) {
                prop_assert_eq!(integer(r), Some(v));
            }
            if let Some(i) = integer(f) {
                prop_assert_eq!(i as f64, f);
            }
        }

        #[test]
        fn numbers_of_one_kind_are_unchanged(values in proptest::collection::vec(proptest::option::of(any::<i64>()), 1..50),
                                    reals in proptest::collection::vec(any::<f64>(), 1..50)) {
            let stored: Vec<_> = values.iter().map(|v| v.map_or(Value::Null, Value::Integer)).collect();
            let (_, array) = fill(Some(SqliteType::Integer), &stored).unwrap();
            prop_assert_eq!(array.as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), values);
            let stored: Vec<_> = reals.iter().map(|&v| Value::Real(v)).collect();
            let (_, array) = fill(None, &stored).unwrap();
            prop_assert_eq!(array.as_primitive::<Float64Type>().values().to_vec(), reals);
        }
    }
}
