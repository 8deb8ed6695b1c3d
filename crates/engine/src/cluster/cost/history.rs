//! What nodes sent each other in earlier queries, beside what they were expected to send: predictions compared with
//! facts. They are the table `cluster.edges`, and are kept on disk as an Arrow file of the same columns.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow_array::cast::AsArray as _;
use arrow_array::types::{Float64Type, TimestampMillisecondType, UInt64Type};
use arrow_array::{
    Array as _, ArrayRef, ArrowPrimitiveType, BooleanArray, Float64Array, PrimitiveArray, RecordBatch,
    StringArray, TimestampMillisecondArray, UInt64Array,
};
use arrow_schema::ArrowError;
use chrono::Utc;
use datafusion::arrow::ipc::reader::FileReader;
use datafusion::arrow::ipc::writer::FileWriter;
use datafusion::error::Result;

use crate::explained::{Edge, ExpectedEdge};

/// Edges that are kept; the oldest are forgotten first.
const EDGES_MAX: usize = 10_000;
/// They are written at most this often, and when the node leaves.
const WRITE_EVERY: Duration = Duration::from_secs(60);
/// A larger file is not read.
const BYTES_MAX: u64 = 64 << 20;

/// The edges of queries that were planned on this node and have ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EdgeHistory {
    past: Mutex<Past>,
    /// Without a file, nothing is stored.
    file: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Past {
    edges: VecDeque<PastEdge>,
    written: Option<Instant>,
}

/// An edge of a query that has ended.
#[derive(Debug, Clone, PartialEq)]
struct PastEdge {
    /// The number of the query, from 1, in the order in which they ended.
    query: u64,
    /// When that was, in milliseconds since 1970. It is only shown: clocks jump.
    ended_ms: i64,
    from_stage: u64,
    to_stage: u64,
    from_node: String,
    to_node: String,
    rows: u64,
    /// `None` if not everything was read.
    bytes: Option<u64>,
    seconds: f64,
    /// `None` if nothing was known of the rows.
    expected: Option<Expected>,
}

/// What was expected of it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Expected {
    is_known: bool,
    rows: f64,
    bytes: f64,
    seconds: f64,
}

impl EdgeHistory {
    /// The history that is kept in a file, with what is in it. A file that can't be read is left out: nothing depends on
    /// it.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let read = |path: &PathBuf| match read(path) {
            Ok(edges) => edges,
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "what nodes sent in earlier queries can't be read");
                VecDeque::new()
            }
        };
        let edges = file.as_ref().map(read).unwrap_or_default();
        Self { past: Mutex::new(Past { edges, written: None }), file }
    }

    fn lock(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what the nodes of a query were expected to send, and what they sent. Rows that stay on a node do not count.
    pub(crate) fn add(&self, expected: &[ExpectedEdge], sent: Vec<Edge>) {
        let key = |edge: &ExpectedEdge| {
            (edge.from_stage, edge.to_stage, edge.from_node.clone(), edge.to_node.clone())
        };
        let expected: HashMap<_, _> = expected.iter().map(|edge| (key(edge), edge)).collect();
        let mut past = self.lock();
        let query = past.edges.back().map_or(1, |edge| edge.query + 1);
        let ended_ms = Utc::now().timestamp_millis();
        for sent in sent.into_iter().filter(|edge| edge.from_node != edge.to_node) {
            let key = (sent.from_stage, sent.to_stage, sent.from_node.clone(), sent.to_node.clone());
            let expected = expected.get(&key).map(|edge| Expected {
                is_known: edge.is_known,
                rows: edge.rows,
                bytes: edge.bytes_wire,
                seconds: edge.seconds,
            });
            if past.edges.len() == EDGES_MAX {
                past.edges.pop_front();
            }
            past.edges.push_back(PastEdge {
                query,
                ended_ms,
                from_stage: sent.from_stage as u64,
                to_stage: sent.to_stage as u64,
                from_node: sent.from_node,
                to_node: sent.to_node,
                rows: sent.rows,
                bytes: sent.bytes_wire,
                seconds: sent.seconds,
                expected,
            });
        }
    }

    /// All edges, oldest first: the rows of `cluster.edges`.
    pub(crate) fn rows(&self) -> Result<RecordBatch> {
        Ok(to_rows(&self.lock().edges)?)
    }

    /// Whether the file is to be written again. Then the next time is a while from now.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let mut past = self.lock();
        let is_due = self.file.is_some()
            && past.written.is_none_or(|written| now.saturating_duration_since(written) >= WRITE_EVERY);
        if is_due {
            past.written = Some(now);
        }
        is_due
    }

    /// Replaces the file atomically, if there is anything to write. A disk that is full costs the history, no query.
    pub(crate) fn write(&self) {
        let Some(path) = &self.file else { return };
        let written = self.rows().map_err(io::Error::other).and_then(|rows| match rows.num_rows() {
            0 => Ok(()),
            _ => write(path, &rows),
        });
        if let Err(error) = written {
            let path = path.display();
            tracing::warn!(%path, %error, "what nodes sent can't be written");
        }
    }
}

