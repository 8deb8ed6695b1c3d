//! One result from several sources.

use std::io::BufRead;
use std::net::TcpListener;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_schema::DataType;

use crate::calibrate::with_profiles;
use crate::support::*;

/// Writes `union_t.csv` to a new subfolder `name`.
fn table(folder: &Folder, name: &str, text: &str) -> String {
    std::fs::create_dir(folder.file(name)).expect("a folder");
    folder.write(&format!("{name}/union_t.csv"), text)
}

/// Fetches as CSV, and sorts the lines after the header.
#[track_caller]
fn sorted(args: &[&str]) -> Vec<String> {
    let outcome = lightship(&[&["fetch", "--quiet"], args].concat()).succeeds();
    let mut lines: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
    lines[1..].sort_unstable();
    lines
}

#[test]
fn two_halves_give_the_whole_table() {
    let folder = Folder::new();
    let (_, batches) = read_parquet(lineitem().as_ref());
    let (first, second) = batches.split_at(batches.len() / 2);
    let (low, high) = (folder.arg("low.parquet"), folder.arg("high.parquet"));
    write_parquet(low.as_ref(), first.to_vec());
    write_parquet(high.as_ref(), second.to_vec());
    let nodes = [low, high].map(|file| Node::start(&["--table", &format!("lineitem={file}")]));
    let sql = "select * from lineitem order by l_orderkey";
    let (whole, profiles) = (folder.arg("whole.parquet"), folder.arg("profiles"));
    let args = ["--json", "fetch", &nodes[0].uri, sql, "--also", &nodes[1].uri, "-o", &whole];
    // More memory than a single source would need.
    let args = [&args, &["--memory", "256MiB"] as &[_]].concat();
    let report = with_profiles(&profiles, &args).succeeds().json();

    let check = |table: &str| {
        format!(
            "select count(*) as n, sum(l_orderkey * l_linenumber) as keys, sum(l_extendedprice) as price,
             sum(length(l_comment)) as letters, max(l_shipdate) as last from {table}"
        )
    };
    assert_eq!(csv(&whole, &check("whole")), csv(lineitem(), &check("lineitem")));
    // The order within a source is kept.
    let (_, rows) = read_parquet(whole.as_ref());
    let keys = |batches: &[RecordBatch]| -> Vec<i64> {
        let columns =
            batches.iter().map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec());
        columns.flatten().collect()
    };
    let border = *keys(first).last().expect("rows");
    let (low, high): (Vec<i64>, Vec<i64>) =
        keys(&rows).into_iter().filter(|key| *key != border).partition(|key| *key < border);
    for part in [low, high] {
        assert!(!part.is_empty() && part.is_sorted());
    }

    assert_eq!(report["rows"], 60_175);
    assert!(report["plan"].is_null(), "of two plans none is that of the whole: {report}");
    let sources = report["sources"].as_array().expect("the sources");
    let total = |key: &str| sources.iter().map(|source| source[key].as_u64().expect(key)).sum::<u64>();
    for key in ["rows", "bytes_arrow", "bytes_wire"] {
        assert_eq!(report[key].as_u64(), Some(total(key)), "{key}: {report}");
    }
    for (source, (node, half)) in sources.iter().zip(nodes.iter().zip([first, second])) {
        assert_eq!(source["uri"], node.uri);
        assert_eq!(source["rows"].as_u64(), Some(rows_of(half) as u64));
        assert_eq!(source["carrier"], report["carrier"]);
        assert!(source["seconds"].as_f64() <= report["seconds"].as_f64(), "{report}");
        assert!(source["plan"]["window_batches"].is_u64(), "{report}");
        // Each transfer is recorded for its node.
        let history = with_profiles(&profiles, &["--json", "tune", "--history", &node.uri]).succeeds();
        let links: serde_json::Value = serde_json::from_str(history.text()).expect("JSON");
        assert_eq!(links[0]["transfers"], 1, "{history}");
        let fact = &links[0]["facts"][0];
        assert_eq!((&fact["rows"], &fact["ours"]), (&source["rows"], &false.into()), "{history}");
    }
    // With a single source the plan is at the top level.
    let alone = lightship(&["--json", "fetch", &nodes[0].uri, sql, "-o", &whole]).succeeds().json();
    assert_eq!(alone["sources"].as_array().map(Vec::len), Some(1), "{alone}");
    assert_eq!(alone["sources"][0]["rows"], alone["rows"]);
    assert!(alone["plan"].is_object() && alone["sources"][0]["plan"].is_null(), "{alone}");
}

