//! Every format with random data of every type, and files with the failures that
//! can happen to them.

use std::fs;
use std::future::Future;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow_array::builder::{DurationSecondBuilder, ListBuilder};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryArray, Date64Array, DictionaryArray, DurationSecondArray, Float64Array,
    Int32Array, Int64Array, IntervalMonthDayNanoArray, RecordBatch, RecordBatchOptions, StringArray,
    Time32SecondArray, TimestampMicrosecondArray, TimestampSecondArray,
};
use arrow_buffer::IntervalMonthDayNano;
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use lightship_sources::writers::{Compression, Format, Target, TextOptions, WriteOptions, create};
use lightship_sources::{Result, SourceError, Written};
use lightship_testkit::arrays;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;

const FORMATS: [Format; 7] = [
    Format::ArrowFile,
    Format::ArrowStream,
    Format::Parquet,
    Format::Csv,
    Format::Json,
    Format::Table,
    Format::Vertical,
];

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

fn write_with(
    path: &Path,
    format: Format,
    schema: SchemaRef,
    batches: &[RecordBatch],
    options: WriteOptions,
) -> Result<Written> {
    block_on(async {
        let mut destination = create(Target::File(path.into()), format, schema, options)?;
        for batch in batches {
            destination.write(batch.clone()).await?;
        }
        destination.finish().await
    })
}

fn write(path: &Path, format: Format, batches: &[RecordBatch]) -> Result<Written> {
    write_with(path, format, batches[0].schema(), batches, WriteOptions::default())
}

/// The batches as written in a format. Checks the reported counts.
fn bytes_of(format: Format, batches: &[RecordBatch]) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out");
    let written = write(&path, format, batches)?;
    let bytes = fs::read(&path).expect("written");
    assert_eq!(written.bytes, bytes.len() as u64);
    assert_eq!(written.rows, batches.iter().map(|b| b.num_rows() as u64).sum::<u64>());
    Ok(bytes)
}

fn text_of(format: Format, batches: &[RecordBatch]) -> String {
    String::from_utf8(bytes_of(format, batches).expect("written")).expect("text")
}

/// Asserts the same values in the same order; types may differ by encoding only.
fn assert_same_values(read: &[RecordBatch], written: &[RecordBatch]) {
    let texts = |batches: &[RecordBatch], column: usize| -> Vec<Option<String>> {
        let options = FormatOptions::new();
        let mut texts = Vec::new();
        for batch in batches {
            let array = batch.column(column);
            let nulls = array.logical_nulls();
            let values = ArrayFormatter::try_new(array, &options).expect("printable");
            texts.extend((0..array.len()).map(|row| match &nulls {
                Some(nulls) if nulls.is_null(row) => None,
                _ => Some(values.value(row).try_to_string().expect("printable")),
            }));
        }
        texts
    };
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    assert_eq!(rows(read), rows(written));
    for column in 0..written[0].num_columns() {
        assert_eq!(texts(read, column), texts(written, column));
    }
}

/// Whether files may hold the type, or one nested in it, as another type.
fn is_encoded(data_type: &DataType) -> bool {
    let text = format!("{data_type:?}");
    let parts = ["Dictionary", "RunEndEncoded", "Decimal32(1,", "Second"];
    parts.iter().any(|part| text.contains(part)) || is_retyped(data_type)
}

/// Whether Parquet has values of the type, or of one nested in it, in another form, which other tests check.
fn is_retyped(data_type: &DataType) -> bool {
    let text = format!("{data_type:?}");
    ["Date64", "Interval(", "Duration("].iter().any(|part| text.contains(part))
}

/// Whether the library prints the values of a type as we do. Other tests check those that differ.
fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_plain(values),
        DataType::RunEndEncoded(_, values) => is_plain(values.data_type()),
        DataType::FixedSizeBinary(_) => false,
        other => !(other.is_nested() || other.is_temporal() || other.is_binary()),
    }
}

fn read_parquet(bytes: Vec<u8>) -> (SchemaRef, Vec<RecordBatch>) {
    let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes)).expect("a footer");
    let schema = reader.schema().clone();
    (schema, reader.build().expect("a reader").map(|batch| batch.expect("a batch")).collect())
}

