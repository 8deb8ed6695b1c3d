//! What a copy does with an existing file or table, and where the passwords of databases come from.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::*;

#[test]
fn modes_apply_to_files() {
    let folder = Folder::new();
    let from = folder.write("from.csv", "a,b\n1,x\n2,y\n");
    let copy = |to: &str, mode: &str| {
        let modes = if mode.is_empty() { &[][..] } else { &["--mode", mode] };
        lightship(&[&["copy", &from, "select * from \"from\" order by a", to], modes].concat())
    };
    for name in ["t.csv", "t.jsonl", "t.arrows"] {
        let to = folder.arg(name);
        copy(&to, "existing").fails(SOURCE, &["there is no such file", "hint: "]);
        for (mode, rows) in
            [("create", 2), ("append", 4), ("existing", 6), ("replace", 2), ("append", 4), ("", 2)]
        {
            copy(&to, mode).succeeds();
            if name != "t.arrows" {
                assert_eq!(
                    csv(&to, "select count(*) as n, sum(a) as a from t"),
                    format!("n,a\n{rows},{}\n", rows / 2 * 3)
                );
            }
        }
        copy(&to, "create").fails(SOURCE, &["the file exists already", "hint: ", "--mode append"]);
        copy(&to, "upsert").fails(USAGE, &["--mode upsert does not apply", "hint: "]);
        copy(&to, "truncate").fails(USAGE, &["--mode truncate does not apply", "hint: "]);
    }
    let to = folder.arg("t.parquet");
    copy(&to, "append").succeeds();
    copy(&to, "append")
        .fails(SOURCE, &["t.parquet", "rows can't be added to a Parquet file", "hint: ", "FOLDER/"]);
    assert_eq!(csv(&to, "select count(*) as n from t"), "n\n2\n");
    lightship(&["copy", &from, "select a from \"from\"", &folder.arg("t.csv"), "--mode", "append"])
        .fails(SOURCE, &["its columns are a, b, and those of the result a", "hint: "]);
    lightship(&["copy", &from, "select a from \"from\"", &folder.arg("t.csv"), "--table", "orders"])
        .fails(USAGE, &["--table applies to a table of a database", "orders.parquet"]);
    // A folder gets another file each time.
    let parts = folder.arg("parts/");
    for _ in 0..3 {
        copy(&parts, "").succeeds();
    }
    copy(&parts, "append").succeeds();
    assert_eq!(csv(&parts, "select count(*) as n, sum(a) as a from parts"), "n,a\n8,12\n");
    copy(&parts, "create").fails(SOURCE, &["it exists", "hint: "]);
    copy(&parts, "replace").fails(USAGE, &["--mode replace does not apply", "which is a folder", "hint: "]);
    fs::create_dir(folder.file("lines")).expect("a folder");
    folder.write("lines/a.csv", "a,b\n7,z\n");
    copy(&folder.arg("lines"), "").succeeds();
    assert_eq!(csv(&folder.arg("lines"), "select sum(a) as a from lines"), "a\n10\n");
}

#[test]
fn what_a_replaced_table_does_not_keep_is_noted_and_reported() {
    let server = postgres();
    server.psql(
        "create table copy_noted (a int primary key, b int); create index copy_noted_b on copy_noted (b);
         create role copy_noted_reader; grant select on copy_noted to copy_noted_reader",
    );
    let args =
        ["copy", &server.uri(), "select 1 as a", &server.uri(), "--table", "copy_noted", "--mode", "replace"];
    let outcome = lightship(&args).succeeds();
    assert!(outcome.stderr.contains("note: column b is not kept"), "{outcome}");
    assert!(outcome.stderr.contains("note: index copy_noted_b is not kept"), "{outcome}");
    server.psql("alter table copy_noted add b int; create index copy_noted_b on copy_noted (b)");
    let outcome = lightship(&[&["--json"][..], &args].concat()).succeeds();
    assert_eq!(outcome.json()["notices"].as_array().map(Vec::len), Some(2), "{outcome}");
    let kept = "select count(*) from pg_index where indrelid = 'copy_noted'::regclass and indisprimary;
                select has_table_privilege('copy_noted_reader', 'copy_noted', 'select')";
    assert_eq!(server.psql(kept), "1\nt\n");
    let truncate =
        ["copy", &server.uri(), "select 5 as a union select 6", &server.uri(), "--table", "copy_noted"];
    lightship(&[&truncate[..], &["--mode", "truncate"]].concat()).succeeds();
    assert_eq!(server.psql("select sum(a) from copy_noted").trim(), "11");
    // A table can be truncated by a query that reads it.
    let same =
        ["copy", &server.uri(), "select a + 1 as a from copy_noted", &server.uri(), "--table", "copy_noted"];
    lightship(&[&same[..], &["--mode", "truncate"]].concat()).succeeds();
    assert_eq!(server.psql("select sum(a) from copy_noted").trim(), "13");
}

