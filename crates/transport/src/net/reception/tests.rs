//! Parts in this process, whose senders fail as told.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, UInt64Array};
use futures::stream;
use lightship_wire::rows_bytes;

use super::*;
use crate::proto::reception::{Admission, ReceptionMode, Sources, Start};

/// Rows of a batch: 8 KB.
const BATCH_ROWS: u64 = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Failure {
    Lost,
    Moved,
    Broken,
    Missing(Vec<u64>),
}

/// Parts of `batches` batches each. Their numbers are their ranks, and their rows count from 0.
struct Fake {
    sources: Sources,
    count: u64,
    batches: u64,
    arrived: BTreeMap<u64, u64>,
    /// For a part: the batch before which it fails, the failure, and how often.
    faults: BTreeMap<u64, (u64, Failure, u64)>,
    holes: std::collections::BTreeSet<u64>,
    /// Streams that are open.
    open: Arc<AtomicU64>,
    open_peak: Arc<AtomicU64>,
}

impl Fake {
    fn new(count: u64, batches: u64) -> Self {
        Self {
            sources: Sources::new(count),
            count,
            batches,
            arrived: BTreeMap::new(),
            faults: BTreeMap::new(),
            holes: (0..count).collect(),
            open: Arc::default(),
            open_peak: Arc::default(),
        }
    }

    fn announced(part: u64) -> Announcement {
        Announcement { part, bytes: None, rows: None, rank: part }
    }
}

impl Coverage for Fake {
    fn admit(&mut self, part: u64) -> Admission {
        self.holes.remove(&part);
        self.sources.admit(part)
    }

    fn withdraw(&mut self, part: u64) {
        self.holes.insert(part);
        self.sources.withdraw(part);
    }

    fn is_covered(&self) -> bool {
        self.sources.is_covered()
    }

    fn holes(&mut self, max: usize) -> Vec<u64> {
        self.sources.holes(max)
    }
}

struct Guard(Arc<AtomicU64>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Parts for Fake {
    type Connection = ();
    type Error = Failure;

    fn begin(&mut self) -> BoxFuture<'static, Result<Asked, Failure>> {
        // The last one is announced first.
        let all = (0..self.count).rev().map(Self::announced).collect();
        async { Ok(Asked::Announced(all)) }.boxed()
    }

    fn ask(&mut self, part: u64) -> BoxFuture<'static, Result<Asked, Failure>> {
        async move { Ok(Asked::Announced(vec![Self::announced(part)])) }.boxed()
    }

    fn open(&mut self, part: u64, _: Option<()>) -> BoxFuture<'static, Result<PartRows<Failure>, Failure>> {
        let from = self.arrived.get(&part).copied().unwrap_or(0);
        let fault = self.faults.get_mut(&part).filter(|(_, _, left)| *left > 0).map(|fault| {
            fault.2 -= 1;
            (fault.0, fault.1.clone())
        });
        let (open, batches) = (self.open.clone(), self.batches);
        let peak = open.fetch_add(1, Ordering::Relaxed) + 1;
        self.open_peak.fetch_max(peak, Ordering::Relaxed);
        let guard = Guard(open);
        async move {
            let rows = stream::iter(from / BATCH_ROWS..=batches).map(move |batch| {
                let _ = &guard;
                match &fault {
                    Some((at, failure)) if *at == batch => Err(failure.clone()),
                    _ if batch == batches => Ok(batch_of(0..0)),
                    _ => Ok(batch_of(batch * BATCH_ROWS..(batch + 1) * BATCH_ROWS)),
                }
            });
            Ok(rows.boxed())
        }
        .boxed()
    }

    fn refuse(&mut self, (): (), _: Refusal) {}

    fn arrived(&mut self, part: u64, rows: RecordBatch) -> Result<RecordBatch, Failure> {
        *self.arrived.entry(part).or_default() += rows.num_rows() as u64;
        Ok(rows)
    }

    fn ended(&mut self, _: u64) {}

    fn failed(&mut self, _: u64, error: Failure) -> Fault<Failure> {
        match error {
            Failure::Lost => Fault::Lost,
            Failure::Moved => Fault::Withdrawn,
            error => Fault::Fatal(error),
        }
    }

    fn failure(&mut self, error: ReceptionError) -> Failure {
        match error {
            ReceptionError::Missing { parts, .. } => Failure::Missing(parts),
            _ => Failure::Broken,
        }
    }

    fn first_hole(&self) -> Option<u64> {
        self.holes.first().copied()
    }
}

