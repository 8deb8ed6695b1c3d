//! Paths: the checkout, its build products, the data, the results.

use std::path::{Path, PathBuf};

use crate::Result;

/// The checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench)
}

/// Where generated data is kept from run to run.
pub(crate) fn data() -> PathBuf {
    root().join("target/bench")
}

/// A folder on the same disk, which is removed when it is dropped.
pub(crate) fn temporary() -> Result<tempfile::TempDir> {
    std::fs::create_dir_all(data())?;
    Ok(tempfile::tempdir_in(data())?)
}

/// Where the pages of results are.
pub(crate) fn results() -> PathBuf {
    root().join("docs/results")
}

/// Where the pages of trials are.
pub(crate) fn quick() -> PathBuf {
    data().join("quick")
}

/// The measured command, built beside this program.
pub(crate) fn lightship() -> Result<PathBuf> {
    built("lightship", "lightship-cli")
}

/// The extension of the Python package, built beside this program.
pub(crate) fn extension() -> Result<PathBuf> {
    built("lib_lightship.so", "lightship-cli -p lightship-python")
}

fn built(file: &str, packages: &str) -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name(file);
    if !path.exists() {
        let path = path.display();
        return Err(format!(
            "{path} is missing; build it with: cargo build --release -p {packages} -p bench"
        )
        .into());
    }
    Ok(path)
}
