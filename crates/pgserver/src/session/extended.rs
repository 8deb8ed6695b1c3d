//! The extended protocol: prepared statements, portals, formats of choice.

use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use bytes::Bytes;
use lightship_transport::net::Prepared;
use tokio::sync::OnceCell;

use super::commands::update_tag;
use super::simple::{check_length, rows_tag};
use super::{Contents, Outcome, Portal, Session, formats, interruptible};
use crate::encode::Format;
use crate::error::{Interruption, PgError, PgResult, SessionEnd, code};
use crate::message::{self, Fields};
use crate::parameters::{self, Parameter};
use crate::sql::command::{self, Command};
use crate::sql::lexer;
use crate::types::{PgColumn, oid, type_of};

/// What a statement or portal holds besides its texts and values.
const OVERHEAD_BYTES: usize = 512;

/// A prepared statement.
pub(super) struct Statement {
    sql: String,
    /// `None` if it is empty.
    command: Option<Command>,
    /// The types of parameters that the client has said; 0 where it has not.
    declared: Vec<u32>,
    described: OnceCell<Described>,
}

/// What is found out about a statement only if somebody needs it.
#[derive(Clone)]
struct Described {
    parameters: Vec<u32>,
    /// The types as the service has them.
    required: SchemaRef,
    /// `None` if it returns no rows.
    columns: Option<Arc<[PgColumn]>>,
}

impl Statement {
    fn bytes(&self) -> usize {
        let described = self.described.get().map_or(0, Described::bytes);
        OVERHEAD_BYTES + self.sql.len() * 2 + self.declared.len() * 4 + described
    }
}

impl Described {
    fn bytes(&self) -> usize {
        let columns = self.columns.iter().flat_map(|columns| columns.iter());
        // A field of a schema takes some 200 bytes.
        columns.map(|column| 64 + column.name.len()).sum::<usize>() + self.parameters.len() * 256
    }
}

impl Session {
    /// What all prepared statements and portals hold.
    fn prepared_bytes(&self) -> usize {
        let statements: usize =
            self.statements.iter().map(|(name, statement)| name.len() + statement.bytes()).sum();
        let portals: usize = self.portals.iter().map(|(name, portal)| name.len() + portal.bytes).sum();
        statements + portals
    }

    fn check_prepared(&self, more: usize) -> PgResult<()> {
        let max = self.shared.config.prepared_bytes_max;
        if self.prepared_bytes() + more <= max {
            return Ok(());
        }
        let message = format!(
            "the prepared statements and portals of the session need more than {max} bytes, the limit; there are {} and {}",
            self.statements.len(),
            self.portals.len()
        );
        Err(PgError::new(code::OUT_OF_MEMORY, message).hint("DEALLOCATE those that are no longer needed"))
    }

    pub(super) async fn parse(&mut self, mut fields: Fields) -> Result<(), Interruption> {
        let (name, sql) = (fields.string()?, fields.string()?);
        let count = fields.count(4)?;
        let declared: Vec<u32> =
            (0..count).map(|_| fields.i32().map(|oid| oid as u32)).collect::<PgResult<_>>()?;
        fields.end()?;
        check_length(&sql)?;
        let mut statements = lexer::statements(&sql);
        let first = statements.next().map(str::to_owned);
        if statements.next().is_some() {
            return Err(PgError::syntax("cannot insert multiple commands into a prepared statement").into());
        }
        let command = first.as_deref().map(command::parse).transpose()?;
        if let Some(command) = &command {
            self.check_transaction(command)?;
        }
        if name.is_empty() {
            self.statements.remove("");
        } else if self.statements.contains_key(&name) {
            let message = format!("prepared statement \"{name}\" already exists");
            return Err(PgError::new(code::DUPLICATE_STATEMENT, message).into());
        }
        let statement =
            Statement { sql: first.unwrap_or_default(), command, declared, described: OnceCell::new() };
        self.check_prepared(name.len() + statement.bytes())?;
        self.statements.insert(name, Arc::new(statement));
        message::put_empty(&mut self.link.out, b'1');
        Ok(())
    }

    fn statement(&self, name: &str) -> PgResult<Arc<Statement>> {
        self.statements.get(name).cloned().ok_or_else(|| {
            let name = if name.is_empty() {
                "unnamed prepared statement".into()
            } else {
                format!("prepared statement \"{name}\"")
            };
            PgError::new(code::INVALID_STATEMENT_NAME, format!("{name} does not exist"))
        })
    }

