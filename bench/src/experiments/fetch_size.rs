//! Fetch size and message size: the experiments of the thesis on Lightship's protocol. With one batch in
//! flight, a grid of sizes is timed and the model is fitted to it; then the model's plans are timed.

use std::fmt::Write as _;

use lab::Lab;
use lightship_tuner::{
    Calibration, Cost, Limits, LinkModel, Plan, Query, Rules, Sample, Strategy, calibrate, descent,
    mean_relative_error, newton, thesis, volume,
};

use super::servers::MemoryServer;
use super::under;
use crate::Result;
use crate::data;
use crate::links::LinkedHosts;
use crate::parts::TimedSizes;
use crate::plot::{Axis, Dots, DotsPanel, Lines, LinesPanel, Series};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run, Summary};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "mind";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "memory MB", digits: 2, range: false },
    Figure { name: "predicted seconds", digits: 3, range: false },
    Figure { name: "batch bytes", digits: 0, range: false },
    Figure { name: "message bytes", digits: 0, range: false },
    Figure { name: "first seconds", digits: 6, range: false },
    Figure { name: "first messages", digits: 0, range: false },
    Figure { name: "next seconds", digits: 6, range: false },
    Figure { name: "next messages", digits: 0, range: false },
    Figure { name: "segments a message", digits: 2, range: false },
    Figure { name: "receiver s/GB", digits: 2, range: false },
    Figure { name: "sender s/GB", digits: 2, range: false },
];
const SECONDS: usize = 0;
const MEMORY: usize = 1;
const SAMPLE: usize = 3;
const SEGMENTS: usize = 9;
const RECEIVER: usize = 10;
const SENDER: usize = 11;

/// The thesis's queries with many rows: name, and bytes of a row.
const QUERIES: [(&str, u64); 5] = [("Q1", 205), ("Q2", 54), ("Q3", 27), ("Q4", 450), ("Q5", 29)];
/// Its sixth query: name, bytes of a row, rows. The whole result is timed, [`SIXTH_TIMES`] times: its 55 rows
/// need no extrapolation.
const SIXTH: (&str, u64, u64) = ("Q6", 27, 55);
const SIXTH_TIMES: u32 = 100;
/// The query whose model plans the sixth query.
const PLANS_SIXTH: &str = "Q3";
/// The query whose every pair of the thesis is timed once, and its name with them.
const WHOLE_GRID: (&str, &str) = ("Q3", "Q3, 629 pairs");
/// Bytes of each result at scale 1.
const VOLUME_BYTES: f64 = 128e6;
/// The smallest scale: the largest batches need many rows, also with `--quick`.
const SCALE_MIN: f64 = 1.0;
/// Rows of a batch: the decades of the thesis's grid and their halves.
const BATCH_ROWS: [u64; 9] = [110, 550, 1_100, 5_500, 11_000, 55_000, 110_000, 550_000, 1_100_000];
const MESSAGE_BYTES: [u64; 5] = [1_536, 4_096, 8_192, 16_384, 32_768];
const BATCHES_MIN: u32 = 3;
/// Rows of the batches whose messages, segments and processor times are shown by bytes of a message.
const SHOWN_ROWS: u64 = 110_000;
/// The descent ends where a step gains less than this part of the best cell's time.
const GAIN: f64 = 0.01;
const MIND: &str = "MIND";
/// The thesis's optimiser, with the same halting rule.
const NEWTON: &str = "Newton";
/// Subgradient descent, which the thesis names as future work, likewise.
const VOLUME: &str = "volume";
const AUTO: &str = "auto";
const COLD: &str = "auto, nothing known";
/// F^B_max of the thesis.
const BATCH_BYTES_MAX: u64 = 30_000_000;

/// Largest batch of the grid: the thesis's, or less over links where three batches of a cell would take
/// minutes.
fn grid_batch_bytes_max(link: &str) -> u64 {
    match link {
        "slow" => 400_000,
        _ => BATCH_BYTES_MAX,
    }
}

fn limits() -> Limits {
    Limits {
        message_bytes_min: MESSAGE_BYTES[0],
        message_bytes_max: MESSAGE_BYTES[MESSAGE_BYTES.len() - 1],
        batch_bytes_max: BATCH_BYTES_MAX,
    }
}

