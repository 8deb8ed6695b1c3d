//! Statements that are about the session rather than about tables.

use super::copy::{self, CopyOut};
use super::lexer::{Token, TokenKind, tokens, unquoted};
use crate::error::{PgError, PgResult};

/// What a statement asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Command {
    /// A query for the service or the catalog.
    Query,
    Begin,
    Commit,
    Rollback,
    /// `SAVEPOINT`, `RELEASE`: nothing is undone, because nothing is written.
    Savepoint(&'static str),
    RollbackTo,
    Set {
        name: String,
        value: SetValue,
        is_local: bool,
    },
    Show(String),
    ShowAll,
    Reset(Option<String>),
    /// `DISCARD`, and whether it is `DISCARD ALL`.
    Discard(bool),
    /// The name, or all.
    Deallocate(Option<String>),
    Declare {
        name: String,
        query: String,
        is_held: bool,
        is_binary: bool,
    },
    Fetch {
        name: String,
        count: u64,
        /// Whether the rows are skipped.
        is_move: bool,
    },
    Close(Option<String>),
    Copy(Box<CopyOut>),
    /// Accepted without effect: its command tag.
    NoOp(&'static str),
}

/// The value of a `SET`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SetValue {
    Default,
    Text(String),
    /// Of a setting of transactions, which has no effect.
    Ignored,
}

struct Words<'a> {
    sql: &'a str,
    tokens: Vec<Token>,
    at: usize,
}

/// The most tokens of a statement that are looked at. Only queries are longer, and cursors for queries.
const TOKENS_MAX: usize = 64;

impl<'a> Words<'a> {
    fn text(&self, token: Token) -> &'a str {
        &self.sql[token.start..token.end]
    }

    fn peek(&self) -> Option<Token> {
        self.tokens.get(self.at).copied()
    }

    /// Takes the next token if it is one of these words.
    fn any(&mut self, words: &[&str]) -> bool {
        let is = self.peek().is_some_and(|token| {
            token.kind == TokenKind::Word
                && words.iter().any(|word| self.text(token).eq_ignore_ascii_case(word))
        });
        self.at += usize::from(is);
        is
    }

    fn word(&mut self, word: &str) -> bool {
        self.any(&[word])
    }

    fn unexpected<T>(&self) -> PgResult<T> {
        let near = self.peek().map_or("end of input", |token| self.text(token));
        Err(PgError::syntax(format!("syntax error at or near \"{near}\"")))
    }

    fn name(&mut self) -> PgResult<String> {
        match self.peek() {
            Some(token) if token.kind == TokenKind::Word => {
                self.at += 1;
                Ok(self.text(token).to_lowercase())
            }
            Some(token) if token.kind == TokenKind::QuotedName => {
                self.at += 1;
                Ok(unquoted(self.text(token)))
            }
            _ => self.unexpected(),
        }
    }

    /// The name of a setting, which may have parts.
    fn setting(&mut self) -> PgResult<String> {
        let mut name = self.name()?.to_lowercase();
        while self.peek().is_some_and(|token| token.kind == TokenKind::Symbol('.')) {
            self.at += 1;
            name = format!("{name}.{}", self.name()?);
        }
        Ok(name)
    }

    fn end(&self) -> PgResult<()> {
        if self.peek().is_some() { self.unexpected() } else { Ok(()) }
    }
}

/// What a statement asks for. It is one statement, and not empty.
///
/// # Errors
/// If it is a command with a syntax error. Queries are not parsed here.
pub(crate) fn parse(sql: &str) -> PgResult<Command> {
    let mut words = Words { sql, tokens: tokens(sql).take(TOKENS_MAX).collect(), at: 0 };
    let Some(first) = words.peek().filter(|token| token.kind == TokenKind::Word) else {
        return Ok(Command::Query);
    };
    words.at = 1;
    match words.text(first).to_ascii_lowercase().as_str() {
        "begin" => Ok(Command::Begin),
        "start" if words.word("transaction") => Ok(Command::Begin),
        "commit" | "end" => Ok(Command::Commit),
        "abort" => Ok(Command::Rollback),
        "rollback" => {
            words.any(&["work", "transaction"]);
            Ok(if words.word("to") { Command::RollbackTo } else { Command::Rollback })
        }
        "savepoint" => words.name().map(|_| Command::Savepoint("SAVEPOINT")),
        "release" => Ok(Command::Savepoint("RELEASE")),
        "set" => set(&mut words),
        "show" => show(&mut words),
        "reset" => {
            let name = if words.word("all") { None } else { Some(time_zone(&mut words)?) };
            words.end().map(|()| Command::Reset(name))
        }
        "discard" => {
            let is_all = words.word("all");
            if !is_all && !words.any(&["plans", "sequences", "temp", "temporary"]) {
                return words.unexpected();
            }
            words.end().map(|()| Command::Discard(is_all))
        }
        "deallocate" => {
            words.word("prepare");
            let name = if words.word("all") { None } else { Some(words.name()?) };
            words.end().map(|()| Command::Deallocate(name))
        }
        "declare" => declare(&mut words),
        "fetch" => fetch(&mut words, false),
        "move" => fetch(&mut words, true),
        "close" => {
            let name = if words.word("all") { None } else { Some(words.name()?) };
            words.end().map(|()| Command::Close(name))
        }
        "copy" => Ok(Command::Copy(Box::new(copy::parse(sql)?))),
        "unlisten" => Ok(Command::NoOp("UNLISTEN")),
        "checkpoint" => Ok(Command::NoOp("CHECKPOINT")),
        "lock" => Ok(Command::NoOp("LOCK TABLE")),
        "prepare" | "execute" | "listen" | "notify" | "vacuum" | "analyze" | "grant" | "revoke" | "call"
        | "do" => Err(PgError::unsupported(format!("{} is not supported", words.text(first).to_uppercase()))),
        _ => Ok(Command::Query),
    }
}

