//! Places of tables, and the ways to query them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::DataType;
use async_trait::async_trait;
use datafusion::arrow::compute::concat_batches;
use futures::{StreamExt, TryStreamExt};
use lightship_engine::{ClusterConfig, Engine, EngineConfig, EngineError};
use lightship_sources::mysql::MySqlSource;
use lightship_sources::postgres::PostgresSource;
use lightship_sources::sqlite::SqliteSource;
use lightship_sources::writers::{self, Format, Target, WriteOptions};
use lightship_sources::{Dialect, ReadOptions, Rows, Scan, Source, SourceError, TableInfo, TableName};
use lightship_testkit::mariadb::MariaDb;
use lightship_testkit::postgres::Postgres;
use lightship_testkit::queries::{
    Database, DatabaseTable, PREPARE_POSTGRES, Table, Types, any_table, seed_of, write_parquet,
};
use lightship_transport::TransportError;
use lightship_transport::net::{ClientConfig, Connection, Endpoint, Incoming};
use lightship_wire::Codec;
use lightship_wire::control::{ErrorCode, Failure, Plan, Query};
use tempfile::TempDir;

use super::Answer;
use crate::support::{Node, met, run};

const NODES: usize = 4;
const ROWS_MAX: usize = 40;
const TABLES: [&str; 2] = ["t0", "t1"];

/// Where tables are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In PostgreSQL: with conditions pushed down, and without.
    Postgres,
    MariaDb,
    Sqlite,
    /// In files: read directly, and loaded into memory.
    Parquet,
    Arrow,
    Csv,
    Json,
    /// Divided among four nodes, and on one.
    Parts,
    /// In files that four nodes share, and on one node.
    Shared,
    /// One table in a database of one of four nodes, one divided among them; and both on one node.
    ClusterDatabase,
    /// On a node: in the process, through shared memory, and over TCP with each codec.
    Wire,
}

/// Database servers.
pub(super) struct Servers {
    postgres: Option<Postgres>,
    mariadb: Option<MariaDb>,
}

impl Servers {
    pub(super) fn start(place: Place) -> Self {
        let postgres = (place == Place::Postgres).then(Postgres::start);
        if let Some(postgres) = &postgres {
            postgres.psql(PREPARE_POSTGRES);
        }
        Self { postgres, mariadb: (place == Place::MariaDb).then(MariaDb::start) }
    }
}

/// A way to run a query.
pub(super) struct Method {
    pub(super) name: &'static str,
    pub(super) asked: Arc<dyn Asked>,
}

impl Method {
    fn new(name: &'static str, asked: impl Asked + 'static) -> Self {
        Self { name, asked: Arc::new(asked) }
    }
}

#[async_trait]
pub(super) trait Asked: Send + Sync {
    async fn ask(&self, sql: &str) -> Answer;
}

#[async_trait]
impl Asked for Arc<Engine> {
    async fn ask(&self, sql: &str) -> Answer {
        run(self, sql).await
    }
}

#[async_trait]
impl Asked for Engine {
    async fn ask(&self, sql: &str) -> Answer {
        run(self, sql).await
    }
}

/// Tables, and the ways to query them. The others are compared with the first way.
pub(super) struct World {
    pub(super) tables: Vec<Table>,
    pub(super) ways: Vec<Method>,
    /// The tables' columns, for messages.
    pub(super) about: String,
    nodes: Vec<Node>,
    _folder: TempDir,
}

