//! Results: their shapes, sizes and formats.

use std::process::Stdio;

use serde_json::json;

use crate::support::*;

#[test]
fn every_format_is_the_same_in_a_file_and_on_stdout() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let sql = "select l_orderkey, l_quantity, l_comment from lineitem where l_orderkey < 1000 order by 1, 3";
    let folder = Folder::new();
    let mut lines = Vec::new();
    for (name, format) in [
        ("a.arrow", "arrow"),
        ("a.arrows", "stream"),
        ("a.parquet", "parquet"),
        ("a.csv", "csv"),
        ("a.json", "json"),
    ] {
        let outcome = lightship(&["--json", "fetch", &node.uri, sql, "-o", &folder.arg(name)]).succeeds();
        let written = std::fs::metadata(folder.file(name)).expect("the file is there").len();
        assert_eq!(outcome.json()["bytes_written"], written, "{name}");
        lines.push(outcome.json()["rows"].as_u64().expect("rows"));
        // The same through a pipe.
        let piped = node.fetch(&[sql, "--quiet", "-o", "-", "--format", format]).succeeds();
        let file = std::fs::read(folder.file(name)).expect("read");
        assert!(piped.stdout == file, "{name} differs from what goes to stdout");
        // The file can be read, and has the same rows.
        if format != "json" {
            let again = "select count(*) as rows, sum(l_orderkey) as keys from a";
            assert_eq!(
                csv(&folder.arg(name), again),
                csv(
                    &node.uri,
                    "select count(*) as rows, sum(l_orderkey) as keys from lineitem where l_orderkey < 1000"
                ),
                "{name}"
            );
        }
    }
    let (_, batches) = read_parquet(&folder.file("a.parquet"));
    assert_eq!(lines, vec![rows_of(&batches) as u64; 5]);
    assert_eq!(folder.names().len(), 5, "{:?}", folder.names());

    let table = node.fetch(&[sql, "--format", "table", "--table-rows", "3"]).succeeds();
    assert!(table.text().contains("l_orderkey") && table.text().lines().count() < 12, "{table}");
}

#[test]
fn text_formats_quote_values_and_show_nulls() {
    let node = Node::start(&[]);
    let sql = "select 1 as n, 'a \"b\", c' as t, null as z, '' as e, true as b
               union all select 2, 'x', null, null, false order by n";
    assert_eq!(csv(&node.uri, sql), "n,t,z,e,b\n1,\"a \"\"b\"\", c\",,\"\",true\n2,x,,,false\n");
    let rows = lightship(&["--json", "fetch", &node.uri, sql]).succeeds();
    let rows: Vec<serde_json::Value> =
        rows.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(
        rows,
        [
            json!({"n": 1, "t": "a \"b\", c", "z": null, "e": "", "b": true}),
            json!({"n": 2, "t": "x", "z": null, "e": null, "b": false}),
        ]
    );
}

#[test]
fn results_without_rows_have_their_columns() {
    let node = Node::start(&["--table", &lineitem_table()]);
    postgres().psql("create table fetch_empty (a int, b text)");
    let folder = Folder::new();
    for (uri, sql) in [
        (node.uri.clone(), "select l_orderkey as a, l_comment as b from lineitem where l_orderkey < 0"),
        (postgres().uri(), "select a, b from fetch_empty"),
    ] {
        assert_eq!(csv(&uri, sql), "a,b\n");
        for name in ["e.parquet", "e.arrow", "e.arrows", "e.json"] {
            let path = folder.arg(name);
            let outcome = lightship(&["--json", "fetch", &uri, sql, "-o", &path]).succeeds();
            assert_eq!(outcome.json()["rows"], 0, "{name}");
        }
        assert_eq!(read_parquet(&folder.file("e.parquet")).0.fields().len(), 2);
        assert_eq!(read_arrow_file(&folder.file("e.arrow")).0.fields().len(), 2);
        assert_eq!(std::fs::read(folder.file("e.json")).expect("read"), b"");
    }
}

