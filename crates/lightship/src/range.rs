//! Range files: keyed rows over many nodes.
//!
//! [`open`] and [`create`] return a [`RangeFile`], which reads and writes the file on all nodes that have buckets
//! of it; [`Target::range_file`](crate::Target::range_file) copies a result into one.

use std::sync::Arc;

use arrow_array::{Array as _, ArrayRef, RecordBatch, StringArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Schema, SchemaRef};
use futures::TryStreamExt;
use lightship_rangefile::{Connections, LONE_NODE, Network, RowWriter};
use lightship_sources::{Location, SourceError};
use lightship_transport::net::Endpoint;
use lightship_wire::control::{ErrorCode, Failure};

pub use lightship_rangefile::{
    BucketEntry, BucketLoad, Capacity, ClientOptions, Definition, Interval, Order, RangeError, RangeFile,
    RangeRecord, ReceptionMode, ReceptionReport, ReceptionStrategy, ScanOptions, ScanReport, Scanned,
    WriteMode,
};

use crate::node::{endpoint, is_this_host};
use crate::{Error, ErrorKind, Result};

/// Opens a range file of a node or of its cluster.
///
/// # Errors
/// If the location is not a node, the node can't be reached, or there is no such file.
pub async fn open(location: &Location, name: &str, options: ClientOptions) -> Result<RangeFile> {
    Ok(RangeFile::open(network(location)?, name, options).await?)
}

/// Creates a range file. Its first bucket is on the node at `location`.
///
/// # Errors
/// If the location is not a node, the node can't be reached or does not answer in time, or there is such a file.
pub async fn create(location: &Location, definition: &Definition) -> Result<RangeFile> {
    Ok(RangeFile::create(network(location)?, definition, ClientOptions::default()).await?)
}

/// The range files that a node knows.
///
/// # Errors
/// If the location is not a node, or the node can't be reached or does not answer in time.
pub async fn list(location: &Location) -> Result<Vec<Definition>> {
    Ok(RangeFile::list(&network(location)?, ClientOptions::default()).await?)
}

/// Removes a range file with all its rows.
///
/// # Errors
/// If there is no such file, or a node of the cluster can't be reached or does not answer in time.
pub async fn drop_file(location: &Location, name: &str) -> Result<()> {
    Ok(RangeFile::drop_file(&network(location)?, name, ClientOptions::default()).await?)
}

/// Columns from the text between the parentheses of CREATE TABLE, as in `id bigint, name text`.
///
/// # Errors
/// If the text is not a list of columns.
pub async fn columns(text: &str) -> Result<SchemaRef> {
    Ok(lightship_engine::columns(text).await?)
}

/// The keys that begin with these values, given as text.
///
/// # Errors
/// If there are none, more than the key has columns, or one is not a value of its column's type.
pub fn prefix(definition: &Definition, values: &[String]) -> Result<Interval> {
    if values.is_empty() || values.len() > definition.key.len() {
        let (given, columns) = (values.len(), definition.key.join(", "));
        return Err(Error::usage(format!(
            "{given} values were given for the key, whose columns are {columns}"
        )));
    }
    let columns = values.iter().zip(definition.format().columns());
    let values: Result<Vec<ArrayRef>> = columns
        .map(|(text, &column)| {
            let field = definition.schema.field(column);
            let text_array = StringArray::from(vec![text.as_str()]);
            cast_with_options(&text_array, field.data_type(), &strict()).map_err(|_| {
                Error::usage(format!(
                    "{text} is not a value of column {}, {}",
                    field.name(),
                    field.data_type()
                ))
            })
        })
        .collect();
    Ok(definition.format().prefix(&values?)?)
}

/// Deletes the rows with keys in an interval. Returns their number.
///
/// # Errors
/// If a bucket does not answer in time; some rows may be deleted then.
pub async fn delete(file: &RangeFile, interval: Interval) -> Result<u64> {
    let definition = file.definition();
    let columns = Some(definition.key.clone());
    let mut rows = file.scan(interval, &ScanOptions { columns, ..ScanOptions::default() })?.rows;
    let mut deleted = 0;
    while let Some(keys) = rows.try_next().await? {
        let columns = definition
            .key_schema()
            .fields()
            .iter()
            .map(|field| {
                let key = keys.column_by_name(field.name()).cloned();
                key.unwrap_or_else(|| arrow_array::new_null_array(field.data_type(), keys.num_rows()))
            })
            .collect();
        let keys = RecordBatch::try_new(definition.key_schema(), columns);
        let keys = keys.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        deleted += file.write(WriteMode::Delete, &keys).await?;
    }
    Ok(deleted)
}

