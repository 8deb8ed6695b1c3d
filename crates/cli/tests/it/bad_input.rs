//! Wrong input, and the messages that say what to do.

use std::net::TcpListener;

use crate::support::*;

#[test]
fn sources_that_do_not_exist_are_named_in_the_error() {
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("lightship://{}", listener.local_addr().expect("an address"))
    };
    let cases: &[(&str, i32, &[&str])] = &[
        ("", USAGE, &["it is empty"]),
        ("ftp://example.org/x", USAGE, &["unknown scheme `ftp`", "lightship://", "postgresql://"]),
        ("lightship://", USAGE, &["the host is missing"]),
        ("lightship://h:port", USAGE, &["is not a location", "port"]),
        ("lightship://h/shop", USAGE, &["a node has no databases; leave out `/shop`"]),
        ("lightship://u:p@h", USAGE, &["lightship://TOKEN@host"]),
        ("lightship://h?tsl=true", USAGE, &["unknown option `tsl`", "tls=true"]),
        ("lightship+unix:", USAGE, &["the path of the socket is missing"]),
        ("sqlite:", USAGE, &["the path of the database file is missing"]),
        ("postgresql://h/db", USAGE, &["the user is missing", "postgresql://USER@host/database"]),
        ("postgresql://[", USAGE, &["is not a location"]),
        (&closed, NETWORK, &["can't reach 127.0.0.1", "refused", "hint: is a node listening there?"]),
        ("lightship+unix:/nowhere/socket", NETWORK, &["can't reach /nowhere/socket", "No such file"]),
        ("lightship://no-such-host.invalid", NETWORK, &["can't reach no-such-host.invalid:4270"]),
        ("nowhere.parquet", SOURCE, &["nowhere.parquet", "No such file"]),
        ("sqlite:/nowhere/file.db", SOURCE, &["/nowhere/file.db"]),
        (&closed.replace("lightship://", "postgresql://me@"), NETWORK, &["can't reach", "refused"]),
        (&closed.replace("lightship://", "mysql://me@"), NETWORK, &["can't reach", "refused"]),
    ];
    for (uri, code, words) in cases {
        lightship(&["fetch", uri, "select 1"]).fails(*code, words);
    }
}

#[test]
fn wrong_arguments_are_refused_with_a_reason() {
    let file = lineitem();
    let sql = "select 1";
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["Usage: lightship"]),
        (&["fetsh"], &["unrecognized subcommand 'fetsh'", "fetch"]),
        (&["fetch"], &["<URI>", "[SQL]"]),
        (&["fetch", file, sql, "--format", "tsv"], &["format `tsv`", "parquet, csv"]),
        (
            &["fetch", file, sql, "-o", "rows.xls"],
            &["rows.xls", "cannot infer the format", "hint: give the format"],
        ),
        (
            &["--json", "fetch", file, sql, "--format", "csv"],
            &["--json prints rows as JSON lines, which contradicts --format csv", "leave out one of them"],
        ),
        (&["fetch", file, sql, "--format", "table", "-o", "-", "--json"], &["contradicts --format table"]),
        (&["fetch", file, sql, "--memory", "1KiB"], &["--memory", "4MiB"]),
        (&["fetch", file, sql, "--memory", "much"], &["--memory", "`much` is not a size (example: 64MiB)"]),
        (&["fetch", file, sql, "--codec", "gzip"], &["--codec", "gzip"]),
        (&["fetch", file, sql, "--batch-rows=-1"], &["--batch-rows"]),
        (&["fetch", file, sql, "--streams", "0"], &["--streams"]),
        (
            &["fetch", file, sql, "--numeric", "float"],
            &["unknown rule `float`; expected decimal, decimal(P,S)", "string or double"],
        ),
        (&["--log", "a=b=c", "fetch", file, sql], &["--log a=b=c"]),
        (&["copy", file, sql, "postgresql://h/db"], &["requires --table"]),
        (&["copy", file, sql, "mysql://h/db"], &["a copy into a database requires --table"]),
        (&["copy", file, sql, "rows.xls"], &["can't copy into rows.xls", ".parquet"]),
        (
            &["copy", file, sql, "postgresql://h/db", "--table", "t", "--mode", "merge"],
            &["unknown mode `merge`; expected append, existing, create, replace, truncate or upsert"],
        ),
        (
            &["copy", file, sql, "nowhere/rows.csv", "--mode", "truncate"],
            &[
                "--mode truncate does not apply to nowhere/rows.csv, which is a file",
                "hint: use --mode replace",
            ],
        ),
        (
            &["copy", file, sql, "nowhere/rows.csv", "--table", "t"],
            &["--table applies to a table of a database", "nowhere/rows.csv", "hint: leave out --table"],
        ),
        (&["node", "--connections-max", "0"], &["--connections-max must be at least 1"]),
        (&["node", "--connections-between-nodes", "1"], &["--connections-between-nodes must be at least 2"]),
        (&["netbench", "serve", "--connections-max", "0"], &["--connections-max", "0 is not in 1.."]),
        (&["node", "--table", "lineitem"], &["--table lineitem: expected NAME=PATH or NAME=URI"]),
        (&["node", "--table", "t=lightship://h"], &["table t", "a table of another node can't be served"]),
        (&["node", "--listen", "nowhere.invalid:1"], &["--listen nowhere.invalid:1"]),
        (&["node", "--tls-cert", "cert.pem"], &["--tls-cert and --tls-key must be given together"]),
        (&["node", "--token", ""], &["a token is empty"]),
        (&["node", "--token-file", "/nowhere/tokens"], &["/nowhere/tokens", "No such file"]),
        (&["node", "--config", "/nowhere/node.toml"], &["/nowhere/node.toml", "No such file"]),
    ];
    for (args, words) in cases {
        let mut args = args.to_vec();
        if args.first() == Some(&"node") && !args.contains(&"--listen") {
            args.extend(["--listen", "127.0.0.1:0"]);
        }
        lightship(&args).fails(USAGE, words);
    }
}

