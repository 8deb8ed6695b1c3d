//! Range files: a scan that 1 to 1000 buckets answer, by strategy of reception.

use std::net::IpAddr;

use lab::Lab;
use lightship_tuner::reception::paper;

use crate::comparison::{Comparison, Contender};
use crate::links::LinkedHosts;
use crate::parts::{Part, RangeServed, ScanTimes};
use crate::plot::{Axis, Lines, LinesPanel, Series};
use crate::process::Process;
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Result, places, tables};

const NAME: &str = "range-reception";
const DIMENSIONS: &[&str] = &["link", "record", "buckets"];
const FIGURES: &[Figure] = &[
    Figure { name: "first scan ms", digits: 1, range: true },
    Figure { name: "next scan ms", digits: 1, range: false },
    Figure { name: "parts requested", digits: 0, range: false },
    Figure { name: "refused", digits: 0, range: false },
    Figure { name: "granted or waiting MB, at most", digits: 2, range: false },
    Figure { name: "client's memory MB", digits: 0, range: false },
    Figure { name: "failed", digits: 0, range: false },
];
const FIRST: usize = 0;
const NEXT: usize = 1;
const GRANTED: usize = 4;
/// 1 if a scan of the run has failed, else 0.
const FAILED: usize = 6;
const AUTO: &str = "auto";
/// A contender, with its arguments, and whether it reads many servers at a time.
const CONTENDERS: [(&str, &[&str], bool); 8] = [
    ("push", &["push"], true),
    ("back-off", &["back-off"], true),
    ("announce, pull 1", &["announce"], false),
    ("announce, pull 8", &["announce", "--connections", "8"], true),
    ("pull 1", &["pull"], false),
    ("pull 4", &["pull", "--connections", "4"], true),
    ("pull 16", &["pull", "--connections", "16"], true),
    (AUTO, &["auto"], true),
];
/// A plot has seven colours.
const NOT_PLOTTED: &str = "pull 4";
/// The paper's experiment: 50 records from each server.
const PAPER_RECORDS: usize = 50;
/// The link and the records that come nearest to it.
const PAPERS: [&str; 2] = ["local", "100 B"];
const PAPERS_CAPTION: &str = "Milliseconds of a scan by number of buckets, as the paper's total response times of its \
                              three strategies by number of servers (here `push`, `back-off` and `announce, pull 1`)";
/// More buckets share these servers.
const SERVERS_MAX: usize = 140;
/// The most rows that are read from one bucket at a time over a link with a delay, in bytes: more take minutes.
const ONE_BY_ONE_BYTES_MAX: usize = 10_000_000;
/// Rounds of all but the paper's experiment.
const FEW_ROUNDS: u32 = 3;
const LINKS: [&str; 3] = ["local", "lan", "wan"];

/// Records of one size, and the numbers of buckets that have them.
struct Records {
    name: &'static str,
    bytes: usize,
    /// Of a bucket.
    records: usize,
    buckets: &'static [usize],
    /// The paper's experiment.
    is_papers: bool,
}

/// The records over a link.
fn records(link: &str) -> Vec<Records> {
    let small = Records {
        name: "100 B",
        bytes: 100,
        records: PAPER_RECORDS,
        buckets: &[1, 5, 10, 15, 20, 30, 40, 60, 80, 100, 120, 140, 1000],
        is_papers: true,
    };
    let is_papers = false;
    let kilobyte =
        Records { name: "1 KB", bytes: 1000, records: PAPER_RECORDS, buckets: &[10, 140, 1000], is_papers };
    let large = Records { name: "100 KB", bytes: 100_000, records: 5, buckets: &[10, 140, 1000], is_papers };
    match link {
        "local" => vec![small, kilobyte, large],
        // 1000 such buckets take 40 seconds at least.
        "wan" => vec![kilobyte, Records { buckets: &[10, 140], ..large }],
        _ => vec![kilobyte, large],
    }
}

/// Servers with a full file.
struct Servers<'a> {
    course: &'a LinkedHosts,
    _process: Process,
    served: RangeServed,
    _folder: tempfile::TempDir,
}

impl<'a> Servers<'a> {
    fn start(course: &'a LinkedHosts, records: &Records, buckets: usize) -> Result<Self> {
        let folder = places::temporary()?;
        let address: IpAddr = course.far().address();
        let (address, servers) = (address.to_string(), buckets.min(SERVERS_MAX).to_string());
        let buckets = buckets.to_string();
        let [count, bytes] = [records.records.to_string(), records.bytes.to_string()];
        let data = folder.path().display().to_string();
        let arguments = ["range-servers", &address, &servers, &buckets, &count, &bytes, &data];
        let mut process = Part::spawn(Some(course.far()), &arguments)?;
        let served: RangeServed = serde_json::from_str(&process.line()?)?;
        eprintln!("{} records in {} buckets on {} servers", served.records, served.buckets, served.servers);
        Ok(Self { course, _process: process, served, _folder: folder })
    }

