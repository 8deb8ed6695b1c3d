//! Running the command: processes that are killed on drop, nodes, files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::SchemaRef;
use lightship_testkit::mariadb::MariaDb;
use lightship_testkit::postgres::Postgres;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

/// How long tests wait for an event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) const USAGE: i32 = 2;
pub(crate) const SOURCE: i32 = 3;
pub(crate) const NETWORK: i32 = 4;
pub(crate) const DATA: i32 = 5;
pub(crate) const LIMITS: i32 = 6;
pub(crate) const HUNG_UP: i32 = 129;
pub(crate) const INTERRUPTED: i32 = 130;

/// A query that practically never ends.
pub(crate) const ENDLESS: &str = "select value, value * 3 as triple from generate_series(1, 1000000000000)";

/// One PostgreSQL for all tests, which use different names for their tables.
pub(crate) fn postgres() -> &'static Postgres {
    static SERVER: LazyLock<Postgres> = LazyLock::new(Postgres::start);
    &SERVER
}

/// One MariaDB for all tests.
pub(crate) fn mariadb() -> &'static MariaDb {
    static SERVER: LazyLock<MariaDb> = LazyLock::new(MariaDb::start);
    &SERVER
}

/// How a run of the command ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` if a signal ended the command.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text on stdout")
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// Checks that it failed with this exit code and a message with all these words, and did not panic.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, Some(code), "{self}");
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in {self}");
        }
        assert!(!self.stderr.contains("panicked"), "{self}");
        self
    }

    /// The report or error of `--json`: the last line on stderr.
    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {self}"))
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.stdout[..self.stdout.len().min(2000)];
        write!(f, "exit {:?}\n{}{}", self.code, String::from_utf8_lossy(shown), self.stderr)
    }
}

/// What a process has written to stderr so far.
#[derive(Default)]
struct Log {
    text: Mutex<(String, bool)>,
    more: Condvar,
}

