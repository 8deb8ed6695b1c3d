//! A client of range files, and the storage library alone.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::builder::FixedSizeBinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use clap::{Args, ValueEnum};
use futures::TryStreamExt;
use lightship_rangefile::{
    Capacity, ClientOptions, Connections, Definition, Interval, LONE_NODE, Order, RangeFile, RowWriter,
    ScanOptions, WriteMode,
};
use lightship_session::{ClientConfig, Endpoint};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};

use super::fetch::endpoint;
use crate::Result;

/// Bytes of a record: a key of 8, and a value.
const RECORD_BYTES: usize = 100;
const KEY_BYTES: usize = 8;
/// Records of a batch, and of a transaction of the library alone.
const BATCH_ROWS: usize = 1 << 16;
/// Single records that are looked up.
const GETS: usize = 2000;
/// Scans after the first, and after a pause.
const SCANS: usize = 3;
/// Before the last scans: longer than nodes take to merge what scans had to.
const PAUSE: Duration = Duration::from_secs(10);
const TABLE: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("t");

/// Which records, in which order.
#[derive(Args, Debug, Clone)]
pub(crate) struct Records {
    records: usize,
    #[arg(value_enum)]
    order: KeyOrder,
}

/// The order in which keys arrive.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum KeyOrder {
    Ascending,
    Random,
}

/// The times of a load, of scans of all records, and of single records: the line that the process prints.
#[derive(Serialize, Deserialize)]
pub(crate) struct RangeResult {
    pub(crate) load_seconds: f64,
    /// Of the scan that follows the load at once.
    pub(crate) first_scan_seconds: f64,
    /// The median of the scans after it.
    pub(crate) scan_seconds: f64,
    /// The same after a pause.
    pub(crate) later_scan_seconds: Option<f64>,
    /// The median of lookups that find a record.
    pub(crate) get_us: f64,
    /// The median of lookups of keys that no block can have: a round trip, with all but the reading of a block.
    pub(crate) absent_us: Option<f64>,
}

impl Records {
    pub(crate) fn new(records: usize, order: KeyOrder) -> Self {
        Self { records, order }
    }

    /// The records in batches. Values are random bytes, which don't compress.
    pub(crate) fn batches(&self) -> Result<Vec<RecordBatch>> {
        let mut keys: Vec<i64> = (0..self.records as i64).collect();
        if matches!(self.order, KeyOrder::Random) {
            fastrand::Rng::with_seed(7).shuffle(&mut keys);
        }
        keys.chunks(BATCH_ROWS).map(batch).collect()
    }
}

fn batch(keys: &[i64]) -> Result<RecordBatch> {
    let mut values = FixedSizeBinaryBuilder::with_capacity(keys.len(), (RECORD_BYTES - KEY_BYTES) as i32);
    let mut value = [0; RECORD_BYTES - KEY_BYTES];
    for &key in keys {
        fastrand::Rng::with_seed(key as u64).fill(&mut value);
        values.append_value(value)?;
    }
    let keys: ArrayRef = Arc::new(Int64Array::from(keys.to_vec()));
    Ok(RecordBatch::try_from_iter([("id", keys), ("value", Arc::new(values.finish()) as ArrayRef)])?)
}