#[test]
fn rows_without_columns_are_still_rows() {
    postgres().psql("create table fetch_rows (a int); insert into fetch_rows select generate_series(1, 7)");
    let uri = postgres().uri();
    let sql = "select from fetch_rows";
    let outcome = lightship(&["--json", "fetch", &uri, sql, "--format", "stream"]).succeeds();
    assert_eq!(outcome.json()["rows"], 7);
    let (schema, batches) = read_arrow_stream(&outcome.stdout);
    assert_eq!((schema.fields().len(), rows_of(&batches)), (0, 7));
    assert_eq!(lightship(&["fetch", &uri, sql, "--format", "json"]).succeeds().text(), "{}\n".repeat(7));
    lightship(&["fetch", &uri, sql, "--format", "parquet"])
        .fails(USAGE, &["Parquet can't hold rows without columns", "arrow or json"]);
}

#[test]
fn columns_of_the_same_name_are_refused_or_renamed() {
    let uri = postgres().uri();
    let sql = "select 1 as a, 2 as a";
    for format in ["csv", "json", "stream", "arrow", "parquet"] {
        lightship(&["fetch", &uri, sql, "--format", format]).fails(USAGE, &["both named `a`", "hint: "]);
    }
    let renamed = lightship(&["fetch", "--quiet", &uri, sql, "--duplicate-columns", "rename"]).succeeds();
    assert_eq!(renamed.text(), "a,a_2\n1,2\n");
    // Nodes and files return them, too.
    let node = Node::start(&[]);
    node.fetch(&[sql]).fails(USAGE, &["both named `a`", "hint: ", "--duplicate-columns rename"]);
    let renamed = node.fetch(&["--quiet", sql, "--duplicate-columns", "rename"]).succeeds();
    assert_eq!(renamed.text(), "a,a_2\n1,2\n");
    let folder = Folder::new();
    let file = folder.write("t.csv", "a,b\n1,2\n");
    for (sql, expected) in [
        ("select a, t.a, b as a from t", "a,a_2,a_3\n1,1,2\n"),
        ("select *, a from t order by a", "a,b,a_2\n1,2,1\n"),
        ("select a, a from t union all select b, b from t order by 1", "a,a_2\n1,1\n2,2\n"),
        ("select a, count(*) as a from t group by a having count(*) > 0", "a,a_2\n1,1\n"),
    ] {
        let args = ["fetch", "--quiet", &file, sql, "--duplicate-columns", "rename"];
        assert_eq!(lightship(&args).succeeds().text(), expected, "{sql}");
    }
    // An expression without a name can't be repeated.
    lightship(&["fetch", &file, "select sum(a), sum(a) from t"])
        .fails(SOURCE, &["unique", "hint: name one of the columns", "`select a, a as a_2`"]);
}

#[test]
fn a_row_over_the_limit_says_what_it_needs() {
    let node = Node::start(&[]);
    let sql = "select repeat('x', 3000000) as wide";
    let narrow = ["--message-bytes", "64KiB", "--message-bytes-max", "1MiB"];
    node.fetch(&[&[sql], &narrow as &[_]].concat()).fails(
        LIMITS,
        &["row 0 alone needs a message of 30000", "at most 1048576", "hint:", "--message-bytes-max"],
    );
    let error =
        lightship(&[&["--json", "fetch", &node.uri, sql], &narrow as &[_]].concat()).fails(LIMITS, &[]);
    let needed = error.json()["error"]["needed_bytes"].as_u64().expect("how many");
    assert!((3_000_000..3_100_000).contains(&needed), "{needed}");
    // Following the hint helps.
    let needed = needed.to_string();
    let wide =
        node.fetch(&[sql, "--quiet", "--message-bytes", "64KiB", "--message-bytes-max", &needed]).succeeds();
    assert_eq!(wide.stdout.len(), "wide\n".len() + 3_000_001);
    assert_eq!(csv(&node.uri, sql).len(), wide.stdout.len());
    // Earlier rows belong to a failed result: no file is left.
    let folder = Folder::new();
    let late =
        "select repeat('x', case when value < 200000 then 10 else 3000000 end) as wide from range(1, 200002)";
    node.fetch(&[&[late, "-o", &folder.arg("late.csv")], &narrow as &[_]].concat())
        .fails(LIMITS, &["alone needs a message of 3000", "(after "]);
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn every_codec_and_plan_gives_the_same_rows() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let sql = "select * from lineitem";
    let expected = read_parquet(lineitem().as_ref()).1;
    for plan in [
        &["--codec", "none"] as &[&str],
        &["--codec", "light"],
        &["--codec", "light+lz4"],
        &["--codec", "light+zstd"],
        &["--batch-rows", "1000", "--window", "1"],
        &["--batch-rows", "7001", "--message-bytes", "4KiB", "--window", "64"],
        &["--message-bytes", "16MiB", "--window", "2", "--memory", "128MiB"],
        &["--memory", "4MiB"],
    ] {
        let args = [&["--json", "fetch", &node.uri, sql, "--format", "stream"], plan].concat();
        let outcome = lightship(&args).succeeds();
        let (schema, batches) = read_arrow_stream(&outcome.stdout);
        let types = |batch: &arrow_array::RecordBatch| -> Vec<_> {
            batch.columns().iter().map(|column| arrow_array::Array::data_type(column).clone()).collect()
        };
        assert_eq!(
            schema.fields().iter().map(|f| f.data_type().clone()).collect::<Vec<_>>(),
            types(&expected[0])
        );
        assert_eq!(
            (rows_of(&batches), sum(&batches, 0)),
            (rows_of(&expected), sum(&expected, 0)),
            "{plan:?}"
        );
        let report = outcome.json();
        if plan[1].starts_with("light") {
            let (wire, arrow) = (&report["bytes_wire"], &report["bytes_arrow"]);
            assert!(wire.as_u64() < arrow.as_u64(), "{plan:?}: {wire} of {arrow}");
        }
    }
}