    pub(super) async fn bind(&mut self, mut fields: Fields) -> Result<(), Interruption> {
        let (portal, name) = (fields.string()?, fields.string()?);
        let asked = fields.formats()?;
        let count = fields.count(4)?;
        // Copies: a part of a message would keep all of it.
        let copied = |value: Option<Bytes>| value.map(|value| Bytes::copy_from_slice(&value));
        let values = (0..count).map(|_| fields.value().map(copied)).collect::<PgResult<Vec<_>>>()?;
        let result_formats = fields.formats()?;
        fields.end()?;
        let statement = self.statement(&name)?;
        if let Some(command) = &statement.command {
            self.check_transaction(command)?;
        }
        if count < statement.declared.len() {
            let message = format!(
                "bind message supplies {count} parameters, but prepared statement \"{name}\" requires {}",
                statement.declared.len()
            );
            return Err(PgError::new(code::PROTOCOL_VIOLATION, message).into());
        }
        let formats = match asked.as_slice() {
            [] => vec![Format::Text; count],
            [one] => vec![*one; count],
            all if all.len() == count => all.to_vec(),
            all => {
                let message =
                    format!("bind message has {} parameter formats but {count} parameters", all.len());
                return Err(PgError::new(code::PROTOCOL_VIOLATION, message).into());
            }
        };
        let mut parameters: Vec<Parameter> = values
            .into_iter()
            .zip(formats)
            .enumerate()
            .map(|(index, (value, format))| {
                let oid = statement.declared.get(index).copied().unwrap_or(0);
                Parameter { oid, format, value }
            })
            .collect();
        // A value in binary format can't be read without its type.
        if parameters.iter().any(Parameter::needs_type) {
            self.describe_statement(&statement).await?;
        }
        if let Some(described) = statement.described.get() {
            for (parameter, oid) in parameters.iter_mut().zip(&described.parameters) {
                // In text the engine's own rules are at least as wide.
                if parameter.is_untyped() && parameter.format == Format::Binary {
                    parameter.oid = *oid;
                }
            }
        }
        let bytes = OVERHEAD_BYTES
            + result_formats.len()
            + parameters.iter().map(|p| 64 + p.value.as_ref().map_or(0, Bytes::len)).sum::<usize>();
        if portal.is_empty() {
            self.portals.remove("");
        } else if self.portals.contains_key(&portal) {
            return Err(
                PgError::new(code::DUPLICATE_CURSOR, format!("cursor \"{portal}\" already exists")).into()
            );
        }
        self.check_portals()?;
        self.check_prepared(bytes)?;
        let contents = Contents::Bound { statement, parameters };
        self.portals.insert(portal, Portal { contents, formats: result_formats, is_held: false, bytes });
        message::put_empty(&mut self.link.out, b'2');
        Ok(())
    }

    pub(super) async fn describe(&mut self, mut fields: Fields) -> Result<(), Interruption> {
        let (kind, name) = (fields.byte()?, fields.string()?);
        fields.end()?;
        match kind {
            b'S' => {
                let statement = self.statement(&name)?;
                let described = self.describe_statement(&statement).await?;
                message::put_parameter_description(&mut self.link.out, &described.parameters);
                match &described.columns {
                    Some(columns) => {
                        let formats = vec![Format::Text; columns.len()];
                        message::put_row_description(&mut self.link.out, columns, &formats);
                    }
                    None => message::put_empty(&mut self.link.out, b'n'),
                }
            }
            b'P' => {
                let mut portal = self.portals.remove(&name).ok_or_else(|| no_portal(&name))?;
                let columns = self.portal_columns(&mut portal).await;
                let asked = portal.formats.clone();
                // A portal whose statement has failed is gone.
                let columns = columns?;
                self.portals.insert(name, portal);
                match columns {
                    Some(columns) => {
                        let formats = formats(&asked, columns.len())?;
                        message::put_row_description(&mut self.link.out, &columns, &formats);
                    }
                    None => message::put_empty(&mut self.link.out, b'n'),
                }
            }
            other => {
                return Err(PgError::protocol(format!("invalid DESCRIBE message subtype {other}")).into());
            }
        }
        Ok(())
    }