#[test]
fn passwords_come_from_the_files_of_postgresql() {
    let (server, folder) = (postgres(), Folder::new());
    let (user, password, port) = (server.user(), server.password(), server.port());
    let escaped = password.replace('\\', "\\\\").replace(':', "\\:");
    let passwords =
        folder.write("pgpass", format!("# mine\nother:*:*:*:no\n127.0.0.1:{port}:*:{user}:{escaped}\n"));
    let services =
        folder.write("services", format!("[shop]\nhost=127.0.0.1\nport={port}\nuser={user}\ndbname=test\n"));
    let mode = |mode| fs::set_permissions(&passwords, Permissions::from_mode(mode)).expect("changed");
    let fetch = |uri: &str| {
        let args = ["fetch", "--quiet", uri, "select 7 as a", "--format", "csv"];
        Process::start_with(&args, |command| {
            command.env("PGPASSFILE", &passwords).env("PGSERVICEFILE", &services)
        })
        .end()
    };
    let psql = |uri: &str| {
        let mut command = Command::new("psql");
        command.args(["-X", "-w", "-q", "-A", "-t", uri, "-c", "select 7"]);
        let output = command.env("PGPASSFILE", &passwords).env("PGSERVICEFILE", &services).output();
        output.expect("psql runs").status.success()
    };
    let address = format!("postgresql://{user}@127.0.0.1:{port}/test");
    mode(0o600);
    for uri in [&*address, "postgresql:///?service=shop"] {
        assert_eq!(fetch(uri).succeeds().text(), "a\n7\n", "{uri}");
        assert!(psql(uri), "{uri}");
    }
    // Another user of the host could have read it.
    mode(0o640);
    for uri in [&*address, "postgresql:///?service=shop"] {
        fetch(uri).fails(SOURCE, &["requires a password", "was ignored", "chmod 600"]);
        assert!(!psql(uri), "{uri}");
    }
    mode(0o600);
    fs::write(&passwords, "*:*:*:*:wrong\n").expect("written");
    let outcome = fetch(&address).fails(SOURCE, &["the password is from", "pgpass"]);
    assert!(!outcome.stderr.contains("wrong"), "{outcome}");
    fetch("postgresql:///?service=none").fails(USAGE, &["no service `none`"]);
}

#[test]
fn passwords_come_from_the_files_of_mysql() {
    let (server, folder) = (mariadb(), Folder::new());
    let quoted = server.password().replace('\\', "\\\\");
    let text = format!(
        "[client]\nuser = {}\npassword = \"{quoted}\"\nport = {}\nhost=127.0.0.1\n",
        server.user(),
        server.port()
    );
    let file = folder.write(".my.cnf", text);
    let fetch = |uri: &str, variables: &[(&str, &str)]| {
        let args = ["fetch", "--quiet", uri, "select 7 as a", "--format", "csv"];
        Process::start_with(&args, |command| {
            command.env("HOME", folder.path()).envs(variables.iter().copied())
        })
        .end()
    };
    assert_eq!(fetch("mysql:///test", &[]).succeeds().text(), "a\n7\n");
    fs::remove_file(file).expect("removed");
    let uri = format!("mysql://{}@127.0.0.1:{}/test", server.user(), server.port());
    assert_eq!(fetch(&uri, &[("MYSQL_PWD", server.password())]).succeeds().text(), "a\n7\n");
    let outcome = fetch(&uri, &[("MYSQL_PWD", "hush")]);
    assert!(outcome.code == Some(SOURCE) && !outcome.stderr.contains("hush"), "{outcome}");
}

#[test]
fn a_node_notes_passwords_that_others_can_see() {
    let server = postgres();
    server.psql("create table copy_visible (a int)");
    let table = format!("t={}?table=copy_visible", server.uri());
    let node = Node::start(&["--table", &table]);
    node.process.says("can see the password of t in the list of processes");
    // A file that only the node's user can read is not visible.
    let folder = Folder::new();
    let config = folder.write("node.toml", format!("listen = [\"127.0.0.1:0\"]\ntable = [\"{table}\"]\n"));
    let hidden = Node::start(&["--config", &config]);
    assert_eq!(csv(&hidden.uri, "select count(*) as n from t"), "n\n0\n");
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", hidden.process.id())).expect("a process");
    assert!(!arguments.contains(server.password()), "{arguments}");
    hidden.process.signal("TERM");
}
