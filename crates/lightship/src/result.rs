//! Opened sources, and their results combined into one (UNION ALL).

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::future::try_join_all;
use futures::{Stream, stream};
use lightship_session::TransferRecord;
use lightship_sources::{Location, Tuples};

use crate::interleave::{Delivered, Interleave};
use crate::options::{Options, PlaceOptions};
use crate::origin::{OpenSource, SourceResult};
use crate::report::{Report, SourceTotals};
use crate::{Error, Result, columns, node};

/// Opens a source: a node, a database, a file or a folder.
///
/// # Errors
/// If it can't be reached, refuses the login, or contains nothing readable.
pub async fn connect(location: &Location, options: &Options) -> Result<Connection> {
    connect_all(std::slice::from_ref(location), options).await
}

/// Opens several sources at once, whose rows are combined into one result.
///
/// # Errors
/// As [`connect`], with the source in [`Error::place`]; also if `locations` is empty.
pub async fn connect_all(locations: &[Location], options: &Options) -> Result<Connection> {
    Connection::open(locations, options, false).await
}

/// One or several opened sources.
pub struct Connection {
    /// In the order given.
    origins: Vec<OpenSource>,
    options: Options,
    place_options: PlaceOptions,
}

impl Connection {
    /// `tuples`: whether rows may be passed on undecoded.
    pub(crate) async fn open(locations: &[Location], options: &Options, tuples: bool) -> Result<Self> {
        if locations.is_empty() {
            return Err(Error::usage("no source was given"));
        }
        let mut place_options = options.of_place(locations.len())?;
        place_options.read.tuples = tuples;
        let open = async |location: &Location| {
            let opened = OpenSource::open(location, &place_options).await;
            opened.map_err(|error| placed(error, &location.to_string(), locations.len()))
        };
        let origins = try_join_all(locations.iter().map(open)).await?;
        Ok(Self { origins, options: *options, place_options })
    }

    /// Runs a query at all sources at once. All must return columns with the same names, and with types
    /// that have a common type that holds all values without loss.
    ///
    /// Rows interleave as they arrive; order is kept only within one source. Dropping the result
    /// cancels the query at all sources.
    ///
    /// # Errors
    /// If a source refuses the query or is lost, or the columns differ too much.
    pub async fn query(&mut self, sql: &str) -> Result<QueryResult<'_>> {
        let began = Instant::now();
        let places = self.origins.len();
        let options = &self.place_options;
        let results = try_join_all(self.origins.iter_mut().enumerate().map(async |(number, origin)| {
            let uri = origin.uri().to_owned();
            let result = origin.query(number, sql, options).await;
            result.map_err(|error| placed(error.in_statement(sql), &uri, places))
        }));
        let mut results = results.await?;
        let schemas: Vec<_> = results.iter().map(|result| (result.uri(), result.schema())).collect();
        let schema = columns::unite(&schemas)?;
        let schema = self.options.duplicate_columns.unwrap_or_default().apply(&schema);
        results.iter_mut().for_each(|result| result.cast_to(&schema));
        // The total is known only if every source has an estimate.
        let estimates = results.iter().map(SourceResult::rows_estimate);
        let rows_estimate = estimates.reduce(|all, one| Some(all?.saturating_add(one?))).flatten();
        let tuples = if let [only] = &mut results[..] { only.tuples() } else { None };
        Ok(QueryResult {
            sql: sql.to_owned(),
            transfer: options.transfer,
            schema,
            rows_estimate,
            tuples,
            inputs: Interleave::new(results),
            failed: None,
            places,
            began,
            rows: 0,
            receive: Duration::ZERO,
            deliveries: Vec::with_capacity(places),
            ended: None,
        })
    }
}

/// The rows of a query, while they arrive.
pub struct QueryResult<'a> {
    sql: String,
    transfer: lightship_session::Options,
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    tuples: Option<Tuples>,
    inputs: Interleave<'a, SourceResult<'a>>,
    /// The error that ended the result.
    failed: Option<Error>,
    places: usize,
    began: Instant,
    rows: u64,
    receive: Duration,
    deliveries: Vec<SourceTotals>,
    ended: Option<Duration>,
}

impl<'a> QueryResult<'a> {
    /// The columns of all batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The estimated number of rows, if every source has an estimate.
    pub fn rows_estimate(&self) -> Option<u64> {
        self.rows_estimate
    }

    /// Takes the source's offer to pass rows on undecoded.
    pub(crate) fn take_tuples(&mut self) -> Option<Tuples> {
        self.tuples.take()
    }

    /// The next batch; `None` once all rows of all sources have arrived.
    ///
    /// # Errors
    /// The first error of a source. It cancels the query at the others, and every later call returns it
    /// again, so a result is never silently short.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        Ok(self.next_counted().await?.map(|(batch, _)| batch))
    }

    /// The next batch, and its bytes before it was cast.
    pub(crate) async fn next_counted(&mut self) -> Result<Option<(RecordBatch, u64)>> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            let waiting = Instant::now();
            let delivered = self.inputs.next().await;
            self.receive += waiting.elapsed();
            let Some(Delivered { input, item }) = delivered else {
                if self.ended.is_none() {
                    self.end();
                }
                return Ok(None);
            };
            match item {
                Ok(Some((batch, bytes))) => {
                    self.rows += batch.num_rows() as u64;
                    self.inputs.put_back(input);
                    return Ok(Some((batch, bytes)));
                }
                Ok(None) => {
                    self.deliveries.push(input.into_delivery());
                    self.deliveries.sort_by_key(|delivery| delivery.number);
                }
                Err(error) => {
                    let error = placed(error, input.uri(), self.places).after(self.rows);
                    drop(input);
                    // Dropping the other inputs cancels their queries.
                    self.inputs = Interleave::new([]);
                    return Err(self.failed.insert(error).clone());
                }
            }
        }
    }

    /// The batches as a stream.
    pub fn into_stream(self) -> impl Stream<Item = Result<RecordBatch>> + Send + 'a {
        stream::try_unfold(self, async |mut this| Ok(this.next().await?.map(|batch| (batch, this))))
    }

    /// Records the transfers from nodes, so that later ones can be planned from them.
    fn end(&mut self) {
        self.ended = Some(self.began.elapsed());
        for SourceTotals { uri, node, .. } in &self.deliveries {
            if let Some(transferred) = node {
                let fact = TransferRecord::of(&self.sql, &self.transfer, transferred);
                // The speed of one source among several says little about its link.
                node::keep(uri, TransferRecord { ours: fact.ours && self.places == 1, ..fact });
            }
        }
    }

    /// What was planned and what happened. A source is included once all of its rows have arrived, so
    /// the report is complete once [`Self::next`] has returned `None`.
    pub fn report(&self) -> Report {
        self.report_of(self.ended.unwrap_or_else(|| self.began.elapsed()), 0)
    }

    /// The report up to now, with the bytes that the destination wrote.
    pub(crate) fn report_written(&self, bytes_written: u64) -> Report {
        self.report_of(self.began.elapsed(), bytes_written)
    }

    fn report_of(&self, took: Duration, bytes_written: u64) -> Report {
        let seconds = took.as_secs_f64();
        Report::new(&self.deliveries, self.places, seconds, self.receive.as_secs_f64(), bytes_written)
    }
}

/// Adds the source to an error, if there are several.
fn placed(error: Error, place: &str, places: usize) -> Error {
    if places > 1 { error.at(place) } else { error }
}