    /// The parameters and columns of a statement.
    async fn describe_statement(&mut self, statement: &Arc<Statement>) -> Result<Described, Interruption> {
        if let Some(described) = statement.described.get() {
            return Ok(described.clone());
        }
        let nothing = || Described {
            parameters: statement.declared.clone(),
            required: Arc::new(Schema::empty()),
            columns: None,
        };
        let described = match &statement.command {
            Some(Command::Query) => self.describe_query(&statement.sql, &statement.declared).await?,
            Some(Command::Copy(copy)) => {
                Described { columns: None, ..self.describe_query(&copy.query, &statement.declared).await? }
            }
            Some(Command::Declare { query, .. }) => {
                Described { columns: None, ..self.describe_query(query, &statement.declared).await? }
            }
            Some(Command::Show(name)) => {
                Described { columns: Some([PgColumn::new(name, oid::TEXT)].into()), ..nothing() }
            }
            Some(Command::ShowAll) => {
                let columns = ["name", "setting", "description"].map(|name| PgColumn::new(name, oid::TEXT));
                Described { columns: Some(columns.into()), ..nothing() }
            }
            Some(Command::Fetch { name, is_move: false, .. }) => {
                Described { columns: self.cursor_columns(name), ..nothing() }
            }
            _ => nothing(),
        };
        // A cursor of this name may be another one next time.
        if !matches!(statement.command, Some(Command::Fetch { .. })) {
            self.check_prepared(described.bytes())?;
            let _ = statement.described.set(described.clone());
        }
        Ok(described)
    }

    async fn describe_query(&mut self, sql: &str, declared: &[u32]) -> Result<Described, Interruption> {
        let shared = self.shared.clone();
        let work = Box::pin(async move {
            if let Some(query) = shared.catalog.recognise(sql).await? {
                let (parameters, columns) = shared.catalog.describe(query, &*shared.service).await?;
                return Ok((parameters, Some(columns), Arc::new(Schema::empty())));
            }
            let prepared = shared.service.prepare(sql).await;
            let Prepared { columns, parameters, is_update, .. } =
                prepared.map_err(|failure| PgError::of_statement(failure, sql))?;
            let is_known = |oid: u32| oid != 0 && oid != oid::UNKNOWN;
            let mut open =
                parameters.fields().iter().enumerate().filter(|(_, field)| field.data_type().is_null());
            // The types of its columns depend on those of its parameters, which the client has said.
            let columns =
                if !is_update && open.any(|(at, _)| declared.get(at).is_some_and(|oid| is_known(*oid))) {
                    let null = |at| Parameter {
                        oid: declared.get(at).copied().unwrap_or(0),
                        format: Format::Text,
                        value: None,
                    };
                    let nulls: Vec<_> = (0..parameters.fields().len()).map(null).collect();
                    let row = parameters::batch(&nulls, Some(&parameters))?;
                    // Its rows are dropped at once.
                    let answer = shared.service.execute(sql, &row).await;
                    answer.map_err(|failure| PgError::of_statement(failure, sql))?.schema
                } else {
                    columns
                };
            let columns = columns.fields().iter().map(|field| PgColumn::of(field)).collect::<Vec<_>>();
            let types = parameters.fields().iter().map(|field| match field.data_type() {
                arrow_schema::DataType::Null => 0,
                _ => type_of(field).0,
            });
            Ok((types.collect(), (!is_update).then_some(columns), parameters))
        });
        let (mut parameters, columns, required): (Vec<u32>, Option<Vec<PgColumn>>, SchemaRef) =
            interruptible(&mut self.link, &self.key, self.deadline, work).await?;
        parameters.resize(parameters.len().max(declared.len()), 0);
        for (index, oid) in parameters.iter_mut().enumerate() {
            match declared.get(index).copied() {
                Some(said) if said != 0 && said != oid::UNKNOWN => *oid = said,
                // A client must send something, and everything can be sent as text.
                _ if *oid == 0 => *oid = oid::TEXT,
                _ => {}
            }
        }
        Ok(Described { parameters, required, columns: columns.map(Into::into) })
    }

    fn cursor_columns(&self, name: &str) -> Option<Arc<[PgColumn]>> {
        match &self.portals.get(name)?.contents {
            Contents::Started(Outcome::Rows { stream, .. }) => Some(stream.columns.clone()),
            _ => None,
        }
    }

    /// Starts the statement of a portal, if it has not started.
    async fn start_portal(&mut self, portal: &mut Portal) -> Result<(), Interruption> {
        let Contents::Bound { statement, parameters } = &portal.contents else { return Ok(()) };
        let (statement, parameters) = (statement.clone(), parameters.clone());
        let Some(command) = &statement.command else { return Ok(()) };
        let described = statement.described.get();
        let required = described.map(|described| described.required.as_ref());
        let outcome = Box::pin(self.start(command, &statement.sql, &parameters, required)).await?;
        if let (Outcome::Rows { stream, .. }, Some(Described { columns: Some(columns), .. })) =
            (&outcome, described)
        {
            // The client reads the values by the description.
            let is_same = columns.len() == stream.columns.len()
                && columns.iter().zip(stream.columns.iter()).all(|(described, now)| described.oid == now.oid);
            if !is_same {
                return Err(PgError::unsupported("cached plan must not change result type").into());
            }
        }
        portal.contents = Contents::Started(outcome);
        Ok(())
    }