/// Uses pipes, and hides the environment of the test.
pub(crate) fn quiet(command: &mut Command) -> &mut Command {
    command
        .env_remove("LIGHTSHIP_LOG")
        .env_remove("LIGHTSHIP_TOKEN")
        // Tests may share this folder: their nodes have different ports.
        .env("LIGHTSHIP_PROFILES", concat!(env!("CARGO_TARGET_TMPDIR"), "/profiles"))
        // A folder for each run: nodes of an earlier run may have had the same ports.
        .env("XDG_STATE_HOME", format!("{}/state-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id()))
        .env_remove("LIGHTSHIP_STATE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
}

/// A running command, killed on drop.
pub(crate) struct Process {
    child: Child,
    log: Arc<Log>,
    reader: Option<JoinHandle<()>>,
}

impl Process {
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::start_with(args, |command| command)
    }

    /// `change` may set the environment or the working directory.
    pub(crate) fn start_with(args: &[&str], change: impl FnOnce(&mut Command) -> &mut Command) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lightship"));
        Self::spawn(change(quiet(command.args(args))))
    }

    /// Runs the command on a host of a lab.
    pub(crate) fn start_on(host: &lab::Host, args: &[&str]) -> Self {
        let mut command = host.command(env!("CARGO_BIN_EXE_lightship"));
        Self::spawn(quiet(command.args(args)))
    }

    /// Runs the command after a line of shell, which may set limits.
    pub(crate) fn start_under(line: &str, args: &[&str]) -> Self {
        let script = format!("{line}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        Self::spawn(quiet(command.args(["-c", &script, env!("CARGO_BIN_EXE_lightship")]).args(args)))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the command starts");
        let (log, stderr) = (Arc::<Log>::default(), child.stderr.take().expect("a pipe"));
        let theirs = log.clone();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { break };
                theirs.text.lock().expect("no panic").0.push_str(&(line + "\n"));
                theirs.more.notify_all();
            }
            theirs.text.lock().expect("no panic").1 = true;
            theirs.more.notify_all();
        });
        Self { child, log, reader: Some(reader) }
    }

    pub(crate) fn stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().expect("stdout was not taken yet")
    }

    /// Waits until the process has begun to write rows, and leaves it blocked on the next ones.
    pub(crate) fn stuck_in_rows(&mut self) -> BufReader<ChildStdout> {
        let mut rows = BufReader::new(self.stdout());
        let mut line = String::new();
        rows.read_line(&mut line).expect("a pipe");
        assert!(!line.is_empty(), "no row came: {}", self.log.text.lock().expect("no panic").0);
        rows
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status().expect("kill is there");
        assert!(sent.success(), "{name} to {id}");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// Waits until the log contains this.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) {
        self.says_times(words, 1);
    }

    /// Waits until this many connections of a node have ended, in any way.
    #[track_caller]
    pub(crate) fn connections_ended(&self, count: usize) {
        self.says_times("peer=", count);
    }

    #[track_caller]
    pub(crate) fn says_times(&self, words: &str, times: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut text = self.log.text.lock().expect("no panic");
        while text.0.matches(words).count() < times {
            assert!(!text.1, "it ended without `{words}`:\n{}", text.0);
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "`{words}` never came:\n{}", text.0);
            text = self.log.more.wait_timeout(text, left).expect("no panic").0;
        }
    }

    /// A value of `/proc/PID/status`, in bytes.
    pub(crate) fn memory_bytes(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("the key is there");
        let digits: String = line.chars().filter(char::is_ascii_digit).collect();
        digits.parse::<u64>().expect("a number") * 1024
    }

    /// Waits until it has written rows to a file in this folder that does not have its final name yet.
    #[track_caller]
    pub(crate) fn half_written(&self, folder: &Folder) {
        let files = format!("/proc/{}/fd", self.child.id());
        until("rows are written", || {
            std::fs::read_dir(&files).expect("it runs").flatten().any(|entry| {
                std::fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(folder.path()))
                    && entry.path().metadata().is_ok_and(|data| data.len() > 0)
            })
        });
    }

    /// Processor time of the process, in clock ticks (10 ms).
    pub(crate) fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        let (_, fields) = stat.rsplit_once(')').expect("a name");
        let fields: Vec<&str> = fields.split_whitespace().collect();
        [11, 12].into_iter().map(|place| fields[place].parse::<u64>().expect("a number")).sum()
    }

    /// Whether the process has loaded a file of this name.
    pub(crate) fn has_loaded(&self, name: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).expect("it runs").contains(name)
    }

    /// Waits until the process has used another second of processor time.
    #[track_caller]
    pub(crate) fn computes(&self) {
        let before = self.cpu_ticks();
        until("it computes", || self.cpu_ticks() > before + 100);
    }

    /// The soft and the hard limit of open files.
    pub(crate) fn files_max(&self) -> [String; 2] {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", self.child.id())).expect("it runs");
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).expect("a limit");
        let mut values = line.split_whitespace().map(str::to_owned);
        [values.next(), values.next()].map(|value| value.expect("two of them"))
    }

    /// Waits for the end.
    pub(crate) fn end(self) -> Outcome {
        self.end_within(PATIENCE)
    }

    /// Waits for the end, and kills the process if it does not end in time.
    pub(crate) fn end_within(mut self, patience: Duration) -> Outcome {
        let (done, overdue) = mpsc::channel::<()>();
        let id = self.child.id().to_string();
        let watchdog = std::thread::spawn(move || {
            if overdue.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &id]).status();
            }
        });
        let mut stdout = Vec::new();
        if let Some(mut pipe) = self.child.stdout.take() {
            pipe.read_to_end(&mut stdout).expect("a pipe");
        }
        let status = self.child.wait().expect("an end");
        drop(done);
        watchdog.join().expect("no panic");
        self.reader.take().expect("once").join().expect("no panic");
        let stderr = std::mem::take(&mut self.log.text.lock().expect("no panic").0);
        Outcome { code: status.code(), stdout, stderr }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the command to its end.
pub(crate) fn lightship(args: &[&str]) -> Outcome {
    Process::start(args).end()
}

/// Fetches as CSV.
#[track_caller]
pub(crate) fn csv(uri: &str, sql: &str) -> String {
    let outcome = lightship(&["fetch", "--quiet", uri, sql]).succeeds();
    outcome.text().to_owned()
}

/// A node, killed on drop.
pub(crate) struct Node {
    pub(crate) process: Process,
    pub(crate) uri: String,
    /// The JSON that it printed when it was ready.
    pub(crate) ready: serde_json::Value,
    _stdout: BufReader<ChildStdout>,
}

/// The command of a node, without its options.
const NODE: [&str; 4] = ["--json", "--log", "debug", "node"];

impl Node {
    /// Starts a node, on a free port unless the arguments say otherwise, and waits until it listens.
    pub(crate) fn start(args: &[&str]) -> Self {
        Self::try_start(args).unwrap_or_else(|outcome| panic!("the node did not start: {outcome}"))
    }

    pub(crate) fn try_start(args: &[&str]) -> Result<Self, Outcome> {
        Self::start_with(args, |command| command)
    }

