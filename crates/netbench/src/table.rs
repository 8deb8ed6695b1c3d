//! A table of rows in a CSV file.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use csv::StringRecord;

use crate::cpu::Cpu;
use crate::error::NetbenchError;
use crate::row::{Cell, Row, Settings};
use crate::stats::Latency;
use crate::whole;

const COLUMNS: [&str; 19] = [
    "hosts",
    "seconds",
    "latency_seconds",
    "both_ways",
    "delay_ms",
    "nodelay",
    "connections",
    "message_bytes",
    "latency_failures",
    "flood_failures",
    "failure",
    "throughput_bytes_per_second",
    "returned_bytes_per_second",
    "messages_per_second",
    "bytes_arrived",
    "client_process_percent",
    "client_system_percent",
    "server_process_percent",
    "server_system_percent",
];
/// Columns of each latency, prefixed by its name.
const TIMES: [&str; 10] =
    ["count", "min_us", "avg_us", "p1_us", "p25_us", "p50_us", "p75_us", "p99_us", "p999_us", "max_us"];
const LATENCIES: [&str; 2] = ["latency", "loaded_latency"];

fn columns() -> Vec<String> {
    let times = |latency: &str| TIMES.map(|time| format!("{latency}_{time}"));
    COLUMNS.map(str::to_owned).into_iter().chain(LATENCIES.into_iter().flat_map(times)).collect()
}

/// Results of one or more sweeps, including earlier ones.
#[derive(Debug)]
pub struct ResultTable {
    path: PathBuf,
    rows: Vec<Row>,
}

impl ResultTable {
    /// Reads the file; the table is empty if it does not exist.
    ///
    /// # Errors
    /// [`NetbenchError::Io`]; [`NetbenchError::Damaged`] if the file is not such a table. It is not
    /// overwritten.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, NetbenchError> {
        let path = path.into();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self { path, rows: Vec::new() }),
            Err(source) => return Err(NetbenchError::Io { path, source }),
        };
        let rows = read(&text).map_err(|why| NetbenchError::Damaged { path: path.clone(), why })?;
        Ok(Self { path, rows })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The servers of each row.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.hosts.as_str())
    }

    /// All rows for these hosts and settings, ordered by connections and message size.
    pub fn rows(&self, hosts: &str, settings: &Settings) -> Vec<Row> {
        let mut rows: Vec<_> = self.rows.iter().filter(|row| is_of(row, hosts, settings)).cloned().collect();
        rows.sort_by_key(|row| row.cell);
        rows
    }

    /// The row of a cell.
    pub fn find(&self, hosts: &str, settings: &Settings, cell: Cell) -> Option<&Row> {
        self.rows.iter().find(|row| row.cell == cell && is_of(row, hosts, settings))
    }

    /// Adds a row, or replaces an earlier one for the same cell, and writes the file.
    ///
    /// # Errors
    /// [`NetbenchError::Io`].
    pub fn put(&mut self, row: Row) -> Result<(), NetbenchError> {
        let is_same = |other: &&mut Row| other.cell == row.cell && is_of(other, &row.hosts, &row.settings);
        match self.rows.iter_mut().find(is_same) {
            Some(place) => *place = row,
            None => self.rows.push(row),
        }
        let io = |source| NetbenchError::Io { path: self.path.clone(), source };
        let mut writer = csv::Writer::from_writer(Vec::new());
        let written = std::iter::once(columns()).chain(self.rows.iter().map(record));
        for fields in written {
            writer.write_record(fields).map_err(|error| io(error.into()))?;
        }
        let text = writer.into_inner().map_err(|error| io(error.into_error()))?;
        whole::write(&self.path, &text)
    }
}

fn is_of(row: &Row, hosts: &str, settings: &Settings) -> bool {
    row.hosts == hosts && row.settings == *settings
}