/// A setting, or `TIME ZONE`.
fn time_zone(words: &mut Words<'_>) -> PgResult<String> {
    if words.word("time") {
        return if words.word("zone") { Ok("timezone".into()) } else { words.unexpected() };
    }
    words.setting()
}

fn set(words: &mut Words<'_>) -> PgResult<Command> {
    let ignored = |name: &str| Command::Set { name: name.into(), value: SetValue::Ignored, is_local: false };
    let is_local = words.word("local");
    if words.any(&["session"]) && words.word("characteristics") {
        return Ok(ignored("transaction"));
    }
    if words.word("transaction") || words.word("constraints") {
        return Ok(ignored("transaction"));
    }
    // SET SESSION AUTHORIZATION and SET ROLE change nothing: there is one user.
    if words.any(&["role", "authorization"]) {
        return Ok(ignored("role"));
    }
    let is_names = words.word("names");
    let (name, needs_to) = if is_names {
        ("client_encoding".to_owned(), false)
    } else {
        let is_zone = words.peek().is_some_and(|token| words.text(token).eq_ignore_ascii_case("time"));
        (time_zone(words)?, !is_zone)
    };
    let has_to = words.word("to") || {
        let is_equal = words.peek().is_some_and(|token| token.kind == TokenKind::Symbol('='));
        words.at += usize::from(is_equal);
        is_equal
    };
    if needs_to && !has_to {
        return words.unexpected();
    }
    if words.word("default") {
        return words.end().map(|()| Command::Set { name, value: SetValue::Default, is_local });
    }
    if !needs_to && words.word("local") {
        return words.end().map(|()| Command::Set { name, value: SetValue::Default, is_local });
    }
    let mut values = Vec::new();
    while let Some(token) = words.peek() {
        words.at += 1;
        match token.kind {
            TokenKind::String | TokenKind::QuotedName => values.push(unquoted(words.text(token))),
            TokenKind::Word | TokenKind::Number => values.push(words.text(token).to_owned()),
            TokenKind::Symbol('-') => {
                let Some(number) = words.peek() else { return words.unexpected() };
                words.at += 1;
                values.push(format!("-{}", words.text(number)));
            }
            _ => {
                words.at -= 1;
                return words.unexpected();
            }
        }
        if words.peek().is_some_and(|token| token.kind == TokenKind::Symbol(',')) {
            words.at += 1;
        }
    }
    if values.is_empty() {
        // SET NAMES without a value, too.
        return if is_names {
            Ok(Command::Set { name, value: SetValue::Default, is_local })
        } else {
            words.unexpected()
        };
    }
    Ok(Command::Set { name, value: SetValue::Text(values.join(", ")), is_local })
}

fn show(words: &mut Words<'_>) -> PgResult<Command> {
    if words.word("all") {
        return words.end().map(|()| Command::ShowAll);
    }
    // DataFusion's own statements.
    if words.any(&["tables", "columns", "functions", "create"]) {
        return Ok(Command::Query);
    }
    if words.word("transaction") {
        return match (words.word("isolation"), words.word("level")) {
            (true, true) => Ok(Command::Show("transaction_isolation".into())),
            _ => words.unexpected(),
        };
    }
    if words.word("session") {
        return if words.word("authorization") {
            Ok(Command::Show("session_authorization".into()))
        } else {
            words.unexpected()
        };
    }
    let name = time_zone(words)?;
    words.end().map(|()| Command::Show(name))
}

