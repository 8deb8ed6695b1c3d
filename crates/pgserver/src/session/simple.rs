//! The simple protocol: a string of statements, results as text.

use super::{Outcome, Session, formats};
use crate::encode::Format;
use crate::error::{Interruption, PgError, SessionEnd, code};
use crate::message::{self, Fields};
use crate::sql::{command, lexer};

impl Session {
    pub(super) async fn simple_query(&mut self, mut fields: Fields) -> Result<(), SessionEnd> {
        let sql = match fields.string().and_then(|sql| fields.end().map(|()| sql)) {
            Ok(sql) => sql,
            Err(error) if error.is_fatal => return Err(SessionEnd::Fatal(error)),
            Err(error) => {
                self.report(&error);
                return self.ready().await;
            }
        };
        // The unnamed portal and the unnamed statement end with it.
        self.portals.remove("");
        self.begin_statement();
        let mut statements = lexer::statements(&sql).peekable();
        if statements.peek().is_none() {
            message::put_empty(&mut self.link.out, b'I');
        }
        for statement in statements {
            let done = match Box::pin(self.simple_statement(statement)).await {
                // Others may follow that have no rows either.
                Ok(()) => self.pause().await,
                failed => failed,
            };
            match done {
                Ok(()) => {}
                Err(Interruption::Error(mut error)) => {
                    // Its place in the string.
                    let before = statement.as_ptr() as usize - sql.as_ptr() as usize;
                    error.position = error.position.map(|position| position + sql[..before].chars().count());
                    self.report(&error);
                    break;
                }
                Err(Interruption::End(end)) => return Err(end),
            }
        }
        self.key.end_statement();
        self.ready().await
    }

    async fn simple_statement(&mut self, sql: &str) -> Result<(), Interruption> {
        check_length(sql)?;
        let command = command::parse(sql)?;
        self.check_transaction(&command)?;
        let outcome = self.start(&command, sql, &[], None).await?;
        match outcome {
            Outcome::Rows { mut stream, tag } => {
                let formats = formats(&[], stream.columns.len())?;
                message::put_row_description(&mut self.link.out, &stream.columns, &formats);
                let (sent, _) = self.send_rows(&mut stream, &formats, 0).await?;
                message::put_complete(&mut self.link.out, &rows_tag(tag, sent));
            }
            Outcome::Fetch { name, count, is_move } => {
                self.fetch(&name, count, is_move, &[Format::Text], true).await?;
            }
            Outcome::Copy { copy, mut stream } => self.copy_out(&copy, &mut stream).await?,
            Outcome::Done(tag) => message::put_complete(&mut self.link.out, &tag),
        }
        Ok(())
    }
}

/// The command tag of a statement with rows.
pub(super) fn rows_tag(tag: &str, rows: u64) -> String {
    if tag == "SHOW" { tag.to_owned() } else { format!("{tag} {rows}") }
}

/// Fails for a statement that the engine would refuse, before anything is made of it.
pub(super) fn check_length(sql: &str) -> Result<(), PgError> {
    let max = super::STATEMENT_BYTES_MAX;
    if sql.len() <= max {
        return Ok(());
    }
    let error = PgError::new(
        code::PROGRAM_LIMIT,
        format!("the statement has {} bytes; the limit is {max}", sql.len()),
    );
    Err(error.hint("put long lists of values into a file, and serve it as a table"))
}
