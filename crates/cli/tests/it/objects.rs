//! Objects of S3 as sources, tables and destinations, at a real server.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use lightship_testkit::s3::{ACCESS_KEY, S3, SECRET_KEY};

use crate::support::*;

/// One server for all tests, which use different buckets.
fn server() -> &'static S3 {
    static SERVER: LazyLock<S3> = LazyLock::new(S3::start);
    &SERVER
}

/// Hides the settings of whoever runs the tests.
pub(crate) fn without_credentials(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("HOME", "/nonexistent")
}

fn as_tester(command: &mut Command) -> &mut Command {
    without_credentials(command).envs(server().environment())
}

/// Runs the command with the credentials of the server's user.
fn with_s3(args: &[&str]) -> Outcome {
    Process::start_with(args, as_tester).end()
}

#[track_caller]
fn fetched(uri: &str, sql: &str) -> String {
    with_s3(&["fetch", "--quiet", uri, sql]).succeeds().text().to_owned()
}

fn node(args: &[&str]) -> Node {
    Node::start_with(args, as_tester).unwrap_or_else(|outcome| panic!("the node did not start: {outcome}"))
}

/// Sums that differ if any row is lost, repeated or changed.
const SUMS: &str = "select count(*) as rows, sum(l_orderkey) as keys, sum(l_quantity * l_linenumber) as numbers, \
                    min(l_comment) as first, max(l_comment) as last from lineitem";

#[test]
fn all_formats_are_written_and_read() {
    let (folder, bucket) = (Folder::new(), server().bucket("formats"));
    let expected = csv(lineitem(), SUMS);
    for extension in ["parquet", "csv", "jsonl", "arrow", "arrows"] {
        let name = format!("lineitem.{extension}");
        let (local, remote) = (folder.arg(&name), format!("s3://formats/a b/{name}"));
        let sql = "select l_orderkey, l_linenumber, l_quantity, l_comment from lineitem order by 1, 2";
        lightship(&["fetch", "--quiet", lineitem(), sql, "-o", &local]).succeeds();
        with_s3(&["fetch", "--quiet", lineitem(), sql, "-o", &remote]).succeeds();
        let uploaded = std::fs::read(bucket.join("a b").join(&name)).expect("an object");
        assert!(uploaded == std::fs::read(&local).expect("a file"), "{name}");
        assert_eq!(fetched(&remote, SUMS), csv(&local, SUMS), "{name}");
        if extension == "parquet" {
            assert_eq!(fetched(&remote, SUMS), expected);
        }
    }
}

#[test]
fn an_upload_in_parts_is_the_file() {
    let (folder, bucket) = (Folder::new(), server().bucket("parts"));
    let sql = "select value, value * 7 as seven, 'some text to fill the parts' as text from \
               generate_series(1, 500000) order by value";
    let node = Node::start(&[]);
    let local = folder.arg("x.csv");
    node.fetch(&["--quiet", sql, "-o", &local]).succeeds();
    with_s3(&["fetch", "--quiet", &node.uri, sql, "-o", "s3://parts/x.csv"]).succeeds();
    let expected = std::fs::read(&local).expect("a file");
    assert!(expected.len() > 3 * (5 << 20), "{} bytes are not many parts", expected.len());
    assert!(std::fs::read(bucket.join("x.csv")).expect("an object") == expected);
    // An existing object is replaced.
    with_s3(&["copy", &node.uri, "select 1 as one", "s3://parts/x.csv"]).succeeds();
    assert_eq!(std::fs::read_to_string(bucket.join("x.csv")).expect("an object"), "one\n1\n");
}

