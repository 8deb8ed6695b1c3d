//! What is the same for the parameters of all databases.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::{Result, SourceError};

/// Checks that `row` is one row with a value for each parameter.
pub(crate) fn check_count(row: &RecordBatch, parameters: usize) -> Result<()> {
    check_rows(row)?;
    check_values(row.num_columns(), parameters)
}

/// Checks that there is one row of values.
pub(crate) fn check_rows(row: &RecordBatch) -> Result<()> {
    match row.num_rows() {
        1 => Ok(()),
        rows => Err(SourceError::Parameters {
            reason: format!("{rows} rows of values for one statement"),
            hint: "execute the statement once for each row".into(),
        }),
    }
}

/// Checks that there are as many values as parameters.
pub(crate) fn check_values(given: usize, parameters: usize) -> Result<()> {
    if given == parameters {
        return Ok(());
    }
    let of = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    Err(SourceError::Parameters {
        reason: format!(
            "the statement has {}, but {} given",
            of(parameters, "parameter"),
            if given == 1 { "1 value was".to_owned() } else { format!("{given} values were") },
        ),
        hint: "give one value for each parameter".into(),
    })
}

/// The error of a value that can't be sent; `index` counts from 0.
pub(crate) fn unfit(index: usize, reason: &str, hint: String) -> SourceError {
    SourceError::Parameters { reason: format!("parameter ${}: {reason}", index + 1), hint }
}

/// The error of a statement with parameters that is run without values.
pub(crate) fn no_values(parameters: usize) -> SourceError {
    SourceError::Parameters {
        reason: format!(
            "the statement has {parameters} parameter{}, and no values were given",
            if parameters == 1 { "" } else { "s" }
        ),
        hint: "give the values beside the statement: `-p VALUE` of the command, parameters of a driver"
            .into(),
    }
}

/// Parameters of these types, named `$1` and so on.
pub(crate) fn fields(types: impl IntoIterator<Item = DataType>) -> SchemaRef {
    let field = |(index, data_type)| Field::new(format!("${}", index + 1), data_type, true);
    Arc::new(Schema::new(types.into_iter().enumerate().map(field).collect::<Vec<_>>()))
}
