//! Starts statements, and answers those about the session itself.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow_array::cast::AsArray as _;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Schema};
use lightship_wire::control::{Plan, Query};

use super::{
    ChangedSettings, Contents, Outcome, Portal, Session, Transaction, formats, interruptible, simple,
};
use crate::catalog::Caller;
use crate::encode::Format;
use crate::error::{Interruption, PgError, PgResult, code};
use crate::message;
use crate::parameters::{self, Parameter};
use crate::rows::RowStream;
use crate::sql::command::{Command, SetValue};
use crate::sql::lexer;
use crate::types::{PgColumn, oid};

/// Rows of texts.
fn texts(columns: &[&str], rows: &[Vec<&str>]) -> PgResult<RowStream> {
    let fields: Vec<_> = columns.iter().map(|name| Field::new(*name, DataType::Utf8, true)).collect();
    let column =
        |index: usize| Arc::new(rows.iter().map(|row| Some(row[index])).collect::<StringArray>()) as ArrayRef;
    let arrays = (0..columns.len()).map(column).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
    Ok(RowStream::of_batch(columns.iter().map(|name| PgColumn::new(*name, oid::TEXT)).collect(), batch))
}

/// Whether a statement changes rows. Its tag is then that of its first word.
pub(super) fn update_tag(sql: &str) -> Option<&'static str> {
    let first = lexer::tokens(sql).next()?;
    match sql[first.start..first.end].to_ascii_lowercase().as_str() {
        "insert" => Some("INSERT 0"),
        "update" => Some("UPDATE"),
        "delete" => Some("DELETE"),
        "merge" => Some("MERGE"),
        _ => None,
    }
}

impl Session {
    /// Starts a statement. `required` has the types of its parameters, if they are known.
    pub(super) async fn start(
        &mut self,
        command: &Command,
        sql: &str,
        parameters: &[Parameter],
        required: Option<&Schema>,
    ) -> Result<Outcome, Interruption> {
        let done = |tag: &str| Ok(Outcome::Done(tag.to_owned()));
        match command {
            Command::Query => self.query(sql, parameters, required).await,
            Command::Begin => {
                if self.transaction == Transaction::Open {
                    self.warn("there is already a transaction in progress");
                }
                self.transaction = Transaction::Open;
                done("BEGIN")
            }
            Command::Commit | Command::Rollback => {
                if self.transaction == Transaction::Idle {
                    self.warn("there is no transaction in progress");
                }
                let is_commit = *command == Command::Commit && self.transaction != Transaction::Failed;
                self.transaction = Transaction::Idle;
                self.end_transaction();
                if let Some(changed) = self.changed.take() {
                    let ChangedSettings { committed, rolled_back } = *changed;
                    let reports = self.settings.replace(if is_commit { committed } else { rolled_back });
                    self.tell(reports);
                }
                done(if is_commit { "COMMIT" } else { "ROLLBACK" })
            }
            Command::Savepoint(tag) => self.needs_transaction(tag).map(|()| Outcome::Done((*tag).into())),
            Command::RollbackTo => {
                self.needs_transaction("ROLLBACK TO SAVEPOINT")?;
                self.transaction = Transaction::Open;
                done("ROLLBACK")
            }
            Command::Set { name, value, is_local } => {
                let value = match value {
                    SetValue::Ignored => return done("SET"),
                    SetValue::Default => None,
                    SetValue::Text(value) => Some(value.as_str()),
                };
                if *is_local && self.transaction == Transaction::Idle {
                    self.warn("SET LOCAL can only be used in transaction blocks");
                    return done("SET");
                }
                self.set(name, value, *is_local)?;
                done("SET")
            }
            Command::Reset(name) => {
                match name {
                    Some(name) => self.set(name, None, false)?,
                    None => self.reset_all(),
                }
                done("RESET")
            }
            Command::Show(name) => {
                let value = self.settings.get(name)?.to_owned();
                Ok(Outcome::Rows { stream: texts(&[name], &[vec![&value]])?, tag: "SHOW" })
            }
            Command::ShowAll => {
                let rows: Vec<_> = self.settings.all().map(|(name, value)| vec![name, value, ""]).collect();
                Ok(Outcome::Rows { stream: texts(&["name", "setting", "description"], &rows)?, tag: "SHOW" })
            }
            Command::Discard(is_all) => {
                if *is_all {
                    if self.transaction != Transaction::Idle {
                        let message = "DISCARD ALL cannot run inside a transaction block";
                        return Err(PgError::new(code::ACTIVE_TRANSACTION, message).into());
                    }
                    self.statements.clear();
                    self.portals.clear();
                    self.reset_all();
                }
                done(if *is_all { "DISCARD ALL" } else { "DISCARD" })
            }
            Command::Deallocate(name) => {
                match name {
                    Some(name) if self.statements.remove(name).is_none() => {
                        let message = format!("prepared statement \"{name}\" does not exist");
                        return Err(PgError::new(code::INVALID_STATEMENT_NAME, message).into());
                    }
                    Some(_) => {}
                    None => self.statements.clear(),
                }
                done(if name.is_some() { "DEALLOCATE" } else { "DEALLOCATE ALL" })
            }
            Command::Declare { name, query, is_held, is_binary } => {
                self.declare(name, query, *is_held, *is_binary, parameters, required).await?;
                done("DECLARE CURSOR")
            }
            Command::Fetch { name, count, is_move } => {
                Ok(Outcome::Fetch { name: name.clone(), count: *count, is_move: *is_move })
            }
            Command::Close(name) => {
                match name {
                    Some(name) if self.portals.remove(name).is_none() => return Err(no_cursor(name).into()),
                    Some(_) => {}
                    None => self.portals.clear(),
                }
                done(if name.is_some() { "CLOSE CURSOR" } else { "CLOSE CURSOR ALL" })
            }
            // Before it has changed rows.
            Command::Copy(copy) if update_tag(&copy.query).is_some() => {
                Err(PgError::unsupported("COPY query must be a query").into())
            }
            Command::Copy(copy) => match self.query(&copy.query, parameters, required).await? {
                Outcome::Rows { stream, .. } => Ok(Outcome::Copy { copy: copy.clone(), stream }),
                _ => Err(PgError::unsupported("COPY query must be a query").into()),
            },
            Command::NoOp(tag) => done(tag),
        }
    }

