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