/// The fields of a row in the order of the columns. An unknown number is an empty field.
fn record(row: &Row) -> Vec<String> {
    fn known<T: ToString>(value: Option<T>) -> String {
        value.map_or(String::new(), |value| value.to_string())
    }
    let latency = |latency: Option<Latency>| {
        let count = known(latency.map(|l| l.count));
        let times = latency.map(|l| {
            [l.min_us, l.avg_us, l.p1_us, l.p25_us, l.p50_us, l.p75_us, l.p99_us, l.p999_us, l.max_us]
        });
        let times = (0..TIMES.len() - 1).map(move |at| known(times.map(|times| times[at])));
        std::iter::once(count).chain(times)
    };
    let fixed = [
        row.hosts.clone(),
        row.settings.seconds.to_string(),
        row.settings.latency_seconds.to_string(),
        row.settings.both_ways.to_string(),
        row.settings.delay_ms.to_string(),
        row.settings.nodelay.to_string(),
        row.cell.connections.to_string(),
        row.cell.message_bytes.to_string(),
        row.latency_failures.to_string(),
        row.flood_failures.to_string(),
        row.failure.clone().unwrap_or_default(),
        known(row.throughput_bytes_per_second),
        known(row.returned_bytes_per_second),
        known(row.messages_per_second),
        row.bytes_arrived.to_string(),
        known(row.client_cpu.process_percent),
        known(row.client_cpu.system_percent),
        known(row.server_cpu.process_percent),
        known(row.server_cpu.system_percent),
    ];
    fixed.into_iter().chain(latency(row.latency)).chain(latency(row.loaded_latency)).collect()
}

fn read(text: &[u8]) -> Result<Vec<Row>, String> {
    let mut reader = csv::Reader::from_reader(text);
    let header = reader.headers().map_err(|e| e.to_string())?;
    if !header.iter().eq(columns()) {
        return Err("it has other columns than the table of a sweep".into());
    }
    let numbered = reader.records().zip(2..);
    let row = |(record, line): (csv::Result<StringRecord>, u64)| {
        let record = record.map_err(|e| e.to_string())?;
        row(&record).map_err(|column| format!("line {line}: {column} has an invalid value"))
    };
    numbered.map(row).collect()
}

