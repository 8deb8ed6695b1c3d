//! A link whose bandwidth changes halfway: `auto` compared with an oracle that knows of the change.

use std::time::Duration;

use lab::Lab;

use super::servers::MemoryServer;
use super::{by_place, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::{Settings, codecs};
use crate::tables;

const NAME: &str = "bandwidth-cut";
const AUTO: &str = "auto";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "changed after s", digits: 3, range: false },
];
const CHANGED: usize = 2;
/// Links, and the links that they become. Both are made by token buckets alone.
const CHANGES: [(&str, &str); 2] = [("lan", "100mbit"), ("100mbit", "lan")];

fn changing(from: &str, to: &str) -> String {
    format!("{from} then {to}")
}

fn contenders<'a>(
    memory: &'a MemoryServer<'_>,
    course: &'a LinkedHosts,
    from: &'a str,
    then: Option<(&'a str, f64)>,
) -> Vec<Contender<'a>> {
    let one = |codec: String| {
        Contender::new(codec.clone(), move || {
            course.reshape(from)?;
            let (after, event) = match then {
                Some((to, after)) => (after, Some(to)),
                None => (0.0, None),
            };
            let arguments = ["--codec", &codec, "--tcp"];
            let done = match event {
                Some(to) => {
                    memory.fetch_during(&arguments, Duration::from_secs_f64(after), || course.reshape(to))?
                }
                None => memory.fetch(&arguments)?,
            };
            Ok(vec![
                done.seconds,
                done.wire_bytes as f64 / 1e6,
                if event.is_some() { after } else { f64::NAN },
            ])
        })
    };
    codecs().map(one).collect()
}

fn measure(
    settings: &Settings,
    course: &LinkedHosts,
    data: Data,
    scale: f64,
    results: &mut Results,
) -> Result<()> {
    let memory = MemoryServer::start(course, &data.file(scale)?)?;
    let place = |link: String| Case {
        values: vec![link, data.to_string()],
        scale,
        note: format!("made as {}: {}", course.link, course.measured),
    };
    for link in ["lan", "100mbit"] {
        let contenders = contenders(&memory, course, link, None);
        results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place(link.to_owned()))?)?;
    }
    for (from, to) in CHANGES {
        // Half the time that `auto` takes over the first link.
        let after = results.median(&[from.to_owned(), data.to_string()], AUTO) / 2.0;
        let contenders = contenders(&memory, course, from, Some((to, after)));
        results
            .add(Comparison { figures: FIGURES, contenders }.run(settings, &place(changing(from, to)))?)?;
    }
    Ok(())
}

/// Seconds of the best codec over a link that does not change.
fn best(results: &Results, link: &str, data: &str) -> f64 {
    let place = [link, data];
    let all = results.contenders(&place);
    all.into_iter().map(|codec| results.median(&place, codec)).fold(f64::NAN, f64::min)
}

/// Seconds with the best codec of each link, switched at the moment of the change.
fn oracle(results: &Results, from: &str, to: &str, data: &str) -> f64 {
    let after = results.summary(&[&*changing(from, to), data], AUTO, CHANGED).median;
    let part = after / best(results, from, data);
    after + (1.0 - part) * best(results, to, data)
}

fn report(results: &Results) -> Vec<String> {
    let data = results.values(1);
    let changes: Vec<String> = CHANGES.iter().map(|(from, to)| changing(from, to)).collect();
    let rows: Vec<&str> = changes.iter().map(String::as_str).collect();
    let ratio = |row: &str, data: &str| {
        let (from, to) = row.split_once(" then ").unwrap_or((row, row));
        tables::number(results.median(&[row, data], AUTO) / oracle(results, from, to, data), 3)
    };
    let summary = format!(
        "### auto compared with an oracle\n\nSeconds of `auto` divided by those of an oracle, which uses the \
         best codec of the first link up to the change and the best codec of the second link after it. The \
         oracle's seconds are calculated from transfers over links that do not change. Target where the link \
         is cut: at most 1.1.\n\n{}",
        tables::grid("link", &rows, &data, ratio)
    );
    let all = results
        .places()
        .into_iter()
        .map(|place| under(results, &place.join(", "), place, &tables::contenders(results, place, None)));
    std::iter::once(summary).chain(all).collect()
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, &["link", "data"], FIGURES)?;
    let course = LinkedHosts::open(&lab, "lan")?;
    for data in Data::ALL {
        measure(settings, &course, data, settings.scale_or(1.0), &mut results)?;
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "A link that changes halfway",
        text: "From memory over TCP, as in the comparison of codecs. When half the time that `auto` takes \
               over the first link has passed since the query, the token buckets at both ends get another \
               rate; their size stays. A fixed codec is one codec for the whole result, with sizes that \
               follow the link."
            .into(),
        tables: report(&results),
        plots: vec![(by_place(&results, "seconds")?, "Seconds by codec, link and data")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
