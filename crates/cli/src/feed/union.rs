//! Several answers as one result: UNION ALL.

use std::time::{Duration, Instant};

use arrow_schema::{DataType, FieldRef, SchemaRef};
use futures::future::try_join_all;
use lightship_session::{Fact, Report as Transferred};
use lightship_sources::{Destination, Location, NumericRule};

use super::columns;
use super::open::{Answer, Ended, Feed, FeedOptions, keep};
use super::turns::{Turn, Turns};
use crate::error::CliError;
use crate::progress::Progress;
use crate::report::{
    CodecReport, PlanReport, Report, RetuneReport, SourceReport, StagesReport, peak_memory_bytes,
};

/// Says which columns are numbers of no stated precision, before the first row: one that does not fit the type that
/// was chosen for them fails the result, however late it comes.
fn note_on_numeric(schema: &SchemaRef) -> Option<String> {
    let NumericRule::Decimal { precision, scale } = NumericRule::RESULT else { return None };
    let is_open = |field: &&FieldRef| *field.data_type() == DataType::Decimal256(precision, scale);
    let names: Vec<&str> =
        schema.fields().iter().filter(is_open).map(|field| field.name().as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "note: numbers of no stated precision are read as decimal({precision}, {scale}): {}; --numeric takes \
             another type",
            names.join(", ")
        )
    })
}

/// All places of a command, opened, in the order in which they were named.
pub(crate) struct Feeds(Vec<Feed>);

impl Feeds {
    /// Opens all of them at once.
    pub(crate) async fn open(locations: &[Location], options: &FeedOptions) -> Result<Self, CliError> {
        let open = async |location: &Location| {
            let opened = Feed::open(location, options).await;
            opened.map_err(|error| placed(error, &location.to_string(), locations.len()))
        };
        try_join_all(locations.iter().map(open)).await.map(Self)
    }

    /// Asks all of them at once, and moves the whole answers into what `create` opens for their schema. The
    /// order of rows within an answer stays; between answers there is none.
    ///
    /// Nothing is created before all have begun to answer, with columns that fit. The first error is that of
    /// the whole, and cancels the others.
    pub(crate) async fn pump<F, D>(
        &mut self,
        sql: &str,
        options: &FeedOptions,
        quiet: bool,
        create: F,
    ) -> Result<Report, CliError>
    where
        F: FnOnce(SchemaRef) -> D,
        D: Future<Output = Result<Box<dyn Destination>, CliError>>,
    {
        let began = Instant::now();
        let places = self.0.len();
        let (mut answers, schema) = self.ask(sql, options).await?;
        let schema = options.duplicate_columns.apply(&schema);
        // Where one can't say, the time left can't be told.
        let estimates = answers.iter().map(Answer::rows_estimate);
        let rows_estimate = estimates.reduce(|all, one| Some(all?.saturating_add(one?))).flatten();
        answers.iter_mut().for_each(|answer| answer.fit(&schema));
        let mut destination = create(schema.clone()).await?;
        let offer = if let [only] = &mut answers[..] { only.tuples() } else { None };
        let is_decoded = !offer.is_some_and(|offer| destination.take_tuples(offer));
        if is_decoded
            && !quiet
            && let Some(note) = note_on_numeric(&schema)
        {
            crate::say!("{note}");
        }
        let mut progress = Progress::new(rows_estimate, quiet);
        let (mut rows, mut receive, mut ended) = (0, Duration::ZERO, Vec::with_capacity(places));
        let mut turns = Turns::new(answers);
        loop {
            let waiting = Instant::now();
            let turn = turns.next().await;
            receive += waiting.elapsed();
            let Some(Turn { supply: answer, given }) = turn else { break };
            let given = given.map_err(|error| placed(error, answer.place(), places).after(rows))?;
            let Some((batch, bytes)) = given else {
                ended.push(answer.ended());
                continue;
            };
            turns.again(answer);
            rows += batch.num_rows() as u64;
            progress.add(batch.num_rows() as u64, bytes);
            destination.write(batch).await?;
        }
        let written = destination.finish().await?;
        drop(progress);
        ended.sort_by_key(|ended| ended.number);
        for Ended { place, node, .. } in &ended {
            if let Some(node) = node {
                let fact = Fact::of(sql, &options.transfer, node);
                // How fast one among others was says little of its link.
                keep(place, Fact { ours: fact.ours && places == 1, ..fact });
            }
        }
        Ok(report(ended, began.elapsed(), receive, written.bytes))
    }

