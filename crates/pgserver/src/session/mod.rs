//! A client's session, from its authentication to its end.

mod commands;
mod copy_out;
mod extended;
mod simple;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{sleep_until, timeout};

use self::extended::Statement;
use crate::cancel::SessionKey;
use crate::encode::Format;
use crate::error::{Interruption, PgError, PgResult, SessionEnd, code};
use crate::link::{Link, Message};
use crate::message::{self, Fields};
use crate::parameters::Parameter;
use crate::rows::RowStream;
use crate::server::{Shared, down};
use crate::settings::Settings;
use crate::sql::command::Command;
use crate::sql::copy::CopyOut;
use crate::startup::Introduction;

/// The longest statement, as of the engine.
const STATEMENT_BYTES_MAX: usize = 1 << 20;

/// What PostgreSQL calls the state of a transaction block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transaction {
    Idle,
    Open,
    Failed,
}

/// What a statement leads to.
enum Outcome {
    Rows {
        stream: RowStream,
        tag: &'static str,
    },
    Fetch {
        name: String,
        count: u64,
        is_move: bool,
    },
    Copy {
        copy: Box<CopyOut>,
        stream: RowStream,
    },
    /// Its command tag.
    Done(String),
}

/// What a portal holds.
enum Contents {
    /// A statement that has not started.
    Bound {
        statement: Arc<Statement>,
        parameters: Vec<Parameter>,
    },
    Started(Outcome),
    Ended,
}

/// A statement with its parameters, or a cursor.
struct Portal {
    contents: Contents,
    /// Formats of the columns: none for text, one for all, or one for each.
    formats: Vec<Format>,
    /// Whether it lives on after its transaction.
    is_held: bool,
    /// What it holds besides a query.
    bytes: usize,
}

/// What the settings will be when the transaction ends.
struct ChangedSettings {
    committed: Settings,
    rolled_back: Settings,
}

/// A session.
pub(crate) struct Session {
    link: Link,
    shared: Arc<Shared>,
    user: String,
    database: String,
    settings: Settings,
    /// Once the transaction has changed settings.
    changed: Option<Box<ChangedSettings>>,
    key: SessionKey,
    transaction: Transaction,
    statements: HashMap<String, Arc<Statement>>,
    portals: HashMap<String, Portal>,
    /// When the running statement is to be cancelled.
    deadline: Option<Instant>,
    /// After an error, messages are skipped up to the next Sync.
    is_skipping: bool,
    shutdown: watch::Receiver<bool>,
    _slot: OwnedSemaphorePermit,
}