    /// `change` may set the environment or the working directory.
    pub(crate) fn start_with(
        args: &[&str],
        change: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<Self, Outcome> {
        let mut words = NODE.to_vec();
        if !args.contains(&"--listen") && !args.contains(&"--config") {
            words.extend(["--listen", "127.0.0.1:0"]);
        }
        words.extend(args);
        Self::ready(Process::start_with(&words, change))
    }

    /// Starts a node on a host of a lab.
    pub(crate) fn start_on(host: &lab::Host, args: &[&str]) -> Self {
        let process = Process::start_on(host, &[&NODE[..], args].concat());
        Self::ready(process).unwrap_or_else(|outcome| panic!("the node did not start: {outcome}"))
    }

    /// Waits until it listens.
    fn ready(mut process: Process) -> Result<Self, Outcome> {
        let mut stdout = BufReader::new(process.stdout());
        let mut line = String::new();
        stdout.read_line(&mut line).expect("a pipe");
        if line.is_empty() {
            return Err(process.end());
        }
        let ready: serde_json::Value = serde_json::from_str(&line).expect("JSON when it is ready");
        let uri = ready["listening"][0].as_str().expect("an address").to_owned();
        Ok(Self { process, uri, ready, _stdout: stdout })
    }

    pub(crate) fn fetch(&self, args: &[&str]) -> Outcome {
        lightship(&[&["fetch", &self.uri], args].concat())
    }

    /// `127.0.0.1:port`.
    pub(crate) fn address(&self) -> &str {
        self.uri.strip_prefix("lightship://").expect("TCP")
    }

    /// Checks that the node still answers.
    #[track_caller]
    pub(crate) fn serves(&self) {
        assert_eq!(csv(&self.uri, "select 1 as one"), "one\n1\n");
    }
}

/// A temporary folder.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::Builder::new().prefix("lightship-it-").tempdir().expect("a folder"))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// The path of a file in it, as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.file(name), text).expect("written");
        self.arg(name)
    }

    /// Its files, hidden ones too.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("a folder");
        let mut names: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

/// Polls until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

pub(crate) fn write_parquet(path: &Path, batches: impl IntoIterator<Item = RecordBatch>) {
    let mut batches = batches.into_iter().peekable();
    let schema = batches.peek().expect("a batch").schema();
    let mut writer =
        ArrowWriter::try_new(File::create(path).expect("a file"), schema, None).expect("a schema");
    batches.for_each(|batch| writer.write(&batch).expect("rows"));
    writer.close().expect("a whole file");
}

pub(crate) fn read_parquet(path: &Path) -> (SchemaRef, Vec<RecordBatch>) {
    let builder =
        ParquetRecordBatchReaderBuilder::try_new(File::open(path).expect("a file")).expect("Parquet");
    let schema = builder.schema().clone();
    (schema, builder.build().expect("a reader").map(|batch| batch.expect("rows")).collect())
}

pub(crate) fn read_arrow_stream(bytes: &[u8]) -> (SchemaRef, Vec<RecordBatch>) {
    let reader = arrow_ipc::reader::StreamReader::try_new(bytes, None).expect("an Arrow stream");
    let schema = reader.schema();
    (schema, reader.map(|batch| batch.expect("rows")).collect())
}

pub(crate) fn read_arrow_file(path: &Path) -> (SchemaRef, Vec<RecordBatch>) {
    let reader = arrow_ipc::reader::FileReader::try_new(File::open(path).expect("a file"), None)
        .expect("an Arrow file");
    let schema = reader.schema();
    (schema, reader.map(|batch| batch.expect("rows")).collect())
}

pub(crate) fn rows_of(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::num_rows).sum()
}

/// The sum of a column of `Int64`.
pub(crate) fn sum(batches: &[RecordBatch], column: usize) -> i64 {
    let values = batches.iter().map(|batch| batch.column(column).as_primitive::<Int64Type>());
    values.flat_map(|column| column.values().iter()).sum()
}

/// `lineitem` of TPC-H with 60 175 rows, written once.
pub(crate) fn lineitem() -> &'static str {
    static FILE: LazyLock<String> = LazyLock::new(|| {
        // The content is always the same, so the file is kept for the next run.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lineitem.parquet");
        if !path.exists() {
            let whole = path.with_extension("new");
            write_parquet(&whole, lightship_testkit::tpch::lineitem(0.01));
            std::fs::rename(&whole, &path).expect("renamed");
        }
        path.display().to_string()
    });
    &FILE
}

/// `lineitem=…`, for `--table`.
pub(crate) fn lineitem_table() -> String {
    format!("lineitem={}", lineitem())
}
