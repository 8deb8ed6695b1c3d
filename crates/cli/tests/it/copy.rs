//! From anywhere into databases and files.

use crate::support::*;

#[test]
fn into_postgresql_from_everywhere() {
    let server = postgres();
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let sqlite = folder.file("shop.db");
    rusqlite::Connection::open(&sqlite)
        .expect("a file")
        .execute_batch("create table t (a integer, b text); insert into t values (1, 'x'), (2, null)")
        .expect("filled");
    mariadb().sql(
        "create table copy_from (a int, b varchar(9)); insert into copy_from values (1, 'x'), (2, null)",
    );
    let sqlite = format!("sqlite:{}", sqlite.display());
    for (from, sql, table, expected) in [
        (
            node.uri.clone(),
            "select l_orderkey, l_tax, l_shipdate, l_comment from lineitem",
            "copied_node",
            None,
        ),
        (
            lineitem().to_owned(),
            "select l_orderkey, l_tax, l_shipdate, l_comment from lineitem",
            "copied_file",
            None,
        ),
        (sqlite, "select * from t", "copied_sqlite", Some("1\tx\n2\t\n")),
        (mariadb().uri(), "select * from copy_from", "copied_mariadb", Some("1\tx\n2\t\n")),
    ] {
        let outcome = lightship(&["--json", "copy", &from, sql, &server.uri(), "--table", table]).succeeds();
        let count: u64 =
            server.psql(&format!("select count(*) from {table}")).trim().parse().expect("a number");
        assert_eq!(outcome.json()["rows"], count, "{table}");
        match expected {
            Some(expected) => assert_eq!(server.psql(&format!("select * from {table} order by 1")), expected),
            None => {
                assert_eq!(count, 60_175);
                let sums = server.psql(&format!(
                    "select sum(l_orderkey), sum(l_tax), min(l_shipdate), max(l_comment) from {table}"
                ));
                let same =
                    "select sum(l_orderkey), sum(l_tax), min(l_shipdate), max(l_comment) from lineitem";
                let expected = csv(lineitem(), same);
                assert_eq!(sums.trim().replace('\t', ","), expected.lines().nth(1).expect("a row"));
            }
        }
    }
}

#[test]
fn modes_of_writing() {
    let server = postgres();
    server.psql(
        "create schema copy; create table copy.kept (a int primary key); insert into copy.kept values (1)",
    );
    let copy = |sql: &str, mode: &str| {
        lightship(&["copy", &server.uri(), sql, &server.uri(), "--table", "copy.kept", "--mode", mode])
    };
    let rows = || server.psql("select string_agg(a::text, ' ' order by a) from copy.kept");
    copy("select 2 as a", "append").succeeds();
    assert_eq!(rows().trim(), "1 2");
    copy("select 3 as a", "create").fails(SOURCE, &["kept", "already exists"]);
    // All rows or none.
    copy("select generate_series(10, 2, -1) as a", "append").fails(SOURCE, &["duplicate key", "kept_pkey"]);
    assert_eq!(rows().trim(), "1 2");
    copy("select 1 / (5 - n) as a from generate_series(3, 9) g(n)", "append")
        .fails(SOURCE, &["division by zero"]);
    assert_eq!(rows().trim(), "1 2");
    copy("select 'x' as a", "append").fails(SOURCE, &[]);
    copy("select 1 as b", "append").fails(DATA, &["column `b`", "no such column; it has a"]);
    copy("select 7 as a", "replace").succeeds();
    assert_eq!(rows().trim(), "7");
    let wrong = server.uri_as(server.user(), "wrong", "test");
    lightship(&["copy", &server.uri(), "select 1 as a", &wrong, "--table", "t"])
        .fails(SOURCE, &["refused the login"]);
}

#[test]
fn a_copy_that_is_interrupted_leaves_nothing() {
    let server = postgres();
    server.psql("create table copy_interrupted (n bigint)");
    let sql = "select generate_series(1, 1000000000000) as n";
    let copy = Process::start(&["copy", &server.uri(), sql, &server.uri(), "--table", "copy_interrupted"]);
    let running = |more: &str| {
        let sql = "select count(*) from pg_stat_progress_copy where relid = 'copy_interrupted'::regclass";
        server.psql(&format!("{sql} {more}")).trim() == "1"
    };
    until("rows are on their way", || running("and tuples_processed > 1000"));
    copy.signal("INT");
    copy.end().fails(INTERRUPTED, &["interrupted"]);
    until("the copy is gone", || !running(""));
    assert_eq!(server.psql("select count(*) from copy_interrupted").trim(), "0");
}

#[test]
fn into_files() {
    let server = postgres();
    server.psql(
        "create table copy_out (a int, b text);
         insert into copy_out select n, 'row ' || n from generate_series(1, 1000) g(n)",
    );
    let folder = Folder::new();
    for name in ["t.parquet", "t.arrow", "t.csv", "t.json"] {
        let file = folder.arg(name);
        let outcome =
            lightship(&["copy", &server.uri(), "select * from copy_out order by a", &file]).succeeds();
        assert!(outcome.stderr.starts_with("1,000 rows"), "{outcome}");
        let again = "select count(*) as n, sum(a) as a, max(b) as b from t";
        assert_eq!(csv(&file, again), "n,a,b\n1000,500500,row 999\n", "{name}");
    }
}