    fn needs_transaction(&self, tag: &str) -> Result<(), Interruption> {
        if self.transaction != Transaction::Idle {
            return Ok(());
        }
        let message = format!("{tag} can only be used in transaction blocks");
        Err(PgError::new(code::NO_ACTIVE_TRANSACTION, message).into())
    }

    /// Tells the client about settings that have changed.
    fn tell(&mut self, reports: impl IntoIterator<Item = (String, String)>) {
        for (name, value) in reports {
            message::put_parameter_status(&mut self.link.out, &name, &value);
        }
    }

    /// Notes what the settings will be when the transaction ends.
    fn changed(&mut self) -> Option<&mut ChangedSettings> {
        if self.transaction == Transaction::Idle {
            return None;
        }
        let settings = &self.settings;
        let unchanged =
            || Box::new(ChangedSettings { committed: settings.clone(), rolled_back: settings.clone() });
        Some(self.changed.get_or_insert_with(unchanged))
    }

    /// Changes a setting; `None` is its default.
    fn set(&mut self, name: &str, value: Option<&str>, is_local: bool) -> PgResult<()> {
        if let Some(changed) = self.changed()
            && !is_local
        {
            changed.committed.set(name, value)?;
        }
        let change = self.settings.set(name, value)?;
        self.tell(change.report);
        if let Some(warning) = change.warning {
            self.warn(&warning);
        }
        Ok(())
    }

    fn reset_all(&mut self) {
        if let Some(changed) = self.changed() {
            changed.committed.reset_all();
        }
        let reports = self.settings.reset_all();
        self.tell(reports);
    }

    /// Starts a query: the catalog's, or the service's.
    async fn query(
        &mut self,
        sql: &str,
        parameters: &[Parameter],
        required: Option<&Schema>,
    ) -> Result<Outcome, Interruption> {
        simple::check_length(sql)?;
        let shared = self.shared.clone();
        let caller = self.caller();
        let update = update_tag(sql);
        let work = Box::pin(async move {
            if let Some(query) = shared.catalog.recognise(sql).await? {
                let values = parameters.iter().map(Parameter::catalog_value).collect::<PgResult<Vec<_>>>()?;
                return shared.catalog.run(query, values, caller, &*shared.service).await;
            }
            let answered = if parameters.is_empty() {
                let query = Query { sql: sql.to_owned(), plan: Plan::default() };
                shared.service.query(&query).await
            } else {
                let batch = parameters::batch(parameters, required)?;
                shared.service.execute(sql, &batch).await
            };
            RowStream::new(answered.map_err(|failure| PgError::of_statement(failure, sql))?)
        });
        let mut stream = interruptible(&mut self.link, &self.key, self.deadline, work).await?;
        let Some(tag) = update else { return Ok(Outcome::Rows { stream, tag: "SELECT" }) };
        // The only row has the number of rows that were changed.
        let count = interruptible(&mut self.link, &self.key, self.deadline, stream.count()).await?;
        Ok(Outcome::Done(format!("{tag} {count}")))
    }

