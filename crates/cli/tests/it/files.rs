//! Files written by other programs and by Lightship.

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
        folder.write("People 1.CSV", "\u{feff}Name,n,d,x\r\nAda,007,2024-02-29,+1\r\n\r\n\"\",8,,2\r\n");
    let types = "column_name,data_type,is_nullable\nName,Utf8,YES\nn,Int64,YES\nd,Date32,YES\nx,Utf8,YES\n";
    assert_eq!(csv(&file, "describe people_1"), types);
    assert!(csv(&file, "show tables").contains("public,people_1,BASE TABLE\n"));
    let rows = csv(&file, "select \"Name\", n, d, x, \"Name\" is null as e from people_1 order by n");
    assert_eq!(rows, "Name,n,d,x,e\nAda,7,2024-02-29,+1,false\n,8,,2,true\n");
    lightship(&["fetch", &file, "select name from people_1"]).fails(SOURCE, &["hint: ", "people_1.Name"]);
    let packed = folder.write("t.csv.gz", "a\n1\n");
    lightship(&["fetch", &packed, "select a from t"]).fails(SOURCE, &["unknown kind of file"]);
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