    fn scan(&self, arguments: &[&str]) -> Result<Vec<f64>> {
        let address = self.served.address.to_string();
        let arguments = [&["range-scan", &address], arguments].concat();
        let times: ScanTimes = match Part::spawn(Some(self.course.near()), &arguments)?.result() {
            Ok(times) => times,
            Err(error) => {
                eprintln!("a scan has failed: {error}");
                return Ok([&[f64::NAN; FAILED][..], &[1.0]].concat());
            }
        };
        if times.rows != self.served.records {
            return Err(format!("{} rows of {}", times.rows, self.served.records).into());
        }
        Ok(vec![
            times.first_seconds * 1e3,
            times.next_seconds * 1e3,
            times.requested as f64,
            times.refused as f64,
            times.used_bytes as f64 / 1e6,
            times.peak_memory_bytes as f64 / 1e6,
            0.0,
        ])
    }
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, DIMENSIONS, FIGURES)?;
    for link in settings.links(&LINKS) {
        let course = LinkedHosts::open(&lab, &link)?;
        for records in records(&link) {
            let most = if settings.quick { 1 } else { records.buckets.len() };
            for &buckets in &records.buckets[..most] {
                measure(settings, &course, &records, buckets, &mut results)?;
            }
        }
    }
    let worst = worst(&results);
    let granted = results
        .places()
        .into_iter()
        .flat_map(|place| CONTENDERS.map(|(name, ..)| results.summary(place, name, GRANTED).max));
    let granted = granted.filter(|bytes| !bytes.is_nan()).fold(0.0, f64::max);
    let (failed, runs) = results.sum(FAILED);
    Report {
        name: NAME,
        page: Page::Range,
        title: "One scan, answered by many buckets",
        text: format!(
            "After M. Tsangou, S. Ndiaye, M. Seck and W. Litwin, \"Range Queries to Scalable Distributed Data Structure \
             RP\\*\", WDAS 2003: a scan of a whole file with one bucket on each server. The paper's buckets have 50 \
             records on 8 PCs; here all servers are sockets of one process, each with its own database and its own \
             listener, and a bucket has about 50 records of 100 bytes or 1 KB, or 5 of 100 KB. The client is a new \
             process each time, which has the addresses of the buckets: first scans open the connections, next ones \
             find them open, but where the servers connect they do so again for each; medians of up to 9 scans of each \
             kind, as many as begin within 2 seconds. `push`: each \
             server connects once, and the client asks those again that it refused. `back-off`: refused servers try \
             again. `announce, pull k`: servers announce themselves by UDP, and the client connects to k at a time (the \
             paper's third strategy, there with k = 1). `pull k`: the same without announcements. `auto` is the default \
             of `lightship range scan`. The slowest `auto`, compared with the fastest strategy at the same place: \
             {:.2} of its time for the first scan ({}), {:.2} for the next ({}); target: at most 1.10. The most that \
             all buckets of a scan were allowed to send, or had sent and was not consumed: {granted:.1} MB; the budget is \
             67.1 MB, and a bucket may send its share of it before its size is known. {failed} of {runs} runs failed; a run \
             ends with its first scan that fails. Cells are empty where one bucket at a time would take minutes.",
            worst[0].0, worst[0].1, worst[1].0, worst[1].1,
        ),
        tables: tables(&results),
        plots: plots(&results)?,
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}

fn measure(
    settings: &Settings,
    course: &LinkedHosts,
    records: &Records,
    buckets: usize,
    results: &mut Results,
) -> Result<()> {
    if !CONTENDERS.iter().any(|(name, ..)| settings.wants(name)) {
        return Ok(());
    }
    let started = Servers::start(course, records, buckets)?;
    let bytes = buckets * records.records * records.bytes;
    let fits = |many: bool| many || course.link != "wan" || bytes <= ONE_BY_ONE_BYTES_MAX;
    let contenders = CONTENDERS.into_iter().filter(|(_, _, many)| fits(*many)).map(|(name, arguments, _)| {
        let started = &started;
        let contender = Contender::new(name, move || started.scan(arguments));
        if records.is_papers { contender } else { contender.rounds_max(FEW_ROUNDS) }
    });
    let RangeServed { buckets: made, records: count, servers, .. } = started.served;
    let note = format!("{made} buckets with {count} records on {servers} servers; {}", course.measured);
    let values = vec![course.link.clone(), records.name.to_owned(), buckets.to_string()];
    let place = Case { values, scale: 1.0, note };
    results.add(Comparison { figures: FIGURES, contenders: contenders.collect() }.run(settings, &place)?)
}