fn to_rows(past: &VecDeque<PastEdge>) -> std::result::Result<RecordBatch, ArrowError> {
    let text = |of: fn(&PastEdge) -> &String| -> ArrayRef {
        Arc::new(past.iter().map(|edge| Some(of(edge))).collect::<StringArray>())
    };
    let count = |of: fn(&PastEdge) -> Option<u64>| -> ArrayRef {
        Arc::new(past.iter().map(of).collect::<UInt64Array>())
    };
    let expected = |of: fn(&Expected) -> f64| -> ArrayRef {
        Arc::new(past.iter().map(|edge| edge.expected.as_ref().map(of)).collect::<Float64Array>())
    };
    let ended: TimestampMillisecondArray = past.iter().map(|edge| Some(edge.ended_ms)).collect();
    let seconds: Float64Array = past.iter().map(|edge| Some(edge.seconds)).collect();
    let is_known: BooleanArray =
        past.iter().map(|edge| Some(edge.expected.is_some_and(|edge| edge.is_known))).collect();
    RecordBatch::try_from_iter_with_nullable([
        ("query", count(|edge| Some(edge.query)), false),
        ("ended_at", Arc::new(ended.with_timezone("UTC")) as ArrayRef, false),
        ("from_stage", count(|edge| Some(edge.from_stage)), false),
        ("to_stage", count(|edge| Some(edge.to_stage)), false),
        ("from_node", text(|edge| &edge.from_node), false),
        ("to_node", text(|edge| &edge.to_node), false),
        ("is_known", Arc::new(is_known), false),
        ("expected_rows", expected(|edge| edge.rows), true),
        ("rows", count(|edge| Some(edge.rows)), false),
        ("expected_bytes", expected(|edge| edge.bytes), true),
        ("bytes", count(|edge| edge.bytes), true),
        ("expected_seconds", expected(|edge| edge.seconds), true),
        ("seconds", Arc::new(seconds), false),
    ])
}

/// The edges of rows; `None` if they have other columns.
fn of_rows(rows: &RecordBatch) -> Option<Vec<PastEdge>> {
    fn column<'a, T: ArrowPrimitiveType>(rows: &'a RecordBatch, name: &str) -> Option<&'a PrimitiveArray<T>> {
        rows.column_by_name(name)?.as_primitive_opt::<T>()
    }
    let count = |name: &str| column::<UInt64Type>(rows, name);
    let number = |name: &str| column::<Float64Type>(rows, name);
    let text = |name: &str| rows.column_by_name(name)?.as_string_opt::<i32>();
    let ended = column::<TimestampMillisecondType>(rows, "ended_at")?;
    let is_known = rows.column_by_name("is_known")?.as_boolean_opt()?;
    let (query, from_stage, to_stage) = (count("query")?, count("from_stage")?, count("to_stage")?);
    let (from_node, to_node) = (text("from_node")?, text("to_node")?);
    let (sent_rows, bytes, seconds) = (count("rows")?, count("bytes")?, number("seconds")?);
    let expected = [number("expected_rows")?, number("expected_bytes")?, number("expected_seconds")?];
    let edge = |row: usize| PastEdge {
        query: query.value(row),
        ended_ms: ended.value(row),
        from_stage: from_stage.value(row),
        to_stage: to_stage.value(row),
        from_node: from_node.value(row).to_owned(),
        to_node: to_node.value(row).to_owned(),
        rows: sent_rows.value(row),
        bytes: bytes.is_valid(row).then(|| bytes.value(row)),
        seconds: seconds.value(row),
        expected: expected.iter().all(|column| column.is_valid(row)).then(|| {
            let [rows, bytes, seconds] = expected.map(|column| column.value(row));
            Expected { is_known: is_known.value(row), rows, bytes, seconds }
        }),
    };
    Some((0..rows.num_rows()).map(edge).collect())
}

fn read(path: &Path) -> std::result::Result<VecDeque<PastEdge>, ArrowError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(VecDeque::new()),
        Err(error) => return Err(error.into()),
    };
    if file.metadata()?.len() > BYTES_MAX {
        return Err(ArrowError::IpcError("it is too large".into()));
    }
    let mut edges = VecDeque::new();
    for rows in FileReader::try_new(file, None)? {
        let other = || ArrowError::SchemaError("it has other columns".into());
        edges.extend(of_rows(&rows?).ok_or_else(other)?);
    }
    edges.drain(..edges.len().saturating_sub(EDGES_MAX));
    Ok(edges)
}

