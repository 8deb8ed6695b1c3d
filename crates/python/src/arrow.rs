//! Arrow data for other libraries, through the C data interface, as Python passes it: in capsules.

use arrow_array::ffi::to_ffi;
use arrow_array::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow_array::{Array as _, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, Schema, SchemaRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// Rows of a result in memory.
#[pyclass(frozen)]
pub(crate) struct Batch(pub(crate) RecordBatch);

#[pymethods]
impl Batch {
    #[getter]
    fn num_rows(&self) -> usize {
        self.0.num_rows()
    }

    #[getter]
    fn num_columns(&self) -> usize {
        self.0.num_columns()
    }

    /// Bytes of the rows as Arrow buffers.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.get_array_memory_size()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        let _ = requested_schema;
        let rows = StructArray::from(self.0.clone());
        let (array, _) = to_ffi(&rows.to_data()).map_err(to_py)?;
        Ok((schema_capsule(py, &self.0.schema())?, PyCapsule::new_with_value(py, array, c"arrow_array")?))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.0.schema())
    }

    fn __repr__(&self) -> String {
        format!("<lightship.Batch: {} rows, {} columns>", self.0.num_rows(), self.0.num_columns())
    }
}

/// A whole result in memory.
#[pyclass(frozen)]
pub(crate) struct Batches {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

#[pymethods]
impl Batches {
    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let _ = requested_schema;
        let batches = self.batches.clone().into_iter().map(Ok);
        stream_capsule(py, RecordBatchIterator::new(batches, self.schema.clone()))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }
}

pub(crate) fn schema_capsule<'py>(py: Python<'py>, schema: &Schema) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowSchema::try_from(schema).map_err(to_py)?, c"arrow_schema")
}

pub(crate) fn stream_capsule<'py>(
    py: Python<'py>,
    reader: impl RecordBatchReader + Send + 'static,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
}

/// The batches of an object with `__arrow_c_stream__`: a table, a reader or a data frame.
pub(crate) fn stream_of(data: &Bound<'_, PyAny>) -> PyResult<ArrowArrayStreamReader> {
    let Ok(export) = data.getattr("__arrow_c_stream__") else {
        let name = data.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "expected Arrow data with __arrow_c_stream__, such as a pyarrow.Table or a polars.DataFrame, not {name}"
        )));
    };
    let capsule = export.call0()?;
    let capsule = capsule.cast::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(c"arrow_array_stream"))?;
    // SAFETY: the name of the capsule says what it points to. The stream is moved out of it, and the capsule then has
    // nothing to release.
    unsafe { ArrowArrayStreamReader::from_raw(stream.as_ptr().cast::<FFI_ArrowArrayStream>()) }.map_err(to_py)
}

/// The only batch of an object with `__arrow_c_stream__`.
pub(crate) fn row_of(data: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let mut batches =
        stream_of(data)?.filter(|batch| batch.as_ref().map_or(true, |batch| batch.num_rows() > 0));
    match (batches.next().transpose().map_err(to_py)?, batches.next()) {
        (Some(batch), None) => Ok(batch),
        _ => Err(PyValueError::new_err("expected one batch of rows")),
    }
}

fn to_py(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
