//! TPC-H: its eight tables as Arrow batches or as Parquet files, whole or divided among nodes, and its queries.
//!
//! Scale 1 is about 6 million rows of `lineitem` and 1 GB of text in all. Text
//! columns are `Utf8`, as the readers of Lightship return them.

mod database;
mod file;
mod queries;
mod shards;

use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use arrow_array::RecordBatch;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use parquet::errors::ParquetError;
use tpchgen::generators as rows;
use tpchgen_arrow as arrow;
use tpchgen_arrow::arrow::compute::cast;

pub use self::database::{POSTGRES_KEYS, POSTGRES_TABLES};
use self::file::TableFile;
pub use self::queries::queries;
pub use self::shards::write_shards;

/// The batches of one table.
pub type Batches = Box<dyn Iterator<Item = RecordBatch> + Send>;

/// The tables in the best order for loading (referenced tables first).
pub const TABLES: [&str; 8] =
    ["region", "nation", "supplier", "customer", "part", "partsupp", "orders", "lineitem"];

/// Rows in a batch.
const BATCH_ROWS: usize = 8192;

/// The rows of `lineitem`, 8192 a batch.
pub fn lineitem(scale: f64) -> impl Iterator<Item = RecordBatch> + Send {
    let rows = rows::LineItemGenerator::new(scale, 1, 1);
    plain(arrow::LineItemArrow::new(rows).with_batch_size(BATCH_ROWS))
}

/// The rows of one table, 8192 a batch; `None` for a name that is not in [`TABLES`].
pub fn table(name: &str, scale: f64) -> Option<Batches> {
    macro_rules! batches {
        ($rows:ident, $arrow:ident) => {
            Box::new(plain(arrow::$arrow::new(rows::$rows::new(scale, 1, 1)).with_batch_size(BATCH_ROWS)))
        };
    }
    Some(match name {
        "region" => batches!(RegionGenerator, RegionArrow),
        "nation" => batches!(NationGenerator, NationArrow),
        "supplier" => batches!(SupplierGenerator, SupplierArrow),
        "customer" => batches!(CustomerGenerator, CustomerArrow),
        "part" => batches!(PartGenerator, PartArrow),
        "partsupp" => batches!(PartSuppGenerator, PartSuppArrow),
        "orders" => batches!(OrderGenerator, OrderArrow),
        "lineitem" => batches!(LineItemGenerator, LineItemArrow),
        _ => return None,
    })
}

/// All eight tables, in the order of [`TABLES`].
pub fn tables(scale: f64) -> Vec<(&'static str, Batches)> {
    TABLES.iter().filter_map(|&name| Some((name, table(name, scale)?))).collect()
}

/// Writes every table as `folder/NAME.parquet` (zstd, 122 880 rows a row group).
///
/// Complete files of this scale are kept. `progress` is called with the table and its
/// rows so far, from two threads.
///
/// # Errors
/// When the folder can't be created or a file can't be written.
pub fn write_parquet(
    scale: f64,
    folder: &Path,
    progress: impl Fn(&str, u64) + Sync,
) -> Result<(), ParquetError> {
    std::fs::create_dir_all(folder)?;
    let wanted: Vec<&str> = TABLES
        .iter()
        .copied()
        .filter(|name| !file::is_whole(&file::path(folder, name), &scale.to_string()))
        .collect();
    // The largest tables are last, and taken first; `lineitem` is as much work as the rest together.
    let left = Mutex::new(wanted);
    let work = || {
        loop {
            let next = left.lock().unwrap_or_else(|e| e.into_inner()).pop();
            let Some(name) = next else { return Ok(()) };
            write_table(name, scale, folder, &progress)?;
        }
    };
    std::thread::scope(|threads| {
        let other = threads.spawn(work);
        let here = work();
        let there = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        here.and(there)
    })
}

/// Generates on another thread and encodes on this one. The file appears under its name when it is complete.
fn write_table(
    name: &'static str,
    scale: f64,
    folder: &Path,
    progress: &(impl Fn(&str, u64) + Sync),
) -> Result<(), ParquetError> {
    let Some(mut batches) = table(name, scale) else { return Ok(()) };
    let Some(first) = batches.next() else { return Ok(()) };
    let mut file = TableFile::create(folder, &first.schema(), scale.to_string())?;
    std::thread::scope(|threads| {
        let (send, receive) = sync_channel(2);
        threads.spawn(move || {
            // Sending fails only if the writer has failed, which reports the error.
            std::iter::once(first).chain(batches).try_for_each(|batch| send.send(batch))
        });
        let mut rows = 0;
        for batch in receive {
            file.write(&batch)?;
            rows += batch.num_rows() as u64;
            progress(name, rows);
        }
        Ok::<(), ParquetError>(())
    })?;
    file.finish(&file::path(folder, name))
}

/// Text as `Utf8` instead of the generator's views.
fn plain<I>(batches: I) -> impl Iterator<Item = RecordBatch> + Send
where
    I: Iterator<Item = Result<RecordBatch, ArrowError>> + Send,
{
    let mut schema: Option<SchemaRef> = None;
    batches.map(move |batch| {
        let batch = batch.expect("the generator's columns fit its schema");
        let schema = schema.get_or_insert_with(|| {
            let fields = batch.schema_ref().fields().iter().map(|field| match field.data_type() {
                DataType::Utf8View => Field::new(field.name(), DataType::Utf8, field.is_nullable()),
                _ => field.as_ref().clone(),
            });
            Arc::new(Schema::new(fields.collect::<Vec<_>>()))
        });
        let columns = batch.columns().iter().zip(schema.fields());
        let columns =
            columns.map(|(column, field)| cast(column, field.data_type())).collect::<Result<_, _>>();
        columns
            .and_then(|columns| RecordBatch::try_new(Arc::clone(schema), columns))
            .expect("views cast to text")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_the_specified_number_of_rows() {
        let rows = |batches: Batches| batches.map(|b| b.num_rows()).sum::<usize>();
        let counts: Vec<_> = tables(0.01).into_iter().map(|(name, batches)| (name, rows(batches))).collect();
        let expected = [5, 25, 100, 1500, 2000, 8000, 15000, 60175];
        assert_eq!(counts, TABLES.into_iter().zip(expected).collect::<Vec<_>>());
    }

    #[test]
    fn files_are_written_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let seen = Mutex::new(Vec::new());
        let progress = |name: &str, rows: u64| seen.lock().expect("lock").push((name.to_string(), rows));
        write_parquet(0.01, folder.path(), progress).expect("written");
        assert!(seen.lock().expect("lock").contains(&("lineitem".into(), 60175)));
        for name in TABLES {
            assert!(file::is_whole(&file::path(folder.path(), name), "0.01"), "{name}");
        }
        write_parquet(0.01, folder.path(), |name, _| panic!("{name} again")).expect("nothing to do");
        assert!(!file::is_whole(&file::path(folder.path(), "lineitem"), "0.02"));
    }
}