fn strategy_name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Default => "default: 15 rows",
        Strategy::LargestMessage => "largest message",
        Strategy::LargestBatch => "largest batch",
        Strategy::LargestBoth => "largest both",
        _ => "batch of one message",
    }
}

/// Messages of a batch but the first.
fn others(sample: &Sample) -> f64 {
    sample.next_count as f64 / sample.first_count.max(1) as f64
}

/// Seconds of a batch.
fn batch_seconds(sample: &Sample) -> f64 {
    let others = others(sample);
    let next = if others > 0.0 { others * sample.next_seconds } else { 0.0 };
    sample.first_seconds + next
}

/// Batches of a result. The last is a part of one: the thesis counts it as a whole one.
fn batches(volume_bytes: f64, batch_bytes: f64) -> f64 {
    (volume_bytes / batch_bytes).max(1.0)
}

/// Seconds of a whole result, extrapolated from a sample.
fn seconds(sample: &Sample, query: &Query) -> f64 {
    batches(query.volume_bytes as f64, sample.batch_bytes) * batch_seconds(sample)
}

/// The same, as a model predicts them.
fn predicted_seconds(model: &LinkModel, query: &Query, batch_bytes: f64, message_bytes: f64) -> Result<f64> {
    let whole = Cost::new(model, query)?.seconds(batch_bytes, message_bytes);
    let volume_bytes = query.volume_bytes as f64;
    Ok(whole * batches(volume_bytes, batch_bytes) / (volume_bytes / batch_bytes).ceil())
}

/// Pairs of a batch size and a message size that are timed.
struct SizeGrid {
    batch_rows: Vec<u64>,
    message_bytes: Vec<u64>,
    /// The fewest batches of each pair.
    batches: u32,
}

impl SizeGrid {
    /// The decades of the thesis's grid and their halves.
    fn coarse() -> Self {
        Self { batch_rows: BATCH_ROWS.into(), message_bytes: MESSAGE_BYTES.into(), batches: BATCHES_MIN }
    }

    /// The thesis's 629 pairs.
    fn whole() -> Self {
        let lightship_tuner::Grid { batch_rows, message_bytes } = thesis::grid();
        Self { batch_rows, message_bytes, batches: 1 }
    }

    /// The pairs whose batches fit `query` and have `batch_bytes_max` at most.
    fn cells(&self, query: &Query, batch_bytes_max: u64) -> Vec<(u64, u64)> {
        let rows_of_result = (query.volume_bytes as f64 / query.row_bytes) as u64;
        // A sample takes several batches.
        let fits = |rows: u64| {
            rows as f64 * query.row_bytes <= batch_bytes_max as f64
                && rows * u64::from(self.batches + 1) <= rows_of_result
        };
        let rows = self.batch_rows.iter().copied().filter(|&rows| fits(rows));
        rows.flat_map(|rows| self.message_bytes.iter().map(move |&bytes| (rows, bytes))).collect()
    }
}

/// One round of a query over a link.
struct Round<'a> {
    memory: &'a MemoryServer<'a>,
    query: Query,
    grid: &'a SizeGrid,
    /// Largest batch of the grid.
    grid_batch_bytes_max: u64,
    place: &'a Case,
    round: u32,
}