fn strict() -> CastOptions<'static> {
    CastOptions { safe: false, ..CastOptions::default() }
}

/// The nodes that can be reached from the one at `location`.
fn network(location: &Location) -> Result<Arc<dyn Network>> {
    let (home, config) = endpoint(location)?;
    let home_name = home.to_string();
    let (tls, insecure) = match location {
        Location::Node { insecure, .. } => match &home {
            Endpoint::Tcp { tls, .. } => (tls.clone(), *insecure),
            Endpoint::Unix(_) => (None, *insecure),
        },
        _ => (None, false),
    };
    let may_send_token = config.token.is_empty() || tls.is_some() || insecure;
    let name = home_name.clone();
    let address = move |node: &str| {
        if node == LONE_NODE || node == name {
            return Ok(home.clone());
        }
        let unknown = || Failure::new(ErrorCode::Peer, format!("{node} is not the address of a node"));
        let (host, port) = node.rsplit_once(':').ok_or_else(unknown)?;
        let port = port.parse().map_err(|_| unknown())?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if !may_send_token && !is_this_host(&host) {
            let message = format!("the token would be sent to {host} unencrypted");
            return Err(
                Failure::new(ErrorCode::Forbidden, message).hint("encrypt the connection with ?tls=true")
            );
        }
        Ok(Endpoint::Tcp { host, port, tls: tls.clone() })
    };
    Ok(Arc::new(Connections::new(move || vec![home_name.clone()], address, config)))
}

impl From<RangeError> for Error {
    fn from(error: RangeError) -> Self {
        match &error {
            RangeError::Definition(_) => Self::usage(error.to_string()),
            _ => error.to_failure().into(),
        }
    }
}

/// Writes rows into a range file. What was written stays if it is dropped before its end.
pub(crate) struct RangeTarget {
    writer: RowWriter,
    schema: SchemaRef,
    /// For each column of the file, that of the rows; `None` for NULL.
    columns: Vec<Option<usize>>,
    rows: u64,
    bytes: u64,
}

