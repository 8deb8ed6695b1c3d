//! Every codec over every link with every data set, and `auto` compared with the best of them.

use lab::Lab;

use super::servers::MemoryServer;
use super::under;
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::plot::{Axis, Dots, DotsPanel};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::{Settings, codecs};
use crate::tables;

const NAME: &str = "codecs";
const AUTO: &str = "auto";
const TARGET: f64 = 1.05;
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 3, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
    Figure { name: "MB/s of Arrow", digits: 0, range: false },
];
const RATE: usize = 2;

fn measure(settings: &Settings, course: &LinkedHosts, data: Data, results: &mut Results) -> Result<()> {
    let scale = settings.scale_over(&course.link);
    let memory = MemoryServer::start(course, &data.file(scale)?)?;
    let contenders = codecs().map(|codec| {
        let memory = &memory;
        Contender::new(codec.clone(), move || {
            let done = memory.fetch(&["--codec", &codec, "--tcp"])?;
            let rate = done.bytes as f64 / 1e6 / done.seconds;
            Ok(vec![done.seconds, done.wire_bytes as f64 / 1e6, rate])
        })
    });
    let contenders = contenders.collect();
    let values = vec![course.link.clone(), data.to_string()];
    let place = Case { values, scale, note: course.measured.clone() };
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)
}

/// Seconds of `auto` divided by those of the best fixed codec; NaN if either is missing.
fn to_best(results: &Results, place: &[&str]) -> f64 {
    let fixed = results.contenders(place).into_iter().filter(|codec| *codec != AUTO);
    let best = fixed.map(|codec| results.median(place, codec)).fold(f64::NAN, f64::min);
    results.median(place, AUTO) / best
}

fn plot(results: &Results) -> Result<String> {
    let data = results.values(1);
    let panel = |link: &&str| {
        let row = |codec: String| {
            let of = |data: &&str| ((*data).to_owned(), results.summary(&[*link, *data], &codec, RATE));
            (codec.clone(), data.iter().map(of).collect())
        };
        DotsPanel { title: (*link).to_owned(), rows: codecs().map(row).collect() }
    };
    let panels = results.values(0).iter().map(panel).collect();
    Ok(Dots { x: Axis::log("MB of Arrow buffers a second"), panels }.svg()?)
}

fn report(results: &Results) -> Vec<String> {
    let (links, data) = (results.values(0), results.values(1));
    let ratio = |link: &str, data: &str| tables::number(to_best(results, &[link, data]), 3);
    let summary = format!(
        "### auto compared with the best fixed codec\n\nMedian seconds of `auto` divided by those of the \
         best fixed codec for that link and data. Target: at most {TARGET}.\n\n{}",
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
    for link in settings.links(&["local", "fast", "lan", "wan", "slow"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        for data in Data::ALL {
            measure(settings, &course, data, &mut results)?;
        }
    }
    Report {
        name: NAME,
        page: Page::ColumnarProtocol,
        title: "Codecs by link and data",
        text: "Tables from the memory of a process on one host to Arrow batches in a process on another, \
               which counts and drops them, always over TCP. The tables are lineitem (16 columns, no NULL) \
               and two in the shape of the American Community Survey (acs: 274 columns, 16% NULL) and of the \
               airlines' on-time performance (airline: 109 columns, 55% NULL). `auto` chooses the codec \
               during the transfer; every other row is one codec for the whole result. Bytes on the wire are \
               those of messages."
            .into(),
        tables: report(&results),
        plots: vec![(plot(&results)?, "MB of Arrow buffers a second by codec, link and data")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Run;

    #[test]
    fn auto_is_compared_with_the_best_of_its_link_and_data() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut results = Results::open(folder.path(), NAME, &["link", "data"], FIGURES).expect("new");
        for (data, none, zstd, auto) in [("acs", 4.0, 2.0, 2.2), ("airline", 1.0, 3.0, 1.0)] {
            let place = Case { values: vec!["lan".into(), data.into()], ..Case::default() };
            let run = |(contender, seconds): (&str, f64)| Run {
                place: place.clone(),
                contender: contender.into(),
                round: 1,
                values: vec![seconds, 1.0, 1.0],
            };
            results.add([("auto", auto), ("none", none), ("zstd", zstd)].map(run).to_vec()).expect("saved");
        }
        assert!((to_best(&results, &["lan", "acs"]) - 1.1).abs() < 1e-9);
        assert_eq!(to_best(&results, &["lan", "airline"]), 1.0);
        assert!(to_best(&results, &["wan", "acs"]).is_nan());
        let summary = &report(&results)[0];
        assert!(summary.ends_with("| lan | 1.100 | 1.000 |"), "{summary}");
        assert!(plot(&results).expect("drawn").contains("airline"));
    }
}