fn write(path: &Path, rows: &RecordBatch) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".").suffix(".part").tempfile_in(folder)?;
    let mut writer =
        FileWriter::try_new_buffered(file.as_file_mut(), &rows.schema()).map_err(io::Error::other)?;
    writer.write(rows).and_then(|()| writer.finish()).map_err(io::Error::other)?;
    drop(writer);
    file.flush()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(from: &str, to: &str, rows: u64) -> Edge {
        Edge {
            from_stage: 1,
            to_stage: 0,
            from_node: from.into(),
            to_node: to.into(),
            rows,
            bytes_wire: Some(rows * 8),
            overlay_streams: 0,
            wait_seconds: 0.0,
            seconds: 0.1,
        }
    }

    fn expected(from: &str, to: &str, rows: f64) -> ExpectedEdge {
        ExpectedEdge {
            from_stage: 1,
            to_stage: 0,
            from_node: from.into(),
            to_node: to.into(),
            rows,
            bytes_wire: rows * 8.0,
            link_seconds: 0.1,
            seconds: 0.2,
            slowest_seconds: 0.3,
            is_known: true,
            message_bytes: 1,
            window_batches: 1,
        }
    }

    fn edges(history: &EdgeHistory) -> Vec<PastEdge> {
        history.lock().edges.iter().cloned().collect()
    }

    #[test]
    fn each_edge_is_beside_its_prediction_and_the_oldest_are_forgotten() {
        let history = EdgeHistory::default();
        history
            .add(&[expected("a", "b", 5.0)], vec![sent("a", "b", 7), sent("c", "b", 1), sent("b", "b", 9)]);
        // A query without edges has no number.
        history.add(&[], vec![sent("b", "b", 9)]);
        history.add(&[], vec![sent("a", "b", 8)]);
        let of = |edge: &PastEdge| (edge.query, edge.rows, edge.expected.map(|edge| edge.rows));
        let found: Vec<_> = edges(&history).iter().map(of).collect();
        assert_eq!(found, [(1, 7, Some(5.0)), (1, 1, None), (2, 8, None)]);
        history.add(&[], (0..EDGES_MAX as u64 - 1).map(|row| sent("a", "b", row)).collect());
        let edges = edges(&history);
        assert_eq!((edges.len(), edges[0].query, edges[1].query), (EDGES_MAX, 2, 3));
    }

    #[test]
    fn a_later_start_has_the_edges_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/there/edges.arrow");
        let history = EdgeHistory::open(Some(path.clone()));
        history.write();
        assert!(!path.exists(), "there was nothing to write");
        let partly = Edge { bytes_wire: None, ..sent("c", "b", 1) };
        history.add(&[expected("a", "b", 5.0)], vec![sent("a", "b", 7), partly]);
        history.write();
        let again = EdgeHistory::open(Some(path));
        assert_eq!(edges(&again), edges(&history));
        again.add(&[], vec![sent("a", "b", 8)]);
        assert_eq!(edges(&again)[2].query, 2);
        assert_eq!(again.rows().unwrap().num_rows(), 3);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.arrow");
        let other = RecordBatch::try_from_iter([("query", Arc::new(UInt64Array::from(vec![1])) as ArrayRef)]);
        write(&path, &other.unwrap()).unwrap();
        assert_eq!(edges(&EdgeHistory::open(Some(path.clone()))), []);
        for damaged in [&b""[..], b"ARROW1", &[255; 1000]] {
            fs::write(&path, damaged).unwrap();
            let history = EdgeHistory::open(Some(path.clone()));
            history.add(&[], vec![sent("a", "b", 7)]);
            history.write();
            assert_eq!(edges(&EdgeHistory::open(Some(path.clone()))).len(), 1);
        }
        // A folder that can't be written to costs nothing else.
        let history = EdgeHistory::open(Some(path.join("below/a/file")));
        history.add(&[], vec![sent("a", "b", 7)]);
        history.write();
        assert_eq!(edges(&history).len(), 1);
    }

    #[test]
    fn it_is_written_now_and_then() {
        let (history, now) = (EdgeHistory::open(Some("edges.arrow".into())), Instant::now());
        assert!(history.is_due(now) && !history.is_due(now + WRITE_EVERY / 2));
        assert!(history.is_due(now + WRITE_EVERY));
        assert!(!EdgeHistory::default().is_due(now));
    }
}