fn column(name: &str, array: impl Array + 'static) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([(name, Arc::new(array) as ArrayRef, true)]).expect("a batch")
}

fn sample() -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from(vec![1, 20, 300])) as ArrayRef, false),
        ("name", Arc::new(StringArray::from(vec![Some("Ann, \"A\""), None, Some("")])), true),
        ("score", Arc::new(Float64Array::from(vec![Some(1.5), Some(2.25), None])), true),
        (
            "at",
            Arc::new(TimestampMicrosecondArray::from(vec![0, 1_500_000, -1]).with_timezone("Europe/Paris")),
            false,
        ),
    ])
    .expect("a batch")
}

#[test]
fn csv_follows_rfc_4180_and_distinguishes_null_from_empty() {
    let expected = "id,name,score,at\n\
                    1,\"Ann, \"\"A\"\"\",1.5,1970-01-01T01:00:00+01:00\n\
                    20,,2.25,1970-01-01T01:00:01.500+01:00\n\
                    300,\"\",,1970-01-01T00:59:59.999999+01:00\n";
    assert_eq!(text_of(Format::Csv, &[sample()]), expected);
    // An empty line is NULL, also for psql; `""` would not be a number.
    assert_eq!(text_of(Format::Csv, &[column("a", Int32Array::from(vec![None, Some(1)]))]), "a\n\n1\n");
    let texts = StringArray::from(vec![None, Some(""), Some("x")]);
    assert_eq!(text_of(Format::Csv, &[column("a", texts)]), "a\n\n\"\"\nx\n");
}

#[test]
fn json_lines_hold_every_column_of_every_row() {
    let expected = concat!(
        r#"{"id":1,"name":"Ann, \"A\"","score":1.5,"at":"1970-01-01T01:00:00+01:00"}"#,
        "\n",
        r#"{"id":20,"name":null,"score":2.25,"at":"1970-01-01T01:00:01.500+01:00"}"#,
        "\n",
        r#"{"id":300,"name":"","score":null,"at":"1970-01-01T00:59:59.999999+01:00"}"#,
        "\n"
    );
    assert_eq!(text_of(Format::Json, &[sample()]), expected);
}

#[test]
fn json_writes_nulls_in_the_values_of_a_dictionary() {
    let values = Int64Array::from(vec![Some(7), None]);
    let array = DictionaryArray::new(Int32Array::from(vec![Some(0), Some(1), None]), Arc::new(values));
    let expected = "{\"d\":7}\n{\"d\":null}\n{\"d\":null}\n";
    assert_eq!(text_of(Format::Json, &[column("d", array)]), expected);
}

#[test]
fn times_that_cannot_be_printed_are_errors() {
    for format in [Format::Csv, Format::Json] {
        let batch = column("t", TimestampMicrosecondArray::from(vec![0, i64::MAX]));
        match bytes_of(format, &[batch]) {
            Err(SourceError::Unfit { row, column, .. }) => assert_eq!((row, &*column), (2, "t")),
            other => panic!("{format:?}: {other:?}"),
        }
    }
}