#[test]
fn objects_take_the_options_of_files() {
    let (folder, bucket) = (Folder::new(), server().bucket("options"));
    let lines = folder.write("plain.jsonl", "{\"n\": 1, \"x\": \"a\"}\n{\"n\": 2, \"x\": \"b\"}\n");
    let compressed = folder.arg("lines.jsonl.zst");
    lightship(&["copy", "--quiet", &lines, "select * from plain", &compressed]).succeeds();
    let zst = std::fs::read(compressed).expect("a file");
    for (name, bytes) in [
        ("semicolons.csv", &b"n;x\n1;a\n2;b\n"[..]),
        ("latin.csv", b"n,x\n1,\xe9\n"),
        ("array.json", b"[{\"n\": 1, \"x\": \"a\"}, {\"n\": 2, \"x\": \"b\"}]"),
        ("lines.jsonl.zst", &zst),
        ("lines.data", &zst),
        ("tabs.tsv", b"n\tx\n1\ta\n2\tb\n"),
        ("bare.txt", b"1|a\n2|b\n"),
        ("zeros.csv", b"n,x\n01,a\n02,NA\n"),
        ("many/a.dat", b"n;x\n1;a\n"),
        ("many/b.dat", b"n;x\n2;b\n"),
    ] {
        let path = bucket.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("written");
    }
    let rows = "n,x\n1,a\n2,b\n";
    for (uri, table) in [
        ("semicolons.csv?delimiter=;", "semicolons"),
        ("array.json", "array"),
        ("lines.jsonl.zst", "lines"),
        ("lines.data", "lines"),
        ("tabs.tsv", "tabs"),
        ("many?format=csv&delimiter=;", "many"),
        ("many/*.dat?format=csv&delimiter=;", "many"),
    ] {
        let sql = format!("select n, x from {table} order by n");
        assert_eq!(fetched(&format!("s3://options/{uri}"), &sql), rows, "{uri}");
    }
    let sql = "select column_1 as n, column_2 as x from bare order by n";
    assert_eq!(fetched("s3://options/bare.txt?header=false&delimiter=|", sql), rows);
    assert_eq!(fetched("s3://options/latin.csv?encoding=latin1", "select x from latin"), "x\n\u{e9}\n");
    let zeros = "select n, x is null as missing from zeros order by n";
    let expected = "n,missing\n01,false\n02,true\n";
    assert_eq!(fetched("s3://options/zeros.csv?types=n=text&null=NA", zeros), expected);
    // Flags apply to objects too; options of the location take precedence.
    let flags = ["--quiet", "--null", "NA", "--all-text", "--delimiter", ";"];
    let with_flags =
        |uri: &str| with_s3(&[&["fetch"], &flags[..], &[uri, zeros]].concat()).succeeds().text().to_owned();
    assert_eq!(with_flags("s3://options/zeros.csv?delimiter=,"), expected);
    with_s3(&[&["fetch"], &flags[..], &["s3://options/zeros.csv", zeros]].concat())
        .fails(SOURCE, &["column 'n' not found"]);
    // Several objects and files in one query.
    let local = folder.write("people.csv", "n,name\n2,Ada\n");
    let outcome = with_s3(&[
        "fetch",
        "--quiet",
        "--table",
        &format!("p={local}"),
        "--table",
        "s=s3://options/semicolons.csv?delimiter=;",
        "select name, x from p join s using (n)",
    ]);
    assert_eq!(outcome.succeeds().text(), "name,x\nAda,b\n");
    let served = node(&["--table", "s=s3://options/semicolons.csv?delimiter=;"]);
    assert_eq!(csv(&served.uri, "select n, x from s order by n"), rows);
    for (uri, words) in [
        ("s3://options/semicolons.csv?delimiter=ab", "delimiter"),
        ("s3://options/semicolons.csv?colour=red", "unknown option `colour`"),
        ("s3://options/array.json?format=orc", "format"),
    ] {
        let outcome = with_s3(&["fetch", uri, "select 1"]);
        assert!(matches!(outcome.code, Some(USAGE | SOURCE)) && outcome.stderr.contains(words), "{outcome}");
    }
}