impl World {
    /// `None` if a table has values that can't be read.
    pub(super) async fn new(place: Place, servers: &Servers, seed: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut build =
            Build { folder: folder.path().to_owned(), seed, about: String::new(), nodes: Vec::new() };
        let ways = match place {
            Place::Postgres | Place::MariaDb | Place::Sqlite => build.database(place, servers).await?,
            Place::Parquet | Place::Arrow | Place::Csv | Place::Json => build.files(place).await?,
            Place::Parts => build.parts().await,
            Place::Shared => build.shared().await?,
            Place::ClusterDatabase => build.cluster_database().await?,
            Place::Wire => build.wire().await,
        };
        let mut tables = Vec::new();
        for name in TABLES {
            let batches = ways[0].asked.ask(&format!("select * from {name}")).await.unwrap();
            // An empty table has no batches, and queries do not use it.
            let Some(first) = batches.first() else { continue };
            tables
                .push(Table { name: name.into(), rows: concat_batches(&first.schema(), &batches).unwrap() });
        }
        if tables.is_empty() {
            return None;
        }
        let Build { mut about, nodes, .. } = build;
        for table in &tables {
            let columns = table.rows.schema_ref().fields().iter();
            let columns: Vec<_> =
                columns.map(|field| format!("{} {}", field.name(), field.data_type())).collect();
            about.push_str(&format!(
                "  {}: {} rows: {}\n",
                table.name,
                table.rows.num_rows(),
                columns.join(", ")
            ));
        }
        Some(Self { tables, ways, about, nodes, _folder: folder })
    }

    pub(super) async fn end(self) {
        for node in self.nodes {
            node.leave().await;
        }
    }
}

struct Build {
    folder: PathBuf,
    seed: u64,
    about: String,
    nodes: Vec<Node>,
}

fn engine(partitions: usize) -> Engine {
    Engine::new(EngineConfig { partitions, ..EngineConfig::default() }).unwrap()
}

fn scan_of(name: &TableName) -> Scan {
    Scan { table: name.clone(), columns: None, filter: None, limit: None }
}

impl Build {
    /// A random choice among `n`, a separate one for each `part`.
    fn choose(&self, part: u64, n: u64) -> u64 {
        seed_of(self.seed, 1000 + part) % n
    }

    fn any_table(&self, place: usize, types: Types) -> Table {
        any_table(TABLES[place], types, ROWS_MAX, seed_of(self.seed, place as u64))
    }

    async fn database(&mut self, place: Place, servers: &Servers) -> Option<Vec<Method>> {
        let (database, source) = match place {
            Place::Postgres => {
                let server = servers.postgres.as_ref().unwrap();
                let source: Arc<dyn Source> = Arc::new(PostgresSource::connect(&server.uri()).await.unwrap());
                (Database::Postgres, source)
            }
            Place::MariaDb => {
                let server = servers.mariadb.as_ref().unwrap();
                let source: Arc<dyn Source> = Arc::new(MySqlSource::connect(&server.uri()).await.unwrap());
                (Database::MariaDb, source)
            }
            _ => {
                let path = self.folder.join("database");
                rusqlite::Connection::open(&path).unwrap();
                let source: Arc<dyn Source> = Arc::new(SqliteSource::open(path).unwrap());
                (Database::Sqlite, source)
            }
        };
        let [mut memory, mut whole, mut pushed] = [1, 2, 2].map(engine);
        for (place, name) in TABLES.into_iter().enumerate() {
            let table = DatabaseTable::any(database, ROWS_MAX, seed_of(self.seed, place as u64));
            let columns: Vec<_> =
                table.columns.iter().map(|(name, declared)| format!("{name} {declared}")).collect();
            self.about.push_str(&format!("  {name} ({})\n", columns.join(", ")));
            let own = format!("w{}_{name}", self.seed);
            let sql = format!("DROP TABLE IF EXISTS {own};\n{}", table.statements(database, &own));
            match database {
                Database::Postgres => drop(servers.postgres.as_ref().unwrap().psql(&sql)),
                Database::MariaDb => drop(servers.mariadb.as_ref().unwrap().sql(&sql)),
                Database::Sqlite => {
                    let connection = rusqlite::Connection::open(self.folder.join("database")).unwrap();
                    connection.execute_batch(&sql).unwrap();
                }
            }
            self.register(source.clone(), &own, name, [&mut memory, &mut whole, &mut pushed]).await?;
        }
        Some(vec![
            Method::new("in memory", memory),
            Method::new("not pushed down", whole),
            Method::new("pushed down", pushed),
        ])
    }

