//! The options of a node.

use crate::support::*;

#[test]
fn a_node_reports_what_it_serves() {
    let folder = Folder::new();
    folder.write("small.csv", "a,b\n1,x\n2,y\n");
    folder.write(".hidden.csv", "a\n1\n");
    std::fs::create_dir(folder.file("parts")).expect("a folder");
    folder.write("parts/1.csv", "n\n1\n");
    folder.write("parts/2.csv", "n\n2\n");
    let node = Node::start(&["--data", &folder.arg("."), "--table", &lineitem_table(), "--in-memory"]);
    let tables: Vec<_> = node.ready["tables"].as_array().expect("tables").clone();
    let found: Vec<_> = tables
        .iter()
        .map(|t| (t["name"].as_str().unwrap_or(""), t["columns"].as_u64(), t["rows"].as_u64()))
        .collect();
    assert_eq!(
        found,
        [("lineitem", Some(16), Some(60_175)), ("parts", Some(1), Some(2)), ("small", Some(2), Some(2))]
    );
    assert!(tables[0]["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20));
    assert_eq!(csv(&node.uri, "select sum(n) as n from parts"), "n\n3\n");
    assert_eq!(csv(&node.uri, "select b from small where a = 2"), "b\ny\n");
    let listed = csv(
        &node.uri,
        "select table_name from information_schema.tables where table_schema = 'public' order by 1",
    );
    assert_eq!(listed, "table_name\nlineitem\nparts\nsmall\n");

    // The same as text.
    let mut process = Process::start(&["node", "--listen", "127.0.0.1:0", "--table", &lineitem_table()]);
    process.says("table lineitem: 16 columns\n");
    process.says("listening on lightship://127.0.0.1:");
    assert_eq!(process.memory_bytes("VmSwap:"), 0);
    process.kill();
    let process = Process::start(&["node", "--listen", "127.0.0.1:0"]);
    process.says("no tables: add some with --table NAME=PATH, --data DIR or --range-data DIR");
}

#[test]
fn a_node_raises_its_limit_of_open_files() {
    let args = ["node", "--listen", "127.0.0.1:0"];
    let process = Process::start_under("ulimit -Sn 64", &args);
    process.says("listening on");
    let [now, most] = process.files_max();
    assert_eq!(now, most);

    // If the limit is too low, the node warns, and starts anyway.
    let process = Process::start_under("ulimit -n 300", &args);
    process.says("may open 300 files and sockets, but needs up to 1408");
    process.says("listening on");
    let process = Process::start_under("ulimit -n 300", &[&args[..], &["--connections-max", "20"]].concat());
    process.says("listening on");
    process.signal("TERM");
    assert!(!process.end().stderr.contains("files and sockets"));
}

#[test]
fn a_table_that_does_not_fit_in_memory_is_refused() {
    let table = lineitem_table();
    let args = ["node", "--listen", "127.0.0.1:0", "--in-memory", "--table", &table, "--table-memory"];
    lightship(&[&args as &[_], &["1MiB"]].concat())
        .fails(LIMITS, &["table lineitem", "does not fit the 1048576 bytes left for tables in memory"]);
    let node = Node::start(&["--in-memory", "--table", &table, "--table-memory", "64MiB"]);
    assert_eq!(csv(&node.uri, "select count(*) as rows from lineitem"), "rows\n60175\n");
}

#[test]
fn a_query_beyond_the_memory_spills_or_fails() {
    let folder = Folder::new();
    std::fs::create_dir(folder.file("spill")).expect("a folder");
    let spill = folder.arg("spill");
    let table = lineitem_table();
    let node = Node::start(&[
        "--table",
        &table,
        "--query-memory",
        "1MiB",
        "--partitions",
        "1",
        "--spill-folder",
        &spill,
    ]);
    let sql = "select count(distinct l_comment) as n, count(distinct l_extendedprice) as m from lineitem";
    let outcome = node.fetch(&[sql]);
    if outcome.code != Some(0) {
        outcome.fails(LIMITS, &["error: ", "emory"]);
    }
    node.serves();
    // A sort spills to disk instead, and removes its files.
    let roomy = Node::start(&[
        "--table",
        &table,
        "--query-memory",
        "32MiB",
        "--partitions",
        "1",
        "--spill-folder",
        &spill,
    ]);
    let sorted = roomy
        .fetch(&[
            "select lineitem.* from range(1, 5), lineitem order by l_comment",
            "--format",
            "stream",
            "--quiet",
        ])
        .succeeds();
    assert_eq!(rows_of(&read_arrow_stream(&sorted.stdout).1), 4 * 60_175);
    until("the spilled files are gone", || {
        let mut left = vec![folder.file("spill")];
        let mut files = 0;
        while let Some(path) = left.pop() {
            for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.path().is_dir() { left.push(entry.path()) } else { files += 1 }
            }
        }
        files == 0
    });
}

#[test]
fn every_option_can_be_set_in_the_file() {
    let folder = Folder::new();
    std::fs::create_dir(folder.file("data")).expect("a folder");
    std::fs::create_dir(folder.file("spill")).expect("a folder");
    folder.write("data/small.csv", "a\n1\n2\n");
    let tokens = folder.write("tokens", "from-file\n");
    let config = folder.write(
        "node.toml",
        format!(
            "listen = [\"127.0.0.1:0\"]\ntable = [\"{}\"]\ndata = \"{}\"\nin-memory = true\ntable-memory = \"64MiB\"\n\
             query-memory = 67108864\nspill-folder = \"{}\"\npartitions = 2\nconnections-max = 1\nqueue-timeout = 0\nstall-timeout = \"never\"\n\
             token = [\"typed\"]\ntoken-file = \"{tokens}\"\ninsecure = true\n",
            lineitem_table(),
            folder.arg("data"),
            folder.arg("spill"),
        ),
    );
    let node = Node::start(&["--config", &config]);
    let tables = node.ready["tables"].as_array().expect("tables");
    let names: Vec<_> = tables.iter().filter_map(|table| table["name"].as_str()).collect();
    assert_eq!(names, ["lineitem", "small"]);
    assert!(tables.iter().all(|table| table["rows"].is_u64()), "in memory: {tables:?}");
    for token in ["typed", "from-file"] {
        let uri = node.uri.replace("lightship://", &format!("lightship://{token}@"));
        assert_eq!(csv(&uri, "select sum(a) as a from small"), "a\n3\n");
    }
    node.fetch(&["select 1"]).fails(SOURCE, &["a token is needed"]);
    let uri = node.uri.replace("lightship://", "lightship://typed@");
    let mut only = Process::start(&["fetch", &uri, ENDLESS]);
    let _rows = only.stuck_in_rows();
    lightship(&["fetch", &uri, "select 1"]).fails(NETWORK, &["all 1 connections of the node are taken"]);

    // Options of the command line override the file; tables are added.
    let more = format!("more={}", folder.arg("data/small.csv"));
    let node =
        Node::start(&["--config", &config, "--token", "other", "--table", &more, "--connections-max", "5"]);
    let uri = |token| node.uri.replace("lightship://", &format!("lightship://{token}@"));
    let mut first = Process::start(&["fetch", &uri("other"), ENDLESS]);
    let _rows = first.stuck_in_rows();
    assert_eq!(csv(&uri("other"), "select count(*) as n from more"), "n\n2\n");
    lightship(&["fetch", &uri("typed"), "select 1"]).fails(SOURCE, &["the token is not known"]);
}

#[test]
fn errors_in_the_file_are_named() {
    let folder = Folder::new();
    for (text, words) in [
        ("lissten = [\"127.0.0.1:0\"]", &["node.toml", "lissten", "listen"] as &[&str]),
        ("partitions = \"many\"", &["node.toml", "partitions"]),
        ("query-memory = \"much\"", &["node.toml", "`much` is not a size (example: 64MiB)"]),
        ("listen = ", &["node.toml", "line 1"]),
        ("config = \"other.toml\"", &["node.toml", "config"]),
    ] {
        let config = folder.write("node.toml", text);
        lightship(&["node", "--config", &config]).fails(USAGE, words);
    }
}

#[test]
fn an_address_that_can_not_be_used_is_named() {
    let node = Node::start(&[]);
    lightship(&["node", "--listen", node.address()]).fails(NETWORK, &["can't", node.address(), "in use"]);
    lightship(&["node", "--listen", "192.0.2.1:0", "--insecure"]).fails(NETWORK, &["192.0.2.1"]);
}

#[test]
fn an_address_in_use_is_an_error_with_a_hint() {
    let node = Node::start(&[]);
    let taken = node.address();
    let hint = "hint: another process listens there";
    lightship(&["node", "--listen", taken]).fails(
        NETWORK,
        &["can't listen on lightship://127.0.0.1:", "the address is in use", hint, "--listen"],
    );
    let overlay = ["--advertise", "127.0.0.1:0", "--overlay-listen", taken];
    lightship(&[&["node", "--listen", "127.0.0.1:0"], &overlay[..]].concat())
        .fails(NETWORK, &["can't listen on 127.0.0.1:", "--overlay-listen", hint]);
    node.serves();
}

#[test]
fn a_client_that_takes_no_rows_loses_its_result() {
    let node = Node::start(&["--stall-timeout", "500ms"]);
    let mut client = Process::start(&["fetch", &node.uri, ENDLESS]);
    let mut rows = client.stuck_in_rows();
    node.process.says("took no rows of the result for 0.5 seconds");
    std::io::Read::read_to_end(&mut rows, &mut Vec::new()).expect("a pipe");
    client.end().fails(
        LIMITS,
        &["took no rows of the result", "hint: read rows without such pauses", "--stall-timeout"],
    );
    node.serves();
    lightship(&["node", "--stall-timeout", "15"]).fails(USAGE, &["--stall-timeout", "is not a time"]);
}
