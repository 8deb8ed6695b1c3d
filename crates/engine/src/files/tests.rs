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
}

#[test]
fn a_json_array_is_read_as_its_objects() {
    let folder = tempfile::tempdir().unwrap();
    let objects = |text: &str| (0..3000).map(|n| text.replace('N', &n.to_string())).collect::<Vec<_>>();
    for (name, text) in [
        ("a.json", format!("[{}]", objects("{\"a\":N,\"b\":[\"]\"]}").join(","))),
        ("b.json", format!("[\n{}\n]\n", objects("  {\n    \"a\": N,\n    \"b\": [\"]\"]\n  }").join(",\n"))),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let rows = wait(rows(&path, 3, 100)).unwrap();
        assert_eq!(
            (rows.len(), rows[0].as_slice()),
            (3000, &["0".to_owned(), "[]]".to_owned()][..]),
            "{name}"
        );
    }
    let open = format!("[{}", objects("{\"a\": N}").join(",\n"));
    let message = refused("open.json", open.as_bytes());
    assert!(message.contains("line 3000: not an array of objects: found the end of the file"), "{message}");
    let mixed = format!("[{},\n7]", objects("{\"a\": N}").join(",\n"));
    let message = refused("mixed.json", mixed.as_bytes());
    assert!(
        message.contains("line 3001: not an array of objects: found `7`, expected an object"),
        "{message}"
    );
}

/// Options change how a file is read, in parts as in one.
#[test]
fn options_say_how_a_file_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let many = |line: &str| line.repeat(500);
    for (name, text, rows_expected, first) in [
        ("a.csv?delimiter=;&header=false", many("1;'x;\n'\n").replace('\'', "\""), 500, vec!["1", "x;\n"]),
        ("b.csv?quote='&escape=\\", format!("a,b\n{}", many("1,'x\\',\n'\n")), 500, vec!["1", "x',\n"]),
        ("c.csv?quote=none", format!("a,b\n{}", many("1,\"x\n")), 500, vec!["1", "\"x"]),
        ("d.csv?null=NA&null=-", format!("a,b\n{}", many("NA,-\n")), 500, vec!["", ""]),
        ("e.csv?types=a=text,b=decimal(20,4)", format!("a,b\n{}", many("1,2.5\n")), 500, vec!["1", "2.5000"]),
        ("f.csv?all-text", format!("a,b\n{}", many("1,2.50\n")), 500, vec!["1", "2.50"]),
        ("g.tsv", format!("a\tb\n{}", many("1\t2,5\n")), 500, vec!["1", "2,5"]),
        ("h.psv", format!("a|b\n{}", many("1|2,5\n")), 500, vec!["1", "2,5"]),
        ("i.txt", format!("a;b\n{}", many("1;2,5\n")), 500, vec!["1", "2,5"]),
        ("j.json?types=a=text", many("{\"a\": 1, \"b\": true}\n"), 500, vec!["1", "true"]),
    ] {
        std::fs::write(folder.path().join(name.split('?').next().unwrap()), text).unwrap();
        for partitions in [1, 3] {
            let rows = wait(rows(&folder.path().join(name), partitions, 100)).unwrap();
            assert_eq!(rows.len(), rows_expected, "{name}");
            assert!(rows.iter().all(|row| *row == first), "{name}: {:?}", rows[0]);
        }
    }
    for (name, expected) in [
        ("j.json?delimiter=;", "`delimiter` is an option of CSV"),
        ("c.csv?quote=none&types=x=text", "types: there is no column `x`; the columns are a, b"),
        ("a.csv?encoding=klingon", "unknown encoding `klingon`"),
        ("a.csv?colour=red", "unknown option `colour`"),
    ] {
        let error = wait(rows(&folder.path().join(name), 1, 100)).unwrap_err();
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
}

/// With a sample of all records, no later value is a surprise.
#[test]
fn types_may_be_inferred_from_all_records() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    std::fs::write(&path, format!("a,b\n{}x,2.5\n", "1,1\n".repeat(3000))).unwrap();
    let error = wait(rows(&path, 1, 100)).unwrap_err();
    let EngineError::BadFile { message, hint } = error else { panic!("{error:?}") };
    assert!(message.contains("line 3002: column `a`: `x` is not a 64-bit integer"), "{message}");
    assert!(hint.contains("--types a=text") && hint.contains("--sample all"), "{hint}");
    let all = folder.path().join("a.csv?sample=all");
    assert_eq!(wait(rows(&all, 3, 100)).unwrap()[3000], ["x", "2.5"]);
}

/// Values that a 64-bit number would change are read as they are.
#[test]
fn exact_values_stay_exact() {
    let folder = tempfile::tempdir().unwrap();
    let csv = "i,z,d,t,e\n9007199254740993,01234,0.1,2024-01-01T10:00:00Z,\n\
               123456789012345678901,5,12345678901234567.891,2024-01-01T12:00:00+02:00,\"\"\n";
    let json = "{\"i\": 9007199254740993, \"z\": \"01234\", \"d\": 0.1}\n\
                {\"i\": 123456789012345678901, \"z\": \"5\", \"d\": 12345678901234567.891}\n";
    for (name, text, more) in [("a.csv", csv, &["2024-01-01T10:00:00Z", ""][..]), ("b.json", json, &[][..])] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let rows = wait(rows(&path, 1, 100)).unwrap();
        let expected =
            [["123456789012345678901", "5", "12345678901234567.891"], ["9007199254740993", "01234", "0.100"]];
        for (row, first) in rows.iter().zip(expected) {
            assert_eq!(*row, [&first[..], more].concat(), "{name}");
        }
    }
}