#[test]
fn the_report_has_the_plan_and_the_figures() {
    let node = Node::start(&["--table", &lineitem_table()]);
    let folder = Folder::new();
    let (file, stats) = (folder.arg("rows.parquet"), folder.arg("stats.json"));
    let outcome = node.fetch(&["select * from lineitem", "-o", &file, "--stats", &stats]).succeeds();
    assert!(outcome.stderr.starts_with("60,175 rows, "), "{outcome}");
    let text = std::fs::read_to_string(&stats).expect("the statistics");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    for key in [
        "/rows",
        "/bytes_arrow",
        "/bytes_wire",
        "/bytes_written",
        "/seconds",
        "/rows_per_second",
        "/peak_memory_bytes",
        "/plan/batch_bytes",
        "/plan/message_bytes",
        "/plan/message_bytes_max",
        "/plan/window_batches",
        "/plan/streams",
        "/plan/memory_bytes",
    ] {
        assert!(
            report.pointer(key).and_then(serde_json::Value::as_f64).is_some_and(|n| n > 0.0),
            "{key}: {text}"
        );
    }
    for stage in ["produce", "encode", "send", "wait", "receive", "consume"] {
        assert!(report["stages"][stage].is_f64(), "{stage}: {text}");
    }
    assert_eq!(report["rows"], 60_175);
    assert_eq!(report["plan"]["codec"], "none", "both ends are on this host");
    assert!(report["retunes"].is_array());
    // A database is read directly: there is no plan and no wire.
    lightship(&["fetch", &postgres().uri(), "select 1", "--stats", &stats]).succeeds();
    let text = std::fs::read_to_string(&stats).expect("the statistics");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert!(report["rows"] == 1 && report["bytes_wire"].is_null() && report["plan"].is_null(), "{text}");
}

#[test]
fn files_and_folders_are_tables_named_after_them() {
    let folder = Folder::new();
    std::fs::create_dir(folder.file("sales")).expect("a folder");
    let sales = folder.file("sales");
    std::fs::write(sales.join("a.csv"), "region,amount\nnorth,1\nsouth,2\n").expect("written");
    std::fs::write(sales.join("b.csv"), "region,amount\nnorth,3\n").expect("written");
    let sql = "select region, sum(amount) as total from sales group by region order by region";
    assert_eq!(csv(&folder.arg("sales"), sql), "region,total\nnorth,4\nsouth,2\n");
    let one = format!("file://{}", sales.join("b.csv").display());
    assert_eq!(csv(&one, "select amount from b"), "amount\n3\n");
    // Names with characters that are special in a shell or a URL.
    for name in ["a[1]", "b 100%", "c?", "d*", "e#1", "f%20g", "Ünder"] {
        let file = folder.write(&format!("{name}.csv"), "x\n1\n");
        folder.write(&format!("{}z.csv", &name.chars().take(1).collect::<String>()), "x\n2\n");
        let table: String =
            name.to_lowercase().chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        assert_eq!(csv(&file, &format!("select x from \"{table}\"")), "x\n1\n", "{name}");
    }
    let odd = folder.write("2024 Über-Sicht.json", "{\"a\":1}\n{\"a\":2}\n");
    assert_eq!(csv(&odd, "select sum(a) as a from \"_2024_über_sicht\""), "a\n3\n");
}

