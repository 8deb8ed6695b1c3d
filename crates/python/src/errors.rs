//! Errors of the library as exceptions of the package.

use lightship::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::waiting::{stay_if_ending, take_exception};

/// The exception for an error: the one that Python code has raised meanwhile, or one of `lightship._errors`.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    stay_if_ending(py);
    if let Some(raised) = take_exception() {
        return raised;
    }
    let made = || {
        let fields =
            serde_json::to_string(error).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let module = py.import("lightship._errors")?;
        module.call_method1("from_native", (fields, error.sqlstate()))
    };
    match made() {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// A bug.
pub(crate) fn internal(py: Python<'_>, error: &dyn std::fmt::Display) -> PyErr {
    raise(py, &Error::new(lightship::ErrorKind::Internal, error.to_string()))
}
