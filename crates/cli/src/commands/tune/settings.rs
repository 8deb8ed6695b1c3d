//! Settings of drivers for a plan: their names, their ranges, and their prerequisites.
//!
//! All of it is from manuals: Oracle Database Net Services Administrator's Guide and SQL*Plus User's
//! Guide, MySQL Reference Manual and C API Developer Guide, the manuals of PostgreSQL's JDBC driver,
//! psqlODBC, psycopg and python-oracledb, the ODBC Programmer's Reference.

use clap::ValueEnum;
use lightship_tuner::{Plan, Query};
use serde::Serialize;

/// A driver, or a family of them with the same settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Driver {
    /// Any JDBC driver, with the prerequisites of PostgreSQL's, MySQL's and Oracle's.
    Jdbc,
    /// Python's psycopg and psycopg2, for PostgreSQL.
    Psycopg,
    /// Oracle's own clients, and the size of its messages.
    Oracle,
    /// Any ODBC driver, and psqlODBC.
    Odbc,
    /// MySQL's and MariaDB's server and C client.
    Mysql,
    /// `lightship fetch`.
    Lightship,
}

impl Driver {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Jdbc => "jdbc",
            Self::Psycopg => "psycopg",
            Self::Oracle => "oracle",
            Self::Odbc => "odbc",
            Self::Mysql => "mysql",
            Self::Lightship => "lightship",
        }
    }

    /// Whether the driver requests a batch only when it has the previous one.
    pub(super) fn has_one_batch(self) -> bool {
        self != Self::Lightship
    }
}

/// The settings of one driver.
#[derive(Debug, Serialize)]
pub(super) struct Advice {
    #[serde(rename = "for")]
    pub(super) driver: Driver,
    pub(super) settings: Vec<Setting>,
}

/// One setting.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    /// The setting as it is written.
    pub(super) write: String,
    pub(super) value: u64,
    pub(super) unit: Unit,
    /// Its cost: the rows of a batch on the wire, or the buffer of a message.
    pub(super) memory_bytes: u64,
    /// The plan's value, if it is outside the setting's range.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wanted: Option<u64>,
    /// The setting's range.
    pub(super) range: (u64, u64),
    /// Where to write the setting, and its prerequisites.
    pub(super) notes: Vec<String>,
}

/// What a setting counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    Rows,
    Bytes,
    Batches,
}

/// Fetch sizes are an `int` in Java and C.
const INT_MAX: u64 = i32::MAX as u64;
/// A `ub4` of OCI, the smallest `unsigned long` of C, and the numbers of Lightship's options.
const U32_MAX: u64 = u32::MAX as u64;
/// Rows of SQL*Plus' ARRAYSIZE.
const ARRAYSIZE_MAX: u64 = 5000;
/// Bytes of Oracle's session data unit.
const SDU: (u64, u64) = (512, 2_097_152);
/// Bytes of MySQL's net_buffer_length, which is a multiple of the block.
const NET_BUFFER: (u64, u64) = (1024, 1_048_576);
const NET_BUFFER_BLOCK: u64 = 1024;
/// One part in this many of a fetch's memory is for rows in flight. No less than the default is advised.
const FETCH_MEMORY_PARTS: u64 = 4;
const FETCH_MEMORY_DEFAULT: u64 = 64 << 20;

/// The settings for a plan. Sizes of messages are left out unless they can be chosen.
pub(super) fn advise(drivers: &[Driver], plan: &Plan, query: &Query, messages: bool) -> Vec<Advice> {
    let make = Maker { plan, row_bytes: query.row_bytes, messages };
    drivers.iter().map(|&driver| Advice { driver, settings: make.settings(driver) }).collect()
}

struct Maker<'a> {
    plan: &'a Plan,
    row_bytes: f64,
    messages: bool,
}