#[test]
fn json_refuses_nan_and_infinity() {
    use arrow_array::builder::{Float32Builder, ListBuilder};
    let floats = Float64Array::from(vec![Some(1.5), None, Some(f64::NAN)]);
    let mut lists = ListBuilder::new(Float32Builder::new());
    lists.append_value([Some(1.0), None]);
    lists.append_null();
    lists.append_value([Some(2.0), Some(f32::NEG_INFINITY)]);
    for batch in [column("x", floats), column("x", lists.finish())] {
        // Rows are counted over all batches.
        let error = bytes_of(Format::Json, &[batch.slice(0, 2), batch.clone()]).expect_err("no number");
        let SourceError::Unfit { row, column, hint, .. } = &error else { panic!("{error:?}") };
        assert_eq!((*row, &**column, hint.is_some()), (5, "x", true));
        // Values outside of a slice don't count.
        assert_eq!(text_of(Format::Json, &[batch.slice(0, 2)]).lines().count(), 2);
    }
    let floats = Float64Array::from(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    assert_eq!(text_of(Format::Csv, &[column("x", floats)]), "x\nNaN\ninf\n-inf\n");
}

#[test]
fn only_tables_accept_two_columns_of_the_same_name() {
    let schema = Schema::new(vec![
        Field::new("a", DataType::Int32, true),
        Field::new("b", DataType::Int32, true),
        Field::new("a", DataType::Int32, true),
    ]);
    let folder = tempfile::tempdir().expect("a folder");
    for format in FORMATS {
        let target = Target::File(folder.path().join("x"));
        let made = create(target, format, Arc::new(schema.clone()), WriteOptions::default()).map(|_| ());
        match (format, made) {
            (Format::Table | Format::Vertical, Ok(())) => {}
            (_, Err(SourceError::DuplicateColumn { name, first: 1, second: 3 })) => assert_eq!(name, "a"),
            (format, other) => panic!("{format:?}: {other:?}"),
        }
    }
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn tables_show_the_first_rows_and_count_the_rest() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("table");
    let show = |batches: &[RecordBatch], table_rows| {
        let options = WriteOptions { table_rows, table_value_width: 12, ..WriteOptions::default() };
        write_with(&path, Format::Table, batches[0].schema(), batches, options).expect("written");
        fs::read_to_string(&path).expect("text")
    };
    let expected = [
        " id │ name     │ score │ at",
        "────┼──────────┼───────┼──────────────",
        "  1 │ Ann, \"A\" │   1.5 │ 1970-01-01T…",
        " 20 │ NULL     │  2.25 │ 1970-01-01T…",
        "… 4 more rows",
    ];
    assert_eq!(show(&[sample(), sample()], 2).lines().collect::<Vec<_>>(), expected);
    assert!(!show(&[sample()], 3).contains("more"), "no rest");
    assert!(show(&[sample().slice(0, 0)], 3).ends_with("(0 rows)\n"));
    let empty = RecordBatchOptions::new().with_row_count(Some(7));
    let empty = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &empty).expect("rows");
    assert_eq!(show(&[empty], 3), "(7 rows)\n");
}

#[test]
fn types_that_a_format_cannot_hold_are_refused_before_the_target_is_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |format: Format, fields: Vec<Field>, words: &[&str]| {
        let target = Target::File(folder.path().join("missing").join("file"));
        let schema = Arc::new(Schema::new(fields));
        match create(target, format, schema, WriteOptions::default()).map(|_| ()) {
            Err(SourceError::Unsupported(text)) => {
                words.iter().for_each(|word| assert!(text.contains(word), "{text}"));
            }
            other => panic!("{format:?}: {other:?}"),
        }
    };
    let twice = || vec![Field::new("a", DataType::Int32, true), Field::new("a", DataType::Utf8, true)];
    let union = arrays::every_type_schema().fields().last().expect("a union").as_ref().clone().with_name("u");
    check(Format::Json, vec![union.clone()], &["JSON", "`u`", "arrow"]);
    for format in [Format::Json, Format::Parquet] {
        check(format, vec![Field::new("s", DataType::Struct(twice().into()), true)], &["`s`", "`a`"]);
    }
    check(Format::Csv, vec![union.clone()], &["CSV", "`u`", "arrow"]);
    check(Format::Csv, vec![Field::new("s", DataType::Struct(twice().into()), true)], &["CSV", "`s`", "`a`"]);
    check(Format::Csv, vec![], &["columns"]);
    check(Format::Parquet, vec![union], &["Parquet", "`u`", "arrow"]);
    check(Format::Parquet, vec![], &["columns"]);
}

#[test]
fn every_type_reads_back_from_an_arrow_stream() {
    let batch = arrays::every_type(100, 1);
    let bytes = bytes_of(Format::ArrowStream, std::slice::from_ref(&batch)).expect("written");
    let read = arrow_ipc::reader::StreamReader::try_new(&bytes[..], None).expect("a stream");
    assert_eq!(read.map(|b| b.expect("a batch")).collect::<Vec<_>>(), [batch]);
}

/// Checks the type and the values that Parquet returns for a column.
fn check_parquet(array: impl Array + 'static, data_type: &DataType, expected: &[&str]) {
    let read = read_parquet(bytes_of(Format::Parquet, &[column("v", array)]).expect("written")).1;
    assert_eq!(read[0].column(0).data_type(), data_type);
    let texts = ArrayFormatter::try_new(read[0].column(0), &FormatOptions::new()).expect("printable");
    let texts: Vec<_> = (0..expected.len()).map(|row| texts.value(row).to_string()).collect();
    assert_eq!(texts, expected);
}

