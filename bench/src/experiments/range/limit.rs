//! Range files: the first records of a wide range.

use crate::comparison::{Comparison, Contender};
use crate::parts::{Part, RangeServed, ScanTimes};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results};
use crate::settings::Settings;
use crate::{Result, places, tables};

const NAME: &str = "range-limit";
const FIGURES: &[Figure] = &[
    Figure { name: "ms", digits: 2, range: true },
    Figure { name: "buckets asked", digits: 0, range: false },
    Figure { name: "buckets needed", digits: 0, range: false },
];
const BUCKETS: usize = 100;
const SERVERS: usize = 4;
const LIMIT: u64 = 100;
const RECORD_BYTES: &str = "100";
/// Records of a bucket, about: from one bucket that has enough to fifty that are needed.
const RECORDS: [usize; 4] = [1000, 50, 10, 2];
const LIMITED: &str = "the first 100";
const WHOLE: &str = "all";

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let mut results = Results::open(&settings.results(), NAME, &["records of a bucket"], FIGURES)?;
    for &records in settings.some_if_quick(&RECORDS) {
        let folder = places::temporary()?;
        let [servers, buckets, count] = [SERVERS, BUCKETS, records].map(|number| number.to_string());
        let data = folder.path().display().to_string();
        let arguments = ["range-servers", "127.0.0.1", &servers, &buckets, &count, RECORD_BYTES, &data];
        let mut process = Part::spawn(None, &arguments)?;
        let served: RangeServed = serde_json::from_str(&process.line()?)?;
        let address = served.address.to_string();
        let scan = |rows: u64, more: &[&str]| {
            let arguments = [&["range-scan", &address, "auto", "--in-order"], more].concat();
            let times: ScanTimes = Part::spawn(None, &arguments)?.result()?;
            if times.rows != rows {
                return Err(format!("{} rows instead of {rows}", times.rows).into());
            }
            let needed = (rows as f64 * served.buckets as f64 / served.records as f64).ceil();
            Ok(vec![times.next_seconds * 1e3, times.requested as f64, needed])
        };
        let limit = LIMIT.to_string();
        let contenders = vec![
            Contender::new(LIMITED, || scan(LIMIT, &["--limit", &limit])),
            Contender::new(WHOLE, || scan(served.records, &[])),
        ];
        let note = format!(
            "{} buckets with {} records on {} servers",
            served.buckets, served.records, served.servers
        );
        let place = Case { values: vec![records.to_string()], scale: 1.0, note };
        results.add(Comparison { figures: FIGURES, contenders }.run(settings, &place)?)?;
    }
    let tables = results.places().into_iter().map(|place| {
        let notes = results.notes(place).get(1..).unwrap_or_default().join("; ");
        format!("{notes}:\n\n{}", tables::contenders(&results, place, None))
    });
    Report {
        name: NAME,
        page: Page::Range,
        title: "The first records of a wide range",
        text: format!(
            "`lightship range scan --limit {LIMIT}` over {BUCKETS} buckets on {SERVERS} servers, in the order of the key, \
             over open connections on this host, compared with a scan of all records. A limited scan asks one bucket \
             first, then twice as many each time, until it has enough: it asks at most twice as many as it needs, and \
             one. `buckets needed` is the number that has that many records on average."
        ),
        tables: tables.collect(),
        plots: Vec::new(),
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
