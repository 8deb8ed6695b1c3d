//! Standard input as a table, which is read while it arrives, once.

use std::io::{self, Read, Seek as _, Write as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::SessionContext;
use lightship_sources::file_options::FileOptions;
use tempfile::{SpooledTempFile, TempPath};
use tokio::sync::mpsc;

use super::by_name::{TextFormat, Wanted, until_panic};
use super::bytes::{Bytes, peek_line};
use super::columns;
use super::kind::FileKind;
use crate::error::{EngineError, Result};
use crate::threads;

/// Batches that wait for the query.
const BATCHES_WAITING: usize = 2;

/// Bytes read for the columns that are kept in memory; more are kept in a temporary file.
const KEPT_BYTES: usize = 16 << 20;

/// Its name in messages.
const NAME: &str = "standard input";

/// A table over bytes that can be read only once. Formats that need a file get a temporary one.
pub(crate) async fn open(
    context: &SessionContext,
    bytes: Box<dyn Read + Send>,
    options: FileOptions,
) -> Result<Arc<dyn TableProvider>> {
    let begun = tokio::task::spawn_blocking(move || begin(bytes, options));
    match begun.await.map_err(|e| EngineError::Internal(e.to_string()))?? {
        Begun::Text(table) => Ok(table),
        Begun::File(file, options) => super::open_temporary(context, file, &options).await,
    }
}

enum Begun {
    Text(Arc<dyn TableProvider>),
    /// A temporary file, and how it is read.
    File(TempPath, FileOptions),
}

fn begin(bytes: Bytes, options: FileOptions) -> Result<Begun> {
    let name = Path::new(NAME);
    let failed = |e: io::Error| EngineError::File(format!("{NAME}: {e}"));
    let (mut bytes, first) = peek_line(bytes).map_err(failed)?;
    let kind = match FileKind::given(&options, None) {
        Some(kind) => kind,
        None => FileKind::by_content(&first, name, &options)?,
    };
    let Some(format) = kind.stream_format(name, &options)? else {
        let mut file = tempfile::Builder::new().prefix("stdin").tempfile().map_err(failed)?;
        io::copy(&mut bytes, &mut file).map_err(failed)?;
        let options = FileOptions { format: Some(kind.format), ..options };
        return Ok(Begun::File(file.into_temp_path(), options));
    };
    // What is read for the columns is kept for the rows.
    let kept = Arc::new(Mutex::new(SpooledTempFile::new(KEPT_BYTES)));
    let bytes = Arc::new(Mutex::new(bytes));
    let tee = Tee { bytes: bytes.clone(), kept: Some(kept.clone()) };
    let schema = format.columns_of_stream(name, Box::new(tee))?;
    let schema = columns::without_null(&schema, &format.unknown());
    columns::check_types(&schema, &options)?;
    let none = SpooledTempFile::new(0);
    let mut kept = std::mem::replace(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner), none);
    kept.rewind().map_err(failed)?;
    let all: Bytes = Box::new(kept.chain(Tee { bytes, kept: None }));
    let schema = Arc::new(schema);
    let stream = Stdin { schema: schema.clone(), format, bytes: Mutex::new(Some(all)) };
    Ok(Begun::Text(Arc::new(StreamingTable::try_new(schema, vec![Arc::new(stream)])?)))
}

/// Reads on from shared bytes, and keeps what it reads.
struct Tee {
    bytes: Arc<Mutex<Bytes>>,
    kept: Option<Arc<Mutex<SpooledTempFile>>>,
}

impl Read for Tee {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.bytes.lock().unwrap_or_else(PoisonError::into_inner).read(buffer)?;
        if let Some(kept) = &self.kept {
            kept.lock().unwrap_or_else(PoisonError::into_inner).write_all(&buffer[..count])?;
        }
        Ok(count)
    }
}

/// The rows of a text that can be read once.
struct Stdin {
    schema: SchemaRef,
    format: Arc<dyn TextFormat>,
    bytes: Mutex<Option<Bytes>>,
}

impl std::fmt::Debug for Stdin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stdin").field("format", &self.format).finish_non_exhaustive()
    }
}

impl PartitionStream for Stdin {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (sender, mut receiver) = mpsc::channel::<Result<RecordBatch>>(BATCHES_WAITING);
        let batch_rows = context.session_config().batch_size();
        match self.bytes.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(bytes) => {
                let (schema, format) = (self.schema.clone(), self.format.clone());
                let failing = sender.clone();
                // It may wait for more input for as long as it takes.
                let spawned =
                    threads::spawn(move || read(format.as_ref(), bytes, schema, batch_rows, &sender));
                if let Err(error) = spawned {
                    let _ = failing.try_send(Err(error));
                }
            }
            None => {
                let message = format!("{NAME} can be read only once");
                let hint = "write it to a file first, or name it only once in the query, in a WITH clause that is \
                            read once";
                let _ = sender.try_send(Err(EngineError::bad_file(message, hint)));
            }
        }
        let batches = futures::stream::poll_fn(move |task| receiver.poll_recv(task));
        let batches = futures::StreamExt::map(batches, |batch| batch.map_err(DataFusionError::from));
        Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches))
    }
}

/// Sends the rows until nobody wants them any more.
fn read(
    format: &dyn TextFormat,
    bytes: Bytes,
    schema: SchemaRef,
    batch_rows: usize,
    sender: &mpsc::Sender<Result<RecordBatch>>,
) {
    let indices = (0..schema.fields().len()).collect();
    let wanted = Wanted { table: schema.clone(), schema, indices };
    let batches = format.read_stream(Path::new(NAME), bytes, &wanted, batch_rows);
    match batches {
        Err(error) => drop(sender.blocking_send(Err(error))),
        Ok(batches) => {
            for batch in until_panic(Path::new(NAME), batches) {
                if sender.blocking_send(batch).is_err() {
                    return;
                }
            }
        }
    }
}