fn batch_of(numbers: std::ops::Range<u64>) -> RecordBatch {
    let column: ArrayRef = Arc::new(UInt64Array::from_iter_values(numbers));
    RecordBatch::try_from_iter([("n", column)]).expect("one column")
}

fn config() -> ReceptionConfig {
    ReceptionConfig {
        mode: ReceptionMode::Pull { connections: 4 },
        start: Start::WhenCovered,
        budget_bytes: 128 << 10,
        grant_bytes_min: 16 << 10,
        stall: Duration::from_secs(2),
        patience: Duration::from_secs(2),
        ..ReceptionConfig::default()
    }
}

/// The rows of each part, in the order in which the parts' first rows came.
async fn receive(driver: &mut ReceptionDriver<Fake>) -> Result<Vec<(u64, u64)>, Failure> {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    while let Some((part, rows)) = driver.next().await? {
        if !parts.iter().any(|(known, _)| *known == part) {
            parts.push((part, 0));
        }
        let Some((_, found)) = parts.iter_mut().find(|(known, _)| *known == part) else { continue };
        let numbers = rows.column(0).as_primitive::<UInt64Type>();
        assert!(numbers.values().iter().copied().eq(*found..*found + numbers.len() as u64), "part {part}");
        *found += rows.num_rows() as u64;
    }
    Ok(parts)
}

#[tokio::test]
async fn parts_come_whole_within_the_budget() {
    for in_order in [false, true] {
        let mut parts = Fake::new(20, 30);
        parts.faults.insert(3, (7, Failure::Lost, 2));
        parts.faults.insert(5, (9, Failure::Moved, 1));
        parts.faults.insert(6, (0, Failure::Moved, 1));
        let open_peak = parts.open_peak.clone();
        let mut driver = ReceptionDriver::new(ReceptionConfig { in_order, ..config() }, parts, None).unwrap();
        let mut found = receive(&mut driver).await.unwrap();
        if !in_order {
            found.sort_unstable();
        }
        assert_eq!(found, (0..20).map(|part| (part, 30 * BATCH_ROWS)).collect::<Vec<_>>());
        let report = driver.report();
        assert!(report.used_bytes_peak <= 128 << 10, "{report:?}");
        assert!((4..=5).contains(&open_peak.load(Ordering::Relaxed)), "{open_peak:?}");
        assert_eq!(report.lost, 2);
        assert_eq!(driver.next().await, Ok(None));
    }
}

#[tokio::test]
async fn it_ends_with_an_error_that_names_what_is_missing() {
    let mut parts = Fake::new(3, 4);
    parts.faults.insert(1, (2, Failure::Lost, u64::MAX));
    let mut driver = ReceptionDriver::new(config(), parts, None).unwrap();
    tokio::time::pause();
    assert_eq!(receive(&mut driver).await, Err(Failure::Missing(vec![1])));
    assert_eq!(driver.next().await, Ok(None));
    let mut parts = Fake::new(3, 4);
    parts.faults.insert(2, (3, Failure::Broken, 1));
    let mut driver = ReceptionDriver::new(config(), parts, None).unwrap();
    assert_eq!(receive(&mut driver).await, Err(Failure::Broken));
}

