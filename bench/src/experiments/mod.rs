//! One file per benchmark: its contenders, its figures, its section.

pub(crate) mod bandwidth_and_latency;
pub(crate) mod bandwidth_cut;
pub(crate) mod calibrate;
pub(crate) mod chunk_size;
pub(crate) mod clients;
pub(crate) mod codecs;
pub(crate) mod cold_start;
pub(crate) mod columns;
pub(crate) mod competing_flow;
pub(crate) mod databases;
pub(crate) mod fetch_memory;
pub(crate) mod fetch_size;
pub(crate) mod files;
pub(crate) mod jobs;
mod layouts;
pub(crate) mod load;
pub(crate) mod memory_to_arrow;
pub(crate) mod network;
pub(crate) mod nulls;
pub(crate) mod overlay;
pub(crate) mod peers;
pub(crate) mod postgres_to_arrow;
pub(crate) mod protobuf;
pub(crate) mod range;
pub(crate) mod round_trip;
mod servers;
pub(crate) mod shuffle;
pub(crate) mod streams;
pub(crate) mod strings;
pub(crate) mod types;
pub(crate) mod usage;

use crate::plot::{Axis, Dots, DotsPanel};
use crate::results::{Figure, Results};

/// The contender Lightship with its default settings.
const OURS: &str = "Lightship";

/// The figures of a transfer over a link.
const OVER_A_LINK: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
];

/// Plots the first figure of all contenders, with one panel per place.
fn by_place(results: &Results, x: &str) -> crate::Result<String> {
    let panels = results.places().into_iter().map(|place| {
        let row = |name: &str| (name.to_owned(), vec![(x.to_owned(), results.summary(place, name, 0))]);
        DotsPanel { title: place.join(", "), rows: results.contenders(place).into_iter().map(row).collect() }
    });
    Ok(Dots { x: Axis::log(x), panels: panels.collect() }.svg()?)
}

/// Plots the first figure of all contenders, with one panel per place and Lightship in its own colour.
fn side_by_side(results: &Results, x: &str) -> crate::Result<String> {
    side_by_side_titled(results, x, |place| place.join(", "))
}

/// As [`side_by_side`], with the title of each panel made by `title`.
fn side_by_side_titled(
    results: &Results,
    x: &str,
    title: impl Fn(&[String]) -> String,
) -> crate::Result<String> {
    let panels = results.places().into_iter().map(|place| {
        let rows = results.contenders(place).into_iter().map(|name| {
            let whose = if name.starts_with(OURS) { OURS } else { "peers" };
            (name.to_owned(), vec![(whose.to_owned(), results.summary(place, name, 0))])
        });
        let scale = results.notes(place).into_iter().next().unwrap_or_default();
        DotsPanel { title: format!("{} ({scale})", title(place)), rows: rows.collect() }
    });
    Ok(Dots { x: Axis::log(x), panels: panels.collect() }.svg()?)
}

/// Adds a version, unless it is there already.
fn add_version(versions: &mut Vec<String>, version: &str) {
    if !versions.iter().any(|known| known == version) {
        versions.push(version.to_owned());
    }
}

/// The scale and the notes of a place, as a sentence.
fn circumstances<S: AsRef<str>>(results: &Results, place: &[S]) -> String {
    format!("At {}.", results.notes(place).join("; "))
}

/// A heading, the circumstances, and a table.
fn under<S: AsRef<str>>(results: &Results, heading: &str, place: &[S], table: &str) -> String {
    format!("### {heading}\n\n{}\n\n{table}", circumstances(results, place))
}
