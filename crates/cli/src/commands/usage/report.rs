//! Reports about usage for people.

use std::fmt::Write as _;

use lightship::usage::{Division, Figure, Footprint, LinkSpeeds, Part, Prediction, Verdict};

use crate::columns::aligned;
use crate::size::Seconds;

/// Characters of the longest bar.
const BAR_MAX: f64 = 40.0;

/// Where the time of a run or a query went. `details` has the sources of the figures, and those that are missing.
pub(super) fn explained(name: &str, footprint: &Footprint, verdict: &Verdict, details: bool) -> String {
    let division = &footprint.division;
    let mut text = format!("{name}: {}\n", seconds(footprint.run_ns));
    aligned(&mut text, 2, &bars(division), 1);
    // Writing to a String can't fail.
    let _ = writeln!(text, "{}", verdict.sentence);
    for evidence in &verdict.evidence {
        let _ = writeln!(text, "  {evidence}");
    }
    let _ = writeln!(text, "What would help: {}", verdict.advice);
    if !details {
        return text;
    }
    for host in &footprint.hosts {
        let _ = writeln!(text, "{}: {} samples", host.host, host.samples);
        for (figure, reason) in &host.unavailable {
            let _ = writeln!(text, "  {} unavailable: {reason}", figure.name());
        }
        let uses_network = host.value(Figure::NetworkSentBytes).is_some();
        if uses_network && host.link == LinkSpeeds::default() {
            text.push_str("  speed of the link unavailable: it was not measured; see `lightship calibrate host --link`\n");
        }
    }
    text
}

/// The parts with at least a thousandth of the time, a line each.
fn bars(division: &Division) -> Vec<Vec<String>> {
    let parts = division.parts.iter().filter(|time| division.fraction(time.part) >= 1e-3);
    parts
        .map(|time| {
            let fraction = division.fraction(time.part);
            let bar = "█".repeat((fraction * BAR_MAX).round() as usize);
            let percent = format!("{:.0}%", fraction * 100.0);
            vec![time.part.name().to_owned(), seconds(time.ns), percent, format!("{bar:<40}")]
        })
        .collect()
}

pub(super) fn predicted(label: &str, prediction: &Prediction) -> String {
    let Prediction { seconds, low_seconds, high_seconds, measured_seconds, .. } = *prediction;
    let mut text = format!(
        "{label}: {} predicted ({} to {}), measured {}\n",
        Seconds(seconds),
        Seconds(low_seconds),
        Seconds(high_seconds),
        Seconds(measured_seconds)
    );
    let rows: Vec<Vec<String>> = prediction
        .parts
        .iter()
        .filter(|(_, part_seconds)| *part_seconds >= 1e-3 * seconds)
        .map(|(part, seconds): &(Part, f64)| vec![part.name().to_owned(), Seconds(*seconds).to_string()])
        .collect();
    aligned(&mut text, 2, &rows, 1);
    if let Some(error) = &prediction.error {
        let _ = writeln!(text, "Predictions of this kind so far: {error}.");
    }
    for note in &prediction.notes {
        let _ = writeln!(text, "{note}");
    }
    text
}

pub(super) fn seconds(ns: u64) -> String {
    Seconds(ns as f64 / 1e9).to_string()
}