#[tokio::test]
async fn a_dropped_reception_closes_its_streams() {
    let parts = Fake::new(20, 1000);
    let open = parts.open.clone();
    let mut driver = ReceptionDriver::new(config(), parts, None).unwrap();
    for _ in 0..10 {
        assert!(driver.next().await.unwrap().is_some());
    }
    assert_eq!(open.load(Ordering::Relaxed), 4);
    drop(driver);
    while open.load(Ordering::Relaxed) > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_may_take_its_time() {
    let parts = Fake::new(6, 20);
    let mut driver = ReceptionDriver::new(config(), parts, None).unwrap();
    let mut rows = 0;
    while let Some((_, batch)) = driver.next().await.unwrap() {
        rows += batch.num_rows() as u64;
        tokio::time::sleep(Duration::from_millis(2500)).await;
    }
    assert_eq!(rows, 6 * 20 * BATCH_ROWS);
    assert_eq!(driver.report().lost, 0);
}

#[tokio::test]
async fn rows_larger_than_the_budget_arrive() {
    let config = ReceptionConfig { budget_bytes: 2 << 10, grant_bytes_min: 1 << 10, ..config() };
    let parts = Fake::new(3, 4);
    assert!(rows_bytes(&batch_of(0..BATCH_ROWS)) > 2 << 10);
    let mut driver = ReceptionDriver::new(config, parts, None).unwrap();
    assert_eq!(receive(&mut driver).await.unwrap().len(), 3);
    assert!(driver.report().used_bytes_peak <= 2 << 10);
}

#[tokio::test]
async fn senders_that_connect_are_accepted_or_refused() {
    // Each part connects again and again, as if it had been asked.
    let arrivals = stream::unfold(0u64, |turn| async move {
        tokio::time::sleep(Duration::from_micros(200)).await;
        Some(((turn % 12, ()), turn + 1))
    });
    let config = ReceptionConfig { mode: ReceptionMode::Push, connections_max: 2, ..config() };
    let mut parts = Fake::new(12, 30);
    parts.faults.insert(4, (3, Failure::Lost, 1));
    let open_peak = parts.open_peak.clone();
    // They connect without an announcement.
    let mut driver = ReceptionDriver::new(config, Pushing(parts), Some(arrivals.boxed())).unwrap();
    let mut rows = 0;
    while let Some((_, batch)) = driver.next().await.unwrap() {
        rows += batch.num_rows() as u64;
    }
    assert_eq!(rows, 12 * 30 * BATCH_ROWS);
    assert!(open_peak.load(Ordering::Relaxed) <= 2);
    assert!(driver.report().refused > 0);
}

/// As [`Fake`], but its senders connect.
struct Pushing(Fake);

impl Coverage for Pushing {
    fn admit(&mut self, part: u64) -> Admission {
        self.0.admit(part)
    }
    fn withdraw(&mut self, part: u64) {
        self.0.withdraw(part);
    }
    fn is_covered(&self) -> bool {
        self.0.is_covered()
    }
    fn holes(&mut self, max: usize) -> Vec<u64> {
        Coverage::holes(&mut self.0, max)
    }
}

impl Parts for Pushing {
    type Connection = ();
    type Error = Failure;

    fn begin(&mut self) -> BoxFuture<'static, Result<Asked, Failure>> {
        async { Ok(Asked::Announced(Vec::new())) }.boxed()
    }
    fn ask(&mut self, _: u64) -> BoxFuture<'static, Result<Asked, Failure>> {
        self.begin()
    }
    fn open(&mut self, part: u64, c: Option<()>) -> BoxFuture<'static, Result<PartRows<Failure>, Failure>> {
        assert!(c.is_some());
        self.0.open(part, c)
    }
    fn refuse(&mut self, (): (), _: Refusal) {}
    fn arrived(&mut self, part: u64, rows: RecordBatch) -> Result<RecordBatch, Failure> {
        self.0.arrived(part, rows)
    }
    fn ended(&mut self, _: u64) {}
    fn failed(&mut self, part: u64, error: Failure) -> Fault<Failure> {
        self.0.failed(part, error)
    }
    fn failure(&mut self, error: ReceptionError) -> Failure {
        self.0.failure(error)
    }
}
