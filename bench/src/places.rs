//! Where things are: the checkout, its build products, the data.

use std::path::{Path, PathBuf};

use lightship_testkit::tpch;

use crate::Result;

/// The checkout that this program was built from.
pub(crate) fn root() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench)
}

/// The command that is measured, built beside this program.
pub(crate) fn lightship() -> Result<PathBuf> {
    let path = std::env::current_exe()?.with_file_name("lightship");
    if !path.exists() {
        let path = path.display();
        return Err(format!("{path} is missing: cargo build --release -p lightship-cli -p bench").into());
    }
    Ok(path)
}

/// TPC-H's lineitem at scale 1 as Parquet, made if it is not there.
pub(crate) fn lineitem() -> Result<PathBuf> {
    let folder = root().join("target/bench/tpch-1");
    tpch::write_parquet(1.0, &folder, |_, _| {})?;
    Ok(folder.join("lineitem.parquet"))
}