#[test]
fn queries_come_from_a_file_or_standard_input() {
    let folder = Folder::new();
    folder.write("t.csv", "n\n1\n2\n3\n");
    let (uri, sql) = (folder.arg("t.csv"), "\u{feff}select sum(n) as s -- of all\nfrom t\n");
    let file = folder.write("q.sql", sql);
    let from_file = lightship(&["fetch", "--quiet", "--format", "csv", &uri, "-f", &file]).succeeds();
    assert_eq!(from_file.text(), "s\n6\n");
    let stdin = || Stdio::from(std::fs::File::open(&file).expect("the file"));
    for args in [["-"].as_slice(), &["--file", "-"]] {
        let args = [&["fetch", "--quiet", "--format", "csv", &uri], args].concat();
        let piped = Process::start_with(&args, |command| command.stdin(stdin())).end().succeeds();
        assert_eq!(piped.text(), "s\n6\n");
    }
    // The query stands between source and destination.
    let out = folder.arg("out.csv");
    lightship(&["copy", "--quiet", &uri, "--file", &file, &out]).succeeds();
    assert_eq!(std::fs::read_to_string(folder.file("out.csv")).expect("written"), "s\n6\n");
    lightship(&["copy", "--quiet", &uri, "select 7 as s", &out]).succeeds();
    assert_eq!(std::fs::read_to_string(folder.file("out.csv")).expect("written"), "s\n7\n");

    lightship(&["fetch", &uri]).fails(USAGE, &["no query", "--file"]);
    lightship(&["copy", &uri, &out]).fails(USAGE, &["no query", "--file"]);
    lightship(&["fetch", &uri, "select 1", "-f", &file]).fails(USAGE, &["cannot be used with"]);
    lightship(&["fetch", &uri, "-f", &folder.arg("none.sql")])
        .fails(USAGE, &["--file ", "none.sql", "No such file"]);
    lightship(&["copy", &uri, "--file", &folder.arg("."), &out]).fails(USAGE, &["--file ", "directory"]);
    std::fs::write(folder.file("latin.sql"), b"select '\xe9'").expect("written");
    lightship(&["fetch", &uri, "-f", &folder.arg("latin.sql")]).fails(USAGE, &["latin.sql", "UTF-8"]);
    // Nothing on standard input is an empty query.
    lightship(&["fetch", &uri, "-"]).fails(SOURCE, &["the statement is empty"]);
}

#[test]
fn parameters_are_given_as_text() {
    let node = Node::start(&[]);
    let folder = Folder::new();
    let file = folder.arg("t.csv");
    std::fs::write(folder.file("t.csv"), "n,day,name\n1,2024-02-28,one\n2,2024-02-29,two\n")
        .expect("written");
    for (args, expected) in [
        (vec!["select name from t where n = ?", "-p", "2"], "name\ntwo\n"),
        (
            vec!["select n from t where day = $2 and name <> $1", "-p", "one", "--param", "2024-02-29"],
            "n\n2\n",
        ),
        (vec!["select count(*) as n from t where name = ?", "-p", "' or 1 = 1 --"], "n\n0\n"),
        (vec!["select n from t where n > ? and n < 2", "-p", "-1"], "n\n1\n"),
    ] {
        let args = [vec!["fetch", &file, "--quiet"], args].concat();
        assert_eq!(lightship(&args).succeeds().text(), expected, "{args:?}");
    }
    let sql = "select cast($1 as bigint) + 1 as n";
    assert_eq!(node.fetch(&[sql, "--quiet", "-p", "41"]).succeeds().text(), "n\n42\n");
    node.fetch(&[sql, "-p", "x"]).fails(SOURCE, &["parameter $1: "]);
    node.fetch(&[sql, "-p", "1", "-p", "2"]).fails(SOURCE, &["the statement has 1 parameter"]);
    node.fetch(&[sql]).fails(SOURCE, &["no value for parameter $1"]);
}