#[test]
fn objects_are_written_with_the_options_of_files() {
    let bucket = server().bucket("written");
    let sql = "select value as n, case when value = 2 then null else 'a' end as x from generate_series(1, 2) order by 1";
    let source = Node::start(&[]);
    let copy = |name: &str| {
        with_s3(&["copy", "--quiet", &source.uri, sql, &format!("s3://written/{name}")]).succeeds();
        std::fs::read(bucket.join(name.split('?').next().unwrap_or(name))).expect("an object")
    };
    assert_eq!(copy("x.csv?delimiter=;&null=NA"), b"n;x\n1;a\n2;NA\n");
    assert_eq!(copy("x.tsv?header=false"), b"1\ta\n2\t\n");
    let zst = copy("x.jsonl.zst");
    assert_eq!(zst[..4], [0x28, 0xb5, 0x2f, 0xfd]);
    assert_eq!(fetched("s3://written/x.jsonl.zst", "select count(x) as x from x"), "x\n1\n");
    for (mode, hint) in [
        ("append", "with a pattern"),
        ("create", "hint: "),
        ("existing", "hint: "),
        ("truncate", "hint: "),
        ("upsert", "copy into a database"),
    ] {
        let before = std::fs::read(bucket.join("x.tsv")).expect("an object");
        let outcome = with_s3(&["copy", &source.uri, "select 1 as n", "s3://written/x.tsv", "--mode", mode]);
        outcome.fails(USAGE, &[&format!("--mode {mode} does not apply to s3://written/x.tsv"), hint]);
        assert_eq!(std::fs::read(bucket.join("x.tsv")).expect("an object"), before);
    }
    with_s3(&["copy", &source.uri, "select 1 as n", "s3://written/x.tsv", "--mode", "replace"]).succeeds();
    assert_eq!(std::fs::read(bucket.join("x.tsv")).expect("an object"), b"n\n1\n");
}

#[test]
fn folders_partitions_and_patterns() {
    let bucket = server().bucket("folders");
    for (name, text) in [
        ("t/day=1/a.csv", "n,x\n1,a\n2,b\n"),
        ("t/day=2/b.csv", "x,n\nc,3\n"),
        ("t/_SUCCESS", ""),
        ("flat/2024-01.csv", "n\n1\n"),
        ("flat/2024-02.csv", "n\n2\n"),
        ("flat/2025-01.csv", "n\n4\n"),
        ("flat/odd[1]?.csv", "n\n8\n"),
        ("mixed/a.csv", "n\n1\n"),
        ("mixed/b.json", "{\"n\": 1}\n"),
        ("deep/sub/a.csv", "n\n1\n"),
        ("hidden/a.csv", "n\n1\n"),
        ("hidden/.a.csv", "n\n1\n"),
        ("delta/_delta_log/00000000000000000000.json", "{}\n"),
        ("delta/a.parquet", ""),
        ("ice/metadata/v1.metadata.json", "{}\n"),
        ("ice/data/a.parquet", ""),
    ] {
        let path = bucket.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("written");
    }
    let rows = "n,x,day\n1,a,1\n2,b,1\n3,c,2\n";
    for uri in ["s3://folders/t", "s3://folders/t/"] {
        assert_eq!(fetched(uri, "select n, x, day from t order by n"), rows);
    }
    assert_eq!(fetched("s3://folders/t", "select sum(n) as n from t where day = '2'"), "n\n3\n");
    let sum = |table: &str| format!("select sum(n) as n from {table}");
    assert_eq!(fetched("s3://folders/flat", &sum("flat")), "n\n15\n");
    assert_eq!(fetched("s3://folders/flat/2024-*.csv", &sum("_2024")), "n\n3\n");
    assert_eq!(fetched("s3://folders/flat/202?-01.csv", &sum("_202")), "n\n5\n");
    assert_eq!(fetched("s3://folders/flat/*-01.csv", &sum("flat")), "n\n5\n");
    // An object of that name is no pattern.
    assert_eq!(fetched("s3://folders/flat/odd[1]?.csv", "select n from odd"), "n\n8\n");
    for (uri, code, words) in [
        ("s3://folders/mixed", SOURCE, "several kinds (.csv, .json)"),
        ("s3://folders/deep", SOURCE, "sub/a.csv: files in subfolders are read only if"),
        ("s3://folders/hidden", SOURCE, ".a.csv: hidden file"),
        ("s3://folders/delta", SOURCE, "this is a Delta table"),
        ("s3://folders/ice", SOURCE, "this is an Iceberg table"),
        ("s3://folders/f*/a.csv", USAGE, "only the last part of a name may have wildcards"),
        ("s3://folders/none-*.csv", SOURCE, "s3://folders/none-*.csv: "),
        ("s3://folders/none.csv", SOURCE, "s3://folders/none.csv: there is no such object"),
        ("s3://no-such-bucket/x.csv", SOURCE, "s3://no-such-bucket/x.csv: there is no such bucket"),
    ] {
        with_s3(&["fetch", uri, "select 1"]).fails(code, &[words]);
    }
}