    /// Registers a table of a database: its rows in memory, without pushdown, and with pushdown.
    async fn register(
        &self,
        source: Arc<dyn Source>,
        own: &str,
        name: &str,
        [memory, whole, pushed]: [&mut Engine; 3],
    ) -> Option<()> {
        let table = TableName { schema: None, name: own.into() };
        let rows = source.scan(&scan_of(&table), &ReadOptions::default()).await.ok()?;
        let schema = rows.schema.clone();
        let batches: Vec<_> = rows.batches.try_collect().await.ok()?;
        let batch = concat_batches(&schema, &batches).unwrap();
        let file = self.folder.join(format!("{name}.arrows"));
        write(&batch, &file).await;
        memory.register_in_memory(name, &file).await.unwrap();
        let options = ReadOptions { batch_rows: 16, ..ReadOptions::default() };
        let all = Arc::new(AllRows(source.clone()));
        whole.register_source(name, all, table.clone(), options.clone()).await.unwrap();
        pushed.register_source(name, source, table, options).await.unwrap();
        Some(())
    }

    async fn files(&mut self, place: Place) -> Option<Vec<Method>> {
        let (extension, types) = match place {
            Place::Parquet => ("parquet", Types::All),
            Place::Arrow => ("arrow", Types::All),
            Place::Csv => ("csv", Types::Text),
            _ => ("json", Types::Text),
        };
        let [mut memory, mut files] = [1, 3].map(engine);
        for (place, name) in TABLES.into_iter().enumerate() {
            let mut table = self.any_table(place, types);
            if extension == "json" {
                table.rows = finite(&table.rows);
            }
            let path = match self.choose(place as u64, 2) {
                0 => self.folder.join(format!("{name}.{extension}")),
                _ => self.folder.join(name),
            };
            self.write_files(&table.rows, &path, extension).await;
            opened(files.register_path(name, &path).await, types)?;
            let whole = match extension {
                // The reader infers the types of texts, so both engines read the same files.
                "csv" | "json" => path,
                _ => self.folder.join(format!("whole-{name}.arrows")),
            };
            if !whole.exists() {
                write(&table.rows, &whole).await;
            }
            memory.register_in_memory(name, &whole).await.unwrap();
        }
        Some(vec![Method::new("in memory", memory), Method::new("files", files)])
    }

    /// Writes one file, or a folder of three if the path has no extension.
    async fn write_files(&self, rows: &RecordBatch, path: &Path, extension: &str) {
        if path.extension().is_some() {
            return write(rows, path).await;
        }
        std::fs::create_dir(path).unwrap();
        for (number, part) in self.divided(rows, 3).into_iter().enumerate() {
            write(&part, &path.join(format!("{number}.{extension}"))).await;
        }
    }

