//! Links measured by `lightship calibrate`, the plans of `lightship tune` for them, and the time of a driver
//! with its default fetch size and with the tuned one.

use lab::Lab;
use serde_json::Value;

use super::servers::{Database, built};
use super::under;
use crate::Result;
use crate::comparison::{Comparison, Contender};
use crate::data::{Data, DataFile};
use crate::links::LinkedHosts;
use crate::parts::TransferResult;
use crate::peers::{self, JAVA, Jar, MAVEN, ODBC, PSQLODBC, Peers};
use crate::places;
use crate::plot::{Axis, Dots, DotsPanel};
use crate::process::{Node, Process};
use crate::report::{self, Page, Report};
use crate::results::{Case, Figure, Results, Run};
use crate::settings::Settings;
use crate::tables;

const NAME: &str = "calibrate";
const FIGURES: &[Figure] = &[
    Figure { name: "seconds", digits: 2, range: true },
    Figure { name: "pairs", digits: 0, range: false },
    Figure { name: "round trip ms", digits: 2, range: false },
    Figure { name: "MB/s", digits: 1, range: false },
    Figure { name: "fit error %", digits: 1, range: false },
    Figure { name: "rows a batch", digits: 0, range: false },
    Figure { name: "message bytes", digits: 0, range: false },
    Figure { name: "in flight", digits: 0, range: false },
    Figure { name: "predicted seconds", digits: 2, range: false },
    Figure { name: "driver's peak MB", digits: 0, range: false },
];
const ROWS_OF_BATCH: usize = 5;
const PEAK: usize = 9;
/// The contender that is a measurement, not a transfer.
const CALIBRATE: &str = "calibrate and tune";
const POSTGRESQL: &str = "PostgreSQL";
const MARIADB: &str = "MariaDB";
/// A driver with a fetch size, as a contender with its default and with the tuned size.
#[derive(Clone, Copy)]
struct Driver {
    kind: DriverKind,
    /// Whose rows it reads.
    database: &'static str,
    own: &'static str,
    /// Rows of a fetch by default; 0 leaves it to the driver.
    own_rows: u64,
    tuned: &'static str,
}

#[derive(Clone, Copy)]
enum DriverKind {
    Psycopg,
    Odbc,
    PostgresqlJdbc,
    MariadbJdbc,
    MysqlJdbc,
}

const DRIVERS: [Driver; 5] = [
    Driver {
        kind: DriverKind::Psycopg,
        database: POSTGRESQL,
        own: "psycopg, its own 2,000 rows",
        own_rows: 2000,
        tuned: "psycopg, rows as tuned",
    },
    Driver {
        kind: DriverKind::Odbc,
        database: POSTGRESQL,
        own: "psqlODBC with a cursor, its own 100 rows",
        own_rows: 0,
        tuned: "psqlODBC with a cursor, rows as tuned",
    },
    Driver {
        kind: DriverKind::PostgresqlJdbc,
        database: POSTGRESQL,
        own: "PostgreSQL's JDBC, all rows at once",
        own_rows: 0,
        tuned: "PostgreSQL's JDBC, rows as tuned",
    },
    Driver {
        kind: DriverKind::MariadbJdbc,
        database: MARIADB,
        own: "MariaDB's JDBC, all rows at once",
        own_rows: 0,
        tuned: "MariaDB's JDBC, rows as tuned",
    },
    Driver {
        kind: DriverKind::MysqlJdbc,
        database: MARIADB,
        own: "MySQL's JDBC, all rows at once",
        own_rows: 0,
        tuned: "MySQL's JDBC with a cursor, rows as tuned",
    },
];
const POSTGRESQL_JDBC: &str = "org.postgresql:postgresql:42.7.8";
const MARIADB_JDBC: &str = "org.mariadb.jdbc:mariadb-java-client:3.5.11";
const MYSQL_JDBC: &str = "com.mysql:mysql-connector-j:9.4.0";
const SQL: &str = "select * from lineitem";