/// Parses a row. The error is the name of the invalid column.
fn row(record: &StringRecord) -> Result<Row, String> {
    struct Fields<'a>(&'a StringRecord, usize);
    impl Fields<'_> {
        fn next<T: FromStr>(&mut self) -> Result<T, String> {
            let column = self.1;
            self.1 += 1;
            let field = self.0.get(column).and_then(|field| field.parse().ok());
            field.ok_or_else(|| columns().swap_remove(column))
        }

        fn known<T: FromStr>(&mut self) -> Result<Option<T>, String> {
            if self.0.get(self.1).is_some_and(str::is_empty) {
                self.1 += 1;
                return Ok(None);
            }
            self.next().map(Some)
        }

        fn cpu(&mut self) -> Result<Cpu, String> {
            Ok(Cpu { process_percent: self.known()?, system_percent: self.known()? })
        }

        fn latency(&mut self) -> Result<Option<Latency>, String> {
            let Some(count) = self.known()? else {
                self.1 += TIMES.len() - 1;
                return Ok(None);
            };
            Ok(Some(Latency {
                count,
                min_us: self.next()?,
                avg_us: self.next()?,
                p1_us: self.next()?,
                p25_us: self.next()?,
                p50_us: self.next()?,
                p75_us: self.next()?,
                p99_us: self.next()?,
                p999_us: self.next()?,
                max_us: self.next()?,
            }))
        }
    }
    let mut fields = Fields(record, 0);
    Ok(Row {
        hosts: fields.next()?,
        settings: Settings {
            seconds: fields.next()?,
            latency_seconds: fields.next()?,
            both_ways: fields.next()?,
            delay_ms: fields.next()?,
            nodelay: fields.next()?,
        },
        cell: Cell { connections: fields.next()?, message_bytes: fields.next()? },
        latency_failures: fields.next()?,
        flood_failures: fields.next()?,
        failure: fields.known()?,
        throughput_bytes_per_second: fields.known()?,
        returned_bytes_per_second: fields.known()?,
        messages_per_second: fields.known()?,
        bytes_arrived: fields.next()?,
        client_cpu: fields.cpu()?,
        server_cpu: fields.cpu()?,
        latency: fields.latency()?,
        loaded_latency: fields.latency()?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn some_row(connections: u32, message_bytes: u32, rate: f64) -> Row {
        let latency = |us: f64| Latency {
            count: 10,
            min_us: us,
            avg_us: us * 1.1,
            p1_us: us,
            p25_us: us,
            p50_us: us * 1.05,
            p75_us: us * 1.2,
            p99_us: us * 2.0,
            p999_us: us * 3.0,
            max_us: us * 4.0,
        };
        Row {
            hosts: "a:1".into(),
            throughput_bytes_per_second: Some(rate),
            messages_per_second: Some(rate / f64::from(message_bytes)),
            latency: Some(latency(12.5)),
            loaded_latency: Some(latency(125.0)),
            client_cpu: Cpu { process_percent: Some(90.0), system_percent: Some(45.0) },
            ..Row::new(&[], &Settings::default(), Cell { connections, message_bytes })
        }
    }

    #[test]
    fn rows_are_saved_and_each_cell_has_one_row() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("not/there/yet.csv");
        let mut table = ResultTable::open(&path).expect("none yet");
        let failed = Row {
            failure: Some("refused: \"no\",\nreally".into()),
            flood_failures: 4,
            throughput_bytes_per_second: None,
            loaded_latency: None,
            ..some_row(4, 256, 0.0)
        };
        let rows = [some_row(4, 1024, 5e6), failed, some_row(2, 1024, 1.0 / 3.0)];
        rows.iter().for_each(|row| table.put(row.clone()).expect("written"));
        let other = Row { settings: Settings { nodelay: false, ..rows[0].settings }, ..rows[0].clone() };
        table.put(other.clone()).expect("written");
        table.put(Row { bytes_arrived: 7, ..rows[0].clone() }).expect("written");

        let again = ResultTable::open(&path).expect("read");
        let found = again.rows("a:1", &rows[0].settings);
        assert_eq!(found, [rows[2].clone(), rows[1].clone(), Row { bytes_arrived: 7, ..rows[0].clone() }]);
        assert_eq!(again.rows("a:1", &other.settings), [other]);
        assert!(again.find("a:1", &rows[0].settings, rows[1].cell).is_some());
        assert!(again.find("b:1", &rows[0].settings, rows[1].cell).is_none());
        assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("there").count(), 1);
    }

    #[test]
    fn a_damaged_table_is_an_error_that_names_the_fault() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("results.csv");
        ResultTable::open(&path).expect("none").put(some_row(2, 256, 1.0)).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        for (spoilt, why) in [
            ("a,b\n1,2\n".to_owned(), "other columns"),
            (text.replace("a:1,1,", "a:1,soon,"), "line 2: seconds"),
            (text.replace(",12.5,", ",x,"), "latency_min_us"),
            (text.replace("\na:1,", "\n"), "record"),
        ] {
            assert_ne!(spoilt, text);
            std::fs::write(&path, &spoilt).expect("written");
            let error = ResultTable::open(&path).expect_err(&spoilt);
            assert!(matches!(error, NetbenchError::Damaged { .. }));
            assert!(error.to_string().contains(why), "{error}");
        }
        std::fs::remove_file(&path).and_then(|()| std::fs::create_dir(&path)).expect("a folder");
        assert!(matches!(ResultTable::open(&path), Err(NetbenchError::Io { .. })));
    }

    proptest! {
        #[test]
        fn rows_survive_a_round_trip(
            seconds in 0.001f64..600.0,
            rate in prop::option::of(0.0f64..1e12),
            percent in prop::option::of(0.0f64..6400.0),
            bytes: u64,
            failure in prop::option::of(".{1,20}"),
        ) {
            let mut row = some_row(2, 256, 1.0);
            row.settings.seconds = seconds;
            row.throughput_bytes_per_second = rate;
            row.server_cpu.process_percent = percent;
            row.bytes_arrived = bytes;
            row.failure = failure;
            let record = StringRecord::from(record(&row));
            prop_assert_eq!(super::row(&record), Ok(row));
        }
    }
}
