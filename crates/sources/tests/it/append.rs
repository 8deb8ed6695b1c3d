//! Files that exist already: rows are added to them, they are replaced, or they are refused.

use std::fs;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use lightship_sources::writers::{FileMode, Format, Target, WriteOptions, create};
use lightship_sources::{Result, SourceError, Written};
use lightship_testkit::arrays;

use crate::tables::{batch, ints, words};

async fn write_to(target: Target, format: Format, mode: FileMode, rows: &RecordBatch) -> Result<Written> {
    let options = WriteOptions { mode, ..WriteOptions::default() };
    let mut destination = create(target, format, rows.schema(), options)?;
    destination.write(rows.clone()).await?;
    destination.finish().await
}

async fn write(path: &Path, format: Format, mode: FileMode, rows: &RecordBatch) -> Result<Written> {
    write_to(Target::File(path.into()), format, mode, rows).await
}

fn rows(from: i64) -> RecordBatch {
    batch(vec![("a", ints([from, from + 1])), ("b,c", words(["x", "say \"hi\"\n"]))])
}

/// The error of a file that can't be changed, with its hint.
fn refusal(result: Result<Written>) -> String {
    match result {
        Err(SourceError::ExistingFile { reason, hint, .. }) => format!("{reason}; {hint}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn rows_are_added_to_lines_and_streams() {
    let folder = tempfile::tempdir().unwrap();
    for (format, name) in
        [(Format::Csv, "t.csv"), (Format::Json, "t.json"), (Format::ArrowStream, "t.arrows")]
    {
        let path = folder.path().join(name);
        write(&path, format, FileMode::Append, &rows(1)).await.unwrap();
        let first = fs::read(&path).unwrap();
        let written = write(&path, format, FileMode::Append, &rows(3)).await.unwrap();
        write(&path, format, FileMode::Existing, &rows(5)).await.unwrap();
        assert_eq!(written.rows, 2);
        let all = fs::read(&path).unwrap();
        match format {
            Format::ArrowStream => {
                let batches: Vec<_> =
                    StreamReader::try_new(&all[..], None).unwrap().map(|b| b.unwrap()).collect();
                assert_eq!(batches, [rows(1), rows(3), rows(5)]);
            }
            _ => {
                let text = String::from_utf8(all).unwrap();
                assert!(text.starts_with(std::str::from_utf8(&first).unwrap()), "{text}");
                // The header is there once.
                assert_eq!(text.matches(r#"a,"b,c""#).count(), usize::from(format == Format::Csv), "{text}");
                assert_eq!(text.matches("hi").count(), 3, "{text}");
            }
        }
        // Nothing else is left in the folder.
        fs::remove_file(&path).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn streams_of_every_type_can_grow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.arrows");
    for seed in 0..20 {
        let first = arrays::every_type(50, seed);
        let second = first.slice(10, 30);
        write(&path, Format::ArrowStream, FileMode::Replace, &first).await.unwrap();
        write(&path, Format::ArrowStream, FileMode::Append, &second).await.unwrap();
        let file = fs::File::open(&path).unwrap();
        let batches: Vec<_> = StreamReader::try_new(file, None).unwrap().map(|b| b.unwrap()).collect();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [50, 30], "{seed}");
        assert_eq!(batches[0].columns(), first.columns(), "{seed}");
        for (back, expected) in batches[1].columns().iter().zip(second.columns()) {
            assert_eq!(&**back, &**expected, "{seed}");
        }
    }
}

#[tokio::test]
async fn files_that_rows_can_not_be_added_to_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t");
    let mut stream = Vec::new();
    let mut writer = arrow_ipc::writer::StreamWriter::try_new(&mut stream, &rows(1).schema()).unwrap();
    writer.write(&rows(1)).unwrap();
    writer.finish().unwrap();
    let other = batch(vec![("a", words(["x"])), ("b,c", words(["x"]))]);
    let mut different = Vec::new();
    arrow_ipc::writer::StreamWriter::try_new(&mut different, &other.schema()).unwrap().finish().unwrap();
    for (format, contents, words) in [
        (Format::Csv, b"a,b\n1,2\n".to_vec(), "its columns are a, b, and those of the result a, b,c"),
        (Format::Csv, b"\"b,c\",a\n1,2\n".to_vec(), "its columns are b,c, a"),
        (Format::Csv, b"a,\"b,c\"\n1,\"open\n".to_vec(), "a quote in it is not closed"),
        (Format::Csv, b"\xff\xfe\n".to_vec(), "its header can't be read"),
        (Format::Json, b" [{\"a\": 1}]".to_vec(), "does not hold an object on each line"),
        (Format::ArrowStream, stream[..stream.len() - 20].to_vec(), "not a complete Arrow stream"),
        (Format::ArrowStream, stream[..10].to_vec(), "not a complete Arrow stream"),
        (Format::ArrowStream, b"ARROW1\0\0".to_vec(), "not a complete Arrow stream"),
        (Format::ArrowStream, [&stream[..], b"more"].concat(), "bytes after the end"),
        (Format::ArrowStream, different, "its columns are a Utf8"),
        (Format::Parquet, b"PAR1".to_vec(), "rows can't be added to a Parquet file"),
        (Format::ArrowFile, b"ARROW1".to_vec(), "rows can't be added to an Arrow file"),
    ] {
        fs::write(&path, &contents).unwrap();
        let shown = refusal(write(&path, format, FileMode::Append, &rows(1)).await);
        assert!(shown.contains(words), "{words}: {shown}");
        assert_eq!(fs::read(&path).unwrap(), contents);
        let shown = refusal(write(&path, format, FileMode::Create, &rows(1)).await);
        assert!(shown.contains("exists already") && shown.contains("--mode append"), "{shown}");
        assert_eq!(fs::read(&path).unwrap(), contents);
        write(&path, format, FileMode::Replace, &rows(1)).await.unwrap();
    }
    fs::remove_file(&path).unwrap();
    assert!(refusal(write(&path, Format::Csv, FileMode::Existing, &rows(1)).await).contains("no such file"));
    assert!(!path.exists());
}

#[tokio::test]
async fn lines_of_others_are_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    let one = batch(vec![("a", ints([7])), ("b", words(["x"]))]);
    for (before, after) in [
        ("a,b\r\n1,y", "a,b\r\n1,y\n7,x\n"),
        ("\u{feff}a,b\n", "\u{feff}a,b\n7,x\n"),
        ("\"a\",\"b\"\n1,\"two\nlines\"\n", "\"a\",\"b\"\n1,\"two\nlines\"\n7,x\n"),
        ("", "a,b\n7,x\n"),
    ] {
        fs::write(&path, before).unwrap();
        write(&path, Format::Csv, FileMode::Append, &one).await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), after);
    }
}

