//! What a processor and a link do in a second: measured, not assumed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow_array::{Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use datafusion::parquet::basic::{Compression, ZstdLevel};
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode};
use datafusion::physical_plan::metrics::Time;
use datafusion::physical_plan::repartition::BatchPartitioner;
use datafusion::physical_plan::{ExecutionPlan, collect};
use lightship_wire::{Codec, Encoder, decode};
use tokio::sync::OnceCell;

use crate::cluster::members::Snapshot;
use crate::cluster::request::ProcessorEntry;
use crate::meter::thread_cpu_ns;
use crate::threads::{QueryPhase, Threads};

/// Rows of the joins and aggregations that are timed.
const ROWS: usize = 32 << 10;
/// The same is timed this often, as other programs may run meanwhile; the fastest counts.
const TRIES: usize = 5;
/// Rows of a batch, as DataFusion's.
const BATCH_ROWS: usize = 8192;
/// Bytes a second of a link that has not been measured: 1 Gbit/s.
pub(crate) const LINK_UNKNOWN: f64 = 1.25e8;
/// Bytes a second that no link of a single node has.
const LINK_MAX: f64 = 1e12;
/// No processor needs less time for a row or a byte, nor more, whatever its node announces.
const PART_SECONDS_MIN: f64 = 1e-12;
const PART_SECONDS_MAX: f64 = 1e-3;
/// The largest message that is timed.
const BODY_BYTES_MAX: u32 = 16 << 20;

/// Seconds that one thread of a node needs for a row or a byte.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ProcessorRates {
    /// To insert a row into the hash table of a join.
    pub(crate) build_row: f64,
    /// To look a row up in it.
    pub(crate) probe_row: f64,
    /// To add a row to its group.
    pub(crate) group_row: f64,
    /// To assign a row to a partition, and copy it there.
    pub(crate) route_row: f64,
    /// To encode a byte of rows in memory with the codec `light`.
    pub(crate) encode_byte: f64,
    /// To decode it again.
    pub(crate) decode_byte: f64,
    /// To read a byte of rows, as they are in memory, from a Parquet file.
    pub(crate) scan_byte: f64,
}

impl Default for ProcessorRates {
    /// Assumed until the nodes have measured theirs.
    fn default() -> Self {
        Self {
            build_row: 60e-9,
            probe_row: 30e-9,
            group_row: 80e-9,
            route_row: 15e-9,
            encode_byte: 0.6e-9,
            decode_byte: 0.4e-9,
            scan_byte: 1e-9,
        }
    }
}

impl ProcessorRates {
    /// The slower of two processors in each respect.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            build_row: self.build_row.max(other.build_row),
            probe_row: self.probe_row.max(other.probe_row),
            group_row: self.group_row.max(other.group_row),
            route_row: self.route_row.max(other.route_row),
            encode_byte: self.encode_byte.max(other.encode_byte),
            decode_byte: self.decode_byte.max(other.decode_byte),
            scan_byte: self.scan_byte.max(other.scan_byte),
        }
    }

    /// To encode a byte and decode it.
    pub(crate) fn code_byte(&self) -> f64 {
        self.encode_byte + self.decode_byte
    }

    /// The rates of this machine, which are measured once in a process.
    ///
    /// # Errors
    /// When they could not be measured.
    pub(crate) async fn of_this_machine(threads: &Threads) -> crate::error::Result<Self> {
        static MEASURED: OnceCell<ProcessorRates> = OnceCell::const_new();
        let measure = || threads.run(QueryPhase::Running, async { Ok(Self::measure().await?) });
        MEASURED.get_or_try_init(measure).await.copied()
    }

    /// Times DataFusion's operators and our encoder on this machine, for some milliseconds.
    ///
    /// # Errors
    /// When an operator fails, as without memory.
    pub(crate) async fn measure() -> Result<Self> {
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("key", DataType::Int64, false),
            Field::new("number", DataType::Int64, false),
            Field::new("text", DataType::Utf8, false),
        ]));
        let rows = batches(&schema)?;
        let context = Arc::new(TaskContext::default());
        let none: [RecordBatch; 0] = [];
        let build = timed(&context, || join(&schema, &rows, &none)).await?;
        let both = timed(&context, || join(&schema, &rows, &rows)).await?;
        let group = timed(&context, || aggregate(&schema, &rows)).await?;
        let per_row = |seconds: f64| seconds / ROWS as f64;
        let [mut route, mut encode, mut decode, mut scan] = [f64::INFINITY; 4];
        let file = parquet(&schema, &rows)?;
        for _ in 0..TRIES {
            let began = Stopwatch::start();
            let mut partitioner = BatchPartitioner::new_hash_partitioner(vec![key()], 8, Time::new())?;
            for batch in &rows {
                partitioner.partition(batch.clone(), |_, _| Ok(()))?;
            }
            route = route.min(began.seconds());
            let (encoding, decoding) = coded(&schema, &rows)?;
            (encode, decode) = (encode.min(encoding), decode.min(decoding));
            scan = scan.min(scanned(&file)?);
        }
        let bytes: usize = rows.iter().map(RecordBatch::get_array_memory_size).sum();
        Ok(Self {
            build_row: per_row(build),
            // Both times are the fastest of a few, so that the first may be the longer one.
            probe_row: per_row((both - build).max(both / 10.0)),
            group_row: per_row(group),
            route_row: per_row(route),
            encode_byte: encode / bytes as f64,
            decode_byte: decode / bytes as f64,
            scan_byte: scan / bytes as f64,
        })
    }
}