    /// Divides rows into parts of random sizes, some of them empty.
    fn divided(&self, rows: &RecordBatch, parts: usize) -> Vec<RecordBatch> {
        let mut cuts: Vec<usize> = (1..parts)
            .map(|part| self.choose(50 + part as u64, rows.num_rows() as u64 + 1) as usize)
            .collect();
        cuts.extend([0, rows.num_rows()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| rows.slice(cut[0], cut[1] - cut[0])).collect()
    }

    async fn parts(&mut self) -> Vec<Method> {
        let mut alone = engine(2);
        let mut engines = [2; NODES].map(engine);
        for (place, name) in TABLES.into_iter().enumerate() {
            let table = self.any_table(place, Types::All);
            self.divide(&table, &mut engines).await;
            let whole = self.folder.join(format!("{name}.arrows"));
            write(&table.rows, &whole).await;
            alone.register_in_memory(name, &whole).await.unwrap();
        }
        vec![Method::new("one node", alone), self.cluster(engines, "four nodes").await]
    }

    /// Gives each engine a part of a table's rows. Some engines may not get the table.
    async fn divide(&self, table: &Table, engines: &mut [Engine; NODES]) {
        for (node, part) in self.divided(&table.rows, NODES).into_iter().enumerate() {
            let extension = ["parquet", "arrow"][self.choose(20, 2) as usize];
            if part.num_rows() == 0 && self.choose(21, 2) == 0 && node > 0 {
                continue;
            }
            let folder = self.folder.join(format!("node-{node}"));
            std::fs::create_dir_all(&folder).unwrap();
            let path = folder.join(format!("{}.{extension}", table.name));
            write(&part, &path).await;
            // Equal parts that were written at the same time would be taken for the same file.
            let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(node as u64);
            File::options().append(true).open(&path).unwrap().set_modified(changed).unwrap();
            engines[node].register_path(&table.name, &path).await.unwrap();
        }
    }

    async fn shared(&mut self) -> Option<Vec<Method>> {
        let mut alone = engine(2);
        let mut engines = [2; NODES].map(engine);
        let extension = ["parquet", "arrow", "csv", "json"][self.choose(30, 4) as usize];
        let types = if matches!(extension, "csv" | "json") { Types::Text } else { Types::All };
        for (place, name) in TABLES.into_iter().enumerate() {
            let mut table = self.any_table(place, types);
            if extension == "json" {
                table.rows = finite(&table.rows);
            }
            let path = self.folder.join(name);
            self.write_files(&table.rows, &path, extension).await;
            opened(alone.register_in_memory(name, &path).await, types)?;
            for engine in &mut engines {
                engine.register_shared_path(name, &path).await.unwrap();
            }
        }
        Some(vec![Method::new("one node", alone), self.cluster(engines, "four nodes").await])
    }

    /// The first table is in SQLite on the second node, the other one divided among the nodes.
    async fn cluster_database(&mut self) -> Option<Vec<Method>> {
        let [mut alone, mut unused] = [2; 2].map(engine);
        let mut engines = [2; NODES].map(engine);
        let path = self.folder.join("database");
        let table = DatabaseTable::any(Database::Sqlite, ROWS_MAX, seed_of(self.seed, 0));
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch(&table.statements(Database::Sqlite, "own")).unwrap();
        let source: Arc<dyn Source> = Arc::new(SqliteSource::open(path).unwrap());
        self.register(source, "own", TABLES[0], [&mut alone, &mut unused, &mut engines[1]]).await?;
        let table = self.any_table(1, Types::All);
        self.divide(&table, &mut engines).await;
        let whole = self.folder.join("whole.arrows");
        write(&table.rows, &whole).await;
        alone.register_in_memory(TABLES[1], &whole).await.unwrap();
        Some(vec![
            Method::new("one node", alone),
            self.cluster(engines, "four nodes, one with a database").await,
        ])
    }

    /// Starts nodes and waits until they have met. Queries go to one of them.
    async fn cluster(&mut self, engines: [Engine; NODES], name: &'static str) -> Method {
        for engine in engines {
            let first: Vec<&Node> = self.nodes.iter().take(1).collect();
            let node = Node::start(engine, &first, ClusterConfig::default()).await;
            self.nodes.push(node);
        }
        for node in &self.nodes {
            met(node, NODES - 1).await;
        }
        Method::new(name, self.nodes[self.choose(41, NODES as u64) as usize].engine.clone())
    }

    async fn wire(&mut self) -> Vec<Method> {
        let [mut alone, mut served] = [2; 2].map(engine);
        for (place, name) in TABLES.into_iter().enumerate() {
            let table = self.any_table(place, Types::All);
            let whole = self.folder.join(format!("{name}.arrows"));
            write(&table.rows, &whole).await;
            for engine in [&mut alone, &mut served] {
                engine.register_in_memory(name, &whole).await.unwrap();
            }
        }
        let node = Node::start(served, &[], ClusterConfig::default()).await;
        let endpoint =
            || Endpoint::Tcp { host: node.address.ip().to_string(), port: node.address.port(), tls: None };
        let names = ["TCP", "TCP, light", "TCP, light LZ4", "TCP, light Zstandard"];
        let mut ways = vec![Method::new("in the process", alone)];
        let shared_memory = Client { endpoint: endpoint(), shared_memory: true, codec: Codec::None };
        ways.push(Method::new("shared memory", shared_memory));
        for (name, codec) in names.into_iter().zip(Codec::ALL) {
            ways.push(Method::new(name, Client { endpoint: endpoint(), shared_memory: false, codec }));
        }
        self.nodes.push(node);
        ways
    }
}

/// The types inferred from the text files of a folder may conflict.
fn opened(found: Result<(), EngineError>, types: Types) -> Option<()> {
    match types {
        Types::Text => found.ok(),
        Types::All => {
            found.unwrap();
            Some(())
        }
    }
}

/// The rows with NULL in place of NaN and infinities, which JSON does not have.
fn finite(rows: &RecordBatch) -> RecordBatch {
    let column = |column: &ArrayRef| -> ArrayRef {
        match column.data_type() {
            DataType::Float32 => Arc::new(
                column
                    .as_primitive::<Float32Type>()
                    .unary_opt::<_, Float32Type>(|v| v.is_finite().then_some(v)),
            ),
            DataType::Float64 => Arc::new(
                column
                    .as_primitive::<Float64Type>()
                    .unary_opt::<_, Float64Type>(|v| v.is_finite().then_some(v)),
            ),
            _ => column.clone(),
        }
    };
    RecordBatch::try_new(rows.schema(), rows.columns().iter().map(column).collect()).unwrap()
}

/// Writes a file of the kind that its extension names.
async fn write(rows: &RecordBatch, path: &Path) {
    if path.extension().is_some_and(|extension| extension == "parquet") {
        return write_parquet(rows, path).unwrap();
    }
    let format = Format::from_path(path).unwrap();
    let target = Target::File(path.to_owned());
    let mut file = writers::create(target, format, rows.schema(), WriteOptions::default()).unwrap();
    // Several batches, as in a result.
    for first in (0..rows.num_rows()).step_by(11) {
        file.write(rows.slice(first, 11.min(rows.num_rows() - first))).await.unwrap();
    }
    file.finish().await.unwrap();
}

/// A source that reads all rows and columns, and applies no conditions or limits.
#[derive(Debug)]
struct AllRows(Arc<dyn Source>);

#[async_trait]
impl Source for AllRows {
    fn dialect(&self) -> Dialect {
        self.0.dialect()
    }