/// Waits for `work`, until the client disconnects, or the statement is cancelled or late.
async fn interruptible<T>(
    link: &mut Link,
    key: &SessionKey,
    deadline: Option<Instant>,
    work: impl Future<Output = PgResult<T>>,
) -> Result<T, Interruption> {
    let late = async {
        match deadline {
            Some(deadline) => sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        done = work => Ok(done?),
        () = key.cancelled() => Err(PgError::cancelled().into()),
        () = late => Err(PgError::new(code::QUERY_CANCELED, "canceling statement due to statement timeout").into()),
        end = link.closed() => Err(end.into()),
    }
}

impl Session {
    pub(crate) fn new(
        link: Link,
        shared: Arc<Shared>,
        introduction: Introduction,
        key: SessionKey,
        slot: OwnedSemaphorePermit,
        shutdown: watch::Receiver<bool>,
    ) -> Self {
        let Introduction { user, database, settings, .. } = introduction;
        Self {
            link,
            shared,
            user,
            database,
            settings,
            changed: None,
            key,
            transaction: Transaction::Idle,
            statements: HashMap::new(),
            portals: HashMap::new(),
            deadline: None,
            is_skipping: false,
            shutdown,
            _slot: slot,
        }
    }

    /// Serves the client until it disconnects.
    pub(crate) async fn run(mut self) -> Result<(), SessionEnd> {
        let ended = loop {
            match self.next().await {
                Ok(Some(message)) => {
                    if let Err(end) = Box::pin(self.handle(message)).await {
                        break end;
                    }
                }
                Ok(None) => return Ok(()),
                Err(end) => break end,
            }
        };
        if let SessionEnd::Fatal(error) = &ended {
            message::put_error(&mut self.link.out, error);
            self.link.close().await;
        }
        Err(ended)
    }

    /// The next message; `None` if the client says goodbye.
    async fn next(&mut self) -> Result<Option<Message>, SessionEnd> {
        let config = &self.shared.config;
        // An open cursor keeps a query, and what the query has of other servers.
        let has_queries = self.portals.values().any(|portal| matches!(portal.contents, Contents::Started(_)));
        let idle =
            if has_queries { config.stall_timeout.or(config.idle_timeout) } else { config.idle_timeout };
        let shutdown = &mut self.shutdown;
        let next = async {
            tokio::select! {
                message = self.link.message() => message,
                () = down(shutdown) => {
                    let message = "terminating connection due to administrator command";
                    Err(SessionEnd::Fatal(PgError::new(code::ADMIN_SHUTDOWN, message).fatal()))
                }
            }
        };
        let message = match idle {
            Some(idle) => timeout(idle, next).await.map_err(|_| {
                let message = "terminating connection due to idle-session timeout";
                SessionEnd::Fatal(PgError::new(code::IDLE_SESSION_TIMEOUT, message).fatal())
            })??,
            None => next.await?,
        };
        Ok(Some(message).filter(|message| message.kind != b'X'))
    }

    async fn handle(&mut self, Message { kind, body }: Message) -> Result<(), SessionEnd> {
        let fields = Fields::new(body);
        match kind {
            b'S' => return self.sync().await,
            // Data for a copy that has failed, or that never was.
            b'd' | b'c' | b'f' => return Ok(()),
            _ if self.is_skipping => return Ok(()),
            b'Q' => return self.simple_query(fields).await,
            // Like a query, it ends with the server being ready.
            b'F' => {
                self.report(&PgError::unsupported("function calls are not supported"));
                return self.ready().await;
            }
            b'H' => return self.link.flush().await,
            b'p' => return Err(SessionEnd::Fatal(PgError::protocol("unexpected password message"))),
            _ => {}
        }
        self.begin_statement();
        let done = match kind {
            b'P' => self.parse(fields).await,
            b'B' => self.bind(fields).await,
            b'D' => self.describe(fields).await,
            b'E' => self.execute(fields).await,
            // The link passes no other messages.
            _ => self.close(fields),
        };
        self.key.end_statement();
        match done {
            Ok(()) => self.link.send_if_full().await,
            Err(Interruption::End(end)) => Err(end),
            Err(Interruption::Error(error)) => {
                self.report(&error);
                self.is_skipping = true;
                // A client may wait for it before it sends Sync.
                self.link.flush().await
            }
        }
    }

    fn begin_statement(&mut self) {
        self.key.begin_statement();
        self.deadline = self.settings.statement_timeout().map(|timeout| Instant::now() + timeout);
    }

    /// Tells the client about an error. A transaction has failed with it.
    fn report(&mut self, error: &PgError) {
        tracing::debug!(code = error.code, message = %error.message, "a statement of a PostgreSQL client failed");
        message::put_error(&mut self.link.out, error);
        if self.transaction == Transaction::Open {
            self.transaction = Transaction::Failed;
        }
    }

    /// Says that the next statement may come.
    async fn ready(&mut self) -> Result<(), SessionEnd> {
        if self.transaction == Transaction::Idle {
            self.end_transaction();
        }
        let status = match self.transaction {
            Transaction::Idle => b'I',
            Transaction::Open => b'T',
            Transaction::Failed => b'E',
        };
        message::put_ready(&mut self.link.out, status);
        self.link.flush().await
    }

    /// Closes the portals that end with their transaction.
    fn end_transaction(&mut self) {
        self.portals.retain(|_, portal| portal.is_held);
    }

    fn warn(&mut self, text: &str) {
        message::put_warning(&mut self.link.out, text);
    }

    /// Fails if the transaction has failed and the statement does not end it.
    fn check_transaction(&self, command: &Command) -> PgResult<()> {
        let ends = matches!(command, Command::Commit | Command::Rollback | Command::RollbackTo);
        if self.transaction != Transaction::Failed || ends {
            return Ok(());
        }
        let message = "current transaction is aborted, commands ignored until end of transaction block";
        Err(PgError::new(code::FAILED_TRANSACTION, message))
    }

    /// Sends rows of a result: at most `max`, if that is not 0. Returns how many, and whether the result has ended.
    async fn send_rows(
        &mut self,
        stream: &mut RowStream,
        formats: &[Format],
        max: u64,
    ) -> Result<(u64, bool), Interruption> {
        let mut sent = 0;
        while max == 0 || sent < max {
            if !stream.has_row()
                && !interruptible(&mut self.link, &self.key, self.deadline, stream.advance()).await?
            {
                return Ok((sent, true));
            }
            stream.put_message(formats, &mut self.link.out)?;
            sent += 1;
            self.pause().await?;
        }
        Ok((sent, false))
    }

    /// Sends what is collected, if it is much, and looks whether the statement is cancelled.
    async fn pause(&mut self) -> Result<(), Interruption> {
        if self.link.is_full() {
            self.link.flush().await?;
            if self.key.is_cancelled() {
                return Err(PgError::cancelled().into());
            }
            if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(PgError::new(
                    code::QUERY_CANCELED,
                    "canceling statement due to statement timeout",
                )
                .into());
            }
        }
        Ok(())
    }

    /// Drops rows of a result: at most `max`.
    async fn skip_rows(&mut self, stream: &mut RowStream, max: u64) -> Result<u64, Interruption> {
        let mut skipped = 0;
        while skipped < max {
            if !stream.has_row()
                && !interruptible(&mut self.link, &self.key, self.deadline, stream.advance()).await?
            {
                break;
            }
            stream.skip_row();
            skipped += 1;
        }
        Ok(skipped)
    }
}

impl Portal {
    fn started(outcome: Outcome, is_held: bool) -> Self {
        Self { contents: Contents::Started(outcome), formats: Vec::new(), is_held, bytes: 0 }
    }
}

/// The formats of `columns`, from what a client has asked for.
fn formats(asked: &[Format], columns: usize) -> PgResult<Vec<Format>> {
    match asked {
        [] => Ok(vec![Format::Text; columns]),
        [one] => Ok(vec![*one; columns]),
        all if all.len() == columns => Ok(all.to_vec()),
        all => {
            let message =
                format!("bind message has {} result formats but query has {columns} columns", all.len());
            Err(PgError::new(code::PROTOCOL_VIOLATION, message))
        }
    }
}
