//! Files of other writers: Python's own modules, pandas and pyarrow write thousands of random ones, and each value
//! is read as it was written.

use std::path::{Path, PathBuf};
use std::process::Command;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array as _, ArrayRef};
use arrow_schema::DataType;
use chrono::{DateTime, NaiveDateTime};
use datafusion::arrow::util::display::array_value_to_string;
use lightship_engine::{Engine, EngineConfig};
use serde::Deserialize;

use crate::support::run;

/// A file, and what is in it.
#[derive(Deserialize)]
struct Written {
    location: PathBuf,
    names: Vec<String>,
    rows: Vec<Vec<Option<String>>>,
}

/// Number of files; more with `LIGHTSHIP_FOREIGN_FILES`.
const FILES: &str = "600";

/// A Python with pandas and pyarrow, or any.
fn python() -> PathBuf {
    let venv = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/python-venv/bin/python");
    if venv.exists() { venv } else { "python3".into() }
}

fn write(folder: &Path, count: &str, seed: &str) -> Vec<Written> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/foreign/write_files.py");
    let output = Command::new(python()).arg(script).arg(folder).args([count, seed]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether a column has the value that was written as this text.
fn is_same(column: &ArrayRef, row: usize, text: &str) -> bool {
    let shown = || array_value_to_string(column, row).unwrap();
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().value(row) == text,
        DataType::Boolean => shown() == text.to_lowercase(),
        DataType::Int64 => text.parse() == Ok(column.as_primitive::<Int64Type>().value(row)),
        DataType::Float64 => {
            let value = column.as_primitive::<Float64Type>().value(row);
            // No digit is lost: the double writes the text with as many.
            let all = digits(text);
            let written = all.trim_end_matches('0');
            let as_many = format!("{value:.*e}", written.len().max(1) - 1);
            text.parse::<f64>().is_ok_and(|read| read.to_bits() == value.to_bits())
                && digits(&as_many).trim_end_matches('0') == written
        }
        DataType::Decimal128(_, _) => {
            let plain = |number: &str| match number.split_once('.') {
                Some((whole, fraction)) => format!("{whole}.{}", fraction.trim_end_matches('0')),
                None => format!("{number}."),
            };
            plain(&shown()) == plain(text)
        }
        DataType::Date32 => shown() == text,
        DataType::Timestamp(_, zone) => {
            let with_t = text.replacen(' ', "T", 1);
            let written = match zone {
                None => {
                    with_t.parse::<NaiveDateTime>().or_else(|_| format!("{with_t}T00:00:00").parse()).ok()
                }
                Some(_) => ["%Y-%m-%dT%H:%M:%S%.f%#z", "%Y-%m-%dT%H:%M:%S%.f%z"]
                    .iter()
                    .find_map(|format| DateTime::parse_from_str(&with_t, format).ok())
                    .map(|time| time.naive_utc()),
            };
            let read = shown();
            let read = read.trim_end_matches('Z').parse::<NaiveDateTime>().ok();
            written.is_some() && written == read
        }
        _ => false,
    }
}

/// The digits of a number, without leading zeros and the exponent.
fn digits(text: &str) -> String {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    let all: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    all.trim_start_matches('0').to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_other_writers_are_read_as_they_were_written() {
    let folder = tempfile::tempdir().unwrap();
    let count = std::env::var("LIGHTSHIP_FOREIGN_FILES").unwrap_or(FILES.into());
    let seed = std::env::var("LIGHTSHIP_FOREIGN_SEED").unwrap_or("1".into());
    for Written { location, names, rows } in write(folder.path(), &count, &seed) {
        let shown = location.display();
        let mut engine = Engine::new(EngineConfig { partitions: 2, ..EngineConfig::default() }).unwrap();
        engine.register_path("t", &location).await.unwrap_or_else(|error| panic!("{shown}: {error}"));
        if names.is_empty() {
            continue;
        }
        let columns =
            names.iter().map(|name| format!("\"{}\"", name.replace('"', "\"\""))).collect::<Vec<_>>();
        let sql = format!("select {} from t", columns.join(", "));
        let batches = run(&engine, &sql).await.unwrap_or_else(|failure| panic!("{shown}: {failure:?}"));
        assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), rows.len(), "{shown}");
        let read = batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| (batch, row)));
        for (expected, (batch, row)) in rows.iter().zip(read) {
            for (place, text) in expected.iter().enumerate() {
                let column = batch.column(place);
                let same = match text {
                    None => column.is_null(row),
                    // In columns of other types than text, an empty value is NULL, with quotes too.
                    Some(text) if text.is_empty() && *column.data_type() != DataType::Utf8 => {
                        column.is_null(row)
                    }
                    Some(text) => !column.is_null(row) && is_same(column, row, text),
                };
                let found = array_value_to_string(column, row).unwrap();
                let (name, of) = (&names[place], column.data_type());
                assert!(same, "{shown}: {name:?} is {found:?} of {of}, but {text:?} was written");
            }
        }
    }
}
