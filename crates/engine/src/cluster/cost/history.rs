//! What nodes sent each other in earlier queries, beside what they were expected to send: predictions compared with
//! facts. They are the table `cluster.edges`, and are kept on disk, a line of JSON for each.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt64Array,
};
use chrono::Utc;
use datafusion::error::Result;
use lightship_tuner::median;
use serde::{Deserialize, Serialize};

use crate::explained::{Edge, ExpectedEdge};

/// Edges that are kept; the oldest are forgotten first.
const EDGES_MAX: usize = 10_000;
/// They are written this often if there are new ones, and when the node stops.
const WRITE_EVERY: Duration = Duration::from_secs(60);
/// Edges that are expected to need less work show how long stages take to start.
const START_WORK_SECONDS_MAX: f64 = 0.001;
/// Queries whose time to start is remembered.
const STARTS_MAX: usize = 16;
/// No more of a file is read.
const BYTES_MAX: u64 = 64 << 20;

/// The edges of queries that were planned on this node and have ended, oldest first.
#[derive(Debug, Default)]
pub(crate) struct EdgeHistory {
    past: Mutex<Past>,
    /// Without a file, nothing is stored. Locked while it is written.
    file: Mutex<Option<PathBuf>>,
}

#[derive(Debug, Default)]
struct Past {
    edges: VecDeque<PastEdge>,
    /// Seconds that the stages of the last queries took to start, the last one first.
    starts: VecDeque<f64>,
    /// Whether some of them are not on disk.
    is_new: bool,
}

/// An edge of a query that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// `None` if not everything was read, also in `seconds`.
    bytes: Option<u64>,
    seconds: Option<f64>,
    /// `None` if nothing was known of the rows.
    expected: Option<Expected>,
}

/// What was expected of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Expected {
    is_known: bool,
    rows: f64,
    bytes: f64,
    seconds: f64,
    /// `None` if an earlier version has written the edge.
    work_seconds: Option<f64>,
}