fn declare(words: &mut Words<'_>) -> PgResult<Command> {
    let name = words.name()?;
    let mut is_binary = false;
    loop {
        if words.word("binary") {
            is_binary = true;
        } else if words.word("no") {
            if !words.word("scroll") {
                return words.unexpected();
            }
        } else if words.word("scroll") {
            return Err(PgError::unsupported("cursors only move forward").hint("leave SCROLL out"));
        } else if !words.any(&["asensitive", "insensitive"]) {
            break;
        }
    }
    if !words.word("cursor") {
        return words.unexpected();
    }
    let is_with = words.word("with");
    if (is_with || words.word("without")) && !words.word("hold") {
        return words.unexpected();
    }
    if !words.word("for") {
        return words.unexpected();
    }
    let Some(start) = words.peek() else { return words.unexpected() };
    Ok(Command::Declare { name, query: words.sql[start.start..].to_owned(), is_held: is_with, is_binary })
}

/// `FETCH [direction] [FROM | IN] name`.
fn fetch(words: &mut Words<'_>, is_move: bool) -> PgResult<Command> {
    words.word("forward");
    let backward = || Err(PgError::unsupported("cursors only move forward"));
    let mut count = 1;
    match words.peek() {
        Some(token) if token.kind == TokenKind::Number => {
            words.at += 1;
            count = words.text(token).parse().map_err(|_| PgError::syntax("expected a number of rows"))?;
        }
        Some(token) if token.kind == TokenKind::Symbol('-') => return backward(),
        _ if words.word("all") => count = u64::MAX,
        // A cursor may have the name of a direction.
        _ if words.tokens.len() > words.at + 1 => {
            if words.any(&["prior", "first", "last", "absolute", "relative", "backward"]) {
                return backward();
            }
            words.word("next");
        }
        _ => {}
    }
    words.any(&["from", "in"]);
    let name = words.name()?;
    words.end().map(|()| Command::Fetch { name, count, is_move })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(sql: &str, expected: Command) {
        assert_eq!(parse(sql).unwrap(), expected, "{sql}");
    }

    #[test]
    fn commands_of_clients_are_recognised() {
        check("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY", Command::Begin);
        check("start transaction", Command::Begin);
        check("ROLLBACK TO SAVEPOINT \"x\"", Command::RollbackTo);
        check("ROLLBACK", Command::Rollback);
        check("/* c */ end", Command::Commit);
        check("DEALLOCATE ALL", Command::Deallocate(None));
        check("DEALLOCATE \"_pg3_0\"", Command::Deallocate(Some("_pg3_0".into())));
        check("show transaction isolation level", Command::Show("transaction_isolation".into()));
        check("SHOW server_version_num", Command::Show("server_version_num".into()));
        check("show time zone", Command::Show("timezone".into()));
        check("show tables", Command::Query);
        check("select 1", Command::Query);
        check("(select 1)", Command::Query);
        check("DISCARD ALL", Command::Discard(true));
    }

    #[test]
    fn settings_have_values_of_all_kinds() {
        let set = |name: &str, value: &str| Command::Set {
            name: name.into(),
            value: SetValue::Text(value.into()),
            is_local: false,
        };
        check("SET extra_float_digits = 3", set("extra_float_digits", "3"));
        check("SET application_name TO 'it''s'", set("application_name", "it's"));
        check("set SESSION search_path to 'public', \"X\"", set("search_path", "public, X"));
        check("SET TIME ZONE 'UTC'", set("timezone", "UTC"));
        check("SET TimeZone = -5", set("timezone", "-5"));
        check("set names 'utf8'", set("client_encoding", "utf8"));
        check("SET x.y = on", set("x.y", "on"));
        let ignored =
            |name: &str| Command::Set { name: name.into(), value: SetValue::Ignored, is_local: false };
        check("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", ignored("transaction"));
        check("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", ignored("transaction"));
        assert!(parse("set x").is_err());
        assert!(parse("set x =").is_err());
    }

    #[test]
    fn cursors_are_declared_and_fetched() {
        let declare = |is_held| Command::Declare {
            name: "c".into(),
            query: "select 1".into(),
            is_held,
            is_binary: false,
        };
        check("DECLARE c CURSOR FOR select 1", declare(false));
        check("declare \"c\" NO SCROLL CURSOR WITH HOLD FOR select 1", declare(true));
        let fetch = |count| Command::Fetch { name: "c".into(), count, is_move: false };
        check("FETCH FORWARD ALL FROM \"c\"", fetch(u64::MAX));
        check("fetch forward 100 from c", fetch(100));
        check("FETCH 5 IN c", fetch(5));
        check("fetch c", fetch(1));
        check("fetch next from c", fetch(1));
        check("CLOSE c", Command::Close(Some("c".into())));
        assert!(parse("fetch -1 from c").is_err());
        assert!(parse("fetch backward 3 from c").is_err());
        assert!(parse("fetch").is_err());
        assert!(parse("declare c scroll cursor for select 1").is_err());
    }
}
