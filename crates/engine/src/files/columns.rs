//! The columns of a file, and those of a table of several files.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Fields, Schema};

use lightship_sources::file_options::FileOptions;

use super::input::FilePath;
use crate::error::{EngineError, Result};

/// Checks that each column has a unique name.
pub(super) fn unique(path: &Path, schema: &Schema) -> Result<()> {
    let mut seen = BTreeSet::new();
    match schema.fields().iter().find(|field| !seen.insert(field.name())) {
        None => Ok(()),
        Some(field) => {
            let message = format!("{}: two columns are called `{}`", path.display(), field.name());
            Err(EngineError::bad_file(message, "give each column a unique name"))
        }
    }
}

/// The columns of all files, in the order of their first appearance. All are nullable, because
/// other files may lack them.
///
/// # Errors
/// When the types of a column in two files have no common type.
pub(super) fn unite(
    files: &[(FilePath, Schema)],
    common: impl Fn(&DataType, &DataType) -> Option<DataType>,
) -> Result<Schema> {
    let mut fields: Vec<Field> = Vec::new();
    for (path, schema) in files {
        for field in schema.fields() {
            let Some(known) = fields.iter_mut().find(|known| known.name() == field.name()) else {
                fields.push(field.as_ref().clone().with_nullable(true));
                continue;
            };
            let united = common(known.data_type(), field.data_type()).ok_or_else(|| {
                let message = format!(
                    "{}: column `{}` is {}, but {} in earlier files",
                    path.display(),
                    field.name(),
                    field.data_type(),
                    known.data_type()
                );
                EngineError::bad_file(message, "write the files with one type, or read them as two tables")
            })?;
            if !known.contains(&field.as_ref().clone().with_nullable(true)) {
                // Metadata is kept if it is the same in all files.
                let metadata = lightship_sources::common_metadata(known.metadata().clone(), field.metadata());
                known.set_metadata(metadata);
            }
            known.set_data_type(united);
        }
    }
    let metadata = match files {
        [(_, first), others @ ..] => others.iter().fold(first.metadata().clone(), |all, (_, schema)| {
            lightship_sources::common_metadata(all, schema.metadata())
        }),
        [] => Default::default(),
    };
    Ok(Schema::new_with_metadata(fields, metadata))
}

/// The type that the options give to a column; the last one counts.
pub(super) fn given_type(types: &[(String, DataType)], name: &str) -> Option<DataType> {
    types.iter().rev().find(|(known, _)| known == name).map(|(_, of)| of.clone())
}

/// Checks that the columns exist whose types are given.
pub(super) fn check_types(schema: &Schema, options: &FileOptions) -> Result<()> {
    match options.types.iter().find(|(name, _)| schema.index_of(name).is_err()) {
        None => Ok(()),
        Some((name, _)) => {
            let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
            let names = names.join(", ");
            Err(EngineError::Config(format!("types: there is no column `{name}`; the columns are {names}")))
        }
    }
}

/// The same columns, with another type in place of Null.
pub(super) fn without_null(schema: &Schema, unknown: &DataType) -> Schema {
    let fields: Fields = schema.fields().iter().map(|field| known(field, unknown)).collect();
    Schema::new_with_metadata(fields, schema.metadata().clone())
}

fn known(field: &FieldRef, unknown: &DataType) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Null => unknown.clone(),
        DataType::List(item) => DataType::List(known(item, unknown)),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|field| known(field, unknown)).collect())
        }
        _ => return field.clone(),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use DataType::{Int32, Int64, Utf8};

    fn schema(columns: &[(&str, DataType)]) -> Schema {
        Schema::new(columns.iter().map(|(name, of)| Field::new(*name, of.clone(), false)).collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_united_by_name() {
        let files = [
            ("1".into(), schema(&[("a", Int32), ("b", Utf8)])),
            ("2".into(), schema(&[("b", Utf8), ("c", Int64), ("a", Int64)])),
        ];
        let united = unite(&files, lightship_sources::common_type).unwrap();
        let columns: Vec<_> =
            united.fields().iter().map(|f| (f.name().as_str(), f.data_type().clone())).collect();
        assert_eq!(columns, [("a", Int64), ("b", Utf8), ("c", Int64)]);
        assert!(united.fields().iter().all(|field| field.is_nullable()));
        let unfit = [files[0].clone(), ("3".into(), schema(&[("a", Utf8)]))];
        let error = unite(&unfit, lightship_sources::common_type).unwrap_err().to_string();
        assert!(error.contains("3: column `a` is Utf8, but Int32"), "{error}");
    }

    #[test]
    fn duplicate_column_names_are_refused() {
        let error =
            unique(Path::new("x.csv"), &schema(&[("a", Int32), ("b", Int32), ("a", Utf8)])).unwrap_err();
        assert!(error.to_string().contains("x.csv: two columns are called `a`"), "{error}");
    }
}