#[test]
fn tables_that_a_node_can_not_serve_are_refused() {
    let folder = Folder::new();
    let text = format!("t={}", folder.write("program", b"\x7fELF\0\0\0"));
    let broken = format!("t={}", folder.write("broken.parquet", "PAR1 and then nothing"));
    let empty = Folder::new();
    let empty = format!("t={}", empty.arg("."));
    let twice = lineitem_table();
    let postgres = format!("t={}?table=public.no_such_table", postgres().uri());
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--table", "t=/nowhere/t.parquet"], SOURCE, &["table t: /nowhere/t.parquet", "No such file"]),
        (&["--table", &text], DATA, &["table t", "unknown kind of file"]),
        (&["--table", &broken], DATA, &["table t", "broken.parquet"]),
        (
            &["--table", &empty],
            SOURCE,
            &["table t", "the folder has no files of Parquet, CSV, JSON, Arrow, Avro or Excel"],
        ),
        (&["--table", &twice, "--table", &twice], USAGE, &["two tables are called `lineitem`"]),
        (&["--table", &postgres], SOURCE, &["table t", "no table `public.no_such_table`"]),
        (&["--data", "/nowhere"], SOURCE, &["/nowhere", "No such file"]),
        (&["--data", lineitem()], USAGE, &["is a file", "hint: use --table lineitem="]),
    ];
    for (args, code, words) in cases {
        let args = [&["node", "--listen", "127.0.0.1:0"], *args].concat();
        lightship(&args).fails(*code, words);
    }
}

#[test]
fn errors_in_sql_show_their_position() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let cases: &[(&str, i32, &[&str])] = &[
        ("selec 1", SOURCE, &["error: ", "\n  selec 1\n  ^"]),
        ("select l_orderkey\nfrom lineitem wher l_tax > 0", SOURCE, &["from lineitem wher", "^"]),
        ("select l_orderkei from lineitem", SOURCE, &["l_orderkei", "\n         ^", "hint: ", "l_orderkey"]),
        ("select * from lineitems", SOURCE, &["lineitems", "not found"]),
        ("select no_such_function(1)", SOURCE, &["no_such_function"]),
        ("", SOURCE, &["error: "]),
        ("select 1; select 2", SOURCE, &["error: "]),
        ("select sum(l_comment) from lineitem", SOURCE, &["error: "]),
        ("select 1 / (l_linenumber - l_linenumber) from lineitem", DATA, &["error: ", "ivide"]),
        ("select cast(l_comment as int) from lineitem", DATA, &["error: ", "Cannot cast"]),
    ];
    for (sql, code, words) in cases {
        node.fetch(&[sql]).fails(*code, words);
    }
    // The same as JSON.
    let error = lightship(&["--json", "fetch", &node.uri, "select\n  no_such from lineitem"]).json();
    assert_eq!(error["error"]["kind"], "source", "{error}");
    assert_eq!(error["error"]["position"], serde_json::json!({"line": 2, "column": 3}), "{error}");
    assert!(error["error"]["message"].as_str().is_some_and(|text| text.contains("no_such")), "{error}");
    node.serves();
}

