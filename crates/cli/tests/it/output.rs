//! The files that results are written to, before and after.

use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::*;

#[test]
fn a_file_is_replaced_only_by_a_complete_one() {
    let node = Node::start(&[]);
    let folder = Folder::new();
    let file = folder.write("rows.csv", "as it was\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("changed");
    node.fetch(&["select nothing", "-o", &file]).fails(SOURCE, &["nothing"]);
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "as it was\n");
    node.fetch(&["select 1 as a", "-o", &file]).succeeds();
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "a\n1\n");
    assert_eq!(std::fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o640);

    symlink(&file, folder.file("link.csv")).expect("a link");
    node.fetch(&["select 2 as a", "-o", &folder.arg("link.csv")]).succeeds();
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "a\n2\n", "the file behind the link");
    assert_eq!(folder.names(), ["link.csv", "rows.csv"]);
}

#[test]
fn destinations_that_can_not_be_written_are_errors() {
    let node = Node::start(&[]);
    let folder = Folder::new();
    std::fs::create_dir(folder.file("d.csv")).expect("a folder");
    for (path, words) in [
        ("/nowhere/a.csv".to_owned(), "No such file"),
        (folder.arg("d.csv"), "directory"),
        ("/proc/nothing.csv".to_owned(), "/proc/nothing.csv"),
    ] {
        let outcome = node.fetch(&["select 1", "-o", &path]).fails(SOURCE, &[&path, words]);
        assert!(!outcome.stderr.contains(".part"), "the name of a temporary file: {outcome}");
        node.fetch(&["select 1", "-o", &folder.arg("ok.csv"), "--stats", &path]).fails(SOURCE, &[&path]);
    }
    let full = std::fs::File::create("/dev/full").expect("a device");
    let args = ["fetch", &node.uri, "select 1", "--format", "csv"];
    let outcome = Process::start_with(&args, |command| command.stdout(full)).end();
    outcome.fails(LIMITS, &["error: standard output: ", "No space left"]);
}

#[test]
fn stdout_can_be_given_as_a_path() {
    let node = Node::start(&[]);
    for path in ["-", "/dev/stdout"] {
        let outcome = node.fetch(&["select 1 as a", "-o", path, "--format", "csv", "--quiet"]).succeeds();
        assert_eq!(outcome.text(), "a\n1\n", "{path}");
    }
    node.fetch(&["select 1", "-o", "/dev/null", "--format", "parquet"]).succeeds();
}

/// As a shell's `-o >(gzip > rows.csv.gz)` gives it.
#[test]
fn a_pipe_can_be_given_as_a_descriptor() {
    let node = Node::start(&[]);
    let args = ["fetch", "--quiet", &node.uri, "select 1 as a", "-o", "/dev/fd/3", "--format", "csv"];
    assert_eq!(Process::start_under("exec 3>&1 >/dev/null", &args).end().succeeds().text(), "a\n1\n");
}

#[test]
fn names_and_options_of_a_file_say_how_it_is_written() {
    let folder = Folder::new();
    let sql = "select * from (values (1, 'a;b'), (2, null), (3, '')) t(n, t) order by 1";
    let source = folder.write("in.csv", "x\n1\n");
    let written = |name: &str| {
        lightship(&["fetch", &source, sql, "-o", &folder.arg(name)]).succeeds();
        std::fs::read(folder.file(name.split('?').next().expect("a name"))).expect("written")
    };
    assert_eq!(written("a.tsv"), b"n\tt\n1\ta;b\n2\t\n3\t\"\"\n");
    assert_eq!(written("b.csv?delimiter=;&header=false&null=NA"), b"1;\"a;b\"\n2;NA\n3;\"\"\n");
    assert_eq!(written("c.csv.gz")[..2], [0x1f, 0x8b]);
    assert_eq!(written("d.json.zst")[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    let copied = folder.arg("e.psv?quote='");
    lightship(&["copy", &source, sql, &copied]).succeeds();
    assert_eq!(std::fs::read(folder.file("e.psv")).expect("written"), b"n|t\n1|a;b\n2|\n3|''\n");
    let options = "--output=-?delimiter=tab&header=no";
    let shown = lightship(&["fetch", "-q", &source, sql, options, "--format", "csv"]).succeeds();
    assert_eq!(shown.text(), "1\ta;b\n2\t\n3\t\"\"\n");
    for (name, words) in [
        ("f.csv?colour=red", "unknown option `colour`"),
        ("f.csv?delimiter=1", "`1` as delimiter"),
        ("f.parquet.gz", "cannot infer the format"),
    ] {
        lightship(&["fetch", &source, sql, "-o", &folder.arg(name)]).fails(USAGE, &[words]);
    }
}

#[test]
fn statistics_can_be_written_to_stdout() {
    let folder = Folder::new();
    let source = folder.write("in.csv", "x\n1\n");
    let sql = "select * from \"in\"";
    let file = folder.arg("out.csv");
    let outcome = lightship(&["fetch", "-q", &source, sql, "-o", &file, "--stats", "-"]).succeeds();
    let report: serde_json::Value = serde_json::from_str(outcome.text()).expect("JSON");
    assert_eq!((&report["rows"], outcome.stderr.as_str()), (&1.into(), ""));
    lightship(&["fetch", &source, sql, "--stats", "-"])
        .fails(USAGE, &["both be written to stdout", "-o FILE"]);
    let quiet = lightship(&["--json", "fetch", "-q", &source, sql]).succeeds();
    assert_eq!((quiet.text(), quiet.stderr.as_str()), ("{\"x\":1}\n", ""));
}

#[test]
fn a_file_that_can_not_be_written_is_found_before_the_query_runs() {
    let folder = Folder::new();
    let source = folder.write("in.csv", "x\n1\n");
    // The query would fail.
    let sql = "select * from nothing";
    for args in [["-o", "/nowhere/a.csv"], ["--stats", "/nowhere/a.json"]] {
        lightship(&["fetch", &source, sql, args[0], args[1]]).fails(SOURCE, &[args[1], "No such file"]);
    }
    let file = folder.arg("b.csv");
    let args = ["copy", &source, sql, &file, "--stats", "/nowhere/a.json"];
    lightship(&args).fails(SOURCE, &["/nowhere/a.json"]);
    lightship(&["copy", &source, sql, "/nowhere/b.csv"]).fails(SOURCE, &["/nowhere/b.csv"]);
    assert_eq!(folder.names(), ["in.csv"]);
}
