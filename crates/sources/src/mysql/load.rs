//! Sends rows to a table: by LOAD DATA LOCAL where the server allows it, otherwise by inserts of many rows.
//!
//! LOAD DATA LOCAL is the fastest way, but turns errors into warnings, and skips rows with keys that exist. So the
//! rows and warnings are counted, and any difference is an error.

use std::io;

use bytes::Bytes;
use futures::StreamExt;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Params, Value};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::errors;
use super::target::Target;
use crate::select::identifier;
use crate::{Result, SourceError};

/// Rows are sent once they have this many bytes.
const SEND_BYTES: usize = 256 << 10;
/// Maximum bytes of a packet of LOAD DATA.
const PIECE_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of the values of an insert.
const INSERT_BYTES: usize = 1 << 20;
/// Maximum values of an insert: the protocol counts them in sixteen bits.
const INSERT_VALUES_MAX: usize = 65_535;
/// Maximum rows of an insert.
const INSERT_ROWS_MAX: usize = 1024;

/// The server's number for a column without a default that got no value.
const NO_DEFAULT: u32 = 1364;

/// The hint for a value that only the server can check.
const CORRECT: &str = "correct it in the query, or choose another type for the column";

/// Rows on the way to a table.
pub(super) enum Loader {
    Stream(Stream),
    Insert(Insert),
}

/// LOAD DATA LOCAL, which a task runs while rows are sent to it.
pub(super) struct Stream {
    to: mpsc::Sender<Piece>,
    task: JoinHandle<(Conn, Result<(), Error>)>,
    pending: Vec<u8>,
    rows: u64,
    sql: String,
    server: String,
}

/// What the task sends to the server. If it ends without `End`, the copy has failed.
enum Piece {
    Rows(Bytes),
    End,
}

/// Inserts of many rows.
pub(super) struct Insert {
    conn: Conn,
    /// Up to the values.
    head: String,
    columns: usize,
    rows_max: usize,
    pending: Vec<Value>,
    pending_bytes: usize,
    packet_bytes_max: usize,
    rows: u64,
    server: String,
}

impl Loader {
    /// Starts a load into the table of `target`.
    pub(super) async fn start(mut conn: Conn, server: &str, target: &Target) -> Result<Self> {
        let row = target.row.iter().cloned();
        let names: Vec<_> = row.chain(target.columns.iter().map(|column| identifier(&column.name))).collect();
        let (load, head) =
            (load_statement(target), format!("INSERT INTO {} ({})", target.into, names.join(", ")));
        if is_load_allowed(&mut conn, &load).await {
            let (to, pieces) = mpsc::channel(1);
            let task = tokio::spawn(run_load(conn, load.clone(), pieces));
            let server = server.to_owned();
            return Ok(Self::Stream(Stream { to, task, pending: Vec::new(), rows: 0, sql: load, server }));
        }
        let packet: Result<Option<u64>, _> = conn.query_first("SELECT @@max_allowed_packet").await;
        let packet = packet.map_err(|error| errors::statement(server, &head, 0, error))?.unwrap_or(1 << 20);
        let columns = names.len();
        Ok(Self::Insert(Insert {
            conn,
            head,
            columns,
            rows_max: (INSERT_VALUES_MAX / columns).clamp(1, INSERT_ROWS_MAX),
            pending: Vec::new(),
            pending_bytes: 0,
            packet_bytes_max: usize::try_from(packet).unwrap_or(usize::MAX),
            rows: 0,
            server: server.to_owned(),
        }))
    }

    /// Adds a row. `is_binary` says of each value whether it is bytes rather than text.
    pub(super) async fn push(&mut self, values: Vec<Value>, is_binary: &[bool]) -> Result<u64> {
        match self {
            Self::Stream(stream) => stream.push(&values, is_binary).await,
            Self::Insert(insert) => insert.push(values).await,
        }
    }

    /// Waits until the server has all rows. Returns the connection.
    pub(super) async fn finish(self) -> Result<Conn> {
        match self {
            Self::Stream(stream) => stream.finish().await,
            Self::Insert(mut insert) => {
                insert.flush().await?;
                Ok(insert.conn)
            }
        }
    }
}

/// Binary values are sent in hexadecimal digits: the server takes what it reads for text.
fn load_statement(target: &Target) -> String {
    let mut names: Vec<_> = target.row.iter().cloned().collect();
    let mut set = Vec::new();
    for (at, column) in target.columns.iter().enumerate() {
        let name = identifier(&column.name);
        if column.rule.is_binary() {
            set.push(format!("{name} = UNHEX(@lightship_{at})"));
            names.push(format!("@lightship_{at}"));
        } else {
            names.push(name);
        }
    }
    let set = if set.is_empty() { String::new() } else { format!(" SET {}", set.join(", ")) };
    format!(
        "LOAD DATA LOCAL INFILE 'rows' INTO TABLE {} CHARACTER SET utf8mb4 \
         FIELDS TERMINATED BY '\\t' ESCAPED BY '\\\\' LINES TERMINATED BY '\\n' ({}){set}",
        target.into,
        names.join(", ")
    )
}