#[test]
fn errors_in_objects_name_the_object_and_the_line() {
    let bucket = server().bucket("bad");
    std::fs::write(bucket.join("a.csv"), format!("x,y\n{}1,z\n", "1,2\n".repeat(1500))).expect("written");
    std::fs::write(bucket.join("d.json"), "{\"x\": 1}\n{\"x\": {}}\n").expect("written");
    std::fs::write(bucket.join("p.parquet"), "PAR1 and no more").expect("written");
    let check = |name: &str, code, words: &str| {
        let sql = format!("select * from {}", &name[..1]);
        with_s3(&["fetch", &format!("s3://bad/{name}"), &sql]).fails(code, &[words, "hint: "]);
    };
    check("a.csv", DATA, "s3://bad/a.csv, line 1502: column `y`: `z` is not a 64-bit integer");
    check("d.json", DATA, "s3://bad/d.json, line 2: field `x` has an object here");
    check("p.parquet", DATA, "s3://bad/p.parquet: incomplete or damaged Parquet file");
    // Pages whose bytes are not what the footer says, in one of two objects.
    let sql = "select value as n, value::text as text from generate_series(1, 20000)";
    let parquet = bucket.join("pages/a.parquet");
    std::fs::create_dir_all(bucket.join("pages")).expect("a folder");
    let source = Node::start(&[]);
    source.fetch(&["--quiet", sql, "-o", parquet.to_str().expect("UTF-8")]).succeeds();
    let mut bytes = std::fs::read(&parquet).expect("a file");
    let middle = bytes.len() / 2;
    bytes[middle - 2000..middle + 2000].fill(0xa5);
    std::fs::write(bucket.join("pages/b.parquet"), bytes).expect("written");
    let damaged = with_s3(&["fetch", "s3://bad/pages", "select sum(n), sum(length(text)) from pages"]);
    damaged.fails(DATA, &["s3://bad/pages/b.parquet: damaged Parquet file: row group 1 of 1: ", "hint: "]);
    // Arrow that was cut off.
    let whole = bucket.join("whole.arrows");
    source.fetch(&["--quiet", sql, "-o", whole.to_str().expect("UTF-8")]).succeeds();
    let bytes = std::fs::read(&whole).expect("a file");
    std::fs::write(bucket.join("c.arrows"), &bytes[..bytes.len() - 1000]).expect("written");
    check("c.arrows", DATA, "s3://bad/c.arrows: incomplete or damaged Arrow file");
}

#[test]
fn databases_and_objects_copy_to_each_other() {
    let folder = Folder::new();
    server().bucket("copies");
    let database = format!("sqlite:{}", folder.arg("a.db"));
    with_s3(&["copy", lineitem(), "select * from lineitem", "s3://copies/lineitem.parquet"]).succeeds();
    let sql = "select * from lineitem where l_orderkey < 1000";
    with_s3(&["copy", "s3://copies/lineitem.parquet", sql, &database, "--table", "lineitem"]).succeeds();
    with_s3(&["copy", &database, "select * from lineitem", "s3://copies/back.csv"]).succeeds();
    let count = "select count(*) as n, sum(l_orderkey) as keys from";
    assert_eq!(
        fetched("s3://copies/back.csv", &format!("{count} back")),
        csv(lineitem(), &format!("{count} lineitem where l_orderkey < 1000"))
    );
    for (uri, words) in [
        ("s3://copies/", "can't copy into s3://copies/"),
        ("s3://copies/x.xyz", "can't copy into s3://copies/x.xyz"),
        ("https://127.0.0.1:1/x.csv", "files of a web server are only read"),
    ] {
        let outcome = with_s3(&["copy", lineitem(), "select 1", uri]);
        assert!(matches!(outcome.code, Some(USAGE | SOURCE)), "{outcome}");
        assert!(outcome.stderr.contains(words), "{outcome}");
    }
    let outcome = with_s3(&["fetch", lineitem(), "select 1", "-o", "postgresql://h/x.csv"]);
    outcome.fails(USAGE, &["neither a file nor an object", "lightship copy"]);
}

