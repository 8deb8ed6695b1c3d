//! The same rows as Protocol Buffers and over Lightship's protocol.

use lab::Lab;

use super::servers::{MemoryServer, over};
use super::{OURS, OVER_A_LINK, side_by_side, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::links::LinkedHosts;
use crate::parts::{Part, Shape, TransferResult};
use crate::report::{self, Page, Report};
use crate::results::{Case, Results, Run};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};

const NAME: &str = "protobuf";
const CONTENDERS: [(&str, Shape); 2] =
    [("protobuf, a message a row", Shape::Rows), ("protobuf, a message a chunk of columns", Shape::Columns)];

fn measure(settings: &Settings, course: &LinkedHosts, file: &DataFile, scale: f64) -> Result<Vec<Run>> {
    let memory = MemoryServer::start(course, file)?;
    let mut server = Part::spawn(Some(course.far()), &["protobuf-serve", &file.argument()])?;
    let address = format!("{}:{}", course.far_address(), server.line()?);
    let (memory, address) = (&memory, &*address);
    let ours = |name: &str, arguments: &'static [&'static str]| {
        Contender::new(name, move || over(course, || Ok(memory.fetch(arguments)?.seconds)))
    };
    let mut contenders = vec![ours(OURS, &[]), ours("Lightship, none, TCP", &["--codec", "none", "--tcp"])];
    for (name, shape) in CONTENDERS {
        let read = move || {
            let shape = if shape == Shape::Rows { "rows" } else { "columns" };
            let client = Part::spawn(Some(course.near()), &["protobuf-read", address, shape])?;
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
    let mut results = Results::open(&settings.results, NAME, &["link"], OVER_A_LINK)?;
    for link in settings.links(&["local", "wan"]) {
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
               as days."
            .into(),
        tables: results.places().into_iter().map(section).collect(),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by contender and link")],
        versions: Vec::new(),
        load,
        settings,
    }
    .publish()
}