/// The largest ratio of `auto` to the fastest at the same place, for the first scan and for the next ones, with the
/// place.
fn worst(results: &Results) -> [(f64, String); 2] {
    [FIRST, NEXT].map(|figure| {
        let ratio = |place: &[String]| {
            let of = |name: &str| results.summary(place, name, figure).median;
            let best = results.contenders(place).into_iter().map(of).fold(f64::INFINITY, f64::min);
            (of(AUTO) / best, place.join(", "))
        };
        let ratios = results.places().into_iter().map(ratio).filter(|(ratio, _)| !ratio.is_nan());
        ratios.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::NAN, "nowhere".into()))
    })
}

/// The link and the size of records of all places, each once.
fn kinds(results: &Results) -> Vec<[String; 2]> {
    let mut kinds: Vec<[String; 2]> = Vec::new();
    for place in results.places() {
        let kind = [place[0].clone(), place[1].clone()];
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// The numbers of buckets of a kind.
fn buckets<'a>(results: &'a Results, kind: &[String; 2]) -> Vec<&'a str> {
    let places = results.places().into_iter().filter(|place| place[..2] == kind[..]);
    places.map(|place| place[2].as_str()).collect()
}

fn tables(results: &Results) -> Vec<String> {
    let names = CONTENDERS.map(|(name, ..)| name);
    let mut tables = Vec::new();
    for kind in kinds(results) {
        let buckets = buckets(results, &kind);
        let notes = buckets.last().map(|count| {
            results.notes(&[&kind[0], &kind[1], *count]).get(1..).unwrap_or_default().join("; ")
        });
        let mut text = format!(
            "### {}, records of {}\n\nThe last line: {}.",
            kind[0],
            kind[1],
            notes.unwrap_or_default()
        );
        for (figure, what) in [(FIRST, "The first scan, ms"), (NEXT, "The next scans, ms")] {
            let cell = |count: &str, name: &str| {
                tables::number(results.summary(&[&kind[0], &kind[1], count], name, figure).median, 1)
            };
            text += &format!("\n\n{what}:\n\n{}", tables::grid("buckets", &buckets, &names, cell));
        }
        tables.push(text);
    }
    tables.push(papers());
    tables
}

/// The paper's own table.
fn papers() -> String {
    let rows = paper::RESPONSE_TIMES.map(|(servers, ..)| servers.to_string());
    let cell = |servers: &str, strategy: &str| {
        let row = paper::RESPONSE_TIMES.iter().find(|row| row.0.to_string() == servers);
        let time = row.map_or(f64::NAN, |(_, push, back_off, pull)| match strategy {
            "push" => push.unwrap_or(f64::NAN),
            "back-off" => *back_off,
            _ => *pull,
        });
        tables::number(time, 0)
    };
    let table = tables::grid("servers", &rows, &["push", "back-off", "announce, pull 1"], cell);
    format!(
        "### The paper's measurements, ms\n\nPush failed in most runs with more than 40 servers.\n\n{table}"
    )
}

fn plots(results: &Results) -> Result<Vec<(String, &'static str)>> {
    let panel = |kind: &[String; 2], figure: usize, what: &str| {
        let series = CONTENDERS.iter().filter(|(name, ..)| *name != NOT_PLOTTED).map(|(name, ..)| {
            let point = |count: &&str| {
                let summary = results.summary(&[&kind[0], &kind[1], *count], name, figure);
                (count.parse().unwrap_or(f64::NAN), summary)
            };
            Series { name: (*name).to_owned(), points: buckets(results, kind).iter().map(point).collect() }
        });
        LinesPanel {
            title: format!("{what}: {}, {}", kind[0], kind[1]),
            y: Axis::log("ms"),
            series: series.collect(),
        }
    };
    let mut plots = Vec::new();
    for kind in kinds(results) {
        let panels = vec![panel(&kind, FIRST, "first scan"), panel(&kind, NEXT, "next scans")];
        let caption = match kind[..] == PAPERS {
            true => PAPERS_CAPTION,
            false => "Milliseconds of a scan by number of buckets; the paper has no such figure",
        };
        plots.push((Lines::new(Axis::log("buckets"), panels).svg()?, caption));
    }
    Ok(plots)
}
