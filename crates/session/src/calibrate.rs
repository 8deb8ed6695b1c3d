//! Measures a link: the time of the first message of a batch, and of the other messages, by size.
//!
//! As in the thesis (A. Belghoul, "Optimizing Communication Cost in Distributed Query Processing",
//! 2017), a query is run with each pair in a grid of batch and message sizes, with one batch in
//! flight, and the mean times are recorded. Rows from a node are not compressed (codec none), so that
//! a byte of a row is a byte on the link.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use lightship_tuner::{Calibration, Sample, TunerError, thesis};
use lightship_wire::Codec;

use crate::{Client, Memory, Options, Profile, TransportError};

/// How long each pair is timed if there is no budget. A link lets an initial burst pass faster than
/// what follows.
const PAIR_ENOUGH: Duration = Duration::from_millis(150);
/// Minimum number of pairs to fit two planes.
const PAIRS_MIN: usize = 6;
/// Minimum number of pairs to fit one plane over the batch size alone.
const PAIRS_MIN_OF_BATCHES: usize = 4;
/// The rate is measured for the budget divided by this.
const RATE_SHARE: u32 = 2;
/// The rate is measured for this long if there is no budget.
const RATE_WITHIN_MAX: Duration = Duration::from_secs(2);
/// Memory per byte of a batch. Half of the memory is for rows in flight, and a batch is slightly larger
/// than its rows.
const MEMORY_PER_BATCH_BYTE: u64 = 4;

/// Which pairs of sizes are measured, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationPlan {
    /// Pairs of (batch size, message bytes).
    pairs: Vec<(u64, u64)>,
    /// Whether batch sizes are in rows instead of bytes.
    in_rows: bool,
    /// Minimum number of pairs.
    pairs_min: usize,
    /// Minimum number of batches measured for each pair.
    batches_min: u32,
    /// No pair is started after this time, once `pairs_min` are measured.
    budget: Option<Duration>,
}

impl CalibrationPlan {
    /// Fourteen pairs of batches of 32 KB to 2 MB and messages of 8 KB to 1 MB, small ones first, as
    /// many as fit the budget.
    pub fn quick(budget: Duration) -> Self {
        let batches = [32u64, 128, 512, 2048].map(|kib| kib << 10);
        let messages = [8u64, 32, 128, 512, 1024].map(|kib| kib << 10);
        let with = |batch: u64| messages.into_iter().filter(move |&m| m <= batch).map(move |m| (batch, m));
        Self {
            pairs: batches.into_iter().flat_map(with).collect(),
            in_rows: false,
            pairs_min: PAIRS_MIN,
            batches_min: 2,
            budget: Some(budget),
        }
    }

    /// Batches of 512 bytes to 8 MB, each as one message, for sources without messages. The smallest
    /// shows the fixed cost of a batch. The steps are large, so that large batches are reached over
    /// slow links too.
    pub fn batches(budget: Duration) -> Self {
        let sizes = [512u64, 8 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20];
        let pairs = sizes.map(|bytes| (bytes, u64::MAX)).into();
        Self { pairs, in_rows: false, pairs_min: PAIRS_MIN_OF_BATCHES, batches_min: 2, budget: Some(budget) }
    }

    /// The 629 pairs of the thesis, without a time limit.
    pub fn thorough() -> Self {
        let grid = thesis::grid();
        let of = |rows: u64| grid.message_bytes.iter().map(move |&message| (rows, message));
        let pairs = grid.batch_rows.iter().flat_map(|&rows| of(rows)).collect();
        Self { pairs, in_rows: true, pairs_min: PAIRS_MIN, batches_min: 5, budget: None }
    }

    /// The number of pairs.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }
}

/// A source that returns batches of a given size, whose link can be measured.
pub trait Probe {
    /// The error of the source.
    type Error: std::error::Error;

    /// Mean bytes per row, from the first rows; `None` if there are no rows.
    fn row_bytes(&mut self) -> impl Future<Output = Result<Option<f64>, Self::Error>>;