/// Whether the server accepts LOAD DATA LOCAL, which is tried with no rows.
async fn is_load_allowed(conn: &mut Conn, load: &str) -> bool {
    conn.set_infile_handler(async { Ok(futures::stream::empty().boxed()) });
    match conn.query_drop(load).await {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(%error, "the server refuses LOAD DATA LOCAL; inserting rows instead");
            false
        }
    }
}

async fn run_load(mut conn: Conn, sql: String, pieces: mpsc::Receiver<Piece>) -> (Conn, Result<(), Error>) {
    // The name of the file that the server asks for does not matter: it gets only these rows.
    conn.set_infile_handler(async move {
        let rows = futures::stream::unfold(Some(pieces), |pieces| async move {
            let mut pieces = pieces?;
            match pieces.recv().await {
                Some(Piece::Rows(rows)) => Some((Ok(rows), Some(pieces))),
                Some(Piece::End) => None,
                None => Some((Err(io::Error::other("the copy was abandoned")), None)),
            }
        });
        Ok(rows.boxed())
    });
    let loaded = conn.query_drop(sql).await;
    (conn, loaded)
}

impl Stream {
    async fn push(&mut self, values: &[Value], is_binary: &[bool]) -> Result<u64> {
        let before = self.pending.len();
        for (at, value) in values.iter().enumerate() {
            if at > 0 {
                self.pending.push(b'\t');
            }
            put_field(&mut self.pending, value, is_binary[at]);
        }
        self.pending.push(b'\n');
        self.rows += 1;
        let bytes = (self.pending.len() - before) as u64;
        if self.pending.len() >= SEND_BYTES {
            let rows = std::mem::replace(&mut self.pending, Vec::with_capacity(2 * SEND_BYTES));
            self.send_rows(rows.into()).await?;
        }
        Ok(bytes)
    }

    /// Sends rows in pieces that are packets of the protocol: an empty packet, which follows one of the maximum size,
    /// would end the data.
    async fn send_rows(&mut self, mut rows: Bytes) -> Result<()> {
        while !rows.is_empty() {
            let piece = rows.split_to(rows.len().min(PIECE_BYTES_MAX));
            self.send(Piece::Rows(piece)).await?;
        }
        Ok(())
    }

    async fn send(&mut self, piece: Piece) -> Result<()> {
        tokio::select! {
            biased;
            // The statement has ended early, so it has failed.
            ended = &mut self.task => {
                let error = match ended {
                    Ok((_, Err(error))) => errors::statement(&self.server, &self.sql, self.rows, error),
                    Ok((_, Ok(()))) => self.lost("the server ended LOAD DATA before all rows were sent"),
                    Err(error) => self.lost(&error.to_string()),
                };
                Err(error)
            }
            sent = self.to.send(piece) => sent.map_err(|_| self.lost("the load has ended")),
        }
    }

    fn lost(&self, reason: &str) -> SourceError {
        SourceError::Lost { target: self.server.clone(), rows: self.rows, reason: reason.to_owned() }
    }

    async fn finish(mut self) -> Result<Conn> {
        let rows = std::mem::take(&mut self.pending);
        self.send_rows(rows.into()).await?;
        self.send(Piece::End).await?;
        let (mut conn, loaded) = (&mut self.task).await.map_err(|error| self.lost(&error.to_string()))?;
        loaded.map_err(|error| refused(errors::statement(&self.server, &self.sql, self.rows, error), 0))?;
        let (written, warnings) = (conn.affected_rows(), conn.get_warnings());
        if warnings == 0 && written == self.rows {
            return Ok(conn);
        }
        let shown: Result<Vec<(String, u32, String)>, _> = conn.query("SHOW WARNINGS").await;
        let shown =
            shown.map_err(|error| errors::statement(&self.server, "SHOW WARNINGS", self.rows, error))?;
        let about_rows = shown.into_iter().find(|(level, code, message)| {
            let is_error = level == "Error" || *code == NO_DEFAULT;
            written != self.rows || is_error || place(message).is_some()
        });
        match about_rows {
            Some((_, code, reason)) => Err(refused(
                SourceError::Sql { reason, position: None, code: Some(code.to_string()), hint: None },
                0,
            )),
            None if written == self.rows => Ok(conn),
            None => Err(SourceError::Sql {
                reason: format!("the server took {written} of {} rows, and did not say why", self.rows),
                position: None,
                code: None,
                hint: None,
            }),
        }
    }
}

impl Insert {
    async fn push(&mut self, values: Vec<Value>) -> Result<u64> {
        let bytes: usize = values.iter().map(value_bytes).sum();
        if bytes + self.head.len() + (64 << 10) > self.packet_bytes_max {
            let row = self.rows + self.pending_rows() as u64 + 1;
            return Err(SourceError::Sql {
                reason: format!(
                    "row {row} has {bytes} bytes, more than the server accepts in a statement (max_allowed_packet \
                     is {})",
                    self.packet_bytes_max
                ),
                position: None,
                code: None,
                hint: Some("raise max_allowed_packet at the server, or allow local_infile there".into()),
            });
        }
        if self.pending_bytes + bytes > INSERT_BYTES.min(self.packet_bytes_max / 2) {
            self.flush().await?;
        }
        self.pending.extend(values);
        self.pending_bytes += bytes;
        if self.pending_rows() >= self.rows_max {
            self.flush().await?;
        }
        Ok(bytes as u64)
    }