impl From<ProcessorRates> for ProcessorEntry {
    fn from(rates: ProcessorRates) -> Self {
        let ps = |seconds: f64| (seconds * 1e12) as u64;
        Self {
            build_row_ps: ps(rates.build_row),
            probe_row_ps: ps(rates.probe_row),
            group_row_ps: ps(rates.group_row),
            route_row_ps: ps(rates.route_row),
            encode_byte_ps: ps(rates.encode_byte),
            decode_byte_ps: ps(rates.decode_byte),
            scan_byte_ps: ps(rates.scan_byte),
        }
    }
}

impl From<ProcessorEntry> for ProcessorRates {
    fn from(entry: ProcessorEntry) -> Self {
        // What another node says may be wrong; infinity would make each way as slow as any other.
        let seconds = |ps: u64| (ps as f64 / 1e12).clamp(PART_SECONDS_MIN, PART_SECONDS_MAX);
        Self {
            build_row: seconds(entry.build_row_ps),
            probe_row: seconds(entry.probe_row_ps),
            group_row: seconds(entry.group_row_ps),
            route_row: seconds(entry.route_row_ps),
            encode_byte: seconds(entry.encode_byte_ps),
            decode_byte: seconds(entry.decode_byte_ps),
            scan_byte: seconds(entry.scan_byte_ps),
        }
    }
}

/// What a plan of joins and aggregations depends on. Each node gets the same share of the rows, so that the
/// slowest decides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) processor: ProcessorRates,
    /// Bytes a second that the node with the slowest link sends or receives.
    pub(crate) link: f64,
}

impl Rates {
    /// The rates of a cluster.
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        let measured = snapshot.nodes.iter().filter_map(|node| node.processor).map(ProcessorRates::from);
        let slower = |name: &str| snapshot.sends(name).min(snapshot.receives(name));
        let links = snapshot.nodes.iter().map(|node| slower(&node.name));
        Self {
            processor: measured.reduce(ProcessorRates::and).unwrap_or_default(),
            link: links.fold(f64::INFINITY, f64::min).min(LINK_MAX),
        }
    }
}

/// Counts the processor time of this thread, whatever else the machine does. Where the system has no such clock, it counts
/// all time.
struct Stopwatch {
    began: Instant,
    thread_ns: u64,
}

impl Stopwatch {
    fn start() -> Self {
        Self { began: Instant::now(), thread_ns: thread_cpu_ns() }
    }

    fn seconds(&self) -> f64 {
        match thread_cpu_ns().saturating_sub(self.thread_ns) {
            0 => self.began.elapsed().as_secs_f64(),
            ns => ns as f64 / 1e9,
        }
    }
}