    /// The columns of a portal. Its statement is started, unless it changes the session.
    async fn portal_columns(&mut self, portal: &mut Portal) -> Result<Option<Arc<[PgColumn]>>, Interruption> {
        if let Contents::Bound { statement, .. } = &portal.contents {
            if let Some(command) = &statement.command {
                self.check_transaction(command)?;
            }
            match &statement.command {
                // It is not to change rows yet.
                Some(Command::Query) if update_tag(&statement.sql).is_some() => return Ok(None),
                Some(Command::Query | Command::Show(_) | Command::ShowAll) => {
                    self.start_portal(portal).await?
                }
                Some(Command::Fetch { name, is_move: false, .. }) => {
                    return Ok(self.cursor_columns(&name.clone()));
                }
                _ => return Ok(None),
            }
        }
        match &portal.contents {
            Contents::Started(Outcome::Rows { stream, .. }) => Ok(Some(stream.columns.clone())),
            _ => Ok(None),
        }
    }

    pub(super) async fn execute(&mut self, mut fields: Fields) -> Result<(), Interruption> {
        let (name, max) = (fields.string()?, fields.i32()?);
        fields.end()?;
        let mut portal = self.portals.remove(&name).ok_or_else(|| no_portal(&name))?;
        let done = Box::pin(self.execute_portal(&mut portal, u64::try_from(max).unwrap_or(0))).await;
        // A portal that has failed is gone; one that has ended its transaction, too.
        let ends = matches!(&portal.contents, Contents::Started(Outcome::Done(tag)) if tag == "COMMIT" || tag == "ROLLBACK");
        if done.is_ok() && !ends {
            self.portals.insert(name, portal);
        }
        done
    }

    async fn execute_portal(&mut self, portal: &mut Portal, max: u64) -> Result<(), Interruption> {
        if let Contents::Bound { statement, .. } = &portal.contents {
            match &statement.command {
                Some(command) => self.check_transaction(command)?,
                None => {
                    message::put_empty(&mut self.link.out, b'I');
                    return Ok(());
                }
            }
        }
        self.start_portal(portal).await?;
        let Portal { contents, formats: asked, .. } = portal;
        match contents {
            Contents::Started(Outcome::Rows { stream, tag }) => {
                let formats = formats(asked, stream.columns.len())?;
                let (rows, is_complete) = self.send_rows(stream, &formats, max).await?;
                if is_complete {
                    message::put_complete(&mut self.link.out, &rows_tag(tag, rows));
                } else {
                    message::put_empty(&mut self.link.out, b's');
                }
            }
            Contents::Started(Outcome::Fetch { name, count, is_move }) => {
                let (name, count, is_move) = (name.clone(), *count, *is_move);
                self.fetch(&name, count, is_move, &asked.clone(), false).await?;
                *contents = Contents::Ended;
            }
            Contents::Started(Outcome::Copy { copy, stream }) => {
                self.copy_out(&copy.clone(), stream).await?;
                *contents = Contents::Ended;
            }
            Contents::Started(Outcome::Done(tag)) => message::put_complete(&mut self.link.out, tag),
            Contents::Bound { .. } | Contents::Ended => {
                let message = "portal cannot be run anymore";
                return Err(PgError::new("55000", message).into());
            }
        }
        Ok(())
    }

    pub(super) fn close(&mut self, mut fields: Fields) -> Result<(), Interruption> {
        let (kind, name) = (fields.byte()?, fields.string()?);
        fields.end()?;
        match kind {
            b'S' => drop(self.statements.remove(&name)),
            b'P' => drop(self.portals.remove(&name)),
            other => return Err(PgError::protocol(format!("invalid CLOSE message subtype {other}")).into()),
        }
        message::put_empty(&mut self.link.out, b'3');
        Ok(())
    }

    pub(super) async fn sync(&mut self) -> Result<(), SessionEnd> {
        self.is_skipping = false;
        self.ready().await
    }
}

fn no_portal(name: &str) -> PgError {
    PgError::new(code::INVALID_CURSOR_NAME, format!("portal \"{name}\" does not exist"))
}