/// Keys to look up, the same for all.
fn sought(records: usize) -> impl Iterator<Item = i64> {
    let mut random = fastrand::Rng::with_seed(3);
    std::iter::repeat_with(move || random.i64(0..records as i64)).take(GETS)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Loads a new range file over the nodes of a cluster, scans it, and looks up single records.
pub(super) async fn file(port: u16, records: &Records) -> Result<RangeResult> {
    let batches = records.batches()?;
    let home = endpoint("127.0.0.1", port);
    let address = move |node: &str| match node.rsplit_once(':').and_then(|(_, port)| port.parse().ok()) {
        Some(port) if node != LONE_NODE => Ok(endpoint("127.0.0.1", port)),
        _ => Ok::<Endpoint, _>(home.clone()),
    };
    let first = format!("127.0.0.1:{port}");
    let config = ClientConfig { shared_memory: false, ..ClientConfig::default() };
    let network = Arc::new(Connections::new(move || vec![first.clone()], address, config));
    let schema = batches.first().ok_or("no records")?.schema();
    let definition = Definition::new("t", &schema, &["id".into()], Capacity::default())?;
    let file = RangeFile::create(network, &definition, ClientOptions::default()).await?;

    let began = Instant::now();
    let mut writer = RowWriter::new(file.clone(), WriteMode::Insert);
    for batch in batches {
        writer.write(batch).await?;
    }
    let loaded = writer.finish().await?;
    let load_seconds = began.elapsed().as_secs_f64();

    let scan = async || -> Result<f64> {
        let began = Instant::now();
        let options = ScanOptions { order: Order::Any, ..ScanOptions::default() };
        let mut rows = file.scan(Interval::ALL, &options)?.rows;
        let mut scanned = 0;
        while let Some(batch) = rows.try_next().await? {
            scanned += batch.num_rows() as u64;
        }
        let seconds = began.elapsed().as_secs_f64();
        if (loaded, scanned) != (records.records as u64, records.records as u64) {
            return Err(format!("{loaded} records loaded, {scanned} scanned").into());
        }
        Ok(seconds)
    };
    let first_scan_seconds = scan().await?;
    let (mut scans, mut later_scans) = (Vec::with_capacity(SCANS), Vec::with_capacity(SCANS));
    for _ in 0..SCANS {
        scans.push(scan().await?);
    }
    tokio::time::sleep(PAUSE).await;
    for _ in 0..SCANS {
        later_scans.push(scan().await?);
    }

    let get = async |id: i64| -> Result<(f64, usize)> {
        let key = definition.format().key(&[Arc::new(Int64Array::from(vec![id])) as ArrayRef])?;
        let began = Instant::now();
        let found = file.get(key).await?;
        Ok((began.elapsed().as_secs_f64(), found.num_rows()))
    };
    let (mut gets, mut absent) = (Vec::with_capacity(GETS), Vec::with_capacity(GETS));
    for id in sought(records.records) {
        let (seconds, found) = get(id).await?;
        gets.push(seconds);
        if found != 1 {
            return Err(format!("record {id} is missing").into());
        }
        // Below the least key of all.
        let (seconds, found) = get(-1 - id).await?;
        absent.push(seconds);
        if found != 0 {
            return Err(format!("there is a record {}", -1 - id).into());
        }
    }
    Ok(RangeResult {
        load_seconds,
        first_scan_seconds,
        scan_seconds: median(scans),
        later_scan_seconds: Some(median(later_scans)),
        get_us: median(gets) * 1e6,
        absent_us: Some(median(absent) * 1e6),
    })
}

/// The same with the storage library alone, in this process: a transaction with a sync for each batch.
pub(super) fn library(folder: &Path, records: &Records) -> Result<RangeResult> {
    let batches = records.batches()?;
    std::fs::create_dir_all(folder)?;
    let folder = tempfile::tempdir_in(folder)?;
    let database = Database::create(folder.path().join("t.redb"))?;

    let began = Instant::now();
    for batch in &batches {
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(TABLE)?;
            let keys = batch.column(0).as_primitive::<Int64Type>();
            let values = batch.column(1).as_fixed_size_binary();
            for row in 0..batch.num_rows() {
                table.insert(keys.value(row), values.value(row))?;
            }
        }
        transaction.commit()?;
    }
    let load_seconds = began.elapsed().as_secs_f64();

    let transaction = database.begin_read()?;
    let table = transaction.open_table(TABLE)?;
    let mut scans = Vec::with_capacity(SCANS + 1);
    for _ in 0..=SCANS {
        let began = Instant::now();
        let (mut scanned, mut bytes) = (0, 0);
        for entry in table.iter()? {
            let (_, value) = entry?;
            (scanned, bytes) = (scanned + 1, bytes + value.value().len());
        }
        scans.push(began.elapsed().as_secs_f64());
        if (scanned, bytes) != (records.records, records.records * (RECORD_BYTES - KEY_BYTES)) {
            return Err(format!("{scanned} records with {bytes} bytes").into());
        }
    }

    let mut gets = Vec::with_capacity(GETS);
    for id in sought(records.records) {
        let began = Instant::now();
        let found = table.get(id)?.map(|value| value.value().len());
        gets.push(began.elapsed().as_secs_f64());
        if found.is_none() {
            return Err(format!("record {id} is missing").into());
        }
    }
    let first_scan_seconds = scans.remove(0);
    let (scan_seconds, get_us) = (median(scans), median(gets) * 1e6);
    Ok(RangeResult {
        load_seconds,
        first_scan_seconds,
        scan_seconds,
        later_scan_seconds: None,
        get_us,
        absent_us: None,
    })
}
