//! Rates by the size of messages, with and without compression.

use lab::Lab;

use super::servers::MemoryServer;
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::links::LinkedHosts;
use crate::plot::{Axis, Lines, LinesPanel, Series};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Summary};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "chunk-size";
const FIGURES: &[Figure] = &[
    Figure { name: "MB/s of Arrow", digits: 0, range: true },
    Figure { name: "wire MB", digits: 1, range: false },
];
const WIRE: usize = 1;
/// The paper's range, from 2 KB to 100 MB.
const MESSAGE_BYTES: [u32; 9] =
    [2_000, 10_000, 50_000, 200_000, 1_000_000, 4_000_000, 10_000_000, 40_000_000, 100_000_000];
const PLAIN: &str = "none";
const CODECS: [&str; 3] = [PLAIN, "light+lz4", "light+zstd"];

/// Rows of a batch that is larger than the largest message, so that messages reach their maximum size.
fn batch_rows(course: &LinkedHosts, file: &DataFile) -> Result<usize> {
    let whole = MemoryServer::start(course, file)?.fetch(&["--codec", "none"])?;
    let row_bytes = (whole.bytes / whole.rows.max(1)).max(1);
    let largest = u64::from(MESSAGE_BYTES[MESSAGE_BYTES.len() - 1]);
    Ok(usize::try_from(largest * 5 / 4 / row_bytes)?.max(1))
}

/// The part of the rows that is sent: small messages are slow, and a part of the rows shows their rate.
fn share(message_bytes: u32) -> f64 {
    if message_bytes < 100_000 { 0.01 } else { 1.0 }
}

fn measure(settings: &Settings, course: &LinkedHosts, data: Data, results: &mut Results) -> Result<()> {
    for sizes in MESSAGE_BYTES.chunk_by(|a, b| share(*a) == share(*b)) {
        let scale = settings.scale_over(&course.link) * share(sizes[0]);
        let file = data.file(scale)?;
        let memory = MemoryServer::start_with(course, &file, batch_rows(course, &file)?)?;
        for size in settings.some_if_quick(sizes) {
            let (memory, size) = (&memory, size.to_string());
            let contenders = CODECS.into_iter().map(|codec| {
                let size = size.clone();
                Contender::new(codec, move || {
                    let done = memory.fetch(&["--codec", codec, "--tcp", "--message-bytes", &size])?;
                    Ok(vec![done.bytes as f64 / 1e6 / done.seconds, done.wire_bytes as f64 / 1e6])
                })
            });
            let contenders = contenders.collect();
            let values = vec![course.link.clone(), data.to_string(), size.clone()];
            let place = Case { values, scale, note: course.measured.clone() };
            results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
        }
    }
    Ok(())
}

fn panels(results: &Results) -> Vec<[String; 2]> {
    let links = results.values(0);
    let both = links.iter().flat_map(|link| results.values(1).into_iter().map(move |data| [*link, data]));
    let there = |place: &[&str; 2]| results.places().iter().any(|known| known[..2] == place[..]);
    both.filter(there).map(|place| place.map(ToOwned::to_owned)).collect()
}

/// Bytes of the messages without compression over those with it.
fn ratio(results: &Results, place: &[&str], codec: &str) -> Summary {
    let bytes = |codec: &str| results.summary(place, codec, WIRE).median;
    Summary::of(std::iter::once(bytes(PLAIN) / bytes(codec)))
}

/// Plots a quantity of each codec by the size of messages, with a panel for each of the places.
fn plot(
    results: &Results,
    places: Vec<[String; 2]>,
    codecs: &[&str],
    axis: &str,
    of: impl Fn(&[&str], &str) -> Summary,
) -> Result<String> {
    let panel = |[link, data]: [String; 2]| {
        let series = |codec: &&str| {
            let point = |size: &str| (size.parse().unwrap_or(f64::NAN), of(&[&link, &data, size], codec));
            Series { name: (*codec).into(), points: results.values(2).into_iter().map(point).collect() }
        };
        let series = codecs.iter().map(series).collect();
        LinesPanel { title: format!("{data}, {link}"), y: Axis::log(axis), series }
    };
    let panels = places.into_iter().map(panel).collect();
    Ok(Lines::new(Axis::log("largest message").bytes(), panels).svg()?)
}

fn report(results: &Results) -> Vec<String> {
    const SCALE: &str = "";
    let ratios = CODECS[1..].iter().map(|codec| format!("{codec}, ratio")).collect::<Vec<_>>();
    let columns: Vec<_> =
        std::iter::once(SCALE).chain(CODECS).chain(ratios.iter().map(String::as_str)).collect();
    let table = |[link, data]: [String; 2]| {
        let cell = |size: &str, column: &str| {
            let place = [&*link, &*data, size];
            match column {
                SCALE => results.notes(&place).into_iter().next().unwrap_or_default(),
                codec => match codec.strip_suffix(", ratio") {
                    Some(codec) => tables::number(ratio(results, &place, codec).median, 2),
                    None => tables::spread(results.summary(&place, codec, 0), 0),
                },
            }
        };
        let sizes = results.values(2);
        let measured =
            sizes.first().and_then(|size| results.notes(&[&link, &data, *size]).into_iter().nth(1));
        let grid = tables::grid("bytes of a message", &sizes, &columns, cell);
        let measured = measured.unwrap_or_default();
        format!(
            "### {data}, {link}\n\nMB/s of Arrow buffers, median (min-max), and bytes of `none` over those of \
             the codec. The link was {measured}.\n\n{grid}"
        )
    };
    panels(results).into_iter().map(table).collect()
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let dimensions = &["link", "data", "message bytes"];
    let mut results = Results::open(&settings.results(), NAME, dimensions, FIGURES)?;
    for link in settings.links(&["local", "lan", "wan"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        for data in Data::ALL {
            measure(settings, &course, data, &mut results)?;
        }
    }
    let places = panels(&results);
    let rate = |place: &[&str], codec: &str| results.summary(place, codec, 0);
    let rates = plot(&results, places.clone(), &CODECS, "MB of Arrow buffers a second", rate)?;
    // The bytes do not depend on the link.
    let mut places = places;
    places.retain(|[link, _]| Some(&**link) == results.values(0).first().copied());
    let ratio = |place: &[&str], codec: &str| ratio(&results, place, codec);
    let ratios = plot(&results, places, &CODECS[1..], "ratio", ratio)?;
    Report {
        name: NAME,
        page: Page::ColumnarProtocol,
        title: "Size of messages",
        text: "The same tables as for the codecs, over TCP, with messages of at most the given size before \
               compression, from batches that are larger than the largest message. Messages of 16 MiB in \
               total are in flight, but at least one and at most 1024. A row that is larger than a message \
               is sent alone. For messages below 100 KB, a hundredth of the rows is sent."
            .into(),
        tables: report(&results),
        plots: vec![
            (rates, "MB of Arrow buffers a second by size of messages"),
            (ratios, "Bytes without compression over bytes with it, by size of messages"),
        ],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
