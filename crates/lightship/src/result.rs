//! Opened sources, and their results combined into one (UNION ALL).

use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use futures::future::try_join_all;
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use lightship_session::TransferRecord;
use lightship_sources::{Location, StatementInfo, Tuples};

use crate::gather::{Gather, Gathered};
use crate::options::{Options, PlaceOptions};
use crate::origin::{OpenSource, SourceQuery, SourceResult, WaitingQuery};
use crate::report::{Report, SourceTotals};
use crate::{Error, Result, Statement, columns, node};

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
        let options_of_place = &place_options;
        let open = |location| {
            async move {
                let opened = OpenSource::open(location, options_of_place).await;
                opened.map_err(|error| placed(error, &location.to_string(), locations.len()))
            }
            .boxed()
        };
        let opening: Vec<_> = locations.iter().map(open).collect();
        let origins = stream::iter(opening).buffered(place_options.at_once).try_collect().await?;
        Ok(Self { origins, options: *options, place_options })
    }

    /// The memory of a result.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.options.memory_bytes()
    }

    /// Runs a query at all sources. Each gets all parameters. All must return columns with the same names, and with
    /// types that have a common type that holds all values without loss.
    ///
    /// Rows interleave as they arrive; order is kept only within one source. Dropping the result
    /// cancels the query at all sources.
    ///
    /// All sources are read at once if the memory is enough. Otherwise some wait for others to end: every source
    /// is asked for its columns first, by a query that is cancelled, and runs the query again when it is read.
    ///
    /// # Errors
    /// If a source refuses the query or is lost, or the columns differ too much. With SQLSTATE 22023 if the values of the
    /// parameters don't fit the query, and 0A000 if a node is too old for parameters.
    pub async fn query(&mut self, statement: impl Into<Statement>) -> Result<QueryResult<'_>> {
        let statement = statement.into();
        self.run(statement).await
    }

    /// What a query returns and which parameters it has, without executing it. Several sources must have the same number of
    /// parameters; those of the first are returned, and the columns of all as in [`Self::query`]. SQLite knows the types
    /// of columns without a declared type only from rows, so that a result may have others.
    ///
    /// # Errors
    /// If a source refuses the query or is lost, the columns differ too much, or a node is too old.
    pub async fn describe(&mut self, sql: &str) -> Result<StatementInfo> {
        let places = self.origins.len();
        let options = &self.place_options;
        let mut described = Vec::with_capacity(places);
        for source in &mut self.origins {
            let uri = source.uri().to_owned();
            let info = source.describe(sql, options).await;
            described.push((info.map_err(|error| placed(error.in_statement(sql), &uri, places))?, uri));
        }
        let parameters = described[0].0.parameters.clone();
        if described.iter().any(|(info, _)| info.parameters.fields().len() != parameters.fields().len()) {
            return Err(Error::usage("the statement has more parameters at one source than at another"));
        }
        let schemas: Vec<_> =
            described.iter().map(|(info, uri)| (uri.as_str(), info.columns.clone())).collect();
        let rename = self.options.duplicate_columns.unwrap_or_default();
        Ok(StatementInfo { columns: rename.apply(&columns::unite(&schemas)?), parameters })
    }

    async fn run(&mut self, statement: Statement) -> Result<QueryResult<'_>> {
        let began = Instant::now();
        let places = self.origins.len();
        let options = &self.place_options;
        let rename = self.options.duplicate_columns.unwrap_or_default();
        let (mut queries, announced) = if places <= options.at_once {
            run(&mut self.origins, &statement, options).await?
        } else {
            announce(&mut self.origins, &statement, options).await?
        };
        let schemas =
            queries.iter().zip(&announced).map(|(query, (schema, _))| (query.uri(), schema.clone()));
        let schema = rename.apply(&columns::unite(&schemas.collect::<Vec<_>>())?);
        queries.iter_mut().for_each(|query| query.cast_to(&schema));
        // The total is known only if every source has an estimate.
        let estimates = announced.iter().map(|(_, rows_estimate)| *rows_estimate);
        let rows_estimate = estimates.reduce(|all, one| Some(all?.saturating_add(one?))).flatten();
        let tuples = if let [SourceQuery::Running(only)] = &mut queries[..] { only.tuples() } else { None };
        let inputs = Gather::new(queries, options.at_once, self.options.memory_bytes())?;
        Ok(QueryResult {
            sql: statement.sql,
            transfer: options.transfer,
            schema,
            rows_estimate,
            tuples,
            inputs,
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

/// The queries at all sources, with the columns and the estimated number of rows of each.
type Queries<'a> = (Vec<SourceQuery<'a>>, Vec<(SchemaRef, Option<u64>)>);

/// Runs a query at all sources at once.
async fn run<'a>(
    sources: &'a mut [OpenSource],
    statement: &Statement,
    options: &PlaceOptions,
) -> Result<Queries<'a>> {
    let places = sources.len();
    let sources = sources.iter_mut().enumerate();
    let results = sources.map(|(number, source)| run_at(source, number, places, statement, options));
    let results = try_join_all(results).await?;
    let announced = results.iter().map(|result| (result.schema(), result.rows_estimate())).collect();
    Ok((results.into_iter().map(|result| SourceQuery::Running(Box::new(result))).collect(), announced))
}

