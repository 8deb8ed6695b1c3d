//! Runs statements: simple queries, descriptions of results, results in binary format, and COPY.

use std::io;

use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;

use super::super::message::{DescribedStatement, Frame, TextRow};
use super::super::parameters::BoundValue;
use super::copy_data::CopyData;
use super::{Connection, During};
use crate::{Result, SourceError};

/// Maximum rows of a control query, which returns names, not data.
const CONTROL_ROWS_MAX: usize = 1 << 20;

impl Connection {
    /// Reads up to `ReadyForQuery`, so that the connection can be reused, and
    /// returns the first error on the way.
    pub(in crate::postgres) async fn until_ready(
        &mut self,
        mut on: impl FnMut(Frame) -> io::Result<()>,
    ) -> Result<()> {
        let mut failed = None;
        loop {
            let frame = match self.frame().await {
                Ok(frame) => frame,
                Err(e) => return Err(failed.unwrap_or_else(|| self.lost(e, 0))),
            };
            match frame.tag {
                b'Z' => return failed.map_or(Ok(()), Err),
                b'E' => {
                    let error = self.server_error(&frame.body, 0);
                    failed.get_or_insert(error);
                }
                _ if failed.is_none() => {
                    if let Err(e) = on(frame) {
                        failed = Some(self.lost(e, 0));
                    }
                }
                _ => {}
            }
        }
    }

    /// Appends a simple query; [`Self::until_ready`] reads its answer.
    pub(in crate::postgres) fn ask(&mut self, sql: &str) -> Result<()> {
        frontend::query(sql, &mut self.write).map_err(|_| nul_in_sql())?;
        self.unfinished += 1;
        Ok(())
    }

    /// Sends what [`Self::ask`] and similar functions appended.
    pub(in crate::postgres) async fn send(&mut self) -> Result<()> {
        self.flush().await.map_err(|e| self.lost(e, 0))
    }

    /// Runs control statements and returns their rows as text.
    pub(in crate::postgres) async fn simple(&mut self, sql: &str) -> Result<Vec<TextRow>> {
        self.ask(sql)?;
        self.send().await?;
        let mut rows = Vec::new();
        self.until_ready(|frame| {
            if frame.tag == b'D' {
                if rows.len() == CONTROL_ROWS_MAX {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "too many rows"));
                }
                rows.push(frame.text_row()?);
            }
            Ok(())
        })
        .await?;
        Ok(rows)
    }

    /// Appends a request to describe the result of `sql`.
    pub(in crate::postgres) fn ask_describe(&mut self, sql: &str) -> Result<()> {
        frontend::parse("", sql, [], &mut self.write)
            .and_then(|()| frontend::describe(b'S', "", &mut self.write))
            .map_err(|_| nul_in_sql())?;
        frontend::sync(&mut self.write);
        self.unfinished += 1;
        Ok(())
    }

    /// Reads the answer to [`Self::ask_describe`].
    ///
    /// # Errors
    /// The server's errors, with positions in `sql`; [`SourceError::Unsupported`]
    /// when the statement returns no rows.
    pub(in crate::postgres) async fn described(&mut self) -> Result<DescribedStatement> {
        let mut columns = None;
        let mut parameters = Vec::new();
        self.until_ready(|frame| {
            match frame.tag {
                b'T' => columns = Some(frame.columns()?),
                b't' => parameters = frame.parameters()?,
                _ => {}
            }
            Ok(())
        })
        .await?;
        let columns =
            columns.ok_or_else(|| SourceError::Unsupported("the statement returns no rows".into()))?;
        Ok(DescribedStatement { columns, parameters })
    }

    /// Starts `sql` with the values of its parameters and with its columns in the given formats (0 text, 1 binary),
    /// and after it `then`, a statement without rows.
    pub(in crate::postgres) async fn execute(
        &mut self,
        sql: &str,
        values: &[BoundValue],
        formats: &[i16],
        then: Option<&str>,
    ) -> Result<()> {
        let appended = frontend::parse("", sql, [], &mut self.write)
            .and_then(|()| bind(values, formats, &mut self.write))
            .and_then(|()| frontend::execute("", 0, &mut self.write));
        appended.map_err(|_| nul_in_sql())?;
        frontend::sync(&mut self.write);
        self.unfinished += 1;
        if let Some(sql) = then {
            self.ask(sql)?;
        }
        self.send().await
    }

    /// Sends `rows` of a COPY, in messages of at most `message_bytes_max`.
    ///
    /// # Errors
    /// When the connection ended, or the server has sent an error, which is then the next frame.
    pub(in crate::postgres) async fn send_copy_data(
        &mut self,
        rows: &[u8],
        message_bytes_max: usize,
    ) -> io::Result<()> {
        let mut messages = CopyData::new(rows, message_bytes_max);
        self.written += messages.remaining() as u64;
        self.write_all(&mut messages, During::Copy).await
    }

    /// Ends a COPY into the server, which answers up to `ReadyForQuery`.
    pub(in crate::postgres) async fn send_copy_done(&mut self) -> Result<()> {
        frontend::copy_done(&mut self.write);
        self.send().await
    }
}

fn bind(values: &[BoundValue], formats: &[i16], buf: &mut BytesMut) -> io::Result<()> {
    let put = |value: &BoundValue, buf: &mut BytesMut| {
        Ok(match &value.bytes {
            Some(bytes) => {
                buf.extend_from_slice(bytes);
                postgres_protocol::IsNull::No
            }
            None => postgres_protocol::IsNull::Yes,
        })
    };
    let value_formats = values.iter().map(|value| value.format);
    frontend::bind("", "", value_formats, values, put, formats.iter().copied(), buf).map_err(|e| match e {
        frontend::BindError::Serialization(e) => e,
        frontend::BindError::Conversion(e) => io::Error::other(e),
    })
}

fn nul_in_sql() -> SourceError {
    SourceError::Sql {
        reason: "the statement contains a NUL character or is too long".into(),
        position: None,
        code: None,
        hint: None,
    }
}