/// Runs `lightship` on the near host, and returns its JSON.
fn ask(course: &LinkedHosts, arguments: &[&str]) -> Result<Value> {
    let arguments = [&["--json"], arguments].concat();
    Process::spawn(Some(course.near()), places::lightship()?, arguments)?.output()
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

/// Measures a link, saves its profile, and plans the fetch of the table.
fn calibrate(course: &LinkedHosts, uri: &str) -> Result<Vec<f64>> {
    let found = ask(course, &["calibrate", uri, "--seconds", "2"])?;
    let tuned = ask(course, &["tune", uri, SQL])?;
    let pairs = found.get("samples").and_then(Value::as_array).map_or(0, Vec::len);
    Ok(vec![
        number(&found, "/seconds"),
        pairs as f64,
        number(&found, "/rtt_seconds") * 1e3,
        number(&found, "/bytes_per_second") / 1e6,
        number(&found, "/calibration/relative_error") * 100.0,
        number(&tuned, "/plan/batch_rows"),
        number(&tuned, "/plan/message_bytes"),
        number(&tuned, "/plan/window_batches"),
        number(&tuned, "/plan/predicted_seconds"),
        f64::NAN,
    ])
}

fn measure(
    settings: &Settings,
    course: &LinkedHosts,
    name: &str,
    scale: f64,
    uri: &str,
    results: &mut Results,
) -> Result<()> {
    let values = vec![course.link.clone(), name.to_owned()];
    let place = Case { values, scale, note: course.measured.clone() };
    let mut runs = Vec::new();
    for round in 1..=settings.rounds() {
        let values = calibrate(course, uri)?;
        eprintln!("{place}{round}/{}: {values:.2?}", settings.rounds());
        runs.push(Run { place: place.clone(), contender: CALIBRATE.into(), round, values });
    }
    results.add(runs)
}

/// The programs that read a table with a driver: each takes a URI, a table and a fetch size.
struct Readers {
    peers: Peers,
    postgresql: Jar,
    mariadb: Jar,
    mysql: Jar,
}

impl Readers {
    fn install() -> Result<Self> {
        Ok(Self {
            peers: Peers::install()?,
            postgresql: Jar::install(POSTGRESQL_JDBC)?,
            mariadb: Jar::install(MARIADB_JDBC)?,
            mysql: Jar::install(MYSQL_JDBC)?,
        })
    }

    /// Reads lineitem on the near host.
    fn read(
        &self,
        course: &LinkedHosts,
        driver: DriverKind,
        database: &Database,
        rows: &str,
    ) -> Result<TransferResult> {
        let (near, held, uri) = (Some(course.near()), &database.held, database.uri_near(course));
        let jdbc = |jar: &Jar, scheme: &str, options: &str| {
            let place = uri.rsplit_once('@').map_or("", |(_, place)| place);
            let separator = if place.contains('?') { '&' } else { '?' };
            let url = format!("jdbc:{scheme}://{place}{separator}{options}");
            jar.spawn(near, "JdbcRows.java", &[&url, "lineitem", rows, &held.user, &held.password])
        };
        let python = |program| self.peers.spawn(near, program, &[&uri, "lineitem", rows]);
        let process = match driver {
            DriverKind::Psycopg => python("postgres_rows.py")?,
            DriverKind::Odbc => python("odbc_rows.py")?,
            DriverKind::PostgresqlJdbc => jdbc(&self.postgresql, "postgresql", "")?,
            DriverKind::MariadbJdbc => jdbc(&self.mariadb, "mariadb", "")?,
            // The only one with a cursor in MariaDB.
            DriverKind::MysqlJdbc => jdbc(&self.mysql, "mysql", "useCursorFetch=true&sslMode=DISABLED")?,
        };
        process.result()
    }
}

/// Times the drivers of a database with their default fetch size, and with the tuned one.
fn drivers(
    settings: &Settings,
    course: &LinkedHosts,
    readers: &Readers,
    file: &DataFile,
    place: &Case,
    database: &Database,
    results: &mut Results,
) -> Result<()> {
    let tuned = results.summary(&place.values, CALIBRATE, ROWS_OF_BATCH).median.round().to_string();
    let contender = |name: &'static str, kind: DriverKind, rows: String| {
        let whole = file.rows;
        Contender::new(name, move || {
            let done = readers.read(course, kind, database, &rows)?.whole(whole)?;
            let mut values = vec![f64::NAN; FIGURES.len()];
            (values[0], values[PEAK]) = (done.seconds, done.peak_memory_bytes as f64 / 1e6);
            Ok(values)
        })
    };
    let drivers = DRIVERS.into_iter().filter(|driver| place.values[1] == driver.database);
    let contenders = drivers.flat_map(|driver| {
        let own = contender(driver.own, driver.kind, driver.own_rows.to_string());
        [own, contender(driver.tuned, driver.kind, tuned.clone())]
    });
    let contenders = contenders.collect();
    results.add(Comparison { figures: FIGURES, contenders }.run(settings, place)?)
}

/// The drivers that were timed at a place: each with its default, and tuned.
fn timed(results: &Results, place: &[String]) -> Vec<[&'static str; 2]> {
    let contenders = results.contenders(place);
    let timed = DRIVERS.into_iter().filter(|driver| contenders.contains(&driver.tuned));
    timed.map(|driver| [driver.own, driver.tuned]).collect()
}

