//! Servers on the far host, and the clients on the near host that read from them.

use std::path::Path;
use std::time::Duration;

use crate::data::{self, DataFile};
use crate::links::LinkedHosts;
use crate::parts::{Latencies, Part, RunningDatabase, TimedSizes, TransferResult};
use crate::peers::Peers;
use crate::process::{Node, Process, timed};
use crate::{Result, places};

/// Rows of a Flight batch: the fastest of the sizes tried here.
pub(super) const FLIGHT_BATCH_ROWS: &str = "65536";

/// A Lightship server with the rows in memory and no engine.
pub(super) struct MemoryServer<'a> {
    course: &'a LinkedHosts,
    process: Process,
    port: String,
    rows: u64,
}

impl<'a> MemoryServer<'a> {
    pub(super) fn start(course: &'a LinkedHosts, file: &DataFile) -> Result<Self> {
        Self::start_with(course, file, data::BATCH_ROWS)
    }

    /// As [`MemoryServer::start`], with batches of `batch_rows` rows: no message is larger than a batch.
    pub(super) fn start_with(course: &'a LinkedHosts, file: &DataFile, batch_rows: usize) -> Result<Self> {
        let arguments = ["serve", &file.argument(), "--batch-rows", &batch_rows.to_string()];
        let mut process = Part::spawn(Some(course.far()), &arguments)?;
        Ok(Self { course, port: process.line()?, process, rows: file.rows })
    }

    /// Fetches all rows, with more arguments for the client.
    pub(super) fn fetch(&self, arguments: &[&str]) -> Result<TransferResult> {
        fetch(self.course, &self.port, arguments)?.whole(self.rows)
    }

    /// Fetches all rows, and runs `event` when the time `after` has passed since the query.
    pub(super) fn fetch_during(
        &self,
        arguments: &[&str],
        after: Duration,
        event: impl FnOnce() -> Result<()>,
    ) -> Result<TransferResult> {
        let address = self.course.far_address();
        let own = ["fetch", &address, &self.port, "select * from lineitem", "--announce"];
        let mut client = Part::spawn(Some(self.course.near()), &[&own, arguments].concat())?;
        client.line()?;
        std::thread::sleep(after);
        event()?;
        client.result::<TransferResult>()?.whole(self.rows)
    }

    /// Median seconds of the same result, fetched `count` times on one connection.
    pub(super) fn repeat(&self, count: u32, arguments: &[&str]) -> Result<f64> {
        let (address, count) = (self.course.far_address(), count.to_string());
        let own = ["repeat", &count, &address, &self.port, "rows", "--tcp"];
        let client = Part::spawn(Some(self.course.near()), &[&own, arguments].concat())?;
        Ok(client.result::<Latencies>()?.median_us / 1e6)
    }

    /// Times at least `batches` batches of each size, given as ROWS:BYTES.
    pub(super) fn sizes(&self, batches: u32, sizes: &[String]) -> Result<Vec<TimedSizes>> {
        let (address, batches) = (self.course.far_address(), batches.to_string());
        let server = self.process.pid().to_string();
        let own = ["sizes", &*address, &*self.port, "--server", &*server, "--batches", &*batches];
        let arguments: Vec<_> = own.into_iter().chain(sizes.iter().map(String::as_str)).collect();
        Part::spawn(Some(self.course.near()), &arguments)?.result()
    }
}

/// A Lightship node on the database's host.
pub(super) struct NodeAtDatabase<'a> {
    course: &'a LinkedHosts,
    node: Node,
    rows: u64,
}

impl<'a> NodeAtDatabase<'a> {
    /// `uri` is the database's, as the far host reaches it.
    pub(super) fn start(course: &'a LinkedHosts, uri: &str, rows: u64) -> Result<Self> {
        let separator = if uri.contains('?') { '&' } else { '?' };
        let table = format!("lineitem={uri}{separator}table=lineitem");
        Ok(Self { course, node: Node::start(Some(course.far()), &table, false)?, rows })
    }

    /// Fetches all rows.
    pub(super) fn fetch(&self, arguments: &[&str]) -> Result<TransferResult> {
        fetch(self.course, &self.node.port.to_string(), arguments)?.whole(self.rows)
    }
}

fn fetch(course: &LinkedHosts, port: &str, arguments: &[&str]) -> Result<TransferResult> {
    let address = course.far_address();
    let own = ["fetch", &address, port, "select * from lineitem"];
    Part::spawn(Some(course.near()), &[&own, arguments].concat())?.result()
}

/// A server and a client in Python.
pub(super) struct Peer<'a> {
    course: &'a LinkedHosts,
    peers: &'a Peers,
    client: &'static str,
    _process: Process,
    port: String,
    rows: u64,
}

impl<'a> Peer<'a> {
    pub(super) fn flight(course: &'a LinkedHosts, peers: &'a Peers, file: &DataFile) -> Result<Self> {
        Self::start(course, peers, ["flight_server.py", "flight_client.py"], file)
    }