/// Rows whose keys are all different, in no order.
fn batches(schema: &SchemaRef) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    for first in (0..ROWS).step_by(BATCH_ROWS) {
        let range = first..first + BATCH_ROWS;
        // An odd factor gives each number another one.
        let keys: Int64Array = range.clone().map(|row| (row as i64).wrapping_mul(0x9E37_79B9) >> 3).collect();
        let numbers: Int64Array = range.clone().map(|row| (row % 1000) as i64).collect();
        let texts: StringArray = range.map(|row| Some(["AIR", "MAIL", "SHIP", "TRUCK"][row % 4])).collect();
        batches.push(RecordBatch::try_new(
            schema.clone(),
            vec![Arc::new(keys), Arc::new(numbers), Arc::new(texts)],
        )?);
    }
    Ok(batches)
}

fn key() -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new("key", 0))
}

fn join(schema: &SchemaRef, build: &[RecordBatch], probe: &[RecordBatch]) -> Result<Arc<dyn ExecutionPlan>> {
    let side =
        |rows: &[RecordBatch]| MemorySourceConfig::try_new_exec(&[rows.to_vec()], schema.clone(), None);
    let (left, right) = (side(build)?, side(probe)?);
    HashJoinExecBuilder::new(left, right, vec![(key(), key())], JoinType::Inner)
        .with_partition_mode(PartitionMode::CollectLeft)
        .with_null_equality(NullEquality::NullEqualsNothing)
        .build_exec()
}

fn aggregate(schema: &SchemaRef, rows: &[RecordBatch]) -> Result<Arc<dyn ExecutionPlan>> {
    let input = MemorySourceConfig::try_new_exec(&[rows.to_vec()], schema.clone(), None)?;
    let groups = PhysicalGroupBy::new_single(vec![(key(), "key".into())]);
    let mode = AggregateMode::Single;
    Ok(Arc::new(AggregateExec::try_new(mode, groups, Vec::new(), Vec::new(), input, schema.clone())?))
}

/// The seconds of the fastest run of a plan.
async fn timed(context: &Arc<TaskContext>, plan: impl Fn() -> Result<Arc<dyn ExecutionPlan>>) -> Result<f64> {
    let mut fastest = Duration::MAX;
    for _ in 0..TRIES {
        let plan = plan()?;
        let began = Instant::now();
        collect(plan, context.clone()).await?;
        fastest = fastest.min(began.elapsed());
    }
    Ok(fastest.as_secs_f64())
}

/// A Parquet file with the rows, compressed as ours are.
fn parquet(schema: &SchemaRef, rows: &[RecordBatch]) -> Result<Bytes> {
    let compression = Compression::ZSTD(ZstdLevel::default());
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties))?;
    for batch in rows {
        writer.write(batch)?;
    }
    Ok(writer.into_inner()?.into())
}

/// The seconds to read a Parquet file.
fn scanned(file: &Bytes) -> Result<f64> {
    let began = Stopwatch::start();
    for batch in ParquetRecordBatchReaderBuilder::try_new(file.clone())?.build()? {
        batch?;
    }
    Ok(began.seconds())
}

/// The seconds to encode the rows, and to decode them.
fn coded(schema: &SchemaRef, rows: &[RecordBatch]) -> Result<(f64, f64)> {
    let fail =
        |error: lightship_wire::WireError| datafusion::error::DataFusionError::External(Box::new(error));
    let began = Stopwatch::start();
    let message = Encoder::new(Codec::Light).encode_all(rows).map_err(fail)?;
    let encoding = began.seconds();
    let payload = datafusion::arrow::buffer::Buffer::from_vec(message.to_vec());
    let began = Stopwatch::start();
    decode(schema, payload, BODY_BYTES_MAX).map_err(fail)?;
    Ok((encoding, began.seconds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_rate_is_measured() {
        let rates = ProcessorRates::measure().await.unwrap();
        let of_rows = [rates.build_row, rates.probe_row, rates.group_row, rates.route_row];
        let of_bytes = [rates.encode_byte, rates.decode_byte, rates.scan_byte];
        for seconds in of_rows.into_iter().chain(of_bytes) {
            assert!(seconds > 0.0 && seconds < 1e-3, "{rates:?}");
        }
        // What is announced is what was measured.
        let announced = ProcessorRates::from(ProcessorEntry::from(rates));
        assert!((announced.decode_byte / rates.decode_byte - 1.0).abs() < 0.1, "{announced:?} {rates:?}");
    }
}