#[test]
fn parquet_has_times_of_its_own_types_and_intervals_as_text() {
    let milliseconds = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Millisecond, zone.map(Into::into));
    let seconds = || TimestampSecondArray::from(vec![Some(-1), None]);
    check_parquet(seconds(), &milliseconds(None), &["1969-12-31T23:59:59", ""]);
    let zoned = seconds().with_timezone("+02:00");
    check_parquet(zoned, &milliseconds(Some("+02:00")), &["1970-01-01T01:59:59+02:00", ""]);
    let times = Time32SecondArray::from(vec![86_399]);
    check_parquet(times, &DataType::Time32(TimeUnit::Millisecond), &["23:59:59"]);
    let dates = Date64Array::from(vec![Some(-86_400_000), None]);
    check_parquet(dates, &DataType::Date32, &["1969-12-31", ""]);
    let interval = IntervalMonthDayNano::new(14, -3, 5_000_000_001);
    let intervals = IntervalMonthDayNanoArray::from(vec![Some(interval), None]);
    check_parquet(intervals, &DataType::Utf8, &["1 year 2 mons -3 days 00:00:05.000000001", ""]);
    check_parquet(DurationSecondArray::from(vec![90_061]), &DataType::Utf8, &["25:01:01"]);
    let mut lists = ListBuilder::new(DurationSecondBuilder::new());
    lists.append_value([Some(1), None]);
    let list = DataType::List(Arc::new(Field::new("item", DataType::Utf8, true)));
    check_parquet(lists.finish(), &list, &["[00:00:01, ]"]);
}