    /// Bytes per second of rows that are streamed without waiting for requests, measured over this
    /// time. `None` if the source can't stream, or the result ends first.
    fn rate(&mut self, within: Duration) -> impl Future<Output = Result<Option<f64>, Self::Error>>;

    /// Times batches of this size, one after the other. `None` if the result has too few rows.
    fn time(&mut self, pair: &Pair) -> impl Future<Output = Result<Option<Sample>, Self::Error>>;
}

/// A pair of sizes to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// F: rows per batch.
    pub batch_rows: u32,
    /// Mean bytes per row.
    pub row_bytes: f64,
    /// M: bytes per message.
    pub message_bytes: u32,
    /// How many batches to time.
    pub batches: Batches,
}

/// How many batches to time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Batches {
    /// Minimum number, not counting the first batch, during which the query starts.
    pub min: u32,
    /// Minimum time, unless the result ends first.
    pub enough: Duration,
}

impl Pair {
    /// F^B.
    pub fn batch_bytes(&self) -> f64 {
        f64::from(self.batch_rows) * self.row_bytes
    }

    /// Whether this many batches, not counting the first, in this time are enough.
    pub fn is_enough(&self, batches: u32, passed: Duration) -> bool {
        batches >= self.batches.min && passed >= self.batches.enough
    }
}

/// A link could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError<E: std::error::Error> {
    /// The source refused the query, or was lost.
    #[error(transparent)]
    Probe(E),
    /// The result of the query is too small.
    #[error(
        "the query returns too few rows to time batches of {batch_rows} rows of {row_bytes:.0} bytes each"
    )]
    TooFewRows {
        /// Rows per batch of the pair that could not be timed.
        batch_rows: u32,
        /// Mean bytes per row.
        row_bytes: f64,
    },
    /// No model can be fitted to the measurements.
    #[error("cannot fit a model to the measurements: {0}")]
    Model(#[from] TunerError),
}

/// Measures the link to the source of `probe`.
///
/// After each pair `told` is called with the number of pairs done and the number of all pairs.
///
/// # Errors
/// [`CalibrateError`]. If the link is lost, all measurements are discarded.
pub async fn calibrate<P: Probe>(
    probe: &mut P,
    endpoint: &str,
    sql: &str,
    effort: &CalibrationPlan,
    mut told: impl FnMut(usize, usize),
) -> Result<Profile, CalibrateError<P::Error>> {
    let began = Instant::now();
    let none = CalibrateError::TooFewRows { batch_rows: 1, row_bytes: 0.0 };
    let row_bytes = probe.row_bytes().await.map_err(CalibrateError::Probe)?.ok_or(none)?;
    // Measure the rate first, because this opens TCP's window. Pairs on a connection in slow start
    // would not fit a plane.
    let within = effort.budget.map_or(RATE_WITHIN_MAX, |budget| budget / RATE_SHARE);
    let bytes_per_second = probe.rate(within).await.map_err(CalibrateError::Probe)?;
    let left = effort.budget.map(|budget| budget.saturating_sub(began.elapsed()));
    let share = left.map_or(PAIR_ENOUGH, |left| left / effort.pairs.len().max(1) as u32);
    let batches = Batches { min: effort.batches_min, enough: share };
    let mut samples = Vec::new();
    for (done, &(batch, message_bytes)) in effort.pairs.iter().enumerate() {
        let late = effort.budget.is_some_and(|budget| began.elapsed() >= budget);
        if late && samples.len() >= effort.pairs_min {
            break;
        }
        let rows = if effort.in_rows { batch as f64 } else { batch as f64 / row_bytes };
        let batch_rows = rows.round().clamp(1.0, f64::from(u32::MAX)) as u32;
        let message_bytes = u32::try_from(message_bytes).unwrap_or(u32::MAX);
        let pair = Pair { batch_rows, row_bytes, message_bytes, batches };
        match probe.time(&pair).await.map_err(CalibrateError::Probe)? {
            Some(sample) => samples.push(sample),
            // Larger batches won't fit the result either.
            None if samples.len() >= effort.pairs_min => break,
            None => return Err(CalibrateError::TooFewRows { batch_rows, row_bytes }),
        }
        told(done + 1, effort.pairs.len());
    }
    let calibration: Calibration = lightship_tuner::calibrate(&samples)?;
    let firsts = samples.iter().map(|sample| sample.first_seconds);
    let rtt_seconds = firsts.fold(f64::INFINITY, f64::min);
    Ok(Profile::new(
        endpoint.into(),
        sql.into(),
        row_bytes,
        rtt_seconds,
        bytes_per_second,
        calibration,
        samples,
    ))
}

