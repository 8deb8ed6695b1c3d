//! The types of SQL, as `GetXdbcTypeInfo` lists them.

use arrow_flight::sql::metadata::{XdbcTypeInfo, XdbcTypeInfoData, XdbcTypeInfoDataBuilder};
use arrow_flight::sql::{Nullable, Searchable, XdbcDataType, XdbcDatetimeSubcode};
use lightship_transport::{Result, TransportError};

/// Types that hold numbers: name, type, digits, base of the digits, whether it has no sign.
const NUMBERS: [(&str, XdbcDataType, i32, i32, bool); 10] = [
    ("TINYINT", XdbcDataType::XdbcTinyint, 3, 10, false),
    ("SMALLINT", XdbcDataType::XdbcSmallint, 5, 10, false),
    ("INTEGER", XdbcDataType::XdbcInteger, 10, 10, false),
    ("BIGINT", XdbcDataType::XdbcBigint, 19, 10, false),
    ("TINYINT UNSIGNED", XdbcDataType::XdbcTinyint, 3, 10, true),
    ("SMALLINT UNSIGNED", XdbcDataType::XdbcSmallint, 5, 10, true),
    ("INTEGER UNSIGNED", XdbcDataType::XdbcInteger, 10, 10, true),
    ("BIGINT UNSIGNED", XdbcDataType::XdbcBigint, 20, 10, true),
    ("REAL", XdbcDataType::XdbcReal, 24, 2, false),
    ("DOUBLE", XdbcDataType::XdbcDouble, 53, 2, false),
];

/// The list of types.
///
/// # Errors
/// If it can't be built.
pub(crate) fn type_info() -> Result<XdbcTypeInfoData> {
    let mut builder = XdbcTypeInfoDataBuilder::new();
    for (name, data_type, digits, base, unsigned) in NUMBERS {
        builder.append(XdbcTypeInfo {
            column_size: Some(digits),
            unsigned_attribute: Some(unsigned),
            num_prec_radix: Some(base),
            auto_increment: Some(false),
            ..named(name, data_type)
        });
    }
    builder.append(XdbcTypeInfo {
        column_size: Some(76),
        create_params: Some(vec!["precision".into(), "scale".into()]),
        unsigned_attribute: Some(false),
        auto_increment: Some(false),
        minimum_scale: Some(0),
        maximum_scale: Some(76),
        num_prec_radix: Some(10),
        ..named("DECIMAL", XdbcDataType::XdbcDecimal)
    });
    builder.append(named("BOOLEAN", XdbcDataType::XdbcBit));
    builder.append(XdbcTypeInfo {
        case_sensitive: true,
        ..quoted(named("VARCHAR", XdbcDataType::XdbcVarchar), "'")
    });
    builder.append(quoted(named("BYTEA", XdbcDataType::XdbcVarbinary), "X'"));
    let date = named("DATE", XdbcDataType::XdbcDate);
    let sql_data_type = XdbcDataType::XdbcDatetime;
    builder.append(XdbcTypeInfo {
        column_size: Some(10),
        sql_data_type,
        datetime_subcode: Some(XdbcDatetimeSubcode::XdbcSubcodeYear),
        ..quoted(date, "DATE '")
    });
    for (name, data_type, size, subcode, prefix) in [
        ("TIME", XdbcDataType::XdbcTime, 18, XdbcDatetimeSubcode::XdbcSubcodeTime, "TIME '"),
        (
            "TIMESTAMP",
            XdbcDataType::XdbcTimestamp,
            29,
            XdbcDatetimeSubcode::XdbcSubcodeTimestamp,
            "TIMESTAMP '",
        ),
        (
            "TIMESTAMP WITH TIME ZONE",
            XdbcDataType::XdbcTimestamp,
            35,
            XdbcDatetimeSubcode::XdbcSubcodeTimestampWithTimezone,
            "TIMESTAMPTZ '",
        ),
    ] {
        builder.append(XdbcTypeInfo {
            column_size: Some(size),
            minimum_scale: Some(0),
            maximum_scale: Some(9),
            sql_data_type,
            datetime_subcode: Some(subcode),
            ..quoted(named(name, data_type), prefix)
        });
    }
    builder.append(quoted(named("INTERVAL", XdbcDataType::XdbcInterval), "INTERVAL '"));
    builder.build().map_err(|error| TransportError::Config(error.to_string()))
}

fn named(name: &str, data_type: XdbcDataType) -> XdbcTypeInfo {
    XdbcTypeInfo {
        type_name: name.into(),
        local_type_name: Some(name.into()),
        data_type,
        sql_data_type: data_type,
        nullable: Nullable::NullabilityNullable,
        searchable: Searchable::Full,
        ..XdbcTypeInfo::default()
    }
}

fn quoted(info: XdbcTypeInfo, prefix: &str) -> XdbcTypeInfo {
    XdbcTypeInfo { literal_prefix: Some(prefix.into()), literal_suffix: Some("'".into()), ..info }
}

#[cfg(test)]
mod tests {
    use arrow_array::Array;
    use arrow_array::cast::AsArray;
    use arrow_schema::DataType;

    use super::*;
    use crate::catalog::type_name;

    #[test]
    fn names_of_column_types_are_listed() {
        let all = type_info().unwrap().record_batch(None).unwrap();
        let listed: Vec<_> = all.column(0).as_string::<i32>().iter().flatten().collect();
        for data_type in [
            DataType::Boolean,
            DataType::Int8,
            DataType::UInt64,
            DataType::Float64,
            DataType::Utf8,
            DataType::Binary,
            DataType::Date32,
            DataType::Decimal128(10, 2),
            DataType::Timestamp(arrow_schema::TimeUnit::Microsecond, Some("UTC".into())),
        ] {
            assert!(listed.contains(&type_name(&data_type).as_str()), "{data_type}");
        }
        let dates = type_info().unwrap().record_batch(XdbcDataType::XdbcDate as i32).unwrap();
        assert_eq!(dates.num_rows(), 1);
        assert_eq!(dates.column(0).null_count(), 0);
    }
}
