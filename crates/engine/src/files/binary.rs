//! What the readers of binary formats share.

use std::error::Error;
use std::io;
use std::path::Path;

use arrow_array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow_schema::ArrowError;
use datafusion::arrow::compute::{CastOptions, cast_with_options};
use lightship_sources::objects::ObjectError;

use super::by_name::Wanted;
use super::wide_keys::wide;
use crate::error::{EngineError, Result};

/// The error of a file that can't be read, or whose contents are not as `format` has them.
pub(super) fn unreadable(path: &Path, format: &str, error: &(dyn Error + 'static)) -> EngineError {
    let mut chain = std::iter::successors(Some(error), |error: &&(dyn Error + 'static)| (*error).source());
    match chain.find_map(|error| error.downcast_ref::<io::Error>()) {
        Some(error) if ObjectError::find(error).is_some() || error.raw_os_error().is_some() => {
            EngineError::reading(path, error)
        }
        _ => {
            let message = format!("{}: incomplete or damaged {format} file: {error}", path.display());
            EngineError::bad_file(message, "write the file again")
        }
    }
}

/// The columns of a file to read, in its order, and the position of each wanted column among them.
pub(super) fn projection(places: &[Option<usize>]) -> (Vec<usize>, Vec<Option<usize>>) {
    let mut read: Vec<usize> = places.iter().flatten().copied().collect();
    read.sort_unstable();
    let find = |place: &Option<usize>| place.and_then(|place| read.binary_search(&place).ok());
    let found = places.iter().map(find).collect();
    (read, found)
}

/// The wanted columns of a batch of a file, cast to the types of the table. `places` has the position of each in the batch.
pub(super) fn fit(
    path: &Path,
    batch: &RecordBatch,
    places: &[Option<usize>],
    wanted: &Wanted,
) -> Result<RecordBatch> {
    // A value that does not fit is an error, not NULL.
    let exact = CastOptions { safe: false, ..CastOptions::default() };
    let columns = wanted.schema.fields().iter().zip(places).map(|(field, place)| {
        let Some(place) = place else { return Ok(new_null_array(field.data_type(), batch.num_rows())) };
        let column = batch.column(*place);
        let found = wide(column.data_type());
        if found == *field.data_type() {
            return cast_with_options(column, &found, &exact);
        }
        // A file that was added later may have any type.
        match lightship_sources::common_type(&found, field.data_type()) {
            Some(common) if common == *field.data_type() => cast_with_options(column, &common, &exact),
            _ => Err(ArrowError::SchemaError(format!(
                "column `{}` is {found}, but {} in the table",
                field.name(),
                field.data_type()
            ))),
        }
    });
    let columns = columns.collect::<Result<Vec<_>, _>>();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let fitting = columns
        .and_then(|columns| RecordBatch::try_new_with_options(wanted.schema.clone(), columns, &options));
    fitting.map_err(|e| {
        EngineError::bad_file(
            format!("{}: {e}", path.display()),
            "the file was added or changed after the table was opened; reopen the table",
        )
    })
}
