//! The data sets, as files that all contenders read.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::{FixedSizeBinaryArray, RecordBatch};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use lightship_sources::writers::{self, Format, Target, WriteOptions};
use lightship_testkit::{tpch, wide};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use tokio::runtime::Runtime;

use crate::{Error, Result, places};

/// Rows of a batch unless a benchmark varies them: enough for all message sizes in use.
pub(crate) const BATCH_ROWS: usize = 65_536;
/// Rows of the wide tables at scale 1: about as many bytes of Arrow as lineitem has.
const ACS_ROWS: f64 = 2_250_000.0;
const AIRLINE_ROWS: f64 = 1_700_000.0;
const SEED: u64 = 1;

type Batches = Box<dyn Iterator<Item = RecordBatch> + Send>;

/// A table to transfer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Data {
    /// TPC-H's lineitem: 16 columns without NULL.
    Lineitem,
    /// In the shape of the American Community Survey: 274 columns, 16% NULL.
    Acs,
    /// In the shape of the airlines' on-time performance: 109 columns, 55% NULL.
    Airline,
}

impl Data {
    pub(crate) const ALL: [Self; 3] = [Self::Lineitem, Self::Acs, Self::Airline];

    /// Its Parquet file, created if it is missing.
    pub(crate) fn file(self, scale: f64) -> Result<DataFile> {
        let path = match self {
            Self::Lineitem => {
                let folder = places::data().join(format!("tpch-{scale}"));
                tpch::write_parquet(scale, &folder, |_, _| {})?;
                folder.join("lineitem.parquet")
            }
            Self::Acs => made(self, scale, || Box::new(wide::acs(rows(ACS_ROWS, scale), SEED)))?,
            Self::Airline => made(self, scale, || Box::new(wide::airline(rows(AIRLINE_ROWS, scale), SEED)))?,
        };
        let footer = ArrowReaderMetadata::load(&File::open(&path)?, ArrowReaderOptions::new())?;
        Ok(DataFile { rows: u64::try_from(footer.metadata().file_metadata().num_rows())?, path })
    }
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lineitem => "lineitem",
            Self::Acs => "acs",
            Self::Airline => "airline",
        })
    }
}

impl FromStr for Data {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|data| data.to_string() == name);
        known.ok_or_else(|| format!("unknown data set `{name}`"))
    }
}

/// A table in a file.
#[derive(Clone, Debug)]
pub(crate) struct DataFile {
    pub(crate) path: PathBuf,
    pub(crate) rows: u64,
}

impl DataFile {
    /// The path as an argument of a command.
    pub(crate) fn argument(&self) -> String {
        self.path.display().to_string()
    }

    /// The same rows as CSV with a header, created if it is missing.
    pub(crate) fn csv(&self) -> Result<PathBuf> {
        let path = self.path.with_extension("csv");
        if !path.exists() {
            eprintln!("writing {}", path.display());
            let (schema, batches) = open(&self.path, BATCH_ROWS)?;
            write(&path, Format::Csv, schema, batches)?;
        }
        Ok(path)
    }
}

/// All batches of a Parquet file, in memory.
pub(crate) fn read(path: &Path, batch_rows: usize) -> Result<(SchemaRef, Vec<RecordBatch>)> {
    let (schema, batches) = open(path, batch_rows)?;
    Ok((schema, batches.collect::<Result<_>>()?))
}

/// A file's rows, batch by batch.
pub(crate) fn open(
    path: &Path,
    batch_rows: usize,
) -> Result<(SchemaRef, impl Iterator<Item = Result<RecordBatch>>)> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?;
    let schema = builder.schema().clone();
    let reader = builder.with_batch_size(batch_rows).build()?;
    Ok((schema, reader.map(|batch| batch.map_err(Error::from))))
}

/// A table of `rows` rows with `row_bytes` random bytes each.
pub(crate) fn records(row_bytes: u64, rows: u64) -> Result<DataFile> {
    let path = places::data().join(format!("records-{row_bytes}-{rows}.parquet"));
    if !path.exists() {
        eprintln!("writing {}", path.display());
        let width = i32::try_from(row_bytes)?;
        let schema =
            Arc::new(Schema::new(vec![Field::new("record", DataType::FixedSizeBinary(width), false)]));
        let mut random = fastrand::Rng::with_seed(SEED);
        let mut left = usize::try_from(rows)?;
        let batches = std::iter::from_fn(|| {
            let rows = left.min(BATCH_ROWS);
            left -= rows;
            let mut bytes = vec![0; rows * usize::try_from(row_bytes).ok()?];
            random.fill(&mut bytes);
            let column = FixedSizeBinaryArray::try_new(width, bytes.into(), None).map_err(Error::from);
            let batch =
                column.and_then(|column| Ok(RecordBatch::try_new(schema.clone(), vec![Arc::new(column)])?));
            (rows > 0).then_some(batch)
        });
        write(&path, Format::Parquet, schema.clone(), batches)?;
    }
    Ok(DataFile { path, rows })
}

fn rows(at_scale_1: f64, scale: f64) -> usize {
    (at_scale_1 * scale).round().max(1.0) as usize
}

fn made(data: Data, scale: f64, batches: impl FnOnce() -> Batches) -> Result<PathBuf> {
    let path = places::data().join(format!("{data}-{scale}.parquet"));
    if !path.exists() {
        eprintln!("writing {}", path.display());
        let mut batches = batches().peekable();
        let schema = batches.peek().ok_or_else(|| format!("{data} has no rows"))?.schema();
        write(&path, Format::Parquet, schema, batches.map(Ok))?;
    }
    Ok(path)
}

/// Writes a file, which appears under its name only when it is complete.
pub(crate) fn write(
    path: &Path,
    format: Format,
    schema: SchemaRef,
    batches: impl Iterator<Item = Result<RecordBatch>>,
) -> Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(path))?;
    let target = Target::File(path.to_owned());
    Runtime::new()?.block_on(async {
        let mut file = writers::create(target, format, schema, WriteOptions::default())?;
        for batch in batches {
            file.write(batch?).await?;
        }
        file.finish().await?;
        Ok(())
    })
}
