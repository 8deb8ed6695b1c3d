//! Scans: the rows of an interval, from all buckets that it meets.
//!
//! The interval is divided among the buckets as the image has it, and the parts are received together
//! (`lightship_transport::net::reception`). A bucket that does not have all keys of its part refuses it, and the
//! part is divided again; so each key is read from exactly one bucket, and the scan is complete when every part is.

mod announced;
mod cover;
mod parts;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use arrow_select::concat::concat_batches;
use futures::StreamExt;
use futures::stream::BoxStream;
use lightship_transport::net::PushListener;
use lightship_transport::net::reception::ReceptionDriver;
use lightship_transport::proto::reception::{
    Conditions, ReceptionConfig, ReceptionMode, ReceptionReport, Start,
};

use self::announced::learn_announced;
use self::cover::Cover;
use self::parts::{Listening, ScanParts, Source};
use super::group::GroupedScan;
use super::{PAUSES, RangeFile};
use crate::connect::WINDOW_BYTES;
use crate::error::{RangeError, Result};
use crate::image::Piece;
use crate::key::Interval;

/// The order of a scan's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// In the order of their keys.
    #[default]
    Key,
    /// As they come; within a bucket, in the order of their keys.
    Any,
}

/// What a scan reads, and how.
#[derive(Debug, Clone)]
pub struct ScanOptions {
    /// The order of the rows.
    pub order: Order,
    /// Most rows. With [`Order::Key`], these are the first ones: the first bucket is read alone until it is clear
    /// that it does not suffice. With [`Order::Any`], buckets are read first that together hold about this many rows.
    /// Then twice as many are read each time, until there are enough.
    pub limit: Option<u64>,
    /// Names of the columns; all if it is `None`.
    pub columns: Option<Vec<String>>,
    /// How the rows of many buckets are received. `Auto` pulls, with as many connections as are worth it, over one
    /// socket to each node. `Push` and `BackOff` listen on a port of this host, to which the nodes must be able to
    /// connect, and need [`Order::Any`].
    pub reception: ReceptionMode,
    /// Announce and pull: before the first row, the nodes announce their buckets by UDP, as they are now. It saves
    /// the requests that a stale image would cost, and takes a round trip. Without it, parts are requested as the
    /// image says. If announcements don't arrive, the nodes are asked by TCP.
    pub announced: bool,
    /// Bytes of Arrow data that all buckets together may have in flight or waiting to be consumed, at least 1 MiB,
    /// and 2 MiB in the order of the key. At most one bucket for each MiB is read at a time. Rows above 1 MiB
    /// need memory beyond it.
    pub budget_bytes: u64,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            order: Order::default(),
            limit: None,
            columns: None,
            reception: ReceptionMode::Auto,
            announced: false,
            budget_bytes: 64 << 20,
        }
    }
}

/// How the rows of a scan are received, while it runs and after its end.
#[derive(Debug, Clone, Default)]
pub struct ScanReport {
    report: Arc<Mutex<Option<ReceptionReport>>>,
}

impl ScanReport {
    /// The report; `None` before the first rows.
    pub fn get(&self) -> Option<ReceptionReport> {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, report: Option<ReceptionReport>) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

/// The rows of a scan. Dropping it cancels the scan.
pub struct Scanned {
    /// Its columns.
    pub schema: SchemaRef,
    /// Its rows. After an error there are none.
    pub rows: BoxStream<'static, Result<RecordBatch>>,
    /// How they are received.
    pub report: ScanReport,
}

impl RangeFile {
    /// The rows with keys in an interval. Each bucket is read as it was at one moment during the scan, which need
    /// not be the same for all. If the connection to a bucket is lost after some of its rows, the others are read as they are
    /// later; a bucket that was two when the client last heard of it is read as if it were two.
    ///
    /// The stream fails with [`RangeError::Missing`] if a part of the interval does not answer in time.
    ///
    /// # Errors
    /// If there is no such column, or the options contradict each other.
    pub fn scan(&self, interval: Interval, options: &ScanOptions) -> Result<Scanned> {
        self.scan_all(&[interval], options)
    }

