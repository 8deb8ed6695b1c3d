//! Copies from any source into databases and files.

use crate::support::*;

#[test]
fn rows_of_every_source_can_be_copied_into_postgresql() {
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
fn modes_append_create_or_replace() {
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
    // A copy writes all rows or none.
    copy("select generate_series(10, 2, -1) as a", "append").fails(SOURCE, &["duplicate key", "kept_pkey"]);
    assert_eq!(rows().trim(), "1 2");
    copy("select 1 / (5 - n) as a from generate_series(3, 9) g(n)", "append")
        .fails(SOURCE, &["division by zero"]);
    assert_eq!(rows().trim(), "1 2");
    copy("select 'x' as a", "append").fails(DATA, &["row 1, column `a`: invalid input syntax"]);
    copy("select 1 as b", "append").fails(DATA, &["column `b`", "no such column; it has a"]);
    copy("select 7 as a", "replace").succeeds();
    assert_eq!(rows().trim(), "7");
    let wrong = server.uri_as(server.user(), "wrong", "test");
    lightship(&["copy", &server.uri(), "select 1 as a", &wrong, "--table", "t"])
        .fails(SOURCE, &["refused the login"]);
}

#[test]
fn an_interrupted_copy_leaves_no_rows() {
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
fn notices_are_read_while_rows_are_sent() {
    let server = postgres();
    // Enough notices to fill the buffers of both sockets many times over.
    server.psql(
        "create table copy_noisy (n bigint, t text);
         create function copy_noise() returns trigger language plpgsql as
         $$ begin raise notice '%', repeat('x', 2000); return new; end $$;
         create trigger noise before insert on copy_noisy for each row execute function copy_noise()",
    );
    let sql = "select n, repeat('y', 500) as t from generate_series(1, 60000) g(n)";
    let args = ["copy", &server.uri(), sql, &server.uri(), "--table", "copy_noisy"];
    let outcome = lightship(&[&["--json"] as &[_], &args].concat()).succeeds();
    assert_eq!(outcome.json()["rows"], 60_000);
    assert_eq!(server.psql("select count(*), sum(n) from copy_noisy").trim(), "60000\t1800030000");
    // A refused row is reported at once, although most rows are still to come.
    server.psql("truncate copy_noisy; alter table copy_noisy add check (n <> 70)");
    lightship(&args).fails(SOURCE, &["row 70", "copy_noisy_n_check"]);
}

#[test]
fn notices_are_not_kept_in_memory() {
    let server = postgres();
    server.psql(
        "create table copy_loud (n bigint); create table copy_still (n bigint);
         create function copy_shout() returns trigger language plpgsql as
         $$ begin raise notice '%', repeat('x', 50000000); return new; end $$;
         create trigger shout before insert on copy_loud for each row execute function copy_shout()",
    );
    let [still, loud] = ["copy_still", "copy_loud"].map(|table| {
        let sql = "select generate_series(1, 4) as n";
        let copy =
            lightship(&["--json", "copy", &server.uri(), sql, &server.uri(), "--table", table]).succeeds();
        copy.json()["peak_memory_bytes"].as_u64().expect("a number")
    });
    // Each notice has 50 MB.
    assert!(loud < still + (25 << 20), "{still} bytes without, {loud} bytes with notices");
}

#[test]
fn a_table_can_be_copied_into_itself() {
    let server = postgres();
    server.psql(
        "create schema copy_self;
         create table copy_self.t (a int primary key, b text);
         insert into copy_self.t select n, repeat('x', 1000) from generate_series(1, 50000) g(n);
         create table public.copy_self_t (other int); analyze copy_self.t",
    );
    let copy = |sql: &str, mode: &str, more: &[&str]| {
        let args = ["copy", &server.uri(), sql, &server.uri(), "--table", "copy_self.t", "--mode", mode];
        lightship(&[&args as &[_], more].concat())
    };
    let rows = || server.psql("select count(*), count(distinct a), max(length(b)) from copy_self.t");
    for more in [&["--streams", "1"] as &[_], &["--streams", "3"], &["--memory", "4MiB"]] {
        copy("select * from copy_self.t", "replace", more).succeeds();
        assert_eq!(rows().trim(), "50000\t50000\t1000", "{more:?}");
    }
    copy("select * from copy_self.t where a <= 30000", "replace", &[]).succeeds();
    copy("select a + 100000 as a, b from copy_self.t", "append", &[]).succeeds();
    assert_eq!(rows().trim(), "60000\t60000\t1000");
    // Through a node that serves it.
    let table = format!("t={}?table=copy_self.t", server.uri());
    let node = Node::start(&["--table", &table]);
    for (sql, left) in [("select * from t", "60000"), ("select * from t limit 10", "10")] {
        lightship(&["copy", &node.uri, sql, &server.uri(), "--table", "copy_self.t", "--mode", "replace"])
            .succeeds();
        assert_eq!(server.psql("select count(*) from copy_self.t").trim(), left);
    }
    // Nothing else has changed.
    let names = "select string_agg(relname, ' ' order by relname) from pg_class
                 where relnamespace = 'copy_self'::regnamespace";
    assert_eq!(server.psql(names).trim(), "t t_pkey");
    assert_eq!(server.psql("select count(*) from public.copy_self_t").trim(), "0");
}

#[test]
fn replace_finds_the_table_by_the_search_path() {
    let server = postgres();
    // Another schema comes first in the search path, where tables would be created.
    server.psql(
        "create role copy_path superuser login password 'p'; create schema copy_path_second;
         create schema copy_path; alter role copy_path set search_path = copy_path, copy_path_second;
         create table copy_path_second.there (a int); insert into copy_path_second.there values (1)",
    );
    let uri = server.uri_as("copy_path", "p", "test");
    for table in ["there", "made"] {
        lightship(&["copy", &uri, "select 7 as a", &uri, "--table", table, "--mode", "replace"]).succeeds();
    }
    let tables =
        "select string_agg(schemaname || '.' || tablename, ' ' order by tablename desc) from pg_tables
                  where schemaname like 'copy_path%'";
    assert_eq!(server.psql(tables).trim(), "copy_path_second.there copy_path.made");
    assert_eq!(server.psql("select a from copy_path_second.there").trim(), "7");
}

#[test]
fn the_temporary_name_of_a_new_table_is_unused() {
    let server = postgres();
    // Names that later backends would choose.
    server.psql(
        "create schema copy_names; create table copy_names.t (a int);
         do $$ begin for n in 0..999 loop
             execute format('create table copy_names.lightship_%s_1 ()', pg_backend_pid() + n);
             execute format('create type copy_names.lightship_%s_2 as enum ()', pg_backend_pid() + n);
         end loop; end $$",
    );
    let names =
        || server.psql("select count(*) from pg_class where relnamespace = 'copy_names'::regnamespace");
    let before = names();
    let uri = server.uri();
    lightship(&["copy", &uri, "select 3 as a", &uri, "--table", "copy_names.t", "--mode", "replace"])
        .succeeds();
    assert_eq!((server.psql("select a from copy_names.t").trim(), names()), ("3", before));
}

#[test]
fn a_table_is_readable_until_it_is_replaced() {
    let server = postgres();
    server.psql("create table copy_swapped (a bigint); insert into copy_swapped values (-1)");
    let sql = "select generate_series(1, 1000000000000) as a";
    let copy = Process::start(&[
        "copy",
        &server.uri(),
        sql,
        &server.uri(),
        "--table",
        "copy_swapped",
        "--mode",
        "replace",
    ]);
    let copying = "select count(*) from pg_stat_progress_copy where tuples_processed > 1000
                   and command = 'COPY FROM'";
    until("rows are on their way", || server.psql(copying).trim() != "0");
    assert_eq!(server.psql("set lock_timeout = '5s'; select a from copy_swapped").trim(), "-1");
    copy.signal("INT");
    copy.end().fails(INTERRUPTED, &[]);
    assert_eq!(server.psql("select a from copy_swapped").trim(), "-1");
    // A copy waits for others that use the table, but not for ever.
    server.psql(
        "create role copy_hasty superuser login password 'p'; alter role copy_hasty set lock_timeout = '300ms'",
    );
    let uri = server.uri_as("copy_hasty", "p", "test");
    let replace = ["copy", &uri, "select 5 as a", &uri, "--table", "copy_swapped", "--mode", "replace"];
    let holder = Process::start(&["fetch", &server.uri(), "select a, pg_sleep(600)::text from copy_swapped"]);
    let held = "select count(*) from pg_locks where relation = 'copy_swapped'::regclass and granted";
    until("it is being read", || server.psql(held).trim() == "1");
    lightship(&replace).fails(SOURCE, &["copy_swapped` is in use", "300ms", "hint: ", "lock_timeout"]);
    server.psql(
        "select pg_terminate_backend(pid, 10000) from pg_locks where relation = 'copy_swapped'::regclass",
    );
    holder.end().fails(NETWORK, &[]);
    lightship(&replace).succeeds();
    assert_eq!(server.psql("select a from copy_swapped").trim(), "5");
}

#[test]
fn tables_that_can_not_be_replaced_are_unchanged() {
    let server = postgres();
    server.psql(
        "create table copy_based (a int); insert into copy_based values (1); create view copy_view as select a from copy_based;
         create table copy_parent (a int) partition by range (a);
         create table copy_part partition of copy_parent for values from (0) to (10);
         create table copy_key (a int primary key); create table copy_child (a int references copy_key);
         create table copy_own (a serial primary key, b int references copy_own, check (a > 0));
         create index on copy_own (b)",
    );
    let replace = |table: &str| {
        let sql = "select generate_series(1, 3) as a";
        lightship(&["copy", &server.uri(), sql, &server.uri(), "--table", table, "--mode", "replace"])
    };
    replace("copy_based").fails(SOURCE, &["copy_based", "view copy_view depends on it", "hint: "]);
    replace("copy_key").fails(SOURCE, &["constraint copy_child_a_fkey on table copy_child depends"]);
    replace("copy_view").fails(USAGE, &["not a table"]);
    replace("copy_part").fails(USAGE, &["partition"]);
    assert_eq!(server.psql("select count(*) from copy_based").trim(), "1");
    // Its own indexes, sequences and constraints are dropped with it.
    replace("copy_own").succeeds();
    assert_eq!(server.psql("select sum(a) from copy_own").trim(), "6");
    // Names that the server would truncate are refused: they could be those of other tables.
    let long = "copy_".repeat(13);
    server.psql(&format!("create table {long} (a int)"));
    replace(&long).fails(USAGE, &["has 65 bytes", "up to 63"]);
    lightship(&[
        "copy",
        &server.uri(),
        &format!("select 1 as {}", "é".repeat(31)),
        &server.uri(),
        "--table",
        "copy_e",
    ])
    .succeeds();
}

#[test]
fn values_arrive_unchanged_or_are_refused_by_row_and_column() {
    let server = postgres();
    server.psql(
        "create type copy_mood as enum ('sad', 'happy'); create domain copy_price as numeric(4, 1);
         create table copy_exact (n int, real real, double float8, price numeric(6, 2), domain copy_price,
             money money, short varchar(3), padded char(3), t0 timestamp(0), day date, small int2,
             time time(3), year interval year, mood copy_mood, bits bit(3), stamp timestamp, prices numeric(4, 1)[],
             ch \"char\")",
    );
    let copy = |sql: &str| lightship(&["copy", &server.uri(), sql, &server.uri(), "--table", "copy_exact"]);
    // Of four rows, the third has another value.
    let rows = |column: &str, good: &str, third: &str| {
        copy(&format!(
            "select n, case n when 3 then {third} else {good} end as {column} from generate_series(1, 4) g(n)"
        ))
    };
    for (column, good, third, words) in [
        ("real", "0.5::float8", "0.1::float8", "0.1 is not a value of type real"),
        ("real", "0.5::float8", "1e300::float8", "is not a value of type real"),
        ("real", "16777216", "16777217", "16777217 is not a value of type real"),
        (
            "double",
            "0.1::numeric(20, 1)",
            "1234567890123456789.1::numeric(20, 1)",
            "is not a value of type double",
        ),
        ("double", "9007199254740992", "9007199254740993", "is not a value of type double"),
        ("price", "1.25::float8", "1.255::float8", "decimal places beyond those of numeric(6, 2)"),
        ("price", "1.50::numeric(10, 3)", "1.505::numeric(10, 3)", "numeric(6, 2)"),
        ("price", "1::numeric(10, 3)", "10000::numeric(10, 3)", "too large for numeric(6, 2)"),
        ("price", "1.25::float8", "'infinity'::float8", "can't hold infinity"),
        ("price", "'1.25'", "'1.255'", "a text that numeric(6,2) would not keep"),
        ("price", "'1.25'", "'x'", "invalid input syntax for type numeric"),
        ("domain", "1.5::numeric(10, 3)", "1.55::numeric(10, 3)", "numeric(4, 1)"),
        ("money", "1.5::numeric(10, 3)", "1.505::numeric(10, 3)", "1.505 is not a value of type money"),
        ("small", "1", "40000", "40000 is out of range for type smallint"),
        ("short", "'abc'", "'abc '", "4 characters where the column takes 3"),
        ("padded", "'abc '", "'abcd'", "4 characters where the column takes 3"),
        (
            "t0",
            "timestamp '2024-01-01 10:00'",
            "timestamp '2024-01-01 10:00:00.5'",
            "decimal places of a second",
        ),
        (
            "t0",
            "'2024-01-01 10:00'",
            "'2024-01-01 10:00:00.5'",
            "that timestamp(0) without time zone would not keep",
        ),
        ("stamp", "'2024-01-01 10:00'", "'2024-01-01 10:00+02'", "would not keep in full"),
        ("stamp", "'2024-01-01 10:00'", "'2024-01-01 10:00:00 Asia/Tokyo'", "would not keep in full"),
        ("stamp", "'2024-01-01 10:00:00.1234560'", "'2024-01-01 10:00:00.1234567'", "would not keep in full"),
        ("time", "'10:00:00.123'", "'2024-05-01 10:00:00'", "would not keep in full"),
        ("time", "'T10:00'", "'10:00:00+02'", "would not keep in full"),
        ("day", "'2024-01-01'", "'20240101T103000'", "would not keep in full"),
        ("day", "'2024-01-01'", "'2024-01-01 10:00'", "a text that date would not keep in full"),
        ("time", "time '10:00:00.123'", "time '10:00:00.1234'", "decimal places of a second"),
        ("year", "interval '2 years'", "interval '2 years 1 month'", "parts that the column does not keep"),
        ("mood", "'sad'", "'bad'", "invalid input value for enum"),
        ("bits", "'101'", "'1011'", "bit string length 4 does not match"),
        ("prices", "array[1.5, null]::numeric(10, 3)[]", "array[1.55]::numeric(10, 3)[]", "numeric(4, 1)"),
        ("ch", "'a'", "'ab'", "a text that \"char\" would not keep"),
    ] {
        let outcome = rows(column, good, third);
        assert!([Some(DATA), Some(SOURCE)].contains(&outcome.code), "{column} {third}: {outcome}");
        let place = format!("row 3, column `{column}`: ");
        let shown = outcome.stderr.clone();
        assert!(shown.contains(&place) && shown.contains(words), "{column} {third}: {outcome}");
        assert!(shown.contains("hint: "), "{outcome}");
        assert_eq!(server.psql("select count(*) from copy_exact").trim(), "0");
        rows(column, good, "null").succeeds();
        assert_eq!(
            server
                .psql("with all_rows as (delete from copy_exact returning *) select count(*) from all_rows")
                .trim(),
            "4"
        );
    }
    copy(
        "select 0.5::float8 as real, 0.1::numeric(9, 1) as double, 1e2::float8 as price, 1.5::numeric(10, 3) as domain,
            7 as money, 'ab' as short, 'a' as padded, date '2024-02-29' as t0, 5::int8 as small",
    )
    .succeeds();
    assert_eq!(
        server.psql("select real, double, price, domain, money, short, padded, t0, small from copy_exact"),
        "0.5\t0.1\t100.00\t1.5\t$7.00\tab\ta  \t2024-02-29 00:00:00\t5\n"
    );
}

#[test]
fn rows_between_tables_of_the_same_types_are_not_decoded() {
    let server = postgres();
    // The table has values that no Arrow type can hold, which shows that rows are not decoded.
    server.psql(
        "create table copy_tuples (n int4 primary key, ok bool, big int8, small int2, f4 float4, f8 float8,
             price numeric(6, 2), any_number numeric, b bytea, t text, v varchar(5), c char(4), d date, ti time,
             ts timestamp, tz timestamptz, i interval, u uuid, j json, jb jsonb, grid int4[], words text[]);
         insert into copy_tuples values
             (1, true, 9e18, -3, 'nan', '-infinity', 'nan', 'infinity', '\\x00ff', E'a\tb\nc', 'abcde', 'ab',
              'infinity', '24:00', '-infinity', 'infinity', '1 mon -2 days 03:00:00.000001',
              '00112233-4455-6677-8899-aabbccddeeff', '{\"a\": 1,  \"a\": 2}', '{\"b\": [1, null]}',
              '{{1,2},{3,null}}', '[5:6]={x,NULL}'),
             (2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
              null, null, null, null, null);
         insert into copy_tuples (n, t, any_number)
             select n, repeat('word ', n % 50), n::numeric / 7 from generate_series(3, 30000) g(n);
         create table copy_tuples_kept (like copy_tuples);
         create table copy_tuples_wide (like copy_tuples); alter table copy_tuples_wide alter v type text,
             alter price type numeric",
    );
    let all = |table: &str| {
        server.psql(&format!("select count(*), md5(string_agg(t::text, ';' order by n)) from {table} t"))
    };
    let copy = |more: &[&str], sql: &str, table: &str| {
        let (uri, mut words) = (server.uri(), vec!["copy"]);
        words.extend([&uri, sql, &uri, "--table", table]);
        words.extend(more);
        lightship(&words)
    };
    for (more, table) in [
        (&["--streams", "1"][..], "copy_tuples_kept"),
        (&["--streams", "2", "--memory", "4MiB"], "copy_tuples_kept"),
        (&[], "copy_tuples_wide"),
    ] {
        server.psql(&format!("truncate {table}"));
        let outcome = copy(&[more, &["--json"]].concat(), "select * from copy_tuples", table).succeeds();
        assert_eq!(outcome.json()["rows"], 30_000, "{table}");
        assert_eq!(all(table), all("copy_tuples"), "{table}");
    }
    // A row that the server refuses is named, and no row is left.
    server.psql("truncate copy_tuples_kept; alter table copy_tuples_kept add check (n <> 77)");
    let outcome = copy(&["--streams", "1"], "select * from copy_tuples order by n", "copy_tuples_kept");
    assert_eq!(outcome.code, Some(SOURCE), "{outcome}");
    assert!(outcome.stderr.contains("row 77: "), "{outcome}");
    assert_eq!(server.psql("select count(*) from copy_tuples_kept").trim(), "0");
    // With a rule for values, and if values have to change, rows are decoded.
    let outcome = copy(&["--infinite", "error"], "select n, d from copy_tuples", "copy_tuples_kept");
    assert!(outcome.code == Some(DATA) && outcome.stderr.contains("infin"), "{outcome}");
    let changed = "select n, n::int4 as big, 'x' as t from copy_tuples where n between 5 and 6";
    copy(&[], changed, "copy_tuples_kept").succeeds();
    assert_eq!(server.psql("select n, big, t from copy_tuples_kept order by n"), "5\t5\tx\n6\t6\tx\n");
}

#[test]
fn columns_of_the_same_name_are_refused_or_renamed() {
    let server = postgres();
    let folder = Folder::new();
    let sql = "select 1 as a, 2 as a, 3 as b, 4 as a_2";
    for name in ["t.arrow", "t.arrows", "t.parquet", "t.csv", "t.json"] {
        let file = folder.arg(name);
        for command in
            [&["fetch", &server.uri(), sql, "-o", &file] as &[_], &["copy", &server.uri(), sql, &file]]
        {
            lightship(command).fails(
                USAGE,
                &["columns 1 and 2 of the result are both named `a`", "hint: ", "--duplicate-columns rename"],
            );
            assert_eq!(folder.names(), [""; 0]);
            lightship(&[command, &["--duplicate-columns", "rename"]].concat()).succeeds();
            if name != "t.arrows" {
                assert_eq!(csv(&file, "select a, a_3, b, a_2 from t"), "a,a_3,b,a_2\n1,2,3,4\n", "{name}");
            }
            std::fs::remove_file(&file).expect("removed");
        }
    }
    let copy = ["copy", &server.uri(), sql, &server.uri(), "--table", "copy_twice"];
    lightship(&copy).fails(USAGE, &["both named `a`"]);
    lightship(&[&copy as &[_], &["--duplicate-columns", "rename"]].concat()).succeeds();
    assert_eq!(server.psql("select a, a_2, a_3, b from copy_twice").trim(), "1\t4\t2\t3");
    // The table format shows both.
    let table = lightship(&["fetch", "--quiet", &server.uri(), "select 1 as a, 2 as a", "--format", "table"])
        .succeeds();
    assert!(table.text().starts_with(" a │ a\n"), "{table}");
    lightship(&["fetch", &server.uri(), sql, "--duplicate-columns", "some"])
        .fails(USAGE, &["error or rename"]);
}

#[test]
fn json_has_no_infinity() {
    let server = postgres();
    for value in ["'nan'", "'-infinity'"] {
        let sql = format!(
            "select n, case n when 3 then {value} else 1.5 end::float8 as x from generate_series(1, 4) g(n)"
        );
        lightship(&["fetch", &server.uri(), &sql, "--format", "json"])
            .fails(DATA, &["row 3, column `x`", "JSON has no", "hint: "]);
        lightship(&["fetch", &server.uri(), &sql, "--format", "csv"]).succeeds();
    }
}

#[test]
fn results_can_be_copied_into_files() {
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

#[test]
fn rows_are_copied_into_mariadb_and_sqlite_and_upserted() {
    let folder = Folder::new();
    let sqlite = format!("sqlite:{}", folder.arg("copied.db"));
    let sql = "select l_orderkey, l_linenumber, l_tax, l_shipdate, l_comment from lineitem";
    let count =
        |table: &str| format!("select count(*) as n, sum(l_tax) as t, min(l_comment) as c from {table}");
    for to in [mariadb().uri(), sqlite, postgres().uri()] {
        let copy = |options: &[&str]| {
            lightship(&[&["--json", "copy", lineitem(), sql, to.as_str()][..], options].concat())
        };
        let upsert = |table: &str, key: &str| copy(&["--table", table, "--mode", "upsert", "--key", key]);
        assert_eq!(copy(&["--table", "copied_lines"]).succeeds().json()["rows"], 60_175);
        let expected = csv(&to, &count("copied_lines"));
        assert!(expected.contains("60175"), "{expected}");
        copy(&["--table", "copied_lines", "--mode", "replace"]).succeeds();
        assert_eq!(csv(&to, &count("copied_lines")), expected);
        // The table has no unique index.
        upsert("copied_lines", "l_orderkey,l_linenumber")
            .fails(SOURCE, &["no unique index on the key (l_orderkey, l_linenumber)", "create one"]);
        for _ in 0..2 {
            upsert("copied_keyed", "l_orderkey,l_linenumber").succeeds();
            assert_eq!(csv(&to, &count("copied_keyed")), expected);
        }
        upsert("copied_keyed", "l_orderkey").fails(SOURCE, &["no unique index on the key (l_orderkey)"]);
        upsert("copied_other", "l_orderkey").fails(DATA, &["have the same key (l_orderkey)"]);
    }
    let uri = mariadb().uri();
    let refused = |to: &str, options: &[&str], words: &str| {
        lightship(&[&["copy", lineitem(), sql, to][..], options].concat()).fails(USAGE, &[words]);
    };
    refused(&uri, &["--table", "t", "--mode", "upsert"], "--mode upsert requires --key");
    refused(&uri, &["--table", "t", "--key", "a"], "--key applies to --mode upsert");
    refused("x.parquet", &["--key", "a"], "--key applies to --mode upsert into a database");
}