    /// What functions about the session return.
    fn caller(&self) -> Caller {
        Caller {
            user: self.user.clone(),
            database: self.database.clone(),
            process: self.key.process,
            settings: self.settings.clone(),
            now_us: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| i64::try_from(since.as_micros()).unwrap_or(i64::MAX)),
        }
    }

    async fn declare(
        &mut self,
        name: &str,
        query: &str,
        is_held: bool,
        is_binary: bool,
        parameters: &[Parameter],
        required: Option<&Schema>,
    ) -> Result<(), Interruption> {
        if !is_held {
            self.needs_transaction("DECLARE CURSOR")?;
        }
        if self.portals.contains_key(name) {
            return Err(
                PgError::new(code::DUPLICATE_CURSOR, format!("cursor \"{name}\" already exists")).into()
            );
        }
        self.check_portals()?;
        if update_tag(query).is_some() {
            return Err(PgError::syntax("a cursor needs a query").into());
        }
        let outcome = self.query(query, parameters, required).await?;
        let mut portal = Portal::started(outcome, is_held);
        portal.formats = vec![if is_binary { Format::Binary } else { Format::Text }];
        self.portals.insert(name.to_owned(), portal);
        Ok(())
    }

    /// Fails if there are as many portals as there may be.
    pub(super) fn check_portals(&self) -> PgResult<()> {
        let max = self.shared.config.portals_max;
        if self.portals.len() < max {
            return Ok(());
        }
        let error = PgError::new(
            code::PROGRAM_LIMIT,
            format!("the session has {max} open cursors and portals, the limit"),
        );
        Err(error.hint("close those that are no longer needed"))
    }

    /// Sends rows of a cursor. `asked` are the formats of the columns.
    pub(super) async fn fetch(
        &mut self,
        name: &str,
        count: u64,
        is_move: bool,
        asked: &[Format],
        has_description: bool,
    ) -> Result<(), Interruption> {
        let mut portal = self.portals.remove(name).ok_or_else(|| no_cursor(name))?;
        let fetched = Box::pin(self.fetch_from(&mut portal, count, is_move, asked, has_description)).await;
        // A cursor whose query has failed is gone.
        if fetched.is_ok() {
            self.portals.insert(name.to_owned(), portal);
        }
        fetched
    }

    async fn fetch_from(
        &mut self,
        portal: &mut Portal,
        count: u64,
        is_move: bool,
        asked: &[Format],
        has_description: bool,
    ) -> Result<(), Interruption> {
        // A binary cursor has the last word.
        let asked = if portal.formats == [Format::Binary] { &[Format::Binary] } else { asked };
        let Contents::Started(Outcome::Rows { stream, .. }) = &mut portal.contents else {
            return Err(PgError::new(code::INVALID_CURSOR_NAME, "the portal is not a cursor").into());
        };
        if is_move {
            let skipped = self.skip_rows(stream, count).await?;
            message::put_complete(&mut self.link.out, &format!("MOVE {skipped}"));
            return Ok(());
        }
        let formats = formats(asked, stream.columns.len())?;
        if has_description {
            message::put_row_description(&mut self.link.out, &stream.columns, &formats);
        }
        let sent = match count {
            0 => 0,
            // 0 is no limit.
            _ => self.send_rows(stream, &formats, if count == u64::MAX { 0 } else { count }).await?.0,
        };
        message::put_complete(&mut self.link.out, &format!("FETCH {sent}"));
        Ok(())
    }
}

pub(super) fn no_cursor(name: &str) -> PgError {
    PgError::new(code::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}

impl RowStream {
    /// The number in the only row of a result.
    async fn count(&mut self) -> PgResult<i64> {
        let mut count = 0;
        while let Some(batch) = self.next_batch().await? {
            if batch.num_rows() > 0 && batch.num_columns() > 0 {
                count = cast(batch.column(0), &DataType::Int64)?.as_primitive::<Int64Type>().value(0);
            }
        }
        Ok(count)
    }
}
