//! A link that another flow begins to share halfway: `auto` compared with the best fixed codec or sizes.

use std::time::Duration;

use lab::Lab;

use super::servers::{CompetingFlow, MemoryServer};
use super::{by_place, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::{Settings, codecs};
use crate::tables;

const NAME: &str = "competing-flow";
const AUTO: &str = "auto";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "joined after s", digits: 3, range: false },
];
/// Bytes of a message, and messages in flight.
const SIZES: [(u32, u32); 6] =
    [(256 << 10, 8), (256 << 10, 32), (1 << 20, 4), (1 << 20, 8), (1 << 20, 16), (1 << 20, 64)];

/// The settings that each contender fixes; `auto` fixes none.
fn fixed() -> impl Iterator<Item = (String, Vec<String>)> {
    // The other codecs take several times as long.
    let light = codecs().filter(|codec| codec == AUTO || codec.starts_with("light"));
    let codecs = light.map(|codec| (codec.clone(), vec!["--codec".to_owned(), codec]));
    let sizes = SIZES.map(|(message, window)| {
        let arguments =
            ["--message-bytes".into(), message.to_string(), "--window".into(), window.to_string()];
        (format!("{} KiB x {window}", message >> 10), arguments.to_vec())
    });
    codecs.chain(sizes)
}

fn measure(settings: &Settings, course: &LinkedHosts, results: &mut Results) -> Result<()> {
    let data = Data::Lineitem;
    let scale = settings.scale_or(if course.link == "lan" { 1.0 } else { 0.2 });
    let memory = MemoryServer::start(course, &data.file(scale)?)?;
    memory.fetch(&["--tcp"])?;
    let after = memory.fetch(&["--tcp"])?.seconds / 2.0;
    let contenders = fixed().map(|(name, arguments)| {
        let memory = &memory;
        Contender::new(name, move || {
            let arguments: Vec<_> =
                arguments.iter().map(String::as_str).chain(std::iter::once("--tcp")).collect();
            let mut flow = CompetingFlow::ready(course)?;
            let done = memory.fetch_during(&arguments, Duration::from_secs_f64(after), || flow.begin())?;
            Ok(vec![done.seconds, done.wire_bytes as f64 / 1e6, after])
        })
    });
    let values = vec![course.link.clone(), data.to_string()];
    let place = Case { values, scale, note: course.measured.clone() };
    let comparison = Comparison { figures: FIGURES, contenders: contenders.collect() };
    results.add(comparison.run(settings, &place)?)
}

fn report(results: &Results) -> Vec<String> {
    let (links, data) = (results.values(0), results.values(1));
    let ratio = |link: &str, data: &str| {
        let place = [link, data];
        let others = results.contenders(&place).into_iter().filter(|name| *name != AUTO);
        let best = others.map(|name| results.median(&place, name)).fold(f64::NAN, f64::min);
        tables::number(results.median(&place, AUTO) / best, 3)
    };
    let summary = format!(
        "### auto compared with the best fixed setting\n\nMedian seconds of `auto` divided by those of the \
         best other contender. Target: at most 1.1.\n\n{}",
        tables::grid("link", &links, &data, ratio)
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
    for link in settings.links(&["lan", "100mbit", "wan"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        measure(settings, &course, &mut results)?;
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "A link that another flow begins to share",
        text: "From memory over TCP. When half the time that `auto` takes alone has passed since the query, \
               netcat begins to send zeros between the same hosts in the same direction, as fast as TCP \
               allows, until all rows have arrived. `auto` chooses codec and sizes and adapts both. The name \
               of a codec stands for that codec with sizes that adapt. M x W stands for messages of M bytes \
               with W in flight for the whole result, and a codec that adapts."
            .into(),
        tables: report(&results),
        plots: vec![(by_place(&results, "seconds")?, "Seconds by fixed setting and link")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