#[test]
fn parquet_refuses_times_that_its_types_cannot_hold() {
    let check = |array: ArrayRef, words: &str| {
        let batch = RecordBatch::try_from_iter([("v", array)]).expect("a batch");
        match bytes_of(Format::Parquet, &[batch]) {
            Err(SourceError::Unfit { row: 2, column, reason, .. }) => {
                assert!(column == "v" && reason.contains(words), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    };
    check(Arc::new(Date64Array::from(vec![0, 1])), "time of day");
    check(Arc::new(Date64Array::from(vec![0, 86_400_000 * (1 << 32)])), "32 bits");
    check(Arc::new(TimestampSecondArray::from(vec![0, i64::MAX])), "verflow");
}

#[test]
fn a_parquet_file_keeps_types_and_metadata() {
    let batch = arrays::every_type(100, 2);
    let takes = |field: &Field| {
        let one = Arc::new(Schema::new(vec![field.clone()]));
        create(Target::File("/dev/null".into()), Format::Parquet, one, WriteOptions::default()).is_ok()
    };
    let schema = batch.schema();
    let kept: Vec<usize> = (0..schema.fields().len()).filter(|&i| takes(schema.field(i))).collect();
    assert_eq!(schema.fields().len() - kept.len(), 3, "two unions, an empty struct");
    let kept: Vec<usize> = kept.into_iter().filter(|&i| !is_retyped(schema.field(i).data_type())).collect();
    let batch = batch.project(&kept).expect("columns");
    let (schema, read) =
        read_parquet(bytes_of(Format::Parquet, std::slice::from_ref(&batch)).expect("written"));
    for (got, want) in schema.fields().iter().zip(batch.schema().fields()) {
        assert!(got.data_type() == want.data_type() || is_encoded(want.data_type()), "{got:?} {want:?}");
    }
    assert_same_values(&read, &[batch]);
}

/// Row groups suit readers whatever the memory is: pages beyond it wait in a temporary file.
#[test]
fn parquet_with_little_memory_writes_large_row_groups() {
    const ROWS: i64 = 1_300_000;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    let schema = Arc::new(Schema::new(vec![
        Field::new("n", DataType::Int64, false),
        Field::new("t", DataType::Utf8, true),
    ]));
    let batches: Vec<_> = (0..ROWS / 100_000)
        .map(|at| {
            let numbers = at * 100_000..(at + 1) * 100_000;
            let n =
                Int64Array::from_iter_values(numbers.clone().map(|i| i.wrapping_mul(0x1e37_79b9_7f4a_7c15)));
            let t = StringArray::from_iter(
                numbers.zip(n.values()).map(|(i, n)| (i % 3 > 0).then(|| format!("{:x}", n >> (i % 50)))),
            );
            RecordBatch::try_new(schema.clone(), vec![Arc::new(n), Arc::new(t)]).expect("a batch")
        })
        .collect();
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd(3)] {
        let options = WriteOptions { memory_bytes: 1 << 20, compression, ..WriteOptions::default() };
        let written = write_with(&path, Format::Parquet, schema.clone(), &batches, options);
        assert_eq!(written.expect("written").rows, ROWS as u64);
        assert_eq!(names(folder.path()), ["x.parquet"]);
        let (_, read) = read_parquet(fs::read(&path).expect("a file"));
        assert_same_values(&read, &batches);
        let file = fs::File::open(&path).expect("a file");
        let metadata = ParquetRecordBatchReaderBuilder::try_new(file).expect("a footer").metadata().clone();
        let rows: Vec<_> = metadata.row_groups().iter().map(|group| group.num_rows()).collect();
        assert_eq!(rows, [1 << 20, ROWS - (1 << 20)]);
    }
}

#[test]
fn large_values_end_a_row_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.parquet");
    let batch = |seed: u64| {
        let mut state = seed;
        let value: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(4 << 20)
        .collect();
        column("b", BinaryArray::from_iter_values([value]))
    };
    let batches: Vec<_> = (0..40).map(batch).collect();
    let options =
        WriteOptions { memory_bytes: 1 << 20, compression: Compression::None, ..WriteOptions::default() };
    write_with(&path, Format::Parquet, batches[0].schema(), &batches, options).expect("written");
    let (_, read) = read_parquet(fs::read(&path).expect("a file"));
    let values = |batches: &[RecordBatch]| -> Vec<Vec<u8>> {
        let values = |batch: &RecordBatch| {
            batch.column(0).as_binary::<i32>().iter().flatten().map(Vec::from).collect()
        };
        batches.iter().flat_map(|batch| -> Vec<Vec<u8>> { values(batch) }).collect()
    };
    assert!(values(&read) == values(&batches));
    let file = fs::File::open(&path).expect("a file");
    let metadata = ParquetRecordBatchReaderBuilder::try_new(file).expect("a footer").metadata().clone();
    // 128 MiB, and the rest.
    assert_eq!(metadata.num_row_groups(), 2);
}

// ---- text

fn written_as(name: &str, batch: &RecordBatch, text: TextOptions) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    let format = Format::from_path(&path).expect("a format");
    let options = WriteOptions { text, ..WriteOptions::default() };
    let written = write_with(&path, format, batch.schema(), std::slice::from_ref(batch), options);
    let bytes = fs::read(&path).expect("written");
    assert_eq!(written.expect("written").bytes, bytes.len() as u64);
    bytes
}

#[test]
fn names_and_options_say_how_text_is_written() {
    let batch = sample().project(&[0, 1]).expect("columns");
    let text = |name: &str, options: TextOptions| {
        String::from_utf8(written_as(name, &batch, options)).expect("text")
    };
    let tabs = "id\tname\n1\t\"Ann, \"\"A\"\"\"\n20\t\n300\t\"\"\n";
    assert_eq!(text("x.tsv", TextOptions::default()), tabs);
    assert_eq!(text("x.csv", TextOptions { delimiter: Some(b'\t'), ..TextOptions::default() }), tabs);
    assert_eq!(
        text("x.psv", TextOptions { header: false, ..TextOptions::default() }).lines().nth(1),
        Some("20|")
    );
    let options = TextOptions { null: "20".into(), quote: b'\'', ..TextOptions::default() };
    // A value like NULL is in quotes.
    assert_eq!(text("x.csv", options), "id,name\n1,'Ann, \"A\"'\n'20',20\n300,''\n");
}

#[test]
fn text_is_compressed_by_name() {
    let rows = StringArray::from_iter_values((0..300_000_i64).map(|i| format!("row {}", i * 7919 % 100_003)));
    let batch = column("t", rows);
    for name in ["x.csv", "x.json"] {
        let plain = written_as(name, &batch, TextOptions::default());
        let gzip = written_as(&format!("{name}.gz"), &batch, TextOptions::default());
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut read).expect("gzip");
        assert!(read == plain && gzip.len() * 2 < plain.len());
        let zstd = written_as(&format!("{name}.zst"), &batch, TextOptions::default());
        assert!(zstd::decode_all(&zstd[..]).expect("zstd") == plain && zstd.len() * 2 < plain.len());
    }
}

