//! PostgreSQL's answers to the queries over the same rows: computed once, then read from files.

use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

use arrow_array::RecordBatch;
use futures::TryStreamExt;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::{NumericRule, ReadOptions, Rows, Source};
use lightship_testkit::postgres::Postgres;
use lightship_testkit::tpch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use tempfile::NamedTempFile;
use tokio::runtime::Runtime;

use crate::parts::load_postgres;
use crate::{Result, data, places};

/// Tables in the cache, sorts in memory, no waiting for the disk, and a timeout for a query with a bad plan.
const SETTINGS: &[&str] = &[
    "shared_buffers=1GB",
    "work_mem=256MB",
    "maintenance_work_mem=512MB",
    "temp_file_limit=-1",
    "max_wal_size=8GB",
    "autovacuum=off",
    "jit=off",
    "statement_timeout=20min",
];
/// Keys of a file's metadata: the query, and the server that answered it.
const SQL: &str = "sql";
const VERSION: &str = "version";

/// The answers to all queries.
pub(super) struct Answers {
    /// Rows of each query.
    pub(super) rows: Vec<Vec<RecordBatch>>,
    /// Name and version of the server.
    pub(super) version: String,
}

impl Answers {
    /// Reads the answers to `queries` over the tables of a folder from files. Unless all files exist and are
    /// of the same queries, starts a server to write them.
    pub(super) fn open(tables: &Path, scale: f64, queries: &[String]) -> Result<Self> {
        let folder = places::data().join(format!("tpch-{scale}-postgres"));
        fs::create_dir_all(&folder)?;
        let file = |number: usize| folder.join(format!("{number:02}.parquet"));
        let is_known = |(number, sql): (usize, &String)| matches!(version(&file(number), sql), Ok(Some(_)));
        // All or none, so that all answers come from one server.
        if !(1..).zip(queries).all(is_known) {
            eprintln!("running TPC-H at scale {scale} on PostgreSQL");
            let server = Postgres::start_with(SETTINGS);
            let version = format!("PostgreSQL {}", server.psql("show server_version").trim());
            server.psql(tpch::POSTGRES_TABLES);
            Runtime::new()?.block_on(async {
                for name in tpch::TABLES {
                    load_postgres(&server.uri(), name, &tables.join(format!("{name}.parquet"))).await?;
                }
                server.psql(tpch::POSTGRES_KEYS);
                let source = PostgresSource::connect(&server.uri()).await?;
                // As text: quotients have more decimal places than a decimal of one width holds.
                let options = ReadOptions { numeric: NumericRule::String, ..ReadOptions::default() };
                for (number, sql) in (1..).zip(queries) {
                    let began = Instant::now();
                    let answer = source.query(sql, &options).await?;
                    write(answer, &file(number), sql, &version).await?;
                    eprintln!("query {number}: {:.2} s", began.elapsed().as_secs_f64());
                }
                Ok::<_, crate::Error>(())
            })?;
        }
        let rows = (1..=queries.len()).map(|number| Ok(data::read(&file(number), data::BATCH_ROWS)?.1));
        let rows = rows.collect::<Result<_>>()?;
        let known = queries.first().map(|sql| version(&file(1), sql)).transpose()?;
        Ok(Self { rows, version: known.flatten().ok_or("no answers from PostgreSQL")? })
    }
}

/// The version of the server that gave the answer in a file; `None` if the file answers another query.
fn version(path: &Path, sql: &str) -> Result<Option<String>> {
    let footer = ArrowReaderMetadata::load(&File::open(path)?, ArrowReaderOptions::new())?;
    let entries = footer.metadata().file_metadata().key_value_metadata();
    let entry = |key: &str| {
        let entry = entries?.iter().find(|entry| entry.key == key)?;
        entry.value.clone()
    };
    Ok(entry(VERSION).filter(|_| entry(SQL).as_deref() == Some(sql)))
}

/// Writes an answer, whose file appears under its name only when it is complete.
async fn write(mut answer: Rows, path: &Path, sql: &str, version: &str) -> Result<()> {
    let entry = |key: &str, value: &str| KeyValue::new(key.into(), value.to_owned());
    let entries = vec![entry(SQL, sql), entry(VERSION, version)];
    let properties = WriterProperties::builder().set_key_value_metadata(Some(entries)).build();
    let file = NamedTempFile::new_in(path.parent().unwrap_or(path))?;
    let mut writer = ArrowWriter::try_new(file, answer.schema, Some(properties))?;
    while let Some(batch) = answer.batches.try_next().await? {
        writer.write(&batch)?;
    }
    writer.into_inner()?.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Array, Int64Array};

    use super::*;

    #[test]
    fn a_stored_answer_belongs_to_one_query() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("01.parquet");
        let column: Arc<dyn Array> = Arc::new(Int64Array::from(vec![1, 2]));
        let batch = RecordBatch::try_from_iter([("a", column)]).expect("a batch");
        let rows = |batches: Vec<RecordBatch>| Rows {
            schema: batch.schema(),
            batches: Box::pin(futures::stream::iter(batches.into_iter().map(Ok))),
            rows_estimate: None,
            tuples: None,
        };
        let runtime = Runtime::new().expect("a runtime");
        assert!(version(&path, "select 1").is_err());
        // An answer may have no rows.
        for (batches, count) in [(vec![batch.clone()], 1), (vec![], 0)] {
            runtime.block_on(write(rows(batches), &path, "select 1", "PostgreSQL 15")).expect("written");
            assert_eq!(version(&path, "select 1").expect("a file"), Some("PostgreSQL 15".into()));
            assert_eq!(version(&path, "select 2").expect("a file"), None);
            assert_eq!(data::read(&path, 10).expect("a file").1.len(), count);
        }
    }
}
