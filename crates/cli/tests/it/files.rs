//! Files written by other programs and by Lightship.

use std::fs::File;
use std::io::Write as _;

use crate::support::*;

#[test]
fn newlines_in_csv_are_preserved() {
    let folder = Folder::new();
    for name in ["one", "two"] {
        std::fs::create_dir(folder.file(name)).expect("a folder");
    }
    let notes: String = (0..3000).map(|n| format!("{n},\"first\nsecond, of {n}\"\n")).collect();
    let one = folder.write("one/notes.csv", format!("n,\"the\nnote\"\n{notes}"));
    let sql =
        "select count(*) as rows, count(distinct n) as n, min(length(\"the\nnote\")) as length from notes";
    let expected = "rows,n,length\n3000,3000,18\n";
    assert_eq!(csv(&one, sql), expected);
    // Lightship can read what it writes.
    let two = folder.arg("two/notes.csv");
    lightship(&["fetch", &one, "select * from notes", "-o", &two]).succeeds();
    assert_eq!(csv(&two, sql), expected);
}

#[test]
fn csv_is_read_as_the_guide_says() {
    let folder = Folder::new();
    let file =
        folder.write("People 1.CSV", "\u{feff}Name,n,d,x\r\nAda,7,2024-02-29,007\r\n\r\n\"\",8,,2\r\n");
    let types = "column_name,data_type,is_nullable\nName,Utf8,YES\nn,Int64,YES\nd,Date32,YES\nx,Utf8,YES\n";
    assert_eq!(csv(&file, "describe people_1"), types);
    assert!(csv(&file, "show tables").contains("public,people_1,BASE TABLE\n"));
    let rows = csv(&file, "select \"Name\", n, d, x, \"Name\" is null as e from people_1 order by n");
    assert_eq!(rows, "Name,n,d,x,e\nAda,7,2024-02-29,007,false\n\"\",8,,2,false\n");
}

/// A name without quotes is found in its own case, if it can only mean one column.
#[test]
fn columns_are_found_in_their_own_case() {
    let folder = Folder::new();
    let file = folder.write("people.csv", "Name,n,ID,id\nbob,1,2,3\nAda,2,4,5\n");
    assert_eq!(csv(&file, "select Name from people order by name"), "Name\nAda\nbob\n");
    // An alias comes before a column of another case.
    let alias = "select upper(Name) as name, people.NAME as other from people order by name";
    assert_eq!(csv(&file, alias), "name,other\nADA,Ada\nBOB,bob\n");
    assert_eq!(csv(&file, "select ID, \"ID\" as upper from people where NAME = 'bob'"), "id,upper\n3,2\n");
    let grouped = "select Name, count(*) as n from people p group by p.Name having max(Name) > 'B'";
    assert_eq!(csv(&file, grouped), "Name,n\nbob,1\n");
    let ordered = "select Name from people group by Name having max(Name) > 'A' order by max(Name) desc";
    assert_eq!(csv(&file, ordered), "Name\nbob\nAda\n");
    let both = folder.write("both.csv", "Name,NAME\na,b\n");
    lightship(&["fetch", &both, "select name from both"]).fails(SOURCE, &["column 'name' not found"]);
    lightship(&["fetch", &file, "select name from sales"])
        .fails(SOURCE, &["hint: the table is called people"]);
}

