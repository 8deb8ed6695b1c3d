//! A first transfer over an unknown link, compared with later ones.

use lab::Lab;

use super::servers::MemoryServer;
use super::{by_place, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::parts::TransferResult;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "cold-start";
const COLD: &str = "cold";
const WARM: &str = "warm";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "first window MB", digits: 1, range: false },
];

fn values(done: &TransferResult) -> Vec<f64> {
    vec![done.seconds, done.wire_bytes as f64 / 1e6, done.plan_memory_bytes as f64 / 1e6]
}

fn measure(settings: &Settings, course: &LinkedHosts, data: Data, results: &mut Results) -> Result<()> {
    // Over the default links, more than 100 MB.
    let scale = settings.scale_over(&course.link);
    let memory = MemoryServer::start(course, &data.file(scale)?)?;
    let before = memory.fetch(&["--tcp"])?;
    let pace = (before.bytes as f64 / before.seconds).to_string();
    let contenders = vec![
        Contender::new(COLD, || Ok(values(&memory.fetch(&["--tcp"])?))),
        Contender::new(WARM, || Ok(values(&memory.fetch(&["--tcp", "--pace", &pace])?))),
    ];
    let place =
        Case { values: vec![course.link.clone(), data.to_string()], scale, note: course.measured.clone() };
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)
}

fn report(results: &Results) -> Vec<String> {
    let (links, data) = (results.values(0), results.values(1));
    let ratio = |link: &str, data: &str| {
        tables::number(results.median(&[link, data], COLD) / results.median(&[link, data], WARM), 3)
    };
    let summary = format!(
        "### Cold compared with warm\n\nMedian seconds of cold transfers divided by those of warm ones. \
         Target: at most 1.15.\n\n{}",
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
    for link in settings.links(&["lan", "wan", "200mbit,50ms"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        for data in Data::ALL {
            measure(settings, &course, data, &mut results)?;
        }
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "Transfers over a known and an unknown link",
        text: "From memory over TCP, with all settings at `auto`. Cold: only the round trip of the \
               handshake is known. Warm: the pace of one earlier transfer is known too, as `fetch` \
               records it. Sizes and codec follow the link in both. The first window is what the first \
               plan allows in flight."
            .into(),
        tables: report(&results),
        plots: vec![(by_place(&results, "seconds")?, "Seconds by link and data")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
