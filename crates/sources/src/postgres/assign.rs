//! Which Arrow types can be written to which columns, and the types of new columns.

use arrow_cast::can_cast_types;
use arrow_schema::extension::EXTENSION_TYPE_NAME_KEY;
use arrow_schema::{DataType, Field};

use super::types::PgType;
use crate::tables::cells::plain;

/// How values of an Arrow type are written to a column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WriteMethod {
    /// In the column's own binary format.
    Binary,
    /// As text (or an array of texts), which the server then parses.
    Text,
}

/// How values of `from` are written to a column of `kind`; `None` if they can't be.
///
/// Each value is checked when it is written: numbers may go into narrower columns if they fit.
/// Text goes into any column that the server can parse it for. Times without a zone are taken as
/// UTC, and times with a zone are written as UTC if the column has none.
pub(super) fn way(from: &DataType, kind: &PgType) -> Option<WriteMethod> {
    let from = plain(from);
    let binary = |fits: bool| fits.then_some(WriteMethod::Binary);
    let is_whole = |t: &DataType| {
        t.is_integer()
            || matches!(
                t,
                DataType::Decimal32(_, s) | DataType::Decimal64(_, s) | DataType::Decimal128(_, s)
                | DataType::Decimal256(_, s) if *s <= 0
            )
    };
    match kind {
        _ if from.is_null() => Some(WriteMethod::Binary),
        _ if from.is_string() => match kind {
            PgType::Utf8 | PgType::Json | PgType::Jsonb => Some(WriteMethod::Binary),
            PgType::List(_) | PgType::TextList => None,
            _ => Some(WriteMethod::Text),
        },
        PgType::Bool => binary(*from == DataType::Boolean),
        PgType::Int16 | PgType::Int32 | PgType::Int64 | PgType::UInt32 => binary(is_whole(from)),
        PgType::Float32
        | PgType::Float64
        | PgType::Decimal128 { .. }
        | PgType::Decimal256 { .. }
        | PgType::NumericText
        | PgType::NumericDouble => binary(from.is_integer() || from.is_floating() || from.is_decimal()),
        PgType::Money { .. } => binary(from.is_integer() || from.is_decimal()),
        PgType::Date => binary(matches!(from, DataType::Date32 | DataType::Date64)),
        PgType::Time => binary(matches!(from, DataType::Time32(_) | DataType::Time64(_))),
        PgType::Timestamp | PgType::TimestampTz => {
            binary(matches!(from, DataType::Timestamp(..) | DataType::Date32 | DataType::Date64))
        }
        PgType::Interval => binary(matches!(from, DataType::Interval(_) | DataType::Duration(_))),
        PgType::Uuid => binary(*from == DataType::FixedSizeBinary(16)),
        PgType::Bytes => binary(from.is_binary()),
        PgType::Utf8 => {
            binary(!from.is_nested() && !from.is_binary() && can_cast_types(from, &DataType::Utf8))
        }
        PgType::List(item) => match way(item_of(from)?, item)? {
            WriteMethod::Text if !plain(item_of(from)?).is_string() => None,
            way => Some(way),
        },
        PgType::TextList => plain(item_of(from)?).is_string().then_some(WriteMethod::Text),
        PgType::Json | PgType::Jsonb | PgType::Text => None,
    }
}