#[test]
fn options_of_files_are_flags_and_parts_of_the_location() {
    let folder = Folder::new();
    let file = folder.write("sales.csv", "7;'a;b'\n8;NA\n");
    let expected = "column_1,column_2\n7,a;b\n8,\n";
    let flags = ["--delimiter", ";", "--no-header", "--quote", "'", "--null", "NA"];
    let fetch = ["fetch", &file, "select * from sales"];
    assert_eq!(lightship(&[&fetch[..], &flags[..]].concat()).succeeds().text(), expected);
    let location = format!("{file}?delimiter=;&header=false&quote='&null=NA");
    assert_eq!(csv(&location, "select * from sales"), expected);
    // The location's own options take precedence.
    let mixed = format!("{file}?delimiter=;");
    let fetch = ["fetch", &mixed, "select * from sales", "--delimiter", ","];
    let outcome = lightship(&[&fetch[..], &flags[2..]].concat()).succeeds();
    assert_eq!(outcome.text(), expected);
    let typed = ["--types", "column_1=decimal(5,2)"];
    let fetch = ["fetch", &location, "select column_1 from sales"];
    assert_eq!(lightship(&[&fetch[..], &typed[..]].concat()).succeeds().text(), "column_1\n7.00\n8.00\n");
    let target = folder.arg("t.parquet");
    lightship(&[&["copy", &file, "select * from sales", &target], &flags[..]].concat()).succeeds();
    assert_eq!(csv(&target, "select * from t"), expected);
    lightship(&["fetch", &file, "select 1", "--delimiter", "ab"]).fails(USAGE, &["one ASCII character"]);
    lightship(&["fetch", "lightship://localhost:1", "select 1", "--delimiter", ";"])
        .fails(USAGE, &["`delimiter` is an option of files"]);
    // A question mark may be part of a name.
    let odd = folder.write("what?.csv", "a\n1\n");
    assert_eq!(csv(&odd, "select a from what_"), "a\n1\n");
}

#[test]
fn several_files_are_tables_of_one_query() {
    let folder = Folder::new();
    let sales = folder.write("sales-2024.csv", "region,amount\n1,10\n2,20\n1,5\n");
    let regions = folder
        .write("regions.json", "[{\"id\": 1, \"name\": \"north\"},\n {\"id\": 2, \"name\": \"south\"}]\n");
    let sql = "select r.name, sum(s.amount) as total from s join r on s.region = r.id group by 1 order by 1";
    let expected = "name,total\nnorth,15\nsouth,20\n";
    let tables = ["--table", &format!("s={sales}"), "--table", &format!("r={regions}")];
    assert_eq!(lightship(&[&["fetch", sql], &tables[..]].concat()).succeeds().text(), expected);
    let joined = sql.replace(" s ", " sales_2024 s ");
    assert_eq!(lightship(&["fetch", &sales, &joined, tables[2], tables[3]]).succeeds().text(), expected);
    let target = folder.arg("t.csv");
    lightship(&[&["copy", sql, &target], &tables[..]].concat()).succeeds();
    assert_eq!(csv(&target, "select * from t"), expected);
    lightship(&[&["fetch", "select * from x"], &tables[..]].concat())
        .fails(SOURCE, &["hint: the tables are r, s"]);
    lightship(&["fetch", "select 1", "--table", "s=postgresql://x/y"]).fails(USAGE, &["is not a file"]);
}

#[test]
fn standard_input_is_a_table() {
    let rows: String = (0..20_000).map(|n| format!("{n},\"a\nb\"\n")).collect();
    let count = "select count(*) as n, sum(n) as s, count(distinct t) as t from stdin";
    let expected = "n,s,t\n20000,199990000,1\n";
    let folder = Folder::new();
    let fetch = |input: &[u8], arguments: &[&str]| {
        let input = File::open(folder.write("input", input)).expect("a file");
        let arguments = [&["fetch", "--quiet", "-"], arguments].concat();
        Process::start_with(&arguments, |command| command.stdin(input)).end()
    };
    let csv = format!("n,t\n{rows}");
    assert_eq!(fetch(csv.as_bytes(), &[count]).succeeds().text(), expected);
    let json: String = (0..20_000).map(|n| format!("{{\"n\": {n}, \"t\": \"x\"}}\n")).collect();
    assert_eq!(fetch(json.as_bytes(), &[count]).succeeds().text(), expected);
    let bare = ["select count(*) as n from stdin", "--input-format", "csv", "--no-header"];
    assert_eq!(fetch(rows.as_bytes(), &bare).succeeds().text(), "n\n20000\n");
    let bad = format!("n,t\n{rows}x,y\n");
    fetch(bad.as_bytes(), &[count])
        .fails(DATA, &["standard input, line 40002: column `n`: `x` is not a 64-bit"]);
    fetch(csv.as_bytes(), &["select count(*) from stdin a join stdin b on a.n = b.n"])
        .fails(DATA, &["standard input can be read only once"]);
    fetch(csv.as_bytes(), &["-"]).fails(USAGE, &["can't be both the query and a table"]);
    // All of it is read for the types, more than is kept in memory: the last value makes the column text.
    let wide = format!("n,t\n{}x,y\n", format!("1,{}\n", "z".repeat(1000)).repeat(20_000));
    let all = ["select count(*) as n, max(n) as m from stdin", "--sample", "all"];
    assert_eq!(fetch(wide.as_bytes(), &all).succeeds().text(), "n,m\n20001,x\n");
    // Parquet needs a file, which is a temporary one.
    let parquet = folder.arg("t.parquet");
    let file = folder.write("t.csv", &csv);
    lightship(&["fetch", &file, "select * from t", "-o", &parquet]).succeeds();
    assert_eq!(fetch(&std::fs::read(&parquet).expect("a file"), &[count]).succeeds().text(), expected);
}