    /// As [`RangeFile::scan`], of several intervals, which are in order and don't meet.
    ///
    /// # Errors
    /// As [`RangeFile::scan`].
    pub fn scan_all(&self, intervals: &[Interval], options: &ScanOptions) -> Result<Scanned> {
        let whole = &self.definition().schema;
        let columns = match &options.columns {
            None => None,
            Some(names) => {
                Some(names.iter().map(|name| whole.index_of(name)).collect::<Result<Vec<_>, _>>()?)
            }
        };
        let schema = match &columns {
            None => whole.clone(),
            Some(columns) => Arc::new(whole.project(columns)?),
        };
        let source = Source {
            file: self.clone(),
            // The key is read too: a scan that is interrupted goes on after the last row.
            columns: columns.as_ref().map(|columns| {
                let key = self.definition().format().columns().iter().filter(|key| !columns.contains(key));
                columns.iter().chain(key).map(|&column| column as u32).collect()
            }),
            schema: schema.clone(),
        };
        let report = ScanReport::default();
        let scan = Scan {
            source: Arc::new(source),
            config: self.reception(options)?,
            is_announced: !options.announced,
            rest: intervals.to_vec().into(),
            left: options.limit,
            at_once: match (options.limit, options.order) {
                (None, _) => usize::MAX,
                (Some(_), Order::Key) => 1,
                (Some(limit), Order::Any) => self.holding(limit, intervals),
            },
            driver: None,
            before: None,
            joined_parts: 0,
            report: report.clone(),
        };
        let rows = futures::stream::unfold(Some(scan), |scan| async move {
            let mut scan = scan?;
            match scan.next().await {
                Ok(rows) => rows.map(|rows| (Ok(rows), Some(scan))),
                Err(error) => Some((Err(error), None)),
            }
        });
        Ok(Scanned { schema, rows: rows.boxed(), report })
    }

    /// How many of the first buckets of some intervals hold this many rows, as far as they have told; at least 1. One that
    /// has not told ends the count: it may hold any number.
    fn holding(&self, rows: u64, intervals: &[Interval]) -> usize {
        let image = self.locked_image();
        let pieces = intervals.iter().flat_map(|interval| image.pieces(interval));
        let mut held = 0_u64;
        let before = pieces
            .map_while(|(_, owner)| owner?.records)
            .take_while(|records| {
                held = held.saturating_add(*records);
                held < rows
            })
            .count();
        before + 1
    }

