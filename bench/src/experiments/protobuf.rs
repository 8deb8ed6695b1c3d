//! The same rows as Protocol Buffers and over Lightship's protocol.

use lab::Lab;

use super::servers::{MemoryServer, over};
use super::{OURS, OVER_A_LINK, side_by_side, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::links::LinkedHosts;
use crate::parts::{Part, TransferResult};
use crate::report::{self, Page, Report};
use crate::results::{Case, Results, Run};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};

const NAME: &str = "protobuf";
const CONTENDERS: [(&str, &str, bool); 4] = [
    ("protobuf, a message a row", "rows", false),
    ("protobuf, a message a chunk of columns", "columns", false),
    ("protobuf, a message a row, zstd", "rows", true),
    ("protobuf, a message a chunk of columns, zstd", "columns", true),
];

fn measure(settings: &Settings, course: &LinkedHosts, file: &DataFile, scale: f64) -> Result<Vec<Run>> {
    let memory = MemoryServer::start(course, file)?;
    let mut server = Part::spawn(Some(course.far()), &["protobuf-serve", &file.argument()])?;
    let address = format!("{}:{}", course.far_address(), server.line()?);
    let (memory, address) = (&memory, &*address);
    let ours = |name: &str, arguments: &'static [&'static str]| {
        Contender::new(name, move || over(course, || Ok(memory.fetch(arguments)?.seconds)))
    };
    let mut contenders = vec![
        ours(OURS, &[]),
        ours("Lightship, none, TCP", &["--codec", "none", "--tcp"]),
        ours("Lightship, light+zstd, TCP", &["--codec", "light+zstd", "--tcp"]),
    ];
    for (name, shape, compressed) in CONTENDERS {
        let read = move || {
            let mut arguments = vec!["protobuf-read", address, shape];
            arguments.extend(compressed.then_some("--compressed"));
            let client = Part::spawn(Some(course.near()), &arguments)?;
            Ok(client.result::<TransferResult>()?.whole(file.rows)?.seconds)
        };
        contenders.push(Contender::new(name, move || over(course, read)));
    }
    let place = Case { values: vec![course.link.clone()], scale, note: course.measured.clone() };
    Comparison { figures: OVER_A_LINK, contenders }.run(settings, &place)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, &["link"], OVER_A_LINK)?;
    for link in settings.links(&["local", "lan", "wan", "slow"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        let scale = settings.scale_over(&link);
        results.add(measure(settings, &course, &Data::Lineitem.file(scale)?, scale)?)?;
    }
    let standing = Standing { ratio: Ratio::Ours(OURS), targets: &[] };
    let section = |place: &[String]| {
        let table = tables::contenders(&results, place, Some(&standing));
        under(&results, &place.join(", "), place, &table)
    };
    Report {
        name: NAME,
        page: Page::ColumnarProtocol,
        title: "Protocol Buffers",
        text: "TPC-H lineitem from memory to memory, as Protocol Buffers in frames of 8192 rows: one \
               message per row, or one message per chunk with a field per column. Both ends use `prost`, \
               on one thread each; the client decodes everything. Decimals are sent as integers, dates \
               as days. `zstd` compresses each frame with Zstandard at level 1, as `light+zstd` does."
            .into(),
        tables: results.places().into_iter().map(section).collect(),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by contender and link")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