/// Rows leave while others are still to come.
#[test]
fn standard_input_is_read_while_it_arrives() {
    let arguments = ["fetch", "--quiet", "-", "select n from stdin limit 2"];
    let (input, mut writer) = std::io::pipe().expect("a pipe");
    let process = Process::start_with(&arguments, |command| command.stdin(input));
    let rows: String = (0..100_000).map(|n| format!("{n}\n")).collect();
    let written = std::thread::spawn(move || {
        let _ = writer.write_all(format!("n\n{rows}").as_bytes());
        writer
    });
    // The other end stays open.
    assert_eq!(process.end().succeeds().text(), "n\n0\n1\n");
    drop(written.join());
}

#[test]
fn compressed_and_damaged_files_say_what_is_wrong() {
    let folder = Folder::new();
    let not_gzip = folder.write("t.csv.gz", "a\n1\n2\n3\n4\n5\n");
    lightship(&["fetch", &not_gzip, "select a from t"]).fails(DATA, &["t.csv.gz: the gzip data is damaged"]);
    let junk = folder.write("junk", b"\x7fELF\0\0\0");
    lightship(&["fetch", &junk, "select * from junk"]).fails(DATA, &["junk: unknown kind of file", "hint: "]);
    let cut = folder.write("t.parquet", b"PAR1\0\0");
    lightship(&["fetch", &cut, "select * from t"])
        .fails(DATA, &["t.parquet: incomplete or damaged Parquet file"]);
    let swallowed = folder.write("q.csv", "a,b\n1,\"x\n2,\"y\"\n3,z\n");
    lightship(&["fetch", &swallowed, "select * from q"])
        .fails(DATA, &["q.csv, line 2: `y` follows the closing quote of a value"]);
}

#[test]
fn errors_in_files_name_the_line_and_column() {
    let folder = Folder::new();
    let rows = "1,2\n".repeat(1500);
    let cases = [
        ("a.csv", format!("x,y\n{rows}1,z\n"), "a.csv, line 1502: column `y`: `z` is not a 64-bit integer"),
        (
            "b.csv",
            format!("x,y\n{rows}1,\"z\n{rows}"),
            "b.csv, line 1502: the quote that begins a value here",
        ),
        ("c.csv", "x,x\n1,2\n".to_owned(), "c.csv: two columns are called `x`"),
        ("d.json", "{\"x\": 1}\n{\"x\": {}}\n".to_owned(), "d.json, line 2: field `x` has an object here"),
    ];
    for (name, text, expected) in cases {
        let file = folder.write(name, &text);
        let table = &name[..1];
        lightship(&["fetch", &file, &format!("select * from {table}")]).fails(DATA, &[expected, "hint: "]);
    }
    // Rows that arrived before the error are counted only if there are any.
    let first = folder.write("e.csv", b"x\n\xff\n");
    let outcome = lightship(&["fetch", &first, "select x from e"])
        .fails(DATA, &["e.csv, line 2: column `x`: the value is not UTF-8\n"]);
    assert!(!outcome.stderr.contains("after 0 rows"), "{outcome}");
    let large = folder.write("large.csv", "x\n9223372036854775807\n1\n");
    lightship(&["fetch", &large, "select sum(x) from large"])
        .fails(DATA, &["sum(large.x) exceeds BIGINT", "decimal(38, 0)"]);
}