impl EdgeHistory {
    /// The history that is kept in a file, with what is in it. What can't be read is left out: nothing depends on it.
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let read = |path: &PathBuf| match read(path) {
            Ok(edges) => edges,
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "what nodes sent in earlier queries can't be read");
                VecDeque::new()
            }
        };
        let mut past = Past { edges: file.as_ref().map(read).unwrap_or_default(), ..Past::default() };
        let edges = past.edges.make_contiguous();
        let starts = edges.chunk_by(|a, b| a.query == b.query).rev().filter_map(start_seconds);
        past.starts = starts.take(STARTS_MAX).collect();
        Self { past: Mutex::new(past), file: Mutex::new(file) }
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
        let query = past.edges.back().map_or(1, |edge| edge.query.saturating_add(1));
        let ended_ms = Utc::now().timestamp_millis();
        let mut edges = Vec::new();
        for sent in sent.into_iter().filter(|edge| edge.from_node != edge.to_node) {
            let key = (sent.from_stage, sent.to_stage, sent.from_node.clone(), sent.to_node.clone());
            let expected = expected.get(&key).map(|edge| Expected {
                is_known: edge.is_known,
                rows: edge.rows,
                bytes: edge.bytes_wire,
                seconds: edge.seconds,
                work_seconds: Some(edge.work_seconds),
            });
            edges.push(PastEdge {
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
        if edges.is_empty() {
            return;
        }
        if let Some(seconds) = start_seconds(&edges) {
            past.starts.truncate(STARTS_MAX - 1);
            past.starts.push_front(seconds);
        }
        past.edges.extend(edges);
        past.is_new = true;
        forget_oldest(&mut past.edges);
    }

    /// Seconds that the stages of a query take to start: the median of the last queries, or 0 if there were none.
    pub(crate) fn start_seconds(&self) -> f64 {
        median(self.lock().starts.iter().copied()).unwrap_or(0.0)
    }

    /// All edges, oldest first: the rows of `cluster.edges`.
    pub(crate) fn rows(&self) -> Result<RecordBatch> {
        to_rows(&self.lock().edges)
    }

    /// Replaces the file, if there is anything new, and syncs it to disk. A disk that is full costs the history, no query.
    pub(crate) fn write(&self) {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = file.as_ref() else { return };
        let edges = {
            let mut past = self.lock();
            if !std::mem::take(&mut past.is_new) {
                return;
            }
            past.edges.clone()
        };
        if let Err(error) = write(path, &edges) {
            self.lock().is_new = true;
            let path = path.display();
            tracing::warn!(%path, %error, "what nodes sent can't be written");
        }
    }
}

/// Writes the history now and then, until it is dropped.
pub(crate) async fn follow(history: Weak<EdgeHistory>) {
    loop {
        tokio::time::sleep(WRITE_EVERY).await;
        let Some(history) = history.upgrade() else { return };
        // The task fails only if it panics, and goes on in a minute.
        let _ = tokio::task::spawn_blocking(move || history.write()).await;
    }
}

/// Seconds that the stages of a query took to start: the median of its edges with next to no work.
fn start_seconds(edges: &[PastEdge]) -> Option<f64> {
    let starts = edges.iter().filter(|edge| {
        let work_seconds = edge.expected.and_then(|expected| expected.work_seconds);
        work_seconds.is_some_and(|seconds| seconds < START_WORK_SECONDS_MAX)
    });
    median(starts.filter_map(|edge| edge.seconds))
}

fn forget_oldest(edges: &mut VecDeque<PastEdge>) {
    edges.drain(..edges.len().saturating_sub(EDGES_MAX));
}

fn to_rows(past: &VecDeque<PastEdge>) -> Result<RecordBatch> {
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
    let seconds: Float64Array = past.iter().map(|edge| edge.seconds).collect();
    let is_known: BooleanArray =
        past.iter().map(|edge| Some(edge.expected.is_some_and(|edge| edge.is_known))).collect();
    Ok(RecordBatch::try_from_iter_with_nullable([
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
        ("seconds", Arc::new(seconds), true),
    ])?)
}

/// The edges of a file, without the lines that can't be read.
fn read(path: &Path) -> io::Result<VecDeque<PastEdge>> {
    let file = match File::open(path) {
        Ok(file) => BufReader::new(file.take(BYTES_MAX)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(VecDeque::new()),
        Err(error) => return Err(error),
    };
    let mut edges = VecDeque::new();
    for line in file.split(b'\n') {
        if let Ok(edge) = serde_json::from_slice(&line?) {
            edges.push_back(edge);
            forget_oldest(&mut edges);
        }
    }
    Ok(edges)
}

fn write(path: &Path, edges: &VecDeque<PastEdge>) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".").suffix(".part").tempfile_in(folder)?;
    let mut lines = BufWriter::new(file.as_file_mut());
    for edge in edges {
        serde_json::to_writer(&mut lines, edge)?;
        lines.write_all(b"\n")?;
    }
    lines.into_inner()?.sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{TimestampMillisecondType, UInt64Type};

    use super::*;

    fn sent(from: &str, to: &str, rows: u64) -> Edge {
        Edge {
            from_stage: 1,
            to_stage: 0,
            from_node: from.into(),
            to_node: to.into(),
            rows,
            bytes_wire: Some(rows * 8),
            codec: None,
            overlay_streams: 0,
            wait_seconds: 0.0,
            seconds: Some(0.1),
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
            codec: None,
            link_seconds: 0.1,
            processor_seconds: 0.1,
            work_seconds: 0.1,
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
    fn edges_with_next_to_no_work_show_how_long_stages_take_to_start() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.jsonl");
        let history = EdgeHistory::open(Some(path.clone()));
        let add = |work_seconds, all: &[Option<f64>]| {
            let edges = all.iter().map(|seconds| Edge { seconds: *seconds, ..sent("a", "b", 7) });
            history.add(&[ExpectedEdge { work_seconds, ..expected("a", "b", 5.0) }], edges.collect());
        };
        // An edge with work, one that was not read to its end, and a query without edges.
        add(START_WORK_SECONDS_MAX, &[Some(9.0)]);
        add(0.0, &[None]);
        add(0.0, &[]);
        assert_eq!(history.start_seconds(), 0.0);
        // Each query counts once, whatever the number of its edges.
        add(START_WORK_SECONDS_MAX / 2.0, &[Some(0.5); 12]);
        add(0.0, &[Some(0.02), Some(0.02), Some(7.0)]);
        add(0.0, &[Some(0.03)]);
        assert_eq!(history.start_seconds(), 0.03);
        history.write();
        let lines = fs::read_to_string(&path).unwrap();
        assert_eq!(EdgeHistory::open(Some(path.clone())).start_seconds(), 0.03);
        // Earlier versions did not write the work.
        let earlier = lines.replace(",\"work_seconds\":", ",\"something\":");
        assert_ne!(earlier, lines);
        fs::write(&path, earlier).unwrap();
        let again = EdgeHistory::open(Some(path));
        assert_eq!((edges(&again).len(), again.start_seconds()), (edges(&history).len(), 0.0));
        (0..STARTS_MAX).for_each(|_| add(0.0, &[Some(0.01)]));
        assert_eq!((history.start_seconds(), history.lock().starts.len()), (0.01, STARTS_MAX));
    }

    #[test]
    fn a_later_start_has_the_edges_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("not/there/edges.jsonl");
        let history = EdgeHistory::open(Some(path.clone()));
        history.write();
        assert!(!path.exists(), "there was nothing to write");
        let partly = Edge { bytes_wire: None, seconds: None, ..sent("c", "b", 1) };
        history.add(&[expected("a", "b", 5.0)], vec![sent("a", "b", 7), partly]);
        history.write();
        let again = EdgeHistory::open(Some(path));
        assert_eq!(edges(&again), edges(&history));
        again.add(&[], vec![sent("a", "b", 8)]);
        assert_eq!(edges(&again)[2].query, 2);
        assert_eq!(again.rows().unwrap().num_rows(), 3);
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.jsonl");
        let history = EdgeHistory::open(Some(path.clone()));
        history.add(&[expected("a", "b", 5.0)], vec![sent("a", "b", 7), sent("c", "b", 8)]);
        history.write();
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for at in 0..=first {
            let mut damaged = whole.clone();
            damaged[at] = 0xff;
            fs::write(&path, damaged).unwrap();
            let kept = edges(&EdgeHistory::open(Some(path.clone())));
            // The end of the line has made one line of two.
            assert_eq!(kept.len(), usize::from(at < first), "{at}");
        }
        fs::write(&path, &whole[..first - 1]).unwrap();
        assert_eq!(edges(&EdgeHistory::open(Some(path.clone()))), []);
        // A folder that can't be written to costs nothing else.
        let history = EdgeHistory::open(Some(path.join("below/a/file")));
        history.add(&[], vec![sent("a", "b", 7)]);
        history.write();
        assert_eq!(edges(&history).len(), 1);
        assert!(history.lock().is_new);
    }

    #[test]
    fn it_is_written_only_if_there_is_something_new() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.jsonl");
        let history = EdgeHistory::open(Some(path.clone()));
        history.add(&[], vec![sent("a", "b", 7)]);
        history.write();
        fs::remove_file(&path).unwrap();
        history.write();
        assert!(!path.exists());
        history.add(&[], vec![sent("a", "b", 8)]);
        history.write();
        assert_eq!(edges(&EdgeHistory::open(Some(path))).len(), 2);
    }

    #[test]
    fn a_clock_that_jumps_backwards_changes_neither_the_order_nor_the_numbers_of_queries() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.jsonl");
        let history = EdgeHistory::open(Some(path.clone()));
        for rows in [7, 8, 9] {
            history.add(&[expected("a", "b", 5.0)], vec![sent("a", "b", rows), sent("c", "b", rows)]);
        }
        // The second query ended years before the first, and the third before 1970.
        let ended_ms = [4_000_000_000_000_i64, 1_000_000_000_000, -1];
        for edge in &mut history.lock().edges {
            edge.ended_ms = ended_ms[edge.query as usize - 1];
        }
        let numbered = |history: &EdgeHistory| {
            let rows = history.rows().unwrap();
            let query = rows.column_by_name("query").unwrap().as_primitive::<UInt64Type>();
            let ended = rows.column_by_name("ended_at").unwrap().as_primitive::<TimestampMillisecondType>();
            query.values().iter().copied().zip(ended.values().iter().copied()).collect::<Vec<_>>()
        };
        let [first, second, third] = [(1_u64, ended_ms[0]), (2, ended_ms[1]), (3, ended_ms[2])];
        let all = [first, first, second, second, third, third];
        history.write();
        let again = EdgeHistory::open(Some(path.clone()));
        assert_eq!(edges(&again), edges(&history));
        assert_eq!(numbered(&again), all);
        // The next query is the fourth, although it has ended before the first did.
        again.add(&[], vec![sent("a", "b", 10)]);
        again.write();
        let later = EdgeHistory::open(Some(path));
        assert_eq!(edges(&later), edges(&again));
        assert_eq!(numbered(&later)[..6], all);
        let last = edges(&later).pop().unwrap();
        assert_eq!((last.query, last.rows), (4, 10));
        assert!(last.ended_ms < ended_ms[0] && last.ended_ms > ended_ms[1]);
        // What is forgotten first is not what is said to have ended first.
        later.add(&[], (0..EDGES_MAX as u64 - 5).map(|row| sent("a", "b", row)).collect());
        let kept = numbered(&later);
        assert_eq!((kept.len(), &kept[..4]), (EDGES_MAX, &all[2..]));
    }
}
