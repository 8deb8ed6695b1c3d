//! What the driver says of itself and of the source.

use std::collections::HashSet;
use std::sync::Arc;

use adbc_core::error::Result;
use adbc_core::options::InfoCode;
use adbc_core::{constants, schemas};
use arrow_array::{
    ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray, UInt32Array, UnionArray, new_empty_array,
};
use arrow_schema::DataType;
use lightship::Location;

enum Said<'a> {
    Text(&'a str),
    Is(bool),
    Number(i64),
}

/// A row for each code that is known; for all of them if none are given. `version` is that of the source, if it is known.
pub(crate) fn info(
    location: &Location,
    version: Option<String>,
    codes: Option<&HashSet<InfoCode>>,
) -> Result<RecordBatch> {
    let vendor = match location {
        Location::Postgres(_) => "PostgreSQL",
        Location::MySql(_) => "MySQL",
        Location::Sqlite(_) => "SQLite",
        Location::Adbc(_) => "ADBC",
        Location::Path(_) | Location::Tables(_) | Location::Object(_) => "Lightship files",
        Location::Node { .. } | Location::NodeUnix { .. } => "Lightship node",
    };
    let version = version.as_deref().map(|version| (InfoCode::VendorVersion, Said::Text(version)));
    let always = [
        (InfoCode::VendorName, Said::Text(vendor)),
        (InfoCode::VendorSql, Said::Is(true)),
        (InfoCode::VendorSubstrait, Said::Is(false)),
        (InfoCode::DriverName, Said::Text("Lightship ADBC driver")),
        (InfoCode::DriverVersion, Said::Text(env!("CARGO_PKG_VERSION"))),
        (InfoCode::DriverAdbcVersion, Said::Number(constants::ADBC_VERSION_1_1_0.into())),
    ];
    let (mut names, mut kinds, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    let (mut texts, mut flags, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    let known: Vec<_> = always.into_iter().chain(version).collect();
    for (code, said) in known.iter().filter(|(code, _)| codes.is_none_or(|codes| codes.contains(code))) {
        names.push(u32::from(code));
        let (kind, before) = match said {
            Said::Text(text) => {
                texts.push(*text);
                (0i8, texts.len())
            }
            Said::Is(is) => {
                flags.push(*is);
                (1, flags.len())
            }
            Said::Number(number) => {
                numbers.push(*number);
                (2, numbers.len())
            }
        };
        kinds.push(kind);
        offsets.push(before as i32 - 1);
    }
    let schema = schemas::GET_INFO_SCHEMA.clone();
    let DataType::Union(fields, _) = schema.field(1).data_type() else { unreachable!("a union") };
    let mut children: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from(texts)),
        Arc::new(BooleanArray::from(flags)),
        Arc::new(Int64Array::from(numbers)),
    ];
    children.extend(fields.iter().skip(children.len()).map(|(_, field)| new_empty_array(field.data_type())));
    let values = UnionArray::try_new(fields.clone(), kinds.into(), Some(offsets.into()), children)?;
    Ok(RecordBatch::try_new(schema, vec![Arc::new(UInt32Array::from(names)), Arc::new(values)])?)
}
