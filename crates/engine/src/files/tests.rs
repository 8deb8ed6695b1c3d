//! Files as tables, read in the smallest possible parts.

use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use datafusion::arrow::compute::cast;
use datafusion::prelude::{SessionConfig, SessionContext};
use proptest::prelude::*;

use super::open;
use crate::error::{EngineError, Result};

/// All rows as text, sorted; NULL is empty.
async fn rows(path: &Path, partitions: usize, batch_rows: usize) -> Result<Vec<Vec<String>>> {
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(batch_rows);
    // The smallest possible parts.
    config.options_mut().optimizer.repartition_file_min_size = 1;
    let context = SessionContext::new_with_config(config);
    let table = open(&context, path).await?;
    let mut rows = Vec::new();
    for batch in context.read_table(table)?.collect().await? {
        let columns: Vec<_> =
            batch.columns().iter().map(|column| cast(column, &DataType::Utf8).unwrap()).collect();
        rows.extend((0..batch.num_rows()).map(|row| {
            let value = |column: &ArrayRef| {
                let column = column.as_string::<i32>();
                if column.is_null(row) { String::new() } else { column.value(row).to_owned() }
            };
            columns.iter().map(value).collect::<Vec<_>>()
        }));
    }
    rows.sort();
    Ok(rows)
}

fn wait<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(task)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// A file written by the `csv` crate gives the rows that the `csv` crate reads, in any number of parts.
    #[test]
    fn csv_in_parts_reads_as_the_csv_crate_does(
        values in proptest::collection::vec(
            (proptest::sample::select(vec!["", "x", "\n", "\r\n", "a,b", "\"", "5\" disk", "\"\"", "é\n\n"]),
             proptest::sample::select(vec!["", "y", ",\n\"", "z\"\n"])), 1..40),
        partitions in 1_usize..8,
        batch_rows in 1_usize..20,
        crlf in any::<bool>(),
        mark in any::<bool>(),
        always in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.csv");
        let mut text = if mark { b"\xef\xbb\xbf".to_vec() } else { Vec::new() };
        let mut writer = csv::WriterBuilder::new()
            .terminator(if crlf { csv::Terminator::CRLF } else { csv::Terminator::Any(b'\n') })
            .quote_style(if always { csv::QuoteStyle::Always } else { csv::QuoteStyle::Necessary })
            .from_writer(&mut text);
        writer.write_record(["id", "a\nb", "c"]).unwrap();
        for (number, (a, b)) in values.iter().enumerate() {
            writer.write_record([&format!("r{number}"), *a, *b]).unwrap();
        }
        writer.flush().unwrap();
        drop(writer);
        std::fs::write(&path, &text).unwrap();
        let mut expected: Vec<Vec<String>> = csv::Reader::from_path(&path).unwrap().records()
            .map(|record| record.unwrap().iter().map(str::to_owned).collect()).collect();
        expected.sort();
        prop_assert_eq!(wait(rows(&path, partitions, batch_rows)).unwrap(), expected);
    }

    /// JSON gives the same rows in any number of parts, with one object per line or not.
    #[test]
    fn json_in_parts_gives_the_same_rows(
        values in proptest::collection::vec(proptest::sample::select(vec!["", "x", "\n", "{\"}", "é"]), 1..40),
        partitions in 1_usize..8,
        batch_rows in 1_usize..20,
        pretty in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.json");
        let objects = values.iter().enumerate().map(|(number, value)| {
            let object = serde_json::json!({"id": format!("r{number}"), "v": value});
            if pretty { format!("{object:#}\n") } else { format!("{object}\n") }
        });
        std::fs::write(&path, objects.collect::<String>()).unwrap();
        let mut expected: Vec<Vec<String>> =
            values.iter().enumerate().map(|(number, v)| vec![format!("r{number}"), (*v).to_owned()]).collect();
        expected.sort();
        prop_assert_eq!(wait(rows(&path, partitions, batch_rows)).unwrap(), expected);
    }
}

/// The error of reading a file with this text, in one part and in several.
fn refused(name: &str, text: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    let [one, three] = [1, 3].map(|partitions| wait(rows(&path, partitions, 100)).unwrap_err());
    assert_eq!(one.to_string(), three.to_string());
    let EngineError::BadFile { message, hint } = one else { panic!("{one:?}") };
    assert!(!hint.is_empty() && message.contains(name), "{message}");
    message
}

#[test]
fn bad_csv_is_refused_with_file_line_and_column() {
    // A record of two lines precedes it.
    let many = |record: &str| format!("a,b,t\n{}1,2,\"x\ny\"\n{record}\n", "1,2,x\n".repeat(2000));
    for (text, expected) in [
        (many("1,2.5,x"), "line 2004: column `b`: `2.5` is not a 64-bit integer"),
        (many("1,2,x,3"), "line 2004: the record has 4 values, but the header has 3"),
        (many("1"), "line 2004: the record has 1 values, but the header has 3"),
        (many("1,2,\"x\n1,2,x"), "line 2004: the quote that begins a value here is never closed"),
        ("a,b,a\n1,2,3\n".to_owned(), "two columns are called `a`"),
    ] {
        let message = refused("bad.csv", text.as_bytes());
        assert!(message.contains(expected), "{message}");
    }
    let latin = [many("1,2,x").as_bytes(), b"1,2,\xe9\n"].concat();
    let message = refused("latin.csv", &latin);
    assert!(message.contains("line 2005: column `t`: the value is not UTF-8"), "{message}");
}

