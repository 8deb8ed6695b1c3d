//! One result over several connections: their gain where packets are lost, and their cost where none are.

use lab::Lab;

use super::servers::MemoryServer;
use super::{by_place, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "streams";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "connections at the end", digits: 0, range: false },
];
const AUTO: &str = "auto";
const ONE: &str = "1";
const NUMBERS: [&str; 5] = [ONE, "2", "4", "8", AUTO];

/// reno slows down when a segment is lost; bbr follows the rate at which data arrives.
const CONTROLS: [&str; 2] = ["reno", "bbr"];

/// A scale with which a run takes seconds, even where loss slows a single connection down.
fn scale(settings: &Settings, link: &str) -> f64 {
    if link.contains('%') { settings.scale_or(0.05) } else { settings.scale_over(link) }
}

fn measure(settings: &Settings, course: &LinkedHosts, control: &str, results: &mut Results) -> Result<()> {
    let scale = scale(settings, &course.link);
    course.congestion_control(control)?;
    let memory = MemoryServer::start(course, &Data::Lineitem.file(scale)?)?;
    let contenders = NUMBERS.map(|number| {
        let memory = &memory;
        Contender::new(number, move || {
            let done = match number {
                AUTO => memory.fetch(&["--tcp"])?,
                number => memory.fetch(&["--tcp", "--streams", number])?,
            };
            Ok(vec![done.seconds, done.wire_bytes as f64 / 1e6, f64::from(done.connections)])
        })
    });
    let values = vec![course.link.clone(), control.to_owned()];
    let place = Case { values, scale, note: course.measured.clone() };
    results.add(Comparison { figures: FIGURES, contenders: contenders.into() }.run(settings, &place)?)
}

fn report(results: &Results) -> Vec<String> {
    let places: Vec<String> = results.places().into_iter().map(|place| place.join(", ")).collect();
    let links: Vec<&str> = places.iter().map(String::as_str).collect();
    let ratio = |row: &str, number: &str| {
        let place = results.places().into_iter().find(|place| place.join(", ") == row);
        let of = |number: &str| place.map_or(f64::NAN, |place| results.median(place, number));
        tables::number(of(number) / of(ONE), 3)
    };
    let summary = format!(
        "### Seconds divided by those of one connection\n\n{}",
        tables::grid("link, congestion control", &links, &NUMBERS, ratio)
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
    let mut results = Results::open(&settings.results(), NAME, &["link", "congestion control"], FIGURES)?;
    for link in settings.links(&["lan", "wan", "wan,1%"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        for control in CONTROLS {
            measure(settings, &course, control, &mut results)?;
        }
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "Connections for one result",
        text: "Lineitem from memory over TCP, with sizes and codec that follow the link, over the given \
               number of connections (`--streams`); with `auto`, Lightship chooses the number. Where packets \
               are lost, a congestion control that takes each loss for a sign of a full link slows a \
               connection down, whatever the bandwidth: reno and cubic do, bbr does not. The link itself is \
               measured with the machine's default congestion control."
            .into(),
        tables: report(&results),
        plots: vec![(by_place(&results, "seconds")?, "Seconds by number of connections and link")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