    async fn query(&self, sql: &str, options: &ReadOptions) -> Result<Rows, SourceError> {
        self.0.query(sql, options).await
    }

    async fn scan(&self, scan: &Scan, options: &ReadOptions) -> Result<Rows, SourceError> {
        let all = self.0.scan(&scan_of(&scan.table), options).await?;
        let Some(columns) = &scan.columns else { return Ok(all) };
        let places: Vec<usize> = columns.iter().map(|name| all.schema.index_of(name).unwrap()).collect();
        let schema = Arc::new(all.schema.project(&places).unwrap());
        let batches = all.batches.map(move |batch| Ok(batch?.project(&places).unwrap())).boxed();
        Ok(Rows { schema, batches, rows_estimate: None, tuples: None })
    }

    async fn table(&self, name: &TableName, options: &ReadOptions) -> Result<TableInfo, SourceError> {
        self.0.table(name, options).await
    }

    async fn tables(&self) -> Result<Vec<TableName>, SourceError> {
        self.0.tables().await
    }
}

/// Runs each query over a new connection.
struct Client {
    endpoint: Endpoint,
    shared_memory: bool,
    codec: Codec,
}

#[async_trait]
impl Asked for Client {
    async fn ask(&self, sql: &str) -> Answer {
        let config = ClientConfig { shared_memory: self.shared_memory, ..ClientConfig::default() };
        let failure = |error| match error {
            TransportError::Failed(failure) => failure,
            other => Failure::new(ErrorCode::Internal, other.to_string()),
        };
        let mut connection = Connection::connect(&self.endpoint, &config).await.map_err(failure)?;
        // Small sizes, so that a result has many messages and batches.
        let (message_bytes, batch_bytes) = (1 << 10, 4 << 10);
        let plan = Plan { message_bytes, batch_bytes, codec: Some(self.codec), ..Plan::default() };
        let plan = connection.settle(plan);
        let query = Query { sql: sql.into(), plan };
        connection.query(&query, plan.streams).await.map_err(failure)?;
        let mut batches = Vec::new();
        loop {
            match connection.next().await.map_err(failure)? {
                Incoming::Rows(batch) => batches.push(batch),
                Incoming::Finished(_) => return Ok(batches),
            }
        }
    }
}
