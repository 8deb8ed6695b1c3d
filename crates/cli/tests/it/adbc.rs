//! ADBC drivers of other vendors, loaded by the command and by nodes.

use std::path::PathBuf;

use crate::support::*;

/// The shared library of a driver.
///
/// # Panics
/// When it is missing.
fn driver(library: &str) -> String {
    let binary = PathBuf::from(env!("CARGO_BIN_EXE_lightship"));
    let path = binary.ancestors().nth(2).expect("the target folder").join("adbc-drivers").join(library);
    assert!(path.exists(), "{} is missing: run scripts/test-servers.sh", path.display());
    path.display().to_string()
}

#[test]
fn duckdb_is_copied_into_served_and_fetched() {
    let folder = Folder::new();
    let duckdb = format!(
        "adbc:{}?entrypoint=duckdb_adbc_init&path={}",
        driver("libduckdb.so"),
        folder.arg("a.duckdb")
    );
    let sql = "select l_orderkey, l_tax, l_comment from lineitem";
    let copied =
        lightship(&["--json", "copy", lineitem(), sql, &duckdb, "--table", "lines"]).succeeds().json();
    assert_eq!(copied["rows"], 60_175);
    let counts = "select count(*) as n, cast(sum(l_orderkey) as bigint) as s, max(l_comment) as m from lines";
    let expected = csv(lineitem(), &counts.replace("lines", "lineitem"));
    assert_eq!(csv(&duckdb, counts), expected);
    let node = Node::start(&["--table", &format!("served={duckdb}&table=lines")]);
    assert_eq!(csv(&node.uri, &counts.replace("lines", "served")), expected);
    let few = "select l_orderkey from served where l_orderkey < 3 order by 1 limit 4";
    assert_eq!(csv(&node.uri, few), csv(lineitem(), &few.replace("served", "lineitem")));
    lightship(&["copy", lineitem(), sql, &duckdb, "--table", "lines", "--mode", "upsert", "--key", "l_tax"])
        .fails(USAGE, &["upsert through an ADBC driver"]);
}

#[test]
fn clients_of_a_node_load_no_driver() {
    let folder = Folder::new();
    let sqlite = driver("libadbc_driver_sqlite.so");
    let given = format!("adbc:{sqlite}?uri={}", folder.arg("a.db"));
    let table = folder.write("t.csv", "a\n1\n");
    let node = Node::start(&["--table", &format!("t={table}")]);
    for sql in [
        format!("select * from '{given}'"),
        format!("select * from \"{given}\""),
        format!("select * from \"{sqlite}\""),
        format!("create external table x stored as parquet location '{given}'"),
        format!("copy t to '{given}'"),
        format!("insert into \"{given}\" select * from t"),
        format!("load '{sqlite}'"),
        format!("attach '{given}' as x"),
        format!("set datafusion.catalog.location = '{given}'"),
        format!("select * from read_adbc('{given}', 'select 1')"),
        format!("create function f() returns int as '{sqlite}', 'AdbcDriverInit'"),
    ] {
        let outcome = node.fetch(&[&sql]);
        assert_ne!(outcome.code, Some(0), "{sql}");
        assert!(!node.process.has_loaded("libadbc_driver_sqlite"), "{sql}");
    }
    assert!(!folder.file("a.db").exists());
    // As a table that the node was started with, it is loaded.
    rusqlite::Connection::open(folder.file("a.db"))
        .expect("a file")
        .execute_batch("create table t (a)")
        .expect("made");
    let other = Node::start(&["--table", &format!("t={given}")]);
    assert!(other.process.has_loaded("libadbc_driver_sqlite"));
    node.serves();
}

#[test]
fn drivers_that_fail_are_reported_without_secrets() {
    let sqlite = driver("libadbc_driver_sqlite.so");
    lightship(&["fetch", "adbc:/nowhere/x.so?password=hush", "select 1"])
        .fails(USAGE, &["cannot load the ADBC driver `/nowhere/x.so`", "hint:"]);
    let outcome = lightship(&["fetch", &format!("adbc:{sqlite}?password=hush"), "select 1"]);
    assert!(!outcome.stderr.contains("hush"), "{}", outcome.stderr);
    outcome.fails(SOURCE, &["password=***"]);
    let outcome = lightship(&["node", "--table", &format!("t=adbc:{sqlite}?password=hush")]);
    assert!(!outcome.stderr.contains("hush"), "{}", outcome.stderr);
    outcome.fails(SOURCE, &["password=***"]);
    lightship(&["fetch", "adbc:", "select 1"]).fails(USAGE, &["the driver is missing"]);
}

/// A database that a driver can't open is an error of the source, with the driver's message.
#[test]
fn databases_that_drivers_can_not_open_are_errors_of_the_source() {
    let folder = Folder::new();
    let library = driver("libduckdb.so");
    let duckdb = |path: &str| format!("adbc:{library}?entrypoint=duckdb_adbc_init&path={path}");
    let other = folder.write("no.duckdb", "this is a text, and no database of DuckDB\n".repeat(500));
    for path in [other.as_str(), &folder.arg("missing/a.duckdb"), &folder.arg("")] {
        let outcome = lightship(&["fetch", &duckdb(path), "select 1"]);
        outcome.fails(SOURCE, &["cannot open adbc:", "libduckdb.so", "IO Error"]);
        lightship(&["node", "--table", &format!("t={}&table=t", duckdb(path))])
            .fails(SOURCE, &["cannot open adbc:", "IO Error"]);
    }
}