fn report(results: &Results) -> Vec<String> {
    let places = results.places();
    let names: Vec<String> = places.iter().map(|place| place.join(", ")).collect();
    let rows: Vec<&str> = names.iter().map(String::as_str).collect();
    let columns: Vec<&str> = FIGURES[..PEAK].iter().map(|figure| figure.name).collect();
    let cell = |row: &str, column: &str| {
        let place = names.iter().position(|name| name == row).and_then(|at| places.get(at));
        let figure = FIGURES.iter().position(|figure| figure.name == column);
        let found = place.zip(figure).map(|(place, at)| results.summary(place, CALIBRATE, at).median);
        found.map_or(String::new(), |value| tables::number(value, 3))
    };
    let all =
        format!("### Measurements and plans\n\n{}", tables::grid("link, endpoint", &rows, &columns, cell));
    let drivers = places.iter().filter(|place| !timed(results, place).is_empty()).map(|place| {
        let columns = ["seconds", "of its own", "peak MB"];
        let timed = timed(results, place);
        let own = |row: &str| timed.iter().find(|names| names.contains(&row)).map_or("", |[own, _]| own);
        let table = tables::grid("", timed.as_flattened(), &columns, |row, column| match column {
            "seconds" => tables::spread(results.summary(place, row, 0), 2),
            "peak MB" => tables::number(results.summary(place, row, PEAK).median, 0),
            _ => tables::number(results.median(place, row) / results.median(place, own(row)), 2),
        });
        under(results, &format!("Drivers, {}", place.join(", ")), place, &table)
    });
    std::iter::once(all).chain(drivers).collect()
}

fn plot(results: &Results) -> Result<String> {
    let places = results.places().into_iter().filter(|place| !timed(results, place).is_empty());
    let panels = places.map(|place| {
        let row =
            |name: &str| (name.to_owned(), vec![("seconds".to_owned(), results.summary(place, name, 0))]);
        let rows = timed(results, place).into_iter().flatten().map(row).collect();
        DotsPanel { title: place.join(", "), rows }
    });
    Ok(Dots { x: Axis::log("seconds"), panels: panels.collect() }.svg()?)
}

pub(crate) fn run(settings: &Settings) -> Result<()> {
    let load = report::load();
    built()?;
    let tools = peers::tools(&[JAVA, MAVEN, ODBC, PSQLODBC])?;
    let readers = Readers::install()?;
    let lab = Lab::new()?;
    let mut results = Results::open(&settings.results(), NAME, &["link", "endpoint"], FIGURES)?;
    for link in settings.links(&["local", "fast", "lan", "wan", "slow"]) {
        let course = LinkedHosts::open(&lab, &link)?;
        // 100 rows a fetch take a round trip each.
        let scale = settings.scale_or(match &*link {
            "slow" => 0.005,
            "wan" => 0.02,
            _ => 0.1,
        });
        let file = Data::Lineitem.file(scale)?;
        let place = |of: &str| Case {
            values: vec![link.clone(), of.to_owned()],
            scale,
            note: course.measured.clone(),
        };
        {
            let node = Node::start(Some(course.far()), &format!("lineitem={}", file.path.display()), true)?;
            let uri = format!("lightship://{}:{}?shm=false", course.far_address(), node.port);
            measure(settings, &course, "a node", scale, &uri, &mut results)?;
        }
        {
            let server = Database::start(&course, "hold-postgres", &file.path)?;
            let uri = server.uri_near(&course);
            measure(settings, &course, POSTGRESQL, scale, &uri, &mut results)?;
            drivers(settings, &course, &readers, &file, &place(POSTGRESQL), &server, &mut results)?;
        }
        let server = Database::start(&course, "hold-mariadb", &file.csv()?)?;
        let uri = server.uri_near(&course);
        measure(settings, &course, MARIADB, scale, &uri, &mut results)?;
        drivers(settings, &course, &readers, &file, &place(MARIADB), &server, &mut results)?;
    }
    Report {
        name: NAME,
        page: Page::Mind,
        title: "Measured links and tuned drivers",
        text: "`lightship calibrate` for two seconds and then `lightship tune URI 'select * from \
               lineitem'`, on one host, for a node, a PostgreSQL server and a MariaDB server on another. \
               The round trip is the shortest time from the request for a batch to its first row. The \
               fit error is the model's error on the samples that it was fitted to. For a database, a \
               batch is the result of one fetch from a cursor, and nothing else is in flight. Then \
               drivers with a fetch size read the table and discard the rows, each with its default and with the tuned one: \
               psycopg through a server-side cursor (2,000 rows is its default for iterating), psqlODBC with `UseDeclareFetch`, and the \
               drivers of PostgreSQL, MariaDB and MySQL in Java without autocommit, MySQL's with `useCursorFetch`, reading from \
               MariaDB. Java's compiler and virtual machine are part of the peak memory. MariaDB's driver asks for no cursor: its \
               fetch size is how many rows it reads from the socket at a time."
            .into(),
        tables: report(&results),
        plots: vec![(plot(&results)?, "Drivers with their default fetch size and with the tuned one")],
        versions: [
            tools,
            peers::versions(&["psycopg", "pyodbc"]),
            [POSTGRESQL_JDBC, MARIADB_JDBC, MYSQL_JDBC].map(|jar| jar.replace(':', " ")).into(),
        ]
        .concat(),
        load,
        settings,
    }
    .publish()
}
