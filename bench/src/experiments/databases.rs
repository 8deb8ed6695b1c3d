//! From a database on the far host: through a Lightship node on that host, and with the database's own
//! clients over the link.

use lab::Lab;

use super::servers::{Database, NodeAtDatabase, built, over, postgres_peer};
use super::{OURS, OVER_A_LINK, add_version, side_by_side, under};
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::Data;
use crate::links::LinkedHosts;
use crate::parts::RunningDatabase;
use crate::peers::{self, Peers};
use crate::process::timed;
use crate::report::{self, Page, Report};
use crate::results::{Case, Results};
use crate::settings::Settings;
use crate::tables::{self, Ratio, Standing};

const POSTGRESQL: &str = "peers-postgresql";
const MARIADB: &str = "peers-mariadb";
const LINKS: [&str; 3] = ["local", "lan", "wan"];
const SQL: &str = "select * from lineitem";
const COPY: &str = "psycopg, COPY BINARY thrown away";

pub(crate) fn postgresql(settings: &Settings) -> Result<()> {
    let load = report::load();
    if settings.wants(OURS) {
        built()?;
    }
    let peers = Peers::install()?;
    let mut versions =
        peers::versions(&["duckdb==", "duckdb-extension-postgres", "adbc", "connectorx", "psycopg"]);
    let mut results = Results::open(&settings.results(), POSTGRESQL, &["link"], OVER_A_LINK)?;
    let lab = Lab::new()?;
    for link in settings.links(&LINKS) {
        let course = LinkedHosts::open(&lab, &link)?;
        let scale = settings.scale_over(&link);
        let file = Data::Lineitem.file(scale)?;
        let server = Database::start(&course, "hold-postgres", &file.path)?;
        let node = beside(settings, &course, &server, file.rows)?;
        let uri = server.uri_near(&course);
        let (course, node, peers, uri) = (&course, &node, &peers, &*uri);
        let peer = |name: &'static str, program: &'static str, arguments: &'static [&'static str]| {
            let arguments = [&[uri], arguments].concat();
            let read = move || Ok(postgres_peer(course, peers, program, &arguments, file.rows)?.seconds);
            Contender::new(name, move || over(course, &read))
        };
        let mut contenders = ours(course, node);
        contenders.extend([
            peer(COPY, "postgres_copy.py", &["lineitem"]),
            peer("psycopg, rows", "postgres_rows.py", &["lineitem"]),
            peer("ADBC", "postgres_adbc.py", &[SQL]),
            peer("ConnectorX, 1 partition", "postgres_connectorx.py", &["lineitem", "l_orderkey", "1"]),
            peer("ConnectorX, 2 partitions", "postgres_connectorx.py", &["lineitem", "l_orderkey", "2"]),
            peer("DuckDB postgres scanner", "postgres_duckdb.py", &["lineitem"]),
        ]);
        let place = Case { values: vec![link], scale, note: course.measured.clone() };
        results.add(Comparison { figures: OVER_A_LINK, contenders }.run(settings, &place)?)?;
        add_version(&mut versions, &server.held.version);
    }
    Report {
        name: POSTGRESQL,
        page: Page::ColumnarProtocol,
        title: "From PostgreSQL on another host",
        text: format!(
            "`{SQL}` (TPC-H, the column types of the specification) from a PostgreSQL server on one host, \
             with the table in its cache, to a process on another. The client counts and drops Arrow \
             batches; ConnectorX builds one table, psycopg reads Python rows through a server-side cursor, \
             and COPY's bytes are discarded. Lightship goes through a `lightship node` on the database's \
             host; the peers connect to the database over the link, without TLS. The clock starts on an open \
             connection. Target over wan: at most a fifth of the time of COPY BINARY."
        ),
        tables: sections(&results),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by contender and link")],
        versions,
        load,
        settings,
    }
    .publish()
}