impl Round<'_> {
    fn time(&self, pairs: &[(u64, u64)]) -> Result<Vec<TimedSizes>> {
        let pairs: Vec<_> = pairs.iter().map(|(rows, bytes)| format!("{rows}:{bytes}")).collect();
        self.memory.sizes(self.grid.batches, &pairs)
    }

    fn run(&self, contender: String, timed: &TimedSizes, model: &LinkModel) -> Result<Run> {
        let sample = &timed.sample;
        let predicted = predicted_seconds(model, &self.query, sample.batch_bytes, sample.message_bytes)?;
        let received = timed.received_bytes as f64;
        let messages = received / sample.batch_bytes * (1.0 + others(sample));
        let values = vec![
            seconds(sample, &self.query),
            sample.batch_bytes / 1e6,
            predicted,
            sample.batch_bytes,
            sample.message_bytes,
            sample.first_seconds,
            sample.first_count as f64,
            sample.next_seconds,
            sample.next_count as f64,
            timed.segments as f64 / messages,
            timed.receiver_seconds / (received / 1e9),
            timed.sender_seconds / (received / 1e9),
        ];
        Ok(Run { place: self.place.clone(), contender, round: self.round, values })
    }

    /// Times the grid, fits the model to it, and times its plan and the strategies.
    fn all(&self) -> Result<Vec<Run>> {
        let cells = self.grid.cells(&self.query, self.grid_batch_bytes_max);
        let timed = self.time(&cells)?;
        let samples: Vec<_> = timed.iter().map(|timed| timed.sample).collect();
        let model = calibrate(&samples)?.model;
        let best = samples.iter().map(|sample| seconds(sample, &self.query)).fold(f64::INFINITY, f64::min);
        let rules = Rules { gain_seconds: Some(GAIN * best), ..Rules::default() };
        let named = plans(&model, &self.query, &rules)?;
        let pairs: Vec<_> = named.iter().map(|(_, pair)| *pair).collect();
        let planned = self.time(&pairs)?;
        let grid = cells.iter().map(|(rows, bytes)| format!("{rows} x {bytes}")).zip(&timed);
        let all = grid.chain(named.into_iter().map(|(name, _)| name).zip(&planned));
        all.map(|(contender, timed)| self.run(contender, timed, &model)).collect()
    }
}

/// Rows of a batch and bytes of a message for each strategy and for MIND.
fn plans(model: &LinkModel, query: &Query, rules: &Rules) -> Result<Vec<(String, (u64, u64))>> {
    let limits = limits();
    let pair = |plan: &Plan| (plan.batch_rows, plan.message_bytes);
    let plans = Strategy::ALL.map(|strategy| -> Result<_> {
        let plan = strategy.plan(model, query, &limits)?;
        Ok((strategy_name(strategy).to_owned(), pair(&plan)))
    });
    let mut named: Vec<_> = plans.into_iter().collect::<Result<_>>()?;
    named.push((MIND.to_owned(), pair(&descent(model, query, &limits, rules)?.plan)));
    named.push((NEWTON.to_owned(), pair(&newton(model, query, &limits, rules)?.plan)));
    named.push((VOLUME.to_owned(), pair(&volume(model, query, &limits, rules)?.plan)));
    Ok(named)
}

/// The figures of a contender that has only these two; the others are NaN.
fn partly(seconds: f64, memory_mb: f64) -> Vec<f64> {
    [vec![seconds, memory_mb], vec![f64::NAN; FIGURES.len() - 2]].concat()
}

/// Measures the query that fits into one batch, with plans by the model of another query.
fn measure_sixth(settings: &Settings, course: &LinkedHosts, results: &mut Results) -> Result<()> {
    let (name, row_bytes, rows) = SIXTH;
    let Ok(Calibration { model, .. }) =
        calibrate(&samples(results, &[course.link.clone(), PLANS_SIXTH.into()]))
    else {
        eprintln!("{name}: {PLANS_SIXTH} must be measured over {} first", course.link);
        return Ok(());
    };
    let memory = MemoryServer::start(course, &data::records(row_bytes, rows)?)?;
    let query = Query { volume_bytes: row_bytes * rows, row_bytes: row_bytes as f64 };
    let values = vec![course.link.clone(), name.to_owned()];
    let place = Case { values, scale: 1.0, note: course.measured.clone() };
    let mut named: Vec<_> = MESSAGE_BYTES.map(|bytes| (format!("{rows} x {bytes}"), (rows, bytes))).into();
    named.extend(plans(&model, &query, &Rules { gain_seconds: Some(0.0), ..Rules::default() })?);
    let mut runs = Vec::new();
    for round in 1..=settings.rounds() {
        for (contender, (batch_rows, message_bytes)) in &named {
            let sizes = [batch_rows.to_string(), message_bytes.to_string()];
            let arguments = ["--codec", "none", "--batch-rows", &sizes[0], "--message-bytes", &sizes[1]];
            let seconds = memory.repeat(SIXTH_TIMES, &arguments)?;
            let batch_bytes = (batch_rows * row_bytes) as f64;
            let predicted = predicted_seconds(&model, &query, batch_bytes, *message_bytes as f64)?;
            let mut values = partly(seconds, batch_bytes / 1e6);
            (values[SAMPLE - 1], values[SAMPLE], values[SAMPLE + 1]) =
                (predicted, batch_bytes, *message_bytes as f64);
            runs.push(Run { place: place.clone(), contender: contender.clone(), round, values });
        }
        let seconds = memory.repeat(SIXTH_TIMES, &[])?;
        // Never more than the whole result.
        let values = partly(seconds, query.volume_bytes as f64 / 1e6);
        runs.push(Run { place: place.clone(), contender: AUTO.into(), round, values });
        eprintln!("{place} {round}/{}", settings.rounds());
    }
    results.add(runs)
}