    /// The limits and times of a reception.
    fn reception(&self, options: &ScanOptions) -> Result<ReceptionConfig> {
        let client = &self.shared.options;
        let connects = matches!(options.reception, ReceptionMode::Push | ReceptionMode::BackOff);
        if connects && options.order == Order::Key {
            return Err(RangeError::Definition(
                "buckets that push their rows can't be read in the order of the key, only in any order"
                    .into(),
            ));
        }
        let round_trip = self.shared.network.round_trip();
        let mut config = ReceptionConfig {
            mode: options.reception,
            // The image says at once which parts there are.
            start: Start::WhenCovered,
            in_order: options.order == Order::Key,
            connections_first: self.connections_first(round_trip)?,
            connections_max: u32::try_from(client.connections_max).unwrap_or(u32::MAX).max(1),
            budget_bytes: options.budget_bytes,
            grant_bytes_min: WINDOW_BYTES,
            stall: client.patience,
            retry_first: PAUSES[0],
            retry_max: PAUSES[1],
            patience: client.patience,
            ..ReceptionConfig::default()
        };
        if let Some(round_trip) = round_trip {
            config.conditions.rtt_seconds = round_trip.as_secs_f64();
        }
        config.check().map_err(|error| RangeError::Definition(error.to_string()))?;
        Ok(config)
    }
}

/// With how many connections at a time the first scan begins over a link that isn't known: more may overflow its queue.
const CONNECTIONS_FIRST_MAX: u32 = 16;
/// The rate of such a link, in bytes per second: 1 Gbit/s.
const LINK_BYTES_PER_SECOND: f64 = 125e6;

impl RangeFile {
    /// With how many connections at a time a scan begins: as the last one has ended; the first one as the model says for
    /// a round trip to other hosts. `None` on one host, where the model's own link is assumed.
    fn connections_first(&self, round_trip: Option<Duration>) -> Result<Option<u32>> {
        let last = *self.scan_connections();
        let Some(round_trip) = round_trip.filter(|time| last.is_none() && !time.is_zero()) else {
            return Ok(last);
        };
        let model = Conditions {
            parts: u64::from(u32::MAX),
            rtt_seconds: round_trip.as_secs_f64(),
            link_bytes_per_second: LINK_BYTES_PER_SECOND,
            connections_max: CONNECTIONS_FIRST_MAX,
            ..Conditions::default()
        };
        model.connections().map(Some).map_err(|error| RangeError::Definition(error.to_string()))
    }
}

/// A scan.
struct Scan {
    source: Arc<Source>,
    config: ReceptionConfig,
    /// The buckets have been announced, or need not be.
    is_announced: bool,
    /// What has not begun.
    rest: VecDeque<Interval>,
    left: Option<u64>,
    /// Buckets of the next reception.
    at_once: usize,
    driver: Option<ReceptionDriver<ScanParts>>,
    /// Of receptions that have ended.
    before: Option<ReceptionReport>,
    /// Parts that are received as a part of another one, since they were asked for together.
    joined_parts: u64,
    report: ScanReport,
}

impl Scan {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.left == Some(0) {
                self.driver = None;
                return Ok(None);
            }
            if !self.is_announced {
                learn_announced(&self.source.file, self.rest.make_contiguous()).await?;
                self.is_announced = true;
            }
            if self.driver.is_none() && !self.begin().await? {
                return Ok(None);
            }
            let Some(driver) = &mut self.driver else { return Ok(None) };
            let rows = driver.next().await;
            let report = sum(self.before, driver.report());
            let (parts, requested) = (report.parts + self.joined_parts, report.requested + self.joined_parts);
            self.report.set(Some(ReceptionReport { parts, requested, ..report }));
            if let Some((_, rows)) = rows? {
                return Ok(Some(self.limited(rows)));
            }
            if let Some(connections) = driver.connections_settled() {
                *self.source.file.scan_connections() = Some(connections);
            }
            (self.driver, self.before) = (None, Some(report));
            self.at_once = self.at_once.saturating_mul(2);
        }
    }

    /// Begins to receive the next parts. Returns whether there are any.
    async fn begin(&mut self) -> Result<bool> {
        let mut pieces = Vec::new();
        {
            let image = self.source.file.locked_image();
            while pieces.len() < self.at_once
                && let Some(interval) = self.rest.pop_front()
            {
                pieces.extend(image.route(&interval));
            }
        }
        let later = pieces.split_off(pieces.len().min(self.at_once));
        later.into_iter().rev().for_each(|(piece, _)| self.rest.push_front(piece));
        if pieces.is_empty() {
            return Ok(false);
        }
        let pieces = self.grouped(pieces).await?;
        let mode = self.config.mode;
        let (listening, arrivals) = if matches!(mode, ReceptionMode::Push | ReceptionMode::BackOff) {
            let listener = PushListener::bind(self.config.connections_max)?;
            let (port, token) = (listener.port(), listener.token());
            let backs_off = mode == ReceptionMode::BackOff;
            (Some(Listening { port, token, backs_off }), Some(listener.connections()))
        } else {
            (None, None)
        };
        let parts = ScanParts::new(self.source.clone(), Cover::new(pieces, self.left), listening);
        self.driver = Some(ReceptionDriver::new(self.config.clone(), parts, arrivals)?);
        Ok(true)
    }

    /// Asks for the rows of pieces together, if that is worth it. Then pieces that are not asked for stay for later, and
    /// adjacent ones whose rows are here become one.
    async fn grouped(&mut self, mut pieces: Vec<Piece>) -> Result<Vec<(Piece, Option<RecordBatch>)>> {
        let source = &self.source;
        let scan = GroupedScan {
            columns: source.columns.as_ref(),
            schema: &source.read_schema()?,
            limit: self.left,
        };
        let together = match self.config.mode {
            ReceptionMode::Auto => source.file.pieces_grouped(&pieces, &scan, self.config.budget_bytes),
            _ => 0,
        };
        if together == 0 {
            return Ok(pieces.into_iter().map(|piece| (piece, None)).collect());
        }
        let later = pieces.split_off(together);
        later.into_iter().rev().for_each(|(piece, _)| self.rest.push_front(piece));
        let rows = source.file.rows_grouped(&pieces, &scan, self.config.budget_bytes).await;
        let mut found: Vec<(Piece, Option<Vec<RecordBatch>>)> = Vec::new();
        for ((interval, owner), rows) in pieces.into_iter().zip(rows) {
            match (found.last_mut(), rows) {
                (Some(((last, _), Some(before))), Some(rows)) => {
                    before.push(rows);
                    self.joined_parts += 1;
                    last.high = interval.high;
                }
                (_, rows) => found.push(((interval, owner), rows.map(|rows| vec![rows]))),
            }
        }
        let found = found.into_iter().map(|(piece, rows)| {
            Ok((piece, rows.map(|rows| concat_batches(scan.schema, &rows)).transpose()?))
        });
        found.collect()
    }

    fn limited(&mut self, batch: RecordBatch) -> RecordBatch {
        let Some(left) = &mut self.left else { return batch };
        let take = batch.num_rows().min(usize::try_from(*left).unwrap_or(usize::MAX));
        *left -= take as u64;
        batch.slice(0, take)
    }
}

/// The report of several receptions, one after the other.
fn sum(before: Option<ReceptionReport>, last: ReceptionReport) -> ReceptionReport {
    let Some(before) = before else { return last };
    ReceptionReport {
        strategy: last.strategy,
        parts: before.parts + last.parts,
        bytes: before.bytes + last.bytes,
        rows: before.rows + last.rows,
        announcements: before.announcements + last.announcements,
        refused: before.refused + last.refused,
        requested: before.requested + last.requested,
        asked: before.asked + last.asked,
        lost: before.lost + last.lost,
        used_bytes_peak: before.used_bytes_peak.max(last.used_bytes_peak),
        elapsed: before.elapsed + last.elapsed,
    }
}