#[test]
fn a_table_fits_the_terminal_and_a_vertical_one_shows_all() {
    let columns: Vec<(String, ArrayRef)> = (0..6)
        .map(|i| (format!("c{i}"), Arc::new(StringArray::from(vec!["x".repeat(20)])) as ArrayRef))
        .collect();
    let batch = RecordBatch::try_from_iter(columns).expect("a batch");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("table");
    let show = |format, table_width| {
        let options = WriteOptions { table_width: Some(table_width), ..WriteOptions::default() };
        let batches = std::slice::from_ref(&batch);
        write_with(&path, format, batch.schema(), batches, options).expect("written");
        fs::read_to_string(&path).expect("text")
    };
    for width in [30, 60, 80, 200] {
        let text = show(Format::Table, width);
        let mut lines: Vec<_> = text.lines().collect();
        let note = if width < 200 { lines.pop() } else { None };
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{width}: {text}");
        let left_out = 6 - lines[0].split('│').count();
        let expected = format!(
            "… {left_out} more column{}; --format vertical shows all",
            if left_out == 1 { "" } else { "s" }
        );
        assert_eq!(note, (left_out > 0).then_some(&*expected), "{text}");
    }
    assert!(show(Format::Table, 80).contains("xxx… │"));
    let vertical = show(Format::Vertical, 80);
    assert!(vertical.starts_with("─[ row 1 ]"), "{vertical}");
    assert_eq!(vertical.lines().count(), 7);
    assert!(vertical.contains(&format!(" c5 │ {}\n", "x".repeat(20))), "{vertical}");
}

#[test]
fn a_result_without_rows_is_a_complete_file() {
    for format in FORMATS {
        let bytes = bytes_of(format, &[sample().slice(0, 0)]).expect("written");
        assert_eq!(bytes.is_empty(), format == Format::Json, "{format:?}");
    }
    let (schema, batches) =
        read_parquet(bytes_of(Format::Parquet, &[sample().slice(0, 0)]).expect("written"));
    assert_eq!((schema.fields(), batches.len()), (sample().schema().fields(), 0));
}

// ---- files

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_file_has_its_name_only_once_it_is_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.csv");
    fs::write(&path, "old").expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("set");
    block_on(async {
        let target = Target::File(path.clone());
        let mut destination =
            create(target, Format::Csv, sample().schema(), WriteOptions::default()).expect("open");
        destination.write(sample()).await.expect("written");
        assert_eq!(fs::read_to_string(&path).expect("the old file"), "old");
        // A process that is killed now leaves nothing.
        assert_eq!(names(folder.path()), ["x.csv"]);
        destination.finish().await.expect("whole");
    });
    assert_eq!(names(folder.path()), ["x.csv"]);
    assert!(fs::read_to_string(&path).expect("the new file").starts_with("id,"));
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_destination_dropped_halfway_leaves_nothing() {
    for format in FORMATS {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        block_on(async {
            let target = Target::File(path);
            let mut destination =
                create(target, format, sample().schema(), WriteOptions::default()).expect("open");
            destination.write(sample()).await.expect("written");
        });
        assert_eq!(names(folder.path()), [""; 0], "{format:?}");
    }
}

#[test]
fn a_link_is_followed_and_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    fs::write(&file, "old").expect("written");
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    write(&link, Format::Csv, &[sample()]).expect("written");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
    assert!(fs::read_to_string(&file).expect("the file").starts_with("id,"));
}