impl RangeTarget {
    /// Opens the file for rows with these columns, which are matched by name.
    pub(crate) async fn open(
        location: &Location,
        name: &str,
        mode: WriteMode,
        rows: &Schema,
    ) -> Result<Self> {
        let file = open(location, name, ClientOptions::default()).await?;
        let definition = file.definition().clone();
        let only_key = mode == WriteMode::Delete;
        let columns = definition.schema.fields().iter().map(|field| {
            let column = rows.index_of(field.name()).ok();
            let is_needed = definition.key.contains(field.name()) || !(only_key || field.is_nullable());
            if column.is_none() && is_needed {
                let message =
                    format!("the rows have no column {}, which range file {name} needs", field.name());
                let hint = "name the columns in the SQL, as in `select number as id`";
                return Err(Error::new(ErrorKind::Data, message).hint(hint));
            }
            Ok(column)
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let names: Vec<&str> = definition.schema.fields().iter().map(|field| field.name().as_str()).collect();
        let extra = rows.fields().iter().find(|field| !names.contains(&field.name().as_str()));
        if let Some(extra) = extra.filter(|_| !only_key) {
            let message =
                format!("range file {name} has no column {}: it has {}", extra.name(), names.join(", "));
            return Err(Error::new(ErrorKind::Data, message).hint("leave it out of the SQL, or rename it"));
        }
        let schema = match only_key {
            true => definition.key_schema(),
            false => definition.schema.clone(),
        };
        Ok(Self { writer: RowWriter::new(file, mode), schema, columns, rows: 0, bytes: 0 })
    }

    /// Writes rows at some time.
    pub(crate) async fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let columns = self.schema.fields().iter().zip(&self.columns).map(|(field, column)| {
            let Some(column) = column else {
                return Ok(arrow_array::new_null_array(field.data_type(), batch.num_rows()));
            };
            let values = batch.column(*column);
            let unfit = |row: usize, reason: String, hint: &str| SourceError::Unfit {
                row: self.rows + row as u64 + 1,
                column: field.name().clone(),
                reason,
                hint: Some(hint.into()),
            };
            let is_missing = |row: &usize| !field.is_nullable() && values.is_null(*row);
            if values.null_count() > 0
                && let Some(row) = (0..values.len()).find(is_missing)
            {
                let hint = "leave such rows out in the SQL";
                return Err(unfit(row, "NULL in a column of the key, or one that is NOT NULL".into(), hint));
            }
            exact_cast(values, field.data_type()).map_err(|row| {
                let reason =
                    format!("the {} can't be stored unchanged as {}", values.data_type(), field.data_type());
                unfit(row, reason, "cast it in the SQL")
            })
        });
        let columns = columns.collect::<Result<Vec<_>, SourceError>>()?;
        let fitted = RecordBatch::try_new(self.schema.clone(), columns)
            .map_err(|error| Error::new(ErrorKind::Data, error.to_string()))?;
        self.rows += fitted.num_rows() as u64;
        self.bytes += lightship_wire::rows_bytes(&fitted);
        self.writer.write(fitted).await.map_err(|error| self.failed(error))
    }

    /// Returns the bytes that were written, once they are on disk.
    pub(crate) async fn finish(&mut self) -> Result<u64> {
        match self.writer.finish().await {
            Ok(_) => Ok(self.bytes),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: RangeError) -> Error {
        let mut failed = Error::from(error);
        failed.message = format!("{}; {} rows were written before", failed.message, self.writer.rows());
        failed
    }
}

/// Casts values that stay the same.
///
/// # Errors
/// The first row whose value does not.
fn exact_cast(values: &ArrayRef, to: &DataType) -> Result<ArrayRef, usize> {
    if values.data_type() == to {
        return Ok(values.clone());
    }
    // With this, a value that can't be cast is NULL, which differs from what it was.
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let there = cast_with_options(values, to, &options).map_err(|_| 0usize)?;
    let back = cast_with_options(&there, values.data_type(), &options).map_err(|_| 0usize)?;
    if back.as_ref() == values.as_ref() {
        return Ok(there);
    }
    Err((0..values.len()).find(|&row| values.slice(row, 1) != back.slice(row, 1)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use arrow_array::{Float64Array, Int32Array, Int64Array};

    use super::*;

    #[test]
    fn values_that_would_change_are_refused() {
        let array = |values: Vec<Option<i64>>| Arc::new(Int64Array::from(values)) as ArrayRef;
        let fits = exact_cast(&array(vec![Some(1), None, Some(-7)]), &DataType::Int32).unwrap();
        assert_eq!(*fits, Int32Array::from(vec![Some(1), None, Some(-7)]));
        assert_eq!(exact_cast(&array(vec![Some(1), Some(1 << 40)]), &DataType::Int32), Err(1));
        assert_eq!(exact_cast(&array(vec![Some((1 << 53) + 1)]), &DataType::Float64), Err(0));
        let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 1.5]));
        assert_eq!(exact_cast(&floats, &DataType::Int64), Err(1));
    }

    #[test]
    fn text_becomes_values_of_the_key() {
        let schema = Schema::new(vec![
            arrow_schema::Field::new("day", DataType::Date32, false),
            arrow_schema::Field::new("id", DataType::Int64, false),
        ]);
        let key = ["day".to_owned(), "id".to_owned()];
        let definition = Definition::new("t", &schema, &key, Capacity::default()).unwrap();
        let text = |values: &[&str]| values.iter().map(|&value| value.to_owned()).collect::<Vec<_>>();
        let day = prefix(&definition, &text(&["2026-01-02"])).unwrap();
        let one = prefix(&definition, &text(&["2026-01-02", "-5"])).unwrap();
        assert!(day.covers(&one) && !one.covers(&day));
        for wrong in [&["x"][..], &["2026-01-02", "1.5"], &["2026-01-02", "1", "2"], &[]] {
            assert!(prefix(&definition, &text(wrong)).is_err(), "{wrong:?}");
        }
    }
}