    pub(super) fn quack(course: &'a LinkedHosts, peers: &'a Peers, file: &DataFile) -> Result<Self> {
        Self::start(course, peers, ["quack_server.py", "quack_client.py"], file)
    }

    fn start(
        course: &'a LinkedHosts,
        peers: &'a Peers,
        [server, client]: [&'static str; 2],
        file: &DataFile,
    ) -> Result<Self> {
        let arguments = [&*file.argument(), &course.far_address()];
        let mut process = peers.spawn(Some(course.far()), server, &arguments)?;
        Ok(Self { course, peers, client, port: process.line()?, _process: process, rows: file.rows })
    }

    /// Fetches all rows over Flight with this compression.
    pub(super) fn get(&self, codec: &str) -> Result<TransferResult> {
        self.read(&[FLIGHT_BATCH_ROWS, codec])
    }

    /// Fetches all rows.
    pub(super) fn read(&self, arguments: &[&str]) -> Result<TransferResult> {
        let address = self.course.far_address();
        let arguments = [&[&*address, &self.port], arguments].concat();
        let client = self.peers.spawn(Some(self.course.near()), self.client, &arguments)?;
        client.result::<TransferResult>()?.whole(self.rows)
    }
}

/// Sends a file through netcat, with a compressor and a decompressor if `pipe` is given. The server ends
/// after one transfer.
pub(super) fn netcat(course: &LinkedHosts, file: &Path, pipe: Option<[&str; 2]>) -> Result<f64> {
    let (address, file) = (course.far_address(), file.display());
    let far = match pipe {
        None => format!("exec nc.openbsd -lvnN {address} 0 <'{file}' 2>&1"),
        Some([pack, _]) => format!("{pack} <'{file}' | nc.openbsd -lvnN {address} 0 2>&1"),
    };
    let mut server = Process::spawn(Some(course.far()), "bash", ["-c", &far])?;
    let listening = server.line()?;
    let port = listening.rsplit(' ').next().unwrap_or_default();
    let near = match pipe {
        None => format!("exec nc.openbsd -dn {address} {port}"),
        Some([_, unpack]) => format!("nc.openbsd -dn {address} {port} | {unpack}"),
    };
    timed(Some(course.near()), "bash", ["-o", "pipefail", "-c", &near])
}

/// A flow of zeros from the far host to the near one, as fast as TCP allows. Dropping it ends the flow.
pub(super) struct CompetingFlow<'a> {
    course: &'a LinkedHosts,
    _source: Process,
    port: String,
    sink: Option<Process>,
}

impl<'a> CompetingFlow<'a> {
    /// Starts the sender, which waits for [`CompetingFlow::begin`].
    pub(super) fn ready(course: &'a LinkedHosts) -> Result<Self> {
        let send = format!("exec nc.openbsd -lvnN {} 0 </dev/zero 2>&1", course.far_address());
        let mut source = Process::spawn(Some(course.far()), "bash", ["-c", &send])?;
        let listening = source.line()?;
        let port = listening.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(Self { course, _source: source, port, sink: None })
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        let read = format!("exec nc.openbsd -dn {} {} >/dev/null", self.course.far_address(), self.port);
        self.sink = Some(Process::spawn(Some(self.course.near()), "bash", ["-c", &read])?);
        Ok(())
    }
}

/// A database server on the far host that holds lineitem.
pub(super) struct Database {
    _process: Process,
    /// As its own host reaches it.
    pub(super) held: RunningDatabase,
}

impl Database {
    /// Starts `part`, which runs the server with the rows of `file`.
    pub(super) fn start(course: &LinkedHosts, part: &str, file: &Path) -> Result<Self> {
        eprintln!("{part}: loading {}", file.display());
        let mut process = Part::spawn(Some(course.far()), &[part, &file.display().to_string()])?;
        Ok(Self { held: serde_json::from_str(&process.line()?)?, _process: process })
    }

    /// Its URI, as the near host reaches it.
    pub(super) fn uri_near(&self, course: &LinkedHosts) -> String {
        self.held.uri.replace("127.0.0.1", &course.far_address())
    }
}

/// Runs a Python client of PostgreSQL on the near host.
pub(super) fn postgres_peer(
    course: &LinkedHosts,
    peers: &Peers,
    program: &str,
    arguments: &[&str],
    rows: u64,
) -> Result<TransferResult> {
    peers.spawn(Some(course.near()), program, arguments)?.result::<TransferResult>()?.whole(rows)
}

/// Runs `work`, which returns its seconds. Returns them, and the megabytes received over the link.
pub(super) fn over(course: &LinkedHosts, work: impl FnOnce() -> Result<f64>) -> Result<Vec<f64>> {
    let (seconds, bytes) = course.received(work)?;
    Ok(vec![seconds, bytes as f64 / 1e6])
}

/// Checks that the measured command is built, before anything is loaded.
pub(super) fn built() -> Result<()> {
    places::lightship().map(|_| ())
}