/// Probes the link to a node with a query.
pub struct NodeProbe<'a> {
    client: &'a mut Client,
    sql: &'a str,
}

impl<'a> NodeProbe<'a> {
    /// Probes the link of `client`; `sql` should return many rows.
    pub fn new(client: &'a mut Client, sql: &'a str) -> Self {
        Self { client, sql }
    }
}

impl Probe for NodeProbe<'_> {
    type Error = TransportError;

    async fn row_bytes(&mut self) -> Result<Option<f64>, TransportError> {
        let mut transfer = self.client.fetch(self.sql, &Options::first_rows()).await?;
        transfer.row_bytes().await
    }

    async fn rate(&mut self, within: Duration) -> Result<Option<f64>, TransportError> {
        let options = Options { codec: Some(Codec::None), ..Options::default() };
        let mut transfer = self.client.fetch(self.sql, &options).await?;
        let begun = Instant::now();
        let mut counted: Option<(Instant, u64)> = None;
        while let Some(batch) = transfer.next().await? {
            match &mut counted {
                // Skip the first half, when buffers fill and rows arrive faster.
                None if begun.elapsed() >= within / 2 => counted = Some((Instant::now(), 0)),
                None => {}
                Some((since, bytes)) => {
                    *bytes += lightship_wire::message_bytes(&batch, 0, batch.num_rows());
                    let passed = since.elapsed();
                    if passed >= within / 2 {
                        return Ok(Some(*bytes as f64 / passed.as_secs_f64()));
                    }
                }
            }
        }
        Ok(None)
    }

    async fn time(&mut self, pair: &Pair) -> Result<Option<Sample>, TransportError> {
        let largest = (pair.batch_bytes() as u64).max(pair.message_bytes.into());
        let options = Options {
            memory: Memory(largest.saturating_mul(MEMORY_PER_BATCH_BYTE)),
            batch_rows: Some(pair.batch_rows),
            message_bytes: Some(pair.message_bytes),
            window_batches: Some(1),
            codec: Some(Codec::None),
            streams: Some(NonZeroU32::MIN),
            ..Options::default()
        };
        let mut transfer = self.client.fetch(self.sql, &options).await?;
        let (mut first, mut next) = (Mean::default(), Mean::default());
        let (mut in_batch, mut batches) = (0, 0);
        let began = Instant::now();
        let mut last = began;
        while let Some(batch) = transfer.next().await? {
            let took = last.elapsed();
            last = Instant::now();
            if batches > 0 {
                if in_batch == 0 { first.add(took) } else { next.add(took) }
            }
            in_batch += batch.num_rows();
            if in_batch < pair.batch_rows as usize {
                continue;
            }
            if batches > 0 && pair.is_enough(batches, began.elapsed()) {
                return Ok(Some(Sample {
                    batch_bytes: pair.batch_bytes(),
                    message_bytes: f64::from(pair.message_bytes).min(pair.batch_bytes()),
                    first_seconds: first.seconds(),
                    first_count: first.count,
                    next_seconds: next.seconds(),
                    next_count: next.count,
                }));
            }
            (in_batch, batches) = (0, batches + 1);
        }
        Ok(None)
    }
}

#[derive(Default)]
struct Mean {
    sum: Duration,
    count: u64,
}

impl Mean {
    fn add(&mut self, took: Duration) {
        self.sum += took;
        self.count += 1;
    }

    fn seconds(&self) -> f64 {
        if self.count > 0 { self.sum.as_secs_f64() / self.count as f64 } else { 0.0 }
    }
}