#[tokio::test]
async fn of_two_that_add_rows_none_loses_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    write(&path, Format::Csv, FileMode::Replace, &rows(1)).await.unwrap();
    let options = || WriteOptions { mode: FileMode::Append, ..WriteOptions::default() };
    let open = || create(Target::File(path.clone()), Format::Csv, rows(1).schema(), options());
    let first = open().unwrap();
    let second = open().err().unwrap();
    assert!(second.to_string().contains("another program adds rows"), "{second}");
    // What changes the file without a lock is noticed at the end.
    fs::write(&path, "a,\"b,c\"\n").unwrap();
    let changed = first.finish().await.unwrap_err();
    assert!(changed.to_string().contains("changed it meanwhile"), "{changed}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "a,\"b,c\"\n");
    // The same for a file that did not exist.
    fs::remove_file(&path).unwrap();
    let (first, second) = (open().unwrap(), open().unwrap());
    first.finish().await.unwrap();
    second.finish().await.unwrap_err();
}

#[tokio::test]
async fn a_folder_gets_another_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    for _ in 0..3 {
        let target = Target::Folder(path.clone(), Format::Parquet);
        write_to(target, Format::Parquet, FileMode::Replace, &rows(1)).await.unwrap();
    }
    let names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 3);
    assert!(
        names.iter().all(|name| name.extension().is_some_and(|extension| extension == "parquet")),
        "{names:?}"
    );
}