fn measure(
    settings: &Settings,
    course: &LinkedHosts,
    (name, row_bytes): (&str, u64),
    grid: &SizeGrid,
    results: &mut Results,
) -> Result<()> {
    let scale = settings.scale_or(SCALE_MIN).max(SCALE_MIN);
    let volume = VOLUME_BYTES * scale;
    let file = data::records(row_bytes, (volume / row_bytes as f64) as u64)?;
    let memory = MemoryServer::start(course, &file)?;
    let place =
        Case { values: vec![course.link.clone(), name.to_owned()], scale, note: course.measured.clone() };
    let query = Query { volume_bytes: file.rows * row_bytes, row_bytes: row_bytes as f64 };
    let mut runs = Vec::new();
    for round in 1..=settings.rounds() {
        let grid_batch_bytes_max = grid_batch_bytes_max(&course.link);
        let one = Round { memory: &memory, query, grid, grid_batch_bytes_max, place: &place, round };
        runs.extend(one.all()?);
        let mut whole = |contender: &str, arguments: &[&str]| -> Result<f64> {
            let done = memory.fetch(arguments)?;
            let part = query.volume_bytes as f64 / done.bytes.max(1) as f64;
            let values = partly(done.seconds * part, done.plan_memory_bytes as f64 / 1e6);
            runs.push(Run { place: place.clone(), contender: contender.into(), round, values });
            Ok(done.bytes as f64 / done.seconds)
        };
        let pace = whole(COLD, &["--tcp"])?;
        whole(AUTO, &["--tcp", "--pace", &pace.to_string()])?;
        eprintln!("{place} {round}/{}", settings.rounds());
    }
    results.add(runs)
}

/// Rows of a batch and bytes of a message, if the contender is a cell of the grid.
fn sizes_of(contender: &str) -> Option<[u64; 2]> {
    let (rows, bytes) = contender.split_once(" x ")?;
    Some([rows.parse().ok()?, bytes.parse().ok()?])
}

fn is_cell(contender: &str) -> bool {
    sizes_of(contender).is_some()
}

/// The medians of a contender as a sample.
fn sample(results: &Results, place: &[String], contender: &str) -> Sample {
    let of = |figure: usize| results.summary(place, contender, SAMPLE + figure).median;
    Sample {
        batch_bytes: of(0),
        message_bytes: of(1),
        first_seconds: of(2),
        first_count: of(3) as u64,
        next_seconds: of(4),
        next_count: of(5) as u64,
    }
}

fn samples(results: &Results, place: &[String]) -> Vec<Sample> {
    let cells = results.contenders(place).into_iter().filter(|name| is_cell(name));
    let samples = cells.map(|cell| sample(results, place, cell));
    samples.filter(|sample| sample.first_seconds.is_finite()).collect()
}