#[test]
fn errors_of_postgresql_are_passed_on() {
    let server = postgres();
    server.psql("create table bad_input_t (a int)");
    let fetch = |uri: &str, sql: &str| lightship(&["fetch", uri, sql]);
    fetch(&server.uri_as(server.user(), "wrong", "test"), "select 1")
        .fails(SOURCE, &["refused the login", "password authentication failed", server.user()]);
    fetch(&server.uri_as("nobody", "x", "test"), "select 1").fails(SOURCE, &["refused the login", "nobody"]);
    fetch(&server.uri_as(server.user(), server.password(), "shop"), "select 1")
        .fails(SOURCE, &["refused the login", "\"shop\" does not exist"]);
    for (sql, words) in [
        ("selec 1", &["syntax error at or near \"selec\"", "(at character 1)", "\n  selec 1\n  ^"] as &[_]),
        ("select b from bad_input_t", &["column \"b\" does not exist", "\n         ^"]),
        ("select 'ää', b from bad_input_t", &["\n  select 'ää', b from", "\n               ^"]),
        ("select * from bad_input_u", &["relation \"bad_input_u\" does not exist", "\n                ^"]),
        ("select 1 / (a - a) from (values (1)) as t(a)", &["division by zero"]),
    ] {
        fetch(&server.uri(), sql).fails(SOURCE, words);
    }
    // Only the line with the error is shown.
    fetch(&server.uri(), "select 1,\n  b\nfrom bad_input_t").fails(SOURCE, &["\n    b\n    ^"]);
    // Passwords are never shown.
    for uri in [server.uri_as(server.user(), "gu3ssed", "test"), server.uri_as("x", "gu3ssed", "y")] {
        let outcome = lightship(&["--log", "trace", "fetch", &uri, "select 1"]).fails(SOURCE, &[]);
        assert!(!outcome.stderr.contains("gu3ssed"), "{outcome}");
    }
}

#[test]
fn errors_of_mariadb_and_sqlite_are_passed_on() {
    let server = mariadb();
    let fetch = |uri: &str, sql: &str| lightship(&["fetch", uri, sql]);
    fetch(&server.uri_as(server.user(), "wrong", "test"), "select 1")
        .fails(SOURCE, &["refused the login", "Access denied"]);
    fetch(&server.uri_as(server.user(), server.password(), "shop"), "select 1").fails(SOURCE, &["shop"]);
    fetch(&server.uri(), "selec 1").fails(SOURCE, &["error in your SQL syntax"]);
    fetch(&server.uri(), "select * from bad_input_u").fails(SOURCE, &["bad_input_u", "doesn't exist"]);

    let folder = Folder::new();
    let file = format!("sqlite:{}", folder.arg("t.db"));
    fetch(&file, "select 1").fails(SOURCE, &["t.db"]);
    assert_eq!(folder.names(), Vec::<String>::new(), "reading does not create a database");
    rusqlite::Connection::open(folder.file("t.db"))
        .expect("a file")
        .execute("create table t (a)", [])
        .expect("made");
    fetch(&file, "selec 1").fails(SOURCE, &["syntax error", "selec"]);
    fetch(&file, "select * from u").fails(SOURCE, &["no such table: u"]);
    let text =
        format!("sqlite:{}", folder.write("notes.txt", "this is no database, and long enough to tell"));
    fetch(&text, "select 1 from sqlite_master")
        .fails(SOURCE, &["notes.txt", "the file is not an SQLite database"]);
}
