//! One file a benchmark: its contenders, its figures, its section.

pub(crate) mod bandwidth_and_latency;
pub(crate) mod chunk_size;
pub(crate) mod codecs;
pub(crate) mod columns;
pub(crate) mod databases;
pub(crate) mod fetch_memory;
mod layouts;
pub(crate) mod memory_to_arrow;
pub(crate) mod nulls;
pub(crate) mod peers;
pub(crate) mod postgres_to_arrow;
pub(crate) mod protobuf;
pub(crate) mod round_trip;
mod servers;
pub(crate) mod strings;

use crate::plot::{Axis, Dots, DotsPanel};
use crate::results::{Figure, Results};

/// The contender that is ours, as it comes.
const OURS: &str = "Lightship";

/// What is measured of a transfer over a link.
const OVER_A_LINK: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
];

/// The first figure of all contenders, a panel a place, ours in a colour of its own.
fn side_by_side(results: &Results, x: &str) -> crate::Result<String> {
    let panels = results.places().into_iter().map(|place| {
        let rows = results.contenders(place).into_iter().map(|name| {
            let whose = if name.starts_with(OURS) { OURS } else { "peers" };
            (name.to_owned(), vec![(whose.to_owned(), results.summary(place, name, 0))])
        });
        let title = [place.join(", "), results.notes(place).join("; ")].join(": ");
        DotsPanel { title, rows: rows.collect() }
    });
    Dots { x: Axis::log(x), panels: panels.collect() }.svg()
}

/// Adds the version of what took part, once.
fn add_version(versions: &mut Vec<String>, version: &str) {
    if !versions.iter().any(|known| known == version) {
        versions.push(version.to_owned());
    }
}

/// A heading, what bears on the figures, and a table.
fn under(results: &Results, heading: &str, place: &[impl AsRef<str>], table: &str) -> String {
    let notes = results.notes(place).iter().map(|note| format!("{note}.")).collect::<Vec<_>>().join(" ");
    let notes =
        if notes.is_empty() { notes } else { format!("\n\n{}{}", notes[..1].to_uppercase(), &notes[1..]) };
    format!("### {heading}{notes}\n\n{table}")
}