/// Runs a query at one of several sources.
async fn run_at<'a>(
    source: &'a mut OpenSource,
    number: usize,
    places: usize,
    statement: &Statement,
    options: &PlaceOptions,
) -> Result<SourceResult<'a>> {
    let uri = source.uri().to_owned();
    let result = source.query(number, statement, options).await;
    result.map_err(|error| placed(error.in_statement(&statement.sql), &uri, places))
}

/// Asks all sources for their columns, a few at a time.
async fn announce<'a>(
    sources: &'a mut [OpenSource],
    statement: &Statement,
    options: &PlaceOptions,
) -> Result<Queries<'a>> {
    let places = sources.len();
    let mut asked = Vec::with_capacity(places);
    for (number, source) in sources.iter_mut().enumerate() {
        let columns = async move {
            let result = run_at(source, number, places, statement, options).await?;
            Ok::<_, Error>((result.schema(), result.rows_estimate()))
        };
        asked.push(columns.boxed());
    }
    let announced: Vec<_> = stream::iter(asked).buffered(options.at_once).try_collect().await?;
    let waiting = sources.iter_mut().zip(&announced).enumerate().map(|(number, (source, (schema, _)))| {
        SourceQuery::Waiting(Box::new(WaitingQuery {
            source,
            number,
            statement: statement.clone(),
            options: options.clone(),
            announced: schema.clone(),
            cast_to: schema.clone(),
        }))
    });
    Ok((waiting.collect(), announced))
}

/// The rows of a query, while they arrive.
pub struct QueryResult<'a> {
    sql: String,
    transfer: lightship_session::Options,
    schema: SchemaRef,
    rows_estimate: Option<u64>,
    tuples: Option<Tuples>,
    inputs: Gather<'a, SourceQuery<'a>>,
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
            match delivered {
                Some(Gathered::Item((batch, bytes))) => {
                    self.rows += batch.num_rows() as u64;
                    return Ok(Some((batch, bytes)));
                }
                Some(Gathered::Ended(source)) => {
                    self.deliveries.extend(source.into_delivery());
                    self.deliveries.sort_by_key(|delivery| delivery.number);
                }
                Some(Gathered::Failed(source, error)) => {
                    let error = placed(error, source.uri(), self.places).after(self.rows);
                    drop(source);
                    // Cancels the queries of the others.
                    self.inputs.cancel();
                    return Err(self.failed.insert(error).clone());
                }
                None => {
                    if self.ended.is_none() {
                        self.end();
                    }
                    return Ok(None);
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
