//! Ctrl-C while a thread waits.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use lightship::{Error, ErrorKind, Result};
use pyo3::prelude::*;

thread_local! {
    /// What Python code has raised on this thread while it waited.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Whether Python calls the handlers of signals on this thread. Only then may a wait take the interpreter: whoever
/// holds it may wait for another thread of ours.
pub(crate) fn is_main_thread() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: these have no preconditions.
    return unsafe { libc::gettid() == libc::getpid() };
    #[cfg(not(target_os = "linux"))]
    // SAFETY: it has no preconditions.
    return unsafe { libc::pthread_main_np() == 1 };
}

/// Calls the handlers of signals that have arrived. If one raises, the wait ends.
pub(crate) fn check() -> Result<()> {
    if !is_main_thread() {
        return Ok(());
    }
    match Python::try_attach(|py| py.check_signals()) {
        Some(Ok(())) => Ok(()),
        Some(Err(raised)) => Err(keep_exception(raised)),
        None => Err(Error::new(ErrorKind::Cancelled, "Python is ending")),
    }
}

/// Keeps an exception until the call returns to Python.
pub(crate) fn keep_exception(raised: PyErr) -> Error {
    RAISED.set(Some(raised));
    Error::new(ErrorKind::Cancelled, "interrupted")
}

/// What was raised while this thread waited.
pub(crate) fn take_exception() -> Option<PyErr> {
    RAISED.take()
}

/// Set when Python ends.
static ENDING: AtomicBool = AtomicBool::new(false);

/// From now on, threads of Python whose queries were cancelled do not come back.
pub(crate) fn end() {
    ENDING.store(true, Ordering::Relaxed);
}

/// Keeps a thread that Python does not wait for from reporting that its query was cancelled, when Python ends.
pub(crate) fn stay_if_ending(py: Python<'_>) {
    if ENDING.load(Ordering::Relaxed) && !is_main_thread() {
        py.detach(|| {
            loop {
                std::thread::park();
            }
        });
    }
}