#[test]
fn errors_of_targets_name_the_path_and_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |path: &Path, kind: ErrorKind| match write(path, Format::Csv, &[sample()]) {
        Err(error @ SourceError::Io { .. }) => {
            assert_eq!(error.io_kind(), Some(kind), "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
        other => panic!("{}: {other:?}", path.display()),
    };
    check(folder.path(), ErrorKind::IsADirectory);
    check(&folder.path().join("missing/x.csv"), ErrorKind::NotFound);
    fs::write(folder.path().join("plain"), "").expect("written");
    check(&folder.path().join("plain/x.csv"), ErrorKind::NotADirectory);
}

#[test]
fn a_full_disk_is_reported_by_every_format() {
    for format in FORMATS {
        let error = write(Path::new("/dev/full"), format, &[sample()]).expect_err("full");
        assert_eq!(error.io_kind(), Some(ErrorKind::StorageFull), "{format:?}: {error}");
        write(Path::new("/dev/null"), format, &[sample()]).expect("swallowed");
    }
    assert!(!fs::metadata("/dev/null").expect("there").is_file(), "replaced a device");
}

/// Writes into a pipe whose reader takes `take` bytes and leaves.
fn write_to_reader(format: Format, batches: usize, take: u64) -> (Result<Written>, Vec<u8>) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo").success());
    let from = path.clone();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        fs::File::open(from).expect("a pipe").take(take).read_to_end(&mut bytes).expect("bytes");
        bytes
    });
    // Data that no format compresses: a pipe takes 64 KiB without a reader.
    let batches: Vec<_> = (0..batches as u64)
        .map(|seed| column("a", arrays::array_of(&DataType::Int64, false, 4000, seed)))
        .collect();
    let written = write(&path, format, &batches);
    (written, reader.join().expect("the reader"))
}

#[test]
fn a_pipe_takes_every_format() {
    for format in FORMATS {
        let (written, read) = write_to_reader(format, 3, u64::MAX);
        assert_eq!(written.expect("written").bytes, read.len() as u64, "{format:?}");
    }
}

#[test]
fn a_reader_that_leaves_is_a_broken_pipe() {
    for format in [Format::ArrowFile, Format::ArrowStream, Format::Parquet, Format::Csv, Format::Json] {
        let (written, _) = write_to_reader(format, 40, 10);
        let error = written.expect_err("nobody reads");
        assert_eq!(error.io_kind(), Some(ErrorKind::BrokenPipe), "{format:?}: {error}");
    }
}

#[test]
fn batches_of_another_schema_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let batches = [sample(), column("other", Int32Array::from(vec![1]))];
    let error = write(&folder.path().join("x"), Format::Csv, &batches).expect_err("another schema");
    assert!(matches!(error, SourceError::Arrow(_)), "{error}");
    assert_eq!(names(folder.path()), [""; 0]);
}

// ---- random data