/// An empty text and NULL are different in columns of text.
#[test]
fn empty_text_and_null_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    std::fs::write(&path, "n,t,u\n1,\"\",\n\"\",,\"\"\n2,x,\n").unwrap();
    let context = SessionContext::new();
    let counts = wait(async {
        let table = open(&context, &path).await.unwrap();
        context.register_table("t", table).unwrap();
        let sql = "select count(n)::text, count(t)::text, count(u)::text, count(*)::text from t";
        context.sql(sql).await.unwrap().collect().await.unwrap()
    });
    let counts: Vec<&str> =
        counts[0].columns().iter().map(|column| column.as_string_view().value(0)).collect();
    assert_eq!(counts, ["2", "2", "1", "3"]);
}

/// Files that one pattern matches are one table, with columns of folders named `COLUMN=VALUE`.
#[test]
fn a_pattern_is_a_table_of_the_files_that_match() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("2024-01.csv", "a\n1\n");
    write("2024-02.csv", "a\n2\n");
    write("2023-01.csv", "a\n3\n");
    write("notes.txt", "a\n4\n");
    write("y=1/p.csv", "a\n5\n");
    write("y=2/p.csv", "a\n6\n");
    write("y=2/q.csv", "a\n7\n");
    let of = |pattern: &str| wait(rows(&folder.path().join(pattern), 2, 100));
    assert_eq!(of("2024-*.csv").unwrap(), [["1"], ["2"]]);
    assert_eq!(of("202[34]-01.csv").unwrap(), [["1"], ["3"]]);
    assert_eq!(of("2024-0?.csv?all-text").unwrap(), [["1"], ["2"]]);
    assert_eq!(of("y=*/p.csv").unwrap(), [["5", "1"], ["6", "2"]]);
    assert!(of("y=2*/*.csv").is_err());
    let error = of("2025-*.csv").unwrap_err().to_string();
    assert!(error.contains("2025-*.csv: no file matches"), "{error}");
    let error = of("*.*").unwrap_err().to_string();
    assert!(error.contains("several kinds"), "{error}");
}

/// However a file is cut off or damaged, reading it gives rows or an error with its name, never a panic.
#[test]
fn damaged_files_are_refused_by_name() {
    use datafusion::arrow::ipc::CompressionType;
    use datafusion::arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use datafusion::parquet::arrow::ArrowWriter;
    use std::sync::Arc;

    let rows_of: [(&str, ArrayRef); 3] = [
        ("n", Arc::new(arrow_array::Int64Array::from_iter_values(0..2000))),
        (
            "t",
            Arc::new(arrow_array::StringArray::from_iter(
                (0..2000).map(|n| (n % 7 > 0).then(|| format!("text {n}"))),
            )),
        ),
        ("d", Arc::new(arrow_array::Float64Array::from_iter_values((0..2000).map(|n| f64::from(n) / 7.0)))),
    ];
    let batch =
        arrow_array::RecordBatch::try_from_iter_with_nullable(rows_of.map(|(n, c)| (n, c, true))).unwrap();
    let mut parquet = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let arrow = |compression: Option<CompressionType>| {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut bytes = Vec::new();
        let mut writer = FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        drop(writer);
        bytes
    };
    let mut stream = Vec::new();
    let mut writer = StreamWriter::try_new(&mut stream, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let mut csv: Vec<u8> = b"n,t,d\n".to_vec();
    (0..2000).for_each(|n| {
        csv.extend_from_slice(format!("{n},\"text, {n}\",{}\n", f64::from(n) / 7.0).as_bytes())
    });
    let zstd = zstd::encode_all(&csv[..], 1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(18);
    for (name, whole) in [
        ("a.parquet", parquet),
        ("b.arrow", arrow(None)),
        ("c.arrow", arrow(Some(CompressionType::ZSTD))),
        ("d.arrow", arrow(Some(CompressionType::LZ4_FRAME))),
        ("e.arrows", stream),
        ("f.csv", csv),
        ("g.csv.zst", zstd),
    ] {
        let path = folder.path().join(name);
        for turn in 0..60 {
            let mut bytes = whole.clone();
            match turn % 3 {
                0 => bytes.truncate(random.usize(..whole.len())),
                1 => {
                    let at = random.usize(..whole.len());
                    bytes[at] ^= 1 << random.u8(..8);
                }
                // The lengths and offsets are near the end.
                _ => {
                    let at = whole.len() - 1 - random.usize(..whole.len().min(700));
                    bytes[at] = random.u8(..);
                }
            }
            std::fs::write(&path, &bytes).unwrap();
            let read = wait(async {
                let mut engine =
                    crate::Engine::new(crate::EngineConfig { partitions: 2, ..Default::default() })?;
                engine.register_path("t", &path).await?;
                let running =
                    engine.execute("select count(n), count(distinct t), sum(d) from t", None).await?;
                let rows: Vec<_> = futures::StreamExt::collect(running.into_rows()).await;
                Ok::<_, EngineError>(rows.into_iter().find_map(|row| row.err()))
            });
            use lightship_wire::control::ErrorCode;
            let failure = match read {
                Ok(None) => continue,
                Ok(Some(failure)) => failure,
                Err(error) => error.to_failure(),
            };
            // A column may have lost its name, or a value its type.
            let is_expected = matches!(failure.code, ErrorCode::Data | ErrorCode::Sql | ErrorCode::Source);
            let is_named = failure.message.contains(name) || failure.code == ErrorCode::Sql;
            assert!(is_expected && is_named, "{name}, turn {turn}: {failure:?}");
        }
    }
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