    /// Asks all, and finds the columns that their answers have in common.
    async fn ask(
        &mut self,
        sql: &str,
        options: &FeedOptions,
    ) -> Result<(Vec<Answer<'_>>, SchemaRef), CliError> {
        let places = self.0.len();
        let ask = |(number, feed)| ask_one(number, feed, sql, options, places);
        let answers = try_join_all(self.0.iter_mut().enumerate().map(ask)).await?;
        let schemas: Vec<_> = answers.iter().map(|answer| (answer.place(), answer.schema())).collect();
        let schema = columns::unite(&schemas)?;
        Ok((answers, schema))
    }
}

async fn ask_one<'a>(
    number: usize,
    feed: &'a mut Feed,
    sql: &str,
    options: &FeedOptions,
    places: usize,
) -> Result<Answer<'a>, CliError> {
    let place = feed.place().to_owned();
    let asked = feed.ask(number, sql, options).await;
    asked.map_err(|error| placed(error.in_statement(sql), &place, places))
}

/// Where there is but one place, it need not be named.
fn placed(error: CliError, place: &str, places: usize) -> CliError {
    if places > 1 { error.at(place) } else { error }
}

fn report(ended: Vec<Ended>, took: Duration, receive: Duration, bytes_written: u64) -> Report {
    let nodes = || ended.iter().filter_map(|ended| ended.node.as_ref());
    let sum = |of: fn(&Transferred) -> u64| nodes().map(of).reduce(|all, one| all + one);
    let stage = |of: fn(&Transferred) -> f64| nodes().map(of).reduce(|all, one| all + one);
    let rows = ended.iter().map(|ended| ended.rows).sum();
    let (seconds, receive) = (took.as_secs_f64(), receive.as_secs_f64());
    let carrier = nodes().next().map(|node| node.carrier);
    // Of several plans none is that of the whole.
    let only = if let [only] = &ended[..] { only.node.as_ref() } else { None };
    Report {
        rows,
        bytes_arrow: ended.iter().map(|ended| ended.bytes_arrow).sum(),
        bytes_wire: sum(|node| node.bytes_wire),
        bytes_written,
        seconds,
        rows_per_second: rows as f64 / seconds.max(f64::EPSILON),
        plan: only.map(PlanReport::new),
        carrier: carrier
            .filter(|carrier| nodes().all(|node| node.carrier == *carrier))
            .map(|c| c.to_string()),
        messages: sum(|node| node.messages),
        messages_joined: sum(|node| node.messages_joined),
        stages: StagesReport {
            produce: stage(|node| node.stages.produce),
            encode: stage(|node| node.stages.encode),
            send: stage(|node| node.stages.send),
            wait: stage(|node| node.stages.wait),
            decode: stage(|node| node.stages.decode),
            receive,
            consume: (seconds - receive).max(0.0),
        },
        codecs: CodecReport::all(nodes()),
        retunes: only.map(RetuneReport::all).unwrap_or_default(),
        sources: ended.iter().map(|ended| source(ended, only.is_none())).collect(),
        peak_memory_bytes: peak_memory_bytes(),
    }
}

/// `planned`: with its plan, where that is not said of the whole.
fn source(ended: &Ended, planned: bool) -> SourceReport {
    let node = ended.node.as_ref();
    SourceReport {
        uri: ended.place.clone(),
        rows: ended.rows,
        bytes_arrow: ended.bytes_arrow,
        bytes_wire: node.map(|node| node.bytes_wire),
        seconds: ended.seconds,
        carrier: node.map(|node| node.carrier.to_string()),
        plan: node.filter(|_| planned).map(PlanReport::new),
        retunes: node.filter(|_| planned).map(RetuneReport::all).unwrap_or_default(),
    }
}
