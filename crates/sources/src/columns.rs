//! Duplicate column names. A result may have two columns of the same name; files and tables need
//! unique names.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arrow_schema::{Field, Schema, SchemaRef};

use crate::{Result, SourceError};

/// What to do with a second column of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DuplicateColumns {
    /// Fail if the destination needs unique names.
    #[default]
    Error,
    /// Add a number to its name: `a`, `a_2`, `a_3`.
    Rename,
}

impl fmt::Display for DuplicateColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Rename => "rename",
        })
    }
}

impl FromStr for DuplicateColumns {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "error" => Ok(Self::Error),
            "rename" => Ok(Self::Rename),
            other => Err(format!("unknown rule `{other}`; expected error or rename")),
        }
    }
}

impl DuplicateColumns {
    /// The schema, with its columns renamed by this rule.
    pub fn apply(self, schema: &SchemaRef) -> SchemaRef {
        if self == Self::Error || check_names(schema).is_ok() {
            return Arc::clone(schema);
        }
        let mut taken: HashSet<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let mut counts = HashMap::new();
        let fields = schema.fields().iter().map(|field| {
            let count = counts.entry(field.name().clone()).or_insert(0u64);
            *count += 1;
            if *count == 1 {
                return Arc::clone(field);
            }
            // Skip a number that gives the name of another column.
            let name = loop {
                let name = format!("{}_{count}", field.name());
                if taken.insert(name.clone()) {
                    break name;
                }
                *count += 1;
            };
            Arc::new(Field::clone(field).with_name(name))
        });
        Arc::new(Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone()))
    }
}

/// Refuses two columns of the same name.
pub(crate) fn check_names(schema: &SchemaRef) -> Result<()> {
    let mut seen = HashMap::new();
    for (at, field) in schema.fields().iter().enumerate() {
        if let Some(first) = seen.insert(field.name(), at) {
            let name = field.name().clone();
            return Err(SourceError::DuplicateColumn { name, first: first + 1, second: at + 1 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow_schema::DataType;

    use super::*;

    #[test]
    fn duplicate_names_are_numbered() {
        let check = |names: &[&str], expected: &[&str]| {
            let field = |name: &&str| Field::new(*name, DataType::Int32, true);
            let schema = Arc::new(Schema::new(names.iter().map(field).collect::<Vec<_>>()));
            let renamed = DuplicateColumns::Rename.apply(&schema);
            let found: Vec<_> = renamed.fields().iter().map(|field| field.name().as_str()).collect();
            assert_eq!(found, expected);
            assert!(check_names(&renamed).is_ok());
            assert_eq!(DuplicateColumns::Error.apply(&schema), schema);
        };
        check(&["a", "b"], &["a", "b"]);
        check(&["a", "a", "b", "a"], &["a", "a_2", "b", "a_3"]);
        check(&["a", "a_2", "a", "a"], &["a", "a_2", "a_3", "a_4"]);
        check(&["a", "a", "a_2", "a_2"], &["a", "a_3", "a_2", "a_2_2"]);
        check(&["", "", "A", "a"], &["", "_2", "A", "a"]);
    }
}