#[test]
fn a_node_serves_objects_and_opens_no_others() {
    let bucket = server().bucket("served");
    std::fs::copy(lineitem(), bucket.join("lineitem.parquet")).expect("copied");
    std::fs::write(bucket.join("secret.csv"), "n\n1\n").expect("written");
    std::fs::create_dir(bucket.join("people")).expect("a folder");
    std::fs::write(bucket.join("people/a.csv"), "name\nAda\n").expect("written");
    let expected = csv(lineitem(), SUMS);
    let one = node(&["--table", "lineitem=s3://served/lineitem.parquet"]);
    assert_eq!(csv(&one.uri, SUMS), expected);
    for sql in [
        "select * from 's3://served/secret.csv'",
        "select * from \"s3://served/secret.csv\"",
        "create external table x stored as csv location 's3://served/secret.csv'",
        "copy lineitem to 's3://served/stolen.csv'",
        "select * from read_csv('s3://served/secret.csv')",
    ] {
        let outcome = one.fetch(&[sql]);
        assert_eq!(outcome.code, Some(SOURCE), "{sql}: {outcome}");
        with_s3(&["fetch", "s3://served/lineitem.parquet", sql]).fails(SOURCE, &["error: "]);
    }
    assert!(!bucket.join("stolen.csv").exists());
    let all = node(&["--data", "s3://served", "--in-memory"]);
    assert_eq!(csv(&all.uri, SUMS), expected);
    assert_eq!(csv(&all.uri, "select name from people, secret"), "name\nAda\n");
    let missing = Node::start_with(&["--table", "t=s3://served/none.csv"], as_tester);
    missing
        .err()
        .expect("it ends")
        .fails(SOURCE, &["table t: s3://served/none.csv: there is no such object"]);
}

#[test]
fn objects_of_the_same_name_size_and_time_are_told_apart() {
    let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_700_000_000);
    for (bucket, value) in [("twin-a", "1"), ("twin-b", "2")] {
        let path = server().bucket(bucket).join("x.parquet");
        let sql = format!("select {value} as v{value}, {value} as n");
        lightship(&["fetch", "--quiet", lineitem(), &sql, "-o", path.to_str().expect("UTF-8")]).succeeds();
        std::fs::File::options().append(true).open(&path).expect("a file").set_modified(time).expect("set");
    }
    let length = |bucket| std::fs::metadata(server().bucket(bucket).join("x.parquet")).expect("a file").len();
    assert_eq!(length("twin-a"), length("twin-b"));
    let node = node(&["--table", "a=s3://twin-a/x.parquet", "--table", "b=s3://twin-b/x.parquet"]);
    assert_eq!(csv(&node.uri, "select v1, v2, a.n as an, b.n as bn from a, b"), "v1,v2,an,bn\n1,2,1,2\n");
}

#[test]
fn the_nodes_of_a_cluster_share_objects() {
    let bucket = server().bucket("shared");
    std::fs::create_dir(bucket.join("lineitem")).expect("a folder");
    for part in 0..4 {
        let sql = format!("select * from lineitem where l_orderkey % 4 = {part}");
        let to = format!("s3://shared/lineitem/{part}.parquet");
        with_s3(&["fetch", "--quiet", lineitem(), &sql, "-o", &to]).succeeds();
    }
    let first = node(&["--advertise", "127.0.0.1:0", "--shared-data", "s3://shared/"]);
    let second = node(&["--join", first.address(), "--shared-table", "lineitem=s3://shared/lineitem"]);
    first.process.says(&format!("node {} joined", second.address()));
    let expected = csv(lineitem(), SUMS);
    for node in [&first, &second] {
        assert_eq!(csv(&node.uri, SUMS), expected);
    }
    // Objects that are added are read at once, by all nodes.
    let rows = |node: &Node| csv(&node.uri, "select count(*) as n from lineitem");
    with_s3(&[
        "fetch",
        "--quiet",
        lineitem(),
        "select * from lineitem",
        "-o",
        "s3://shared/lineitem/4.parquet",
    ])
    .succeeds();
    assert_eq!(rows(&second), "n\n120350\n");
    assert_eq!(rows(&first), "n\n120350\n");
}