#[test]
fn a_node_a_database_and_a_file_give_one_result() {
    let server = postgres();
    server.psql(
        "create table union_t (a int not null, b text); insert into union_t values (1, 'one'), (2, null)",
    );
    let folder = Folder::new();
    let served = table(&folder, "served", "a,b\n3000000000,three\n");
    let node = Node::start(&["--table", &format!("union_t={served}")]);
    let file = table(&folder, "file", "a,b\n4,four\n5,five\n");
    let sql = "select a, b from union_t";
    let expected = ["a,b", "1,one", "2,", "3000000000,three", "4,four", "5,five"];
    assert_eq!(
        sorted(&[&server.uri(), sql, "--also", &node.uri, "--also", &file]),
        ["a,b", "1,one", "2,", "3000000000,three", "4,four", "5,five"]
    );
    // In any order of sources, the type is the one that holds all values.
    let out = folder.arg("out.parquet");
    let outcome = lightship(&["fetch", &file, sql, "--also", &server.uri(), "--also", &node.uri, "-o", &out])
        .succeeds();
    assert!(outcome.stderr.starts_with("5 rows from 3 sources, "), "{outcome}");
    let (schema, batches) = read_parquet(out.as_ref());
    assert_eq!(schema.field(0).data_type(), &DataType::Int64);
    assert_eq!((rows_of(&batches), sum(&batches, 0)), (5, 3_000_000_012));
    // The same into a table.
    let copied = ["--also", &node.uri, "--also", &file, "--table", "union_copied"];
    lightship(&[&["copy", &server.uri(), sql, &server.uri()], &copied as &[_]].concat()).succeeds();
    assert_eq!(sorted(&[&server.uri(), "select * from union_copied"]), expected);
    // The password is not shown.
    let report =
        lightship(&["--json", "fetch", &file, sql, "--also", &server.uri(), "-o", &out]).succeeds().json();
    let uri = report["sources"][1]["uri"].as_str().expect("a URI");
    assert!(uri.starts_with("postgresql://") && !report.to_string().contains(server.password()), "{report}");
    assert!(report["bytes_wire"].is_null() && report["sources"][1]["carrier"].is_null(), "{report}");
}

#[test]
fn a_source_may_be_empty_or_given_twice() {
    let folder = Folder::new();
    let none = table(&folder, "none", "a,b\n");
    let some = table(&folder, "some", "a,b\n1,x\n2,y\n");
    // A CSV column without values is text, and would make the others text.
    let sql = "select cast(a as bigint) as a, cast(b as varchar) as b from union_t";
    for args in [[&none, sql, "--also", &some], [&some, sql, "--also", &none]] {
        assert_eq!(sorted(&args), ["a,b", "1,x", "2,y"]);
    }
    assert_eq!(sorted(&[&none, sql, "--also", &none]), ["a,b"]);
    assert_eq!(sorted(&[&some, sql, "--also", &some]), ["a,b", "1,x", "1,x", "2,y", "2,y"]);
    let node = Node::start(&["--table", &format!("union_t={some}")]);
    let also = ["--also", &node.uri, "--also", &node.uri];
    let outcome = lightship(&[&["--json", "fetch", &node.uri, sql], &also as &[_]].concat()).succeeds();
    let report = outcome.json();
    assert_eq!(report["rows"], 6);
    for source in report["sources"].as_array().expect("the sources") {
        assert_eq!((&source["uri"], &source["rows"]), (&node.uri.as_str().into(), &2.into()));
    }
}