/// The type of a list's items.
fn item_of(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

/// The SQL type of a new column for `field`.
///
/// # Errors
/// The Arrow type that no column can hold.
pub(super) fn column_type(field: &Field) -> Result<String, String> {
    let extension = field.metadata().get(EXTENSION_TYPE_NAME_KEY).map(String::as_str);
    let decimal = |precision: u8, scale: i8| {
        // Negative scales exist only since PostgreSQL 15; more digits before the point work as well.
        let zeros = i32::from(scale.min(0)).abs();
        format!("numeric({}, {})", i32::from(precision) + zeros, scale.max(0))
    };
    Ok(match plain(field.data_type()) {
        DataType::Boolean => "boolean".into(),
        DataType::Int8 | DataType::UInt8 | DataType::Int16 => "smallint".into(),
        DataType::UInt16 | DataType::Int32 => "integer".into(),
        DataType::UInt32 | DataType::Int64 => "bigint".into(),
        DataType::UInt64 => "numeric(20, 0)".into(),
        DataType::Float16 | DataType::Float32 => "real".into(),
        DataType::Float64 => "double precision".into(),
        DataType::Decimal32(p, s)
        | DataType::Decimal64(p, s)
        | DataType::Decimal128(p, s)
        | DataType::Decimal256(p, s) => decimal(*p, *s),
        text if text.is_string() && extension == Some("arrow.json") => "jsonb".into(),
        text if text.is_string() => "text".into(),
        DataType::Null => "text".into(),
        DataType::FixedSizeBinary(16) if extension == Some("arrow.uuid") => "uuid".into(),
        binary if binary.is_binary() => "bytea".into(),
        DataType::Date32 | DataType::Date64 => "date".into(),
        DataType::Time32(_) | DataType::Time64(_) => "time".into(),
        DataType::Timestamp(_, None) => "timestamp".into(),
        DataType::Timestamp(_, Some(_)) => "timestamptz".into(),
        DataType::Interval(_) | DataType::Duration(_) => "interval".into(),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            if plain(item.data_type()).is_nested() {
                return Err(format!("{}: a list of lists or structures", field.data_type()));
            }
            column_type(item)? + "[]"
        }
        other => return Err(other.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn types_are_matched_to_columns() {
        use DataType::{Binary, Boolean, Date32, Float64, Int32, Int64, LargeUtf8, Utf8, Utf8View};
        let numeric = PgType::Decimal128 { precision: 10, scale: 2 };
        let check = |from: DataType, kind: &PgType, expected: Option<WriteMethod>| {
            assert_eq!(way(&from, kind), expected, "{from} to {kind:?}");
        };
        check(Int64, &PgType::Int32, Some(WriteMethod::Binary));
        check(Utf8View, &PgType::Utf8, Some(WriteMethod::Binary));
        check(LargeUtf8, &PgType::Text, Some(WriteMethod::Text));
        check(Utf8, &PgType::Date, Some(WriteMethod::Text));
        check(Utf8, &numeric, Some(WriteMethod::Text));
        check(Float64, &numeric, Some(WriteMethod::Binary));
        check(Int32, &numeric, Some(WriteMethod::Binary));
        check(Boolean, &PgType::Utf8, Some(WriteMethod::Binary));
        check(Float64, &PgType::Int32, None);
        check(Boolean, &PgType::Int32, None);
        check(Int32, &PgType::Date, None);
        check(Date32, &numeric, None);
        check(Binary, &PgType::Utf8, None);
        let words = DataType::Dictionary(Box::new(Int32), Box::new(Utf8));
        check(words, &PgType::Utf8, Some(WriteMethod::Binary));
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        check(list(Int32), &PgType::List(Box::new(PgType::Int64)), Some(WriteMethod::Binary));
        check(list(Utf8), &PgType::TextList, Some(WriteMethod::Text));
        check(Int32, &PgType::List(Box::new(PgType::Int64)), None);
    }

    #[test]
    fn new_columns_have_matching_types() {
        let check = |data_type: DataType, expected: Option<&str>| {
            let made = column_type(&Field::new("a", data_type.clone(), true)).ok();
            assert_eq!(made.as_deref(), expected, "{data_type}");
        };
        check(DataType::UInt32, Some("bigint"));
        check(DataType::Decimal128(10, -2), Some("numeric(12, 0)"));
        check(
            DataType::List(Arc::new(Field::new("item", DataType::Float64, true))),
            Some("double precision[]"),
        );
        check(DataType::Struct(vec![Field::new("a", DataType::Int8, true)].into()), None);
        let json = Field::new("a", DataType::Utf8, true)
            .with_metadata([(EXTENSION_TYPE_NAME_KEY.to_owned(), "arrow.json".to_owned())].into());
        assert_eq!(column_type(&json).unwrap(), "jsonb");
    }
}