/// Lines and values of a CSV text; `None` is an empty value without quotes.
fn parse_csv(text: &str) -> Vec<Vec<Option<String>>> {
    let mut lines = Vec::new();
    let mut chars = text.chars().peekable();
    while chars.peek().is_some() {
        let mut line = Vec::new();
        loop {
            let mut value = String::new();
            let quoted = chars.next_if_eq(&'"').is_some();
            if quoted {
                while let Some(c) = chars.next() {
                    if c == '"' && chars.next_if_eq(&'"').is_none() {
                        break;
                    }
                    value.push(c);
                }
            } else {
                while let Some(c) = chars.next_if(|c| *c != ',' && *c != '\n') {
                    value.push(c);
                }
            }
            line.push((quoted || !value.is_empty()).then_some(value));
            if chars.next() != Some(',') {
                break;
            }
        }
        lines.push(line);
    }
    lines
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn arrow_streams_read_back(batches in arrays::any_batches()) {
        let bytes = bytes_of(Format::ArrowStream, &batches).expect("written");
        let read = arrow_ipc::reader::StreamReader::try_new(&bytes[..], None).expect("a stream");
        prop_assert_eq!(read.schema(), batches[0].schema());
        prop_assert_eq!(read.map(|b| b.expect("a batch")).collect::<Vec<_>>(), batches);
    }

    #[test]
    fn arrow_files_read_back(batches in arrays::any_batches()) {
        let bytes = bytes_of(Format::ArrowFile, &batches).expect("written");
        let read = arrow_ipc::reader::FileReader::try_new(std::io::Cursor::new(bytes), None).expect("a file");
        let read: Vec<_> = read.map(|b| b.expect("a batch")).collect();
        if batches[0].schema().fields().iter().any(|f| is_encoded(f.data_type())) {
            assert_same_values(&read, &batches);
        } else {
            prop_assert_eq!(read, batches);
        }
    }

    #[test]
    fn parquet_files_read_back(batches in arrays::any_batches()) {
        let is_retyped = batches[0].schema().fields().iter().any(|field| is_retyped(field.data_type()));
        match bytes_of(Format::Parquet, &batches) {
            Err(SourceError::Unsupported(_)) => {}
            // Dates with a time of day are refused.
            Err(SourceError::Unfit { .. }) if is_retyped => {}
            bytes if is_retyped => {
                let (_, read) = read_parquet(bytes.expect("written"));
                let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
                prop_assert_eq!(rows(&read), rows(&batches));
            }
            bytes => {
                let (schema, read) = read_parquet(bytes.expect("written"));
                for (got, want) in schema.fields().iter().zip(batches[0].schema().fields()) {
                    prop_assert!(got.data_type() == want.data_type() || is_encoded(want.data_type()));
                }
                assert_same_values(&read, &batches);
            }
        }
    }

    #[test]
    fn csv_values_read_back(batches in arrays::any_batches()) {
        match bytes_of(Format::Csv, &batches) {
            Err(SourceError::Unsupported(_)) => {}
            // Structures are JSON, which does not have all floats.
            Err(SourceError::Unfit { column, .. }) => {
                let field = batches[0].schema().field_with_name(&column).cloned().expect("a column");
                prop_assert!(field.data_type().is_nested(), "{field:?}");
            }
            bytes => {
                let text = String::from_utf8(bytes.expect("written")).expect("text");
                let mut lines = parse_csv(&text).into_iter();
                prop_assert_eq!(lines.next().expect("a header").len(), batches[0].num_columns());
                let options = FormatOptions::new();
                for batch in &batches {
                    let columns: Vec<_> = batch.columns().iter().map(|c| {
                        (c.logical_nulls(), ArrayFormatter::try_new(c, &options).expect("printable"))
                    }).collect();
                    for row in 0..batch.num_rows() {
                        let line = lines.next().expect("a line");
                        let expected: Vec<_> = columns.iter().enumerate().map(|(i, (nulls, values))| match nulls {
                            Some(nulls) if nulls.is_null(row) => None,
                            _ if !is_plain(batch.column(i).data_type()) => {
                                assert!(line[i].is_some());
                                line[i].clone()
                            }
                            _ => {
                                let text = values.value(row).to_string();
                                // Numbers without a declared precision are written without trailing zeros.
                                let is_open = matches!(batch.column(i).data_type(), DataType::Decimal256(76, 1..));
                                let short = text.trim_end_matches('0').trim_end_matches('.');
                                Some(if is_open { short.to_owned() } else { text })
                            }
                        }).collect();
                        prop_assert_eq!(line, expected);
                    }
                }
                prop_assert_eq!(lines.next(), None);
            }
        }
    }

    #[test]
    fn json_lines_are_objects_with_nulls_where_they_belong(batches in arrays::any_batches()) {
        match bytes_of(Format::Json, &batches) {
            Err(SourceError::Unsupported(_)) => {}
            // Another test checks which values these are.
            Err(SourceError::Unfit { column, .. }) => {
                let field = batches[0].schema().field_with_name(&column).cloned().expect("a column");
                let data_type = field.data_type().to_string();
                prop_assert!(data_type.contains("Float"), "{data_type}");
            }
            bytes => {
                let text = String::from_utf8(bytes.expect("written")).expect("text");
                let mut lines = text.lines();
                for batch in &batches {
                    for row in 0..batch.num_rows() {
                        let line: serde_json::Value =
                            serde_json::from_str(lines.next().expect("a line")).expect("JSON");
                        let object = line.as_object().expect("an object");
                        prop_assert_eq!(object.len(), batch.num_columns());
                        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
                            let is_null = column.logical_nulls().is_some_and(|nulls| nulls.is_null(row));
                            prop_assert!(!is_null || object[field.name()].is_null());
                            prop_assert!(is_null || !object[field.name()].is_null());
                        }
                    }
                }
                prop_assert_eq!(lines.next(), None);
            }
        }
    }

    #[test]
    fn tables_show_any_type(batches in arrays::any_batches()) {
        let text = String::from_utf8(bytes_of(Format::Table, &batches).expect("written")).expect("text");
        prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
    }
}
