//! The extension module `lightship._lightship`: connections, results as Arrow streams, copies, the `lightship` command,
//! and the entry points of the ADBC driver. The package around it is in `python/lightship`.
//!
//! Python can run other threads while one of ours waits, and Ctrl-C ends every wait. The threads that do the work never
//! call Python.

mod arrow;
mod errors;
mod reader;
mod waiting;

// Its entry points are exported.
use adbc_driver_lightship as _;

use std::ffi::OsString;

use lightship::blocking::{self, Progress};
use lightship::{Error, ErrorKind, Location, Options, Statement, Target, WriteMode};
use pyo3::prelude::*;

use crate::errors::{internal, raise};
use crate::reader::Reader;
use crate::waiting::{check, keep_exception};

/// Sources, as `lightship.Connection` uses them.
#[pyclass(frozen)]
struct Connection(blocking::Connection);

#[pymethods]
impl Connection {
    /// Opens sources. `options` are JSON.
    #[new]
    fn new(py: Python<'_>, uris: Vec<String>, options: &str) -> PyResult<Self> {
        let (locations, options) = py_result(py, parsed(&uris, options))?;
        let opened = py.detach(|| blocking::Connection::open(locations, options, check));
        Ok(Self(py_result(py, opened)?))
    }

    /// The sources, without passwords.
    #[getter]
    fn sources(&self) -> Vec<String> {
        self.0.locations().iter().map(ToString::to_string).collect()
    }

    /// Begins a query; `Reader.begin` waits for its columns.
    ///
    /// `row` is Arrow data with the values of its parameters: one row.
    #[pyo3(signature = (sql, row = None))]
    fn start(&self, py: Python<'_>, sql: &str, row: Option<&Bound<'_, PyAny>>) -> PyResult<Reader> {
        let statement = match row {
            None => Statement::from(sql),
            Some(row) => py_result(py, Statement::with_row(sql, arrow::row_of(row)?))?,
        };
        let begun = py.detach(|| self.0.start(statement));
        Ok(Reader::new(py_result(py, begun)?))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

/// Copies the result of a query. Returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (uris, sql, to, table, mode, key, options, observe))]
#[expect(clippy::too_many_arguments, reason = "Python gives them by name")]
fn copy(
    py: Python<'_>,
    uris: Vec<String>,
    sql: String,
    to: &str,
    table: Option<&str>,
    mode: Option<&str>,
    key: Vec<String>,
    options: &str,
    observe: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (from, options) = py_result(py, parsed(&uris, options))?;
    let to = py_result(py, target(to, table, mode, &key))?;
    let copied = py.detach(|| {
        blocking::copy(from, sql.into(), to, options, check, &mut |progress| {
            observed(observe.as_ref(), progress)
        })
    });
    let report = py_result(py, copied)?;
    serde_json::to_string(&report).map_err(|error| internal(py, &error))
}

/// Calls a function of Python with how far a transfer is.
fn observed(observe: Option<&Py<PyAny>>, progress: Progress) -> lightship::Result<()> {
    let Some(observe) = observe else { return Ok(()) };
    let called = Python::try_attach(|py| {
        observe.call1(py, (progress.rows, progress.bytes, progress.rows_estimate)).map(drop)
    });
    match called {
        Some(Ok(())) => Ok(()),
        Some(Err(error)) => Err(keep_exception(error)),
        None => Err(Error::new(ErrorKind::Cancelled, "Python is ending")),
    }
}

/// Writes an Arrow stream. Returns the number of rows and the bytes that were written.
#[pyfunction]
fn write(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    to: &str,
    table: Option<&str>,
    mode: Option<&str>,
    key: Vec<String>,
    options: &str,
) -> PyResult<(u64, u64)> {
    let (_, options) = py_result(py, parsed(&[], options))?;
    let to = py_result(py, target(to, table, mode, &key))?;
    let batches = arrow::stream_of(data)?;
    let written = py.detach(|| blocking::write(batches, to, options, &mut check));
    let written = py_result(py, written)?;
    Ok((written.rows, written.bytes))
}

/// What `lightship explain`, `tune` or `calibrate` answers, as JSON and as text.
#[pyfunction]
fn answer(py: Python<'_>, arguments: Vec<OsString>) -> PyResult<(String, String)> {
    let answered = py.detach(|| blocking::run(async { lightship_cli::answer(arguments).await }, check));
    let answered = py_result(py, answered)?;
    Ok((answered.json, answered.text))
}

/// The `lightship` command. Returns its exit code.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| lightship_cli::run(arguments))
}

/// The names of the options, with their defaults, as JSON.
#[pyfunction]
fn default_options(py: Python<'_>) -> PyResult<String> {
    serde_json::to_string(&Options::default()).map_err(|error| internal(py, &error))
}

/// Cancels what runs, before Python ends.
#[pyfunction]
fn shut_down(py: Python<'_>) {
    waiting::end();
    py.detach(blocking::shut_down);
}

fn parsed(uris: &[String], options: &str) -> lightship::Result<(Vec<Location>, Options)> {
    let options = serde_json::from_str(options)
        .map_err(|error| Error::new(ErrorKind::Usage, format!("options: {error}")))?;
    let locations = uris.iter().map(|uri| Location::parse(uri).map_err(Error::from));
    Ok((locations.collect::<lightship::Result<_>>()?, options))
}

fn target(to: &str, table: Option<&str>, mode: Option<&str>, key: &[String]) -> lightship::Result<Target> {
    let mode: Option<WriteMode> =
        mode.map(str::parse).transpose().map_err(|error| Error::new(ErrorKind::Usage, error))?;
    Target::at(&Location::parse(to)?, table, mode, key)
}

/// Raises the error of the library.
fn py_result<T>(py: Python<'_>, result: lightship::Result<T>) -> PyResult<T> {
    result.map_err(|error| raise(py, &error))
}

#[pymodule]
fn _lightship(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<Connection>()?;
    module.add_class::<Reader>()?;
    module.add_class::<arrow::Batch>()?;
    module.add_class::<arrow::Batches>()?;
    module.add_function(wrap_pyfunction!(copy, module)?)?;
    module.add_function(wrap_pyfunction!(write, module)?)?;
    module.add_function(wrap_pyfunction!(answer, module)?)?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    module.add_function(wrap_pyfunction!(default_options, module)?)?;
    module.add_function(wrap_pyfunction!(shut_down, module)?)
}