#[test]
fn an_error_of_one_source_fails_the_fetch() {
    let folder = Folder::new();
    let texts = |last: &'static str| {
        let numbers = (0..100_000).map(|n| n.to_string());
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(numbers.chain([last.to_owned()])));
        RecordBatch::try_from_iter([("a", column)]).expect("a batch")
    };
    let files = [("x", "1"), ("y", "2"), ("z", "none")].map(|(name, last)| {
        std::fs::create_dir(folder.file(name)).expect("a folder");
        let file = folder.file(&format!("{name}/union_t.parquet"));
        write_parquet(&file, [texts(last)]);
        file.display().to_string()
    });
    let [x, y, z] = &files;
    let out = Folder::new();
    let sql = "select cast(a as bigint) as a from union_t";
    let args = ["fetch", x, sql, "--also", y, "--also", z, "-o", &out.arg("all.csv")];
    lightship(&args).fails(DATA, &[&format!("error: {z}: "), "Cannot cast", "none", "(after "]);
    assert_eq!(out.names(), Vec::<String>::new());
    let error = lightship(&[&["--json"], &args as &[_]].concat()).fails(DATA, &[]).json();
    assert_eq!(error["error"]["place"], z.as_str(), "{error}");
    assert!(error["error"]["rows"].is_u64(), "{error}");
}

#[test]
fn a_node_that_is_killed_fails_the_fetch() {
    let mut nodes = [(); 3].map(|()| Node::start(&[]));
    let uris = nodes.each_ref().map(|node| node.uri.clone());
    let folder = Folder::new();
    let also = ["--also", &uris[1], "--also", &uris[2], "-o", &folder.arg("rows.csv")];
    let client = Process::start(&[&["fetch", &uris[0], ENDLESS], &also as &[_]].concat());
    client.half_written(&folder);
    nodes[1].process.kill();
    let outcome = client.end().fails(NETWORK, &[&format!("error: {}: ", uris[1]), "(after "]);
    assert!(!outcome.stderr.contains(&uris[0]) && !outcome.stderr.contains(&uris[2]), "{outcome}");
    assert_eq!(folder.names(), Vec::<String>::new());
    // The other nodes end their connections and are free for other clients.
    for node in [&nodes[0], &nodes[2]] {
        node.process.connections_ended(1);
        node.serves();
    }
}

#[test]
fn sources_with_different_columns_are_refused() {
    let folder = Folder::new();
    let [one, two, less, named, text] = [
        ("one", "a,b\n1,2\n"),
        ("two", "a,b\n3,4\n"),
        ("less", "a\n1\n"),
        ("named", "a,B\n1,2\n"),
        ("text", "a,b\n1,x\n"),
    ]
    .map(|(name, text)| table(&folder, name, text));
    let out = Folder::new();
    let kept = out.write("kept.csv", "as it was\n");
    for (other, words) in [
        (&less, &["2 columns at ", "1 column at ", "hint: list the columns"] as &[&str]),
        (&named, &["column 2 is `b` at ", "`B` at ", "hint: rename it in the SQL"]),
        (&text, &["column 2, `b`, is Int64 at ", "Utf8 at ", "hint: cast it in the SQL", "cast(b as "]),
    ] {
        let outcome = lightship(&[
            "fetch",
            &one,
            "select * from union_t",
            "--also",
            &two,
            "--also",
            other,
            "-o",
            &kept,
        ])
        .fails(DATA, words);
        assert!(outcome.stderr.contains(&one) && outcome.stderr.contains(other.as_str()), "{outcome}");
        assert_eq!(std::fs::read_to_string(&kept).expect("read"), "as it was\n");
        assert_eq!(out.names(), ["kept.csv"]);
    }
    // Following the hint helps.
    let cast = "select a, cast(b as varchar) as b from union_t";
    assert_eq!(sorted(&[&one, cast, "--also", &text]), ["a,b", "1,2", "1,x"]);
}

