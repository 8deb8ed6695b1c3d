//! Checks the tables of `docs/cost-model.md` against the code, and the serialised types.

use std::fmt::Write;

use crate::cost::Cost;
use crate::error::Result;
use crate::model::{Limits, LinkModel, Plan, Plane, Query};
use crate::plan::{Budget, plan};
use crate::stages::{Rates, Stage};
use crate::thesis::{self, FASTEST, FIFTY_MEGABIT, ITERATIONS, LIMITS, Q3, QUERIES, TEN_GIGABIT};
use crate::walk::{Rules, Walk};
use crate::window::{Link, WindowCost};
use crate::{Strategy, descent, newton, volume};

const DOCUMENT: &str = include_str!("../../../docs/cost-model.md");

/// 1 Gbit/s and 10 ms; every message takes 10 us of work. The bandwidth-delay product is 1.25 MB.
pub(crate) const LONG: Link = Link {
    model: LinkModel { first: Plane::new(0.0, 8e-9, 0.010), next: Plane::new(0.0, 8e-9, 1e-5) },
    rtt_seconds: 0.010,
    rates: Rates { produce: None, encode: None, send: None, decode: None, consume: None },
};
/// Limits that hardly restrict sizes and memory.
pub(crate) const ROOMY: Limits =
    Limits { message_bytes_min: 512, message_bytes_max: 1 << 20, batch_bytes_max: 1 << 30 };
pub(crate) const RICH: Budget =
    Budget { window_batches_min: 1, window_batches_max: 64, memory_bytes_max: 1 << 30, tolerance: 0.02 };
const TEN_GIGABYTES: Query = Query { volume_bytes: 10_000_000_000, row_bytes: 100.0 };

#[track_caller]
fn documented(table: &str) {
    assert!(DOCUMENT.contains(table), "docs/cost-model.md does not contain this table:\n\n{table}");
}

/// Three significant digits.
fn three(value: f64) -> String {
    let digits = 2 - value.log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 6) as usize)
}

fn bytes(bytes: u64) -> String {
    match bytes as f64 {
        few if few < 1e3 => format!("{few} B"),
        some if some < 1e6 => format!("{} KB", three(some / 1e3)),
        many => format!("{} MB", three(many / 1e6)),
    }
}

#[test]
fn the_table_of_iterations_is_up_to_date() -> Result<()> {
    let walk = newton(&TEN_GIGABIT, &Q3, &LIMITS, &Rules::default())?;
    let mut table = String::from(
        "| k | F^B | M | seconds | gain, seconds | published F^B | M | seconds |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (row, (batch_bytes, message_bytes, seconds)) in walk.trace[1..].iter().zip(ITERATIONS) {
        let _ = writeln!(
            table,
            "| {} | {:.0} | {:.0} | {} | {} | {batch_bytes} | {message_bytes} | {} |",
            row.k,
            row.batch_bytes,
            row.message_bytes,
            three(row.seconds),
            three(row.gain_seconds),
            three(seconds),
        );
    }
    documented(&table);
    Ok(())
}

/// A row of the table: its name, and the plan it gives for a query.
type Row<'a> = (&'a str, &'a dyn Fn(&Query) -> Result<Plan>);

#[test]
fn the_tables_of_strategies_are_up_to_date() -> Result<()> {
    for model in [TEN_GIGABIT, FIFTY_MEGABIT] {
        let gain = Rules { gain_seconds: Some(1.0), ..Rules::default() };
        let link = Link { model, rtt_seconds: model.first.constant, ..Link::default() };
        let one = Budget { window_batches_max: 1, ..Budget::default() };
        let walked = |walk: Result<Walk>| walk.map(|walk| walk.plan);
        let fixed = |strategy: Strategy| move |query: &Query| strategy.plan(&model, query, &LIMITS);
        let rows: [Row<'_>; 12] = [
            ("15 rows, 8 KB", &fixed(Strategy::Default)),
            ("largest M", &fixed(Strategy::LargestMessage)),
            ("largest F", &fixed(Strategy::LargestBatch)),
            ("largest of both", &fixed(Strategy::LargestBoth)),
            ("a batch is one message", &fixed(Strategy::BatchOfOneMessage)),
            ("Newton, delta1 = 1 s", &|query| walked(newton(&model, query, &LIMITS, &gain))),
            ("Newton, no rule", &|query| walked(newton(&model, query, &LIMITS, &Rules::default()))),
            ("descent, no rule", &|query| walked(descent(&model, query, &LIMITS, &Rules::default()))),
            ("volume, no rule", &|query| walked(volume(&model, query, &LIMITS, &Rules::default()))),
            ("best of the grid", &|query| thesis::grid().best(&model, query, &LIMITS)),
            ("plan, W = 1", &|query| plan(&link, query, &LIMITS, &one)),
            ("plan, W up to 64", &|query| plan(&link, query, &LIMITS, &Budget::default())),
        ];
        let mut table = String::from("| |");
        QUERIES.iter().for_each(|(name, _)| table += &format!(" {name} |"));
        table += "\n|---|---|---|---|---|---|---|\n";
        for (name, of) in rows {
            table += &format!("| {name} |");
            for (_, query) in QUERIES {
                let plan = of(&query)?;
                table += &format!(" {}, {} |", three(plan.predicted_seconds), bytes(plan.memory_bytes));
            }
            table += "\n";
        }
        documented(&table);
    }
    Ok(())
}