impl Maker<'_> {
    fn settings(&self, driver: Driver) -> Vec<Setting> {
        let mut settings = self.all(driver);
        if !self.messages {
            settings.retain(|setting| setting.unit != Unit::Bytes);
            settings.iter_mut().for_each(|setting| setting.notes.retain(|note| note != POSTGRESQL_MESSAGE));
        }
        settings
    }

    fn all(&self, driver: Driver) -> Vec<Setting> {
        match driver {
            Driver::Jdbc => self.jdbc(),
            Driver::Psycopg => vec![
                self.rows(INT_MAX, |f| format!("cursor.itersize = {f}"))
                    .note("of a server-side cursor: connection.cursor(name=\"result\"), inside a transaction; other \
                        cursors read the whole result at once")
                    .note("itersize applies to iteration over the cursor; fetchmany(n) fetches n rows")
                    .note(POSTGRESQL_MESSAGE),
            ],
            Driver::Oracle => self.oracle(),
            Driver::Odbc => vec![
                self.rows(INT_MAX, |f| {
                    format!("SQLSetStmtAttr(statement, SQL_ATTR_ROW_ARRAY_SIZE, (SQLPOINTER) {f}, 0)")
                })
                .note("the application's arrays need room for as many rows; a driver may use fewer (01S02)"),
                self.rows(INT_MAX, |f| format!("UseDeclareFetch=1;Fetch={f}"))
                    .note("psqlODBC, in the connection string; with UseDeclareFetch=0 it reads the whole result at once")
                    .note(POSTGRESQL_MESSAGE),
            ],
            Driver::Mysql => self.mysql(),
            Driver::Lightship => self.lightship(),
        }
    }

    fn jdbc(&self) -> Vec<Setting> {
        vec![
            self.rows(INT_MAX, |f| format!("statement.setFetchSize({f})"))
                .note("PostgreSQL: after connection.setAutoCommit(false), with a forward-only result set and a single \
                    statement; otherwise the driver reads the whole result at once")
                .note("MySQL Connector/J: with useCursorFetch=true in the URL; otherwise it reads the whole result at once")
                .note("Oracle: nothing else is needed; its own default is 10 rows"),
            self.rows(INT_MAX, |f| format!("defaultRowFetchSize={f}"))
                .note("PostgreSQL: the same for all statements of a connection, in the URL")
                .note(POSTGRESQL_MESSAGE),
            self.rows(INT_MAX, |f| format!("defaultFetchSize={f}"))
                .note("MySQL Connector/J: the same for all statements of a connection, in the URL"),
            self.rows(INT_MAX, |f| format!("defaultRowPrefetch={f}"))
                .note("Oracle: the same for all statements of a connection, as a property of it"),
        ]
    }

    fn oracle(&self) -> Vec<Setting> {
        vec![
            self.bytes(SDU, |m| format!("DEFAULT_SDU_SIZE={m}"))
                .note("in sqlnet.ora of both client and server, or (SDU=...) in the connect descriptor; the smaller \
                    value of both ends is used")
                .note("Oracle's guide adds 70 bytes to the message; before Oracle Database 12c at most 65535 or 32767"),
            self.rows(U32_MAX, |f| format!("OCI_ATTR_PREFETCH_ROWS = {f}"))
                .note("OCI, of the statement; set OCI_ATTR_PREFETCH_MEMORY = 0, or it may limit the rows further"),
            self.rows(INT_MAX, |f| format!("cursor.arraysize = {f}"))
                .note("python-oracledb, before execute(); cursor.prefetchrows is for the first round trip"),
            self.rows(ARRAYSIZE_MAX, |f| format!("SET ARRAYSIZE {f}"))
                .note("SQL*Plus"),
        ]
    }

    fn mysql(&self) -> Vec<Setting> {
        let mut buffer = self.bytes(NET_BUFFER, |m| format!("SET GLOBAL net_buffer_length = {m}")).note(
            "of the server, for new connections, in multiples of 1024; the server collects rows in this buffer \
                before it sends them",
        );
        // Rounded up so that the plan's message fits: the server rounds down.
        buffer.value = buffer.value.next_multiple_of(NET_BUFFER_BLOCK);
        buffer.memory_bytes = buffer.value;
        buffer.write = format!("SET GLOBAL net_buffer_length = {}", buffer.value);
        vec![
            self.rows(U32_MAX, |f| {
                format!("unsigned long rows = {f}; mysql_stmt_attr_set(statement, STMT_ATTR_PREFETCH_ROWS, &rows)")
            })
            .note("C API, of a prepared statement, with STMT_ATTR_CURSOR_TYPE set to CURSOR_TYPE_READ_ONLY; without a \
                cursor the whole result is sent at once")
            .note("the server first writes the whole result to a temporary table; it sends rows through a buffer \
                of net_buffer_length bytes, 16 KiB by default")
            .note("for Connector/J see --for jdbc"),
            buffer,
        ]
    }

    fn lightship(&self) -> Vec<Setting> {
        let needed = self.plan.memory_bytes.saturating_mul(FETCH_MEMORY_PARTS);
        let rows = self.rows(U32_MAX, |f| format!("--batch-rows {f}"));
        let memory = match needed {
            few if few <= FETCH_MEMORY_DEFAULT => rows,
            many => rows.note(&format!(
                "with --memory {}MiB: a quarter of it is for rows in flight",
                many.div_ceil(1 << 20)
            )),
        };
        let window = self.plan.window_batches;
        vec![
            memory,
            self.bytes((1, U32_MAX), |m| format!("--message-bytes {m}")),
            Setting {
                write: format!("--window {window}"),
                value: window,
                unit: Unit::Batches,
                memory_bytes: self.plan.memory_bytes,
                wanted: None,
                range: (1, U32_MAX),
                notes: Vec::new(),
            },
        ]
    }

    /// F, within the range of the setting.
    fn rows(&self, max: u64, write: impl FnOnce(u64) -> String) -> Setting {
        let mut setting = Setting::new(self.plan.batch_rows, Unit::Rows, (1, max), write);
        setting.memory_bytes = (setting.value as f64 * self.row_bytes).ceil() as u64;
        setting
    }

    /// M, within the range of the setting.
    fn bytes(&self, range: (u64, u64), write: impl FnOnce(u64) -> String) -> Setting {
        Setting::new(self.plan.message_bytes, Unit::Bytes, range, write)
    }
}

const POSTGRESQL_MESSAGE: &str = "PostgreSQL has no setting for the size of a message; it sends whenever a buffer \
    of 8 KiB is full: plan for that with --message-bytes 8KiB";

impl Setting {
    fn new(wanted: u64, unit: Unit, range: (u64, u64), write: impl FnOnce(u64) -> String) -> Self {
        let value = wanted.clamp(range.0, range.1);
        Self {
            write: write(value),
            value,
            unit,
            memory_bytes: value,
            wanted: Some(wanted).filter(|&wanted| wanted != value),
            range,
            notes: Vec::new(),
        }
    }

    fn note(mut self, text: &str) -> Self {
        self.notes.push(text.to_owned());
        self
    }
}