#[test]
fn a_source_that_can_not_be_queried_is_named_before_any_row_is_written() {
    let server = postgres();
    let folder = Folder::new();
    let good = table(&folder, "good", "a\n1\n");
    let other = folder.write("good/u.csv", "a\n1\n");
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        format!("lightship://{}", listener.local_addr().expect("an address"))
    };
    let wrong = server.uri_as(server.user(), "gu3ssed", "test");
    let node = Node::start(&[]);
    let out = Folder::new();
    let cases: [(&str, i32, &[&str]); 6] = [
        (&closed, NETWORK, &[&format!("error: {closed}: can't reach"), "hint: is a node listening there?"]),
        (&wrong, SOURCE, &["error: postgresql://", "***@", "refused the login"]),
        (&node.uri, SOURCE, &[&format!("error: {}: ", node.uri), "union_t"]),
        (&other, SOURCE, &[&other, "union_t"]),
        ("nowhere.csv", SOURCE, &["error: nowhere.csv: No such file"]),
        ("", USAGE, &["it is empty"]),
    ];
    for (bad, code, words) in cases {
        for (first, second) in [(good.as_str(), bad), (bad, good.as_str())] {
            let file = out.arg("all.csv");
            let args =
                ["fetch", first, "select a from union_t", "--also", second, "--also", &good, "-o", &file];
            let outcome = lightship(&args).fails(code, words);
            assert!(!outcome.stderr.contains("gu3ssed"), "{outcome}");
            assert_eq!(out.names(), Vec::<String>::new());
        }
    }
    // The position in the statement is shown as with a single source.
    lightship(&["fetch", &good, "select aa from union_t", "--also", &good])
        .fails(SOURCE, &["\n  select aa from union_t\n         ^", "hint: "]);
}

#[test]
fn each_source_needs_its_share_of_the_memory() {
    let file = lineitem();
    let sql = "select l_orderkey from lineitem";
    let args = ["fetch", file, sql, "--also", file, "--also", file, "--memory"];
    lightship(&[&args, &["3MiB"] as &[_]].concat()).fails(USAGE, &["--memory must be at least 4MiB"]);
    let node = Node::start(&["--table", &lineitem_table()]);
    // All at once; two at a time; one at a time.
    for (memory, half_of_share) in [("12MiB", 2 << 20), ("11MiB", 11 << 18), ("4MiB", 2 << 20)] {
        let also = ["--also", &node.uri, "--also", file, "--memory", memory];
        let args = [&["--json", "fetch", &node.uri, sql][..], &also].concat();
        let report = lightship(&args).succeeds().json();
        assert_eq!(report["rows"], 3 * 60_175);
        for source in &report["sources"].as_array().expect("the sources")[..2] {
            assert!(source["plan"]["memory_bytes"].as_u64() <= Some(half_of_share), "{report}");
        }
    }
}

#[test]
fn an_endless_source_does_not_starve_the_others() {
    let server = postgres();
    server.psql("create view union_endless as select generate_series(1, 1000000000000) as n");
    let folder = Folder::new();
    let file = folder.write("union_endless.csv", "n\n-1\n-2\n-3\n");
    let sql = "select n from union_endless";
    let mut client = Process::start(&["fetch", &server.uri(), sql, "--also", &file, "--memory", "8MiB"]);
    let mut rows = client.stuck_in_rows();
    let negative = (&mut rows).lines().map_while(Result::ok).filter(|line| line.starts_with('-'));
    assert_eq!(negative.take(3).collect::<Vec<_>>(), ["-1", "-2", "-3"]);
    // The end of one source does not end the other.
    assert!(rows.lines().take(100_000).map_while(Result::ok).count() == 100_000);
    assert_eq!(client.end().succeeds().stderr, "");
}

#[test]
fn more_sources_than_the_memory_has_shares_for_are_read_a_few_at_a_time() {
    let folder = Folder::new();
    let file = table(&folder, "x", "a,b\n1,x\n2,y\n");
    let node = Node::start(&["--table", &format!("union_t={file}")]);
    let sql = "select a, b from union_t";
    // Two of 4 MiB at a time.
    let memory = ["--memory", "8MiB"];
    let also: Vec<&str> = (0..20).flat_map(|n| ["--also", [&node.uri, &file][n % 2].as_str()]).collect();
    let lines = sorted(&[&[file.as_str(), sql][..], &memory, &also].concat());
    let expected = ["1,x", "2,y"].map(|line| vec![line; 21]).concat();
    assert_eq!(lines, [vec!["a,b"], expected].concat());

    // The last one has other columns, which is known before the first row.
    let other = table(&folder, "y", "a,c\n1,x\n");
    let out = folder.arg("rows.csv");
    let last = ["--also", &other, "-o", &out];
    let outcome =
        lightship(&[&["fetch", &file, "select * from union_t"][..], &memory, &also, &last].concat());
    outcome.fails(DATA, &["column 2 is `b`", "`c`"]);
    assert!(!std::path::Path::new(&out).exists());
}