#[test]
fn the_table_of_measured_best_pairs_is_up_to_date() -> Result<()> {
    let mut table = String::from(
        "| | fastest when measured, F x M | F^B | the model's seconds there | its best of the grid | over its best |\n\
         |---|---|---|---|---|---|\n",
    );
    let links = [("10 Gbit/s", TEN_GIGABIT), ("50 Mbit/s", FIFTY_MEGABIT)];
    for ((link, model), fastest) in links.into_iter().zip(FASTEST) {
        for ((name, query), (rows, message_bytes)) in QUERIES.into_iter().zip(fastest) {
            let batch_bytes = rows as f64 * query.row_bytes;
            let seconds = Cost::new(&model, &query)?.seconds(batch_bytes, message_bytes as f64);
            let best = thesis::grid().best(&model, &query, &LIMITS)?.predicted_seconds;
            let _ = writeln!(
                table,
                "| {link}, {name} | {rows} x {message_bytes} | {} | {} | {} | {:.2} |",
                bytes(batch_bytes as u64),
                three(seconds),
                three(best),
                seconds / best,
            );
        }
    }
    documented(&table);
    Ok(())
}

#[test]
fn the_tables_of_windows_are_up_to_date() -> Result<()> {
    let cost = WindowCost::new(&LONG, &TEN_GIGABYTES)?;
    let mut table = String::from("| W | seconds | memory |\n|---|---|---|\n");
    for window in [1, 2, 4, 8, 10, 11, 12, 16] {
        let seconds = three(cost.seconds(125e3, 125e3, window));
        let _ = writeln!(table, "| {window} | {seconds} | {} |", bytes(window * 125_000));
    }
    documented(&table);

    let mut table =
        String::from("| W at most | W | F^B | M | seconds | memory |\n|---|---|---|---|---|---|\n");
    for window_batches_max in [1, 2, 4, 16, 64] {
        let plan = plan(&LONG, &TEN_GIGABYTES, &ROOMY, &Budget { window_batches_max, ..RICH })?;
        let _ = writeln!(
            table,
            "| {window_batches_max} | {} | {} | {} | {} | {} |",
            plan.window_batches,
            plan.batch_bytes,
            plan.message_bytes,
            three(plan.predicted_seconds),
            bytes(plan.memory_bytes),
        );
    }
    documented(&table);
    Ok(())
}

#[test]
fn types_survive_a_round_trip_through_json() -> Result<(), Box<dyn std::error::Error>> {
    let walk = newton(&TEN_GIGABIT, &Q3, &LIMITS, &Rules::default())?;
    // Numbers can lose their last bit in JSON.
    let again: Walk = serde_json::from_str(&serde_json::to_string(&walk)?)?;
    assert_eq!((again.halt, again.k, again.trace.len()), (walk.halt, walk.k, walk.trace.len()));
    let rates = Rates { decode: Some(1e9), ..Rates::default() };
    let link = Link { rates, ..LONG };
    assert_eq!(serde_json::from_str::<Link>(&serde_json::to_string(&link)?)?, link);
    // Unknown rates may be omitted.
    let short = r#"{"model": {"first": {"per_batch_byte": 0, "per_message_byte": 8e-9, "constant": 0.01},
        "next": {"per_batch_byte": 0, "per_message_byte": 8e-9, "constant": 1e-5}}, "rtt_seconds": 0.01}"#;
    assert_eq!(serde_json::from_str::<Link>(short)?, LONG);
    assert_eq!(serde_json::to_string(&Stage::Decode)?, r#""decode""#);
    Ok(())
}