#[test]
fn bad_json_is_refused_with_file_and_line() {
    let many = |line: &str| format!("{}{line}\n", "{\"a\": 1}\n".repeat(2000));
    for (text, expected) in [
        (many("{\"a\": [1]}"), "line 2001: field `a` has a list here, but a single value before"),
        (many("{\"a\": 1"), "line 2001: not a JSON object: EOF while parsing an object"),
        (many("7"), "line 2001: not a JSON object: invalid type"),
    ] {
        let message = refused("bad.json", text.as_bytes());
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn a_late_json_field_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("late.json");
    let text = format!("{}{{\"a\": 2, \"late\": \"x\"}}\n", "{\"a\": 1}\n".repeat(2000));
    std::fs::write(&path, text).unwrap();
    let rows = wait(rows(&path, 3, 100)).unwrap();
    assert_eq!(rows.len(), 2001);
    assert_eq!(rows[2000], ["2", "x"]);
}

#[test]
fn empty_files_and_headers_alone_have_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in
        [("a.csv", "a,b"), ("b.csv", "a,b\n"), ("c.csv", "\u{feff}\"a\",b\r\n"), ("d.json", "\n")]
    {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        assert_eq!(wait(rows(&path, 4, 10)).unwrap().len(), 0, "{name}");
    }
}

#[test]
fn a_column_whose_first_value_comes_late_is_text() {
    let folder = tempfile::tempdir().unwrap();
    let csv = format!("a,b\n{}1,late\n", "1,\n".repeat(2000));
    let json = format!("{}{{\"a\": 1, \"b\": null}}\n", "{\"a\": 1, \"b\": null}\n".repeat(10));
    for (name, text, last) in [("t.csv", csv, "late"), ("t.json", json, "")] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        assert_eq!(wait(rows(&path, 3, 100)).unwrap().last().unwrap(), &["1", last], "{name}");
    }
    let path = folder.path().join("list.json");
    std::fs::write(&path, "[\n{\"a\": 1}\n]\n").unwrap();
    let error = wait(rows(&path, 1, 100)).unwrap_err();
    assert!(error.to_string().contains("list.json, line 1: a JSON array of objects"), "{error}");
}

/// Records that are much longer than those before them are read a few at a time.
#[test]
fn batches_of_text_are_bounded_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let (short, long) = ("1,a\n".repeat(200), format!("2,{}\n", "x".repeat(1 << 20)).repeat(90));
    let csv = format!("n,t\n{short}{long}");
    let objects = csv.lines().skip(1).filter_map(|line| line.split_once(','));
    let json: String = objects.map(|(n, t)| format!("{{\"n\":{n},\"t\":\"{t}\"}}\n")).collect();
    for (name, text) in [("t.csv", csv), ("t.json", json)] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        let batches = wait(async {
            let table = open(&context, &path).await.unwrap();
            context.read_table(table).unwrap().collect().await.unwrap()
        });
        let (rows, bytes) = (
            batches.iter().map(|batch| batch.num_rows()).sum::<usize>(),
            batches.iter().map(|batch| batch.get_array_memory_size()).max().unwrap(),
        );
        assert_eq!(rows, 290, "{name}");
        assert!(bytes < 80 << 20, "{name}: {bytes} bytes");
    }
}

/// A record that is larger than a usual batch forms its own batch, also at the end of the file.
#[test]
fn large_records_at_the_end_of_a_file_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let large = "x".repeat(65 << 20);
    for (name, text, rows) in [
        ("one.json", format!("{{\"t\":\"{large}\"}}"), 1),
        ("two.json", format!("{{\"t\":\"a\"}}\n{{\"t\":\"{large}\"}}"), 2),
        // Objects that end where a chunk of the file ends.
        ("even.json", format!("{{\"t\":\"{}\"}}\n", "x".repeat((1 << 20) - 9)).repeat(66), 66),
        ("two.csv", format!("t\na\n{large}"), 2),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(1));
        let counted = wait(async {
            let table = open(&context, &path).await.unwrap();
            context.read_table(table).unwrap().count().await.unwrap()
        });
        assert_eq!(counted, rows, "{name}");
    }
}

#[test]
fn an_object_that_fills_its_file_is_refused_before_it_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let mut file = std::fs::File::create(&path).unwrap();
    std::io::Write::write_all(&mut file, b"{\"a\":\n[0").unwrap();
    // The rest of the file is not read.
    file.set_len(1 << 40).unwrap();
    let error = wait(rows(&path, 1, 100)).unwrap_err().to_string();
    assert!(error.contains("t.json"), "{error}");
}
