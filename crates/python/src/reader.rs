//! The rows of a query, while they arrive.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use lightship::blocking::{self, Canceller, Progress};
use lightship::{Error, ErrorKind, Report, Result};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow::{Batch, Batches, schema_capsule, stream_capsule};
use crate::errors::{internal, raise};
use crate::waiting::{is_main_thread, take_exception};
use crate::{observed, py_result};

const OBSERVED_EVERY: Duration = Duration::from_millis(100);

/// One result. It is read once: batch by batch, as a whole, or by another library as a stream.
#[pyclass(frozen)]
pub(crate) struct Reader {
    /// `None` once another library has it.
    reading: Mutex<Option<blocking::Reader>>,
    canceller: Canceller,
    report: Arc<OnceLock<Report>>,
}

impl Reader {
    pub(crate) fn new(reader: blocking::Reader) -> Self {
        let (canceller, report) = (reader.canceller(), reader.later_report());
        Self { canceller, report, reading: Mutex::new(Some(reader)) }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<blocking::Reader>>> {
        match self.reading.try_lock() {
            Ok(reading) => Ok(reading),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Error::new(ErrorKind::Usage, "another thread is reading this result")
                    .hint("give each thread a cursor of its own; threads can share the connection"))
            }
        }
    }

    /// Works on the result without the interpreter.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut blocking::Reader) -> Result<T> + Send,
    ) -> PyResult<T> {
        let done = py.detach(|| match &mut *self.lock()? {
            Some(reader) => work(reader),
            None => Err(Error::new(ErrorKind::Usage, "this result has already been read")),
        });
        py_result(py, done)
    }
}

#[pymethods]
impl Reader {
    /// Waits until the columns are known.
    fn begin(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, blocking::Reader::begin)
    }

    /// Name and Arrow type of each column, and whether it may be null.
    fn columns(&self, py: Python<'_>) -> PyResult<Vec<(String, String, bool)>> {
        self.with(py, |reader| {
            let fields = reader.columns()?.fields().iter();
            Ok(fields
                .map(|field| (field.name().clone(), field.data_type().to_string(), field.is_nullable()))
                .collect())
        })
    }

    /// The next batch; None after the last.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        Ok(self.with(py, blocking::Reader::next_batch)?.map(Batch))
    }

    /// All rows that were not read yet. `observe` is called with rows, bytes and the estimated number of all rows.
    fn read_all(&self, py: Python<'_>, observe: Option<Py<PyAny>>) -> PyResult<Batches> {
        self.with(py, |reader| {
            let schema = reader.columns()?.clone();
            let (mut batches, mut bytes, mut told) = (Vec::new(), 0, Instant::now());
            while let Some(batch) = reader.next_batch()? {
                if observe.is_some() {
                    bytes += batch.get_array_memory_size() as u64;
                    if told.elapsed() > OBSERVED_EVERY {
                        told = Instant::now();
                        let rows_estimate = reader.rows_estimate();
                        observed(observe.as_ref(), Progress { rows: reader.rows(), bytes, rows_estimate })?;
                    }
                }
                batches.push(batch);
            }
            Ok(Batches { schema, batches })
        })
    }

    /// The estimated number of rows, if the sources have one.
    #[getter]
    fn rows_estimate(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |reader| Ok(reader.rows_estimate()))
    }

    /// Whether the statement adds rows to a table of a node. Its result is their number.
    fn is_insert(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |reader| Ok(reader.is_insert()))
    }

    /// Reads the result of an INSERT, and returns the number of rows that were added.
    fn affected(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |reader| {
            while reader.next_batch()?.is_some() {}
            Ok(reader.affected())
        })
    }

    /// The report as JSON, once all rows were read.
    fn report(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.report.get().map(serde_json::to_string).transpose().map_err(|error| internal(py, &error))
    }

    /// Cancels the query, from any thread.
    fn cancel(&self) {
        self.canceller.cancel();
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let reader = py_result(py, self.lock().map(|mut reading| reading.take()))?;
        let Some(reader) = reader else {
            let read = Error::new(ErrorKind::Usage, "this result has already been read");
            return Err(raise(py, &read));
        };
        stream_capsule(py, ForeignReader(reader))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = self.with(py, |reader| reader.columns().cloned())?;
        schema_capsule(py, &schema)
    }
}

/// A result that another library reads, which may hold the interpreter meanwhile.
struct ForeignReader(blocking::Reader);

impl Iterator for ForeignReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = if is_main_thread() {
            // Others can use the interpreter meanwhile.
            Python::try_attach(|py| py.detach(|| self.0.next()))
        } else {
            Some(self.0.next())
        };
        // The reader has exceptions of its own.
        if let Some(Some(Err(_))) = &next {
            drop(take_exception());
        }
        next.unwrap_or_else(|| Some(Err(ArrowError::ComputeError("Python is ending".into()))))
    }
}

impl RecordBatchReader for ForeignReader {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }
}