/// The best cell, and its seconds.
fn best<'a>(results: &'a Results, place: &[String]) -> Option<(&'a str, f64)> {
    let cells = results.contenders(place).into_iter().filter(|name| is_cell(name));
    cells.map(|cell| (cell, results.median(place, cell))).min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The mean relative error of a cost that is proportional to bytes, with the rate that fits the samples best.
fn per_byte_error(samples: &[Sample]) -> f64 {
    // The least sum of squares of 1 - rate x bytes / seconds.
    let ratios: Vec<_> = samples.iter().map(|sample| sample.batch_bytes / batch_seconds(sample)).collect();
    let rate = ratios.iter().sum::<f64>() / ratios.iter().map(|ratio| ratio * ratio).sum::<f64>();
    ratios.iter().map(|ratio| (1.0 - rate * ratio).abs()).sum::<f64>() / ratios.len() as f64
}

/// Messages of a result, segments of TCP in each, and processor times, by message size and by batch size.
fn resources(results: &Results) -> Vec<String> {
    let places = results.places().into_iter().filter(|place| place[1] == WHOLE_GRID.1);
    let tables = places.flat_map(|place| {
        let largest = thesis::LIMITS.message_bytes_max;
        let sizes = |varies: usize, fixed: u64| -> Vec<String> {
            let shown: &[u64] = if varies == 1 { &MESSAGE_BYTES } else { &BATCH_ROWS };
            let all = results.contenders(place).into_iter().filter_map(sizes_of);
            let with = all.filter(|sizes| sizes[1 - varies] == fixed).map(|sizes| sizes[varies]);
            with.filter(|size| shown.contains(size) || *size == largest)
                .map(|size| size.to_string())
                .collect()
        };
        let table = |varies: usize, fixed: u64| {
            let columns =
                ["messages of the result", "segments a message", "receiver s/GB", "sender s/GB", "seconds"];
            let cell = |size: &str, column: &str| {
                let cell =
                    if varies == 1 { format!("{fixed} x {size}") } else { format!("{size} x {fixed}") };
                let of = |figure: usize| results.summary(place, &cell, figure).median;
                let sample = sample(results, place, &cell);
                match column {
                    "messages of the result" => {
                        let batches = batches(VOLUME_BYTES, sample.batch_bytes);
                        tables::number(batches * (1.0 + others(&sample)), 0)
                    }
                    "segments a message" => tables::number(of(SEGMENTS), 2),
                    "receiver s/GB" => tables::number(of(RECEIVER), 2),
                    "sender s/GB" => tables::number(of(SENDER), 2),
                    _ => tables::number(of(SECONDS), 3),
                }
            };
            let what = if varies == 1 { "message bytes" } else { "rows of a batch" };
            tables::grid(what, &sizes(varies, fixed), &columns, cell)
        };
        [
            format!("### Messages, {}, {SHOWN_ROWS} rows a batch\n\n{}", place[0], table(1, SHOWN_ROWS)),
            format!("### Messages, {}, {largest} bytes a message\n\n{}", place[0], table(0, largest)),
        ]
    });
    tables.collect()
}

/// The error of each query's model, on itself and on the other queries over the same link.
fn fit_table(results: &Results, link: &str) -> String {
    let places: Vec<_> = results.places().into_iter().filter(|place| place[0] == link).collect();
    let mut out = String::from(
        "| calibrated on | alpha | beta | error on itself % | error on the others % | error of a cost a byte % |\n| --- | --- \
         | --- | --- | --- | --- |",
    );
    for place in &places {
        let Ok(Calibration { model, relative_error, .. }) = calibrate(&samples(results, place)) else {
            continue;
        };
        // The same query with more pairs is no other query.
        let base = |place: &[String]| place[1].split(',').next().map(str::to_owned);
        let others =
            places.iter().filter(|other| base(other) != base(place)).map(|other| samples(results, other));
        let others = others.filter(|samples| !samples.is_empty());
        let errors: Vec<f64> = others.filter_map(|samples| mean_relative_error(&model, &samples)).collect();
        let mean =
            if errors.is_empty() { f64::NAN } else { errors.iter().sum::<f64>() / errors.len() as f64 };
        let plane = |p: lightship_tuner::Plane| {
            format!("{:.2e} F + {:.2e} M + {:.2e}", p.per_batch_byte, p.per_message_byte, p.constant)
        };
        let _ = write!(
            out,
            "\n| {} | {} | {} | {:.1} | {:.1} | {:.1} |",
            place[1],
            plane(model.first),
            plane(model.next),
            relative_error.unwrap_or(f64::NAN) * 100.0,
            mean * 100.0,
            per_byte_error(&samples(results, place)) * 100.0
        );
    }
    out
}

/// The figures that have targets, one line per place.
fn summary(results: &Results) -> String {
    let places = results.places();
    let names: Vec<String> = places.iter().map(|place| place.join(", ")).collect();
    let rows: Vec<&str> = names.iter().map(String::as_str).collect();
    let columns = [
        "fit error %",
        "MIND over the best cell",
        "Newton over the best cell",
        "volume over the best cell",
        "auto over the best cell",
        "auto over the best strategy",
        "memory over the largest batch's",
    ];
    let of = |row: &str, column: &str| {
        let place = names.iter().position(|name| name == row).and_then(|at| places.get(at))?;
        let median = |contender: &str| results.median(place, contender);
        let (_, least) = best(results, place)?;
        let memory = |contender: &str| results.summary(place, contender, MEMORY).median;
        let strategies = Strategy::ALL.map(|strategy| median(strategy_name(strategy)));
        Some(match column {
            "fit error %" => calibrate(&samples(results, place)).ok()?.relative_error? * 100.0,
            "MIND over the best cell" => median(MIND) / least,
            "Newton over the best cell" => median(NEWTON) / least,
            "volume over the best cell" => median(VOLUME) / least,
            "auto over the best cell" => median(AUTO) / least,
            "auto over the best strategy" => median(AUTO) / strategies.into_iter().fold(f64::NAN, f64::min),
            _ => memory(AUTO) / memory(strategy_name(Strategy::LargestBatch)),
        })
    };
    let cell =
        |row: &str, column: &str| of(row, column).map_or(String::new(), |value| tables::number(value, 3));
    format!("### Summary\n\n{}", tables::grid("link, query", &rows, &columns, cell))
}

fn plan_table(results: &Results, place: &[String]) -> String {
    let Some((cell, least)) = best(results, place) else { return String::new() };
    let strategies = Strategy::ALL.map(strategy_name);
    let rows: Vec<_> =
        [MIND, NEWTON, VOLUME, AUTO, COLD].into_iter().chain(strategies).chain([cell]).collect();
    let columns = ["seconds", "of the best cell", "memory MB", "F x M"];
    tables::grid("", &rows, &columns, |row, column| {
        let took = results.summary(place, row, SECONDS);
        let sample = sample(results, place, row);
        match column {
            "seconds" => tables::spread(took, 3),
            "memory MB" => tables::number(results.summary(place, row, MEMORY).median, 3),
            "F x M" if sample.batch_bytes.is_nan() => String::new(),
            "F x M" => format!("{:.0} x {:.0}", sample.batch_bytes, sample.message_bytes),
            _ => tables::number(took.median / least, 2),
        }
    })
}

fn plot(results: &Results) -> Result<String> {
    let panel = |place: &[String]| {
        let cells: Vec<[u64; 2]> = results.contenders(place).into_iter().filter_map(sizes_of).collect();
        let mut sizes: Vec<u64> = cells.iter().map(|[_, bytes]| *bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        // As many lines as can be told apart.
        let every = sizes.len().div_ceil(MESSAGE_BYTES.len()).max(1);
        let series = |bytes: u64| {
            let points = cells.iter().filter(|[_, of]| *of == bytes).map(|[rows, _]| {
                (*rows as f64, results.summary(place, &format!("{rows} x {bytes}"), SECONDS))
            });
            Series { name: format!("M = {bytes}"), points: points.collect() }
        };
        LinesPanel {
            title: place.join(", "),
            y: Axis::log("seconds"),
            series: sizes.into_iter().rev().step_by(every).map(series).collect(),
        }
    };
    let panels = results.places().into_iter().map(panel).collect();
    Ok(Lines::new(Axis::log("rows of a batch"), panels).svg()?)
}

/// Plots predicted seconds of the cells over measured ones, by the model of each query.
fn prediction_plot(results: &Results) -> Result<String> {
    let places = results.places().into_iter().filter(|place| !samples(results, place).is_empty());
    let panel = |place: &[String]| {
        let cells = results.contenders(place).into_iter().filter(|name| is_cell(name));
        let mut points: Vec<(f64, Summary)> = cells
            .map(|cell| (results.median(place, cell), results.summary(place, cell, SAMPLE - 1)))
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut same: Vec<_> =
            points.iter().map(|(measured, _)| (*measured, Summary::of([*measured].into_iter()))).collect();
        same.dedup_by(|one, other| one.0 == other.0);
        LinesPanel {
            title: place.join(", "),
            y: Axis::log("seconds"),
            series: vec![
                Series { name: "predicted".into(), points },
                Series { name: "measured".into(), points: same },
            ],
        }
    };
    Ok(Lines::new(Axis::log("measured seconds of a cell"), places.map(panel).collect()).svg()?)
}

/// Plots the seconds of the plans and of the strategies.
fn strategies_plot(results: &Results) -> Result<String> {
    let panels = results.places().into_iter().map(|place| {
        let names = [MIND, NEWTON, VOLUME, AUTO].into_iter().chain(Strategy::ALL.map(strategy_name));
        let of = |name: &str, figure| results.summary(place, name, figure);
        let rows = names.map(|name| {
            let own = if [MIND, NEWTON, VOLUME, AUTO].contains(&name) { "planned" } else { "fixed" };
            (name.to_owned(), vec![(own.to_owned(), of(name, SECONDS))])
        });
        DotsPanel { title: place.join(", "), rows: rows.collect() }
    });
    Ok(Dots { x: Axis::log("seconds"), panels: panels.collect() }.svg()?)
}

fn report(results: &Results) -> Vec<String> {
    let fits = results.values(0).into_iter().map(|link| {
        format!("### The model, {link}\n\nSizes in bytes, times in seconds.\n\n{}", fit_table(results, link))
    });
    let plans = results
        .places()
        .into_iter()
        .map(|place| under(results, &place.join(", "), place, &plan_table(results, place)));
    std::iter::once(summary(results)).chain(fits).chain(resources(results)).chain(plans).collect()
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, &["link", "query"], FIGURES)?;
    for link in settings.links(&["lan", "wan"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        for query in QUERIES.into_iter().filter(|(name, _)| settings.wants(name)) {
            measure(settings, &course, query, &SizeGrid::coarse(), &mut results)?;
        }
        let (of, name) = WHOLE_GRID;
        if settings.wants(name) && !settings.quick {
            let row_bytes = QUERIES.into_iter().find(|(query, _)| *query == of).map_or(1, |(_, bytes)| bytes);
            measure(settings, &course, (name, row_bytes), &SizeGrid::whole(), &mut results)?;
        }
        if settings.wants(SIXTH.0) {
            measure_sixth(settings, &course, &mut results)?;
        }
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "Fetch size and message size",
        text: "Results with the thesis's row sizes (205, 54, 27, 450 and 29 random bytes; 128 MB each at \
               scale 1; its sixth query has 55 rows), from memory over TCP, not encoded, with one batch in \
               flight, at every pair of a grid of batch sizes F and message sizes M. At least three batches \
               of each pair are timed, for at least 150 ms; their mean, multiplied by the number of batches \
               in the result, gives its seconds. The model is fitted to the grid. MIND is the safeguarded \
               descent over the model, which ends where a step gains less than a hundredth of the best \
               cell's time; Newton is the thesis's method and volume a subgradient descent, with the same rule. They \
               and the five strategies, whose batches may have 30 MB, are measured like a cell. The sixth query is fetched a hundred times on one connection; its plans use the model \
               of the third. Of one query, each of the thesis's 629 pairs is timed, with one batch at least. The cost a byte is bytes \
               divided by the rate that fits best, without messages or round trips. Segments are those of TCP that the receiver's kernel counts: over a link with delay, frames of 1500 bytes; \
               otherwise up to 64 KB that the kernel passes on as a whole. Processor times are those of both processes for a GB \
               received, which the kernel counts in steps of 10 ms. `auto` is the whole result as `fetch` transfers it, with its window and codec; \
               it knows the pace of the transfer before, or nothing. Its memory is the window that it begins \
               with."
            .into(),
        tables: report(&results),
        plots: vec![
            (plot(&results)?, "Seconds by rows of a batch and size of messages"),
            (prediction_plot(&results)?, "Predicted over measured seconds of the grid's cells"),
            (strategies_plot(&results)?, "Seconds of the planned sizes and of fixed strategies"),
        ],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