    fn pending_rows(&self) -> usize {
        self.pending.len() / self.columns
    }

    /// Inserts the pending rows, in powers of two, so that few statements are prepared.
    async fn flush(&mut self) -> Result<()> {
        let mut pending = std::mem::take(&mut self.pending).into_iter();
        self.pending_bytes = 0;
        while pending.len() > 0 {
            let rows = 1usize << (pending.len() / self.columns).ilog2();
            let values: Vec<_> = pending.by_ref().take(rows * self.columns).collect();
            let row = format!("({})", vec!["?"; self.columns].join(", "));
            let sql = format!("{} VALUES {}", self.head, vec![row; rows].join(", "));
            let inserted = self.conn.exec_drop(&*sql, Params::Positional(values)).await;
            inserted.map_err(|error| {
                refused(errors::statement(&self.server, &sql, self.rows, error), self.rows)
            })?;
            self.rows += rows as u64;
        }
        Ok(())
    }
}

fn value_bytes(value: &Value) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len() + 9,
        _ => 13,
    }
}

/// Appends a value in the format of LOAD DATA.
fn put_field(out: &mut Vec<u8>, value: &Value, is_binary: bool) {
    use std::io::Write;
    // Writing to a vector can't fail.
    let _ = match value {
        Value::NULL => out.write_all(b"\\N"),
        Value::Bytes(bytes) if is_binary => bytes.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        Value::Bytes(bytes) => {
            put_escaped(out, bytes);
            Ok(())
        }
        Value::Int(value) => write!(out, "{value}"),
        Value::UInt(value) => write!(out, "{value}"),
        Value::Float(value) => write!(out, "{value:?}"),
        Value::Double(value) => write!(out, "{value:?}"),
        Value::Date(year, month, day, hour, minute, second, us) => {
            write!(out, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{us:06}")
        }
        Value::Time(is_negative, days, hours, minutes, seconds, us) => {
            let (sign, hours) = (if *is_negative { "-" } else { "" }, days * 24 + u32::from(*hours));
            write!(out, "{sign}{hours:02}:{minutes:02}:{seconds:02}.{us:06}")
        }
    };
}

fn put_escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    for &byte in bytes {
        let escaped = match byte {
            b'\\' => b'\\',
            b'\t' => b't',
            b'\n' => b'n',
            b'\0' => b'0',
            _ => {
                out.push(byte);
                continue;
            }
        };
        out.extend([b'\\', escaped]);
    }
}

/// Names the row and the column of an error about a value, in a statement before which `before` rows were sent.
fn refused(error: SourceError, before: u64) -> SourceError {
    match error {
        SourceError::Sql { reason, position, code, hint } => match place(&reason) {
            Some((column, row)) => SourceError::Unfit {
                row: before + row,
                column: column.to_owned(),
                reason,
                hint: Some(CORRECT.into()),
            },
            None => SourceError::Sql { reason, position, code, hint },
        },
        error => error,
    }
}

/// The column and the row in a message like `Data too long for column 'a' at row 3`, where the name may be
/// qualified and in other quotes.
fn place(message: &str) -> Option<(&str, u64)> {
    let (before, row) = message.rsplit_once(" at row ")?;
    let (_, column) = before.rsplit_once("column ")?;
    let column = column.rsplit_once("`.`").map_or(column, |(_, name)| name);
    Some((column.trim_matches(['\'', '`', '"']), row.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_encoded_for_load_data() {
        let check = |value: Value, is_binary: bool, expected: &str| {
            let mut out = Vec::new();
            put_field(&mut out, &value, is_binary);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{value:?}");
        };
        check(Value::NULL, false, "\\N");
        check(Value::Bytes(b"a\tb\\N\n\0".to_vec()), false, "a\\tb\\\\N\\n\\0");
        check(Value::Bytes(vec![0, 255]), true, "00ff");
        check(Value::Double(1e300), false, "1e300");
        check(Value::Float(0.1), false, "0.1");
        check(Value::Date(2024, 2, 9, 1, 2, 3, 4), false, "2024-02-09 01:02:03.000004");
        check(Value::Time(true, 34, 22, 59, 59, 0), false, "-838:59:59.000000");
    }

    #[test]
    fn rows_are_found_in_messages() {
        assert_eq!(place("Data too long for column 'a' at row 3"), Some(("a", 3)));
        let message = "Incorrect string value: '\\xE2' for column `d`.`t`.`a b` at row 12";
        assert_eq!(place(message), Some(("a b", 12)));
        assert_eq!(place("Duplicate entry '1' for key 'PRIMARY'"), None);
    }
}