#[test]
fn an_interrupted_upload_leaves_nothing() {
    let bucket = server().bucket("interrupted");
    let node = Node::start(&[]);
    let own = S3::start_slow(Duration::from_millis(300));
    own.bucket("interrupted");
    for (to, format) in [("s3://interrupted/rows.csv", "csv"), ("s3://interrupted/rows.parquet", "parquet")] {
        let client = Process::start_with(&["fetch", &node.uri, ENDLESS, "-o", to], |command| {
            without_credentials(command).envs(own.environment())
        });
        until("a part has arrived", || own.parts().len() > 1);
        client.signal("INT");
        client.end().fails(INTERRUPTED, &["interrupted"]);
        assert_eq!(own.parts(), Vec::<String>::new());
        assert!(!own.bucket("interrupted").join(format!("rows.{format}")).exists());
    }
    // So does one whose query fails.
    let failing = "select 100 / (3000000 - value) as x, 'some text' as t from generate_series(1, 4000000)";
    let outcome =
        Process::start_with(&["fetch", &node.uri, failing, "-o", "s3://interrupted/x.csv"], |command| {
            without_credentials(command).envs(own.environment())
        });
    outcome.end().fails(DATA, &["zero"]);
    assert_eq!(own.parts(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(bucket).expect("a folder").count(), 0);
}

#[test]
fn credentials_come_from_the_environment_and_from_profiles() {
    let (folder, bucket) = (Folder::new(), server().bucket("access"));
    std::fs::write(bucket.join("x.csv"), "n\n1\n").expect("written");
    let credentials = format!(
        "[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = wrong\n\
         [good]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    );
    let config = format!("[profile good]\nregion = us-east-1\nendpoint_url = {}\n", server().endpoint);
    let (credentials, config) = (folder.write("credentials", credentials), folder.write("config", config));
    let run = |profile: &str, extra: &[(&str, &str)]| {
        let args = ["--log", "trace", "fetch", "s3://access/x.csv", "select n from x"];
        let outcome = Process::start_with(&args, |command| {
            without_credentials(command)
                .env("AWS_SHARED_CREDENTIALS_FILE", &credentials)
                .env("AWS_CONFIG_FILE", &config)
                .env("AWS_PROFILE", profile)
                .envs(extra.iter().copied())
        });
        let outcome = outcome.end();
        assert!(!outcome.stderr.contains(SECRET_KEY), "{outcome}");
        outcome
    };
    let endpoint = ("AWS_ENDPOINT_URL", server().endpoint.as_str());
    assert_eq!(run("good", &[]).succeeds().text(), "n\n1\n");
    let denied = ["s3://access/x.csv: access denied (403", "hint: "];
    run("default", &[endpoint]).fails(SOURCE, &denied);
    run("none", &[endpoint]).fails(SOURCE, &["no profile `none`"]);
    // Keys of the environment take precedence.
    let keys = [endpoint, ("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)];
    assert_eq!(run("default", &keys).succeeds().text(), "n\n1\n");
    run("good", &[("AWS_ACCESS_KEY_ID", "AKIANOBODY"), ("AWS_SECRET_ACCESS_KEY", "x")])
        .fails(SOURCE, &denied);
}

#[test]
fn secrets_in_a_uri_are_refused_and_not_repeated() {
    for uri in ["s3://AKIAX:hush/hush+hush@bucket/x.csv", "https://me:hush@host/x.csv"] {
        let outcome = lightship(&["fetch", uri, "select 1"]).fails(USAGE, &["is not a location"]);
        assert!(!outcome.stderr.contains("hush"), "{outcome}");
    }
    let outcome = lightship(&["fetch", "http://127.0.0.1:1/x.csv?sig=hush", "select 1"]);
    let outcome = outcome.fails(NETWORK, &["http://127.0.0.1:1/x.csv: cannot connect"]);
    assert!(!outcome.stderr.contains("hush"), "{outcome}");
}

#[test]
fn the_shell_reads_and_writes_objects() {
    let (folder, bucket) = (Folder::new(), server().bucket("shell"));
    std::fs::write(bucket.join("x.csv"), "n\n1\n2\n").expect("written");
    let script = "select sum(n) as n from x;\n\\o s3://shell/y.csv\nselect n + 1 as m from x order by n;\n";
    let file = folder.write("script.sql", script);
    let input = std::fs::File::open(file).expect("a file");
    let outcome =
        Process::start_with(&["shell", "s3://shell/x.csv"], |command| as_tester(command).stdin(input));
    let outcome = outcome.end().succeeds();
    assert!(outcome.text().contains('3'), "{outcome}");
    assert_eq!(std::fs::read_to_string(bucket.join("y.csv")).expect("an object"), "m\n2\n3\n");
}