pub(crate) fn mariadb(settings: &Settings) -> Result<()> {
    let load = report::load();
    if settings.wants(OURS) {
        built()?;
    }
    let mut versions = peers::tools(&[peers::MARIADB])?;
    let mut results = Results::open(&settings.results(), MARIADB, &["link"], OVER_A_LINK)?;
    let lab = Lab::new()?;
    for link in settings.links(&LINKS) {
        let course = LinkedHosts::open(&lab, &link)?;
        let scale = settings.scale_over(&link);
        let file = Data::Lineitem.file(scale)?;
        let server = Database::start(&course, "hold-mariadb", &file.csv()?)?;
        let node = beside(settings, &course, &server, file.rows)?;
        let (course, node) = (&course, &node);
        let plain = client_arguments(course, &server.held, &["--execute", SQL]);
        let packed = client_arguments(course, &server.held, &["--compress", "--execute", SQL]);
        let mariadb = |arguments: Vec<String>| {
            move || over(course, || timed(Some(course.near()), "mariadb", &arguments))
        };
        let mut contenders = ours(course, node);
        contenders.extend([
            Contender::new("mariadb client", mariadb(plain)),
            Contender::new("mariadb client, compressed", mariadb(packed)),
        ]);
        let place = Case { values: vec![link], scale, note: course.measured.clone() };
        results.add(Comparison { figures: OVER_A_LINK, contenders }.run(settings, &place)?)?;
        add_version(&mut versions, &server.held.version);
    }
    Report {
        name: MARIADB,
        page: Page::ColumnarProtocol,
        title: "From MariaDB on another host",
        text: format!(
            "`{SQL}` (TPC-H, the column types of the specification) from a MariaDB server on one host to a \
             process on another. Lightship goes through a `lightship node` on the database's host, to Arrow \
             batches, which are counted and dropped. The peer is the database's own client (`mariadb --quick \
             --batch`) without TLS, plain and with the protocol's compression (zlib); the rows that it \
             prints are discarded. Its clock starts with its process."
        ),
        tables: sections(&results),
        plots: vec![(side_by_side(&results, "seconds")?, "Seconds by contender and link")],
        versions,
        load,
        settings,
    }
    .publish()
}

/// A node on the database's host, if Lightship is to run.
fn beside<'a>(
    settings: &Settings,
    course: &'a LinkedHosts,
    server: &Database,
    rows: u64,
) -> Result<Option<NodeAtDatabase<'a>>> {
    settings.wants(OURS).then(|| NodeAtDatabase::start(course, &server.held.uri, rows)).transpose()
}

fn ours<'a>(course: &'a LinkedHosts, node: &'a Option<NodeAtDatabase<'a>>) -> Vec<Contender<'a>> {
    let fetch = |node: &'a NodeAtDatabase<'a>| move || over(course, || Ok(node.fetch(&[])?.seconds));
    node.iter().map(|node| Contender::new(OURS, fetch(node))).collect()
}

/// Options of the command-line client, then `more`.
fn client_arguments(course: &LinkedHosts, held: &RunningDatabase, more: &[&str]) -> Vec<String> {
    let own = [
        "--no-defaults".to_owned(),
        "--protocol=tcp".into(),
        "--skip-ssl".into(),
        format!("--host={}", course.far_address()),
        format!("--port={}", held.port),
        format!("--user={}", held.user),
        format!("--password={}", held.password),
        "--database=test".into(),
        "--quick".into(),
        "--batch".into(),
        "--skip-column-names".into(),
    ];
    own.into_iter().chain(more.iter().map(ToString::to_string)).collect()
}

fn sections(results: &Results) -> Vec<String> {
    let section = |place: &[String]| {
        let targets: &[_] = if place == ["wan"] { &[(COPY, 0.2)] } else { &[] };
        let table = tables::contenders(results, place, Some(&Standing { ratio: Ratio::Ours(OURS), targets }));
        under(results, &place.join(", "), place, &table)
    };
    results.places().into_iter().map(section).collect()
}
